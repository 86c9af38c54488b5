//! # The bench for the tests
//!
//! A [`World`] is a lock table on the embedded engine, with a [`Faults`] between the SDK and the engine. Requests and
//! answers can be lost, delayed, duplicated or refused there, by script or by a seeded generator. Time is tokio's, so
//! that a test under a paused clock waits for nothing.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test fails by a panic, and delays are virtual"
)]

pub mod bank;
mod faults;
mod permits;
mod seeds;
mod world;

use serde::Serialize;
use serde_json::Value;

pub use faults::{COMMON, Fates, Fault, Faults, Kind, Sent, without_token};
pub use permits::{PermitEvent, check_permits};
pub use seeds::run_seeds;
pub use world::{EPOCH_MS, World, acquire, heartbeat, key, lease_id, release};

/// An answer of a function, as the JSON document that its caller reads.
pub fn json_of(answer: impl Serialize) -> Value {
    serde_json::to_value(answer).expect("an answer is a JSON document")
}
