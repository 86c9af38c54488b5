//! Direct invocations: the Invoke API of Lambda on loopback, with the real handlers behind it, in real time.

use std::pin::pin;
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_sdk_dynamodb::Client as DynamoDb;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::TryStreamExt;
use http::Request;
use leasehold_api::{Service, TransactionService};
use leasehold_client::transactions::{Isolation, Item, ListItemsRequest};
use leasehold_client::wire::AcquireOutcome;
use leasehold_client::{
    Acquisition, Client, ErrorKind, Heartbeats, LambdaTransport, ListOptions, LockRequest, LossReason, PermitRequest,
    SigV4, Transport, Wait,
};
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_lambda::{Function, Serves};
use leasehold_protocol::{LockTable, Policy, TableSchema, ensure_table};
use leasehold_sandbox::{Fate, InvokeApi};
use leasehold_tests::bank::{ACCOUNTS, Bank};
use leasehold_tests::json_of;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{LEASE, SECOND, granted};

const ARN: &str = "arn:aws:lambda:eu-central-1:123456789012:function:leasehold-invoke:live";

/// Lambda with the functions of one deployment.
async fn lambda() -> InvokeApi {
    let engine = Engine::memory().expect("memory is to be had");
    let client = DynamoDb::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let schema = TableSchema::new("locks");
    ensure_table(&client, &schema).await.expect("a new table");
    let locks = Service::new(LockTable::new(client, schema, Policy::default(), Clock::system()));
    let locks = Function::unrestricted(locks);
    let transactions = TransactionService::new(Bank::new().await.transactions.clone());
    let (events, mut waiting) = mpsc::unbounded_channel::<(String, Value, oneshot::Sender<_>)>();
    // An execution environment: one thread, which has one invocation at a time.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            while let Some((function, input, answer)) = waiting.recv().await {
                let result = match function.as_str() {
                    "leasehold-transact" => leasehold_lambda::answer_transactions(&transactions, input).await,
                    _ => locks.answer(&Serves::Direct, input).await,
                };
                let _ =
                    answer.send(result.map(json_of).map_err(
                        |error| json!({ "errorType": error.error_type, "errorMessage": error.error_message }),
                    ));
            }
        });
    });
    let handle = move |function, input| {
        let (sender, answer) = oneshot::channel();
        let _ = events.send((function, input, sender));
        async { answer.await.expect("the environment answers") }
    };
    InvokeApi::start(handle).await.expect("a free port")
}

fn signer() -> SigV4 {
    SigV4::new(Credentials::new("AKIDEXAMPLE", "a-secret", None, None, "test"), "eu-central-1")
}

fn transport(url: &str) -> LambdaTransport {
    LambdaTransport::new(ARN, signer()).and_then(|transport| transport.endpoint_url(url)).expect("a name and a URL")
}

