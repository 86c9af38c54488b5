//! How a lock came to be no longer the caller's.

use std::fmt;
use std::sync::Arc;

use leasehold_wire::{Lock, LostReason};

use crate::Error;

/// How a lock came to be no longer the caller's.
#[derive(Debug, Clone)]
pub struct Loss {
    /// In a word.
    pub reason: LossReason,
    /// The lock as it was when the service refused: whose it is now. Absent where the row is gone, or nobody knows.
    pub lock: Option<Box<Lock>>,
    /// Of an [`LossReason::Expired`] lease: what the last heartbeat failed with.
    pub cause: Option<Arc<Error>>,
}

impl PartialEq for Loss {
    fn eq(&self, other: &Self) -> bool {
        self.reason == other.reason && self.lock == other.lock
    }
}

/// How a lock came to be no longer the caller's, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// A theft, from the holder's view: another acquisition has it, or had it since.
    TakenOver,
    /// It was released under this lease id, by another process or by closing the client, or broken by an operator.
    Released,
    /// The row is gone.
    Absent,
    /// The row has another version than the one that was named.
    VersionMismatch,
    /// An outage, or a pause: the lease ran out by the holder's own clock. Nobody need have taken the lock.
    Expired,
}

impl Loss {
    pub(crate) fn told(reason: Option<LostReason>, lock: Option<Box<Lock>>) -> Self {
        let reason = match reason {
            Some(LostReason::Released) => LossReason::Released,
            Some(LostReason::Absent) => LossReason::Absent,
            Some(LostReason::VersionMismatch) => LossReason::VersionMismatch,
            Some(LostReason::TakenOver) | None => LossReason::TakenOver,
        };
        Self { reason, lock, cause: None }
    }

    /// By somebody else than the guard.
    pub(crate) fn released() -> Self {
        Self { reason: LossReason::Released, lock: None, cause: None }
    }

    pub(crate) fn expired(cause: Option<Arc<Error>>) -> Self {
        Self { reason: LossReason::Expired, lock: None, cause }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, &self.lock) {
            (LossReason::TakenOver, Some(lock)) => write!(f, "the lock was taken over by {:?}", lock.owner_name),
            (LossReason::TakenOver, None) => f.write_str("the lock was taken over"),
            (LossReason::Released, _) => f.write_str("the lock was released elsewhere, or broken by an operator"),
            (LossReason::Absent, _) => f.write_str("the lock is gone: its row was deleted"),
            (LossReason::VersionMismatch, _) => f.write_str("the lock has another version than the one named"),
            (LossReason::Expired, _) => match &self.cause {
                Some(cause) => write!(f, "the lease ran out before a heartbeat succeeded: {cause}"),
                None => f.write_str("the lease ran out before it was renewed"),
            },
        }
    }
}
