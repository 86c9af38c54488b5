//! The answer to each request.

use http::{HeaderMap, Response, StatusCode};
use leasehold_api::Service;
use leasehold_dynamodb::fresh_uuid;
use leasehold_wire::{
    AcquireRequest, BreakRequest, GetRequest, HeartbeatRequest, Lock, LockState, Problem, ProblemType, ReleaseRequest,
    Secret, Staleness,
};

use crate::request::{Action, Asked, LockInfo, answer, check_md5, lease_id_of};
use crate::{Change, LEASE_WITHOUT_HEARTBEATS_MS, Store};

/// The lease of a lock that this process takes for one change.
const SHORT_LEASE_MS: u64 = 20_000;
/// The number of tries to break a lock that somebody renews.
const BREAKS: usize = 5;

/// The states and their locks.
#[derive(Debug, Clone)]
pub struct Backend<S> {
    locks: Service,
    states: S,
    /// Whether plain `terraform` gets the lock of a run whose lease is over by the clock.
    judges_by_clock: bool,
}

impl<S: Store> Backend<S> {
    /// The states in `states` under locks of this service.
    pub fn new(locks: Service, states: S) -> Self {
        Self { locks, states, judges_by_clock: false }
    }

    /// The same, in a process that cannot watch: a LOCK that finds a run without heartbeats takes its lock over, when
    /// the lease is over by the clocks of the service.
    #[must_use]
    pub fn judging_by_clock(self) -> Self {
        Self { judges_by_clock: true, ..self }
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// The refusal, for [`refusal`](crate::refusal).
    pub async fn answer(&self, asked: &Asked, headers: &HeaderMap, body: &[u8]) -> Result<Response<Vec<u8>>, Problem> {
        match asked.action {
            Action::Read => return self.read(asked).await,
            Action::Write => {
                check_md5(headers, body)?;
                self.write(asked, body).await?;
            }
            Action::Delete => self.delete(asked).await?,
            Action::Lock => self.lock(asked, body).await?,
            Action::Unlock => self.unlock(asked, body).await?,
        }
        Ok(answer(StatusCode::OK, "application/json", Vec::new()))
    }

    async fn read(&self, asked: &Asked) -> Result<Response<Vec<u8>>, Problem> {
        match &asked.lease_id {
            // What a run reads is what it changes, with or without -lock=false: earlier holders write no more.
            Some(lease_id) if asked.is_run => self.change(asked, lease_id, Change::Raise).await?,
            _ => drop(self.look(asked).await?),
        }
        let state = self.states.read(&asked.name).await?.ok_or_else(|| {
            let detail = format!("There is no state {} yet.", asked.name.as_str());
            Problem { title: "There is no such state".to_owned(), ..Problem::new(ProblemType::NotFound, detail) }
        })?;
        Ok(answer(StatusCode::OK, "application/json", state))
    }

    async fn write(&self, asked: &Asked, state: &[u8]) -> Result<(), Problem> {
        if state.is_empty() {
            return Err(Problem::new(ProblemType::InvalidRequest, "The body must be a state. DELETE removes one."));
        }
        let Some(lease_id) = &asked.lease_id else {
            return Err(conflict("The state is written only under its lock: run without -lock=false."));
        };
        self.change(asked, lease_id, Change::Write(state.to_vec())).await
    }

    async fn delete(&self, asked: &Asked) -> Result<(), Problem> {
        if let Some(lease_id) = &asked.lease_id {
            return self.change(asked, lease_id, Change::Remove).await;
        }
        // Terraform names no lock when it deletes a state. Nobody else may hold it.
        let lease_id = Secret(fresh_uuid());
        self.acquire(asked, &lease_id, SHORT_LEASE_MS, &LockInfo::default()).await?;
        let deleted = self.change(asked, &lease_id, Change::Remove).await;
        self.release(asked, lease_id).await?;
        deleted
    }

    /// Changes a state under the lock that this lease id holds. The lock may be lost after the proof: the fence refuses
    /// the change then, once the next holder has raised it.
    async fn change(&self, asked: &Asked, lease_id: &Secret, change: Change) -> Result<(), Problem> {
        let (key, lease_id) = (asked.name.key(), lease_id.clone());
        let proof = HeartbeatRequest { key, lease_id, ..HeartbeatRequest::default() };
        let token = self.locks.heartbeat(&asked.caller, proof).await?.fencing_token;
        self.states.change(&asked.name, token, change).await
    }

    async fn lock(&self, asked: &Asked, body: &[u8]) -> Result<(), Problem> {
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
        let fenced = self.change(asked, &lease_id, Change::Raise).await;
        if let (Err(problem), false) = (&fenced, asked.is_run) {
            // Terraform never unlocks what it was refused.
            let given_back = self.release(asked, lease_id).await;
            tracing::warn!(key = asked.name.key(), problem.detail, ?given_back, "a lock could not be fenced");
        }
        fenced
    }

    async fn unlock(&self, asked: &Asked, body: &[u8]) -> Result<(), Problem> {
        let Some(info) = LockInfo::parse(body)? else { return self.force_unlock(asked).await };
        if info.id.is_empty() {
            return Err(Problem::invalid("ID", "ID must not be empty: it proves who holds the lock."));
        }
        // A run of `leasehold terraform` gives its lock back at its own end.
        if asked.is_run {
            return Ok(());
        }
        self.release(asked, lease_id_of(&info.id)).await
    }

    /// `terraform force-unlock` names no lock: whoever holds it now loses it.
    async fn force_unlock(&self, asked: &Asked) -> Result<(), Problem> {
        if asked.is_run {
            let why = "This run holds the lock by itself: call `terraform force-unlock` without `leasehold terraform`.";
            return Err(conflict(why));
        }
        for _ in 0..BREAKS {
            let lock = self.look(asked).await?.filter(|lock| lock.state == LockState::Held);
            let Some(Lock { record_version_number, .. }) = lock else { return Ok(()) };
            let request = BreakRequest { key: asked.name.key(), record_version_number, ..BreakRequest::default() };
            match self.locks.break_lock(&asked.caller, request).await {
                Ok(_) => return Ok(()),
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
        let Err(refused) = self.locks.acquire(&asked.caller, request.clone()).await else { return Ok(()) };
        let heartbeats = |lock: &Lock| lock.lease_duration_ms < LEASE_WITHOUT_HEARTBEATS_MS;
        if !self.judges_by_clock || !refused.lock.as_deref().is_some_and(heartbeats) {
            return Err(refused);
        }
        // `admit` refuses the run, should it live on.
        let by_clock = AcquireRequest { staleness: Some(Staleness::Clock), ..request };
        self.locks.acquire(&asked.caller, by_clock).await.map(drop)
    }

    async fn release(&self, asked: &Asked, lease_id: Secret) -> Result<(), Problem> {
        let request = ReleaseRequest { key: asked.name.key(), lease_id, ..ReleaseRequest::default() };
        self.locks.release(&asked.caller, request).await.map(drop)
    }

    /// Looks at the lock, which the caller must have a right to.
    async fn look(&self, asked: &Asked) -> Result<Option<Lock>, Problem> {
        match self.locks.get(&asked.caller, GetRequest { key: asked.name.key(), ..GetRequest::default() }).await {
            Ok(lock) => Ok(Some(lock)),
            Err(problem) if problem.problem_type == ProblemType::NotFound => Ok(None),
            Err(problem) => Err(problem),
        }
    }
}

fn conflict(detail: &str) -> Problem {
    Problem::new(ProblemType::Lost, detail)
}
