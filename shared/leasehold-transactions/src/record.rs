//! The rows of the transactions table.
//!
//! | `row` | meaning |
//! |---|---|
//! | `0#transaction` | the TX record: the state of the transaction, and its entries while they fit into 1 KB |
//! | `1#NONCE#00001` | a batch of entries that did not fit |
//! | `2#NONCE#…` | an item before a put, where it is too large to stand in the item itself |
//!
//! All rows of a transaction have its public id as partition key. The nonce separates one life of the id from the next.
//! TTL removes the rows of a life in any order, and a later life ignores the remaining rows of an earlier one.

use std::collections::{BTreeSet, HashMap};

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use sha2::{Digest, Sha256};

use crate::attributes::{ItemLock, size};
use crate::error::Error;
use crate::id::PublicId;
use crate::key::{Item, ItemKey};
use crate::model::{Action, Operation, Participant, QueryRequest, State, Status, TransactionRequest};

pub(crate) const TRANSACTION_ID: &str = "transactionId";
pub(crate) const ROW: &str = "row";
pub(crate) const EXPIRE_AT: &str = "expireAt";
/// The index of the unfinished transactions: `sweepShard`, and `sweepAt`, the time from which a sweeper examines it.
pub(crate) const SWEEP_INDEX: &str = "sweep";
pub(crate) const SWEEP_SHARD: &str = "sweepShard";
pub(crate) const SWEEP_AT: &str = "sweepAt";

/// One partition of an index takes 1000 writes a second; eight take eight times that.
pub(crate) const SWEEP_SHARDS: u8 = 8;

const RECORD_ROW: &str = "0#transaction";
/// The first name after all rows but the images.
pub(crate) const FIRST_IMAGE_ROW: &str = "2#";

/// The maximum size of a record that costs one write unit, which is 1 KB. The decision and the end add about fifty
/// bytes.
const MAX_INLINE_BYTES: usize = 960;

/// The number of bytes of a digest, which tells a repeated request of a transaction from another one.
const DIGEST_BYTES: usize = 8;

/// The TX record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub(crate) id: PublicId,
    /// Different in each life of the id.
    pub(crate) nonce: String,
    pub(crate) state: State,
    /// Rises with every write that adds entries, so that no commit misses them.
    pub(crate) version: u64,
    pub(crate) created_at: u64,
    /// The beginning of the first attempt, of which this one may be a retry: of two transactions the older one goes
    /// first.
    pub(crate) born_at: u64,
    /// The number of attempts before this one.
    pub(crate) attempts: u64,
    pub(crate) last_worked_at: u64,
    pub(crate) finished: bool,
    /// The time from which a sweeper examines it, in epoch milliseconds. None once it is finished.
    pub(crate) sweep_at: Option<u64>,
    pub(crate) reason: Option<String>,
    /// The reason why an item of the decided transaction cannot be freed.
    pub(crate) stuck: Option<String>,
    /// The items that a writer past the protocol deleted or replaced before the commit, which is of the others.
    pub(crate) overwritten: Vec<ItemKey>,
    /// The digest of a one-call transaction, which tells a repeated call from another one.
    pub(crate) digest: Option<Vec<u8>>,
    /// The versions whose puts are not all applied.
    pub(crate) unapplied: BTreeSet<u64>,
    /// The digests of the queries whose answers are settled: their entries name the items.
    pub(crate) queried: BTreeSet<Vec<u8>>,
    /// The number of batches.
    pub(crate) batches: u64,
    /// The entries that are in no batch.
    pub(crate) entries: Vec<RecordEntry>,
    /// Whether the transaction did not exist when it was to be ended. The record then prevents a late write from
    /// beginning it.
    pub(crate) is_tombstone: bool,
}

