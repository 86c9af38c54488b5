//! Rules C2, C7 and C8, for the time in which a lock is held.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_client::{
    Acquisition, Client, Error, ErrorKind, Guard, Handover, Heartbeat, Heartbeats, LockRequest, Loss, LossReason,
    Release, Released, Wait,
};
use leasehold_tests::{Fault, World, key};
use tokio::time::{Instant, sleep, timeout};

use super::{Fate, LEASE, Network, SECOND, granted};

/// A client behind a network, and one of its guards.
async fn guarded(world: &World, request: impl Into<LockRequest>) -> (Network, Client, Guard) {
    let network = Network::new(world.transport());
    let client = Client::builder().owner_name("holder").build(network.clone());
    let guard = granted(&client, request).await;
    network.take_log();
    (network, client, guard)
}

/// An operator breaks the lock, and another client acquires it.
async fn steal(world: &World) -> Guard {
    let thief = world.client("thief");
    let lock = thief.get("Moe").await.expect("held");
    thief.break_lock("Moe", lock.record_version_number).await.expect("as seen");
    granted(&thief, "Moe").await
}

#[tokio::test(start_paused = true)]
async fn guard_heartbeats_every_quarter_of_its_lease() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, "Moe").await;
    let token = guard.fencing_token();
    for _ in 0..600 {
        sleep(SECOND).await;
        assert!(guard.valid() && guard.remaining() > LEASE * 7 / 10, "{:?}", guard.remaining());
    }
    let heartbeats = network.take_log().len();
    assert!((123..=134).contains(&heartbeats), "one in 4.5 to 5 s, at random: {heartbeats}");
    assert_eq!(guard.fencing_token(), token, "one acquisition, one token");
    assert_eq!(guard.release().await.expect("held"), Released::Released);
    sleep(LEASE).await;
    assert_eq!(network.take_log(), ["/v1/release"], "and no heartbeat after it");
}

#[tokio::test(start_paused = true)]
async fn two_hundred_guards_miss_no_heartbeat_for_a_minute() {
    let world = World::new().await;
    let client = world.client("many");
    let mut guards = Vec::new();
    for number in 0..200 {
        guards.push(granted(&client, LockRequest::new(format!("lock-{number}")).lease(SECOND * 4)).await);
    }
    for _ in 0..120 {
        sleep(SECOND / 2).await;
        let least = guards.iter().map(Guard::remaining).min().expect("many");
        assert!(least > SECOND * 5 / 2, "{least:?}");
    }
    client.close().await.expect("all are released");
    let released = |guard: &Guard| guard.loss().is_some_and(|loss| loss.reason == LossReason::Released);
    assert!(guards.iter().all(released), "whoever works under one of them learns it");
}

