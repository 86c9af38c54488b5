//! # What the `leasehold` command is made of
//!
//! [`serve`] runs the lock service on this machine: the handlers of the Lambda functions, behind axum, on an embedded
//! DynamoDB engine or any DynamoDB endpoint. [`server`] is the HTTP front by itself, for tests and benchmarks.

pub mod serve;
pub mod server;
