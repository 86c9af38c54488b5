//! The place of the service, and the way to it.

use std::pin::pin;
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use axum::http::Uri;
use clap::Args;
use leasehold_api::logging::{LevelFilter, LogFormat, init_logging};
use leasehold_client::{Client, HttpTransport, LambdaTransport, SigV4, Transport};
use leasehold_in_process::InProcess;
use leasehold_protocol::{Policy, TableSchema};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::Failure;
use crate::failure::status;
use crate::output::OutputArgs;

const DEFAULT_URL: &str = "http://127.0.0.1:8080";
pub(crate) const URL_VARIABLE: &str = "LEASEHOLD_URL";
pub(crate) const TOKEN_VARIABLE: &str = "LEASEHOLD_TOKEN";
pub(crate) const LAMBDA_VARIABLE: &str = "LEASEHOLD_LAMBDA";
const NEEDS: &str = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";

/// The time for which people wait without an explanation. The client gives up sooner where it never reached the
/// service.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);

/// Where the locks are. The environment is read here and not by clap, to which a variable and an option that exclude
/// each other would be an error; an option on the command line outdoes a variable.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArgs {
    /// The lock service. Several URLs, repeated or with commas between them, are endpoints that stand in for each other
    /// [env: LEASEHOLD_URL] [default: http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    url: Vec<String>,

    /// Send this bearer token. The variable keeps it out of the list of processes [env: LEASEHOLD_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,

    /// Sign requests with AWS credentials from the usual places, for an API that is protected by IAM [env:
    /// LEASEHOLD_SIGV4]
    #[arg(long, group = "signed", conflicts_with = "token")]
    sigv4: bool,

    /// Invoke this Lambda function directly, with no API in between: its name or ARN [env: LEASEHOLD_LAMBDA]
    #[arg(long, value_name = "NAME", group = "signed", conflicts_with_all = ["url", "token", "sigv4"])]
    lambda: Option<String>,

    /// The region for --sigv4 and --lambda: one for all URLs, or one for each. Default: that of the API's host name, or
    /// of the AWS configuration.
    #[arg(long, value_name = "REGION", value_delimiter = ',', requires = "signed")]
    region: Vec<String>,

    /// Use this DynamoDB table directly, with no service in between.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["url", "token", "sigv4", "lambda"])]
    dynamodb_table: Option<String>,

    /// The URL of DynamoDB. Default: the endpoint of the region in the AWS configuration.
    #[arg(long, value_name = "URL", requires = "dynamodb_table", value_parser = endpoint)]
    dynamodb_endpoint: Option<String>,

    /// The name of the table's partition key.
    #[arg(long, value_name = "NAME", requires = "dynamodb_table", default_value = "key")]
    partition_key: String,

    /// The name of the table's sort key, if it has one.
    #[arg(long, value_name = "NAME", requires = "dynamodb_table")]
    sort_key_name: Option<String>,
}

/// The options of all commands that talk to the service.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    connection: ConnectionArgs,
}

