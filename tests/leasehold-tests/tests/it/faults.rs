//! The result of each operation when its request or its answer is lost, late, duplicated or refused.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_protocol::{
    Acquire, AcquireAnswer, Attributes, Break, BreakAnswer, Data, DataChange, Disposal, ErrorKind, Grant, GrantOutcome,
    Heartbeat, HeartbeatAnswer, LeaseDuration, ListQuery, LostReason, ReleaseAnswer, ReleaseOutcome, Row, Rvn,
    Sequence, Staleness,
};
use leasehold_tests::{Fault, World, acquire, heartbeat, key, release};

const LEASE_MS: u64 = 20_000;
/// Longer than all attempts of an operation.
const LATE: Duration = Duration::from_secs(8);

/// One lost or refused attempt, which the next attempt makes up for.
const CURABLE: [Fault; 6] = [
    Fault::RequestLost,
    Fault::Throttled,
    Fault::ServerError,
    Fault::TransactionConflict,
    Fault::Slow(Duration::from_secs(2)),
    Fault::Late(LATE),
];

/// A world in which "holder" holds the lock.
async fn held() -> World {
    let world = World::new().await;
    assert_eq!(granted(&world, "holder").await, GrantOutcome::Created);
    world.faults.take_calls();
    world
}

async fn granted(world: &World, owner: &str) -> GrantOutcome {
    match world.table.acquire(&acquire(owner, LEASE_MS, Staleness::Never)).await.expect("answered") {
        AcquireAnswer::Granted(grant) => grant.outcome,
        answer => panic!("not granted: {answer:?}"),
    }
}

async fn released(world: &World, owner: &str, disposal: Disposal) -> ReleaseOutcome {
    match world.table.release(&leasehold_protocol::Release { disposal, ..release(owner) }).await.expect("answered") {
        ReleaseAnswer::Done(released) => released.outcome,
        refused => panic!("{refused:?}"),
    }
}

async fn row(world: &World) -> Row {
    world.row().await.expect("a row")
}

fn rvn(row: &Row) -> String {
    row.rvn.value().expect("readable").clone()
}

fn owner(row: &Row) -> &str {
    row.owner_name.value().expect("readable")
}

async fn let_late_requests_arrive() {
    tokio::time::sleep(LATE * 2).await;
}

#[tokio::test(start_paused = true)]
async fn every_operation_is_exactly_one_dynamodb_call() {
    let world = World::new().await;
    let calls = |expected: &str| assert_eq!(world.faults.take_calls(), 1, "{expected}");
    granted(&world, "holder").await;
    calls("acquire");
    world.table.acquire(&acquire("other", LEASE_MS, Staleness::Never)).await.expect("held");
    calls("a refused acquire");
    world.table.heartbeat(&heartbeat("holder")).await.expect("renewed");
    calls("heartbeat");
    world.table.heartbeat(&heartbeat("other")).await.expect("lost");
    calls("a refused heartbeat");
    world.table.release(&release("other")).await.expect("lost");
    calls("a refused release");
    world.table.release(&release("holder")).await.expect("released");
    calls("release");
    world.table.release(&release("holder")).await.expect("replayed");
    calls("a repeated release");
    let seen = Rvn::new("", rvn(&row(&world).await)).expect("valid");
    world.table.break_lock(&Break { key: key(), seen }).await.expect("replayed");
    calls("break");
    world.table.read(&key()).await.expect("a row");
    calls("get");
    released(&world, "holder", Disposal::Delete).await;
    calls("release with delete");
}

#[tokio::test(start_paused = true)]
async fn one_failed_attempt_is_cured_by_the_next() {
    for fault in CURABLE {
        let world = World::new().await;
        world.faults.script([fault]);
        assert_eq!(granted(&world, "holder").await, GrantOutcome::Created, "{fault:?}");

        world.faults.script([fault]);
        let before = rvn(&row(&world).await);
        let answer = world.table.heartbeat(&heartbeat("holder")).await.expect("answered");
        assert!(matches!(answer, HeartbeatAnswer::Renewed(_)), "{fault:?}");
        assert_ne!(rvn(&row(&world).await), before, "{fault:?}");
        let_late_requests_arrive().await;

        world.faults.script([fault]);
        assert_eq!(released(&world, "holder", Disposal::Keep(None)).await, ReleaseOutcome::Released, "{fault:?}");
        let_late_requests_arrive().await;
        assert!(row(&world).await.released, "{fault:?}: no late request may undo the release");
    }
}

