//! The rules of [`super::lifecycle`] as DynamoDB expressions: one conditional write for each operation.
//!
//! Compare a condition here with the function of the same name there. A word after `#` is an attribute of that name,
//! since many of them are reserved words. `#h` and `#t` are the caller's own entries, `#d…` and `#q…` dead holders and
//! tickets. `#x` and `#y` are the rings of spent holders and tickets, `#n` the number of their entries.
//!
//! The row remembers an end by the number of the claim. Where a request does not name it, the first write fails, and
//! `seen`, the row that it returned, has the number.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use aws_sdk_dynamodb::types::AttributeValue;

use super::item::{self, KIND, LEASE, OWNER};
use super::lifecycle::{
    Ended, INITIAL_CAPACITY, Ring, Semaphore, Spent, Tombstone, changed, dead_of, outcome_with, signed,
};
use super::model::{
    Acquire, AllDead, Break, ClaimNumber, Enqueue, Epoch, Heartbeat, MAX_ENTRIES, Member, PublicId, RING, Release,
    SLOTS, SetCapacity, ring_slot,
};
use crate::item::{DATA, SPENT_HOLDERS, SPENT_TICKETS, TableSchema};
use crate::lifecycle::{GrantOutcome, LAST_COUNTABLE_TOKEN, Policy, Stamp};
use crate::model::{LeaseDuration, MAX_SEQUENCE, Principal, Sequence};
use crate::write::{Builder, Write, number};

/// A semaphore that no older version has broken or taken.
const IS_SEMAPHORE: &str = "leaseholdKind = :kind AND ownerName = :owner AND attribute_not_exists(isReleased)";

/// The end of the lease id is not remembered. A comparison by `<>` with an absent attribute is true.
const IS_NOT_ENDED: &str = "#ended.#slot.#id <> :id";

/// An expression never takes a claim's number for this one.
const NO_NUMBER: u64 = 0;

/// The token is below the limit, so that the next one can be counted from it.
const IS_COUNTABLE: &str = "fencingToken BETWEEN :zero AND :lastToken";

/// One of the two rings: the placeholder of its name, and the part of `seen`.
#[derive(Debug, Clone, Copy)]
enum RingOf {
    Holders,
    Tickets,
}

impl RingOf {
    fn placeholder(self) -> &'static str {
        match self {
            Self::Holders => "#x",
            Self::Tickets => "#y",
        }
    }

    fn of(self, row: &Semaphore) -> &Ring {
        match self {
            Self::Holders => &row.spent_holders,
            Self::Tickets => &row.spent_tickets,
        }
    }
}

/// The free permits and those of the dead cover the request. More free permits than there are do not count: a row that
/// says so is damaged, and a transaction returns no row that would show it.
const IS_AVAILABLE: &str = "#available >= :needed AND #available <= #capacity";

/// The row has room for another holder.
const HAS_ROOM: &str = "size(#holders) <= :room";

impl Builder {
    /// Starts the write of an existing semaphore.
    fn of_semaphore(stamp: &Stamp, policy: &Policy) -> Self {
        let mut builder = Self::of_lasting(stamp);
        builder.write.number(":expireAt", policy.expire_at(stamp, None));
        // TTL ignores an attribute that is a string.
        builder.set("expireAt = if_not_exists(capacityVersion, :expireAt)");
        builder
    }

    /// Starts the write of an existing semaphore, whatever its expiry.
    fn of_lasting(stamp: &Stamp) -> Self {
        let mut builder = Self::default();
        builder.write.text(":kind", KIND);
        builder.write.text(":owner", OWNER);
        builder.condition(IS_SEMAPHORE);
        builder.ring(RingOf::Holders);
        builder.condition("attribute_exists(#x)");
        builder.write.text(":rvn", &stamp.rvn);
        builder.set("recordVersionNumber = :rvn");
        builder
    }

    fn signed(&mut self, placeholder: &str, value: i64) {
        self.write.values.insert(placeholder.to_owned(), AttributeValue::N(value.to_string()));
    }

    /// Binds the names of the caller's entries and of the slot that remembers its end.
    fn member(&mut self, me: &Member) {
        self.write.name("#h", &me.holder_id());
        self.write.name("#t", &me.ticket_id());
        self.write.name("#slot", me.slot());
    }

