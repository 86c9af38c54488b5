//! The payload: the callers that may store it, and those that find it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::bench::Bench;

/// The largest payload: 256 KiB.
const MOST: usize = 256 * 1024;

pub(super) async fn it_stays_unless_it_is_replaced(bench: Bench) {
    let lock = bench.lock();
    let first = lock.acquire("alice", json!({ "data": "first" })).await.granted("created");
    assert_eq!(first.body["data"], "first");
    let own = |fields: Value| crate::bench::merged(json!({ "leaseId": first.lease_id }), fields);
    let kept = lock.acquire("alice", own(json!({}))).await.granted("renewed");
    assert_eq!(kept.body["data"], "first");
    let replaced = lock.acquire("alice", own(json!({ "data": "second" }))).await.granted("renewed");
    assert_eq!(replaced.body["data"], "second");
    let explicit = json!({ "data": "third", "replaceData": true });
    assert_eq!(lock.acquire("alice", own(explicit)).await.granted("renewed").body["data"], "third");
    assert_eq!(lock.get().await.ok()["data"], "third");
}

pub(super) async fn it_is_stored_only_where_there_is_none(bench: Bench) {
    let lock = bench.lock();
    let first = lock.acquire("alice", json!({ "data": "first", "replaceData": false })).await.granted("created");
    assert_eq!(first.body["data"], "first");
    let again = json!({ "leaseId": first.lease_id, "data": "second", "replaceData": false });
    assert_eq!(lock.acquire("alice", again).await.granted("renewed").body["data"], "first");
    assert_eq!(lock.get().await.ok()["data"], "first");
    lock.heartbeat(&first.lease_id, json!({ "deleteData": true })).await.renewed();
    let again = json!({ "leaseId": first.lease_id, "data": "third", "replaceData": false });
    assert_eq!(lock.acquire("alice", again).await.granted("renewed").body["data"], "third");
    assert_eq!(lock.get().await.ok()["data"], "third");
}

pub(super) async fn bytes_travel_as_base64(bench: Bench) {
    let lock = bench.lock();
    let bytes: Vec<u8> = (0..=255).collect();
    let base64 = BASE64_STANDARD.encode(bytes);
    let grant = lock.acquire("alice", json!({ "dataBase64": base64 })).await.granted("created");
    assert_eq!((grant.body.get("data"), &grant.body["dataBase64"]), (None, &json!(base64)));
    assert_eq!(lock.get().await.ok(), lock.view(&grant, json!({})));
    assert_eq!(lock.acquire("bob", json!({})).await.held()["dataBase64"], json!(base64));

    // UTF-8 bytes come back as text, however they were sent.
    lock.heartbeat(&grant.lease_id, json!({ "dataBase64": BASE64_STANDARD.encode("π") })).await.renewed();
    let view = lock.get().await.ok();
    assert_eq!((&view["data"], view.get("dataBase64")), (&json!("π"), None));
}

pub(super) async fn empty_data_is_data(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "data": "" })).await.granted("created");
    assert_eq!(grant.body["data"], "");
    assert_eq!(lock.get().await.ok()["data"], "");
    let again = json!({ "leaseId": grant.lease_id, "data": "late", "replaceData": false });
    assert_eq!(lock.acquire("alice", again).await.granted("renewed").body["data"], "");
}

pub(super) async fn heartbeat_keeps_sets_and_deletes_it(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "data": "first" })).await.granted("created");
    for (fields, data) in [
        (json!({}), Some("first")),
        (json!({ "deleteData": false }), Some("first")),
        (json!({ "data": "second" }), Some("second")),
        (json!({ "dataBase64": BASE64_STANDARD.encode("third") }), Some("third")),
        (json!({ "data": "" }), Some("")),
        (json!({ "deleteData": true }), None),
        (json!({ "deleteData": true }), None),
        (json!({ "data": "fourth" }), Some("fourth")),
    ] {
        lock.heartbeat(&grant.lease_id, fields.clone()).await.renewed();
        assert_eq!(lock.get().await.ok().get("data").and_then(Value::as_str), data, "after {fields}");
    }
}

