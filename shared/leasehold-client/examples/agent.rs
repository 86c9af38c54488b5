//! An agent of the nemesis: carries out orders by the Rust client. Each line of the input is an order, each of the
//! output its answer: a JSON object, with `error` where it failed. While it waits for a grant it says so five times a
//! second.

#![allow(clippy::disallowed_methods, reason = "the signs of life come by the clock")]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use leasehold_client::transactions::{Isolation, ListItemsRequest, Transaction, from_item};
use leasehold_client::wire::LockState;
use leasehold_client::{
    Acquisition, AllGuard, AllRequest, Client, Error, Guard, HttpTransport, LockRequest, Once, PermitGuard,
    PermitRequest, Release, Wait,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// The time for `once` or `lead`, whose body has ended. A leader who lost its lead stands again.
const ENDS: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Order {
    r#do: String,
    key: String,
    value: String,
    amount: u64,
    level: Option<Isolation>,
    kind: String,
    keys: Vec<String>,
    claim: String,
    permits: u64,
    capacity: u64,
    /// The permits, and the capacity, of each semaphore among several keys.
    shares: BTreeMap<String, u64>,
    capacities: BTreeMap<String, u64>,
    lease: f64,
    wait: f64,
    /// One request, without a wait.
    once: bool,
    occurrence: Option<String>,
    completed: Option<String>,
    data: Option<String>,
    pick: usize,
}

impl Order {
    fn release(&self) -> Release {
        let release = Release::new();
        let release = self.completed.iter().fold(release, Release::completed);
        self.data.iter().fold(release, |release, data| release.data(data.as_bytes()))
    }
}

enum Held {
    Lock(Guard),
    Permits(PermitGuard),
    All(AllGuard),
    Inside(Inside),
}

/// A guard that `once` or `lead` hands to its body. The body goes on until it is told to end; it fails where this is
/// dropped.
struct Inside {
    guard: Arc<Guard>,
    end: watch::Sender<bool>,
    outcome: JoinHandle<Result<(), Left>>,
}

/// The error of a client, or none where the body was left without success.
type Left = Option<Error>;

/// A body of `once` or `lead`.
type Body = Box<dyn Fn(Arc<Guard>) -> Pin<Box<dyn Future<Output = Result<(), Left>> + Send>> + Send + Sync>;

impl Inside {
    /// Starts `once` or `lead`. Returns nothing where the body was not called.
    async fn start<F: Future<Output = Result<(), Left>> + Send + 'static>(
        run: impl FnOnce(Body) -> F,
    ) -> Result<Option<Self>, Error> {
        let (begun, mut guards) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let body: Body = Box::new(move |guard| {
            let (begun, mut ended) = (begun.clone(), ended.clone());
            Box::pin(async move {
                drop(begun.send(guard));
                ended.wait_for(|is_done| *is_done).await.map(drop).map_err(|_| None)
            })
        });
        let outcome = tokio::spawn(run(body));
        match guards.recv().await {
            Some(guard) => Ok(Some(Self { guard, end, outcome })),
            None => match outcome.await {
                Ok(Err(Some(error))) => Err(error),
                _ => Ok(None),
            },
        }
    }

    /// Ends the body, and waits for the outcome.
    async fn end(self, succeeds: bool) -> Result<(), Left> {
        let Self { guard, end, outcome } = self;
        drop(guard);
        if succeeds {
            end.send_replace(true);
        } else {
            drop(end);
        }
        tokio::time::timeout(ENDS, outcome).await.map_or(Err(None), |outcome| outcome.unwrap_or(Err(None)))
    }
}

struct Agent {
    client: Client,
    table: String,
    transaction: Option<Transaction>,
    held: Option<Held>,
}

/// The list, or the counter, of an item.
fn value_of(item: Option<Value>) -> Value {
    item.map(|mut item| if item["n"].is_null() { item["l"].take() } else { item["n"].take() }).unwrap_or_default()
}

/// The result of a request, where it was granted.
fn granted<G, H>(acquired: Acquisition<G, H>) -> Option<G> {
    match acquired {
        Acquisition::Granted(guard) => Some(guard),
        Acquisition::Held(_) => None,
    }
}

