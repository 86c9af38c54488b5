//! The calls to DynamoDB: one function for each call of the protocol.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    AttributeValue, BatchStatementError, BatchStatementErrorCodeEnum, BatchStatementRequest, CancellationReason, Get,
    KeySchemaElement, KeyType, KeysAndAttributes, Projection, ProjectionType, ScalarAttributeType, TableDescription,
    TransactGetItem,
};
use leasehold_dynamodb::{Failure, is_about_size, pause};

use crate::attributes::ID;
use crate::error::{Error, failure, own_failure};
use crate::id::PublicId;
use crate::key::{Item, ItemKey};
use crate::model::{Operation, StraysRequest};
use crate::record::{
    self, FIRST_IMAGE_ROW, ROW, Record, SWEEP_AT, SWEEP_INDEX, SWEEP_SHARD, TRANSACTION_ID, Transaction,
};
use crate::write::Write;

/// The maximum number of statements in one BatchExecuteStatement call.
pub(crate) const MAX_STATEMENTS: usize = 25;

/// The maximum number of keys in one BatchGetItem call, and of writes in one TransactWriteItems call.
const MAX_KEYS: usize = 100;

/// The maximum number of reads until a write of several rows is visible as a whole.
const MAX_LOOKS: u32 = 8;

/// The maximum number of parts in which a read of many items comes.
const MAX_ROUNDS: u32 = 20;

/// The transactions table, and the users' tables by their names.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) client: Client,
    /// The transactions table.
    pub(crate) own: String,
    /// The tables that no caller may name.
    protected: Arc<[String]>,
    /// The schemas by table, as they were last read.
    schemas: Arc<Mutex<HashMap<String, Schema>>>,
}

/// The known parts of the schema of a user's table.
#[derive(Debug, Clone, Default)]
struct Schema {
    /// The key, which never changes while a table exists.
    key: Vec<KeyAttribute>,
    indexes: HashMap<String, Index>,
}

/// The known parts of an index.
#[derive(Debug, Clone)]
struct Index {
    kind: IndexKind,
    /// Whether it projects all attributes.
    is_full: bool,
    /// The attributes that its entries are sorted by.
    sort: Vec<String>,
}

/// The place where a key condition finds items.
#[derive(Debug)]
pub(crate) struct Source {
    /// Whether it can be read strongly consistent.
    pub(crate) is_consistent: bool,
    /// The attributes that its items are sorted by.
    pub(crate) sort: Vec<String>,
}

/// The kind of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexKind {
    /// An index that lags behind the table.
    Global,
    /// An index that can be read strongly consistent.
    Local,
}

/// A part of a table's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyAttribute {
    pub(crate) name: String,
    pub(crate) kind: ScalarAttributeType,
}

impl KeyAttribute {
    /// Whether a value can be this part of a key.
    pub(crate) fn admits(&self, value: &AttributeValue) -> bool {
        match value {
            AttributeValue::S(text) => self.kind == ScalarAttributeType::S && !text.is_empty(),
            AttributeValue::N(_) => self.kind == ScalarAttributeType::N,
            AttributeValue::B(bytes) => self.kind == ScalarAttributeType::B && !bytes.as_ref().is_empty(),
            _ => false,
        }
    }
}

/// The result of a TransactWriteItems call that DynamoDB answered.
#[derive(Debug)]
pub(crate) enum Written {
    /// All writes are applied.
    Done,
    /// No write is applied. Contains a reason for each write, in their order.
    Cancelled(Vec<Reason>),
}

/// The reason why a write did not happen.
#[derive(Debug)]
pub(crate) enum Reason {
    /// The write itself was possible.
    None,
    /// The write's condition does not hold. Contains the current item, if it exists.
    Condition(Option<Item>),
    /// Other writes of the item are under way, or DynamoDB throttles: retry.
    Busy,
    /// DynamoDB considers the write invalid.
    Invalid(String),
    /// The item would be too large.
    TooLarge(String),
}

