//! The table on the wire: attribute names, and the codec between items and [`Row`]s. Byte-compatible with the
//! Amazon DynamoDB Lock Client for Java. [`Field`] has the rule for unreadable attributes.

use aws_sdk_dynamodb::types::AttributeValue;

use crate::attributes::{Attributes, Item, bytes, digits, hash, number, string, whole_number};
use crate::lifecycle::{Field, MAX_LEASE_DIGITS, Previous, Row};
use crate::model::LockKey;

pub(crate) const OWNER_NAME: &str = "ownerName";
pub(crate) const LEASE_DURATION: &str = "leaseDuration";
pub(crate) const RECORD_VERSION_NUMBER: &str = "recordVersionNumber";
pub(crate) const IS_RELEASED: &str = "isReleased";
pub(crate) const DATA: &str = "data";
pub(crate) const LEASE_ID_HASH: &str = "leaseIdHash";
pub(crate) const FENCING_TOKEN: &str = "fencingToken";
pub(crate) const STALE_AT: &str = "staleAt";
/// The attribute that DynamoDB's TTL watches.
pub const EXPIRE_AT: &str = "expireAt";
/// The record version number that the holder of `leaseIdHash` wrote. A Java client with `updateExistingLockRecord`
/// takes a row over in place and leaves both `leaseIdHash` and this attribute. This attribute then no longer matches,
/// and the former holder is refused.
pub(crate) const LEASE_VERSION: &str = "leaseVersion";
/// The lease as a number: an expression cannot add the string `leaseDuration` to the clock, and a heartbeat that
/// keeps the lease must still write `staleAt` without reading first.
pub(crate) const LEASE_MS: &str = "leaseMs";
/// The principal that the lock is bound to, where owners are bound.
pub(crate) const OWNER_PRINCIPAL: &str = "ownerPrincipal";

/// The number of the last request that was carried out under the lease id.
pub(crate) const LEASE_SEQUENCE: &str = "leaseSequence";
/// The id of that request, where it has one.
pub(crate) const LEASE_REQUEST_ID: &str = "leaseRequestId";
/// The hash of the lease id before this one.
pub(crate) const PREVIOUS_LEASE_ID_HASH: &str = "previousLeaseIdHash";
/// The owner before this one; empty where there was no row.
pub(crate) const PREVIOUS_OWNER_NAME: &str = "previousOwnerName";
/// The mark of a release that the acquisition found; empty where it found none.
pub(crate) const PREVIOUS_RELEASED: &str = "previousReleased";
/// The occurrence that the acquisition before completed; empty where it completed none.
pub(crate) const PREVIOUS_OCCURRENCE: &str = "previousOccurrence";
/// The record version number that the last release or break ended.
pub(crate) const ENDED_VERSION: &str = "endedVersion";
/// Equal to the record version number on a row that an operator broke.
pub(crate) const BROKEN_VERSION: &str = "brokenVersion";
/// Equal to the record version number on a tombstone. A Java client that takes the row over in place changes the record
/// version number and not this attribute, and so makes the row a lock again.
pub(crate) const DELETED_VERSION: &str = "deletedVersion";
/// The occurrence that the last acquisition was for.
pub(crate) const RUNNING_OCCURRENCE: &str = "runningOccurrence";
/// The occurrence that the last acquisition completed, as long as the row is released.
pub(crate) const COMPLETED_OCCURRENCE: &str = "completedOccurrence";
/// The last occurrence that is done.
pub(crate) const LAST_OCCURRENCE: &str = "lastOccurrence";
/// The seconds by which the row outlives others, so that `lastOccurrence` is remembered for so long at least.
pub(crate) const OCCURRENCE_SECONDS: &str = "occurrenceSeconds";

/// The owner name of a waiter, who asks the holder to give way.
pub(crate) const LEASEHOLD_WANTED: &str = "leaseholdWanted";

