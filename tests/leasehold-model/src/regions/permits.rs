//! Permits of a semaphore on such a table: the world of [`crate::permits`], and what regions add to it.
//!
//! A conflict refuses a write, and so does a region that is cut off: the request stays open. The region that is cut off
//! shows its old copy of the row to those who look at it. Everything else is the world of one region, whose row is the
//! one item of the table.

use stateright::{CheckerBuilder, Model, Property};

use super::{CONFLICT, ELSEWHERE, OLD_VIEW, REGIONS};
use crate::permits::world::Stored;
use crate::permits::{self, Action as Step, Promise};
use crate::threads;
use crate::world::Reply;

const TAKEN_OVER: &str = "a dead holder is taken over";

/// A rule that a table in several regions, the service or a caller keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// A write that met one of another region was not carried out, and its answer says so.
    ConflictsAreRefusals,
    /// A region that is cut off answers no request from its copy.
    CopiesDecideNothing,
    /// The regions write one item: the table has strong consistency.
    OneItem,
    /// A dead holder has the version that is in the item, wherever the caller saw it.
    ObservedVersion,
    /// A repeat in another region counts the lease from before the request was first sent.
    CountFromFirst,
}

impl Clause {
    /// All clauses.
    pub const ALL: [Self; 5] = [
        Self::ConflictsAreRefusals,
        Self::CopiesDecideNothing,
        Self::OneItem,
        Self::ObservedVersion,
        Self::CountFromFirst,
    ];

    /// Bounds within which the absence of the clause shows.
    pub const fn bounds(self) -> Bounds {
        let [conflicts, cuts] = Bounds::small();
        match self {
            Self::ConflictsAreRefusals | Self::OneItem => conflicts,
            Self::CopiesDecideNothing => Bounds { permits: conflicts.permits, ..cuts },
            // The holder renews its lease, which the copy does not show.
            Self::ObservedVersion => {
                Bounds { permits: permits::Bounds { attempts: 1, end: 200, leases: &[200], ..cuts.permits }, ..cuts }
            }
            Self::CountFromFirst => cuts,
        }
    }

    /// The same clause in the world of one region.
    const fn in_one_region(self) -> Option<permits::Clause> {
        match self {
            Self::ObservedVersion => Some(permits::Clause::DeadHolderVersion),
            Self::CountFromFirst => Some(permits::Clause::CountFromFirst),
            Self::ConflictsAreRefusals | Self::CopiesDecideNothing | Self::OneItem => None,
        }
    }
}

/// The bounds of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The name, for reports.
    pub name: &'static str,
    /// The bounds of the world of one region.
    pub permits: permits::Bounds,
    /// The number of writes that meet one of another region.
    pub conflicts: u8,
    /// The number of times that a region is cut off.
    pub cuts: u8,
}

impl Bounds {
    /// Explorations of seconds: two permits, and three who want one.
    pub const fn small() -> [Self; 2] {
        let (three, dead) = (permits::Bounds::of_three(), permits::Bounds::of_two_and_a_dead());
        [
            Self { name: "regions, permits and conflicts", permits: three, conflicts: 1, cuts: 0 },
            Self { name: "regions, permits and one cut off", permits: dead, conflicts: 0, cuts: 1 },
        ]
    }
}

/// The semaphore in several regions, within bounds, with one clause dropped or none.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The bounds of the exploration.
    pub bounds: Bounds,
    /// The clause that is missing.
    pub without: Option<Clause>,
    one_region: permits::Protocol,
}

impl Protocol {
    /// The model within these bounds.
    pub fn new(bounds: Bounds, without: Option<Clause>) -> Self {
        let without_in_one = without.and_then(Clause::in_one_region);
        let one_region = permits::Protocol { bounds: bounds.permits, without: without_in_one };
        Self { bounds, without, one_region }
    }

    /// Returns a checker of the model.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads())
    }

    /// The names of the events that an exploration must contain.
    pub fn must_see(&self) -> Vec<&'static str> {
        let (conflicts, cuts) = (self.bounds.conflicts > 0, self.bounds.cuts > 0);
        let events = [(CONFLICT, conflicts), (ELSEWHERE, cuts), (OLD_VIEW, cuts), (TAKEN_OVER, cuts)];
        events.into_iter().filter(|(_, is_due)| *is_due).map(|(name, _)| name).collect()
    }

    fn lacks(&self, clause: Clause) -> bool {
        self.without == Some(clause)
    }
}

