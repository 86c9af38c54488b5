//! # The caller's side of Leasehold
//!
//! The service is stateless. This library does everything that takes time: it waits for a lock, judges whether its
//! holder is dead, heartbeats, and notices a loss.
//!
//! ```no_run
//! # async fn work(token: u64) -> Result<(), leasehold_client::Error> { Ok(()) }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_client::{Client, HttpTransport};
//!
//! let client = Client::new(HttpTransport::new("http://127.0.0.1:8080")?);
//! let guard = client.acquire("Moe").await?.granted()?;
//! tokio::select! {
//!     done = work(guard.fencing_token()) => done?,
//!     Some(loss) = guard.lost() => return Err(format!("stopped: {loss}").into()),
//! }
//! guard.release().await?;
//!
//! // The same in one call. The error of the work is returned unchanged.
//! client.with_lock("Moe", async |guard| work(guard.fencing_token()).await).await?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Types
//!
//! * [`Client`]: `try_acquire` (one request), `acquire` (waits), `with_lock`, `get`, `list`, `break_lock`, `close`.
//! * [`LockRequest`]: the lock's key and settings: lease, wait, heartbeats, data.
//! * [`Acquisition`]: a [`Guard`], or the present holder. Contention is a value, not an error.
//! * [`Guard`]: the lock while it is held. Dropping the guard releases the lock, with best effort.
//! * [`Semaphore`], [`ReadWriteLock`], `fair_lock`: permits for several holders, each a [`PermitGuard`]. Waiters queue.
//! * [`AllGuard`]: several locks, all or none. [`Once`]: a job that runs once for each occurrence.
//! * [`Election`]: a leader, and those who follow it. `observe` follows a lock or a semaphore.
//! * [`Loss`]: how a lock was lost. A theft is reported at once; an outage when the lease has run out.
//! * `handlers`: locks in handlers of Lambda functions (feature `lambda-runtime`).
//! * [`transactions`]: `transaction` runs a body in one, `transact` all requests in one call, `read_items` reads from
//!   outside.
//! * [`Transport`]: carries the requests: [`HttpTransport`]; `LambdaTransport`, which invokes the functions directly
//!   (feature `lambda`); or the service inside this process (`leasehold-in-process`).
//!
//! A client belongs to the runtime that it is first used on: its heartbeats run there.
//!
//! ## Rules
//!
//! The clients of all languages follow the same rules, which `docs/client.md` gives in full:
//!
//! 1. One random lease id for one acquisition (C1). A request without an answer may be repeated.
//! 2. A holder counts its lease from before it sent (C2), an observer from after the answer, and a thousandth more
//!    (C3).
//! 3. A held lock is watched, or polled where watches fail (K1), and taken over as soon as its version was seen for
//!    its whole lease (C4).
//! 4. `unavailable` says nothing about the lock: the client retries, with back-off, within the bound of the operation
//!    (C5).
//! 5. A caller that stops waiting releases what may have been granted (C6).
//! 6. Heartbeats run in the background. A theft is noticed at once, an outage when the lease has run out (C7).
//! 7. An error of a release never hides the result of the work (C8).
//! 8. Observations can outlive the process (C9).
//! 9. Requests are numbered, so that a late one changes nothing (C10).
//! 10. Holders and tickets of a semaphore are judged one by one, and waiting goes through the queue (K2 to K5).
//!
//! ## Observability
//!
//! A wait is a span of `tracing` at level `INFO`, and a request one at level `DEBUG`. With the feature `metrics`, the
//! facade of that name has these. No span, metric or log has a lease id.
//!
//! | metric | unit | labels |
//! |---|---|---|
//! | `leasehold.wait.duration` | s | `leasehold.result`: `granted`, `held` or the kind of an error, which is `error.type` too |
//! | `leasehold.hold.duration` | s | |
//! | `leasehold.heartbeat.duration` | s | `leasehold.result`: `renewed` or the kind of an error, which is `error.type` too |
//! | `leasehold.renewals` | 1 | |
//! | `leasehold.losses` | 1 | `leasehold.reason` |
//!
//! [`ClientBuilder::request_headers`] passes the W3C `traceparent` on to the service, which logs it.
//!
//! ## Limits
//!
//! A process that was paused while it held a lock cannot know it in time. Hand [`Guard::fencing_token`] to the resource
//! with every write, and let the resource refuse lower ones. Durations are measured by the operating system's
//! monotonic clock, which on Linux stands still while the machine is suspended. Where the wall clock tells of a
//! suspension, a guard believes in nothing until a heartbeat was answered.

mod acquire;
mod attempt;
mod budget;
mod client;
mod clock;
pub mod duration;
mod election;
mod endpoints;
mod error;
mod flow;
mod guard;
#[cfg(feature = "lambda-runtime")]
pub mod handlers;
mod held_locks;
mod http_transport;
mod keeper;
mod keeping;
#[cfg(feature = "lambda")]
mod lambda_transport;
mod lease;
mod line;
mod loss;
mod memory;
mod observation;
mod once;
mod patience;
mod remote;
mod request;
mod semaphore;
#[cfg(feature = "sigv4")]
mod sigv4;
mod subject;
mod telemetry;
mod together;
pub mod transactions;
mod transport;
#[cfg(test)]
mod vectors;
mod watching;

pub use acquire::{Acquisition, Held};
pub use client::{Client, ClientBuilder, CloseError, HistoryOptions, ListOptions, Listed, Unreleased};
pub use election::{Election, Leader};
pub use error::{Error, ErrorKind};
/// The future that a [`Transport`] returns.
pub use futures_util::future::BoxFuture;
pub use guard::{Guard, Handover, Heartbeat, Release, Released};
pub use http_transport::HttpTransport;
#[cfg(feature = "lambda")]
pub use lambda_transport::LambdaTransport;
pub use leasehold_client_core::Wait;
use leasehold_client_core::timing;
pub use leasehold_client_core::timing::stale_after;
pub use leasehold_wire as wire;
pub use loss::{Loss, LossReason};
pub use observation::{Observation, SavedObservation};
pub use once::{Once, period_at};
pub use request::{Heartbeats, LockKey, LockRequest, Waiting};
pub use semaphore::{HeldPermits, PermitAcquisition, PermitGuard, PermitRequest, ReadWriteLock, Semaphore};
#[cfg(feature = "sigv4")]
pub use sigv4::SigV4;
pub use together::{AllAcquisition, AllGuard, AllRequest};
pub use transport::{Transport, TransportError};
