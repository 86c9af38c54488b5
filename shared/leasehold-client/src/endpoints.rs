//! The endpoints of one service, of which one is current. Where it gives no answer of the service's, the next one is
//! asked. Rule C11.
//!
//! A request that certainly was not sent goes to the next endpoint at once. One that may have been carried out is left
//! to the caller, whose next try, under the same lease id and sequence number, goes to the next endpoint.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use leasehold_wire::{Problem, ProblemType};
use serde_json::Value;
use tokio::time::timeout;

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
        let limit = request.extensions().get::<TimeLimit>().map(|limit| limit.of_one(endpoints.len()));
        let first = self.current.load(Ordering::Relaxed);
        let mut failed = TransportError::not_sent("there is no endpoint");
        for at in (first..endpoints.len()).chain(0..first) {
            let asking = endpoints[at].exchange(request.clone());
            let result = match limit {
                None => asking.await,
                Some(limit) => timeout(limit, asking)
                    .await
                    .unwrap_or_else(|_| Err(TransportError::unanswered(format!("no answer within {limit:?}")))),
            };
            let error = match result.and_then(heard) {
                Ok((answer, None)) => {
                    self.failures().clear();
                    return Ok(answer);
                }
                Ok((answer, Some(trouble))) => {
                    self.leave(at, endpoints.len(), trouble);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            self.leave(at, endpoints.len(), error.to_string());
            failed = error.told(self.told(endpoints));
            if failed.may_have_been_delivered() {
                break;
            }
        }
        Err(failed)
    }

    /// Makes the next endpoint the current one, unless another request has done so.
    fn leave(&self, at: usize, endpoints: usize, reason: String) {
        self.failures().insert(at, reason);
        let next = (at + 1) % endpoints;
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// What was wrong with each endpoint since the last answer.
    fn told(&self, endpoints: &[Endpoint]) -> String {
        let told: Vec<_> = self.failures().iter().map(|(at, reason)| format!("{}: {reason}", endpoints[*at])).collect();
        told.join("; ")
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimeLimit {
    /// The time of one of so many endpoints.
    fn of_one(self, endpoints: usize) -> Duration {
        timing::endpoint_timeout(self.whole, self.answer, u32::try_from(endpoints).unwrap_or(u32::MAX))
    }
}

/// Tells an answer of the service, or a refusal, from that of another program. Returns with the answer what is wrong
/// with the endpoint, where the next try goes to the next one after a pause: the service is there, and its table is
/// not; or a gateway says when to return.
///
/// # Errors
/// The answer is another program's, which does not say when to return.
fn heard(answer: Response<Vec<u8>>) -> Result<(Response<Vec<u8>>, Option<String>), TransportError> {
    let (status, body) = (answer.status(), answer.body());
    let own = serde_json::from_slice::<Problem>(body).ok().filter(|problem| problem.status == status.as_u16());
    if let Some(problem) = own {
        let trouble = (problem.problem_type == ProblemType::Unavailable).then_some(problem.detail);
        return Ok((answer, trouble));
    }
    let is_result = status == StatusCode::OK && serde_json::from_slice::<Value>(body).is_ok_and(|it| it.is_object());
    let is_late = status == StatusCode::REQUEST_TIMEOUT;
    if is_result || status.is_client_error() && !is_late {
        return Ok((answer, None));
    }
    let trouble = Error::foreign(status, body, Duration::ZERO).to_string();
    if (is_late || status.is_server_error()) && asks_for_a_pause(&answer) {
        Ok((answer, Some(trouble)))
    } else {
        Err(TransportError::unanswered(trouble))
    }
}

fn asks_for_a_pause(answer: &Response<Vec<u8>>) -> bool {
    let header = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    !timing::retry_after(header).is_zero()
}
