//! `docs/openapi.json` is generated from the wire types, and cannot drift from them or from the routes.

use leasehold_api::http::{Operation, Route};
use leasehold_api::{SemaphoreOperation, TransactionOperation};
use leasehold_wire::openapi::Api;
use serde_json::Value;
use utoipa::OpenApi;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

/// `UPDATE_DOCS=1 cargo test --workspace openapi` writes the document anew.
#[test]
fn document_in_docs_is_the_one_that_the_types_make() {
    let document = Api::openapi().to_pretty_json().expect("serialises") + "\n";
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(FILE, &document).expect("writable");
    }
    let written = std::fs::read_to_string(FILE).expect("docs/openapi.json is there");
    assert_eq!(
        written, document,
        "the types changed: run UPDATE_DOCS=1 cargo test --workspace openapi, and read the diff"
    );
}

#[test]
fn every_route_is_documented_and_nothing_else() {
    let document: Value = serde_json::to_value(Api::openapi()).expect("serialises");
    assert!(document["openapi"].as_str().expect("a version").starts_with("3.1."));
    let mut documented: Vec<_> = document["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().expect("methods").keys().map(move |method| (path.clone(), method.to_uppercase()))
        })
        .collect();
    let mut served = [routes::<Operation>(), routes::<SemaphoreOperation>(), routes::<TransactionOperation>()].concat();
    documented.sort();
    served.sort();
    assert_eq!(documented, served);
}

fn routes<R: Route>() -> Vec<(String, String)> {
    R::ALL.iter().map(|operation| (operation.path().to_owned(), operation.method().to_string())).collect()
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
