//! The clauses of the protocol of semaphores that a test can drop, to show that each is needed.

use leasehold_protocol::semaphore::lifecycle;
use leasehold_protocol::semaphore::{
    Acquire, Enqueue, Entry, Found, Grant, Heartbeat, Refusal, Release, Semaphore, SetCapacity, Step,
};
use leasehold_protocol::{Policy, ReleaseOutcome, Stamp};

use super::world::LeaseIdOf;

/// A clause of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// A dead holder must have the version that was seen.
    DeadHolderVersion,
    /// A dead ticket must have the version that was seen.
    DeadTicketVersion,
    /// The row remembers the lease ids that were released.
    ReleasedMemory,
    /// The row remembers the lease ids whose holders were evicted.
    EvictedMemory,
    /// The row remembers the holders that ended, by their tokens.
    SpentHolders,
    /// The row remembers the tickets that ended, by their numbers.
    SpentTickets,
    /// A new claim is refused where the row may have forgotten its end.
    Epoch,
    /// The caller's half: the next request names the age of the row that the refusal showed.
    FreshEpoch,
    /// A waiter's request for its permits is carried out only where its ticket is in the queue.
    AskNumber,
    /// A renewal of a ticket is carried out only where the ticket is in the queue.
    RenewalNumber,
    /// A heartbeat is carried out only where the holder has the token of the caller's grant.
    HeartbeatToken,
    /// An acquire by the caller's own ticket is carried out only where its number is higher.
    AcquireSequence,
    /// A renewal of a ticket is carried out only where its number is higher.
    EnqueueSequence,
    /// A heartbeat is carried out only where its number is higher.
    HeartbeatSequence,
    /// A repeat of an acquire has its first answer.
    FirstAnswer,
    /// A holder is granted no permits a second time.
    OwnHolder,
    /// A renewed ticket keeps its number.
    TicketNumber,
    /// A caller without a ticket is refused while a living caller waits.
    NobodyAhead,
    /// A waiter's request is granted only in its turn, or where the view that shows the turn still holds.
    Turn,
    /// A request that passes a ticket is granted only where no other grant was made since the view.
    PassBeforeGrants,
    /// A grant that passes a ticket ends the views that show a turn.
    ReorderedByPass,
    /// A change of the capacity ends the views that show a turn.
    ReorderedByCapacity,
    /// A grant takes free permits only.
    Available,
    /// A grant counts the token.
    Token,
    /// A change of the capacity names the one that the operator saw.
    ExpectedCapacity,
    /// A change of the capacity names the version of the capacity that the operator saw, and its own id.
    CapacityVersion,
    /// A write that frees permits changes what watchers compare.
    Changed,
    /// The caller's half: a caller with a ticket asks only when all tickets ahead are gone or dead.
    InTurn,
    /// The caller's half: a caller with a ticket judges by a view that shows the ticket.
    ViewAfterTicket,
    /// The caller's half: a shorter lease counts from its sending.
    Cap,
    /// The caller's half: a holder that gives permits back relies on the rest from the sending.
    KeepCap,
    /// The caller's half: a lease counts from before its request was first sent.
    CountFromFirst,
    /// The caller's half: a holder counts from before it sent, not from the answer.
    CountFromSending,
    /// The caller's half: an observer counts from after the answer, not from before it sent.
    ObserveFromAnswer,
    /// The caller's half: an observer waits the lease and a thousandth of it.
    Thousandth,
}

