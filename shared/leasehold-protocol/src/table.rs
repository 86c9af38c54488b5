//! The locks of one DynamoDB table: carries out the rules and derives the answers.

mod together;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{ReturnValue, ReturnValuesOnConditionCheckFailure};
use leasehold_dynamodb::{Clock, Failure, FailureKind, fresh_uuid};

use crate::error::{Error, ErrorKind};
use crate::expressions::{self, Write};
use crate::item::{Item, RESERVED_ATTRIBUTES, TableSchema};
use crate::lifecycle::{
    self, AcquireAnswer, BreakAnswer, CorruptRecord, Field, HeartbeatAnswer, LockState, Policy, ReleaseAnswer, Row,
    Stamp,
};
use crate::model::{Acquire, Break, Disposal, Heartbeat, LockKey, Release};
use crate::semaphore::Semaphore;

/// The locks of one table. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LockTable {
    client: Client,
    pub(crate) schema: TableSchema,
    pub(crate) policy: Policy,
    clock: Clock,
}

/// The locks to list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// The maximum number of locks: 1 to 1000.
    pub limit: usize,
    /// The key after which the listing starts.
    pub after: Option<LockKey>,
    /// Restricts the listing to the sort keys under this partition key.
    pub partition: Option<String>,
    /// Restricts the listing to partition keys that begin with one of these, byte for byte. No other key then appears,
    /// not even as the start of the next page.
    pub prefixes: Option<Vec<String>>,
    /// Restricts the listing to locks in this state.
    pub state: Option<LockState>,
    /// Restricts the listing to locks whose current or last owner has this name.
    pub owner_name: Option<String>,
}

impl ListQuery {
    fn is_within(&self, key: &LockKey) -> bool {
        let begins = |prefix: &String| key.partition().as_bytes().starts_with(prefix.as_bytes());
        self.prefixes.as_ref().is_none_or(|prefixes| prefixes.iter().any(begins))
    }

    /// Checks the state where DynamoDB's filter cannot: an expression cannot count a semaphore's holders.
    fn shows(&self, record: &Record) -> bool {
        match (self.state, record) {
            (Some(state), Record::Semaphore(_, Ok(semaphore))) => semaphore.state() == state,
            _ => !record.is_deleted(),
        }
    }
}

/// A row of the table, by its kind.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "mostly the large one")]
pub enum Record {
    /// A lock.
    Lock(Row),
    /// A semaphore, if it is readable.
    Semaphore(LockKey, Result<Box<Semaphore>, CorruptRecord>),
}

impl Record {
    /// The key of the row.
    pub fn key(&self) -> &LockKey {
        match self {
            Self::Lock(row) => &row.key,
            Self::Semaphore(key, _) => key,
        }
    }

    /// The row, if it is a lock.
    pub fn into_lock(self) -> Option<Row> {
        match self {
            Self::Lock(row) => Some(row),
            Self::Semaphore(..) => None,
        }
    }

    fn is_deleted(&self) -> bool {
        matches!(self, Self::Lock(row) if row.is_deleted())
    }
}

/// One page of a listing.
#[derive(Debug, Clone)]
pub struct Page {
    /// The rows that match, in the table's order.
    pub rows: Vec<Record>,
    /// The start of the next page; none, if this is the last.
    pub next: Option<LockKey>,
}

/// The number of rows that a listing with a filter reads at a time, matching or not.
const FILTERED_PAGE: i32 = 1000;

/// The maximum number of requests of one listing. At that number the listing returns the rows it has and a cursor.
const MAX_PAGES: usize = 10;

/// The result of a conditional write.
pub(crate) struct Written<T> {
    pub(crate) applied: bool,
    /// The row before it, applied or refused.
    pub(crate) old: Option<T>,
    /// The stamp of the last attempt.
    pub(crate) stamp: Stamp,
    /// The record version numbers of all attempts: each of them in the table is our own write.
    pub(crate) issued: Vec<String>,
}

impl LockTable {
    /// `client` must come from a configuration that went through [`leasehold_dynamodb::configure`].
    pub fn new(client: Client, schema: TableSchema, policy: Policy, clock: Clock) -> Self {
        Self { client, schema, policy, clock }
    }

