//! The life of a semaphore, as pure functions of (row, request, stamp). No I/O, no clock, no randomness.
//!
//! Each function is one operation. It returns the row afterwards, the write that makes it, and the answer to the
//! caller. DynamoDB carries out the same rules as conditional writes (`expressions`). Applied or refused, a write
//! returns the old row, and the same function derives the answer from it. A property test compares the two.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::model::{
    Acquire, AllDead, Break, Dead, Enqueue, Epoch, Heartbeat, MAX_ENTRIES, Member, PublicId, Release, SetCapacity,
    ring_slot,
};
use crate::lifecycle::{
    CorruptRecord, GrantOutcome, LAST_COUNTABLE_TOKEN, LockState, LostReason, Order, Policy, ReleaseOutcome, Stamp,
    Superseded, order,
};
use crate::model::{LeaseIdHash, LockKey, Principal, Rvn, Sequence};

/// The content of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Found {
    /// No row, or a tombstone, which a semaphore may take.
    Free(Option<Tombstone>),
    /// A lock, or a kind that this version does not know.
    OtherKind,
    /// A semaphore.
    Semaphore(Box<Semaphore>),
}

/// A deleted lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tombstone {
    /// The tombstone's record version number.
    pub rvn: String,
    /// The tombstone's fencing token: the next one is higher.
    pub fencing_token: Option<u64>,
}

/// A semaphore's row. All of it is readable: a damaged row is a [`CorruptRecord`] instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Semaphore {
    /// The semaphore's key.
    pub key: LockKey,
    /// `recordVersionNumber`.
    pub rvn: String,
    /// The number of permits.
    pub capacity: u64,
    /// The number of free permits; below zero where the capacity was cut.
    pub available: i64,
    /// The holders, by their public ids.
    pub holders: BTreeMap<String, Holder>,
    /// The tickets, by their public ids.
    pub queue: BTreeMap<String, Ticket>,
    /// The number of the next ticket.
    pub next_ticket: u64,
    /// The last fencing token.
    pub fencing_token: u64,
    /// The last ends, by slot: the slot is chosen by the id.
    pub ended: BTreeMap<String, Ended>,
    /// The last holders that ended, by slot: the slot is chosen by the fencing token.
    pub spent_holders: Ring,
    /// The last tickets that ended without a grant, by slot: the slot is chosen by the number.
    pub spent_tickets: Ring,
    /// Whether the row has the two rings. Rows of earlier versions get them by a write of their own.
    pub has_rings: bool,
    /// New with each change of the capacity by an operator. Absent before the first.
    pub capacity_version: Option<String>,
    /// The request that changed the capacity last.
    pub capacity_request_id: Option<String>,
    /// Counts the events after which it may no longer be the turn of a ticket whose turn it was: grants that passed a
    /// ticket ahead, and changes of the capacity.
    pub reordered: u64,
    /// The attribute `changed`. Observers compare [`Semaphore::changed`], of which this is a part.
    pub(crate) last_change: String,
    /// `expireAt`, in epoch seconds. A row whose capacity an operator set never expires.
    pub expire_at: Option<u64>,
}

/// The last ends in the order of their numbers, by slot.
pub type Ring = BTreeMap<String, Spent>;

/// A claim that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spent {
    /// The fencing token of a holder, or the number of a ticket.
    pub number: u64,
    /// The part of the public ids that a holder and its ticket have in common.
    pub id: String,
}

/// The common part of a holder and a ticket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The hash of its lease id.
    pub hash: LeaseIdHash,
    /// The owner's name, for people to read.
    pub owner_name: String,
    /// The principal that it is bound to.
    pub principal: Option<String>,
    /// Changes with each request that was carried out.
    pub version: String,
    /// The time without a change of the version after which the claim is dead, in milliseconds.
    pub lease_ms: u64,
    /// The number of permits that it has, or waits for.
    pub permits: u64,
    /// The last request that was carried out under the lease id.
    pub sequence: Option<Sequence>,
}

/// A holder of permits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The common part.
    pub claim: Claim,
    /// The holder's fencing token.
    pub fencing_token: u64,
    /// The time at which it is dead by the clock, in epoch milliseconds.
    pub stale_at: u64,
    /// The holder's payload.
    pub data: Option<Vec<u8>>,
    /// The outcome of the last acquire: a repeat gets the same answer.
    pub outcome: GrantOutcome,
}

/// A waiter's place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The common part.
    pub claim: Claim,
    /// The ticket's place: lower numbers go first.
    pub number: u64,
    /// The time at which it is dead by the clock, in epoch milliseconds. Absent on a ticket of an earlier version.
    pub stale_at: Option<u64>,
}

/// An end that is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ended {
    /// The part of the public ids that a holder and its ticket have in common.
    pub id: String,
    /// The version that ended.
    pub version: String,
    /// Whether it was evicted as dead. If not, it was released, or broken by an operator.
    pub taken_over: bool,
}

impl Claim {
    /// Whether the claim is bound to no principal, or to this one. True where no principal is given.
    pub(crate) fn admits(&self, principal: Option<&Principal>) -> bool {
        match (principal, &self.principal) {
            (Some(principal), Some(owner)) => owner == principal.as_str(),
            _ => true,
        }
    }

