//! What a client remembers of the keys that it met: rules C3 and C9, and the pause before it returns to a lock.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_wire::Lock;
use lru::LruCache;

use crate::clock::{Instant, chance};
use crate::observation::Observations;
use crate::semaphore::seen::Semaphores;
use crate::timing::{Returning, return_pause};
use crate::{LockKey, Observation, SavedObservation};

/// The number of keys whose release a client remembers. A client that forgets a release returns to the key at once.
const MAX_RELEASED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// What one client has seen and done. Each method takes one lock for a moment.
pub(crate) struct Memory {
    observations: Mutex<Observations>,
    semaphores: Mutex<Semaphores>,
    /// The times of the last releases by this client.
    released: Mutex<LruCache<LockKey, LastRelease>>,
    /// Whether the service has watches, as far as is known.
    can_watch: AtomicBool,
}

/// The last release of a lock by one client.
struct LastRelease {
    at: Instant,
    /// The first release of a series after which the client returned at once.
    first: Instant,
    /// Whether somebody waited. True until the service says otherwise.
    was_wanted: bool,
    /// Whether the client returned at once.
    returned: bool,
}

impl Memory {
    pub(crate) fn new(clock_margin: Duration) -> Self {
        Self {
            observations: Mutex::new(Observations::new(clock_margin)),
            semaphores: Mutex::default(),
            released: Mutex::new(LruCache::new(MAX_RELEASED)),
            can_watch: AtomicBool::new(true),
        }
    }

    /// Records a view of a lock, after the answer arrived.
    pub(crate) fn saw(&self, key: &LockKey, lock: &Lock) -> Observation {
        self.observations().observe(key, lock, Instant::now())
    }

    /// Returns the version of the lock that counts as dead.
    pub(crate) fn stale(&self, key: &LockKey) -> Option<String> {
        self.observations().stale(key)
    }

    /// Forgets a lock that is the client's own now.
    pub(crate) fn forget(&self, key: &LockKey) {
        self.observations().forget(key);
    }

    /// The observations of semaphores.
    pub(crate) fn semaphores(&self) -> MutexGuard<'_, Semaphores> {
        self.semaphores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all observations, for a later process.
    pub(crate) fn save(&self) -> Vec<SavedObservation> {
        let locks = self.observations().save();
        locks.into_iter().chain(self.semaphores().save()).collect()
    }

    /// Continues the observations of an earlier process.
    pub(crate) fn load(&self, saved: impl IntoIterator<Item = SavedObservation>) {
        let (entries, locks): (Vec<_>, Vec<_>) = saved.into_iter().partition(|saved| saved.entry_id.is_some());
        let margin = {
            let mut observations = self.observations();
            observations.load(locks);
            observations.clock_margin
        };
        self.semaphores().load(entries, margin);
    }

    /// Notes a release that is about to leave. Returns its time, for the answer.
    pub(crate) fn releases(&self, key: &LockKey) -> Instant {
        let at = Instant::now();
        let mut released = self.released();
        let first = released.get(key).filter(|last| last.returned).map_or(at, |last| last.first);
        released.put(key.clone(), LastRelease { at, first, was_wanted: true, returned: false });
        at
    }

    /// Notes the answer to the release of that time: whether somebody waits for the lock.
    pub(crate) fn released_at(&self, key: &LockKey, at: Instant, was_wanted: bool) {
        if let Some(last) = self.released().get_mut(key).filter(|last| last.at == at) {
            last.was_wanted = was_wanted;
        }
    }

    /// Notes that the client returns to a key that it released. Returns the pause before its first request.
    pub(crate) fn returns(&self, key: &LockKey, poll_interval: Option<Duration>) -> Duration {
        let mut released = self.released();
        let Some(last) = released.get_mut(key) else { return Duration::ZERO };
        let released_ago = last.at.elapsed();
        let unwanted_for = (!last.was_wanted).then(|| last.first.elapsed());
        let returning = Returning { released_ago, unwanted_for };
        let pause = return_pause(Some(returning), poll_interval, chance());
        last.returned = returning.is_at_once();
        pause
    }

    /// Whether the service has watches, as far as is known.
    pub(crate) fn can_watch(&self) -> bool {
        self.can_watch.load(Ordering::Relaxed)
    }

    /// Notes that the service refused a watch for good.
    pub(crate) fn cannot_watch(&self) {
        self.can_watch.store(false, Ordering::Relaxed);
    }

    fn observations(&self) -> MutexGuard<'_, Observations> {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn released(&self) -> MutexGuard<'_, LruCache<LockKey, LastRelease>> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
