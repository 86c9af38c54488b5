//! Several keys in one transaction of DynamoDB.

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{CancellationReason, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update};
use leasehold_dynamodb::{Failure, fresh_uuid};

use super::dispatch::MAX_WRITES;
use super::{LockTable, repeat};
use crate::attributes::Item;
use crate::error::{Error, ErrorKind};
use crate::expressions;
use crate::lifecycle::together::{AcquireAllAnswer, Attempt, Content, Form, GrantOfAll, Verdict, Vote, decide};
use crate::lifecycle::{CorruptRecord, Stamp};
use crate::model::{AcquireAll, Wanted};
use crate::semaphore::Found;
use crate::semaphore::several::{self, Change};
use crate::semaphore::{self, expressions as of_semaphores};
use crate::write::Write;

/// The reply of DynamoDB for one row of a transaction.
enum Reply {
    Agreed,
    /// The row refused. Contains the item as it is.
    Refused(Option<Item>),
}

impl LockTable {
    /// Asks for several keys, all or none.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry with the same lease id.
    pub async fn acquire_all(&self, request: &AcquireAll) -> Result<AcquireAllAnswer, Error> {
        let wanted = request.wanted();
        let keys = wanted.iter().map(|wanted| self.checked_key(wanted.key())).collect::<Result<Vec<_>, _>>()?;
        let mut next = Attempt::first(wanted.len());
        // An attempt fails where another clock gave a row a higher token, where a semaphore needs another write than
        // its first one, or where the request is a renewal. Each attempt but the first knows of one more such case.
        for _ in 0..MAX_WRITES {
            self.prepare(wanted, &keys, &mut next).await?;
            let (replies, attempt, stamps) = repeat(|| {
                let now_us = self.clock.now_us();
                let attempt = Attempt { fencing_token: next.fencing_token.max(now_us), ..next.clone() };
                let stamps: Vec<_> = wanted.iter().map(|_| Stamp { rvn: fresh_uuid(), now_us }).collect();
                let parts = wanted.iter().zip(&stamps).zip(&attempt.seen);
                let writes = parts.map(|((wanted, stamp), seen)| self.part_of(wanted, &attempt, seen.as_ref(), stamp));
                let call = writes
                    .collect::<Result<Vec<_>, _>>()
                    .map(|writes| self.transact(keys.iter().cloned().zip(writes).collect()));
                async move {
                    match call {
                        Ok(call) => call.await.map(|replies| Ok((replies, attempt, stamps))),
                        Err(corrupt) => Ok(Err(corrupt)),
                    }
                }
            })
            .await??;
            let Some(replies) = replies else {
                let versions = stamps.into_iter().map(|stamp| stamp.rvn).collect();
                return Ok(AcquireAllAnswer::Granted(GrantOfAll { fencing_token: attempt.fencing_token, versions }));
            };
            let votes = replies.into_iter().zip(wanted).map(|(reply, wanted)| self.vote(reply, wanted));
            let votes = votes.collect::<Result<Vec<_>, _>>()?;
            match decide(&votes, wanted, &attempt, &stamps, &self.policy)? {
                Verdict::Answer(answer) => return Ok(answer),
                Verdict::Again(attempt) => next = attempt,
            }
        }
        Err(Error::new(ErrorKind::Throttled, "Other callers changed the rows in the meantime, again and again."))
    }

