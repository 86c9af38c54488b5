//! The bounds of an exploration.

/// The bounds of one exploration. All times are milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The name, for reports.
    pub name: &'static str,
    /// The number of callers.
    pub callers: u8,
    /// The number of lease ids that each caller uses, one after the other.
    pub lease_ids: u8,
    /// The number of requests under one lease id, without the release.
    pub requests: u8,
    /// The number of attempts at one request, by the service or by its caller.
    pub attempts: u8,
    /// The number of attempts that are under way at a time.
    pub in_flight: usize,
    /// The number of deliveries of an attempt beyond the first, over all attempts.
    pub copies: u8,
    /// The last moment.
    pub end: u16,
    /// The steps in which time passes, in a cycle.
    pub steps: &'static [u16],
    /// The leases that requests name.
    pub leases: &'static [u16],
    /// The number of breaks by an operator.
    pub breaks: u8,
    /// The number of times that an operator makes the occurrence due again.
    pub resets: u8,
    /// Whether releases may delete.
    pub deletes: bool,
    /// Whether callers die. (Every caller may stop sending in any case.)
    pub deaths: bool,
    /// Whether first attempts are lost. (Every attempt may stay under way for ever in any case.)
    pub losses: bool,
    /// The number of writes of a Java client with `updateExistingLockRecord`.
    pub java: u8,
    /// The number of marks that a waiter sends.
    pub wants: u8,
    /// Whether callers judge by the clock, and servers' clocks differ.
    pub clock: bool,
    /// Whether answers arrive late. (Every answer may be lost in any case.)
    pub delays: bool,
    /// Whether the clocks of observers run fast, by almost a thousandth.
    pub drift: bool,
    /// The runs of the one occurrence that callers want the lock for, or none.
    pub once: Option<Runs>,
}

/// The next moment, where time passes in these steps until the end. None at the end.
pub(crate) fn moment_after(now: u16, steps: &[u16], end: u16) -> Option<u16> {
    let cycle: u16 = steps.iter().sum();
    let start = now - now % cycle;
    let mut moments = steps.iter().scan(start, |moment, step| {
        *moment += step;
        Some(*moment)
    });
    moments.find(|&moment| moment > now).filter(|&moment| moment <= end)
}

/// The number of times that an occurrence may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// The occurrence may run until one run is completed.
    UntilDone,
    /// The occurrence may run once, completed or not.
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
    end: 200,
    steps: &[100],
    leases: &[100, 200],
    breaks: 0,
    resets: 0,
    deletes: false,
    deaths: false,
    losses: false,
    java: 0,
    wants: 0,
    clock: false,
    delays: false,
    drift: false,
    once: None,
};

impl Bounds {
    /// Explorations that take seconds, for the tests. Each is large enough for a lock to be taken over.
    pub fn small() -> [Self; 10] {
        let once = Self { in_flight: 1, leases: &[100], end: 300, ..SMALL };
        let first = Self { attempts: 1, ..once };
        [
            Self { in_flight: 1, ..SMALL },
            Self { name: "small, copies and deletions", copies: 1, deletes: true, ..first },
            Self { name: "small, breaks", breaks: 1, deaths: true, ..first },
            Self { name: "small, three callers", callers: 3, end: 200, ..first },
            Self { name: "small, Java", java: 1, breaks: 1, ..first },
            Self { name: "small, wants", wants: 2, java: 1, deletes: true, end: 200, ..first },
            Self { name: "small, clocks", clock: true, leases: &[200], end: 500, ..first },
            Self {
                name: "small, delays and drift",
                delays: true,
                drift: true,
                leases: &[2000],
                steps: &[1999, 1],
                end: 4000,
                ..first
            },
            Self { name: "small, an occurrence", deletes: true, breaks: 1, resets: 1, end: 200, ..first }
                .running(Runs::UntilDone),
            Self { name: "small, at most once", deletes: true, breaks: 1, resets: 1, end: 200, ..first }
                .running(Runs::AtMostOnce),
        ]
    }

    /// The explorations of the command.
    pub fn full() -> [Self; 11] {
        let full = Self { deaths: true, ..SMALL };
        let once = Self { in_flight: 1, leases: &[100], end: 300, ..full };
        let first = Self { attempts: 1, ..once };
        [
            Self { name: "changed leases", requests: 3, end: 400, leases: &[100, 300], in_flight: 2, ..first },
            Self { name: "late attempts", ..full },
            Self { name: "copies and deletions", copies: 1, deletes: true, ..once },
            Self { name: "two lease ids", deletes: true, lease_ids: 2, ..first },
            Self { name: "three callers", callers: 3, breaks: 1, ..first },
            Self { name: "a Java client", java: 2, breaks: 1, deletes: true, ..first },
            Self { name: "wants", wants: 1, java: 1, deletes: true, ..first },
            Self { name: "clocks", clock: true, breaks: 1, leases: &[200], end: 500, ..first },
            Self { name: "delays", delays: true, ..once },
            Self { name: "drift", delays: true, drift: true, leases: &[2000], steps: &[1999, 1], end: 6000, ..once },
            Self { name: "an occurrence", deletes: true, breaks: 1, resets: 1, copies: 1, ..first }
                .running(Runs::UntilDone),
        ]
    }

    /// The same bounds, where callers run an occurrence.
    const fn running(self, runs: Runs) -> Self {
        Self { once: Some(runs), ..self }
    }

    /// Two callers, and the other needs of a clause's trace.
    pub(crate) const fn trace() -> Self {
        Self { requests: 3, end: 400, leases: &[100, 300], ..SMALL }
    }
}
