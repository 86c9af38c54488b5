//! The locks of one DynamoDB table: carries out the rules and derives the answers.

mod dispatch;
mod expiry;
mod restored;
mod together;

pub use expiry::Expired;

use aws_sdk_dynamodb::Client;
use leasehold_dynamodb::{Clock, Failure, FailureKind};

use crate::attributes::Item;
use crate::error::{Error, ErrorKind};
use crate::expressions;
use crate::item::{RESERVED_ATTRIBUTES, TableSchema};
use crate::lifecycle::{
    self, AcquireAnswer, BreakAnswer, CorruptRecord, HeartbeatAnswer, LockState, OccurrenceAnswer, Policy,
    ReleaseAnswer, Row, Stamp, Step, WantAnswer,
};
use crate::model::{Acquire, Break, Disposal, Heartbeat, LockKey, Release, SetOccurrence, Want};
use crate::semaphore::Semaphore;
use crate::write::Write;

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
    /// not even as the start of the next page, unless `hides_next` is set.
    pub prefixes: Option<Vec<String>>,
    /// Whether the caller cannot see the start of the next page. The page then ends after a bounded number of rows,
    /// also where none of them may be shown.
    pub hides_next: bool,
    /// Restricts the listing to locks in this state.
    pub state: Option<LockState>,
    /// Restricts the listing to locks whose current or last owner has this name.
    pub owner_name: Option<String>,
}

