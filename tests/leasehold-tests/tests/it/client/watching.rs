//! Waits by watching: K1.

use std::time::Duration;

use leasehold_client::wire::AcquireOutcome;
use leasehold_client::{Client, Heartbeats, LockRequest, Release, Wait};
use leasehold_tests::World;
use tokio::time::{Instant, sleep};

use super::{Fate, LEASE, Network, SECOND, granted};

/// A waiter that watches, or tries to watch.
fn waiter(world: &World, fate: impl FnMut(&str) -> Fate + Send + 'static) -> (Client, Network) {
    let network = Network::new(world.transport());
    network.set(fate);
    (Client::new(network.clone()), network)
}

/// The paths of the waiter's requests, without its mark, which is sent beside them.
fn requests(network: &Network) -> Vec<String> {
    network.take_log().into_iter().filter(|path| path != "/v1/want").collect()
}

fn forever() -> LockRequest {
    LockRequest::new("Moe").wait(Wait::Forever)
}

#[tokio::test(start_paused = true)]
async fn waiter_has_the_lock_when_it_is_released() {
    let world = World::new().await;
    let service = world.transport();
    let holder = granted(&Client::builder().owner_name("holder").build(service.clone()), "Moe").await;
    // A watch is woken by the writes of the same service.
    let network = Network::new(service);
    let client = Client::new(network.clone());
    let waiting = tokio::spawn(async move { (granted(&client, forever()).await, Instant::now()) });
    sleep(SECOND * 90 + SECOND / 3).await;
    let released = Instant::now();
    holder.release().await.expect("held");
    let (guard, at) = waiting.await.expect("no panic");
    assert_eq!((at - released, guard.outcome()), (Duration::ZERO, Some(AcquireOutcome::Reacquired)));
    let log = requests(&network);
    assert_eq!(
        log.iter().filter(|path| *path == "/v1/acquire").count(),
        2,
        "one refused write, whatever the wait: {log:?}"
    );
    assert!(log.iter().all(|path| path == "/v1/acquire" || path == "/v1/watch"), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn waiter_has_the_lock_when_its_row_is_deleted() {
    let world = World::new().await;
    let service = world.transport();
    let holder = granted(&Client::new(service.clone()), "Moe").await;
    let network = Network::new(service);
    let client = Client::new(network.clone());
    let waiting = tokio::spawn(async move { (granted(&client, forever()).await, Instant::now()) });
    sleep(SECOND * 3).await;
    let deleted = Instant::now();
    holder.release_with(Release::new().delete()).await.expect("held");
    let (guard, at) = waiting.await.expect("no panic");
    assert_eq!((at - deleted, guard.outcome()), (Duration::ZERO, Some(AcquireOutcome::Created)));
    assert_eq!(requests(&network), ["/v1/acquire", "/v1/watch", "/v1/watch", "/v1/acquire"]);
}

#[tokio::test(start_paused = true)]
async fn waiter_takes_a_dead_holder_over_without_refused_writes() {
    let world = World::new().await;
    granted(&world.client("dead"), LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await.detach();
    let (client, network) = waiter(&world, |_| Fate::Delivered);
    let began = Instant::now();
    let guard = granted(&client, forever()).await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
    let waited = began.elapsed();
    assert!(waited >= LEASE && waited < LEASE + SECOND, "{waited:?}");
    assert_eq!(network.take_log().iter().filter(|path| *path == "/v1/acquire").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn waiter_polls_where_there_is_no_watch() {
    let world = World::new().await;
    let holder = granted(&world.client("holder"), "Moe").await;
    let gone = |path: &str| match path {
        "/v1/watch" => Fate::Gateway(404, None, r#"{"message":"Not Found"}"#),
        _ => Fate::Delivered,
    };
    let (client, network) = waiter(&world, gone);
    let waiting = tokio::spawn(async move { granted(&client, forever()).await });
    sleep(SECOND * 30).await;
    let log = network.take_log();
    assert_eq!(log.iter().filter(|path| *path == "/v1/watch").count(), 1, "it learns: {log:?}");
    assert!(log.len() > 20, "it polls: {log:?}");
    holder.release().await.expect("held");
    drop(waiting.await.expect("no panic"));
}

#[tokio::test(start_paused = true)]
async fn waiter_reads_while_watches_fail_and_then_watches_again() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let began = Instant::now();
    let full = move |path: &str| match path {
        "/v1/watch" if began.elapsed() < SECOND * 10 => Fate::Gateway(429, Some(1), "full"),
        _ => Fate::Delivered,
    };
    let (client, network) = waiter(&world, full);
    let waiting = tokio::spawn(async move { granted(&client, forever()).await });
    // The last poll in place of a watch is over at this time.
    sleep(SECOND * 15).await;
    let log = network.take_log();
    let count = |path: &str| log.iter().filter(|sent| *sent == path).count();
    assert_eq!((count("/v1/acquire"), count("/v1/lock") >= 5), (1, true), "it reads: {log:?}");
    sleep(SECOND * 60).await;
    let log = requests(&network);
    assert!(log.iter().all(|path| path == "/v1/watch"), "it watches: {log:?}");
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn waiter_with_an_interval_of_its_own_polls() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let (client, network) = waiter(&world, |_| Fate::Delivered);
    let waiting = tokio::spawn(async move { granted(&client, forever().poll_interval(SECOND)).await });
    sleep(SECOND * 10).await;
    let log = requests(&network);
    assert!(log.iter().all(|path| path == "/v1/acquire") && log.len() > 5, "{log:?}");
    waiting.abort();
}

/// A service that is stopping answers all watches at once, with the unchanged lock.
#[tokio::test(start_paused = true)]
async fn waiter_does_not_spin_when_watches_answer_early() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let service = leasehold_api::Service::new(world.table.clone());
    service.close_watches();
    let network = Network::new(leasehold_in_process::InProcess::new(service));
    let client = Client::new(network.clone());
    let waiting = tokio::spawn(async move { granted(&client, forever()).await });
    sleep(SECOND * 10).await;
    let log = network.take_log();
    assert!(log.len() < 30, "{} requests in ten seconds", log.len());
    waiting.abort();
}
