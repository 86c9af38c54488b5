//! A bucket of S3 on loopback, with conditional writes, whose answers a test can hold back or lose.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode};
use md5::{Digest, Md5};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// More than a state has.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// The bucket. It ends when it is dropped.
#[derive(Debug)]
pub struct S3 {
    /// The address of the bucket.
    pub url: String,
    state: Shared,
    server: JoinHandle<()>,
}

type Shared = Arc<Mutex<Bucket>>;

#[derive(Debug, Default)]
struct Bucket {
    objects: BTreeMap<String, (Bytes, String)>,
    is_gone: bool,
    gates: Vec<Gate>,
}

#[derive(Debug)]
struct Gate {
    method: Method,
    end: String,
    at: At,
    arrived: oneshot::Sender<()>,
    opened: oneshot::Receiver<()>,
}

/// The moment at which a request is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// It has arrived, and changes nothing yet.
    Arrival,
    /// It is carried out. Its answer will be lost.
    Answer,
    /// It will be refused, with this status and `Code`.
    Refusal(u16, &'static str),
}

/// A request that is held back.
#[derive(Debug)]
pub struct Held {
    arrived: oneshot::Receiver<()>,
    open: oneshot::Sender<()>,
}

impl Held {
    /// Waits until it has arrived. Returns what lets it go on.
    ///
    /// # Panics
    /// Panics if the bucket ends before.
    pub async fn arrived(self) -> oneshot::Sender<()> {
        self.arrived.await.expect("the bucket is there");
        self.open
    }
}

impl S3 {
    /// Starts an empty bucket on a free port.
    ///
    /// # Errors
    /// Fails with the system's errors: no port.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}/states-of-a-test", listener.local_addr()?);
        let state = Shared::default();
        let app = Router::new().fallback(answer).with_state(Arc::clone(&state));
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { url, state, server })
    }

    /// Holds back the next request of this method whose key ends so. A listing has the key "".
    pub fn hold(&self, method: Method, end: &str, at: At) -> Held {
        let ((arrived, has_arrived), (open, opened)) = (oneshot::channel(), oneshot::channel());
        lock(&self.state).gates.push(Gate { method, end: end.to_owned(), at, arrived, opened });
        Held { arrived: has_arrived, open }
    }

    /// Refuses the next requests of this method whose key ends so, as many as this.
    pub fn refuse(&self, method: &Method, end: &str, times: usize, status: u16, code: &'static str) {
        for _ in 0..times {
            let held = self.hold(method.clone(), end, At::Refusal(status, code));
            let _ = held.open.send(());
        }
    }

    /// The keys.
    pub fn keys(&self) -> Vec<String> {
        lock(&self.state).objects.keys().cloned().collect()
    }

    /// Puts an object, or removes it, past all conditions.
    pub fn set(&self, key: &str, body: Option<&str>) {
        let mut bucket = lock(&self.state);
        match body {
            Some(body) => bucket.put(key, Bytes::copy_from_slice(body.as_bytes())),
            None => drop(bucket.objects.remove(key)),
        }
    }

    /// Removes the bucket itself.
    pub fn remove(&self) {
        lock(&self.state).is_gone = true;
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Bucket {
    fn put(&mut self, key: &str, body: Bytes) {
        // The tag of S3: the same content has the same one.
        let etag = format!("\"{:032x}\"", u128::from_be_bytes(Md5::digest(&body).into()));
        self.objects.insert(key.to_owned(), (body, etag));
    }

    fn gate(&mut self, method: &Method, key: &str) -> Option<Gate> {
        // A listing has no key.
        let is_for = |gate: &Gate| key.ends_with(&gate.end) && key.is_empty() == gate.end.is_empty();
        let index = self.gates.iter().position(|gate| gate.method == *method && is_for(gate))?;
        Some(self.gates.remove(index))
    }

    fn carry_out(&mut self, method: &Method, key: &str, query: &str, headers: &HeaderMap, body: Bytes) -> Response {
        let condition = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let found = self.objects.get(key).cloned();
        match (method.as_str(), found) {
            _ if self.is_gone => refused(StatusCode::NOT_FOUND, "NoSuchBucket"),
            _ if condition("authorization").is_none_or(|signature| !signature.contains("/s3/aws4_request")) => {
                refused(StatusCode::FORBIDDEN, "AccessDenied")
            }
            ("GET", _) if key.is_empty() => self.list(query),
            ("GET", Some((body, etag))) => ([("etag", etag)], body).into_response(),
            ("GET", None) => refused(StatusCode::NOT_FOUND, "NoSuchKey"),
            ("PUT", None) if condition("if-match").is_some() => refused(StatusCode::NOT_FOUND, "NoSuchKey"),
            ("PUT", Some((_, etag)))
                if condition("if-none-match") == Some("*")
                    || condition("if-match").is_some_and(|expected| expected != etag) =>
            {
                refused(StatusCode::PRECONDITION_FAILED, "PreconditionFailed")
            }
            ("PUT", _) => {
                self.put(key, body);
                StatusCode::OK.into_response()
            }
            ("DELETE", _) => {
                self.objects.remove(key);
                StatusCode::NO_CONTENT.into_response()
            }
            _ => refused(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }

    fn list(&self, query: &str) -> Response {
        let prefix = query.split('&').find_map(|part| part.strip_prefix("prefix=")).unwrap_or_default();
        let prefix = prefix.replace("%2F", "/");
        let keys = self.objects.keys().filter(|key| key.starts_with(&prefix)).take(1000);
        let contents: Vec<_> = keys.map(|key| format!("<Contents><Key>{key}</Key></Contents>")).collect();
        format!("<ListBucketResult>{}</ListBucketResult>", contents.concat()).into_response()
    }
}

async fn answer(State(bucket): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
    // The path is the name of the bucket, and the key.
    let key = parts.uri.path().splitn(3, '/').nth(2).unwrap_or_default().to_owned();
    let query = parts.uri.query().unwrap_or_default();
    let gate = lock(&bucket).gate(&parts.method, &key);
    let carry_out = || lock(&bucket).carry_out(&parts.method, &key, query, &parts.headers, body.clone());
    let Some(gate) = gate else { return carry_out() };
    if gate.at == At::Answer {
        carry_out();
    }
    let _ = gate.arrived.send(());
    let _ = gate.opened.await;
    match gate.at {
        At::Arrival => carry_out(),
        At::Answer => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        At::Refusal(status, code) => refused(StatusCode::from_u16(status).unwrap_or_default(), code),
    }
}

fn lock(bucket: &Shared) -> MutexGuard<'_, Bucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(status: StatusCode, code: &str) -> Response {
    (status, format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>")).into_response()
}
