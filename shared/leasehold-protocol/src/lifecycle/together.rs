//! Several keys at once, locks and permits of semaphores, all or none, under one fencing token.
//!
//! DynamoDB carries out an [`Attempt`] as one transaction. The condition of each row is that of an acquire, and that
//! the row's fencing token is below the attempt's. An acquisition also requires that the lease id does not hold the
//! row, and a renewal that it does. An acquisition therefore never mixes with a renewal, and the rows refuse a late
//! attempt. DynamoDB returns the rows that refuse, and [`decide`] derives from them the answer or the next attempt.
//!
//! A request for several waits in no queue: while somebody waits for a semaphore, it is refused.

use super::{
    AcquireAnswer, CorruptRecord, Field, LockView, LostReason, Order, Policy, Row, Stamp, Superseded, grant,
    is_renewal, lost, order, refusal, superseded,
};
use crate::model::{Acquire, LockKey, Sequence, Wanted};
use crate::semaphore::several;
use crate::semaphore::{self, Found, Holder, Refusal, Semaphore};

/// One transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The rows that it is for.
    pub form: Form,
    /// The fencing token of all rows, higher than each row's own.
    pub fencing_token: u64,
    /// For each key of a semaphore, its content that refused an attempt before: the next write is made for it. None
    /// before the first refusal, and for locks.
    pub seen: Vec<Option<Found>>,
}

/// The kind of rows that an attempt is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Rows of which the lease id holds none.
    Acquisition,
    /// Rows of which the lease id holds all.
    Renewal,
}

/// The content of a key, as the request for it reads it.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A key that is wanted as a lock.
    Lock(Option<Row>),
    /// A key that is wanted as a semaphore.
    Permits(Found),
}

/// The reply of one row to an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Vote {
    /// The row would have been written.
    Yes,
    /// The row refuses. Contains the key as it is.
    No(Content),
}

/// The result of an acquisition of several keys.
#[derive(Debug, Clone, PartialEq)]
pub enum AcquireAllAnswer {
    /// The caller holds all keys.
    Granted(GrantOfAll),
    /// Other holders have these locks, or these semaphores have too few free permits, or somebody waits for them.
    Held(Vec<Refused>),
    /// The lease id holds some of the keys and not these, or its acquisition of these has ended.
    Lost(Vec<Refused>),
    /// The caller holds all keys, and has sent a later request. Where that was about a semaphore, contains it.
    Superseded(Superseded, Option<Box<Semaphore>>),
    /// These keys are no locks, or no semaphores, as they were wanted.
    WrongKind(Vec<Refused>),
    /// These semaphores have fewer permits in all than were wanted.
    ExceedsCapacity(Vec<Refused>),
    /// The lease id holds all keys, and has other permits of these.
    PermitsMismatch(Vec<Refused>),
}

/// A key that refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    /// The key.
    pub key: LockKey,
    /// The reason of a loss.
    pub reason: Option<LostReason>,
    /// The key's public view, if there is one.
    pub view: Option<View>,
}

/// The public view of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum View {
    /// A lock.
    Lock(LockView),
    /// A semaphore.
    Semaphore(Box<Semaphore>),
}

/// A grant of several keys together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantOfAll {
    /// Higher than every token granted for any of the keys before.
    pub fencing_token: u64,
    /// The record version number of each lock, and the version of each holder of permits, in the order of the request.
    pub versions: Vec<String>,
}

/// The consequence of a refused attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The answer to the caller.
    Answer(AcquireAllAnswer),
    /// The next attempt, which may succeed.
    Again(Attempt),
}

impl Attempt {
    /// The first attempt at a request for this number of keys. The table raises its token to the clock's.
    pub fn first(keys: usize) -> Self {
        Self { form: Form::Acquisition, fencing_token: 0, seen: vec![None; keys] }
    }
}

/// Whether a lock agrees to its part of an attempt.
fn lock_agrees(row: Option<&Row>, request: &Acquire, attempt: &Attempt, stamp: &Stamp, policy: &Policy) -> bool {
    let has_lower_token = row.is_none_or(|row| match row.fencing_token {
        Field::Absent => true,
        Field::Value(token) => token < attempt.fencing_token,
        Field::Unreadable => false,
    });
    let is_own = row.is_some_and(|row| is_own(row, request));
    has_lower_token
        && is_own == (attempt.form == Form::Renewal)
        && matches!(refusal(row, request, stamp, policy), Ok(None))
}

fn is_own(row: &Row, request: &Acquire) -> bool {
    !row.other_kind && !row.released && is_renewal(row, request)
}

