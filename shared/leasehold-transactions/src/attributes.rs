//! The attributes that a transaction puts on an item while the item takes part in it.
//!
//! | attribute | meaning |
//! |---|---|
//! | `leaseholdTxId` | the lock: holder, life of the holder, and version; see [`LockValue`] |
//! | `leaseholdTxOperation` | the last request for the item: `get`, `check`, `put`, `update`, `delete` |
//! | `leaseholdTxLockedAt` | epoch milliseconds, for people to read |
//! | `leaseholdTxTransient` | the item was not there before the transaction |
//! | `leaseholdTxUndo_NAME` | the value of the attribute NAME before the transaction |
//! | `leaseholdTxBefore` | the whole item before the transaction, where a put replaced it |
//! | `leaseholdTxImage` | the name of the row that has the item before the transaction, where it is large |

use std::fmt;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::id::PublicId;
use crate::key::Item;
use crate::model::Operation;

/// The prefix of all attributes that belong to the protocol. Users may not name one.
pub const RESERVED_PREFIX: &str = "leaseholdTx";

/// The lock. An item without this attribute is free. Writers that bypass transactions must make its absence a
/// condition: `attribute_not_exists(leaseholdTxId)`.
pub(crate) const ID: &str = "leaseholdTxId";
pub(crate) const OPERATION: &str = "leaseholdTxOperation";
pub(crate) const LOCKED_AT: &str = "leaseholdTxLockedAt";
pub(crate) const TRANSIENT: &str = "leaseholdTxTransient";
pub(crate) const BEFORE: &str = "leaseholdTxBefore";
pub(crate) const IMAGE: &str = "leaseholdTxImage";
const UNDO_PREFIX: &str = "leaseholdTxUndo_";

/// The name of the attribute that keeps the old value of `name`.
pub(crate) fn undo_name(name: &str) -> String {
    format!("{UNDO_PREFIX}{name}")
}

/// The name of the attribute whose old value this one keeps.
pub(crate) fn undone_name(name: &str) -> Option<&str> {
    name.strip_prefix(UNDO_PREFIX)
}

/// The value of `leaseholdTxId`. Every write of a locked item by its holder gives the lock a new value. A write that is
/// conditional on the value that was read therefore applies to the item as it was read, or fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockValue {
    pub(crate) holder: PublicId,
    /// The life of the holder. A transaction id can be used again after the record of its outcome was removed.
    pub(crate) nonce: String,
    /// The version of the TX record that came with the lock.
    pub(crate) version: u64,
    /// Whether the put is applied. A put on an existing item first locks it, and then replaces its content.
    pub(crate) applied: bool,
}

impl LockValue {
    /// Whether both locks are of one life of one transaction.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.holder == other.holder && self.nonce == other.nonce
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('#');
        let (holder, nonce, version) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        let applied = parts.next() == Some("applied");
        Some(Self { holder: PublicId::stored(holder), nonce: nonce.to_owned(), version, applied })
    }
}

impl fmt::Display for LockValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holder, nonce, version, applied } = self;
        let suffix = if *applied { "#applied" } else { "" };
        write!(f, "{holder}#{nonce}#{version}{suffix}")
    }
}

/// The lock on an item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ItemLock {
    /// The exact value, as it was read.
    pub(crate) seen: AttributeValue,
    pub(crate) value: LockValue,
    pub(crate) operation: Operation,
    pub(crate) transient: bool,
}

impl ItemLock {
    /// The lock on an item, if it has one. An unreadable holder is also a lock, of a transaction that does not exist.
    pub(crate) fn of(item: &Item) -> Option<Self> {
        let seen = item.get(ID)?.clone();
        let text =
            |value: Option<&AttributeValue>| value.and_then(|value| value.as_s().ok()).cloned().unwrap_or_default();
        let value = LockValue::parse(&text(Some(&seen))).unwrap_or_else(|| LockValue {
            holder: PublicId::stored(""),
            nonce: String::new(),
            version: 0,
            applied: true,
        });
        let operation = Operation::parse(&text(item.get(OPERATION))).unwrap_or(Operation::Update);
        Some(Self { seen, value, operation, transient: item.contains_key(TRANSIENT) })
    }

