//! A caller, and the rules that it follows (docs/client.md has them all).

use crate::Protocol;
use crate::clause::Clause;
use crate::world::Answer;

/// The request of a caller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// Acquires the lock.
    Acquire {
        /// The lease, in milliseconds.
        lease: u16,
        /// The version that was seen for its lease.
        observed: Option<String>,
    },
    /// Renews the lease.
    Heartbeat {
        /// The lease, in milliseconds.
        lease: u16,
        /// The fencing token that the payload names.
        token: u64,
    },
    /// Ends the acquisition.
    Release {
        /// Whether to leave a tombstone.
        delete: bool,
        /// Whether the occurrence is done.
        completed: bool,
    },
}

impl Request {
    pub(crate) fn lease(&self) -> u16 {
        match self {
            Self::Acquire { lease, .. } | Self::Heartbeat { lease, .. } => *lease,
            Self::Release { .. } => 0,
        }
    }
}

/// Whether a version that was first seen so long ago is stale. The observer's clock may be fast by almost a thousandth,
/// and the margin for that may be missing.
pub(crate) fn is_stale(age: u16, lease: u16, is_fast: bool, has_margin: bool) -> bool {
    let (age, lease) = (u64::from(age), u64::from(lease));
    let margin = if has_margin { lease.div_ceil(1000) } else { 0 };
    if is_fast { age + age * 95 / 100_000 >= lease + margin } else { age >= lease }
}

/// A request without an answer so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) first_sent: u16,
    pub(crate) last_sent: u16,
    pub(crate) attempts: u8,
    /// The answer to the last attempt, on its way.
    pub(crate) answer: Option<Answer>,
    /// Known to the model alone: the answer of the attempt that was carried out.
    pub(crate) carried_out: Option<Answer>,
}

/// One caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// Counts the lease ids.
    pub(crate) lease_id: u8,
    /// The number of the last request.
    pub(crate) number: u8,
    pub(crate) pending: Option<Pending>,
    /// A version, its lease, and the time when it was first seen.
    pub(crate) seen: Option<(String, u16, u16)>,
    /// The time until which the caller believes that it holds the lock.
    pub(crate) until: Option<u16>,
    /// The token of its last grant.
    pub(crate) token: u64,
    /// Whether an answer reported a grant under this lease id.
    pub(crate) was_granted: bool,
    /// Known to the model alone: whether an operator broke its lock.
    pub(crate) is_broken: bool,
}

impl Caller {
    pub(crate) fn believes(&self, now: u16) -> bool {
        !self.is_broken && self.until.is_some_and(|until| now < until)
    }

    /// The version that may be named, once it was seen for its lease and, where clocks drift, a thousandth of it.
    pub(crate) fn stale(&self, now: u16, protocol: &Protocol) -> Option<String> {
        let (version, lease, since) = self.seen.as_ref()?;
        let has_margin = protocol.without != Some(Clause::Thousandth);
        is_stale(now - since, *lease, protocol.bounds.drift, has_margin).then(|| version.clone())
    }

    pub(crate) fn see(&mut self, version: &str, lease: u16, now: u16) {
        if self.seen.as_ref().is_none_or(|(seen, ..)| seen != version) {
            self.seen = Some((version.to_owned(), lease, now));
        }
    }

    /// Goes on under a fresh lease id, and keeps the observation of others.
    pub(crate) fn start_over(&mut self) {
        let (lease_id, seen) = (self.lease_id + 1, self.seen.take());
        *self = Self { lease_id, seen, ..Self::default() };
    }
}
