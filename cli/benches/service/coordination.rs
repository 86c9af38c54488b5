//! Waiting for a lock or for permits: the time of a hand-over, and the requests that a waiter costs.

use std::time::Duration;

use leasehold_client::{Client, Guard, LockRequest, PermitRequest, Wait};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::client::{granted, post};
use crate::process::Serve;
use crate::requests::Counted;
use crate::{millis, percentile};

/// The poll interval that clients had before they watched.
const POLL: Duration = Duration::from_secs(1);
const HAND_OVERS: usize = 40;
const PERMITS: u64 = 10;
const CALLERS: usize = 64;

#[derive(Clone, Copy)]
enum Waiting {
    ByWatch,
    ByPoll,
    InTheQueue,
}

impl Waiting {
    fn name(self) -> &'static str {
        match self {
            Self::ByWatch => "by watch",
            Self::ByPoll => "by poll each second",
            Self::InTheQueue => "in the queue of a fair lock",
        }
    }

    async fn granted(self, client: &Client, key: &str) -> Held {
        let request = LockRequest::new(key).wait(Wait::Forever);
        match self {
            Self::ByWatch => Held::Lock(granted(client, request).await),
            Self::ByPoll => Held::Lock(granted(client, request.poll_interval(POLL)).await),
            Self::InTheQueue => {
                let request = PermitRequest::new().wait(Wait::Forever);
                Held::Permit(client.fair_lock(key).acquire(request).await.expect("reachable").granted().expect("free"))
            }
        }
    }
}

enum Held {
    Lock(Guard),
    Permit(leasehold_client::PermitGuard),
}

impl Held {
    async fn release(self) {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Permit(guard) => guard.release().await,
        }
        .expect("held");
    }
}

pub(crate) async fn run() {
    let serve = Serve::start(&["--memory"]);
    round_trips(&serve).await;
    for waiters in [1, 32] {
        for waiting in [Waiting::ByWatch, Waiting::ByPoll, Waiting::InTheQueue] {
            hand_over(&[&serve], waiters, waiting).await;
        }
    }
    across_services().await;
    watchers().await;
    cost_of_waiting(&serve).await;
    grants(&serve).await;
    dead_waiters(&serve).await;
}

/// The measure of a hand-over: the time of one small read on an idle service.
async fn round_trips(serve: &Serve) {
    let client = Counted::new(serve).client();
    let guard = granted(&client, "round-trips".into()).await;
    let mut times = Vec::new();
    for _ in 0..2000 {
        let started = Instant::now();
        client.get("round-trips").await.expect("held");
        times.push(started.elapsed());
    }
    guard.release().await.expect("held");
    println!("one round trip, a read of a lock: median {:.2} ms", millis(percentile(&mut times, 50.0)));
}

/// (k) The same where the next holder waits at another service on the same DynamoDB.
async fn across_services() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    let first = Serve::start(&["--db", file.to_str().expect("UTF-8"), "--expose-dynamodb", "0"]);
    let endpoint = format!("http://{}", first.dynamodb.expect("exposed"));
    let second = Serve::start(&["--dynamodb-endpoint", &endpoint]);
    println!("across two services on one DynamoDB, each of which reads a watched key each half second");
    for waiting in [Waiting::ByWatch, Waiting::InTheQueue] {
        hand_over(&[&first, &second], 1, waiting).await;
    }
}

/// (o) What a watch costs the service in memory, each with a connection of its own.
async fn watchers() {
    const WATCHES: usize = 500;
    let serve = Serve::start(&["--memory"]);
    let client = Counted::new(&serve).client();
    let guard = granted(&client, "watched".into()).await;
    let version = client.get("watched").await.expect("held").record_version_number;
    let request = format!("GET /v1/watch?key=watched&version={version}&waitMs=20000 HTTP/1.1\r\nhost: bench\r\n\r\n");
    let before_mb = serve.rss_mb();
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let mut watch = TcpStream::connect(serve.address).await.expect("a connection");
        watch.write_all(request.as_bytes()).await.expect("sent");
        watches.push(watch);
    }
    sleep(Duration::from_secs(2)).await;
    let after_mb = serve.rss_mb();
    println!(
        "{WATCHES} watches of one key: {:.1} KB each ({before_mb:.1} to {after_mb:.1} MB)",
        (after_mb - before_mb) * 1024.0 / WATCHES as f64
    );
    drop(watches);
    guard.release().await.expect("held");
}

