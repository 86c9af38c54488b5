//! Rule 4: the release of a lock, once or several times.

use serde_json::{Value, json};

use crate::bench::{Bench, fresh};

pub(super) async fn it_keeps_the_row(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "data": "payload" })).await.granted("created");
    lock.release(&grant.lease_id, json!({ "delete": false })).await.released("released");
    assert_eq!(lock.get().await.ok(), lock.released_view(&grant, json!({})).await);
}

pub(super) async fn it_may_be_repeated(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "data": "payload" })).await.granted("created");
    lock.release(&grant.lease_id, json!({ "data": "left" })).await.released("released");
    let row = lock.row().await;
    for fields in [
        json!({}),
        json!({ "data": "left" }),
        json!({ "data": "something else" }),
        json!({ "recordVersionNumber": grant.rvn }),
    ] {
        lock.release(&grant.lease_id, fields).await.released("replayed");
    }
    assert_eq!(lock.row().await, row);
    assert_eq!(lock.get().await.ok(), lock.released_view(&grant, json!({ "data": "left" })).await);
}

pub(super) async fn absent_lock_is_absent(bench: Bench) {
    let lock = bench.lock();
    for fields in [
        json!({}),
        json!({ "data": "mine" }),
        json!({ "recordVersionNumber": fresh("version") }),
        json!({ "delete": true }),
        json!({ "delete": true, "recordVersionNumber": fresh("version") }),
    ] {
        lock.release(&fresh("lease"), fields).await.released("absent");
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn it_deletes_the_row_if_asked(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let delete = json!({ "delete": true });
    lock.release(&grant.lease_id, delete.clone()).await.released("released");
    let tombstone = lock.deleted().await;
    lock.release(&grant.lease_id, delete).await.released("absent");
    lock.release(&grant.lease_id, json!({})).await.released("absent");
    lock.release(&fresh("lease"), json!({})).await.released("absent");
    assert_eq!(lock.deleted().await, tombstone);
}

pub(super) async fn released_lock_may_still_be_deleted(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    lock.release(&grant.lease_id, json!({})).await.released("released");
    // The version that the release ended also names the lock: the caller knows no other.
    let named = json!({ "delete": true, "recordVersionNumber": grant.rvn });
    lock.release(&grant.lease_id, named).await.released("replayed");
    lock.deleted().await;
    lock.release(&grant.lease_id, json!({ "delete": true })).await.released("absent");
}

pub(super) async fn lock_of_someone_else_is_lost(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let row = lock.row().await;
    for fields in [json!({}), json!({ "delete": true }), json!({ "recordVersionNumber": grant.rvn })] {
        let refusal = lock.release(&fresh("lease"), fields).await;
        assert_eq!(refusal.lost("taken-over"), lock.view(&grant, json!({})), "{refusal}");
    }
    assert_eq!(lock.row().await, row);
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
}

pub(super) async fn repeat_is_told_under_a_successor(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.release(&alice.lease_id, json!({})).await.released("released");
    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    let row = lock.row().await;
    for fields in [json!({}), json!({ "delete": true }), json!({ "recordVersionNumber": alice.rvn })] {
        lock.release(&alice.lease_id, fields).await.released("replayed");
    }
    assert_eq!(lock.row().await, row);
    lock.release(&bob.lease_id, json!({})).await.released("released");
    lock.release(&alice.lease_id, json!({})).await.released("replayed");
    // An end is remembered past one successor.
    let carol = lock.acquire("carol", json!({})).await.granted("reacquired");
    assert_eq!(lock.release(&alice.lease_id, json!({})).await.lost("taken-over"), lock.view(&carol, json!({})));
    lock.release(&bob.lease_id, json!({})).await.released("replayed");
}

pub(super) async fn lock_that_was_taken_over_is_lost(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    let observed = json!({ "observedRecordVersionNumber": alice.rvn });
    let bob = lock.acquire("bob", observed).await.granted("takenOver");
    for fields in [json!({}), json!({ "delete": true })] {
        assert_eq!(lock.release(&alice.lease_id, fields).await.lost("taken-over"), lock.view(&bob, json!({})));
    }
    lock.release(&bob.lease_id, json!({})).await.released("released");
    let row = lock.row().await;
    let view = lock.released_view(&bob, json!({})).await;
    for fields in [json!({}), json!({ "delete": true })] {
        assert_eq!(lock.release(&alice.lease_id, fields).await.lost("taken-over"), view);
    }
    assert_eq!(lock.row().await, row);
}

pub(super) async fn it_may_name_the_version(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let renewal = lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    let row = lock.row().await;
    let view = lock.view(&grant, json!({ "recordVersionNumber": renewal.rvn }));
    for rvn in [grant.rvn.clone(), fresh("version")] {
        let stale = json!({ "recordVersionNumber": rvn, "data": "late" });
        assert_eq!(lock.release(&grant.lease_id, stale).await.lost("version-mismatch"), view);
    }
    assert_eq!(lock.row().await, row);
    lock.release(&grant.lease_id, json!({ "recordVersionNumber": renewal.rvn })).await.released("released");
    assert_eq!(lock.get().await.ok()["state"], "released");
}

pub(super) async fn deleting_may_name_the_version(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let named = |rvn: &str| json!({ "delete": true, "recordVersionNumber": rvn });
    let refusal = lock.release(&grant.lease_id, named(&fresh("version"))).await;
    assert_eq!(refusal.lost("version-mismatch"), lock.view(&grant, json!({})));
    lock.release(&grant.lease_id, named(&grant.rvn)).await.released("released");
    lock.deleted().await;
    let gone = lock.release(&grant.lease_id, named(&grant.rvn)).await;
    gone.released("absent");
    assert_eq!(lock.heartbeat(&grant.lease_id, json!({})).await.lost("absent"), Value::Null);
}
