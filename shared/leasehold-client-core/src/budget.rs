//! The bound of a wait. Rule C4.

use std::time::Duration;

use crate::timing::UNREACHED_BOUND;

/// The time of two polls: the one in flight when the lease ends, and the next one.
const WAIT_MARGIN: Duration = Duration::from_secs(2);

/// The bound of a wait for a lock that someone else holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Waits for the lease of the first record that is seen, and `margin`: long enough to outlive a dead holder.
    OneLease {
        /// The time beyond the lease. Default: 2 s.
        margin: Duration,
        /// Whether the wait begins again whenever the holder proves to be alive. Default: no.
        extend: bool,
    },
    /// Waits for at most this time.
    AtMost(Duration),
    /// Waits until the lock is granted.
    Forever,
}

impl Default for Wait {
    fn default() -> Self {
        Self::OneLease { margin: WAIT_MARGIN, extend: false }
    }
}

/// The time that a wait may take.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Budget {
    wait: Wait,
    began: Duration,
    /// The end of the wait. `None`: the wait has no end.
    deadline: Option<Duration>,
    /// The version that the deadline was set for.
    seen: Option<String>,
}

impl Budget {
    /// Begins a wait. `unreachable`, any duration, bounds the search for the service, until a lock was seen held.
    pub fn new(wait: Wait, unreachable: Duration, now: Duration) -> Self {
        let deadline = match wait {
            Wait::OneLease { .. } => Some(now.saturating_add(unreachable)),
            Wait::AtMost(limit) => Some(now.saturating_add(limit)),
            Wait::Forever => None,
        };
        Self { wait, began: now, deadline, seen: None }
    }

    /// Notes a held version, and the time until it is stale: any duration.
    pub fn saw(&mut self, version: &str, stale_after: Duration, now: Duration) {
        let Wait::OneLease { margin, extend } = self.wait else { return };
        let moved = self.seen.as_deref() != Some(version);
        if self.seen.is_none() || (extend && moved) {
            self.deadline = Some(now.saturating_add(stale_after).saturating_add(margin));
            self.seen = Some(version.to_owned());
        }
    }

    /// Notes that no connection can be made, and that the service has never answered. The wait has less time, unless
    /// the caller chose it.
    pub fn unreached(&mut self) {
        if matches!(self.wait, Wait::OneLease { .. }) {
            let soon = self.began + UNREACHED_BOUND;
            self.deadline = self.deadline.map(|deadline| deadline.min(soon));
        }
    }

    /// Returns the end of the wait, if it has one.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the rest of the wait: zero after its end, and the longest duration where it has none.
    pub fn left(&self, now: Duration) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_sub(now))
    }
}
