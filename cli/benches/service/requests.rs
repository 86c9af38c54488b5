//! The requests of a client, counted by their route.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use leasehold_client::{Client, HttpTransport, Transport, TransportError};

use crate::process::Serve;

/// A transport that counts what it sends. Its clones count together.
#[derive(Clone)]
pub(crate) struct Counted {
    pub(crate) http: HttpTransport,
    requests: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Counted {
    pub(crate) fn new(serve: &Serve) -> Self {
        let http = HttpTransport::new(&format!("http://{}", serve.address)).expect("a URL");
        Self { http, requests: Arc::default() }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.clone())
    }

    /// Returns the number of requests by path, and begins anew.
    pub(crate) fn take(&self) -> BTreeMap<String, u32> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of requests, and begins anew.
    pub(crate) fn take_sum(&self) -> u32 {
        self.take().values().sum()
    }
}

impl Transport for Counted {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        let route = request.uri().path().to_owned();
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(route).or_default() += 1;
        self.http.send(request)
    }
}