    /// Requires that the end of this member is not remembered.
    fn not_ended(&mut self, me: &Member) {
        self.write.text(":id", me.id());
        self.condition(IS_NOT_ENDED);
    }

    /// Returns the condition that no ring remembers the end of this member, and that none may have forgotten it.
    fn new_claim(&mut self, me: &Member, epoch: Option<Epoch>) -> String {
        self.write.text(":id", me.id());
        let mut new = String::new();
        for (ring, slot) in [RingOf::Holders, RingOf::Tickets].iter().flat_map(|ring| SLOTS.map(|slot| (ring, slot))) {
            self.write.name(&format!("#r{slot}"), slot);
            let _ = write!(new, "{}.#r{slot}.#id <> :id AND ", ring.placeholder());
        }
        self.ring(RingOf::Tickets);
        if let Some(epoch) = epoch {
            self.write.number(":oldToken", epoch.token + RING);
            self.write.number(":oldTicket", epoch.ticket + RING);
            new.push_str("fencingToken <= :oldToken AND nextTicket <= :oldTicket AND ");
        }
        new.truncate(new.len() - " AND ".len());
        new
    }

    /// Binds the values of [`IS_AVAILABLE`] and [`HAS_ROOM`], and the number of permits.
    fn covers(&mut self, permits: u64, dead: &AllDead) {
        self.write.number(":permits", permits);
        self.signed(":needed", signed(permits) - signed(dead.permits()));
        self.write.number(":room", (MAX_ENTRIES - 1 + dead.holders().count()) as u64);
    }

    /// Gives the holder at `path` the next token, or the one of several keys, which must be higher than the row's.
    fn token(&mut self, path: &str, of_several: Option<u64>) {
        self.write.number(":zero", 0);
        self.condition(IS_COUNTABLE);
        if let Some(token) = of_several {
            self.write.number(":lastToken", token - 1);
            self.write.number(":newToken", token);
            self.set(format!("{path} = :newToken"));
            self.set("fencingToken = :newToken");
        } else {
            self.write.number(":lastToken", LAST_COUNTABLE_TOKEN);
            self.write.number(":one", 1);
            self.set(format!("{path} = fencingToken + :one"));
            self.set("fencingToken = fencingToken + :one");
        }
    }

