//! # A model of a transaction, explored exhaustively
//!
//! The model has the rows of one transaction, coordinators, and a reader of committed states. A coordinator reads the
//! record, and later an item: any record that ever was goes with any item of now. Every write stays in the network for
//! ever: it arrives at any time, any number of times, or never.
//! Every write goes through the pure life cycle itself ([`leasehold_transactions::life`]). The record may expire, and
//! its id be used again.
//!
//! A [`Clause`] is dropped around the life cycle, or in a coordinator or the reader. Without any one of them the
//! checker finds a trace that breaks a promise. [`idle`] is a model of a sweeper with clocks, [`range`] one of a query.

pub mod idle;
pub mod range;

use std::collections::BTreeSet;

use leasehold_transactions::life::{Change, Enlisted, Item, Lock, Record, Rows, State, View, Write};
use stateright::{CheckerBuilder, Model, Property};

use crate::threads;

const READ: &str = "a reader meets a locked item";
const UNDONE: &str = "a change is undone";
const BEGUN_AGAIN: &str = "an id is used again";

/// A clause of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// Only a pending transaction locks items and is decided.
    Pending,
    /// A decision is of the version that was read.
    Version,
    /// A commit waits for all puts.
    Unapplied,
    /// A write of an item is of the very lock that was read.
    Seen,
    /// A write of the record is of one life.
    Nonce,
    /// A coordinator frees the items of its life of the id only.
    HolderNonce,
    /// A reader of an item whose holder is committed reads the item again.
    ReadAgain,
    /// There is no second record.
    NewRecord,
}

impl Clause {
    /// All clauses.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Version,
        Self::Unapplied,
        Self::Seen,
        Self::Nonce,
        Self::HolderNonce,
        Self::ReadAgain,
        Self::NewRecord,
    ];
}

/// The bounds of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The name, for reports.
    pub name: &'static str,
    /// The number of items.
    pub items: usize,
    /// The number of adds of each life.
    pub adds: u64,
    /// Whether adds are puts, which are applied apart.
    pub puts: bool,
    /// The number of lives of the id.
    pub lives: u64,
    /// Whether somebody reads the first item.
    pub reads: bool,
}

const SMALL: Bounds = Bounds { name: "small", items: 1, adds: 2, puts: false, lives: 1, reads: false };

impl Bounds {
    /// Explorations that take seconds, for the tests.
    pub fn small() -> [Self; 4] {
        [
            Self { name: "small deals, a reader", reads: true, ..SMALL },
            Self { name: "small deals, two items", items: 2, ..SMALL },
            Self { name: "small deals, a put", adds: 1, puts: true, ..SMALL },
            Self { name: "small deals, two lives", adds: 1, lives: 2, ..SMALL },
        ]
    }

    /// Larger explorations.
    pub fn full() -> [Self; 3] {
        [
            Self { name: "deals, a reader", reads: true, ..SMALL },
            Self { name: "deals, puts", puts: true, ..SMALL },
            Self { name: "deals, two lives", adds: 1, lives: 2, puts: true, ..SMALL },
        ]
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

/// The progress of the reader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reader {
    Idle,
    /// It has read a locked item.
    Locked {
        item: Item,
        lock: Lock,
    },
    /// It reads the item once more, after it found the holder of this life committed.
    After {
        life: u64,
    },
    /// It has shown a content.
    Done(Option<i64>),
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    rows: Rows,
    /// Every record that a coordinator may have read, or made by its own decision.
    records: BTreeSet<Record>,
    /// Every write that was sent.
    sent: BTreeSet<Write>,
    /// The number of lives that began.
    lives: u64,
    /// The items of the adds that were carried out, by the version, and the contents that they give.
    added: Vec<(usize, i64)>,
    /// The contents before the life.
    before: Vec<Option<i64>>,
    /// The outcome of the life, once it is decided.
    outcome: Option<State>,
    reader: Reader,
    /// The committed contents of the first item since the reader began.
    committed: BTreeSet<Option<i64>>,
}

/// A transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A write is sent.
    Send(Write),
    /// A write arrives.
    Deliver(Write),
    /// The record of a finished transaction is removed.
    Expire,
    /// The reader makes its next read.
    Look,
}

