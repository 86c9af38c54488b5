//! The passage between Terraform and the service: an address of this machine that always answers.
//!
//! The guardian of the command keeps it, which outlives the process that keeps the lock. Requests go on with the proof
//! of the lock, and with credentials that Terraform cannot have: a signature, or an authority of the caller's own.
//! After the loss of the lock each request is refused at once. Terraform then keeps its state in `errored.tfstate`,
//! and does not wait for a silent service until it is killed.
//!
//! The port is one of the loopback interface, and the address has a secret in it: other users of this machine read no
//! state here.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::routing::any;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use leasehold_api::access::token_hash;
use leasehold_api::http::{problem_response, unknown_route};
use leasehold_api::logging::{LevelFilter, LogFormat, init_logging};
use leasehold_client::{HttpTransport, Transport};
use leasehold_dynamodb::pause_for;
use leasehold_server::{self as server, new_token};
use leasehold_terraform::{LEASE_HEADER, LOCK_PATH, MAX_STATE_BYTES, Name, PATH, refusal};
use leasehold_wire::{Problem, ProblemType};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use super::PASSWORD;
use crate::Failure;
use crate::connection::ConnectionArgs;

/// The longest wait for an answer of the service, a large state on a slow line included. A gateway gives up after 30 s.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);
/// The pause before a service that was not reached is tried again.
const PAUSE: Duration = Duration::from_millis(250);
/// The header of a checksum of the body.
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// The way to the states: what a guardian must know to keep the passage.
#[derive(Serialize, Deserialize)]
pub(crate) struct Way {
    /// The service, with the credentials for the lock.
    pub(super) connection: ConnectionArgs,
    pub(super) state: String,
    pub(super) lease_id: String,
    /// The states' own password, where the lock's credentials are not theirs.
    pub(super) password: Option<String>,
    /// The password of the command's own requests, for states of other addresses.
    pub(super) for_others: Option<String>,
}

/// The passage while it is open.
struct Passage {
    service: Box<dyn Transport>,
    state: Name,
    /// What each request carries: the proof of the lock, and the states' own password.
    proof: HeaderMap,
    secret_hash: String,
    /// True once the lock is not believed in.
    over: watch::Receiver<bool>,
}

/// The transport of the states' requests, and the header with their own password, which replaces other credentials.
///
/// # Errors
/// The URL is none, or there are no credentials.
pub(super) async fn transport(
    connection: &ConnectionArgs,
    password: Option<&str>,
) -> Result<(Box<dyn Transport>, HeaderMap), Failure> {
    let Some(password) = password else { return Ok((Box::new(connection.http().await?), HeaderMap::new())) };
    let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("leasehold:{password}")));
    let basic = HeaderValue::try_from(basic).map_err(|error| Failure::failed(error.to_string()))?;
    Ok((Box::new(HttpTransport::new(&connection.url())?), HeaderMap::from_iter([(AUTHORIZATION, basic)])))
}

impl Way {
    /// Opens the passage for as long as this process lives. Returns the environment of Terraform's `http` backend.
    ///
    /// # Errors
    /// No port is free, or the service has no good URL.
    pub(crate) async fn open(self, over: watch::Receiver<bool>) -> Result<Vec<(&'static str, String)>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("no passage to the states: {error}"));
        init_logging(LogFormat::Text, LevelFilter::WARN);
        let (service, mut proof) = transport(&self.connection, self.password.as_deref()).await?;
        proof.insert(LEASE_HEADER, HeaderValue::try_from(&self.lease_id).map_err(|error| failed(&error))?);
        let state = Name::parse(&self.state).map_err(|problem| Failure::usage(problem.detail))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let (secret, secret_hash) = new_token();
        let environment = environment(&format!("http://{address}/{secret}"), &state, self.for_others);
        let passage = Arc::new(Passage { service, state, proof, secret_hash, over });
        let at = |path| format!("/{{secret}}{path}");
        let app = Router::new()
            .route(&at(PATH), any(respond))
            .route(&at(LOCK_PATH), any(respond))
            .fallback(async || problem_response(&unknown_route()).map(Body::from))
            .with_state(passage);
        tokio::spawn(server::run_tls(listener, None, app, std::future::pending()));
        Ok(environment)
    }
}

/// The environment that Terraform's `http` backend reads. Its locks have a path and methods that any gateway knows.
fn environment(base: &str, state: &Name, password: Option<String>) -> Vec<(&'static str, String)> {
    let at = |path| format!("{base}{path}?state={}", state.as_str());
    let own = |name, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    let mut environment = vec![
        // Terraform saves twice before it writes `errored.tfstate`, and repeats each save where the service is gone. It
        // must be done with that within the grace of a default lease.
        ("TF_HTTP_RETRY_MAX", own("TF_HTTP_RETRY_MAX", "1")),
        ("TF_HTTP_ADDRESS", at(PATH)),
        ("TF_HTTP_UPDATE_METHOD", "POST".to_owned()),
        ("TF_HTTP_LOCK_ADDRESS", at(LOCK_PATH)),
        ("TF_HTTP_LOCK_METHOD", "PUT".to_owned()),
        ("TF_HTTP_UNLOCK_ADDRESS", at(LOCK_PATH)),
        ("TF_HTTP_UNLOCK_METHOD", "DELETE".to_owned()),
    ];
    if let Some(password) = password {
        // Terraform sends no password without a name.
        environment.push(("TF_HTTP_USERNAME", own("TF_HTTP_USERNAME", "leasehold")));
        environment.push((PASSWORD, password));
    }
    environment
}

