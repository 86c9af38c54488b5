//! The log tells what happened, and keeps the caller's secrets.

#![allow(clippy::expect_used, reason = "a test fails by a panic")]

use std::io::Write;
use std::sync::{Arc, Mutex};

use base64::{Engine, prelude::BASE64_STANDARD};
use leasehold_api::Service;
use leasehold_api::access::Caller;
use leasehold_runtime::{LevelFilter, json_subscriber};
use leasehold_tests::{Fault, World};
use leasehold_wire::{AcquireRequest, HeartbeatRequest, ReleaseRequest, Secret};
use serde_json::Value;
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

/// All that the log of a function would say at its most talkative.
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

/// One test, alone in its binary: what `tracing` lets through is decided for the whole process.
#[tokio::test(start_paused = true)]
async fn the_log_tells_what_happened_and_keeps_secrets() {
    let log = log_of_a_life().await;
    assert_each_operation_is_one_line(&log);
    assert_no_secret_in(&log);
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
