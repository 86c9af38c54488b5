//! States of Terraform and OpenTofu behind the protocol of their `http` backend, each under a lock of its own. A state
//! is written only under the newest fencing token.
//!
//! The lock of the state `NAME` has the key `terraform/NAME`. Whoever begins to hold it raises the fence of the state
//! to its fencing token, before it reads the state; whoever writes must hold the lock, under a token that is not below
//! the fence. Both happen in the state's turn, so no write is between the raise and the answer to it.
//!
//! Plain `terraform` proves by the `ID` of its lock, and sends no heartbeats: its lock holds until UNLOCK. A run of
//! `leasehold terraform` proves by its lease id, in the user name, and heartbeats.
//!
//! Each request is carried out by operations on the lock, as its caller: who may not touch the key may not read the
//! state.

mod request;
mod states;
mod watch;

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::any;
use hyper::StatusCode;
use leasehold_api::Service;
use leasehold_api::access::Caller;
use leasehold_dynamodb::fresh_uuid;
use leasehold_wire::operation::{ACQUIRE, GET, HEARTBEAT, Operation, RELEASE};
use leasehold_wire::{
    AcquireRequest, BreakRequest, GetRequest, HeartbeatRequest, Lock, LockState, Problem, ProblemType, ReleaseRequest,
    Secret,
};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;
use tracing::Instrument;

pub(crate) use self::request::token;
use self::request::{Action, Asked, LockInfo, answer, check_md5, lease_id_of, locked};
pub use self::states::{Name, States, StatesError};
use self::watch::Watched;
use crate::buffers::{self, Unread};
use crate::routes::{Checked, read, refusal, with_memory};

/// Path of the states.
pub const PATH: &str = "/v1/terraform";
/// Path of the locks alone, for gateways that do not know the methods LOCK and UNLOCK.
pub const LOCK_PATH: &str = "/v1/terraform-lock";
/// The beginning of the user name of a run that holds the lock itself. Its lease id follows.
pub const LEASE_USER: &str = "lease-";
/// The lease of a lock without heartbeats, in milliseconds: the longest, and longer than that of any run.
pub const LEASE_WITHOUT_HEARTBEATS_MS: u64 = 24 * 60 * 60 * 1000;

/// The lease of a lock that this process takes for one change.
const SHORT_LEASE_MS: u64 = 20_000;
/// The number of states that can be changed at the same time.
const TURNS: usize = 64;
/// The title of a refusal of a lock, for people.
const HELD_TITLE: &str = "The state is locked";
/// The number of tries to break a lock that somebody renews.
const BREAKS: usize = 5;

/// The states and their locks.
#[derive(Debug, Clone)]
struct Backend {
    locks: Service,
    states: Arc<States>,
    turns: Arc<[Arc<Mutex<()>>; TURNS]>,
    watched: Watched,
}

/// The routes of the states in a folder.
pub(crate) fn routes(locks: Service, states: Arc<States>) -> Router {
    let backend = Backend::new(locks, states);
    Router::new().route(PATH, any(respond)).route(LOCK_PATH, any(respond)).with_state(backend)
}

/// Checks that a state could be written.
pub(crate) async fn check(states: Arc<States>) -> Result<(), Problem> {
    on_disk(move || states.check().map_err(|error| failing(&error))).await
}

async fn respond(State(backend): State<Backend>, request: Request) -> Response {
    let span = tracing::info_span!("terraform");
    backend.respond(request).instrument(span).await.unwrap_or_else(|problem| match problem.problem_type {
        ProblemType::Held => {
            locked(&Problem { title: HELD_TITLE.to_owned(), detail: held_detail(&problem), ..problem })
        }
        ProblemType::Lost => locked(&problem),
        _ => refusal(&problem),
    })
}

impl Backend {
    fn new(locks: Service, states: Arc<States>) -> Self {
        let turns = Arc::new(std::array::from_fn(|_| Arc::default()));
        Self { locks, states, turns, watched: Watched::default() }
    }

