//! Rows of the DynamoDB Lock Client for Java, which contends for the same locks and does not know lease ids, fencing
//! tokens and `staleAt`.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};

use crate::bench::{Bench, Item, Lock, bytes, epoch_ms, fresh, number, text};
use crate::reply::Grant;

/// A row that the Java client holds.
fn java_row(rvn: &str) -> Item {
    Item::from([
        ("ownerName".to_owned(), text("java")),
        ("leaseDuration".to_owned(), text("20000")),
        ("recordVersionNumber".to_owned(), text(rvn)),
        ("data".to_owned(), bytes("from java")),
    ])
}

/// The attributes that the Java client writes when it takes a row over with `updateExistingLockRecord`. It leaves all
/// others.
fn in_place(rvn: &str) -> [(&str, Option<AttributeValue>); 4] {
    [
        ("ownerName", Some(text("java"))),
        ("leaseDuration", Some(text("15000"))),
        ("recordVersionNumber", Some(text(rvn))),
        ("isReleased", None),
    ]
}

fn java_view(lock: &Lock, rvn: &str, state: &str) -> Value {
    lock.with_key(json!({
        "state": state,
        "ownerName": "java",
        "recordVersionNumber": rvn,
        "leaseDurationMs": 20_000,
        "data": "from java",
    }))
}

/// A lock that the Java client holds.
async fn held_by_java(bench: &Bench) -> (Lock, String) {
    let (lock, rvn) = (bench.lock(), fresh("java"));
    lock.plant(java_row(&rvn)).await;
    (lock, rvn)
}

/// A lock that Alice held until the Java client overwrote its row in place.
async fn overwritten_in_place(bench: &Bench) -> (Lock, Grant, String) {
    let (lock, rvn) = (bench.lock(), fresh("java"));
    let alice = lock.acquire("alice", json!({ "leaseDurationMs": 100, "data": "hers" })).await.granted("created");
    lock.overwrite(in_place(&rvn)).await;
    (lock, alice, rvn)
}

/// The public view of such a lock: data and fencing token are Alice's.
fn in_place_view(lock: &Lock, alice: &Grant, rvn: &str) -> Value {
    lock.view(alice, json!({ "ownerName": "java", "leaseDurationMs": 15_000, "recordVersionNumber": rvn }))
}

pub(super) async fn held_row_is_held(bench: Bench) {
    let (lock, rvn) = held_by_java(&bench).await;
    let row = lock.row().await;
    let view = java_view(&lock, &rvn, "held");
    assert_eq!(lock.acquire("alice", json!({})).await.held(), view);
    let wrong = json!({ "observedRecordVersionNumber": fresh("version") });
    assert_eq!(lock.acquire("alice", wrong).await.held(), view);
    assert_eq!(lock.get().await.ok(), view);
    let listed = bench.list_all(&[("key", &lock.key)]).await;
    assert_eq!(listed, [view]);
    assert_eq!(lock.row().await, row);
}

pub(super) async fn held_row_cannot_be_renewed_or_released(bench: Bench) {
    let (lock, rvn) = held_by_java(&bench).await;
    let row = lock.row().await;
    let view = java_view(&lock, &rvn, "held");
    for fields in [json!({}), json!({ "recordVersionNumber": rvn })] {
        assert_eq!(lock.heartbeat(&fresh("lease"), fields.clone()).await.lost("taken-over"), view);
        assert_eq!(lock.release(&fresh("lease"), fields).await.lost("taken-over"), view);
    }
    assert_eq!(lock.release(&fresh("lease"), json!({ "delete": true })).await.lost("taken-over"), view);
    assert_eq!(lock.row().await, row);
}

pub(super) async fn held_row_is_taken_over_when_it_is_stale(bench: Bench) {
    let (lock, rvn) = held_by_java(&bench).await;
    let before = epoch_ms();
    let observed = json!({ "observedRecordVersionNumber": rvn });
    let alice = lock.acquire("alice", observed).await.granted("takenOver");
    assert_eq!((&alice.body["previousOwnerName"], &alice.body["data"]), (&json!("java"), &json!("from java")));
    assert!(alice.token > before - 1000, "the first token is seeded by the clock, and {} is not", alice.token);
    assert_eq!(lock.row().await.expect("a row")["fencingToken"], number(alice.token));
    lock.heartbeat(&alice.lease_id, json!({})).await.renewed();
    lock.release(&alice.lease_id, json!({})).await.released("released");
}

pub(super) async fn held_row_can_be_broken(bench: Bench) {
    let (lock, rvn) = held_by_java(&bench).await;
    assert_eq!(lock.break_it(&fresh("version")).await.version_mismatch(), java_view(&lock, &rvn, "held"));
    lock.break_it(&rvn).await.released("released");
    lock.break_it(&rvn).await.released("replayed");
    let broken = lock.version().await;
    assert_ne!(broken, rvn, "a client that judged the old version stale must not take the lock over in place");
    assert_eq!(lock.get().await.ok(), java_view(&lock, &broken, "released"));
    assert_eq!(lock.row().await.expect("a row")["isReleased"], text("1"));
    assert_eq!(lock.acquire("alice", json!({})).await.granted("reacquired").body["previousOwnerName"], "java");
}

