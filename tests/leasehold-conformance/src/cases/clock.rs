//! `staleness: "clock"`: the one decision that depends on clocks.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::{Bench, fresh, pause};

/// The service's default skew: the time after its lease for which a lock still counts as alive.
const SKEW_MS: u64 = 1000;

/// The maximum number of tries of a machine that is too slow to look in time.
const TRIES: usize = 20;

pub(super) fn by_clock() -> Value {
    json!({ "staleness": "clock" })
}

/// Repeats a look that acquires with this lease, until its answer came before the lease and the skew were over.
pub(super) async fn look_before_the_skew_is_over<F: Future>(lease_ms: u64, look: impl Fn() -> F) -> F::Output {
    for _ in 0..TRIES {
        let begun = Instant::now();
        let seen = look().await;
        if begun.elapsed() < Duration::from_millis(lease_ms + SKEW_MS) {
            return seen;
        }
    }
    panic!("the machine is too slow to look at a lock within {} ms", lease_ms + SKEW_MS);
}

pub(super) async fn dead_lease_is_taken_over_after_the_skew(bench: Bench) {
    let early = || async {
        let lock = bench.lock();
        let alice = lock.acquire("alice", json!({ "leaseDurationMs": 100 })).await.granted("created");
        pause(200).await;
        let before = lock.acquire("bob", by_clock()).await;
        (lock, alice, before)
    };
    let (lock, alice, before) = look_before_the_skew_is_over(100, early).await;
    assert_eq!(before.held(), lock.view(&alice, json!({})));

    pause(100 + SKEW_MS).await;
    lock.acquire("bob", json!({})).await.held();
    lock.acquire("bob", json!({ "staleness": "rvn" })).await.held();
    let bob = lock.acquire("bob", by_clock()).await.granted("takenOver");
    assert_eq!(bob.body["previousOwnerName"], "alice");
    assert!(bob.token > alice.token);
    lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over");
    // The successor's lease is alive: 20 seconds by default.
    assert_eq!(lock.acquire("carol", by_clock()).await.held(), lock.view(&bob, json!({})));
}

pub(super) async fn heartbeat_keeps_a_lease_alive(bench: Bench) {
    // A slow machine is given leases that are twice as long, until it looks in time.
    let mut slowness = 1;
    while !is_alive_after_a_heartbeat(&bench, 1000 * slowness, 1000 * slowness, json!({})).await {
        slowness *= 2;
        assert!(slowness < 100, "the machine is too slow for this case");
    }
    let longer = json!({ "leaseDurationMs": 60_000 });
    assert!(is_alive_after_a_heartbeat(&bench, 100, 60_000, longer).await, "the machine is too slow for this case");
}

/// Both leases count from the heartbeat. Returns whether the lock was looked at in time: after the first lease and
/// before the second one were over.
async fn is_alive_after_a_heartbeat(bench: &Bench, first_ms: u64, second_ms: u64, fields: Value) -> bool {
    let lock = bench.lock();
    let alice = lock.acquire("alice", json!({ "leaseDurationMs": first_ms })).await.granted("created");
    let acquired = Instant::now();
    pause(first_ms + SKEW_MS - 500).await;
    let begun = Instant::now();
    let renewal = lock.heartbeat(&alice.lease_id, fields).await.renewed();
    let past_the_first_lease = Duration::from_millis(first_ms + SKEW_MS + 100).saturating_sub(acquired.elapsed());
    pause(u64::try_from(past_the_first_lease.as_millis()).expect("a minute or two")).await;
    let reply = lock.acquire("bob", by_clock()).await;
    if begun.elapsed() >= Duration::from_millis(second_ms + SKEW_MS) {
        return false;
    }
    assert_eq!(reply.held()["recordVersionNumber"], renewal.rvn);
    true
}

pub(super) async fn it_is_no_obstacle(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.acquire("alice", by_clock()).await.granted("created");
    let own = json!({ "staleness": "clock", "leaseId": alice.lease_id });
    lock.acquire("alice", own.clone()).await.granted("renewed");
    lock.release(&alice.lease_id, json!({})).await.released("released");
    lock.acquire("alice", own).await.lost("released");
    lock.acquire("bob", by_clock()).await.granted("reacquired");
    lock.acquire("carol", by_clock()).await.held();
}

pub(super) async fn it_excludes_an_observed_version(bench: Bench) {
    let both = json!({ "staleness": "clock", "observedRecordVersionNumber": fresh("version") });
    let lock = bench.lock();
    lock.acquire("alice", both).await.invalid("observedRecordVersionNumber");
    assert_eq!(lock.row().await, None);
    let named = json!({ "staleness": "rvn", "observedRecordVersionNumber": fresh("version") });
    let alice = lock.acquire("alice", named).await.granted("created");
    let named = json!({ "staleness": "rvn", "observedRecordVersionNumber": alice.rvn });
    lock.acquire("bob", named).await.granted("takenOver");
}