impl Clause {
    /// All clauses.
    pub const ALL: [Self; 35] = [
        Self::DeadHolderVersion,
        Self::DeadTicketVersion,
        Self::ReleasedMemory,
        Self::EvictedMemory,
        Self::SpentHolders,
        Self::SpentTickets,
        Self::Epoch,
        Self::FreshEpoch,
        Self::AskNumber,
        Self::RenewalNumber,
        Self::HeartbeatToken,
        Self::AcquireSequence,
        Self::EnqueueSequence,
        Self::HeartbeatSequence,
        Self::FirstAnswer,
        Self::OwnHolder,
        Self::TicketNumber,
        Self::NobodyAhead,
        Self::Turn,
        Self::PassBeforeGrants,
        Self::ReorderedByPass,
        Self::ReorderedByCapacity,
        Self::Available,
        Self::Token,
        Self::ExpectedCapacity,
        Self::CapacityVersion,
        Self::Changed,
        Self::InTurn,
        Self::ViewAfterTicket,
        Self::Cap,
        Self::KeepCap,
        Self::CountFromFirst,
        Self::CountFromSending,
        Self::ObserveFromAnswer,
        Self::Thousandth,
    ];
}

/// Far more permits than any capacity.
const PLENTY: i64 = 1000;

/// A request's effect: the row afterwards, whether it was written, and the answer.
pub(super) type Effect<T> = (Option<Semaphore>, bool, Result<T, Refusal>);

fn effect<T>(step: Step<T>) -> Effect<T> {
    (step.row, step.change.is_some(), step.answer)
}

fn found(row: Option<Semaphore>) -> Found {
    row.map_or(Found::Free(None), |row| Found::Semaphore(Box::new(row)))
}

/// The life cycle, with one clause dropped or none.
pub(super) struct LifeCycle<'a> {
    pub(super) without: Option<Clause>,
    pub(super) policy: &'a Policy,
}

