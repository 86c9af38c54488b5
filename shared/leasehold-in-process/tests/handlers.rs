//! The layers for handlers of Lambda functions, on the service in this process.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by a panic, and Lambda's deadlines are of the wall clock"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::Client as Dynamodb;
use aws_sdk_dynamodb::types::AttributeValue;
use lambda_runtime::tower::{Layer, Service};
use lambda_runtime::{Context, LambdaEvent, service_fn};
use leasehold_client::handlers::{Hide, IdempotentLayer, LockLayer, Locked, SqsEvent, SqsLayer, SqsRecord};
use leasehold_client::wire::LockState;
use leasehold_client::{Client, Error, ErrorKind, Heartbeats, LockRequest, LossReason};
use leasehold_engine::Engine;
use leasehold_in_process::InProcess;
use leasehold_protocol::{Policy, TableSchema, ensure_table};
use serde_json::{Value, json};

struct Locks {
    client: Client,
    other: Client,
    dynamodb: Dynamodb,
    _engine: Engine,
}

async fn locks() -> Locks {
    let engine = Engine::memory().unwrap();
    let dynamodb = Dynamodb::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let schema = TableSchema::new("locks");
    ensure_table(&dynamodb, &schema).await.unwrap();
    let client = || Client::new(InProcess::on_table(&dynamodb, schema.clone(), Policy::default()).unwrap());
    Locks { client: client(), other: client(), dynamodb, _engine: engine }
}

impl Locks {
    async fn state(&self, key: &str) -> LockState {
        self.other.get(key).await.unwrap().state
    }

    /// The time at which TTL may delete the row, in epoch seconds.
    async fn expires(&self, key: &str) -> Option<u64> {
        let request = self.dynamodb.get_item().table_name("locks").key("key", AttributeValue::S(key.to_owned()));
        let row = request.send().await.unwrap().item.unwrap();
        Some(row.get("expireAt")?.as_n().unwrap().parse().unwrap())
    }
}

fn event(payload: Value, left: Duration) -> LambdaEvent<Value> {
    let deadline = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + left;
    let mut context = Context::default();
    context.deadline = u64::try_from(deadline.as_millis()).unwrap();
    LambdaEvent::new(payload, context)
}

fn key_of(event: &LambdaEvent<Value>) -> String {
    format!("orders/{}", event.payload["id"])
}

const MINUTE: Duration = Duration::from_mins(1);

/// Nothing of this process runs meanwhile, as in a frozen sandbox.
fn freeze() {
    std::thread::sleep(Duration::from_millis(1500));
}

#[tokio::test]
async fn handler_works_under_the_lock_which_is_then_released() {
    let locks = locks().await;
    let seen = locks.other.clone();
    let handler = move |locked: Locked<Value>| {
        let seen = seen.clone();
        async move {
            let view = seen.get("orders/7").await?;
            assert_eq!((view.state, view.fencing_token), (LockState::Held, Some(locked.guard.fencing_token())));
            // An hour was asked for, and the deadline is in a minute.
            assert!(view.lease_duration_ms <= 61_000, "{}", view.lease_duration_ms);
            Ok::<_, Error>(locked.event.payload["id"].clone())
        }
    };
    let layer = LockLayer::new(locks.client.clone(), key_of).lease(MINUTE * 60);
    let mut service = layer.layer(service_fn(handler));
    assert_eq!(service.call(event(json!({ "id": 7 }), MINUTE)).await.unwrap(), json!(7));
    assert_eq!(locks.state("orders/7").await, LockState::Released);
}