    async fn respond(&self, request: Request) -> Result<Response, Problem> {
        let (parts, body) = request.into_parts();
        let asked = Asked::parse(&parts)?;
        let limit = asked.action.max_body_bytes();
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
        match asked.action {
            Action::Read => self.read(&asked).await,
            Action::Write => {
                check_md5(&parts.headers, &body)?;
                self.write(&asked, body).await
            }
            Action::Delete => self.delete(&asked).await,
            Action::Lock => self.lock(&asked, &body).await,
            Action::Unlock => self.unlock(&asked, &body).await,
        }
    }

    async fn read(&self, asked: &Asked) -> Result<Response, Problem> {
        match &asked.lease_id {
            // What a run reads is what it changes, with or without -lock=false: earlier holders write no more.
            Some(lease_id) if asked.is_run => self.change(asked, lease_id, |_, _| Ok(())).await?,
            _ => drop(self.look(&asked.caller, &asked.name).await?),
        }
        let (states, name) = (Arc::clone(&self.states), asked.name.clone());
        let state = on_disk(move || states.read(&name).map_err(|error| failing(&error))).await?;
        let state = state.ok_or_else(|| {
            let detail = format!("There is no state {} yet.", asked.name.as_str());
            Problem { title: "There is no such state".to_owned(), ..Problem::new(ProblemType::NotFound, detail) }
        })?;
        let memory = buffers::reserve_answer(state.len()).await?;
        Ok(answer(StatusCode::OK, "application/json", with_memory(state, memory)))
    }

    async fn write(&self, asked: &Asked, state: Bytes) -> Result<Response, Problem> {
        if state.is_empty() {
            return Err(Problem::new(ProblemType::InvalidRequest, "The body must be a state. DELETE removes one."));
        }
        let Some(lease_id) = &asked.lease_id else {
            return Err(conflict("The state is written only under its lock: run without -lock=false."));
        };
        self.change(asked, lease_id, move |states, name| states.write(name, &state)).await?;
        Ok(done())
    }

    async fn delete(&self, asked: &Asked) -> Result<Response, Problem> {
        if let Some(lease_id) = &asked.lease_id {
            self.change(asked, lease_id, States::remove).await?;
            return Ok(done());
        }
        // Terraform names no lock when it deletes a state. Nobody else may hold it.
        let lease_id = Secret(fresh_uuid());
        self.acquire(asked, &lease_id, SHORT_LEASE_MS, &LockInfo::default()).await?;
        let deleted = self.change(asked, &lease_id, States::remove).await;
        self.release(asked, lease_id).await?;
        deleted.map(|()| done())
    }

    /// Changes a state under the lock that this lease id holds.
    async fn change(
        &self,
        asked: &Asked,
        lease_id: &Secret,
        change: impl FnOnce(&States, &Name) -> io::Result<()> + Send + 'static,
    ) -> Result<(), Problem> {
        let turn = self.turn(&asked.name).await;
        let token = self.prove(asked, lease_id).await?;
        let (states, name) = (Arc::clone(&self.states), asked.name.clone());
        on_disk(move || {
            // A client that hangs up ends the request, but not this: the turn ends with the change.
            let _turn = turn;
            raise(&states, &name, token)?;
            change(&states, &name).map_err(|error| failing(&error))
        })
        .await?;
        if asked.is_run {
            self.watch(&asked.name);
        }
        Ok(())
    }

    async fn lock(&self, asked: &Asked, body: &[u8]) -> Result<Response, Problem> {
        let info = LockInfo::parse(body)?.ok_or_else(|| {
            Problem::new(ProblemType::InvalidRequest, "The body must be Terraform's description of the lock.")
        })?;
        let lease_id = match &asked.lease_id {
            Some(lease_id) if asked.is_run => lease_id.clone(),
            _ if info.id.is_empty() => {
                return Err(Problem::invalid("ID", "ID must not be empty: it proves who holds the lock."));
            }
            _ => lease_id_of(&info.id),
        };
        if !asked.is_run {
            self.acquire(asked, &lease_id, LEASE_WITHOUT_HEARTBEATS_MS, &info).await?;
        }
        let fenced = self.change(asked, &lease_id, |_, _| Ok(())).await;
        if let (Err(problem), false) = (&fenced, asked.is_run) {
            // Terraform never unlocks what it was refused.
            let given_back = self.release(asked, lease_id).await;
            tracing::warn!(key = asked.name.key(), problem.detail, ?given_back, "a lock could not be fenced");
        }
        fenced.map(|()| done())
    }

