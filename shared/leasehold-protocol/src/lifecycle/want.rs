//! Rule 15: a waiter marks the lock, and its holder learns that somebody waits.
//!
//! A mark is a hint, and no sign of life: it changes no version, no lease and no time.

use super::{Field, Row, Step, is_other_kind};
use crate::model::Want;

/// The result of a want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantAnswer {
    /// The lock is marked. Its holder learns it with its next heartbeat, or with its release.
    Marked,
    /// Somebody marked the lock before.
    AlreadyMarked,
    /// The lock is released or not there: ask for it now.
    Free,
    /// Another client wrote the row. Its holder would not learn of a mark.
    NotOurs,
    /// The row is no lock.
    WrongKind,
}

impl Row {
    /// The owner name of the waiter who marked the lock under its current holder. A mark on a row that another client
    /// overwrote in place is not the current holder's.
    pub fn wanted_by(&self) -> Option<&String> {
        self.mark.as_ref().filter(|_| !self.released && self.is_written_by_us())
    }

    /// Whether the last write of the row was ours.
    fn is_written_by_us(&self) -> bool {
        matches!(&self.lease_version, Field::Value(version) if self.has_rvn(version))
    }
}

/// Marks a lock that is held and ours, and carries no mark.
pub fn want(row: Option<&Row>, request: &Want) -> Step<WantAnswer> {
    let answer = match row {
        _ if is_other_kind(row) => WantAnswer::WrongKind,
        None => WantAnswer::Free,
        Some(row) if row.released => WantAnswer::Free,
        Some(row) if !row.is_written_by_us() => WantAnswer::NotOurs,
        Some(row) if row.mark.is_some() => WantAnswer::AlreadyMarked,
        Some(row) => {
            let mark = Some(request.owner_name.as_str().to_owned());
            return Step::made(Row { mark, ..row.clone() }, (), WantAnswer::Marked);
        }
    };
    Step::kept(row.cloned(), answer)
}
