//! Each answer of the conformance suite has a status and a media type that `docs/openapi.json` names. With
//! `LEASEHOLD_TEST_ANSWERS` the answers are written to that file, for `scripts/schema.sh` to validate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use http::Method;
use http::response::Parts;
use leasehold_api::Service;
use leasehold_conformance::{CONCURRENT_CASES, Refusals, Target, run};
use leasehold_dynamodb::Clock;
use leasehold_protocol::history::{HistoryTable, ensure_history_table};
use leasehold_protocol::{LockTable, Policy};
use leasehold_wire::openapi::Api;
use leasehold_wire::operation::{OPERATIONS, Subject};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use utoipa::OpenApi;

use crate::conformance::{memory, serve_engine, without_sort_key};

/// The answers of one run: the schemas of the document beside what was answered.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    of_operations: BTreeMap<(String, u16), usize>,
    violations: BTreeSet<String>,
    documents: BTreeSet<String>,
}

impl Answers {
    /// Compares an answer to a request of the document. Other paths and methods have no answer there.
    fn compare(&mut self, openapi: &Value, request: (&Method, &str), head: &Parts, body: &[u8]) {
        let (method, path) = request;
        let described = &openapi["paths"][path][method.as_str().to_ascii_lowercase()];
        if described.is_null() {
            return;
        }
        let media_type = head.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let name = format!("{method} {path}: {} {media_type}", head.status);
        let schema = &described["responses"][head.status.as_str()]["content"][media_type]["schema"];
        match serde_json::from_slice::<Value>(body) {
            _ if schema.is_null() => drop(self.violations.insert(format!("{name} is not in the document"))),
            Err(_) => drop(self.violations.insert(format!("{name} is no JSON"))),
            Ok(answer) => {
                let document = json!({ "name": name, "schema": schema, "answer": answer });
                self.documents.insert(document.to_string());
            }
        }
        *self.of_operations.entry((path.to_owned(), head.status.as_u16())).or_default() += 1;
    }
}

async fn compared(openapi: Arc<Value>, answers: Arc<Mutex<Answers>>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (head, body) = next.run(request).await.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body");
    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    answers.compare(&openapi, (&method, &path), &head, &body);
    Response::from_parts(head, Body::from(body))
}

/// Runs the conformance suite over HTTP on an engine in memory, once for all tests that look at its answers, and
/// returns these and the refusals among them.
pub(crate) async fn suite() -> &'static (Answers, Refusals) {
    static SUITE: OnceCell<(Answers, Refusals)> = OnceCell::const_new();
    SUITE.get_or_init(conforming).await
}

async fn conforming() -> (Answers, Refusals) {
    let over_http = serve_engine(&memory(), without_sort_key()).await;
    let (dynamodb, schema) = (over_http.dynamodb.clone(), over_http.schema.clone());
    ensure_history_table(&dynamodb, "history").await.expect("a new table");
    let history = HistoryTable::new(dynamodb.clone(), "history", Duration::from_hours(1));
    let service = Service::new(LockTable::new(dynamodb, schema, Policy::default(), Clock::system()));
    let service = service.with_history(history);
    let openapi = Arc::new(serde_json::to_value(Api::openapi()).expect("serialises"));
    let answers = Arc::new(Mutex::new(Answers::default()));
    let layer = (openapi, Arc::clone(&answers));
    let layer = from_fn(move |request, next| compared(Arc::clone(&layer.0), Arc::clone(&layer.1), request, next));
    let routes = leasehold_server::routes(service).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(leasehold_server::run(listener, routes, std::future::pending()));
    let target = Target { base_url, refusals: Refusals::default(), concurrent_cases: CONCURRENT_CASES, ..over_http };
    run(&target).await.unwrap_or_else(|failures| panic!("{failures}"));
    let answers = std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner));
    (answers, target.refusals)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_conformance_suite_are_as_documented() {
    let (answers, _) = suite().await;
    assert!(answers.violations.is_empty(), "{:#?}", answers.violations);
    for operation in OPERATIONS.iter().filter(|operation| operation.subject != Subject::Transaction) {
        let is_answered = answers.of_operations.contains_key(&(operation.path.to_owned(), 200));
        assert!(is_answered, "{}: {:?}", operation.name, answers.of_operations);
    }
    assert!(answers.documents.len() > 300, "{:?}", answers.of_operations);
    if let Some(file) = std::env::var_os("LEASEHOLD_TEST_ANSWERS") {
        let lines = answers.documents.iter().fold(String::new(), |lines, document| lines + document + "\n");
        std::fs::write(file, lines).expect("written");
    }
}
