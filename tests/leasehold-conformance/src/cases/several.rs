//! Permits of semaphores beside locks, all or none.

use serde_json::{Value, json};

use super::clock::{by_clock, look_before_the_skew_is_over};
use super::semaphore::{Semaphore, check_view, renewed};
use crate::bench::{ACQUIRE_ALL, Bench, Lock, fresh, merged, number, pause, text};
use crate::reply::Reply;

/// The name of a semaphore in a request.
fn permits(it: &Semaphore, permits: u64, capacity: u64, fields: Value) -> Value {
    merged(it.lock.with_key(json!({ "permits": permits, "capacity": capacity })), fields)
}

async fn acquire_all(bench: &Bench, keys: Value, fields: Value) -> Reply {
    bench.post(ACQUIRE_ALL, &merged(json!({ "keys": keys, "ownerName": "alice" }), fields)).await
}

/// Asks for this lock, and for permits.
async fn both(lock: &Lock, wanted: Value, fields: Value) -> Reply {
    acquire_all(&lock.bench, json!([lock.with_key(json!({})), wanted]), fields).await
}

/// Checks a grant of a lock and of permits: the whole answer, and that each row shows it.
async fn granted(reply: &Reply, lock: &Lock, it: &Semaphore, permits: u64) -> Value {
    let body = reply.ok();
    let members: Vec<_> = body.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(members, ["fencingToken", "leaseDurationMs", "leaseId", "locks", "ownerName"], "{reply}");
    let row = lock.get().await.ok();
    let version = json!({ "recordVersionNumber": row["recordVersionNumber"] });
    assert_eq!(body["locks"][0], lock.with_key(version), "{reply}");
    assert_eq!((&row["state"], &row["fencingToken"]), (&json!("held"), &body["fencingToken"]), "{reply}");
    let view = it.view().await;
    let mine = &body["locks"][1];
    let holders = view["holders"].as_array().expect("a list");
    let holder = holders.iter().find(|holder| holder["holderId"] == mine["holderId"]).expect("a holder");
    let shown = json!({
        "holderId": holder["holderId"], "recordVersionNumber": holder["version"], "permits": permits
    });
    assert_eq!(*mine, it.lock.with_key(shown), "{reply}");
    assert_eq!((&holder["permits"], &holder["fencingToken"]), (&json!(permits), &body["fencingToken"]), "{reply}");
    assert_eq!(holder["leaseDurationMs"], body["leaseDurationMs"], "{reply}");
    body
}

/// Checks that the semaphore refused, and no other key. Returns its view.
#[track_caller]
fn refused_by(reply: &Reply, it: &Semaphore, slug: &str) -> Value {
    let refused = reply.refused_locks(slug);
    assert_eq!((refused.len(), &refused[0]["key"]), (1, &json!(it.lock.key)), "{reply}");
    refused[0].clone()
}

#[track_caller]
fn held_by(reply: &Reply, it: &Semaphore) -> Value {
    let view = refused_by(reply, it, "held");
    check_view(&view);
    assert!(view["epoch"].is_string(), "{reply}");
    view
}

pub(super) async fn lock_and_permits_are_granted_together(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    it.hold(1, json!({})).await;
    let reply = both(&a, permits(&it, 2, 9, json!({})), json!({ "leaseDurationMs": 5000 })).await;
    let grant = granted(&reply, &a, &it, 2).await;
    let view = it.view().await;
    assert_eq!((&view["capacity"], &view["available"]), (&json!(5), &json!(2)));
    let lease_id = grant["leaseId"].as_str().expect("text");
    let token = json!({ "fencingToken": grant["fencingToken"] });
    assert_eq!(renewed(&it.heartbeat(lease_id, token).await)["fencingToken"], grant["fencingToken"]);
    assert_eq!(a.heartbeat(lease_id, json!({})).await.renewed().token, grant["fencingToken"]);
    it.release(lease_id).await.released("released");
    it.release(lease_id).await.released("replayed");
    a.heartbeat(lease_id, json!({})).await.renewed();
    a.release(lease_id, json!({})).await.released("released");
    assert_eq!(it.available().await, 4);
    assert!(it.hold(1, json!({})).await.token() > grant["fencingToken"].as_u64().expect("a number"));
}

