//! One codec style for all rows: a row, or a map in one, gives its attributes one by one, by the rule of [`Field`].

use std::collections::HashMap;
use std::fmt::Write as _;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::lifecycle::{CorruptRecord, Field, NUMBER_LIMIT};
use crate::model::{LeaseIdHash, MAX_SEQUENCE, Sequence};

/// An item as DynamoDB stores it.
pub type Item = HashMap<String, AttributeValue>;

/// What is left of a row or of a map.
pub(crate) struct Attributes(pub(crate) Item);

impl Attributes {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Takes what an operation may or may not rest on.
    pub(crate) fn field<T>(&mut self, name: &str, read: impl FnOnce(AttributeValue) -> Option<T>) -> Field<T> {
        match self.0.remove(name) {
            None => Field::Absent,
            Some(value) => read(value).map_or(Field::Unreadable, Field::Value),
        }
    }

    /// Takes what every operation rests on.
    pub(crate) fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(AttributeValue) -> Option<T>,
    ) -> Result<T, CorruptRecord> {
        self.field(name, read).required(name)
    }

    /// Takes what may be missing and must be readable otherwise.
    pub(crate) fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(AttributeValue) -> Option<T>,
    ) -> Result<Option<T>, CorruptRecord> {
        self.field(name, read).optional(name)
    }

    /// Takes the number of a request and its id, which it may have.
    pub(crate) fn sequence(&mut self, number: &str, request_id: &str) -> Field<Sequence> {
        let request_id = self.field(request_id, string);
        match self.field(number, whole_part) {
            Field::Value(number) => Field::Value(Sequence::stored(number, request_id.into_value())),
            Field::Absent if request_id == Field::Absent => Field::Absent,
            Field::Absent | Field::Unreadable => Field::Unreadable,
        }
    }
}

/// These bytes as text: two digits of base 16 each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn string(value: AttributeValue) -> Option<String> {
    match value {
        AttributeValue::S(text) => Some(text),
        _ => None,
    }
}

pub(crate) fn bytes(value: AttributeValue) -> Option<Vec<u8>> {
    match value {
        AttributeValue::B(bytes) => Some(bytes.into_inner()),
        _ => None,
    }
}

pub(crate) fn map(value: AttributeValue) -> Option<Attributes> {
    match value {
        AttributeValue::M(map) => Some(Attributes(map)),
        _ => None,
    }
}

pub(crate) fn hash(value: AttributeValue) -> Option<LeaseIdHash> {
    Some(LeaseIdHash(bytes(value)?.try_into().ok()?))
}

/// A number of any size, as DynamoDB writes it.
pub(crate) fn digits(value: AttributeValue) -> Option<String> {
    match value {
        AttributeValue::N(digits) => Some(digits),
        _ => None,
    }
}

pub(crate) fn number(value: AttributeValue) -> Option<u64> {
    whole_number(&digits(value)?)
}

pub(crate) fn whole_number(text: &str) -> Option<u64> {
    let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&number| is_decimal && number < NUMBER_LIMIT)
}

/// Reads the number of a request. A fraction counts as the whole number below it, which compares alike with every
/// sequence.
fn whole_part(value: AttributeValue) -> Option<u64> {
    digits(value)?.split('.').next()?.parse().ok().filter(|&number| number <= MAX_SEQUENCE)
}
