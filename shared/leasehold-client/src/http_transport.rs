//! The service over HTTP.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Response};
use reqwest::Url;

use crate::endpoints::Course;
use crate::{Error, Transport, TransportError};

/// The largest answer: a page of locks. Lambda allows 6 MB.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The time that an idle connection is kept: not longer than gateways keep it.
const IDLE_LIMIT: Duration = Duration::from_secs(20);
/// The time that a used connection may be silent before it is tested, and then before it is closed: well below a usual
/// lease.
const DEAD_LIMIT: Duration = Duration::from_secs(2);
/// The end of the line that begins a certificate in PEM format.
const PEM_LABEL: &str = concat!("CERTIFICATE", "-----");

/// The service over HTTP or HTTPS, at one endpoint or at several. Connections are kept and shared. The environment
/// names the proxies.
#[derive(Debug, Clone)]
pub struct HttpTransport {
    endpoints: Vec<Endpoint>,
    course: Arc<Course>,
}

/// One address of the service.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    http: reqwest::Client,
    base_url: Url,
    credentials: Credentials,
    /// Whether an answer came from there, whoever's: the URL is right.
    answered: Arc<AtomicBool>,
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
    /// Creates a transport for the service at this URL. A path in the URL, such as an API's stage, is put before the
    /// paths of the API.
    ///
    /// Several URLs, with commas between them, are endpoints of the same service: stacks in several regions that have
    /// one table with strong consistency. A request goes to the endpoint that answered last. Where it gives no answer,
    /// the next try of the same request, with the same lease id and sequence number, goes to the next endpoint.
    /// Never list services with tables of their own: each would grant the lock, and no client would notice.
    ///
    /// # Errors
    /// A URL is not that of a web server, or contains credentials.
    pub fn new(base_url: &str) -> Result<Self, Error> {
        let urls = base_url.split(',').map(str::trim).filter(|url| !url.is_empty());
        let endpoints = urls.map(Endpoint::new).collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            // The message for a URL that is none.
            service_url(base_url)?;
        }
        Ok(Self { endpoints, course: Arc::default() })
    }

    /// Adds the endpoints of `other`, with their own credentials, after those of this transport.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.endpoints.extend(other.endpoints);
        Self { endpoints: self.endpoints, course: Arc::default() }
    }

    /// Sends this token with each request.
    #[must_use]
    pub fn bearer_token(self, token: impl Into<String>) -> Self {
        let token = token.into();
        self.bearer_token_from(move || token.clone())
    }

    /// Calls this function for the token of each request, for tokens that expire. The function should return at once.
    #[must_use]
    pub fn bearer_token_from(self, token: impl Fn() -> String + Send + Sync + 'static) -> Self {
        for Endpoint { base_url, .. } in &self.endpoints {
            if base_url.scheme() == "http" && !is_loopback(base_url) {
                tracing::warn!(
                    host = base_url.host_str(),
                    "the bearer token travels unencrypted to another machine: use https"
                );
            }
        }
        self.with(&Credentials::Bearer(Arc::new(token)))
    }

    /// Signs each request, for an API that is protected by IAM. The signature is for the signer's region at all
    /// endpoints: with endpoints in several regions, give each its own, and join them by [`HttpTransport::or`].
    ///
    /// ```
    /// # fn example(credentials: aws_credential_types::Credentials) -> Result<(), leasehold_client::Error> {
    /// use leasehold_client::{HttpTransport, SigV4};
    ///
    /// let frankfurt = SigV4::new(credentials, "eu-central-1");
    /// let dublin = frankfurt.in_region("eu-west-1");
    /// let transport = HttpTransport::new("https://locks.eu-central-1.example.com")?
    ///     .sigv4(frankfurt)
    ///     .or(HttpTransport::new("https://locks.eu-west-1.example.com")?.sigv4(dublin));
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sigv4")]
    #[must_use]
    pub fn sigv4(self, signer: crate::SigV4) -> Self {
        self.with(&Credentials::SigV4(signer))
    }

    fn with(mut self, credentials: &Credentials) -> Self {
        for endpoint in &mut self.endpoints {
            endpoint.credentials = credentials.clone();
        }
        self
    }
}

