//! The waiters of one client for one lock: one asks, and the others stand in line. C4.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_client::{Acquisition, Client, ErrorKind, Guard, Heartbeats, Held, LockRequest, Release, Wait};
use leasehold_tests::World;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{Fate, LEASE, Network, SECOND, granted};

/// The time of the work under a lock, and that in which the others get to their places.
const MOMENT: Duration = Duration::from_millis(10);

/// A waiter of its own task, who waits without an end.
async fn waiter(client: &Client) -> JoinHandle<Result<Guard, ErrorKind>> {
    waiter_with(client, LockRequest::new("Moe").wait(Wait::Forever)).await
}

async fn waiter_with(client: &Client, request: LockRequest) -> JoinHandle<Result<Guard, ErrorKind>> {
    let client = client.clone();
    let waiter = tokio::spawn(async move {
        let granted = client.acquire(request).await.and_then(Acquisition::<Guard>::granted);
        granted.map_err(|error| error.kind().clone())
    });
    sleep(MOMENT).await;
    waiter
}

async fn held(client: &Client, request: LockRequest) -> Held {
    match client.acquire(request).await.expect("reachable") {
        Acquisition::Held(held) => held,
        Acquisition::Granted(guard) => panic!("granted: {guard:?}"),
    }
}

fn counted(network: &Network) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for path in network.take_log() {
        *counts.entry(path).or_default() += 1;
    }
    counts
}

/// A client, and its network.
async fn one() -> (World, Network, Client) {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::builder().owner_name("one").build(network.clone());
    (world, network, client)
}

