//! Rule 2: the callers that are granted a lock, and those that are not.

use serde_json::{Value, json};

use crate::bench::{Bench, fresh};

pub(super) async fn free_key_is_created(bench: Bench) {
    let lock = bench.lock();
    let lease_id = fresh("lease");
    let fields = json!({ "leaseId": lease_id, "leaseDurationMs": 30_000, "data": "payload" });
    let grant = lock.acquire("alice", fields).await.granted("created");
    let expected = lock.with_key(json!({
        "ownerName": "alice",
        "leaseId": lease_id,
        "recordVersionNumber": grant.rvn,
        "leaseDurationMs": 30_000,
        "fencingToken": grant.token,
        "outcome": "created",
        "data": "payload",
    }));
    assert_eq!(grant.body, expected);
}

pub(super) async fn defaults_and_a_generated_lease_id(bench: Bench) {
    let (lock, other) = (bench.lock(), bench.lock());
    let (grant, other) = (lock.hold("alice").await, other.hold("alice").await);
    assert_eq!(grant.body["leaseDurationMs"], 20_000);
    assert_eq!(grant.body.get("data"), None);
    assert_eq!(grant.body.get("previousOwnerName"), None);
    assert!(grant.lease_id.len() >= 32, "a lease id that cannot be guessed, not {:?}", grant.lease_id);
    assert_ne!(grant.lease_id, other.lease_id);
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    lock.heartbeat(&other.lease_id, json!({})).await.lost("taken-over");
}

pub(super) async fn held_lock_is_refused_and_left_alone(bench: Bench) {
    let lock = bench.lock();
    let fields = json!({ "data": "hers", "leaseDurationMs": 60_000, "attributes": { "team": "payments" } });
    let grant = lock.acquire("alice", fields).await.granted("created");
    let row = lock.row().await;
    let fields = json!({ "data": "his", "leaseDurationMs": 100, "attributes": { "team": "sales" } });
    let refusal = lock.acquire("bob", fields).await;
    assert_eq!(refusal.held(), lock.view(&grant, json!({ "attributes": { "team": "payments" } })));
    assert_eq!(lock.row().await, row);
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
}

pub(super) async fn repeat_is_a_renewal(bench: Bench) {
    let lock = bench.lock();
    let first = lock.hold("alice").await;
    let fields = json!({ "leaseId": first.lease_id, "leaseDurationMs": 45_000 });
    let repeat = lock.acquire("alice, again", fields).await.granted("renewed");
    assert_ne!(repeat.rvn, first.rvn);
    assert!(repeat.token > first.token);
    let expected = lock.with_key(json!({
        "ownerName": "alice, again",
        "leaseId": first.lease_id,
        "recordVersionNumber": repeat.rvn,
        "leaseDurationMs": 45_000,
        "fencingToken": repeat.token,
        "outcome": "renewed",
    }));
    assert_eq!(repeat.body, expected);
    assert_eq!(lock.get().await.ok(), lock.view(&repeat, json!({})));
    let stale = json!({ "recordVersionNumber": first.rvn });
    lock.heartbeat(&first.lease_id, stale).await.lost("version-mismatch");
}

