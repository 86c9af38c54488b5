//! Table names, exact to the letter.
//!
//! DynamoDB distinguishes `Orders` from `orders`; SQLite, in which the engine keeps a table of that name, does not. A
//! table gets another stored name where its own is taken in another case, or reserved by SQLite or the engine. Its
//! requests and answers are translated. The requests of other tables are not inspected.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock};

use dynoxide::Database;
use dynoxide::actions::delete_table::DeleteTableRequest;
use dynoxide::actions::list_tables::ListTablesRequest;
use serde_json::{Map, Value};

use crate::operations::{self, Answer};

/// The prefix of every stored name that differs from the table's own.
const PREFIX: &str = "exact.";

/// The prefixes of names that belong to SQLite and to the engine.
const RESERVED: [&str; 3] = [PREFIX, "sqlite_", "_"];

/// The members that contain the name or the ARN of a table.
const MEMBERS: [&str; 10] = [
    "TableName",
    "TableArn",
    "ResourceArn",
    "StreamArn",
    "LatestStreamArn",
    "IndexArn",
    "ExclusiveStartTableName",
    "LastEvaluatedTableName",
    "ExclusiveStartStreamArn",
    "LastEvaluatedStreamArn",
];

/// The members of a request or an answer whose own members are named after tables.
const BY_TABLE: [&str; 5] =
    ["RequestItems", "Responses", "UnprocessedItems", "UnprocessedKeys", "ItemCollectionMetrics"];

/// The tables whose stored name differs from their own.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The stored names, by the tables' own names.
    stored: RwLock<BTreeMap<String, String>>,
    /// Held while the set of tables changes.
    changing: Mutex<()>,
}

impl Names {
    /// Finds the tables of an existing database whose stored name differs from their own.
    pub(crate) fn load(database: &Database) -> dynoxide::Result<Self> {
        let stored = tables(database)?.into_iter().filter_map(|stored| Some((decode(&stored)?, stored))).collect();
        Ok(Self { stored: RwLock::new(stored), changing: Mutex::default() })
    }

    /// The name under which a table is stored.
    pub(crate) fn stored(&self, name: &str) -> String {
        self.read().get(name).cloned().unwrap_or_else(|| name.to_owned())
    }

    /// Runs the operation that `target` names, with the table names of the request translated.
    pub(crate) fn run(&self, database: &Database, target: &str, body: &[u8]) -> Answer {
        match target.rsplit('.').next().unwrap_or_default() {
            "CreateTable" => self.create(database, target, body),
            "DeleteTable" => self.delete(database, target, body),
            _ => self.translated(database, target, body),
        }
    }

