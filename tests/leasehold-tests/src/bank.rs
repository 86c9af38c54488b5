//! A bank: accounts in a user's table, and transactions over them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use leasehold_api::{Service, TransactionService};
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_in_process::InProcess;
use leasehold_protocol::{LockTable, TableSchema};
use leasehold_transactions::{
    Action, Error, Isolation, Item, Policy, ReadRequest, ReturnValues, Swept, TransactionId, TransactionRequest,
    Transactions, ensure_table,
};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::Faults;
use crate::world::EPOCH_MS;

/// The table of the accounts: `id` (S), and their `balance` (N).
pub const ACCOUNTS: &str = "accounts";

/// The transactions table.
pub const TRANSACTIONS: &str = "transactions";

/// Accounts and transactions on one DynamoDB.
pub struct Bank {
    /// Transactions, with faults between them and DynamoDB.
    pub transactions: Transactions,
    /// The faults.
    pub faults: Faults,
    /// DynamoDB without faults.
    pub dynamodb: Client,
    now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The lock of the only bank, where the tables outlive a test.
    alone: Option<OwnedMutexGuard<()>>,
}

static ALONE: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

impl Bank {
    /// Returns a bank without accounts, in memory. Its wall clock follows tokio's.
    pub async fn new() -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        let dynamodb = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
        let start = Instant::now();
        let now_ms = move || EPOCH_MS + u64::try_from(start.elapsed().as_millis()).expect("tests do not run that long");
        Self::on(dynamodb, Arc::new(now_ms), None).await
    }

    /// Returns a bank without accounts, on DynamoDB Local, under the wall clock. The next bank waits until this one is
    /// dropped.
    pub async fn dynamodb_local() -> Self {
        let alone = Arc::clone(&ALONE).lock_owned().await;
        let url = std::env::var("LEASEHOLD_TEST_DYNAMODB_ENDPOINT").expect("set by scripts/dynamodb-local.sh");
        let dynamodb = leasehold_dynamodb::connect(Some(&url)).await;
        for table in [ACCOUNTS, TRANSACTIONS] {
            // The tables of the bank before.
            let _ = dynamodb.delete_table().table_name(table).send().await;
        }
        let clock = Clock::system();
        Self::on(dynamodb, Arc::new(move || clock.now_ms()), Some(alone)).await
    }

    async fn on(
        dynamodb: Client,
        now_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
        alone: Option<OwnedMutexGuard<()>>,
    ) -> Self {
        make_tables(&dynamodb, ACCOUNTS, TRANSACTIONS).await;
        let (transactions, faults) = coordinator(&dynamodb, Policy::default(), &now_ms, Duration::ZERO);
        Self { transactions, faults, dynamodb, now_ms, alone }
    }

    /// Whether the bank is on the embedded engine.
    pub fn is_embedded(&self) -> bool {
        self.alone.is_none()
    }

    /// Another coordinator of the same bank, with faults of its own. Its clock is ahead of the others' by `ahead`.
    pub fn coordinator(&self, policy: Policy, ahead: Duration) -> (Transactions, Faults) {
        coordinator(&self.dynamodb, policy, &self.now_ms, ahead)
    }

    /// Another coordinator of the same bank, which knows the key of the accounts table.
    pub async fn coordinator_with_keys(&self) -> (Transactions, Faults) {
        let (coordinator, faults) = self.coordinator(Policy::default(), Duration::ZERO);
        coordinator.reader.read(vec![look("a")], Isolation::Committed).await.expect("the table is known");
        (coordinator, faults)
    }

    /// The service over this bank, in this process.
    pub fn transport(&self) -> InProcess {
        let schema = TableSchema::new("locks");
        let locks =
            LockTable::new(self.dynamodb.clone(), schema, leasehold_protocol::Policy::default(), Clock::system());
        let transactions = TransactionService::new(self.transactions.clone());
        InProcess::new(Service::new(locks)).with_transactions(transactions)
    }

    /// Writes an account without a transaction.
    pub async fn open(&self, id: &str, balance: i64) {
        self.write(account(id, balance)).await;
    }

    /// Writes an item into the table of the accounts, without a transaction.
    pub async fn write(&self, item: Item) {
        let put = self.dynamodb.put_item().table_name(ACCOUNTS).set_item(Some(item));
        put.send().await.expect("no faults here");
    }

    /// The item of an account as stored in the table, with its locks.
    pub async fn raw(&self, id: &str) -> Option<Item> {
        let get = self.dynamodb.get_item().table_name(ACCOUNTS).set_key(Some(key(id))).consistent_read(true);
        get.send().await.expect("no faults here").item
    }

    /// The balance as stored in the table.
    pub async fn balance(&self, id: &str) -> Option<i64> {
        self.raw(id).await.map(|item| balance_of(&item))
    }

    /// All items of a table.
    pub async fn scan(&self, table: &str) -> Vec<Item> {
        let mut items = Vec::new();
        let mut start = None;
        loop {
            let scan = self.dynamodb.scan().table_name(table).consistent_read(true).set_exclusive_start_key(start);
            let page = scan.send().await.expect("no faults here");
            items.extend(page.items.unwrap_or_default());
            start = page.last_evaluated_key;
            if start.is_none() {
                return items;
            }
        }
    }

    /// Removes a row of the transactions table.
    pub async fn remove_row(&self, row: Item) {
        let key = row.into_iter().filter(|(name, _)| name == "transactionId" || name == "row").collect();
        let delete = self.dynamodb.delete_item().table_name(TRANSACTIONS).set_key(Some(key));
        delete.send().await.expect("no faults here");
    }

    /// Removes the rows of the transactions table that TTL may remove by `ahead` from now.
    pub async fn expire(&self, ahead: Duration) {
        let now = (self.now_ms)() / 1000 + ahead.as_secs();
        for row in self.scan(TRANSACTIONS).await {
            let expires = |at: &AttributeValue| at.as_n().expect("a number").parse::<u64>().expect("whole") < now;
            if row.get("expireAt").is_some_and(expires) {
                self.remove_row(row).await;
            }
        }
    }

    /// Returns a rolled-back transaction that cannot free its only item, because the image of the item is missing.
    pub async fn stick(&self, transactions: &Transactions, id: &str) -> TransactionId {
        self.open(id, 1).await;
        let transaction = begin(transactions).await;
        transactions.add(&transaction, vec![add(id, 1)], None).await.expect("added");
        let damage = self.dynamodb.update_item().table_name(ACCOUNTS).set_key(Some(key(id)));
        let damage = damage.update_expression("SET leaseholdTxImage = :row");
        let damage = damage.expression_attribute_values(":row", AttributeValue::S("2#none".into()));
        damage.send().await.expect("no faults here");
        let told = transactions.rollback(&transaction).await;
        assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
        transaction
    }

    /// Sweeps twice with one coordinator, so that it sees for long enough that nobody works on a transaction. Returns
    /// the second sweep.
    pub async fn sweep_idle(&self, sweeper: &Transactions) -> Swept {
        sweeper.sweeper.sweep(10_000).await.expect("swept");
        tokio::time::sleep(sweeper.sweeper.idle_time() + Duration::from_secs(1)).await;
        sweeper.sweeper.sweep(10_000).await.expect("swept")
    }

    /// Panics unless every account is free of attributes of transactions, and every transaction is finished, out of the
    /// sweeper's index, and will expire.
    pub async fn assert_clean(&self) {
        for item in self.scan(ACCOUNTS).await {
            assert!(!item.keys().any(|name| name.starts_with("leaseholdTx")), "a lock is left: {item:?}");
        }
        for row in self.scan(TRANSACTIONS).await {
            let name = row["row"].as_s().expect("a text").clone();
            if name.starts_with("0#") {
                assert!(row.contains_key("finished"), "a transaction is not finished: {row:?}");
                assert!(!row.contains_key("sweepAt"), "a transaction is still in the index: {row:?}");
            }
            assert!(row.contains_key("expireAt"), "a row stays for ever: {row:?}");
        }
    }
}

