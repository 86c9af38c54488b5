//! # A model of several keys at once, explored exhaustively
//!
//! The model has the rows of one lock and of one semaphore, callers who want both together, and callers who want
//! permits alone, at once or in the queue. A request for both is a series of transactions. Every write stays in the
//! network for ever: it arrives at any time, any number of times, or never. Every write goes through the pure life
//! cycle itself ([`leasehold_protocol::lifecycle::together`], [`leasehold_protocol::semaphore::lifecycle`]).
//!
//! The model has no clock: an observer names the entries of callers who died or went on under another lease id. The
//! models of the lock and of semaphores explore who may name whom, and when.
//!
//! A [`Clause`] is dropped around the life cycle. Without any one of them the checker finds a trace that breaks a
//! [`Promise`].

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use leasehold_protocol::lifecycle::together::{Attempt, Content, Form, Verdict, Vote, attempt, decide};
use leasehold_protocol::semaphore::{
    self, AllDead, Dead, Enqueue, Entry, Found, Member, Permits, PublicId, Semaphore, Ticket, lifecycle,
};
use leasehold_protocol::{
    Acquire, AcquireAllAnswer, Attributes, Disposal, Field, LeaseDuration, LeaseId, LockKey, OwnerName, Policy,
    Release, Row, Rvn, Sequence, Staleness, Stamp, Wanted,
};
use stateright::{CheckerBuilder, Model, Property};

use crate::threads;

const BOTH: &str = "a lock and permits are granted together";
const AGAIN: &str = "an attempt follows another";
const COPY_REFUSED: &str = "a copy is refused after its end";
const PASSED: &str = "a dead ticket is passed";

/// A clause of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// All rows are written, or none.
    Together,
    /// The token of an attempt is higher than each row's own.
    HigherToken,
    /// A repeat of a request that was carried out has its first answer.
    FirstAnswer,
    /// The rows remember the lease ids that ended.
    Memory,
    /// A lock that somebody else holds refuses.
    Held,
    /// A grant takes free permits only.
    Available,
    /// A request for several is refused while somebody else waits.
    NobodyAhead,
    /// A lease id that waits itself is refused.
    OwnTicket,
}

impl Clause {
    /// All clauses.
    pub const ALL: [Self; 8] = [
        Self::Together,
        Self::HigherToken,
        Self::FirstAnswer,
        Self::Memory,
        Self::Held,
        Self::Available,
        Self::NobodyAhead,
        Self::OwnTicket,
    ];
}

/// The promises of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Promise {
    /// A living caller holds all of its keys, or none.
    AllOrNone,
    /// Callers rely on one lock, and on no more permits than there are.
    WithinCapacity,
    /// Each grant of a key has a higher token than all before, and all keys of a request have one.
    TokensRise,
    /// A claim that ended comes back by no copy of its requests.
    EndsStay,
    /// A repeat of a request that was carried out gets the answer that was lost.
    AnswersResolve,
    /// A caller keeps what it relies on.
    HoldersKeep,
    /// A request for several passes nobody who waits.
    FirstComeFirst,
    /// A new caller that names all entries is granted all keys.
    NobodyIsStuck,
}

/// What a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plan {
    /// The lock, and this number of permits.
    Both(u64),
    /// This number of permits.
    Permits(u64),
    /// A place in the queue, and then this number of permits.
    Queue(u64),
    /// A place in the queue, and then the lock and the permits under the same lease id.
    QueueThenBoth(u64),
}

impl Plan {
    fn permits(self) -> u64 {
        match self {
            Self::Both(permits) | Self::Permits(permits) | Self::Queue(permits) | Self::QueueThenBoth(permits) => {
                permits
            }
        }
    }

    fn wants_both(self) -> bool {
        matches!(self, Self::Both(_) | Self::QueueThenBoth(_))
    }

    fn queues(self) -> bool {
        matches!(self, Self::Queue(_) | Self::QueueThenBoth(_))
    }
}

/// The bounds of one exploration.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The name, for reports.
    pub name: &'static str,
    /// What each caller asks for.
    pub plans: &'static [Plan],
    /// The number of permits.
    pub capacity: u64,
    /// The number of lease ids that each caller uses, one after the other.
    pub lives: u8,
    /// The number of requests under one lease id, without the release.
    pub requests: u8,
    /// The number of times that the service carries out one request.
    pub runs: u8,
    /// The number of copies of a request that reach the service late.
    pub copies: u8,
    /// Whether callers die.
    pub deaths: bool,
}

const SMALL: Bounds = Bounds {
    name: "small",
    plans: &[Plan::Both(1), Plan::Both(1)],
    capacity: 1,
    lives: 1,
    requests: 1,
    runs: 1,
    copies: 0,
    deaths: false,
};

impl Bounds {
    /// Explorations that take seconds, for the tests.
    pub fn small() -> [Self; 5] {
        [
            Self { name: "small several, two callers", ..SMALL },
            Self { name: "small several, repeats", plans: &[Plan::Both(1)], requests: 2, runs: 2, ..SMALL },
            Self {
                name: "small several, permits alone",
                plans: &[Plan::Both(2), Plan::Permits(1)],
                capacity: 2,
                ..SMALL
            },
            Self {
                name: "small several, a queue",
                plans: &[Plan::Both(1), Plan::Permits(1), Plan::Queue(1)],
                deaths: true,
                ..SMALL
            },
            Self { name: "small several, copies", plans: &[Plan::Both(1)], lives: 2, copies: 1, ..SMALL },
        ]
    }

