//! The way from a request to its handler and back.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{any, get};
use http_body_util::BodyExt;
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use leasehold_api::access::Caller;
use leasehold_api::http::{Route, body_too_large, handle, problem_response};
use leasehold_dynamodb::fresh_uuid;
use leasehold_wire::{Problem, ProblemType, path};
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use crate::buffers::{self, Reserved};
use crate::connections::REQUEST_TIMEOUT;
use crate::guard::{self, Guard};
use crate::load::{Load, is_bulky};
use crate::tokens::Tokens;
use crate::{aside, console, metrics};

/// Path of the probe for load balancers.
pub(crate) const READY: &str = "/v1/ready";
/// The largest part of an overlong body that is read before the refusal.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;

/// The checks before a handler runs.
#[derive(Debug)]
pub struct Checked {
    /// The hosts and origins that are accepted.
    pub guard: Guard,
    /// The callers that are accepted. Absent: all.
    pub tokens: Option<Arc<Tokens>>,
    /// The number of requests that run at a time.
    pub load: Load,
}

/// Puts the checks in front of these routes.
pub fn protect(routes: Router, checked: Checked) -> Router {
    routes.layer(from_fn_with_state(Arc::new(checked), check))
}

async fn check(State(checked): State<Arc<Checked>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let is_page = path == console::PATH || path.starts_with("/console/");
    if is_page {
        guard::forgive_navigation(&mut parts);
    }
    let mut admitted = || {
        checked.guard.check(&parts)?;
        if is_page || is_probe(&path) {
            return Ok(());
        }
        if let Some(tokens) = &checked.tokens {
            parts.extensions.insert(caller(tokens, &parts.headers, &path)?);
        }
        parts.extensions.insert(Arc::clone(&checked));
        Ok(())
    };
    let mut response = match admitted() {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(problem) => refusal(&problem),
    };
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    metrics::count(known(&path), response.status().as_u16(), started.elapsed());
    response
}

/// Probes come from machines that have no token.
fn is_probe(path: &str) -> bool {
    matches!(path, path::HEALTH | READY)
}

fn caller(tokens: &Tokens, headers: &HeaderMap, path: &str) -> Result<Caller, Problem> {
    let bearer = bearer(headers).and_then(|token| tokens.bearer_of(token)).ok_or_else(unauthorized)?;
    let is_transaction = ["/v1/transaction", "/v1/items/"].iter().any(|beginning| path.starts_with(beginning));
    if is_transaction && !bearer.transactions {
        let detail = "The bearer of this token may not use transactions. Ask whoever runs the service.";
        return Err(Problem::new(ProblemType::Forbidden, detail));
    }
    Ok(bearer.caller)
}

/// The token of a request, if it has one.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn unauthorized() -> Problem {
    let detail = "This service asks for a token: send `Authorization: Bearer TOKEN`. Whoever runs it can make one.";
    Problem { status: 401, title: "The caller is unknown".to_owned(), ..Problem::new(ProblemType::Forbidden, detail) }
}

/// Answers with this problem, and with a challenge if a token is missing.
pub(crate) fn refusal(problem: &Problem) -> Response {
    let mut response = problem_response(problem).map(Body::from);
    if problem.status == 401 {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"leasehold\""));
    }
    response
}

/// Returns a label for metrics. All unknown paths share one label.
fn known(path: &str) -> &'static str {
    const PATHS: [&str; 29] = [
        path::ACQUIRE,
        path::ACQUIRE_ALL,
        path::HEARTBEAT,
        path::RELEASE,
        path::BREAK,
        path::LOCK,
        path::WATCH,
        path::LOCKS,
        path::HEALTH,
        path::SEMAPHORE,
        path::SEMAPHORE_ACQUIRE,
        path::SEMAPHORE_HEARTBEAT,
        path::SEMAPHORE_RELEASE,
        path::SEMAPHORE_BREAK,
        path::SEMAPHORE_ENQUEUE,
        path::SEMAPHORE_CAPACITY,
        READY,
        path::BEGIN,
        path::ADD,
        path::COMMIT,
        path::ROLLBACK,
        path::SWEEP,
        path::TRANSACTION,
        path::ITEMS_GET,
        path::ITEMS_LIST,
        path::TRANSACTIONS,
        path::UNLOCK,
        "/metrics",
        console::PATH,
    ];
    PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
}

