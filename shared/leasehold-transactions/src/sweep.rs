//! The sweeper: finishes the transactions that coordinators left unfinished. TTL removes the finished ones.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use leasehold_dynamodb::jitter;

use crate::coordinator::Transactions;
use crate::error::Error;
use crate::model::{PublicId, State, Swept};
use crate::record::{EXPIRE_AT, Record, SWEEP_SHARDS, batch_key, shard_name};
use crate::write::Write;

/// The maximum number of transactions that a sweep works on concurrently.
const PARALLEL: usize = 8;

/// The result for one transaction.
enum Outcome {
    RolledBack,
    Completed,
    /// A coordinator works on it.
    Spared,
    /// DynamoDB refuses to free one of its items.
    Stuck,
    Failed,
}

impl Transactions {
    /// Examines up to `limit` transactions that are due: rolls back pending ones without recent work, and completes
    /// decided ones. Several sweepers may run at the same time.
    ///
    /// Clocks, which may differ, decide whether a transaction is idle: the rollback of a pending transaction is always
    /// safe.
    ///
    /// # Errors
    /// `Throttled`, `Unavailable`, where not even the index could be read. The failure of one transaction does not stop
    /// the sweep of the others.
    pub async fn sweep(&self, limit: usize) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let first = random_shard();
        for turn in 0..SWEEP_SHARDS {
            let shard = (first + turn) % SWEEP_SHARDS;
            // Each shard gets its share, so that the work of one shard does not keep a sweeper from the others.
            let wanted = (limit - swept.examined).div_ceil(usize::from(SWEEP_SHARDS - turn));
            // One more than the share shows whether there is more.
            let now = self.clock.now_ms();
            let (mut due, _) = self.tables.unfinished(&shard_name(shard), now, wanted + 1, None).await?;
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
        let settled = self.settle(id, State::RolledBack, Some(reason)).await?;
        let outcome = match (settled.unfinished, settled.record.state) {
            (Some(Error::Corrupt(_)), _) => Outcome::Stuck,
            (Some(error), _) => return Err(error),
            (None, State::RolledBack) => Outcome::RolledBack,
            (None, _) => Outcome::Completed,
        };
        swept.count(&outcome);
        Ok(swept)
    }

    async fn sweep_one(&self, id: PublicId) -> Outcome {
        match self.end_if_idle(&id).await {
            Ok(outcome) => outcome,
            Err(error) => {
                tracing::warn!(transaction = %id, error = error.for_log(), "could not be swept");
                // Moves it behind the others, since every sweep would otherwise examine it first and no other.
                if let Err(error) = self.put_off(&id).await {
                    tracing::warn!(transaction = %id, error = error.for_log(), "could not be put off");
                }
                if matches!(error, Error::Corrupt(_)) { Outcome::Stuck } else { Outcome::Failed }
            }
        }
    }

    async fn end_if_idle(&self, id: &PublicId) -> Result<Outcome, Error> {
        let now = self.clock.now_ms();
        let Some(record) = self.tables.record(id).await?.filter(|record| record.sweep_at.is_some_and(|at| at <= now))
        else {
            // The index lags a little behind.
            return Ok(Outcome::Spared);
        };
        if record.state != State::Pending {
            return match self.settle(id, record.state, None).await?.unfinished {
                Some(error) => Err(error),
                None => Ok(Outcome::Completed),
            };
        }
        if record.last_worked_at + self.policy.idle_ms > now {
            self.put_off(id).await?;
            return Ok(Outcome::Spared);
        }
        let reason = "nobody worked on it for too long.".to_owned();
        let settled = self.settle(id, State::RolledBack, Some(reason)).await?;
        match settled.unfinished {
            Some(error) => Err(error),
            None if settled.record.state == State::RolledBack => Ok(Outcome::RolledBack),
            None => Ok(Outcome::Completed),
        }
    }

    /// Postpones the next look at a transaction by one idle time, and keeps its rows from expiring until then.
    async fn put_off(&self, id: &PublicId) -> Result<(), Error> {
        let Some(transaction) = self.tables.load(id).await?.filter(|found| !found.record.finished) else {
            return Ok(());
        };
        let record = &transaction.record;
        if self.clock.now_ms() > record.created_at + self.row_life_ms() / 4 {
            self.prolong(record, transaction.entries.iter().map(|entry| entry.version)).await?;
        }
        let next = self.clock.now_ms() + self.policy.idle_ms;
        let write =
            Write::update(&self.record_item(id), "SET sweepAt = :next").when("sweepAt < :next").number(":next", next);
        self.tables.write(write).await.map(drop)
    }

    /// Postpones the removal of a transaction's batches and images.
    async fn prolong(&self, record: &Record, versions: impl Iterator<Item = u64>) -> Result<(), Error> {
        let versions: std::collections::BTreeSet<_> = versions.collect();
        let batches = versions.into_iter().map(|version| batch_key(record, version));
        let images = self.tables.image_keys(record).await?;
        for key in batches.chain(images) {
            let key = crate::key::ItemKey::new(&self.tables.own, key);
            let expire_at = self.rows_expire_at();
            let write = Write::update(&key, format!("SET {EXPIRE_AT} = :at"))
                // Once in a quarter of the rows' life is enough.
                .when(format!("{EXPIRE_AT} < :soon"))
                .number(":at", expire_at)
                .number(":soon", expire_at - self.row_life_ms() / 4000);
            self.tables.write(write).await?;
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
