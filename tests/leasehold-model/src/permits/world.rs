//! The state of the model of semaphores, and its transitions.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use leasehold_protocol::semaphore::{
    Acquire, AllDead, Dead, Enqueue, Entry, Epoch, Found, Grant, Heartbeat, Holder, Member, Permits, PublicId, Refusal,
    Release, Semaphore, SetCapacity, Shrink, Ticket, lifecycle,
};
use leasehold_protocol::{LeaseDuration, LeaseId, LockKey, OwnerName, Policy, Rvn, Sequence, Stamp};

use super::Protocol;
use super::bounds::Bounds;
use super::caller::{Caller, Hold, Name, Pending, Place, Proof, Request};
use super::clause::{Clause, LifeCycle};
use crate::bounds::moment_after;
use crate::world::Reply;

/// The promises of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Callers rely on no more permits than there are, and no grant exceeds the capacity.
    WithinCapacity,
    /// The free permits and those of the holders make the capacity.
    PermitsAddUp,
    /// Each grant has a higher token than all before.
    TokensRise,
    /// A claim whose end is in the row's history comes back by no copy of its requests. A copy that names no epoch may
    /// come back after more ends than the row remembers, and is not renewed.
    EndsStay,
    /// A copy of a change of the capacity undoes no later change.
    CapacityStays,
    /// A younger caller takes no permits that an older ticket needs, whose caller renews it in time, and the ticket
    /// stays.
    FirstComeFirst,
    /// A repeat of a request that was carried out gets the answer that was lost.
    AnswersResolve,
    /// A holder whose lease lasts stays a holder.
    HoldersKeep,
    /// A write that frees permits, or changes the queue or the capacity, wakes watchers.
    WatchersWake,
    /// A new caller gets all permits, as soon as it has observed the row for its leases.
    NobodyIsStuck,
}

/// An event that an exploration must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    TakenOver,
    TicketPassed,
    RemovedByTicket,
    GivenBack,
    Repeated,
    CopyRefused,
}

/// One step of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick {
        /// The moment until which time passes.
        until: u16,
    },
    /// A caller sends a new request.
    Send {
        /// The caller's index.
        caller: usize,
        /// The request.
        request: Request,
    },
    /// The service, or the caller, sends another attempt at the request.
    Repeat {
        /// The caller's index.
        caller: usize,
    },
    /// An attempt arrives.
    Deliver {
        /// The attempt's index.
        attempt: usize,
        /// The fate of its answer.
        reply: Reply,
        /// Whether a copy stays under way.
        stays: bool,
    },
    /// A delayed answer arrives.
    Hear {
        /// The caller's index.
        caller: usize,
    },
    /// A caller reads the row.
    Look {
        /// The caller's index.
        caller: usize,
    },
    /// A caller dies, and starts again under a fresh lease id.
    Die {
        /// The caller's index.
        caller: usize,
    },
    /// An operator asks for another capacity.
    ChangeCapacity,
    /// Strangers take what is free, or queue, and go again.
    Crowd,
}

/// The row. The hash leaves out what no rule of a semaphore reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored(Semaphore);

impl Hash for Stored {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let row = &self.0;
        (row.capacity, row.available, row.next_ticket, row.fencing_token, row.reordered).hash(state);
        for (id, Ticket { claim, number, .. }) in &row.queue {
            (id, claim, number).hash(state);
        }
        for (id, Holder { claim, fencing_token, outcome, .. }) in &row.holders {
            (id, claim, fencing_token, outcome).hash(state);
        }
        for ended in row.ended.values() {
            (&ended.id, ended.taken_over).hash(state);
        }
        (&row.spent_holders, &row.spent_tickets, &row.capacity_version, &row.capacity_request_id).hash(state);
    }
}

/// An attempt at a request, on its way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Attempt {
    sender: Sender,
    /// The server's clock when it was sent.
    stamp: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Sender {
    Caller {
        caller: usize,
        lease_id: u8,
        number: u8,
        attempt: u8,
        /// The time when the request was first sent.
        decided: u16,
        request: Request,
    },
    Operator {
        /// The index of the change.
        change: usize,
        expected: u64,
        version: String,
    },
}

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    now: u16,
    row: Option<Stored>,
    callers: Vec<Caller>,
    network: Vec<Attempt>,
    copies: u8,
    capacities_asked: usize,
    /// The number of the last change of the capacity that was carried out.
    capacities_set: usize,
    crowds: u8,
    /// The claims that have ended.
    ended: BTreeSet<(usize, u8)>,
    highest_token: u64,
    highest_capacity: u64,
    /// The time of the last grant, and of the last change of the free permits or the capacity, where that matters.
    quiet_since: u16,
    /// An event of the last step.
    event: Option<Event>,
    broken: Option<Promise>,
}

/// An entry of the row, as an answer shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Shown {
    pub(super) name: Name,
    pub(super) lease: u16,
    pub(super) number: Option<u64>,
}

/// The row, as an answer shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct View {
    pub(super) entries: Vec<Shown>,
    pub(super) available: i64,
    pub(super) epoch: Epoch,
}