impl Record {
    pub(crate) fn new(id: PublicId, nonce: String, now_ms: u64, sweep_at: u64) -> Self {
        Self {
            id,
            nonce,
            state: State::Pending,
            version: 0,
            created_at: now_ms,
            born_at: now_ms,
            attempts: 0,
            last_worked_at: now_ms,
            finished: false,
            sweep_at: Some(sweep_at),
            reason: None,
            stuck: None,
            overwritten: Vec::new(),
            digest: None,
            unapplied: BTreeSet::new(),
            queried: BTreeSet::new(),
            batches: 0,
            entries: Vec::new(),
            is_tombstone: false,
        }
    }

    pub(crate) fn encode(&self) -> Item {
        let mut item = Item::from([
            (TRANSACTION_ID.to_owned(), text(self.id.as_str())),
            (ROW.to_owned(), text(RECORD_ROW)),
            ("nonce".to_owned(), text(&self.nonce)),
            ("state".to_owned(), text(self.state.as_str())),
            ("version".to_owned(), number(self.version)),
            ("createdAt".to_owned(), number(self.created_at)),
            ("lastWorkedAt".to_owned(), number(self.last_worked_at)),
        ]);
        let mut optional = |name: &str, value: Option<AttributeValue>| {
            if let Some(value) = value {
                item.insert(name.to_owned(), value);
            }
        };
        optional(SWEEP_SHARD, self.sweep_at.map(|_| text(shard(&self.id))));
        optional(SWEEP_AT, self.sweep_at.map(number));
        optional("bornAt", (self.born_at != self.created_at).then(|| number(self.born_at)));
        optional("attempts", (self.attempts > 0).then(|| number(self.attempts)));
        optional("reason", self.reason.as_deref().map(text));
        optional("stuck", self.stuck.as_deref().map(text));
        optional("overwritten", (!self.overwritten.is_empty()).then(|| encode_keys(&self.overwritten)));
        optional("finished", self.finished.then_some(AttributeValue::Bool(true)));
        optional("tombstone", self.is_tombstone.then_some(AttributeValue::Bool(true)));
        optional("digest", self.digest.as_ref().map(|digest| AttributeValue::B(Blob::new(digest.clone()))));
        optional("batches", (self.batches > 0).then(|| number(self.batches)));
        optional("unapplied", (!self.unapplied.is_empty()).then(|| versions(&self.unapplied)));
        optional("queried", (!self.queried.is_empty()).then(|| digests(&self.queried)));
        item.extend(encode_entries(&self.entries));
        item
    }

    /// Decodes the row of a record.
    ///
    /// # Errors
    /// `Corrupt` for an unreadable row.
    pub(crate) fn read(row: &Item) -> Result<Self, Error> {
        Self::decode(row).ok_or_else(|| unreadable(row))
    }

    /// Returns what changes with each sign of life.
    pub(crate) fn life(&self) -> Life {
        Life { nonce: self.nonce.clone(), version: self.version, last_worked_at: self.last_worked_at }
    }

    pub(crate) fn decode(item: &Item) -> Option<Self> {
        let created_at = read_number(item, "createdAt")?;
        let unapplied = item.get("unapplied").and_then(|value| value.as_ns().ok());
        let queried = item.get("queried").and_then(|value| value.as_bs().ok());
        Some(Self {
            id: PublicId::stored(read_text(item, TRANSACTION_ID)?),
            nonce: read_text(item, "nonce")?,
            state: State::parse(&read_text(item, "state")?)?,
            version: read_number(item, "version")?,
            created_at,
            born_at: read_number(item, "bornAt").unwrap_or(created_at),
            attempts: read_number(item, "attempts").unwrap_or_default(),
            last_worked_at: read_number(item, "lastWorkedAt")?,
            finished: item.contains_key("finished"),
            sweep_at: read_number(item, SWEEP_AT),
            reason: read_text(item, "reason"),
            stuck: read_text(item, "stuck"),
            overwritten: decode_keys(item.get("overwritten")),
            digest: item.get("digest").and_then(|digest| Some(digest.as_b().ok()?.as_ref().to_vec())),
            unapplied: unapplied.into_iter().flatten().filter_map(|version| version.parse().ok()).collect(),
            queried: queried.into_iter().flatten().map(|digest| digest.as_ref().to_vec()).collect(),
            batches: read_number(item, "batches").unwrap_or_default(),
            entries: decode_entries(item)?,
            is_tombstone: item.contains_key("tombstone"),
        })
    }

