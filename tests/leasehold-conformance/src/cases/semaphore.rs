//! Semaphores: permits, the queue, and the removal of the dead.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};

use super::clock::{by_clock, look_before_the_skew_is_over};
use crate::bench::{Bench, Lock, fresh, merged, pause, text};
use crate::reply::Reply;

const LEASE_MS: u64 = 200;

/// Shorthand for requests on one semaphore.
pub(super) struct Semaphore {
    pub(super) lock: Lock,
    capacity: u64,
}

impl Semaphore {
    pub(super) fn new(bench: &Bench, capacity: u64) -> Self {
        Self { lock: bench.lock(), capacity }
    }

    pub(super) async fn post(&self, route: &str, fields: Value) -> Reply {
        self.lock.bench.post(&format!("/v1/semaphore/{route}"), &self.lock.with_key(fields)).await
    }

    pub(super) async fn acquire(&self, lease_id: &str, fields: Value) -> Reply {
        let request = json!({ "ownerName": "someone", "capacity": self.capacity, "leaseId": lease_id });
        self.post("acquire", merged(request, fields)).await
    }

    pub(super) async fn enqueue(&self, lease_id: &str, fields: Value) -> Reply {
        let request = json!({ "ownerName": "someone", "capacity": self.capacity, "leaseId": lease_id });
        self.post("enqueue", merged(request, fields)).await
    }

    pub(super) async fn heartbeat(&self, lease_id: &str, fields: Value) -> Reply {
        self.post("heartbeat", merged(json!({ "leaseId": lease_id }), fields)).await
    }

    pub(super) async fn release(&self, lease_id: &str) -> Reply {
        self.post("release", json!({ "leaseId": lease_id })).await
    }

    /// Acquires under a fresh lease id.
    pub(super) async fn hold(&self, permits: u64, fields: Value) -> Holder {
        let lease_id = fresh("lease");
        let fields = merged(json!({ "permits": permits }), fields);
        Holder { grant: granted(&self.acquire(&lease_id, fields).await), lease_id }
    }

    /// Enqueues under a fresh lease id.
    pub(super) async fn wait(&self, permits: u64, fields: Value) -> Waiter {
        let lease_id = fresh("lease");
        let fields = merged(json!({ "permits": permits }), fields);
        Waiter { ticket: ticket(&self.enqueue(&lease_id, fields).await), lease_id }
    }

    pub(super) async fn view(&self) -> Value {
        let reply = self.lock.bench.get("/v1/semaphore", &self.lock.parameters()).await;
        let view = reply.ok();
        check_view(&view);
        view
    }

    pub(super) async fn available(&self) -> u64 {
        self.view().await["available"].as_u64().expect("a number")
    }
}

pub(super) struct Holder {
    pub(super) lease_id: String,
    pub(super) grant: Value,
}

impl Holder {
    pub(super) fn token(&self) -> u64 {
        self.grant["fencingToken"].as_u64().expect("a number")
    }

    /// The entry in the form in which an observer names it.
    pub(super) fn observed(&self) -> Value {
        json!({
            "holderId": self.grant["holderId"], "version": self.grant["version"], "permits": self.grant["permits"]
        })
    }
}

pub(super) struct Waiter {
    pub(super) lease_id: String,
    pub(super) ticket: Value,
}

impl Waiter {
    pub(super) fn observed(&self) -> Value {
        json!({ "holderId": self.ticket["ticketId"], "version": self.ticket["version"] })
    }

    /// The members of a request that follows the ticket.
    fn numbered(&self, fields: Value) -> Value {
        merged(json!({ "number": self.ticket["number"] }), fields)
    }

    fn place(&self) -> (u64, u64) {
        let number = |name: &str| self.ticket[name].as_u64().expect("a number");
        (number("number"), number("ahead"))
    }
}

/// Checks for status 200 and a grant with all its members.
#[track_caller]
pub(super) fn granted(reply: &Reply) -> Value {
    let body = reply.ok();
    let members = [
        "key",
        "ownerName",
        "leaseId",
        "holderId",
        "version",
        "leaseDurationMs",
        "permits",
        "fencingToken",
        "capacity",
        "outcome",
        "epoch",
    ];
    reply.check_members(&body, &members, &["sortKey"]);
    assert!(body["holderId"].as_str().is_some_and(|id| id.starts_with("h-")), "{reply}");
    body
}

/// Checks for status 200 and a renewal with all its members.
#[track_caller]
pub(super) fn renewed(reply: &Reply) -> Value {
    let body = reply.ok();
    reply.check_members(&body, &["holderId", "version", "leaseDurationMs", "permits", "fencingToken"], &[]);
    body
}

/// Checks for status 200 and a ticket with all its members.
#[track_caller]
fn ticket(reply: &Reply) -> Value {
    let body = reply.ok();
    reply.check_members(&body, &["ticketId", "version", "number", "ahead", "epoch"], &[]);
    assert!(body["ticketId"].as_str().is_some_and(|id| id.starts_with("t-")), "{reply}");
    body
}

/// The public view in a refusal as held.
#[track_caller]
fn held(reply: &Reply) -> Value {
    let view = reply.held();
    check_view(&view);
    view
}

/// Checks that the permits add up.
#[track_caller]
pub(super) fn check_view(view: &Value) {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {view}"));
    let list = |name: &str| view[name].as_array().unwrap_or_else(|| panic!("{name} in {view}")).clone();
    let held: u64 = list("holders").iter().map(|holder| number(&holder["permits"])).sum();
    assert_eq!(number(&view["available"]), number(&view["capacity"]).saturating_sub(held), "{view}");
    assert_eq!(view["kind"], "semaphore");
    for holder in list("holders") {
        for name in ["holderId", "ownerName", "version", "leaseDurationMs", "permits", "fencingToken"] {
            assert!(!holder[name].is_null(), "{name} in {holder}");
        }
    }
    for ticket in list("queue") {
        for name in ["ticketId", "ownerName", "version", "leaseDurationMs", "permits", "number"] {
            assert!(!ticket[name].is_null(), "{name} in {ticket}");
        }
    }
}

#[track_caller]
fn reason(reply: &Reply) -> Value {
    reply.problem("lost")["reason"].take()
}

pub(super) async fn permits_are_granted_up_to_the_capacity(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    let first = it.hold(1, json!({})).await;
    assert_eq!((&first.grant["outcome"], &first.grant["capacity"]), (&json!("created"), &json!(3)));
    assert_eq!(first.grant["leaseDurationMs"], 60_000);
    let second = it.hold(2, json!({ "capacity": 99 })).await;
    assert_eq!((&second.grant["outcome"], &second.grant["capacity"]), (&json!("reacquired"), &json!(3)));
    assert!(second.token() > first.token());

    let view = held(&it.acquire(&fresh("lease"), json!({})).await);
    assert_eq!((&view["available"], &view["holders"][0]["holderId"]), (&json!(0), &first.grant["holderId"]));
    assert_eq!(view["holders"][1]["permits"], 2);

    it.release(&first.lease_id).await.released("released");
    assert_eq!(it.available().await, 1);
    held(&it.acquire(&fresh("lease"), json!({ "permits": 2 })).await);
    assert!(it.hold(1, json!({})).await.token() > second.token());
    assert_eq!(it.available().await, 0);
}

