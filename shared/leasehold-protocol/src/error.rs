//! What can go wrong, by what the caller must do about it.

use std::error::Error as StdError;
use std::fmt;

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
    pub fn for_log(&self) -> impl fmt::Display + '_ {
        struct Chain<'a>(&'a Error);
        impl fmt::Display for Chain<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut cause = StdError::source(self.0);
                let message = &self.0.message;
                f.write_str(if cause.is_some() { message.trim_end_matches('.') } else { message })?;
                while let Some(error) = cause {
                    write!(f, ": {error}")?;
                    cause = error.source();
                }
                Ok(())
            }
        }
        Chain(self)
    }
}
