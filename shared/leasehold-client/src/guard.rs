//! A lock while it is held.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_wire::{AcquireOutcome, ReleaseOutcome, Secret};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::flow::{Around, within};
use crate::lease::Lease;
use crate::request::check_lease;
use crate::timing::leave_bound;
use crate::{Client, Error, LockKey, Loss};

/// The service's limit for a payload.
const MAX_DATA_BYTES: usize = 256 * 1024;

/// A lock while it is held. Dropping the guard releases the lock in the background, with best effort. Nothing is sent
/// when the runtime ends with the drop, and the lock is then free after one lease. [`Guard::release`] waits for the
/// release.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    client: Client,
    lease: Arc<Lease>,
    /// Whether this guard still counts among the guards of its lease.
    counted: AtomicBool,
}

/// The parts that another process, in any language, needs to continue with a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handover {
    /// The name of the lock, or of the semaphore.
    #[serde(flatten)]
    pub key: LockKey,
    /// The secret that proves possession.
    pub lease_id: Secret,
    /// The number of the last request under the lease id. Without the number, the successor learns it from the service,
    /// by one more request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
}

impl Handover {
    /// Creates the parts of a lock of which the lease id alone is known.
    pub fn new(key: impl Into<LockKey>, lease_id: Secret) -> Self {
        Self { key: key.into(), lease_id, sequence: None }
    }
}

/// The changes that a renewal makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heartbeat {
    pub(crate) lease: Option<Duration>,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) delete_data: bool,
    /// The fencing token of the grant, where it is known.
    pub(crate) fencing_token: Option<u64>,
    /// The number of permits of a semaphore to keep.
    pub(crate) keep: Option<u64>,
    /// The number of permits that were held when the request was made. Set with `keep`.
    pub(crate) held: Option<u64>,
}

impl Heartbeat {
    /// Creates a renewal without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a new lease from this heartbeat on: 100 ms to a day.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Stores a new payload.
    #[must_use]
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Deletes the payload.
    #[must_use]
    pub fn delete_data(mut self) -> Self {
        self.delete_data = true;
        self
    }
}

/// The changes that a release makes.
#[derive(Debug, Clone, Default)]
pub struct Release {
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) delete: bool,
    pub(crate) completed: Option<String>,
    pub(crate) completed_ttl: Option<Duration>,
    /// The token of the permits that are released, so that the service needs no second write.
    pub(crate) fencing_token: Option<u64>,
    /// The number of the ticket that is withdrawn.
    pub(crate) ticket: Option<u64>,
}

impl Release {
    /// Creates a release that leaves the row's data unchanged.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores data for the next holder.
    #[must_use]
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Deletes the row and its data.
    #[must_use]
    pub fn delete(mut self) -> Self {
        self.delete = true;
        self
    }

    /// Records that this occurrence is done: the service grants it to nobody again.
    #[must_use]
    pub fn completed(mut self, occurrence: impl Into<String>) -> Self {
        self.completed = Some(occurrence.into());
        self
    }

    /// Sets the time for which the completed occurrence is remembered at least. After it, and the retention of all
    /// rows, the row may go. Default: for ever.
    #[must_use]
    pub fn completed_ttl(mut self, ttl: Duration) -> Self {
        self.completed_ttl = Some(ttl);
        self
    }

    /// Whether it stores data or a completed occurrence.
    pub(crate) fn stores(&self) -> bool {
        self.data.is_some() || self.completed.is_some()
    }

    /// Checks the limits of the service.
    ///
    /// # Errors
    /// The service would refuse the release.
    fn check(&self) -> Result<(), Error> {
        match &self.data {
            Some(_) if self.delete => Err(Error::invalid("data", "a row that is deleted leaves no data")),
            Some(data) if data.len() > MAX_DATA_BYTES => {
                Err(Error::invalid("data", format!("data may have {MAX_DATA_BYTES} bytes, not {}", data.len())))
            }
            _ => Ok(()),
        }
    }
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// This request released the lock.
    Released,
    /// An earlier try of this request, whose answer was lost, released the lock.
    Replayed,
    /// The row is gone.
    Absent,
    /// The lock is shared, and other guards still hold it.
    StillHeld,
}

