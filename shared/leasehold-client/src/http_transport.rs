//! The service over HTTP.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Response};
use reqwest::Url;

use crate::{Error, Transport, TransportError};

/// An answer is a page of locks at most: Lambda allows 6 MB.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// How long a connection may rest: not longer than gateways keep it.
const IDLE_LIMIT: Duration = Duration::from_secs(20);
/// How long a connection that is used may be silent before it is tested, and then before it is given up: well below a usual lease.
const DEAD_LIMIT: Duration = Duration::from_secs(2);

/// The service over HTTP or HTTPS. Connections are kept and shared; proxies are taken from the environment.
#[derive(Debug, Clone)]
pub struct HttpTransport {
    http: reqwest::Client,
    base_url: Url,
    credentials: Credentials,
}

#[derive(Clone, Default)]
enum Credentials {
    #[default]
    None,
    Bearer(Arc<dyn Fn() -> String + Send + Sync>),
    #[cfg(feature = "sigv4")]
    SigV4(crate::SigV4),
}

impl HttpTransport {
    /// The service at this URL. A path in it, such as an API's stage, stands before those of the API.
    ///
    /// # Errors
    /// It is not the URL of a web server.
    pub fn new(base_url: &str) -> Result<Self, Error> {
        let url = Url::parse(base_url.trim_end_matches('/')).ok().filter(|url| {
            matches!(url.scheme(), "http" | "https") && url.query().is_none() && url.fragment().is_none()
        });
        let Some(base_url) = url else {
            let message = format!("{base_url:?} is not a URL such as https://example.com/stage");
            return Err(Error::invalid("url", message));
        };
        // Whoever uses this process may have chosen another provider already; that one is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder()
            .tcp_nodelay(true)
            // A connection that a firewall has forgotten must not swallow one heartbeat after the other.
            .pool_idle_timeout(IDLE_LIMIT)
            .http2_keep_alive_interval(DEAD_LIMIT)
            .http2_keep_alive_timeout(DEAD_LIMIT)
            .tcp_keepalive(DEAD_LIMIT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("leasehold-client/", env!("CARGO_PKG_VERSION")));
        #[cfg(target_os = "linux")]
        let builder = builder.tcp_user_timeout(DEAD_LIMIT * 2);
        let http =
            builder.build().map_err(|error| Error::invalid("url", format!("no HTTP client can be made: {error}")))?;
        Ok(Self { http, base_url, credentials: Credentials::None })
    }

    /// Sends this token with each request.
    #[must_use]
    pub fn bearer_token(self, token: impl Into<String>) -> Self {
        let token = token.into();
        self.bearer_token_from(move || token.clone())
    }

    /// Asks for the token anew before each request: for tokens that expire. The function should return at once.
    #[must_use]
    pub fn bearer_token_from(mut self, token: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.credentials = Credentials::Bearer(Arc::new(token));
        self
    }

    /// Signs each request, for an API that is protected by IAM.
    #[cfg(feature = "sigv4")]
    #[must_use]
    pub fn sigv4(mut self, signer: crate::SigV4) -> Self {
        self.credentials = Credentials::SigV4(signer);
        self
    }

    async fn exchange(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, TransportError> {
        let (mut parts, body) = request.into_parts();
        let absolute = format!("{}{}", self.base_url.as_str().trim_end_matches('/'), parts.uri);
        parts.uri = absolute.parse().map_err(|error| TransportError::not_sent("no such address").with_source(error))?;
        let mut request = Request::from_parts(parts, body);
        self.authorize(&mut request).await?;
        let request = reqwest::Request::try_from(request)
            .map_err(|error| TransportError::not_sent("no such request").with_source(error))?;
        let mut response = self.http.execute(request).await.map_err(failed)?;
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            answer.extend_from_slice(&chunk);
            if answer.len() > MAX_ANSWER_BYTES {
                return Err(TransportError::unanswered("the answer is too long to be Leasehold's"));
            }
        }
        let mut result = Response::new(answer);
        *result.status_mut() = response.status();
        *result.headers_mut() = std::mem::take(response.headers_mut());
        Ok(result)
    }

    async fn authorize(&self, request: &mut Request<Vec<u8>>) -> Result<(), TransportError> {
        match &self.credentials {
            Credentials::None => Ok(()),
            Credentials::Bearer(token) => {
                let mut value = HeaderValue::try_from(format!("Bearer {}", token()))
                    .map_err(|_| TransportError::not_sent("the bearer token is not one line of ASCII"))?;
                value.set_sensitive(true);
                request.headers_mut().insert(AUTHORIZATION, value);
                Ok(())
            }
            #[cfg(feature = "sigv4")]
            Credentials::SigV4(signer) => signer.sign(request).await,
        }
    }
}

impl Transport for HttpTransport {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        self.exchange(request).boxed()
    }
}

fn failed(error: reqwest::Error) -> TransportError {
    // The innermost cause is the one that helps: "connection refused".
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let message = cause.to_string();
    let failure =
        if error.is_connect() { TransportError::not_sent(message) } else { TransportError::unanswered(message) };
    failure.with_source(error.without_url())
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(redacted)")
    }
}