/// The result of one of several independent writes.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The write is applied.
    Done,
    /// The item must be read again: the write's condition does not hold, or DynamoDB gave no final answer.
    Again,
    /// The table does not exist.
    NoTable,
    /// DynamoDB refuses the write, for this reason.
    Refused(String),
}

impl Tables {
    pub(crate) fn new(client: Client, own: String, mut protected: Vec<String>) -> Self {
        protected.push(own.clone());
        Self { client, own, protected: protected.into(), schemas: Arc::default() }
    }

    /// Whether callers may name this table.
    ///
    /// # Errors
    /// `InvalidRequest`.
    pub(crate) fn check_name(&self, table: &str, field: String) -> Result<(), Error> {
        if self.protected.iter().any(|protected| protected == table) {
            return Err(Error::invalid(field, format!("The table {table} belongs to the service itself.")));
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if table.is_empty() || !table.chars().all(is_name) {
            return Err(Error::invalid(
                field,
                "tableName must be the name of a table: letters, digits, `_`, `-` and `.`, and no ARN.",
            ));
        }
        Ok(())
    }

    /// Makes all of these writes or none: at most [`MAX_KEYS`].
    ///
    /// After `Unavailable`, the writes may or may not have been made.
    pub(crate) async fn transact(&self, writes: Vec<Write>) -> Result<Written, Error> {
        self.transact_as(None, writes).await
    }

    /// Makes the writes with a token: in the ten minutes after the first call, DynamoDB answers a repeat and does not
    /// carry it out again.
    pub(crate) async fn transact_as(&self, token: Option<String>, writes: Vec<Write>) -> Result<Written, Error> {
        let tables: Vec<_> = writes.iter().map(|write| write.table.clone()).collect();
        let items = writes.into_iter().map(Write::into_sdk).collect::<Result<Vec<_>, _>>()?;
        let request = self.client.transact_write_items().set_transact_items(Some(items));
        match request.set_client_request_token(token).send().await {
            Ok(_) => Ok(Written::Done),
            Err(SdkError::ServiceError(error)) if error.err().is_transaction_canceled_exception() => {
                let TransactWriteItemsError::TransactionCanceledException(cancelled) = error.into_err() else {
                    return Err(Error::corrupt("DynamoDB cancelled a transaction without a reason."));
                };
                Ok(Written::Cancelled(cancelled.cancellation_reasons().iter().map(reason).collect()))
            }
            Err(error) => Err(self.failure_of(error, tables.iter().map(String::as_str))),
        }
    }

    /// Makes one write by itself. Returns whether it was applied; if not, its condition does not hold.
    ///
    /// After `Unavailable`, the write may or may not have been made.
    pub(crate) async fn write(&self, write: Write) -> Result<bool, Error> {
        let Write { table, operation, item, update, condition, names, values } = write;
        let names = (!names.is_empty()).then_some(names);
        let values = (!values.is_empty()).then_some(values);
        match operation {
            Operation::Put => {
                let request = self.client.put_item().table_name(&table).set_item(Some(item));
                let request = request.set_condition_expression(condition);
                let request = request.set_expression_attribute_names(names).set_expression_attribute_values(values);
                self.is_applied(request.send().await, &table)
            }
            Operation::Delete => {
                let request = self.client.delete_item().table_name(&table).set_key(Some(item));
                let request = request.set_condition_expression(condition);
                let request = request.set_expression_attribute_names(names).set_expression_attribute_values(values);
                self.is_applied(request.send().await, &table)
            }
            Operation::Update | Operation::Check | Operation::Get => {
                let request = self.client.update_item().table_name(&table).set_key(Some(item));
                let request = request.set_update_expression((!update.is_empty()).then_some(update));
                let request = request.set_condition_expression(condition);
                let request = request.set_expression_attribute_names(names).set_expression_attribute_values(values);
                self.is_applied(request.send().await, &table)
            }
        }
    }

    /// Carries out up to [`MAX_STATEMENTS`] independent PartiQL statements in one call.
    ///
    /// After `Unavailable`, each of them may or may not have been carried out.
    pub(crate) async fn execute(&self, statements: Vec<(String, Vec<AttributeValue>)>) -> Result<Vec<Outcome>, Error> {
        let statements = statements.into_iter().map(|(text, parameters)| {
            let statement = BatchStatementRequest::builder().statement(text).set_parameters(Some(parameters)).build();
            statement.map_err(|error| Error::Unavailable(Box::new(error)))
        });
        let statements = statements.collect::<Result<Vec<_>, _>>()?;
        let request = self.client.batch_execute_statement().set_statements(Some(statements));
        let output = request.send().await.map_err(|error| failure(error, "of a request"))?;
        Ok(output.responses().iter().map(|response| outcome(response.error())).collect())
    }

    /// Loads a transaction with all its entries, strongly consistent. Returns `None` where there is none.
    pub(crate) async fn load(&self, id: &PublicId) -> Result<Option<Transaction>, Error> {
        for look in 1..=MAX_LOOKS {
            match Transaction::decode(&self.rows_between(id, "0#", FIRST_IMAGE_ROW, None).await?)? {
                // A read of several rows may see a part of a write of several rows.
                Some(transaction) if !transaction.is_whole && !transaction.record.finished && look < MAX_LOOKS => {
                    pause(look).await;
                }
                transaction => return Ok(transaction),
            }
        }
        Ok(None)
    }

    /// Reads the TX record alone.
    pub(crate) async fn record(&self, id: &PublicId) -> Result<Option<Record>, Error> {
        if id.as_str().is_empty() {
            return Ok(None);
        }
        let row = self.read_one(&ItemKey::new(&self.own, record::record_key(id))).await?;
        row.as_ref().map(Record::read).transpose()
    }

    /// Reads the rows of a transaction with names in this range, strongly consistent.
    async fn rows_between(
        &self,
        id: &PublicId,
        first: &str,
        last: &str,
        projection: Option<&str>,
    ) -> Result<Vec<Item>, Error> {
        let mut rows = Vec::new();
        let mut start = None;
        loop {
            let page = repeat(|| async {
                self.client
                    .query()
                    .table_name(&self.own)
                    .consistent_read(true)
                    .key_condition_expression("#id = :id AND #row BETWEEN :first AND :last")
                    .set_projection_expression(projection.map(str::to_owned))
                    .expression_attribute_names("#id", TRANSACTION_ID)
                    .expression_attribute_names("#row", ROW)
                    .expression_attribute_values(":id", record::text(id.as_str()))
                    .expression_attribute_values(":first", record::text(first))
                    .expression_attribute_values(":last", record::text(last))
                    .set_exclusive_start_key(start.clone())
                    .send()
                    .await
                    .map_err(own_failure)
            })
            .await?;
            rows.extend(page.items.unwrap_or_default());
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(rows);
            }
        }
    }

