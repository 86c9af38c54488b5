//! Reads requests strictly, and names the field at fault.

use leasehold_wire::{Problem, ProblemType};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads a JSON document.
pub(crate) fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // Serde would also read the fields from an array, in order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Problem::new(ProblemType::InvalidRequest, "The body must be a JSON object."));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let request = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| at_fault::<T>(&error, body))?;
    match deserializer.end() {
        Ok(()) => Ok(request),
        Err(error) => Err(Problem::new(ProblemType::InvalidRequest, format!("After the JSON object: {error}."))),
    }
}

/// Reads a JSON object that is already parsed.
pub(crate) fn object<T: DeserializeOwned>(members: Map<String, Value>) -> Result<T, Problem> {
    serde_path_to_error::deserialize(Value::Object(members))
        .map_err(|error| named(error.path().to_string(), error.inner()))
}

/// Reads a query string: each parameter at most once, all UTF-8.
pub(crate) fn query<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    let mut members = Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        let value = match name.as_str() {
            "limit" | "waitMs" | "sinceMs" | "untilMs" => value.parse::<u64>().map(Value::from).map_err(|_| {
                Problem::invalid(name.clone(), format!("{name} must be a whole number that is not negative."))
            })?,
            "stuck" => value
                .parse::<bool>()
                .map(Value::from)
                .map_err(|_| Problem::invalid("stuck", "stuck must be true or false."))?,
            _ => Value::String(value),
        };
        if members.contains_key(&name) {
            let detail = format!("{name} is given twice.");
            return Err(Problem::invalid(name, detail));
        }
        members.insert(name, value);
    }
    object(members)
}

fn decode(text: &str) -> Result<String, Problem> {
    let spaced = text.replace('+', " ");
    match percent_decode_str(&spaced).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => Err(Problem::new(ProblemType::InvalidRequest, "The query string is not UTF-8.")),
    }
}

fn at_fault<T: DeserializeOwned>(error: &serde_path_to_error::Error<serde_json::Error>, body: &[u8]) -> Problem {
    if error.inner().is_syntax() || error.inner().is_eof() {
        match serde_json::from_slice(body) {
            Err(malformed) => {
                let detail = format!("The body is not valid JSON: {malformed}.");
                return Problem::new(ProblemType::InvalidRequest, detail);
            }
            // Serde also reports a number in place of an enumeration, or two of its members, as syntax errors. Such a
            // document is read again as a value, which gives the precise problem.
            Ok(Value::Object(members)) => {
                if let Err(problem) = object::<T>(members) {
                    return problem;
                }
            }
            Ok(_) => {}
        }
    }
    named(error.path().to_string(), error.inner())
}

fn named(path: String, error: &serde_json::Error) -> Problem {
    let message = error.to_string();
    // The place in the text says no more than the field.
    let message = message.split_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    let field = match named_field(message) {
        Some(field) if path == "." => field.to_owned(),
        Some(field) => format!("{path}.{field}"),
        None => path,
    };
    let detail = in_words(&field, message);
    Problem::invalid(field, detail)
}

/// Says in the words of this API what is Serde's message about a field.
fn in_words(field: &str, message: &str) -> String {
    let named = if field == "." { "It" } else { field };
    if message.starts_with("missing field") {
        return format!("{named} is missing.");
    }
    if message.starts_with("duplicate field") {
        return format!("{named} is given twice.");
    }
    let is_wrong =
        ["invalid type: ", "invalid value: ", "unknown variant "].iter().find_map(|it| message.strip_prefix(it));
    let Some((found, wanted)) = is_wrong.and_then(|rest| rest.split_once(", expected ")) else {
        return format!("{message}.");
    };
    let wanted = match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "a sequence" => "a list",
        "a map" => "an object",
        wanted if wanted.starts_with("struct ") => "an object",
        wanted => wanted,
    };
    let found = match found.split_once(' ') {
        Some(("integer", number)) => format!("the number {}", number.trim_matches('`')),
        Some(("floating", number)) => format!("the number {}", number.trim_start_matches("point ").trim_matches('`')),
        Some(("boolean", value)) => value.trim_matches('`').to_owned(),
        Some(("string", text)) => text.to_owned(),
        None if found == "sequence" => "a list".to_owned(),
        None if found == "map" => "an object".to_owned(),
        _ => found.to_owned(),
    };
    format!("{named} must be {wanted}, not {found}.")
}