    /// Larger explorations.
    pub fn full() -> [Self; 3] {
        [
            Self { name: "several, two callers", lives: 2, deaths: true, ..SMALL },
            Self {
                name: "several, three callers",
                plans: &[Plan::Both(1), Plan::Both(2), Plan::Permits(1)],
                capacity: 2,
                ..SMALL
            },
            Self {
                name: "several, a queue",
                plans: &[Plan::Both(1), Plan::Queue(1), Plan::QueueThenBoth(1)],
                requests: 2,
                ..SMALL
            },
        ]
    }

    /// Bounds within which the absence of the clause shows.
    pub fn of_trace(clause: Clause) -> Self {
        match clause {
            Clause::Together | Clause::Available => Self { plans: &[Plan::Both(1), Plan::Permits(1)], ..SMALL },
            Clause::HigherToken => Self { plans: &[Plan::Both(1)], lives: 2, ..SMALL },
            Clause::Memory => Self { plans: &[Plan::Both(1)], copies: 1, ..SMALL },
            Clause::FirstAnswer => Self { plans: &[Plan::Both(1)], runs: 2, ..SMALL },
            Clause::Held => Self { capacity: 2, ..SMALL },
            Clause::NobodyAhead => Self { plans: &[Plan::Both(1), Plan::Permits(1), Plan::Queue(1)], ..SMALL },
            Clause::OwnTicket => {
                Self { plans: &[Plan::QueueThenBoth(1), Plan::Permits(1), Plan::Queue(1)], requests: 2, ..SMALL }
            }
        }
    }
}

/// The protocol within bounds, with one clause dropped or none.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The bounds of the exploration.
    pub bounds: Bounds,
    /// The clause that is missing.
    pub without: Option<Clause>,
}

/// The lock's row. The hash leaves out what no rule reads here.
#[derive(Debug, Clone, PartialEq)]
struct Stored(Row);

impl Eq for Stored {}

impl Hash for Stored {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let row = &self.0;
        (&row.rvn, &row.fencing_token, row.released, &row.lease_id_hash, &row.previous, &row.sequence).hash(state);
    }
}

/// An entry that an observer names: id, version and permits.
type Name = (String, String, u64);

/// A write on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sent {
    caller: usize,
    life: u8,
    /// The number of the request under the lease id.
    number: u8,
    /// The number of the write among those of the request. Those of a copy begin at [`COPY`].
    write: u8,
    what: What,
}

/// The number of the first write of a copy that reaches the service late.
const COPY: u8 = 100;

impl Sent {
    /// The order in which a state lists what is on its way.
    fn order(&self) -> (usize, u8, u8, u8, bool) {
        (self.caller, self.life, self.number, self.write, self.what == What::ReleaseLock)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum What {
    Both { attempt: Attempt, observed: Option<String>, dead: Vec<Name> },
    Permits { dead: Vec<Name>, ticket: Option<u64> },
    Enqueue,
    ReleaseLock,
    ReleasePermits,
}

/// A request without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pending {
    /// The number of times that the service began it.
    runs: u8,
    /// The number of the last write, whose answer counts.
    write: u8,
    observed: Option<String>,
    dead: Vec<Name>,
    /// The token of the grant, once the request was carried out.
    carried_out: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Caller {
    life: u8,
    number: u8,
    pending: Option<Pending>,
    /// Whether the caller relies on its keys.
    holds: bool,
    /// The number of its ticket.
    ticket: Option<u64>,
    is_dead: bool,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    lock: Option<Stored>,
    pool: Option<Semaphore>,
    callers: Vec<Caller>,
    sent: Vec<Sent>,
    copies: u8,
    ended: BTreeSet<(usize, u8)>,
    /// The highest token of the lock, and of the semaphore.
    highest: [u64; 2],
    event: Option<&'static str>,
    broken: Option<Promise>,
}

/// A transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A caller sends a new request. It names the gone, or nobody.
    Send {
        /// The caller's index.
        caller: usize,
        /// Whether it names the entries of those who are gone.
        names: bool,
    },
    /// The service begins the unanswered request of a caller again.
    Repeat {
        /// The caller's index.
        caller: usize,
    },
    /// A write arrives.
    Deliver {
        /// Its index.
        sent: usize,
        /// Whether its answer is lost.
        is_lost: bool,
    },
    /// A copy of a request of a former lease id reaches the service, which begins it again.
    Copy {
        /// The index of the request's first write.
        sent: usize,
    },
    /// A caller releases its keys, and goes on under a fresh lease id.
    Release {
        /// The caller's index.
        caller: usize,
    },
    /// A caller dies.
    Die {
        /// The caller's index.
        caller: usize,
    },
}

/// The answer to a request.
enum Answer {
    Granted(u64),
    Queued(u64),
    Refused,
    Lost,
}

fn valid<T>(value: Result<T, leasehold_protocol::Error>) -> T {
    value.expect("the model names valid values")
}

fn lock_key() -> LockKey {
    valid(LockKey::new("lock", None))
}

fn pool_key() -> LockKey {
    valid(LockKey::new("pool", None))
}

fn some(permits: u64) -> Permits {
    valid(Permits::new("permits", permits))
}

/// More callers and lives than any bounds have, with one caller whom nobody knows.
const CALLERS: usize = 4;
const LIVES: u8 = 3;
const NEW: usize = CALLERS - 1;

/// A lease id with its public ids and its hash, which would otherwise be computed anew in every state.
struct Id {
    lease: LeaseId,
    holder: String,
    ticket: String,
}

fn id(caller: usize, life: u8) -> &'static Id {
    static KNOWN: LazyLock<Vec<Id>> = LazyLock::new(|| {
        let all = (0..CALLERS).flat_map(|caller| (0..LIVES).map(move |life| format!("{caller}-{life}")));
        let known = |name| {
            let lease = valid(LeaseId::new(name));
            let member = Member::new(&pool_key(), &lease);
            Id { holder: member.holder_id(), ticket: member.ticket_id(), lease }
        };
        all.map(known).collect()
    });
    &KNOWN[caller * usize::from(LIVES) + usize::from(life)]
}

