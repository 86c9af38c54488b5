//! Once an occurrence: a successful run of a recurring job is not repeated.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};

use crate::bench::{Bench, Lock, epoch_ms, fresh, merged, number};
use crate::reply::{Grant, Reply};

const TWO: &str = "2026-11-21T02";
const THREE: &str = "2026-11-21T03";

fn run(occurrence: &str) -> Value {
    json!({ "occurrence": occurrence })
}

fn at_most_once(occurrence: &str) -> Value {
    json!({ "occurrence": occurrence, "atMostOnce": true })
}

async fn complete(lock: &Lock, grant: &Grant, occurrence: &str, fields: Value) -> Reply {
    lock.release(&grant.lease_id, merged(json!({ "completed": occurrence }), fields)).await
}

/// A lock whose run of `TWO` left "two" behind.
async fn done(bench: &Bench) -> (Lock, Grant) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", run(TWO)).await.granted("created");
    complete(&lock, &grant, TWO, json!({ "data": "two" })).await.released("released");
    (lock, grant)
}

pub(super) async fn run_that_succeeded_is_not_repeated(bench: Bench) {
    let (lock, grant) = done(&bench).await;
    let row = lock.row().await;
    let view = lock.released_view(&grant, json!({ "data": "two", "lastOccurrence": TWO })).await;
    for fields in [run(TWO), run("2026-11-21T01"), at_most_once(TWO)] {
        assert_eq!(lock.acquire("bob", fields).await.already_done(), view);
    }
    assert_eq!(lock.row().await, row, "a refusal writes nothing");
    assert_eq!(lock.get().await.ok(), view);
    let next = lock.acquire("bob", run(THREE)).await.granted("reacquired");
    assert_eq!(next.body["data"], "two");
    assert_eq!(lock.get().await.ok()["occurrence"], THREE);
    complete(&lock, &next, THREE, json!({})).await.released("released");
    assert_eq!(lock.acquire("carol", run(THREE)).await.already_done()["lastOccurrence"], THREE);
}

pub(super) async fn run_that_failed_is_tried_again(bench: Bench) {
    let lock = bench.lock();
    let failed = lock.acquire("alice", run(TWO)).await.granted("created");
    lock.acquire("bob", run(TWO)).await.held();
    lock.release(&failed.lease_id, json!({})).await.released("released");
    let died = lock.acquire("bob", run(TWO)).await.granted("reacquired");
    let observed = merged(run(TWO), json!({ "observedRecordVersionNumber": died.rvn }));
    let third = lock.acquire("carol", observed).await.granted("takenOver");
    complete(&lock, &third, TWO, json!({})).await.released("released");
    lock.acquire("dave", run(TWO)).await.already_done();
}

pub(super) async fn run_at_most_once_is_not_tried_again(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", at_most_once(TWO)).await.granted("created");
    // The holder's own repeats are answered first.
    let repeat = merged(at_most_once(TWO), json!({ "leaseId": grant.lease_id }));
    let grant = lock.acquire("alice", repeat).await.granted("renewed");
    assert_eq!(lock.acquire("bob", run(TWO)).await.already_done()["state"], "held");
    let observed = json!({ "observedRecordVersionNumber": grant.rvn });
    lock.acquire("bob", merged(run(TWO), observed.clone())).await.already_done();
    let next = lock.acquire("bob", merged(at_most_once(THREE), observed)).await.granted("takenOver");
    lock.release(&next.lease_id, json!({})).await.released("released");
    lock.acquire("carol", run(THREE)).await.already_done();
}

pub(super) async fn repeat_of_a_completed_run_has_its_answers(bench: Bench) {
    let lock = bench.lock();
    let fields = merged(at_most_once(TWO), json!({ "leaseId": fresh("lease"), "sequence": 1 }));
    let grant = lock.acquire("alice", fields.clone()).await.granted("created");
    assert_eq!(lock.acquire("alice", fields).await.granted("created").body, grant.body);
    for outcome in ["released", "replayed"] {
        complete(&lock, &grant, TWO, json!({})).await.released(outcome);
    }
    lock.acquire("bob", run(THREE)).await.granted("reacquired");
    complete(&lock, &grant, TWO, json!({})).await.released("replayed");
}

pub(super) async fn completion_that_is_not_stored_is_lost(bench: Bench) {
    let complete_two = json!({ "completed": TWO });
    let absent = bench.lock();
    absent.release(&fresh("lease"), complete_two.clone()).await.lost("absent");
    let lock = bench.lock();
    let broken = lock.acquire("alice", run(TWO)).await.granted("created");
    lock.break_it(&broken.rvn).await.released("released");
    complete(&lock, &broken, TWO, json!({})).await.lost("released");
    let next = lock.acquire("bob", run(TWO)).await.granted("reacquired");
    complete(&lock, &broken, TWO, json!({})).await.lost("taken-over");
    lock.release(&next.lease_id, json!({ "delete": true })).await.released("released");
    complete(&lock, &next, TWO, json!({})).await.lost("absent");
}

