//! The agent: all locks of this machine's processes, the period in which they are held, and the freezes of the machine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_client::wire::{Problem, ProblemType, Staleness};
use leasehold_client::{
    Acquisition, Client, ErrorKind, Heartbeats, LockKey, LockRequest, PermitRequest, Release, Wait,
};
use tokio::sync::watch;
use tokio::time::{Instant, interval, timeout, timeout_at};

use crate::lock::{Grant, Lock, Parts, Terms};
use crate::refusal::Refusal;
use crate::time::{Deadline, Period, since_boot};

/// The lease of a request that names none: the client's default.
const DEFAULT_LEASE: Duration = Duration::from_secs(20);
/// The time between two signs of life of this process.
const PULSE: Duration = Duration::from_millis(250);
/// The time without a sign of life after which the machine counts as frozen.
const FROZEN: Duration = Duration::from_secs(1);
/// The time for which a request waits for the invocation that it belongs to: Lambda tells the function first, at times.
const INVOCATION_WAIT: Duration = Duration::from_secs(2);

/// A request for a lock, or for permits.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) key: LockKey,
    pub(crate) lease: Option<Duration>,
    pub(crate) wait: Patience,
    pub(crate) permits: Option<u64>,
    pub(crate) capacity: Option<u64>,
    pub(crate) occurrence: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) staleness: Staleness,
    pub(crate) keep: bool,
}

/// The time for which a request waits for a lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    AtMost(Duration),
    /// Until the deadline of the invocation, less the lease.
    Invocation,
}

/// All locks that are held here.
pub(crate) struct Agent {
    client: Client,
    margin: Duration,
    held: Mutex<Held>,
    period: watch::Sender<Period>,
    /// The number of freezes that were noticed.
    thaws: watch::Sender<u64>,
    /// The last sign of life.
    pulse: Mutex<Duration>,
    was_reached: AtomicBool,
}

#[derive(Default)]
struct Held {
    locks: HashMap<String, Arc<Lock>>,
    invocations: u64,
}

impl Agent {
    pub(crate) fn new(client: Client, margin: Duration, period: Period) -> Arc<Self> {
        Arc::new(Self {
            client,
            margin,
            held: Mutex::default(),
            period: watch::Sender::new(period),
            thaws: watch::Sender::new(0),
            pulse: Mutex::new(since_boot()),
            was_reached: AtomicBool::new(false),
        })
    }

    /// Notices freezes, for as long as the process lives.
    pub(crate) async fn watch_freezes(&self) {
        let mut pulse = interval(PULSE);
        loop {
            pulse.tick().await;
            self.look();
        }
    }

    /// Looks for a freeze since the last sign of life. Returns the number of freezes so far.
    pub(crate) fn look(&self) -> u64 {
        let mut pulse = self.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let now = since_boot();
        let was_frozen = now.saturating_sub(*pulse) > FROZEN;
        *pulse = now;
        self.thaws.send_if_modified(|thaws| {
            *thaws += u64::from(was_frozen);
            was_frozen
        });
        *self.thaws.borrow()
    }

    pub(crate) fn thaws(&self) -> watch::Receiver<u64> {
        self.thaws.subscribe()
    }

    /// Begins an invocation. The sandbox was frozen before it: nothing that was kept is believed in.
    pub(crate) fn begin(&self, deadline: Instant) -> Deadline {
        let deadline = Deadline::new(deadline, self.margin);
        let mut held = self.held();
        held.invocations += 1;
        self.thaws.send_modify(|thaws| *thaws += 1);
        self.period.send_replace(Period::Invocation(held.invocations, deadline));
        deadline
    }

    /// Ends the invocation, and releases its locks. Returns when nothing is under way, or after `limit`.
    pub(crate) async fn end(&self, limit: Duration) {
        self.leave(Period::Between, "invocation-ended", |lock| !lock.keep, limit).await;
    }

