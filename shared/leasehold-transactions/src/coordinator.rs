//! The transaction protocol. Any number of coordinators may drive the same transaction at the same time, and each may
//! stop at any point.
//!
//! ```text
//! TX record   pending ────────► committed | rolled-back ────────► finished
//! item        locked and changed by the holder ─────────────────► free
//! ```
//!
//! | step | the writes | only while |
//! |---|---|---|
//! | add | one TransactWriteItems call: the TX record takes in the entries; each item is locked, and changed with its undo | `pending`, this version, this nonce; each item free or ours as seen; all conditions hold |
//! | apply | for each put on an item that was there: one plain write, with the image of what it replaces | the exact lock that was seen |
//! | decide | one plain write of the TX record | `pending`, this version, this nonce; to commit, no put unapplied |
//! | free | for each item one plain write; 25 in a call | the exact lock that was seen |
//! | finish | one plain write takes the TX record out of the sweep index, and gives it an end | this nonce |
//!
//! The undo is part of the item: `SET leaseholdTxUndo_balance = if_not_exists(balance, :nothing), balance = :new` keeps
//! the old value in the write that changes it, because an update expression takes its operands from the old item. A put
//! replaces all attributes, so no expression can keep them. A put therefore locks the item first, reads the content,
//! which can no longer change, and then replaces it.
//!
//! # Why it is safe
//!
//! 1. **Pending.** An item is locked only in a write that also checks that its transaction is pending. After the
//!    decision no item joins.
//! 2. **Version.** The decision is conditional on the version whose entries the decider has read. The decider therefore
//!    frees all items.
//! 3. **Unapplied.** The write that locks for a put adds the version to the TX record's list of unapplied versions. The
//!    version is removed after its puts are applied. A commit is refused while the list has a version, so a committed
//!    put is never missing.
//! 4. **Seen.** Every write by the holder gives the lock a new value. A write that is conditional on the value that was
//!    read finds the item exactly as it was read, or does nothing. This holds for a late write, a repeated one, and one
//!    beside another coordinator.
//! 5. **Nonce.** The id of a transaction can be used again after its record was removed. The nonce in rows, locks and
//!    conditions separates the remains of one life from the next.
//!
//! A put is applied by a write that does not check the TX record. It may land after the transaction was rolled back.
//! But then it changes the lock, so that a coordinator that frees the item on the condition of the old lock reads again
//! and finds the image.
//!
//! No clock decides anything about safety: patience, idleness and age only choose when a pending transaction is rolled
//! back, which is always safe. A transaction is idle where one process saw its record unchanged for long enough, by its
//! own monotonic clock. No time that another process wrote is compared with a clock.

use crate::error::Error;

/// TransactWriteItems takes 4 MB. Sizes here are estimates.
pub(crate) const MAX_BYTES: usize = 3_500_000;

/// The maximum number of writes in one TransactWriteItems call.
pub(crate) const MAX_WRITES: usize = 100;

/// The durations that an operator may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The time without a sign of life after which a transaction is rolled back by another one that needs one of its
    /// items, in milliseconds: at most [`Self::MAX_PATIENCE_MS`]. Default: 1000.
    pub patience_ms: u64,
    /// The time for which a call tries to get items that other transactions hold, in milliseconds: any time that the
    /// front of the service allows a call. Default: 10,000.
    pub contention_ms: u64,
    /// The time without work on a transaction after which a sweeper rolls it back, in milliseconds: at most a day
    /// ([`Self::MAX_IDLE_SECONDS`]). Default: 60,000.
    pub idle_ms: u64,
    /// The time for which the outcome of a transaction is kept, in milliseconds: at least an hour
    /// ([`Self::MIN_RETENTION_SECONDS`]). Default: 7 days.
    pub retention_ms: u64,
    /// Whether the items of a decided transaction may be freed behind the answer, in a task of the process: a commit
    /// waits for them for 200 ms. Otherwise they are freed before it, for at most a second, since a function does not
    /// run between its calls. Default: false.
    pub frees_behind_answers: bool,
}

impl Policy {
    /// A day: an item that stays locked for longer is as good as lost.
    pub const MAX_IDLE_SECONDS: u64 = 24 * 3600;

    /// Longer than the time for which any call tries to get an item.
    pub const MAX_PATIENCE_MS: u64 = 10_000;

    /// An hour: longer than any late copy of a write is under way.
    pub const MIN_RETENTION_SECONDS: u64 = 3600;
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            patience_ms: 1000,
            contention_ms: 10_000,
            idle_ms: 60_000,
            retention_ms: 7 * 24 * 3_600_000,
            frees_behind_answers: false,
        }
    }
}

/// The result of a step.
#[derive(Debug)]
pub(crate) enum StepResult {
    /// The step is done.
    Done,
    /// The view of the transaction is stale: read it again.
    Stale,
    /// A temporary obstacle stopped the step: retry it.
    Again,
    /// Another transaction was in the way. It was given time, or the conflict with it was resolved.
    Waited,
    /// The step is impossible: the transaction must be rolled back with this error.
    Abort(Error),
}
