//! The log reports the operations, and keeps the caller's secrets.

#![allow(clippy::expect_used, reason = "a test fails by a panic")]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use leasehold_api::access::Caller;
use leasehold_api::direct::invoke;
use leasehold_api::logging::{LevelFilter, json_subscriber};
use leasehold_api::{Routed, Service, TransactionService};
use leasehold_tests::bank::Bank;
use leasehold_tests::{Fault, World};
use leasehold_transactions::TransactionId;
use leasehold_wire::{AcquireRequest, HeartbeatRequest, ReleaseRequest, Secret};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("unpoisoned").clone()).expect("UTF-8")
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("unpoisoned").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const LEASE_ID: &str = "a-very-secret-lease-id";
const PAYLOAD: &str = "a-very-private-payload";
const TRANSACTION: &str = "6f1c2a54-5f0e-4c79-9d0b-0a4c7c1d2e3f";

/// The whole log of a function at its most verbose level.
async fn log_of_a_life() -> String {
    let sink = Sink::default();
    let writer = sink.clone();
    let subscriber = json_subscriber(LevelFilter::TRACE, move || writer.clone());
    let guard = tracing::subscriber::set_default(subscriber);
    let world = World::new().await;
    let service = Service::new(world.table.clone());
    let caller = &Caller::unrestricted();
    let acquire = AcquireRequest {
        key: "Moe".into(),
        owner_name: "host-1".into(),
        lease_id: Some(Secret(LEASE_ID.into())),
        data: Some(PAYLOAD.into()),
        ..AcquireRequest::default()
    };
    world.faults.script([Fault::RequestLost]);
    service.acquire(caller, acquire.clone()).await.expect("granted by the second attempt");
    let other = AcquireRequest { lease_id: Some(Secret("another-secret".into())), ..acquire.clone() };
    service.acquire(caller, other).await.expect_err("held");
    let heartbeat =
        HeartbeatRequest { key: "Moe".into(), lease_id: Secret(LEASE_ID.into()), ..HeartbeatRequest::default() };
    service.heartbeat(caller, heartbeat.clone()).await.expect("renewed");
    world.faults.script([Fault::ServerError; 3]);
    service.heartbeat(caller, heartbeat).await.expect_err("unavailable");
    let release = ReleaseRequest {
        key: "Moe".into(),
        lease_id: Secret(LEASE_ID.into()),
        data: Some(PAYLOAD.into()),
        ..ReleaseRequest::default()
    };
    service.release(caller, release).await.expect("released");
    drop(guard);
    sink.text()
}

/// The only test in its binary, because the filter of `tracing` applies to the whole process.
#[tokio::test(start_paused = true)]
async fn log_tells_what_happened_and_keeps_secrets() {
    let log = log_of_a_life().await;
    assert_each_operation_is_one_line(&log);
    assert_no_secret_in(&log);

    let log = log_of_transactions().await;
    assert_each_call_is_one_line(&log);
    assert_what_is_stuck_is_an_error(&log);
    for secret in [PAYLOAD, TRANSACTION] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}

/// The log of transactions whose items are private.
async fn log_of_transactions() -> String {
    let sink = Sink::default();
    let writer = sink.clone();
    let subscriber = json_subscriber(LevelFilter::TRACE, move || writer.clone());
    let guard = tracing::subscriber::set_default(subscriber);
    let bank = Bank::new().await;
    let service = TransactionService::new(bank.transactions.clone());
    let call = async |input: Value| invoke(&service, TransactionService::ROUTES, Caller::unrestricted(), input).await;
    let key = json!({ "id": { "S": PAYLOAD } });
    let item = json!({ "id": { "S": PAYLOAD }, "text": { "S": PAYLOAD }, "bytes": { "B": "YWJj" } });
    let put = json!({ "Put": { "TableName": "accounts", "Item": item } });
    let mut insert = put.clone();
    insert["Put"]["ConditionExpression"] = json!("attribute_not_exists(id)");
    insert["Put"]["ReturnValuesOnConditionCheckFailure"] = json!("ALL_OLD");
    let get = json!({ "Get": { "TableName": "accounts", "Key": key } });

    call(json!({ "action": "begin", "transactionId": TRANSACTION, "requests": [put, get] })).await.expect_err("twice");
    call(json!({ "action": "begin", "transactionId": TRANSACTION, "requests": [put] })).await.expect("begun");
    call(json!({ "action": "get-items", "tableName": "accounts", "key": key })).await.expect("read");
    call(json!({ "action": "commit", "transactionId": TRANSACTION })).await.expect("committed");
    let refused = call(json!({ "action": "begin", "commit": true, "requests": [insert] })).await.expect_err("refused");
    assert!(refused.item.is_some(), "{refused:?}");
    bank.faults.script([Fault::ServerError; 40]);
    call(json!({ "action": "add", "transactionId": TRANSACTION, "requests": [get] })).await.expect_err("unavailable");
    bank.faults.script([]);
    call(json!({ "action": "sweep" })).await.expect("swept");
    bank.stick(&bank.transactions, "stuck").await;
    tokio::time::advance(Duration::from_mins(2)).await;
    call(json!({ "action": "sweep" })).await.expect("swept");
    drop(guard);
    sink.text()
}

