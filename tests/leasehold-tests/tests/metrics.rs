//! The output of the functions for CloudWatch.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::io::Write;
use std::sync::{Arc, Mutex};

use leasehold_api::Service;
use leasehold_api::access::{Access, Scopes};
use leasehold_api::logging::LevelFilter;
use leasehold_lambda::Emf;
use leasehold_lambda::Function;
use leasehold_tests::{Fault, World, json_of};
use serde_json::{Value, json};

/// The maximum length of a line as it is printed, with a key of one byte.
const MAX_LINE_BYTES: usize = 430;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("unpoisoned").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines since the last call of this function.
fn printed(sink: &Sink) -> Vec<Value> {
    let text = String::from_utf8(std::mem::take(&mut *sink.0.lock().expect("unpoisoned"))).expect("UTF-8");
    assert!(text.is_empty() || text.ends_with('\n'), "whole lines: {text}");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    // Warnings of the attempts are separate lines.
    lines.filter(|line| line.get("_aws").is_some()).collect()
}

/// Checks the one line about an operation: these counts, a latency, and the members of its log line.
fn assert_line(line: &Value, operation: &str, counts: &[&str]) {
    // docs/operations.md assumes two such lines a cycle.
    assert!(line.to_string().len() <= MAX_LINE_BYTES, "{} bytes: {line}", line.to_string().len());
    assert!(line["outcome"].is_string() && line["principal"] == "direct", "{line}");
    assert!(["k", "other"].contains(&line["key"].as_str().expect("a key")), "{line}");
    let mut line = line.clone();
    for member in ["key", "owner", "outcome", "principal", "dynamodb_attempts"] {
        line.as_object_mut().expect("an object").remove(member);
    }
    let line = &line;
    let timestamp = &line["_aws"]["Timestamp"];
    assert!(timestamp.is_u64(), "milliseconds since the epoch: {line}");
    let latency = &line["Latency"];
    assert!(latency.as_array().is_some_and(|values| values.len() == 1 && values[0].is_f64()), "{line}");
    let unit = |name: &str| if name == "Latency" { "Milliseconds" } else { "Count" };
    let mut names: Vec<_> = counts.iter().copied().chain(["Latency"]).collect();
    names.sort_unstable();
    let metrics: Vec<_> = names.iter().map(|name| json!({ "Name": name, "Unit": unit(name) })).collect();
    let mut expected = json!({
        "_aws": {
            "Timestamp": timestamp,
            "CloudWatchMetrics": [{ "Namespace": "Leasehold", "Dimensions": [["stack", "operation"]], "Metrics": metrics }],
        },
        "stack": "orders-locks",
        "operation": operation,
        "Latency": latency,
    });
    for name in counts {
        expected[name] = json!(1);
    }
    let mut line = line.clone();
    let metrics = line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array_mut().expect("a list");
    metrics.sort_by_key(|metric| metric["Name"].as_str().map(str::to_owned));
    assert_eq!(line, expected);
}

/// The only test in its binary, because the counters belong to the whole process.
#[tokio::test(start_paused = true)]
async fn each_operation_is_one_line_with_its_outcome() {
    let sink = Sink::default();
    let writer = sink.clone();
    let log = leasehold_lambda::subscriber(LevelFilter::INFO, move || writer.clone());
    let _log = tracing::subscriber::set_default(log);
    Emf::start(Some("orders-locks".into())).expect("nobody counts yet");
    assert!(Emf::start(None).is_err(), "once in a process");
    let world = World::new().await;
    let scopes = Scopes::parse(r#"[{"principal":"direct","prefixes":["k"]}]"#).expect("valid");
    let access = Access { scopes: Some(scopes), owner_binding: false };
    let function = Function { access, ..Function::unrestricted(Service::new(world.table.clone())) };
    let acquire = |lease_id: &str| json!({ "action": "acquire", "key": "k", "ownerName": "o", "leaseId": lease_id });
    let mut takeover = acquire("b");
    let mut breaking = json!({ "action": "break", "key": "k" });
    let holder = |action: &str, lease_id: &str| json!({ "action": action, "key": "k", "leaseId": lease_id });

    let told: [(Value, &str, &[&str]); 4] = [
        (acquire("a"), "acquire", &["Granted"]),
        (acquire("a"), "acquire", &["Granted"]),
        (acquire("b"), "acquire", &["Held"]),
        (holder("heartbeat", "a"), "heartbeat", &[]),
    ];
    for (input, operation, counts) in told {
        let _ = function.answer_direct(input.clone()).await;
        let lines = printed(&sink);
        assert_eq!(lines.len(), 1, "{input}: {lines:?}");
        assert_line(&lines[0], operation, counts);
    }
    let lock = function.answer_direct(json!({ "action": "get", "key": "k" })).await.map(json_of).expect("a lock");
    assert_line(&printed(&sink)[0], "get", &[]);
    takeover["observedRecordVersionNumber"] = lock["recordVersionNumber"].clone();
    let taken = function.answer_direct(takeover).await.map(json_of).expect("taken over");
    assert_line(&printed(&sink)[0], "acquire", &["Granted", "TakenOver"]);
    breaking["recordVersionNumber"] = taken["recordVersionNumber"].clone();

    let told: [(Value, &str, &[&str]); 9] = [
        (holder("heartbeat", "a"), "heartbeat", &["Lost"]),
        (holder("release", "a"), "release", &["Lost"]),
        (breaking.clone(), "break", &["Broken"]),
        (breaking, "break", &[]),
        (acquire("b"), "acquire", &["Lost"]),
        (acquire("c"), "acquire", &["Granted"]),
        (holder("release", "c"), "release", &[]),
        (json!({ "action": "get", "key": "other" }), "get", &["Forbidden"]),
        (json!({ "action": "get", "key": "k", "sortKey": "not on this table" }), "get", &[]),
    ];
    for (input, operation, counts) in told {
        let _ = function.answer_direct(input.clone()).await;
        let lines = printed(&sink);
        assert_eq!(lines.len(), 1, "{input}: {lines:?}");
        assert_line(&lines[0], operation, counts);
    }

    for fault in [Fault::ServerError, Fault::Throttled] {
        world.faults.script([fault; 3]);
        function.answer_direct(holder("heartbeat", "c")).await.expect_err("no answer");
        assert_line(&printed(&sink)[0], "heartbeat", &["Unavailable"]);
    }
    assert_eq!(printed(&sink), [] as [Value; 0], "nothing twice");
}
