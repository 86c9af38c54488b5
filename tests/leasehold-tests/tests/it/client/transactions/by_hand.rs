//! Transactions that move between processes, and reads outside of transactions.

use futures_util::TryStreamExt;
use leasehold_client::transactions::{
    CapacityMeter, Entry, Isolation, Item, ItemRequest, ListItemsRequest, Request, TransactionOptions,
    TransactionState, from_item, to_item,
};
use leasehold_client::wire::transactions::ListTransactionsRequest;
use leasehold_client::{Client, Error, ErrorKind};
use leasehold_tests::bank::ACCOUNTS;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{ADD, Account, BEGIN, Fate, ROLLBACK, SECOND, add, balance, bank, key};

#[tokio::test(start_paused = true)]
async fn taken_here_committed_there() {
    let (bank, network, here) = bank(&[("a", 100)]).await;
    let there = Client::new(bank.transport());
    let tx = here.begin_transaction().await.expect("begun");
    add(&tx, "a", -30).await.expect("added");
    let id = tx.detach();
    assert_eq!(network.take_log(), [BEGIN, ADD], "nothing is rolled back");
    let tx = there.resume_transaction(&id);
    assert_eq!(balance(&tx, "a").await.expect("its own write"), 70);
    tx.commit().await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(70));
    let status = here.transaction_status(&id).await.expect("known");
    assert_eq!((status.state, status.finished, status.requests.len()), (TransactionState::Committed, true, 1));
    // A committed transaction cannot be changed any more.
    here.resume_transaction(&id).commit().await.expect("a repeat");
    let tx = here.resume_transaction(&id);
    assert_eq!(add(&tx, "b", 1).await.expect_err("over").kind(), &ErrorKind::Committed);
    let error = tx.rollback().await.expect_err("over");
    assert_eq!((error.kind(), error.transaction_id()), (&ErrorKind::Committed, Some(id.as_str())));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_dropped_is_rolled_back() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let tx = client.begin_transaction().await.expect("begun");
    add(&tx, "a", -30).await.expect("added");
    drop(tx);
    sleep(SECOND).await;
    assert_eq!(network.take_log(), [BEGIN, ADD, ROLLBACK]);
    bank.assert_clean().await;
    let tx = client.begin_transaction().await.expect("begun");
    add(&tx, "a", -30).await.expect("added");
    let id = tx.id().to_owned();
    tx.rollback().await.expect("rolled back");
    assert_eq!(network.take_log(), [BEGIN, ADD, ROLLBACK], "once");
    assert_eq!(bank.balance("a").await, Some(100));
    let error = client.resume_transaction(id).commit().await.expect_err("over");
    assert_eq!(error.kind(), &ErrorKind::RolledBack);
    let error = client.transaction_status("5e1f6f0e-7f4b-4b1c-9a53-3a6e5d0c1b2a").await.expect_err("never begun");
    assert_eq!(error.kind(), &ErrorKind::TransactionNotFound);
}

#[tokio::test(start_paused = true)]
async fn rollback_succeeds_when_the_transaction_is_rolled_back() {
    const ROLLED_BACK: &str = r#"{"type": "rolled-back", "status": 409, "title": "t", "detail": "d"}"#;
    let (_, network, client) = bank(&[]).await;
    let tx = client.begin_transaction().await.expect("begun");
    network.set(|_| Fate::Gateway(409, None, ROLLED_BACK));
    tx.rollback().await.expect("as the caller wants it");
}

#[tokio::test(start_paused = true)]
async fn operator_finds_an_open_transaction_and_ends_it() {
    let (bank, _, client) = bank(&[("a", 100)]).await;
    let tx = client.begin_transaction().await.expect("begun");
    add(&tx, "a", 1).await.expect("added");
    let page = client.list_transactions(&ListTransactionsRequest::default()).await.expect("reachable");
    let [open] = page.transactions.as_slice() else { panic!("{page:?}") };
    assert_eq!((open.state, open.requests.len()), (TransactionState::Pending, 1));
    let swept = client.sweep_transactions(Some(open.public_id.clone())).await.expect("known");
    assert_eq!((swept.rolled_back, bank.balance("a").await), (1, Some(100)));
    assert_eq!(tx.commit().await.expect_err("swept").kind(), &ErrorKind::RolledBack);
}

#[tokio::test(start_paused = true)]
async fn commit_without_an_answer_can_be_repeated_by_hand() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let tx = client.begin_transaction().await.expect("begun");
    add(&tx, "a", -30).await.expect("added");
    let id = tx.id().to_owned();
    network.cut();
    assert_eq!(tx.commit().await.expect_err("nobody knows").kind(), &ErrorKind::Unavailable);
    network.mend();
    network.take_log();
    sleep(SECOND * 30).await;
    assert!(network.take_log().is_empty(), "to decide on it is the caller's");
    client.resume_transaction(id).commit().await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(70));
}

#[tokio::test(start_paused = true)]
async fn transaction_sends_nothing_after_an_eviction() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let tx = client.begin_transaction().await.expect("begun");
    add(&tx, "a", 1).await.expect("added");
    let other = super::take(&bank, "a").await;
    other.commit().await.expect("committed");
    network.take_log();
    for _ in 0..3 {
        assert_eq!(add(&tx, "b", 1).await.expect_err("evicted").kind(), &ErrorKind::RolledBack);
    }
    assert_eq!(tx.commit().await.expect_err("evicted").kind(), &ErrorKind::RolledBack);
    assert_eq!(network.take_log(), [ADD]);
}

