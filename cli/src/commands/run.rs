//! `leasehold run`: holds a lock while a command runs.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use leasehold_client::{Client, ErrorKind, Guard, LockRequest};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::commands::{acquire, exec};
use crate::connection::{CommonArgs, TOKEN_VARIABLE, URL_VARIABLE};
use crate::duration::{self, show, show_seconds};
use crate::failure::{sentence, status};
use crate::lock_args::{RequestArgs, heartbeats};
use crate::processes::{adopt_orphans, reap, signal_descendants, wait_for_descendants};
use crate::signals::{Received, Signals, die_of_interrupt};
use crate::{Failure, acquiring};

/// The part of the lease that is left at the warning about failing heartbeats: one in so many.
const AT_RISK: u32 = 3;

/// The usual time until killed processes are gone.
const KILLED: Duration = Duration::from_millis(200);

const LEASE_ID_VARIABLE: &str = "LEASEHOLD_LEASE_ID";
const SORT_KEY_VARIABLE: &str = "LEASEHOLD_LOCK_SORT_KEY";

const HELP: &str = "\
The command's environment has LEASEHOLD_KEY, LEASEHOLD_FENCING_TOKEN, LEASEHOLD_OWNER_NAME, and where they apply
LEASEHOLD_LOCK_SORT_KEY and LEASEHOLD_URL. It does not have LEASEHOLD_TOKEN. Let the resource that the lock protects
check the fencing token: it alone can stop a command that was paused, or that went on because this program was killed.

Signals: SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the command and all that it started; SIGUSR1 and SIGUSR2 to
the command. A Ctrl-C is not passed on: the terminal has sent it to the command already. While this program waits for the
lock, a signal ends the wait. If this program is killed, the command gets a SIGTERM (on Linux).

When the lock is lost, the command and all that it started get a SIGTERM, and after --grace a SIGKILL. When the
command ends by itself, what it left running in the background goes on, without the lock.

Exit status:
   the command's own; 128 and the signal's number if a signal ended it
  75  the lock is held by someone else (--held-status), and the command was not started
  76  the lock was lost, and the command stopped for that (--lost-status)
 126  the command cannot be executed
 127  there is no such command
   and if the lock cannot be had for another reason, as listed by `leasehold --help`";

/// Hold a lock for as long as a command takes.
///
/// Waits for the lock, runs the command, heartbeats meanwhile, and gives the lock back.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    request: RequestArgs,

    /// Heartbeat this often: at most half the lease. Default: a quarter of it.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    heartbeat: Option<Duration>,

    /// How long the command may take to end after a SIGTERM, when the lock is lost.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse_or_zero)]
    grace: Duration,

    /// Go on while the service cannot be reached, even beyond the lease. DANGER: others may reach it, take the lock
    /// over and work at the same time. Only for work where two at once are better than none.
    #[arg(long)]
    hold_on_unavailable: bool,

    /// Put the lease id into the command's environment as LEASEHOLD_LEASE_ID: for `leasehold heartbeat --data`, for
    /// example. If the command releases the lock, it is stopped as if the lock were lost.
    #[arg(long)]
    pass_lease_id: bool,

    /// End with this status if someone else holds the lock.
    #[arg(long, value_name = "STATUS", default_value_t = status::HELD)]
    held_status: u8,

    /// End with this status if the lock was lost and the command stopped for that.
    #[arg(long, value_name = "STATUS", default_value_t = status::LOST)]
    lost_status: u8,

    /// What to run, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// The end of the command.
enum End {
    /// The command ended by itself, or by a signal that was passed on.
    Ended(WaitStatus),
    /// The command was stopped after the loss of the lock.
    Stopped,
}

pub(crate) async fn main(args: RunArgs) -> Result<ExitCode, Failure> {
    let mut signals = Signals::all()?;
    let client = args.common.client().await?;
    let adjust = |request| args.adjust(request);
    let guard = acquiring::acquire(&client, &args.request, &args.common, &mut signals, adjust).await;
    let guard = guard.map_err(|failure| failure.replace_status(status::HELD, args.held_status))?;
    args.common
        .output
        .say(|| format!("{} is yours: {}; token {}", guard.key(), acquire::how(&guard), guard.fencing_token()));

    let end = match Child::start(&args, &guard) {
        Ok(child) => child.supervise(&args, &guard, &mut signals).await,
        Err(failure) => {
            release(&args, guard, &client, &mut signals).await;
            return Err(failure);
        }
    };
    match end {
        End::Ended(status) => {
            release(&args, guard, &client, &mut signals).await;
            if matches!(status, WaitStatus::Signaled(_, Signal::SIGINT, _)) && signals.interrupted() {
                die_of_interrupt();
            }
            Ok(exit_code(status))
        }
        End::Stopped => Ok(ExitCode::from(args.lost_status)),
    }
}