/// Returns the content that an attempt leaves of one key; nothing where the key refuses.
///
/// # Errors
/// `CorruptRecord` where no token can be counted from a fencing token.
fn written(
    content: &Content,
    wanted: &Wanted,
    (attempt, seen): (&Attempt, Option<&Found>),
    stamp: &Stamp,
    policy: &Policy,
) -> Result<Option<Content>, CorruptRecord> {
    match (content, wanted) {
        (Content::Lock(row), Wanted::Lock(request)) => {
            if !lock_agrees(row.as_ref(), request, attempt, stamp, policy) {
                return Ok(None);
            }
            let granted = grant(row.as_ref(), request, stamp, policy)?;
            let row = Row { fencing_token: Field::Value(attempt.fencing_token), ..granted.row };
            Ok(Some(Content::Lock(Some(row))))
        }
        (Content::Permits(found), Wanted::Permits(request)) => {
            let row = several::written(found, request, attempt.form, attempt.fencing_token, seen, stamp, policy);
            Ok(row.map(|row| Content::Permits(Found::Semaphore(Box::new(row)))))
        }
        _ => Ok(None),
    }
}

/// Returns the vote of each row if any row refuses; otherwise the contents that the attempt leaves.
///
/// # Errors
/// `CorruptRecord` where no token can be counted from a fencing token.
pub fn attempt(
    contents: &[Content],
    wanted: &[Wanted],
    attempt: &Attempt,
    stamps: &[Stamp],
    policy: &Policy,
) -> Result<Result<Vec<Content>, Vec<Vote>>, CorruptRecord> {
    let parts = contents.iter().zip(wanted).zip(stamps).zip(&attempt.seen);
    let results = parts.map(|(((content, wanted), stamp), seen)| {
        Ok((content, written(content, wanted, (attempt, seen.as_ref()), stamp, policy)?))
    });
    let results: Vec<_> = results.collect::<Result<_, _>>()?;
    if results.iter().all(|(_, written)| written.is_some()) {
        return Ok(Ok(results.into_iter().filter_map(|(_, written)| written).collect()));
    }
    let vote = |(content, written): (&Content, Option<Content>)| match written {
        Some(_) => Vote::Yes,
        None => Vote::No(content.clone()),
    };
    Ok(Err(results.into_iter().map(vote).collect()))
}

/// Returns the consequence of the votes on `attempt`, which at least one row refused.
///
/// # Errors
/// `CorruptRecord` where a row is unreadable: an unreadable row is never taken for free.
pub fn decide(
    votes: &[Vote],
    wanted: &[Wanted],
    attempt: &Attempt,
    stamps: &[Stamp],
    policy: &Policy,
) -> Result<Verdict, CorruptRecord> {
    let own: Vec<_> = votes.iter().zip(wanted).map(|(vote, wanted)| vote.own(wanted)).collect();
    // A row that agreed to a renewal is the lease id's, and was not returned.
    let is_own =
        |(vote, own): (&Vote, &Option<Own<'_>>)| own.is_some() || (attempt.form == Form::Renewal && *vote == Vote::Yes);
    let is_own: Vec<_> = votes.iter().zip(&own).map(is_own).collect();
    if is_own.iter().all(|is_own| *is_own) {
        return decide_own(&own, wanted, attempt);
    }
    if is_own.iter().any(|is_own| *is_own) {
        let others = votes.iter().zip(wanted).zip(is_own).filter(|(_, is_own)| !is_own);
        let others = others.map(|((vote, wanted), _)| vote.loss(wanted, &stamps[0], policy));
        return Ok(Verdict::Answer(AcquireAllAnswer::Lost(others.collect::<Result<_, _>>()?)));
    }
    decide_foreign(votes, wanted, attempt, stamps, policy)
}

/// A key that the lease id holds.
#[derive(Debug, Clone, Copy)]
enum Own<'a> {
    Lock(&'a Row),
    Permits(&'a Semaphore, &'a Holder),
}

impl Own<'_> {
    fn sequence(&self) -> Option<&Sequence> {
        match self {
            Self::Lock(row) => row.sequence.as_ref(),
            Self::Permits(_, holder) => holder.claim.sequence.as_ref(),
        }
    }

    fn version(&self) -> Result<String, CorruptRecord> {
        match self {
            Self::Lock(row) => row.rvn.require("recordVersionNumber").cloned(),
            Self::Permits(_, holder) => Ok(holder.claim.version.clone()),
        }
    }

    /// The fencing token of the grant.
    fn token(&self) -> Option<u64> {
        match self {
            Self::Lock(row) => row.fencing_token.value().copied(),
            Self::Permits(_, holder) => Some(holder.fencing_token),
        }
    }

    fn countable_token(&self) -> Result<u64, CorruptRecord> {
        match self {
            Self::Lock(row) => Ok(row.countable_token()?.unwrap_or_default()),
            Self::Permits(row, _) => row.countable_token(),
        }
    }

    /// The content of a semaphore's key.
    fn found(&self) -> Option<Found> {
        match self {
            Self::Lock(_) => None,
            Self::Permits(row, _) => Some(Found::Semaphore(Box::new((*row).clone()))),
        }
    }

    fn superseded(&self) -> Superseded {
        match self {
            Self::Lock(row) => superseded(row),
            Self::Permits(_, holder) => Superseded {
                sequence: holder.claim.sequence.as_ref().map_or(0, Sequence::number),
                rvn: Some(holder.claim.version.clone()),
                fencing_token: Some(holder.fencing_token),
                lock: None,
            },
        }
    }

    /// The refusal of a renewal with other permits than the holder has.
    fn mismatch(&self, wanted: &Wanted) -> Option<Refused> {
        match (self, wanted) {
            (Self::Permits(row, holder), Wanted::Permits(request)) if holder.claim.permits != request.permits.get() => {
                let view = Some(View::Semaphore(Box::new((*row).clone())));
                Some(Refused { key: request.key.clone(), reason: None, view })
            }
            _ => None,
        }
    }
}