fn coordinator(
    dynamodb: &Client,
    policy: Policy,
    now_ms: &Arc<dyn Fn() -> u64 + Send + Sync>,
    ahead: Duration,
) -> (Transactions, Faults) {
    let (client, faults) = Faults::between(dynamodb);
    let now_ms = Arc::clone(now_ms);
    let ahead = u64::try_from(ahead.as_millis()).expect("a sane clock");
    let clock = Clock::from_fn(move || now_ms() + ahead);
    (Transactions::new(&client, TRANSACTIONS, policy, clock, vec!["locks".into()]), faults)
}

/// Creates the table of a user, with the key `id` (S), and the transactions table.
pub async fn make_tables(dynamodb: &Client, accounts: &str, transactions: &str) {
    let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S).build();
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build();
    dynamodb
        .create_table()
        .table_name(accounts)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(id.expect("complete"))
        .key_schema(key.expect("complete"))
        .send()
        .await
        .expect("a new table");
    ensure_table(dynamodb, transactions).await.expect("a new table");
}

/// An account.
pub fn account(id: &str, balance: i64) -> Item {
    let mut item = key(id);
    item.insert("balance".into(), AttributeValue::N(balance.to_string()));
    item
}

/// An item of the accounts table with a text of this many bytes, all the same.
pub fn padded(id: &str, byte: &str, bytes: usize) -> Item {
    let mut item = key(id);
    item.insert("padding".into(), AttributeValue::S(byte.repeat(bytes)));
    item
}

