//! The guardian: the process between `run` and its command. It ends the command, and all that the command started, when
//! `run` cannot: because it was killed, or is stopped.
//!
//! A pipe leads from `run` to its guardian. `run` writes down until when it believes in its grant; the end of the pipe
//! is the end of `run`. The guardian adopts the orphans among its descendants, so that none escapes by a second fork or
//! a session of its own. It has a session of its own: a signal to the group of `run` leaves it alone.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::{Pid, close, dup, getppid, setsid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::pipe::{Receiver, Sender, pipe};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::commands::exec;
use crate::commands::terraform::Way;
use crate::duration::since_boot;
use crate::processes::{LOOK, adopt_orphans, exit_code, reap, signal_descendants};
use crate::signals::{Received, Signals, die_of};

/// The name of this hidden subcommand.
pub(crate) const NAME: &str = "guard";

/// The signal that ends a guardian after it has stopped its command.
pub(crate) const STOPPED: Signal = Signal::SIGALRM;

/// The longest sleep. A timer stands still while the machine is suspended; the clock is looked at afterwards.
const NAP: Duration = Duration::from_secs(1);

/// Guard a command for the process that keeps its grant.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// The process that keeps the grant.
    #[arg(long)]
    parent: i32,

    /// The end of the pipe from which orders come.
    #[arg(long)]
    orders: i32,

    /// Milliseconds since the start of the machine until which the grant is believed in.
    #[arg(long)]
    until: u64,

    /// Milliseconds between SIGTERM and SIGKILL.
    #[arg(long)]
    grace: u64,

    /// The first order tells the way to Terraform's states, for which the guardian keeps a passage.
    #[arg(long)]
    states: bool,

    /// The command.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// A guardian, for the process that keeps the grant.
pub(crate) struct Guardian {
    pub(crate) id: Pid,
    orders: Sender,
}

