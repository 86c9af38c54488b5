//! Acquires a lock: by one request, or by requests until the wait is over. Rules C1, C4 and C5.

use std::ops::ControlFlow;
use std::time::Duration;

use leasehold_wire::{AcquireOutcome, AcquireRequest, AcquireResponse, Lock, Secret, Staleness};

use crate::attempt::Attempt;
use crate::budget::Budget;
use crate::clock::{Instant, chance, millis, sleep};
use crate::flow::refuse_deadlock;
use crate::lease::{Granted, Lease, Origin};
use crate::patience::Patience;
use crate::remote::{Backoff, decode_data, encode_data};
use crate::request::check_lease;
use crate::subject::Subject;
use crate::timing::poll_pause;
use crate::{Client, Error, ErrorKind, Guard, LockRequest, Observation, telemetry};

/// The lock, or its present holder. The same type serves permits and several locks.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub enum Acquisition<G = Guard, H = Held> {
    /// The caller has acquired the lock.
    Granted(G),
    /// Another owner holds the lock.
    Held(H),
}

/// The view of a lock that another owner holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The public view of the lock.
    pub lock: Box<Lock>,
    /// The client's observation of this version of the lock.
    pub observation: Observation,
}

impl<G, H> Acquisition<G, H> {
    pub(crate) fn granted_or(self, refuse: impl FnOnce(H) -> Error) -> Result<G, Error> {
        match self {
            Self::Granted(guard) => Ok(guard),
            Self::Held(held) => Err(refuse(held)),
        }
    }
}

impl Acquisition {
    /// Returns the guard, or an error that names the holder.
    ///
    /// # Errors
    /// [`ErrorKind::Held`]
    pub fn granted(self) -> Result<Guard, Error> {
        self.granted_or(|held| Error::held(held.lock))
    }
}

impl Client {
    /// Sends one request for a lock. The request takes over a lock that this client has seen unchanged for the record's
    /// own lease.
    ///
    /// # Errors
    /// Any [`ErrorKind`] but `Held`. After an error that leaves the grant unknown, the client releases the lock in the
    /// background.
    pub async fn try_acquire(&self, request: impl Into<LockRequest>) -> Result<Acquisition, Error> {
        let request = request.into();
        telemetry::waiting("try_acquire", &request.key, self.ask_once(&request)).await
    }

    async fn ask_once(&self, request: &LockRequest) -> Result<Acquisition, Error> {
        let mut pursuit = Pursuit::new(self, request)?;
        if let Some(guard) = pursuit.shared() {
            return Ok(Acquisition::Granted(guard));
        }
        match pursuit.ask(self.remote().poll_timeout(pursuit.lease, Duration::MAX)).await {
            Ok(guard) => Ok(Acquisition::Granted(guard)),
            Err(error) => match error.kind() {
                ErrorKind::Held(lock) => {
                    let observation = self.memory().saw(&request.key, lock);
                    Ok(Acquisition::Held(Held { lock: lock.clone(), observation }))
                }
                _ => Err(error),
            },
        }
    }

    /// Requests a lock until it is granted, or the request's [`Wait`](crate::Wait) is over. The caller may cancel at
    /// any time: the client releases a lock that is granted afterwards.
    ///
    /// # Errors
    /// Any [`ErrorKind`] but `Held`. A retryable error is returned only after the wait was over.
    pub async fn acquire(&self, request: impl Into<LockRequest>) -> Result<Acquisition, Error> {
        let request = request.into();
        telemetry::waiting("acquire", &request.key, self.ask_until_granted(&request)).await
    }

    async fn ask_until_granted(&self, request: &LockRequest) -> Result<Acquisition, Error> {
        let mut pursuit = Pursuit::new(self, request)?;
        if !request.reentrant {
            refuse_deadlock(self, Subject::Lock, &request.key, 0)?;
        }
        let mut budget = Budget::new(request.wait.unwrap_or_default(), self.retry_budget());
        let mut backoff = Backoff::default();
        let mut seen = None;
        let mut patience = Patience::new(self, &request.key, pursuit.owner_name.clone());
        if let Some(guard) = pursuit.shared() {
            return Ok(Acquisition::Granted(guard));
        }
        let turn = match self.stand_in_line(request, &mut budget).await? {
            ControlFlow::Continue(turn) => turn,
            ControlFlow::Break(held) => return Ok(Acquisition::Held(held)),
        };
        // A caller that returns to a key at once would starve the waiters, where there are some.
        let mut pause = self.memory().returns(&request.key, request.poll_interval);
        let mut watched: Option<Held> = None;
        loop {
            match watched.take() {
                Some(mut held) => {
                    self.await_change(request, &mut held, pause, &mut budget, &mut patience, turn.as_ref()).await;
                    seen = Some(held);
                }
                None => sleep(pause.min(budget.left())).await,
            }
            if let Some(guard) = pursuit.shared() {
                return Ok(Acquisition::Granted(guard));
            }
            let error = match pursuit.ask(self.remote().poll_timeout(pursuit.lease, budget.left())).await {
                Ok(guard) => {
                    if let Some(turn) = turn {
                        guard.lease().take_turn(turn);
                    }
                    return Ok(Acquisition::Granted(guard));
                }
                Err(error) => error,
            };
            pause = match error.kind() {
                ErrorKind::Held(lock) => {
                    backoff = Backoff::default();
                    if let Some(turn) = &turn {
                        turn.show(lock);
                    }
                    let observation = self.memory().saw(&request.key, lock);
                    budget.saw(observation.record_version_number(), observation.stale_after());
                    if budget.is_over() {
                        return Ok(Acquisition::Held(Held { lock: lock.clone(), observation }));
                    }
                    budget.report(request.on_wait.as_ref(), lock, observation.stale_in());
                    patience.saw(lock);
                    let held = Held { lock: lock.clone(), observation: observation.clone() };
                    let poll = poll_pause(request.poll_interval, error.retry_after(), chance());
                    // A version that was named without success is not named again at once.
                    let due = request.staleness == Staleness::Rvn
                        && pursuit.named.as_deref() != Some(observation.record_version_number());
                    if self.watches(request.poll_interval) && (due || request.staleness == Staleness::Clock) {
                        watched = Some(held.clone());
                    }
                    seen = Some(held);
                    if due { poll.min(observation.stale_in()) } else { poll }
                }
                ErrorKind::Lost(_) => {
                    pursuit.start_again();
                    budget.afford(&error, backoff.pause(&error)).ok_or(error)?
                }
                _ => match budget.retry(backoff.pause(&error), error, seen.take()) {
                    ControlFlow::Continue(pause) => pause,
                    ControlFlow::Break(end) => return end.map(Acquisition::Held),
                },
            };
        }
    }
}

