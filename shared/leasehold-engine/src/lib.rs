//! An embedded DynamoDB engine behind the AWS SDK's own HTTP seam.
//!
//! Leasehold has one implementation of its protocol: DynamoDB expressions sent through `aws-sdk-dynamodb`. This crate
//! runs the same expressions on a laptop or in a test, without a socket and without an account. An [`Engine`] is the
//! SDK's [`HttpClient`]: it takes the request that the SDK has serialised, runs it, and returns the response that the
//! SDK parses.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = leasehold_engine::Engine::open("leasehold.db".as_ref())?;
//! let client = aws_sdk_dynamodb::Client::from_conf(engine.sdk_config().build());
//! client.list_tables().send().await?;
//! # Ok(()) }
//! ```
//!
//! - [`Engine::memory`] is for tests and benchmarks: everything is gone with the last clone.
//! - [`Engine::open`] keeps a file. A write is on disk before it is answered. One process at a time
//!   may have the file open; a second one is refused with [`EngineError::InUse`]. A damaged file is refused, and a
//!   damaged row cannot be changed.
//! - [`Engine::expose`] serves the same data to other DynamoDB clients over HTTP.
//!
//! Limits: requests run one at a time, a page of items in parts, and a [`foreign`] one that would hold up the others is
//! refused; no request is ever throttled, and no transaction ever conflicts (inject such faults by wrapping the engine
//! at the same seam); time to live removes items where an [`Expiry`] makes its rounds.

mod connector;
mod error;
mod expiry;
mod express;
mod file;
mod following;
mod integrity;
mod names;
mod operations;
mod pages;
mod price;
mod queue;
mod statement;
#[cfg(test)]
mod tests;
mod transaction;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_dynamodb::config::endpoint::{Endpoint, EndpointFuture, Params, ResolveEndpoint};
use aws_sdk_dynamodb::config::{self, BehaviorVersion, IdentityCache, Region, StalledStreamProtectionConfig};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use bytes::Bytes;
use dynoxide::Database;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use crate::connector::Connector;
use crate::express::{Express, Left};
use crate::file::{DatabaseFile, open_error};
use crate::following::Following;
use crate::names::Names;
use crate::operations::Answer;
use crate::queue::{Queue, Request, Turn};

pub use crate::error::EngineError;
pub use crate::expiry::Expiry;
pub use crate::following::Change;
pub use crate::queue::{foreign, urgent};

/// The endpoint is never resolved, since no connection is made. The reserved top-level domain makes a client without
/// its connector fail instead of reaching a real server.
const ENDPOINT: &str = "http://embedded.invalid";

/// The embedded engine. Clones are cheap and share one database.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
    /// The same core, wrapped once: the SDK asks for a connector on every attempt.
    connector: SharedHttpConnector,
}

/// The parts that all clones, and all running requests, share.
struct Core {
    // The order matters: the database is closed before its file is unlocked.
    database: Database,
    names: Names,
    /// Held while a request runs.
    express: Mutex<Express>,
    file: Option<DatabaseFile>,
    /// The requests that wait.
    queue: Queue,
    /// How often writes were checked.
    checks: AtomicU64,
}

