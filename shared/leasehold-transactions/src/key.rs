//! An item, and its name: a table and a key, comparable and in one order for all coordinators.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt::{self, Write as _};

use aws_sdk_dynamodb::types::AttributeValue;

/// An item of a user's table: attribute values by name.
pub type Item = HashMap<String, AttributeValue>;

/// The key of one item. Two keys are equal if they name one item in DynamoDB.
#[derive(Debug, Clone)]
pub struct ItemKey {
    table: String,
    attributes: Item,
    /// Table and key as one text: equal keys have equal texts, and all coordinators sort by it.
    canonical: String,
}

impl ItemKey {
    /// Returns the key of the item of `table` with these key attributes.
    pub fn new(table: impl Into<String>, attributes: Item) -> Self {
        let table = table.into();
        let mut names: Vec<_> = attributes.keys().collect();
        names.sort();
        let mut canonical = table.clone();
        for name in names {
            // The lengths keep the texts of two keys distinct.
            let _ = write!(canonical, "\u{1}{}:{name}=", name.len());
            let _ = match &attributes[name] {
                AttributeValue::S(text) => write!(canonical, "S{}:{text}", text.len()),
                AttributeValue::N(number) => write!(canonical, "N{}", canonical_number(number)),
                // A binary value; or a value that cannot be a key, which DynamoDB refuses.
                other => write!(canonical, "{other:?}"),
            };
        }
        Self { table, attributes, canonical }
    }

    /// The table's name.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The key attributes.
    pub fn attributes(&self) -> &Item {
        &self.attributes
    }

    /// The name of one of the key's attributes: the item exists where this attribute does.
    pub(crate) fn any_name(&self) -> &str {
        self.attributes.keys().min().map_or("", String::as_str)
    }

    /// Table and key as one text.
    pub(crate) fn canonical(&self) -> &str {
        &self.canonical
    }

    /// A key of the same table that no item has.
    pub(crate) fn nobody(&self) -> Self {
        let fresh = leasehold_dynamodb::fresh_uuid();
        let value = |value: &AttributeValue| match value {
            // A number has up to 38 digits; these are 30 of a random one.
            AttributeValue::N(_) => {
                let digits: String =
                    fresh.bytes().filter(u8::is_ascii_hexdigit).map(|byte| char::from(b'0' + byte % 10)).collect();
                AttributeValue::N(format!("9{}", &digits[..30]))
            }
            AttributeValue::B(_) => AttributeValue::B(fresh.clone().into_bytes().into()),
            _ => AttributeValue::S(fresh.clone()),
        };
        let attributes = self.attributes.iter().map(|(name, part)| (name.clone(), value(part))).collect();
        Self::new(self.table.clone(), attributes)
    }

    /// Returns the key of an item of the same table.
    pub(crate) fn sibling(&self, item: &Item) -> Self {
        let attributes =
            self.attributes.keys().filter_map(|name| Some((name.clone(), item.get(name)?.clone()))).collect();
        Self::new(self.table.clone(), attributes)
    }
}

/// The table and the key, for people to read.
impl fmt::Display for ItemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> = self.attributes.keys().collect();
        names.sort();
        let parts: Vec<_> = names
            .into_iter()
            .map(|name| match &self.attributes[name] {
                AttributeValue::S(text) | AttributeValue::N(text) => format!("{name}={text}"),
                _ => format!("{name}=(binary)"),
            })
            .collect();
        write!(f, "{}[{}]", self.table, parts.join(","))
    }
}

impl PartialEq for ItemKey {
    fn eq(&self, other: &Self) -> bool {
        self.canonical == other.canonical
    }
}

impl Eq for ItemKey {}

impl PartialOrd for ItemKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ItemKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.canonical.cmp(&other.canonical)
    }
}

/// Makes `1`, `1.0` and `10e-1` one key: the sign, the digits without zeros at either end, and the power of ten of the
/// last digit.
fn canonical_number(text: &str) -> String {
    let (sign, unsigned) = match text.as_bytes().first() {
        Some(b'-') => ("-", &text[1..]),
        Some(b'+') => ("", &text[1..]),
        _ => ("", text),
    };
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // A text that is no number stays unchanged: DynamoDB refuses it.
    let Ok(exponent) = exponent.parse::<i64>() else {
        return text.to_owned();
    };
    let all = format!("{whole}{fraction}");
    if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    let digits = all.trim_end_matches('0');
    let zeros = i64::try_from(all.len() - digits.len()).unwrap_or(i64::MAX);
    let decimals = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
    match digits.trim_start_matches('0') {
        "" => "0".to_owned(),
        digits => format!("{sign}{digits}e{}", exponent.saturating_sub(decimals).saturating_add(zeros)),
    }
}