pub(super) async fn request_beyond_the_capacity_is_refused(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    it.acquire(&fresh("lease"), json!({ "permits": 4 })).await.problem("exceeds-capacity");
    it.enqueue(&fresh("lease"), json!({ "permits": 4 })).await.problem("exceeds-capacity");
    bench.get("/v1/semaphore", &it.lock.parameters()).await.problem("not-found");
    it.hold(1, json!({})).await;
    it.acquire(&fresh("lease"), json!({ "permits": 4, "capacity": 9 })).await.problem("exceeds-capacity");
    it.enqueue(&fresh("lease"), json!({ "permits": 4, "capacity": 9 })).await.problem("exceeds-capacity");
}

pub(super) async fn repeated_acquire_takes_no_permit_twice(bench: Bench) {
    let it = Semaphore::new(&bench, 5);
    let lease_id = fresh("lease");
    let request = json!({ "permits": 2, "sequence": 1, "requestId": "a" });
    let first = granted(&it.acquire(&lease_id, request.clone()).await);
    assert_eq!(granted(&it.acquire(&lease_id, request).await), first);
    assert_eq!(granted(&it.acquire(&lease_id, json!({ "permits": 2 })).await), first);
    it.acquire(&lease_id, json!({ "permits": 3 })).await.problem("permits-mismatch");
    it.acquire(&lease_id, json!({ "permits": 1 })).await.problem("permits-mismatch");
    it.acquire(&lease_id, json!({ "permits": 2, "sequence": 1, "requestId": "b" })).await.problem("superseded");
    assert_eq!(it.available().await, 3);

    let renewal = granted(&it.acquire(&lease_id, json!({ "permits": 2, "sequence": 2 })).await);
    assert_eq!((&renewal["outcome"], &renewal["fencingToken"]), (&json!("renewed"), &first["fencingToken"]));
    assert_ne!(renewal["version"], first["version"]);
    assert_eq!(granted(&it.acquire(&lease_id, json!({ "permits": 2, "sequence": 2 })).await), renewal);
    let late = it.acquire(&lease_id, json!({ "permits": 2, "sequence": 1 })).await.problem("superseded");
    assert_eq!((&late["sequence"], &late["fencingToken"]), (&json!(2), &first["fencingToken"]));
    assert_eq!(it.available().await, 3);
}

pub(super) async fn heartbeat_renews_its_own_holder(bench: Bench) {
    let it = Semaphore::new(&bench, 5);
    let (one, other) = (it.hold(1, json!({})).await, it.hold(2, json!({})).await);
    let beat = renewed(&it.heartbeat(&one.lease_id, json!({ "sequence": 1, "leaseDurationMs": 5000 })).await);
    assert_eq!((&beat["holderId"], &beat["leaseDurationMs"]), (&one.grant["holderId"], &json!(5000)));
    assert_eq!((&beat["fencingToken"], &beat["permits"]), (&one.grant["fencingToken"], &json!(1)));
    assert_ne!(beat["version"], one.grant["version"]);
    let view = it.view().await;
    assert_eq!(view["holders"][1]["version"], other.grant["version"]);

    let repeat = it.heartbeat(&one.lease_id, json!({ "sequence": 1, "leaseDurationMs": 5000 })).await;
    assert_eq!(renewed(&repeat), beat);
    renewed(&it.heartbeat(&one.lease_id, json!({ "sequence": 3, "version": beat["version"] })).await);
    it.heartbeat(&one.lease_id, json!({ "sequence": 2 })).await.problem("superseded");
    let stale = it.heartbeat(&one.lease_id, json!({ "sequence": 4, "version": beat["version"] })).await;
    assert_eq!(reason(&stale), "version-mismatch");
}

pub(super) async fn upgrade_is_refused_and_downgrade_is_not(bench: Bench) {
    let it = Semaphore::new(&bench, 5);
    let writer = it.hold(5, json!({})).await;
    let changed = it.view().await["changed"].clone();
    renewed(&it.heartbeat(&writer.lease_id, json!({})).await);
    assert_eq!(it.view().await["changed"], changed, "a heartbeat wakes nobody");

    let shrink = json!({ "heldPermits": 5, "permits": 1 });
    let first = renewed(&it.heartbeat(&writer.lease_id, shrink.clone()).await);
    let second = renewed(&it.heartbeat(&writer.lease_id, merged(shrink, json!({ "leaseDurationMs": 30_000 }))).await);
    assert_eq!((&first["permits"], &second["permits"]), (&json!(1), &json!(1)));
    assert_ne!(first["version"], second["version"], "without a number, each heartbeat renews");
    assert_eq!(second["leaseDurationMs"], 30_000);
    let numbered = json!({ "heldPermits": 5, "permits": 1, "sequence": 1 });
    it.heartbeat(&writer.lease_id, numbered).await.problem("permits-mismatch");
    assert_ne!(it.view().await["changed"], changed, "permits came back");
    assert_eq!(it.available().await, 4);

    let upgrade = it.heartbeat(&writer.lease_id, json!({ "heldPermits": 1, "permits": 5 })).await;
    assert_eq!(upgrade.problem("invalid-request")["field"], "permits");
    it.heartbeat(&writer.lease_id, json!({ "heldPermits": 3, "permits": 2 })).await.problem("permits-mismatch");
    it.heartbeat(&writer.lease_id, json!({ "permits": 1 })).await.problem("invalid-request");
    it.acquire(&writer.lease_id, json!({ "permits": 5 })).await.problem("permits-mismatch");
    assert_eq!(it.available().await, 4);
}

pub(super) async fn release_is_remembered(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    it.release("nobody").await.released("absent");
    let holder = it.hold(1, json!({})).await;
    it.release(&holder.lease_id).await.released("released");
    it.release(&holder.lease_id).await.released("replayed");
    assert_eq!(it.available().await, 2);
    assert_eq!(reason(&it.acquire(&holder.lease_id, json!({})).await), "released");
    assert_eq!(reason(&it.enqueue(&holder.lease_id, json!({})).await), "released");
    assert_eq!(reason(&it.heartbeat(&holder.lease_id, json!({})).await), "released");
    assert_eq!(reason(&it.release("nobody").await), "taken-over");
    assert_eq!(it.available().await, 2, "nothing came of it");
}

