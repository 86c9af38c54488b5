//! Lambda on loopback: a sandbox with the [Runtime API] and the process of one function, the Invoke API, and a bucket
//! of S3.
//!
//! The sandbox passes events to the function and receives its answers, as Lambda does, and records the times at which
//! they cross the socket. `TCP_NODELAY` is set, so that the measurement contains no delayed acknowledgement.
//!
//! [Runtime API]: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html

#![allow(clippy::expect_used, clippy::panic, reason = "a test or benchmark that cannot go on stops")]

mod invoke_api;
mod s3;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub use invoke_api::{Fate, Invocation, InvokeApi};
pub use s3::{At, Held, S3};

/// Lambda allows the start of a function this long.
const INIT_LIMIT: Duration = Duration::from_secs(10);

/// More than the time-out of any function.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);

/// The process of one function, and the server that replaces Lambda for it. Both end when it is dropped.
#[derive(Debug)]
pub struct Sandbox {
    process: Child,
    server: JoinHandle<()>,
    calls: mpsc::UnboundedReceiver<Call>,
    started: Instant,
    /// The channel for the function's next event, while it waits for one.
    waiting: Option<oneshot::Sender<Event>>,
}

/// An event for the function, and the client context of a direct invocation.
type Event = (Value, Option<Value>);

/// A call of the function to the Runtime API, and its time.
#[derive(Debug)]
enum Call {
    Next(Instant, oneshot::Sender<Event>),
    Answer(Answer, Instant),
    InitError(Value),
}

/// The result of a function for one event.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The function answered.
    Response(Value),
    /// The function failed: `errorType` and `errorMessage`.
    Error(Value),
}

/// The reason why a function did not request an event.
#[derive(Debug)]
pub enum InitError {
    /// The function reported it: `errorType` and `errorMessage`.
    Reported(Value),
    /// The function exited without a report.
    Exited(io::Result<std::process::ExitStatus>),
    /// The start took longer than Lambda allows.
    TimedOut,
}

impl Sandbox {
    /// Starts the function `binary` with the environment that Lambda gives every function, and `variables`.
    ///
    /// # Errors
    /// Fails with the system's errors: no port, no such program.
    pub async fn start(binary: &Path, variables: &[(&str, &str)]) -> io::Result<Self> {
        Self::start_logged(binary, variables, Stdio::null()).await
    }

    /// As [`Sandbox::start`]. The function's log goes to `log`.
    ///
    /// # Errors
    /// As [`Sandbox::start`].
    pub async fn start_logged(binary: &Path, variables: &[(&str, &str)], log: impl Into<Stdio>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (sender, calls) = mpsc::unbounded_channel();
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, runtime_api(sender)).await;
        });
        let mut command = command(binary, address);
        command.stdout(log);
        let started = Instant::now();
        let process = command.envs(variables.iter().copied()).spawn()?;
        Ok(Self { process, server, calls, started, waiting: None })
    }

    /// Waits until the function requests its first event, and returns the time since the start of the process.
    ///
    /// # Errors
    /// Fails if the function ended or reported an error instead.
    pub async fn ready(&mut self) -> Result<Duration, InitError> {
        let call = async {
            tokio::select! {
                biased;
                Some(call) = self.calls.recv() => Ok(call),
                status = self.process.wait() => self.calls.try_recv().map_err(|_| InitError::Exited(status)),
            }
        };
        match timeout(INIT_LIMIT, call).await.map_err(|_| InitError::TimedOut)?? {
            Call::Next(at, event) => {
                self.waiting = Some(event);
                Ok(at - self.started)
            }
            Call::InitError(error) => Err(InitError::Reported(error)),
            Call::Answer(..) => Err(InitError::Reported("an answer before the first event".into())),
        }
    }

    /// Sends the function an event, and returns its result and the time that it took.
    ///
    /// # Panics
    /// Panics if the function neither answered nor failed, or was not [ready](Self::ready).
    pub async fn invoke(&mut self, event: Value) -> (Answer, Duration) {
        self.invoke_with(event, None).await
    }

    /// As [`Sandbox::invoke`], with the client context of a direct invocation.
    ///
    /// # Panics
    /// As [`Sandbox::invoke`].
    pub async fn invoke_with(&mut self, event: Value, client_context: Option<Value>) -> (Answer, Duration) {
        let waiting = match self.waiting.take() {
            Some(waiting) => waiting,
            None => match self.call().await {
                Call::Next(_, waiting) => waiting,
                call => panic!("asks for no event: {call:?}"),
            },
        };
        let handed = Instant::now();
        waiting.send((event, client_context)).expect("the function waits for it");
        match self.call().await {
            Call::Answer(answer, at) => (answer, at - handed),
            call => panic!("no answer: {call:?}"),
        }
    }

    /// Returns the peak resident memory of the process, in megabytes of 2^20 bytes.
    ///
    /// # Errors
    /// Fails if the process has ended, or the system is not Linux.
    pub fn peak_rss_mb(&self) -> io::Result<f64> {
        let process = self.process.id().ok_or(io::ErrorKind::NotFound)?;
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or(io::ErrorKind::Unsupported)?;
        let kilobytes = line.split_whitespace().next().and_then(|number| number.parse::<f64>().ok());
        kilobytes.map(|kilobytes| kilobytes / 1024.0).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Ends the process, and waits for its end.
    ///
    /// # Errors
    /// Fails with the system's errors.
    pub async fn stop(mut self) -> io::Result<()> {
        self.process.kill().await
    }

    async fn call(&mut self) -> Call {
        timeout(ANSWER_LIMIT, self.calls.recv()).await.expect("in time").expect("the server runs")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The process ends with its handle.
        self.server.abort();
    }
}

