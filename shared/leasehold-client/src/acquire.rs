//! Asking for a lock: once, or until there is an end to it. Rules C1, C4, C5 and C6.

use std::time::Duration;

use leasehold_wire::{AcquireRequest, AcquireResponse, Lock, Secret, Staleness};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::client::SLACK;
use crate::clock::{Instant, deadline, fresh_uuid, jitter, millis, sleep};
use crate::lease::{Lease, Origin, Term};
use crate::remote::{Backoff, Remote, decode_data, encode_data, persist};
use crate::request::{LockKey, check_lease};
use crate::{Client, Error, ErrorKind, Guard, LockRequest, Observation, Release, Released, Wait, Waiting};

/// A poll comes later by up to this part of its interval, so that waiters do not move in step.
const POLL_JITTER: u32 = 4;
/// The time-out of a request at the end of a wait, at least: a function that starts cold must be able to answer.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// The lock, or who has it.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub enum Acquisition {
    /// It is the caller's.
    Granted(Guard),
    /// Someone else has it.
    Held(Held),
}

/// Someone else has the lock.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// What anyone may know of it.
    pub lock: Box<Lock>,
    /// Since when this client has seen it so.
    pub observation: Observation,
}

impl Acquisition {
    /// The guard, or an error that says who has the lock: for callers who cannot go on without it.
    ///
    /// # Errors
    /// [`ErrorKind::Held`]
    pub fn granted(self) -> Result<Guard, Error> {
        match self {
            Self::Granted(guard) => Ok(guard),
            Self::Held(held) => Err(Error::held(held.lock)),
        }
    }
}

impl Client {
    /// Asks for a lock, once. If it is held, and this client has seen it unchanged for the record's own lease, the same
    /// request takes it over.
    ///
    /// # Errors
    /// Any [`ErrorKind`] but `Held`. After one that leaves open whether the lock was granted, it is given back in the background.
    pub async fn try_acquire(&self, request: impl Into<LockRequest>) -> Result<Acquisition, Error> {
        let request = request.into();
        let mut pursuit = Pursuit::new(self, &request)?;
        if let Some(guard) = pursuit.shared() {
            return Ok(Acquisition::Granted(guard));
        }
        match pursuit.ask(pursuit.stale(), self.remote().timeout_within(pursuit.lease)).await {
            Ok(guard) => Ok(Acquisition::Granted(guard)),
            Err(error) => match error.kind() {
                ErrorKind::Held(lock) => {
                    let observation = self.observe(&request.key, lock);
                    Ok(Acquisition::Held(Held { lock: lock.clone(), observation }))
                }
                _ => Err(error),
            },
        }
    }

    /// Asks for a lock until it is granted, or the request's [`Wait`] is over. May be cancelled at any time: what is
    /// granted afterwards is given back.
    ///
    /// # Errors
    /// Any [`ErrorKind`] but `Held`; one that is worth trying again only when the wait was over.
    pub async fn acquire(&self, request: impl Into<LockRequest>) -> Result<Acquisition, Error> {
        let request = request.into();
        let mut pursuit = Pursuit::new(self, &request)?;
        let mut budget = Budget::new(request.wait, self.retry_budget());
        let mut backoff = Backoff::default();
        let mut seen = None;
        loop {
            if let Some(guard) = pursuit.shared() {
                return Ok(Acquisition::Granted(guard));
            }
            let named = pursuit.stale();
            let limit = self.remote().timeout_within(pursuit.lease).min(budget.left().max(LAST_REQUEST));
            let error = match pursuit.ask(named.clone(), limit).await {
                Ok(guard) => return Ok(Acquisition::Granted(guard)),
                Err(error) => error,
            };
            let pause = match error.kind() {
                ErrorKind::Held(lock) => {
                    backoff = Backoff::default();
                    let observation = self.observe(&request.key, lock);
                    budget.saw(&observation);
                    if budget.is_over() {
                        return Ok(Acquisition::Held(Held { lock: lock.clone(), observation }));
                    }
                    budget.report(&request, lock, &observation);
                    seen = Some(Held { lock: lock.clone(), observation: observation.clone() });
                    let interval = request.poll_interval.max(error.retry_after());
                    let poll = interval.saturating_add(jitter(interval / POLL_JITTER));
                    // A version that was named and is still there will not do better at once.
                    let due = request.staleness == Staleness::Rvn
                        && named.as_deref() != Some(observation.record_version_number());
                    if due { poll.min(observation.stale_in()) } else { poll }
                }
                ErrorKind::Lost(_) => {
                    pursuit.start_again();
                    budget.afford(backoff.pause(&error)).ok_or(error)?
                }
                _ if error.is_retryable() => match (budget.afford(backoff.pause(&error)), seen.take()) {
                    (Some(pause), _) => pause,
                    // Only the last look failed: the one before it says who has the lock.
                    (None, Some(held)) => return Ok(Acquisition::Held(held)),
                    (None, None) => return Err(error),
                },
                _ => return Err(error),
            };
            sleep(pause.min(budget.left())).await;
        }
    }
}

