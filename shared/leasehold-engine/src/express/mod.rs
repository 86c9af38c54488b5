//! The short way of repeated requests.
//!
//! Requests of a lock service differ in their values only. The engine reads their expressions six times each and
//! prepares four statements anew. An update of an item that the engine has carried out once is therefore carried out
//! here from then on: its expressions are kept by their texts, and the statements are kept too. The engine's acceptance
//! of the first one stands for all checks that do not depend on values.
//!
//! Nothing is told here but "applied" and "the condition failed", and these only where they are certain. Everything
//! else is left to the engine: a form that is not known, a missing item, a set, a number that is no integer, an index.
//!
//! The writes of many requests are one transaction of SQLite. It is committed before their answers leave, and before
//! the engine runs.

mod expression;
#[cfg(test)]
mod tests;
mod value;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use dynoxide::Database;
use dynoxide::types::AttributeValue;
use rusqlite::{Connection, OptionalExtension};
use serde::Deserialize;
use serde_json::value::RawValue;

use self::expression::{Comparison, Condition, Operand, Scope, Source, Update};
pub(crate) use self::value::Text;
use self::value::{Members, Value, integer};
use crate::following::Following;
use crate::integrity::{self, quoted};
use crate::names;
use crate::operations::{self, Answer};

/// Largest request and largest stored item that are taken. An item of DynamoDB has at most 400 KB.
const MAX_BODY_BYTES: usize = 64 * 1024;
const MAX_ITEM_BYTES: usize = 300 * 1024;
/// Longest key that is taken, as DynamoDB's sort keys.
const MAX_KEY_BYTES: usize = 1024;
/// Most forms of requests that are kept. A service has some dozens.
const MAX_FORMS: usize = 256;
/// Statements that are kept.
const MAX_STATEMENTS: usize = 64;
/// Longest wait for a lock of the engine's own server.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The operations after which a table has the same keys and indexes as before.
const OF_ITEMS: [&str; 13] = [
    "UpdateItem",
    "GetItem",
    "PutItem",
    "DeleteItem",
    "Query",
    "Scan",
    "BatchGetItem",
    "BatchWriteItem",
    "TransactGetItems",
    "TransactWriteItems",
    "BatchExecuteStatement",
    "DescribeTable",
    "TagResource",
];

/// The connection of the short way, and what it keeps.
pub(crate) struct Express {
    connection: Connection,
    /// Whether rows have checksums.
    has_sums: bool,
    tables: HashMap<String, Table>,
    /// The forms of updates, by the texts of these.
    forms: HashMap<String, Vec<Form>>,
    /// The first write that failed since the last end of a transaction.
    failure: Option<String>,
    is_off: bool,
    /// The changes of a table, for one who follows it.
    pub(crate) following: Option<Following>,
}

/// A table whose items can be read here.
#[derive(Clone)]
struct Table {
    /// Whether they can be updated, too: the table has no index and no stream.
    is_plain: bool,
    partition_key: String,
    sort_key: Option<String>,
    select: String,
    update: String,
}

/// The parts of an update that must be the same for it to count as a repetition.
struct Form {
    table: String,
    condition: Option<String>,
    names: Vec<(String, String)>,
    values: Vec<String>,
    kinds: Vec<&'static str>,
    /// Its expressions. None: they are more than is known here.
    program: Option<(Option<Condition>, Update)>,
}

/// The request of an UpdateItem. One with any other member is not read.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct UpdateItem<'a> {
    #[serde(borrow)]
    table_name: Cow<'a, str>,
    #[serde(borrow)]
    key: Members<'a, &'a RawValue>,
    #[serde(borrow)]
    update_expression: Cow<'a, str>,
    #[serde(borrow)]
    condition_expression: Option<Text<'a>>,
    #[serde(borrow, default)]
    expression_attribute_names: Members<'a, Text<'a>>,
    #[serde(borrow, default)]
    expression_attribute_values: Members<'a, &'a RawValue>,
    #[serde(borrow)]
    return_values: Option<Text<'a>>,
    #[serde(borrow)]
    return_values_on_condition_check_failure: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct GetItem<'a> {
    #[serde(borrow)]
    table_name: Cow<'a, str>,
    #[serde(borrow)]
    key: Members<'a, &'a RawValue>,
    #[serde(default)]
    #[allow(dead_code, reason = "each read sees all writes")]
    consistent_read: bool,
}

