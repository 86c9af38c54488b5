//! The life cycle of a transaction, as pure functions: what each write of the protocol requires, and what it does; what
//! a reader of committed states may show; and who may be called idle.
//!
//! The expressions of the other modules say the same to DynamoDB. A model explores these functions, with readers,
//! sweepers and late copies around them. The service itself uses [`View`] and [`Looks`]; [`Rows::after`] is the
//! model's, and a property test holds the expressions to it.

use std::collections::BTreeSet;

pub use crate::model::State;

/// The record of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// The life of the id. The nonce in the tables.
    pub life: u64,
    /// The progress.
    pub state: State,
    /// The number of adds so far.
    pub version: u64,
    /// The versions whose puts are not applied.
    pub unapplied: BTreeSet<u64>,
    /// Whether all items are free.
    pub is_finished: bool,
}

/// The lock on an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    /// The life of the holder.
    pub life: u64,
    /// The version of the record that came with the lock.
    pub version: u64,
    /// Whether a put of this version is applied. Only puts on existing items are applied apart.
    pub is_applied: bool,
    /// The content of the item before the transaction, which the item keeps.
    pub before: Option<i64>,
}

impl Lock {
    /// Whether both are one value of the lock, which changes with every write of the holder.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.life, self.version, self.is_applied) == (other.life, other.version, other.is_applied)
    }
}

/// An item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Item {
    /// The content, if the item exists.
    pub content: Option<i64>,
    /// The lock, while the item takes part in a transaction.
    pub lock: Option<Lock>,
}

/// The rows of one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rows {
    /// The record, if there is one.
    pub record: Option<Record>,
    /// The items.
    pub items: Vec<Item>,
}

/// The change of an item by an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// The content for the holder, in the write that locks: none, where it deletes or misses the item.
    Now(Option<i64>),
    /// None: the item is locked for a put, which another write applies.
    Later,
    /// None: a condition on an item that the transaction holds.
    Check,
}

/// The part of an add that concerns one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Enlisted {
    /// The item.
    pub item: usize,
    /// The item's lock as it was read.
    pub seen: Option<Lock>,
    /// The change.
    pub change: Change,
}

/// A write, as it was sent. It may arrive at any time, and any number of times.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Write {
    /// A new record.
    Begin {
        /// Its life.
        life: u64,
    },
    /// The locks and the changes of some items, each once: all or none.
    Add {
        /// The life of the transaction.
        life: u64,
        /// The version of the record that was read.
        version: u64,
        /// The items.
        items: Vec<Enlisted>,
    },
    /// The content of a put.
    Apply {
        /// The item.
        item: usize,
        /// The item's lock as it was read.
        seen: Lock,
        /// The new content.
        content: i64,
    },
    /// The note that all puts of a version are applied.
    Confirm {
        /// The life of the transaction.
        life: u64,
        /// The version.
        version: u64,
    },
    /// The decision.
    Decide {
        /// The life of the transaction.
        life: u64,
        /// The version of the record that was read.
        version: u64,
        /// The outcome.
        outcome: State,
    },
    /// The end of a lock.
    Free {
        /// The item.
        item: usize,
        /// The item's lock as it was read.
        seen: Lock,
        /// The content that it leaves: none where `keeps` is false.
        restored: Option<i64>,
        /// Whether the content stays as it is.
        keeps: bool,
    },
    /// The note that all items are free.
    Finish {
        /// The life of the transaction.
        life: u64,
    },
}

impl Write {
    /// The write that frees an item of a decided transaction, as it was read.
    pub const fn free(item: usize, seen: Lock, outcome: State) -> Self {
        // A put that was not applied has left the content as it was.
        let keeps = matches!(outcome, State::Committed) || !seen.is_applied;
        Self::Free { item, seen, restored: if keeps { None } else { seen.before }, keeps }
    }
}

impl Enlisted {
    /// Locks and changes the item as it was read. Returns whether nothing is left to apply, or `None` for an item that
    /// is not as it was read.
    fn lock(&self, item: &mut Item, life: u64, version: u64) -> Option<bool> {
        let is_as_seen = match (&item.lock, &self.seen) {
            (None, None) => true,
            (Some(lock), Some(seen)) => lock.is_same(seen),
            _ => false,
        };
        if !is_as_seen {
            return None;
        }
        if self.change == Change::Check {
            return Some(true);
        }
        let before = item.lock.map_or(item.content, |lock| lock.before);
        let is_applied = self.change != Change::Later;
        item.lock = Some(Lock { life, version, is_applied, before });
        if let Change::Now(content) = self.change {
            item.content = content;
        }
        Some(is_applied)
    }
}

