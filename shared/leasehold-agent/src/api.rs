//! The local API.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use leasehold_client::wire::{Problem, ProblemType, Staleness};
use leasehold_client::{LockKey, Release};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::agent::{Agent, Ask, Patience};
use crate::duration::parse_or_zero;
use crate::lock::{Lock, View};
use crate::refusal::Refusal;

/// The fencing token of a grant.
const TOKEN_HEADER: &str = "leasehold-fencing-token";

type Shared = State<Arc<Agent>>;

/// The routes.
pub(crate) fn routes(agent: Arc<Agent>) -> Router {
    Router::new()
        .route("/acquire", post(acquire))
        .route("/hold", post(hold))
        .route("/release", post(release))
        .route("/locks", get(locks))
        .route("/lock", get(lock))
        .route("/health", get(health))
        .fallback(async || -> Response {
            let detail = "The agent has /acquire, /hold, /release, /lock, /locks and /health.";
            Refusal::from(Problem::new(ProblemType::UnknownRoute, detail)).into_response()
        })
        .with_state(agent)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AcquireBody {
    key: String,
    sort_key: Option<String>,
    lease_duration_ms: Option<u64>,
    wait: Option<String>,
    permits: Option<u64>,
    capacity: Option<u64>,
    occurrence: Option<String>,
    data: Option<String>,
    #[serde(default)]
    staleness: Staleness,
    #[serde(default)]
    keep: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReleaseBody {
    handle: String,
    completed: Option<Completed>,
    completed_ttl_ms: Option<u64>,
    data: Option<String>,
}

/// The occurrence that is done: by its name, or the one that the lock was acquired for.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Completed {
    Own(bool),
    Named(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandleQuery {
    handle: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Granted<'a> {
    handle: &'a str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_key: Option<&'a str>,
    fencing_token: u64,
    valid_for_ms: u64,
    /// The payload of the predecessor, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    handle: &'a str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_key: Option<&'a str>,
    fencing_token: u64,
    valid_for_ms: u64,
    wanted: bool,
    lost: Option<&'static str>,
}

async fn acquire(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let lock = agent.acquire(ask(&body)?).await?;
    let document = json!(granted(&agent, &lock));
    Ok(([(TOKEN_HEADER, lock.fencing_token.to_string())], answer(&document)).into_response())
}

async fn hold(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let lock = agent.acquire(ask(&body)?).await?;
    let token = lock.fencing_token.to_string();
    let mut first = json!(granted(&agent, &lock));
    first["event"] = json!("granted");
    let held = Hold { last: lock.view(), changes: lock.changes(), thaws: agent.thaws(), lock, first: Some(first) };
    let lines = stream::unfold(held, async |mut held| {
        let line = held.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(format!("{line}\n"))), held))
    });
    let headers = [(CONTENT_TYPE, "application/x-ndjson"), (CACHE_CONTROL, "no-store")];
    Ok((headers, [(TOKEN_HEADER, token)], Body::from_stream(lines)).into_response())
}

async fn release(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let ReleaseBody { handle, completed, completed_ttl_ms, data } = read(&body)?;
    let lock = agent.lock(&handle).ok_or_else(|| unknown(&handle))?;
    if lock.is_of_permits && (completed.is_some() || completed_ttl_ms.is_some() || data.is_some()) {
        return Err(Problem::invalid("data", "Permits leave neither data nor an occurrence.").into());
    }
    let mut release = Release::new();
    match (completed, &lock.occurrence) {
        (None | Some(Completed::Own(false)), _) => {}
        (Some(Completed::Named(occurrence)), _) => release = release.completed(occurrence),
        (Some(Completed::Own(true)), Some(occurrence)) => release = release.completed(occurrence),
        (Some(Completed::Own(true)), None) => {
            return Err(Problem::invalid("completed", "The lock was acquired for no occurrence: name it.").into());
        }
    }
    if let Some(ms) = completed_ttl_ms {
        release = release.completed_ttl(Duration::from_millis(ms));
    }
    if let Some(data) = data {
        release = release.data(data);
    }
    let released = lock.release(release).await.ok_or_else(|| unknown(&handle))?;
    released?;
    Ok(answer(&json!({ "handle": handle, "key": lock.key.key })))
}

async fn locks(State(agent): Shared) -> Response {
    let locks: Vec<_> = agent.locks().iter().map(|lock| state(&agent, lock)).collect();
    answer(&json!({ "locks": locks }))
}

