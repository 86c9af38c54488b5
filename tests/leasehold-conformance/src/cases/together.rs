//! Several locks at once, all or none.

use serde_json::{Value, json};

use super::clock::{by_clock, look_before_the_skew_is_over};
use crate::bench::{ACQUIRE_ALL, Bench, Item, Lock, fresh, merged, number, pause, text};
use crate::reply::Reply;

/// The names of these locks in a request.
fn keys<const N: usize>(locks: [&Lock; N]) -> Value {
    locks.iter().map(|lock| lock.with_key(json!({}))).collect()
}

async fn acquire_all(bench: &Bench, owner: &str, keys: Value, fields: Value) -> Reply {
    bench.post(ACQUIRE_ALL, &merged(json!({ "keys": keys, "ownerName": owner }), fields)).await
}

/// Checks a grant of these locks: the whole answer, and that each row is the owner's, with the one token.
async fn granted<const N: usize>(reply: &Reply, locks: [&Lock; N], owner: &str) -> Value {
    let body = reply.ok();
    let members: Vec<_> = body.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(members, ["fencingToken", "leaseDurationMs", "leaseId", "locks", "ownerName"], "{reply}");
    assert_eq!((&body["ownerName"], body["locks"].as_array().map(Vec::len)), (&json!(owner), Some(N)), "{reply}");
    for (lock, granted) in locks.iter().zip(body["locks"].as_array().expect("a list")) {
        let view = lock.get().await.ok();
        let version = json!({ "recordVersionNumber": view["recordVersionNumber"] });
        assert_eq!(*granted, lock.with_key(version), "{reply}");
        assert_eq!((&view["ownerName"], &view["state"]), (&json!(owner), &json!("held")), "{reply}");
        assert_eq!(view["fencingToken"], body["fencingToken"], "{reply}");
    }
    body
}

/// The public view of a lock that was refused with others: without its payload.
async fn named(lock: &Lock) -> Value {
    let mut view = lock.get().await.ok();
    let members = view.as_object_mut().expect("an object");
    members.retain(|name, _| !["data", "dataBase64", "attributes"].contains(&name.as_str()));
    view
}

/// A table in several regions has no transactions.
pub(super) async fn it_is_refused_in_several_regions(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let refused = acquire_all(&bench, "alice", keys([&a, &b]), json!({})).await;
    let problem = refused.problem("invalid-request");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("several regions")), "{refused}");
    assert_eq!((a.row().await, b.row().await), (None, None), "nothing is written");
}

pub(super) async fn all_locks_are_granted(bench: Bench) {
    let (a, b, c) = (bench.lock(), bench.lock(), bench.lock());
    // A free key, a released one and a deleted one.
    let released = b.hold("before").await;
    b.release(&released.lease_id, json!({ "data": "left" })).await.released("released");
    let deleted = c.hold("before").await;
    c.release(&deleted.lease_id, json!({ "delete": true })).await.released("released");
    let reply = acquire_all(&bench, "alice", keys([&a, &b, &c]), json!({ "leaseDurationMs": 5000 })).await;
    let grant = granted(&reply, [&a, &b, &c], "alice").await;
    assert_eq!((&grant["leaseDurationMs"], &b.get().await.ok()["data"]), (&json!(5000), &json!("left")));
}

pub(super) async fn none_is_granted_where_one_is_held(bench: Bench) {
    let (a, b, c) = (bench.lock(), bench.lock(), bench.lock());
    let held = [b.acquire("bob", json!({ "data": "payload" })).await.granted("created"), c.hold("carol").await];
    let rows = (b.row().await, c.row().await);
    let refused = acquire_all(&bench, "alice", keys([&a, &b, &c]), json!({})).await.refused_locks("held");
    assert_eq!(refused, [named(&b).await, named(&c).await]);
    assert_eq!((a.row().await, (b.row().await, c.row().await)), (None, rows), "nothing is written");
    b.release(&held[0].lease_id, json!({})).await.released("released");
    let refused = acquire_all(&bench, "alice", keys([&a, &b, &c]), json!({})).await.refused_locks("held");
    assert_eq!(refused, [named(&c).await]);
}