/// The kind of the row, where it is not a lock.
pub(crate) const LEASEHOLD_KIND: &str = "leaseholdKind";
/// The number of permits of a semaphore.
pub(crate) const CAPACITY: &str = "capacity";
/// The number of free permits.
pub(crate) const AVAILABLE: &str = "available";
/// The holders of permits.
pub(crate) const HOLDERS: &str = "holders";
/// The fencing tokens of the holders.
pub(crate) const TOKENS: &str = "tokens";
/// The waiters.
pub(crate) const QUEUE: &str = "queue";
/// The ticket numbers of the waiters.
pub(crate) const TICKETS: &str = "tickets";
/// The number of the next ticket.
pub(crate) const NEXT_TICKET: &str = "nextTicket";
/// The last ends of holders and tickets.
pub(crate) const ENDED: &str = "ended";
/// The last holders that ended, each in the slot of its fencing token.
pub(crate) const SPENT_HOLDERS: &str = "spentHolders";
/// The last tickets that ended without a grant, each in the slot of its number.
pub(crate) const SPENT_TICKETS: &str = "spentTickets";
/// New with each change of the capacity by an operator. A row that has it never expires.
pub(crate) const CAPACITY_VERSION: &str = "capacityVersion";
/// The request that changed the capacity last.
pub(crate) const CAPACITY_REQUEST_ID: &str = "capacityRequestId";
/// Counts the events after which it may no longer be the turn of a ticket whose turn it was.
pub(crate) const REORDERED: &str = "reordered";
/// Changes whenever the waiters should look again.
pub(crate) const CHANGED: &str = "changed";

/// The names that belong to the protocol: no attribute of a caller may have one.
pub const RESERVED_ATTRIBUTES: [&str; 41] = [
    OWNER_NAME,
    LEASE_DURATION,
    RECORD_VERSION_NUMBER,
    IS_RELEASED,
    DATA,
    LEASE_ID_HASH,
    FENCING_TOKEN,
    STALE_AT,
    EXPIRE_AT,
    LEASE_VERSION,
    LEASE_MS,
    OWNER_PRINCIPAL,
    LEASE_SEQUENCE,
    LEASE_REQUEST_ID,
    PREVIOUS_LEASE_ID_HASH,
    PREVIOUS_OWNER_NAME,
    PREVIOUS_RELEASED,
    PREVIOUS_OCCURRENCE,
    ENDED_VERSION,
    BROKEN_VERSION,
    DELETED_VERSION,
    RUNNING_OCCURRENCE,
    COMPLETED_OCCURRENCE,
    LAST_OCCURRENCE,
    OCCURRENCE_SECONDS,
    LEASEHOLD_WANTED,
    LEASEHOLD_KIND,
    CAPACITY,
    AVAILABLE,
    HOLDERS,
    TOKENS,
    QUEUE,
    TICKETS,
    NEXT_TICKET,
    ENDED,
    SPENT_HOLDERS,
    SPENT_TICKETS,
    CAPACITY_VERSION,
    CAPACITY_REQUEST_ID,
    REORDERED,
    CHANGED,
];

/// The name of the table and of its key attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSchema {
    /// The table's name or ARN.
    pub table_name: String,
    /// The partition key's name; the Java client's default is `key`.
    pub partition_key: String,
    /// The sort key's name, on a table that has one.
    pub sort_key: Option<String>,
}

impl TableSchema {
    /// A table with the partition key `key` and no sort key.
    pub fn new(table_name: impl Into<String>) -> Self {
        Self { table_name: table_name.into(), partition_key: "key".into(), sort_key: None }
    }

    /// # Errors
    /// Returns a sentence where a key has the name of one of the record's own attributes or of the other key.
    pub fn check(&self) -> Result<(), String> {
        let names = std::iter::once(&self.partition_key).chain(&self.sort_key);
        if let Some(name) = names.into_iter().find(|name| RESERVED_ATTRIBUTES.contains(&name.as_str())) {
            return Err(format!("The key attribute {name:?} belongs to the lock record: name the key otherwise."));
        }
        if self.sort_key.as_ref() == Some(&self.partition_key) {
            return Err(format!("The partition key and the sort key are both named {:?}.", self.partition_key));
        }
        Ok(())
    }