impl Endpoint {
    fn new(base_url: &str) -> Result<Self, Error> {
        let base_url = service_url(base_url)?;
        if let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|_| base_url.scheme() == "https") {
            check_authorities(Path::new(&path))?;
        }
        // The process may have installed another provider already, which serves as well.
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
        // A proxy has another machine's loopback.
        let builder = if is_loopback(&base_url) { builder.no_proxy() } else { builder };
        #[cfg(target_os = "linux")]
        let builder = builder.tcp_user_timeout(DEAD_LIMIT * 2);
        let http =
            builder.build().map_err(|error| Error::invalid("url", format!("no HTTP client can be made: {error}")))?;
        Ok(Self { http, base_url, credentials: Credentials::None, answered: Arc::default() })
    }

    pub(crate) async fn exchange(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, TransportError> {
        let (mut parts, body) = request.into_parts();
        let absolute = format!("{}{}", self.base_url.as_str().trim_end_matches('/'), parts.uri);
        parts.uri = absolute.parse().map_err(|error| TransportError::not_sent("no such address").with_source(error))?;
        let mut request = Request::from_parts(parts, body);
        self.authorize(&mut request).await?;
        let request = reqwest::Request::try_from(request)
            .map_err(|error| TransportError::not_sent("no such request").with_source(error))?;
        let failed = |error| failed(error, self.answered.load(Ordering::Relaxed));
        let mut response = self.http.execute(request).await.map_err(failed)?;
        self.answered.store(true, Ordering::Relaxed);
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
                let mut value = bearer(&token())?;
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
        match self.endpoints.as_slice() {
            [only] => only.exchange(request).boxed(),
            several => self.course.send(several, request).boxed(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base_url.as_str().trim_end_matches('/'))
    }
}

/// Checks the URL of a service.
///
/// # Errors
/// The URL cannot be a service's. The message never shows credentials.
fn service_url(text: &str) -> Result<Url, Error> {
    let url = Url::parse(text.trim_end_matches('/')).ok();
    if url.as_ref().is_some_and(|url| !url.username().is_empty() || url.password().is_some()) {
        let message = "the URL has credentials in it: give a token, or sign requests, instead";
        return Err(Error::invalid("url", message));
    }
    let is_service =
        |url: &Url| matches!(url.scheme(), "http" | "https") && url.query().is_none() && url.fragment().is_none();
    url.filter(is_service).ok_or_else(|| {
        // The text before an @ may be a password.
        let shown = text.rsplit_once('@').map_or(text, |(_, place)| place);
        Error::invalid("url", format!("{shown:?} is not a URL such as https://example.com/stage"))
    })
}

/// Refuses a file of authorities that has none, which would be passed over in silence.
fn check_authorities(path: &Path) -> Result<(), Error> {
    let refuse = |why: String| {
        Err(Error::invalid("SSL_CERT_FILE", format!("SSL_CERT_FILE names {}, which {why}", path.display())))
    };
    match std::fs::read(path) {
        Err(error) => refuse(format!("cannot be read: {error}")),
        Ok(text) if !String::from_utf8_lossy(&text).contains(PEM_LABEL) => {
            refuse("has no certificate in PEM format".to_owned())
        }
        Ok(_) => Ok(()),
    }
}

/// Whether the service is on this machine.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host == "localhost" || host.ends_with(".localhost"), |address| address.is_loopback())
}

/// `answered`: the endpoint has answered a request before.
fn failed(error: reqwest::Error, answered: bool) -> TransportError {
    // The innermost cause is the most useful: "connection refused".
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let mut message = cause.to_string();
    let is_plain = error.url().is_some_and(|url| url.scheme() == "http");
    let is_proxied = error.is_connect() && error.url().is_some_and(|url| !is_loopback(url)) && names_a_proxy();
    if let Some(advice) = advice(&message, error.is_connect(), is_plain).filter(|_| !answered) {
        message.push_str("; ");
        message.push_str(advice);
    }
    if is_proxied && !answered {
        message.push_str("; the environment names a proxy: check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, too");
    }
    let failure =
        if error.is_connect() { TransportError::not_sent(message) } else { TransportError::unanswered(message) };
    failure.with_source(error.without_url())
}