    fn create(&self, database: &Database, target: &str, body: &[u8]) -> Answer {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(name), Ok(tables)) = (table_name(body), tables(database)) else {
            return operations::run(database, target, body);
        };
        let is_new = !tables.contains(&name) && !self.read().contains_key(&name);
        let is_aliased = is_new && !is_usable(&name, &tables);
        if is_aliased {
            self.write().insert(name.clone(), encode(&name));
        }
        let answer = self.translated(database, target, body);
        if is_new && answer.status != 200 {
            self.forget(database, &name);
        }
        answer
    }

    fn delete(&self, database: &Database, target: &str, body: &[u8]) -> Answer {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = self.translated(database, target, body);
        if let (200, Some(name)) = (answer.status, table_name(body)) {
            self.write().remove(&name);
        }
        answer
    }

    /// Removes the remains of a failed CreateTable: the engine registers a table before it creates it.
    fn forget(&self, database: &Database, name: &str) {
        let stored = self.write().remove(name).unwrap_or_else(|| name.to_owned());
        if database.get_table_metadata(&stored).is_ok_and(|registered| registered.is_some()) {
            let removed = database.delete_table(DeleteTableRequest { table_name: stored.clone() });
            if let Err(error) = removed {
                tracing::warn!(table = stored, %error, "a table that could not be created is still registered");
            }
        }
    }

    fn translated(&self, database: &Database, target: &str, body: &[u8]) -> Answer {
        let stored = self.read();
        if stored.is_empty() {
            return operations::run(database, target, body);
        }
        let Ok(mut request) = serde_json::from_slice::<Value>(body) else {
            return operations::run(database, target, body);
        };
        let to_stored = |name: &str| match stored.get(name) {
            Some(stored) => Some(stored.clone()),
            // The stored name of one table is not the name of another.
            None => is_stored(name).then(|| encode(name)),
        };
        rename(&mut request, &to_stored);
        for statement in statements(&mut request) {
            *statement = rename_in_statement(statement, &to_stored);
        }
        let mut answer = operations::run(database, target, request.to_string().as_bytes());
        if let Ok(mut document) = serde_json::from_slice::<Value>(&answer.body) {
            rename(&mut document, &decode);
            if let Some(Value::String(message)) = document.get_mut("message") {
                for (own, stored) in &*stored {
                    *message = message.replace(stored, own);
                }
            }
            answer.body = document.to_string().into_bytes();
        }
        answer
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, String>> {
        self.stored.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, String>> {
        self.stored.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stored names of all tables.
fn tables(database: &Database) -> dynoxide::Result<Vec<String>> {
    let mut tables = Vec::new();
    let mut after = None;
    loop {
        let request = ListTablesRequest { exclusive_start_table_name: after, ..Default::default() };
        let page = database.list_tables(request)?;
        tables.extend(page.table_names);
        after = page.last_evaluated_table_name;
        if after.is_none() {
            return Ok(tables);
        }
    }
}

fn table_name(body: &[u8]) -> Option<String> {
    let request: Value = serde_json::from_slice(body).ok()?;
    let name = request.get("TableName")?.as_str()?;
    Some(in_arn(name).map_or(name, |(_, name, _)| name).to_owned())
}

/// Returns whether a new table can be stored under its own name.
fn is_usable(name: &str, tables: &[String]) -> bool {
    let lower = name.to_ascii_lowercase();
    !RESERVED.iter().any(|reserved| lower.starts_with(reserved))
        && !tables.iter().any(|other| other.eq_ignore_ascii_case(name))
}

/// Whether a name is one of those that stand for others in the database.
pub(crate) fn is_stored(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Returns a lower-case name that stands for this one and for no other.
fn encode(name: &str) -> String {
    let mut stored = PREFIX.to_owned();
    for character in name.chars() {
        if character == '_' || character.is_ascii_uppercase() {
            stored.push('_');
        }
        stored.push(character.to_ascii_lowercase());
    }
    stored
}

/// Returns the own name of a table with this stored name, if the two differ.
pub(crate) fn decode(stored: &str) -> Option<String> {
    let mut name = String::new();
    let mut characters = stored.strip_prefix(PREFIX)?.chars();
    while let Some(character) = characters.next() {
        name.push(if character == '_' { characters.next()?.to_ascii_uppercase() } else { character });
    }
    Some(name)
}

/// Renames the tables wherever a request or an answer names them. An attribute with such a name contains an object,
/// never a text.
fn rename(document: &mut Value, new_name: &impl Fn(&str) -> Option<String>) {
    if let Value::Object(members) = document {
        for member in BY_TABLE {
            if let Some(Value::Object(tables)) = members.get_mut(member) {
                let renamed = std::mem::take(tables).into_iter();
                *tables = renamed.map(|(name, value)| (new_name(&name).unwrap_or(name), value)).collect::<Map<_, _>>();
            }
        }
    }
    rename_members(document, new_name);
}

fn rename_members(value: &mut Value, new_name: &impl Fn(&str) -> Option<String>) {
    match value {
        Value::Object(members) => {
            for (member, value) in members {
                match value {
                    Value::String(text) if MEMBERS.contains(&member.as_str()) => rename_text(text, new_name),
                    Value::Array(texts) if member == "TableNames" => {
                        for text in texts {
                            if let Value::String(text) = text {
                                rename_text(text, new_name);
                            }
                        }
                    }
                    _ => rename_members(value, new_name),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rename_members(value, new_name)),
        _ => {}
    }
}

fn rename_text(text: &mut String, new_name: &impl Fn(&str) -> Option<String>) {
    let renamed = match in_arn(text) {
        Some((before, name, after)) => new_name(name).map(|name| format!("{before}{name}{after}")),
        None => new_name(text),
    };
    if let Some(renamed) = renamed {
        *text = renamed;
    }
}

/// Returns the name of the table in an ARN, and the text before and after it.
fn in_arn(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.starts_with("arn:").then(|| text.find(":table/"))?? + ":table/".len();
    let end = text[start..].find('/').map_or(text.len(), |length| start + length);
    Some((&text[..start], &text[start..end], &text[end..]))
}

/// The PartiQL statements of a request.
fn statements(request: &mut Value) -> impl Iterator<Item = &mut String> {
    let mut found = Vec::new();
    if let Value::Object(members) = request {
        for (member, value) in members {
            match value {
                Value::String(text) if member == "Statement" => found.push(text),
                Value::Array(entries) if member == "Statements" || member == "TransactStatements" => {
                    found.extend(entries.iter_mut().filter_map(|entry| match entry.get_mut("Statement") {
                        Some(Value::String(text)) => Some(text),
                        _ => None,
                    }));
                }
                _ => {}
            }
        }
    }
    found.into_iter()
}

/// Renames the table after `FROM`, `INTO` or `UPDATE`, where its name is in quotation marks.
fn rename_in_statement(statement: &str, new_name: &impl Fn(&str) -> Option<String>) -> String {
    let mut renamed = String::new();
    let mut rest = statement;
    while let Some(start) = rest.find(['"', '\'']) {
        let mark = &rest[start..=start];
        let Some(length) = rest[start + 1..].find(mark) else { break };
        let (before, quoted, after) =
            (&rest[..start], &rest[start + 1..start + 1 + length], &rest[start + length + 2..]);
        let keyword = before.split_whitespace().next_back().unwrap_or_default();
        let names_table =
            mark == "\"" && ["FROM", "INTO", "UPDATE"].iter().any(|known| known.eq_ignore_ascii_case(keyword));
        let name = names_table.then(|| new_name(quoted)).flatten().map_or(Cow::Borrowed(quoted), Cow::Owned);
        renamed.extend([before, mark, &name, mark]);
        rest = after;
    }
    renamed.push_str(rest);
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_stored_name_of_its_own() {
        for name in ["LeaseHold", "leasehold", "lease_hold", "Lease_Hold", "_tables", "exact._a", "A.b-C", "__A_"] {
            let stored = encode(name);
            assert_eq!(decode(&stored).as_deref(), Some(name));
            assert_eq!(stored, stored.to_ascii_lowercase());
        }
        assert_eq!(decode("leasehold"), None);
    }

    #[test]
    fn statements_are_renamed_where_they_name_a_table() {
        let new_name = |name: &str| (name == "A").then(|| "b".to_owned());
        for (statement, expected) in [
            (
                r#"SELECT "A" FROM "A" WHERE x = '"A"' AND "A" = 'from "A"'"#,
                r#"SELECT "A" FROM "b" WHERE x = '"A"' AND "A" = 'from "A"'"#,
            ),
            (r#"insert into "A" VALUE {'A': 'it''s "A"'}"#, r#"insert into "b" VALUE {'A': 'it''s "A"'}"#),
            (r#"UPDATE "A" SET a = 1"#, r#"UPDATE "b" SET a = 1"#),
            (r#"SELECT * FROM "A"."index""#, r#"SELECT * FROM "b"."index""#),
            (r#"SELECT * FROM "open"#, r#"SELECT * FROM "open"#),
        ] {
            assert_eq!(rename_in_statement(statement, &new_name), expected);
        }
    }
}
