//! The rows as stored in the table: other clients read them, so every attribute counts.

use std::ops::RangeInclusive;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::json;

use crate::bench::{Bench, Item, Lock, bytes, epoch_ms, fresh, number, text};
use crate::secrets::hash;

/// The largest difference between the clocks of the service and of this machine.
const CLOCKS_DIFFER_MS: u64 = 1000;
const RETENTION_SECONDS: u64 = 7 * 24 * 3600;
/// The longest lease. A write that keeps the lease does not know its length, and keeps the row as long as the longest
/// lease would.
const LONGEST_LEASE_MS: u64 = 86_400_000;

/// The time in which a request was under way, by this machine's clock, in epoch milliseconds.
#[derive(Clone)]
struct Moment(RangeInclusive<u64>);

impl Moment {
    async fn of<T>(request: impl Future<Output = T>) -> (Self, T) {
        let sent = epoch_ms() - CLOCKS_DIFFER_MS;
        let reply = request.await;
        (Self(sent..=epoch_ms() + CLOCKS_DIFFER_MS), reply)
    }

    /// The valid values of `staleAt`.
    fn stale_at(&self, lease_ms: u64) -> RangeInclusive<u64> {
        self.0.start() + lease_ms..=self.0.end() + lease_ms
    }

    /// The valid values of `expireAt`.
    fn expire_at(&self, lease_ms: u64) -> RangeInclusive<u64> {
        let after = |ms: &u64| (ms + lease_ms).div_ceil(1000) + RETENTION_SECONDS;
        after(self.0.start())..=after(self.0.end())
    }

    /// The valid values of `expireAt` after a write that does not know the lease: never early, at most a day late.
    fn expire_at_latest(&self, lease_ms: u64) -> RangeInclusive<u64> {
        *self.expire_at(lease_ms).start()..=*self.expire_at(LONGEST_LEASE_MS).end()
    }

    /// The valid values of the first fencing token, which starts from microseconds.
    fn first_token(&self) -> RangeInclusive<u64> {
        self.0.start() * 1000 + 1..=(self.0.end() + 1) * 1000 + 1
    }
}

async fn row_of(lock: &Lock) -> Item {
    lock.row().await.expect("a row")
}

/// The number in this attribute.
#[track_caller]
fn number_in(row: &Item, name: &str) -> u64 {
    let value = row.get(name).unwrap_or_else(|| panic!("{name} is missing"));
    let digits = value.as_n().unwrap_or_else(|other| panic!("{name} is {other:?}, and no number"));
    digits.parse().unwrap_or_else(|error| panic!("{name} is {digits}: {error}"))
}

/// Checks the times of the row, and returns its other attributes.
#[track_caller]
fn without_times(mut row: Item, stale_at: &RangeInclusive<u64>, expire_at: &RangeInclusive<u64>) -> Item {
    for (name, expected) in [("staleAt", stale_at), ("expireAt", expire_at)] {
        let actual = number_in(&row, name);
        assert!(expected.contains(&actual), "{name} is {actual}, not within {expected:?}");
        row.remove(name);
    }
    row
}

fn item<const N: usize>(lock: &Lock, attributes: [(&str, AttributeValue); N]) -> Item {
    lock.item_key().into_iter().chain(attributes.map(|(name, value)| (name.to_owned(), value))).collect()
}

/// Returns `row` with these attributes changed. An attribute without a value is removed.
fn changed<const N: usize>(mut row: Item, changes: [(&str, Option<AttributeValue>); N]) -> Item {
    for (name, value) in changes {
        row.remove(name);
        row.extend(value.map(|value| (name.to_owned(), value)));
    }
    row
}

fn without(row: Item, name: &str) -> Item {
    changed(row, [(name, None)])
}

