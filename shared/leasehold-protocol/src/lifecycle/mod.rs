//! The life of a lock, as pure functions of (row, request, stamp). No I/O, no clock, no randomness.
//!
//! Each function is one operation: [`acquire`], [`heartbeat`], [`release`], [`want`], [`break_lock`] and
//! [`set_occurrence`]. It returns the row afterwards, whether the operation's write makes it, and the answer to the
//! caller. DynamoDB carries out the same rules as conditional writes (`expressions`), since only the table can decide.
//! Applied or refused, a write returns the old row, and the same function derives the answer from it. A property test
//! compares the two, and the model explores the functions.

mod occurrence;
#[cfg(test)]
mod tests;
pub mod together;
mod want;

use crate::model::{
    Acquire, Attributes, Break, CompletedTtl, Completion, DataChange, Disposal, Heartbeat, LeaseDuration, LeaseIdHash,
    LockKey, MAX_LEASE_MS, Occurrence, Principal, Release, Rvn, Sequence, Staleness,
};

pub use occurrence::{OccurrenceAnswer, set_occurrence};
pub use want::{WantAnswer, want};

/// Every number in a row is below 2^53 - 1, so that every JSON parser holds it and its successor exactly.
pub const NUMBER_LIMIT: u64 = (1 << 53) - 1;

/// The last fencing token whose successor is below [`NUMBER_LIMIT`].
pub(crate) const LAST_COUNTABLE_TOKEN: u64 = NUMBER_LIMIT - 2;

/// The longest lease of another client that is accepted, in decimal digits of milliseconds: thirty thousand years.
pub(crate) const MAX_LEASE_DIGITS: usize = 15;

/// `occurrenceSeconds` of a row that never expires: a hundred years, in which nobody comes back. An expression can add
/// a number to the clock, and cannot leave an attribute out.
pub(crate) const FOREVER_SECONDS: u64 = 100 * 366 * 24 * 3600;

/// The values that the service adds to a request: fresh for each attempt at a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The record version number that this attempt writes.
    pub rvn: String,
    /// The server's clock in epoch microseconds: the seed of a fencing token. Milliseconds would repeat a token where a
    /// row is deleted and created again within one millisecond.
    pub now_us: u64,
}

impl Stamp {
    /// The server's clock in epoch milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }
}

/// The two durations that an operator may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The time for which a row stays after its lease, before DynamoDB's TTL may delete it, in seconds: at most
    /// [`Self::MAX_RETENTION_SECONDS`]. Default: 7 days.
    pub retention_seconds: u64,
    /// The largest difference between the servers' clocks with which `staleness: "clock"` is safe, in milliseconds: at
    /// most [`Self::MAX_CLOCK_SKEW_MS`]. Default: 1000, far above the bound that Amazon Time Sync keeps.
    pub clock_skew_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { retention_seconds: 7 * 24 * 3600, clock_skew_ms: 1000 }
    }
}

impl Policy {
    /// Ten years: a longer retention is a mistake in the unit.
    pub const MAX_RETENTION_SECONDS: u64 = 10 * 366 * 24 * 3600;
    /// An hour: clocks that differ by more cannot be the base of any decision.
    pub const MAX_CLOCK_SKEW_MS: u64 = 3_600_000;

    /// The time at which TTL may delete the row, in epoch seconds. A renewal that keeps the row's lease does not know
    /// its length and assumes the longest: housekeeping may be late, never early.
    pub(crate) fn expire_at(&self, stamp: &Stamp, lease_ms: Option<u64>) -> u64 {
        (stamp.now_ms() + lease_ms.unwrap_or(MAX_LEASE_MS)).div_ceil(1000) + self.retention_seconds
    }

    /// The time before which the `expireAt` of a row must be that a sweep removes, in epoch seconds. The clock that
    /// wrote it may be behind.
    pub(crate) fn over_before(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.clock_skew_ms) / 1000
    }

    /// The time before which the `staleAt` of a stale lock must be, in epoch milliseconds.
    pub(crate) fn stale_before(&self, stamp: &Stamp) -> u64 {
        stamp.now_ms().saturating_sub(self.clock_skew_ms)
    }
}

/// Whether a sweep removes the row at this time, as TTL would. A row that another client overwrote in place carries the
/// expiry of the holder before it, and stays.
pub fn is_over(row: &Row, now_ms: u64, policy: &Policy) -> bool {
    row.is_ours() && row.expire_at.is_some_and(|at| at < policy.over_before(now_ms))
}

/// An attribute as stored in the table, where any client may have written it.
///
/// One rule for all rows: an operation requires the attributes that its decision or its answer rests on. One that is
/// missing or unreadable is then a [`CorruptRecord`]: never a default, never a free lock. Attributes that it does not
/// rest on are no obstacle.
///
/// The row of a lock may be a Java client's, which has few of these attributes, and DynamoDB decides a conditional
/// write by single attributes. An answer to an observer rests on owner, version, lease and fencing token; a release
/// rests on the hash of the lease id alone, so that a holder can release a damaged row. The row of a semaphore is
/// written by Leasehold alone, and each of its answers rests on all holders and tickets: all attributes are required.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Field<T> {
    /// Missing.
    Absent,
    /// Present, of the wrong type or out of range.
    Unreadable,
    /// Present and readable.
    Value(T),
}

