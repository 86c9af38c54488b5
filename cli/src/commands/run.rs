//! `leasehold run`: holds a lock, or permits, for as long as a command takes.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use leasehold_client::wire::semaphore::permits as in_all;
use leasehold_client::{AllRequest, Client, LockKey, LockRequest, PermitRequest, Semaphore, Wait, period_at};
use leasehold_protocol::semaphore::MAX_PERMITS;

use crate::acquiring;
use crate::child::{ChildArgs, End, Runner, keeping, warning};
use crate::connection::CommonArgs;
use crate::duration;
use crate::failure::{Failure, status};
use crate::grant::Grant;
use crate::lock_args::{RequestArgs, asking};
use crate::numbers::whole;
use crate::output::plain;
use crate::signals::Signals;
use crate::waiting::Indicator;

/// One of the keys of the command line.
#[derive(Debug, PartialEq, Eq)]
struct WantedKey {
    key: LockKey,
    /// The permits, and the number of permits in all. None for a plain lock.
    permits: Option<(u64, u64)>,
}

impl WantedKey {
    /// Reads a key. Text that does not end like `:2/10` is the key itself.
    ///
    /// # Errors
    /// The permits are none, or more than there are.
    fn parse(text: &str, sort_key: Option<&str>, is_plain: bool) -> Result<Self, Failure> {
        let of = |key: &str| LockKey { key: key.to_owned(), sort_key: sort_key.map(str::to_owned) };
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse::<u64>().unwrap_or(u64::MAX))
        };
        let read = || {
            let (key, share) = text.rsplit_once(':').filter(|(key, _)| !key.is_empty())?;
            let (permits, capacity) = share.split_once('/')?;
            Some((key, number(permits)?, number(capacity)?))
        };
        let Some((key, permits, capacity)) = read().filter(|_| !is_plain) else {
            return Ok(Self { key: of(text), permits: None });
        };
        if permits == 0 || permits > capacity {
            let why = format!("{text:?} asks for {permits} of {}; it can be 1 to {capacity}", in_all(capacity));
            return Err(Failure::usage(format!("{why} (--plain takes it as the name of a lock)")));
        }
        Ok(Self { key: of(key), permits: Some((permits, capacity)) })
    }

    /// The name of what is wanted.
    fn name(&self) -> String {
        match self.permits {
            None => self.key.to_string(),
            Some((1, _)) => format!("a permit of {}", self.key),
            Some((permits, _)) => format!("{} of {}", in_all(permits), self.key),
        }
    }
}

/// The lease of a lock, if nobody says.
const LOCK_LEASE: Duration = Duration::from_secs(20);
/// The lease of permits, if nobody says: a heartbeat costs more than a lock's.
const PERMIT_LEASE: Duration = Duration::from_mins(1);

const HELP: &str = "\
The command's environment has LEASEHOLD_KEY, LEASEHOLD_FENCING_TOKEN, LEASEHOLD_OWNER_NAME, and where they apply
LEASEHOLD_LOCK_SORT_KEY, LEASEHOLD_PERMITS, LEASEHOLD_OCCURRENCE and LEASEHOLD_URL. Several keys are in LEASEHOLD_KEYS
instead, one a line. It does not have LEASEHOLD_TOKEN. Let the resource that the lock protects check the fencing token:
it alone can stop a command that nothing below catches.

Several keys are acquired all or none: two commands that want the same keys never wait for each other. A key is a plain
lock, or with a number of permits at its end, as in pool:2/10, two permits of a semaphore `pool` that has ten in all. So

  leasehold run report pool:2/10 -- ./report.sh

runs with the lock `report` and two of the ten permits. While somebody waits in the queue of `pool`, the command waits,
too, without a place of its own. With --plain, every key is the name of a plain lock as it is.

With --of, --shared, --exclusive or --fair the key is a semaphore, and no plain lock: whoever cannot go on waits in its
queue, first in, first out. The first command makes the semaphore with its capacity; later its own holds, and
`leasehold capacity` changes it. All who use a key must use it in the same way.