    /// Returns the unfinished transactions of one shard that a sweeper should examine until this time, the longest
    /// overdue first, and the start of the next page.
    pub(crate) async fn unfinished(
        &self,
        shard: &str,
        until_ms: u64,
        limit: usize,
        start: Option<Item>,
    ) -> Result<(Vec<PublicId>, Option<Item>), Error> {
        let output = repeat(|| async {
            self.client
                .query()
                .table_name(&self.own)
                .index_name(SWEEP_INDEX)
                .key_condition_expression("#shard = :shard AND #at <= :until")
                .expression_attribute_names("#shard", SWEEP_SHARD)
                .expression_attribute_names("#at", SWEEP_AT)
                .expression_attribute_values(":shard", record::text(shard))
                .expression_attribute_values(":until", record::number(until_ms))
                .limit(i32::try_from(limit).unwrap_or(i32::MAX))
                .set_exclusive_start_key(start.clone())
                .send()
                .await
                .map_err(own_failure)
        })
        .await?;
        let id = |row: Item| Some(PublicId::stored(row.get(TRANSACTION_ID)?.as_s().ok()?));
        Ok((output.items.unwrap_or_default().into_iter().filter_map(id).collect(), output.last_evaluated_key))
    }

    /// Reads the locked items among the next ones of a table, strongly consistent. Returns also the number of all items
    /// that were read, and the start of the next page.
    pub(crate) async fn locked(&self, request: &StraysRequest) -> Result<(Vec<Item>, usize, Option<Item>), Error> {
        let output = repeat(|| async {
            self.client
                .scan()
                .table_name(&request.table)
                .consistent_read(true)
                .filter_expression(format!("attribute_exists({ID})"))
                .limit(request.limit)
                .set_exclusive_start_key(request.start.clone())
                .send()
                .await
                .map_err(|error| failure(error, &request.table))
        })
        .await?;
        let examined = usize::try_from(output.scanned_count).unwrap_or_default();
        Ok((output.items.unwrap_or_default(), examined, output.last_evaluated_key))
    }