/// A row of a table.
struct Row {
    id: i64,
    item: String,
    size: i64,
    sum: Option<i64>,
}

/// No answer was found here.
pub(crate) enum Left {
    /// The engine carries the request out, and the next one like it.
    ToEngine,
    /// The engine carries the request out. The next one like it may be carried out here, if the engine accepts it.
    ToLearn,
}

impl Express {
    /// Opens a connection of its own to the engine's database.
    pub(crate) fn open(path: &Path, has_sums: bool) -> rusqlite::Result<Self> {
        let connection = integrity::connect(path)?;
        // The queue syncs the log for all requests that wait.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(MAX_STATEMENTS);
        Ok(Self {
            connection,
            has_sums,
            tables: HashMap::new(),
            forms: HashMap::new(),
            failure: None,
            is_off: false,
            following: None,
        })
    }

    /// Reads the rows as they are, committed or not. `read` is told whether they have checksums.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Connection, bool) -> T) -> T {
        read(&self.connection, self.has_sums)
    }

    /// The text of the item with this key, as it is stored, or else None: the engine must say whether there is one.
    pub(crate) fn stored(&mut self, database: &Database, table: &str, key: &serde_json::Value) -> Option<String> {
        if self.is_off {
            return None;
        }
        let table = table_of(&mut self.tables, database, table, self.has_sums)?;
        let (partition, sort) = table.place(key)?;
        table.row(&self.connection, &partition, &sort).map(|row| row.item)
    }

    /// Leaves everything to the engine from now on.
    pub(crate) fn switch_off(&mut self) {
        self.is_off = true;
    }

    /// Carries a request out, if that can be done here.
    pub(crate) fn run(&mut self, database: &Database, operation: &str, body: &[u8]) -> Result<Answer, Left> {
        if !OF_ITEMS.contains(&operation) {
            self.tables.clear();
        }
        if self.is_off || body.len() > MAX_BODY_BYTES {
            return Err(Left::ToEngine);
        }
        match operation {
            "UpdateItem" => {
                let request: UpdateItem<'_> = serde_json::from_slice(body).map_err(|_| Left::ToEngine)?;
                self.update(database, &request)
            }
            "GetItem" => {
                let request: GetItem<'_> = serde_json::from_slice(body).map_err(|_| Left::ToEngine)?;
                self.get(database, &request).ok_or(Left::ToEngine)
            }
            _ => Err(Left::ToEngine),
        }
    }

    /// Keeps the form of an update that the engine has accepted.
    pub(crate) fn learn(&mut self, body: &[u8], answer: &Answer) {
        let refused = br#"{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException""#;
        if answer.status != 200 && !answer.body.starts_with(refused) {
            return;
        }
        let Ok(request) = serde_json::from_slice::<UpdateItem<'_>>(body) else { return };
        let Some(form) = Form::of(&request) else { return };
        if self.forms.values().map(Vec::len).sum::<usize>() >= MAX_FORMS {
            self.forms.clear();
        }
        self.forms.entry(request.update_expression.into_owned()).or_default().push(form);
    }

    /// Commits the writes since the last commit.
    ///
    /// # Errors
    /// The message for the callers: none of these writes may be acknowledged.
    pub(crate) fn commit(&mut self) -> Result<(), String> {
        if !self.connection.is_autocommit()
            && let Err(error) = execute(&self.connection, "COMMIT")
        {
            self.fail(&error);
        }
        if let Some(following) = &mut self.following {
            following.committed();
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Commits before the engine runs. A failure is kept for the callers of the writes.
    pub(crate) fn make_way(&mut self) {
        if let Err(failure) = self.commit() {
            self.failure = Some(failure);
        }
    }

    /// Undoes the writes since the last commit.
    fn fail(&mut self, error: &rusqlite::Error) {
        tracing::error!(%error, "a write failed");
        self.failure.get_or_insert(error.to_string());
        if let Some(following) = &mut self.following {
            following.undone();
        }
        if !self.connection.is_autocommit() {
            // SQLite has done so, or does so when the connection is next used.
            let _ = execute(&self.connection, "ROLLBACK");
        }
    }

    fn update(&mut self, database: &Database, request: &UpdateItem<'_>) -> Result<Answer, Left> {
        let is = |text: &Option<Text<'_>>, expected: &str| text.as_ref().is_some_and(|Text(text)| text == expected);
        let returns_old = is(&request.return_values, "ALL_OLD");
        let tells_old = is(&request.return_values_on_condition_check_failure, "ALL_OLD");
        let is_known = |text: &Option<Text<'_>>| text.is_none() || is(text, "ALL_OLD") || is(text, "NONE");
        if !is_known(&request.return_values) || !is_known(&request.return_values_on_condition_check_failure) {
            return Err(Left::ToEngine);
        }
        let Some(values) = read_values(request) else { return Err(Left::ToEngine) };
        let forms = self.forms.get(&*request.update_expression).map_or(&[][..], Vec::as_slice);
        let Some((form, values)) = forms.iter().find_map(|form| Some((form, form.matches(request, &values)?))) else {
            return Err(Left::ToLearn);
        };
        let Some((condition, update)) = &form.program else { return Err(Left::ToEngine) };
        let table = table_of(&mut self.tables, database, &request.table_name, self.has_sums);
        let Some(table) = table.filter(|table| table.is_plain) else { return Err(Left::ToEngine) };
        let Some((partition, sort)) = table.key(&request.key) else { return Err(Left::ToEngine) };
        if self.connection.is_autocommit() && execute(&self.connection, "BEGIN IMMEDIATE").is_err() {
            return Err(Left::ToEngine);
        }
        let Some(row) = table.row(&self.connection, &partition, &sort) else { return Err(Left::ToEngine) };
        if !row.is_intact(&partition, &sort) {
            return Ok(operations::internal_error("a damaged row"));
        }
        let Some(item) = row.members() else { return Err(Left::ToEngine) };
        let sight = Sight { item: &item, values: &values };
        match condition.as_ref().map_or(Some(true), |condition| sight.fulfils(condition)) {
            None => Err(Left::ToEngine),
            Some(false) => Ok(refusal(tells_old.then_some(&row.item))),
            Some(true) => {
                let Some((new, size)) = sight.updated(update, row.size) else { return Err(Left::ToEngine) };
                let sum = self.has_sums.then(|| integrity::row_sum(&partition, &sort, &new));
                let statement = self.connection.prepare_cached(&table.update);
                let written = statement.and_then(|mut statement| match sum {
                    Some(sum) => statement.execute((&new, size, row.id, sum)),
                    None => statement.execute((&new, size, row.id)),
                });
                match written {
                    Ok(_) => {
                        if let Some(following) = &mut self.following {
                            following.changed(&request.table_name, &row.item, &new);
                        }
                        Ok(Answer { status: 200, body: with_item("Attributes", returns_old.then_some(&row.item)) })
                    }
                    Err(error) => {
                        self.fail(&error);
                        Ok(operations::internal_error(&error.to_string()))
                    }
                }
            }
        }
    }

    fn get(&mut self, database: &Database, request: &GetItem<'_>) -> Option<Answer> {
        let table =
            table_of(&mut self.tables, database, &request.table_name, self.has_sums).filter(|table| table.is_plain)?;
        let (partition, sort) = table.key(&request.key)?;
        let row = table.row(&self.connection, &partition, &sort)?;
        if !row.is_intact(&partition, &sort) {
            return Some(operations::internal_error("a damaged row"));
        }
        (!row.has_sets()).then(|| Answer { status: 200, body: with_item("Item", Some(&row.item)) })
    }
}

fn execute(connection: &Connection, statement: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(statement)?.execute([]).map(drop)
}

fn table_of<'a>(
    tables: &'a mut HashMap<String, Table>,
    database: &Database,
    name: &str,
    has_sums: bool,
) -> Option<&'a Table> {
    if !tables.contains_key(name) {
        tables.insert(name.to_owned(), Table::of(database, name, has_sums)?);
    }
    tables.get(name)
}