    /// Requires that the caller's ticket has this number.
    fn numbered(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.write.number(":number", number);
            self.condition("#tickets.#t = :number");
        }
    }

    /// Returns the condition that only dead tickets are in the queue. Tickets that want more than the capacity are
    /// ahead of nobody: where `seen` has such tickets, the queue and the capacity must be as seen.
    fn nobody_ahead(&mut self, dead: &AllDead, seen: Option<&Semaphore>) -> String {
        if let Some(seen) = seen.filter(|seen| seen.oversized(dead) > 0) {
            return self.pinned(seen).into();
        }
        self.write.number(":deadTickets", dead.tickets().count() as u64);
        "size(#queue) = :deadTickets".into()
    }

    /// Returns the condition that it is the turn of the caller's ticket. The row shows it, if a refusal returned one,
    /// or the caller saw it, or the queue has no other living ticket.
    fn in_turn(&mut self, request: &Acquire, dead: &AllDead, seen: Option<&Semaphore>) -> &'static str {
        if let Some(seen) = seen.filter(|seen| seen.is_turn_for(request, dead)) {
            // Later tickets are behind.
            self.write.text(":seenChange", &seen.last_change);
            return "#changed = :seenChange";
        }
        let Some(epoch) = request.vouches() else {
            self.write.number(":tickets", 1 + dead.tickets().count() as u64);
            return "size(#queue) = :tickets";
        };
        if request.passes_tickets() {
            self.write.number(":seenToken", epoch.token);
            self.condition("fencingToken = :seenToken");
        }
        match epoch.reordered {
            Some(0) => "attribute_not_exists(reordered)",
            reordered => {
                self.write.number(":reordered", reordered.unwrap_or(NO_NUMBER));
                "reordered = :reordered"
            }
        }
    }

    /// Counts an event after which it may no longer be a ticket's turn.
    fn reorder(&mut self) {
        self.write.number(":zero", 0);
        self.write.number(":one", 1);
        self.set("reordered = if_not_exists(reordered, :zero) + :one");
    }

    /// Binds the name of a ring.
    fn ring(&mut self, ring: RingOf) {
        let name = match ring {
            RingOf::Holders => SPENT_HOLDERS,
            RingOf::Tickets => SPENT_TICKETS,
        };
        self.write.name(ring.placeholder(), name);
    }

    /// Returns the condition that holders, queue and capacity are those of this row, apart from renewals.
    fn pinned(&mut self, seen: &Semaphore) -> &'static str {
        self.write.text(":seenChange", &seen.last_change);
        self.write.number(":seenTicket", seen.next_ticket);
        "#changed = :seenChange AND nextTicket = :seenTicket"
    }

    /// Records the ends of these claims in a ring: those of one slot by the highest number. Where `seen` has a higher
    /// number in the slot, the end needs no record.
    fn remember(&mut self, ring: RingOf, ends: impl Iterator<Item = Spent>, seen: Option<&Semaphore>) {
        let mut slots = BTreeMap::new();
        for spent in ends {
            let slot = slots.entry(ring_slot(spent.number)).or_insert_with(|| spent.clone());
            if slot.number < spent.number {
                *slot = spent;
            }
        }
        let path = ring.placeholder();
        for (slot, spent) in slots {
            if seen.and_then(|seen| ring.of(seen).get(slot)).is_some_and(|other| other.number > spent.number) {
                continue;
            }
            let value = format!(":{}{slot}", &path[1..]);
            self.ring(ring);
            self.write.name("#n", "number");
            self.write.name(&format!("#r{slot}"), slot);
            self.write.number(&format!("{value}n"), spent.number);
            self.write.values.insert(value.clone(), item::encode_spent(&spent));
            self.condition(format!("NOT {path}.#r{slot}.#n > {value}n"));
            self.set(format!("{path}.#r{slot} = {value}"));
        }
    }

    /// Returns the condition that the entry at `path` is the caller's own, and that its request is new.
    fn own(&mut self, path: &str, principal: Option<&Principal>, sequence: Option<&Sequence>) -> String {
        let mut own = format!("{path}.#hash = :leaseIdHash");
        if let Some(principal) = principal {
            let _ = write!(own, " AND (attribute_not_exists({path}.#principal) OR {path}.#principal = :principal)");
            self.write.text(":principal", principal.as_str());
        }
        if let Some(sequence) = sequence {
            let _ = write!(own, " AND NOT ({path}.#sequence BETWEEN :sequence AND :lastSequence)");
            self.write.number(":sequence", sequence.number());
            self.write.number(":lastSequence", MAX_SEQUENCE);
        }
        own
    }

    /// Records a change that the waiters should look at.
    fn changed(&mut self, stamp: &Stamp) {
        self.write.text(":changed", &changed(stamp));
        self.set("#changed = :changed");
    }

    /// Requires that the dead entries are as they were observed, removes them, and remembers their ends. Holders, and
    /// where the table judges by its clock tickets as well, must be dead by the clock.
    fn bury(&mut self, dead: &AllDead, stale_before: Option<u64>, by_clock: bool, seen: Option<&Semaphore>) {
        let is_checked = stale_before.is_some() && (by_clock || dead.holders().next().is_some());
        if let Some(before) = stale_before.filter(|_| is_checked && !dead.is_empty()) {
            self.write.number(":staleBefore", before);
        }
        let holder_number = |member: &Member, named: Option<u64>| {
            let seen = seen.and_then(|seen| Some(seen.holders.get(&member.holder_id())?.fencing_token));
            seen.or(named).unwrap_or(NO_NUMBER)
        };
        let ticket_number = |member: &Member, named: Option<u64>| {
            let seen = seen.and_then(|seen| Some(seen.queue.get(&member.ticket_id())?.number));
            seen.or(named).unwrap_or(NO_NUMBER)
        };
        let spent = |member: &Member, number: u64| Spent { number, id: member.id().to_owned() };
        let ends: Vec<_> = dead.holders().map(|(it, dead)| spent(it, holder_number(it, dead.number))).collect();
        self.remember(RingOf::Holders, ends.into_iter(), seen);
        let ends: Vec<_> = dead.tickets().map(|(it, dead)| spent(it, ticket_number(it, dead.number))).collect();
        self.remember(RingOf::Tickets, ends.into_iter(), seen);
        let mut slots = BTreeMap::new();
        for (index, (member, dead)) in dead.holders().enumerate() {
            self.write.number(&format!(":dn{index}"), holder_number(member, dead.number));
            self.condition(format!("#tokens.#d{index} = :dn{index}"));
            self.write.name(&format!("#d{index}"), &member.holder_id());
            self.write.text(&format!(":dv{index}"), dead.version.as_str());
            self.write.number(&format!(":dp{index}"), dead.permits);
            self.condition(format!("#holders.#d{index}.#version = :dv{index}"));
            self.condition(format!("#holders.#d{index}.#permits = :dp{index}"));
            if stale_before.is_some() {
                self.condition(format!("#holders.#d{index}.#staleAt < :staleBefore"));
            }
            self.gone.extend([format!("#holders.#d{index}"), format!("#tokens.#d{index}")]);
            let version = dead.version.as_str().to_owned();
            slots.insert(member.slot(), Ended { id: member.id().to_owned(), version, taken_over: true });
        }
        // A slot remembers one end: of two that share a slot, the later one stays.
        for (slot, ended) in slots {
            self.write.name(&format!("#s{slot}"), slot);
            self.write.values.insert(format!(":s{slot}"), item::encode_ended(&ended));
            self.set(format!("#ended.#s{slot} = :s{slot}"));
        }
        for (index, (member, dead)) in dead.tickets().enumerate() {
            self.write.name(&format!("#q{index}"), &member.ticket_id());
            self.write.text(&format!(":qv{index}"), dead.version.as_str());
            self.write.number(&format!(":qn{index}"), ticket_number(member, dead.number));
            self.condition(format!("#queue.#q{index}.#version = :qv{index}"));
            self.condition(format!("#tickets.#q{index} = :qn{index}"));
            if by_clock {
                self.condition(format!("#queue.#q{index}.#staleAt < :staleBefore"));
            }
            self.gone.extend([format!("#queue.#q{index}"), format!("#tickets.#q{index}")]);
        }
    }
}