impl ListQuery {
    fn is_filtered(&self) -> bool {
        self.state.is_some() || self.owner_name.is_some() || self.prefixes.is_some()
    }

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

/// The same for a listing of all rows. A page that ends before its limit has a megabyte, and an answer has four.
const MAX_FULL_PAGES: usize = 5;

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
        let policy = &self.policy;
        let (old, step) = self
            .carry_out_on_lock(
                &request.key,
                |row, stamp, _| lifecycle::acquire(row, request, stamp, policy),
                |stamp| expressions::acquire(&self.schema, request, stamp, policy, None),
            )
            .await?;
        if let (Some(old), Some(row)) = (&old, &step.row) {
            let forgotten = old.attributes.keys().filter(|name| !row.attributes.contains_key(*name));
            Box::pin(self.clear(row, forgotten.collect())).await?;
        }
        Ok(step.answer)
    }

    /// Renews a lease.
    ///
    /// # Errors
    /// `InvalidRequest`, `TooLarge`, `CorruptRecord`, `Throttled`, `Unavailable`. The last two say nothing about the
    /// lock: retry until the lease, counted from before the last good heartbeat was sent, runs out.
    pub async fn heartbeat(&self, request: &Heartbeat) -> Result<HeartbeatAnswer, Error> {
        let policy = &self.policy;
        let carried_out = self.carry_out_on_lock(
            &request.key,
            |row, stamp, issued| Ok(lifecycle::heartbeat(row, request, stamp, issued, policy)),
            |stamp| expressions::heartbeat(request, stamp, policy),
        );
        Ok(carried_out.await?.1.answer)
    }

    /// Releases a lock.
    ///
    /// # Errors
    /// `InvalidRequest`, `TooLarge`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn release(&self, request: &Release) -> Result<ReleaseAnswer, Error> {
        let policy = &self.policy;
        let (_, step) = self
            .carry_out_on_lock(
                &request.key,
                |row, stamp, _| Ok(lifecycle::release(row, request, stamp, policy)),
                |stamp| expressions::release(request, stamp, policy),
            )
            .await?;
        // The tombstone of this release, or of an earlier attempt at it. It hides the attributes that stay in it, and
        // the next acquire tries again.
        if let (Disposal::Delete, Some(row)) = (&request.disposal, &step.row)
            && row.is_deleted()
        {
            Box::pin(self.clear(row, row.attributes.keys().collect())).await?;
        }
        Ok(step.answer)
    }

    /// Rule 10: removes these additional attributes from the row, if it still has this version. A removal that fails is
    /// left to the next acquire.
    async fn clear(&self, row: &Row, attributes: Vec<&String>) -> Result<(), Error> {
        let Some(version) = row.rvn.value().filter(|_| !attributes.is_empty()) else { return Ok(()) };
        let write = expressions::clear(version, attributes);
        let key = self.checked_key(&row.key)?;
        if let Err(failed) = repeat(|| self.write_once(key.clone(), write.clone())).await {
            tracing::warn!(error = failed.for_log(), "a row keeps the additional attributes of a deleted lock");
        }
        Ok(())
    }

    /// Marks a held lock, so that its holder learns that somebody waits.
    ///
    /// # Errors
    /// `InvalidRequest`, `Throttled`, `Unavailable`. The mark is a hint: no caller needs to retry.
    pub async fn want(&self, request: &Want) -> Result<WantAnswer, Error> {
        let carried_out = self.carry_out_on_lock(
            &request.key,
            |row, _, _| Ok(lifecycle::want(row, request)),
            |_| expressions::want(request),
        );
        Ok(carried_out.await?.1.answer)
    }

    /// Takes a lock from its holder, as an operator.
    ///
    /// # Errors
    /// `InvalidRequest`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn break_lock(&self, request: &Break) -> Result<BreakAnswer, Error> {
        let policy = &self.policy;
        let carried_out = self.carry_out_on_lock(
            &request.key,
            |row, stamp, _| Ok(lifecycle::break_lock(row, request, stamp, policy)),
            |stamp| expressions::break_lock(request, stamp, policy),
        );
        Ok(carried_out.await?.1.answer)
    }

    /// Sets which occurrence counts as the last one that is done, as an operator.
    ///
    /// # Errors
    /// `InvalidRequest`, `CorruptRecord`, `Throttled`, `Unavailable`. After the last two, retry.
    pub async fn set_occurrence(&self, request: &SetOccurrence) -> Result<OccurrenceAnswer, Error> {
        let carried_out = self.carry_out_on_lock(
            &request.key,
            |row, stamp, _| lifecycle::set_occurrence(row, request, stamp),
            |stamp| expressions::set_occurrence(request, stamp),
        );
        Ok(carried_out.await?.1.answer)
    }

    /// Carries out an operation on a lock. Returns the row before, and the step from there.
    async fn carry_out_on_lock<A>(
        &self,
        key: &LockKey,
        rule: impl Fn(Option<&Row>, &Stamp, &[String]) -> Result<Step<A>, CorruptRecord>,
        write: impl Fn(&Stamp) -> Write,
    ) -> Result<(Option<Row>, Step<A>), Error> {
        self.carry_out(
            key,
            |item| Ok(item.and_then(|item| self.schema.decode_row(item))),
            |row: &Option<Row>, stamp, issued| rule(row.as_ref(), stamp, issued),
            |(), _, stamp| Ok(write(stamp)),
        )
        .await
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
        let ends_anywhere = query.prefixes.is_none() || query.hides_next;
        let max_pages = if query.is_filtered() { MAX_PAGES } else { MAX_FULL_PAGES };
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
            // With prefixes, a visible start of the next page must be a row that may be shown, so reading goes on until
            // there is one.
            let is_enough = pages >= max_pages && (ends_anywhere || !rows.is_empty());
            if start.is_none() || rows.len() == query.limit || is_enough {
                break;
            }
        }
        let next = match start {
            Some(item) if ends_anywhere => self.schema.decode_row(item).map(|row| row.key),
            Some(_) => rows.last().map(|record| record.key().clone()),
            None => None,
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
        let limit = if query.is_filtered() { FILTERED_PAGE } else { i32::try_from(wanted).unwrap_or(i32::MAX) };
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
}

/// Retries a call where a retry may help.
pub(crate) async fn repeat<T, F>(call: impl FnMut() -> F) -> Result<T, Error>
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