pub(super) async fn completion_of_another_run_is_not_ones_own(bench: Bench) {
    let two = async |lock: &Lock, grant: &Grant| complete(lock, grant, TWO, json!({})).await;
    // Broken, and run again by another caller.
    let lock = bench.lock();
    let broken = lock.acquire("alice", run(TWO)).await.granted("created");
    lock.break_it(&broken.rvn).await.released("released");
    let next = lock.acquire("bob", run(TWO)).await.granted("reacquired");
    two(&lock, &next).await.released("released");
    two(&lock, &broken).await.lost("taken-over");
    lock.release(&next.lease_id, json!({ "delete": true })).await.released("replayed");
    two(&lock, &broken).await.lost("absent");
    two(&lock, &next).await.released("absent");
    // Broken or given back, where the acquire recorded the occurrence as done.
    for ends in [true, false] {
        let lock = bench.lock();
        let once = lock.acquire("alice", at_most_once(TWO)).await.granted("created");
        if ends {
            lock.release(&once.lease_id, json!({})).await.released("released");
        } else {
            lock.break_it(&once.rvn).await.released("released");
        }
        two(&lock, &once).await.lost("released");
        lock.acquire("bob", run(THREE)).await.granted("reacquired");
        two(&lock, &once).await.lost("taken-over");
    }
    // An earlier occurrence counts as done, and was not completed.
    let (lock, grant) = done(&bench).await;
    complete(&lock, &grant, "2026-11-21T01", json!({})).await.lost("released");
}

pub(super) async fn completion_names_the_running_occurrence(bench: Bench) {
    for fields in [json!({}), run(THREE)] {
        let lock = bench.lock();
        let grant = lock.acquire("alice", fields).await.granted("created");
        let row = lock.row().await;
        complete(&lock, &grant, TWO, json!({})).await.invalid("completed");
        assert_eq!(lock.row().await, row, "nothing is lost");
    }
    // An acquire without an occurrence ends the one that ran.
    let lock = bench.lock();
    let grant = lock.acquire("alice", run(TWO)).await.granted("created");
    lock.acquire("alice", json!({ "leaseId": grant.lease_id })).await.granted("renewed");
    assert_eq!(lock.get().await.ok().get("occurrence"), None);
    complete(&lock, &grant, TWO, json!({})).await.invalid("completed");
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
}

pub(super) async fn acquire_without_an_occurrence_is_not_asked(bench: Bench) {
    let (lock, _) = done(&bench).await;
    let grant = lock.acquire("bob", json!({})).await.granted("reacquired");
    lock.release(&grant.lease_id, json!({})).await.released("released");
    lock.acquire("carol", run(TWO)).await.already_done();
}

pub(super) async fn holder_cannot_go_back(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", at_most_once(THREE)).await.granted("created");
    let back = merged(run(TWO), json!({ "leaseId": grant.lease_id }));
    lock.acquire("alice", back).await.already_done();
    complete(&lock, &grant, THREE, json!({})).await.released("released");
    assert_eq!(lock.get().await.ok()["lastOccurrence"], THREE);
}

pub(super) async fn row_with_a_done_occurrence_never_expires(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", run(TWO)).await.granted("created");
    assert!(lock.row().await.expect("a row")["expireAt"].is_n());
    complete(&lock, &grant, TWO, json!({})).await.released("released");
    assert_eq!(lock.row().await.expect("a row").get("expireAt"), None);
    // An expression cannot leave the attribute out.
    let expires = async || expires_at(&lock).await.is_some_and(|at| at < epoch_seconds() + 90 * YEAR);
    let grant = lock.acquire("bob", run(THREE)).await.granted("reacquired");
    assert!(!expires().await, "acquired");
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    assert!(!expires().await, "renewed");
    lock.break_it(&lock.version().await).await.released("released");
    assert!(!expires().await, "broken");
    let grant = lock.acquire("carol", json!({})).await.granted("reacquired");
    lock.release(&grant.lease_id, json!({})).await.released("released");
    assert!(!expires().await, "released");

    let lock = bench.lock();
    lock.acquire("alice", at_most_once(TWO)).await.granted("created");
    assert_eq!(lock.row().await.expect("a row").get("expireAt"), None);
}