impl From<ReleaseOutcome> for Released {
    fn from(outcome: ReleaseOutcome) -> Self {
        match outcome {
            ReleaseOutcome::Released => Self::Released,
            ReleaseOutcome::Replayed => Self::Replayed,
            ReleaseOutcome::Absent => Self::Absent,
        }
    }
}

impl Guard {
    pub(crate) fn new(client: Client, lease: Arc<Lease>) -> Self {
        Self { client, lease, counted: AtomicBool::new(true) }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Returns the lock's key.
    pub fn key(&self) -> &LockKey {
        &self.lease.key
    }

    /// Returns the owner's name, as others read it; `None` after a resume.
    pub fn owner_name(&self) -> Option<&str> {
        self.lease.origin.as_ref().map(|origin| origin.owner_name.as_str())
    }

    /// Returns the secret that proves possession, for another process to continue with the lock.
    pub fn lease_id(&self) -> &Secret {
        &self.lease.id
    }

    /// Returns the fencing token, which is higher than every token granted for this key before. Hand the token to the
    /// resource that the lock protects.
    pub fn fencing_token(&self) -> u64 {
        self.lease.fencing_token()
    }

    /// Returns the record version number that the last heartbeat wrote.
    pub fn record_version_number(&self) -> String {
        self.lease.version()
    }

    /// Returns the outcome of the acquisition; `None` after a resume.
    pub fn outcome(&self) -> Option<AcquireOutcome> {
        self.lease.origin.as_ref().map(|origin| origin.outcome)
    }

    /// Returns the previous owner of the lock.
    pub fn previous_owner_name(&self) -> Option<&str> {
        self.lease.origin.as_ref()?.previous_owner_name.as_deref()
    }

    /// Returns the payload at the time of the grant: the predecessor's data, or the data that was just stored.
    pub fn data(&self) -> Option<&[u8]> {
        self.lease.origin.as_ref()?.data.as_deref()
    }

    /// Returns the rest of the lease, counted from before the last successful request was sent. Zero if the lock is not
    /// held.
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// Whether the lock is held, as far as this process can know. The lock was neither lost nor released, and its lease
    /// has not run out. After the process was suspended, the lock is not believed in until a heartbeat was answered.
    pub fn valid(&self) -> bool {
        self.lease.is_held()
    }

    /// Checks that the lock is held, as far as this process can know, before a step that depends on it. Sends nothing.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`]; [`crate::ErrorKind::Unavailable`] after the process was suspended, until a heartbeat
    /// was answered.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.lease.check_held()
    }

    /// Whether no heartbeat was answered since a suspension.
    #[cfg(feature = "lambda-runtime")]
    pub(crate) fn in_doubt(&self) -> bool {
        self.lease.in_doubt()
    }

    /// Returns the loss of the lock, if there was one.
    pub fn loss(&self) -> Option<Loss> {
        self.lease.loss()
    }

    /// Resolves when the lock is lost: taken over, broken, expired, or released by another caller, such as
    /// [`Client::close`]. Resolves with `None` after the guards released the lock.
    pub fn lost(&self) -> impl Future<Output = Option<Loss>> + Send + use<> {
        let lease = Arc::clone(&self.lease);
        async move { lease.lost().await }
    }

    /// Whether somebody waits for the lock, as far as a heartbeat has told. A holder may release the lock earlier than
    /// planned.
    pub fn is_wanted(&self) -> bool {
        self.lease.is_wanted()
    }

    /// Resolves when a heartbeat tells that somebody waits for the lock, or when the lock is released or lost.
    pub fn wanted(&self) -> impl Future<Output = ()> + Send + use<> {
        let lease = Arc::clone(&self.lease);
        async move { lease.wanted().await }
    }

