//! Watches, under virtual time: the writes that wake them, their cost, and their end.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_api::Service;
use leasehold_api::access::Caller;
use leasehold_protocol::{Principal, Staleness};
use leasehold_tests::{Fault, World, acquire, heartbeat};
use leasehold_wire::{AcquireRequest, HeartbeatRequest, Lock, LockState, Problem, ProblemType, ReleaseRequest, Secret};
use leasehold_wire::{BreakRequest, WatchRequest};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const WAIT: Duration = Duration::from_secs(20);
const READ_INTERVAL: Duration = Duration::from_millis(500);

/// A service in whose table "holder" holds the lock.
struct Bench {
    world: World,
    service: Service,
    version: String,
}

fn secret() -> Secret {
    Secret("holder".into())
}

impl Bench {
    async fn new() -> Self {
        let world = World::new().await;
        world.table.acquire(&acquire("holder", 60_000, Staleness::Never)).await.expect("granted");
        let version = world.row().await.and_then(|row| row.rvn.into_value()).expect("a version");
        let service = Service::new(world.table.clone());
        world.faults.take_calls();
        Self { world, service, version }
    }

    fn request(&self) -> WatchRequest {
        WatchRequest { key: "Moe".into(), version: Some(self.version.clone()), ..WatchRequest::default() }
    }

    /// Watches on a task of its own. Returns the answer and its time.
    fn watch(&self, request: WatchRequest, watches: &mut JoinSet<(Result<Lock, Problem>, Instant)>) {
        let service = self.service.clone();
        watches.spawn(async move {
            let answer = service.watch(&Caller::unrestricted(), request).await;
            (answer, Instant::now())
        });
    }

    /// Watches, leaves the lock unchanged for a while, does `write`, and returns the answer.
    async fn woken_by(&self, write: impl AsyncFn()) -> Result<Lock, Problem> {
        let mut watches = JoinSet::new();
        self.watch(self.request(), &mut watches);
        // A time between two reads of the table.
        sleep(READ_INTERVAL * 4 + READ_INTERVAL / 2).await;
        assert!(watches.try_join_next().is_none(), "nothing has changed");
        write().await;
        let written = Instant::now();
        let (answer, answered) = watches.join_next().await.expect("one").expect("no panic");
        assert_eq!(answered - written, Duration::ZERO, "it waits for no read");
        answer
    }
}

/// The watches of a key share a reader. A read of it that began before a watch, and ends after the watch's own read,
/// shows an older row.
#[tokio::test(start_paused = true)]
async fn watch_ignores_a_read_that_began_before_it() {
    let bench = Bench::new().await;
    let mut watches = JoinSet::new();
    bench.watch(bench.request(), &mut watches);
    sleep(READ_INTERVAL / 2).await;
    bench.world.faults.at(1, Fault::Slow(READ_INTERVAL * 2));
    sleep(READ_INTERVAL).await;
    bench.world.table.heartbeat(&heartbeat("holder")).await.expect("it is held");
    let version = bench.world.row().await.and_then(|row| row.rvn.into_value());
    let mut late = JoinSet::new();
    bench.watch(WatchRequest { version: version.clone(), ..bench.request() }, &mut late);
    let (answer, _) = watches.join_next().await.expect("one").expect("no panic");
    assert_eq!(Some(answer.expect("readable").record_version_number), version);
    assert!(late.try_join_next().is_none(), "the version is the one that it knows");
}

#[tokio::test(start_paused = true)]
async fn watch_is_woken_by_every_write_of_its_service() {
    let caller = Caller::unrestricted();
    let bench = Bench::new().await;
    let heartbeat = HeartbeatRequest { key: "Moe".into(), lease_id: secret(), ..HeartbeatRequest::default() };
    let renewed = bench.woken_by(async || drop(bench.service.heartbeat(&caller, heartbeat.clone()).await)).await;
    assert_ne!(renewed.expect("a lock").record_version_number, bench.version);

    let bench = Bench::new().await;
    let again = AcquireRequest {
        key: "Moe".into(),
        owner_name: "heir".into(),
        observed_record_version_number: Some(bench.version.clone()),
        ..AcquireRequest::default()
    };
    let taken = bench.woken_by(async || drop(bench.service.acquire(&caller, again.clone()).await)).await;
    assert_eq!(taken.expect("a lock").owner_name, "heir");

    let bench = Bench::new().await;
    let release = ReleaseRequest { key: "Moe".into(), lease_id: secret(), ..ReleaseRequest::default() };
    let released = bench.woken_by(async || drop(bench.service.release(&caller, release.clone()).await)).await;
    assert_eq!(released.expect("a lock").state, LockState::Released);

    let bench = Bench::new().await;
    let version = bench.version.clone();
    let broken = BreakRequest { key: "Moe".into(), record_version_number: version, ..BreakRequest::default() };
    let broken = bench.woken_by(async || drop(bench.service.break_lock(&caller, broken.clone()).await)).await;
    assert_eq!(broken.expect("a lock").state, LockState::Released);
}

