//! The changes of one table, for one who follows them: the engine's stream.
//!
//! A change is told after it is on disk, in the order in which the changes were made. The queue to the follower has an
//! end: where it is full, changes are lost, and the log says how many. No write waits for the follower.

use std::collections::HashSet;

use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// The changes that wait for the follower. Each has two images of a row.
const QUEUED: usize = 16 * 1024;

/// A change of a row: its images in DynamoDB's JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The row before.
    pub old: Option<String>,
    /// The row after.
    pub new: Option<String>,
    /// Whether the row's time was over, and the engine deleted it.
    pub is_expiry: bool,
}

/// The table that is followed, and the changes that are not told yet.
#[derive(Debug)]
pub(crate) struct Following {
    table: String,
    keys: Vec<String>,
    /// Changes whose commit is under way.
    pending: Vec<Change>,
    committed: Vec<Change>,
    sender: Sender<Change>,
}

impl Following {
    pub(crate) fn new(table: String, keys: Vec<String>) -> (Self, Receiver<Change>) {
        let (sender, receiver) = mpsc::channel(QUEUED);
        (Self { table, keys, pending: Vec::new(), committed: Vec::new(), sender }, receiver)
    }

    /// Keeps a change until it is committed.
    pub(crate) fn changed(&mut self, table: &str, old: &str, new: &str) {
        if table == self.table {
            self.pending.push(Change { old: Some(old.to_owned()), new: Some(new.to_owned()), is_expiry: false });
        }
    }

    /// Keeps a change that is committed.
    pub(crate) fn made(&mut self, change: Change) {
        if change.old != change.new {
            self.committed.push(change);
        }
    }

    pub(crate) fn committed(&mut self) {
        self.committed.append(&mut self.pending);
    }

    pub(crate) fn undone(&mut self) {
        self.pending.clear();
    }

    /// Tells the changes that are on disk.
    pub(crate) fn tell(&mut self) {
        let mut lost = 0;
        for change in self.committed.drain(..) {
            lost += usize::from(matches!(self.sender.try_send(change), Err(mpsc::error::TrySendError::Full(_))));
        }
        if lost > 0 {
            tracing::warn!(lost, "the history lacks changes: they came faster than they are recorded");
        }
    }

    /// The keys of the followed table's rows that a request may write.
    pub(crate) fn keys_of(&self, operation: &str, body: &[u8]) -> Vec<Value> {
        if !matches!(operation, "UpdateItem" | "PutItem" | "DeleteItem" | "TransactWriteItems" | "BatchWriteItem") {
            return Vec::new();
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return Vec::new() };
        let each = |list: &Value| list.as_array().cloned().unwrap_or_default();
        let writes = match operation {
            "TransactWriteItems" => each(&body["TransactItems"])
                .iter()
                .filter_map(|entry| entry.as_object()?.values().next().cloned())
                .collect(),
            "BatchWriteItem" => each(&body["RequestItems"][&self.table])
                .iter()
                .filter_map(|entry| entry.as_object()?.values().next().cloned())
                .map(|mut write| {
                    write["TableName"] = json!(self.table);
                    write
                })
                .collect(),
            _ => vec![body],
        };
        let own = writes.into_iter().filter(|write| write["TableName"] == *self.table);
        let mut seen = HashSet::new();
        own.filter_map(|write| self.key_of(&write)).filter(|key| seen.insert(key.to_string())).collect()
    }

    /// The key that a write names, or the key in the item that it puts.
    fn key_of(&self, write: &Value) -> Option<Value> {
        let from = if write["Key"].is_object() { &write["Key"] } else { &write["Item"] };
        let key = self.keys.iter().map(|name| Some((name.clone(), from.get(name)?.clone())));
        key.collect::<Option<serde_json::Map<_, _>>>().map(Value::Object)
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }
}