impl CommonArgs {
    /// Creates the client, and starts the log.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(self.transport().await?))
    }

    /// Returns the transport to the service, with the caller's own credentials, and starts the log.
    pub(crate) async fn transport(&self) -> Result<Box<dyn Transport>, Failure> {
        init_logging(LogFormat::Text, self.log_level());
        Ok(match (&self.connection.dynamodb_table, self.function()) {
            (Some(table), _) => Box::new(self.connection.in_process(table).await?),
            (None, Some(function)) => Box::new(self.connection.lambda(&function).await?),
            (None, None) => Box::new(self.connection.http().await?),
        })
    }

    /// The name of the service, for people.
    pub(crate) fn place(&self) -> String {
        let table = || self.connection.dynamodb_table.clone();
        self.url().or_else(table).or_else(|| self.function()).unwrap_or_default()
    }

    /// Awaits one answer. If the answer is late, a line explains the wait.
    pub(crate) async fn patiently<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if let Ok(done) = timeout(SILENCE, &mut work).await {
            return done;
        }
        self.tell_of_silence();
        work.await
    }

    /// Reports that the service does not answer, and is retried.
    pub(crate) fn tell_of_silence(&self) {
        let place = self.place();
        self.output.warn(&format!("no good answer yet from {place}; trying again"));
    }

    /// Reports a failure at once. The returned failure has nothing left to report.
    pub(crate) fn tell(&self, failure: Failure) -> Failure {
        let hint = self.hint(&failure);
        let failure = failure.and(hint);
        // With --quiet, only failures are reported.
        if failure.status != 0 || !self.output.quiet {
            failure.report(self.output.json);
        }
        failure.reported()
    }

    /// A hint for failures where the service's log is this command's own.
    fn hint(&self, failure: &Failure) -> &'static str {
        let can_tell_more = self.connection.dynamodb_table.is_some() && self.output.verbose == 0;
        if can_tell_more && failure.status == status::UNAVAILABLE { " (-v shows why.)" } else { "" }
    }

    /// The URLs of the service, with commas between them, if there is one.
    pub(crate) fn url(&self) -> Option<String> {
        (self.connection.dynamodb_table.is_none() && self.function().is_none()).then(|| self.connection.url())
    }

    /// The name of the function that is invoked directly, if there is one.
    pub(crate) fn function(&self) -> Option<String> {
        self.connection.function()
    }

    /// Whether requests are signed with AWS credentials.
    pub(crate) fn is_signed(&self) -> bool {
        self.connection.is_signed()
    }

    /// The bearer token, if there is one.
    pub(crate) fn token(&self) -> Option<String> {
        self.connection.token()
    }

    /// The place of the service with the token of the environment, for a process that does not have that.
    pub(crate) fn connection(&self) -> ConnectionArgs {
        let token = (!self.is_signed()).then(|| self.token()).flatten();
        ConnectionArgs { token, ..self.connection.clone() }
    }

    fn log_level(&self) -> LevelFilter {
        // With a table, the service runs in this process, and would log each failure before its retry.
        let in_here = self.connection.dynamodb_table.is_some();
        match self.output.verbose {
            0 if self.output.quiet || in_here => LevelFilter::ERROR,
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            _ => LevelFilter::DEBUG,
        }
    }
}

impl ConnectionArgs {
    pub(crate) fn url(&self) -> String {
        let given = (!self.url.is_empty()).then(|| self.url.join(","));
        given.or_else(|| variable(URL_VARIABLE)).unwrap_or_else(|| DEFAULT_URL.to_owned())
    }

    fn token(&self) -> Option<String> {
        self.token.clone().or_else(|| variable(TOKEN_VARIABLE))
    }

    /// The function of the option, or of the variable where no option says something else.
    fn function(&self) -> Option<String> {
        let is_elsewhere = !self.url.is_empty() || self.token.is_some() || self.sigv4 || self.dynamodb_table.is_some();
        self.lambda.clone().or_else(|| variable(LAMBDA_VARIABLE).filter(|_| !is_elsewhere))
    }

    fn is_signed(&self) -> bool {
        self.sigv4 || (self.token.is_none() && is_on("LEASEHOLD_SIGV4"))
    }

    /// Returns the transport to a service behind URLs.
    pub(crate) async fn http(&self) -> Result<HttpTransport, Failure> {
        let urls = self.url();
        if self.is_signed() {
            return self.signed(&urls).await;
        }
        let transport = HttpTransport::new(&urls)?;
        Ok(match self.token() {
            Some(token) => transport.bearer_token(token),
            None => transport,
        })
    }

