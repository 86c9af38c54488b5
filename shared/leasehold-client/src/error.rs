//! Errors, sorted by the reaction of the caller.

use std::fmt;
use std::iter::successors;
use std::sync::Arc;
use std::time::Duration;

use leasehold_client_core::{Cause, Ending, Event, Reply, holder};
use leasehold_wire::semaphore::permits;
use leasehold_wire::transactions::Item;
use leasehold_wire::{Lock, Problem, ProblemType, RefusedLock};

use crate::subject::Subject;
use crate::{LockKey, Loss, TransportError};

/// The kinds of errors. A kind exists only where callers act differently.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another owner holds the lock. Calls that report contention as a value never return this error.
    Held(Box<Lock>),
    /// The caller has lost the lock, and must stop its work under it.
    Lost(Loss),
    /// Others hold some of the locks. Calls that report contention as a value never return this error.
    SomeHeld(Box<[RefusedLock]>),
    /// There is no such lock.
    NotFound,
    /// This occurrence, or a later one, is done: do not run it. The lock's data is what the completed run left.
    AlreadyDone(Box<Lock>),
    /// Another payload came under the key of an event that has a record of idempotency: two events have one key.
    PayloadMismatch,
    /// The key belongs to a semaphore where a lock is meant, or to a lock where a semaphore is meant.
    WrongKind,
    /// The lease id has another number of permits: there is no upgrade.
    PermitsMismatch,
    /// The request asks for more permits than the semaphore has: ask for fewer.
    ExceedsCapacity,
    /// The queue is full: try again later.
    QueueFull(Option<Box<Lock>>),
    /// The lock changed since the operator looked: look again.
    VersionMismatch,
    /// The request breaks a rule: repair it.
    InvalidRequest {
        /// The field at fault, where there is one.
        field: Option<String>,
    },
    /// The credentials are missing or do not allow this request, or the lock is bound to another principal.
    Forbidden,
    /// The service or DynamoDB throttled the request: slow down, and try again.
    Throttled,
    /// The outcome of the request is unknown: try again.
    Unavailable,
    /// The service cannot work with its table. The operator of the service must repair its setup.
    Misconfigured,
    /// A later request under this lease id was carried out, and this one changed nothing. The caller still holds the
    /// lock. The client continues above that number by itself.
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
    /// The block around holds the lock already, and would wait for itself: pass its guard on, or say
    /// [`LockRequest::reentrant`](crate::LockRequest::reentrant).
    WouldDeadlock,
    /// Another transaction has an item, and did not make way in time. The caller's transaction is open: repeat the
    /// call, or roll back.
    Contended {
        /// The public id of the other transaction.
        other: Option<String>,
    },
    /// The transaction was rolled back by another one that needed its items, or because it was idle: begin another one.
    RolledBack,
    /// The transaction is committed: it can be neither rolled back nor extended.
    Committed,
    /// The condition of a request does not hold, and the transaction was rolled back: decide anew.
    ConditionFailed {
        /// The position of the request in that call, counted from 0.
        request: Option<usize>,
        /// The existing item, where the request asked for it.
        item: Option<Item>,
    },
    /// The transaction is unknown: it was never begun, or was removed long after its end.
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
    /// The reason, where no answer came.
    cause: Option<Cause>,
    unreached: bool,
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
            cause: None,
            unreached: false,
            too_late: false,
            transaction_id: None,
        }
    }

    /// Adds the transaction that the error is about.
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
                "the semaphore {:?} has {} of {} free, and {} wait for them",
                lock.key,
                semaphore.available,
                permits(semaphore.capacity),
                semaphore.queue.len()
            ),
        };
        Self::new(ErrorKind::Held(lock), message)
    }

    pub(crate) fn some_held(locks: Vec<RefusedLock>) -> Self {
        let keys: Vec<_> = locks.iter().map(|lock| format!("{:?}", lock.key)).collect();
        Self::new(ErrorKind::SomeHeld(locks.into()), format!("others hold {}", keys.join(", ")))
    }

    /// A loss of the lock.
    pub(crate) fn lost(loss: Loss) -> Self {
        let message = loss.to_string();
        let cause = loss.cause.clone();
        Self { source: cause.map(|cause| cause as _), ..Self::new(ErrorKind::Lost(loss), message) }
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the client is closed")
    }

    pub(crate) fn would_deadlock(key: &LockKey) -> Self {
        let message = format!(
            "the lock {:?} is held by the block around already, and waiting for it would never end: pass its guard on, \
             or use LockRequest::reentrant",
            key.to_string()
        );
        Self::new(ErrorKind::WouldDeadlock, message)
    }

    /// A request without an answer within the time-out.
    pub(crate) fn timed_out(after: Duration) -> Self {
        Self {
            unanswered: true,
            cause: Some(Cause::TimedOut),
            ..Self::new(ErrorKind::Unavailable, format!("no answer within {after:?}"))
        }
    }

    /// The background task ended without an answer.
    pub(crate) fn abandoned() -> Self {
        Self {
            unanswered: true,
            cause: Some(Cause::TimedOut),
            ..Self::new(ErrorKind::Unavailable, "the client's background task ended too early")
        }
    }

    /// A release that goes on in the background.
    pub(crate) fn unreleased() -> Self {
        Self {
            unanswered: true,
            cause: Some(Cause::TimedOut),
            ..Self::new(ErrorKind::Unavailable, "no answer yet: the release goes on in the background")
        }
    }

    /// The process was suspended: the lease may have run out meanwhile.
    pub(crate) fn suspended() -> Self {
        let message =
            "the process was suspended, and no heartbeat was answered since: whether the lock is held is unknown";
        Self::new(ErrorKind::Unavailable, message)
    }

    /// The answer is older than its lease: the lease ran out before the answer arrived.
    pub(crate) fn too_late(lease: Duration) -> Self {
        Self {
            too_late: true,
            ..Self::new(ErrorKind::Unavailable, format!("the answer came after its lease of {lease:?} had run out"))
        }
    }

    /// Adds the lock that the error is about.
    pub(crate) fn about(self, subject: Subject, key: &LockKey) -> Self {
        match self.kind {
            ErrorKind::Lost(loss) => Self::lost(Loss { key: key.clone(), subject, ..loss }),
            _ => self,
        }
    }

    /// A request without an answer. `answered`: the service has answered another request before.
    pub(crate) fn transport(error: TransportError, answered: bool) -> Self {
        if error.is_invalid() {
            return Self::new(ErrorKind::InvalidRequest { field: None }, error.to_string());
        }
        let cause = if error.may_have_been_delivered() { Cause::CutOff } else { Cause::Unreached };
        Self {
            unanswered: cause.may_apply(),
            cause: Some(cause),
            unreached: !answered && !cause.may_apply(),
            source: Some(Arc::new(error)),
            ..Self::new(ErrorKind::Unavailable, "the service cannot be reached")
        }
    }

    /// A refusal by the service.
    pub(crate) fn problem(problem: Problem, retry_after: Duration) -> Self {
        let keys: Vec<_> = problem.locks.iter().flatten().map(|lock| format!("{:?}", lock.key)).collect();
        let named = if keys.is_empty() { String::new() } else { format!(" ({})", keys.join(", ")) };
        let advice = match problem.problem_type {
            ProblemType::UnknownRoute => "there is no such route: check the path of the URL. ",
            _ => "",
        };
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
            (ProblemType::Lost, lock) => ErrorKind::Lost(Loss::from_refusal(problem.reason, lock)),
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
        // The service may have given up its own attempt at the table, which may still be applied.
        let unanswered = matches!(kind, ErrorKind::Unavailable | ErrorKind::Throttled);
        let detail = format!("{advice}{}{named}", problem.detail);
        Self { retry_after, unanswered, ..Self::new(kind, detail) }
    }

    /// An answer of another program, such as a gateway, a proxy or another server.
    pub(crate) fn foreign(status: http::StatusCode, body: &[u8], retry_after: Duration) -> Self {
        const SHOWN: usize = 200;
        let (kind, unanswered) = match status.as_u16() {
            401 | 403 => (ErrorKind::Forbidden, false),
            429 => (ErrorKind::Throttled, false),
            // A gateway that stopped waiting answers 504, and the request may still be carried out.
            200..=299 | 408 | 500..=599 => (ErrorKind::Unavailable, true),
            _ => (ErrorKind::InvalidRequest { field: None }, false),
        };
        // A successful answer may contain the lease id, so its body is not shown. Other bodies cannot contain it.
        let shown = if status.is_success() { &[] } else { &body[..body.len().min(SHOWN)] };
        let message =
            format!("the answer, {status}, is not Leasehold's: {}", String::from_utf8_lossy(shown).escape_debug());
        Self { retry_after, unanswered, ..Self::new(kind, message) }
    }

    /// The error with its causes, in one sentence. The display has the first part of it alone.
    pub fn in_full(&self) -> String {
        let mut text = self.to_string();
        let causes: Vec<_> = successors(std::error::Error::source(self), |error| error.source()).collect();
        // The first cause is in this crate's words. Below it, the innermost one is the most useful.
        for cause in causes.first().into_iter().chain(causes.last()).map(ToString::to_string) {
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        text
    }

    /// Returns the kind, which tells how to react.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns the transaction that the error is about, if any. After [`ErrorKind::Unavailable`] the state of the
    /// transaction is unknown; [`crate::Client::transaction_status`] tells it.
    pub fn transaction_id(&self) -> Option<&str> {
        self.transaction_id.as_deref()
    }

    /// Whether the transaction has to give way, and may succeed if it is begun again from the start.
    pub fn is_contention(&self) -> bool {
        matches!(self.kind, ErrorKind::Contended { .. } | ErrorKind::RolledBack)
    }

    /// Whether the same request may succeed if it is sent again, because the error says nothing about the request.
    pub fn retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Throttled)
    }

    /// Whether a request without an answer that tells its end may be carried out all the same. None: the answer tells.
    pub(crate) fn may_apply(&self) -> Option<bool> {
        let untold = self.retryable().then_some(self.unanswered);
        self.cause.map(Cause::may_apply).or(untold)
    }

    /// The pause that the service asks for before the next request.
    pub(crate) fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// Whether only the number or the age of the request was refused. The same request under a higher number may
    /// succeed.
    pub(crate) fn is_about_its_number(&self) -> bool {
        self.too_late || matches!(self.kind, ErrorKind::Superseded { .. })
    }

    /// Whether the request's lease id has a grant, which only another request for it returns. A ticket that was
    /// superseded has no token.
    pub(crate) fn tells_of_a_grant(&self) -> bool {
        self.too_late || matches!(self.kind, ErrorKind::Superseded { fencing_token: Some(_), .. })
    }

    /// Whether another try may succeed, with the same number or a higher one.
    pub(crate) fn is_worth_another_try(&self) -> bool {
        self.retryable() || self.is_about_its_number()
    }

    /// Whether the request may have been carried out despite the error, now or later.
    #[cfg(test)]
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// Whether no connection could be made, and the service has never answered.
    pub(crate) fn is_unreached(&self) -> bool {
        self.unreached
    }
}