    /// Whether the record still costs one write unit with these entries added.
    pub(crate) fn has_room_for(&self, entries: &[RecordEntry]) -> bool {
        let all = self.entries.iter().chain(entries).cloned().collect();
        size(&Self { entries: all, ..self.clone() }.encode()) <= MAX_INLINE_BYTES
    }

    /// Whether a lock belongs to this life of the transaction.
    pub(crate) fn holds(&self, lock: &ItemLock) -> bool {
        lock.value.holder == self.id && lock.value.nonce == self.nonce
    }

    /// The lock of this life of the transaction on an item.
    pub(crate) fn lock_on(&self, item: Option<&Item>) -> Option<ItemLock> {
        item.and_then(ItemLock::of).filter(|lock| self.holds(lock))
    }

    /// Whether the transaction has locked an item for a put that is not applied.
    pub(crate) fn awaits_put_on(&self, item: Option<&Item>) -> bool {
        self.lock_on(item).is_some_and(|lock| lock.is_unapplied())
    }

    /// The error for callers that come after a rollback.
    pub(crate) fn rolled_back(&self) -> Error {
        Error::RolledBack { reason: self.reason.clone().unwrap_or_else(|| "it was asked for.".to_owned()) }
    }

    /// Refuses a one-call transaction whose id belongs to another one, or to a transaction of several calls. A
    /// tombstone belongs to none.
    pub(crate) fn refuse_other(&self, digest: Option<&[u8]>) -> Result<(), Error> {
        if digest.is_none() || self.is_tombstone || self.digest.as_deref() == digest {
            return Ok(());
        }
        Err(Error::invalid("transactionId", "Another transaction has this id."))
    }

    /// The public state of the transaction, as far as its record tells it.
    pub(crate) fn status(self) -> Status {
        Status {
            requests: participants(&self.entries),
            more_requests: self.batches > 0,
            id: self.id,
            state: self.state,
            reason: self.reason,
            finished: self.finished,
            stuck: self.stuck,
            overwritten: self.overwritten,
            created_at: self.created_at,
            last_worked_at: self.last_worked_at,
        }
    }
}

/// The signs of life of an open transaction. Two looks that see the same ones have seen an unchanged record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Life {
    nonce: String,
    version: u64,
    last_worked_at: u64,
}

/// The part of a request that is needed after it was carried out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordEntry {
    pub(crate) key: ItemKey,
    pub(crate) operation: Operation,
    /// The version of the TX record that was written with it.
    pub(crate) version: u64,
    /// The digest, which tells a repeated request from another one.
    pub(crate) digest: Vec<u8>,
}

/// A transaction with all its entries.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Transaction {
    pub(crate) record: Record,
    /// All entries, in the order of the calls.
    pub(crate) entries: Vec<RecordEntry>,
    /// Whether all batches were found. TTL may have removed those of a finished transaction.
    pub(crate) is_whole: bool,
}

impl Transaction {
    pub(crate) fn new(record: Record) -> Self {
        Self { record, entries: Vec::new(), is_whole: true }
    }

    /// The public state of the transaction.
    pub(crate) fn status(self) -> Status {
        let (requests, more_requests) = (participants(&self.entries), !self.is_whole);
        Status { requests, more_requests, ..self.record.status() }
    }