    /// Each endpoint has a signature for its own region, with the same credentials.
    async fn signed(&self, urls: &str) -> Result<HttpTransport, Failure> {
        let config = sdk_config().await;
        let urls: Vec<_> = urls.split(',').map(str::trim).filter(|url| !url.is_empty()).collect();
        if self.region.len() > 1 && self.region.len() != urls.len() {
            return Err(Failure::usage("--region names one region for all URLs, or one for each"));
        }
        let mut endpoints = Vec::new();
        let mut signer: Option<SigV4> = None;
        for (at, url) in urls.iter().enumerate() {
            let given = self.region.get(at).or(self.region.first()).cloned();
            let region = region(&config, given.or_else(|| SigV4::region_of(url)), "--sigv4")?;
            let of_region = match &signer {
                Some(signer) => signer.in_region(region),
                None => signer.insert(credentials(&config, region).await?).clone(),
            };
            endpoints.push(HttpTransport::new(url)?.sigv4(of_region));
        }
        endpoints.into_iter().reduce(HttpTransport::or).ok_or_else(|| Failure::usage("--url names no URL"))
    }

    async fn lambda(&self, function: &str) -> Result<LambdaTransport, Failure> {
        let config = sdk_config().await;
        if self.region.len() > 1 {
            return Err(Failure::usage("a function is in one region: name one with --region"));
        }
        let signer = credentials(&config, region(&config, self.region.first().cloned(), "--lambda")?).await?;
        let mut transport = LambdaTransport::new(function, signer)?;
        if let Some(url) = variable("AWS_ENDPOINT_URL_LAMBDA").or_else(|| config.endpoint_url().map(str::to_owned)) {
            transport = transport.endpoint_url(&url)?;
        }
        Ok(transport)
    }

    async fn in_process(&self, table: &str) -> Result<InProcess, Failure> {
        let mut schema = TableSchema::new(table);
        schema.partition_key.clone_from(&self.partition_key);
        schema.sort_key.clone_from(&self.sort_key_name);
        let dynamodb = leasehold_dynamodb::connect(self.dynamodb_endpoint.as_deref()).await;
        let service = InProcess::on_table(&dynamodb, schema, Policy::default()).map_err(Failure::usage)?;
        let refused = |sentence| Failure::new(status::MISCONFIGURED, "misconfigured", sentence);
        service.check_regions(&dynamodb, table).await.map_err(refused)
    }
}

/// Checks the URL of DynamoDB.
pub(crate) fn endpoint(text: &str) -> Result<String, String> {
    let url = text.parse::<Uri>().ok();
    let is_web = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https")) && !text.contains('@');
    url.filter(is_web)
        .map(|_| text.to_owned())
        .ok_or_else(|| "write a URL such as http://127.0.0.1:8000, without a user or a password".to_owned())
}

/// The known region, or that of the configuration.
fn region(config: &SdkConfig, known: Option<String>, option: &str) -> Result<String, Failure> {
    known.or_else(|| config.region().map(ToString::to_string)).ok_or_else(|| {
        Failure::usage(format!("{option} needs to know the region: name it with --region, or set AWS_REGION"))
    })
}

/// Signs with the credentials of `config`.
async fn credentials(config: &SdkConfig, region: String) -> Result<SigV4, Failure> {
    let provider = config
        .credentials_provider()
        .ok_or_else(|| Failure::new(status::FORBIDDEN, "forbidden", format!("no AWS credentials; {NEEDS}")))?;
    let signer = SigV4::new(provider, region);
    // Without credentials, no request is worth a retry.
    signer.load().await.map_err(|error| {
        Failure::new(status::FORBIDDEN, "forbidden", format!("no AWS credentials: {error}; {NEEDS}"))
    })?;
    Ok(signer)
}

/// The settings of AWS in the usual places.
async fn sdk_config() -> SdkConfig {
    let https = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    aws_config::defaults(BehaviorVersion::v2026_01_12()).http_client(https).load().await
}

/// Reads a variable of the environment. An empty variable counts as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether a variable of the environment switches something on.
fn is_on(name: &str) -> bool {
    variable(name).is_some_and(|value| !["0", "false", "no", "off"].contains(&value.to_ascii_lowercase().as_str()))
}
