//! How far an exploration goes.

/// The bounds of one exploration. Time passes in ticks, each the shortest lease that the protocol allows.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "each says whether something happens at all")]
pub struct Bounds {
    /// The name, for reports.
    pub name: &'static str,
    /// Callers.
    pub callers: u8,
    /// Lease ids of each caller, one after the other.
    pub lease_ids: u8,
    /// Requests under one lease id, without the release.
    pub requests: u8,
    /// Attempts at one request, by the service or by its caller.
    pub attempts: u8,
    /// Attempts that are under way at a time.
    pub in_flight: usize,
    /// Deliveries of an attempt beyond the first, over all attempts.
    pub copies: u8,
    /// The last moment.
    pub ticks: u8,
    /// The leases that requests name, in ticks.
    pub leases: &'static [u8],
    /// Breaks by an operator.
    pub breaks: u8,
    /// Deletions.
    pub deletes: bool,
    /// Whether callers die. (Each may fall silent in any case.)
    pub deaths: bool,
    /// Whether first attempts are lost. (Each may stay under way for ever in any case.)
    pub losses: bool,
    /// Writes of a Java client with `updateExistingLockRecord`.
    pub java: u8,
    /// Whether callers judge by the clock, and servers' clocks differ.
    pub clock: bool,
    /// What callers want of the lock: to run one occurrence, the same one, or none.
    pub once: Option<Runs>,
}

/// How often an occurrence may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// Until one run is completed.
    UntilDone,
    /// Once, completed or not.
    AtMostOnce,
}

const SMALL: Bounds = Bounds {
    name: "small",
    callers: 2,
    lease_ids: 1,
    requests: 2,
    attempts: 2,
    in_flight: 2,
    copies: 0,
    ticks: 2,
    leases: &[1, 2],
    breaks: 0,
    deletes: false,
    deaths: false,
    losses: false,
    java: 0,
    clock: false,
    once: None,
};

impl Bounds {
    /// Explorations that take seconds, for the tests.
    pub fn small() -> [Self; 7] {
        let once = Self { in_flight: 1, leases: &[2], ..SMALL };
        [
            Self { in_flight: 1, ..SMALL },
            Self { name: "small, copies and deletions", copies: 1, deletes: true, lease_ids: 2, requests: 1, ..once },
            Self { name: "small, breaks", breaks: 1, deaths: true, ..once },
            Self { name: "small, Java", java: 2, breaks: 1, requests: 1, ticks: 3, ..once },
            Self { name: "small, clocks", clock: true, attempts: 1, ticks: 5, ..once },
            Self { name: "small, an occurrence", lease_ids: 2, requests: 1, attempts: 1, ..once }
                .running(Runs::UntilDone),
            Self { name: "small, at most once", deletes: true, requests: 1, ..once }.running(Runs::AtMostOnce),
        ]
    }

    /// The explorations of the command.
    pub fn full() -> [Self; 7] {
        let full = Self { deaths: true, losses: true, ..SMALL };
        [
            Self { name: "changed leases", requests: 3, ticks: 4, leases: &[1, 3], deaths: false, ..full },
            Self { name: "copies and deletions", copies: 1, deletes: true, lease_ids: 2, leases: &[2], ..full },
            Self { name: "three callers and a break", callers: 3, in_flight: 1, breaks: 1, leases: &[2], ..full },
            Self { name: "a Java client", java: 3, breaks: 1, deletes: true, ticks: 4, leases: &[2], ..full },
            Self { name: "clocks", clock: true, ticks: 6, leases: &[1, 3], in_flight: 1, ..full },
            Self { name: "an occurrence", deletes: true, lease_ids: 2, leases: &[2], copies: 1, ..full }
                .running(Runs::UntilDone),
            Self { name: "at most once", breaks: 1, lease_ids: 2, leases: &[2], ..full }.running(Runs::AtMostOnce),
        ]
    }

    /// The same, where callers run an occurrence.
    const fn running(self, runs: Runs) -> Self {
        Self { once: Some(runs), ..self }
    }

    /// Two callers, and what else a clause's trace needs.
    pub(crate) const fn trace() -> Self {
        Self { requests: 3, ticks: 4, leases: &[1, 3], ..SMALL }
    }
}