pub(super) async fn row_outlives_the_time_of_its_occurrence(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", run(TWO)).await.granted("created");
    let begun = epoch_seconds();
    complete(&lock, &grant, TWO, json!({ "completedTtlMs": 2 * YEAR * 1000 - 1 })).await.released("released");
    lock.acquire("bob", run(TWO)).await.already_done();
    let remembers = async |what: &str| {
        let at = expires_at(&lock).await.expect("a time");
        assert!((begun + 2 * YEAR..begun + 3 * YEAR).contains(&at), "{what}: {at}");
    };
    remembers("completed").await;
    // Each later write has the time of the row's last occurrence beside its own.
    let grant = lock.acquire("bob", run(THREE)).await.granted("reacquired");
    remembers("acquired").await;
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    remembers("renewed").await;
    lock.break_it(&lock.version().await).await.released("released");
    remembers("broken").await;
    let grant = lock.acquire("carol", json!({})).await.granted("reacquired");
    lock.release(&grant.lease_id, json!({ "delete": true })).await.released("released");
    remembers("deleted").await;
    // The last completion decides.
    let grant = lock.acquire("dave", run(THREE)).await.granted("created");
    complete(&lock, &grant, THREE, json!({ "completedTtlMs": 1 })).await.released("released");
    let at = expires_at(&lock).await.expect("a time");
    assert!((begun + 1..begun + YEAR).contains(&at), "{at}");
    lock.set_occurrence(TWO, &lock.version().await).await.ok();
    assert_eq!(expires_at(&lock).await, None, "an operator's stays");
}

pub(super) async fn token_rises_when_the_row_of_an_occurrence_is_gone(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", run(TWO)).await.granted("created");
    complete(&lock, &grant, TWO, json!({ "completedTtlMs": 1000 })).await.released("released");
    lock.remove_row().await;
    let next = lock.acquire("bob", run(TWO)).await.granted("created");
    assert!(next.token > grant.token, "{} after {}", next.token, grant.token);
}

/// A year, in seconds.
const YEAR: u64 = 365 * 24 * 3600;

fn epoch_seconds() -> u64 {
    epoch_ms() / 1000
}

/// The time at which TTL may delete the row. TTL ignores an attribute that is no number.
async fn expires_at(lock: &Lock) -> Option<u64> {
    let row = lock.row().await.expect("a row");
    row.get("expireAt")?.as_n().ok().map(|digits| digits.parse().expect("a whole number"))
}

pub(super) async fn tombstone_keeps_the_occurrence(bench: Bench) {
    let (lock, grant) = done(&bench).await;
    lock.release(&grant.lease_id, json!({ "delete": true })).await.released("replayed");
    let tombstone = lock.deleted().await;
    let expires: Option<u64> = tombstone.get("expireAt").and_then(|at| at.as_n().ok()?.parse().ok());
    assert!(expires.is_none_or(|at| at > epoch_seconds() + 90 * YEAR), "{expires:?}");
    assert_eq!(lock.acquire("bob", run(TWO)).await.already_done(), Value::Null);
    complete(&lock, &grant, TWO, json!({})).await.released("absent");
    lock.acquire("bob", run(THREE)).await.granted("created");
}

pub(super) async fn occurrences_are_compared_byte_for_byte(bench: Bench) {
    let lock = bench.lock();
    // Occurrences are in the order of their bytes, which differs from that of numbers and of languages.
    for occurrence in ["10", "9", "Z", "a", "e\u{301}", "\u{e9}", "\u{1f600}"] {
        let grant = lock.acquire("alice", run(occurrence)).await;
        assert_eq!(grant.status(), 200, "{grant}");
        let lease_id = grant.granted_lease_id().expect("granted");
        lock.release(&lease_id, json!({ "completed": occurrence })).await.released("released");
        lock.acquire("alice", run(occurrence)).await.already_done();
    }
    lock.acquire("alice", run("11")).await.already_done();
}

pub(super) async fn unreadable_occurrence_is_no_leave(bench: Bench) {
    let (lock, _) = done(&bench).await;
    lock.overwrite([("lastOccurrence", Some(number(7)))]).await;
    let row = lock.row().await;
    lock.acquire("bob", run(THREE)).await.problem("corrupt-record");
    assert_eq!(lock.row().await, row);
    lock.acquire("bob", json!({})).await.granted("reacquired");
}

