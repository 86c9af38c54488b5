//! Waits, countdowns and times of day, as people write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use leasehold_agent::duration::{parse, parse_or_zero, show};
use leasehold_client::Wait;
use nix::time::{ClockId, clock_gettime};

/// Reads the length of a wait: a duration, nothing, or `forever`.
pub(crate) fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        _ => parse_or_zero(text).map(Wait::AtMost).map_err(|error| format!("{error}, or `forever`")),
    }
}

/// Writes a duration rounded up to seconds, for a countdown.
pub(crate) fn show_seconds(duration: Duration) -> String {
    show(Duration::from_secs(duration.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)))
}

/// Returns the time of day, since the epoch: for the name of a period and for people. No two clocks are compared by it.
#[allow(clippy::disallowed_methods, reason = "nobody else's clock is compared")]
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time since the machine started, with the time that it was suspended where the system tells: for two
/// processes of one machine.
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

    #[test]
    fn countdown_counts_seconds() {
        assert_eq!(show_seconds(Duration::from_millis(2001)), "3s");
        assert_eq!(show_seconds(Duration::ZERO), "0s");
    }

    #[test]
    fn wait_may_be_endless() {
        assert_eq!(parse_wait("forever"), Ok(Wait::Forever));
        assert_eq!(parse_wait("5m"), Ok(Wait::AtMost(Duration::from_mins(5))));
        assert_eq!(parse_wait("0s"), Ok(Wait::AtMost(Duration::ZERO)));
        assert!(parse_wait("always").is_err());
    }
}
