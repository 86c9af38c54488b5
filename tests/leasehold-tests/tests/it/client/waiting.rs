//! Requests and waits: C1, C3, C4, C5, C9.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Request;
use leasehold_client::wire::AcquireOutcome;
use leasehold_client::{
    Acquisition, Client, ErrorKind, Heartbeats, LockRequest, Observation, SavedObservation, Transport, Wait,
};
use leasehold_tests::World;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, LEASE, Network, SECOND, granted};

/// The time for which an observer waits for a holder with [`LEASE`]: a thousandth longer than the lease.
const STALE: Duration = Duration::from_millis(20_020);

/// A lock whose holder never heartbeats again.
async fn dead(world: &World, lease: Duration) {
    let request = LockRequest::new("Moe").lease(lease).heartbeats(Heartbeats::Manual);
    granted(&world.client("dead"), request).await.detach();
}

fn held(acquisition: Acquisition) -> Observation {
    match acquisition {
        Acquisition::Held(held) => held.observation,
        Acquisition::Granted(guard) => panic!("granted: {guard:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn free_lock_is_one_request_and_a_release_another() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let began = Instant::now();
    for _ in 0..6 {
        granted(&client, "Moe").await.release().await.expect("held");
    }
    assert_eq!(network.take_log(), ["/v1/acquire", "/v1/release"].repeat(6));
    assert_eq!(began.elapsed(), Duration::ZERO, "nobody wanted it");
    drop(client.try_acquire("Moe").await.expect("reachable").granted().expect("free, and asked for at once"));
}

#[tokio::test(start_paused = true)]
async fn held_lock_is_a_value_and_one_request() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let Acquisition::Held(held) = client.try_acquire("Moe").await.expect("reachable") else { panic!("granted twice") };
    assert_eq!((held.lock.owner_name.as_str(), held.observation.stale_in()), ("holder", STALE));
    assert_eq!(network.take_log(), ["/v1/acquire"]);
}

#[tokio::test(start_paused = true)]
async fn dead_holder_is_taken_over_one_lease_after_first_sight() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    sleep(SECOND * 60).await;
    let began = Instant::now();
    let guard = granted(&world.client("heir"), "Moe").await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
    assert_eq!(guard.previous_owner_name(), Some("dead"));
    let waited = began.elapsed();
    assert!(waited >= STALE && waited < STALE + Duration::from_millis(5), "a lease, and no poll more: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn lease_of_the_record_counts_and_not_the_one_asked_for() {
    let world = World::new().await;
    dead(&world, SECOND * 60).await;
    let began = Instant::now();
    let _guard = granted(&world.client("heir"), LockRequest::new("Moe").lease(SECOND)).await;
    assert!(began.elapsed() >= SECOND * 60, "{:?}", began.elapsed());

    let world = World::new().await;
    dead(&world, SECOND * 2).await;
    let began = Instant::now();
    let _guard = granted(&world.client("heir"), LockRequest::new("Moe").lease(SECOND * 60)).await;
    assert!(began.elapsed() < SECOND * 3, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn observation_restarts_when_the_version_moved_the_wait_not() {
    let world = World::new().await;
    let holder = granted(&world.client("holder"), LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    tokio::spawn(async move {
        sleep(SECOND * 15).await;
        holder.renew().await.expect("held");
        holder.detach();
    });
    let began = Instant::now();
    let observation = held(world.client("waiter").acquire("Moe").await.expect("reachable"));
    let waited = began.elapsed();
    assert!(waited >= STALE + SECOND * 2 && waited < LEASE + SECOND * 3, "one lease and the margin: {waited:?}");
    assert!(observation.age() < SECOND * 8, "counted since the heartbeat: {:?}", observation.age());
}

#[tokio::test(start_paused = true)]
async fn extending_wait_outlives_a_live_holder() {
    let world = World::new().await;
    let holder = granted(&world.client("holder"), "Moe").await;
    let died = Arc::new(Mutex::new(None));
    let death = Arc::clone(&died);
    tokio::spawn(async move {
        sleep(SECOND * 100).await;
        holder.detach();
        *death.lock().expect("not poisoned") = Some(Instant::now());
    });
    let wait = Wait::OneLease { margin: SECOND * 2, extend: true };
    let guard = granted(&world.client("heir"), LockRequest::new("Moe").wait(wait)).await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
    let since_death = died.lock().expect("not poisoned").expect("it died").elapsed();
    assert!(since_death < LEASE + SECOND * 2, "one lease after the last version, and a poll: {since_death:?}");
}

#[tokio::test(start_paused = true)]
async fn fixed_wait_ends_on_time_and_zero_is_one_look() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    for limit in [0, 1, 7] {
        let network = Network::new(world.transport());
        let client = Client::new(network.clone());
        let began = Instant::now();
        held(client.acquire(LockRequest::new("Moe").wait(Wait::AtMost(SECOND * limit))).await.expect("reachable"));
        let late = began.elapsed().saturating_sub(SECOND * limit);
        assert!(began.elapsed() >= SECOND * limit && late < SECOND / 4, "{limit} s: {:?}", began.elapsed());
        assert!(!network.take_log().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_without_bound_is_granted_in_the_end() {
    let world = World::new().await;
    let holder = granted(&world.client("holder"), "Moe").await;
    tokio::spawn(async move {
        sleep(SECOND * 3600).await;
        holder.release().await.expect("held");
    });
    let began = Instant::now();
    let guard = granted(&world.client("waiter"), LockRequest::new("Moe").wait(Wait::Forever)).await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::Reacquired));
    assert!(began.elapsed() < SECOND * 3602, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn polls_keep_their_distance_and_do_not_move_in_step() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let polls = Arc::new(Mutex::new(Vec::new()));
    let network = Network::new(world.transport());
    let times = Arc::clone(&polls);
    network.set(move |path| {
        if path == "/v1/acquire" {
            times.lock().expect("not poisoned").push(Instant::now());
        }
        Fate::Delivered
    });
    let request = LockRequest::new("Moe").poll_interval(SECOND / 10).wait(Wait::AtMost(SECOND * 60));
    held(Client::new(network).acquire(request).await.expect("reachable"));
    let polls = polls.lock().expect("not poisoned");
    let interval = SECOND / 10;
    let gaps: Vec<Duration> = polls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The last poll comes at the end of the wait.
    let (_, gaps) = gaps.split_last().expect("several polls");
    assert!(gaps.iter().all(|gap| *gap >= interval && *gap <= interval * 5 / 4 + Duration::from_millis(2)), "{gaps:?}");
    let distinct: std::collections::HashSet<_> = gaps.iter().collect();
    assert!(distinct.len() > 10, "the caller's choice overrides the service's second, and jitter is added: {gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn progress_tells_the_holder_and_when_it_would_be_stale() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let request = LockRequest::new("Moe").on_wait(move |waiting| {
        let line = (waiting.lock.owner_name.clone(), waiting.stale_in, waiting.gives_up_in);
        telling.lock().expect("not poisoned").push(line);
    });
    let _guard = granted(&world.client("heir"), request).await;
    let told = told.lock().expect("not poisoned");
    assert!(told.len() >= 15, "every second or so: {told:?}");
    assert_eq!(told[0], ("dead".to_owned(), STALE, Some(STALE + SECOND * 2)));
    assert!(told.windows(2).all(|pair| pair[1].1 < pair[0].1), "it comes closer: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn service_that_has_answered_is_retried_for_the_budget() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    assert_eq!(client.get("Moe").await.expect_err("no lock yet").kind(), &ErrorKind::NotFound);
    network.cut();
    network.take_log();
    let began = Instant::now();
    let error = client.acquire("Moe").await.expect_err("nobody answers");
    assert_eq!(error.kind(), &ErrorKind::Unavailable);
    assert!(began.elapsed() > SECOND * 8 && began.elapsed() < SECOND * 12, "{:?}", began.elapsed());
    assert!(network.take_log().len() > 5, "it tried again");
    let error = client.try_acquire("Moe").await.expect_err("nobody answers");
    assert_eq!((error.kind(), network.take_log().len()), (&ErrorKind::Unavailable, 1), "one request");
}

#[tokio::test(start_paused = true)]
async fn service_that_was_never_reached_is_given_up_soon() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.cut();
    let client = Client::new(network.clone());
    let soon = Duration::from_millis(1500);
    for extend in [false, true] {
        let began = Instant::now();
        let wait = Wait::OneLease { margin: SECOND * 2, extend };
        let error = client.acquire(LockRequest::new("Moe").wait(wait)).await.expect_err("nobody answers");
        assert_eq!((error.kind(), began.elapsed() <= soon), (&ErrorKind::Unavailable, true), "{:?}", began.elapsed());
        assert!(network.take_log().len() >= 4, "it tried again");
    }
    let began = Instant::now();
    let error = client.get("Moe").await.expect_err("nobody answers");
    assert_eq!((error.kind(), began.elapsed() <= soon), (&ErrorKind::Unavailable, true), "{:?}", began.elapsed());
    assert!(network.take_log().len() >= 4, "it tried again");

    let began = Instant::now();
    let chosen = LockRequest::new("Moe").wait(Wait::AtMost(SECOND * 60));
    client.acquire(chosen).await.expect_err("nobody answers");
    assert!(began.elapsed() > SECOND * 50, "the caller chose the time: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn request_that_may_have_arrived_is_repeated() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set(|_| Fate::AnswerLost);
    let began = Instant::now();
    Client::new(network).get("Moe").await.expect_err("no answer arrives");
    assert!(began.elapsed() > SECOND * 8, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn service_that_comes_back_is_used_after_its_retry_after() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let mut refusals = 3;
    network.set(move |_| {
        refusals -= 1;
        if refusals >= 0 { Fate::Gateway(429, Some(2), r#"{"message":"Too Many Requests"}"#) } else { Fate::Delivered }
    });
    let began = Instant::now();
    let _guard = granted(&client, "Moe").await;
    assert!(began.elapsed() >= SECOND * 6, "three times two seconds: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn wait_ends_at_once_when_no_time_is_left_for_a_request() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set(|_| Fate::Gateway(429, Some(2), ""));
    let began = Instant::now();
    let request = LockRequest::new("Moe").wait(Wait::AtMost(SECOND * 2));
    let error = Client::new(network.clone()).acquire(request).await.expect_err("throttled");
    assert_eq!((error.kind(), began.elapsed()), (&ErrorKind::Throttled, Duration::ZERO));
    assert_eq!(network.take_log().len(), 1, "the service asks for a pause as long as the wait");
}

#[tokio::test(start_paused = true)]
async fn gateways_answers_are_sorted_by_their_status() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    for (status, body, kind) in [
        (401, r#"{"message":"Unauthorized"}"#, ErrorKind::Forbidden),
        (403, r#"{"message":"Forbidden"}"#, ErrorKind::Forbidden),
        (404, "<html>not here</html>", ErrorKind::InvalidRequest { field: None }),
        (429, "", ErrorKind::Throttled),
        (500, r#"{"message":"Internal Server Error"}"#, ErrorKind::Unavailable),
        (502, "<html>bad gateway</html>", ErrorKind::Unavailable),
        (200, "<html>log in first</html>", ErrorKind::Unavailable),
    ] {
        network.set(move |_| Fate::Gateway(status, None, body));
        let error = client.try_acquire("Moe").await.expect_err("not an answer");
        assert_eq!(error.kind(), &kind, "{status} {body}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_of_the_service_are_sorted_by_their_type() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    for (name, status, kind) in [
        ("wrong-kind", 409, ErrorKind::WrongKind),
        ("permits-mismatch", 409, ErrorKind::PermitsMismatch),
        ("exceeds-capacity", 409, ErrorKind::ExceedsCapacity),
        ("queue-full", 423, ErrorKind::QueueFull(None)),
        ("corrupt-record", 500, ErrorKind::CorruptRecord),
        ("misconfigured", 500, ErrorKind::Misconfigured),
    ] {
        let problem: &'static str = format!(r#"{{"type":"{name}","status":{status},"title":"t","detail":"d"}}"#).leak();
        network.set(move |_| Fate::Gateway(status, None, problem));
        assert_eq!(*client.get("Moe").await.expect_err("refused").kind(), kind, "{name}");
    }
}

/// A refusal is also final where the service refuses a key out of scope: its detail is kept, and the client does not
/// retry.
#[tokio::test(start_paused = true)]
async fn forbidden_is_told_at_once() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    network.set(|_| {
        let problem = r#"{"type":"forbidden","status":403,"title":"t","detail":"jwt:me may not touch this key."}"#;
        Fate::Gateway(403, None, problem)
    });
    let began = Instant::now();
    let error = client.acquire("Moe").await.expect_err("not allowed");
    assert_eq!((error.kind(), error.to_string().as_str()), (&ErrorKind::Forbidden, "jwt:me may not touch this key."));
    assert!(!error.retryable() && began.elapsed().is_zero());
}

#[tokio::test(start_paused = true)]
async fn lost_answer_leads_to_the_same_lock_and_the_repeat_counts() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set_first(Fate::AnswerLost);
    let guard = granted(&Client::new(network), "Moe").await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::Created), "the repeat tells what the first try was told");
    assert!(guard.remaining() <= LEASE);
}

#[tokio::test(start_paused = true)]
async fn grant_that_arrives_after_its_lease_is_asked_for_again() {
    // The time-out of a request is at least 200 ms: this lease is over before that.
    let lease = Duration::from_millis(100);
    for late in [lease, lease * 3 / 2] {
        let world = World::new().await;
        let network = Network::new(world.transport());
        network.set_first(Fate::AnswerLate(late));
        let guard = granted(&Client::new(network), LockRequest::new("Moe").lease(lease)).await;
        assert!(guard.valid(), "{late:?}");
        assert_eq!(guard.outcome(), Some(AcquireOutcome::Created), "how it was really acquired");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_id_that_an_operator_ended_is_replaced() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let operator = world.client("operator");
    network.set_first(Fate::AnswerLost);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { granted(&client, "Moe").await }
    });
    // The first attempt was carried out, and its answer was lost. An operator breaks the lock, which has no holder that
    // knows of it.
    let lock = loop {
        tokio::task::yield_now().await;
        if let Ok(lock) = operator.get("Moe").await {
            break lock;
        }
    };
    operator.break_lock("Moe", lock.record_version_number).await.expect("as seen");
    let guard = waiting.await.expect("no panic");
    assert!(guard.valid());
}

#[tokio::test(start_paused = true)]
async fn looks_that_are_far_apart_add_up_within_a_client() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    let client = world.client("cron");
    held(client.try_acquire("Moe").await.expect("reachable"));
    sleep(LEASE - SECOND).await;
    held(client.try_acquire("Moe").await.expect("reachable"));
    sleep(SECOND).await;
    held(client.try_acquire("Moe").await.expect("reachable"));
    sleep(STALE - LEASE).await;
    let guard = client.try_acquire("Moe").await.expect("reachable").granted().expect("stale");
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
    assert_eq!(client.save_observations(), [], "it is the caller's own now");
}

fn epoch_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_millis()).expect("not that late")
}

/// A second process loads the observations of a first one. The wall clock is the real one, so the observation contains
/// the time of `ago_ms`.
async fn carried_over(world: &World, ago_ms: i64) -> Acquisition {
    let first = world.client("cron");
    held(first.try_acquire("Moe").await.expect("reachable"));
    let mut saved = first.save_observations();
    let age = epoch_ms().saturating_sub(saved[0].first_seen_epoch_ms);
    assert!(age < 10_000, "just now: {age} ms ago");
    saved[0].first_seen_epoch_ms = epoch_ms().checked_add_signed(-ago_ms).expect("in range");
    let json = serde_json::to_string(&saved).expect("serialises");
    let second = world.client("cron");
    second.load_observations(serde_json::from_str::<Vec<SavedObservation>>(&json).expect("round trip"));
    second.try_acquire("Moe").await.expect("reachable")
}

#[tokio::test(start_paused = true)]
async fn looks_that_are_far_apart_add_up_across_processes() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    held(carried_over(&world, 20_500).await);
    let guard = carried_over(&world, 21_100).await.granted().expect("stale: a lease and the margin");
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
}

#[tokio::test(start_paused = true)]
async fn foreign_or_future_observation_proves_nothing() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    let observation = held(carried_over(&world, -3_600_000).await);
    let margin = observation.stale_in() - STALE;
    assert!(margin <= SECOND, "it starts again: {margin:?}");

    let client = world.client("cron");
    let old = SavedObservation {
        key: "Moe".into(),
        sort_key: None,
        entry_id: None,
        record_version_number: "another".into(),
        lease_duration_ms: 20_000,
        first_seen_epoch_ms: 0,
    };
    client.load_observations([old]);
    let observation = held(client.try_acquire("Moe").await.expect("reachable"));
    assert_eq!(observation.stale_in(), STALE);
}

#[tokio::test(start_paused = true)]
async fn service_can_be_asked_to_judge_by_its_clock() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    let request = || LockRequest::new("Moe").stale_by_clock();
    held(world.client("cron").try_acquire(request()).await.expect("reachable"));
    sleep(LEASE + SECOND + Duration::from_millis(1)).await;
    let guard = world.client("cron").try_acquire(request()).await.expect("reachable").granted().expect("stale");
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
}

#[tokio::test(start_paused = true)]
async fn waiter_asks_after_each_watch_when_the_service_judges() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    let network = Network::new(world.transport());
    let mut requests = 0;
    network.set(move |_| {
        requests += 1;
        // A waiter without pauses does not come to its end.
        if requests > 100 { Fate::Gateway(403, None, "") } else { Fate::Delivered }
    });
    let began = Instant::now();
    let request = LockRequest::new("Moe").stale_by_clock().wait(Wait::Forever);
    let guard = granted(&Client::new(network.clone()), request).await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
    let waited = began.elapsed();
    assert!(waited > LEASE + SECOND && waited < LEASE + SECOND * 3, "{waited:?}");
    let log = network.take_log();
    let count = |path: &str| log.iter().filter(|asked| *asked == path).count();
    assert!((17..=24).contains(&count("/v1/acquire")), "one each second or so: {log:?}");
    assert_eq!(count("/v1/watch") + 1, count("/v1/acquire"), "it watches in between: {log:?}");
}

