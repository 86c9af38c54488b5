//! Waits for a change.

use serde_json::json;

use crate::bench::{Bench, WATCH, fresh, merged, query};

/// Longer than any change here takes to become visible.
const LONG: &str = "20000";

pub(super) async fn it_answers_at_once_when_the_lock_is_another(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let view = lock.view(&grant, json!({}));
    for version in ["", "another"] {
        assert_eq!(lock.watch(version, LONG).await.ok(), view);
    }
    assert_eq!(bench.get(WATCH, &lock.parameters()).await.ok(), view);
    // A watch of a released lock does not wait.
    lock.release(&grant.lease_id, json!({})).await.released("released");
    let view = lock.released_view(&grant, json!({})).await;
    assert_eq!(lock.watch(&lock.version().await, LONG).await.ok(), view);
}

pub(super) async fn it_answers_when_the_lock_changes(bench: Bench) {
    let lock = bench.lock();
    let mut grant = lock.hold("alice").await;
    let renew = async || lock.heartbeat(&grant.lease_id, json!({ "data": "new" })).await.renewed();
    let (watched, renewal) = tokio::join!(lock.watch(&grant.rvn, LONG), renew());
    let renewed = lock.view(&grant, json!({ "recordVersionNumber": renewal.rvn, "data": "new" }));
    assert_eq!(watched.ok(), renewed);
    let take = async || {
        let observed = json!({ "observedRecordVersionNumber": renewal.rvn });
        lock.acquire("bob", observed).await.granted("takenOver")
    };
    let (watched, taken) = tokio::join!(lock.watch(&renewal.rvn, LONG), take());
    assert_eq!(watched.ok(), lock.view(&taken, json!({})));
    grant = taken;
    let (watched, broken) = tokio::join!(lock.watch(&grant.rvn, LONG), lock.break_it(&grant.rvn));
    broken.released("released");
    assert_eq!(watched.ok()["state"], "released");
    let grant = lock.acquire("carol", json!({})).await.granted("reacquired");
    let (watched, released) =
        tokio::join!(lock.watch(&grant.rvn, LONG), lock.release(&grant.lease_id, json!({ "data": "left" })));
    released.released("released");
    assert_eq!(watched.ok()["data"], "left");
}

pub(super) async fn it_answers_when_there_is_a_lock(bench: Bench) {
    let lock = bench.lock();
    let (watched, grant) = tokio::join!(lock.watch("", LONG), lock.hold("alice"));
    assert_eq!(watched.ok(), lock.view(&grant, json!({})));
}

pub(super) async fn it_answers_when_the_lock_is_gone(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let delete = json!({ "delete": true });
    let (watched, deleted) = tokio::join!(lock.watch(&grant.rvn, LONG), lock.release(&grant.lease_id, delete));
    deleted.released("released");
    watched.problem("not-found");
    lock.watch(&grant.rvn, LONG).await.problem("not-found");
}

pub(super) async fn it_ends_with_the_lock_as_it_is(bench: Bench) {
    let lock = bench.lock();
    for wait_ms in ["0", "100"] {
        lock.watch("", wait_ms).await.problem("not-found");
    }
    let grant = lock.hold("alice").await;
    for wait_ms in ["0", "100"] {
        assert_eq!(lock.watch(&grant.rvn, wait_ms).await.ok(), lock.view(&grant, json!({})));
    }
}

pub(super) async fn its_parameters_have_bounds(bench: Bench) {
    let lock = bench.lock();
    for wait_ms in ["20001", "-1", "1.5", "", "soon"] {
        lock.watch("", wait_ms).await.invalid("waitMs");
    }
    let watch = async |more: &[(&str, &str)]| bench.get(WATCH, &[lock.parameters(), more.to_vec()].concat()).await;
    watch(&[("limit", "1")]).await.invalid("limit");
    watch(&[("waitMs", "0"), ("waitMs", "0")]).await.invalid("waitMs");
    bench.get(WATCH, &[("version", &fresh("version")), ("waitMs", "0")]).await.invalid("key");
    let body = merged(lock.with_key(json!({})), json!({ "waitMs": 0 }));
    bench.post(&format!("{WATCH}{}", query(&lock.parameters())), &body).await.problem("method-not-allowed");
}
