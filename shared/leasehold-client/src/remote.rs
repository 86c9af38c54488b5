//! Typed calls to the service over a transport, with time-outs and retries. Rule C5.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use leasehold_client_core::{Action, Call, Event, Memory, Reply, Terms};
use leasehold_wire::semaphore::{
    AcquirePermitsRequest, AcquirePermitsResponse, BreakEntryRequest, CapacityRequest, CapacityResponse, EnqueueAnswer,
    EnqueueRequest, EnqueueResponse, HeartbeatPermitsRequest, HeartbeatPermitsResponse, ReleasePermitsRequest,
};
use leasehold_wire::{
    AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse, BreakRequest, GetRequest, HealthResponse,
    HeartbeatRequest, HeartbeatResponse, HistoryRequest, HistoryResponse, ListRequest, ListResponse, Lock,
    OccurrenceRequest, OccurrenceResponse, Problem, ReleaseRequest, ReleaseResponse, Secret, WantRequest, WantResponse,
    WatchRequest, operation,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep_until, timeout};
use tracing::Instrument;
use tracing::field::Empty;

use crate::clock::{Draws, Instant, chance, millis, whole_since};
use crate::error::end_of;
use crate::subject::Subject;
use crate::transport::TimeLimit;
use crate::{Error, Heartbeat, LockKey, Release, Transport, timing};

/// A request under its number, and the time of its first sending, from which its lease counts.
pub(crate) type Numbered<R> = leasehold_client_core::Numbered<R, Instant>;

/// A holder's renewal.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) version: String,
    pub(crate) lease: Duration,
    pub(crate) fencing_token: u64,
    /// The permits of a semaphore.
    pub(crate) permits: u64,
    /// The holder id of a semaphore.
    pub(crate) holder_id: Option<String>,
    /// Whether somebody waits for the lock.
    pub(crate) wanted: bool,
}

/// A request of a caller that wants permits.
#[derive(Debug, Clone)]
pub(crate) enum PermitCall {
    Acquire(AcquirePermitsRequest),
    Enqueue(EnqueueRequest),
}

/// The answer to a step.
#[derive(Debug)]
pub(crate) enum Advance {
    Granted(AcquirePermitsResponse),
    Queued(EnqueueResponse),
}

/// Adds headers to a request, in the span of that request.
pub(crate) type Headers = Arc<dyn Fn(&mut HeaderMap) + Send + Sync>;

/// The service, through a transport.
#[derive(Clone)]
pub(crate) struct Remote {
    transport: Arc<dyn Transport>,
    headers: Option<Headers>,
    request_timeout: Duration,
    /// Whether the service has answered a request.
    answered: Arc<AtomicBool>,
}

impl Remote {
    pub(crate) fn new(transport: Arc<dyn Transport>, headers: Option<Headers>, request_timeout: Duration) -> Self {
        Self { transport, headers, request_timeout, answered: Arc::default() }
    }

    /// The knowledge that this client's calls share.
    pub(crate) fn memory(&self) -> Memory {
        Memory { answered: self.answered.load(Ordering::Relaxed) }
    }

    /// The longest time-out of a request without a lease.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The time-out of a request in a wait for a lease, with this much of the wait left.
    pub(crate) fn poll_timeout(&self, lease: Duration, left: Duration) -> Duration {
        timing::poll_timeout(self.request_timeout, lease, left)
    }

    pub(crate) async fn acquire(
        &self,
        key: &LockKey,
        numbered: &Numbered<AcquireRequest>,
        limit: Duration,
    ) -> Result<AcquireResponse, Error> {
        let request = AcquireRequest {
            sequence: Some(numbered.sequence),
            request_id: Some(numbered.id.clone()),
            ..numbered.request.clone()
        };
        self.post(operation::ACQUIRE.path, &request, limit).await.map_err(|error| error.about(Subject::Lock, key))
    }

