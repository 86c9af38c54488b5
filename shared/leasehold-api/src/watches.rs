//! Watches: requests that wait until a lock changes.
//!
//! A watch is a hint. Each watch begins with a read of its own, so that its answer is never older than the request.
//! After that, all watches of a key share one reader. The reader reads when this service has written the key, and at
//! intervals for the writes of others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_protocol::{Error, LockKey, LockTable, Record};
use leasehold_wire::Problem;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// The pause between two reads of a key that this service does not write. It bounds the cost of a watched key.
const READ_INTERVAL: Duration = Duration::from_millis(500);

/// The result of a reader's last read.
type Found = Result<Option<Record>, Problem>;

/// The watched keys.
pub(crate) struct Watches {
    topics: Mutex<HashMap<LockKey, Topic>>,
    closed: watch::Sender<bool>,
}

struct Topic {
    written: Arc<Notify>,
    found: watch::Sender<Found>,
}

impl Default for Watches {
    fn default() -> Self {
        Self { topics: Mutex::default(), closed: watch::Sender::new(false) }
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watches")
    }
}

impl Watches {
    /// Wakes the reader of this key.
    pub(crate) fn written(&self, key: &LockKey) {
        if let Some(topic) = self.lock().get(key) {
            topic.written.notify_one();
        }
    }

    /// Ends all current and future watches.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Returns when the watches have ended.
    pub(crate) async fn closed(&self) {
        // The sender lives as long as `self`.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Subscribes to this key. `report` turns a failure into the problem for the callers.
    pub(crate) fn follow(
        self: &Arc<Self>,
        table: &LockTable,
        key: &LockKey,
        report: fn(&Error) -> Problem,
    ) -> watch::Receiver<Found> {
        let mut topics = self.lock();
        if let Some(topic) = topics.get(key) {
            return topic.found.subscribe();
        }
        let (found, receiver) = watch::channel(Ok(None));
        let written = Arc::<Notify>::default();
        topics.insert(key.clone(), Topic { written: Arc::clone(&written), found: found.clone() });
        let reader =
            Reader { watches: Arc::clone(self), table: table.clone(), key: key.clone(), written, found, report };
        tokio::spawn(reader.run());
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Topic>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one key for all of its watches, and ends with the last of them.
struct Reader {
    watches: Arc<Watches>,
    table: LockTable,
    key: LockKey,
    written: Arc<Notify>,
    found: watch::Sender<Found>,
    report: fn(&Error) -> Problem,
}

impl Reader {
    async fn run(self) {
        loop {
            // The reader goes on after a write, at the end of the last watch, or after the interval.
            let _ = timeout(READ_INTERVAL, async {
                tokio::select! {
                    () = self.written.notified() => {}
                    () = self.found.closed() => {}
                }
            })
            .await;
            if self.ends() {
                return;
            }
            let found = self.table.read(&self.key).await.map_err(|error| (self.report)(&error));
            drop(self.found.send_replace(found));
        }
    }

    /// Whether the key has no more watches. Holds the lock, so that no watch begins meanwhile.
    fn ends(&self) -> bool {
        let mut topics = self.watches.lock();
        let is_unwatched = self.found.receiver_count() == 0;
        if is_unwatched {
            topics.remove(&self.key);
        }
        is_unwatched
    }
}
