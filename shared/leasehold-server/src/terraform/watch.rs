//! Frees the locks of runs that died: plain `terraform` looks once, and cannot judge.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_api::Service;
use leasehold_api::access::Caller;
use leasehold_dynamodb::fresh_uuid;
use leasehold_terraform::Name;
use leasehold_wire::{AcquireRequest, GetRequest, Lock, LockState, ReleaseRequest, Secret};
use tokio::time::{Instant, sleep};

use super::is_without_heartbeats;

/// The bounds of the pause between two looks, which is at most a quarter of the lease.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The states whose locks are watched.
#[derive(Debug, Clone, Default)]
pub(super) struct Watched(Arc<Mutex<HashSet<Name>>>);

impl Watched {
    /// Looks at the lock until it has no holder that heartbeats. A lock that shows one version for its whole lease, on
    /// this process's own monotonic clock, is taken over and given back.
    pub(super) fn watch(&self, locks: &Service, name: &Name) {
        if !self.names().insert(name.clone()) {
            return;
        }
        let (watched, locks, name) = (self.clone(), locks.clone(), name.clone());
        tokio::spawn(async move {
            watch(&locks, &name).await;
            watched.names().remove(&name);
        });
    }

    fn names(&self) -> std::sync::MutexGuard<'_, HashSet<Name>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[allow(clippy::disallowed_methods, reason = "nothing else wakes it: a dead run is one that does nothing")]
async fn watch(locks: &Service, name: &Name) {
    let everybody = Caller::unrestricted();
    let mut seen: Option<(String, Instant)> = None;
    loop {
        let found = locks.get(&everybody, GetRequest { key: name.key(), ..GetRequest::default() }).await;
        let pause = match found {
            Ok(lock) if lock.state != LockState::Held || is_without_heartbeats(&lock) => return,
            Ok(lock) => {
                let lease = Duration::from_millis(lock.lease_duration_ms);
                match &seen {
                    Some((version, since)) if *version == lock.record_version_number => {
                        if since.elapsed() >= lease && free(locks, name, &lock).await {
                            return;
                        }
                    }
                    // The holder may have sent its heartbeat just before the answer to this look.
                    _ => seen = Some((lock.record_version_number, Instant::now())),
                }
                let rest = seen.as_ref().map_or(lease, |(_, since)| lease.saturating_sub(since.elapsed()));
                rest.min(lease / 4)
            }
            Err(problem) if problem.retryable => LONGEST_PAUSE,
            Err(_) => return,
        };
        sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
    }
}

/// Takes over the lock of a dead holder, and gives it back. Returns whether it is free.
async fn free(locks: &Service, name: &Name, lock: &Lock) -> bool {
    let (everybody, lease_id) = (Caller::unrestricted(), Secret(fresh_uuid()));
    let request = AcquireRequest {
        key: name.key(),
        owner_name: format!("cleaning up after {}", lock.owner_name).chars().take(200).collect(),
        lease_id: Some(lease_id.clone()),
        observed_record_version_number: Some(lock.record_version_number.clone()),
        ..AcquireRequest::default()
    };
    if locks.acquire(&everybody, request).await.is_err() {
        return false;
    }
    tracing::warn!(key = name.key(), owner = lock.owner_name, "a run died, and its lock is free");
    let request = ReleaseRequest { key: name.key(), lease_id, ..ReleaseRequest::default() };
    locks.release(&everybody, request).await.is_ok()
}
