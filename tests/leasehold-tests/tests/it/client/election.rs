//! Elections, and following a lock: K6.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use leasehold_client::wire::LockState;
use leasehold_client::{Client, Error, ErrorKind, Guard, Heartbeats};
use leasehold_tests::World;
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, LEASE, Network, SECOND, granted};

#[tokio::test(start_paused = true)]
async fn followers_learn_of_each_leader_and_of_none() {
    let world = World::new().await;
    let service = world.transport();
    let client = |name: &str| Client::builder().owner_name(name).build(service.clone());
    let mut leaders = Box::pin(client("follower").election("chief", "").observe());
    let mut next =
        async || timeout(LEASE * 3, leaders.try_next()).await.expect("news").expect("reachable").expect("endless");
    assert_eq!(next().await, None);
    let ann = client("ann").election("chief", "10.0.0.1").campaign().await.expect("reachable");
    let leader = next().await.expect("a leader");
    assert_eq!((leader.owner_name.as_str(), leader.value.as_deref()), ("ann", Some(&b"10.0.0.1"[..])));
    assert_eq!(leader.fencing_token, Some(ann.fencing_token()));
    let bob = client("bob").election("chief", "10.0.0.2");
    let waiting = tokio::spawn(async move { bob.campaign().await.expect("reachable") });
    // The heartbeats of a leader are no news.
    sleep(LEASE * 3).await;
    let resigned = Instant::now();
    ann.release().await.expect("held");
    let bob = waiting.await.expect("no panic");
    assert_eq!(resigned.elapsed(), Duration::ZERO, "the next one leads at once");
    let leader = match next().await {
        None => next().await,
        leader => leader,
    };
    assert_eq!(leader.expect("a leader").owner_name, "bob");
    bob.release().await.expect("held");
    assert_eq!(next().await, None);
}

#[tokio::test(start_paused = true)]
async fn leader_that_loses_stops_its_work_and_stands_again() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let election = Client::new(network.clone()).election("chief", "me");
    let terms = Arc::new(Mutex::new(Vec::new()));
    let counting = Arc::clone(&terms);
    let leading = tokio::spawn(async move {
        let body = |guard: Arc<Guard>| {
            let term = {
                let mut terms = counting.lock().expect("not poisoned");
                terms.push(guard.fencing_token());
                terms.len()
            };
            async move { if term == 1 { std::future::pending().await } else { Ok::<_, Error>(term) } }
        };
        election.lead(body).await
    });
    sleep(SECOND).await;
    network.cut();
    sleep(LEASE + SECOND).await;
    network.mend();
    assert_eq!(leading.await.expect("no panic").expect("the body's"), 2);
    let terms = terms.lock().expect("not poisoned").clone();
    assert!(terms[0] < terms[1], "{terms:?}");
    sleep(SECOND).await;
    assert_eq!(world.client("other").get("chief").await.expect("a row").state, LockState::Released, "it resigned");
}

#[tokio::test(start_paused = true)]
async fn follower_without_watches_polls() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set(|path| match path {
        "/v1/watch" => Fate::Gateway(404, None, "no such route"),
        _ => Fate::Delivered,
    });
    let client = Client::new(network.clone());
    let mut rows = pin!(client.observe("Moe".into()));
    assert!(rows.next().await.expect("endless").expect("reachable").is_none());
    let holder = world.client("holder");
    let acquiring = tokio::spawn(async move {
        sleep(SECOND * 10).await;
        granted(&holder, leasehold_client::LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await.detach();
    });
    let row = rows.next().await.expect("endless").expect("reachable").expect("a lock");
    assert_eq!((row.owner_name.as_str(), row.state), ("holder", LockState::Held));
    acquiring.await.expect("no panic");
    let log = network.take_log();
    assert!(log.len() > 8 && log.len() < 25, "a look each second: {log:?}");
    assert_eq!(log.iter().filter(|path| *path == "/v1/watch").count(), 1, "it learns: {log:?}");
}

#[tokio::test(start_paused = true)]
async fn look_watches_a_held_lock_and_polls_a_free_one() {
    let world = World::new().await;
    let service = world.transport();
    let holder = granted(&Client::new(service.clone()), "Moe").await;
    // A watch is woken by the writes of the same service.
    let network = Network::new(service);
    let client = Client::new(network.clone());
    let held = client.view("Moe").await.expect("a row");
    network.take_log();
    let releasing = tokio::spawn(async move {
        sleep(SECOND * 3).await;
        holder.release().await.expect("held");
    });
    let began = Instant::now();
    let free = client.look("Moe", Some(&held), LEASE).await.expect("reachable").expect("a row");
    assert_eq!((free.state, began.elapsed()), (LockState::Released, SECOND * 3));
    assert_eq!(network.take_log(), ["/v1/watch"]);
    releasing.await.expect("no panic");
    // The service answers the watch of a free lock at once.
    let began = Instant::now();
    assert_eq!(client.look("Moe", Some(&free), LEASE).await.expect("reachable"), Some(free));
    assert!(began.elapsed() >= SECOND, "{:?}", began.elapsed());
    assert_eq!(network.take_log(), ["/v1/lock"]);
}

#[tokio::test(start_paused = true)]
async fn view_shows_a_lock_or_a_semaphore() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let _permit = client.semaphore("Pool", 2).acquire(1).await.expect("reachable").granted().expect("free");
    let _guard = granted(&client, "Moe").await;
    network.take_log();
    assert_eq!(client.view("Pool").await.expect("a row").semaphore.expect("a semaphore").capacity, 2);
    assert_eq!(client.view("Moe").await.expect("a row").semaphore, None);
    assert_eq!(client.view("nothing").await.expect_err("no row").kind(), &ErrorKind::NotFound);
    assert_eq!(network.take_log(), ["/v1/lock", "/v1/semaphore", "/v1/lock", "/v1/lock"]);
}

#[tokio::test(start_paused = true)]
async fn follower_sits_out_an_outage_and_ends_at_a_refusal() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let network = Network::new(world.transport());
    network.cut();
    let client = Client::new(network.clone());
    let mut rows = pin!(client.observe("Moe".into()));
    assert!(timeout(LEASE * 2, rows.next()).await.is_err(), "an outage is no news");
    network.mend();
    let row = timeout(LEASE, rows.next()).await.expect("news").expect("endless").expect("reachable");
    assert_eq!(row.expect("a lock").owner_name, "holder");
    network.set(|_| Fate::Gateway(403, None, ""));
    let refused = timeout(LEASE, rows.next()).await.expect("soon").expect("an error");
    assert_eq!(refused.expect_err("not allowed").kind(), &ErrorKind::Forbidden);
    assert!(rows.next().await.is_none(), "the stream is over");
}