impl<T> Field<T> {
    /// The value, if it is readable.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Unreadable => None,
        }
    }

    /// The value itself, if it is readable.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Unreadable => None,
        }
    }

    pub(crate) fn required(self, attribute: &'static str) -> Result<T, CorruptRecord> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Absent => Err(CorruptRecord::new(attribute, "missing")),
            Self::Unreadable => Err(CorruptRecord::new(attribute, "unreadable")),
        }
    }

    pub(crate) fn require(&self, attribute: &'static str) -> Result<&T, CorruptRecord> {
        self.as_ref().required(attribute)
    }

    pub(crate) fn optional(self, attribute: &'static str) -> Result<Option<T>, CorruptRecord> {
        match self {
            Self::Absent => Ok(None),
            field => field.required(attribute).map(Some),
        }
    }

    fn as_ref(&self) -> Field<&T> {
        match self {
            Self::Value(value) => Field::Value(value),
            Self::Absent => Field::Absent,
            Self::Unreadable => Field::Unreadable,
        }
    }
}

/// A row as stored, by Leasehold or by another client: no attribute is assumed to be present or valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The lock's key.
    pub key: LockKey,
    /// Whether `leaseholdKind` is present: the row is then no lock.
    pub other_kind: bool,
    /// `ownerName`.
    pub owner_name: Field<String>,
    /// `leaseDuration`, in milliseconds.
    pub lease_ms: Field<u64>,
    /// `leaseMs`: the same as a number, for the table's own arithmetic.
    pub lease_number: Option<u64>,
    /// `recordVersionNumber`.
    pub rvn: Field<String>,
    /// Whether `isReleased` is present; its value does not matter.
    pub released: bool,
    /// `data`; an empty value counts as present.
    pub data: Option<Vec<u8>>,
    /// `leaseIdHash`; absent where another client wrote the row.
    pub lease_id_hash: Option<LeaseIdHash>,
    /// `leaseVersion`: the record version number that came with `leaseIdHash`. A client that overwrites the row in
    /// place changes the record version number only, and so disowns the lease id.
    pub lease_version: Field<String>,
    /// `ownerPrincipal`: the principal that the lock is bound to.
    pub principal: Field<String>,
    /// `leaseSequence` and `leaseRequestId`: the last request that was carried out under the lease id. An unreadable
    /// one counts as none.
    pub sequence: Option<Sequence>,
    /// The acquisition before this one.
    pub previous: Previous,
    /// `endedVersion`: the record version number that the last release or break ended.
    pub ended_version: Option<String>,
    /// `brokenVersion`: the record version number of the last break, until the next grant.
    pub broken_version: Option<String>,
    /// `deletedVersion`: the record version number of the last tombstone, until a release or a break keeps the row.
    pub deleted_version: Option<String>,
    /// `runningOccurrence`: the occurrence that the last acquisition was for.
    pub occurrence: Option<String>,
    /// `completedOccurrence`: the occurrence that the last acquisition completed, where the row is released.
    pub completed_occurrence: Option<String>,
    /// `lastOccurrence`: the last occurrence that is done.
    pub last_occurrence: Field<String>,
    /// `occurrenceSeconds`: the time by which the row outlives others for that, in seconds.
    pub occurrence_seconds: Option<u64>,
    /// `leaseholdWanted`: the owner name of a waiter. It counts only as [`Row::wanted_by`] says.
    pub mark: Option<String>,
    /// `fencingToken`.
    pub fencing_token: Field<u64>,
    /// `staleAt`, in epoch milliseconds.
    pub stale_at: Option<u64>,
    /// `expireAt`, in epoch seconds.
    pub expire_at: Option<u64>,
    /// All other attributes.
    pub attributes: Attributes,
}

/// The acquisition before the current one, as the current one copied it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Previous {
    /// `previousLeaseIdHash`; equal to `leaseIdHash` after a renewal by acquire.
    pub lease_id_hash: Option<LeaseIdHash>,
    /// `previousOwnerName`; empty where there was no row.
    pub owner_name: Field<String>,
    /// Whether `previousReleased` says that the previous acquisition had ended.
    pub released: bool,
    /// `previousOccurrence`: the occurrence that the previous acquisition completed.
    pub occurrence: Option<String>,
}

impl Previous {
    /// The copy of the found row that an acquisition takes.
    fn of(row: Option<&Row>) -> Self {
        let owner_name = row.map_or(Field::Absent, |row| row.owner_name.clone());
        Self {
            lease_id_hash: row.and_then(|row| row.lease_id_hash.clone()),
            owner_name: if owner_name == Field::Absent { Field::Value(String::new()) } else { owner_name },
            released: row.is_some_and(|row| row.released),
            occurrence: row.and_then(|row| row.completed_occurrence.clone()).filter(|name| !name.is_empty()),
        }
    }

    /// The name, where there was an owner.
    fn owner(&self) -> Option<String> {
        self.owner_name.value().filter(|name| !name.is_empty()).cloned()
    }
}

/// The place of a request in the order of requests under its lease id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Higher than the last request that was carried out, or not numbered.
    New,
    /// The last request that was carried out.
    Repeat,
    /// Lower than the last request, or another request with the same number.
    Late,
}

