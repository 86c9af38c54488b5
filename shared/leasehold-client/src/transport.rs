//! The seam between the rules of the caller and the transport of its requests.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};

/// Carries one request to the service and brings the answer back.
///
/// The request's URI is a path and a query, such as `/v1/lock?key=Moe`; the transport adds the scheme and the host. A
/// transport retries nothing and follows no redirect. A time-out drops its future.
pub trait Transport: Send + Sync + 'static {
    /// Sends `request`. Any answer is an `Ok`, whatever its status.
    ///
    /// # Errors
    /// No answer came.
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>>;
}

impl Transport for Box<dyn Transport> {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        self.as_ref().send(request)
    }
}

/// The time that a request has, for a transport that shares it. It is among the request's extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimit {
    /// The time after which the request is given up.
    pub(crate) whole: Duration,
    /// The part of it for the answer, at most; the service may wait for the rest of it.
    pub(crate) answer: Duration,
}

/// A request without an answer.
#[derive(Debug)]
pub struct TransportError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    delivered: bool,
    is_invalid: bool,
}

impl TransportError {
    /// Creates an error for a request that may have been carried out.
    pub fn unanswered(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None, delivered: true, is_invalid: false }
    }

    /// Creates an error for a request that was certainly not sent: nothing can have happened.
    pub fn not_sent(message: impl Into<String>) -> Self {
        Self { delivered: false, ..Self::unanswered(message) }
    }

    /// Creates an error for a request that cannot be made, now or later: its token, for example, fits in no header.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { is_invalid: true, ..Self::not_sent(message) }
    }

    /// Whether a repeat would fail as well.
    pub(crate) fn is_invalid(&self) -> bool {
        self.is_invalid
    }

    /// The same error in these words.
    pub(crate) fn told(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether the request may have been carried out.
    pub fn may_have_been_delivered(&self) -> bool {
        self.delivered
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for TransportError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