pub(super) async fn dead_holder_is_evicted_by_its_observer(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    let lease = json!({ "leaseDurationMs": LEASE_MS });
    let (dead, alive) = (it.hold(2, lease.clone()).await, it.hold(1, lease).await);
    pause(LEASE_MS + 1).await;
    let beat = renewed(&it.heartbeat(&alive.lease_id, json!({})).await);

    let wrong = |change: Value| json!({ "permits": 2, "observed": [merged(dead.observed(), change)] });
    held(&it.acquire(&fresh("lease"), wrong(json!({ "version": "another" }))).await);
    held(&it.acquire(&fresh("lease"), wrong(json!({ "permits": 1 }))).await);
    held(&it.acquire(&fresh("lease"), wrong(json!({ "permits": 3 }))).await);
    held(&it.acquire(&fresh("lease"), wrong(json!({ "holderId": "h-unknown" }))).await);
    let both = json!({ "permits": 3, "observed": [dead.observed(), alive.observed()] });
    held(&it.acquire(&fresh("lease"), both).await);
    assert_eq!(it.available().await, 0);

    let taker = it.hold(1, json!({ "observed": [dead.observed()] })).await;
    assert_eq!(taker.grant["outcome"], "takenOver");
    assert!(taker.token() > alive.token());
    let view = it.view().await;
    assert_eq!(view["available"], 1);
    assert_eq!(view["holders"].as_array().map(Vec::len), Some(2));
    assert_eq!(view["holders"][0]["version"], beat["version"]);
    assert_eq!(reason(&it.heartbeat(&dead.lease_id, json!({})).await), "taken-over");
    assert_eq!(reason(&it.release(&dead.lease_id).await), "taken-over");
    assert_eq!(reason(&it.acquire(&dead.lease_id, json!({ "permits": 2 })).await), "taken-over");
    assert_eq!(it.available().await, 1);
}

pub(super) async fn observed_entries_have_rules(bench: Bench) {
    let it = Semaphore::new(&bench, 20);
    let one = it.hold(1, json!({})).await;
    let ask = async |observed: Value| {
        let fields = json!({ "observed": observed });
        it.acquire(&fresh("lease"), fields).await.problem("invalid-request")["field"].take()
    };
    assert_eq!(ask(json!([one.observed(), one.observed()])).await, "observed");
    assert_eq!(ask(json!([{ "holderId": "unknown", "version": "v", "permits": 1 }])).await, "observed");
    assert_eq!(ask(json!([{ "holderId": "h-1", "version": "v" }])).await, "observed");
    let many: Vec<_> = (0..11).map(|n| json!({ "holderId": format!("h-{n}"), "version": "v", "permits": 1 })).collect();
    assert_eq!(ask(Value::from(many)).await, "observed");
    let nameless = json!({ "holderId": one.grant["holderId"], "version": one.grant["version"] });
    let ticket = it.enqueue(&fresh("lease"), json!({ "observed": [nameless] })).await;
    assert_eq!(ticket.problem("invalid-request")["field"], "observed");
}

pub(super) async fn caller_that_finds_itself_dead_keeps_its_place(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let (me, other) = (it.hold(1, json!({})).await, it.hold(1, json!({})).await);
    let ask = |sequence: u64| json!({ "sequence": sequence, "observed": [me.observed(), other.observed()] });
    let renewal = granted(&it.acquire(&me.lease_id, ask(2)).await);
    assert_eq!((&renewal["outcome"], &renewal["fencingToken"]), (&json!("renewed"), &me.grant["fencingToken"]));
    assert_eq!(it.available().await, 0, "the other one was not needed");

    let waiter = it.wait(1, json!({})).await;
    let own_ticket = waiter.numbered(json!({ "observed": [waiter.observed(), other.observed()] }));
    let taker = granted(&it.acquire(&waiter.lease_id, own_ticket).await);
    assert_eq!(taker["outcome"], "takenOver");
    let waiter = it.wait(1, json!({})).await;
    let again = it.enqueue(&waiter.lease_id, json!({ "observed": [waiter.observed()] })).await.ok();
    assert_eq!(again["number"], waiter.ticket["number"]);
}

pub(super) async fn queue_goes_by_its_numbers(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    let holder = it.hold(1, json!({})).await;
    let (first, second) = (it.wait(1, json!({})).await, it.wait(1, json!({})).await);
    assert_eq!((first.place(), second.place()), ((1, 0), (2, 1)));
    let changed = it.view().await["changed"].clone();
    let again = ticket(&it.enqueue(&first.lease_id, json!({})).await);
    assert_eq!((&again["number"], &again["ticketId"]), (&json!(1), &first.ticket["ticketId"]));
    assert_ne!(again["version"], first.ticket["version"]);
    assert_eq!(it.view().await["changed"], changed, "a refresh wakes nobody");
    assert_eq!(reason(&it.heartbeat(&first.lease_id, json!({})).await), "queued");

    it.release(&holder.lease_id).await.released("released");
    let view = held(&it.acquire(&fresh("lease"), json!({})).await);
    assert_eq!(view["available"], 1, "free, and for those who wait");
    let numbers: Vec<_> = view["queue"].as_array().expect("a list").iter().map(|ticket| &ticket["number"]).collect();
    assert_eq!(numbers, [1, 2]);

    granted(&it.acquire(&first.lease_id, json!({})).await);
    held(&it.acquire(&second.lease_id, json!({})).await);
    assert_eq!(ticket(&it.enqueue(&second.lease_id, json!({})).await)["ahead"], 0);
    let again = granted(&it.enqueue(&first.lease_id, json!({})).await);
    assert_eq!(again["permits"], 1, "the permits are granted already");
    it.release(&first.lease_id).await.released("released");
    granted(&it.acquire(&second.lease_id, json!({})).await);
    assert_eq!(it.view().await["queue"], json!([]));
}

/// The service looks for itself whose turn it is, and takes nobody's word for it.
pub(super) async fn waiter_out_of_turn_is_refused(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let holder = it.hold(2, json!({})).await;
    let (first, second) = (it.wait(1, json!({})).await, it.wait(2, json!({})).await);
    let third = it.wait(1, json!({})).await;
    renewed(&it.heartbeat(&holder.lease_id, json!({ "heldPermits": 2, "permits": 1 })).await);
    held(&it.acquire(&third.lease_id, third.numbered(json!({}))).await);
    held(&it.acquire(&third.lease_id, json!({})).await);
    granted(&it.acquire(&first.lease_id, first.numbered(json!({}))).await);
    it.release(&holder.lease_id).await.released("released");
    held(&it.acquire(&third.lease_id, third.numbered(json!({}))).await);
    it.release(&first.lease_id).await.released("released");
    granted(&it.acquire(&second.lease_id, second.numbered(json!({ "permits": 2 }))).await);
    it.release(&second.lease_id).await.released("released");
    granted(&it.acquire(&third.lease_id, third.numbered(json!({}))).await);
}

/// A caller that passes tickets ahead names the view that shows them. Its request changes nothing after another grant,
/// however often it arrives.
pub(super) async fn late_pass_overtakes_nobody(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    let holder = it.hold(1, json!({})).await;
    let (first, second) = (it.wait(1, json!({})).await, it.wait(1, json!({})).await);
    let third = it.wait(1, json!({})).await;
    it.release(&holder.lease_id).await.released("released");
    let pass = |view: &Value| third.numbered(json!({ "epoch": view["epoch"], "passes": true }));
    // The first waiter leaves its permit, until the moment before the request arrives.
    let late = pass(&it.view().await);
    granted(&it.acquire(&first.lease_id, json!({})).await);
    held(&it.acquire(&third.lease_id, late.clone()).await);
    it.release(&first.lease_id).await.released("released");
    held(&it.acquire(&third.lease_id, late.clone()).await);
    assert_eq!(it.view().await["queue"].as_array().map(Vec::len), Some(2), "the second waiter is next");
    let in_time = pass(&it.view().await);
    granted(&it.acquire(&third.lease_id, in_time).await);
    it.release(&third.lease_id).await.released("released");
    granted(&it.acquire(&second.lease_id, json!({})).await);
}