/// The lease id holds all keys: the request is a repeat, or late, or a renewal. A key that agreed to a renewal is none
/// of these.
fn decide_own(own: &[Option<Own<'_>>], wanted: &[Wanted], attempt: &Attempt) -> Result<Verdict, CorruptRecord> {
    let rows: Vec<_> = own.iter().copied().flatten().collect();
    let sequence = wanted.first().and_then(Wanted::sequence);
    let is = |expected: Order| rows.iter().all(|row| order(sequence, row.sequence()) == expected);
    if is(Order::New) {
        let parts = own.iter().zip(wanted);
        let mismatches: Vec<_> = parts.filter_map(|(row, wanted)| row.as_ref()?.mismatch(wanted)).collect();
        if !mismatches.is_empty() {
            return Ok(Verdict::Answer(AcquireAllAnswer::PermitsMismatch(mismatches)));
        }
        let mut next = Attempt { form: Form::Renewal, ..attempt.clone() };
        for (row, seen) in own.iter().zip(&mut next.seen) {
            let Some(row) = row else { continue };
            next.fencing_token = next.fencing_token.max(row.countable_token()? + 1);
            *seen = row.found();
        }
        return Ok(Verdict::Again(next));
    }
    if rows.len() == own.len() && is(Order::Repeat) {
        let versions = rows.iter().map(Own::version).collect::<Result<_, _>>()?;
        let fencing_token = rows.iter().filter_map(Own::token).max().unwrap_or_default();
        return Ok(Verdict::Answer(AcquireAllAnswer::Granted(GrantOfAll { fencing_token, versions })));
    }
    let latest = rows.iter().max_by_key(|row| row.sequence().map_or(0, Sequence::number));
    let semaphore = |row: &Own<'_>| match row {
        Own::Lock(_) => None,
        Own::Permits(row, _) => Some(Box::new((*row).clone())),
    };
    let answer = latest.map(|row| AcquireAllAnswer::Superseded(row.superseded(), semaphore(row)));
    Ok(Verdict::Answer(answer.unwrap_or(AcquireAllAnswer::Held(Vec::new()))))
}

/// The refusals of an attempt at keys of which the lease id holds none, by their kinds.
#[derive(Default)]
struct Refusals {
    held: Vec<Refused>,
    lost: Vec<Refused>,
    others: Vec<Refused>,
    exceeding: Vec<Refused>,
}

impl Refusals {
    /// The refusal to tell: one that no wait can change comes first.
    fn answer(self) -> Option<AcquireAllAnswer> {
        let answers = [
            (self.others, AcquireAllAnswer::WrongKind as fn(Vec<Refused>) -> AcquireAllAnswer),
            (self.lost, AcquireAllAnswer::Lost),
            (self.exceeding, AcquireAllAnswer::ExceedsCapacity),
            (self.held, AcquireAllAnswer::Held),
        ];
        answers.into_iter().find(|(refused, _)| !refused.is_empty()).map(|(refused, answer)| answer(refused))
    }

    fn of_lock(
        &mut self,
        row: Option<&Row>,
        request: &Acquire,
        stamp: &Stamp,
        policy: &Policy,
    ) -> Result<(), CorruptRecord> {
        let refused = |reason, lock: Option<LockView>| {
            let (key, view) = (request.key.clone(), lock.map(View::Lock));
            Refused { key, reason, view }
        };
        match refusal(row, request, stamp, policy)? {
            Some(AcquireAnswer::WrongKind) => self.others.push(refused(None, None)),
            Some(AcquireAnswer::Lost(ended)) => self.lost.push(refused(Some(ended.reason), ended.lock)),
            Some(AcquireAnswer::Held(lock) | AcquireAnswer::HeldBeyondClocks(lock)) => {
                self.held.push(refused(None, Some(lock)));
            }
            // Cannot occur: the lease id does not hold the row, the request has no occurrence, and it creates a missing
            // row.
            None
            | Some(
                AcquireAnswer::Granted(_)
                | AcquireAnswer::Superseded(_)
                | AcquireAnswer::AlreadyDone(_)
                | AcquireAnswer::NotFound,
            ) => {}
        }
        Ok(())
    }

