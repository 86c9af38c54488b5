//! The rules of [`super::lifecycle`] as DynamoDB expressions: one conditional write for each operation.
//!
//! Compare a condition here with the function of the same name there. A word after `#` is an attribute of that name,
//! since many of them are reserved words. `#h` and `#t` are the caller's own entries, `#d…` and `#q…` dead holders and
//! tickets.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use aws_sdk_dynamodb::types::AttributeValue;

use super::item::{self, KIND, LEASE, OWNER};
use super::lifecycle::{Ended, Semaphore, Tombstone, changed, signed};
use super::model::{Acquire, AllDead, Break, Enqueue, Heartbeat, MAX_ENTRIES, Member, PublicId, Release, SetCapacity};
use crate::item::{DATA, TableSchema};
use crate::lifecycle::{GrantOutcome, LAST_COUNTABLE_TOKEN, Policy, Stamp};
use crate::model::{LeaseDuration, MAX_SEQUENCE, Principal, Sequence};
use crate::write::{Builder, Write, number};

/// A semaphore that no older version has broken or taken.
const IS_SEMAPHORE: &str = "leaseholdKind = :kind AND ownerName = :owner AND attribute_not_exists(isReleased)";

/// The end of the lease id is not remembered. A comparison by `<>` with an absent attribute is true.
const IS_NOT_ENDED: &str = "#ended.#slot.#id <> :id";

/// The token is below the limit, so that the next one can be counted from it.
const IS_COUNTABLE: &str = "fencingToken BETWEEN :zero AND :lastToken";

