//! # A model of the lock protocol, explored exhaustively
//!
//! The model has one row, several callers, an operator who breaks the lock, and a Java client that takes the row over
//! in place. The network loses, delays and duplicates every attempt at a request. Every write goes through the **pure
//! life cycle** of `leasehold-protocol` itself ([`leasehold_protocol::lifecycle`]); the model repeats none of it. The
//! callers follow the rules for clients: they number their requests, repeat an unanswered one, and count a lease from
//! before its first sending. They never rely on more than the shortest lease under way.
//!
//! ```text
//! lib      the properties, and the checker's view of the model
//! world    the state, and its transitions
//! caller   the rules that a caller follows
//! clause   the clauses of the protocol, each of which a test takes away
//! bounds   the bounds of an exploration
//! symmetry the states that count as one
//! permits  the same for semaphores
//! several  the same for several keys at once
//! regions  the same for a table in several regions, for the lock and for permits
//! deals    the same for transactions
//! ```
//!
//! A [`Clause`] is dropped around the life cycle, never in it. Without any one of the clauses the checker finds a trace
//! that breaks a [`Promise`].

#![allow(clippy::expect_used, clippy::unreachable, reason = "what the model itself wrote is as it wrote it")]

/// Makes a test of each clause, with the `check_broken` of its model, and one that no clause is left out.
#[cfg(test)]
macro_rules! clauses {
    ($($test:ident: $clause:ident breaks $promise:literal),+ $(,)?) => {
        $(#[test]
        fn $test() {
            check_broken(Clause::$clause, $promise);
        })+
        #[test]
        fn every_clause_has_a_test() {
            assert_eq!([$(Clause::$clause),+], Clause::ALL);
        }
    };
}

mod bounds;
mod caller;
mod clause;
pub mod deals;
pub mod holder;
pub mod permits;
pub mod regions;
pub mod several;
mod symmetry;
mod world;

use std::fmt::Debug;
use std::hash::Hash;
use std::thread::available_parallelism;

use stateright::{Checker, CheckerBuilder, Expectation, Model, Property};

pub use crate::bounds::{Bounds, Runs};
pub use crate::clause::Clause;
use crate::world::Event;
pub use crate::world::{Action, Promise, World};

const TAKEN_OVER: &str = "a lock is taken over";
const REPEATED: &str = "a request is repeated";
const WANTED: &str = "a holder learns that somebody waits";
const REFUSED_A_RUN: &str = "a run is refused or not wanted";

/// The protocol within bounds, with one clause dropped or none.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The bounds of the exploration.
    pub bounds: Bounds,
    /// The clause that is missing.
    pub without: Option<Clause>,
}

impl Protocol {
    /// Returns a checker that keeps 8 bytes for each state, and counts states as one that differ in the callers' names
    /// only.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads()).symmetry_fn(symmetry::representative)
    }

    /// The names of the events that an exploration must contain. Without them its bounds are too small to prove
    /// anything.
    pub fn must_see(&self) -> Vec<&'static str> {
        let Bounds { attempts, once, wants, .. } = self.bounds;
        // No caller takes over an occurrence that counts as done from its acquire on.
        let taken_over = once != Some(Runs::AtMostOnce);
        let seen =
            [(TAKEN_OVER, taken_over), (REPEATED, attempts > 1), (WANTED, wants > 0), (REFUSED_A_RUN, once.is_some())];
        seen.into_iter().filter(|(_, is_due)| *is_due).map(|(name, _)| name).collect()
    }
}