/// How long a wait goes on.
struct Budget {
    wait: Wait,
    /// `None`: for ever.
    deadline: Option<Instant>,
    /// Which version the deadline was set for.
    seen: Option<String>,
}

impl Budget {
    /// Until a lock was seen held, `unreachable` bounds the search for the service.
    fn new(wait: Wait, unreachable: Duration) -> Self {
        let deadline = match wait {
            Wait::OneLease { .. } => Some(deadline(unreachable)),
            Wait::AtMost(limit) => Some(deadline(limit)),
            Wait::Forever => None,
        };
        Self { wait, deadline, seen: None }
    }

    fn saw(&mut self, observation: &Observation) {
        let Wait::OneLease { margin, extend } = self.wait else { return };
        let moved = self.seen.as_deref() != Some(observation.record_version_number());
        if self.seen.is_none() || (extend && moved) {
            self.deadline = Some(deadline(observation.lease().saturating_add(margin)));
            self.seen = Some(observation.record_version_number().to_owned());
        }
    }

    fn left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// A pause after a failure, if there is time for it and another request.
    fn afford(&self, pause: Duration) -> Option<Duration> {
        (pause < self.left()).then_some(pause)
    }

    fn report(&self, request: &LockRequest, lock: &Lock, observation: &Observation) {
        if let Some(on_wait) = &request.on_wait {
            on_wait(&Waiting {
                lock,
                stale_in: observation.stale_in(),
                gives_up_in: self.deadline.map(|_| self.left()),
            });
        }
    }
}

/// One acquisition in the making. Dropping it leaves nothing behind.
struct Pursuit<'a> {
    client: &'a Client,
    request: &'a LockRequest,
    owner_name: String,
    lease: Duration,
    lease_id: Secret,
    /// Whether a request under this lease id may still be carried out.
    unanswered: bool,
    /// Of the request that is under way: how it ends.
    under_way: Option<oneshot::Receiver<Ending>>,
}

/// How a request ended, for whoever must clean up after it.
enum Ending {
    Granted,
    Refused,
    Unanswered,
}

impl Ending {
    fn of<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Granted,
            Err(error) if error.is_unanswered() => Self::Unanswered,
            Err(_) => Self::Refused,
        }
    }
}

impl<'a> Pursuit<'a> {
    fn new(client: &'a Client, request: &'a LockRequest) -> Result<Self, Error> {
        client.check_open()?;
        let lease = request.lease.unwrap_or(client.default_lease());
        check_lease(lease)?;
        request.check_heartbeats(lease)?;
        let owner_name = request.owner_name.clone().unwrap_or_else(|| client.owner_name().to_owned());
        let lease_id = Secret(fresh_uuid());
        Ok(Self { client, request, owner_name, lease, lease_id, unanswered: false, under_way: None })
    }

    /// Another guard of a lock that this client holds already, if the caller asked for that.
    fn shared(&self) -> Option<Guard> {
        if self.request.reentrant { self.client.share(&self.request.key) } else { None }
    }

    /// The version that may be named, because it was seen for its lease.
    fn stale(&self) -> Option<String> {
        match self.request.staleness {
            Staleness::Rvn => self.client.stale(&self.request.key),
            Staleness::Clock => None,
        }
    }

    /// The lease id has ended: what comes now is another acquisition.
    fn start_again(&mut self) {
        self.give_up();
        self.lease_id = Secret(fresh_uuid());
    }

