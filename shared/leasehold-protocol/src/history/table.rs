//! The table of the history.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, ScalarAttributeType, WriteRequest};
use leasehold_dynamodb::{Failure, TableDefinition};
use sha2::{Digest, Sha256};

use super::{HistoryEntry, HistoryEvent, transition};
use crate::attributes::{Item, hex, number, string};
use crate::error::{Error, ErrorKind};
use crate::item::{EXPIRE_AT, TableSchema};
use crate::model::LockKey;
use crate::table::repeat;
use crate::write;

const LOCK: &str = "lock";
const AT: &str = "at";
const EVENT: &str = "event";
const OWNER_NAME: &str = "ownerName";
const FENCING_TOKEN: &str = "fencingToken";
const OCCURRENCE: &str = "occurrence";
const PREVIOUS_OWNER_NAME: &str = "previousOwnerName";
const PREVIOUS_FENCING_TOKEN: &str = "previousFencingToken";
/// The two keys of the lock, for people who look into the table.
const KEY: &str = "key";
const SORT_KEY: &str = "sortKey";

/// DynamoDB writes so many items in one request.
const BATCH: usize = 25;
/// An instant of thirteen digits lasts until the year 2286.
const LAST_MS: u64 = 9_999_999_999_999;

/// A change of a row of the lock table.
#[derive(Debug, Clone, PartialEq)]
pub struct RowChange {
    /// The time of the change, in epoch milliseconds.
    pub at_ms: u64,
    /// The place among the changes of this time: decimal digits, at most 40.
    pub sequence: String,
    /// The row before.
    pub old: Option<Item>,
    /// The row after.
    pub new: Option<Item>,
    /// Whether DynamoDB's TTL removed the row.
    pub is_expiry: bool,
}

/// The table of the history. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HistoryTable {
    client: Client,
    table_name: String,
    retention: Duration,
}

/// The entries to read.
#[derive(Debug, Clone)]
pub struct HistoryQuery {
    /// The lock.
    pub key: LockKey,
    /// No entry before this time, in epoch milliseconds.
    pub since_ms: Option<u64>,
    /// No entry after this time, in epoch milliseconds.
    pub until_ms: Option<u64>,
    /// The maximum number of entries.
    pub limit: u32,
    /// The position after which the page starts, as the page before it gave it.
    pub after: Option<String>,
}

/// A page of the history, from the newest entry on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPage {
    /// The entries, each with its time in epoch milliseconds.
    pub entries: Vec<(u64, HistoryEntry)>,
    /// The position after which the next page starts. None, if this is the last.
    pub next: Option<String>,
}

/// Creates the table if it is missing, with TTL on `expireAt`.
///
/// # Errors
/// Fails if the table cannot be created, or has other keys.
pub async fn ensure_history_table(client: &Client, table_name: &str) -> Result<bool, Failure> {
    let keys = vec![(LOCK, ScalarAttributeType::S), (AT, ScalarAttributeType::S)];
    let definition = TableDefinition { name: table_name, keys, index: None, expires_at: EXPIRE_AT };
    leasehold_dynamodb::ensure_table(client, &definition).await
}

impl HistoryTable {
    /// The history in this table. An entry stays for `retention`, any duration.
    pub fn new(client: Client, table_name: impl Into<String>, retention: Duration) -> Self {
        Self { client, table_name: table_name.into(), retention }
    }

    /// Records what these changes of the lock table did. May be repeated: a change has one place.
    ///
    /// # Errors
    /// `Throttled`, `Unavailable`, `Misconfigured`.
    pub async fn record(&self, schema: &TableSchema, changes: Vec<RowChange>) -> Result<usize, Error> {
        let puts: Vec<_> = changes.into_iter().filter_map(|change| self.put(schema, change)).collect();
        let recorded = puts.len();
        self.write(&puts).await?;
        Ok(recorded)
    }

    /// Reads a page.
    ///
    /// # Errors
    /// `InvalidRequest` for a position that no page gave, `Throttled`, `Unavailable`, `Misconfigured`.
    pub async fn page(&self, query: &HistoryQuery) -> Result<HistoryPage, Error> {
        let lock = name(&query.key);
        let (since, until) = (query.since_ms.unwrap_or(0), query.until_ms.unwrap_or(LAST_MS).min(LAST_MS));
        if since > until {
            return Ok(HistoryPage { entries: Vec::new(), next: None });
        }
        let start = match &query.after {
            None => None,
            Some(cursor) => match position(&lock, cursor) {
                Some(at) => Some(place(&lock, at)),
                None => return Err(Error::invalid("cursor", "This is no cursor of this key's history.")),
            },
        };
        // A tilde sorts after all digits.
        let bounds = [(":since", format!("{since:013}")), (":until", format!("{until:013}~"))];
        let request = bounds.into_iter().fold(self.client.query(), |request, (name, value)| {
            request.expression_attribute_values(name, AttributeValue::S(value))
        });
        let request = request
            .table_name(&self.table_name)
            .consistent_read(true)
            .scan_index_forward(false)
            .limit(i32::try_from(query.limit).unwrap_or(i32::MAX))
            .set_exclusive_start_key(start)
            .key_condition_expression("#lock = :lock AND #at BETWEEN :since AND :until")
            .expression_attribute_names("#lock", LOCK)
            .expression_attribute_names("#at", AT)
            .expression_attribute_values(":lock", AttributeValue::S(lock.clone()));
        let output = repeat(|| async { request.clone().send().await.map_err(Failure::from) }).await?;
        let entries = output.items.unwrap_or_default().into_iter().map(entry).collect::<Option<_>>();
        let next = output.last_evaluated_key.and_then(|mut key| string(key.remove(AT)?));
        let next = next.map(|at| format!("{at}#{}", seal(&lock)));
        let unreadable = || Error::new(ErrorKind::CorruptRecord, "An entry of the history is unreadable.");
        Ok(HistoryPage { entries: entries.ok_or_else(unreadable)?, next })
    }