    /// Releases all locks, and refuses further ones. Returns whether none is left to its lease.
    pub(crate) async fn close(&self, limit: Duration) -> bool {
        self.leave(Period::Over, "shutdown", |_| true, limit).await
    }

    async fn leave(&self, next: Period, reason: &'static str, which: impl Fn(&Lock) -> bool, limit: Duration) -> bool {
        let leaving: Vec<_> = {
            // A lock that is granted from now on is not taken up.
            let held = self.held();
            self.period.send_replace(next);
            held.locks.values().filter(|lock| which(lock)).cloned().collect()
        };
        let release = async |lock: &Arc<Lock>| {
            lock.lose(reason);
            match lock.release(Release::new()).await {
                Some(Err(error)) if !matches!(error.kind(), ErrorKind::Lost(_)) => {
                    let key = &lock.key;
                    tracing::warn!(%key, %error, "a lock could not be released, and is free after its lease");
                    false
                }
                _ => true,
            }
        };
        let released = async {
            let all = join_all(leaving.iter().map(release)).await;
            self.client.settled().await;
            all.into_iter().all(|is_released| is_released)
        };
        timeout(limit, released).await.unwrap_or_else(|_| {
            let unanswered = leaving.iter().filter(|lock| !lock.view().is_over);
            let keys: Vec<_> = unanswered.map(|lock| lock.key.to_string()).collect();
            tracing::warn!(?keys, "no answer to a release in time: these locks are free after their leases");
            false
        })
    }

    /// Acquires a lock, and holds it.
    ///
    /// # Errors
    /// The answer to the caller.
    pub(crate) async fn acquire(self: &Arc<Self>, ask: Ask) -> Result<Arc<Lock>, Refusal> {
        let period = self.present().await?;
        let deadline = period.deadline();
        let believed = self.look();
        let asked = ask.lease.unwrap_or(DEFAULT_LEASE);
        if deadline.is_some_and(|deadline| deadline.left().is_zero()) {
            return Err(Problem::invalid("wait", "The invocation is about to end: no time for any work.").into());
        }
        // A lock that is kept has its lease for the time of the freeze.
        let deadline = deadline.filter(|_| !ask.keep);
        let lease = deadline.map_or(asked, |deadline| deadline.cut(asked));
        let wait = patience(ask.wait, period.deadline(), lease)?;
        let mut periods = self.period.subscribe();
        let grant = tokio::select! {
            biased;
            grant = self.ask(&ask, lease, wait) => grant?,
            _ = periods.wait_for(|now| *now != period) => return Err(ended()),
        };
        let held = self.held();
        if *self.period.borrow() != period {
            // Dropping the grant gives it back.
            return Err(ended());
        }
        let parts = |_: &_| Parts { handle: fresh_handle(), occurrence: ask.occurrence.clone(), keep: ask.keep };
        let lock = Lock::hold(self, parts, grant, Terms { lease: asked, deadline }, believed);
        let mut held = held;
        held.locks.insert(lock.handle.clone(), Arc::clone(&lock));
        Ok(lock)
    }

    async fn ask(&self, ask: &Ask, lease: Duration, wait: Duration) -> Result<Grant, Refusal> {
        let granted = if ask.permits.is_some() || ask.capacity.is_some() {
            self.ask_for_permits(ask, lease, wait).await
        } else {
            self.ask_for_lock(ask, lease, wait).await
        };
        let reached = granted.as_ref().map_or_else(Refusal::is_of_service, |_| true);
        self.was_reached.fetch_or(reached, Ordering::Relaxed);
        granted
    }