/// One step of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A step of the world of one region. Its requests arrive in a region that is not cut off.
    Step(Step),
    /// The same, where each region has an item of its own.
    StepIn {
        /// The region.
        region: usize,
        /// The step.
        step: Step,
    },
    /// An attempt meets a write of another region.
    Conflict {
        /// The attempt's index.
        attempt: usize,
    },
    /// An attempt arrives in the region that is cut off.
    ArriveInVain {
        /// The attempt's index.
        attempt: usize,
    },
    /// A caller looks at the row in the region that is cut off.
    LookThere {
        /// The caller's index.
        caller: usize,
    },
    /// A region is cut off.
    Cut,
    /// The region comes back.
    Join,
}

/// What a region shows: the row, or that there is none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Shown(Option<Stored>);

/// The state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// The world of one region, with the one item.
    table: permits::World,
    /// The item as the region shows it that is cut off.
    cut: Option<Shown>,
    /// Without the clause of one item: the item of each region, and the region that wrote last.
    items: Option<([Option<Stored>; REGIONS], usize)>,
    conflicts: u8,
    cuts: u8,
    /// An event of the last step.
    event: Option<&'static str>,
}

impl World {
    fn new(protocol: &Protocol) -> Self {
        let table = permits::World::new(&protocol.one_region);
        let items = protocol.lacks(Clause::OneItem).then(|| ([table.stored(), table.stored()], 0));
        Self { table, cut: None, items, conflicts: 0, cuts: 0, event: None }
    }

    fn actions(&self, protocol: &Protocol, actions: &mut Vec<Action>) {
        let mut steps = Vec::new();
        self.table.actions(&protocol.one_region, &mut steps);
        if steps.is_empty() {
            return;
        }
        // The callers differ in their names only: they begin in their order.
        let is_in_order = |caller: usize| caller == 0 || self.table.has_begun(caller - 1);
        let mut observers = Vec::new();
        steps.retain(|step| match *step {
            Step::Send { caller, .. } => is_in_order(caller),
            // What the item shows, refusals show as well.
            Step::Look { caller } => {
                observers.extend(is_in_order(caller).then_some(caller));
                false
            }
            _ => true,
        });
        for step in steps {
            if let (Step::Deliver { attempt, reply, .. }, None) = (&step, &self.items) {
                // An attempt is refused once, whatever becomes of the answer.
                let (attempt, is_first) = (*attempt, *reply == Reply::Heard);
                let meets = is_first && self.conflicts < protocol.bounds.conflicts;
                actions.extend(meets.then_some(Action::Conflict { attempt }));
                actions.extend((is_first && self.cut.is_some()).then_some(Action::ArriveInVain { attempt }));
            }
            match &self.items {
                Some(_) => actions.extend((0..REGIONS).map(|region| Action::StepIn { region, step: step.clone() })),
                None => actions.push(Action::Step(step)),
            }
        }
        if self.cut.is_some() {
            actions.extend(observers.into_iter().map(|caller| Action::LookThere { caller }));
            actions.push(Action::Join);
        } else {
            actions.extend((self.cuts < protocol.bounds.cuts).then_some(Action::Cut));
        }
    }