pub(super) async fn caller_that_finds_itself_dead_is_renewed(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 2));
    let number = |sequence: u64| json!({ "leaseId": "it", "sequence": sequence });
    let grant = granted(&both(&a, permits(&it, 2, 2, json!({})), number(1)).await, &a, &it, 2).await;
    let mine = &grant["locks"][1];
    let own = json!({ "holderId": mine["holderId"], "version": mine["recordVersionNumber"], "permits": 2 });
    let version = json!({ "observedRecordVersionNumber": grant["locks"][0]["recordVersionNumber"] });
    let keys = json!([a.with_key(version), permits(&it, 2, 2, json!({ "observed": [own] }))]);
    let renewal = granted(&acquire_all(&bench, keys, number(2)).await, &a, &it, 2).await;
    assert!(renewal["fencingToken"].as_u64() > grant["fencingToken"].as_u64());
}

pub(super) async fn semaphore_is_made_or_takes_a_tombstone(bench: Bench) {
    let (a, it, other) = (bench.lock(), Semaphore::new(&bench, 3), Semaphore::new(&bench, 4));
    let deleted = other.lock.hold("before").await;
    other.lock.release(&deleted.lease_id, json!({ "delete": true })).await.released("released");
    let keys = json!([permits(&it, 1, 3, json!({})), a.with_key(json!({})), permits(&other, 4, 4, json!({}))]);
    let grant = acquire_all(&bench, keys, json!({})).await.ok();
    let (one, two) = (it.view().await, other.view().await);
    assert_eq!((&one["capacity"], &one["available"]), (&json!(3), &json!(2)));
    assert_eq!((&two["capacity"], &two["available"]), (&json!(4), &json!(0)));
    for view in [one, two] {
        assert_eq!(view["fencingToken"], grant["fencingToken"]);
        assert_eq!(view["holders"][0]["fencingToken"], grant["fencingToken"]);
    }
}

pub(super) async fn none_is_granted_where_permits_are_missing(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    let other = it.hold(4, json!({})).await;
    let row = it.lock.row().await;
    let view = held_by(&both(&a, permits(&it, 2, 5, json!({})), json!({})).await, &it);
    assert_eq!((&view["available"], &view["holders"][0]["holderId"]), (&json!(1), &other.grant["holderId"]));
    assert_eq!((a.row().await, it.lock.row().await), (None, row), "nothing is written");
    // A held lock leaves the permits alone.
    a.hold("bob").await;
    let row = it.lock.row().await;
    let refused = both(&a, permits(&it, 1, 5, json!({})), json!({})).await.refused_locks("held");
    assert_eq!((refused.len(), &refused[0]["key"]), (1, &json!(a.key)));
    assert_eq!(it.lock.row().await, row, "nothing is written");
    let refused = both(&a, permits(&it, 2, 5, json!({})), json!({})).await.refused_locks("held");
    assert_eq!(refused.len(), 2, "each key that refused is named");
}

pub(super) async fn while_somebody_waits_several_are_refused(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 2));
    let holder = it.hold(2, json!({})).await;
    let waiter = it.wait(1, json!({})).await;
    it.release(&holder.lease_id).await.released("released");
    let view = held_by(&both(&a, permits(&it, 1, 2, json!({})), json!({})).await, &it);
    assert_eq!((&view["available"], &view["queue"][0]["ticketId"]), (&json!(2), &waiter.ticket["ticketId"]));
    assert_eq!(a.row().await, None);
    it.release(&waiter.lease_id).await.released("released");
    let grant = both(&a, permits(&it, 1, 2, json!({})), json!({})).await;
    let lease_id = granted(&grant, &a, &it, 1).await["leaseId"].as_str().expect("text").to_owned();
    it.release(&lease_id).await.released("released");
    a.release(&lease_id, json!({})).await.released("released");

    // A ticket that wants more than the capacity is ahead of nobody.
    let holder = it.hold(1, json!({})).await;
    it.wait(2, json!({})).await;
    it.post("capacity", json!({ "capacity": 1, "expected": 2 })).await.ok();
    it.release(&holder.lease_id).await.released("released");
    granted(&both(&a, permits(&it, 1, 1, json!({})), json!({})).await, &a, &it, 1).await;
}

