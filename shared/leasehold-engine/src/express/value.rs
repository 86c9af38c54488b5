//! Values in the engine's JSON, read where they are looked at and copied as text otherwise.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dynoxide::types::number_size;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::expression::Comparison;

/// Deepest value that is taken: the engine's limit is 32.
const MAX_DEPTH: u32 = 16;
/// Most members of an object that are taken. They are searched one after the other.
const MAX_MEMBERS: usize = 64;
/// Most digits of a number, as in DynamoDB.
const MAX_DIGITS: usize = 38;

/// A text, borrowed where it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl Text<'_> {
    pub(crate) fn length(&self) -> u64 {
        self.0.len() as u64
    }
}

/// The members of an object, in their order.
pub(super) struct Members<'a, T>(pub(super) Vec<(Cow<'a, str>, T)>);

impl<T> Default for Members<'_, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Members<'_, T> {
    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value)
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Members<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<'a, T>(Members<'a, T>);
        impl<'de: 'a, 'a, T: Deserialize<'de>> Visitor<'de> for Reader<'a, T> {
            type Value = Members<'a, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with few members")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
                while let Some((Text(name), value)) = map.next_entry()? {
                    if self.0.0.len() == MAX_MEMBERS || self.0.get(&name).is_some() {
                        return Err(A::Error::custom("too many members, or one of them twice"));
                    }
                    self.0.0.push((name, value));
                }
                Ok(self.0)
            }
        }
        deserializer.deserialize_map(Reader(Self(Vec::with_capacity(32))))
    }
}

/// A value. Sets have no place here: their order differs between the table and an answer.
#[derive(Deserialize)]
pub(super) enum Value<'a> {
    #[serde(borrow)]
    S(Cow<'a, str>),
    #[serde(borrow)]
    N(Cow<'a, str>),
    #[serde(borrow)]
    B(Cow<'a, str>),
    #[serde(rename = "BOOL")]
    Bool(bool),
    #[serde(rename = "NULL")]
    Null(bool),
    #[serde(borrow)]
    M(Members<'a, &'a RawValue>),
    #[serde(borrow)]
    L(Vec<&'a RawValue>),
}

impl<'a> Value<'a> {
    pub(super) fn of(raw: &'a RawValue) -> Option<Self> {
        serde_json::from_str(raw.get()).ok()
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::S(_) => "S",
            Self::N(_) => "N",
            Self::B(_) => "B",
            Self::Bool(_) => "BOOL",
            Self::Null(_) => "NULL",
            Self::M(_) => "M",
            Self::L(_) => "L",
        }
    }

    /// Whether the engine stores the value as it is written here, whatever else the request has.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain_at(0)
    }

    fn is_plain_at(&self, depth: u32) -> bool {
        let is_plain = |raw: &&RawValue| Value::of(raw).is_some_and(|value| value.is_plain_at(depth + 1));
        match self {
            Self::S(_) | Self::Bool(_) => true,
            Self::Null(is_null) => *is_null,
            Self::N(digits) => integer(digits).is_some(),
            Self::B(text) => STANDARD.decode(&**text).is_ok_and(|bytes| STANDARD.encode(bytes) == *text),
            Self::M(members) => {
                depth < MAX_DEPTH && members.0.iter().all(|(name, member)| !name.is_empty() && is_plain(member))
            }
            Self::L(elements) => depth < MAX_DEPTH && elements.iter().all(is_plain),
        }
    }

    /// The size by DynamoDB's rules, without the name.
    pub(super) fn size(&self) -> Option<usize> {
        let size_of = |raw: &RawValue| Value::of(raw)?.size();
        match self {
            Self::S(text) => Some(text.len()),
            Self::N(digits) => Some(number_size(digits)),
            Self::B(text) => Some(decoded_length(text)),
            Self::Bool(_) | Self::Null(_) => Some(1),
            Self::M(members) => {
                members.0.iter().try_fold(3, |sum, (name, member)| Some(sum + name.len() + 1 + size_of(member)?))
            }
            Self::L(elements) => {
                elements.iter().try_fold(3 + elements.len(), |sum, element| Some(sum + size_of(element)?))
            }
        }
    }

    /// What `size` counts in an expression. None: the value has no such size, as if it were missing.
    pub(super) fn count(&self) -> Option<usize> {
        match self {
            Self::S(text) => Some(text.encode_utf16().count()),
            Self::B(text) => Some(decoded_length(text)),
            Self::M(members) => Some(members.0.len()),
            Self::L(elements) => Some(elements.len()),
            Self::N(_) | Self::Bool(_) | Self::Null(_) => None,
        }
    }

    /// Compares two values. None: the engine must.
    pub(super) fn compares(&self, comparison: Comparison, other: &Self) -> Option<bool> {
        let is_equality = matches!(comparison, Comparison::Equal | Comparison::Unequal);
        let order = match (self, other) {
            (Self::S(left), Self::S(right)) => left.cmp(right),
            (Self::N(left), Self::N(right)) => integer(left)?.cmp(&integer(right)?),
            (Self::B(left), Self::B(right)) if is_equality => left.cmp(right),
            (Self::Bool(left), Self::Bool(right)) | (Self::Null(left), Self::Null(right)) if is_equality => {
                left.cmp(right)
            }
            (Self::Bool(_), Self::Bool(_)) | (Self::Null(_), Self::Null(_)) => return Some(false),
            (Self::B(_), Self::B(_)) | (Self::M(_), Self::M(_)) | (Self::L(_), Self::L(_)) => return None,
            _ => return Some(comparison == Comparison::Unequal),
        };
        Some(match comparison {
            Comparison::Equal => order == Ordering::Equal,
            Comparison::Unequal => order != Ordering::Equal,
            Comparison::Less => order == Ordering::Less,
            Comparison::LessOrEqual => order != Ordering::Greater,
            Comparison::Greater => order == Ordering::Greater,
            Comparison::GreaterOrEqual => order != Ordering::Less,
        })
    }
}

/// A number that is written as the engine writes integers.
pub(super) fn integer(digits: &str) -> Option<i128> {
    let number: i128 = if digits.len() <= MAX_DIGITS { digits.parse().ok()? } else { return None };
    let magnitude = digits.strip_prefix('-').unwrap_or(digits);
    let is_plain = magnitude.starts_with(|digit: char| ('1'..='9').contains(&digit)) || digits == "0";
    is_plain.then_some(number)
}

/// The number of bytes in a text of base64 with its padding.
fn decoded_length(text: &str) -> usize {
    text.len() / 4 * 3 - text.bytes().rev().take_while(|byte| *byte == b'=').count()
}
