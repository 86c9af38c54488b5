//! Several hosts want one lock for a long time, under random faults: lost, late, slow and refused requests. At no
//! moment do two of them have reason to believe that they hold it, and every grant has a higher fencing token.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use leasehold_protocol::{
    Acquire, AcquireAnswer, Disposal, Heartbeat, HeartbeatAnswer, LeaseDuration, LeaseId, Release, Rvn, Sequence,
    Staleness,
};
use leasehold_tests::{COMMON, Fates, World, acquire, heartbeat, release, run_seeds};
use tokio::time::{Instant, sleep};

const LEASE_MS: u64 = 10_000;
const HOSTS: [&str; 4] = ["ann", "bob", "cyd", "dan"];
/// The length of a run, in virtual time.
const RUN: Duration = Duration::from_mins(10);

/// The beliefs of all hosts, which no host and no service can see.
#[derive(Default)]
struct Beliefs {
    /// The host that believes that it holds the lock, and the latest end of that belief.
    holder: Option<(&'static str, Instant)>,
    token: u64,
    grants: u32,
    takeovers: u32,
}

impl Beliefs {
    fn granted(&mut self, host: &'static str, until: Instant, token: u64, taken_over: bool) {
        if let Some((other, other_until)) = self.holder {
            assert!(
                other == host || Instant::now() >= other_until,
                "{host} was granted the lock while {other} has reason to believe that it holds it"
            );
        }
        assert!(token > self.token, "{host} was granted the token {token} after {}", self.token);
        self.holder = Some((host, until));
        self.token = token;
        self.grants += 1;
        self.takeovers += u32::from(taken_over);
    }

    fn counts(&mut self, host: &'static str, until: Instant) {
        assert_eq!(self.holder.map(|(holder, _)| holder), Some(host), "{host} counts on a lock that it does not hold");
        self.holder = Some((host, until));
    }

    fn given_up(&mut self, host: &'static str) {
        if self.holder.is_some_and(|(holder, _)| holder == host) {
            self.holder = None;
        }
    }
}

/// One host's life: it repeatedly waits for the lock, holds it a while, and releases it or forgets to.
async fn live(
    host: &'static str,
    world: Rc<World>,
    beliefs: Rc<RefCell<Beliefs>>,
    mut rng: fastrand::Rng,
    end: Instant,
) {
    let mut lease = 0;
    while Instant::now() < end {
        lease += 1;
        let mut lease_id = Numbered { id: format!("{host}-{lease}"), next: 1 };
        let Some(until) = wait_for_lock(host, &world, &beliefs, &mut rng, &mut lease_id, end).await else { return };
        hold(host, &world, &beliefs, &mut rng, &mut lease_id, until).await;
        sleep(Duration::from_millis(rng.u64(0..5000))).await;
    }
}

/// A lease id, and the number of its next request.
struct Numbered {
    id: String,
    next: u64,
}

impl Numbered {
    fn id(&self) -> LeaseId {
        LeaseId::new(self.id.clone()).expect("valid")
    }

