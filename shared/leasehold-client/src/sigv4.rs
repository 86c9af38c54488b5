//! AWS Signature Version 4, for an API that is protected by IAM.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use http::Request;
use tokio::sync::Mutex as Turn;

use crate::TransportError;

/// The AWS service behind this host. A Function URL is Lambda's. All others are API Gateway's, custom domains included.
fn service_at(host: &str) -> &'static str {
    if host.contains(".lambda-url.") && host.ends_with(".on.aws") { "lambda" } else { "execute-api" }
}

/// The time before their end at which credentials are replaced, unless their whole life is short.
const REFRESH_BEFORE: Duration = Duration::from_mins(5);
/// Short-lived credentials are replaced in the last part of their life: this fraction of it.
const LAST_PART: u32 = 4;

/// Signs requests. Credentials are kept until shortly before they expire, and then replaced in the background, so that
/// a slow provider delays no request.
#[derive(Debug, Clone)]
pub struct SigV4 {
    credentials: Arc<Cache>,
    region: String,
    /// The service that the signature names. `None`: the host tells.
    service: Option<&'static str>,
    now: fn() -> SystemTime,
}

#[derive(Debug)]
struct Cache {
    provider: SharedCredentialsProvider,
    kept: Mutex<Option<Kept>>,
    /// One run of the provider at a time.
    turn: Turn<()>,
}

#[derive(Debug, Clone)]
struct Kept {
    credentials: Credentials,
    /// The time from which the credentials are replaced. `None`: never.
    refresh_at: Option<SystemTime>,
}

impl Kept {
    fn new(credentials: Credentials, now: SystemTime) -> Self {
        let refresh_at = credentials.expiry().map(|expiry| {
            let life = expiry.duration_since(now).unwrap_or_default();
            expiry - REFRESH_BEFORE.min(life / LAST_PART)
        });
        Self { credentials, refresh_at }
    }

    fn is_expired(&self, now: SystemTime) -> bool {
        self.credentials.expiry().is_some_and(|expiry| expiry <= now)
    }

    fn is_due(&self, now: SystemTime) -> bool {
        self.refresh_at.is_some_and(|refresh_at| refresh_at <= now)
    }
}

impl Cache {
    fn kept(&self) -> Option<Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns credentials that have not expired. The provider runs in its own task, which outlives an abandoned
    /// request: the next request finds the result.
    async fn get(self: &Arc<Self>, now: fn() -> SystemTime) -> Result<Credentials, CredentialsError> {
        match self.kept().filter(|kept| !kept.is_expired(now())) {
            Some(kept) => {
                if kept.is_due(now()) {
                    tokio::spawn(Arc::clone(self).refresh(now));
                }
                Ok(kept.credentials)
            }
            None => tokio::spawn(Arc::clone(self).refresh(now)).await.map_err(CredentialsError::provider_error)?,
        }
    }

    async fn refresh(self: Arc<Self>, now: fn() -> SystemTime) -> Result<Credentials, CredentialsError> {
        let _turn = self.turn.lock().await;
        // Another caller may have been faster.
        if let Some(kept) = self.kept().filter(|kept| !kept.is_due(now())) {
            return Ok(kept.credentials);
        }
        let credentials = self.provider.provide_credentials().await?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(Kept::new(credentials.clone(), now()));
        Ok(credentials)
    }
}

impl SigV4 {
    /// Creates a signer for an API in this region. The first request waits for the credentials; see [`SigV4::load`].
    pub fn new(credentials: impl ProvideCredentials + 'static, region: impl Into<String>) -> Self {
        let provider = SharedCredentialsProvider::new(credentials);
        let credentials = Arc::new(Cache { provider, kept: Mutex::default(), turn: Turn::default() });
        #[allow(clippy::disallowed_methods, reason = "a signature carries the time, and credentials expire by it")]
        Self { credentials, region: region.into(), service: None, now: SystemTime::now }
    }

    /// The same credentials, for another region.
    #[must_use]
    pub fn in_region(&self, region: impl Into<String>) -> Self {
        Self { region: region.into(), ..self.clone() }
    }

    /// Returns the region in a URL's host name, such as `abc123.execute-api.eu-central-1.amazonaws.com` or that of a
    /// Function URL.
    pub fn region_of(url: &str) -> Option<String> {
        let host = url.split_once("://")?.1.split(['/', ':']).next()?;
        let (rest, of_aws) = match host.split_once(".execute-api.") {
            Some((_, rest)) => (rest, "amazonaws.com"),
            None => (host.split_once(".lambda-url.")?.1, "on.aws"),
        };
        let (region, domain) = rest.split_once('.')?;
        domain.starts_with(of_aws).then(|| region.to_owned())
    }

    /// The region that it signs for.
    #[cfg(feature = "lambda")]
    pub(crate) fn region(&self) -> &str {
        &self.region
    }