impl LifeCycle<'_> {
    fn lacks(&self, clause: Clause) -> bool {
        self.without == Some(clause)
    }

    /// The row that the life cycle gets to see.
    fn seen(&self, row: Option<&Semaphore>) -> Option<Semaphore> {
        let mut row = row?.clone();
        let forgets = |taken_over| self.lacks(if taken_over { Clause::EvictedMemory } else { Clause::ReleasedMemory });
        let forgotten = |id: &String| row.ended.values().any(|ended| ended.id == *id && forgets(ended.taken_over));
        let spent: Vec<_> = row.spent_holders.values().chain(row.spent_tickets.values()).collect();
        let spent: Vec<_> = spent.into_iter().map(|spent| spent.id.clone()).filter(forgotten).collect();
        row.spent_holders.retain(|_, it| !spent.contains(&it.id));
        row.spent_tickets.retain(|_, it| !spent.contains(&it.id));
        row.ended.retain(|_, ended| !forgets(ended.taken_over));
        if self.lacks(Clause::SpentHolders) {
            row.spent_holders.clear();
        }
        if self.lacks(Clause::SpentTickets) {
            row.spent_tickets.clear();
        }
        Some(row)
    }

    pub(super) fn acquire(
        &self,
        row: Option<&Semaphore>,
        request: &Acquire,
        me: &LeaseIdOf,
        stamp: &Stamp,
    ) -> Effect<Grant> {
        let mut request = request.clone();
        let mut seen = self.seen(row);
        if self.lacks(Clause::AcquireSequence) {
            request.sequence = None;
        }
        if self.lacks(Clause::Epoch) {
            request.epoch = None;
        }
        if self.lacks(Clause::AskNumber) && request.number.is_some() {
            // The epoch is that of the ticket's turn.
            (request.number, request.epoch, request.passes) = (None, None, false);
        }
        if let (true, Some(row)) = (self.lacks(Clause::Turn), row) {
            (request.epoch, request.passes) = (Some(row.epoch()), false);
        }
        if self.lacks(Clause::PassBeforeGrants) {
            request.passes = false;
        }
        let mut hidden = std::collections::BTreeMap::new();
        if let Some(seen) = &mut seen {
            if self.lacks(Clause::OwnHolder) {
                seen.holders.remove(&me.holder_id);
            }
            if self.lacks(Clause::Available) {
                seen.available += PLENTY;
            }
            if self.lacks(Clause::NobodyAhead) && !seen.queue.contains_key(&me.ticket_id) {
                hidden = std::mem::take(&mut seen.queue);
            }
        }
        let step = lifecycle::acquire(&found(seen), &request, stamp, self.policy).expect("tokens are small");
        let (next, is_written, mut answer) = effect(step);
        if !is_written {
            if self.lacks(Clause::FirstAnswer) && answer.is_ok() {
                answer = Err(Refusal::Held);
            }
            return (row.cloned(), false, answer);
        }
        let mut next = next.expect("it was written");
        next.queue.append(&mut hidden);
        if self.lacks(Clause::Available) && row.is_some() {
            next.available -= PLENTY;
        }
        if let (true, Some(row)) = (self.lacks(Clause::ReorderedByPass), row) {
            next.reordered = row.reordered;
        }
        if let (true, Some(row)) = (self.lacks(Clause::Token), row) {
            next.fencing_token = row.fencing_token;
        }
        (Some(next), true, answer)
    }

    pub(super) fn heartbeat(&self, row: Option<&Semaphore>, request: &Heartbeat, stamp: &Stamp) -> Effect<Grant> {
        let mut request = request.clone();
        if self.lacks(Clause::HeartbeatSequence) {
            request.sequence = None;
        }
        if self.lacks(Clause::HeartbeatToken) {
            request.fencing_token = None;
        }
        effect(lifecycle::heartbeat(&found(self.seen(row)), &request, stamp, &[], self.policy))
    }

    pub(super) fn release(&self, row: Option<&Semaphore>, request: &Release, stamp: &Stamp) -> Effect<ReleaseOutcome> {
        effect(lifecycle::release(&found(self.seen(row)), request, stamp, self.policy))
    }

    pub(super) fn enqueue(
        &self,
        row: Option<&Semaphore>,
        request: &Enqueue,
        me: &LeaseIdOf,
        stamp: &Stamp,
    ) -> Effect<Entry> {
        let mut request = request.clone();
        if self.lacks(Clause::EnqueueSequence) {
            request.sequence = None;
        }
        if self.lacks(Clause::Epoch) {
            request.epoch = None;
        }
        if self.lacks(Clause::RenewalNumber) {
            request.number = None;
        }
        let step = lifecycle::enqueue(&found(self.seen(row)), &request, stamp, &[], self.policy);
        let step = step.expect("tokens are small");
        let (mut next, is_written, mut answer) = effect(step);
        let had_ticket = row.is_some_and(|row| row.queue.contains_key(&me.ticket_id));
        if let (true, true, Some(next), Ok(Entry::Queued(place))) =
            (self.lacks(Clause::TicketNumber), had_ticket, &mut next, &mut answer)
            && is_written
        {
            place.ticket.number = next.next_ticket;
            next.next_ticket += 1;
            next.queue.insert(me.ticket_id.clone(), place.ticket.clone());
        }
        (next, is_written, answer)
    }

    pub(super) fn set_capacity(&self, row: Option<&Semaphore>, request: &SetCapacity, stamp: &Stamp) -> Effect<i64> {
        let (mut seen, mut request) = (self.seen(row), request.clone());
        let expected = request.expected.get();
        if self.lacks(Clause::ExpectedCapacity) || self.lacks(Clause::CapacityVersion) {
            (request.expected_version, request.request_id) = (None, None);
        }
        if let (true, Some(seen)) = (self.lacks(Clause::ExpectedCapacity), &mut seen) {
            // The expression counts with the capacity that the operator names.
            seen.capacity = expected;
        }
        let (mut next, is_written, answer) =
            effect(lifecycle::set_capacity(&found(seen), &request, stamp, self.policy));
        if let (true, Some(next), Some(row)) = (self.lacks(Clause::ReorderedByCapacity), &mut next, row) {
            next.reordered = row.reordered;
        }
        (next, is_written, answer)
    }

    /// Whether the write leaves what watchers compare as it was.
    pub(super) fn hides_changes(&self) -> bool {
        self.lacks(Clause::Changed)
    }
}
