//! Rule 9: no late message changes anything.

use serde_json::{Value, json};

use crate::bench::{Bench, Lock, fresh, merged};
use crate::reply::Grant;

/// Acquires the lock with this numbered request.
async fn hold(lock: &Lock, fields: Value) -> Grant {
    let fields = merged(json!({ "leaseId": fresh("lease"), "sequence": 1 }), fields);
    lock.acquire("alice", fields).await.granted("created")
}

pub(super) async fn repeated_acquire_has_its_first_answer(bench: Bench) {
    let lock = bench.lock();
    let repeat = async |owner: &str, outcome: &str, fields: Value| {
        let first = lock.acquire(owner, fields.clone()).await.granted(outcome);
        let row = lock.row().await;
        for _ in 0..2 {
            assert_eq!(lock.acquire(owner, fields.clone()).await.granted(outcome).body, first.body);
        }
        assert_eq!(lock.row().await, row, "a repeat changes nothing");
        first
    };
    let alice = json!({ "leaseId": fresh("lease"), "sequence": 1, "requestId": "a", "data": "hers" });
    let alice = repeat("alice", "created", alice).await;

    let bob = json!({
        "leaseId": fresh("lease"), "sequence": 7, "requestId": "b", "observedRecordVersionNumber": alice.rvn
    });
    let bob = repeat("bob", "takenOver", bob).await;
    assert_eq!(bob.body["previousOwnerName"], "alice");
    assert_eq!(bob.body["data"], "hers");

    // The same lease id with a new request is a renewal, which may itself be repeated.
    let renewal = repeat("bob", "renewed", json!({ "leaseId": bob.lease_id, "sequence": 8 })).await;
    assert_eq!((renewal.token, renewal.body.get("previousOwnerName")), (bob.token + 1, None));

    lock.release(&bob.lease_id, json!({})).await.released("released");
    let carol = repeat("carol", "reacquired", json!({ "leaseId": fresh("lease"), "sequence": 1 })).await;
    assert_eq!(carol.body["previousOwnerName"], "bob");

    lock.release(&carol.lease_id, json!({ "delete": true })).await.released("released");
    repeat("dave", "created", json!({ "leaseId": fresh("lease"), "sequence": 1 })).await;
}

pub(super) async fn repeated_heartbeat_has_its_first_answer(bench: Bench) {
    let lock = bench.lock();
    let grant = hold(&lock, json!({})).await;
    let beat = json!({
        "sequence": 2, "leaseDurationMs": 45_000, "data": "up to 18", "recordVersionNumber": grant.rvn
    });
    let first = lock.heartbeat(&grant.lease_id, beat.clone()).await.renewed();
    let row = lock.row().await;
    // The repeat is recognised before its version is checked, which it changed itself.
    let again = lock.heartbeat(&grant.lease_id, beat).await.renewed();
    assert_eq!((again.rvn, again.lease_ms, again.token), (first.rvn, 45_000, grant.token));
    assert_eq!(lock.row().await, row, "a repeat changes nothing");
}

pub(super) async fn late_request_is_superseded(bench: Bench) {
    let lock = bench.lock();
    let grant = hold(&lock, json!({ "data": "up to 16" })).await;
    let beat = |sequence: u64, data: &str, lease_ms: u64| json!({ "sequence": sequence, "data": data, "leaseDurationMs": lease_ms });
    lock.heartbeat(&grant.lease_id, beat(3, "up to 18", 60_000)).await.renewed();
    let row = lock.row().await;
    let rvn = lock.version().await;
    let differences = json!({ "recordVersionNumber": rvn, "data": "up to 18", "leaseDurationMs": 60_000 });
    let view = lock.view(&grant, differences);
    for sequence in [1, 2] {
        let late = beat(sequence, "up to 17", 100);
        assert_eq!(lock.heartbeat(&grant.lease_id, late.clone()).await.superseded(3), view);
        // A wrong version in addition is no loss either.
        let named = merged(late, json!({ "recordVersionNumber": grant.rvn }));
        assert_eq!(lock.heartbeat(&grant.lease_id, named).await.superseded(3), view);
        let late = json!({ "leaseId": grant.lease_id, "sequence": sequence, "data": "up to 16" });
        assert_eq!(lock.acquire("alice", late.clone()).await.superseded(3), view);
        let observed = merged(late, json!({ "observedRecordVersionNumber": rvn }));
        assert_eq!(lock.acquire("alice", observed).await.superseded(3), view);
    }
    assert_eq!(lock.row().await, row);
    lock.heartbeat(&grant.lease_id, beat(4, "up to 19", 60_000)).await.renewed();
}

pub(super) async fn another_request_of_the_same_number_is_superseded(bench: Bench) {
    let lock = bench.lock();
    let grant = hold(&lock, json!({ "requestId": "one" })).await;
    let row = lock.row().await;
    let view = lock.view(&grant, json!({}));
    for fields in [json!({ "sequence": 1, "requestId": "two" }), json!({ "sequence": 1 })] {
        assert_eq!(lock.heartbeat(&grant.lease_id, fields.clone()).await.superseded(1), view);
        let again = merged(json!({ "leaseId": grant.lease_id }), fields);
        assert_eq!(lock.acquire("alice", again).await.superseded(1), view);
    }
    assert_eq!(lock.row().await, row);
    lock.heartbeat(&grant.lease_id, json!({ "sequence": 2 })).await.renewed();
    lock.heartbeat(&grant.lease_id, json!({ "sequence": 2, "requestId": "two" })).await.superseded(2);
}