impl World {
    fn new(bounds: &Bounds) -> Self {
        let item = Item { content: Some(0), lock: None };
        Self {
            rows: Rows { record: None, items: vec![item; bounds.items] },
            records: BTreeSet::new(),
            sent: BTreeSet::new(),
            lives: 0,
            added: Vec::new(),
            before: vec![Some(0); bounds.items],
            outcome: None,
            reader: Reader::Idle,
            committed: BTreeSet::new(),
        }
    }

    /// The content that the last committed transaction left.
    fn committed(&self, item: usize) -> Option<i64> {
        let last = self.added.iter().rev().find(|(added, _)| *added == item);
        match last.filter(|_| self.outcome == Some(State::Committed)) {
            Some((_, content)) => Some(*content),
            None => self.before[item],
        }
    }

    /// The writes that a coordinator may send which has read this record, and then the items as they are.
    fn writes(&self, protocol: &Protocol, record: &Record) -> Vec<Write> {
        let mut writes = Vec::new();
        let life = record.life;
        let is_pending = record.state == State::Pending;
        for (item, seen) in self.rows.items.iter().enumerate() {
            let holds = |lock: &Lock| lock.life == life || protocol.without == Some(Clause::HolderNonce);
            let lock = seen.lock.filter(|lock| lock.life == life);
            let change = if protocol.bounds.puts && lock.is_none() {
                Change::Later
            } else {
                Change::Now(Some(content(life, record.version + 1)))
            };
            // The adds go to the items in turn.
            let is_next = usize::try_from(record.version).is_ok_and(|version| version % protocol.bounds.items == item);
            if is_pending && is_next && record.version < protocol.bounds.adds && (seen.lock.is_none() || lock.is_some())
            {
                let items = vec![Enlisted { item, seen: lock, change }];
                let write = Write::Add { life, version: record.version, items };
                // A put of another call is applied before the item is written again.
                if lock.is_none_or(|lock| lock.is_applied) {
                    writes.push(write);
                }
            }
            if let Some(lock) = lock.filter(|lock| !lock.is_applied) {
                writes.push(Write::Apply { item, seen: lock, content: content(life, lock.version) });
            }
            if let Some(lock) = lock.filter(|lock| lock.is_applied && record.unapplied.contains(&lock.version)) {
                writes.push(Write::Confirm { life, version: lock.version });
            }
            if let Some(lock) = seen.lock.filter(holds).filter(|_| !is_pending) {
                writes.push(Write::free(item, lock, record.state));
            }
        }
        if is_pending && record.version > 0 {
            for outcome in [State::Committed, State::RolledBack] {
                writes.push(Write::Decide { life, version: record.version, outcome });
            }
        }
        let known = self.added.iter().take(usize::try_from(record.version).unwrap_or_default());
        let is_free = |item: usize| self.rows.items[item].lock.is_none_or(|lock| lock.life != life);
        if !is_pending && !record.is_finished && known.map(|(item, _)| *item).all(is_free) {
            writes.push(Write::Finish { life });
        }
        writes
    }

    /// Carries out a write, with a clause dropped or none.
    fn carry_out(&self, protocol: &Protocol, write: &Write) -> Option<Rows> {
        let mut rows = self.rows.clone();
        let mut write = write.clone();
        let record = rows.record.clone();
        match (protocol.without, &mut write) {
            (Some(Clause::Pending), Write::Add { .. } | Write::Decide { .. }) => {
                rows.record.as_mut()?.state = State::Pending;
            }
            (Some(Clause::Version), Write::Decide { version, .. }) => {
                *version = record.as_ref()?.version;
            }
            (Some(Clause::Unapplied), Write::Decide { .. }) => rows.record.as_mut()?.unapplied.clear(),
            (Some(Clause::Seen), Write::Apply { item, seen, .. } | Write::Free { item, seen, .. }) => {
                *seen = rows.items[*item].lock?;
            }
            (
                Some(Clause::Nonce),
                Write::Add { life, .. }
                | Write::Decide { life, .. }
                | Write::Confirm { life, .. }
                | Write::Finish { life },
            ) => *life = record.as_ref()?.life,
            (Some(Clause::NewRecord), Write::Begin { .. }) => rows.record = None,
            _ => {}
        }
        let mut after = rows.after(&write)?;
        if let (Some(Clause::Pending), Write::Add { .. }) = (protocol.without, &write) {
            after.record.as_mut()?.state = record?.state;
        }
        Some(after)
    }

