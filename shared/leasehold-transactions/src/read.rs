//! Reads outside of a transaction, at an isolation level.
//!
//! | the item is | `uncommitted` | `committed` |
//! |---|---|---|
//! | locked, not changed yet | as it is | as it is; absent, where its holder is committed and deletes it |
//! | changed by its holder | as it is | as it is, if the holder is committed; as its undo tells otherwise |
//! | inserted to be locked | absent | absent |
//!
//! The third level, `locked`, is a [`Get`](crate::Action::Get) inside of a transaction.

use std::collections::{BTreeSet, HashMap};

use leasehold_dynamodb::pause;

use crate::attributes::{self, Before, Item, Lock, RESERVED_PREFIX};
use crate::coordinator::Transactions;
use crate::error::{Error, failure};
use crate::expression::names_reserved;
use crate::key::ItemKey;
use crate::model::{Isolation, State};
use crate::prepare::{check_table, key_in};
use crate::projection::Projection;
use crate::tables::{IndexKind, KeyAttribute, repeat};

/// An item may change hands between two reads; so many times in a row it does not.
const MAX_LOOKS: u32 = 10;

/// One call reads at most this many items, as BatchGetItem does.
const MAX_ITEMS: usize = 100;

/// Which item to read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadRequest {
    /// The table's name.
    pub table: String,
    /// Its key.
    pub key: Item,
    /// Which paths to answer with; all, if there is none.
    pub projection: Option<String>,
    /// `ExpressionAttributeNames` for the projection.
    pub names: HashMap<String, String>,
}

/// Which items to read: a Query if there is a key condition, a Scan otherwise.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ListRequest {
    /// The table's name.
    pub table: String,
    /// An index of the table that projects all attributes.
    pub index: Option<String>,
    /// `KeyConditionExpression`.
    pub key_condition: Option<String>,
    /// `FilterExpression`. DynamoDB applies it to items as they are.
    pub filter: Option<String>,
    /// `ProjectionExpression`.
    pub projection: Option<String>,
    /// `ExpressionAttributeNames`.
    pub names: HashMap<String, String>,
    /// `ExpressionAttributeValues`.
    pub values: Item,
    /// Ascending order of the sort key. Only for a Query.
    pub forward: Option<bool>,
    /// How many items to look at.
    pub limit: Option<i32>,
    /// Where the page before ended.
    pub start: Option<Item>,
}

/// A page of items.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ItemPage {
    /// The items.
    pub items: Vec<Item>,
    /// Where the next page starts; none after the last.
    pub next: Option<Item>,
}

