//! What can go wrong, by what the caller must do about it.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::attributes::Lock;
use crate::{Item, PublicId};

/// Why there is no answer, or not the one that was hoped for.
///
/// After [`ConditionFailed`](Self::ConditionFailed), [`TooLarge`](Self::TooLarge), and an
/// [`InvalidRequest`](Self::InvalidRequest) that DynamoDB found when it was to write, the transaction is rolled back. An
/// `InvalidRequest` that is found before anything is written leaves it as it was. After [`Contended`](Self::Contended),
/// [`Throttled`](Self::Throttled) and [`Unavailable`](Self::Unavailable) the same call may be repeated: it goes on where it
/// stopped. (A one-shot that fails with anything but the last two is rolled back.)
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
    /// The service may not use a table.
    #[error("The service may not use the table {table}: its role needs the permission.")]
    Forbidden {
        /// Which table.
        table: String,
    },
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

    /// Whether a one-shot that fails with it is over. Not where the id is that of another transaction, which must not suffer
    /// for it, and not where the outcome is told by the error.
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
            | Self::Corrupt(_) => true,
        }
    }

    /// Everything known, for the log. It may name endpoints: never for a caller's eyes.
    pub fn for_log(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

/// The field that is at fault where a table is missing.
pub(crate) const NO_TABLE: &str = "tableName";

/// Sorts a refusal or a silence of DynamoDB by what can be done about it.
pub(crate) fn failure<E>(error: SdkError<E>, table: &str) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let message = || error.message().unwrap_or("DynamoDB gave no reason.").to_owned();
    match error.code().unwrap_or_default() {
        "ValidationException" if speaks_of_size(&message()) => Error::TooLarge(message()),
        "ValidationException" => Error::invalid("requests", message()),
        "ResourceNotFoundException" => Error::invalid(NO_TABLE, format!("There is no table {table}.")),
        "AccessDeniedException" => Error::Forbidden { table: table.to_owned() },
        "ThrottlingException"
        | "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "TransactionConflictException" => Error::Throttled(Box::new(error)),
        _ => Error::Unavailable(Box::new(error)),
    }
}

pub(crate) fn speaks_of_size(message: &str) -> bool {
    ["Item size", "item size", "aggregate size", "Collection size"].iter().any(|words| message.contains(words))
}