    fn deliver(&mut self, protocol: &Protocol, write: &Write) -> Option<()> {
        let after = self.carry_out(protocol, write)?;
        match write {
            Write::Begin { .. } if self.lives == 0 || self.rows.record.is_none() => {
                self.before = (0..self.before.len()).map(|item| self.committed(item)).collect();
                (self.added, self.outcome) = (Vec::new(), None);
            }
            Write::Add { items, version, life } => {
                self.added.extend(items.iter().map(|enlisted| (enlisted.item, content(*life, version + 1))));
            }
            Write::Decide { outcome, life, version } if self.outcome.is_none() => {
                self.outcome = Some(*outcome);
                // The decider knows the version that it has read, with its own decision.
                let read = self.records.iter().find(|record| (record.life, record.version) == (*life, *version));
                let decided = read.map(|record| Record { state: *outcome, is_finished: false, ..record.clone() });
                self.records.extend(decided);
            }
            _ => {}
        }
        if after == self.rows {
            return None;
        }
        self.rows = after;
        self.records.extend(self.rows.record.clone());
        Some(())
    }

    fn look(&mut self, protocol: &Protocol) -> Option<()> {
        let item = self.rows.items[0];
        self.reader = match &self.reader {
            Reader::Done(_) => return None,
            Reader::After { life } if item.lock.is_some_and(|lock| lock.life == *life) => Reader::Done(item.content),
            Reader::Idle | Reader::After { .. } => match item.lock {
                None => Reader::Done(item.content),
                Some(lock) => Reader::Locked { item, lock },
            },
            Reader::Locked { item, lock } => {
                let holder = self.rows.record.as_ref().filter(|record| record.life == lock.life);
                match View::of(holder.map(|holder| holder.state)) {
                    View::Before => Reader::Done(lock.before),
                    View::AsReadAfter if protocol.without == Some(Clause::ReadAgain) => Reader::Done(item.content),
                    View::AsReadAfter => Reader::After { life: lock.life },
                    View::Again => Reader::Idle,
                }
            }
        };
        Some(())
    }

    /// Whether a reader was shown a committed content only.
    fn shows_what_is_committed(&self) -> bool {
        !matches!(&self.reader, Reader::Done(content) if !self.committed.contains(content))
    }

    /// Whether the items have the content of the outcome, as far as they are free, and can still get it.
    fn is_all_or_nothing(&self) -> bool {
        self.outcome.is_none()
            || self.rows.items.iter().enumerate().all(|(number, item)| {
                let content = match item.lock {
                    Some(lock) if self.outcome != Some(State::Committed) || !lock.is_applied => lock.before,
                    _ => item.content,
                };
                content == self.committed(number)
            })
    }

    /// Whether every lock can still be freed: its holder's record is there, and not finished.
    fn frees_all(&self) -> bool {
        self.rows
            .items
            .iter()
            .filter_map(|item| item.lock)
            .all(|lock| self.rows.record.as_ref().is_some_and(|record| record.life == lock.life && !record.is_finished))
    }

    /// Whether an item that an open transaction changed still has its lock.
    fn keeps_locks(&self) -> bool {
        let is_open = self.outcome.is_none() && self.rows.record.is_some();
        !is_open || self.added.iter().all(|(item, _)| self.rows.items[*item].lock.is_some())
    }
}

/// The content that an add leaves.
fn content(life: u64, version: u64) -> i64 {
    i64::try_from(10 * life + version).unwrap_or(i64::MAX)
}

