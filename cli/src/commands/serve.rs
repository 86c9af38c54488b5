//! `leasehold serve`: the lock service on this machine.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use axum::Router;
use axum::body::Body;
use clap::Args;
use leasehold_api::http::{Operation, problem_response, unknown_route};
use leasehold_api::{Service, TransactionOperation, TransactionService};
use leasehold_engine::{Engine, EngineError};
use leasehold_protocol::{Clock, LockTable, Policy, TableSchema, ensure_table, sdk};
use leasehold_runtime::{LevelFilter, LogFormat, TransactionConfig, dynamodb_client, init_logging};
use leasehold_server::{self as server, Checked, Guard, Load, READY, Tls, TlsError, TokenError, Tokens};
use leasehold_server::{console, exposed, metrics};
use leasehold_transactions::{self as transactions, Transactions};
use leasehold_wire::transactions::SweepRequest;
use leasehold_wire::{Problem, ProblemType, path};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Between two looks at the files of tokens and certificates.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// Between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Run the lock service on this machine: an HTTP API over an embedded DynamoDB engine, or over any DynamoDB endpoint.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address and port of the HTTP API. Port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", env = "LEASEHOLD_LISTEN")]
    listen: SocketAddr,

    /// Also answer to this host name. Without it, the service answers to loopback names and to its own address only, so
    /// that no web page can reach it by a name of its own. May be repeated.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Ask callers for a token out of this file, which `leasehold token` writes. It is read again when it changes.
    #[arg(long, value_name = "PATH", env = "LEASEHOLD_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// Bind each lock to the bearer of the token that acquired it: nobody else can renew or release it.
    #[arg(long, requires = "token_file")]
    owner_binding: bool,

    /// Listen beyond this machine although whoever reaches the port may do everything.
    #[arg(long, conflicts_with = "token_file")]
    insecure: bool,

    /// Serve HTTPS with this certificate chain in PEM format. It is read again when it changes.
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert, in PEM format.
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Keep the tables in this file; every write is on disk before it is answered.
    #[arg(long, value_name = "PATH", default_value = "leasehold.db", group = "store")]
    db: PathBuf,

    /// Keep the tables in memory only; they are gone when the service stops.
    #[arg(long, group = "store")]
    memory: bool,

    /// Use the DynamoDB at this URL: DynamoDB Local, or a region's own endpoint with your AWS credentials.
    #[arg(long, value_name = "URL", group = "store")]
    dynamodb_endpoint: Option<String>,

    /// Let other DynamoDB clients reach the embedded tables, and make their own, on this port of the loopback interface.
    #[arg(long, value_name = "PORT", conflicts_with = "dynamodb_endpoint")]
    expose_dynamodb: Option<u16>,

    /// The name of the table of the locks. It is created where it is missing.
    #[arg(long, value_name = "NAME", default_value = "leasehold", env = "LEASEHOLD_TABLE_NAME")]
    table: String,

    /// The name of the partition key of the locks' table.
    #[arg(long, value_name = "NAME", default_value = "key", env = "LEASEHOLD_PARTITION_KEY")]
    partition_key: String,

    /// The name of its sort key, if it is to have one.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_SORT_KEY")]
    sort_key: Option<String>,

    /// How long after its lease a row stays before DynamoDB's TTL may delete it. (The embedded engine deletes nothing.)
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = Policy::default().retention_seconds,
        value_parser = clap::value_parser!(u64).range(1..=Policy::MAX_RETENTION_SECONDS),
        env = "LEASEHOLD_RETENTION_SECONDS"
    )]
    retention_seconds: u64,

    /// How far apart clocks may be for `staleness: "clock"` to be safe.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = Policy::default().clock_skew_ms,
        value_parser = clap::value_parser!(u64).range(1..=Policy::MAX_CLOCK_SKEW_MS),
        env = "LEASEHOLD_CLOCK_SKEW_MS"
    )]
    clock_skew_ms: u64,

    /// The name of the table of the transactions. It is created where it is missing.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "leasehold-transactions",
        env = "LEASEHOLD_TRANSACTION_TABLE_NAME"
    )]
    transaction_table: String,

    /// How long nobody must have worked on a transaction before it is rolled back.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = transactions::Policy::default().idle_ms / 1000,
        value_parser = clap::value_parser!(u64).range(1..=TransactionConfig::MAX_IDLE_SECONDS),
        env = "LEASEHOLD_TRANSACTION_IDLE_SECONDS"
    )]
    transaction_idle_seconds: u64,

    /// How long the outcome of a transaction is kept.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = transactions::Policy::default().retention_ms / 1000,
        value_parser = clap::value_parser!(u64).range(1..=Policy::MAX_RETENTION_SECONDS),
        env = "LEASEHOLD_TRANSACTION_RETENTION_SECONDS"
    )]
    transaction_retention_seconds: u64,

    /// How long a transaction that has an item may show no sign of life before another one that needs the item rolls it back.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = transactions::Policy::default().patience_ms,
        value_parser = clap::value_parser!(u64).range(1..=TransactionConfig::MAX_PATIENCE_MS),
        env = "LEASEHOLD_TRANSACTION_PATIENCE_MS"
    )]
    transaction_patience_ms: u64,
}