impl Write {
    /// Binds the two empty rings. Each has a value of its own: in some emulators, two attributes that are set to one
    /// map stay one map, and the end of a holder then hides that of a ticket.
    fn empty_rings(&mut self) {
        for ring in [":spentHolders", ":spentTickets"] {
            self.value(ring, item::empty_ring());
        }
    }
}

/// Creates the row, or takes this tombstone. The write also creates the row's maps, which every other write needs.
pub(crate) fn create(schema: &TableSchema, row: &Semaphore, tombstone: Option<&Tombstone>) -> Write {
    let mut write = Write::default();
    match tombstone {
        None => {
            write.name("#key", &schema.partition_key);
            write.condition = "attribute_not_exists(#key)".into();
        }
        Some(tombstone) => {
            write.text(":seen", &tombstone.rvn);
            write.condition =
                "recordVersionNumber = :seen AND deletedVersion = :seen AND attribute_exists(isReleased) \
                 AND attribute_not_exists(leaseholdKind) AND attribute_not_exists(lastOccurrence)"
                    .into();
        }
    }
    write.text(":kind", KIND);
    write.text(":owner", OWNER);
    write.text(":lease", LEASE);
    write.text(":rvn", &row.rvn);
    write.text(":changed", &row.last_change);
    write.number(":capacity", row.capacity);
    write.values.insert(":available".into(), AttributeValue::N(row.available.to_string()));
    write.number(":nextTicket", row.next_ticket);
    write.number(":token", row.fencing_token);
    write.values.extend(row.expire_at.map(|at| (":expireAt".to_owned(), AttributeValue::N(at.to_string()))));
    write.empty_rings();
    let maps = [
        (":holders", row.holders.iter().map(|(id, it)| (id.clone(), item::encode_holder(it))).collect()),
        (":tokens", row.holders.iter().map(|(id, it)| (id.clone(), number(it.fencing_token))).collect()),
        (":queue", row.queue.iter().map(|(id, it)| (id.clone(), item::encode_ticket(it))).collect()),
        (":tickets", row.queue.iter().map(|(id, it)| (id.clone(), number(it.number))).collect()),
    ];
    write.values.extend(maps.map(|(name, map)| (name.to_owned(), AttributeValue::M(map))));
    write.values.insert(":ended".into(), item::empty_slots());
    write.name("#data", DATA);
    write.update =
        "SET leaseholdKind = :kind, ownerName = :owner, leaseDuration = :lease, recordVersionNumber = :rvn, \
                    #capacity = :capacity, #available = :available, #holders = :holders, #tokens = :tokens, \
                    #queue = :queue, #tickets = :tickets, nextTicket = :nextTicket, fencingToken = :token, \
                    #ended = :ended, spentHolders = :spentHolders, spentTickets = :spentTickets, #changed = :changed, \
                    expireAt = :expireAt \
                    REMOVE isReleased, brokenVersion, deletedVersion, endedVersion, leaseIdHash, leaseVersion, leaseMs, staleAt, \
                    ownerPrincipal, leaseSequence, leaseRequestId, previousLeaseIdHash, previousOwnerName, \
                    previousReleased, previousOccurrence, completedOccurrence, runningOccurrence, leaseholdWanted, #data"
            .into();
    write.bind_words();
    write
}