    /// Whether the item does not exist for its holder, although there is a row.
    pub(crate) fn is_absent(&self) -> bool {
        self.operation == Operation::Delete || (self.transient && self.operation.only_locks())
    }

    /// Whether a put has locked the item and not yet replaced its content.
    pub(crate) fn is_unapplied(&self) -> bool {
        self.operation == Operation::Put && !self.value.applied
    }

    /// The value of an undo attribute where there was no old value. Its nonce makes it differ from every value that a
    /// user stores.
    pub(crate) fn nothing(nonce: &str) -> AttributeValue {
        AttributeValue::S(format!("{RESERVED_PREFIX}Nothing#{nonce}"))
    }
}

/// The item before the transaction that holds it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Before {
    /// The item did not exist.
    Missing,
    /// The item itself contains its old values.
    Here(Item),
    /// The row of this name contains the old item.
    InRow(String),
}

/// Returns the item before the transaction that holds the lock.
pub(crate) fn before(item: &Item, lock: &ItemLock) -> Before {
    if lock.transient {
        return Before::Missing;
    }
    if let Some(AttributeValue::S(row)) = item.get(IMAGE) {
        return Before::InRow(row.clone());
    }
    if let Some(AttributeValue::M(before)) = item.get(BEFORE) {
        return Before::Here(before.clone());
    }
    let nothing = ItemLock::nothing(&lock.value.nonce);
    let mut before = strip(item.clone());
    for (name, old) in item {
        let Some(name) = undone_name(name) else { continue };
        if *old == nothing {
            before.remove(name);
        } else {
            before.insert(name.to_owned(), old.clone());
        }
    }
    Before::Here(before)
}

/// The item as its user sees it, if it exists. (A read of several items returns an empty one for a missing item.)
pub(crate) fn present(item: Option<Item>) -> Option<Item> {
    item.filter(|item| !item.is_empty()).map(strip)
}

/// The item without the attributes of the protocol.
pub(crate) fn strip(mut item: Item) -> Item {
    item.retain(|name, _| !is_reserved(name));
    item
}

/// Whether an attribute belongs to the protocol.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED_PREFIX)
}

/// An estimate of the bytes that DynamoDB counts: names, and values with their overhead.
pub(crate) fn size(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + value_size(value)).sum()
}

fn value_size(value: &AttributeValue) -> usize {
    let all = |texts: &[String]| texts.iter().map(|text| text.len() + 1).sum::<usize>();
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(number) => number.len() + 1,
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        AttributeValue::Ss(texts) | AttributeValue::Ns(texts) => 3 + all(texts),
        AttributeValue::Bs(blobs) => 3 + blobs.iter().map(|blob| blob.as_ref().len() + 1).sum::<usize>(),
        AttributeValue::L(values) => 3 + values.iter().map(|value| value_size(value) + 1).sum::<usize>(),
        AttributeValue::M(members) => 3 + size(members) + members.len(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::primitives::Blob;

    use super::*;

    #[test]
    fn sizes_are_of_names_and_values_with_their_overhead() {
        let text = |value: &str| AttributeValue::S(value.into());
        let blob = Blob::new(*b"abcd");
        for (value, bytes) in [
            (text(""), 0),
            (text("abc"), 3),
            (AttributeValue::N("-12.5".into()), 6),
            (AttributeValue::B(blob.clone()), 4),
            (AttributeValue::Bool(true), 1),
            (AttributeValue::Null(true), 1),
            (AttributeValue::Ss(vec!["abc".into(), "de".into()]), 3 + 4 + 3),
            (AttributeValue::Ns(vec!["1".into(), "23".into()]), 3 + 2 + 3),
            (AttributeValue::Bs(vec![blob.clone(), blob]), 3 + 5 + 5),
            (AttributeValue::L(vec![text("abc"), text("de")]), 3 + 4 + 3),
            (AttributeValue::M(Item::from([("ab".into(), text("cde")), ("f".into(), text("g"))])), 3 + 5 + 2 + 2),
        ] {
            assert_eq!(value_size(&value), bytes, "{value:?}");
            assert_eq!(size(&Item::from([("name".into(), value)])), 4 + bytes);
        }
    }
}
