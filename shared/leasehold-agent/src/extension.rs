//! The external extension of a Lambda function: it registers, learns of each invocation and of its end, and shuts down.
//!
//! The Extensions API tells the beginning of an invocation, and the Telemetry API its end (`platform.runtimeDone`). The
//! agent asks for the next event only after it has released what the invocation held: until then, Lambda does not
//! freeze the sandbox.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::agent::Agent;
use crate::door::of_sandbox;
use crate::time::{Deadline, moment};

/// The host name under which Lambda reaches listeners of the sandbox.
const SANDBOX: &str = "sandbox.localdomain";
const REGISTER: &str = "/2020-01-01/extension/register";
const NEXT: &str = "/2020-01-01/extension/event/next";
const TELEMETRY: &str = "/2022-07-01/telemetry";
/// The shortest time for which Lambda may buffer telemetry, in milliseconds.
const TELEMETRY_BUFFER_MS: u64 = 25;
/// The time for the releases at the end of an invocation. The lease ends by itself a margin after the deadline.
const END_WITHIN: Duration = Duration::from_secs(2);
/// The part of the 2 s of a shutdown that releases may take.
const SHUTDOWN_WITHIN: Duration = Duration::from_millis(1700);

/// A failure to speak with Lambda.
#[derive(Debug, thiserror::Error)]
pub enum ExtensionError {
    /// There was no answer.
    #[error("no answer from the Extensions API: {0}")]
    Unreachable(String),
    /// The answer was a refusal.
    #[error("the Extensions API refused {path}: {status} {body}")]
    Refused {
        /// The path of the request.
        path: &'static str,
        /// The status of the answer.
        status: StatusCode,
        /// The answer.
        body: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "eventType", rename_all = "UPPERCASE")]
enum Event {
    #[serde(rename_all = "camelCase")]
    Invoke { deadline_ms: u64, request_id: String },
    #[serde(rename_all = "camelCase")]
    Shutdown { shutdown_reason: String },
}

/// The extension, as Lambda knows it.
pub(crate) struct Extension {
    /// The host and the port of the API.
    api: String,
    id: String,
    /// The last invocation whose end was told. `None`: ends are not told.
    done: Option<watch::Receiver<String>>,
}

impl Extension {
    /// Registers for invocations and for the shutdown, under the name of the program's file.
    pub(crate) async fn register(api: &str, name: &str) -> Result<Self, ExtensionError> {
        let body = json!({ "events": ["INVOKE", "SHUTDOWN"] });
        let (headers, _) = call(api, Method::POST, REGISTER, ("lambda-extension-name", name), &body).await?;
        let id = headers.get("lambda-extension-identifier").and_then(|id| id.to_str().ok()).unwrap_or_default();
        let mut extension = Self { api: api.to_owned(), id: id.to_owned(), done: None };
        match extension.subscribe().await {
            Ok(done) => extension.done = Some(done),
            Err(error) => {
                tracing::warn!(%error, "no telemetry: locks are released at the next event, or before the deadline");
            }
        }
        Ok(extension)
    }

    /// Has the ends of invocations told.
    async fn subscribe(&self) -> Result<watch::Receiver<String>, ExtensionError> {
        let unreachable = |error: std::io::Error| ExtensionError::Unreachable(error.to_string());
        let address = SocketAddr::new(of_sandbox(SANDBOX).await, 0);
        let listener = TcpListener::bind(address).await.map_err(unreachable)?;
        let port = listener.local_addr().map_err(unreachable)?.port();
        let (ended, done) = watch::channel(String::new());
        let routes = Router::new().route("/", post(told)).with_state(Arc::new(ended));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let body = json!({
            "schemaVersion": "2022-12-13",
            "types": ["platform"],
            "buffering": { "maxItems": 1000, "maxBytes": 262_144, "timeoutMs": TELEMETRY_BUFFER_MS },
            "destination": { "protocol": "HTTP", "URI": format!("http://{SANDBOX}:{port}") },
        });
        let (_, answer) = call(&self.api, Method::PUT, TELEMETRY, self.identifier(), &body).await?;
        // Emulators accept a subscription that they do not serve.
        if answer.contains("NotSupported") {
            return Err(ExtensionError::Unreachable(answer));
        }
        Ok(done)
    }

