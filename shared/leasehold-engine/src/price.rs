//! The price of a foreign request, known before it is carried out.
//!
//! Requests run one at a time, and the engine copies an attribute at each of its mentions. Within DynamoDB's limits,
//! one request can so take seconds, and a hundred of them in one transaction take minutes. A request of somebody else
//! therefore has a price: the time of its work in nanoseconds, estimated by the items that it reads and by what its
//! expressions mention. An item is looked at as the text that is stored, which takes a fiftieth of the engine's time to
//! parse it. Prices were measured with an optimised build on the machine of docs/performance.md.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::express::Text;
use crate::operations::{self, Answer};
use crate::statement::Statement;

/// Largest price: within the 100 ms that a heartbeat may take, with a list of thirty thousand texts and a simple
/// condition.
const BUDGET: u64 = 80_000_000;
/// The refusal of a higher price.
const TOO_DEAR: &str = "This request would hold up all others: its items are large or nested deeply, or its expressions \
     mention large attributes too often. Mention fewer or smaller attributes, nest them less deeply, divide the request, \
     or read smaller pages.";
/// Largest item, and largest page.
const MAX_ITEM_BYTES: u64 = 400 * 1024;
const MAX_PAGE_BYTES: u64 = 1024 * 1024;
/// The time to copy and compare one byte of the dearest kind of value: a map of short members, or a set of numbers.
const DEAREST_BYTE: u64 = 24;
/// The time to look for a path of a projection in an item, and to copy what is there.
const PATH: u64 = 200;
/// The longest statement of PartiQL that DynamoDB reads.
const MAX_STATEMENT_BYTES: usize = 8192;
/// The time to compare two members of a set.
const PER_PAIR: u64 = 8;
/// The items of a page: a megabyte of small ones.
const MAX_PAGE_ITEMS: u64 = 30_000;
/// The members with an expression that is evaluated for each item.
const EVALUATED: [&str; 3] = ["ConditionExpression", "UpdateExpression", "FilterExpression"];
/// The older members with conditions and changes by the name of their attribute.
const BY_ATTRIBUTE: [&str; 4] = ["Expected", "AttributeUpdates", "ScanFilter", "QueryFilter"];
/// The members of a page that do not change which items are read for it.
const AFTER_READING: [&str; 6] =
    ["FilterExpression", "ScanFilter", "QueryFilter", "ProjectionExpression", "AttributesToGet", "Select"];
/// The words of expressions that are no names.
const OPERATORS: [&str; 9] = ["and", "or", "not", "between", "in", "set", "remove", "add", "delete"];

/// The brackets around an item in a request, and in a request of many.
const IN_REQUEST: u64 = 1;
const IN_BATCH: u64 = 4;
/// The item that is not there.
const NOTHING: &str = "{}";

type Document = Map<String, Value>;

/// The refusal of a SELECT that may read more than one item: the engine does not divide it into pages of a megabyte.
const WITHOUT_KEY: &str = "A SELECT over this port names the whole key of one item of a table. Read several items with \
     Query or Scan.";

enum Refused {
    /// The price exceeds the budget.
    TooDear,
    WithoutKey,
}

/// The items of a page, as text.
#[derive(Default, Deserialize)]
struct Page<'a> {
    #[serde(borrow, rename = "Items", default)]
    items: Vec<&'a RawValue>,
}

/// The sum of a request's costs.
struct Bill<R, S> {
    left: u64,
    run: R,
    stored: S,
}

/// Returns DynamoDB's refusal of a request that costs too much. `run` carries out a read; `stored` finds the text of
/// the item with a table and a key, if there is one.
pub(crate) fn refusal(
    target: &str,
    body: &[u8],
    run: impl Fn(&str, &Value) -> Answer,
    stored: impl FnMut(&str, &Value) -> Option<String>,
) -> Option<Answer> {
    let mut bill = Bill { left: BUDGET, run, stored };
    let refused = bill.request(operations::operation_of(target), body).err()?;
    Some(operations::invalid(match refused {
        Refused::TooDear => TOO_DEAR,
        Refused::WithoutKey => WITHOUT_KEY,
    }))
}

