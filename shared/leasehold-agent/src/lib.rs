//! # The agent: locks for any language
//!
//! A process that holds locks for the processes beside it, which ask by HTTP on loopback or on a Unix socket: `curl` is
//! enough. As an external extension of a Lambda function it holds them for the time of an invocation; elsewhere it is a
//! sidecar or a daemon. `docs/lambda-functions.md` has the API.
//!
//! * The agent heartbeats, and shares one client with its connections.
//! * The lease id never leaves the agent. Callers name a lock by a random handle.
//! * `POST /hold` answers with a stream of lines. The lock ends with the connection, however that ends.
//! * In Lambda, an invocation's locks are released at its end, before the sandbox is frozen; no lease outlives the
//!   deadline by more than a margin. A kept lock is believed in after a freeze once a heartbeat was answered.
//! * Web pages are refused, as by `leasehold serve`.
//!
//! [`run`] is the whole of it: `leasehold agent` and `leasehold-agent` call it.

mod agent;
mod api;
mod door;
pub mod duration;
mod extension;
mod lock;
mod refusal;
mod time;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leasehold_client::{Client, Transport};
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::Agent;
use crate::door::{Door, Token};
use crate::extension::Extension;
use crate::time::Period;

pub use door::Listen;
pub use extension::ExtensionError;

/// The time for the releases after a signal.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// The options of the agent.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// The address of the local API: ADDRESS:PORT on loopback, where port 0 takes any free one, or unix:PATH, a socket
    /// that only this user can open.
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:2772", env = "LEASEHOLD_LISTEN")]
    pub listen: Listen,

    /// The owner's name, for people to read. Default: the function's name, or the host's name and the process id.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_OWNER")]
    pub owner: Option<String>,

    /// Require callers to send the token of this file: Authorization: Bearer TOKEN. A missing file is made, with a
    /// fresh token, for this user alone.
    #[arg(long, value_name = "PATH", env = "LEASEHOLD_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,

    /// In a Lambda function: the time before the deadline of an invocation at which its work must end, and the time
    /// after it at which its leases have ended.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse, env = "LEASEHOLD_MARGIN")]
    pub margin: Duration,

    /// The host and the port of Lambda's Extensions API. Lambda sets the variable, and makes the agent an extension.
    #[arg(long, value_name = "HOST:PORT", env = "AWS_LAMBDA_RUNTIME_API", hide = true)]
    pub runtime_api: Option<String>,

    /// The name of the function. Lambda sets the variable.
    #[arg(long, value_name = "NAME", env = "AWS_LAMBDA_FUNCTION_NAME", hide = true)]
    pub function_name: Option<String>,
}

/// The reason why an agent did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The address of the local API cannot be used.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// The address.
        listen: Listen,
        /// The system's message.
        source: io::Error,
    },
    /// The file of the token cannot be used.
    #[error("cannot use the token file {}: {source}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}")]
    Signals(io::Error),
    /// Locks could not be released.
    #[error("not all locks could be released: the others are free after their leases")]
    Unreleased,
    /// Lambda did not accept the extension.
    #[error(transparent)]
    Extension(#[from] ExtensionError),
}

/// Runs the agent until a signal, or Lambda, ends it. All locks are then released.
///
/// # Errors
/// The agent cannot start, or Lambda does not accept it.
pub async fn run(args: AgentArgs, transport: impl Transport) -> Result<(), AgentError> {
    let token = args
        .token_file
        .as_ref()
        .map(|path| Token::of_file(path).map_err(|source| AgentError::TokenFile { path: path.clone(), source }));
    let token = token.transpose()?;
    let mut terminated = signal(SignalKind::terminate()).map_err(AgentError::Signals)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(AgentError::Signals)?;
    let mut client = Client::builder();
    if let Some(owner) = args.owner.as_ref().or(args.function_name.as_ref()) {
        client = client.owner_name(owner);
    }
    let period = if args.runtime_api.is_some() { Period::Between } else { Period::Always };
    let agent = Agent::new(client.build(transport), args.margin, period);
    let opened = Door::open(&args.listen).await;
    let (door, listen) = opened.map_err(|source| AgentError::Listen { listen: args.listen.clone(), source })?;
    let routes = api::routes(agent.clone());
    tokio::spawn(async move { door.serve(routes, token).await });
    let watching = agent.clone();
    tokio::spawn(async move { watching.watch_freezes().await });
    let extension = async {
        if let Some(api) = &args.runtime_api {
            let is_released = Extension::register(api, &name_of_program()).await?.run(&agent).await?;
            return if is_released { Ok(()) } else { Err(AgentError::Unreleased) };
        }
        // An agent does not stop because its output is closed.
        let _ = writeln!(io::stdout(), "leasehold-agent listens on {listen}");
        std::future::pending().await
    };
    let result = tokio::select! {
        ended = extension => ended,
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
    };
    let is_released = agent.close(CLOSE_WITHIN).await;
    if let Listen::Unix(path) = listen {
        let _ = std::fs::remove_file(path);
    }
    result.and(if is_released { Ok(()) } else { Err(AgentError::Unreleased) })
}

/// The name of this program's file. Lambda knows an extension by it.
fn name_of_program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    path.file_name().map_or_else(|| "leasehold-agent".into(), |name| name.to_string_lossy().into_owned())
}