fn client(url: &str, owner: &str) -> Client {
    Client::builder().owner_name(owner).lease(SECOND * 4).build(transport(url))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_lives_by_direct_invocation() {
    let lambda = lambda().await;
    let url = &lambda.url;
    let (one, two) = (client(url, "one"), client(url, "two"));
    let key = "Müller & Söhne / 100 % + ? # 🔒";
    let guard = granted(&one, LockRequest::new(key).data([0, 255]).heartbeats(Heartbeats::Manual)).await;
    let Acquisition::Held(held) = two.try_acquire(key).await.expect("reachable") else { panic!("granted twice") };
    assert_eq!((held.lock.owner_name.as_str(), held.lock.data), ("one", None), "a refusal has no payload");
    let seen = two.get(key).await.expect("a row");
    assert_eq!(seen.data_base64.as_deref(), Some("AP8="));
    guard.renew().await.expect("held");
    let version = two.get(key).await.expect("a row").record_version_number;
    assert_ne!(version, seen.record_version_number);
    assert_eq!(*two.break_lock(key, "another").await.expect_err("not as seen").kind(), ErrorKind::VersionMismatch);
    two.break_lock(key, version).await.expect("as seen");
    let error = guard.renew().await.expect_err("broken");
    let ErrorKind::Lost(loss) = error.kind() else { panic!("{error}") };
    assert_eq!((loss.reason, loss.key.key.as_str()), (LossReason::Released, key));
    assert_eq!(*two.get("nothing").await.expect_err("no row").kind(), ErrorKind::NotFound);

    // A dead holder is taken over: the waiter polls, for there is no direct invocation of a watch.
    granted(&one, key).await.detach();
    let guard = granted(&two, key).await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
    guard.release().await.expect("held");

    let sent = lambda.log().remove(0);
    assert_eq!(sent.function, ARN);
    assert_eq!((&sent.input["action"], &sent.input["key"]), (&json!("acquire"), &json!(key)));
    assert_eq!(sent.headers["x-amz-invocation-type"], "RequestResponse");
    let signature = sent.headers["authorization"].to_str().expect("ASCII");
    assert!(signature.contains("/eu-central-1/lambda/aws4_request"), "{signature}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answer_of_an_invocation_is_found_by_the_repeat() {
    let lambda = lambda().await;
    let url = &lambda.url;
    let client = client(url, "one");
    lambda.fate(&[Fate::AnswerLost]);
    let guard = granted(&client, LockRequest::new("Moe").lease(LEASE).heartbeats(Heartbeats::Manual)).await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::Created), "the first one's");
    lambda.fate(&[Fate::AnswerLost]);
    guard.renew().await.expect("the repeat is answered");
    lambda.fate(&[Fate::AnswerLost]);
    guard.release().await.expect("the repeat is answered");
    let log = lambda.log();
    assert_eq!(log.len(), 6, "{log:?}");
    for pair in log.chunks(2) {
        assert_eq!(pair[0].input, pair[1].input, "the same request");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_lambda_are_told_apart() {
    let lambda = lambda().await;
    let url = &lambda.url;
    let client = Client::builder().retry_budget(Duration::ZERO).build(transport(url));
    let timed_out = "2026-01-01T00:00:00Z Task timed out after 10.00 seconds";
    for (fate, kind, told) in [
        (Fate::Refused(403, "AccessDeniedException"), ErrorKind::Misconfigured, "told by the test"),
        (Fate::Refused(404, "ResourceNotFoundException"), ErrorKind::Misconfigured, "told by the test"),
        (Fate::Refused(403, "InvalidSignatureException"), ErrorKind::Forbidden, "told by the test"),
        (Fate::Refused(429, "TooManyRequestsException"), ErrorKind::Throttled, "told by the test"),
        (Fate::Refused(409, "ResourceConflictException"), ErrorKind::Unavailable, "told by the test"),
        (Fate::Refused(500, "ServiceException"), ErrorKind::Unavailable, "told by the test"),
        (Fate::Refused(413, "RequestTooLargeException"), ErrorKind::InvalidRequest { field: None }, "told by the test"),
        (
            Fate::Fails("Runtime.ConfigInvalid", "LEASEHOLD_TABLE_NAME is not set"),
            ErrorKind::Misconfigured,
            "is not set",
        ),
        (Fate::Fails("Sandbox.Timedout", timed_out), ErrorKind::Unavailable, timed_out),
        (Fate::Fails("Runtime.ExitError", "signal: killed"), ErrorKind::Unavailable, "killed"),
    ] {
        lambda.fate(&[fate]);
        let error = client.get("Moe").await.expect_err("refused");
        assert_eq!(*error.kind(), kind, "{fate:?}: {error}");
        assert!(error.to_string().contains(told) && error.to_string().contains(ARN), "{fate:?}: {error}");
    }
    let nobody = Client::builder().retry_budget(Duration::ZERO).build(transport("http://127.0.0.1:1"));
    assert_eq!(*nobody.get("Moe").await.expect_err("nobody there").kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_have_a_function_of_their_own() {
    let lambda = lambda().await;
    let url = &lambda.url;
    let without = client(url, "one");
    for (error, option) in [
        (without.transaction_status("any").await.expect_err("no function"), "transact_function"),
        (pin!(without.list(ListOptions::default())).try_next().await.expect_err("no direct invocation"), "transport"),
    ] {
        assert_eq!(*error.kind(), ErrorKind::InvalidRequest { field: Some(option.to_owned()) }, "{error}");
    }
    assert!(lambda.log().is_empty(), "nothing is invoked");

    let client = Client::new(transport(url).transact_function("leasehold-transact").expect("a name"));
    let permits = client.semaphore("pool", 2);
    let first = permits.acquire(PermitRequest::new().permits(2)).await.expect("reachable").granted().expect("free");
    let second = tokio::spawn({
        let permits = permits.clone();
        async move { permits.acquire(PermitRequest::new().wait(Wait::Forever)).await }
    });
    while permits.get().await.expect("a row").semaphore.expect("a semaphore").queue.is_empty() {}
    first.release().await.expect("held");
    second.await.expect("no panic").expect("reachable").granted().expect("free").release().await.expect("held");
    let error = client.transaction_status("00000000-0000-4000-8000-000000000000").await.expect_err("never begun");
    assert_eq!(*error.kind(), ErrorKind::TransactionNotFound, "{error}");
    let functions: Vec<_> = lambda.log().into_iter().map(|invocation| invocation.function).collect();
    assert!(functions.iter().any(|name| name == "leasehold-transact"), "{functions:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_are_actions_of_the_functions() {
    let lambda = lambda().await;
    let client = Client::new(transport(&lambda.url).transact_function("leasehold-transact").expect("a name"));

    let all = client.acquire_all(["a", "b"]).await.expect("reachable").granted().expect("free");
    all.release().await.expect("held");
    let permit = client.semaphore("pool", 2).acquire(1).await.expect("reachable").granted().expect("free");
    permit.renew().await.expect("held");
    let briefly = PermitRequest::new().permits(2).wait(Wait::AtMost(Duration::from_millis(50)));
    let queued = client.semaphore("pool", 2).acquire(briefly).await.expect("reachable");
    queued.granted().expect_err("one permit is held");
    assert_eq!(client.set_capacity("pool", 3, 2).await.expect("as seen"), 2);
    client.break_entry("pool", permit.holder_id(), permit.record_version_number()).await.expect("as seen");

    let account = json!({ "id": "Moe", "balance": 1 });
    client.transaction(async |tx| tx.put(ACCOUNTS, &account).await).await.expect("committed");
    client.begin_transaction().await.expect("begun").rollback().await.expect("open");
    let key = json!({ "id": "Moe" });
    let read: Option<Value> = client.read_item(ACCOUNTS, &key, Isolation::Committed).await.expect("read");
    assert_eq!(read, Some(account));
    let scan = ListItemsRequest { table_name: ACCOUNTS.into(), ..ListItemsRequest::default() };
    let listed: Vec<Item> = client.list_items(scan).try_collect().await.expect("read");
    assert_eq!(listed.len(), 1, "{listed:?}");

    for sent in lambda.log() {
        // An operator's change of the capacity has an id, and no lease whose requests it would count.
        let is_numbered = sent.input["sequence"].is_u64() || sent.input["action"] == "semaphore-capacity";
        assert_eq!(is_numbered, sent.input["requestId"].is_string(), "a number has its request's id: {}", sent.input);
    }
}

#[test]
fn functions_are_invoked_in_the_region_of_the_signer() {
    for (region, host) in
        [("eu-central-1", "lambda.eu-central-1.amazonaws.com"), ("cn-north-1", "lambda.cn-north-1.amazonaws.com.cn")]
    {
        let signer = SigV4::new(Credentials::new("AKIDEXAMPLE", "a-secret", None, None, "test"), region);
        let shown = format!("{:?}", LambdaTransport::new(ARN, signer).expect("a name"));
        assert!(shown.contains(&format!("{host:?}")), "{shown}");
    }
}

#[tokio::test]
async fn trace_context_travels_in_the_client_context() {
    let lambda = lambda().await;
    let url = &lambda.url;
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = Request::get("/v1/lock?key=Moe").header("traceparent", traceparent).header("tracestate", "a=1");
    let answer = transport(url).send(request.body(Vec::new()).expect("a request")).await.expect("an answer");
    assert_eq!(answer.status(), 404);
    let sent = lambda.log().remove(0);
    let context = BASE64_STANDARD.decode(&sent.headers["x-amz-client-context"]).expect("base64");
    let context: Value = serde_json::from_slice(&context).expect("a JSON document");
    assert_eq!(context, json!({ "custom": { "traceparent": traceparent, "tracestate": "a=1" } }));
}

#[test]
fn name_that_no_function_has_is_refused() {
    for name in ["", "a b", "a/../b", "läs", "a%3A"] {
        let error = LambdaTransport::new(name, signer()).expect_err("no name");
        assert_eq!(*error.kind(), ErrorKind::InvalidRequest { field: Some("function".to_owned()) }, "{name:?}");
    }
}
