//! The HTTP front: the same handlers as in the Lambda functions, behind axum.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use http_body_util::BodyExt;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use leasehold_api::access::Caller;
use leasehold_api::http::{Route, body_too_large, handle, problem_response, unknown_route};
use leasehold_dynamodb::fresh_uuid;
use leasehold_wire::{Problem, ProblemType};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tracing::Instrument;

/// How long a client may take to send its headers, and then its body: enough for the largest body on a slow line.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a body that is too large is still read before it is refused.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;
/// How long requests under way may take to finish after a stop was asked for. The slowest takes four seconds.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait when the machine has no file descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves these routes until `shutdown` resolves, then finishes the requests under way.
pub async fn run(listener: TcpListener, routes: Router, shutdown: impl Future<Output = ()>) {
    let app = routes.fallback(async || into_response(problem_response(&unknown_route())));
    let connections = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => serve_connection(stream, app.clone(), &connections),
            Err(error) => pause_accepting(&error).await,
        }
    }
    drop(listener);
    if timeout(DRAIN_TIMEOUT, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were cut off");
    }
}

fn serve_connection(stream: TcpStream, app: Router, connections: &GracefulShutdown) {
    // Answers are small and complete: holding one back to fill a packet only costs time.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let service = hyper_util::service::TowerToHyperService::new(app);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended");
        }
    });
}

#[allow(clippy::disallowed_methods, reason = "a pause lets connections end and give their descriptors back")]
async fn pause_accepting(error: &std::io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// The routes of one service.
pub fn routes<R: Route>(service: R::Service) -> Router {
    R::ALL
        .iter()
        .fold(Router::new(), |router, &operation| {
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
        match read_body::<R>(&parts.headers, body).await {
            Ok(body) => {
                let request = leasehold_api::http::Request {
                    caller: &Caller::unrestricted(),
                    method: &parts.method,
                    content_type: text(&parts.headers, CONTENT_TYPE.as_str()),
                    query: parts.uri.query().unwrap_or_default(),
                    body: &body,
                };
                handle(&service, operation, request).await
            }
            Err(problem) => problem_response(&problem),
        }
    };
    Ok(into_response(work.instrument(span).await))
}

async fn read_body<R: Route>(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let announced = text(headers, CONTENT_LENGTH.as_str()).and_then(|length| length.parse::<usize>().ok());
    if announced.is_some_and(|length| length > MAX_DISCARDED_BYTES) {
        return Err(body_too_large::<R>());
    }
    timeout(REQUEST_TIMEOUT, collect::<R>(body)).await.unwrap_or_else(|_| {
        let detail = format!("The body did not arrive within {} seconds.", REQUEST_TIMEOUT.as_secs());
        Err(Problem::new(ProblemType::InvalidRequest, detail))
    })
}

/// Reads a body. What is beyond the limit is read too, up to a point, and thrown away: a client that sends all before it
/// reads would otherwise find a closed connection in place of its answer.
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

/// The caller's own id for the log, if it brought one.
fn request_id(headers: &HeaderMap) -> String {
    text(headers, "x-request-id").map_or_else(fresh_uuid, |id| id.chars().take(128).collect())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn into_response(response: hyper::Response<Vec<u8>>) -> Response {
    response.map(Body::from)
}
