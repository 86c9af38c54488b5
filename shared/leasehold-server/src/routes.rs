//! The way from a request to its handler and back.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{any, get};
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use leasehold_api::access::Caller;
use leasehold_api::http::{HttpRequest, body_too_large, handle, problem_response};
use leasehold_api::{Admitted, Route, Routed};
use leasehold_dynamodb::fresh_uuid;
use leasehold_wire::operation::{self, Family, OPERATIONS, Operation};
use leasehold_wire::{Problem, ProblemType};
use tokio::time::Instant;
use tracing::Instrument;

use crate::buffers::{self, Reserved, Unread};
use crate::load::Load;
use crate::places::Place;
use crate::tokens::Tokens;
use crate::{aside, console, metrics, terraform};
use leasehold_origin::{Guard, forgive_navigation};

/// Path of the probe for load balancers.
pub(crate) const READY: &str = "/v1/ready";

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

/// The way in which a request enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entrance {
    /// The service itself, for callers that are accepted.
    Service,
    /// Pages, for everyone. They show nothing of the service.
    Page,
    /// Probes, for everyone: they come from machines that have no token.
    Probe,
}

/// Puts the checks in front of these routes. Pages and probes need no token.
pub fn protect(routes: Router, pages: Router, probes: Router, checked: Checked) -> Router {
    let checked = Arc::new(checked);
    let behind = |entrance, routes: Router| routes.layer(from_fn_with_state((Arc::clone(&checked), entrance), check));
    let open = behind(Entrance::Page, pages).merge(behind(Entrance::Probe, probes));
    behind(Entrance::Service, routes).merge(open)
}

