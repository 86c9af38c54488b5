//! Rule 3: renewals, and every way in which a lock is lost.

use serde_json::{Value, json};

use crate::bench::{Bench, fresh};

pub(super) async fn it_renews(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let first = lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    let second = lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    assert!(grant.rvn != first.rvn && first.rvn != second.rvn && grant.rvn != second.rvn);
    assert_eq!((first.lease_ms, second.lease_ms), (20_000, 20_000));
    assert_eq!((first.token, second.token), (grant.token, grant.token));
    assert_eq!(lock.get().await.ok(), lock.view(&grant, json!({ "recordVersionNumber": second.rvn })));
}

pub(super) async fn it_changes_the_lease_only_if_asked(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "leaseDurationMs": 30_000 })).await.granted("created");
    for (fields, lease_ms) in [
        (json!({}), 30_000),
        (json!({ "leaseDurationMs": 100 }), 100),
        (json!({}), 100),
        (json!({ "leaseDurationMs": 86_400_000 }), 86_400_000),
    ] {
        assert_eq!(lock.heartbeat(&grant.lease_id, fields).await.renewed().lease_ms, lease_ms);
        assert_eq!(lock.get().await.ok()["leaseDurationMs"], lease_ms);
    }
}

pub(super) async fn it_keeps_observers_off(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let observed = json!({ "observedRecordVersionNumber": grant.rvn });
    let renewal = lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    let view = lock.view(&grant, json!({ "recordVersionNumber": renewal.rvn }));
    assert_eq!(lock.acquire("bob", observed).await.held(), view);
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
}

pub(super) async fn it_may_name_the_version(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let named = json!({ "recordVersionNumber": grant.rvn, "data": "once" });
    let renewal = lock.heartbeat(&grant.lease_id, named.clone()).await.renewed();
    let row = lock.row().await;
    let view = lock.view(&grant, json!({ "recordVersionNumber": renewal.rvn, "data": "once" }));
    for rvn in [grant.rvn.clone(), fresh("version"), renewal.rvn.to_uppercase()] {
        let stale = json!({ "recordVersionNumber": rvn, "data": "twice" });
        assert_eq!(lock.heartbeat(&grant.lease_id, stale).await.lost("version-mismatch"), view);
    }
    assert_eq!(lock.row().await, row);
    // The right version does not replace the lease id.
    let right = json!({ "recordVersionNumber": renewal.rvn });
    assert_eq!(lock.heartbeat(&fresh("lease"), right.clone()).await.lost("taken-over"), view);
    lock.heartbeat(&grant.lease_id, right).await.renewed();
}

pub(super) async fn absent_lock_is_lost(bench: Bench) {
    let lock = bench.lock();
    for fields in [json!({}), json!({ "recordVersionNumber": fresh("version") }), json!({ "data": "mine" })] {
        assert_eq!(lock.heartbeat(&fresh("lease"), fields).await.lost("absent"), Value::Null);
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn released_lock_is_lost(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    lock.release(&grant.lease_id, json!({})).await.released("released");
    let row = lock.row().await;
    let view = lock.released_view(&grant, json!({})).await;
    for fields in [json!({}), json!({ "recordVersionNumber": grant.rvn }), json!({ "leaseDurationMs": 100 })] {
        assert_eq!(lock.heartbeat(&grant.lease_id, fields).await.lost("released"), view);
    }
    assert_eq!(lock.heartbeat(&fresh("lease"), json!({})).await.lost("taken-over"), view);
    assert_eq!(lock.row().await, row);
}

pub(super) async fn broken_lock_is_lost(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    lock.break_it(&grant.rvn).await.released("released");
    let view = lock.released_view(&grant, json!({})).await;
    assert_eq!(lock.heartbeat(&grant.lease_id, json!({})).await.lost("released"), view);
}

pub(super) async fn deleted_lock_is_lost(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    lock.release(&grant.lease_id, json!({ "delete": true })).await.released("released");
    let tombstone = lock.deleted().await;
    assert_eq!(lock.heartbeat(&grant.lease_id, json!({})).await.lost("absent"), Value::Null);
    assert_eq!(lock.deleted().await, tombstone);
}

pub(super) async fn lock_of_someone_else_is_lost(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let row = lock.row().await;
    let almost = [grant.lease_id.to_uppercase(), format!("{} ", grant.lease_id), grant.lease_id[1..].to_owned()];
    for lease_id in almost.into_iter().chain([fresh("lease"), "x".to_owned(), "\0".to_owned()]) {
        let refusal = lock.heartbeat(&lease_id, json!({})).await;
        assert_eq!(refusal.lost("taken-over"), lock.view(&grant, json!({})), "{refusal}");
    }
    assert_eq!(lock.row().await, row);
}

pub(super) async fn lock_with_a_successor_is_lost(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.release(&alice.lease_id, json!({})).await.released("released");
    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    assert_eq!(lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over"), lock.view(&bob, json!({})));
    lock.release(&bob.lease_id, json!({})).await.released("released");
    let view = lock.released_view(&bob, json!({})).await;
    assert_eq!(lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over"), view);
}
