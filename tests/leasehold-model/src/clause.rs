//! The clauses of the protocol that a test can drop, to show that each is needed.

use leasehold_protocol::{
    Acquire, AcquireAnswer, Break, BreakAnswer, Disposal, Field, Heartbeat, HeartbeatAnswer, Policy, Release,
    ReleaseAnswer, Row, Rvn, SetOccurrence, Staleness, Stamp, Want, WantAnswer, lifecycle,
};

use crate::bounds::{Bounds, Runs};

/// A clause of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clause {
    /// Rule 9: a heartbeat is carried out only where its number is higher.
    HeartbeatSequence,
    /// Rule 9: a heartbeat is carried out only under the fencing token of its own grant.
    HeartbeatToken,
    /// Rule 9: an acquire by the row's own lease id is carried out only where its number is higher.
    AcquireSequence,
    /// Rule 9: a repeat has its first answer.
    FirstAnswer,
    /// Rule 11: an acquisition copies the owner and the release that it finds.
    PreviousOwner,
    /// Rule 11: an acquisition copies the lease id's hash that it finds.
    PreviousHash,
    /// Rule 10: a deletion leaves a tombstone.
    Tombstone,
    /// Rule 4: a release and a break change the version.
    EndsChangeVersion,
    /// A client that overwrites the row in place disowns the lease id.
    Disowning,
    /// Rule 2: a lease id is valid for one acquisition.
    LeaseIdsEnd,
    /// Rule 2: a takeover names the version that is in the row.
    ObservedVersion,
    /// Rule 2: the clock's judgement allows for the skew.
    Skew,
    /// Rule 9, the caller's half: a shorter lease counts from its sending.
    Cap,
    /// Rule 9, the caller's half: a lease counts from before its request was first sent.
    CountFromFirst,
    /// Rule 6: a holder counts from before it sent, not from the answer.
    CountFromSending,
    /// Rule 6: an observer counts from after the answer, not from before it sent.
    ObserveFromAnswer,
    /// Rule 12: an observer waits the lease and a thousandth of it.
    Thousandth,
    /// Rule 9, the caller's half: an unanswered acquire is repeated before a new one.
    RepeatBeforeNext,
    /// An occurrence that is done is refused on a free row.
    DueWhenFree,
    /// An occurrence that is done is refused on a stale row.
    DueWhenDead,
    /// A release stores the occurrence that it completes.
    Completion,
    /// An acquisition that is to run at most once stores its occurrence.
    AtMostOnce,
    /// A tombstone keeps the occurrence that is done.
    TombstoneRemembers,
    /// A repeat of the caller's own request gets its answer, although the occurrence counts as done.
    OwnBeforeDone,
    /// Rule 13: a completion is acknowledged to the lease id that made it, and not where the occurrence is done.
    CompletionIsOwn,
    /// Rule 13: an acquisition copies the occurrence that the one before completed.
    CompletionIsCopied,
    /// Rule 13: an operator sets an occurrence back under the version that it saw.
    ResetNeedsVersion,
    /// Rule 15: a mark needs a holder.
    MarkNeedsHolder,
    /// Rule 15: a mark needs a row that we wrote last.
    MarkNeedsOurs,
    /// Rule 15: a lock that is marked is not marked again.
    MarkIsSetOnce,
    /// Rule 15: a mark changes no version.
    MarkKeepsVersion,
    /// Rule 15: an acquire takes the mark off.
    AcquireTakesMark,
    /// Rule 15: a tombstone has no mark.
    TombstoneTakesMark,
    /// Rule 15: a replayed release counts as wanted.
    ReplayIsWanted,
}

