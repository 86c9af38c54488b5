//! # The lock service behind axum
//!
//! The same handlers as in the Lambda functions, for one machine. This crate is what stands between them and strangers:
//!
//! ```text
//! connections  accepts connections, with time-outs in both directions
//! tls          certificates, read again when their files change
//! guard        refuses foreign web pages: Host, Origin, fetch metadata
//! tokens       bearer tokens: who calls, and which keys they may touch
//! load         sheds load, heartbeats and releases last
//! buffers      bounds the memory that large requests and answers take together
//! routes       from a request to the handler and back
//! console      the page that shows who holds what
//! exposed      the embedded engine, for other DynamoDB clients
//! metrics      counts for Prometheus
//! ```

mod buffers;
mod connections;
pub mod console;
pub mod exposed;
mod guard;
mod load;
pub mod metrics;
mod routes;
mod tls;
mod tokens;

pub use connections::{run, run_tls};
pub use guard::Guard;
pub use load::Load;
pub use routes::{Checked, READY, bearer, probe, protect, routes, routes_but};
pub use tls::{Tls, TlsError};
pub use tokens::{Entry, TokenError, Tokens, new_token};