/// Why the service did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The keys' names do not fit a lock table.
    #[error("{0}")]
    Schema(String),
    /// The embedded engine did not start.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// The table is missing, and cannot be made, or has other keys.
    #[error("{}", .0.for_log())]
    Table(leasehold_protocol::Error),
    /// The same, of the table of the transactions.
    #[error("cannot use the table {table} for transactions: {}", .source.for_log())]
    TransactionTable {
        /// Its name.
        table: String,
        /// What DynamoDB said.
        source: transactions::Error,
    },
    /// One table cannot be both.
    #[error("The locks and the transactions need a table each: name another one with --transaction-table.")]
    OneTable,
    /// The token file cannot be used.
    #[error("{0}")]
    Tokens(#[from] TokenError),
    /// The certificate cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// Whoever reaches the port could do everything.
    #[error(
        "refusing to listen on {0}, beyond this machine, without a token: name a file with --token-file (`leasehold token` \
         makes one), or say --insecure where the network keeps strangers out"
    )]
    Open(SocketAddr),
    /// Writes do not reach the database.
    #[error("cannot write to the database: {0}")]
    ReadOnly(String),
    /// A port cannot be had.
    #[error("cannot listen on {address}: {source}; name another with {flag}")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// Which flag to use.
        flag: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system gives no signals.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
}

/// Runs the service until Ctrl-C or SIGTERM.
///
/// # Errors
/// What is wrong with the arguments, the database or the ports, in a sentence.
pub(crate) async fn main(args: ServeArgs) -> Result<(), ServeError> {
    init_logging(LogFormat::Text, LevelFilter::WARN);
    let stopped = stop_signal()?;
    let schema = TableSchema {
        table_name: args.table.clone(),
        partition_key: args.partition_key.clone(),
        sort_key: args.sort_key.clone(),
    };
    schema.check().map_err(ServeError::Schema)?;
    if args.table == args.transaction_table {
        return Err(ServeError::OneTable);
    }

    if args.token_file.is_none() && !args.insecure && !args.listen.ip().is_loopback() {
        return Err(ServeError::Open(args.listen));
    }
    let tokens = args.tokens()?;
    let tls = args.tls()?;

    // Before the table: whoever waits for the port must not find it open while a second start fails on the file.
    let engine = args.open_engine()?;
    let client = match &engine {
        Some(engine) => Client::from_conf(sdk::configure(engine.sdk_config()).build()),
        None => dynamodb_client(args.dynamodb_endpoint.as_deref()).await,
    };
    ensure_table(&client, &schema).await.map_err(ServeError::Table)?;
    let transactions = args.transactions(&client).await?;
    if let Some(engine) = &engine {
        engine.check_writes(&args.table).await.map_err(ServeError::ReadOnly)?;
    }

    let listener = listen(args.listen, "--listen").await?;
    let address = local_address(&listener, args.listen.port());
    let stopping = |stopped: &watch::Receiver<bool>| {
        let mut stopped = stopped.clone();
        async move { drop(stopped.wait_for(|stopped| *stopped).await) }
    };
    let exposed = match (&engine, args.expose_dynamodb) {
        (Some(engine), Some(port)) => {
            let listener = listen((Ipv4Addr::LOCALHOST, port).into(), "--expose-dynamodb").await?;
            let address = local_address(&listener, port);
            let app = exposed::routes(engine.clone(), Guard::new(Ipv4Addr::LOCALHOST.into(), &[]));
            Some((address, tokio::spawn(server::run_tls(listener, None, app, stopping(&stopped)))))
        }
        _ => None,
    };
    args.announce(address, exposed.as_ref().map(|(address, _)| *address));

    let policy = Policy { retention_seconds: args.retention_seconds, clock_skew_ms: args.clock_skew_ms };
    let locks = Service::new(LockTable::new(client, schema, policy, Clock::system()));
    let health = Health { locks: locks.clone(), engine, table: args.table.clone(), stopped: stopped.clone() };
    let routes = server::routes::<TransactionOperation>(transactions.clone())
        .merge(health.routes(&locks))
        .merge(console::routes(&args.url(address)))
        .fallback(async || problem_response(&unknown_route()).map(Body::from));
    let routes = match metrics::install() {
        Some(handle) => routes.merge(metrics::routes(handle)),
        None => routes,
    };
    let checked = Checked {
        guard: Guard::new(args.listen.ip(), &args.allow_host),
        tokens: tokens.clone(),
        load: Load::default(),
    };
    let app = server::protect(routes, checked);
    let sweeper = tokio::spawn(sweep_now_and_then(transactions));
    let reloader = tokio::spawn(reload_now_and_then(tokens, tls.clone()));
    server::run_tls(listener, tls, app, stopping(&stopped)).await;
    // Work that the sweeper leaves undone is done after the next start.
    sweeper.abort();
    reloader.abort();
    if let Some((_, task)) = exposed {
        // It stops on the same signal; a panic of its own was reported already.
        let _ = task.await;
    }
    say("Stopped.");
    Ok(())
}