/// Serves `GET` of this path: `ok`, or the problem that `check` finds.
pub(crate) fn probe<F, C>(path: &str, check: C) -> Router
where
    C: Fn() -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), Problem>> + Send + 'static,
{
    let answer = async move || match check().await {
        Ok(()) => {
            let mut response = Response::new(Body::from(r#"{"status":"ok"}"#));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(problem) => refusal(&problem),
    };
    let wrong_method = async || refusal(&Problem::new(ProblemType::MethodNotAllowed, "This path takes GET only."));
    Router::new().route(path, get(answer).fallback(wrong_method))
}

/// The routes of one service.
pub fn routes<R: Route>(service: R::Service) -> Router {
    router(service, R::ALL.iter().copied())
}

/// The routes of one service without one operation, which the caller serves itself.
pub(crate) fn routes_but<R: Route + PartialEq>(service: R::Service, without: R) -> Router {
    router(service, R::ALL.iter().copied().filter(move |operation| *operation != without))
}

fn router<R: Route>(service: R::Service, operations: impl Iterator<Item = R>) -> Router {
    operations
        .fold(Router::new(), |router, operation| {
            router.route(operation.path(), any(move |service, request| answer(operation, service, request)))
        })
        .with_state(service)
}

async fn answer<R: Route>(
    operation: R,
    State(service): State<R::Service>,
    request: Request,
) -> Result<Response, Infallible> {
    let (parts, body) = request.into_parts();
    let span = tracing::info_span!("request", request_id = request_id(&parts.headers));
    let work = async {
        // Only a request that has arrived takes a slot: a client that sends slowly takes none.
        let checked = parts.extensions.get::<Arc<Checked>>();
        let admitted = async {
            let body = read_body::<R>(&parts.headers, body).await?;
            let slot = match checked {
                Some(checked) => Some(checked.load.admit(operation.path()).await?),
                None => None,
            };
            Ok::<_, Problem>((body, slot))
        };
        match admitted.await {
            Ok(((body, _memory), _slot)) => carry_out(operation, service, &parts, body).await,
            Err(problem) => problem_response(&problem),
        }
    };
    let (parts, document) = work.instrument(span).await.into_parts();
    Ok(match buffers::reserve(document.len()).await {
        Ok(memory) => Response::from_parts(parts, with_memory(document, memory)),
        Err(problem) => refusal(&problem),
    })
}

async fn carry_out<R: Route>(
    operation: R,
    service: R::Service,
    parts: &Parts,
    body: Bytes,
) -> hyper::Response<Vec<u8>> {
    let caller = parts.extensions.get().cloned().unwrap_or_else(Caller::unrestricted);
    let method = parts.method.clone();
    let content_type = text(&parts.headers, CONTENT_TYPE.as_str()).map(str::to_owned);
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let work = async move {
        let request = leasehold_api::http::HttpRequest {
            caller: &caller,
            method: &method,
            content_type: content_type.as_deref(),
            query: &query,
            body: &body,
        };
        handle(&service, operation, request).await
    };
    if is_bulky(operation.path()) { aside::run(work.in_current_span()).await } else { work.await }
}

async fn read_body<R: Route>(headers: &HeaderMap, body: Body) -> Result<(Bytes, Reserved), Problem> {
    let announced = text(headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse::<usize>().ok());
    if announced.is_some_and(|length| length > MAX_DISCARDED_BYTES) {
        return Err(body_too_large::<R>());
    }
    let is_chunked = headers.contains_key("transfer-encoding");
    let largest = announced.unwrap_or(if is_chunked { R::MAX_BODY_BYTES } else { 0 });
    let memory = buffers::reserve(largest.min(R::MAX_BODY_BYTES)).await?;
    let body = timeout(REQUEST_TIMEOUT, collect::<R>(body)).await.unwrap_or_else(|_| {
        let detail = format!("The body did not arrive within {} seconds.", REQUEST_TIMEOUT.as_secs());
        Err(Problem::new(ProblemType::InvalidRequest, detail))
    })?;
    Ok((body, memory))
}

/// Reads a body. The part beyond the limit is discarded, up to a point. A client that sends all before it reads would
/// otherwise find a closed connection in place of its answer.
async fn collect<R: Route>(mut body: Body) -> Result<Bytes, Problem> {
    let mut bytes = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let incomplete = |_| Problem::new(ProblemType::InvalidRequest, "The body ended before it was complete.");
        let Ok(data) = frame.map_err(incomplete)?.into_data() else { continue };
        length += data.len();
        if length <= R::MAX_BODY_BYTES {
            bytes.extend_from_slice(&data);
        } else if length > MAX_DISCARDED_BYTES {
            break;
        }
    }
    if length > R::MAX_BODY_BYTES { Err(body_too_large::<R>()) } else { Ok(bytes.into()) }
}

/// The caller's own id for the log, if the request has one.
fn request_id(headers: &HeaderMap) -> String {
    text(headers, "x-request-id").map_or_else(fresh_uuid, |id| id.chars().take(128).collect())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A body that frees its memory when its last byte has been sent, or the connection has ended.
pub(crate) fn with_memory(document: Vec<u8>, memory: Reserved) -> Body {
    Body::from(Bytes::from_owner(Counted { document, _memory: memory }))
}

struct Counted {
    document: Vec<u8>,
    _memory: Reserved,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.document
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use hyper::Method;
    use leasehold_api::{Answering, Input, document};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;

    /// Two operations that report the thread of their work.
    #[derive(Debug, Clone, Copy)]
    enum Told {
        List,
        Get,
    }

    impl Route for Told {
        type Service = UnboundedSender<ThreadId>;

        const ALL: &'static [Self] = &[Self::List, Self::Get];
        const MAX_BODY_BYTES: usize = 0;

        fn path(self) -> &'static str {
            match self {
                Self::List => path::LOCKS,
                Self::Get => path::LOCK,
            }
        }

        fn method(self) -> Method {
            Method::GET
        }

        fn action(self) -> Option<&'static str> {
            None
        }

        fn carry_out<'a>(self, told: &'a UnboundedSender<ThreadId>, _: &'a Caller, _: Input<'a>) -> Answering<'a> {
            Box::pin(async move {
                told.send(current().id()).expect("the test listens");
                Ok(document(&()))
            })
        }
    }

    #[tokio::test]
    async fn only_large_reads_leave_the_threads_of_others() {
        let (told, mut threads) = unbounded_channel();
        for (operation, is_own) in [(Told::Get, true), (Told::List, false)] {
            let request = Request::get(operation.path()).body(Body::empty()).expect("a request");
            let Ok(response) = answer(operation, State(told.clone()), request).await;
            assert_eq!(response.status(), 200);
            assert_eq!(threads.recv().await.expect("told") == current().id(), is_own, "{operation:?}");
        }
    }
}
