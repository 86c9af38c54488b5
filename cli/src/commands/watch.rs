//! `leasehold watch`: one lock, live.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use leasehold_client::wire::{Lock, LockState};
use leasehold_client::{Client, ErrorKind};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::duration::{self, show, show_seconds};
use crate::failure::sentence;
use crate::live_line::LiveLine;
use crate::lock_args::LockArgs;
use crate::output::{can_draw, lease, plain, print, print_json, short};
use crate::signals::Signals;

/// Watch one lock: who has it, each heartbeat, and the moment from which it may be taken over.
///
/// Ends with Ctrl-C. A line for each change, with the time of day in UTC; with --json, an object for each. It looks at
/// intervals, so what happens between two looks is seen as one change.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// Look this often.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// The last state that was seen, and the time of its first sight.
#[derive(Debug, Clone)]
struct Seen {
    lock: Lock,
    since: Instant,
    /// Whether the line about a stale lock was printed.
    told_stale: bool,
}

/// A change that is worth a line.
#[derive(Debug)]
enum Change {
    /// The lock is gone, or never was.
    Absent,
    /// A new holder, or the first look at a held lock.
    Held,
    /// The holder sent a heartbeat.
    Heartbeat { after: Duration },
    /// The holder released the lock, or an operator broke it.
    Released,
    /// The version was seen for its lease.
    Stale,
}

pub(crate) async fn main(args: WatchArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let mut signals = Signals::ending()?;
    let mut watch = Watch::new(&args);
    tokio::select! {
        failure = watch.follow(&client) => failure,
        _ = signals.next_ending() => Ok(()),
    }
}

struct Watch<'a> {
    args: &'a WatchArgs,
    live: Live,
}

impl<'a> Watch<'a> {
    fn new(args: &'a WatchArgs) -> Self {
        Self { args, live: Live::new(args.common.output.quiet) }
    }

