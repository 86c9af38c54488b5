//! Transactions as the client runs them: the rules T1 to T7 of docs/client.md.

mod bodies;
mod by_hand;
mod http;
mod repeats;
mod simulation;

use std::time::Duration;

use leasehold_client::transactions::{Transaction, from_item};
use leasehold_client::{Client, Error};
use leasehold_tests::bank::{ACCOUNTS, Bank};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Fate, Network};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Account {
    id: String,
    balance: i64,
}

fn key(id: &str) -> Value {
    json!({ "id": id })
}

/// A bank with these accounts, a network before it, and a client of that.
async fn bank(accounts: &[(&str, i64)]) -> (Bank, Network, Client) {
    let bank = Bank::new().await;
    for (id, balance) in accounts {
        bank.open(id, *balance).await;
    }
    let network = Network::new(bank.transport());
    let client = Client::new(network.clone());
    (bank, network, client)
}

/// Adds to an account.
async fn add(tx: &Transaction, id: &str, amount: i64) -> Result<(), Error> {
    tx.update(ACCOUNTS, key(id), "ADD balance :amount", json!({ ":amount": amount })).await
}

/// The balance of an account, read under a lock.
async fn balance(tx: &Transaction, id: &str) -> Result<i64, Error> {
    Ok(tx.get::<Account>(ACCOUNTS, key(id)).await?.map_or(0, |account| account.balance))
}

/// Locks an account in a transaction of another client, bypassing the network.
async fn take(bank: &Bank, id: &str) -> Transaction {
    let other = Client::new(bank.transport()).begin_transaction().await.expect("begun");
    other.get::<Account>(ACCOUNTS, key(id)).await.expect("locked");
    other
}

/// Gives this fate to the next `count` requests with this path.
fn next(network: &Network, path: &'static str, count: u32, fate: Fate) {
    let mut left = count;
    network.set(move |asked| {
        if asked == path && left > 0 {
            left -= 1;
            return fate.clone();
        }
        Fate::Delivered
    });
}

const BEGIN: &str = "/v1/transactions/begin";
const ADD: &str = "/v1/transactions/add";
const COMMIT: &str = "/v1/transactions/commit";
const ROLLBACK: &str = "/v1/transactions/rollback";

#[test]
fn account_is_an_item() {
    let account = Account { id: "a".into(), balance: -1 };
    let item = leasehold_client::transactions::to_item(&account).expect("an item");
    assert_eq!(serde_json::to_value(&item).expect("JSON"), json!({"id": {"S": "a"}, "balance": {"N": "-1"}}));
    assert_eq!(from_item::<Account>(item).expect("an account"), account);
}
