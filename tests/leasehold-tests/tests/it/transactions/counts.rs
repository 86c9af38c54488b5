//! The cost of transactions. The requests are recorded where they leave the process. They are then carried out again,
//! one at a time, on another engine, where each item is measured before and after. `cargo test counts -- --nocapture`
//! prints the tables of docs/performance.md.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_runtime_api::client::http::HttpConnector;
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use leasehold_engine::Engine;

use leasehold_tests::Sent;
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS, account, add, begin, make_tables};
use leasehold_transactions::{Item, ReturnValues, TransactionId, TransactionRequest, Units, measured};
use serde_json::Value;

/// The numbers of requests, and the units that they write.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cost {
    /// The number of write calls.
    writes: usize,
    /// The number of read calls.
    reads: usize,
    /// The write units of the tables: one for each KB of the larger of the item before and after, two inside a
    /// transaction.
    units: usize,
    /// The write units of the sweep index: one for an entry that is added or removed, two for one that moves.
    index: usize,
}

/// An engine on which recorded requests are carried out again.
struct Meter {
    engine: Engine,
    client: Client,
    cost: Cost,
}

impl Meter {
    async fn new(accounts: &[Item]) -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
        make_tables(&client, ACCOUNTS, TRANSACTIONS).await;
        for account in accounts {
            let put = client.put_item().table_name(ACCOUNTS).set_item(Some(account.clone()));
            put.send().await.expect("no faults here");
        }
        Self { engine, client, cost: Cost::default() }
    }

    async fn count(&mut self, sent: &Sent) {
        let rate = if sent.operation == "TransactWriteItems" { 2 } else { 1 };
        let keys = written(sent);
        if keys.is_empty() {
            // A table is described once, not for each transaction.
            self.cost.reads += usize::from(sent.operation != "DescribeTable");
            return;
        }
        self.cost.writes += 1;
        let mut before = Vec::new();
        for (table, key) in &keys {
            before.push(self.item(table, key).await);
        }
        let mut request = HttpRequest::new(SdkBody::from(sent.body.to_string()));
        request.headers_mut().insert("x-amz-target", format!("DynamoDB_20120810.{}", sent.operation));
        let answer = self.engine.call(request).await.expect("an answer");
        assert!(answer.status().is_success(), "{sent:?}");
        for ((table, key), before) in keys.iter().zip(before) {
            let after = self.item(table, key).await;
            self.cost.units += rate * kilobytes(&before).max(kilobytes(&after));
            let entry = |item: &Item| item.get("sweepAt").cloned();
            self.cost.index += match (entry(&before), entry(&after)) {
                (None, None) => 0,
                (Some(_), None) | (None, Some(_)) => 1,
                (Some(before), Some(after)) => 2 * usize::from(before != after),
            };
        }
    }

    async fn item(&self, table: &str, key: &Item) -> Item {
        let get = self.client.get_item().table_name(table).set_key(Some(key.clone())).consistent_read(true);
        get.send().await.expect("no faults here").item.unwrap_or_default()
    }
}

/// The items that a request writes or checks.
fn written(sent: &Sent) -> Vec<(String, Item)> {
    let of = |write: &Value| {
        let table = write["TableName"].as_str().expect("a name").to_owned();
        let attributes = write.get("Key").unwrap_or(&write["Item"]);
        let names: &[&str] = if table == TRANSACTIONS { &["transactionId", "row"] } else { &["id"] };
        let part = |name: &&str| ((*name).to_owned(), text(&attributes[*name]));
        (table, names.iter().map(part).collect())
    };
    match sent.operation.as_str() {
        "TransactWriteItems" => {
            let writes = sent.body["TransactItems"].as_array().expect("a list");
            writes.iter().flat_map(|write| write.as_object().expect("an object").values()).map(of).collect()
        }
        "BatchExecuteStatement" => {
            let statements = sent.body["Statements"].as_array().expect("a list");
            // The lock that was read, and the key.
            let key = |statement: &Value| Item::from([("id".to_owned(), text(&statement["Parameters"][1]))]);
            statements.iter().map(|statement| (ACCOUNTS.to_owned(), key(statement))).collect()
        }
        "PutItem" | "UpdateItem" | "DeleteItem" => vec![of(&sent.body)],
        _ => Vec::new(),
    }
}

fn text(value: &Value) -> AttributeValue {
    AttributeValue::S(value["S"].as_str().expect("a text").to_owned())
}

fn kilobytes(item: &Item) -> usize {
    size(item).div_ceil(1024).max(1)
}

/// The size as DynamoDB counts: names and values.
fn size(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + value_size(value)).sum()
}

fn value_size(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len().div_ceil(2) + 1,
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        AttributeValue::M(members) => 3 + size(members) + members.len(),
        AttributeValue::L(values) => 3 + values.iter().map(|value| value_size(value) + 1).sum::<usize>(),
        _ => 1,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// Begin, add, commit.
    Long,
    /// Begin, an add for each request, commit.
    OneByOne,
    /// One call that asks for answers.
    OneShotWithAnswers,
    /// One call that asks for no answers.
    OneShot,
}