fn everybody() -> impl Iterator<Item = (usize, u8)> {
    (0..CALLERS).flat_map(|caller| (0..LIVES).map(move |life| (caller, life)))
}

/// Every server's clock shows the same: tokens rise by the rows alone.
const CLOCK_US: u64 = 100;

/// Far more permits than any capacity.
const PLENTY: i64 = 1000;

const POLICY: Policy = Policy { retention_seconds: 0, clock_skew_ms: 0 };

fn stamp(rvn: String) -> Stamp {
    Stamp { rvn, now_us: CLOCK_US }
}

fn lease() -> LeaseDuration {
    valid(LeaseDuration::from_millis(100))
}

fn owner(caller: usize) -> OwnerName {
    valid(OwnerName::new(format!("{caller}")))
}

fn sequence(number: u8) -> Sequence {
    valid(Sequence::new(number.into(), None))
}

fn wanted_lock(caller: usize, life: u8, number: u8, observed: Option<&String>) -> Acquire {
    let staleness = observed.map(|rvn| Staleness::Observed(valid(Rvn::new("observed", rvn.clone()))));
    Acquire {
        key: lock_key(),
        owner_name: owner(caller),
        lease_id: id(caller, life).lease.clone(),
        sequence: Some(sequence(number)),
        lease_duration: lease(),
        staleness: staleness.unwrap_or(Staleness::Never),
        data: None,
        replace_data: true,
        only_if_exists: false,
        once: None,
        attributes: Attributes::new(),
        principal: None,
    }
}

fn wanted_permits(
    caller: usize,
    life: u8,
    number: u8,
    permits: u64,
    capacity: u64,
    dead: &[Name],
) -> semaphore::Acquire {
    let dead = dead.iter().map(|(id, version, permits)| Dead {
        id: valid(PublicId::new("observed", id)),
        version: valid(Rvn::new("version", version.clone())),
        permits: *permits,
        number: None,
    });
    let lease_id = id(caller, life).lease.clone();
    semaphore::Acquire {
        key: pool_key(),
        owner_name: owner(caller),
        sequence: Some(sequence(number)),
        lease_duration: lease(),
        permits: some(permits),
        capacity: some(capacity),
        dead: valid(AllDead::new(dead.collect(), &Member::new(&pool_key(), &lease_id))),
        checked_by_clock: false,
        by_clock: false,
        epoch: None,
        passes: false,
        number: None,
        data: None,
        principal: None,
        lease_id,
    }
}

fn found(row: Option<&Semaphore>) -> Found {
    row.map_or(Found::Free(None), |row| Found::Semaphore(Box::new(row.clone())))
}

/// One transaction, with a clause dropped or none.
struct Transaction<'a> {
    without: Option<Clause>,
    wanted: Vec<Wanted>,
    attempt: &'a Attempt,
    stamps: Vec<Stamp>,
    me: &'static Id,
}

