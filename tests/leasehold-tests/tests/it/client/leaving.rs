//! The client leaves nothing behind: C6, drops, cancellation, `close`.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_api::logging::{LevelFilter, json_subscriber};
use leasehold_client::{Client, Error, ErrorKind, Guard, Heartbeats, LockRequest, Wait};
use leasehold_tests::{COMMON, Fates, World};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, LEASE, Network, SECOND, granted};

/// The lines of a log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("UTF-8")
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether the lock is free for a newcomer, without waiting for a lease.
async fn is_free(world: &World) -> bool {
    world.row().await.is_none_or(|row| row.released)
}

#[tokio::test(start_paused = true)]
async fn dropped_guard_releases() {
    let world = World::new().await;
    let client = world.client("one");
    drop(granted(&client, "Moe").await);
    sleep(SECOND).await;
    assert!(is_free(&world).await);
    // The lock is free even when the client is dropped as well.
    let guard = granted(&world.client("two"), "Moe").await;
    drop(client);
    drop(guard);
    sleep(SECOND).await;
    assert!(is_free(&world).await);
}

#[tokio::test(start_paused = true)]
async fn release_whose_future_is_dropped_goes_on() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let guard = granted(&client, "Moe").await;
    network.set(|_| Fate::AnswerLate(SECOND));
    assert!(timeout(SECOND / 10, guard.release()).await.is_err());
    drop(client);
    sleep(SECOND * 2).await;
    assert!(is_free(&world).await);
}

#[tokio::test(start_paused = true)]
async fn dropped_acquisition_leaves_no_lock() {
    let world = World::new().await;
    for fate in [Fate::AnswerLate(SECOND * 2), Fate::AnswerLost, Fate::Overdue(SECOND), Fate::Overdue(SECOND * 6)] {
        let network = Network::new(world.transport());
        let client = Client::new(network.clone());
        let late = fate.clone();
        network.set(move |path| if path == "/v1/acquire" { late.clone() } else { Fate::Delivered });
        assert!(timeout(SECOND / 20, client.acquire("Moe")).await.is_err(), "dropped");
        sleep(SECOND * 20).await;
        assert!(is_free(&world).await, "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn single_try_without_an_answer_is_given_back() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    network.set(|path| if path == "/v1/acquire" { Fate::AnswerLost } else { Fate::Delivered });
    let error = client.try_acquire("Moe").await.expect_err("nobody knows");
    assert_eq!(error.kind(), &ErrorKind::Unavailable);
    sleep(SECOND).await;
    assert!(is_free(&world).await);
    // A request that was certainly not sent needs no undoing.
    network.cut();
    network.take_log();
    client.try_acquire("Moe").await.expect_err("nobody answers");
    sleep(SECOND * 20).await;
    assert_eq!(network.take_log(), ["/v1/acquire"]);
}

#[tokio::test(start_paused = true)]
async fn refused_acquisition_that_is_dropped_sends_nothing_more() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    assert!(timeout(SECOND / 2, client.acquire("Moe")).await.is_err(), "dropped while it watches");
    // It may have marked the lock by now.
    assert_eq!(network.take_log()[..2], ["/v1/acquire", "/v1/watch"]);
    sleep(SECOND * 20).await;
    assert!(network.take_log().is_empty());
    network.set(|_| Fate::AnswerLate(SECOND));
    assert!(timeout(SECOND / 2, client.acquire("Moe")).await.is_err(), "dropped while it asks");
    sleep(SECOND * 20).await;
    assert_eq!(network.take_log(), ["/v1/acquire"], "the refusal came afterwards");
}

/// The future is dropped at any moment, under random faults below. The lock is free again after a while, or was never
/// taken; at the worst it takes a lease.
#[tokio::test(start_paused = true)]
async fn acquisitions_dropped_at_any_moment_leave_no_lock() {
    for seed in 0..200 {
        let world = World::new().await;
        let mut rng = fastrand::Rng::with_seed(seed);
        world.faults.set(Fates::Random { rng: rng.fork(), one_in: 2, longest: SECOND * 3, kinds: COMMON });
        let client = world.client("fickle");
        let patience = Duration::from_millis(rng.u64(0..3000));
        let acquired = timeout(patience, client.acquire("Moe")).await;
        drop(acquired);
        world.faults.script([]);
        sleep(SECOND * 45).await;
        assert!(is_free(&world).await, "seed {seed}");
        client.close().await.expect("nothing is held");
    }
}

#[tokio::test(start_paused = true)]
async fn close_gives_everything_back_though_one_release_fails() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(granted(&client, name).await);
    }
    let mut releases = 0;
    network.set(move |path| {
        releases += u32::from(path == "/v1/release");
        if releases == 1 { Fate::Gateway(403, None, "") } else { Fate::Delivered }
    });
    let error = client.close().await.expect_err("one could not be released");
    assert_eq!(error.unreleased.len(), 1, "{error}");
    assert_eq!(error.unreleased[0].error.kind(), &ErrorKind::Forbidden);
    assert!(!error.retryable());
    assert!(guards.iter().all(|guard| !guard.valid()));
    network.take_log();
    drop(guards);
    sleep(LEASE * 2).await;
    assert_eq!(network.take_log(), [""; 0], "what is closed is quiet");
    let operator = world.client("operator");
    let mut held = 0;
    for name in ["a", "b", "c"] {
        held += u32::from(operator.get(name).await.expect("a row").state == leasehold_client::wire::LockState::Held);
    }
    assert_eq!(held, 1);
    let error = client.acquire("d").await.expect_err("closed");
    assert_eq!(error.kind(), &ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn close_is_bounded_when_nobody_answers() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let _guards = [granted(&client, "a").await, granted(&client, "b").await];
    network.set(|_| Fate::Overdue(SECOND * 1000));
    let began = Instant::now();
    let error = client.close().await.expect_err("nobody answers");
    assert_eq!(error.unreleased.len(), 2);
    assert!(error.retryable() && error.to_string().contains("in the background"), "{error}");
    assert!(began.elapsed() <= SECOND * 2, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn releases_of_a_closed_client_go_on_in_the_background() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let _guard = granted(&client, "Moe").await;
    network.cut();
    drop(client.close().await.expect_err("nobody answers"));
    network.mend();
    client.settled().await;
    assert!(is_free(&world).await);
}

#[tokio::test(start_paused = true)]
async fn block_ends_soon_in_an_outage_and_its_release_goes_on() {
    let world = World::new().await;
    for (lease, bound) in [(LEASE, SECOND * 2), (SECOND, SECOND)] {
        let network = Network::new(world.transport());
        let client = Client::new(network.clone());
        let outage = network.clone();
        let began = Instant::now();
        let done: Result<_, Error> = client
            .with_lock(LockRequest::new("Moe").lease(lease), async |_| {
                outage.cut();
                Ok("done")
            })
            .await;
        assert_eq!(done.expect("the work was done"), "done");
        assert!(began.elapsed() <= bound, "{:?}", began.elapsed());
        network.mend();
        client.settled().await;
        assert!(is_free(&world).await);
    }
}

#[tokio::test(start_paused = true)]
async fn close_succeeds_when_a_lock_was_lost_before() {
    let world = World::new().await;
    let client = world.client("one");
    let guard = granted(&client, "Moe").await;
    let thief = world.client("thief");
    let version = thief.get("Moe").await.expect("held").record_version_number;
    thief.break_lock("Moe", version).await.expect("as seen");
    granted(&thief, "Moe").await.release().await.expect("held");
    // The row remembers only the holder before this one.
    let stolen = granted(&world.client("heir"), "Moe").await;
    client.close().await.expect("there is nothing to release");
    assert!(!guard.valid() && stolen.valid() && !is_free(&world).await);
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_what_was_dropped_before() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let guard = granted(&client, "Moe").await;
    network.set(|_| Fate::AnswerLate(SECOND * 2));
    drop(guard);
    client.close().await.expect("released");
    assert!(is_free(&world).await);
}

#[tokio::test(start_paused = true)]
async fn waiter_whose_client_is_closed_stops() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    let client = world.client("waiter");
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.acquire(LockRequest::new("Moe").wait(Wait::Forever)).await.map(|_| ()) }
    });
    sleep(SECOND * 5).await;
    client.close().await.expect("nothing is held");
    let error = timeout(SECOND, waiting)
        .await
        .expect("soon, though the watch goes on for longer")
        .expect("no panic")
        .expect_err("closed");
    assert_eq!(error.kind(), &ErrorKind::Closed);
}

