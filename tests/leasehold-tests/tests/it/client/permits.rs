//! Semaphores, read/write locks and fair locks: K2 to K5.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use leasehold_api::Service;
use leasehold_client::wire::AcquireOutcome;
use leasehold_client::{
    Acquisition, Client, ErrorKind, Heartbeats, LossReason, PermitGuard, PermitRequest, Semaphore, Transport, Wait,
};
use leasehold_dynamodb::Clock;
use leasehold_in_process::InProcess;
use leasehold_protocol::{LockTable, Policy, TableSchema, ensure_table};
use leasehold_tests::World;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, Network, SECOND};

const LEASE: Duration = Duration::from_mins(1);
/// How long an observer waits for a holder: a thousandth more.
const STALE: Duration = Duration::from_millis(60_060);
const TICKET_STALE: Duration = Duration::from_millis(120_120);

/// A client of a network that does as it is told, and the network.
fn caller(world: &World, name: &str) -> (Client, Network) {
    let network = Network::new(world.transport());
    (Client::builder().owner_name(name).build(network.clone()), network)
}

fn forever() -> PermitRequest {
    PermitRequest::new().wait(Wait::Forever)
}

async fn granted(semaphore: &Semaphore, request: impl Into<PermitRequest>) -> PermitGuard {
    semaphore.acquire(request).await.expect("reachable").granted().expect("free")
}

async fn try_granted(semaphore: &Semaphore) -> Option<PermitGuard> {
    match semaphore.try_acquire(PermitRequest::new()).await.expect("reachable") {
        Acquisition::Granted(guard) => Some(guard),
        Acquisition::Held(_) => None,
    }
}

/// Free permits, the number of holders, and the length of the queue.
async fn state(semaphore: &Semaphore) -> (u64, usize, usize) {
    let state = semaphore.get().await.expect("there is one").semaphore.expect("a semaphore");
    (state.available, state.holders.len(), state.queue.len())
}

#[tokio::test(start_paused = true)]
async fn semaphore_grants_its_permits_and_no_more() {
    let world = World::new().await;
    let (client, network) = caller(&world, "ann");
    let semaphore = client.semaphore("Pool", 3);
    let one = granted(&semaphore, 1).await;
    let two = granted(&semaphore, 2).await;
    assert_eq!((one.permits(), two.permits(), two.capacity()), (1, 2, 3));
    assert!(two.fencing_token() > one.fencing_token() && one.valid() && one.remaining() > LEASE / 2);
    assert_eq!(network.take_log(), ["/v1/semaphore/acquire"; 2]);
    assert!(try_granted(&semaphore).await.is_none());
    two.release().await.expect("held");
    assert_eq!(state(&semaphore).await, (2, 1, 0));
    drop(try_granted(&semaphore).await.expect("free again"));
    sleep(SECOND).await;
    assert_eq!(state(&semaphore).await, (2, 1, 0), "a drop gives back, and the other guard of this client stays");
}