/// Gives the two rings to a row of an earlier version.
pub(crate) fn upgrade(stamp: &Stamp) -> Write {
    let mut write = Write::default();
    write.text(":kind", KIND);
    write.text(":owner", OWNER);
    write.text(":rvn", &stamp.rvn);
    write.empty_rings();
    write.condition = format!("{IS_SEMAPHORE} AND attribute_not_exists(spentHolders)");
    write.update = "SET spentHolders = :spentHolders, spentTickets = :spentTickets, recordVersionNumber = :rvn".into();
    write
}

/// The grant of permits, alone or as one of several keys under this fencing token.
pub(crate) fn acquire(
    request: &Acquire,
    seen: Option<&Semaphore>,
    stamp: &Stamp,
    policy: &Policy,
    of_several: Option<u64>,
) -> Write {
    let me = Member::new(&request.key, &request.lease_id);
    let (permits, dead) = (request.permits.get(), &dead_of(request, seen, stamp, policy));
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.member(&me);
    builder.not_ended(&me);
    builder.covers(permits, dead);
    builder.condition("attribute_not_exists(#holders.#h)");
    builder.condition("#capacity >= :permits");
    builder.condition(IS_AVAILABLE);
    builder.condition(HAS_ROOM);
    if of_several.is_some() {
        // A waiter asks for several only without its ticket.
        builder.condition("attribute_not_exists(#queue.#t)");
        let first = builder.nobody_ahead(dead, seen);
        let new = builder.new_claim(&me, request.epoch);
        builder.condition(format!("{first} AND {new}"));
    } else {
        builder.write.hash(&request.lease_id.hash());
        let own = builder.own("#queue.#t", request.principal.as_ref(), request.sequence.as_ref());
        let own = format!("{own} AND #queue.#t.#permits = :permits");
        if request.number.is_some() {
            builder.condition(own);
            builder.numbered(request.number);
            let turn = builder.in_turn(request, dead, seen);
            builder.condition(turn);
        } else {
            let first = builder.nobody_ahead(dead, seen);
            let new = builder.new_claim(&me, request.epoch);
            let turn = builder.in_turn(request, dead, seen);
            builder.condition(format!("(({first} AND {new}) OR ({own} AND {turn}))"));
        }
    }
    builder.token("#tokens.#h", of_several);
    if let Some(seen) = seen.filter(|_| request.by_clock) {
        // The entries to remove were chosen by this row.
        let pinned = builder.pinned(seen);
        builder.condition(pinned);
    }

    let holder = request.holder(outcome_with(dead), stamp);
    builder.write.values.insert(":holder".into(), item::encode_holder(&holder));
    builder.signed(":difference", signed(dead.permits()) - signed(permits));
    builder.set("#holders.#h = :holder");
    builder.set("#available = #available + :difference");
    if request.passes_tickets() {
        builder.reorder();
    }
    builder.gone.extend(["#queue.#t".to_owned(), "#tickets.#t".to_owned()]);
    if dead.is_empty() {
        // The queue changes only where the caller has a ticket. No row has had the version of that ticket as `changed`.
        builder.set("#changed = if_not_exists(#queue.#t.#version, #changed)");
    } else {
        builder.changed(stamp);
    }
    let is_checked = request.checked_by_clock || request.by_clock;
    builder.bury(dead, is_checked.then(|| policy.stale_before(stamp)), request.by_clock, seen);
    builder.build()
}

