//! Load shedding: a request runs, waits, or is refused at once.
//!
//! A request that waits longer than its caller is wasted work. Therefore few requests wait, each for a short time, and
//! the others are refused early, with `Retry-After`. Heartbeats and releases have slots of their own: a holder that
//! cannot renew loses its lock, and a lock that cannot be released makes all others wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_wire::operation::{self, Family, Operation};
use leasehold_wire::{Problem, ProblemType};
use metrics::counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::places::PLACES;

/// Requests that run at a time. The embedded engine takes them one by one, so more would only queue.
const RUNNING: usize = 64;
/// Ordinary requests that run at a time: all but heartbeats and releases.
const ORDINARY: usize = 48;
/// Listings and large reads that run at a time: each may take thirty megabytes, in all the forms of its page.
const BULKY: usize = 2;
/// Those of one principal: one colleague leaves a place to the others.
const BULKY_EACH: usize = 1;
/// Ordinary requests that may wait. At 1,000 requests a second they wait for a quarter of a second.
const WAITING: usize = 256;
/// Watches that wait at a time. A watch takes memory and a connection, and next to no work. A refused client polls.
const WATCHING: usize = 512;
/// Longest time to wait for a slot.
const PATIENCE: Duration = Duration::from_millis(500);
/// Longest time to wait for a slot of heartbeats and releases.
const URGENT_PATIENCE: Duration = Duration::from_secs(2);
/// The refusal of a request for which no slot is free.
const OVERLOADED: &str = "The service has more requests than it can answer in time. Nothing was done.";

/// The slots of one service.
#[derive(Debug)]
pub struct Load {
    running: Semaphore,
    ordinary: Semaphore,
    bulky: Semaphore,
    /// The places for bulky requests of each principal that has one under way.
    own: Mutex<HashMap<String, Weak<Semaphore>>>,
    waiting: Semaphore,
    watching: Semaphore,
}

/// A slot, given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    _slots: [Option<SemaphorePermit<'a>>; 3],
    _own: Option<OwnedSemaphorePermit>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            running: Semaphore::new(RUNNING),
            ordinary: Semaphore::new(ORDINARY),
            bulky: Semaphore::new(BULKY),
            own: Mutex::default(),
            waiting: Semaphore::new(WAITING),
            // With few descriptors, half of the connections stay with others.
            watching: Semaphore::new(WATCHING.min(PLACES.limit() / 2)),
        }
    }
}

impl Load {
    /// Waits for a slot, in order of arrival. `principal` is the name of the caller, where callers have names.
    ///
    /// # Errors
    /// `throttled`: too many wait already, or no slot became free in time.
    pub(crate) async fn admit(&self, operation: &Operation, principal: Option<&str>) -> Result<Slot<'_>, Problem> {
        let admitted = match (operation.family, operation.load) {
            (Family::Hold, _) => timeout(URGENT_PATIENCE, self.urgent()).await.ok().flatten(),
            (_, operation::Load::Waiting) => {
                let place = self
                    .watching
                    .try_acquire()
                    .map_err(|_| shed("The service has as many watches as it takes. Poll by reads meanwhile."))?;
                Some(Slot { _slots: [Some(place), None, None], _own: None })
            }
            (_, load) => {
                let _place = self.waiting.try_acquire().map_err(|_| shed(OVERLOADED))?;
                let is_bulky = load == operation::Load::Bulky;
                timeout(PATIENCE, self.ordinary(is_bulky, principal)).await.ok().flatten()
            }
        };
        admitted.ok_or_else(|| shed(OVERLOADED))
    }

    async fn urgent(&self) -> Option<Slot<'_>> {
        Some(Slot { _slots: [self.running.acquire().await.ok(), None, None], _own: None })
    }

    async fn ordinary(&self, is_bulky: bool, principal: Option<&str>) -> Option<Slot<'_>> {
        // The principal's own place comes first: a request that waits for it takes no place of others.
        let own = match principal.filter(|_| is_bulky) {
            Some(principal) => Some(self.places_of(principal).acquire_owned().await.ok()?),
            None => None,
        };
        let bulky = if is_bulky { Some(self.bulky.acquire().await.ok()?) } else { None };
        let ordinary = self.ordinary.acquire().await.ok()?;
        let running = self.running.acquire().await.ok()?;
        Some(Slot { _slots: [Some(running), Some(ordinary), bulky], _own: own })
    }

    fn places_of(&self, principal: &str) -> Arc<Semaphore> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = own.get(principal).and_then(Weak::upgrade) {
            return places;
        }
        own.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(BULKY_EACH));
        own.insert(principal.to_owned(), Arc::downgrade(&places));
        places
    }
}

