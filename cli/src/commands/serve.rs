//! `leasehold serve`: the lock service on this machine.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use leasehold_api::Quota;
use leasehold_api::logging::{LevelFilter, LogFormat, init_logging};
use leasehold_protocol::{Policy, TableSchema};
use leasehold_server::{
    Credentials, CredentialsError, Front, Guard, HistorySettings, Pulse, Server, ServerError, Settings, States,
    StatesError, Store, Tls, TlsError, TokenError, Tokens, console, exposed,
};
use leasehold_transactions as transactions;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::interval;

use crate::connection::endpoint;
use crate::duration;
use crate::numbers::whole;
use crate::signals::{self, Signals};
use crate::systemd;

/// Run the lock service on this machine: an HTTP API over an embedded DynamoDB engine, or over any DynamoDB endpoint.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address and port of the HTTP API. Port 0 takes any free one. A socket of systemd comes before this.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080",
        value_parser = listen_address,
        env = "LEASEHOLD_LISTEN"
    )]
    listen: SocketAddr,

    /// Also answer to this host name. Without it, the service answers to loopback names and to its own address only, so
    /// that no web page can reach it by a name of its own. May be repeated.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Require callers to send a token of this file, which `leasehold token` writes. The file is read again when it
    /// changes.
    #[arg(long, value_name = "PATH", env = "LEASEHOLD_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// Bind each lock to the bearer of the token that acquired it. No other bearer can renew or release it.
    #[arg(long, requires = "token_file")]
    owner_binding: bool,

    /// Refuse a bearer more locks, and permits of semaphores, than this at a time. Default: no bound.
    #[arg(
        long,
        value_name = "COUNT",
        requires = "token_file",
        value_parser = whole::<usize>(0..=u32::MAX.into()),
        env = "LEASEHOLD_MAX_LOCKS"
    )]
    max_locks: Option<usize>,

    /// Refuse a bearer more places in queues than this at a time. Default: no bound.
    #[arg(
        long,
        value_name = "COUNT",
        requires = "token_file",
        value_parser = whole::<usize>(0..=u32::MAX.into()),
        env = "LEASEHOLD_MAX_TICKETS"
    )]
    max_tickets: Option<usize>,

    /// Listen beyond this machine, although everyone who reaches the port may do everything.
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

    /// Use DynamoDB at this URL: DynamoDB Local, or a region's own endpoint with your AWS credentials.
    #[arg(long, value_name = "URL", group = "store", value_parser = endpoint)]
    dynamodb_endpoint: Option<String>,

    /// Use a global table with strong consistency, which other regions use as well. There are no transactions then, and
    /// the service removes expired rows itself.
    #[arg(long, requires = "dynamodb_endpoint", env = "LEASEHOLD_MULTI_REGION")]
    multi_region: bool,

    /// Let other DynamoDB clients reach the embedded tables, and make their own, on this port of the loopback
    /// interface, or at this address and port. Beyond this machine, --dynamodb-credentials is needed.
    #[arg(
        long,
        value_name = "[ADDRESS:]PORT",
        value_parser = exposed_address,
        conflicts_with = "dynamodb_endpoint"
    )]
    expose_dynamodb: Option<SocketAddr>,

    /// Check the signatures of these clients against the profiles in this file, which has the format of
    /// `~/.aws/credentials`. Without it, any signature will do.
    #[arg(long, value_name = "PATH", requires = "expose_dynamodb")]
    dynamodb_credentials: Option<PathBuf>,

    /// Serve Terraform's states in this folder at /v1/terraform?state=NAME, each written only under its lock.
    #[arg(long, value_name = "DIR", conflicts_with = "sort_key", env = "LEASEHOLD_TERRAFORM_STATE")]
    terraform_state: Option<PathBuf>,

    /// The name of the table of the locks. It is created where it is missing.
    #[arg(long, value_name = "NAME", default_value = "leasehold", env = "LEASEHOLD_TABLE_NAME")]
    table: String,

    /// The name of the partition key of the locks' table.
    #[arg(long, value_name = "NAME", default_value = "key", env = "LEASEHOLD_PARTITION_KEY")]
    partition_key: String,

    /// The name of its sort key, if it is to have one.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_SORT_KEY")]
    sort_key: Option<String>,

    /// The time for which a row stays after its lease. Then it may be deleted: by DynamoDB's TTL, or by this service in
    /// tables of its own.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = Policy::default().retention_seconds,
        value_parser = whole::<u64>(1..=Policy::MAX_RETENTION_SECONDS),
        env = "LEASEHOLD_RETENTION_SECONDS"
    )]
    retention_seconds: u64,

    /// Keep a history of the locks for this time: who held what, when, and how it ended. It is written beside the
    /// requests, into a table of the same file.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration::parse,
        conflicts_with = "dynamodb_endpoint",
        env = "LEASEHOLD_HISTORY"
    )]
    history: Option<Duration>,

    /// The name of the table of the history. It is created where it is missing.
    #[arg(long, value_name = "NAME", default_value = "leasehold-history", env = "LEASEHOLD_HISTORY_TABLE_NAME")]
    history_table: String,

    /// The largest difference between clocks for which `staleness: "clock"` is safe.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = Policy::default().clock_skew_ms,
        value_parser = whole::<u64>(1..=Policy::MAX_CLOCK_SKEW_MS),
        env = "LEASEHOLD_CLOCK_SKEW_MS"
    )]
    clock_skew_ms: u64,

    /// Also require the service's clock to be past a lock's lease, by more than --clock-skew-ms, before a caller may
    /// take the lock over. Without this, the service believes a caller that says it saw the lock's version for the
    /// whole lease.
    #[arg(long, env = "LEASEHOLD_TAKEOVER_CLOCK_CHECK")]
    takeover_clock_check: bool,

    /// The name of the table of the transactions. It is created where it is missing.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "leasehold-transactions",
        env = "LEASEHOLD_TRANSACTION_TABLE_NAME"
    )]
    transaction_table: String,

    /// Roll a transaction back after this time without any work on it.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = transactions::Policy::default().idle_ms / 1000,
        value_parser = whole::<u64>(1..=transactions::Policy::MAX_IDLE_SECONDS),
        env = "LEASEHOLD_TRANSACTION_IDLE_SECONDS"
    )]
    transaction_idle_seconds: u64,

    /// Keep the outcome of a transaction for this time.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = transactions::Policy::default().retention_ms / 1000,
        value_parser = whole::<u64>(transactions::Policy::MIN_RETENTION_SECONDS..=Policy::MAX_RETENTION_SECONDS),
        env = "LEASEHOLD_TRANSACTION_RETENTION_SECONDS"
    )]
    transaction_retention_seconds: u64,

    /// Let another transaction that needs an item roll back the one that has it, after this time without a sign of
    /// life.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = transactions::Policy::default().patience_ms,
        value_parser = whole::<u64>(1..=transactions::Policy::MAX_PATIENCE_MS),
        env = "LEASEHOLD_TRANSACTION_PATIENCE_MS"
    )]
    transaction_patience_ms: u64,
}