pub(super) async fn lease_id_that_waits_is_lost(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 1));
    let holder = it.hold(1, json!({})).await;
    let waiter = it.wait(1, json!({})).await;
    it.release(&holder.lease_id).await.released("released");
    let own = json!({ "leaseId": waiter.lease_id, "sequence": 9 });
    let refused = refused_by(&both(&a, permits(&it, 1, 1, json!({})), own).await, &it, "lost");
    assert_eq!(refused["reason"], "queued");
    assert_eq!(a.row().await, None);
}

pub(super) async fn dead_holders_and_tickets_make_way(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 2));
    let (dead, living) = (it.hold(1, json!({})).await, it.hold(1, json!({})).await);
    let waiter = it.wait(1, json!({})).await;
    let observed = |version: &Value| {
        let holder = merged(dead.observed(), json!({ "version": version }));
        json!({ "observed": [holder, waiter.observed()] })
    };
    held_by(&both(&a, permits(&it, 1, 2, observed(&json!(fresh("version")))), json!({})).await, &it);
    held_by(&both(&a, permits(&it, 2, 2, observed(&dead.grant["version"])), json!({})).await, &it);
    let reply = both(&a, permits(&it, 1, 2, observed(&dead.grant["version"])), json!({})).await;
    granted(&reply, &a, &it, 1).await;
    let view = it.view().await;
    assert_eq!((&view["queue"], view["holders"].as_array().map(Vec::len)), (&json!([]), Some(2)));
    it.heartbeat(&dead.lease_id, json!({})).await.problem("lost");
    renewed(&it.heartbeat(&living.lease_id, json!({})).await);
}

pub(super) async fn dead_make_way_by_the_clock(bench: Bench) {
    let look = || async {
        let (a, it) = (bench.lock(), Semaphore::new(&bench, 1));
        it.hold(1, json!({ "leaseDurationMs": 100 })).await;
        it.wait(1, json!({ "leaseDurationMs": 100 })).await;
        let early = both(&a, permits(&it, 1, 1, json!({})), by_clock()).await;
        (a, it, early)
    };
    let (a, it, early) = look_before_the_skew_is_over(100, look).await;
    held_by(&early, &it);
    pause(1500).await;
    held_by(&both(&a, permits(&it, 1, 1, json!({})), json!({})).await, &it);
    granted(&both(&a, permits(&it, 1, 1, json!({})), by_clock()).await, &a, &it, 1).await;
}

pub(super) async fn repeat_has_its_first_answer(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    let fields = json!({ "leaseId": fresh("lease"), "sequence": 3, "requestId": "r" });
    let wanted = || permits(&it, 2, 5, json!({}));
    let grant = granted(&both(&a, wanted(), fields.clone()).await, &a, &it, 2).await;
    let rows = (a.row().await, it.lock.row().await);
    for _ in 0..2 {
        assert_eq!(both(&a, wanted(), fields.clone()).await.ok(), grant);
    }
    assert_eq!((a.row().await, it.lock.row().await), rows, "a repeat changes nothing");
    // A higher number renews, and so does a request without one.
    let mut token = grant["fencingToken"].as_u64();
    for next in [json!({ "leaseId": fields["leaseId"], "sequence": 4 }), json!({ "leaseId": fields["leaseId"] })] {
        let again = granted(&both(&a, wanted(), next).await, &a, &it, 2).await;
        assert!(again["fencingToken"].as_u64() > token && it.available().await == 3, "a renewal");
        token = again["fencingToken"].as_u64();
    }
}

