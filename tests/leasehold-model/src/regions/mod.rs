//! A model of the lock on a table in several regions with strong consistency, explored exhaustively.
//!
//! The table has one item that all regions write, as DynamoDB promises it (multi-Region strong consistency). A write
//! may be refused because another region writes the item at the same time. A region can be cut off: its writes are
//! refused, and what it shows to a read without strong consistency stays as it was. Clocks of regions differ. Callers
//! send each attempt to a region of their choice, and so repeat in another region what one did not answer. Sweeps
//! remove expired rows, as no TTL does. Every write goes through the pure life cycle of `leasehold-protocol`.
//! [`permits`] is the same for a semaphore.

pub mod permits;

use leasehold_protocol::{
    Acquire, AcquireAnswer, Attributes, DataChange, Disposal, Heartbeat, HeartbeatAnswer, LeaseDuration, LeaseId,
    LockKey, OwnerName, Policy, Release, ReleaseAnswer, Row, Rvn, Sequence, Staleness, Stamp, lifecycle,
};
use stateright::{CheckerBuilder, Model, Property};

use crate::threads;
use crate::world::Stored;

/// The difference between the clocks of the two regions, and what the policy allows for, in milliseconds.
const SKEW: u16 = 4000;
/// The lease of every request.
const LEASE: u16 = 2000;
/// The time that passes at a time.
const STEP: u16 = 1000;

const REGIONS: usize = 2;
const CALLERS: usize = 2;

const CONFLICT: &str = "a write meets one of another region";
const ELSEWHERE: &str = "a request is repeated in another region";
const TAKEN_OVER: &str = "a lock is taken over";
const OLD_VIEW: &str = "a caller looks at an old copy";
const SWEPT: &str = "an expired row is removed";
/// In the order of the bits of [`World::events`].
const EVENTS: [&str; 5] = [CONFLICT, ELSEWHERE, TAKEN_OVER, OLD_VIEW, SWEPT];

/// A rule that a table in several regions, the service or a caller keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// A write that met one of another region was not carried out, and its answer says so.
    ConflictsAreRefusals,
    /// A region that is cut off answers no request from its copy.
    CopiesDecideNothing,
    /// The regions write one item: the table has strong consistency.
    OneItem,
    /// A takeover names the version that is in the item, wherever the caller saw it.
    ObservedVersion,
    /// A repeat in another region counts the lease from before the request was first sent.
    CountFromFirst,
    /// A sweep allows for the difference of clocks.
    SweepMargin,
}

impl Clause {
    /// All clauses.
    pub const ALL: [Self; 6] = [
        Self::ConflictsAreRefusals,
        Self::CopiesDecideNothing,
        Self::OneItem,
        Self::ObservedVersion,
        Self::CountFromFirst,
        Self::SweepMargin,
    ];

    /// Bounds within which the absence of the clause shows.
    pub const fn bounds(self) -> Bounds {
        let [conflicts, cuts, sweeps] = Bounds::small();
        match self {
            Self::SweepMargin => sweeps,
            Self::CopiesDecideNothing | Self::ObservedVersion => cuts,
            Self::ConflictsAreRefusals | Self::OneItem | Self::CountFromFirst => conflicts,
        }
    }
}

/// The bounds of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The name, for reports.
    pub name: &'static str,
    /// The number of requests under one lease id, without the release.
    pub requests: u8,
    /// The number of lease ids of a caller.
    pub lease_ids: u8,
    /// The number of attempts at one request.
    pub attempts: u8,
    /// The number of attempts that are under way at a time.
    pub in_flight: usize,
    /// The number of writes that meet one of another region.
    pub conflicts: u8,
    /// The number of times that a region is cut off.
    pub cuts: u8,
    /// The number of sweeps.
    pub sweeps: u8,
    /// The last moment, in milliseconds.
    pub end: u16,
}

const SMALL: Bounds = Bounds {
    name: "regions, conflicts",
    requests: 2,
    lease_ids: 1,
    attempts: 2,
    in_flight: 1,
    conflicts: 1,
    cuts: 0,
    sweeps: 0,
    end: 2000,
};