#[tokio::test(start_paused = true)]
async fn readers_choose_what_they_see() {
    let (bank, network, client) = bank(&[("a", 100), ("b", 5)]).await;
    let tx = client.begin_transaction().await.expect("begun");
    add(&tx, "a", -30).await.expect("added");
    add(&tx, "new", 1).await.expect("added");
    let one = async |id: &str, isolation| {
        let read = client.read_item::<Account>(ACCOUNTS, key(id), isolation).await.expect("read");
        read.map(|account| account.balance)
    };
    network.set({
        let mut asked = 0;
        move |_| {
            asked += 1;
            if asked % 2 == 1 { Fate::AnswerLost } else { Fate::Delivered }
        }
    });
    assert_eq!(one("a", Isolation::Committed).await, Some(100));
    assert_eq!(one("a", Isolation::Uncommitted).await, Some(70));
    assert_eq!(one("new", Isolation::Committed).await, None);
    assert_eq!(one("new", Isolation::Uncommitted).await, Some(1));
    let wanted = ["new", "b", "a"].map(|id| ItemRequest {
        table_name: ACCOUNTS.into(),
        key: to_item(key(id)).expect("a key"),
        ..ItemRequest::default()
    });
    let read = client.read_items(wanted, Isolation::Committed).await.expect("read");
    let read: Vec<Option<Value>> =
        read.into_iter().map(|item| item.map(|item| from_item(item).expect("JSON"))).collect();
    assert_eq!(read, [None, Some(json!({"id": "b", "balance": 5})), Some(json!({"id": "a", "balance": 100}))]);
    let scan = ListItemsRequest { table_name: ACCOUNTS.into(), limit: Some(1), ..ListItemsRequest::default() };
    let mut all: Vec<Item> = client.list_items(scan).try_collect().await.expect("read");
    all.sort_by_key(|item| format!("{item:?}"));
    let all: Vec<Account> = all.into_iter().map(|item| from_item(item).expect("an account")).collect();
    assert_eq!(
        all,
        [Account { id: "a".into(), balance: 100 }, Account { id: "b".into(), balance: 5 }],
        "page after page, as committed"
    );
    network.mend();
    tx.rollback().await.expect("rolled back");
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn entries_of_dynamodb_are_taken_as_they_are() {
    let (bank, _, client) = bank(&[("a", 100)]).await;
    let entries: Vec<Entry> = serde_json::from_value(json!([
        {"Get": {"TableName": ACCOUNTS, "Key": {"id": {"S": "a"}}, "ProjectionExpression": "balance"}},
        {"Put": {"TableName": ACCOUNTS, "Item": {"id": {"S": "blob"}, "data": {"B": "AP8="}}}},
    ]))
    .expect("entries");
    let answers = client
        .transaction(async |tx| {
            let answers = tx.add(entries.clone()).await?;
            tx.delete(ACCOUNTS, key("a")).await?;
            Ok::<_, Error>(answers)
        })
        .await
        .expect("committed");
    assert_eq!(serde_json::to_value(&answers).expect("JSON"), json!([{"balance": {"N": "100"}}, null]));
    assert_eq!(bank.raw("a").await, None);
    assert!(bank.raw("blob").await.expect("put")["data"].is_b());
    // A value that cannot be made a request is not sent.
    let error = client.transact([Request::get(ACCOUNTS, "no object")]).await.expect_err("no key");
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error:?}");
    assert_eq!(client.transact(Vec::<Entry>::new()).await.map_err(|error| error.kind().clone()).err(), {
        Some(ErrorKind::InvalidRequest { field: Some("requests".into()) })
    });
}

#[tokio::test(start_paused = true)]
async fn meter_adds_up_the_capacity_of_all_calls() {
    let (_bank, _, client) = bank(&[("a", 100)]).await;
    let written = |meter: &CapacityMeter| {
        meter.consumed().iter().map(|table| table.write_capacity_units).sum::<f64>().to_string()
    };
    let update = || Request::update(ACCOUNTS, key("a"), "ADD balance :one").values(json!({":one": 1}));
    let meter = CapacityMeter::default();
    client.transact_with(&TransactionOptions::new().capacity(&meter), [update()]).await.expect("done");
    // 2N+2 units for N items in one call.
    assert_eq!(written(&meter), "4");
    assert!(client.transact_with(&TransactionOptions::new().capacity(&meter).tries(1), [refused()]).await.is_err());
    assert_eq!(written(&meter), "4", "a refused call tells nothing");

    let meter = CapacityMeter::default();
    let options = TransactionOptions::new().capacity(&meter);
    client.transaction_with(&options, async |tx| tx.one(update()).await).await.expect("done");
    // 3N+7 units for N items in begin, add and commit.
    assert_eq!(written(&meter), "10");

    let tx = client.begin_transaction().await.expect("begun").counted_by(&meter);
    assert_eq!(written(&meter), "10", "nobody counted the begin");
    tx.one(update()).await.expect("added");
    let added = written(&meter);
    assert_ne!(added, "10");
    tx.rollback().await.expect("rolled back");
    assert_ne!(written(&meter), added);
}

/// A request whose condition fails.
fn refused() -> Request {
    Request::delete(ACCOUNTS, key("a")).when("attribute_not_exists(id)")
}
