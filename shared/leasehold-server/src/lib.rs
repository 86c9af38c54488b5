//! # The service as a server of its own
//!
//! [`Server`] opens the tables, in the embedded engine or at any DynamoDB endpoint, and serves locks and transactions over
//! HTTP. `leasehold serve` is its command line.
//!
//! [`routes`] and [`run`] are the HTTP front by itself, for services that are assembled otherwise.

mod front;
mod server;

pub use front::{routes, run};
pub use server::{Server, ServerError, Settings, Store};
