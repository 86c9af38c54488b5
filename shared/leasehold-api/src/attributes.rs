//! Further attributes of a row: plain JSON on the wire, typed values in the table.

use base64::{Engine, prelude::BASE64_STANDARD};
use leasehold_protocol::{AttributeValue, Attributes};
use leasehold_wire::{Problem, ProblemType};
use serde_json::{Map, Number, Value};

/// DynamoDB bounds an update expression to 4 KB; each attribute takes at most 20 bytes of it.
const MAX_ATTRIBUTES: usize = 50;
/// Names of non-key attributes may be longer in DynamoDB, but not in an index.
const MAX_ATTRIBUTE_NAME_BYTES: usize = 255;
/// With the largest key and payload, the item stays below DynamoDB's 400 KB.
const MAX_ATTRIBUTES_BYTES: usize = 64 * 1024;
/// DynamoDB nests to 32 levels, the outermost of which is the item.
const MAX_DEPTH: usize = 30;
/// The magnitude from which a JSON number with a fraction or an exponent is ambiguous.
const INEXACT_FROM: f64 = 9_007_199_254_740_992.0;
/// The smallest magnitude that DynamoDB stores.
const SMALLEST: f64 = 1e-130;
/// An IEEE 754 double holds this many decimal digits exactly.
const EXACT_DIGITS: usize = 15;

/// Reads the attributes of a request.
pub(crate) fn from_json(attributes: &Map<String, Value>) -> Result<Attributes, Problem> {
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(invalid(format!(
            "{} attributes are given; at most {MAX_ATTRIBUTES} are allowed.",
            attributes.len()
        )));
    }
    if let Some(name) = attributes.keys().find(|name| name.is_empty() || name.len() > MAX_ATTRIBUTE_NAME_BYTES) {
        let length = name.len();
        return Err(invalid(format!(
            "An attribute's name has {length} bytes; 1 to {MAX_ATTRIBUTE_NAME_BYTES} are allowed."
        )));
    }
    let size: usize = attributes.iter().map(|(name, value)| name.len() + size_of(value)).sum();
    if size > MAX_ATTRIBUTES_BYTES {
        return Err(Problem::new(
            ProblemType::TooLarge,
            format!("The attributes have {size} bytes; at most {MAX_ATTRIBUTES_BYTES} are allowed."),
        ));
    }
    attributes.iter().map(|(name, value)| Ok((name.clone(), value_from_json(value, MAX_DEPTH)?))).collect()
}

fn invalid(detail: String) -> Problem {
    Problem::invalid("attributes", detail)
}

/// Estimates the size as DynamoDB counts it.
fn size_of(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 1,
        Value::Number(_) => 21,
        Value::String(text) => text.len() + 1,
        Value::Array(items) => 3 + items.iter().map(|item| 1 + size_of(item)).sum::<usize>(),
        Value::Object(members) => {
            3 + members.iter().map(|(name, value)| 1 + name.len() + size_of(value)).sum::<usize>()
        }
    }
}

fn value_from_json(value: &Value, depth: usize) -> Result<AttributeValue, Problem> {
    let Some(deeper) = depth.checked_sub(1) else {
        return Err(invalid(format!("Attributes may be nested to {MAX_DEPTH} levels.")));
    };
    Ok(match value {
        Value::Null => AttributeValue::Null(true),
        Value::Bool(bool) => AttributeValue::Bool(*bool),
        Value::Number(number) => AttributeValue::N(exact(number)?),
        Value::String(text) => AttributeValue::S(text.clone()),
        Value::Array(items) => {
            AttributeValue::L(items.iter().map(|item| value_from_json(item, deeper)).collect::<Result<_, _>>()?)
        }
        Value::Object(members) => AttributeValue::M(
            members
                .iter()
                .map(|(name, value)| match name.as_str() {
                    "" => Err(invalid("An attribute's member has an empty name.".to_owned())),
                    _ => Ok((name.clone(), value_from_json(value, deeper)?)),
                })
                .collect::<Result<_, Problem>>()?,
        ),
    })
}