/// A view that showed a turn holds until a grant passes a ticket, or the capacity changes.
pub(super) async fn late_turn_overtakes_nobody(bench: Bench) {
    for pass in [false, true] {
        let it = Semaphore::new(&bench, 2);
        let holder = it.hold(2, json!({})).await;
        let (first, second) = (it.wait(1, json!({})).await, it.wait(1, json!({})).await);
        let third = it.wait(1, json!({})).await;
        it.release(&holder.lease_id).await.released("released");
        let view = it.view().await;
        let late = second.numbered(json!({ "epoch": view["epoch"] }));
        if pass {
            let passing = third.numbered(json!({ "epoch": view["epoch"], "passes": true }));
            granted(&it.acquire(&third.lease_id, passing).await);
        } else {
            it.post("capacity", json!({ "capacity": 1, "expected": 2 })).await.ok();
        }
        let view = held(&it.acquire(&second.lease_id, late).await);
        assert_eq!(view["available"], 1, "for the first: {view}");
        granted(&it.acquire(&first.lease_id, first.numbered(json!({ "epoch": view["epoch"] }))).await);
    }
}

pub(super) async fn ticket_is_withdrawn_by_a_release(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    let holder = it.hold(1, json!({})).await;
    let waiter = it.wait(1, json!({})).await;
    it.release(&waiter.lease_id).await.released("released");
    it.release(&waiter.lease_id).await.released("replayed");
    assert_eq!(it.view().await["queue"], json!([]));
    assert_eq!(reason(&it.acquire(&waiter.lease_id, json!({})).await), "released", "a late acquire");
    assert_eq!(reason(&it.enqueue(&waiter.lease_id, json!({})).await), "released", "a late enqueue");
    it.release(&holder.lease_id).await.released("released");
    assert_eq!(it.available().await, 1);
}

pub(super) async fn late_requests_of_a_waiter_change_nothing(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    let holder = it.hold(1, json!({})).await;
    let lease_id = fresh("lease");
    let request = json!({ "sequence": 1, "requestId": "a" });
    let first = ticket(&it.enqueue(&lease_id, request.clone()).await);
    assert_eq!(ticket(&it.enqueue(&lease_id, request).await), first);
    it.enqueue(&lease_id, json!({ "permits": 1, "sequence": 1, "requestId": "b" })).await.problem("superseded");
    it.enqueue(&lease_id, json!({ "permits": 2, "sequence": 2 })).await.problem("permits-mismatch");
    ticket(&it.enqueue(&lease_id, json!({ "sequence": 3 })).await);
    it.release(&holder.lease_id).await.released("released");
    it.acquire(&lease_id, json!({ "sequence": 2 })).await.problem("superseded");
    assert_eq!(it.available().await, 1);
    granted(&it.acquire(&lease_id, json!({ "sequence": 4 })).await);
    it.enqueue(&lease_id, json!({ "sequence": 3 })).await.problem("superseded");
    assert_eq!(it.view().await["queue"], json!([]));
}

pub(super) async fn enqueue_finds_the_grant_whose_answer_was_lost(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    let lease_id = fresh("lease");
    let first = granted(&it.acquire(&lease_id, json!({ "sequence": 1 })).await);
    it.enqueue(&lease_id, json!({ "permits": 2 })).await.problem("permits-mismatch");
    it.enqueue(&lease_id, json!({ "permits": 2, "sequence": 2 })).await.problem("permits-mismatch");
    let again = granted(&it.enqueue(&lease_id, json!({ "sequence": 2 })).await);
    assert_eq!((&again["outcome"], &again["fencingToken"]), (&json!("renewed"), &first["fencingToken"]));
    assert_ne!(again["version"], first["version"]);
    assert_eq!(granted(&it.enqueue(&lease_id, json!({ "sequence": 2 })).await), again, "a repeat");
    it.acquire(&lease_id, json!({ "sequence": 1 })).await.problem("superseded");
    assert_eq!((it.available().await, &it.view().await["queue"]), (2, &json!([])));
}

pub(super) async fn ticket_is_good_for_its_own_permits(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    let holder = it.hold(3, json!({})).await;
    let (first, second) = (it.wait(1, json!({})).await, it.wait(2, json!({})).await);
    it.release(&holder.lease_id).await.released("released");
    for number in [json!({}), first.numbered(json!({}))] {
        it.acquire(&first.lease_id, merged(number, json!({ "permits": 3 }))).await.problem("permits-mismatch");
    }
    granted(&it.acquire(&first.lease_id, first.numbered(json!({}))).await);
    granted(&it.acquire(&second.lease_id, second.numbered(json!({ "permits": 2 }))).await);
}

pub(super) async fn writer_is_not_starved_by_readers(bench: Bench) {
    let it = Semaphore::new(&bench, 100);
    let readers = [it.hold(1, json!({})).await, it.hold(1, json!({})).await];
    let writer = it.wait(100, json!({})).await;
    held(&it.acquire(&fresh("lease"), json!({})).await);
    let late_reader = it.wait(1, json!({})).await;
    assert_eq!(late_reader.place().1, 1);
    for reader in &readers {
        held(&it.acquire(&writer.lease_id, json!({ "permits": 100 })).await);
        it.release(&reader.lease_id).await.released("released");
    }
    granted(&it.acquire(&writer.lease_id, json!({ "permits": 100 })).await);
    held(&it.acquire(&late_reader.lease_id, json!({})).await);
    renewed(&it.heartbeat(&writer.lease_id, json!({ "heldPermits": 100, "permits": 1 })).await);
    granted(&it.acquire(&late_reader.lease_id, json!({})).await);
}

pub(super) async fn dead_tickets_are_removed_by_who_comes(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    let holder = it.hold(1, json!({})).await;
    let lease = json!({ "leaseDurationMs": LEASE_MS });
    let dead = [it.wait(1, lease.clone()).await, it.wait(1, lease).await];
    let alive = it.wait(1, json!({})).await;
    it.release(&holder.lease_id).await.released("released");
    let observed: Vec<_> = dead.iter().map(Waiter::observed).collect();
    // The request does not name all waiters: a living one is ahead.
    held(&it.acquire(&fresh("lease"), json!({ "observed": observed })).await);
    it.release(&alive.lease_id).await.released("released");
    let wrong = json!([observed[0], { "holderId": dead[1].ticket["ticketId"], "version": "another" }]);
    held(&it.acquire(&fresh("lease"), json!({ "observed": wrong })).await);
    let taker = it.hold(1, json!({ "observed": observed })).await;
    assert_eq!(taker.grant["outcome"], "reacquired", "tickets have no permits");
    assert_eq!(it.view().await["queue"], json!([]));
}

