//! The sweeper: finishes what coordinators left behind, and forgets what is long over.

use std::time::Duration;

use leasehold_dynamodb::jitter;

use crate::attributes::Item;
use crate::coordinator::Transactions;
use crate::error::Error;
use crate::model::{State, Swept, TransactionId};
use crate::record::{self, ROW, SWEEP_SHARDS, record_key, shard_name};

/// What became of one transaction.
enum Outcome {
    RolledBack,
    Completed,
    Removed,
    /// Somebody is at work on it.
    Spared,
}

impl Transactions {
    /// Looks at up to `limit` transactions that are due: rolls back pending ones that nobody has worked on, completes decided
    /// ones, and removes finished ones past their retention. Several sweepers at once do each other no harm.
    ///
    /// That a transaction is idle is judged by clocks, which may differ: to roll back a pending transaction is always safe.
    ///
    /// # Errors
    /// `Throttled`, `Unavailable`, where not even the index could be read. What one transaction comes to does not keep the
    /// sweeper from the others.
    pub async fn sweep(&self, limit: usize) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let first = random_shard();
        for turn in 0..SWEEP_SHARDS {
            let shard = (first + turn) % SWEEP_SHARDS;
            // To each its share, so that what is due in one does not keep a sweeper from the others.
            let wanted = (limit - swept.examined).div_ceil(usize::from(SWEEP_SHARDS - turn));
            // One more than may be dealt with tells whether there is more.
            let mut due = self.tables.due(&shard_name(shard), self.clock.now_ms(), wanted + 1).await?;
            if due.len() > wanted {
                swept.more = true;
                due.truncate(wanted);
            }
            for id in due {
                swept.examined += 1;
                match self.sweep_one(&id).await {
                    Ok(Outcome::RolledBack) => swept.rolled_back += 1,
                    Ok(Outcome::Completed) => swept.completed += 1,
                    Ok(Outcome::Removed) => swept.removed += 1,
                    Ok(Outcome::Spared) => {}
                    Err(error) => {
                        tracing::warn!(transaction = %id, error = error.for_log(), "could not be swept");
                        swept.failed += 1;
                        // Not the first one that every sweep looks at, for then none would look at others.
                        if let Err(error) = self.look_again_later(&id).await {
                            tracing::warn!(transaction = %id, error = error.for_log(), "could not be put off");
                        }
                    }
                }
            }
        }
        Ok(swept)
    }

    async fn sweep_one(&self, id: &TransactionId) -> Result<Outcome, Error> {
        let due = self.tables.record(id).await?.filter(|record| record.sweep_at <= self.clock.now_ms());
        let Some(record) = due else {
            // The index is a little behind; or somebody finished it since, and its outcome must be kept.
            return Ok(Outcome::Spared);
        };
        if record.finished {
            self.remove(id).await?;
            return Ok(Outcome::Removed);
        }
        if record.state != State::Pending {
            return match self.settle(id, record.state, None).await?.unfinished {
                Some(error) => Err(error),
                None => Ok(Outcome::Completed),
            };
        }
        if record.last_worked_at + self.policy.idle_ms > self.clock.now_ms() {
            self.look_again_later(id).await?;
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

    async fn look_again_later(&self, id: &TransactionId) -> Result<(), Error> {
        let next = self.clock.now_ms() + self.policy.idle_ms;
        let values = Item::from([(":next".to_owned(), record::number(next))]);
        let condition = "attribute_exists(transactionId) AND sweepAt < :next";
        self.tables.update(record_key(id), "SET sweepAt = :next", condition, &[], values).await.map(drop)
    }

    /// Removes all rows of a transaction that is finished, its record last.
    async fn remove(&self, id: &TransactionId) -> Result<(), Error> {
        let mut rows = self.tables.rows(id).await?;
        let row = |key: &Item| key.get(ROW).and_then(|row| row.as_s().ok()).cloned();
        rows.sort_by_key(|key| std::cmp::Reverse(row(key)));
        for key in rows {
            self.tables.delete(key).await?;
        }
        Ok(())
    }
}

/// Sweepers that start at the same time begin with different shards.
fn random_shard() -> u8 {
    let millis = jitter(Duration::from_millis(u64::from(SWEEP_SHARDS))).as_millis();
    u8::try_from(millis).unwrap_or_default() % SWEEP_SHARDS
}