    /// Makes the writes that only prepare a semaphore's row: a transaction writes each row once. They change nobody's
    /// claim but those of entries that the clock says are dead.
    async fn prepare(&self, wanted: &[Wanted], keys: &[Item], attempt: &mut Attempt) -> Result<(), Error> {
        for ((wanted, key), seen) in wanted.iter().zip(keys).zip(&mut attempt.seen) {
            let (Wanted::Permits(request), Some(found)) = (wanted, seen.as_ref()) else { continue };
            let write = |stamp: &Stamp| -> Result<Option<Write>, CorruptRecord> {
                let change = several::change(Some(found), request, attempt.form, stamp, &self.policy)?;
                Ok(match change {
                    Change::Upgrade => Some(of_semaphores::upgrade(stamp)),
                    Change::Bury => Some(of_semaphores::bury(request, found.semaphore(), stamp, &self.policy)),
                    Change::Main | Change::Create(_) | Change::Renew | Change::Grant => None,
                })
            };
            let is_prepared = repeat(|| {
                let stamp = Stamp { rvn: fresh_uuid(), now_us: self.clock.now_us() };
                let write = write(&stamp).map(|write| write.map(|write| self.write_once(key.clone(), write)));
                async move {
                    match write {
                        Ok(Some(write)) => write.await.map(|_| Ok(true)),
                        Ok(None) => Ok(Ok(false)),
                        Err(corrupt) => Ok(Err(corrupt)),
                    }
                }
            })
            .await??;
            if is_prepared {
                *seen = None;
            }
        }
        Ok(())
    }

    /// The write of one key.
    fn part_of(
        &self,
        wanted: &Wanted,
        attempt: &Attempt,
        seen: Option<&Found>,
        stamp: &Stamp,
    ) -> Result<Write, CorruptRecord> {
        let (policy, token) = (&self.policy, attempt.fencing_token);
        let request: &semaphore::Acquire = match wanted {
            Wanted::Lock(request) => {
                return Ok(expressions::acquire(&self.schema, request, stamp, policy, Some(attempt)));
            }
            Wanted::Permits(request) => request,
        };
        if attempt.form == Form::Renewal {
            return Ok(of_semaphores::renewal_of_several(request, token, stamp, policy));
        }
        let Change::Create(tombstone) = several::change(seen, request, attempt.form, stamp, policy)? else {
            let seen = seen.and_then(Found::semaphore);
            return Ok(of_semaphores::acquire(request, seen, stamp, policy, Some(token)));
        };
        let row = several::acquire(&Found::Free(tombstone.clone()), request, stamp, policy)?.row;
        let row = row.ok_or(CorruptRecord::new("leaseholdKind", "missing"))?;
        Ok(of_semaphores::create(&self.schema, &several::under(row, request, token), tombstone.as_ref()))
    }

    /// Makes all writes, or none. In the second case, returns the reply of each row.
    async fn transact(&self, writes: Vec<(Item, Write)>) -> Result<Option<Vec<Reply>>, Failure> {
        let items = writes.into_iter().map(|(key, write)| self.part(key, write)).collect::<Result<_, _>>()?;
        let request = self.client.transact_write_items().set_transact_items(Some(items));
        // Each call has a token of its own. A repeat is recognised from the rows, which remember longer than DynamoDB's
        // ten minutes.
        match request.client_request_token(fresh_uuid()).send().await {
            Ok(_) => Ok(None),
            Err(error) => match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    cancelled.cancellation_reasons().iter().map(reply).collect::<Result<_, _>>().map(Some)
                }
                _ => Err(error.into()),
            },
        }
    }

    /// Reads a reply as the request for the key does.
    fn vote(&self, reply: Reply, wanted: &Wanted) -> Result<Vote, CorruptRecord> {
        let item = match reply {
            Reply::Agreed => return Ok(Vote::Yes),
            Reply::Refused(item) => item,
        };
        Ok(Vote::No(match wanted {
            Wanted::Lock(_) => Content::Lock(item.and_then(|item| self.schema.decode_row(item))),
            Wanted::Permits(request) => Content::Permits(self.schema.decode_found(&request.key, item)?),
        }))
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
}

/// # Errors
/// Returns an error where the row gave no reply: another transaction has it, or DynamoDB is busy.
fn reply(reason: &CancellationReason) -> Result<Reply, Failure> {
    match reason.code().unwrap_or("None") {
        "None" => Ok(Reply::Agreed),
        "ConditionalCheckFailed" => Ok(Reply::Refused(reason.item().cloned())),
        _ => Err(Failure::of_cancellation(reason)),
    }
}
