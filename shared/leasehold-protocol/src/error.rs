//! The failures of the protocol, by the action that the caller must take.

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
    /// The request breaks a rule of the API; a retry fails again.
    InvalidRequest {
        /// The field at fault, as it is spelled on the wire.
        field: &'static str,
    },
    /// The data do not fit into one DynamoDB item.
    TooLarge,
    /// The row is not a readable lock record. An operator must look at it.
    CorruptRecord,
    /// The service cannot work with its table: the table is missing or has other keys, or the credentials do not allow
    /// it. Nothing was written, and a retry changes nothing: the operator of the service must act.
    Misconfigured,
    /// DynamoDB throttled the request. Retry later, with the same lease id.
    Throttled,
    /// The write may or may not have been applied. Retry with the same lease id.
    Unavailable,
}

impl Error {
    /// Returns the error of a request that breaks a rule: the field at fault, and the rule.
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

    /// The kind, which tells the caller how to act.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns everything known, for the log. The text may name tables and endpoints, so no caller may see it.
    pub fn for_log(&self) -> String {
        leasehold_dynamodb::error_chain(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_for_the_log_has_its_cause() {
        let error = Error::new(ErrorKind::Throttled, "DynamoDB throttled the request").with_source("the table is hot");
        assert_eq!(error.for_log(), "DynamoDB throttled the request: the table is hot");
    }
}
