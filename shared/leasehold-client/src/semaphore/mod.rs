//! Semaphores, read/write locks and fair locks: handles and guards. Rules K2 and K6.

mod acquire;
pub(crate) mod plan;
pub(crate) mod seen;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_wire::semaphore::{BreakEntryRequest, CapacityRequest};
use leasehold_wire::{AcquireOutcome, GetRequest, Lock, ReleaseOutcome, Staleness};

use crate::client::RenewedById;
use crate::clock::fresh_uuid;
use crate::flow::{Around, within};
use crate::guard::work_under;
use crate::keeping::{Keeping, keeping_options};
use crate::lease::{Granted, Lease, Origin};
use crate::remote::{Renewal, persist};
use crate::request::{OnWait, check_lease};
use crate::subject::Subject;
use crate::{Acquisition, Client, Error, Guard, Handover, Heartbeat, LockKey, Release, Released, Wait, Waiting};

/// The service's default lease. It is longer than a lock's, because a holder's write costs more.
const DEFAULT_LEASE: Duration = Duration::from_mins(1);
/// The permits of a read/write lock, and so the maximum number of readers: the limit of a row.
const READ_WRITE_CAPACITY: u64 = 100;

/// A semaphore, as this client uses it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Semaphore {
    client: Client,
    key: LockKey,
    capacity: u64,
    /// The permits of a request that names none.
    permits: u64,
    /// Whether the holder of these permits must be alone. A row of a larger capacity would break that.
    exclusive: bool,
}

/// A read/write lock: a semaphore in which a reader takes one permit, and a writer all.
#[derive(Debug, Clone)]
pub struct ReadWriteLock {
    semaphore: Semaphore,
}

/// A request for permits. `PermitRequest::default()` requests the permits of the handle, with the defaults.
#[derive(Clone, Default)]
pub struct PermitRequest {
    permits: Option<u64>,
    owner_name: Option<String>,
    lease: Option<Duration>,
    wait: Wait,
    staleness: Staleness,
    poll_interval: Option<Duration>,
    keeping: Keeping,
    data: Option<Vec<u8>>,
    on_wait: Option<OnWait>,
}

/// The permits, or a view of their present holders.
pub type PermitAcquisition = Acquisition<PermitGuard, HeldPermits>;

/// The view of a semaphore whose permits are taken, or whose queue is ahead.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldPermits {
    /// The public view of the semaphore: its holders and its queue.
    pub lock: Box<Lock>,
}

/// Permits while they are held. The guard derefs to a [`Guard`]. Dropping the guard releases the permits in the
/// background.
#[must_use = "a guard that is dropped gives its permits back"]
#[derive(Debug)]
pub struct PermitGuard {
    guard: Guard,
    holder_id: String,
    capacity: u64,
}

impl Client {
    /// Returns the semaphore of this key. `capacity` applies if the row is created; an existing row keeps its own.
    pub fn semaphore(&self, key: impl Into<LockKey>, capacity: u64) -> Semaphore {
        Semaphore { client: self.clone(), key: key.into(), capacity, permits: 1, exclusive: false }
    }

    /// Returns the read/write lock of this key.
    pub fn read_write_lock(&self, key: impl Into<LockKey>) -> ReadWriteLock {
        ReadWriteLock { semaphore: self.semaphore(key, READ_WRITE_CAPACITY) }
    }

    /// Returns a lock whose waiters go first in, first out: a semaphore of one permit.
    pub fn fair_lock(&self, key: impl Into<LockKey>) -> Semaphore {
        Semaphore { exclusive: true, ..self.semaphore(key, 1) }
    }

    /// Returns the public view of a semaphore.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`]; [`crate::ErrorKind::WrongKind`] for a lock; the last failure to reach the
    /// service.
    pub async fn get_semaphore(&self, key: impl Into<LockKey>) -> Result<Lock, Error> {
        let LockKey { key, sort_key } = key.into();
        let request = GetRequest { key, sort_key };
        persist(self.until(), |left| self.remote().get_semaphore(&request, left)).await
    }

