//! The command that runs under a lock or permits: its environment, its signals, its end.

use std::ffi::OsString;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures_util::FutureExt;
use futures_util::future::pending;
use leasehold_client::{Client, ErrorKind, Heartbeats, Loss};
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout};

use crate::Failure;
use crate::commands::guard::{self, Guardian};
use crate::commands::terraform::Way;
use crate::connection::{CommonArgs, LAMBDA_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE};
use crate::duration::{self, show, show_seconds};
use crate::failure::sentence;
use crate::grant::{Grant, Subject};
use crate::processes::{LOOK, adopt_orphans, exit_code, reap, signal_descendants, wait_for_descendants};
use crate::signals::{Received, Signals, die_of_interrupt};

/// The divisor of the lease that gives the rest at which people are warned.
const AT_RISK: u32 = 3;

/// The grace period of a long lease, if nobody says.
const LONGEST_GRACE: Duration = Duration::from_secs(10);

/// The divisor of the lease that gives the time between two reports to the guardian. A report that is late makes the
/// guardian stop the command before its time.
const REPORTS: u32 = 16;

/// The time in which the loss of a grant is noticed after a pause.
const NOTICED: Duration = Duration::from_secs(1);

/// The usual time until killed processes are gone.
const KILLED: Duration = Duration::from_millis(200);

/// How to run a command under a lock.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChildArgs {
    /// Heartbeat this often: at most half of the lease without --lock-delay. Default: a quarter of it.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    heartbeat: Option<Duration>,

    /// The time that the command has to end after a SIGTERM, when the lock is lost. Default: 10s, or a quarter of the
    /// lease where that is shorter.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_or_zero)]
    grace: Option<Duration>,

    /// When no heartbeat succeeds, stop the command this long before others may take the lock over. Must be below the
    /// lease. At least --grace and a little more, which is the default: the command is gone before others begin.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_or_zero)]
    lock_delay: Option<Duration>,

    /// Continue while the service cannot be reached, even beyond the lease. DANGER: others may reach it, take the lock
    /// over and work at the same time. Only for work where two at once are better than none.
    #[arg(long)]
    pub(crate) hold_on_unavailable: bool,

    /// Put the lease id into the command's environment as LEASEHOLD_LEASE_ID: for `leasehold heartbeat --data`, for
    /// example. If the command releases the lock, it is stopped as if the lock were lost.
    #[arg(long)]
    pass_lease_id: bool,

    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The time in which killed processes end, on a busy machine too.
fn margin(lease: Duration) -> Duration {
    KILLED.min(lease / 20)
}

/// Sets the options of [`ChildArgs`]. Requests for a lock, for permits and for several locks have the same ones.
macro_rules! keeping {
    ($request:expr, $args:expr, $lease:expr, $warn:expr) => {{
        let args: &crate::child::ChildArgs = &$args;
        let request = $request
            .lease($lease)
            .heartbeats(args.heartbeats())
            .lock_delay(args.lock_delay($lease))
            .at_risk(args.at_risk($lease), $warn);
        if args.hold_on_unavailable { request.hold_on_unavailable() } else { request }
    }};
}
pub(crate) use keeping;

impl ChildArgs {
    pub(crate) fn heartbeats(&self) -> Heartbeats {
        self.heartbeat.map_or(Heartbeats::Quarterly, Heartbeats::Every)
    }

    /// The rest of the lease at which people are warned.
    pub(crate) fn at_risk(&self, lease: Duration) -> Duration {
        lease.saturating_sub(self.lock_delay(lease)) / AT_RISK
    }

    /// The time between SIGTERM and SIGKILL.
    fn grace(&self, lease: Duration) -> Duration {
        self.grace.unwrap_or_else(|| LONGEST_GRACE.min(lease / 4))
    }

    /// The part of the lease that is not believed in: the command ends within it.
    pub(crate) fn lock_delay(&self, lease: Duration) -> Duration {
        self.lock_delay.unwrap_or_default().max(self.grace(lease) + margin(lease))
    }
}

/// Returns the warning about a lease that no heartbeat renews.
pub(crate) fn warning(name: &str, common: &CommonArgs) -> impl Fn(Duration) + Send + Sync + use<> {
    let (output, name) = (common.output.clone(), name.to_owned());
    move |left| {
        // After a long pause nothing is left: the loss is reported instead.
        if !left.is_zero() {
            output.warn(&format!("no heartbeat succeeds: the lease of {name} ends in {}", show_seconds(left)));
        }
    }
}

/// The end of a command.
pub(crate) enum End {
    /// The command ended by itself, or by a signal that was passed on, and the grant was given back.
    Ended(ExitCode),
    /// The command was stopped after the loss of the grant. The signal that asked this program to end, if one did.
    Stopped(Option<Received>),
}

