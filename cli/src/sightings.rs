//! Signs of life, as far as this process saw them.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_client::wire::{Lock, LockState};
use leasehold_client::{LockKey, Observation};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::duration::show;

/// A silence that is too short to be one.
const ALIVE: Duration = Duration::from_secs(1);

/// A holder of a lock, a holder of permits, or a ticket of a queue.
pub(crate) struct Life<'a> {
    /// Its id; empty for the holder of a plain lock.
    pub(crate) id: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) version: &'a str,
    lease: Duration,
}

/// Returns the entries of a row that heartbeat: its holder, or its holders and tickets.
pub(crate) fn lives(lock: &Lock) -> Vec<Life<'_>> {
    let life = |id, owner, version, lease_ms| Life { id, owner, version, lease: Duration::from_millis(lease_ms) };
    match &lock.semaphore {
        Some(semaphore) => {
            let holders = semaphore
                .holders
                .iter()
                .map(|entry| life(&entry.holder_id, &entry.owner_name, &entry.version, entry.lease_duration_ms));
            let tickets = semaphore
                .queue
                .iter()
                .map(|entry| life(&entry.ticket_id, &entry.owner_name, &entry.version, entry.lease_duration_ms));
            holders.chain(tickets).collect()
        }
        None if lock.state == LockState::Held => {
            vec![life("", &lock.owner_name, &lock.record_version_number, lock.lease_duration_ms)]
        }
        None => Vec::new(),
    }
}

/// The versions that this process saw, and since when.
#[derive(Debug, Default)]
pub(crate) struct Sightings(HashMap<(LockKey, String), Observation>);

impl Sightings {
    /// Takes note of a row that arrived just now.
    pub(crate) fn see(&mut self, lock: &Lock) {
        let now = Instant::now();
        for life in lives(lock) {
            let fresh = Observation::start(life.version, life.lease, now);
            let known = self.0.entry((key_of(lock), life.id.to_owned())).or_insert_with(|| fresh.clone());
            if !known.is_of_same(&fresh) {
                *known = fresh;
            }
        }
    }

    /// Returns the observation of the entry with this id.
    pub(crate) fn of(&self, lock: &Lock, id: &str) -> Option<&Observation> {
        self.0.get(&(key_of(lock), id.to_owned()))
    }

    /// Returns the silence of the entry with this id, in words.
    pub(crate) fn words(&self, lock: &Lock, id: &str) -> String {
        match self.of(lock, id) {
            None => "-".to_owned(),
            Some(seen) if seen.stale_in().is_zero() => format!("{}, stale", seconds(seen.age())),
            Some(seen) if seen.age() < ALIVE => "alive".to_owned(),
            Some(seen) => seconds(seen.age()),
        }
    }

    /// Returns the row as JSON, with the silence of each entry.
    pub(crate) fn json(&self, lock: &Lock) -> Value {
        let mut row = json!(lock);
        let silence = |entry: &mut Value, id: &str| {
            if let Some(seen) = self.of(lock, id) {
                entry["silentMs"] = json!(u64::try_from(seen.age().as_millis()).unwrap_or(u64::MAX));
                entry["stale"] = json!(seen.stale_in().is_zero());
            }
        };
        if lock.semaphore.is_none() {
            silence(&mut row, "");
        }
        for (list, id) in [("holders", "holderId"), ("queue", "ticketId")] {
            for entry in row.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let id = entry[id].as_str().unwrap_or_default().to_owned();
                silence(entry, &id);
            }
        }
        row
    }
}

fn key_of(lock: &Lock) -> LockKey {
    LockKey { key: lock.key.clone(), sort_key: lock.sort_key.clone() }
}

/// To the second.
pub(crate) fn seconds(duration: Duration) -> String {
    show(Duration::from_secs(duration.as_secs()))
}
