//! Reads the cases of `clients/vectors`, the rulebook that all clients share.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// The files, and the calls that each has cases for.
const CALLS: [(&str, &[&str]); 5] = [
    (
        "timing.json",
        &[
            "retryAfter",
            "backoff",
            "pollPause",
            "markPause",
            "returnPause",
            "requestTimeout",
            "endpointTimeout",
            "heartbeatInterval",
            "heartbeatPause",
            "heartbeatRetryPause",
            "wait",
            "suspended",
        ],
    ),
    ("observations.json", &["observe", "saved", "save"]),
    ("problems.json", &["problem"]),
    ("coordination.json", &["plan"]),
    // The tests of the client against a scripted service read these.
    ("sequence.json", &["numbers", "renewal"]),
];

fn read(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut file: Value = serde_json::from_str(&text).expect("JSON");
    serde_json::from_value(file["cases"].take()).expect("cases")
}

/// The cases of a call.
pub(crate) fn cases(file: &str, call: &str) -> Vec<Value> {
    let cases: Vec<_> = read(file).into_iter().filter(|case| case["call"] == call).collect();
    assert!(!cases.is_empty(), "{file} has no case for {call}");
    cases
}

/// A duration in milliseconds, possibly with a fraction.
pub(crate) fn ms(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().expect("milliseconds") / 1000.0)
}

#[test]
fn every_call_of_the_vectors_has_a_test() {
    for (file, calls) in CALLS {
        for case in read(file) {
            assert!(calls.iter().any(|call| case["call"] == *call), "{file}: {}", case["call"]);
        }
    }
}
