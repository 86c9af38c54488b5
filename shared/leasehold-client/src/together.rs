//! Acquires several locks at once: all or none. Rule K6.

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use leasehold_wire::{
    AcquireAllRequest, AcquireAllResponse, AcquireOutcome, Lock, LockState, RefusedLock, Secret, WantedLock,
};

use crate::attempt::Attempt;
use crate::budget::Budget;
use crate::clock::{Instant, chance, millis, sleep};
use crate::guard::work_under;
use crate::keeping::{Keeping, keeping_options};
use crate::lease::{Lease, Origin, Term};
use crate::patience::Patience;
use crate::remote::Backoff;
use crate::request::{OnWait, check_lease};
use crate::subject::Subject;
use crate::timing::poll_pause;
use crate::{
    Acquisition, Client, Error, ErrorKind, Guard, Held, LockKey, LockRequest, Loss, Release, Released, Wait, Waiting,
    telemetry,
};

/// A request for several locks, 2 to 50.
#[derive(Clone)]
pub struct AllRequest {
    keys: Vec<LockKey>,
    owner_name: Option<String>,
    lease: Option<Duration>,
    wait: Wait,
    poll_interval: Option<Duration>,
    keeping: Keeping,
    on_wait: Option<OnWait>,
}

/// The locks, or those of the locks that others hold.
pub type AllAcquisition = Acquisition<AllGuard, Vec<RefusedLock>>;

/// Several held locks, under one lease id and one fencing token. The loss of one lock is the loss of all: the client
/// releases the others. Dropping the guard releases all locks in the background.
#[must_use = "a guard that is dropped releases its locks"]
pub struct AllGuard {
    guards: Vec<Guard>,
}

impl AllRequest {
    /// Creates a request for these locks, with the client's defaults.
    pub fn new<K: Into<LockKey>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self {
            keys: keys.into_iter().map(Into::into).collect(),
            owner_name: None,
            lease: None,
            wait: Wait::default(),
            poll_interval: None,
            keeping: Keeping::default(),
            on_wait: None,
        }
    }

    /// Sets the owner's name. Default: the client's.
    #[must_use]
    pub fn owner_name(mut self, name: impl Into<String>) -> Self {
        self.owner_name = Some(name.into());
        self
    }

    /// Sets the lease of each lock: 100 ms to a day. Default: the client's.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Bounds the wait. Default: the longest lease of the first held locks that are seen, and two seconds.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Polls at this interval, at least 50 ms. Default: the client watches the held locks.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// Calls `callback` after each answer that shows one of the locks held, and about once a second while a watch goes
    /// on. It should return at once.
    #[must_use]
    pub fn on_wait(mut self, callback: impl Fn(&Waiting<'_>) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(callback));
        self
    }
}

keeping_options!(AllRequest);

impl fmt::Debug for AllRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllRequest").field("keys", &self.keys).field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl<K: Into<LockKey>, const N: usize> From<[K; N]> for AllRequest {
    fn from(keys: [K; N]) -> Self {
        Self::new(keys)
    }
}

impl AllAcquisition {
    /// Returns the guard, or an error that names the held locks.
    ///
    /// # Errors
    /// [`ErrorKind::SomeHeld`]
    pub fn granted(self) -> Result<AllGuard, Error> {
        self.granted_or(Error::some_held)
    }
}

impl Client {
    /// Requests all of these locks until they are granted together, or the request's [`Wait`] is over. No lock is held
    /// before all are, so no two callers can wait for each other. The caller may cancel at any time.
    ///
    /// # Errors
    /// As [`Client::acquire`].
    pub async fn acquire_all(&self, request: impl Into<AllRequest>) -> Result<AllAcquisition, Error> {
        let request = request.into();
        let keys = request.keys.iter().map(LockKey::to_string).collect::<Vec<_>>().join(", ");
        telemetry::waiting("acquire_all", keys, self.ask_for_all(&request)).await
    }

