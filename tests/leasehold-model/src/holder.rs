//! # A model of a holder, explored exhaustively
//!
//! The holder is the real machine of the clients ([`Holder`]), and the row follows the real life cycle of the lock. A
//! message arrives late, twice or never, and after any other. Ticks are late, a caller leaves at any time, the holder
//! releases at any time, a release or its answer is lost, and others take over what they saw for its lease, or push the
//! end of the hold out of the row's memory. The recorder of the traces has suspensions, outages and other leases, by
//! chance.

use std::time::Duration;

use leasehold_client_core::holder::{Action, Event, Grant, Reply, Return, State, Terms};
use leasehold_client_core::{Cause, Chance, Holder, LossReason, Purpose, timing};
use leasehold_protocol::{
    Acquire, AcquireAnswer, Attributes, DataChange, Disposal, Heartbeat, HeartbeatAnswer, LeaseDuration, LeaseId,
    LockKey, OwnerName, Policy, Release, ReleaseAnswer, Rvn, Sequence, Staleness, Stamp, lifecycle,
};
use stateright::{CheckerBuilder, Model, Property};

use crate::threads;
use crate::world::Stored;

const UNIT: Duration = Duration::from_millis(100);
const LEASE: Duration = Duration::from_millis(400);
/// The lease that a caller asks for.
const SHORT: Duration = Duration::from_millis(200);
const HOLDER: &str = "holder";
const THIEF: &str = "thief";
const TAKEN_OVER: &str = "a lock is taken over";
const RENEWED: &str = "a lease is renewed";
const LEARNED: &str = "a holder learns of its loss";
const LATE: &str = "a heartbeat arrives after the release";
const EXPLAINED: &str = "a release without an answer explains a loss";
const STOLEN: &str = "a release learns of a loss";

/// The bounds of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The name, for reports.
    pub name: &'static str,
    /// The number of steps of time.
    pub steps: u8,
    /// The number of heartbeats.
    pub sends: u8,
    /// The number of heartbeats that a caller asks for.
    pub calls: u8,
    /// The number of releases without an answer.
    pub untold: u8,
}

impl Bounds {
    /// The bounds that every test run explores.
    pub fn small() -> [Self; 2] {
        [
            Self { name: "holder-small", steps: 9, sends: 2, calls: 1, untold: 0 },
            Self { name: "holder-small-releases", steps: 7, sends: 1, calls: 0, untold: 2 },
        ]
    }

    /// The larger bounds.
    pub fn full() -> Vec<Self> {
        vec![
            Self { name: "holder", steps: 11, sends: 3, calls: 1, untold: 0 },
            Self { name: "holder-calls", steps: 8, sends: 3, calls: 2, untold: 0 },
            Self { name: "holder-releases", steps: 9, sends: 1, calls: 0, untold: 3 },
        ]
    }
}

/// The protocol within bounds.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    /// The bounds of the exploration.
    pub bounds: Bounds,
}

impl Protocol {
    /// Returns a checker.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads())
    }

    /// The names of the events that an exploration must contain.
    pub fn must_see(&self) -> Vec<&'static str> {
        let explained = (self.bounds.untold > 0).then_some(EXPLAINED);
        [TAKEN_OVER, RENEWED, LEARNED, LATE, STOLEN].into_iter().chain(explained).collect()
    }
}

/// A heartbeat in the network, which arrives any number of times.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Message {
    send: u64,
    sequence: u64,
    id: String,
    lease: Duration,
}

/// The state of all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    now: u8,
    row: Stored,
    versions: u8,
    holder: Holder<u8>,
    wake: Option<Duration>,
    /// The send without an end.
    open: Option<u64>,
    sends: u8,
    network: Vec<Message>,
    answer: Option<(u64, Reply)>,
    /// The calls that wait.
    calls: Vec<u64>,
    asked: u8,
    /// The release stores something.
    stores: bool,
    /// It was stored.
    stored: bool,
    /// A try of the release is under way, which left then.
    left: Option<u8>,
    untold: u8,
    /// A try that may be carried out left then, and has no answer.
    first_untold: Option<u8>,
    /// A try that left within the lease was carried out.
    gave_back: bool,
    seen: Option<(String, u8)>,
    thief_until: Option<u8>,
    taken_at: Option<u8>,
    events: [bool; 6],
}

/// A step of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// Time passes.
    Pass,
    /// A tick, perhaps late.
    Tick,
    /// A heartbeat arrives.
    Arrive(usize),
    /// Its answer arrives.
    Answer,
    /// The time-out is over.
    TimeOut,
    /// No connection was made.
    Unreached,
    /// A caller asks for a heartbeat.
    Renew,
    /// A caller leaves.
    Leave(u64),
    /// The holder releases.
    Release,
    /// The release is carried out, and answered.
    GiveBack,
    /// The release is carried out, and its answer is lost.
    LoseAnswer,
    /// The release is lost, which nobody can tell from a lost answer.
    LoseRelease,
    /// The release is not sent.
    NotSent,
    /// The release fails.
    FailToGiveBack,
    /// The row forgets the end of the hold: others acquire and release.
    Forget,
    /// The other caller looks.
    Look,
}