    /// The same, for this service of AWS whatever the host is.
    #[cfg(feature = "lambda")]
    pub(crate) fn for_service(self, service: &'static str) -> Self {
        Self { service: Some(service), ..self }
    }

    /// Fetches the credentials now, so that no request waits for them.
    ///
    /// # Errors
    /// There are no credentials.
    pub async fn load(&self) -> Result<(), CredentialsError> {
        self.credentials.get(self.now).await.map(drop)
    }

    /// Adds the signature to `request`, whose URI must be absolute.
    pub(crate) async fn sign(&self, request: &mut Request<Vec<u8>>) -> Result<(), TransportError> {
        let not_signed =
            |error: &dyn std::error::Error| TransportError::not_sent(format!("the request cannot be signed: {error}"));
        let credentials = self.credentials.get(self.now).await.map_err(|error| not_signed(&error))?;
        let identity = credentials.into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(self.service.unwrap_or_else(|| service_at(request.uri().host().unwrap_or_default())))
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
#[allow(clippy::disallowed_methods, reason = "a provider that is slow, under a paused clock")]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use aws_credential_types::provider::future;
    use http::header::AUTHORIZATION;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    /// A slow provider of credentials that live for a minute, which counts its runs.
    #[derive(Debug, Clone, Default)]
    struct Slow(Arc<AtomicUsize>);

    impl ProvideCredentials for Slow {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::new(async {
                sleep(Duration::from_secs(3)).await;
                self.0.fetch_add(1, Ordering::SeqCst);
                Ok(Credentials::new("AKIDEXAMPLE", "secret", None, Some(now() + Duration::from_mins(1)), "test"))
            })
        }
    }

    static SECONDS: AtomicU64 = AtomicU64::new(0);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(SECONDS.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn slow_credentials_are_fetched_once_and_in_the_background() {
        let slow = Slow::default();
        let signer = SigV4 { now, ..SigV4::new(slow.clone(), "eu-central-1") };
        let sign = || async {
            let mut request = Request::get("https://example.com/v1/health").body(Vec::new()).expect("a request");
            signer.sign(&mut request).await
        };
        let patience = Duration::from_millis(500);
        assert!(timeout(patience, sign()).await.is_err(), "the first request is given up");
        sleep(Duration::from_secs(3)).await;
        for _ in 0..8 {
            timeout(patience, sign()).await.expect("the credentials that the first one asked for").expect("signed");
        }
        assert_eq!(slow.0.load(Ordering::SeqCst), 1);

        SECONDS.store(50, Ordering::SeqCst);
        let began = Instant::now();
        for _ in 0..8 {
            sign().await.expect("they are good for ten seconds more");
        }
        assert!(began.elapsed().is_zero(), "nobody waits for the next ones");
        sleep(Duration::from_secs(10)).await;
        assert_eq!(slow.0.load(Ordering::SeqCst), 2, "they came in the background, once");
        SECONDS.store(70, Ordering::SeqCst);
        timeout(patience, sign()).await.expect("the first ones have expired, and the next are there").expect("signed");
        SECONDS.store(1000, Ordering::SeqCst);
        let began = Instant::now();
        sign().await.expect("signed");
        assert_eq!(began.elapsed(), Duration::from_secs(3), "nothing is signed with what has expired");
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_waits_for_credentials_that_were_loaded() {
        let signer = SigV4 { now: || SystemTime::UNIX_EPOCH, ..SigV4::new(Slow::default(), "eu-central-1") };
        signer.load().await.expect("there are credentials");
        let began = Instant::now();
        let mut request = Request::get("https://example.com/v1/health").body(Vec::new()).expect("a request");
        signer.sign(&mut request).await.expect("signed");
        assert!(began.elapsed().is_zero(), "{:?}", began.elapsed());
    }

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

    #[test]
    fn function_url_is_signed_for_lambda() {
        assert_eq!(service_at("abc.lambda-url.eu-west-1.on.aws"), "lambda");
        for other in ["abc.execute-api.eu-west-1.amazonaws.com", "locks.example.com", "abc.lambda-url.example.com"] {
            assert_eq!(service_at(other), "execute-api", "{other}");
        }
    }

    #[test]
    fn region_is_read_from_the_host_name() {
        let region = |url| SigV4::region_of(url);
        assert_eq!(region("https://abc.execute-api.eu-central-1.amazonaws.com/prod").as_deref(), Some("eu-central-1"));
        assert_eq!(region("https://abc.execute-api.cn-north-1.amazonaws.com.cn").as_deref(), Some("cn-north-1"));
        assert_eq!(region("https://abc-vpce.execute-api.us-east-1.amazonaws.com:443/x").as_deref(), Some("us-east-1"));
        assert_eq!(region("https://abc.lambda-url.eu-west-1.on.aws/").as_deref(), Some("eu-west-1"));
        for other in
            ["https://locks.example.com", "http://127.0.0.1:8080", "nonsense", "https://a.execute-api.b.evil.com"]
        {
            assert_eq!(region(other), None, "{other}");
        }
    }
}