impl Table {
    fn of(database: &Database, name: &str, has_sums: bool) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Part {
            attribute_name: String,
            key_type: String,
        }
        let found = database.get_table_metadata(name).ok()?.filter(|found| found.table_name == name)?;
        let has = |definitions: Option<String>| definitions.is_some_and(|text| !matches!(&*text, "" | "[]" | "null"));
        let is_plain = !names::is_stored(name)
            && !found.stream_enabled
            && ![found.gsi_definitions, found.lsi_definitions, found.vector_index_definitions].into_iter().any(has);
        let parts: Vec<Part> = serde_json::from_str(&found.key_schema).ok()?;
        let part = |kind: &str| parts.iter().find(|part| part.key_type == kind).map(|part| part.attribute_name.clone());
        let sum = if has_sums { integrity::COLUMN } else { "NULL" };
        let set_sum = if has_sums { format!(", {sum} = ?4") } else { String::new() };
        let quoted = quoted(name);
        Some(Self {
            is_plain,
            partition_key: part("HASH")?,
            sort_key: part("RANGE"),
            select: format!("SELECT rowid, item_json, item_size, {sum} FROM {quoted} WHERE pk = ?1 AND sk = ?2"),
            update: format!("UPDATE {quoted} SET item_json = ?1, item_size = ?2{set_sum} WHERE rowid = ?3"),
        })
    }

    fn row(&self, connection: &Connection, partition: &str, sort: &str) -> Option<Row> {
        let mut statement = connection.prepare_cached(&self.select).ok()?;
        let row = statement.query_row((partition, sort), |row| {
            Ok(Row { id: row.get(0)?, item: row.get(1)?, size: row.get(2)?, sum: row.get(3)? })
        });
        row.optional().ok()?
    }

    /// The columns of any key.
    fn place(&self, key: &serde_json::Value) -> Option<(String, String)> {
        let column = |name: &str| AttributeValue::deserialize(key.get(name)?).ok()?.to_key_string();
        let sort = self.sort_key.as_ref().map_or(Some(String::new()), |name| column(name))?;
        Some((column(&self.partition_key)?, sort))
    }

    /// The columns of a key of texts.
    fn key(&self, key: &Members<'_, &RawValue>) -> Option<(String, String)> {
        let column = |name: &str| match Value::of(key.get(name)?)? {
            Value::S(text) if (1..=MAX_KEY_BYTES).contains(&text.len()) => Some(format!("S:{text}")),
            _ => None,
        };
        let sort = self.sort_key.as_ref().map_or(Some(String::new()), |name| column(name))?;
        let parts = 1 + usize::from(self.sort_key.is_some());
        (key.0.len() == parts).then_some((column(&self.partition_key)?, sort))
    }
}

