//! The HTTP API, version 1, whatever brings the requests.

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Response, StatusCode};
use leasehold_wire::{Problem, ProblemType, path};
use serde::Serialize;

use crate::access::Caller;
use crate::{Service, parse};

/// The largest body that is read. The largest payload takes 1.5 MB when each of its bytes needs an escape.
pub const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `POST /v1/acquire`
    Acquire,
    /// `POST /v1/heartbeat`
    Heartbeat,
    /// `POST /v1/release`
    Release,
    /// `POST /v1/break`
    Break,
    /// `GET /v1/lock`
    Get,
    /// `GET /v1/locks`
    List,
    /// `GET /v1/health`
    Health,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Acquire, Self::Heartbeat, Self::Release, Self::Break, Self::Get, Self::List, Self::Health];

    /// Where it is reached.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Acquire => path::ACQUIRE,
            Self::Heartbeat => path::HEARTBEAT,
            Self::Release => path::RELEASE,
            Self::Break => path::BREAK,
            Self::Get => path::LOCK,
            Self::List => path::LOCKS,
            Self::Health => path::HEALTH,
        }
    }

    /// By which method.
    pub const fn method(self) -> Method {
        match self {
            Self::Acquire | Self::Heartbeat | Self::Release | Self::Break => Method::POST,
            Self::Get | Self::List | Self::Health => Method::GET,
        }
    }
}

/// A request, as far as it matters. It has no path: a gateway decodes paths, so nothing is ever read from one.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Who asks.
    pub caller: &'a Caller,
    /// The method.
    pub method: &'a Method,
    /// `Content-Type`, if there is one.
    pub content_type: Option<&'a str>,
    /// The query string, still encoded.
    pub query: &'a str,
    /// The body, decoded from base64 where the gateway encoded it.
    pub body: &'a [u8],
}

/// Carries out `operation`. Whatever is wrong with the request, the answer is a problem document.
pub async fn handle(service: &Service, operation: Operation, request: Request<'_>) -> Response<Vec<u8>> {
    match dispatch(service, operation, request).await {
        Ok(response) => response,
        Err(problem) => {
            let mut response = problem_response(&problem);
            if problem.problem_type == ProblemType::MethodNotAllowed {
                let allowed = HeaderValue::from_str(operation.method().as_str());
                response.headers_mut().extend(allowed.ok().map(|method| (ALLOW, method)));
            }
            response
        }
    }
}

async fn dispatch(service: &Service, operation: Operation, request: Request<'_>) -> Result<Response<Vec<u8>>, Problem> {
    if *request.method != operation.method() {
        let detail = format!("{} takes {} only.", operation.path(), operation.method());
        return Err(Problem::new(ProblemType::MethodNotAllowed, detail));
    }
    match operation {
        Operation::Acquire => answer(service.acquire(request.caller, read(request)?).await),
        Operation::Heartbeat => answer(service.heartbeat(request.caller, read(request)?).await),
        Operation::Release => answer(service.release(request.caller, read(request)?).await),
        Operation::Break => answer(service.break_lock(request.caller, read(request)?).await),
        Operation::Get => answer(service.get(request.caller, parse::query(request.query)?).await),
        Operation::List => answer(service.list(request.caller, parse::query(request.query)?).await),
        Operation::Health => answer(service.health().await),
    }
}

fn read<T: serde::de::DeserializeOwned>(request: Request<'_>) -> Result<T, Problem> {
    if !request.content_type.is_none_or(is_json) {
        let detail = "Send the body as application/json.";
        return Err(Problem::new(ProblemType::UnsupportedMediaType, detail));
    }
    if request.body.len() > MAX_BODY_BYTES {
        return Err(body_too_large());
    }
    parse::json(request.body)
}

/// A body above [`MAX_BODY_BYTES`].
pub fn body_too_large() -> Problem {
    Problem::new(ProblemType::TooLarge, format!("The body may have at most {MAX_BODY_BYTES} bytes."))
}

/// A path that is none of [`Operation::path`].
pub fn unknown_route() -> Problem {
    let detail = "This API has /v1/acquire, heartbeat, release, break, lock, locks and health.";
    Problem::new(ProblemType::UnknownRoute, detail)
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type == "application/json" || (media_type.starts_with("application/") && media_type.ends_with("+json"))
}

fn answer<T: Serialize>(result: Result<T, Problem>) -> Result<Response<Vec<u8>>, Problem> {
    Ok(response(StatusCode::OK, "application/json", &result?))
}

/// A problem document.
pub fn problem_response(problem: &Problem) -> Response<Vec<u8>> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = response(status, "application/problem+json", problem);
    let retry_after = problem.problem_type.retry_after_seconds().map(HeaderValue::from);
    response.headers_mut().extend(retry_after.map(|seconds| (RETRY_AFTER, seconds)));
    response
}

fn response(status: StatusCode, content_type: &'static str, document: &impl Serialize) -> Response<Vec<u8>> {
    // Strings, numbers and maps with string keys always serialise.
    let mut response = Response::new(serde_json::to_vec(document).unwrap_or_default());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    // A lease id, or the state of a lock, must not be found in a cache.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
