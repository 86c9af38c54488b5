//! The expressions of transactions and their pure life cycle are the same rules. Coordinators make random sequences of
//! operations on one id, over many lives of it. Each of their writes is observed alone, carried out or lost, and
//! repeated later, in any state of the rows: the rows are those that the life cycle gives.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use leasehold_dynamodb::Clock;
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS, account, add, delete, get, padded, put, request, when};
use leasehold_tests::without_token;
use leasehold_transactions::life::{self, Change, Enlisted, Record, Rows, Write};
use leasehold_transactions::{
    Action, Item, Policy, QueryRequest, State, TransactionId, TransactionRequest, Transactions,
};
use proptest::prelude::*;
use tokio::time::Instant;

use crate::property_bench::check_sequences;

/// The items of the transaction. The last one does not exist at the beginning.
const ITEMS: [&str; 2] = ["a", "b"];

/// An item above 180 KB does not fit into the item that replaces it.
const LARGE: usize = 181_000;

/// One step of a sequence.
#[derive(Debug, Clone)]
enum Step {
    /// A coordinator works. Its writes have these fates, and those after them are carried out.
    Work { work: Work, fates: Vec<Fate> },
    /// A copy of an earlier write arrives, counted from the last one.
    Deliver(usize),
    /// TTL removes the rows of a finished transaction.
    Expire,
    /// Another transaction takes an item, past the lock that it may have.
    Taken(usize),
    /// It frees the item.
    Left(usize),
}

#[derive(Debug, Clone)]
enum Work {
    Begin,
    /// Requests for one item or more, each once.
    Add(Vec<Request>),
    /// A query that finds this item.
    Query(usize),
    Commit,
    Rollback,
}

/// A request for an item.
#[derive(Debug, Clone, Copy)]
struct Request {
    verb: Verb,
    item: usize,
    value: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    Check,
    Put,
    /// A put of an item of which an image has a row of its own.
    PutLarge,
    Update,
    Delete,
}

/// The fate of a write that its condition allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    /// It is carried out, and its coordinator is not told.
    AnswerLost,
    /// It does not arrive for now.
    Lost,
}

fn step() -> impl Strategy<Value = Step> {
    let verb = prop::sample::select(vec![
        Verb::Get,
        Verb::Check,
        Verb::Put,
        Verb::Put,
        Verb::PutLarge,
        Verb::Update,
        Verb::Update,
        Verb::Delete,
    ]);
    let request = (verb, 1..100_i64);
    let add = (prop::collection::vec(request, 1..=ITEMS.len()), 0..ITEMS.len()).prop_map(|(requests, first)| {
        let of_item = |(place, (verb, value))| Request { verb, item: (first + place) % ITEMS.len(), value };
        Work::Add(requests.into_iter().enumerate().map(of_item).collect())
    });
    let query = (0..ITEMS.len()).prop_map(Work::Query);
    let work =
        prop_oneof![2 => Just(Work::Begin), 6 => add, 2 => query, 2 => Just(Work::Commit), 1 => Just(Work::Rollback)];
    let fate = prop_oneof![4 => Just(Fate::Answered), 1 => Just(Fate::AnswerLost), 2 => Just(Fate::Lost)];
    // A coordinator gives up after nine of them.
    let cut_off = (0..3_usize).prop_map(|after| [vec![Fate::Answered; after], vec![Fate::Lost; 30]].concat());
    let fates = prop_oneof![3 => prop::collection::vec(fate, 0..4), 1 => cut_off];
    prop_oneof![
        6 => (work, fates).prop_map(|(work, fates)| Step::Work { work, fates }),
        3 => (0..4_usize).prop_map(Step::Deliver),
        3 => (0..100_usize).prop_map(Step::Deliver),
        3 => Just(Step::Expire),
        2 => (0..ITEMS.len()).prop_map(Step::Taken),
        2 => (0..ITEMS.len()).prop_map(Step::Left),
    ]
}

/// A bank, and a coordinator whose requests are observed one by one.
struct Observed {
    transactions: Transactions,
    id: TransactionId,
    seam: Seam,
}

/// An [`HttpClient`] that observes each write.
#[derive(Clone)]
struct Seam {
    inner: SharedHttpClient,
    bank: Arc<Bank>,
    /// One request at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// The nonces, in the order of the lives.
    lives: Vec<String>,
    fates: VecDeque<Fate>,
    /// The requests of the add that the coordinator works on.
    requests: Vec<Request>,
    copies: Vec<Copy>,
}