impl Agent {
    async fn carry_out(&mut self, order: &Order) -> Result<Value, Error> {
        let key = json!({ "id": order.key });
        match (order.r#do.as_str(), &mut self.transaction, &mut self.held) {
            ("begin", ..) => {
                let transaction = self.client.begin_transaction().await?;
                let id = transaction.id().to_owned();
                // The one before was decided, or is left to the sweeper.
                drop(self.transaction.replace(transaction).map(Transaction::detach));
                return Ok(json!({ "id": id }));
            }
            ("get", Some(transaction), _) => {
                return Ok(json!({ "value": value_of(transaction.get(&self.table, key).await?) }));
            }
            ("change", Some(transaction), _) if order.amount > 0 => {
                transaction.update(&self.table, key, "ADD n :v", json!({ ":v": order.amount })).await?;
            }
            ("change", Some(transaction), _) => {
                let expression = "SET l = list_append(if_not_exists(l, :none), :v)";
                let values = json!({ ":none": [], ":v": [order.value] });
                transaction.update(&self.table, key, expression, values).await?;
            }
            ("delete", Some(transaction), _) => transaction.delete(&self.table, key).await?,
            ("commit" | "rollback", transaction, _) => {
                if let Some(taken) = transaction.take() {
                    let id = taken.id().to_owned();
                    let done = if order.r#do == "commit" { taken.commit().await } else { taken.rollback().await };
                    *transaction = Some(self.client.resume_transaction(id));
                    done?;
                }
            }
            ("look", ..) => {
                let item = self.client.read_item(&self.table, key, order.level.unwrap_or_default()).await?;
                return Ok(json!({ "value": value_of(item) }));
            }
            ("list", ..) => {
                let table_name = self.table.clone();
                let request = ListItemsRequest { table_name, isolation: order.level, ..ListItemsRequest::default() };
                let items: Vec<_> = self.client.list_items(request).try_collect().await?;
                let mut shown = Map::new();
                for item in items {
                    let item: Value = from_item(item)?;
                    shown.insert(item["id"].as_str().unwrap_or_default().to_owned(), value_of(Some(item)));
                }
                return Ok(json!({ "items": shown }));
            }
            ("acquire", ..) => {
                self.held = None;
                self.held = self.acquire_aloud(order).await?;
                let token = match &self.held {
                    None => return Ok(json!({ "held": true })),
                    Some(Held::Lock(guard)) => guard.fencing_token(),
                    Some(Held::Permits(guard)) => guard.fencing_token(),
                    Some(Held::All(guard)) => guard.fencing_token(),
                    Some(Held::Inside(inside)) => inside.guard.fencing_token(),
                };
                return Ok(json!({ "token": token }));
            }
            ("believe", _, held) => {
                let believed = match held {
                    None => false,
                    Some(Held::Lock(guard)) => guard.valid(),
                    Some(Held::Permits(guard)) => guard.valid(),
                    Some(Held::All(guard)) => guard.valid(),
                    Some(Held::Inside(inside)) => inside.guard.valid(),
                };
                return Ok(json!({ "believed": believed }));
            }
            ("renew", _, Some(Held::Lock(guard))) => guard.renew().await?,
            ("keep", _, Some(Held::Permits(guard))) => guard.keep(order.permits).await?,
            ("release", _, held) => match held.take() {
                Some(Held::Lock(guard)) => drop(guard.release_with(order.release()).await?),
                Some(Held::Permits(guard)) => drop(guard.release().await?),
                Some(Held::All(guard)) => drop(guard.release().await?),
                Some(Held::Inside(inside)) => {
                    match inside.end(order.kind == "lead" || order.completed.is_some()).await {
                        Ok(()) => {}
                        Err(Some(error)) => return Err(error),
                        Err(None) => return Ok(json!({ "error": "Unfinished" })),
                    }
                }
                None => {}
            },
            ("break", ..) => return self.break_one(order).await,
            _ => {}
        }
        Ok(json!({}))
    }