pub(super) async fn row_is_never_dead_by_the_clock(bench: Bench) {
    let (lock, rvn) = (bench.lock(), fresh("java"));
    let mut row = java_row(&rvn);
    row.insert("leaseDuration".into(), text("1"));
    lock.plant(row).await;
    let refusal = lock.acquire("alice", json!({ "staleness": "clock" })).await;
    assert_eq!(refusal.held()["recordVersionNumber"], rvn);
    assert!(refusal.text().contains("Only an observation"), "{refusal}");
    // A value that is no number says nothing about time either.
    lock.overwrite([("staleAt", Some(text("1")))]).await;
    lock.acquire("alice", json!({ "staleness": "clock" })).await.held();
}

pub(super) async fn released_row_is_reacquired(bench: Bench) {
    let (lock, rvn) = held_by_java(&bench).await;
    lock.overwrite([("isReleased", Some(text("1")))]).await;
    assert_eq!(lock.get().await.ok(), java_view(&lock, &rvn, "released"));
    lock.heartbeat(&fresh("lease"), json!({})).await.lost("taken-over");
    let alice = lock.acquire("alice", json!({})).await.granted("reacquired");
    assert_eq!((&alice.body["previousOwnerName"], &alice.body["data"]), (&json!("java"), &json!("from java")));
    assert_eq!(lock.get().await.ok(), lock.view(&alice, json!({})));
    // The presence of the mark counts, whatever its value.
    lock.overwrite([("isReleased", Some(AttributeValue::Bool(false)))]).await;
    assert_eq!(lock.get().await.ok()["state"], "released");
    lock.acquire("bob", json!({})).await.granted("reacquired");
}