With --once or --every, a success of the command (status 0) records the occurrence as done. A command that fails is run
again by the next who asks. Where the occurrence, or one that sorts after it, is done, or the holder runs it at the end
of the wait, nothing is run and the status is 0. The occurrence of --every is the start of the period in which this
program starts, such as 2026-11-21T02:00:00.000Z: periods are counted from 1970-01-01 in UTC, by the clock of this machine.

Signals: SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the command and all that it started; SIGUSR1 and SIGUSR2 to
the command. A Ctrl-C is not passed on: the terminal has sent it to the command already. While this program waits for the
lock, a signal ends the wait.

When the lock is lost, the command and all that it started get a SIGTERM, and after --grace a SIGKILL. A guardian, a
second process of this program, does the same when this program is killed, or is stopped past the time until which it
has the lock: the command is gone before anybody could judge the lease stale. Not caught are
  a break: the operator's successor may start while the command still has its grace;
  what another program starts at the command's request: systemd-run, docker, at, ssh;
  a SIGKILL to this program and its guardian at the same time: the command is killed (on Linux), and not what it started;
  a SIGSTOP to both at the same time, such as `killall -STOP leasehold`: nobody is left who could end the command;
  outside Linux, a process whose parent ended before.
When the command ends by itself, what it left running in the background goes on, without the lock. When the command is
ended by a SIGKILL, what it started is ended, too.

Exit status:
   the command's own; 128 and the signal's number if a signal ended it
   0  the occurrence is already done, or another holder runs it, and the command was not started
  75  the lock is held by someone else (--held-status), and the command was not started
  76  the lock was lost, and the command stopped for that (--lost-status)
 126  the command cannot be executed
 127  there is no such command
   and if the lock cannot be had for another reason, as listed by `leasehold --help`";

/// Hold a lock, or permits of a semaphore, for as long as a command takes.
///
/// Waits for the lock, runs the command, heartbeats meanwhile, and releases the lock.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    keys: KeysArgs,

    /// The lease: the time without a heartbeat after which others may take over. 100ms to 1d. Default: 20s; of permits
    /// 1m.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,

    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    child: ChildArgs,

    /// Give way: when somebody has waited for the lock for this long, send the command a SIGTERM, and wait until it
    /// ends by itself. Only waiters that tell it count; those of Leasehold do. Goes with one plain lock.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_or_zero,
        conflicts_with_all = ["of", "shared", "exclusive", "fair"])]
    yield_after: Option<Duration>,

    /// End with this status if another holder has the lock.
    #[arg(long, value_name = "STATUS", default_value_t = status::HELD)]
    held_status: u8,

    /// End with this status if the lock was lost and the command stopped for that.
    #[arg(long, value_name = "STATUS", default_value_t = status::LOST)]
    lost_status: u8,

    #[command(flatten)]
    sharing: SharingArgs,

    #[command(flatten)]
    occurrence: OccurrenceArgs,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// The locks.
#[derive(Debug, Args)]
struct KeysArgs {
    /// The lock's key: any text of 1 to 2048 bytes. KEY:PERMITS/CAPACITY, such as pool:2/10, is permits of a semaphore.
    /// Up to 50 keys are acquired together, all or none.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,

    /// Take each KEY as the name of a plain lock, also one that ends like :2/10.
    #[arg(long)]
    plain: bool,

    /// The lock's sort key, on a table that has one.
    #[arg(long, value_name = "TEXT")]
    sort_key: Option<String>,
}

/// How many others may hold the key at the same time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Instead of a plain lock")]
struct SharingArgs {
    /// Take this many permits of a semaphore. Default, where --of is given: 1.
    #[arg(long, value_name = "N", requires = "of", value_parser = whole::<u64>(1..=MAX_PERMITS))]
    permits: Option<u64>,

