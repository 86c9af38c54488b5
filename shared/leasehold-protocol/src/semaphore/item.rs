//! The attributes of a semaphore's row. Each of them is required, by the rule of [`Field`]: no permit is granted on a
//! guess.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use super::lifecycle::{Claim, Ended, Found, Holder, Ring, Semaphore, Spent, Ticket, Tombstone, signed};
use super::model::{SLOTS, ring_slot};
use crate::Record;
use crate::attributes::{Attributes, Item, bytes, digits, hash, map, number, string};
use crate::item::{AVAILABLE, CAPACITY, CHANGED, ENDED, EXPIRE_AT, FENCING_TOKEN, HOLDERS, IS_RELEASED};
use crate::item::{
    CAPACITY_REQUEST_ID, CAPACITY_VERSION, LEASEHOLD_KIND, NEXT_TICKET, OWNER_NAME, QUEUE, RECORD_VERSION_NUMBER,
    REORDERED, SPENT_HOLDERS, SPENT_TICKETS, TICKETS, TOKENS, TableSchema,
};
use crate::lifecycle::{CorruptRecord, Field, GrantOutcome};
use crate::model::LockKey;

/// The value of `leaseholdKind`.
pub(crate) const KIND: &str = "semaphore";
/// The owner of the row, as other clients see it.
pub const OWNER: &str = "leasehold:semaphore";
/// The lease of the row, as other clients see it: the longest that a Java client can read, so that the row is never
/// stale.
pub(crate) const LEASE: &str = "9223372036854775807";

const HASH: &str = "hash";
const NAME: &str = "owner";
const PRINCIPAL: &str = "principal";
const VERSION: &str = "version";
const LEASE_MS: &str = "leaseMs";
const PERMITS: &str = "permits";
const SEQUENCE: &str = "sequence";
const REQUEST_ID: &str = "requestId";
const STALE_AT: &str = "staleAt";
const DATA: &str = "data";
const OUTCOME: &str = "outcome";
/// The increment of `nextTicket` where an enqueue finds its ticket in the queue: zero. An expression has no branches.
const STEP: &str = "step";
const ID: &str = "id";
const NUMBER: &str = "number";
const HOW: &str = "how";
const TAKEN_OVER: &str = "taken-over";
const RELEASED: &str = "released";

impl TableSchema {
    /// Reads an item that DynamoDB returned, or a missing one, for an operation on a semaphore.
    ///
    /// # Errors
    /// `CorruptRecord` where the item is a semaphore's and unreadable, or a tombstone whose fencing token cannot be
    /// counted from.
    pub fn decode_found(&self, key: &LockKey, item: Option<Item>) -> Result<Found, CorruptRecord> {
        let Some(item) = item else { return Ok(Found::Free(None)) };
        if item.contains_key(LEASEHOLD_KIND) {
            let is_semaphore = item.get(LEASEHOLD_KIND).is_some_and(|kind| is_text(kind, KIND));
            return Ok(if is_semaphore { Found::Semaphore(Box::new(decode(key, item)?)) } else { Found::OtherKind });
        }
        // A tombstone that records an occurrence stays: a semaphore has no place for the record.
        let is_free = |row: &crate::Row| row.is_deleted() && row.last_occurrence == Field::Absent;
        let Some(row) = self.decode_row(item).filter(is_free) else { return Ok(Found::OtherKind) };
        let fencing_token = row.countable_token()?;
        Ok(Found::Free(row.rvn.into_value().map(|rvn| Tombstone { rvn, fencing_token })))
    }
}

impl TableSchema {
    /// Reads an item of any kind that DynamoDB returned. Returns `None` if it has no key of this schema, which cannot
    /// happen.
    pub fn decode_record(&self, item: Item) -> Option<Record> {
        if !item.get(LEASEHOLD_KIND).is_some_and(|kind| is_text(kind, KIND)) {
            return self.decode_row(item).map(Record::Lock);
        }
        let key = self.decode_key(&item)?;
        let semaphore = decode(&key, item).map(Box::new);
        Some(Record::Semaphore(key, semaphore))
    }
}