    /// Breaks a lock, or one of the holders and waiters of a semaphore.
    async fn break_one(&self, order: &Order) -> Result<Value, Error> {
        let key = order.key.as_str();
        if order.kind == "lock" {
            let lock = self.client.get(key).await?;
            if lock.state != LockState::Held {
                return Ok(json!({}));
            }
            self.client.break_lock(key, lock.record_version_number).await?;
            return Ok(json!({ "number": lock.fencing_token }));
        }
        let Some(view) = self.client.get_semaphore(key).await?.semaphore else { return Ok(json!({})) };
        let holders = view.holders.into_iter().map(|it| (it.holder_id, it.version, it.fencing_token));
        let mut entries: Vec<_> = holders.collect();
        entries.extend(view.queue.into_iter().map(|it| (it.ticket_id, it.version, it.number)));
        if entries.is_empty() {
            return Ok(json!({}));
        }
        let (id, version, number) = entries.swap_remove(order.pick % entries.len());
        self.client.break_entry(key, id, version).await?;
        Ok(json!({ "number": number }))
    }

    async fn acquire_aloud(&self, order: &Order) -> Result<Option<Held>, Error> {
        let acquiring = self.acquire(order);
        tokio::pin!(acquiring);
        loop {
            tokio::select! {
                acquired = &mut acquiring => return acquired,
                () = tokio::time::sleep(Duration::from_millis(200)) => println!("{}", json!({ "waiting": true })),
            }
        }
    }

    async fn acquire(&self, order: &Order) -> Result<Option<Held>, Error> {
        let [lease, wait] = [order.lease, order.wait].map(Duration::from_secs_f64);
        let (claim, wait) = (order.claim.as_str(), Wait::AtMost(wait));
        let key = order.keys.first().cloned().unwrap_or_default();
        Ok(match order.kind.as_str() {
            "semaphore" => {
                let semaphore = self.client.semaphore(key.as_str(), order.capacity);
                let request = PermitRequest::new().permits(order.permits).lease(lease).owner_name(claim);
                if order.wait == 0.0 {
                    granted(semaphore.try_acquire(request).await?).map(Held::Permits)
                } else {
                    granted(semaphore.acquire(request.wait(wait)).await?).map(Held::Permits)
                }
            }
            "all" => {
                let request = order.keys.iter().fold(AllRequest::default(), |request, key| {
                    match order.shares.get(key).zip(order.capacities.get(key)) {
                        Some((permits, capacity)) => request.permits(key.as_str(), *permits, *capacity),
                        None => request.lock(key.as_str()),
                    }
                });
                let request = request.lease(lease).owner_name(claim);
                granted(self.client.acquire_all(request.wait(wait)).await?).map(Held::All)
            }
            kind @ ("election" | "lead") => {
                let election = self.client.election(key.as_str(), claim);
                let election = election.with(|request| request.lease(lease).owner_name(claim).wait(wait));
                if kind == "lead" {
                    let leading = Inside::start(|body| async move { election.lead(body).await });
                    return Ok(leading.await?.map(Held::Inside));
                }
                Some(Held::Lock(election.campaign().await?))
            }
            "once" => {
                let request = LockRequest::new(key.as_str()).lease(lease).owner_name(claim).wait(wait);
                let (client, occurrence) = (self.client.clone(), order.occurrence.clone().unwrap_or_default());
                let run = |body: Body| async move {
                    let body = async |guard| body(guard).await.map(|()| None);
                    client.once(request, occurrence, body).await.map(|_: Once| ())
                };
                Inside::start(run).await?.map(Held::Inside)
            }
            _ => {
                let request = LockRequest::new(key.as_str()).lease(lease).owner_name(claim).wait(wait);
                let request = order.occurrence.iter().fold(request, LockRequest::occurrence);
                let acquired = if order.once {
                    self.client.try_acquire(request).await?
                } else {
                    self.client.acquire(request).await?
                };
                granted(acquired).map(Held::Lock)
            }
        })
    }
}

/// The message of an error, with those of its causes.
fn told(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", told(source)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::builder().owner_name("rust").build(HttpTransport::new(&std::env::var("LEASEHOLD_URL")?)?);
    let mut agent = Agent { client, table: std::env::var("CONTEND_TABLE")?, transaction: None, held: None };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = agent.carry_out(&serde_json::from_str(&line)?).await.unwrap_or_else(|error| {
            let kind = format!("{:?}", error.kind());
            let kind = kind.split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default();
            json!({ "error": kind, "detail": told(&error) })
        });
        println!("{answer}");
    }
    Ok(())
}
