//! The Lambda adapters, fed with what API Gateway and Step Functions send, and with what they should not.

use leasehold_api::Service;
use leasehold_api::http::Operation;
use leasehold_lambda::{Function, HttpAnswer};
use leasehold_tests::{World, json_of};
use serde_json::{Value, json};

pub(crate) fn event(name: &str) -> Value {
    let file = format!("{}/../../events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

async fn function() -> Function {
    Function::unrestricted(Service::new(World::new().await.table))
}

async fn http(function: &Function, operation: Operation, event: Value) -> (HttpAnswer, Value) {
    let event = serde_json::from_value(event).expect("the adapter reads the event");
    let answer = function.answer_http(&[operation], &event).await;
    let body = serde_json::from_str(&answer.body).expect("a JSON document");
    (answer, body)
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_lock_over_http() {
    let function = function().await;
    let (answer, granted) = http(&function, Operation::Acquire, event("http-acquire")).await;
    assert_eq!((answer.status_code, answer.headers["content-type"].as_str()), (200, "application/json"));
    assert_eq!((&granted["outcome"], &granted["data"]), (&json!("created"), &json!("hello")));

    let (answer, refused) = http(&function, Operation::Acquire, event("http-acquire-base64")).await;
    assert_eq!((answer.status_code, answer.headers["content-type"].as_str()), (423, "application/problem+json"));
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(refused["lock"]["ownerName"], "host-1");

    let (answer, renewed) = http(&function, Operation::Heartbeat, event("http-heartbeat")).await;
    assert_eq!((answer.status_code, &renewed["leaseDurationMs"]), (200, &json!(20_000)));
    let (answer, lock) = http(&function, Operation::Get, event("http-get")).await;
    assert_eq!((answer.status_code, &lock["recordVersionNumber"]), (200, &renewed["recordVersionNumber"]));
    let (answer, page) = http(&function, Operation::List, event("http-list")).await;
    assert_eq!((answer.status_code, &page["locks"][0]), (200, &lock));
    let (answer, released) = http(&function, Operation::Release, event("http-release")).await;
    assert_eq!((answer.status_code, &released["outcome"]), (200, &json!("released")));
    let (answer, problem) = http(&function, Operation::Break, event("http-break")).await;
    assert_eq!((answer.status_code, &problem["type"]), (409, &json!("version-mismatch")));
    let (answer, health) = http(&function, Operation::Health, event("http-health")).await;
    assert_eq!((answer.status_code, health), (200, json!({ "status": "ok" })));
}

/// One function for the holder's three operations: the route says which one is meant, or behind a Function URL the path.
#[tokio::test(start_paused = true)]
async fn one_function_serves_what_route_or_path_name() {
    let function = function().await;
    let holders = [Operation::Acquire, Operation::Heartbeat, Operation::Release];
    let ask = async |name: &str, route: &str, path: &str| {
        let mut event = event(name);
        event["rawPath"] = json!(path);
        event["routeKey"] = json!(route);
        let event = serde_json::from_value(event).expect("the adapter reads the event");
        let answer = function.answer_http(&holders, &event).await;
        (answer.status_code, serde_json::from_str::<Value>(&answer.body).expect("a JSON document"))
    };
    assert_eq!(ask("http-acquire", "ANY /v1/acquire", "/locks/v1/acquire").await.1["outcome"], "created");
    assert_eq!(ask("http-heartbeat", "$default", "/v1/heartbeat").await.1["leaseDurationMs"], 20_000);
    assert_eq!(ask("http-release", "ANY /v1/release", "/v1/release").await.1["outcome"], "released");
    for path in ["/v1/break", "/v1/acquire/", "/", "/locks/v1/acquire"] {
        let (status, problem) = ask("http-acquire", "$default", path).await;
        assert_eq!((status, &problem["type"]), (404, &json!("unknown-route")), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_life_of_a_lock_in_a_state_machine() {
    let function = function().await;
    let granted = function.answer_direct(event("direct-acquire")).await.map(json_of).expect("granted");
    assert_eq!(granted["outcome"], "created");
    assert!(function.answer_direct(event("direct-heartbeat")).await.is_ok());
    assert_eq!(function.answer_direct(event("direct-get")).await.map(json_of).expect("a lock")["state"], "held");

    let mut other = event("direct-acquire");
    other["leaseId"] = json!("another execution");
    let held = function.answer_direct(other).await.expect_err("held");
    let problem: Value = serde_json::from_str(&held.error_message).expect("a problem document");
    assert_eq!((held.error_type.as_str(), &problem["lock"]["leaseDurationMs"]), ("LockHeld", &json!(60_000)));

    let mismatch = function.answer_direct(event("direct-break")).await.expect_err("not that version");
    assert_eq!(mismatch.error_type, "LockLost");
    assert_eq!(
        function.answer_direct(event("direct-release")).await.map(json_of).expect("done")["outcome"],
        "released"
    );
    assert_eq!(
        function.answer_direct(event("direct-release")).await.map(json_of).expect("done")["outcome"],
        "replayed"
    );
    assert_eq!(function.answer_direct(event("direct-heartbeat")).await.expect_err("lost").error_type, "LockLost");
    assert_eq!(function.answer_direct(event("direct-acquire")).await.expect_err("ended").error_type, "LockLost");
}

/// Step Functions cuts long causes, and would cut this problem in two.
#[tokio::test(start_paused = true)]
async fn a_direct_refusal_leaves_out_the_payload() {
    let function = function().await;
    let mut acquire = event("direct-acquire");
    acquire["data"] = json!("x".repeat(100_000));
    acquire["attributes"] = json!({ "note": "y".repeat(60_000) });
    function.answer_direct(acquire.clone()).await.expect("granted");
    acquire["leaseId"] = json!("another execution");
    let held = function.answer_direct(acquire).await.expect_err("held");
    assert!(held.error_message.len() < 1_000, "{}", held.error_message);
    let lock = function.answer_direct(event("direct-get")).await.map(json_of).expect("a lock");
    assert_eq!(lock["data"].as_str().map(str::len), Some(100_000));
}

#[tokio::test(start_paused = true)]
async fn what_a_direct_caller_gets_wrong_is_named() {
    let function = function().await;
    for (input, field) in [
        (json!("acquire"), Value::Null),
        (json!([]), Value::Null),
        (json!({ "key": "k" }), json!("action")),
        (json!({ "action": 1 }), json!("action")),
        (json!({ "action": "steal", "key": "k" }), json!("action")),
        (json!({ "action": "acquire", "key": "k" }), json!("ownerName")),
        (json!({ "action": "acquire", "key": "", "ownerName": "o" }), json!("key")),
        (json!({ "action": "get", "key": "k", "lease": 1 }), json!("lease")),
        (json!({ "action": "release", "key": "k", "leaseId": 7 }), json!("leaseId")),
    ] {
        let error = function.answer_direct(input.clone()).await.expect_err("invalid");
        let problem: Value = serde_json::from_str(&error.error_message).expect("a problem document");
        assert_eq!((error.error_type.as_str(), &problem["field"]), ("InvalidRequest", &field), "{input}");
    }
    let absent = function.answer_direct(json!({ "action": "get", "key": "nobody" })).await.expect_err("absent");
    assert_eq!(absent.error_type, "LockNotFound");
}

/// Gateways decode paths and hand on what callers send: none of it may panic the function or make it fail.
#[tokio::test(start_paused = true)]
async fn hostile_events_are_answered() {
    let function = function().await;
    let with = |change: fn(&mut Value)| {
        let mut event = event("http-get");
        change(&mut event);
        event
    };
    for (event, status) in [
        (with(|event| event["rawPath"] = json!("/v1/lock with spaces\u{0}?#")), 404),
        (with(|event| event["rawPath"] = json!("")), 404),
        (with(|event| event["rawQueryString"] = json!("key=a b\u{0}é{}|\"<>")), 404),
        (with(|event| event["rawQueryString"] = json!("key=%ff%fe")), 400),
        (with(|event| event["rawQueryString"] = json!("key=%")), 404),
        (with(|event| event["rawQueryString"] = json!("&&&==&")), 400),
        (with(|event| event["rawQueryString"] = Value::Null), 400),
        (with(|event| event["headers"]["x-name"] = json!("žluťoučký\r\nkůň")), 404),
        (with(|event| event["headers"]["bad header name"] = json!("x")), 404),
        (with(|event| event["headers"]["host"] = json!("not a host")), 404),
        (with(|event| event["requestContext"]["http"]["method"] = json!("DELETE")), 405),
        (with(|event| event["requestContext"]["http"]["method"] = json!("no method")), 405),
        (with(|event| event["requestContext"]["stage"] = json!("a stage")), 404),
    ] {
        let (answer, problem) = http(&function, Operation::Get, event.clone()).await;
        assert_eq!((answer.status_code, &problem["status"]), (status, &json!(status)), "{event}");
    }
    for (body, base64, status) in [
        (json!("not base64!"), true, 400),
        (json!("////"), true, 400),
        (Value::Null, false, 400),
        (json!(""), false, 400),
        (json!("{\"key\":\"a\\u0000b\",\"ownerName\":\"\\u0000\"}"), false, 200),
    ] {
        let mut event = event("http-acquire");
        event["body"] = body;
        event["isBase64Encoded"] = json!(base64);
        let (answer, _) = http(&function, Operation::Acquire, event.clone()).await;
        assert_eq!(answer.status_code, status, "{event}");
    }
}

/// The gateway hands the paths that have no route of their own to one function; a Function URL has no other route.
#[tokio::test(start_paused = true)]
async fn the_default_route_knows_its_own_path_only() {
    let function = function().await;
    for (path, status) in [("/v1/health", 200), ("/v1/health/", 404), ("/favicon.ico", 404), ("/", 404), ("", 404)] {
        let mut event = event("http-health");
        event["routeKey"] = json!("$default");
        event["rawPath"] = json!(path);
        let (answer, body) = http(&function, Operation::Health, event).await;
        assert_eq!(answer.status_code, status, "{path}");
        assert_eq!(body["type"] == "unknown-route", status == 404, "{path}: {body}");
    }
}
