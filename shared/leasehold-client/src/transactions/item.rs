//! Converts between the caller's types and DynamoDB JSON.

use std::collections::HashMap;

use base64::prelude::{BASE64_STANDARD, Engine};
use leasehold_wire::transactions::{AttributeValue, Item};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_dynamo::AttributeValue as Typed;

use crate::Error;

/// Converts a value that serde serialises to an object into an item.
///
/// # Errors
/// [`crate::ErrorKind::InvalidRequest`]: the value is no object, or contains something that DynamoDB has no type for.
pub fn to_item(value: impl Serialize) -> Result<Item, Error> {
    let typed: HashMap<String, Typed> = serde_dynamo::to_item(value)
        .map_err(|error| Error::invalid("item", format!("this cannot be made an item: {error}")))?;
    Ok(show_item(typed))
}

/// Converts an item into a value.
///
/// # Errors
/// [`crate::ErrorKind::InvalidRequest`]: the item is not of this type.
pub fn from_item<T: DeserializeOwned>(item: Item) -> Result<T, Error> {
    let not_of_this_type = |error: &dyn std::fmt::Display| {
        let name = std::any::type_name::<T>();
        Error::invalid("item", format!("the item cannot be made a {name}: {error}"))
    };
    let typed = read_item(item).map_err(|error| not_of_this_type(&error))?;
    serde_dynamo::from_item(typed).map_err(|error| not_of_this_type(&error))
}

/// Converts a value that serde can serialise into a DynamoDB value.
pub(crate) fn to_value(value: impl Serialize) -> Result<AttributeValue, Error> {
    let typed: Typed = serde_dynamo::to_attribute_value(value)
        .map_err(|error| Error::invalid("value", format!("this cannot be made a value of DynamoDB's: {error}")))?;
    Ok(show(typed))
}

fn show_item(item: HashMap<String, Typed>) -> Item {
    Item(item.into_iter().map(|(name, value)| (name, show(value))).collect())
}

fn show(value: Typed) -> AttributeValue {
    match value {
        Typed::S(text) => AttributeValue::S(text),
        Typed::N(number) => AttributeValue::N(number),
        Typed::B(bytes) => AttributeValue::B(BASE64_STANDARD.encode(bytes)),
        Typed::Bool(value) => AttributeValue::Bool(value),
        Typed::Null(value) => AttributeValue::Null(value),
        Typed::M(map) => AttributeValue::M(show_item(map)),
        Typed::L(list) => AttributeValue::L(list.into_iter().map(show).collect()),
        Typed::Ss(texts) => AttributeValue::Ss(texts),
        Typed::Ns(numbers) => AttributeValue::Ns(numbers),
        Typed::Bs(blobs) => AttributeValue::Bs(blobs.into_iter().map(|bytes| BASE64_STANDARD.encode(bytes)).collect()),
    }
}

fn read_item(item: Item) -> Result<HashMap<String, Typed>, base64::DecodeError> {
    item.0.into_iter().map(|(name, value)| Ok((name, read(value)?))).collect()
}

fn read(value: AttributeValue) -> Result<Typed, base64::DecodeError> {
    Ok(match value {
        AttributeValue::S(text) => Typed::S(text),
        AttributeValue::N(number) => Typed::N(number),
        AttributeValue::B(base64) => Typed::B(BASE64_STANDARD.decode(base64)?),
        AttributeValue::Bool(value) => Typed::Bool(value),
        AttributeValue::Null(value) => Typed::Null(value),
        AttributeValue::M(map) => Typed::M(read_item(map)?),
        AttributeValue::L(list) => Typed::L(list.into_iter().map(read).collect::<Result<_, _>>()?),
        AttributeValue::Ss(texts) => Typed::Ss(texts),
        AttributeValue::Ns(numbers) => Typed::Ns(numbers),
        AttributeValue::Bs(blobs) => {
            Typed::Bs(blobs.into_iter().map(|base64| BASE64_STANDARD.decode(base64)).collect::<Result<_, _>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Everything {
        text: String,
        number: i64,
        fraction: f64,
        large: u64,
        yes: bool,
        nothing: Option<String>,
        list: Vec<Everything>,
        #[serde(with = "serde_dynamo::string_set")]
        texts: Vec<String>,
        #[serde(with = "serde_dynamo::number_set")]
        numbers: Vec<i32>,
    }

    fn everything(list: Vec<Everything>) -> Everything {
        Everything {
            text: "Moe".into(),
            number: -3,
            fraction: 0.1,
            large: u64::MAX,
            yes: true,
            nothing: None,
            list,
            texts: vec!["a".into(), "b".into()],
            numbers: vec![1, 2],
        }
    }

    #[test]
    fn values_survive_the_round_trip() {
        let item = to_item(everything(vec![everything(vec![])])).expect("an item");
        assert_eq!(item.0["number"], AttributeValue::N("-3".into()));
        assert_eq!(item.0["nothing"], AttributeValue::Null(true));
        assert_eq!(item.0["texts"], AttributeValue::Ss(vec!["a".into(), "b".into()]));
        assert_eq!(from_item::<Everything>(item).expect("the same"), everything(vec![everything(vec![])]));
    }

    #[test]
    fn every_type_of_dynamodb_is_read() {
        let wire = json!({
            "b": {"B": "AP8="}, "bs": {"BS": ["AP8="]}, "ns": {"NS": ["1"]}, "ss": {"SS": ["x"]},
            "m": {"M": {"l": {"L": [{"N": "1.5"}, {"BOOL": false}, {"NULL": true}]}}}
        });
        let item: Item = serde_json::from_value(wire.clone()).expect("DynamoDB JSON");
        let typed = read_item(item).expect("base64");
        assert_eq!(typed["b"], Typed::B(vec![0, 255]));
        assert_eq!(serde_json::to_value(show_item(typed)).expect("JSON"), wire);
    }

    #[test]
    fn values_without_a_dynamodb_type_are_refused() {
        assert!(to_item("a text is no item").is_err());
        let text = Item([("id".to_owned(), AttributeValue::S("a".into()))].into());
        let error = from_item::<Everything>(text.clone()).expect_err("much is missing");
        assert!(error.to_string().contains("Everything"), "{error}");
        assert_eq!(from_item::<Value>(text).expect("any"), json!({"id": "a"}));
        let garbage = Item([("b".to_owned(), AttributeValue::B("?".into()))].into());
        assert!(from_item::<Value>(garbage).is_err());
    }
}
