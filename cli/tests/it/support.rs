//! Services and commands as processes, which the tests start and end.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use aws_sdk_dynamodb::Client as DynamoDb;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// The longest wait for an event. Every event here takes less than a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.expect("it happens in time")
}

/// Gives commands the default disposition of each signal, whatever started the tests. A script's background job ignores
/// SIGINT and SIGQUIT, and a job under `nohup` ignores SIGHUP. Children inherit ignored signals.
pub(crate) fn default_dispositions() {
    static ONCE: Once = Once::new();
    // In a new program a handled signal has its default disposition, and an ignored one stays ignored. The handler does
    // the signal's default.
    ONCE.call_once(|| {
        for signal in [SIGINT, SIGQUIT, SIGHUP, SIGTERM] {
            register_conditional_default(signal, Arc::new(AtomicBool::new(true))).expect("a signal with a handler");
        }
    });
}

/// `leasehold` without the shell's settings, except the path of programs. Killed when it is dropped.
pub(crate) fn leasehold(folder: &Path) -> Command {
    default_dispositions();
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// `leasehold serve` with these arguments, killed when it is dropped. The shell's settings do not reach it.
pub(crate) fn command(folder: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = leasehold(folder);
    command.arg("serve").args(args);
    command
}

/// Runs `leasehold` with these arguments in a folder.
pub(crate) async fn in_folder(folder: &Path, args: &[&str]) -> Ended {
    let mut command = leasehold(folder);
    command.args(args);
    end(command).await
}

/// A running service.
pub(crate) struct Serve {
    pub(crate) process: Child,
    pub(crate) stdout: Lines<BufReader<ChildStdout>>,
    pub(crate) banner: Vec<String>,
    pub(crate) base_url: String,
    pub(crate) http: reqwest::Client,
}

impl Serve {
    /// Starts on a free port.
    pub(crate) async fn start(args: &[&str]) -> Self {
        Self::spawn(command(&std::env::temp_dir(), &[&["--listen", "127.0.0.1:0"], args].concat())).await
    }

    /// Starts on a free port, on a database in this folder.
    pub(crate) async fn on_file(folder: &Path, db: &str) -> Self {
        Self::spawn(command(folder, &["--db", db, "--listen", "127.0.0.1:0"])).await
    }

    /// Starts `command` and reads its output until it waits for requests.
    pub(crate) async fn spawn(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the binary is built");
        let mut stdout = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut banner: Vec<String> = Vec::new();
        while !banner.last().is_some_and(|line| line.starts_with("  stop ")) {
            banner.push(within(stdout.next_line()).await.expect("text").expect("it starts"));
        }
        let base_url = banner[0].strip_prefix("Leasehold listens on ").expect("the address comes first").to_owned();
        Self { process, stdout, banner, base_url, http: http_client() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.base_url.strip_prefix("http://").and_then(|address| address.parse().ok()).expect("an address")
    }

    pub(crate) async fn acquire(&self, key: &str, lease_id: &str) -> Value {
        let body = json!({ "key": key, "ownerName": "test", "leaseId": lease_id });
        acquire(&self.http, &self.base_url, &body).await.expect("granted")
    }

    /// Posts a document. Returns the status and the answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.http.post(format!("{}{path}", self.base_url)).json(body).send();
        let answer = within(answer).await.expect("an answer");
        (answer.status().as_u16(), within(answer.json()).await.expect("JSON"))
    }

    pub(crate) async fn get(&self, key: &str) -> Value {
        let request = self.http.get(format!("{}/v1/lock?key={key}", self.base_url)).send().await;
        request.expect("an answer").json().await.expect("JSON")
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.process, name);
    }

    /// Waits until the port is closed, because a stop has begun.
    pub(crate) async fn stops_listening(&self) {
        let closed = async {
            while TcpStream::connect(self.address()).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        within(closed).await;
    }

    /// Waits for the end. Returns the exit status, and the output since the start.
    pub(crate) async fn ended(mut self) -> (Option<i32>, Vec<String>) {
        let mut printed = Vec::new();
        while let Some(line) = within(self.stdout.next_line()).await.expect("text") {
            printed.push(line);
        }
        (within(self.process.wait()).await.expect("its status").code(), printed)
    }

    /// Kills the process without warning, like a power cut.
    pub(crate) async fn kill_9(mut self) {
        within(self.process.kill()).await.expect("it was running");
    }
}

/// Sends a signal to a child.
pub(crate) fn signal(process: &Child, name: &str) {
    kill(name, process.id().expect("it is running").into());
}

/// A client of HTTP with the patience of these tests.
pub(crate) fn http_client() -> reqwest::Client {
    // Every test does so; the first one counts.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client")
}

/// Returns the grant, or `None` without a complete answer. Every request has a higher number than the one before, so
/// that an abandoned attempt changes nothing when it is carried out late.
pub(crate) async fn acquire(http: &reqwest::Client, base_url: &str, body: &Value) -> Option<Value> {
    static SEQUENCE: AtomicU64 = AtomicU64::new(1);
    let mut body = body.clone();
    body["sequence"] = json!(SEQUENCE.fetch_add(1, Ordering::Relaxed));
    let response = http.post(format!("{base_url}/v1/acquire")).json(&body).send().await.ok()?;
    let status = response.status();
    let document: Value = response.json().await.ok()?;
    assert_eq!(status, 200, "{document}");
    Some(document)
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

pub(crate) fn text_of(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

pub(crate) fn exposed_url(serve: &Serve) -> String {
    let line = serve.banner.iter().find_map(|line| line.strip_prefix("  dynamodb  ")).expect("the DynamoDB address");
    line.split(' ').next().expect("a URL").to_owned()
}

impl Serve {
    /// A client of the exposed port. On a busy machine an answer may take longer than the service itself would wait.
    pub(crate) async fn dynamodb(&self) -> DynamoDb {
        let client = leasehold_dynamodb::connect(Some(&exposed_url(self))).await;
        let patience = TimeoutConfig::builder().connect_timeout(PATIENCE).operation_attempt_timeout(PATIENCE).build();
        DynamoDb::from_conf(client.config().to_builder().timeout_config(patience).build())
    }
}

/// The headers of a signature, which the exposed port requires and does not check.
pub(crate) fn signed(request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
    let credential = "Credential=any/20260101/us-east-1/dynamodb/aws4_request";
    request
        .header("x-amz-date", "20260101T000000Z")
        .header("authorization", format!("AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0"))
}

/// The end of a command, and its output.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The standard output, as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The standard output, if the command succeeded.
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.status, self.stderr.as_str()), (0, ""), "{self:?}");
        self.stdout
    }
}