    /// One request, which may take over the version that is `named`. It runs on the keeper, so that its end is known even if
    /// nobody waits for it any more.
    async fn ask(&mut self, named: Option<String>, limit: Duration) -> Result<Guard, Error> {
        self.client.check_open()?;
        let wire = self.wire_request(named);
        let remote = self.client.remote().clone();
        let (reply, answer) = oneshot::channel();
        let (ended, ending) = oneshot::channel();
        let sent = Instant::now();
        self.under_way = Some(ending);
        self.client.in_background(async move {
            let result = remote.acquire(&wire, limit).await;
            let _ = ended.send(Ending::of(&result));
            let _ = reply.send(result);
        });
        // The keeper keeps the limit itself, as long as its runtime runs.
        let result = match timeout(limit.saturating_add(SLACK), answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Error::abandoned()),
        };
        self.under_way = None;
        match result {
            Ok(grant) if sent.elapsed() < Duration::from_millis(grant.lease_duration_ms) => self.granted(sent, grant),
            Ok(_) => {
                self.unanswered = true;
                Err(Error::timed_out(limit))
            }
            Err(error) => {
                self.unanswered |= error.is_unanswered();
                Err(error)
            }
        }
    }

    fn wire_request(&self, named: Option<String>) -> AcquireRequest {
        let request = self.request;
        let (data, data_base64) = encode_data(request.data.as_deref());
        AcquireRequest {
            key: request.key.key.clone(),
            sort_key: request.key.sort_key.clone(),
            owner_name: self.owner_name.clone(),
            lease_id: Some(self.lease_id.clone()),
            sequence: None,
            request_id: None,
            lease_duration_ms: Some(millis(self.lease)),
            observed_record_version_number: named,
            staleness: (request.staleness == Staleness::Clock).then_some(Staleness::Clock),
            replace_data: (request.data.is_some() && !request.replace_data).then_some(false),
            data,
            data_base64,
            only_if_exists: request.only_if_exists.then_some(true),
            attributes: (!request.attributes.is_empty()).then(|| request.attributes.clone()),
        }
    }

    fn granted(&mut self, sent: Instant, grant: AcquireResponse) -> Result<Guard, Error> {
        let lease = Duration::from_millis(grant.lease_duration_ms);
        let unanswered = std::mem::take(&mut self.unanswered).then_some(self.lease);
        let term = Term::granted(
            sent,
            lease,
            grant.fencing_token,
            grant.record_version_number,
            unanswered,
            self.request.hold_on_unavailable,
        );
        let origin = Origin {
            owner_name: grant.owner_name,
            outcome: grant.outcome,
            previous_owner_name: grant.previous_owner_name,
            data: decode_data(grant.data, grant.data_base64.as_deref()),
        };
        let lease = Lease::new(self.request.key.clone(), self.lease_id.clone(), Some(origin), term);
        self.client.keep(lease, self.request.heartbeats, self.request.at_risk.clone())
    }

    /// If a request under this lease id may be granted yet, gives back what it gets.
    fn give_up(&mut self) {
        let unanswered = std::mem::take(&mut self.unanswered);
        let under_way = self.under_way.take();
        if unanswered || under_way.is_some() {
            let (key, lease_id) = (self.request.key.clone(), self.lease_id.clone());
            let retry_budget = self.client.retry_budget();
            let remote = self.client.remote().clone();
            self.client.in_background(async move {
                let ending = match under_way {
                    Some(ending) => ending.await.unwrap_or(Ending::Unanswered),
                    None => Ending::Refused,
                };
                match ending {
                    Ending::Refused if !unanswered => {}
                    Ending::Granted => {
                        give_back(&remote, &key, &lease_id, retry_budget).await;
                    }
                    Ending::Refused | Ending::Unanswered => {
                        if !give_back(&remote, &key, &lease_id, retry_budget).await {
                            // There was nothing yet: the release may have overtaken what it is to undo.
                            sleep(remote.request_timeout()).await;
                            give_back(&remote, &key, &lease_id, retry_budget).await;
                        }
                    }
                }
            });
        }
    }
}

impl Drop for Pursuit<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Releases a lease id that nobody will use. Whether there was anything to release.
async fn give_back(remote: &Remote, key: &LockKey, lease_id: &Secret, retry_budget: Duration) -> bool {
    let release = Release::new();
    let result = persist(deadline(retry_budget), || remote.release(key, lease_id, &release)).await;
    matches!(result, Ok(Released::Released | Released::Replayed))
}