impl Transaction<'_> {
    fn lacks(&self, clause: Clause) -> bool {
        self.without == Some(clause)
    }

    /// Carries out the attempt on these rows. Returns the rows afterwards, or the verdict.
    fn carry_out(&self, world: &World) -> Result<(Option<Row>, Option<Semaphore>), Box<Verdict>> {
        let mut lock = world.lock.as_ref().map(|stored| stored.0.clone());
        let mut pool = world.pool.clone();
        if let Some(row) = &mut lock {
            if self.lacks(Clause::HigherToken) {
                row.fencing_token = Field::Absent;
            }
            if self.lacks(Clause::Memory) && row.released {
                row.lease_id_hash = None;
            }
            if self.lacks(Clause::Memory) {
                row.previous.lease_id_hash = None;
            }
            if self.lacks(Clause::Held) && row.lease_id_hash.as_ref() != Some(&self.me.lease.hash()) {
                row.released = true;
            }
        }
        let mut hidden = BTreeMap::new();
        if let Some(row) = &mut pool {
            if self.lacks(Clause::HigherToken) {
                row.fencing_token = 0;
            }
            if self.lacks(Clause::Memory) {
                row.ended.clear();
                row.spent_holders.clear();
                row.spent_tickets.clear();
            }
            if self.lacks(Clause::Available) {
                row.available += PLENTY;
            }
            let waits = row.queue.contains_key(&self.me.ticket);
            if self.lacks(if waits { Clause::OwnTicket } else { Clause::NobodyAhead }) {
                hidden = std::mem::take(&mut row.queue);
                hidden.remove(&self.me.ticket);
            }
        }
        let contents = [Content::Lock(lock), Content::Permits(found(pool.as_ref()))];
        let restored = |content: Content| match content {
            Content::Permits(Found::Semaphore(mut row)) => {
                row.queue.extend(hidden.clone());
                if self.lacks(Clause::Available) {
                    row.available -= PLENTY;
                }
                Some(*row)
            }
            _ => None,
        };
        let result = attempt(&contents, &self.wanted, self.attempt, &self.stamps, &POLICY);
        match result.expect("tokens are small") {
            Ok(contents) => {
                let mut contents = contents.into_iter();
                let lock = contents.next().and_then(|content| match content {
                    Content::Lock(row) => row,
                    Content::Permits(_) => None,
                });
                Ok((lock, contents.next().and_then(restored)))
            }
            Err(votes) if self.lacks(Clause::Together) && votes.contains(&Vote::Yes) => {
                Ok(self.apart(world, &contents, restored))
            }
            Err(votes) => {
                let verdict = decide(&votes, &self.wanted, self.attempt, &self.stamps, &POLICY);
                Err(Box::new(verdict.expect("readable")))
            }
        }
    }

    /// Writes each row that agrees, without the others.
    fn apart(
        &self,
        world: &World,
        contents: &[Content; 2],
        restored: impl Fn(Content) -> Option<Semaphore>,
    ) -> (Option<Row>, Option<Semaphore>) {
        let one = |index: usize| {
            let at = index..=index;
            let seen = Attempt { seen: self.attempt.seen[at.clone()].to_vec(), ..self.attempt.clone() };
            let (contents, wanted) = (&contents[at.clone()], &self.wanted[at.clone()]);
            let written = attempt(contents, wanted, &seen, &self.stamps[at], &POLICY).expect("tokens are small");
            written.ok().and_then(|mut contents| contents.pop())
        };
        let lock = match one(0) {
            Some(Content::Lock(row)) => row,
            _ => world.lock.as_ref().map(|stored| stored.0.clone()),
        };
        let pool = one(1).and_then(restored).or_else(|| world.pool.clone());
        (lock, pool)
    }
}

impl World {
    fn new(bounds: &Bounds) -> Self {
        Self {
            lock: None,
            pool: None,
            callers: vec![Caller::default(); bounds.plans.len()],
            sent: Vec::new(),
            copies: 0,
            ended: BTreeSet::new(),
            highest: [0; 2],
            event: None,
            broken: None,
        }
    }

    fn breaks(&mut self, promise: Promise) {
        self.broken.get_or_insert(promise);
    }

    fn has_lock(&self, caller: usize, life: u8) -> bool {
        let hash = id(caller, life).lease.hash();
        self.lock.as_ref().is_some_and(|stored| !stored.0.released && stored.0.lease_id_hash == Some(hash))
    }

    fn has_permits(&self, caller: usize, life: u8) -> bool {
        self.pool.as_ref().is_some_and(|row| row.holders.contains_key(&id(caller, life).holder))
    }

    fn has_ticket(&self, caller: usize, life: u8) -> bool {
        self.pool.as_ref().is_some_and(|row| row.queue.contains_key(&id(caller, life).ticket))
    }

    /// Whether nobody will rely on what this lease id has.
    fn is_gone(&self, (caller, life): (usize, u8)) -> bool {
        self.callers.get(caller).is_none_or(|it| it.is_dead || it.life > life)
    }

    /// The entries of all whom `counts` accepts: the lock's version, and those of the semaphore.
    fn names(&self, counts: impl Fn(&Self, (usize, u8)) -> bool) -> (Option<String>, Vec<Name>) {
        let lock = everybody().find(|&(caller, life)| self.has_lock(caller, life) && counts(self, (caller, life)));
        let version = || self.lock.as_ref()?.0.rvn.value().cloned();
        let Some(row) = &self.pool else { return (lock.and_then(|_| version()), Vec::new()) };
        let mut dead = Vec::new();
        for (caller, life) in everybody().filter(|it| counts(self, *it)) {
            let id = id(caller, life);
            let holder = row.holders.get(&id.holder).map(|holder| (&id.holder, &holder.claim));
            let ticket = row.queue.get(&id.ticket).map(|ticket| (&id.ticket, &ticket.claim));
            let entries = holder.into_iter().chain(ticket);
            dead.extend(entries.map(|(id, claim)| (id.clone(), claim.version.clone(), claim.permits)));
        }
        (lock.and_then(|_| version()), dead)
    }

