//! Durations of the command line.

use std::time::Duration;

use leasehold_client::Error;
pub use leasehold_client::duration::{parse, show};

/// Reads a duration, as [`parse`], or zero.
///
/// # Errors
/// As [`parse`].
pub fn parse_or_zero(text: &str) -> Result<Duration, Error> {
    if matches!(text, "0" | "0s") { Ok(Duration::ZERO) } else { parse(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_may_be_written_where_it_makes_sense() {
        for text in ["0s", "0"] {
            assert!(parse_or_zero(text).expect("nothing").is_zero(), "{text}");
        }
        assert!(parse_or_zero("5").is_err());
    }
}
