//! The bounds of an exploration of semaphores.

use super::clause::Clause;

/// The bounds of one exploration. All times are milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The name, for reports.
    pub name: &'static str,
    /// The number of permits that each caller wants.
    pub wants: &'static [u64],
    /// The number of permits at first.
    pub capacity: u64,
    /// The capacities that an operator asks for, one after the other.
    pub new_capacities: &'static [u64],
    /// The number of lease ids that each caller uses, one after the other.
    pub lease_ids: u8,
    /// The number of requests under one lease id, without the release.
    pub requests: u8,
    /// The number of attempts at one request.
    pub attempts: u8,
    /// The number of attempts that are under way at a time.
    pub in_flight: usize,
    /// The number of deliveries of an attempt beyond the first, over all attempts.
    pub copies: u8,
    /// The last moment.
    pub end: u16,
    /// The steps in which time passes, in a cycle.
    pub steps: &'static [u16],
    /// The leases of heartbeats. The first is also the lease of grants and tickets.
    pub leases: &'static [u16],
    /// The permits that are held at first, by somebody who is none of the callers.
    pub held: u64,
    /// Whether all callers have tickets at first, and the permits that were held are free again.
    pub queued: bool,
    /// The time for which a waiter may leave permits that it could take. Zero: for ever.
    pub patience: u16,
    /// The number of times that strangers come and go, all at once.
    pub crowds: u8,
    /// The number of strangers each time.
    pub strangers: u8,
    /// Whether callers use the queue.
    pub queue: bool,
    /// Whether holders give permits back by heartbeats.
    pub gives_back: bool,
    /// The number of dead entries that a request may name. The service allows ten.
    pub names: usize,
    /// Whether callers die. (Every caller may stop sending in any case.)
    pub deaths: bool,
    /// Whether answers arrive late. (Every answer may be lost in any case.)
    pub delays: bool,
    /// Whether the clocks of observers run fast, by almost a thousandth.
    pub drift: bool,
}

/// Copies that arrive after many ends.
const LATE: Bounds =
    Bounds { wants: &[1], requests: 3, copies: 2, in_flight: 3, crowds: 1, capacity: 2, held: 1, ..SMALL };

/// Waiters whose requests to pass others arrive late.
const LATE_TURNS: Bounds = Bounds {
    wants: &[1, 1, 1],
    capacity: 2,
    held: 2,
    queue: true,
    queued: true,
    patience: 50,
    in_flight: 2,
    end: 50,
    steps: &[50],
    ..SMALL
};

/// Two waiters, both in their turn, whose requests arrive late.
const LATE_TURN: Bounds = Bounds { wants: &[1, 1], patience: 0, ..LATE_TURNS };

const SMALL: Bounds = Bounds {
    name: "permits",
    wants: &[1, 1],
    capacity: 1,
    new_capacities: &[],
    lease_ids: 1,
    requests: 2,
    attempts: 1,
    in_flight: 1,
    copies: 0,
    end: 200,
    steps: &[100],
    leases: &[100],
    held: 0,
    queued: false,
    patience: 0,
    crowds: 0,
    strangers: 0,
    queue: false,
    gives_back: false,
    names: 10,
    deaths: false,
    delays: false,
    drift: false,
};

impl Bounds {
    /// Explorations that take seconds, for the tests. Each is large enough for dead holders to be passed.
    pub fn small() -> [Self; 15] {
        let drift = Self { drift: true, leases: &[2000], steps: &[1999, 1], end: 4000, ..SMALL };
        let copies = Self { end: 0, ..LATE };
        let queue = Self { queue: true, held: 1, ..copies };
        [
            Self { name: "small, permits", in_flight: 2, ..SMALL },
            Self { name: "small, repeats", attempts: 2, copies: 1, end: 100, ..SMALL },
            Self { name: "small, a reader and a writer", wants: &[1, 2], capacity: 2, gives_back: true, ..SMALL },
            Self { name: "small, a queue", queue: true, held: 1, end: 100, ..SMALL },
            Self { name: "small, a new capacity", capacity: 2, new_capacities: &[1], end: 100, ..SMALL },
            Self { name: "small, drift", ..drift },
            Self { name: "small, turns", queue: true, wants: &[2, 1], capacity: 2, held: 1, ..SMALL },
            Self { name: "small, late turns", ..LATE_TURNS },
            Self { name: "small, a late turn before a cut", new_capacities: &[1], ..LATE_TURN },
            Self { name: "small, copies after 15 ends", strangers: 15, ..copies },
            Self { name: "small, copies after 16 ends", strangers: 16, ..copies },
            Self { name: "small, copies after 17 ends", strangers: 17, ..copies },
            Self { name: "small, copies after 15 tickets", strangers: 15, ..queue },
            Self { name: "small, copies after 16 tickets", strangers: 16, ..queue },
            Self { name: "small, copies after 17 tickets", strangers: 17, ..queue },
        ]
    }

