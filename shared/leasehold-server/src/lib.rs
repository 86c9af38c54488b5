//! # The service as a server of its own
//!
//! [`Server`] opens the tables, in the embedded engine or at any DynamoDB endpoint, and serves locks and transactions
//! over HTTP. `leasehold serve` is its command line. Between the handlers and strangers stand:
//!
//! ```text
//! connections  accepts connections, with time-outs in both directions
//! tls          certificates, read again when their files change
//! guard        refuses foreign web pages: Host, Origin, fetch metadata
//! tokens       bearer tokens: who calls, and which keys they may touch
//! load         sheds load, heartbeats and releases last
//! aside        threads of their own for listings and large reads
//! buffers      bounds the memory that large requests and answers take together
//! routes       from a request to the handler and back
//! health       probes, which also write
//! console      the page that shows who holds what
//! exposed      the embedded engine, for other DynamoDB clients
//! metrics      counts for Prometheus
//! ```
//!
//! [`routes`] and [`run`] are the HTTP front by itself, for services that are assembled otherwise.

mod aside;
mod buffers;
mod connections;
pub mod console;
pub mod exposed;
mod guard;
mod health;
mod load;
mod metrics;
mod routes;
mod server;
mod tls;
mod tokens;

pub use connections::{run, run_tls};
pub use guard::Guard;
pub use load::Load;
pub use routes::{Checked, protect, routes};
pub use server::{Front, Server, ServerError, Settings, Store};
pub use tls::{Tls, TlsError};
pub use tokens::{TokenEntry, TokenError, Tokens, new_token};
