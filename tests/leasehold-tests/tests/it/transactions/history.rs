//! Checks whether the same transactions could have made a history one at a time, each after those that had ended when
//! it began.

use std::collections::{BTreeMap, BTreeSet};

/// The number of a transaction. `None` stands for the initial state.
pub(crate) type Tx = u32;
pub(crate) type Account = usize;

/// The actions of a transaction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Deeds {
    /// The accounts that it read, and the writer of each version it read.
    pub(crate) reads: Vec<(Account, Option<Tx>)>,
    pub(crate) writes: BTreeSet<Account>,
    /// The time of its beginning.
    pub(crate) began: u64,
    /// The time at which its caller learned of its end; `None`, if no caller did.
    pub(crate) ended: Option<u64>,
}

/// All actions of all transactions.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) committed: BTreeMap<Tx, Deeds>,
    /// The writers of each account, in the order of its versions.
    pub(crate) versions: BTreeMap<Account, Vec<Tx>>,
}

/// A fault that one transaction at a time would not have made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Anomaly {
    /// A committed write is not among the versions.
    Lost(Tx, Account),
    /// A version is of a transaction that did not commit, or did not write it.
    Unwanted(Tx, Account),
    /// A transaction has written an account more than once.
    Repeated(Tx, Account),
    /// A transaction read a version that was never committed.
    Dirty(Tx, Account),
    /// Each of these must have come before the next, and the last before the first.
    Cycle(Vec<Tx>),
}

impl History {
    pub(crate) fn check(&self) -> Result<(), Anomaly> {
        self.check_versions()?;
        match cycle(&self.dependencies()?) {
            Some(cycle) => Err(Anomaly::Cycle(cycle)),
            None => Ok(()),
        }
    }

    fn check_versions(&self) -> Result<(), Anomaly> {
        for (&account, writers) in &self.versions {
            let mut seen = BTreeSet::new();
            for &writer in writers {
                if !self.committed.get(&writer).is_some_and(|deeds| deeds.writes.contains(&account)) {
                    return Err(Anomaly::Unwanted(writer, account));
                }
                if !seen.insert(writer) {
                    return Err(Anomaly::Repeated(writer, account));
                }
            }
        }
        for (&tx, deeds) in &self.committed {
            for account in &deeds.writes {
                if !self.versions.get(account).is_some_and(|writers| writers.contains(&tx)) {
                    return Err(Anomaly::Lost(tx, *account));
                }
            }
        }
        Ok(())
    }

    /// The transactions that must come after each one. A writer comes after the writer of the version before it. A
    /// reader comes after the writer of the version it read. The next writer comes after the reader. A transaction
    /// comes after those that had ended when it began.
    fn dependencies(&self) -> Result<BTreeMap<Tx, BTreeSet<Tx>>, Anomaly> {
        let mut after: BTreeMap<Tx, BTreeSet<Tx>> = self.committed.keys().map(|&tx| (tx, BTreeSet::new())).collect();
        let mut precedes = |first: Tx, second: Tx| {
            if first != second {
                after.get_mut(&first).expect("committed").insert(second);
            }
        };
        for writers in self.versions.values() {
            writers.windows(2).for_each(|pair| precedes(pair[0], pair[1]));
        }
        for (&tx, deeds) in &self.committed {
            for &(account, writer) in &deeds.reads {
                let writers = self.versions.get(&account).map(Vec::as_slice).unwrap_or_default();
                let next = match writer {
                    None => 0,
                    Some(writer) => {
                        let place = writers.iter().position(|&other| other == writer);
                        precedes(writer, place.map(|_| tx).ok_or(Anomaly::Dirty(tx, account))?);
                        place.map_or(0, |place| place + 1)
                    }
                };
                if let Some(&next) = writers.get(next) {
                    precedes(tx, next);
                }
            }
            for (&other, theirs) in &self.committed {
                if deeds.ended.is_some_and(|ended| ended < theirs.began) {
                    precedes(tx, other);
                }
            }
        }
        Ok(after)
    }
}

/// A cycle, if there is one.
fn cycle(after: &BTreeMap<Tx, BTreeSet<Tx>>) -> Option<Vec<Tx>> {
    // Removes each transaction that no remaining one must precede, until none is left, or all that are left wait for
    // each other.
    let mut waiting: BTreeMap<Tx, usize> = after.keys().map(|&tx| (tx, 0)).collect();
    for second in after.values().flatten() {
        *waiting.get_mut(second)? += 1;
    }
    let mut free: Vec<Tx> = waiting.iter().filter(|(_, count)| **count == 0).map(|(&tx, _)| tx).collect();
    while let Some(tx) = free.pop() {
        waiting.remove(&tx);
        for second in &after[&tx] {
            let count = waiting.get_mut(second)?;
            *count -= 1;
            if *count == 0 {
                free.push(*second);
            }
        }
    }
    // The way backwards from any remaining transaction meets one of them twice.
    let mut path = vec![*waiting.keys().next()?];
    loop {
        let last = *path.last()?;
        let before = *waiting.keys().find(|tx| after[tx].contains(&last))?;
        if let Some(start) = path.iter().position(|&tx| tx == before) {
            let mut cycle = path.split_off(start);
            cycle.reverse();
            return Some(cycle);
        }
        path.push(before);
    }
}

