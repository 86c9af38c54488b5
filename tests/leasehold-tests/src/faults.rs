//! Faults at the seam between the SDK and the engine.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use leasehold_engine::Engine;

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
    /// It is carried out and answered, this much later.
    Slow(Duration),
    /// It is refused for load.
    Throttled,
    /// It is refused by a failing node, which did not carry it out.
    ServerError,
    /// It is refused because a transaction has the row.
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
    },
}

impl Fates {
    fn next(&mut self) -> Fault {
        match self {
            Self::Script(script) => script.pop_front().unwrap_or(Fault::None),
            Self::Random { rng, one_in, longest } => {
                if rng.u32(0..*one_in) > 0 {
                    return Fault::None;
                }
                let longest = u64::try_from(longest.as_millis()).expect("a sane delay");
                let delay = Duration::from_millis(rng.u64(0..=longest));
                match rng.u32(0..7) {
                    0 => Fault::RequestLost,
                    1 => Fault::ResponseLost,
                    2 | 3 => Fault::Late(delay),
                    4 => Fault::Slow(delay),
                    5 => Fault::Throttled,
                    _ => Fault::ServerError,
                }
            }
        }
    }
}

/// An [`HttpClient`] for the SDK that hands requests to the engine, or to their fate.
#[derive(Clone)]
pub struct Faults {
    engine: Engine,
    state: Arc<Mutex<State>>,
}

struct State {
    fates: Fates,
    calls: usize,
    copies: Vec<HttpRequest>,
}

impl Faults {
    /// No faults, until [`Faults::set`] is called.
    pub fn new(engine: Engine) -> Self {
        let state = State { fates: Fates::Script(VecDeque::new()), calls: 0, copies: Vec::new() };
        Self { engine, state: Arc::new(Mutex::new(state)) }
    }

    /// From now on, these.
    pub fn set(&self, fates: Fates) {
        self.lock().fates = fates;
    }

    /// From now on, these, one a request, and then none.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.set(Fates::Script(faults.into_iter().collect()));
    }

    /// How many requests were sent since the last call of this function.
    pub fn take_calls(&self) -> usize {
        std::mem::take(&mut self.lock().calls)
    }

    /// Delivers the copies that were kept, byte for byte, and forgets them. Returns how many there were.
    pub async fn deliver_copies(&self) -> usize {
        let copies = std::mem::take(&mut self.lock().copies);
        let count = copies.len();
        for copy in copies {
            let _ = self.engine.call(copy).await;
        }
        count
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }
}

impl HttpClient for Faults {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Faults {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let fault = {
            let mut state = self.lock();
            state.calls += 1;
            state.fates.next()
        };
        let engine = self.engine.clone();
        match fault {
            Fault::None => engine.call(request),
            Fault::RequestLost => {
                HttpConnectorFuture::ready(Err(ConnectorError::io("the connection was reset".into())))
            }
            Fault::ResponseLost => HttpConnectorFuture::new(async move {
                let _ = engine.call(request).await;
                std::future::pending().await
            }),
            Fault::Late(delay) => HttpConnectorFuture::new(async move {
                // On a task of its own: the caller gives up on this future, but the request is on its way.
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let _ = engine.call(request).await;
                });
                std::future::pending().await
            }),
            Fault::Copied => {
                self.lock().copies.extend(request.try_clone());
                engine.call(request)
            }
            Fault::Slow(delay) => HttpConnectorFuture::new(async move {
                tokio::time::sleep(delay).await;
                engine.call(request).await
            }),
            Fault::Throttled => refusal(400, "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"),
            Fault::ServerError => refusal(500, "com.amazonaws.dynamodb.v20120810#InternalServerError"),
            Fault::TransactionConflict => refusal(400, "com.amazonaws.dynamodb.v20120810#TransactionConflictException"),
            Fault::AccessDenied => refusal(400, "com.amazon.coral.service#AccessDeniedException"),
        }
    }
}

fn refusal(status: u16, error_type: &str) -> HttpConnectorFuture {
    let body = format!(r#"{{"__type":"{error_type}","message":"injected"}}"#);
    let status = StatusCode::try_from(status).expect("a status");
    HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(body))))
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}
