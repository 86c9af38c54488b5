//! Rows that are not readable lock records: the answer is a typed error, never a grant. An operator can break them
//! where they still have a version.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};

use crate::bench::{Bench, Item, LOCKS, Lock, bytes, fresh, number, text};

/// A held row that is readable until `attribute` is set to `value`, or removed.
async fn damaged_row(bench: &Bench, attribute: &str, value: Option<AttributeValue>) -> (Lock, String) {
    let (lock, rvn) = (bench.lock(), fresh("version"));
    let mut row = Item::from([
        ("ownerName".to_owned(), text("someone")),
        ("leaseDuration".to_owned(), text("20000")),
        ("recordVersionNumber".to_owned(), text(&rvn)),
        ("fencingToken".to_owned(), number(7)),
    ]);
    row.remove(attribute);
    row.extend(value.map(|value| (attribute.to_owned(), value)));
    lock.plant(row).await;
    (lock, rvn)
}

/// Checks that no request is granted this lock, and that each answer states the reason.
async fn check_never_granted(lock: &Lock, rvn: &str) {
    let row = lock.row().await;
    for fields in [
        json!({}),
        json!({ "staleness": "clock" }),
        json!({ "onlyIfExists": true }),
        json!({ "observedRecordVersionNumber": fresh("version") }),
        json!({ "observedRecordVersionNumber": rvn }),
    ] {
        lock.acquire("alice", fields).await.problem("corrupt-record");
    }
    lock.get().await.problem("corrupt-record");
    let page = lock.bench.get(LOCKS, &[("key", lock.key.as_str())]).await.page();
    assert_eq!(page.locks, Vec::<Value>::new());
    let [unreadable] = page.unreadable.as_slice() else { panic!("not listed as unreadable: {page:?}") };
    let detail = unreadable["detail"].as_str().expect("a detail");
    assert!(!detail.is_empty());
    assert_eq!(*unreadable, lock.with_key(json!({ "detail": detail })));

    assert_eq!(lock.heartbeat(&fresh("lease"), json!({})).await.lost("taken-over"), Value::Null);
    assert_eq!(lock.release(&fresh("lease"), json!({})).await.lost("taken-over"), Value::Null);
    assert_eq!(lock.break_it(&fresh("version")).await.version_mismatch(), Value::Null);
    assert_eq!(lock.row().await, row);
}

async fn damage_is_never_granted(bench: &Bench, attribute: &str, value: Option<AttributeValue>) {
    let (lock, rvn) = damaged_row(bench, attribute, value).await;
    check_never_granted(&lock, &rvn).await;
}

pub(super) async fn missing_lease(bench: Bench) {
    damage_is_never_granted(&bench, "leaseDuration", None).await;
}

pub(super) async fn lease_that_is_a_number(bench: Bench) {
    damage_is_never_granted(&bench, "leaseDuration", Some(number(20_000))).await;
}

pub(super) async fn lease_of_the_go_client(bench: Bench) {
    for lease in ["20s", "1m30s", "1h0m0.5s", "20000ms"] {
        damage_is_never_granted(&bench, "leaseDuration", Some(text(lease))).await;
    }
}

pub(super) async fn lease_of_words(bench: Bench) {
    for lease in ["abc", "-1", "+20000", " 20000", "PT20S", "٢٠"] {
        damage_is_never_granted(&bench, "leaseDuration", Some(text(lease))).await;
    }
}

pub(super) async fn lease_of_zero(bench: Bench) {
    damage_is_never_granted(&bench, "leaseDuration", Some(text("0"))).await;
}

pub(super) async fn empty_lease(bench: Bench) {
    damage_is_never_granted(&bench, "leaseDuration", Some(text(""))).await;
}

pub(super) async fn missing_owner(bench: Bench) {
    damage_is_never_granted(&bench, "ownerName", None).await;
}

pub(super) async fn owner_that_is_a_number(bench: Bench) {
    damage_is_never_granted(&bench, "ownerName", Some(number(7))).await;
}

pub(super) async fn token_of_text(bench: Bench) {
    damage_is_never_granted(&bench, "fencingToken", Some(text("7"))).await;
}

pub(super) async fn token_at_the_limit(bench: Bench) {
    for token in ["9007199254740991", "9007199254740992", "1e30", "-1"] {
        damage_is_never_granted(&bench, "fencingToken", Some(AttributeValue::N(token.into()))).await;
    }
}

pub(super) async fn missing_version(bench: Bench) {
    damage_is_never_granted(&bench, "recordVersionNumber", None).await;
}

pub(super) async fn version_that_is_null(bench: Bench) {
    damage_is_never_granted(&bench, "recordVersionNumber", Some(AttributeValue::Null(true))).await;
}

pub(super) async fn row_of_nothing(bench: Bench) {
    let lock = bench.lock();
    lock.plant(Item::new()).await;
    check_never_granted(&lock, &fresh("version")).await;
}

pub(super) async fn row_of_an_unknown_kind_is_left_alone(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    lock.overwrite([("leaseholdKind", Some(text("barrier")))]).await;
    let row = lock.row().await;
    lock.acquire("bob", json!({ "observedRecordVersionNumber": grant.rvn })).await.problem("wrong-kind");
    lock.heartbeat(&grant.lease_id, json!({})).await.problem("wrong-kind");
    lock.release(&grant.lease_id, json!({})).await.problem("wrong-kind");
    lock.break_it(&grant.rvn).await.problem("wrong-kind");
    lock.get().await.problem("wrong-kind");
    lock.watch("", "0").await.problem("wrong-kind");
    lock.bench.get("/v1/semaphore", &lock.parameters()).await.problem("wrong-kind");
    assert_eq!(lock.row().await, row);
}

