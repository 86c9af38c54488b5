//! Converts between DynamoDB JSON and the SDK's values.

use std::fmt::Display;

use base64::{Engine, prelude::BASE64_STANDARD};
use leasehold_transactions::{AttributeValue, Item};
use leasehold_wire::transactions as wire;

/// A mistake in a value, and its place. Each caller completes the path.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The path from the item on, such as `.tags.L[2].B`.
    pub(crate) path: String,
    pub(crate) detail: String,
}

impl Fault {
    fn new(detail: impl Into<String>) -> Self {
        Self { path: String::new(), detail: detail.into() }
    }

    fn within(self, step: impl Display) -> Self {
        Self { path: format!("{step}{}", self.path), ..self }
    }
}

/// Reads an item.
pub(crate) fn item(item: wire::Item) -> Result<Item, Fault> {
    let member = |(name, value)| match self::value(value) {
        Ok(value) => Ok((name, value)),
        Err(fault) => Err(fault.within(format_args!(".{name}"))),
    };
    item.0.into_iter().map(member).collect()
}

/// Reads a value. DynamoDB checks the form of numbers, and the size and depth of items.
fn value(value: wire::AttributeValue) -> Result<AttributeValue, Fault> {
    Ok(match value {
        wire::AttributeValue::S(text) => AttributeValue::S(text),
        wire::AttributeValue::N(number) => AttributeValue::N(number),
        wire::AttributeValue::B(base64) => {
            AttributeValue::B(bytes(&base64).map_err(|fault| fault.within(".B"))?.into())
        }
        wire::AttributeValue::Bool(bool) => AttributeValue::Bool(bool),
        wire::AttributeValue::Null(true) => AttributeValue::Null(true),
        wire::AttributeValue::Null(false) => return Err(Fault::new("NULL must be true.").within(".NULL")),
        wire::AttributeValue::M(members) => AttributeValue::M(item(members).map_err(|fault| fault.within(".M"))?),
        wire::AttributeValue::L(values) => AttributeValue::L(each(".L", values, self::value)?),
        wire::AttributeValue::Ss(texts) => AttributeValue::Ss(set(".SS", texts)?),
        wire::AttributeValue::Ns(numbers) => AttributeValue::Ns(set(".NS", numbers)?),
        wire::AttributeValue::Bs(blobs) => {
            AttributeValue::Bs(each(".BS", set(".BS", blobs)?, |base64| bytes(&base64).map(Into::into))?)
        }
    })
}

fn each<T, U>(name: &str, values: Vec<T>, read: impl Fn(T) -> Result<U, Fault>) -> Result<Vec<U>, Fault> {
    let element = |(index, value)| read(value).map_err(|fault| fault.within(format_args!("{name}[{index}]")));
    values.into_iter().enumerate().map(element).collect()
}

fn set(name: &str, elements: Vec<String>) -> Result<Vec<String>, Fault> {
    if elements.is_empty() { Err(Fault::new("A set must not be empty.").within(name)) } else { Ok(elements) }
}

fn bytes(base64: &str) -> Result<Vec<u8>, Fault> {
    BASE64_STANDARD.decode(base64).map_err(|error| Fault::new(format!("This is not base64: {error}.")))
}

/// Returns an item in its wire form.
pub(super) fn show(item: Item) -> wire::Item {
    wire::Item(item.into_iter().map(|(name, value)| (name, show_value(value))).collect())
}

fn show_value(value: AttributeValue) -> wire::AttributeValue {
    match value {
        AttributeValue::S(text) => wire::AttributeValue::S(text),
        AttributeValue::N(number) => wire::AttributeValue::N(number),
        AttributeValue::B(bytes) => wire::AttributeValue::B(BASE64_STANDARD.encode(bytes)),
        AttributeValue::Bool(bool) => wire::AttributeValue::Bool(bool),
        AttributeValue::M(members) => wire::AttributeValue::M(show(members)),
        AttributeValue::L(values) => wire::AttributeValue::L(values.into_iter().map(show_value).collect()),
        AttributeValue::Ss(texts) => wire::AttributeValue::Ss(texts),
        AttributeValue::Ns(numbers) => wire::AttributeValue::Ns(numbers),
        AttributeValue::Bs(blobs) => {
            wire::AttributeValue::Bs(blobs.into_iter().map(|bytes| BASE64_STANDARD.encode(bytes)).collect())
        }
        // Null, and types that future versions of DynamoDB may add.
        _ => wire::AttributeValue::Null(true),
    }
}
