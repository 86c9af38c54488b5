//! The limits of one call: its pauses, their number, and its patience with other transactions.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_dynamodb::{jitter, pause};
use metrics::counter;
use tokio::time::Instant;

use crate::attributes::ItemLock;
use crate::coordinator::{Policy, StepResult, Transactions};
use crate::error::Error;
use crate::key::ItemKey;
use crate::life::Looks;
use crate::model::{PublicId, State};
use crate::record::{Life, Record, Transaction};
use crate::settle::Wanted;

/// The maximum number of failures, conflicts and stale views that one call survives. The pauses in between take about
/// five seconds.
const MAX_TRIES: u32 = 8;

/// The maximum number of consecutive stale steps without a visible change of the transaction. A coordinator that does
/// the same work changes the view.
const MAX_STALE: u32 = 6;

/// The maximum number of reads of an item whose lock belongs to a finished or an unknown transaction. A transaction
/// gets its record within the time of one write, and frees its items before it is finished.
const MAX_GHOSTS: u32 = 15;

/// The divisor of the patience of an older transaction with a younger one. The older one still waits for this time, so
/// that a younger one that is nearly done can finish.
const ELDERS_SHARE: u32 = 20;

/// The first pause between two looks at a transaction that holds an item. Each pause is longer than the one before, up
/// to [`LONGEST_LOOK`].
const LOOK: Duration = Duration::from_millis(30);

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

    /// Whether this call has waited for other transactions as long as it may.
    fn is_out_of_time(&mut self) -> bool {
        let since = *self.contended_since.get_or_insert_with(Instant::now);
        since.elapsed() > Duration::from_millis(self.policy.contention_ms)
    }

    /// Returns the pause before the next look at a transaction that holds an item, or `None` if its time is over. Only
    /// this call's own clock decides: the time since which it has seen no change.
    fn patience_with(&mut self, other: &Record, me: &Record) -> Option<Duration> {
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

impl Transactions {
    /// Resolves a conflict with a transaction that holds items which `me` needs. Waits until the other transaction is
    /// decided, by looks at the two records alone, or rolls it back when its time is over. Frees the items if their
    /// transaction is decided and leaves them locked.
    pub(crate) async fn resolve_conflict(
        &self,
        me: &Record,
        keys: Vec<ItemKey>,
        lock: &ItemLock,
        effort: &mut Effort,
    ) -> Result<StepResult, Error> {
        let other = &lock.value.holder;
        loop {
            let theirs = self.tables.record(other).await?;
            let theirs = match theirs.filter(|theirs| theirs.holds(&lock.value) && !theirs.finished) {
                Some(theirs) if theirs.state == State::Pending => theirs,
                // The other transaction freed the item after it was read, or is about to, or its record is not visible
                // yet. Or an old copy of the item was restored together with its lock.
                theirs => {
                    let ghosts = effort.ghosts.entry(other.clone()).or_default();
                    *ghosts += 1;
                    match theirs {
                        // Other waiters, or a sweeper, free its other items.
                        Some(theirs) if *ghosts > 1 => {
                            if let Some((key, reason)) = self.free(&theirs, keys, None).await? {
                                return Err(Error::stuck(other, &key, &reason));
                            }
                        }
                        None if *ghosts > MAX_GHOSTS => return Err(Error::stray(&keys[0], lock)),
                        _ => look_again_after(LOOK).await,
                    }
                    return Ok(StepResult::Waited);
                }
            };
            // The call is a repeat of one that began the transaction, or the transaction is over meanwhile.
            let is_stale = |mine: Record| mine.state != State::Pending;
            if *other == me.id || self.tables.record(&me.id).await?.is_some_and(is_stale) {
                return Ok(StepResult::Waited);
            }
            if effort.is_out_of_time() {
                let key = Box::new(keys[0].clone());
                let age_ms = self.clock.now_ms().saturating_sub(theirs.created_at);
                return Err(Error::Contended { other: other.clone(), key, age_ms });
            }
            let Some(pause) = effort.patience_with(&theirs, me) else {
                tracing::info!(transaction = %me.id, %other, "rolls back another transaction");
                let reason = format!("the transaction {} needed its item {}.", me.id, keys[0]);
                self.settle(other, Wanted::rollback(reason)).await?;
                return Ok(StepResult::Waited);
            };
            look_again_after(pause).await;
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the pause between two looks")]
async fn look_again_after(pause: Duration) {
    tokio::time::sleep(pause).await;
}