    async fn ask_for_all(&self, request: &AllRequest) -> Result<AllAcquisition, Error> {
        let lease = request.lease.unwrap_or(self.default_lease());
        let mut attempt = Attempt::new(self, Subject::Lock, request.keys.clone(), lease, &request.keeping)?;
        check_lease(lease)?;
        request.keeping.check(lease)?;
        let mut budget = Budget::new(request.wait, self.retry_budget());
        let mut backoff = Backoff::default();
        let mut seen = None;
        loop {
            let over = budget.is_over();
            let limit = self.remote().poll_timeout(lease, budget.left());
            let (numbered, result) = attempt
                .send(
                    |lease_id| self.wire_request(request, lease, lease_id),
                    limit,
                    |remote, numbered| async move { remote.acquire_all(&numbered, limit).await },
                )
                .await?;
            let error = match result {
                Ok(grant) if !attempt.is_too_late() => {
                    return self
                        .all_granted(request, &mut attempt, numbered.first_sent, grant)
                        .map(Acquisition::Granted);
                }
                Ok(_) => Error::too_late(lease),
                Err(error) => error,
            };
            let pause = match error.kind() {
                ErrorKind::SomeHeld(locks) => {
                    backoff = Backoff::default();
                    let locks = locks.to_vec();
                    let held: Vec<_> = locks.iter().filter_map(as_lock).collect();
                    let held = held.into_iter().map(|lock| {
                        let observation = self.saw(&key_of(&lock), &lock);
                        Held { lock: Box::new(lock), observation }
                    });
                    let held: Vec<_> = held.collect();
                    if let Some(last) = held.iter().max_by_key(|held| held.observation.stale_after()) {
                        budget.saw(last.observation.record_version_number(), last.observation.stale_after());
                        if !over {
                            budget.report(request.on_wait.as_ref(), &last.lock, last.observation.stale_in());
                        }
                    }
                    if over {
                        return Ok(Acquisition::Held(locks));
                    }
                    seen = Some(locks);
                    let poll = poll_pause(request.poll_interval, error.retry_after(), chance());
                    // A version that was named without success, or a lock that cannot be watched, is polled.
                    let was_named =
                        numbered.request.keys.iter().any(|key| key.observed_record_version_number.is_some());
                    if self.watches(request.poll_interval) && !was_named && !held.is_empty() {
                        for held in held {
                            self.until_free_or_stale(request, held, poll, &mut budget).await;
                        }
                        Duration::ZERO
                    } else {
                        poll
                    }
                }
                ErrorKind::Lost(_) => {
                    attempt.start_again();
                    budget.afford(&error, backoff.pause(&error)).ok_or(error)?
                }
                _ => match budget.retry(backoff.pause(&error), error, seen.take()) {
                    ControlFlow::Continue(pause) => pause,
                    ControlFlow::Break(end) => return end.map(Acquisition::Held),
                },
            };
            sleep(pause.min(budget.left())).await;
        }
    }

    /// Waits for all of these locks, runs `work` under them, and releases them. If one is lost, `work` is dropped where
    /// it waits.
    ///
    /// # Errors
    /// As [`Client::with_lock`]; [`ErrorKind::SomeHeld`] when the wait was over.
    pub async fn with_all<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        request: impl Into<AllRequest>,
        work: impl FnOnce(Arc<AllGuard>) -> F,
    ) -> Result<T, E> {
        let guard = Arc::new(self.acquire_all(request).await?.granted()?);
        work_under(guard.first(), work(Arc::clone(&guard)), || guard.give_back()).await
    }

    async fn until_free_or_stale(&self, all: &AllRequest, mut held: Held, poll: Duration, budget: &mut Budget) {
        let mut request = LockRequest::new(key_of(&held.lock));
        request.on_wait.clone_from(&all.on_wait);
        let owner_name = all.owner_name.clone().unwrap_or_else(|| self.owner_name().to_owned());
        let mut patience = Patience::new(self, &request.key, owner_name);
        self.await_change(&request, &mut held, poll, budget, &mut patience).await;
    }

    fn wire_request(&self, request: &AllRequest, lease: Duration, lease_id: &Secret) -> AcquireAllRequest {
        let wanted = |key: &LockKey| WantedLock {
            key: key.key.clone(),
            sort_key: key.sort_key.clone(),
            observed_record_version_number: self.stale(key),
        };
        AcquireAllRequest {
            keys: request.keys.iter().map(wanted).collect(),
            owner_name: request.owner_name.clone().unwrap_or_else(|| self.owner_name().to_owned()),
            lease_id: Some(lease_id.clone()),
            lease_duration_ms: Some(millis(lease)),
            ..AcquireAllRequest::default()
        }
    }

    fn all_granted(
        &self,
        request: &AllRequest,
        attempt: &mut Attempt<AcquireAllRequest>,
        sent: Instant,
        grant: AcquireAllResponse,
    ) -> Result<AllGuard, Error> {
        let (lease_id, last_number) = attempt.granted();
        let lease = Duration::from_millis(grant.lease_duration_ms);
        let keeping = request.keeping.of_several();
        let mut guards = Vec::new();
        for lock in grant.locks {
            let term = Term::granted(sent, lease, grant.fencing_token, lock.record_version_number, &keeping);
            let origin = Origin {
                owner_name: grant.owner_name.clone(),
                outcome: AcquireOutcome::Reacquired,
                previous_owner_name: None,
                data: None,
            };
            let key = LockKey { key: lock.key, sort_key: lock.sort_key };
            let lease = Lease::new(Subject::Lock, key, lease_id.clone(), Some(origin), term, last_number);
            guards.push(self.keep(lease, &keeping)?);
        }
        let leases: Vec<_> = guards.iter().map(|guard: &Guard| Arc::clone(guard.lease())).collect();
        let client = self.clone();
        self.while_held(async move {
            let Some(loss) = first_loss(&leases).await else { return };
            for lease in &leases {
                client.give_up(lease, &loss);
            }
        });
        Ok(AllGuard { guards })
    }
}