    /// The table's name and keys.
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// Asks for a lock.
    ///
    /// # Errors
    /// `InvalidRequest`, `TooLarge`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry with the
    /// same lease id.
    pub async fn acquire(&self, request: &Acquire) -> Result<AcquireAnswer, Error> {
        self.check_attributes(request)?;
        let written = self
            .write(&request.key, |stamp| expressions::acquire(&self.schema, request, stamp, &self.policy, None))
            .await?;
        if written.applied {
            // For a row that it created, DynamoDB returns no attributes, and the embedded engine returns the key.
            let old = written.old.filter(|row| row.released || row.rvn != Field::Absent);
            let grant = lifecycle::grant(old.as_ref(), request, &written.stamp, &self.policy)?;
            let is_forgotten = |name: &&String| !grant.row.attributes.contains_key(*name);
            let forgotten = old.iter().flat_map(|old| old.attributes.keys()).filter(is_forgotten);
            Box::pin(self.clear(&request.key, &written.stamp.rvn, forgotten.collect())).await?;
            return Ok(AcquireAnswer::Granted(grant));
        }
        Ok(lifecycle::refuse_acquire(written.old.as_ref(), request)?)
    }

    /// Renews a lease.
    ///
    /// # Errors
    /// `InvalidRequest`, `TooLarge`, `CorruptRecord`, `Throttled`, `Unavailable`. The last two say nothing about the
    /// lock: retry until the lease, counted from before the last good heartbeat was sent, runs out.
    pub async fn heartbeat(&self, request: &Heartbeat) -> Result<HeartbeatAnswer, Error> {
        let written = self.write(&request.key, |stamp| expressions::heartbeat(request, stamp, &self.policy)).await?;
        Ok(match written.old {
            Some(old) if written.applied => {
                HeartbeatAnswer::Renewed(lifecycle::renewed(&old, request, &written.stamp, &self.policy))
            }
            // An earlier attempt of the same request was applied and its answer lost: rule 5.
            Some(old) if old.rvn.value().is_some_and(|rvn| written.issued.contains(rvn)) && !old.released => {
                HeartbeatAnswer::Renewed(old)
            }
            old => lifecycle::refuse_heartbeat(old.as_ref(), request),
        })
    }

