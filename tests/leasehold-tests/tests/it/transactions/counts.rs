//! What transactions cost, counted where the requests leave the process. `cargo test counts -- --nocapture` prints the table of
//! docs/performance.md.

use std::collections::HashMap;

use leasehold_tests::Sent;
use leasehold_tests::bank::{ACCOUNTS, Bank, account, add, begin};
use leasehold_transactions::{Request, ReturnValues};
use serde_json::Value;

/// Requests, and what they write.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cost {
    writes: usize,
    reads: usize,
    /// Items written, or checked, by all writes.
    items: usize,
    /// Write capacity units: one for each KB of an item, two inside of a TransactWriteItems call.
    units: usize,
}

impl Cost {
    fn of(requests: &[Sent]) -> Self {
        let mut cost = Self::default();
        let mut sizes = HashMap::new();
        for request in requests {
            match request.operation.as_str() {
                "TransactWriteItems" => {
                    let writes = request.body["TransactItems"].as_array().expect("a list");
                    let parts = writes.iter().flat_map(|write| write.as_object().expect("an object").values());
                    cost.writes += 1;
                    cost.items += writes.len();
                    cost.units += parts.map(|part| 2 * kilobytes(part, &mut sizes)).sum::<usize>();
                }
                "PutItem" | "UpdateItem" | "DeleteItem" => {
                    cost.writes += 1;
                    cost.items += 1;
                    cost.units += kilobytes(&request.body, &mut sizes);
                }
                // Once for each table, not for each transaction.
                "DescribeTable" => {}
                _ => cost.reads += 1,
            }
        }
        cost
    }
}

/// Of the item that is written, changed or checked. Its size is known if it was written whole; the others are accounts, and
/// small.
fn kilobytes(write: &Value, sizes: &mut HashMap<String, usize>) -> usize {
    let item = write.get("Item");
    let of_key = item.unwrap_or(&write["Key"]);
    let key = format!("{} {} {}", write["TableName"], of_key["transactionId"], of_key["row"]);
    if let Some(item) = item {
        sizes.insert(key.clone(), members_size(item).div_ceil(1024));
    }
    sizes.get(&key).copied().unwrap_or(1)
}

/// As DynamoDB counts: names and values.
fn members_size(members: &Value) -> usize {
    members.as_object().expect("a map").iter().map(|(name, value)| name.len() + size(value)).sum()
}

fn size(value: &Value) -> usize {
    let (kind, value) = value.as_object().and_then(|value| value.iter().next()).expect("an attribute value");
    match (kind.as_str(), value) {
        ("S", Value::String(text)) => text.len(),
        ("N", Value::String(digits)) => digits.len().div_ceil(2) + 1,
        ("B", Value::String(base64)) => base64.len() * 3 / 4,
        ("M", members) => 3 + members_size(members) + members.as_object().map_or(0, serde_json::Map::len),
        ("L", Value::Array(values)) => 3 + values.iter().map(|value| size(value) + 1).sum::<usize>(),
        _ => 1,
    }
}

#[derive(Debug, Clone, Copy)]
enum Path {
    /// Begin, add, commit.
    Long,
    /// In one call that asks for answers.
    OneShotWithAnswers,
    /// In one call that does not.
    OneShot,
}

async fn cost(path: Path, count: usize) -> Cost {
    let bank = Bank::new().await;
    let name = |number| format!("account-{number:03}");
    for number in 0..count {
        bank.open(&name(number), 100).await;
    }
    let requests = |values| -> Vec<Request> {
        (0..count).map(|number| Request { return_values: values, ..add(&name(number), 1) }).collect()
    };
    bank.faults.record();
    match path {
        Path::Long => {
            let id = begin(&bank.transactions).await;
            bank.transactions.add(&id, requests(ReturnValues::None)).await.expect("added");
            bank.transactions.commit(&id).await.expect("committed");
        }
        Path::OneShotWithAnswers => {
            bank.transactions.run(None, requests(ReturnValues::AllNew)).await.expect("done");
        }
        Path::OneShot => drop(bank.transactions.run(None, requests(ReturnValues::None)).await.expect("done")),
    }
    let cost = Cost::of(&bank.faults.record());
    assert_eq!(bank.scan(ACCOUNTS).await.iter().filter(|item| **item != account(&id_of(item), 101)).count(), 0);
    bank.assert_clean().await;
    cost
}

fn id_of(item: &leasehold_transactions::Item) -> String {
    item["id"].as_s().expect("a text").clone()
}

#[tokio::test(start_paused = true)]
async fn counts_of_writes_and_reads_by_the_number_of_items() {
    println!("| N | 7N+4 | | write calls | items in them | WCU | read calls |");
    println!("|---|---|---|---|---|---|---|");
    for count in [1, 2, 10, 48, 100, 500] {
        for (path, name) in [
            (Path::Long, "begin, add, commit"),
            (Path::OneShotWithAnswers, "one call, with answers"),
            (Path::OneShot, "one call"),
        ] {
            let Cost { writes, reads, items, units } = cost(path, count).await;
            println!("| {count} | {} | {name} | {writes} | {items} | {units} | {reads} |", 7 * count + 4);
            let batches = count.div_ceil(48);
            // Decided, completed and finished in one write, where all is in one batch.
            let ends = if batches == 1 { 1 } else { 2 + batches };
            let own = if batches == 1 { 1 } else { 2 };
            // An item is locked, kept, changed and freed, and its image deleted; two, two and one row go with that.
            let long = (2 * batches + ends, 5 * count + 5 * batches + own);
            match path {
                Path::Long => {
                    assert_eq!((writes, items), (1 + long.0, 1 + long.1));
                    assert!(writes <= 3 * count + 3);
                }
                // One call takes 100 writes, and the TX record is one.
                Path::OneShot if count < 100 => assert_eq!((writes, reads, items), (1, 0, count + 1)),
                Path::OneShot | Path::OneShotWithAnswers => assert_eq!((writes, items), long),
            }
        }
    }
}
