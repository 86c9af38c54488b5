//! A table in several regions has no transactions: what needs them is refused before anything is asked of DynamoDB.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use http::Request;
use leasehold_api::access::Caller;
use leasehold_api::{Routed, Service, TransactionService, direct};
use leasehold_client::Transport;
use leasehold_dynamodb::Clock;
use leasehold_in_process::InProcess;
use leasehold_lambda::answer_sweep;
use leasehold_protocol::{LockTable, Policy, TableSchema, check_table, ensure_table};
use leasehold_tests::{Fault, Faults};
use leasehold_transactions::{self as transactions, Transactions};
use leasehold_wire::operation::{OPERATIONS, Subject};
use leasehold_wire::{Problem, ProblemType};
use serde_json::json;

use crate::conformance::memory;

/// The services of a table in several regions, and the requests that they send.
fn services() -> (Service, TransactionService, Faults) {
    let engine = memory();
    let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let (client, faults) = Faults::between(&client);
    let policy = transactions::Policy::default();
    let transactions = Transactions::new(&client, "transactions", policy, Clock::system(), Vec::new());
    let table = LockTable::new(client, TableSchema::new("locks"), Policy::default(), Clock::system());
    let transactions = TransactionService::new(transactions).multi_region(true);
    (Service::new(table).multi_region(true), transactions, faults)
}

fn check(name: &str, problem: &Problem) {
    assert_eq!((problem.problem_type, problem.retryable), (ProblemType::InvalidRequest, false), "{name}");
    let detail = &problem.detail;
    assert!(detail.contains(&format!("no {name}:")) && detail.contains("several regions"), "{name}: {detail}");
}

#[tokio::test(start_paused = true)]
async fn transactions_are_refused_before_any_call() {
    let (locks, transactions, faults) = services();
    let transport = InProcess::new(locks.clone()).with_transactions(transactions.clone());
    let mut refused = Vec::new();
    for operation in OPERATIONS.iter().filter(|operation| operation.needs_transactions()) {
        let request = Request::builder().method(operation.method.as_str()).uri(operation.path);
        let request = request.header("content-type", "application/json").body(b"{}".to_vec()).expect("a request");
        let answer = transport.send(request).await.expect("an operation");
        check(operation.name, &serde_json::from_slice(answer.body()).expect("a problem"));
        if let Some(action) = operation.action() {
            let (input, anyone) = (json!({ "action": action }), Caller::unrestricted());
            let answered = match operation.subject {
                Subject::Transaction => direct::invoke(&transactions, TransactionService::ROUTES, anyone, input).await,
                Subject::Lock | Subject::Semaphore => direct::invoke(&locks, Service::ROUTES, anyone, input).await,
            };
            check(operation.name, &answered.expect_err("refused"));
        }
        refused.push(operation.name);
    }
    assert!(refused.contains(&"acquire-all") && refused.contains(&"begin"), "{refused:?}");
    let swept = answer_sweep(&transactions, json!({}), Duration::from_secs(5)).await.expect_err("refused");
    assert_eq!(swept.error_type, "InvalidRequest");
    assert_eq!(faults.take_calls(), 0);
}

/// The description of a table in several regions, as DynamoDB gives it.
const STRONG: &str = r#"{"Table":{"KeySchema":[{"AttributeName":"key","KeyType":"HASH"}],
    "Replicas":[{"RegionName":"us-east-2"},{"RegionName":"us-west-2"}],"MultiRegionConsistency":"STRONG"}}"#;
const EVENTUAL: &str = r#"{"Table":{"KeySchema":[{"AttributeName":"key","KeyType":"HASH"}],
    "Replicas":[{"RegionName":"us-east-2"}],"MultiRegionConsistency":"EVENTUAL"}}"#;

/// A client of a table with this description.
fn described(description: &'static str) -> Client {
    let engine = memory();
    let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let (client, faults) = Faults::between(&client);
    faults.script([Fault::Answered(description)]);
    client
}

#[tokio::test]
async fn eventual_consistency_is_refused_at_the_start() {
    let schema = TableSchema::new("locks");
    for refused in
        [ensure_table(&described(EVENTUAL), &schema).await.map(drop), check_table(&described(EVENTUAL), &schema).await]
    {
        let refused = refused.expect_err("refused").to_string();
        assert!(refused.contains("Two regions would grant the same lock"), "{refused}");
    }
    let client = described(EVENTUAL);
    let service = InProcess::on_table(&client, schema, Policy::default()).expect("valid");
    let refused = service.check_regions(&client, "locks").await.expect_err("refused");
    assert!(refused.contains("Two regions would grant the same lock"), "{refused}");
}

#[tokio::test]
async fn strong_consistency_needs_the_mode() {
    let schema = TableSchema::new("locks");
    let refused = ensure_table(&described(STRONG), &schema).await.expect_err("refused").to_string();
    assert!(refused.contains("LEASEHOLD_MULTI_REGION"), "{refused}");
    check_table(&described(STRONG), &schema).await.expect("it is there, and strong");

    // In the caller's process, the table decides.
    let client = described(STRONG);
    let service = InProcess::on_table(&client, schema, Policy::default()).expect("valid");
    let service = service.check_regions(&client, "locks").await.expect("strong");
    let request = Request::post("/v1/acquire-all").header("content-type", "application/json");
    let answer = service.send(request.body(b"{}".to_vec()).expect("a request")).await.expect("an operation");
    check("acquire-all", &serde_json::from_slice(answer.body()).expect("a problem"));
}