    /// The key in DynamoDB's form.
    pub(crate) fn encode_key(&self, key: &LockKey) -> Item {
        let mut item = Item::from([(self.partition_key.clone(), AttributeValue::S(key.partition().to_owned()))]);
        if let (Some(name), Some(value)) = (&self.sort_key, key.sort()) {
            item.insert(name.clone(), AttributeValue::S(value.to_owned()));
        }
        item
    }

    /// The key of an item that DynamoDB returned.
    pub(crate) fn decode_key(&self, item: &Item) -> Option<LockKey> {
        let text = |name: &String| item.get(name)?.as_s().ok().cloned();
        let sort = match &self.sort_key {
            Some(name) => Some(text(name)?),
            None => None,
        };
        Some(LockKey::stored(text(&self.partition_key)?, sort))
    }

    /// Reads an item that DynamoDB returned, a tombstone as well. Returns `None` if the item has no key of this schema,
    /// which cannot happen.
    pub fn decode_row(&self, mut item: Item) -> Option<Row> {
        let key = self.decode_key(&item)?;
        for name in std::iter::once(&self.partition_key).chain(&self.sort_key) {
            item.remove(name);
        }
        let mut row = Attributes(item);
        Some(Row {
            key,
            other_kind: row.field(LEASEHOLD_KIND, Some) != Field::Absent,
            owner_name: row.field(OWNER_NAME, string),
            lease_ms: row.field(LEASE_DURATION, lease_ms),
            lease_number: row.field(LEASE_MS, number).into_value(),
            rvn: row.field(RECORD_VERSION_NUMBER, string),
            released: row.field(IS_RELEASED, Some) != Field::Absent,
            data: row.field(DATA, bytes).into_value(),
            lease_id_hash: row.field(LEASE_ID_HASH, hash).into_value(),
            lease_version: row.field(LEASE_VERSION, string),
            principal: row.field(OWNER_PRINCIPAL, string),
            sequence: row.sequence(LEASE_SEQUENCE, LEASE_REQUEST_ID).into_value(),
            previous: Previous {
                lease_id_hash: row.field(PREVIOUS_LEASE_ID_HASH, hash).into_value(),
                owner_name: row.field(PREVIOUS_OWNER_NAME, string),
                released: row.field(PREVIOUS_RELEASED, not_empty).into_value().is_some(),
                occurrence: row.field(PREVIOUS_OCCURRENCE, not_empty).into_value().and_then(string),
            },
            ended_version: row.field(ENDED_VERSION, string).into_value(),
            broken_version: row.field(BROKEN_VERSION, string).into_value(),
            deleted_version: row.field(DELETED_VERSION, string).into_value(),
            occurrence: row.field(RUNNING_OCCURRENCE, string).into_value(),
            completed_occurrence: row.field(COMPLETED_OCCURRENCE, string).into_value(),
            last_occurrence: row.field(LAST_OCCURRENCE, string),
            occurrence_seconds: row.field(OCCURRENCE_SECONDS, number).into_value(),
            mark: row.field(LEASEHOLD_WANTED, string).into_value(),
            fencing_token: row.field(FENCING_TOKEN, number),
            stale_at: row.field(STALE_AT, instant).into_value(),
            expire_at: row.field(EXPIRE_AT, number).into_value(),
            attributes: row.0.into_iter().collect(),
        })
    }
}

/// Reads decimal milliseconds as a string without leading zeros, as the Java client writes them. A lease of zero would
/// make a held lock as good as free, so it is unreadable; so is the Go client's `20s`.
fn lease_ms(value: AttributeValue) -> Option<u64> {
    let digits = string(value).filter(|digits| digits.len() <= MAX_LEASE_DIGITS && !digits.starts_with('0'))?;
    whole_number(&digits)
}

/// An expression has no branches: it writes an empty string for what there was not.
fn not_empty(value: AttributeValue) -> Option<AttributeValue> {
    (value != AttributeValue::S(String::new())).then_some(value)
}

