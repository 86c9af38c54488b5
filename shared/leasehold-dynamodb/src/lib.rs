//! # The layer between the protocols and DynamoDB
//!
//! Locks and transactions share everything in this crate. The crate knows no attribute and no expression.
//!
//! ```text
//! client    makes a client of DynamoDB, with the time-outs that both protocols depend on
//! clock     the only source of time, UUIDs and randomness
//! attempts  retries a call, a bounded number of times, with pauses
//! failure   sorts DynamoDB's failures by the action that the caller can take
//! regions   tells whether a table is in several regions
//! tables    creates a table where it is missing
//! ```

mod attempts;
mod client;
mod clock;
mod failure;
mod regions;
mod tables;

pub use attempts::{MAX_ATTEMPTS, pause, repeat};
pub use client::{configure, connect};
pub use clock::{Clock, fresh_uuid, jitter, pause_for};
pub use failure::{Failure, FailureKind, error_chain, is_about_size};
pub use regions::{Regions, regions};
pub use tables::{Index, Key, TableDefinition, check_table, ensure_table};
