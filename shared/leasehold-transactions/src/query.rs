//! A query under locks: finds items by a key condition, and locks each of them as a [`Get`](crate::Action::Get) does.
//!
//! A look finds the keys, in the table or in an index. The items are locked and read in the table. Those that are gone,
//! or do not match any more, stay locked and are no part of the answer.
//!
//! Where the look is strongly consistent, the query looks again until two looks agree and the transaction held all that
//! the last one found. A global index lags behind its table: one look has to do.
//!
//! The record keeps the settled queries. A repeat returns the same items, whatever matches then.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

use crate::answer::locked;
use crate::attributes::{RESERVED_PREFIX, strip};
use crate::effort::Effort;
use crate::enlist::Enlister;
use crate::error::{Error, NO_TABLE, failure};
use crate::expression::placeholders;
use crate::id::PublicId;
use crate::key::{Item, ItemKey, order};
use crate::key_condition::KeyCondition;
use crate::life::Next;
use crate::model::{Action, QueryRequest, ReturnValues, TransactionRequest};
use crate::prepare::{Prepared, check_expressions};
use crate::projection::{Projection, project};
use crate::record::{Record, digest_of_query};
use crate::tables::{KeyAttribute, Source, repeat};

/// The maximum number of items of one query: about as many as one write locks.
const MAX_ITEMS: usize = 100;

/// The maximum number of looks. Each but the first two found an item that came, went or was locked meanwhile.
const MAX_LOOKS: u32 = 10;

/// A checked query.
pub(crate) struct Query<'a> {
    enlister: &'a Enlister,
    request: &'a QueryRequest,
    source: Source,
    key: Vec<KeyAttribute>,
    condition: KeyCondition,
    projection: Option<Projection>,
    digest: Vec<u8>,
}

impl<'a> Query<'a> {
    /// Checks a query before anything is done.
    ///
    /// # Errors
    /// `InvalidRequest`, with the field at fault.
    pub(crate) async fn prepare(
        enlister: &'a Enlister,
        request: &'a QueryRequest,
        call_id: &str,
    ) -> Result<Self, Error> {
        let tables = &enlister.ledger.tables;
        tables.check_name(&request.table, field("TableName"))?;
        let expressions =
            [(CONDITION, Some(request.key_condition.as_str())), (PROJECTION, request.projection.as_deref())];
        check_expressions(&expressions, &request.names, &request.values, field)?;
        let condition = KeyCondition::parse(&request.key_condition, &request.names, &request.values);
        let projection = request.projection.as_deref().map(|paths| Projection::parse(paths, &request.names));
        Ok(Self {
            enlister,
            request,
            key: tables.key_attributes(&request.table).await?,
            source: tables.source(&request.table, request.index.as_deref(), field("IndexName")).await?,
            condition: condition.map_err(|detail| Error::invalid(field(CONDITION), detail))?,
            projection: projection.transpose().map_err(|detail| Error::invalid(field(PROJECTION), detail))?,
            digest: digest_of_query(request, call_id),
        })
    }

    /// Locks the items that match, and returns them in the order of the sort key.
    pub(crate) async fn run(&self, id: &PublicId) -> Result<Vec<Item>, Error> {
        let ledger = &self.enlister.ledger;
        let mut effort = Effort::new(&ledger.policy);
        let mut transaction = ledger.open(id, false).await?;
        let mut before = None;
        for _ in 0..MAX_LOOKS {
            if transaction.record.queried.contains(&self.digest) {
                return self.answer(&transaction.record, transaction.found_by(&self.digest)).await;
            }
            let found = self.look().await?;
            let next = Next::after(&found, before.as_ref(), |key| transaction.entries_of(key).next().is_some());
            let settles = match next {
                Next::Lock(free) => {
                    transaction = self.enlister.enlist(id, &self.gets(free), None).await?;
                    !self.source.is_consistent
                }
                Next::Look => !self.source.is_consistent,
                Next::Answer => true,
            };
            if settles {
                match self.enlister.settle_query(&transaction, &self.digest, &found).await {
                    Ok(Some(record)) => return self.answer(&record, found).await,
                    Ok(None) => {}
                    // The record shows whether it was written.
                    Err(error) if error.is_passing() => effort.failed(error).await?,
                    Err(error) => return Err(error),
                }
                transaction = ledger.open(id, false).await?;
            }
            before = Some(found);
        }
        Err(Error::Throttled("items that match the key condition kept coming and going".into()))
    }

