//! The history of locks: who held what, and how it ended.
//!
//! Nobody writes it in the lock's path. [`transition`] makes it of the images of a row before and after each change,
//! which the table's stream has, or the embedded engine. [`HistoryTable`] keeps it in a table of its own.

mod table;

use crate::lifecycle::Row;

pub use table::{HistoryPage, HistoryQuery, HistoryTable, RowChange, ensure_history_table};

/// What became of the holder of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryEvent {
    /// A free lock got a holder.
    Acquired,
    /// The holder acquired it once more, under the same lease id and a new fencing token.
    Renewed,
    /// A holder without a sign of life lost it to another one.
    TakenOver,
    /// The holder gave it back.
    Released,
    /// An operator took it from its holder.
    Broken,
    /// Nobody took it over, and DynamoDB's TTL removed its row.
    Expired,
    /// The row was deleted while the lock had a holder: the Java client releases in this way.
    Deleted,
}

impl HistoryEvent {
    /// All events, by their names.
    pub const ALL: [(&str, Self); 7] = [
        ("acquired", Self::Acquired),
        ("renewed", Self::Renewed),
        ("takenOver", Self::TakenOver),
        ("released", Self::Released),
        ("broken", Self::Broken),
        ("expired", Self::Expired),
        ("deleted", Self::Deleted),
    ];

    /// The name, as the table stores it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, event)| *event == self).map_or("", |(name, _)| name)
    }

    fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(own, _)| *own == name).map(|(_, event)| *event)
    }
}

/// One event in the life of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// What happened.
    pub event: HistoryEvent,
    /// The holder: the new one, or the one whose time ended. None where the row's owner is unreadable.
    pub owner_name: Option<String>,
    /// Its fencing token. Absent where another client wrote the row.
    pub fencing_token: Option<u64>,
    /// The occurrence that the acquisition is for, or that the release completed.
    pub occurrence: Option<String>,
    /// The holder that a takeover ended.
    pub previous_owner_name: Option<String>,
    /// Its fencing token.
    pub previous_fencing_token: Option<u64>,
}

/// Returns what a change of a row did to the holder of its lock. Nothing, where the row was and is held under one
/// acquisition, or was and is free. `is_expiry` says that DynamoDB's TTL removed the row.
///
/// A Java client that renews or takes over writes one and the same row where the owner keeps its name, so such a
/// takeover from itself is not told.
pub fn transition(old: Option<&Row>, new: Option<&Row>, is_expiry: bool) -> Option<HistoryEntry> {
    let (held, holds) = (old.filter(|row| row.is_held()), new.filter(|row| row.is_held()));
    match (held, holds) {
        (None, None) => None,
        (None, Some(new)) => Some(HistoryEntry::of(HistoryEvent::Acquired, new, new.occurrence.as_ref())),
        (Some(old), Some(new)) if old.is_grant_of(new) => None,
        (Some(old), Some(new)) if old.is_renewed_by(new) => {
            Some(HistoryEntry::of(HistoryEvent::Renewed, new, new.occurrence.as_ref()))
        }
        (Some(old), Some(new)) => Some(HistoryEntry {
            previous_owner_name: old.owner_name.value().cloned(),
            previous_fencing_token: old.fencing_token.value().copied(),
            ..HistoryEntry::of(HistoryEvent::TakenOver, new, new.occurrence.as_ref())
        }),
        (Some(old), None) => {
            let event = match new {
                None if is_expiry => HistoryEvent::Expired,
                None => HistoryEvent::Deleted,
                Some(new) if new.other_kind => HistoryEvent::Deleted,
                Some(new) if new.is_broken() => HistoryEvent::Broken,
                Some(_) => HistoryEvent::Released,
            };
            // A Java client that takes a row over in place keeps what was completed before.
            let completed = new.and_then(|row| row.completed_occurrence.as_ref());
            let completed = completed.filter(|&name| old.completed_occurrence.as_ref() != Some(name));
            Some(HistoryEntry::of(event, old, completed))
        }
    }
}

impl HistoryEntry {
    fn of(event: HistoryEvent, row: &Row, occurrence: Option<&String>) -> Self {
        Self {
            event,
            owner_name: row.owner_name.value().cloned(),
            fencing_token: row.fencing_token.value().copied(),
            occurrence: occurrence.cloned(),
            previous_owner_name: None,
            previous_fencing_token: None,
        }
    }
}