/// Reads and writes of one transaction, at the same time as the others.
fn deeds(reads: &[(Account, Option<Tx>)], writes: &[Account]) -> Deeds {
    Deeds { reads: reads.to_vec(), writes: writes.iter().copied().collect(), began: 0, ended: None }
}

fn history(committed: &[(Tx, Deeds)], versions: &[(Account, &[Tx])]) -> History {
    History {
        committed: committed.iter().cloned().collect(),
        versions: versions.iter().map(|(account, writers)| (*account, writers.to_vec())).collect(),
    }
}

const X: Account = 0;
const Y: Account = 1;

#[test]
fn good_histories_pass() {
    history(&[], &[]).check().expect("nothing happened");
    let one_after_the_other = [
        (1, deeds(&[(X, None), (Y, None)], &[X, Y])),
        (2, deeds(&[(X, Some(1))], &[X])),
        (3, deeds(&[(X, Some(2)), (Y, Some(1))], &[])),
    ];
    history(&one_after_the_other, &[(X, &[1, 2]), (Y, &[1])]).check().expect("serial");
    // The reader comes before both, although it ended after them.
    let crossed = [
        (1, Deeds { began: 5, ended: Some(6), ..deeds(&[], &[X]) }),
        (2, Deeds { began: 5, ended: Some(6), ..deeds(&[], &[Y]) }),
        (3, Deeds { began: 1, ended: Some(9), ..deeds(&[(X, None), (Y, None)], &[]) }),
    ];
    history(&crossed, &[(X, &[1]), (Y, &[2])]).check().expect("serialisable");
}

#[test]
fn lost_updates_are_found() {
    // Both read the first version; the second write does not contain the first.
    let both = [(1, deeds(&[(X, None)], &[X])), (2, deeds(&[(X, None)], &[X]))];
    assert_eq!(history(&both, &[(X, &[1, 2])]).check(), Err(Anomaly::Cycle(vec![2, 1])));
    assert_eq!(history(&both, &[(X, &[2])]).check(), Err(Anomaly::Lost(1, X)));
}

#[test]
fn write_skew_is_found() {
    let both = [(1, deeds(&[(X, None), (Y, None)], &[X])), (2, deeds(&[(X, None), (Y, None)], &[Y]))];
    assert!(matches!(history(&both, &[(X, &[1]), (Y, &[2])]).check(), Err(Anomaly::Cycle(_))));
}

#[test]
fn dirty_reads_and_writes_are_found() {
    let reader = [(2, deeds(&[(X, Some(1))], &[]))];
    assert_eq!(history(&reader, &[(X, &[])]).check(), Err(Anomaly::Dirty(2, X)));
    assert_eq!(history(&reader, &[(X, &[1])]).check(), Err(Anomaly::Unwanted(1, X)));
    // The first transaction wrote both, the second between the two.
    let writers = [(1, deeds(&[], &[X, Y])), (2, deeds(&[], &[X, Y]))];
    assert!(matches!(history(&writers, &[(X, &[1, 2]), (Y, &[2, 1])]).check(), Err(Anomaly::Cycle(_))));
}

#[test]
fn read_skew_is_found() {
    let both = [(1, deeds(&[], &[X, Y])), (2, deeds(&[(X, None), (Y, Some(1))], &[]))];
    assert!(matches!(history(&both, &[(X, &[1]), (Y, &[1])]).check(), Err(Anomaly::Cycle(_))));
}

#[test]
fn history_check_finds_a_change_applied_twice() {
    let writer = [(1, deeds(&[], &[X]))];
    assert_eq!(history(&writer, &[(X, &[1, 1])]).check(), Err(Anomaly::Repeated(1, X)));
}

#[test]
fn views_of_the_past_are_found() {
    let writer = (1, Deeds { began: 1, ended: Some(2), ..deeds(&[], &[X]) });
    let reader = (2, Deeds { began: 3, ended: Some(4), ..deeds(&[(X, None)], &[]) });
    assert!(matches!(history(&[writer, reader], &[(X, &[1])]).check(), Err(Anomaly::Cycle(_))));
}