pub(super) async fn repeat_with_other_permits_is_refused(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    let at = |sequence: u64| json!({ "leaseId": "", "sequence": sequence });
    let lease = json!({ "leaseId": fresh("lease") });
    both(&a, permits(&it, 2, 5, json!({})), merged(at(1), lease.clone())).await.ok();
    let rows = (a.row().await, it.lock.row().await);
    for other in [1, 3] {
        let reply = both(&a, permits(&it, other, 5, json!({})), merged(at(2), lease.clone())).await;
        refused_by(&reply, &it, "permits-mismatch");
    }
    assert_eq!((a.row().await, it.lock.row().await), rows, "nothing is written");
}

pub(super) async fn late_request_is_superseded(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    let lease_id = fresh("lease");
    let ask = async |sequence: u64| {
        let fields = json!({ "leaseId": lease_id, "sequence": sequence });
        both(&a, permits(&it, 2, 5, json!({})), fields).await
    };
    ask(5).await.ok();
    assert_eq!(ask(4).await.problem("superseded")["sequence"], 5);
    it.heartbeat(&lease_id, json!({ "sequence": 7 })).await.ok();
    let late = ask(6).await.problem("superseded");
    assert_eq!((&late["sequence"], it.available().await), (&json!(7), 3));
}

pub(super) async fn request_above_the_capacity_names_its_key(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    let refused = refused_by(&both(&a, permits(&it, 6, 5, json!({})), json!({})).await, &it, "exceeds-capacity");
    assert_eq!(refused, it.lock.with_key(json!({})), "there is no semaphore yet");
    it.hold(1, json!({})).await;
    let refused = refused_by(&both(&a, permits(&it, 6, 9, json!({})), json!({})).await, &it, "exceeds-capacity");
    assert_eq!(refused["capacity"], 5);
    assert_eq!(a.row().await, None);
}

pub(super) async fn key_of_another_kind_is_named(bench: Bench) {
    let (a, it, held) = (bench.lock(), Semaphore::new(&bench, 5), Semaphore::new(&bench, 5));
    it.hold(1, json!({})).await;
    let as_lock = both(&a, it.lock.with_key(json!({})), json!({})).await;
    assert_eq!(refused_by(&as_lock, &it, "wrong-kind"), it.lock.with_key(json!({})));
    held.lock.hold("bob").await;
    let as_permits = both(&a, permits(&held, 1, 5, json!({})), json!({})).await;
    assert_eq!(refused_by(&as_permits, &held, "wrong-kind"), held.lock.with_key(json!({})));
    assert_eq!(a.row().await, None);
}

pub(super) async fn lease_id_without_its_permits_is_lost(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    let fields = json!({ "leaseId": fresh("lease"), "sequence": 1 });
    let lease_id = fields["leaseId"].as_str().expect("text");
    let wanted = || permits(&it, 2, 5, json!({}));
    let grant = both(&a, wanted(), fields.clone()).await.ok();
    let view = it.view().await;
    let entry = json!({ "holderId": grant["locks"][1]["holderId"], "version": view["holders"][0]["version"] });
    it.post("break", entry).await.released("released");
    let refused = refused_by(&both(&a, wanted(), fields.clone()).await, &it, "lost");
    assert_eq!((&refused["reason"], &refused["available"]), (&json!("released"), &json!(5)));
    a.heartbeat(lease_id, json!({})).await.renewed();
    // The other way round: permits are held, and the lock is lost.
    let other = fresh("lease");
    let b = bench.lock();
    both(&b, wanted(), json!({ "leaseId": other, "sequence": 1 })).await.ok();
    b.break_it(&b.version().await).await.released("released");
    let refused = both(&b, wanted(), json!({ "leaseId": other, "sequence": 2 })).await.refused_locks("lost");
    assert_eq!((refused.len(), &refused[0]["key"]), (1, &json!(b.key)));
    assert_eq!(it.available().await, 3);
}

