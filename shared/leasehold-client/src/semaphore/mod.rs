//! Semaphores, read/write locks and fair locks: handles and guards. Rules K2 and K6.

mod acquire;
mod plan;
mod seen;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_wire::semaphore::{BreakEntryRequest, CapacityRequest};
use leasehold_wire::{AcquireOutcome, GetRequest, Lock, ReleaseOutcome};

pub(crate) use self::seen::Semaphores;
use crate::attempt::Subject;
use crate::guard::work_under;
use crate::keeping::{Keeping, keeping_options};
use crate::lease::{Lease, Origin, Term};
use crate::remote::{Renewal, persist};
use crate::request::{OnWait, check_lease};
use crate::{Acquisition, Client, Error, Guard, Handover, Heartbeat, LockKey, Release, Released, Wait, Waiting};

/// The default of the service, too: a holder's write costs more than a lock's.
const DEFAULT_LEASE: Duration = Duration::from_mins(1);
/// The permits of a read/write lock, and so the most readers at a time: what a row has room for.
const READ_WRITE_CAPACITY: u64 = 100;

/// A semaphore, as this client uses it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Semaphore {
    client: Client,
    key: LockKey,
    capacity: u64,
    /// The permits of a request that names none.
    permits: u64,
    /// Whether whoever has these permits is alone. A row of a larger capacity would break that.
    exclusive: bool,
}

/// A read/write lock: a semaphore in which a reader takes one permit, and a writer all.
#[derive(Debug, Clone)]
pub struct ReadWriteLock {
    semaphore: Semaphore,
}

/// A request for permits. `PermitRequest::default()` asks for what the handle is for, with the defaults.
#[derive(Clone, Default)]
pub struct PermitRequest {
    permits: Option<u64>,
    owner_name: Option<String>,
    lease: Option<Duration>,
    wait: Wait,
    poll_interval: Option<Duration>,
    keeping: Keeping,
    data: Option<Vec<u8>>,
    on_wait: Option<OnWait>,
}

/// The permits, or a view of those who have them.
pub type PermitAcquisition = Acquisition<PermitGuard, HeldPermits>;

/// There are not enough free permits, or others are ahead.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldPermits {
    /// The public view of the semaphore: its holders and its queue.
    pub lock: Box<Lock>,
}

/// Permits while they are held. It is a [`Guard`] in all that a lock has too. Dropping it gives the permits back in the
/// background.
#[must_use = "a guard that is dropped gives its permits back"]
#[derive(Debug)]
pub struct PermitGuard {
    guard: Guard,
    holder_id: String,
    capacity: u64,
}

impl Client {
    /// The semaphore of this key. `capacity` makes it where there is none yet; later the row's capacity holds.
    pub fn semaphore(&self, key: impl Into<LockKey>, capacity: u64) -> Semaphore {
        Semaphore { client: self.clone(), key: key.into(), capacity, permits: 1, exclusive: false }
    }

    /// The read/write lock of this key.
    pub fn read_write_lock(&self, key: impl Into<LockKey>) -> ReadWriteLock {
        ReadWriteLock { semaphore: self.semaphore(key, READ_WRITE_CAPACITY) }
    }

    /// A lock whose waiters go first in, first out: a semaphore of one permit.
    pub fn fair_lock(&self, key: impl Into<LockKey>) -> Semaphore {
        Semaphore { exclusive: true, ..self.semaphore(key, 1) }
    }

    /// The public view of a semaphore.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`]; [`crate::ErrorKind::WrongKind`] for a lock; the last failure to reach the
    /// service.
    pub async fn get_semaphore(&self, key: impl Into<LockKey>) -> Result<Lock, Error> {
        let LockKey { key, sort_key } = key.into();
        let request = GetRequest { key, sort_key };
        persist(self.until(), |left| self.remote().get_semaphore(&request, left)).await
    }