    /// Share the key: at most this many permits are out at a time.
    #[arg(long, value_name = "CAPACITY", conflicts_with_all = ["shared", "exclusive", "fair"],
        value_parser = whole::<u64>(1..=MAX_PERMITS))]
    of: Option<u64>,

    /// Lock for reading: beside up to 99 other readers (--shared), and never beside a writer (--exclusive).
    #[arg(long, conflicts_with_all = ["exclusive", "fair"])]
    shared: bool,

    /// Lock for writing: alone. Readers (--shared) that come later wait behind the writer.
    #[arg(long, conflicts_with = "fair")]
    exclusive: bool,

    /// Lock alone, in the order of the queue.
    #[arg(long)]
    fair: bool,
}

/// The occurrence of a recurring job.
#[derive(Debug, Args)]
#[command(next_help_heading = "Once an occurrence")]
struct OccurrenceArgs {
    /// Run the command only if this occurrence, such as 2026-11-21T02, or one that sorts after it, is not done yet.
    #[arg(long, value_name = "OCCURRENCE", conflicts_with_all = ["every", "of", "shared", "exclusive", "fair"])]
    once: Option<String>,

    /// Run the command once in each period of this length, in whole seconds: with `1h` once in each hour by the clock.
    #[arg(long, value_name = "DURATION", value_parser = parse_period,
        conflicts_with_all = ["of", "shared", "exclusive", "fair"])]
    every: Option<Duration>,
}

pub(crate) async fn main(args: RunArgs) -> Result<ExitCode, Failure> {
    args.check()?;
    let mut signals = Signals::all()?;
    let client = args.common.client().await?;
    let occurrence = args.occurrence.occurrence(duration::since_epoch());
    let grant = args.acquire(&client, occurrence.as_deref(), &mut signals).await;
    let grant = grant.map_err(|failure| {
        args.warn_of_a_later_occurrence(occurrence.as_deref(), &failure);
        failure.replace_status(status::HELD, args.held_status)
    })?;
    args.common.output.say(|| grant.describe());
    let runner = Runner {
        args: &args.child,
        common: &args.common,
        client: &client,
        lease: args.lease(),
        sort_key: args.keys.sort_key.as_deref(),
        occurrence: occurrence.as_deref(),
        yield_after: args.yield_after,
        states: None,
    };
    match runner.run(grant, &mut signals).await? {
        End::Ended(status) => Ok(status),
        End::Stopped(_) => Ok(ExitCode::from(args.lost_status)),
    }
}

impl RunArgs {
    /// Refuses options that do not go together.
    fn check(&self) -> Result<(), Failure> {
        let wanted = self.keys.wanted()?;
        if self.sharing.is_given() && wanted.len() > 1 {
            return Err(Failure::usage(
                "several keys are plain locks, or name their permits as in pool:2/10: leave --of, --shared, \
                 --exclusive and --fair out",
            ));
        }
        let is_semaphore = wanted.len() == 1 && wanted[0].permits.is_some();
        if self.sharing.is_given() && is_semaphore {
            return Err(Failure::usage("the key names its permits: leave --of, --shared, --exclusive and --fair out"));
        }
        if is_semaphore {
            let of_a_lock = [
                ("--once", self.occurrence.once.is_some()),
                ("--every", self.occurrence.every.is_some()),
                ("--yield-after", self.yield_after.is_some()),
            ];
            let of_a_lock = of_a_lock.into_iter().filter(|(_, given)| *given).map(|(name, _)| name);
            let of_a_lock = of_a_lock.chain(self.request.of_a_plain_lock());
            return refuse(of_a_lock, "goes with a plain lock, and the key is a semaphore");
        }
        if self.sharing.is_given() {
            return refuse(self.request.of_a_plain_lock(), "goes with a plain lock, and the key is a semaphore");
        }
        if self.keys.keys.len() < 2 {
            return Ok(());
        }
        let of_one = [
            ("--data", self.request.has_data()),
            ("--stale-by-clock", self.request.stale_by_clock),
            ("--once", self.occurrence.once.is_some()),
            ("--every", self.occurrence.every.is_some()),
            ("--yield-after", self.yield_after.is_some()),
        ];
        let of_one = of_one.into_iter().filter(|(_, given)| *given).map(|(name, _)| name);
        refuse(of_one.chain(self.request.of_a_plain_lock()), "goes with one key, and there are several")
    }