pub(super) fn signed(permits: u64) -> i64 {
    i64::try_from(permits).expect("few")
}

fn view(row: &Semaphore) -> View {
    let short = |ms: u64| u16::try_from(ms).expect("short");
    let holders = row.holders.iter().map(|(id, Holder { claim, .. })| (id, claim, None));
    let tickets = row.queue.iter().map(|(id, Ticket { claim, number, .. })| (id, claim, Some(*number)));
    let entries = holders
        .chain(tickets)
        .map(|(id, claim, number)| Shown {
            name: (id.clone(), claim.version.clone(), claim.permits),
            lease: short(claim.lease_ms),
            number,
        })
        .collect();
    View { entries, available: row.available, epoch: row.epoch() }
}

fn valid<T>(value: Result<T, leasehold_protocol::Error>) -> T {
    value.expect("the model names valid values")
}

fn key() -> LockKey {
    valid(LockKey::new("Moe", None))
}

fn permits(number: u64) -> Permits {
    valid(Permits::new("permits", number))
}

/// The callers, and one more that no caller has seen before.
const NAMES: [&str; 4] = ["ann", "bob", "cyd", "new"];
const NEW: usize = 3;

/// A lease id and its public ids, which would otherwise be computed anew in every state.
pub(super) struct LeaseIdOf {
    id: LeaseId,
    pub(super) holder_id: String,
    pub(super) ticket_id: String,
}

/// More lease ids than any caller has.
const LEASE_IDS: u8 = 3;

pub(super) fn member(caller: usize, count: u8) -> &'static LeaseIdOf {
    static KNOWN: LazyLock<Vec<LeaseIdOf>> = LazyLock::new(|| {
        let all = (0..NAMES.len()).flat_map(|caller| (0..LEASE_IDS).map(move |count| (caller, count)));
        let known = |(caller, count): (usize, u8)| {
            let id = valid(LeaseId::new(format!("{}-{count}", NAMES[caller])));
            let member = Member::new(&key(), &id);
            LeaseIdOf { id, holder_id: member.holder_id(), ticket_id: member.ticket_id() }
        };
        all.map(known).collect()
    });
    &KNOWN[caller * usize::from(LEASE_IDS) + usize::from(count)]
}

/// The caller and the lease id that a public id belongs to.
fn owner_of(id: &str) -> (usize, u8) {
    let mut all = (0..NAMES.len()).flat_map(|caller| (0..LEASE_IDS).map(move |count| (caller, count)));
    let is_of = |&(caller, count): &(usize, u8)| {
        let member = member(caller, count);
        member.holder_id == id || member.ticket_id == id
    };
    all.find(is_of).expect("every entry is a caller's")
}

/// The server's clock in microseconds; never zero.
fn microseconds(stamp: u16) -> u64 {
    (u64::from(stamp) + 100) * 1000
}

fn all_dead(names: &[Name], me: &LeaseIdOf) -> AllDead {
    let dead = names.iter().map(|(id, version, permits)| Dead {
        id: valid(PublicId::new("observed", id)),
        version: valid(Rvn::new("version", version.clone())),
        permits: *permits,
        number: None,
    });
    valid(AllDead::new(dead.collect(), &Member::new(&key(), &me.id)))
}

/// A request for all permits by somebody whom no caller knows.
fn of_nobody(count: u8, capacity: u64, names: &[Name]) -> Acquire {
    let me = member(NEW, count);
    Acquire {
        key: key(),
        owner_name: valid(OwnerName::new(NAMES[NEW])),
        lease_id: me.id.clone(),
        sequence: None,
        lease_duration: valid(LeaseDuration::from_millis(100)),
        permits: permits(capacity),
        capacity: permits(capacity),
        dead: all_dead(names, me),
        checked_by_clock: false,
        by_clock: false,
        epoch: None,
        number: None,
        passes: false,
        data: None,
        principal: None,
    }
}

impl World {
    /// The first state.
    pub(crate) fn new(protocol: &Protocol) -> Self {
        let bounds = &protocol.bounds;
        let mut world = Self::empty(bounds);
        if bounds.queued {
            let proof = Proof::Nothing;
            for caller in 0..world.callers.len() {
                world.send(protocol, caller, &Request::Enqueue { dead: Vec::new(), proof });
                world.deliver(protocol, 0, Reply::Heard, false);
            }
            let row = world.row().expect("the permits are held").clone();
            let stamp = Stamp { rvn: "freed".into(), now_us: microseconds(0) };
            let request = Release {
                key: key(),
                lease_id: member(NEW, 0).id.clone(),
                expected: None,
                number: None,
                principal: None,
            };
            let found = Found::Semaphore(Box::new(row));
            let freed = lifecycle::release(&found, &request, &stamp, &Policy::default()).row.expect("it was there");
            for caller in 0..world.callers.len() {
                world.callers[caller].see(caller, protocol, &view(&freed), 0);
            }
            world.row = Some(Stored(freed));
        }
        world
    }