#[tokio::test(start_paused = true)]
async fn lease_counts_from_before_the_request_was_sent() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set(|_| Fate::AnswerLate(SECOND * 3));
    let client = Client::new(network);
    let sent = Instant::now();
    let guard = granted(&client, LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    assert!(sent.elapsed() >= SECOND * 3);
    assert!(guard.remaining() <= LEASE - SECOND * 3, "{:?}", guard.remaining());
    let loss = guard.lost().await.expect("lost");
    assert!(sent.elapsed() >= LEASE && sent.elapsed() < LEASE + SECOND / 100, "{:?}", sent.elapsed());
    assert_eq!(loss.reason, LossReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn heartbeat_counts_from_before_it_was_sent() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    sleep(SECOND * 10).await;
    network.set(|_| Fate::AnswerLate(SECOND * 3));
    guard.renew().await.expect("held");
    assert!(guard.remaining() <= LEASE - SECOND * 3, "{:?}", guard.remaining());

    // A repeat counts from before the first sending.
    let mut first = true;
    network.set(move |_| if std::mem::take(&mut first) { Fate::AnswerLost } else { Fate::AnswerLate(SECOND * 2) });
    let sent = Instant::now();
    guard.renew().await.expect("held");
    assert!(guard.remaining() <= LEASE - sent.elapsed(), "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn outage_shorter_than_the_lease_is_survived() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, "Moe").await;
    for _ in 0..10 {
        network.cut();
        network.take_log();
        sleep(SECOND * 13).await;
        assert!(guard.valid());
        let tries = network.take_log().len();
        assert!((5..60).contains(&tries), "again and again, at growing distances: {tries}");
        network.mend();
        sleep(SECOND * 6).await;
        assert!(guard.valid() && guard.remaining() > SECOND * 14, "{:?}", guard.remaining());
    }
}

#[tokio::test(start_paused = true)]
async fn lock_is_lost_when_an_outage_outlasts_the_lease() {
    let world = World::new().await;
    for fate in [Fate::NotSent, Fate::AnswerLost, Fate::Gateway(503, None, ""), Fate::Gateway(403, None, "")] {
        let (network, _client, guard) = guarded(&world, "Moe").await;
        let remaining = guard.remaining();
        let began = Instant::now();
        // An unanswered heartbeat may still be carried out: the row lives on, and the holder no longer believes in it.
        network.set(move |_| fate.clone());
        let loss = guard.lost().await.expect("lost");
        assert_eq!(loss.reason, LossReason::Expired);
        assert!(loss.cause.is_some(), "an outage, and not a theft: {loss}");
        assert!(began.elapsed() >= remaining, "it tried to the end");
        assert!(began.elapsed() < remaining + SECOND / 100, "{:?}", began.elapsed());
        assert!(!guard.valid() && guard.remaining().is_zero());
        network.mend();
        sleep(LEASE).await;
        assert!(!guard.valid(), "lost is lost");
        let error = guard.renew().await.expect_err("lost");
        assert!(matches!(error.kind(), ErrorKind::Lost(loss) if loss.reason == LossReason::Expired), "{error}");
        let error = guard.release().await.expect_err("lost");
        assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
        sleep(LEASE * 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn theft_is_known_at_the_next_heartbeat_and_names_the_thief() {
    let world = World::new().await;
    let (_network, _client, guard) = guarded(&world, "Moe").await;
    let _thief = steal(&world).await;
    let began = Instant::now();
    let loss = guard.lost().await.expect("lost");
    assert!(began.elapsed() <= LEASE / 4, "{:?}", began.elapsed());
    assert_eq!((loss.reason, loss.lock.expect("a row").owner_name.as_str()), (LossReason::TakenOver, "thief"));
    let error = guard.release().await.expect_err("it is the thief's");
    assert!(matches!(error.kind(), ErrorKind::Lost(_)));
}

#[tokio::test(start_paused = true)]
async fn losses_are_equal_when_one_lock_went_the_same_way() {
    let world = World::new().await;
    let (_network, _client, guard) = guarded(&world, "Moe").await;
    let _thief = steal(&world).await;
    let loss = guard.lost().await.expect("lost");
    assert_eq!(guard.loss(), Some(loss.clone()));
    for change in [
        |loss: &mut Loss| loss.key = "Joe".into(),
        |loss: &mut Loss| loss.reason = LossReason::Absent,
        |loss: &mut Loss| loss.lock = None,
    ] {
        let mut other = loss.clone();
        change(&mut other);
        assert_ne!(other, loss);
    }
}

#[tokio::test(start_paused = true)]
async fn break_and_a_deletion_are_told_apart() {
    let world = World::new().await;
    let (_network, _client, guard) = guarded(&world, "Moe").await;
    let lock = world.client("operator").get("Moe").await.expect("held");
    world.client("operator").break_lock("Moe", lock.record_version_number).await.expect("as seen");
    assert_eq!(guard.lost().await.expect("lost").reason, LossReason::Released);

    let (_network, client, guard) = guarded(&world, "Moe").await;
    let lease_id = guard.lease_id().clone();
    client.release("Moe", &lease_id, Release::new().delete()).await.expect("possession is enough");
    assert_eq!(guard.lost().await.expect("lost").reason, LossReason::Absent);
}

#[tokio::test(start_paused = true)]
async fn holder_learns_of_a_theft_after_an_outage_it_sat_out() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, LockRequest::new("Moe").hold_on_unavailable()).await;
    network.cut();
    sleep(LEASE * 5).await;
    assert!(guard.valid(), "as it was told to");
    assert_eq!(guard.remaining(), Duration::ZERO, "and the truth is one call away");
    network.mend();
    sleep(SECOND * 4).await;
    assert!(guard.valid() && guard.remaining() > SECOND * 15, "{:?}", guard.remaining());

    network.cut();
    let thief = granted(&world.client("thief"), "Moe").await;
    assert!(guard.valid(), "this is the danger: two at once");
    network.mend();
    let loss = timeout(SECOND * 5, guard.lost()).await.expect("at once").expect("lost");
    assert_eq!(loss.reason, LossReason::TakenOver);
    assert!(thief.valid());
}

#[tokio::test(start_paused = true)]
async fn guard_reports_risk_once_for_each_lease_at_risk() {
    let world = World::new().await;
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let warned = Arc::clone(&warnings);
    let request = LockRequest::new("Moe")
        .at_risk(SECOND * 8, move |left| warned.lock().expect("not poisoned").push((Instant::now(), left)));
    let (network, _client, guard) = guarded(&world, request).await;
    sleep(LEASE * 3).await;
    assert_eq!(warnings.lock().expect("not poisoned").len(), 0, "all is well");
    network.cut();
    let end = Instant::now() + guard.remaining();
    sleep(guard.remaining() - SECOND * 4).await;
    network.mend();
    sleep(LEASE * 3).await;
    network.cut();
    guard.lost().await.expect("lost");
    let warnings = warnings.lock().expect("not poisoned").clone();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let early = end - warnings[0].0;
    assert!(early > SECOND * 7 && early <= SECOND * 8, "{early:?}");
    assert!(warnings.iter().all(|(_, left)| *left > SECOND * 7 && *left <= SECOND * 8), "{warnings:?}");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_by_hand_are_the_callers_affair() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    for _ in 0..5 {
        sleep(LEASE - SECOND).await;
        guard.renew().await.expect("in time");
    }
    assert_eq!(network.take_log().len(), 5);
    assert_eq!(guard.lost().await.expect("lost").reason, LossReason::Expired);
    assert_eq!(network.take_log(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn heartbeat_can_bring_new_data_and_a_new_lease() {
    let world = World::new().await;
    let (_network, _client, guard) = guarded(&world, LockRequest::new("Moe").data("first")).await;
    guard.renew_with(Heartbeat::new().data([0xff, 0x00]).lease(SECOND * 60)).await.expect("held");
    assert!(guard.remaining() > SECOND * 59);
    sleep(SECOND * 16).await;
    let row = world.row().await.expect("a row");
    assert_eq!(row.data.as_deref(), Some([0xff, 0x00].as_slice()), "heartbeats in the background leave it");
    assert_eq!(world.client("x").get("Moe").await.expect("held").lease_duration_ms, 60_000);
    let error = guard.renew_with(Heartbeat::new().lease(SECOND / 100)).await.expect_err("too short");
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }) && guard.valid());

    // A holder believes in a shorter lease from the moment at which it may be written.
    guard.renew_with(Heartbeat::new().lease(SECOND * 2)).await.expect("held");
    assert!(guard.remaining() <= SECOND * 2);
    sleep(SECOND * 30).await;
    assert!(guard.valid(), "the heartbeats follow");
    guard.renew_with(Heartbeat::new().delete_data()).await.expect("held");
    assert_eq!(world.row().await.expect("a row").data, None);
}

#[tokio::test(start_paused = true)]
async fn longer_lease_is_believed_in_once_it_is_answered() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    network.set_first(Fate::Overdue(SECOND * 30));
    let client = Client::new(network);
    let request = LockRequest::new("Moe").lease(SECOND * 10).heartbeats(Heartbeats::Manual);
    let guard = granted(&client, request).await;
    guard.renew_with(Heartbeat::new().lease(SECOND * 60)).await.expect("held");
    assert!(guard.remaining() > SECOND * 59, "{:?}", guard.remaining());
    sleep(SECOND * 40).await;
    let lease = world.client("x").get("Moe").await.expect("held").lease_duration_ms;
    assert_eq!(lease, 60_000, "the late acquire with ten seconds has changed nothing");
}

#[tokio::test(start_paused = true)]
async fn guard_restores_its_lease_when_another_process_changed_it() {
    let world = World::new().await;
    let (_network, _client, guard) = guarded(&world, LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    let other = world.client("other");
    let longer = Heartbeat::new().lease(SECOND * 60);
    other.heartbeat("Moe", guard.lease_id(), longer).await.expect("possession is enough");
    guard.renew().await.expect("held");
    assert_eq!(other.get("Moe").await.expect("held").lease_duration_ms, 20_000);
    assert!(guard.remaining() <= LEASE, "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn lost_answer_to_a_release_is_a_release() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, "Moe").await;
    network.set_first(Fate::AnswerLost);
    assert_eq!(guard.release().await.expect("held"), Released::Replayed);

    let (network, _client, guard) = guarded(&world, "Moe").await;
    network.cut();
    let error = guard.release().await.expect_err("nobody answers");
    assert_eq!(error.kind(), &ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn successor_finds_what_was_left() {
    let world = World::new().await;
    let client = world.client("one");
    let guard = granted(&client, "Moe").await;
    assert_eq!(guard.data(), None);
    guard.release_with(Release::new().data("up to 17")).await.expect("held");
    let guard = granted(&client, LockRequest::new("Moe").data("ignored").keep_existing_data()).await;
    assert_eq!(guard.data(), Some(b"up to 17".as_slice()));
    guard.release().await.expect("held");
    let guard = granted(&client, LockRequest::new("Moe").data("up to 18")).await;
    assert_eq!(guard.data(), Some(b"up to 18".as_slice()), "the caller did not ask to keep what was left");
    guard.release_with(Release::new().delete()).await.expect("held");
    let error = client.get("Moe").await.expect_err("deleted");
    assert_eq!(error.kind(), &ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn lock_is_shared_within_a_client_only_when_asked_for() {
    let world = World::new().await;
    let (network, client, outer) = guarded(&world, LockRequest::new("Moe").reentrant()).await;
    let other = granted(&client, LockRequest::new("Joe").reentrant()).await;
    assert_eq!(other.key().key, "Joe", "another lock is not shared");
    other.release().await.expect("held");
    network.take_log();
    let inner = granted(&client, LockRequest::new("Moe").reentrant()).await;
    assert_eq!(network.take_log(), [""; 0], "it is held already");
    assert_eq!((inner.fencing_token(), inner.lease_id()), (outer.fencing_token(), outer.lease_id()));
    let stranger = client.acquire(LockRequest::new("Moe").wait(Wait::AtMost(SECOND))).await.expect("reachable");
    assert!(matches!(stranger, Acquisition::Held(_)), "without asking, it is held like any other");
    network.take_log();

    assert_eq!(outer.release().await.expect("held"), Released::StillHeld);
    sleep(LEASE * 2).await;
    assert!(inner.valid());
    drop(inner);
    sleep(SECOND).await;
    assert_eq!(network.take_log().last().map(String::as_str), Some("/v1/release"));
    let again = granted(&client, LockRequest::new("Moe").reentrant()).await;
    assert!(again.valid());
}

#[tokio::test(start_paused = true)]
async fn waiter_of_the_same_client_shares_as_soon_as_it_can() {
    let world = World::new().await;
    let client = world.client("one");
    let request = || LockRequest::new("Moe").reentrant();
    let (one, two) = tokio::join!(client.acquire(request()), client.acquire(request()));
    let (one, two) =
        (one.expect("reachable").granted().expect("free"), two.expect("reachable").granted().expect("shared"));
    assert_eq!(one.fencing_token(), two.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn lock_taken_here_is_kept_there() {
    let world = World::new().await;
    let here = granted(&world.client("here"), "Moe").await;
    let token = here.fencing_token();
    let handover = here.detach();
    let lease_id = handover.lease_id.clone();
    sleep(LEASE - SECOND).await;
    let there = world.client("there");
    let guard = there.resume(handover).await.expect("still held");
    assert_eq!((guard.fencing_token(), guard.owner_name()), (token, None));
    sleep(LEASE * 3).await;
    assert!(guard.valid());
    let beat = world.client("anywhere").heartbeat("Moe", &lease_id, Heartbeat::new()).await.expect("held");
    assert_eq!(beat.fencing_token, token);
    guard.release().await.expect("held");
    let began = Instant::now();
    let error = there.resume(Handover::new("Moe", lease_id)).await.expect_err("it is over");
    assert!(matches!(error.kind(), ErrorKind::Lost(loss) if loss.reason == LossReason::Released), "{error}");
    assert_eq!(began.elapsed(), Duration::ZERO, "another try would change nothing");
}

#[tokio::test(start_paused = true)]
async fn work_under_a_lock_is_done_and_stopped_when_the_lock_is_lost() {
    let world = World::new().await;
    let client = world.client("one");
    let token = client.with_lock("Moe", async |guard| Ok::<_, Error>(guard.fencing_token())).await.expect("free");
    assert!(world.row().await.expect("a row").released);
    assert!(token > 0);

    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let work = client.with_lock("Moe", async move |_guard| {
        loop {
            sleep(SECOND).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let theft = async {
        sleep(SECOND * 10).await;
        steal(&world).await
    };
    let (ended, _thief): (Result<(), Error>, _) = tokio::join!(work, theft);
    let error = ended.expect_err("lost");
    assert!(matches!(error.kind(), ErrorKind::Lost(loss) if loss.reason == LossReason::TakenOver));
    let done = steps.load(Ordering::Relaxed);
    assert!((8..=15).contains(&done), "{done}");
    sleep(LEASE).await;
    assert_eq!(steps.load(Ordering::Relaxed), done, "and it is stopped");
}

fn panicking() -> Result<(), Error> {
    panic!("the work itself fails")
}

#[tokio::test(start_paused = true)]
async fn work_under_a_lock_may_run_on_another_thread_and_may_panic() {
    let world = World::new().await;
    let client = world.client("one");
    let working = client.clone();
    let panicked = tokio::spawn(async move { working.with_lock("Moe", async |_guard| panicking()).await });
    assert!(panicked.await.expect_err("it panics").is_panic());
    sleep(SECOND).await;
    assert!(world.row().await.expect("a row").released, "and the lock is given back");
}

#[tokio::test(start_paused = true)]
async fn release_that_fails_does_not_hide_what_the_work_returned() {
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());
    let result = client.with_lock("Moe", async |_guard| {
        network.cut();
        Err::<(), Box<dyn std::error::Error>>("the work's own error".into())
    });
    assert_eq!(result.await.expect_err("the work failed").to_string(), "the work's own error");
}

#[tokio::test(start_paused = true)]
async fn lost_answer_at_the_table_is_resolved_beneath_the_client() {
    let world = World::new().await;
    let client = world.client("one");
    world.faults.script([Fault::ResponseLost, Fault::Late(LEASE * 2)]);
    let guard = granted(&client, "Moe").await;
    sleep(LEASE * 3).await;
    assert!(guard.valid(), "and what was late has not hurt");
    world.faults.script([Fault::ResponseLost]);
    assert_eq!(guard.release().await.expect("held"), Released::Replayed);
    assert_eq!(world.row().await.expect("a row").key, key());
}

#[tokio::test(start_paused = true)]
async fn heartbeats_come_as_often_as_they_were_asked_for() {
    let world = World::new().await;
    let (network, _client, guard) =
        guarded(&world, LockRequest::new("Moe").heartbeats(Heartbeats::Every(SECOND))).await;
    sleep(SECOND * 100).await;
    let heartbeats = network.take_log().len();
    assert!((100..=112).contains(&heartbeats), "{heartbeats}");
    guard.renew_with(Heartbeat::new().lease(SECOND)).await.expect("held");
    sleep(SECOND * 20).await;
    assert!(guard.valid(), "and more often, where the lease has become too short for that");
}

#[tokio::test(start_paused = true)]
async fn service_that_asks_for_patience_does_not_cost_the_lock() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, "Moe").await;
    for patience in [3600, u32::MAX] {
        network.set(move |_| Fate::Gateway(429, Some(patience), ""));
        sleep(SECOND * 10).await;
        network.mend();
        sleep(SECOND * 10).await;
        assert!(guard.valid() && guard.remaining() > SECOND * 14, "{:?}", guard.remaining());
        // The same holds for a heartbeat by hand.
        network.set_first(Fate::Gateway(429, Some(patience), ""));
        guard.renew().await.expect("in time");
    }
}

#[tokio::test(start_paused = true)]
async fn shorter_lease_caps_the_belief_until_a_higher_number() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, LockRequest::new("Moe").lease(SECOND * 60)).await;
    let error =
        guard.renew_with(Heartbeat::new().lease(SECOND * 2).data(vec![0; 300_000])).await.expect_err("too large");
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error}");
    assert!(guard.remaining() <= SECOND * 2, "until a higher number is answered");
    guard.renew().await.expect("held");
    assert!(guard.remaining() > SECOND * 59);
    // A heartbeat whose future is dropped may be carried out: the interval of the heartbeats follows the lease that the
    // holder believes in.
    network.set(|_| Fate::AnswerLate(SECOND));
    assert!(timeout(SECOND / 10, guard.renew_with(Heartbeat::new().lease(SECOND * 8))).await.is_err());
    network.mend();
    assert!(guard.remaining() <= SECOND * 8);
    sleep(SECOND * 60).await;
    assert!(guard.valid());
}

#[tokio::test(start_paused = true)]
async fn heartbeat_answered_after_the_lease_revives_nothing() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    sleep(LEASE - SECOND).await;
    network.set(|_| Fate::AnswerLate(SECOND * 2));
    let error = guard.renew().await.expect_err("too late");
    assert!(matches!(error.kind(), ErrorKind::Lost(loss) if loss.reason == LossReason::Expired), "{error}");
    assert!(!guard.valid() && guard.remaining().is_zero());
}

/// The table's own late attempt: the service's second attempt was answered, and the first one arrives after the next
/// heartbeat.
#[tokio::test(start_paused = true)]
async fn late_attempt_with_a_shorter_lease_changes_nothing() {
    let world = World::new().await;
    let request = LockRequest::new("Moe").lease(SECOND * 60).heartbeats(Heartbeats::Manual);
    let (_network, _client, guard) = guarded(&world, request).await;
    world.faults.script([Fault::Late(SECOND * 8)]);
    guard.renew_with(Heartbeat::new().lease(SECOND * 8).data("up to 17")).await.expect("held");
    guard.renew_with(Heartbeat::new().lease(SECOND * 60).data("up to 18")).await.expect("held");
    sleep(SECOND * 10).await;
    let row = world.row().await.expect("a row");
    assert_eq!(row.data.as_deref(), Some(b"up to 18".as_slice()));
    let thief = world.client("thief").acquire(LockRequest::new("Moe").wait(Wait::AtMost(SECOND * 40))).await;
    assert!(matches!(thief.expect("reachable"), Acquisition::Held(_)), "the row has the longer lease");
    assert!(guard.valid());
}

#[tokio::test(start_paused = true)]
async fn resumed_lock_counts_from_before_the_first_sending() {
    let world = World::new().await;
    let handover = granted(&world.client("here"), "Moe").await.detach();
    let network = Network::new(world.transport());
    network.set_first(Fate::Overdue(SECOND * 30));
    let request = LockRequest::new("Moe").lease(SECOND * 10).heartbeats(Heartbeats::Manual);
    let (began, client) = (Instant::now(), Client::new(network.clone()));
    let guard = client.resume_with(request.clone(), handover).await.expect("held");
    assert!(began.elapsed() >= SECOND * 5 / 2, "the first try had no answer");
    assert!(guard.remaining() <= SECOND * 10 - began.elapsed(), "{:?}", guard.remaining());

    let handover = guard.detach();
    network.set(|_| Fate::AnswerLate(SECOND * 2));
    let guard = client.resume_with(request, handover).await.expect("held");
    assert!(guard.remaining() <= SECOND * 8, "from before the request, not from after the answer");
}

#[tokio::test(start_paused = true)]
async fn resume_answered_after_the_lease_asks_again() {
    let world = World::new().await;
    let handover = granted(&world.client("here"), "Moe").await.detach();
    let network = Network::new(world.transport());
    let mut tries = 0;
    network.set(move |_| {
        tries += 1;
        if tries < 3 { Fate::AnswerLate(SECOND) } else { Fate::Delivered }
    });
    let request = LockRequest::new("Moe").lease(SECOND * 3 / 10).heartbeats(Heartbeats::Manual);
    let guard = Client::new(network.clone()).resume_with(request, handover).await.expect("held");
    assert!(guard.valid(), "the third answer was older than its lease");
    assert_eq!(network.take_log().len(), 4);

    // The end of the lease is too late as well. The client asks again at once, since its request was carried out.
    let (lease, handover) = (Duration::from_millis(100), guard.detach());
    network.set_first(Fate::AnswerLate(lease));
    let request = LockRequest::new("Moe").lease(lease).heartbeats(Heartbeats::Manual);
    let began = Instant::now();
    let guard = Client::new(network).resume_with(request, handover).await.expect("held");
    assert_eq!((guard.valid(), began.elapsed()), (true, lease));
}

#[tokio::test(start_paused = true)]
async fn resume_without_a_lease_keeps_the_records() {
    let world = World::new().await;
    let handover = granted(&world.client("here"), LockRequest::new("Moe").lease(SECOND * 60)).await.detach();
    let handover = Handover { sequence: None, ..handover };
    let guard = world.client("there").resume(handover).await.expect("held, and the number was learnt");
    assert!(guard.remaining() > SECOND * 59, "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn work_under_a_shared_lock_gives_back_its_share_once() {
    let world = World::new().await;
    let client = world.client("one");
    let outer = granted(&client, LockRequest::new("Moe").reentrant()).await;
    for _ in 0..3 {
        client.with_lock(LockRequest::new("Moe").reentrant(), async |_guard| Ok::<_, Error>(())).await.expect("shared");
    }
    sleep(LEASE * 2).await;
    assert!(outer.valid() && !world.row().await.expect("a row").released);
    // The release of a share does not release the lock.
    granted(&client, LockRequest::new("Moe").reentrant()).await.detach();
    sleep(LEASE * 2).await;
    assert!(outer.valid());
    assert_eq!(outer.release().await.expect("held"), Released::Released);
}

#[tokio::test(start_paused = true)]
async fn lock_that_was_lost_is_not_shared() {
    let world = World::new().await;
    let (network, client, guard) = guarded(&world, LockRequest::new("Moe").reentrant()).await;
    network.cut();
    guard.lost().await.expect("an outage");
    network.mend();
    let again = granted(&client, LockRequest::new("Moe").reentrant()).await;
    assert!(again.valid() && again.fencing_token() > guard.fencing_token());
    drop(guard);
    sleep(SECOND).await;
    assert!(again.valid(), "the old guard has no share in the new lock");
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_loss_ends_when_the_lock_is_given_back() {
    let world = World::new().await;
    let (_network, client, guard) = guarded(&world, "Moe").await;
    let watcher = tokio::spawn(guard.lost());
    sleep(SECOND).await;
    guard.release().await.expect("held");
    assert_eq!(timeout(SECOND, watcher).await.expect("at once").expect("no panic"), None);

    // The close of the client is not an act of the holder.
    let working = client.clone();
    let work = tokio::spawn(async move {
        working.with_lock("Moe", async |_guard| std::future::pending::<Result<(), Error>>().await).await
    });
    sleep(SECOND * 2).await;
    client.close().await.expect("released");
    let error = timeout(SECOND, work).await.expect("at once").expect("no panic").expect_err("it was not done");
    assert!(matches!(error.kind(), ErrorKind::Lost(loss) if loss.reason == LossReason::Released), "{error}");
}

#[tokio::test(start_paused = true)]
async fn panicking_transport_costs_one_lock_and_hides_no_loss() {
    let world = World::new().await;
    let (network, client, moe) = guarded(&world, "Moe").await;
    let joe = granted(&client, "Joe").await;
    network.set_first(Fate::Panics);
    sleep(LEASE * 2).await;
    let lost = usize::from(moe.loss().is_some()) + usize::from(joe.loss().is_some());
    assert_eq!(lost, 1, "whose heartbeat it was");
    let loser = if moe.valid() { &joe } else { &moe };
    assert_eq!(timeout(SECOND, loser.lost()).await.expect("at once").expect("lost").reason, LossReason::Expired);
    network.set_first(Fate::Panics);
    assert!(granted(&client, "Ann").await.valid(), "and an acquisition is tried again");
}

#[tokio::test(start_paused = true)]
async fn invalid_release_is_refused_and_the_lock_given_back() {
    let world = World::new().await;
    for release in [Release::new().data("x").delete(), Release::new().data(vec![0; 300_000])] {
        let (_network, _client, guard) = guarded(&world, "Moe").await;
        let error = guard.release_with(release).await.expect_err("invalid");
        assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error}");
        sleep(SECOND).await;
        assert!(world.row().await.expect("a row").released);
    }
    let (_network, _client, guard) = guarded(&world, "Moe").await;
    guard.release_with(Release::new().data(vec![b'x'; 256 * 1024])).await.expect("the largest data");
}

#[test]
fn loss_is_known_when_the_runtime_of_the_heartbeats_is_gone() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let first = runtime().expect("a runtime");
    let guard = first.block_on(async { granted(&World::new().await.client("one"), "Moe").await });
    drop(first);
    let second = runtime().expect("a runtime");
    let loss = second.block_on(async { timeout(LEASE * 2, guard.lost()).await });
    assert_eq!(loss.expect("after a lease").expect("lost").reason, LossReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn holder_with_a_lock_delay_stops_before_others_may_begin() {
    let world = World::new().await;
    let delayed = || LockRequest::new("Moe").lock_delay(SECOND * 5);
    let (network, client, guard) = guarded(&world, delayed()).await;
    // The row has the whole lease, and heartbeats keep pace with the rest.
    assert_eq!(world.client("observer").get("Moe").await.expect("held").lease_duration_ms, 20_000);
    assert!(guard.remaining() <= SECOND * 15, "{:?}", guard.remaining());
    for _ in 0..100 {
        sleep(SECOND).await;
        assert!(guard.remaining() > SECOND * 10, "{:?}", guard.remaining());
    }
    let error = guard.renew_with(Heartbeat::new().lease(SECOND * 5)).await.expect_err("nothing is left of it");
    assert_eq!(*error.kind(), ErrorKind::InvalidRequest { field: Some("lock_delay".into()) });
    guard.renew_with(Heartbeat::new().lease(SECOND * 10)).await.expect("renewed");
    assert!(guard.remaining() <= SECOND * 5, "{:?}", guard.remaining());

    let renewed = Instant::now();
    network.cut();
    let loss = guard.lost().await.expect("lost");
    assert_eq!(loss.reason, LossReason::Expired);
    assert!(renewed.elapsed() <= SECOND * 8, "{:?}", renewed.elapsed());
    let taken = world.client("thief").try_acquire("Moe").await.expect("an answer");
    assert!(matches!(taken, Acquisition::Held(_)), "nobody may take over yet");

    for request in [
        LockRequest::new("Larry").lock_delay(LEASE),
        delayed().heartbeats(Heartbeats::Every(SECOND * 8)),
        delayed().at_risk(SECOND * 12, |_| {}),
    ] {
        let error = client.try_acquire(request).await.expect_err("it cannot be kept");
        assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn hold_ends_as_a_loss_after_its_longest_time() {
    let world = World::new().await;
    let (network, _client, guard) = guarded(&world, LockRequest::new("Moe").max_hold(LEASE * 3)).await;
    sleep(LEASE * 3 - SECOND).await;
    assert!(guard.valid() && guard.remaining() <= SECOND, "{:?}", guard.remaining());
    let loss = timeout(SECOND * 2, guard.lost()).await.expect("at the end of the hold").expect("a loss");
    assert_eq!((loss.reason, loss.reason.word()), (LossReason::MaxHold, "max-hold"));
    assert!(!guard.valid());
    network.take_log();
    sleep(LEASE * 2).await;
    drop(guard);
    sleep(SECOND).await;
    assert_eq!(network.take_log(), [""; 0], "neither heartbeats nor a release");
}

#[tokio::test(start_paused = true)]
async fn hold_through_an_outage_ends_after_its_longest_time() {
    let world = World::new().await;
    let request = LockRequest::new("Moe").hold_on_unavailable().max_hold(LEASE * 3);
    let (network, _client, guard) = guarded(&world, request).await;
    network.cut();
    sleep(LEASE * 2).await;
    assert!(guard.valid());
    let loss = timeout(LEASE * 2, guard.lost()).await.expect("at the end of the hold").expect("a loss");
    assert_eq!(loss.reason, LossReason::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn longest_time_to_hold_must_be_above_zero() {
    let client = World::new().await.client("one");
    let error = client.try_acquire(LockRequest::new("Moe").max_hold(Duration::ZERO)).await.expect_err("no time");
    assert_eq!(error.kind(), &ErrorKind::InvalidRequest { field: Some("max_hold".into()) });
}
