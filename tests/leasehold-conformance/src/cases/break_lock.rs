//! The operator's release, conditional on the version that the operator saw.

use serde_json::{Value, json};

use crate::bench::{Bench, fresh};

pub(super) async fn it_releases_and_may_be_repeated(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "data": "payload" })).await.granted("created");
    lock.break_it(&grant.rvn).await.released("released");
    let row = lock.row().await;
    lock.break_it(&grant.rvn).await.released("replayed");
    lock.break_it(&grant.rvn).await.released("replayed");
    assert_eq!(lock.row().await, row);
    assert_eq!(lock.get().await.ok(), lock.released_view(&grant, json!({})).await);
    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    assert_eq!((&bob.body["previousOwnerName"], &bob.body["data"]), (&json!("alice"), &json!("payload")));
    assert!(bob.token > grant.token);
}

pub(super) async fn holder_learns_of_it(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    lock.break_it(&grant.rvn).await.released("released");
    lock.heartbeat(&grant.lease_id, json!({})).await.lost("released");
    lock.acquire("alice", json!({ "leaseId": grant.lease_id })).await.lost("released");
    lock.release(&grant.lease_id, json!({ "data": "too late" })).await.released("replayed");
    assert_eq!(lock.get().await.ok().get("data"), None);
    lock.acquire("bob", json!({})).await.granted("reacquired");
    lock.heartbeat(&grant.lease_id, json!({})).await.lost("taken-over");
}

pub(super) async fn another_version_is_refused(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let renewal = lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    let row = lock.row().await;
    let view = lock.view(&grant, json!({ "recordVersionNumber": renewal.rvn }));
    for rvn in [grant.rvn.clone(), fresh("version"), renewal.rvn.to_uppercase()] {
        assert_eq!(lock.break_it(&rvn).await.version_mismatch(), view);
    }
    assert_eq!(lock.row().await, row);
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
}

pub(super) async fn unknown_key_is_a_mismatch(bench: Bench) {
    let lock = bench.lock();
    assert_eq!(lock.break_it(&fresh("version")).await.version_mismatch(), Value::Null);
    let grant = lock.hold("alice").await;
    lock.release(&grant.lease_id, json!({ "delete": true })).await.released("released");
    let tombstone = lock.deleted().await;
    assert_eq!(lock.break_it(&grant.rvn).await.version_mismatch(), Value::Null);
    assert_eq!(lock.break_it(&lock.version().await).await.version_mismatch(), Value::Null);
    assert_eq!(lock.deleted().await, tombstone);
}

pub(super) async fn repeat_is_told_under_a_successor(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.break_it(&alice.rvn).await.released("released");
    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    // A repeat that arrives late must not break the successor's lock.
    lock.break_it(&alice.rvn).await.released("replayed");
    assert_eq!(lock.get().await.ok(), lock.view(&bob, json!({})));
    lock.release(&bob.lease_id, json!({})).await.released("released");
    let view = lock.released_view(&bob, json!({})).await;
    assert_eq!(lock.break_it(&alice.rvn).await.version_mismatch(), view);
    // Broken or released, the lock of this version has no holder. That is the purpose of the break.
    lock.break_it(&bob.rvn).await.released("replayed");
    lock.break_it(&lock.version().await).await.released("replayed");
}
