//! The cost of the service and its client. `cargo bench` runs everything; `cargo bench -- overhead` (or `http`,
//! `start`, `client`, `coordination`, `transactions`) runs one part.
//!
//! Ratios compare alternating measurements of one run, because machines are shared and noisy.

#![allow(
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark waits for what it measures, and stops where it cannot run"
)]

mod client;
mod coordination;
mod process;
mod requests;
mod transactions;

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use hyper::Method;
use leasehold_api::access::Caller;
use leasehold_api::http::{HttpRequest, handle};
use leasehold_api::{Routed, Service};
use leasehold_dynamodb::{Clock, fresh_uuid};
use leasehold_engine::Engine;
use leasehold_protocol::{LeaseId, LockTable, Policy, TableSchema, ensure_table};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::process::Serve;

const CLIENTS: usize = 16;
const LOAD: Duration = Duration::from_secs(5);
const WARM_UP: Duration = Duration::from_secs(1);

fn main() {
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|name| name == part);
    if wanted("overhead") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(overhead());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if wanted("http") {
        runtime.block_on(http());
    }
    if wanted("start") {
        start();
    }
    if wanted("client") {
        runtime.block_on(client::run());
    }
    if wanted("coordination") {
        runtime.block_on(coordination::run());
    }
    if wanted("transactions") {
        runtime.block_on(transactions::run());
    }
}

/// (a) The handler, from bytes to bytes, over the bare SDK call that it makes.
async fn overhead() {
    let engine = Engine::memory().expect("memory is to be had");
    let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let schema = TableSchema::new("locks");
    ensure_table(&client, &schema).await.expect("a new table");
    let service = Service::new(LockTable::new(client.clone(), schema, Policy::default(), Clock::system()));
    let acquire = json!({ "key": "bench", "ownerName": "bench", "leaseId": "bench" }).to_string();
    let heartbeat = json!({ "key": "bench", "leaseId": "bench", "leaseDurationMs": 20_000 }).to_string();

    println!("handler over bare SDK UpdateItem, in process, median of alternating runs");
    for (name, body) in [("acquire", &acquire), ("heartbeat", &heartbeat)] {
        let route = Service::ROUTES.iter().find(|route| route.operation.name == name).expect("it has a route");
        let (mut bare, mut handled) = (Vec::new(), Vec::new());
        for round in 0..12_000 {
            let started = Instant::now();
            bare_update(&client, name == "acquire").await;
            let bare_time = started.elapsed();
            let started = Instant::now();
            let request = HttpRequest {
                method: &Method::POST,
                content_type: Some("application/json"),
                query: "",
                body: body.as_bytes(),
            };
            let response = handle(&service, &route.admit(Caller::unrestricted()).expect("all may"), request).await;
            let handled_time = started.elapsed();
            assert!(response.status().is_success());
            if round >= 2000 {
                bare.push(bare_time);
                handled.push(handled_time);
            }
        }
        let (bare, handled) = (percentile(&mut bare, 50.0), percentile(&mut handled, 50.0));
        println!(
            "  {name:<10} bare {:>6.1} us   handler {:>6.1} us   ratio {:.3}",
            micros(bare),
            micros(handled),
            micros(handled) / micros(bare)
        );
    }
}

