//! Acquires several keys at once, locks and permits: all or none. Rule K6.

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use leasehold_wire::semaphore::SemaphoreState;
use leasehold_wire::{
    AcquireAllRequest, AcquireAllResponse, AcquireOutcome, Lock, LockState, RefusedLock, Secret, WantedLock,
};

use crate::attempt::Attempt;
use crate::budget::Budget;
use crate::clock::{Instant, chance, millis, sleep};
use crate::flow::{Around, refuse_deadlock, within};
use crate::guard::work_under;
use crate::keeping::{Keeping, keeping_options};
use crate::lease::{Granted, Lease, Origin};
use crate::patience::Patience;
use crate::remote::Backoff;
use crate::request::{OnWait, check_lease};
use crate::semaphore::plan::{Plan, Waiter};
use crate::subject::Subject;
use crate::timing::{poll_pause, stale_after};
use crate::watching::{Until, Watched, version_of};
use crate::{
    Acquisition, Client, Error, ErrorKind, Guard, Held, LockKey, LockRequest, Loss, Release, Released, Wait, Waiting,
    telemetry,
};

/// A request for several keys, 2 to 50: locks, and permits of semaphores.
#[derive(Clone, Default)]
pub struct AllRequest {
    keys: Vec<WantedKey>,
    owner_name: Option<String>,
    lease: Option<Duration>,
    wait: Wait,
    poll_interval: Option<Duration>,
    keeping: Keeping,
    on_wait: Option<OnWait>,
}

/// A wait below this found that the next request may succeed at once.
const MOMENT: Duration = Duration::from_millis(5);

/// One of several wanted keys.
#[derive(Debug, Clone)]
struct WantedKey {
    key: LockKey,
    /// The permits, and the capacity of a new semaphore. None for a lock.
    permits: Option<(u64, u64)>,
}

impl WantedKey {
    fn subject(&self) -> Subject {
        if self.permits.is_some() { Subject::Permits } else { Subject::Lock }
    }
}

/// The keys, or those of the keys that others hold or wait for.
pub type AllAcquisition = Acquisition<AllGuard, Vec<RefusedLock>>;

/// Several held keys, under one lease id and one fencing token. The loss of one key is the loss of all: the client
/// releases the others. Dropping the guard releases all keys in the background.
#[must_use = "a guard that is dropped releases its locks"]
pub struct AllGuard {
    guards: Vec<Guard>,
}

impl AllRequest {
    /// Creates a request for these locks, with the client's defaults. [`AllRequest::permits`] adds permits.
    pub fn new<K: Into<LockKey>>(keys: impl IntoIterator<Item = K>) -> Self {
        keys.into_iter().fold(Self::default(), Self::lock)
    }

    /// Adds a lock.
    #[must_use]
    pub fn lock(mut self, key: impl Into<LockKey>) -> Self {
        self.keys.push(WantedKey { key: key.into(), permits: None });
        self
    }

    /// Adds permits of a semaphore. `capacity` applies if the row is created; an existing row keeps its own. While
    /// somebody waits in the semaphore's queue, the request is refused: a request for several has no place in a queue.
    #[must_use]
    pub fn permits(mut self, key: impl Into<LockKey>, permits: u64, capacity: u64) -> Self {
        self.keys.push(WantedKey { key: key.into(), permits: Some((permits, capacity)) });
        self
    }

    /// Sets the owner's name; at most 128 bytes beside permits. Default: the client's.
    #[must_use]
    pub fn owner_name(mut self, name: impl Into<String>) -> Self {
        self.owner_name = Some(name.into());
        self
    }

    /// Sets the lease of each key: 100 ms to a day. Default: the client's.
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

    /// Polls at this interval, at least 50 ms. Default: the client watches the held keys.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// Calls `callback` after each answer that shows one of the keys held, and about once a second while a watch goes
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
    /// Returns the guard, or an error that names the held keys.
    ///
    /// # Errors
    /// [`ErrorKind::SomeHeld`]
    pub fn granted(self) -> Result<AllGuard, Error> {
        self.granted_or(Error::some_held)
    }
}