    fn empty(bounds: &Bounds) -> Self {
        let held = (bounds.held > 0).then(|| {
            let stamp = Stamp { rvn: "held".into(), now_us: microseconds(0) };
            let request = Acquire { capacity: permits(bounds.capacity), ..of_nobody(0, bounds.held, &[]) };
            let step = lifecycle::acquire(&Found::Free(None), &request, &stamp, &Policy::default());
            step.expect("tokens are small").row.expect("it was made")
        });
        Self {
            now: 0,
            highest_token: held.as_ref().map_or(0, |row| row.fencing_token),
            row: held.map(Stored),
            callers: vec![Caller::default(); bounds.wants.len()],
            network: Vec::new(),
            copies: 0,
            capacities_asked: 0,
            capacities_set: 0,
            crowds: 0,
            ended: BTreeSet::new(),
            highest_capacity: bounds.capacity,
            quiet_since: 0,
            event: None,
            broken: None,
        }
    }

    pub(crate) fn keeps(&self, promise: Promise) -> bool {
        self.broken != Some(promise)
    }

    pub(super) fn has_seen(&self, event: Event) -> bool {
        self.event == Some(event)
    }

    pub(crate) fn has_taken_over(&self) -> bool {
        self.has_seen(Event::TakenOver)
    }

    /// Whether the caller has sent or seen anything.
    pub(crate) fn has_begun(&self, caller: usize) -> bool {
        self.callers[caller] != Caller::default()
    }

    /// The row, of which another region may have a copy.
    pub(crate) fn stored(&self) -> Option<Stored> {
        self.row.clone()
    }

    /// The same state with this row.
    pub(crate) fn with(&self, row: Option<Stored>) -> Self {
        Self { row, event: None, ..self.clone() }
    }

    /// The state after an attempt that was not carried out, and whose sender hears nothing.
    pub(crate) fn without_attempt(&self, attempt: usize) -> Self {
        let mut next = self.with(self.stored());
        next.network.remove(attempt);
        next
    }

    /// The state after an attempt that was not carried out, and whose sender hears the answer that this row gives.
    pub(crate) fn answered_from(&self, row: Option<Stored>, protocol: &Protocol, attempt: usize) -> Option<Self> {
        let heard = Action::Deliver { attempt, reply: Reply::Heard, stays: false };
        let there = self.with(row).after(protocol, &heard)?;
        let mut next = Self { callers: there.callers, network: there.network, event: None, ..self.clone() };
        next.check_beliefs();
        Some(next)
    }

    fn row(&self) -> Option<&Semaphore> {
        self.row.as_ref().map(|stored| &stored.0)
    }

    fn breaks_promise(&mut self, promise: Promise) {
        self.broken.get_or_insert(promise);
    }

    pub(crate) fn actions(&self, protocol: &Protocol, actions: &mut Vec<Action>) {
        let bounds = &protocol.bounds;
        // A broken promise ends a trace.
        if self.broken.is_some() {
            return;
        }
        actions.extend(moment_after(self.now, bounds.steps, bounds.end).map(|until| Action::Tick { until }));
        for caller in 0..self.callers.len() {
            self.caller_actions(protocol, caller, actions);
        }
        for attempt in 0..self.network.len() {
            for reply in [Reply::Heard, Reply::Lost, Reply::Delayed] {
                if reply == Reply::Delayed && !bounds.delays {
                    continue;
                }
                actions.push(Action::Deliver { attempt, reply, stays: false });
                if self.copies < bounds.copies {
                    actions.push(Action::Deliver { attempt, reply, stays: true });
                }
            }
        }
        if self.row.is_some() {
            let is_settled = self.capacities_set == self.capacities_asked;
            actions.extend(
                (is_settled && self.capacities_asked < bounds.new_capacities.len()).then_some(Action::ChangeCapacity),
            );
            actions.extend((self.crowds < bounds.crowds).then_some(Action::Crowd));
        }
    }

    fn caller_actions(&self, protocol: &Protocol, index: usize, actions: &mut Vec<Action>) {
        let bounds = &protocol.bounds;
        let caller = &self.callers[index];
        if caller.lease_id >= bounds.lease_ids {
            return;
        }
        let has_room = self.network.len() < bounds.in_flight;
        actions.extend(bounds.deaths.then_some(Action::Die { caller: index }));
        match &caller.pending {
            Some(pending) => {
                actions.extend(pending.answer.as_ref().map(|_| Action::Hear { caller: index }));
                if pending.attempts < bounds.attempts && has_room {
                    actions.push(Action::Repeat { caller: index });
                }
            }
            None if caller.hold.is_none() && self.row.is_some() => actions.push(Action::Look { caller: index }),
            None => {}
        }
        let requests = caller.requests(index, protocol, self.now).into_iter().filter(|_| has_room);
        actions.extend(requests.map(|request| Action::Send { caller: index, request }));
    }

