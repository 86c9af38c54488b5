//! The trace context of a caller is in the log lines of the real functions, and their calls are in X-Ray's trace.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use leasehold_sandbox::{Answer, Sandbox};
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::time::timeout;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The line about the one operation of this event.
async fn line(binary: &str, handler: &str, event: Value, client_context: Option<Value>) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    // Nobody listens there: the operation fails, and is logged.
    let variables = [
        ("LEASEHOLD_TABLE_NAME", "locks"),
        ("LEASEHOLD_TRANSACTION_TABLE_NAME", "transactions"),
        ("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:1"),
        ("_HANDLER", handler),
    ];
    let file = File::create(&log).expect("a file");
    let mut sandbox = Sandbox::start_logged(Path::new(binary), &variables, file).await.expect("it is built");
    sandbox.ready().await.expect("it starts");
    let (Answer::Response(_) | Answer::Error(_), _) = sandbox.invoke_with(event, client_context).await;
    sandbox.stop().await.expect("stopped");
    let text = std::fs::read_to_string(&log).expect("a log");
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["operation"].is_string()).unwrap_or_else(|| panic!("no operation in {text:?}"))
}

fn http(name: &str, value: &str) -> Value {
    let body = json!({ "key": "Moe", "ownerName": "host-1" }).to_string();
    let headers = json!({ "content-type": "application/json", name: value });
    let context = json!({ "http": { "method": "POST" } });
    json!({ "rawPath": "/v1/acquire", "requestContext": context, "headers": headers, "body": body })
}

#[tokio::test]
async fn traceparent_of_the_caller_is_in_the_log_line() {
    let locks = env!("CARGO_BIN_EXE_leasehold-locks");
    for name in ["traceparent", "Traceparent"] {
        let line = line(locks, "acquire", http(name, TRACEPARENT), None).await;
        assert_eq!((&line["key"], &line["traceparent"]), (&json!("Moe"), &json!(TRACEPARENT)), "{line}");
    }
    let line_without = line(locks, "acquire", http("traceparent", "of no use"), None).await;
    assert_eq!(line_without["traceparent"], Value::Null, "{line_without}");

    let direct = json!({ "action": "get", "key": "Moe" });
    let context = json!({ "custom": { "traceparent": TRACEPARENT } });
    let told = line(locks, "invoke", direct.clone(), Some(context.clone())).await;
    assert_eq!((&told["operation"], &told["traceparent"]), (&json!("get"), &json!(TRACEPARENT)), "{told}");
    let told = line(locks, "invoke", direct, None).await;
    assert_eq!(told["traceparent"], Value::Null, "{told}");

    let begin = json!({ "action": "begin" });
    let transactions = env!("CARGO_BIN_EXE_leasehold-transactions");
    let told = line(transactions, "transact", begin, Some(context)).await;
    assert_eq!(told["traceparent"], TRACEPARENT, "{told}");
}

#[tokio::test]
async fn calls_of_dynamodb_are_subsegments_of_a_sampled_trace() {
    let daemon = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = daemon.local_addr().expect("bound").to_string();
    // Nobody listens at the endpoint: each attempt is a fault.
    let variables = [
        ("LEASEHOLD_TABLE_NAME", "locks"),
        ("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:1"),
        ("AWS_XRAY_DAEMON_ADDRESS", address.as_str()),
        ("_HANDLER", "invoke"),
    ];
    let locks = Path::new(env!("CARGO_BIN_EXE_leasehold-locks"));
    let mut sandbox = Sandbox::start(locks, &variables).await.expect("it is built");
    sandbox.ready().await.expect("it starts");
    sandbox.invoke(json!({ "action": "get", "key": "Moe" })).await;
    let mut datagram = [0; 2048];
    let length =
        timeout(Duration::from_secs(10), daemon.recv(&mut datagram)).await.expect("in time").expect("received");
    sandbox.stop().await.expect("stopped");

    let text = std::str::from_utf8(&datagram[..length]).expect("text");
    let (header, document) = text.split_once('\n').expect("two lines");
    assert_eq!(header, r#"{"format":"json","version":1}"#);
    let document: Value = serde_json::from_str(document).expect("JSON");
    assert_eq!(
        [&document["trace_id"], &document["parent_id"], &document["aws"]["operation"], &document["fault"]],
        [&json!("1-5bef4de7-ad49b0e87f6ef6c87fc2e700"), &json!("9a9197af755a6419"), &json!("GetItem"), &json!(true)],
        "{document}"
    );
}
