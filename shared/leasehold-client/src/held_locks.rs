//! The locks that one client holds, and the number of guards that share each.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use leasehold_wire::Secret;

use crate::LockKey;
use crate::lease::Lease;
use crate::subject::Subject;

/// All locks that one client holds.
#[derive(Default)]
pub(crate) struct HeldLocks {
    /// The locks, by key and lease id.
    shared: HashMap<(LockKey, Secret), Shared>,
    is_closed: bool,
}

/// A held lock, and the number of guards that share it.
struct Shared {
    lease: Arc<Lease>,
    guards: usize,
}

impl HeldLocks {
    /// Whether the client is closed, and accepts no more locks.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Accepts no more locks. Returns those that were held.
    pub(crate) fn close(&mut self) -> Vec<Arc<Lease>> {
        self.is_closed = true;
        self.shared.drain().map(|(_, shared)| shared.lease).collect()
    }

    /// Adds a lock with one guard.
    pub(crate) fn add(&mut self, lease: &Arc<Lease>) {
        self.shared.insert(lease.name(), Shared { lease: Arc::clone(lease), guards: 1 });
    }

    /// Adds a guard to a lock that is held already.
    pub(crate) fn share(&mut self, key: &LockKey) -> Option<Arc<Lease>> {
        let is_of_key = |lease: &Lease| lease.subject == Subject::Lock && lease.key == *key && lease.is_held();
        let shared = self.shared.values_mut().find(|shared| is_of_key(&shared.lease))?;
        shared.guards += 1;
        Some(Arc::clone(&shared.lease))
    }

    /// Removes one guard. Returns whether it was the last, or the lock is not among these.
    pub(crate) fn remove(&mut self, lease: &Arc<Lease>) -> bool {
        if let Entry::Occupied(mut entry) = self.shared.entry(lease.name())
            && Arc::ptr_eq(&entry.get().lease, lease)
        {
            entry.get_mut().guards -= 1;
            if entry.get().guards > 0 {
                return false;
            }
            entry.remove();
        }
        true
    }

    /// Whether this lease is held.
    pub(crate) fn has(&self, lease: &Arc<Lease>) -> bool {
        self.shared.get(&lease.name()).is_some_and(|shared| Arc::ptr_eq(&shared.lease, lease)) && lease.is_held()
    }

    /// Whether the lock of this key is held.
    pub(crate) fn has_lock(&self, key: &LockKey) -> bool {
        self.shared.values().any(|shared| shared.lease.subject == Subject::Lock && shared.lease.key == *key)
    }
}