fn exact(number: &Number) -> Result<String, Problem> {
    let is_exact = |float: f64| float.abs() < INEXACT_FROM && (float == 0.0 || float.abs() >= SMALLEST);
    if number.is_f64() && !number.as_f64().is_some_and(is_exact) {
        return Err(invalid(format!("The number {number} cannot be kept exactly; write it as a string.")));
    }
    Ok(number.to_string())
}

/// Shows the attributes of a row.
pub(crate) fn to_json(attributes: Attributes) -> Map<String, Value> {
    attributes.into_iter().map(|(name, value)| (name, value_to_json(value))).collect()
}

fn value_to_json(value: AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => Value::String(text),
        AttributeValue::N(number) => number_to_json(number),
        AttributeValue::B(bytes) => Value::String(BASE64_STANDARD.encode(bytes)),
        AttributeValue::Bool(bool) => Value::Bool(bool),
        AttributeValue::L(items) => items.into_iter().map(value_to_json).collect(),
        AttributeValue::M(members) => {
            Value::Object(members.into_iter().map(|(name, value)| (name, value_to_json(value))).collect())
        }
        AttributeValue::Ss(items) => items.into_iter().map(Value::String).collect(),
        AttributeValue::Ns(items) => items.into_iter().map(number_to_json).collect(),
        AttributeValue::Bs(items) => {
            items.into_iter().map(|bytes| Value::String(BASE64_STANDARD.encode(bytes))).collect()
        }
        // Null, and types that future versions of DynamoDB may add.
        _ => Value::Null,
    }
}

/// Returns a number as JSON where that is exact, and as a string where it is not.
fn number_to_json(text: String) -> Value {
    if let Ok(integer) = text.parse::<i64>() {
        return integer.into();
    }
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits = mantissa.trim_start_matches(['-', '0', '.']).bytes().filter(u8::is_ascii_digit).count();
    match text.parse().ok().and_then(Number::from_f64) {
        Some(float) if digits <= EXACT_DIGITS => Value::Number(float),
        _ => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<Attributes, Problem> {
        from_json(&Map::from_iter([("a".to_owned(), value)]))
    }

    #[test]
    fn plain_json_survives_the_table() {
        let values = json!({
            "text": "π", "whole": -3, "large": 9_007_199_254_740_993_i64, "fraction": 0.25, "yes": true, "none": null,
            "list": [1, "two", []], "map": { "deep": { "er": {} } },
        });
        let Value::Object(attributes) = values else { panic!("an object") };
        assert_eq!(to_json(from_json(&attributes).expect("valid")), attributes);
    }

    #[test]
    fn inexact_numbers_are_refused_going_in_and_texts_coming_out() {
        for number in ["1e300", "123456789012345678901234567890", "1e-200"] {
            let value: Value = serde_json::from_str(number).expect("JSON");
            assert_eq!(read(value).expect_err("inexact").field.as_deref(), Some("attributes"), "{number}");
        }
        assert_eq!(number_to_json("12345678901234567890.5".into()), json!("12345678901234567890.5"));
        assert_eq!(number_to_json("0.001".into()), json!(0.001));
    }

    #[test]
    fn limits_hold() {
        let many: Map<_, _> = (0..=MAX_ATTRIBUTES).map(|i| (format!("a{i}"), Value::Null)).collect();
        assert_eq!(from_json(&many).expect_err("many").problem_type, ProblemType::InvalidRequest);
        let nested = (0..MAX_DEPTH).fold(json!(1), |value, _| json!([value]));
        assert_eq!(read(nested).expect_err("deep").problem_type, ProblemType::InvalidRequest);
        assert!(read((1..MAX_DEPTH).fold(json!(1), |value, _| json!([value]))).is_ok());
        let large = json!("x".repeat(MAX_ATTRIBUTES_BYTES));
        assert_eq!(read(large).expect_err("large").problem_type, ProblemType::TooLarge);
        assert_eq!(read(json!({ "": 1 })).expect_err("nameless").problem_type, ProblemType::InvalidRequest);
        let nameless = Map::from_iter([(String::new(), Value::Null)]);
        assert_eq!(from_json(&nameless).expect_err("nameless").problem_type, ProblemType::InvalidRequest);
    }
}