impl Clause {
    /// All clauses.
    pub const ALL: [Self; 34] = [
        Self::HeartbeatSequence,
        Self::HeartbeatToken,
        Self::AcquireSequence,
        Self::FirstAnswer,
        Self::PreviousOwner,
        Self::PreviousHash,
        Self::Tombstone,
        Self::EndsChangeVersion,
        Self::Disowning,
        Self::LeaseIdsEnd,
        Self::ObservedVersion,
        Self::Skew,
        Self::Cap,
        Self::CountFromFirst,
        Self::CountFromSending,
        Self::ObserveFromAnswer,
        Self::Thousandth,
        Self::RepeatBeforeNext,
        Self::DueWhenFree,
        Self::DueWhenDead,
        Self::Completion,
        Self::AtMostOnce,
        Self::TombstoneRemembers,
        Self::OwnBeforeDone,
        Self::CompletionIsOwn,
        Self::CompletionIsCopied,
        Self::ResetNeedsVersion,
        Self::MarkNeedsHolder,
        Self::MarkNeedsOurs,
        Self::MarkIsSetOnce,
        Self::MarkKeepsVersion,
        Self::AcquireTakesMark,
        Self::TombstoneTakesMark,
        Self::ReplayIsWanted,
    ];

    /// Bounds within which the absence of the clause shows.
    pub const fn bounds(self) -> Bounds {
        let bounds = Bounds::trace();
        let once = Bounds { attempts: 1, in_flight: 1, requests: 2, ..bounds };
        match self {
            // Two acquisitions after the caller's own, the row has forgotten its lease id.
            Self::HeartbeatToken => Bounds { lease_ids: 2, attempts: 2, in_flight: 3, end: 0, leases: &[200], ..once },
            Self::AcquireSequence => Bounds { copies: 1, ..bounds },
            Self::Tombstone => Bounds { deletes: true, lease_ids: 2, requests: 1, end: 200, leases: &[100], ..bounds },
            Self::EndsChangeVersion => Bounds { java: 1, breaks: 1, requests: 1, end: 200, leases: &[200], ..once },
            Self::Disowning => Bounds { java: 1, leases: &[200], end: 300, ..once },
            Self::LeaseIdsEnd => Bounds { copies: 1, requests: 1, ..bounds },
            Self::ObservedVersion => Bounds { leases: &[200], end: 200, ..once },
            Self::Skew => Bounds { clock: true, requests: 1, leases: &[200], end: 200, ..once },
            Self::Cap => Bounds { end: 100, ..once },
            Self::CountFromSending => Bounds { delays: true, leases: &[200], end: 200, ..once },
            Self::ObserveFromAnswer => Bounds { in_flight: 2, leases: &[200], end: 200, ..once },
            Self::Thousandth => Bounds { drift: true, leases: &[2000], steps: &[1999, 1], end: 2000, ..once },
            Self::DueWhenFree | Self::Completion => {
                Bounds { requests: 1, end: 0, leases: &[200], once: Some(Runs::UntilDone), ..once }
            }
            Self::TombstoneRemembers => {
                Bounds { deletes: true, requests: 1, end: 0, leases: &[200], once: Some(Runs::AtMostOnce), ..once }
            }
            Self::DueWhenDead | Self::AtMostOnce => {
                Bounds { leases: &[200], end: 200, once: Some(Runs::AtMostOnce), ..once }
            }
            Self::CompletionIsOwn => {
                Bounds { breaks: 1, requests: 1, end: 0, leases: &[200], once: Some(Runs::AtMostOnce), ..once }
            }
            Self::CompletionIsCopied | Self::ResetNeedsVersion => Bounds {
                resets: 1,
                copies: 1,
                attempts: 2,
                in_flight: 2,
                requests: 1,
                end: 0,
                leases: &[200],
                once: Some(Runs::UntilDone),
                ..once
            },
            Self::OwnBeforeDone => Bounds { requests: 1, once: Some(Runs::AtMostOnce), ..bounds },
            Self::MarkNeedsHolder
            | Self::MarkNeedsOurs
            | Self::MarkIsSetOnce
            | Self::MarkKeepsVersion
            | Self::AcquireTakesMark
            | Self::TombstoneTakesMark
            | Self::ReplayIsWanted => {
                Bounds { wants: 2, java: 1, deletes: true, attempts: 2, requests: 1, end: 0, leases: &[200], ..once }
            }
            Self::CountFromFirst => Bounds { attempts: 2, leases: &[200], end: 200, ..once },
            _ => bounds,
        }
    }
}

