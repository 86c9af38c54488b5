//! The decisions of the protocol, as pure functions.

use crate::model::State;

/// The part of a locked item that a reader of committed states may show. The reader read the item first and then the
/// record of the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
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
    pub(crate) const fn of(holder: Option<State>) -> Self {
        match holder {
            Some(State::Pending | State::RolledBack) => Self::Before,
            Some(State::Committed) => Self::AsReadAfter,
            None => Self::Again,
        }
    }
}