    fn is_at(&self, expected: Option<&Rvn>) -> bool {
        expected.is_none_or(|version| self.version == version.as_str())
    }
}

/// The write that makes a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Change {
    /// The write of the operation itself.
    #[default]
    Main,
    /// The write that creates the row, or takes a tombstone.
    Create(Option<Tombstone>),
    /// The write that renews the caller's own holder, which an acquire or an enqueue finds, or a heartbeat whose
    /// permits are back already.
    Renew,
    /// The write that grants the permits, which an enqueue finds free.
    Grant,
    /// A write that removes the first of the dead, which are too many for one write.
    Bury,
    /// A write that gives the two rings to a row of an earlier version.
    Upgrade,
}

impl crate::step::Change for Change {
    fn prepares(&self) -> bool {
        matches!(self, Self::Bury | Self::Upgrade)
    }
}

impl Found {
    /// The semaphore, if there is one.
    pub(crate) fn semaphore(&self) -> Option<&Semaphore> {
        match self {
            Self::Semaphore(row) => Some(row),
            Self::Free(_) | Self::OtherKind => None,
        }
    }
}

/// The effect of a request on a semaphore, and the answer to the caller. The row is none where there is no semaphore.
pub type Step<T> = crate::Step<Semaphore, Change, Result<T, Refusal>>;

fn granted_entry(step: Step<Grant>) -> Step<Entry> {
    Step { row: step.row, change: step.change, answer: step.answer.map(Entry::Granted) }
}

/// The reason why a request was not carried out. The row that it was refused on is the [`Step`]'s.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// The key is a lock's.
    OtherKind,
    /// There are not enough free permits, a waiter is ahead, or one of the entries named as dead shows a sign of life.
    Held,
    /// The queue is full.
    QueueFull,
    /// The holder or ticket of the lease id has ended, or never existed.
    Lost(LostReason),
    /// A later request was carried out.
    Superseded(Box<Superseded>),
    /// The lease id is right, and bound to another principal.
    Forbidden,
    /// The lease id has another number of permits: this one.
    PermitsMismatch(u64),
    /// The request is for more permits than the capacity, which is this.
    ExceedsCapacity(u64),
    /// The operator saw another version.
    VersionMismatch,
    /// The semaphore does not exist.
    NotFound,
}

/// A grant of permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The public id.
    pub holder_id: String,
    /// The holder.
    pub holder: Holder,
    /// The number of permits in all.
    pub capacity: u64,
    /// The age of the row.
    pub epoch: Epoch,
}

/// The answer to a request for a place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A place in the queue.
    Queued(Ahead),
    /// Nobody was ahead, and the permits were free.
    Granted(Grant),
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    /// The public id.
    pub ticket_id: String,
    /// The ticket.
    pub ticket: Ticket,
    /// The number of tickets before it, dead or alive.
    pub ahead: usize,
    /// The age of the row.
    pub epoch: Epoch,
}

impl Semaphore {
    /// A value that changes whenever permits come back, and whenever the queue or the capacity changes.
    pub fn changed(&self) -> String {
        // A new ticket raises `next_ticket`, every other change renews `last_change`.
        format!("{}.{}", self.last_change, self.next_ticket)
    }

    /// The row's age: each grant and each ticket raises it.
    pub fn epoch(&self) -> Epoch {
        Epoch { token: self.fencing_token, ticket: self.next_ticket, reordered: Some(self.reordered) }
    }

    /// The version of the capacity: new with each change by an operator.
    pub fn capacity_version(&self) -> &str {
        self.capacity_version.as_deref().unwrap_or(INITIAL_CAPACITY)
    }

    /// Whether it is this ticket's turn: the free permits cover it and all tickets ahead. True where the ticket is
    /// gone.
    pub fn is_turn_of(&self, ticket_id: &str) -> bool {
        let Some(mine) = self.queue.get(ticket_id) else { return true };
        self.is_turn(mine.number, mine.claim.permits, &AllDead::default())
    }

    /// Whether the free permits, with those of the dead, cover so many permits and all tickets before this number.
    fn is_turn(&self, number: u64, permits: u64, dead: &AllDead) -> bool {
        self.available + signed(dead.permits()) >= signed(self.wanted_before(number, dead) + permits)
    }

    /// The permits that the tickets before this number want, without those that are named as dead.
    fn wanted_before(&self, number: u64, dead: &AllDead) -> u64 {
        let is_named = |id: &String| dead.tickets().any(|(member, _)| member.ticket_id() == *id);
        let ahead =
            self.queue.iter().filter(|(id, other)| other.number < number && self.is_ahead(other) && !is_named(id));
        ahead.map(|(_, other)| other.claim.permits).sum()
    }

    /// Whether it is the turn of the ticket with which this request comes, as this row shows.
    pub(crate) fn is_turn_for(&self, request: &Acquire, dead: &AllDead) -> bool {
        let mine = self.ticket(&Member::new(&request.key, &request.lease_id));
        mine.is_some_and(|mine| self.is_turn(mine.number, request.permits.get(), dead))
    }

