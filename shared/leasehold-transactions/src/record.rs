//! The rows of the transactions table.
//!
//! | `row` | what it is |
//! |---|---|
//! | `0#transaction` | the TX record: what state the transaction is in |
//! | `1#requests#00001` | a batch of requests, and how far it has come: see [`Batch`] |
//! | `2#image#00001#07` | the item of a request as it was before the request changed it |
//!
//! All rows of a transaction have its id as partition key.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use sha2::{Digest, Sha256};

use crate::attributes::Item;
use crate::error::Error;
use crate::key::ItemKey;
use crate::model::{Action, Participant, Request, State, TransactionId};

pub(crate) const TRANSACTION_ID: &str = "transactionId";
pub(crate) const ROW: &str = "row";
pub(crate) const EXPIRE_AT: &str = "expireAt";
/// The index of what a sweeper has to look at: `sweepShard`, and from when on, `sweepAt`.
pub(crate) const SWEEP_INDEX: &str = "sweep";
pub(crate) const SWEEP_SHARD: &str = "sweepShard";
pub(crate) const SWEEP_AT: &str = "sweepAt";

/// One partition of an index takes 1000 writes a second; so many take eight times that.
pub(crate) const SWEEP_SHARDS: u8 = 8;

const RECORD_ROW: &str = "0#transaction";
/// Above all rows but the images.
pub(crate) const FIRST_IMAGE_ROW: &str = "2#";
/// Above all rows.
pub(crate) const PAST_LAST_ROW: &str = "3#";

/// The TX record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub(crate) id: TransactionId,
    pub(crate) state: State,
    /// Rises with every batch that is added, so that nobody commits without it.
    pub(crate) version: u64,
    pub(crate) created_at: u64,
    pub(crate) last_worked_at: u64,
    pub(crate) finished: bool,
    /// From when on a sweeper has to look at it, in epoch milliseconds.
    pub(crate) sweep_at: u64,
    pub(crate) reason: Option<String>,
    /// Of a transaction that was done in one call, and needed no batch: tells a repeated call from another one.
    pub(crate) digest: Option<Vec<u8>>,
    /// Who took part in it.
    pub(crate) participants: Vec<Participant>,
}

impl Record {
    pub(crate) fn new(id: TransactionId, now_ms: u64, sweep_at: u64) -> Self {
        Self {
            id,
            state: State::Pending,
            version: 0,
            created_at: now_ms,
            last_worked_at: now_ms,
            finished: false,
            sweep_at,
            reason: None,
            digest: None,
            participants: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Item {
        let mut item = Item::from([
            (TRANSACTION_ID.to_owned(), text(self.id.as_str())),
            (ROW.to_owned(), text(RECORD_ROW)),
            ("state".to_owned(), text(self.state.as_str())),
            ("version".to_owned(), number(self.version)),
            ("createdAt".to_owned(), number(self.created_at)),
            ("lastWorkedAt".to_owned(), number(self.last_worked_at)),
            (SWEEP_SHARD.to_owned(), text(shard(&self.id))),
            (SWEEP_AT.to_owned(), number(self.sweep_at)),
        ]);
        if let Some(reason) = &self.reason {
            item.insert("reason".to_owned(), text(reason));
        }
        if self.finished {
            item.insert("finished".to_owned(), AttributeValue::Bool(true));
        }
        if let Some(digest) = &self.digest {
            item.insert("digest".to_owned(), AttributeValue::B(Blob::new(digest.clone())));
        }
        if !self.participants.is_empty() {
            let participants =
                self.participants.iter().map(|participant| AttributeValue::M(encode_participant(participant)));
            item.insert("requests".to_owned(), AttributeValue::L(participants.collect()));
        }
        item
    }

    pub(crate) fn decode(item: &Item) -> Option<Self> {
        Some(Self {
            id: TransactionId::stored(read_text(item, TRANSACTION_ID)?),
            state: State::parse(&read_text(item, "state")?)?,
            version: read_number(item, "version")?,
            created_at: read_number(item, "createdAt")?,
            last_worked_at: read_number(item, "lastWorkedAt")?,
            finished: item.contains_key("finished"),
            sweep_at: read_number(item, SWEEP_AT)?,
            digest: item.get("digest").and_then(|digest| Some(digest.as_b().ok()?.as_ref().to_vec())),
            reason: read_text(item, "reason"),
            participants: item.get("requests").map_or(Some(Vec::new()), decode_participants)?,
        })
    }
}

/// How far a batch has come. All its items come along in the same write, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Its items are locked.
    Locked,
    /// They have their new content, and images of the old one are kept.
    Applied,
    /// They are free again, and the images are gone.
    Completed,
}

impl Progress {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Applied => "applied",
            Self::Completed => "completed",
        }
    }
}

