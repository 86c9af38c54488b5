//! The semaphores of a lock table: carries out the rules and derives the answers.

use super::expressions;
use super::lifecycle::{self, Change, Entry, Found, Grant, Semaphore, Step};
use super::model::{Acquire, Break, Enqueue, Heartbeat, Release, SetCapacity};
use crate::LockTable;
use crate::error::{Error, ErrorKind};
use crate::expressions::Write;
use crate::lifecycle::{CorruptRecord, GrantOutcome, ReleaseOutcome, Stamp};
use crate::model::LockKey;

/// The maximum number of refused writes of one operation. The first may find no row, and the second that another caller
/// created it; each further write needs another such coincidence.
const MAX_REFUSALS: usize = 8;

impl LockTable {
    /// Asks for permits.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry with the same lease id.
    pub async fn acquire_permits(&self, request: &Acquire) -> Result<Step<Grant>, Error> {
        let policy = &self.policy;
        self.carry_out(
            &request.key,
            |found, stamp, _| lifecycle::acquire(found, request, stamp, policy),
            |change, seen, stamp| match change {
                Change::Renew => {
                    let renewed = Some(GrantOutcome::Renewed);
                    expressions::heartbeat(&lifecycle::renewal(request), renewed, stamp, policy)
                }
                Change::Bury => expressions::bury(request, seen, stamp, policy),
                _ => expressions::acquire(request, seen, stamp, policy),
            },
        )
        .await
    }

    /// Renews a holder's lease.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. The last two say nothing about the permits.
    pub async fn heartbeat_permits(&self, request: &Heartbeat) -> Result<Step<Grant>, Error> {
        let policy = &self.policy;
        self.carry_out(
            &request.key,
            |found, stamp, issued| Ok(lifecycle::heartbeat(found, request, stamp, issued, policy)),
            |_, _, stamp| expressions::heartbeat(request, None, stamp, policy),
        )
        .await
    }

    /// Gives permits back, or withdraws a ticket.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn release_permits(&self, request: &Release) -> Result<Step<ReleaseOutcome>, Error> {
        let policy = &self.policy;
        self.carry_out(
            &request.key,
            |found, stamp, _| Ok(lifecycle::release(found, request, stamp, policy)),
            |_, seen, stamp| expressions::release(request, seen, stamp, policy),
        )
        .await
    }

    /// Removes a holder or a ticket, as an operator.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn break_entry(&self, request: &Break) -> Result<Step<ReleaseOutcome>, Error> {
        let policy = &self.policy;
        self.carry_out(
            &request.key,
            |found, stamp, _| Ok(lifecycle::break_entry(found, request, stamp, policy)),
            |_, seen, stamp| expressions::break_entry(request, seen, stamp, policy),
        )
        .await
    }

    /// Takes a place in the queue, or renews it. Where nobody waits and the permits are free, takes them.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry with the same lease id.
    pub async fn enqueue(&self, request: &Enqueue) -> Result<Step<Entry>, Error> {
        let policy = &self.policy;
        self.carry_out(
            &request.key,
            |found, stamp, issued| lifecycle::enqueue(found, request, stamp, issued, policy),
            |change, seen, stamp| match change {
                Change::Grant => expressions::acquire(&request.ask(), seen, stamp, policy),
                _ => expressions::enqueue(request, seen, stamp, policy),
            },
        )
        .await
    }

    /// Changes the capacity, as an operator.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn set_capacity(&self, request: &SetCapacity) -> Result<Step<i64>, Error> {
        let policy = &self.policy;
        self.carry_out(
            &request.key,
            |found, stamp, _| Ok(lifecycle::set_capacity(found, request, stamp, policy)),
            |_, _, stamp| expressions::set_capacity(request, stamp, policy),
        )
        .await
    }

    /// Makes the write of the operation. Where that is refused, makes the write that the old row calls for. `rule` gets
    /// the versions of earlier attempts where the last attempt was refused; `write` gets the old row.
    async fn carry_out<T>(
        &self,
        key: &LockKey,
        rule: impl Fn(&Found, &Stamp, &[String]) -> Result<Step<T>, CorruptRecord>,
        write: impl Fn(&Change, Option<&Semaphore>, &Stamp) -> Write,
    ) -> Result<Step<T>, Error> {
        let mut next = Next::Write(Change::Main);
        let (mut seen, mut refusals) = (None, 0);
        while refusals < MAX_REFUSALS {
            let build = |stamp: &Stamp| match &next {
                Next::Upgrade => Ok(expressions::upgrade(stamp)),
                Next::Write(Change::Create(tombstone)) => {
                    let step = rule(&Found::Free(tombstone.clone()), stamp, &[])?;
                    let row = step.row.ok_or(CorruptRecord::new("leaseholdKind", "missing"))?;
                    Ok(expressions::create(&self.schema, &row, tombstone.as_ref()))
                }
                Next::Write(change) => Ok(write(change, seen.as_ref(), stamp)),
            };
            let written = self.write_item(key, build).await?;
            if written.applied {
                let found = match next {
                    // The operation goes on from the row as it is now.
                    Next::Upgrade | Next::Write(Change::Bury) => {
                        (next, seen) = (Next::Write(Change::Main), None);
                        continue;
                    }
                    // For a row that it created, DynamoDB returns no attributes, and the embedded engine returns the key.
                    Next::Write(Change::Create(tombstone)) => Found::Free(tombstone),
                    Next::Write(_) => self.schema.decode_found(key, written.old)?,
                };
                return Ok(rule(&found, &written.stamp, &[])?);
            }
            refusals += 1;
            let found = self.schema.decode_found(key, written.old)?;
            let step = rule(&found, &written.stamp, &written.issued)?;
            if step.change == Change::None {
                return Ok(step);
            }
            next = match &found {
                Found::Semaphore(row) if !row.has_rings => Next::Upgrade,
                _ => Next::Write(step.change),
            };
            seen = match found {
                Found::Semaphore(row) => Some(*row),
                Found::Free(_) | Found::OtherKind => None,
            };
        }
        Err(Error::new(ErrorKind::Unavailable, "The row changed again and again."))
    }
}

/// The next write of an operation.
enum Next {
    Write(Change),
    /// Gives the two rings to a row of an earlier version.
    Upgrade,
}
