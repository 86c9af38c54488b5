//! The start of a function in its own sandbox: the real binary against a DynamoDB that is healthy, slow or unreachable.
//!
//! All functions start alike; one stands for all.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt;
use http::{Method, StatusCode};
use leasehold_sandbox::{Answer, InitError, Sandbox};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

const TABLE: (&str, &str) = ("LEASEHOLD_TABLE_NAME", "locks");

/// The time that a start waits for an answer of DynamoDB. A start that took longer proves nothing, and is repeated.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// The maximum number of tries of a machine that is too slow for that.
const TRIES: usize = 5;

async fn start(variables: &[(&str, &str)]) -> Sandbox {
    Sandbox::start(Path::new(env!("CARGO_BIN_EXE_leasehold-locks")), variables).await.expect("it is built")
}

async fn acquire(sandbox: &mut Sandbox) -> (u64, Value) {
    let body = json!({ "key": "Moe", "ownerName": "host-1" }).to_string();
    let http = json!({ "method": "POST" });
    let headers = json!({ "content-type": "application/json" });
    let event =
        json!({ "rawPath": "/v1/acquire", "requestContext": { "http": http }, "headers": headers, "body": body });
    match sandbox.invoke(event).await.0 {
        Answer::Response(answer) => {
            let body = answer["body"].as_str().and_then(|body| serde_json::from_str(body).ok());
            (answer["statusCode"].as_u64().expect("a status"), body.expect("a JSON document"))
        }
        Answer::Error(error) => panic!("failed: {error}"),
    }
}

