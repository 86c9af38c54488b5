//! Asking for a lock: once, or until there is an end to it. Rules C1, C4, C5 and C6.

use std::time::Duration;

use leasehold_wire::{AcquireOutcome, AcquireRequest, AcquireResponse, Lock, Secret, Staleness};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::budget::Budget;
use crate::client::SLACK;
use crate::clock::{Instant, chance, deadline, fresh_uuid, millis, sleep};
use crate::lease::{Lease, Origin, Term};
use crate::remote::{Backoff, Remote, decode_data, encode_data, persist};
use crate::request::{LockKey, check_lease};
use crate::sequence::{Counter, Turns};
use crate::timing::{poll_pause, return_pause};
use crate::{Client, Error, ErrorKind, Guard, LockRequest, Observation, Release, Released};

/// The lock, or its present holder.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub enum Acquisition {
    /// The lock is the caller's.
    Granted(Guard),
    /// Someone else has it.
    Held(Held),
}

/// Someone else has the lock.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The public view of the lock.
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
        match pursuit.ask(self.remote().poll_timeout(pursuit.lease, Duration::MAX)).await {
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

    /// Asks for a lock until it is granted, or the request's [`Wait`](crate::Wait) is over. May be cancelled at any time: what is
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
        // Whoever comes back to a key at once would starve those who wait for it.
        let mut pause = return_pause(self.released_ago(&request.key), request.poll_interval, chance());
        if let Some(guard) = pursuit.shared() {
            return Ok(Acquisition::Granted(guard));
        }
        let mut watched: Option<Held> = None;
        loop {
            match watched.take() {
                Some(mut held) => {
                    self.await_change(&request, &mut held, pause, &mut budget).await;
                    seen = Some(held);
                }
                None => sleep(pause.min(budget.left())).await,
            }
            if let Some(guard) = pursuit.shared() {
                return Ok(Acquisition::Granted(guard));
            }
            let error = match pursuit.ask(self.remote().poll_timeout(pursuit.lease, budget.left())).await {
                Ok(guard) => return Ok(Acquisition::Granted(guard)),
                Err(error) => error,
            };
            pause = match error.kind() {
                ErrorKind::Held(lock) => {
                    backoff = Backoff::default();
                    let observation = self.observe(&request.key, lock);
                    budget.saw(&observation);
                    if budget.is_over() {
                        return Ok(Acquisition::Held(Held { lock: lock.clone(), observation }));
                    }
                    budget.report(&request, lock, &observation);
                    let held = Held { lock: lock.clone(), observation: observation.clone() };
                    let poll = poll_pause(request.poll_interval, error.retry_after(), chance());
                    // A version that was named and is still there will not do better at once.
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
                    budget.afford(backoff.pause(&error)).ok_or(error)?
                }
                _ if error.is_worth_another_try() => match (budget.afford(backoff.pause(&error)), seen.take()) {
                    (Some(pause), _) => pause,
                    // Only the last look failed: the one before it says who has the lock.
                    (None, Some(held)) => return Ok(Acquisition::Held(held)),
                    (None, None) => return Err(error),
                },
                _ => return Err(error),
            };
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
    numbers: Counter,
    turns: Turns<AcquireRequest>,
    /// The version that the last request named as stale.
    named: Option<String>,
    /// Whether a request under this lease id was, or may yet be, carried out.
    may_hold: bool,
    /// The grant that came too late, if one did: how the lock was really acquired.
    late: Option<(AcquireOutcome, Option<String>)>,
    /// The end of the request that is under way.
    under_way: Option<oneshot::Receiver<Ending>>,
}

/// The end of a request, for whoever must clean up after it.
enum Ending {
    Granted,
    Refused,
    Unanswered,
}

impl Ending {
    fn of<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Granted,
            Err(error) if Self::may_hold(error) => Self::Unanswered,
            Err(_) => Self::Refused,
        }
    }

    /// Whether the row may be this lease id's after such an error, now or later.
    fn may_hold(error: &Error) -> bool {
        error.is_unanswered() || matches!(error.kind(), ErrorKind::Superseded { .. })
    }
}