    pub(crate) fn after(&self, protocol: &Protocol, action: &Action) -> Option<Self> {
        let mut next = self.clone();
        next.event = None;
        match action {
            Action::Tick { until } => next.tick(&protocol.bounds, *until),
            Action::Send { caller, request } => next.send(protocol, *caller, request),
            Action::Repeat { caller } => {
                next.event = Some(Event::Repeated);
                next.attempt(*caller);
            }
            Action::Deliver { attempt, reply, stays } => next.deliver(protocol, *attempt, *reply, *stays)?,
            Action::Hear { caller } => {
                let answer = next.callers[*caller].pending.as_mut()?.answer.take()?;
                next.answered(protocol, *caller, &answer);
            }
            Action::Look { caller } => {
                let (now, view) = (next.now, view(next.row()?));
                next.callers[*caller].see(*caller, protocol, &view, now);
            }
            Action::Die { caller } => next.callers[*caller].start_over(&protocol.bounds),
            Action::ChangeCapacity => {
                let row = next.row()?;
                let (expected, version) = (row.capacity, row.capacity_version().to_owned());
                let sender = Sender::Operator { change: next.capacities_asked, expected, version };
                next.network.push(Attempt { sender, stamp: next.now });
                next.capacities_asked += 1;
            }
            Action::Crowd => next.crowd(&protocol.bounds),
        }
        next.network.sort();
        next.check_beliefs();
        if next.row != self.row {
            next.check_way_out();
        }
        Some(next)
    }

    /// A holder whose lease is over has lost its permits, and begins again.
    fn tick(&mut self, bounds: &Bounds, until: u16) {
        self.now = until;
        for caller in &mut self.callers {
            if caller.hold.as_ref().is_some_and(|hold| hold.until <= until) {
                caller.start_over(bounds);
            }
        }
    }

    fn send(&mut self, protocol: &Protocol, index: usize, request: &Request) {
        let now = self.now;
        let lacks = |clause| protocol.without == Some(clause);
        let caller = &mut self.callers[index];
        caller.number += 1;
        match (request, &mut caller.hold) {
            (Request::Heartbeat { lease, keep, .. }, Some(hold)) => {
                if !lacks(Clause::Cap) {
                    hold.until = hold.until.min(now + lease);
                }
                if let (Some((_, kept)), false) = (keep, lacks(Clause::KeepCap)) {
                    hold.permits = *kept;
                }
            }
            // A caller that releases permits no longer relies on them.
            (Request::Release, _) => (caller.hold, caller.place) = (None, None),
            _ => {}
        }
        let request = request.clone();
        caller.pending =
            Some(Pending { request, first_sent: now, last_sent: now, attempts: 0, answer: None, carried_out: None });
        self.attempt(index);
    }

    fn attempt(&mut self, index: usize) {
        let now = self.now;
        let caller = &mut self.callers[index];
        let Some(pending) = &mut caller.pending else { return };
        pending.attempts += 1;
        pending.last_sent = now;
        // The answer to the attempt before is no longer awaited.
        pending.answer = None;
        let sender = Sender::Caller {
            caller: index,
            lease_id: caller.lease_id,
            number: caller.number,
            attempt: pending.attempts,
            decided: pending.first_sent,
            request: pending.request.clone(),
        };
        self.network.push(Attempt { sender, stamp: now });
    }

    fn deliver(&mut self, protocol: &Protocol, index: usize, reply: Reply, stays: bool) -> Option<()> {
        let attempt = self.network.remove(index);
        let policy = Policy { retention_seconds: 0, clock_skew_ms: 0 };
        let life_cycle = LifeCycle { without: protocol.without, policy: &policy };
        match &attempt.sender {
            Sender::Operator { change, expected, version } => {
                // No caller waits for this answer.
                if reply != Reply::Lost {
                    return None;
                }
                let change = *change;
                let capacity = permits(protocol.bounds.new_capacities[change]);
                let request = SetCapacity {
                    key: key(),
                    capacity,
                    expected: permits(*expected),
                    expected_version: Some(valid(Rvn::new("version", version.clone()))),
                    request_id: Some(format!("change-{change}")),
                };
                let stamp = Stamp { rvn: format!("operator-{change}"), now_us: microseconds(attempt.stamp) };
                let (row, is_written, _) = life_cycle.set_capacity(self.row(), &request, &stamp);
                if is_written {
                    if change + 1 < self.capacities_set {
                        self.breaks_promise(Promise::CapacityStays);
                    }
                    self.capacities_set = self.capacities_set.max(change + 1);
                    self.write(protocol, &life_cycle, row?, None);
                }
            }
            Sender::Caller { caller, lease_id, number, attempt: count, decided, request } => {
                let is_awaited = {
                    let caller = &self.callers[*caller];
                    let awaits = |pending: &Pending| pending.request == *request && pending.attempts == *count;
                    caller.lease_id == *lease_id
                        && caller.number == *number
                        && caller.pending.as_ref().is_some_and(awaits)
                };
                if reply != Reply::Lost && !is_awaited {
                    return None;
                }
                let rvn = format!("{}-{lease_id}.{number}.{count}", NAMES[*caller]);
                let stamp = Stamp { rvn, now_us: microseconds(attempt.stamp) };
                let (caller, lease_id, number, decided) = (*caller, *lease_id, *number, *decided);
                let asked = Asked { caller, lease_id, number, decided, request, reply };
                self.deliver_request(protocol, &life_cycle, &asked, &stamp);
            }
        }
        if stays {
            self.copies += 1;
            self.network.push(attempt);
        }
        Some(())
    }