    /// The write of the entry that a change makes, if it makes one.
    fn put(&self, schema: &TableSchema, change: RowChange) -> Option<WriteRequest> {
        let RowChange { at_ms, sequence, old, new, is_expiry } = change;
        let [old, new] = [old, new].map(|item| item.and_then(|item| schema.decode_row(item)));
        let entry = transition(old.as_ref(), new.as_ref(), is_expiry)?;
        let key = new.or(old)?.key;
        let mut item = place(&name(&key), &format!("{:013}#{sequence:0>40}", at_ms.min(LAST_MS)));
        item.insert(KEY.into(), write::text(key.partition()));
        item.insert(EVENT.into(), write::text(entry.event.name()));
        let expires = (at_ms / 1000).saturating_add(self.retention.as_secs());
        item.insert(EXPIRE_AT.into(), write::number(expires));
        let texts = [
            (SORT_KEY, key.sort().map(str::to_owned)),
            (OWNER_NAME, entry.owner_name),
            (OCCURRENCE, entry.occurrence),
            (PREVIOUS_OWNER_NAME, entry.previous_owner_name),
        ];
        item.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), AttributeValue::S(text?)))));
        let tokens = [(FENCING_TOKEN, entry.fencing_token), (PREVIOUS_FENCING_TOKEN, entry.previous_fencing_token)];
        item.extend(tokens.into_iter().filter_map(|(name, token)| Some((name.to_owned(), write::number(token?)))));
        let put = PutRequest::builder().set_item(Some(item)).build().ok()?;
        Some(WriteRequest::builder().put_request(put).build())
    }

    /// Makes all of these writes. What DynamoDB leaves for later is sent again.
    async fn write(&self, writes: &[WriteRequest]) -> Result<(), Error> {
        for batch in writes.chunks(BATCH) {
            let mut left = batch.to_vec();
            while !left.is_empty() {
                let written = repeat(|| async {
                    let request = self.client.batch_write_item().request_items(&self.table_name, left.clone());
                    let output = request.send().await.map_err(Failure::from)?;
                    let unprocessed = output.unprocessed_items.unwrap_or_default();
                    let rest: Vec<_> = unprocessed.into_values().flatten().collect();
                    if rest.len() == left.len() { Err(Failure::throttled()) } else { Ok(rest) }
                });
                left = written.await?;
            }
        }
        Ok(())
    }
}

/// The partition of a lock's entries: its key. With a sort key, a hash of both, which fits whatever their lengths.
fn name(key: &LockKey) -> String {
    let Some(sort) = key.sort() else { return key.partition().to_owned() };
    let mut digest = Sha256::new_with_prefix("leasehold history");
    for part in [key.partition(), sort] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    hex(&digest.finalize())
}

fn place(lock: &str, at: &str) -> Item {
    HashMap::from([(LOCK.to_owned(), write::text(lock)), (AT.to_owned(), write::text(at))])
}

/// The part of a cursor that binds it to the entries of one key.
fn seal(lock: &str) -> String {
    hex(&Sha256::digest(lock)[..4])
}

/// The position that a cursor of this key names, if it is one.
fn position<'a>(lock: &str, cursor: &'a str) -> Option<&'a str> {
    let digits = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
    let (at, sealed) = cursor.rsplit_once('#')?;
    let (ms, sequence) = at.split_once('#')?;
    (sealed == seal(lock) && digits(ms, 13) && digits(sequence, 40)).then_some(at)
}

/// Reads an entry and its time.
fn entry(mut item: Item) -> Option<(u64, HistoryEntry)> {
    let at = string(item.remove(AT)?)?;
    let event = HistoryEvent::by_name(&string(item.remove(EVENT)?)?)?;
    let mut text = |name| item.remove(name).and_then(string);
    let (owner_name, occurrence, previous_owner_name) = (text(OWNER_NAME), text(OCCURRENCE), text(PREVIOUS_OWNER_NAME));
    let mut token = |name| item.remove(name).and_then(number);
    let (fencing_token, previous_fencing_token) = (token(FENCING_TOKEN), token(PREVIOUS_FENCING_TOKEN));
    let at_ms = at.split_once('#')?.0.parse().ok()?;
    let entry =
        HistoryEntry { event, owner_name, fencing_token, occurrence, previous_owner_name, previous_fencing_token };
    Some((at_ms, entry))
}