    /// Serves one invocation after the other, until Lambda shuts the sandbox down. Returns whether no lock is left
    /// then.
    ///
    /// # Errors
    /// Lambda cannot be reached, or refuses.
    pub(crate) async fn run(&mut self, agent: &Agent) -> Result<bool, ExtensionError> {
        let mut deadline = None;
        loop {
            let event = self.next(agent, deadline.take()).await?;
            match serde_json::from_str(&event) {
                Ok(Event::Invoke { deadline_ms, request_id }) => {
                    let begun = agent.begin(moment(deadline_ms));
                    match &mut self.done {
                        Some(done) => {
                            end_of(&request_id, done, begun).await;
                            agent.end(END_WITHIN).await;
                        }
                        // The sandbox must be free to freeze: the next event tells the end of this invocation.
                        None => deadline = Some(begun),
                    }
                }
                Ok(Event::Shutdown { shutdown_reason }) => {
                    tracing::debug!(shutdown_reason, "the sandbox ends");
                    return Ok(agent.close(SHUTDOWN_WITHIN).await);
                }
                Err(error) => tracing::warn!(%error, "an event of an unknown kind"),
            }
        }
    }

    /// Asks for the next event. It, or the approaching `deadline`, ends an invocation whose end is not told.
    async fn next(&self, agent: &Agent, deadline: Option<Deadline>) -> Result<String, ExtensionError> {
        let mut next = pin!(call(&self.api, Method::GET, NEXT, self.identifier(), &Value::Null));
        let Some(deadline) = deadline else { return Ok(next.await?.1) };
        let event = tokio::select! {
            event = &mut next => Some(event),
            () = sleep_until(deadline.gives_back()) => None,
        };
        agent.end(END_WITHIN).await;
        Ok(match event {
            Some(event) => event?.1,
            None => next.await?.1,
        })
    }

    fn identifier(&self) -> (&'static str, &str) {
        ("lambda-extension-identifier", &self.id)
    }
}

/// Returns at the end of an invocation, or shortly before its deadline.
async fn end_of(request_id: &str, done: &mut watch::Receiver<String>, deadline: Deadline) {
    tokio::select! {
        _ = done.wait_for(|done| done == request_id) => {}
        () = sleep_until(deadline.gives_back()) => {}
    }
}

/// Receives telemetry.
async fn told(State(done): State<Arc<watch::Sender<String>>>, body: Bytes) -> StatusCode {
    let records: Vec<Value> = serde_json::from_slice(&body).unwrap_or_default();
    for record in records.iter().filter(|record| record["type"] == "platform.runtimeDone") {
        if let Some(id) = record["record"]["requestId"].as_str() {
            done.send_replace(id.to_owned());
        }
    }
    StatusCode::OK
}

/// Sends one request to Lambda. The answer to `next` may take as long as the sandbox lives.
async fn call(
    api: &str,
    method: Method,
    path: &'static str,
    (header, value): (&str, &str),
    body: &Value,
) -> Result<(http::HeaderMap, String), ExtensionError> {
    let unreachable = |error: &dyn std::fmt::Display| ExtensionError::Unreachable(error.to_string());
    let stream = TcpStream::connect(api).await.map_err(|error| unreachable(&error))?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&error))?;
    tokio::spawn(connection);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", api)
        .header("content-type", "application/json")
        .header(header, value)
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| unreachable(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|error| unreachable(&error))?.to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    if head.status.is_success() {
        Ok((head.headers, body))
    } else {
        Err(ExtensionError::Refused { path, status: head.status, body })
    }
}