/// Compares `new` with the last request that was carried out.
pub(crate) fn order(new: Option<&Sequence>, last: Option<&Sequence>) -> Order {
    match (new, last) {
        (Some(new), Some(last)) if new == last => Order::Repeat,
        (Some(new), Some(last)) if new.number() <= last.number() => Order::Late,
        _ => Order::New,
    }
}

/// The public view of a lock.
#[derive(Debug, Clone, PartialEq)]
pub struct LockView {
    /// The lock's key.
    pub key: LockKey,
    /// Held or released.
    pub state: LockState,
    /// The current holder, or the last one.
    pub owner_name: String,
    /// Changes with every acquire and heartbeat.
    pub rvn: String,
    /// The time without a change after which the lock is stale, in milliseconds.
    pub lease_ms: u64,
    /// Absent where another client wrote the row.
    pub fencing_token: Option<u64>,
    /// The occurrence that the current acquisition is for.
    pub occurrence: Option<String>,
    /// The last occurrence that is done.
    pub last_occurrence: Option<String>,
    /// The owner name of a waiter who asked the holder to give way.
    pub wanted_by: Option<String>,
    /// The payload.
    pub data: Option<Vec<u8>>,
    /// Further attributes.
    pub attributes: Attributes,
}

/// Whether a lock has a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockState {
    /// The lock has a holder, as far as the table knows. The holder may be dead.
    Held,
    /// The lock has no holder.
    Released,
}

/// A row that is not a readable lock record. It is never free, and an operator must look at it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("The record's {attribute} is {problem}.")]
pub struct CorruptRecord {
    attribute: &'static str,
    problem: &'static str,
}

impl CorruptRecord {
    pub(crate) const fn new(attribute: &'static str, problem: &'static str) -> Self {
        Self { attribute, problem }
    }
}

impl Row {
    /// Returns the public view of the lock.
    ///
    /// # Errors
    /// `CorruptRecord` where a part that observers need is missing or unreadable.
    pub fn lock(&self) -> Result<LockView, CorruptRecord> {
        let fencing_token = match self.fencing_token {
            Field::Absent => None,
            ref token => Some(*token.require("fencingToken")?),
        };
        Ok(LockView {
            key: self.key.clone(),
            state: if self.released { LockState::Released } else { LockState::Held },
            owner_name: self.owner_name.require("ownerName")?.clone(),
            rvn: self.rvn.require("recordVersionNumber")?.clone(),
            lease_ms: *self.lease_ms.require("leaseDuration")?,
            fencing_token,
            occurrence: self.occurrence.clone().filter(|_| !self.released),
            last_occurrence: self.last_occurrence.value().cloned(),
            wanted_by: self.wanted_by().cloned(),
            data: self.data.clone(),
            attributes: self.attributes.clone(),
        })
    }

    /// Whether the row is a tombstone, which reads as not there.
    pub fn is_deleted(&self) -> bool {
        self.released && self.deleted_version.as_deref().is_some_and(|version| self.has_rvn(version))
    }

    /// Whether the row is a lock that has a holder.
    pub(crate) fn is_held(&self) -> bool {
        !self.other_kind && !self.released
    }