/// The balance of an account.
pub fn balance_of(item: &Item) -> i64 {
    item["balance"].as_n().expect("a number").parse().expect("a whole number")
}

/// The key of an account.
pub fn key(id: &str) -> Item {
    Item::from([("id".into(), AttributeValue::S(id.into()))])
}

/// A request with nothing but an action.
pub fn request(action: Action) -> TransactionRequest {
    TransactionRequest {
        table: ACCOUNTS.into(),
        action,
        condition: None,
        names: HashMap::new(),
        values: Item::new(),
        return_values: ReturnValues::None,
        return_item_on_failure: false,
    }
}

/// Locks and reads an account.
pub fn get(id: &str) -> TransactionRequest {
    request(Action::Get { key: key(id), projection: None })
}

/// Replaces an account.
pub fn put(id: &str, balance: i64) -> TransactionRequest {
    request(Action::Put { item: account(id, balance) })
}

/// Removes an account.
pub fn delete(id: &str) -> TransactionRequest {
    request(Action::Delete { key: key(id) })
}

/// Adds to an account.
pub fn add(id: &str, amount: i64) -> TransactionRequest {
    let mut request = request(Action::Update { key: key(id), expression: "ADD balance :amount".into() });
    request.values.insert(":amount".into(), AttributeValue::N(amount.to_string()));
    request
}

/// Adds 1 to each of this many accounts: `0`, `1` and so on.
pub fn adds(count: usize) -> Vec<TransactionRequest> {
    (0..count).map(|number| add(&number.to_string(), 1)).collect()
}

/// The request, under a condition.
pub fn when(request: TransactionRequest, condition: &str) -> TransactionRequest {
    TransactionRequest { condition: Some(condition.into()), ..request }
}

/// A read outside of transactions.
pub fn look(id: &str) -> ReadRequest {
    ReadRequest { table: ACCOUNTS.into(), key: key(id), projection: None, names: HashMap::new() }
}

/// Begins a transaction.
///
/// # Panics
/// Panics if the transaction cannot be begun.
pub async fn begin(transactions: &Transactions) -> TransactionId {
    transactions.begin(None, None).await.expect("a new transaction")
}