/// The pursuit of one lock.
struct Pursuit<'a> {
    client: &'a Client,
    request: &'a LockRequest,
    owner_name: String,
    lease: Duration,
    attempt: Attempt<AcquireRequest>,
    /// The version that the last request named as stale.
    named: Option<String>,
    /// The outcome of a grant that came too late: how the lock was really acquired.
    late: Option<(AcquireOutcome, Option<String>)>,
}

impl<'a> Pursuit<'a> {
    fn new(client: &'a Client, request: &'a LockRequest) -> Result<Self, Error> {
        let lease = request.lease.unwrap_or(client.default_lease());
        let keys = vec![(Subject::Lock, request.key.clone())];
        let attempt = Attempt::new(client, keys, lease, &request.keeping)?;
        check_lease(lease)?;
        request.keeping.check(lease)?;
        let owner_name = request.owner_name.clone().unwrap_or_else(|| client.owner_name().to_owned());
        Ok(Self { client, request, owner_name, lease, attempt, named: None, late: None })
    }

    /// Another guard of a lock that this client holds already, if the caller asked for one.
    fn shared(&self) -> Option<Guard> {
        if self.request.reentrant { self.client.share(&self.request.key) } else { None }
    }

    /// The version that may be named: the client has seen it for its lease.
    fn stale(&self) -> Option<String> {
        match self.request.staleness {
            Staleness::Rvn => self.client.memory().stale(&self.request.key),
            Staleness::Clock => None,
        }
    }

    /// Begins another acquisition, since the lease id has ended.
    fn start_again(&mut self) {
        self.attempt.start_again();
        self.late = None;
    }

    /// Sends one request, which takes over a stale version.
    async fn ask(&mut self, limit: Duration) -> Result<Guard, Error> {
        let stale = self.stale();
        let (request, owner_name, lease) = (self.request, &self.owner_name, self.lease);
        let key = request.key.clone();
        let (numbered, result) = self
            .attempt
            .send(
                |lease_id| wire_request(request, owner_name, lease, lease_id, stale),
                limit,
                |remote, numbered| async move { remote.acquire(&key, &numbered, limit).await },
            )
            .await?;
        self.named = numbered.request.observed_record_version_number;
        let (sent, grant) = (numbered.first_sent, result?);
        if !self.attempt.is_too_late() {
            return self.granted(sent, grant);
        }
        self.late.get_or_insert((grant.outcome, grant.previous_owner_name));
        Err(Error::too_late(Duration::from_millis(grant.lease_duration_ms)))
    }

    fn granted(&mut self, sent: Instant, grant: AcquireResponse) -> Result<Guard, Error> {
        let lease = Duration::from_millis(grant.lease_duration_ms);
        let (outcome, previous_owner_name) = self.late.take().unwrap_or((grant.outcome, grant.previous_owner_name));
        let origin = Origin {
            owner_name: grant.owner_name,
            outcome,
            previous_owner_name,
            data: decode_data(grant.data, grant.data_base64.as_deref()),
        };
        let (lease_id, last_number) = self.attempt.granted();
        let granted = Granted {
            sent,
            lease,
            fencing_token: grant.fencing_token,
            version: grant.record_version_number,
            permits: 0,
            last_number,
        };
        let terms = self.client.terms(&self.request.keeping);
        let lease = Lease::new(Subject::Lock, self.request.key.clone(), lease_id, Some(origin), granted, terms);
        self.client.keep(lease, &self.request.keeping)
    }
}

fn wire_request(
    request: &LockRequest,
    owner_name: &str,
    lease: Duration,
    lease_id: &Secret,
    named: Option<String>,
) -> AcquireRequest {
    let (data, data_base64) = encode_data(request.data.as_deref());
    AcquireRequest {
        key: request.key.key.clone(),
        sort_key: request.key.sort_key.clone(),
        owner_name: owner_name.to_owned(),
        lease_id: Some(lease_id.clone()),
        sequence: None,
        request_id: None,
        lease_duration_ms: Some(millis(lease)),
        observed_record_version_number: named,
        staleness: (request.staleness == Staleness::Clock).then_some(Staleness::Clock),
        replace_data: (request.data.is_some() && !request.replace_data).then_some(false),
        data,
        data_base64,
        only_if_exists: request.only_if_exists.then_some(true),
        occurrence: request.occurrence.clone(),
        at_most_once: request.at_most_once.then_some(true),
        attributes: (!request.attributes.is_empty()).then(|| request.attributes.clone()),
    }
}