/// The probes: whether the service works, and whether it takes requests.
#[derive(Clone)]
struct Health {
    locks: Service,
    engine: Option<Engine>,
    table: String,
    stopped: watch::Receiver<bool>,
}

impl Health {
    /// The routes of the locks, with a `/v1/health` that also writes, and `/v1/ready`.
    fn routes(self, locks: &Service) -> Router {
        let (health, ready) = (self.clone(), self);
        server::probe(path::HEALTH, move || {
            let health = health.clone();
            async move { health.check().await }
        })
        .merge(server::probe(READY, move || {
            let ready = ready.clone();
            async move { ready.check_ready().await }
        }))
        .merge(server::routes_but::<Operation>(locks.clone(), Operation::Health))
    }

    async fn check(&self) -> Result<(), Problem> {
        self.locks.health().await?;
        if let Some(engine) = &self.engine {
            engine.check_writes(&self.table).await.map_err(|error| {
                tracing::error!(error, "writes do not reach the database");
                Problem::new(ProblemType::Unavailable, "The database takes no writes: it is full, read-only or gone.")
            })?;
        }
        Ok(())
    }

    async fn check_ready(&self) -> Result<(), Problem> {
        if *self.stopped.borrow() {
            return Err(Problem::new(ProblemType::Unavailable, "The service is stopping."));
        }
        self.check().await
    }
}

/// Reads tokens and certificates again when their files change.
async fn reload_now_and_then(tokens: Option<Arc<Tokens>>, tls: Option<Tls>) {
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

impl ServeArgs {
    fn tokens(&self) -> Result<Option<Arc<Tokens>>, TokenError> {
        self.token_file.as_ref().map(|path| Tokens::open(path, self.owner_binding).map(Arc::new)).transpose()
    }

    fn tls(&self) -> Result<Option<Tls>, TlsError> {
        self.tls_cert.as_ref().zip(self.tls_key.as_ref()).map(|(cert, key)| Tls::open(cert, key)).transpose()
    }

    fn url(&self, address: SocketAddr) -> String {
        let scheme = if self.tls_cert.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    fn open_engine(&self) -> Result<Option<Engine>, EngineError> {
        match (&self.dynamodb_endpoint, self.memory) {
            (Some(_), _) => Ok(None),
            (None, true) => Engine::memory().map(Some),
            (None, false) => Engine::open(&self.db).map(Some),
        }
    }

    async fn transactions(&self, client: &Client) -> Result<TransactionService, ServeError> {
        let table = &self.transaction_table;
        let failed = |source| ServeError::TransactionTable { table: table.clone(), source };
        transactions::ensure_table(client, table).await.map_err(failed)?;
        let policy = transactions::Policy {
            patience_ms: self.transaction_patience_ms,
            idle_ms: self.transaction_idle_seconds * 1000,
            retention_ms: self.transaction_retention_seconds * 1000,
            ..transactions::Policy::default()
        };
        let protected = vec![self.table.clone()];
        Ok(TransactionService::new(Transactions::new(client.clone(), table, policy, Clock::system(), protected)))
    }

    fn announce(&self, address: SocketAddr, exposed: Option<SocketAddr>) {
        let store = match (&self.dynamodb_endpoint, self.memory) {
            (Some(url), _) => format!("at {url}"),
            (None, true) => "in memory, gone when this stops".to_owned(),
            (None, false) => format!("in the file {}", self.db.display()),
        };
        let sort_key = if self.sort_key.is_some() { r#","sortKey":"1""# } else { "" };
        let exposed =
            exposed.map_or_else(String::new, |address| format!("  dynamodb  http://{address} (any credentials)\n"));
        let url = self.url(address);
        let token = if self.token_file.is_some() { " -H \"Authorization: Bearer $TOKEN\"" } else { "" };
        say(&format!(
            "Leasehold listens on {url}\n  \
               tables    {} and {}, {store}\n\
             {exposed}  \
               console   {url}{}\n  \
               try       curl{token} --json '{{\"key\":\"Moe\",\"ownerName\":\"me\"{sort_key}}}' {url}/v1/acquire\n  \
               stop      Ctrl-C",
            self.table,
            self.transaction_table,
            console::PATH
        ));
    }
}

/// Finishes what transactions leave behind, as the scheduled function does.
async fn sweep_now_and_then(transactions: TransactionService) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // What goes wrong is in the log, and may go better the next time.
        while transactions.sweep(SweepRequest::default()).await.is_ok_and(|swept| swept.more) {}
    }
}

/// Prints for whoever reads; a service does not stop because nobody does.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

async fn listen(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, flag, source })
}

fn local_address(listener: &TcpListener, port: u16) -> SocketAddr {
    listener.local_addr().unwrap_or_else(|_| (Ipv4Addr::LOCALHOST, port).into())
}

/// Becomes true on the first Ctrl-C or SIGTERM; the second ends the process at once.
fn stop_signal() -> Result<watch::Receiver<bool>, ServeError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if sender.send_replace(true) {
                std::process::exit(130);
            }
        }
    });
    Ok(receiver)
}