    /// Whether an operator's break was the last write.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken_version.as_deref().is_some_and(|version| self.has_rvn(version))
    }

    /// Whether a later image of the held row shows the same grant, with heartbeats and marks at most in between.
    pub(crate) fn is_grant_of(&self, later: &Self) -> bool {
        (&self.owner_name, &self.fencing_token, &self.lease_id_hash, self.is_ours())
            == (&later.owner_name, &later.fencing_token, &later.lease_id_hash, later.is_ours())
    }

    /// Whether a later image of the held row shows the next grant to the same lease id, as [`acquire`] grants it.
    pub(crate) fn is_renewed_by(&self, later: &Self) -> bool {
        let is_admitted = match (&later.principal, &self.principal) {
            (Field::Value(later), Field::Value(own)) => later == own,
            (Field::Value(_), Field::Unreadable) => false,
            _ => true,
        };
        let is_same = self.lease_id_hash.is_some() && self.lease_id_hash == later.lease_id_hash;
        is_same && self.is_ours() && later.is_ours() && is_admitted
    }

    fn has_rvn(&self, rvn: &str) -> bool {
        self.rvn.value().is_some_and(|own| own == rvn)
    }

    /// Whether no other client overwrote the row since the hash of the lease id was written.
    fn is_ours(&self) -> bool {
        match &self.lease_version {
            Field::Absent => true,
            Field::Unreadable => false,
            Field::Value(version) => self.has_rvn(version),
        }
    }

    fn carries(&self, hash: &LeaseIdHash) -> bool {
        self.has_hash(hash) && self.is_ours()
    }

    fn has_hash(&self, hash: &LeaseIdHash) -> bool {
        self.lease_id_hash.as_ref() == Some(hash)
    }

    /// Whether the row's acquisition follows the one of this lease id.
    fn follows(&self, hash: &LeaseIdHash) -> bool {
        self.previous.lease_id_hash.as_ref() == Some(hash) && !self.has_hash(hash)
    }

    fn order(&self, sequence: Option<&Sequence>) -> Order {
        order(sequence, self.sequence.as_ref())
    }

    /// The outcome of the acquisition that wrote this row, and the owner before it.
    fn first_outcome(&self) -> (GrantOutcome, Option<String>) {
        let previous = &self.previous;
        let owner = previous.owner();
        if previous.lease_id_hash.is_some() && previous.lease_id_hash == self.lease_id_hash {
            (GrantOutcome::Renewed, None)
        } else if previous.released && self.deleted_version.is_some() {
            (GrantOutcome::Created, None)
        } else if previous.released {
            (GrantOutcome::Reacquired, owner)
        } else if owner.is_some() {
            (GrantOutcome::TakenOver, owner)
        } else {
            (GrantOutcome::Created, None)
        }
    }

    /// Whether `expected` is the version of the row, or the one whose end made the row.
    fn is_at(&self, expected: Option<&Rvn>) -> bool {
        expected.is_none_or(|rvn| {
            self.has_rvn(rvn.as_str()) || (self.released && self.ended_version.as_deref() == Some(rvn.as_str()))
        })
    }

    /// Whether the row is of the grant with this fencing token. True where none is given.
    fn is_of(&self, fencing_token: Option<u64>) -> bool {
        fencing_token.is_none_or(|token| self.fencing_token == Field::Value(token))
    }

    /// Whether the row is bound to no principal, or to this one. True where no principal is given.
    fn admits(&self, principal: Option<&Principal>) -> bool {
        principal.is_none_or(|principal| match &self.principal {
            Field::Absent => true,
            Field::Unreadable => false,
            Field::Value(owner) => owner == principal.as_str(),
        })
    }

    fn is_stale(&self, staleness: &Staleness, stamp: &Stamp, policy: &Policy) -> bool {
        match staleness {
            Staleness::Never => false,
            Staleness::Observed(rvn) => self.has_rvn(rvn.as_str()) && self.is_readable(),
            Staleness::ObservedAndClock(rvn) => {
                let is_past = self.stale_at.is_none_or(|at| at < policy.stale_before(stamp)) || !self.is_ours();
                self.has_rvn(rvn.as_str()) && self.is_readable() && is_past
            }
            Staleness::Clock => {
                self.stale_at.is_some_and(|at| at < policy.stale_before(stamp)) && self.is_ours() && self.is_readable()
            }
        }
    }

    /// Whether all parts that observers need are readable. A lock that observers cannot read cannot be taken over.
    fn is_readable(&self) -> bool {
        self.owner_name.value().is_some() && self.lease_ms.value().is_some()
    }

    /// Whether this lease id completed the occurrence, as far as the row remembers.
    fn was_completed_by(&self, hash: &LeaseIdHash, occurrence: &Occurrence) -> bool {
        let is_this = |name: &Option<String>| name.as_deref() == Some(occurrence.as_str());
        self.carries(hash) && self.released && is_this(&self.completed_occurrence)
            || self.follows(hash) && is_this(&self.previous.occurrence)
    }

    /// Whether this occurrence, or a later one, is done.
    fn has_done(&self, occurrence: &Occurrence) -> bool {
        self.last_occurrence.value().is_some_and(|last| last.as_str() >= occurrence.as_str())
    }

    /// Whether the row's acquisition is for this occurrence.
    fn runs(&self, occurrence: &Occurrence) -> bool {
        self.occurrence.as_deref() == Some(occurrence.as_str())
    }

    /// Whether the request is for no occurrence, or for one that is later than all that are done.
    fn is_due(&self, request: &Acquire) -> bool {
        request.once.as_ref().is_none_or(|once| match &self.last_occurrence {
            Field::Absent => true,
            Field::Unreadable => false,
            Field::Value(_) => !self.has_done(&once.occurrence),
        })
    }

    /// Whether the row's acquisition is for the occurrence of the request.
    fn is_for(&self, request: &Acquire) -> bool {
        request.once.as_ref().is_some_and(|once| self.runs(&once.occurrence))
    }

    /// The fencing token that the next grant counts from; `None` where there is none yet.
    pub(crate) fn countable_token(&self) -> Result<Option<u64>, CorruptRecord> {
        match self.fencing_token {
            Field::Absent => Ok(None),
            Field::Value(token) if token <= LAST_COUNTABLE_TOKEN => Ok(Some(token)),
            Field::Value(_) => Err(CorruptRecord::new("fencingToken", "used up")),
            Field::Unreadable => Err(CorruptRecord::new("fencingToken", "unreadable")),
        }
    }
}

/// The result of an acquire.
#[derive(Debug, Clone, PartialEq)]
pub enum AcquireAnswer {
    /// The caller holds the lock.
    Granted(Grant),
    /// Another holder has it.
    Held(LockView),
    /// Another holder has it, and the clock cannot judge the row: only a caller that observed the row can take it over.
    HeldBeyondClocks(LockView),
    /// The acquisition of this lease id has ended. A lease id is valid for one acquisition.
    Lost(Lost),
    /// The caller holds the lock, and has sent a later request.
    Superseded(Superseded),
    /// The occurrence, or a later one, is done. Contains the public view of the row, if it is readable and no
    /// tombstone.
    AlreadyDone(Option<LockView>),
    /// The row does not exist, and the request must not create it.
    NotFound,
    /// The row is no lock.
    WrongKind,
}

/// A grant of a lock.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// The row as it is now.
    pub row: Row,
    /// The outcome of the acquire.
    pub outcome: GrantOutcome,
    /// Higher than every token granted for this key before.
    pub fencing_token: u64,
    /// The previous owner, if it was another acquisition.
    pub previous_owner_name: Option<String>,
}

