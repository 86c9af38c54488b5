//! The state of the model, and its transitions.

use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use leasehold_protocol::{
    Acquire, AcquireAnswer, Attributes, Break, BreakAnswer, Completion, Data, DataChange, Disposal, Field,
    GrantOutcome, Heartbeat, HeartbeatAnswer, LeaseDuration, LeaseId, LeaseIdHash, LockKey, Occurrence, Once,
    OwnerName, Policy, Release, ReleaseAnswer, ReleaseOutcome, Row, Rvn, Sequence, SetOccurrence, Staleness, Stamp,
    Want, WantAnswer, lifecycle,
};

use crate::Protocol;
use crate::bounds::{Bounds, Runs, moment_after};
use crate::caller::{Caller, Pending, Request};
use crate::clause::{Clause, LifeCycle};

/// The difference between the servers' clocks where callers judge by them.
const SKEW: u16 = 200;

/// The promises of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Promise {
    /// No two callers believe at the same time that they hold the lock, except after a break.
    OneBelieves,
    /// Each acquisition has a higher token than all before.
    TokensRise,
    /// A version that was replaced never comes back.
    VersionsAreNew,
    /// A payload that was acknowledged is not replaced by an older one.
    PayloadsStay,
    /// A repeat of a request that was carried out gets the answer that was lost, as far as the row remembers.
    AnswersResolve,
    /// A holder whose lease lasts is not answered that the lock is lost, except after a break.
    HoldersKeep,
    /// Once an occurrence is done, no acquisition for it is granted.
    OccurrencesEnd,
    /// A completion is acknowledged to the lease id that completed the occurrence, and to no other.
    CompletionsAreOwn,
    /// A new caller gets the lock, now or when it has observed the row for its lease.
    NobodyIsStuck,
    /// A holder learns of a waiter exactly where one marked its lock, or where nobody knows.
    MarksAreTrue,
    /// A want changes nothing but the mark.
    WantsOnlyMark,
}

/// The row, which can be hashed here: no caller sets additional attributes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored(pub(crate) Row);

impl Eq for Stored {}

impl Hash for Stored {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let row = &self.0;
        (&row.owner_name, &row.lease_ms, &row.rvn, row.released, &row.data, &row.lease_id_hash).hash(state);
        (
            &row.lease_version,
            &row.sequence,
            &row.previous,
            &row.ended_version,
            &row.broken_version,
            &row.deleted_version,
        )
            .hash(state);
        (&row.fencing_token, row.stale_at, &row.occurrence, &row.completed_occurrence, &row.last_occurrence, &row.mark)
            .hash(state);
    }
}

/// An attempt at a request, on its way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Attempt {
    pub(crate) sender: Sender,
    /// The version that it writes.
    pub(crate) version: String,
    /// The server's clock when it was sent.
    pub(crate) stamp: u16,
    was_applied: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sender {
    Caller {
        caller: usize,
        lease_id: u8,
        number: u8,
        attempt: u8,
        request: Request,
    },
    Operator {
        seen: String,
    },
    /// An operator who makes the occurrence due again, and saw this run.
    Resetter {
        seen: String,
        done_by: Option<(usize, u8)>,
    },
    Waiter,
}

impl Attempt {
    pub(crate) fn is_by(&self, index: usize) -> bool {
        matches!(self.sender, Sender::Caller { caller, .. } if caller == index)
    }
}

/// The Java client with `updateExistingLockRecord`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Java {
    writes: u8,
    pub(crate) seen: Option<(String, u16, u16)>,
    until: Option<u16>,
}

/// The lease that the Java client names.
const JAVA_LEASE: u16 = 200;

/// The fate of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The answer arrives at once.
    Heard,
    /// The answer never arrives.
    Lost,
    /// The answer is under way.
    Delayed,
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
        /// Whether the first attempt is lost.
        is_lost: bool,
        /// The time by which the server's clock is ahead.
        skew: u16,
    },
    /// The service, or the caller, sends another attempt at the request.
    Repeat {
        /// The caller's index.
        caller: usize,
        /// The time by which the server's clock is ahead.
        skew: u16,
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
    /// A caller dies, and starts again under a fresh lease id.
    Die {
        /// The caller's index.
        caller: usize,
    },
    /// An operator sends a break of the version that is in the row.
    Break,
    /// An operator, who saw the version that is in the row, makes the occurrence due again.
    Reset,
    /// A waiter, who does not poll, sends a mark.
    Want,
    /// The Java client reads the row.
    JavaLooks,
    /// The Java client takes a released or a stale row in place.
    JavaTakes,
    /// The Java client renews its lease.
    JavaRenews,
}

