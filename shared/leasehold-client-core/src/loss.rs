//! The reasons of a loss.

/// The reason of a loss, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LossReason {
    /// Another acquisition holds the lock, or held it since.
    TakenOver,
    /// The lock was released under this lease id by another process or a closed client, or an operator broke it.
    Released,
    /// The row is gone.
    Absent,
    /// The row has another version than the named one.
    VersionMismatch,
    /// The lease ran out by the holder's own clock, after an outage or a pause. The lock may still be free.
    Expired,
    /// The longest time to hold is over, by `max_hold` of the request.
    MaxHold,
    /// The invocation of a Lambda function is about to end.
    Deadline,
    /// The process is the child of a fork. The parent goes on with the lock.
    Forked,
}

impl LossReason {
    /// Returns the reason as a label.
    pub fn word(self) -> &'static str {
        match self {
            Self::TakenOver => "taken-over",
            Self::Released => "released",
            Self::Absent => "absent",
            Self::VersionMismatch => "version-mismatch",
            Self::Expired => "expired",
            Self::MaxHold => "max-hold",
            Self::Deadline => "deadline",
            Self::Forked => "forked",
        }
    }
}