    async fn follow(&mut self, client: &Client) -> Result<(), Failure> {
        let mut seen: Option<Seen> = None;
        let mut first = true;
        let mut out_of_reach = false;
        loop {
            let found = match client.get(self.args.lock.lock_key()).await {
                Ok(lock) => Some(lock),
                Err(error) if *error.kind() == ErrorKind::NotFound => None,
                Err(error) if error.is_retryable() => {
                    // The last state may still be right: report the failure once, and continue.
                    if !std::mem::replace(&mut out_of_reach, true) {
                        self.live
                            .suspend(|| self.args.common.output.warn(&format!("{}; trying again", sentence(&error))));
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            out_of_reach = false;
            let now = Instant::now();
            for change in changes(&mut seen, found, now, std::mem::take(&mut first)) {
                self.tell(&change, seen.as_ref())?;
            }
            self.live.set(seen.clone());
            let due = seen.as_ref().filter(|seen| seen.is_held() && !seen.told_stale).map(Seen::stale_at);
            let next = now + self.args.interval;
            sleep_until(due.map_or(next, |due| due.max(now).min(next))).await;
        }
    }

    fn tell(&self, change: &Change, seen: Option<&Seen>) -> Result<(), Failure> {
        let now = epoch_ms();
        self.live.suspend(|| {
            if self.args.common.output.json {
                print_json(&event(change, seen, now, &self.args.lock))
            } else {
                print(&line(change, seen, now))
            }
        })
    }
}

impl Seen {
    fn is_held(&self) -> bool {
        self.lock.state == LockState::Held
    }

    fn stale_at(&self) -> Instant {
        self.since + Duration::from_millis(self.lock.lease_duration_ms)
    }
}

/// Returns the change since `seen`, and updates `seen`. `now` must be after the answer arrived.
fn changes(seen: &mut Option<Seen>, found: Option<Lock>, now: Instant, first: bool) -> Vec<Change> {
    let Some(lock) = found else {
        return if seen.take().is_some() || first { vec![Change::Absent] } else { Vec::new() };
    };
    let held = lock.state == LockState::Held;
    if let Some(known) = seen.as_mut()
        && known.lock.record_version_number == lock.record_version_number
        && known.lock.state == lock.state
    {
        known.lock = lock;
        let stale = held && !known.told_stale && now >= known.stale_at();
        known.told_stale |= stale;
        return if stale { vec![Change::Stale] } else { Vec::new() };
    }
    let before = seen.replace(Seen { lock: lock.clone(), since: now, told_stale: false });
    let same_holder = before.as_ref().is_some_and(|before| {
        before.is_held() && before.lock.fencing_token == lock.fencing_token && before.lock.owner_name == lock.owner_name
    });
    vec![match (held, before) {
        (false, _) => Change::Released,
        (true, Some(before)) if same_holder => Change::Heartbeat { after: now - before.since },
        (true, _) => Change::Held,
    }]
}

fn line(change: &Change, seen: Option<&Seen>, now: u64) -> String {
    let time = time_of_day(now);
    let Some(Seen { lock, .. }) = seen else { return format!("{time}  absent     there is no such lock") };
    let owner = plain(&lock.owner_name);
    let version = short(&lock.record_version_number);
    let lease = lease(lock.lease_duration_ms);
    match change {
        // After `Absent` there is no last state.
        Change::Absent | Change::Released => format!("{time}  released   {owner} had it last"),
        Change::Held => {
            let token = lock.fencing_token.map_or_else(|| "none".to_owned(), |token| token.to_string());
            format!("{time}  held       by {owner}, lease {lease}, token {token}, version {version}")
        }
        Change::Heartbeat { after } => {
            format!("{time}  heartbeat  after {:.1}s, version {version}", after.as_secs_f64())
        }
        Change::Stale => {
            format!("{time}  stale      no heartbeat for {lease}: whoever saw that may take it over from {owner}")
        }
    }
}

fn event(change: &Change, seen: Option<&Seen>, now: u64, args: &LockArgs) -> Value {
    let name = match change {
        Change::Absent => "absent",
        Change::Held => "held",
        Change::Heartbeat { .. } => "heartbeat",
        Change::Released => "released",
        Change::Stale => "stale",
    };
    let mut event = Map::from_iter([("event".to_owned(), json!(name)), ("atEpochMs".to_owned(), json!(now))]);
    if let Change::Heartbeat { after } = change {
        event.insert("afterMs".to_owned(), json!(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)));
    }
    match seen {
        Some(seen) => event.insert("lock".to_owned(), json!(seen.lock)),
        None => event.insert("key".to_owned(), json!(args.key)),
    };
    Value::Object(event)
}

#[allow(clippy::disallowed_methods, reason = "people read the time of day; nothing is decided by it")]
fn epoch_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time of day in UTC, like the logs of machines in several places.
fn time_of_day(epoch_ms: u64) -> String {
    let (seconds, millis) = (epoch_ms / 1000 % 86_400, epoch_ms % 1000);
    format!("{:02}:{:02}:{:02}.{millis:03}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The line at the bottom of a terminal that shows the present state.
struct Live {
    seen: Arc<Mutex<Option<Seen>>>,
    line: Option<LiveLine>,
}

impl Live {
    fn new(quiet: bool) -> Self {
        let seen: Arc<Mutex<Option<Seen>>> = Arc::default();
        let shown = Arc::clone(&seen);
        let text = move |line: &mut String| {
            let seen = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
            describe(line, seen.as_ref())
        };
        let line = (!quiet && can_draw()).then(|| LiveLine::start(text));
        Self { seen, line }
    }

    fn set(&self, seen: Option<Seen>) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Prints something above the line.
    fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.line {
            Some(line) => line.suspend(print),
            None => print(),
        }
    }
}

fn describe(line: &mut String, seen: Option<&Seen>) -> fmt::Result {
    let Some(seen) = seen else { return line.write_str("no such lock") };
    let owner = plain(&seen.lock.owner_name);
    if !seen.is_held() {
        return write!(line, "free; {owner} had it last");
    }
    let now = Instant::now();
    write!(line, "{owner} has it, last sign of life {} ago", show(round(now - seen.since)))?;
    match seen.stale_at().saturating_duration_since(now) {
        Duration::ZERO => line.write_str("; it may be taken over"),
        left => write!(line, "; stale in {}", show_seconds(left)),
    }
}

/// Rounds to the second.
fn round(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(version: &str, token: u64, state: LockState) -> Lock {
        Lock {
            key: "Moe".to_owned(),
            sort_key: None,
            state,
            owner_name: "host-1".to_owned(),
            record_version_number: version.to_owned(),
            lease_duration_ms: 3000,
            fencing_token: Some(token),
            occurrence: None,
            last_occurrence: None,
            data: None,
            data_base64: None,
            attributes: Map::new(),
            semaphore: None,
        }
    }

    /// The lines for the states that are found second by second.
    fn lines(found: &[Option<Lock>]) -> Vec<String> {
        let start = Instant::now();
        let mut seen = None;
        let mut lines = Vec::new();
        for (second, lock) in (0..).zip(found) {
            let now = start + Duration::from_secs(second);
            for change in changes(&mut seen, lock.clone(), now, second == 0) {
                lines.push(line(&change, seen.as_ref(), 1000 * second));
            }
        }
        lines
    }

    #[test]
    fn each_change_has_a_line() {
        use LockState::{Held, Released};
        let found = [
            None,
            None,
            Some(lock("v1", 1, Held)),
            Some(lock("v1", 1, Held)),
            Some(lock("v2", 1, Held)),
            Some(lock("v3", 2, Held)),
            Some(lock("v3", 2, Released)),
            None,
        ];
        assert_eq!(
            lines(&found),
            [
                "00:00:00.000Z  absent     there is no such lock",
                "00:00:02.000Z  held       by host-1, lease 3s, token 1, version v1",
                "00:00:04.000Z  heartbeat  after 2.0s, version v2",
                "00:00:05.000Z  held       by host-1, lease 3s, token 2, version v3",
                "00:00:06.000Z  released   host-1 had it last",
                "00:00:07.000Z  absent     there is no such lock",
            ]
        );
    }

    #[test]
    fn a_dead_holder_is_told_once() {
        let held = || Some(lock("v1", 1, LockState::Held));
        let lines = lines(&[held(), held(), held(), held(), held(), held()]);
        assert_eq!(
            lines,
            [
                "00:00:00.000Z  held       by host-1, lease 3s, token 1, version v1",
                "00:00:03.000Z  stale      no heartbeat for 3s: whoever saw that may take it over from host-1",
            ]
        );
    }

    #[test]
    fn the_time_of_day_is_in_utc() {
        assert_eq!(time_of_day(1_795_256_832_324), "10:27:12.324Z");
    }
}
