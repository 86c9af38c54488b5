//! A caller of a semaphore, and the rules that it follows (docs/client.md: K2 to K5).

use leasehold_protocol::semaphore::Epoch;

use super::Protocol;
use super::bounds::Bounds;
use super::clause::Clause;
use super::world::{Answer, View, member, signed};
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
        /// The proof that the request is no copy of one that has ended.
        proof: Proof,
    },
    /// Renews the lease.
    Heartbeat {
        /// The lease, in milliseconds.
        lease: u16,
        /// The permits that are held, and those that the holder keeps.
        keep: Option<(u64, u64)>,
        /// The holder's token.
        token: u64,
    },
    /// Takes a place in the queue, or renews it.
    Enqueue {
        /// The dead entries: public id, version and permits.
        dead: Vec<Name>,
        /// The proof that the request is no copy of one that has ended.
        proof: Proof,
    },
    /// Ends the acquisition, or withdraws the ticket.
    Release,
}

/// The proof that a claim is new, or the caller's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proof {
    /// Nothing: the caller has seen no view, or its claim may be a holder's already.
    Nothing,
    /// The age of the row that the caller saw last, before its lease id had a claim.
    Epoch(Epoch),
    /// The caller's ticket.
    Ticket {
        /// The number of the ticket.
        number: u64,
        /// The age of the view in which it was the ticket's turn, and whether the caller passes tickets ahead.
        turn: Option<(Epoch, bool)>,
    },
}

impl Proof {
    pub(super) fn epoch(self) -> Option<Epoch> {
        match self {
            Self::Epoch(epoch) => Some(epoch),
            Self::Ticket { turn, .. } => turn.map(|(epoch, _)| epoch),
            Self::Nothing => None,
        }
    }

    pub(super) fn number(self) -> Option<u64> {
        if let Self::Ticket { number, .. } = self { Some(number) } else { None }
    }

    pub(super) fn passes(self) -> bool {
        matches!(self, Self::Ticket { turn: Some((_, true)), .. })
    }
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
    pub(super) token: u64,
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
    /// The free permits of the last view.
    available: i64,
    /// The age of the last view that came after the caller's ticket.
    viewed: Option<Epoch>,
    /// The time since which the views have shown no change, where that matters.
    quiet_since: u16,
    /// The age of the row, as the lease id's requests name it.
    epoch: Option<Epoch>,
    /// The age of the row in the last answer.
    last_epoch: Option<Epoch>,
    /// Known to the model alone: the number of refusals since the last crowd for which there was no other reason than
    /// age.
    pub(super) aged: u8,
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
    pub(super) fn see(&mut self, index: usize, protocol: &Protocol, view: &View, now: u16) {
        let bounds = &protocol.bounds;
        let me = member(index, self.lease_id);
        // A caller without this clause goes by a view that is older than its ticket.
        let counts = self.place.is_some() || protocol.without == Some(Clause::ViewAfterTicket);
        let viewed = (bounds.queue && counts).then_some(view.epoch);
        if bounds.patience > 0 && (self.viewed != viewed || self.available != view.available) {
            self.quiet_since = now;
        }
        self.viewed = viewed;
        self.available = view.available;
        // Without a crowd, no row forgets an end.
        self.last_epoch = (bounds.crowds > 0).then_some(view.epoch);
        if self.number == 0 {
            self.epoch = self.last_epoch;
        }
        self.sees_its_ticket = view.entries.iter().any(|entry| entry.name.0 == me.ticket_id);
        let known = std::mem::take(&mut self.seen);
        let others = view.entries.iter().filter(|entry| entry.name.0 != me.ticket_id && entry.name.0 != me.holder_id);
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

    /// Takes note of the age of the row in a refusal.
    pub(super) fn refused_at(&mut self, epoch: Epoch) {
        self.epoch = Some(epoch);
    }

    /// Goes on under a fresh lease id, and keeps the observations of others.
    pub(super) fn start_over(&mut self, bounds: &Bounds) {
        let lease_id = self.lease_id + 1;
        let seen = if lease_id < bounds.lease_ids { std::mem::take(&mut self.seen) } else { Vec::new() };
        let last_epoch = self.last_epoch.filter(|_| lease_id < bounds.lease_ids);
        *self = Self { lease_id, seen, epoch: last_epoch, last_epoch, ..Self::default() };
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
                let token = hold.token;
                requests.extend(bounds.leases.iter().map(|&lease| Request::Heartbeat { lease, keep: None, token }));
                let keep = (bounds.gives_back && hold.permits > 1).then_some((hold.permits, 1));
                requests.extend(keep.map(|keep| Request::Heartbeat {
                    lease: bounds.leases[0],
                    keep: Some(keep),
                    token,
                }));
            }
            requests.push(Request::Release);
            return requests;
        }
        let proof = match &self.place {
            Some(place) => Proof::Ticket { number: place.number, turn: None },
            None => self.epoch.map_or(Proof::Nothing, Proof::Epoch),
        };
        let turn = self.turn(index, protocol, now);
        if may_ask && (self.must_ask || turn.is_some()) {
            let proof = match (proof, turn, self.viewed) {
                (Proof::Ticket { number, .. }, Some(passes), Some(viewed)) => {
                    Proof::Ticket { number, turn: Some((viewed, passes)) }
                }
                _ => proof,
            };
            let mut names = vec![Vec::new(), self.dead(protocol, now)];
            names.dedup();
            requests.extend(names.into_iter().map(|dead| Request::Acquire { dead, proof }));
        }
        if may_ask && bounds.queue && !self.must_ask && bounds.wants[index] <= bounds.capacity {
            let mut names = vec![Vec::new(), self.dead(protocol, now)];
            names.dedup();
            requests.extend(names.into_iter().map(|dead| Request::Enqueue { dead, proof }));
        }
        requests.extend(self.place.as_ref().map(|_| Request::Release));
        requests
    }

    /// Whether the free permits, with those of the dead, cover the living ahead and the caller. Says then whether the
    /// caller passes tickets ahead. A caller without a ticket names the tickets ahead, and the service judges.
    fn turn(&self, index: usize, protocol: &Protocol, now: u16) -> Option<bool> {
        let Some(place) = &self.place else { return Some(false) };
        let lacks = |clause| protocol.without == Some(clause);
        let (dead, alive): (Vec<&Seen>, Vec<&Seen>) = self.seen.iter().partition(|seen| seen.is_dead(protocol, now));
        let is_ahead = |seen: &&&Seen| seen.number.is_some_and(|number| number < place.number);
        let patience = protocol.bounds.patience;
        let is_left = patience > 0 && now - self.quiet_since >= patience;
        let mut ahead = 0;
        for seen in alive.iter().filter(is_ahead) {
            if !(is_left && self.available >= signed(ahead + seen.name.2)) {
                ahead += seen.name.2;
            }
        }
        let all_ahead: u64 = self.seen.iter().filter(|seen| is_ahead(&seen)).map(|seen| seen.name.2).sum();
        let back: u64 = dead.iter().filter(|seen| seen.number.is_none()).map(|seen| seen.name.2).sum();
        let covers = |ahead: u64| self.available + signed(back) >= signed(ahead + protocol.bounds.wants[index]);
        let may = (self.sees_its_ticket || lacks(Clause::ViewAfterTicket))
            && (ahead == 0 || covers(ahead) || lacks(Clause::InTurn));
        may.then(|| all_ahead > 0 && !covers(all_ahead))
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