/// Serde names a missing or duplicate field in its message and not in the path.
fn named_field(message: &str) -> Option<&str> {
    let rest = ["missing field `", "duplicate field `"].iter().find_map(|prefix| message.strip_prefix(prefix))?;
    Some(rest.split_once('`')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_wire::{AcquireRequest, GetRequest};

    fn field_at_fault(body: &str) -> Option<String> {
        json::<AcquireRequest>(body.as_bytes()).expect_err("invalid").field
    }

    #[test]
    fn field_at_fault_is_named() {
        for (body, field) in [
            (r#"{"ownerName":"a"}"#, "key"),
            (r#"{"key":"k"}"#, "ownerName"),
            (r#"{"key":"k","ownerName":"a","leaseTime":1}"#, "leaseTime"),
            (r#"{"key":"k","key":"k","ownerName":"a"}"#, "key"),
            (r#"{"key":1,"ownerName":"a"}"#, "key"),
            (r#"{"key":"k","ownerName":"a","leaseDurationMs":-1}"#, "leaseDurationMs"),
            (r#"{"key":"k","ownerName":"a","leaseDurationMs":1.5}"#, "leaseDurationMs"),
            (r#"{"key":"k","ownerName":"a","staleness":"guess"}"#, "staleness"),
            (r#"{"key":"k","ownerName":"a","staleness":1}"#, "staleness"),
            (r#"{"key":"k","ownerName":"a","attributes":[]}"#, "attributes"),
        ] {
            assert_eq!(field_at_fault(body).as_deref(), Some(field), "{body}");
        }
    }

    #[test]
    fn field_at_fault_is_told_in_words() {
        for (members, detail) in [
            (r#""key":5"#, "key must be a string, not the number 5."),
            (r#""key":[1]"#, "key must be a string, not a list."),
            (r#""key":{}"#, "key must be a string, not an object."),
            (r#""key":true"#, "key must be a string, not true."),
            (r#""key":null"#, "key must be a string, not null."),
            (
                r#""key":"k","leaseDurationMs":-1"#,
                "leaseDurationMs must be a whole number that is not negative, not the number -1.",
            ),
            (
                r#""key":"k","leaseDurationMs":1.5"#,
                "leaseDurationMs must be a whole number that is not negative, not the number 1.5.",
            ),
            (
                r#""key":"k","leaseDurationMs":"20""#,
                r#"leaseDurationMs must be a whole number that is not negative, not "20"."#,
            ),
            (r#""key":"k","attributes":[]"#, "attributes must be an object, not a list."),
            (r#""key":"k","staleness":"guess""#, "staleness must be `rvn` or `clock`, not `guess`."),
            (r#""key":"k","key":"k""#, "key is given twice."),
            (r#""sortKey":"k""#, "key is missing."),
        ] {
            let body = format!(r#"{{"ownerName":"a",{members}}}"#);
            let problem = json::<AcquireRequest>(body.as_bytes()).expect_err("invalid");
            assert_eq!(problem.detail, detail);
        }
    }

    #[test]
    fn body_is_refused_when_it_is_no_object() {
        for body in ["", "[]", r#"["k",null,"me"]"#, "null", "{", r#"{"key":"\ud800","ownerName":"a"}"#, "{} {}"] {
            assert!(json::<AcquireRequest>(body.as_bytes()).is_err(), "{body}");
        }
        assert!(json::<AcquireRequest>(b"{\"key\":\"\xff\",\"ownerName\":\"a\"}").is_err());
    }

    #[test]
    fn queries_are_decoded_once_and_strictly() {
        let read = |text| query::<GetRequest>(text).map(|request| request.key);
        assert_eq!(read("key=a%2Fb+c%3F%2520").expect("valid"), "a/b c?%20");
        assert_eq!(read("key=%00").expect("valid"), "\0");
        assert!(read("key=%ff").is_err());
        assert_eq!(read("key=a&key=b").expect_err("twice").field.as_deref(), Some("key"));
        assert_eq!(read("key=a&nokey=b").expect_err("unknown").field.as_deref(), Some("nokey"));
        assert_eq!(read("").expect_err("missing").field.as_deref(), Some("key"));
    }
}