#[test]
fn client_outlives_the_runtime_of_its_background_task() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let first = runtime().expect("a runtime");
    let (world, client, guard) = first.block_on(async {
        let world = World::new().await;
        let client = world.client("one");
        let guard = granted(&client, "Moe").await;
        (world, client, guard)
    });
    drop(first);
    runtime().expect("a runtime").block_on(async {
        guard.release().await.expect("held");
        assert!(is_free(&world).await);
        assert!(granted(&client, "Moe").await.valid());
    });
}

#[tokio::test(start_paused = true)]
async fn grant_is_given_back_when_the_client_was_closed_meanwhile() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    network.set(|path| if path == "/v1/acquire" { Fate::AnswerLate(SECOND) } else { Fate::Delivered });
    let acquiring = tokio::spawn({
        let client = client.clone();
        async move { client.acquire("Moe").await.map(|_| ()) }
    });
    sleep(SECOND / 2).await;
    client.close().await.expect("nothing is held yet");
    let error = acquiring.await.expect("no panic").expect_err("closed");
    assert_eq!(error.kind(), &ErrorKind::Closed);
    sleep(SECOND).await;
    assert!(is_free(&world).await);
}

#[tokio::test(start_paused = true)]
async fn concurrent_shares_never_leave_a_guard_without_its_lock() {
    let world = World::new().await;
    let client = world.client("one");
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..16 {
        let (client, mut rng) = (client.clone(), fastrand::Rng::with_seed(seed));
        tasks.spawn(async move {
            for _ in 0..50 {
                let request = LockRequest::new("Moe").reentrant().wait(Wait::Forever);
                let guard = granted(&client, request).await;
                assert!(guard.valid());
                sleep(Duration::from_millis(rng.u64(0..3))).await;
                assert!(guard.valid(), "{:?}", guard.loss());
                if rng.bool() {
                    drop(guard);
                } else {
                    guard.release().await.expect("held");
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    client.close().await.expect("all are released");
    assert!(is_free(&world).await);
}

/// The warnings of `act`, with a lock that it gets under a runtime which ends.
fn warnings(act: impl FnOnce(Guard)) -> String {
    let log = Log::default();
    let writer = log.clone();
    let _default = tracing::subscriber::set_default(json_subscriber(LevelFilter::WARN, move || writer.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let guard = granted(&World::new().await.client("one"), "Moe").await;
        act(guard);
    });
    drop(runtime);
    log.text()
}

#[test]
fn end_of_the_runtime_warns_of_what_was_not_released() {
    let dropped = warnings(drop);
    assert!(dropped.contains("ended before the lock was released") && dropped.contains("Moe"), "{dropped}");
    let forgotten = warnings(std::mem::forget);
    assert!(forgotten.contains("ended while the lock was held") && forgotten.contains("Moe"), "{forgotten}");
}
