//! The cost of the client library, and the time in which it hands a lock on.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use http::Request;
use leasehold_client::{Client, Guard, Heartbeats, HttpTransport, LockRequest, Transport, Wait};
use leasehold_dynamodb::fresh_uuid;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::process::{Serve, cpu_seconds, rss_mb};
use crate::requests::Counted;
use crate::{LOAD, Measured, load, service_cycle};

const DEATHS: u32 = 5;
const LOCKS: u32 = 10_000;

pub(crate) async fn run() {
    cycles().await;
    recovery().await;
    held_locks().await;
}

pub(crate) async fn granted(client: &Client, request: LockRequest) -> Guard {
    client.acquire(request).await.expect("reachable").granted().expect("free")
}

/// (f) and (g) One caller, one lock after the other: by the library, by the library's HTTP client alone, by a bare
/// socket.
async fn cycles() {
    let serve = Serve::start(&["--memory"]);
    let transport = Counted::new(&serve);
    let client = transport.client();
    let library = async || {
        granted(&client, "bench".into()).await.release().await.expect("held");
    };
    let http = async || {
        let lease_id = fresh_uuid();
        let acquire = json!({ "key": "http", "ownerName": "bench", "leaseId": lease_id });
        post(&transport.http, "/v1/acquire", &acquire).await;
        post(&transport.http, "/v1/release", &json!({ "key": "http", "leaseId": lease_id })).await;
    };
    timed(&library).await;
    transport.take();
    let measured = timed(&library).await;
    println!("one caller, uncontended, against leasehold serve --memory");
    println!(
        "  requests per acquire+release cycle   {}",
        f64::from(transport.take_sum()) / (measured.per_second * LOAD.as_secs_f64())
    );
    println!("  the client library         {measured}");
    let bare_http = timed(&http).await;
    println!("  its HTTP client alone      {bare_http}   ratio {:.2}", measured.per_second / bare_http.per_second);
    let socket = load(serve.address, 1, service_cycle).await;
    println!("  one socket, nothing else   {socket}   ratio {:.2}", measured.per_second / socket.per_second);
}

/// Cycles one after the other, for as long as [`load`] runs.
async fn timed(cycle: &impl AsyncFn()) -> Measured {
    let end = Instant::now() + LOAD;
    let mut times = Vec::new();
    while Instant::now() < end {
        let started = Instant::now();
        cycle().await;
        times.push(started.elapsed());
    }
    Measured::of(&mut times)
}

pub(crate) async fn post(http: &HttpTransport, path: &str, body: &Value) {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).expect("a request");
    assert!(http.send(request).await.expect("answered").status().is_success());
}

/// (i) From the last heartbeat of a holder to the grant of a waiter.
async fn recovery() {
    const LEASE: Duration = Duration::from_secs(4);
    let serve = Serve::start(&["--memory"]);
    let transport = Counted::new(&serve);
    let (holder, heir) = (transport.client(), transport.client());
    let mut multiples = Vec::new();
    for death in 0..DEATHS {
        let request = LockRequest::new(format!("bench-{death}")).lease(LEASE);
        let guard = granted(&holder, request.clone().heartbeats(Heartbeats::Manual)).await;
        let waiting = tokio::spawn({
            let heir = heir.clone();
            async move { granted(&heir, request.wait(Wait::Forever)).await }
        });
        sleep(LEASE / 2).await;
        guard.renew().await.expect("held");
        let died = Instant::now();
        guard.detach();
        let heir = waiting.await.expect("no panic");
        multiples.push(died.elapsed().as_secs_f64() / LEASE.as_secs_f64());
        heir.release().await.expect("held");
    }
    multiples.sort_by(f64::total_cmp);
    let poll = 1.0 / LEASE.as_secs_f64();
    println!("recovery after a holder's death, in leases of {LEASE:?}; a poll is {poll} of one");
    println!("  least {:.2}   median {:.2}   most {:.2}", multiples[0], multiples[multiples.len() / 2], multiples[4]);
}

/// (j) Many locks held by one client.
async fn held_locks() {
    const LEASE: Duration = Duration::from_mins(1);
    const RUN: Duration = Duration::from_secs(45);
    let serve = Serve::start(&["--memory"]);
    let transport = Counted::new(&serve);
    let client = transport.client();
    let before_mb = rss_mb(std::process::id());
    let guards: Vec<Guard> = stream::iter(0..LOCKS)
        .map(|number| granted(&client, LockRequest::new(format!("bench-{number}")).lease(LEASE)))
        .buffer_unordered(16)
        .collect()
        .await;
    let held_mb = rss_mb(std::process::id());
    transport.take();
    let cpu = cpu_seconds();
    sleep(RUN).await;
    let (heartbeats, cpu) = (f64::from(transport.take_sum()), cpu_seconds() - cpu);
    let lost = guards.iter().filter(|guard| !guard.valid()).count();
    println!("{LOCKS} locks held by one client, leases of {LEASE:?}, {RUN:?} long");
    println!(
        "  memory {:.2} KB a lock ({before_mb:.1} to {held_mb:.1} MB)",
        (held_mb - before_mb) * 1024.0 / f64::from(LOCKS)
    );
    println!(
        "  {:.0} heartbeats/s, for {:.0} % of one core: {:.0} heartbeats/s per core   lost {lost}",
        heartbeats / RUN.as_secs_f64(),
        100.0 * cpu / RUN.as_secs_f64(),
        heartbeats / cpu
    );
    client.close().await.expect("all are released");
}
