//! # A model of semaphores, explored exhaustively
//!
//! The model has one row, several callers with permits and tickets, and an operator who changes the capacity. The
//! network loses, delays and duplicates every attempt at a request. Every write goes through the pure life cycle itself
//! ([`leasehold_protocol::semaphore::lifecycle`]). The callers follow the rules of docs/client.md: they number their
//! requests, repeat an unanswered one, wait in the queue, and name only entries that they saw unchanged for their
//! leases.
//!
//! A [`Clause`] is dropped around the life cycle, or in the callers. Without any one of them the checker finds a trace
//! that breaks a [`Promise`].

mod bounds;
mod caller;
mod clause;
pub(crate) mod world;

use stateright::{CheckerBuilder, Model, Property};

pub use self::bounds::Bounds;
pub use self::caller::{Proof, Request};
pub use self::clause::Clause;
use self::world::Event;
pub use self::world::{Action, Promise, World};
use crate::threads;

const TAKEN_OVER: &str = "a dead holder is taken over";
const PASSED: &str = "a dead ticket is passed";
const REMOVED: &str = "a waiter removes a dead holder";
const GIVEN_BACK: &str = "permits are given back";
const REFUSED: &str = "a copy of a request is refused for its age or its end";
const REPEATED: &str = "a request is repeated";

/// The protocol of semaphores within bounds, with one clause dropped or none.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The bounds of the exploration.
    pub bounds: Bounds,
    /// The clause that is missing.
    pub without: Option<Clause>,
}

impl Protocol {
    /// Returns a checker that keeps 8 bytes for each state.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads())
    }

    /// The names of the events that an exploration must contain. Without them its bounds are too small to prove
    /// anything.
    pub fn must_see(&self) -> Vec<&'static str> {
        let Bounds { attempts, queue, gives_back, end, leases, patience, crowds, .. } = self.bounds;
        let dies = end >= leases[0];
        let events = [
            (TAKEN_OVER, dies),
            (PASSED, dies && queue || patience > 0),
            (REMOVED, dies && queue),
            (GIVEN_BACK, gives_back),
            (REPEATED, attempts > 1),
            (REFUSED, crowds > 0),
        ];
        events.into_iter().filter(|(_, is_due)| *is_due).map(|(name, _)| name).collect()
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        world.after(self, &action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("permits stay within the capacity", |_, world: &World| {
                world.keeps(Promise::WithinCapacity)
            }),
            Property::always("permits add up", |_, world: &World| world.keeps(Promise::PermitsAddUp)),
            Property::always("tokens rise", |_, world: &World| world.keeps(Promise::TokensRise)),
            Property::always("a claim that ended stays ended", |_, world: &World| world.keeps(Promise::EndsStay)),
            Property::always("a capacity stays as it was set", |_, world: &World| world.keeps(Promise::CapacityStays)),
            Property::always("who comes first goes first", |_, world: &World| world.keeps(Promise::FirstComeFirst)),
            Property::always("lost answers resolve", |_, world: &World| world.keeps(Promise::AnswersResolve)),
            Property::always("who heartbeats keeps the permits", |_, world: &World| world.keeps(Promise::HoldersKeep)),
            Property::always("watchers wake", |_, world: &World| world.keeps(Promise::WatchersWake)),
            Property::always("everyone can go on", |_, world: &World| world.keeps(Promise::NobodyIsStuck)),
            Property::sometimes(TAKEN_OVER, |_, world: &World| world.has_seen(Event::TakenOver)),
            Property::sometimes(PASSED, |_, world: &World| world.has_seen(Event::TicketPassed)),
            Property::sometimes(REMOVED, |_, world: &World| world.has_seen(Event::RemovedByTicket)),
            Property::sometimes(GIVEN_BACK, |_, world: &World| world.has_seen(Event::GivenBack)),
            Property::sometimes(REFUSED, |_, world: &World| world.has_seen(Event::CopyRefused)),
            Property::sometimes(REPEATED, |_, world: &World| world.has_seen(Event::Repeated)),
        ]
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::{check_breaks, check_holds};

    #[test]
    fn small_bounds_of_semaphores_break_no_promise() {
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
        dead_holders_need_their_version: DeadHolderVersion breaks "who heartbeats keeps the permits",
        dead_tickets_need_their_version: DeadTicketVersion breaks "who comes first goes first",
        released_lease_ids_need_a_memory: ReleasedMemory breaks "a claim that ended stays ended",
        evicted_lease_ids_need_a_memory: EvictedMemory breaks "a claim that ended stays ended",
        holders_that_ended_need_a_ring: SpentHolders breaks "a claim that ended stays ended",
        tickets_that_ended_need_a_ring: SpentTickets breaks "a claim that ended stays ended",
        new_claims_need_an_epoch: Epoch breaks "a claim that ended stays ended",
        refused_callers_need_a_fresh_epoch: FreshEpoch breaks "everyone can go on",
        asks_of_waiters_need_their_ticket: AskNumber breaks "a claim that ended stays ended",
        renewals_of_tickets_need_their_ticket: RenewalNumber breaks "a claim that ended stays ended",
        heartbeats_of_holders_need_their_token: HeartbeatToken breaks "a claim that ended stays ended",
        acquires_with_a_ticket_need_a_sequence: AcquireSequence breaks "who comes first goes first",
        enqueues_need_a_sequence: EnqueueSequence breaks "lost answers resolve",
        heartbeats_of_holders_need_a_sequence: HeartbeatSequence breaks "who heartbeats keeps the permits",
        repeated_acquires_need_their_first_answer: FirstAnswer breaks "lost answers resolve",
        holders_need_to_be_known: OwnHolder breaks "permits add up",
        renewed_tickets_need_their_number: TicketNumber breaks "who comes first goes first",
        waiters_need_precedence: NobodyAhead breaks "who comes first goes first",
        grants_of_waiters_need_their_turn: Turn breaks "who comes first goes first",
        late_passes_need_a_row_without_grants: PassBeforeGrants breaks "who comes first goes first",
        passes_need_to_be_counted: ReorderedByPass breaks "who comes first goes first",
        new_capacities_need_to_be_counted: ReorderedByCapacity breaks "who comes first goes first",
        grants_need_free_permits: Available breaks "permits stay within the capacity",
        grants_need_a_token: Token breaks "tokens rise",
        capacities_need_the_expected_one: ExpectedCapacity breaks "permits add up",
        capacities_need_a_version: CapacityVersion breaks "a capacity stays as it was set",
        watchers_need_a_change: Changed breaks "watchers wake",
        waiters_need_their_turn: InTurn breaks "who comes first goes first",
        waiters_need_a_view_of_their_ticket: ViewAfterTicket breaks "who comes first goes first",
        shorter_leases_of_holders_need_a_cap: Cap breaks "who heartbeats keeps the permits",
        permits_given_back_need_a_cap: KeepCap breaks "permits stay within the capacity",
        leases_of_holders_need_the_first_sending: CountFromFirst breaks "who heartbeats keeps the permits",
        leases_of_holders_need_the_sending: CountFromSending breaks "who heartbeats keeps the permits",
        observers_of_holders_need_the_answer: ObserveFromAnswer breaks "who heartbeats keeps the permits",
        observers_of_holders_need_a_thousandth: Thousandth breaks "who heartbeats keeps the permits",
    }
}