impl Bounds {
    /// Explorations of seconds.
    pub const fn small() -> [Self; 3] {
        [
            SMALL,
            Self { name: "regions, one cut off", conflicts: 0, cuts: 1, ..SMALL },
            Self { name: "regions, sweeps", requests: 1, attempts: 1, conflicts: 0, sweeps: 1, end: 4000, ..SMALL },
        ]
    }
}

/// The lock in several regions, within bounds, with one clause dropped or none.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The bounds of the exploration.
    pub bounds: Bounds,
    /// The clause that is missing.
    pub without: Option<Clause>,
}

impl Protocol {
    /// Returns a checker of the model.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads())
    }

    /// The names of the events that an exploration must contain.
    pub fn must_see(&self) -> Vec<&'static str> {
        let Bounds { requests, attempts, conflicts, cuts, sweeps, .. } = self.bounds;
        // A caller polls at least twice before it takes a lock over.
        let due = [conflicts > 0, attempts > 1, requests > 1, cuts > 0, sweeps > 0];
        EVENTS.into_iter().zip(due).filter(|(_, is_due)| *is_due).map(|(name, _)| name).collect()
    }

    fn lacks(&self, clause: Clause) -> bool {
        self.without == Some(clause)
    }
}

/// The promises of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Promise {
    OneBelieves,
    TokensRise,
    AnswersResolve,
    HoldersKeep,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Request {
    Acquire { observed: Option<String> },
    Heartbeat { token: u64 },
    Release,
}

/// A request without an answer so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pending {
    request: Request,
    first_sent: u16,
    last_sent: u16,
    last_region: usize,
    attempts: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Caller {
    lease_id: u8,
    number: u8,
    pending: Option<Pending>,
    /// A version, and the time when it was first seen.
    seen: Option<(String, u16)>,
    until: Option<u16>,
    token: u64,
}

impl Caller {
    fn believes(&self, now: u16) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    fn start_over(&mut self) {
        *self = Self { lease_id: self.lease_id + 1, seen: self.seen.take(), ..Self::default() };
    }
}

/// An attempt at a request, on its way to a region.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Attempt {
    caller: usize,
    lease_id: u8,
    number: u8,
    count: u8,
    request: Request,
    region: usize,
}

/// One step of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A caller sends a new request to a region.
    Send {
        /// The caller's index.
        caller: usize,
        /// The kind of the request.
        kind: Kind,
        /// The region.
        region: usize,
    },
    /// A caller sends its request again, to a region.
    Repeat {
        /// The caller's index.
        caller: usize,
        /// The region.
        region: usize,
    },
    /// An attempt arrives.
    Deliver {
        /// The attempt's index.
        attempt: usize,
        /// Whether another region writes the item at the same time.
        conflicts: bool,
        /// Whether the caller hears the answer.
        is_heard: bool,
    },
    /// A caller looks at the lock in a region, without strong consistency.
    Look {
        /// The caller's index.
        caller: usize,
        /// The region.
        region: usize,
    },
    /// A region is cut off.
    Cut {
        /// The region.
        region: usize,
    },
    /// The region that is cut off comes back.
    Join,
    /// A sweep runs in a region.
    Sweep {
        /// The region.
        region: usize,
    },
}

/// The kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Acquires the lock, or takes it over where its version was seen for the lease.
    Acquire,
    /// Renews the lease.
    Heartbeat,
    /// Ends the acquisition.
    Release,
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    now: u16,
    item: Option<Stored>,
    /// The item as each region shows it to a read without strong consistency.
    copies: [Option<Stored>; REGIONS],
    /// The region that is cut off.
    cut: Option<usize>,
    /// The region that wrote last, where that decides.
    last_writer: usize,
    conflicts: u8,
    cuts: u8,
    sweeps: u8,
    callers: Vec<Caller>,
    network: Vec<Attempt>,
    highest_token: u64,
    events: u8,
    broken: Option<Promise>,
}

enum Answer {
    Granted { token: u64 },
    Renewed,
    Held { version: String },
    Lost,
    Superseded,
    Ended,
}

fn policy() -> Policy {
    // A row may go as soon as its lease is over.
    Policy { retention_seconds: 0, clock_skew_ms: SKEW.into() }
}