struct Fixed;

impl Chance for Fixed {
    fn fraction(&mut self, _: Purpose) -> f64 {
        0.0
    }

    fn id(&mut self, _: Purpose) -> String {
        String::from("id")
    }
}

fn valid<T>(value: Result<T, leasehold_protocol::Error>) -> Option<T> {
    value.ok()
}

fn key() -> Option<LockKey> {
    valid(LockKey::new("Moe", None))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or_default()
}

impl World {
    fn new(stores: bool) -> Option<Self> {
        let stamp = Stamp { rvn: "v0".into(), now_us: 1_000_000 };
        let request = acquire(HOLDER, Staleness::Never, Some(valid(Sequence::new(1, Some("first".to_owned())))?))?;
        let step = lifecycle::acquire(None, &request, &stamp, &Policy::default()).ok()?;
        let row = step.row?;
        let grant = Grant { sent: Duration::ZERO, lease: LEASE, token: *row.fencing_token.value()?, sequence: 1 };
        let terms = Terms { longest: LEASE, ..Terms::default() };
        let mut world = Self {
            now: 0,
            row: Stored(row),
            versions: 0,
            stores,
            stored: false,
            holder: Holder::new(terms, grant),
            wake: None,
            open: None,
            sends: 0,
            network: Vec::new(),
            answer: None,
            calls: Vec::new(),
            asked: 0,
            left: None,
            untold: 0,
            first_untold: None,
            gave_back: false,
            seen: None,
            thief_until: None,
            taken_at: None,
            events: [false; 6],
        };
        world.step(Event::Start);
        Some(world)
    }

    fn time(&self) -> Duration {
        UNIT * u32::from(self.now)
    }

    fn stamp(&mut self) -> Stamp {
        self.versions += 1;
        Stamp { rvn: format!("v{}", self.versions), now_us: 1_000_000 + 100_000 * u64::from(self.now) }
    }

    fn step(&mut self, event: Event<u8>) {
        let step = self.holder.step(event, self.time(), &mut Fixed);
        for action in step.actions {
            match action {
                Action::Send { send, beat, .. } => {
                    self.sends += 1;
                    self.open = Some(send);
                    let (sequence, lease) = (beat.sequence, beat.request.lease);
                    let id = format!("{}-{sequence}", beat.id);
                    self.network.push(Message { send, sequence, id, lease });
                }
                Action::Abandon { .. } => (self.open, self.answer) = (None, None),
                Action::WakeAt(time) => self.wake = Some(time),
                Action::Finish { call, .. } => self.calls.retain(|it| *it != call),
                Action::GiveBack { .. } => self.left = Some(self.now),
                Action::Renewed { .. } => self.events[1] = true,
                Action::Lost { reason } => self.events[2] |= reason == LossReason::TakenOver,
                Action::AtRisk { .. } => {}
            }
        }
    }

    fn is_the_holders(&self) -> bool {
        let hash = valid(LeaseId::new(HOLDER.to_owned())).map(|id| id.hash());
        !self.row.0.released && self.row.0.lease_id_hash == hash
    }

    fn arrive(&mut self, index: usize) -> Option<()> {
        let Message { send, sequence, id, lease } = self.network.get(index)?.clone();
        let request = Heartbeat {
            key: key()?,
            lease_id: valid(LeaseId::new(HOLDER.to_owned()))?,
            sequence: Some(valid(Sequence::new(sequence, Some(id)))?),
            lease_duration: Some(valid(LeaseDuration::from_millis(millis(lease)))?),
            data: DataChange::Keep,
            expected: None,
            fencing_token: Some(self.holder.token()),
            principal: None,
        };
        let stamp = self.stamp();
        let step = lifecycle::heartbeat(Some(&self.row.0), &request, &stamp, &[], &Policy::default());
        self.events[3] |= self.holder.state() == State::Released;
        if step.change.is_some() {
            self.row = Stored(step.row?);
        } else {
            self.versions -= 1;
        }
        let reply = match step.answer {
            HeartbeatAnswer::Renewed(row) => Reply::Renewed {
                lease: Duration::from_millis(*row.lease_ms.value()?),
                token: *row.fencing_token.value()?,
                wanted: false,
            },
            HeartbeatAnswer::Lost(_) => Reply::Lost { reason: LossReason::TakenOver },
            HeartbeatAnswer::Superseded(it) => Reply::Superseded { sequence: it.sequence, token: it.fencing_token },
            HeartbeatAnswer::Forbidden | HeartbeatAnswer::WrongKind => Reply::Refused,
        };
        if self.open == Some(send) && self.answer.is_none() {
            self.answer = Some((send, reply));
        }
        Some(())
    }