impl Engine {
    /// Returns an engine whose data lives as long as its last clone.
    pub fn memory() -> Result<Self, EngineError> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        // Two connections share a database in memory by its name.
        let name = format!("file:leasehold-{}?mode=memory&cache=shared", OPENED.fetch_add(1, Ordering::Relaxed));
        let database = Database::new(&name).map_err(|error| EngineError::Start(error.into()))?;
        let express = Express::open(Path::new(&name), false).map_err(|error| EngineError::Start(error.into()))?;
        Ok(Self::new(database, Names::default(), express, None))
    }

    /// Opens the durable database at `path`, creating it where there is none.
    ///
    /// Blocks while the file is read, checked or upgraded. The lock that excludes other processes belongs to the file
    /// itself: it holds under each of its names.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let file = DatabaseFile::claim(path)?;
        let failed = |error: dynoxide::DynoxideError| open_error(file.path(), error);
        let database = Database::new(file.as_str()).map_err(failed)?;
        let names = Names::load(&database).map_err(failed)?;
        // The engine's own commits no longer sync the log: the queue does, for all requests that wait.
        database.disable_bulk_loading().map_err(failed)?;
        file.open_log()?;
        file.protect()?;
        let express = Express::open(file.path(), true).map_err(|error| open_error(file.path(), error))?;
        Ok(Self::new(database, names, express, Some(file)))
    }

    fn new(database: Database, names: Names, express: Express, file: Option<DatabaseFile>) -> Self {
        let (express, queue, checks) = (Mutex::new(express), Queue::default(), AtomicU64::new(0));
        let core = Arc::new(Core { database, names, express, file, queue, checks });
        let connector = SharedHttpConnector::new(Connector::new(Arc::clone(&core)));
        Self { core, connector }
    }

    /// Returns a client configuration that uses this engine. The caller sets time-outs and retries, as for the real
    /// service.
    pub fn sdk_config(&self) -> config::Builder {
        config::Builder::new()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::from_static("us-east-1"))
            .endpoint_resolver(Nowhere)
            .http_client(self.clone())
            // The engine checks no signature, so none is computed.
            .allow_no_auth()
            .identity_cache(IdentityCache::no_cache())
            // This protects against slow sockets; here it would only wrap bodies that are in memory.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
    }

    /// Runs the operation that `target` names, such as `DynamoDB_20120810.GetItem`, for another client. Returns the
    /// answer's status and JSON. A request that would hold up all others is refused.
    pub async fn answer(&self, target: String, body: Bytes) -> (u16, Vec<u8>) {
        let answer = foreign(pages::answer(Arc::clone(&self.core), target, body)).await;
        (answer.status, answer.body)
    }

    /// Follows the changes of a table from now on, in their order, each after it is on disk. `keys` are the names of
    /// its keys. A table has one follower, and an engine one such table. Where the follower is slow, changes are lost;
    /// no write waits for it. PartiQL's changes are not told.
    pub fn follow(&self, table: &str, keys: Vec<String>) -> Receiver<Change> {
        let (following, receiver) = Following::new(table.to_owned(), keys);
        self.core.express().following = Some(following);
        receiver
    }

    /// The rounds that delete items whose time to live is over. One at a time makes sense.
    pub fn expiry(&self) -> Expiry {
        Expiry::new(Arc::clone(&self.core))
    }

    /// Makes a write that no item sees, to learn whether writes still reach the disk. Each writes another value: SQLite
    /// leaves the file alone where a value is there already.
    ///
    /// # Errors
    /// Fails if the file is missing or read-only, or the disk is full or nearly so.
    pub async fn check_writes(&self, table: &str) -> Result<(), String> {
        if let Some(file) = &self.core.file {
            file.check_space()?;
        }
        let check = self.core.checks.fetch_add(1, Ordering::Relaxed);
        let value = format!("{:0>256}", format!("{}-{check}", std::process::id()));
        // Six pages, more than a small row takes where it splits a page: where this fits, a row fits.
        let tags: Vec<_> = (0..45)
            .map(|number| json!({ "Key": format!("leasehold:written:{number:0>100}"), "Value": value }))
            .collect();
        let tag = serde_json::json!({
            "ResourceArn": format!("arn:aws:dynamodb:us-east-1:000000000000:table/{table}"),
            "Tags": tags,
        });
        let (target, core) = ("DynamoDB_20120810.TagResource".to_owned(), Arc::clone(&self.core));
        let answer = connector::answer(core, target, tag.to_string().into()).await;
        if answer.status == 200 { Ok(()) } else { Err(String::from_utf8_lossy(&answer.body).into_owned()) }
    }

    /// Serves this engine's data to other DynamoDB clients over HTTP until `shutdown` resolves.
    ///
    /// For tests and benchmarks: a write of such a client is on disk with the next write through
    /// [`answer`](Self::answer). Signatures must be present, as clients expect, but are not verified: every client that
    /// reaches the listener can read and write the data. Bind it to the loopback interface. Requests that are running
    /// at shutdown are finished first.
    pub async fn expose(
        &self,
        listener: tokio::net::TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), EngineError> {
        // That server's writes do not pass through the queue.
        self.core.express().switch_off();
        dynoxide::server::serve_with_shutdown(listener, self.core.database.clone(), shutdown)
            .await
            .map_err(EngineError::Serve)
    }
}