    /// Renews a lease. The holder believes in at least `lease`, and `left` of it is left.
    pub(crate) async fn heartbeat(
        &self,
        subject: Subject,
        key: &LockKey,
        lease_id: &Secret,
        numbered: &Numbered<Heartbeat>,
        lease: Option<Duration>,
        left: Duration,
    ) -> Result<Renewal, Error> {
        let change = &numbered.request;
        let (data, data_base64) = encode_data(change.data.as_deref());
        let limit = timing::request_timeout(self.request_timeout, lease, left);
        let renewal = match subject {
            Subject::Lock => {
                let request = HeartbeatRequest {
                    key: key.key.clone(),
                    sort_key: key.sort_key.clone(),
                    lease_id: lease_id.clone(),
                    sequence: Some(numbered.sequence),
                    request_id: Some(numbered.id.clone()),
                    lease_duration_ms: change.lease.map(millis),
                    record_version_number: None,
                    fencing_token: change.fencing_token,
                    data,
                    data_base64,
                    delete_data: change.delete_data.then_some(true),
                };
                self.post(operation::HEARTBEAT.path, &request, limit).await.map(|answer: HeartbeatResponse| Renewal {
                    version: answer.record_version_number,
                    lease: Duration::from_millis(answer.lease_duration_ms),
                    fencing_token: answer.fencing_token,
                    permits: 0,
                    holder_id: None,
                    wanted: answer.wanted,
                })
            }
            Subject::Permits => {
                let request = HeartbeatPermitsRequest {
                    key: key.key.clone(),
                    sort_key: key.sort_key.clone(),
                    lease_id: lease_id.clone(),
                    sequence: Some(numbered.sequence),
                    request_id: Some(numbered.id.clone()),
                    lease_duration_ms: change.lease.map(millis),
                    version: None,
                    fencing_token: change.fencing_token,
                    permits: change.keep,
                    held_permits: change.held,
                    data,
                    data_base64,
                };
                let answer = self.post(operation::SEMAPHORE_HEARTBEAT.path, &request, limit).await;
                answer.map(|answer: HeartbeatPermitsResponse| Renewal {
                    version: answer.version,
                    lease: Duration::from_millis(answer.lease_duration_ms),
                    fencing_token: answer.fencing_token,
                    permits: answer.permits,
                    holder_id: Some(answer.holder_id),
                    wanted: false,
                })
            }
        };
        renewal.map_err(|error| error.about(subject, key))
    }

    /// Ends a hold under this lease, if it is known.
    pub(crate) async fn release(
        &self,
        subject: Subject,
        key: &LockKey,
        lease_id: &Secret,
        what: &Release,
        lease: Option<Duration>,
        left: Duration,
    ) -> Result<ReleaseResponse, Error> {
        let limit = timing::request_timeout(self.request_timeout, lease, left);
        let (key_, sort_key, lease_id) = (key.key.clone(), key.sort_key.clone(), lease_id.clone());
        let response = match subject {
            Subject::Lock => {
                let (data, data_base64) = encode_data(what.data.as_deref());
                let request = ReleaseRequest {
                    key: key_,
                    sort_key,
                    lease_id,
                    record_version_number: None,
                    delete: what.delete.then_some(true),
                    data,
                    data_base64,
                    completed: what.completed.clone(),
                    completed_ttl_ms: what.completed_ttl.map(millis),
                };
                self.post(operation::RELEASE.path, &request, limit).await
            }
            Subject::Permits => {
                let (fencing_token, number) = (what.fencing_token, what.ticket);
                let request =
                    ReleasePermitsRequest { key: key_, sort_key, lease_id, version: None, fencing_token, number };
                self.post(operation::SEMAPHORE_RELEASE.path, &request, limit).await
            }
        };
        response.map_err(|error| error.about(subject, key))
    }

