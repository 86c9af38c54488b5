//! The lock of an invocation: its belief ends with a freeze, until a heartbeat was answered.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_wire::AcquireOutcome;
use tokio::time::{sleep_until, timeout};

use super::{Deadline, SHORTEST_PAUSE};
use crate::clock::Instant;
use crate::timing::heartbeat_interval;
use crate::{Error, Guard, Heartbeat, LockKey, Loss};

/// The time between two signs of life of the process.
const PULSE: Duration = Duration::from_millis(250);
/// The time without a sign of life after which the process counts as frozen.
const FROZEN: Duration = Duration::from_secs(1);

/// The lock of an invocation. Hand [`InvocationGuard::fencing_token`] to each resource that the work writes to.
///
/// The layer sends heartbeats, whose leases never outlast the invocation by more than the margin, and releases the
/// lock. After a freeze of the sandbox, and after a second in which the handler did not await anything, the guard
/// believes in nothing until a heartbeat was answered.
pub struct InvocationGuard {
    guard: Guard,
    deadline: Deadline,
    lease: Duration,
    pulse: Mutex<Pulse>,
}

/// The signs of life of the process.
#[derive(Debug)]
struct Pulse {
    last: Instant,
    freezes: u64,
    /// The number of freezes before the last answered heartbeat was sent.
    believed: u64,
}

impl InvocationGuard {
    pub(super) fn new(guard: Guard, deadline: Deadline, lease: Duration) -> Self {
        let pulse = Pulse { last: Instant::now(), freezes: 0, believed: 0 };
        Self { guard, deadline, lease, pulse: Mutex::new(pulse) }
    }

    /// The guard without the belief.
    pub(super) fn inner(&self) -> &Guard {
        &self.guard
    }

    /// Returns the lock's key.
    pub fn key(&self) -> &LockKey {
        self.guard.key()
    }

    /// Returns the fencing token, which is higher than every token granted for this key before.
    pub fn fencing_token(&self) -> u64 {
        self.guard.fencing_token()
    }

    /// Returns the outcome of the acquisition.
    pub fn outcome(&self) -> Option<AcquireOutcome> {
        self.guard.outcome()
    }

    /// Returns the previous owner of the lock.
    pub fn previous_owner_name(&self) -> Option<&str> {
        self.guard.previous_owner_name()
    }

    /// Returns the payload at the time of the grant.
    pub fn data(&self) -> Option<&[u8]> {
        self.guard.data()
    }

    /// Whether the work may go on. False after a freeze, until a heartbeat was answered.
    pub fn valid(&self) -> bool {
        !self.is_doubtful() && self.guard.valid()
    }

    /// Returns the time for which nobody else can take the lock over. Zero where [`InvocationGuard::valid`] is false.
    pub fn remaining(&self) -> Duration {
        if self.valid() { self.guard.remaining() } else { Duration::ZERO }
    }

    /// Checks that the work may go on. Sends nothing, but after a freeze a heartbeat.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`]; the last failure to reach the service, after the lease ran out.
    pub async fn ensure_held(&self) -> Result<(), Error> {
        while self.is_doubtful() {
            self.renew().await?;
        }
        self.guard.ensure_held()
    }

    /// Renews the lease now.
    ///
    /// # Errors
    /// As [`Guard::renew`].
    pub async fn renew(&self) -> Result<(), Error> {
        let freezes = self.look().freezes;
        self.guard.renew_with(Heartbeat::new().lease(self.deadline.cut(self.lease))).await?;
        let mut pulse = self.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        pulse.believed = pulse.believed.max(freezes);
        Ok(())
    }

    /// Returns the loss of the lock, if there was one.
    pub fn loss(&self) -> Option<Loss> {
        self.guard.loss()
    }

    /// Resolves when the lock is lost; with `None` after its release.
    pub fn lost(&self) -> impl Future<Output = Option<Loss>> + Send + use<> {
        self.guard.lost()
    }

    /// Whether somebody waits for the lock, as far as a heartbeat has told.
    pub fn is_wanted(&self) -> bool {
        self.guard.is_wanted()
    }

    /// Resolves when a heartbeat tells that somebody waits for the lock, or when the lock is released or lost.
    pub fn wanted(&self) -> impl Future<Output = ()> + Send + use<> {
        self.guard.wanted()
    }

    /// Sends heartbeats, and at once after a freeze.
    pub(super) async fn keep_up(&self) -> Infallible {
        let mut due = Instant::now();
        // After a wait, the lease was asked for when more of the invocation remained.
        if self.guard.remaining() <= self.deadline.cut(self.lease) {
            due += self.pause();
        }
        loop {
            sleep_until(due.min(Instant::now() + PULSE)).await;
            if !self.is_doubtful() && Instant::now() < due {
                continue;
            }
            let lease = self.deadline.cut(self.lease);
            let renewed = timeout(lease / 2, self.renew()).await;
            let is_renewed = matches!(renewed, Ok(Ok(())));
            due = Instant::now() + if is_renewed { self.pause() } else { (lease / 16).max(SHORTEST_PAUSE) };
        }
    }

    fn pause(&self) -> Duration {
        heartbeat_interval(self.deadline.cut(self.lease)).max(SHORTEST_PAUSE)
    }

    /// Whether no heartbeat was sent and answered since the last freeze.
    fn is_doubtful(&self) -> bool {
        let pulse = self.look();
        pulse.believed < pulse.freezes || self.guard.in_doubt()
    }

    /// Looks for a freeze since the last sign of life.
    fn look(&self) -> std::sync::MutexGuard<'_, Pulse> {
        let mut pulse = self.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        pulse.freezes += u64::from(now - pulse.last > FROZEN);
        pulse.last = now;
        pulse
    }
}

impl fmt::Debug for InvocationGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}
