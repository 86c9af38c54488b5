//! The client library: the rules C1 to C11 of docs/client.md, under virtual time unless a file says otherwise.

mod election;
mod endpoints;
mod guard;
mod lambda;
mod leaving;
mod line;
mod permits;
mod reentry;
mod simulation;
mod telemetry;
mod together;
mod transactions;
mod transports;
mod vectors;
mod waiting;
mod watching;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use leasehold_client::{Client, Guard, LockRequest, Transport, TransportError};
use leasehold_in_process::InProcess;

const LEASE: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);

async fn granted(client: &Client, request: impl Into<LockRequest>) -> Guard {
    client.acquire(request).await.expect("reachable").granted().expect("free")
}

/// The fate of a request on its way from the client to the service.
#[derive(Debug, Clone)]
enum Fate {
    /// The request is carried out and answered.
    Delivered,
    /// The request never leaves the client.
    NotSent,
    /// The request is carried out, and the answer is lost.
    AnswerLost,
    /// The request is carried out at once, and answered after this delay.
    AnswerLate(Duration),
    /// The request is carried out after this delay, and answered.
    Slow(Duration),
    /// The request is carried out, and a gateway that did not wait for it answers instead.
    GaveUp(u16),
    /// The transport itself panics.
    Panics,
    /// The request is carried out after this delay, and not answered.
    Overdue(Duration),
    /// A gateway answers instead of the service: status, `Retry-After`, body.
    Gateway(u16, Option<u32>, &'static str),
}

type Fates = Box<dyn FnMut(&str) -> Fate + Send>;

/// A network between client and service, under control of the test.
#[derive(Clone)]
struct Network {
    service: InProcess,
    fate: Arc<Mutex<Fates>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Network {
    fn new(service: InProcess) -> Self {
        let network = Self { service, fate: Arc::new(Mutex::new(Box::new(|_| Fate::Delivered))), log: Arc::default() };
        network.mend();
        network
    }

    /// Sets the function that decides the fates of later requests, by their path.
    fn set(&self, fate: impl FnMut(&str) -> Fate + Send + 'static) {
        *self.fate.lock().expect("not poisoned") = Box::new(fate);
    }

    /// Sets the fate of the next request. All later ones are delivered.
    fn set_first(&self, fate: Fate) {
        let mut first = Some(fate);
        self.set(move |_| first.take().unwrap_or(Fate::Delivered));
    }

    /// Delivers all later requests.
    fn mend(&self) {
        self.set(|_| Fate::Delivered);
    }

    /// Delivers no later request.
    fn cut(&self) {
        self.set(|_| Fate::NotSent);
    }

    /// The paths of the requests since the last call of this function.
    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().expect("not poisoned"))
    }
}

impl Transport for Network {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        let path = request.uri().path().to_owned();
        let fate = (self.fate.lock().expect("not poisoned"))(&path);
        self.log.lock().expect("not poisoned").push(path);
        let service = self.service.clone();
        async move {
            match fate {
                Fate::Delivered => service.send(request).await,
                Fate::NotSent => Err(TransportError::not_sent("the cable is cut")),
                Fate::AnswerLost => {
                    service.send(request).await?;
                    Err(TransportError::unanswered("the connection was reset"))
                }
                Fate::AnswerLate(delay) => {
                    let answer = service.send(request).await;
                    tokio::time::sleep(delay).await;
                    answer
                }
                Fate::Slow(delay) => {
                    tokio::time::sleep(delay).await;
                    service.send(request).await
                }
                Fate::GaveUp(status) => {
                    service.send(request).await?;
                    Ok(Response::builder().status(status).body(b"{}".to_vec()).expect("a response"))
                }
                Fate::Panics => panic!("a transport that panics"),
                Fate::Overdue(delay) => {
                    tokio::spawn(async move {
                        tokio::time::sleep(delay).await;
                        let _ = service.send(request).await;
                    });
                    std::future::pending().await
                }
                Fate::Gateway(status, retry_after, body) => {
                    let mut response = Response::builder().status(status);
                    if let Some(seconds) = retry_after {
                        response = response.header("retry-after", seconds);
                    }
                    Ok(response.body(body.as_bytes().to_vec()).expect("a response"))
                }
            }
        }
        .boxed()
    }
}