impl RunArgs {
    fn adjust(&self, request: LockRequest) -> LockRequest {
        let (output, key) = (self.common.output.clone(), self.request.lock.lock_key());
        let warn = move |left: Duration| {
            // After a long pause nothing is left: the loss is reported instead.
            if !left.is_zero() {
                output.warn(&format!("no heartbeat succeeds: the lease of {key} ends in {}", show_seconds(left)));
            }
        };
        let request = request.heartbeats(heartbeats(self.heartbeat)).at_risk(self.request.lease / AT_RISK, warn);
        if self.hold_on_unavailable { request.hold_on_unavailable() } else { request }
    }
}

/// The command while it runs.
struct Child {
    id: Pid,
    ended: tokio::signal::unix::Signal,
}

impl Child {
    fn start(args: &RunArgs, guard: &Guard) -> Result<Self, Failure> {
        let cannot_start = |error| Failure::failed(format!("cannot start a process: {error}"));
        // The handler is set before the start, so that no end is missed.
        let ended = signal(SignalKind::child()).map_err(cannot_start)?;
        adopt_orphans();
        let mut command = exec::tied(&args.command);
        command
            .env("LEASEHOLD_KEY", &guard.key().key)
            .env("LEASEHOLD_FENCING_TOKEN", guard.fencing_token().to_string())
            .env("LEASEHOLD_OWNER_NAME", guard.owner_name().unwrap_or_default());
        // The command does not need this program's secret.
        command.env_remove(TOKEN_VARIABLE);
        // An enclosing `run` may have set a variable that does not apply.
        let optional = [
            (URL_VARIABLE, args.common.url()),
            (SORT_KEY_VARIABLE, guard.key().sort_key.clone()),
            (LEASE_ID_VARIABLE, args.pass_lease_id.then(|| guard.lease_id().0.clone())),
        ];
        for (name, value) in optional {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = command.spawn().map_err(cannot_start)?;
        let id = i32::try_from(child.id()).map(Pid::from_raw).map_err(|_| Failure::failed("no such process id"))?;
        Ok(Self { id, ended })
    }

    /// Passes signals on, until the command ends or is stopped after the loss of the lock.
    async fn supervise(mut self, args: &RunArgs, guard: &Guard, signals: &mut Signals) -> End {
        let lost = guard.lost();
        tokio::pin!(lost);
        loop {
            if let Some(status) = reap(self.id) {
                return End::Ended(status);
            }
            tokio::select! {
                _ = self.ended.recv() => {}
                Some(how) = &mut lost => {
                    Failure::lost(&how).and("; stopping the command").report(args.common.output.json);
                    self.stop(args, signals).await;
                    return End::Stopped;
                }
                received = signals.next() => self.pass_on(received),
            }
        }
    }

    fn pass_on(&self, received: Received) {
        match (received.is_ending(), received.sent_here) {
            // The command's own processes get the signal too: they must not outlive the release of the lock.
            (true, true) => signal_descendants(Pid::this(), received.signal),
            // The terminal has sent the signal to the command already. A second one could look like impatience.
            (true, false) => {}
            // The command may have ended a moment ago.
            (false, _) => drop(kill(self.id, received.signal)),
        }
    }

    /// Ends the command and all its descendants. Another signal shortens the grace period.
    async fn stop(&self, args: &RunArgs, signals: &mut Signals) {
        let everything = Pid::this();
        signal_descendants(everything, Signal::SIGTERM);
        let why = tokio::select! {
            ended = wait_for_descendants(everything, Instant::now() + args.grace) => {
                if ended {
                    return;
                }
                format!("the command did not end within {}", show(args.grace))
            }
            received = signals.next_ending() => format!("{} while the command is being stopped", received.signal),
        };
        args.common.output.warn(&format!("{why}: SIGKILL"));
        // This kills the processes that were started in the meantime.
        loop {
            signal_descendants(everything, Signal::SIGKILL);
            if wait_for_descendants(everything, Instant::now() + KILLED).await {
                return;
            }
        }
    }
}

/// Releases the lock. The command's status counts, whatever the outcome. A signal ends the attempt.
async fn release(args: &RunArgs, guard: Guard, client: &Client, signals: &mut Signals) {
    let output = &args.common.output;
    let key = guard.key().clone();
    let released = tokio::select! {
        released = guard.release() => released,
        received = signals.next_impatient() => {
            output.warn(&format!("{}: {key} is not released; it is free one lease from now", received.signal));
            return;
        }
    };
    match released {
        Ok(_) => output.say(|| format!("{key} is released")),
        Err(error) => match error.kind() {
            ErrorKind::Lost(loss) => output.warn(&format!("{key} was lost while the command ran: {}", loss.how())),
            _ => output
                .warn(&format!("{key} could not be released: {}; it is free one lease from now", sentence(&error))),
        },
    }
    drop(client.close().await);
}

fn exit_code(status: WaitStatus) -> ExitCode {
    match status {
        WaitStatus::Exited(_, code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        WaitStatus::Signaled(_, signal, _) => {
            ExitCode::from(status::SIGNALLED + u8::try_from(signal as i32).unwrap_or_default())
        }
        // `reap` reports no other status.
        _ => ExitCode::FAILURE,
    }
}