fn valid<T>(value: Result<T, leasehold_protocol::Error>) -> T {
    value.expect("the model names valid values")
}

fn key() -> LockKey {
    valid(LockKey::new("Moe", None))
}

fn version(row: &Row) -> String {
    row.rvn.value().expect("written here").clone()
}

impl World {
    fn new() -> Self {
        Self {
            now: 0,
            item: None,
            copies: [None, None],
            cut: None,
            last_writer: 0,
            conflicts: 0,
            cuts: 0,
            sweeps: 0,
            callers: vec![Caller::default(); CALLERS],
            network: Vec::new(),
            highest_token: 0,
            events: 0,
            broken: None,
        }
    }

    fn saw(&self, event: &str) -> bool {
        EVENTS.iter().position(|name| *name == event).is_some_and(|bit| self.events & (1 << bit) != 0)
    }

    fn sees(&mut self, event: &str, happens: bool) {
        let bit = EVENTS.iter().position(|name| *name == event).filter(|_| happens);
        self.events |= bit.map_or(0, |bit| 1 << bit);
    }

    fn breaks(&mut self, promise: Promise) {
        self.broken.get_or_insert(promise);
    }

    /// The clock of a region's servers, in milliseconds.
    fn clock(&self, region: usize) -> u64 {
        // The second region is behind.
        u64::from(self.now) + if region == 0 { u64::from(SKEW) } else { 0 }
    }

    fn row_of(&self, region: usize, from_copy: bool) -> Option<&Row> {
        if from_copy { &self.copies[region] } else { &self.item }.as_ref().map(|stored| &stored.0)
    }

    fn kinds(&self, protocol: &Protocol, index: usize) -> Vec<Kind> {
        let caller = &self.callers[index];
        let may_ask = caller.number < protocol.bounds.requests;
        if caller.pending.is_some() || caller.lease_id >= protocol.bounds.lease_ids {
            return Vec::new();
        }
        // A holder whose lease is over gives up.
        match (caller.until, caller.believes(self.now), may_ask) {
            (Some(_), true, true) => vec![Kind::Heartbeat, Kind::Release],
            (Some(_), true, false) => vec![Kind::Release],
            (None, _, true) => vec![Kind::Acquire],
            (Some(_), false, _) | (None, _, false) => Vec::new(),
        }
    }

    fn actions(&self, protocol: &Protocol, actions: &mut Vec<Action>) {
        let bounds = &protocol.bounds;
        if self.broken.is_some() {
            return;
        }
        actions.extend((self.now < bounds.end).then_some(Action::Tick));
        let has_room = self.network.len() < bounds.in_flight;
        for caller in 0..CALLERS {
            // The second caller stays in one region.
            for region in caller..REGIONS {
                if has_room {
                    let kinds = self.kinds(protocol, caller).into_iter();
                    actions.extend(kinds.map(|kind| Action::Send { caller, kind, region }));
                    let pending = self.callers[caller].pending.as_ref();
                    let is_open = pending.is_some_and(|pending| pending.attempts < bounds.attempts);
                    actions.extend(is_open.then_some(Action::Repeat { caller, region }));
                }
                actions.push(Action::Look { caller, region });
            }
        }
        for attempt in 0..self.network.len() {
            for is_heard in [true, false] {
                actions.push(Action::Deliver { attempt, conflicts: false, is_heard });
                if self.conflicts < bounds.conflicts {
                    actions.push(Action::Deliver { attempt, conflicts: true, is_heard });
                }
            }
        }
        match self.cut {
            // The second caller stays in the region that is cut off, and the first one knows another.
            None => actions.extend((self.cuts < bounds.cuts).then_some(Action::Cut { region: CALLERS - 1 })),
            Some(_) => actions.push(Action::Join),
        }
        if self.sweeps < bounds.sweeps {
            actions.extend((0..REGIONS).map(|region| Action::Sweep { region }));
        }
    }