#[tokio::test(start_paused = true)]
async fn invalid_requests_are_refused_before_they_are_sent() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    for request in [
        LockRequest::new("Moe").lease(Duration::from_millis(99)),
        LockRequest::new("Moe").lease(SECOND * 86_401),
        LockRequest::new("Moe").heartbeats(Heartbeats::Every(SECOND * 11)),
        LockRequest::new("Moe").heartbeats(Heartbeats::Every(Duration::ZERO)),
        LockRequest::new("Moe").at_risk(SECOND * 15, |_| ()),
    ] {
        let error = client.acquire(request).await.expect_err("invalid");
        assert!(matches!(error.kind(), ErrorKind::InvalidRequest { field: Some(_) }), "{error}");
    }
    assert_eq!(network.take_log(), [""; 0]);
    let error = client.acquire("").await.expect_err("the service refuses it");
    assert_eq!(error.kind(), &ErrorKind::InvalidRequest { field: Some("key".into()) });
    assert_eq!(network.take_log().len(), 1, "what is wrong stays wrong");
    let error = client.acquire(LockRequest::new("Moe").only_if_exists()).await.expect_err("no row");
    assert_eq!(error.kind(), &ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn two_waiters_do_not_both_get_it() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    let wait = Wait::AtMost(LEASE * 3 / 2);
    let (one, two) = (world.client("one"), world.client("two"));
    let race = async {
        tokio::join!(one.acquire(LockRequest::new("Moe").wait(wait)), two.acquire(LockRequest::new("Moe").wait(wait)))
    };
    let (one, two) = timeout(LEASE * 2, race).await.expect("both end");
    let granted = [one, two].into_iter().filter(|end| matches!(end, Ok(Acquisition::Granted(_)))).count();
    assert_eq!(granted, 1, "and it lives, so the other gives up");
}

