//! # The service as a server of its own
//!
//! [`Server`] opens the tables, in the embedded engine or at any DynamoDB endpoint, and serves locks and transactions
//! over HTTP. `leasehold serve` is its command line. The modules protect the handlers from strangers, and serve probes,
//! metrics and the console:
//!
//! ```text
//! connections  accepts connections, with time-outs in both directions
//! places       bounds the number of connections, and closes waiting ones for new ones
//! tls          certificates, read again when their files change
//! tokens       bearer tokens: the caller's name, and the keys that it may touch
//! load         sheds load, heartbeats and releases last
//! aside        threads of their own for listings and large reads
//! buffers      bounds the memory that large requests and answers take together
//! routes       from a request to the handler and back
//! health       probes, which also write
//! console      the page that shows the locks and their holders
//! exposed      the embedded engine, for other DynamoDB clients
//! credentials  the signatures of these clients
//! metrics      counts for Prometheus
//! terraform    Terraform's states, each written only under its lock
//! ```
//!
//! [`routes`] and [`run`] are the HTTP front by itself, for services that are assembled otherwise.

mod aside;
mod buffers;
mod connections;
pub mod console;
mod credentials;
mod expiry;
pub mod exposed;
mod health;
mod history;
mod load;
mod metrics;
mod places;
mod routes;
mod server;
pub mod terraform;
mod tls;
mod tokens;

pub use connections::{run, run_tls};
pub use credentials::{Credentials, CredentialsError};
pub use leasehold_origin::Guard;
pub use load::Load;
pub use routes::{Checked, protect, routes, routes_of};
pub use server::{Front, HistorySettings, Pulse, Server, ServerError, Settings, Store};
pub use terraform::{States, StatesError};
pub use tls::{Tls, TlsError};
pub use tokens::{TokenEntry, TokenError, Tokens, new_token};
