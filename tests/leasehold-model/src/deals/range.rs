//! A model of a query under locks, beside writers that insert, delete and move items: its answer is the whole range at
//! one moment, and no item of it changes before the end.

use std::collections::BTreeSet;

use leasehold_transactions::life::Next;
use stateright::{CheckerBuilder, Model, Property};

use crate::threads;

const ANSWERED: &str = "a query is answered";
const WHOLE: &str = "an answer was the range at one moment";
const UNCHANGED: &str = "no item of an answer changes";

/// The number of keys that match.
const KEYS: usize = 3;

/// The number of writes of others.
const WRITES: u8 = 4;

/// The number of looks.
const LOOKS: u8 = 5;

/// The rule by which a query goes on after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The service's.
    Service,
    /// One look, and the locks.
    OneLook,
    /// Two looks that agree, locked or not.
    Unheld,
}

/// A query, and the writers beside it.
#[derive(Debug, Clone)]
pub struct Querying {
    /// The rule.
    pub rule: Rule,
}

/// One key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Row {
    /// Whether there is an item. A lock alone makes a row, too.
    is_present: bool,
    /// Whether the query has the lock.
    is_held: bool,
}

/// The progress of the query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Progress {
    /// It looks next.
    Looks,
    /// It locks these next.
    Locks(Vec<usize>),
    /// It has answered with these.
    Done(BTreeSet<usize>),
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    rows: [Row; KEYS],
    progress: Progress,
    /// What the last look found.
    before: Option<BTreeSet<usize>>,
    writes: u8,
    looks: u8,
    /// Every state of the range so far.
    ranges: BTreeSet<BTreeSet<usize>>,
}

/// A transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Another transaction inserts an item.
    Insert(usize),
    /// Another transaction deletes an item.
    Delete(usize),
    /// Another transaction gives an item another key.
    Move(usize, usize),
    /// The query makes its next step.
    Step,
}

impl World {
    fn range(&self) -> BTreeSet<usize> {
        (0..KEYS).filter(|&key| self.rows[key].is_present).collect()
    }

    fn answered(&self) -> Option<&BTreeSet<usize>> {
        match &self.progress {
            Progress::Done(answer) => Some(answer),
            Progress::Looks | Progress::Locks(_) => None,
        }
    }

    fn write(&mut self, key: usize, is_present: bool) -> Option<()> {
        let row = &mut self.rows[key];
        (!row.is_held && row.is_present != is_present).then(|| row.is_present = is_present)
    }

    fn step(&mut self, rule: Rule) -> Option<()> {
        match self.progress.clone() {
            Progress::Done(_) => return None,
            Progress::Locks(keys) => {
                for key in keys {
                    self.rows[key].is_held = true;
                }
                self.progress = Progress::Looks;
                if rule == Rule::OneLook {
                    self.answer();
                }
            }
            Progress::Looks => {
                self.looks = Some(self.looks + 1).filter(|looks| *looks <= LOOKS)?;
                let found: BTreeSet<_> =
                    (0..KEYS).filter(|&key| self.rows[key].is_present || self.rows[key].is_held).collect();
                let next = match rule {
                    Rule::Unheld if self.before.as_ref() == Some(&found) => Next::Answer,
                    _ => Next::after(&found, self.before.as_ref(), |&key| self.rows[key].is_held),
                };
                self.before = Some(found);
                match next {
                    Next::Lock(free) if rule == Rule::Unheld && self.looks == 1 => drop(free),
                    Next::Lock(free) => self.progress = Progress::Locks(free),
                    Next::Look if rule == Rule::OneLook => self.answer(),
                    Next::Look => {}
                    Next::Answer => self.answer(),
                }
            }
        }
        Some(())
    }

    /// Answers with what the last look found, as it is now.
    fn answer(&mut self) {
        let found = self.before.iter().flatten().copied();
        self.progress = Progress::Done(found.filter(|&key| self.rows[key].is_present).collect());
    }
}

impl Querying {
    /// Returns a checker.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads())
    }
}

impl Model for Querying {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let world = |present: usize| {
            let mut rows = [Row::default(); KEYS];
            rows[..present].iter_mut().for_each(|row| row.is_present = true);
            let ranges = BTreeSet::from([(0..present).collect()]);
            World { rows, progress: Progress::Looks, before: None, writes: 0, looks: 0, ranges }
        };
        (0..KEYS).map(world).collect()
    }

    fn actions(&self, _: &World, actions: &mut Vec<Action>) {
        actions.push(Action::Step);
        for key in 0..KEYS {
            actions.extend([Action::Insert(key), Action::Delete(key)]);
            actions.extend((0..KEYS).map(|to| Action::Move(key, to)));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        if action == Action::Step {
            next.step(self.rule)?;
            return Some(next);
        }
        next.writes = Some(next.writes + 1).filter(|writes| *writes <= WRITES)?;
        match action {
            Action::Insert(key) => next.write(key, true)?,
            Action::Delete(key) => next.write(key, false)?,
            Action::Move(from, to) => {
                next.write(from, false)?;
                next.write(to, true)?;
            }
            Action::Step => {}
        }
        next.ranges.insert(next.range());
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WHOLE, |_, world: &World| {
                world.answered().is_none_or(|answer| world.ranges.contains(answer))
            }),
            Property::always(UNCHANGED, |_, world: &World| {
                let is_kept = |&key: &usize| world.rows[key] == Row { is_present: true, is_held: true };
                world.answered().is_none_or(|answer| answer.iter().all(is_kept))
            }),
            Property::sometimes(ANSWERED, |_, world: &World| world.answered().is_some_and(|found| found.len() > 1)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use stateright::Checker;

    use super::*;
    use crate::failures;

    #[test]
    fn query_answers_with_the_range_at_one_moment() {
        let checker = Querying { rule: Rule::Service }.explored().spawn_bfs().join();
        println!("{} states", checker.unique_state_count());
        assert_eq!(failures(&checker, &[ANSWERED]), [""; 0]);
    }

    #[test]
    fn queries_need_a_second_look() {
        let checker = Querying { rule: Rule::OneLook }.explored().spawn_bfs().join();
        assert!(checker.discovery(WHOLE).is_some());
    }

    #[test]
    fn queries_need_their_locks() {
        let checker = Querying { rule: Rule::Unheld }.explored().spawn_bfs().join();
        assert!(checker.discovery(UNCHANGED).is_some());
    }
}