    /// Reads items of any tables, in the order of their keys, each strongly consistent.
    pub(crate) async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<Item>>, Error> {
        if let [key] = keys {
            return Ok(vec![self.read_one(key).await?]);
        }
        let mut found = BTreeMap::new();
        for slice in keys.chunks(MAX_KEYS) {
            let mut wanted = by_table(slice)?;
            let mut attempt = 0;
            while !wanted.is_empty() {
                if attempt > 0 {
                    pause(attempt).await;
                }
                attempt += 1;
                if attempt > MAX_ROUNDS {
                    return Err(Error::Throttled("a part of the items was left unread each time".into()));
                }
                let output = repeat(|| async {
                    let request = self.client.batch_get_item().set_request_items(Some(wanted.clone()));
                    request.send().await.map_err(|error| self.failure_of(error, wanted.keys().map(String::as_str)))
                })
                .await?;
                for (table, items) in output.responses.unwrap_or_default() {
                    let Some(sample) = slice.iter().find(|key| key.table() == table) else { continue };
                    found.extend(items.into_iter().map(|item| (sample.sibling(&item), item)));
                }
                wanted = output.unprocessed_keys.unwrap_or_default();
            }
        }
        Ok(keys.iter().map(|key| found.remove(key)).collect())
    }

    /// The keys of the images of a transaction.
    pub(crate) async fn image_keys(&self, record: &Record) -> Result<Vec<Item>, Error> {
        let prefix = record::image_prefix(&record.nonce);
        self.rows_between(&record.id, &prefix, &format!("{prefix}~"), Some("#id, #row")).await
    }

    /// Reads the old item that a row keeps.
    pub(crate) async fn image(&self, id: &PublicId, row: &str) -> Result<Option<Item>, Error> {
        let row = self.read_one(&ItemKey::new(&self.own, record::row_key(id, row))).await?;
        Ok(row.and_then(record::imaged))
    }

    async fn read_one(&self, key: &ItemKey) -> Result<Option<Item>, Error> {
        let output = repeat(|| async {
            let request = self.client.get_item().table_name(key.table()).set_key(Some(key.attributes().clone()));
            request
                .consistent_read(true)
                .send()
                .await
                .map_err(|error| self.failure_of(error, std::iter::once(key.table())))
        });
        Ok(output.await?.item)
    }

    /// Reads items as of one moment. Returns `None` where other writes conflicted.
    pub(crate) async fn read_together(&self, keys: &[ItemKey]) -> Result<Option<Vec<Option<Item>>>, Error> {
        let gets = keys.iter().map(|key| {
            let get = Get::builder().table_name(key.table()).set_key(Some(key.attributes().clone())).build();
            get.map(|get| TransactGetItem::builder().get(get).build())
                .map_err(|error| Error::Unavailable(Box::new(error)))
        });
        let gets = gets.collect::<Result<Vec<_>, _>>()?;
        repeat(|| async {
            match self.client.transact_get_items().set_transact_items(Some(gets.clone())).send().await {
                Ok(output) => Ok(Some(output.responses().iter().map(|response| response.item.clone()).collect())),
                Err(error) if error.code() == Some("TransactionCanceledException") => Ok(None),
                Err(error) => Err(self.failure_of(error, keys.iter().map(ItemKey::table))),
            }
        })
        .await
    }