/// The outcome of an acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GrantOutcome {
    /// There was no row.
    Created,
    /// The row was released.
    Reacquired,
    /// The row was held and stale.
    TakenOver,
    /// The row was already held by this lease id.
    Renewed,
}

/// The result of a heartbeat.
#[derive(Debug, Clone, PartialEq)]
pub enum HeartbeatAnswer {
    /// The lease starts anew. Contains the row after the write.
    Renewed(Row),
    /// The caller no longer holds the lock.
    Lost(Lost),
    /// The caller holds the lock, and has sent a later request.
    Superseded(Superseded),
    /// The lease id is right, but the lock is bound to another principal. The caller has lost nothing.
    Forbidden,
    /// The row is no lock.
    WrongKind,
}

/// A later request under the lease id was carried out. This one changed nothing, and the lock is not lost.
#[derive(Debug, Clone, PartialEq)]
pub struct Superseded {
    /// The number of the last request that was carried out.
    pub sequence: u64,
    /// The record version number of the row.
    pub rvn: Option<String>,
    /// The fencing token of the row.
    pub fencing_token: Option<u64>,
    /// The public view of the row, if it is readable.
    pub lock: Option<LockView>,
}

/// The caller does not hold the lock.
#[derive(Debug, Clone, PartialEq)]
pub struct Lost {
    /// The reason.
    pub reason: LostReason,
    /// The public view of the row, if it exists and is readable.
    pub lock: Option<LockView>,
}

/// The reason why the caller does not hold a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// The row does not exist.
    Absent,
    /// The lock was released under this lease id, or broken by an operator.
    Released,
    /// Another acquisition has it, or had it since.
    TakenOver,
    /// The lease id is right, but the record version number is not the expected one.
    VersionMismatch,
    /// The lease id has a ticket in a semaphore's queue, and no permits.
    Queued,
    /// The ticket that the request names is not in the semaphore's queue.
    NotQueued,
}

/// The result of a release.
#[derive(Debug, Clone, PartialEq)]
pub enum ReleaseAnswer {
    /// This lease id no longer holds the lock.
    Done(Released),
    /// The caller did not hold the lock.
    Lost(Lost),
    /// The caller holds the lock, and did not acquire it for the occurrence that the release completes. Nothing is
    /// lost.
    OtherOccurrence,
    /// The lease id is right, but the lock is bound to another principal.
    Forbidden,
    /// The row is no lock.
    WrongKind,
}

/// A lock without a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The outcome of the release or break.
    pub outcome: ReleaseOutcome,
    /// The last owner.
    pub owner_name: Option<String>,
    /// Whether somebody waits for the lock. Only the request that released the lock knows that nobody does: true where
    /// an earlier request did.
    pub wanted: bool,
}

/// The outcome of a release or break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// This request released the lock.
    Released,
    /// An earlier request released it.
    Replayed,
    /// The row does not exist.
    Absent,
}

/// The result of a break.
#[derive(Debug, Clone, PartialEq)]
pub enum BreakAnswer {
    /// The lock has no holder: this request (`Released`) or an earlier one (`Replayed`) ended it.
    Done(Released),
    /// The row changed since the operator read it, or does not exist.
    VersionMismatch(Option<LockView>),
    /// The row is no lock.
    WrongKind,
}

/// The effect of a request on a lock, and the answer. The write of a lock's operation is always that operation's own.
pub type Step<A> = crate::step::Step<Row, (), A>;

/// Rules 2, 9 and 11. Grants a lock that has no row, is released, or is stale, to a lease id that the row does not
/// remember. Grants a lock that this same lease id holds to a request that is new. An acquisition for an occurrence
/// also needs that the row records neither the occurrence nor a later one as done.
///
/// # Errors
/// `CorruptRecord` where the row is unreadable: an unreadable row is never taken for free.
pub fn acquire(
    row: Option<&Row>,
    request: &Acquire,
    stamp: &Stamp,
    policy: &Policy,
) -> Result<Step<AcquireAnswer>, CorruptRecord> {
    if let Some(answer) = refusal(row, request, stamp, policy)? {
        return Ok(Step::kept(row.cloned(), answer));
    }
    let grant = grant(row, request, stamp, policy)?;
    Ok(Step::made(grant.row.clone(), (), AcquireAnswer::Granted(grant)))
}