    fn deliver_request(&mut self, protocol: &Protocol, life_cycle: &LifeCycle<'_>, asked: &Asked<'_>, stamp: &Stamp) {
        let bounds = &protocol.bounds;
        let me = member(asked.caller, asked.lease_id);
        let lease_id = me.id.clone();
        let sequence = Some(valid(Sequence::new(asked.number.into(), None)));
        let lease_duration = valid(LeaseDuration::from_millis(asked.request.lease(bounds).max(100).into()));
        let owner_name = valid(OwnerName::new(NAMES[asked.caller]));
        let (wanted, capacity) = (permits(bounds.wants[asked.caller]), permits(bounds.capacity));
        let correct = |dead: &[Name]| all_dead(&self.corrected(protocol, dead), me);
        let (row, is_written, answer) = match asked.request {
            Request::Acquire { dead, proof } => {
                let request = Acquire {
                    key: key(),
                    owner_name,
                    lease_id,
                    sequence,
                    lease_duration,
                    permits: wanted,
                    capacity,
                    dead: correct(dead),
                    checked_by_clock: false,
                    by_clock: false,
                    epoch: proof.epoch(),
                    number: proof.number(),
                    passes: proof.passes(),
                    data: None,
                    principal: None,
                };
                let (row, is_written, answer) = life_cycle.acquire(self.row(), &request, me, stamp);
                let answer = Answer::of(answer, row.as_ref(), |grant: Grant| Answer::granted(&grant));
                (row, is_written, answer)
            }
            Request::Heartbeat { keep, token, .. } => {
                let request = Heartbeat {
                    key: key(),
                    lease_id,
                    sequence,
                    lease_duration: Some(lease_duration),
                    data: None,
                    expected: None,
                    fencing_token: Some(*token),
                    shrink: keep.map(|(held, kept)| valid(Shrink::new(permits(held), permits(kept)))),
                    principal: None,
                };
                let (row, is_written, answer) = life_cycle.heartbeat(self.row(), &request, stamp);
                let renewed = |grant: Grant| Answer::Renewed {
                    token: grant.holder.fencing_token,
                    permits: grant.holder.claim.permits,
                };
                let answer = Answer::of(answer, row.as_ref(), renewed);
                (row, is_written, answer)
            }
            Request::Enqueue { dead, proof } => {
                let request = Enqueue {
                    key: key(),
                    owner_name,
                    lease_id,
                    sequence,
                    lease_duration,
                    permits: wanted,
                    capacity,
                    dead: correct(dead),
                    checked_by_clock: false,
                    epoch: proof.epoch(),
                    number: proof.number(),
                    grant_lease: lease_duration,
                    data: None,
                    principal: None,
                };
                let (row, is_written, answer) = life_cycle.enqueue(self.row(), &request, me, stamp);
                let entered = |entry: Entry| match entry {
                    Entry::Queued(place) => Answer::Queued { number: place.ticket.number },
                    Entry::Granted(grant) => Answer::granted(&grant),
                };
                let answer = Answer::of(answer, row.as_ref(), entered);
                (row, is_written, answer)
            }
            Request::Release => {
                let request = Release { key: key(), lease_id, expected: None, number: None, principal: None };
                let (row, is_written, answer) = life_cycle.release(self.row(), &request, stamp);
                let answer = Answer::of(answer, row.as_ref(), |_| Answer::Ended);
                (row, is_written, answer)
            }
        };
        self.check_repeat(asked, is_written, &answer);
        self.check_age(asked, &answer);
        if let Some(row) = row.filter(|_| is_written) {
            self.write(protocol, life_cycle, row, Some(asked));
        }
        match asked.reply {
            Reply::Heard => self.answered(protocol, asked.caller, &answer),
            Reply::Delayed => {
                let pending = self.callers[asked.caller].pending.as_mut();
                pending.expect("somebody waits").answer = Some(answer);
            }
            Reply::Lost => {}
        }
    }

    /// The names of the dead; where a clause is dropped, with the versions that the row has.
    fn corrected(&self, protocol: &Protocol, dead: &[Name]) -> Vec<Name> {
        let version = |id: &String| {
            let row = self.row()?;
            let holder = row.holders.get(id).map(|holder| (Clause::DeadHolderVersion, &holder.claim));
            let ticket = || row.queue.get(id).map(|ticket| (Clause::DeadTicketVersion, &ticket.claim));
            let (clause, claim) = holder.or_else(ticket)?;
            (protocol.without == Some(clause)).then(|| claim.version.clone())
        };
        let correct = |(id, seen, permits): &Name| (id.clone(), version(id).unwrap_or_else(|| seen.clone()), *permits);
        dead.iter().map(correct).collect()
    }

