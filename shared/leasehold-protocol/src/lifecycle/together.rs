//! Several locks at once, all or none, under one fencing token.
//!
//! DynamoDB carries out an [`Attempt`] as one transaction. The condition of each row is that of an acquire, and that
//! the row's fencing token is below the attempt's. An acquisition also requires that the lease id does not hold the
//! row, and a renewal that it does. An acquisition therefore never mixes with a renewal, and the rows refuse a late
//! attempt. DynamoDB returns the rows that refuse, and [`decide`] derives from them the answer or the next attempt.

use super::{
    AcquireAnswer, CorruptRecord, Field, LockView, Lost, LostReason, Order, Policy, Row, Stamp, Superseded, grant,
    is_renewal, lost, refusal, superseded,
};
use crate::model::{Acquire, LockKey};

/// One transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The rows that it is for.
    pub form: Form,
    /// The fencing token of all rows, higher than each row's own.
    pub fencing_token: u64,
}

/// The kind of rows that an attempt is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Rows of which the lease id holds none.
    Acquisition,
    /// Rows of which the lease id holds all.
    Renewal,
}

/// The reply of one row to an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Vote {
    /// The row would have been written.
    Yes,
    /// The row refuses. Contains the row as it is.
    No(Option<Row>),
}

/// The result of an acquisition of several locks.
#[derive(Debug, Clone, PartialEq)]
pub enum AcquireAllAnswer {
    /// The caller holds all locks.
    Granted(GrantOfAll),
    /// Other holders have these.
    Held(Vec<LockView>),
    /// The lease id holds some of the locks and not these, or its acquisition of these has ended.
    Lost(Vec<(LockKey, Lost)>),
    /// The caller holds all locks, and has sent a later request.
    Superseded(Superseded),
    /// These keys are no locks.
    WrongKind(Vec<LockKey>),
}

/// A grant of several locks together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantOfAll {
    /// Higher than every token granted for any of the keys before.
    pub fencing_token: u64,
    /// The record version number of each row, in the order of the request.
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