    /// Returns `None` where there is no TX record.
    pub(crate) fn decode(rows: &[Item]) -> Result<Option<Self>, Error> {
        let is_record = |row: &&Item| read_text(row, ROW).as_deref() == Some(RECORD_ROW);
        let Some(row) = rows.iter().find(is_record) else {
            return Ok(None);
        };
        let record = Record::read(row)?;
        let prefix = batch_prefix(&record.nonce);
        let is_batch = |row: &&Item| read_text(row, ROW).is_some_and(|name| name.starts_with(&prefix));
        let mut entries = record.entries.clone();
        let mut found = 0;
        for row in rows.iter().filter(is_batch) {
            entries.extend(decode_entries(row).ok_or_else(|| unreadable(row))?);
            found += 1;
        }
        entries.sort_by_key(|entry| entry.version);
        Ok(Some(Self { is_whole: found == record.batches, record, entries }))
    }

    /// The entries for one item.
    pub(crate) fn entries_of<'a>(&'a self, key: &'a ItemKey) -> impl DoubleEndedIterator<Item = &'a RecordEntry> {
        self.entries.iter().filter(move |entry| entry.key == *key)
    }

    /// The keys of the items of a query.
    pub(crate) fn found_by(&self, digest: &[u8]) -> BTreeSet<ItemKey> {
        self.entries.iter().filter(|entry| entry.digest == digest).map(|entry| entry.key.clone()).collect()
    }

    /// The number of requests that are more than reads. Each one is counted once, however often its call was repeated.
    pub(crate) fn writes(&self) -> usize {
        self.entries.iter().filter(|entry| entry.operation != Operation::Get).count()
    }

    /// The items of the puts of one version.
    pub(crate) fn puts_of(&self, version: u64) -> Vec<ItemKey> {
        let is_put = |entry: &&RecordEntry| entry.version == version && entry.operation == Operation::Put;
        self.entries.iter().filter(is_put).map(|entry| entry.key.clone()).collect()
    }

    /// The keys of all items, each once.
    pub(crate) fn keys(&self) -> Vec<ItemKey> {
        self.entries.iter().map(|entry| &entry.key).collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }
}

/// The entries in the form that their caller sees.
fn participants(entries: &[RecordEntry]) -> Vec<Participant> {
    let participant = |entry: &RecordEntry| Participant { key: entry.key.clone(), operation: entry.operation };
    entries.iter().map(participant).collect()
}

pub(crate) fn record_key(id: &PublicId) -> Item {
    row_key(id, RECORD_ROW)
}

fn batch_prefix(nonce: &str) -> String {
    format!("1#{nonce}#")
}

/// The key of a batch, by the version of the TX record that was written with it.
pub(crate) fn batch_key(record: &Record, version: u64) -> Item {
    row_key(&record.id, &format!("{}{version:05}", batch_prefix(&record.nonce)))
}

pub(crate) fn batch(record: &Record, version: u64, entries: &[RecordEntry], expire_at: u64) -> Item {
    let mut row = batch_key(record, version);
    row.insert(EXPIRE_AT.to_owned(), number(expire_at));
    row.extend(encode_entries(entries));
    row
}

/// The name of the row that keeps an old item, as it was before this version of the transaction.
pub(crate) fn image_name(record: &Record, version: u64, key: &ItemKey) -> String {
    let hash = Sha256::digest(key.canonical());
    format!("{}{version:05}#{}", image_prefix(&record.nonce), hex(&hash[..16]))
}

