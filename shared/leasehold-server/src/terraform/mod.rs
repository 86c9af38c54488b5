//! States of Terraform and OpenTofu in a folder: the protocol and its rules are those of `leasehold-terraform`.

mod states;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use hyper::http::request::Parts;
use leasehold_api::Service;
use leasehold_api::access::Caller;
use leasehold_terraform::{Action, Asked, Backend, LEASE_WITHOUT_HEARTBEATS_MS, LOCK_PATH, MAX_STATE_BYTES, PATH};
use leasehold_wire::operation::{ACQUIRE, GET, HEARTBEAT, Operation, RELEASE};
use leasehold_wire::{Lock, Problem, ProblemType};
use tracing::Instrument;

use self::states::Folder;
pub use self::states::{States, StatesError};
use self::watch::Watched;
use crate::buffers::{self, Unread};
use crate::routes::{Checked, read, with_memory};

/// The states of one service.
#[derive(Debug, Clone)]
struct Served {
    locks: Service,
    backend: Backend<Folder>,
    watched: Watched,
}

/// The routes of the states in a folder.
pub(crate) fn routes(locks: Service, states: Arc<States>) -> Router {
    let backend = Backend::new(locks.clone(), Folder::new(states));
    let served = Served { locks, backend, watched: Watched::default() };
    Router::new().route(PATH, any(respond)).route(LOCK_PATH, any(respond)).with_state(served)
}

/// Checks that a state could be written.
pub(crate) async fn check(states: Arc<States>) -> Result<(), Problem> {
    Folder::new(states).check().await
}

/// Whether a request is for the states.
pub(crate) fn is_for_states(parts: &Parts) -> bool {
    [PATH, LOCK_PATH].contains(&parts.uri.path())
}

/// The token of a request to these paths, which Terraform sends as a password.
pub(crate) fn token(parts: &Parts) -> Option<String> {
    is_for_states(parts).then(|| leasehold_terraform::token(&parts.headers))?
}

async fn respond(State(served): State<Served>, request: Request) -> Response {
    let span = tracing::info_span!("terraform");
    let answer = served.respond(request).instrument(span).await;
    answer.unwrap_or_else(|problem| leasehold_terraform::refusal(problem).map(Body::from))
}

impl Served {
    async fn respond(&self, request: Request) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = parts.extensions.remove().unwrap_or_else(Caller::unrestricted);
        let query = parts.uri.query().unwrap_or_default();
        let asked = Asked::parse(&parts.method, parts.uri.path(), query, &parts.headers, caller)?;
        let limit = asked.action.max_body_bytes(MAX_STATE_BYTES);
        let (body, _memory) = read(&parts, body, limit).await.map_err(|unread| match unread {
            Unread::TooLarge => {
                Problem::new(ProblemType::TooLarge, format!("The body may have at most {limit} bytes."))
            }
            Unread::Refused(problem) => problem,
        })?;
        // Only a request that has arrived takes a slot: a client that sends slowly takes none.
        let _slot = match parts.extensions.get::<Arc<Checked>>() {
            Some(checked) => Some(checked.load.admit(load_of(asked.action), asked.caller.name()).await?),
            None => None,
        };
        let work = self.backend.answer(&asked, &parts.headers, &body);
        let holds = asked.is_run || !matches!(asked.action, Action::Read | Action::Lock);
        let answer = if holds { leasehold_engine::urgent(work).await } else { work.await };
        let is_held = matches!(&answer, Err(problem) if problem.problem_type == ProblemType::Held);
        if is_held || (asked.is_run && answer.is_ok()) {
            // Plain `terraform` looks once, and cannot judge.
            self.watched.watch(&self.locks, &asked.name);
        }
        let (parts, state) = answer?.into_parts();
        let memory = buffers::reserve_answer(state.len()).await?;
        Ok(Response::from_parts(parts, with_memory(state, memory)))
    }
}

/// The operation whose load a request is.
fn load_of(action: Action) -> &'static Operation {
    match action {
        Action::Read => GET.operation(),
        Action::Lock => ACQUIRE.operation(),
        // A holder that cannot write loses its work.
        Action::Write | Action::Delete => HEARTBEAT.operation(),
        Action::Unlock => RELEASE.operation(),
    }
}

/// Whether the holder sends no heartbeats, so that nobody may judge it.
fn is_without_heartbeats(lock: &Lock) -> bool {
    lock.lease_duration_ms >= LEASE_WITHOUT_HEARTBEATS_MS
}
