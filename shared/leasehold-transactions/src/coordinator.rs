//! How a transaction is carried out. Any number of coordinators may drive the same one at the same time, and each may stop
//! anywhere.
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
//! The undo stands in the item: `SET leaseholdTxUndo_balance = if_not_exists(balance, :nothing), balance = :new` keeps the old
//! value in the write that changes it, because the operands of an update expression are taken from the item as it was. A put
//! replaces all attributes, so no expression can keep them. It locks the item first, reads what nobody changes any more, and
//! then replaces it.
//!
//! # Why it is safe
//!
//! 1. **Pending.** An item is locked only in a write that also checks that its transaction is pending. After the decision
//!    nothing joins.
//! 2. **Version.** The decision is on condition of the version whose entries the decider has read. What it frees is all there
//!    is.
//! 3. **Unapplied.** The version whose puts are not applied is named in the TX record by the write that locks, and taken away
//!    after they are. A commit is refused while one is named, so a committed put is never missing.
//! 4. **Seen.** Every write by the holder gives the lock a value that it never had. A write on the condition of the value that
//!    was seen finds the item exactly as it was read, or does nothing: late, twice, or beside another coordinator.
//! 5. **Nonce.** The id of a transaction can be used again after its record was removed. The nonce in rows, locks and
//!    conditions keeps what is left of one life from the next.
//!
//! A put is applied by a write that does not check the TX record. It may land after the transaction was rolled back, but then
//! it changes the lock, so that whoever frees the item on the condition of the old lock looks again and finds the image.
//!
//! No clock decides anything that matters: patience, idleness and age only choose when a pending transaction is rolled back,
//! which is always safe.

use leasehold_dynamodb::Clock;

use crate::error::Error;
use crate::key::ItemKey;
use crate::model::{PublicId, State};
use crate::record::{Record, Transaction, record_key};
use crate::tables::Tables;

/// TransactWriteItems takes 4 MB. Sizes here are estimates.
pub(crate) const MAX_BYTES: usize = 3_500_000;

/// TransactWriteItems takes so many writes.
pub(crate) const MAX_WRITES: usize = 100;

/// Rows of entries and images live at least this long, whatever the retention of outcomes is: a week, in which some sweeper
/// prolongs those of an unfinished transaction.
const MIN_ROW_LIFE_MS: u64 = 7 * 24 * 3_600_000;

/// How the transactions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a transaction that has an item is left in peace, if it shows no sign of life, before another one that needs
    /// the item rolls it back. Default: 1 s.
    pub patience_ms: u64,
    /// How long a call tries to get items that other transactions have. Default: 10 s.
    pub contention_ms: u64,
    /// How long nobody must have worked on a transaction before a sweeper rolls it back. Default: 60 s.
    pub idle_ms: u64,
    /// How long the outcome of a transaction is kept. Default: 7 days.
    pub retention_ms: u64,
}

impl Policy {
    /// A day: an item that is locked for longer is as good as lost.
    pub const MAX_IDLE_SECONDS: u64 = 24 * 3600;

    /// Longer than any call tries to get an item.
    pub const MAX_PATIENCE_MS: u64 = 10_000;
}

impl Default for Policy {
    fn default() -> Self {
        Self { patience_ms: 1000, contention_ms: 10_000, idle_ms: 60_000, retention_ms: 7 * 24 * 3_600_000 }
    }
}

/// Transactions over one transactions table. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transactions {
    pub(crate) tables: Tables,
    pub(crate) policy: Policy,
    pub(crate) clock: Clock,
    /// Tables that no transaction may touch.
    pub(crate) protected: Vec<String>,
}

/// The result of a step.
#[derive(Debug)]
pub(crate) enum Step {
    /// It is done.
    Done,
    /// The transaction is not what it was taken for: look again.
    Stale,
    /// Something was in the way that may be gone by now: try again.
    Again,
    /// Another transaction was in the way, and was given time or moved out of it.
    Waited,
    /// It cannot be done: the transaction must be rolled back with this error.
    Abort(Error),
}

impl Transactions {
    /// Loads a transaction that is open.
    pub(crate) async fn open(&self, id: &PublicId) -> Result<Transaction, Error> {
        let transaction = self.tables.load(id).await?.ok_or(Error::NotFound)?;
        match transaction.record.state {
            State::Pending => Ok(transaction),
            State::Committed => Err(Error::Committed),
            State::RolledBack => Err(rolled_back(&transaction.record)),
        }
    }

    /// A transaction that has no record yet.
    pub(crate) fn new_record(&self, id: PublicId) -> Record {
        let now = self.clock.now_ms();
        // Sixty-four random bits tell the lives of an id.
        let nonce = leasehold_dynamodb::fresh_uuid()[..18].replace('-', "");
        Record::new(id, nonce, now, now + self.policy.idle_ms)
    }

    /// When what ends now may be forgotten, in epoch seconds.
    pub(crate) fn forget_at(&self) -> u64 {
        (self.clock.now_ms() + self.policy.retention_ms) / 1000
    }

    /// When TTL may remove rows of entries and images that are written now, in epoch seconds. They have an end from the start
    /// because the finished transaction pays for no write to each of them; a sweeper prolongs those of an unfinished one.
    pub(crate) fn rows_expire_at(&self) -> u64 {
        (self.clock.now_ms() + self.row_life_ms()) / 1000
    }

    pub(crate) fn row_life_ms(&self) -> u64 {
        self.policy.retention_ms.max(MIN_ROW_LIFE_MS)
    }

    pub(crate) fn record_item(&self, id: &PublicId) -> ItemKey {
        ItemKey::new(&self.tables.own, record_key(id))
    }
}

/// The answer to whoever comes after a rollback.
pub(crate) fn rolled_back(record: &Record) -> Error {
    if record.is_tombstone {
        return Error::NotFound;
    }
    Error::RolledBack { reason: record.reason.clone().unwrap_or_else(|| "it was asked for.".to_owned()) }
}
