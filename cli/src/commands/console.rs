//! `leasehold console`: the page of the locks, for any service.
//!
//! The page is that of `leasehold serve`. Its requests go to a port of this machine, and from there, with the caller's
//! own credentials, to the service. Only browsers that know the session token in the printed address may use the port.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};
use clap::Args;
use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use leasehold_api::http::{problem_response, unknown_route};
use leasehold_client::Transport;
use leasehold_server::{self as server, Checked, Guard, Load, Tokens, console};
use leasehold_wire::operation::{BREAK, GET, GET_TRANSACTION, LIST, LIST_TRANSACTIONS};
use leasehold_wire::{Problem, ProblemType};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::Failure;
use crate::connection::CommonArgs;
use crate::numbers::whole;

/// Largest request of the page: a break, with a key and a sort key.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Longest time for an answer of the service. A gateway gives up after 30 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Show who holds what in a browser, for any service: locks, transactions, and a way to break a lock.
#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// Port of the loopback interface for the page. Port 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 0, value_parser = whole::<u16>(0..=u16::MAX.into()))]
    port: u16,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: ConsoleArgs) -> Result<(), Failure> {
    let transport: Arc<dyn Transport> = args.common.transport().await?.into();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::usage(format!("cannot listen on {address}: {error}; name another with --port")))?;
    let address = listener.local_addr().unwrap_or(address);
    let (token, sha256) = server::new_token();
    let tokens = Tokens::one(&sha256);
    let guard = Guard::new(address.ip(), &[]);
    let checked = Checked { guard, tokens: Some(Arc::new(tokens)), load: Load::default() };
    let app = proxy(transport).merge(console::about(&args.common.place()));
    let app = server::protect(app, console::routes(), Router::new(), checked);
    // A failure to print stops nothing: an open page goes on.
    let _ = writeln!(
        std::io::stdout(),
        "The console of {}\n  open      http://{address}{}#token={token}\n  stop      Ctrl-C",
        args.common.place(),
        console::PATH
    );
    let stopped = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    server::run_tls(listener, None, app, stopped).await;
    Ok(())
}

/// Passes on the requests of the page, and no others.
fn proxy(transport: Arc<dyn Transport>) -> Router {
    let reads = [GET.path, LIST.path, GET_TRANSACTION.path, LIST_TRANSACTIONS.path];
    reads
        .into_iter()
        .fold(Router::new(), |router, path| router.route(path, get(forward)))
        .route(BREAK.path, post(forward))
        .fallback(any(async || problem_response(&unknown_route()).map(Body::from)))
        .with_state(transport)
}

async fn forward(State(transport): State<Arc<dyn Transport>>, request: Request) -> Response {
    let answer = async {
        let (parts, body) = request.into_parts();
        let is_json = parts.headers.get(CONTENT_TYPE).is_some_and(|value| value == "application/json");
        if parts.method == hyper::Method::POST && !is_json {
            let detail = "Send the body with the Content-Type application/json.";
            return Err(Problem::new(ProblemType::UnsupportedMediaType, detail));
        }
        let unreadable = |_| Problem::new(ProblemType::InvalidRequest, "The body is too large or incomplete.");
        let body = Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(unreadable)?.to_bytes();
        let uri = parts.uri.path_and_query().map_or("/", |found| found.as_str()).to_owned();
        let mut request = hyper::Request::builder().method(parts.method).uri(uri);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let invalid = |_| Problem::new(ProblemType::InvalidRequest, "This request cannot be passed on.");
        let request = request.body(body.to_vec()).map_err(invalid)?;
        let silent = || Problem::new(ProblemType::Unavailable, "The service behind the console does not answer.");
        let answer = timeout(ANSWER_TIMEOUT, transport.send(request)).await.map_err(|_| silent())?;
        answer.map_err(|error| {
            tracing::warn!(%error, "no answer");
            silent()
        })
    };
    match answer.await {
        Ok(answer) => passed_on(answer),
        Err(problem) => problem_response(&problem).map(Body::from),
    }
}

/// The answer without the headers that are for the command only.
fn passed_on(answer: hyper::Response<Vec<u8>>) -> Response {
    let (parts, body) = answer.into_parts();
    let mut response = Response::new(Body::from(Bytes::from(body)));
    // For the page, 401 means that its own token is wrong.
    *response.status_mut() =
        if parts.status == hyper::StatusCode::UNAUTHORIZED { hyper::StatusCode::FORBIDDEN } else { parts.status };
    for name in [CONTENT_TYPE, RETRY_AFTER] {
        if let Some(value) = parts.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response.headers_mut().insert(hyper::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