/// Requests that are locked, applied and completed together, each in one write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Batch {
    /// From 1.
    pub(crate) number: u64,
    pub(crate) progress: Progress,
    pub(crate) entries: Vec<Entry>,
    /// About how large the items are that a write of this batch has to do with.
    pub(crate) bytes: u64,
}

impl Batch {
    pub(crate) fn encode(&self, id: &TransactionId) -> Item {
        let mut item = batch_key(id, self.number);
        item.insert("progress".to_owned(), text(self.progress.as_str()));
        item.insert("requests".to_owned(), encode_entries(&self.entries));
        item.insert("bytes".to_owned(), number(self.bytes));
        item
    }

    fn decode(item: &Item) -> Option<Self> {
        let progress = read_text(item, "progress")?;
        Some(Self {
            number: read_text(item, ROW)?.rsplit_once('#')?.1.parse().ok()?,
            progress: [Progress::Locked, Progress::Applied, Progress::Completed]
                .into_iter()
                .find(|candidate| candidate.as_str() == progress)?,
            entries: decode_entries(item.get("requests")?)?,
            bytes: read_number(item, "bytes")?,
        })
    }

    pub(crate) fn pointer(&self, index: usize) -> String {
        pointer(self.number, index)
    }

    /// Whether applying it changes nothing, so that it is applied as soon as it is locked.
    pub(crate) fn is_passive(&self) -> bool {
        self.entries.iter().all(|entry| !entry.effect.is_applied())
    }
}

/// Which request of which batch: what an item says, and what an image is called.
pub(crate) fn pointer(batch: u64, index: usize) -> String {
    format!("{batch:05}#{index:02}")
}

/// One request, as far as it is needed once the item is locked and the condition held.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: ItemKey,
    pub(crate) effect: Effect,
    /// The item was not there, and was inserted to be locked.
    pub(crate) transient: bool,
    /// Tells a repeated request from another one.
    pub(crate) digest: Vec<u8>,
}

/// What becomes of the item.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Nothing: it was locked to be read.
    Get,
    /// Nothing: it was locked because of its condition.
    Check,
    /// It is replaced.
    Put(Item),
    /// It is changed.
    Update { expression: String, names: HashMap<String, String>, values: Item },
    /// It is taken away at completion.
    Delete,
}

impl Effect {
    pub(crate) fn of(request: &Request) -> Self {
        match &request.action {
            Action::Get { .. } => Self::Get,
            Action::Check { .. } => Self::Check,
            Action::Put { item } => Self::Put(item.clone()),
            Action::Delete { .. } => Self::Delete,
            Action::Update { expression, .. } => {
                let used = crate::expression::placeholders(expression);
                let names = request.names.iter().filter(|(name, _)| used.contains(name.as_str()));
                let values = request.values.iter().filter(|(name, _)| used.contains(name.as_str()));
                Self::Update {
                    expression: expression.clone(),
                    names: names.map(|(name, value)| (name.clone(), value.clone())).collect(),
                    values: values.map(|(name, value)| (name.clone(), value.clone())).collect(),
                }
            }
        }
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Check => "check",
            Self::Put(_) => "put",
            Self::Update { .. } => "update",
            Self::Delete => "delete",
        }
    }

    /// Whether it changes the item before the transaction is decided.
    pub(crate) const fn is_applied(&self) -> bool {
        matches!(self, Self::Put(_) | Self::Update { .. })
    }

    /// Whether it only locks the item, and may be followed by a request that writes.
    pub(crate) const fn only_locks(&self) -> bool {
        matches!(self, Self::Get | Self::Check)
    }
}

/// A transaction, without its images.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Transaction {
    pub(crate) record: Record,
    pub(crate) batches: Vec<Batch>,
}

