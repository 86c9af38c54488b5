//! The pages of a Query or a Scan, read a few items at a time.
//!
//! Requests run one at a time, and a page of a megabyte takes a tenth of a second and more. It is therefore read in
//! parts, between which other requests run: holders first. DynamoDB does not read a page at one moment either.

use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::Core;
use crate::connector;
use crate::operations::{self, Answer};

/// The items of the first part, while their size is not known.
const FIRST: u64 = 10;
/// The bytes of the other parts: some milliseconds.
const PART_BYTES: u64 = 64 * 1024;
/// Most items of a part.
const MAX_PART: u64 = 200;
/// Largest page of DynamoDB, before its filter.
const MAX_PAGE_BYTES: u64 = 1024 * 1024;
/// Most items of a page: as many small ones as have a megabyte.
const MAX_PAGE_ITEMS: u64 = 30_000;
/// The unit in which reads are billed.
const BILLED_BYTES: u64 = 4096;

/// A page that is being read.
struct Page {
    request: Map<String, Value>,
    /// The items that may still be read.
    left: u64,
    /// The answer so far.
    items: Option<Vec<Box<RawValue>>>,
    count: u64,
    scanned: u64,
    /// The bytes that were read, at least.
    bytes: u64,
}

/// The answer of one part.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Part {
    items: Option<Vec<Box<RawValue>>>,
    count: u64,
    scanned_count: u64,
    last_evaluated_key: Option<Value>,
    consumed_capacity: Consumed,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Consumed {
    capacity_units: f64,
}

/// Runs an operation, a page of items in parts.
pub(crate) async fn answer(core: Arc<Core>, target: String, body: bytes::Bytes) -> Answer {
    match Page::of(&target, &body) {
        Some(page) => page.read(core, target).await,
        None => connector::answer(core, target, body).await,
    }
}

impl Page {
    /// A page without parts: of a wrong limit, or whose caller wants to know its price.
    fn of(target: &str, body: &[u8]) -> Option<Self> {
        if !matches!(operations::operation_of(target), "Query" | "Scan") {
            return None;
        }
        let request: Map<String, Value> = serde_json::from_slice(body).ok()?;
        let left = match request.get("Limit") {
            None => MAX_PAGE_ITEMS,
            Some(limit) => limit.as_u64().filter(|limit| *limit > 0)?.min(MAX_PAGE_ITEMS),
        };
        let is_plain = !request.contains_key("ReturnConsumedCapacity");
        is_plain.then_some(Self { request, left, items: None, count: 0, scanned: 0, bytes: 0 })
    }

    async fn read(mut self, core: Arc<Core>, target: String) -> Answer {
        self.request.insert("ReturnConsumedCapacity".to_owned(), json!("TOTAL"));
        loop {
            let asked = self.next_part();
            self.request.insert("Limit".to_owned(), json!(asked));
            let body = serde_json::to_vec(&self.request).unwrap_or_default();
            let answer = connector::answer(Arc::clone(&core), target.clone(), body.into()).await;
            if answer.status != 200 {
                return answer;
            }
            let part: Part = match serde_json::from_slice(&answer.body) {
                Ok(part) => part,
                Err(error) => return operations::internal_error(&error.to_string()),
            };
            self.add(part.items, part.count, part.scanned_count, part.consumed_capacity.capacity_units);
            // A part that ends early has a megabyte by itself.
            let is_whole = self.left == 0 || self.bytes >= MAX_PAGE_BYTES || part.scanned_count < asked;
            match part.last_evaluated_key {
                Some(key) if !is_whole => {
                    self.request.insert("ExclusiveStartKey".to_owned(), key);
                }
                key => return self.whole(key),
            }
        }
    }

    /// The number of items of the next part.
    fn next_part(&self) -> u64 {
        let part = match self.bytes.checked_div(self.scanned) {
            None => FIRST,
            Some(of_one) => PART_BYTES.checked_div(of_one).unwrap_or(MAX_PART).clamp(1, MAX_PART),
        };
        part.min(self.left)
    }

    fn add(&mut self, items: Option<Vec<Box<RawValue>>>, count: u64, scanned: u64, units: f64) {
        if let Some(items) = items {
            self.items.get_or_insert_default().extend(items);
        }
        self.count += count;
        self.scanned += scanned;
        self.left = self.left.saturating_sub(scanned);
        let is_consistent = self.request.get("ConsistentRead").and_then(Value::as_bool).unwrap_or_default();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred halves of a unit")]
        let billed = (units * if is_consistent { 1.0 } else { 2.0 }) as u64;
        // Each part is billed by whole units.
        self.bytes += billed.saturating_sub(1) * BILLED_BYTES;
    }

    fn whole(self, last: Option<Value>) -> Answer {
        #[derive(serde::Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Whole {
            #[serde(skip_serializing_if = "Option::is_none")]
            items: Option<Vec<Box<RawValue>>>,
            count: u64,
            scanned_count: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            last_evaluated_key: Option<Value>,
        }
        let Self { items, count, scanned, .. } = self;
        let whole = Whole { items, count, scanned_count: scanned, last_evaluated_key: last };
        match serde_json::to_vec(&whole) {
            Ok(body) => Answer { status: 200, body },
            Err(error) => operations::internal_error(&error.to_string()),
        }
    }
}
