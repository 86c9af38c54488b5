//! The DynamoDB client.

use aws_config::BehaviorVersion;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use leasehold_protocol::sdk;

/// A client with credentials, region and endpoint from the usual places (environment, profile, instance or function
/// role), or for `endpoint_url` where one is given.
///
/// An `http://` endpoint is a local stand-in for DynamoDB, which asks for credentials and a region but checks neither:
/// where the environment has none, placeholders serve.
pub async fn dynamodb_client(endpoint_url: Option<&str>) -> Client {
    let https = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12()).http_client(https);
    if endpoint_url.is_some_and(|url| url.starts_with("http://")) && std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
        let placeholder = Credentials::new("leasehold", "leasehold", None, None, "placeholder");
        let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new()).or_else("us-east-1");
        loader = loader.credentials_provider(placeholder).region(region);
    }
    let shared = loader.load().await;
    let mut config = sdk::configure(aws_sdk_dynamodb::config::Builder::from(&shared));
    if let Some(url) = endpoint_url {
        config = config.endpoint_url(url);
    }
    Client::from_conf(config.build())
}