/// The values of an update by their placeholders, if the engine would store them as they are.
fn read_values<'a>(request: &'a UpdateItem<'a>) -> Option<Vec<(&'a str, &'a RawValue, Value<'a>)>> {
    let values = request.expression_attribute_values.0.iter();
    values
        .map(|(placeholder, raw)| {
            let value = Value::of(raw).filter(Value::is_plain)?;
            Some((&**placeholder, *raw, value))
        })
        .collect()
}

impl Form {
    fn of(request: &UpdateItem<'_>) -> Option<Self> {
        let values = read_values(request)?;
        let kinds = values.iter().map(|(_, _, value)| value.kind()).collect();
        let values: Vec<_> = values.into_iter().map(|(placeholder, ..)| placeholder.to_owned()).collect();
        let names = request.expression_attribute_names.0.iter();
        let names: Vec<_> =
            names.map(|(placeholder, Text(name))| (placeholder.to_string(), name.to_string())).collect();
        let condition = request.condition_expression.as_ref().map(|Text(text)| text.to_string());
        let scope = Scope { names: &names, values: &values };
        let program = match &condition {
            None => Some(None),
            Some(text) => expression::condition(text, &scope).map(Some),
        };
        let program = program.zip(expression::update(&request.update_expression, &scope));
        Some(Self { table: request.table_name.to_string(), condition, names, values, kinds, program })
    }

