//! A caller of a semaphore, and the rules that it follows (docs/client.md: K2 to K5).

use super::Protocol;
use super::bounds::Bounds;
use super::clause::Clause;
use super::world::{Answer, View, member};
use crate::caller::is_stale;

/// A dead entry, as a request names it: its public id, version and permits.
pub(super) type Name = (String, String, u64);

/// The request of a caller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// Acquires permits.
    Acquire {
        /// The dead entries: public id, version and permits.
        dead: Vec<Name>,
    },
    /// Renews the lease.
    Heartbeat {
        /// The lease, in milliseconds.
        lease: u16,
        /// The permits that are held, and those that the holder keeps.
        keep: Option<(u64, u64)>,
    },
    /// Takes a place in the queue, or renews it.
    Enqueue {
        /// The dead entries: public id, version and permits.
        dead: Vec<Name>,
    },
    /// Ends the acquisition, or withdraws the ticket.
    Release,
}

impl Request {
    pub(super) fn lease(&self, bounds: &Bounds) -> u16 {
        match self {
            Self::Acquire { .. } | Self::Enqueue { .. } => bounds.leases[0],
            Self::Heartbeat { lease, .. } => *lease,
            Self::Release => 0,
        }
    }
}

/// A request without an answer so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) request: Request,
    pub(super) first_sent: u16,
    pub(super) last_sent: u16,
    pub(super) attempts: u8,
    /// The answer to the last attempt, on its way.
    pub(super) answer: Option<Answer>,
    /// Known to the model alone: the answer of the attempt that was carried out.
    pub(super) carried_out: Option<Answer>,
}

/// An entry that the last view showed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    name: Name,
    lease: u16,
    /// The number of a ticket.
    number: Option<u64>,
    /// The time when its version was first seen.
    since: u16,
}

/// The permits that a caller believes to hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub(super) permits: u64,
    pub(super) until: u16,
}

/// A caller's ticket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) number: u64,
    /// The time until which others may not pass the ticket, as its caller believes.
    pub(super) until: u16,
    /// Known to the model alone: the time since which the caller has believed so without a break.
    pub(super) since: u16,
}

/// One caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    /// Counts the lease ids.
    pub(super) lease_id: u8,
    /// The number of the last request.
    pub(super) number: u8,
    pub(super) pending: Option<Pending>,
    pub(super) hold: Option<Hold>,
    pub(super) place: Option<Place>,
    /// Whether a late request was granted, so that only another acquire tells of it.
    pub(super) must_ask: bool,
    /// Whether the last view shows the caller's ticket.
    sees_its_ticket: bool,
    seen: Vec<Seen>,
}

impl Caller {
    /// The number of permits that the caller relies on.
    pub(super) fn believes_in(&self, now: u16) -> u64 {
        self.hold.as_ref().filter(|hold| now < hold.until).map_or(0, |hold| hold.permits)
    }

    /// Whether the caller believes that nobody passes its ticket, and has done so without a break since before
    /// `moment`.
    pub(super) fn kept_its_place_since(&self, moment: u16, now: u16) -> bool {
        self.place.as_ref().is_some_and(|place| now < place.until && place.since < moment)
    }

    /// Takes note of the entries of others. Entries that are gone are forgotten, and so is a ticket of one's own.
    pub(super) fn see(&mut self, index: usize, view: &View, now: u16) {
        let me = member(index, self.lease_id);
        self.sees_its_ticket = view.iter().any(|entry| entry.name.0 == me.ticket_id);
        let known = std::mem::take(&mut self.seen);
        let others = view.iter().filter(|entry| entry.name.0 != me.ticket_id && entry.name.0 != me.holder_id);
        self.seen = others
            .map(|entry| {
                let is_same = |seen: &&Seen| seen.name.0 == entry.name.0 && seen.name.1 == entry.name.1;
                let since = known.iter().find(is_same).map_or(now, |seen| seen.since);
                Seen { name: entry.name.clone(), lease: entry.lease, number: entry.number, since }
            })
            .collect();
        if !self.sees_its_ticket {
            self.place = None;
        }
    }

    /// The ticket is another one than the last view shows.
    pub(super) fn outdate(&mut self) {
        self.sees_its_ticket = false;
    }

    /// Goes on under a fresh lease id, and keeps the observations of others.
    pub(super) fn start_over(&mut self, bounds: &Bounds) {
        let lease_id = self.lease_id + 1;
        let seen = if lease_id < bounds.lease_ids { std::mem::take(&mut self.seen) } else { Vec::new() };
        *self = Self { lease_id, seen, ..Self::default() };
    }

    /// The requests that the caller may send now.
    pub(super) fn requests(&self, index: usize, protocol: &Protocol, now: u16) -> Vec<Request> {
        let bounds = &protocol.bounds;
        if self.lease_id >= bounds.lease_ids || self.pending.is_some() {
            return Vec::new();
        }
        let mut requests = Vec::new();
        let may_ask = self.number < bounds.requests;
        if let Some(hold) = &self.hold {
            if may_ask {
                requests.extend(bounds.leases.iter().map(|&lease| Request::Heartbeat { lease, keep: None }));
                let keep = (bounds.gives_back && hold.permits > 1).then_some((hold.permits, 1));
                requests.extend(keep.map(|keep| Request::Heartbeat { lease: bounds.leases[0], keep: Some(keep) }));
            }
            requests.push(Request::Release);
            return requests;
        }
        if may_ask && (self.must_ask || self.is_first(protocol, now)) {
            let mut names = vec![Vec::new(), self.dead(protocol, now)];
            names.dedup();
            requests.extend(names.into_iter().map(|dead| Request::Acquire { dead }));
        }
        if may_ask && bounds.queue && !self.must_ask && bounds.wants[index] <= bounds.capacity {
            let mut names = vec![Vec::new(), self.dead(protocol, now)];
            names.dedup();
            requests.extend(names.into_iter().map(|dead| Request::Enqueue { dead }));
        }
        requests.extend(self.place.as_ref().map(|_| Request::Release));
        requests
    }

    /// Whether all tickets ahead are gone or dead. A caller without a ticket names them, and the service judges.
    fn is_first(&self, protocol: &Protocol, now: u16) -> bool {
        let Some(place) = &self.place else { return true };
        let lacks = |clause| protocol.without == Some(clause);
        let is_passed =
            |seen: &Seen| seen.number.is_none_or(|number| number > place.number) || seen.is_dead(protocol, now);
        (self.sees_its_ticket || lacks(Clause::ViewAfterTicket))
            && (self.seen.iter().all(is_passed) || lacks(Clause::InTurn))
    }

    /// The dead that a request names: holders, and before them the tickets where the caller has none of its own.
    fn dead(&self, protocol: &Protocol, now: u16) -> Vec<Name> {
        let has_ticket = self.place.is_some();
        let mut dead: Vec<_> = self.seen.iter().filter(|seen| seen.is_dead(protocol, now)).collect();
        dead.retain(|seen| !(has_ticket && seen.number.is_some()));
        dead.sort_by_key(|seen| (seen.number.is_none(), &seen.name));
        dead.iter().take(protocol.bounds.names).map(|seen| seen.name.clone()).collect()
    }
}

impl Seen {
    fn is_dead(&self, protocol: &Protocol, now: u16) -> bool {
        let has_margin = protocol.without != Some(Clause::Thousandth);
        is_stale(now - self.since, self.lease, protocol.bounds.drift, has_margin)
    }
}
