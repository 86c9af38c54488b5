//! # The bindings: from requests to the protocol, and from its answers to responses
//!
//! [`Service`] carries out one operation: it checks a request of [`leasehold_wire`], calls
//! [`leasehold_protocol::LockTable`], and turns the answer into a response or a [`Problem`](leasehold_wire::Problem).
//! It writes the one log line of the operation: operation, key, owner, outcome, duration, attempts at DynamoDB. The
//! line never contains a lease id, its hash or a payload. [`counts`] counts the outcome.
//!
//! [`access`] decides which keys a caller may touch, and which principal its locks are bound to.
//!
//! [`TransactionService`] does the same over [`leasehold_transactions::Transactions`]. Its log line contains the
//! transaction and the number of requests, and never an item. Key scopes apply to locks only: the function's role
//! decides which tables transactions may use.
//!
//! A watch waits until a lock changes. Writes of this [`Service`] wake it at once.
//!
//! [`Route`] binds an operation of the table to its method. [`http`] serves routes over HTTP, [`direct`] by direct
//! invocations, [`cleanup`] to the end of Step Functions executions. None of them depends on the server: the Lambda
//! adapters and `leasehold serve` call the same functions, and name the caller.

pub mod access;
mod attributes;
pub mod cleanup;
mod convert;
pub mod counts;
mod cursor;
pub mod direct;
mod execution;
mod expiry;
mod history;
pub mod http;
#[cfg(feature = "logging")]
pub mod logging;
mod parse;
mod quota;
mod route;
mod semaphore;
mod service;
mod together;
mod traced;
mod transactions;
mod watches;

pub use execution::ExecutionSecret;
pub use expiry::Expiry;
pub use history::{Recorder, StreamBatch, image};
pub use quota::Quota;
pub use route::{Admitted, Answer, Input, Route, Routed, document, no_transactions};
pub use service::Service;
pub use traced::OPERATION_TARGET;
pub use transactions::TransactionService;
