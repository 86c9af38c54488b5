//! Rule 15: the mark of a waiter.

use serde_json::json;

use crate::bench::{Bench, WANT, fresh, text};

pub(super) async fn holder_learns_that_somebody_waits(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let unwanted = lock.heartbeat(&grant.lease_id, json!({})).await.ok();
    assert_eq!(unwanted.get("wanted"), None, "{unwanted}");
    assert_eq!(lock.want("bob").await.ok(), json!({ "outcome": "marked" }));
    assert_eq!(lock.want("carol").await.ok(), json!({ "outcome": "already-marked" }));
    let heartbeat = lock.heartbeat(&grant.lease_id, json!({})).await.ok();
    assert_eq!(heartbeat["wanted"], true, "{heartbeat}");
    let released = lock.release(&grant.lease_id, json!({})).await.ok();
    assert_eq!(released, json!({ "outcome": "released", "wanted": true }));
    // The next acquisition begins without a mark.
    let grant = lock.acquire("bob", json!({})).await.granted("reacquired");
    lock.release(&grant.lease_id, json!({})).await.released("released");
}

pub(super) async fn lock_that_nobody_holds_is_free(bench: Bench) {
    let lock = bench.lock();
    assert_eq!(lock.want("bob").await.ok(), json!({ "outcome": "free" }));
    assert_eq!(lock.row().await, None);
    let grant = lock.hold("alice").await;
    lock.release(&grant.lease_id, json!({})).await.released("released");
    let row = lock.row().await;
    assert_eq!(lock.want("bob").await.ok(), json!({ "outcome": "free" }));
    assert_eq!(lock.row().await, row);
}

pub(super) async fn mark_is_no_sign_of_life(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let mut row = lock.row().await.expect("it is held");
    lock.want("bob").await.ok();
    // The mark is all that changes.
    row.insert("leaseholdWanted".to_owned(), text("bob"));
    assert_eq!(lock.row().await, Some(row));
    let heartbeat = json!({ "recordVersionNumber": grant.rvn });
    lock.heartbeat(&grant.lease_id, heartbeat).await.ok();
}

pub(super) async fn key_of_a_semaphore_is_of_the_wrong_kind(bench: Bench) {
    let lock = bench.lock();
    let permits = lock.with_key(json!({ "ownerName": "alice", "capacity": 1, "permits": 1 }));
    bench.post("/v1/semaphore/acquire", &permits).await.ok();
    lock.want("bob").await.problem("wrong-kind");
}

pub(super) async fn row_of_another_client_takes_no_mark(bench: Bench) {
    let lock = bench.lock();
    lock.hold("alice").await;
    let version = fresh("version");
    lock.overwrite([("ownerName", Some(text("java"))), ("recordVersionNumber", Some(text(version)))]).await;
    let row = lock.row().await;
    assert_eq!(lock.want("bob").await.ok(), json!({ "outcome": "not-ours" }));
    assert_eq!(lock.row().await, row);
}

pub(super) async fn request_must_be_complete(bench: Bench) {
    let lock = bench.lock();
    bench.post(WANT, &lock.with_key(json!({}))).await.invalid("ownerName");
    lock.want("").await.invalid("ownerName");
    bench.post(WANT, &lock.with_key(json!({ "ownerName": "bob", "leaseId": "l" }))).await.invalid("leaseId");
}