/// The life cycle, with one clause dropped or none. Returns the row afterwards, and the answer.
pub(crate) struct LifeCycle<'a> {
    pub(crate) without: Option<Clause>,
    pub(crate) policy: &'a Policy,
}

impl LifeCycle<'_> {
    fn lacks(&self, clause: Clause) -> bool {
        self.without == Some(clause)
    }

    /// The row that the life cycle gets to see.
    fn seen(&self, row: Option<&Row>) -> Option<Row> {
        let mut row = row?.clone();
        if self.lacks(Clause::Disowning) {
            row.lease_version = Field::Absent;
        }
        Some(row)
    }

    pub(crate) fn acquire(&self, row: Option<&Row>, request: &Acquire, stamp: &Stamp) -> (Option<Row>, AcquireAnswer) {
        let mut request = request.clone();
        let mut policy = *self.policy;
        let mut found = self.seen(row);
        if self.lacks(Clause::AcquireSequence) {
            request.sequence = None;
        }
        if self.lacks(Clause::Skew) {
            policy.clock_skew_ms = 0;
        }
        if let (Staleness::Observed(rvn), Some(row), true) =
            (&mut request.staleness, &found, self.lacks(Clause::ObservedVersion))
        {
            *rvn = Rvn::new("", row.rvn.value().expect("written here").clone()).expect("valid");
        }
        if let (Some(row), true) = (&mut found, self.lacks(Clause::LeaseIdsEnd))
            && row.released
        {
            row.lease_id_hash = None;
        }
        if let Some(row) = &mut found {
            let is_own = row.lease_id_hash == Some(request.lease_id.hash());
            let clause = if row.released { Clause::DueWhenFree } else { Clause::DueWhenDead };
            if self.lacks(clause) && !is_own {
                row.last_occurrence = Field::Absent;
            }
            if self.lacks(Clause::OwnBeforeDone) && is_own && !row.released && row.last_occurrence != Field::Absent {
                return (Some(row.clone()), AcquireAnswer::AlreadyDone(row.lock().ok()));
            }
        }
        if let (Some(once), true) = (&mut request.once, self.lacks(Clause::AtMostOnce)) {
            once.at_most_once = false;
        }
        let step = lifecycle::acquire(found.as_ref(), &request, stamp, &policy).expect("no row here is damaged");
        let mut answer = step.answer;
        let Some(mut next) = step.row else { return (None, answer) };
        let is_new = next.rvn.value() == Some(&stamp.rvn);
        if let (AcquireAnswer::Granted(_), false, true) = (&answer, is_new, self.lacks(Clause::FirstAnswer)) {
            answer = AcquireAnswer::Held(next.lock().expect("readable"));
        }
        if is_new && self.lacks(Clause::PreviousOwner) {
            next.previous.owner_name = leasehold_protocol::Field::Absent;
            next.previous.released = false;
        }
        if is_new && self.lacks(Clause::CompletionIsCopied) {
            next.previous.occurrence = None;
        }
        if is_new && self.lacks(Clause::PreviousHash) {
            next.previous.lease_id_hash = None;
        }
        if self.lacks(Clause::AcquireTakesMark) {
            next.mark = row.and_then(|row| row.mark.clone());
        }
        (if is_new { Some(next) } else { row.cloned() }, answer)
    }

    pub(crate) fn want(&self, row: Option<&Row>, request: &Want, stamp: &Stamp) -> (Option<Row>, WantAnswer) {
        let mut found = row.cloned();
        if let Some(row) = &mut found {
            row.released &= !self.lacks(Clause::MarkNeedsHolder);
            if self.lacks(Clause::MarkNeedsOurs) {
                row.lease_version.clone_from(&row.rvn);
            }
            if self.lacks(Clause::MarkIsSetOnce) {
                row.mark = None;
            }
        }
        let step = lifecycle::want(found.as_ref(), request);
        let mut next = row.cloned();
        if let (Some(next), Some(marked), Some(())) = (&mut next, step.row, step.change) {
            next.mark = marked.mark;
            if self.lacks(Clause::MarkKeepsVersion) {
                next.rvn = Field::Value(stamp.rvn.clone());
            }
        }
        (next, step.answer)
    }

    pub(crate) fn heartbeat(
        &self,
        row: Option<&Row>,
        request: &Heartbeat,
        stamp: &Stamp,
    ) -> (Option<Row>, HeartbeatAnswer) {
        let mut request = request.clone();
        if self.lacks(Clause::HeartbeatSequence) {
            request.sequence = None;
        }
        if self.lacks(Clause::HeartbeatToken) {
            request.fencing_token = None;
        }
        let step = lifecycle::heartbeat(self.seen(row).as_ref(), &request, stamp, &[], self.policy);
        let is_new = matches!(&step.answer, HeartbeatAnswer::Renewed(row) if row.rvn.value() == Some(&stamp.rvn));
        (if is_new { step.row } else { row.cloned() }, step.answer)
    }

    pub(crate) fn release(&self, row: Option<&Row>, request: &Release, stamp: &Stamp) -> (Option<Row>, ReleaseAnswer) {
        let mut found = self.seen(row);
        if let (Some(row), true) = (&mut found, self.lacks(Clause::CompletionIsOwn)) {
            row.completed_occurrence = row.last_occurrence.value().cloned();
            row.previous.occurrence = row.last_occurrence.value().cloned();
        }
        let mut step = lifecycle::release(found.as_ref(), request, stamp, self.policy);
        let is_applied = step.row.as_ref().is_some_and(|row| row.rvn.value() == Some(&stamp.rvn));
        if let (Some(next), true) = (&mut step.row, is_applied) {
            let forgets = match request.disposal {
                Disposal::Complete(..) => self.lacks(Clause::Completion),
                Disposal::Delete => self.lacks(Clause::TombstoneRemembers),
                Disposal::Keep(_) => false,
            };
            if forgets {
                next.last_occurrence = Field::Absent;
            }
            if self.lacks(Clause::TombstoneTakesMark) {
                next.mark = row.and_then(|row| row.mark.clone());
            }
        }
        if let (ReleaseAnswer::Done(done), true) = (&mut step.answer, self.lacks(Clause::ReplayIsWanted)) {
            done.wanted &= is_applied;
        }
        (self.ended(row, step.row, stamp), step.answer)
    }

    pub(crate) fn break_lock(&self, row: Option<&Row>, request: &Break, stamp: &Stamp) -> (Option<Row>, BreakAnswer) {
        let step = lifecycle::break_lock(self.seen(row).as_ref(), request, stamp, self.policy);
        (self.ended(row, step.row, stamp), step.answer)
    }

    pub(crate) fn set_occurrence(&self, row: Option<&Row>, request: &SetOccurrence, stamp: &Stamp) -> Option<Row> {
        let mut request = request.clone();
        if let (Some(row), true) = (row, self.lacks(Clause::ResetNeedsVersion)) {
            request.seen = Rvn::new("", row.rvn.value().expect("written here").clone()).expect("valid");
        }
        lifecycle::set_occurrence(row, &request, stamp).expect("no row here is damaged").row
    }

    fn ended(&self, old: Option<&Row>, new: Option<Row>, stamp: &Stamp) -> Option<Row> {
        let mut new = new?;
        if new.rvn.value() != Some(&stamp.rvn) {
            return old.cloned();
        }
        if self.lacks(Clause::Tombstone) && new.is_deleted() {
            return None;
        }
        if self.lacks(Clause::EndsChangeVersion) {
            let old = old.expect("it was ended");
            new.rvn = old.rvn.clone();
            new.lease_version.clone_from(&old.lease_version);
        }
        Some(new)
    }
}