/// A request that was carried out once, and the writes of the life cycle that it stands for. Several writes are
/// independent of each other.
struct Copy {
    connector: SharedHttpConnector,
    request: HttpRequest,
    writes: Vec<Write>,
}

impl Observed {
    async fn new(bank: Bank) -> Self {
        bank.write(large(ITEMS[0], 1)).await;
        let config = bank.dynamodb.config().clone();
        let inner = config.http_client().expect("it has one");
        let seam = Seam { inner, bank: Arc::new(bank), turn: Arc::default(), state: Arc::default() };
        let client = Client::from_conf(config.to_builder().http_client(seam.clone()).build());
        let start = Instant::now();
        let clock = Clock::from_fn(move || {
            4_102_444_800_000 + u64::try_from(start.elapsed().as_millis()).expect("tests do not run that long")
        });
        let transactions = Transactions::new(&client, TRANSACTIONS, Policy::default(), clock, Vec::new());
        Self { transactions, id: TransactionId::fresh(), seam }
    }

    async fn check(&self, step: &Step) {
        match step {
            Step::Work { work, fates } => {
                self.seam.lock().fates = fates.iter().copied().collect();
                self.work(work).await;
                self.seam.lock().fates.clear();
            }
            Step::Deliver(number) => self.seam.deliver(*number).await,
            Step::Expire => {
                if self.seam.rows().await.record.is_some_and(|record| record.is_finished) {
                    for row in self.seam.bank.scan(TRANSACTIONS).await {
                        self.seam.bank.remove_row(row).await;
                    }
                    // The record outlives the copies of the write that began it.
                    let begins = |copy: &Copy| matches!(copy.writes[..], [Write::Begin { .. }]);
                    self.seam.lock().copies.retain(|copy| !begins(copy));
                }
            }
            Step::Taken(item) => self.seam.set_lock(ITEMS[*item], Some("another#nonce#1")).await,
            Step::Left(item) => self.seam.set_lock(ITEMS[*item], None).await,
        }
    }

    async fn work(&self, work: &Work) {
        let (transactions, id) = (&self.transactions, &self.id);
        if !matches!(work, Work::Begin) && self.seam.rows().await.record.is_none() {
            return;
        }
        // A refusal is an answer too. The rows are what is compared.
        match work {
            Work::Begin => drop(transactions.begin(Some(id.clone()), None).await),
            Work::Add(requests) => {
                self.seam.lock().requests.clone_from(requests);
                let requests =
                    requests.iter().map(|request| request.verb.of(ITEMS[request.item], request.value)).collect();
                drop(transactions.add(id, requests, None).await);
            }
            Work::Query(item) => {
                self.seam.lock().requests = vec![Request { verb: Verb::Get, item: *item, value: 0 }];
                let query = QueryRequest {
                    table: ACCOUNTS.into(),
                    key_condition: "id = :id".into(),
                    values: Item::from([(":id".into(), AttributeValue::S(ITEMS[*item].into()))]),
                    ..QueryRequest::default()
                };
                drop(transactions.query(id, &query, None).await);
            }
            Work::Commit => drop(transactions.commit(id).await),
            Work::Rollback => drop(transactions.rollback(id).await),
        }
    }
}

/// An account of which an image has a row of its own.
fn large(id: &str, balance: i64) -> Item {
    padded(id, "x", LARGE).into_iter().chain(account(id, balance)).collect()
}

impl Verb {
    fn of(self, id: &str, value: i64) -> TransactionRequest {
        match self {
            Self::Get => get(id),
            Self::Check => {
                let key = leasehold_tests::bank::key(id);
                when(request(Action::Check { key }), "attribute_not_exists(nothing)")
            }
            Self::Put => put(id, value),
            Self::PutLarge => request(Action::Put { item: large(id, value) }),
            Self::Update => add(id, value),
            Self::Delete => delete(id),
        }
    }
}