    fn after(&self, protocol: &Protocol, action: &Action) -> Option<Self> {
        let mut next = self.clone();
        match *action {
            Action::Tick => {
                next.now += STEP;
                if protocol.lacks(Clause::OneItem) {
                    // The last writer wins.
                    next.copies = [next.copies[next.last_writer].clone(), next.copies[next.last_writer].clone()];
                }
            }
            Action::Send { caller, kind, region } => next.send(caller, kind, region)?,
            Action::Repeat { caller, region } => {
                let pending = next.callers[caller].pending.as_mut()?;
                let is_elsewhere = pending.last_region != region;
                (pending.last_sent, pending.last_region) = (next.now, region);
                next.sees(ELSEWHERE, is_elsewhere);
                next.attempt(caller, region)?;
            }
            Action::Deliver { attempt, conflicts, is_heard } => {
                next.deliver(protocol, attempt, conflicts, is_heard)?;
            }
            Action::Look { caller, region } => next.look(caller, region)?,
            Action::Cut { region } => {
                next.cuts += 1;
                next.cut = Some(region);
            }
            Action::Join => {
                next.cut = None;
                next.copies = [next.item.clone(), next.item.clone()];
            }
            Action::Sweep { region } => next.sweep(protocol, region)?,
        }
        next.network.sort();
        if next.callers.iter().filter(|caller| caller.believes(next.now)).count() > 1 {
            next.breaks(Promise::OneBelieves);
        }
        Some(next)
    }

    fn send(&mut self, index: usize, kind: Kind, region: usize) -> Option<()> {
        let now = self.now;
        let caller = &mut self.callers[index];
        let request = match kind {
            Kind::Acquire => {
                let stale = caller.seen.as_ref().filter(|(_, since)| now - since >= LEASE);
                Request::Acquire { observed: stale.map(|(version, _)| version.clone()) }
            }
            Kind::Heartbeat => Request::Heartbeat { token: caller.token },
            Kind::Release => {
                caller.until = None;
                Request::Release
            }
        };
        if kind != Kind::Release {
            caller.number += 1;
        }
        caller.pending = Some(Pending { request, first_sent: now, last_sent: now, last_region: region, attempts: 0 });
        self.attempt(index, region)
    }

    fn attempt(&mut self, index: usize, region: usize) -> Option<()> {
        let caller = &mut self.callers[index];
        let pending = caller.pending.as_mut()?;
        pending.attempts += 1;
        let (count, request) = (pending.attempts, pending.request.clone());
        let (lease_id, number) = (caller.lease_id, caller.number);
        self.network.push(Attempt { caller: index, lease_id, number, count, request, region });
        Some(())
    }

    fn deliver(&mut self, protocol: &Protocol, index: usize, conflicts: bool, is_heard: bool) -> Option<()> {
        let attempt = self.network.remove(index);
        let is_cut = self.cut == Some(attempt.region);
        let pending = self.callers[attempt.caller].pending.as_ref();
        let is_awaited = self.callers[attempt.caller].lease_id == attempt.lease_id
            && pending.is_some_and(|it| it.attempts == attempt.count && it.request == attempt.request);
        if (is_cut && conflicts) || (is_heard && !is_awaited) {
            return None;
        }
        self.conflicts += u8::from(conflicts);
        self.sees(CONFLICT, conflicts);
        let from_copy = is_cut || protocol.lacks(Clause::OneItem);
        let (change, answer) = self.carry_out(protocol, &attempt, from_copy);
        let is_believed = is_cut && protocol.lacks(Clause::CopiesDecideNothing)
            || conflicts && protocol.lacks(Clause::ConflictsAreRefusals);
        if !(is_cut || conflicts) {
            self.write(protocol, attempt.region, change);
        } else if !is_believed {
            // The caller hears that nothing is known, or nothing. The request stays open.
            return (!is_heard).then_some(());
        }
        if is_heard {
            self.answered(protocol, attempt.caller, &answer);
        }
        Some(())
    }