#[tokio::test]
async fn guard_believes_after_a_freeze_once_a_heartbeat_answered() {
    let locks = locks().await;
    let before = locks.other.clone();
    let handler = move |locked: Locked<Value>| {
        let before = before.clone();
        async move {
            let guard = locked.guard;
            assert!(guard.valid());
            freeze();
            assert_eq!((guard.valid(), guard.remaining(), guard.loss()), (false, Duration::ZERO, None));
            let version = before.get("orders/7").await.unwrap().record_version_number;
            guard.ensure_held().await?;
            assert!(guard.valid() && guard.remaining() > Duration::from_secs(10));
            assert_ne!(
                before.get("orders/7").await.unwrap().record_version_number,
                version,
                "a heartbeat was answered"
            );
            // A lock that is gone meanwhile is no longer believed in.
            freeze();
            let version = before.get("orders/7").await.unwrap().record_version_number;
            before.break_lock("orders/7", version).await.unwrap();
            guard.ensure_held().await
        }
    };
    let mut service = LockLayer::new(locks.client.clone(), key_of).layer(service_fn(handler));
    let error = service.call(event(json!({ "id": 7 }), MINUTE)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
}

#[tokio::test]
async fn heartbeat_follows_a_freeze_by_itself() {
    const LONG: Duration = Duration::from_mins(30);
    let locks = locks().await;
    let handler = async |locked: Locked<Value>| {
        freeze();
        assert!(!locked.guard.valid());
        // Without the freeze, the next one would be due after minutes.
        while !locked.guard.valid() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok::<_, Error>(())
    };
    let layer = LockLayer::new(locks.client.clone(), key_of).lease(LONG);
    let mut service = layer.layer(service_fn(handler));
    let worked = tokio::time::timeout(MINUTE, service.call(event(json!({ "id": 7 }), LONG))).await;
    worked.expect("a heartbeat was sent at once").unwrap();
}

#[tokio::test]
async fn heartbeat_from_before_a_freeze_proves_nothing() {
    let locks = locks().await;
    let handler = async |locked: Locked<Value>| {
        let guard = locked.guard;
        {
            let mut renewal = std::pin::pin!(guard.renew());
            // It is sent, and its answer is read after the freeze.
            std::future::poll_fn(|cx| std::task::Poll::Ready(renewal.as_mut().poll(cx).is_pending())).await;
            freeze();
            assert!(!guard.valid());
            renewal.await?;
        }
        assert!(!guard.valid(), "the answer is to a heartbeat from before");
        guard.renew().await?;
        assert!(guard.valid());
        Ok::<_, Error>(())
    };
    let mut service = LockLayer::new(locks.client.clone(), key_of).layer(service_fn(handler));
    service.call(event(json!({ "id": 7 }), MINUTE)).await.unwrap();
}

#[tokio::test]
async fn failure_of_the_handler_releases_the_lock() {
    let locks = locks().await;
    let handler = |_: Locked<Value>| async { Err::<(), _>(lambda_runtime::Error::from("the work failed")) };
    let mut service = LockLayer::new(locks.client.clone(), key_of).layer(service_fn(handler));
    let error = service.call(event(json!({ "id": 7 }), MINUTE)).await.unwrap_err();
    assert_eq!(error.to_string(), "the work failed");
    assert_eq!(locks.state("orders/7").await, LockState::Released);
}

#[tokio::test]
async fn held_lock_fails_the_invocation_or_skips_it() {
    let locks = locks().await;
    let held = locks.other.acquire("orders/7").await.unwrap().granted().unwrap();
    let handler = |_: Locked<Value>| async { Ok::<_, Error>("ran") };
    let raises = LockLayer::new(locks.client.clone(), key_of);
    let error = raises.layer(service_fn(handler)).call(event(json!({ "id": 7 }), MINUTE)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Held(_)), "{error}");
    let skips = LockLayer::new(locks.client.clone(), key_of).skip(|| "skipped");
    let skipped = skips.layer(service_fn(handler)).call(event(json!({ "id": 7 }), MINUTE)).await;
    assert_eq!(skipped.unwrap(), "skipped");
    held.release().await.unwrap();
}

#[tokio::test]
async fn waiter_runs_when_the_lock_is_released() {
    let locks = locks().await;
    let held = locks.other.acquire("orders/7").await.unwrap().granted().unwrap();
    let handler = |_: Locked<Value>| async { Ok::<_, Error>("ran") };
    let layer = LockLayer::new(locks.client.clone(), key_of).wait(Duration::from_secs(1));
    let mut service = layer.layer(service_fn(handler));
    let (ran, released) = tokio::join!(service.call(event(json!({ "id": 7 }), MINUTE)), held.release());
    released.unwrap();
    assert_eq!(ran.unwrap(), "ran");
}

#[tokio::test]
async fn handler_is_dropped_before_the_deadline() {
    let locks = locks().await;
    let handler = |_: Locked<Value>| std::future::pending::<Result<(), Error>>();
    let mut service = LockLayer::new(locks.client.clone(), key_of).layer(service_fn(handler));
    let error = service.call(event(json!({ "id": 7 }), Duration::from_secs(3))).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(loss) if loss.reason == LossReason::Deadline), "{error}");
    assert_eq!(locks.state("orders/7").await, LockState::Released);
}

#[tokio::test]
async fn invocation_without_time_asks_for_nothing() {
    let locks = locks().await;
    let handler = |_: Locked<Value>| async { Ok::<_, Error>(()) };
    let mut service = LockLayer::new(locks.client.clone(), key_of).layer(service_fn(handler));
    let error = service.call(event(json!({ "id": 7 }), Duration::from_millis(500))).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error}");
    assert!(matches!(locks.other.get("orders/7").await.unwrap_err().kind(), ErrorKind::NotFound));
}

#[tokio::test]
async fn event_runs_once_and_its_result_is_kept() {
    let locks = locks().await;
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |locked: Locked<Value>| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if run == 0 {
                return Err(lambda_runtime::Error::from("the work failed"));
            }
            Ok(json!({ "charged": locked.event.payload["amount"] }))
        }
    };
    let mut service = IdempotentLayer::new(locks.client.clone(), key_of).layer(service_fn(handler));
    let order = json!({ "id": 7, "amount": 20 });
    service.call(event(order.clone(), MINUTE)).await.expect_err("the first attempt fails");
    for _ in 0..2 {
        let charged = service.call(event(order.clone(), MINUTE)).await.unwrap();
        assert_eq!(charged, json!({ "charged": 20 }));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2, "a failed run, and one that counts");
    let other = service.call(event(json!({ "id": 7, "amount": 21 }), MINUTE)).await.unwrap_err();
    let other = other.downcast_ref::<Error>().expect("an error of the client");
    assert_eq!(*other.kind(), ErrorKind::PayloadMismatch);

    // The record is one that the other clients read.
    let lock = locks.other.get("orders/7").await.unwrap();
    assert_eq!(lock.last_occurrence.as_deref(), Some("0000000001"));
    let record: Value = serde_json::from_str(lock.data.as_deref().unwrap()).unwrap();
    assert_eq!(record["result"], json!({ "charged": 20 }));
    assert!(record["until"].as_f64() > Some(0.0) && record["payload"].as_str().map(str::len) == Some(64));
}

