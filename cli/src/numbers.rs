//! Whole numbers of the command line.

use std::ops::RangeInclusive;

/// Returns a reader of whole numbers in a range.
pub(crate) fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("it must be a whole number from {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_out_of_its_range_is_refused_with_the_range() {
        let read = whole::<u32>(1..=50);
        assert_eq!((read("1"), read("50")), (Ok(1), Ok(50)));
        for text in ["0", "51", "-1", "1.5", "x", "", "99999999999999999999"] {
            assert_eq!(read(text), Err("it must be a whole number from 1 to 50".to_owned()), "{text}");
        }
        assert!(whole::<u16>(0..=u64::MAX)("65536").is_err());
    }
}
