//! The limits of one call: its pauses, their number, and its patience with other transactions.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_dynamodb::{jitter, pause};
use metrics::counter;
use tokio::time::Instant;

use crate::coordinator::Policy;
use crate::error::Error;
use crate::id::PublicId;
use crate::life::Looks;
use crate::model::State;
use crate::record::{Life, Record, Transaction};

/// The maximum number of failures, conflicts and stale views that one call survives. The pauses in between take about
/// five seconds.
const MAX_TRIES: u32 = 8;

/// The maximum number of consecutive stale steps without a visible change of the transaction. A coordinator that does
/// the same work changes the view.
const MAX_STALE: u32 = 6;

/// The divisor of the patience of an older transaction with a younger one. The older one still waits for this time, so
/// that a younger one that is nearly done can finish.
const ELDERS_SHARE: u32 = 20;

/// The first pause between two looks at a transaction that holds an item. Each pause is longer than the one before, up
/// to [`LONGEST_LOOK`].
pub(crate) const LOOK: Duration = Duration::from_millis(30);

/// The longest pause between two looks: a tenth of the default patience.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// The visible state of a transaction: its state, its version, and the number of versions with unapplied puts.
type View = (State, u64, usize);

/// The state of one call.
#[derive(Debug)]
pub(crate) struct Effort {
    policy: Policy,
    /// The time at which this call first waited for another transaction.
    contended_since: Option<Instant>,
    tries: u32,
    stale: u32,
    /// The view of the transaction at the last stale step.
    view: Option<View>,
    batch_limit: usize,
    rivals: HashMap<PublicId, Sighting>,
    /// The number of reads of an item with the lock of a transaction that is decided or unknown.
    ghosts: HashMap<PublicId, u32>,
}

/// The sightings of another transaction.
#[derive(Debug)]
struct Sighting {
    looks: Looks<Life, Instant>,
    /// The number of looks.
    count: u32,
    first: Instant,
    /// A random factor: two transactions that wait for each other must not lose patience at the same time.
    factor: f64,
}

impl Effort {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            policy: *policy,
            contended_since: None,
            tries: 0,
            stale: 0,
            view: None,
            batch_limit: usize::MAX,
            rivals: HashMap::new(),
            ghosts: HashMap::new(),
        }
    }

    /// Waits before a step is retried that conflicted with other writes.
    pub(crate) async fn pause(&mut self) -> Result<(), Error> {
        self.failed(Error::Throttled("other writes of the same items kept getting in the way".into())).await
    }

    /// Waits before the transaction is read again.
    pub(crate) async fn failed(&mut self, error: Error) -> Result<(), Error> {
        self.tries += 1;
        if self.tries > MAX_TRIES {
            return Err(error);
        }
        pause(self.tries).await;
        Ok(())
    }

    /// Waits before the transaction is read again, after a step found its view stale.
    pub(crate) async fn stale(&mut self, transaction: &Transaction) -> Result<(), Error> {
        let record = &transaction.record;
        let view = Some((record.state, record.version, record.unapplied.len()));
        self.stale = if self.view == view { self.stale + 1 } else { 1 };
        self.view = view;
        if self.stale > MAX_STALE {
            let detail =
                "An item that a transaction has locked was changed by a writer that does not respect transactions.";
            return Err(Error::corrupt(detail));
        }
        pause(self.stale).await;
        Ok(())
    }

    pub(crate) fn batch_limit(&self, max: usize) -> usize {
        self.batch_limit.min(max)
    }

    pub(crate) fn halve_batches(&mut self, from: usize) {
        self.batch_limit = (from / 2).max(1);
    }

    /// Counts a call that has all its items, and waited for some of them.
    pub(crate) fn count_wait(&self) {
        if self.contended_since.is_some() {
            counter!("Waited", "operation" => "transactions").increment(1);
        }
    }

    /// Counts a read of an item with the lock of a transaction that is decided or unknown. Returns their number.
    pub(crate) fn count_ghost(&mut self, holder: &PublicId) -> u32 {
        let count = self.ghosts.entry(holder.clone()).or_default();
        *count += 1;
        *count
    }

    /// Whether this call has waited for other transactions as long as it may.
    pub(crate) fn is_out_of_time(&mut self) -> bool {
        let since = *self.contended_since.get_or_insert_with(Instant::now);
        since.elapsed() > Duration::from_millis(self.policy.contention_ms)
    }

    /// Returns the pause before the next look at a transaction that holds an item, or `None` if its time is over. Only
    /// this call's own clock decides: the time since which it has seen no change.
    pub(crate) fn patience_with(&mut self, other: &Record, me: &Record) -> Option<Duration> {
        let now = Instant::now();
        let sighting = self.rivals.entry(other.id.clone()).or_insert_with(|| Sighting {
            looks: Looks::first(other.life(), now),
            count: 0,
            first: now,
            factor: 1.0 + jitter(Duration::from_secs(1)).as_secs_f64(),
        });
        let since = sighting.looks.unchanged_since(other.life(), now);
        let patience = Duration::from_millis(self.policy.patience_ms).mul_f64(sighting.factor);
        // The older transaction goes first, alive or not. If two wait for each other, one therefore goes on, and
        // none waits for ever. A retry is as old as its first attempt, and does not wait again.
        let goes_first = (me.born_at, &me.id) < (other.born_at, &other.id);
        if goes_first && me.attempts > 0 {
            return None;
        }
        let (waited, allowed) =
            if goes_first { (now - sighting.first, patience / ELDERS_SHARE) } else { (now - since, patience) };
        sighting.count += 1;
        let longest = (LOOK * sighting.count).min(LONGEST_LOOK);
        // No look is later than the end of the patience.
        let left = allowed.checked_sub(waited).filter(|left| !left.is_zero())?;
        Some((longest / 2 + jitter(longest / 2)).min(left))
    }
}
