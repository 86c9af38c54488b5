//! The assembly: store, tables, services, and the sweeper beside them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use axum::Router;
use axum::body::Body;
use leasehold_api::access::Caller;
use leasehold_api::http::{problem_response, unknown_route};
use leasehold_api::{Quota, Recorder, Routed, Service, TransactionService};
use leasehold_dynamodb::{Clock, Failure};
use leasehold_engine::{Engine, EngineError};
use leasehold_protocol::history::{HistoryTable, ensure_history_table};
use leasehold_protocol::{LockTable, Policy, TableSchema, check_table, ensure_table};
use leasehold_terraform::Name;
use leasehold_transactions::{self as transactions, Transactions};
use leasehold_wire::operation::Scope;
use leasehold_wire::transactions::SweepRequest;
use leasehold_wire::{HealthRequest, ListRequest};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::expiry::expire_repeatedly;
use crate::health::Health;
use crate::history::History;
use crate::load::Load;
use crate::routes::{Checked, protect, routes, routes_of};
use crate::terraform::{self, States};
use crate::tls::Tls;
use crate::tokens::Tokens;
use crate::{connections, console, metrics};
use leasehold_origin::Guard;

/// The longest pause between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The pause between two sweeps of expired rows, and the longest time of one. TTL takes days.
const EXPIRE_INTERVAL: Duration = Duration::from_hours(6);

/// The longest wait, at a stop, for the changes that are not in the history yet.
const LAST_ENTRIES: Duration = Duration::from_secs(5);

/// The pause between two looks at the files of tokens and certificates.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// The public side of a server: hosts, tokens, certificate and name.
#[derive(Debug)]
pub struct Front {
    /// The hosts that the service answers to.
    pub guard: Guard,
    /// The callers that are accepted. Absent: all.
    pub tokens: Option<Arc<Tokens>>,
    /// The certificate. Absent: plain HTTP.
    pub tls: Option<Tls>,
    /// Terraform's states. Absent: none are served.
    pub states: Option<States>,
    /// The name of the service, which the console shows.
    pub name: String,
}

/// The tables, and the rules for their contents.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The place of the tables.
    pub store: Store,
    /// The table of the locks.
    pub schema: TableSchema,
    /// The rules of the locks.
    pub policy: Policy,
    /// Whether a takeover by an observed version also needs the server's clock to be past the lease.
    pub takeover_clock_check: bool,
    /// Whether the table of the locks is in several regions, with strong consistency. There are no transactions then.
    pub multi_region: bool,
    /// The name of the table of the transactions.
    pub transaction_table: String,
    /// The rules of the transactions.
    pub transaction_policy: transactions::Policy,
    /// The history of the locks. Absent: none is kept.
    pub history: Option<HistorySettings>,
}

/// The history of the locks.
#[derive(Debug, Clone)]
pub struct HistorySettings {
    /// The name of its table.
    pub table: String,
    /// The time for which an entry stays: any duration.
    pub retention: Duration,
}

/// The place of the tables.
#[derive(Debug, Clone)]
pub enum Store {
    /// A file of the embedded engine. Every write is on disk before it is answered.
    File(PathBuf),
    /// The memory of the embedded engine, until the process ends.
    Memory,
    /// The DynamoDB at this URL.
    Endpoint(String),
}

/// The reason why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The keys' names do not fit a lock table.
    #[error("{0}")]
    Schema(String),
    /// Locks and transactions name the same table.
    #[error("The locks and the transactions need a table each: name another one with --transaction-table.")]
    OneTable,
    /// The history has the table of the locks or of the transactions.
    #[error("The history needs a table of its own: name another one with --history-table.")]
    HistoryTable,
    /// The changes of a DynamoDB are not this process's alone.
    #[error("--history is for the embedded engine: a DynamoDB's history is kept by the stack's History")]
    HistoryElsewhere,
    /// The embedded engine did not start.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// A table is missing and cannot be created, or has other keys.
    #[error("{}", .0.for_log())]
    Table(Failure),
    /// The machine's clock is before 1970: no HTTP answer can be dated, and no fencing token can be seeded.
    #[error("this machine's clock is before 1970; set it, then start again")]
    Clock,
    /// The locks of Terraform's states cannot be told.
    #[error("cannot list the locks: {0}")]
    Listing(String),
    /// Writes do not reach the database.
    #[error("cannot write to the database: {0}")]
    ReadOnly(String),
}

/// The tables and the services over them.
#[derive(Debug)]
pub struct Server {
    engine: Option<Engine>,
    table: String,
    locks: Service,
    transactions: TransactionService,
    sweep_interval: Duration,
    history: Option<History>,
    clock: Clock,
    retention: Duration,
}

