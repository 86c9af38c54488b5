//! The holders and tickets that one client saw, judged one by one. Rule K3.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use leasehold_wire::semaphore::{ObservedEntry, SemaphoreState};
use lru::LruCache;

use super::plan::{MAX_NAMES, Plan, Waiter, plan, ticket_named};
use crate::LockKey;
use crate::clock::Instant;
use crate::observation::{Observation, SavedObservation};
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
    /// The age of the last view or grant, for the next lease id.
    epoch: Option<String>,
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
        let epoch = known_epoch(&state.epoch);
        self.0.put(key.clone(), Seen { state: Some(state.clone()), epoch, entries });
    }

    pub(crate) fn save(&self) -> Vec<SavedObservation> {
        let of = |(key, seen): (&LockKey, &Seen)| {
            let save = |(id, seen): (&String, &Observation)| SavedObservation::of(key, Some(id), seen);
            seen.entries.iter().map(save).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    /// Loads another process's observations, as those of locks are loaded. They count as soon as a view shows their
    /// entries.
    pub(crate) fn load(&mut self, saved: impl IntoIterator<Item = SavedObservation>, margin: Duration) {
        for saved in saved {
            let loaded = Observation::load(&saved, margin);
            let Some(id) = saved.entry_id else { continue };
            let key = LockKey { key: saved.key, sort_key: saved.sort_key };
            let known = self.0.get_or_insert_mut(key, Seen::default);
            if known.entries.get(&id).is_none_or(|known| known.gives_way_to(&loaded)) {
                known.entries.insert(id, loaded);
            }
        }
    }

    /// Marks the view as outdated, since permits were granted to this client.
    pub(crate) fn outdate(&mut self, key: &LockKey, epoch: &str) {
        if let Some(seen) = self.0.get_mut(key) {
            seen.state = None;
            seen.epoch = known_epoch(epoch).or(seen.epoch.take());
        }
    }

    /// Returns the epoch of the last view or grant.
    pub(crate) fn epoch(&mut self, key: &LockKey) -> Option<String> {
        self.0.get(key)?.epoch.clone()
    }

    /// Whether the last view shows a queue, or too few free permits.
    pub(crate) fn must_queue(&mut self, key: &LockKey, permits: u64) -> bool {
        let state = self.0.get(key).and_then(|seen| seen.state.as_ref());
        state.is_some_and(|state| !state.queue.is_empty() || state.available < permits)
    }

    /// Returns the dead entries of the last view, if naming them is all that a grant of `permits` needs.
    pub(crate) fn known_dead(&mut self, key: &LockKey, permits: u64) -> Vec<ObservedEntry> {
        let Some(view) = self.0.get(key).and_then(|seen| seen.state.clone()) else { return Vec::new() };
        match self.plan(key, &view, &Waiter::without_a_ticket(permits, Duration::MAX)) {
            Plan::Ask(names) => names,
            Plan::Enqueue(_) | Plan::Wait(_) => Vec::new(),
        }
    }

    /// Returns the next step of a waiter with its own view. The last view of the client may be older than the waiter's
    /// ticket, since other tasks record theirs.
    pub(crate) fn plan(&mut self, key: &LockKey, view: &SemaphoreState, waiter: &Waiter<'_>) -> Plan {
        let seen = self.0.get(key);
        plan(view, waiter, |id, version, lease| stale_in(seen, id, version, lease))
    }

    /// Returns up to ten dead tickets of this view, in the order of the queue.
    pub(crate) fn dead_tickets(&mut self, key: &LockKey, view: &SemaphoreState) -> Vec<ObservedEntry> {
        let seen = self.0.get(key);
        let dead = view.queue.iter().filter(|ticket| {
            let lease = Duration::from_millis(ticket.lease_duration_ms);
            stale_in(seen, &ticket.ticket_id, &ticket.version, lease).is_zero()
        });
        dead.map(ticket_named).take(MAX_NAMES).collect()
    }
}

/// An older service shows no epoch.
pub(super) fn known_epoch(epoch: &str) -> Option<String> {
    Some(epoch.to_owned()).filter(|epoch| !epoch.is_empty())
}

/// Returns the time until an entry is dead. An entry that was never seen with this version has its whole lease left.
fn stale_in(seen: Option<&Seen>, id: &str, version: &str, lease: Duration) -> Duration {
    let seen = seen.and_then(|seen| seen.entries.get(id)).filter(|seen| seen.record_version_number() == version);
    seen.map_or(stale_after(lease), Observation::stale_in)
}
