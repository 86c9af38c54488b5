//! Several locks in one transaction of DynamoDB.

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{CancellationReason, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update};
use leasehold_dynamodb::{Failure, fresh_uuid};

use super::dispatch::MAX_WRITES;
use super::{LockTable, repeat};
use crate::attributes::Item;
use crate::error::{Error, ErrorKind};
use crate::expressions;
use crate::lifecycle::Stamp;
use crate::lifecycle::together::{AcquireAllAnswer, Attempt, Form, GrantOfAll, Verdict, Vote, decide};
use crate::model::AcquireAll;
use crate::write::Write;

impl LockTable {
    /// Asks for several locks, all or none.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry with the same lease id.
    pub async fn acquire_all(&self, request: &AcquireAll) -> Result<AcquireAllAnswer, Error> {
        let requests = request.requests();
        let keys = requests.iter().map(|request| self.checked_key(&request.key)).collect::<Result<Vec<_>, _>>()?;
        let mut next = Attempt { form: Form::Acquisition, fencing_token: 0 };
        // An attempt fails where another clock gave a row a higher token, or where the request is a renewal. Each
        // attempt but the first knows of one more such case.
        for _ in 0..MAX_WRITES {
            let (votes, attempt, stamps) = repeat(|| {
                let now_us = self.clock.now_us();
                let attempt = Attempt { fencing_token: next.fencing_token.max(now_us), ..next };
                let stamps: Vec<_> = requests.iter().map(|_| Stamp { rvn: fresh_uuid(), now_us }).collect();
                let writes = requests.iter().zip(&stamps).map(|(request, stamp)| {
                    expressions::acquire(&self.schema, request, stamp, &self.policy, Some(&attempt))
                });
                let call = self.transact(keys.iter().cloned().zip(writes).collect());
                async move { call.await.map(|votes| (votes, attempt, stamps)) }
            })
            .await?;
            let Some(votes) = votes else {
                let versions = stamps.into_iter().map(|stamp| stamp.rvn).collect();
                return Ok(AcquireAllAnswer::Granted(GrantOfAll { fencing_token: attempt.fencing_token, versions }));
            };
            match decide(&votes, requests, &stamps, &self.policy)? {
                Verdict::Answer(answer) => return Ok(answer),
                Verdict::Again(attempt) => next = attempt,
            }
        }
        Err(Error::new(ErrorKind::Throttled, "Other callers changed the locks in the meantime, again and again."))
    }

    /// Makes all writes, or none. In the second case, returns the vote of each row.
    async fn transact(&self, writes: Vec<(Item, Write)>) -> Result<Option<Vec<Vote>>, Failure> {
        let items = writes.into_iter().map(|(key, write)| self.part(key, write)).collect::<Result<_, _>>()?;
        let request = self.client.transact_write_items().set_transact_items(Some(items));
        // Each call has a token of its own. A repeat is recognised from the rows, which remember longer than DynamoDB's
        // ten minutes.
        match request.client_request_token(fresh_uuid()).send().await {
            Ok(_) => Ok(None),
            Err(error) => match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => cancelled
                    .cancellation_reasons()
                    .iter()
                    .map(|reason| self.vote(reason))
                    .collect::<Result<_, _>>()
                    .map(Some),
                _ => Err(error.into()),
            },
        }
    }

    fn part(&self, key: Item, write: Write) -> Result<TransactWriteItem, Failure> {
        let update = Update::builder()
            .table_name(&self.schema.table_name)
            .set_key(Some(key))
            .update_expression(write.update)
            .condition_expression(write.condition)
            .set_expression_attribute_names((!write.names.is_empty()).then_some(write.names))
            .set_expression_attribute_values(Some(write.values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        Ok(TransactWriteItem::builder().update(update.build()?).build())
    }

    /// # Errors
    /// Returns an error where the row gave no vote: another transaction has it, or DynamoDB is busy.
    fn vote(&self, reason: &CancellationReason) -> Result<Vote, Failure> {
        match reason.code().unwrap_or("None") {
            "None" => Ok(Vote::Yes),
            "ConditionalCheckFailed" => {
                Ok(Vote::No(reason.item().and_then(|item| self.schema.decode_row(item.clone()))))
            }
            _ => Err(Failure::of_cancellation(reason)),
        }
    }
}