/// Answers every `GET` with `greeting`, applies every write, and records the connections.
#[derive(Clone)]
struct DynamoDb {
    greeting: (StatusCode, &'static str),
    description: (StatusCode, &'static str),
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl DynamoDb {
    async fn start(greeting: (StatusCode, &'static str)) -> (Self, String) {
        Self::described(greeting, (StatusCode::OK, "{}")).await
    }

    /// Starts with this description of the table.
    async fn described(
        greeting: (StatusCode, &'static str),
        description: (StatusCode, &'static str),
    ) -> (Self, String) {
        let dynamodb = Self { greeting, description, requests: Arc::default(), connections: Arc::default() };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let connections = Arc::clone(&dynamodb.connections);
        let listener = listener.tap_io(move |_| {
            connections.fetch_add(1, Ordering::Relaxed);
        });
        let app = Router::new().fallback(answer).with_state(dynamodb.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (dynamodb, url)
    }

    fn seen(&self) -> (usize, Vec<String>) {
        (self.connections.load(Ordering::Relaxed), self.requests.lock().expect("no panics while it is held").clone())
    }
}

async fn answer(State(dynamodb): State<DynamoDb>, request: Request) -> Response {
    let target = request.headers().get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
    let target = target.to_owned();
    let asked = format!("{} {} {target}", request.method(), request.uri().path());
    dynamodb.requests.lock().expect("no panics while it is held").push(asked);
    match *request.method() {
        Method::GET => dynamodb.greeting.into_response(),
        _ if target.ends_with(".DescribeTable") => {
            ([("content-type", "application/x-amz-json-1.0")], dynamodb.description).into_response()
        }
        _ => ([("content-type", "application/x-amz-json-1.0")], "{}").into_response(),
    }
}

/// Whatever DynamoDB answers to the first request, the request needs no permission, and the second one uses its
/// connection.
#[tokio::test]
async fn first_request_uses_the_connection_of_the_start() {
    for greeting in [
        (StatusCode::OK, "healthy: dynamodb.eu-west-1.amazonaws.com "),
        (StatusCode::BAD_REQUEST, r#"{"__type":"com.amazon.coral.service#UnknownOperationException"}"#),
        (StatusCode::FORBIDDEN, "<html>"),
        (StatusCode::NOT_FOUND, ""),
        (StatusCode::SERVICE_UNAVAILABLE, ""),
    ] {
        let seen = async || {
            let (dynamodb, url) = DynamoDb::start(greeting).await;
            let mut sandbox = start(&[TABLE, ("AWS_ENDPOINT_URL_DYNAMODB", &url)]).await;
            sandbox.ready().await.expect("it starts");
            let at_start = dynamodb.seen();
            let (status, granted) = acquire(&mut sandbox).await;
            assert_eq!((status, &granted["outcome"]), (200, &json!("created")), "{greeting:?}");
            (at_start, dynamodb.seen())
        };
        let mut requests = vec!["GET / ".to_owned(), "POST / DynamoDB_20120810.DescribeTable".to_owned()];
        let at_start = (1, requests.clone());
        requests.push("POST / DynamoDB_20120810.UpdateItem".to_owned());
        let expected = (at_start, (1, requests));
        for tries in 1.. {
            let begun = Instant::now();
            let found = seen().await;
            if found == expected {
                break;
            }
            let is_slow = begun.elapsed() >= CONNECT_LIMIT;
            assert!(is_slow && tries < TRIES, "{greeting:?}: {found:?}");
        }
    }
}

#[tokio::test]
async fn endpoint_is_taken_from_the_variables_of_the_sdk() {
    let (_, url) = DynamoDb::start((StatusCode::OK, "healthy")).await;
    let elsewhere = "http://127.0.0.1:1";
    for variables in [
        vec![TABLE, ("AWS_ENDPOINT_URL", &url)],
        vec![TABLE, ("AWS_ENDPOINT_URL", elsewhere), ("AWS_ENDPOINT_URL_DYNAMODB", &url)],
    ] {
        let mut sandbox = start(&variables).await;
        sandbox.ready().await.expect("it starts");
        assert_eq!(acquire(&mut sandbox).await.0, 200, "{variables:?}");
    }
}

#[tokio::test]
async fn start_needs_no_dynamodb() {
    let closed = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        listener.local_addr().expect("bound")
    };
    // The system accepts connections for this listener, and nothing reads from them.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let silent = (silent.local_addr().expect("bound"), silent);
    for url in [
        format!("http://{closed}"),
        format!("https://{closed}"),
        format!("http://{}", silent.0),
        "not a URL".to_owned(),
    ] {
        let mut sandbox = start(&[TABLE, ("AWS_ENDPOINT_URL_DYNAMODB", &url)]).await;
        sandbox.ready().await.unwrap_or_else(|error| panic!("{url}: {error:?}"));
        let (status, problem) = acquire(&mut sandbox).await;
        assert_eq!((status, &problem["type"]), (503, &json!("unavailable")), "{url}");
    }
}

/// Lambda passes the sentence to the caller of the function.
#[tokio::test]
async fn mistakes_in_the_configuration_are_reported() {
    for (variables, sentence) in [
        (vec![], "LEASEHOLD_TABLE_NAME is not set: it must name the DynamoDB table of the locks."),
        (
            vec![TABLE, ("AWS_REGION", "")],
            "AWS_REGION is not set. In Lambda it always is; elsewhere, set it for the function.",
        ),
        (
            vec![TABLE, ("AWS_ACCESS_KEY_ID", "")],
            "AWS_ACCESS_KEY_ID is not set. In Lambda it always is; elsewhere, set it for the function.",
        ),
    ] {
        let error = start(&variables).await.ready().await.expect_err(sentence);
        let InitError::Reported(error) = error else { panic!("{sentence}: {error:?}") };
        let expected = json!({
            "errorType": "Runtime.ConfigInvalid", "errorMessage": sentence, "stackTrace": [],
            "header": "Runtime.ConfigInvalid",
        });
        assert_eq!(error, expected);
    }
}

/// Whatever is not known does not stop a start. What is known to grant a lock twice does.
#[tokio::test]
async fn table_of_several_regions_must_be_strong() {
    let healthy = (StatusCode::OK, "healthy");
    let strong = r#"{"Table":{"Replicas":[{"RegionName":"us-east-2"}],"MultiRegionConsistency":"STRONG"}}"#;
    let eventual = r#"{"Table":{"Replicas":[{"RegionName":"us-east-2"}],"MultiRegionConsistency":"EVENTUAL"}}"#;
    let denied = r#"{"__type":"com.amazon.coral.service#AccessDeniedException"}"#;
    let (alone, several) = (("LEASEHOLD_MULTI_REGION", "false"), ("LEASEHOLD_MULTI_REGION", "true"));
    for (description, mode, refusal) in [
        ((StatusCode::OK, strong), several, None),
        ((StatusCode::OK, strong), alone, Some("LEASEHOLD_MULTI_REGION")),
        ((StatusCode::OK, eventual), several, Some("Two regions would grant the same lock")),
        ((StatusCode::OK, eventual), alone, Some("Two regions would grant the same lock")),
        ((StatusCode::BAD_REQUEST, denied), several, None),
        ((StatusCode::INTERNAL_SERVER_ERROR, "{}"), alone, None),
    ] {
        let (_, url) = DynamoDb::described(healthy, description).await;
        let variables = [TABLE, mode, ("AWS_ENDPOINT_URL_DYNAMODB", url.as_str())];
        let mut started = start(&variables).await.ready().await;
        for _ in 1..TRIES {
            if refusal.is_some() && matches!(started, Ok(took) if took >= CONNECT_LIMIT) {
                started = start(&variables).await.ready().await;
            }
        }
        match (started, refusal) {
            (Ok(_), None) => {}
            (Err(InitError::Reported(error)), Some(refusal)) => {
                assert!(error["errorMessage"].as_str().is_some_and(|said| said.contains(refusal)), "{error}");
            }
            (started, _) => panic!("{description:?} {mode:?}: {started:?}"),
        }
    }
}
