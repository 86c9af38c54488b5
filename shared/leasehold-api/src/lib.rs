//! # The bindings: from what travels to the protocol, and back
//!
//! [`Service`] carries out one operation: it checks a request of [`leasehold_wire`], asks
//! [`leasehold_protocol::LockTable`], and turns the answer into a response or a [`Problem`](leasehold_wire::Problem).
//! It writes the one log line of the operation: operation, key, owner, outcome, duration, attempts at DynamoDB;
//! never a lease id, its hash or a payload. And it counts what came of it ([`counts`]).
//!
//! [`access`] says which keys a caller may touch, and whom its locks are bound to.
//!
//! [`TransactionService`] does the same over [`leasehold_transactions::Transactions`]. Its log line has the transaction and the
//! number of requests; never an item. Key scopes are about locks, and not asked: what transactions may touch, the function's
//! role says.
//!
//! A watch waits until a lock changes: writes of this [`Service`] wake it at once.
//!
//! [`Route`] is the table of what can be asked of each. [`http`] binds it to HTTP, [`direct`] to direct invocations,
//! [`cleanup`] to the end of Step Functions executions. None knows what brings the requests: the Lambda adapters and
//! `leasehold serve` hand theirs to the same functions, and say who calls.

pub mod access;
mod attributes;
pub mod cleanup;
mod convert;
pub mod counts;
mod cursor;
pub mod direct;
mod execution;
pub mod http;
#[cfg(feature = "logging")]
pub mod logging;
mod parse;
mod route;
mod semaphore;
mod service;
mod together;
mod transactions;
mod watches;

pub use execution::ExecutionSecret;
pub use route::{Input, Route, document};
pub use semaphore::SemaphoreOperation;
pub use service::{OPERATION_TARGET, Service};
pub use transactions::{TransactionOperation, TransactionService};