    fn of_permits(
        &mut self,
        found: &Found,
        request: &semaphore::Acquire,
        stamp: &Stamp,
        policy: &Policy,
    ) -> Result<(), CorruptRecord> {
        let Err(refusal) = several::acquire(found, request, stamp, policy)?.answer else { return Ok(()) };
        let view = found.semaphore().map(|row| View::Semaphore(Box::new(row.clone())));
        let refused = |reason| Refused { key: request.key.clone(), reason, view };
        match refusal {
            Refusal::OtherKind => self.others.push(refused(None)),
            Refusal::Lost(reason) => self.lost.push(refused(Some(reason))),
            Refusal::ExceedsCapacity(_) => self.exceeding.push(refused(None)),
            // Permits of this lease id that are bound to another principal are somebody else's.
            Refusal::Held | Refusal::Forbidden => self.held.push(refused(None)),
            // Cannot occur: the lease id has neither permits nor a ticket.
            Refusal::QueueFull
            | Refusal::Superseded(_)
            | Refusal::PermitsMismatch(_)
            | Refusal::VersionMismatch
            | Refusal::NotFound => {}
        }
        Ok(())
    }
}

/// The lease id holds none of the keys. It ended some, others hold some, or some have a higher token, or need another
/// write.
fn decide_foreign(
    votes: &[Vote],
    wanted: &[Wanted],
    attempt: &Attempt,
    stamps: &[Stamp],
    policy: &Policy,
) -> Result<Verdict, CorruptRecord> {
    let mut refusals = Refusals::default();
    for ((vote, wanted), stamp) in votes.iter().zip(wanted).zip(stamps) {
        match (vote, wanted) {
            (Vote::No(Content::Lock(row)), Wanted::Lock(request)) => {
                refusals.of_lock(row.as_ref(), request, stamp, policy)?;
            }
            (Vote::No(Content::Permits(found)), Wanted::Permits(request)) => {
                refusals.of_permits(found, request, stamp, policy)?;
            }
            _ => {}
        }
    }
    if let Some(answer) = refusals.answer() {
        return Ok(Verdict::Answer(answer));
    }
    let mut next = Attempt { form: Form::Acquisition, ..attempt.clone() };
    for (vote, seen) in votes.iter().zip(&mut next.seen) {
        let Vote::No(content) = vote else { continue };
        let token = match content {
            Content::Lock(row) => row.as_ref().map(Row::countable_token).transpose()?.flatten().unwrap_or_default(),
            Content::Permits(found) => {
                *seen = Some(found.clone());
                several::countable_token(found)?
            }
        };
        next.fencing_token = next.fencing_token.max(token + 1);
    }
    Ok(Verdict::Again(next))
}

impl Vote {
    /// The key, where this lease id holds it.
    fn own(&self, wanted: &Wanted) -> Option<Own<'_>> {
        match (self, wanted) {
            (Self::No(Content::Lock(row)), Wanted::Lock(request)) => {
                row.as_ref().filter(|row| is_own(row, request)).map(Own::Lock)
            }
            (Self::No(Content::Permits(Found::Semaphore(row))), Wanted::Permits(request)) => {
                several::own(row, request).map(|holder| Own::Permits(row, holder))
            }
            _ => None,
        }
    }

    /// Returns why the caller, who holds others of the requested keys, does not hold this one. A row that agreed was
    /// not returned, and one that only needs another write is as good.
    fn loss(&self, wanted: &Wanted, stamp: &Stamp, policy: &Policy) -> Result<Refused, CorruptRecord> {
        let key = wanted.key().clone();
        match (self, wanted) {
            (Self::No(Content::Lock(row)), _) => {
                let lost = lost(row.as_ref(), &wanted.lease_id().hash());
                return Ok(Refused { key, reason: Some(lost.reason), view: lost.lock.map(View::Lock) });
            }
            (Self::No(Content::Permits(found)), Wanted::Permits(request))
                if several::acquire(found, request, stamp, policy)?.answer.is_err() =>
            {
                let view = found.semaphore().map(|row| View::Semaphore(Box::new(row.clone())));
                return Ok(Refused { key, reason: Some(several::loss(found, request)), view });
            }
            _ => {}
        }
        Ok(Refused { key, reason: Some(LostReason::Absent), view: None })
    }
}