impl Server {
    /// Opens the store, and creates missing tables.
    ///
    /// # Errors
    /// A sentence about the settings or the store.
    pub async fn open(settings: Settings) -> Result<Self, ServerError> {
        let Settings {
            store,
            schema,
            policy,
            takeover_clock_check,
            multi_region,
            transaction_table,
            transaction_policy,
            history,
        } = settings;
        schema.check().map_err(ServerError::Schema)?;
        if schema.table_name == transaction_table {
            return Err(ServerError::OneTable);
        }
        if history.as_ref().is_some_and(|it| it.table == schema.table_name || it.table == transaction_table) {
            return Err(ServerError::HistoryTable);
        }
        let clock = Clock::system();
        check_clock(&clock)?;
        let (engine, client) = open_store(store).await?;
        if multi_region {
            check_table(&client, &schema).await.map_err(ServerError::Table)?;
        } else {
            ensure_table(&client, &schema).await.map_err(ServerError::Table)?;
            transactions::ensure_table(&client, &transaction_table).await.map_err(ServerError::Table)?;
        }
        if let Some(engine) = &engine {
            engine.check_writes(&schema.table_name).await.map_err(ServerError::ReadOnly)?;
        }
        // An abandoned transaction waits no longer for a sweep than it was idle.
        let sweep_interval = Duration::from_millis(transaction_policy.idle_ms.max(100)).min(SWEEP_INTERVAL);
        let table = schema.table_name.clone();
        let protected = vec![schema.table_name.clone()];
        let transactions = Transactions::new(&client, transaction_table, transaction_policy, clock.clone(), protected);
        let history = match (history, &engine) {
            (None, _) => None,
            (Some(_), None) => return Err(ServerError::HistoryElsewhere),
            (Some(settings), Some(engine)) => Some(follow(engine, &client, &schema, settings, &clock).await?),
        };
        let retention = Duration::from_secs(policy.retention_seconds);
        let locks = LockTable::new(client, schema, policy, clock.clone());
        let locks = Service::new(locks).check_takeovers_by_clock(takeover_clock_check).bound_listings();
        let locks = locks.multi_region(multi_region);
        let locks = history.iter().fold(locks, |locks, it| locks.with_history(it.recorder.history.clone()));
        let transactions = TransactionService::new(transactions).multi_region(multi_region);
        Ok(Self { engine, table, locks, transactions, sweep_interval, history, clock, retention })
    }

    /// Bounds the locks and the tickets of each principal.
    #[must_use]
    pub fn with_quota(self, quota: Quota) -> Self {
        Self { locks: self.locks.with_quota(quota), ..self }
    }

    /// Compares the folder of Terraform's states with their locks. A state that has a lock and is not in the folder is
    /// refused, and not taken for a new one.
    ///
    /// # Errors
    /// The locks cannot be listed.
    pub async fn compare(&self, states: &mut States) -> Result<(), ServerError> {
        let (everybody, mut known, mut cursor) = (Caller::unrestricted(), Vec::new(), None);
        loop {
            let request = ListRequest { cursor, ..ListRequest::default() };
            let page = self.locks.list(&everybody, request).await.map_err(|it| ServerError::Listing(it.detail))?;
            known.extend(page.locks.iter().filter_map(|lock| Name::of_key(&lock.key)));
            let Some(next) = page.next_cursor else { break };
            cursor = Some(next);
        }
        states.compare(known.into_iter());
        Ok(())
    }

    /// A way to see whether the service works.
    pub fn pulse(&self) -> Pulse {
        Pulse { locks: self.locks.clone() }
    }

