//! The processes of the demo, and their events.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use console::Style;
use leasehold_client::Client;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};

use crate::Failure;
use crate::commands::exec;
use crate::duration::show;
use crate::output::{print, short};
use crate::processes::descendants;

/// The longest wait for an event: twice its usual time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(12);
/// The interval between two looks at the lock.
const LOOK: Duration = Duration::from_millis(100);
/// The interval between two writes of a host's job.
const WRITE: Duration = Duration::from_secs(1);
/// The time that people need to read a line.
const PAUSE: Duration = Duration::from_millis(1200);

/// The job of a host, which writes repeatedly.
pub(super) struct Job {
    /// The store's record to write to.
    pub(super) record: &'static str,
    pub(super) value: &'static str,
    /// The number of writes; `None`: without end.
    pub(super) times: Option<u64>,
}

/// An event on the stage.
pub(super) enum Event {
    /// A host printed a line.
    Line { who: String, text: String },
    /// The lock has another version.
    Version { text: String, heartbeat: bool },
    /// A host has ended, with this status.
    Ended { who: String, status: Option<i32> },
}

impl Event {
    pub(super) fn is_line(&self, wanted: &str, start: &str) -> bool {
        matches!(self, Self::Line { who, text } if who == wanted && text.starts_with(start))
    }
}

/// A service, a store, and their events. Dropping the stage ends the service, and deletes the store.
pub(super) struct Stage {
    started: Instant,
    folder: TempDir,
    service: Child,
    url: String,
    sender: mpsc::UnboundedSender<Event>,
    events: mpsc::UnboundedReceiver<Event>,
    watcher: Option<JoinHandle<()>>,
}

impl Stage {
    pub(super) async fn set() -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("leasehold-demo-").tempdir();
        let folder = folder.map_err(|error| Failure::failed(format!("cannot make a temporary folder: {error}")))?;
        let mut service = spawn(&["serve", "--memory", "--listen", "127.0.0.1:0"].map(OsString::from))?;
        let mut lines = BufReader::new(piped(service.stdout.take())?).lines();
        let banner = timeout(PATIENCE, lines.next_line()).await.ok().and_then(Result::ok).flatten();
        let url = banner.as_ref().and_then(|line| line.strip_prefix("Leasehold listens on "));
        let url = url.ok_or_else(|| Failure::failed("the service did not start"))?.to_owned();
        let (sender, events) = mpsc::unbounded_channel();
        Ok(Self { started: Instant::now(), folder, service, url, sender, events, watcher: None })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn store(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    /// Prints a line: the time, the speaker, the text.
    pub(super) fn say(&self, who: &str, what: &str) -> Result<(), Failure> {
        let style = match who {
            "host-1" => Style::new().cyan(),
            "host-2" => Style::new().yellow(),
            "lock" => Style::new().dim(),
            _ => Style::new().bold(),
        };
        // The style has no effect if standard output is no terminal, or colours are not wanted.
        let line = style.apply_to(format!("{who:<7} {what}"));
        print(&format!("{:5.1}s  {line}", self.started.elapsed().as_secs_f64()))
    }

    /// Reports each new version of the lock.
    pub(super) fn watch(&mut self, client: &Client, key: &'static str) {
        let (client, sender) = (client.clone(), self.sender.clone());
        self.watcher = Some(tokio::spawn(async move {
            let mut looks = interval(LOOK);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut seen = None;
            loop {
                looks.tick().await;
                let Ok(lock) = client.get(key).await else { continue };
                let known = seen.replace((lock.record_version_number.clone(), lock.fencing_token));
                let Some((version, token)) = known else { continue };
                if version != lock.record_version_number {
                    let heartbeat = token == lock.fencing_token;
                    let why = if heartbeat { "a heartbeat" } else { "another holder" };
                    let text = format!("version {} -> {}: {why}", short(&version), short(&lock.record_version_number));
                    // The receiver is gone: the story is over.
                    if sender.send(Event::Version { text, heartbeat }).is_err() {
                        return;
                    }
                }
            }
        }));
    }

    /// Prints all events, until one is `wanted`.
    pub(super) async fn until(&mut self, what: &str, wanted: impl Fn(&Event) -> bool) -> Result<Event, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // This stage owns the sender: the channel does not end.
            let heard = timeout_at(deadline, self.events.recv()).await.ok().flatten();
            let event = heard.ok_or_else(|| {
                Failure::failed(format!("it went otherwise than told: not within {}: {what}", show(PATIENCE)))
            })?;
            self.tell(&event)?;
            if wanted(&event) {
                return Ok(event);
            }
        }
    }

    /// Prints events for a while, so that people can follow.
    pub(super) async fn pause(&mut self) -> Result<(), Failure> {
        let end = Instant::now() + PAUSE;
        while let Ok(Some(event)) = timeout_at(end, self.events.recv()).await {
            self.tell(&event)?;
        }
        Ok(())
    }

    fn tell(&self, event: &Event) -> Result<(), Failure> {
        match event {
            Event::Line { who, text } => self.say(who, text),
            Event::Version { text, .. } => self.say("lock", text),
            Event::Ended { .. } => Ok(()),
        }
    }

    /// Passes lines on as they arrive.
    fn read(&self, who: &str, stream: impl AsyncRead + Unpin + Send + 'static) -> JoinHandle<()> {
        let (who, sender) = (who.to_owned(), self.sender.clone());
        tokio::spawn(async move {
            let mut lines = BufReader::new(stream).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let text = line.strip_prefix("leasehold: ").unwrap_or(&line).to_owned();
                // The receiver is gone: the story is over.
                if sender.send(Event::Line { who: who.clone(), text }).is_err() {
                    return;
                }
            }
        })
    }

    /// Ends the service, and waits for its end.
    pub(super) async fn clear(mut self) {
        drop(self.service.kill().await);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}