    fn actions(&self, protocol: &Protocol, actions: &mut Vec<Action>) {
        // A broken promise ends a trace.
        if self.broken.is_some() {
            return;
        }
        let bounds = &protocol.bounds;
        for (index, caller) in self.callers.iter().enumerate() {
            if caller.is_dead || caller.life >= bounds.lives {
                continue;
            }
            if bounds.deaths {
                actions.push(Action::Die { caller: index });
            }
            if let Some(pending) = &caller.pending {
                if pending.runs < bounds.runs {
                    actions.push(Action::Repeat { caller: index });
                }
                continue;
            }
            if caller.number < bounds.requests + u8::from(bounds.plans[index].queues()) {
                actions.push(Action::Send { caller: index, names: false });
                let (observed, dead) = self.names(Self::is_gone);
                if observed.is_some() || !dead.is_empty() {
                    actions.push(Action::Send { caller: index, names: true });
                }
            }
            if caller.holds {
                actions.push(Action::Release { caller: index });
            }
        }
        for (sent, it) in self.sent.iter().enumerate() {
            let is_former = it.life < self.callers[it.caller].life && it.write == 1;
            if is_former && self.copies < bounds.copies && matches!(it.what, What::Both { .. }) {
                actions.push(Action::Copy { sent });
            }
            actions.push(Action::Deliver { sent, is_lost: true });
            if self.is_awaited(it) {
                actions.push(Action::Deliver { sent, is_lost: false });
            }
        }
    }

    fn is_awaited(&self, sent: &Sent) -> bool {
        let caller = &self.callers[sent.caller];
        let is_current = !caller.is_dead && caller.life == sent.life && caller.number == sent.number;
        is_current && caller.pending.as_ref().is_some_and(|pending| pending.write == sent.write)
    }

    fn after(&self, protocol: &Protocol, action: &Action) -> Option<Self> {
        let mut next = self.clone();
        next.event = None;
        match action {
            Action::Send { caller, names } => {
                let (observed, dead) = if *names { self.names(Self::is_gone) } else { (None, Vec::new()) };
                let it = &mut next.callers[*caller];
                it.number += 1;
                it.pending = Some(Pending { runs: 0, write: 0, observed, dead, carried_out: None });
                next.run(protocol, *caller);
            }
            Action::Repeat { caller } => next.run(protocol, *caller),
            Action::Deliver { sent, is_lost } => next.deliver(protocol, *sent, *is_lost),
            Action::Copy { sent } => {
                next.copies += 1;
                let copy = next.sent[*sent].clone();
                next.sent.push(Sent { write: COPY * next.copies, ..copy });
            }
            Action::Release { caller } => {
                let it = &mut next.callers[*caller];
                it.holds = false;
                let sent = |what| Sent { caller: *caller, life: it.life, number: it.number + 1, write: 0, what };
                next.sent.push(sent(What::ReleasePermits));
                if protocol.bounds.plans[*caller].wants_both() {
                    next.sent.push(sent(What::ReleaseLock));
                }
                *it = Caller { life: it.life + 1, ..Caller::default() };
            }
            Action::Die { caller } => {
                let it = &mut next.callers[*caller];
                (it.is_dead, it.holds, it.ticket, it.pending) = (true, false, None, None);
            }
        }
        next.sent.sort_by_key(Sent::order);
        next.check(protocol, self);
        (next != *self).then_some(next)
    }

    /// The service begins the pending request of a caller.
    fn run(&mut self, protocol: &Protocol, index: usize) {
        let caller = &mut self.callers[index];
        let Some(pending) = &mut caller.pending else { return };
        pending.runs += 1;
        pending.write += 1;
        let (observed, dead) = (pending.observed.clone(), pending.dead.clone());
        let what = match protocol.bounds.plans[index] {
            Plan::Queue(_) | Plan::QueueThenBoth(_) if caller.ticket.is_none() && !caller.holds => What::Enqueue,
            Plan::Permits(_) | Plan::Queue(_) => What::Permits { dead, ticket: caller.ticket },
            Plan::Both(_) | Plan::QueueThenBoth(_) => {
                What::Both { attempt: Attempt { fencing_token: CLOCK_US, ..Attempt::first(2) }, observed, dead }
            }
        };
        let (life, number, write) = (caller.life, caller.number, pending.write);
        self.sent.push(Sent { caller: index, life, number, write, what });
    }

