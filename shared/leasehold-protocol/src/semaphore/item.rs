//! The attributes of a semaphore's row. Each of them is required, by the rule of [`Field`]: no permit is granted on a
//! guess.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use super::lifecycle::{Claim, Ended, Found, Holder, Semaphore, Ticket, Tombstone, signed};
use super::model::SLOTS;
use crate::Record;
use crate::item::{self, AVAILABLE, CAPACITY, CHANGED, ENDED, EXPIRE_AT, FENCING_TOKEN, HOLDERS, IS_RELEASED, Item};
use crate::item::{
    LEASEHOLD_KIND, NEXT_TICKET, OWNER_NAME, QUEUE, RECORD_VERSION_NUMBER, TICKETS, TOKENS, TableSchema,
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
const HOW: &str = "how";
const TAKEN_OVER: &str = "taken-over";
const RELEASED: &str = "released";

type Map = HashMap<String, AttributeValue>;

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
pub(crate) fn decode(key: &LockKey, mut item: Item) -> Result<Semaphore, CorruptRecord> {
    if item.contains_key(IS_RELEASED) {
        return Err(CorruptRecord::new(IS_RELEASED, "set, which no semaphore has"));
    }
    if item.get(OWNER_NAME).and_then(|name| name.as_s().ok()).is_none_or(|name| name != OWNER) {
        return Err(CorruptRecord::new(OWNER_NAME, "not a semaphore's"));
    }
    let tokens = numbers(&mut item, TOKENS)?;
    let tickets = numbers(&mut item, TICKETS)?;
    let holders = entries(&mut item, HOLDERS, &tokens, holder)?;
    let queue = entries(&mut item, QUEUE, &tickets, |map, number| Some(Ticket { claim: claim(map)?, number }))?;
    let capacity = number(&mut item, CAPACITY)?;
    let available = available(item.remove(AVAILABLE))?;
    let taken: i64 = holders.values().map(|holder| signed(holder.claim.permits)).sum();
    if available != signed(capacity) - taken {
        return Err(CorruptRecord::new(AVAILABLE, "not what the holders leave"));
    }
    Ok(Semaphore {
        key: key.clone(),
        rvn: text(&mut item, RECORD_VERSION_NUMBER)?,
        capacity,
        available,
        holders,
        queue,
        next_ticket: number(&mut item, NEXT_TICKET)?,
        fencing_token: number(&mut item, FENCING_TOKEN)?,
        ended: ended(item.remove(ENDED))?,
        last_change: text(&mut item, CHANGED)?,
        expire_at: number(&mut item, EXPIRE_AT)?,
    })
}

fn number(item: &mut Item, attribute: &'static str) -> Result<u64, CorruptRecord> {
    item::number(item.remove(attribute)).require(attribute).copied()
}

fn text(item: &mut Item, attribute: &'static str) -> Result<String, CorruptRecord> {
    item::string(item.remove(attribute)).require(attribute).cloned()
}

fn map(item: &mut Item, attribute: &'static str) -> Result<Map, CorruptRecord> {
    match item.remove(attribute) {
        Some(AttributeValue::M(map)) => Ok(map),
        Some(_) => Err(CorruptRecord::new(attribute, "unreadable")),
        None => Err(CorruptRecord::new(attribute, "missing")),
    }
}

fn available(value: Option<AttributeValue>) -> Result<i64, CorruptRecord> {
    let read = |value: AttributeValue| value.as_n().ok().and_then(|text| text.parse().ok());
    value.and_then(read).ok_or(CorruptRecord::new(AVAILABLE, "unreadable"))
}

fn numbers(item: &mut Item, attribute: &'static str) -> Result<BTreeMap<String, u64>, CorruptRecord> {
    let numbers = map(item, attribute)?.into_iter();
    let read = numbers.map(|(id, value)| Some((id, item::number(Some(value)).into_value()?)));
    read.collect::<Option<_>>().ok_or(CorruptRecord::new(attribute, "unreadable"))
}

/// Reads the entries from two maps with the same names, since an expression can set a number only by itself.
fn entries<T>(
    item: &mut Item,
    attribute: &'static str,
    numbers: &BTreeMap<String, u64>,
    read: impl Fn(&Map, u64) -> Option<T>,
) -> Result<BTreeMap<String, T>, CorruptRecord> {
    let entries = map(item, attribute)?;
    if entries.len() != numbers.len() {
        return Err(CorruptRecord::new(attribute, "not numbered one by one"));
    }
    let read = |(id, value): (String, AttributeValue)| {
        let claim = read(value.as_m().ok()?, *numbers.get(&id)?)?;
        Some((id, claim))
    };
    entries.into_iter().map(read).collect::<Option<_>>().ok_or(CorruptRecord::new(attribute, "unreadable"))
}

fn claim(map: &Map) -> Option<Claim> {
    let text = |name: &str| map.get(name)?.as_s().ok().cloned();
    let number = |name: &str| item::number(map.get(name).cloned()).into_value();
    let optional = |name: &str| match item::string(map.get(name).cloned()) {
        Field::Absent => Some(None),
        Field::Unreadable => None,
        Field::Value(text) => Some(Some(text)),
    };
    let has_sequence = map.contains_key(SEQUENCE) || map.contains_key(REQUEST_ID);
    let sequence = item::sequence(map.get(SEQUENCE), map.get(REQUEST_ID).cloned());
    if has_sequence && sequence.is_none() {
        return None;
    }
    Some(Claim {
        hash: item::lease_id_hash(map.get(HASH)?)?,
        owner_name: text(NAME)?,
        principal: optional(PRINCIPAL)?,
        version: text(VERSION)?,
        lease_ms: number(LEASE_MS)?,
        permits: number(PERMITS)?,
        sequence,
    })
}

fn holder(map: &Map, fencing_token: u64) -> Option<Holder> {
    Some(Holder {
        claim: claim(map)?,
        fencing_token,
        stale_at: item::number(map.get(STALE_AT).cloned()).into_value()?,
        data: match map.get(DATA) {
            None => None,
            Some(data) => Some(data.as_b().ok()?.as_ref().to_vec()),
        },
        outcome: OUTCOMES.iter().find(|(_, name)| map.get(OUTCOME).is_some_and(|value| is_text(value, name)))?.0,
    })
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
fn ended(value: Option<AttributeValue>) -> Result<BTreeMap<String, Ended>, CorruptRecord> {
    let corrupt = CorruptRecord::new(ENDED, "unreadable");
    let Some(AttributeValue::M(slots)) = value else { return Err(corrupt) };
    let is_complete = slots.len() == SLOTS.len() && SLOTS.iter().all(|slot| slots.contains_key(*slot));
    let read = |(slot, value): (String, AttributeValue)| {
        let map = value.as_m().ok()?;
        if map.is_empty() {
            return Some(None);
        }
        let text = |name: &str| map.get(name)?.as_s().ok().cloned();
        let taken_over = match text(HOW)?.as_str() {
            TAKEN_OVER => true,
            RELEASED => false,
            _ => return None,
        };
        Some(Some((slot, Ended { id: text(ID)?, version: text(VERSION)?, taken_over })))
    };
    let ends: Option<Vec<_>> = slots.into_iter().map(read).collect();
    ends.filter(|_| is_complete).map(|ends| ends.into_iter().flatten().collect()).ok_or(corrupt)
}

pub(crate) fn empty_slots() -> AttributeValue {
    AttributeValue::M(SLOTS.iter().map(|slot| ((*slot).to_owned(), AttributeValue::M(Map::new()))).collect())
}

pub(crate) fn encode_ended(ended: &Ended) -> AttributeValue {
    let text = |name: &str, value: &str| (name.to_owned(), AttributeValue::S(value.to_owned()));
    AttributeValue::M(Map::from([text(ID, &ended.id), text(VERSION, &ended.version), text(HOW, how(ended.taken_over))]))
}

pub(crate) fn how(taken_over: bool) -> &'static str {
    if taken_over { TAKEN_OVER } else { RELEASED }
}

fn encode_claim(claim: &Claim) -> Map {
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
pub(crate) fn encode_ticket(claim: &Claim) -> AttributeValue {
    let mut map = encode_claim(claim);
    map.insert(STEP.into(), AttributeValue::N("0".into()));
    AttributeValue::M(map)
}