    async fn ask_for_lock(&self, ask: &Ask, lease: Duration, wait: Duration) -> Result<Grant, Refusal> {
        let mut request = LockRequest::new(ask.key.clone()).lease(lease).heartbeats(Heartbeats::Manual);
        if let Some(occurrence) = &ask.occurrence {
            request = request.occurrence(occurrence);
        }
        if let Some(data) = &ask.data {
            request = request.data(data.as_str());
        }
        if ask.staleness == Staleness::Clock {
            request = request.stale_by_clock();
        }
        let acquired = if wait.is_zero() {
            self.client.try_acquire(request).await?
        } else {
            self.client.acquire(request.wait(Wait::AtMost(wait))).await?
        };
        match acquired {
            Acquisition::Granted(guard) => Ok(Grant::Lock(guard)),
            Acquisition::Held(held) => Err(Refusal::Held(held.lock)),
        }
    }

    async fn ask_for_permits(&self, ask: &Ask, lease: Duration, wait: Duration) -> Result<Grant, Refusal> {
        if ask.occurrence.is_some() {
            return Err(Problem::invalid("occurrence", "A semaphore has no occurrences.").into());
        }
        let Some(capacity) = ask.capacity else {
            return Err(Problem::invalid("capacity", "Name the capacity of the semaphore.").into());
        };
        let mut request = PermitRequest::new().lease(lease).heartbeats(Heartbeats::Manual);
        request = request.permits(ask.permits.unwrap_or(1));
        if let Some(data) = &ask.data {
            request = request.data(data.as_str());
        }
        if ask.staleness == Staleness::Clock {
            request = request.stale_by_clock();
        }
        let semaphore = self.client.semaphore(ask.key.clone(), capacity);
        let acquired = if wait.is_zero() {
            semaphore.try_acquire(request).await?
        } else {
            semaphore.acquire(request.wait(Wait::AtMost(wait))).await?
        };
        match acquired {
            Acquisition::Granted(guard) => Ok(Grant::Permits(guard)),
            Acquisition::Held(held) => Err(Refusal::Held(held.lock)),
        }
    }

    /// The present period. Waits for an invocation, which the function may know of before the agent does.
    async fn present(&self) -> Result<Period, Refusal> {
        let until = Instant::now() + INVOCATION_WAIT;
        let mut periods = self.period.subscribe();
        match timeout_at(until, periods.wait_for(|period| *period != Period::Between)).await {
            Ok(Ok(period)) if *period != Period::Over => Ok(*period),
            _ => Err(ended()),
        }
    }

    /// The lock of this handle.
    pub(crate) fn lock(&self, handle: &str) -> Option<Arc<Lock>> {
        self.held().locks.get(handle).cloned()
    }

    /// All locks, by their keys.
    pub(crate) fn locks(&self) -> Vec<Arc<Lock>> {
        let mut locks: Vec<_> = self.held().locks.values().cloned().collect();
        locks.sort_by(|one, other| (&one.key.key, &one.key.sort_key).cmp(&(&other.key.key, &other.key.sort_key)));
        locks
    }

    pub(crate) fn forget(&self, handle: &str) {
        self.held().locks.remove(handle);
    }

    /// Whether the service was reached, by now.
    ///
    /// # Errors
    /// The failure of a request to it.
    pub(crate) async fn health(&self) -> Result<(), Refusal> {
        if !self.was_reached.load(Ordering::Relaxed) {
            self.client.health().await?;
            self.was_reached.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn patience(wait: Patience, deadline: Option<Deadline>, lease: Duration) -> Result<Duration, Refusal> {
    match (wait, deadline) {
        (Patience::AtMost(wait), None) => Ok(wait),
        (Patience::AtMost(wait), Some(deadline)) => Ok(wait.min(deadline.left())),
        (Patience::Invocation, Some(deadline)) => Ok(deadline.left().saturating_sub(lease)),
        (Patience::Invocation, None) => {
            Err(Problem::invalid("wait", "There is no invocation: name a duration.").into())
        }
    }
}

fn ended() -> Refusal {
    Problem::new(ProblemType::Unavailable, "There is no invocation that the lock could belong to, or it ended.").into()
}

/// A random name, which proves nothing to the service.
#[allow(clippy::disallowed_methods, reason = "a name, of which nothing depends")]
fn fresh_handle() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