/// Removes the first of the entries that the clock says are dead.
pub(crate) fn bury(request: &Acquire, seen: Option<&Semaphore>, stamp: &Stamp, policy: &Policy) -> Write {
    let dead = &dead_of(request, seen, stamp, policy).first();
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.signed(":back", signed(dead.permits()));
    builder.set("#available = #available + :back");
    builder.changed(stamp);
    builder.bury(dead, Some(policy.stale_before(stamp)), true, seen);
    builder.build()
}

/// The renewal of a holder.
pub(crate) fn heartbeat(request: &Heartbeat, stamp: &Stamp, policy: &Policy) -> Write {
    renewal(request, None, stamp, policy).build()
}

/// The renewal of a holder by an acquire or an enqueue of its own.
pub(crate) fn acquire_again(request: &Acquire, stamp: &Stamp, policy: &Policy) -> Write {
    renewal(&super::lifecycle::renewal(request), Some(GrantOutcome::Renewed), stamp, policy).build()
}

/// The renewal of a holder by an acquire of several keys, under this fencing token.
pub(crate) fn renewal_of_several(request: &Acquire, fencing_token: u64, stamp: &Stamp, policy: &Policy) -> Write {
    let renewed = Some(GrantOutcome::Renewed);
    let mut builder = renewal(&super::lifecycle::renewal(request), renewed, stamp, policy);
    builder.write.number(":permits", request.permits.get());
    builder.condition("#holders.#h.#permits = :permits");
    builder.token("#tokens.#h", Some(fencing_token));
    builder.build()
}

fn renewal(request: &Heartbeat, outcome: Option<GrantOutcome>, stamp: &Stamp, policy: &Policy) -> Builder {
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.write.name("#h", &Member::new(&request.key, &request.lease_id).holder_id());
    builder.write.hash(&request.lease_id.hash());
    let own = builder.own("#holders.#h", request.principal.as_ref(), request.sequence.as_ref());
    builder.condition(own);
    if let Some(version) = &request.expected {
        builder.write.text(":expected", version.as_str());
        builder.condition("#holders.#h.#version = :expected");
    }
    if let Some(token) = request.fencing_token {
        builder.write.number(":token", token);
        builder.condition("#tokens.#h = :token");
    }
    builder.set("#holders.#h.#version = :rvn");
    if let Some(lease) = request.lease_duration.map(LeaseDuration::as_millis) {
        builder.write.number(":leaseMs", lease);
        builder.write.number(":staleAt", stamp.now_ms() + lease);
        builder.set("#holders.#h.#leaseMs = :leaseMs");
        builder.set("#holders.#h.#staleAt = :staleAt");
    } else {
        builder.write.number(":now", stamp.now_ms());
        builder.set("#holders.#h.#staleAt = #holders.#h.#leaseMs + :now");
    }
    if let Some(sequence) = &request.sequence {
        // Bound above, for the condition.
        builder.set("#holders.#h.#sequence = :sequence");
        match sequence.request_id() {
            Some(id) => {
                builder.write.text(":requestId", id);
                builder.set("#holders.#h.#requestId = :requestId");
            }
            None => builder.gone.push("#holders.#h.#requestId".into()),
        }
    }
    if let Some(data) = &request.data {
        let data = aws_sdk_dynamodb::primitives::Blob::new(data.as_bytes());
        builder.write.values.insert(":data".into(), AttributeValue::B(data));
        builder.set("#holders.#h.#data = :data");
    }
    if let Some(outcome) = outcome {
        builder.write.values.insert(":outcome".into(), item::outcome(outcome));
        builder.set("#holders.#h.#outcome = :outcome");
    }
    if let Some(shrink) = request.shrink {
        builder.write.number(":held", shrink.held());
        builder.write.number(":kept", shrink.kept());
        builder.write.number(":back", shrink.back());
        builder.condition("#holders.#h.#permits = :held");
        builder.set("#holders.#h.#permits = :kept");
        builder.set("#available = #available + :back");
        builder.changed(stamp);
    }
    builder
}