    /// The release arrives. Returns its answer.
    fn give_back(&mut self) -> Option<Return> {
        let (stamp, request) = (self.stamp(), release(HOLDER)?);
        let step = lifecycle::release(Some(&self.row.0), &request, &stamp, &Policy::default());
        if step.change.is_some() {
            self.row = Stored(step.row?);
            self.stored = true;
            self.gave_back |= UNIT * u32::from(self.left?) < self.holder.until();
        }
        Some(match step.answer {
            ReleaseAnswer::Done(_) => Return::Done,
            _ => Return::Lost { reason: LossReason::TakenOver },
        })
    }

    fn returned(&mut self, end: Return) {
        self.left = None;
        self.step(Event::Returned(end));
        if matches!(end, Return::Lost { .. }) {
            self.events[4] |= self.holder.state() == State::Released;
            self.events[5] |= self.holder.state() != State::Released;
        }
    }

    /// A try of the release has no answer, and the next one leaves.
    fn untold(&mut self, may_apply: bool) -> Option<()> {
        let left = self.left.replace(self.now)?;
        self.untold += 1;
        if may_apply {
            self.first_untold.get_or_insert(left);
        }
        self.step(Event::Untold { sent: UNIT * u32::from(left), may_apply, stores: self.stores });
        Some(())
    }

    /// Others acquire and release, so often that the row has no memory of the holder.
    fn forget(&mut self) -> Option<()> {
        for other in ["first", "second"] {
            let (stamp, request) = (self.stamp(), acquire(other, Staleness::Never, None)?);
            let step = lifecycle::acquire(Some(&self.row.0), &request, &stamp, &Policy::default()).ok()?;
            let AcquireAnswer::Granted(_) = step.answer else { return None };
            self.row = Stored(step.row?);
            let (stamp, request) = (self.stamp(), release(other)?);
            self.row = Stored(lifecycle::release(Some(&self.row.0), &request, &stamp, &Policy::default()).row?);
        }
        Some(())
    }

    fn look(&mut self) -> Option<()> {
        let version = self.row.0.rvn.value()?.clone();
        let lease = Duration::from_millis(*self.row.0.lease_ms.value()?);
        match &self.seen {
            Some((seen, since)) if *seen == version => {
                if UNIT * u32::from(self.now - since) < timing::stale_after(lease) {
                    return None;
                }
                let stamp = self.stamp();
                let observed = valid(Rvn::new("observedRecordVersionNumber", version))?;
                let request = acquire(THIEF, Staleness::Observed(observed), None)?;
                let step = lifecycle::acquire(Some(&self.row.0), &request, &stamp, &Policy::default()).ok()?;
                let AcquireAnswer::Granted(_) = step.answer else { return None };
                self.row = Stored(step.row?);
                (self.thief_until, self.taken_at) = (Some(self.now + 4), Some(self.now));
                self.events[0] = true;
            }
            _ => self.seen = Some((version, self.now)),
        }
        Some(())
    }
}

fn acquire(name: &str, staleness: Staleness, sequence: Option<Sequence>) -> Option<Acquire> {
    Some(Acquire {
        key: key()?,
        owner_name: valid(OwnerName::new(name))?,
        lease_id: valid(LeaseId::new(name.to_owned()))?,
        sequence,
        lease_duration: valid(LeaseDuration::from_millis(millis(LEASE)))?,
        staleness,
        data: None,
        replace_data: true,
        only_if_exists: false,
        once: None,
        attributes: Attributes::new(),
        principal: None,
    })
}

fn release(name: &str) -> Option<Release> {
    Some(Release {
        key: key()?,
        lease_id: valid(LeaseId::new(name.to_owned()))?,
        disposal: Disposal::Keep(None),
        expected: None,
        principal: None,
    })
}

impl Model for Protocol {
    type State = World;
    type Action = Happening;