pub(super) async fn acquire_writes_the_whole_record(bench: Bench) {
    let lock = bench.lock();
    let lease_id = fresh("lease");
    let fields = json!({
        "leaseId": lease_id, "leaseDurationMs": 30_000, "data": "payload",
        "attributes": { "team": "payments", "tries": 3 },
    });
    let (moment, reply) = Moment::of(lock.acquire("alice", fields)).await;
    let grant = reply.granted("created");
    assert!(moment.first_token().contains(&grant.token), "{} is seeded by the clock", grant.token);
    assert_eq!(hash(&lease_id).len(), 32);
    let expected = item(
        &lock,
        [
            ("ownerName", text("alice")),
            ("leaseDuration", text("30000")),
            ("leaseMs", number(30_000)),
            ("recordVersionNumber", text(&grant.rvn)),
            ("leaseVersion", text(&grant.rvn)),
            ("leaseIdHash", bytes(hash(&lease_id))),
            ("fencingToken", number(grant.token)),
            ("previousLeaseIdHash", bytes("")),
            ("previousOwnerName", text("")),
            ("previousReleased", text("")),
            ("previousOccurrence", text("")),
            ("data", bytes("payload")),
            ("team", text("payments")),
            ("tries", number(3)),
        ],
    );
    let row = row_of(&lock).await;
    assert_eq!(without_times(row, &moment.stale_at(30_000), &moment.expire_at(30_000)), expected);
}

pub(super) async fn acquire_without_data_writes_none(bench: Bench) {
    let lock = bench.lock();
    let (moment, reply) = Moment::of(lock.acquire("alice", json!({}))).await;
    let grant = reply.granted("created");
    let expected = item(
        &lock,
        [
            ("ownerName", text("alice")),
            ("leaseDuration", text("20000")),
            ("leaseMs", number(20_000)),
            ("recordVersionNumber", text(&grant.rvn)),
            ("leaseVersion", text(&grant.rvn)),
            ("leaseIdHash", bytes(hash(&grant.lease_id))),
            ("fencingToken", number(grant.token)),
            ("previousLeaseIdHash", bytes("")),
            ("previousOwnerName", text("")),
            ("previousReleased", text("")),
            ("previousOccurrence", text("")),
        ],
    );
    let row = row_of(&lock).await;
    assert_eq!(without_times(row, &moment.stale_at(20_000), &moment.expire_at(20_000)), expected);
    let empty = bench.lock();
    empty.acquire("alice", json!({ "data": "" })).await.granted("created");
    assert_eq!(row_of(&empty).await["data"], bytes(""));
}

pub(super) async fn renewal_writes_the_record_anew(bench: Bench) {
    let lock = bench.lock();
    let first = lock.acquire("alice", json!({ "data": "payload" })).await.granted("created");
    let before = row_of(&lock).await;
    let fields = json!({ "leaseId": first.lease_id, "leaseDurationMs": 500 });
    let (moment, reply) = Moment::of(lock.acquire("alice two", fields)).await;
    let again = reply.granted("renewed");
    let expected = changed(
        before,
        [
            ("ownerName", Some(text("alice two"))),
            ("leaseDuration", Some(text("500"))),
            ("leaseMs", Some(number(500))),
            ("recordVersionNumber", Some(text(&again.rvn))),
            ("leaseVersion", Some(text(&again.rvn))),
            ("fencingToken", Some(number(first.token + 1))),
            ("previousLeaseIdHash", Some(bytes(hash(&first.lease_id)))),
            ("previousOwnerName", Some(text("alice"))),
            ("staleAt", None),
            ("expireAt", None),
        ],
    );
    let row = row_of(&lock).await;
    assert_eq!(without_times(row, &moment.stale_at(500), &moment.expire_at(500)), expected);
    assert_eq!(again.token, first.token + 1);
}

pub(super) async fn heartbeat_writes_version_and_times(bench: Bench) {
    let lock = bench.lock();
    let fields = json!({ "data": "payload", "leaseDurationMs": 30_000, "attributes": { "team": "payments" } });
    let grant = lock.acquire("alice", fields).await.granted("created");
    let before = row_of(&lock).await;
    let (moment, reply) = Moment::of(lock.heartbeat(&grant.lease_id, json!({}))).await;
    let renewal = reply.renewed();
    let expected = changed(
        before,
        [
            ("recordVersionNumber", Some(text(&renewal.rvn))),
            ("leaseVersion", Some(text(&renewal.rvn))),
            ("staleAt", None),
            ("expireAt", None),
        ],
    );
    let row = row_of(&lock).await;
    assert_eq!(without_times(row, &moment.stale_at(30_000), &moment.expire_at_latest(30_000)), expected);
}