    /// Warns where a later occurrence is recorded as done: no run is due until then.
    fn warn_of_a_later_occurrence(&self, occurrence: Option<&str>, failure: &Failure) {
        let last = failure.lock.as_ref().and_then(|lock| lock.last_occurrence.as_deref());
        if let (Some(occurrence), Some(last)) = (occurrence, last)
            && last > occurrence
        {
            let (last, occurrence) = (plain(last), plain(occurrence));
            self.common.output.warn(&format!(
                "{last} is recorded as done, which sorts after {occurrence}; if by mistake, `leasehold occurrence` sets it back"
            ));
        }
    }

    async fn acquire(
        &self,
        client: &Client,
        occurrence: Option<&str>,
        signals: &mut Signals,
    ) -> Result<Grant, Failure> {
        let name = self.name();
        let indicator = Indicator::new(&name, &self.common);
        let asking = async {
            let asked = self.ask(client, occurrence, &name, &indicator).await;
            asked.map_err(|failure| occurrence.into_iter().fold(failure, Failure::of_occurrence))
        };
        let (limit, observations) = (self.request.give_back_within(), self.request.observations.as_deref());
        acquiring::acquire(client, &indicator, limit, observations, signals, asking).await
    }

    async fn ask(
        &self,
        client: &Client,
        occurrence: Option<&str>,
        name: &str,
        indicator: &Indicator<'_>,
    ) -> Result<Grant, Failure> {
        let (wanted, lease, warn) = (self.keys.wanted()?, self.lease(), warning(name, &self.common));
        if let Some((semaphore, permits)) = self.semaphore(client, &wanted) {
            let request = asking!(PermitRequest::new(), self.request.ask).wait(self.request.wait());
            let request = keeping!(request, self.child, lease, warn);
            let request = self.request.data()?.into_iter().fold(request, PermitRequest::data);
            let request = permits.into_iter().fold(request, PermitRequest::permits);
            let request = if self.request.stale_by_clock { request.stale_by_clock() } else { request };
            return Grant::of_permits(&semaphore, request.on_wait(indicator.on_wait()), self.request.no_wait).await;
        }
        if let [WantedKey { key, .. }] = wanted.as_slice() {
            let request = keeping!(self.request.request(key.clone(), lease)?, self.child, lease, warn);
            let request = occurrence.into_iter().fold(request, LockRequest::occurrence);
            let asking = acquiring::lock(client, request.on_wait(indicator.on_wait()), self.request.no_wait);
            return asking.await.map(Grant::Lock);
        }
        let wait = if self.request.no_wait { Wait::AtMost(Duration::ZERO) } else { self.request.wait() };
        let request =
            wanted.into_iter().fold(AllRequest::default(), |request, WantedKey { key, permits }| match permits {
                None => request.lock(key),
                Some((permits, capacity)) => request.permits(key, permits, capacity),
            });
        let request = asking!(request, self.request.ask).wait(wait).on_wait(indicator.on_wait());
        Grant::of_all(client, keeping!(request, self.child, lease, warn)).await
    }

    fn lease(&self) -> Duration {
        let is_semaphore = |wanted: &[WantedKey]| wanted.len() == 1 && wanted[0].permits.is_some();
        let is_semaphore = self.sharing.is_given() || self.keys.wanted().is_ok_and(|wanted| is_semaphore(&wanted));
        self.lease.unwrap_or(if is_semaphore { PERMIT_LEASE } else { LOCK_LEASE })
    }