    /// Whether the caller saw that it was its ticket's turn, and nothing has changed that since. Between grants in turn
    /// a turn stays: each leaves what the tickets ahead of it want. A grant that passes a ticket needs a row without
    /// any later grant: whoever was passed has left the permits until now.
    fn is_vouched_for(&self, request: &Acquire) -> bool {
        request.vouches().is_some_and(|epoch| {
            epoch.reordered == Some(self.reordered) && (!request.passes || epoch.token == self.fencing_token)
        })
    }

    /// Whether the ticket is ahead of those behind it: one that wants more than the capacity is ahead of nobody.
    fn is_ahead(&self, ticket: &Ticket) -> bool {
        ticket.claim.permits <= self.capacity
    }

    /// The number of tickets in the queue that are ahead of nobody, without those that are named as dead.
    pub(crate) fn oversized(&self, dead: &AllDead) -> usize {
        let is_named = |id: &String| dead.tickets().any(|(member, _)| member.ticket_id() == *id);
        self.queue.iter().filter(|(id, ticket)| !self.is_ahead(ticket) && !is_named(id)).count()
    }

    /// Whether the end of this member is remembered by one of the rings.
    fn is_spent(&self, me: &Member) -> bool {
        self.spent_holders.values().chain(self.spent_tickets.values()).any(|spent| spent.id == me.id())
    }

    /// Refuses a new claim of a lease id whose end is remembered, or may be forgotten already.
    fn check_new(&self, me: &Member, epoch: Option<Epoch>) -> Result<(), Refusal> {
        if self.is_spent(me) {
            return Err(Refusal::Lost(self.lost(me)));
        }
        match epoch {
            Some(epoch) if epoch.is_outdated(self.epoch()) => Err(Refusal::Held),
            _ => Ok(()),
        }
    }

    /// All entries that the clock says are dead and that a grant of `permits` must remove: the tickets ahead of the
    /// caller, and the holders, those with the most permits first.
    fn dead_by_clock(&self, me: &Member, permits: u64, stale_before: u64) -> AllDead {
        let read = |id: &String, claim: &Claim, number: u64| {
            let (id, version) = (PublicId::new("observed", id).ok()?, Rvn::new("version", claim.version.clone()).ok()?);
            Some(Dead { id, version, permits: claim.permits, number: Some(number) })
        };
        let mine = self.ticket(me).map_or(u64::MAX, |mine| mine.number);
        let is_dead = |ticket: &Ticket| ticket.number < mine && ticket.stale_at.is_some_and(|at| at < stale_before);
        let tickets = self.queue.iter().filter(|(_, ticket)| is_dead(ticket));
        let mut dead: Vec<_> = tickets.filter_map(|(id, ticket)| read(id, &ticket.claim, ticket.number)).collect();
        let permits = permits + self.ticket(me).map_or(0, |_| self.wanted_before(mine, &AllDead::judged(dead.clone())));
        let holders = self.holders.iter().filter(|(_, holder)| holder.stale_at < stale_before);
        let mut holders: Vec<_> = holders.collect();
        holders.sort_by_key(|(id, holder)| (Reverse(holder.claim.permits), *id));
        let mut free = self.available;
        for (id, holder) in holders {
            if free >= signed(permits) {
                break;
            }
            free += signed(holder.claim.permits);
            dead.extend(read(id, &holder.claim, holder.fencing_token));
        }
        AllDead::judged(dead)
    }

    /// Whether the semaphore has a holder, as far as the table knows.
    pub fn state(&self) -> LockState {
        if self.holders.is_empty() { LockState::Released } else { LockState::Held }
    }

    /// The number of permits that holders have.
    pub fn in_use(&self) -> u64 {
        self.holders.values().map(|holder| holder.claim.permits).sum()
    }

    fn holder(&self, me: &Member) -> Option<&Holder> {
        self.holders.get(&me.holder_id())
    }

    fn ticket(&self, me: &Member) -> Option<&Ticket> {
        self.queue.get(&me.ticket_id())
    }

    fn ended(&self, me: &Member) -> Option<&Ended> {
        self.ended.get(me.slot()).filter(|ended| ended.id == me.id())
    }

    pub(crate) fn lost(&self, me: &Member) -> LostReason {
        match self.ended(me) {
            Some(Ended { taken_over: false, .. }) => LostReason::Released,
            _ => LostReason::TakenOver,
        }
    }

    /// Whether all dead entries are in the row, as they were observed.
    fn has(&self, dead: &AllDead, stale_before: Option<u64>) -> bool {
        let is_holder = |(member, dead): (&Member, &Dead)| {
            self.holder(member).is_some_and(|holder| {
                holder.claim.version == dead.version.as_str()
                    && holder.claim.permits == dead.permits
                    && stale_before.is_none_or(|before| holder.stale_at < before)
            })
        };
        let is_ticket = |(member, dead): (&Member, &Dead)| {
            self.ticket(member).is_some_and(|ticket| ticket.claim.version == dead.version.as_str())
        };
        dead.holders().all(is_holder) && dead.tickets().all(is_ticket)
    }