fn assert_each_call_is_one_line(log: &str) {
    let id = TransactionId::parse(TRANSACTION).expect("a UUID").public();
    let told: Vec<_> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter(|line| line["message"] == "done")
        .map(|line| {
            assert!(line["duration_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{line}");
            let span = line["spans"].as_array().expect("spans").last().expect("the operation's").clone();
            let is_named = span["transaction"] == id.as_str();
            let text = |name: &str| span[name].as_str().unwrap_or("-").to_owned();
            (text("operation"), text("outcome"), is_named, span["requests"].as_u64().expect("a number"))
        })
        .collect();
    let told: Vec<_> = told.iter().map(|(op, outcome, named, n)| (op.as_str(), outcome.as_str(), *named, *n)).collect();
    let swept = "swept: 0 examined, 0 rolled back, 0 completed, 0 stuck, 0 failed";
    let swept_stuck = "swept: 1 examined, 0 rolled back, 0 completed, 1 stuck, 0 failed";
    assert_eq!(
        told,
        [
            ("begin", "invalid-request", true, 2),
            ("begin", "pending", true, 1),
            ("get-items", "read", false, 1),
            ("commit", "committed", true, 0),
            ("begin", "condition-failed", false, 1),
            ("add", "unavailable", true, 1),
            ("sweep", swept, false, 0),
            ("sweep", swept_stuck, false, 0),
        ]
    );
}

/// Checks that operators get an error in the log, which names the stuck transaction and the reason.
fn assert_what_is_stuck_is_an_error(log: &str) {
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let errors: Vec<_> = lines.filter(|line| line["level"] == "ERROR").collect();
    assert!(!errors.is_empty());
    for error in errors {
        assert_eq!(error["message"], "an item cannot be freed", "{error}");
        assert_eq!(error["reason"], "the row that keeps what it was is missing.", "{error}");
        assert!(error["transaction"].is_string() && error["table"] == "accounts", "{error}");
    }
}

fn assert_each_operation_is_one_line(log: &str) {
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|line: &Value| line["message"] == "done")
        .collect();
    let told: Vec<_> = lines
        .iter()
        .map(|line| {
            assert!(line["duration_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{line}");
            let span = line["spans"].as_array().expect("spans").last().expect("the operation's");
            assert_eq!(span["key"], "Moe", "{line}");
            let text = |name: &str| span[name].as_str().unwrap_or("-").to_owned();
            (text("operation"), text("owner"), text("outcome"), span["dynamodb_attempts"].as_u64().expect("a number"))
        })
        .collect();
    let told: Vec<_> =
        told.iter().map(|(op, owner, outcome, n)| (op.as_str(), owner.as_str(), outcome.as_str(), *n)).collect();
    assert_eq!(
        told,
        [
            ("acquire", "host-1", "created", 2),
            ("acquire", "host-1", "held", 1),
            ("heartbeat", "host-1", "renewed", 1),
            ("heartbeat", "-", "unavailable", 3),
            ("release", "host-1", "released", 1),
        ]
    );
}

fn assert_no_secret_in(log: &str) {
    let hash = Sha256::digest(LEASE_ID.as_bytes());
    let hex = hash.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    for secret in [LEASE_ID, "another-secret", PAYLOAD, &hex, &BASE64_STANDARD.encode(hash)] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}
