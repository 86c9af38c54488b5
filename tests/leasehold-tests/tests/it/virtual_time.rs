//! The judgement of staleness, and its times: stories under tokio's paused clock. Twenty seconds take no time.

use std::time::Duration;

use leasehold_protocol::{AcquireAnswer, Grant, GrantOutcome, HeartbeatAnswer, Rvn, Staleness};
use leasehold_tests::{World, acquire, heartbeat, release};
use tokio::time::{Instant, sleep};

const LEASE: Duration = Duration::from_secs(20);
const LEASE_MS: u64 = 20_000;

/// A caller that wants the lock and follows rule 6: its observation counts from after the answer, and starts again at a
/// change.
struct Observer {
    name: &'static str,
    seen: Option<(String, Duration, Instant)>,
}

impl Observer {
    fn new(name: &'static str) -> Self {
        Self { name, seen: None }
    }

    /// Polls once: one request, with the observed version if it has been seen for its lease.
    async fn poll(&mut self, world: &World) -> Option<Grant> {
        let staleness = match &self.seen {
            Some((rvn, lease, since)) if since.elapsed() >= *lease => {
                Staleness::Observed(Rvn::new("", rvn.clone()).expect("valid"))
            }
            _ => Staleness::Never,
        };
        match world.table.acquire(&acquire(self.name, LEASE_MS, staleness)).await.expect("no faults") {
            AcquireAnswer::Granted(grant) => Some(grant),
            AcquireAnswer::Held(lock) => {
                if self.seen.as_ref().is_none_or(|(rvn, ..)| *rvn != lock.rvn) {
                    self.seen = Some((lock.rvn, Duration::from_millis(lock.lease_ms), Instant::now()));
                }
                None
            }
            answer => panic!("neither granted nor held: {answer:?}"),
        }
    }
}

async fn grant(world: &World, owner: &str) -> Grant {
    match world.table.acquire(&acquire(owner, LEASE_MS, Staleness::Never)).await.expect("no faults") {
        AcquireAnswer::Granted(grant) => grant,
        answer => panic!("not granted: {answer:?}"),
    }
}

/// The example of the Java client's documentation: host 1 holds the lock "Moe" and dies; host 2 polls.
#[tokio::test(start_paused = true)]
async fn two_hosts_take_turns_under_the_lock_moe() {
    let world = World::new().await;
    let first = grant(&world, "host-1").await;
    assert_eq!(first.outcome, GrantOutcome::Created);

    // Host 1 heartbeats twice, and then stops.
    for _ in 0..2 {
        sleep(Duration::from_secs(5)).await;
        assert!(matches!(world.table.heartbeat(&heartbeat("host-1")).await, Ok(HeartbeatAnswer::Renewed(_))));
    }
    let died = Instant::now();
    sleep(Duration::from_secs(1)).await;

    // Host 2 arrives, sees an unknown version, and starts to count.
    let mut host2 = Observer::new("host-2");
    let began = Instant::now();
    let taken = loop {
        let before = world.row().await.expect("a row");
        if let Some(grant) = host2.poll(&world).await {
            break grant;
        }
        assert_eq!(world.row().await.as_ref(), Some(&before), "a refused poll leaves no trace");
        sleep(Duration::from_secs(5)).await;
    };
    assert_eq!(began.elapsed(), LEASE, "one lease after it began to look, and not before");
    assert_eq!(died.elapsed(), LEASE + Duration::from_secs(1));
    assert_eq!(taken.outcome, GrantOutcome::TakenOver);
    assert_eq!(taken.previous_owner_name.as_deref(), Some("host-1"));
    assert!(taken.fencing_token > first.fencing_token);

    // Host 1 was only paused. Its answer says that it lost the lock, and to which host.
    let HeartbeatAnswer::Lost(lost) = world.table.heartbeat(&heartbeat("host-1")).await.expect("no faults") else {
        panic!("a thief and a victim cannot both hold it");
    };
    assert_eq!(lost.lock.expect("a row").owner_name, "host-2");
}

