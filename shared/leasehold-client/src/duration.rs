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
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refused(format!("has no unit: write {text}s for seconds, {text}ms for milliseconds")));
    }
    let mut rest = text;
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit()).ok_or_else(malformed)?;
        let number: u64 = rest[..digits].parse().map_err(|_| malformed())?;
        rest = &rest[digits..];
        let letters = rest.find(|character: char| character.is_ascii_digit()).unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(malformed)?;
        rest = &rest[letters..];
        millis = number.checked_mul(*unit).and_then(|part| millis.checked_add(part)).ok_or_else(malformed)?;
    }
    if millis == 0 { Err(malformed()) } else { Ok(Duration::from_millis(millis)) }
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
        assert_eq!(read("1.5s"), Err(r#""1.5s" is no duration: write 20s, 500ms, 2m or 1h30m"#.to_owned()));
    }
}