impl Rows {
    /// Returns the rows after a write, or `None` if its condition does not hold.
    pub fn after(&self, write: &Write) -> Option<Self> {
        let mut rows = self.clone();
        let record = rows.record.as_mut();
        let of_life = |life: u64| move |record: &&mut Record| record.life == life;
        match *write {
            Write::Begin { life } => {
                if record.is_some() {
                    return None;
                }
                let (unapplied, is_finished) = (BTreeSet::new(), false);
                rows.record = Some(Record { life, state: State::Pending, version: 0, unapplied, is_finished });
            }
            Write::Add { life, version, ref items } => {
                let record = record.filter(of_life(life))?;
                if record.state != State::Pending || record.version != version {
                    return None;
                }
                record.version += 1;
                for enlisted in items {
                    let item = rows.items.get_mut(enlisted.item)?;
                    let is_applied = enlisted.lock(item, life, record.version)?;
                    if !is_applied {
                        record.unapplied.insert(record.version);
                    }
                }
            }
            Write::Apply { item, seen, content } => {
                let item = rows.items.get_mut(item)?;
                let lock = item.lock.as_mut().filter(|lock| lock.is_same(&seen))?;
                lock.is_applied = true;
                item.content = Some(content);
            }
            Write::Confirm { life, version } => {
                record.filter(of_life(life))?.unapplied.remove(&version);
            }
            Write::Decide { life, version, outcome } => {
                let record = record.filter(of_life(life))?;
                let waits = outcome == State::Committed && !record.unapplied.is_empty();
                if record.state != State::Pending || record.version != version || waits {
                    return None;
                }
                record.state = outcome;
            }
            Write::Free { item, seen, restored, keeps } => {
                let item = rows.items.get_mut(item)?;
                item.lock.filter(|lock| lock.is_same(&seen))?;
                item.lock = None;
                if !keeps {
                    item.content = restored;
                }
            }
            Write::Finish { life } => record.filter(of_life(life))?.is_finished = true,
        }
        Some(rows)
    }
}

/// The next step of a query under locks, after it looked for the items that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<Key> {
    /// It locks these, which the transaction did not hold before the look, and looks again.
    Lock(Vec<Key>),
    /// It looks again.
    Look,
    /// It answers with what it found: two looks agree, and the transaction held all of it before the last one. The
    /// answer is the whole range at the moment of that look, and no item of it changes before the end.
    Answer,
}

impl<Key: Ord + Clone> Next<Key> {
    /// The step after a look that found these keys. `before` is what the look before it found.
    pub fn after(found: &BTreeSet<Key>, before: Option<&BTreeSet<Key>>, is_held: impl Fn(&Key) -> bool) -> Self {
        let free: Vec<_> = found.iter().filter(|key| !is_held(key)).cloned().collect();
        match before {
            _ if !free.is_empty() => Self::Lock(free),
            Some(before) if before == found => Self::Answer,
            _ => Self::Look,
        }
    }
}

/// The part of a locked item that a reader of committed states may show. The reader read the item first and then the
/// record of the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// The item before the transaction. The item was locked when it was read, and the holder was not committed later.
    Before,
    /// The item itself, read once more. The holder is committed, and may have written the item again between the two
    /// reads. A read after the commit finds the last content.
    AsReadAfter,
    /// Neither: the holder of this lock is over, and freed the item.
    Again,
}

impl View {
    /// The view by the state of the holder, or by the lack of a record of this life.
    pub const fn of(holder: Option<State>) -> Self {
        match holder {
            Some(State::Pending | State::RolledBack) => Self::Before,
            Some(State::Committed) => Self::AsReadAfter,
            None => Self::Again,
        }
    }
}

/// The looks of one judge at the signs of life of an open transaction. The times are of the judge's own monotonic
/// clock. Nothing that another process wrote is compared with a clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Looks<Life, Moment> {
    life: Life,
    since: Moment,
}