    /// Removes a holder or a ticket of the queue by force, if the entry still has the version that the operator saw.
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
        let request = BreakEntryRequest { key, sort_key, holder_id: id.into(), version: version.into(), number: None };
        persist(self.until(), |left| self.remote().break_entry(&request, left)).await.map(|answer| answer.outcome)
    }

    /// Changes the capacity of a semaphore, if it is still the capacity that the operator saw. Holders keep their
    /// permits. Returns the number of permits that are now free.
    ///
    /// # Errors
    /// [`crate::ErrorKind::VersionMismatch`], or the last failure to reach the service.
    pub async fn set_capacity(&self, key: impl Into<LockKey>, capacity: u64, expected: u64) -> Result<u64, Error> {
        let key = key.into();
        // With the version of the capacity, a late copy of the request changes nothing.
        let view = self.get_semaphore(key.clone()).await?;
        let seen = view.semaphore.map(|state| state.capacity_version).filter(|version| !version.is_empty());
        let LockKey { key, sort_key } = key;
        let request = CapacityRequest {
            key,
            sort_key,
            capacity,
            expected,
            expected_version: seen,
            request_id: Some(fresh_uuid()),
        };
        persist(self.until(), |left| self.remote().set_capacity(&request, left)).await.map(|answer| answer.available)
    }
}

impl ReadWriteLock {
    /// Sets the number of permits, the maximum number of readers, if this client creates the row. All users of the lock
    /// must set the same number. Default: 100.
    #[must_use]
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.semaphore.capacity = capacity;
        self
    }

    /// Returns the lock for readers: many at a time.
    pub fn read(&self) -> Semaphore {
        self.semaphore.clone()
    }

    /// Returns the lock for a writer, who is alone. The writer's guard can [`PermitGuard::downgrade`].
    pub fn write(&self) -> Semaphore {
        let permits = self.semaphore.capacity;
        Semaphore { permits, exclusive: true, ..self.semaphore.clone() }
    }
}

impl Semaphore {
    /// Returns the key.
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Returns the public view: holders and queue.
    ///
    /// # Errors
    /// As [`Client::get_semaphore`].
    pub async fn get(&self) -> Result<Lock, Error> {
        self.client.get_semaphore(self.key.clone()).await
    }

    /// Waits for permits, runs `work` under them, and releases them. If the permits are lost, `work` is dropped where
    /// it waits.
    ///
    /// # Errors
    /// As [`Client::with_lock`].
    pub async fn with_permits<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        request: impl Into<PermitRequest>,
        work: impl FnOnce(Arc<PermitGuard>) -> F,
    ) -> Result<T, E> {
        let guard = Arc::new(self.acquire(request).await?.granted()?);
        let around = Around::permits(guard.lease(), guard.capacity());
        work_under(&guard, within([around], Box::pin(work(Arc::clone(&guard)))), || guard.give_back(Release::new()))
            .await
    }

    /// Continues with permits that another process acquired.
    ///
    /// # Errors
    /// As [`Client::resume`].
    pub async fn resume(&self, from: Handover) -> Result<PermitGuard, Error> {
        self.resume_with(PermitRequest::new(), from).await
    }

    /// Continues with permits as [`Semaphore::resume`] does, and applies the request's lease, if it names one, and its
    /// heartbeats.
    ///
    /// # Errors
    /// As [`Client::resume_with`].
    pub async fn resume_with(&self, request: PermitRequest, from: Handover) -> Result<PermitGuard, Error> {
        self.client.check_open()?;
        if self.key != from.key {
            return Err(Error::invalid("key", format!("the semaphore is {}, and not {}", self.key, from.key)));
        }
        request.lease.map_or(Ok(()), check_lease)?;
        let change = Heartbeat { lease: request.lease, ..Heartbeat::default() };
        let believed = request.lease.or(Some(DEFAULT_LEASE));
        let renewed = self
            .client
            .renew_by_id(Subject::Permits, &self.key, &from.lease_id, from.sequence, change, believed)
            .await?;
        let Renewal { version, lease, fencing_token, permits, holder_id, .. } = renewed.answer;
        request.keeping.check(lease)?;
        let RenewedById { sent, last_number, .. } = renewed;
        let granted = Granted { sent, lease, fencing_token, version, permits, last_number };
        let terms = self.client.terms(&request.keeping);
        let lease = Lease::new(Subject::Permits, self.key.clone(), from.lease_id, None, granted, terms);
        self.kept(lease, &request, holder_id.unwrap_or_default(), self.capacity)
    }

    /// Keeps permits.
    fn kept(
        &self,
        lease: Lease,
        request: &PermitRequest,
        holder_id: String,
        capacity: u64,
    ) -> Result<PermitGuard, Error> {
        let guard = self.client.keep(lease, &request.keeping)?;
        let guard = PermitGuard { guard, holder_id, capacity };
        // A refused guard is dropped, which releases its permits.
        self.check_exclusive(guard.permits(), capacity).map(|()| guard)
    }

    /// Checks that the permits of a writer are all.
    ///
    /// # Errors
    /// The row has more permits than the writer has.
    fn check_exclusive(&self, permits: u64, capacity: u64) -> Result<(), Error> {
        if !self.exclusive || permits >= capacity {
            return Ok(());
        }
        let message = format!("{} has {capacity} permits, so that {permits} do not exclude others", self.key);
        Err(Error::invalid("capacity", message))
    }

    /// The parts of a grant that no renewal changes.
    fn origin(owner_name: String, outcome: AcquireOutcome, data: Option<Vec<u8>>) -> Origin {
        Origin { owner_name, outcome, previous_owner_name: None, data }
    }
}

