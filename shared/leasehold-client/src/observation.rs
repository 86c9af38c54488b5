//! This caller's observations of locks that others hold (rule C3), and saved observations (rule C9).

use std::num::NonZeroUsize;
use std::time::Duration;

use leasehold_wire::Lock;
use lru::LruCache;
use serde::{Deserialize, Serialize};

use crate::LockKey;
use crate::clock::{Instant, millis, since_epoch};
use crate::timing::stale_after;

/// The number of locks whose observations a client remembers. Beyond that it forgets the least recently seen lock,
/// which delays a later takeover by one lease.
const MAX_OBSERVATIONS: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// One version of a lock, and the time since it was first seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    rvn: String,
    lease: Duration,
    first_seen: Instant,
    /// The time for which another process had seen the version before this one did, by the wall clock.
    seen_before: Duration,
    /// The time added to the lease where wall clocks, which may differ, measured the age.
    margin: Duration,
}

impl Observation {
    /// Starts an observation at `now`, which must be after the answer with this version arrived. `lease` is the
    /// record's own, of any length.
    pub fn start(version: &str, lease: Duration, now: Instant) -> Self {
        Self { rvn: version.to_owned(), lease, first_seen: now, seen_before: Duration::ZERO, margin: Duration::ZERO }
    }

    /// Whether both observations are of the same version under the same lease.
    pub fn is_of_same(&self, other: &Self) -> bool {
        self.rvn == other.rvn && self.lease == other.lease
    }

    /// Returns the record version number that was seen.
    pub fn record_version_number(&self) -> &str {
        &self.rvn
    }

    /// Returns the time for which the version has been seen unchanged.
    pub fn age(&self) -> Duration {
        self.seen_before + self.first_seen.elapsed()
    }

    /// Returns the time for which the version must be seen unchanged.
    pub(crate) fn stale_after(&self) -> Duration {
        stale_after(self.lease).saturating_add(self.margin)
    }

    /// Returns the time until the lock may be taken over, if its version does not change. Zero: the lock is stale.
    pub fn stale_in(&self) -> Duration {
        self.stale_after().saturating_sub(self.age())
    }
}

/// An observation for another process, or for a later run of this one. As JSON:
/// `{"key":"Moe","recordVersionNumber":"59dc…","leaseDurationMs":20000,"firstSeenEpochMs":1795256832324}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedObservation {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key, on a table that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The version that was seen.
    pub record_version_number: String,
    /// The record's own lease, in milliseconds.
    pub lease_duration_ms: u64,
    /// The time at which the version was first seen, by the observer's wall clock, in milliseconds.
    pub first_seen_epoch_ms: u64,
}

/// The observations of one client.
#[derive(Debug)]
pub(crate) struct Observations {
    seen: LruCache<LockKey, Observation>,
    /// The margin of a saved observation: the largest difference of the wall clocks.
    clock_margin: Duration,
}

impl Observations {
    pub(crate) fn new(clock_margin: Duration) -> Self {
        Self { seen: LruCache::new(MAX_OBSERVATIONS), clock_margin }
    }

    /// Records the view of a held lock. `now` must be after the answer arrived.
    pub(crate) fn observe(&mut self, key: &LockKey, lock: &Lock, now: Instant) -> Observation {
        let lease = Duration::from_millis(lock.lease_duration_ms);
        let fresh = Observation::start(&lock.record_version_number, lease, now);
        match self.seen.get(key) {
            Some(known) if known.is_of_same(&fresh) => known.clone(),
            _ => {
                self.seen.put(key.clone(), fresh.clone());
                fresh
            }
        }
    }

    /// Returns the version to send, if the lock is stale.
    pub(crate) fn stale(&mut self, key: &LockKey) -> Option<String> {
        self.seen.get(key).filter(|seen| seen.stale_in().is_zero()).map(|seen| seen.rvn.clone())
    }

    pub(crate) fn forget(&mut self, key: &LockKey) {
        self.seen.pop(key);
    }

    pub(crate) fn save(&self) -> Vec<SavedObservation> {
        let now = since_epoch();
        let save = |(key, seen): (&LockKey, &Observation)| SavedObservation {
            key: key.key.clone(),
            sort_key: key.sort_key.clone(),
            record_version_number: seen.rvn.clone(),
            lease_duration_ms: millis(seen.lease),
            first_seen_epoch_ms: first_seen_epoch_ms(now, seen.age()),
        };
        self.seen.iter().map(save).collect()
    }