impl Client {
    /// Requests all of these keys until they are granted together, or the request's [`Wait`] is over. No key is held
    /// before all are, so no two callers can wait for each other. The caller may cancel at any time.
    ///
    /// # Errors
    /// As [`Client::acquire`].
    pub async fn acquire_all(&self, request: impl Into<AllRequest>) -> Result<AllAcquisition, Error> {
        let request = request.into();
        let keys = request.keys.iter().map(|wanted| wanted.key.to_string()).collect::<Vec<_>>().join(", ");
        telemetry::waiting("acquire_all", keys, self.ask_for_all(&request)).await
    }

    async fn ask_for_all(&self, request: &AllRequest) -> Result<AllAcquisition, Error> {
        let lease = request.lease.unwrap_or(self.default_lease());
        let locks = request.keys.iter().filter(|wanted| wanted.permits.is_none());
        locks.map(|wanted| &wanted.key).try_for_each(|key| refuse_deadlock(self, Subject::Lock, key, 0))?;
        let keys = request.keys.iter().map(|wanted| (wanted.subject(), wanted.key.clone())).collect();
        let mut attempt = Attempt::new(self, keys, lease, &request.keeping)?;
        check_lease(lease)?;
        request.keeping.check(lease)?;
        let mut budget = Budget::new(request.wait, self.retry_budget());
        let mut backoff = Backoff::default();
        let mut seen = None;
        let mut epochs = self.epochs(request);
        // Whether the last request followed a refusal at once.
        let mut was_eager = false;
        loop {
            let over = budget.is_over();
            let limit = self.remote().poll_timeout(lease, budget.left());
            let (numbered, result) = attempt
                .send(
                    |lease_id| self.wire_request(request, lease, lease_id, &epochs),
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
                    let held = self.held_of(request, &locks);
                    // The refusal tells the epochs for the next request under this lease id.
                    epochs = self.epochs(request);
                    if let Some((lock, stale_after)) = held.iter().map(Refusing::bound).max_by_key(|(_, after)| *after)
                    {
                        budget.saw(version_of(lock), stale_after);
                        if !over {
                            budget.report(request.on_wait.as_ref(), lock, stale_after);
                        }
                    }
                    if over {
                        return Ok(Acquisition::Held(locks));
                    }
                    seen = Some(locks);
                    let poll = poll_pause(request.poll_interval, error.retry_after(), chance());
                    // An entry that was named without success, or a key that cannot be watched, is polled.
                    let was_named = numbered.request.keys.iter().any(names_somebody);
                    if self.watches(request.poll_interval) && !was_named && !held.is_empty() {
                        let began = Instant::now();
                        for held in held {
                            self.until_it_may_succeed(request, held, poll, &mut budget).await;
                        }
                        let is_eager = began.elapsed() < MOMENT;
                        let pause = if is_eager && was_eager { poll } else { Duration::ZERO };
                        was_eager = is_eager && !was_eager;
                        pause
                    } else {
                        poll
                    }
                }
                ErrorKind::Lost(_) => {
                    attempt.start_again();
                    epochs = self.epochs(request);
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

    /// Waits for all of these keys, runs `work` under them, and releases them. If one is lost, `work` is dropped where
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
        let around: Vec<_> = guard.guards.iter().map(|guard| Around::lock(guard.lease())).collect();
        work_under(guard.first(), within(around, Box::pin(work(Arc::clone(&guard)))), || guard.give_back()).await
    }

    /// The epoch of each key of a semaphore, as this client saw it last.
    fn epochs(&self, request: &AllRequest) -> Vec<Option<String>> {
        let epoch = |wanted: &WantedKey| wanted.permits.and_then(|_| self.memory().semaphores().epoch(&wanted.key));
        request.keys.iter().map(epoch).collect()
    }

    /// Takes note of the keys that refused.
    fn held_of(&self, request: &AllRequest, locks: &[RefusedLock]) -> Vec<Refusing> {
        let held = |refused: &RefusedLock| {
            let lock = as_lock(refused)?;
            let key = key_of(&lock);
            let wanted = request.keys.iter().find(|wanted| wanted.key == key)?;
            match (wanted.permits, lock.semaphore.as_deref()) {
                (Some((permits, _)), Some(state)) => {
                    self.memory().semaphores().observe(&key, state, Instant::now());
                    Some(Refusing::Permits { permits, view: Box::new(lock) })
                }
                (None, None) => {
                    let observation = self.memory().saw(&key, &lock);
                    Some(Refusing::Lock(Held { lock: Box::new(lock), observation }))
                }
                _ => None,
            }
        };
        locks.iter().filter_map(held).collect()
    }

    /// Returns when another request may succeed, as far as this key goes.
    async fn until_it_may_succeed(&self, all: &AllRequest, refusing: Refusing, poll: Duration, budget: &mut Budget) {
        match refusing {
            Refusing::Lock(mut held) => {
                let mut request = LockRequest::new(key_of(&held.lock));
                request.on_wait.clone_from(&all.on_wait);
                let owner_name = all.owner_name.clone().unwrap_or_else(|| self.owner_name().to_owned());
                let mut patience = Patience::new(self, &request.key, owner_name);
                self.await_change(&request, &mut held, poll, budget, &mut patience, None).await;
            }
            Refusing::Permits { permits, view } => self.until_permits(all, permits, view, poll, budget).await,
        }
    }

    /// Returns when the permits are free, or those of the dead cover the rest, and nobody waits.
    async fn until_permits(
        &self,
        all: &AllRequest,
        permits: u64,
        mut view: Box<Lock>,
        poll: Duration,
        budget: &mut Budget,
    ) {
        let key = key_of(&view);
        loop {
            let Some(state) = view.semaphore.as_deref() else { return };
            let waiter = Waiter::without_a_ticket(permits, budget.left());
            let Plan::Wait(longest) = self.memory().semaphores().plan(&key, state, &waiter) else { return };
            if longest.is_zero() {
                return;
            }
            let tick = || budget.report(all.on_wait.as_ref(), &view, longest);
            let row = match self.watch(&key, Until::Changed(version_of(&view)), longest, tick).await {
                Watched::Seen(row) => row,
                Watched::Ask => return,
                Watched::Failed => {
                    sleep(poll.min(longest)).await;
                    match self.get_semaphore(key.clone()).await {
                        Ok(row) => Box::new(row),
                        Err(_) => return,
                    }
                }
            };
            view = row;
            let Some(state) = view.semaphore.as_deref() else { return };
            self.memory().semaphores().observe(&key, state, Instant::now());
            budget.saw(&state.changed, longest_lease(state));
        }
    }

    fn wire_request(
        &self,
        request: &AllRequest,
        lease: Duration,
        lease_id: &Secret,
        epochs: &[Option<String>],
    ) -> AcquireAllRequest {
        let wanted = |(wanted, epoch): (&WantedKey, &Option<String>)| {
            let LockKey { key, sort_key } = wanted.key.clone();
            let named = WantedLock { key, sort_key, ..WantedLock::default() };
            match wanted.permits {
                None => WantedLock { observed_record_version_number: self.memory().stale(&wanted.key), ..named },
                Some((permits, capacity)) => WantedLock {
                    permits: Some(permits),
                    capacity: Some(capacity),
                    observed: self.memory().semaphores().known_dead(&wanted.key, permits),
                    epoch: epoch.clone(),
                    ..named
                },
            }
        };
        AcquireAllRequest {
            keys: request.keys.iter().zip(epochs).map(wanted).collect(),
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
        for (lock, wanted) in grant.locks.into_iter().zip(&request.keys) {
            let granted = Granted {
                sent,
                lease,
                fencing_token: grant.fencing_token,
                version: lock.record_version_number,
                permits: lock.permits.unwrap_or_default(),
                last_number,
            };
            let origin = Origin {
                owner_name: grant.owner_name.clone(),
                outcome: AcquireOutcome::Reacquired,
                previous_owner_name: None,
                data: None,
            };
            let key = LockKey { key: lock.key, sort_key: lock.sort_key };
            self.memory().semaphores().outdate(&key, "");
            let terms = self.terms(&keeping);
            let lease = Lease::new(wanted.subject(), key, lease_id.clone(), Some(origin), granted, terms);
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

/// A key that refused.
enum Refusing {
    Lock(Held),
    Permits { permits: u64, view: Box<Lock> },
}

impl Refusing {
    /// The view, and the time after which a dead holder of it counts as dead.
    fn bound(&self) -> (&Lock, Duration) {
        match self {
            Self::Lock(held) => (&held.lock, held.observation.stale_after()),
            Self::Permits { view, .. } => (view, view.semaphore.as_deref().map_or(Duration::ZERO, longest_lease)),
        }
    }
}

/// The time after which each dead entry of the semaphore counts as dead.
fn longest_lease(state: &SemaphoreState) -> Duration {
    let leases = state.holders.iter().map(|holder| holder.lease_duration_ms);
    let leases = leases.chain(state.queue.iter().map(|ticket| ticket.lease_duration_ms));
    stale_after(Duration::from_millis(leases.max().unwrap_or_default()))
}

/// Whether the request names an entry as dead.
fn names_somebody(wanted: &WantedLock) -> bool {
    wanted.observed_record_version_number.is_some() || !wanted.observed.is_empty()
}

/// The view of a held lock, or of a semaphore, as far as a refusal shows it.
fn as_lock(refused: &RefusedLock) -> Option<Lock> {
    let state = refused.state.filter(|state| *state == LockState::Held || refused.semaphore.is_some())?;
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
        semaphore: refused.semaphore.clone(),
    })
}

impl AllGuard {
    fn first(&self) -> &Guard {
        &self.guards[0]
    }

    /// Returns the keys, in the order of the request.
    pub fn keys(&self) -> impl Iterator<Item = &LockKey> {
        self.guards.iter().map(Guard::key)
    }

    /// Returns the number of permits of each semaphore.
    pub fn permits(&self) -> impl Iterator<Item = (&LockKey, u64)> {
        let of = |guard: &Guard| guard.lease().permits();
        self.guards.iter().map(move |guard| (guard.key(), of(guard))).filter(|(_, permits)| *permits > 0)
    }

    /// Returns the owner's name.
    pub fn owner_name(&self) -> Option<&str> {
        self.first().owner_name()
    }

    /// Returns the secret that proves possession of all keys.
    pub fn lease_id(&self) -> &Secret {
        self.first().lease_id()
    }

    /// Returns the fencing token, which is higher than every token granted for any of these keys before.
    pub fn fencing_token(&self) -> u64 {
        self.first().fencing_token()
    }

    /// Whether all keys are held, as far as this process can know.
    pub fn valid(&self) -> bool {
        self.guards.iter().all(Guard::valid)
    }

    /// Checks that all keys are held, as [`Guard::ensure_held`] does.
    ///
    /// # Errors
    /// The loss of the first lost key.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.guards.iter().try_for_each(Guard::ensure_held)
    }

    /// Returns the rest of the lease that ends first.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Returns the loss of the first lost key, if there was one.
    pub fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(Guard::loss)
    }

    /// Resolves when one of the keys is lost; with `None` after they were released.
    pub fn lost(&self) -> impl Future<Output = Option<Loss>> + Send + use<> {
        let leases: Vec<_> = self.guards.iter().map(|guard| Arc::clone(guard.lease())).collect();
        async move { first_loss(&leases).await }
    }

    /// Renews the lease of each key now.
    ///
    /// # Errors
    /// The first failure of [`Guard::renew`].
    pub async fn renew(&self) -> Result<(), Error> {
        join_all(self.guards.iter().map(Guard::renew)).await.into_iter().collect()
    }

    /// Releases all keys, and waits for the answers.
    ///
    /// # Errors
    /// The first failure of [`Guard::release`]; the other keys are released all the same.
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
