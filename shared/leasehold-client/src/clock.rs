//! The one source of time, randomness and UUIDs. The monotonic clock is tokio's, so that tests can pause it.

#![allow(clippy::disallowed_methods, reason = "this is the place that owns time, randomness and UUIDs")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_client_core::{Chance, Purpose};

use crate::timing::was_suspended;

pub(crate) use tokio::time::Instant;

/// The time since the Unix epoch, which only saved observations use.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A fresh lease id, or a fresh request id.
pub(crate) fn fresh_uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The clocks of the system, of which only the wall clock goes on in a suspension. Tests do not pause them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    before: std::time::Instant,
    wall: SystemTime,
    after: std::time::Instant,
}

impl Clocks {
    pub(crate) fn now() -> Self {
        let before = std::time::Instant::now();
        let wall = SystemTime::now();
        #[cfg(test)]
        let wall = wall + tests::SUSPENDED.get();
        Self { before, wall, after: std::time::Instant::now() }
    }

    /// Whether the process was suspended since these clocks were read. A pause between the two readings is none.
    pub(crate) fn show_suspension_until(self, now: Self) -> bool {
        let wall = now.wall.duration_since(self.wall).unwrap_or_default();
        was_suspended(now.after - self.before, wall)
    }
}

/// Every pause of this crate is one of rules C4, C5 and C7.
pub(crate) async fn sleep(pause: Duration) {
    tokio::time::sleep(pause).await;
}

/// The end of a limit. A limit too large for the clock ends a generation later.
pub(crate) fn deadline(limit: Duration) -> Instant {
    const GENERATION: Duration = Duration::from_hours(30 * 365 * 24);
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + GENERATION)
}

/// A number drawn evenly from 0 to 1.
pub(crate) fn chance() -> f64 {
    fastrand::f64()
}

/// The draws of the rules.
pub(crate) struct Draws;

impl Chance for Draws {
    fn fraction(&mut self, _: Purpose) -> f64 {
        chance()
    }

    fn id(&mut self, _: Purpose) -> String {
        fresh_uuid()
    }
}

/// The whole milliseconds since `zero`, for the rules.
pub(crate) fn whole_since(zero: Instant) -> Duration {
    Duration::from_millis(millis(zero.elapsed()))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The time for which this thread's clocks stood still.
        pub(crate) static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    #[test]
    fn limit_too_large_for_the_clock_ends_decades_later() {
        let twenty_years = Duration::from_hours(20 * 365 * 24);
        assert!(deadline(Duration::MAX) > Instant::now() + twenty_years);
    }
}
