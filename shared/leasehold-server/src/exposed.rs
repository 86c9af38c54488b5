//! The embedded engine, for other DynamoDB clients on this machine.
//!
//! A request must be signed, as for DynamoDB, and no signature is checked: every client of the port owns the data. The
//! port therefore belongs on the loopback interface. Web pages are kept out: a request with an `Origin` is refused, a
//! preflight gets no answer, and a page cannot send the headers of a signature without asking.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use http_body_util::{BodyExt, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::{Method, StatusCode};
use leasehold_engine::Engine;
use tokio::time::timeout;

use crate::connections::REQUEST_TIMEOUT;
use crate::routes::with_memory;
use crate::{aside, buffers};
use leasehold_origin::Guard;

/// DynamoDB's own limit for a request.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Serves the engine's data at `POST /`.
pub fn routes(engine: Engine, guard: Guard) -> Router {
    Router::new().fallback(any(answer)).with_state(Arc::new((engine, guard)))
}

async fn answer(State(state): State<Arc<(Engine, Guard)>>, request: Request) -> Response {
    let (engine, guard) = &*state;
    let (parts, body) = request.into_parts();
    if let Err(problem) = guard.check(&parts) {
        return refusal(StatusCode::FORBIDDEN, "AccessDeniedException", &problem.detail);
    }
    if parts.headers.contains_key(ORIGIN) {
        return refusal(StatusCode::FORBIDDEN, "AccessDeniedException", "Web pages may not use this port.");
    }
    if parts.method == Method::GET {
        return Response::new(Body::from("healthy: the embedded engine of Leasehold\n"));
    }
    if let Err((kind, message)) = check_signature(&parts.headers) {
        return refusal(StatusCode::BAD_REQUEST, kind, message);
    }
    let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let is_json = ["application/x-amz-json-1.0", "application/x-amz-json-1.1", "application/json"]
        .iter()
        .any(|known| known.eq_ignore_ascii_case(media_type));
    if parts.method != Method::POST || !is_json {
        let detail = "Send a POST with the Content-Type application/x-amz-json-1.0.";
        return refusal(StatusCode::BAD_REQUEST, "SerializationException", detail);
    }
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let Ok(_memory) = buffers::reserve(announced.unwrap_or(MAX_BODY_BYTES).min(MAX_BODY_BYTES)).await else {
        return refusal(StatusCode::BAD_REQUEST, "ThrottlingException", "Too many large requests are under way.");
    };
    let collected = timeout(REQUEST_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await;
    let Ok(Ok(body)) = collected.map(|body| body.map(http_body_util::Collected::to_bytes)) else {
        return refusal(StatusCode::BAD_REQUEST, "SerializationException", "The body is too large or did not arrive.");
    };
    let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
    let (engine, target) = (engine.clone(), target.to_owned());
    let (status, document) = aside::run(async move { engine.answer(target, body).await }).await;
    match buffers::reserve(document.len()).await {
        Ok(memory) => json(StatusCode::from_u16(status).unwrap_or_default(), with_memory(document, memory)),
        Err(problem) => refusal(StatusCode::BAD_REQUEST, "ThrottlingException", &problem.detail),
    }
}

/// Refuses a request without the headers of a signature, in DynamoDB's words.
fn check_signature(headers: &HeaderMap) -> Result<(), (&'static str, &'static str)> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(authorization), Some(_)) = (text(AUTHORIZATION), text(HeaderName::from_static("x-amz-date"))) else {
        let message = "Request must contain either a valid (registered) AWS access key ID or X.509 certificate.";
        return Err(("MissingAuthenticationTokenException", message));
    };
    let parts = authorization.strip_prefix("AWS4-HMAC-SHA256 ").unwrap_or_default();
    let has = |name: &str| {
        let mut parts = parts.split(',').filter_map(|part| part.trim().split_once('='));
        parts.any(|(found, value)| found == name && !value.is_empty())
    };
    if ["Credential", "SignedHeaders", "Signature"].into_iter().all(has) {
        return Ok(());
    }
    let message = "Authorization header requires 'Credential', 'Signature' and 'SignedHeaders' parameters, by \
                   AWS4-HMAC-SHA256.";
    Err(("IncompleteSignatureException", message))
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