/// The cost of updates of `count` items, each of about `bytes` bytes.
async fn cost(path: Path, count: usize, bytes: usize) -> Cost {
    let (cost, told) = cost_and_told(path, count, bytes).await;
    let units: f64 = told.values().map(|units| units.write).sum();
    assert_eq!(units.to_string(), (cost.units + cost.index).to_string(), "{path:?} {count}: {told:?} {cost:?}");
    cost
}

/// The cost as it is measured here, and as the service tells it.
async fn cost_and_told(path: Path, count: usize, bytes: usize) -> (Cost, BTreeMap<String, Units>) {
    let bank = Bank::new().await;
    let name = |number| format!("account-{number:03}");
    let padded = |number, balance| {
        let mut item = account(&name(number), balance);
        if bytes > 0 {
            item.insert("padding".into(), AttributeValue::S("x".repeat(bytes)));
        }
        item
    };
    let accounts: Vec<_> = (0..count).map(|number| padded(number, 100)).collect();
    for account in &accounts {
        bank.write(account.clone()).await;
    }
    let requests = |values| -> Vec<TransactionRequest> {
        (0..count).map(|number| TransactionRequest { return_values: values, ..add(&name(number), 1) }).collect()
    };
    bank.faults.record();
    let run = async |id, values| bank.transactions.run(id, None, requests(values)).await.expect("done");
    let work = async {
        match path {
            Path::Long | Path::OneByOne => {
                let id = begin(&bank.transactions).await;
                let requests = requests(ReturnValues::None);
                for part in requests.chunks(if path == Path::Long { count } else { 1 }) {
                    bank.transactions.add(&id, part.to_vec(), None).await.expect("added");
                }
                bank.transactions.commit(&id).await.expect("committed");
            }
            Path::OneShotWithAnswers => drop(run(Some(TransactionId::fresh()), ReturnValues::AllNew).await),
            Path::OneShot => drop(run(Some(TransactionId::fresh()), ReturnValues::None).await),
        }
    };
    let ((), told) = measured(work).await;
    let mut meter = Meter::new(&accounts).await;
    for sent in bank.faults.record() {
        meter.count(&sent).await;
    }
    let expected: Vec<_> = (0..count).map(|number| padded(number, 101)).collect();
    for dynamodb in [&bank.dynamodb, &meter.client] {
        let scan = dynamodb.scan().table_name(ACCOUNTS).send().await.expect("no faults here");
        // A page has at most 1 MB.
        assert!(scan.items().iter().all(|item| expected.contains(item)), "{path:?} {count}");
    }
    bank.assert_clean().await;
    (meter.cost, told)
}

/// The maximum cost of an update of this many items: units with those of the index, and write calls.
const LIMITS: [(usize, usize, usize); 6] =
    [(1, 10, 5), (2, 13, 5), (10, 37, 7), (48, 155, 8), (100, 319, 11), (500, 1559, 31)];

#[tokio::test(start_paused = true)]
async fn counts_of_writes_and_units_by_the_number_of_items() {
    println!("| N | 7N+4 | | write calls | write units | of these in the index | read calls |");
    println!("|---|---|---|---|---|---|---|");
    let print = |count: usize, name: &str, cost: &Cost| {
        let Cost { writes, reads, units, index } = cost;
        println!("| {count} | {} | {name} | {writes} | {} | {index} | {reads} |", 7 * count + 4, units + index);
    };
    for (count, max_units, max_writes) in LIMITS {
        let long = cost(Path::Long, count, 0).await;
        print(count, "begin, add, commit", &long);
        assert!(long.units + long.index <= max_units && long.writes <= max_writes, "{count}: {long:?}");
        let answered = cost(Path::OneShotWithAnswers, count, 0).await;
        print(count, "one call, with answers", &answered);
        assert!(answered.units + answered.index < max_units && answered.writes < max_writes, "{count}: {answered:?}");
        // One call takes 100 writes, and the TX record is one of them.
        if count < 100 {
            let short = cost(Path::OneShot, count, 0).await;
            print(count, "one call", &short);
            assert_eq!((short.writes, short.units, short.index, short.reads), (1, 2 * count + 2, 0, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn counts_of_one_add_for_each_request() {
    for count in [1, 2, 10, 20] {
        let cost = cost(Path::OneByOne, count, 0).await;
        println!("{count} adds of one request: {cost:?}");
        // The index is changed at the beginning and at the end.
        assert!(cost.units <= 5 * count + 3 && cost.index == 2, "{count}: {cost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn counts_of_items_of_two_kilobytes() {
    for (count, max_units) in [(1, 13), (2, 19), (10, 67), (48, 299), (100, 619)] {
        let cost = cost(Path::Long, count, 1500).await;
        println!("{count} items of 2 KB: {cost:?}");
        assert!(cost.units + cost.index <= max_units, "{count}: {cost:?}");
    }
}
