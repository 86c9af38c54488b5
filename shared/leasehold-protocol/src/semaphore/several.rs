//! Permits as one of several keys that are wanted together: the part of [`crate::lifecycle::together`] that a
//! semaphore has.
//!
//! The rules are those of [`lifecycle::acquire`], with three differences. The fencing token is the one of all keys. A
//! caller has no place in the queue: while somebody else waits, it is refused, and while its lease id waits itself, the
//! lease id is lost. A renewal renews the token as well.

use super::lifecycle::{self, Found, Grant, Holder, Refusal, Semaphore, Step, refused};
use super::model::{Acquire, Member};
use crate::lifecycle::together::Form;
use crate::lifecycle::{CorruptRecord, LostReason, Order, Policy, Stamp, order};

pub(crate) use super::lifecycle::Change;

/// Grants permits as one of several keys, under a token that the attempt has yet to give.
///
/// # Errors
/// `CorruptRecord` where no fencing token is left.
pub(crate) fn acquire(
    found: &Found,
    request: &Acquire,
    stamp: &Stamp,
    policy: &Policy,
) -> Result<Step<Grant>, CorruptRecord> {
    let me = Member::new(&request.key, &request.lease_id);
    if found.semaphore().is_some_and(|row| row.queue.contains_key(&me.ticket_id())) {
        return Ok(refused(found, Refusal::Lost(LostReason::Queued)));
    }
    let step = lifecycle::acquire(found, request, stamp, policy)?;
    let is_earlier = found.semaphore().is_some_and(|row| !row.has_rings);
    Ok(Step { change: step.change.map(|change| if is_earlier { Change::Upgrade } else { change }), ..step })
}

/// The write that this content calls for: the operation's own, where no content is known.
///
/// # Errors
/// `CorruptRecord` where no fencing token is left.
pub(crate) fn change(
    seen: Option<&Found>,
    request: &Acquire,
    form: Form,
    stamp: &Stamp,
    policy: &Policy,
) -> Result<Change, CorruptRecord> {
    match (seen, form) {
        (Some(Found::Semaphore(row)), _) if !row.has_rings => Ok(Change::Upgrade),
        (Some(found), Form::Acquisition) => Ok(acquire(found, request, stamp, policy)?.change.unwrap_or_default()),
        _ => Ok(Change::Main),
    }
}

/// Returns the row that an attempt leaves; nothing where the semaphore refuses. A write other than the operation's own
/// is made for the content that was seen.
pub(crate) fn written(
    found: &Found,
    request: &Acquire,
    form: Form,
    fencing_token: u64,
    seen: Option<&Found>,
    stamp: &Stamp,
    policy: &Policy,
) -> Option<Semaphore> {
    if countable_token(found).ok()? >= fencing_token {
        return None;
    }
    let own = found.semaphore().and_then(|row| own(row, request));
    match (form, own) {
        (Form::Acquisition, None) => {
            let step = acquire(found, request, stamp, policy).ok()?;
            let is_made = match step.change? {
                Change::Main => true,
                Change::Create(_) => seen == Some(found),
                Change::Renew | Change::Grant | Change::Bury | Change::Upgrade => false,
            };
            let row = step.row.filter(|_| is_made)?;
            Some(under(row, request, fencing_token))
        }
        (Form::Renewal, Some(holder)) => {
            let is_new = order(request.sequence.as_ref(), holder.claim.sequence.as_ref()) == Order::New;
            let row = found.semaphore().filter(|row| row.has_rings)?;
            (is_new && holder.claim.permits == request.permits.get())
                .then(|| under(lifecycle::renewed(row, request, stamp, policy), request, fencing_token))
        }
        _ => None,
    }
}

/// The row with this token for the holder that was just granted or renewed.
pub(crate) fn under(mut row: Semaphore, request: &Acquire, fencing_token: u64) -> Semaphore {
    let me = Member::new(&request.key, &request.lease_id);
    row.fencing_token = fencing_token;
    if let Some(holder) = row.holders.get_mut(&me.holder_id()) {
        holder.fencing_token = fencing_token;
    }
    row
}

/// The holder of this lease id, unless it is bound to another principal.
pub(crate) fn own<'a>(row: &'a Semaphore, request: &Acquire) -> Option<&'a Holder> {
    let me = Member::new(&request.key, &request.lease_id);
    row.holders.get(&me.holder_id()).filter(|holder| holder.claim.admits(request.principal.as_ref()))
}

/// The token that the next one must exceed.
///
/// # Errors
/// `CorruptRecord` where no higher one is left.
pub(crate) fn countable_token(found: &Found) -> Result<u64, CorruptRecord> {
    match found {
        Found::Semaphore(row) => row.countable_token(),
        Found::Free(tombstone) => Ok(tombstone.as_ref().and_then(|it| it.fencing_token).unwrap_or_default()),
        Found::OtherKind => Ok(0),
    }
}

/// The reason why this lease id, which holds other keys of its request, has no permits here.
pub(crate) fn loss(found: &Found, request: &Acquire) -> LostReason {
    let me = Member::new(&request.key, &request.lease_id);
    match found {
        Found::Free(_) => LostReason::Absent,
        Found::OtherKind => LostReason::TakenOver,
        Found::Semaphore(row) if row.queue.contains_key(&me.ticket_id()) => LostReason::Queued,
        Found::Semaphore(row) => row.lost(&me),
    }
}
