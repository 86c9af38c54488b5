//! Measures the cost of a cold start: the functions' real binaries, in the environment that Lambda and the template
//! give them.
//!
//! `scripts/cold-start.sh` builds the functions as they are deployed and runs this. The arguments are folders of built
//! functions: one, or several to compare. Functions take turns, so that other load on the machine affects all of them
//! equally.

#![allow(clippy::expect_used, clippy::panic, clippy::cast_precision_loss, reason = "a benchmark that cannot run stops")]

mod endpoint;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use leasehold_api::Service;
use leasehold_dynamodb::Clock;
use leasehold_lambda::{Function, routes};
use leasehold_protocol::{LockTable, Policy, TableSchema, ensure_table};
use leasehold_sandbox::{Answer, Sandbox};
use serde_json::Value;
use tokio::time::Instant;

use crate::endpoint::{Authority, Endpoint, Scheme};

const STARTS: usize = 60;
const WARM: usize = 25;
const TABLE: &str = "leasehold";

/// The handlers of the functions, the event for each, and the status of its answer over HTTP.
///
/// The lease id of the events holds the lock. Acquire therefore renews, heartbeat renews, break is refused for its
/// version, and the clean-up finds a lock that is not the execution's: one write each.
const FUNCTIONS: [(&str, &str, Option<u64>); 6] = [
    ("ask", "http-acquire", Some(200)),
    ("hold", "http-heartbeat", Some(200)),
    ("operate", "http-break", Some(409)),
    ("read", "http-get", Some(200)),
    ("invoke", "direct-acquire", None),
    ("cleanup", "execution-aborted", None),
];

/// The operations of a holder, and their functions by the parameter `Functions` of the template.
const CYCLE: [&str; 3] = ["acquire", "heartbeat", "release"];
const EACH: [&str; 3] = ["ask", "hold", "hold"];
const ONE: [&str; 3] = ["acquire"; 3];

/// One function, and its measurements.
struct Subject {
    folder: PathBuf,
    name: &'static str,
    event: Value,
    status: Option<u64>,
    endpoint: Endpoint,
    init: Vec<Duration>,
    first: Vec<Duration>,
    warm: Vec<Duration>,
    bare: Vec<Duration>,
    peak_rss_mb: f64,
}

fn main() {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).filter(|path| path.is_dir()).collect();
    if folders.is_empty() {
        println!("cold_start: give it folders of built functions, or run scripts/cold-start.sh");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for scheme in [Scheme::Https, Scheme::Http] {
            measure(&folders, scheme).await;
        }
    });
    sizes(&folders);
}

async fn measure(folders: &[PathBuf], scheme: Scheme) {
    let trusted = tempfile::NamedTempFile::new().expect("a file");
    let authority = Authority::new();
    authority.write_bundle(trusted.path());
    let trusted = trusted.path().to_str().expect("UTF-8");

    let mut subjects = Vec::new();
    for (name, event, status) in FUNCTIONS {
        for folder in folders {
            let endpoint = Endpoint::start(scheme, &authority);
            hold_lock(&endpoint, name).await;
            subjects.push(Subject::new(folder, name, read_event(event), status, endpoint));
        }
    }
    let mut nothing = Vec::new();
    for _ in 0..STARTS {
        let mut sandbox = Sandbox::start(Path::new(env!("CARGO_BIN_EXE_bare")), &[]).await.expect("it starts");
        nothing.push(sandbox.ready().await.expect("it asks"));
        sandbox.stop().await.expect("it ends");
        for subject in &mut subjects {
            subject.run(trusted).await;
        }
    }
    println!("DynamoDB over {scheme:?}: {STARTS} starts of each function, {WARM} warm invocations of each start");
    let nothing = percentile(&mut nothing, 50.0);
    println!("a process that does nothing but connect: {:.2} ms to its first /next", millis(nothing));
    for folder in folders {
        println!("{}", folder.display());
        report(nothing, subjects.iter_mut().filter(|subject| subject.folder == *folder));
        for (name, functions) in [("each", EACH), ("one", ONE)] {
            let mut cycles = Vec::new();
            for cycle in 0..STARTS {
                cycles.push(
                    first_cycle(folder, &subjects[0].endpoint, trusted, functions, &format!("{name}-{cycle}")).await,
                );
            }
            let (median, p99) = (percentile(&mut cycles, 50.0), percentile(&mut cycles, 99.0));
            println!("first cycle, Functions={name}: median {:.2} ms, p99 {:.2} ms", millis(median), millis(p99));
        }
    }
    println!();
}

