//! The trace context of a caller is in the log lines of the real functions.

use std::fs::File;
use std::path::Path;

use leasehold_sandbox::{Answer, Sandbox};
use serde_json::{Value, json};

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