#[tokio::test]
async fn record_leaves_the_table_when_it_counts_no_more() {
    let locks = locks().await;
    let expires = async |id: u64, ttl: Duration| {
        let layer = IdempotentLayer::new(locks.client.clone(), key_of).completed_ttl(ttl);
        let mut service = layer.layer(service_fn(|_: Locked<Value>| async { Ok::<_, Error>(()) }));
        service.call(event(json!({ "id": id }), MINUTE)).await.unwrap();
        locks.expires(&format!("orders/{id}")).await
    };
    let (hour, day) = (expires(1, Duration::from_hours(1)).await, expires(2, Duration::from_hours(24)).await);
    let between = day.unwrap() - hour.unwrap();
    assert!((23 * 3600..23 * 3600 + 300).contains(&between), "{between}");
    assert_eq!(expires(3, Duration::MAX).await, None);
}

#[tokio::test]
async fn result_that_counts_no_more_lets_the_event_run_again() {
    let locks = locks().await;
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Locked<Value>| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, Error>(run) }
    };
    let layer = IdempotentLayer::new(locks.client.clone(), key_of).completed_ttl(Duration::ZERO);
    let mut service = layer.layer(service_fn(handler));
    for run in 0..2 {
        assert_eq!(service.call(event(json!({ "id": 7 }), MINUTE)).await.unwrap(), run);
    }
}

fn batch(records: &[(&str, &str, Option<&str>)], left: Duration) -> LambdaEvent<SqsEvent> {
    let records: Vec<_> = records
        .iter()
        .map(|(id, body, group)| {
            let attributes = group.map_or(json!({}), |group| json!({ "MessageGroupId": group }));
            json!({
                "messageId": id, "receiptHandle": format!("receipt-{id}"), "body": body, "attributes": attributes,
                "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:orders",
            })
        })
        .collect();
    let LambdaEvent { context, .. } = event(Value::Null, left);
    LambdaEvent::new(serde_json::from_value(json!({ "Records": records })).unwrap(), context)
}

#[tokio::test]
async fn held_record_comes_again_and_others_go_on() {
    let locks = locks().await;
    let (ran, hidden) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (notes, hides) = (ran.clone(), hidden.clone());
    let handler = move |locked: Locked<SqsRecord>| {
        let id = locked.event.payload.message_id;
        notes.lock().unwrap().push(id.clone());
        async move { if id == "m3" { Err(lambda_runtime::Error::from("this one fails")) } else { Ok(()) } }
    };
    let hide = move |message: Hide| {
        hides.lock().unwrap().push(message);
        async { Ok::<(), Box<dyn std::error::Error + Send + Sync>>(()) }
    };
    let layer = SqsLayer::new(locks.client.clone(), |record: &SqsRecord| record.body.clone(), hide);
    let mut service = layer.layer(service_fn(handler));
    let request = LockRequest::new("held").lease(Duration::from_hours(24)).heartbeats(Heartbeats::Manual);
    let holder = locks.other.try_acquire(request).await.unwrap().granted().unwrap();
    let records = [("m1", "a", None), ("m2", "held", Some("g")), ("m3", "c", None), ("m4", "d", Some("g"))];
    let answer = service.call(batch(&records, MINUTE)).await.unwrap();
    let failures = |ids: &[&str]| {
        let ids: Vec<_> = ids.iter().map(|id| json!({ "itemIdentifier": id })).collect();
        json!({ "batchItemFailures": ids })
    };
    assert_eq!(serde_json::to_value(answer).unwrap(), failures(&["m2", "m3", "m4"]));
    assert_eq!(*ran.lock().unwrap(), ["m1", "m3"]);
    let queue_url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders".to_owned();
    assert_eq!(*hidden.lock().unwrap(), [Hide { queue_url, receipt_handle: "receipt-m2".into(), seconds: 43200 }]);
    for key in ["a", "c"] {
        assert_eq!(locks.state(key).await, LockState::Released, "{key}");
    }
    // A record without time for its work is not begun.
    let mut hurried = layer
        .work_needs(MINUTE)
        .layer(service_fn(|_: Locked<SqsRecord>| async { Ok::<(), lambda_runtime::Error>(()) }));
    let answer = hurried.call(batch(&[("m5", "e", None)], MINUTE)).await.unwrap();
    assert_eq!(serde_json::to_value(answer).unwrap(), failures(&["m5"]));
    holder.release().await.unwrap();
}