    /// Replaces the row, and checks the promises that its contents tell of. An operator asks for nothing.
    fn write(&mut self, protocol: &Protocol, life_cycle: &LifeCycle<'_>, next: Semaphore, asked: Option<&Asked<'_>>) {
        let held: u64 = next.holders.values().map(|holder| holder.claim.permits).sum();
        if next.available != signed(next.capacity) - signed(held) {
            self.breaks_promise(Promise::PermitsAddUp);
        }
        if let Some(before) = self.row.take() {
            let frees = next.available > before.0.available;
            let is_queue_changed = !next.queue.keys().eq(before.0.queue.keys());
            let must_wake = frees || is_queue_changed || next.capacity != before.0.capacity;
            if must_wake && (next.changed() == before.0.changed() || life_cycle.hides_changes()) {
                self.breaks_promise(Promise::WatchersWake);
            }
            self.check_removals(&before.0, &next, asked);
            self.check_ends(&before.0, &next, asked);
            if let Some(asked) = asked {
                self.check_grant(protocol, Some(&before.0), &next, asked);
            }
            let is_quiet = next.epoch() == before.0.epoch() && next.available == before.0.available;
            if protocol.bounds.patience > 0 && !(is_quiet && next.capacity == before.0.capacity) {
                self.quiet_since = self.now;
            }
        } else if let Some(asked) = asked {
            self.check_grant(protocol, None, &next, asked);
        }
        self.highest_capacity = self.highest_capacity.max(next.capacity);
        self.row = Some(Stored(next));
    }

    /// Checks that no entry of another caller went that its caller relies on.
    fn check_removals(&mut self, before: &Semaphore, next: &Semaphore, asked: Option<&Asked<'_>>) {
        let is_own = |owner: (usize, u8)| asked.is_some_and(|asked| (asked.caller, asked.lease_id) == owner);
        for id in before.holders.keys().filter(|id| !next.holders.contains_key(*id)) {
            let (caller, count) = owner_of(id);
            if is_own((caller, count)) {
                continue;
            }
            self.event = Some(match asked.map(|asked| asked.request) {
                Some(Request::Enqueue { .. }) => Event::RemovedByTicket,
                _ => Event::TakenOver,
            });
            let relies = |caller: &Caller| caller.lease_id == count && caller.believes_in(self.now) > 0;
            if self.callers.get(caller).is_some_and(relies) {
                self.breaks_promise(Promise::HoldersKeep);
            }
        }
        for id in before.queue.keys().filter(|id| !next.queue.contains_key(*id)) {
            let (caller, count) = owner_of(id);
            let caller = (!is_own((caller, count))).then(|| &self.callers[caller]);
            let keeps = |caller: &Caller| caller.lease_id == count && caller.kept_its_place_since(u16::MAX, self.now);
            if caller.is_some_and(keeps) {
                self.breaks_promise(Promise::FirstComeFirst);
            }
        }
    }

    /// Checks a grant that the row did not have before.
    fn check_grant(&mut self, protocol: &Protocol, before: Option<&Semaphore>, next: &Semaphore, asked: &Asked<'_>) {
        let me = member(asked.caller, asked.lease_id);
        let Some(holder) = next.holders.get(&me.holder_id) else { return };
        let held_before = before.and_then(|before| before.holders.get(&me.holder_id));
        if let Some(before) = held_before
            && before.fencing_token == holder.fencing_token
        {
            if before.claim.permits > holder.claim.permits {
                self.event = Some(Event::GivenBack);
            }
            return;
        }
        if holder.fencing_token <= self.highest_token {
            self.breaks_promise(Promise::TokensRise);
        }
        self.highest_token = self.highest_token.max(holder.fencing_token);
        if next.available < 0 {
            self.breaks_promise(Promise::WithinCapacity);
        }
        let Some(before) = before else { return };
        let mine = before.queue.get(&me.ticket_id).map_or(u64::MAX, |ticket| ticket.number);
        let passed = next.queue.iter().filter(|(_, ticket)| ticket.number < mine);
        let mut passed: Vec<_> = passed.filter(|(_, ticket)| ticket.claim.permits <= next.capacity).collect();
        passed.sort_by_key(|(_, ticket)| ticket.number);
        let keeps_its_place = |id: &str| {
            let (caller, count) = owner_of(id);
            let caller = &self.callers[caller];
            caller.lease_id == count && caller.kept_its_place_since(asked.decided, self.now)
        };
        // A waiter that has left permits until now, which it could take, is passed.
        let patience = protocol.bounds.patience;
        let is_left = patience > 0 && self.now - self.quiet_since >= patience;
        let mut wanted = 0;
        for (_, ticket) in passed.iter().filter(|(id, _)| keeps_its_place(id)) {
            if !(is_left && before.available >= signed(wanted + ticket.claim.permits)) {
                wanted += ticket.claim.permits;
            }
        }
        if wanted > 0 && next.available < signed(wanted) {
            self.breaks_promise(Promise::FirstComeFirst);
        }
        if !passed.is_empty() {
            self.event = Some(Event::TicketPassed);
        }
    }