impl Seam {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().expect("no test panics while it holds this")
    }

    async fn rows(&self) -> Rows {
        self.read(&self.stored().await)
    }

    /// All rows of the accounts, and of the transactions.
    async fn stored(&self) -> [Vec<Item>; 2] {
        [self.bank.scan(ACCOUNTS).await, self.bank.scan(TRANSACTIONS).await]
    }

    /// Gives an item that exists the lock of another transaction, or takes that lock from it.
    async fn set_lock(&self, id: &str, lock: Option<&str>) {
        let Some(mut item) = self.bank.raw(id).await else { return };
        match lock {
            Some(lock) => {
                item.insert("leaseholdTxId".into(), AttributeValue::S(lock.into()));
                item.insert("leaseholdTxOperation".into(), AttributeValue::S("update".into()));
            }
            None if item.get("leaseholdTxId").is_some_and(|lock| text(lock).starts_with("another#")) => {
                item.retain(|name, _| !name.starts_with("leaseholdTx"));
            }
            None => {}
        }
        self.bank.write(item).await;
    }

    async fn restore(&self, stored: [Vec<Item>; 2]) {
        let [accounts, rows] = stored;
        for (table, names, before) in
            [(ACCOUNTS, &["id"][..], accounts), (TRANSACTIONS, &["transactionId", "row"], rows)]
        {
            let key =
                |item: &Item| names.iter().map(|name| ((*name).to_owned(), item[*name].clone())).collect::<Item>();
            for item in self.bank.scan(table).await {
                if !before.iter().any(|kept| key(kept) == key(&item)) {
                    let delete = self.bank.dynamodb.delete_item().table_name(table).set_key(Some(key(&item)));
                    delete.send().await.expect("deleted");
                }
            }
            for item in before {
                let put = self.bank.dynamodb.put_item().table_name(table).set_item(Some(item));
                put.send().await.expect("put");
            }
        }
    }

    /// The number of the life with this nonce.
    fn life(&self, nonce: &str) -> u64 {
        let lives = &mut self.lock().lives;
        let known = lives.iter().position(|life| life == nonce);
        let place = known.unwrap_or_else(|| {
            lives.push(nonce.to_owned());
            lives.len() - 1
        });
        u64::try_from(place).expect("few lives")
    }

    /// The rows in the terms of the life cycle.
    fn read(&self, [accounts, rows]: &[Vec<Item>; 2]) -> Rows {
        let record = rows.iter().find(|row| text(&row["row"]).starts_with("0#")).map(|row| {
            let versions = row.get("unapplied").map(|versions| versions.as_ns().expect("a set").clone());
            Record {
                life: self.life(text(&row["nonce"])),
                state: match text(&row["state"]) {
                    "committed" => State::Committed,
                    "rolled-back" => State::RolledBack,
                    _ => State::Pending,
                },
                version: integer(&row["version"]).try_into().expect("positive"),
                unapplied: versions.into_iter().flatten().map(|version| version.parse().expect("whole")).collect(),
                is_finished: row.contains_key("finished"),
            }
        });
        let account = |id: &&str| accounts.iter().find(|item| text(&item["id"]) == *id);
        let image =
            |name: &AttributeValue| rows.iter().find(|row| row.get("row") == Some(name))?.get("item")?.as_m().ok();
        let read = |item: &Item| self.item(item, item.get("leaseholdTxImage").and_then(image));
        Rows { record, items: ITEMS.iter().map(|id| account(id).map_or_else(Default::default, read)).collect() }
    }

    /// An item, with what a put replaced, if that is in a row of its own.
    fn item(&self, item: &Item, image: Option<&Item>) -> life::Item {
        // An item without a balance is there all the same.
        let balance = |item: &Item| Some(item.get("balance").map_or(0, integer));
        let content = balance(item);
        let Some(lock) = item.get("leaseholdTxId") else { return life::Item { content, lock: None } };
        let parts: Vec<_> = text(lock).split('#').collect();
        let operation = text(&item["leaseholdTxOperation"]);
        let is_transient = item.contains_key("leaseholdTxTransient");
        let inside = item.get("leaseholdTxBefore").map(|before| before.as_m().expect("an item"));
        let before = match (image.or(inside), item.get("leaseholdTxUndo_balance")) {
            _ if is_transient => None,
            (Some(before), _) => balance(before),
            (None, Some(AttributeValue::N(old))) => Some(old.parse().expect("whole")),
            (None, Some(_)) => Some(0),
            (None, None) => content,
        };
        let is_applied = operation != "put" || parts.get(3) == Some(&"applied");
        let version = parts[2].parse().expect("whole");
        let lock = life::Lock { life: self.life(parts[1]), version, is_applied, before };
        let is_absent = operation == "delete" || is_transient && matches!(operation, "get" | "check");
        life::Item { content: content.filter(|_| !is_absent), lock: Some(lock) }
    }

    /// Carries out a write, and says which writes of the life cycle made this change.
    async fn observe(
        &self,
        connector: &SharedHttpConnector,
        request: HttpRequest,
    ) -> Result<HttpResponse, ConnectorError> {
        let stored = self.stored().await;
        let before = self.read(&stored);
        let copy = request.try_clone().expect("in memory");
        let answer = connector.call(request).await;
        let after = self.rows().await;
        let writes = writes_between(&before, &after, &self.lock().requests);
        assert_eq!(after, all_after(before, &writes), "{writes:?}");
        if writes.is_empty() {
            return answer;
        }
        let fate = self.lock().fates.pop_front().unwrap_or(Fate::Answered);
        self.lock().copies.push(Copy { connector: connector.clone(), request: without_token(copy), writes });
        match fate {
            Fate::Answered => return answer,
            Fate::AnswerLost => {}
            Fate::Lost => self.restore(stored).await,
        }
        Err(ConnectorError::io("the connection was reset".into()))
    }

    /// Delivers a copy of one of the writes, and compares its effect.
    async fn deliver(&self, number: usize) {
        let (connector, request, writes) = {
            let state = self.lock();
            if state.copies.is_empty() {
                return;
            }
            let copy = state.copies.iter().rev().cycle().nth(number).expect("there are copies");
            (copy.connector.clone(), copy.request.try_clone().expect("in memory"), copy.writes.clone())
        };
        let before = self.rows().await;
        drop(connector.call(request).await);
        assert_eq!(self.rows().await, all_after(before.clone(), &writes), "{writes:?} on {before:?}");
    }
}