    /// Requests permits, or a place in the queue.
    pub(crate) async fn advance(
        &self,
        key: &LockKey,
        numbered: &Numbered<PermitCall>,
        limit: Duration,
    ) -> Result<Advance, Error> {
        let (sequence, request_id) = (Some(numbered.sequence), Some(numbered.id.clone()));
        let answer = match numbered.request.clone() {
            PermitCall::Acquire(request) => {
                let request = AcquirePermitsRequest { sequence, request_id, ..request };
                self.post(operation::SEMAPHORE_ACQUIRE.path, &request, limit).await.map(Advance::Granted)
            }
            PermitCall::Enqueue(request) => {
                let request = EnqueueRequest { sequence, request_id, ..request };
                let answer = self.post(operation::SEMAPHORE_ENQUEUE.path, &request, limit).await;
                answer.map(|answer| match answer {
                    EnqueueAnswer::Granted(grant) => Advance::Granted(grant),
                    EnqueueAnswer::Queued(place) => Advance::Queued(place),
                })
            }
        };
        answer.map_err(|error| error.about(Subject::Permits, key))
    }

    pub(crate) async fn acquire_all(
        &self,
        numbered: &Numbered<AcquireAllRequest>,
        limit: Duration,
    ) -> Result<AcquireAllResponse, Error> {
        let request = AcquireAllRequest {
            sequence: Some(numbered.sequence),
            request_id: Some(numbered.id.clone()),
            ..numbered.request.clone()
        };
        self.post(operation::ACQUIRE_ALL.path, &request, limit).await
    }

    pub(crate) async fn break_entry(
        &self,
        request: &BreakEntryRequest,
        left: Duration,
    ) -> Result<ReleaseResponse, Error> {
        self.post(operation::SEMAPHORE_BREAK.path, request, timing::request_timeout(self.request_timeout, None, left))
            .await
    }

    pub(crate) async fn set_capacity(
        &self,
        request: &CapacityRequest,
        left: Duration,
    ) -> Result<CapacityResponse, Error> {
        self.post(
            operation::SEMAPHORE_CAPACITY.path,
            request,
            timing::request_timeout(self.request_timeout, None, left),
        )
        .await
    }

    pub(crate) async fn get_semaphore(&self, request: &GetRequest, left: Duration) -> Result<Lock, Error> {
        self.query(operation::SEMAPHORE_GET.path, request, left).await
    }

    pub(crate) async fn break_lock(&self, request: &BreakRequest, left: Duration) -> Result<ReleaseResponse, Error> {
        self.post(operation::BREAK.path, request, timing::request_timeout(self.request_timeout, None, left)).await
    }

    pub(crate) async fn want(&self, request: &WantRequest) -> Result<WantResponse, Error> {
        self.post(operation::WANT.path, request, self.request_timeout).await
    }

    pub(crate) async fn set_occurrence(
        &self,
        request: &OccurrenceRequest,
        left: Duration,
    ) -> Result<OccurrenceResponse, Error> {
        let limit = timing::request_timeout(self.request_timeout, None, left);
        self.post(operation::OCCURRENCE.path, request, limit).await
    }

    pub(crate) async fn get(&self, request: &GetRequest, left: Duration) -> Result<Lock, Error> {
        self.query(operation::GET.path, request, left).await
    }

    /// Watches a lock. The time-out is `wait` and the time of a request.
    pub(crate) async fn watch(&self, request: &WatchRequest, wait: Duration) -> Result<Lock, Error> {
        let limit = self.request_timeout.saturating_add(wait);
        self.call(get(operation::WATCH.path, request)?, limit).await
    }

    pub(crate) async fn list(&self, request: &ListRequest, left: Duration) -> Result<ListResponse, Error> {
        self.query(operation::LIST.path, request, left).await
    }

    pub(crate) async fn history(&self, request: &HistoryRequest, left: Duration) -> Result<HistoryResponse, Error> {
        self.query(operation::HISTORY.path, request, left).await
    }