/// An acquire, a heartbeat and a release by these functions, none of which runs yet: their starts and their answers.
async fn first_cycle(
    folder: &Path,
    endpoint: &Endpoint,
    trusted: &str,
    functions: [&'static str; 3],
    lease: &str,
) -> Duration {
    let mut total = Duration::ZERO;
    let mut running: Vec<(&str, Sandbox)> = Vec::new();
    for (operation, function) in CYCLE.into_iter().zip(functions) {
        let mut event = read_event(&format!("http-{operation}"));
        let mut body: Value = serde_json::from_str(event["body"].as_str().expect("a text")).expect("JSON");
        body["key"] = "cycle".into();
        body["leaseId"] = lease.into();
        event["body"] = body.to_string().into();
        if !running.iter().any(|(name, _)| *name == function) {
            let variables = variables(function, &endpoint.url, trusted);
            let mut sandbox = Sandbox::start(&binary(folder, "leasehold-locks"), &variables).await.expect("it starts");
            total += sandbox.ready().await.expect("it asks for an event");
            running.push((function, sandbox));
        }
        let (_, sandbox) = running.iter_mut().find(|(name, _)| *name == function).expect("just started");
        let (answer, elapsed) = sandbox.invoke(event).await;
        let Answer::Response(answer) = answer else { panic!("{operation}: {answer:?}") };
        assert_eq!(answer["statusCode"], 200, "{operation}: {answer}");
        total += elapsed;
    }
    for (_, sandbox) in running {
        sandbox.stop().await.expect("it ends");
    }
    total
}

/// The environment that the template gives the function.
fn variables<'a>(function: &'a str, dynamodb: &'a str, trusted: &'a str) -> [(&'a str, &'a str); 9] {
    [
        ("_HANDLER", function),
        ("LEASEHOLD_TABLE_NAME", TABLE),
        ("LEASEHOLD_PARTITION_KEY", "key"),
        ("LEASEHOLD_SORT_KEY", ""),
        ("LEASEHOLD_RETENTION_SECONDS", "604800"),
        ("LEASEHOLD_CLOCK_SKEW_MS", "1000"),
        ("LEASEHOLD_LOG", "info"),
        ("AWS_ENDPOINT_URL_DYNAMODB", dynamodb),
        // On Debian the SDK would read some 290 files besides the bundle; in Lambda there is the bundle only.
        ("SSL_CERT_FILE", trusted),
    ]
}