    /// The embedded engine, unless the tables are at an endpoint.
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// Serves until `shutdown` resolves, then finishes the requests in flight.
    pub async fn run(self, listener: TcpListener, front: Front, shutdown: impl Future<Output = ()>) {
        let Self { engine, table, locks, transactions, sweep_interval, history, clock, retention } = self;
        let Front { guard, tokens, tls, states, name } = front;
        let states = states.map(Arc::new);
        let backend = states.clone().map_or_else(Router::new, |states| terraform::routes(locks.clone(), states));
        let stopping = Arc::new(AtomicBool::new(false));
        let watched = locks.clone();
        let expiring = engine.clone().map(|engine| tokio::spawn(expire_repeatedly(engine, clock, retention)));
        let health = Health { locks: locks.clone(), engine, table, states, stopping: Arc::clone(&stopping) };
        // The probes answer in place of the operation without a right.
        let scoped = Service::ROUTES.iter().filter(|route| route.operation.scope != Some(Scope::Anyone));
        let app = routes_of(locks, scoped)
            .merge(routes(transactions.clone()))
            .merge(console::about(&name))
            .merge(backend)
            .fallback(async || problem_response(&unknown_route()).map(Body::from));
        let mut background = vec![tokio::spawn(reload_repeatedly(tokens.clone(), tls.clone()))];
        background.extend(expiring);
        background.push(if transactions.is_multi_region() {
            tokio::spawn(remove_expired_repeatedly(watched.clone()))
        } else {
            tokio::spawn(sweep_repeatedly(transactions, sweep_interval))
        });
        let served = Arc::new(Notify::new());
        let history = history.map(|history| {
            let served = Arc::clone(&served);
            tokio::spawn(async move { history.keep(served.notified()).await })
        });
        let app = match metrics::start() {
            Some((counts, folding)) => {
                background.push(folding);
                app.merge(counts)
            }
            None => app,
        };
        let app = protect(app, console::routes(), health.routes(), Checked { guard, tokens, load: Load::default() });
        let shutdown = async {
            shutdown.await;
            stopping.store(true, Ordering::Relaxed);
            watched.close_watches();
        };
        connections::run_tls(listener, tls, app, shutdown).await;
        served.notify_one();
        if let Some(history) = history {
            let _ = timeout(LAST_ENTRIES, history).await;
        }
        // A sweep may stop anywhere: the next one continues. One that is at its write ends it first.
        for task in background {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Follows the changes of the lock table.
async fn follow(
    engine: &Engine,
    client: &Client,
    schema: &TableSchema,
    settings: HistorySettings,
    clock: &Clock,
) -> Result<History, ServerError> {
    let HistorySettings { table, retention } = settings;
    ensure_history_table(client, &table).await.map_err(ServerError::Table)?;
    let keys = std::iter::once(&schema.partition_key).chain(&schema.sort_key).cloned().collect();
    let changes = engine.follow(&schema.table_name, keys);
    let history = HistoryTable::new(client.clone(), table, retention);
    Ok(History { recorder: Recorder { schema: schema.clone(), history }, changes, clock: clock.clone() })
}

/// The sign of life of a server.
#[derive(Debug)]
pub struct Pulse {
    locks: Service,
}

impl Pulse {
    /// Returns whether the table answers within this time, any duration. A failure is an answer: a restart would not
    /// help.
    pub async fn beats(&self, within: Duration) -> bool {
        let anyone = Caller::unrestricted();
        let read = self.locks.health(&anyone, HealthRequest::default());
        timeout(within, leasehold_engine::urgent(read)).await.is_ok()
    }
}

/// Reads tokens and certificates again when their files change.
async fn reload_repeatedly(tokens: Option<Arc<Tokens>>, tls: Option<Tls>) {
    let mut ticks = interval(RELOAD_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(tokens) = &tokens {
            tokens.reload();
        }
        if let Some(tls) = &tls {
            tls.reload();
        }
    }
}

/// Refuses a system clock before 1970, which reads as 0.
fn check_clock(clock: &Clock) -> Result<(), ServerError> {
    if clock.now_ms() == 0 { Err(ServerError::Clock) } else { Ok(()) }
}

async fn open_store(store: Store) -> Result<(Option<Engine>, Client), EngineError> {
    let engine = match store {
        Store::File(path) => Engine::open(&path)?,
        Store::Memory => Engine::memory()?,
        Store::Endpoint(url) => return Ok((None, leasehold_dynamodb::connect(Some(&url)).await)),
    };
    let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    Ok((Some(engine), client))
}

/// Completes or rolls back abandoned transactions, as the scheduled function does.
async fn sweep_repeatedly(transactions: TransactionService, pause: Duration) {
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // The service logs a failure. The next sweep may succeed.
        while transactions.sweep(SweepRequest::default()).await.is_ok_and(|swept| swept.more) {}
    }
}

/// Removes expired rows, as the scheduled function does.
async fn remove_expired_repeatedly(locks: Service) {
    let mut ticks = interval(EXPIRE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // The service logs a failure. The next sweep may succeed.
        let _ = locks.expire(EXPIRE_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pulse_stops_when_the_table_does_not_answer() {
        let schema = TableSchema::new("locks");
        let service = |client| {
            let table = LockTable::new(client, schema.clone(), Policy::default(), Clock::system());
            Service::new(table)
        };
        let engine = Engine::memory().expect("it opens");
        let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
        ensure_table(&client, &schema).await.expect("created");
        assert!(Pulse { locks: service(client) }.beats(Duration::from_secs(30)).await);
        // Who connects here is never answered.
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", silent.local_addr().expect("bound"));
        let client = leasehold_dynamodb::connect(Some(&url)).await;
        assert!(!Pulse { locks: service(client) }.beats(Duration::from_millis(50)).await);
    }

    #[test]
    fn clock_before_1970_is_refused_in_a_sentence() {
        let refused = check_clock(&Clock::from_fn(|| 0)).expect_err("too early");
        assert!(refused.to_string().contains("before 1970"));
        assert!(check_clock(&Clock::system()).is_ok());
    }
}