    pub(crate) async fn health(&self) -> Result<HealthResponse, Error> {
        self.query(operation::HEALTH.path, &(), Duration::MAX).await
    }

    pub(crate) async fn post<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<A, Error> {
        let body = serde_json::to_vec(request).map_err(not_a_request)?;
        let request = Request::builder().method(Method::POST).uri(path).header(CONTENT_TYPE, "application/json");
        self.call(request.body(body).map_err(not_a_request)?, limit).await
    }

    /// Sends a read, with this much of the operation left.
    pub(crate) async fn query<Q: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        request: &Q,
        left: Duration,
    ) -> Result<A, Error> {
        let limit = timing::request_timeout(self.request_timeout, None, left);
        self.call(get(path, request)?, limit).await
    }

    async fn call<A: DeserializeOwned>(&self, mut request: Request<Vec<u8>>, limit: Duration) -> Result<A, Error> {
        let span = tracing::debug_span!(
            "request",
            otel.kind = "client",
            http.request.method = display(request.method()),
            url.path = request.uri().path(),
            http.response.status_code = Empty,
        );
        if let Some(headers) = &self.headers {
            span.in_scope(|| headers(request.headers_mut()));
        }
        request.extensions_mut().insert(TimeLimit { whole: limit, answer: self.request_timeout });
        match timeout(limit, self.transport.send(request)).instrument(span.clone()).await {
            Ok(Ok(response)) => {
                self.answered.store(true, Ordering::Relaxed);
                span.record("http.response.status_code", response.status().as_u16());
                answer(&response)
            }
            Ok(Err(error)) => Err(Error::transport(error, self.answered.load(Ordering::Relaxed))),
            Err(_) => Err(Error::timed_out(limit)),
        }
    }
}

fn get<Q: Serialize>(path: &str, request: &Q) -> Result<Request<Vec<u8>>, Error> {
    // A space as %20 means the same to every gateway and signature; a plus does not.
    let query = serde_urlencoded::to_string(request).map_err(not_a_request)?.replace('+', "%20");
    let request = Request::builder().method(Method::GET).uri(format!("{path}?{query}"));
    request.body(Vec::new()).map_err(not_a_request)
}

fn not_a_request(error: impl std::error::Error) -> Error {
    Error::new(crate::ErrorKind::InvalidRequest { field: None }, error.to_string())
}

fn answer<A: DeserializeOwned>(response: &Response<Vec<u8>>) -> Result<A, Error> {
    let (status, body) = (response.status(), response.body());
    if status == StatusCode::OK {
        return serde_json::from_slice(body).map_err(|_| Error::foreign(status, body, Duration::ZERO));
    }
    let header = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = timing::retry_after(header);
    // A gateway has documents of its own. Only the service's document names the status of its answer.
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if problem.status == status.as_u16() => Err(Error::problem(problem, retry_after)),
        _ => Err(Error::foreign(status, body, retry_after)),
    }
}

/// The pauses after consecutive failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the pause after one more failure. The pause is random, so that callers that failed together do not
    /// return together. It is no shorter than the service asked for.
    pub(crate) fn pause(&mut self, error: &Error) -> Duration {
        self.failures = self.failures.saturating_add(1);
        timing::backoff(self.failures, error.retry_after(), chance())
    }
}

/// Retries a request until it succeeds, a retry cannot succeed, or `until` has come. `send` receives the time that is
/// left.
pub(crate) async fn persist<T, F>(until: Instant, mut send: impl FnMut(Duration) -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let zero = Instant::now();
    let bound = until.saturating_duration_since(zero);
    let mut call = Call::retried(Terms { longest: Duration::MAX, bound, ..Terms::default() });
    let (mut memory, mut result) = (Memory::default(), Err(Error::abandoned()));
    let mut event = Event::Start { request: (), timeout: Duration::MAX };
    loop {
        let step = call.step(&mut memory, event, whole_since(zero), &mut Draws);
        event = match step.actions.first() {
            Some(Action::Send { send: number, timeout, .. }) => {
                result = send(*timeout).await;
                // An error knows whether the service had answered by then.
                memory.answered |= result.as_ref().is_err_and(|error| !error.is_unreached());
                end_of(*number, &result, |_| Reply::Done { lease: None, found: true })
            }
            Some(Action::WakeAt(time)) => {
                sleep_until(zero + *time).await;
                Event::Tick
            }
            _ => return result,
        };
    }
}

