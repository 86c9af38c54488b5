//! The patience of a waiter, after which it marks the lock. Rule C4.

use std::time::Duration;

use leasehold_wire::{Lock, WantRequest};

use crate::clock::{Instant, chance};
use crate::timing::mark_pause;
use crate::{Client, LockKey};

/// The largest row that a waiter marks, in bytes of its payload and attributes: a write is billed by the row's size.
const MAX_MARKED_BYTES: usize = 4 * 1024;

/// The time for which a waiter waits before it marks the lock, and the holder that it marked.
pub(crate) struct Patience<'a> {
    client: &'a Client,
    key: &'a LockKey,
    owner_name: String,
    ends: Instant,
    /// The fencing token of the last holder whose lock the waiter marked.
    marked: Option<u64>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(client: &'a Client, key: &'a LockKey, owner_name: String) -> Self {
        Self { client, key, owner_name, ends: Instant::now() + mark_pause(chance()), marked: None }
    }

    /// The time until the waiter marks this lock.
    pub(crate) fn left(&self, lock: &Lock) -> Duration {
        if self.may_mark(lock) { self.ends.saturating_duration_since(Instant::now()) } else { Duration::MAX }
    }

    /// Marks the lock, once for each holder, if the patience is over.
    pub(crate) fn saw(&mut self, lock: &Lock) {
        if self.left(lock).is_zero() {
            self.marked = lock.fencing_token;
            let LockKey { key, sort_key } = self.key.clone();
            self.client.want(WantRequest { key, sort_key, owner_name: self.owner_name.clone() });
        }
    }

    fn may_mark(&self, lock: &Lock) -> bool {
        let is_small = bytes(lock) <= MAX_MARKED_BYTES;
        is_small && lock.wanted_by.is_none() && lock.fencing_token != self.marked && !self.client.holds(self.key)
    }
}

/// The size of what the lock's owner chose.
fn bytes(lock: &Lock) -> usize {
    let data = lock.data.as_deref().or(lock.data_base64.as_deref()).map_or(0, str::len);
    data + serde_json::to_string(&lock.attributes).map_or(0, |json| json.len())
}
