//! A table without a sort key.

use serde_json::json;

use crate::bench::{ACQUIRE, BREAK, Bench, HEARTBEAT, LOCK, LOCKS, RELEASE, fresh};

pub(super) async fn sort_key_is_refused(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let row = lock.row().await;
    for (path, fields) in [
        (ACQUIRE, json!({ "sortKey": "s", "ownerName": "bob" })),
        (HEARTBEAT, json!({ "sortKey": "s", "leaseId": grant.lease_id })),
        (RELEASE, json!({ "sortKey": "s", "leaseId": grant.lease_id })),
        (RELEASE, json!({ "sortKey": "s", "leaseId": fresh("lease"), "delete": true })),
        (BREAK, json!({ "sortKey": "s", "recordVersionNumber": grant.rvn })),
    ] {
        bench.post(path, &lock.with_key(fields)).await.invalid("sortKey");
    }
    bench.get(LOCK, &[("key", &lock.key), ("sortKey", "s")]).await.invalid("sortKey");
    bench.get("/v1/history", &[("key", &lock.key), ("sortKey", "s")]).await.invalid("sortKey");
    bench.get(LOCKS, &[("key", &lock.key), ("sortKey", "s")]).await.invalid("sortKey");
    assert_eq!(lock.row().await, row);
}
