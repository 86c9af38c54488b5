//! Load shedding: a request runs, waits, or is refused at once.
//!
//! A request that waits longer than its caller is wasted work. Therefore few requests wait, each for a short time, and
//! the others are refused early, with `Retry-After`. Heartbeats and releases have slots of their own: a holder that
//! cannot renew loses its lock, and a lock that cannot be released makes all others wait.

use std::time::Duration;

use leasehold_wire::operation::{self, Family, Operation};
use leasehold_wire::{Problem, ProblemType};
use metrics::counter;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// Requests that run at a time. The embedded engine takes them one by one, so more would only queue.
const RUNNING: usize = 64;
/// Ordinary requests that run at a time: all but heartbeats and releases.
const ORDINARY: usize = 48;
/// Listings and large reads that run at a time: each may take several megabytes.
const BULKY: usize = 8;
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
    waiting: Semaphore,
    watching: Semaphore,
}

/// A slot, given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    _slots: [Option<SemaphorePermit<'a>>; 3],
}

impl Default for Load {
    fn default() -> Self {
        Self {
            running: Semaphore::new(RUNNING),
            ordinary: Semaphore::new(ORDINARY),
            bulky: Semaphore::new(BULKY),
            waiting: Semaphore::new(WAITING),
            watching: Semaphore::new(WATCHING),
        }
    }
}

impl Load {
    /// Waits for a slot, in order of arrival.
    ///
    /// # Errors
    /// `throttled`: too many wait already, or no slot became free in time.
    pub(crate) async fn admit(&self, operation: &Operation) -> Result<Slot<'_>, Problem> {
        let admitted = match (operation.family, operation.load) {
            (Family::Hold, _) => timeout(URGENT_PATIENCE, self.urgent()).await.ok().flatten(),
            (_, operation::Load::Waiting) => {
                let place = self.watching.try_acquire().map_err(|_| {
                    shed(format!("The service has {WATCHING} watches, and takes no more. Poll by reads meanwhile."))
                })?;
                Some(Slot { _slots: [Some(place), None, None] })
            }
            (_, load) => {
                let _place = self.waiting.try_acquire().map_err(|_| shed(OVERLOADED))?;
                timeout(PATIENCE, self.ordinary(load == operation::Load::Bulky)).await.ok().flatten()
            }
        };
        admitted.ok_or_else(|| shed(OVERLOADED))
    }

    async fn urgent(&self) -> Option<Slot<'_>> {
        Some(Slot { _slots: [self.running.acquire().await.ok(), None, None] })
    }

    async fn ordinary(&self, is_bulky: bool) -> Option<Slot<'_>> {
        let bulky = if is_bulky { Some(self.bulky.acquire().await.ok()?) } else { None };
        let ordinary = self.ordinary.acquire().await.ok()?;
        let running = self.running.acquire().await.ok()?;
        Some(Slot { _slots: [Some(running), Some(ordinary), bulky] })
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
        while let Ok(slot) = load.admit(&ACQUIRE).await {
            slots.push(slot);
        }
        assert_eq!(slots.len(), ORDINARY);
        let holders = OPERATIONS.iter().filter(|operation| operation.family == Family::Hold);
        for operation in holders {
            assert!(load.admit(operation).await.is_ok(), "{}", operation.name);
        }
        slots.pop();
        assert!(load.admit(&ACQUIRE).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_shed_at_once_when_too_many_wait() {
        let load = Load::default();
        let mut slots = Vec::new();
        for _ in 0..ORDINARY {
            slots.push(load.admit(&ACQUIRE).await.expect("a slot"));
        }
        let _waiting = load.waiting.acquire_many(u32::try_from(WAITING).expect("small")).await;
        let started = tokio::time::Instant::now();
        let problem = load.admit(&ACQUIRE).await.expect_err("shed");
        assert_eq!((problem.status, started.elapsed()), (429, Duration::ZERO));
        assert!(load.admit(&HEARTBEAT).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn watches_take_no_slots_of_others() {
        let load = Load::default();
        let mut watches = Vec::new();
        while let Ok(slot) = load.admit(&WATCH).await {
            watches.push(slot);
        }
        assert_eq!(watches.len(), WATCHING);
        assert!(load.admit(&ACQUIRE).await.is_ok() && load.admit(&HEARTBEAT).await.is_ok());
        watches.pop();
        assert!(load.admit(&WATCH).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn listings_leave_slots_to_locks() {
        let load = Load::default();
        let mut slots = Vec::new();
        while let Ok(slot) = load.admit(&LIST).await {
            slots.push(slot);
        }
        assert_eq!(slots.len(), BULKY);
        assert!(load.admit(&ACQUIRE).await.is_ok());
    }
}
