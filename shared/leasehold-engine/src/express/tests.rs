//! The short way and the engine must never differ: random requests, on two databases.

use dynoxide::Database;
use serde_json::{Map, Value, json};

use super::{Express, Left};
use crate::operations::{self, Answer};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "#e"];

/// A database with a table, and the short way beside it.
struct Pair {
    database: Database,
    express: Express,
    short: u32,
}

fn open(folder: &std::path::Path, name: &str) -> Pair {
    let path = folder.join(name);
    let database = Database::new(path.to_str().expect("text")).expect("opened");
    let create = json!({
        "TableName": "rows", "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }],
        "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }],
    });
    let created = document(&run(&database, "CreateTable", &create));
    assert_eq!(created.0, 200, "{}", created.1);
    crate::integrity::protect(&path).expect("protected");
    let express = Express::open(&path, true).expect("opened");
    Pair { database, express, short: 0 }
}

fn run(database: &Database, operation: &str, request: &Value) -> Answer {
    operations::run(database, &format!("D.{operation}"), request.to_string().as_bytes())
}

fn document(answer: &Answer) -> (u16, Value) {
    (answer.status, serde_json::from_slice(&answer.body).expect("JSON"))
}

impl Pair {
    fn run(&mut self, operation: &str, request: &Value) -> Answer {
        let body = request.to_string();
        match self.express.run(&self.database, operation, body.as_bytes()) {
            Ok(answer) => {
                self.short += 1;
                answer
            }
            Err(left) => {
                self.express.make_way();
                let answer = run(&self.database, operation, request);
                if let Left::ToLearn = left {
                    self.express.learn(body.as_bytes(), &answer);
                }
                answer
            }
        }
    }

    fn size(&self) -> i64 {
        let query = "SELECT coalesce(sum(item_size), 0) FROM rows";
        self.express.connection.query_row(query, [], |row| row.get(0)).expect("a number")
    }
}

/// A writer of random requests.
struct Writer {
    random: fastrand::Rng,
    names: Map<String, Value>,
    values: Map<String, Value>,
}

impl Writer {
    fn value(&mut self) -> Value {
        let plain = [
            json!({ "S": "" }),
            json!({ "S": "a" }),
            json!({ "S": "é\"\\\n\u{1f512}" }),
            json!({ "S": "S" }),
            json!({ "S": "SS\":[" }),
            json!({ "S": "20s" }),
            json!({ "N": "0" }),
            json!({ "N": "1" }),
            json!({ "N": "-5" }),
            json!({ "N": "17" }),
            json!({ "N": "9007199254740993" }),
            json!({ "N": "9".repeat(38) }),
            json!({ "B": "" }),
            json!({ "B": "AAE=" }),
            json!({ "B": "AAECAw==" }),
            json!({ "BOOL": true }),
            json!({ "NULL": true }),
        ];
        let odd = [
            json!({ "N": "1.5" }),
            json!({ "N": "1e3" }),
            json!({ "N": "007" }),
            json!({ "N": "-0" }),
            json!({ "B": "AAF=" }),
            json!({ "NULL": false }),
            json!({ "SS": ["b", "a"] }),
            json!({ "NS": ["10", "9"] }),
            json!({ "L": [] }),
            json!({ "L": [{ "S": "x" }, { "N": "12" }] }),
            json!({ "M": {} }),
            json!({ "M": { "k": { "S": "v" }, "n": { "N": "-12" } } }),
        ];
        let from = if self.random.u8(..10) == 0 { &odd[..] } else { &plain[..] };
        from[self.random.usize(..from.len())].clone()
    }

    fn placeholder(&mut self) -> String {
        let placeholder = format!(":v{}", self.values.len());
        let value = self.value();
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    fn name(&mut self) -> &'static str {
        let name = NAMES[self.random.usize(..NAMES.len())];
        if name == "#e" {
            self.names.insert(name.to_owned(), json!("e.é"));
        }
        name
    }

    fn operand(&mut self) -> String {
        match self.random.u8(..5) {
            0 => self.placeholder(),
            1 => format!("size({})", self.name()),
            _ => self.name().to_owned(),
        }
    }

    fn condition(&mut self, depth: u8) -> String {
        match self.random.u8(..if depth == 0 { 7 } else { 11 }) {
            0 => format!("attribute_exists({})", self.name()),
            1 => format!("attribute_not_exists({})", self.name()),
            2 => format!("attribute_type({}, {})", self.name(), self.placeholder()),
            3 => format!("begins_with({}, {})", self.name(), self.placeholder()),
            4 => format!("contains({}, {})", self.name(), self.operand()),
            5 => format!("{} BETWEEN {} AND {}", self.operand(), self.operand(), self.operand()),
            6 => {
                let comparison = ["=", "<>", "<", "<=", ">", ">="][self.random.usize(..6)];
                format!("{} {comparison} {}", self.operand(), self.operand())
            }
            7 => format!("NOT {}", self.condition(0)),
            8 => format!("({} OR {})", self.condition(depth - 1), self.condition(depth - 1)),
            9 => format!("{} AND {}", self.condition(depth - 1), self.condition(depth - 1)),
            _ => format!("NOT ({} OR {})", self.condition(depth - 1), self.condition(depth - 1)),
        }
    }