/// (k) From the answer to a release until the next holder has the lock. The waiters take turns at the services.
async fn hand_over(serves: &[&Serve], waiters: usize, waiting: Waiting) {
    let transports: Vec<_> = serves.iter().map(|serve| Counted::new(serve)).collect();
    let mut turns = transports.iter().cycle();
    let key = format!("hand-over {waiters} {}", waiting.name());
    let (sender, mut grants) = mpsc::unbounded_channel::<(Instant, Held)>();
    let mut tasks = JoinSet::new();
    // Each waiter is a client of its own: one that returns to a key pauses, so that others come first.
    let mut wait = || {
        let transport = turns.next().expect("a service");
        let (client, sender, key) = (transport.client(), sender.clone(), key.clone());
        tasks.spawn(async move {
            let held = waiting.granted(&client, &key).await;
            let _ = sender.send((Instant::now(), held));
        });
    };
    (0..waiters).for_each(|_| wait());
    let mut times = Vec::new();
    let mut released = None;
    while times.len() < HAND_OVERS {
        let (at, held) = grants.recv().await.expect("waiters");
        times.extend(released.map(|released: Instant| at.saturating_duration_since(released)));
        if times.len() == 1 {
            for transport in &transports {
                transport.take();
            }
        }
        wait();
        // Long enough for the waiters to have asked, and to be at rest again.
        sleep(Duration::from_millis(300)).await;
        held.release().await;
        released = Some(Instant::now());
    }
    let requests: u32 = transports.iter().map(Counted::take_sum).sum();
    tasks.shutdown().await;
    println!(
        "hand-over to one of {waiters} {:<28} median {:>6.1} ms   p90 {:>6.1} ms   longest {:>6.1} ms   {:.1} requests \
         a hand-over",
        waiting.name(),
        millis(percentile(&mut times, 50.0)),
        millis(percentile(&mut times, 90.0)),
        millis(percentile(&mut times, 100.0)),
        f64::from(requests) / (HAND_OVERS - 1) as f64,
    );
}

/// (l) The requests of a waiter for each minute of waiting, beside a holder that renews a lease of 20 s.
async fn cost_of_waiting(serve: &Serve) {
    const WAITERS: usize = 8;
    let mut measured = Vec::new();
    for waiting in [Waiting::ByWatch, Waiting::ByPoll, Waiting::InTheQueue] {
        let holder = Counted::new(serve).client();
        let key = format!("waiting {}", waiting.name());
        let held = waiting.granted(&holder, &key).await;
        let transport = Counted::new(serve);
        let mut tasks = JoinSet::new();
        for _ in 0..WAITERS {
            let (client, key) = (transport.client(), key.clone());
            tasks.spawn(async move { waiting.granted(&client, &key).await.release().await });
        }
        measured.push((waiting, holder, held, transport, tasks));
    }
    sleep(Duration::from_mins(1)).await;
    println!("requests of one waiter in its first minute, the mean of {WAITERS} waiters for one lock");
    for (waiting, _holder, held, transport, mut tasks) in measured {
        let requests = transport.take().into_iter();
        let requests: Vec<_> =
            requests.map(|(route, count)| format!("{route} {:.1}", f64::from(count) / WAITERS as f64)).collect();
        println!("  {:<28} {}", waiting.name(), requests.join("   "));
        tasks.shutdown().await;
        held.release().await;
    }
}

/// (m) Grants of a semaphore whose callers return their permit at once.
async fn grants(serve: &Serve) {
    const RUN: Duration = Duration::from_secs(15);
    for poll in [None, Some(POLL)] {
        let transport = Counted::new(serve);
        let key = format!("grants {poll:?}");
        let end = Instant::now() + RUN;
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let semaphore = transport.client().semaphore(key.as_str(), PERMITS);
            callers.spawn(async move {
                let request = PermitRequest::new().wait(Wait::Forever);
                let request = poll.into_iter().fold(request, PermitRequest::poll_interval);
                let mut grants = 0_u32;
                while let Ok(acquired) = timeout_at(end, semaphore.acquire(request.clone())).await {
                    acquired.expect("reachable").granted().expect("free").release().await.expect("held");
                    grants += 1;
                }
                grants
            });
        }
        let grants = callers.join_all().await;
        let (all, least) = (grants.iter().sum::<u32>(), grants.iter().min().copied().unwrap_or_default());
        let requests = transport.take_sum();
        println!(
            "semaphore of {PERMITS}, {CALLERS} callers, {}: {:.0} grants/s   {:.1} requests a grant   the slowest \
             caller had {least} of {:.0} on the average",
            if poll.is_some() { "by poll each second" } else { "by watch" },
            f64::from(all) / RUN.as_secs_f64(),
            f64::from(requests) / f64::from(all),
            f64::from(all) / CALLERS as f64,
        );
    }
}

/// (n) From a release until the only waiter that lives is granted the permit, behind waiters that died.
async fn dead_waiters(serve: &Serve) {
    const TICKET_LEASE: Duration = Duration::from_secs(5);
    for dead in [1, 10, 50] {
        let transport = Counted::new(serve);
        let key = format!("dead-{dead}");
        let lock = transport.client().fair_lock(key.as_str());
        let held = lock.try_acquire(1).await.expect("reachable").granted().expect("free");
        for number in 0..dead {
            let ticket = json!({
                "key": key, "ownerName": "dead", "leaseId": format!("{key} {number}"), "permits": 1, "capacity": 1,
                "leaseDurationMs": TICKET_LEASE.as_millis(),
            });
            post(&transport.http, "/v1/semaphore/enqueue", &ticket).await;
        }
        let heir = transport.client().fair_lock(key.as_str());
        let waiting = tokio::spawn(async move { heir.acquire(PermitRequest::new().wait(Wait::Forever)).await });
        let released = Instant::now();
        held.release().await.expect("held");
        let heir = waiting.await.expect("no panic").expect("reachable").granted().expect("free");
        let leases = released.elapsed().as_secs_f64() / TICKET_LEASE.as_secs_f64();
        println!("{dead} dead waiters ahead: {leases:.2} ticket leases of {TICKET_LEASE:?} until the grant");
        heir.release().await.expect("held");
    }
}