async fn lock(State(agent): Shared, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let query: HandleQuery = serde_urlencoded::from_str(&query.unwrap_or_default())
        .map_err(|error| Problem::invalid("handle", format!("Name the handle: /lock?handle=… ({error}).")))?;
    let lock = agent.lock(&query.handle).ok_or_else(|| unknown(&query.handle))?;
    Ok(answer(&state(&agent, &lock)))
}

async fn health(State(agent): Shared) -> Result<Response, Refusal> {
    agent.health().await?;
    Ok(answer(&json!({ "status": "ok" })))
}

fn ask(body: &[u8]) -> Result<Ask, Refusal> {
    let body: AcquireBody = read(body)?;
    let wait = match body.wait.as_deref() {
        None => Patience::AtMost(Duration::ZERO),
        Some("invocation") => Patience::Invocation,
        Some(text) => Patience::AtMost(
            parse_or_zero(text).map_err(|error| Problem::invalid("wait", format!("{error}, or \"invocation\".")))?,
        ),
    };
    Ok(Ask {
        key: LockKey { key: body.key, sort_key: body.sort_key },
        lease: body.lease_duration_ms.map(Duration::from_millis),
        wait,
        permits: body.permits,
        capacity: body.capacity,
        occurrence: body.occurrence,
        data: body.data,
        staleness: body.staleness,
        keep: body.keep,
    })
}

/// Reads a body. Its content type does not matter: no page gets as far as this.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Problem::new(ProblemType::InvalidRequest, format!("The body is not the JSON of this call: {error}.")).into()
    })
}

fn unknown(handle: &str) -> Refusal {
    let shown: String = handle.chars().take(64).collect();
    let detail = format!("No lock has the handle {shown:?}: it was released, or its invocation ended.");
    Problem::new(ProblemType::NotFound, detail).into()
}

fn granted<'a>(agent: &Agent, lock: &'a Lock) -> Granted<'a> {
    Granted {
        handle: &lock.handle,
        key: &lock.key.key,
        sort_key: lock.key.sort_key.as_deref(),
        fencing_token: lock.fencing_token,
        valid_for_ms: millis(lock.view().valid_for(agent.look())),
        data: lock.data.as_deref().and_then(|data| std::str::from_utf8(data).ok()),
    }
}

fn state(agent: &Agent, lock: &Lock) -> Value {
    let view = lock.view();
    json!(Status {
        handle: &lock.handle,
        key: &lock.key.key,
        sort_key: lock.key.sort_key.as_deref(),
        fencing_token: lock.fencing_token,
        valid_for_ms: millis(view.valid_for(agent.look())),
        wanted: view.wanted,
        lost: view.lost,
    })
}

fn answer(document: &Value) -> Response {
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    (headers, format!("{document}\n")).into_response()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A lock that ends with its connection: the server drops the body when the caller is gone.
struct Hold {
    lock: Arc<Lock>,
    changes: watch::Receiver<View>,
    thaws: watch::Receiver<u64>,
    last: View,
    first: Option<Value>,
}

impl Hold {
    /// The next line, once there is news. `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        // Nothing follows a loss.
        while self.last.lost.is_none() {
            if let Some(news) = self.news() {
                return Some(news);
            }
            if self.last.is_over || self.changes.changed().await.is_err() {
                return None;
            }
        }
        None
    }

    /// One change since the last line.
    fn news(&mut self) -> Option<Value> {
        let now = self.changes.borrow_and_update().clone();
        let valid_for_ms = millis(now.valid_for(*self.thaws.borrow()));
        let last = &mut self.last;
        if last.lost.is_none() && now.lost.is_some() {
            last.lost = now.lost;
            Some(json!({ "event": "lost", "reason": now.lost }))
        } else if !last.wanted && now.wanted {
            last.wanted = true;
            Some(json!({ "event": "wanted", "validForMs": valid_for_ms }))
        } else if !last.at_risk && now.at_risk {
            last.at_risk = true;
            Some(json!({ "event": "at-risk", "validForMs": valid_for_ms }))
        } else {
            // All other changes were told.
            let is_renewed = last.renewals < now.renewals;
            *last = now;
            is_renewed.then(|| json!({ "event": "renewed", "validForMs": valid_for_ms }))
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let lock = Arc::clone(&self.lock);
        // Without a runtime, the agent is about to end.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { lock.release(Release::new()).await });
        }
    }
}
