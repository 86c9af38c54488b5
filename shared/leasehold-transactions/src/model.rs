//! What callers ask for, and what they are told.

use std::collections::HashMap;
use std::fmt;

use leasehold_dynamodb::fresh_uuid;
use sha2::{Digest, Sha256};

use crate::attributes::Item;
use crate::error::Error;
use crate::key::ItemKey;

/// The caller's name for a transaction: a UUID, and a secret. Whoever knows it may add to the transaction and end it.
///
/// It is stored nowhere: rows, locks, logs and refusals of other callers carry the [`PublicId`] that is derived from
/// it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TransactionId(String);

impl TransactionId {
    /// Draws a new one.
    pub fn fresh() -> Self {
        Self(fresh_uuid())
    }

    /// Reads a UUID, in any of the forms that UUIDs are written in.
    ///
    /// # Errors
    /// `InvalidRequest` for what is no UUID.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let uuid = uuid::Uuid::parse_str(text);
        uuid.map(|uuid| Self(uuid.hyphenated().to_string()))
            .map_err(|_| Error::invalid("transactionId", "transactionId must be a UUID."))
    }

    /// The secret as a text, for an answer to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The name that others may see.
    pub fn public(&self) -> PublicId {
        let hash = Sha256::digest(format!("leasehold transaction {}", self.0));
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        PublicId(uuid::Builder::from_custom_bytes(bytes).into_uuid().hyphenated().to_string())
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransactionId(of {})", self.public())
    }
}

/// The name of a transaction that others may see: a UUID derived from the [`TransactionId`] by SHA-256. It proves
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicId(String);

impl PublicId {
    /// Reads a UUID.
    ///
    /// # Errors
    /// `InvalidRequest` for what is no UUID.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let uuid = uuid::Uuid::parse_str(text);
        uuid.map(|uuid| Self(uuid.hyphenated().to_string()))
            .map_err(|_| Error::invalid("publicId", "publicId must be a UUID."))
    }

    /// As it stands in a table.
    pub(crate) fn stored(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PublicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One operation on one item, as an entry of TransactWriteItems or TransactGetItems says it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The table's name.
    pub table: String,
    /// What is to be done.
    pub action: Action,
    /// What must hold of the item as it was when the transaction locked it.
    pub condition: Option<String>,
    /// `ExpressionAttributeNames`, for all expressions of this request.
    pub names: HashMap<String, String>,
    /// `ExpressionAttributeValues`, likewise.
    pub values: Item,
    /// What to answer with.
    pub return_values: ReturnValues,
    /// Whether a failed condition is answered with the item as it is.
    pub return_item_on_failure: bool,
}

/// What is to be done with an item.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Lock and read it.
    Get {
        /// Its key.
        key: Item,
        /// Which paths to answer with; all, if there is none.
        projection: Option<String>,
    },
    /// Put this in its place.
    Put {
        /// The whole item, key included.
        item: Item,
    },
    /// Change it, or make it.
    Update {
        /// Its key.
        key: Item,
        /// The update expression.
        expression: String,
    },
    /// Take it away, when the transaction is committed.
    Delete {
        /// Its key.
        key: Item,
    },
    /// Lock it, and check the condition.
    Check {
        /// Its key.
        key: Item,
    },
}

impl Action {
    /// The verb alone.
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Get { .. } => Operation::Get,
            Self::Put { .. } => Operation::Put,
            Self::Update { .. } => Operation::Update,
            Self::Delete { .. } => Operation::Delete,
            Self::Check { .. } => Operation::Check,
        }
    }
}

/// The verb of an [`Action`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Locks and reads an item.
    Get,
    /// Locks an item and checks a condition.
    Check,
    /// Replaces an item.
    Put,
    /// Changes an item.
    Update,
    /// Removes an item at the commit.
    Delete,
}

impl Operation {
    const ALL: [Self; 5] = [Self::Get, Self::Check, Self::Put, Self::Update, Self::Delete];

    /// The name in rows and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Check => "check",
            Self::Put => "put",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str() == text)
    }

    /// Each verb has a first letter of its own.
    pub(crate) fn by_letter(letter: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str().starts_with(letter))
    }

    /// Whether the item keeps its content.
    pub(crate) const fn only_locks(self) -> bool {
        matches!(self, Self::Get | Self::Check)
    }
}

/// The state of the item that a write is answered with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReturnValues {
    /// None.
    #[default]
    None,
    /// The item as it was before the transaction.
    AllOld,
    /// The item as it is after the write: only of puts and updates.
    AllNew,
    /// The attributes that an update names, as they were before the transaction.
    UpdatedOld,
    /// The attributes that an update names, as they are after it.
    UpdatedNew,
}

/// What one request brought.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The item that was asked for, if there is one.
    pub item: Option<Item>,
}

/// How far a transaction has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is open.
    Pending,
    /// Its changes are, or are becoming, everybody's.
    Committed,
    /// Its changes are, or are being, undone.
    RolledBack,
}

impl State {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Committed => "committed",
            Self::RolledBack => "rolled-back",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Pending, Self::Committed, Self::RolledBack].into_iter().find(|state| state.as_str() == text)
    }
}

/// What is known of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The transaction.
    pub id: PublicId,
    /// How far it has come.
    pub state: State,
    /// Why it was rolled back.
    pub reason: Option<String>,
    /// Whether all its items are free again. False for a moment after the decision, or until a sweep.
    pub finished: bool,
    /// Why DynamoDB refuses to free an item of the transaction, which only an operator can change.
    pub stuck: Option<String>,
    /// Epoch milliseconds.
    pub created_at: u64,
    /// Epoch milliseconds.
    pub last_worked_at: u64,
    /// The items that took part, in the order in which they were locked. A transaction of one call keeps them while its
    /// record has at most 1 KB.
    pub requests: Vec<Participant>,
}

/// An item that takes, or took, part in a transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Participant {
    /// The item's key.
    pub key: ItemKey,
    /// The verb of the request.
    pub operation: Operation,
}

/// How much a reader wants to see of transactions that have an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The item as it is, though it may be undone.
    Uncommitted,
    /// The item as the last committed transaction left it.
    #[default]
    Committed,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Transactions that were looked at.
    pub examined: usize,
    /// Of these, pending ones that nobody worked on: rolled back.
    pub rolled_back: usize,
    /// Decided ones whose items were still locked: completed.
    pub completed: usize,
    /// Decided ones of which DynamoDB refuses to free an item: an operator must look at them.
    pub stuck: usize,
    /// Ones that could not be dealt with this time; the log says why.
    pub failed: usize,
    /// Whether there was more to do than this sweep was allowed.
    pub more: bool,
}

/// A page of transactions that are not finished.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TransactionPage {
    /// The transactions, each without its requests where these are in rows of their own.
    pub transactions: Vec<Status>,
    /// Where the next page starts; none after the last.
    pub next: Option<String>,
}
