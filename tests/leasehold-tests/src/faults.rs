//! Faults at the seam between the SDK and DynamoDB, which is the embedded engine or another one.

use std::collections::{HashSet, VecDeque};
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

/// The fate of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is carried out and answered.
    None,
    /// The request never arrives; the connection breaks.
    RequestLost,
    /// The request is carried out; the answer never arrives.
    ResponseLost,
    /// The request is carried out after this delay, when the caller has long given up.
    Late(Duration),
    /// The request is carried out and answered; a copy is kept for [`Faults::deliver_copies`].
    Copied,
    /// The request is carried out and answered; a copy, byte for byte, is delivered before the answer.
    Twice,
    /// The request never arrives, and the caller must die: [`Faults::reached`].
    DiesBefore,
    /// The request is carried out, and the caller must die.
    DiesAfter,
    /// The request waits, with the caller, until [`Faults::release`]: [`Faults::reached`].
    Held,
    /// The request is carried out, and answered after this delay.
    Slow(Duration),
    /// The request is throttled.
    Throttled,
    /// The request is refused by a failing node, which did not carry it out.
    ServerError,
    /// The request is refused because a transaction has the row, in the form of its operation.
    TransactionConflict,
    /// The request is refused because another region writes the item.
    ReplicatedWriteConflict,
    /// The request is refused because the role does not allow it.
    AccessDenied,
    /// The request never arrives, and is answered with this JSON document: a refusal, if it has a `__type`.
    Answered(&'static str),
}

/// The source of fates.
pub enum Fates {
    /// A list of fates, one for each request; after its end, no more faults.
    Script(VecDeque<Fault>),
    /// A seeded generator: a fault in one of `one_in` requests, delays up to `longest`.
    Random {
        /// The generator. Its seed makes a run repeatable.
        rng: fastrand::Rng,
        /// One request in this many gets a fault.
        one_in: u32,
        /// The longest delay.
        longest: Duration,
        /// The faults to choose from.
        kinds: &'static [Kind],
    },
    /// The role does not allow this table.
    Denied(&'static str),
    /// The table is in several regions: there are no transactions, no TTL and no local indexes, and some writes meet
    /// one of another region. A write that was refused is not refused again when it is repeated.
    Regions {
        /// The generator. Its seed makes a run repeatable.
        rng: fastrand::Rng,
        /// One write in this many is refused.
        one_in: u32,
        /// The items whose last write was refused.
        refused: HashSet<String>,
    },
}

/// A kind of fault, which may have a delay.
pub type Kind = fn(Duration) -> Fault;

/// The faults of a network and a database that can affect any request.
pub const COMMON: &[Kind] = &[
    |_| Fault::RequestLost,
    |_| Fault::ResponseLost,
    Fault::Late,
    Fault::Late,
    Fault::Slow,
    |_| Fault::Throttled,
    |_| Fault::ServerError,
];

/// The refusal of what a table in several regions does not have.
const NOT_IN_SEVERAL_REGIONS: &str = r#"{"__type":"com.amazon.coral.validate#ValidationException",
    "message":"Not supported on a global table with multi-Region strong consistency"}"#;

impl Fates {
    /// A table in several regions, where one write in `one_in` is refused because another region writes the item.
    pub fn regions(seed: u64, one_in: u32) -> Self {
        Self::Regions { rng: fastrand::Rng::with_seed(seed), one_in, refused: HashSet::new() }
    }

    fn next(&mut self, request: &HttpRequest) -> Fault {
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
            Self::Denied(table) if names(request, table) => Fault::AccessDenied,
            Self::Denied(_) => Fault::None,
            Self::Regions { rng, one_in, refused } => match operation(request) {
                "UpdateItem" | "PutItem" | "DeleteItem" => {
                    let item = body(request)["Key"].to_string();
                    if refused.remove(&item) || rng.u32(0..*one_in) > 0 {
                        return Fault::None;
                    }
                    refused.insert(item);
                    Fault::ReplicatedWriteConflict
                }
                "TransactWriteItems" | "TransactGetItems" | "ExecuteTransaction" | "UpdateTimeToLive" => {
                    Fault::Answered(NOT_IN_SEVERAL_REGIONS)
                }
                "CreateTable" if !body(request)["LocalSecondaryIndexes"].is_null() => {
                    Fault::Answered(NOT_IN_SEVERAL_REGIONS)
                }
                _ => Fault::None,
            },
        }
    }
}

/// An [`HttpClient`] for the SDK that forwards requests to another one, or lets them fail.
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
    /// The requests, where a test records them.
    recorded: Option<Vec<Sent>>,
}

/// A request that was sent.
#[derive(Debug, Clone)]
pub struct Sent {
    /// The operation, such as `TransactWriteItems`.
    pub operation: String,
    /// The request itself.
    pub body: Value,
}

impl Faults {
    /// Returns a client like this one, with faults between it and its DynamoDB. There are none until [`Faults::set`] is
    /// called.
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

    /// Sets the fates of all later requests.
    pub fn set(&self, fates: Fates) {
        self.lock().fates = fates;
    }

    /// Sets the fates of the next requests, one each; after the last, there are no faults.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.set(Fates::Script(faults.into_iter().collect()));
    }

    /// Sets a fault for the `step`th request from now on (from 1), and for no other.
    pub fn at(&self, step: usize, fault: Fault) {
        self.script(std::iter::repeat_n(Fault::None, step - 1).chain([fault]));
    }

    /// Returns the number of requests since the last call of this function.
    pub fn take_calls(&self) -> usize {
        std::mem::take(&mut self.lock().calls)
    }

    /// Returns the requests since the last call of this function. The first call starts the recording.
    pub fn record(&self) -> Vec<Sent> {
        self.lock().recorded.replace(Vec::new()).unwrap_or_default()
    }

    /// Waits until a request has got [`Fault::DiesBefore`], [`Fault::DiesAfter`] or [`Fault::Held`]. After that the
    /// caller must not be polled, which makes it sleep; and if it must die, it is dropped.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Releases the held request.
    pub fn release(&self) {
        self.release.notify_one();
    }

    /// Delivers the kept copies and forgets them. Returns their number. The copies arrive after DynamoDB has forgotten
    /// their idempotency tokens, which takes ten minutes.
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
            state.fates.next(&request)
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
                // A task of its own: the caller drops this future, but the request is under way.
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
            Fault::ReplicatedWriteConflict => {
                refusal(400, &json!({ "__type": error_type("ReplicatedWriteConflictException") }))
            }
            Fault::AccessDenied => refusal(400, &json!({ "__type": "com.amazon.coral.service#AccessDeniedException" })),
            Fault::Answered(document) => {
                answer(if document.contains("__type") { 400 } else { 200 }, document.to_owned())
            }
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

/// DynamoDB's refusal of a request while a transaction has the row.
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

/// Whether a request names this table.
fn names(request: &HttpRequest, table: &str) -> bool {
    request.body().bytes().is_some_and(|body| String::from_utf8_lossy(body).contains(&format!("\"{table}\"")))
}

/// The request as it is carried out after DynamoDB has forgotten its idempotency token.
pub fn without_token(mut request: HttpRequest) -> HttpRequest {
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
    answer(status, body.to_string())
}

fn answer(status: u16, body: String) -> HttpConnectorFuture {
    let status = StatusCode::try_from(status).expect("a status");
    HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(body))))
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}
