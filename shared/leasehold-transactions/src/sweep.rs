//! The sweeper: finishes the transactions that coordinators left unfinished. TTL removes the finished ones.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use leasehold_dynamodb::jitter;
use tokio::time::Instant;

use crate::error::Error;
use crate::id::PublicId;
use crate::key::ItemKey;
use crate::ledger::Ledger;
use crate::life::Looks;
use crate::model::{State, Swept};
use crate::record::{EXPIRE_AT, Life, Record, SWEEP_SHARDS, batch_key, shard_name};
use crate::settle::{Settler, Wanted};
use crate::write::Write;

/// The maximum number of transactions that a sweep works on concurrently.
const PARALLEL: usize = 8;

/// The result for one transaction.
enum Outcome {
    RolledBack,
    Completed,
    /// It is over, or another sweeper was faster.
    Spared,
    /// It is open, and this process has not yet seen it unchanged for long enough. Its age in milliseconds.
    Watched(u64),
    /// DynamoDB refuses to free one of its items.
    Stuck,
    Failed,
}

/// The open transactions that this process has seen in its sweeps.
#[derive(Debug, Clone, Default)]
struct Watched(Arc<Mutex<HashMap<PublicId, Sighting>>>);

#[derive(Debug)]
struct Sighting {
    looks: Looks<Life, Instant>,
    /// The time of the last look.
    last: Instant,
}

impl Watched {
    /// Returns the time for which this process has seen the record unchanged, by its own monotonic clock.
    fn unchanged_for(&self, record: &Record) -> Duration {
        let now = Instant::now();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sighting = seen
            .entry(record.id.clone())
            .or_insert_with(|| Sighting { looks: Looks::first(record.life(), now), last: now });
        sighting.last = now;
        now - sighting.looks.unchanged_since(record.life(), now)
    }

    /// Forgets the transactions that no sweep has seen for this time: they are over.
    fn forget_unseen(&self, time: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, sighting| sighting.last.elapsed() < time);
    }
}

/// Ends the transactions that nobody works on. Its clones share what they have seen.
#[derive(Debug, Clone)]
pub struct Sweeper {
    ledger: Ledger,
    settler: Settler,
    watched: Watched,
}

impl Sweeper {
    pub(crate) fn new(ledger: Ledger, settler: Settler) -> Self {
        Self { ledger, settler, watched: Watched::default() }
    }

    /// The time between the two looks after which a sweeper takes a transaction for idle.
    pub fn idle_time(&self) -> Duration {
        Duration::from_millis(self.ledger.policy.idle_ms)
    }