impl Transactions {
    /// Reads items, in the order of the requests: at most 100. Each is read strongly consistent; that they are all of one
    /// moment is only true inside of a transaction.
    ///
    /// # Errors
    /// `InvalidRequest`, `Forbidden`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn read(&self, requests: Vec<ReadRequest>, isolation: Isolation) -> Result<Vec<Option<Item>>, Error> {
        if requests.len() > MAX_ITEMS {
            return Err(Error::invalid("requests", format!("One call reads at most {MAX_ITEMS} items.")));
        }
        let mut seen = BTreeSet::new();
        let mut keys = Vec::new();
        let mut projections = Vec::new();
        for (index, request) in requests.into_iter().enumerate() {
            let field = |name: &str| format!("requests[{index}].{name}");
            check_table(&request.table, &self.protected, field("tableName"))?;
            let key = key_in(&self.tables, &request.table, &request.key, true, field("key")).await?;
            if !seen.insert(key.clone()) {
                return Err(Error::invalid(field("key"), "The same item is in this call twice."));
            }
            keys.push(key);
            projections.push(projection(request.projection.as_deref(), &request.names, field("projectionExpression"))?);
        }
        let mut items = Vec::new();
        for (item, key) in self.tables.read(&keys).await?.into_iter().zip(keys) {
            items.push(self.resolve(item, &key, isolation).await?);
        }
        Ok(items
            .into_iter()
            .zip(&projections)
            .map(|(item, projection)| Some(project(item?, projection.as_ref())))
            .collect())
    }

    /// Reads a page of a table, or of one of its indexes. What a filter or a limit is applied to is the items as they are: an item whose change is not
    /// committed is found by what it is changed to, and answered as it was; and one that such a change took out of the
    /// filter's reach is missing.
    ///
    /// # Errors
    /// `InvalidRequest`, `Forbidden`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn list(&self, request: &ListRequest, isolation: Isolation) -> Result<ItemPage, Error> {
        check_table(&request.table, &self.protected, "tableName".to_owned())?;
        let expressions = [&request.key_condition, &request.filter, &request.projection];
        if expressions.into_iter().flatten().any(|expression| names_reserved(expression)) {
            return Err(Error::invalid("filterExpression", "No expression may name an attribute of the service."));
        }
        let projection = projection(request.projection.as_deref(), &request.names, "projectionExpression".to_owned())?;
        if request.names.values().any(|name| name.starts_with(RESERVED_PREFIX)) {
            let detail = "No expression may name an attribute of the service.";
            return Err(Error::invalid("expressionAttributeNames", detail));
        }
        let key_attributes = self.tables.key_attributes(&request.table).await?;
        let reads_consistently = match &request.index {
            Some(index) => self.tables.full_index(&request.table, index).await? == IndexKind::Local,
            None => true,
        };
        let (items, next) = self.page(request, reads_consistently).await?;
        let mut page = ItemPage { items: Vec::new(), next };
        for item in items {
            let part = |part: &KeyAttribute| Some((part.name.clone(), item.get(&part.name)?.clone()));
            let key = ItemKey::new(request.table.clone(), key_attributes.iter().filter_map(part).collect());
            // A global index is behind: it may show what a transaction made of an item on the way to what it committed.
            let item = if request.index.is_some() && isolation == Isolation::Committed && Lock::of(&item).is_some() {
                self.tables.read(std::slice::from_ref(&key)).await?.pop().flatten()
            } else {
                Some(item)
            };
            let item = self.resolve(item, &key, isolation).await?;
            page.items.extend(item.map(|item| project(item, projection.as_ref())));
        }
        Ok(page)
    }

    async fn page(&self, request: &ListRequest, reads_consistently: bool) -> Result<(Vec<Item>, Option<Item>), Error> {
        let client = &self.tables.client;
        let used: BTreeSet<_> = [&request.key_condition, &request.filter]
            .into_iter()
            .flatten()
            .flat_map(|expression| crate::expression::placeholders(expression))
            .collect();
        let names: HashMap<_, _> = request
            .names
            .iter()
            .filter(|(name, _)| used.contains(name.as_str()))
            .map(|(a, b)| (a.clone(), b.clone()))
            .collect();
        let names = (!names.is_empty()).then_some(names);
        let values = (!request.values.is_empty()).then(|| request.values.clone());
        let failed = |error: Error| match error {
            Error::InvalidRequest { message, .. } => Error::invalid("keyConditionExpression", message),
            error => error,
        };
        repeat(|| async {
            if let Some(condition) = &request.key_condition {
                let query = client.query().table_name(&request.table).set_index_name(request.index.clone());
                let query = query.consistent_read(reads_consistently);
                let query = query.key_condition_expression(condition).set_filter_expression(request.filter.clone());
                let query = query.set_expression_attribute_names(names.clone());
                let query = query.set_expression_attribute_values(values.clone()).set_limit(request.limit);
                let query =
                    query.set_scan_index_forward(request.forward).set_exclusive_start_key(request.start.clone());
                let output = query.send().await.map_err(|error| failed(failure(error, &request.table)))?;
                Ok((output.items.unwrap_or_default(), output.last_evaluated_key))
            } else {
                let scan = client.scan().table_name(&request.table).set_index_name(request.index.clone());
                let scan = scan.consistent_read(reads_consistently);
                let scan = scan.set_filter_expression(request.filter.clone());
                let scan = scan.set_expression_attribute_names(names.clone());
                let scan = scan.set_expression_attribute_values(values.clone()).set_limit(request.limit);
                let scan = scan.set_exclusive_start_key(request.start.clone());
                let output = scan.send().await.map_err(|error| failed(failure(error, &request.table)))?;
                Ok((output.items.unwrap_or_default(), output.last_evaluated_key))
            }
        })
        .await
    }

    /// What is to be seen of an item.
    async fn resolve(&self, item: Option<Item>, key: &ItemKey, isolation: Isolation) -> Result<Option<Item>, Error> {
        let mut item = item;
        for look in 1..=MAX_LOOKS {
            let Some(found) = item else { return Ok(None) };
            let Some(lock) = Lock::of(&found) else { return Ok(Some(found)) };
            if lock.transient && lock.operation.only_locks() {
                return Ok(None);
            }
            if isolation == Isolation::Uncommitted {
                return Ok(Some(attributes::strip(found)));
            }
            match self.as_committed(found, &lock).await? {
                Some(seen) => return Ok(seen),
                // The holder came to its end between the reads.
                None if look < MAX_LOOKS => pause(look).await,
                None => return Err(Error::stray(&lock)),
            }
            item = self.tables.read(std::slice::from_ref(key)).await?.pop().flatten();
        }
        Ok(None)
    }

    /// What the last committed transaction left of an item that `lock` holds; `None`, if the rows of the holder are on the
    /// move.
    async fn as_committed(&self, item: Item, lock: &Lock) -> Result<Option<Option<Item>>, Error> {
        let before = attributes::before(&item, lock);
        let now = (!lock.is_absent()).then(|| attributes::strip(item));
        // Both outcomes may look the same, as of an item that is only locked.
        let is_ours = !lock.value.nonce.is_empty();
        if is_ours && matches!((&before, &now), (Before::Here(before), Some(now)) if before == now) {
            return Ok(Some(now));
        }
        let record = self.tables.record(&lock.value.holder).await?;
        let Some(record) = record.filter(|record| record.holds(&lock.value)) else {
            return Ok(None);
        };
        Ok(match (record.state, before) {
            (State::Committed, _) => Some(now),
            (State::Pending | State::RolledBack, Before::Missing) => Some(None),
            (State::Pending | State::RolledBack, Before::Here(before)) => Some(Some(before)),
            (State::Pending | State::RolledBack, Before::InRow(row)) => {
                self.tables.image(&record.id, &row).await?.map(Some)
            }
        })
    }
}

fn projection(text: Option<&str>, names: &HashMap<String, String>, field: String) -> Result<Option<Projection>, Error> {
    let parsed = text.map(|text| Projection::parse(text, names)).transpose();
    parsed.map_err(|message| Error::invalid(field, message))
}

fn project(item: Item, projection: Option<&Projection>) -> Item {
    match projection {
        Some(projection) => projection.apply(&item),
        None => item,
    }
}
