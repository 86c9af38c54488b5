//! What can go wrong, by what the caller must do about it.

use leasehold_dynamodb::{Failure, FailureKind};

use crate::attributes::Lock;
use crate::{Item, PublicId};

/// Why there is no answer, or not the one that was hoped for.
///
/// After [`ConditionFailed`](Self::ConditionFailed), [`TooLarge`](Self::TooLarge), and an
/// [`InvalidRequest`](Self::InvalidRequest) that DynamoDB found when it was to write, the transaction is rolled back.
/// An `InvalidRequest` that is found before anything is written leaves it as it was. After
/// [`Contended`](Self::Contended), [`Throttled`](Self::Throttled) and [`Unavailable`](Self::Unavailable) the same call
/// may be repeated: it goes on where it stopped. (A one-shot that fails with anything but the last two is rolled back.)
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request breaks a rule, of this service or of DynamoDB: repair it.
    #[error("{message}")]
    InvalidRequest {
        /// The member at fault, such as `requests[2].put.item`.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// There is no such transaction: it was never begun, or removed long after its end.
    #[error("There is no such transaction. It was never begun, or ended so long ago that it was removed.")]
    NotFound,
    /// The transaction was rolled back: begin another one.
    #[error("The transaction was rolled back: {reason}")]
    RolledBack {
        /// Why.
        reason: String,
    },
    /// The transaction is committed, which cannot be taken back, nor added to.
    #[error("The transaction is committed.")]
    Committed,
    /// Another transaction has an item, and did not make way in time: try again.
    #[error("The transaction {other} has an item that this one needs, and is at work. Try again.")]
    Contended {
        /// The other one, by the name that proves nothing.
        other: PublicId,
    },
    /// The condition of a request does not hold. The transaction was rolled back.
    #[error("The condition of requests[{request}] does not hold; the transaction was rolled back.")]
    ConditionFailed {
        /// Which of the requests of this call.
        request: usize,
        /// The item as it is, if the request asked for it and there is one.
        item: Option<Item>,
    },
    /// Something does not fit into DynamoDB's limits. The transaction was rolled back, if it was begun.
    #[error("{0}")]
    TooLarge(String),
    /// The service may not use a table that the request names.
    #[error("The service may not use the table {table}: its role needs the permission.")]
    Forbidden {
        /// Which table.
        table: String,
    },
    /// The service cannot work with its own table: the table is missing, or the credentials do not allow it. Nothing
    /// was written, and a retry changes nothing: whoever runs the service must act.
    #[error("The service cannot use its table of transactions.")]
    Misconfigured(#[source] Source),
    /// Rows are not as this protocol leaves them. An operator must look at them.
    #[error("{0}")]
    Corrupt(String),
    /// DynamoDB refused for load: slow down, and repeat.
    #[error("DynamoDB throttled the request.")]
    Throttled(#[source] Source),
    /// Nobody knows what became of the call: repeat it.
    #[error("DynamoDB did not answer, or not in time.")]
    Unavailable(#[source] Source),
}

/// What the SDK said, for the log.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

impl Error {
    pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidRequest { field: field.into(), message: message.into() }
    }

    /// An item that its decided transaction cannot free.
    pub(crate) fn stuck(id: &PublicId, reason: &str) -> Self {
        Self::corrupt(format!(
            "The transaction {id} is decided, but DynamoDB refuses to free one of its items: {reason}"
        ))
    }

    /// A lock whose transaction is unknown or over.
    pub(crate) fn stray(lock: &Lock) -> Self {
        let value = lock.seen.as_s().map_or("unreadable", String::as_str);
        Self::corrupt(format!("An item has the lock {value} of a transaction that is over, or never was."))
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::Corrupt(message.into())
    }

    /// Whether it says nothing about the request, and a repeat may cure it.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self, Self::Throttled(_) | Self::Unavailable(_))
    }

    /// Whether a one-shot that fails with it is over. Not where the id is that of another transaction, which must not
    /// suffer for it, and not where the outcome is told by the error.
    pub(crate) const fn ends_one_shot(&self) -> bool {
        match self {
            Self::Throttled(_)
            | Self::Unavailable(_)
            | Self::NotFound
            | Self::RolledBack { .. }
            | Self::Committed
            | Self::InvalidRequest { .. } => false,
            Self::Contended { .. }
            | Self::ConditionFailed { .. }
            | Self::TooLarge(_)
            | Self::Forbidden { .. }
            | Self::Misconfigured(_)
            | Self::Corrupt(_) => true,
        }
    }

    /// Everything known, for the log. It may name endpoints: never for a caller's eyes.
    pub fn for_log(&self) -> String {
        leasehold_dynamodb::error_chain(self)
    }
}

/// The field that is at fault where a table is missing.
pub(crate) const NO_TABLE: &str = "tableName";

/// Sorts a failure of a call that is about a table which the request names.
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

/// Sorts a failure of a call that is about the transactions table alone.
pub(crate) fn own_failure(failure: impl Into<Failure>) -> Error {
    let failure = failure.into();
    match failure.kind() {
        FailureKind::NoTable | FailureKind::AccessDenied => Error::Misconfigured(failure.into()),
        _ => self::failure(failure, ""),
    }
}
