//! A service, and agents beside it.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client as Dynamodb;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use leasehold_client::{Client, Transport, TransportError};
use leasehold_engine::Engine;
use leasehold_in_process::InProcess;
use leasehold_protocol::{Policy, TableSchema, ensure_table};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.expect("it happens in time")
}

#[allow(clippy::disallowed_methods, reason = "a test waits for another process")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// The lock service, on a port of its own.
pub(crate) struct Service {
    url: String,
    client: Client,
    is_silent: Arc<AtomicBool>,
}

impl Service {
    pub(crate) async fn start() -> Self {
        let engine = Engine::memory().unwrap();
        let dynamodb = Dynamodb::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
        let table = TableSchema::new("locks");
        ensure_table(&dynamodb, &table).await.unwrap();
        let service = Arc::new(InProcess::on_table(&dynamodb, table, Policy::default()).unwrap());
        let client = Client::new(Shared(service.clone()));
        let is_silent = Arc::new(AtomicBool::new(false));
        let silent = is_silent.clone();
        let serve = move |request: Request, _: Next| {
            let (service, is_silent, _engine) = (service.clone(), silent.load(Ordering::SeqCst), engine.clone());
            async move {
                if is_silent {
                    return http::StatusCode::SERVICE_UNAVAILABLE.into_response();
                }
                let (head, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
                let answer = service.send(http::Request::from_parts(head, body.to_vec())).await.unwrap();
                answer.map(axum::body::Body::from)
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new().fallback(async || "").layer(from_fn(serve));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, client, is_silent }
    }

    /// Answers nothing but 503, or serves again.
    pub(crate) fn stop_answering(&self, is_silent: bool) {
        self.is_silent.store(is_silent, Ordering::SeqCst);
    }

    pub(crate) async fn agent(&self, args: &[&str]) -> Local {
        Local::start(&self.url, args).await
    }

    /// An agent with these variables in its environment.
    pub(crate) async fn agent_with(&self, variables: &[(&str, &str)]) -> Local {
        Local::started(spawn(&self.url, &ANY_PORT, variables).await)
    }

    /// An agent that has another endpoint before this one.
    pub(crate) async fn agent_after(&self, other: &str) -> Local {
        Local::start(&format!("{other},{}", self.url), &[]).await
    }

    pub(crate) async fn spawn(&self, args: &[&str]) -> Child {
        spawn(&self.url, args, &[]).await.0
    }

    pub(crate) async fn state(&self, key: &str) -> String {
        json!(self.client.get(key).await.unwrap().state).as_str().unwrap().to_owned()
    }

    pub(crate) async fn until(&self, key: &str, state: &str) {
        let reached = async {
            while self.state(key).await != state {
                pause(Duration::from_millis(20)).await;
            }
        };
        within(reached).await;
    }

    pub(crate) async fn break_lock(&self, key: &str) {
        let broken = async {
            loop {
                // A heartbeat may come between.
                let version = self.client.get(key).await.unwrap().record_version_number;
                if self.client.break_lock(key, version).await.is_ok() {
                    return;
                }
            }
        };
        within(broken).await;
    }

    pub(crate) async fn want(&self, key: &str) {
        let body = json!({ "key": key, "ownerName": "waiter" });
        let request = reqwest::Client::new().post(format!("{}/v1/want", self.url)).json(&body);
        assert_eq!(request.send().await.unwrap().status(), 200);
    }
}

/// One service for the agent and for the test.
struct Shared(Arc<InProcess>);

impl Transport for Shared {
    fn send(
        &self,
        request: http::Request<Vec<u8>>,
    ) -> leasehold_client::BoxFuture<'_, Result<http::Response<Vec<u8>>, TransportError>> {
        self.0.send(request)
    }
}

/// A running agent. Killed when it is dropped.
pub(crate) struct Local {
    process: Child,
    url: String,
    http: reqwest::Client,
}

const ANY_PORT: [&str; 2] = ["--listen", "127.0.0.1:0"];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold-agent"));
    command.args(args).env_clear().kill_on_drop(true);
    command
}

/// The message of an agent that does not start with this variable in its environment.
pub(crate) async fn refusal_to_start((name, value): (&str, &str)) -> String {
    let ended = within(command(&ANY_PORT).env(name, value).output()).await.unwrap();
    assert!(!ended.status.success());
    String::from_utf8(ended.stderr).unwrap()
}

async fn spawn(service: &str, args: &[&str], variables: &[(&str, &str)]) -> (Child, String) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut command = command(&[&["--url", service, "--owner", "test"], args].concat());
    command.envs(variables.iter().copied());
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = within(lines.next_line()).await.unwrap().expect("it starts");
    (process, line.strip_prefix("leasehold-agent listens on ").unwrap().to_owned())
}

impl Local {
    pub(crate) async fn start(service: &str, args: &[&str]) -> Self {
        Self::started(spawn(service, &[&ANY_PORT, args].concat(), &[]).await)
    }

    fn started((process, url): (Child, String)) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { process, url, http }
    }

    pub(crate) fn request(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http.post(format!("{}{path}", self.url)).body(body.to_string())
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, HeaderMap, Value) {
        read(self.request(path, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value, Value) {
        let (status, _, document) = read(self.http.get(format!("{}{path}", self.url))).await;
        (status, document.clone(), document)
    }

    pub(crate) async fn acquire(&self, key: &str) -> Value {
        let (status, _, granted) = self.post("/acquire", &json!({ "key": key })).await;
        assert_eq!(status, 200, "{granted}");
        granted
    }

    pub(crate) async fn hold(&self, body: &Value) -> Lines {
        let answer = self.request("/hold", body).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        Lines { answer, read: Vec::new() }
    }

    /// Stops the process for a while.
    pub(crate) async fn pause(&self, duration: Duration) {
        self.signal("-STOP").await;
        pause(duration).await;
        self.signal("-CONT").await;
    }

    /// Ends the process by a signal. Returns whether it ended well.
    pub(crate) async fn terminate(mut self) -> bool {
        self.signal("-TERM").await;
        within(self.process.wait()).await.unwrap().success()
    }

    async fn signal(&self, name: &str) {
        let id = self.process.id().unwrap().to_string();
        assert!(Command::new("kill").args([name, &id]).status().await.unwrap().success());
    }
}

async fn read(request: reqwest::RequestBuilder) -> (u16, HeaderMap, Value) {
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    (status, headers, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
}

/// The lines of an open answer.
pub(crate) struct Lines {
    answer: reqwest::Response,
    read: Vec<u8>,
}

impl Lines {
    async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.read.extend(within(self.answer.chunk()).await.ok().flatten()?);
        }
    }

    pub(crate) async fn next(&mut self) -> Value {
        self.line().await.expect("a line")
    }

    pub(crate) async fn until(&mut self, event: &str) -> Value {
        loop {
            let line = self.next().await;
            if line["event"] == event {
                return line;
            }
        }
    }

    pub(crate) async fn is_over(&mut self) -> bool {
        self.line().await.is_none()
    }
}