pub(super) async fn heartbeat_with_a_lease_writes_the_lease(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "data": "payload" })).await.granted("created");
    let before = row_of(&lock).await;
    let fields = json!({ "leaseDurationMs": 45_000, "deleteData": true });
    let (moment, reply) = Moment::of(lock.heartbeat(&grant.lease_id, fields)).await;
    let renewal = reply.renewed();
    let expected = changed(
        before,
        [
            ("leaseDuration", Some(text("45000"))),
            ("leaseMs", Some(number(45_000))),
            ("recordVersionNumber", Some(text(&renewal.rvn))),
            ("leaseVersion", Some(text(&renewal.rvn))),
            ("data", None),
            ("staleAt", None),
            ("expireAt", None),
        ],
    );
    let row = row_of(&lock).await;
    assert_eq!(without_times(row, &moment.stale_at(45_000), &moment.expire_at(45_000)), expected);
}

/// Checks a row that was held in `before` and has now ended: it has a new version, and the lease id's hash and the
/// fencing token are unchanged. Compares the remaining attributes, too.
#[track_caller]
fn check_ended(before: Item, mut after: Item, moment: &Moment) {
    let expires = number_in(&after, "expireAt");
    let expected = moment.expire_at_latest(20_000);
    assert!(expected.contains(&expires), "expireAt is {expires}, not within {expected:?}");
    let rvn = after.remove("recordVersionNumber").expect("a version");
    assert_ne!(rvn, before["recordVersionNumber"]);
    let ended = before["recordVersionNumber"].clone();
    let expected = changed(
        without(before, "recordVersionNumber"),
        [
            ("isReleased", Some(text("1"))),
            ("leaseVersion", Some(rvn)),
            ("endedVersion", Some(ended)),
            ("expireAt", None),
        ],
    );
    assert_eq!(without(after, "expireAt"), expected);
}

pub(super) async fn release_ends_the_version(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "data": "payload" })).await.granted("created");
    let before = row_of(&lock).await;
    assert_eq!(before.get("isReleased"), None);
    let (moment, reply) = Moment::of(lock.release(&grant.lease_id, json!({}))).await;
    reply.released("released");
    check_ended(before, row_of(&lock).await, &moment);
}

pub(super) async fn release_with_data_stores_it(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let before = row_of(&lock).await;
    let (moment, reply) = Moment::of(lock.release(&grant.lease_id, json!({ "dataBase64": "/wA=" }))).await;
    reply.released("released");
    check_ended(changed(before, [("data", Some(bytes([0xff, 0x00])))]), row_of(&lock).await, &moment);
}

pub(super) async fn break_ends_the_version(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.acquire("alice", json!({ "data": "payload" })).await.granted("created");
    let before = row_of(&lock).await;
    let (moment, reply) = Moment::of(lock.break_it(&grant.rvn)).await;
    reply.released("released");
    let after = row_of(&lock).await;
    assert_eq!(after["brokenVersion"], after["recordVersionNumber"]);
    check_ended(before, without(after, "brokenVersion"), &moment);
}

pub(super) async fn reacquiring_unmarks(bench: Bench) {
    let lock = bench.lock();
    let alice = lock.acquire("alice", json!({ "data": "left" })).await.granted("created");
    lock.release(&alice.lease_id, json!({})).await.released("released");
    let (moment, reply) = Moment::of(lock.acquire("bob", json!({ "leaseDurationMs": 500 }))).await;
    let bob = reply.granted("reacquired");
    let alice_hash = hash(&alice.lease_id);
    let expected = item(
        &lock,
        [
            ("ownerName", text("bob")),
            ("leaseDuration", text("500")),
            ("leaseMs", number(500)),
            ("recordVersionNumber", text(&bob.rvn)),
            ("leaseVersion", text(&bob.rvn)),
            ("leaseIdHash", bytes(hash(&bob.lease_id))),
            ("fencingToken", number(alice.token + 1)),
            ("previousLeaseIdHash", bytes(alice_hash)),
            ("previousOwnerName", text("alice")),
            ("previousReleased", text("1")),
            ("previousOccurrence", text("")),
            ("endedVersion", text(&alice.rvn)),
            ("data", bytes("left")),
        ],
    );
    let row = row_of(&lock).await;
    assert_eq!(without_times(row, &moment.stale_at(500), &moment.expire_at(500)), expected);
}