/// An event that an exploration must contain.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Event {
    TakenOver = 1,
    Repeated = 2,
    RefusedARun = 4,
    Wanted = 8,
}

/// The events on the way to a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Events(u8);

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    now: u16,
    pub(crate) row: Option<Stored>,
    pub(crate) callers: Vec<Caller>,
    pub(crate) network: Vec<Attempt>,
    copies: u8,
    breaks: u8,
    resets: u8,
    wants: u8,
    pub(crate) java: Java,
    highest_token: u64,
    /// The last acknowledged payload: the token and the number of its request.
    acknowledged: Option<[u64; 2]>,
    /// The lease id that completed the occurrence, or, with at most once, began it.
    pub(crate) done_by: Option<(usize, u8)>,
    /// The lease ids that completed the occurrence.
    pub(crate) completed_by: Vec<(usize, u8)>,
    /// Whether a waiter marked the lock under its current holder.
    is_marked: bool,
    events: Events,
    broken: Option<Promise>,
}

fn text<T>(value: Result<T, leasehold_protocol::Error>) -> T {
    value.expect("the model names valid values")
}

fn key() -> LockKey {
    text(LockKey::new("Moe", None))
}

/// The callers, and one more that no caller has seen before.
const NAMES: [&str; 4] = ["ann", "bob", "cyd", "new"];

pub(crate) fn name(caller: usize) -> &'static str {
    NAMES[caller]
}

/// A lease id and its hash, which would otherwise be computed anew in every state.
pub(crate) struct KnownLeaseId {
    id: LeaseId,
    pub(crate) hash: LeaseIdHash,
}

/// More lease ids than any caller has.
pub(crate) const LEASE_IDS: u8 = 4;

pub(crate) fn known(caller: usize, count: u8) -> &'static KnownLeaseId {
    static KNOWN: LazyLock<Vec<KnownLeaseId>> = LazyLock::new(|| {
        let all = (0..NAMES.len()).flat_map(|caller| (0..LEASE_IDS).map(move |count| (caller, count)));
        let id = |(caller, count)| text(LeaseId::new(format!("{}-{count}", name(caller))));
        all.map(id).map(|id| KnownLeaseId { hash: id.hash(), id }).collect()
    });
    &KNOWN[caller * usize::from(LEASE_IDS) + usize::from(count)]
}

fn occurrence() -> Occurrence {
    text(Occurrence::new("", "2026-11-21T02"))
}

fn lease(ms: u16) -> LeaseDuration {
    text(LeaseDuration::from_millis(ms.into()))
}

fn lease_of(row: &Row) -> u16 {
    short(*row.lease_ms.value().expect("written here"))
}

fn short(ms: u64) -> u16 {
    u16::try_from(ms).expect("short")
}

/// The server's clock in microseconds; never zero.
fn microseconds(stamp: u16) -> u64 {
    (u64::from(stamp) + 100) * 1000
}

fn version(row: &Row) -> &str {
    row.rvn.value().expect("written here")
}

fn payload(row: &Row) -> Option<[u64; 2]> {
    let bytes = row.data.as_ref()?;
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    Some([number(&bytes[..8]), number(&bytes[8..])])
}

impl World {
    pub(crate) fn new(bounds: &Bounds) -> Self {
        Self {
            now: 0,
            row: None,
            callers: vec![Caller::default(); usize::from(bounds.callers)],
            network: Vec::new(),
            copies: 0,
            breaks: 0,
            resets: 0,
            wants: 0,
            java: Java::default(),
            highest_token: 0,
            acknowledged: None,
            done_by: None,
            completed_by: Vec::new(),
            is_marked: false,
            events: Events::default(),
            broken: None,
        }
    }

    pub(crate) fn keeps(&self, promise: Promise) -> bool {
        self.broken != Some(promise)
    }

    /// Whether the event happened on the way to this state.
    pub(crate) fn saw(&self, event: Event) -> bool {
        self.events.0 & event as u8 != 0
    }

    fn sees(&mut self, event: Event, happens: bool) {
        self.events.0 |= if happens { event as u8 } else { 0 };
    }