    async fn unlock(&self, asked: &Asked, body: &[u8]) -> Result<Response, Problem> {
        let Some(info) = LockInfo::parse(body)? else { return self.force_unlock(asked).await };
        if info.id.is_empty() {
            return Err(Problem::invalid("ID", "ID must not be empty: it proves who holds the lock."));
        }
        // A run of `leasehold terraform` gives its lock back at its own end.
        if !asked.is_run {
            self.release(asked, lease_id_of(&info.id)).await?;
        }
        Ok(done())
    }

    /// `terraform force-unlock` names no lock: whoever holds it now loses it.
    async fn force_unlock(&self, asked: &Asked) -> Result<Response, Problem> {
        if asked.is_run {
            let why = "This run holds the lock by itself: call `terraform force-unlock` without `leasehold terraform`.";
            return Err(conflict(why));
        }
        for _ in 0..BREAKS {
            let lock = self.look(&asked.caller, &asked.name).await?.filter(|lock| lock.state == LockState::Held);
            let Some(Lock { record_version_number, .. }) = lock else { return Ok(done()) };
            let request = BreakRequest { key: asked.name.key(), record_version_number, ..BreakRequest::default() };
            match self.locks.break_lock(&asked.caller, request).await {
                Ok(_) => return Ok(done()),
                Err(problem) if problem.problem_type == ProblemType::VersionMismatch => {}
                Err(problem) => return Err(problem),
            }
        }
        Err(conflict("The holder renews the lock faster than it can be broken: stop it first."))
    }

    /// Acquires the lock for a caller that does not heartbeat.
    async fn acquire(&self, asked: &Asked, lease_id: &Secret, lease_ms: u64, info: &LockInfo) -> Result<(), Problem> {
        let request = AcquireRequest {
            key: asked.name.key(),
            owner_name: info.owner(),
            lease_id: Some(lease_id.clone()),
            lease_duration_ms: Some(lease_ms),
            // A repeat, at whatever time it arrives, is granted no newer token.
            sequence: Some(1),
            data: Some(info.data()),
            ..AcquireRequest::default()
        };
        let acquired = self.locks.acquire(&asked.caller, request).await;
        if matches!(&acquired, Err(problem) if problem.problem_type == ProblemType::Held) {
            self.watch(&asked.name);
        }
        acquired.map(drop)
    }

    async fn release(&self, asked: &Asked, lease_id: Secret) -> Result<(), Problem> {
        let request = ReleaseRequest { key: asked.name.key(), lease_id, ..ReleaseRequest::default() };
        leasehold_engine::urgent(self.locks.release(&asked.caller, request)).await.map(drop)
    }

    /// Returns the fencing token of a lock that this lease id holds, and renews it.
    async fn prove(&self, asked: &Asked, lease_id: &Secret) -> Result<u64, Problem> {
        let (key, lease_id) = (asked.name.key(), lease_id.clone());
        let request = HeartbeatRequest { key, lease_id, ..HeartbeatRequest::default() };
        let renewed = leasehold_engine::urgent(self.locks.heartbeat(&asked.caller, request)).await;
        renewed.map(|renewed| renewed.fencing_token)
    }

