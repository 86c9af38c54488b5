//! # Cold start: what a process does once, before its first request
//!
//! [`Config`] or [`TransactionConfig`] is read from the environment, a client of DynamoDB is made, [`init_logging`] is called,
//! and [`lambda::run_http`], or another of its `run` functions, hands requests to [`leasehold_api`] until Lambda ends the
//! process.
//! What is wrong with the configuration is said here, in sentences, and ends the process.
//!
//! A function takes region and credentials from its environment and nowhere else, and connects before its first request.
//! [`dynamodb_client`] is for everyone else: it asks all the places that the AWS command line asks.

mod client;
mod config;
mod emf;
mod init;
pub mod lambda;
mod logging;

pub use client::dynamodb_client;
pub use config::{Config, ConfigError, TransactionConfig};
pub use emf::Emf;
pub use logging::{LogFormat, init_logging, json_subscriber};
pub use tracing::level_filters::LevelFilter;