    pub(crate) fn row(&self) -> Option<&Row> {
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
        if self.breaks < bounds.breaks && self.network.len() < bounds.in_flight && self.is_held() {
            actions.push(Action::Break);
        }
        if self.resets < bounds.resets && self.network.len() < bounds.in_flight && self.done_by.is_some() {
            actions.push(Action::Reset);
        }
        if self.wants < bounds.wants && self.network.len() < bounds.in_flight {
            actions.push(Action::Want);
        }
        if self.java.writes < bounds.java {
            actions.extend([Action::JavaLooks, Action::JavaTakes, Action::JavaRenews]);
        }
    }

    fn is_held(&self) -> bool {
        self.row().is_some_and(|row| !row.released)
    }

    fn caller_actions(&self, protocol: &Protocol, index: usize, actions: &mut Vec<Action>) {
        let bounds = &protocol.bounds;
        let caller = &self.callers[index];
        if caller.lease_id >= bounds.lease_ids {
            return;
        }
        let skews: &[u16] = if bounds.clock { &[0, SKEW] } else { &[0] };
        let has_room = self.network.len() < bounds.in_flight;
        actions.extend(bounds.deaths.then_some(Action::Die { caller: index }));
        if let Some(pending) = &caller.pending {
            actions.extend(pending.answer.as_ref().map(|_| Action::Hear { caller: index }));
            if pending.attempts < bounds.attempts && has_room {
                actions.extend(skews.iter().map(|&skew| Action::Repeat { caller: index, skew }));
            }
            let is_acquire = matches!(pending.request, Request::Acquire { .. });
            if protocol.without != Some(Clause::RepeatBeforeNext) || !is_acquire {
                return;
            }
        }
        let mut requests = Vec::new();
        if caller.until.is_some() {
            if caller.believes(self.now) || caller.is_broken {
                let beat = |&lease: &u16| Request::Heartbeat { lease, token: caller.token };
                requests.extend(bounds.leases.iter().map(beat).filter(|_| caller.number < bounds.requests));
                requests.push(Request::Release { delete: false, completed: false });
                requests.extend(bounds.once.map(|_| Request::Release { delete: false, completed: true }));
                requests.extend(bounds.deletes.then_some(Request::Release { delete: true, completed: false }));
            }
        } else if caller.number < bounds.requests {
            let observed = caller.stale(self.now, protocol);
            let poll = |&lease: &u16| Request::Acquire { lease, observed: observed.clone() };
            requests.extend(bounds.leases.iter().map(poll));
        }
        for request in requests {
            for &skew in skews.iter().filter(|_| has_room) {
                actions.push(Action::Send { caller: index, request: request.clone(), is_lost: false, skew });
            }
            if bounds.losses {
                actions.push(Action::Send { caller: index, request, is_lost: true, skew: 0 });
            }
        }
    }

    pub(crate) fn after(&self, protocol: &Protocol, action: &Action) -> Option<Self> {
        let mut next = self.clone();
        match action {
            Action::Tick { until } => next.now = *until,
            Action::Send { caller, request, is_lost, skew } => next.send(protocol, *caller, request, *is_lost, *skew),
            Action::Repeat { caller, skew } => next.repeat(*caller, *skew),
            Action::Deliver { attempt, reply, stays } => next.deliver(protocol, *attempt, *reply, *stays)?,
            Action::Hear { caller } => {
                let answer = next.callers[*caller].pending.as_mut()?.answer.take()?;
                next.answered(protocol, *caller, &answer);
            }
            Action::Die { caller } => next.callers[*caller].start_over(),
            Action::Break => {
                next.breaks += 1;
                let seen = version(next.row()?).to_owned();
                let (version, stamp) = (format!("break-{}", next.breaks), next.now);
                next.network.push(Attempt { sender: Sender::Operator { seen }, version, stamp, was_applied: false });
            }
            Action::Reset => {
                next.resets += 1;
                let sender = Sender::Resetter { seen: version(next.row()?).to_owned(), done_by: next.done_by };
                let (version, stamp) = (format!("reset-{}", next.resets), next.now);
                next.network.push(Attempt { sender, version, stamp, was_applied: false });
            }
            Action::Want => {
                next.wants += 1;
                let (version, stamp) = (format!("want-{}", next.wants), next.now);
                next.network.push(Attempt { sender: Sender::Waiter, version, stamp, was_applied: false });
            }
            Action::JavaLooks => next.java_looks()?,
            Action::JavaTakes => next.java_takes()?,
            Action::JavaRenews => next.java_renews()?,
        }
        next.network.sort();
        next.check_beliefs();
        if next.row != self.row {
            next.check_way_out();
            next.check_mark();
        }
        Some(next)
    }