keeping_options!(PermitRequest);

impl PermitRequest {
    /// Creates a request with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of permits. Default: one; for a writer, all.
    #[must_use]
    pub fn permits(mut self, permits: u64) -> Self {
        self.permits = Some(permits);
        self
    }

    /// Sets the lease: 100 ms to a day. Default: a minute.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Bounds the wait. Default: the longest lease that the first refusal shows, and two seconds.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Lets the service judge by its own clock which holders and waiters are dead, for callers that keep no
    /// observations. A caller that goes on to wait observes them as well. The service documents its bound on the
    /// difference of clocks.
    #[must_use]
    pub fn stale_by_clock(mut self) -> Self {
        self.staleness = Staleness::Clock;
        self
    }

    /// Polls at this interval, at least 50 ms. Default: the client watches.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// Sets the owner's name: at most 128 bytes. Default: the client's.
    #[must_use]
    pub fn owner_name(mut self, name: impl Into<String>) -> Self {
        self.owner_name = Some(name.into());
        self
    }

    /// Stores a payload of this holder, for everyone to read: at most 256 bytes.
    #[must_use]
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Calls `callback` after each view of the semaphore, and about once a second during a watch. The callback should
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
    /// Returns the guard, or an error that names the holders.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Held`]
    pub fn granted(self) -> Result<PermitGuard, Error> {
        self.granted_or(|held| Error::held(held.lock))
    }
}

impl PermitGuard {
    /// Returns the public name of this holder, which proves nothing.
    pub fn holder_id(&self) -> &str {
        &self.holder_id
    }

    /// Returns the number of held permits.
    pub fn permits(&self) -> u64 {
        self.guard.lease().permits()
    }

    /// Returns the capacity of the semaphore at the grant.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Releases permits, and keeps this number of them, at least one.
    ///
    /// # Errors
    /// As [`Guard::renew_with`]; [`crate::ErrorKind::InvalidRequest`] for more than are held: there is no upgrade.
    pub async fn keep(&self, permits: u64) -> Result<(), Error> {
        let change = Heartbeat { keep: Some(permits), ..Heartbeat::default() };
        self.guard.renew_with(change).await
    }

    /// Makes a writer a reader: keeps one permit.
    ///
    /// # Errors
    /// As [`PermitGuard::keep`].
    pub async fn downgrade(&self) -> Result<(), Error> {
        self.keep(1).await
    }

    /// Releases the permits, and waits for the answer. If this future is dropped, the release continues in the
    /// background.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<Released, Error> {
        self.guard.release().await
    }

    /// Ends the guard without a release, for another process to continue with [`Semaphore::resume`].
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
