//! What callers ask for, and what they are told.

use std::collections::HashMap;
use std::fmt;

use leasehold_dynamodb::fresh_uuid;

use crate::attributes::Item;
use crate::error::Error;
use crate::key::ItemKey;

/// Which transaction: a UUID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId(String);

impl TransactionId {
    /// A new one.
    pub fn fresh() -> Self {
        Self(fresh_uuid())
    }

    /// # Errors
    /// `InvalidRequest` for what is no UUID.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let uuid = uuid::Uuid::parse_str(text);
        uuid.map(|uuid| Self(uuid.hyphenated().to_string()))
            .map_err(|_| Error::invalid("transactionId", "transactionId must be a UUID."))
    }

    /// As it stands in a table.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }

    /// As a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TransactionId {
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

/// Which state of the item to answer a write with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReturnValues {
    /// None.
    #[default]
    None,
    /// As it was before the transaction.
    AllOld,
    /// As it is after the write: only of puts and updates.
    AllNew,
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
    /// Which one.
    pub id: TransactionId,
    /// How far it has come.
    pub state: State,
    /// Why it was rolled back.
    pub reason: Option<String>,
    /// Whether all its items are free again. False for a moment after the decision, or until a sweep.
    pub finished: bool,
    /// Epoch milliseconds.
    pub created_at: u64,
    /// Epoch milliseconds.
    pub last_worked_at: u64,
    /// What it took part in, in the order in which it was locked.
    pub requests: Vec<Participant>,
}

/// An item that takes, or took, part in a transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Participant {
    /// Which item.
    pub key: ItemKey,
    /// `get`, `put`, `update`, `delete` or `check`.
    pub operation: &'static str,
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
    /// Finished ones past their retention: removed.
    pub removed: usize,
    /// Ones that could not be dealt with; the log says why.
    pub failed: usize,
    /// Whether there was more to do than this sweep was allowed.
    pub more: bool,
}