pub(super) async fn data_of_a_release_reaches_the_successor(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.acquire("alice", json!({ "data": "begun" })).await.granted("created");
    lock.release(&alice.lease_id, json!({ "data": "done to page 7" })).await.released("released");
    let view = lock.released_view(&alice, json!({ "data": "done to page 7" })).await;
    assert_eq!(lock.get().await.ok(), view);

    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    assert_eq!((&bob.body["data"], &bob.body["previousOwnerName"]), (&json!("done to page 7"), &json!("alice")));
    let bytes = BASE64_STANDARD.encode([0xff, 0x00]);
    lock.release(&bob.lease_id, json!({ "dataBase64": bytes })).await.released("released");
    let carol = lock.acquire("carol", json!({})).await.granted("reacquired");
    assert_eq!((carol.body.get("data"), &carol.body["dataBase64"]), (None, &json!(bytes)));

    // A release without data keeps the payload, and a takeover finds it.
    lock.release(&carol.lease_id, json!({})).await.released("released");
    let dave = lock.acquire("dave", json!({})).await.granted("reacquired");
    assert_eq!(dave.body["dataBase64"], json!(bytes));
    let erin = lock.acquire("erin", json!({ "observedRecordVersionNumber": dave.rvn })).await.granted("takenOver");
    assert_eq!(erin.body["dataBase64"], json!(bytes));
}

pub(super) async fn refused_request_stores_nothing(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.acquire("alice", json!({ "data": "hers" })).await.granted("created");
    let his = json!({ "data": "his" });
    lock.acquire("bob", his.clone()).await.held();
    lock.heartbeat("bob's", his.clone()).await.lost("taken-over");
    lock.heartbeat("bob's", json!({ "deleteData": true })).await.lost("taken-over");
    lock.release("bob's", his.clone()).await.lost("taken-over");
    assert_eq!(lock.get().await.ok()["data"], "hers");
    lock.release(&alice.lease_id, json!({})).await.released("released");
    lock.release(&alice.lease_id, his).await.released("replayed");
    assert_eq!(lock.get().await.ok()["data"], "hers");
}

pub(super) async fn quarter_of_a_mebibyte_fits(bench: Bench) {
    // As plain text, as the text that is longest in JSON, and as bytes.
    for (name, data) in [
        ("data", "x".repeat(MOST)),
        ("data", "\0".repeat(MOST)),
        ("data", "é".repeat(MOST / 2)),
        ("dataBase64", BASE64_STANDARD.encode(vec![0xff; MOST])),
    ] {
        let lock = bench.lock();
        let grant = lock.acquire("alice", json!({ name: data })).await.granted("created");
        assert!(grant.body[name] == data, "the grant tells the data");
        assert!(lock.get().await.ok()[name] == data, "the data is there");
        lock.heartbeat(&grant.lease_id, json!({ name: data })).await.renewed();
        assert!(lock.acquire("bob", json!({})).await.held()[name] == data, "a refusal shows the data");
        lock.release(&grant.lease_id, json!({ name: data })).await.released("released");
        assert!(lock.acquire("bob", json!({})).await.granted("reacquired").body[name] == data, "it is left");
        let listed = bench.get(crate::bench::LOCKS, &[("key", lock.key.as_str())]).await.page().locks;
        assert!(listed.len() == 1 && listed[0][name] == data, "the listing has it");
    }
}

pub(super) async fn more_does_not_fit(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let row = lock.row().await;
    for (name, data) in [
        ("data", "x".repeat(MOST + 1)),
        ("data", "é".repeat(MOST / 2) + "x"),
        ("dataBase64", BASE64_STANDARD.encode(vec![0xff; MOST + 1])),
    ] {
        let fields = json!({ name: data });
        let free = bench.lock();
        free.acquire("alice", fields.clone()).await.problem("too-large");
        assert_eq!(free.row().await, None);
        lock.heartbeat(&grant.lease_id, fields.clone()).await.problem("too-large");
        lock.release(&grant.lease_id, fields).await.problem("too-large");
    }
    assert_eq!(lock.row().await, row);
}
