//! The holders and tickets that one client saw, judged one by one. Rule K3.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use leasehold_wire::semaphore::{ObservedEntry, SemaphoreState};
use lru::LruCache;

use super::plan::{MAX_NAMES, Plan, Waiter, plan};
use crate::LockKey;
use crate::clock::Instant;
use crate::observation::Observation;
use crate::timing::stale_after;

/// The number of semaphores that a client remembers, each with up to two hundred entries. Beyond that it forgets the
/// least recently seen one, which delays a later takeover by one lease.
const MAX_SEMAPHORES: NonZeroUsize = NonZeroUsize::new(1000).expect("not zero");

/// The semaphores that a client saw.
#[derive(Debug)]
pub(crate) struct Semaphores(LruCache<LockKey, Seen>);

/// The last view of one semaphore.
#[derive(Debug, Default)]
struct Seen {
    state: Option<SemaphoreState>,
    entries: HashMap<String, Observation>,
}

impl Default for Semaphores {
    fn default() -> Self {
        Self(LruCache::new(MAX_SEMAPHORES))
    }
}

impl Semaphores {
    /// Records a view. `now` must be after the answer arrived. Entries that are gone are forgotten.
    pub(crate) fn observe(&mut self, key: &LockKey, state: &SemaphoreState, now: Instant) {
        let mut known = self.0.pop(key).unwrap_or_default().entries;
        let holders = state.holders.iter().map(|entry| (&entry.holder_id, &entry.version, entry.lease_duration_ms));
        let tickets = state.queue.iter().map(|entry| (&entry.ticket_id, &entry.version, entry.lease_duration_ms));
        let observe = |(id, version, lease_ms): (&String, &String, u64)| {
            let fresh = Observation::start(version, Duration::from_millis(lease_ms), now);
            let seen = known.remove(id).filter(|seen| seen.is_of_same(&fresh)).unwrap_or(fresh);
            (id.clone(), seen)
        };
        let entries = holders.chain(tickets).map(observe).collect();
        self.0.put(key.clone(), Seen { state: Some(state.clone()), entries });
    }

    /// Marks the view as outdated, since permits were granted to this client.
    pub(crate) fn outdate(&mut self, key: &LockKey) {
        if let Some(seen) = self.0.get_mut(key) {
            seen.state = None;
        }
    }

    /// Returns the next step of a waiter with the last view, if there is one.
    pub(crate) fn plan(&mut self, key: &LockKey, waiter: &Waiter<'_>) -> Option<Plan> {
        let seen = self.0.get(key)?;
        let state = seen.state.as_ref()?;
        Some(plan(state, waiter, |id, version, lease| seen.stale_in(id, version, lease)))
    }

    /// Returns up to ten dead tickets of the last view, in the order of the queue.
    pub(crate) fn dead_tickets(&mut self, key: &LockKey) -> Vec<ObservedEntry> {
        let Some(seen) = self.0.get(key) else { return Vec::new() };
        let queue = seen.state.iter().flat_map(|state| &state.queue);
        let dead = queue.filter(|ticket| {
            seen.stale_in(&ticket.ticket_id, &ticket.version, Duration::from_millis(ticket.lease_duration_ms)).is_zero()
        });
        let named = dead.map(|ticket| ObservedEntry {
            holder_id: ticket.ticket_id.clone(),
            version: ticket.version.clone(),
            permits: Some(ticket.permits),
        });
        named.take(MAX_NAMES).collect()
    }
}

impl Seen {
    fn stale_in(&self, id: &str, version: &str, lease: Duration) -> Duration {
        let seen = self.entries.get(id).filter(|seen| seen.record_version_number() == version);
        seen.map_or(stale_after(lease), Observation::stale_in)
    }
}