pub(super) async fn unreadable_lease_can_be_broken(bench: Bench) {
    for lease in [None, Some(number(20_000)), Some(text("20s")), Some(text("")), Some(text("0"))] {
        let (lock, rvn) = damaged_row(&bench, "leaseDuration", lease).await;
        lock.break_it(&rvn).await.released("released");
        lock.break_it(&rvn).await.released("replayed");
        let alice = lock.acquire("alice", json!({})).await.granted("reacquired");
        assert_eq!((&alice.body["previousOwnerName"], alice.token), (&json!("someone"), 8));
        assert_eq!(lock.get().await.ok(), lock.view(&alice, json!({})));
    }
}

pub(super) async fn released_row_without_a_lease_is_free(bench: Bench) {
    // The lock has no holder, so the service needs nothing of the last holder's. It writes missing attributes anew.
    for (attribute, previous_owner) in
        [("leaseDuration", Some("someone")), ("recordVersionNumber", Some("someone")), ("ownerName", None)]
    {
        let (lock, _) = damaged_row(&bench, attribute, None).await;
        lock.overwrite([("isReleased", Some(text("1")))]).await;
        lock.get().await.problem("corrupt-record");
        let alice = lock.acquire("alice", json!({})).await.granted("reacquired");
        assert_eq!(alice.body.get("previousOwnerName").and_then(Value::as_str), previous_owner, "{attribute}");
        assert_eq!(lock.get().await.ok(), lock.view(&alice, json!({})));
    }
}

pub(super) async fn released_row_with_a_bad_token_is_not_free(bench: Bench) {
    // The service cannot know which token would be higher.
    for token in [text("7"), AttributeValue::N("9007199254740991".into()), AttributeValue::N("-1".into())] {
        let (lock, _) = damaged_row(&bench, "fencingToken", Some(token)).await;
        lock.overwrite([("isReleased", Some(text("1")))]).await;
        let row = lock.row().await;
        lock.acquire("alice", json!({})).await.problem("corrupt-record");
        assert_eq!(lock.row().await, row);
    }
}

pub(super) async fn granted_record_is_readable(bench: Bench) {
    // Near the limit, a token is either refused or good for all later operations.
    for token in (1 << 53) - 5..(1 << 53) - 1 {
        let (lock, _) = damaged_row(&bench, "fencingToken", Some(number(token))).await;
        lock.overwrite([("isReleased", Some(text("1")))]).await;
        let reply = lock.acquire("alice", json!({})).await;
        if reply.status() != 200 {
            reply.problem("corrupt-record");
            continue;
        }
        let grant = reply.granted("reacquired");
        lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
        assert_eq!(lock.get().await.ok()["fencingToken"], grant.token);
    }
}

pub(super) async fn holder_can_repair_its_lease(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    lock.overwrite([("leaseDuration", Some(text("20s")))]).await;
    lock.acquire("bob", json!({})).await.problem("corrupt-record");
    let renewal = lock.heartbeat(&grant.lease_id, json!({ "leaseDurationMs": 30_000 })).await.renewed();
    assert_eq!(renewal.lease_ms, 30_000);
    let view = lock.view(&grant, json!({ "recordVersionNumber": renewal.rvn, "leaseDurationMs": 30_000 }));
    assert_eq!(lock.acquire("bob", json!({})).await.held(), view);

    lock.overwrite([("leaseDuration", None)]).await;
    lock.heartbeat(&grant.lease_id, json!({})).await.problem("corrupt-record");
    lock.acquire("alice", json!({ "leaseId": grant.lease_id })).await.granted("renewed");
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
}

pub(super) async fn holder_can_release_an_unreadable_row(bench: Bench) {
    for (attribute, value) in [("leaseDuration", None), ("ownerName", None), ("fencingToken", Some(text("7")))] {
        let lock = bench.lock();
        let grant = lock.hold("alice").await;
        lock.overwrite([(attribute, value)]).await;
        lock.release(&grant.lease_id, json!({})).await.released("released");
        lock.release(&grant.lease_id, json!({})).await.released("replayed");
        lock.release(&grant.lease_id, json!({ "delete": true })).await.released("replayed");
        lock.deleted().await;
    }
}

pub(super) async fn hash_of_the_wrong_length_is_nobodys(bench: Bench) {
    for hash in [bytes([0; 31]), bytes([]), text("hash"), AttributeValue::Null(true)] {
        let lock = bench.lock();
        let grant = lock.hold("alice").await;
        lock.overwrite([("leaseIdHash", Some(hash))]).await;
        let view = lock.view(&grant, json!({}));
        assert_eq!(lock.heartbeat(&grant.lease_id, json!({})).await.lost("taken-over"), view);
        assert_eq!(lock.release(&grant.lease_id, json!({})).await.lost("taken-over"), view);
        assert_eq!(lock.acquire("bob", json!({})).await.held(), view);
        let observed = json!({ "observedRecordVersionNumber": grant.rvn });
        lock.acquire("bob", observed).await.granted("takenOver");
    }
}