#[tokio::test(start_paused = true)]
async fn observation_counts_from_after_the_answer() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    network.set(|_| Fate::AnswerLate(SECOND * 3));
    held(client.try_acquire("Moe").await.expect("reachable"));
    network.mend();
    sleep(LEASE - SECOND).await;
    let observation = held(client.try_acquire("Moe").await.expect("reachable"));
    assert_eq!(observation.stale_in(), SECOND + STALE - LEASE, "the three seconds on the way are not its own");
}

#[tokio::test(start_paused = true)]
async fn clock_margin_is_taken_once_for_each_observation() {
    let world = World::new().await;
    dead(&world, LEASE).await;
    let first = world.client("cron");
    held(first.try_acquire("Moe").await.expect("reachable"));
    let mut saved = first.save_observations();
    saved[0].first_seen_epoch_ms = epoch_ms() - 10_000;
    for _ in 0..5 {
        let next = world.client("cron");
        next.load_observations(saved);
        let observation = held(next.try_acquire("Moe").await.expect("reachable"));
        let left = observation.stale_in();
        assert!(left > SECOND * 10 && left < SECOND * 11 + Duration::from_millis(100), "{left:?}");
        saved = next.save_observations();
    }
}

#[tokio::test(start_paused = true)]
async fn gateway_that_gave_up_waiting_may_have_left_a_lock() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set(|path| if path == "/v1/acquire" { Fate::GaveUp(504) } else { Fate::Delivered });
    Client::new(network.clone()).try_acquire("Moe").await.expect_err("nobody knows");
    sleep(SECOND).await;
    assert!(world.row().await.expect("a row").released, "and it is given back");
}