pub(super) async fn waiter_removes_more_dead_holders_than_ten(bench: Bench) {
    let it = Semaphore::new(&bench, 25);
    let mut dead = Vec::new();
    for _ in 0..25 {
        dead.push(it.hold(1, json!({ "leaseDurationMs": LEASE_MS })).await);
    }
    let names = |range: std::ops::Range<usize>| dead[range].iter().map(Holder::observed).collect::<Vec<_>>();
    let writer = it.wait(25, json!({})).await;
    pause(LEASE_MS + 1).await;

    let mut wrong = names(0..10);
    wrong[9]["version"] = json!("another");
    held(&it.enqueue(&writer.lease_id, json!({ "permits": 25, "observed": wrong })).await);
    assert_eq!(it.available().await, 0);

    let changed = it.view().await["changed"].clone();
    let renewal = json!({ "permits": 25, "sequence": 1, "observed": names(0..10) });
    let renewed = ticket(&it.enqueue(&writer.lease_id, renewal.clone()).await);
    assert_eq!((&renewed["number"], &renewed["ticketId"]), (&writer.ticket["number"], &writer.ticket["ticketId"]));
    assert_eq!(ticket(&it.enqueue(&writer.lease_id, renewal).await), renewed, "a repeat");
    let view = it.view().await;
    assert_eq!(view["available"], 10);
    assert_ne!(view["changed"], changed, "permits came back");
    assert_eq!(reason(&it.heartbeat(&dead[0].lease_id, json!({})).await), "taken-over");
    held(&it.acquire(&fresh("lease"), json!({})).await);

    let renewal = json!({ "permits": 25, "sequence": 2, "observed": names(10..20) });
    ticket(&it.enqueue(&writer.lease_id, renewal).await);
    let fields = json!({ "permits": 25, "sequence": 3, "observed": names(20..25) });
    assert_eq!(granted(&it.acquire(&writer.lease_id, fields).await)["outcome"], "takenOver");
    assert_eq!(it.available().await, 0);
}

pub(super) async fn full_queue_is_entered_past_its_dead(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    it.hold(1, json!({})).await;
    let mut waiters = Vec::new();
    for _ in 0..100 {
        waiters.push(it.wait(1, json!({})).await);
    }
    assert_eq!(waiters[99].place(), (100, 99));
    let view = it.enqueue(&fresh("lease"), json!({})).await.problem("queue-full")["lock"].take();
    assert_eq!(view["queue"].as_array().map(Vec::len), Some(100));
    ticket(&it.enqueue(&waiters[50].lease_id, json!({})).await);
    let wrong = json!([{ "holderId": waiters[0].ticket["ticketId"], "version": "another" }]);
    held(&it.enqueue(&fresh("lease"), json!({ "observed": wrong })).await);
    let dead: Vec<_> = waiters[..10].iter().map(Waiter::observed).collect();
    let entered = ticket(&it.enqueue(&fresh("lease"), json!({ "observed": dead })).await);
    assert_eq!((&entered["number"], &entered["ahead"]), (&json!(101), &json!(90)));
}

pub(super) async fn holders_have_a_bound(bench: Bench) {
    let it = Semaphore::new(&bench, 1000);
    let mut last = it.hold(1, json!({})).await;
    for _ in 1..100 {
        last = it.hold(1, json!({})).await;
    }
    let view = held(&it.acquire(&fresh("lease"), json!({})).await);
    assert_eq!(view["available"], 900);
    it.hold(1, json!({ "observed": [last.observed()] })).await;
    assert_eq!(it.available().await, 900);
}

pub(super) async fn watch_waits_for_permits_and_the_queue(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    let holder = it.hold(1, json!({})).await;
    let watch = async || {
        let view = it.view().await;
        let changed = view["changed"].as_str().expect("a text");
        it.lock.watch(changed, "0").await.ok();
        it.lock.watch(changed, "20000").await.ok()
    };
    let work = async {
        pause(LEASE_MS).await;
        // A heartbeat wakes no watch.
        renewed(&it.heartbeat(&holder.lease_id, json!({})).await);
        it.release(&holder.lease_id).await.released("released");
    };
    let (watched, ()) = tokio::join!(watch(), work);
    assert_eq!((&watched["available"], &watched["holders"]), (&json!(1), &json!([])));
    it.hold(1, json!({})).await;
    let enter = async {
        pause(LEASE_MS).await;
        it.wait(1, json!({})).await
    };
    let (watched, waiter) = tokio::join!(watch(), enter);
    assert_eq!(watched["queue"][0]["ticketId"], waiter.ticket["ticketId"]);
}

pub(super) async fn capacity_can_be_changed(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    it.post("capacity", json!({ "capacity": 5, "expected": 3 })).await.problem("not-found");
    let holder = it.hold(3, json!({})).await;
    let small = it.wait(1, json!({})).await;
    let large = it.wait(3, json!({})).await;
    let change = async |capacity: u64, expected: u64| {
        it.post("capacity", json!({ "capacity": capacity, "expected": expected })).await
    };
    let changed = it.view().await["changed"].clone();
    assert_eq!(change(1, 3).await.ok(), json!({ "capacity": 1, "available": 0 }));
    assert_eq!(change(1, 3).await.ok(), json!({ "capacity": 1, "available": 0 }), "a repeat");
    assert_ne!(it.view().await["changed"], changed);
    change(7, 3).await.problem("version-mismatch");
    let view = it.view().await;
    assert_eq!((&view["capacity"], &view["available"]), (&json!(1), &json!(0)));

    it.enqueue(&large.lease_id, json!({ "permits": 3 })).await.problem("exceeds-capacity");
    it.acquire(&large.lease_id, json!({ "permits": 3 })).await.problem("exceeds-capacity");
    let behind = it.wait(1, json!({})).await;
    assert_eq!(behind.place(), (3, 1), "what cannot be granted is ahead of nobody");
    renewed(&it.heartbeat(&holder.lease_id, json!({ "heldPermits": 3, "permits": 1 })).await);
    held(&it.acquire(&small.lease_id, json!({})).await);
    assert_eq!(change(4, 1).await.ok(), json!({ "capacity": 4, "available": 3 }));
    granted(&it.acquire(&small.lease_id, json!({})).await);
}

pub(super) async fn operator_breaks_holders_and_tickets(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let holder = it.hold(2, json!({})).await;
    let waiter = it.wait(1, json!({})).await;
    let strike =
        async |id: &Value, version: &Value| it.post("break", json!({ "holderId": id, "version": version })).await;
    strike(&holder.grant["holderId"], &json!("another")).await.problem("version-mismatch");
    strike(&json!("h-unknown"), &holder.grant["version"]).await.problem("version-mismatch");
    strike(&json!("unknown"), &holder.grant["version"]).await.problem("invalid-request");
    it.enqueue(&waiter.lease_id, json!({ "permits": 2 })).await.problem("permits-mismatch");
    it.enqueue(&waiter.lease_id, json!({ "permits": 2, "sequence": 9 })).await.problem("permits-mismatch");
    for outcome in ["released", "replayed"] {
        strike(&waiter.ticket["ticketId"], &waiter.ticket["version"]).await.released(outcome);
    }
    // This check comes before the next end, which may have the same one of the 16 slots.
    assert_eq!(reason(&it.acquire(&waiter.lease_id, json!({})).await), "released");
    for outcome in ["released", "replayed"] {
        strike(&holder.grant["holderId"], &holder.grant["version"]).await.released(outcome);
    }
    strike(&holder.grant["holderId"], &json!("another")).await.problem("version-mismatch");
    assert_eq!(it.available().await, 2);
    assert_eq!(reason(&it.heartbeat(&holder.lease_id, json!({})).await), "released");
    it.release(&holder.lease_id).await.released("replayed");
    assert_eq!(it.available().await, 2);
}