#[tokio::test(start_paused = true)]
async fn guard_of_permits_outlives_its_lease_by_heartbeats() {
    let world = World::new().await;
    let (client, network) = caller(&world, "ann");
    let guard = granted(&client.semaphore("Pool", 1), 1).await;
    sleep(LEASE * 5).await;
    assert!(guard.valid());
    network.cut();
    let loss = guard.lost().await.expect("an outage");
    assert_eq!(loss.reason, LossReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn waiter_has_a_permit_when_one_is_released() {
    let world = World::new().await;
    let service = world.transport();
    let holder = granted(&Client::new(service.clone()).semaphore("Pool", 1), 1).await;
    // A wake-up comes from the writes of the same service.
    let network = Network::new(service);
    let semaphore = Client::new(network.clone()).semaphore("Pool", 1);
    let waiting = tokio::spawn(async move { (granted(&semaphore, forever()).await, Instant::now()) });
    sleep(SECOND * 90).await;
    let released = Instant::now();
    holder.release().await.expect("held");
    let (guard, at) = waiting.await.expect("no panic");
    assert_eq!((at - released, guard.outcome()), (Duration::ZERO, Some(AcquireOutcome::Reacquired)));
    let log = network.take_log();
    let count = |path: &str| log.iter().filter(|called| *called == path).count();
    assert_eq!((count("/v1/semaphore/acquire"), count("/v1/semaphore/enqueue")), (2, 3), "{log:?}");
    assert!(count("/v1/watch") >= 4, "{log:?}");
    assert_eq!(count("/v1/semaphore"), 0, "the ticket is watched: {log:?}");
}

#[tokio::test(start_paused = true)]
async fn waiter_polls_where_permits_cannot_be_watched() {
    let world = World::new().await;
    let holder = granted(&world.client("holder").semaphore("Pool", 1), 1).await;
    let (client, network) = caller(&world, "waiter");
    network.set(|path| match path {
        "/v1/watch" => Fate::Gateway(404, None, r#"{"message":"Not Found"}"#),
        _ => Fate::Delivered,
    });
    let semaphore = client.semaphore("Pool", 1);
    let waiting = tokio::spawn(async move { granted(&semaphore, forever()).await });
    sleep(SECOND * 30).await;
    let released = Instant::now();
    holder.release().await.expect("held");
    drop(waiting.await.expect("no panic"));
    assert!(released.elapsed() < SECOND * 2, "a poll: {:?}", released.elapsed());
    let log = network.take_log();
    let count = |path: &str| log.iter().filter(|called| *called == path).count();
    assert_eq!((count("/v1/watch"), count("/v1/semaphore/acquire")), (1, 2), "it reads, and asks once: {log:?}");
    assert!(count("/v1/semaphore") > 20, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn dead_holder_is_passed_one_lease_after_first_sight() {
    let world = World::new().await;
    let dying = world.client("dead").semaphore("Pool", 3);
    granted(&dying, PermitRequest::new().permits(2).heartbeats(Heartbeats::Manual)).await.detach();
    let _alive = granted(&world.client("alive").semaphore("Pool", 3), 1).await;
    sleep(LEASE * 2).await;
    let semaphore = world.client("heir").semaphore("Pool", 3);
    let began = Instant::now();
    let guard = granted(&semaphore, 2).await;
    let waited = began.elapsed();
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
    assert!(waited >= STALE && waited < STALE + SECOND, "{waited:?}");
    assert_eq!(state(&semaphore).await, (0, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn permits_left_by_the_dead_are_granted_by_the_next_request() {
    let world = World::new().await;
    let dying = PermitRequest::new().permits(2).heartbeats(Heartbeats::Manual);
    granted(&world.client("dead").semaphore("Pool", 2), dying).await.detach();
    let semaphore = world.client("heir").semaphore("Pool", 2);
    assert!(try_granted(&semaphore).await.is_none());
    sleep(STALE).await;
    let one = try_granted(&semaphore).await.expect("the holder is dead");
    let two = try_granted(&semaphore).await.expect("the dead holder had two");
    assert_eq!((one.outcome(), two.outcome()), (Some(AcquireOutcome::TakenOver), Some(AcquireOutcome::Reacquired)));
}

#[tokio::test(start_paused = true)]
async fn asking_once_passes_a_holder_that_was_seen_for_its_lease() {
    let world = World::new().await;
    granted(&world.client("dead").semaphore("Pool", 1), PermitRequest::new().heartbeats(Heartbeats::Manual))
        .await
        .detach();
    let (client, network) = caller(&world, "heir");
    let semaphore = client.semaphore("Pool", 1);
    assert!(try_granted(&semaphore).await.is_none());
    sleep(STALE - SECOND).await;
    assert!(try_granted(&semaphore).await.is_none(), "a second too early");
    sleep(SECOND).await;
    assert!(try_granted(&semaphore).await.is_some());
    assert_eq!(network.take_log(), ["/v1/semaphore/acquire"; 3], "never in the queue");
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_the_order_of_the_queue() {
    let world = World::new().await;
    let service = world.transport();
    let holder = granted(&Client::new(service.clone()).fair_lock("Fair"), 1).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..8 {
        let (service, served) = (service.clone(), Arc::clone(&served));
        waiting.push(tokio::spawn(async move {
            let lock = Client::new(service).fair_lock("Fair");
            let guard = granted(&lock, forever()).await;
            served.lock().expect("not poisoned").push(number);
            sleep(SECOND).await;
            guard.release().await.expect("held");
        }));
        sleep(SECOND / 10).await;
    }
    holder.release().await.expect("held");
    for waiter in waiting {
        waiter.await.expect("no panic");
    }
    assert_eq!(*served.lock().expect("not poisoned"), (0..8).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn dead_waiter_is_passed_when_it_leaves_its_permits() {
    let world = World::new().await;
    let holder = granted(&world.client("holder").semaphore("Pool", 1), 1).await;
    for name in ["dead-1", "dead-2"] {
        let (client, network) = caller(&world, name);
        let semaphore = client.semaphore("Pool", 1);
        let waiting = tokio::spawn(async move { granted(&semaphore, forever()).await });
        sleep(SECOND).await;
        network.cut();
        waiting.abort();
    }
    let semaphore = world.client("heir").semaphore("Pool", 1);
    let heir = semaphore.clone();
    let waiting = tokio::spawn(async move { granted(&heir, forever()).await });
    sleep(SECOND).await;
    holder.release().await.expect("held");
    let released = Instant::now();
    let _guard = waiting.await.expect("no panic");
    let waited = released.elapsed();
    assert!(waited >= SECOND * 5 && waited < SECOND * 12, "a few seconds for both: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn waiter_enters_a_full_queue_when_its_tickets_are_dead() {
    let world = World::new().await;
    // The first has the permit, and a hundred wait.
    for number in 0..=100 {
        let ticket = json!({
            "key": "Pool", "ownerName": "dead", "leaseId": number.to_string(), "capacity": 1, "leaseDurationMs": 10_000,
            "grantLeaseDurationMs": 10_000,
        });
        let request = Request::post("/v1/semaphore/enqueue").header("content-type", "application/json");
        let request = request.body(ticket.to_string().into_bytes()).expect("a request");
        assert_eq!(world.transport().send(request).await.expect("an answer").status(), 200);
    }
    let (client, network) = caller(&world, "heir");
    let mut requests = 0;
    network.set(move |_| {
        requests += 1;
        // A waiter without pauses does not come to its end.
        if requests > 100 { Fate::Gateway(403, None, "") } else { Fate::Delivered }
    });
    let began = Instant::now();
    let request = PermitRequest::new().wait(Wait::AtMost(SECOND * 60));
    let _guard = granted(&client.semaphore("Pool", 1), request).await;
    let waited = began.elapsed();
    assert!(waited >= SECOND * 10 && waited < SECOND * 12, "one lease for all of them, and a poll: {waited:?}");
    let log = network.take_log();
    let tries = log.iter().filter(|path| *path == "/v1/semaphore/enqueue").count();
    assert!((8..=13).contains(&tries), "one each second or so: {log:?}");
}

#[tokio::test(start_paused = true)]
async fn waiter_queues_anew_when_an_operator_removed_its_ticket() {
    let world = World::new().await;
    let holder = granted(&world.client("holder").semaphore("Pool", 1), 1).await;
    let operator = world.client("operator");
    let queue = async || {
        let view = operator.get_semaphore("Pool").await.expect("a row");
        view.semaphore.expect("a semaphore").queue
    };
    let semaphore = world.client("waiter").semaphore("Pool", 1);
    let waiting = tokio::spawn(async move { granted(&semaphore, forever()).await });
    sleep(SECOND).await;
    let ticket = queue().await.remove(0);
    operator.break_entry("Pool", ticket.ticket_id.clone(), ticket.version).await.expect("as seen");
    sleep(SECOND * 5).await;
    let tickets: Vec<_> = queue().await.into_iter().map(|ticket| ticket.ticket_id).collect();
    assert!(tickets.len() == 1 && tickets[0] != ticket.ticket_id, "{tickets:?}");
    holder.release().await.expect("held");
    assert!(waiting.await.expect("no panic").valid());
}

#[tokio::test(start_paused = true)]
async fn waiter_pauses_after_a_refusal_that_no_view_explains() {
    const REFUSED: &str = r#"{"type": "held", "status": 423, "title": "t", "detail": "d", "lock": {
        "key": "Pool", "state": "held", "ownerName": "", "recordVersionNumber": "v", "leaseDurationMs": 86400000,
        "kind": "semaphore", "capacity": 1, "available": 1, "changed": "c-1", "holders": [], "queue": []
    }}"#;
    let world = World::new().await;
    let (client, network) = caller(&world, "ann");
    let semaphore = client.semaphore("Pool", 1);
    let holder = granted(&world.client("holder").semaphore("Pool", 1), 1).await;
    let mut requests = 0;
    network.set(move |path| {
        requests += 1;
        match path {
            // A waiter without pauses does not come to its end.
            _ if requests > 100 => Fate::Gateway(403, None, ""),
            "/v1/semaphore/acquire" => Fate::Gateway(423, Some(1), REFUSED),
            _ => Fate::Delivered,
        }
    });
    let request = PermitRequest::new().wait(Wait::AtMost(SECOND * 10));
    let waiting = tokio::spawn(async move { semaphore.acquire(request).await });
    sleep(SECOND).await;
    holder.release().await.expect("held");
    assert!(matches!(waiting.await.expect("no panic").expect("reachable"), Acquisition::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_polls_reacts_to_each_failure_of_a_read() {
    const GONE: &str = r#"{"type": "not-found", "status": 404, "title": "t", "detail": "d"}"#;
    for (fate, again, refused) in [
        (Fate::Gateway(503, None, ""), 0, None),
        (Fate::Gateway(404, None, GONE), 1, None),
        (Fate::Gateway(403, None, ""), 0, Some(ErrorKind::Forbidden)),
    ] {
        let world = World::new().await;
        let holder = granted(&world.client("holder").semaphore("Pool", 1), 1).await;
        let (client, network) = caller(&world, "waiter");
        let (mut reads, failure) = (0, fate.clone());
        network.set(move |path| {
            reads += u32::from(path == "/v1/semaphore");
            if path == "/v1/semaphore" && reads == 3 { failure.clone() } else { Fate::Delivered }
        });
        let semaphore = client.semaphore("Pool", 1);
        let waiting = tokio::spawn(async move { semaphore.acquire(forever().poll_interval(SECOND)).await });
        sleep(SECOND * 10).await;
        let log = network.take_log();
        let count = |path: &str| log.iter().filter(|asked| *asked == path).count();
        holder.release().await.expect("held");
        let waited = timeout(SECOND * 10, waiting).await.expect("an end").expect("no panic");
        assert_eq!(waited.as_ref().err().map(|error| error.kind().clone()), refused, "{fate:?}");
        if refused.is_none() {
            assert_eq!(count("/v1/semaphore/enqueue"), 1 + again, "{fate:?}: {log:?}");
            assert_eq!(count("/v1/semaphore/release"), again, "{fate:?}: {log:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn permits_are_waited_for_under_a_sort_key() {
    let world = World::new().await;
    let schema = TableSchema { sort_key: Some("part".to_owned()), ..TableSchema::new("parts") };
    ensure_table(&world.dynamodb, &schema).await.expect("a new table");
    let table = LockTable::new(world.dynamodb.clone(), schema, Policy::default(), Clock::system());
    let service = InProcess::new(Service::new(table));
    let (holder, waiter) = (Client::new(service.clone()), Client::new(service));
    let first = granted(&holder.semaphore(("Pool", "a"), 1), 1).await;
    let _other = granted(&holder.semaphore(("Pool", "b"), 1), 1).await;
    let waiting = tokio::spawn(async move { granted(&waiter.semaphore(("Pool", "a"), 1), forever()).await });
    sleep(SECOND * 30).await;
    assert_eq!(state(&holder.semaphore(("Pool", "a"), 1)).await, (0, 1, 1));
    first.release().await.expect("held");
    assert!(waiting.await.expect("no panic").valid());
}

#[tokio::test(start_paused = true)]
async fn waiter_that_leaves_withdraws_its_ticket() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder").semaphore("Pool", 1), 1).await;
    let semaphore = world.client("waiter").semaphore("Pool", 1);
    assert!(timeout(SECOND * 5, semaphore.acquire(forever())).await.is_err(), "cancelled in the queue");
    sleep(SECOND).await;
    assert_eq!(state(&semaphore).await, (0, 1, 0));
    let began = Instant::now();
    let Acquisition::Held(held) =
        semaphore.acquire(PermitRequest::new().wait(Wait::AtMost(SECOND * 3))).await.expect("reachable")
    else {
        panic!("granted twice")
    };
    assert!(began.elapsed() >= SECOND * 3 && began.elapsed() < SECOND * 4, "{:?}", began.elapsed());
    assert_eq!(held.lock.semaphore.expect("a semaphore").holders[0].owner_name, "holder");
    sleep(SECOND).await;
    assert_eq!(state(&semaphore).await, (0, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn writer_is_alone_and_becomes_a_reader() {
    let world = World::new().await;
    let lock = world.client("ann").read_write_lock("Page");
    let reader = granted(&lock.read(), PermitRequest::new()).await;
    assert!(try_granted(&lock.write()).await.is_none());
    assert!(try_granted(&lock.read()).await.is_some());
    reader.release().await.expect("held");
    sleep(SECOND).await;
    let writer = try_granted(&lock.write()).await.expect("nobody reads");
    assert!(try_granted(&lock.read()).await.is_none());
    writer.downgrade().await.expect("held");
    assert_eq!((writer.permits(), writer.valid()), (1, true));
    assert!(try_granted(&lock.read()).await.is_some());
    let error = writer.keep(100).await.expect_err("there is no upgrade");
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error:?}");
    sleep(LEASE * 2).await;
    assert!(writer.valid(), "the heartbeats go on");
}

#[tokio::test(start_paused = true)]
async fn writer_passes_readers_who_come_and_go() {
    let world = World::new().await;
    let service = world.transport();
    let lock = Client::new(service.clone()).read_write_lock("Page");
    let first = granted(&lock.read(), PermitRequest::new()).await;
    let writing = lock.write();
    let writer = tokio::spawn(async move { granted(&writing, forever()).await });
    sleep(SECOND).await;
    assert!(try_granted(&lock.read()).await.is_none(), "a writer waits");
    first.release().await.expect("held");
    assert!(writer.await.expect("no panic").valid());
}

#[tokio::test(start_paused = true)]
async fn writer_passes_25_dead_readers_in_one_lease() {
    let world = World::new().await;
    let dying = world.client("dead").read_write_lock("Page");
    for _ in 0..25 {
        granted(&dying.read(), PermitRequest::new().heartbeats(Heartbeats::Manual)).await.detach();
    }
    let (client, network) = caller(&world, "writer");
    let began = Instant::now();
    let writer = client.read_write_lock("Page").write().acquire(forever()).await.expect("reachable");
    let writer = writer.granted().expect("the readers are dead");
    let waited = began.elapsed();
    assert!(waited >= STALE && waited < STALE + SECOND, "{waited:?}");
    assert_eq!((writer.permits(), writer.outcome()), (100, Some(AcquireOutcome::TakenOver)));
    let log = network.take_log();
    let last: Vec<_> = log.iter().rev().take(5).rev().map(String::as_str).collect();
    // Ten dead readers, ten more, and the last five by the request that is granted.
    let (enqueue, get) = ("/v1/semaphore/enqueue", "/v1/semaphore");
    assert_eq!(last, [enqueue, get, enqueue, get, "/v1/semaphore/acquire"], "{log:?}");
}

/// One of the readers that look dead comes back while the writer removes them.
#[tokio::test(start_paused = true)]
async fn writer_waits_for_a_reader_that_comes_back() {
    let world = World::new().await;
    let dying = world.client("dead").read_write_lock("Page");
    for _ in 0..24 {
        granted(&dying.read(), PermitRequest::new().heartbeats(Heartbeats::Manual)).await.detach();
    }
    let paused = granted(&dying.read(), PermitRequest::new().heartbeats(Heartbeats::Manual)).await;
    let (client, network) = caller(&world, "writer");
    let reader = Arc::new(Mutex::new(Some(paused)));
    let back = Arc::clone(&reader);
    let writing = tokio::spawn(async move { client.read_write_lock("Page").write().acquire(forever()).await });
    sleep(STALE - SECOND).await;
    let guard = back.lock().expect("not poisoned").take().expect("once");
    guard.renew().await.expect("nobody has taken its permit yet");
    sleep(LEASE - SECOND).await;
    assert!(guard.valid() && !writing.is_finished(), "{:?}", network.take_log());
    guard.release().await.expect("held");
    let writer = writing.await.expect("no panic").expect("reachable").granted().expect("all are dead or gone");
    assert_eq!(writer.permits(), 100);
}

#[tokio::test(start_paused = true)]
async fn row_of_a_larger_capacity_is_no_exclusive_lock() {
    let world = World::new().await;
    let client = world.client("ann");
    granted(&client.semaphore("Page", 200), 1).await.release().await.expect("held");
    for lock in [client.read_write_lock("Page").write(), client.fair_lock("Page")] {
        let error = lock.acquire(PermitRequest::new()).await.expect_err("100 of 200 exclude nobody");
        assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error:?}");
    }
    sleep(SECOND).await;
    assert_eq!(state(&client.semaphore("Page", 200)).await, (200, 0, 0), "given back");
}

#[tokio::test(start_paused = true)]
async fn refusals_of_semaphores_are_kinds_of_their_own() {
    let world = World::new().await;
    let client = world.client("ann");
    let kind = |error: leasehold_client::Error| error.kind().clone();
    let error = client.semaphore("Pool", 2).acquire(3).await.expect_err("too many");
    assert_eq!(kind(error), ErrorKind::ExceedsCapacity);
    let _permit = granted(&client.semaphore("Pool", 2), 1).await;
    assert_eq!(kind(client.acquire("Pool").await.expect_err("a semaphore")), ErrorKind::WrongKind);
    let _guard = super::granted(&client, "Moe").await;
    assert_eq!(kind(client.semaphore("Moe", 1).acquire(1).await.expect_err("a lock")), ErrorKind::WrongKind);
}

#[tokio::test(start_paused = true)]
async fn operator_breaks_a_holder_and_changes_the_capacity() {
    let world = World::new().await;
    let client = world.client("ann");
    let semaphore = client.semaphore("Pool", 1);
    let guard = granted(&semaphore, 1).await;
    let error = client.break_entry("Pool", guard.holder_id(), "another").await.expect_err("it moved");
    assert_eq!(error.kind(), &ErrorKind::VersionMismatch);
    client.break_entry("Pool", guard.holder_id(), guard.record_version_number()).await.expect("as seen");
    assert_eq!(guard.lost().await.expect("broken").reason, LossReason::Released);
    assert_eq!(client.set_capacity("Pool", 4, 1).await.expect("as seen"), 4);
    assert_eq!(client.set_capacity("Pool", 5, 1).await.expect_err("it is 4").kind(), &ErrorKind::VersionMismatch);
    assert_eq!(state(&semaphore).await, (4, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn permits_are_handed_to_another_process() {
    let world = World::new().await;
    let handover = granted(&world.client("ann").semaphore("Pool", 3), 2).await.detach();
    let semaphore = world.client("bob").semaphore("Pool", 3);
    let guard = semaphore.resume(handover).await.expect("held");
    assert_eq!((guard.permits(), guard.valid()), (2, true));
    sleep(LEASE * 3).await;
    guard.release().await.expect("held");
    assert_eq!(state(&semaphore).await, (3, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn permits_take_the_options_of_their_request() {
    let world = World::new().await;
    let holder = world.client("ann").semaphore("Pool", 3);
    let request = PermitRequest::new().permits(2).lease(SECOND * 10).owner_name("batch").data("41 rows");
    let guard = granted(&holder, request.heartbeats(Heartbeats::Manual)).await;
    assert!(guard.remaining() <= SECOND * 10, "{:?}", guard.remaining());
    let _binary = granted(&holder, PermitRequest::new().data([0, 255])).await;
    let views = holder.get().await.expect("a row").semaphore.expect("a semaphore").holders;
    assert_eq!((views[0].permits, views[0].lease_duration_ms, views[0].owner_name.as_str()), (2, 10_000, "batch"));
    assert_eq!((views[0].data.as_deref(), views[1].data_base64.as_deref()), (Some("41 rows"), Some("AP8=")));

    let resumed = world.client("bob").semaphore("Pool", 3);
    let guard = resumed.resume_with(PermitRequest::new().lease(SECOND * 30), guard.detach()).await.expect("held");
    assert!(guard.remaining() > SECOND * 29 && guard.remaining() <= SECOND * 30, "{:?}", guard.remaining());

    let (client, network) = caller(&world, "waiter");
    let told = Arc::new(Mutex::new(0));
    let telling = Arc::clone(&told);
    let request = PermitRequest::new().permits(3).wait(Wait::AtMost(SECOND * 3)).poll_interval(SECOND);
    let request = request.on_wait(move |_| *telling.lock().expect("not poisoned") += 1);
    let waiter = client.semaphore("Pool", 3);
    let waiting = tokio::spawn(async move { waiter.acquire(request).await.expect("reachable") });
    sleep(SECOND).await;
    let ticket = holder.get().await.expect("a row").semaphore.expect("a semaphore").queue.remove(0);
    assert_eq!((ticket.permits, ticket.lease_duration_ms), (3, 120_000));
    assert!(matches!(waiting.await.expect("no panic"), Acquisition::Held(_)));
    let log = network.take_log();
    assert!(log.len() > 4 && log.iter().all(|path| path != "/v1/watch"), "it polls: {log:?}");
    assert!(*told.lock().expect("not poisoned") >= 3, "after each view");
}

#[tokio::test(start_paused = true)]
async fn work_under_permits_gives_them_back_and_ends_at_a_loss() {
    let world = World::new().await;
    let client = world.client("ann");
    let semaphore = client.semaphore("Pool", 1);
    let done = semaphore.with_permits(1, async |guard| Ok::<_, leasehold_client::Error>(guard.permits())).await;
    assert_eq!(done.expect("held"), 1);
    assert_eq!(state(&semaphore).await, (1, 0, 0));
    let lost: Result<(), leasehold_client::Error> = semaphore
        .with_permits(1, async |guard| {
            client.break_entry("Pool", guard.holder_id(), guard.record_version_number()).await?;
            std::future::pending().await
        })
        .await;
    assert!(matches!(lost.expect_err("broken").kind(), ErrorKind::Lost(_)));
}

/// Whatever answer is lost, and however often: no permit twice, none leaked, no ticket left.
#[tokio::test(start_paused = true)]
async fn no_lost_answer_takes_or_leaks_a_permit() {
    for path in ["/v1/semaphore/acquire", "/v1/semaphore/enqueue", "/v1/semaphore/release", "/v1/semaphore/heartbeat"] {
        for losses in [1, 2, 5] {
            let world = World::new().await;
            let observer = world.client("observer").semaphore("Pool", 2);
            let other = granted(&world.client("other").semaphore("Pool", 2), 2).await;
            let (client, network) = caller(&world, "ann");
            let left = Arc::new(Mutex::new(losses));
            network.set(move |called| {
                let mut left = left.lock().expect("not poisoned");
                if called != path || *left == 0 {
                    return Fate::Delivered;
                }
                *left -= 1;
                Fate::AnswerLost
            });
            let semaphore = client.semaphore("Pool", 2);
            let waiting = tokio::spawn(async move { granted(&semaphore, forever()).await });
            sleep(SECOND * 50).await;
            other.release().await.expect("held");
            let guard = waiting.await.expect("no panic");
            assert_eq!(state(&observer).await, (1, 1, 0), "{path} {losses}");
            sleep(LEASE).await;
            assert!(guard.valid(), "{path} {losses}");
            guard.release().await.expect("held");
            assert_eq!(state(&observer).await, (2, 0, 0), "{path} {losses}");
        }
    }
}

/// A waiter that is dropped at any moment, whatever becomes of its requests, leaves no holder and no ticket that is
/// refreshed.
#[tokio::test(start_paused = true)]
async fn no_cancellation_leaks_a_permit_or_a_ticket() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let world = World::new().await;
        let other = granted(&world.client("other").semaphore("Pool", 1), 1).await;
        let (client, network) = caller(&world, "ann");
        let mut fates = rng.fork();
        network.set(move |_| match fates.u32(0..8) {
            0 => Fate::AnswerLost,
            1 => Fate::Slow(Duration::from_millis(fates.u64(0..4000))),
            2 => Fate::AnswerLate(Duration::from_millis(fates.u64(0..4000))),
            _ => Fate::Delivered,
        });
        let semaphore = client.semaphore("Pool", 1);
        let patience = Duration::from_millis(rng.u64(0..8000));
        let release_at = Duration::from_millis(rng.u64(0..8000));
        let releasing = tokio::spawn(async move {
            sleep(release_at).await;
            other.release().await.expect("held");
        });
        drop(timeout(patience, semaphore.acquire(forever())).await);
        releasing.await.expect("no panic");
        sleep(SECOND * 40).await;
        let observer = world.client("observer").semaphore("Pool", 1);
        assert_eq!(state(&observer).await, (1, 0, 0), "seed {seed}");
    }
}

/// Several clients under random failures: at no moment do guards believe in more permits than there are.
#[tokio::test(start_paused = true)]
async fn guards_never_believe_in_more_permits_than_there_are() {
    const CAPACITY: u64 = 3;
    let mut grants = 0;
    for seed in 0..3 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let world = World::new().await;
        let guards: Arc<Mutex<Vec<Arc<PermitGuard>>>> = Arc::default();
        let end = Instant::now() + SECOND * 600;
        let mut callers = Vec::new();
        for name in ["ann", "bob", "cyd", "dan", "eve"] {
            let (client, network) = caller(&world, name);
            let mut fates = rng.fork();
            network.set(move |_| match fates.u32(0..30) {
                0 => Fate::AnswerLost,
                1 => Fate::NotSent,
                2 => Fate::Overdue(Duration::from_millis(fates.u64(0..20_000))),
                3 => Fate::AnswerLate(Duration::from_millis(fates.u64(0..20_000))),
                4 => Fate::Slow(Duration::from_millis(fates.u64(0..20_000))),
                _ => Fate::Delivered,
            });
            let (guards, mut rng) = (Arc::clone(&guards), rng.fork());
            callers.push(tokio::spawn(async move {
                let mut grants = 0;
                while Instant::now() < end {
                    let request = PermitRequest::new().permits(rng.u64(1..=CAPACITY)).lease(SECOND * 10);
                    let semaphore = client.semaphore("Pool", CAPACITY);
                    if let Ok(Acquisition::Granted(guard)) =
                        semaphore.acquire(request.wait(Wait::AtMost(SECOND * 90))).await
                    {
                        grants += 1;
                        let guard = Arc::new(guard);
                        guards.lock().expect("not poisoned").push(Arc::clone(&guard));
                        sleep(Duration::from_millis(rng.u64(0..12_000))).await;
                        guards.lock().expect("not poisoned").retain(|other| !Arc::ptr_eq(other, &guard));
                        let guard = Arc::into_inner(guard).expect("nobody else has it");
                        match rng.u32(0..4) {
                            0 => drop(guard.detach()),
                            1 => drop(guard),
                            _ => drop(guard.release().await),
                        }
                    }
                    sleep(Duration::from_millis(rng.u64(0..3000))).await;
                }
                grants
            }));
        }
        while Instant::now() < end {
            let believed = guards
                .lock()
                .expect("not poisoned")
                .iter()
                .filter(|guard| guard.valid())
                .map(|guard| guard.permits())
                .sum::<u64>();
            assert!(believed <= CAPACITY, "seed {seed}: {believed}");
            sleep(SECOND / 4).await;
        }
        for caller in callers {
            grants += caller.await.expect("no panic");
        }
    }
    assert!(grants > 60, "too little happened: {grants}");
}

/// One acquisition of the test below.
#[derive(Debug)]
struct Hold {
    owner_name: String,
    permits: u64,
    token: u64,
    asked: Instant,
    granted: Instant,
    released: Instant,
}

/// An observer's notes of one waiter.
struct Queued {
    seen: Instant,
    /// The last change, the times of its first view and its last, and whether the waiter could take its permits.
    spans: Vec<(String, Instant, Instant, bool)>,
}

impl Queued {
    /// Whether the waiter left permits that it could take for the five seconds that end a moment before `end`, or
    /// later.
    fn left_permits(&self, start: Instant, end: Instant) -> bool {
        let is_left = |&(_, first, last, fits): &(String, Instant, Instant, bool)| {
            fits && last - first >= Duration::from_millis(4700) && last + SECOND / 5 >= start && first <= end
        };
        self.spans.iter().any(is_left)
    }
}

/// Several callers under random failures: whoever asks while a waiter's ticket is in the queue takes no permits that
/// the waiter needs, unless the waiter left them for five seconds. The failures are shorter than a ticket's lease, so
/// no waiter counts as dead. With an odd seed the callers are tasks of one client.
#[tokio::test(start_paused = true)]
async fn late_callers_never_overtake_a_ticket() {
    const CAPACITY: u64 = 3;
    let (mut waits, mut left, mut overtaken) = (0, 0, 0);
    for seed in 0..4 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let world = World::new().await;
        let end = Instant::now() + SECOND * 600;
        let mut callers = Vec::new();
        let shared = caller(&world, "all");
        for name in ["ann", "bob", "cyd", "dan", "eve"] {
            let (client, network) = if seed % 2 == 0 { caller(&world, name) } else { shared.clone() };
            let mut fates = rng.fork();
            network.set(move |_| match fates.u32(0..15) {
                0 => Fate::AnswerLost,
                1 => Fate::NotSent,
                2 => Fate::Overdue(Duration::from_millis(fates.u64(0..5000))),
                3 => Fate::AnswerLate(Duration::from_millis(fates.u64(0..5000))),
                4 => Fate::Slow(Duration::from_millis(fates.u64(0..5000))),
                _ => Fate::Delivered,
            });
            let mut rng = rng.fork();
            callers.push(tokio::spawn(async move {
                let mut grants = Vec::new();
                while Instant::now() < end {
                    let owner_name = format!("{name}-{}", rng.u64(..));
                    let patience = if rng.bool() { Wait::Forever } else { Wait::AtMost(SECOND * 15) };
                    let permits = rng.u64(1..=CAPACITY);
                    let request = PermitRequest::new().permits(permits).owner_name(&owner_name).wait(patience);
                    let asked = Instant::now();
                    if let Ok(Acquisition::Granted(guard)) = client.semaphore("Pool", CAPACITY).acquire(request).await {
                        let (token, granted) = (guard.fencing_token(), Instant::now());
                        sleep(Duration::from_millis(rng.u64(0..6000))).await;
                        grants.push(Hold { owner_name, permits, token, asked, granted, released: Instant::now() });
                        drop(guard.release().await);
                    }
                    sleep(Duration::from_millis(rng.u64(0..3000))).await;
                }
                grants
            }));
        }
        let observer = world.client("observer").semaphore("Pool", CAPACITY);
        let mut queued: HashMap<String, Queued> = HashMap::new();
        // The last of them wait past the end.
        while callers.iter().any(|caller| !caller.is_finished()) {
            let row = observer.get().await.ok().and_then(|row| row.semaphore);
            let now = Instant::now();
            if let Some(row) = &row {
                for ticket in &row.queue {
                    let new = || Queued { seen: now, spans: Vec::new() };
                    let spans = &mut queued.entry(ticket.owner_name.clone()).or_insert_with(new).spans;
                    match spans.last_mut() {
                        Some((changed, _, last, _)) if *changed == row.changed => *last = now,
                        _ => spans.push((row.changed.clone(), now, now, row.available >= ticket.permits)),
                    }
                }
            }
            sleep(SECOND / 10).await;
        }
        let mut grants = Vec::new();
        for caller in callers {
            grants.extend(caller.await.expect("no panic"));
        }
        for waiter in &grants {
            let Some(ticket) = queued.get(&waiter.owner_name) else { continue };
            waits += 1;
            for late in grants.iter().filter(|late| late.asked > ticket.seen && late.token < waiter.token) {
                let held_on = |other: &&Hold| other.token < late.token && other.released > late.granted;
                let taken: u64 = grants.iter().filter(held_on).map(|other| other.permits).sum();
                let fits = taken + late.permits + waiter.permits <= CAPACITY;
                let is_left = ticket.left_permits(late.asked, late.granted);
                left += u32::from(is_left);
                overtaken += u32::from(!fits && !is_left);
            }
        }
    }
    assert!(waits > 100, "too few waited: {waits}");
    assert!(left * 6 < waits, "too many were passed: {left} of {waits}");
    assert_eq!(overtaken, 0, "of {waits}");
}

/// The grant's answer is lost, its repeat is not sent, and the ticket is due for its refresh. The waiter asks until it
/// has an answer: a refresh under the next number would be refused, since the permits are held.
#[tokio::test(start_paused = true)]
async fn waiter_repeats_its_ask_before_its_refresh() {
    let world = World::new().await;
    let other = granted(&world.client("other").semaphore("Pool", 1), 1).await;
    let (client, network) = caller(&world, "ann");
    let mut asks = 0;
    network.set(move |path| {
        let is_ask = path == "/v1/semaphore/acquire";
        asks += u32::from(is_ask);
        match asks {
            2 if is_ask => Fate::Overdue(Duration::from_millis(1)),
            3 if is_ask => Fate::NotSent,
            _ => Fate::Delivered,
        }
    });
    let semaphore = client.semaphore("Pool", 1);
    let waiting = tokio::spawn(async move { granted(&semaphore, forever()).await });
    sleep(SECOND * 36).await;
    other.release().await.expect("held");
    let guard = timeout(LEASE, waiting).await.expect("no loop").expect("no panic");
    let log = network.take_log();
    assert_eq!(log.iter().filter(|path| *path == "/v1/semaphore/enqueue").count(), 1, "{log:?}");
    guard.release().await.expect("held");
}

/// A waiter whose ticket was taken for dead has a new one at the end of the queue. Its last view, in which nobody who
/// is alive is ahead, does not count.
#[tokio::test(start_paused = true)]
async fn waiter_returns_to_the_end_of_the_queue() {
    let world = World::new().await;
    let holder = granted(&world.client("holder").semaphore("Pool", 2), 1).await;
    let wait = |client: &Client, permits| {
        let semaphore = client.semaphore("Pool", 2);
        tokio::spawn(async move { granted(&semaphore, forever().permits(permits)).await })
    };
    let zoe = wait(&world.client("zoe"), 2);
    sleep(SECOND).await;
    let (client, network) = caller(&world, "ann");
    let ann = wait(&client, 1);
    sleep(SECOND).await;
    network.cut();
    zoe.abort();
    // Ann's ticket is taken for dead, and removed by a caller without a ticket.
    let dan = world.client("dan").semaphore("Pool", 2);
    assert!(try_granted(&dan).await.is_none(), "ann is ahead");
    sleep(TICKET_STALE).await;
    let dan = try_granted(&dan).await.expect("one of two is free, and nobody alive waits");
    let bob = wait(&world.client("bob"), 2);
    sleep(SECOND).await;
    holder.release().await.expect("held");
    network.mend();
    sleep(LEASE * 2).await;
    assert!(!ann.is_finished() && !bob.is_finished(), "bob is ahead of ann, and needs both permits");
    dan.release().await.expect("held");
    bob.await.expect("no panic").release().await.expect("held");
    ann.await.expect("no panic").release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn loss_of_permits_speaks_of_permits() {
    let world = World::new().await;
    let (client, network) = caller(&world, "ann");
    let semaphore = client.semaphore("Pool", 1);
    let guard = granted(&semaphore, 1).await;
    let view = semaphore.get().await.expect("there is one").semaphore.expect("a semaphore");
    let (id, version) = (view.holders[0].holder_id.clone(), view.holders[0].version.clone());
    client.break_entry("Pool", id, version).await.expect("as seen");
    let loss = guard.lost().await.expect("lost");
    assert_eq!(loss.how(), "the permits were released elsewhere, or broken by an operator");

    // Taken over: the view that comes with the loss names the semaphore, which took nothing.
    let guard = granted(&semaphore, forever().hold_on_unavailable()).await;
    network.cut();
    let other = world.client("bob").semaphore("Pool", 1);
    let _bob = granted(&other, forever()).await;
    assert!(guard.valid(), "an outage is sat out");
    network.mend();
    let loss = guard.lost().await.expect("bob has it");
    assert_eq!(loss.to_string(), r#""Pool" is lost: the permits were taken over"#);
}
