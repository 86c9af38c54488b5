//! The embedded engine, for other DynamoDB clients on this machine.
//!
//! A request must be signed, as for DynamoDB. With [`Credentials`], signatures are checked; without them, every client
//! of the port owns the data, so the port then belongs on the loopback interface. Web pages are kept out: a request
//! with an `Origin` is refused, a preflight gets no answer, and a page cannot send the headers of a signature without
//! asking.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use hyper::header::{CONTENT_TYPE, HeaderValue, ORIGIN};
use hyper::{Method, StatusCode};
use leasehold_engine::Engine;
use leasehold_wire::ProblemType;

use crate::buffers::Unread;
use crate::credentials::{Credentials, Refusal, Signature};
use crate::places::Place;
use crate::routes::{read, with_memory};
use crate::{aside, buffers};
use leasehold_origin::Guard;

/// DynamoDB's own limit for a request.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// The port of an engine.
#[derive(Debug)]
pub struct Exposed {
    /// The engine whose data it serves.
    pub engine: Engine,
    /// The hosts that it answers to.
    pub guard: Guard,
    /// The credentials of its clients. Absent: no signature is checked.
    pub credentials: Option<Credentials>,
}

/// Serves the engine's data at `POST /`.
pub fn routes(exposed: Exposed) -> Router {
    Router::new().fallback(any(answer)).with_state(Arc::new(exposed))
}

#[allow(clippy::disallowed_methods, reason = "a signature carries the time of the wall clock")]
async fn answer(State(exposed): State<Arc<Exposed>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Err(problem) = exposed.guard.check(&parts) {
        return refusal(StatusCode::FORBIDDEN, "AccessDeniedException", &problem.detail);
    }
    if parts.headers.contains_key(ORIGIN) {
        return refusal(StatusCode::FORBIDDEN, "AccessDeniedException", "Web pages may not use this port.");
    }
    if parts.method == Method::GET {
        return Response::new(Body::from("healthy: the embedded engine of Leasehold\n"));
    }
    let signature = match Signature::of(&parts.headers) {
        Ok(signature) => signature,
        Err(Refusal { kind, message }) => return refusal(StatusCode::BAD_REQUEST, kind, &message),
    };
    let secret = exposed.credentials.as_ref().map(|known| known.secret(&parts, &signature, SystemTime::now()));
    let secret = match secret.transpose() {
        Ok(secret) => secret,
        Err(Refusal { kind, message }) => return refusal(StatusCode::BAD_REQUEST, kind, &message),
    };
    let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let is_json = ["application/x-amz-json-1.0", "application/x-amz-json-1.1", "application/json"]
        .iter()
        .any(|known| known.eq_ignore_ascii_case(media_type));
    if parts.method != Method::POST || !is_json {
        let detail = "Send a POST with the Content-Type application/x-amz-json-1.0.";
        return refusal(StatusCode::BAD_REQUEST, "SerializationException", detail);
    }
    let (body, _memory) = match read(&parts, body, MAX_BODY_BYTES).await {
        Ok(read) => read,
        Err(Unread::Refused(problem)) if problem.problem_type == ProblemType::Throttled => {
            return refusal(StatusCode::BAD_REQUEST, "ThrottlingException", &problem.detail);
        }
        Err(Unread::Refused(problem)) => {
            return refusal(StatusCode::BAD_REQUEST, "SerializationException", &problem.detail);
        }
        Err(Unread::TooLarge) => {
            return refusal(StatusCode::BAD_REQUEST, "SerializationException", "The body is too large.");
        }
    };
    if let Some(secret) = secret
        && let Err(Refusal { kind, message }) = signature.check(&secret, &parts, &body)
    {
        return refusal(StatusCode::BAD_REQUEST, kind, &message);
    }
    parts.extensions.get::<Arc<Place>>().inspect(|place| place.accepted());
    let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
    let (engine, target) = (exposed.engine.clone(), target.to_owned());
    let (status, document) = aside::run(async move { engine.answer(target, body).await }).await;
    match buffers::reserve_answer(document.len()).await {
        Ok(memory) => json(StatusCode::from_u16(status).unwrap_or_default(), with_memory(document, memory)),
        Err(problem) => refusal(StatusCode::BAD_REQUEST, "ThrottlingException", &problem.detail),
    }
}

fn refusal(status: StatusCode, kind: &str, message: &str) -> Response {
    let document = serde_json::json!({ "__type": format!("com.amazon.coral.service#{kind}"), "message": message });
    json(status, Body::from(Bytes::from(document.to_string())))
}

fn json(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-amz-json-1.0"));
    response
}