    /// Three callers and two permits, on a table in several regions.
    pub(crate) const fn of_three() -> Self {
        Self { wants: &[1, 1, 1], capacity: 2, attempts: 2, end: 0, ..SMALL }
    }

    /// Two callers, and a holder that died with one of two permits, on a table in several regions.
    pub(crate) const fn of_two_and_a_dead() -> Self {
        Self { wants: &[1, 1], capacity: 2, held: 1, attempts: 2, end: 100, ..SMALL }
    }

    /// The explorations of the command.
    pub fn full() -> [Self; 7] {
        let writer = Self { wants: &[1, 2], capacity: 2, gives_back: true, in_flight: 2, ..SMALL };
        let queue = Self { queue: true, lease_ids: 2, ..SMALL };
        let three = Self { wants: &[1, 1, 1], capacity: 2, new_capacities: &[1, 2], end: 100, ..SMALL };
        let late = Self { wants: &[1, 1], ..LATE };
        let leases: &[u16] = &[100, 200];
        [
            Self { name: "permits, changed leases", requests: 3, in_flight: 2, leases, deaths: true, ..SMALL },
            Self { name: "permits, repeats and copies", attempts: 2, copies: 1, ..SMALL },
            Self { name: "permits, a reader and a writer", deaths: true, ..writer },
            Self { name: "permits, a queue", ..queue },
            Self { name: "permits, a new capacity", ..three },
            Self { name: "permits, copies", strangers: 16, ..late },
            Self { name: "permits, copies of a queue", queue: true, held: 1, strangers: 16, ..late },
        ]
    }

    /// Bounds within which the absence of the clause shows.
    pub const fn of_trace(clause: Clause) -> Self {
        let now = Self { end: 0, leases: &[200], ..SMALL };
        let soon = Self { end: 100, ..now };
        let later = Self { end: 200, ..now };
        match clause {
            Clause::DeadHolderVersion | Clause::Changed => later,
            Clause::ReleasedMemory => Self { copies: 1, in_flight: 2, ..now },
            Clause::EvictedMemory => Self { copies: 1, in_flight: 2, ..later },
            // The permit stays with a holder that nobody knows, and the operator adds one.
            Clause::AcquireSequence => Self { queue: true, held: 1, new_capacities: &[2], attempts: 2, ..soon },
            Clause::SpentHolders => Self { strangers: 15, end: 0, ..LATE },
            Clause::SpentTickets => Self { strangers: 15, end: 0, queue: true, capacity: 1, ..LATE },
            Clause::Epoch => Self { strangers: 17, end: 0, ..LATE },
            Clause::FreshEpoch => Self { strangers: 17, end: 0, queue: true, ..LATE },
            // The operator adds the permit that the copy takes.
            Clause::AskNumber => {
                Self { strangers: 17, end: 0, queue: true, capacity: 1, new_capacities: &[2], copies: 1, ..LATE }
            }
            Clause::RenewalNumber => Self { strangers: 17, end: 0, queue: true, capacity: 1, ..LATE },
            Clause::HeartbeatToken => Self { strangers: 17, end: 0, requests: 2, ..LATE },
            Clause::CapacityVersion => {
                Self { capacity: 2, new_capacities: &[1, 2], copies: 1, held: 1, in_flight: 2, ..now }
            }
            Clause::EnqueueSequence => Self { queue: true, attempts: 2, ..later },
            Clause::HeartbeatSequence => Self { requests: 3, attempts: 2, in_flight: 2, leases: &[300, 100], ..later },
            Clause::FirstAnswer => Self { attempts: 2, ..now },
            Clause::OwnHolder => Self { copies: 1, capacity: 2, ..now },
            Clause::TicketNumber => Self { queue: true, ..now },
            Clause::Available => now,
            Clause::Token => Self { wants: &[1, 1, 1], capacity: 3, ..now },
            Clause::ExpectedCapacity => Self { capacity: 2, new_capacities: &[1], copies: 1, ..now },
            Clause::DeadTicketVersion => Self { queue: true, held: 1, ..later },
            Clause::NobodyAhead | Clause::InTurn => Self { queue: true, lease_ids: 2, ..soon },
            Clause::ViewAfterTicket => Self { queue: true, held: 1, ..soon },
            Clause::Turn | Clause::ReorderedByCapacity => Self { new_capacities: &[1], ..LATE_TURN },
            Clause::PassBeforeGrants | Clause::ReorderedByPass => LATE_TURNS,
            Clause::Cap => Self { leases: &[300, 100], ..later },
            Clause::KeepCap => Self { wants: &[2, 1], capacity: 2, gives_back: true, ..now },
            Clause::CountFromFirst => Self { attempts: 2, ..later },
            Clause::CountFromSending => Self { delays: true, ..later },
            Clause::ObserveFromAnswer => Self { in_flight: 2, ..later },
            Clause::Thousandth => Self { drift: true, leases: &[2000], steps: &[1999, 1], end: 2000, ..now },
        }
    }
}
