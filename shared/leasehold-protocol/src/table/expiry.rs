//! Removes expired rows, where the table is in several regions and so has no TTL.

use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use leasehold_dynamodb::Failure;

use super::{LockTable, repeat};
use crate::attributes::Item;
use crate::error::Error;
use crate::expressions;
use crate::write::Write;

/// A sweep reads the table in so many parts, from another one on each time. One that is stopped has begun with other
/// rows than the next, so that no progress needs to be stored.
const SEGMENTS: u64 = 64;

/// The progress of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    /// The number of rows that were removed.
    pub removed: u64,
    /// The number of rows that were not: another region wrote them at the same time, or DynamoDB did not answer.
    pub left: u64,
    /// Whether the sweep read the whole table.
    pub is_complete: bool,
}

impl LockTable {
    /// Removes expired rows, and counts them in `expired`. May be stopped anywhere.
    ///
    /// # Errors
    /// `Throttled`, `Unavailable`, `Misconfigured`.
    pub async fn expire(&self, expired: &mut Expired) -> Result<(), Error> {
        let first = self.clock.now_us() % SEGMENTS;
        for segment in (first..SEGMENTS).chain(0..first) {
            self.expire_segment(segment, expired).await?;
        }
        expired.is_complete = true;
        Ok(())
    }

    async fn expire_segment(&self, segment: u64, expired: &mut Expired) -> Result<(), Error> {
        let mut start = None;
        loop {
            let over = expressions::over(self.clock.now_ms(), &self.policy);
            let names = std::iter::once(&self.schema.partition_key).chain(&self.schema.sort_key);
            let names: Vec<_> = names.enumerate().map(|(index, name)| (format!("#key{index}"), name.clone())).collect();
            let projected: Vec<_> = names.iter().map(|(placeholder, _)| placeholder.as_str()).collect();
            // The delete judges again: what this read missed or saw too late does no harm.
            let request = names.iter().fold(self.client.scan(), |request, (placeholder, name)| {
                request.expression_attribute_names(placeholder, name)
            });
            let request = request
                .table_name(&self.schema.table_name)
                .segment(i32::try_from(segment).unwrap_or_default())
                .total_segments(i32::try_from(SEGMENTS).unwrap_or(1))
                .set_exclusive_start_key(start)
                .projection_expression(projected.join(", "))
                .filter_expression(&over.condition)
                .set_expression_attribute_values(Some(over.values.clone()));
            let page = repeat(|| async { request.clone().send().await.map_err(Failure::from) }).await?;
            for key in page.items.unwrap_or_default() {
                match self.remove(key, &over).await {
                    Ok(is_removed) => expired.removed += u64::from(is_removed),
                    Err(failure) if failure.is_transient() => expired.left += 1,
                    Err(failure) => return Err(failure.into()),
                }
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(());
            }
        }
    }

    /// Removes a row that is over, as TTL would. Returns whether it was, and was there.
    async fn remove(&self, key: Item, over: &Write) -> Result<bool, Failure> {
        let call = || async {
            let request = self
                .client
                .delete_item()
                .table_name(&self.schema.table_name)
                .set_key(Some(key.clone()))
                .condition_expression(&over.condition)
                .set_expression_attribute_values(Some(over.values.clone()));
            match request.send().await {
                Ok(_) => Ok(true),
                Err(error) => match error.as_service_error() {
                    Some(DeleteItemError::ConditionalCheckFailedException(_)) => Ok(false),
                    _ => Err(Failure::from(error)),
                },
            }
        };
        leasehold_dynamodb::repeat(call, Failure::is_transient).await
    }
}
