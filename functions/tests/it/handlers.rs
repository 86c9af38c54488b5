//! The handlers of the two binaries: each handler of the template exists, and serves its own routes only.

use std::path::Path;

use leasehold_sandbox::{Answer, InitError, Sandbox};
use leasehold_wire::operation::{Family, Load, OPERATIONS, Operation, Subject};
use serde_json::{Value, json};

const LOCKS: &str = env!("CARGO_BIN_EXE_leasehold-locks");
const TRANSACTIONS: &str = env!("CARGO_BIN_EXE_leasehold-transactions");

/// The variables of a function. No server listens at the endpoint: the functions start all the same.
const VARIABLES: [(&str, &str); 4] = [
    ("LEASEHOLD_TABLE_NAME", "locks"),
    ("LEASEHOLD_TERRAFORM_BUCKET", "states"),
    ("LEASEHOLD_TRANSACTION_TABLE_NAME", "transactions"),
    ("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:1"),
];

async fn start(binary: &str, handler: &str) -> (Sandbox, Result<(), InitError>) {
    let variables = [&VARIABLES[..], &[("_HANDLER", handler)]].concat();
    let mut sandbox = Sandbox::start(Path::new(binary), &variables).await.expect("it is built");
    let ready = sandbox.ready().await.map(drop);
    (sandbox, ready)
}

/// Returns the known paths that the handler does not answer as unknown routes.
async fn served(binary: &str, handler: &str) -> Vec<&'static str> {
    let (mut sandbox, ready) = start(binary, handler).await;
    ready.unwrap_or_else(|error| panic!("{handler}: {error:?}"));
    let mut served = Vec::new();
    for path in paths(|_| true) {
        // No operation has this method, so nothing is carried out.
        let http = json!({ "method": "PUT" });
        let event = json!({ "rawPath": path, "requestContext": { "http": http }, "headers": {} });
        match sandbox.invoke(event).await.0 {
            Answer::Response(answer) if answer["statusCode"] == 404 => {}
            Answer::Response(answer) if answer["statusCode"] == 405 => served.push(path),
            answer => panic!("{handler} {path}: {answer:?}"),
        }
    }
    served
}

/// Returns the paths of these operations.
fn paths(serves: impl Fn(&Operation) -> bool) -> Vec<&'static str> {
    OPERATIONS.iter().filter(|operation| serves(operation)).map(|operation| operation.path).collect()
}

#[tokio::test]
async fn handler_serves_its_own_routes_only() {
    let is_transaction = |operation: &Operation| operation.subject == Subject::Transaction;
    let of = |family| paths(move |operation| operation.family == family && operation.load != Load::Waiting);
    let holds_or_asks = |operation: &Operation| matches!(operation.family, Family::Hold | Family::Ask);
    for (handler, expected) in [
        ("hold", of(Family::Hold)),
        ("ask", of(Family::Ask)),
        ("read", of(Family::Read)),
        ("operate", of(Family::Operate)),
        ("watch", paths(|operation| operation.load == Load::Waiting)),
        ("acquire", paths(holds_or_asks)),
        ("bootstrap", paths(|operation| !is_transaction(operation))),
        ("", paths(|operation| !is_transaction(operation))),
    ] {
        assert_eq!(served(LOCKS, handler).await, expected, "{handler}");
    }
    for (handler, expected) in
        [("transact", of(Family::Transact)), ("sweep", of(Family::Sweep)), ("bootstrap", paths(is_transaction))]
    {
        assert_eq!(served(TRANSACTIONS, handler).await, expected, "{handler}");
    }
}

#[tokio::test]
async fn function_of_everything_serves_direct_invocations() {
    let (mut sandbox, ready) = start(LOCKS, "bootstrap").await;
    ready.expect("it starts");
    for (action, field) in [("get", "key"), ("semaphore-get", "key"), ("semaphore-list", "action")] {
        let Answer::Error(error) = sandbox.invoke(json!({ "action": action, "key": "" })).await.0 else {
            panic!("{action} of an empty key")
        };
        let problem: Value = serde_json::from_str(error["errorMessage"].as_str().expect("a text")).expect("JSON");
        assert_eq!((&error["errorType"], &problem["field"]), (&json!("InvalidRequest"), &json!(field)), "{action}");
    }
}

/// A function of the template has `<<: *function-of-locks`, an alias that names the binary, and `Handler: acquire`
/// below.
#[tokio::test]
async fn every_handler_of_the_template_starts() {
    let mut found = 0;
    let template = include_str!("../../../template.yaml").replace("<<: &", "<<: *");
    for function in template.split("<<: *function-of-").skip(1) {
        let binary = match function.split([' ', ',', '\n']).next() {
            Some("locks") => LOCKS,
            Some("transactions") => TRANSACTIONS,
            other => panic!("no such binary: {other:?}"),
        };
        let handler = function.split("Handler: ").nth(1).expect("each function has one");
        let handler = handler.split([' ', ',', '\n']).next().expect("a word");
        let (_, ready) = start(binary, handler).await;
        ready.unwrap_or_else(|error| panic!("{handler}: {error:?}"));
        found += 1;
    }
    assert!(found >= 10, "{found}");
}

#[tokio::test]
async fn unknown_handler_is_reported() {
    for binary in [LOCKS, TRANSACTIONS] {
        let (_, ready) = start(binary, "acquires").await;
        let Err(InitError::Reported(error)) = ready else { panic!("{ready:?}") };
        assert_eq!(error["errorMessage"], "This code has no handler \"acquires\".");
    }
}
