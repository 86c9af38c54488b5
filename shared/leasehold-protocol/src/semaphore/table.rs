//! The semaphores of a lock table: carries out the rules and derives the answers.

use super::expressions;
use super::lifecycle::{self, Change, Entry, Found, Grant, Semaphore, Step};
use super::model::{Acquire, Break, Enqueue, Heartbeat, Release, SetCapacity};
use crate::LockTable;
use crate::error::Error;
use crate::lifecycle::{CorruptRecord, ReleaseOutcome, Stamp};
use crate::model::LockKey;
use crate::write::Write;

impl LockTable {
    /// Asks for permits.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry with the same lease id.
    pub async fn acquire_permits(&self, request: &Acquire) -> Result<Step<Grant>, Error> {
        let policy = &self.policy;
        self.carry_out_on_semaphore(
            &request.key,
            |found, stamp, _| lifecycle::acquire(found, request, stamp, policy),
            |change, seen, stamp| match change {
                Change::Renew => expressions::acquire_again(request, stamp, policy),
                Change::Bury => expressions::bury(request, seen, stamp, policy),
                _ => expressions::acquire(request, seen, stamp, policy, None),
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
        self.carry_out_on_semaphore(
            &request.key,
            |found, stamp, issued| Ok(lifecycle::heartbeat(found, request, stamp, issued, policy)),
            |change, _, stamp| match change {
                Change::Renew => expressions::heartbeat(&lifecycle::shrunk(request), stamp, policy),
                _ => expressions::heartbeat(request, stamp, policy),
            },
        )
        .await
    }

    /// Gives permits back, or withdraws a ticket.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn release_permits(&self, request: &Release) -> Result<Step<ReleaseOutcome>, Error> {
        let policy = &self.policy;
        self.carry_out_on_semaphore(
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
        self.carry_out_on_semaphore(
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
        self.carry_out_on_semaphore(
            &request.key,
            |found, stamp, issued| lifecycle::enqueue(found, request, stamp, issued, policy),
            |change, seen, stamp| match change {
                Change::Grant => expressions::acquire(&request.ask(), seen, stamp, policy, None),
                Change::Renew => expressions::acquire_again(&request.ask(), stamp, policy),
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
        self.carry_out_on_semaphore(
            &request.key,
            |found, stamp, _| Ok(lifecycle::set_capacity(found, request, stamp, policy)),
            |_, _, stamp| expressions::set_capacity(request, stamp),
        )
        .await
    }

    /// Carries out an operation on a semaphore. `write` gets the row that refused the write before. The write that
    /// creates the row has the row that the life cycle makes of nothing.
    async fn carry_out_on_semaphore<T>(
        &self,
        key: &LockKey,
        rule: impl Fn(&Found, &Stamp, &[String]) -> Result<Step<T>, CorruptRecord>,
        write: impl Fn(&Change, Option<&Semaphore>, &Stamp) -> Write,
    ) -> Result<Step<T>, Error> {
        let rule = |found: &Found, stamp: &Stamp, issued: &[String]| {
            let mut step = rule(found, stamp, issued)?;
            let is_earlier = matches!(found, Found::Semaphore(row) if !row.has_rings);
            step.change = step.change.map(|change| if is_earlier { Change::Upgrade } else { change });
            Ok(step)
        };
        let write = |change: &Change, seen: Option<&Found>, stamp: &Stamp| match change {
            Change::Upgrade => Ok(expressions::upgrade(stamp)),
            Change::Create(tombstone) => {
                let step = rule(&Found::Free(tombstone.clone()), stamp, &[])?;
                let row = step.row.ok_or(CorruptRecord::new("leaseholdKind", "missing"))?;
                Ok(expressions::create(&self.schema, &row, tombstone.as_ref()))
            }
            _ => Ok(write(change, seen.and_then(Found::semaphore), stamp)),
        };
        let carried_out = self.carry_out(key, |item| self.schema.decode_found(key, item), rule, write);
        Ok(carried_out.await?.1)
    }
}
