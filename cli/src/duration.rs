//! Waits, countdowns and times of day, as people write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use leasehold_agent::duration::{parse, parse_or_zero, show};
use leasehold_client::Wait;
use nix::time::{ClockId, clock_gettime};

/// Reads the length of a wait: a duration, or `forever`.
pub(crate) fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        _ => parse(text).map(Wait::AtMost).map_err(|error| format!("{error}, or `forever`")),
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

/// Writes a time, in seconds since the epoch, as `2026-11-21T02:00:00Z`.
pub(crate) fn show_time(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    // A year begins in March here, so that a leap day is its last. The calendar repeats every 400 years.
    days += 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * months + 2) / 5 + 1, (months + 2) % 12 + 1);
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
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
    fn times_are_written_as_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_795_226_400, "2026-11-21T02:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(show_time(seconds), text);
        }
    }

    #[test]
    fn countdown_counts_seconds() {
        assert_eq!(show_seconds(Duration::from_millis(2001)), "3s");
        assert_eq!(show_seconds(Duration::ZERO), "0s");
    }

    #[test]
    fn wait_may_be_endless() {
        assert_eq!(parse_wait("forever"), Ok(Wait::Forever));
        assert_eq!(parse_wait("5m"), Ok(Wait::AtMost(Duration::from_mins(5))));
        assert!(parse_wait("always").is_err());
    }
}
