//! Several locks at once, and jobs that run once an occurrence: K6.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_client::wire::Lock;
use leasehold_client::{
    Acquisition, AllGuard, AllRequest, Client, Error, ErrorKind, Heartbeats, LockRequest, LossReason, Once, Release,
    Released, Wait,
};
use leasehold_tests::World;
use tokio::time::{Instant, sleep};

use super::{Fate, LEASE, Network, SECOND, granted};

fn both() -> AllRequest {
    AllRequest::new(["a", "b"]).wait(Wait::Forever)
}

async fn all(client: &Client, request: impl Into<AllRequest>) -> AllGuard {
    client.acquire_all(request).await.expect("reachable").granted().expect("free")
}

async fn is_free(client: &Client, key: &str) -> bool {
    match client.try_acquire(key).await.expect("reachable") {
        Acquisition::Granted(guard) => guard.release().await.is_ok(),
        Acquisition::Held(_) => false,
    }
}

#[tokio::test(start_paused = true)]
async fn locks_are_granted_together_and_kept_and_released() {
    let world = World::new().await;
    let client = world.client("ann");
    let guard = all(&client, both()).await;
    sleep(LEASE * 5).await;
    assert!(guard.valid() && guard.remaining() > LEASE / 2);
    let other = world.client("bob");
    assert!(!is_free(&other, "a").await && !is_free(&other, "b").await);
    let token = guard.fencing_token();
    guard.release().await.expect("held");
    assert!(is_free(&other, "a").await && is_free(&other, "b").await);

    let guard = all(&client, both().lease(SECOND * 60)).await;
    assert!(guard.fencing_token() > token && guard.remaining() > SECOND * 59);
    for key in ["a", "b"] {
        let row = other.get(key).await.expect("held");
        assert_eq!((row.fencing_token, row.lease_duration_ms), (Some(guard.fencing_token()), 60_000));
        let released = other.release(key, guard.lease_id(), Release::new()).await;
        assert_eq!(released.expect("possession is enough"), Released::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeat_renews_the_lease_of_each_lock() {
    let world = World::new().await;
    let guard = all(&world.client("ann"), both().heartbeats(Heartbeats::Manual)).await;
    sleep(LEASE / 2).await;
    guard.renew().await.expect("held");
    assert!(guard.remaining() > LEASE * 3 / 4, "{:?}", guard.remaining());

    let operator = world.client("bob");
    let version = operator.get("b").await.expect("held").record_version_number;
    operator.break_lock("b", version).await.expect("as seen");
    let error = guard.renew().await.expect_err("b is broken");
    let ErrorKind::Lost(loss) = error.kind() else { panic!("{error:?}") };
    assert_eq!((loss.key.key.as_str(), loss.reason), ("b", LossReason::Released));
}

#[tokio::test(start_paused = true)]
async fn one_held_lock_refuses_all_and_is_named() {
    let world = World::new().await;
    let _b = granted(&world.client("bob"), "b").await;
    let client = world.client("ann");
    let request = both().wait(Wait::AtMost(Duration::ZERO));
    let error = client.acquire_all(request).await.expect("reachable").granted().expect_err("b is held");
    let ErrorKind::SomeHeld(locks) = error.kind() else { panic!("{error:?}") };
    assert_eq!(locks.iter().map(|lock| lock.key.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(is_free(&client, "a").await);
}

#[tokio::test(start_paused = true)]
async fn waiter_for_all_watches_and_asks_when_they_are_free() {
    let world = World::new().await;
    let service = world.transport();
    let holder = granted(&Client::new(service.clone()), "b").await;
    let network = Network::new(service);
    let client = Client::new(network.clone());
    let waiting = tokio::spawn(async move { (all(&client, both()).await, Instant::now()) });
    sleep(SECOND * 90).await;
    let released = Instant::now();
    holder.release().await.expect("held");
    let (guard, at) = waiting.await.expect("no panic");
    assert_eq!((at - released, guard.valid()), (Duration::ZERO, true));
    let log = network.take_log();
    assert_eq!(log.iter().filter(|path| *path == "/v1/acquire-all").count(), 2, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn dead_holder_of_one_lock_is_taken_over() {
    let world = World::new().await;
    granted(&world.client("dead"), LockRequest::new("a").heartbeats(Heartbeats::Manual)).await.detach();
    let began = Instant::now();
    let _guard = all(&world.client("heir"), both()).await;
    let waited = began.elapsed();
    assert!(waited >= LEASE && waited < LEASE + SECOND * 2, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn loss_of_one_lock_loses_all_and_gives_the_rest_back() {
    let world = World::new().await;
    let client = world.client("ann");
    let guard = all(&client, both()).await;
    let operator = world.client("operator");
    let seen: Lock = operator.get("a").await.expect("held");
    operator.break_lock("a", seen.record_version_number).await.expect("as seen");
    let loss = guard.lost().await.expect("broken");
    assert_eq!((loss.key.key.as_str(), loss.reason), ("a", LossReason::Released));
    assert_eq!(guard.loss(), Some(loss));
    sleep(SECOND).await;
    assert!(!guard.valid());
    assert!(is_free(&operator, "b").await);
}

#[tokio::test(start_paused = true)]
async fn opposite_orders_do_not_wait_for_each_other() {
    let world = World::new().await;
    let service = world.transport();
    let mut callers = Vec::new();
    for keys in [["a", "b"], ["b", "a"]] {
        let client = Client::new(service.clone());
        callers.push(tokio::spawn(async move {
            for _ in 0..10 {
                let guard = all(&client, AllRequest::new(keys).wait(Wait::Forever)).await;
                sleep(SECOND / 10).await;
                guard.release().await.expect("held");
                sleep(SECOND / 10).await;
            }
        }));
    }
    let began = Instant::now();
    for caller in callers {
        caller.await.expect("no panic");
    }
    assert!(began.elapsed() < LEASE, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lost_answer_of_acquire_all_is_no_half_grant() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let mut losses = 2;
    network.set(move |path| {
        if path == "/v1/acquire-all" && losses > 0 {
            losses -= 1;
            return Fate::AnswerLost;
        }
        Fate::Delivered
    });
    let guard = all(&Client::new(network), both()).await;
    sleep(LEASE * 2).await;
    assert!(guard.valid());
}

#[tokio::test(start_paused = true)]
async fn locks_that_are_granted_too_late_are_asked_for_again() {
    let lease = Duration::from_millis(100);
    for late in [lease, lease * 3 / 2] {
        let world = World::new().await;
        let network = Network::new(world.transport());
        network.set_first(Fate::AnswerLate(late));
        let guard = all(&Client::new(network), both().lease(lease)).await;
        assert!(guard.valid(), "{late:?}");
    }
}

/// The first request is carried out without an answer. Before the second one an operator breaks a lock of the two.
#[tokio::test(start_paused = true)]
async fn locks_are_granted_when_an_operator_ended_the_lease_id() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set_first(Fate::AnswerLost);
    let client = Client::new(network);
    let waiting = tokio::spawn(async move { all(&client, both()).await });
    let operator = world.client("operator");
    let seen = loop {
        tokio::task::yield_now().await;
        if let Ok(lock) = operator.get("a").await {
            break lock;
        }
    };
    operator.break_lock("a", seen.record_version_number).await.expect("as seen");
    let began = Instant::now();
    let guard = waiting.await.expect("no panic");
    assert!(guard.valid() && began.elapsed() < LEASE, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiter_for_all_with_an_interval_of_its_own_polls() {
    let world = World::new().await;
    let _b = granted(&world.client("bob"), "b").await;
    let network = Network::new(world.transport());
    let waits = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&waits);
    let request = both().poll_interval(SECOND).wait(Wait::AtMost(SECOND * 3)).on_wait(move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
    });
    let refused = Client::new(network.clone()).acquire_all(request).await.expect("reachable");
    assert!(matches!(refused, Acquisition::Held(_)));
    assert_eq!(network.take_log(), ["/v1/acquire-all"; 4], "three polls, and the last look");
    assert_eq!(waits.load(Ordering::SeqCst), 3, "the last answer ends the wait");
}

#[tokio::test(start_paused = true)]
async fn each_outage_of_several_locks_is_warned_of_once() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let warnings = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&warnings);
    let request = both().at_risk(SECOND * 6, move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
    });
    let guard = all(&Client::new(network.clone()), request).await;
    for outages in 1..=2 {
        network.cut();
        sleep(guard.remaining() - SECOND * 3).await;
        network.mend();
        sleep(LEASE * 2).await;
        assert_eq!((guard.valid(), warnings.load(Ordering::SeqCst)), (true, outages));
    }
}

/// A lock, and two of three permits.
fn mixed() -> AllRequest {
    AllRequest::new(["a"]).permits("pool", 2, 3).wait(Wait::Forever)
}

async fn free_permits(client: &Client) -> u64 {
    client.get_semaphore("pool").await.expect("a semaphore").semaphore.expect("a semaphore").available
}

#[tokio::test(start_paused = true)]
async fn lock_and_permits_are_kept_and_released_together() {
    let world = World::new().await;
    let client = world.client("ann");
    let guard = all(&client, mixed()).await;
    assert_eq!(guard.keys().map(|key| key.key.as_str()).collect::<Vec<_>>(), ["a", "pool"]);
    assert_eq!(guard.permits().map(|(key, permits)| (key.key.as_str(), permits)).collect::<Vec<_>>(), [("pool", 2)]);
    sleep(LEASE * 5).await;
    assert!(guard.valid() && guard.remaining() > LEASE / 2);
    let other = world.client("bob");
    assert!(!is_free(&other, "a").await);
    let view = client.get_semaphore("pool").await.expect("a semaphore").semaphore.expect("a semaphore");
    assert_eq!((view.available, view.holders[0].fencing_token), (1, guard.fencing_token()));
    let others = other.semaphore("pool", 3).try_acquire(1).await.expect("reachable").granted().expect("one is free");
    assert!(others.fencing_token() > guard.fencing_token());
    guard.release().await.expect("held");
    assert!(is_free(&other, "a").await);
    assert_eq!(free_permits(&other).await, 2);
}

#[tokio::test(start_paused = true)]
async fn permits_that_are_missing_refuse_all_and_are_named() {
    let world = World::new().await;
    let other = world.client("bob");
    let _held = other.semaphore("pool", 3).try_acquire(2).await.expect("reachable").granted().expect("free");
    let request = mixed().wait(Wait::AtMost(Duration::ZERO));
    let error = world.client("ann").acquire_all(request).await.expect("reachable").granted().expect_err("two are held");
    let ErrorKind::SomeHeld(locks) = error.kind() else { panic!("{error:?}") };
    let state = locks[0].semaphore.as_ref().expect("a semaphore");
    assert_eq!((locks.len(), locks[0].key.as_str(), state.available), (1, "pool", 1));
    assert!(is_free(&other, "a").await);
    let beyond = AllRequest::new(["a"]).permits("pool", 4, 9);
    let error = world.client("ann").acquire_all(beyond).await.expect_err("there are three");
    assert_eq!(error.kind(), &ErrorKind::ExceedsCapacity);
    assert!(error.to_string().contains("\"pool\""), "{error}");
}

#[tokio::test(start_paused = true)]
async fn waiter_for_permits_watches_and_asks_when_they_are_back() {
    let world = World::new().await;
    let service = world.transport();
    let holder = Client::new(service.clone()).semaphore("pool", 3).try_acquire(2).await.expect("reachable");
    let holder = holder.granted().expect("free");
    let network = Network::new(service);
    let client = Client::new(network.clone());
    let waiting = tokio::spawn(async move { (all(&client, mixed()).await, Instant::now()) });
    sleep(SECOND * 90).await;
    let released = Instant::now();
    holder.release().await.expect("held");
    let (guard, at) = waiting.await.expect("no panic");
    assert_eq!((at - released, guard.valid()), (Duration::ZERO, true));
    let log = network.take_log();
    assert_eq!(log.iter().filter(|path| *path == "/v1/acquire-all").count(), 2, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn request_for_several_waits_behind_the_queue() {
    let world = World::new().await;
    let other = world.client("bob");
    let first = other.semaphore("pool", 3).try_acquire(3).await.expect("reachable").granted().expect("free");
    let fair = tokio::spawn(async move { granted_permits(&other).await });
    sleep(SECOND).await;
    let client = world.client("ann");
    let waiting = tokio::spawn(async move { all(&client, mixed()).await });
    sleep(SECOND).await;
    first.release().await.expect("held");
    let second = fair.await.expect("no panic");
    sleep(SECOND).await;
    assert!(!waiting.is_finished(), "it was in the queue before");
    second.release().await.expect("held");
    assert!(waiting.await.expect("no panic").valid());
}

/// All permits, in the queue.
async fn granted_permits(client: &Client) -> leasehold_client::PermitGuard {
    let request = leasehold_client::PermitRequest::new().permits(3).wait(Wait::Forever);
    client.semaphore("pool", 3).acquire(request).await.expect("reachable").granted().expect("it waits for ever")
}

#[tokio::test(start_paused = true)]
async fn permits_of_a_dead_holder_make_way_for_several() {
    let world = World::new().await;
    let request = leasehold_client::PermitRequest::new().permits(2).lease(LEASE).heartbeats(Heartbeats::Manual);
    let dead = world.client("dead").semaphore("pool", 3).try_acquire(request).await.expect("reachable");
    dead.granted().expect("free").detach();
    let began = Instant::now();
    let _guard = all(&world.client("heir"), mixed()).await;
    let waited = began.elapsed();
    assert!(waited >= LEASE && waited < LEASE + SECOND * 2, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn loss_of_permits_loses_the_lock_beside_them() {
    let world = World::new().await;
    let guard = all(&world.client("ann"), mixed()).await;
    let operator = world.client("operator");
    let view = operator.get_semaphore("pool").await.expect("held").semaphore.expect("a semaphore");
    let holder = &view.holders[0];
    operator.break_entry("pool", &holder.holder_id, &holder.version).await.expect("as seen");
    let loss = guard.lost().await.expect("broken");
    assert_eq!((loss.key.key.as_str(), loss.reason), ("pool", LossReason::Released));
    sleep(SECOND).await;
    assert!(!guard.valid() && is_free(&operator, "a").await);

    let guard = all(&world.client("ann"), mixed()).await;
    let seen: Lock = operator.get("a").await.expect("held");
    operator.break_lock("a", seen.record_version_number).await.expect("as seen");
    assert_eq!(guard.lost().await.expect("broken").key.key, "a");
    sleep(SECOND).await;
    assert_eq!(free_permits(&operator).await, 3, "the permits are back");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_about_permits_leave_nothing_behind() {
    for is_sent in [true, false] {
        let world = World::new().await;
        let network = Network::new(world.transport());
        let mut losses = 2;
        network.set(move |path| {
            if path == "/v1/acquire-all" && losses > 0 {
                losses -= 1;
                return if is_sent { Fate::AnswerLost } else { Fate::NotSent };
            }
            Fate::Delivered
        });
        let guard = all(&Client::new(network), mixed()).await;
        let other = world.client("bob");
        assert_eq!(free_permits(&other).await, 1, "no permit is taken twice");
        guard.release().await.expect("held");
        assert_eq!(free_permits(&other).await, 3);
    }
    // A caller that leaves before the answer gives everything back.
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set_first(Fate::AnswerLost);
    let client = Client::new(network);
    let leaving = tokio::time::timeout(SECOND / 2, client.acquire_all(mixed())).await;
    assert!(leaving.is_err() || leaving.is_ok_and(|result| result.is_ok()));
    sleep(LEASE * 2).await;
    let other = world.client("bob");
    assert!(is_free(&other, "a").await);
    assert_eq!(free_permits(&other).await, 3);
}

#[tokio::test(start_paused = true)]
async fn job_runs_once_an_occurrence_and_tells_its_result() {
    let world = World::new().await;
    let run = async |name: &str, occurrence: &str| {
        let body = async |_| Ok::<_, Error>(Some(b"41 rows".to_vec()));
        world.client(name).once("nightly", occurrence, body).await.expect("reachable")
    };
    let ran = Once::Ran(Some(b"41 rows".to_vec()));
    assert_eq!(run("ann", "2026-11-21T02").await, ran);
    for late in ["2026-11-21T02", "2026-11-21T01"] {
        let Once::AlreadyDone(lock) = run("bob", late).await else { panic!("{late} ran twice") };
        assert_eq!(lock.data.as_deref(), Some("41 rows"));
    }
    assert_eq!(run("bob", "2026-11-21T03").await, ran);
}

#[tokio::test(start_paused = true)]
async fn job_that_fails_is_tried_again_unless_at_most_once() {
    for (at_most_once, expected) in [(false, true), (true, false)] {
        let world = World::new().await;
        let client = world.client("ann");
        let request = || {
            let request = LockRequest::new("nightly");
            if at_most_once { request.at_most_once() } else { request }
        };
        let failure = async |_| Err(client.get("nothing").await.expect_err("not there"));
        let error = client.once(request(), "1", failure).await.expect_err("the error of the body");
        assert_eq!(error.kind(), &ErrorKind::NotFound);
        sleep(SECOND).await;
        let again = client.once(request(), "1", async |_| Ok::<_, Error>(None)).await.expect("reachable");
        assert_eq!(again == Once::Ran(None), expected, "{again:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn job_runs_once_in_each_period() {
    let world = World::new().await;
    let body = |text: &str| {
        let text = text.to_owned();
        async move |_| Ok::<_, Error>(Some(text.into_bytes()))
    };
    // The period of all that happens here has no end before the year 2069.
    let century = Duration::from_hours(24 * 36_525);
    let ran = world.client("ann").once_every("report", century, body("the report")).await.expect("reachable");
    assert_eq!(ran, Once::Ran(Some(b"the report".to_vec())));
    let again = world.client("bob").once_every("report", century, body("another")).await.expect("reachable");
    let Once::AlreadyDone(lock) = again else { panic!("{again:?}") };
    assert_eq!(lock.data.as_deref(), Some("the report"));
    assert_eq!(lock.last_occurrence.as_deref(), Some("1970-01-01T00:00:00.000Z"), "as the other languages write it");
    // The present hour begins later than the century.
    let next = world.client("bob").once_every("report", SECOND * 3600, body("the next")).await.expect("reachable");
    assert_eq!(next, Once::Ran(Some(b"the next".to_vec())));
}

#[tokio::test(start_paused = true)]
async fn job_of_a_period_does_not_wait_unless_it_is_told_to() {
    let world = World::new().await;
    let client = world.client("ann");
    let day = SECOND * 86_400;
    let failure = async |_| Err(client.get("nothing").await.expect_err("not there"));
    let error = client.once_every("report", day, failure).await.expect_err("the error of the body");
    assert_eq!(error.kind(), &ErrorKind::NotFound);
    let holder = granted(&client, "report").await;
    let other = world.client("bob");
    let began = tokio::time::Instant::now();
    let refused = other.once_every("report", day, async |_| Ok::<_, Error>(None)).await.expect("reachable");
    let Once::Held(held) = refused else { panic!("{refused:?}") };
    assert_eq!((held.lock.owner_name.as_str(), began.elapsed() < SECOND), ("ann", true));
    let request = LockRequest::new("report").wait(Wait::Forever);
    let (waited, ()) = tokio::join!(other.once_every(request, day, async |_| Ok::<_, Error>(None)), async {
        sleep(SECOND * 5).await;
        holder.release().await.expect("held");
    });
    assert_eq!(waited.expect("reachable"), Once::Ran(None), "a run that failed may be run again");
    let short = other.once_every("report", SECOND / 2, async |_| Ok::<_, Error>(None)).await.expect_err("no period");
    assert_eq!(short.kind(), &ErrorKind::InvalidRequest { field: Some("period".to_owned()) });
}

#[tokio::test(start_paused = true)]
async fn several_locks_take_the_options_of_one() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::builder().owner_name("ann").build(network.clone());
    let warnings = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&warnings);
    let warn = move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
    };
    let request = both().lock_delay(SECOND * 5).at_risk(SECOND * 4, warn).hold_on_unavailable();
    let guard = all(&client, request).await;
    assert_eq!(guard.owner_name(), Some("ann"));
    sleep(LEASE * 3).await;
    assert!(guard.valid() && guard.remaining() <= LEASE - SECOND * 5, "{:?}", guard.remaining());
    assert_eq!(warnings.load(Ordering::SeqCst), 0);
    network.cut();
    sleep(LEASE * 2).await;
    assert!(guard.valid(), "an outage is sat out");
    assert_eq!(warnings.load(Ordering::SeqCst), 1, "one warning for all locks");

    let waits = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&waits);
    let waiting = both().wait(Wait::AtMost(SECOND * 3)).on_wait(move |waiting| {
        assert_eq!(waiting.lock.owner_name, "bob");
        counting.fetch_add(1, Ordering::SeqCst);
    });
    let other = world.client("bob");
    let _b = granted(&other, "b").await;
    network.mend();
    // The guard of both notices the loss of one, and releases the other.
    sleep(LEASE).await;
    assert!(!guard.valid());
    let refused = world.client("cat").acquire_all(waiting).await.expect("reachable");
    assert!(matches!(refused, Acquisition::Held(_)) && waits.load(Ordering::SeqCst) >= 3);
}