pub(super) async fn ended_or_outdated_request_is_refused(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    it.hold(1, json!({})).await;
    let epoch = it.view().await["epoch"].clone();
    let old = json!({ "epoch": epoch });
    let fields = json!({ "leaseId": fresh("lease"), "sequence": 1 });
    let lease_id = fields["leaseId"].as_str().expect("text");
    both(&a, permits(&it, 2, 5, old.clone()), fields.clone()).await.ok();
    a.release(lease_id, json!({ "delete": true })).await.released("released");
    it.release(lease_id).await.released("released");
    let copy = both(&a, permits(&it, 2, 5, old.clone()), fields).await;
    assert!(copy.refused_locks("lost").iter().any(|lock| lock["key"] == json!(it.lock.key)));
    // A grant of several leaves more than 16 tokens out, so that the epoch before it is too old.
    let b = bench.lock();
    let view = held_by(&both(&b, permits(&it, 1, 5, old), json!({})).await, &it);
    let fresh_epoch = json!({ "epoch": view["epoch"] });
    granted(&both(&b, permits(&it, 1, 5, fresh_epoch), json!({})).await, &b, &it, 1).await;
}

pub(super) async fn token_is_above_all_others(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    let first = it.hold(1, json!({})).await;
    it.release(&first.lease_id).await.released("released");
    // Simulates a server whose clock was far ahead.
    let ahead = 8_000_000_000_000_000_u64;
    it.lock.overwrite([("fencingToken", Some(number(ahead)))]).await;
    let grant = granted(&both(&a, permits(&it, 2, 5, json!({})), json!({})).await, &a, &it, 2).await;
    assert_eq!(grant["fencingToken"], ahead + 1);
    assert_eq!(it.hold(1, json!({})).await.token(), ahead + 2);
}

pub(super) async fn damaged_semaphore_is_not_free(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 1));
    it.hold(1, json!({})).await;
    for available in [text("many"), number(2), number(1000)] {
        it.lock.overwrite([("available", Some(available))]).await;
        both(&a, permits(&it, 1, 1, json!({})), json!({})).await.problem("corrupt-record");
        assert_eq!(a.row().await, None);
    }
}

pub(super) async fn its_fields_have_bounds(bench: Bench) {
    let (a, it) = (bench.lock(), Semaphore::new(&bench, 5));
    for (wanted, field) in [
        (it.lock.with_key(json!({ "permits": 1 })), "keys[1].permits"),
        (it.lock.with_key(json!({ "epoch": "1.1" })), "keys[1].epoch"),
        (it.lock.with_key(json!({ "observed": [{ "holderId": "h-1", "version": "v" }] })), "keys[1].observed"),
        (permits(&it, 0, 5, json!({})), "keys[1].permits"),
        (permits(&it, 1, 0, json!({})), "keys[1].capacity"),
        (permits(&it, 1, 5, json!({ "observedRecordVersionNumber": "v" })), "keys[1].observedRecordVersionNumber"),
        (permits(&it, 1, 5, json!({ "epoch": "yesterday" })), "keys[1].epoch"),
        (permits(&it, 1, 5, json!({ "number": 1 })), "keys[1].number"),
        (permits(&it, 1, 5, json!({ "observed": [{ "holderId": "h-1", "version": "v" }] })), "keys[1].observed"),
    ] {
        both(&a, wanted, json!({})).await.invalid(field);
    }
    let named = json!({ "observed": [{ "holderId": "h-1", "version": "v", "permits": 1 }] });
    let by_clock = json!({ "staleness": "clock" });
    both(&a, permits(&it, 1, 5, named), by_clock).await.invalid("keys[1].observed");
    let long = json!({ "ownerName": "o".repeat(129) });
    both(&a, permits(&it, 1, 5, json!({})), long.clone()).await.invalid("ownerName");
    both(&a, bench.lock().with_key(json!({})), long).await.ok();
    // One permit is the default.
    let one = it.lock.with_key(json!({ "capacity": 5 }));
    both(&bench.lock(), one, json!({})).await.ok();
    assert_eq!(it.available().await, 4);
}
