//! Errors, sorted by the reaction of the caller.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_wire::transactions::Item;
use leasehold_wire::{Lock, Problem, ProblemType, RefusedLock};

use crate::{LockKey, Loss, TransportError};

/// A kind exists only where callers act differently.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Someone else has the lock. Only where a caller asked for an error instead of a value.
    Held(Box<Lock>),
    /// The lock is no longer the caller's: stop what is done under it.
    Lost(Loss),
    /// Some of several locks are held. Only where a caller asked for an error instead of a value.
    SomeHeld(Box<[RefusedLock]>),
    /// There is no such lock.
    NotFound,
    /// The occurrence, or a later one, is done: do not run it. The lock's data is what its run left.
    AlreadyDone(Box<Lock>),
    /// The key is a semaphore's where a lock is meant, or the other way round.
    WrongKind,
    /// The lease id has another number of permits: there is no upgrade.
    PermitsMismatch,
    /// The semaphore has fewer permits than are asked for: ask for fewer.
    ExceedsCapacity,
    /// There is no room in the queue: try again later.
    QueueFull(Option<Box<Lock>>),
    /// The lock changed since the operator looked: look again.
    VersionMismatch,
    /// The request breaks a rule: repair it.
    InvalidRequest {
        /// The field at fault, where there is one.
        field: Option<String>,
    },
    /// The credentials are missing, or do not allow this; or the lock is bound to another principal.
    Forbidden,
    /// The service or DynamoDB refused for load: slow down, and try again.
    Throttled,
    /// Nobody knows: try again.
    Unavailable,
    /// The service cannot work with its table at all: whoever runs it must repair its setup.
    Misconfigured,
    /// A later request under this lease id was carried out, and this one changed nothing. The lock is still the
    /// caller's. The client goes on above that number by itself.
    Superseded {
        /// The number of the last request that was carried out.
        sequence: u64,
        /// The fencing token of the row.
        fencing_token: Option<u64>,
    },
    /// The row is not a readable lock record: call an operator.
    CorruptRecord,
    /// The client was closed.
    Closed,
    /// Another transaction has an item, and did not make way in time. This one is open: repeat the call, or roll back.
    Contended {
        /// The other one.
        other: Option<String>,
    },
    /// The transaction was rolled back, by another one that needed its items, or because nobody worked on it: begin
    /// another one.
    RolledBack,
    /// The transaction is committed, which cannot be taken back, nor added to.
    Committed,
    /// The condition of a request does not hold. The transaction was rolled back: decide anew.
    ConditionFailed {
        /// The position of the request in that call, counted from 0.
        request: Option<usize>,
        /// The item as it is, where the request asked for it and there is one.
        item: Option<Item>,
    },
    /// There is no such transaction: it was never begun, or ended so long ago that it was removed.
    TransactionNotFound,
}