/// Whether a row agrees to its part of an attempt.
fn agrees(row: Option<&Row>, request: &Acquire, attempt: &Attempt, stamp: &Stamp, policy: &Policy) -> bool {
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

/// Returns the vote of each row if any row refuses; otherwise the rows that the attempt leaves.
///
/// # Errors
/// `CorruptRecord` where no token can be counted from a fencing token.
pub fn attempt(
    rows: &[Option<Row>],
    requests: &[Acquire],
    attempt: &Attempt,
    stamps: &[Stamp],
    policy: &Policy,
) -> Result<Result<Vec<Row>, Vec<Vote>>, CorruptRecord> {
    let parts = || rows.iter().map(Option::as_ref).zip(requests).zip(stamps);
    let agrees = |((row, request), stamp)| agrees(row, request, attempt, stamp, policy);
    if !parts().all(agrees) {
        let vote = |part| if agrees(part) { Vote::Yes } else { Vote::No(part.0.0.cloned()) };
        return Ok(Err(parts().map(vote).collect()));
    }
    let granted = |((row, request), stamp)| {
        let granted = grant(row, request, stamp, policy)?;
        Ok(Row { fencing_token: Field::Value(attempt.fencing_token), ..granted.row })
    };
    parts().map(granted).collect::<Result<_, _>>().map(Ok)
}

/// Returns the consequence of the votes on an attempt that at least one row refused.
///
/// # Errors
/// `CorruptRecord` where a row is unreadable: an unreadable row is never taken for free.
pub fn decide(
    votes: &[Vote],
    requests: &[Acquire],
    stamps: &[Stamp],
    policy: &Policy,
) -> Result<Verdict, CorruptRecord> {
    let own: Vec<_> =
        votes.iter().zip(requests).map(|(vote, request)| vote.row().filter(|row| is_own(row, request))).collect();
    let held: Vec<&Row> = own.iter().copied().flatten().collect();
    if held.len() == votes.len() {
        return decide_own(&held, &requests[0]);
    }
    if !held.is_empty() {
        let others = votes.iter().zip(requests).zip(&own).filter(|(_, own)| own.is_none());
        let others = others.map(|((vote, request), _)| (request.key.clone(), vote.loss(request)));
        return Ok(Verdict::Answer(AcquireAllAnswer::Lost(others.collect())));
    }
    decide_foreign(votes, requests, stamps, policy)
}

/// The lease id holds all rows: the request is a repeat, or late, or a renewal.
fn decide_own(rows: &[&Row], request: &Acquire) -> Result<Verdict, CorruptRecord> {
    let is = |order: Order| rows.iter().all(|row| row.order(request.sequence.as_ref()) == order);
    if is(Order::New) {
        return above(rows.iter().copied()).map(|token| again(Form::Renewal, token));
    }
    if is(Order::Repeat) {
        let version = |row: &&Row| row.rvn.require("recordVersionNumber").cloned();
        let versions = rows.iter().map(version).collect::<Result<_, _>>()?;
        let tokens = rows.iter().filter_map(|row| row.fencing_token.value());
        let fencing_token = tokens.max().copied().unwrap_or_default();
        return Ok(Verdict::Answer(AcquireAllAnswer::Granted(GrantOfAll { fencing_token, versions })));
    }
    let latest = rows.iter().max_by_key(|row| row.sequence.as_ref().map_or(0, crate::model::Sequence::number));
    let answer = latest.map(|row| AcquireAllAnswer::Superseded(superseded(row)));
    Ok(Verdict::Answer(answer.unwrap_or(AcquireAllAnswer::Held(Vec::new()))))
}

/// The lease id holds none of the rows. It ended some, others hold some, or some have a higher token.
fn decide_foreign(
    votes: &[Vote],
    requests: &[Acquire],
    stamps: &[Stamp],
    policy: &Policy,
) -> Result<Verdict, CorruptRecord> {
    let (mut held, mut lost, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for ((vote, request), stamp) in votes.iter().zip(requests).zip(stamps) {
        let Some(row) = vote.row() else { continue };
        let Some(answer) = refusal(Some(row), request, stamp, policy)? else { continue };
        match answer {
            AcquireAnswer::WrongKind => others.push(request.key.clone()),
            AcquireAnswer::Lost(ended) => lost.push((request.key.clone(), ended)),
            AcquireAnswer::Held(lock) | AcquireAnswer::HeldBeyondClocks(lock) => held.push(lock),
            // Cannot occur: the lease id does not hold the row, the request has no occurrence, and it creates a missing
            // row.
            AcquireAnswer::Granted(_)
            | AcquireAnswer::Superseded(_)
            | AcquireAnswer::AlreadyDone(_)
            | AcquireAnswer::NotFound => {}
        }
    }
    if !others.is_empty() {
        return Ok(Verdict::Answer(AcquireAllAnswer::WrongKind(others)));
    }
    if !lost.is_empty() {
        return Ok(Verdict::Answer(AcquireAllAnswer::Lost(lost)));
    }
    if !held.is_empty() {
        return Ok(Verdict::Answer(AcquireAllAnswer::Held(held)));
    }
    above(votes.iter().filter_map(Vote::row)).map(|token| again(Form::Acquisition, token))
}

fn again(form: Form, fencing_token: u64) -> Verdict {
    Verdict::Again(Attempt { form, fencing_token })
}

/// Returns a token higher than those of all rows.
fn above<'a>(rows: impl Iterator<Item = &'a Row>) -> Result<u64, CorruptRecord> {
    let mut highest = 0;
    for row in rows {
        highest = highest.max(row.countable_token()?.unwrap_or_default());
    }
    Ok(highest + 1)
}

impl Vote {
    fn row(&self) -> Option<&Row> {
        match self {
            Self::Yes => None,
            Self::No(row) => row.as_ref(),
        }
    }

    /// Returns why the caller, who holds others of the requested locks, does not hold this one. A row that agreed was
    /// not returned.
    fn loss(&self, request: &Acquire) -> Lost {
        match self {
            Self::Yes => Lost { reason: LostReason::Absent, lock: None },
            Self::No(row) => lost(row.as_ref(), &request.lease_id.hash()),
        }
    }
}