async fn check(State((checked, entrance)): State<(Arc<Checked>, Entrance)>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    let route = label(parts.uri.path());
    if entrance == Entrance::Page {
        forgive_navigation(&mut parts);
    }
    let mut admitted = || {
        checked.guard.check(&parts)?;
        let caller = if entrance == Entrance::Service { checked.caller(&parts)? } else { Caller::unknown() };
        if entrance == Entrance::Service {
            parts.extensions.get::<Arc<Place>>().inspect(|place| place.accepted());
        }
        parts.extensions.insert(caller);
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
    metrics::count(route, response.status().as_u16(), started.elapsed());
    response
}

impl Checked {
    /// Returns the bearer of the token, or everyone where no token is needed.
    fn caller(&self, parts: &Parts) -> Result<Caller, Problem> {
        let Some(tokens) = &self.tokens else { return Ok(Caller::unrestricted()) };
        let bearer = bearer(&parts.headers).map(str::to_owned);
        let missing = if terraform::is_for_states(parts) { NO_PASSWORD } else { NO_TOKEN };
        let token = bearer.or_else(|| terraform::token(parts)).ok_or_else(|| unauthorized(missing))?;
        tokens.bearer_of(&token)?.ok_or_else(|| unauthorized(UNKNOWN_TOKEN))
    }
}

/// The token of a request, if it has one.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

const NO_TOKEN: &str =
    "This service asks for a token: send `Authorization: Bearer TOKEN`. Whoever runs it can make one.";
const NO_PASSWORD: &str = "The states ask for a token: put it into TF_HTTP_PASSWORD, and any name into \
    TF_HTTP_USERNAME. Whoever runs the service can make one.";
const UNKNOWN_TOKEN: &str =
    "This service does not know the token that was sent: it is mistyped, or was removed. Whoever runs it can make one.";

fn unauthorized(detail: &str) -> Problem {
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
fn label(path: &str) -> &'static str {
    let operations = OPERATIONS.iter().map(|operation| operation.path);
    let mut known = operations.chain([
        READY,
        metrics::PATH,
        console::PATH,
        leasehold_terraform::PATH,
        leasehold_terraform::LOCK_PATH,
    ]);
    known.find(|known| *known == path).unwrap_or("other")
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
pub fn routes<S: Routed>(service: S) -> Router {
    routes_of(service, S::ROUTES)
}

/// These routes of one service.
pub fn routes_of<S>(service: S, routes: impl IntoIterator<Item = &'static Route<S>>) -> Router
where
    S: Clone + Send + Sync + 'static,
{
    let handler = |route| any(move |service, request| answer(route, service, request));
    let routes = routes.into_iter();
    routes.fold(Router::new(), |router, route| router.route(route.operation.path, handler(route))).with_state(service)
}

async fn answer<S>(route: &'static Route<S>, State(service): State<S>, request: Request) -> Result<Response, Infallible>
where
    S: Send + Sync + 'static,
{
    let (mut parts, body) = request.into_parts();
    let span = tracing::info_span!("request", request_id = request_id(&parts.headers));
    let caller = parts.extensions.remove().unwrap_or_else(Caller::unrestricted);
    let checked = parts.extensions.remove::<Arc<Checked>>();
    let work = async {
        let accepted = async {
            let principal = caller.name().map(str::to_owned);
            let admitted = route.admit(caller)?;
            // Only a request that has arrived takes a slot: a client that sends slowly takes none.
            let body = read_body(route.operation, &parts, body).await?;
            let slot = match &checked {
                Some(checked) => Some(checked.load.admit(route.operation, principal.as_deref()).await?),
                None => None,
            };
            Ok::<_, Problem>((admitted, body, slot))
        };
        match accepted.await {
            Ok((admitted, (body, _memory), slot)) => {
                let answer = carry_out(admitted, service, &parts, body).await;
                (answer, slot)
            }
            Err(problem) => (problem_response(&problem), None),
        }
    };
    // An answer keeps its slot until there is memory for it: few answers wait at a time.
    let (response, _slot) = work.instrument(span).await;
    let (parts, document) = response.into_parts();
    Ok(match buffers::reserve_answer(document.len()).await {
        Ok(memory) => Response::from_parts(parts, with_memory(document, memory)),
        Err(problem) => refusal(&problem),
    })
}

async fn carry_out<S>(admitted: Admitted<S>, service: S, parts: &Parts, body: Bytes) -> hyper::Response<Vec<u8>>
where
    S: Send + Sync + 'static,
{
    let method = parts.method.clone();
    let content_type = text(&parts.headers, CONTENT_TYPE.as_str()).map(str::to_owned);
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let operation = admitted.operation();
    let (family, takes_expressions) = (operation.family, operation.takes_expressions());
    let is_heavy = operation.load == operation::Load::Bulky || takes_expressions;
    let work = async move {
        let content_type = content_type.as_deref();
        let request = HttpRequest { method: &method, content_type, query: &query, body: &body };
        let handled = handle(&service, &admitted, request);
        match family {
            Family::Hold => leasehold_engine::urgent(handled).await,
            _ if takes_expressions => leasehold_engine::foreign(handled).await,
            _ => handled.await,
        }
    };
    if is_heavy { aside::run(work.in_current_span()).await } else { work.await }
}

async fn read_body(operation: &Operation, parts: &Parts, body: Body) -> Result<(Bytes, Reserved), Problem> {
    let limit = operation.max_body_bytes();
    read(parts, body, limit).await.map_err(|unread| match unread {
        Unread::TooLarge => body_too_large(operation),
        Unread::Refused(problem) => problem,
    })
}

/// Reads a body. Meanwhile the service waits for the client.
pub(crate) async fn read(parts: &Parts, body: Body, limit: usize) -> Result<(Bytes, Reserved), Unread> {
    let announced = text(&parts.headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
    let place = parts.extensions.get::<Arc<Place>>();
    place.inspect(|place| place.wait());
    let read = buffers::read(body, announced, limit).await;
    place.inspect(|place| place.work());
    read
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
    use std::net::{Ipv4Addr, SocketAddr};
    use std::thread::{ThreadId, current};

    use leasehold_api::document;
    use leasehold_wire::operation::{GET, LIST, Load as Weight, Scope};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;
    use crate::{TokenEntry, new_token};

    type Told = UnboundedSender<ThreadId>;

    /// Returns the route of an operation that reports the thread of its work.
    fn telling(operation: Operation) -> &'static Route<Told> {
        Box::leak(Box::new(Route::new(Box::leak(Box::new(operation)), |told: &Told, _, _| {
            Box::pin(async move {
                told.send(current().id()).expect("the test listens");
                Ok(document(&()))
            })
        })))
    }

    #[tokio::test]
    async fn only_large_reads_leave_the_threads_of_others() {
        let (told, mut threads) = unbounded_channel();
        for (operation, is_own) in [(*GET.operation(), true), (*LIST.operation(), false)] {
            let request = Request::get(operation.path).body(Body::empty()).expect("a request");
            let Ok(response) = answer(telling(operation), State(told.clone()), request).await;
            assert_eq!(response.status(), 200);
            assert_eq!(threads.recv().await.expect("told") == current().id(), is_own, "{operation:?}");
        }
    }

    /// Serves an operation with this scope, at a path of its own.
    async fn serve(scope: Option<Scope>, told: Told, tokens: Option<Arc<Tokens>>) -> SocketAddr {
        let mut operation = *GET.operation();
        (operation.path, operation.scope, operation.load) = ("/v1/export", scope, Weight::Small);
        let checked = Checked { guard: Guard::new(Ipv4Addr::LOCALHOST.into(), &[]), tokens, load: Load::default() };
        let app = protect(routes_of(told, [telling(operation)]), Router::new(), Router::new(), checked);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(crate::run(listener, app, std::future::pending()));
        address
    }

    /// The status of a request with this token.
    async fn status(address: SocketAddr, token: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let request = format!(
            "GET /v1/export HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer.split(' ').nth(1).expect("a status").to_owned()
    }

    #[tokio::test]
    async fn operation_asks_for_the_right_that_its_scope_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let [whole, part] = [None, Some(vec!["a/".to_owned()])].map(|prefixes| {
            let (token, sha256) = new_token();
            let entry = TokenEntry { name: token.clone(), sha256, prefixes, transactions: None };
            Tokens::add(&path, entry).expect("written");
            token
        });
        let tokens = Some(Arc::new(Tokens::open(&path, false).expect("valid")));
        let (told, _threads) = unbounded_channel();
        for (scope, of_whole, of_part) in
            [(Some(Scope::Keys), "200", "200"), (Some(Scope::Transactions), "200", "403"), (None, "403", "403")]
        {
            let address = serve(scope, told.clone(), tokens.clone()).await;
            let found = (status(address, &whole).await, status(address, &part).await, status(address, "none").await);
            assert_eq!(found, (of_whole.to_owned(), of_part.to_owned(), "401".to_owned()), "{scope:?}");
        }
    }

    #[tokio::test]
    async fn operation_refuses_everybody_when_it_has_no_scope() {
        let (told, mut threads) = unbounded_channel();
        let address = serve(None, told, None).await;
        assert_eq!(status(address, "any").await, "403");
        assert!(threads.try_recv().is_err(), "the operation must not run");
    }
}
