//! Holds the pauses and bounds to the cases of `clients/vectors/timing.json`.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::path::Path;
use std::time::Duration;

use leasehold_client_core::timing::{
    Returning, backoff, endpoint_timeout, heartbeat_pause, heartbeat_retry_pause, mark_pause, poll_pause, poll_timeout,
    request_timeout, retry_after, return_pause, was_suspended,
};
use serde_json::Value;

const LONGEST: Duration = Duration::from_secs(5);

fn ms(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().expect("milliseconds") / 1000.0)
}

fn optional(value: &Value) -> Option<Duration> {
    (!value.is_null()).then(|| ms(value))
}

fn cases(call: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/vectors/timing.json");
    let text = std::fs::read_to_string(path).expect("the vectors");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let cases = file["cases"].as_array().expect("cases").iter().filter(|case| case["call"] == call);
    cases.cloned().collect()
}

/// Compares within the millisecond that the vectors allow.
fn follows(call: &str, pause: impl Fn(&Value, f64) -> Duration) {
    for case in cases(call) {
        let given = &case["given"];
        let pause = pause(given, given["jitter"].as_f64().unwrap_or_default()).as_secs_f64() * 1000.0;
        let expected = case["expect"].as_f64().expect("milliseconds");
        assert!((pause - expected).abs() <= 1.0, "{call}, {}: {pause}, not {expected}", case["name"]);
    }
}

#[test]
fn pauses_follow_the_vectors() {
    follows("retryAfter", |given, _| retry_after(given["header"].as_str()));
    follows("backoff", |given, chance| {
        let failures = u32::try_from(given["failures"].as_u64().expect("a number")).expect("small");
        backoff(failures, ms(&given["retryAfterMs"]), chance)
    });
    follows("pollPause", |given, chance| poll_pause(optional(&given["chosenMs"]), ms(&given["retryAfterMs"]), chance));
    follows("returnPause", |given, chance| {
        let unwanted_for = optional(&given["unwantedForMs"]);
        let returning = optional(&given["releasedAgoMs"]).map(|released_ago| Returning { released_ago, unwanted_for });
        return_pause(returning, optional(&given["chosenMs"]), chance)
    });
    follows("markPause", |_, chance| mark_pause(chance));
    follows("heartbeatPause", |given, chance| heartbeat_pause(ms(&given["intervalMs"]), chance));
    follows("heartbeatRetryPause", |given, _| heartbeat_retry_pause(ms(&given["pauseMs"]), ms(&given["leftMs"])));
}

#[test]
fn suspension_shows_as_the_vectors_say() {
    for case in cases("suspended") {
        let time = |name: &str| Duration::from_millis(case["given"][name].as_u64().unwrap_or_default());
        assert_eq!(was_suspended(time("monotonicMs"), time("wallMs")), case["expect"], "{}", case["name"]);
    }
}

#[test]
fn time_outs_follow_the_vectors() {
    follows("requestTimeout", |given, _| {
        let (lease, left) = (optional(&given["leaseMs"]), optional(&given["leftMs"]).unwrap_or(Duration::MAX));
        match given["operation"].as_str() {
            Some("wait") => poll_timeout(LONGEST, lease.expect("a wait is for a lease"), left),
            _ => request_timeout(LONGEST, lease, left),
        }
    });
    follows("endpointTimeout", |given, _| {
        let endpoints = u32::try_from(given["endpoints"].as_u64().expect("a number")).expect("small");
        endpoint_timeout(ms(&given["timeoutMs"]), LONGEST, endpoints)
    });
}