    /// Returns the request's values in the order of this form, if the request has this form.
    fn matches<'a>(
        &self,
        request: &UpdateItem<'_>,
        values: &'a [(&'a str, &'a RawValue, Value<'a>)],
    ) -> Option<Vec<(&'a RawValue, &'a Value<'a>)>> {
        let condition = request.condition_expression.as_ref().map(|Text(text)| &**text);
        let names = &request.expression_attribute_names;
        let is_same = self.table == request.table_name
            && self.condition.as_deref() == condition
            && self.names.len() == names.0.len()
            && self.names.iter().all(|(from, to)| names.get(from).is_some_and(|Text(name)| name == to))
            && self.values.len() == values.len();
        if !is_same {
            return None;
        }
        let placeholders = self.values.iter().zip(&self.kinds);
        let found = placeholders.map(|(placeholder, kind)| {
            let (_, raw, value) = values.iter().find(|(found, ..)| found == placeholder)?;
            (value.kind() == *kind).then_some((*raw, value))
        });
        found.collect()
    }
}

impl Row {
    fn is_intact(&self, partition: &str, sort: &str) -> bool {
        self.sum.is_none_or(|sum| sum == integrity::row_sum(partition, sort, &self.item))
    }

    /// Whether the item may have a set.
    fn has_sets(&self) -> bool {
        self.item.contains("S\":[")
    }

    fn members(&self) -> Option<Members<'_, &RawValue>> {
        if self.has_sets() || self.item.len() > MAX_ITEM_BYTES { None } else { serde_json::from_str(&self.item).ok() }
    }
}

/// An item, and the values of the request that looks at it.
struct Sight<'a> {
    item: &'a Members<'a, &'a RawValue>,
    values: &'a [(&'a RawValue, &'a Value<'a>)],
}

impl<'a> Sight<'a> {
    /// Whether the item fulfils a condition. None: the engine must say.
    fn fulfils(&self, condition: &Condition) -> Option<bool> {
        match condition {
            // Both sides are looked at: the engine refuses some values wherever they stand.
            Condition::And(left, right) => Some(self.fulfils(left)? & self.fulfils(right)?),
            Condition::Or(left, right) => Some(self.fulfils(left)? | self.fulfils(right)?),
            Condition::Not(inner) => self.fulfils(inner).map(|is_fulfilled| !is_fulfilled),
            Condition::Exists(name) => Some(self.item.get(name).is_some()),
            Condition::HasType(name, kind) => {
                let kind = self.operand(kind)??;
                let Value::S(kind) = &*kind else { return None };
                let is_kind = ["S", "N", "B", "BOOL", "NULL", "M", "L"].contains(&&**kind);
                let found = self.item.get(name).map(|raw| Value::of(raw).map(|value| value.kind() == *kind));
                if is_kind { found.unwrap_or(Some(false)) } else { None }
            }
            Condition::Compare(left, comparison, right) => self.compare(left, *comparison, right),
            Condition::Between(operand, low, high) => {
                if let (Operand::Value(_), Operand::Value(_)) = (low, high)
                    && !self.compare(low, Comparison::LessOrEqual, high)?
                {
                    // The engine refuses such a request.
                    return None;
                }
                let is_over = self.compare(operand, Comparison::GreaterOrEqual, low)?;
                Some(is_over && self.compare(operand, Comparison::LessOrEqual, high)?)
            }
            Condition::BeginsWith(whole, part) => self.texts(whole, part, |whole, part| whole.starts_with(part)),
            Condition::Contains(whole, part) => self.texts(whole, part, |whole, part| whole.contains(part)),
        }
    }

    fn compare(&self, left: &Operand, comparison: Comparison, right: &Operand) -> Option<bool> {
        match (self.operand(left)?, self.operand(right)?) {
            (Some(left), Some(right)) => left.compares(comparison, &right),
            // What is missing differs from everything, and stands in no other relation.
            _ => Some(comparison == Comparison::Unequal),
        }
    }

    fn texts(&self, whole: &Operand, part: &Operand, test: impl Fn(&str, &str) -> bool) -> Option<bool> {
        match (self.operand(whole)?, self.operand(part)?) {
            (Some(whole), Some(part)) => match (&*whole, &*part) {
                (Value::S(whole), Value::S(part)) => Some(test(whole, part)),
                _ => None,
            },
            _ => Some(false),
        }
    }