#[tokio::test(start_paused = true)]
async fn turn_of_a_herd_costs_an_acquire_and_a_release() {
    let (_world, network, client) = one().await;
    let inside = Arc::new(Mutex::new(0));
    let began = Instant::now();
    let work = async || {
        let guard = granted(&client, LockRequest::new("Moe").wait(Wait::Forever)).await;
        *inside.lock().expect("not poisoned") += 1;
        assert_eq!(*inside.lock().expect("not poisoned"), 1, "one at a time");
        sleep(MOMENT).await;
        *inside.lock().expect("not poisoned") -= 1;
        guard.release().await.expect("held");
    };
    join_all((0..50).map(|_| work())).await;
    let sent = [("/v1/acquire".to_owned(), 50), ("/v1/release".to_owned(), 50)];
    assert_eq!(counted(&network), BTreeMap::from(sent), "and less than 6 a turn");
    assert!(began.elapsed() < SECOND * 3, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiters_have_their_turns_in_the_order_of_their_coming() {
    let (_world, _network, client) = one().await;
    let first = granted(&client, "Moe").await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..5 {
        let (client, order) = (client.clone(), Arc::clone(&order));
        waiters.push(tokio::spawn(async move {
            let _guard = granted(&client, LockRequest::new("Moe").wait(Wait::Forever)).await;
            order.lock().expect("not poisoned").push(number);
        }));
        sleep(MOMENT).await;
    }
    first.release().await.expect("held");
    for waiter in waiters {
        waiter.await.expect("granted");
    }
    assert_eq!(*order.lock().expect("not poisoned"), [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn other_client_gets_its_turn_before_a_herd_is_done() {
    let (world, _network, herd) = one().await;
    let other = world.client("other");
    let order = Arc::new(Mutex::new(Vec::new()));
    let work = async |client: &Client, name: &'static str| {
        let guard = granted(client, LockRequest::new("Moe").wait(Wait::Forever)).await;
        order.lock().expect("not poisoned").push(name);
        sleep(SECOND / 3).await;
        guard.release().await.expect("held");
    };
    let others = async {
        sleep(MOMENT).await;
        work(&other, "other").await;
    };
    tokio::join!(join_all((0..12).map(|_| work(&herd, "herd"))), others);
    let order = order.lock().expect("not poisoned").clone();
    assert_ne!(order.last(), Some(&"other"), "a herd does not starve the others: {order:?}");
}

#[tokio::test(start_paused = true)]
async fn waiter_in_line_is_told_who_holds_the_lock_and_sends_nothing() {
    let (_world, network, client) = one().await;
    let guard = granted(&client, LockRequest::new("Moe").data("step 1").heartbeats(Heartbeats::Manual)).await;
    let told = Arc::new(Mutex::new(0));
    let telling = Arc::clone(&told);
    let request = LockRequest::new("Moe").wait(Wait::AtMost(SECOND * 5)).on_wait(move |waiting| {
        assert_eq!(waiting.lock.owner_name, "one");
        *telling.lock().expect("not poisoned") += 1;
    });
    let began = Instant::now();
    let Held { lock, observation } = held(&client, request).await;
    assert_eq!(began.elapsed(), SECOND * 5);
    assert_eq!((lock.owner_name.as_str(), lock.data.as_deref()), ("one", Some("step 1")));
    assert_eq!(lock.fencing_token, Some(guard.fencing_token()));
    assert_eq!((lock.record_version_number.as_str(), lock.key.as_str()), (observation.record_version_number(), "Moe"));
    assert_eq!(*told.lock().expect("not poisoned"), 5, "once a second");
    assert_eq!(network.take_log(), ["/v1/acquire"]);
}

#[tokio::test(start_paused = true)]
async fn waiter_in_line_is_told_of_the_holder_that_its_head_sees() {
    let (world, network, client) = one().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let _first = waiter(&client).await;
    network.take_log();
    let Held { lock, .. } = held(&client, LockRequest::new("Moe").wait(Wait::AtMost(SECOND * 3))).await;
    assert_eq!(lock.owner_name, "holder");
    assert_eq!(counted(&network).get("/v1/acquire"), None, "the first one asks");
}

#[tokio::test(start_paused = true)]
async fn wait_in_line_lasts_one_lease_from_the_sight_of_the_holder() {
    let (_world, _network, client) = one().await;
    let _guard = granted(&client, "Moe").await;
    let began = Instant::now();
    let _held = held(&client, LockRequest::new("Moe")).await;
    let waited = began.elapsed();
    assert!(waited > LEASE && waited < LEASE + SECOND * 3, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn request_without_a_wait_asks_at_once() {
    let (_world, network, client) = one().await;
    let _guard = granted(&client, "Moe").await;
    let _waiting = waiter(&client).await;
    network.take_log();
    let began = Instant::now();
    let _held = held(&client, LockRequest::new("Moe").wait(Wait::AtMost(Duration::ZERO))).await;
    client.try_acquire("Moe").await.expect("reachable").granted().expect_err("held");
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(network.take_log(), ["/v1/acquire"; 2]);
}

#[tokio::test(start_paused = true)]
async fn reentrant_request_does_not_wait_behind_those_in_line() {
    let (_world, _network, client) = one().await;
    let guard = granted(&client, "Moe").await;
    let _waiting = waiter(&client).await;
    let began = Instant::now();
    let again = granted(&client, LockRequest::new("Moe").reentrant()).await;
    assert_eq!((again.fencing_token(), began.elapsed()), (guard.fencing_token(), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn turn_passes_on_when_the_hold_has_ended() {
    for end in ["release", "drop", "loss", "detach", "expiry"] {
        let (world, network, client) = one().await;
        let manual = LockRequest::new("Moe").heartbeats(Heartbeats::Manual);
        let guard = granted(&client, manual).await;
        let next = waiter(&client).await;
        let mut kept = None;
        match end {
            "release" => drop(guard.release().await.expect("held")),
            "drop" => drop(guard),
            "loss" => {
                let operator = world.client("operator");
                operator.break_lock("Moe", guard.record_version_number()).await.expect("held");
                guard.renew().await.expect_err("broken");
                kept = Some(guard);
            }
            "detach" => {
                let handover = guard.detach();
                client.release("Moe", &handover.lease_id, Release::default()).await.expect("held");
            }
            _ => {
                network.cut();
                sleep(LEASE * 2).await;
                network.mend();
                kept = Some(guard);
            }
        }
        assert!(next.await.expect("no panic").is_ok_and(|next| next.valid()), "{end}");
        drop(kept);
    }
}

#[tokio::test(start_paused = true)]
async fn turn_passes_on_after_the_answer_to_the_release() {
    let (_world, network, client) = one().await;
    let guard = granted(&client, "Moe").await;
    let next = waiter(&client).await;
    network.take_log();
    network.set_first(Fate::AnswerLate(SECOND / 2));
    drop(guard);
    sleep(SECOND / 2 - MOMENT).await;
    assert_eq!(network.take_log(), ["/v1/release"]);
    sleep(MOMENT * 2).await;
    assert_eq!(network.take_log(), ["/v1/acquire"], "at once: the answer told that nobody else waits");
    drop(next.await.expect("no panic").expect("granted"));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_leaves_gives_its_place_up() {
    let (_world, _network, client) = one().await;
    let guard = granted(&client, "Moe").await;
    let leaving = waiter(&client).await;
    let staying = waiter(&client).await;
    leaving.abort();
    guard.release().await.expect("held");
    staying.await.expect("no panic").expect("granted").release().await.expect("held");
    // One that leaves with the turn passes it on as well.
    let guard = granted(&client, "Moe").await;
    let (leaving, staying) = (waiter(&client).await, waiter(&client).await);
    drop(guard);
    leaving.abort();
    drop(staying.await.expect("no panic").expect("granted"));
}

#[tokio::test(start_paused = true)]
async fn waiters_in_line_outlive_the_failure_of_the_one_with_the_turn() {
    let (_world, network, client) = one().await;
    network.cut();
    let head = waiter_with(&client, LockRequest::new("Moe").wait(Wait::AtMost(SECOND))).await;
    let next = waiter(&client).await;
    assert_eq!(head.await.expect("no panic").expect_err("no service"), ErrorKind::Unavailable);
    network.mend();
    drop(next.await.expect("no panic").expect("granted"));
}

#[tokio::test(start_paused = true)]
async fn waiters_in_line_learn_at_once_that_their_client_was_closed() {
    let (_world, _network, client) = one().await;
    let _guard = granted(&client, "Moe").await;
    let (first, second) = (waiter(&client).await, waiter(&client).await);
    let began = Instant::now();
    client.close().await.expect("reachable");
    for waiter in [first, second] {
        assert_eq!(waiter.await.expect("no panic").expect_err("closed"), ErrorKind::Closed);
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn reentrant_requests_share_the_lock_that_one_waited_for() {
    let (world, _network, client) = one().await;
    let other = granted(&world.client("other"), "Moe").await;
    let request = || LockRequest::new("Moe").reentrant().wait(Wait::AtMost(LEASE));
    let (first, second) = (waiter_with(&client, request()).await, waiter_with(&client, request()).await);
    other.release().await.expect("held");
    let guard = first.await.expect("no panic").expect("granted");
    let again = second.await.expect("no panic").expect("shared");
    assert_eq!(again.fencing_token(), guard.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn waiter_in_line_is_not_told_of_a_hold_that_was_lost() {
    let (world, _network, client) = one().await;
    let lost = granted(&client, LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    let (operator, other) = (world.client("operator"), world.client("other"));
    operator.break_lock("Moe", lost.record_version_number()).await.expect("held");
    let _other = granted(&other, "Moe").await;
    let _head = waiter(&client).await;
    lost.renew().await.expect_err("broken");
    sleep(MOMENT).await;
    let Held { lock, .. } = held(&client, LockRequest::new("Moe").wait(Wait::AtMost(SECOND * 3))).await;
    assert_eq!((lock.owner_name.as_str(), lost.valid()), ("other", false));
}

#[test]
fn waiter_in_line_takes_over_from_a_runtime_that_is_gone() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let first = runtime().expect("a runtime");
    let (_world, _network, client, guard) = first.block_on(async {
        let (world, network, client) = one().await;
        let guard = granted(&client, "Moe").await;
        (world, network, client, guard)
    });
    drop(first);
    let next = runtime()
        .expect("a runtime")
        .block_on(async { granted(&client, LockRequest::new("Moe").wait(Wait::Forever)).await.fencing_token() });
    assert!(next > guard.fencing_token());
}
