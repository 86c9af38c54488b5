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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aws_credential_types::Credentials;
    use http::header::AUTHORIZATION;

    use super::*;

    /// Signatures of the same requests by botocore 1.x (`SigV4Auth`), at 2026-01-01T00:00:00Z.
    #[tokio::test]
    async fn signatures_are_those_of_botocore() {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
        let credentials = Credentials::new("AKIDEXAMPLE", secret, Some("session".into()), None, "test");
        let new_year = || SystemTime::UNIX_EPOCH + Duration::from_hours(490_896);
        let signer = SigV4 { now: new_year, ..SigV4::new(credentials, "eu-central-1") };
        let api = "https://abc.execute-api.eu-central-1.amazonaws.com/prod";

        let post = Request::post(format!("{api}/v1/acquire")).header("content-type", "application/json");
        let mut post = post.body(br#"{"key":"Moe"}"#.to_vec()).expect("a request");
        signer.sign(&mut post).await.expect("signed");
        assert_eq!(
            post.headers()[AUTHORIZATION],
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/eu-central-1/execute-api/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, \
             Signature=4ff0372d55d964fb12c0e3ec9b94d94b6f14d89ed2b4ca7142e643f81e21a013"
        );
        assert_eq!(post.headers()["x-amz-security-token"], "session");

        let get = Request::get(format!("{api}/v1/lock?key=a%20b%2Bc&sortKey=%C3%BC"));
        let mut get = get.body(Vec::new()).expect("a request");
        signer.sign(&mut get).await.expect("signed");
        let authorization = get.headers()[AUTHORIZATION].to_str().expect("ASCII");
        assert!(
            authorization.ends_with("Signature=0add81756f727a27b4b28a6f32b551628afce84809914ee1fa895525ad76e47c"),
            "{authorization}"
        );
    }
}