impl HttpClient for Seam {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        let inner = self.inner.http_connector(settings, components);
        SharedHttpConnector::new(Connector { seam: self.clone(), inner })
    }
}

impl std::fmt::Debug for Seam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seam")
    }
}

#[derive(Debug)]
struct Connector {
    seam: Seam,
    inner: SharedHttpConnector,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (seam, inner) = (self.seam.clone(), self.inner.clone());
        HttpConnectorFuture::new(async move {
            let _turn = seam.turn.lock().await;
            seam.observe(&inner, request).await
        })
    }
}

/// The rows after independent writes.
fn all_after(rows: Rows, writes: &[Write]) -> Rows {
    writes.iter().fold(rows, |rows, write| rows.after(write).unwrap_or(rows))
}

/// The writes that lead from one state of the rows to the other. An add was of these requests.
fn writes_between(before: &Rows, after: &Rows, requests: &[Request]) -> Vec<Write> {
    let mut writes = Vec::new();
    match (&before.record, &after.record) {
        (None, Some(record)) => writes.push(Write::Begin { life: record.life }),
        (Some(old), Some(new)) => {
            let (life, version) = (old.life, old.version);
            if new.version > version {
                let items = requests.iter().filter_map(|request| enlisted(before, after, *request)).collect();
                return vec![Write::Add { life, version, items }];
            }
            if new.state != old.state {
                writes.push(Write::Decide { life, version, outcome: new.state });
            }
            let gone: BTreeSet<_> = old.unapplied.difference(&new.unapplied).collect();
            writes.extend(gone.into_iter().map(|version| Write::Confirm { life, version: *version }));
            if new.is_finished && !old.is_finished {
                writes.push(Write::Finish { life });
            }
        }
        (_, None) => {}
    }
    let outcome = before.record.as_ref().map_or(State::Pending, |record| record.state);
    for (item, (old, new)) in before.items.iter().zip(&after.items).enumerate() {
        match (old.lock, new.lock) {
            (Some(seen), Some(lock)) if !seen.is_applied && lock.is_applied => {
                let content = new.content.expect("a put has a content");
                writes.push(Write::Apply { item, seen, content });
            }
            (Some(seen), None) => writes.push(Write::free(item, seen, outcome)),
            _ => {}
        }
    }
    writes
}

/// The part of an add that concerns the item of a request, or `None` where the write does not name the item.
fn enlisted(before: &Rows, after: &Rows, Request { verb, item, .. }: Request) -> Option<Enlisted> {
    let (seen, now) = (before.items[item].lock, after.items[item]);
    let change = match now.lock {
        // The transaction has the item, and a check of an item that is absent for it is made elsewhere.
        lock if lock == seen && (verb == Verb::Get || now.content.is_none()) => return None,
        lock if lock == seen => Change::Check,
        Some(lock) if !lock.is_applied => Change::Later,
        _ => Change::Now(now.content),
    };
    Some(Enlisted { item, seen, change })
}

fn text(value: &AttributeValue) -> &str {
    value.as_s().expect("a text")
}

fn integer(value: &AttributeValue) -> i64 {
    value.as_n().expect("a number").parse().expect("a whole number")
}

#[test]
fn transaction_expressions_are_the_pure_life_cycle() {
    let bench = async || {
        tokio::time::pause();
        Observed::new(Bank::new().await).await
    };
    check_sequences(128, file!(), step(), bench, async |observed, step| observed.check(step).await);
}
