//! Conflicts: the patience of one transaction with another one that holds its items.

use leasehold_dynamodb::pause_for;

use crate::attributes::ItemLock;
use crate::complete::free;
use crate::coordinator::StepResult;
use crate::effort::{Effort, LOOK};
use crate::error::Error;
use crate::key::ItemKey;
use crate::model::State;
use crate::record::Record;
use crate::settle::{Settler, Wanted};

/// The maximum number of reads of an item whose lock belongs to a finished or an unknown transaction. A transaction
/// gets its record within the time of one write, and frees its items before it is finished.
const MAX_GHOSTS: u32 = 15;

/// Resolves a conflict with a transaction that holds items which `me` needs. Waits until the other transaction is
/// decided, by looks at the two records alone, or rolls it back when its time is over. Frees the items if their
/// transaction is decided and leaves them locked.
pub(crate) async fn resolve(
    settler: &Settler,
    me: &Record,
    keys: Vec<ItemKey>,
    lock: &ItemLock,
    effort: &mut Effort,
) -> Result<StepResult, Error> {
    let ledger = &settler.ledger;
    let other = &lock.value.holder;
    loop {
        let theirs = ledger.tables.record(other).await?;
        let theirs = match theirs.filter(|theirs| theirs.holds(lock) && !theirs.finished) {
            Some(theirs) if theirs.state == State::Pending => theirs,
            // The other transaction freed the item after it was read, or is about to, or its record is not visible
            // yet. Or an old copy of the item was restored together with its lock.
            theirs => {
                let ghosts = effort.count_ghost(other);
                match theirs {
                    // Other waiters, or a sweeper, free its other items.
                    Some(theirs) if ghosts > 1 => {
                        if let Some((key, reason)) = free(ledger, &theirs, keys, None).await? {
                            return Err(Error::stuck(other, &key, &reason));
                        }
                    }
                    None if ghosts > MAX_GHOSTS => return Err(Error::stray(&keys[0], lock)),
                    _ => pause_for(LOOK).await,
                }
                return Ok(StepResult::Waited);
            }
        };
        // The call is a repeat of one that began the transaction, or the transaction is over meanwhile.
        let is_stale = |mine: Record| mine.state != State::Pending;
        if *other == me.id || ledger.tables.record(&me.id).await?.is_some_and(is_stale) {
            return Ok(StepResult::Waited);
        }
        if effort.is_out_of_time() {
            let key = Box::new(keys[0].clone());
            let age_ms = ledger.clock.now_ms().saturating_sub(theirs.created_at);
            return Err(Error::Contended { other: other.clone(), key, age_ms });
        }
        let Some(pause) = effort.patience_with(&theirs, me) else {
            tracing::info!(transaction = %me.id, %other, "rolls back another transaction");
            let reason = format!("the transaction {} needed its item {}.", me.id, keys[0]);
            settler.settle(other, Wanted::rollback(reason)).await?;
            return Ok(StepResult::Waited);
        };
        pause_for(pause).await;
    }
}