impl Guardian {
    /// Starts a guardian, which starts `command`. `prepare` sets the command's environment. With `states`, the guardian
    /// keeps a passage to these.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) async fn start(
        command: &[OsString],
        remaining: Duration,
        grace: Duration,
        states: Option<&Way>,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let (mut orders, theirs) = pipe()?;
        // A copy of a descriptor is inherited, unlike the original.
        let inherited = dup(theirs.into_nonblocking_fd()?)?;
        let mut guardian = Command::new(exec::own_binary());
        guardian.arg0("leasehold").arg(NAME);
        for (name, value) in [
            ("--parent", i64::from(std::process::id())),
            ("--orders", i64::from(inherited.as_raw_fd())),
            ("--until", millis(since_boot() + remaining)),
            ("--grace", millis(grace)),
        ] {
            guardian.args([name, &value.to_string()]);
        }
        guardian.args(states.map(|_| "--states")).arg("--").args(command);
        prepare(&mut guardian);
        let id = i32::try_from(guardian.spawn()?.id()).map_err(io::Error::other)?;
        if let Some(states) = states {
            // Secrets are neither arguments nor variables of a process.
            orders.write_all((serde_json::to_string(states)? + "\n").as_bytes()).await?;
        }
        Ok(Self { id: Pid::from_raw(id), orders })
    }

    /// Says how long the grant is still believed in. Continues a guardian that somebody stopped; one that runs ignores
    /// the signal.
    pub(crate) fn believe(&self, remaining: Duration) {
        // The guardian may have ended a moment ago.
        let _ = kill(self.id, Signal::SIGCONT);
        self.order(&format!("until {}\n", millis(since_boot() + remaining)));
    }

    /// Has the command and all its descendants asked to end, and killed after this time.
    pub(crate) fn stop(&self, within: Duration) {
        self.order(&format!("stop {}\n", millis(since_boot() + within)));
    }

    fn order(&self, line: &str) {
        // A pipe that is full has an older order, after which the guardian acts sooner. One without a reader has no
        // guardian, which its status tells.
        let _ = self.orders.try_write(line.as_bytes());
    }

    /// Passes a signal on.
    pub(crate) fn pass_on(&self, received: Received) {
        // The terminal has sent the signal to the command already. A second one could look like impatience.
        if received.sent_here || !received.is_ending() {
            // The guardian may have ended a moment ago.
            let _ = kill(self.id, received.signal);
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Runs the command. Returns its status.
pub(crate) async fn main(args: GuardArgs) -> Result<ExitCode, Failure> {
    let cannot_guard = |error| Failure::failed(format!("cannot guard the command: {error}"));
    adopt_orphans();
    // Both are set before the start, so that nothing is missed.
    let signals = Signals::all()?;
    let ended = signal(SignalKind::child()).map_err(cannot_guard)?;
    let orders = File::open(format!("/dev/fd/{}", args.orders)).and_then(Receiver::from_file).map_err(cannot_guard)?;
    let mut orders = BufReader::new(orders).lines();
    close(args.orders).map_err(|error| cannot_guard(error.into()))?;
    if getppid().as_raw() != args.parent {
        return Err(Failure::failed("the parent is gone"));
    }
    let mut command = exec::tied(&args.command);
    let lost = watch::Sender::new(false);
    if args.states {
        let way = orders.next_line().await.map_err(cannot_guard)?.unwrap_or_default();
        let way: Way = serde_json::from_str(&way).map_err(|error| cannot_guard(error.into()))?;
        command.envs(way.open(lost.subscribe()).await?);
    }
    let child = command.spawn().map_err(cannot_guard)?;
    // The command stays in the group of `run`. A guardian of the same session but another group would have the kernel
    // hang the whole group up, where the command ends while `run` is stopped and no shell is above them.
    setsid().map_err(|error| cannot_guard(error.into()))?;
    let child = i32::try_from(child.id()).map_err(|error| cannot_guard(io::Error::other(error)))?;
    let guard = Guard {
        child: Pid::from_raw(child),
        grace: Duration::from_millis(args.grace),
        until: Duration::from_millis(args.until),
        kill_at: None,
        signals,
        ended,
        orders: Some(orders),
        lost,
    };
    Ok(guard.watch().await)
}

/// What the guardian knows.
struct Guard {
    child: Pid,
    grace: Duration,
    /// The time, since the start of the machine, until which the grant is believed in.
    until: Duration,
    /// The time at which the descendants are killed: they were asked to end.
    kill_at: Option<Duration>,
    signals: Signals,
    ended: tokio::signal::unix::Signal,
    /// None after the end of the process that keeps the grant.
    orders: Option<Lines<BufReader<Receiver>>>,
    /// Becomes true when the grant is believed in no more. After the end of its keeper it holds for its time.
    lost: watch::Sender<bool>,
}

impl Guard {
    /// Returns the status of the command. If it was asked to end, its descendants come to their end first.
    async fn watch(mut self) -> ExitCode {
        let (mut status, mut own) = (None, None);
        loop {
            let reaped = reap(self.child);
            status = reaped.status.or(status);
            if let (Some(ended), None) = (status, self.kill_at) {
                if !matches!(ended, WaitStatus::Signaled(_, Signal::SIGKILL, _)) {
                    return end_as(ended);
                }
                // A command that was killed could not end what it had started, and its keeper may be killed as well.
                own = status;
                self.stop(since_boot().min(self.until) + self.grace);
            }
            if reaped.none_left {
                return own.map_or_else(end_as_stopped, end_as);
            }
            let now = since_boot();
            if now >= self.until {
                self.lost.send_replace(true);
                self.stop(self.until + self.grace);
            }
            if self.kill_at.is_some_and(|at| now >= at) {
                signal_descendants(Pid::this(), Signal::SIGKILL);
            }
            let nap = self.kill_at.map_or(self.until.saturating_sub(now).min(NAP), |_| LOOK);
            tokio::select! {
                _ = self.ended.recv() => {}
                order = next_order(&mut self.orders) => self.obey(order.as_deref()),
                received = self.signals.next() => self.pass_on(received),
                () = sleep_until(Instant::now() + nap) => {}
            }
        }
    }

    fn obey(&mut self, order: Option<&str>) {
        match order
            .and_then(|order| order.split_once(' '))
            .map(|(word, at)| (word, at.parse().map(Duration::from_millis)))
        {
            Some(("until", Ok(until))) => self.until = until,
            Some(("stop", Ok(at))) => {
                self.lost.send_replace(true);
                self.stop(at);
            }
            _ => {
                self.orders = None;
                self.stop(since_boot().min(self.until) + self.grace);
            }
        }
    }

    /// Asks all descendants to end, once, and notes when they are to be killed.
    fn stop(&mut self, kill_at: Duration) {
        if self.kill_at.is_none() {
            signal_descendants(Pid::this(), Signal::SIGTERM);
        }
        self.kill_at = Some(self.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
    }

    /// Signals that ask for an end reach all descendants: they must not outlive the release of the grant.
    fn pass_on(&self, received: Received) {
        if received.is_ending() {
            signal_descendants(Pid::this(), received.signal);
        } else {
            // The command may have ended a moment ago.
            let _ = kill(self.child, received.signal);
        }
    }
}

/// Returns the next line, or None at the end of the pipe.
async fn next_order(orders: &mut Option<Lines<BufReader<Receiver>>>) -> Option<String> {
    match orders {
        Some(lines) => lines.next_line().await.ok().flatten(),
        None => std::future::pending().await,
    }
}

/// Ends as the command did. Of the command's signals only an interrupt ends the guardian as well: the status after any
/// other one is the guardian's own.
fn end_as(ended: WaitStatus) -> ExitCode {
    if matches!(ended, WaitStatus::Signaled(_, Signal::SIGINT, _)) {
        die_of(Signal::SIGINT);
    }
    exit_code(ended)
}

/// Ends so that nobody takes it for the end of the command.
fn end_as_stopped() -> ExitCode {
    die_of(STOPPED);
    ExitCode::FAILURE
}