    fn deliver(&mut self, protocol: &Protocol, index: usize, is_lost: bool) {
        let sent = self.sent[index].clone();
        let is_awaited = self.is_awaited(&sent);
        let (permits, capacity) = (protocol.bounds.plans[sent.caller].permits(), protocol.bounds.capacity);
        let rvn = format!("{}-{}.{}.{}", sent.caller, sent.life, sent.number, sent.write);
        let lease_id = id(sent.caller, sent.life).lease.clone();
        let answer = match &sent.what {
            What::Both { attempt, observed, dead } => {
                match self.deliver_both(protocol, &sent, attempt, observed.as_ref(), dead, rvn) {
                    Some(answer) => answer,
                    None if is_awaited => {
                        // The service goes on: its next write is now the last one.
                        let pending = self.callers[sent.caller].pending.as_mut();
                        pending.expect("it is awaited").write += 1;
                        return;
                    }
                    None => {
                        // Nobody waits, but the service goes on with a copy, once.
                        let next = self.sent.pop();
                        let next = next.filter(|next| sent.write >= COPY && !self.sent.contains(next));
                        self.sent.extend(next);
                        return;
                    }
                }
            }
            What::Permits { dead, ticket } => {
                let ask = wanted_permits(sent.caller, sent.life, sent.number, permits, capacity, dead);
                let ask = semaphore::Acquire { number: *ticket, ..ask };
                let step = lifecycle::acquire(&found(self.pool.as_ref()), &ask, &stamp(rvn), &POLICY);
                let step = step.expect("tokens are small");
                if step.change.is_some() {
                    self.pool = step.row;
                }
                match step.answer {
                    Ok(grant) => Answer::Granted(grant.holder.fencing_token),
                    Err(semaphore::Refusal::Lost(_)) => Answer::Lost,
                    Err(_) => Answer::Refused,
                }
            }
            What::Enqueue => {
                let ask = wanted_permits(sent.caller, sent.life, sent.number, permits, capacity, &[]);
                let request = Enqueue {
                    key: ask.key,
                    owner_name: ask.owner_name,
                    lease_id,
                    sequence: ask.sequence,
                    lease_duration: lease(),
                    permits: ask.permits,
                    capacity: ask.capacity,
                    dead: ask.dead,
                    checked_by_clock: false,
                    epoch: None,
                    number: None,
                    grant_lease: lease(),
                    data: None,
                    principal: None,
                };
                let step = lifecycle::enqueue(&found(self.pool.as_ref()), &request, &stamp(rvn), &[], &POLICY);
                let step = step.expect("tokens are small");
                if step.change.is_some() {
                    self.pool = step.row;
                }
                match step.answer {
                    Ok(Entry::Granted(grant)) => Answer::Granted(grant.holder.fencing_token),
                    Ok(Entry::Queued(place)) => Answer::Queued(place.ticket.number),
                    Err(semaphore::Refusal::Lost(_)) => Answer::Lost,
                    Err(_) => Answer::Refused,
                }
            }
            What::ReleaseLock => {
                let request = Release {
                    key: lock_key(),
                    lease_id,
                    disposal: Disposal::Keep(None),
                    expected: None,
                    principal: None,
                };
                let row = self.lock.as_ref().map(|stored| &stored.0);
                let step = leasehold_protocol::lifecycle::release(row, &request, &stamp(rvn), &POLICY);
                self.lock = step.row.map(Stored);
                return;
            }
            What::ReleasePermits => {
                let request =
                    semaphore::Release { key: pool_key(), lease_id, expected: None, number: None, principal: None };
                let step = lifecycle::release(&found(self.pool.as_ref()), &request, &stamp(rvn), &POLICY);
                if step.change.is_some() {
                    self.pool = step.row;
                }
                return;
            }
        };
        self.answered(protocol, &sent, &answer, is_awaited, is_lost);
    }

    /// Carries out one transaction. Returns the answer, or nothing after it sent the next attempt.
    fn deliver_both(
        &mut self,
        protocol: &Protocol,
        sent: &Sent,
        attempt: &Attempt,
        observed: Option<&String>,
        dead: &[Name],
        rvn: String,
    ) -> Option<Answer> {
        let (permits, capacity) = (protocol.bounds.plans[sent.caller].permits(), protocol.bounds.capacity);
        let lock = wanted_lock(sent.caller, sent.life, sent.number, observed);
        let pool = wanted_permits(sent.caller, sent.life, sent.number, permits, capacity, dead);
        let mut transaction = Transaction {
            without: protocol.without,
            wanted: vec![lock.into(), pool.into()],
            attempt,
            stamps: vec![stamp(rvn.clone()), stamp(rvn)],
            me: id(sent.caller, sent.life),
        };
        if protocol.without == Some(Clause::FirstAnswer) {
            for wanted in &mut transaction.wanted {
                match wanted {
                    Wanted::Lock(request) => request.sequence = None,
                    Wanted::Permits(request) => request.sequence = None,
                }
            }
        }
        let before = self.clone();
        match transaction.carry_out(self).map_err(|verdict| *verdict) {
            Ok((lock, pool)) => {
                (self.lock, self.pool) = (lock.map(Stored), pool);
                self.check_turn(&before, sent);
                Some(Answer::Granted(attempt.fencing_token))
            }
            Err(Verdict::Answer(AcquireAllAnswer::Granted(grant))) => Some(Answer::Granted(grant.fencing_token)),
            Err(Verdict::Answer(AcquireAllAnswer::Lost(_))) => Some(Answer::Lost),
            Err(Verdict::Answer(_)) => Some(Answer::Refused),
            Err(Verdict::Again(next)) => {
                let next = Attempt { fencing_token: next.fencing_token.max(CLOCK_US), ..next };
                let what = What::Both { attempt: next, observed: observed.cloned(), dead: dead.to_vec() };
                self.sent.push(Sent { write: sent.write + 1, what, ..sent.clone() });
                self.event = Some(AGAIN);
                None
            }
        }
    }

