//! The requests of callers, and their answers.

use std::collections::HashMap;

use crate::id::PublicId;
use crate::key::{Item, ItemKey};

/// One operation on one item, equivalent to an entry of TransactWriteItems or TransactGetItems.
#[derive(Debug, Clone, PartialEq)]
pub struct TransactionRequest {
    /// The table's name.
    pub table: String,
    /// The operation.
    pub action: Action,
    /// The condition on the item at the time when the transaction locked it.
    pub condition: Option<String>,
    /// `ExpressionAttributeNames`, for all expressions of this request.
    pub names: HashMap<String, String>,
    /// `ExpressionAttributeValues`, likewise.
    pub values: Item,
    /// The attributes to return.
    pub return_values: ReturnValues,
    /// Whether the answer to a failed condition contains the current item.
    pub return_item_on_failure: bool,
}

impl TransactionRequest {
    /// The path of the request in a call, by the names of TransactWriteItems, such as `requests[2].Put`.
    pub(crate) fn path(&self, index: usize) -> String {
        format!("requests[{index}].{}", self.action.entry())
    }
}

/// The items to lock and read: those that match a key condition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueryRequest {
    /// The table's name.
    pub table: String,
    /// An index of the table, to find the items in.
    pub index: Option<String>,
    /// `KeyConditionExpression`.
    pub key_condition: String,
    /// `ProjectionExpression`.
    pub projection: Option<String>,
    /// `ExpressionAttributeNames`.
    pub names: HashMap<String, String>,
    /// `ExpressionAttributeValues`.
    pub values: Item,
    /// Whether the sort keys ascend.
    pub forward: bool,
}

/// An operation on an item.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Locks and reads the item.
    Get {
        /// The item's key.
        key: Item,
        /// The paths to return. Without it, all.
        projection: Option<String>,
    },
    /// Replaces the item.
    Put {
        /// The whole item, key included.
        item: Item,
    },
    /// Changes the item, or creates it.
    Update {
        /// The item's key.
        key: Item,
        /// The update expression.
        expression: String,
    },
    /// Removes the item, when the transaction is committed.
    Delete {
        /// The item's key.
        key: Item,
    },
    /// Locks the item, and checks the condition.
    Check {
        /// The item's key.
        key: Item,
    },
}

impl Action {
    /// The name of the operation in TransactWriteItems and TransactGetItems.
    const fn entry(&self) -> &'static str {
        match self {
            Self::Get { .. } => "Get",
            Self::Put { .. } => "Put",
            Self::Update { .. } => "Update",
            Self::Delete { .. } => "Delete",
            Self::Check { .. } => "ConditionCheck",
        }
    }

    /// The member of the entry that contains the key.
    pub(crate) const fn key_member(&self) -> &'static str {
        if matches!(self, Self::Put { .. }) { "Item" } else { "Key" }
    }

    /// The verb of the operation.
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

    /// Finds a verb by its first letter, which each verb has for itself.
    pub(crate) fn by_letter(letter: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str().starts_with(letter))
    }

    /// Whether the operation leaves the content of the item.
    pub(crate) const fn only_locks(self) -> bool {
        matches!(self, Self::Get | Self::Check)
    }
}

/// The state of the item that the answer to a write contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReturnValues {
    /// No attributes.
    #[default]
    None,
    /// The item as it was before the transaction.
    AllOld,
    /// The item as it is after the write. Only for puts and updates.
    AllNew,
    /// The attributes that an update names, as they were before the transaction.
    UpdatedOld,
    /// The attributes that an update names, as they are after it.
    UpdatedNew,
}

/// What the caller of a commit knows about its transaction. A commit is refused where the transaction is another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expected {
    /// The number of distinct items.
    pub items: Option<u64>,
    /// The number of requests other than [`Action::Get`] that the caller made. Others may have made more.
    pub writes: Option<u64>,
}

/// The answer to one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The requested item, if it exists.
    pub item: Option<Item>,
}

/// The progress of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// The transaction is open.
    Pending,
    /// The changes are final. The items are free, or are being freed.
    Committed,
    /// The changes are undone, or are being undone.
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

/// The public state of a transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The public id of the transaction.
    pub id: PublicId,
    /// The progress of the transaction.
    pub state: State,
    /// The reason of the rollback.
    pub reason: Option<String>,
    /// Whether all its items are free again. False for a moment after the decision, or until a sweep.
    pub finished: bool,
    /// The item that DynamoDB refuses to free, and the reason. Only an operator can remove the reason.
    pub stuck: Option<String>,
    /// The items that a writer past the protocol deleted or replaced before the commit: they are not part of it.
    pub overwritten: Vec<ItemKey>,
    /// The time of its beginning, in epoch milliseconds.
    pub created_at: u64,
    /// The time of the last work on it, in epoch milliseconds.
    pub last_worked_at: u64,
    /// The items that took part, in the order in which they were locked. A one-call transaction keeps them while its
    /// record has at most 1 KB.
    pub requests: Vec<Participant>,
    /// Whether it has more requests than these.
    pub more_requests: bool,
}

/// An item that takes, or took, part in a transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Participant {
    /// The item's key.
    pub key: ItemKey,
    /// The verb of the request.
    pub operation: Operation,
}

/// The changes of other transactions that a reader sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The item as it is, although its change may be undone.
    Uncommitted,
    /// The item as the last committed transaction left it.
    #[default]
    Committed,
}

/// The counts of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of transactions that were examined.
    pub examined: usize,
    /// The number of pending ones without recent work: rolled back.
    pub rolled_back: usize,
    /// The number of decided ones whose items were still locked: completed.
    pub completed: usize,
    /// The number of decided ones of which DynamoDB refuses to free an item: an operator must look at them.
    pub stuck: usize,
    /// The number of open ones that this process watches: it has not yet seen them idle for long enough.
    pub watched: usize,
    /// The number of ones that failed this time; the log says why.
    pub failed: usize,
    /// The age of the oldest open one that was examined, in milliseconds, by the clocks of two coordinators: for
    /// people to read.
    pub oldest_ms: u64,
    /// Whether more was due than this sweep was allowed to examine.
    pub more: bool,
}

/// A page of transactions that are not finished.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TransactionPage {
    /// The transactions, each without its requests where these are in rows of their own.
    pub transactions: Vec<Status>,
    /// The start of the next page; none after the last.
    pub next: Option<String>,
}

/// The items of a table to examine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StraysRequest {
    /// The table's name.
    pub table: String,
    /// The transaction whose items are wanted. Without it, those of all.
    pub holder: Option<PublicId>,
    /// The maximum number of items to examine.
    pub limit: i32,
    /// The end of the page before.
    pub start: Option<Item>,
}

/// A locked item that no known transaction will free.
#[derive(Debug, Clone, PartialEq)]
pub struct Stray {
    /// The item's key.
    pub key: ItemKey,
    /// The item's lock, for [`Operator::unlock`](crate::Operator::unlock).
    pub lock: String,
    /// The transaction that the lock names.
    pub holder: PublicId,
}

/// A part of a scan for strays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StrayPage {
    /// The number of items that were examined.
    pub examined: usize,
    /// The strays among them.
    pub strays: Vec<Stray>,
    /// The start of the next page; none after the last.
    pub next: Option<Item>,
}
