//! Faults at the seam between the SDK and DynamoDB, which is the embedded engine or another one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it is carried out and answered.
    None,
    /// It never arrives; the connection breaks.
    RequestLost,
    /// It is carried out; the answer never comes.
    ResponseLost,
    /// It is carried out this much later, when the caller has long given up on it.
    Late(Duration),
    /// It is carried out and answered; a copy is kept for [`Faults::deliver_copies`].
    Copied,
    /// It is carried out and answered; a copy, byte for byte, is delivered before the answer is.
    Twice,
    /// It never arrives, and the caller is to die: [`Faults::reached`].
    DiesBefore,
    /// It is carried out, and the caller is to die.
    DiesAfter,
    /// It waits, with the caller, until [`Faults::release`]: [`Faults::reached`].
    Held,
    /// It is carried out and answered, this much later.
    Slow(Duration),
    /// It is refused for load.
    Throttled,
    /// It is refused by a failing node, which did not carry it out.
    ServerError,
    /// It is refused because a transaction has the row, in the way of its operation.
    TransactionConflict,
    /// It is refused because the role does not allow it.
    AccessDenied,
}

/// Where fates come from.
pub enum Fates {
    /// From this list, one a request; then no more faults.
    Script(VecDeque<Fault>),
    /// From a seeded generator: a fault in `one_in` requests, delays up to `longest`.
    Random {
        /// The generator. Its seed makes a run repeatable.
        rng: fastrand::Rng,
        /// How rare faults are.
        one_in: u32,
        /// The longest delay.
        longest: Duration,
        /// What there is to choose from.
        kinds: &'static [Kind],
    },
}

/// A kind of fault, which may have a delay.
pub type Kind = fn(Duration) -> Fault;

/// What a network and a database do to any request.
pub const COMMON: &[Kind] = &[
    |_| Fault::RequestLost,
    |_| Fault::ResponseLost,
    Fault::Late,
    Fault::Late,
    Fault::Slow,
    |_| Fault::Throttled,
    |_| Fault::ServerError,
];

impl Fates {
    fn next(&mut self) -> Fault {
        match self {
            Self::Script(script) => script.pop_front().unwrap_or(Fault::None),
            Self::Random { rng, one_in, longest, kinds } => {
                if rng.u32(0..*one_in) > 0 {
                    return Fault::None;
                }
                let longest = u64::try_from(longest.as_millis()).expect("a sane delay");
                let delay = Duration::from_millis(rng.u64(0..=longest));
                kinds[rng.usize(..kinds.len())](delay)
            }
        }
    }
}

/// An [`HttpClient`] for the SDK that hands requests to another one, or to their fate.
#[derive(Clone)]
pub struct Faults {
    inner: SharedHttpClient,
    state: Arc<Mutex<State>>,
    reached: Arc<Notify>,
    release: Arc<Notify>,
}

struct State {
    fates: Fates,
    calls: usize,
    copies: Vec<(SharedHttpConnector, HttpRequest)>,
    /// The requests, where somebody wants to see them.
    recorded: Option<Vec<Sent>>,
}

/// A request that was sent.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Such as `TransactWriteItems`.
    pub operation: String,
    /// The request itself.
    pub body: Value,
}

impl Faults {
    /// A client like this one, with faults between it and its DynamoDB: none, until [`Faults::set`] is called.
    pub fn between(client: &Client) -> (Client, Self) {
        let config = client.config();
        let state = State { fates: Fates::Script(VecDeque::new()), calls: 0, copies: Vec::new(), recorded: None };
        let faults = Self {
            inner: config.http_client().expect("it has one"),
            state: Arc::new(Mutex::new(state)),
            reached: Arc::default(),
            release: Arc::default(),
        };
        (Client::from_conf(config.to_builder().http_client(faults.clone()).build()), faults)
    }

    /// From now on, these.
    pub fn set(&self, fates: Fates) {
        self.lock().fates = fates;
    }

    /// From now on, these, one a request, and then none.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.set(Fates::Script(faults.into_iter().collect()));
    }

    /// This one, to the `step`th request from now on (from 1), and no other.
    pub fn at(&self, step: usize, fault: Fault) {
        self.script(std::iter::repeat_n(Fault::None, step - 1).chain([fault]));
    }

    /// How many requests were sent since the last call of this function.
    pub fn take_calls(&self) -> usize {
        std::mem::take(&mut self.lock().calls)
    }

    /// The requests that were sent since the last call of this function; from the first call on, they are kept.
    pub fn record(&self) -> Vec<Sent> {
        self.lock().recorded.replace(Vec::new()).unwrap_or_default()
    }

    /// Waits until a request has met [`Fault::DiesBefore`], [`Fault::DiesAfter`] or [`Fault::Held`]. Then the caller
    /// must not be polled, which is how it sleeps; and if it is to die, be dropped.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Lets the request go that is held.
    pub fn release(&self) {
        self.release.notify_one();
    }

    /// Delivers the copies that were kept, and forgets them. Returns how many there were. They come so late that
    /// DynamoDB has forgotten their idempotency tokens, which takes it ten minutes.
    pub async fn deliver_copies(&self) -> usize {
        let copies = std::mem::take(&mut self.lock().copies);
        let count = copies.len();
        for (connector, copy) in copies {
            let _ = connector.call(without_token(copy)).await;
        }
        count
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }
}