    /// Looks at the lock, which the caller must have a right to.
    async fn look(&self, caller: &Caller, name: &Name) -> Result<Option<Lock>, Problem> {
        match self.locks.get(caller, GetRequest { key: name.key(), ..GetRequest::default() }).await {
            Ok(lock) => Ok(Some(lock)),
            Err(problem) if problem.problem_type == ProblemType::NotFound => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// Waits for the turn to change a state.
    async fn turn(&self, name: &Name) -> OwnedMutexGuard<()> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let place = hasher.finish() % self.turns.len() as u64;
        Arc::clone(&self.turns[usize::try_from(place).unwrap_or(0)]).lock_owned().await
    }

    /// Frees the lock once its holder is seen to be dead.
    fn watch(&self, name: &Name) {
        self.watched.watch(&self.locks, name);
    }
}

/// Raises the fence of a state to this token. Its turn must be held.
///
/// # Errors
/// `lost`: there was a later holder.
fn raise(states: &States, name: &Name, token: u64) -> Result<(), Problem> {
    let fence = states.fence(name).map_err(|error| failing(&error))?;
    if token < fence {
        return Err(conflict(
            "The state has had a holder with a later token, and nothing was written. Either this run lost its lock, or the \
             table of the locks is older than the folder: then make it anew with `leasehold restore`.",
        ));
    }
    if token > fence {
        states.set_fence(name, token).map_err(|error| failing(&error))?;
    }
    Ok(())
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

/// Works with files on a thread of its own.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> Result<T, Problem> + Send + 'static) -> Result<T, Problem> {
    let gone = |error| Err(Problem::new(ProblemType::Unavailable, format!("The folder was not reached: {error}.")));
    spawn_blocking(work).await.unwrap_or_else(gone)
}

fn done() -> Response {
    answer(StatusCode::OK, "application/json", Body::empty())
}

/// What a user of Terraform can do about a lock that somebody holds.
fn held_detail(problem: &Problem) -> String {
    let owner = problem.lock.as_ref().map_or("someone else", |lock| lock.owner_name.as_str());
    format!(
        "The state is locked by {owner}. Wait for it with `-lock-timeout`, or with `leasehold terraform --wait`. Where its run is gone, \
         `terraform force-unlock` frees it."
    )
}

fn conflict(detail: &str) -> Problem {
    Problem::new(ProblemType::Lost, detail)
}

fn failing(error: &io::Error) -> Problem {
    tracing::error!(%error, "the folder of Terraform's states fails");
    Problem::new(ProblemType::Unavailable, "The folder of the states fails. The log of the service says why.")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use aws_sdk_dynamodb::Client;
    use leasehold_dynamodb::Clock;
    use leasehold_engine::Engine;
    use leasehold_protocol::{LockTable, Policy, TableSchema, ensure_table};
    use tokio::time::timeout;

    use super::*;

    async fn backend(folder: &std::path::Path) -> Backend {
        let engine = Engine::memory().expect("memory");
        let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
        let schema = TableSchema::new("leasehold");
        ensure_table(&client, &schema).await.expect("a table");
        let locks = Service::new(LockTable::new(client, schema, Policy::default(), Clock::system()));
        Backend::new(locks, Arc::new(States::open(folder).expect("a folder")))
    }

    fn asked(id: &str) -> (Asked, String) {
        let name = Name::parse("network").expect("plain");
        let (caller, lease_id) = (Caller::unrestricted(), Some(lease_id_of(id)));
        let asked = Asked { action: Action::Write, caller, name, lease_id, is_run: false };
        (asked, format!(r#"{{"ID":"{id}","Operation":"apply"}}"#))
    }

    #[tokio::test]
    async fn next_holder_waits_for_a_write_whose_client_hung_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let backend = backend(folder.path()).await;
        let ((first, info), (second, next)) = (asked("first"), asked("second"));
        backend.lock(&first, info.as_bytes()).await.expect("free");
        let ((writing, written), (go, going)) = (channel(), channel());
        let write = {
            let (backend, first) = (backend.clone(), first.clone());
            tokio::spawn(async move {
                let slow = move |states: &States, name: &Name| {
                    writing.send(()).expect("the test listens");
                    going.recv().expect("the test goes on");
                    states.write(name, b"late")
                };
                backend.change(&first, &lease_id_of("first"), slow).await
            })
        };
        spawn_blocking(move || written.recv()).await.expect("a thread").expect("it writes");
        write.abort();
        write.await.expect_err("its client hung up");
        backend.force_unlock(&second).await.expect("broken");
        let mut locking = Box::pin(backend.lock(&second, next.as_bytes()));
        timeout(Duration::from_millis(200), &mut locking).await.expect_err("a write of the first is on its way");
        go.send(()).expect("the write waits");
        locking.await.expect("granted");
        assert_eq!(backend.states.read(&second.name).expect("read").as_deref(), Some(&b"late"[..]));
        let refused = backend.write(&first, Bytes::from_static(b"later")).await.expect_err("too late");
        assert_eq!(refused.status, 409);
        assert_eq!(backend.states.read(&second.name).expect("read").as_deref(), Some(&b"late"[..]));
    }
}
