//! The start of a function, before it asks for its first event.
//!
//! Lambda gives a process more processor time while it starts than while it answers, and the first caller waits for
//! both. The work that the first request would need is done here: the trusted certificates are read and DynamoDB is
//! connected to.

use std::sync::OnceLock;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::{ReconnectMode, RetryConfig};
use aws_sdk_dynamodb::config::{Config, Credentials, Region, SharedCredentialsProvider, SharedHttpClient};
use aws_sdk_dynamodb::config::{SharedInterceptor, timeout::TimeoutConfig};
use aws_sdk_dynamodb::error::{DisplayErrorContext, SdkError};
use aws_smithy_http_client::Connector;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::http::{HttpConnectorSettings, SharedHttpConnector, http_client_fn};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use aws_types::SdkConfig;
use http::Method;
use lambda_runtime::Error;
use lambda_runtime_api_client::{PooledClient, body::Body, build_request};
use leasehold_api::logging::{self, LevelFilter};
use leasehold_dynamodb::regions;
use serde_json::json;
use tokio::time::timeout;

use crate::lines::subscriber;
use crate::terraform::Bucket;
use crate::xray::Subsegments;

/// A connection inside one region takes a few milliseconds. While DynamoDB cannot be reached, every start waits this
/// long.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// KMS answers within some milliseconds. Two attempts fit into the time of a function.
const KMS_TIMEOUT: Duration = Duration::from_secs(1);
const KMS_ATTEMPTS: u32 = 2;

/// The time-out of the Runtime API, which is on the same machine.
const REPORT_LIMIT: Duration = Duration::from_secs(1);