    /// The row that the request writes, if it writes one, and the answer.
    fn carry_out(&self, protocol: &Protocol, attempt: &Attempt, from_copy: bool) -> (Option<Row>, Answer) {
        let Attempt { caller, lease_id, number, region, .. } = *attempt;
        let name = ["ann", "bob"][caller];
        let lease_id = valid(LeaseId::new(format!("{name}-{lease_id}")));
        let stamp = Stamp {
            rvn: format!("{name}-{}.{number}.{}", attempt.lease_id, attempt.count),
            // Never zero.
            now_us: (self.clock(region) + 1) * 1000,
        };
        let sequence = Some(valid(Sequence::new(number.max(1).into(), None)));
        let lease = valid(LeaseDuration::from_millis(LEASE.into()));
        let row = self.row_of(region, from_copy);
        match &attempt.request {
            Request::Acquire { observed } => {
                let in_item = row.map(version).filter(|_| protocol.lacks(Clause::ObservedVersion));
                let staleness = observed
                    .clone()
                    .map_or(Staleness::Never, |seen| Staleness::Observed(valid(Rvn::new("", in_item.unwrap_or(seen)))));
                let request = Acquire {
                    key: key(),
                    owner_name: valid(OwnerName::new(name)),
                    lease_id,
                    sequence,
                    lease_duration: lease,
                    staleness,
                    data: None,
                    replace_data: true,
                    only_if_exists: false,
                    once: None,
                    attributes: Attributes::new(),
                    principal: None,
                };
                let step = lifecycle::acquire(row, &request, &stamp, &policy()).expect("no row here is damaged");
                let answer = match step.answer {
                    AcquireAnswer::Granted(grant) => Answer::Granted { token: grant.fencing_token },
                    AcquireAnswer::Held(lock) | AcquireAnswer::HeldBeyondClocks(lock) => {
                        Answer::Held { version: lock.rvn }
                    }
                    AcquireAnswer::Superseded(_) => Answer::Superseded,
                    _ => Answer::Lost,
                };
                (step.change.and(step.row), answer)
            }
            Request::Heartbeat { token } => {
                let request = Heartbeat {
                    key: key(),
                    lease_id,
                    sequence,
                    lease_duration: Some(lease),
                    data: DataChange::Keep,
                    expected: None,
                    fencing_token: Some(*token),
                    principal: None,
                };
                let step = lifecycle::heartbeat(row, &request, &stamp, &[], &policy());
                let answer = match step.answer {
                    HeartbeatAnswer::Renewed(_) => Answer::Renewed,
                    HeartbeatAnswer::Superseded(_) => Answer::Superseded,
                    _ => Answer::Lost,
                };
                (step.change.and(step.row), answer)
            }
            Request::Release => {
                let disposal = Disposal::Keep(None);
                let request = Release { key: key(), lease_id, disposal, expected: None, principal: None };
                let step = lifecycle::release(row, &request, &stamp, &policy());
                let answer = if matches!(step.answer, ReleaseAnswer::Done(_)) { Answer::Ended } else { Answer::Lost };
                (step.change.and(step.row), answer)
            }
        }
    }

    fn write(&mut self, protocol: &Protocol, region: usize, change: Option<Row>) {
        let Some(row) = change else { return };
        let before = self.row_of(region, protocol.lacks(Clause::OneItem));
        let token_of = |row: &Row| row.fencing_token.value().copied().unwrap_or_default();
        let is_grant = before.is_none_or(|before| before.lease_id_hash != row.lease_id_hash);
        let is_takeover = is_grant && before.is_some_and(|before| !before.released);
        self.sees(TAKEN_OVER, is_takeover);
        if is_grant {
            if token_of(&row) <= self.highest_token {
                self.breaks(Promise::TokensRise);
            }
            self.highest_token = self.highest_token.max(token_of(&row));
        }
        self.put(protocol, region, Some(Stored(row)));
    }

    /// Stores the item, which each region that is not cut off shows.
    fn put(&mut self, protocol: &Protocol, region: usize, item: Option<Stored>) {
        if protocol.lacks(Clause::OneItem) {
            self.last_writer = region;
            self.copies[region] = item;
            return;
        }
        for (region, copy) in self.copies.iter_mut().enumerate() {
            if self.cut != Some(region) {
                copy.clone_from(&item);
            }
        }
        self.item = item;
    }