pub(crate) fn release(request: &Release, seen: Option<&Semaphore>, stamp: &Stamp, policy: &Policy) -> Write {
    let me = Member::new(&request.key, &request.lease_id);
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.write.name("#slot", me.slot());
    builder.write.hash(&request.lease_id.hash());
    let claim = builder.end(&me, request.number, seen);
    let mut own = builder.own(claim, request.principal.as_ref(), None);
    if let Some(version) = &request.expected {
        builder.write.text(":expected", version.as_str());
        let _ = write!(own, " AND {claim}.#version = :expected");
    }
    builder.condition(own);
    builder.write.text(":id", me.id());
    builder.write.text(":how", item::how(false));
    builder.set("#ended.#slot.#id = :id");
    builder.set(format!("#ended.#slot.#version = {claim}.#version"));
    builder.set("#ended.#slot.#how = :how");
    builder.changed(stamp);
    builder.build()
}

pub(crate) fn break_entry(request: &Break, seen: Option<&Semaphore>, stamp: &Stamp, policy: &Policy) -> Write {
    let mut builder = Builder::of_semaphore(stamp, policy);
    let member = request.id.member();
    let number = request.number.unwrap_or(NO_NUMBER);
    let claim = match &request.id {
        PublicId::Holder(_) => builder.end_holder(member, number, seen),
        PublicId::Ticket(_) => builder.end_ticket(member, number, seen),
    };
    builder.write.text(":seen", request.seen.as_str());
    builder.condition(format!("{claim}.#version = :seen"));
    let version = request.seen.as_str().to_owned();
    let ended = Ended { id: member.id().to_owned(), version, taken_over: false };
    builder.write.name("#slot", member.slot());
    builder.write.values.insert(":ended".into(), item::encode_ended(&ended));
    builder.set("#ended.#slot = :ended");
    builder.changed(stamp);
    builder.build()
}

impl Builder {
    /// Removes the claim of this member: the one that `seen` shows, else the one that the request names. Returns the
    /// path of its entry.
    fn end(&mut self, me: &Member, named: Option<ClaimNumber>, seen: Option<&Semaphore>) -> &'static str {
        let is_seen_ticket =
            seen.map(|seen| !seen.holders.contains_key(&me.holder_id()) && seen.queue.contains_key(&me.ticket_id()));
        match named {
            Some(ClaimNumber::Ticket(number)) if is_seen_ticket != Some(false) => self.end_ticket(me, number, seen),
            _ if is_seen_ticket == Some(true) => self.end_ticket(me, NO_NUMBER, seen),
            Some(ClaimNumber::Token(token)) => self.end_holder(me, token, seen),
            _ => self.end_holder(me, NO_NUMBER, seen),
        }
    }

    fn end_holder(&mut self, me: &Member, named: u64, seen: Option<&Semaphore>) -> &'static str {
        let number = seen.and_then(|seen| seen.holders.get(&me.holder_id())).map_or(named, |it| it.fencing_token);
        self.write.name("#h", &me.holder_id());
        self.write.number(":number", number);
        self.condition("#tokens.#h = :number");
        self.remember(RingOf::Holders, std::iter::once(Spent { number, id: me.id().to_owned() }), seen);
        self.set("#available = #available + #holders.#h.#permits");
        self.gone.extend(["#holders.#h".to_owned(), "#tokens.#h".to_owned()]);
        "#holders.#h"
    }

    fn end_ticket(&mut self, me: &Member, named: u64, seen: Option<&Semaphore>) -> &'static str {
        let number = seen.and_then(|seen| seen.queue.get(&me.ticket_id())).map_or(named, |it| it.number);
        self.write.name("#t", &me.ticket_id());
        self.write.number(":number", number);
        self.condition("#tickets.#t = :number");
        self.remember(RingOf::Tickets, std::iter::once(Spent { number, id: me.id().to_owned() }), seen);
        self.gone.extend(["#queue.#t".to_owned(), "#tickets.#t".to_owned()]);
        "#queue.#t"
    }
}