    /// Checks that a grant of several passed nobody who waits.
    fn check_turn(&mut self, before: &Self, sent: &Sent) {
        let Some(row) = &before.pool else { return };
        if self.has_permits(sent.caller, sent.life) && !before.has_permits(sent.caller, sent.life) {
            self.event = Some(BOTH);
            let is_waiting = |(index, caller): (usize, &Caller)| {
                let ticket: Option<&Ticket> = row.queue.get(&id(index, caller.life).ticket);
                index != sent.caller && caller.ticket.is_some() && ticket.is_some()
            };
            if before.callers.iter().enumerate().any(is_waiting) {
                self.breaks(Promise::FirstComeFirst);
            } else if !row.queue.is_empty() {
                self.event = Some(PASSED);
            }
        }
    }

    fn answered(&mut self, protocol: &Protocol, sent: &Sent, answer: &Answer, is_awaited: bool, is_lost: bool) {
        if self.ended.contains(&(sent.caller, sent.life)) && matches!(answer, Answer::Lost) {
            self.event = Some(COPY_REFUSED);
        }
        let is_both = matches!(sent.what, What::Both { .. });
        let caller = &mut self.callers[sent.caller];
        let is_current = caller.life == sent.life && caller.number == sent.number;
        let Some(pending) = caller.pending.as_mut().filter(|_| is_current) else { return };
        let token = if let Answer::Granted(token) = answer { Some(*token) } else { None };
        let is_same = pending.carried_out.is_none_or(|first| Some(first) == token);
        pending.carried_out = pending.carried_out.or(token.filter(|_| is_both));
        if !is_same && is_both {
            self.breaks(Promise::AnswersResolve);
            return;
        }
        if !is_awaited || is_lost {
            return;
        }
        caller.pending = None;
        match answer {
            // Permits without the lock are not what the caller wants.
            Answer::Granted(_) if protocol.bounds.plans[sent.caller].wants_both() && !is_both => {
                *caller = Caller { life: caller.life + 1, ..Caller::default() };
            }
            Answer::Granted(_) => (caller.holds, caller.ticket) = (true, None),
            Answer::Queued(number) => caller.ticket = Some(*number),
            Answer::Refused => {}
            Answer::Lost => {
                let was_relied_on = caller.holds;
                *caller = Caller { life: caller.life + 1, ..Caller::default() };
                if was_relied_on {
                    self.breaks(Promise::HoldersKeep);
                }
            }
        }
    }

    /// Checks the promises that the state tells of.
    fn check(&mut self, protocol: &Protocol, before: &Self) {
        let bounds = &protocol.bounds;
        let holding = self.callers.iter().enumerate().filter(|(_, caller)| caller.holds);
        let holding: Vec<_> = holding.map(|(index, caller)| (index, caller.life)).collect();
        let wants_both = |index: usize| bounds.plans[index].wants_both();
        let keeps = |&(index, life): &(usize, u8)| {
            self.has_permits(index, life) && (self.has_lock(index, life) || !wants_both(index))
        };
        let keeps_all = holding.iter().all(keeps);
        let relied: u64 = holding.iter().map(|(index, _)| bounds.plans[*index].permits()).sum();
        let locks = holding.iter().filter(|(index, _)| wants_both(*index)).count();
        let is_free = self.pool.as_ref().is_none_or(|row| row.available >= 0);
        if relied > bounds.capacity || locks > 1 || !is_free {
            self.breaks(Promise::WithinCapacity);
        }
        if !keeps_all {
            self.breaks(Promise::HoldersKeep);
        }
        for (index, caller) in self.callers.clone().iter().enumerate().filter(|(index, _)| wants_both(*index)) {
            let waits = bounds.plans[index].queues() && caller.ticket.is_none() && !caller.holds;
            let is_alive = !caller.is_dead && caller.life < bounds.lives && !waits;
            if is_alive && self.has_lock(index, caller.life) != self.has_permits(index, caller.life) {
                self.breaks(Promise::AllOrNone);
            }
        }
        self.check_tokens(before);
        self.check_ends(protocol, before);
        if (&self.lock, &self.pool) != (&before.lock, &before.pool) {
            self.check_way_out(protocol);
        }
    }

    fn check_tokens(&mut self, before: &Self) {
        let token = |world: &Self| {
            let lock = world.lock.as_ref().filter(|stored| !stored.0.released);
            let lock = lock.and_then(|stored| stored.0.fencing_token.value().copied());
            let holders = world.pool.iter().flat_map(|row| row.holders.values());
            (lock, holders.map(|holder| holder.fencing_token).collect::<BTreeSet<_>>())
        };
        let ((was_lock, was_pool), (lock, pool)) = (token(before), token(self));
        let version = |world: &Self| world.lock.as_ref().and_then(|stored| stored.0.lease_id_hash.clone());
        let is_new = lock.is_some() && (lock != was_lock || version(self) != version(before));
        let mut is_broken = false;
        if let Some(token) = lock.filter(|_| is_new) {
            is_broken |= token <= self.highest[0];
            self.highest[0] = self.highest[0].max(token);
        }
        for token in pool.difference(&was_pool) {
            is_broken |= *token <= self.highest[1];
            self.highest[1] = self.highest[1].max(*token);
        }
        if is_broken {
            self.breaks(Promise::TokensRise);
        }
    }

