//! The removal of expired rows, where the table has no TTL: what it removes, what it leaves, and what it meets.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_api::Service;
use leasehold_dynamodb::Clock;
use leasehold_in_process::InProcess;
use leasehold_protocol::{
    AcquireAnswer, Expired, HeartbeatAnswer, LockTable, Policy, Staleness, TableSchema, ensure_table, lifecycle,
};
use leasehold_tests::{Fates, Fault, Faults, acquire, heartbeat, release};
use serde_json::{Value, json};

use crate::conformance::memory;

/// 2026-01-01, in epoch milliseconds.
const START_MS: u64 = 1_767_225_600_000;
/// The lease of each row, and the time for which it stays after that, in milliseconds.
const LEASE_MS: u64 = 20_000;
const RETENTION_MS: u64 = 60_000;
/// The difference of clocks that is allowed for.
const SKEW_MS: u64 = 5000;

/// A table, the service's clock, and the faults between the service and the engine.
struct Bench {
    table: LockTable,
    dynamodb: Client,
    faults: Faults,
    now_ms: Arc<AtomicU64>,
}

fn policy() -> Policy {
    Policy { retention_seconds: RETENTION_MS / 1000, clock_skew_ms: SKEW_MS }
}

impl Bench {
    async fn new() -> Self {
        let engine = memory();
        let dynamodb = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
        let schema = TableSchema::new("locks");
        ensure_table(&dynamodb, &schema).await.expect("a new table");
        let (client, faults) = Faults::between(&dynamodb);
        let now_ms = Arc::new(AtomicU64::new(START_MS));
        let clock = Arc::clone(&now_ms);
        let clock = Clock::from_fn(move || clock.load(Ordering::Relaxed));
        Self { table: LockTable::new(client, schema, policy(), clock), dynamodb, faults, now_ms }
    }

