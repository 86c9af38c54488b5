//! # The caller's side of Leasehold
//!
//! The service is stateless; everything that takes time happens here: waiting for a lock, judging that its holder is
//! dead, heartbeating, noticing the loss. The rules, C1 to C9, and what each prevents are in `docs/client.md`.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_client::{Client, HttpTransport};
//!
//! let client = Client::new(HttpTransport::new("http://127.0.0.1:8080")?);
//! let guard = client.acquire("Moe").await?.granted()?;
//! println!("write with the fencing token {}", guard.fencing_token());
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! * [`Client`]: `try_acquire` (one request), `acquire` (waits), `with_lock`, `get`, `list`, `break_lock`, `close`.
//! * [`LockRequest`]: which lock, and how: lease, wait, heartbeats, data.
//! * [`Acquisition`]: a [`Guard`], or who has the lock. Contention is a value, not an error.
//! * [`Guard`]: the lock while it is held. Dropping it releases the lock, as well as it can.
//! * [`Loss`]: how a lock was lost. A theft is told at once; an outage only when the lease has run out.
//! * [`transactions`]: `transaction` runs a body in one, `transact` all requests in one call, `read_items` reads from outside.
//! * [`Transport`]: what carries the requests: [`HttpTransport`], or the service inside this process
//!   (`leasehold-in-process`).
//!
//! A client belongs to the runtime that it is first used on: its heartbeats run there.
//!
//! ## Limits
//!
//! A process that was paused while it held a lock cannot know it in time. Hand [`Guard::fencing_token`] to the resource
//! with every write, and let the resource refuse lower ones. Durations are measured by the operating system's
//! monotonic clock, which on Linux stands still while the machine is suspended.

mod acquire;
mod client;
mod clock;
mod error;
mod guard;
mod http_transport;
mod keeper;
mod lease;
mod loss;
mod observation;
mod remote;
mod request;
#[cfg(feature = "sigv4")]
mod sigv4;
pub mod transactions;
mod transport;

pub use acquire::{Acquisition, Held};
pub use client::{Client, ClientBuilder, CloseError, ListOptions, Listed, Unreleased};
pub use error::{Error, ErrorKind};
/// What a [`Transport`] returns.
pub use futures_util::future::BoxFuture;
pub use guard::{Guard, Heartbeat, Release, Released};
pub use http_transport::HttpTransport;
pub use leasehold_wire as wire;
pub use loss::{Loss, LossReason};
pub use observation::{Observation, SavedObservation};
pub use request::{Heartbeats, LockKey, LockRequest, Wait, Waiting};
#[cfg(feature = "sigv4")]
pub use sigv4::SigV4;
pub use transport::{Transport, TransportError};
