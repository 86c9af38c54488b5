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
use leasehold_protocol::{LockTable, Policy, TableSchema};
use leasehold_tests::Faults;
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