pub(super) async fn takeover_keeps_what_is_not_its_own(bench: Bench) {
    let lock = bench.lock();
    let fields = json!({ "data": "hers", "attributes": { "team": "payments" } });
    let alice = lock.acquire("alice", fields).await.granted("created");
    let before = row_of(&lock).await;
    let observed = json!({ "observedRecordVersionNumber": alice.rvn });
    let (moment, reply) = Moment::of(lock.acquire("bob", observed)).await;
    let bob = reply.granted("takenOver");
    let expected = changed(
        before,
        [
            ("ownerName", Some(text("bob"))),
            ("recordVersionNumber", Some(text(&bob.rvn))),
            ("leaseVersion", Some(text(&bob.rvn))),
            ("leaseIdHash", Some(bytes(hash(&bob.lease_id)))),
            ("fencingToken", Some(number(alice.token + 1))),
            ("previousLeaseIdHash", Some(bytes(hash(&alice.lease_id)))),
            ("previousOwnerName", Some(text("alice"))),
            ("staleAt", None),
            ("expireAt", None),
        ],
    );
    let row = row_of(&lock).await;
    assert_eq!(without_times(row, &moment.stale_at(20_000), &moment.expire_at(20_000)), expected);
}

pub(super) async fn deletion_leaves_a_tombstone(bench: Bench) {
    let lock = bench.lock();
    let fields = json!({ "data": "payload", "attributes": { "team": "payments" } });
    let grant = lock.acquire("alice", fields).await.granted("created");
    let before = row_of(&lock).await;
    let (moment, reply) = Moment::of(lock.release(&grant.lease_id, json!({ "delete": true }))).await;
    reply.released("released");
    let tombstone = lock.deleted().await;
    check_ended(without(without(before, "data"), "team"), without(tombstone, "deletedVersion"), &moment);
}

pub(super) async fn sequence_is_stored(bench: Bench) {
    let lock = bench.lock();
    let stored = async || {
        let row = row_of(&lock).await;
        (row.get("leaseSequence").cloned(), row.get("leaseRequestId").cloned())
    };
    let numbered = json!({ "leaseId": fresh("lease"), "sequence": 3, "requestId": "r3" });
    let grant = lock.acquire("alice", numbered).await.granted("created");
    assert_eq!(stored().await, (Some(number(3)), Some(text("r3"))));
    lock.heartbeat(&grant.lease_id, json!({ "sequence": 9_007_199_254_740_990_u64 })).await.renewed();
    assert_eq!(stored().await, (Some(number(9_007_199_254_740_990)), None));
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    assert_eq!(stored().await, (Some(number(9_007_199_254_740_990)), None));
    lock.acquire("alice", json!({ "leaseId": grant.lease_id })).await.granted("renewed");
    assert_eq!(stored().await, (None, None));
}

pub(super) async fn refusal_writes_nothing(bench: Bench) {
    let lock = bench.lock();
    let fields = json!({ "data": "payload", "attributes": { "team": "payments" } });
    let grant = lock.acquire("alice", fields).await.granted("created");
    let wrong = json!({ "recordVersionNumber": fresh("version") });
    let row = lock.row().await;
    lock.acquire("bob", json!({ "attributes": { "team": "sales" } })).await.held();
    lock.acquire("bob", json!({ "observedRecordVersionNumber": fresh("version") })).await.held();
    lock.acquire("bob", json!({ "staleness": "clock" })).await.held();
    lock.heartbeat(&fresh("lease"), json!({})).await.lost("taken-over");
    lock.heartbeat(&grant.lease_id, wrong.clone()).await.lost("version-mismatch");
    lock.release(&fresh("lease"), json!({})).await.lost("taken-over");
    lock.release(&grant.lease_id, wrong).await.lost("version-mismatch");
    lock.break_it(&fresh("version")).await.version_mismatch();
    assert_eq!(lock.row().await, row);
}
