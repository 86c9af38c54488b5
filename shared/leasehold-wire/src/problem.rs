//! Refusals and failures, as RFC 9457 problem documents. One table says what each kind is.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::semaphore::SemaphoreState;
use crate::transactions::Item;
use crate::{Lock, LockState};

/// A refusal or a failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The kind, which is the member to decide by.
    #[serde(rename = "type")]
    pub problem_type: ProblemType,
    /// The HTTP status of this kind.
    pub status: u16,
    /// The title of the kind, for people to read.
    pub title: String,
    /// The failure and its remedy, for people to read.
    pub detail: String,
    /// `invalid-request`: the field at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// `lost`: the reason of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// `held`, `lost`, `superseded`, `version-mismatch`, `already-done`: the lock as it is, if there is a row. A
    /// semaphore is also shown with `queue-full`, `permits-mismatch` and `exceeds-capacity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<Box<Lock>>,
    /// `held`, `lost`, `wrong-kind`, `exceeds-capacity` and `permits-mismatch` for several keys: the keys that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<RefusedLock>>))]
    pub locks: Option<Box<[RefusedLock]>>,
    /// `superseded`: the number of the last request that was carried out. The next one needs a higher number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// `superseded`: the record version number of the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub record_version_number: Option<Box<str>>,
    /// `superseded`: the fencing token that the caller holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// `condition-failed`: the position of the request, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<u16>,
    /// `condition-failed`: the existing item, if the request asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<Box<Item>>,
    /// `contended`: the public id of the other transaction. It proves nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub public_id: Option<Box<str>>,
    /// `contended`, `condition-failed`, `corrupt-record`: the item that the other transaction holds, whose condition
    /// does not hold, or that is damaged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<RefusedItem>))]
    pub refused_item: Option<Box<RefusedItem>>,
    /// `unavailable`, `throttled`, where a transaction of one call named no id: its id, by which the outcome can be
    /// read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub transaction_id: Option<Box<str>>,
    /// Whether the same request may succeed later, with the same lease id or transaction id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retryable: bool,
}

impl Problem {
    /// A problem of this kind.
    pub fn new(problem_type: ProblemType, detail: impl Into<String>) -> Self {
        Self {
            problem_type,
            status: problem_type.status(),
            title: problem_type.title().to_owned(),
            detail: detail.into(),
            field: None,
            reason: None,
            lock: None,
            locks: None,
            sequence: None,
            record_version_number: None,
            fencing_token: None,
            request: None,
            item: None,
            public_id: None,
            refused_item: None,
            transaction_id: None,
            retryable: problem_type.is_retryable(),
        }
    }

    /// A request that breaks a rule, and the field at fault.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ProblemType::InvalidRequest, detail) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Problem {}

/// The item of a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RefusedItem {
    /// The table's name.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// `contended`: the age of the transaction that holds the item, in milliseconds, for people to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_age_ms: Option<u64>,
}

/// One of several refused keys: its public view, without the payload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RefusedLock {
    /// The key.
    pub key: String,
    /// The sort key, on a table that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// `lost`: the reason of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<LostReason>,
    /// Whether the lock has a holder, if there is a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LockState>,
    /// The present or last owner, for people to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// The record version number, which changes with every acquire and heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_version_number: Option<String>,
    /// The time for which the record version number must be seen unchanged before the lock is stale, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_ms: Option<u64>,
    /// The fencing token. Absent if another kind of client wrote the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The state of a semaphore.
    #[serde(flatten)]
    pub semaphore: Option<Box<SemaphoreState>>,
}

/// The reason why a lock is not the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LostReason {
    /// The row is gone.
    Absent,
    /// The lock was released under this lease id, or broken by an operator.
    Released,
    /// Another acquisition holds the lock, or held it since.
    TakenOver,
    /// The lease id is right, but the record version number is not the one given.
    VersionMismatch,
    /// The lease id waits in the queue of the semaphore, and has no permits.
    Queued,
    /// The ticket that the request names is not in the queue.
    NotQueued,
}