/// Returns the answer to an acquire that changes nothing: a refusal, or, for a repeat, the grant of the first attempt.
/// Returns nothing where the lock is granted.
fn refusal(
    row: Option<&Row>,
    request: &Acquire,
    stamp: &Stamp,
    policy: &Policy,
) -> Result<Option<AcquireAnswer>, CorruptRecord> {
    let hash = request.lease_id.hash();
    let Some(row) = row else {
        return Ok(request.only_if_exists.then_some(AcquireAnswer::NotFound));
    };
    if row.other_kind {
        return Ok(Some(AcquireAnswer::WrongKind));
    }
    let ended = |reason| Ok(Some(AcquireAnswer::Lost(Lost { reason, lock: shown(row) })));
    if row.released && row.has_hash(&hash) {
        return ended(LostReason::Released);
    }
    if row.follows(&hash) {
        return ended(if row.previous.released { LostReason::Released } else { LostReason::TakenOver });
    }
    if row.is_deleted() && request.only_if_exists {
        return Ok(Some(AcquireAnswer::NotFound));
    }
    let is_own = !row.released && is_renewal(row, request);
    let order = if is_own { row.order(request.sequence.as_ref()) } else { Order::New };
    let is_due = row.is_due(request) || is_own && row.is_for(request);
    let is_takable = row.released || is_own || row.is_stale(&request.staleness, stamp, policy);
    if order == Order::New && is_due && is_takable && row.countable_token().is_ok() {
        return Ok(None);
    }
    let lock = row.lock();
    if is_own {
        lock.clone()?;
    }
    match order {
        Order::New => {}
        Order::Repeat => return Ok(Some(AcquireAnswer::Granted(granted_before(row)?))),
        Order::Late => return Ok(Some(AcquireAnswer::Superseded(superseded(row)))),
    }
    if !is_due {
        row.last_occurrence.require("lastOccurrence")?;
        return Ok(Some(AcquireAnswer::AlreadyDone(shown(row))));
    }
    let lock = lock?;
    row.countable_token()?;
    let is_beyond_clocks = request.staleness == Staleness::Clock && (row.stale_at.is_none() || !row.is_ours());
    Ok(Some(if is_beyond_clocks { AcquireAnswer::HeldBeyondClocks(lock) } else { AcquireAnswer::Held(lock) }))
}

/// Returns the grant that an acquire makes of `old`.
///
/// # Errors
/// `CorruptRecord` where no token can be counted from the old fencing token.
fn grant(old: Option<&Row>, request: &Acquire, stamp: &Stamp, policy: &Policy) -> Result<Grant, CorruptRecord> {
    let hash = request.lease_id.hash();
    let outcome = match old {
        None => GrantOutcome::Created,
        Some(row) if row.is_deleted() => GrantOutcome::Created,
        Some(row) if row.released => GrantOutcome::Reacquired,
        Some(row) if is_renewal(row, request) => GrantOutcome::Renewed,
        Some(_) => GrantOutcome::TakenOver,
    };
    let fencing_token = old.map(Row::countable_token).transpose()?.flatten().unwrap_or(stamp.now_us) + 1;
    let old_data = old.and_then(|row| row.data.clone());
    let new_data = request.data.as_ref().map(|data| data.as_bytes().to_vec());
    let mut attributes = old.filter(|row| !row.is_deleted()).map(|row| row.attributes.clone()).unwrap_or_default();
    attributes.extend(request.attributes.clone());
    let lease_ms = request.lease_duration.as_millis();
    let once = request.once.as_ref();
    let occurrence = once.map(|once| once.occurrence.as_str().to_owned());
    let (last_occurrence, occurrence_seconds, expire_at) = match once {
        Some(once) if once.at_most_once => {
            (Field::Value(once.occurrence.as_str().to_owned()), Some(FOREVER_SECONDS), None)
        }
        _ => {
            let last = old.map_or(Field::Absent, |row| row.last_occurrence.clone());
            let seconds = old.and_then(|row| row.occurrence_seconds);
            (last, seconds, Some(expiry(seconds, policy.expire_at(stamp, Some(lease_ms)))))
        }
    };
    Ok(Grant {
        row: Row {
            key: request.key.clone(),
            other_kind: false,
            owner_name: Field::Value(request.owner_name.as_str().to_owned()),
            lease_ms: Field::Value(lease_ms),
            lease_number: Some(lease_ms),
            rvn: Field::Value(stamp.rvn.clone()),
            released: false,
            data: if request.replace_data { new_data.or(old_data) } else { old_data.or(new_data) },
            lease_id_hash: Some(hash),
            lease_version: Field::Value(stamp.rvn.clone()),
            principal: request
                .principal
                .as_ref()
                .map_or(Field::Absent, |principal| Field::Value(principal.as_str().to_owned())),
            sequence: request.sequence.clone(),
            previous: Previous::of(old),
            ended_version: old.and_then(|row| row.ended_version.clone()),
            broken_version: None,
            deleted_version: old.and_then(|row| row.deleted_version.clone()),
            mark: None,
            fencing_token: Field::Value(fencing_token),
            stale_at: Some(stamp.now_ms() + lease_ms),
            expire_at,
            occurrence,
            completed_occurrence: None,
            last_occurrence,
            occurrence_seconds,
            attributes,
        },
        outcome,
        fencing_token,
        previous_owner_name: match outcome {
            GrantOutcome::Created | GrantOutcome::Renewed => None,
            GrantOutcome::Reacquired | GrantOutcome::TakenOver => Previous::of(old).owner(),
        },
    })
}

/// Returns the grant that answered the last request under the row's lease id.
fn granted_before(row: &Row) -> Result<Grant, CorruptRecord> {
    let (outcome, previous_owner_name) = row.first_outcome();
    let fencing_token = *row.fencing_token.require("fencingToken")?;
    Ok(Grant { row: row.clone(), outcome, fencing_token, previous_owner_name })
}

fn superseded(row: &Row) -> Superseded {
    Superseded {
        sequence: row.sequence.as_ref().map_or(0, Sequence::number),
        rvn: row.rvn.value().cloned(),
        fencing_token: row.fencing_token.value().copied(),
        lock: shown(row),
    }
}

