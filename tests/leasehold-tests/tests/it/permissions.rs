//! The functions' roles in `template.yaml` allow what the functions call, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use axum::Router;
use axum::routing::any_service;
use leasehold_api::Service;
use leasehold_api::http::Operation;
use leasehold_cli::server;
use leasehold_conformance::{Target, run, run_with_sort_key};
use leasehold_engine::Engine;
use leasehold_protocol::{Clock, LockTable, Policy, TableSchema, ensure_table, sdk};
use leasehold_runtime::lambda::Function;
use serde_json::json;
use tokio::net::TcpListener;

/// Function or operation, and the DynamoDB actions that are its own.
type Actions = BTreeMap<String, BTreeSet<String>>;

/// An engine that notes what it is asked to do, and by whom.
#[derive(Clone)]
struct Recorder {
    engine: Engine,
    caller: String,
    seen: Arc<Mutex<Actions>>,
}

impl HttpClient for Recorder {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Recorder {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let target = request.headers().get("x-amz-target").expect("DynamoDB's protocol has it");
        let (_, action) = target.split_once('.').expect("service.Action");
        let mut seen = self.seen.lock().expect("no panics while it is held");
        seen.entry(self.caller.clone()).or_default().insert(action.to_owned());
        self.engine.call(request)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

/// A table, and a service for each caller, whose calls are noted.
struct Bench {
    engine: Engine,
    schema: TableSchema,
    seen: Arc<Mutex<Actions>>,
}

impl Bench {
    async fn new(schema: TableSchema) -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        let bench = Self { engine, schema, seen: Arc::default() };
        ensure_table(&bench.client(), &bench.schema).await.expect("a new table");
        bench
    }

    fn client(&self) -> Client {
        Client::from_conf(sdk::configure(self.engine.sdk_config()).build())
    }

    fn service(&self, caller: &str) -> Service {
        let recorder =
            Recorder { engine: self.engine.clone(), caller: caller.to_owned(), seen: Arc::clone(&self.seen) };
        let client = Client::from_conf(sdk::configure(self.engine.sdk_config().http_client(recorder)).build());
        Service::new(LockTable::new(client, self.schema.clone(), Policy::default(), Clock::system()))
    }

    /// Serves each operation by a service of its own, as the functions do.
    async fn serve(&self) -> Target {
        let app = Operation::ALL.into_iter().fold(Router::new(), |app, operation| {
            let service = self.service(&format!("{operation:?}"));
            app.route(operation.path(), any_service(server::router(service)))
        });
        let app = app.fallback_service(server::router(self.service("Nobody")));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let base_url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async { axum::serve(listener, app).await });
        Target { base_url, dynamodb: self.client(), schema: self.schema.clone() }
    }

    fn into_seen(self) -> Actions {
        std::mem::take(&mut self.seen.lock().expect("no panics while it is held"))
    }
}

/// What the operations call while the conformance suite has its way with them, on both kinds of table.
async fn called_over_http() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    run(&bench.serve().await).await.expect("it conforms");
    let mut seen = bench.into_seen();
    let schema = TableSchema { table_name: "locks".into(), partition_key: "pk".into(), sort_key: Some("sk".into()) };
    let bench = Bench::new(schema).await;
    run_with_sort_key(&bench.serve().await).await.expect("it conforms");
    for (caller, actions) in bench.into_seen() {
        seen.entry(caller).or_default().extend(actions);
    }
    seen
}

/// What direct invocations call.
async fn called_directly() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    let function = Function::unrestricted(bench.service("Invoke"));
    let call = async |input| function.answer_direct(input).await.expect("no refusal");
    call(json!({ "action": "acquire", "key": "k", "ownerName": "o", "leaseId": "l" })).await;
    call(json!({ "action": "heartbeat", "key": "k", "leaseId": "l" })).await;
    call(json!({ "action": "release", "key": "k", "leaseId": "l" })).await;
    let lock = call(json!({ "action": "get", "key": "k" })).await;
    call(json!({ "action": "break", "key": "k", "recordVersionNumber": lock["recordVersionNumber"] })).await;
    call(json!({ "action": "acquire", "key": "k", "ownerName": "o", "leaseId": "m" })).await;
    call(json!({ "action": "release", "key": "k", "leaseId": "m", "delete": true })).await;
    bench.into_seen()
}

/// What the clean-up after an execution calls that held one lock, and not the other.
async fn called_by_the_cleanup() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    let arn = "arn:aws:states:eu-west-1:123456789012:execution:nightly:4f1a";
    let acquire = json!({ "action": "acquire", "key": "held", "ownerName": "o", "leaseId": arn });
    Function::unrestricted(bench.service("Nobody")).answer_direct(acquire).await.expect("granted");
    bench.seen.lock().expect("no panics while it is held").clear();
    let input = json!({ "locks": [{ "key": "held" }, { "key": "absent" }] }).to_string();
    let event = json!({ "detail": { "executionArn": arn, "status": "ABORTED", "input": input } });
    Function::unrestricted(bench.service("Cleanup")).answer_cleanup(event).await.expect("done");
    bench.into_seen()
}

/// What the template allows: the words `dynamodb:Action` between one resource and the next.
fn allowed() -> Actions {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../template.yaml");
    let template = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut allowed = Actions::new();
    let mut resource = String::new();
    for line in template.lines() {
        if let Some(name) = line.strip_prefix("  ").and_then(|line| line.strip_suffix(':'))
            && name.chars().all(char::is_alphanumeric)
        {
            name.clone_into(&mut resource);
        }
        let policy = line.trim_start().trim_start_matches("- ").strip_prefix("Action:").unwrap_or_default();
        for action in policy.split([' ', ',', '[', ']']).filter_map(|word| word.strip_prefix("dynamodb:")) {
            let caller = resource.strip_suffix("Function").unwrap_or(&resource);
            allowed.entry(caller.to_owned()).or_default().insert(action.to_owned());
        }
    }
    allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_allow_what_functions_call_and_nothing_else() {
    let mut called = called_over_http().await;
    called.extend(called_directly().await);
    called.extend(called_by_the_cleanup().await);
    assert_eq!(allowed(), called, "template.yaml on the left");
}