/// The prefix of the names of all images of one life of a transaction.
pub(crate) fn image_prefix(nonce: &str) -> String {
    format!("{FIRST_IMAGE_ROW}{nonce}#")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

pub(crate) fn row_key(id: &PublicId, row: &str) -> Item {
    Item::from([(TRANSACTION_ID.to_owned(), text(id.as_str())), (ROW.to_owned(), text(row))])
}

/// The row that keeps an old item.
pub(crate) fn image(id: &PublicId, name: &str, item: Item, expire_at: u64) -> Item {
    let mut row = row_key(id, name);
    row.insert(EXPIRE_AT.to_owned(), number(expire_at));
    row.insert("item".to_owned(), AttributeValue::M(item));
    row
}

pub(crate) fn imaged(mut row: Item) -> Option<Item> {
    match row.remove("item") {
        Some(AttributeValue::M(item)) => Some(item),
        _ => None,
    }
}

/// The part of the index that a transaction is in.
fn shard(id: &PublicId) -> String {
    let sum = id.as_str().bytes().fold(0_u8, u8::wrapping_add);
    shard_name(sum % SWEEP_SHARDS)
}

pub(crate) fn shard_name(number: u8) -> String {
    format!("shard-{number}")
}

fn unreadable(row: &Item) -> Error {
    let id = read_text(row, TRANSACTION_ID).unwrap_or_default();
    Error::corrupt(format!("A row of the transaction {id} is unreadable."))
}

/// Encodes entries as two attributes, in few bytes. `tables` names each table with its key attributes. `requests` has
/// for each entry the first letter of its verb with the number of its table and the version, the digest, and the values
/// of the key.
pub(crate) fn encode_entries(entries: &[RecordEntry]) -> Item {
    if entries.is_empty() {
        return Item::new();
    }
    let mut tables: Vec<(&str, Vec<&String>)> = Vec::new();
    let mut requests = Vec::with_capacity(entries.len());
    for entry in entries {
        let place = tables.iter().position(|(table, _)| *table == entry.key.table()).unwrap_or_else(|| {
            let mut names: Vec<_> = entry.key.attributes().keys().collect();
            names.sort();
            tables.push((entry.key.table(), names));
            tables.len() - 1
        });
        let head = format!("{}{place}.{}", &entry.operation.as_str()[..1], entry.version);
        let mut row = vec![text(head), AttributeValue::B(Blob::new(entry.digest.clone()))];
        row.extend(tables[place].1.iter().filter_map(|name| entry.key.attributes().get(*name).cloned()));
        requests.push(AttributeValue::L(row));
    }
    let table = |(table, names): &(&str, Vec<&String>)| {
        AttributeValue::L(std::iter::once(text(*table)).chain(names.iter().map(|name| text(*name))).collect())
    };
    Item::from([
        ("tables".to_owned(), AttributeValue::L(tables.iter().map(table).collect())),
        ("requests".to_owned(), AttributeValue::L(requests)),
    ])
}

fn decode_entries(item: &Item) -> Option<Vec<RecordEntry>> {
    let (Some(tables), Some(requests)) = (item.get("tables"), item.get("requests")) else {
        return Some(Vec::new());
    };
    let texts = |row: &AttributeValue| -> Option<Vec<String>> {
        row.as_l().ok()?.iter().map(|value| value.as_s().ok().cloned()).collect()
    };
    let tables = tables.as_l().ok()?.iter().map(texts).collect::<Option<Vec<_>>>()?;
    let entry = |row: &AttributeValue| {
        let [head, digest, key @ ..] = row.as_l().ok()?.as_slice() else { return None };
        let (verb, rest) = head.as_s().ok()?.split_at_checked(1)?;
        let (place, version) = rest.split_once('.')?;
        let (table, names) = tables.get(place.parse::<usize>().ok()?)?.split_first()?;
        let attributes: Item = names.iter().cloned().zip(key.iter().cloned()).collect();
        Some(RecordEntry {
            key: ItemKey::new(table, attributes),
            operation: Operation::by_letter(verb)?,
            version: version.parse().ok()?,
            digest: digest.as_b().ok()?.as_ref().to_vec(),
        })
    };
    requests.as_l().ok()?.iter().map(entry).collect()
}

/// Encodes the names of items: for each its table and its key.
pub(crate) fn encode_keys(keys: &[ItemKey]) -> AttributeValue {
    let key = |key: &ItemKey| AttributeValue::L(vec![text(key.table()), AttributeValue::M(key.attributes().clone())]);
    AttributeValue::L(keys.iter().map(key).collect())
}

fn decode_keys(value: Option<&AttributeValue>) -> Vec<ItemKey> {
    let key = |value: &AttributeValue| match value.as_l().ok()?.as_slice() {
        [AttributeValue::S(table), AttributeValue::M(key)] => Some(ItemKey::new(table, key.clone())),
        _ => None,
    };
    value.and_then(|value| value.as_l().ok()).into_iter().flatten().filter_map(key).collect()
}

/// The digest of all requests of a call.
pub(crate) fn digest_of_all<'a>(digests: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut hash = Sha256::new();
    digests.for_each(|digest| hash.update(digest));
    hash.finalize()[..2 * DIGEST_BYTES].to_vec()
}