    fn term(&mut self) -> String {
        match self.random.u8(..4) {
            0 => self.name().to_owned(),
            1 => format!("if_not_exists({}, {})", self.name(), self.placeholder()),
            _ => self.placeholder(),
        }
    }

    fn update(&mut self) -> String {
        let mut names = NAMES;
        self.random.shuffle(&mut names);
        let (set, removed) = names.split_at(self.random.usize(1..4));
        if names.contains(&"#e") {
            self.names.insert("#e".to_owned(), json!("e.é"));
        }
        let sets: Vec<_> = set
            .iter()
            .map(|name| {
                let more = match self.random.u8(..6) {
                    0 => format!(" + {}", self.term()),
                    1 => format!(" - {}", self.term()),
                    _ => String::new(),
                };
                format!("{name} = {}{more}", self.term())
            })
            .collect();
        format!("SET {} REMOVE {}", sets.join(", "), removed.join(", "))
    }

    /// An update with another key and other values each time.
    fn request(&mut self, form: &(Option<String>, String, Map<String, Value>, usize)) -> Value {
        let (condition, update, names, values) = form;
        let key = ["x", "y", "é"][self.random.usize(..3)];
        let values: Map<_, _> = (0..*values).map(|number| (format!(":v{number}"), self.value())).collect();
        let mut request = json!({
            "TableName": "rows", "Key": { "id": { "S": key } }, "UpdateExpression": update, "ReturnValues": "ALL_OLD",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        });
        if let Some(condition) = condition {
            request["ConditionExpression"] = json!(condition);
        }
        for (member, map) in [("ExpressionAttributeNames", names), ("ExpressionAttributeValues", &values)] {
            if !map.is_empty() {
                request[member] = Value::Object(map.clone());
            }
        }
        request
    }
}

#[test]
fn short_way_gives_the_engines_answers_and_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut tried, mut reference) = (open(folder.path(), "tried"), open(folder.path(), "reference"));
    let seed = fastrand::u64(..);
    let mut writer = Writer { random: fastrand::Rng::with_seed(seed), names: Map::new(), values: Map::new() };
    let mut applied = 0;
    for number in 0..150 {
        (writer.names, writer.values) = (Map::new(), Map::new());
        let update = writer.update();
        let condition = (writer.random.u8(..5) > 0).then(|| writer.condition(2));
        let form = (condition, update, std::mem::take(&mut writer.names), writer.values.len());
        for _ in 0..20 {
            let request = writer.request(&form);
            let expected = document(&run(&reference.database, "UpdateItem", &request));
            assert_eq!(document(&tried.run("UpdateItem", &request)), expected, "seed {seed}: {request}");
            applied += u32::from(expected.0 == 200);
            let get = json!({ "TableName": "rows", "Key": request["Key"], "ConsistentRead": true });
            let expected = document(&run(&reference.database, "GetItem", &get));
            assert_eq!(document(&tried.run("GetItem", &get)), expected, "seed {seed}: {request}");
        }
        // Rows of many kinds, and sums that the triggers compare.
        if number % 4 == 0 {
            for key in ["x", "y", "é"] {
                let mut item = json!({ "id": { "S": key } });
                for name in ["a", "b", "c", "d", "e.é"] {
                    if writer.random.bool() {
                        item[name] = writer.value();
                    }
                }
                let put = json!({ "TableName": "rows", "Item": item });
                let expected = document(&run(&reference.database, "PutItem", &put));
                assert_eq!(document(&tried.run("PutItem", &put)), expected, "seed {seed}: {put}");
            }
        }
        assert_eq!(tried.size(), reference.size(), "seed {seed}");
        tried.express.commit().expect("committed");
        reference.express.commit().expect("nothing to commit");
    }
    assert!(tried.short > 500 && applied > 50, "seed {seed}: {} short answers, {applied} applied", tried.short);
    assert_eq!(crate::integrity::damage(&folder.path().join("tried")).expect("read"), None, "seed {seed}");
}

