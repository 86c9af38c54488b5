//! The `leasehold-agent` program: the agent without the rest of the command, small enough for a Lambda layer.

use std::process::ExitCode;

use aws_credential_types::Credentials;
use clap::Parser;
use leasehold_agent::AgentArgs;
use leasehold_client::{HttpTransport, LambdaTransport, SigV4, Transport};
use tracing_subscriber::filter::LevelFilter;

/// Hold locks for the processes beside this one, which ask by HTTP: a Lambda extension, a sidecar or a daemon.
#[derive(Debug, Parser)]
#[command(name = "leasehold-agent", version)]
struct Program {
    /// The lock service.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", env = "LEASEHOLD_URL")]
    url: String,

    /// Send this bearer token to the service. The variable keeps it out of the list of processes.
    #[arg(long, value_name = "TOKEN", env = "LEASEHOLD_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// Sign requests with the AWS credentials of the environment, for an API that is protected by IAM.
    #[arg(long, env = "LEASEHOLD_SIGV4")]
    sigv4: bool,

    /// Invoke this Lambda function directly, with no API in between: its name or ARN.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_LAMBDA")]
    lambda: Option<String>,

    /// The Lambda function for semaphores: its name or ARN.
    #[arg(long, value_name = "NAME", requires = "lambda", env = "LEASEHOLD_LAMBDA_SEMAPHORES")]
    lambda_semaphores: Option<String>,

    /// The region for --sigv4 and --lambda.
    #[arg(long, value_name = "REGION", env = "AWS_REGION")]
    region: Option<String>,

    #[command(flatten)]
    agent: AgentArgs,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(std::io::stderr).without_time().init();
    let program = Program::parse();
    // The agent waits, and computes nothing: one thread is enough.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        let transport = program.transport().map_err(|error| error.to_string())?;
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

impl Program {
    fn transport(&self) -> Result<Box<dyn Transport>, Box<dyn std::error::Error>> {
        if let Some(function) = &self.lambda {
            let mut transport = LambdaTransport::new(function, self.signer()?)?;
            if let Some(url) = variable("AWS_ENDPOINT_URL_LAMBDA") {
                transport = transport.endpoint_url(&url)?;
            }
            if let Some(function) = &self.lambda_semaphores {
                transport = transport.semaphore_function(function)?;
            }
            return Ok(Box::new(transport));
        }
        let transport = HttpTransport::new(&self.url)?;
        Ok(Box::new(match &self.token {
            _ if self.sigv4 => transport.sigv4(self.signer()?),
            Some(token) => transport.bearer_token(token),
            None => transport,
        }))
    }

    /// Signs with the credentials of the environment, where Lambda puts them.
    fn signer(&self) -> Result<SigV4, Box<dyn std::error::Error>> {
        let (Some(key), Some(secret), Some(region)) =
            (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"), self.region.clone())
        else {
            return Err(
                "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, as Lambda does; `leasehold agent` \
                        knows other places"
                    .into(),
            );
        };
        Ok(SigV4::new(Credentials::new(key, secret, variable("AWS_SESSION_TOKEN"), None, "environment"), region))
    }
}

/// Reads a variable of the environment. An empty variable counts as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