/// Reads an instant of any number that DynamoDB can compare with the clock: a fraction counts as the whole number below
/// it, which compares alike with every whole number.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number out of range becomes the nearest")]
fn instant(value: AttributeValue) -> Option<u64> {
    Some(digits(value)?.parse::<f64>().ok()? as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_dynamodb::primitives::Blob;

    fn java_row() -> Item {
        Item::from([
            ("key".into(), AttributeValue::S("Moe".into())),
            ("ownerName".into(), AttributeValue::S("host-2".into())),
            ("leaseDuration".into(), AttributeValue::S("20000".into())),
            ("recordVersionNumber".into(), AttributeValue::S("7e1".into())),
            ("data".into(), AttributeValue::B(Blob::new(*b"payload"))),
            ("team".into(), AttributeValue::S("payments".into())),
        ])
    }

    fn decode(item: Item) -> Row {
        TableSchema::new("t").decode_row(item).expect("has a key")
    }

    #[test]
    fn row_of_the_java_client_is_readable() {
        let lock = decode(java_row()).lock().expect("readable");
        assert_eq!((lock.owner_name.as_str(), lock.lease_ms, lock.rvn.as_str()), ("host-2", 20_000, "7e1"));
        assert_eq!((lock.data.as_deref(), lock.fencing_token), (Some(&b"payload"[..]), None));
        assert_eq!(lock.attributes.len(), 1);
    }

    #[test]
    fn damage_is_a_typed_error_and_never_a_panic() {
        for (attribute, value, problem) in [
            (LEASE_DURATION, None, "missing"),
            (LEASE_DURATION, Some(AttributeValue::N("20000".into())), "unreadable"),
            (LEASE_DURATION, Some(AttributeValue::S("20s".into())), "unreadable"),
            (LEASE_DURATION, Some(AttributeValue::S("+20000".into())), "unreadable"),
            (LEASE_DURATION, Some(AttributeValue::S("0".into())), "unreadable"),
            (LEASE_DURATION, Some(AttributeValue::S("020000".into())), "unreadable"),
            (LEASE_DURATION, Some(AttributeValue::S(String::new())), "unreadable"),
            (LEASE_DURATION, Some(AttributeValue::S("99999999999999999999".into())), "unreadable"),
            (OWNER_NAME, None, "missing"),
            (RECORD_VERSION_NUMBER, Some(AttributeValue::Null(true)), "unreadable"),
            (FENCING_TOKEN, Some(AttributeValue::N("1.5".into())), "unreadable"),
            (FENCING_TOKEN, Some(AttributeValue::N("9007199254740991".into())), "unreadable"),
        ] {
            let mut item = java_row();
            item.remove(attribute);
            item.extend(value.map(|value| (attribute.to_owned(), value)));
            let error = decode(item).lock().expect_err("unreadable");
            assert_eq!(error.to_string(), format!("The record's {attribute} is {problem}."));
        }
    }

    #[test]
    fn hash_of_the_wrong_length_is_nobodys() {
        let mut item = java_row();
        item.insert(LEASE_ID_HASH.into(), AttributeValue::B(Blob::new(*b"short")));
        assert_eq!(decode(item).lease_id_hash, None);
    }

    #[test]
    fn keys_are_encoded_by_the_names_of_the_schema() {
        let schema = TableSchema { table_name: "t".into(), partition_key: "pk".into(), sort_key: Some("sk".into()) };
        let key = LockKey::new("a", Some("b".into())).expect("valid");
        let item = schema.encode_key(&key);
        assert_eq!(item["pk"], AttributeValue::S("a".into()));
        assert_eq!(item["sk"], AttributeValue::S("b".into()));
        assert_eq!(schema.decode_row(item).expect("has a key").key, key);
    }

    #[test]
    fn key_attributes_are_not_the_records_own_nor_each_other() {
        let named = |partition: &str, sort: Option<&str>| {
            let schema = TableSchema {
                partition_key: partition.into(),
                sort_key: sort.map(Into::into),
                ..TableSchema::new("t")
            };
            schema.check().err()
        };
        assert_eq!((named("pk", None), named("pk", Some("sk"))), (None, None));
        let own = named("pk", Some(OWNER_NAME)).expect("the record's own");
        assert!(own.contains("belongs to the lock record"), "{own}");
        assert!(named(CAPACITY, None).is_some(), "a semaphore's own");
        let twice = named("pk", Some("pk")).expect("the same twice");
        assert!(twice.contains("both named \"pk\""), "{twice}");
    }
}
