//! Carries out an operation on one row: its write, the old row, and the step that the life cycle takes from there.

use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{ReturnValue, ReturnValuesOnConditionCheckFailure};
use leasehold_dynamodb::{Failure, fresh_uuid};

use super::{LockTable, repeat};
use crate::attributes::Item;
use crate::error::{Error, ErrorKind};
use crate::lifecycle::{CorruptRecord, Stamp};
use crate::model::LockKey;
use crate::step::{Change, Step};
use crate::write::Write;

/// The maximum number of different writes of one operation. Another write follows one that was refused on a row for
/// which it was not made, and each further one needs that another caller changed the row in the meantime.
pub(super) const MAX_WRITES: usize = 8;

/// The result of a conditional write.
struct Written {
    applied: bool,
    /// The item before it, applied or refused.
    old: Option<Item>,
    /// The stamp of the last attempt.
    stamp: Stamp,
    /// The record version numbers of all attempts: each of them in the table is our own write.
    issued: Vec<String>,
}

impl LockTable {
    /// Makes the default write of an operation. Where that is refused, makes the write that the old row calls for.
    /// Begins again after a write that only prepares the row. Returns the content of the key before, and the step from
    /// there.
    ///
    /// `rule` is the life cycle. It gets the versions of all attempts where the last one was refused. `write` gets the
    /// content of the key that refused the write before.
    pub(crate) async fn carry_out<F, R, C: Change, A>(
        &self,
        key: &LockKey,
        decode: impl Fn(Option<Item>) -> Result<F, CorruptRecord>,
        rule: impl Fn(&F, &Stamp, &[String]) -> Result<Step<R, C, A>, CorruptRecord>,
        write: impl Fn(&C, Option<&F>, &Stamp) -> Result<Write, CorruptRecord>,
    ) -> Result<(F, Step<R, C, A>), Error> {
        let (mut change, mut seen) = (C::default(), None);
        let mut refusals = 0;
        while refusals < MAX_WRITES {
            let written = self.write(key, |stamp| write(&change, seen.as_ref(), stamp)).await?;
            if written.applied && change.prepares() {
                (change, seen) = (C::default(), None);
                continue;
            }
            refusals += 1;
            let issued = if written.applied { Vec::new() } else { written.issued };
            let found = decode(written.old)?;
            let step = rule(&found, &written.stamp, &issued)?;
            match step.change {
                Some(next) if !written.applied => (change, seen) = (next, Some(found)),
                _ => return Ok((found, step)),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "The row changed again and again."))
    }

    /// Makes one conditional write. An attempt with an unknown result is retried, each time under a new stamp. The row
    /// that the last attempt returns shows whether an earlier one was applied.
    async fn write(
        &self,
        key: &LockKey,
        build: impl Fn(&Stamp) -> Result<Write, CorruptRecord>,
    ) -> Result<Written, Error> {
        let key = self.checked_key(key)?;
        let mut issued = Vec::with_capacity(1);
        let (applied, old, stamp) = repeat(|| {
            let stamp = Stamp { rvn: fresh_uuid(), now_us: self.clock.now_us() };
            issued.push(stamp.rvn.clone());
            let attempt = build(&stamp).map(|write| self.write_once(key.clone(), write));
            async move {
                match attempt {
                    Ok(attempt) => attempt.await.map(|(applied, old)| Ok((applied, old, stamp))),
                    Err(corrupt) => Ok(Err(corrupt)),
                }
            }
        })
        .await??;
        Ok(Written { applied, old, stamp, issued })
    }

    /// Returns whether the write was applied, and the item before it.
    pub(super) async fn write_once(&self, key: Item, write: Write) -> Result<(bool, Option<Item>), Failure> {
        let key_length = key.len();
        let request = self
            .client
            .update_item()
            .table_name(&self.schema.table_name)
            .set_key(Some(key))
            .update_expression(write.update)
            .condition_expression(write.condition)
            .set_expression_attribute_names((!write.names.is_empty()).then_some(write.names))
            .set_expression_attribute_values(Some(write.values))
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match request.send().await {
            // For a row that it created, DynamoDB returns no attributes, and the embedded engine returns the key.
            Ok(output) => Ok((true, output.attributes.filter(|item| item.len() > key_length))),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => Ok((false, refusal.item.clone())),
                _ => Err(error.into()),
            },
        }
    }
}
