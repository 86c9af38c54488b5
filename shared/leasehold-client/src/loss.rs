//! The loss of a lock.

use std::fmt;
use std::sync::Arc;

pub use leasehold_client_core::LossReason;
use leasehold_wire::{Lock, LockState, LostReason};

use crate::subject::Subject;
use crate::{Error, LockKey};

/// The loss of a lock.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The lock's key.
    pub key: LockKey,
    /// The reason of the loss, in a word.
    pub reason: LossReason,
    /// The lock as it was when the service refused, with its new owner. Absent where the row is gone or unknown.
    pub lock: Option<Box<Lock>>,
    /// The failure of the last heartbeat, for the reason [`LossReason::Expired`].
    pub cause: Option<Arc<Error>>,
    /// The kind of row, for the words.
    pub(crate) subject: Subject,
}

/// The cause has no part in it: a failure of the transport cannot be compared.
impl PartialEq for Loss {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, self.reason, &self.lock) == (&other.key, other.reason, &other.lock)
    }
}

impl Loss {
    pub(crate) fn new(subject: Subject, key: &LockKey, reason: LossReason) -> Self {
        Self { key: key.clone(), reason, lock: None, cause: None, subject }
    }

    /// A refusal of the service. The caller of the service knows the subject and the key.
    pub(crate) fn from_refusal(reason: Option<LostReason>, lock: Option<Box<Lock>>) -> Self {
        let reason = match reason {
            Some(LostReason::Released) => LossReason::Released,
            Some(LostReason::Absent) => LossReason::Absent,
            Some(LostReason::VersionMismatch) => LossReason::VersionMismatch,
            Some(LostReason::TakenOver | LostReason::Queued | LostReason::NotQueued) | None => LossReason::TakenOver,
        };
        let key = LockKey { key: String::new(), sort_key: None };
        Self { lock, ..Self::new(Subject::Lock, &key, reason) }
    }
}

impl Loss {
    /// Describes the loss in words, without the key.
    pub fn how(&self) -> String {
        let (what, is, was) = match self.subject {
            Subject::Lock => ("the lock", "is", "was"),
            Subject::Permits => ("the permits", "are", "were"),
        };
        let thief = self.lock.as_ref().filter(|lock| lock.semaphore.is_none()).map(|lock| &lock.owner_name);
        let is_free = self.lock.as_ref().is_some_and(|lock| lock.state == LockState::Released);
        match (self.reason, thief) {
            (LossReason::TakenOver, Some(thief)) if is_free => {
                format!("{what} {was} {thief:?}'s last, under another lease id, and {is} free now")
            }
            (LossReason::TakenOver, Some(thief)) => format!("{what} {was} taken over by {thief:?}"),
            (LossReason::TakenOver, None) => format!("{what} {was} taken over"),
            (LossReason::Released, _) => format!("{what} {was} released elsewhere, or broken by an operator"),
            (LossReason::Absent, _) => format!("{what} {is} gone: the row was deleted"),
            (LossReason::VersionMismatch, _) => format!("the version of {what} is not the one named"),
            (LossReason::Deadline, _) => "the invocation is about to end".to_owned(),
            (LossReason::MaxHold, _) => format!("{what} {was} held for the longest time that was asked for"),
            (LossReason::Expired, _) => match &self.cause {
                Some(cause) => format!("the lease ran out before a heartbeat succeeded: {}", cause.in_full()),
                None => "the lease ran out before it was renewed".to_owned(),
            },
            (reason, _) => format!("{what} {was} lost: {}", reason.word()),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is lost: {}", self.key.to_string(), self.how())
    }
}
