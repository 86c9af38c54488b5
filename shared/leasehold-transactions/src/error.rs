//! The failures of transactions, by the action that the caller must take.

use leasehold_dynamodb::{Failure, FailureKind};

use crate::attributes::ItemLock;
use crate::id::{PublicId, TransactionId};
use crate::key::{Item, ItemKey};

/// The reason why there is no answer, or not the expected one.
///
/// After [`ConditionFailed`](Self::ConditionFailed), [`TooLarge`](Self::TooLarge), and an
/// [`InvalidRequest`](Self::InvalidRequest) that the items or DynamoDB caused, the transaction is rolled back. An
/// `InvalidRequest` about the form of the request, or about a table, leaves the transaction unchanged. After
/// [`Contended`](Self::Contended), [`Throttled`](Self::Throttled) and [`Unavailable`](Self::Unavailable) the same call
/// may be retried: it goes on where it stopped. (A one-shot that fails with anything but the last two is rolled back.)
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request breaks a rule of this service or of DynamoDB: correct it.
    #[error("{message}")]
    InvalidRequest {
        /// The member at fault, such as `requests[2].put.item`.
        field: String,
        /// The rule that it breaks.
        message: String,
    },
    /// The transaction does not exist: it was never begun, or was removed long after its end.
    #[error("There is no such transaction. It was never begun, or ended so long ago that it was removed.")]
    NotFound,
    /// The transaction was rolled back: begin a new one.
    #[error("The transaction was rolled back: {reason}")]
    RolledBack {
        /// The reason of the rollback.
        reason: String,
    },
    /// The transaction is committed: it can be neither rolled back nor extended.
    #[error("The transaction is committed.")]
    Committed,
    /// Another transaction holds an item, and did not free it in time: retry.
    #[error("The transaction {other} has the item {key}, which this one needs, and is at work. Try again.")]
    Contended {
        /// The public id of the other transaction.
        other: PublicId,
        /// The item.
        key: Box<ItemKey>,
        /// The age of the other transaction in milliseconds, by the clocks of two coordinators: for people to read.
        age_ms: u64,
    },
    /// The condition of a request does not hold. The transaction was rolled back.
    #[error("The condition of requests[{request}] on the item {key} does not hold; the transaction was rolled back.")]
    ConditionFailed {
        /// The index of the request in this call.
        request: usize,
        /// The item whose condition does not hold.
        key: Box<ItemKey>,
        /// The current item, if the request asked for it and the item exists.
        item: Option<Item>,
    },
    /// The request exceeds a limit of DynamoDB. The transaction was rolled back, if it was begun.
    #[error("{0}")]
    TooLarge(String),
    /// The service may not use a table that the request names.
    #[error("The service may not use the table {table}: its role needs the permission.")]
    Forbidden {
        /// The table's name.
        table: String,
    },
    /// The service cannot work with its own table: the table is missing, or the credentials do not allow it. Nothing
    /// was written, and a retry changes nothing: the operator of the service must act.
    #[error("The service cannot use its table of transactions.")]
    Misconfigured(#[source] Source),
    /// Rows are not in a state that this protocol writes. An operator must look at them.
    #[error("{message}")]
    Corrupt {
        /// The state that was found.
        message: String,
        /// The item at fault, if it is one item.
        key: Option<Box<ItemKey>>,
    },
    /// DynamoDB throttled the call: back off and retry.
    #[error("DynamoDB throttled the request.")]
    Throttled(#[source] Source),
    /// The call may or may not have been carried out: retry it.
    #[error("DynamoDB did not answer, or not in time.")]
    Unavailable(#[source] Source),
    /// The outcome of a call that named no id is not known: ask for it under the id that the call got, or repeat the
    /// call with that id.
    #[error("DynamoDB did not answer, or not in time.")]
    Unknown {
        /// The id that the service generated.
        id: TransactionId,
        /// The failure.
        #[source]
        source: Box<Error>,
    },
}

/// The error of the SDK, for the log.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

impl Error {
    pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidRequest { field: field.into(), message: message.into() }
    }

    /// An item that its decided transaction cannot free.
    pub(crate) fn stuck(id: &PublicId, key: &ItemKey, reason: &str) -> Self {
        Self::damaged(
            key,
            format!("The transaction {id} is decided, but DynamoDB refuses to free one of its items: {reason}"),
        )
    }

    /// A lock whose transaction is unknown or over.
    pub(crate) fn stray(key: &ItemKey, lock: &ItemLock) -> Self {
        let value = lock.seen.as_s().map_or("unreadable", String::as_str);
        Self::damaged(key, format!("An item has the lock {value} of a transaction that is over, or never was."))
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::Corrupt { message: message.into(), key: None }
    }

    /// An item that is not in a state that this protocol writes.
    pub(crate) fn damaged(key: &ItemKey, message: impl Into<String>) -> Self {
        Self::Corrupt { message: message.into(), key: Some(Box::new(key.clone())) }
    }

    /// Whether the error says nothing about the request, and a retry may succeed.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self, Self::Throttled(_) | Self::Unavailable(_))
    }

    /// Whether this error ends the one-shot that returns it. It does not where the id belongs to another transaction,
    /// which must not be rolled back, nor where the error itself states the outcome.
    pub(crate) const fn ends_one_shot(&self) -> bool {
        match self {
            Self::Throttled(_)
            | Self::Unavailable(_)
            | Self::NotFound
            | Self::RolledBack { .. }
            | Self::Committed
            | Self::Unknown { .. }
            | Self::InvalidRequest { .. } => false,
            Self::Contended { .. }
            | Self::ConditionFailed { .. }
            | Self::TooLarge(_)
            | Self::Forbidden { .. }
            | Self::Misconfigured(_)
            | Self::Corrupt { .. } => true,
        }
    }

    /// Returns everything known, for the log. The text may name endpoints, so no caller may see it.
    pub fn for_log(&self) -> String {
        leasehold_dynamodb::error_chain(self)
    }
}

/// The field at fault where a table is missing.
pub(crate) const NO_TABLE: &str = "tableName";

/// Maps a failure of a call on a table which the request names.
pub(crate) fn failure(failure: impl Into<Failure>, table: &str) -> Error {
    let failure = failure.into();
    match failure.kind() {
        FailureKind::TooLarge => Error::TooLarge(failure.to_string()),
        FailureKind::Invalid => Error::invalid("requests", failure.to_string()),
        FailureKind::NoTable => Error::invalid(NO_TABLE, format!("There is no table {table}.")),
        FailureKind::AccessDenied => Error::Forbidden { table: table.to_owned() },
        FailureKind::Misconfigured => Error::Misconfigured(failure.into()),
        FailureKind::Throttled => Error::Throttled(failure.into()),
        FailureKind::Unavailable => Error::Unavailable(failure.into()),
    }
}

/// Maps a failure of a call on the transactions table alone.
pub(crate) fn own_failure(failure: impl Into<Failure>) -> Error {
    let failure = failure.into();
    match failure.kind() {
        FailureKind::NoTable | FailureKind::AccessDenied => Error::Misconfigured(failure.into()),
        _ => self::failure(failure, ""),
    }
}