/// Resolves the endpoint at once. The SDK's own resolver would evaluate its rules on every request.
#[derive(Debug)]
struct Nowhere;

impl ResolveEndpoint for Nowhere {
    fn resolve_endpoint(&self, _params: &Params) -> EndpointFuture<'_> {
        EndpointFuture::ready(Ok(Endpoint::builder().url(ENDPOINT).build()))
    }
}

impl HttpClient for Engine {
    fn http_connector(
        &self,
        _settings: &HttpConnectorSettings,
        _components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        self.connector.clone()
    }
}

impl HttpConnector for Engine {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        self.connector.call(request)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl Core {
    fn run(&self, request: &Request) -> Answer {
        let Request { target, body, .. } = request;
        let operation = operations::operation_of(target);
        let mut express = self.express();
        if request.is_foreign() {
            express.make_way();
            let read = |operation: &str, request: &Value| self.read(operation, request);
            let refusal = price::refusal(target, body, read, |table, key| self.image(&mut express, table, key));
            if let Some(refusal) = refusal {
                return refusal;
            }
        }
        let left = match express.run(&self.database, operation, body) {
            Ok(answer) => return answer,
            Err(left) => left,
        };
        express.make_way();
        let keys = express.following.as_ref().map(|following| following.keys_of(operation, body)).unwrap_or_default();
        let table = express.following.as_ref().map(|following| following.table().to_owned()).unwrap_or_default();
        let images =
            |express: &mut Express| keys.iter().map(|key| self.image(express, &table, key)).collect::<Vec<_>>();
        let before = images(&mut express);
        let answer = self.names.run(&self.database, target, body);
        let after = if answer.status == 200 { images(&mut express) } else { Vec::new() };
        if let Some(following) = &mut express.following {
            let is_expiry = request.is_expiring();
            before.into_iter().zip(after).for_each(|(old, new)| following.made(Change { old, new, is_expiry }));
        }
        if let Left::ToLearn = left {
            express.learn(body, &answer);
        }
        match &self.file {
            Some(file) if answer.status == 200 && operations::creates_table(target) => {
                file.protect().map_or_else(|error| operations::internal_error(&error.to_string()), |()| answer)
            }
            _ => answer,
        }
    }

    /// The row of this key, in DynamoDB's JSON. The engine would parse and write it.
    fn image(&self, express: &mut Express, table: &str, key: &Value) -> Option<String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Found<'a> {
            #[serde(borrow)]
            item: Option<&'a RawValue>,
        }
        if let Some(found) = express.stored(&self.database, &self.names.stored(table), key) {
            return Some(found);
        }
        let answer = self.read("GetItem", &json!({ "TableName": table, "Key": key, "ConsistentRead": true }));
        let found: Found<'_> = serde_json::from_slice(&answer.body).ok()?;
        found.item.map(|item| item.get().to_owned())
    }

    fn read(&self, operation: &str, request: &Value) -> Answer {
        self.names.run(&self.database, &format!("DynamoDB_20120810.{operation}"), request.to_string().as_bytes())
    }

    /// Carries out some of the requests that wait. Returns the turn where more do.
    fn work(&self, turn: Turn) -> Option<Turn> {
        let sync = |has_written| {
            self.express().commit()?;
            self.file.as_ref().map_or(Ok(()), |file| file.check(has_written))?;
            if let Some(following) = &mut self.express().following {
                following.tell();
            }
            Ok(())
        };
        self.queue.work(turn, |request| self.run(request), sync)
    }

    fn express(&self) -> MutexGuard<'_, Express> {
        self.express.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("file", &self.file.as_ref().map(DatabaseFile::path)).finish_non_exhaustive()
    }
}