    fn send(&mut self, protocol: &Protocol, index: usize, request: &Request, is_lost: bool, skew: u16) {
        let now = self.now;
        let caller = &mut self.callers[index];
        if !matches!(request, Request::Release { .. }) {
            caller.number += 1;
        }
        match request {
            Request::Heartbeat { lease, .. } if protocol.without != Some(Clause::Cap) => {
                caller.until = caller.until.map(|until| until.min(now + lease));
            }
            // A caller that releases the lock no longer believes that it holds it.
            Request::Release { .. } => caller.until = None,
            _ => {}
        }
        let request = request.clone();
        caller.pending =
            Some(Pending { request, first_sent: now, last_sent: now, attempts: 0, answer: None, carried_out: None });
        if is_lost {
            caller.pending.iter_mut().for_each(|pending| pending.attempts += 1);
        } else {
            self.attempt(index, skew);
        }
    }

    fn repeat(&mut self, index: usize, skew: u16) {
        self.sees(Event::Repeated, true);
        self.attempt(index, skew);
    }

    fn attempt(&mut self, index: usize, skew: u16) {
        let now = self.now;
        let caller = &mut self.callers[index];
        let (lease_id, number) = (caller.lease_id, caller.number);
        let Some(pending) = &mut caller.pending else { return };
        pending.attempts += 1;
        pending.last_sent = now;
        // The answer to the attempt before is no longer awaited.
        pending.answer = None;
        let kind = if matches!(pending.request, Request::Release { .. }) { "-end" } else { "" };
        let version = format!("{}-{lease_id}.{number}{kind}.{}", name(index), pending.attempts);
        let sender = Sender::Caller {
            caller: index,
            lease_id,
            number,
            attempt: pending.attempts,
            request: pending.request.clone(),
        };
        self.network.push(Attempt { sender, version, stamp: now + skew, was_applied: false });
    }

    fn deliver(&mut self, protocol: &Protocol, index: usize, reply: Reply, stays: bool) -> Option<()> {
        let mut attempt = self.network.remove(index);
        let stamp = Stamp { rvn: attempt.version.clone(), now_us: microseconds(attempt.stamp) };
        let policy = Policy { retention_seconds: 0, clock_skew_ms: SKEW.into() };
        let life_cycle = LifeCycle { without: protocol.without, policy: &policy };
        let is_applied = match &attempt.sender {
            // No caller waits for these answers.
            Sender::Operator { .. } | Sender::Resetter { .. } | Sender::Waiter if reply != Reply::Lost => return None,
            Sender::Operator { seen } => self.deliver_break(&life_cycle, seen, &stamp),
            Sender::Resetter { seen, done_by } => self.deliver_reset(&life_cycle, seen, *done_by, &stamp),
            Sender::Waiter => {
                self.deliver_want(&life_cycle, &stamp);
                false
            }
            Sender::Caller { caller, lease_id, number, attempt, request } => {
                let is_awaited = {
                    let caller = &self.callers[*caller];
                    let awaits = |pending: &Pending| pending.request == *request && pending.attempts == *attempt;
                    caller.lease_id == *lease_id
                        && caller.number == *number
                        && caller.pending.as_ref().is_some_and(awaits)
                };
                if reply != Reply::Lost && !is_awaited {
                    return None;
                }
                let asked = Asked { caller: *caller, lease_id: *lease_id, number: *number, request, reply };
                self.deliver_request(protocol, &life_cycle, &asked, &stamp)
            }
        };
        if is_applied && attempt.was_applied {
            self.breaks_promise(Promise::VersionsAreNew);
        }
        attempt.was_applied |= is_applied;
        if stays {
            self.copies += 1;
            self.network.push(attempt);
        }
        Some(())
    }

