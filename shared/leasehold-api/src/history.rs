//! The history of locks: the operation that reads it, and the changes of rows that it is made of.

use leasehold_protocol::history::{self, HistoryPage, HistoryQuery, HistoryTable, RowChange};
use leasehold_protocol::{Error, TableSchema};
use leasehold_wire::transactions::Item as WireItem;
use leasehold_wire::{HistoryEntry, HistoryEvent, HistoryRequest, HistoryResponse, Problem, ProblemType};
use serde::Deserialize;

use crate::access::Caller;
use crate::convert;
use crate::service::Service;
use crate::traced::{logged_problem, operation_span, traced};
use crate::transactions::dynamodb_json;

const DEFAULT_LIMIT: u64 = 100;
const MAX_LIMIT: u64 = 1000;

impl Service {
    /// `GET /v1/history`
    ///
    /// # Errors
    /// `not-found` where the service keeps no history, and those of any operation.
    pub async fn history(&self, caller: &Caller, request: HistoryRequest) -> Result<HistoryResponse, Problem> {
        traced(operation_span("history", &request.key, caller), async {
            let key = convert::key(request.key, request.sort_key)?;
            caller.check_key(key.partition())?;
            self.table.check_key(&key).map_err(|error| logged_problem(&error))?;
            let limit = request.limit.unwrap_or(DEFAULT_LIMIT);
            if !(1..=MAX_LIMIT).contains(&limit) {
                return Err(Problem::invalid("limit", format!("limit must be 1 to {MAX_LIMIT}, not {limit}.")));
            }
            let Some(history) = &self.history else {
                return Err(Problem::new(
                    ProblemType::NotFound,
                    "This service keeps no history. It keeps one when it is started with `leasehold serve --history 30d`, or \
                     when the stack has HistoryDays.",
                ));
            };
            let query = HistoryQuery {
                key,
                since_ms: request.since_ms,
                until_ms: request.until_ms,
                // At most a thousand.
                limit: u32::try_from(limit).unwrap_or(u32::MAX),
                after: request.cursor,
            };
            let HistoryPage { entries, next } = history.page(&query).await.map_err(|error| logged_problem(&error))?;
            let entries = entries.into_iter().map(|(at_ms, entry)| shown(at_ms, entry)).collect();
            Ok(("listed".into(), HistoryResponse { entries, next_cursor: next }))
        })
        .await
    }
}

fn shown(at_ms: u64, entry: history::HistoryEntry) -> HistoryEntry {
    let event = match entry.event {
        history::HistoryEvent::Acquired => HistoryEvent::Acquired,
        history::HistoryEvent::Renewed => HistoryEvent::Renewed,
        history::HistoryEvent::TakenOver => HistoryEvent::TakenOver,
        history::HistoryEvent::Released => HistoryEvent::Released,
        history::HistoryEvent::Broken => HistoryEvent::Broken,
        history::HistoryEvent::Expired => HistoryEvent::Expired,
        history::HistoryEvent::Deleted => HistoryEvent::Deleted,
    };
    HistoryEntry {
        at_ms,
        event,
        owner_name: entry.owner_name,
        fencing_token: entry.fencing_token,
        occurrence: entry.occurrence,
        previous_owner_name: entry.previous_owner_name,
        previous_fencing_token: entry.previous_fencing_token,
    }
}

/// Records what changes of the lock table did.
#[derive(Debug, Clone)]
pub struct Recorder {
    /// The lock table.
    pub schema: TableSchema,
    /// The table of the history.
    pub history: HistoryTable,
}

/// A batch of a table's stream, as Lambda passes it on.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct StreamBatch {
    records: Vec<StreamRecord>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StreamRecord {
    event_name: String,
    #[serde(rename = "dynamodb")]
    change: StreamChange,
    #[serde(default)]
    user_identity: Option<UserIdentity>,
}

/// The images of a row.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct StreamChange {
    /// In epoch seconds.
    #[serde(default)]
    approximate_creation_date_time: f64,
    sequence_number: String,
    #[serde(default)]
    old_image: Option<WireItem>,
    #[serde(default)]
    new_image: Option<WireItem>,
}

/// The service that removed a row, where it was no caller.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UserIdentity {
    principal_id: String,
}

/// The principal of TTL.
const TTL: &str = "dynamodb.amazonaws.com";

impl Recorder {
    /// Records a batch of the table's stream. May be repeated. Returns the number of entries.
    ///
    /// # Errors
    /// A sentence: the stream has no old images, or the table of the history refused.
    pub async fn record_stream(&self, batch: StreamBatch) -> Result<usize, String> {
        // A shard has the changes of a row in their order. Its clock may step back.
        let mut last_ms = 0;
        let changes = batch.records.into_iter().map(|record| {
            let change = record.row_change(last_ms)?;
            last_ms = change.at_ms;
            Ok(change)
        });
        let changes = changes.collect::<Result<Vec<_>, String>>()?;
        self.record(changes).await.map_err(|error| error.for_log())
    }

    /// Records these changes. May be repeated. Returns the number of entries.
    ///
    /// # Errors
    /// `Throttled`, `Unavailable`, `Misconfigured`.
    pub async fn record(&self, changes: Vec<RowChange>) -> Result<usize, Error> {
        self.history.record(&self.schema, changes).await
    }
}

impl StreamRecord {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of our century")]
    fn row_change(self, last_ms: u64) -> Result<RowChange, String> {
        let StreamChange { approximate_creation_date_time, sequence_number, old_image, new_image } = self.change;
        let (has_old, has_new) = (self.event_name != "INSERT", self.event_name != "REMOVE");
        if (has_old, has_new) != (old_image.is_some(), new_image.is_some()) {
            return Err("The stream of the lock table must have new and old images.".to_owned());
        }
        Ok(RowChange {
            at_ms: ((approximate_creation_date_time * 1000.0) as u64).max(last_ms),
            sequence: sequence_number,
            old: old_image.map(item).transpose()?,
            new: new_image.map(item).transpose()?,
            is_expiry: self.user_identity.is_some_and(|user| user.principal_id == TTL),
        })
    }
}

/// Reads the image of a row in DynamoDB's JSON.
///
/// # Errors
/// A sentence where it is none.
pub fn image(json: &str) -> Result<leasehold_protocol::Item, String> {
    item(serde_json::from_str(json).map_err(|error| format!("An image is unreadable: {error}"))?)
}

fn item(image: WireItem) -> Result<leasehold_protocol::Item, String> {
    dynamodb_json::item(image).map_err(|fault| format!("An image is unreadable: {}", fault.detail))
}
