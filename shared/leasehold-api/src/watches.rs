//! Watches: requests that wait until a lock changes.
//!
//! A watch is a hint. Each watch begins with a read of its own, so that its answer is never older than the request.
//! After that, all watches of a key share one reader. The reader reads when this service has written the key, and at
//! intervals for the writes of others.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_protocol::{Error, LockKey, LockTable, Record};
use leasehold_wire::Problem;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// The pause between two reads of a key that this service does not write. It bounds the cost of a watched key.
const READ_INTERVAL: Duration = Duration::from_millis(500);

/// The result of a read.
type Found = Result<Option<Record>, Problem>;

/// The watched keys.
pub(crate) struct Watches {
    topics: Mutex<HashMap<LockKey, Topic>>,
    closed: watch::Sender<bool>,
}

struct Topic {
    written: Arc<Notify>,
    last: watch::Sender<Read>,
    /// The number of reads that have begun.
    begun: Arc<AtomicU64>,
}

/// The last read of a reader.
struct Read {
    /// Its number among the reads of the key.
    number: u64,
    found: Found,
}

/// A watch's view of the reader of its key.
pub(crate) struct Following {
    last: watch::Receiver<Read>,
    /// The number of reads that had begun before.
    begun_before: u64,
}

impl Following {
    /// Returns the next read that began after the watch. A read that began before may show an older row.
    pub(crate) async fn next(&mut self) -> Option<Found> {
        let is_new = |read: &Read| read.number > self.begun_before;
        loop {
            self.last.changed().await.ok()?;
            let read = self.last.borrow_and_update();
            if is_new(&read) {
                return Some(read.found.clone());
            }
        }
    }
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
    ) -> Following {
        let mut topics = self.lock();
        if let Some(topic) = topics.get(key) {
            let begun_before = topic.begun.load(Ordering::SeqCst);
            return Following { last: topic.last.subscribe(), begun_before };
        }
        let (last, receiver) = watch::channel(Read { number: 0, found: Ok(None) });
        let (written, begun) = (Arc::<Notify>::default(), Arc::<AtomicU64>::default());
        let topic = Topic { written: Arc::clone(&written), last: last.clone(), begun: Arc::clone(&begun) };
        topics.insert(key.clone(), topic);
        let (watches, table, key) = (Arc::clone(self), table.clone(), key.clone());
        tokio::spawn(Reader { watches, table, key, written, last, begun, report }.run());
        Following { last: receiver, begun_before: 0 }
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
    last: watch::Sender<Read>,
    begun: Arc<AtomicU64>,
    report: fn(&Error) -> Problem,
}

impl Reader {
    async fn run(self) {
        loop {
            // The reader goes on after a write, at the end of the last watch, or after the interval.
            let _ = timeout(READ_INTERVAL, async {
                tokio::select! {
                    () = self.written.notified() => {}
                    () = self.last.closed() => {}
                }
            })
            .await;
            if self.ends() {
                return;
            }
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let found = self.table.read(&self.key).await.map_err(|error| (self.report)(&error));
            drop(self.last.send_replace(Read { number, found }));
        }
    }

    /// Whether the key has no more watches. Holds the lock, so that no watch begins meanwhile.
    fn ends(&self) -> bool {
        let mut topics = self.watches.lock();
        let is_unwatched = self.last.receiver_count() == 0;
        if is_unwatched {
            topics.remove(&self.key);
        }
        is_unwatched
    }
}