    fn deliver_break(&mut self, life_cycle: &LifeCycle<'_>, seen: &str, stamp: &Stamp) -> bool {
        let request = Break { key: key(), seen: text(Rvn::new("", seen)) };
        let (row, answer) = life_cycle.break_lock(self.row(), &request, stamp);
        let holder = self.row().and_then(|row| row.lease_id_hash.clone());
        self.row = row.map(Stored);
        let is_applied = matches!(&answer, BreakAnswer::Done(done)
            if done.outcome == ReleaseOutcome::Released);
        if is_applied {
            for (index, caller) in self.callers.iter_mut().enumerate() {
                caller.is_broken |= holder.as_ref() == Some(&known(index, caller.lease_id).hash);
            }
            self.java.until = None;
            self.is_marked = false;
        }
        is_applied
    }

    fn deliver_reset(
        &mut self,
        life_cycle: &LifeCycle<'_>,
        seen: &str,
        done_by: Option<(usize, u8)>,
        stamp: &Stamp,
    ) -> bool {
        let last = text(Occurrence::new("", "0"));
        let request = SetOccurrence { key: key(), last, seen: text(Rvn::new("", seen)) };
        let row = life_cycle.set_occurrence(self.row(), &request, stamp);
        let is_applied = row.as_ref() != self.row();
        self.row = row.map(Stored);
        if is_applied {
            // The operator undoes what it saw, and no later run.
            if self.done_by != done_by {
                self.breaks_promise(Promise::OccurrencesEnd);
            }
            self.done_by = None;
        }
        is_applied
    }

    fn deliver_want(&mut self, life_cycle: &LifeCycle<'_>, stamp: &Stamp) {
        let request = Want { key: key(), owner_name: text(OwnerName::new(NAMES[3])) };
        let (row, answer) = life_cycle.want(self.row(), &request, stamp);
        let unmarked = |row: &Row| Row { mark: None, ..row.clone() };
        if row.as_ref().map(unmarked) != self.row().map(unmarked) {
            self.breaks_promise(Promise::WantsOnlyMark);
        }
        let is_true = match answer {
            WantAnswer::Marked => self.is_held() && !self.is_marked,
            WantAnswer::AlreadyMarked => self.is_held() && self.is_marked,
            WantAnswer::Free => !self.is_held(),
            WantAnswer::NotOurs => self.is_held() && self.java.writes > 0,
            WantAnswer::WrongKind => false,
        };
        if !is_true {
            self.breaks_promise(Promise::MarksAreTrue);
        }
        self.is_marked |= answer == WantAnswer::Marked;
        self.row = row.map(Stored);
    }

    /// Checks what a holder learns of waiters. Only a release that it made itself, and a heartbeat, know that nobody
    /// waits.
    fn check_wanted(&mut self, told: bool, knows: bool) {
        self.sees(Event::Wanted, told && knows);
        if told != (self.is_marked || !knows) {
            self.breaks_promise(Promise::MarksAreTrue);
        }
    }

    /// Checks that observers see the mark of the current holder's lock and no other, and that a tombstone has none.
    fn check_mark(&mut self) {
        let Some(row) = self.row() else { return };
        let is_shown = row.lock().is_ok_and(|lock| lock.wanted_by.is_some());
        if is_shown != self.is_marked || row.is_deleted() && row.mark.is_some() {
            self.breaks_promise(Promise::MarksAreTrue);
        }
    }

