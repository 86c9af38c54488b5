//! Failures of DynamoDB, by the action that the caller can take.

use std::error::Error as StdError;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::CancellationReason;

/// A call that DynamoDB refused or did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    kind: FailureKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// A kind exists only where callers act differently. All kinds but the first two are certain and final: nothing was
/// written, and a retry changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// DynamoDB throttled the call, or other writes of the same items are under way, in this region or in another one.
    Throttled,
    /// The call may or may not have been carried out.
    Unavailable,
    /// An item, or the whole request, would exceed a limit of DynamoDB.
    TooLarge,
    /// DynamoDB found the request invalid.
    Invalid,
    /// A table does not exist.
    NoTable,
    /// The credentials do not allow the call.
    AccessDenied,
    /// There are no valid credentials, or a table has other keys than it should.
    Misconfigured,
}

impl Failure {
    pub(crate) fn misconfigured(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Misconfigured, message: message.into(), source: None }
    }

    /// DynamoDB did not do all that was asked for.
    pub fn throttled() -> Self {
        let message = "DynamoDB left the request for later.".to_owned();
        Self { kind: FailureKind::Throttled, message, source: None }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Unavailable, message: message.into(), source: None }
    }

    /// A transaction that was cancelled for another reason than a condition.
    pub fn of_cancellation(reason: &CancellationReason) -> Self {
        let message = reason.message().unwrap_or("DynamoDB gave no reason.").to_owned();
        let kind = match reason.code() {
            Some("ValidationError") if is_about_size(&message) => FailureKind::TooLarge,
            Some("ValidationError") => FailureKind::Invalid,
            Some("ItemCollectionSizeLimitExceeded") => FailureKind::TooLarge,
            _ => FailureKind::Throttled,
        };
        Self { kind, message, source: None }
    }

    /// Describes the attempted action, and keeps the original failure for the log.
    pub(crate) fn during(self, attempted: String) -> Self {
        Self { kind: self.kind, message: attempted, source: Some(Box::new(self)) }
    }

    /// The kind, which tells the caller how to act.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, FailureKind::Throttled | FailureKind::Unavailable)
    }

    /// Returns everything known, for the log. The text may name tables and endpoints, so no caller may see it.
    pub fn for_log(&self) -> String {
        error_chain(self)
    }
}

impl<E> From<SdkError<E>> for Failure
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    fn from(error: SdkError<E>) -> Self {
        let message = error.message().unwrap_or("DynamoDB gave no reason.").to_owned();
        let kind = match error.code() {
            Some(code) => kind_of(code, &message),
            None if lacks_credentials(&error) => FailureKind::Misconfigured,
            None => FailureKind::Unavailable,
        };
        Self { kind, message, source: Some(Box::new(error)) }
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        Self {
            kind: FailureKind::Invalid,
            message: "The request is incomplete.".to_owned(),
            source: Some(error.into()),
        }
    }
}

fn kind_of(code: &str, message: &str) -> FailureKind {
    match code {
        "ThrottlingException"
        | "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "TransactionConflictException"
        // A global table with strong consistency refuses what writes an item that another region writes.
        | "ReplicatedWriteConflictException" => FailureKind::Throttled,
        "ValidationException" if is_about_size(message) => FailureKind::TooLarge,
        "ValidationException" => FailureKind::Invalid,
        "ResourceNotFoundException" => FailureKind::NoTable,
        "AccessDeniedException" => FailureKind::AccessDenied,
        "UnrecognizedClientException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException"
        | "IncompleteSignatureException"
        | "ExpiredTokenException" => FailureKind::Misconfigured,
        _ => FailureKind::Unavailable,
    }
}

/// Returns whether DynamoDB finds an item or a request too large.
pub fn is_about_size(message: &str) -> bool {
    ["Item size", "item size", "aggregate size", "Collection size"].iter().any(|words| message.contains(words))
}

/// Returns whether nothing was sent for lack of credentials. A provider that did not answer may answer later.
fn lacks_credentials(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|cause| {
        matches!(
            cause.downcast_ref(),
            Some(CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_))
        )
    })
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// An error and all its causes, for the log.
pub fn error_chain(error: &(dyn StdError + 'static)) -> String {
    let causes: Vec<_> = causes(error).map(ToString::to_string).collect();
    let last = causes.len() - 1;
    let parts = causes.iter().enumerate();
    let parts = parts.map(|(index, text)| if index < last { text.trim_end_matches('.') } else { text });
    parts.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_throttles_and_silence_are_transient() {
        let transient = |code: &str| {
            let failure = Failure { kind: kind_of(code, ""), message: String::new(), source: None };
            failure.is_transient()
        };
        for code in ["ThrottlingException", "TransactionConflictException", "InternalServerError", "anything else"] {
            assert!(transient(code), "{code}");
        }
        for code in
            ["AccessDeniedException", "ResourceNotFoundException", "ValidationException", "ExpiredTokenException"]
        {
            assert!(!transient(code), "{code}");
        }
    }

    #[test]
    fn write_beside_one_of_another_region_is_told_to_come_later() {
        assert_eq!(kind_of("ReplicatedWriteConflictException", ""), FailureKind::Throttled);
        assert_eq!(kind_of("TransactionConflictException", ""), FailureKind::Throttled);
    }

    #[test]
    fn log_gets_the_whole_chain() {
        let cause = Failure::unavailable("no route to host.");
        assert_eq!(cause.during("Could not create it.".into()).for_log(), "Could not create it: no route to host.");
    }
}