impl<'a> Pursuit<'a> {
    fn new(client: &'a Client, request: &'a LockRequest) -> Result<Self, Error> {
        client.check_open()?;
        let lease = request.lease.unwrap_or(client.default_lease());
        check_lease(lease)?;
        request.check_heartbeats(lease)?;
        let owner_name = request.owner_name.clone().unwrap_or_else(|| client.owner_name().to_owned());
        Ok(Self {
            client,
            request,
            owner_name,
            lease,
            lease_id: Secret(fresh_uuid()),
            numbers: Counter::default(),
            turns: Turns::default(),
            named: None,
            may_hold: false,
            late: None,
            under_way: None,
        })
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

    /// The lease id has ended: another acquisition begins.
    fn start_again(&mut self) {
        self.give_up();
        self.lease_id = Secret(fresh_uuid());
        self.numbers = Counter::default();
        self.turns = Turns::default();
        self.late = None;
    }

    /// Sends one request, which takes over a version that is stale. It runs on the keeper, so that its end is known even if
    /// nobody waits for it any more.
    async fn ask(&mut self, limit: Duration) -> Result<Guard, Error> {
        self.client.check_open()?;
        let mut turns = std::mem::take(&mut self.turns);
        let numbered = turns.next(&self.numbers, || self.wire_request(self.stale()));
        self.turns = turns;
        self.named.clone_from(&numbered.request.observed_record_version_number);
        let sent = numbered.first_sent;
        let remote = self.client.remote().clone();
        let key = self.request.key.clone();
        let (reply, answer) = oneshot::channel();
        let (ended, ending) = oneshot::channel();
        self.under_way = Some(ending);
        self.client.in_background(async move {
            let result = remote.acquire(&key, &numbered, limit).await;
            let _ = ended.send(Ending::of(&result));
            let _ = reply.send(result);
        });
        // The keeper keeps the limit itself, as long as its runtime runs.
        let result = match timeout(limit.saturating_add(SLACK), answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Error::abandoned()),
        };
        self.under_way = None;
        self.turns.ended(&self.numbers, &result);
        let grant = result.inspect_err(|error| self.may_hold |= Ending::may_hold(error))?;
        let lease = Duration::from_millis(grant.lease_duration_ms);
        if sent.elapsed() < lease {
            return self.granted(sent, grant);
        }
        self.may_hold = true;
        self.late.get_or_insert((grant.outcome, grant.previous_owner_name));
        Err(Error::too_late(lease))
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
            occurrence: None,
            at_most_once: None,
            attributes: (!request.attributes.is_empty()).then(|| request.attributes.clone()),
        }
    }

    fn granted(&mut self, sent: Instant, grant: AcquireResponse) -> Result<Guard, Error> {
        let lease = Duration::from_millis(grant.lease_duration_ms);
        self.may_hold = false;
        let (outcome, previous_owner_name) = self.late.take().unwrap_or((grant.outcome, grant.previous_owner_name));
        let term = Term::granted(
            sent,
            lease,
            grant.fencing_token,
            grant.record_version_number,
            self.request.hold_on_unavailable,
        );
        let origin = Origin {
            owner_name: grant.owner_name,
            outcome,
            previous_owner_name,
            data: decode_data(grant.data, grant.data_base64.as_deref()),
        };
        let (key, numbers) = (self.request.key.clone(), std::mem::take(&mut self.numbers));
        let lease = Lease::new(key, self.lease_id.clone(), Some(origin), term, numbers);
        self.client.keep(lease, self.request.heartbeats, self.request.at_risk.clone())
    }

    /// If a request under this lease id may be granted yet, gives back what it gets.
    fn give_up(&mut self) {
        let may_hold = std::mem::take(&mut self.may_hold);
        let under_way = self.under_way.take();
        if may_hold || under_way.is_some() {
            let (key, lease_id) = (self.request.key.clone(), self.lease_id.clone());
            let retry_budget = self.client.retry_budget();
            let remote = self.client.remote().clone();
            self.client.in_background(async move {
                let ending = match under_way {
                    Some(ending) => ending.await.unwrap_or(Ending::Unanswered),
                    None => Ending::Refused,
                };
                match ending {
                    Ending::Refused if !may_hold => {}
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
    let result = persist(deadline(retry_budget), |left| remote.release(key, lease_id, &release, left)).await;
    matches!(result, Ok(Released::Released | Released::Replayed))
}