pub(super) async fn request_without_a_number_counts_as_new(bench: Bench) {
    let lock = bench.lock();
    let grant = hold(&lock, json!({})).await;
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    // The number stays after a heartbeat without one, and an acquire without one removes it.
    lock.heartbeat(&grant.lease_id, json!({ "sequence": 2 })).await.renewed();
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    lock.heartbeat(&grant.lease_id, json!({ "sequence": 1 })).await.superseded(2);
    lock.acquire("alice", json!({ "leaseId": grant.lease_id })).await.granted("renewed");
    lock.heartbeat(&grant.lease_id, json!({ "sequence": 1 })).await.renewed();
}

pub(super) async fn number_does_not_outlive_its_lease_id(bench: Bench) {
    let lock = bench.lock();
    let alice = hold(&lock, json!({ "sequence": 9 })).await;
    lock.release(&alice.lease_id, json!({})).await.released("released");
    lock.heartbeat(&alice.lease_id, json!({ "sequence": 9 })).await.lost("released");
    lock.heartbeat(&alice.lease_id, json!({ "sequence": 10 })).await.lost("released");
    lock.acquire("alice", json!({ "leaseId": alice.lease_id, "sequence": 9 })).await.lost("released");
    let bob = json!({ "leaseId": fresh("lease"), "sequence": 1 });
    let bob = lock.acquire("bob", bob).await.granted("reacquired");
    lock.heartbeat(&bob.lease_id, json!({ "sequence": 2 })).await.renewed();
}

/// A lease id that every row forgot may be granted again, to a copy of its acquire that arrives late.
pub(super) async fn late_heartbeat_changes_no_later_grant(bench: Bench) {
    let lock = bench.lock();
    let acquire = json!({ "leaseId": fresh("lease"), "sequence": 1 });
    let alice = lock.acquire("alice", acquire.clone()).await.granted("created");
    let beat = json!({ "sequence": 2, "data": "up to 19", "fencingToken": alice.token });
    lock.heartbeat(&alice.lease_id, beat.clone()).await.renewed();
    lock.release(&alice.lease_id, json!({})).await.released("released");
    for owner in ["bob", "carol"] {
        let grant = lock.acquire(owner, json!({})).await.granted("reacquired");
        let beat = json!({ "data": "up to 23", "fencingToken": grant.token });
        lock.heartbeat(&grant.lease_id, beat).await.renewed();
        lock.release(&grant.lease_id, json!({})).await.released("released");
    }
    let ghost = lock.acquire("alice", acquire).await.granted("reacquired");
    let row = lock.row().await;
    let lost = lock.heartbeat(&alice.lease_id, beat).await.problem("lost");
    assert_eq!(lost["reason"], "taken-over");
    assert_eq!(lock.row().await, row, "nothing changed");
    assert_eq!((&ghost.body["data"], ghost.token), (&json!("up to 23"), alice.token + 3));
}

pub(super) async fn number_is_no_possession(bench: Bench) {
    let lock = bench.lock();
    let grant = hold(&lock, json!({})).await;
    let view = lock.view(&grant, json!({}));
    for sequence in [1, 2] {
        let fields = json!({ "sequence": sequence });
        assert_eq!(lock.heartbeat(&fresh("lease"), fields.clone()).await.lost("taken-over"), view);
        assert_eq!(lock.acquire("bob", merged(json!({ "leaseId": fresh("lease") }), fields)).await.held(), view);
    }
}

pub(super) async fn numbers_and_ids_have_bounds(bench: Bench) {
    let lock = bench.lock();
    let last = (1_u64 << 53) - 1;
    for (field, fields) in [
        ("sequence", json!({ "sequence": 0 })),
        ("sequence", json!({ "sequence": last + 1 })),
        ("sequence", json!({ "sequence": u64::MAX })),
        ("requestId", json!({ "sequence": 1, "requestId": "" })),
        ("requestId", json!({ "sequence": 1, "requestId": "x".repeat(65) })),
        ("requestId", json!({ "requestId": "x" })),
    ] {
        let own = merged(json!({ "leaseId": fresh("lease") }), fields.clone());
        lock.acquire("alice", own).await.invalid(field);
        lock.heartbeat(&fresh("lease"), fields).await.invalid(field);
    }
    assert_eq!(lock.row().await, None);
    let grant = hold(&lock, json!({ "sequence": last - 1, "requestId": "x".repeat(64) })).await;
    let beat = json!({ "sequence": last, "requestId": "é".repeat(32) });
    let first = lock.heartbeat(&grant.lease_id, beat.clone()).await.renewed();
    assert_eq!(lock.heartbeat(&grant.lease_id, beat).await.renewed().rvn, first.rvn);
    lock.heartbeat(&grant.lease_id, json!({ "sequence": last })).await.superseded(last);
}