/// The renewal of a ticket, or a new one. A new one is refused where the permits are free and nobody waits: the second
/// write grants them.
pub(crate) fn enqueue(request: &Enqueue, seen: Option<&Semaphore>, stamp: &Stamp, policy: &Policy) -> Write {
    let me = Member::new(&request.key, &request.lease_id);
    let dead = &request.dead;
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.member(&me);
    builder.not_ended(&me);
    builder.write.hash(&request.lease_id.hash());
    builder.write.number(":permits", request.permits.get());
    builder.condition("attribute_not_exists(#holders.#h)");
    builder.condition("#capacity >= :permits");
    let own = builder.own("#queue.#t", request.principal.as_ref(), request.sequence.as_ref());
    let own = format!("{own} AND #queue.#t.#permits = :permits");
    if request.number.is_some() {
        builder.condition(own);
        builder.numbered(request.number);
    } else {
        let new = builder.new_claim(&me, request.epoch);
        builder.covers(request.permits.get(), dead);
        builder.write.number(":places", (MAX_ENTRIES - 1 + dead.tickets().count()) as u64);
        builder.write.number(":deadTickets", dead.tickets().count() as u64);
        builder.condition(format!(
            "((attribute_not_exists(#queue.#t) AND size(#queue) <= :places AND {new} \
             AND NOT (size(#queue) = :deadTickets AND {IS_AVAILABLE} AND {HAS_ROOM})) OR ({own}))"
        ));
    }
    builder.write.number(":one", 1);
    builder.write.values.insert(":ticket".into(), item::encode_ticket(&request.ticket(stamp)));
    builder.set("#queue.#t = :ticket");
    builder.set("#tickets.#t = if_not_exists(#tickets.#t, nextTicket)");
    builder.set("nextTicket = nextTicket + if_not_exists(#queue.#t.#step, :one)");
    if !dead.is_empty() {
        builder.signed(":back", signed(dead.permits()));
        builder.set("#available = #available + :back");
        builder.changed(stamp);
    }
    builder.bury(dead, request.checked_by_clock.then(|| policy.stale_before(stamp)), false, seen);
    builder.build()
}

pub(crate) fn set_capacity(request: &SetCapacity, stamp: &Stamp) -> Write {
    let mut builder = Builder::of_lasting(stamp);
    let (capacity, expected) = (request.capacity.get(), request.expected.get());
    builder.write.number(":capacity", capacity);
    builder.write.number(":expected", expected);
    builder.signed(":difference", signed(capacity) - signed(expected));
    builder.condition("#capacity = :expected");
    match request.expected_version.as_ref().map(crate::model::Rvn::as_str) {
        Some(INITIAL_CAPACITY) => builder.condition("attribute_not_exists(capacityVersion)"),
        Some(version) => {
            builder.write.text(":seen", version);
            builder.condition("capacityVersion = :seen");
        }
        None => {}
    }
    match &request.request_id {
        Some(id) => {
            builder.write.text(":requestId", id);
            builder.condition("capacityRequestId <> :requestId");
            builder.set("capacityRequestId = :requestId");
        }
        None => builder.gone.push("capacityRequestId".into()),
    }
    // TTL ignores an attribute that is a string.
    builder.set("expireAt = :rvn");
    builder.set("capacityVersion = :rvn");
    builder.set("#capacity = :capacity");
    builder.set("#available = #available + :difference");
    builder.reorder();
    builder.changed(stamp);
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::Policy;
    use crate::model::LockKey;

    fn stamp() -> Stamp {
        Stamp { rvn: "rvn".into(), now_us: 1_000_000 }
    }

    #[test]
    fn map_is_the_value_of_one_attribute() {
        let key = LockKey::new("key", None).expect("a key");
        let row = Semaphore::new(&key, 1, &stamp(), None, &Policy::default());
        let schema = TableSchema::new("t");
        for write in [create(&schema, &row, None), upgrade(&stamp())] {
            let words = || write.update.split(|c: char| !(c.is_ascii_alphanumeric() || c == ':'));
            for (name, _) in write.values.iter().filter(|(_, value)| value.is_m()) {
                assert_eq!(words().filter(|word| word == name).count(), 1, "{name} in {}", write.update);
            }
        }
    }
}