    fn pass(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    async fn sweep(&self) -> Expired {
        let mut expired = Expired::default();
        self.table.expire(&mut expired).await.expect("no failure");
        expired
    }

    async fn keys(&self) -> BTreeSet<String> {
        let items = self.dynamodb.scan().table_name("locks").send().await.expect("no faults here").items;
        items.unwrap_or_default().iter().map(|item| item["key"].as_s().expect("text").clone()).collect()
    }

    async fn put(&self, item: &HashMap<String, AttributeValue>) {
        let put = self.dynamodb.put_item().table_name("locks").set_item(Some(item.clone()));
        put.send().await.expect("no faults here");
    }

    /// Sends a request to the service.
    async fn post(&self, path: &str, body: Value) -> Value {
        use leasehold_client::Transport;
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(body.to_string().into_bytes()).expect("a request");
        let answer = InProcess::new(Service::new(self.table.clone())).send(request).await.expect("an answer");
        let answer: Value = serde_json::from_slice(answer.body()).expect("JSON");
        assert!(answer.get("type").is_none(), "{path} {body}: {answer}");
        answer
    }

    /// A lock whose holder is gone.
    async fn hold(&self, key: &str) {
        let body = json!({ "key": key, "ownerName": "o", "leaseId": key, "leaseDurationMs": LEASE_MS });
        self.post("/v1/acquire", body).await;
    }
}

fn row<const N: usize>(key: &str, attributes: [(&str, AttributeValue); N]) -> HashMap<String, AttributeValue> {
    let key = [("key", AttributeValue::S(key.to_owned()))];
    key.into_iter().chain(attributes).map(|(name, value)| (name.to_owned(), value)).collect()
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[tokio::test]
async fn expired_rows_are_removed_and_no_others() {
    let bench = Bench::new().await;
    for key in ["dead", "held", "released", "deleted", "done", "done-for-ever"] {
        bench.hold(key).await;
    }
    bench.post("/v1/release", json!({ "key": "released", "leaseId": "released" })).await;
    bench.post("/v1/release", json!({ "key": "deleted", "leaseId": "deleted", "delete": true })).await;
    for (key, ttl) in [("once", Some(1000)), ("once-for-ever", None)] {
        let body = json!({ "key": key, "ownerName": "o", "leaseId": key, "occurrence": "1" });
        bench.post("/v1/acquire", body).await;
        let mut done = json!({ "key": key, "leaseId": key, "completed": "1" });
        if let Some(ttl) = ttl {
            done["completedTtlMs"] = json!(ttl);
        }
        bench.post("/v1/release", done).await;
    }
    bench.post("/v1/semaphore/acquire", json!({ "key": "pool", "ownerName": "o", "capacity": 2 })).await;
    // Another client's row, and one that another client took over in place: `expireAt` is its predecessor's.
    bench.put(&row("java", [("recordVersionNumber", text("v"))])).await;
    let old = number(START_MS / 1000);
    let taken = [("recordVersionNumber", text("v")), ("leaseVersion", text("u")), ("expireAt", old)];
    bench.put(&row("java-in-place", taken)).await;

    let all = bench.keys().await;
    bench.pass(LEASE_MS + RETENTION_MS + SKEW_MS);
    assert_eq!(bench.sweep().await, Expired { removed: 0, left: 0, is_complete: true }, "not yet: in the same second");
    assert_eq!(bench.keys().await, all);
    bench.hold("fresh").await;
    bench.post("/v1/heartbeat", json!({ "key": "held", "leaseId": "held" })).await;
    bench.pass(1000);
    assert_eq!(bench.sweep().await.removed, 3, "a heartbeat and a release that keep the lease assume the longest");
    let longest_ms = 86_400_000;
    bench.pass(longest_ms);
    bench.sweep().await;
    let stay = names(&["java", "java-in-place", "once-for-ever"]);
    assert_eq!(bench.keys().await, &stay | &names(&["held"]), "a heartbeat's row has the longest lease from then on");
    bench.pass(longest_ms);
    assert!(bench.sweep().await.removed == 1 && bench.keys().await == stay);
}

/// The function of the life cycle, and the condition of the delete.
#[tokio::test]
async fn function_and_condition_agree_on_what_is_over() {
    let limit = (START_MS - SKEW_MS) / 1000;
    for expire_at in [None, Some(limit - 1), Some(limit), Some(limit + 1)] {
        for (rvn, lease_version) in
            [(Some("v"), Some("v")), (Some("v"), None), (Some("v"), Some("u")), (None, Some("u")), (None, None)]
        {
            let bench = Bench::new().await;
            let mut item = row("k", []);
            item.extend(expire_at.map(|at| ("expireAt".to_owned(), number(at))));
            item.extend(rvn.map(|rvn| ("recordVersionNumber".to_owned(), text(rvn))));
            item.extend(lease_version.map(|version| ("leaseVersion".to_owned(), text(version))));
            bench.put(&item).await;
            let row = bench.table.schema().decode_row(item).expect("it has a key");
            let is_over = lifecycle::is_over(&row, START_MS, &policy());
            assert_eq!(bench.sweep().await.removed, u64::from(is_over), "{expire_at:?} {rvn:?} {lease_version:?}");
            assert_eq!(is_over, expire_at == Some(limit - 1) && (lease_version.is_none() || lease_version == rvn));
        }
    }
}

/// A table with one lock whose time is over.
async fn over() -> Bench {
    let bench = Bench::new().await;
    let granted = bench.table.acquire(&acquire("holder", LEASE_MS, Staleness::Never)).await.expect("answered");
    assert!(matches!(granted, AcquireAnswer::Granted(_)));
    bench.pass(LEASE_MS + RETENTION_MS + SKEW_MS + 1000);
    bench
}

#[tokio::test]
async fn row_that_is_renewed_beside_a_sweep_stays() {
    let rehearsal = over().await;
    rehearsal.faults.record();
    assert_eq!(rehearsal.sweep().await.removed, 1);
    let calls = rehearsal.faults.record();
    let delete = calls.iter().position(|call| call.operation == "DeleteItem").expect("one") + 1;

    let bench = over().await;
    bench.faults.at(delete, Fault::Held);
    // The service's other requests do not pass the held one.
    let clock = Arc::clone(&bench.now_ms);
    let clock = Clock::from_fn(move || clock.load(Ordering::Relaxed));
    let beside = LockTable::new(bench.dynamodb.clone(), TableSchema::new("locks"), policy(), clock);
    let (expired, ()) = tokio::join!(bench.sweep(), async {
        bench.faults.reached().await;
        let renewed = beside.heartbeat(&heartbeat("holder")).await.expect("answered");
        assert!(matches!(renewed, HeartbeatAnswer::Renewed(_)), "{renewed:?}");
        bench.faults.release();
    });
    assert_eq!(expired, Expired { removed: 0, left: 0, is_complete: true });
    assert_eq!(bench.keys().await, names(&["Moe"]));
    assert!(beside.release(&release("holder")).await.is_ok());
}

#[tokio::test]
async fn token_rises_over_a_row_that_was_removed() {
    let bench = over().await;
    let token = async |owner: &str| match bench
        .table
        .acquire(&acquire(owner, LEASE_MS, Staleness::Never))
        .await
        .expect("answered")
    {
        AcquireAnswer::Granted(grant) => grant.fencing_token,
        refused => panic!("{refused:?}"),
    };
    // A renewal by the row's own lease id has a higher token.
    let before = token("holder").await;
    bench.pass(LEASE_MS + RETENTION_MS + SKEW_MS + 1000);
    assert_eq!(bench.sweep().await.removed, 1);
    // Another region, whose clock is behind.
    bench.now_ms.fetch_sub(SKEW_MS, Ordering::Relaxed);
    assert!(token("successor").await > before);
}

#[tokio::test(start_paused = true)]
async fn delete_that_meets_another_region_is_tried_again() {
    let bench = over().await;
    bench.faults.set(Fates::regions(0, 1));
    assert_eq!(bench.sweep().await, Expired { removed: 1, left: 0, is_complete: true }, "tried again");
}

/// A sweep goes on where one row cannot be removed, and leaves it to the next.
#[tokio::test(start_paused = true)]
async fn row_that_cannot_be_removed_is_left_to_the_next_sweep() {
    let rehearsal = over().await;
    rehearsal.faults.record();
    rehearsal.sweep().await;
    let calls = rehearsal.faults.record();
    let delete = calls.iter().position(|call| call.operation == "DeleteItem").expect("one");

    let bench = over().await;
    let conflicts = std::iter::repeat_n(Fault::ReplicatedWriteConflict, 3);
    bench.faults.script(std::iter::repeat_n(Fault::None, delete).chain(conflicts));
    assert_eq!(bench.sweep().await, Expired { removed: 0, left: 1, is_complete: true });
    assert_eq!(bench.sweep().await, Expired { removed: 1, left: 0, is_complete: true });
}