pub(super) async fn observed_version_takes_over(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    let observed = json!({ "observedRecordVersionNumber": alice.rvn, "leaseDurationMs": 30_000 });
    let bob = lock.acquire("bob", observed).await.granted("takenOver");
    let expected = lock.with_key(json!({
        "ownerName": "bob",
        "leaseId": bob.lease_id,
        "recordVersionNumber": bob.rvn,
        "leaseDurationMs": 30_000,
        "fencingToken": bob.token,
        "outcome": "takenOver",
        "previousOwnerName": "alice",
    }));
    assert_eq!(bob.body, expected);
    assert!(bob.token > alice.token);
    assert_ne!(bob.lease_id, alice.lease_id);

    // The service refuses every request of the former holder, and shows it its successor.
    let view = lock.view(&bob, json!({}));
    let row = lock.row().await;
    assert_eq!(lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    assert_eq!(lock.release(&alice.lease_id, json!({})).await.lost("taken-over"), view);
    assert_eq!(lock.release(&alice.lease_id, json!({ "delete": true })).await.lost("taken-over"), view);
    assert_eq!(lock.acquire("alice", json!({ "leaseId": alice.lease_id })).await.lost("taken-over"), view);
    let observed = json!({ "leaseId": alice.lease_id, "observedRecordVersionNumber": bob.rvn });
    assert_eq!(lock.acquire("alice", observed).await.lost("taken-over"), view);
    assert_eq!(lock.row().await, row);
}

pub(super) async fn any_other_version_is_refused(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    let renewal = lock.heartbeat(&alice.lease_id, json!({})).await.renewed();
    let row = lock.row().await;
    let wrong = [
        alice.rvn.clone(),
        fresh("version"),
        renewal.rvn.to_uppercase(),
        format!("{} ", renewal.rvn),
        renewal.rvn[1..].to_owned(),
        "*".to_owned(),
    ];
    for rvn in wrong {
        let refusal = lock.acquire("bob", json!({ "observedRecordVersionNumber": rvn })).await;
        assert_eq!(refusal.held()["recordVersionNumber"], renewal.rvn, "{refusal}");
    }
    assert_eq!(lock.row().await, row);
}

pub(super) async fn observed_version_is_good_for_one_takeover(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    let observed = json!({ "observedRecordVersionNumber": alice.rvn });
    let bob = lock.acquire("bob", observed.clone()).await.granted("takenOver");
    assert_eq!(lock.acquire("carol", observed).await.held(), lock.view(&bob, json!({})));
}

pub(super) async fn observed_version_is_no_obstacle(bench: Bench) {
    let lock = bench.lock();
    let wrong = json!({ "observedRecordVersionNumber": fresh("version") });
    let alice = lock.acquire("alice", wrong.clone()).await.granted("created");
    let own = json!({ "leaseId": alice.lease_id, "observedRecordVersionNumber": fresh("version") });
    let alice = lock.acquire("alice", own).await.granted("renewed");
    let own = json!({ "leaseId": alice.lease_id, "observedRecordVersionNumber": alice.rvn });
    let alice = lock.acquire("alice", own).await.granted("renewed");
    lock.release(&alice.lease_id, json!({})).await.released("released");
    let bob = lock.acquire("bob", wrong).await.granted("reacquired");
    lock.release(&bob.lease_id, json!({})).await.released("released");
    let right = json!({ "observedRecordVersionNumber": bob.rvn });
    lock.acquire("carol", right).await.granted("reacquired");
}

pub(super) async fn released_lock_is_reacquired(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.release(&alice.lease_id, json!({})).await.released("released");
    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    assert_eq!(bob.body["previousOwnerName"], "alice");
    assert!(bob.token > alice.token);
    assert_eq!(lock.get().await.ok(), lock.view(&bob, json!({})));
}

pub(super) async fn lease_id_is_good_for_one_acquisition(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.release(&alice.lease_id, json!({})).await.released("released");
    let row = lock.row().await;
    let view = lock.released_view(&alice, json!({})).await;
    for fields in [
        json!({}),
        json!({ "onlyIfExists": true }),
        json!({ "observedRecordVersionNumber": alice.rvn }),
        json!({ "staleness": "clock" }),
    ] {
        let again = crate::bench::merged(json!({ "leaseId": alice.lease_id }), fields);
        assert_eq!(lock.acquire("alice", again).await.lost("released"), view);
    }
    assert_eq!(lock.row().await, row);
    lock.acquire("alice", json!({})).await.granted("reacquired");
}

pub(super) async fn lease_id_ends_with_a_break(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.break_it(&alice.rvn).await.released("released");
    let refusal = lock.acquire("alice", json!({ "leaseId": alice.lease_id })).await;
    assert_eq!(refusal.lost("released"), lock.released_view(&alice, json!({})).await);
    lock.acquire("alice", json!({})).await.granted("reacquired");
}

pub(super) async fn ended_lease_id_cannot_disturb_a_successor(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.release(&alice.lease_id, json!({})).await.released("released");
    let bob = lock.acquire("bob", json!({})).await.granted("reacquired");
    let row = lock.row().await;
    for fields in [json!({}), json!({ "sequence": 9 }), json!({ "observedRecordVersionNumber": bob.rvn })] {
        let again = crate::bench::merged(json!({ "leaseId": alice.lease_id }), fields);
        assert_eq!(lock.acquire("alice", again).await.lost("released"), lock.view(&bob, json!({})));
    }
    assert_eq!(lock.row().await, row);
    // The memory of the end outlives the successor's release.
    lock.release(&bob.lease_id, json!({})).await.released("released");
    lock.acquire("alice", json!({ "leaseId": alice.lease_id })).await.lost("released");
}

pub(super) async fn ended_lease_id_is_remembered_by_a_tombstone(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.hold("alice").await;
    lock.release(&alice.lease_id, json!({ "delete": true })).await.released("released");
    let tombstone = lock.deleted().await;
    let again = json!({ "leaseId": alice.lease_id });
    assert_eq!(lock.acquire("alice", again.clone()).await.lost("released"), Value::Null);
    assert_eq!(lock.deleted().await, tombstone);
    let bob = lock.acquire("bob", json!({})).await.granted("created");
    assert_eq!(bob.token, alice.token + 1);
    assert_eq!(bob.body.get("previousOwnerName"), None);
    assert_eq!(lock.acquire("alice", again).await.lost("released"), lock.view(&bob, json!({})));
}

pub(super) async fn only_if_exists_never_creates(bench: Bench) {
    let lock = bench.lock();
    let only = json!({ "onlyIfExists": true });
    lock.acquire("alice", only.clone()).await.problem("not-found");
    assert_eq!(lock.row().await, None);
    let alice = lock.acquire("alice", json!({ "onlyIfExists": false })).await.granted("created");
    assert_eq!(lock.acquire("bob", only.clone()).await.held(), lock.view(&alice, json!({})));
    let repeat = json!({ "onlyIfExists": true, "leaseId": alice.lease_id });
    let alice = lock.acquire("alice", repeat).await.granted("renewed");
    let observed = json!({ "onlyIfExists": true, "observedRecordVersionNumber": alice.rvn });
    let bob = lock.acquire("bob", observed).await.granted("takenOver");
    lock.release(&bob.lease_id, json!({})).await.released("released");
    let carol = lock.acquire("carol", only.clone()).await.granted("reacquired");
    lock.release(&carol.lease_id, json!({ "delete": true })).await.released("released");
    lock.acquire("dave", only).await.problem("not-found");
}

pub(super) async fn fencing_tokens_rise_through_everything(bench: Bench) {
    let lock = bench.lock();
    let created = lock.hold("created").await;
    let renewed = lock.acquire("renewed", json!({ "leaseId": created.lease_id })).await.granted("renewed");
    let beat = lock.heartbeat(&renewed.lease_id, json!({})).await.renewed();
    assert_eq!(beat.token, renewed.token, "a heartbeat is no acquisition");

    lock.release(&renewed.lease_id, json!({})).await.released("released");
    let reacquired = lock.acquire("reacquired", json!({})).await.granted("reacquired");
    let observed = json!({ "observedRecordVersionNumber": reacquired.rvn });
    let taken_over = lock.acquire("taken over", observed).await.granted("takenOver");
    lock.break_it(&taken_over.rvn).await.released("released");
    let after_break = lock.acquire("after break", json!({})).await.granted("reacquired");
    lock.release(&after_break.lease_id, json!({ "delete": true })).await.released("released");
    let after_delete = lock.acquire("after delete", json!({})).await.granted("created");

    let tokens = [&created, &renewed, &reacquired, &taken_over, &after_break, &after_delete].map(|grant| grant.token);
    assert!(tokens.is_sorted_by(|before, after| before < after), "{tokens:?}");
    let steps: Vec<_> = tokens.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(steps, [1, 1, 1, 1, 1], "one by one, through a deletion as well");
}

pub(super) async fn every_version_is_new(bench: Bench) {
    let lock = bench.lock();
    let first = lock.hold("alice").await;
    let mut versions = vec![first.rvn];
    for _ in 0..5 {
        let repeat = json!({ "leaseId": first.lease_id });
        versions.push(lock.acquire("alice", repeat).await.granted("renewed").rvn);
        versions.push(lock.heartbeat(&first.lease_id, json!({})).await.renewed().rvn);
    }
    let count = versions.len();
    versions.sort();
    versions.dedup();
    assert_eq!(versions.len(), count);
}

pub(super) async fn leases_have_bounds(bench: Bench) {
    let holder = bench.lock();
    let held = holder.hold("alice").await;
    for lease_ms in [100, 101, 86_399_999, 86_400_000] {
        let lease = json!({ "leaseDurationMs": lease_ms });
        let grant = bench.lock().acquire("alice", lease.clone()).await.granted("created");
        assert_eq!(grant.body["leaseDurationMs"], lease_ms);
        assert_eq!(holder.heartbeat(&held.lease_id, lease).await.renewed().lease_ms, lease_ms);
    }
    let row = holder.row().await;
    for lease_ms in [0, 1, 99, 86_400_001, u64::from(u32::MAX), u64::MAX] {
        let lease = json!({ "leaseDurationMs": lease_ms });
        let lock = bench.lock();
        lock.acquire("alice", lease.clone()).await.invalid("leaseDurationMs");
        assert_eq!(lock.row().await, None);
        holder.heartbeat(&held.lease_id, lease).await.invalid("leaseDurationMs");
    }
    assert_eq!(holder.row().await, row);
    assert_eq!(holder.get().await.ok()["leaseDurationMs"], Value::from(86_400_000));
}
