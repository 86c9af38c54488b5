//! The budget of connections, for all ports of the process together.
//!
//! Each connection takes a file descriptor and some memory. When the budget is spent, a connection that waits for its
//! client makes room for a new one: the one that has waited the longest. A connection whose request is being carried
//! out never goes. So idle and slow clients keep nobody out.
//!
//! A crowd that connects and asks for nothing would take the connections of the holders between two heartbeats. Where
//! the service owes an answer to more than half of its connections, one of those goes, and the newcomer waits for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Most connections at a time.
const CONNECTIONS: usize = 1024;
/// Descriptors for all else: the database with its companions, ports, certificates, a listing of a folder.
const OTHER_DESCRIPTORS: usize = 64;
/// Shortest time for which a connection waits for its client: its first request must arrive, or its answer leave.
const GRACE: Duration = Duration::from_millis(250);
/// Longest pause between two looks for a connection that may go.
const PAUSE: Duration = Duration::from_millis(50);

/// The places of this process.
pub(crate) static PLACES: LazyLock<Places> = LazyLock::new(|| Places::new(limit()));

/// The connections that are open.
#[derive(Debug)]
pub(crate) struct Places {
    limit: usize,
    begun: Instant,
    open: Mutex<Open>,
    /// Told when a connection has ended.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    connections: HashMap<u64, Arc<Connection>>,
}

/// The state of one connection.
#[derive(Debug)]
struct Connection {
    /// The milliseconds since the start at which the connection began to wait for its client; `BUSY` during the work.
    waits_since: AtomicU64,
    /// Whether the client has yet to send the head of its next request.
    awaits_head: AtomicBool,
    /// Whether a request has come.
    has_worked: AtomicBool,
    /// Whether the service has accepted the sender of a request, by its token or without.
    is_accepted: AtomicBool,
    /// Whether its last answer has been written: it may go at once.
    is_idle: AtomicBool,
    evicted: Notify,
}

const BUSY: u64 = u64::MAX;

/// The place of one connection, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: &'static Places,
    number: u64,
    connection: Arc<Connection>,
}

/// The number of connections for which there are descriptors.
fn limit() -> usize {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(CONNECTIONS as u64, |(soft, _)| soft);
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    // With very few descriptors, half of them are for connections.
    descriptors.saturating_sub(OTHER_DESCRIPTORS).max(descriptors / 2).clamp(1, CONNECTIONS)
}

impl Places {
    fn new(limit: usize) -> Self {
        Self { limit, begun: Instant::now(), open: Mutex::default(), freed: Notify::new() }
    }

    /// Most connections at a time.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Waits for a place. Where all are taken, the connection that has waited the longest for its client is closed.
    pub(crate) async fn take(&'static self) -> Place {
        loop {
            if let Some(place) = self.take_free() {
                return place;
            }
            self.make_room().await;
        }
    }

    /// Closes a connection that waits for its client, and returns when a connection has ended, or after a pause.
    pub(crate) async fn make_room(&self) {
        let freed = self.freed.notified();
        self.evict();
        // Where every connection is busy, the next look may find one that is not.
        let _ = timeout(PAUSE, freed).await;
    }

    fn take_free(&'static self) -> Option<Place> {
        let mut open = self.open();
        if open.connections.len() >= self.limit {
            return None;
        }
        open.last += 1;
        let number = open.last;
        let connection = Arc::new(Connection {
            waits_since: AtomicU64::new(self.now()),
            awaits_head: AtomicBool::new(true),
            has_worked: AtomicBool::new(false),
            is_accepted: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            evicted: Notify::new(),
        });
        open.connections.insert(number, Arc::clone(&connection));
        Some(Place { places: self, number, connection })
    }

    fn evict(&self) {
        let now = self.now();
        let grace = u64::try_from(GRACE.as_millis()).unwrap_or(u64::MAX);
        let open = self.open();
        let waiting = open.connections.values().filter(|connection| connection.waits_since() != BUSY);
        let is_crowded = waiting.clone().filter(|connection| !connection.rests()).count() > self.limit / 2;
        let may_go = waiting.filter(|connection| {
            let has_waited = now.saturating_sub(connection.waits_since()) >= grace;
            (has_waited || connection.is_idle.load(Ordering::Relaxed)) && !(is_crowded && connection.rests())
        });
        if let Some(connection) = may_go.min_by_key(|connection| connection.waits_since()) {
            connection.evicted.notify_one();
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(BUSY - 1)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    fn waits_since(&self) -> u64 {
        self.waits_since.load(Ordering::Relaxed)
    }

    /// Whether a client that the service has accepted keeps it for its next request.
    fn rests(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed) && self.is_accepted.load(Ordering::Relaxed)
    }
}

impl Place {
    /// Returns when the connection must end, to make room.
    pub(crate) async fn evicted(&self) {
        self.connection.evicted.notified().await;
    }

