//! # The Lambda functions
//!
//! ```text
//! config      the configuration of a function, read once from its environment
//! init        the start of a function, before its first event: log, client, connection
//! handlers    the answer of each function to an event
//! executions  the secret in the lease ids of executions, by KMS
//! gateway     events of API Gateway, by lambda_http
//! emf         metrics of the operations
//! lines       the log, in which each operation is one line with its metrics
//! terraform   Terraform's states, in S3
//! trace       the caller's trace context, for the log
//! xray        the calls of DynamoDB, for X-Ray
//! ```
//!
//! A function takes region and credentials from its environment and nowhere else, and connects before its first
//! request. A mistake in the configuration ends the process, with a sentence that says what is wrong.

mod config;
mod emf;
mod executions;
mod gateway;
mod handlers;
mod init;
mod lines;
mod terraform;
mod trace;
mod xray;

pub use config::{Config, ConfigError, TransactionConfig};
pub use emf::Emf;
pub use executions::StackSecret;
pub use handlers::*;
pub use lines::subscriber;
pub use terraform::{Bucket, TerraformFunction};