impl Subject {
    fn new(folder: &Path, name: &'static str, event: Value, status: Option<u64>, endpoint: Endpoint) -> Self {
        let (init, first, warm, bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { folder: folder.to_owned(), name, event, status, endpoint, init, first, warm, bare, peak_rss_mb: 0.0 }
    }

    /// The life of one sandbox.
    async fn run(&mut self, trusted: &str) {
        self.bare_call().await;
        self.endpoint.take_connections();
        let variables = variables(self.name, &self.endpoint.url, trusted);
        let mut sandbox =
            Sandbox::start(&binary(&self.folder, "leasehold-locks"), &variables).await.expect("it starts");
        self.init.push(sandbox.ready().await.expect("it asks for an event"));
        let first = self.invoke(&mut sandbox).await;
        self.first.push(first);
        for _ in 0..WARM {
            let bare = self.bare_call().await;
            self.bare.push(bare);
            let warm = self.invoke(&mut sandbox).await;
            self.warm.push(warm);
        }
        assert_eq!(self.endpoint.take_connections(), 1, "{} uses the connection that it opened", self.name);
        self.peak_rss_mb = self.peak_rss_mb.max(sandbox.peak_rss_mb().expect("Linux"));
        sandbox.stop().await.expect("it ends");
    }

    async fn invoke(&self, sandbox: &mut Sandbox) -> Duration {
        let (answer, elapsed) = sandbox.invoke(self.event.clone()).await;
        let Answer::Response(answer) = answer else { panic!("{} failed: {answer:?}", self.name) };
        assert_eq!(answer["statusCode"].as_u64(), self.status, "{}: {answer}", self.name);
        elapsed
    }

    async fn bare_call(&self) -> Duration {
        bare_update(&self.endpoint.client).await
    }
}

/// Measures the SDK's own time for one write to the row that the functions use.
async fn bare_update(client: &Client) -> Duration {
    let request = client
        .update_item()
        .table_name(TABLE)
        .key("key", AttributeValue::S("Moe".into()))
        .update_expression("SET note = :note")
        .expression_attribute_values(":note", AttributeValue::S("bench".into()))
        .return_values(ReturnValue::AllOld);
    let started = Instant::now();
    Box::pin(request.send()).await.expect("applied");
    started.elapsed()
}

/// Creates the table, and the lock that the events are about. A direct invocation has a lease id of its own.
async fn hold_lock(endpoint: &Endpoint, function: &str) {
    let client = Client::from_conf(leasehold_dynamodb::configure(endpoint.engine.sdk_config()).build());
    let schema = TableSchema::new(TABLE);
    ensure_table(&client, &schema).await.expect("a new table");
    let table = LockTable::new(client, schema, Policy::default(), Clock::system());
    let unrestricted = Function::unrestricted(Service::new(table));
    if function == "invoke" {
        unrestricted.answer_direct(read_event("direct-acquire")).await.expect("granted");
    } else {
        let acquire = routes(|operation| operation.name == "acquire");
        let answer = unrestricted.answer_http(&acquire, read_event("http-acquire")).await.expect("an event");
        assert!(answer.get().contains("\"statusCode\":200"), "{answer}");
    }
}

fn report<'a>(nothing: Duration, subjects: impl Iterator<Item = &'a mut Subject>) {
    println!("{:<10} {:^29} {:^16} {:^24} {:^13} {:>8}", "", "init, ms", "first, ms", "warm, ms", "SDK, ms", "peak");
    println!(
        "{:<10} {:>6} {:>6} {:>6} {:>8} {:>7} {:>8} {:>7} {:>7} {:>8} {:>6} {:>6} {:>8}",
        "", "median", "p99", "max", "/nothing", "median", "-warm", "median", "p99", "/SDK", "median", "p99", "RSS, MB"
    );
    for subject in subjects {
        let init = percentile(&mut subject.init, 50.0);
        let first = percentile(&mut subject.first, 50.0);
        let warm = percentile(&mut subject.warm, 50.0);
        let bare = percentile(&mut subject.bare, 50.0);
        println!(
            "{:<10} {:>6.2} {:>6.2} {:>6.2} {:>8.2} {:>7.2} {:>8.2} {:>7.2} {:>7.2} {:>8.2} {:>6.2} {:>6.2} {:>8.1}",
            subject.name,
            millis(init),
            millis(percentile(&mut subject.init, 99.0)),
            millis(percentile(&mut subject.init, 100.0)),
            init.as_secs_f64() / nothing.as_secs_f64(),
            millis(first),
            millis(first) - millis(warm),
            millis(warm),
            millis(percentile(&mut subject.warm, 99.0)),
            warm.as_secs_f64() / bare.as_secs_f64(),
            millis(bare),
            millis(percentile(&mut subject.bare, 99.0)),
            subject.peak_rss_mb,
        );
    }
}

/// Prints the sizes of the binaries, and of the archives that are uploaded.
fn sizes(folders: &[PathBuf]) {
    println!("{:<22} {:>10} {:>8}   in megabytes of 2^20 bytes", "", "binary", "zip");
    for name in ["leasehold-locks", "leasehold-transactions"] {
        for folder in folders {
            let bytes = std::fs::read(binary(folder, name)).expect("it is built");
            let mut zip = DeflateEncoder::new(Vec::new(), Compression::default());
            zip.write_all(&bytes).expect("memory");
            let zip = zip.finish().expect("memory");
            let (bytes, zip) = (megabytes(bytes.len()), megabytes(zip.len()));
            println!("{name:<22} {bytes:>10.2} {zip:>8.2}   {}", folder.display());
        }
    }
}

fn binary(folder: &Path, name: &str) -> PathBuf {
    folder.join(name).join("bootstrap")
}

fn read_event(name: &str) -> Value {
    let file = format!("{}/../../events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).expect("an event");
    serde_json::from_str(&text).expect("JSON")
}

fn percentile(times: &mut [Duration], percent: f64) -> Duration {
    times.sort_unstable();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index within the slice")]
    let index = ((times.len() - 1) as f64 * percent / 100.0) as usize;
    times[index]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