    /// Whether a conditional write was applied.
    fn is_applied<T, E>(&self, result: Result<T, SdkError<E>>, table: &str) -> Result<bool, Error>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        match result {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some("ConditionalCheckFailedException") => Ok(false),
            Err(error) => Err(self.failure_of(error, std::iter::once(table))),
        }
    }

    /// Maps a failure of a call on several tables. It most likely concerns a user's table.
    fn failure_of<'a>(&self, error: impl Into<Failure>, mut tables: impl Iterator<Item = &'a str>) -> Error {
        match tables.find(|table| *table != self.own) {
            Some(table) => failure(error, table),
            None => own_failure(error),
        }
    }

    /// The attributes of a table's key, as last read.
    pub(crate) async fn key_attributes(&self, table: &str) -> Result<Vec<KeyAttribute>, Error> {
        if let Some(schema) = self.known(table) {
            return Ok(schema.key);
        }
        self.describe_key(table).await
    }

    /// Returns what finds the key of an item of this table in the item.
    pub(crate) async fn key_finder(&self, table: &str) -> Result<impl Fn(&Item) -> ItemKey, Error> {
        let (table, attributes) = (table.to_owned(), self.key_attributes(table).await?);
        Ok(move |item: &Item| {
            let part = |part: &KeyAttribute| Some((part.name.clone(), item.get(&part.name)?.clone()));
            ItemKey::new(table.clone(), attributes.iter().filter_map(part).collect())
        })
    }

    /// The attributes of a table's key, read from DynamoDB: tests create tables anew.
    pub(crate) async fn describe_key(&self, table: &str) -> Result<Vec<KeyAttribute>, Error> {
        self.describe(table).await.map(|schema| schema.key)
    }

    /// The kind of an index that projects all attributes, and therefore the locks.
    ///
    /// # Errors
    /// `InvalidRequest` for an index that does not project all attributes, or does not exist.
    pub(crate) async fn full_index(&self, table: &str, index: &str) -> Result<IndexKind, Error> {
        let found = self.index(table, index, |index| index.is_full).await?;
        found.map(|index| index.kind).ok_or_else(|| {
            let detail = format!(
                "The table {table} has no index {index} that projects all attributes. The entries of another index do not \
                 tell which transaction has an item."
            );
            Error::invalid("indexName", detail)
        })
    }

    /// Returns where a key condition finds items: in the table, or in an index of it.
    ///
    /// # Errors
    /// `InvalidRequest` for an index that does not exist.
    pub(crate) async fn source(&self, table: &str, index: Option<&str>, field: String) -> Result<Source, Error> {
        let Some(index) = index else {
            let names = self.key_attributes(table).await?.into_iter().map(|part| part.name);
            return Ok(Source { is_consistent: true, sort: names.skip(1).collect() });
        };
        let found = self.index(table, index, |_| true).await?;
        let found = found.ok_or_else(|| Error::invalid(field, format!("The table {table} has no index {index}.")))?;
        Ok(Source { is_consistent: found.kind == IndexKind::Local, sort: found.sort })
    }

    /// Returns an index of this form. It may be newer than the last description of the table.
    async fn index(&self, table: &str, index: &str, is_it: impl Fn(&Index) -> bool) -> Result<Option<Index>, Error> {
        let of = |schema: Schema| schema.indexes.get(index).filter(|index| is_it(index)).cloned();
        match self.known(table).and_then(of) {
            None => Ok(self.describe(table).await.map(of)?),
            found => Ok(found),
        }
    }

    fn known(&self, table: &str) -> Option<Schema> {
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner).get(table).cloned()
    }

    async fn describe(&self, table: &str) -> Result<Schema, Error> {
        let output = repeat(|| async {
            let request = self.client.describe_table().table_name(table);
            request.send().await.map_err(|error| failure(error, table))
        })
        .await?;
        let schema = output.table.as_ref().map(Schema::of).unwrap_or_default();
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner).insert(table.to_owned(), schema.clone());
        Ok(schema)
    }
}

