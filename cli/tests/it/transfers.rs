//! Transfers by plain HTTP while `leasehold serve` is killed, between any two calls and in the middle of each. The
//! tables themselves show the outcome.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use leasehold_dynamodb::fresh_uuid;
use serde_json::{Value, json};

use crate::support::{Serve, folder, pause, text_of, within};

const ACCOUNTS: [&str; 3] = ["Moe", "Larry", "Curly"];
const BALANCE: i64 = 1000;

/// An idle time in seconds that no transaction under way reaches, even on a busy machine. The next service looks at the
/// transaction after this time at the earliest, and the tests wait for that.
const BUSY: &str = "5";

/// The service on this file, which gives up transactions after so many seconds, or soon where another one needs an
/// item.
async fn serve(db: &Path, idle_seconds: &str) -> Serve {
    let args = ["--db", text_of(db), "--expose-dynamodb", "0"];
    let hasty = ["--transaction-idle-seconds", idle_seconds, "--transaction-patience-ms", "50"];
    Serve::start(&[args.as_slice(), hasty.as_slice()].concat()).await
}

/// A transfer between two accounts, under its own id.
struct Transfer {
    id: String,
    from: &'static str,
    to: &'static str,
    amount: i64,
}

impl Transfer {
    fn new(number: usize) -> Self {
        let (from, to) = (ACCOUNTS[number % 3], ACCOUNTS[(number + 1) % 3]);
        Self { id: fresh_uuid(), from, to, amount: 1 + i64::try_from(number).expect("a few") }
    }

    /// The calls of the transfer, in their order. Each is a path and a body.
    fn calls(&self) -> Vec<(&'static str, Value)> {
        let add = |requests: Value| ("/v1/transactions/add", json!({ "transactionId": self.id, "requests": requests }));
        let get = |id: &str| json!({ "Get": { "TableName": "accounts", "Key": { "id": { "S": id } } } });
        vec![
            ("/v1/transactions/begin", json!({ "transactionId": self.id })),
            add(json!([get(self.from), get(self.to)])),
            add(json!([change(self.from, -self.amount)])),
            add(json!([change(self.to, self.amount)])),
            ("/v1/transactions/commit", json!({ "transactionId": self.id })),
        ]
    }

    /// The transfer in one call.
    fn one_shot(&self) -> (&'static str, Value) {
        let requests = [change(self.from, -self.amount), change(self.to, self.amount)];
        ("/v1/transactions/begin", json!({ "transactionId": self.id, "requests": requests, "commit": true }))
    }
}

fn change(id: &str, amount: i64) -> Value {
    json!({ "Update": {
        "TableName": "accounts",
        "Key": { "id": { "S": id } },
        "UpdateExpression": "ADD balance :amount",
        "ConditionExpression": "attribute_exists(id)",
        "ExpressionAttributeValues": { ":amount": { "N": amount.to_string() } },
    } })
}

/// The status and the document; `None` without an answer.
async fn post(http: &reqwest::Client, base_url: &str, (path, body): (&str, Value)) -> Option<(u16, Value)> {
    let response = http.post(format!("{base_url}{path}")).json(&body).send().await.ok()?;
    Some((response.status().as_u16(), response.json().await.ok()?))
}

impl Serve {
    async fn call(&self, call: (&str, Value)) -> (u16, Value) {
        post(&self.http, &self.base_url, call).await.expect("an answer")
    }

    async fn calls_are_answered(&self, calls: impl IntoIterator<Item = (&str, Value)>) {
        for call in calls {
            let shown = format!("{call:?}");
            let (status, answer) = self.call(call).await;
            assert_eq!(status, 200, "{shown}: {answer}");
        }
    }

    /// Kills the service this long after a call was sent, and returns the answer if there was one.
    async fn killed_during(self, call: (&'static str, Value), after: Duration) -> Option<(u16, Value)> {
        let (http, base_url) = (self.http.clone(), self.base_url.clone());
        let answer = tokio::spawn(async move { post(&http, &base_url, call).await });
        pause(after).await;
        self.kill_9().await;
        within(answer).await.expect("no panic")
    }
}

async fn open_accounts(dynamodb: &Client) {
    let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S).build();
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build();
    let table = dynamodb.create_table().table_name("accounts").billing_mode(BillingMode::PayPerRequest);
    let table = table.attribute_definitions(id.expect("complete")).key_schema(key.expect("complete"));
    table.send().await.expect("a new table");
    for id in ACCOUNTS {
        let put = dynamodb.put_item().table_name("accounts").item("id", AttributeValue::S(id.into()));
        put.item("balance", AttributeValue::N(BALANCE.to_string())).send().await.expect("written");
    }
}

