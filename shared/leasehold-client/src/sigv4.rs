//! AWS Signature Version 4, for an API that is protected by IAM.

use std::time::SystemTime;

use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use http::Request;

use crate::TransportError;

/// Which service of AWS answers behind an API Gateway.
const SERVICE: &str = "execute-api";

/// Signs requests with credentials that are asked for anew each time; the provider caches them.
#[derive(Debug, Clone)]
pub struct SigV4 {
    credentials: SharedCredentialsProvider,
    region: String,
    now: fn() -> SystemTime,
}

impl SigV4 {
    /// For an API in this region.
    pub fn new(credentials: impl ProvideCredentials + 'static, region: impl Into<String>) -> Self {
        let credentials = SharedCredentialsProvider::new(credentials);
        #[allow(clippy::disallowed_methods, reason = "a signature carries the time; no decision rests on it")]
        Self { credentials, region: region.into(), now: SystemTime::now }
    }

    /// Adds the signature to `request`, whose URI must be absolute.
    pub(crate) async fn sign(&self, request: &mut Request<Vec<u8>>) -> Result<(), TransportError> {
        let not_signed =
            |error: &dyn std::error::Error| TransportError::not_sent(format!("the request cannot be signed: {error}"));
        let credentials = self.credentials.provide_credentials().await.map_err(|error| not_signed(&error))?;
        let identity = credentials.into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(SERVICE)
            .time((self.now)())
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| not_signed(&error))?;
        let uri = request.uri().to_string();
        let headers = request.headers().iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let signable =
            SignableRequest::new(request.method().as_str(), uri, headers, SignableBody::Bytes(request.body()))
                .map_err(|error| not_signed(&error))?;
        let (instructions, _) = sign(signable, &params.into()).map_err(|error| not_signed(&error))?.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }
}