impl Builder {
    /// Starts the write of an existing semaphore.
    fn of_semaphore(stamp: &Stamp, policy: &Policy) -> Self {
        let mut builder = Self::default();
        builder.write.text(":kind", KIND);
        builder.write.text(":owner", OWNER);
        builder.condition(IS_SEMAPHORE);
        builder.write.text(":rvn", &stamp.rvn);
        builder.set("recordVersionNumber = :rvn");
        builder.put("expireAt", number(policy.expire_at(stamp, None)));
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

    /// Requires that the dead entries are as they were observed, and removes them.
    fn bury(&mut self, dead: &AllDead, stale_before: Option<u64>) {
        if let Some(before) = stale_before.filter(|_| dead.holders().next().is_some()) {
            self.write.number(":staleBefore", before);
        }
        let mut slots = BTreeMap::new();
        for (index, (member, dead)) in dead.holders().enumerate() {
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
            self.condition(format!("#queue.#q{index}.#version = :qv{index}"));
            self.gone.extend([format!("#queue.#q{index}"), format!("#tickets.#q{index}")]);
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
    write.number(":expireAt", row.expire_at);
    let maps = [
        (":holders", row.holders.iter().map(|(id, it)| (id.clone(), item::encode_holder(it))).collect()),
        (":tokens", row.holders.iter().map(|(id, it)| (id.clone(), number(it.fencing_token))).collect()),
        (":queue", row.queue.iter().map(|(id, it)| (id.clone(), item::encode_ticket(&it.claim))).collect()),
        (":tickets", row.queue.iter().map(|(id, it)| (id.clone(), number(it.number))).collect()),
    ];
    write.values.extend(maps.map(|(name, map)| (name.to_owned(), AttributeValue::M(map))));
    write.values.insert(":ended".into(), item::empty_slots());
    write.name("#data", DATA);
    write.update =
        "SET leaseholdKind = :kind, ownerName = :owner, leaseDuration = :lease, recordVersionNumber = :rvn, \
                    #capacity = :capacity, #available = :available, #holders = :holders, #tokens = :tokens, \
                    #queue = :queue, #tickets = :tickets, nextTicket = :nextTicket, fencingToken = :token, \
                    #ended = :ended, #changed = :changed, expireAt = :expireAt \
                    REMOVE isReleased, deletedVersion, endedVersion, leaseIdHash, leaseVersion, leaseMs, staleAt, \
                    ownerPrincipal, leaseSequence, leaseRequestId, previousLeaseIdHash, previousOwnerName, \
                    previousReleased, previousOccurrence, completedOccurrence, runningOccurrence, leaseholdWanted, #data"
            .into();
    write.bind_words();
    write
}

pub(crate) fn acquire(request: &Acquire, stamp: &Stamp, policy: &Policy) -> Write {
    let me = Member::new(&request.key, &request.lease_id);
    let (permits, dead) = (request.permits.get(), &request.dead);
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.member(&me);
    builder.not_ended(&me);
    builder.write.hash(&request.lease_id.hash());
    builder.write.number(":permits", permits);
    builder.signed(":needed", signed(permits) - signed(dead.permits()));
    builder.write.number(":room", (MAX_ENTRIES - 1 + dead.holders().count()) as u64);
    builder.write.number(":deadTickets", dead.tickets().count() as u64);
    builder.write.number(":zero", 0);
    builder.write.number(":lastToken", LAST_COUNTABLE_TOKEN);
    builder.condition("attribute_not_exists(#holders.#h)");
    builder.condition("#capacity >= :permits");
    builder.condition("#available >= :needed");
    builder.condition("size(#holders) <= :room");
    let own = builder.own("#queue.#t", request.principal.as_ref(), request.sequence.as_ref());
    builder.condition(format!("(size(#queue) = :deadTickets OR ({own}))"));
    builder.condition(IS_COUNTABLE);

    let has_dead_holder = dead.holders().next().is_some();
    let outcome = if has_dead_holder { GrantOutcome::TakenOver } else { GrantOutcome::Reacquired };
    let holder = request.holder(outcome, stamp);
    builder.write.values.insert(":holder".into(), item::encode_holder(&holder));
    builder.write.number(":one", 1);
    builder.signed(":difference", signed(dead.permits()) - signed(permits));
    builder.set("#holders.#h = :holder");
    builder.set("#tokens.#h = fencingToken + :one");
    builder.set("fencingToken = fencingToken + :one");
    builder.set("#available = #available + :difference");
    builder.gone.extend(["#queue.#t".to_owned(), "#tickets.#t".to_owned()]);
    if dead.is_empty() {
        // The queue changes only where the caller has a ticket. No row has had the version of that ticket as `changed`.
        builder.set("#changed = if_not_exists(#queue.#t.#version, #changed)");
    } else {
        builder.changed(stamp);
    }
    builder.bury(dead, request.checked_by_clock.then(|| policy.stale_before(stamp)));
    builder.build()
}

/// The renewal of a holder. `outcome` is given where the renewal comes from an acquire.
pub(crate) fn heartbeat(request: &Heartbeat, outcome: Option<GrantOutcome>, stamp: &Stamp, policy: &Policy) -> Write {
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.write.name("#h", &Member::new(&request.key, &request.lease_id).holder_id());
    builder.write.hash(&request.lease_id.hash());
    let own = builder.own("#holders.#h", request.principal.as_ref(), request.sequence.as_ref());
    builder.condition(own);
    if let Some(version) = &request.expected {
        builder.write.text(":expected", version.as_str());
        builder.condition("#holders.#h.#version = :expected");
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
    builder.build()
}

pub(crate) fn release(request: &Release, stamp: &Stamp, policy: &Policy) -> Write {
    let me = Member::new(&request.key, &request.lease_id);
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.member(&me);
    builder.write.hash(&request.lease_id.hash());
    let own = ["#holders.#h", "#queue.#t"].map(|path| {
        let mut own = builder.own(path, request.principal.as_ref(), None);
        if request.expected.is_some() {
            let _ = write!(own, " AND {path}.#version = :expected");
        }
        own
    });
    if let Some(version) = &request.expected {
        builder.write.text(":expected", version.as_str());
    }
    builder.condition(format!("(({}) OR ({}))", own[0], own[1]));
    builder.write.number(":zero", 0);
    builder.write.text(":none", "");
    builder.write.text(":id", me.id());
    builder.write.text(":how", item::how(false));
    builder.set("#available = #available + if_not_exists(#holders.#h.#permits, :zero)");
    builder.set("#ended.#slot.#id = :id");
    builder.set("#ended.#slot.#version = if_not_exists(#holders.#h.#version, :none)");
    builder.set("#ended.#slot.#how = :how");
    builder.changed(stamp);
    builder.gone.extend(["#holders.#h", "#tokens.#h", "#queue.#t", "#tickets.#t"].map(str::to_owned));
    builder.build()
}

pub(crate) fn break_entry(request: &Break, stamp: &Stamp, policy: &Policy) -> Write {
    let mut builder = Builder::of_semaphore(stamp, policy);
    let member = request.id.member();
    builder.write.text(":seen", request.seen.as_str());
    match &request.id {
        PublicId::Holder(member) => {
            builder.write.name("#h", &member.holder_id());
            builder.condition("#holders.#h.#version = :seen");
            builder.set("#available = #available + #holders.#h.#permits");
            builder.gone.extend(["#holders.#h".to_owned(), "#tokens.#h".to_owned()]);
        }
        PublicId::Ticket(member) => {
            builder.write.name("#t", &member.ticket_id());
            builder.condition("#queue.#t.#version = :seen");
            builder.gone.extend(["#queue.#t".to_owned(), "#tickets.#t".to_owned()]);
        }
    }
    let version = request.seen.as_str().to_owned();
    let ended = Ended { id: member.id().to_owned(), version, taken_over: false };
    builder.write.name("#slot", member.slot());
    builder.write.values.insert(":ended".into(), item::encode_ended(&ended));
    builder.set("#ended.#slot = :ended");
    builder.changed(stamp);
    builder.build()
}

pub(crate) fn enqueue(request: &Enqueue, stamp: &Stamp, policy: &Policy) -> Write {
    let me = Member::new(&request.key, &request.lease_id);
    let dead = &request.dead;
    let mut builder = Builder::of_semaphore(stamp, policy);
    builder.member(&me);
    builder.not_ended(&me);
    builder.write.hash(&request.lease_id.hash());
    builder.write.number(":permits", request.permits.get());
    builder.write.number(":room", (MAX_ENTRIES - 1 + dead.tickets().count()) as u64);
    builder.condition("attribute_not_exists(#holders.#h)");
    builder.condition("#capacity >= :permits");
    let own = builder.own("#queue.#t", request.principal.as_ref(), request.sequence.as_ref());
    builder.condition(format!(
        "((attribute_not_exists(#queue.#t) AND size(#queue) <= :room) OR ({own} AND #queue.#t.#permits = :permits))"
    ));
    builder.write.number(":one", 1);
    builder.write.values.insert(":ticket".into(), item::encode_ticket(&request.claim(stamp)));
    builder.set("#queue.#t = :ticket");
    builder.set("#tickets.#t = if_not_exists(#tickets.#t, nextTicket)");
    builder.set("nextTicket = nextTicket + if_not_exists(#queue.#t.#step, :one)");
    if !dead.is_empty() {
        builder.signed(":back", signed(dead.permits()));
        builder.set("#available = #available + :back");
        builder.changed(stamp);
    }
    builder.bury(dead, request.checked_by_clock.then(|| policy.stale_before(stamp)));
    builder.build()
}

pub(crate) fn set_capacity(request: &SetCapacity, stamp: &Stamp, policy: &Policy) -> Write {
    let mut builder = Builder::of_semaphore(stamp, policy);
    let (capacity, expected) = (request.capacity.get(), request.expected.get());
    builder.write.number(":capacity", capacity);
    builder.write.number(":expected", expected);
    builder.signed(":difference", signed(capacity) - signed(expected));
    builder.condition("#capacity = :expected");
    builder.set("#capacity = :capacity");
    builder.set("#available = #available + :difference");
    builder.changed(stamp);
    builder.build()
}