/// The handler's update, as a bare SDK call.
async fn bare_update(client: &Client, is_acquire: bool) {
    let text = |value: &str| AttributeValue::S(value.to_owned());
    let number = |value: u64| AttributeValue::N(value.to_string());
    let hash = AttributeValue::B(Blob::new(BARE_HASH.as_slice()));
    let ours = "(attribute_not_exists(leaseVersion) OR leaseVersion = recordVersionNumber)";
    let request = client
        .update_item()
        .table_name("locks")
        .key("key", text("bare"))
        .return_values(ReturnValue::AllOld)
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .expression_attribute_values(":leaseIdHash", hash)
        .expression_attribute_values(":rvn", text(&fresh_uuid()))
        .expression_attribute_values(":leaseDuration", text("20000"))
        .expression_attribute_values(":leaseMs", number(20_000))
        .expression_attribute_values(":staleAt", number(1_800_000_000_000))
        .expression_attribute_values(":expireAt", number(1_800_000_000));
    let request = if is_acquire {
        request
            .condition_expression(format!(
                "attribute_not_exists(#key) OR (attribute_exists(#key) AND ((attribute_exists(isReleased) AND \
                 (attribute_not_exists(leaseIdHash) OR leaseIdHash <> :leaseIdHash)) OR \
                 (attribute_not_exists(isReleased) AND leaseIdHash = :leaseIdHash AND {ours})) AND \
                 (attribute_not_exists(fencingToken) OR fencingToken BETWEEN :zero AND :lastToken))"
            ))
            .update_expression(
                "SET ownerName = :ownerName, leaseDuration = :leaseDuration, leaseMs = :leaseMs, \
                 recordVersionNumber = :rvn, leaseVersion = :rvn, leaseIdHash = :leaseIdHash, \
                 fencingToken = if_not_exists(fencingToken, :now) + :one, staleAt = :staleAt, expireAt = :expireAt \
                 REMOVE isReleased, ownerPrincipal",
            )
            .expression_attribute_names("#key", "key")
            .expression_attribute_values(":ownerName", text("bench"))
            .expression_attribute_values(":zero", number(0))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":now", number(1_800_000_000_000))
            .expression_attribute_values(":lastToken", number((1 << 53) - 2))
    } else {
        request
            .condition_expression(format!("leaseIdHash = :leaseIdHash AND {ours} AND attribute_not_exists(isReleased)"))
            .update_expression(
                "SET recordVersionNumber = :rvn, leaseVersion = :rvn, expireAt = :expireAt, staleAt = :staleAt, \
                 leaseDuration = :leaseDuration, leaseMs = :leaseMs",
            )
    };
    Box::pin(request.send()).await.expect("applied");
}

const BARE_HASH: [u8; 32] = [7; 32];

/// (b) and (c) The real binary under load, beside the bare engine over its own HTTP, and its memory.
async fn http() {
    let mut serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]);
    let idle = serve.rss_mb();
    println!("acquire+release cycles over HTTP, {CLIENTS} keep-alive clients, load on the same cores");
    let service = load(serve.address, CLIENTS, service_cycle).await;
    println!("  leasehold serve --memory   {service}");
    let loaded = serve.rss_mb();
    let engine = load(serve.dynamodb.expect("exposed"), CLIENTS, engine_cycle).await;
    println!("  the engine in that process {engine}   ratio {:.2}", service.per_second / engine.per_second);
    let alone = load(engine_alone().await, CLIENTS, engine_cycle).await;
    println!("  the engine by itself       {alone}   ratio {:.2}", service.per_second / alone.per_second);
    println!("memory of leasehold serve: {idle:.1} MB idle, {loaded:.1} MB after the load");
    serve.stop();

    let folder = tempfile::tempdir().expect("a folder");
    let db = folder.path().join("bench.db");
    let mut serve = Serve::start(&["--db", db.to_str().expect("UTF-8")]);
    println!("  leasehold serve --db       {}", load(serve.address, CLIENTS, service_cycle).await);
    println!("memory of leasehold serve --db: {:.1} MB after the load", serve.rss_mb());
    serve.stop();
}

/// The bare engine behind its own HTTP, under the system's allocator and with two threads of its own, as `serve` has.
async fn engine_alone() -> SocketAddr {
    let engine = Engine::memory().expect("memory is to be had");
    let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    ensure_table(&client, &TableSchema::new("leasehold")).await.expect("a new table");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            engine.expose(listener, std::future::pending()).await
        })
    });
    address
}

/// (d) From the start of the process to its first printed line, which comes when it listens.
fn start() {
    let mut times: Vec<_> = (0..21)
        .map(|_| {
            let started = Instant::now();
            let mut serve = Serve::start(&["--memory"]);
            let elapsed = started.elapsed();
            serve.stop();
            elapsed
        })
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let db = folder.path().join("bench.db");
    let mut file_times: Vec<_> = (0..21)
        .map(|_| {
            let started = Instant::now();
            let mut serve = Serve::start(&["--db", db.to_str().expect("UTF-8")]);
            let elapsed = started.elapsed();
            serve.stop();
            elapsed
        })
        .collect();
    println!(
        "start to listening: median {:.1} ms in memory, {:.1} ms on a file",
        micros(percentile(&mut times, 50.0)) / 1000.0,
        micros(percentile(&mut file_times, 50.0)) / 1000.0
    );
}