fn command(binary: &Path, runtime_api: SocketAddr) -> Command {
    let mut command = Command::new(binary);
    command.kill_on_drop(true).stdin(Stdio::null()).env_clear().envs([
        ("AWS_LAMBDA_RUNTIME_API", runtime_api.to_string().as_str()),
        ("AWS_LAMBDA_FUNCTION_NAME", "function"),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand"),
        ("AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/function"),
        ("AWS_LAMBDA_LOG_STREAM_NAME", "stream"),
        ("AWS_EXECUTION_ENV", "AWS_Lambda_provided.al2023"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_DEFAULT_REGION", "eu-west-1"),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        ("AWS_SESSION_TOKEN", "token"),
        ("_HANDLER", "bootstrap"),
        ("LANG", "en_US.UTF-8"),
        ("LAMBDA_TASK_ROOT", "/var/task"),
        ("PATH", "/usr/local/bin:/usr/bin/:/bin:/opt/bin"),
        ("TZ", ":UTC"),
    ]);
    command
}

type Calls = mpsc::UnboundedSender<Call>;

fn runtime_api(calls: Calls) -> Router {
    Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route("/2018-06-01/runtime/invocation/{id}/response", post(response))
        .route("/2018-06-01/runtime/invocation/{id}/error", post(error))
        .route("/2018-06-01/runtime/init/error", post(init_error))
        .layer(DefaultBodyLimit::disable())
        .with_state(calls)
}

async fn next(State(calls): State<Calls>) -> Response {
    let (sender, event) = oneshot::channel();
    let _ = calls.send(Call::Next(Instant::now(), sender));
    // No further event comes: the sandbox is ending.
    let Ok((event, client_context)) = event.await else { return StatusCode::GONE.into_response() };
    let headers = [
        ("lambda-runtime-aws-request-id", "8476a536-e9f4-11e8-9739-2dfe598c3fcd"),
        ("lambda-runtime-deadline-ms", "4102444800000"),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:eu-west-1:123456789012:function:function"),
        ("lambda-runtime-trace-id", "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=1"),
        ("content-type", "application/json"),
    ];
    let mut response = (headers, event.to_string()).into_response();
    if let Some(context) = client_context.and_then(|context| context.to_string().parse().ok()) {
        response.headers_mut().insert("lambda-runtime-client-context", context);
    }
    response
}

async fn response(State(calls): State<Calls>, body: Bytes) -> StatusCode {
    let at = Instant::now();
    tell(&calls, Call::Answer(Answer::Response(document(&body)), at))
}

async fn error(State(calls): State<Calls>, body: Bytes) -> StatusCode {
    let at = Instant::now();
    tell(&calls, Call::Answer(Answer::Error(document(&body)), at))
}

/// Lambda reads the error's type from the header.
async fn init_error(State(calls): State<Calls>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let mut error = document(&body);
    let named = headers.get("lambda-runtime-function-error-type").and_then(|name| name.to_str().ok());
    error["header"] = named.into();
    tell(&calls, Call::InitError(error))
}

fn tell(calls: &Calls, call: Call) -> StatusCode {
    let _ = calls.send(call);
    StatusCode::ACCEPTED
}

fn document(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into())
}