/// A variable is missing that Lambda puts into every function's environment: this process does not run on Lambda.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not set. In Lambda it always is; elsewhere, set it for the function.")]
pub(crate) struct Missing(&'static str);

/// Starts the log. A second call changes nothing.
pub(crate) fn log() {
    let level = logging::level(LevelFilter::INFO);
    // An error means that the process has a log already.
    let _ = tracing::subscriber::set_global_default(subscriber(level, std::io::stdout));
}

/// Returns a client for the table `table_name`, with an open connection if DynamoDB can be reached.
///
/// # Errors
/// The environment has no region or no credentials.
pub(crate) async fn dynamodb_client(table_name: &str) -> Result<Client, Error> {
    let shared = sdk_config(|name| std::env::var(name).ok(), "AWS_ENDPOINT_URL_DYNAMODB")?;
    let mut config = leasehold_dynamodb::configure((&shared).into());
    if let Some(subsegments) = Subsegments::for_this_function() {
        config.push_interceptor(SharedInterceptor::new(subsegments));
    }
    let client = Client::from_conf(config.http_client(http_client()).build());
    connect(&client, table_name).await;
    Ok(client)
}

/// Returns a client of KMS. It connects when it is first used.
///
/// # Errors
/// The environment has no region or no credentials.
pub(crate) fn kms_client() -> Result<aws_sdk_kms::Client, Error> {
    let shared = sdk_config(|name| std::env::var(name).ok(), "AWS_ENDPOINT_URL_KMS")?;
    let config = aws_sdk_kms::config::Builder::from(&shared)
        .behavior_version(aws_sdk_kms::config::BehaviorVersion::v2026_01_12())
        .retry_config(RetryConfig::standard().with_max_attempts(KMS_ATTEMPTS))
        .timeout_config(TimeoutConfig::builder().operation_attempt_timeout(KMS_TIMEOUT).build())
        .http_client(http_client());
    Ok(aws_sdk_kms::Client::from_conf(config.build()))
}

/// Returns the states in this bucket. S3 is connected to when it is first used.
///
/// # Errors
/// The environment has no region or no credentials.
pub(crate) fn bucket(name: &str) -> Result<Bucket, Missing> {
    let lookup = |name: &str| std::env::var(name).ok();
    let config = sdk_config(lookup, "AWS_ENDPOINT_URL_S3")?;
    let region = config.region().map(ToString::to_string).unwrap_or_default();
    let url = match config.endpoint_url() {
        Some(endpoint) => format!("{}/{name}", endpoint.trim_end_matches('/')),
        None => bucket_url(name, &region, config.use_fips() == Some(true), config.use_dual_stack() == Some(true)),
    };
    Ok(Bucket::at(url, region, credentials(lookup)?))
}

fn bucket_url(name: &str, region: &str, is_fips: bool, is_dual_stack: bool) -> String {
    let service = if is_fips { "s3-fips" } else { "s3" };
    let stack = if is_dual_stack { ".dualstack" } else { "" };
    let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://{name}.{service}{stack}.{region}.{suffix}")
}

/// Reads region, credentials and the endpoint of a service from the environment, which Lambda sets for the life of the
/// process. No other source is asked, so none is linked or set up. The command and the clients ask all sources.
fn sdk_config(lookup: impl Fn(&str) -> Option<String>, endpoint: &str) -> Result<SdkConfig, Missing> {
    let text = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let flag = |name: &str| text(name).map(|value| value.eq_ignore_ascii_case("true"));
    let region = text("AWS_REGION").ok_or(Missing("AWS_REGION"))?;
    let mut config = SdkConfig::builder()
        .region(Region::new(region))
        .credentials_provider(SharedCredentialsProvider::new(credentials(&lookup)?));
    config.set_endpoint_url(text(endpoint).or_else(|| text("AWS_ENDPOINT_URL")));
    config.set_use_fips(flag("AWS_USE_FIPS_ENDPOINT"));
    config.set_use_dual_stack(flag("AWS_USE_DUALSTACK_ENDPOINT"));
    Ok(config.build())
}

fn credentials(lookup: impl Fn(&str) -> Option<String>) -> Result<Credentials, Missing> {
    let text = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let needed = |name: &'static str| text(name).ok_or(Missing(name));
    let (id, secret) = (needed("AWS_ACCESS_KEY_ID")?, needed("AWS_SECRET_ACCESS_KEY")?);
    Ok(Credentials::new(id, secret, text("AWS_SESSION_TOKEN"), None, "environment"))
}

/// The SDK's usual connector, made once. By default the SDK makes one connector to check its configuration, and another
/// for the first request. Each parses all trusted certificates of the system.
fn http_client() -> SharedHttpClient {
    let connector = OnceLock::new();
    http_client_fn(move |settings, _| connector.get_or_init(|| make_connector(settings)).clone())
}

/// A connector whose user bounds the time of each request.
pub(crate) fn connector() -> SharedHttpConnector {
    make_connector(&HttpConnectorSettings::builder().build())
}

fn make_connector(settings: &HttpConnectorSettings) -> SharedHttpConnector {
    let builder = Connector::builder().connector_settings(settings.clone());
    SharedHttpConnector::new(builder.tls_provider(Provider::Rustls(CryptoMode::Ring)).build())
}

/// Opens the connection that the first request will use, through the SDK's usual path of a request.
///
/// The request is `GET /`, DynamoDB's health check. The check touches no table, needs no permission and appears in no
/// metric of the table. Any answer will do. A failure does not stop the start: the function's own requests report the
/// cause.
async fn connect(client: &Client, table_name: &str) {
    let keep_connection = RetryConfig::disabled().with_reconnect_mode(ReconnectMode::ReuseAllConnections);
    let request = client
        .get_item()
        .table_name(table_name)
        .customize()
        .config_override(Config::builder().retry_config(keep_connection))
        .mutate_request(ask_for_nothing);
    match timeout(CONNECT_LIMIT, Box::pin(request.send())).await {
        // The answer is not that of a GetItem, and need not be.
        Ok(Ok(_) | Err(SdkError::ServiceError(_) | SdkError::ResponseError(_))) => {}
        Ok(Err(error)) => tracing::warn!(error = %DisplayErrorContext(&error), "no connection to DynamoDB yet"),
        Err(_) => tracing::warn!("no connection to DynamoDB yet, after {CONNECT_LIMIT:?}"),
    }
}

/// Refuses a table in several regions that would each grant the same lock. A look that is not answered does not stop
/// the start: locks do not wait for the part of DynamoDB that describes tables.
///
/// # Errors
/// A sentence about the table.
pub(crate) async fn check_regions(client: &Client, table_name: &str, is_multi_region: bool) -> Result<(), Error> {
    let unknown = "nobody knows yet whether the table is in several regions";
    match timeout(CONNECT_LIMIT, Box::pin(regions(client, table_name))).await {
        Ok(Ok(regions)) => regions.check(table_name, is_multi_region)?,
        Ok(Err(failure)) => tracing::warn!(error = failure.for_log(), "{unknown}"),
        Err(_) => tracing::warn!("{unknown}, after {CONNECT_LIMIT:?}"),
    }
    Ok(())
}

/// Turns any request of DynamoDB's protocol into an empty `GET /`.
fn ask_for_nothing(request: &mut HttpRequest) {
    // The method is valid.
    let _ = request.set_method(Method::GET.as_str());
    request.headers_mut().remove("x-amz-target");
    request.headers_mut().remove("content-type");
    request.headers_mut().remove("content-length");
    *request.body_mut() = SdkBody::empty();
}

/// Returns the started value. A failure is logged and reported to Lambda, which passes it to the caller of the
/// function.
pub(crate) async fn or_report<T>(started: Result<T, Error>) -> Result<T, Error> {
    if let Err(error) = &started {
        tracing::error!(%error, "cannot start");
        // Without a Runtime API there is nobody to report to: someone started the function by hand, and reads its
        // output.
        if std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_some() {
            let _ = timeout(REPORT_LIMIT, report(error)).await;
        }
    }
    started
}

async fn report(error: &Error) -> Result<(), Error> {
    const ERROR_TYPE: &str = "Runtime.ConfigInvalid";
    let body = json!({ "errorType": ERROR_TYPE, "errorMessage": error.to_string(), "stackTrace": [] });
    let request = build_request()
        .method(Method::POST)
        .uri("/2018-06-01/runtime/init/error")
        .header("lambda-runtime-function-error-type", ERROR_TYPE)
        .body(Body::from(body.to_string()))?;
    PooledClient::builder().build().call(request).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAMBDA: [(&str, &str); 4] = [
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "token"),
    ];

    fn read(variables: &[(&str, &str)]) -> Result<(), Missing> {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        sdk_config(lookup, "AWS_ENDPOINT_URL_DYNAMODB").map(drop)
    }

    #[test]
    fn each_variable_of_lambda_is_needed() {
        assert!(read(&LAMBDA).is_ok());
        for (name, _) in &LAMBDA[..3] {
            let without = LAMBDA.map(|(key, value)| if key == *name { (key, "") } else { (key, value) });
            assert_eq!(read(&without).expect_err("incomplete"), Missing(name));
        }
    }

    #[test]
    fn bucket_has_the_address_of_its_partition() {
        for (region, is_fips, is_dual_stack, url) in [
            ("eu-west-1", false, false, "https://b.s3.eu-west-1.amazonaws.com"),
            ("us-gov-west-1", true, false, "https://b.s3-fips.us-gov-west-1.amazonaws.com"),
            ("us-east-1", true, true, "https://b.s3-fips.dualstack.us-east-1.amazonaws.com"),
            ("cn-north-1", false, true, "https://b.s3.dualstack.cn-north-1.amazonaws.com.cn"),
        ] {
            assert_eq!(bucket_url("b", region, is_fips, is_dual_stack), url);
        }
    }
}