/// The end of a request, as far as its number goes.
pub(crate) fn ending<A>(result: &Result<A, Error>) -> Ending {
    match result {
        Err(Error { kind: ErrorKind::Superseded { sequence, .. }, .. }) => Ending::Superseded { sequence: *sequence },
        Err(error) if error.retryable() => Ending::Untold { may_apply: error.unanswered },
        _ => Ending::Told,
    }
}

/// The cause why there is no answer, for the rules.
pub(crate) fn cause_of(error: &Error) -> Option<Cause> {
    error.cause
}

/// A failure that the service told to a holder, for the rules.
pub(crate) fn reply_of(error: &Error) -> holder::Reply {
    match &error.kind {
        ErrorKind::Lost(loss) => holder::Reply::Lost { reason: loss.reason },
        ErrorKind::Superseded { sequence, fencing_token } => {
            holder::Reply::Superseded { sequence: *sequence, token: *fencing_token }
        }
        _ if error.retryable() => {
            holder::Reply::Retryable { retry_after: error.retry_after, may_apply: error.unanswered }
        }
        _ => holder::Reply::Refused,
    }
}

/// The end of a send, for the rules.
pub(crate) fn end_of<A, R>(send: u64, result: &Result<A, Error>, reply: impl FnOnce(&A) -> Reply) -> Event<R> {
    let reply = match result {
        Ok(answer) => reply(answer),
        Err(Error { cause: Some(cause), .. }) => return Event::Unanswered { send, cause: *cause },
        Err(error) => match error.kind {
            ErrorKind::Lost(_) => Reply::Lost,
            ErrorKind::Superseded { sequence, .. } => Reply::Superseded { sequence },
            _ if error.retryable() => Reply::Retryable { retry_after: error.retry_after, may_apply: error.unanswered },
            _ => Reply::Refused,
        },
    };
    Event::Answer { send, reply }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::LossReason;

    #[test]
    fn error_in_full_has_its_causes_once() {
        let cause = TransportError::not_sent("the request cannot be signed").with_source("no profile is named so");
        let error = Arc::new(Error::transport(cause, false));
        assert_eq!(error.to_string(), "the service cannot be reached");
        let full = "the service cannot be reached: the request cannot be signed: no profile is named so";
        assert_eq!(error.in_full(), full);
        let key = LockKey { key: "Moe".to_owned(), sort_key: None };
        let loss = Loss { cause: Some(error), ..Loss::new(Subject::Lock, &key, LossReason::Expired) };
        let told = format!("the lease ran out before a heartbeat succeeded: {full}");
        assert_eq!(loss.how(), told);
        assert_eq!(Error::lost(loss).in_full(), format!("\"Moe\" is lost: {told}"));
    }

    #[test]
    fn missing_route_points_to_the_path_of_the_url() {
        let problem =
            json!({ "type": "unknown-route", "title": "", "status": 404, "detail": "This API has /v1/acquire." });
        let problem = serde_json::from_value(problem).expect("a problem");
        let error = Error::problem(problem, Duration::ZERO);
        assert_eq!(error.to_string(), "there is no such route: check the path of the URL. This API has /v1/acquire.");
    }
}