#[tokio::test(start_paused = true)]
async fn holder_that_heartbeats_is_never_taken_over() {
    let world = World::new().await;
    grant(&world, "alive").await;
    let mut patient = Observer::new("patient");
    // The observer polls out of step with the heartbeats for a hundred leases.
    for second in 0..2000_u32 {
        sleep(Duration::from_secs(1)).await;
        if second % 7 == 0 {
            assert!(matches!(world.table.heartbeat(&heartbeat("alive")).await, Ok(HeartbeatAnswer::Renewed(_))));
        }
        if second % 3 == 0 {
            assert_eq!(patient.poll(&world).await, None, "second {second}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dead_holder_is_taken_over_after_one_lease_and_not_before() {
    let world = World::new().await;
    grant(&world, "dead").await;
    let mut heir = Observer::new("heir");
    assert_eq!(heir.poll(&world).await, None);
    sleep(LEASE.saturating_sub(Duration::from_millis(1))).await;
    assert_eq!(heir.poll(&world).await, None, "a millisecond early");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(heir.poll(&world).await.expect("stale now").outcome, GrantOutcome::TakenOver);
}

#[tokio::test(start_paused = true)]
async fn observer_starts_again_when_the_version_changed() {
    let world = World::new().await;
    grant(&world, "holder").await;
    let mut observer = Observer::new("observer");
    assert_eq!(observer.poll(&world).await, None);
    sleep(LEASE.saturating_sub(Duration::from_secs(1))).await;
    assert!(matches!(world.table.heartbeat(&heartbeat("holder")).await, Ok(HeartbeatAnswer::Renewed(_))));
    sleep(Duration::from_secs(1)).await;
    // A whole lease has passed since the first poll, and the version that it saw was replaced.
    assert_eq!(observer.poll(&world).await, None, "its observation is outdated");
    sleep(LEASE).await;
    assert!(observer.poll(&world).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn one_observer_takes_over_and_the_other_starts_again() {
    let world = World::new().await;
    grant(&world, "dead").await;
    let (mut one, mut two) = (Observer::new("one"), Observer::new("two"));
    assert_eq!(one.poll(&world).await, None);
    assert_eq!(two.poll(&world).await, None);
    sleep(LEASE).await;
    assert!(one.poll(&world).await.is_some());
    assert_eq!(two.poll(&world).await, None, "the version it observed is gone");
    sleep(LEASE).await;
    assert!(two.poll(&world).await.is_some(), "one never heartbeats, so it is stale in its turn");
}

#[tokio::test(start_paused = true)]
async fn clock_takeover_needs_lease_and_skew_and_no_poll_before() {
    let world = World::new().await;
    grant(&world, "dead").await;
    let try_by_clock = || async {
        let request = acquire("cron", LEASE_MS, Staleness::Clock);
        world.table.acquire(&request).await.expect("no faults")
    };
    sleep(LEASE + Duration::from_secs(1)).await;
    assert!(matches!(try_by_clock().await, AcquireAnswer::Held(_)), "the skew is not over");
    sleep(Duration::from_millis(1)).await;
    let AcquireAnswer::Granted(grant) = try_by_clock().await else { panic!("stale by the clock") };
    assert_eq!(grant.outcome, GrantOutcome::TakenOver);
}

#[tokio::test(start_paused = true)]
async fn heartbeat_that_keeps_the_lease_moves_the_clock_too() {
    let world = World::new().await;
    grant(&world, "alive").await;
    sleep(LEASE).await;
    assert!(matches!(world.table.heartbeat(&heartbeat("alive")).await, Ok(HeartbeatAnswer::Renewed(_))));
    sleep(Duration::from_secs(5)).await;
    let answer = world.table.acquire(&acquire("cron", LEASE_MS, Staleness::Clock)).await.expect("no faults");
    assert!(matches!(answer, AcquireAnswer::Held(_)));
    let row = world.row().await.expect("a row");
    let now = row.stale_at.expect("written") - LEASE_MS;
    assert!(row.expire_at.expect("written") > now / 1000 + 7 * 24 * 3600, "kept for its lease and the retention");
}

#[tokio::test(start_paused = true)]
async fn lock_is_released_elsewhere_by_its_lease_id_alone() {
    let world = World::new().await;
    let here = grant(&world, "job").await;
    assert!(world.table.release(&release("job")).await.is_ok());
    let next = grant(&world, "next").await;
    assert_eq!(next.outcome, GrantOutcome::Reacquired);
    assert_eq!(next.fencing_token, here.fencing_token + 1);
}
