//! The life of a table after its return from a backup.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_dynamodb::Failure;

use super::{LockTable, repeat};
use crate::Error;
use crate::attributes::number;
use crate::item::{FENCING_TOKEN, TOKENS};

type Item = HashMap<String, AttributeValue>;

/// The number of rows that are read at a time.
const PAGE: i32 = 100;

impl LockTable {
    /// Raises the fencing tokens of all rows to the clock, which is past every token that was given: a token starts
    /// from microseconds. Holders of the time of the backup are `lost` with their next heartbeat that names its token.
    /// Returns the number of rows. No service may use the table meanwhile.
    ///
    /// # Errors
    /// A sentence: the clock is behind a token of the table, or the table cannot be read or written.
    pub async fn raise_tokens(&self) -> Result<usize, String> {
        let now = self.clock.now_us();
        let failed = |error: Error| error.for_log();
        let (mut raised, mut start) = (0, None);
        loop {
            let scan = self.client.scan().table_name(&self.schema.table_name).limit(PAGE).consistent_read(true);
            let scan = scan.set_exclusive_start_key(start);
            let page = repeat(|| async { scan.clone().send().await.map_err(Failure::from) }).await.map_err(failed)?;
            for item in page.items.unwrap_or_default() {
                raised += usize::from(self.raise_tokens_of(item, now).await?);
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(raised);
            }
        }
    }

    /// Returns whether the row has tokens. A row of another client has none.
    async fn raise_tokens_of(&self, item: Item, now: u64) -> Result<bool, String> {
        let Some(token) = item.get(FENCING_TOKEN).cloned().and_then(number) else { return Ok(false) };
        if token >= now {
            return Err(format!(
                "this machine's clock is behind the backup, which has the fencing token {token}: set the clock, then try again"
            ));
        }
        // Each holder of a semaphore has a token of its own, and the row has the last one.
        let holders = item.get(TOKENS).and_then(|tokens| tokens.as_m().ok());
        let mut holders: Vec<_> = holders.into_iter().flatten().collect();
        holders.sort_by_key(|(_, token)| number((*token).clone()));
        let raised = (now..).map(|token| AttributeValue::N(token.to_string()));
        let tokens: Item = holders.iter().map(|(id, _)| (*id).clone()).zip(raised).collect();
        let last = now + tokens.len() as u64;
        let is_key = |name: &String| {
            *name == self.schema.partition_key || self.schema.sort_key.as_ref().is_some_and(|sort| sort == name)
        };
        let has_holders = item.contains_key(TOKENS);
        let key: Item = item.into_iter().filter(|(name, _)| is_key(name)).collect();
        let update = self.client.update_item().table_name(&self.schema.table_name).set_key(Some(key));
        let update = update.expression_attribute_values(":token", AttributeValue::N(last.to_string()));
        let update = if has_holders {
            update
                .update_expression("SET fencingToken = :token, #tokens = :tokens")
                .expression_attribute_names("#tokens", TOKENS)
                .expression_attribute_values(":tokens", AttributeValue::M(tokens))
        } else {
            update.update_expression("SET fencingToken = :token")
        };
        repeat(|| async { update.clone().send().await.map_err(Failure::from) })
            .await
            .map_err(|error: Error| error.for_log())?;
        Ok(true)
    }
}