/// Runs commands.
pub(crate) struct Runner<'a> {
    pub(crate) args: &'a ChildArgs,
    pub(crate) common: &'a CommonArgs,
    pub(crate) client: &'a Client,
    pub(crate) lease: Duration,
    pub(crate) sort_key: Option<&'a str>,
    /// The occurrence that a success of the command completes.
    pub(crate) occurrence: Option<&'a str>,
    /// The time for which somebody may wait before the command is asked to end.
    pub(crate) yield_after: Option<Duration>,
    /// The way to Terraform's states, for which the guardian keeps a passage.
    pub(crate) states: Option<Way>,
}

/// A command while it runs.
struct Child {
    guardian: Guardian,
    /// Receives a signal when the guardian ends.
    ended: tokio::signal::unix::Signal,
}

impl Runner<'_> {
    /// Runs the command under `grant`, and gives the grant back.
    ///
    /// # Errors
    /// The command cannot be started.
    pub(crate) async fn run(&self, grant: Grant, signals: &mut Signals) -> Result<End, Failure> {
        let child = match self.start(&grant).await {
            Ok(child) => child,
            Err(failure) => {
                self.release(grant, None, signals).await;
                return Err(failure);
            }
        };
        let status = match self.supervise(child, &grant, signals).await {
            Supervised::Ended(status) => status,
            Supervised::Stopped(asked) => {
                self.give_back_others(grant, signals).await;
                return Ok(End::Stopped(asked));
            }
        };
        let completed = self.occurrence.filter(|_| matches!(status, WaitStatus::Exited(_, 0)));
        self.release(grant, completed, signals).await;
        if matches!(status, WaitStatus::Signaled(_, Signal::SIGINT, _)) && signals.interrupted().await {
            die_of_interrupt();
        }
        Ok(End::Ended(exit_code(status)))
    }

    async fn start(&self, grant: &Grant) -> Result<Child, Failure> {
        let cannot_start = |error| Failure::failed(format!("cannot start a process: {error}"));
        // The handler is set before the start, so that no end is missed.
        let ended = signal(SignalKind::child()).map_err(cannot_start)?;
        // The command stays in reach even if its guardian is killed.
        adopt_orphans();
        let (believed, states) = (self.believed(grant), self.states.as_ref());
        let guardian = Guardian::start(&self.args.command, believed, self.backstop(), states, |command| {
            // The command does not need this program's secret.
            command.env_remove(TOKEN_VARIABLE);
            for (name, value) in self.environment(grant) {
                // An enclosing `run` may have set a variable that does not apply.
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
        });
        Ok(Child { guardian: guardian.await.map_err(cannot_start)?, ended })
    }

    /// The grace period of the guardian. It kills only where this program does not come to it.
    fn backstop(&self) -> Duration {
        self.args.grace(self.lease) + margin(self.lease) / 2
    }

    /// The time for which the grant is believed in, if nothing else happens.
    fn believed(&self, grant: &Grant) -> Duration {
        if self.args.hold_on_unavailable { self.lease } else { grant.remaining() }
    }

    fn environment(&self, grant: &Grant) -> [(&'static str, Option<String>); 10] {
        let keys = grant.keys();
        let (one, several) = match keys.as_slice() {
            [key] => (Some((*key).to_owned()), None),
            keys => (None, Some(keys.join("\n"))),
        };
        [
            ("LEASEHOLD_KEY", one),
            ("LEASEHOLD_KEYS", several),
            ("LEASEHOLD_LOCK_SORT_KEY", self.sort_key.map(str::to_owned)),
            ("LEASEHOLD_FENCING_TOKEN", Some(grant.fencing_token().to_string())),
            ("LEASEHOLD_OWNER_NAME", Some(grant.owner_name().to_owned())),
            ("LEASEHOLD_PERMITS", grant.permits().map(|permits| permits.to_string())),
            ("LEASEHOLD_OCCURRENCE", self.occurrence.map(str::to_owned)),
            ("LEASEHOLD_LEASE_ID", self.args.pass_lease_id.then(|| grant.lease_id().0.clone())),
            (URL_VARIABLE, self.common.url()),
            (LAMBDA_VARIABLE, self.common.function()),
        ]
    }

    /// Passes signals on, until the command ends or is stopped after the loss of the grant.
    async fn supervise(&self, mut child: Child, grant: &Grant, signals: &mut Signals) -> Supervised {
        let mut lost = grant.lost();
        let mut asked = None;
        let mut patience = pin!(self.patience(grant).fuse());
        loop {
            if let Some(status) = reap(child.guardian.id).status {
                match status {
                    WaitStatus::Signaled(_, guard::STOPPED, _) => {
                        self.explain(lost).await;
                        return Supervised::Stopped(asked);
                    }
                    // The command has a status where it ended by a signal.
                    WaitStatus::Signaled(_, signal, _) if signal != Signal::SIGINT => {
                        self.common.output.warn("the command's guardian was killed; stopping the command");
                        self.stop(&child.guardian, signals).await;
                    }
                    _ => {}
                }
                return Supervised::Ended(status);
            }
            tokio::select! {
                _ = child.ended.recv() => {}
                () = sleep_until(Instant::now() + self.lease / REPORTS) => {
                    child.guardian.believe(self.believed(grant));
                }
                Some(how) = &mut lost => {
                    Failure::lost(&how).and("; stopping the command").report(self.common.output.json);
                    let impatient = self.stop(&child.guardian, signals).await;
                    return Supervised::Stopped(asked.or(impatient));
                }
                after = &mut patience => {
                    let said = format!("somebody has waited for {}: asking the command to end", show(after));
                    self.common.output.warn(&said);
                    child.guardian.pass_on(Received { signal: Signal::SIGTERM, sent_here: true });
                }
                received = signals.next() => {
                    if received.is_ending() {
                        asked = asked.or(Some(received));
                    }
                    child.guardian.pass_on(received);
                }
            }
        }
    }

    /// Resolves when somebody has waited for as long as the holder does not give way. Returns that time.
    async fn patience(&self, grant: &Grant) -> Duration {
        let Some(after) = self.yield_after else { return pending().await };
        grant.wanted().await;
        sleep_until(Instant::now() + after).await;
        after
    }

    /// Says why the guardian has stopped the command.
    async fn explain(&self, lost: impl Future<Output = Option<Loss>>) {
        match timeout(NOTICED, lost).await {
            Ok(Some(how)) => Failure::lost(&how).and("; stopping the command").report(self.common.output.json),
            // A heartbeat succeeded, and the report of it came too late.
            _ => self.common.output.warn("this program was paused for long; its guardian has stopped the command"),
        }
    }

    /// Ends the command and all its descendants. Another signal shortens the grace period, and is returned.
    async fn stop(&self, guardian: &Guardian, signals: &mut Signals) -> Option<Received> {
        let (everything, grace) = (Pid::this(), self.args.grace(self.lease));
        guardian.stop(self.backstop());
        let (why, received) = tokio::select! {
            ended = wait_for_descendants(Instant::now() + grace) => {
                if ended {
                    return None;
                }
                (format!("the command did not end within {}", show(grace)), None)
            }
            received = signals.next_ending() => {
                (format!("{} while the command is being stopped", received.signal), Some(received))
            }
        };
        self.common.output.warn(&format!("{why}: SIGKILL"));
        // This kills the processes that were started in the meantime.
        loop {
            signal_descendants(everything, Signal::SIGKILL);
            if wait_for_descendants(Instant::now() + LOOK).await {
                return received;
            }
        }
    }

    /// Gives a grant back. The command's status counts, whatever the outcome. A signal ends the attempt.
    async fn release(&self, grant: Grant, completed: Option<&str>, signals: &mut Signals) {
        let output = &self.common.output;
        let Subject { name, is, was, it_is } = grant.subject();
        let undone =
            completed.map_or_else(String::new, |occurrence| format!("; {occurrence} may not be recorded as done"));
        let free = format!("{it_is} free one lease from now{undone}");
        let released = tokio::select! {
            released = grant.release(completed) => released,
            received = signals.next_impatient() => {
                output.warn(&format!("{}: {name} {is} not released; {free}", received.signal));
                return;
            }
        };
        match released {
            Ok(()) => output.say(|| format!("{name} {is} released")),
            Err(error) => match error.kind() {
                ErrorKind::Lost(loss) => {
                    output.warn(&format!("{name} {was} lost while the command ran: {}{undone}", loss.how()));
                }
                _ => output.warn(&format!("{name} could not be released: {}; {free}", sentence(&error))),
            },
        }
        drop(self.client.close().await);
    }

    /// After the loss of one of several locks, waits for the releases of the others. A signal ends the wait.
    async fn give_back_others(&self, grant: Grant, signals: &mut Signals) {
        if matches!(grant, Grant::All(_)) {
            drop(grant);
            tokio::select! {
                () = async { let _ = self.client.close().await; self.client.settled().await } => {}
                _ = signals.next_impatient() => {}
            }
        }
    }
}

/// The end of a command, before the grant is given back.
enum Supervised {
    Ended(WaitStatus),
    Stopped(Option<Received>),
}
