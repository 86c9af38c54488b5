//! C10: the cases of `clients/vectors/sequence.json`, against a service that answers by a script.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use leasehold_client::{
    Client, ErrorKind, Guard, Handover, Heartbeats, LockRequest, LossReason, Transport, TransportError, Wait,
};
use serde_json::{Value, json};
use tokio::time::advance;

const LEASE: Duration = Duration::from_secs(20);
/// Less than the time-out of a request.
const ANSWER: Duration = Duration::from_secs(3);
const GRANTED_TOKEN: u64 = 41;

/// A service that answers by a script, and the documents that it received.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<Value>>>,
    sent: Arc<Mutex<Vec<Value>>>,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = Value>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), sent: Arc::default() }
    }

    fn is_over(&self) -> bool {
        self.answers.lock().expect("not poisoned").is_empty()
    }

    fn sent(&self) -> Vec<Value> {
        self.sent.lock().expect("not poisoned").clone()
    }
}

impl Transport for Script {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        let path = request.uri().path().to_owned();
        if path == "/v1/release" {
            return async { Ok(answer(200, &json!({ "outcome": "released" }))) }.boxed();
        }
        if path == "/v1/watch" {
            return async { Ok(problem(404, "unknown-route", &json!({}))) }.boxed();
        }
        let document: Value = serde_json::from_slice(request.body()).expect("JSON");
        self.sent.lock().expect("not poisoned").push(document.clone());
        let (step, next) = {
            let mut answers = self.answers.lock().expect("not poisoned");
            (answers.pop_front(), answers.front().cloned())
        };
        async move {
            // Most of a lease passes before an answer that arrives too late, but within its time-out.
            if next.is_some_and(|next| next["answer"] == "too-late") {
                advance(LEASE - ANSWER).await;
            }
            match step {
                Some(step) => follow(&path, &document, &step).await,
                // The script has ended: the test looks at no further request.
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

fn answer(status: u16, document: &Value) -> Response<Vec<u8>> {
    Response::builder().status(status).body(document.to_string().into_bytes()).expect("a response")
}

fn problem(status: u16, kind: &str, members: &Value) -> Response<Vec<u8>> {
    let mut document = json!({ "type": kind, "status": status, "title": "t", "detail": "d" });
    let members = members.as_object().expect("members").clone();
    document.as_object_mut().expect("an object").extend(members);
    answer(status, &document)
}

async fn follow(path: &str, request: &Value, step: &Value) -> Result<Response<Vec<u8>>, TransportError> {
    let token = step["fencingToken"].as_u64().unwrap_or(GRANTED_TOKEN);
    let carried_out = || {
        let mut answer = json!({ "recordVersionNumber": "v", "leaseDurationMs": 20_000, "fencingToken": token });
        if path == "/v1/acquire" {
            answer["key"] = "Moe".into();
            answer["ownerName"] = "me".into();
            answer["leaseId"] = request["leaseId"].clone();
            answer["outcome"] = "created".into();
        }
        self::answer(200, &answer)
    };
    Ok(match step["answer"].as_str().expect("an answer") {
        "granted" | "renewed" => carried_out(),
        "too-late" => {
            advance(ANSWER).await;
            carried_out()
        }
        "gateway-throttled" => answer(429, &json!({ "message": "Too Many Requests" })),
        "unanswered" => return Err(TransportError::unanswered("the connection was reset")),
        "held" => {
            let lock = json!({
                "key": "Moe", "state": "held", "ownerName": "other", "recordVersionNumber": "w", "leaseDurationMs": 86_400_000,
            });
            problem(423, "held", &json!({ "lock": lock }))
        }
        "superseded" => problem(
            409,
            "superseded",
            &json!({ "sequence": step["sequence"], "recordVersionNumber": "v", "fencingToken": token }),
        ),
        "lost" => problem(409, "lost", &json!({ "reason": "released" })),
        other => panic!("no such answer: {other}"),
    })
}

fn cases(call: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/vectors/sequence.json");
    let file: Value = serde_json::from_slice(&std::fs::read(path).expect("the vectors")).expect("JSON");
    let cases: Vec<_> =
        file["cases"].as_array().expect("cases").iter().filter(|case| case["call"] == call).cloned().collect();
    assert!(!cases.is_empty(), "no case for {call}");
    cases
}

/// A lock request that sends nothing outside of the script, and that survives an answer that is older than its lease.
fn request() -> LockRequest {
    LockRequest::new("Moe").lease(LEASE).wait(Wait::Forever).heartbeats(Heartbeats::Manual).hold_on_unavailable()
}

async fn play(case: &Value) -> Vec<Value> {
    let steps = case["steps"].as_array().expect("steps").clone();
    let script = Script::new(steps.clone());
    let mut guard: Option<Guard> = None;
    while !script.is_over() {
        let step = &steps[script.sent().len()];
        match (step["do"].as_str().expect("a step"), &guard) {
            ("acquire", _) => {
                let client = Client::new(script.clone());
                guard = Some(client.acquire(request()).await.expect("granted").granted().expect("granted"));
            }
            ("heartbeat", Some(guard)) => guard.renew().await.expect("renewed"),
            ("resume", _) => {
                let lease_id = guard.take().map_or_else(Default::default, |guard| guard.detach().lease_id);
                let handover = Handover { sequence: step["given"].as_u64(), ..Handover::new("Moe", lease_id) };
                guard = Some(Client::new(script.clone()).resume_with(request(), handover).await.expect("renewed"));
            }
            (other, _) => panic!("no {other} here"),
        }
    }
    script.sent()
}

#[tokio::test(start_paused = true)]
async fn requests_are_numbered_as_the_vectors_say() {
    for case in cases("numbers") {
        let sent = play(&case).await;
        let mut before = &Value::Null;
        for (sent, step) in sent.iter().zip(case["steps"].as_array().expect("steps")) {
            let name = format!("{} {step}", case["name"]);
            assert_eq!(sent["sequence"], step["sends"], "{name}");
            assert_eq!(sent == before, step["repeat"] == true, "{name}");
            assert_eq!(sent["requestId"] == before["requestId"], step["repeat"] == true, "{name}");
            let same_lease_id = before.is_null() || sent["leaseId"] == before["leaseId"];
            assert_eq!(same_lease_id, step["newLeaseId"] != true, "{name}");
            before = sent;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeat_under_another_token_is_a_loss() {
    for case in cases("renewal") {
        let given = &case["given"];
        let granted = json!({ "answer": "granted", "fencingToken": given["grantedToken"] });
        let mut renewal = given.clone();
        renewal["sequence"] = 5.into();
        let again = json!({ "answer": "renewed", "fencingToken": given["grantedToken"] });
        let script = Script::new([granted, renewal, again]);
        let client = Client::new(script.clone());
        let guard = client.acquire(request()).await.expect("granted").granted().expect("granted");
        let result = guard.renew().await;
        let found = match (&result, script.sent().len()) {
            (Ok(()), 2) => "renewed",
            (Ok(()), 3) => "again",
            (Err(error), 2) if matches!(error.kind(), ErrorKind::Lost(loss) if loss.reason == LossReason::TakenOver) => {
                "lost"
            }
            other => panic!("{}: {other:?}", case["name"]),
        };
        assert_eq!(found, case["expect"], "{}", case["name"]);
        let is_named = script.sent()[1..].iter().all(|sent| sent["fencingToken"] == given["grantedToken"]);
        assert!(is_named, "{}: each heartbeat names the token of its grant", case["name"]);
        assert_eq!(guard.valid(), case["expect"] != "lost", "{}", case["name"]);
    }
}