/// Reads a semaphore's row.
pub(crate) fn decode(key: &LockKey, item: Item) -> Result<Semaphore, CorruptRecord> {
    let mut row = Attributes(item);
    if row.has(IS_RELEASED) {
        return Err(CorruptRecord::new(IS_RELEASED, "set, which no semaphore has"));
    }
    if row.field(OWNER_NAME, string) != Field::Value(OWNER.to_owned()) {
        return Err(CorruptRecord::new(OWNER_NAME, "not a semaphore's"));
    }
    let tokens = row.required(TOKENS, numbers)?;
    let tickets = row.required(TICKETS, numbers)?;
    let holders = entries(&mut row, HOLDERS, &tokens, holder)?;
    let queue = entries(&mut row, QUEUE, &tickets, ticket)?;
    let capacity = row.required(CAPACITY, number)?;
    let available = row.required(AVAILABLE, |value| digits(value)?.parse().ok())?;
    let taken: i64 = holders.values().map(|holder| signed(holder.claim.permits)).sum();
    if available != signed(capacity) - taken {
        return Err(CorruptRecord::new(AVAILABLE, "not what the holders leave"));
    }
    // Rows of earlier versions have no rings.
    let spent_holders = row.optional(SPENT_HOLDERS, ring)?;
    let spent_tickets = row.optional(SPENT_TICKETS, ring)?;
    let capacity_version = row.optional(CAPACITY_VERSION, string)?;
    let expire_at = match &capacity_version {
        Some(_) => None,
        None => Some(row.required(EXPIRE_AT, number)?),
    };
    Ok(Semaphore {
        key: key.clone(),
        rvn: row.required(RECORD_VERSION_NUMBER, string)?,
        capacity,
        available,
        holders,
        queue,
        next_ticket: row.required(NEXT_TICKET, number)?,
        fencing_token: row.required(FENCING_TOKEN, number)?,
        ended: row.required(ENDED, ended)?,
        has_rings: spent_holders.is_some() && spent_tickets.is_some(),
        spent_holders: spent_holders.unwrap_or_default(),
        spent_tickets: spent_tickets.unwrap_or_default(),
        capacity_version,
        capacity_request_id: row.optional(CAPACITY_REQUEST_ID, string)?,
        reordered: row.optional(REORDERED, number)?.unwrap_or_default(),
        last_change: row.required(CHANGED, string)?,
        expire_at,
    })
}

fn ring(value: AttributeValue) -> Option<Ring> {
    let read = |(slot, value)| {
        let mut spent = map(value)?;
        let id = spent.required(ID, string).ok()?;
        let number = spent.required(NUMBER, number).ok()?;
        (slot == ring_slot(number)).then_some((slot, Spent { number, id }))
    };
    map(value)?.0.into_iter().map(read).collect()
}

pub(crate) fn encode_spent(spent: &Spent) -> AttributeValue {
    let number = AttributeValue::N(spent.number.to_string());
    AttributeValue::M(Item::from([(ID.into(), AttributeValue::S(spent.id.clone())), (NUMBER.into(), number)]))
}

pub(crate) fn empty_ring() -> AttributeValue {
    AttributeValue::M(Item::new())
}

fn numbers(value: AttributeValue) -> Option<BTreeMap<String, u64>> {
    map(value)?.0.into_iter().map(|(id, value)| Some((id, number(value)?))).collect()
}

/// Reads the entries from two maps with the same names, since an expression can set a number only by itself.
fn entries<T>(
    row: &mut Attributes,
    attribute: &'static str,
    numbers: &BTreeMap<String, u64>,
    read: impl Fn(Attributes, u64) -> Result<T, CorruptRecord>,
) -> Result<BTreeMap<String, T>, CorruptRecord> {
    let entries = row.required(attribute, map)?.0;
    if entries.len() != numbers.len() {
        return Err(CorruptRecord::new(attribute, "not numbered one by one"));
    }
    let read = |(id, value)| {
        let entry = read(map(value)?, *numbers.get(&id)?).ok()?;
        Some((id, entry))
    };
    entries.into_iter().map(read).collect::<Option<_>>().ok_or(CorruptRecord::new(attribute, "unreadable"))
}

fn claim(map: &mut Attributes) -> Result<Claim, CorruptRecord> {
    Ok(Claim {
        hash: map.required(HASH, hash)?,
        owner_name: map.required(NAME, string)?,
        principal: map.optional(PRINCIPAL, string)?,
        version: map.required(VERSION, string)?,
        lease_ms: map.required(LEASE_MS, number)?,
        permits: map.required(PERMITS, number)?,
        sequence: map.sequence(SEQUENCE, REQUEST_ID).optional(SEQUENCE)?,
    })
}

fn holder(mut map: Attributes, fencing_token: u64) -> Result<Holder, CorruptRecord> {
    let outcome = |name: String| Some(OUTCOMES.iter().find(|(_, known)| *known == name)?.0);
    Ok(Holder {
        claim: claim(&mut map)?,
        fencing_token,
        stale_at: map.required(STALE_AT, number)?,
        data: map.optional(DATA, bytes)?,
        outcome: map.required(OUTCOME, |value| outcome(string(value)?))?,
    })
}

