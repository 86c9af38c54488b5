//! Once an occurrence, under faults, late requests and direct invocations.

use std::time::Duration;

use leasehold_api::access::Caller;
use leasehold_api::{Routed, Service, direct};
use leasehold_protocol::{
    Acquire, AcquireAnswer, Completion, Data, Disposal, GrantOutcome, LostReason, Occurrence, Once, Release,
    ReleaseAnswer, ReleaseOutcome, Rvn, Staleness,
};
use leasehold_tests::{Fault, World, acquire, release};
use serde_json::json;

const TWO: &str = "2026-11-21T02";
const LEASE_MS: u64 = 20_000;
/// Longer than all attempts of an operation.
const LATE: Duration = Duration::from_secs(8);

fn occurrence(name: &str) -> Occurrence {
    Occurrence::new("", name).expect("valid")
}

fn running(owner: &str, at_most_once: bool, staleness: Staleness) -> Acquire {
    let once = Once { occurrence: occurrence(TWO), at_most_once };
    Acquire { once: Some(once), ..acquire(owner, LEASE_MS, staleness) }
}

fn completing(owner: &str) -> Release {
    let data = Data::new(b"result".to_vec()).expect("small");
    Release {
        disposal: Disposal::Complete(Completion { occurrence: occurrence(TWO), ttl: None }, Some(data)),
        ..release(owner)
    }
}

async fn granted(world: &World, request: &Acquire) -> GrantOutcome {
    match world.table.acquire(request).await.expect("answered") {
        AcquireAnswer::Granted(grant) => grant.outcome,
        answer => panic!("not granted: {answer:?}"),
    }
}

async fn is_done(world: &World) -> bool {
    let request = running("late", false, Staleness::Never);
    matches!(world.table.acquire(&request).await.expect("answered"), AcquireAnswer::AlreadyDone(Some(_)))
}

#[tokio::test(start_paused = true)]
async fn completion_is_one_write_and_survives_faults() {
    for fault in [
        Fault::None,
        Fault::RequestLost,
        Fault::ResponseLost,
        Fault::Throttled,
        Fault::ServerError,
        Fault::TransactionConflict,
        Fault::Slow(Duration::from_secs(2)),
        Fault::Late(LATE),
        Fault::Twice,
    ] {
        let world = World::new().await;
        world.faults.script([fault]);
        granted(&world, &running("holder", false, Staleness::Never)).await;
        tokio::time::sleep(LATE * 2).await;
        world.faults.take_calls();
        world.faults.script([fault]);
        let answer = world.table.release(&completing("holder")).await.expect("answered");
        let ReleaseAnswer::Done(done) = answer else { panic!("{fault:?}: {answer:?}") };
        assert_ne!(done.outcome, ReleaseOutcome::Absent, "{fault:?}");
        assert_eq!(world.faults.take_calls() == 1, matches!(fault, Fault::None | Fault::Twice), "{fault:?}");
        assert!(is_done(&world).await, "{fault:?}");
        tokio::time::sleep(LATE * 2).await;
        assert!(is_done(&world).await, "{fault:?}: nothing late brings the occurrence back");
        let row = world.row().await.expect("a row");
        assert_eq!((row.data.as_deref(), row.expire_at), (Some(&b"result"[..]), None), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answer_to_a_run_at_most_once_is_ones_own() {
    let world = World::new().await;
    world.faults.script([Fault::ResponseLost]);
    assert_eq!(granted(&world, &running("holder", true, Staleness::Never)).await, GrantOutcome::Renewed);
    assert!(is_done(&world).await);
}

#[tokio::test(start_paused = true)]
async fn late_copy_of_an_acquire_does_not_run_again() {
    let world = World::new().await;
    world.faults.script([Fault::Copied]);
    granted(&world, &running("holder", false, Staleness::Never)).await;
    world.table.release(&completing("holder")).await.expect("answered");
    assert_eq!(world.faults.deliver_copies().await, 1);
    assert!(world.row().await.expect("a row").released);
    assert!(is_done(&world).await);
}

#[tokio::test(start_paused = true)]
async fn run_is_repeated_when_its_holder_died() {
    let world = World::new().await;
    granted(&world, &running("holder", false, Staleness::Never)).await;
    let seen = world.row().await.and_then(|row| row.rvn.into_value()).expect("a version");
    tokio::time::sleep(Duration::from_millis(LEASE_MS + LEASE_MS / 1000 + 1)).await;
    let observed = Staleness::Observed(Rvn::new("", seen).expect("valid"));
    assert_eq!(granted(&world, &running("heir", false, observed)).await, GrantOutcome::TakenOver);
    // The dead holder comes back: its completion is not stored, and its answer says so.
    let ReleaseAnswer::Lost(lost) = world.table.release(&completing("holder")).await.expect("answered") else {
        panic!("the run is the heir's");
    };
    assert_eq!(lost.reason, LostReason::TakenOver);
    assert!(!is_done(&world).await);
    world.table.release(&completing("heir")).await.expect("answered");
    assert!(is_done(&world).await);
}

#[tokio::test]
async fn direct_invocation_names_a_done_occurrence() {
    let world = World::new().await;
    let service = Service::new(world.table.clone());
    let invoke = async |input| direct::invoke(&service, Service::ROUTES, Caller::unrestricted(), input).await;
    let acquire = json!({ "action": "acquire", "key": "Moe", "ownerName": "job", "occurrence": TWO, "leaseId": "l" });
    invoke(acquire.clone()).await.expect("granted");
    let release = json!({ "action": "release", "key": "Moe", "leaseId": "l", "completed": TWO, "data": "result" });
    invoke(release).await.expect("released");
    let mut again = acquire;
    again["leaseId"] = json!("another");
    let problem = invoke(again.clone()).await.expect_err("done");
    assert_eq!(problem.problem_type.error_name(), "AlreadyDone");
    assert_eq!(problem.lock.and_then(|lock| lock.data).as_deref(), Some("result"));
    // Step Functions truncates a long error: a long result is left to `get`.
    let long =
        json!({ "action": "acquire", "key": "Moe", "ownerName": "job", "leaseId": "m", "data": "x".repeat(40_000) });
    invoke(long).await.expect("granted");
    let problem = invoke(again).await.expect_err("done");
    assert_eq!(problem.lock.and_then(|lock| lock.data), None);
}