    /// The work for the client begins: the connection stays until the work ends.
    pub(crate) fn work(&self) {
        self.connection.awaits_head.store(false, Ordering::Relaxed);
        self.connection.has_worked.store(true, Ordering::Relaxed);
        self.connection.is_idle.store(false, Ordering::Relaxed);
        self.connection.waits_since.store(BUSY, Ordering::Relaxed);
    }

    /// The service has accepted the sender of a request.
    pub(crate) fn accepted(&self) {
        self.connection.is_accepted.store(true, Ordering::Relaxed);
    }

    /// The service waits for the client: for a body, for its next request, or until it reads its answer.
    pub(crate) fn wait(&self) {
        self.connection.waits_since.store(self.places.now(), Ordering::Relaxed);
    }

    /// An answer is ready: the service waits for the client to read it, and for the next request.
    pub(crate) fn answered(&self) {
        self.connection.awaits_head.store(true, Ordering::Relaxed);
        self.wait();
    }

    /// All that was ready has been written.
    pub(crate) fn flushed(&self) {
        let has_answered = self.awaits_head() && self.connection.has_worked.load(Ordering::Relaxed);
        self.connection.is_idle.store(has_answered, Ordering::Relaxed);
    }

    /// Returns whether the client has yet to send the head of its next request.
    pub(crate) fn awaits_head(&self) -> bool {
        self.connection.awaits_head.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.open().connections.remove(&self.number);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::time::{advance, timeout};

    use super::*;

    fn places(limit: usize) -> &'static Places {
        Box::leak(Box::new(Places::new(limit)))
    }

    async fn is_evicted(place: &Place) -> bool {
        timeout(Duration::ZERO, place.evicted()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_waiting_connection_makes_room() {
        let places = places(3);
        let (busy, old, young) = (places.take().await, places.take().await, places.take().await);
        busy.work();
        for place in [&old, &young] {
            place.work();
            place.answered();
            place.flushed();
            advance(Duration::from_millis(10)).await;
        }
        let newcomer = tokio::spawn(places.take());
        old.evicted().await;
        assert!(!is_evicted(&busy).await && !is_evicted(&young).await);
        drop(old);
        let _newcomer = newcomer.await.expect("a place");
        assert_eq!(places.open().connections.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn crowd_makes_room_for_itself() {
        let places = places(10);
        let answered = async |is_accepted: bool| {
            let place = places.take().await;
            place.work();
            if is_accepted {
                place.accepted();
            }
            place.answered();
            place.flushed();
            place
        };
        let (holders, refused) = ([answered(true).await, answered(true).await], answered(false).await);
        let mut crowd = VecDeque::new();
        while crowd.len() < 7 {
            crowd.push_back(places.take().await);
            advance(Duration::from_millis(1)).await;
        }
        let newcomer = tokio::spawn(places.take());
        refused.evicted().await;
        drop(refused);
        crowd.push_back(newcomer.await.expect("a place"));
        for _ in 0..50 {
            let newcomer = tokio::spawn(places.take());
            crowd[0].evicted().await;
            drop(crowd.pop_front());
            crowd.push_back(newcomer.await.expect("a place"));
            advance(Duration::from_millis(1)).await;
        }
        assert!(!is_evicted(&holders[0]).await && !is_evicted(&holders[1]).await);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_stays_until_its_first_request_arrived() {
        let places = places(1);
        let fresh = places.take().await;
        let started = Instant::now();
        let newcomer = tokio::spawn(places.take());
        fresh.evicted().await;
        assert!(started.elapsed() >= GRACE);
        drop(fresh);
        newcomer.await.expect("a place");
    }

    #[tokio::test(start_paused = true)]
    async fn newcomer_waits_when_all_are_busy() {
        let places = places(1);
        let busy = places.take().await;
        busy.work();
        let newcomer = tokio::spawn(places.take());
        assert!(timeout(GRACE * 10, busy.evicted()).await.is_err());
        busy.answered();
        assert!(timeout(PAUSE * 2, busy.evicted()).await.is_err(), "its answer is not written yet");
        busy.flushed();
        busy.evicted().await;
        drop(busy);
        newcomer.await.expect("a place");
    }
}
