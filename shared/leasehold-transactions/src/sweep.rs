//! The sweeper: finishes what coordinators left behind, and forgets what is long over.

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
        for shard in 0..SWEEP_SHARDS {
            let wanted = limit - swept.examined;
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
                        self.look_again_later(&id).await?;
                    }
                }
            }
        }
        Ok(swept)
    }

    async fn sweep_one(&self, id: &TransactionId) -> Result<Outcome, Error> {
        let Some(transaction) = self.tables.load(id).await? else {
            // The index is a little behind.
            return Ok(Outcome::Spared);
        };
        let record = transaction.record;
        if record.finished {
            self.remove(id).await?;
            return Ok(Outcome::Removed);
        }
        if record.state != State::Pending {
            self.settle(id, record.state, None).await?;
            return Ok(Outcome::Completed);
        }
        if record.last_worked_at + self.policy.idle_ms > self.clock.now_ms() {
            self.look_again_later(id).await?;
            return Ok(Outcome::Spared);
        }
        let reason = "nobody worked on it for too long.".to_owned();
        let record = self.settle(id, State::RolledBack, Some(reason)).await?;
        Ok(if record.state == State::RolledBack { Outcome::RolledBack } else { Outcome::Completed })
    }

    async fn look_again_later(&self, id: &TransactionId) -> Result<(), Error> {
        let next = self.clock.now_ms() + self.policy.idle_ms;
        let values = Item::from([(":next".to_owned(), record::number(next))]);
        let condition = "attribute_exists(transactionId) AND attribute_not_exists(finished)";
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