impl Transaction {
    /// `None`, where there is no TX record.
    pub(crate) fn decode(rows: &[Item]) -> Result<Option<Self>, Error> {
        let is_record = |row: &&Item| read_text(row, ROW).as_deref() == Some(RECORD_ROW);
        let Some(record) = rows.iter().find(is_record) else {
            return Ok(None);
        };
        let batches = rows.iter().filter(|row| !is_record(row));
        Ok(Some(Self {
            record: Record::decode(record).ok_or_else(|| unreadable(record))?,
            batches: batches.map(|row| Batch::decode(row).ok_or_else(|| unreadable(row))).collect::<Result<_, _>>()?,
        }))
    }

    /// Whether these are all rows of it. A read of several rows may catch a write of several half-way.
    pub(crate) fn is_whole(&self) -> bool {
        self.record.finished || self.record.version == self.batches.len() as u64
    }

    /// Where the request stands that decides what becomes of an item: the last one for it.
    pub(crate) fn find(&self, key: &ItemKey) -> Option<(&Batch, usize)> {
        self.batches.iter().rev().find_map(|batch| {
            let index = batch.entries.iter().position(|entry| entry.key == *key)?;
            Some((batch, index))
        })
    }

    /// The requests of a batch that no later one has taken over.
    pub(crate) fn decisive<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = (usize, &'a Entry)> {
        let later = self.batches.iter().filter(|other| other.number > batch.number);
        let superseded: Vec<_> = later.flat_map(|other| other.entries.iter().map(|entry| &entry.key)).collect();
        batch.entries.iter().enumerate().filter(move |(_, entry)| !superseded.contains(&&entry.key))
    }

    pub(crate) fn participants(&self) -> Vec<Participant> {
        let entries = self.batches.iter().flat_map(|batch| &batch.entries);
        let of_batches = entries.map(|entry| Participant { key: entry.key.clone(), operation: entry.effect.name() });
        self.record.participants.iter().cloned().chain(of_batches).collect()
    }
}

pub(crate) fn record_key(id: &TransactionId) -> Item {
    row_key(id, RECORD_ROW)
}

pub(crate) fn batch_key(id: &TransactionId, number: u64) -> Item {
    row_key(id, &format!("1#requests#{number:05}"))
}

pub(crate) fn image_key(id: &TransactionId, pointer: &str) -> Item {
    row_key(id, &format!("{FIRST_IMAGE_ROW}image#{pointer}"))
}

/// The row that keeps an item as it was.
pub(crate) fn image(id: &TransactionId, pointer: &str, item: Item) -> Item {
    let mut row = image_key(id, pointer);
    row.insert("item".to_owned(), AttributeValue::M(item));
    row
}

pub(crate) fn imaged(mut row: Item) -> Option<Item> {
    match row.remove("item") {
        Some(AttributeValue::M(item)) => Some(item),
        _ => None,
    }
}

fn row_key(id: &TransactionId, row: &str) -> Item {
    Item::from([(TRANSACTION_ID.to_owned(), text(id.as_str())), (ROW.to_owned(), text(row))])
}

/// Which part of the index a transaction is in.
fn shard(id: &TransactionId) -> String {
    let sum = id.as_str().bytes().fold(0_u8, u8::wrapping_add);
    shard_name(sum % SWEEP_SHARDS)
}

pub(crate) fn shard_name(number: u8) -> String {
    format!("shard-{number}")
}

pub(crate) fn unreadable(row: &Item) -> Error {
    let id = read_text(row, TRANSACTION_ID).unwrap_or_default();
    Error::corrupt(format!("A row of the transaction {id} is unreadable."))
}

fn encode_entries(entries: &[Entry]) -> AttributeValue {
    AttributeValue::L(entries.iter().map(|entry| AttributeValue::M(encode_entry(entry))).collect())
}

fn decode_entries(value: &AttributeValue) -> Option<Vec<Entry>> {
    value.as_l().ok()?.iter().map(|entry| decode_entry(entry.as_m().ok()?)).collect()
}

fn encode_participant(participant: &Participant) -> Item {
    Item::from([
        ("table".to_owned(), text(participant.key.table())),
        ("key".to_owned(), AttributeValue::M(participant.key.attributes().clone())),
        ("operation".to_owned(), text(participant.operation)),
    ])
}