    /// Whether the row has the permits and the place for a grant, without these dead entries.
    fn covers(&self, request: &Acquire, dead: &AllDead, stamp: &Stamp, policy: &Policy) -> bool {
        let is_free = self.available + signed(dead.permits()) >= signed(request.permits.get());
        let has_room = self.holders.len() < MAX_ENTRIES + dead.holders().count();
        let stale_before = request.checked_by_clock.then(|| policy.stale_before(stamp));
        is_free && has_room && self.has(dead, stale_before)
    }

    /// Removes the dead entries, and remembers their ends.
    fn bury(&mut self, dead: &AllDead) {
        for (member, dead) in dead.holders() {
            self.end(member, dead.version.as_str(), true);
        }
        for (member, _) in dead.tickets() {
            if let Some(ticket) = self.queue.remove(&member.ticket_id()) {
                remember(&mut self.spent_tickets, member, ticket.number);
            }
        }
    }

    /// Removes a holder, frees its permits, and remembers its end.
    fn end(&mut self, me: &Member, version: &str, taken_over: bool) {
        if let Some(holder) = self.holders.remove(&me.holder_id()) {
            self.available += signed(holder.claim.permits);
            remember(&mut self.spent_holders, me, holder.fencing_token);
        }
        if let Some(ticket) = self.queue.remove(&me.ticket_id()) {
            remember(&mut self.spent_tickets, me, ticket.number);
        }
        let ended = Ended { id: me.id().to_owned(), version: version.to_owned(), taken_over };
        self.ended.insert(me.slot().to_owned(), ended);
    }

    /// The row with the changes that every write makes.
    fn touched(&self, stamp: &Stamp, policy: &Policy) -> Self {
        let expire_at = self.capacity_version.is_none().then(|| policy.expire_at(stamp, None));
        Self { rvn: stamp.rvn.clone(), expire_at, has_rings: true, ..self.clone() }
    }

    /// A row without holders and tickets.
    pub(crate) fn new(
        key: &LockKey,
        capacity: u64,
        stamp: &Stamp,
        tombstone: Option<&Tombstone>,
        policy: &Policy,
    ) -> Self {
        Self {
            key: key.clone(),
            rvn: stamp.rvn.clone(),
            capacity,
            available: signed(capacity),
            holders: BTreeMap::new(),
            queue: BTreeMap::new(),
            next_ticket: 1,
            fencing_token: tombstone.and_then(|tombstone| tombstone.fencing_token).unwrap_or(stamp.now_us),
            ended: BTreeMap::new(),
            spent_holders: Ring::new(),
            spent_tickets: Ring::new(),
            has_rings: true,
            capacity_version: None,
            capacity_request_id: None,
            reordered: 0,
            last_change: changed(stamp),
            expire_at: Some(policy.expire_at(stamp, None)),
        }
    }

    /// Adds the holder that the request describes.
    fn grant(&mut self, request: &Acquire, outcome: GrantOutcome, stamp: &Stamp) -> Grant {
        let me = Member::new(&request.key, &request.lease_id);
        self.available -= signed(request.permits.get());
        self.fencing_token += 1;
        let holder = Holder { fencing_token: self.fencing_token, ..request.holder(outcome, stamp) };
        self.holders.insert(me.holder_id(), holder.clone());
        self.granted(&me, &holder)
    }

    /// Adds the ticket that the request describes, or renews it.
    fn enqueue(&mut self, request: &Enqueue, stamp: &Stamp) -> Ahead {
        let me = Member::new(&request.key, &request.lease_id);
        let number = self.ticket(&me).map_or(self.next_ticket, |ticket| ticket.number);
        if number == self.next_ticket {
            self.next_ticket += 1;
        }
        self.queue.insert(me.ticket_id(), Ticket { number, ..request.ticket(stamp) });
        self.place(&me, number)
    }

    /// Returns the ticket and the number of tickets ahead. A ticket that wants more than the capacity is ahead of none.
    fn place(&self, me: &Member, number: u64) -> Ahead {
        let ahead = self.queue.values().filter(|ticket| ticket.number < number && self.is_ahead(ticket)).count();
        Ahead { ticket_id: me.ticket_id(), ticket: self.queue[&me.ticket_id()].clone(), ahead, epoch: self.epoch() }
    }

    fn granted(&self, me: &Member, holder: &Holder) -> Grant {
        let (holder_id, holder) = (me.holder_id(), holder.clone());
        Grant { holder_id, holder, capacity: self.capacity, epoch: self.epoch() }
    }

    fn is_countable(&self) -> Result<(), CorruptRecord> {
        self.countable_token().map(drop)
    }

    /// The fencing token that the next grant counts from.
    pub(crate) fn countable_token(&self) -> Result<u64, CorruptRecord> {
        if self.fencing_token > LAST_COUNTABLE_TOKEN {
            return Err(CorruptRecord::new("fencingToken", "used up"));
        }
        Ok(self.fencing_token)
    }
}

impl Acquire {
    /// The holder that the request describes, without its token.
    pub(crate) fn holder(&self, outcome: GrantOutcome, stamp: &Stamp) -> Holder {
        Holder {
            claim: Claim {
                hash: self.lease_id.hash(),
                owner_name: self.owner_name.as_str().to_owned(),
                principal: self.principal.as_ref().map(|principal| principal.as_str().to_owned()),
                version: stamp.rvn.clone(),
                lease_ms: self.lease_duration.as_millis(),
                permits: self.permits.get(),
                sequence: self.sequence.clone(),
            },
            fencing_token: 0,
            stale_at: stamp.now_ms() + self.lease_duration.as_millis(),
            data: self.data.as_ref().map(|data| data.as_bytes().to_vec()),
            outcome,
        }
    }
}

