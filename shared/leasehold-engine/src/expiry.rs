//! Time to live: an item whose time is over is deleted in the background, as DynamoDB does it.
//!
//! A round looks at the rows of all tables with a time to live, a few at a time between the requests of others. An item
//! goes in the second round that finds it over and unchanged: what somebody still writes stays, also where a clock
//! jumped ahead or the machine slept. It is deleted by a request of its own, on condition that it is still as it was
//! seen.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::Core;
use crate::connector;
use crate::integrity::{self, quoted};
use crate::names;
use crate::queue::expiring;

/// Most rows of one look.
const ROWS: u32 = 100;
/// Longest look, beyond its last row.
const LOOK: Duration = Duration::from_millis(2);
/// The pause after a look, for others.
const PAUSE: Duration = Duration::from_millis(10);
/// DynamoDB leaves an item alone whose time was over five years before: its attribute is hardly a time.
const OLDEST: u64 = 5 * 365 * 24 * 3600;
/// Most items that wait for their second round.
const MAX_SEEN: usize = 100_000;
/// The attributes that a deletion compares: as many, and as long ones, as fit into an expression.
const MAX_COMPARED: usize = 100;
const MAX_COMPARED_BYTES: usize = 1024;

/// The rounds over the items of an engine.
pub struct Expiry {
    core: Arc<Core>,
    /// The fingerprints of the items that the last round found over.
    seen: HashSet<u64>,
}

/// A table with a time to live.
#[derive(Clone)]
struct Table {
    stored: String,
    attribute: String,
    keys: Vec<String>,
}

/// A row that is over.
struct Over {
    fingerprint: u64,
    /// The request that deletes it.
    deletion: Value,
}

/// The key of a row, as it is stored.
type Place = (String, String);

/// A row as it is stored, with its checksum.
type Row = (String, String, String, Option<i64>);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KeyPart {
    attribute_name: String,
}

impl Expiry {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, seen: HashSet::new() }
    }

    /// Looks at all items once. Deletes those that the round before found over too, at most as many as that one could
    /// keep, and returns their number. `now` is in epoch seconds.
    ///
    /// # Errors
    /// The message for the log. The next round continues.
    pub async fn round(&mut self, now: u64) -> Result<usize, String> {
        let (mut found, mut deleted) = (HashSet::new(), 0);
        for table in self.on_a_thread(|connection, _| tables(connection)).await? {
            let mut after = Some(Place::default());
            while let Some(place) = after {
                let looked = table.clone();
                let look = move |connection: &Connection, has_sums| looked.look(connection, has_sums, &place, now);
                let over;
                (over, after) = self.on_a_thread(look).await?;
                for Over { fingerprint, deletion } in over {
                    if self.seen.contains(&fingerprint) {
                        deleted += usize::from(delete(&self.core, &deletion).await?);
                    } else if found.len() < MAX_SEEN {
                        found.insert(fingerprint);
                    }
                }
                pause().await;
            }
        }
        self.seen = found;
        Ok(deleted)
    }

    /// Reads between two requests.
    async fn on_a_thread<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection, bool) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let core = Arc::clone(&self.core);
        let reading = tokio::task::spawn_blocking(move || core.express().read(read));
        reading.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

#[allow(clippy::disallowed_methods, reason = "the time between two looks belongs to others")]
async fn pause() {
    sleep(PAUSE).await;
}

/// Deletes an item unless it has changed. Returns whether it did.
pub(crate) async fn delete(core: &Arc<Core>, deletion: &Value) -> Result<bool, String> {
    let request =
        connector::answer(Arc::clone(core), "DynamoDB_20120810.DeleteItem".to_owned(), deletion.to_string().into());
    let answer = expiring(request).await;
    match answer.status {
        200 => Ok(true),
        400 => Ok(false),
        _ => Err(String::from_utf8_lossy(&answer.body).into_owned()),
    }
}

fn tables(connection: &Connection) -> rusqlite::Result<Vec<Table>> {
    let mut query = connection.prepare(
        "SELECT table_name, ttl_attribute, key_schema FROM _tables WHERE ttl_enabled = 1 AND ttl_attribute IS NOT NULL",
    )?;
    let rows = query.query_map([], |row| {
        let keys: Vec<KeyPart> = serde_json::from_str(&row.get::<_, String>(2)?).unwrap_or_default();
        let keys = keys.into_iter().map(|key| key.attribute_name).collect();
        Ok(Table { stored: row.get(0)?, attribute: row.get(1)?, keys })
    })?;
    rows.collect()
}