#[tokio::test(start_paused = true)]
async fn watch_sees_the_writes_of_others_at_the_next_read() {
    let bench = Bench::new().await;
    let mut watches = JoinSet::new();
    bench.watch(bench.request(), &mut watches);
    sleep(READ_INTERVAL * 3 + READ_INTERVAL / 2).await;
    let update = bench.world.dynamodb.update_item().table_name("locks").key("key", AttributeValue::S("Moe".into()));
    let update = update.update_expression("SET isReleased = :one");
    update.expression_attribute_values(":one", AttributeValue::S("1".into())).send().await.expect("released");
    let written = Instant::now();
    let (answer, answered) = watches.join_next().await.expect("one").expect("no panic");
    // The Java client releases without a new version.
    let lock = answer.expect("a lock");
    assert_eq!((lock.state, &lock.record_version_number), (LockState::Released, &bench.version));
    assert_eq!(answered - written, READ_INTERVAL / 2);
}

#[tokio::test(start_paused = true)]
async fn watches_of_a_key_share_their_reads() {
    let bench = Bench::new().await;
    let mut watches = JoinSet::new();
    for _ in 0..50 {
        bench.watch(bench.request(), &mut watches);
    }
    let started = Instant::now();
    while let Some(watch) = watches.join_next().await {
        let (answer, answered) = watch.expect("no panic");
        assert_eq!(answer.expect("a lock").record_version_number, bench.version);
        assert_eq!(answered - started, WAIT);
    }
    // One read for each watch at its beginning, and one every half second for all.
    let shared = bench.world.faults.take_calls() - 50;
    assert!((38..=40).contains(&shared), "{shared}");
    sleep(READ_INTERVAL * 10).await;
    assert_eq!(bench.world.faults.take_calls(), 0, "nobody watches any more");
}

#[tokio::test(start_paused = true)]
async fn abandoned_watch_is_not_read_for() {
    let bench = Bench::new().await;
    let mut watches = JoinSet::new();
    bench.watch(bench.request(), &mut watches);
    sleep(READ_INTERVAL * 2).await;
    watches.abort_all();
    while watches.join_next().await.is_some() {}
    sleep(Duration::from_millis(1)).await;
    bench.world.faults.take_calls();
    sleep(READ_INTERVAL * 10).await;
    assert_eq!(bench.world.faults.take_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn watches_end_with_their_service() {
    let bench = Bench::new().await;
    let mut watches = JoinSet::new();
    bench.watch(bench.request(), &mut watches);
    sleep(READ_INTERVAL).await;
    bench.service.close_watches();
    // A watch that begins late ends, too.
    bench.watch(bench.request(), &mut watches);
    let closed = Instant::now();
    while let Some(watch) = watches.join_next().await {
        let (answer, answered) = watch.expect("no panic");
        assert_eq!(answer.expect("a lock").record_version_number, bench.version);
        assert_eq!(answered - closed, Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn watch_fails_when_the_table_does() {
    let bench = Bench::new().await;
    bench.world.faults.script([Fault::None].into_iter().chain([Fault::ServerError; 3]));
    let mut watches = JoinSet::new();
    bench.watch(bench.request(), &mut watches);
    let (answer, _) = watches.join_next().await.expect("one").expect("no panic");
    assert_eq!(answer.expect_err("nobody knows").problem_type, ProblemType::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn watch_is_refused_outside_the_callers_scope() {
    let bench = Bench::new().await;
    let principal = Principal::new("someone").expect("valid");
    let caller = Caller::named(principal, Some(vec!["orders/".into()]), false);
    let refused = bench.service.watch(&caller, bench.request()).await.expect_err("refused");
    assert_eq!((refused.problem_type, bench.world.faults.take_calls()), (ProblemType::Forbidden, 0));
}

/// Time is real here, because of the socket.
#[tokio::test]
async fn watch_ends_when_its_client_hangs_up() {
    let bench = Arc::new(Bench::new().await);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let routes = leasehold_server::routes(bench.service.clone());
    tokio::spawn(leasehold_server::run(listener, routes, std::future::pending()));
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head = format!("GET /v1/watch?key=Moe&version={} HTTP/1.1\r\nhost: localhost\r\n\r\n", bench.version);
    stream.write_all(head.as_bytes()).await.expect("sent");
    while bench.world.faults.take_calls() == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    drop(stream);
    let unread = async {
        loop {
            bench.world.faults.take_calls();
            sleep(READ_INTERVAL * 3).await;
            if bench.world.faults.take_calls() == 0 {
                return;
            }
        }
    };
    // Half of the wait that the client requested.
    tokio::time::timeout(WAIT / 2, unread).await.expect("nobody reads for a client that is gone");
}