impl Enqueue {
    /// The ticket that the request describes, without its number.
    pub(crate) fn ticket(&self, stamp: &Stamp) -> Ticket {
        let claim = Claim {
            hash: self.lease_id.hash(),
            owner_name: self.owner_name.as_str().to_owned(),
            principal: self.principal.as_ref().map(|principal| principal.as_str().to_owned()),
            version: stamp.rvn.clone(),
            lease_ms: self.lease_duration.as_millis(),
            permits: self.permits.get(),
            sequence: self.sequence.clone(),
        };
        Ticket { claim, number: 0, stale_at: Some(stamp.now_ms() + self.lease_duration.as_millis()) }
    }
}

/// The version of a capacity that no operator has changed.
pub(crate) const INITIAL_CAPACITY: &str = "0";

/// Records the end of a claim. A slot keeps the highest number: whoever has an older one is refused for its epoch.
fn remember(ring: &mut Ring, member: &Member, number: u64) {
    let slot = ring_slot(number);
    if ring.get(slot).is_none_or(|spent| spent.number < number) {
        ring.insert(slot.to_owned(), Spent { number, id: member.id().to_owned() });
    }
}

/// A value of `changed` that no row had. It also differs from every version, which a grant may copy.
pub(crate) fn changed(stamp: &Stamp) -> String {
    format!("c-{}", stamp.rvn)
}

/// Converts a number of permits, which is far below 2^63.
pub(crate) fn signed(permits: u64) -> i64 {
    permits.try_into().unwrap_or(i64::MAX)
}

/// The step of a request that is refused.
pub(crate) fn refused<T>(found: &Found, refusal: Refusal) -> Step<T> {
    unchanged(found, Err(refusal))
}

fn unchanged<T>(found: &Found, answer: Result<T, Refusal>) -> Step<T> {
    let row = match found {
        Found::Semaphore(row) => Some((**row).clone()),
        Found::Free(_) | Found::OtherKind => None,
    };
    Step::kept(row, answer)
}

fn done<T>(row: Semaphore, change: Change, answer: T) -> Step<T> {
    Step::made(row, change, Ok(answer))
}

fn superseded(claim: &Claim, fencing_token: Option<u64>) -> Refusal {
    Refusal::Superseded(Box::new(Superseded {
        sequence: claim.sequence.as_ref().map_or(0, Sequence::number),
        rvn: Some(claim.version.clone()),
        fencing_token,
        lock: None,
    }))
}

/// Grants permits where enough are free, counting those of the named dead, and no living ticket is ahead.
///
/// It is a ticket's turn where the free permits cover it and all tickets ahead. A caller that passes tickets ahead,
/// since they are dead or leave their permits, names the view that shows so: one who lies is unfair, not unsafe, and a
/// late copy changes nothing. A caller without a ticket names all tickets in the queue as dead.
///
/// # Errors
/// `CorruptRecord` where no fencing token is left.
pub fn acquire(found: &Found, request: &Acquire, stamp: &Stamp, policy: &Policy) -> Result<Step<Grant>, CorruptRecord> {
    let row = match found {
        Found::OtherKind => return Ok(refused(found, Refusal::OtherKind)),
        Found::Free(tombstone) => return Ok(acquire_first(found, tombstone.as_ref(), request, stamp, policy)),
        Found::Semaphore(row) => row,
    };
    let me = Member::new(&request.key, &request.lease_id);
    if row.ended(&me).is_some() {
        return Ok(refused(found, Refusal::Lost(row.lost(&me))));
    }
    if let Some(holder) = row.holder(&me) {
        return Ok(acquire_again(found, row, holder, request, stamp, policy));
    }
    let ticket = row.ticket(&me);
    if let Some(ticket) = ticket {
        if !ticket.claim.admits(request.principal.as_ref()) {
            return Ok(refused(found, Refusal::Forbidden));
        }
        if order(request.sequence.as_ref(), ticket.claim.sequence.as_ref()) != Order::New {
            return Ok(refused(found, superseded(&ticket.claim, None)));
        }
        if ticket.claim.permits != request.permits.get() {
            return Ok(refused(found, Refusal::PermitsMismatch(ticket.claim.permits)));
        }
    }
    if request.number.is_some_and(|number| ticket.is_none_or(|ticket| ticket.number != number)) {
        return Ok(refused(found, Refusal::Lost(LostReason::NotQueued)));
    }
    if ticket.is_none()
        && let Err(refusal) = row.check_new(&me, request.epoch)
    {
        return Ok(refused(found, refusal));
    }
    if request.permits.get() > row.capacity {
        return Ok(refused(found, Refusal::ExceedsCapacity(row.capacity)));
    }
    let dead = &dead_of(request, Some(row), stamp, policy);
    let is_first = match ticket {
        Some(_) => row.is_turn_for(request, dead) || row.is_vouched_for(request),
        None => row.queue.len() == dead.tickets().count() + row.oversized(dead),
    };
    if !(is_first && row.covers(request, dead, stamp, policy)) {
        return Ok(refused(found, Refusal::Held));
    }
    row.is_countable()?;

    let mut next = row.touched(stamp, policy);
    if !dead.is_empty() {
        next.last_change = changed(stamp);
    } else if let Some(ticket) = ticket {
        next.last_change.clone_from(&ticket.claim.version);
    }
    next.queue.remove(&me.ticket_id());
    next.bury(dead);
    next.reordered += u64::from(request.passes_tickets());
    let grant = next.grant(request, outcome_with(dead), stamp);
    Ok(done(next, if dead.are_many() { Change::Bury } else { Change::Main }, grant))
}