impl<Life: PartialEq, Moment: Copy> Looks<Life, Moment> {
    /// The first look.
    pub const fn first(life: Life, now: Moment) -> Self {
        Self { life, since: now }
    }

    /// Returns the moment since which every look has seen the same signs of life, this one included.
    pub fn unchanged_since(&mut self, life: Life, now: Moment) -> Moment {
        if self.life != life {
            *self = Self::first(life, now);
        }
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: Lock = Lock { life: 1, version: 1, is_applied: true, before: Some(0) };
    const COMMIT: Write = Write::Decide { life: 1, version: 1, outcome: State::Committed };

    fn add() -> Write {
        let items = vec![Enlisted { item: 0, seen: Some(LOCK), change: Change::Now(Some(2)) }];
        Write::Add { life: 1, version: 1, items }
    }

    /// A pending transaction that holds its only item.
    fn rows() -> Rows {
        let (unapplied, is_finished) = (BTreeSet::new(), false);
        let record = Record { life: 1, state: State::Pending, version: 1, unapplied, is_finished };
        Rows { record: Some(record), items: vec![Item { content: Some(1), lock: Some(LOCK) }] }
    }

    fn with(change: impl FnOnce(&mut Record, &mut Item)) -> Rows {
        let mut rows = rows();
        change(rows.record.as_mut().expect("it has one"), &mut rows.items[0]);
        rows
    }

    #[test]
    fn writes_are_carried_out_on_the_rows_that_were_read() {
        let writes = [add(), COMMIT, Write::Finish { life: 1 }, Write::Confirm { life: 1, version: 1 }];
        let items = [Write::Apply { item: 0, seen: LOCK, content: 2 }, Write::free(0, LOCK, State::RolledBack)];
        for write in writes.iter().chain(&items) {
            assert!(rows().after(write).is_some(), "{write:?}");
        }
        assert!(Rows { record: None, ..rows() }.after(&Write::Begin { life: 1 }).is_some());
    }

    #[test]
    fn add_of_two_items_locks_both_or_none() {
        let free = Item { content: Some(5), lock: None };
        let mut rows = rows();
        rows.items.push(free);
        let put = Enlisted { item: 1, seen: None, change: Change::Later };
        let Write::Add { life, version, items } = add() else { unreachable!() };
        let both = Write::Add { life, version, items: [items, vec![put]].concat() };
        let after = rows.after(&both).expect("both are as they were read");
        let record = after.record.as_ref().expect("it has one");
        assert_eq!((record.version, &record.unapplied), (2, &BTreeSet::from([2])));
        let locks = after.items.iter().map(|item| item.lock.map(|lock| (lock.version, lock.before)));
        assert_eq!(locks.collect::<Vec<_>>(), [Some((2, Some(0))), Some((2, Some(5)))]);
        rows.items[1].lock = Some(LOCK);
        assert_eq!(rows.after(&both), None);
    }

    #[test]
    fn each_write_is_refused_on_other_rows() {
        let next_life = || with(|record, _| record.life = 2);
        let is_over = || with(|record, _| record.state = State::RolledBack);
        let moved_on = || with(|record, _| record.version = 2);
        let has_another_lock = || with(|_, item| item.lock = Some(Lock { version: 2, ..LOCK }));
        let is_free = || with(|_, item| item.lock = None);
        let waits = || with(|record, _| record.unapplied = BTreeSet::from([1]));
        let apply = Write::Apply { item: 0, seen: LOCK, content: 2 };
        let free = Write::free(0, LOCK, State::Committed);
        for (rows, write) in [
            (rows(), Write::Begin { life: 2 }),
            (next_life(), add()),
            (is_over(), add()),
            (moved_on(), add()),
            (has_another_lock(), add()),
            (is_free(), add()),
            (has_another_lock(), apply.clone()),
            (is_free(), apply),
            (next_life(), Write::Confirm { life: 1, version: 1 }),
            (next_life(), COMMIT),
            (is_over(), COMMIT),
            (moved_on(), COMMIT),
            (waits(), COMMIT),
            (has_another_lock(), free.clone()),
            (is_free(), free),
            (next_life(), Write::Finish { life: 1 }),
        ] {
            assert_eq!(rows.after(&write), None, "{write:?}");
        }
    }
}