    /// Renews the lease now.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`]; the last failure to reach the service, after the lease ran out.
    pub async fn renew(&self) -> Result<(), Error> {
        self.renew_with(Heartbeat::new()).await
    }

    /// Renews the lease now, and changes the lease or the payload.
    ///
    /// # Errors
    /// As [`Guard::renew`]; [`crate::ErrorKind::InvalidRequest`] for a lease or a payload that the service refuses.
    pub async fn renew_with(&self, change: Heartbeat) -> Result<(), Error> {
        change.lease.map_or(Ok(()), |lease| check_lease(lease).and_then(|()| self.lease.check_delay(lease)))?;
        self.client.keep_on(&self.lease);
        self.lease.renew(change).await
    }

    /// Releases the lock, and waits for the answer. If this future is dropped, the release continues in the background.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`] if the lock was lost before; otherwise the last failure to reach the service. The
    /// lock is then free one lease after its last heartbeat.
    pub async fn release(self) -> Result<Released, Error> {
        self.release_with(Release::new()).await
    }

    /// Releases the lock, and leaves data to the next holder, or deletes the row. Only the last guard of a shared lock
    /// changes the row.
    ///
    /// # Errors
    /// As [`Guard::release`]; [`crate::ErrorKind::InvalidRequest`] for data that the service refuses, or an occurrence
    /// that does not run, in which case the lock is released without them. [`crate::ErrorKind::Lost`] also where the
    /// lock was perhaps released, and no answer tells that the data, or the occurrence, was stored.
    pub async fn release_with(self, release: Release) -> Result<Released, Error> {
        release.check()?;
        self.give_back(release).await
    }

    /// Releases this guard's share, once.
    pub(crate) fn give_back(&self, release: Release) -> impl Future<Output = Result<Released, Error>> + Send + use<> {
        let release = self.counted.swap(false, Ordering::SeqCst).then(|| self.client.give_back(&self.lease, release));
        let released = self.lease.released();
        async move {
            match release {
                Some(release) => release.await,
                None => Err(Error::lost(released)),
            }
        }
    }

    /// Ends the guard without a release, for another process to continue with [`Client::resume`]. That process must
    /// continue within the rest of the lease. The other guards of a shared lock stay.
    pub fn detach(self) -> Handover {
        if self.counted.swap(false, Ordering::SeqCst) {
            // A lost lock has nothing left to end.
            let _ = self.client.end_share(&self.lease, Lease::detach);
        }
        Handover {
            key: self.lease.key.clone(),
            lease_id: self.lease.id.clone(),
            sequence: Some(self.lease.last_number()),
        }
    }
}

/// Runs `work`, which is dropped if `guard` loses its lock.
pub(crate) async fn until_lost<T, E: From<Error>>(
    guard: &Guard,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let done = tokio::select! {
        biased;
        done = within([Around::lock(&guard.lease)], work) => done,
        Some(loss) = guard.lost() => return Err(Error::lost(loss).into()),
    };
    match guard.loss() {
        Some(loss) => done.and(Err(Error::lost(loss).into())),
        None => done,
    }
}

/// Runs `work` under the guard, and releases the guard. The callers box the work, so that a nested block does not make
/// the blocks around larger. A release that an outage holds up goes on in the background.
pub(crate) async fn work_under<T, E: From<Error>, F: Future<Output = Result<Released, Error>>>(
    guard: &Guard,
    work: impl Future<Output = Result<T, E>>,
    give_back: impl FnOnce() -> F,
) -> Result<T, E> {
    let done = until_lost(guard, work).await;
    if guard.loss().is_some() {
        return done;
    }
    let bound = leave_bound(guard.remaining());
    match timeout(bound, give_back()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(key = %guard.key(), %error, "the lock could not be released"),
        Err(_) => tracing::warn!(key = %guard.key(), "the lock is not released yet, which goes on in the background"),
    }
    done
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The release is in flight without a waiter.
        drop(self.give_back(Release::new()));
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", self.key())
            .field("fencing_token", &self.fencing_token())
            .field("valid", &self.valid())
            .finish_non_exhaustive()
    }
}