    fn take(&mut self) -> Sequence {
        self.next += 1;
        Sequence::new(self.next - 1, None).expect("valid")
    }
}

/// A lease for a request.
fn some_lease(rng: &mut fastrand::Rng) -> u64 {
    *rng.choice([4000, LEASE_MS, 30_000].iter()).expect("three")
}

/// Polls by rules 6, 9 and 12. Returns the end of the lease, counted from before the request was first sent.
async fn wait_for_lock(
    host: &'static str,
    world: &World,
    beliefs: &RefCell<Beliefs>,
    rng: &mut fastrand::Rng,
    lease_id: &mut Numbered,
    end: Instant,
) -> Option<Instant> {
    let mut seen: Option<(String, Duration, Instant)> = None;
    let mut unanswered = None;
    while Instant::now() < end {
        // An unanswered request is repeated before a new one takes the next number.
        let (request, sent) = unanswered.take().unwrap_or_else(|| {
            let staleness = match &seen {
                Some((rvn, lease, since)) if since.elapsed() >= *lease + *lease / 1000 => {
                    Staleness::Observed(Rvn::new("", rvn.clone()).expect("valid"))
                }
                _ => Staleness::Never,
            };
            let fresh = acquire(host, some_lease(rng), staleness);
            (Acquire { lease_id: lease_id.id(), sequence: Some(lease_id.take()), ..fresh }, Instant::now())
        });
        match world.table.acquire(&request).await {
            Ok(AcquireAnswer::Granted(grant)) => {
                let until = sent + Duration::from_millis(request.lease_duration.as_millis());
                let taken_over = grant.outcome == leasehold_protocol::GrantOutcome::TakenOver;
                if Instant::now() < until {
                    beliefs.borrow_mut().granted(host, until, grant.fencing_token, taken_over);
                    return Some(until);
                }
            }
            Ok(AcquireAnswer::Held(lock)) => {
                if seen.as_ref().is_none_or(|(rvn, ..)| *rvn != lock.rvn) {
                    seen = Some((lock.rvn, Duration::from_millis(lock.lease_ms), Instant::now()));
                }
            }
            // The lock was granted once, by an answer that came too late, and other hosts had it since.
            Ok(AcquireAnswer::Lost(_)) => return None,
            Ok(answer) => panic!("this lease id counts its requests, and is never absent: {answer:?}"),
            Err(_) => unanswered = Some((request, sent)),
        }
        // Some hosts poll often, some rarely: both must be safe.
        sleep(Duration::from_millis(rng.u64(200..15_000))).await;
    }
    None
}

async fn hold(
    host: &'static str,
    world: &World,
    beliefs: &RefCell<Beliefs>,
    rng: &mut fastrand::Rng,
    lease_id: &mut Numbered,
    mut until: Instant,
) {
    let mut unanswered = None;
    for _ in 0..rng.u32(0..12) {
        // Sometimes a host is paused for longer than its lease.
        let pause = if rng.u32(0..12) == 0 { 15_000 } else { rng.u64(500..3000) };
        sleep(Duration::from_millis(pause)).await;
        if Instant::now() >= until {
            break;
        }
        let (request, sent) = unanswered.take().unwrap_or_else(|| {
            let lease_duration = Some(LeaseDuration::from_millis(some_lease(rng)).expect("valid"));
            let request = Heartbeat {
                lease_id: lease_id.id(),
                sequence: Some(lease_id.take()),
                lease_duration,
                ..heartbeat(host)
            };
            (request, Instant::now())
        });
        let renewed_until = sent + Duration::from_millis(request.lease_duration.expect("chosen").as_millis());
        // A shorter lease counts from its sending.
        until = until.min(renewed_until);
        beliefs.borrow_mut().counts(host, until);
        match world.table.heartbeat(&request).await {
            Ok(HeartbeatAnswer::Renewed(_)) => {
                until = renewed_until;
                if Instant::now() < until {
                    beliefs.borrow_mut().counts(host, until);
                }
            }
            Ok(HeartbeatAnswer::Lost(lost)) => {
                assert!(Instant::now() >= until, "{host} lost its lock to {lost:?} before its lease ran out");
                break;
            }
            // The result is unknown: the holder counts on from the last good request.
            Err(_) => unanswered = Some((request, sent)),
            Ok(answer) => panic!("nobody here is bound, or sends out of order: {answer:?}"),
        }
    }
    beliefs.borrow_mut().given_up(host);
    // One host in four dies and leaves the lock to a takeover.
    if rng.u32(0..4) > 0 {
        let disposal = if rng.bool() { Disposal::Delete } else { Disposal::Keep(None) };
        let _ = world.table.release(&Release { lease_id: lease_id.id(), disposal, ..release(host) }).await;
    }
}

async fn run(seed: u64) -> Beliefs {
    let world = Rc::new(World::new().await);
    let mut rng = fastrand::Rng::with_seed(seed);
    let longest = Duration::from_millis(LEASE_MS * 2);
    world.faults.set(Fates::Random { rng: rng.fork(), one_in: 5, longest, kinds: COMMON });
    let beliefs = Rc::new(RefCell::new(Beliefs::default()));
    let end = Instant::now() + RUN;
    let hosts = tokio::task::LocalSet::new();
    for host in HOSTS {
        hosts.spawn_local(live(host, Rc::clone(&world), Rc::clone(&beliefs), rng.fork(), end));
    }
    hosts.await;
    Rc::into_inner(beliefs).expect("all hosts are done").into_inner()
}

#[test]
fn no_two_hosts_hold_the_lock_under_faults() {
    let all = run_seeds("no_two_hosts", 30, run);
    let grants: u32 = all.iter().map(|beliefs| beliefs.grants).sum();
    let takeovers: u32 = all.iter().map(|beliefs| beliefs.takeovers).sum();
    assert!(grants > 10 && takeovers > 0, "the hosts did nothing: {grants} grants, {takeovers} takeovers");
}
