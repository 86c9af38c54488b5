//! Durations as people write them: `20s`, `500ms`, `2m`, `1h30m`.
//!
//! ```
//! use leasehold_client::{LockRequest, duration};
//!
//! # fn main() -> Result<(), leasehold_client::Error> {
//! let request = LockRequest::new("Moe").lease(duration::parse("20s")?).max_hold(duration::parse("1h30m")?);
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use crate::Error;

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads a duration. A bare number is refused, since its unit is unknown.
///
/// # Errors
/// [`crate::ErrorKind::InvalidRequest`], with a sentence that says how to write it.
pub fn parse(text: &str) -> Result<Duration, Error> {
    let refused = |why: String| Error::invalid("duration", format!("{text:?} {why}"));
    let malformed = || refused("is no duration: write 20s, 500ms, 2m or 1h30m".to_owned());
    let too_long = || refused("is too long".to_owned());
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refused(format!("has no unit: write {text}s for seconds, {text}ms for milliseconds")));
    }
    let mut rest = text;
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit()).ok_or_else(malformed)?;
        let number: u64 = rest[..digits].parse().map_err(|_| if digits == 0 { malformed() } else { too_long() })?;
        rest = &rest[digits..];
        let letters = rest.find(|character: char| character.is_ascii_digit()).unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(malformed)?;
        rest = &rest[letters..];
        millis = number.checked_mul(*unit).and_then(|part| millis.checked_add(part)).ok_or_else(too_long)?;
    }
    match (text, millis) {
        ("", _) => Err(malformed()),
        (_, 0) => Err(refused("is too short: it must be longer than 0s".to_owned())),
        _ => Ok(Duration::from_millis(millis)),
    }
}

/// Writes a duration so that [`parse`] reads it, unless it is zero.
pub fn show(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut parts = Vec::new();
    for (name, unit) in UNITS {
        if millis >= unit {
            parts.push(format!("{}{name}", millis / unit));
            millis %= unit;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.concat() }
}

/// Writes a time since the epoch as `2026-11-21T02:00:00.000Z`.
pub fn show_time(since_epoch: Duration) -> String {
    let (seconds, millis) = (since_epoch.as_secs(), since_epoch.subsec_millis());
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
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Duration, String> {
        parse(text).map_err(|error| error.to_string())
    }

    #[test]
    fn written_durations_are_read_back() {
        for (text, millis) in [
            ("20s", 20_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
            ("1s1ms", 1001),
        ] {
            assert_eq!(read(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(show(Duration::from_millis(millis)), text);
        }
        assert_eq!(read("90s").map(show), Ok("1m30s".to_owned()));
    }

    #[test]
    fn malformed_durations_are_refused() {
        for text in
            ["", "s", "20", "20 s", "20S", "1.5s", "-1s", "0s", "20s5", "99999999999999999999s", "9999999999999999d"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(read("20"), Err(r#""20" has no unit: write 20s for seconds, 20ms for milliseconds"#.to_owned()));
        for text in ["0s", "0h0ms"] {
            assert_eq!(read(text), Err(format!("{text:?} is too short: it must be longer than 0s")));
        }
        for text in ["99999999999999999999s", "9999999999999999d", "18446744073709551615ms1ms"] {
            assert_eq!(read(text), Err(format!("{text:?} is too long")));
        }
        assert_eq!(read("1.5s"), Err(r#""1.5s" is no duration: write 20s, 500ms, 2m or 1h30m"#.to_owned()));
    }

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_795_226_400_010, "2026-11-21T02:00:00.010Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(show_time(Duration::from_millis(millis)), text);
        }
    }
}
