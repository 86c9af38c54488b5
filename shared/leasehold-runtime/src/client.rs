//! The DynamoDB client.

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::Client;
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use leasehold_protocol::sdk;

/// A client with credentials, region and endpoint from the usual places (environment, profile, instance or function
/// role), or for `endpoint_url` where one is given.
pub async fn dynamodb_client(endpoint_url: Option<&str>) -> Client {
    let https = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let shared = aws_config::defaults(BehaviorVersion::v2026_01_12()).http_client(https).load().await;
    let mut config = sdk::configure(aws_sdk_dynamodb::config::Builder::from(&shared));
    config.set_endpoint_url(endpoint_url.map(str::to_owned).or_else(|| shared.endpoint_url().map(str::to_owned)));
    Client::from_conf(config.build())
}