pub(super) async fn token_is_above_all_others(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let old = a.hold("bob").await;
    a.release(&old.lease_id, json!({})).await.released("released");
    // Simulates a server whose clock was far ahead.
    let ahead = 8_000_000_000_000_000_u64;
    a.overwrite([("fencingToken", Some(number(ahead)))]).await;
    let reply = acquire_all(&bench, "alice", keys([&b, &a]), json!({})).await;
    let grant = granted(&reply, [&b, &a], "alice").await;
    assert_eq!(grant["fencingToken"], ahead + 1);
    let lease_id = grant["leaseId"].as_str().expect("text");
    b.release(lease_id, json!({})).await.released("released");
    assert_eq!(b.acquire("bob", json!({})).await.granted("reacquired").token, ahead + 2);
}

pub(super) async fn dead_locks_are_taken_over_by_their_versions(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let (first, second) = (a.hold("bob").await, b.hold("bob").await);
    let seen = |rvn_of_a: &str, rvn_of_b: &str| {
        json!([
            a.with_key(json!({ "observedRecordVersionNumber": rvn_of_a })),
            b.with_key(json!({ "observedRecordVersionNumber": rvn_of_b })),
        ])
    };
    let wrong = acquire_all(&bench, "alice", seen(&first.rvn, &fresh("version")), json!({})).await;
    assert_eq!(wrong.refused_locks("held"), [named(&b).await]);
    let reply = acquire_all(&bench, "alice", seen(&first.rvn, &second.rvn), json!({})).await;
    granted(&reply, [&a, &b], "alice").await;
    a.heartbeat(&first.lease_id, json!({})).await.lost("taken-over");

    let look = || async {
        let (c, d) = (bench.lock(), bench.lock());
        c.acquire("bob", json!({ "leaseDurationMs": 100 })).await.granted("created");
        let early = acquire_all(&bench, "alice", keys([&c, &d]), by_clock()).await;
        (c, d, early)
    };
    let (c, d, early) = look_before_the_skew_is_over(100, look).await;
    assert_eq!(early.refused_locks("held"), [named(&c).await]);
    pause(1500).await;
    granted(&acquire_all(&bench, "alice", keys([&c, &d]), by_clock()).await, [&c, &d], "alice").await;
}

pub(super) async fn repeat_has_its_first_answer(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let fields = json!({ "leaseId": fresh("lease"), "sequence": 3, "requestId": "r" });
    let first = acquire_all(&bench, "alice", keys([&a, &b]), fields.clone()).await;
    let grant = granted(&first, [&a, &b], "alice").await;
    let rows = (a.row().await, b.row().await);
    for _ in 0..2 {
        assert_eq!(acquire_all(&bench, "alice", keys([&a, &b]), fields.clone()).await.ok(), grant);
    }
    assert_eq!((a.row().await, b.row().await), rows, "a repeat changes nothing");
    let next = merged(fields, json!({ "sequence": 4 }));
    let renewed = granted(&acquire_all(&bench, "alice", keys([&b, &a]), next).await, [&b, &a], "alice").await;
    assert!(renewed["fencingToken"].as_u64() > grant["fencingToken"].as_u64(), "a renewal");
}

pub(super) async fn repeat_without_a_number_is_a_renewal(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let fields = json!({ "leaseId": fresh("lease") });
    let first = granted(&acquire_all(&bench, "alice", keys([&a, &b]), fields.clone()).await, [&a, &b], "alice").await;
    let again = granted(&acquire_all(&bench, "alice", keys([&a, &b]), fields).await, [&a, &b], "alice").await;
    assert!(again["fencingToken"].as_u64() > first["fencingToken"].as_u64());
    assert_ne!(again["locks"], first["locks"]);
}