    /// Whether a copy of this request may come back: its caller knew no epoch, and more has ended since than the row
    /// remembers.
    fn may_return(&self, asked: &Asked<'_>) -> bool {
        let proof = match asked.request {
            Request::Acquire { proof, .. } | Request::Enqueue { proof, .. } => *proof,
            Request::Heartbeat { .. } | Request::Release => return false,
        };
        proof == Proof::Nothing && self.crowds > 0
    }

    /// Notes the claims that end, and checks that none begins again, or is renewed where it did.
    fn check_ends(&mut self, before: &Semaphore, next: &Semaphore, asked: Option<&Asked<'_>>) {
        if let Some(asked) = asked.filter(|asked| self.ended.contains(&(asked.caller, asked.lease_id))) {
            let me = member(asked.caller, asked.lease_id);
            let version = |row: &Semaphore| {
                let holder = row.holders.get(&me.holder_id).map(|holder| holder.claim.version.clone());
                holder.or_else(|| row.queue.get(&me.ticket_id).map(|ticket| ticket.claim.version.clone()))
            };
            let (was, is) = (version(before), version(next));
            let returns = was.is_none() && self.may_return(asked);
            if is.is_some() && is != was && !returns {
                self.breaks_promise(Promise::EndsStay);
            }
        }
        for id in before.holders.keys().chain(before.queue.keys()) {
            let (caller, count) = owner_of(id);
            let me = member(caller, count);
            if !next.holders.contains_key(&me.holder_id) && !next.queue.contains_key(&me.ticket_id) {
                self.ended.insert((caller, count));
            }
        }
    }

    /// Checks that a caller is refused for its age at most once for each crowd.
    fn check_age(&mut self, asked: &Asked<'_>, answer: &Answer) {
        if self.ended.contains(&(asked.caller, asked.lease_id)) && matches!(answer, Answer::Held(_) | Answer::Lost) {
            self.event = Some(Event::CopyRefused);
        }
        let (Answer::Held(_), Request::Enqueue { dead, .. }, Reply::Heard) = (answer, asked.request, asked.reply)
        else {
            return;
        };
        if dead.is_empty() {
            let caller = &mut self.callers[asked.caller];
            caller.aged += 1;
            if caller.aged > self.crowds {
                self.breaks_promise(Promise::NobodyIsStuck);
            }
        }
    }

    /// Strangers take what is free, or queue, and go again, one after the other.
    fn crowd(&mut self, bounds: &Bounds) {
        for number in 0..bounds.strangers {
            let Some(row) = self.row() else { return };
            let policy = Policy { retention_seconds: 0, clock_skew_ms: 0 };
            let lease_id = valid(LeaseId::new(format!("stranger-{}-{number}", self.crowds)));
            let stamp = Stamp { rvn: format!("stranger-{}-{number}", self.crowds), now_us: microseconds(self.now) };
            let ask = Acquire { lease_id: lease_id.clone(), ..of_nobody(0, 1, &[]) };
            let request = Enqueue {
                key: key(),
                owner_name: ask.owner_name,
                lease_id: lease_id.clone(),
                sequence: None,
                lease_duration: ask.lease_duration,
                permits: ask.permits,
                capacity: ask.capacity,
                dead: ask.dead,
                checked_by_clock: false,
                epoch: None,
                number: None,
                grant_lease: ask.lease_duration,
                data: None,
                principal: None,
            };
            let found = Found::Semaphore(Box::new(row.clone()));
            let entered = lifecycle::enqueue(&found, &request, &stamp, &[], &policy).expect("tokens are small").row;
            let found = Found::Semaphore(Box::new(entered.expect("it was there")));
            let request = Release { key: key(), lease_id, expected: None, number: None, principal: None };
            let left = lifecycle::release(&found, &request, &stamp, &policy).row.expect("it was there");
            self.highest_token = left.fencing_token;
            self.row = Some(Stored(left));
        }
        self.crowds += 1;
    }

    /// Checks the repeat of a request that was carried out and has not been answered. It must get the same answer,
    /// unless the entry was taken for dead meanwhile.
    fn check_repeat(&mut self, asked: &Asked<'_>, is_written: bool, answer: &Answer) {
        let me = member(asked.caller, asked.lease_id);
        let has = |row: &Semaphore| row.holders.contains_key(&me.holder_id) || row.queue.contains_key(&me.ticket_id);
        let is_there = self.row().is_some_and(has);
        let caller = &mut self.callers[asked.caller];
        let is_current = caller.lease_id == asked.lease_id && caller.number == asked.number;
        let Some(pending) = caller.pending.as_mut().filter(|_| is_current) else { return };
        let is_same = match (&pending.carried_out, answer) {
            // A late attempt at the request before may have been granted.
            (None, Answer::Superseded) => matches!(asked.request, Request::Enqueue { .. }),
            (None, _) => true,
            // A row may forget how a claim ended, and never that it did.
            (Some(_), Answer::Lost) => (self.crowds > 0 || !matches!(asked.request, Request::Release)) && !is_there,
            (Some(Answer::Queued { .. }), _) if !is_there => true,
            (Some(first), _) => first == answer,
        };
        if is_written && pending.carried_out.is_none() {
            pending.carried_out = Some(answer.clone());
        }
        if !is_same {
            self.breaks_promise(Promise::AnswersResolve);
        }
    }

