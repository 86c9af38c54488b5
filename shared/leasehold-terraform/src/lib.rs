//! # States of Terraform and OpenTofu, each under a lock of its own
//!
//! The protocol is that of their `http` backend. `leasehold serve` keeps the states in a folder, and the Lambda
//! function in a bucket of S3; both are a [`Store`].
//!
//! The lock of the state `NAME` has the key `terraform/NAME`. Whoever begins to hold it raises the fence of the state
//! to its fencing token, before it reads the state; whoever writes must hold the lock, under a token that is not below
//! the fence. A store raises the fence and changes the state in one step, and asks [`admit`] for the token.
//!
//! Plain `terraform` proves by the `ID` of its lock, and sends no heartbeats: its lock holds until UNLOCK. A run of
//! `leasehold terraform` proves by its lease id, in a header or in the user name, and heartbeats.
//!
//! Each request is carried out by operations on the lock, as its caller: who may not touch the key may not read the
//! state.

mod backend;
mod name;
mod request;
mod store;

pub use backend::Backend;
pub use name::Name;
pub use request::{Action, Asked, refusal, token};
pub use store::{Change, Store, admit};

/// Path of the states.
pub const PATH: &str = "/v1/terraform";
/// Path of the locks alone, for gateways that do not know the methods LOCK and UNLOCK.
pub const LOCK_PATH: &str = "/v1/terraform-lock";
/// The header of a run that holds the lock itself: its lease id. It leaves `Authorization` to a signature or a token.
pub const LEASE_HEADER: &str = "leasehold-lease-id";
/// The beginning of the user name of a run that holds the lock itself. Its lease id follows. The header comes
/// before it.
pub const LEASE_USER: &str = "lease-";
/// The lease of a lock without heartbeats, in milliseconds: the longest, and longer than that of any run.
pub const LEASE_WITHOUT_HEARTBEATS_MS: u64 = 24 * 60 * 60 * 1000;
/// The largest state, in bytes. A store may take less.
pub const MAX_STATE_BYTES: usize = 8 * 1024 * 1024;