/// The failure of an operation.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: Box<str>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    retry_after: Duration,
    unanswered: bool,
    too_late: bool,
    transaction_id: Option<Box<str>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into().into(),
            source: None,
            retry_after: Duration::ZERO,
            unanswered: false,
            too_late: false,
            transaction_id: None,
        }
    }

    /// The same, about this transaction.
    pub(crate) fn of_transaction(self, id: &str) -> Self {
        Self { transaction_id: Some(id.into()), ..self }
    }

    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest { field: Some(field.to_owned()) }, message)
    }

    pub(crate) fn held(lock: Box<Lock>) -> Self {
        let message = match &lock.semaphore {
            None => format!("the lock {:?} is held by {:?}", lock.key, lock.owner_name),
            Some(semaphore) => format!(
                "the semaphore {:?} has {} of {} permits free, and {} wait for them",
                lock.key,
                semaphore.available,
                semaphore.capacity,
                semaphore.queue.len()
            ),
        };
        Self::new(ErrorKind::Held(lock), message)
    }

    pub(crate) fn some_held(locks: Vec<RefusedLock>) -> Self {
        let keys: Vec<_> = locks.iter().map(|lock| format!("{:?}", lock.key)).collect();
        Self::new(ErrorKind::SomeHeld(locks.into()), format!("others hold {}", keys.join(", ")))
    }

    /// The lock is lost.
    pub(crate) fn lost(loss: Loss) -> Self {
        let message = loss.to_string();
        let cause = loss.cause.clone();
        Self { source: cause.map(|cause| cause as _), ..Self::new(ErrorKind::Lost(loss), message) }
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the client is closed")
    }

    /// No answer within the time-out.
    pub(crate) fn timed_out(after: Duration) -> Self {
        Self { unanswered: true, ..Self::new(ErrorKind::Unavailable, format!("no answer within {after:?}")) }
    }

    /// The background task is gone, and with it the answer.
    pub(crate) fn abandoned() -> Self {
        Self { unanswered: true, ..Self::new(ErrorKind::Unavailable, "the client's background task ended too early") }
    }

    /// The answer is older than the lease that it names: the lease ran out before the answer came.
    pub(crate) fn too_late(lease: Duration) -> Self {
        Self {
            too_late: true,
            ..Self::new(ErrorKind::Unavailable, format!("the answer came after its lease of {lease:?} had run out"))
        }
    }

    /// The same, about this lock.
    pub(crate) fn of_lock(self, key: &LockKey) -> Self {
        match self.kind {
            ErrorKind::Lost(loss) => Self::lost(Loss { key: key.clone(), ..loss }),
            _ => self,
        }
    }

    pub(crate) fn transport(error: TransportError) -> Self {
        Self {
            unanswered: error.may_have_been_delivered(),
            source: Some(Arc::new(error)),
            ..Self::new(ErrorKind::Unavailable, "the service cannot be reached")
        }
    }

    /// The service's own refusal.
    pub(crate) fn problem(problem: Problem, retry_after: Duration) -> Self {
        let kind = match (problem.problem_type, problem.lock) {
            (ProblemType::Held, Some(lock)) => ErrorKind::Held(lock),
            (ProblemType::Held, None) if problem.locks.is_some() => {
                ErrorKind::SomeHeld(problem.locks.unwrap_or_default())
            }
            (ProblemType::AlreadyDone, Some(lock)) => ErrorKind::AlreadyDone(lock),
            (ProblemType::WrongKind, _) => ErrorKind::WrongKind,
            (ProblemType::PermitsMismatch, _) => ErrorKind::PermitsMismatch,
            (ProblemType::ExceedsCapacity, _) => ErrorKind::ExceedsCapacity,
            (ProblemType::QueueFull, lock) => ErrorKind::QueueFull(lock),
            (ProblemType::Lost, lock) => {
                let key = LockKey { key: String::new(), sort_key: None };
                ErrorKind::Lost(Loss::from_refusal(key, problem.reason, lock))
            }
            (ProblemType::Superseded, _) => match problem.sequence {
                Some(sequence) => ErrorKind::Superseded { sequence, fencing_token: problem.fencing_token },
                None => ErrorKind::Unavailable,
            },
            (ProblemType::NotFound, _) => ErrorKind::NotFound,
            (ProblemType::Forbidden, _) => ErrorKind::Forbidden,
            (ProblemType::VersionMismatch, _) => ErrorKind::VersionMismatch,
            (ProblemType::Throttled, _) => ErrorKind::Throttled,
            (ProblemType::CorruptRecord, _) => ErrorKind::CorruptRecord,
            (ProblemType::Misconfigured, _) => ErrorKind::Misconfigured,
            (ProblemType::Unavailable | ProblemType::Held, _) => ErrorKind::Unavailable,
            (ProblemType::Contended, _) => ErrorKind::Contended { other: problem.public_id.map(String::from) },
            (ProblemType::RolledBack, _) => ErrorKind::RolledBack,
            (ProblemType::Committed, _) => ErrorKind::Committed,
            (ProblemType::ConditionFailed, _) => ErrorKind::ConditionFailed {
                request: problem.request.map(usize::from),
                item: problem.item.map(|item| *item),
            },
            (ProblemType::TransactionNotFound, _) => ErrorKind::TransactionNotFound,
            _ => ErrorKind::InvalidRequest { field: problem.field },
        };
        // The service's own attempt at the table may have been given up, and be applied late.
        let unanswered = matches!(kind, ErrorKind::Unavailable | ErrorKind::Throttled);
        Self { retry_after, unanswered, ..Self::new(kind, problem.detail) }
    }

    /// An answer that is not the service's: a gateway's, a proxy's, another server's.
    pub(crate) fn foreign(status: http::StatusCode, body: &[u8], retry_after: Duration) -> Self {
        const SHOWN: usize = 200;
        let (kind, unanswered) = match status.as_u16() {
            401 | 403 => (ErrorKind::Forbidden, false),
            429 => (ErrorKind::Throttled, false),
            // A gateway that gave up waiting says 504; what it waited for goes on.
            200..=299 | 408 | 500..=599 => (ErrorKind::Unavailable, true),
            _ => (ErrorKind::InvalidRequest { field: None }, false),
        };
        // A document that was meant as a success may name the lease id; nobody else's page does.
        let shown = if status.is_success() { &[] } else { &body[..body.len().min(SHOWN)] };
        let message =
            format!("the answer, {status}, is not Leasehold's: {}", String::from_utf8_lossy(shown).escape_debug());
        Self { retry_after, unanswered, ..Self::new(kind, message) }
    }

    /// The kind, which tells how to react.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The transaction that the error is about, if any. After [`ErrorKind::Unavailable`] nobody knows its state;
    /// [`crate::Client::transaction_status`] will.
    pub fn transaction_id(&self) -> Option<&str> {
        self.transaction_id.as_deref()
    }

    /// Whether the transaction has to give way, and may succeed if it is begun again from the start.
    pub fn is_contention(&self) -> bool {
        matches!(self.kind, ErrorKind::Contended { .. } | ErrorKind::RolledBack)
    }

    /// Whether it says nothing about the request, so that the same one may succeed if it is sent again.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Throttled)
    }

    /// How long the service asks to wait before the next request.
    pub(crate) fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// Whether the request was in order, and only its number or its age was not: the same under a higher number does
    /// better.
    pub(crate) fn is_about_its_number(&self) -> bool {
        self.too_late || matches!(self.kind, ErrorKind::Superseded { .. })
    }

    /// Whether another request, the same one or one under a higher number, may do better.
    pub(crate) fn is_worth_another_try(&self) -> bool {
        self.is_retryable() || self.is_about_its_number()
    }

    /// Whether the request may have been carried out all the same, now or later.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
