//! The loss of a lock.

use std::fmt;
use std::sync::Arc;

use leasehold_wire::{Lock, LostReason};

use crate::{Error, LockKey};

/// The loss of a lock.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The lock's key.
    pub key: LockKey,
    /// In a word.
    pub reason: LossReason,
    /// The lock as it was when the service refused, with its new owner. Absent where the row is gone, or nobody knows.
    pub lock: Option<Box<Lock>>,
    /// The failure of the last heartbeat, where the lease has [`LossReason::Expired`].
    pub cause: Option<Arc<Error>>,
}

impl PartialEq for Loss {
    fn eq(&self, other: &Self) -> bool {
        self.reason == other.reason && self.lock == other.lock
    }
}

/// The reason of a loss, in a word.
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

impl LossReason {
    /// The reason as a label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::TakenOver => "taken-over",
            Self::Released => "released",
            Self::Absent => "absent",
            Self::VersionMismatch => "version-mismatch",
            Self::Expired => "expired",
        }
    }
}

impl Loss {
    pub(crate) fn from_refusal(key: LockKey, reason: Option<LostReason>, lock: Option<Box<Lock>>) -> Self {
        let reason = match reason {
            Some(LostReason::Released) => LossReason::Released,
            Some(LostReason::Absent) => LossReason::Absent,
            Some(LostReason::VersionMismatch) => LossReason::VersionMismatch,
            Some(LostReason::TakenOver | LostReason::Queued) | None => LossReason::TakenOver,
        };
        Self { key, reason, lock, cause: None }
    }

    /// By somebody else than the guard.
    pub(crate) fn released(key: LockKey) -> Self {
        Self { key, reason: LossReason::Released, lock: None, cause: None }
    }

    /// The row has this lease id under a fencing token that was never granted: a late request made it anew, and
    /// somebody else may have held the lock in between.
    pub(crate) fn to_a_ghost(key: LockKey) -> Self {
        Self { key, reason: LossReason::TakenOver, lock: None, cause: None }
    }

    pub(crate) fn expired(key: LockKey, cause: Option<Arc<Error>>) -> Self {
        Self { key, reason: LossReason::Expired, lock: None, cause }
    }
}

impl Loss {
    /// The story of the loss in words, without the key.
    pub fn how(&self) -> String {
        match (self.reason, &self.lock) {
            (LossReason::TakenOver, Some(lock)) => format!("the lock was taken over by {:?}", lock.owner_name),
            (LossReason::TakenOver, None) => "the lock was taken over".to_owned(),
            (LossReason::Released, _) => "the lock was released elsewhere, or broken by an operator".to_owned(),
            (LossReason::Absent, _) => "the lock is gone: its row was deleted".to_owned(),
            (LossReason::VersionMismatch, _) => "the lock has another version than the one named".to_owned(),
            (LossReason::Expired, _) => match &self.cause {
                Some(cause) => format!("the lease ran out before a heartbeat succeeded: {cause}"),
                None => "the lease ran out before it was renewed".to_owned(),
            },
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is lost: {}", self.key.to_string(), self.how())
    }
}