    fn init_states(&self) -> Vec<World> {
        let stores: &[bool] = if self.bounds.untold > 0 { &[false, true] } else { &[false] };
        stores.iter().filter_map(|stores| World::new(*stores)).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Happening>) {
        let Bounds { steps, sends, calls, untold, .. } = self.bounds;
        let is_held = world.holder.state() == State::Held;
        if world.now < steps {
            actions.push(Happening::Pass);
        }
        if is_held && world.sends < sends && world.wake.is_some_and(|wake| wake <= world.time()) {
            actions.push(Happening::Tick);
        }
        actions.extend((0..world.network.len()).map(Happening::Arrive));
        if world.open.is_some() {
            actions.extend([Happening::TimeOut, Happening::Unreached]);
            actions.extend(world.answer.iter().map(|_| Happening::Answer));
        }
        if world.asked < calls && world.sends < sends {
            actions.push(Happening::Renew);
        }
        actions.extend(world.calls.iter().map(|call| Happening::Leave(*call)));
        if is_held || world.holder.state() == State::Unreleased {
            actions.push(Happening::Release);
        }
        if world.left.is_some() {
            actions.extend([Happening::GiveBack, Happening::FailToGiveBack]);
            if world.untold < untold {
                actions.extend([Happening::LoseAnswer, Happening::LoseRelease, Happening::NotSent]);
            }
            if world.gave_back && world.row.0.released {
                actions.push(Happening::Forget);
            }
        }
        if world.thief_until.is_none() && !world.row.0.released {
            actions.push(Happening::Look);
        }
    }

    fn next_state(&self, world: &World, happening: Happening) -> Option<World> {
        let mut world = world.clone();
        match happening {
            Happening::Pass => world.now += 1,
            Happening::Tick => {
                world.wake = None;
                world.step(Event::Tick);
            }
            Happening::Arrive(index) => world.arrive(index)?,
            Happening::Answer => {
                let (send, reply) = world.answer.take()?;
                world.open = None;
                world.step(Event::Answer { send, reply });
            }
            Happening::TimeOut | Happening::Unreached => {
                let send = world.open.take()?;
                world.answer = None;
                let cause = if happening == Happening::TimeOut { Cause::TimedOut } else { Cause::Unreached };
                if cause == Cause::Unreached {
                    world.network.retain(|message| message.send != send);
                }
                world.step(Event::Unanswered { send, cause });
            }
            Happening::Renew => {
                world.asked += 1;
                let call = u64::from(world.asked);
                world.calls.push(call);
                world.step(Event::Renew { call, change: world.asked, lease: Some(SHORT) });
            }
            Happening::Leave(call) => {
                world.step(Event::Leave { call });
                world.calls.retain(|it| *it != call);
            }
            Happening::Release => world.step(Event::Release),
            Happening::GiveBack => {
                let end = world.give_back()?;
                world.returned(end);
            }
            Happening::LoseAnswer => {
                world.give_back()?;
                world.untold(true)?;
            }
            Happening::LoseRelease => world.untold(true)?,
            Happening::NotSent => world.untold(false)?,
            Happening::FailToGiveBack => world.returned(Return::Failed),
            Happening::Forget => world.forget()?,
            Happening::Look => world.look()?,
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one believes", |_, world: &World| {
                let thief_believes = world.thief_until.is_some_and(|until| world.now < until);
                !(thief_believes && world.holder.valid(world.time()))
            }),
            Property::always("what was given back is free", |_, world: &World| {
                world.holder.state() != State::Released || !world.is_the_holders()
            }),
            Property::always("a theft is told", |_, world: &World| {
                let left_before = |taken: u8| world.first_untold.is_some_and(|left| left < taken);
                world.holder.state() != State::Released || world.taken_at.is_none_or(left_before)
            }),
            Property::always("a release of one's own is no loss", |_, world: &World| {
                !world.gave_back || world.stores || !matches!(world.holder.state(), State::Lost(_))
            }),
            Property::always("what is told as stored was stored", |_, world: &World| {
                !world.stores || world.stored || world.holder.state() != State::Released
            }),
            Property::always("every wait ends", |_, world: &World| {
                let goes_on = world.open.is_some() || world.wake.is_some();
                world.calls.is_empty() || (world.holder.state() == State::Held && goes_on)
            }),
            Property::always("belief is no longer than the row's lease", |_, world: &World| {
                !world.holder.valid(world.time()) || world.is_the_holders()
            }),
            Property::sometimes(TAKEN_OVER, |_, world: &World| world.events[0]),
            Property::sometimes(RENEWED, |_, world: &World| world.events[1]),
            Property::sometimes(LEARNED, |_, world: &World| world.events[2]),
            Property::sometimes(LATE, |_, world: &World| world.events[3]),
            Property::sometimes(EXPLAINED, |_, world: &World| world.events[4]),
            Property::sometimes(STOLEN, |_, world: &World| world.events[5]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use stateright::Checker;

    use super::*;
    use crate::failures;

    #[test]
    fn holder_keeps_its_promises_within_small_bounds() {
        for bounds in Bounds::small() {
            let protocol = Protocol { bounds };
            let must_see = protocol.must_see();
            let checker = protocol.explored().spawn_bfs().join();
            println!("{}: {} states", bounds.name, checker.unique_state_count());
            assert_eq!(failures(&checker, &must_see), Vec::<String>::new());
        }
    }
}