/// Runs a command to its end.
pub(crate) async fn end(mut command: Command) -> Ended {
    finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is built")).await
}

/// Waits for the end of a command whose output is piped.
pub(crate) async fn finish(process: Child) -> Ended {
    let Output { status, stdout, stderr } = within(process.wait_with_output()).await.expect("its output");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ended {
        status: status.code().unwrap_or_else(|| panic!("it was ended by {status}")),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

impl Serve {
    /// A service in memory.
    pub(crate) async fn memory() -> Self {
        Self::start(&["--memory"]).await
    }

    /// A command that uses this service.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = leasehold(&std::env::temp_dir());
        command.env("LEASEHOLD_URL", &self.base_url).args(args);
        command
    }

    /// Runs a command that uses this service to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Ended {
        end(self.command(args)).await
    }

    /// Starts a command that uses this service, with its output piped.
    pub(crate) fn spawn_command(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is built")
    }

    /// Waits until the lock is as `wanted`, and returns it.
    pub(crate) async fn until(&self, key: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let look = async {
            loop {
                let lock = self.get(key).await;
                if wanted(&lock) {
                    return lock;
                }
                pause(Duration::from_millis(20)).await;
            }
        };
        within(look).await
    }

    /// Returns the public view of a semaphore.
    pub(crate) async fn semaphore(&self, key: &str) -> Value {
        let request = self.http.get(format!("{}/v1/semaphore?key={key}", self.base_url)).send().await;
        request.expect("an answer").json().await.expect("JSON")
    }

    /// Waits until so many wait in the queue of a semaphore, and returns its view.
    pub(crate) async fn until_queued(&self, key: &str, waiting: usize) -> Value {
        let look = async {
            loop {
                let view = self.semaphore(key).await;
                if view["queue"].as_array().is_some_and(|queue| queue.len() == waiting) {
                    return view;
                }
                pause(Duration::from_millis(20)).await;
            }
        };
        within(look).await
    }

    /// Takes a lock over by force, as an observer does after it has waited for the lease.
    pub(crate) async fn take_over(&self, key: &str, owner: &str) -> Value {
        // The version may move between the look and the takeover.
        let look = async {
            loop {
                let rvn = self.get(key).await["recordVersionNumber"].clone();
                let body = json!({ "key": key, "ownerName": owner, "observedRecordVersionNumber": rvn });
                let (status, answer) = self.post("/v1/acquire", &body).await;
                if status == 200 {
                    return answer;
                }
                assert_eq!(status, 423, "{answer}");
            }
        };
        within(look).await
    }
}

#[allow(clippy::disallowed_methods, reason = "the processes under test live in real time")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Sends a signal to any process, or to a group if the number is negative. No shell does it: the test would stand still
/// until the shell ends.
pub(crate) fn kill(name: &str, process: i64) {
    let signal: Signal = format!("SIG{name}").parse().expect("a signal");
    let id = Pid::from_raw(process.try_into().expect("a process"));
    nix::sys::signal::kill(id, signal).unwrap_or_else(|error| panic!("{signal} to {id}: {error}"));
}

/// Whether a process runs, and is not a zombie.
pub(crate) fn runs(process: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with(['Z', 'X']))
}

/// Waits until a file has a complete line, and returns it.
pub(crate) async fn first_line(path: &Path) -> String {
    let look = async {
        loop {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            if let Some((line, _)) = text.split_once('\n') {
                return line.to_owned();
            }
            pause(Duration::from_millis(10)).await;
        }
    };
    within(look).await
}
