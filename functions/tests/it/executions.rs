//! The secret in the lease ids of executions: the real function in front of a KMS on loopback.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::{Json, Router};
use leasehold_engine::Engine;
use leasehold_protocol::{TableSchema, ensure_table};
use leasehold_sandbox::{Answer, Sandbox};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

const KEY: &str = "arn:aws:kms:eu-west-1:123456789012:key/one";

type Calls = Arc<Mutex<Vec<(String, Value)>>>;

/// Answers each request alike, and records it.
async fn kms(answer: (StatusCode, Value)) -> (String, Calls) {
    let calls = Calls::default();
    let record = |State((calls, answer)): State<(Calls, (StatusCode, Value))>, headers: HeaderMap, body: String| async move {
        let target = headers["x-amz-target"].to_str().expect("ASCII").to_owned();
        let body = serde_json::from_str(&body).expect("JSON");
        calls.lock().expect("no panics while it is held").push((target, body));
        (answer.0, Json(answer.1)).into_response()
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let app = Router::new().fallback(record).with_state((Arc::clone(&calls), answer));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, calls)
}

async fn dynamodb() -> String {
    let engine = Engine::memory().expect("memory is to be had");
    let client = aws_sdk_dynamodb::Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    ensure_table(&client, &TableSchema::new("locks")).await.expect("a new table");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move { engine.expose(listener, std::future::pending()).await });
    url
}

async fn function(dynamodb: &str, kms: &str) -> Sandbox {
    let variables = [
        ("_HANDLER", "invoke"),
        ("LEASEHOLD_TABLE_NAME", "locks"),
        ("LEASEHOLD_EXECUTION_KEY", KEY),
        ("AWS_ENDPOINT_URL_DYNAMODB", dynamodb),
        ("AWS_ENDPOINT_URL_KMS", kms),
    ];
    let mut sandbox =
        Sandbox::start(Path::new(env!("CARGO_BIN_EXE_leasehold-locks")), &variables).await.expect("it is built");
    sandbox.ready().await.expect("it starts");
    sandbox
}

/// The outcome of an operation of an execution, or the name of its refusal.
async fn ask(function: &mut Sandbox, action: &str, execution: Value) -> String {
    let mut input = json!({ "action": action, "key": "Moe", "execution": execution });
    if action == "acquire" {
        input["ownerName"] = json!("nightly");
    }
    match function.invoke(input).await.0 {
        Answer::Response(answer) => answer["outcome"].as_str().unwrap_or("renewed").to_owned(),
        Answer::Error(error) => error["errorType"].as_str().expect("a name").to_owned(),
    }
}

fn execution() -> Value {
    json!({ "arn": "arn:aws:states:eu-west-1:123456789012:execution:nightly:1", "acquisition": "one" })
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_of_executions_comes_from_one_call_of_kms() {
    let dynamodb = dynamodb().await;
    let mac = |mac: &str| (StatusCode::OK, json!({ "KeyId": KEY, "Mac": mac, "MacAlgorithm": "HMAC_SHA_256" }));
    let (url, calls) = kms(mac("b25l")).await;
    let mut one = function(&dynamodb, &url).await;
    assert!(calls.lock().expect("no panics while it is held").is_empty(), "a start asks for nothing");
    let begun = Instant::now();
    assert_eq!(ask(&mut one, "acquire", execution()).await, "created");
    assert_eq!(ask(&mut one, "heartbeat", execution()).await, "renewed");
    let mut asked = calls.lock().expect("no panics while it is held").clone();
    // A call that is not answered for a second is repeated.
    if begun.elapsed() >= Duration::from_secs(1) {
        asked.dedup();
    }
    let [(target, body)] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(target, "TrentService.GenerateMac");
    assert_eq!((&body["KeyId"], &body["MacAlgorithm"]), (&json!(KEY), &json!("HMAC_SHA_256")));

    // Another process with the same key has the same lease ids, and one with another key has others.
    let mut same = function(&dynamodb, &url).await;
    assert_eq!(ask(&mut same, "heartbeat", execution()).await, "renewed");
    let (url, _) = kms(mac("dHdv")).await;
    let mut other = function(&dynamodb, &url).await;
    assert_eq!(ask(&mut other, "heartbeat", execution()).await, "LockLost");
}

#[tokio::test(flavor = "multi_thread")]
async fn execution_is_refused_when_kms_gives_no_secret() {
    let dynamodb = dynamodb().await;
    let denied = (StatusCode::BAD_REQUEST, json!({ "__type": "AccessDeniedException", "message": "no" }));
    let broken = (StatusCode::INTERNAL_SERVER_ERROR, json!({ "__type": "KMSInternalException" }));
    for (answer, refusal) in [(denied, "Misconfigured"), (broken, "Unavailable")] {
        let (url, _) = kms(answer).await;
        let mut function = function(&dynamodb, &url).await;
        assert_eq!(ask(&mut function, "acquire", execution()).await, refusal);
        // Whoever names a lease id needs no KMS.
        let input = json!({ "action": "acquire", "key": refusal, "ownerName": "o", "leaseId": "l" });
        assert!(matches!(function.invoke(input).await.0, Answer::Response(_)), "{refusal}");
    }
    let mut function = function(&dynamodb, "http://127.0.0.1:1").await;
    assert_eq!(ask(&mut function, "acquire", execution()).await, "Unavailable");
}