    /// Loads another process's observations. An observation of this process stays, unless the loaded one is of the same
    /// version and older.
    pub(crate) fn load(&mut self, saved: impl IntoIterator<Item = SavedObservation>) {
        let (now, now_epoch_ms) = (Instant::now(), millis(since_epoch()));
        for saved in saved {
            let age = Duration::from_millis(now_epoch_ms.saturating_sub(saved.first_seen_epoch_ms));
            let loaded = Observation {
                rvn: saved.record_version_number,
                lease: Duration::from_millis(saved.lease_duration_ms),
                first_seen: now,
                seen_before: age,
                margin: self.clock_margin,
            };
            let key = LockKey { key: saved.key, sort_key: saved.sort_key };
            match self.seen.peek(&key) {
                Some(known) if known.rvn != loaded.rvn || known.stale_in() <= loaded.stale_in() => {}
                _ => drop(self.seen.put(key, loaded)),
            }
        }
    }
}

/// The time at which the version was first seen, rounded up. An observation may seem younger than it is, never older.
fn first_seen_epoch_ms(now: Duration, age: Duration) -> u64 {
    u64::try_from(now.saturating_sub(age).as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::time::advance;

    use super::*;
    use crate::vectors::{cases, ms};

    const MARGIN: Duration = Duration::from_secs(1);

    fn lock(version: &Value, lease: &Value) -> Lock {
        let lock = json!({
            "key": "Moe", "state": "held", "ownerName": "A", "recordVersionNumber": version, "leaseDurationMs": lease,
        });
        serde_json::from_value(lock).expect("a lock")
    }

    #[tokio::test(start_paused = true)]
    async fn observations_follow_the_vectors() {
        let key = LockKey::from("Moe");
        for case in cases("observations.json", "observe") {
            let (mut observations, start) = (Observations::new(MARGIN), Instant::now());
            for step in case["steps"].as_array().expect("steps") {
                advance(ms(&step["atMs"]).checked_sub(start.elapsed()).unwrap()).await;
                match step["do"].as_str().expect("a step") {
                    "seen" => {
                        let lock = lock(&step["version"], &step["leaseMs"]);
                        observations.observe(&key, &lock, Instant::now());
                    }
                    "forget" => observations.forget(&key),
                    "ask" => assert_eq!(json!(observations.stale(&key)), step["stale"], "{} {step}", case["name"]),
                    other => panic!("no such step: {other}"),
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn saved_observations_follow_the_vectors() {
        for case in cases("observations.json", "saved") {
            let given = &case["given"];
            let mut observations = Observations::new(ms(&given["marginMs"]));
            let now = i64::try_from(millis(since_epoch())).expect("a sane clock");
            let first_seen = now - given["ageMs"].as_i64().expect("an age");
            observations.load([SavedObservation {
                key: "Moe".into(),
                sort_key: None,
                record_version_number: "v1".into(),
                lease_duration_ms: given["leaseMs"].as_u64().expect("a lease"),
                first_seen_epoch_ms: u64::try_from(first_seen).expect("since the epoch"),
            }]);
            advance(ms(&given["afterMs"])).await;
            assert_eq!(json!(observations.stale(&"Moe".into()).is_some()), case["expect"], "{}", case["name"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn loaded_observation_replaces_a_younger_one_only() {
        for (version, age_ms, expected) in [
            ("v1", 1500, ("v1", Duration::from_millis(1500))),
            ("v1", 500, ("v1", Duration::ZERO)),
            ("v2", 9000, ("v1", Duration::ZERO)),
        ] {
            let (key, mut observations) = (LockKey::from("Moe"), Observations::new(MARGIN));
            observations.observe(&key, &lock(&json!("v1"), &json!(1000)), Instant::now());
            advance(Duration::from_millis(100)).await;
            observations.load([SavedObservation {
                key: "Moe".into(),
                sort_key: None,
                record_version_number: version.into(),
                lease_duration_ms: 1000,
                first_seen_epoch_ms: millis(since_epoch()) - age_ms,
            }]);
            let seen = observations.seen.peek(&key).expect("an observation");
            // The wall clock goes on between the two looks at it.
            let seen_before = Duration::from_millis(millis(seen.seen_before) / 500 * 500);
            assert_eq!((seen.rvn.as_str(), seen_before), expected, "{version}, seen {age_ms} ms ago");
        }
    }

    #[test]
    fn saving_follows_the_vectors() {
        for case in cases("observations.json", "save") {
            let saved = first_seen_epoch_ms(ms(&case["given"]["epochMs"]), ms(&case["given"]["seenAgoMs"]));
            assert_eq!(json!(saved), case["expect"], "{}", case["name"]);
        }
    }
}