fn shed(detail: impl Into<String>) -> Problem {
    counter!("requests_shed_total").increment(1);
    Problem::new(ProblemType::Throttled, detail)
}

#[cfg(test)]
mod tests {
    use leasehold_wire::operation::{ACQUIRE, HEARTBEAT, LIST, OPERATIONS, WATCH};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn heartbeat_runs_while_acquires_fill_their_slots() {
        let load = Load::default();
        let mut slots = Vec::new();
        while let Ok(slot) = load.admit(&ACQUIRE, None).await {
            slots.push(slot);
        }
        assert_eq!(slots.len(), ORDINARY);
        let holders = OPERATIONS.iter().filter(|operation| operation.family == Family::Hold);
        for operation in holders {
            assert!(load.admit(operation, None).await.is_ok(), "{}", operation.name);
        }
        slots.pop();
        assert!(load.admit(&ACQUIRE, None).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_shed_at_once_when_too_many_wait() {
        let load = Load::default();
        let mut slots = Vec::new();
        for _ in 0..ORDINARY {
            slots.push(load.admit(&ACQUIRE, None).await.expect("a slot"));
        }
        let _waiting = load.waiting.acquire_many(u32::try_from(WAITING).expect("small")).await;
        let started = tokio::time::Instant::now();
        let problem = load.admit(&ACQUIRE, None).await.expect_err("shed");
        assert_eq!((problem.status, started.elapsed()), (429, Duration::ZERO));
        assert!(load.admit(&HEARTBEAT, None).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn watches_take_no_slots_of_others() {
        let load = Load::default();
        let mut watches = Vec::new();
        while let Ok(slot) = load.admit(&WATCH, None).await {
            watches.push(slot);
        }
        assert_eq!(watches.len(), WATCHING);
        assert!(load.admit(&ACQUIRE, None).await.is_ok() && load.admit(&HEARTBEAT, None).await.is_ok());
        watches.pop();
        assert!(load.admit(&WATCH, None).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn listings_of_one_principal_leave_slots_to_others() {
        let load = Load::default();
        let mut slots = Vec::new();
        while let Ok(slot) = load.admit(&LIST, Some("token:one")).await {
            slots.push(slot);
        }
        assert_eq!(slots.len(), BULKY_EACH);
        assert!(load.admit(&ACQUIRE, Some("token:one")).await.is_ok());
        let other = load.admit(&LIST, Some("token:two")).await.expect("a slot");
        assert!(load.admit(&LIST, Some("token:one")).await.is_err());
        slots.pop();
        assert!(load.admit(&LIST, Some("token:one")).await.is_ok());
        drop((slots, other));
        assert!(load.admit(&LIST, Some("token:three")).await.is_ok());
        assert_eq!(load.own.lock().expect("not poisoned").len(), 1, "names are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn listings_leave_slots_to_locks() {
        let load = Load::default();
        let mut slots = Vec::new();
        while let Ok(slot) = load.admit(&LIST, None).await {
            slots.push(slot);
        }
        assert_eq!(slots.len(), BULKY);
        assert!(load.admit(&ACQUIRE, None).await.is_ok());
    }
}
