//! What can go wrong, by what the caller must do about it.

use std::error::Error as StdError;

/// A failure that is not an answer. Contention and loss are answers: see
/// [`AcquireAnswer`](crate::AcquireAnswer) and [`Lost`](crate::Lost).
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// A kind exists only where callers act differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request breaks a rule of the API; repeating it is useless.
    InvalidRequest {
        /// The field at fault, as it is spelled on the wire.
        field: &'static str,
    },
    /// What the caller wants stored does not fit into one DynamoDB item.
    TooLarge,
    /// The row is not a readable lock record. An operator must look at it.
    CorruptRecord,
    /// The service cannot work with its table: the table is missing or has other keys, or the credentials do not allow
    /// it. Nothing was written, and a retry changes nothing: whoever runs the service must act.
    Misconfigured,
    /// DynamoDB refused for load. Try again later, with the same lease id.
    Throttled,
    /// Nobody knows whether the write was applied. Try again with the same lease id.
    Unavailable,
}

impl Error {
    /// A request that breaks a rule: which field, and what the rule is.
    pub fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest { field }, message)
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the caller must do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Everything known, for the log. It may name tables and endpoints: never for a caller's eyes.
    pub fn for_log(&self) -> String {
        leasehold_dynamodb::error_chain(self)
    }
}