    /// Examines up to `limit` transactions that are due: rolls back pending ones that this process has seen unchanged
    /// for the idle time, and completes decided ones. Several sweepers may run at the same time.
    ///
    /// The wall clock only chooses which ones are looked at. A pending one therefore ends after two looks at least.
    ///
    /// # Errors
    /// `Throttled`, `Unavailable`, where not even the index could be read. The failure of one transaction does not stop
    /// the sweep of the others.
    pub async fn sweep(&self, limit: usize) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        self.watched.forget_unseen(Duration::from_millis(self.ledger.policy.idle_ms.saturating_mul(4)));
        let first = random_shard();
        for turn in 0..SWEEP_SHARDS {
            let shard = (first + turn) % SWEEP_SHARDS;
            // Each shard gets its share, so that the work of one shard does not keep a sweeper from the others.
            let wanted = (limit - swept.examined).div_ceil(usize::from(SWEEP_SHARDS - turn));
            // One more than the share shows whether there is more.
            let now = self.ledger.clock.now_ms();
            let (mut due, _) = self.ledger.tables.unfinished(&shard_name(shard), now, wanted + 1, None).await?;
            if due.len() > wanted {
                swept.more = true;
                due.truncate(wanted);
            }
            swept.examined += due.len();
            let work: Vec<_> = due.into_iter().map(|id| self.sweep_one(id).boxed()).collect();
            let mut outcomes = stream::iter(work).buffer_unordered(PARALLEL);
            while let Some(outcome) = outcomes.next().await {
                swept.count(&outcome);
            }
        }
        Ok(swept)
    }

    /// Ends one transaction of any age: an operator's rollback. A decided one is completed.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn sweep_named(&self, id: &PublicId) -> Result<Swept, Error> {
        let mut swept = Swept { examined: 1, ..Swept::default() };
        let reason = "an operator asked for it.".to_owned();
        let outcome = match self.end(id, &Wanted::rollback(reason)).await {
            Err(Error::Corrupt { .. }) => Outcome::Stuck,
            outcome => outcome?,
        };
        swept.count(&outcome);
        Ok(swept)
    }

    /// Decides a transaction, if it is not decided, and frees all its items.
    async fn end(&self, id: &PublicId, wanted: &Wanted) -> Result<Outcome, Error> {
        let decided = self.settler.decided(id, None, wanted).await?;
        let record = &decided.transaction.record;
        if !record.finished {
            self.settler.complete(&decided).await?;
        }
        Ok(if record.state == State::RolledBack { Outcome::RolledBack } else { Outcome::Completed })
    }

    async fn sweep_one(&self, id: PublicId) -> Outcome {
        match self.end_if_idle(&id).await {
            Ok(outcome) => outcome,
            Err(error) => {
                tracing::warn!(transaction = %id, error = error.for_log(), "could not be swept");
                // Moves it behind the others, since every sweep would otherwise examine it first and no other.
                if let Err(error) = self.put_off(&id, Duration::ZERO).await {
                    tracing::warn!(transaction = %id, error = error.for_log(), "could not be put off");
                }
                if matches!(error, Error::Corrupt { .. }) { Outcome::Stuck } else { Outcome::Failed }
            }
        }
    }

    async fn end_if_idle(&self, id: &PublicId) -> Result<Outcome, Error> {
        let now = self.ledger.clock.now_ms();
        let Some(record) =
            self.ledger.tables.record(id).await?.filter(|record| record.sweep_at.is_some_and(|at| at <= now))
        else {
            // The index lags a little behind.
            return Ok(Outcome::Spared);
        };
        let wanted = Wanted::rollback("nobody worked on it for too long.".to_owned());
        if record.state != State::Pending {
            return self.end(id, &wanted).await.map(|_| Outcome::Completed);
        }
        let unchanged = self.watched.unchanged_for(&record);
        if unchanged < self.idle_time() {
            self.put_off(id, unchanged).await?;
            return Ok(Outcome::Watched(now.saturating_sub(record.created_at)));
        }
        self.end(id, &wanted).await
    }

    /// Postpones the next look at a transaction by the rest of an idle time, and keeps its rows from expiring until
    /// then.
    async fn put_off(&self, id: &PublicId, unchanged: Duration) -> Result<(), Error> {
        let Some(transaction) = self.ledger.tables.load(id).await?.filter(|found| !found.record.finished) else {
            return Ok(());
        };
        let record = &transaction.record;
        if self.ledger.clock.now_ms() > record.created_at + self.ledger.row_life_ms() / 4 {
            self.prolong(record, transaction.entries.iter().map(|entry| entry.version)).await?;
        }
        let unchanged = u64::try_from(unchanged.as_millis()).unwrap_or(u64::MAX);
        let next = self.ledger.clock.now_ms() + self.ledger.policy.idle_ms.saturating_sub(unchanged);
        // A sweeper whose clock is ahead does not hide the transaction from the others.
        let next = next.min(record.sweep_at.map_or(next, |at| at + self.ledger.policy.idle_ms));
        let write = Write::update(&self.ledger.record_item(id), "SET sweepAt = :next")
            .when("sweepAt < :next")
            .number(":next", next);
        self.ledger.tables.write(write).await.map(drop)
    }

    /// Postpones the removal of a transaction's batches and images.
    async fn prolong(&self, record: &Record, versions: impl Iterator<Item = u64>) -> Result<(), Error> {
        let versions: BTreeSet<_> = versions.collect();
        let batches = versions.into_iter().map(|version| batch_key(record, version));
        let images = self.ledger.tables.image_keys(record).await?;
        for key in batches.chain(images) {
            let key = ItemKey::new(&self.ledger.tables.own, key);
            let expire_at = self.ledger.rows_expire_at();
            let write = Write::update(&key, format!("SET {EXPIRE_AT} = :at"))
                // Once in a quarter of the rows' life is enough.
                .when(format!("{EXPIRE_AT} < :soon"))
                .number(":at", expire_at)
                .number(":soon", expire_at - self.ledger.row_life_ms() / 4000);
            self.ledger.tables.write(write).await?;
        }
        Ok(())
    }
}

impl Swept {
    fn count(&mut self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::RolledBack => &mut self.rolled_back,
            Outcome::Completed => &mut self.completed,
            Outcome::Stuck => &mut self.stuck,
            Outcome::Failed => &mut self.failed,
            Outcome::Watched(age_ms) => {
                self.oldest_ms = self.oldest_ms.max(*age_ms);
                &mut self.watched
            }
            Outcome::Spared => return,
        };
        *counter += 1;
    }
}

/// A random shard, so that sweepers that start at the same time begin with different shards.
fn random_shard() -> u8 {
    let millis = jitter(Duration::from_millis(u64::from(SWEEP_SHARDS))).as_millis();
    u8::try_from(millis).unwrap_or_default() % SWEEP_SHARDS
}
