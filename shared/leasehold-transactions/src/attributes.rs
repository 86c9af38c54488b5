//! The attributes that a transaction puts on an item while the item takes part in it.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::TransactionId;

/// An item of a user's table: attribute values by name.
pub type Item = HashMap<String, AttributeValue>;

/// Every attribute of an item that begins like this belongs to the protocol. Users may not name one.
pub const RESERVED_PREFIX: &str = "leaseholdTx";

/// Which transaction has the item. Absent: none. Whoever writes past transactions must make this a condition:
/// `attribute_not_exists(leaseholdTxId)`.
pub(crate) const ID: &str = "leaseholdTxId";
/// Which of its requests, as a [`Pointer`](crate::record::Pointer).
pub(crate) const REQUEST: &str = "leaseholdTxRequest";
/// What the request does: `get`, `put`, `update`, `delete`.
pub(crate) const OPERATION: &str = "leaseholdTxOperation";
/// Epoch milliseconds, for people to read.
pub(crate) const LOCKED_AT: &str = "leaseholdTxLockedAt";
/// The item was not there: it was inserted to be locked.
pub(crate) const TRANSIENT: &str = "leaseholdTxTransient";
/// The item has its new content; what it was is in the image, unless it was not there.
pub(crate) const APPLIED: &str = "leaseholdTxApplied";

/// Takes all of them away.
pub(crate) const REMOVE_ALL: &str = "REMOVE leaseholdTxId, leaseholdTxRequest, leaseholdTxOperation, \
                                     leaseholdTxLockedAt, leaseholdTxTransient, leaseholdTxApplied";

/// What an item says about the transaction that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) holder: TransactionId,
    pub(crate) pointer: String,
    pub(crate) operation: String,
    pub(crate) transient: bool,
    pub(crate) applied: bool,
}

impl Lock {
    /// The lock on an item, if it has one. An unreadable holder is a lock all the same, of a transaction that does not exist.
    pub(crate) fn of(item: &Item) -> Option<Self> {
        let text = |name| item.get(name).and_then(|value| value.as_s().ok()).cloned().unwrap_or_default();
        let flag = |name| item.get(name).is_some_and(|value| value.as_bool().is_ok_and(|&flag| flag));
        item.contains_key(ID).then(|| Self {
            holder: TransactionId::stored(text(ID)),
            pointer: text(REQUEST),
            operation: text(OPERATION),
            transient: flag(TRANSIENT),
            applied: flag(APPLIED),
        })
    }
}

/// The item as its user knows it, if there is one. (A read of several answers an empty one for an item that is not there.)
pub(crate) fn present(item: Option<Item>) -> Option<Item> {
    item.filter(|item| !item.is_empty()).map(strip)
}

/// The item as its user knows it.
pub(crate) fn strip(mut item: Item) -> Item {
    item.retain(|name, _| !name.starts_with(RESERVED_PREFIX));
    item
}

/// About as many bytes as DynamoDB counts: names, and values with their overhead.
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
