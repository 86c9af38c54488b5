//! `leasehold watch`: one lock, or one semaphore, live.

mod permits;

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use leasehold_client::wire::{Lock, LockState};
use leasehold_client::{Client, Error, ErrorKind, stale_after};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::duration::{self, show_seconds, since_epoch};
use crate::failure::sentence;
use crate::live_line::LiveLine;
use crate::lock_args::LockArgs;
use crate::output::{can_draw, lease, plain, print, print_json, short};
use crate::sightings::seconds;
use crate::signals::Signals;

/// The time between two looks at least, whatever the service answers.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);
/// The time after which a look is given up, if nothing changed.
const LONGEST_LOOK: Duration = Duration::from_secs(20);
/// The shortest wait that the service can be asked for.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Watch one lock, or one semaphore: its holder, each heartbeat, and the moment from which others may take it over.
///
/// Ends with Ctrl-C. A line for each change, with the time of day in UTC; with --json, an object for each. The service
/// tells of a change as soon as it happens. What happens between two answers is seen as one change.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// Look this often where the service does not tell of a change: at a lock that is free, and for the heartbeats of a
    /// semaphore's holders.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// The last state that was seen, and the time of its first sight.
#[derive(Debug, Clone)]
struct SeenLock {
    lock: Lock,
    since: Instant,
    /// Whether the line about a stale lock was printed.
    told_stale: bool,
}

/// A change that is worth a line.
#[derive(Debug)]
enum Change {
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
        let mut row: Option<Option<Lock>> = None;
        let mut seen = Seen::default();
        let mut out_of_reach = false;
        loop {
            let began = Instant::now();
            let wait = seen.look_again_in(began, self.args.interval);
            match self.look(client, row.as_ref(), wait).await {
                Ok(found) => {
                    out_of_reach = false;
                    let first = row.is_none();
                    for (event, line) in seen.changes(found.clone(), Instant::now(), first, &self.args.lock.key) {
                        self.tell(event, &line)?;
                    }
                    row = Some(found);
                    self.live.set(seen.clone());
                }
                Err(error) if error.retryable() => {
                    // The last state may still be right: go on, and say so once.
                    if !std::mem::replace(&mut out_of_reach, true) {
                        self.live
                            .suspend(|| self.args.common.output.warn(&format!("{}; trying again", sentence(&error))));
                    }
                }
                Err(error) => return Err(error.into()),
            }
            // A service that answers at once is not asked all the time.
            sleep_until(began + self.args.interval.min(SHORTEST_LOOK)).await;
        }
    }

    async fn look(&self, client: &Client, row: Option<&Option<Lock>>, wait: Duration) -> Result<Option<Lock>, Error> {
        let key = self.args.lock.lock_key();
        let Some(seen) = row else {
            return match client.view(key).await {
                Ok(lock) => Ok(Some(lock)),
                Err(error) if *error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            };
        };
        client.look(key, seen.as_ref(), wait).await
    }

    fn tell(&self, mut event: Map<String, Value>, line: &str) -> Result<(), Failure> {
        let now = since_epoch();
        self.live.suspend(|| {
            if self.args.common.output.json {
                event.insert("atEpochMs".to_owned(), json!(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)));
                print_json(&event)
            } else {
                print(&format!("{}  {line}", time_of_day(now)))
            }
        })
    }
}

/// The state that was seen last.
#[derive(Debug, Clone, Default)]
enum Seen {
    #[default]
    Nothing,
    Lock(SeenLock),
    Semaphore(permits::Seen),
}

impl Seen {
    /// The time until the next look, if the service tells of no change before.
    fn look_again_in(&self, now: Instant, interval: Duration) -> Duration {
        match self {
            // The service tells when there is one.
            Self::Nothing => LONGEST_LOOK,
            Self::Lock(seen) if !seen.is_held() => interval,
            Self::Lock(seen) if seen.told_stale => LONGEST_LOOK,
            Self::Lock(seen) => seen.stale_at().saturating_duration_since(now).min(LONGEST_LOOK),
            Self::Semaphore(seen) => seen.stale_in(now).map_or(interval, |stale_in| stale_in.min(interval)),
        }
        .max(SHORTEST_WAIT)
    }

    /// The changes since the last look: as a JSON object, and as a line. `now` is after the answer arrived.
    fn changes(
        &mut self,
        found: Option<Lock>,
        now: Instant,
        first: bool,
        key: &str,
    ) -> Vec<(Map<String, Value>, String)> {
        let object = |name: &str| Map::from_iter([("event".to_owned(), json!(name)), ("key".to_owned(), json!(key))]);
        let Some(lock) = found else {
            let is_news = first || !matches!(self, Self::Nothing);
            *self = Self::Nothing;
            let absent = (object("absent"), "absent     there is no such lock".to_owned());
            return is_news.then_some(absent).into_iter().collect();
        };
        if let Some(state) = lock.semaphore {
            let mut seen = match std::mem::take(self) {
                Self::Semaphore(seen) => seen,
                Self::Nothing | Self::Lock(_) => permits::Seen::default(),
            };
            let changes = seen.changes(*state, now);
            *self = Self::Semaphore(seen);
            let told = changes.iter().map(|change| {
                let (name, members) = change.event();
                let mut event = object(name);
                event.extend(members.into_iter().map(|(name, value)| (name.to_owned(), value)));
                (event, change.line())
            });
            return told.collect();
        }
        let mut seen = match std::mem::take(self) {
            Self::Lock(seen) => Some(seen),
            Self::Nothing | Self::Semaphore(_) => None,
        };
        let change = change(&mut seen, lock, now);
        let told = change.map(|change| {
            let mut event = object(change.name());
            if let Change::Heartbeat { after } = change {
                event.insert("afterMs".to_owned(), json!(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)));
            }
            let line = seen.as_ref().map_or_else(String::new, |seen| line(&change, &seen.lock));
            event.insert("lock".to_owned(), json!(seen.as_ref().map(|seen| &seen.lock)));
            (event, line)
        });
        if let Some(seen) = seen {
            *self = Self::Lock(seen);
        }
        told.into_iter().collect()
    }
}