    /// Finds the keys of the items that match.
    async fn look(&self) -> Result<BTreeSet<ItemKey>, Error> {
        let request = self.request;
        let mut names: HashMap<_, _> = request.names.clone();
        let used = placeholders(&request.key_condition);
        names.retain(|name, _| used.contains(name.as_str()));
        let mut paths = Vec::new();
        for (index, part) in self.key.iter().enumerate() {
            let placeholder = format!("#{RESERVED_PREFIX}Key{index}");
            names.insert(placeholder.clone(), part.name.clone());
            paths.push(placeholder);
        }
        let mut found = BTreeSet::new();
        let mut start = None;
        loop {
            let limit = MAX_ITEMS + 1 - found.len();
            let page = repeat(|| async {
                let query = self.enlister.ledger.tables.client.query().table_name(&request.table);
                let query = query.set_index_name(request.index.clone()).consistent_read(self.source.is_consistent);
                let query = query.key_condition_expression(&request.key_condition);
                let query = query.projection_expression(paths.join(", "));
                let query = query.set_expression_attribute_names(Some(names.clone()));
                let query = query.set_expression_attribute_values(Some(request.values.clone()));
                let query = query.limit(i32::try_from(limit).unwrap_or(i32::MAX));
                let sent = query.set_exclusive_start_key(start.clone()).send().await;
                sent.map_err(|error| match failure(error, &request.table) {
                    Error::InvalidRequest { message, field: at } if at != NO_TABLE => {
                        Error::invalid(field(CONDITION), message)
                    }
                    error => error,
                })
            })
            .await?;
            let items = page.items.unwrap_or_default();
            found.extend(items.into_iter().map(|item| ItemKey::new(&request.table, item)));
            if found.len() > MAX_ITEMS {
                let detail = format!(
                    "More than {MAX_ITEMS} items match, and a Query locks no more. Divide the range by conditions on its \
                     sort key, one Query for each part; or give the group an item of its own, which each writer of a \
                     member updates, and Get that item."
                );
                return Err(Error::invalid(field(CONDITION), detail));
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(found);
            }
        }
    }

    /// The requests that lock items.
    fn gets(&self, keys: Vec<ItemKey>) -> Vec<Prepared> {
        let get = |key: ItemKey| Prepared {
            index: 0,
            request: TransactionRequest {
                table: self.request.table.clone(),
                action: Action::Get { key: key.attributes().clone(), projection: None },
                condition: None,
                names: HashMap::new(),
                values: Item::new(),
                return_values: ReturnValues::None,
                return_item_on_failure: false,
            },
            key,
            digest: self.digest.clone(),
            changed: Vec::new(),
            projection: None,
        };
        keys.into_iter().map(get).collect()
    }

    /// Reads items that the transaction has locked, and returns those that match.
    async fn answer(&self, record: &Record, keys: BTreeSet<ItemKey>) -> Result<Vec<Item>, Error> {
        let keys: Vec<_> = keys.into_iter().collect();
        let found = locked(&self.enlister.ledger, record, &keys).await?.into_iter().zip(keys);
        let present = found.filter(|((lock, _), _)| !lock.is_absent());
        let present = present.map(|((_, item), key)| (strip(item), key));
        let mut items: Vec<_> = present.filter(|(item, _)| self.condition.holds_for(item)).collect();
        items.sort_by(|a, b| if self.request.forward { self.order(a, b) } else { self.order(b, a) });
        Ok(items.into_iter().map(|(item, _)| project(item, self.projection.as_ref())).collect())
    }

    /// By the sort key, and by the key where that is equal, as it may be in an index.
    fn order(&self, (a, key): &(Item, ItemKey), (b, other): &(Item, ItemKey)) -> Ordering {
        let by_sort = |name: &String| order(a.get(name)?, b.get(name)?).filter(|order| order.is_ne());
        self.source.sort.iter().find_map(by_sort).unwrap_or_else(|| key.cmp(other))
    }
}

const CONDITION: &str = "KeyConditionExpression";
const PROJECTION: &str = "ProjectionExpression";

/// The path of a member in the call.
fn field(member: &str) -> String {
    format!("requests[0].Query.{member}")
}