    /// Removes a holder of permits, or a ticket of the queue, by force, if it still has the version that the operator
    /// saw.
    ///
    /// # Errors
    /// [`crate::ErrorKind::VersionMismatch`], or the last failure to reach the service.
    pub async fn break_entry(
        &self,
        key: impl Into<LockKey>,
        id: impl Into<String>,
        version: impl Into<String>,
    ) -> Result<ReleaseOutcome, Error> {
        let LockKey { key, sort_key } = key.into();
        let request = BreakEntryRequest { key, sort_key, holder_id: id.into(), version: version.into() };
        persist(self.until(), |left| self.remote().break_entry(&request, left)).await.map(|answer| answer.outcome)
    }

    /// Changes the capacity of a semaphore, if it is still the one that the operator saw. Holders keep what they have.
    /// Returns how many permits are free now.
    ///
    /// # Errors
    /// [`crate::ErrorKind::VersionMismatch`], or the last failure to reach the service.
    pub async fn set_capacity(&self, key: impl Into<LockKey>, capacity: u64, expected: u64) -> Result<u64, Error> {
        let LockKey { key, sort_key } = key.into();
        let request = CapacityRequest { key, sort_key, capacity, expected };
        persist(self.until(), |left| self.remote().set_capacity(&request, left)).await.map(|answer| answer.available)
    }
}

impl ReadWriteLock {
    /// The number of permits, where the row is made by this client: the most readers at a time. All who use the lock
    /// must name the same. Default: 100.
    #[must_use]
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.semaphore.capacity = capacity;
        self
    }

    /// The lock for readers: many at a time.
    pub fn read(&self) -> Semaphore {
        self.semaphore.clone()
    }

    /// The lock for a writer, who is alone. Its guard can [`PermitGuard::downgrade`].
    pub fn write(&self) -> Semaphore {
        let permits = self.semaphore.capacity;
        Semaphore { permits, exclusive: true, ..self.semaphore.clone() }
    }
}

impl Semaphore {
    /// The key.
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// The public view: holders and queue.
    ///
    /// # Errors
    /// As [`Client::get_semaphore`].
    pub async fn get(&self) -> Result<Lock, Error> {
        self.client.get_semaphore(self.key.clone()).await
    }

    /// Waits for permits, does `work` under them, and gives them back. If they are lost, `work` is dropped where it
    /// waits.
    ///
    /// # Errors
    /// As [`Client::with_lock`].
    pub async fn with_permits<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        request: impl Into<PermitRequest>,
        work: impl FnOnce(Arc<PermitGuard>) -> F,
    ) -> Result<T, E> {
        let guard = Arc::new(self.acquire(request).await?.granted()?);
        work_under(&guard, work(Arc::clone(&guard)), || guard.give_back(Release::new())).await
    }

    /// Goes on with permits that another process acquired.
    ///
    /// # Errors
    /// As [`Client::resume`].
    pub async fn resume(
        &self,
        request: impl Into<PermitRequest>,
        from: impl Into<Handover>,
    ) -> Result<PermitGuard, Error> {
        self.client.check_open()?;
        let (request, from) = (request.into(), from.into());
        request.lease.map_or(Ok(()), check_lease)?;
        let change = Heartbeat { lease: request.lease, ..Heartbeat::default() };
        let believed = request.lease.or(Some(DEFAULT_LEASE));
        let renewed = self.client.renew_by_id(Subject::Permits, &self.key, &from, change, believed).await?;
        let Renewal { version, lease, fencing_token, permits, holder_id } = renewed.answer;
        request.keeping.check(lease)?;
        let term = Term::granted(renewed.sent, lease, fencing_token, version, &request.keeping).with_permits(permits);
        let lease = Lease::new(Subject::Permits, self.key.clone(), from.lease_id, None, term, renewed.numbers);
        self.kept(lease, &request, holder_id.unwrap_or_default(), self.capacity)
    }

    /// Takes permits into keeping.
    fn kept(
        &self,
        lease: Lease,
        request: &PermitRequest,
        holder_id: String,
        capacity: u64,
    ) -> Result<PermitGuard, Error> {
        let guard = self.client.keep(lease, &request.keeping)?;
        let guard = PermitGuard { guard, holder_id, capacity };
        // Dropped, it gives them back.
        self.check_exclusive(guard.permits(), capacity).map(|()| guard)
    }

    /// # Errors
    /// The row has more permits than those that should have been all.
    fn check_exclusive(&self, permits: u64, capacity: u64) -> Result<(), Error> {
        if !self.exclusive || permits >= capacity {
            return Ok(());
        }
        let message = format!("{} has {capacity} permits, so that {permits} do not exclude others", self.key);
        Err(Error::invalid("capacity", message))
    }

    /// What a grant is made of that no renewal changes.
    fn origin(owner_name: String, outcome: AcquireOutcome, data: Option<Vec<u8>>) -> Origin {
        Origin { owner_name, outcome, previous_owner_name: None, data }
    }
}

