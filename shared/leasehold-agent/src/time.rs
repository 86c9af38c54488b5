//! The time of an invocation, and the time that the machine was frozen.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The shortest lease that the service accepts.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// The end of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    at: Instant,
    margin: Duration,
}

impl Deadline {
    pub(crate) fn new(at: Instant, margin: Duration) -> Self {
        Self { at, margin }
    }

    /// The time at which the work must end.
    pub(crate) fn stops(&self) -> Instant {
        self.at.checked_sub(self.margin).unwrap_or(self.at)
    }

    /// The time at which locks are released, even if the work goes on.
    pub(crate) fn gives_back(&self) -> Instant {
        self.at.checked_sub(self.margin / 2).unwrap_or(self.at)
    }

    /// The time that is left for work.
    pub(crate) fn left(&self) -> Duration {
        self.stops().saturating_duration_since(Instant::now())
    }

    /// This lease, or what remains of the invocation and the margin, if that is shorter.
    pub(crate) fn cut(&self, lease: Duration) -> Duration {
        lease.min((self.at + self.margin).saturating_duration_since(Instant::now())).max(SHORTEST_LEASE)
    }
}

/// The period in which requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Period {
    /// There are no invocations: the agent is a sidecar or a daemon.
    Always,
    /// The agent is an extension, and waits for the next invocation.
    Between,
    /// One invocation, by its number.
    Invocation(u64, Deadline),
    /// The agent is about to end.
    Over,
}

impl Period {
    pub(crate) fn deadline(self) -> Option<Deadline> {
        match self {
            Self::Invocation(_, deadline) => Some(deadline),
            Self::Always | Self::Between | Self::Over => None,
        }
    }
}

/// Returns the moment at which the wall clock has this time, in milliseconds since the epoch. Lambda tells a deadline
/// so.
#[allow(clippy::disallowed_methods, reason = "the wall clock of this machine told the time")]
pub(crate) fn moment(epoch_ms: u64) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::now() + Duration::from_millis(epoch_ms).saturating_sub(now)
}

/// Returns the time since the machine started, with the time that it was suspended where the system tells.
pub(crate) fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::CLOCK_BOOTTIME;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::CLOCK_MONOTONIC;
    // Every system has its clock.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn lease_ends_a_margin_after_the_deadline_at_most() {
        let deadline = Deadline::new(Instant::now() + SECOND * 10, SECOND);
        assert_eq!(deadline.cut(SECOND * 20), SECOND * 11);
        assert_eq!(deadline.cut(SECOND * 2), SECOND * 2);
        assert_eq!(deadline.left(), SECOND * 9);
        tokio::time::advance(SECOND * 20).await;
        assert_eq!(deadline.cut(SECOND * 2), SHORTEST_LEASE);
    }
}