impl SeenLock {
    fn is_held(&self) -> bool {
        self.lock.state == LockState::Held
    }

    fn stale_at(&self) -> Instant {
        let lease = Duration::from_millis(self.lock.lease_duration_ms);
        self.since + stale_after(lease)
    }
}

/// The change of a lock since `seen`, which is brought up to date.
fn change(seen: &mut Option<SeenLock>, lock: Lock, now: Instant) -> Option<Change> {
    let held = lock.state == LockState::Held;
    if let Some(known) = seen.as_mut()
        && known.lock.record_version_number == lock.record_version_number
        && known.lock.state == lock.state
    {
        known.lock = lock;
        let stale = held && !known.told_stale && now >= known.stale_at();
        known.told_stale |= stale;
        return stale.then_some(Change::Stale);
    }
    let before = seen.replace(SeenLock { lock: lock.clone(), since: now, told_stale: false });
    let same_holder = before.as_ref().is_some_and(|before| {
        before.is_held() && before.lock.fencing_token == lock.fencing_token && before.lock.owner_name == lock.owner_name
    });
    Some(match (held, before) {
        (false, _) => Change::Released,
        (true, Some(before)) if same_holder => Change::Heartbeat { after: now - before.since },
        (true, _) => Change::Held,
    })
}

impl Change {
    fn name(&self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Heartbeat { .. } => "heartbeat",
            Self::Released => "released",
            Self::Stale => "stale",
        }
    }
}

fn line(change: &Change, lock: &Lock) -> String {
    let owner = plain(&lock.owner_name);
    let version = short(&lock.record_version_number);
    let lease = lease(lock.lease_duration_ms);
    match change {
        Change::Released => format!("released   {owner} had it last"),
        Change::Held => {
            let token = lock.fencing_token.map_or_else(|| "none".to_owned(), |token| token.to_string());
            format!("held       by {owner}, lease {lease}, token {token}, version {version}")
        }
        Change::Heartbeat { after } => {
            format!("heartbeat  after {:.1}s, version {version}", after.as_secs_f64())
        }
        Change::Stale => {
            format!("stale      no heartbeat for {lease}: whoever saw that may take it over from {owner}")
        }
    }
}

/// The time of day in UTC, like the logs of machines in several places.
fn time_of_day(since_epoch: Duration) -> String {
    let (seconds, millis) = (since_epoch.as_secs() % 86_400, since_epoch.subsec_millis());
    format!("{:02}:{:02}:{:02}.{millis:03}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The line at the bottom of a terminal that shows the present state.
struct Live {
    seen: Arc<Mutex<Seen>>,
    line: Option<LiveLine>,
}

impl Live {
    fn new(quiet: bool) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let shown = Arc::clone(&seen);
        let text = move |line: &mut String| {
            let seen = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
            describe(line, &seen)
        };
        let line = (!quiet && can_draw()).then(|| LiveLine::start(text));
        Self { seen, line }
    }

    fn set(&self, seen: Seen) {
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

fn describe(line: &mut String, seen: &Seen) -> fmt::Result {
    let seen = match seen {
        Seen::Nothing => return line.write_str("no such lock"),
        Seen::Semaphore(seen) => return seen.describe(line, Instant::now()),
        Seen::Lock(seen) => seen,
    };
    let owner = plain(&seen.lock.owner_name);
    if !seen.is_held() {
        return write!(line, "free; {owner} had it last");
    }
    let now = Instant::now();
    write!(line, "{owner} has it, last sign of life {} ago", seconds(now - seen.since))?;
    match seen.stale_at().saturating_duration_since(now) {
        Duration::ZERO => line.write_str("; it may be taken over"),
        left => write!(line, "; stale in {}", show_seconds(left)),
    }
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
            wanted_by: None,
            data: None,
            data_base64: None,
            attributes: Map::new(),
            semaphore: None,
        }
    }

    /// The lines for the states that are found second by second.
    fn lines(found: &[Option<Lock>]) -> Vec<String> {
        let (start, mut seen, mut lines) = (Instant::now(), Seen::default(), Vec::new());
        for (second, lock) in (0..).zip(found) {
            let now = start + Duration::from_secs(second);
            let changes = seen.changes(lock.clone(), now, second == 0, "Moe");
            lines.extend(changes.into_iter().map(|(_, line)| format!("{second} {line}")));
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
                "0 absent     there is no such lock",
                "2 held       by host-1, lease 3s, token 1, version v1",
                "4 heartbeat  after 2.0s, version v2",
                "5 held       by host-1, lease 3s, token 2, version v3",
                "6 released   host-1 had it last",
                "7 absent     there is no such lock",
            ]
        );
    }

    #[test]
    fn dead_holder_is_told_once() {
        let held = || Some(lock("v1", 1, LockState::Held));
        let lines = lines(&[held(), held(), held(), held(), held(), held()]);
        assert_eq!(
            lines,
            [
                "0 held       by host-1, lease 3s, token 1, version v1",
                "4 stale      no heartbeat for 3s: whoever saw that may take it over from host-1",
            ],
            "a lease, and a thousandth"
        );
    }

    #[test]
    fn time_of_day_is_in_utc() {
        assert_eq!(time_of_day(Duration::from_millis(1_795_256_832_324)), "10:27:12.324Z");
    }
}