    /// Returns an operand. `Some(None)`: it is missing. None: the engine must look at it.
    #[allow(clippy::option_option, reason = "unknown is not missing")]
    fn operand(&self, operand: &Operand) -> Option<Option<Seen<'a>>> {
        let stored =
            |name: &str| self.item.get(name).map(|raw| Value::of(raw)).map_or(Some(None), |value| value.map(Some));
        match operand {
            Operand::Value(place) => self.values.get(*place).map(|(_, value)| Some(Seen::Given(value))),
            Operand::Attribute(name) => Some(stored(name)?.map(Seen::Stored)),
            Operand::Size(name) => {
                let count = stored(name)?.and_then(|value| value.count());
                Some(count.map(|count| Seen::Stored(Value::N(count.to_string().into()))))
            }
        }
    }

    /// Returns the updated item and its size. None: the engine must make them.
    fn updated(&self, update: &Update, size: i64) -> Option<(String, i64)> {
        let mut size = size;
        let size_of = |name: &str, text: &str| {
            let value: Value<'_> = serde_json::from_str(text).ok()?;
            i64::try_from(name.len() + value.size()?).ok()
        };
        let mut item: Vec<(Cow<'_, str>, Cow<'_, str>)> =
            self.item.0.iter().map(|(name, raw)| (Cow::Borrowed(&**name), Cow::Borrowed(raw.get()))).collect();
        for (name, source) in &update.set {
            let new = self.source(source)?;
            size += size_of(name, &new)?;
            match item.iter_mut().find(|(found, _)| found == name) {
                Some((_, old)) => {
                    size -= size_of(name, old)?;
                    *old = new;
                }
                None => item.push((Cow::Borrowed(name), new)),
            }
        }
        for name in &update.removed {
            if let Some(at) = item.iter().position(|(found, _)| found == name) {
                size -= size_of(name, &item[at].1)?;
                item.remove(at);
            }
        }
        let mut text = Vec::with_capacity(item.iter().map(|(name, value)| name.len() + value.len() + 4).sum());
        for (index, (name, value)) in item.iter().enumerate() {
            text.push(if index == 0 { b'{' } else { b',' });
            serde_json::to_writer(&mut text, name).ok()?;
            text.push(b':');
            text.extend_from_slice(value.as_bytes());
        }
        text.push(b'}');
        let text = String::from_utf8(text).ok().filter(|text| text.len() <= MAX_ITEM_BYTES)?;
        Some((text, size))
    }

    /// The text of what an update stores.
    fn source(&self, source: &Source) -> Option<Cow<'a, str>> {
        match source {
            Source::Attribute(name) => self.item.get(name).map(|raw| Cow::Borrowed(raw.get())),
            Source::Value(place) => self.values.get(*place).map(|(raw, _)| Cow::Borrowed(raw.get())),
            Source::IfNotExists(name, otherwise) => match self.item.get(name) {
                Some(raw) => Some(Cow::Borrowed(raw.get())),
                None => self.source(otherwise),
            },
            Source::Sum(left, right) => number(self.number(left)?.checked_add(self.number(right)?)?),
            Source::Difference(left, right) => number(self.number(left)?.checked_sub(self.number(right)?)?),
        }
    }

    fn number(&self, source: &Source) -> Option<i128> {
        match serde_json::from_str(&self.source(source)?).ok()? {
            Value::N(digits) => integer(&digits),
            _ => None,
        }
    }
}

/// A value of the item or of the request.
enum Seen<'a> {
    Stored(Value<'a>),
    Given(&'a Value<'a>),
}

impl<'a> std::ops::Deref for Seen<'a> {
    type Target = Value<'a>;

    fn deref(&self) -> &Value<'a> {
        match self {
            Self::Stored(value) => value,
            Self::Given(value) => value,
        }
    }
}

fn number(result: i128) -> Option<Cow<'static, str>> {
    let digits = result.to_string();
    integer(&digits).map(|_| format!("{{\"N\":\"{digits}\"}}").into())
}

/// An answer with the text of an item.
fn with_item(member: &str, item: Option<&String>) -> Vec<u8> {
    item.map_or_else(|| b"{}".to_vec(), |item| format!("{{\"{member}\":{item}}}").into_bytes())
}

/// DynamoDB's answer where the condition failed.
fn refusal(item: Option<&String>) -> Answer {
    let item = item.map_or_else(String::new, |item| format!(",\"Item\":{item}"));
    let kind = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException";
    let body = format!(r#"{{"__type":"{kind}","message":"The conditional request failed"{item}}}"#);
    Answer { status: 400, body: body.into_bytes() }
}
