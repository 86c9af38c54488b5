//! Transactions beside DynamoDB's own: their number a second and their time, by the number of their items.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    TransactWriteItem, Update,
};
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_transactions::{
    Action, Error, Item, Policy, ReturnValues, TransactionRequest, Transactions, ensure_table,
};
use tokio::time::Instant;

use crate::{millis, percentile};

const TABLE: &str = "accounts";
const CLIENTS: usize = 4;
const LOAD: Duration = Duration::from_secs(3);
/// The number of writes that DynamoDB takes in one call.
const MAX_PLAIN: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One TransactWriteItems call, without Leasehold's transactions.
    Plain,
    OneShot,
    /// One call, which is answered with the items.
    Answered,
    /// The calls begin, add and commit.
    Open,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Plain, "TransactWriteItems"),
    (Way::OneShot, "one call"),
    (Way::Answered, "one call, with answers"),
    (Way::Open, "begin, add, commit"),
];

pub(crate) async fn run() {
    println!(
        "updates of existing items, {CLIENTS} clients in the process of the engine; ratio of the time of the median"
    );
    println!("| N | items | | per second | p50 ms | p99 ms | over TransactWriteItems |");
    println!("|---|---|---|---|---|---|---|");
    for count in [1, 2, 10, 100, 500] {
        for is_contended in [false, true] {
            let mut plain = None;
            for (way, name) in WAYS {
                if way == Way::Plain && count > MAX_PLAIN {
                    continue;
                }
                let (mut times, elapsed) = load(way, count, is_contended).await;
                let (p50, p99) = (millis(percentile(&mut times, 50.0)), millis(percentile(&mut times, 99.0)));
                let per_second = times.len() as f64 / elapsed.as_secs_f64();
                if way == Way::Plain {
                    plain = Some(p50);
                }
                let items = if is_contended { "the same for all" } else { "of their own" };
                let ratio = plain.map_or_else(|| "–".to_owned(), |plain| format!("{:.2}", p50 / plain));
                println!("| {count} | {items} | {name} | {per_second:.0} | {p50:.2} | {p99:.2} | {ratio} |");
            }
        }
    }
}

/// Returns the time of each transaction that was begun within [`LOAD`], and the time until the last one ended.
async fn load(way: Way, count: usize, is_contended: bool) -> (Vec<Duration>, Duration) {
    let engine = Engine::memory().expect("memory is to be had");
    let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    make_table(&client).await;
    ensure_table(&client, "transactions").await.expect("a new table");
    let transactions = Transactions::new(&client, "transactions", Policy::default(), Clock::system(), Vec::new());
    let names = |client: usize| -> Vec<String> {
        let owner = if is_contended { 0 } else { client };
        (0..count).map(|number| format!("{owner}-{number}")).collect()
    };
    for owner in 0..if is_contended { 1 } else { CLIENTS } {
        for name in names(owner) {
            let put = client.put_item().table_name(TABLE).set_item(Some(key(&name)));
            put.item("balance", AttributeValue::N("0".into())).send().await.expect("applied");
        }
    }
    let start = Instant::now();
    let end = start + LOAD;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (client, transactions, names) = (client.clone(), transactions.clone(), names(number));
            tokio::spawn(async move {
                let mut times = Vec::new();
                while Instant::now() < end {
                    let started = Instant::now();
                    match way {
                        Way::Plain => plain(&client, &names).await,
                        _ => while !once(way, &transactions, &names).await {},
                    }
                    times.push(started.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await.expect("the client ran"));
    }
    (times, start.elapsed())
}

async fn plain(client: &Client, names: &[String]) {
    let update = |name: &String| {
        let update = Update::builder().table_name(TABLE).set_key(Some(key(name)));
        let update = update.update_expression("ADD balance :one");
        let update = update.expression_attribute_values(":one", AttributeValue::N("1".into()));
        TransactWriteItem::builder().update(update.build().expect("complete")).build()
    };
    let items = names.iter().map(update).collect();
    client.transact_write_items().set_transact_items(Some(items)).send().await.expect("applied");
}

/// Tries once. Returns whether the transaction was committed; if not, the caller repeats it, as a client does.
async fn once(way: Way, transactions: &Transactions, names: &[String]) -> bool {
    let return_values = if way == Way::Answered { ReturnValues::AllNew } else { ReturnValues::None };
    let requests = names.iter().map(|name| add(name, return_values)).collect();
    let result = match way {
        Way::Open => open(transactions, requests).await,
        _ => transactions.run(None, None, requests).await.map(drop),
    };
    match result {
        Err(Error::Contended { .. } | Error::RolledBack { .. } | Error::Throttled(_) | Error::Unavailable(_)) => false,
        result => {
            result.expect("nothing is wrong with the requests");
            true
        }
    }
}

async fn open(transactions: &Transactions, requests: Vec<TransactionRequest>) -> Result<(), Error> {
    let id = transactions.begin(None, None).await?;
    transactions.add(&id, requests, None).await?;
    transactions.commit(&id).await
}

fn add(name: &str, return_values: ReturnValues) -> TransactionRequest {
    TransactionRequest {
        table: TABLE.into(),
        action: Action::Update { key: key(name), expression: "ADD balance :one".into() },
        condition: None,
        names: HashMap::new(),
        values: Item::from([(":one".to_owned(), AttributeValue::N("1".into()))]),
        return_values,
        return_item_on_failure: false,
    }
}

fn key(name: &str) -> Item {
    Item::from([("id".to_owned(), AttributeValue::S(name.into()))])
}

async fn make_table(client: &Client) {
    let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S).build();
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build();
    let table = client.create_table().table_name(TABLE).billing_mode(BillingMode::PayPerRequest);
    let table = table.attribute_definitions(id.expect("complete")).key_schema(key.expect("complete"));
    table.send().await.expect("a new table");
}