impl HttpClient for Faults {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        let inner = self.inner.http_connector(settings, components);
        SharedHttpConnector::new(Connector { faults: self.clone(), inner })
    }
}

struct Connector {
    faults: Faults,
    inner: SharedHttpConnector,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let fault = {
            let mut state = self.faults.lock();
            state.calls += 1;
            if let Some(recorded) = &mut state.recorded {
                recorded.push(Sent { operation: operation(&request).to_owned(), body: body(&request) });
            }
            state.fates.next()
        };
        let inner = self.inner.clone();
        let Faults { reached, release, .. } = self.faults.clone();
        match fault {
            Fault::None => inner.call(request),
            Fault::RequestLost => {
                HttpConnectorFuture::ready(Err(ConnectorError::io("the connection was reset".into())))
            }
            Fault::ResponseLost => HttpConnectorFuture::new(async move {
                let _ = inner.call(request).await;
                std::future::pending().await
            }),
            Fault::Late(delay) => HttpConnectorFuture::new(async move {
                // On a task of its own: the caller gives up on this future, but the request is on its way.
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let _ = inner.call(request).await;
                });
                std::future::pending().await
            }),
            Fault::Copied => {
                let copy = request.try_clone().map(|copy| (inner.clone(), copy));
                self.faults.lock().copies.extend(copy);
                inner.call(request)
            }
            Fault::Twice => HttpConnectorFuture::new(async move {
                let copy = request.try_clone().expect("in memory");
                let answer = inner.call(request).await;
                let _ = inner.call(copy).await;
                answer
            }),
            Fault::DiesBefore => HttpConnectorFuture::new(async move {
                reached.notify_one();
                std::future::pending().await
            }),
            Fault::DiesAfter => HttpConnectorFuture::new(async move {
                let _ = inner.call(request).await;
                reached.notify_one();
                std::future::pending().await
            }),
            Fault::Held => HttpConnectorFuture::new(async move {
                reached.notify_one();
                release.notified().await;
                inner.call(request).await
            }),
            Fault::Slow(delay) => HttpConnectorFuture::new(async move {
                tokio::time::sleep(delay).await;
                inner.call(request).await
            }),
            Fault::Throttled => {
                refusal(400, &json!({ "__type": error_type("ProvisionedThroughputExceededException") }))
            }
            Fault::ServerError => refusal(500, &json!({ "__type": error_type("InternalServerError") })),
            Fault::TransactionConflict => refusal(400, &conflict(&request)),
            Fault::AccessDenied => refusal(400, &json!({ "__type": "com.amazon.coral.service#AccessDeniedException" })),
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

/// How DynamoDB says that a transaction has the row.
fn conflict(request: &HttpRequest) -> Value {
    match operation(request) {
        "TransactWriteItems" | "TransactGetItems" => {
            let reason = json!({ "Code": "TransactionConflict", "Message": "injected" });
            let count = body(request)["TransactItems"].as_array().map_or(0, Vec::len);
            json!({ "__type": error_type("TransactionCanceledException"), "CancellationReasons": vec![reason; count] })
        }
        _ => json!({ "__type": error_type("TransactionConflictException") }),
    }
}

fn error_type(name: &str) -> String {
    format!("com.amazonaws.dynamodb.v20120810#{name}")
}

fn operation(request: &HttpRequest) -> &str {
    let target = request.headers().get("x-amz-target").unwrap_or_default();
    target.rsplit_once('.').map_or(target, |(_, operation)| operation)
}

fn body(request: &HttpRequest) -> Value {
    serde_json::from_slice(request.body().bytes().expect("in memory")).expect("JSON")
}

fn without_token(mut request: HttpRequest) -> HttpRequest {
    let mut body = body(&request);
    if body.as_object_mut().expect("an object").remove("ClientRequestToken").is_some() {
        let bytes = body.to_string();
        request.headers_mut().insert("content-length", bytes.len().to_string());
        *request.body_mut() = SdkBody::from(bytes);
    }
    request
}

fn refusal(status: u16, body: &Value) -> HttpConnectorFuture {
    let mut body = body.clone();
    body["message"] = "injected".into();
    let status = StatusCode::try_from(status).expect("a status");
    HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(body.to_string()))))
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}