    fn look(&mut self, index: usize, region: usize) -> Option<()> {
        let copy = self.copies[region].as_ref().map(|stored| &stored.0).filter(|row| !row.released)?;
        let version = version(copy);
        // What a current copy shows, refusals show as well.
        if self.copies[region] == self.item {
            return None;
        }
        let now = self.now;
        let caller = &mut self.callers[index];
        if caller.until.is_some() || caller.seen.as_ref().is_some_and(|(seen, _)| *seen == version) {
            return None;
        }
        caller.seen = Some((version, now));
        self.sees(OLD_VIEW, true);
        Some(())
    }

    fn sweep(&mut self, protocol: &Protocol, region: usize) -> Option<()> {
        let mut policy = policy();
        if protocol.lacks(Clause::SweepMargin) {
            policy.clock_skew_ms = 0;
        }
        let is_over = self.cut != Some(region)
            && lifecycle::is_over(self.row_of(region, false)?, self.clock(region) + 1, &policy);
        if !is_over {
            return None;
        }
        self.sweeps += 1;
        self.sees(SWEPT, true);
        self.put(protocol, region, None);
        Some(())
    }

    fn answered(&mut self, protocol: &Protocol, index: usize, answer: &Answer) {
        let now = self.now;
        let caller = &mut self.callers[index];
        let Some(pending) = caller.pending.take() else { return };
        let sent = if protocol.lacks(Clause::CountFromFirst) { pending.last_sent } else { pending.first_sent };
        let until = Some(sent + LEASE).filter(|until| now < *until);
        let mut broken = None;
        match answer {
            Answer::Granted { token } => {
                caller.until = until.or(Some(now));
                caller.token = *token;
                caller.seen = None;
            }
            Answer::Renewed => caller.until = until.or(Some(now)),
            Answer::Held { version } => {
                if caller.seen.as_ref().is_none_or(|(seen, _)| seen != version) {
                    caller.seen = Some((version.clone(), now));
                }
            }
            Answer::Lost => {
                broken = caller.believes(now).then_some(Promise::HoldersKeep);
                caller.start_over();
            }
            Answer::Superseded => broken = Some(Promise::AnswersResolve),
            Answer::Ended => caller.start_over(),
        }
        if let Some(promise) = broken {
            self.breaks(promise);
        }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        world.after(self, &action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one believes", |_, world: &World| world.broken != Some(Promise::OneBelieves)),
            Property::always("tokens rise", |_, world: &World| world.broken != Some(Promise::TokensRise)),
            Property::always("lost answers resolve", |_, world: &World| world.broken != Some(Promise::AnswersResolve)),
            Property::always("who heartbeats keeps the lock", |_, world: &World| {
                world.broken != Some(Promise::HoldersKeep)
            }),
            Property::sometimes(CONFLICT, |_, world: &World| world.saw(CONFLICT)),
            Property::sometimes(ELSEWHERE, |_, world: &World| world.saw(ELSEWHERE)),
            Property::sometimes(TAKEN_OVER, |_, world: &World| world.saw(TAKEN_OVER)),
            Property::sometimes(OLD_VIEW, |_, world: &World| world.saw(OLD_VIEW)),
            Property::sometimes(SWEPT, |_, world: &World| world.saw(SWEPT)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check_breaks, check_holds};

    #[test]
    fn regions_break_no_promise_within_small_bounds() {
        for bounds in Bounds::small() {
            let protocol = Protocol { bounds, without: None };
            let must_see = protocol.must_see();
            check_holds(protocol.explored(), &must_see, &bounds, bounds.name);
        }
    }

    fn check_broken(clause: Clause, promise: &'static str) {
        check_breaks(Protocol { bounds: clause.bounds(), without: Some(clause) }.explored(), promise, clause);
    }

    clauses! {
        conflicts_need_to_be_refusals: ConflictsAreRefusals breaks "at most one believes",
        cut_off_copies_need_to_decide_nothing: CopiesDecideNothing breaks "at most one believes",
        regions_need_one_item: OneItem breaks "tokens rise",
        takeovers_need_the_version_of_the_item: ObservedVersion breaks "at most one believes",
        repeats_elsewhere_need_the_first_sending: CountFromFirst breaks "at most one believes",
        sweeps_need_a_margin: SweepMargin breaks "at most one believes",
    }
}
