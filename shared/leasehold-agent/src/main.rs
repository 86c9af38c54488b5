//! The `leasehold-agent` program: the agent without the rest of the command, small enough for a Lambda layer.

use std::process::ExitCode;

use aws_credential_types::Credentials;
use clap::{Args, Parser};
use leasehold_agent::AgentArgs;
use leasehold_client::{HttpTransport, LambdaTransport, SigV4, Transport};
use tracing_subscriber::filter::LevelFilter;

const DEFAULT_URL: &str = "http://127.0.0.1:8080";
const NEEDS: &str = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, as Lambda does; `leasehold agent` knows \
                     other places";

/// Hold locks for the processes beside this one, which ask by HTTP: a Lambda extension, a sidecar or a daemon.
#[derive(Debug, Parser)]
#[command(name = "leasehold-agent", version)]
struct Program {
    #[command(flatten)]
    service: ServiceArgs,

    #[command(flatten)]
    agent: AgentArgs,
}

/// Where the locks are. As for the whole command, an option outdoes a variable: clap would not tell which one it was.
#[derive(Debug, Args)]
struct ServiceArgs {
    /// The lock service. Several URLs, repeated or with commas between them, are endpoints that stand in for each other
    /// [env: LEASEHOLD_URL] [default: http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    url: Vec<String>,

    /// Send this bearer token. The variable keeps it out of the list of processes [env: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,

    /// Sign requests with the AWS credentials of the environment, for an API that is protected by IAM [env:
    /// LEASEHOLD_SIGV4]
    #[arg(long, conflicts_with = "token")]
    sigv4: bool,

    /// Invoke this Lambda function directly, with no API in between: its name or ARN [env: LEASEHOLD_LAMBDA]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["url", "token", "sigv4"])]
    lambda: Option<String>,

    /// The region for --sigv4 and --lambda: one for all URLs, or one for each. Default: that of the API's host name, or
    /// AWS_REGION.
    #[arg(long, value_name = "REGION", value_delimiter = ',')]
    region: Vec<String>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(std::io::stderr).without_time().init();
    let program = Program::parse();
    // The agent waits, and computes nothing: one thread is enough.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        let transport = program.service.transport().map_err(|error| error.to_string())?;
        runtime.block_on(leasehold_agent::run(program.agent, transport)).map_err(|error| error.to_string())
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

impl ServiceArgs {
    fn transport(&self) -> Result<Box<dyn Transport>, Box<dyn std::error::Error>> {
        let is_elsewhere = !self.url.is_empty() || self.token.is_some() || self.sigv4;
        let function = self.lambda.clone().or_else(|| variable("LEASEHOLD_LAMBDA").filter(|_| !is_elsewhere));
        if let Some(function) = function {
            let mut transport = LambdaTransport::new(&function, signer(self.region(0, None)?)?)?;
            if let Some(url) = variable("AWS_ENDPOINT_URL_LAMBDA") {
                transport = transport.endpoint_url(&url)?;
            }
            return Ok(Box::new(transport));
        }
        let given = (!self.url.is_empty()).then(|| self.url.join(","));
        let urls = given.or_else(|| variable("LEASEHOLD_URL")).unwrap_or_else(|| DEFAULT_URL.to_owned());
        if self.sigv4 || (self.token.is_none() && is_on("LEASEHOLD_SIGV4")) {
            return Ok(Box::new(self.signed(&urls)?));
        }
        let transport = HttpTransport::new(&urls)?;
        Ok(Box::new(match self.token.clone().or_else(|| variable("LEASEHOLD_TOKEN")) {
            Some(token) => transport.bearer_token(&token),
            None => transport,
        }))
    }

    /// Each endpoint has a signature for its own region, with the same credentials.
    fn signed(&self, urls: &str) -> Result<HttpTransport, Box<dyn std::error::Error>> {
        let urls: Vec<_> = urls.split(',').map(str::trim).filter(|url| !url.is_empty()).collect();
        if self.region.len() > 1 && self.region.len() != urls.len() {
            return Err("--region names one region for all URLs, or one for each".into());
        }
        let mut endpoints = Vec::new();
        for (at, url) in urls.iter().enumerate() {
            endpoints.push(HttpTransport::new(url)?.sigv4(signer(self.region(at, SigV4::region_of(url))?)?));
        }
        endpoints.into_iter().reduce(HttpTransport::or).ok_or_else(|| "--url names no URL".into())
    }

    /// The region of the endpoint at this place.
    fn region(&self, at: usize, of_host: Option<String>) -> Result<String, &'static str> {
        let given = self.region.get(at).or(self.region.first()).cloned();
        given.or(of_host).or_else(|| variable("AWS_REGION")).ok_or(NEEDS)
    }
}

/// Signs with the credentials of the environment, where Lambda puts them.
fn signer(region: String) -> Result<SigV4, &'static str> {
    let key = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
    let (id, secret) = key.ok_or(NEEDS)?;
    Ok(SigV4::new(Credentials::new(id, secret, variable("AWS_SESSION_TOKEN"), None, "environment"), region))
}

/// Reads a variable of the environment. An empty variable counts as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether a variable of the environment switches something on.
fn is_on(name: &str) -> bool {
    variable(name).is_some_and(|value| !["0", "false", "no", "off"].contains(&value.to_ascii_lowercase().as_str()))
}