impl Schema {
    fn of(table: &TableDescription) -> Self {
        let key_attribute = |element: &KeySchemaElement| {
            let name = element.attribute_name();
            let definition =
                table.attribute_definitions().iter().find(|definition| definition.attribute_name() == name);
            Some(KeyAttribute { name: name.to_owned(), kind: definition?.attribute_type().clone() })
        };
        let index = |name: Option<&str>, projection: Option<&Projection>, key: &[KeySchemaElement], kind| {
            let is_full = projection?.projection_type() == Some(&ProjectionType::All);
            let sort = key.iter().filter(|element| *element.key_type() == KeyType::Range);
            let sort = sort.map(|element| element.attribute_name().to_owned()).collect();
            Some((name?.to_owned(), Index { kind, is_full, sort }))
        };
        let global = table.global_secondary_indexes().iter();
        let global =
            global.filter_map(|of| index(of.index_name(), of.projection(), of.key_schema(), IndexKind::Global));
        let local = table.local_secondary_indexes().iter();
        let local = local.filter_map(|of| index(of.index_name(), of.projection(), of.key_schema(), IndexKind::Local));
        Self {
            key: table.key_schema().iter().filter_map(key_attribute).collect(),
            indexes: global.chain(local).collect(),
        }
    }
}

fn by_table(keys: &[ItemKey]) -> Result<HashMap<String, KeysAndAttributes>, Error> {
    let mut wanted: HashMap<String, Vec<Item>> = HashMap::new();
    for key in keys {
        wanted.entry(key.table().to_owned()).or_default().push(key.attributes().clone());
    }
    let request = |(table, keys): (String, Vec<Item>)| {
        let built = KeysAndAttributes::builder().set_keys(Some(keys)).consistent_read(true).build();
        built.map(|keys| (table, keys)).map_err(|error| Error::Unavailable(Box::new(error)))
    };
    wanted.into_iter().map(request).collect()
}

fn reason(reason: &CancellationReason) -> Reason {
    let message = || reason.message().unwrap_or("DynamoDB gave no reason.").to_owned();
    match reason.code().unwrap_or("None") {
        "None" => Reason::None,
        "ConditionalCheckFailed" => Reason::Condition(reason.item().filter(|item| !item.is_empty()).cloned()),
        "ValidationError" if is_about_size(&message()) => Reason::TooLarge(message()),
        "ValidationError" => Reason::Invalid(message()),
        "ItemCollectionSizeLimitExceeded" => Reason::TooLarge(message()),
        _ => Reason::Busy,
    }
}

fn outcome(error: Option<&BatchStatementError>) -> Outcome {
    let Some(error) = error else { return Outcome::Done };
    match error.code() {
        Some(BatchStatementErrorCodeEnum::ResourceNotFound) => Outcome::NoTable,
        Some(
            BatchStatementErrorCodeEnum::ValidationError
            | BatchStatementErrorCodeEnum::AccessDenied
            | BatchStatementErrorCodeEnum::ItemCollectionSizeLimitExceeded,
        ) => Outcome::Refused(error.message().unwrap_or("DynamoDB gave no reason.").to_owned()),
        _ => Outcome::Again,
    }
}

/// Retries a call where a retry may help.
pub(crate) async fn repeat<T, F>(call: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    leasehold_dynamodb::repeat(call, Error::is_passing).await
}