impl Table {
    /// The rows behind a place that are over, and the place behind which the next look begins, unless this was the
    /// last.
    #[allow(clippy::disallowed_methods, reason = "the work does not follow a paused clock")]
    fn look(
        &self,
        connection: &Connection,
        has_sums: bool,
        after: &Place,
        now: u64,
    ) -> rusqlite::Result<(Vec<Over>, Option<Place>)> {
        let begun = std::time::Instant::now();
        let sum = if has_sums { integrity::COLUMN } else { "NULL" };
        let query = format!(
            "SELECT pk, sk, item_json, {sum} FROM {} WHERE (pk, sk) > (?1, ?2) ORDER BY pk, sk LIMIT {ROWS}",
            quoted(&self.stored)
        );
        let mut query = connection.prepare_cached(&query)?;
        let rows =
            query.query_map([&after.0, &after.1], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        let (mut over, mut count, mut last) = (Vec::new(), 0, Place::default());
        for row in rows {
            let row: Row = row?;
            over.extend(self.over(&row, now));
            count += 1;
            last = (row.0, row.1);
            if begun.elapsed() >= LOOK {
                return Ok((over, Some(last)));
            }
        }
        Ok((over, (count == ROWS).then_some(last)))
    }

    fn over(&self, (partition, sort, item, sum): &Row, now: u64) -> Option<Over> {
        let members: BTreeMap<String, &RawValue> = serde_json::from_str(item).ok()?;
        let time: BTreeMap<&str, String> = serde_json::from_str(members.get(&self.attribute)?.get()).ok()?;
        let time: u64 = time.get("N")?.parse().ok()?;
        let is_over = time < now && now - time <= OLDEST;
        // A damaged row may read as one that is over.
        let is_intact = sum.is_none_or(|sum| sum == integrity::row_sum(partition, sort, item));
        if !is_over || !is_intact {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (&self.stored, partition, sort, item).hash(&mut hasher);
        Some(Over { fingerprint: hasher.finish(), deletion: self.deletion(&members)? })
    }

    fn deletion(&self, members: &BTreeMap<String, &RawValue>) -> Option<Value> {
        let value = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).ok();
        let key = self.keys.iter().map(|name| Some((name.clone(), value(members.get(name)?)?)));
        let key: Map<String, Value> = key.collect::<Option<_>>()?;
        let is_short = |raw: &RawValue| raw.get().len() <= MAX_COMPARED_BYTES;
        let others = members.iter().filter(|(name, raw)| !self.keys.contains(name) && is_short(raw));
        // The time itself is compared in any case.
        let time = members.get_key_value(&self.attribute);
        let compared = time.into_iter().chain(others.filter(|(name, _)| **name != self.attribute)).take(MAX_COMPARED);
        let (mut conditions, mut names, mut values) = (Vec::new(), Map::new(), Map::new());
        for (number, (name, raw)) in compared.enumerate() {
            conditions.push(format!("#{number} = :{number}"));
            names.insert(format!("#{number}"), json!(name));
            values.insert(format!(":{number}"), value(raw)?);
        }
        Some(json!({
            "TableName": names::decode(&self.stored).unwrap_or_else(|| self.stored.clone()),
            "Key": key,
            "ConditionExpression": conditions.join(" AND "),
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }))
    }
}

/// The deletions of the items that are over, in one look at each table.
#[cfg(test)]
pub(crate) async fn deletions(core: &Arc<Core>, now: u64) -> Vec<Value> {
    let rounds = Expiry::new(Arc::clone(core));
    let look = move |connection: &Connection, has_sums| {
        let over =
            tables(connection)?.into_iter().map(|table| table.look(connection, has_sums, &Place::default(), now));
        over.collect::<rusqlite::Result<Vec<_>>>()
    };
    let looks = rounds.on_a_thread(look).await.expect("read");
    looks.into_iter().flat_map(|(over, _)| over).map(|over| over.deletion).collect()
}