pub(super) async fn job_of_a_far_occurrence_can_be_set_back(bench: Bench) {
    let lock = bench.lock();
    let far = lock.acquire("alice", run("9999-12-31T23")).await.granted("created");
    complete(&lock, &far, "9999-12-31T23", json!({})).await.released("released");
    lock.acquire("bob", run(THREE)).await.already_done();
    let seen = lock.version().await;
    let set = lock.set_occurrence(TWO, &seen).await.ok();
    assert_eq!(set, json!({ "lastOccurrence": TWO, "recordVersionNumber": lock.version().await }));
    assert_ne!(lock.version().await, seen);
    assert_eq!(lock.get().await.ok()["lastOccurrence"], TWO);
    assert!(!lock.row().await.expect("a row").get("expireAt").is_some_and(AttributeValue::is_n));
    let row = lock.row().await;
    assert_eq!(lock.set_occurrence(TWO, &seen).await.ok(), set, "a repeat has the same answer");
    assert_eq!(lock.row().await, row);
    // The completion was carried out before: its repeat says so, and brings nothing back.
    complete(&lock, &far, "9999-12-31T23", json!({})).await.released("replayed");
    lock.acquire("bob", run(TWO)).await.already_done();
    let next = lock.acquire("bob", run(THREE)).await.granted("reacquired");
    complete(&lock, &next, THREE, json!({})).await.released("released");
    // A late copy of the change undoes no completion.
    assert_eq!(lock.set_occurrence(TWO, &seen).await.version_mismatch()["lastOccurrence"], THREE);
    lock.acquire("carol", run(THREE)).await.already_done();
}

pub(super) async fn occurrence_is_set_on_a_free_lock_alone(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", at_most_once(THREE)).await.granted("created");
    let row = lock.row().await;
    assert_eq!(lock.set_occurrence(TWO, &grant.rvn).await.held()["ownerName"], "alice");
    lock.set_occurrence(TWO, "another").await.version_mismatch();
    assert_eq!(lock.row().await, row);
    lock.break_it(&grant.rvn).await.released("released");
    lock.set_occurrence(TWO, &lock.version().await).await.ok();
    lock.acquire("bob", run(THREE)).await.granted("reacquired");
}

pub(super) async fn occurrence_of_no_lock_cannot_be_set(bench: Bench) {
    let lock = bench.lock();
    assert_eq!(lock.set_occurrence(TWO, "none").await.version_mismatch(), Value::Null);
    assert_eq!(lock.row().await, None);
    let (lock, grant) = done(&bench).await;
    lock.release(&grant.lease_id, json!({ "delete": true })).await.released("replayed");
    assert_eq!(lock.set_occurrence(THREE, &lock.version().await).await.version_mismatch(), Value::Null);
    lock.acquire("bob", run(TWO)).await.already_done();
    let semaphore = bench.lock();
    let permits = semaphore.with_key(json!({ "ownerName": "alice", "capacity": 1 }));
    bench.post("/v1/semaphore/acquire", &permits).await.ok();
    semaphore.set_occurrence(TWO, "any").await.problem("wrong-kind");
    lock.set_occurrence("", "any").await.invalid("lastOccurrence");
    lock.set_occurrence(TWO, "").await.invalid("recordVersionNumber");
}

pub(super) async fn its_fields_have_bounds(bench: Bench) {
    let lock = bench.lock();
    for (fields, field) in [
        (json!({ "occurrence": "" }), "occurrence"),
        (json!({ "occurrence": "o".repeat(1025) }), "occurrence"),
        (json!({ "occurrence": 7 }), "occurrence"),
        (json!({ "atMostOnce": true }), "atMostOnce"),
        (json!({ "occurrence": TWO, "atMostOnce": "yes" }), "atMostOnce"),
        (json!({ "attributes": { "lastOccurrence": "mine" } }), "attributes"),
        (json!({ "attributes": { "runningOccurrence": "mine" } }), "attributes"),
        (json!({ "attributes": { "completedOccurrence": "mine" } }), "attributes"),
        (json!({ "attributes": { "previousOccurrence": "mine" } }), "attributes"),
        (json!({ "attributes": { "occurrenceSeconds": 7 } }), "attributes"),
    ] {
        lock.acquire("alice", fields).await.invalid(field);
    }
    for (fields, field) in [
        (json!({ "completed": "" }), "completed"),
        (json!({ "completed": "o".repeat(1025) }), "completed"),
        (json!({ "completed": TWO, "delete": true }), "completed"),
        (json!({ "completed": TWO, "completedTtlMs": 0 }), "completedTtlMs"),
        (json!({ "completed": TWO, "completedTtlMs": 316_224_000_001_u64 }), "completedTtlMs"),
        (json!({ "completedTtlMs": 1000 }), "completedTtlMs"),
    ] {
        lock.release(&fresh("lease"), fields).await.invalid(field);
    }
    assert_eq!(lock.row().await, None);
    let longest = "o".repeat(1024);
    let grant = lock.acquire("alice", run(&longest)).await.granted("created");
    complete(&lock, &grant, &longest, json!({})).await.released("released");
}