pub(super) async fn replaced_row_is_lost(bench: Bench) {
    // By default the Java client replaces the whole row, including hash and fencing token.
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    let rvn = fresh("java");
    lock.plant(java_row(&rvn)).await;
    let view = java_view(&lock, &rvn, "held");
    assert_eq!(lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    assert_eq!(lock.release(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    assert_eq!(lock.acquire("alice", json!({ "leaseId": alice.lease_id })).await.held(), view);
    let observed = json!({ "observedRecordVersionNumber": rvn });
    let bob = lock.acquire("bob", observed).await.granted("takenOver");
    assert!(bob.token > alice.token, "the clock has gone on, so the token is higher: {}", bob.token);
}

pub(super) async fn row_overwritten_in_place_disowns_its_holder(bench: Bench) {
    let (lock, alice, rvn) = overwritten_in_place(&bench).await;
    // The lease in `staleAt`, 100 ms, is over by more than the skew. It was Alice's, and says nothing of Java's.
    crate::bench::pause(1200).await;
    let row = lock.row().await;
    let view = in_place_view(&lock, &alice, &rvn);
    assert_eq!(lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    let named = json!({ "recordVersionNumber": rvn });
    assert_eq!(lock.heartbeat(&alice.lease_id, named.clone()).await.lost("taken-over"), view);
    assert_eq!(lock.release(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    assert_eq!(lock.release(&alice.lease_id, named).await.lost("taken-over"), view);
    assert_eq!(lock.release(&alice.lease_id, json!({ "delete": true })).await.lost("taken-over"), view);
    assert_eq!(lock.acquire("alice", json!({ "leaseId": alice.lease_id })).await.held(), view);
    let by_clock = json!({ "leaseId": alice.lease_id, "staleness": "clock" });
    assert_eq!(lock.acquire("alice", by_clock).await.held(), view);
    assert_eq!(lock.acquire("bob", json!({ "staleness": "clock" })).await.held(), view);
    assert_eq!(lock.acquire("bob", json!({ "observedRecordVersionNumber": alice.rvn })).await.held(), view);
    assert_eq!(lock.get().await.ok(), view);
    assert_eq!(lock.row().await, row);

    // Its heartbeat changes the version again, and no other attribute.
    let next = fresh("java");
    lock.overwrite([("recordVersionNumber", Some(text(&next)))]).await;
    lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over");
}

pub(super) async fn row_overwritten_in_place_is_taken_over_when_it_is_stale(bench: Bench) {
    // Any observer may take it over, including the former holder with its old lease id.
    for own in [false, true] {
        let (lock, alice, rvn) = overwritten_in_place(&bench).await;
        let lease_id = if own { alice.lease_id.clone() } else { fresh("lease") };
        let fields = json!({ "leaseId": lease_id, "observedRecordVersionNumber": rvn });
        let bob = lock.acquire("bob", fields).await.granted("takenOver");
        assert_eq!(bob.body["previousOwnerName"], "java");
        assert_eq!(bob.token, alice.token + 1);
        lock.heartbeat(&lease_id, json!({})).await.renewed();
        lock.release(&lease_id, json!({})).await.released("released");
    }
}

pub(super) async fn row_overwritten_in_place_and_released_is_reacquired(bench: Bench) {
    let (lock, alice, rvn) = overwritten_in_place(&bench).await;
    lock.overwrite([("isReleased", Some(text("1")))]).await;
    let view = crate::bench::merged(in_place_view(&lock, &alice, &rvn), json!({ "state": "released" }));
    assert_eq!(lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    assert_eq!(lock.release(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    // The old lease id was valid for one acquisition, which has ended.
    assert_eq!(lock.acquire("alice", json!({ "leaseId": alice.lease_id })).await.lost("released"), view);
    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    assert_eq!(bob.body["previousOwnerName"], "java");
    assert_eq!(bob.token, alice.token + 1);
}

pub(super) async fn released_row_overwritten_in_place_is_held(bench: Bench) {
    let (lock, rvn) = (bench.lock(), fresh("java"));
    let alice = lock.hold("alice").await;
    lock.release(&alice.lease_id, json!({})).await.released("released");
    lock.overwrite(in_place(&rvn)).await;
    let view = in_place_view(&lock, &alice, &rvn);
    assert_eq!(lock.acquire("alice", json!({ "leaseId": alice.lease_id })).await.held(), view);
    assert_eq!(lock.release(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    assert_eq!(lock.acquire("bob", json!({})).await.held(), view);
    lock.break_it(&alice.rvn).await.released("replayed");
    assert_eq!(lock.break_it(&fresh("version")).await.version_mismatch(), view);
}

pub(super) async fn tombstone_overwritten_in_place_is_a_lock(bench: Bench) {
    let (lock, rvn) = (bench.lock(), fresh("java"));
    let alice = lock.acquire("alice", json!({ "data": "hers" })).await.granted("created");
    lock.release(&alice.lease_id, json!({ "delete": true })).await.released("released");
    lock.deleted().await;
    lock.overwrite(in_place(&rvn)).await;
    let view = in_place_view(&lock, &alice, &rvn);
    let view = crate::bench::merged(view, json!({ "data": null }));
    let shown = crate::bench::merged(lock.get().await.ok(), json!({ "data": null }));
    assert_eq!(shown, view);
    assert_eq!(bench.list_all(&[("key", &lock.key)]).await.len(), 1);
    assert_eq!(lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over")["ownerName"], "java");
    let bob = lock.acquire("bob", json!({ "observedRecordVersionNumber": rvn })).await.granted("takenOver");
    assert_eq!((bob.body["previousOwnerName"].as_str(), bob.token), (Some("java"), alice.token + 1));
}

pub(super) async fn row_after_a_tombstone_is_a_lock_when_released(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.release(&alice.lease_id, json!({ "delete": true })).await.released("released");
    let bob = lock.acquire("bob", json!({})).await.granted("created");
    // Another client releases the row, and changes nothing else. The row still names the version of the tombstone.
    lock.overwrite([("isReleased", Some(text("1")))]).await;
    let view = lock.view(&bob, json!({ "state": "released" }));
    assert_eq!(lock.get().await.ok(), view);
    assert_eq!(bench.list_all(&[("key", &lock.key)]).await, [view]);
    let carol = lock.acquire("carol", json!({ "onlyIfExists": true })).await.granted("reacquired");
    assert_eq!(carol.body["previousOwnerName"], "bob");
}

pub(super) async fn unknown_attributes_are_shown_and_kept(bench: Bench) {
    let (lock, rvn) = held_by_java(&bench).await;
    let sets = [
        ("strings", AttributeValue::Ss(vec!["a".into()])),
        ("numbers", AttributeValue::Ns(vec!["1.5".into()])),
        ("blobs", AttributeValue::Bs(vec![aws_sdk_dynamodb::primitives::Blob::new([0xff])])),
        ("blob", bytes([0xff])),
        ("huge", AttributeValue::N("12345678901234567890123456789012345678".into())),
        ("flag", AttributeValue::Bool(true)),
        ("nothing", AttributeValue::Null(true)),
    ];
    lock.overwrite(sets.clone().map(|(name, value)| (name, Some(value)))).await;
    let shown = json!({
        "strings": ["a"], "numbers": [1.5], "blobs": ["/w=="], "blob": "/w==",
        "huge": "12345678901234567890123456789012345678", "flag": true, "nothing": null,
    });
    assert_eq!(lock.get().await.ok()["attributes"], shown);
    lock.acquire("alice", json!({ "observedRecordVersionNumber": rvn })).await.granted("takenOver");
    assert_eq!(lock.get().await.ok()["attributes"], shown);
    let row = lock.row().await.expect("a row");
    for (name, value) in sets {
        assert_eq!(row[name], value);
    }
}
