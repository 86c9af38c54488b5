//! Further attributes of a row: plain JSON in, plain JSON out.

use leasehold_protocol::RESERVED_ATTRIBUTES;
use serde_json::{Map, Value, json};

use crate::bench::Bench;

pub(super) async fn they_round_trip(bench: Bench) {
    let lock = bench.lock();
    let attributes = json!({
        "text": "π", "empty": "", "whole": -3, "large": 9_007_199_254_740_993_i64, "fraction": 0.25,
        "yes": true, "no": false, "none": null, "list": [1, "two", [], {}], "map": { "deep": { "er": [{}] } },
        "a.b": 1, "#a": 2, ":a": 3, "with space": 4, "SELECT": 5, "ключ": 6, "size": 7, "key ": 8,
    });
    lock.acquire("alice", json!({ "attributes": attributes })).await.granted("created");
    assert_eq!(lock.get().await.ok()["attributes"], attributes);
    assert_eq!(lock.acquire("bob", json!({})).await.held()["attributes"], attributes);
}

pub(super) async fn they_add_up(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "attributes": { "a": 1, "b": 2 } })).await.granted("created");
    let more = json!({ "leaseId": grant.lease_id, "attributes": { "b": "two", "c": [3] } });
    lock.acquire("alice", more).await.granted("renewed");
    assert_eq!(lock.get().await.ok()["attributes"], json!({ "a": 1, "b": "two", "c": [3] }));
    lock.acquire("alice", json!({ "leaseId": grant.lease_id, "attributes": {} })).await.granted("renewed");
    assert_eq!(lock.get().await.ok()["attributes"], json!({ "a": 1, "b": "two", "c": [3] }));
}

pub(super) async fn they_survive_release_and_takeover(bench: Bench) {
    let lock = bench.lock();
    let attributes = json!({ "team": "payments" });
    let alice = lock.acquire("alice", json!({ "attributes": attributes })).await.granted("created");
    lock.heartbeat(&alice.lease_id, json!({})).await.renewed();
    lock.release(&alice.lease_id, json!({})).await.released("released");
    assert_eq!(lock.get().await.ok()["attributes"], attributes);
    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    lock.acquire("carol", json!({ "observedRecordVersionNumber": bob.rvn })).await.granted("takenOver");
    assert_eq!(lock.get().await.ok()["attributes"], attributes);
}

pub(super) async fn names_of_the_lock_are_refused(bench: Bench) {
    let schema = bench.schema().clone();
    let keys = std::iter::once(schema.partition_key).chain(schema.sort_key);
    for name in RESERVED_ATTRIBUTES.map(str::to_owned).into_iter().chain(keys) {
        let lock = bench.lock();
        lock.acquire("alice", json!({ "attributes": { "a": 1, name: "mine" } })).await.invalid("attributes");
        assert_eq!(lock.row().await, None);
    }
    let harmless = json!({ "ownername": 1, "OwnerName": 2, "leaseId": 3, "state": 4, "attributes": 5 });
    let lock = bench.lock();
    lock.acquire("alice", json!({ "attributes": harmless })).await.granted("created");
    assert_eq!(lock.get().await.ok()["attributes"], harmless);
}

pub(super) async fn they_have_limits(bench: Bench) {
    let many = |count| Value::Object((0..count).map(|i| (format!("attribute{i}"), json!(i))).collect());
    let named = |name: String| Value::Object(Map::from_iter([(name, json!(1))]));
    let nested = |levels| (0..levels).fold(json!(1), |value, _| json!([value]));
    for accepted in [many(50), named("n".repeat(255)), json!({ "a": nested(29) }), json!({ "a": "x".repeat(65_000) })] {
        let lock = bench.lock();
        lock.acquire("alice", json!({ "attributes": accepted })).await.granted("created");
        assert_eq!(lock.get().await.ok()["attributes"], accepted);
    }
    for refused in [many(51), named(String::new()), named("n".repeat(256)), json!({ "a": nested(30) })] {
        let lock = bench.lock();
        lock.acquire("alice", json!({ "attributes": refused })).await.invalid("attributes");
        assert_eq!(lock.row().await, None);
    }
    let large = json!({ "attributes": { "a": "x".repeat(65_536) } });
    bench.lock().acquire("alice", large).await.problem("too-large");

    // The longest key, the largest payload and the largest attributes fit into one item together.
    let lock = bench.lock();
    let lock = bench.lock_of(format!("{}{}", lock.key, "k".repeat(2048 - lock.key.len())));
    let fields = json!({ "data": "x".repeat(262_144), "attributes": { "a": "x".repeat(65_000) } });
    let grant = lock.acquire(&"o".repeat(1024), fields).await.granted("created");
    lock.release(&grant.lease_id, json!({ "delete": true })).await.released("released");
}

pub(super) async fn they_go_with_a_deletion(bench: Bench) {
    let lock = bench.lock();
    let fields = json!({ "attributes": { "team": "payments", "tries": 3 } });
    let alice = lock.acquire("alice", fields).await.granted("created");
    lock.release(&alice.lease_id, json!({ "delete": true })).await.released("released");
    let tombstone = lock.deleted().await;
    assert_eq!((tombstone.get("team"), tombstone.get("tries")), (None, None));
    lock.acquire("bob", json!({})).await.granted("created");
    assert_eq!(lock.get().await.ok().get("attributes"), None);
}

pub(super) async fn numbers_must_be_exact(bench: Bench) {
    for number in ["1e300", "123456789012345678901234567890", "9007199254740993.5", "1e-200"] {
        let lock = bench.lock();
        let body = lock.with_key(json!({ "ownerName": "alice", "attributes": { "a": "NUMBER" } })).to_string();
        let body = body.replace(r#""NUMBER""#, number);
        bench.post_text(crate::bench::ACQUIRE, body).await.invalid("attributes");
        assert_eq!(lock.row().await, None, "{number}");
    }
    let lock = bench.lock();
    let exact = json!({ "a": [0, -1, 0.5, 1e-10, i64::MAX, i64::MIN, 123_456.789] });
    lock.acquire("alice", json!({ "attributes": exact })).await.granted("created");
    assert_eq!(lock.get().await.ok()["attributes"], exact);
}
