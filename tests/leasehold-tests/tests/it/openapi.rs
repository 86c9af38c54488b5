//! `docs/openapi.json` is generated from the table of operations and the wire types, and cannot drift from them.

use leasehold_wire::openapi::Api;
use serde_json::Value;
use utoipa::OpenApi;

/// Compares a file with what is generated. `UPDATE_DOCS=1` writes the file anew.
pub(crate) fn compare(file: &str, generated: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, generated).expect("writable");
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert_eq!(
        written, generated,
        "{file} is stale: run UPDATE_DOCS=1 cargo test --workspace --test it -- openapi::, and read the diff"
    );
}

#[test]
fn document_is_the_one_that_table_and_types_make() {
    let document = Api::openapi().to_pretty_json().expect("serialises") + "\n";
    compare(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json"), &document);
}

#[test]
fn requests_refuse_unknown_fields_in_the_document_too() {
    let document: Value = serde_json::to_value(Api::openapi()).expect("serialises");
    for request in ["AcquireRequest", "HeartbeatRequest", "ReleaseRequest", "BreakRequest"] {
        let schema = &document["components"]["schemas"][request];
        assert_eq!(schema["additionalProperties"], Value::Bool(false), "{request}");
        assert_eq!(schema["required"][0], "key", "{request}");
    }
}

#[test]
fn text_of_every_answer_stands_alone() {
    let document: Value = serde_json::to_value(Api::openapi()).expect("serialises");
    for response in all(&document, "responses").flat_map(|responses| responses.as_object().expect("by status").values())
    {
        let text = response["description"].as_str().expect("a text");
        let sentences = text.split(". ").map(|sentence| sentence.rsplit("`: ").next().unwrap_or(sentence));
        for sentence in sentences {
            let begins = sentence.split(' ').next().unwrap_or_default().to_lowercase();
            let is_alone = !["it", "they", "them", "that", "none", "what"].contains(&begins.as_str());
            assert!(is_alone && sentence.split_whitespace().count() > 2, "{sentence:?} of {text:?}");
        }
    }
}

/// The members of this name of all operations.
fn all<'a>(document: &'a Value, member: &'a str) -> impl Iterator<Item = &'a Value> {
    let paths = document["paths"].as_object().expect("paths").values();
    paths.flat_map(|path| path.as_object().expect("methods").values()).map(move |operation| &operation[member])
}
