//! Moves money between two accounts in a transaction, which changes both or none.
//!
//! `cargo run --example transfer`

#[path = "local/mod.rs"]
mod local;

use std::error::Error;

use leasehold_client::Client;
use leasehold_client::transactions::{Isolation, Transaction};
use local::ACCOUNTS;
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Account {
    id: String,
    balance: i64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    run().await
}

/// The example, for its test to run.
///
/// # Errors
/// Fails if the example does not do what it describes.
pub(crate) async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = Client::new(local::service().await?);
    client
        .transaction(async |tx| {
            tx.put(ACCOUNTS, &Account { id: "Moe".into(), balance: 100 }).await?;
            tx.put(ACCOUNTS, &Account { id: "Larry".into(), balance: 0 }).await
        })
        .await?;

    transfer(&client, "Moe", "Larry", 30).await?;
    // An error of the body rolls the transaction back, and is returned unchanged.
    match transfer(&client, "Moe", "Larry", 100).await {
        Err(error) => println!("refused: {error}"),
        Ok(()) => return Err("Moe has not that much".into()),
    }

    let balances = (balance(&client, "Moe").await?, balance(&client, "Larry").await?);
    println!("Moe has {}, Larry has {}", balances.0, balances.1);
    if balances == (70, 30) { Ok(()) } else { Err("the balances are wrong".into()) }
}

async fn transfer(client: &Client, from: &str, to: &str, amount: i64) -> Result<(), Box<dyn Error + Send + Sync>> {
    client
        .transaction(async |tx| {
            let source = account(&tx, from).await?;
            let target = account(&tx, to).await?;
            if source.balance < amount {
                return Err(format!("{from} has only {}", source.balance).into());
            }
            tx.put(ACCOUNTS, &Account { balance: source.balance - amount, ..source }).await?;
            tx.put(ACCOUNTS, &Account { balance: target.balance + amount, ..target }).await?;
            Ok(())
        })
        .await
}

/// Reads an account and locks it: no other transaction changes it before this one ends.
async fn account(tx: &Transaction, id: &str) -> Result<Account, Box<dyn Error + Send + Sync>> {
    tx.get(ACCOUNTS, json!({ "id": id })).await?.ok_or_else(|| format!("there is no account {id}").into())
}

async fn balance(client: &Client, id: &str) -> Result<i64, Box<dyn Error + Send + Sync>> {
    let account: Option<Account> = client.read_item(ACCOUNTS, json!({ "id": id }), Isolation::default()).await?;
    Ok(account.ok_or("there is no such account")?.balance)
}
