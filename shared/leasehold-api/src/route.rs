//! The operations of each service, with their routes: one table for HTTP and for direct invocations.

use std::fmt;
use std::pin::Pin;

use http::Method;
use leasehold_wire::{Problem, path};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::{Service, parse};

/// One operation of a service: its route, and its implementation.
pub trait Route: Copy + fmt::Debug + Send + Sync + 'static {
    /// The service that carries it out.
    type Service: Clone + Send + Sync + 'static;

    /// All operations of the service.
    const ALL: &'static [Self];

    /// The largest body that is read, in bytes.
    const MAX_BODY_BYTES: usize;

    /// The path of the operation.
    fn path(self) -> &'static str;

    /// The HTTP method. An operation with `GET` reads its input from the query, one with `POST` from the body.
    fn method(self) -> Method;

    /// The `action` of a direct invocation, where there is one.
    fn action(self) -> Option<&'static str>;

    /// Carries out the operation. The answer is a JSON document.
    fn carry_out<'a>(self, service: &'a Self::Service, caller: &'a Caller, input: Input<'a>) -> Answering<'a>;
}

/// An operation on its way. Boxed, so that this crate compiles the protocols down to the SDK: a future that is not
/// boxed is compiled again in each crate that polls it.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Box<RawValue>, Problem>> + Send + 'a>>;

/// The source of the fields of a request.
#[derive(Debug)]
pub enum Input<'a> {
    /// A body.
    Body(&'a [u8]),
    /// A query string, still encoded.
    Query(&'a str),
    /// The members of a JSON object, without the `action`.
    Members(Map<String, Value>),
}

impl Input<'_> {
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, Problem> {
        match self {
            Self::Body(body) => parse::json(body),
            Self::Query(query) => parse::query(query),
            Self::Members(members) => parse::object(members),
        }
    }
}

/// Returns an answer as a JSON document.
pub fn document(answer: &impl Serialize) -> Box<RawValue> {
    // The serialisation of strings, numbers and maps with string keys cannot fail.
    to_raw_value(answer).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The operations on locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `POST /v1/acquire`
    Acquire,
    /// `POST /v1/acquire-all`
    AcquireAll,
    /// `POST /v1/heartbeat`
    Heartbeat,
    /// `POST /v1/release`
    Release,
    /// `POST /v1/break`
    Break,
    /// `GET /v1/lock`
    Get,
    /// `GET /v1/watch`
    Watch,
    /// `GET /v1/locks`
    List,
    /// `GET /v1/health`
    Health,
}

impl Route for Operation {
    type Service = Service;

    const ALL: &'static [Self] = &[
        Self::Acquire,
        Self::AcquireAll,
        Self::Heartbeat,
        Self::Release,
        Self::Break,
        Self::Get,
        Self::Watch,
        Self::List,
        Self::Health,
    ];

    /// The largest payload takes 1.5 MB when each of its bytes needs an escape.
    const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;

    fn path(self) -> &'static str {
        match self {
            Self::Acquire => path::ACQUIRE,
            Self::AcquireAll => path::ACQUIRE_ALL,
            Self::Heartbeat => path::HEARTBEAT,
            Self::Release => path::RELEASE,
            Self::Break => path::BREAK,
            Self::Get => path::LOCK,
            Self::Watch => path::WATCH,
            Self::List => path::LOCKS,
            Self::Health => path::HEALTH,
        }
    }

    fn method(self) -> Method {
        match self {
            Self::Acquire | Self::AcquireAll | Self::Heartbeat | Self::Release | Self::Break => Method::POST,
            Self::Get | Self::Watch | Self::List | Self::Health => Method::GET,
        }
    }

    fn action(self) -> Option<&'static str> {
        match self {
            Self::Acquire => Some("acquire"),
            Self::AcquireAll => Some("acquire-all"),
            Self::Heartbeat => Some("heartbeat"),
            Self::Release => Some("release"),
            Self::Break => Some("break"),
            Self::Get => Some("get"),
            Self::Watch | Self::List | Self::Health => None,
        }
    }

    fn carry_out<'a>(self, service: &'a Service, caller: &'a Caller, input: Input<'a>) -> Answering<'a> {
        Box::pin(async move {
            Ok(match self {
                Self::Acquire => document(&service.acquire(caller, input.read()?).await?),
                Self::AcquireAll => document(&service.acquire_all(caller, input.read()?).await?),
                Self::Heartbeat => document(&service.heartbeat(caller, input.read()?).await?),
                Self::Release => document(&service.release(caller, input.read()?).await?),
                Self::Break => document(&service.break_lock(caller, input.read()?).await?),
                Self::Get => document(&service.get(caller, input.read()?).await?),
                Self::Watch => document(&service.watch(caller, input.read()?).await?),
                Self::List => document(&service.list(caller, input.read()?).await?),
                Self::Health => document(&service.health().await?),
            })
        })
    }
}