    /// The caller receives the answer.
    fn answered(&mut self, protocol: &Protocol, index: usize, answer: &Answer) {
        let (now, bounds) = (self.now, &protocol.bounds);
        let caller = &mut self.callers[index];
        let Some(pending) = caller.pending.take() else { return };
        let counts_from = match protocol.without {
            Some(Clause::CountFromFirst) => pending.last_sent,
            Some(Clause::CountFromSending) => now,
            _ => pending.first_sent,
        };
        let seen = if protocol.without == Some(Clause::ObserveFromAnswer) { pending.first_sent } else { now };
        let until = counts_from + pending.request.lease(bounds);
        let mut broken = None;
        match answer {
            Answer::Granted { token, permits } => {
                // A caller whose grant is older than its lease goes on with the next request.
                caller.hold = (now < until).then_some(Hold { permits: *permits, until, token: *token });
                (caller.place, caller.must_ask) = (None, false);
            }
            Answer::Renewed { token, permits } if now < until => {
                caller.hold = Some(Hold { permits: *permits, until, token: *token });
            }
            Answer::Queued { number } => {
                if caller.place.as_ref().is_none_or(|place| place.number != *number) {
                    caller.outdate();
                }
                let kept = caller.place.take().filter(|place| now < place.until);
                if kept.as_ref().is_some_and(|place| place.number != *number) {
                    broken = Some(Promise::FirstComeFirst);
                }
                let since = kept.map_or(now, |place| place.since);
                caller.place = Some(Place { number: *number, until, since });
            }
            Answer::Held(view) => {
                caller.must_ask = false;
                if let Some(view) = view {
                    caller.see(index, protocol, view, seen);
                    if bounds.crowds > 0 && protocol.without != Some(Clause::FreshEpoch) {
                        caller.refused_at(view.epoch);
                    }
                }
            }
            Answer::Lost => {
                if caller.believes_in(now) > 0 {
                    broken = Some(Promise::HoldersKeep);
                } else if caller.kept_its_place_since(u16::MAX, now) {
                    broken = Some(Promise::FirstComeFirst);
                }
                caller.start_over(bounds);
            }
            Answer::Superseded => (caller.place, caller.must_ask) = (None, true),
            // A renewal that is older than its lease is of no use.
            Answer::Renewed { .. } | Answer::Ended | Answer::TooMany => caller.start_over(bounds),
        }
        if let Some(promise) = broken {
            self.breaks_promise(promise);
        }
    }

    fn check_beliefs(&mut self) {
        let believed: u64 = self.callers.iter().map(|caller| caller.believes_in(self.now)).sum();
        if believed > self.highest_capacity {
            self.breaks_promise(Promise::WithinCapacity);
        }
    }

    /// Checks that a new caller which has observed all entries for their leases is granted all permits.
    fn check_way_out(&mut self) {
        let Some(row) = self.row() else { return };
        let names: Vec<_> = view(row).entries.into_iter().map(|entry| entry.name).collect();
        let request = of_nobody(1, row.capacity, &names);
        let stamp = Stamp { rvn: "new".into(), now_us: microseconds(self.now) };
        let found = Found::Semaphore(Box::new(row.clone()));
        let step = lifecycle::acquire(&found, &request, &stamp, &Policy::default());
        if !step.is_ok_and(|step| step.answer.is_ok()) {
            self.breaks_promise(Promise::NobodyIsStuck);
        }
    }
}

/// A request that has arrived.
struct Asked<'a> {
    caller: usize,
    lease_id: u8,
    number: u8,
    /// The time when the request was first sent.
    decided: u16,
    request: &'a Request,
    reply: Reply,
}

/// The parts of an answer that the caller's rules use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Granted {
        token: u64,
        permits: u64,
    },
    Renewed {
        token: u64,
        permits: u64,
    },
    Queued {
        number: u64,
    },
    Held(Option<View>),
    Lost,
    Superseded,
    /// The request is for more permits than there are.
    TooMany,
    Ended,
}

impl Answer {
    fn granted(grant: &Grant) -> Self {
        Self::Granted { token: grant.holder.fencing_token, permits: grant.holder.claim.permits }
    }

    fn of<T>(answer: Result<T, Refusal>, row: Option<&Semaphore>, done: impl Fn(T) -> Self) -> Self {
        match answer {
            Ok(answer) => done(answer),
            Err(Refusal::Held) => Self::Held(row.map(view)),
            Err(Refusal::Lost(_)) => Self::Lost,
            Err(Refusal::Superseded(_)) => Self::Superseded,
            Err(Refusal::ExceedsCapacity(_)) => Self::TooMany,
            Err(refusal) => unreachable!("no caller asks so: {refusal:?}"),
        }
    }
}