/// The entries that the request removes: those that it names, or those that the clock says are dead. A request that
/// has no row yet names none.
pub(crate) fn dead_of(request: &Acquire, row: Option<&Semaphore>, stamp: &Stamp, policy: &Policy) -> AllDead {
    match row.filter(|_| request.by_clock) {
        Some(row) => {
            let me = Member::new(&request.key, &request.lease_id);
            row.dead_by_clock(&me, request.permits.get(), policy.stale_before(stamp))
        }
        None => request.dead.clone(),
    }
}

/// The outcome of a grant that removes these entries.
pub(crate) fn outcome_with(dead: &AllDead) -> GrantOutcome {
    if dead.holders().next().is_some() { GrantOutcome::TakenOver } else { GrantOutcome::Reacquired }
}

fn acquire_first(
    found: &Found,
    tombstone: Option<&Tombstone>,
    request: &Acquire,
    stamp: &Stamp,
    policy: &Policy,
) -> Step<Grant> {
    let capacity = request.capacity.get();
    if request.number.is_some() {
        return refused(found, Refusal::Lost(LostReason::NotQueued));
    }
    if request.permits > request.capacity {
        return refused(found, Refusal::ExceedsCapacity(capacity));
    }
    let mut row = Semaphore::new(&request.key, capacity, stamp, tombstone, policy);
    let grant = row.grant(request, GrantOutcome::Created, stamp);
    done(row, Change::Create(tombstone.cloned()), grant)
}

/// The lease id already has permits, and gets none a second time.
fn acquire_again(
    found: &Found,
    row: &Semaphore,
    holder: &Holder,
    request: &Acquire,
    stamp: &Stamp,
    policy: &Policy,
) -> Step<Grant> {
    let me = Member::new(&request.key, &request.lease_id);
    let before = || unchanged(found, Ok(row.granted(&me, holder)));
    if !holder.claim.admits(request.principal.as_ref()) {
        return refused(found, Refusal::Forbidden);
    }
    match order(request.sequence.as_ref(), holder.claim.sequence.as_ref()) {
        Order::Late => return refused(found, superseded(&holder.claim, Some(holder.fencing_token))),
        Order::Repeat => return before(),
        Order::New => {}
    }
    if request.permits.get() != holder.claim.permits {
        return refused(found, Refusal::PermitsMismatch(holder.claim.permits));
    }
    if request.sequence.is_none() {
        return before();
    }
    let next = renewed(row, request, stamp, policy);
    let grant = next.granted(&me, &next.holders[&me.holder_id()]);
    done(next, Change::Renew, grant)
}

/// The row after an acquire by its own holder, which renews the lease.
pub(crate) fn renewed(row: &Semaphore, request: &Acquire, stamp: &Stamp, policy: &Policy) -> Semaphore {
    let me = Member::new(&request.key, &request.lease_id);
    let mut next = row.touched(stamp, policy);
    let holder = renew(&mut next, &me, &renewal(request), stamp);
    next.holders.insert(me.holder_id(), Holder { outcome: GrantOutcome::Renewed, ..holder });
    next
}

/// The heartbeat that an acquire by its own holder is equivalent to.
pub(crate) fn renewal(request: &Acquire) -> Heartbeat {
    Heartbeat {
        key: request.key.clone(),
        lease_id: request.lease_id.clone(),
        sequence: request.sequence.clone(),
        lease_duration: Some(request.lease_duration),
        data: request.data.clone(),
        expected: None,
        fencing_token: None,
        shrink: None,
        principal: request.principal.clone(),
    }
}

/// Renews the holder in `row`.
fn renew(row: &mut Semaphore, me: &Member, request: &Heartbeat, stamp: &Stamp) -> Holder {
    let mut holder = row.holders[&me.holder_id()].clone();
    holder.claim.version.clone_from(&stamp.rvn);
    if let Some(lease) = request.lease_duration {
        holder.claim.lease_ms = lease.as_millis();
    }
    if request.sequence.is_some() {
        holder.claim.sequence.clone_from(&request.sequence);
    }
    holder.stale_at = stamp.now_ms() + holder.claim.lease_ms;
    if let Some(data) = &request.data {
        holder.data = Some(data.as_bytes().to_vec());
    }
    if let Some(shrink) = request.shrink {
        holder.claim.permits = shrink.kept();
        row.available += signed(shrink.back());
        row.last_change = changed(stamp);
    }
    row.holders.insert(me.holder_id(), holder.clone());
    holder
}