impl<R: Fn(&str, &Value) -> Answer, S: FnMut(&str, &Value) -> Option<String>> Bill<R, S> {
    fn request(&mut self, operation: &str, body: &[u8]) -> Result<(), Refused> {
        let is_batch = operation.starts_with("Batch") || operation.contains("Transact");
        self.charge(carriage(body, if is_batch { IN_BATCH } else { IN_REQUEST }))?;
        let Ok(request) = serde_json::from_slice::<Document>(body) else { return Ok(()) };
        match operation {
            "PutItem" | "UpdateItem" | "DeleteItem" => self.write(&request),
            "TransactWriteItems" | "TransactGetItems" => {
                let entries = request.get("TransactItems").and_then(Value::as_array).into_iter().flatten();
                let mut actions =
                    entries.filter_map(Value::as_object).flat_map(Map::values).filter_map(Value::as_object);
                actions.try_for_each(|action| {
                    if operation == "TransactGetItems" {
                        self.charge(projected(action))?;
                        self.item(action).map(drop)
                    } else {
                        self.write(action)
                    }
                })
            }
            "BatchGetItem" => {
                let tables = request.get("RequestItems").and_then(Value::as_object).into_iter().flatten();
                let mut keys = tables.flat_map(|(table, wanted)| {
                    let keys = wanted.get("Keys").and_then(Value::as_array).into_iter().flatten();
                    let projected = wanted.as_object().map_or(0, projected);
                    keys.map(move |key| (projected, table, key))
                });
                keys.try_for_each(|(projected, table, key)| {
                    self.charge(projected)?;
                    self.found(table, key).map(drop)
                })
            }
            "ExecuteStatement" => self.statement(&request.into()),
            "BatchExecuteStatement" | "ExecuteTransaction" => {
                let member = if operation == "ExecuteTransaction" { "TransactStatements" } else { "Statements" };
                let mut statements = request.get(member).and_then(Value::as_array).into_iter().flatten();
                statements.try_for_each(|statement| self.statement(statement))
            }
            "Query" | "Scan"
                if Mentions::of(&request).are_light(MAX_PAGE_BYTES)
                    && projected(&request) * most_items(&request) <= BUDGET =>
            {
                Ok(())
            }
            "Query" | "Scan" => self.page(operation, &request),
            _ => Ok(()),
        }
    }

    fn charge(&mut self, cost: u64) -> Result<(), Refused> {
        self.left = self.left.checked_sub(cost).ok_or(Refused::TooDear)?;
        Ok(())
    }

    /// Evaluates nothing where the request has no expression: the item itself is then not looked at.
    fn write(&mut self, write: &Document) -> Result<(), Refused> {
        if !is_evaluated(write) {
            return Ok(());
        }
        let item = self.item(write)?;
        self.charge(Mentions::of(write).price(&item))
    }

    /// Finds the item that an action names.
    fn item(&mut self, action: &Document) -> Result<String, Refused> {
        let Some(table) = action.get("TableName").and_then(Value::as_str) else { return Ok(NOTHING.to_owned()) };
        let key = match (action.get("Key"), action.get("Item").and_then(Value::as_object)) {
            (Some(key), _) => key.clone(),
            (None, Some(item)) => {
                let names = self.key_names(table)?.into_iter();
                let part = |name: String| item.get(&name).cloned().map(|value| (name, value));
                names.filter_map(part).collect::<Document>().into()
            }
            (None, None) => return Ok(NOTHING.to_owned()),
        };
        self.found(table, &key)
    }

    fn key_names(&mut self, table: &str) -> Result<Vec<String>, Refused> {
        let answer = (self.run)("DescribeTable", &json!({ "TableName": table }));
        self.charge(carriage(&answer.body, IN_REQUEST))?;
        let described: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let names = described.pointer("/Table/KeySchema").and_then(Value::as_array).into_iter().flatten();
        Ok(names.filter_map(|part| part.get("AttributeName")?.as_str().map(str::to_owned)).collect())
    }

    /// A statement of PartiQL costs what it mentions in its one item.
    fn statement(&mut self, request: &Value) -> Result<(), Refused> {
        let Some(statement) = Statement::of(request) else { return Ok(()) };
        let table = statement.table();
        let names = table.map_or(Ok(Vec::new()), |table| self.key_names(table))?;
        let key = statement.key(names.iter().map(String::as_str)).filter(|key| !key.is_empty());
        let mentions = Mentions::in_statement(request);
        match (table, key) {
            (Some(table), Some(key)) => {
                let item = self.found(table, &key.into())?;
                self.charge(mentions.price(&item))
            }
            _ if statement.is_select() => Err(Refused::WithoutKey),
            _ if statement.is_insert() && statement.bytes() <= MAX_STATEMENT_BYTES => {
                // The members of a set that is written out are compared with each other.
                let written = statement.commas();
                self.charge(mentions.price(NOTHING) + written * written * PER_PAIR)
            }
            _ if mentions.are_light(MAX_ITEM_BYTES) => Ok(()),
            _ => Err(Refused::TooDear),
        }
    }