struct Measured {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

impl Measured {
    /// The result of the time of [`LOAD`].
    fn of(times: &mut [Duration]) -> Self {
        let per_second = times.len() as f64 / LOAD.as_secs_f64();
        Self { per_second, p50: percentile(times, 50.0), p99: percentile(times, 99.0) }
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { per_second, p50, p99 } = self;
        write!(f, "{per_second:>6.0} cycles/s   p50 {:>5.2} ms   p99 {:>5.2} ms", millis(*p50), millis(*p99))
    }
}

/// Runs cycles on as many connections as `clients`, each on a key of its own, and times them.
async fn load<F>(
    address: SocketAddr,
    clients: usize,
    cycle: impl Fn(Connection, String) -> F + Copy + Send + 'static,
) -> Measured
where
    F: Future<Output = Connection> + Send,
{
    let warm = Instant::now() + WARM_UP;
    let end = warm + LOAD;
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            tokio::spawn(async move {
                let mut connection = Connection::open(address).await;
                let mut times = Vec::new();
                while Instant::now() < end {
                    let started = Instant::now();
                    connection = cycle(connection, format!("bench-{client}")).await;
                    if started >= warm {
                        times.push(started.elapsed());
                    }
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for client in clients {
        times.extend(client.await.expect("the client ran"));
    }
    Measured::of(&mut times)
}

async fn service_cycle(mut connection: Connection, key: String) -> Connection {
    let lease_id = fresh_uuid();
    let acquire = json!({ "key": key, "ownerName": "bench", "leaseId": lease_id }).to_string();
    connection.post("/v1/acquire", "content-type: application/json\r\n", &acquire).await;
    let release = json!({ "key": key, "leaseId": lease_id }).to_string();
    connection.post("/v1/release", "content-type: application/json\r\n", &release).await;
    connection
}

/// The same two writes, as a DynamoDB client would send them to the engine.
async fn engine_cycle(mut connection: Connection, key: String) -> Connection {
    const HEADERS: &str = "content-type: application/x-amz-json-1.0\r\nx-amz-target: DynamoDB_20120810.UpdateItem\r\n\
        x-amz-date: 20260101T000000Z\r\nauthorization: AWS4-HMAC-SHA256 \
        Credential=a/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0\r\n";
    let lease_id = LeaseId::new(fresh_uuid()).expect("valid");
    let acquire = json!({
        "TableName": "leasehold", "Key": { "key": { "S": key } },
        "ConditionExpression": "attribute_not_exists(#k) OR attribute_exists(isReleased)",
        "UpdateExpression": "SET ownerName = :o, leaseDuration = :l, recordVersionNumber = :r, leaseIdHash = :h, \
            fencingToken = if_not_exists(fencingToken, :now) + :one, staleAt = :now, expireAt = :now REMOVE isReleased",
        "ExpressionAttributeNames": { "#k": "key" },
        "ExpressionAttributeValues": {
            ":o": { "S": "bench" }, ":l": { "S": "20000" }, ":r": { "S": fresh_uuid() }, ":h": { "S": lease_id.expose() },
            ":now": { "N": "1800000000000" }, ":one": { "N": "1" },
        },
        "ReturnValues": "ALL_OLD", "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    });
    connection.post("/", HEADERS, &acquire.to_string()).await;
    let release = json!({
        "TableName": "leasehold", "Key": { "key": { "S": key } },
        "ConditionExpression": "leaseIdHash = :h AND attribute_not_exists(isReleased)",
        "UpdateExpression": "SET isReleased = :i, expireAt = :now",
        "ExpressionAttributeValues": {
            ":h": { "S": lease_id.expose() }, ":i": { "S": "1" }, ":now": { "N": "1800000000000" },
        },
        "ReturnValues": "ALL_OLD", "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    });
    connection.post("/", HEADERS, &release.to_string()).await;
    connection
}

/// One keep-alive connection. The load shares the cores with the measured process, so it does as little as possible.
struct Connection {
    stream: tokio::io::BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("TCP");
        Self { stream: tokio::io::BufReader::new(stream), line: String::new(), body: Vec::new() }
    }

    async fn post(&mut self, path: &str, headers: &str, body: &str) {
        let mut request = Vec::with_capacity(body.len() + 512);
        write!(request, "POST {path} HTTP/1.1\r\nhost: bench\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
            .expect("memory");
        self.stream.get_mut().write_all(&request).await.expect("sent");
        let mut length = 0;
        let mut status = String::new();
        loop {
            self.line.clear();
            self.stream.read_line(&mut self.line).await.expect("answered");
            let line = self.line.trim_end();
            if line.is_empty() {
                break;
            }
            if status.is_empty() {
                line.clone_into(&mut status);
            } else if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).await.expect("a body");
        assert!(status.contains(" 200 "), "{status}: {:?}", serde_json::from_slice::<Value>(&self.body));
    }
}

fn percentile(times: &mut [Duration], percent: f64) -> Duration {
    times.sort_unstable();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index within the slice")]
    let index = ((times.len() - 1) as f64 * percent / 100.0) as usize;
    times[index]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