/// The public view of the row, if it is readable and no tombstone.
fn shown(row: &Row) -> Option<LockView> {
    if row.is_deleted() { None } else { row.lock().ok() }
}

/// Rules 3 and 9. The row must carry this lease id, be bound to no other principal, not be released, have carried out
/// no later request, and (if given) have this record version number. `issued` are the versions that earlier attempts at
/// the same request may have written.
pub fn heartbeat(
    row: Option<&Row>,
    request: &Heartbeat,
    stamp: &Stamp,
    issued: &[String],
    policy: &Policy,
) -> Step<HeartbeatAnswer> {
    let hash = request.lease_id.hash();
    let kept = |answer| Step::kept(row.cloned(), answer);
    if is_other_kind(row) {
        return kept(HeartbeatAnswer::WrongKind);
    }
    if is_bound_to_another(row, &hash, request.principal.as_ref()) {
        return kept(HeartbeatAnswer::Forbidden);
    }
    let Some(held) = row.filter(|row| row.carries(&hash) && !row.released) else {
        return kept(HeartbeatAnswer::Lost(lost(row, &hash)));
    };
    if !held.is_of(request.fencing_token) {
        return kept(HeartbeatAnswer::Lost(Lost { reason: LostReason::TakenOver, lock: shown(held) }));
    }
    match held.order(request.sequence.as_ref()) {
        Order::Late => return kept(HeartbeatAnswer::Superseded(superseded(held))),
        Order::Repeat => return kept(HeartbeatAnswer::Renewed(held.clone())),
        // An earlier attempt was applied, and its answer was lost: rule 5.
        Order::New if issued.iter().any(|version| held.has_rvn(version)) => {
            return kept(HeartbeatAnswer::Renewed(held.clone()));
        }
        Order::New => {}
    }
    if !held.is_at(request.expected.as_ref()) {
        return kept(HeartbeatAnswer::Lost(lost(row, &hash)));
    }
    let renewed = renewed(held, request, stamp, policy);
    Step::made(renewed.clone(), (), HeartbeatAnswer::Renewed(renewed))
}

/// Returns the row that a heartbeat makes of `old`.
fn renewed(old: &Row, request: &Heartbeat, stamp: &Stamp, policy: &Policy) -> Row {
    let new_lease_ms = request.lease_duration.map(LeaseDuration::as_millis);
    let mut row = old.clone();
    if let Some(lease_ms) = new_lease_ms {
        row.lease_ms = Field::Value(lease_ms);
        row.lease_number = Some(lease_ms);
    }
    match &request.data {
        DataChange::Keep => {}
        DataChange::Set(data) => row.data = Some(data.as_bytes().to_vec()),
        DataChange::Delete => row.data = None,
    }
    row.rvn = Field::Value(stamp.rvn.clone());
    row.lease_version = Field::Value(stamp.rvn.clone());
    if request.sequence.is_some() {
        row.sequence.clone_from(&request.sequence);
    }
    row.stale_at = Some(stamp.now_ms() + row.lease_number.unwrap_or(MAX_LEASE_MS));
    row.expire_at = Some(expiry(row.occurrence_seconds, policy.expire_at(stamp, new_lease_ms)));
    row
}

/// Rules 4 and 10. The row must carry this lease id, be bound to no other principal, and (if given) have this record
/// version number. A release that completes an occurrence must name the one that the acquisition is for.
pub fn release(row: Option<&Row>, request: &Release, stamp: &Stamp, policy: &Policy) -> Step<ReleaseAnswer> {
    let hash = request.lease_id.hash();
    let is_holders = |row: &&Row| !row.other_kind && row.carries(&hash) && row.admits(request.principal.as_ref());
    let permitted = row.filter(is_holders).filter(|row| row.is_at(request.expected.as_ref())).filter(|row| {
        match request.disposal {
            // A row that is already released cannot be released again, but may still be deleted.
            Disposal::Keep(_) => !row.released,
            Disposal::Complete(ref done, _) => !row.released && row.runs(&done.occurrence),
            Disposal::Delete => !row.is_deleted(),
        }
    });
    let Some(row) = permitted else {
        return Step::kept(row.cloned(), release_refusal(row, request));
    };
    let next = released_row(row, stamp, policy);
    let next = match &request.disposal {
        Disposal::Keep(None) | Disposal::Complete(_, None) => next,
        Disposal::Keep(Some(data)) | Disposal::Complete(_, Some(data)) => {
            Row { data: Some(data.as_bytes().to_vec()), ..next }
        }
        Disposal::Delete => Row { data: None, mark: None, deleted_version: Some(stamp.rvn.clone()), ..next },
    };
    let next = match &request.disposal {
        Disposal::Complete(done, _) => {
            let name = done.occurrence.as_str().to_owned();
            let seconds = done.ttl.map(CompletedTtl::as_seconds);
            Row {
                last_occurrence: Field::Value(name.clone()),
                completed_occurrence: Some(name),
                occurrence_seconds: Some(seconds.unwrap_or(FOREVER_SECONDS)),
                expire_at: seconds.map(|seconds| policy.expire_at(stamp, None) + seconds),
                ..next
            }
        }
        Disposal::Keep(_) | Disposal::Delete => next,
    };
    Step::made(next, (), ReleaseAnswer::Done(release_result(row)))
}