    /// Finds an item, at the price of the engine's work to read or to write it.
    fn found(&mut self, table: &str, key: &Value) -> Result<String, Refused> {
        let item = (self.stored)(table, key).unwrap_or_else(|| NOTHING.to_owned());
        self.charge(carriage(item.as_bytes(), 0))?;
        Ok(item)
    }

    /// Reads the page without its filter: these are the items that the filter is evaluated for. A page has at most a
    /// megabyte, so its reading has no price.
    fn page(&mut self, operation: &str, request: &Document) -> Result<(), Refused> {
        let mut unfiltered = request.clone();
        unfiltered.retain(|member, _| !AFTER_READING.contains(&member.as_str()));
        let key = request.get("KeyConditionExpression").and_then(Value::as_str).unwrap_or_default();
        for member in ["ExpressionAttributeNames", "ExpressionAttributeValues"] {
            if let Some(Value::Object(mut used)) = unfiltered.remove(member) {
                used.retain(|name, _| words(key).any(|word| word == name));
                if !used.is_empty() {
                    unfiltered.insert(member.to_owned(), used.into());
                }
            }
        }
        let answer = (self.run)(operation, &unfiltered.into());
        let page: Page<'_> = serde_json::from_slice(&answer.body).unwrap_or_default();
        let (mentions, projected) = (Mentions::of(request), projected(request));
        page.items.into_iter().try_for_each(|item| self.charge(mentions.price(item.get()) + projected))
    }
}

/// The time to make the answer of one item by a projection.
fn projected(request: &Document) -> u64 {
    let paths = request.get("ProjectionExpression").and_then(Value::as_str).map_or(0, |text| text.split(',').count());
    paths as u64 * PATH
}

/// The items that a page has at most.
fn most_items(request: &Document) -> u64 {
    request.get("Limit").and_then(Value::as_u64).map_or(MAX_PAGE_ITEMS, |limit| limit.min(MAX_PAGE_ITEMS))
}

fn is_evaluated(request: &Document) -> bool {
    EVALUATED.iter().chain(&BY_ATTRIBUTE).any(|member| request.contains_key(*member))
}

/// The time to read a document from its text and to write it: a value is an object, with its kind as a name. The engine
/// parses a value anew at each level of lists and maps around it. `outer` are the brackets around an item.
fn carriage(document: &[u8], outer: u64) -> u64 {
    let (mut depth, mut is_text, mut is_escaped, mut time) = (0_u64, false, false, 0);
    for byte in document {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => depth += 1,
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        // An item and its attribute have a bracket each; each list or map in it has two, its own and its value's.
        let levels = (depth.saturating_sub(outer + 2) / 2).max(1);
        time += levels
            * match byte {
                b'{' if !is_text => 1500,
                b'"' => 250,
                _ => 5,
            };
    }
    time
}

/// The mentions of names and values in the expressions of one request.
struct Mentions<'a> {
    /// How often each attribute is mentioned.
    attributes: BTreeMap<&'a str, u64>,
    /// The values that the request contains, with the number of their mentions.
    given: Vec<(Size, u64)>,
    /// The number of searches in values.
    searches: u64,
    /// The number of set members that are added or deleted.
    changed: u64,
    /// The levels of the deepest place that an update names, below its attribute.
    depth: u64,
}