/// The reason why the service did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The server did not start.
    #[error("{0}")]
    Server(#[from] ServerError),
    /// The token file cannot be used.
    #[error("{0}")]
    Tokens(#[from] TokenError),
    /// The certificate cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The port would give everyone full access.
    #[error(
        "refusing to listen on {0}, beyond this machine, without a token: name a file with --token-file (`leasehold token` \
         makes one), or say --insecure where the network keeps strangers out"
    )]
    Open(SocketAddr),
    /// The credentials of the exposed port cannot be used.
    #[error("{0}")]
    Credentials(#[from] CredentialsError),
    /// The exposed port would give everyone all tables.
    #[error(
        "refusing to expose DynamoDB on {0}, beyond this machine, to everyone: name a file in the format of \
         ~/.aws/credentials with --dynamodb-credentials"
    )]
    Exposed(SocketAddr),
    /// The folder of Terraform's states cannot be used.
    #[error("{0}")]
    States(#[from] StatesError),
    /// A port cannot be opened.
    #[error("cannot listen on {address}: {source}; name another with {flag}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The flag that names the address.
        flag: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The socket that systemd opened cannot be used.
    #[error("cannot use the socket of systemd: {0}; it must be one stream of TCP (ListenStream=ADDRESS:PORT)")]
    Activation(std::io::Error),
    /// The system does not deliver signals.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
}

/// Lets the allocator return memory to the system at once, in place of after a second: beside clients that ask for
/// large answers and do not read, the process has a third less. The allocator reads this option before `main`, and only
/// from the environment, so the process starts once more, as the same process. Where it cannot, it goes on.
pub(crate) fn return_memory_soon() {
    const OPTION: &str = "MIMALLOC_PURGE_DELAY";
    let Ok(program) = std::env::current_exe() else { return };
    let mut args = std::env::args_os();
    if std::env::var_os(OPTION).is_none()
        && let Some(name) = args.next()
    {
        let error = Command::new(program).arg0(name).args(args).env(OPTION, "0").exec();
        tracing::debug!(%error, "the allocator keeps its usual delay");
    }
}

