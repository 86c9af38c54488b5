//! A caller, and the rules that it follows (docs/client.md has them in full).

/// What a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// The lock.
    Acquire {
        /// In ticks.
        lease: u8,
        /// The version that was seen for its lease.
        observed: Option<String>,
    },
    /// A renewal.
    Heartbeat {
        /// In ticks.
        lease: u8,
        /// The fencing token that the payload names.
        token: u64,
    },
    /// The end.
    Release {
        /// Leave a tombstone.
        delete: bool,
        /// The occurrence is done.
        completed: bool,
    },
}

impl Request {
    pub(crate) fn lease(&self) -> u8 {
        match self {
            Self::Acquire { lease, .. } | Self::Heartbeat { lease, .. } => *lease,
            Self::Release { .. } => 0,
        }
    }
}

/// A request without an answer so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) first_sent: u8,
    pub(crate) last_sent: u8,
    pub(crate) attempts: u8,
    /// Known to the model alone: the answer of the attempt that was carried out.
    pub(crate) carried_out: Option<String>,
}

/// One caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// Counts the lease ids.
    pub(crate) lease_id: u8,
    /// The number of the last request.
    pub(crate) number: u8,
    pub(crate) pending: Option<Pending>,
    /// A version, its lease, and when it was first seen.
    pub(crate) seen: Option<(String, u8, u8)>,
    /// Until when it believes to hold the lock.
    pub(crate) until: Option<u8>,
    /// The token that it was granted.
    pub(crate) token: u64,
    /// It was told of a grant under this lease id.
    pub(crate) was_granted: bool,
    /// Known to the model alone: an operator broke its lock.
    pub(crate) is_broken: bool,
}

impl Caller {
    pub(crate) fn believes(&self, now: u8) -> bool {
        !self.is_broken && self.until.is_some_and(|until| now < until)
    }

    /// The version that may be named, once it was seen for its lease. (Clocks run alike here, so no thousandth is added.)
    pub(crate) fn stale(&self, now: u8) -> Option<String> {
        self.seen.as_ref().filter(|(_, lease, since)| now - since >= *lease).map(|(version, ..)| version.clone())
    }

    pub(crate) fn see(&mut self, version: &str, lease: u8, now: u8) {
        if self.seen.as_ref().is_none_or(|(seen, ..)| seen != version) {
            self.seen = Some((version.to_owned(), lease, now));
        }
    }

    /// Goes on under a fresh lease id; what it saw of others stays.
    pub(crate) fn start_over(&mut self) {
        let (lease_id, seen) = (self.lease_id + 1, self.seen.take());
        *self = Self { lease_id, seen, ..Self::default() };
    }
}
