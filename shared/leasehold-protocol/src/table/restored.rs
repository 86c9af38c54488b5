//! The life of a table after its return from a backup.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_dynamodb::Failure;

use super::{LockTable, Record, repeat};
use crate::Error;
use crate::attributes::number;
use crate::item::FENCING_TOKEN;
use crate::model::{Break, LockKey, Rvn};
use crate::semaphore::{self, PublicId, Semaphore};

type Item = HashMap<String, AttributeValue>;

/// The rows that are read at a time.
const PAGE: i32 = 100;

impl LockTable {
    /// Ends all holders and waiters of the time of the backup, as an operator breaks them: they may have lost since,
    /// and one that lost must not hold again. Then raises the fencing tokens of all rows to the clock, which is past
    /// every token that was given: a token starts from microseconds. Rows of other clients stay as they are. Returns
    /// the number of rows. No service may use the table meanwhile.
    ///
    /// # Errors
    /// A sentence: the clock is behind a token of the table, or the table cannot be read or written.
    pub async fn restore(&self) -> Result<usize, String> {
        let now = self.clock.now_us();
        let failed = |error: Error| error.for_log();
        let (mut restored, mut start) = (0, None);
        loop {
            let scan = self.client.scan().table_name(&self.schema.table_name).limit(PAGE).consistent_read(true);
            let scan = scan.set_exclusive_start_key(start);
            let page = repeat(|| async { scan.clone().send().await.map_err(Failure::from) }).await.map_err(failed)?;
            for item in page.items.unwrap_or_default() {
                restored += usize::from(self.restore_row(item, now).await?);
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(restored);
            }
        }
    }

    /// Returns whether the row has tokens. A row of another client has none.
    async fn restore_row(&self, item: Item, now: u64) -> Result<bool, String> {
        let Some(token) = item.get(FENCING_TOKEN).cloned().and_then(number) else { return Ok(false) };
        if token >= now {
            return Err(format!(
                "this machine's clock is behind the backup, which has the fencing token {token}: set the clock, then try again"
            ));
        }
        self.end_claims(item.clone()).await.map_err(|error| error.for_log())?;
        let is_key = |name: &String| {
            *name == self.schema.partition_key || self.schema.sort_key.as_ref().is_some_and(|sort| sort == name)
        };
        let key: Item = item.into_iter().filter(|(name, _)| is_key(name)).collect();
        let update = self.client.update_item().table_name(&self.schema.table_name).set_key(Some(key));
        let update = update.update_expression("SET fencingToken = :token");
        let update = update.expression_attribute_values(":token", AttributeValue::N(now.to_string()));
        repeat(|| async { update.clone().send().await.map_err(Failure::from) })
            .await
            .map_err(|error: Error| error.for_log())?;
        Ok(true)
    }

    async fn end_claims(&self, item: Item) -> Result<(), Error> {
        match self.schema.decode_record(item) {
            Some(Record::Lock(row)) if !row.released => {
                if let Some(seen) = row.rvn.into_value() {
                    let seen = Rvn::new("recordVersionNumber", seen)?;
                    self.break_lock(&Break { key: row.key, seen }).await?;
                }
                Ok(())
            }
            Some(Record::Semaphore(key, Ok(row))) => self.end_entries(&key, &row).await,
            _ => Ok(()),
        }
    }

    async fn end_entries(&self, key: &LockKey, row: &Semaphore) -> Result<(), Error> {
        let holders = row.holders.iter().map(|(id, holder)| (id, &holder.claim, holder.fencing_token));
        let tickets = row.queue.iter().map(|(id, ticket)| (id, &ticket.claim, ticket.number));
        for (id, claim, number) in holders.chain(tickets) {
            let request = semaphore::Break {
                key: key.clone(),
                id: PublicId::new("id", id)?,
                seen: Rvn::new("version", claim.version.clone())?,
                number: Some(number),
            };
            self.break_entry(&request).await?;
        }
        Ok(())
    }
}