pub(super) async fn late_request_is_superseded(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let at = |sequence: u64, id: &str| json!({ "leaseId": "", "sequence": sequence, "requestId": id });
    let lease = json!({ "leaseId": fresh("lease") });
    let ask = async |fields: Value| acquire_all(&bench, "alice", keys([&a, &b]), merged(fields, lease.clone())).await;
    ask(at(5, "r")).await.ok();
    ask(at(4, "r")).await.superseded(5);
    ask(at(5, "another")).await.superseded(5);
    // A heartbeat of one of the locks counts as well.
    let lease_id = lease["leaseId"].as_str().expect("text");
    b.heartbeat(lease_id, json!({ "sequence": 7 })).await.renewed();
    ask(at(6, "r")).await.superseded(7);
}

pub(super) async fn lease_id_that_holds_some_is_lost(bench: Bench) {
    let (a, b, c) = (bench.lock(), bench.lock(), bench.lock());
    let fields = json!({ "leaseId": fresh("lease"), "sequence": 1 });
    let lease_id = fields["leaseId"].as_str().expect("text");
    acquire_all(&bench, "alice", keys([&a, &b]), fields.clone()).await.ok();
    let others =
        |reply: &Reply| -> Vec<Value> { reply.refused_locks("lost").iter().map(|lock| lock["key"].clone()).collect() };
    let more = acquire_all(&bench, "alice", keys([&a, &c, &b]), fields.clone()).await;
    assert_eq!(others(&more), [json!(c.key)]);
    assert_eq!(c.row().await, None, "nothing is written");
    b.break_it(&b.version().await).await.released("released");
    let broken = acquire_all(&bench, "alice", keys([&a, &b]), fields.clone()).await;
    assert_eq!((others(&broken), &broken.refused_locks("lost")[0]["reason"]), (vec![json!(b.key)], &json!("released")));
    let bob = b.acquire("bob", json!({})).await.granted("reacquired");
    let taken = acquire_all(&bench, "alice", keys([&a, &b]), fields.clone()).await;
    assert_eq!((others(&taken), &taken.refused_locks("lost")[0]["reason"]), (vec![json!(b.key)], &json!("taken-over")));
    b.release(&bob.lease_id, json!({})).await.released("released");
    a.heartbeat(lease_id, json!({})).await.renewed();
}

pub(super) async fn ended_lease_id_is_lost(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let fields = json!({ "leaseId": fresh("lease"), "sequence": 1 });
    let lease_id = fields["leaseId"].as_str().expect("text");
    acquire_all(&bench, "alice", keys([&a, &b]), fields.clone()).await.ok();
    for lock in [&a, &b] {
        lock.release(lease_id, json!({})).await.released("released");
    }
    let refused = acquire_all(&bench, "alice", keys([&a, &b]), fields.clone()).await.refused_locks("lost");
    let reasons: Vec<_> = refused.iter().map(|lock| &lock["reason"]).collect();
    assert_eq!(reasons, ["released", "released"]);
    acquire_all(&bench, "bob", keys([&a, &b]), json!({})).await.ok();
    assert_eq!(acquire_all(&bench, "alice", keys([&b, &a]), fields).await.refused_locks("lost").len(), 2);
}

pub(super) async fn each_lock_is_one_like_any_other(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let reply = acquire_all(&bench, "alice", keys([&a, &b]), json!({})).await;
    let grant = granted(&reply, [&a, &b], "alice").await;
    let lease_id = grant["leaseId"].as_str().expect("text");
    assert_eq!(a.heartbeat(lease_id, json!({})).await.renewed().token, grant["fencingToken"]);
    a.acquire("bob", json!({})).await.held();
    a.release(lease_id, json!({})).await.released("released");
    a.acquire("bob", json!({})).await.granted("reacquired");
    b.heartbeat(lease_id, json!({})).await.renewed();
    b.release(lease_id, json!({ "delete": true })).await.released("released");
    b.deleted().await;
}