    /// Releases a lock.
    ///
    /// # Errors
    /// `InvalidRequest`, `TooLarge`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn release(&self, request: &Release) -> Result<ReleaseAnswer, Error> {
        let written = self.write(&request.key, |stamp| expressions::release(request, stamp, &self.policy)).await?;
        if matches!(request.disposal, Disposal::Delete) {
            Box::pin(self.clear_tombstone(&request.key, &written)).await?;
        }
        Ok(match written.old {
            Some(old) if written.applied => ReleaseAnswer::Done(lifecycle::release_result(&old)),
            old => lifecycle::refuse_release(old.as_ref(), request),
        })
    }

    /// Rule 10: removes the additional attributes from the tombstone that this release, or an earlier attempt at it,
    /// left. A tombstone hides the attributes that stay in it, and the next acquire tries again.
    async fn clear_tombstone(&self, key: &LockKey, written: &Written<Row>) -> Result<(), Error> {
        let Some(old) = &written.old else { return Ok(()) };
        let version = if written.applied { Some(&written.stamp.rvn) } else { old.deleted_version.as_ref() };
        match version.filter(|_| written.applied || old.is_deleted()) {
            Some(version) => self.clear(key, version, old.attributes.keys().collect()).await,
            None => Ok(()),
        }
    }

    /// Removes these additional attributes from the row, if it still has this version. The removal is tried once.
    async fn clear(&self, key: &LockKey, version: &str, attributes: Vec<&String>) -> Result<(), Error> {
        if attributes.is_empty() {
            return Ok(());
        }
        let write = expressions::clear(version, attributes);
        if let Err(failed) = self.write_once(self.checked_key(key)?, write).await {
            tracing::warn!(error = failed.for_log(), "a row keeps the additional attributes of a deleted lock");
        }
        Ok(())
    }

    /// Takes a lock from its holder, as an operator.
    ///
    /// # Errors
    /// `InvalidRequest`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn break_lock(&self, request: &Break) -> Result<BreakAnswer, Error> {
        let written = self.write(&request.key, |stamp| expressions::break_lock(request, stamp, &self.policy)).await?;
        Ok(match written.old {
            Some(old) if written.applied => BreakAnswer::Done(lifecycle::release_result(&old)),
            old => lifecycle::refuse_break(old.as_ref(), request),
        })
    }

    /// Reads one row, strongly consistent. A tombstone reads as not there.
    ///
    /// # Errors
    /// `InvalidRequest`, `Throttled`, `Unavailable`.
    pub async fn read(&self, key: &LockKey) -> Result<Option<Record>, Error> {
        let key = self.checked_key(key)?;
        let output = repeat(|| async {
            let request = self.client.get_item().table_name(&self.schema.table_name).set_key(Some(key.clone()));
            request.consistent_read(true).send().await.map_err(Failure::from)
        })
        .await?;
        Ok(output.item.and_then(|item| self.schema.decode_record(item)).filter(|record| !record.is_deleted()))
    }

    /// Lists rows, strongly consistent within each of DynamoDB's own pages. The listing leaves tombstones out.
    ///
    /// # Errors
    /// `InvalidRequest`, `Throttled`, `Unavailable`.
    pub async fn list(&self, query: &ListQuery) -> Result<Page, Error> {
        let mut rows = Vec::new();
        let mut start = query.after.as_ref().map(|key| self.checked_key(key)).transpose()?;
        for pages in 1.. {
            let (items, next) = self.list_once(query, query.limit - rows.len(), start).await?;
            let page = items.into_iter().filter_map(|item| self.schema.decode_record(item));
            rows.extend(page.filter(|record| query.is_within(record.key()) && query.shows(record)));
            start = next;
            if rows.len() > query.limit {
                rows.truncate(query.limit);
                return Ok(Page { next: rows.last().map(|record| record.key().clone()), rows });
            }
            // With prefixes, a page must end with a row that may be shown, so reading goes on until there is one.
            let is_enough = pages >= MAX_PAGES && (query.prefixes.is_none() || !rows.is_empty());
            if start.is_none() || rows.len() == query.limit || is_enough {
                break;
            }
        }
        let next = match (start, &query.prefixes) {
            (Some(_), Some(_)) => rows.last().map(|record| record.key().clone()),
            (Some(item), None) => self.schema.decode_row(item).map(|row| row.key),
            (None, _) => None,
        };
        Ok(Page { rows, next })
    }

    /// Whether the table answers: an eventually consistent read of a key that need not exist.
    ///
    /// # Errors
    /// `Throttled`, `Unavailable`.
    pub async fn check_health(&self) -> Result<(), Error> {
        let key = LockKey::stored("leasehold-health".into(), Some("leasehold-health".into()));
        repeat(|| async {
            let request = self.client.get_item().table_name(&self.schema.table_name);
            let request = request.set_key(Some(self.schema.encode_key(&key)));
            request.send().await.map_err(Failure::from)
        })
        .await
        .map(drop)
    }

    async fn list_once(
        &self,
        query: &ListQuery,
        wanted: usize,
        start: Option<Item>,
    ) -> Result<(Vec<Item>, Option<Item>), Error> {
        let filter = expressions::filter(query.state, query.owner_name.as_deref());
        let is_filtered = filter.expression.is_some() || query.prefixes.is_some();
        let limit = if is_filtered { FILTERED_PAGE } else { i32::try_from(wanted).unwrap_or(i32::MAX) };
        let values = (!filter.values.is_empty()).then_some(filter.values);
        let Some(partition) = &query.partition else {
            let scan = self
                .client
                .scan()
                .table_name(&self.schema.table_name)
                .consistent_read(true)
                .limit(limit)
                .set_exclusive_start_key(start)
                .set_filter_expression(filter.expression)
                .set_expression_attribute_values(values);
            let output = repeat(|| async { scan.clone().send().await.map_err(Failure::from) }).await?;
            return Ok((output.items.unwrap_or_default(), output.last_evaluated_key));
        };
        let request = self
            .client
            .query()
            .table_name(&self.schema.table_name)
            .consistent_read(true)
            .limit(limit)
            .set_exclusive_start_key(start)
            .key_condition_expression("#key = :key")
            .expression_attribute_names("#key", &self.schema.partition_key)
            .set_filter_expression(filter.expression)
            .set_expression_attribute_values(values)
            .expression_attribute_values(":key", aws_sdk_dynamodb::types::AttributeValue::S(partition.clone()));
        let output = repeat(|| async { request.clone().send().await.map_err(Failure::from) }).await?;
        Ok((output.items.unwrap_or_default(), output.last_evaluated_key))
    }

    fn checked_key(&self, key: &LockKey) -> Result<Item, Error> {
        match (&self.schema.sort_key, key.sort()) {
            (Some(_), None) => Err(Error::invalid("sortKey", "This table has a sort key: sortKey is required.")),
            (None, Some(_)) => Err(Error::invalid("sortKey", "This table has no sort key: leave sortKey out.")),
            _ => Ok(self.schema.encode_key(key)),
        }
    }

    fn check_attributes(&self, request: &Acquire) -> Result<(), Error> {
        let is_taken = |name: &str| {
            RESERVED_ATTRIBUTES.contains(&name)
                || name == self.schema.partition_key
                || self.schema.sort_key.as_deref() == Some(name)
        };
        match request.attributes.keys().find(|name| is_taken(name)) {
            Some(name) => {
                Err(Error::invalid("attributes", format!("The attribute {name} belongs to the lock itself.")))
            }
            None => Ok(()),
        }
    }

    /// Carries out one conditional write on a lock.
    async fn write(&self, key: &LockKey, build: impl Fn(&Stamp) -> Write) -> Result<Written<Row>, Error> {
        let Written { applied, old, stamp, issued } = self.write_item(key, |stamp| Ok(build(stamp))).await?;
        Ok(Written { applied, old: old.and_then(|item| self.schema.decode_row(item)), stamp, issued })
    }

    /// Carries out one conditional write. An attempt with an unknown result is retried, each time under a new stamp.
    /// The row that the last attempt returns shows whether an earlier one was applied.
    pub(crate) async fn write_item(
        &self,
        key: &LockKey,
        build: impl Fn(&Stamp) -> Result<Write, CorruptRecord>,
    ) -> Result<Written<Item>, Error> {
        let key = self.checked_key(key)?;
        let mut issued = Vec::with_capacity(1);
        let (applied, old, stamp) = repeat(|| {
            let stamp = Stamp { rvn: fresh_uuid(), now_us: self.clock.now_us() };
            issued.push(stamp.rvn.clone());
            let attempt = build(&stamp).map(|write| self.write_once(key.clone(), write));
            async move {
                match attempt {
                    Ok(attempt) => attempt.await.map(|(applied, old)| Ok((applied, old, stamp))),
                    Err(corrupt) => Ok(Err(corrupt)),
                }
            }
        })
        .await??;
        Ok(Written { applied, old, stamp, issued })
    }

    /// Returns whether the write was applied, and the item before it.
    async fn write_once(&self, key: Item, write: Write) -> Result<(bool, Option<Item>), Failure> {
        let names = (!write.names.is_empty()).then_some(write.names);
        let request = self
            .client
            .update_item()
            .table_name(&self.schema.table_name)
            .set_key(Some(key))
            .update_expression(write.update)
            .condition_expression(write.condition)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(Some(write.values))
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match request.send().await {
            Ok(output) => Ok((true, output.attributes)),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => Ok((false, refusal.item.clone())),
                _ => Err(error.into()),
            },
        }
    }
}