impl<'a> Mentions<'a> {
    fn of(request: &'a Document) -> Self {
        let find = |member: &str, name: &str| request.get(member).and_then(|named| named.get(name));
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for word in EVALUATED.iter().filter_map(|member| request.get(*member)?.as_str()).flat_map(words) {
            *counts.entry(word).or_default() += 1;
        }
        let mut attributes: BTreeMap<&str, u64> = BTreeMap::new();
        let named = |word| find("ExpressionAttributeNames", word).and_then(Value::as_str).unwrap_or(word);
        let older = BY_ATTRIBUTE.iter().filter_map(|member| request.get(*member)?.as_object()).flat_map(Map::keys);
        let mentioned = counts.iter().map(|(word, count)| (named(*word), *count));
        for (name, count) in mentioned.chain(older.map(|name| (name.as_str(), 1))) {
            *attributes.entry(name).or_default() += count;
        }
        let given = counts.iter().filter_map(|(word, count)| Some((find("ExpressionAttributeValues", word)?, *count)));
        let given: Vec<_> = given.collect();
        let updates = request.get("AttributeUpdates").and_then(Value::as_object).into_iter().flat_map(Map::values);
        let operands = given.iter().map(|(value, _)| *value).filter(|_| request.contains_key("UpdateExpression"));
        let operands = operands.chain(updates.filter_map(|update| update.get("Value")));
        let changed = operands.map(|value| set(value).count() as u64).sum();
        let depth = request.get("UpdateExpression").and_then(Value::as_str).map(deepest).unwrap_or_default();
        let given = given.into_iter().map(|(value, count)| (Size::of(value, depth), count)).collect();
        Self { attributes, given, searches: counts.get("contains").copied().unwrap_or_default(), changed, depth }
    }

    /// The mentions in a statement. Each of its parameters stands for one.
    fn in_statement(request: &'a Value) -> Self {
        let text = request.get("Statement").and_then(Value::as_str).unwrap_or_default();
        let mut attributes: BTreeMap<&str, u64> = BTreeMap::new();
        words(text).for_each(|word| *attributes.entry(word).or_default() += 1);
        let count = |function: &str| attributes.get(function).copied().unwrap_or_default();
        let (searches, edits) = (count("contains"), count("set_add") + count("set_delete"));
        let parameters = request.get("Parameters").and_then(Value::as_array).into_iter().flatten();
        let given: Vec<_> = parameters.collect();
        let members: u64 = given.iter().map(|value| set(value).count() as u64).sum();
        // A set may also be written out in the statement.
        let written = text.matches(',').count() as u64;
        let changed = if edits > 0 { members + edits * (1 + written) } else { 0 };
        let depth = deepest(text);
        let given = given.into_iter().map(|value| (Size::of(value, depth), 1)).collect();
        Self { attributes, given, searches, changed, depth }
    }

    /// Returns whether the expressions are cheap for the dearest values that have room in so many bytes.
    fn are_light(&self, bytes: u64) -> bool {
        let attributes = self.attributes.values().sum::<u64>() * bytes * DEAREST_BYTE;
        let given: u64 = self.given.iter().map(|(size, count)| count * size.weight).sum();
        self.searches + self.changed == 0 && attributes + given <= BUDGET
    }

    /// The time to evaluate the expressions for one item.
    fn price(&self, item: &str) -> u64 {
        let (stored, given) = (self.stored(item), &self.given);
        let longest = |sizes: &[(Size, u64)]| sizes.iter().map(|(size, _)| size.bytes).max().unwrap_or_default();
        // The engine compares the sought bytes at each place of the stored ones.
        let search = self.searches * longest(&stored) * longest(given).max(longest(&stored)) / 32;
        // It compares each member of a set that is added or deleted with each member of the stored one.
        let largest = stored.iter().map(|(size, _)| size.pass).max().unwrap_or_default();
        let values = stored.iter().chain(given);
        values.map(|(size, count)| count * size.weight + size.moved).sum::<u64>() + search + self.changed * largest
    }

    /// The mentioned attributes of an item.
    fn stored(&self, item: &str) -> Vec<(Size, u64)> {
        /// Keeps what is mentioned, and reads over everything else.
        struct Reader<'m, 'a>(&'m Mentions<'a>);
        impl<'de> Visitor<'de> for Reader<'_, '_> {
            type Value = Vec<(Size, u64)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an item")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut found = Vec::new();
                while let Some(Text(name)) = map.next_key()? {
                    let Some(count) = self.0.attributes.get(&*name) else {
                        let IgnoredAny = map.next_value()?;
                        continue;
                    };
                    let value: &RawValue = map.next_value()?;
                    let size: Size = serde_json::from_str(value.get()).unwrap_or_default();
                    found.push((size.moved_down(value.get(), self.0.depth), *count));
                }
                Ok(found)
            }
        }
        let mut reader = serde_json::Deserializer::from_str(item);
        reader.deserialize_map(Reader(self)).unwrap_or_default()
    }
}

/// What the work with a value depends on.
#[derive(Clone, Copy, Default)]
struct Size {
    /// The time to copy and compare it.
    weight: u64,
    /// The time to compare one member with each of the set.
    pass: u64,
    /// The length of binary data.
    bytes: u64,
    /// The time to read it at the levels below which an update may put it.
    moved: u64,
}