/// Resolves when the first of these leases is lost, or with `None` after one was released.
async fn first_loss(leases: &[Arc<Lease>]) -> Option<Loss> {
    select_all(leases.iter().map(|lease| lease.lost().boxed())).await.0
}

fn key_of(lock: &Lock) -> LockKey {
    LockKey { key: lock.key.clone(), sort_key: lock.sort_key.clone() }
}

/// The view of a held lock, as far as a refusal shows it.
fn as_lock(refused: &RefusedLock) -> Option<Lock> {
    let state = refused.state.filter(|state| *state == LockState::Held)?;
    Some(Lock {
        key: refused.key.clone(),
        sort_key: refused.sort_key.clone(),
        state,
        owner_name: refused.owner_name.clone().unwrap_or_default(),
        record_version_number: refused.record_version_number.clone()?,
        lease_duration_ms: refused.lease_duration_ms?,
        fencing_token: refused.fencing_token,
        occurrence: None,
        last_occurrence: None,
        wanted_by: None,
        data: None,
        data_base64: None,
        attributes: serde_json::Map::new(),
        semaphore: None,
    })
}

impl AllGuard {
    fn first(&self) -> &Guard {
        &self.guards[0]
    }

    /// Returns the keys of the locks.
    pub fn keys(&self) -> impl Iterator<Item = &LockKey> {
        self.guards.iter().map(Guard::key)
    }

    /// Returns the owner's name.
    pub fn owner_name(&self) -> Option<&str> {
        self.first().owner_name()
    }

    /// Returns the secret that proves possession of all locks.
    pub fn lease_id(&self) -> &Secret {
        self.first().lease_id()
    }

    /// Returns the fencing token, which is higher than every token granted for any of these keys before.
    pub fn fencing_token(&self) -> u64 {
        self.first().fencing_token()
    }

    /// Whether all locks are held, as far as this process can know.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Returns the rest of the lease that ends first.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Returns the loss of the first lost lock, if there was one.
    pub fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(Guard::loss)
    }

    /// Resolves when one of the locks is lost; with `None` after they were released.
    pub fn lost(&self) -> impl Future<Output = Option<Loss>> + Send + use<> {
        let leases: Vec<_> = self.guards.iter().map(|guard| Arc::clone(guard.lease())).collect();
        async move { first_loss(&leases).await }
    }

    /// Renews the lease of each lock now.
    ///
    /// # Errors
    /// The first failure of [`Guard::heartbeat`].
    pub async fn heartbeat(&self) -> Result<(), Error> {
        join_all(self.guards.iter().map(Guard::heartbeat)).await.into_iter().collect()
    }

    /// Releases all locks, and waits for the answers.
    ///
    /// # Errors
    /// The first failure of [`Guard::release`]; the other locks are released all the same.
    pub async fn release(self) -> Result<Released, Error> {
        self.give_back().await
    }

    fn give_back(&self) -> impl Future<Output = Result<Released, Error>> + Send + use<> {
        let releases: Vec<_> = self.guards.iter().map(|guard| guard.give_back(Release::new())).collect();
        async move {
            let results: Result<Vec<_>, Error> = join_all(releases).await.into_iter().collect();
            results.map(|_| Released::Released)
        }
    }
}

impl fmt::Debug for AllGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