/// Runs the service until Ctrl-C or SIGTERM.
///
/// # Errors
/// A sentence that says what is wrong with the arguments, the database or the ports.
pub(crate) async fn main(args: ServeArgs) -> Result<(), ServeError> {
    init_logging(LogFormat::Text, LevelFilter::WARN);
    let stopped = stop_signal()?;
    signals::survive_full_files().map_err(ServeError::Signals)?;
    take_descriptors();
    let activated = systemd::listener().map_err(ServeError::Activation)?;
    let wanted = activated.as_ref().map_or(Ok(args.listen), std::net::TcpListener::local_addr);
    let wanted = wanted.map_err(ServeError::Activation)?;
    if args.token_file.is_none() && !args.insecure && !wanted.ip().is_loopback() {
        return Err(ServeError::Open(wanted));
    }
    let (tokens, tls, credentials) = (args.tokens()?, args.tls()?, args.credentials()?);
    let mut states = args.terraform_state.as_deref().map(States::open).transpose()?;
    // The tables come before the port: an open port belongs to a working service.
    let server = Server::open(args.settings()).await?.with_quota(args.quota());
    if let Some(states) = &mut states {
        server.compare(states).await?;
    }
    let listener = match activated {
        Some(listener) => TcpListener::from_std(listener).map_err(ServeError::Activation)?,
        None => listen(wanted, "--listen").await?,
    };
    let address = local_address(&listener, wanted.port());
    let exposed = match (server.engine(), args.expose_dynamodb) {
        (Some(engine), Some(wanted)) => {
            let listener = listen(wanted, "--expose-dynamodb").await?;
            let address = local_address(&listener, wanted.port());
            let shutdown = wait_for(stopped.clone());
            let guard = Guard::new(wanted.ip(), if wanted.ip().is_loopback() { &[] } else { &args.allow_host });
            let app = exposed::routes(exposed::Exposed { engine: engine.clone(), guard, credentials });
            let tls = if wanted.ip().is_loopback() { None } else { tls.clone() };
            Some((address, tokio::spawn(leasehold_server::run_tls(listener, tls, app, shutdown))))
        }
        _ => None,
    };
    args.warn(address);
    args.announce(address, exposed.as_ref().map(|(address, _)| *address), states.as_ref());
    let guard = Guard::new(wanted.ip(), &args.allow_host);
    let front = Front { guard, tokens, tls, states, name: args.url(address) };
    let signs_of_life = systemd::watchdog().map(|pause| tokio::spawn(give_signs_of_life(server.pulse(), pause)));
    systemd::notify(NotifyState::Ready);
    let stopping = async {
        wait_for(stopped).await;
        systemd::notify(NotifyState::Stopping);
    };
    server.run(listener, front, stopping).await;
    if let Some(signs_of_life) = signs_of_life {
        signs_of_life.abort();
        let _ = signs_of_life.await;
    }
    if let Some((_, task)) = exposed {
        // The task stops on the same signal, and has reported its own panic.
        let _ = task.await;
    }
    say("Stopped.");
    Ok(())
}

impl ServeArgs {
    fn tokens(&self) -> Result<Option<Arc<Tokens>>, TokenError> {
        self.token_file.as_ref().map(|path| Tokens::open(path, self.owner_binding).map(Arc::new)).transpose()
    }

    fn credentials(&self) -> Result<Option<Credentials>, ServeError> {
        match (&self.dynamodb_credentials, self.expose_dynamodb) {
            (Some(path), _) => Ok(Some(Credentials::open(path)?)),
            (None, Some(address)) if !address.ip().is_loopback() => Err(ServeError::Exposed(address)),
            (None, _) => Ok(None),
        }
    }

    fn tls(&self) -> Result<Option<Tls>, TlsError> {
        self.tls_cert.as_ref().zip(self.tls_key.as_ref()).map(|(cert, key)| Tls::open(cert, key)).transpose()
    }

    /// Warns of settings that are seldom meant.
    fn warn(&self, listen: SocketAddr) {
        let addresses = [Some(listen), self.expose_dynamodb].into_iter().flatten();
        for address in addresses.filter(|address| !address.ip().is_loopback() && self.tls_cert.is_none()) {
            tracing::warn!(%address, "requests travel in plain text: use --tls-cert, or a proxy that speaks TLS");
        }
        if geteuid().is_root() {
            tracing::warn!("the service runs as root and needs no such right: run it as a user of its own");
        }
    }

    fn quota(&self) -> Quota {
        Quota::new(self.max_locks, self.max_tickets)
    }