impl Protocol {
    /// Returns a checker that keeps 8 bytes for each state.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads())
    }

    /// The names of the events that an exploration must contain.
    pub fn must_see(&self) -> Vec<&'static str> {
        let Bounds { reads, lives, .. } = self.bounds;
        let events = [(READ, reads), (UNDONE, true), (BEGUN_AGAIN, lives > 1)];
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
        let writes = world.records.iter().flat_map(|record| world.writes(self, record));
        let new: BTreeSet<_> = writes.filter(|write| !world.sent.contains(write)).collect();
        actions.extend(new.into_iter().map(Action::Send));
        if world.lives < self.bounds.lives && world.rows.record.is_none() {
            actions.push(Action::Send(Write::Begin { life: world.lives + 1 }));
        }
        actions.extend(world.sent.iter().cloned().map(Action::Deliver));
        if self.bounds.lives > 1 && world.rows.record.as_ref().is_some_and(|record| record.is_finished) {
            actions.push(Action::Expire);
        }
        if self.bounds.reads {
            actions.push(Action::Look);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Send(write) => {
                if let Write::Begin { life } = write {
                    next.lives = life;
                }
                next.sent.insert(write);
            }
            Action::Deliver(write) => next.deliver(self, &write)?,
            Action::Expire => {
                next.rows.record = None;
                // The record outlives the copies of the write that began it: the least retention is an hour.
                next.sent.retain(|write| !matches!(write, Write::Begin { .. }));
            }
            Action::Look => next.look(self)?,
        }
        if self.bounds.reads && !matches!(next.reader, Reader::Done(_)) || action_is_look(world, &next) {
            next.committed.insert(next.committed(0));
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("readers see what is committed", |_, world: &World| world.shows_what_is_committed()),
            Property::always("all or nothing", |_, world: &World| world.is_all_or_nothing()),
            Property::always("every lock can be freed", |_, world: &World| world.frees_all()),
            Property::always("locks last until the end", |_, world: &World| world.keeps_locks()),
            Property::sometimes(READ, |_, world: &World| matches!(world.reader, Reader::Locked { .. })),
            Property::sometimes(UNDONE, |_, world: &World| {
                world.outcome == Some(State::RolledBack)
                    && !world.added.is_empty()
                    && world.rows.items.iter().all(|item| item.lock.is_none())
            }),
            Property::sometimes(BEGUN_AGAIN, |_, world: &World| {
                world.rows.record.as_ref().is_some_and(|record| record.life > 1)
            }),
        ]
    }
}

/// Whether the reader made a step.
fn action_is_look(before: &World, after: &World) -> bool {
    before.reader != after.reader
}

#[cfg(test)]
mod tests {
    use stateright::{Checker, HasDiscoveries};

    use super::*;
    use crate::check_holds;

    #[test]
    fn small_bounds_of_deals_break_no_promise() {
        for bounds in Bounds::small() {
            let protocol = Protocol { bounds, without: None };
            let must_see = protocol.must_see();
            check_holds(protocol.explored(), &must_see, &bounds, bounds.name);
        }
    }

    /// Checks that the checker finds a trace that breaks this promise where the clause is missing.
    fn check_broken(clause: Clause, promise: &'static str) {
        for bounds in Bounds::small() {
            let protocol = Protocol { bounds, without: Some(clause) };
            let found = HasDiscoveries::AnyOf([promise].into());
            let checker = protocol.explored().finish_when(found).spawn_bfs().join();
            if checker.discovery(promise).is_some() {
                return;
            }
        }
        panic!("{promise}, without {clause:?} as well");
    }

    clauses! {
        locks_need_a_pending_record: Pending breaks "all or nothing",
        decisions_need_their_version: Version breaks "every lock can be freed",
        commits_need_applied_puts: Unapplied breaks "all or nothing",
        writes_need_the_lock_that_was_read: Seen breaks "all or nothing",
        writes_need_their_life: Nonce breaks "every lock can be freed",
        completions_need_their_life: HolderNonce breaks "locks last until the end",
        readers_need_a_second_read: ReadAgain breaks "readers see what is committed",
        records_need_to_be_new: NewRecord breaks "every lock can be freed",
    }
}
