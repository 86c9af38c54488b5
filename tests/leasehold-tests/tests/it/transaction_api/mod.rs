//! The transactions' API: its routes, its refusals, its documents, and the functions.

mod events;
mod hostile;
mod refusals;
mod round_trip;
mod routes;

use http::{Method, Request};
use leasehold_api::TransactionService;
use leasehold_client::Transport;
use leasehold_conformance::Refusals;
use leasehold_tests::bank::{Bank, key};
use leasehold_wire::operation::OPERATIONS;
use serde_json::{Value, json};

use crate::refusals::Direct;

pub(crate) use refusals::every_refusal;

/// The API over a bank, in this process.
pub(crate) struct Api {
    bank: Bank,
    transport: Box<dyn Transport>,
    answered: Refusals,
}

impl Api {
    pub(crate) async fn new() -> Self {
        let bank = Bank::new().await;
        let transport = Box::new(bank.transport());
        Self { bank, transport, answered: Refusals::default() }
    }

    /// Returns an API of direct invocations.
    pub(crate) async fn direct() -> Self {
        let bank = Bank::new().await;
        let transactions = TransactionService::new(bank.transactions.clone());
        let transport = Box::new(Direct { service: transactions, http: bank.transport() });
        Self { bank, transport, answered: Refusals::default() }
    }

    /// Returns an API over these accounts.
    async fn with(accounts: &[(&str, i64)]) -> Self {
        let api = Self::new().await;
        for (id, balance) in accounts {
            api.bank.open(id, *balance).await;
        }
        api
    }

    async fn send(&self, method: Method, uri: &str, body: &[u8]) -> Answer {
        let operation = OPERATIONS.iter().find(|operation| Some(operation.path) == uri.split('?').next());
        let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
        let response = self.transport.send(request.body(body.to_vec()).expect("a request")).await.expect("an answer");
        let retry_after = response.headers().get("retry-after").map(|value| value.to_str().expect("ASCII").to_owned());
        let body = serde_json::from_slice(response.body()).expect("a JSON document");
        if let Some(operation) = operation {
            self.answered.record(operation, response.status().as_u16(), &body);
        }
        Answer { status: response.status().as_u16(), retry_after, body }
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, body.to_string().as_bytes()).await
    }

    async fn public_id(&self, id: &str) -> Value {
        self.get(id).await.body["publicId"].clone()
    }

    async fn get(&self, id: &str) -> Answer {
        self.send(Method::GET, &format!("/v1/transaction?id={id}"), b"").await
    }

    /// Returns the answer of a call that must succeed.
    async fn ok(&self, path: &str, body: Value) -> Value {
        let answer = self.post(path, &body).await;
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        answer.body
    }

    /// Returns the problem of a call that must be refused.
    async fn refused(&self, path: &str, body: Value) -> Answer {
        let answer = self.post(path, &body).await;
        assert_eq!(answer.body["status"], answer.status, "{body}: {answer:?}");
        assert!(answer.status >= 400 && answer.body["title"].is_string(), "{body}: {answer:?}");
        answer
    }

    /// Begins a transaction with these requests.
    async fn begin(&self, requests: Value) -> String {
        let begun = self.ok("/v1/transactions/begin", json!({ "requests": requests })).await;
        begun["transactionId"].as_str().expect("an id").to_owned()
    }

    /// The account as reads at `committed` show it.
    async fn seen(&self, id: &str) -> Value {
        let read = json!({ "tableName": "accounts", "key": account_key(id) });
        self.ok("/v1/items/get", read).await["item"].clone()
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    retry_after: Option<String>,
    body: Value,
}

impl Answer {
    /// Status, type, and whether a retry may succeed.
    fn kind(&self) -> (u16, &str, bool) {
        let retryable = self.body["retryable"].as_bool().unwrap_or_default();
        (self.status, self.body["type"].as_str().expect("a type"), retryable)
    }
}

fn account_key(id: &str) -> Value {
    json!({ "id": { "S": id } })
}

fn account(id: &str, balance: i64) -> Value {
    json!({ "id": { "S": id }, "balance": { "N": balance.to_string() } })
}

/// Adds to an account, as an entry of TransactWriteItems.
fn add(id: &str, amount: i64) -> Value {
    json!({ "Update": {
        "TableName": "accounts",
        "Key": account_key(id),
        "UpdateExpression": "ADD balance :amount",
        "ExpressionAttributeValues": { ":amount": { "N": amount.to_string() } },
    } })
}

fn put(id: &str, balance: i64) -> Value {
    json!({ "Put": { "TableName": "accounts", "Item": account(id, balance) } })
}

fn get(id: &str) -> Value {
    json!({ "Get": { "TableName": "accounts", "Key": account_key(id) } })
}

/// An entry with one more member.
fn with(mut entry: Value, name: &str, value: Value) -> Value {
    let members = entry.as_object_mut().and_then(|entry| entry.values_mut().next());
    members.expect("an entry")[name] = value;
    entry
}

/// Whether the raw item of an account has no attribute of a transaction.
async fn is_free(bank: &Bank, id: &str) -> bool {
    let item = bank.dynamodb.get_item().table_name("accounts").set_key(Some(key(id))).send().await;
    let item = item.expect("no faults here").item.unwrap_or_default();
    !item.keys().any(|name| name.starts_with("leaseholdTx"))
}