    fn deliver_request(
        &mut self,
        protocol: &Protocol,
        life_cycle: &LifeCycle<'_>,
        asked: &Asked<'_>,
        stamp: &Stamp,
    ) -> bool {
        let KnownLeaseId { id, hash } = known(asked.caller, asked.lease_id);
        let sequence = Some(text(Sequence::new(asked.number.max(1).into(), None)));
        let old = self.row().cloned();
        let (row, answer) = match asked.request {
            Request::Acquire { lease: ms, observed } => {
                let staleness = match observed {
                    _ if protocol.bounds.clock => Staleness::Clock,
                    Some(version) => Staleness::Observed(text(Rvn::new("", version.clone()))),
                    None => Staleness::Never,
                };
                let request = Acquire {
                    key: key(),
                    owner_name: text(OwnerName::new(name(asked.caller))),
                    lease_id: id.clone(),
                    sequence,
                    lease_duration: lease(*ms),
                    staleness,
                    data: None,
                    replace_data: true,
                    only_if_exists: false,
                    once: protocol
                        .bounds
                        .once
                        .map(|runs| Once { occurrence: occurrence(), at_most_once: runs == Runs::AtMostOnce }),
                    attributes: Attributes::new(),
                    principal: None,
                };
                let (row, answer) = life_cycle.acquire(self.row(), &request, stamp);
                (row, Answer::of_acquire(&answer))
            }
            Request::Heartbeat { lease: ms, token } => {
                let data = [token.to_be_bytes(), u64::from(asked.number).to_be_bytes()].concat();
                let request = Heartbeat {
                    key: key(),
                    lease_id: id.clone(),
                    sequence,
                    lease_duration: Some(lease(*ms)),
                    data: DataChange::Set(text(Data::new(data))),
                    expected: None,
                    fencing_token: Some(*token),
                    principal: None,
                };
                let (row, answer) = life_cycle.heartbeat(self.row(), &request, stamp);
                if let HeartbeatAnswer::Renewed(row) = &answer {
                    self.check_wanted(row.wanted_by().is_some(), true);
                }
                (row, Answer::of_heartbeat(&answer))
            }
            Request::Release { delete, completed } => {
                let disposal = match (delete, completed) {
                    (true, _) => Disposal::Delete,
                    (false, true) => Disposal::Complete(Completion { occurrence: occurrence(), ttl: None }, None),
                    (false, false) => Disposal::Keep(None),
                };
                let request = Release { key: key(), lease_id: id.clone(), disposal, expected: None, principal: None };
                let (row, answer) = life_cycle.release(self.row(), &request, stamp);
                if let ReleaseAnswer::Done(done) = &answer {
                    self.check_wanted(done.wanted, done.outcome == ReleaseOutcome::Released);
                }
                (row, Answer::of_release(&answer))
            }
        };
        let is_applied = row != old;
        if is_applied && let (Some(row), Request::Acquire { .. }) = (&row, asked.request) {
            let token = *row.fencing_token.value().unwrap_or(&0);
            if token <= self.highest_token {
                self.breaks_promise(Promise::TokensRise);
            }
            self.highest_token = self.highest_token.max(token);
        }
        // An acquire takes the mark off, and an ended lock has no holder who would learn of it.
        self.is_marked &= !is_applied || matches!(asked.request, Request::Heartbeat { .. });
        self.check_occurrence(protocol, asked, is_applied, &answer);
        self.row = row.map(Stored);
        if let (true, Request::Release { delete: true, .. }) = (is_applied, asked.request) {
            self.acknowledged = None;
        }
        self.sees(Event::TakenOver, matches!(answer, Answer::Granted { outcome: GrantOutcome::TakenOver, .. }));
        self.check_repeat(asked, hash, old.as_ref(), is_applied, &answer);
        match asked.reply {
            Reply::Heard => self.answered(protocol, asked.caller, &answer),
            Reply::Delayed => {
                let pending = self.callers[asked.caller].pending.as_mut();
                pending.expect("somebody waits").answer = Some(answer);
            }
            Reply::Lost => {}
        }
        if let (Some(acknowledged), Some(row)) = (self.acknowledged, self.row())
            && !row.is_deleted()
            && payload(row).is_none_or(|payload| payload < acknowledged)
        {
            self.breaks_promise(Promise::PayloadsStay);
        }
        is_applied
    }

    /// Checks that the occurrence is granted to no lease id but the one that ended it.
    fn check_occurrence(&mut self, protocol: &Protocol, asked: &Asked<'_>, is_applied: bool, answer: &Answer) {
        let id = (asked.caller, asked.lease_id);
        self.sees(Event::RefusedARun, matches!(answer, Answer::AlreadyDone));
        let Some(runs) = protocol.bounds.once else { return };
        if let Request::Release { completed: true, .. } = asked.request {
            if is_applied {
                self.completed_by.push(id);
                self.completed_by.sort_unstable();
            } else if *answer == Answer::Ended && !self.completed_by.contains(&id) {
                self.breaks_promise(Promise::CompletionsAreOwn);
            }
        }
        if !is_applied {
            return;
        }
        match asked.request {
            Request::Acquire { .. } if self.done_by.is_some_and(|by| by != id) => {
                self.breaks_promise(Promise::OccurrencesEnd);
            }
            Request::Acquire { .. } if runs == Runs::AtMostOnce => self.done_by = Some(id),
            Request::Release { completed: true, .. } => self.done_by = Some(id),
            _ => {}
        }
    }