#[tokio::test(start_paused = true)]
async fn break_survives_a_failed_attempt_and_a_lost_answer() {
    for fault in CURABLE.into_iter().chain([Fault::ResponseLost]) {
        let world = held().await;
        let seen = Rvn::new("", rvn(&row(&world).await)).expect("valid");
        world.faults.script([fault]);
        let answer = world.table.break_lock(&Break { key: key(), seen }).await.expect("answered");
        let expected = if fault == Fault::ResponseLost { ReleaseOutcome::Replayed } else { ReleaseOutcome::Released };
        assert!(matches!(answer, BreakAnswer::Done(done) if done.outcome == expected), "{fault:?}");
        // The holder learns of the break, and its lease id is spent. A late copy of the break does not affect the next
        // holder.
        let HeartbeatAnswer::Lost(lost) = world.table.heartbeat(&heartbeat("holder")).await.expect("answered") else {
            panic!("{fault:?}: a broken lock cannot be renewed");
        };
        assert_eq!(lost.reason, LostReason::Released);
        granted(&world, "next").await;
        let_late_requests_arrive().await;
        assert!(!row(&world).await.released, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answer_to_an_acquire_is_found_to_be_ones_own() {
    let world = World::new().await;
    world.faults.script([Fault::ResponseLost]);
    let answer = world.table.acquire(&acquire("holder", LEASE_MS, Staleness::Never)).await.expect("answered");
    let AcquireAnswer::Granted(grant) = answer else { panic!("not granted: {answer:?}") };
    assert_eq!(grant.outcome, GrantOutcome::Renewed);
    assert_eq!(row(&world).await, grant.row);
}

#[tokio::test(start_paused = true)]
async fn lost_answer_to_a_takeover_is_found_to_be_ones_own() {
    let world = held().await;
    let observed = Staleness::Observed(Rvn::new("", rvn(&row(&world).await)).expect("valid"));
    world.faults.script([Fault::ResponseLost]);
    let answer = world.table.acquire(&acquire("heir", LEASE_MS, observed)).await.expect("answered");
    assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
    assert_eq!(owner(&row(&world).await), "heir");
}

#[tokio::test(start_paused = true)]
async fn heartbeat_with_a_lost_answer_succeeds_on_its_retry() {
    for with_precondition in [false, true] {
        let world = held().await;
        let current = rvn(&row(&world).await);
        let mut request = heartbeat("holder");
        request.expected = with_precondition.then(|| Rvn::new("", current.clone()).expect("valid"));
        world.faults.script([Fault::ResponseLost]);
        let answer = world.table.heartbeat(&request).await.expect("answered");
        let HeartbeatAnswer::Renewed(renewed) = answer else { panic!("lost: {answer:?}") };
        assert_ne!(rvn(&renewed), current);
        assert_eq!(row(&world).await, renewed);
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answer_to_a_release_is_replayed() {
    let world = held().await;
    world.faults.script([Fault::ResponseLost]);
    assert_eq!(released(&world, "holder", Disposal::Keep(None)).await, ReleaseOutcome::Replayed);
    assert!(row(&world).await.released);

    let world = held().await;
    world.faults.script([Fault::ResponseLost]);
    assert_eq!(released(&world, "holder", Disposal::Delete).await, ReleaseOutcome::Absent);
    assert_eq!(world.row().await, None);
}

#[tokio::test(start_paused = true)]
async fn outage_and_throttling_are_two_kinds_and_no_loss() {
    for (fault, kind, calls) in [
        (Fault::RequestLost, ErrorKind::Unavailable, 3),
        (Fault::ServerError, ErrorKind::Unavailable, 3),
        (Fault::Slow(Duration::from_mins(1)), ErrorKind::Unavailable, 3),
        (Fault::TransactionConflict, ErrorKind::Throttled, 3),
        (Fault::AccessDenied, ErrorKind::Misconfigured, 1),
        (Fault::Throttled, ErrorKind::Throttled, 3),
    ] {
        let world = held().await;
        let before = row(&world).await;
        let seen = Rvn::new("", rvn(&before)).expect("valid");
        let always = || world.faults.script([fault; 3]);
        always();
        let error = world.table.acquire(&acquire("other", LEASE_MS, Staleness::Never)).await.expect_err("no answer");
        assert_eq!((error.kind(), world.faults.take_calls()), (kind, calls), "acquire, {fault:?}");
        always();
        let error = world.table.heartbeat(&heartbeat("holder")).await.expect_err("no answer");
        assert_eq!((error.kind(), world.faults.take_calls()), (kind, calls), "heartbeat, {fault:?}");
        always();
        let error = world.table.release(&release("holder")).await.expect_err("no answer");
        assert_eq!((error.kind(), world.faults.take_calls()), (kind, calls), "release, {fault:?}");
        always();
        let error = world.table.break_lock(&Break { key: key(), seen }).await.expect_err("no answer");
        assert_eq!((error.kind(), world.faults.take_calls()), (kind, calls), "break, {fault:?}");
        always();
        let error = world.table.read(&key()).await.expect_err("no answer");
        assert_eq!((error.kind(), world.faults.take_calls()), (kind, calls), "get, {fault:?}");
        assert_eq!(row(&world).await, before, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn caller_gets_the_lock_by_repeating_after_an_outage() {
    let world = World::new().await;
    world.faults.script([Fault::ResponseLost; 3]);
    let request = acquire("holder", LEASE_MS, Staleness::Never);
    let error = world.table.acquire(&request).await.expect_err("every answer was lost");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(granted(&world, "holder").await, GrantOutcome::Renewed);
}

/// The network may deliver a request again, long after its answer. The copy must do no harm, whatever happened since.
mod duplicates {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn late_acquires_leave_no_ghost_after_the_release() {
        let world = World::new().await;
        world.faults.script([Fault::Copied]);
        granted(&world, "holder").await;
        released(&world, "holder", Disposal::Keep(None)).await;
        let before = row(&world).await;
        assert_eq!(world.faults.deliver_copies().await, 1);
        assert_eq!(row(&world).await, before);
        assert_eq!(granted(&world, "next").await, GrantOutcome::Reacquired);
    }

    #[tokio::test(start_paused = true)]
    async fn late_acquires_only_renew_a_held_lock() {
        let world = World::new().await;
        world.faults.script([Fault::Copied]);
        granted(&world, "holder").await;
        let before = row(&world).await;
        world.faults.deliver_copies().await;
        let after = row(&world).await;
        assert_eq!(owner(&after), "holder");
        assert!(after.fencing_token.value() > before.fencing_token.value());
    }

    #[tokio::test(start_paused = true)]
    async fn late_requests_do_not_touch_a_successor() {
        let world = World::new().await;
        world.faults.script([Fault::Copied; 4]);
        granted(&world, "holder").await;
        world.table.heartbeat(&heartbeat("holder")).await.expect("renewed");
        let seen = Rvn::new("", rvn(&row(&world).await)).expect("valid");
        released(&world, "holder", Disposal::Keep(None)).await;
        world.table.break_lock(&Break { key: key(), seen }).await.expect("replayed");
        granted(&world, "next").await;
        let before = row(&world).await;
        assert_eq!(world.faults.deliver_copies().await, 4);
        assert_eq!(row(&world).await, before);
    }

    #[tokio::test(start_paused = true)]
    async fn late_takeovers_and_deletes_do_not_touch_a_successor() {
        let world = held().await;
        let observed = Staleness::Observed(Rvn::new("", rvn(&row(&world).await)).expect("valid"));
        world.faults.script([Fault::Copied; 2]);
        world.table.acquire(&acquire("heir", LEASE_MS, observed)).await.expect("taken over");
        released(&world, "heir", Disposal::Delete).await;
        granted(&world, "next").await;
        let before = row(&world).await;
        assert_eq!(world.faults.deliver_copies().await, 2);
        assert_eq!(row(&world).await, before);
    }

    #[tokio::test(start_paused = true)]
    async fn late_requests_change_nothing_after_the_release() {
        let world = held().await;
        world.faults.script([Fault::Copied; 2]);
        world.table.heartbeat(&heartbeat("holder")).await.expect("renewed");
        released(&world, "holder", Disposal::Keep(None)).await;
        let before = row(&world).await;
        assert_eq!(world.faults.deliver_copies().await, 2);
        assert_eq!(row(&world).await, before);
    }
}

/// A timed-out attempt may be applied late. It must not restore a version that observers saw before: they would take a
/// lock with heartbeats for one without.
#[tokio::test(start_paused = true)]
async fn attempt_applied_late_never_brings_back_an_old_version() {
    let world = held().await;
    let mut seen = vec![rvn(&row(&world).await)];
    for _ in 0..3 {
        world.faults.script([Fault::Late(LATE)]);
        world.table.heartbeat(&heartbeat("holder")).await.expect("renewed by the second attempt");
        seen.push(rvn(&row(&world).await));
    }
    let_late_requests_arrive().await;
    let now = row(&world).await;
    assert_eq!(owner(&now), "holder");
    assert!(!seen.contains(&rvn(&now)), "a late attempt wrote a version that an observer may have seen");
}

/// The same holds for an acquire without a sequence, whose late attempt is a renewal.
#[tokio::test(start_paused = true)]
async fn late_attempt_to_acquire_writes_a_new_version() {
    let world = World::new().await;
    world.faults.script([Fault::Late(LATE)]);
    granted(&world, "holder").await;
    let mut seen = vec![rvn(&row(&world).await)];
    world.table.heartbeat(&heartbeat("holder")).await.expect("renewed");
    seen.push(rvn(&row(&world).await));
    let_late_requests_arrive().await;
    assert!(!seen.contains(&rvn(&row(&world).await)), "a late attempt wrote a version that an observer may have seen");
}

/// Another client marks the row, and leaves the version that the heartbeat wrote.
#[tokio::test(start_paused = true)]
async fn heartbeat_is_lost_when_its_own_version_was_released() {
    let world = held().await;
    let request =
        Heartbeat { expected: Some(Rvn::new("", rvn(&row(&world).await)).expect("valid")), ..heartbeat("holder") };
    world.faults.script([Fault::ResponseLost]);
    let mark = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let update = world.dynamodb.update_item().table_name("locks").key("key", AttributeValue::S("Moe".into()));
        let update = update.update_expression("SET isReleased = :one");
        update.expression_attribute_values(":one", AttributeValue::S("1".into())).send().await.expect("marked");
    };
    let (answer, ()) = tokio::join!(world.table.heartbeat(&request), mark);
    let HeartbeatAnswer::Lost(lost) = answer.expect("answered") else { panic!("nobody holds it") };
    assert_eq!(lost.reason, LostReason::Released);
}

#[tokio::test(start_paused = true)]
async fn every_read_is_strongly_consistent() {
    let world = held().await;
    world.faults.record();
    world.table.read(&key()).await.expect("a row");
    for partition in [None, Some("Moe".to_owned())] {
        let query = ListQuery { limit: 10, partition, ..ListQuery::default() };
        world.table.list(&query).await.expect("a page");
    }
    let sent = world.faults.record();
    let operations: Vec<_> = sent.iter().map(|sent| sent.operation.as_str()).collect();
    assert_eq!(operations, ["GetItem", "Scan", "Query"]);
    assert!(sent.iter().all(|sent| sent.body["ConsistentRead"] == true), "{sent:?}");
}

/// Attempts and copies that arrive late, after answers and other requests. Each of these once broke a promise of the
/// protocol.
mod late {
    use super::*;

    fn sequence(number: u64) -> Sequence {
        Sequence::new(number, None).expect("valid")
    }

    async fn acquired(world: &World, owner: &str, number: u64, staleness: Staleness) -> Grant {
        let request = Acquire { sequence: Some(sequence(number)), ..acquire(owner, LEASE_MS, staleness) };
        match world.table.acquire(&request).await.expect("answered") {
            AcquireAnswer::Granted(grant) => grant,
            answer => panic!("not granted: {answer:?}"),
        }
    }

    async fn renewed(world: &World, owner: &str, number: u64, lease_ms: u64, data: &str) -> Row {
        let request = Heartbeat {
            sequence: Some(sequence(number)),
            lease_duration: Some(LeaseDuration::from_millis(lease_ms).expect("valid")),
            data: DataChange::Set(Data::new(data.into()).expect("small")),
            ..heartbeat(owner)
        };
        match world.table.heartbeat(&request).await.expect("answered") {
            HeartbeatAnswer::Renewed(row) => row,
            answer => panic!("not renewed: {answer:?}"),
        }
    }

    async fn seen(world: &World) -> Rvn {
        Rvn::new("", rvn(&row(world).await)).expect("valid")
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeat_never_shortens_the_lease() {
        let world = World::new().await;
        acquired(&world, "holder", 1, Staleness::Never).await;
        world.faults.script([Fault::Late(LATE)]);
        renewed(&world, "holder", 2, 8000, "").await;
        let last = renewed(&world, "holder", 3, 60_000, "").await;
        let_late_requests_arrive().await;
        assert_eq!(row(&world).await, last);
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeat_never_rolls_the_payload_back() {
        let world = World::new().await;
        acquired(&world, "holder", 1, Staleness::Never).await;
        world.faults.script([Fault::Late(LATE)]);
        renewed(&world, "holder", 2, LEASE_MS, "up to 17").await;
        renewed(&world, "holder", 3, LEASE_MS, "up to 18").await;
        let_late_requests_arrive().await;
        assert_eq!(row(&world).await.data.as_deref(), Some(&b"up to 18"[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn acquire_never_undoes_a_heartbeat() {
        let world = World::new().await;
        world.faults.script([Fault::Late(LATE)]);
        let grant = acquired(&world, "holder", 1, Staleness::Never).await;
        let last = renewed(&world, "holder", 2, 60_000, "").await;
        let_late_requests_arrive().await;
        assert_eq!(row(&world).await, last);
        assert_eq!(last.fencing_token.value(), Some(&grant.fencing_token), "the token that the caller was granted");
    }

    #[tokio::test(start_paused = true)]
    async fn acquire_never_makes_a_token_fall() {
        let world = World::new().await;
        world.faults.script([Fault::Late(LATE)]);
        acquired(&world, "ann", 1, Staleness::Never).await;
        released(&world, "ann", Disposal::Delete).await;
        let bob = acquired(&world, "bob", 1, Staleness::Never).await;
        released(&world, "bob", Disposal::Delete).await;
        let_late_requests_arrive().await;
        assert_eq!(world.row().await, None, "no ghost holder");
        let cyd = acquired(&world, "cyd", 1, Staleness::Never).await;
        assert_eq!((cyd.outcome, cyd.fencing_token), (GrantOutcome::Created, bob.fencing_token + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn acquire_finds_its_end_under_a_successor() {
        let world = World::new().await;
        world.faults.script([Fault::Copied]);
        acquired(&world, "ann", 1, Staleness::Never).await;
        released(&world, "ann", Disposal::Keep(None)).await;
        acquired(&world, "bob", 1, Staleness::Never).await;
        released(&world, "bob", Disposal::Keep(None)).await;
        let before = row(&world).await;
        world.faults.deliver_copies().await;
        assert_eq!(row(&world).await, before, "no ghost holder");
    }

    #[tokio::test(start_paused = true)]
    async fn copy_never_brings_a_version_back() {
        let world = World::new().await;
        acquired(&world, "holder", 1, Staleness::Never).await;
        world.faults.script([Fault::Copied]);
        let first = renewed(&world, "holder", 2, LEASE_MS, "").await;
        let last = renewed(&world, "holder", 3, LEASE_MS, "").await;
        assert_ne!(first.rvn, last.rvn);
        world.faults.deliver_copies().await;
        assert_eq!(row(&world).await, last);
    }

    #[tokio::test(start_paused = true)]
    async fn release_is_replayed_under_a_successor() {
        let world = World::new().await;
        acquired(&world, "ann", 1, Staleness::Never).await;
        world.faults.script([Fault::ResponseLost]);
        let waiter = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            acquired(&world, "bob", 1, Staleness::Never).await
        };
        let (outcome, _) = tokio::join!(released(&world, "ann", Disposal::Keep(None)), waiter);
        assert_eq!(outcome, ReleaseOutcome::Replayed);
        assert_eq!(owner(&row(&world).await), "bob");
    }

    #[tokio::test(start_paused = true)]
    async fn break_is_replayed_under_a_successor() {
        let world = World::new().await;
        acquired(&world, "ann", 1, Staleness::Never).await;
        let request = Break { key: key(), seen: seen(&world).await };
        world.faults.script([Fault::ResponseLost]);
        let waiter = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            acquired(&world, "bob", 1, Staleness::Never).await
        };
        let (answer, _) = tokio::join!(world.table.break_lock(&request), waiter);
        let BreakAnswer::Done(done) = answer.expect("answered") else { panic!("it was carried out") };
        assert_eq!(done.outcome, ReleaseOutcome::Replayed);
        assert!(!row(&world).await.released);
    }

    #[tokio::test(start_paused = true)]
    async fn answer_tells_a_takeover_as_one() {
        for lost in [1, 3] {
            let world = World::new().await;
            acquired(&world, "ann", 1, Staleness::Never).await;
            let observed = Staleness::Observed(seen(&world).await);
            let request = Acquire { sequence: Some(sequence(4)), ..acquire("bob", LEASE_MS, observed) };
            world.faults.script(vec![Fault::ResponseLost; lost]);
            let mut answer = world.table.acquire(&request).await;
            if lost == 3 {
                // All attempts of the service are lost: the caller repeats the request.
                answer.expect_err("no answer");
                answer = world.table.acquire(&request).await;
            }
            let AcquireAnswer::Granted(grant) = answer.expect("answered") else { panic!("not granted") };
            assert_eq!(grant.outcome, GrantOutcome::TakenOver);
            assert_eq!(grant.previous_owner_name.as_deref(), Some("ann"));
            assert_eq!(grant.row, row(&world).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_of_one_request_write_once() {
        let world = World::new().await;
        world.faults.script([Fault::ResponseLost, Fault::ResponseLost]);
        let grant = acquired(&world, "ann", 1, Staleness::Never).await;
        assert_eq!(grant.outcome, GrantOutcome::Created);
        world.faults.script([Fault::ResponseLost]);
        renewed(&world, "ann", 2, LEASE_MS, "").await;
        let row = row(&world).await;
        assert_eq!(row.fencing_token.value(), Some(&grant.fencing_token));
    }

    /// The Java client with `updateExistingLockRecord` judged a version stale that a break had ended.
    #[tokio::test(start_paused = true)]
    async fn takeover_in_place_fails_after_a_break() {
        let world = World::new().await;
        acquired(&world, "ann", 1, Staleness::Never).await;
        let stale = seen(&world).await;
        world.table.break_lock(&Break { key: key(), seen: stale.clone() }).await.expect("broken");
        let text = |value: &str| AttributeValue::S(value.to_owned());
        let update = world.dynamodb.update_item().table_name("locks").key("key", text("Moe"));
        let update = update
            .update_expression("SET ownerName = :o, recordVersionNumber = :r")
            .condition_expression("recordVersionNumber = :stale")
            .expression_attribute_values(":o", text("java"))
            .expression_attribute_values(":r", text("java-1"))
            .expression_attribute_values(":stale", text(stale.as_str()));
        assert!(update.send().await.is_err());
        assert_eq!(acquired(&world, "bob", 1, Staleness::Never).await.outcome, GrantOutcome::Reacquired);
    }

    fn attributes(values: &[(&str, &str)]) -> Attributes {
        values.iter().map(|(name, value)| ((*name).to_owned(), AttributeValue::S((*value).into()))).collect()
    }

    async fn acquired_with(world: &World, owner: &str, values: &[(&str, &str)]) -> Grant {
        let request = Acquire { attributes: attributes(values), ..acquire(owner, LEASE_MS, Staleness::Never) };
        match world.table.acquire(&request).await.expect("answered") {
            AcquireAnswer::Granted(grant) => grant,
            answer => panic!("not granted: {answer:?}"),
        }
    }

    /// A world in which "ann" deleted the lock, and the removal of her additional attributes failed.
    async fn uncleared() -> World {
        let world = World::new().await;
        acquired_with(&world, "ann", &[("team", "payments"), ("room", "7")]).await;
        world.faults.script([Fault::None, Fault::RequestLost]);
        released(&world, "ann", Disposal::Delete).await;
        assert_eq!(world.row().await, None);
        world
    }

    #[tokio::test(start_paused = true)]
    async fn tombstone_is_cleared_by_a_repeat() {
        for fault in [Fault::RequestLost, Fault::ResponseLost] {
            let world = World::new().await;
            acquired_with(&world, "ann", &[("team", "payments")]).await;
            // The second write fails, which does not affect the caller; or the answer to the first one is lost.
            let faults = if fault == Fault::RequestLost { vec![Fault::None, fault] } else { vec![fault] };
            world.faults.script(faults);
            released(&world, "ann", Disposal::Delete).await;
            assert_eq!(world.row().await, None, "{fault:?}");
            assert_eq!(released(&world, "ann", Disposal::Delete).await, ReleaseOutcome::Absent);
            world.faults.take_calls();
            let grant = acquired(&world, "bob", 1, Staleness::Never).await;
            assert_eq!((grant.outcome, grant.row.attributes), (GrantOutcome::Created, Attributes::new()), "{fault:?}");
            assert_eq!(world.faults.take_calls(), 1, "{fault:?}: the tombstone was clear");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tombstone_is_cleared_by_the_next_acquire() {
        let world = uncleared().await;
        let grant = acquired_with(&world, "bob", &[("room", "8")]).await;
        let own = attributes(&[("room", "8")]);
        assert_eq!((grant.outcome, &grant.row.attributes), (GrantOutcome::Created, &own));
        assert_eq!(row(&world).await, grant.row);
    }

    #[tokio::test(start_paused = true)]
    async fn acquire_is_granted_when_the_clearing_fails() {
        let world = uncleared().await;
        world.faults.script([Fault::None, Fault::RequestLost]);
        let grant = acquired_with(&world, "bob", &[]).await;
        assert_eq!((grant.outcome, grant.row.attributes), (GrantOutcome::Created, Attributes::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn late_clearing_does_not_touch_a_successor() {
        let world = uncleared().await;
        world.faults.script([Fault::None, Fault::Copied]);
        acquired_with(&world, "bob", &[]).await;
        released(&world, "bob", Disposal::Keep(None)).await;
        let grant = acquired_with(&world, "cyd", &[("team", "search")]).await;
        assert_eq!(world.faults.deliver_copies().await, 1);
        assert_eq!(row(&world).await, grant.row);
        assert_eq!(grant.row.attributes, attributes(&[("team", "search")]));
    }
}

#[tokio::test(start_paused = true)]
async fn health_is_what_the_table_answers() {
    let world = World::new().await;
    world.table.check_health().await.expect("it answers");
    world.faults.script([Fault::Throttled; 3]);
    let error = world.table.check_health().await.expect_err("it throttles all attempts");
    assert_eq!(error.kind(), ErrorKind::Throttled);
}