/// Whether the environment names a proxy, which may be the one that failed.
fn names_a_proxy() -> bool {
    let names = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    names.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Says what the caller may do about a failure whose words do not tell it. `is_plain`: the URL begins with `http://`.
fn advice(message: &str, is_connect: bool, is_plain: bool) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    match (is_connect, is_plain) {
        (true, _) if has(&["lookup address", "Name or service", "nodename"]) => {
            Some("there is no such host: check the URL")
        }
        (true, false) if has(&["InvalidContentType", "corrupt message"]) => {
            Some("the port seems to speak no TLS, which needs http:// in the URL")
        }
        (true, false) if has(&["certificate"]) => {
            Some("the authority of a private certificate is named by SSL_CERT_FILE")
        }
        (false, true) if has(&["HTTP version", "closed before", "reset by peer"]) => {
            Some("a port that speaks TLS needs https:// in the URL")
        }
        _ => None,
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(redacted)")
    }
}

/// Returns the header's value for a token, which no message shows.
fn bearer(token: &str) -> Result<HeaderValue, TransportError> {
    let value = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|value| value.to_str().is_ok());
    value.ok_or_else(|| {
        TransportError::invalid("the token is not one line of printable ASCII: trim what was read from a file")
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn credentials_in_a_url_are_refused_and_not_shown() {
        for url in ["http://me:secret@localhost:8080", "https://secret@example.com/prod", "ftp//me:secret@example.com"]
        {
            let error = HttpTransport::new(url).expect_err("credentials");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn token_that_fits_in_no_header_is_refused_and_not_shown() {
        for token in ["secret\nline", "secr\u{e9}t"] {
            let error = Error::transport(bearer(token).expect_err("no header"), false);
            assert!(matches!(error.kind(), crate::ErrorKind::InvalidRequest { .. }), "{error:?}");
            assert!(!format!("{error:?}").contains("secr"), "{error:?}");
        }
        assert!(bearer("abc.def-123").is_ok());
    }

    #[test]
    fn file_of_authorities_that_has_none_is_refused() {
        for (path, why) in [("/no/such/file.pem", "cannot be read"), (file!(), "has no certificate")] {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
            let error = check_authorities(&Path::new(root).join(path)).expect_err("no authority");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn failure_says_what_to_do_when_its_words_do_not() {
        for (message, is_connect, is_plain, expected) in [
            ("failed to lookup address information: Name or service not known", true, true, "no such host"),
            ("received corrupt message of type InvalidContentType", true, false, "needs http://"),
            ("invalid peer certificate: UnknownIssuer", true, false, "SSL_CERT_FILE"),
            ("invalid HTTP version parsed", false, true, "needs https://"),
        ] {
            let told = advice(message, is_connect, is_plain).expect("advice");
            assert!(told.contains(expected), "{message}: {told}");
        }
        assert_eq!(advice("Connection refused (os error 111)", true, true), None);
    }

    #[tokio::test]
    async fn advice_on_the_url_ends_with_the_first_answer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let server = std::thread::spawn(move || {
            for answer in ["", "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", ""] {
                let (mut stream, _) = listener.accept().expect("a connection");
                let _ = stream.read(&mut [0; 4096]).expect("a request");
                stream.write_all(answer.as_bytes()).expect("the client listens");
            }
        });
        let transport = HttpTransport::new(&url).expect("a URL");
        let mut texts = Vec::new();
        for _ in 0..3 {
            let request = Request::get("/v1/lock").body(Vec::new()).expect("a request");
            texts.push(transport.send(request).await.map_or_else(|error| error.to_string(), |_| String::new()));
        }
        server.join().expect("three requests came");
        assert!(texts[0].contains("needs https://"), "{texts:?}");
        assert!(!texts[2].is_empty() && !texts[2].contains("https"), "{texts:?}");
    }

    #[test]
    fn loopback_is_this_machine_by_any_of_its_names() {
        let loopback = |url| is_loopback(&Url::parse(url).expect("a URL"));
        for url in
            ["http://localhost:1", "http://127.0.0.1", "http://127.8.9.10:1", "http://[::1]:1", "http://a.localhost"]
        {
            assert!(loopback(url), "{url}");
        }
        for url in ["http://example.com", "http://10.0.0.1", "http://localhost.example.com", "http://[2001:db8::1]"] {
            assert!(!loopback(url), "{url}");
        }
    }
}