keeping_options!(PermitRequest);

impl PermitRequest {
    /// A request with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many permits. Default: one; of a writer, all.
    #[must_use]
    pub fn permits(mut self, permits: u64) -> Self {
        self.permits = Some(permits);
        self
    }

    /// The lease: 100 ms to a day. Default: a minute.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long to wait. Default: for the longest lease that the first refusal shows, and two seconds.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// How often to look, at least 50 ms. Default: the client watches.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// The owner's name, at most 128 bytes. Default: the client's.
    #[must_use]
    pub fn owner_name(mut self, name: impl Into<String>) -> Self {
        self.owner_name = Some(name.into());
        self
    }

    /// A payload of this holder, for anyone to read: at most 256 bytes.
    #[must_use]
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Calls `callback` after each view of the semaphore, and about once a second while a watch goes on. It should
    /// return at once.
    #[must_use]
    pub fn on_wait(mut self, callback: impl Fn(&Waiting<'_>) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(callback));
        self
    }
}

impl fmt::Debug for PermitRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitRequest")
            .field("permits", &self.permits)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl From<u64> for PermitRequest {
    fn from(permits: u64) -> Self {
        Self::new().permits(permits)
    }
}

impl PermitAcquisition {
    /// The guard, or an error that says who has the permits: for callers who cannot go on without them.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Held`]
    pub fn granted(self) -> Result<PermitGuard, Error> {
        self.granted_or(|held| Error::held(held.lock))
    }
}

impl PermitGuard {
    /// The public name of this holder. It proves nothing.
    pub fn holder_id(&self) -> &str {
        &self.holder_id
    }

    /// How many permits are held.
    pub fn permits(&self) -> u64 {
        self.guard.lease().term().permits()
    }

    /// How many permits the semaphore had at the grant.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Gives permits back and keeps so many, at least one.
    ///
    /// # Errors
    /// As [`Guard::heartbeat_with`]; [`crate::ErrorKind::InvalidRequest`] for more than are held: there is no upgrade.
    pub async fn keep(&self, permits: u64) -> Result<(), Error> {
        let change = Heartbeat { keep: Some(permits), ..Heartbeat::default() };
        self.guard.heartbeat_with(change).await
    }

    /// Makes a writer a reader: keeps one permit.
    ///
    /// # Errors
    /// As [`PermitGuard::keep`].
    pub async fn downgrade(&self) -> Result<(), Error> {
        self.keep(1).await
    }

    /// Gives the permits back, and waits until the service has them. If this future is dropped, the release goes on in
    /// the background.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<Released, Error> {
        self.guard.release().await
    }

    /// Lets go of the permits without giving them back, for another process to go on with: see [`Semaphore::resume`].
    pub fn detach(self) -> Handover {
        self.guard.detach()
    }
}

impl Deref for PermitGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}
