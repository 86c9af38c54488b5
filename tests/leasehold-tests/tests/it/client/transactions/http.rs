//! Transactions over HTTP, and in process as an application sets them up; in real time.

use std::net::Ipv4Addr;
use std::sync::Arc;

use leasehold_api::{Service, TransactionService};
use leasehold_client::transactions::{Isolation, Request};
use leasehold_client::{Client, Error, ErrorKind, HttpTransport};
use leasehold_dynamodb::Clock;
use leasehold_in_process::InProcess;
use leasehold_protocol::{LockTable, Policy, TableSchema};
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS};
use serde_json::json;
use tokio::net::TcpListener;

use super::{Account, add, balance, key};

async fn over_http(bank: &Bank) -> HttpTransport {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let locks = LockTable::new(bank.dynamodb.clone(), TableSchema::new("locks"), Policy::default(), Clock::system());
    let transactions = TransactionService::new(bank.transactions.clone());
    let routes = leasehold_server::routes(Service::new(locks)).merge(leasehold_server::routes(transactions));
    tokio::spawn(leasehold_server::run(listener, routes, std::future::pending()));
    HttpTransport::new(&url).expect("a URL")
}

#[tokio::test]
async fn application_that_reaches_the_tables_needs_no_service() {
    let bank = Bank::new().await;
    bank.open("a", 100).await;
    let transport = InProcess::on_tables(&bank.dynamodb, TableSchema::new("locks"), TRANSACTIONS).expect("names");
    let client = Client::new(transport);
    client.transaction(async |tx| add(&tx, "a", 1).await).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(101));
    for table in ["locks", TRANSACTIONS] {
        let error =
            client.transact([Request::delete(table, json!({"key": "Moe"}))]).await.expect_err("not its business");
        assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error:?}");
    }
    bank.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_loops_of_transfers_neither_make_nor_lose_money() {
    const IDS: [&str; 4] = ["a", "b", "c", "d"];
    let bank = Arc::new(Bank::new().await);
    for id in IDS {
        bank.open(id, 100).await;
    }
    let transport = over_http(&bank).await;
    let mut loops = tokio::task::JoinSet::new();
    for number in 0..8 {
        let client = Client::new(transport.clone());
        loops.spawn(async move {
            for round in 0..10 {
                let (from, to) = (IDS[(number + round) % 4], IDS[(number * round + 1) % 4]);
                if from == to {
                    continue;
                }
                let moved: Result<i64, Error> = client
                    .transaction(async |tx| {
                        let amount = balance(&tx, from).await? / 10;
                        add(&tx, from, -amount).await?;
                        add(&tx, to, amount).await?;
                        Ok(amount)
                    })
                    .await;
                moved.expect("sooner or later");
            }
        });
    }
    while let Some(ended) = loops.join_next().await {
        ended.expect("no panic");
    }
    let client = Client::new(transport);
    let all = client.transact(IDS.map(|id| Request::get(ACCOUNTS, key(id)))).await.expect("read together");
    let account = |item| leasehold_client::transactions::from_item::<Account>(item).expect("an account");
    assert_eq!(all.into_iter().flatten().map(|item| account(item).balance).sum::<i64>(), 400);
    bank.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn problems_arrive_as_what_they_are() {
    let bank = Bank::new().await;
    bank.open("a", 10).await;
    let client = Client::new(over_http(&bank).await);
    let spend = Request::update(ACCOUNTS, key("a"), "ADD balance :x")
        .values(json!({":x": -30, ":needed": 30}))
        .when("balance >= :needed")
        .show_on_failure();
    let error = client.transact([spend]).await.expect_err("poor");
    assert!(matches!(error.kind(), ErrorKind::ConditionFailed { request: Some(0), item: Some(_) }), "{error:?}");
    let id = error.transaction_id().expect("of this one").to_owned();
    let error = client.resume_transaction(id).commit().await.expect_err("rolled back");
    assert_eq!(error.kind(), &ErrorKind::RolledBack);
    let error = client.transaction_status("not a UUID").await.expect_err("no id");
    assert_eq!(error.kind(), &ErrorKind::InvalidRequest { field: Some("id".into()) });
    let error = client.read_item::<Account>("no-such-table", key("a"), Isolation::Committed).await;
    assert!(matches!(error.expect_err("no table").kind(), ErrorKind::InvalidRequest { .. }));
    bank.assert_clean().await;
}