fn decode_participants(value: &AttributeValue) -> Option<Vec<Participant>> {
    let decode = |row: &AttributeValue| {
        let row = row.as_m().ok()?;
        let operation = read_text(row, "operation")?;
        Some(Participant {
            key: ItemKey::new(read_text(row, "table")?, row.get("key")?.as_m().ok()?.clone()),
            operation: ["get", "check", "put", "update", "delete"].into_iter().find(|name| *name == operation)?,
        })
    };
    value.as_l().ok()?.iter().map(decode).collect()
}

fn encode_entry(entry: &Entry) -> Item {
    let participant = Participant { key: entry.key.clone(), operation: entry.effect.name() };
    let mut row = encode_participant(&participant);
    row.extend([
        ("transient".to_owned(), AttributeValue::Bool(entry.transient)),
        ("digest".to_owned(), AttributeValue::B(Blob::new(entry.digest.clone()))),
    ]);
    match &entry.effect {
        Effect::Get | Effect::Check | Effect::Delete => {}
        Effect::Put(item) => {
            row.insert("item".to_owned(), AttributeValue::M(item.clone()));
        }
        Effect::Update { expression, names, values } => {
            let names = names.iter().map(|(placeholder, name)| (placeholder.clone(), text(name))).collect();
            row.insert("update".to_owned(), text(expression));
            row.insert("names".to_owned(), AttributeValue::M(names));
            row.insert("values".to_owned(), AttributeValue::M(values.clone()));
        }
    }
    row
}

fn decode_entry(row: &Item) -> Option<Entry> {
    let map = |name: &str| row.get(name)?.as_m().ok().cloned();
    let effect = match read_text(row, "operation")?.as_str() {
        "get" => Effect::Get,
        "check" => Effect::Check,
        "delete" => Effect::Delete,
        "put" => Effect::Put(map("item")?),
        "update" => {
            let names = map("names")?.into_iter().map(|(name, value)| Some((name, value.as_s().ok()?.clone())));
            Effect::Update {
                expression: read_text(row, "update")?,
                names: names.collect::<Option<_>>()?,
                values: map("values")?,
            }
        }
        _ => return None,
    };
    Some(Entry {
        key: ItemKey::new(read_text(row, "table")?, map("key")?),
        effect,
        transient: *row.get("transient")?.as_bool().ok()?,
        digest: row.get("digest")?.as_b().ok()?.as_ref().to_vec(),
    })
}

/// Of all requests of a call.
pub(crate) fn digest_of_all<'a>(digests: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut hash = Sha256::new();
    digests.for_each(|digest| hash.update(digest));
    hash.finalize().to_vec()
}

/// The same for the same request, however its maps are ordered in memory.
pub(crate) fn digest(request: &Request) -> Vec<u8> {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update(text.len().to_le_bytes());
        hash.update(text.as_bytes());
    };
    let (operation, expression, item) = match &request.action {
        Action::Get { key, .. } => ("get", "", key),
        Action::Check { key } => ("check", "", key),
        Action::Put { item } => ("put", "", item),
        Action::Update { key, expression } => ("update", expression.as_str(), key),
        Action::Delete { key } => ("delete", "", key),
    };
    part(operation);
    part(&request.table);
    part(expression);
    part(&ordered(item));
    part(request.condition.as_deref().unwrap_or_default());
    let mut names: Vec<_> = request.names.iter().collect();
    names.sort();
    part(&format!("{names:?}"));
    part(&ordered(&request.values));
    hash.finalize().to_vec()
}

fn ordered(item: &Item) -> String {
    let mut members: Vec<_> = item.iter().map(|(name, value)| format!("{name:?}:{}", ordered_value(value))).collect();
    members.sort();
    format!("{{{}}}", members.join(","))
}

fn ordered_value(value: &AttributeValue) -> String {
    match value {
        AttributeValue::M(members) => ordered(members),
        // Sets have no order, and clients write them in any.
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

fn read_text(item: &Item, name: &str) -> Option<String> {
    item.get(name)?.as_s().ok().cloned()
}

fn read_number(item: &Item, name: &str) -> Option<u64> {
    item.get(name)?.as_n().ok()?.parse().ok()
}