/// More ends than the memories of a row have slots.
const MANY: usize = 64;

pub(super) async fn late_copies_of_a_spent_enqueue_make_no_ticket(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    it.hold(1, json!({})).await;
    let (spent, epoch) = (fresh("lease"), it.view().await["epoch"].clone());
    let request = json!({ "sequence": 1, "requestId": "a", "epoch": epoch });
    let place = ticket(&it.enqueue(&spent, request.clone()).await);
    it.post("release", json!({ "leaseId": spent, "number": place["number"] })).await.released("released");
    for ends in 1..=MANY {
        let other = it.wait(1, json!({})).await;
        it.post("release", json!({ "leaseId": other.lease_id, "number": other.ticket["number"] })).await.ok();
        let late = it.enqueue(&spent, request.clone()).await;
        assert_ne!(late.status(), 200, "{ends} ends later: {late}");
        if ends < 16 {
            it.enqueue(&spent, json!({})).await.problem("lost");
        }
    }
    assert_eq!(it.view().await["queue"], json!([]));
}

pub(super) async fn late_copies_of_a_spent_acquire_make_no_holder(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    let long = it.hold(1, json!({})).await;
    let (spent, epoch) = (fresh("lease"), long.grant["epoch"].clone());
    let request = json!({ "sequence": 1, "requestId": "a", "epoch": epoch });
    granted(&it.acquire(&spent, request.clone()).await);
    it.release(&spent).await.released("released");
    for ends in 1..=MANY {
        let other = it.hold(1, json!({})).await;
        it.post("release", json!({ "leaseId": other.lease_id, "fencingToken": other.token() })).await.ok();
        let late = it.acquire(&spent, request.clone()).await;
        assert_ne!(late.status(), 200, "{ends} ends later: {late}");
    }
    // The slot of the oldest holder has a later end by now.
    it.post("release", json!({ "leaseId": long.lease_id, "fencingToken": long.token() })).await.released("released");
    assert_eq!(it.available().await, 3);
}

pub(super) async fn evicted_waiter_is_remembered(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    let holder = it.hold(1, json!({})).await;
    let dead = it.wait(1, json!({ "leaseDurationMs": LEASE_MS })).await;
    it.release(&holder.lease_id).await.released("released");
    pause(LEASE_MS + 1).await;
    let taker = it.hold(1, json!({ "observed": [dead.observed()] })).await;
    assert_eq!(reason(&it.enqueue(&dead.lease_id, json!({})).await), "taken-over");
    assert_eq!(reason(&it.acquire(&dead.lease_id, json!({})).await), "taken-over");
    it.release(&taker.lease_id).await.released("released");
    assert_eq!((it.view().await["queue"].clone(), it.available().await), (json!([]), 1));
}

pub(super) async fn ends_of_holders_hide_no_end_of_a_ticket(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    // Each slot of the one memory has an end, with a number above that of any ticket.
    for _ in 0..16 {
        let holder = it.hold(1, json!({})).await;
        it.release(&holder.lease_id).await.released("released");
    }
    let holder = it.hold(1, json!({})).await;
    let dead = it.wait(1, json!({ "leaseDurationMs": LEASE_MS })).await;
    it.release(&holder.lease_id).await.released("released");
    pause(LEASE_MS + 1).await;
    let taker = it.hold(1, json!({ "observed": [dead.observed()] })).await;
    assert_eq!(reason(&it.enqueue(&dead.lease_id, json!({})).await), "taken-over");
    assert_eq!(reason(&it.acquire(&dead.lease_id, json!({})).await), "taken-over");
    it.release(&taker.lease_id).await.released("released");
    assert_eq!(it.view().await["queue"], json!([]));
}

pub(super) async fn old_epoch_is_refused_and_the_next_try_is_not(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let mut last = it.hold(1, json!({})).await;
    let old = last.grant["epoch"].clone();
    for others in 1..=17 {
        it.release(&last.lease_id).await.released("released");
        last = it.hold(1, json!({})).await;
        if others == 16 {
            let in_time = fresh("lease");
            granted(&it.acquire(&in_time, json!({ "epoch": old })).await);
            it.release(&in_time).await.released("released");
        }
    }
    let lease_id = fresh("lease");
    let view = held(&it.acquire(&lease_id, json!({ "epoch": old })).await);
    held(&it.enqueue(&lease_id, json!({ "epoch": old })).await);
    granted(&it.acquire(&lease_id, json!({ "epoch": view["epoch"] })).await);
    let wrong = it.acquire(&fresh("lease"), json!({ "epoch": "none" })).await;
    assert_eq!(wrong.problem("invalid-request")["field"], "epoch");
}

pub(super) async fn request_that_names_its_ticket_makes_no_other(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    assert_eq!(reason(&it.acquire(&fresh("lease"), json!({ "number": 1 })).await), "not-queued");
    let holder = it.hold(1, json!({})).await;
    let waiter = it.wait(1, json!({})).await;
    let number = waiter.place().0;
    ticket(&it.enqueue(&waiter.lease_id, json!({ "number": number })).await);
    for route in ["acquire", "enqueue"] {
        let request = json!({ "ownerName": "me", "capacity": 1, "leaseId": fresh("lease"), "number": number });
        assert_eq!(reason(&it.post(route, request).await), "not-queued", "{route}");
        let request = json!({ "ownerName": "me", "capacity": 1, "leaseId": waiter.lease_id, "number": number + 1 });
        assert_eq!(reason(&it.post(route, request).await), "not-queued", "{route}");
    }
    it.release(&holder.lease_id).await.released("released");
    granted(&it.acquire(&waiter.lease_id, json!({ "number": number })).await);
}

pub(super) async fn holder_of_another_token_is_lost(bench: Bench) {
    let it = Semaphore::new(&bench, 1);
    let holder = it.hold(1, json!({})).await;
    let beat = async |token: u64| it.heartbeat(&holder.lease_id, json!({ "fencingToken": token })).await;
    let view = it.view().await;
    assert_eq!(reason(&beat(holder.token() + 1).await), "taken-over");
    assert_eq!(it.view().await, view);
    renewed(&beat(holder.token()).await);
}

