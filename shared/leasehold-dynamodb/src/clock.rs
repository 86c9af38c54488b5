//! The only source of time, UUIDs and randomness.

#![allow(clippy::disallowed_methods, reason = "this is the place that owns them")]

use std::sync::Arc;
use std::time::Duration;

/// The service's wall clock.
///
/// The clock seeds fencing tokens and gives `staleAt` and `expireAt`. No decision depends on it, except the one that a
/// caller requests by name with `staleness: "clock"`.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    /// The operating system's clock.
    pub fn system() -> Self {
        Self(Arc::new(|| {
            let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
        }))
    }

    /// A clock that reads milliseconds since the Unix epoch from `now_ms`: for tests under virtual time.
    pub fn from_fn(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || now_ms() * 1000))
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    /// Microseconds since the Unix epoch.
    pub fn now_us(&self) -> u64 {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// A fresh random UUID, for record version numbers and for the lease ids of callers that sent none.
pub fn fresh_uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Waits for any duration before something is tried, or looked at, once more. It follows tokio's paused clock.
pub async fn pause_for(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Full jitter: a pause drawn evenly from zero to `ceiling`, any duration, so that callers which failed together do not
/// retry together.
pub fn jitter(ceiling: Duration) -> Duration {
    ceiling.mul_f64(fastrand::f64())
}