    /// Checks the repeat of a request that was carried out and has not been answered. It must get the same answer,
    /// unless the row no longer remembers this lease id, or a Java client wrote.
    fn check_repeat(
        &mut self,
        asked: &Asked<'_>,
        hash: &LeaseIdHash,
        old: Option<&Row>,
        is_applied: bool,
        answer: &Answer,
    ) {
        let has = |of: &Option<LeaseIdHash>| of.as_ref() == Some(hash);
        let is_remembered = old.is_some_and(|row| has(&row.lease_id_hash) || has(&row.previous.lease_id_hash));
        let may_differ = !is_remembered || self.java.writes > 0;
        let caller = &mut self.callers[asked.caller];
        if caller.lease_id != asked.lease_id {
            return;
        }
        let is_current = caller.number == asked.number;
        let pending = caller.pending.as_mut().filter(|pending| is_current && pending.request == *asked.request);
        let Some(pending) = pending else {
            // A poll that was refused once is granted by another attempt. The next poll is then a renewal.
            caller.was_granted |= is_applied && matches!(asked.request, Request::Acquire { .. });
            return;
        };
        let is_same = match (&pending.carried_out, answer) {
            (None, Answer::Superseded) => false,
            (None, _) => true,
            // The acquisition was taken over or broken meanwhile, which the answer says.
            (Some(_), Answer::Lost) => !matches!(asked.request, Request::Release { .. }),
            (Some(_), Answer::Ended) => matches!(asked.request, Request::Release { .. }),
            (Some(first), _) => first == answer,
        };
        if is_applied && pending.carried_out.is_none() {
            pending.carried_out = Some(answer.clone());
        }
        if !is_same && !may_differ {
            self.breaks_promise(Promise::AnswersResolve);
        }
    }

    /// The caller receives the answer.
    fn answered(&mut self, protocol: &Protocol, index: usize, answer: &Answer) {
        let now = self.now;
        let java_wrote = self.java.writes > 0;
        let caller = &mut self.callers[index];
        let Some(pending) = caller.pending.take() else { return };
        let counts_from = match protocol.without {
            Some(Clause::CountFromFirst) => pending.last_sent,
            Some(Clause::CountFromSending) => now,
            _ => pending.first_sent,
        };
        let seen = if protocol.without == Some(Clause::ObserveFromAnswer) { pending.first_sent } else { now };
        let until = Some(counts_from + pending.request.lease()).filter(|until| now < *until);
        let mut broken = None;
        match answer {
            Answer::Granted { outcome, token } => {
                if *outcome == GrantOutcome::Renewed && !caller.was_granted && !java_wrote {
                    broken = Some(Promise::AnswersResolve);
                }
                // A caller whose grant is older than its lease goes on with the next request.
                caller.was_granted = true;
                caller.until = until;
                caller.token = *token;
                caller.seen = None;
            }
            Answer::Renewed { token } => {
                if *token != caller.token {
                    broken = Some(Promise::AnswersResolve);
                }
                let payload = [*token, u64::from(caller.number)];
                self.acknowledged = self.acknowledged.max(Some(payload));
                caller.until = until.or(Some(now));
            }
            Answer::Held { version, lease } => caller.see(version, *lease, seen),
            Answer::Lost => {
                if caller.believes(now) {
                    broken = Some(Promise::HoldersKeep);
                }
                caller.start_over();
            }
            Answer::Superseded => broken = Some(Promise::AnswersResolve),
            Answer::Ended | Answer::AlreadyDone => caller.start_over(),
        }
        if let Some(promise) = broken {
            self.breaks_promise(promise);
        }
    }

    fn check_beliefs(&mut self) {
        let callers = self.callers.iter().filter(|caller| caller.believes(self.now)).count();
        let java = usize::from(self.java.until.is_some_and(|until| self.now < until));
        if callers + java > 1 {
            self.breaks_promise(Promise::OneBelieves);
        }
    }

    /// Checks that a new caller which has observed the row for its lease is granted the lock.
    fn check_way_out(&mut self) {
        let observed = self.row().map(|row| Staleness::Observed(text(Rvn::new("", version(row)))));
        let request = Acquire {
            key: key(),
            owner_name: text(OwnerName::new("new")),
            lease_id: known(3, 0).id.clone(),
            sequence: None,
            lease_duration: lease(100),
            staleness: observed.unwrap_or(Staleness::Never),
            data: None,
            replace_data: true,
            only_if_exists: false,
            once: None,
            attributes: Attributes::new(),
            principal: None,
        };
        let stamp = Stamp { rvn: "new".into(), now_us: microseconds(self.now) };
        let step = lifecycle::acquire(self.row(), &request, &stamp, &Policy::default());
        if !matches!(step.map(|step| step.answer), Ok(AcquireAnswer::Granted(_))) {
            self.breaks_promise(Promise::NobodyIsStuck);
        }
    }