#[tokio::test(start_paused = true)]
async fn short_lease_leaves_time_for_a_second_try() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let guard = granted(&Client::new(network.clone()), LockRequest::new("Moe").lease(SECOND * 2)).await;
    // Every second request hangs for ever.
    let mut hangs = false;
    network.set(move |_| {
        hangs = !hangs;
        if hangs { Fate::Overdue(SECOND * 1000) } else { Fate::Delivered }
    });
    sleep(SECOND * 60).await;
    assert!(guard.valid());
}

#[tokio::test(start_paused = true)]
async fn wait_whose_last_look_fails_still_says_who_has_the_lock() {
    let world = World::new().await;
    let _holder = granted(&world.client("holder"), "Moe").await;
    let network = Network::new(world.transport());
    let began = Instant::now();
    network.set(move |_| if began.elapsed() > SECOND * 4 { Fate::Overdue(SECOND * 1000) } else { Fate::Delivered });
    let request = LockRequest::new("Moe").wait(Wait::AtMost(SECOND * 5));
    held(Client::new(network.clone()).acquire(request).await.expect("it was seen held"));
    // A wait of zero also leaves time for an answer.
    network.set(|_| Fate::Slow(SECOND / 2));
    held(
        Client::new(network)
            .acquire(LockRequest::new("Moe").wait(Wait::AtMost(Duration::ZERO)))
            .await
            .expect("one look"),
    );
}

