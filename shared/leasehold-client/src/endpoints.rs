//! The endpoints of one service, of which one is current. Where it gives no answer, the next one is asked. Rule C11.
//!
//! A request that certainly was not sent goes to the next endpoint at once. One that may have been carried out is left
//! to the caller, whose next try, under the same lease id and sequence number, goes to the next endpoint.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Request, Response};
use leasehold_wire::{Problem, ProblemType};
use tokio::time::{Instant, timeout};

use crate::http_transport::Endpoint;
use crate::transport::TimeLimit;
use crate::{Error, TransportError, timing};

/// The endpoint that is asked first, and what was wrong with others since the last answer.
#[derive(Debug, Default)]
pub(crate) struct Course {
    current: AtomicUsize,
    failures: Mutex<BTreeMap<usize, String>>,
}

impl Course {
    /// Sends a request to the current one of several endpoints, and to the next ones where it was not sent.
    pub(crate) async fn send(
        &self,
        endpoints: &[Endpoint],
        request: Request<Vec<u8>>,
    ) -> Result<Response<Vec<u8>>, TransportError> {
        let limit = request.extensions().get::<TimeLimit>().copied();
        let first = self.current.load(Ordering::Relaxed);
        let mut failed = TransportError::not_sent("there is no endpoint");
        for at in (first..endpoints.len()).chain(0..first) {
            let endpoint = &endpoints[at];
            let turn = Turn { course: self, endpoints, at, end: limit.map(|limit| Instant::now() + limit.whole) };
            let result = match limit.map(|limit| limit.of_one(endpoints.len())) {
                None => endpoint.exchange(request.clone()).await,
                Some(limit) => timeout(limit, endpoint.exchange(request.clone()))
                    .await
                    .unwrap_or_else(|_| Err(TransportError::unanswered(format!("no answer within {limit:?}")))),
            };
            let error = match result.and_then(heard) {
                Ok((answer, trouble)) => {
                    turn.answered(trouble);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let told = turn.failed(error.to_string());
            failed = error.told(told);
            if failed.may_have_been_delivered() {
                break;
            }
        }
        Err(failed)
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request at one endpoint.
struct Turn<'a> {
    course: &'a Course,
    endpoints: &'a [Endpoint],
    at: usize,
    /// The time after which the request counts as unanswered, where it is given up by its sender. A request that is
    /// given up before says nothing about the endpoint.
    end: Option<Instant>,
}

impl Turn<'_> {
    /// The endpoint answered, and stays the current one unless it is in trouble.
    fn answered(mut self, trouble: Option<String>) {
        self.end = None;
        match trouble {
            None => self.course.failures().clear(),
            Some(trouble) => self.leave(trouble),
        }
    }

    /// The endpoint gave no answer. Returns what is wrong with it, and with those before it.
    fn failed(mut self, reason: String) -> String {
        self.end = None;
        self.leave(reason);
        let failures = self.course.failures();
        failures.iter().map(|(at, reason)| format!("{}: {reason}", self.endpoints[*at])).collect::<Vec<_>>().join("; ")
    }

    /// Makes the next endpoint the current one, unless another request has done so.
    fn leave(&self, reason: String) {
        self.course.failures().insert(self.at, reason);
        let next = (self.at + 1) % self.endpoints.len();
        let _ = self.course.current.compare_exchange(self.at, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.end.is_some_and(|end| Instant::now() >= end) {
            self.leave("no answer in time".to_owned());
        }
    }
}

impl TimeLimit {
    /// The time of one of so many endpoints.
    fn of_one(self, endpoints: usize) -> Duration {
        timing::endpoint_timeout(self.whole, self.answer, u32::try_from(endpoints).unwrap_or(u32::MAX))
    }
}

/// Tells an answer of the service from that of a gateway that cannot reach it. Returns with the answer what is wrong
/// with the endpoint: the service is there, and its table is not.
///
/// # Errors
/// The answer is a gateway's, which does not say when to return.
fn heard(answer: Response<Vec<u8>>) -> Result<(Response<Vec<u8>>, Option<String>), TransportError> {
    let (status, body) = (answer.status(), answer.body());
    if !status.is_server_error() {
        return Ok((answer, None));
    }
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if problem.status == status.as_u16() => {
            let trouble = (problem.problem_type == ProblemType::Unavailable).then_some(problem.detail);
            Ok((answer, trouble))
        }
        _ if answer.headers().contains_key(RETRY_AFTER) => Ok((answer, None)),
        _ => Err(TransportError::unanswered(Error::foreign(status, body, Duration::ZERO).to_string())),
    }
}