pub(super) async fn late_change_of_the_capacity_undoes_nothing(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    it.hold(1, json!({})).await;
    let expires = it.lock.row().await.expect("a row")["expireAt"].clone();
    assert!(expires.as_n().is_ok(), "{expires:?}");
    let seen = it.view().await["capacityVersion"].clone();
    let first = json!({ "capacity": 5, "expected": 3, "expectedVersion": seen, "requestId": "a" });
    assert_eq!(it.post("capacity", first.clone()).await.ok(), json!({ "capacity": 5, "available": 4 }));
    assert_eq!(it.post("capacity", first.clone()).await.ok(), json!({ "capacity": 5, "available": 4 }), "a repeat");
    let seen = it.view().await["capacityVersion"].clone();
    let second = json!({ "capacity": 3, "expected": 5, "expectedVersion": seen, "requestId": "b" });
    it.post("capacity", second).await.ok();
    it.post("capacity", first).await.problem("version-mismatch");
    it.hold(1, json!({})).await;
    assert_eq!(it.view().await["capacity"], 3);
    let expires = it.lock.row().await.expect("a row")["expireAt"].clone();
    assert!(expires.as_s().is_ok(), "TTL ignores it: {expires:?}");
}

pub(super) async fn dead_come_free_by_the_clock_for_who_asks_once(bench: Bench) {
    /// More than one write removes.
    const DEAD: usize = 12;
    let lease = json!({ "leaseDurationMs": LEASE_MS });
    let look = || async {
        let it = Semaphore::new(&bench, 1);
        it.hold(1, lease.clone()).await;
        it.wait(1, lease.clone()).await;
        it.acquire(&fresh("lease"), by_clock()).await
    };
    held(&look_before_the_skew_is_over(LEASE_MS, look).await);

    let it = Semaphore::new(&bench, DEAD as u64);
    for _ in 0..DEAD {
        it.hold(1, lease.clone()).await;
    }
    for _ in 0..DEAD {
        it.wait(1, lease.clone()).await;
    }
    let ask = async |fields: Value| it.acquire(&fresh("lease"), merged(json!({ "permits": 11 }), fields)).await;
    // The lease, and more than the allowed skew.
    pause(LEASE_MS + 2000).await;
    held(&ask(json!({})).await);
    assert_eq!(it.view().await["holders"].as_array().map(Vec::len), Some(DEAD), "nobody is judged unasked");
    assert_eq!(granted(&ask(by_clock()).await)["outcome"], "takenOver");
    let view = it.view().await;
    assert_eq!((&view["queue"], &view["available"]), (&json!([]), &json!(0)));
    assert_eq!(view["holders"].as_array().map(Vec::len), Some(2), "no more than needed");
    let named = json!([{ "holderId": "h-1", "version": "v", "permits": 1 }]);
    let both = ask(json!({ "staleness": "clock", "observed": named })).await;
    assert_eq!(both.problem("invalid-request")["field"], "observed");
}

pub(super) async fn ticket_above_the_capacity_is_ahead_of_nobody(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    let holder = it.hold(3, json!({})).await;
    let large = it.wait(3, json!({})).await;
    it.post("capacity", json!({ "capacity": 2, "expected": 3 })).await.ok();
    it.release(&holder.lease_id).await.released("released");
    let one = it.hold(1, json!({})).await;
    assert_eq!(one.grant["capacity"], 2);
    it.post("capacity", json!({ "capacity": 3, "expected": 2 })).await.ok();
    held(&it.acquire(&fresh("lease"), json!({})).await);
    it.release(&one.lease_id).await.released("released");
    granted(&it.acquire(&large.lease_id, json!({ "permits": 3 })).await);
}

pub(super) async fn enqueue_is_granted_where_permits_are_free(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    let lease_id = fresh("lease");
    let request = json!({ "permits": 2, "sequence": 1, "requestId": "a", "grantLeaseDurationMs": 5000, "data": "d" });
    let first = granted(&it.enqueue(&lease_id, request.clone()).await);
    assert_eq!((&first["outcome"], &first["leaseDurationMs"]), (&json!("created"), &json!(5000)));
    assert_eq!(granted(&it.enqueue(&lease_id, request).await), first, "a repeat");
    let second = granted(&it.enqueue(&fresh("lease"), json!({})).await);
    assert_eq!((&second["outcome"], &second["leaseDurationMs"]), (&json!("reacquired"), &json!(60_000)));
    let view = it.view().await;
    assert_eq!((&view["queue"], &view["available"]), (&json!([]), &json!(0)));
    assert_eq!(view["holders"][0]["data"], "d");
    it.release(&lease_id).await.released("released");
    let writer = it.wait(3, json!({})).await;
    assert_eq!(it.wait(1, json!({})).await.place().1, 1, "{} is ahead", writer.lease_id);
}

pub(super) async fn watch_waits_for_the_turn_of_a_ticket(bench: Bench) {
    let it = Semaphore::new(&bench, 3);
    let (one, two) = (it.hold(1, json!({})).await, it.hold(2, json!({})).await);
    let (first, second) = (it.wait(2, json!({})).await, it.wait(1, json!({})).await);
    let watch = async |waiter: &Waiter, wait_ms: &str| {
        let id = waiter.ticket["ticketId"].as_str().expect("a text");
        let parameters = [it.lock.parameters(), vec![("ticketId", id), ("waitMs", wait_ms)]].concat();
        bench.get("/v1/watch", &parameters).await.ok()
    };
    it.release(&one.lease_id).await.released("released");
    // The free permit covers the second, and is for the first.
    assert_eq!(watch(&second, "100").await["available"], 1);
    let work = async {
        pause(LEASE_MS).await;
        it.release(&two.lease_id).await.released("released");
    };
    let (firsts, seconds, ()) = tokio::join!(watch(&first, "20000"), watch(&second, "20000"), work);
    assert_eq!((&firsts["available"], &seconds["available"]), (&json!(3), &json!(3)));
    granted(&it.acquire(&second.lease_id, json!({})).await);
    it.release(&first.lease_id).await.released("released");
    assert_eq!(watch(&first, "20000").await["queue"], json!([]), "the ticket is gone");
}

pub(super) async fn public_ids_are_no_proof(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let holder = it.hold(1, json!({})).await;
    let waiter = it.wait(2, json!({})).await;
    let before = it.view().await;
    for id in [&holder.grant["holderId"], &holder.grant["version"], &waiter.ticket["ticketId"]] {
        // The request bypasses the search of answers for lease ids, since the answers may contain this public id.
        let post = async |route: &str, fields: Value| {
            let body = it.lock.with_key(merged(json!({ "leaseId": id }), fields)).to_string();
            bench.post_text(&format!("/v1/semaphore/{route}"), body).await
        };
        assert_eq!(reason(&post("heartbeat", json!({})).await), "taken-over");
        assert_eq!(reason(&post("release", json!({})).await), "taken-over");
        held(&post("acquire", json!({ "ownerName": "thief", "capacity": 2 })).await);
    }
    assert_eq!(it.view().await, before);
}