async fn scan(dynamodb: &Client, table: &str) -> Vec<std::collections::HashMap<String, AttributeValue>> {
    let pages = dynamodb.scan().table_name(table).consistent_read(true).into_paginator().items().send();
    pages.collect::<Result<_, _>>().await.expect("it answers")
}

/// Returns the balances, if no transaction left anything: no lock, no image, no open transaction.
async fn balances_if_clean(dynamodb: &Client) -> Option<BTreeMap<String, i64>> {
    let accounts = scan(dynamodb, "accounts").await;
    let is_locked = accounts.iter().any(|item| item.keys().any(|name| name.starts_with("leaseholdTx")));
    let is_left = scan(dynamodb, "leasehold-transactions").await.iter().any(|row| {
        let name = row["row"].as_s().expect("text");
        name.starts_with("2#") || (name.starts_with("0#") && !row.contains_key("finished"))
    });
    let balance = |item: &std::collections::HashMap<String, AttributeValue>| {
        let number = item["balance"].as_n().expect("a number").parse().expect("whole");
        (item["id"].as_s().expect("text").clone(), number)
    };
    (!is_locked && !is_left).then(|| accounts.iter().map(balance).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn transfers_survive_kill_9_between_any_two_calls_and_in_each() {
    let folder = folder();
    let db = folder.path().join("leasehold.db");
    let first = serve(&db, BUSY).await;
    open_accounts(&first.dynamodb().await).await;
    first.kill_9().await;

    let mut transfers = Vec::new();
    let mut acknowledged = Vec::new();
    let calls = Transfer::new(0).calls().len();
    // The kills between the calls: before the first one and after each. A whole transfer in between meets the rest of
    // the first.
    for done in 0..=calls {
        let service = serve(&db, BUSY).await;
        let whole = Transfer::new(transfers.len());
        service.calls_are_answered(whole.calls()).await;
        let cut = Transfer::new(transfers.len() + 1);
        service.calls_are_answered(cut.calls().into_iter().take(done)).await;
        service.kill_9().await;
        acknowledged.push(whole.id.clone());
        if done == calls {
            acknowledged.push(cut.id.clone());
        }
        transfers.extend([whole, cut]);
    }
    // The kills in the middle of each call, and in the middle of a single call.
    for during in 0..=calls {
        for after in [1, 6] {
            let service = serve(&db, BUSY).await;
            let transfer = Transfer::new(transfers.len());
            let mut all = transfer.calls();
            let call = if during == calls {
                transfer.one_shot()
            } else {
                service.calls_are_answered(all.drain(..during)).await;
                all.remove(0)
            };
            let is_last = during + 1 >= calls;
            let answer = service.killed_during(call, Duration::from_millis(after)).await;
            if is_last && answer.is_some_and(|(status, _)| status == 200) {
                acknowledged.push(transfer.id.clone());
            }
            transfers.push(transfer);
        }
    }

    let service = serve(&db, "1").await;
    let dynamodb = service.dynamodb().await;
    let swept = async {
        loop {
            service.calls_are_answered([("/v1/transactions/sweep", json!({}))]).await;
            if let Some(balances) = balances_if_clean(&dynamodb).await {
                return balances;
            }
            pause(Duration::from_millis(100)).await;
        }
    };
    let balances = within(swept).await;
    assert_eq!(balances.values().sum::<i64>(), 3 * BALANCE, "{balances:?}");

    // The committed transfers happened, and no others. All acknowledged transfers are among them.
    let mut expected: BTreeMap<String, i64> = ACCOUNTS.map(|id| (id.to_owned(), BALANCE)).into();
    let mut committed = Vec::new();
    for transfer in &transfers {
        let url = format!("{}/v1/transaction?id={}", service.base_url, transfer.id);
        let status: Value = service.http.get(url).send().await.expect("an answer").json().await.expect("JSON");
        assert!(status["finished"] == true || status["type"] == "transaction-not-found", "{status}");
        if status["state"] == "committed" {
            *expected.get_mut(transfer.from).expect("an account") -= transfer.amount;
            *expected.get_mut(transfer.to).expect("an account") += transfer.amount;
            committed.push(transfer.id.clone());
        }
    }
    assert_eq!(balances, expected);
    for id in &acknowledged {
        assert!(committed.contains(id), "{id} was acknowledged, and is lost");
    }
    assert!(acknowledged.len() > calls && committed.len() < transfers.len(), "both ends were seen");
}

/// The service sweeps by itself, without a request.
#[tokio::test(flavor = "multi_thread")]
async fn open_transactions_are_swept_after_a_restart() {
    let folder = folder();
    let db = folder.path().join("leasehold.db");
    let first = serve(&db, BUSY).await;
    open_accounts(&first.dynamodb().await).await;
    let transfer = Transfer::new(0);
    first.calls_are_answered(transfer.calls().into_iter().take(4)).await;
    let uncommitted = json!({ "tableName": "accounts", "key": { "id": { "S": "Moe" } }, "isolation": "uncommitted" });
    let (_, seen) = first.call(("/v1/items/get", uncommitted)).await;
    assert_eq!(seen["item"]["balance"]["N"], (BALANCE - transfer.amount).to_string());
    first.kill_9().await;

    let second = serve(&db, "1").await;
    let dynamodb = second.dynamodb().await;
    let swept = async {
        loop {
            if let Some(balances) = balances_if_clean(&dynamodb).await {
                return balances;
            }
            pause(Duration::from_millis(100)).await;
        }
    };
    assert_eq!(within(swept).await, ACCOUNTS.map(|id| (id.to_owned(), BALANCE)).into());
    let (status, refused) = second.call(("/v1/transactions/commit", json!({ "transactionId": transfer.id }))).await;
    assert_eq!((status, &refused["type"]), (409, &json!("rolled-back")));
}

#[tokio::test]
async fn tables_of_the_service_are_no_accounts() {
    let serve = Serve::start(&["--memory", "--table", "mine", "--transaction-table", "theirs"]).await;
    for table in ["mine", "theirs"] {
        let get = json!({ "Get": { "TableName": table, "Key": { "key": { "S": "Moe" } } } });
        let (status, refused) = serve.call(("/v1/transactions/begin", json!({ "requests": [get] }))).await;
        assert_eq!((status, &refused["field"]), (400, &json!("requests[0].Get.TableName")), "{refused}");
    }
}

/// An item with the lock of a transaction that never was, as from a backup.
#[tokio::test]
async fn operator_lists_items_and_unlocks_a_stray() {
    let folder = folder();
    let serve = serve(&folder.path().join("db"), "600").await;
    let dynamodb = serve.dynamodb().await;
    open_accounts(&dynamodb).await;
    let transfer = Transfer::new(0);
    serve.calls_are_answered(transfer.calls().into_iter().take(3)).await;
    let listed = serve.run(&["transactions", "ls"]).await.ok();
    assert!(listed.contains("  pending  ") && listed.ends_with("s  items: 2\n"), "{listed}");
    let stray = AttributeValue::S("a-backup#of#1".to_owned());
    let lock = dynamodb.update_item().table_name("accounts").key("id", AttributeValue::S("Curly".to_owned()));
    let lock = lock.update_expression("SET leaseholdTxId = :lock").expression_attribute_values(":lock", stray);
    lock.clone().send().await.expect("locked");
    let key = r#"{"id":{"S":"Curly"}}"#;
    let unlock =
        |lock: &'static str| ["transactions", "unlock", "accounts", key, "--lock", lock, "--outcome", "rolled-back"];
    let refused = serve.run(&unlock("another")).await;
    assert!(refused.stderr.contains("another lock by now: a-backup#of#1"), "{}", refused.stderr);
    let found = serve.run(&["transactions", "strays", "accounts"]).await;
    assert_eq!(found.stderr, "leasehold: 3 items examined, 1 strays found\n");
    assert_eq!((found.status, found.stdout), (0, format!("{key}  a-backup#of#1\n")));
    // Those of another transaction are left alone.
    let of = "00000000-0000-0000-0000-000000000000";
    let left = serve.run(&["transactions", "strays", "accounts", "--unlock", "rolled-back", "--of", of]).await;
    assert_eq!((left.stdout.as_str(), left.stderr.as_str()), ("", "leasehold: 3 items examined, 0 strays unlocked\n"));
    assert_eq!(serve.run(&unlock("a-backup#of#1")).await.ok(), "unlocked\n");
    let curly = dynamodb.get_item().table_name("accounts").key("id", AttributeValue::S("Curly".to_owned()));
    let curly = curly.send().await.expect("read").item.expect("there");
    assert!(!curly.contains_key("leaseholdTxId"), "{curly:?}");
    lock.send().await.expect("locked again");
    for (found, progress) in
        [(format!("{key}  a-backup#of#1\n"), "1 strays unlocked"), (String::new(), "0 strays unlocked")]
    {
        let unlocked = serve.run(&["transactions", "strays", "accounts", "--unlock", "rolled-back"]).await;
        let stderr = format!("leasehold: 3 items examined, {progress}\n");
        assert_eq!((unlocked.status, unlocked.stdout, unlocked.stderr), (0, found, stderr));
    }
}