/// The number of threads of an exploration.
fn threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// The failures of an exploration: each broken promise with its trace, and each event that it must contain and does
/// not.
pub fn failures<M: Model>(checker: &impl Checker<M>, must_see: &[&'static str]) -> Vec<String>
where
    M::State: Clone + Debug + Hash + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let discoveries = checker.discoveries();
    let properties = checker.model().properties();
    let is_promise = |name: &str| properties.iter().any(|it| it.name == name && it.expectation == Expectation::Always);
    let broken = discoveries.iter().filter(|(name, _)| is_promise(name));
    let broken = broken.map(|(promise, trace)| format!("Broken: {promise}\n{trace}"));
    let missing = must_see.iter().filter(|event| !discoveries.contains_key(**event));
    broken.chain(missing.map(|event| format!("Too small: nowhere {event}"))).collect()
}

/// Checks that an exploration within these bounds breaks no promise, and contains what it must.
#[cfg(test)]
fn check_holds<M>(explored: CheckerBuilder<M>, must_see: &[&'static str], bounds: &impl Debug, name: &str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = explored.spawn_dfs().join();
    assert!(checker.is_done());
    println!("{name}: {} states", checker.unique_state_count());
    assert_eq!(failures(&checker, must_see), [""; 0], "{bounds:?}");
}

/// Checks that the checker finds a trace that breaks this promise, without this clause.
#[cfg(test)]
fn check_breaks<M>(explored: CheckerBuilder<M>, promise: &'static str, without: impl Debug)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let found = stateright::HasDiscoveries::AnyOf([promise].into());
    let checker = explored.finish_when(found).spawn_bfs().join();
    let trace = checker.discovery(promise);
    assert!(trace.is_some(), "{promise}, without {without:?} as well: {} states", checker.unique_state_count());
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
        vec![
            Property::always("at most one believes", |_, world: &World| world.keeps(Promise::OneBelieves)),
            Property::always("tokens rise", |_, world: &World| world.keeps(Promise::TokensRise)),
            Property::always("versions never return", |_, world: &World| world.keeps(Promise::VersionsAreNew)),
            Property::always("acknowledged payloads stay", |_, world: &World| world.keeps(Promise::PayloadsStay)),
            Property::always("lost answers resolve", |_, world: &World| world.keeps(Promise::AnswersResolve)),
            Property::always("who heartbeats keeps the lock", |_, world: &World| world.keeps(Promise::HoldersKeep)),
            Property::always("an occurrence ends", |_, world: &World| world.keeps(Promise::OccurrencesEnd)),
            Property::always("completions are own", |_, world: &World| world.keeps(Promise::CompletionsAreOwn)),
            Property::always("everyone can go on", |_, world: &World| world.keeps(Promise::NobodyIsStuck)),
            Property::always("marks are true", |_, world: &World| world.keeps(Promise::MarksAreTrue)),
            Property::always("a want only marks", |_, world: &World| world.keeps(Promise::WantsOnlyMark)),
            Property::sometimes(WANTED, |_, world: &World| world.saw(Event::Wanted)),
            Property::sometimes(TAKEN_OVER, |_, world: &World| world.saw(Event::TakenOver)),
            Property::sometimes(REPEATED, |_, world: &World| world.saw(Event::Repeated)),
            Property::sometimes(REFUSED_A_RUN, |_, world: &World| world.saw(Event::RefusedARun)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use stateright::{Checker, HasDiscoveries};

    use super::*;

    #[test]
    fn small_bounds_break_no_promise() {
        for bounds in Bounds::small() {
            let protocol = Protocol { bounds, without: None };
            let must_see = protocol.must_see();
            check_holds(protocol.explored(), &must_see, &bounds, bounds.name);
        }
    }

    /// Checks that the checker finds a trace that breaks this promise where the clause is missing.
    fn check_broken(clause: Clause, promise: &'static str) {
        let protocol = Protocol { bounds: clause.bounds(), without: Some(clause) };
        let found = HasDiscoveries::AnyOf([promise].into());
        let checker = protocol.explored().finish_when(found).spawn_dfs().join();
        let trace = checker.discovery(promise);
        assert!(trace.is_some(), "{promise}, without {clause:?} as well: {} states", checker.unique_state_count());
    }

    clauses! {
        heartbeats_need_a_sequence: HeartbeatSequence breaks "acknowledged payloads stay",
        heartbeats_need_the_token_of_their_grant: HeartbeatToken breaks "acknowledged payloads stay",
        acquires_need_a_sequence: AcquireSequence breaks "versions never return",
        repeats_need_their_first_answer: FirstAnswer breaks "lost answers resolve",
        first_outcomes_need_a_copy: PreviousOwner breaks "lost answers resolve",
        ends_need_a_memory: PreviousHash breaks "lost answers resolve",
        deletions_need_a_tombstone: Tombstone breaks "tokens rise",
        ends_need_a_new_version: EndsChangeVersion breaks "at most one believes",
        lease_ids_need_disowning: Disowning breaks "at most one believes",
        lease_ids_need_to_end: LeaseIdsEnd breaks "versions never return",
        takeovers_need_the_observed_version: ObservedVersion breaks "at most one believes",
        clocks_need_a_skew: Skew breaks "at most one believes",
        shorter_leases_need_a_cap: Cap breaks "at most one believes",
        leases_need_to_count_from_the_first_sending: CountFromFirst breaks "at most one believes",
        leases_need_to_count_from_the_sending: CountFromSending breaks "at most one believes",
        observers_need_to_count_from_the_answer: ObserveFromAnswer breaks "at most one believes",
        observers_need_a_thousandth_more: Thousandth breaks "at most one believes",
        unanswered_acquires_need_a_repeat: RepeatBeforeNext breaks "lost answers resolve",
        free_rows_need_to_remember_occurrences: DueWhenFree breaks "an occurrence ends",
        dead_rows_need_to_remember_occurrences: DueWhenDead breaks "an occurrence ends",
        completions_need_to_be_stored: Completion breaks "an occurrence ends",
        runs_need_to_be_stored_at_the_acquire: AtMostOnce breaks "an occurrence ends",
        tombstones_need_to_remember_occurrences: TombstoneRemembers breaks "an occurrence ends",
        own_repeats_need_to_come_before_occurrences: OwnBeforeDone breaks "lost answers resolve",
        completions_need_an_owner: CompletionIsOwn breaks "completions are own",
        completions_need_a_copy: CompletionIsCopied breaks "lost answers resolve",
        resets_need_the_version_that_was_seen: ResetNeedsVersion breaks "an occurrence ends",
        marks_need_a_holder: MarkNeedsHolder breaks "marks are true",
        marks_need_a_version_of_ours: MarkNeedsOurs breaks "marks are true",
        marks_need_to_be_set_once: MarkIsSetOnce breaks "marks are true",
        marks_need_to_keep_the_version: MarkKeepsVersion breaks "a want only marks",
        acquires_need_to_take_the_mark_off: AcquireTakesMark breaks "marks are true",
        tombstones_need_to_take_the_mark_off: TombstoneTakesMark breaks "marks are true",
        replayed_releases_need_to_count_as_wanted: ReplayIsWanted breaks "marks are true",
    }
}
