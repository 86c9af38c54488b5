//! The client of DynamoDB, and the settings of the AWS SDK that both protocols depend on. All settings are pinned.

use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Builder, Credentials, StalledStreamProtectionConfig};
use aws_sdk_dynamodb::config::{retry::RetryConfig, timeout::TimeoutConfig};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

/// Two attempts must fit into the shortest gateway time-out, with time for an answer. DynamoDB answers a single-item
/// write in under 20 ms at the 99th percentile; after a whole second no answer is likely to come.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// A TCP and TLS handshake inside one region takes a few milliseconds; lost packets are sent again after one second.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(900);

/// Sets the behaviour version, the time-outs, and no retries inside the SDK.
///
/// The protocols retry by themselves, because each attempt must write a version of its own. A timed-out attempt may
/// still be applied later. It must not restore a version that observers saw before: a lock whose holder heartbeats
/// would look stale to them.
pub fn configure(builder: Builder) -> Builder {
    builder
        .behavior_version(BehaviorVersion::v2026_01_12())
        .retry_config(RetryConfig::disabled())
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .operation_attempt_timeout(ATTEMPT_TIMEOUT)
                .build(),
        )
        // Answers have a few kilobytes, and the attempt's time-out bounds them; a throughput check would only add cost.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}

/// Makes a client with credentials, region and endpoint from the usual places (environment, profile, instance or
/// function role), or for `endpoint_url` where one is given.
///
/// An `http://` endpoint is a local stand-in for DynamoDB, which requires credentials and a region but checks neither.
/// The client then uses placeholders, unless the environment has credentials.
pub async fn connect(endpoint_url: Option<&str>) -> Client {
    let https = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12()).http_client(https);
    if endpoint_url.is_some_and(|url| url.starts_with("http://")) && std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
        let placeholder = Credentials::new("leasehold", "leasehold", None, None, "placeholder");
        let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new()).or_else("us-east-1");
        loader = loader.credentials_provider(placeholder).region(region);
    }
    let shared = loader.load().await;
    let mut config = configure(Builder::from(&shared));
    if let Some(url) = endpoint_url {
        config = config.endpoint_url(url);
    }
    Client::from_conf(config.build())
}