pub(super) async fn semaphore_is_no_lock(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    b.plant(Item::from([("leaseholdKind".into(), text("semaphore"))])).await;
    let refused = acquire_all(&bench, "alice", keys([&a, &b]), json!({})).await.refused_locks("wrong-kind");
    assert_eq!(refused, [b.with_key(json!({}))]);
    assert_eq!(a.row().await, None);
}

pub(super) async fn damaged_row_is_not_free(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    b.hold("bob").await;
    b.overwrite([("leaseDuration", Some(text("20s")))]).await;
    acquire_all(&bench, "alice", keys([&a, &b]), json!({})).await.problem("corrupt-record");
    b.overwrite([("leaseDuration", Some(text("20000"))), ("isReleased", Some(text("1")))]).await;
    b.overwrite([("fencingToken", Some(text("seven")))]).await;
    acquire_all(&bench, "alice", keys([&a, &b]), json!({})).await.problem("corrupt-record");
    assert_eq!(a.row().await, None);
}

pub(super) async fn its_fields_have_bounds(bench: Bench) {
    let (a, b) = (bench.lock(), bench.lock());
    let many: Value = (0..51).map(|_| bench.lock().with_key(json!({}))).collect();
    for named in [json!([]), keys([&a]), keys([&a, &b, &a]), many] {
        acquire_all(&bench, "alice", named, json!({})).await.invalid("keys");
    }
    let both = || keys([&a, &b]);
    for (fields, field) in [
        (json!({ "ownerName": "" }), "ownerName"),
        (json!({ "sequence": 0 }), "sequence"),
        (json!({ "requestId": "r" }), "requestId"),
        (json!({ "leaseDurationMs": 99 }), "leaseDurationMs"),
        (json!({ "data": "one for all" }), "data"),
        (
            json!({ "keys": [a.with_key(json!({})), merged(b.with_key(json!({})), json!({ "key": "" }))] }),
            "keys[1].key",
        ),
        (json!({ "keys": [a.with_key(json!({ "lease": 1 })), b.with_key(json!({}))] }), "keys[0].lease"),
        (
            json!({ "staleness": "clock", "keys": [
                a.with_key(json!({ "observedRecordVersionNumber": "v" })), b.with_key(json!({}))
            ] }),
            "keys[0].observedRecordVersionNumber",
        ),
    ] {
        acquire_all(&bench, "alice", both(), fields).await.invalid(field);
    }
    assert_eq!((a.row().await, b.row().await), (None, None));
    let fifty: Vec<_> = (0..50).map(|_| bench.lock()).collect();
    let named: Value = fifty.iter().map(|lock| lock.with_key(json!({}))).collect();
    assert_eq!(acquire_all(&bench, "alice", named, json!({})).await.ok()["locks"].as_array().map(Vec::len), Some(50));
}

/// Two callers repeatedly want (a, b) and (b, a): neither waits for the other while it holds one lock.
pub(super) async fn crossed_callers_get_all_or_none(bench: Bench) {
    const ROUNDS: usize = 8;
    let (a, b) = (bench.lock(), bench.lock());
    let work = async |owner: &str, locks: [&Lock; 2]| {
        for _ in 0..ROUNDS {
            let grant = loop {
                let reply =
                    acquire_all(&bench, owner, keys(locks), json!({ "leaseId": fresh("lease"), "sequence": 1 })).await;
                match reply.status() {
                    200 => break granted(&reply, locks, owner).await,
                    423 | 429 => pause(5).await,
                    _ => panic!("{reply}"),
                }
            };
            let lease_id = grant["leaseId"].as_str().expect("text");
            for lock in locks {
                lock.release(lease_id, json!({})).await.released("released");
            }
        }
    };
    tokio::join!(work("alice", [&a, &b]), work("bob", [&b, &a]));
}
