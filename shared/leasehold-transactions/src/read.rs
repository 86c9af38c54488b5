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

use crate::attributes::{self, Before, ItemLock, RESERVED_PREFIX};
use crate::error::{Error, failure};
use crate::expression::names_reserved;
use crate::key::{Item, ItemKey};
use crate::life::View;
use crate::model::Isolation;
use crate::prepare::key_in;
use crate::projection::{Projection, project};
use crate::record::Record;
use crate::tables::{IndexKind, Tables, repeat};

/// The maximum number of reads of an item whose holder changes between two reads.
const MAX_LOOKS: u32 = 10;

/// The maximum number of items that one call reads, as in BatchGetItem.
const MAX_ITEMS: usize = 100;

/// The item to read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadRequest {
    /// The table's name.
    pub table: String,
    /// The item's key.
    pub key: Item,
    /// The paths to return. Without it, all.
    pub projection: Option<String>,
    /// `ExpressionAttributeNames` for the projection.
    pub names: HashMap<String, String>,
}

/// The items to read: by a Query if there is a key condition, by a Scan otherwise.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ListRequest {
    /// The table's name.
    pub table: String,
    /// An index of the table that projects all attributes.
    pub index: Option<String>,
    /// `KeyConditionExpression`.
    pub key_condition: Option<String>,
    /// `FilterExpression`. DynamoDB applies it to the items as stored.
    pub filter: Option<String>,
    /// `ProjectionExpression`.
    pub projection: Option<String>,
    /// `ExpressionAttributeNames`.
    pub names: HashMap<String, String>,
    /// `ExpressionAttributeValues`.
    pub values: Item,
    /// Whether the sort key ascends. Only for a Query.
    pub forward: Option<bool>,
    /// The maximum number of items to examine.
    pub limit: Option<i32>,
    /// The end of the page before.
    pub start: Option<Item>,
}

/// A page of items.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ItemPage {
    /// The items.
    pub items: Vec<Item>,
    /// The start of the next page; none after the last.
    pub next: Option<Item>,
}

/// Reads items at an isolation level.
#[derive(Debug, Clone)]
pub struct Reader {
    tables: Tables,
}

impl Reader {
    pub(crate) const fn new(tables: Tables) -> Self {
        Self { tables }
    }

    /// Reads at most 100 items, in the order of the requests. Each read is strongly consistent. Only a read inside a
    /// transaction returns all items as of one moment.
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
            self.tables.check_name(&request.table, field("tableName"))?;
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

    /// Reads a page of a table, or of one of its indexes. DynamoDB applies a filter or a limit to the items as stored.
    /// An item with an uncommitted change is found by its changed values, and returned with its old ones. An item that
    /// such a change made fail the filter is missing.
    ///
    /// # Errors
    /// `InvalidRequest`, `Forbidden`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn list(&self, request: &ListRequest, isolation: Isolation) -> Result<ItemPage, Error> {
        self.tables.check_name(&request.table, "tableName".to_owned())?;
        let expressions = [&request.key_condition, &request.filter, &request.projection];
        if expressions.into_iter().flatten().any(|expression| names_reserved(expression)) {
            return Err(Error::invalid("filterExpression", "No expression may name an attribute of the service."));
        }
        let projection = projection(request.projection.as_deref(), &request.names, "projectionExpression".to_owned())?;
        if request.names.values().any(|name| name.starts_with(RESERVED_PREFIX)) {
            let detail = "No expression may name an attribute of the service.";
            return Err(Error::invalid("expressionAttributeNames", detail));
        }
        let key_of = self.tables.key_finder(&request.table).await?;
        let reads_consistently = match &request.index {
            Some(index) => self.tables.full_index(&request.table, index).await? == IndexKind::Local,
            None => true,
        };
        let (items, next) = self.page(request, reads_consistently).await?;
        let mut page = ItemPage { items: Vec::new(), next };
        for item in items {
            let key = key_of(&item);
            // A global index lags behind. It may show a state that a transaction gave an item before the state that it
            // committed.
            let item = if request.index.is_some() && isolation == Isolation::Committed && ItemLock::of(&item).is_some()
            {
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

    /// Returns the item as the isolation level shows it.
    async fn resolve(&self, item: Option<Item>, key: &ItemKey, isolation: Isolation) -> Result<Option<Item>, Error> {
        let mut item = item;
        // The holder, where it was found committed before the item was read.
        let mut committed: Option<Record> = None;
        let mut looks = 0;
        loop {
            let Some(found) = item else { return Ok(None) };
            let Some(lock) = ItemLock::of(&found) else { return Ok(Some(found)) };
            if lock.transient && lock.operation.only_locks() {
                return Ok(None);
            }
            if isolation == Isolation::Uncommitted {
                return Ok(Some(attributes::strip(found)));
            }
            let now = (!lock.is_absent()).then(|| attributes::strip(found.clone()));
            if committed.take().is_some_and(|holder| holder.holds(&lock)) {
                return Ok(now);
            }
            let before = attributes::before(&found, &lock);
            // An item that is only locked is the same before and after.
            let is_ours = !lock.value.nonce.is_empty();
            if is_ours && matches!((&before, &now), (Before::Here(before), Some(now)) if before == now) {
                return Ok(now);
            }
            let holder = self.tables.record(&lock.value.holder).await?.filter(|record| record.holds(&lock));
            match View::of(holder.as_ref().map(|holder| holder.state)) {
                View::Before => match before {
                    Before::Missing => return Ok(None),
                    Before::Here(before) => return Ok(Some(before)),
                    Before::InRow(row) => {
                        if let Some(before) = self.tables.image(&lock.value.holder, &row).await? {
                            return Ok(Some(before));
                        }
                    }
                },
                View::AsReadAfter => committed = holder,
                View::Again => {}
            }
            if committed.is_none() {
                // The holder ended between the reads, and its rows are gone.
                looks += 1;
                if looks == MAX_LOOKS {
                    return Err(Error::stray(key, &lock));
                }
                pause(looks).await;
            }
            item = self.tables.read(std::slice::from_ref(key)).await?.pop().flatten();
        }
    }
}

fn projection(text: Option<&str>, names: &HashMap<String, String>, field: String) -> Result<Option<Projection>, Error> {
    let parsed = text.map(|text| Projection::parse(text, names)).transpose();
    parsed.map_err(|message| Error::invalid(field, message))
}