    fn java_looks(&mut self) -> Option<()> {
        let row = self.row()?;
        let seen = (version(row).to_owned(), lease_of(row), self.now);
        if row.released || self.java.seen.as_ref().is_some_and(|(version, ..)| *version == seen.0) {
            return None;
        }
        self.java.seen = Some(seen);
        Some(())
    }

    /// Takes a released row as released, and a stale row without regard to `isReleased`, which then stays.
    fn java_takes(&mut self) -> Option<()> {
        let (now, row) = (self.now, self.row()?);
        let seen = self.java.seen.as_ref();
        let is_stale = seen.is_some_and(|(seen, lease, since)| seen == version(row) && now - since >= *lease);
        if self.java.until.is_some() || !(row.released || is_stale) {
            return None;
        }
        let stays_released = row.released && is_stale;
        self.java_writes(stays_released)
    }

    fn java_renews(&mut self) -> Option<()> {
        let holds = self.java.until.is_some_and(|until| self.now < until);
        let is_its_own = self.row().is_some_and(|row| version(row) == format!("java-{}", self.java.writes));
        if holds && is_its_own { self.java_writes(false) } else { None }
    }

    fn java_writes(&mut self, stays_released: bool) -> Option<()> {
        self.java.writes += 1;
        let rvn = format!("java-{}", self.java.writes);
        let Stored(row) = self.row.as_mut()?;
        row.owner_name = Field::Value("java".into());
        row.lease_ms = Field::Value(JAVA_LEASE.into());
        row.rvn = Field::Value(rvn);
        row.released = stays_released;
        self.java.seen = None;
        self.java.until = Some(self.now + JAVA_LEASE);
        self.is_marked = false;
        Some(())
    }
}

/// A request that has arrived.
struct Asked<'a> {
    caller: usize,
    lease_id: u8,
    number: u8,
    request: &'a Request,
    reply: Reply,
}

/// The parts of an answer that the caller's rules use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted { outcome: GrantOutcome, token: u64 },
    Renewed { token: u64 },
    Held { version: String, lease: u16 },
    Lost,
    Superseded,
    AlreadyDone,
    Ended,
}

impl Hash for Answer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Self::Granted { outcome, token } => (*outcome as u8, token).hash(state),
            Self::Renewed { token } => token.hash(state),
            Self::Held { version, lease } => (version, lease).hash(state),
            Self::Lost | Self::Superseded | Self::AlreadyDone | Self::Ended => {}
        }
    }
}

impl Answer {
    fn of_acquire(answer: &AcquireAnswer) -> Self {
        match answer {
            AcquireAnswer::Granted(grant) => Self::Granted { outcome: grant.outcome, token: grant.fencing_token },
            AcquireAnswer::Held(lock) | AcquireAnswer::HeldBeyondClocks(lock) => {
                Self::Held { version: lock.rvn.clone(), lease: short(lock.lease_ms) }
            }
            AcquireAnswer::Lost(_) => Self::Lost,
            AcquireAnswer::Superseded(_) => Self::Superseded,
            AcquireAnswer::AlreadyDone(_) => Self::AlreadyDone,
            AcquireAnswer::NotFound => unreachable!("nobody asks for existing rows only"),
            AcquireAnswer::WrongKind => unreachable!("the row is a lock"),
        }
    }

    fn of_heartbeat(answer: &HeartbeatAnswer) -> Self {
        match answer {
            HeartbeatAnswer::Renewed(row) => Self::Renewed { token: *row.fencing_token.value().expect("ours") },
            HeartbeatAnswer::Superseded(_) => Self::Superseded,
            HeartbeatAnswer::Lost(_) | HeartbeatAnswer::Forbidden | HeartbeatAnswer::WrongKind => Self::Lost,
        }
    }

    fn of_release(answer: &ReleaseAnswer) -> Self {
        match answer {
            ReleaseAnswer::Done(_) => Self::Ended,
            ReleaseAnswer::Lost(_) | ReleaseAnswer::Forbidden | ReleaseAnswer::WrongKind => Self::Lost,
            ReleaseAnswer::OtherOccurrence => unreachable!("there is one occurrence"),
        }
    }
}