/// Retries a call where a retry may help.
async fn repeat<T, F>(call: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Failure>>,
{
    Ok(leasehold_dynamodb::repeat(call, Failure::is_transient).await?)
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let (kind, message) = match failure.kind() {
            FailureKind::Throttled => (ErrorKind::Throttled, "DynamoDB throttled the request."),
            FailureKind::Unavailable => (ErrorKind::Unavailable, "DynamoDB did not answer, or not in time."),
            FailureKind::TooLarge => {
                (ErrorKind::TooLarge, "The record would exceed the 400 KB that DynamoDB allows an item.")
            }
            FailureKind::Invalid => (
                ErrorKind::Misconfigured,
                "DynamoDB refused the request as invalid: the keys of the lock table may have other names.",
            ),
            FailureKind::NoTable => (ErrorKind::Misconfigured, "The lock table does not exist."),
            FailureKind::AccessDenied => (ErrorKind::Misconfigured, "The service may not use the lock table."),
            FailureKind::Misconfigured => (ErrorKind::Misconfigured, "The service has no valid credentials."),
        };
        Self::new(kind, message).with_source(failure)
    }
}

impl From<CorruptRecord> for Error {
    fn from(corrupt: CorruptRecord) -> Self {
        Error::new(ErrorKind::CorruptRecord, corrupt.to_string())
    }
}