/// Renews a holder's lease, and takes back the permits that the holder offers. `issued` are the versions that earlier
/// attempts at the same request may have written.
pub fn heartbeat(found: &Found, request: &Heartbeat, stamp: &Stamp, issued: &[String], policy: &Policy) -> Step<Grant> {
    let me = Member::new(&request.key, &request.lease_id);
    let row = match found {
        Found::OtherKind => return refused(found, Refusal::OtherKind),
        Found::Free(_) => return refused(found, Refusal::Lost(LostReason::Absent)),
        Found::Semaphore(row) => row,
    };
    let Some(holder) = row.holder(&me) else {
        let queued = row.ticket(&me).map(|_| LostReason::Queued);
        return refused(found, Refusal::Lost(queued.unwrap_or_else(|| row.lost(&me))));
    };
    if !holder.claim.admits(request.principal.as_ref()) {
        return refused(found, Refusal::Forbidden);
    }
    if request.fencing_token.is_some_and(|token| token != holder.fencing_token) {
        return refused(found, Refusal::Lost(LostReason::TakenOver));
    }
    let before = || unchanged(found, Ok(row.granted(&me, holder)));
    match order(request.sequence.as_ref(), holder.claim.sequence.as_ref()) {
        Order::Late => return refused(found, superseded(&holder.claim, Some(holder.fencing_token))),
        Order::Repeat => return before(),
        Order::New if issued.contains(&holder.claim.version) => return before(),
        Order::New => {}
    }
    if !holder.claim.is_at(request.expected.as_ref()) {
        return refused(found, Refusal::Lost(LostReason::VersionMismatch));
    }
    let is_shrunk = request.shrink.is_some_and(|shrink| holder.claim.permits != shrink.held());
    let request = if is_shrunk { &shrunk(request) } else { request };
    if request.shrink.is_some_and(|shrink| holder.claim.permits != shrink.held()) {
        return refused(found, Refusal::PermitsMismatch(holder.claim.permits));
    }
    let mut next = row.touched(stamp, policy);
    let holder = renew(&mut next, &me, request, stamp);
    let grant = next.granted(&me, &holder);
    done(next, if is_shrunk { Change::Renew } else { Change::Main }, grant)
}

/// The heartbeat of a holder whose permits an earlier copy of the request returned: without a number it renews the
/// lease, as every heartbeat does.
pub(crate) fn shrunk(request: &Heartbeat) -> Heartbeat {
    let shrink = request.shrink.map(|shrink| if request.sequence.is_none() { shrink.done() } else { shrink });
    Heartbeat { shrink, ..request.clone() }
}

/// Returns permits, or withdraws a ticket.
pub fn release(found: &Found, request: &Release, stamp: &Stamp, policy: &Policy) -> Step<ReleaseOutcome> {
    let me = Member::new(&request.key, &request.lease_id);
    let row = match found {
        Found::OtherKind => return refused(found, Refusal::OtherKind),
        Found::Free(_) => return unchanged(found, Ok(ReleaseOutcome::Absent)),
        Found::Semaphore(row) => row,
    };
    let Some(claim) =
        row.holder(&me).map(|holder| &holder.claim).or_else(|| row.ticket(&me).map(|ticket| &ticket.claim))
    else {
        return match row.lost(&me) {
            LostReason::Released => unchanged(found, Ok(ReleaseOutcome::Replayed)),
            reason => refused(found, Refusal::Lost(reason)),
        };
    };
    if !claim.admits(request.principal.as_ref()) {
        return refused(found, Refusal::Forbidden);
    }
    if !claim.is_at(request.expected.as_ref()) {
        return refused(found, Refusal::Lost(LostReason::VersionMismatch));
    }
    let mut next = row.touched(stamp, policy);
    next.last_change = changed(stamp);
    next.end(&me, &claim.version, false);
    done(next, Change::Main, ReleaseOutcome::Released)
}

/// The operator's removal of a holder or a ticket, conditional on the version that the operator saw.
pub fn break_entry(found: &Found, request: &Break, stamp: &Stamp, policy: &Policy) -> Step<ReleaseOutcome> {
    let row = match found {
        Found::OtherKind => return refused(found, Refusal::OtherKind),
        Found::Free(_) => return refused(found, Refusal::VersionMismatch),
        Found::Semaphore(row) => row,
    };
    let claim = match &request.id {
        PublicId::Holder(member) => row.holder(member).map(|holder| &holder.claim),
        PublicId::Ticket(member) => row.ticket(member).map(|ticket| &ticket.claim),
    };
    let (member, seen) = (request.id.member(), request.seen.as_str());
    if claim.is_none_or(|claim| claim.version != seen) {
        let is_replay = row.ended(member).is_some_and(|ended| ended.version == seen);
        return if is_replay {
            unchanged(found, Ok(ReleaseOutcome::Replayed))
        } else {
            refused(found, Refusal::VersionMismatch)
        };
    }
    let mut next = row.touched(stamp, policy);
    next.last_change = changed(stamp);
    next.end(member, seen, false);
    done(next, Change::Main, ReleaseOutcome::Released)
}