/// Reads a ticket. Tickets of earlier versions have no time at which they are dead by the clock.
fn ticket(mut map: Attributes, number_of_ticket: u64) -> Result<Ticket, CorruptRecord> {
    Ok(Ticket { claim: claim(&mut map)?, number: number_of_ticket, stale_at: map.optional(STALE_AT, number)? })
}

fn is_text(value: &AttributeValue, text: &str) -> bool {
    value.as_s().is_ok_and(|value| value == text)
}

const OUTCOMES: [(GrantOutcome, &str); 4] = [
    (GrantOutcome::Created, "created"),
    (GrantOutcome::Reacquired, "reacquired"),
    (GrantOutcome::TakenOver, "takenOver"),
    (GrantOutcome::Renewed, "renewed"),
];

pub(crate) fn outcome(outcome: GrantOutcome) -> AttributeValue {
    let (_, name) = OUTCOMES[outcome as usize];
    AttributeValue::S(name.to_owned())
}

/// All slots exist from the first write on, and are empty until they are used.
fn ended(value: AttributeValue) -> Option<BTreeMap<String, Ended>> {
    let slots = map(value)?;
    let is_complete = slots.0.len() == SLOTS.len() && SLOTS.iter().all(|slot| slots.has(slot));
    let used = |(slot, value)| match map(value) {
        Some(end) if end.0.is_empty() => None,
        end => Some(end.and_then(end_of).map(|end| (slot, end))),
    };
    let ends = slots.0.into_iter().filter_map(used).collect::<Option<_>>();
    ends.filter(|_| is_complete)
}

fn end_of(mut map: Attributes) -> Option<Ended> {
    let taken_over = match map.required(HOW, string).ok()?.as_str() {
        TAKEN_OVER => true,
        RELEASED => false,
        _ => return None,
    };
    Some(Ended { id: map.required(ID, string).ok()?, version: map.required(VERSION, string).ok()?, taken_over })
}

pub(crate) fn empty_slots() -> AttributeValue {
    AttributeValue::M(SLOTS.iter().map(|slot| ((*slot).to_owned(), AttributeValue::M(Item::new()))).collect())
}

pub(crate) fn encode_ended(ended: &Ended) -> AttributeValue {
    let text = |name: &str, value: &str| (name.to_owned(), AttributeValue::S(value.to_owned()));
    AttributeValue::M(Item::from([
        text(ID, &ended.id),
        text(VERSION, &ended.version),
        text(HOW, how(ended.taken_over)),
    ]))
}

pub(crate) fn how(taken_over: bool) -> &'static str {
    if taken_over { TAKEN_OVER } else { RELEASED }
}

fn encode_claim(claim: &Claim) -> Item {
    let text = |value: &str| AttributeValue::S(value.to_owned());
    let number = |value: u64| AttributeValue::N(value.to_string());
    let sequence = claim.sequence.as_ref();
    let optional = [
        (PRINCIPAL, claim.principal.as_deref().map(text)),
        (SEQUENCE, sequence.map(|sequence| number(sequence.number()))),
        (REQUEST_ID, sequence.and_then(|sequence| sequence.request_id()).map(text)),
    ];
    let required = [
        (HASH, AttributeValue::B(Blob::new(claim.hash.0))),
        (NAME, text(&claim.owner_name)),
        (VERSION, text(&claim.version)),
        (LEASE_MS, number(claim.lease_ms)),
        (PERMITS, number(claim.permits)),
    ];
    let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
    required.into_iter().chain(optional).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A holder without its token.
pub(crate) fn encode_holder(holder: &Holder) -> AttributeValue {
    let mut map = encode_claim(&holder.claim);
    map.insert(STALE_AT.into(), AttributeValue::N(holder.stale_at.to_string()));
    map.insert(OUTCOME.into(), outcome(holder.outcome));
    map.extend(holder.data.as_ref().map(|data| (DATA.to_owned(), AttributeValue::B(Blob::new(data.clone())))));
    AttributeValue::M(map)
}

/// A ticket without its number.
pub(crate) fn encode_ticket(ticket: &Ticket) -> AttributeValue {
    let mut map = encode_claim(&ticket.claim);
    map.extend(ticket.stale_at.map(|at| (STALE_AT.to_owned(), AttributeValue::N(at.to_string()))));
    map.insert(STEP.into(), AttributeValue::N("0".into()));
    AttributeValue::M(map)
}