async fn respond(State(passage): State<Arc<Passage>>, Path(secret): Path<String>, request: Request) -> Response {
    let answer = if token_hash(&secret) == passage.secret_hash {
        let mut over = passage.over.clone();
        tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => Err(lost()),
            answer = timeout(ANSWER_LIMIT, passage.pass_on(request)) => answer.unwrap_or_else(|_| Err(silent())),
        }
    } else {
        Err(unknown_route())
    };
    answer.unwrap_or_else(|problem| refusal(problem).map(Body::from))
}

impl Passage {
    async fn pass_on(&self, request: Request) -> Result<Response, Problem> {
        let (parts, body) = request.into_parts();
        let invalid = |detail: &str| Problem::new(ProblemType::InvalidRequest, detail);
        let path = if parts.uri.path().ends_with(LOCK_PATH) { LOCK_PATH } else { PATH };
        let query = parts.uri.query().unwrap_or_default();
        if !query.split('&').any(|part| part.strip_prefix("state=") == Some(self.state.as_str())) {
            return Err(invalid("This address is that of one state: give others an address of their own."));
        }
        let body = Limited::new(body, MAX_STATE_BYTES).collect().await.map_err(|_| {
            let detail = format!("The state is incomplete, or has more than {MAX_STATE_BYTES} bytes.");
            Problem::new(ProblemType::TooLarge, detail)
        })?;
        let mut request = hyper::Request::builder().method(parts.method).uri(format!("{path}?{query}"));
        for name in [CONTENT_TYPE, CONTENT_MD5] {
            for value in parts.headers.get_all(&name) {
                request = request.header(&name, value);
            }
        }
        for (name, value) in &self.proof {
            request = request.header(name, value);
        }
        let request =
            request.body(body.to_bytes().to_vec()).map_err(|_| invalid("This request cannot be passed on."))?;
        loop {
            match self.service.send(request.clone()).await {
                Ok(answer) => return Ok(passed_back(answer)),
                // Terraform repeats what may have been carried out. What certainly was not waits for the service.
                Err(error) if error.may_have_been_delivered() => {
                    tracing::warn!(%error, "the service gave no answer to a request of Terraform");
                    return Err(silent());
                }
                Err(error) => tracing::debug!(%error, "the service is not reached"),
            }
            pause_for(PAUSE).await;
        }
    }
}

/// The answer without the headers that are for this program only.
fn passed_back(answer: hyper::Response<Vec<u8>>) -> Response {
    let (parts, body) = answer.into_parts();
    if let (false, Ok(problem)) = (parts.status.is_success(), serde_json::from_slice::<Problem>(&body))
        && problem.problem_type != ProblemType::NotFound
    {
        // Terraform shows the status of most refusals, and nothing else.
        tracing::warn!("the service refuses a request of Terraform: {}", problem.detail);
    }
    let mut response = Response::new(Body::from(Bytes::from(body)));
    *response.status_mut() = parts.status;
    for name in [CONTENT_TYPE, RETRY_AFTER] {
        if let Some(value) = parts.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// Terraform repeats no request that has this answer.
fn lost() -> Problem {
    Problem::new(ProblemType::Lost, "This run has lost the lock of its state, and nothing was asked of the service.")
}

fn silent() -> Problem {
    Problem::new(ProblemType::Unavailable, "The service of the states does not answer.")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use futures_util::future::{BoxFuture, pending};
    use leasehold_client::TransportError;
    use tokio::time::Instant;

    use super::*;

    /// A service that gives no answer.
    struct Silent {
        how: fn() -> Option<TransportError>,
        asked: Arc<AtomicUsize>,
    }

    impl Transport for Silent {
        fn send(&self, _: hyper::Request<Vec<u8>>) -> BoxFuture<'_, Result<hyper::Response<Vec<u8>>, TransportError>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            async { if let Some(error) = (self.how)() { Err(error) } else { pending().await } }.boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_answered_when_the_service_is_silent() {
        let waits = ANSWER_LIMIT..=ANSWER_LIMIT + PAUSE;
        for (how, times, after) in [
            ((|| None) as fn() -> _, 1..=1, waits.clone()),
            (|| Some(TransportError::unanswered("cut off")), 1..=1, Duration::ZERO..=Duration::ZERO),
            // Nothing can have happened, so it is sent again.
            (|| Some(TransportError::not_sent("refused")), 100..=1000, waits),
        ] {
            let ((secret, secret_hash), asked) = (new_token(), Arc::new(AtomicUsize::new(0)));
            let service = Box::new(Silent { how, asked: Arc::clone(&asked) });
            let state = Name::parse("network").expect("plain");
            let (_lost, over) = watch::channel(false);
            let passage = Passage { service, state, proof: HeaderMap::new(), secret_hash, over };
            let request = Request::post(format!("/{secret}{PATH}?state=network")).body(Body::from("1"));
            let (begun, request) = (Instant::now(), request.expect("a request"));
            let answer = respond(State(Arc::new(passage)), Path(secret), request).await;
            assert_eq!(answer.status().as_u16(), 503);
            assert!(after.contains(&begun.elapsed()), "{:?}", begun.elapsed());
            assert!(times.contains(&asked.load(Ordering::SeqCst)), "{}", asked.load(Ordering::SeqCst));
        }
    }
}