/// A host: `leasehold run` with a job, in a process group that can be paused as a whole. Dropping the host ends the
/// group.
pub(super) struct Host {
    group: Pid,
    ended: Arc<AtomicBool>,
}

impl Host {
    /// Starts a host whose job writes `times` times, or without end.
    pub(super) fn start(stage: &Stage, name: &str, lock: &str, lease: Duration, job: &Job) -> Result<Self, Failure> {
        let lease = show(lease);
        let run = ["run", "-v", "--url", stage.url(), "--owner", name, "--lease", &lease, lock, "--"];
        let mut words: Vec<OsString> = run.map(OsString::from).into();
        words.extend([exec::own_binary().into(), "fenced-write".into(), "--every".into(), show(WRITE).into()]);
        if let Some(times) = job.times {
            words.extend(["--times".into(), times.to_string().into()]);
        }
        words.extend(["--store".into(), stage.store().into(), job.record.into(), job.value.into()]);
        let mut run = spawn(&words)?;
        let id = run.id().and_then(|id| i32::try_from(id).ok());
        let group = Pid::from_raw(id.ok_or_else(|| Failure::failed(format!("{name} ended at once")))?);
        let readers = [stage.read(name, piped(run.stdout.take())?), stage.read(name, piped(run.stderr.take())?)];

        let ended = Arc::new(AtomicBool::new(false));
        let (who, sender, flag) = (name.to_owned(), stage.sender.clone(), Arc::clone(&ended));
        tokio::spawn(async move {
            for reader in readers {
                // The lines of the process come first. A reader that fails has nothing more to report.
                let _ = reader.await;
            }
            let status = run.wait().await.ok().and_then(|status| status.code());
            flag.store(true, Ordering::SeqCst);
            let _ = sender.send(Event::Ended { who, status });
        });
        Ok(Self { group, ended })
    }

    /// Sends a signal to all its processes. The guardian of the job is in a group of its own.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        self.processes().into_iter().try_for_each(|process| send(process, signal))
    }

    fn processes(&self) -> Vec<Pid> {
        let mut processes = vec![self.group];
        processes.extend(descendants(self.group));
        processes
    }

    /// Continues the job alone, while its guardian and the process that keeps its lock stay paused.
    pub(super) fn wake_job(&self) -> Result<(), Failure> {
        // The guardian is the one child.
        descendants(self.group).into_iter().skip(1).try_for_each(|process| send(process, Signal::SIGCONT))
    }
}

/// Signals a process, which may have ended since it was listed.
fn send(process: Pid, signal: Signal) -> Result<(), Failure> {
    match kill(process, signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(Failure::failed(format!("cannot send {signal} to host-1: {error}"))),
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::SeqCst) {
            // A guardian that is paused would stay so for good.
            for process in self.processes() {
                let _ = kill(process, Signal::SIGKILL);
            }
        }
    }
}

/// Starts this program with these arguments, without the caller's variables about Leasehold.
fn spawn(words: &[OsString]) -> Result<Child, Failure> {
    let mut command = exec::tied(&[&[exec::own_binary().into()], words].concat());
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"LEASEHOLD_") {
            command.env_remove(name);
        }
    }
    let mut command = Command::from(command);
    command.process_group(0).kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| Failure::failed(format!("cannot start a process: {error}")))
}

fn piped<T>(stream: Option<T>) -> Result<T, Failure> {
    stream.ok_or_else(|| Failure::failed("a process without output"))
}