#[tokio::test(start_paused = true)]
async fn duration_too_large_to_count_is_for_ever_and_no_panic() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::builder().retry_budget(Duration::MAX).request_timeout(Duration::MAX).build(network.clone());
    let holder = granted(&client, LockRequest::new("Moe").lease(SECOND * 86_400)).await;
    for request in [
        LockRequest::new("Moe").wait(Wait::AtMost(Duration::MAX)).poll_interval(Duration::MAX),
        LockRequest::new("Moe").wait(Wait::OneLease { margin: Duration::MAX, extend: true }),
    ] {
        assert!(timeout(SECOND * 100, world.client("waiter").acquire(request)).await.is_err(), "it waits");
    }
    network.set(|_| Fate::Gateway(503, Some(u32::MAX), ""));
    assert!(timeout(SECOND * 100, holder.release()).await.is_err(), "it tries again");
    network.mend();
    sleep(SECOND * 100).await;
    assert!(world.row().await.expect("a row").released, "every minute, at the latest");
    client.close().await.expect("nothing is held");
}

#[tokio::test(start_paused = true)]
async fn answer_of_another_server_is_not_quoted_with_secrets() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set(|_| Fate::Gateway(200, None, r#"{"key":"Moe","leaseId":"the secret","outcome":"unheard of"}"#));
    let error = Client::new(network).try_acquire("Moe").await.expect_err("not understood");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn client_pauses_once_a_second_when_nobody_wants_the_lock() {
    let world = World::new().await;
    let client = world.client("alone");
    let began = Instant::now();
    let mut pauses = 0;
    for _ in 0..60 {
        let asked = Instant::now();
        let guard = granted(&client, "Moe").await;
        pauses += u32::from(asked.elapsed() >= SECOND / 2);
        sleep(SECOND / 10).await;
        guard.release().await.expect("held");
    }
    assert!((3..=6).contains(&pauses), "{pauses} pauses in {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn client_pauses_when_the_answer_to_its_release_was_lost() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let guard = granted(&client, "Moe").await;
    network.set_first(Fate::AnswerLost);
    guard.release().await.expect("held");
    let asked = Instant::now();
    drop(granted(&client, "Moe").await);
    assert!(asked.elapsed() >= SECOND / 2, "somebody may wait: {:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiter_marks_the_lock_once_for_each_holder() {
    let world = World::new().await;
    let service = world.transport();
    let holder = granted(&Client::new(service.clone()), "Moe").await;
    assert!(!holder.is_wanted());
    let network = Network::new(service.clone());
    let client = Client::builder().owner_name("waiter").build(network.clone());
    let waiting = tokio::spawn(async move { granted(&client, LockRequest::new("Moe").wait(Wait::Forever)).await });
    let told = Instant::now();
    holder.wanted().await;
    assert!(holder.is_wanted() && told.elapsed() <= LEASE / 4 + SECOND, "{:?}", told.elapsed());
    let seen = world.client("onlooker").get("Moe").await.expect("there");
    assert_eq!(seen.wanted_by.as_deref(), Some("waiter"));
    sleep(SECOND * 60).await;
    holder.release().await.expect("held");
    let guard = waiting.await.expect("no panic");
    let wants = network.take_log().iter().filter(|path| *path == "/v1/want").count();
    assert_eq!((wants, guard.is_wanted()), (1, false));
}

#[tokio::test(start_paused = true)]
async fn waiter_marks_neither_a_large_row_nor_its_own_clients_lock() {
    let world = World::new().await;
    let service = world.transport();
    let network = Network::new(service.clone());
    let client = Client::new(network.clone());
    let own = granted(&client, "own").await;
    let large = granted(&Client::new(service), LockRequest::new("large").data(vec![b'x'; 4097])).await;
    for key in ["own", "large"] {
        let wait = LockRequest::new(key).wait(Wait::AtMost(SECOND * 30));
        held(client.acquire(wait).await.expect("reachable"));
    }
    assert!(!network.take_log().contains(&"/v1/want".to_owned()));
    drop((own, large));
}

/// A caller of plain HTTP takes turns as the documents tell it: after its first 423 it sends `want`, and asks again
/// each quarter of a second; it goes on at once where nobody wanted the lock, and else pauses for a second.
#[tokio::test(start_paused = true)]
async fn client_and_plain_caller_share_a_lock_evenly() {
    let world = World::new().await;
    let service = world.transport();
    let end = Instant::now() + SECOND * 120;
    let hold = Duration::from_millis(50);
    let client = Client::new(service.clone());
    let by_client = async {
        let mut grants = 0;
        while Instant::now() < end {
            let guard = granted(&client, LockRequest::new("Moe").wait(Wait::Forever)).await;
            grants += 1;
            sleep(hold).await;
            guard.release().await.expect("held");
        }
        grants
    };
    let plain = |path: &'static str, body: Value| {
        let request = Request::post(path).header("content-type", "application/json");
        let answer = service.send(request.body(body.to_string().into_bytes()).expect("a request"));
        async move {
            let answer = answer.await.expect("in process");
            (answer.status().as_u16(), serde_json::from_slice::<Value>(answer.body()).expect("JSON"))
        }
    };
    let by_hand = async {
        let mut grants = 0;
        let mut refusals = 0;
        while Instant::now() < end {
            let lease_id = format!("{grants}");
            let request = json!({ "key": "Moe", "ownerName": "plain", "leaseId": lease_id });
            let (status, _) = plain("/v1/acquire", request).await;
            if status == 423 {
                refusals += 1;
                if refusals == 1 {
                    plain("/v1/want", json!({ "key": "Moe", "ownerName": "plain" })).await;
                }
                sleep(SECOND / 4).await;
                continue;
            }
            (grants, refusals) = (grants + 1, 0);
            sleep(hold).await;
            let (_, released) = plain("/v1/release", json!({ "key": "Moe", "leaseId": lease_id })).await;
            if released["wanted"] == true {
                sleep(SECOND).await;
            }
        }
        grants
    };
    let (client, plain): (u32, u32) = tokio::join!(by_client, by_hand);
    let share = f64::from(client) / f64::from(client + plain);
    assert!((0.4..=0.6).contains(&share), "{client} grants to the client, {plain} to the plain caller");
}

/// Two clients repeatedly want one lock, each at once after its release.
#[tokio::test(start_paused = true)]
async fn two_clients_that_come_back_at_once_take_turns() {
    let world = World::new().await;
    let end = Instant::now() + SECOND * 600;
    let busy = |name: &'static str| {
        let client = world.client(name);
        async move {
            let mut grants = 0;
            while Instant::now() < end {
                if let Acquisition::Granted(guard) = client.acquire("Moe").await.expect("reachable") {
                    grants += 1;
                    sleep(SECOND * 5).await;
                    guard.release().await.expect("held");
                }
            }
            grants
        }
    };
    let (one, two) = tokio::join!(busy("one"), busy("two"));
    assert!(one.min(two) * 3 > one.max(two) * 2 && one + two > 80, "{one} grants to {two}");
}

#[tokio::test(start_paused = true)]
async fn lease_of_an_hour_is_stale_after_a_thousandth_more() {
    let world = World::new().await;
    dead(&world, SECOND * 3600).await;
    let began = Instant::now();
    let _guard = granted(&world.client("heir"), "Moe").await;
    let more = began.elapsed() - SECOND * 3600;
    assert!(more >= Duration::from_millis(3600) && more < Duration::from_millis(3605), "{more:?}");
}