/// The order of two values of one type that keys may have, as DynamoDB sorts them.
pub(crate) fn order(a: &AttributeValue, b: &AttributeValue) -> Option<Ordering> {
    match (a, b) {
        (AttributeValue::S(a), AttributeValue::S(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (AttributeValue::N(a), AttributeValue::N(b)) => Some(order_of_numbers(a, b)),
        (AttributeValue::B(a), AttributeValue::B(b)) => Some(a.as_ref().cmp(b.as_ref())),
        _ => None,
    }
}

fn order_of_numbers(a: &str, b: &str) -> Ordering {
    let (a, b) = (canonical_number(a), canonical_number(b));
    let sign = |text: &str| match text {
        "0" => 0,
        text if text.starts_with('-') => -1,
        _ => 1,
    };
    // The power of ten of the first digit, and the digits, which end without a zero.
    let magnitude = |text: &str| {
        let (digits, exponent) = text.trim_start_matches('-').split_once('e').unwrap_or((text, "0"));
        let exponent: i64 = exponent.parse().unwrap_or_default();
        (exponent.saturating_add(i64::try_from(digits.len()).unwrap_or(i64::MAX)), digits.to_owned())
    };
    let by_magnitude = || magnitude(&a).cmp(&magnitude(&b));
    sign(&a).cmp(&sign(&b)).then_with(|| if sign(&a) < 0 { by_magnitude().reverse() } else { by_magnitude() })
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::primitives::Blob;

    use super::*;

    fn key(value: AttributeValue) -> ItemKey {
        ItemKey::new("t", Item::from([("id".to_owned(), value)]))
    }

    #[test]
    fn numbers_that_are_equal_are_one_key() {
        let number = |text: &str| key(AttributeValue::N(text.into()));
        for (a, b) in [("1", "1.0"), ("100", "1e2"), ("0.01", "1E-2"), ("+7", "007"), ("-0", "0.00"), ("-5", "-50e-1")]
        {
            assert_eq!(number(a), number(b), "{a} and {b}");
        }
        for (a, b) in [("1", "10"), ("1", "-1"), ("0.1", "1"), ("12", "1.2"), ("", "0"), ("-", "0"), ("1.x", "1")] {
            assert_ne!(number(a), number(b), "{a} and {b}");
        }
    }

    #[test]
    fn values_are_in_the_order_of_dynamodb() {
        let ascending = |values: &[AttributeValue]| {
            for (place, pair) in values.windows(2).enumerate() {
                assert_eq!(order(&pair[0], &pair[1]), Some(Ordering::Less), "{place}: {pair:?}");
                assert_eq!(order(&pair[1], &pair[0]), Some(Ordering::Greater), "{place}: {pair:?}");
                assert_eq!(order(&pair[0], &pair[0]), Some(Ordering::Equal), "{place}: {pair:?}");
            }
        };
        let numbers =
            ["-1e20", "-100", "-12.5", "-12", "-0.1", "0", "1e-30", "0.09", "0.1", "1", "9", "10", "11", "1e20"];
        ascending(&numbers.map(|number| AttributeValue::N(number.into())));
        ascending(
            &["", "A", "Z", "a", "aa", "b", "\u{e9}", "\u{ffff}", "\u{10000}"]
                .map(|text| AttributeValue::S(text.into())),
        );
        ascending(
            &[&b""[..], b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff"].map(|bytes| AttributeValue::B(Blob::new(bytes))),
        );
        let equal = |a: &str, b: &str| order(&AttributeValue::N(a.into()), &AttributeValue::N(b.into()));
        assert_eq!(
            (equal("1.0", "1"), equal("-0", "0"), equal("10e-1", "1")),
            (Some(Ordering::Equal), Some(Ordering::Equal), Some(Ordering::Equal))
        );
        assert_eq!(order(&AttributeValue::N("1".into()), &AttributeValue::S("1".into())), None);
    }

    #[test]
    fn keys_of_different_types_and_names_are_different() {
        assert_ne!(key(AttributeValue::S("1".into())), key(AttributeValue::N("1".into())));
        let two = |a: &str, b: &str| {
            let part = |text: &str| AttributeValue::S(text.into());
            ItemKey::new("t", Item::from([("a".to_owned(), part(a)), ("b".to_owned(), part(b))]))
        };
        assert_ne!(two("x\u{1}1:b=S1:y", "z"), two("x", "y\u{1}1:b=S1:z"));
    }
}
