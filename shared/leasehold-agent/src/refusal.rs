//! The answer to a request that is refused.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use leasehold_client::wire::{Lock, Problem, ProblemType};
use leasehold_client::{Error, ErrorKind};
use serde_json::{Value, json};

/// A refusal: the view of a lock that another holds, or a problem.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Another holds the lock.
    Held(Box<Lock>),
    /// The occurrence is done.
    AlreadyDone(Box<Lock>),
    /// The lock is lost, for this reason.
    Lost {
        reason: &'static str,
        detail: String,
    },
    Problem(Box<Problem>),
}

impl Refusal {
    /// Whether the service answered, as opposed to this process.
    pub(crate) fn is_of_service(&self) -> bool {
        match self {
            Self::Held(_) | Self::AlreadyDone(_) | Self::Lost { .. } => true,
            Self::Problem(problem) => !problem.retryable && problem.status != 400,
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let detail = error.in_full();
        let kind = match error.kind() {
            ErrorKind::Held(lock) => return Self::Held(lock.clone()),
            ErrorKind::AlreadyDone(lock) => return Self::AlreadyDone(lock.clone()),
            ErrorKind::Lost(loss) => return Self::Lost { reason: loss.reason.word(), detail },
            ErrorKind::InvalidRequest { field } => {
                let field = field.clone();
                return Problem { field, ..Problem::new(ProblemType::InvalidRequest, detail) }.into();
            }
            ErrorKind::QueueFull(lock) => {
                let lock = lock.clone();
                return Problem { lock, ..Problem::new(ProblemType::QueueFull, detail) }.into();
            }
            ErrorKind::NotFound => ProblemType::NotFound,
            ErrorKind::WrongKind => ProblemType::WrongKind,
            ErrorKind::PermitsMismatch => ProblemType::PermitsMismatch,
            ErrorKind::ExceedsCapacity => ProblemType::ExceedsCapacity,
            ErrorKind::Forbidden => ProblemType::Forbidden,
            ErrorKind::Throttled => ProblemType::Throttled,
            ErrorKind::CorruptRecord => ProblemType::CorruptRecord,
            ErrorKind::Misconfigured => ProblemType::Misconfigured,
            _ => ProblemType::Unavailable,
        };
        Problem::new(kind, detail).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Held(lock) => answer(423, &json!(lock)),
            Self::AlreadyDone(lock) => {
                let detail =
                    format!("The occurrence {:?} is done.", lock.last_occurrence.as_deref().unwrap_or_default());
                let problem = Problem::new(ProblemType::AlreadyDone, detail);
                let mut document = json!(problem);
                document["result"] = json!(lock.data.as_deref().or(lock.data_base64.as_deref()));
                document["lock"] = json!(lock);
                answer(problem.status, &document)
            }
            Self::Lost { reason, detail } => {
                let problem = Problem::new(ProblemType::Lost, detail);
                let mut document = json!(problem);
                document["reason"] = json!(reason);
                answer(problem.status, &document)
            }
            Self::Problem(problem) => answer(problem.status, &json!(problem)),
        }
    }
}

fn answer(status: u16, document: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = if status == StatusCode::LOCKED { "application/json" } else { "application/problem+json" };
    (status, [(CONTENT_TYPE, kind)], format!("{document}\n")).into_response()
}