/// Encodes a payload for the wire: as text if it is UTF-8, else as base64.
pub(crate) fn encode_data(data: Option<&[u8]>) -> (Option<String>, Option<String>) {
    match data.map(|bytes| std::str::from_utf8(bytes).map_err(|_| BASE64_STANDARD.encode(bytes))) {
        Some(Ok(text)) => (Some(text.to_owned()), None),
        Some(Err(base64)) => (None, Some(base64)),
        None => (None, None),
    }
}

/// Decodes a payload from the wire.
pub(crate) fn decode_data(text: Option<String>, base64: Option<&str>) -> Option<Vec<u8>> {
    text.map(String::into_bytes).or_else(|| BASE64_STANDARD.decode(base64?).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::vectors::cases;
    use crate::{ErrorKind, LossReason};

    /// Returns the vectors' word for a kind.
    fn kind(error: &Error) -> Value {
        let word = match error.kind() {
            ErrorKind::Held(_) => "held",
            ErrorKind::Lost(_) => "lost",
            ErrorKind::Superseded { .. } => "superseded",
            ErrorKind::NotFound => "not-found",
            ErrorKind::VersionMismatch => "version-mismatch",
            ErrorKind::Forbidden => "forbidden",
            ErrorKind::InvalidRequest { .. } => "invalid-request",
            ErrorKind::CorruptRecord => "corrupt-record",
            ErrorKind::Misconfigured => "misconfigured",
            ErrorKind::Throttled => "throttled",
            ErrorKind::Unavailable => "unavailable",
            other => panic!("no case has {other:?}"),
        };
        word.into()
    }

    fn reason(reason: LossReason) -> Value {
        match reason {
            LossReason::TakenOver => "taken-over".into(),
            LossReason::Released => "released".into(),
            LossReason::Absent => "absent".into(),
            other => panic!("no case has {other:?}"),
        }
    }

    fn member(error: &Error, name: &str) -> Value {
        match (name, error.kind()) {
            ("kind", _) => kind(error),
            ("retryable", _) => error.retryable().into(),
            ("unanswered", _) => error.is_unanswered().into(),
            ("retryAfterMs", _) => millis(error.retry_after()).into(),
            ("reason", ErrorKind::Lost(loss)) => reason(loss.reason),
            ("field", ErrorKind::InvalidRequest { field }) => json!(field),
            ("sequence", ErrorKind::Superseded { sequence, .. }) => json!(sequence),
            ("fencingToken", ErrorKind::Superseded { fencing_token, .. }) => json!(fencing_token),
            (name, kind) => panic!("no {name} in {kind:?}"),
        }
    }

    #[test]
    fn problems_follow_the_vectors() {
        for case in cases("problems.json", "problem") {
            let given = &case["given"];
            let status = u16::try_from(given["status"].as_u64().expect("a status")).expect("a status");
            let mut response = Response::builder().status(status);
            if let Some(seconds) = given["retryAfter"].as_str() {
                response = response.header(RETRY_AFTER, seconds);
            }
            let body = given["body"].as_str().map_or_else(|| given["body"].to_string(), str::to_owned);
            let response = response.body(body.into_bytes()).expect("a response");
            let error = answer::<HeartbeatResponse>(&response).expect_err("no answer of the service's");
            for (name, expected) in case["expect"].as_object().expect("members") {
                assert_eq!(member(&error, name), *expected, "{}: {name}", case["name"]);
            }
        }
    }
}