/// The kinds of problems. A kind exists only where callers act differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProblemType {
    /// Another owner holds the lock: poll.
    Held,
    /// The caller does not hold the lock: stop.
    Lost,
    /// A later request under this lease id was carried out, and this one changed nothing. The caller still holds the
    /// lock: continue with a number above `sequence`.
    Superseded,
    /// The occurrence, or a later one, was completed: do not run it. The lock's data is what the completed run left.
    AlreadyDone,
    /// There is no such lock.
    NotFound,
    /// The lock changed since the operator looked: look again.
    VersionMismatch,
    /// The key belongs to a semaphore where a lock is meant, or to a lock where a semaphore is meant.
    WrongKind,
    /// The lease id has another number of permits: there is no upgrade.
    PermitsMismatch,
    /// The request asks for more permits than the semaphore has: ask for fewer.
    ExceedsCapacity,
    /// The queue is full: try again later.
    QueueFull,
    /// The caller may not touch this key, or the lock is bound to another principal, or the service may not use a table
    /// that the request names: ask the service's operator.
    Forbidden,
    /// Another transaction has an item, and did not make way in time: try again, with the same transaction id.
    Contended,
    /// The transaction was rolled back: begin another one.
    RolledBack,
    /// The transaction is committed: it can be neither rolled back nor extended.
    Committed,
    /// The condition of a request does not hold; the transaction was rolled back.
    ConditionFailed,
    /// The transaction is unknown: it was never begun, or was removed long after its end.
    TransactionNotFound,
    /// The request breaks a rule of this API, or of DynamoDB: repair it.
    InvalidRequest,
    /// The payload, the row or the answer is too large: make it smaller.
    TooLarge,
    /// The body is not declared as JSON.
    UnsupportedMediaType,
    /// This path has another method.
    MethodNotAllowed,
    /// This API has no such path.
    UnknownRoute,
    /// DynamoDB throttled the request: slow down, and try again with the same lease id or transaction id.
    Throttled,
    /// The outcome is unknown: try again with the same lease id or transaction id.
    Unavailable,
    /// The row is not a readable record of this service: call an operator.
    CorruptRecord,
    /// The service cannot work with its own table: call an operator. Nothing was written.
    Misconfigured,
}

impl ProblemType {
    /// Returns the HTTP status, the title, and the error's name in a direct invocation.
    const fn table(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::Held => (423, "The lock is held", "LockHeld"),
            Self::Lost => (409, "The lock is lost", "LockLost"),
            Self::Superseded => (409, "A later request was carried out", "Superseded"),
            Self::AlreadyDone => (409, "The occurrence is done", "AlreadyDone"),
            Self::NotFound => (404, "It was not found", "LockNotFound"),
            Self::VersionMismatch => (409, "The lock has changed", "LockLost"),
            Self::WrongKind => (409, "The key is of another kind", "WrongKind"),
            Self::PermitsMismatch => (409, "The holder has other permits", "PermitsMismatch"),
            Self::ExceedsCapacity => (409, "There are not so many permits", "ExceedsCapacity"),
            Self::QueueFull => (423, "The queue is full", "QueueFull"),
            Self::Contended => (409, "Another transaction has an item", "TransactionContended"),
            Self::RolledBack => (409, "The transaction was rolled back", "TransactionRolledBack"),
            Self::Committed => (409, "The transaction is committed", "TransactionCommitted"),
            Self::ConditionFailed => (409, "A condition does not hold", "ConditionFailed"),
            Self::TransactionNotFound => (404, "There is no such transaction", "TransactionNotFound"),
            Self::Forbidden => (403, "The caller may not do this", "Forbidden"),
            Self::InvalidRequest => (400, "The request is invalid", "InvalidRequest"),
            Self::TooLarge => (413, "The request is too large", "InvalidRequest"),
            Self::UnsupportedMediaType => (415, "The body is not JSON", "InvalidRequest"),
            Self::MethodNotAllowed => (405, "The method is not allowed", "InvalidRequest"),
            Self::UnknownRoute => (404, "There is no such route", "InvalidRequest"),
            Self::Throttled => (429, "Too many requests", "Throttled"),
            Self::Unavailable => (503, "The service is unavailable", "Unavailable"),
            Self::CorruptRecord => (500, "The record is corrupt", "CorruptRecord"),
            Self::Misconfigured => (500, "The service is set up wrong", "Misconfigured"),
        }
    }

    /// The HTTP status.
    pub const fn status(self) -> u16 {
        self.table().0
    }

    /// The title of the kind, for people to read.
    pub const fn title(self) -> &'static str {
        self.table().1
    }

    /// The error's name in a direct invocation, for `Retry` and `Catch` to match on.
    pub const fn error_name(self) -> &'static str {
        self.table().2
    }

    /// Whether the same request may succeed later.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Contended | Self::Throttled | Self::Unavailable)
    }

    /// The pause before the next request, in seconds, if another request may succeed. A held lock is polled each
    /// second, as by the Java client; its own lease is in the problem's `lock`.
    pub const fn retry_after_seconds(self) -> Option<u32> {
        match self {
            Self::Held | Self::QueueFull | Self::Contended | Self::Throttled | Self::Unavailable => Some(1),
            _ => None,
        }
    }
}