impl Size {
    fn of(value: &Value, depth: u64) -> Self {
        let size = Self::deserialize(value).unwrap_or_default();
        if depth == 0 { size } else { size.moved_down(&value.to_string(), depth) }
    }

    fn moved_down(self, text: &str, depth: u64) -> Self {
        if depth == 0 { self } else { Self { moved: depth * carriage(text.as_bytes(), 0), ..self } }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its kind")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Size, A::Error> {
                let mut size = Size::default();
                while let Some(Text(kind)) = map.next_key()? {
                    match &*kind {
                        "S" => size.weight += 50 + map.next_value::<Text<'_>>()?.length() / 4,
                        "B" => {
                            size.bytes = map.next_value::<Text<'_>>()?.length();
                            size.weight += 50 + size.bytes / 4;
                        }
                        "N" => size.weight += number(&map.next_value::<Text<'_>>()?),
                        "SS" | "BS" | "NS" => {
                            let members: Vec<Text<'_>> = map.next_value()?;
                            size.pass = members.iter().map(|member| 2 + member.length() / 16).sum();
                            size.weight += match &*kind {
                                "NS" => members.len() as u64 * 120,
                                _ => members.iter().map(|member| 30 + member.length() / 8).sum(),
                            };
                        }
                        "L" | "M" => size.weight += map.next_value::<Members>()?.0,
                        _ => {
                            let IgnoredAny = map.next_value()?;
                        }
                    }
                }
                Ok(size)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// The time to copy and compare the members of a list or a map.
struct Members(u64);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the members of a list or a map")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut members: A) -> Result<Members, A::Error> {
                let mut weight = 0;
                while let Some(member) = members.next_element::<Size>()? {
                    weight += 15 + member.weight;
                }
                Ok(Members(weight))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Members, A::Error> {
                let mut weight = 0;
                while let Some((name, member)) = members.next_entry::<Text<'_>, Size>()? {
                    weight += 100 + name.length() / 4 + member.weight;
                }
                Ok(Members(weight))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The time to compare a number.
fn number(Text(digits): &Text<'_>) -> u64 {
    if digits.len() > 15 || digits.contains(['e', 'E']) { 300 } else { 40 }
}

/// The levels of the deepest path in an expression.
fn deepest(expression: &str) -> u64 {
    let paths = expression.split([' ', ',', '(', ')', '=', '+', '\n', '\t', '\r']);
    paths.map(|path| path.matches(['.', '[']).count() as u64).max().unwrap_or_default()
}

/// The members of a set.
fn set(value: &Value) -> impl Iterator<Item = &Value> {
    ["SS", "NS", "BS"].into_iter().filter_map(|kind| value.get(kind)?.as_array()).flatten()
}

/// The names, placeholders and functions of an expression. A path counts by its first part: a part of an attribute
/// costs no more than the whole.
fn words(expression: &str) -> impl Iterator<Item = &str> {
    let is_part = |character: char| character.is_alphanumeric() || "_#:.[]-".contains(character);
    let words = expression.split(move |character| !is_part(character));
    let words = words.map(|path| path.split(['.', '[']).next().unwrap_or_default());
    words.filter(|word| !word.is_empty() && !OPERATORS.iter().any(|operator| operator.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Whether a request is refused where this item is under each key.
    fn is_refused(operation: &str, request: &Value, item: Value) -> bool {
        let target = format!("DynamoDB_20120810.{operation}");
        let page = json!({ "Items": [item, item] });
        let run = |operation: &str, _: &Value| {
            let document = match operation {
                "DescribeTable" => &json!({ "Table": { "KeySchema": [{ "AttributeName": "id" }] } }),
                _ => &page,
            };
            Answer { status: 200, body: document.to_string().into_bytes() }
        };
        let stored = move |_: &str, _: &Value| Some(item.to_string());
        refusal(&target, request.to_string().as_bytes(), run, stored).is_some()
    }

    fn nothing(_: &str, _: &Value) -> Option<String> {
        None
    }

    fn repeated(part: &str, times: usize) -> String {
        vec![part; times].join(" OR ")
    }

    fn values(kind: &str, count: usize) -> Value {
        json!({ kind: (0..count).map(|number| format!("{number:05}")).collect::<Vec<_>>() })
    }

    /// Nearly the largest value of each kind that the engine reads and writes in time.
    fn largest() -> [(&'static str, Value); 7] {
        let list = |element: Value, count: usize| json!({ "L": vec![element; count] });
        let map: Document = (0..25_000).map(|number| (format!("{number:x}"), json!({ "NULL": true }))).collect();
        [
            ("text", json!({ "S": "x".repeat(390_000) })),
            ("texts", values("SS", 70_000)),
            ("numbers", values("NS", 70_000)),
            ("a list", list(json!({ "BOOL": true }), 30_000)),
            ("long numbers", list(json!({ "N": "1e30" }), 14_000)),
            ("lists", list(json!({ "L": [] }), 30_000)),
            ("a map", json!({ "M": map })),
        ]
    }

    #[test]
    fn condition_is_refused_when_it_mentions_large_values_often() {
        for (name, value) in largest() {
            let update = |condition| json!({ "TableName": "t", "Key": {}, "ConditionExpression": condition });
            let item = json!({ "a": value });
            assert!(!is_refused("UpdateItem", &update(repeated("a <> :v", 2)), item.clone()), "{name}");
            let is_dear = name != "text";
            assert_eq!(is_refused("UpdateItem", &update(repeated("a <> a", 150)), item.clone()), is_dear, "{name}");
            let mut aliased = update(repeated("#a.b <> #a.c", 150));
            aliased["ExpressionAttributeNames"] = json!({ "#a": "a" });
            assert_eq!(is_refused("DeleteItem", &aliased, item), is_dear, "{name}, by another name");
        }
    }

    #[test]
    fn each_way_to_much_work_is_refused_and_its_small_form_is_not() {
        let numbers = |count| json!({ "id": { "S": "k" }, "a": values("NS", count) });
        let bytes = |count| json!({ "a": { "B": "A".repeat(count) } });
        let texts = |count| json!({ "a": values("SS", count) });
        let often = repeated("a <> a", 100);
        let action = json!({ "TableName": "t", "Key": {}, "ConditionExpression": often });
        let put = json!({ "TableName": "t", "Item": { "id": { "S": "k" } }, "ConditionExpression": often });
        let search = json!({ "TableName": "t", "Key": {}, "ConditionExpression": "contains(a, :v)",
            "ExpressionAttributeValues": { ":v": { "B": "A".repeat(100_000) } } });
        let add = json!({ "TableName": "t", "Key": {}, "UpdateExpression": "ADD a :v",
            "ExpressionAttributeValues": { ":v": values("SS", 5_000) } });
        let older = json!({ "TableName": "t", "Key": {},
            "AttributeUpdates": { "a": { "Action": "DELETE", "Value": values("SS", 5_000) } } });
        let given = json!({ "TableName": "t", "Key": {}, "ConditionExpression": format!("a IN ({})", [":v"; 100].join(", ")),
            "ExpressionAttributeValues": { ":v": values("NS", 60_000) } });
        let once = json!({ "TableName": "t", "Key": {}, "ConditionExpression": "a = :v",
            "ExpressionAttributeValues": { ":v": values("NS", 1_300_000) } });
        let transaction = |entry: &str, count| json!({ "TransactItems": vec![json!({ entry: action }); count] });
        let gets = json!({ "TransactItems": vec![json!({ "Get": { "TableName": "t", "Key": {} } }); 100] });
        let keys = json!({ "RequestItems": { "t": { "Keys": vec![json!({}); 100] } } });
        let page = json!({ "TableName": "t", "FilterExpression": often });
        let statement = |text: &str| json!({ "Statement": text, "Parameters": [{ "S": "k" }] });
        let and = vec!["a <> a"; 100].join(" AND ");
        let update = format!("UPDATE t SET b = 1 WHERE id = ? AND {and}");
        let select = format!("SELECT * FROM t WHERE id = 'k' AND {and}");
        let added = json!({ "Statement": "UPDATE t SET a = set_add(a, ?) WHERE id = 'k'",
            "Parameters": [values("SS", 5_000)] });
        for (operation, request, dear, cheap) in [
            ("UpdateItem", &action, numbers(50_000), numbers(1_000)),
            ("PutItem", &put, numbers(50_000), numbers(1_000)),
            ("UpdateItem", &search, bytes(400_000), bytes(2_000)),
            ("UpdateItem", &add, texts(50_000), texts(1_000)),
            ("UpdateItem", &older, texts(50_000), texts(1_000)),
            ("DeleteItem", &given, numbers(1), numbers(0)),
            ("DeleteItem", &once, numbers(1), numbers(0)),
            ("TransactWriteItems", &transaction("ConditionCheck", 100), numbers(1_000), numbers(10)),
            ("TransactWriteItems", &transaction("Update", 100), numbers(1_000), numbers(10)),
            ("TransactGetItems", &gets, texts(20_000), texts(100)),
            ("BatchGetItem", &keys, texts(20_000), texts(100)),
            ("Scan", &page, numbers(20_000), numbers(1_000)),
            ("Query", &page, numbers(20_000), numbers(1_000)),
            ("ExecuteStatement", &statement(&update), numbers(50_000), numbers(1_000)),
            ("ExecuteStatement", &statement(&select), numbers(50_000), numbers(1_000)),
            (
                "BatchExecuteStatement",
                &json!({ "Statements": vec![statement(&update); 25] }),
                numbers(2_000),
                numbers(20),
            ),
            (
                "ExecuteTransaction",
                &json!({ "TransactStatements": vec![statement(&update); 100] }),
                numbers(500),
                numbers(2),
            ),
            ("ExecuteStatement", &added, texts(50_000), texts(1_000)),
        ] {
            assert!(is_refused(operation, request, dear), "{operation} {:.120}", request.to_string());
            if ![&given, &once].contains(&request) {
                assert!(!is_refused(operation, request, cheap), "{operation} {:.120}", request.to_string());
            }
        }
    }

    #[test]
    fn projection_is_refused_when_it_names_many_paths_of_many_items() {
        let paths = |count| (0..count).map(|number| format!("p{number}")).collect::<Vec<_>>().join(",");
        let page = |_: &str, _: &Value| {
            let items = vec![json!({ "id": { "S": "k" } }); 1000];
            Answer { status: 200, body: json!({ "Items": items }).to_string().into_bytes() }
        };
        for (count, is_dear) in [(1, false), (20, false), (300, false), (1000, true)] {
            let scan = json!({ "TableName": "t", "ProjectionExpression": paths(count) });
            assert_eq!(refusal("D.Scan", scan.to_string().as_bytes(), page, nothing).is_some(), is_dear, "{count}");
        }
    }

    #[test]
    fn select_is_refused_when_it_may_read_several_items() {
        for (text, is_dear) in [
            ("SELECT * FROM t", true),
            ("SELECT * FROM t WHERE a = 1", true),
            ("SELECT * FROM t WHERE id = 'k' OR a = 1", true),
            ("SELECT * FROM \"t\".\"i\" WHERE id = 'k'", true),
            ("SELECT * FROM t WHERE id = 'k'", false),
            ("DELETE FROM t WHERE a = 1", false),
            ("INSERT INTO t VALUE {'id': 'k'}", false),
            ("INSERT INTO t VALUE {'id': 'k', 'a': 1, 'b': {'c': [1, 2, 3]}, 'd': <<1, 2>>, 'e': ?}", false),
            (&format!("INSERT INTO t VALUE {{'id': 'k', 'a': '{}'}}", "a".repeat(8000)), false),
            (&format!("INSERT INTO t VALUE {{'id': 'k', 'a': '{}'}}", "a".repeat(8192)), true),
            (&format!("INSERT INTO t VALUE {{'id': 'k', 'a': <<{}1>>}}", "1,".repeat(4000)), true),
        ] {
            let request = json!({ "Statement": text });
            assert_eq!(is_refused("ExecuteStatement", &request, json!({ "id": { "S": "k" } })), is_dear, "{text}");
            let batch = json!({ "Statements": [request] });
            assert_eq!(is_refused("BatchExecuteStatement", &batch, json!({ "id": { "S": "k" } })), is_dear, "{text}");
        }
    }

    #[test]
    fn batch_is_refused_by_its_size_alone() {
        let batch = |count| json!({ "RequestItems": { "t": vec![values("SS", 10_000); count] } });
        assert!(is_refused("BatchWriteItem", &batch(100), json!({})));
        assert!(!is_refused("BatchWriteItem", &batch(10), json!({})));
    }

    /// The engine parses each value anew at each level around it, so that a deep item takes thirty times as long.
    #[test]
    fn deep_value_is_refused_where_a_flat_one_is_not() {
        let nested = |levels: u64, members: usize| {
            (1..levels).fold(json!({ "L": vec![json!({ "BOOL": true }); members] }), |inner, _| json!({ "L": [inner] }))
        };
        let put = |value: Value| json!({ "TableName": "t", "Item": { "id": { "S": "k" }, "a": value } });
        let batch = |value: Value| json!({ "RequestItems": { "t": [{ "PutRequest": put(value) }] } });
        let transaction = |value: Value| json!({ "TransactItems": [{ "Put": put(value) }] });
        let set = |value: Value| {
            json!({ "TableName": "t", "Key": {}, "UpdateExpression": "SET a = :v",
                "ExpressionAttributeValues": { ":v": value } })
        };
        for (levels, members, is_dear) in
            [(1, 30_000, false), (1, 190_000, true), (2, 30_000, true), (30, 30_000, true), (30, 1_000, false)]
        {
            let value = || nested(levels, members);
            assert_eq!(is_refused("PutItem", &put(value()), json!({})), is_dear, "{levels} {members}");
            assert_eq!(is_refused("BatchWriteItem", &batch(value()), json!({})), is_dear, "{levels} {members}");
            assert_eq!(
                is_refused("TransactWriteItems", &transaction(value()), json!({})),
                is_dear,
                "{levels} {members}"
            );
            assert_eq!(is_refused("UpdateItem", &set(value()), json!({})), is_dear, "{levels} {members}");
            let item = json!({ "a": value() });
            assert_eq!(is_refused("UpdateItem", &set(json!({ "N": "1" })), item), is_dear, "{levels} {members}");
        }
        let moved = |path: &str| json!({ "TableName": "t", "Key": {}, "UpdateExpression": format!("SET {path} = a") });
        let statement = |path: &str| json!({ "Statement": format!("UPDATE t SET {path} = a WHERE id = 'k'") });
        let deep = ["m"; 20].join(".");
        for (path, is_dear) in [("b", false), (&*deep, true), ("m[0][0][0][0]", true), ("m.x", false)] {
            let item = json!({ "a": nested(1, 10_000) });
            assert_eq!(is_refused("UpdateItem", &moved(path), item.clone()), is_dear, "{path}");
            assert_eq!(is_refused("ExecuteStatement", &statement(path), item), is_dear, "{path}");
        }
    }

    #[test]
    fn no_more_items_are_read_than_the_budget_allows() {
        let mut reads = Vec::new();
        let item = json!({ "a": values("SS", 70_000) }).to_string();
        let stored = |_: &str, _: &Value| {
            reads.push(carriage(item.as_bytes(), 0));
            Some(item.clone())
        };
        let run = |_: &str, _: &Value| -> Answer { panic!("the item is not parsed") };
        let check = json!({ "ConditionCheck": { "TableName": "t", "Key": {}, "ConditionExpression": "a = b" } });
        let transaction = json!({ "TransactItems": vec![check; 100] });
        assert!(refusal("D.TransactWriteItems", transaction.to_string().as_bytes(), run, stored).is_some());
        assert!(reads[..reads.len() - 1].iter().sum::<u64>() <= BUDGET, "{} reads", reads.len());
    }

    #[test]
    fn page_is_read_without_its_filter() {
        let mut request = json!({ "TableName": "t", "KeyConditionExpression": "#k = :k",
            "FilterExpression": repeated("#a <> :v", 7), "ProjectionExpression": "#b", "Limit": 7,
            "ExpressionAttributeNames": { "#k": "id", "#a": "a", "#b": "b" },
            "ExpressionAttributeValues": { ":k": { "S": "k" }, ":v": { "S": "v" } } });
        let asked = RefCell::new(Value::Null);
        let run = |_: &str, request: &Value| {
            asked.replace(request.clone());
            Answer { status: 400, body: b"not JSON".to_vec() }
        };
        assert!(refusal("D.Query", request.to_string().as_bytes(), run, nothing).is_none());
        let read = asked.replace(Value::Null);
        let expected = json!({ "TableName": "t", "KeyConditionExpression": "#k = :k", "Limit": 7,
            "ExpressionAttributeNames": { "#k": "id" }, "ExpressionAttributeValues": { ":k": { "S": "k" } } });
        assert_eq!(read, expected);
        request["FilterExpression"] = json!("#a <> :v");
        assert!(refusal("D.Query", request.to_string().as_bytes(), run, nothing).is_none());
        assert_eq!(asked.into_inner(), Value::Null, "a filter with few mentions is cheap for each page");
    }
}