    /// The semaphore of the one key that is wanted, and the permits where they are named.
    fn semaphore(&self, client: &Client, wanted: &[WantedKey]) -> Option<(Semaphore, Option<u64>)> {
        match wanted {
            [WantedKey { key, permits: Some((permits, capacity)) }] => {
                Some((client.semaphore(key.clone(), *capacity), Some(*permits)))
            }
            [WantedKey { key, permits: None }] => Some((self.sharing.semaphore(client, key)?, self.sharing.permits)),
            _ => None,
        }
    }

    /// The name of what is asked for.
    fn name(&self) -> String {
        let keys: Vec<_> = self.keys.wanted().unwrap_or_default().iter().map(WantedKey::name).collect();
        let keys = keys.join(", ");
        match (self.sharing.of, self.sharing.permits.unwrap_or(1)) {
            (None, _) => keys,
            (Some(_), 1) => format!("a permit of {keys}"),
            (Some(_), permits) => format!("{permits} permits of {keys}"),
        }
    }
}

impl KeysArgs {
    /// The keys, in the order of the command line.
    ///
    /// # Errors
    /// As [`WantedKey::parse`].
    fn wanted(&self) -> Result<Vec<WantedKey>, Failure> {
        self.keys.iter().map(|key| WantedKey::parse(key, self.sort_key.as_deref(), self.plain)).collect()
    }
}

impl SharingArgs {
    fn is_given(&self) -> bool {
        self.of.is_some() || self.shared || self.exclusive || self.fair
    }

    /// The semaphore that the options name, if they do.
    fn semaphore(&self, client: &Client, key: &LockKey) -> Option<Semaphore> {
        let key = key.clone();
        if let Some(capacity) = self.of {
            return Some(client.semaphore(key, capacity));
        }
        match (self.shared, self.exclusive, self.fair) {
            (true, ..) => Some(client.read_write_lock(key).read()),
            (_, true, _) => Some(client.read_write_lock(key).write()),
            (.., true) => Some(client.fair_lock(key)),
            _ => None,
        }
    }
}

impl OccurrenceArgs {
    /// The occurrence of a run that starts at `now`, since the epoch.
    fn occurrence(&self, now: Duration) -> Option<String> {
        self.once.clone().or_else(|| self.every.map(|period| period_at(period, now)))
    }
}

/// Refuses the first of these options.
fn refuse(mut options: impl Iterator<Item = &'static str>, why: &str) -> Result<(), Failure> {
    options.next().map_or(Ok(()), |option| Err(Failure::usage(format!("{option} {why}"))))
}

fn parse_period(text: &str) -> Result<Duration, String> {
    let period = duration::parse(text).map_err(|error| error.to_string())?;
    if period.subsec_nanos() == 0 { Ok(period) } else { Err(format!("{text:?} is not in whole seconds")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_its_permits_at_its_end() {
        let read = |text: &str, is_plain| WantedKey::parse(text, None, is_plain).map(|it| (it.key.key, it.permits));
        assert_eq!(read("pool:2/10", false).ok(), Some(("pool".to_owned(), Some((2, 10)))));
        assert_eq!(read("a:b:1/1", false).ok(), Some(("a:b".to_owned(), Some((1, 1)))));
        let locks =
            ["pool", "pool:2", "pool:2/", "pool:/10", "pool:+2/10", "pool:2/10/3", ":2/10", "pool: 2/10", "2/10"];
        for lock in locks {
            assert_eq!(read(lock, false).ok(), Some((lock.to_owned(), None)), "{lock}");
        }
        assert_eq!(read("pool:2/10", true).ok(), Some(("pool:2/10".to_owned(), None)));
        for text in ["pool:0/10", "pool:11/10", "pool:1/0"] {
            assert!(read(text, false).is_err() && read(text, true).is_ok(), "{text}");
        }
    }

    #[test]
    fn period_is_in_whole_seconds() {
        assert_eq!(parse_period("1500ms"), Err(r#""1500ms" is not in whole seconds"#.to_owned()));
        assert!(parse_period("0s").is_err() && parse_period("1h30m").is_ok());
    }
}