    fn url(&self, address: SocketAddr) -> String {
        let scheme = if self.tls_cert.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    fn settings(&self) -> Settings {
        Settings {
            store: match (&self.dynamodb_endpoint, self.memory) {
                (Some(url), _) => Store::Endpoint(url.clone()),
                (None, true) => Store::Memory,
                (None, false) => Store::File(self.db.clone()),
            },
            schema: TableSchema {
                table_name: self.table.clone(),
                partition_key: self.partition_key.clone(),
                sort_key: self.sort_key.clone(),
            },
            policy: Policy { retention_seconds: self.retention_seconds, clock_skew_ms: self.clock_skew_ms },
            takeover_clock_check: self.takeover_clock_check,
            multi_region: self.multi_region,
            history: self.history.map(|retention| HistorySettings { table: self.history_table.clone(), retention }),
            transaction_table: self.transaction_table.clone(),
            transaction_policy: transactions::Policy {
                patience_ms: self.transaction_patience_ms,
                idle_ms: self.transaction_idle_seconds * 1000,
                retention_ms: self.transaction_retention_seconds * 1000,
                frees_behind_answers: true,
                ..transactions::Policy::default()
            },
        }
    }

    fn announce(&self, address: SocketAddr, exposed: Option<SocketAddr>, states: Option<&States>) {
        let store = match (&self.dynamodb_endpoint, self.memory) {
            (Some(url), _) => format!("at {url}"),
            (None, true) => "in memory, gone when this stops".to_owned(),
            (None, false) => format!("in the file {}", self.db.display()),
        };
        let tables = if self.multi_region {
            format!("{} without transactions, as in several regions", self.table)
        } else {
            format!("{} and {}", self.table, self.transaction_table)
        };
        let sort_key = if self.sort_key.is_some() { r#","sortKey":"1""# } else { "" };
        let exposed = exposed.map_or_else(String::new, |address| {
            let scheme = if self.tls_cert.is_some() && !address.ip().is_loopback() { "https" } else { "http" };
            let by = self.dynamodb_credentials.as_ref();
            let by = by.map_or_else(|| "any credentials".to_owned(), |file| format!("those of {}", file.display()));
            format!("  dynamodb  {scheme}://{address} ({by})\n")
        });
        let url = self.url(address);
        let states = self.terraform_state.as_ref().map_or_else(String::new, |folder| {
            // An empty mount point has none.
            let count = states.and_then(|states| states.count().ok()).unwrap_or(0);
            let (path, folder) = (leasehold_terraform::PATH, folder.display());
            format!("  terraform {url}{path}?state=NAME, of {count} states in the folder {folder}\n")
        });
        let token = if self.token_file.is_some() { " -H \"Authorization: Bearer $TOKEN\"" } else { "" };
        say(&format!(
            "Leasehold listens on {url}\n  \
               tables    {tables}, {store}\n\
             {exposed}{states}  \
               console   {url}{}\n  \
               try       curl{token} --json '{{\"key\":\"hello\",\"ownerName\":\"me\"{sort_key}}}' {url}/v1/acquire\n  \
               stop      Ctrl-C",
            console::PATH
        ));
    }
}

/// Prints a line. A service does not stop because its output is closed.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// A port of the loopback interface, or an address with its port.
fn exposed_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_or_else(|_| listen_address(text), |port: u16| Ok((Ipv4Addr::LOCALHOST, port).into()))
}

/// An address with its port.
fn listen_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an address and a port, such as 127.0.0.1:8080")
}

/// Takes as many file descriptors as the system lets the process have. Shells and systemd offer 1,024 of them, for
/// programs that know no higher number.
fn take_descriptors() {
    let taken = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = taken {
        tracing::debug!(%error, "the usual number of file descriptors");
    }
}

async fn wait_for(mut stopped: watch::Receiver<bool>) {
    drop(stopped.wait_for(|stopped| *stopped).await);
}

/// Tells systemd again and again that the service works, for as long as it reads its table.
async fn give_signs_of_life(pulse: Pulse, pause: Duration) {
    let mut ticks = interval(pause);
    loop {
        ticks.tick().await;
        if pulse.beats(pause).await {
            systemd::notify(NotifyState::Watchdog);
        }
    }
}

async fn listen(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, flag, source })
}

fn local_address(listener: &TcpListener, port: u16) -> SocketAddr {
    listener.local_addr().unwrap_or_else(|_| (Ipv4Addr::LOCALHOST, port).into())
}

/// Returns a value that becomes true on the first Ctrl-C or SIGTERM; the second ends the process at once.
fn stop_signal() -> Result<watch::Receiver<bool>, ServeError> {
    let mut signals = Signals::stopping().map_err(ServeError::Signals)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            signals.next_ending().await;
            if sender.send_replace(true) {
                std::process::exit(130);
            }
        }
    });
    Ok(receiver)
}
