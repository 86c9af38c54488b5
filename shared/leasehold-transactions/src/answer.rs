//! The answers to the requests of a transaction.

use leasehold_dynamodb::pause;

use crate::attributes::{self, Before, ItemLock};
use crate::error::Error;
use crate::key::{Item, ItemKey};
use crate::ledger::Ledger;
use crate::model::{Answer, ReturnValues};
use crate::prepare::Prepared;
use crate::record::Record;

/// The maximum number of reads until a write of several items is visible as a whole.
const MAX_LOOKS: u32 = 6;

/// Returns the answers to the requests of a call, once they are all applied.
pub(crate) async fn answers(ledger: &Ledger, record: &Record, prepared: &[Prepared]) -> Result<Vec<Answer>, Error> {
    let wanting: Vec<_> =
        prepared.iter().filter(|request| request.wants_item()).map(|request| request.key.clone()).collect();
    let mut items = locked(ledger, record, &wanting).await?.into_iter();
    let mut answers = Vec::with_capacity(prepared.len());
    for request in prepared {
        let found = if request.wants_item() { items.next() } else { None };
        let Some((lock, item)) = found else {
            answers.push(Answer::default());
            continue;
        };
        let wants_old = matches!(request.request.return_values, ReturnValues::AllOld | ReturnValues::UpdatedOld);
        let seen = if wants_old {
            match attributes::before(&item, &lock) {
                Before::Missing => None,
                Before::Here(before) => Some(before),
                Before::InRow(row) => Some(image_of(ledger, record, &row).await?),
            }
        } else {
            (!lock.is_absent()).then(|| attributes::strip(item))
        };
        answers.push(Answer { item: request.project(seen) });
    }
    Ok(answers)
}

/// Reads items that the transaction has locked.
pub(crate) async fn locked(ledger: &Ledger, record: &Record, keys: &[ItemKey]) -> Result<Vec<(ItemLock, Item)>, Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut lost = None;
    for look in 1..=MAX_LOOKS {
        let items = ledger.tables.read(keys).await?;
        let items: Vec<_> = items.into_iter().map(|item| record.lock_on(item.as_ref()).zip(item)).collect();
        lost = items.iter().position(Option::is_none);
        if lost.is_none() {
            return Ok(items.into_iter().flatten().collect());
        }
        // Another coordinator rolled the transaction back and freed the item, or the read saw a part of the lock's
        // write.
        ledger.open(&record.id, false).await?;
        pause(look).await;
    }
    let detail = "An item that the transaction has locked was changed by another writer.";
    Err(lost.map_or_else(|| Error::corrupt(detail), |lost| Error::damaged(&keys[lost], detail)))
}

async fn image_of(ledger: &Ledger, record: &Record, row: &str) -> Result<Item, Error> {
    if let Some(before) = ledger.tables.image(&record.id, row).await? {
        return Ok(before);
    }
    ledger.open(&record.id, false).await?;
    Err(Error::corrupt(format!("An image of the transaction {} is missing.", record.id)))
}