    fn check_ends(&mut self, protocol: &Protocol, before: &Self) {
        let count = self.callers.len();
        for (caller, life) in everybody().filter(|(caller, _)| *caller < count) {
            let has = |world: &Self| {
                [world.has_lock(caller, life), world.has_permits(caller, life), world.has_ticket(caller, life)]
            };
            let (was, is) = (has(before).contains(&true), has(self).contains(&true));
            if was && !is {
                self.ended.insert((caller, life));
            } else if is && !was && self.ended.contains(&(caller, life)) && protocol.bounds.plans[caller].wants_both() {
                self.breaks(Promise::EndsStay);
            }
        }
    }

    /// Checks that a new caller which names all entries is granted the lock and all permits.
    fn check_way_out(&mut self, protocol: &Protocol) {
        let (observed, dead) = self.names(|_, _| true);
        let capacity = protocol.bounds.capacity;
        let lock = wanted_lock(NEW, 0, 1, observed.as_ref());
        let pool = wanted_permits(NEW, 0, 1, capacity, capacity, &dead);
        let wanted = [lock.into(), pool.into()];
        let stamps = [stamp("new".into()), stamp("new".into())];
        let contents =
            [Content::Lock(self.lock.as_ref().map(|it| it.0.clone())), Content::Permits(found(self.pool.as_ref()))];
        let mut next = Attempt::first(2);
        for _ in 0..4 {
            let this = Attempt { fencing_token: next.fencing_token.max(CLOCK_US), ..next };
            let Err(votes) = attempt(&contents, &wanted, &this, &stamps, &POLICY).expect("tokens are small") else {
                return;
            };
            match decide(&votes, &wanted, &this, &stamps, &POLICY).expect("readable") {
                Verdict::Again(again) if again.form == Form::Acquisition => next = again,
                _ => break,
            }
        }
        self.breaks(Promise::NobodyIsStuck);
    }
}

impl Protocol {
    /// Returns a checker that keeps 8 bytes for each state.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads())
    }

    /// The names of the events that an exploration must contain.
    pub fn must_see(&self) -> Vec<&'static str> {
        let Bounds { plans, lives, deaths, .. } = self.bounds;
        let queues = plans.iter().any(|plan| plan.queues());
        let events =
            [(BOTH, lives > 1 || plans.len() > 1), (AGAIN, true), (COPY_REFUSED, true), (PASSED, deaths && queues)];
        events.into_iter().filter(|(_, is_due)| *is_due).map(|(name, _)| name).collect()
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.bounds)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        world.after(self, &action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn keeps(world: &World, promise: Promise) -> bool {
            world.broken != Some(promise)
        }
        vec![
            Property::always("all or none", |_, world: &World| keeps(world, Promise::AllOrNone)),
            Property::always("one lock, and permits within the capacity", |_, world: &World| {
                keeps(world, Promise::WithinCapacity)
            }),
            Property::always("tokens of all keys rise", |_, world: &World| keeps(world, Promise::TokensRise)),
            Property::always("several that ended stay ended", |_, world: &World| keeps(world, Promise::EndsStay)),
            Property::always("lost answers about several resolve", |_, world: &World| {
                keeps(world, Promise::AnswersResolve)
            }),
            Property::always("a holder of several keeps them", |_, world: &World| keeps(world, Promise::HoldersKeep)),
            Property::always("several pass nobody who waits", |_, world: &World| keeps(world, Promise::FirstComeFirst)),
            Property::always("everyone can go on with several", |_, world: &World| {
                keeps(world, Promise::NobodyIsStuck)
            }),
            Property::sometimes(BOTH, |_, world: &World| world.event == Some(BOTH)),
            Property::sometimes(AGAIN, |_, world: &World| world.event == Some(AGAIN)),
            Property::sometimes(COPY_REFUSED, |_, world: &World| world.event == Some(COPY_REFUSED)),
            Property::sometimes(PASSED, |_, world: &World| world.event == Some(PASSED)),
        ]
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::{check_breaks, check_holds};

    #[test]
    fn small_bounds_of_several_break_no_promise() {
        for bounds in Bounds::small() {
            let protocol = Protocol { bounds, without: None };
            let must_see = protocol.must_see();
            check_holds(protocol.explored(), &must_see, &bounds, bounds.name);
        }
    }

    /// Checks that the checker finds a trace that breaks this promise where the clause is missing.
    fn check_broken(clause: Clause, promise: &'static str) {
        let protocol = Protocol { bounds: Bounds::of_trace(clause), without: Some(clause) };
        check_breaks(protocol.explored(), promise, clause);
    }

    clauses! {
        several_need_one_transaction: Together breaks "all or none",
        several_need_a_higher_token: HigherToken breaks "tokens of all keys rise",
        repeats_of_several_need_their_first_answer: FirstAnswer breaks "lost answers about several resolve",
        several_that_ended_need_a_memory: Memory breaks "several that ended stay ended",
        held_locks_need_to_refuse_several: Held breaks "a holder of several keeps them",
        several_need_free_permits: Available breaks "one lock, and permits within the capacity",
        waiters_need_precedence_over_several: NobodyAhead breaks "several pass nobody who waits",
        waiters_of_several_need_no_ticket: OwnTicket breaks "several pass nobody who waits",
    }
}
