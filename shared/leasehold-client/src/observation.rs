//! Rule C3: what this caller saw of locks that others hold, and since when. Rule C9: what of it outlives the process.

use std::num::NonZeroUsize;
use std::time::Duration;

use leasehold_wire::Lock;
use lru::LruCache;
use serde::{Deserialize, Serialize};

use crate::LockKey;
use crate::clock::{Instant, epoch_ms, millis};

/// How many locks a client remembers observations of; beyond that it forgets those it has not looked at for longest,
/// which costs a later takeover one more lease.
const MAX_OBSERVATIONS: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// One version of a lock that was seen, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    rvn: String,
    lease: Duration,
    first_seen: Instant,
    /// How long another process had seen it before this one began to, by the wall clock.
    seen_before: Duration,
    /// What of that does not count, for wall clocks may differ.
    doubted: Duration,
}

impl Observation {
    /// Starts now, which must be after the answer that showed `lock` arrived.
    fn start(lock: &Lock, now: Instant) -> Self {
        Self {
            rvn: lock.record_version_number.clone(),
            lease: Duration::from_millis(lock.lease_duration_ms),
            first_seen: now,
            seen_before: Duration::ZERO,
            doubted: Duration::ZERO,
        }
    }

    /// The record version number that was seen.
    pub fn record_version_number(&self) -> &str {
        &self.rvn
    }

    /// How long it has been seen unchanged.
    pub fn age(&self) -> Duration {
        self.seen_before.saturating_sub(self.doubted) + self.first_seen.elapsed()
    }

    /// As [`Self::age`], with what is doubted: whoever loads it will doubt it anew.
    fn age_by_wall_clock(&self) -> Duration {
        self.seen_before + self.first_seen.elapsed()
    }

    /// The record's own lease.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// How long until the lock may be taken over, if its version does not change: zero if it is stale.
    pub fn stale_in(&self) -> Duration {
        self.lease.saturating_sub(self.age())
    }
}

/// An observation for another process, or for a later run of this one. As JSON:
/// `{"key":"Moe","recordVersionNumber":"59dc…","leaseDurationMs":20000,"firstSeenEpochMs":1795256832324}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedObservation {
    /// Which lock.
    pub key: String,
    /// On a table with a sort key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// What was seen.
    pub record_version_number: String,
    /// The record's own lease, in milliseconds.
    pub lease_duration_ms: u64,
    /// When it was first seen, by the wall clock of whoever saw it, in milliseconds.
    pub first_seen_epoch_ms: u64,
}

/// What one client remembers.
#[derive(Debug)]
pub(crate) struct Observations {
    seen: LruCache<LockKey, Observation>,
    /// What is taken off the age of a saved observation: how far wall clocks may differ.
    clock_margin: Duration,
}

impl Observations {
    pub(crate) fn new(clock_margin: Duration) -> Self {
        Self { seen: LruCache::new(MAX_OBSERVATIONS), clock_margin }
    }

    /// Takes note of a held lock. `now` must be after the answer arrived.
    pub(crate) fn observe(&mut self, key: &LockKey, lock: &Lock, now: Instant) -> Observation {
        let fresh = Observation::start(lock, now);
        match self.seen.get(key) {
            Some(known) if known.rvn == fresh.rvn && known.lease == fresh.lease => known.clone(),
            _ => {
                self.seen.put(key.clone(), fresh.clone());
                fresh
            }
        }
    }

    /// The version to send, if the lock is stale.
    pub(crate) fn stale(&mut self, key: &LockKey) -> Option<String> {
        self.seen.get(key).filter(|seen| seen.stale_in().is_zero()).map(|seen| seen.rvn.clone())
    }

    pub(crate) fn forget(&mut self, key: &LockKey) {
        self.seen.pop(key);
    }

    pub(crate) fn save(&self) -> Vec<SavedObservation> {
        let now = epoch_ms();
        let save = |(key, seen): (&LockKey, &Observation)| SavedObservation {
            key: key.key.clone(),
            sort_key: key.sort_key.clone(),
            record_version_number: seen.rvn.clone(),
            lease_duration_ms: millis(seen.lease),
            first_seen_epoch_ms: now.saturating_sub(millis(seen.age_by_wall_clock())),
        };
        self.seen.iter().map(save).collect()
    }

    /// Takes over what another process saw. What this one saw itself stands, unless the other saw the same for longer.
    pub(crate) fn load(&mut self, saved: impl IntoIterator<Item = SavedObservation>) {
        let (now, now_epoch_ms) = (Instant::now(), epoch_ms());
        for saved in saved {
            let age = Duration::from_millis(now_epoch_ms.saturating_sub(saved.first_seen_epoch_ms));
            let loaded = Observation {
                rvn: saved.record_version_number,
                lease: Duration::from_millis(saved.lease_duration_ms),
                first_seen: now,
                seen_before: age,
                doubted: self.clock_margin,
            };
            let key = LockKey { key: saved.key, sort_key: saved.sort_key };
            match self.seen.peek(&key) {
                Some(known) if known.rvn != loaded.rvn || known.age() >= loaded.age() => {}
                _ => drop(self.seen.put(key, loaded)),
            }
        }
    }
}
