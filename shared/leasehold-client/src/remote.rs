//! The service, as typed calls over a transport. Rule C5: time-outs, and trying again.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use leasehold_wire::{
    AcquireRequest, AcquireResponse, BreakRequest, GetRequest, HealthResponse, HeartbeatRequest, HeartbeatResponse,
    ListRequest, ListResponse, Lock, Problem, ReleaseRequest, ReleaseResponse, Secret, path,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::clock::{Instant, deadline, jitter, millis, sleep};
use crate::{Error, Heartbeat, LockKey, Release, Released, Transport};

/// The ceiling of the first pause after a failure; it doubles.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// The ceiling of any such pause.
const LAST_BACKOFF: Duration = Duration::from_secs(2);
/// The longest pause that a server is granted.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);
/// No time-out is shorter: an answer from a function that starts cold takes some tens of milliseconds.
const MIN_TIMEOUT: Duration = Duration::from_millis(200);
/// A request that belongs to a lease may take this part of it, so that there is time for another.
const REQUESTS_PER_LEASE: u32 = 4;

/// The service.
#[derive(Clone)]
pub(crate) struct Remote {
    transport: Arc<dyn Transport>,
    request_timeout: Duration,
}

impl Remote {
    pub(crate) fn new(transport: Arc<dyn Transport>, request_timeout: Duration) -> Self {
        Self { transport, request_timeout }
    }

    /// The time-out of a request that belongs to no lease.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The time-out of a request that asks for a lease, or renews one.
    pub(crate) fn timeout_within(&self, lease: Duration) -> Duration {
        self.request_timeout.min((lease / REQUESTS_PER_LEASE).max(MIN_TIMEOUT))
    }

    pub(crate) async fn acquire(&self, request: &AcquireRequest, limit: Duration) -> Result<AcquireResponse, Error> {
        self.post(path::ACQUIRE, request, limit).await
    }

    pub(crate) async fn heartbeat(
        &self,
        key: &LockKey,
        lease_id: &Secret,
        change: &Heartbeat,
        limit: Duration,
    ) -> Result<HeartbeatResponse, Error> {
        let (data, data_base64) = encode_data(change.data.as_deref());
        let request = HeartbeatRequest {
            key: key.key.clone(),
            sort_key: key.sort_key.clone(),
            lease_id: lease_id.clone(),
            sequence: None,
            request_id: None,
            lease_duration_ms: change.lease.map(millis),
            record_version_number: None,
            data,
            data_base64,
            delete_data: change.delete_data.then_some(true),
        };
        self.post(path::HEARTBEAT, &request, limit).await
    }

    pub(crate) async fn release(&self, key: &LockKey, lease_id: &Secret, what: &Release) -> Result<Released, Error> {
        let (data, data_base64) = encode_data(what.data.as_deref());
        let request = ReleaseRequest {
            key: key.key.clone(),
            sort_key: key.sort_key.clone(),
            lease_id: lease_id.clone(),
            record_version_number: None,
            delete: what.delete.then_some(true),
            data,
            data_base64,
        };
        let response: ReleaseResponse = self.post(path::RELEASE, &request, self.request_timeout).await?;
        Ok(response.outcome.into())
    }

    pub(crate) async fn break_lock(&self, request: &BreakRequest) -> Result<ReleaseResponse, Error> {
        self.post(path::BREAK, request, self.request_timeout).await
    }

    pub(crate) async fn get(&self, request: &GetRequest) -> Result<Lock, Error> {
        self.query(path::LOCK, request).await
    }

    pub(crate) async fn list(&self, request: &ListRequest) -> Result<ListResponse, Error> {
        self.query(path::LOCKS, request).await
    }

    pub(crate) async fn health(&self) -> Result<HealthResponse, Error> {
        self.query(path::HEALTH, &()).await
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

    pub(crate) async fn query<Q: Serialize, A: DeserializeOwned>(&self, path: &str, request: &Q) -> Result<A, Error> {
        // A space as %20 means the same to every gateway and signature; a plus does not.
        let query = serde_urlencoded::to_string(request).map_err(not_a_request)?.replace('+', "%20");
        let request = Request::builder().method(Method::GET).uri(format!("{path}?{query}"));
        self.call(request.body(Vec::new()).map_err(not_a_request)?, self.request_timeout).await
    }

    async fn call<A: DeserializeOwned>(&self, request: Request<Vec<u8>>, limit: Duration) -> Result<A, Error> {
        match timeout(limit, self.transport.send(request)).await {
            Ok(Ok(response)) => answer(&response),
            Ok(Err(error)) => Err(Error::transport(error)),
            Err(_) => Err(Error::timed_out(limit)),
        }
    }
}

fn not_a_request(error: impl std::error::Error) -> Error {
    Error::new(crate::ErrorKind::InvalidRequest { field: None }, error.to_string())
}

fn answer<A: DeserializeOwned>(response: &Response<Vec<u8>>) -> Result<A, Error> {
    let (status, body) = (response.status(), response.body());
    if status == StatusCode::OK {
        return serde_json::from_slice(body).map_err(|_| Error::foreign(status, body, None));
    }
    let retry_after = retry_after(response.headers());
    // A gateway in between has documents of its own; only ours names the status that it came with.
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if problem.status == status.as_u16() => Err(Error::problem(problem, retry_after)),
        _ => Err(Error::foreign(status, body, retry_after)),
    }
}

/// In seconds; a date is as good as nothing, since it would be another machine's. Nobody is waited for longer than a minute:
/// what a proxy says must not put a waiter to sleep for a day.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)?;
    Some(seconds.min(MAX_RETRY_AFTER))
}

/// The pauses after failures that follow one another.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after one more failure: not before the service asked for, and then at random, so that
    /// callers who failed together do not come back together.
    pub(crate) fn pause(&mut self, error: &Error) -> Duration {
        let ceiling = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(10)).min(LAST_BACKOFF);
        self.failures += 1;
        error.retry_after() + jitter(ceiling)
    }
}

/// Sends a request until it is answered, it is pointless, or `until` has come.
pub(crate) async fn persist<T, F>(until: Instant, mut send: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut backoff = Backoff::default();
    loop {
        let error = match send().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let pause = backoff.pause(&error);
        if !error.is_retryable() || deadline(pause) >= until {
            return Err(error);
        }
        sleep(pause).await;
    }
}

/// A payload as the wire has it: as text where it is text, else as base64.
pub(crate) fn encode_data(data: Option<&[u8]>) -> (Option<String>, Option<String>) {
    match data.map(|bytes| std::str::from_utf8(bytes).map_err(|_| BASE64_STANDARD.encode(bytes))) {
        Some(Ok(text)) => (Some(text.to_owned()), None),
        Some(Err(base64)) => (None, Some(base64)),
        None => (None, None),
    }
}

/// The payload that the wire has.
pub(crate) fn decode_data(text: Option<String>, base64: Option<&str>) -> Option<Vec<u8>> {
    text.map(String::into_bytes).or_else(|| BASE64_STANDARD.decode(base64?).ok())
}