/// Takes a place in the queue, or renews it, and removes the named dead. Where nobody waits and the permits are free,
/// grants them at once. A waiter that needs the permits of more dead
/// holders than one request may name removes them so, with one request after the other. `issued` are the versions that
/// earlier attempts at the same request may have written.
///
/// # Errors
/// `CorruptRecord` where no fencing token is left.
pub fn enqueue(
    found: &Found,
    request: &Enqueue,
    stamp: &Stamp,
    issued: &[String],
    policy: &Policy,
) -> Result<Step<Entry>, CorruptRecord> {
    let ask = Acquire { number: request.number, ..request.ask() };
    let row = match found {
        Found::OtherKind => return Ok(refused(found, Refusal::OtherKind)),
        Found::Free(tombstone) => {
            return Ok(granted_entry(acquire_first(found, tombstone.as_ref(), &ask, stamp, policy)));
        }
        Found::Semaphore(row) => row,
    };
    let me = Member::new(&request.key, &request.lease_id);
    if row.ended(&me).is_some() {
        return Ok(refused(found, Refusal::Lost(row.lost(&me))));
    }
    if let Some(holder) = row.holder(&me) {
        if issued.contains(&holder.claim.version) {
            return Ok(unchanged(found, Ok(Entry::Granted(row.granted(&me, holder)))));
        }
        return Ok(granted_entry(acquire_again(found, row, holder, &ask, stamp, policy)));
    }
    let ticket = row.ticket(&me);
    if let Some(ticket) = ticket {
        if !ticket.claim.admits(request.principal.as_ref()) {
            return Ok(refused(found, Refusal::Forbidden));
        }
        let before = || Ok(unchanged(found, Ok(Entry::Queued(row.place(&me, ticket.number)))));
        match order(request.sequence.as_ref(), ticket.claim.sequence.as_ref()) {
            Order::Late => return Ok(refused(found, superseded(&ticket.claim, None))),
            Order::Repeat => return before(),
            Order::New if issued.contains(&ticket.claim.version) => return before(),
            Order::New => {}
        }
        if ticket.claim.permits != request.permits.get() {
            return Ok(refused(found, Refusal::PermitsMismatch(ticket.claim.permits)));
        }
    }
    if request.number.is_some_and(|number| ticket.is_none_or(|ticket| ticket.number != number)) {
        return Ok(refused(found, Refusal::Lost(LostReason::NotQueued)));
    }
    if ticket.is_none()
        && let Err(refusal) = row.check_new(&me, request.epoch)
    {
        return Ok(refused(found, refusal));
    }
    if request.permits.get() > row.capacity {
        return Ok(refused(found, Refusal::ExceedsCapacity(row.capacity)));
    }
    let dead = &request.dead;
    let stale_before = request.checked_by_clock.then(|| policy.stale_before(stamp));
    if !row.has(dead, stale_before) {
        return Ok(refused(found, Refusal::Held));
    }
    let is_alone = ticket.is_none() && row.queue.len() == dead.tickets().count();
    let mut next = row.touched(stamp, policy);
    if !dead.is_empty() {
        next.last_change = changed(stamp);
    }
    next.bury(dead);
    if is_alone && row.covers(&ask, dead, stamp, policy) {
        row.is_countable()?;
        let grant = next.grant(&ask, outcome_with(dead), stamp);
        return Ok(done(next, Change::Grant, Entry::Granted(grant)));
    }
    if ticket.is_none() && row.queue.len() >= MAX_ENTRIES + dead.tickets().count() {
        return Ok(refused(found, Refusal::QueueFull));
    }
    let place = next.enqueue(request, stamp);
    Ok(done(next, Change::Main, Entry::Queued(place)))
}

/// The operator's change of the capacity. Granted permits stay granted: where they exceed the new capacity, no permit
/// is granted until enough came back. The answer is the number of free permits, below zero in that case.
pub fn set_capacity(found: &Found, request: &SetCapacity, stamp: &Stamp, policy: &Policy) -> Step<i64> {
    let row = match found {
        Found::OtherKind => return refused(found, Refusal::OtherKind),
        Found::Free(_) => return refused(found, Refusal::NotFound),
        Found::Semaphore(row) => row,
    };
    let capacity = request.capacity.get();
    if request.request_id.is_some() && request.request_id == row.capacity_request_id {
        return unchanged(found, Ok(row.available));
    }
    let is_seen = request.expected_version.as_ref().is_none_or(|version| version.as_str() == row.capacity_version());
    if row.capacity != request.expected.get() || !is_seen {
        let is_repeat = request.request_id.is_none() && row.capacity == capacity;
        return if is_repeat { unchanged(found, Ok(row.available)) } else { refused(found, Refusal::VersionMismatch) };
    }
    let row = Semaphore { capacity_version: Some(stamp.rvn.clone()), ..(**row).clone() };
    let mut next = row.touched(stamp, policy);
    next.capacity_request_id.clone_from(&request.request_id);
    next.available += signed(capacity) - signed(row.capacity);
    next.capacity = capacity;
    next.reordered += 1;
    next.last_change = changed(stamp);
    let available = next.available;
    done(next, Change::Main, available)
}