    fn after(&self, protocol: &Protocol, action: &Action) -> Option<Self> {
        let mut next = Self { event: None, ..self.clone() };
        match action {
            Action::Step(step) => {
                next.table = self.table.after(&protocol.one_region, step)?;
                let is_elsewhere = self.cut.is_some() && matches!(step, Step::Repeat { .. });
                next.event = is_elsewhere.then_some(ELSEWHERE);
            }
            Action::StepIn { region, step } => next.step_in(protocol, *region, step)?,
            Action::Conflict { attempt } => {
                next.conflicts += 1;
                next.event = Some(CONFLICT);
                let believed = protocol.lacks(Clause::ConflictsAreRefusals).then(|| Shown(self.table.stored()));
                next.table = self.refused(protocol, *attempt, believed)?;
            }
            Action::ArriveInVain { attempt } => {
                let believed = self.cut.clone().filter(|_| protocol.lacks(Clause::CopiesDecideNothing));
                next.table = self.refused(protocol, *attempt, believed)?;
            }
            Action::LookThere { caller } => {
                let Shown(copy) = self.cut.clone()?;
                if copy == self.table.stored() {
                    return None;
                }
                let there = self.table.with(copy).after(&protocol.one_region, &Step::Look { caller: *caller })?;
                next.table = there.with(self.table.stored());
                next.event = (next.table != self.table.with(self.table.stored())).then_some(OLD_VIEW);
            }
            Action::Cut => {
                next.cuts += 1;
                next.cut = Some(Shown(self.table.stored()));
            }
            Action::Join => next.cut = None,
        }
        Some(next)
    }

    /// The table after an attempt that it did not carry out. The sender hears nothing, or, without a clause, the answer
    /// that this row would have given.
    fn refused(&self, protocol: &Protocol, attempt: usize, believed: Option<Shown>) -> Option<permits::World> {
        match believed {
            Some(Shown(row)) => self.table.answered_from(row, &protocol.one_region, attempt),
            None => Some(self.table.without_attempt(attempt)),
        }
    }

    /// One step in a region with an item of its own. The last writer wins as soon as time passes.
    fn step_in(&mut self, protocol: &Protocol, region: usize, step: &Step) -> Option<()> {
        let (items, last_writer) = self.items.as_mut()?;
        let before = items[region].clone();
        self.table = self.table.with(before.clone()).after(&protocol.one_region, step)?;
        items[region] = self.table.stored();
        if items[region] != before {
            *last_writer = region;
        }
        if matches!(step, Step::Tick { .. }) {
            *items = [items[*last_writer].clone(), items[*last_writer].clone()];
        }
        Some(())
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
                world.table.keeps(Promise::WithinCapacity)
            }),
            Property::always("permits add up", |_, world: &World| world.table.keeps(Promise::PermitsAddUp)),
            Property::always("tokens rise", |_, world: &World| world.table.keeps(Promise::TokensRise)),
            Property::always("a claim that ended stays ended", |_, world: &World| world.table.keeps(Promise::EndsStay)),
            Property::always("lost answers resolve", |_, world: &World| world.table.keeps(Promise::AnswersResolve)),
            Property::always("who heartbeats keeps the permits", |_, world: &World| {
                world.table.keeps(Promise::HoldersKeep)
            }),
            Property::always("everyone can go on", |_, world: &World| world.table.keeps(Promise::NobodyIsStuck)),
            Property::sometimes(CONFLICT, |_, world: &World| world.event == Some(CONFLICT)),
            Property::sometimes(ELSEWHERE, |_, world: &World| world.event == Some(ELSEWHERE)),
            Property::sometimes(OLD_VIEW, |_, world: &World| world.event == Some(OLD_VIEW)),
            Property::sometimes(TAKEN_OVER, |_, world: &World| world.table.has_taken_over()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check_breaks, check_holds};

    #[test]
    fn permits_in_regions_break_no_promise() {
        for bounds in Bounds::small() {
            let protocol = Protocol::new(bounds, None);
            let must_see = protocol.must_see();
            check_holds(protocol.explored(), &must_see, &bounds, bounds.name);
        }
    }

    fn check_broken(clause: Clause, promise: &'static str) {
        check_breaks(Protocol::new(clause.bounds(), Some(clause)).explored(), promise, clause);
    }

    clauses! {
        conflicts_over_permits_need_to_be_refusals: ConflictsAreRefusals breaks "permits stay within the capacity",
        cut_off_copies_need_to_grant_nothing: CopiesDecideNothing breaks "permits stay within the capacity",
        permits_need_one_item: OneItem breaks "tokens rise",
        evictions_need_the_version_of_the_item: ObservedVersion breaks "who heartbeats keeps the permits",
        grants_elsewhere_need_the_first_sending: CountFromFirst breaks "who heartbeats keeps the permits",
    }
}
