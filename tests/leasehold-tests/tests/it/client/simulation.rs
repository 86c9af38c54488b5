//! Several clients want one lock for a long time, under random faults between them and the service, and between the
//! service and the table. At no moment do two of their guards report that they hold it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_client::wire::AcquireOutcome;
use leasehold_client::{Acquisition, Client, Guard, Heartbeat, Heartbeats, LockRequest, Wait};
use leasehold_tests::{COMMON, Fates, World, run_seeds};
use tokio::time::{Instant, sleep};

use super::{Fate, Network};

const LEASE: Duration = Duration::from_secs(10);
const RUN: Duration = Duration::from_mins(10);

/// All existing guards, which no client can see.
#[derive(Default)]
struct Above {
    guards: Vec<Rc<Guard>>,
    token: u64,
    grants: u32,
    takeovers: u32,
    losses: u32,
}

impl Above {
    fn check(&self) {
        let holders = self.guards.iter().filter(|guard| guard.valid()).count();
        assert!(holders <= 1, "{holders} guards say that they hold the lock: {:?}", self.guards);
    }

    fn granted(&mut self, guard: &Rc<Guard>) {
        assert!(guard.fencing_token() > self.token, "{} after {}", guard.fencing_token(), self.token);
        self.token = guard.fencing_token();
        self.grants += 1;
        self.takeovers += u32::from(guard.outcome() == Some(AcquireOutcome::TakenOver));
        self.guards.push(Rc::clone(guard));
        self.check();
    }

    fn gone(&mut self, guard: &Rc<Guard>) {
        self.losses += u32::from(guard.loss().is_some());
        self.guards.retain(|other| !Rc::ptr_eq(other, guard));
    }
}

fn random_fate(rng: &mut fastrand::Rng) -> Fate {
    let delay = Duration::from_millis(rng.u64(0..20_000));
    match rng.u32(0..40) {
        0 => Fate::NotSent,
        1 => Fate::AnswerLost,
        2 => Fate::AnswerLate(delay),
        3 => Fate::Overdue(delay),
        4 => Fate::Gateway(503, Some(1), "busy"),
        5 => Fate::Slow(delay),
        6 => Fate::GaveUp(504),
        _ => Fate::Delivered,
    }
}

async fn live(client: Client, above: Rc<RefCell<Above>>, mut rng: fastrand::Rng, end: Instant) {
    while Instant::now() < end {
        let wait = match rng.u32(0..3) {
            0 => Wait::AtMost(Duration::from_millis(rng.u64(0..8000))),
            1 => Wait::OneLease { margin: Duration::from_secs(1), extend: true },
            _ => Wait::default(),
        };
        let heartbeats = if rng.u32(0..5) == 0 { Heartbeats::Manual } else { Heartbeats::Quarterly };
        let request = LockRequest::new("Moe").lease(LEASE).wait(wait).heartbeats(heartbeats);
        if let Ok(Acquisition::Granted(guard)) = client.acquire(request).await {
            hold(Rc::new(guard), &above, &mut rng).await;
        }
        sleep(Duration::from_millis(rng.u64(0..3000))).await;
    }
}

async fn hold(guard: Rc<Guard>, above: &RefCell<Above>, rng: &mut fastrand::Rng) {
    above.borrow_mut().granted(&guard);
    for _ in 0..rng.u32(0..15) {
        sleep(Duration::from_millis(rng.u64(100..2000))).await;
        above.borrow().check();
        if rng.u32(0..8) == 0 {
            // A changing lease is the hardest case.
            let lease = Duration::from_millis(rng.u64(4000..16_000));
            let _ = guard.renew_with(Heartbeat::new().lease(lease)).await;
            above.borrow().check();
        }
        if !guard.valid() {
            break;
        }
    }
    above.borrow_mut().gone(&guard);
    let guard = Rc::into_inner(guard).expect("nobody else has it");
    match rng.u32(0..4) {
        // The client dies silently.
        0 => drop(guard.detach()),
        1 => drop(guard),
        _ => drop(guard.release().await),
    }
}

/// Returns the number of grants, of takeovers and of losses.
async fn run(seed: u64) -> [u32; 3] {
    let world = World::new().await;
    let mut rng = fastrand::Rng::with_seed(seed);
    world.faults.set(Fates::Random { rng: rng.fork(), one_in: 12, longest: LEASE * 2, kinds: COMMON });
    let above = Rc::new(RefCell::new(Above::default()));
    let end = Instant::now() + RUN;
    let clients = tokio::task::LocalSet::new();
    for name in ["ann", "bob", "cyd", "dan"] {
        let network = Network::new(world.transport());
        let fates = Arc::new(Mutex::new(rng.fork()));
        network.set(move |_| random_fate(&mut fates.lock().expect("not poisoned")));
        let client = Client::builder().owner_name(name).build(network);
        clients.spawn_local(live(client, Rc::clone(&above), rng.fork(), end));
    }
    clients.await;
    let above = above.borrow();
    [above.grants, above.takeovers, above.losses]
}

#[test]
fn no_two_guards_hold_the_lock_under_faults() {
    let all = run_seeds("no_two_guards", 20, run);
    let [grants, takeovers, losses] = [0, 1, 2].map(|what| all.iter().map(|run| run[what]).sum::<u32>());
    assert!(grants > 500 && takeovers > 20 && losses > 10, "too little happened: {grants}, {takeovers}, {losses}");
}