/// The engine looks at all bounds before it looks at an item.
#[test]
fn bounds_in_the_wrong_order_are_refused_wherever_they_stand() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut tried = open(folder.path(), "tried");
    let put = json!({ "TableName": "rows", "Item": { "id": { "S": "x" }, "a": { "N": "1" } } });
    assert_eq!(tried.run("PutItem", &put).status, 200);
    let update = |condition: &str, low: &str, high: &str| {
        json!({ "TableName": "rows", "Key": { "id": { "S": "x" } }, "UpdateExpression": "SET b = :low",
            "ConditionExpression": condition,
            "ExpressionAttributeValues": { ":low": { "N": low }, ":high": { "N": high } } })
    };
    for (condition, kind) in [
        ("attribute_not_exists(a) AND a BETWEEN :low AND :high", "ConditionalCheckFailedException"),
        ("attribute_exists(a) OR a BETWEEN :low AND :high", "null"),
    ] {
        let before = tried.short;
        for _ in 0..2 {
            let answer = document(&tried.run("UpdateItem", &update(condition, "2", "3"))).1;
            assert!(answer["__type"].to_string().contains(kind), "{condition}: {answer}");
        }
        assert_eq!(tried.short, before + 1, "{condition}");
        let answer = document(&tried.run("UpdateItem", &update(condition, "3", "2"))).1;
        assert!(answer["__type"].to_string().contains("ValidationException"), "{condition}: {answer}");
    }
}

/// What an engine keeps about a table must not outlive the table.
#[test]
fn table_with_an_index_or_of_another_kind_is_left_to_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut tried = open(folder.path(), "tried");
    let update = |value: &str| {
        json!({ "TableName": "rows", "Key": { "id": { "S": "x" } }, "UpdateExpression": "SET a = :v",
            "ExpressionAttributeValues": { ":v": { "S": value } } })
    };
    for (value, short) in [("1", 0), ("2", 1), ("3", 2)] {
        assert_eq!(tried.run("UpdateItem", &update(value)).status, 200);
        assert_eq!(tried.short, short, "{value}");
    }
    let definition = |name: &str| json!({ "AttributeName": name, "AttributeType": "S" });
    let index = json!({ "TableName": "rows", "AttributeDefinitions": [definition("id"), definition("a")],
        "GlobalSecondaryIndexUpdates": [{ "Create": { "IndexName": "by_a", "Projection": { "ProjectionType": "ALL" },
            "KeySchema": [{ "AttributeName": "a", "KeyType": "HASH" }] } }] });
    let changed = document(&tried.run("UpdateTable", &index));
    assert_eq!(changed.0, 200, "{}", changed.1);
    assert_eq!(tried.run("UpdateItem", &update("4")).status, 200);
    assert_eq!(tried.short, 2);
    let query = json!({ "TableName": "rows", "IndexName": "by_a", "KeyConditionExpression": "a = :v",
        "ExpressionAttributeValues": { ":v": { "S": "4" } } });
    assert_eq!(document(&tried.run("Query", &query)).1["Count"], 1);
}

#[test]
fn damaged_row_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut tried = open(folder.path(), "tried");
    let update = json!({ "TableName": "rows", "Key": { "id": { "S": "x" } }, "UpdateExpression": "SET a = :v",
        "ExpressionAttributeValues": { ":v": { "S": "value" } } });
    for _ in 0..2 {
        assert_eq!(tried.run("UpdateItem", &update).status, 200);
    }
    tried.express.commit().expect("committed");
    tried
        .express
        .connection
        .execute("UPDATE rows SET item_json = replace(item_json, 'value', 'valve')", [])
        .expect("done");
    assert_eq!(tried.run("UpdateItem", &update).status, 500);
    let get = json!({ "TableName": "rows", "Key": { "id": { "S": "x" } } });
    assert_eq!(tried.run("GetItem", &get).status, 500);
}

/// Writes that share a transaction fail together, and nobody is told otherwise.
#[test]
fn writes_are_undone_when_one_of_them_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut tried = open(folder.path(), "tried");
    let update = |value: &str| {
        json!({ "TableName": "rows", "Key": { "id": { "S": "x" } }, "UpdateExpression": "SET a = :v",
            "ExpressionAttributeValues": { ":v": { "S": value } } })
    };
    for value in ["1", "2"] {
        assert_eq!(tried.run("UpdateItem", &update(value)).status, 200);
    }
    tried.express.commit().expect("committed");
    assert_eq!(tried.run("UpdateItem", &update("3")).status, 200);
    let pages: u32 = tried.express.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("a number");
    let limit = format!("PRAGMA max_page_count = {pages}");
    tried.express.connection.query_row(&limit, [], |_| Ok(())).expect("set");
    assert_eq!(tried.run("UpdateItem", &update(&"x".repeat(50_000))).status, 500);
    assert!(tried.express.commit().is_err());
    let get = json!({ "TableName": "rows", "Key": { "id": { "S": "x" } } });
    assert_eq!(document(&tried.run("GetItem", &get)).1["Item"]["a"]["S"], "2");
    assert!(tried.express.commit().is_ok());
}