/// The digest of a request, which depends on the call and the request but not on the order of maps in memory.
pub(crate) fn digest(request: &TransactionRequest, call_id: Option<&str>) -> Vec<u8> {
    let (expression, item) = match &request.action {
        Action::Get { key, .. } | Action::Check { key } | Action::Delete { key } => ("", key),
        Action::Put { item } => ("", item),
        Action::Update { key, expression } => (expression.as_str(), key),
    };
    digest_of_parts(&[
        request.action.operation().as_str(),
        &request.table,
        expression,
        &ordered(item),
        request.condition.as_deref().unwrap_or_default(),
        &ordered_names(&request.names),
        &ordered(&request.values),
        call_id.unwrap_or_default(),
    ])
}

/// The digest of a query, by the same rule. Order and projection of the answer are no part of it.
pub(crate) fn digest_of_query(request: &QueryRequest, call_id: &str) -> Vec<u8> {
    digest_of_parts(&[
        "query",
        &request.table,
        request.index.as_deref().unwrap_or_default(),
        &request.key_condition,
        &ordered_names(&request.names),
        &ordered(&request.values),
        call_id,
    ])
}

fn digest_of_parts(parts: &[&str]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize()[..DIGEST_BYTES].to_vec()
}

fn ordered_names(names: &HashMap<String, String>) -> String {
    let mut names: Vec<_> = names.iter().collect();
    names.sort();
    format!("{names:?}")
}

fn ordered(item: &Item) -> String {
    let mut members: Vec<_> = item.iter().map(|(name, value)| format!("{name:?}:{}", ordered_value(value))).collect();
    members.sort();
    format!("{{{}}}", members.join(","))
}

fn ordered_value(value: &AttributeValue) -> String {
    match value {
        AttributeValue::M(members) => ordered(members),
        // Sets have no order, and clients write their members in any order.
        AttributeValue::Ss(members) | AttributeValue::Ns(members) => {
            let mut members = members.clone();
            members.sort();
            format!("<{members:?}>")
        }
        AttributeValue::Bs(members) => {
            let mut members: Vec<_> = members.iter().map(AsRef::<[u8]>::as_ref).collect();
            members.sort_unstable();
            format!("<{members:?}>")
        }
        AttributeValue::L(values) => {
            format!("[{}]", values.iter().map(ordered_value).collect::<Vec<_>>().join(","))
        }
        other => format!("{other:?}"),
    }
}

pub(crate) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(crate) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(crate) fn versions<'a>(versions: impl IntoIterator<Item = &'a u64>) -> AttributeValue {
    AttributeValue::Ns(versions.into_iter().map(u64::to_string).collect())
}

pub(crate) fn digests<'a>(digests: impl IntoIterator<Item = &'a Vec<u8>>) -> AttributeValue {
    AttributeValue::Bs(digests.into_iter().map(|digest| Blob::new(digest.clone())).collect())
}

fn read_text(item: &Item, name: &str) -> Option<String> {
    item.get(name)?.as_s().ok().cloned()
}

fn read_number(item: &Item, name: &str) -> Option<u64> {
    item.get(name)?.as_n().ok()?.parse().ok()
}
