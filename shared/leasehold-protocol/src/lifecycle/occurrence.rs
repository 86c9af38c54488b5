//! An operator sets which occurrence counts as the last one that is done.

use super::{CorruptRecord, FOREVER_SECONDS, Field, LockView, Row, Stamp, Step, is_other_kind, shown};
use crate::model::SetOccurrence;

/// The result of a change of the last occurrence.
#[derive(Debug, Clone, PartialEq)]
pub enum OccurrenceAnswer {
    /// The row records this occurrence as the last one that is done, by this request or an earlier one. Contains the
    /// row.
    Recorded(Row),
    /// The lock has a holder, whose run may still complete.
    Held(LockView),
    /// The row changed since the operator read it, or does not exist.
    VersionMismatch(Option<LockView>),
    /// The row is no lock.
    WrongKind,
}

/// Records an occurrence as the last one that is done. The row must be released, no tombstone, and have the version
/// that the operator saw. A late copy therefore undoes no completion.
///
/// # Errors
/// `CorruptRecord` where the lock has a holder, and its row is unreadable.
pub fn set_occurrence(
    row: Option<&Row>,
    request: &SetOccurrence,
    stamp: &Stamp,
) -> Result<Step<OccurrenceAnswer>, CorruptRecord> {
    let last_occurrence = Field::Value(request.last.as_str().to_owned());
    let answer = match row {
        _ if is_other_kind(row) => OccurrenceAnswer::WrongKind,
        None => OccurrenceAnswer::VersionMismatch(None),
        Some(row) if row.is_deleted() => OccurrenceAnswer::VersionMismatch(None),
        Some(row) if row.last_occurrence == last_occurrence => OccurrenceAnswer::Recorded(row.clone()),
        Some(row) if !row.has_rvn(request.seen.as_str()) => OccurrenceAnswer::VersionMismatch(shown(row)),
        Some(row) if !row.released => OccurrenceAnswer::Held(row.lock()?),
        Some(row) => {
            let set = Row {
                rvn: Field::Value(stamp.rvn.clone()),
                lease_version: Field::Value(stamp.rvn.clone()),
                expire_at: None,
                last_occurrence,
                occurrence_seconds: Some(FOREVER_SECONDS),
                ..row.clone()
            };
            return Ok(Step::made(set.clone(), (), OccurrenceAnswer::Recorded(set)));
        }
    };
    Ok(Step::kept(row.cloned(), answer))
}