pub(super) async fn semaphore_and_lock_do_not_mix(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let holder = it.hold(1, json!({})).await;
    let version = it.lock.version().await;
    let lock = &it.lock;
    lock.acquire("me", json!({ "observedRecordVersionNumber": version })).await.problem("wrong-kind");
    lock.acquire("me", json!({ "staleness": "clock" })).await.problem("wrong-kind");
    lock.heartbeat(&holder.lease_id, json!({})).await.problem("wrong-kind");
    lock.release(&holder.lease_id, json!({})).await.problem("wrong-kind");
    lock.release(&holder.lease_id, json!({ "delete": true })).await.problem("wrong-kind");
    lock.break_it(&version).await.problem("wrong-kind");
    lock.get().await.problem("wrong-kind");
    assert_eq!(lock.version().await, version);

    let plain = Semaphore::new(&bench, 2);
    let grant = plain.lock.hold("me").await;
    for released in [false, true] {
        plain.acquire(&fresh("lease"), json!({})).await.problem("wrong-kind");
        plain.enqueue(&fresh("lease"), json!({})).await.problem("wrong-kind");
        plain.heartbeat(&grant.lease_id, json!({})).await.problem("wrong-kind");
        plain.release(&grant.lease_id).await.problem("wrong-kind");
        plain.post("break", json!({ "holderId": "h-1", "version": grant.rvn })).await.problem("wrong-kind");
        plain.post("capacity", json!({ "capacity": 1, "expected": 2 })).await.problem("wrong-kind");
        bench.get("/v1/semaphore", &plain.lock.parameters()).await.problem("wrong-kind");
        if !released {
            plain.lock.release(&grant.lease_id, json!({})).await.released("released");
        }
    }
}

pub(super) async fn semaphore_takes_a_deleted_lock(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let grant = it.lock.hold("me").await;
    it.lock.release(&grant.lease_id, json!({ "delete": true })).await.released("released");
    it.release("nobody").await.released("absent");
    let holder = it.hold(1, json!({})).await;
    assert_eq!(holder.grant["outcome"], "created");
    assert!(holder.token() > grant.token, "tokens rise through all that");
    let row = it.lock.row().await.expect("a row");
    for gone in ["isReleased", "deletedVersion", "leaseIdHash", "leaseVersion", "data", "staleAt"] {
        assert_eq!(row.get(gone), None, "{gone}");
    }
    it.lock.get().await.problem("wrong-kind");
}

pub(super) async fn listing_shows_semaphores_by_kind(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let holder = it.hold(1, json!({ "data": "10.0.0.1" })).await;
    let listed = bench.list_all(&[("key", &it.lock.key), ("state", "held")]).await;
    assert_eq!(listed, [it.view().await]);
    assert_eq!((&listed[0]["kind"], &listed[0]["state"]), (&json!("semaphore"), &json!("held")));
    assert_eq!(listed[0]["holders"][0]["data"], "10.0.0.1");
    it.release(&holder.lease_id).await.released("released");
    assert_eq!(bench.list_all(&[("key", &it.lock.key), ("state", "held")]).await, Vec::<Value>::new());
    assert_eq!(bench.list_all(&[("key", &it.lock.key), ("state", "released")]).await, [it.view().await]);
}

pub(super) async fn semaphore_row_is_as_described(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let holder = it.hold(1, json!({})).await;
    it.wait(2, json!({})).await;
    let row = it.lock.row().await.expect("a row");
    let value = |name: &str| row.get(name).unwrap_or_else(|| panic!("{name}")).clone();
    // A Java client sees a held lock with a lease that never ends.
    assert_eq!(value("ownerName"), text("leasehold:semaphore"));
    assert_eq!(value("leaseDuration"), text(i64::MAX.to_string()));
    assert_eq!((value("leaseholdKind"), row.get("isReleased")), (text("semaphore"), None));
    let holders = value("holders").as_m().expect("a map").clone();
    let id = holder.grant["holderId"].as_str().expect("text");
    assert!(holders[id].as_m().is_ok_and(|entry| entry.contains_key("hash")), "{holders:?}");
    for map in ["tokens", "queue", "tickets"] {
        assert_eq!(value(map).as_m().map(HashMap::len), Ok(1), "{map}");
    }
    assert_eq!(value("ended").as_m().map(HashMap::len), Ok(16));
    let version = it.lock.version().await;
    renewed(&it.heartbeat(&holder.lease_id, json!({})).await);
    assert_ne!(it.lock.version().await, version, "each write has a new version");
}

pub(super) async fn damaged_semaphore_grants_nothing(bench: Bench) {
    for (name, value) in [("isReleased", Some(text("1"))), ("ownerName", Some(text("host-1"))), ("holders", None)] {
        let it = Semaphore::new(&bench, 2);
        let holder = it.hold(1, json!({})).await;
        it.lock.overwrite([(name, value)]).await;
        let row = it.lock.row().await;
        it.acquire(&fresh("lease"), json!({})).await.problem("corrupt-record");
        it.heartbeat(&holder.lease_id, json!({})).await.problem("corrupt-record");
        bench.get("/v1/semaphore", &it.lock.parameters()).await.problem("corrupt-record");
        assert_eq!(it.lock.row().await, row, "{name}");
        let page = bench.get("/v1/locks", &[("key", &it.lock.key)]).await.page();
        assert_eq!((page.locks.len(), page.unreadable.len()), (0, 1), "{name}");
    }
}

/// A condition cannot count what the holders have. The answer does: nobody is told of a permit of such a row.
pub(super) async fn semaphore_whose_permits_do_not_add_up_grants_nothing(bench: Bench) {
    for available in ["0", "2", "3", "-1"] {
        let it = Semaphore::new(&bench, 2);
        let holder = it.hold(1, json!({})).await;
        it.lock.overwrite([("available", Some(AttributeValue::N(available.into())))]).await;
        it.acquire(&fresh("lease"), json!({})).await.problem("corrupt-record");
        it.enqueue(&fresh("lease"), json!({})).await.problem("corrupt-record");
        it.heartbeat(&holder.lease_id, json!({})).await.problem("corrupt-record");
        bench.get("/v1/semaphore", &it.lock.parameters()).await.problem("corrupt-record");
    }
}

pub(super) async fn requests_are_checked(bench: Bench) {
    let it = Semaphore::new(&bench, 2);
    let at_fault =
        async |route: &str, fields: Value| it.post(route, fields).await.problem("invalid-request")["field"].take();
    let request = |fields: Value| merged(json!({ "ownerName": "me", "capacity": 2 }), fields);
    assert_eq!(at_fault("acquire", json!({ "ownerName": "me" })).await, "capacity");
    assert_eq!(at_fault("acquire", json!({ "capacity": 1 })).await, "ownerName");
    for field in ["permits", "capacity"] {
        for number in [0, 1_000_000_001_u64] {
            assert_eq!(at_fault("acquire", request(json!({ field: number }))).await, field);
        }
    }
    assert_eq!(at_fault("acquire", request(json!({ "ownerName": "x".repeat(129) }))).await, "ownerName");
    assert_eq!(at_fault("acquire", request(json!({ "requestId": "a" }))).await, "requestId");
    assert_eq!(at_fault("acquire", request(json!({ "leaseDurationMs": 99 }))).await, "leaseDurationMs");
    assert_eq!(at_fault("enqueue", request(json!({}))).await, "leaseId");
    assert_eq!(at_fault("capacity", json!({ "capacity": 2 })).await, "expected");
    it.post("acquire", request(json!({ "data": "x".repeat(257) }))).await.problem("too-large");
    let reserved = it.lock.acquire("me", json!({ "attributes": { "holders": 1 } })).await;
    assert_eq!(reserved.problem("invalid-request")["field"], "attributes");
    bench.get("/v1/semaphore", &it.lock.parameters()).await.problem("not-found");
}