/// Returns the answer to a release or a break that was applied to `old`, or that finds `old` already released.
fn release_result(old: &Row) -> Released {
    Released {
        outcome: if old.released { ReleaseOutcome::Replayed } else { ReleaseOutcome::Released },
        owner_name: old.owner_name.value().cloned(),
        wanted: old.released || old.wanted_by().is_some(),
    }
}

/// Returns the answer to a release that changes nothing: it was done before, or the caller does not hold the lock.
fn release_refusal(old: Option<&Row>, request: &Release) -> ReleaseAnswer {
    let hash = request.lease_id.hash();
    let done = |outcome, owner_name| ReleaseAnswer::Done(Released { outcome, owner_name, wanted: true });
    if is_other_kind(old) {
        return ReleaseAnswer::WrongKind;
    }
    if let Disposal::Complete(Completion { occurrence, .. }, _) = &request.disposal {
        let is_held = |row: &&Row| row.carries(&hash) && !row.released && row.is_at(request.expected.as_ref());
        if is_bound_to_another(old, &hash, request.principal.as_ref()) {
            return ReleaseAnswer::Forbidden;
        }
        if old.filter(is_held).is_some_and(|row| !row.runs(occurrence)) {
            return ReleaseAnswer::OtherOccurrence;
        }
        // The lock may be free, and the occurrence done: by another run.
        if !old.is_some_and(|row| row.was_completed_by(&hash, occurrence)) {
            return ReleaseAnswer::Lost(lost(old, &hash));
        }
    }
    match old {
        None => done(ReleaseOutcome::Absent, None),
        Some(row) if row.is_deleted() => done(ReleaseOutcome::Absent, None),
        _ if is_bound_to_another(old, &hash, request.principal.as_ref()) => ReleaseAnswer::Forbidden,
        Some(row) if row.carries(&hash) && row.released => ReleaseAnswer::Done(release_result(row)),
        Some(row) if row.follows(&hash) && row.previous.released => {
            done(ReleaseOutcome::Replayed, row.previous.owner())
        }
        _ => ReleaseAnswer::Lost(lost(old, &hash)),
    }
}

/// The operator's release. Its only condition is the record version number that the operator saw, so it works on a row
/// whose lease is unreadable.
pub fn break_lock(row: Option<&Row>, request: &Break, stamp: &Stamp, policy: &Policy) -> Step<BreakAnswer> {
    let answer = match row {
        _ if is_other_kind(row) => BreakAnswer::WrongKind,
        Some(row) if row.is_deleted() => BreakAnswer::VersionMismatch(None),
        Some(row) if !row.released && row.has_rvn(request.seen.as_str()) => {
            let broken = Row { broken_version: Some(stamp.rvn.clone()), ..released_row(row, stamp, policy) };
            return Step::made(broken, (), BreakAnswer::Done(release_result(row)));
        }
        Some(row) if row.released && row.is_at(Some(&request.seen)) => BreakAnswer::Done(release_result(row)),
        // This version was ended before.
        Some(row) if row.ended_version.as_deref() == Some(request.seen.as_str()) => {
            BreakAnswer::Done(Released { outcome: ReleaseOutcome::Replayed, owner_name: None, wanted: true })
        }
        _ => BreakAnswer::VersionMismatch(row.and_then(|row| row.lock().ok())),
    };
    Step::kept(row.cloned(), answer)
}

/// Returns the reason why the lock of this lease id is lost.
pub fn lost(old: Option<&Row>, hash: &LeaseIdHash) -> Lost {
    let reason = match old {
        None => LostReason::Absent,
        Some(row) if row.is_deleted() => LostReason::Absent,
        Some(row) if !row.carries(hash) => LostReason::TakenOver,
        Some(row) if row.released => LostReason::Released,
        Some(_) => LostReason::VersionMismatch,
    };
    Lost { reason, lock: old.and_then(shown) }
}

/// Whether the caller already holds the lock.
fn is_renewal(row: &Row, request: &Acquire) -> bool {
    row.carries(&request.lease_id.hash()) && row.admits(request.principal.as_ref())
}

fn is_other_kind(row: Option<&Row>) -> bool {
    row.is_some_and(|row| row.other_kind)
}

/// Whether the lease id is the row's, and the principal is not.
fn is_bound_to_another(row: Option<&Row>, hash: &LeaseIdHash, principal: Option<&Principal>) -> bool {
    row.is_some_and(|row| row.carries(hash) && !row.admits(principal))
}

/// The row after a release or a break. Its new version fails a takeover by an observer who judged the old version
/// stale.
fn released_row(row: &Row, stamp: &Stamp, policy: &Policy) -> Row {
    let ended_version = match &row.rvn {
        Field::Absent => Some(String::new()),
        rvn => rvn.value().cloned(),
    };
    Row {
        released: true,
        rvn: Field::Value(stamp.rvn.clone()),
        lease_version: Field::Value(stamp.rvn.clone()),
        ended_version,
        deleted_version: None,
        expire_at: Some(expiry(row.occurrence_seconds, policy.expire_at(stamp, None))),
        ..row.clone()
    }
}

/// The time at which TTL may delete a row that would otherwise expire at this time.
fn expiry(occurrence_seconds: Option<u64>, at: u64) -> u64 {
    at + occurrence_seconds.unwrap_or(0)
}
