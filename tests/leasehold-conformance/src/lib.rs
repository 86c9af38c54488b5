//! # The conformance suite of the HTTP API
//!
//! The suite tests the promises of the API to its callers. They hold for every server: the binary on a laptop, the
//! functions behind a gateway, any engine or DynamoDB itself underneath. The suite uses HTTP only. It also has a
//! DynamoDB client, which reads the rows that the service writes and plants rows as other clients write them.
//!
//! ```no_run
//! # async fn example(target: leasehold_conformance::Target) -> Result<(), leasehold_conformance::Failures> {
//! let cases = leasehold_conformance::run(&target).await?;
//! leasehold_conformance::races(&target, 64, 20).await;
//! # Ok(()) }
//! ```
//!
//! A **case** is an async function that panics where the service differs. Each case has keys of its own, so that cases
//! run at the same time, and on a table that is in use; the rows stay behind. [`run`] is for a table without a sort
//! key, [`run_with_sort_key`] for one with; all but a few cases run on both.
//!
//! ```text
//! bench   a service under test, and its table
//! reply   answers, and short checks of them
//! secrets lease ids: every answer is searched for them
//! refusals the kinds of refusals: each answer is compared with the entry of its operation
//! cases   one module for each topic, and the list of all
//! races   many callers, one lock
//! ```
//!
//! Limits: the suite does not make DynamoDB fail, so it does not provoke `throttled` and `unavailable`. It assumes the
//! default clock skew, 1000 ms, and the default retention, 7 days.

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case fails by a panic, and the runner reports it under the case's name"
)]

mod bench;
mod cases;
mod races;
mod refusals;
mod reply;
mod secrets;

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_protocol::TableSchema;
use tokio::sync::Semaphore;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;

use crate::bench::{Bench, http_client};
use crate::cases::Case;

pub use crate::races::{permit_races, races};
pub use crate::refusals::Refusals;

/// The number of concurrent cases on an engine: enough to interact, not enough to measure the machine.
pub const CONCURRENT_CASES: usize = 16;

/// The slowest case takes three seconds, and two minutes where functions run in containers on a laptop. A case that
/// reaches this limit hangs.
const CASE_TIMEOUT: Duration = Duration::from_mins(5);

/// A service, and the table behind it.
#[derive(Debug, Clone)]
pub struct Target {
    /// The base URL of the API, without a trailing slash: `http://127.0.0.1:8080`.
    pub base_url: String,
    /// The DynamoDB that the service uses.
    pub dynamodb: aws_sdk_dynamodb::Client,
    /// The table that the service uses.
    pub schema: TableSchema,
    /// The number of cases that run at a time.
    pub concurrent_cases: usize,
    /// Whether the table is in several regions, so that the service has no transactions.
    pub is_multi_region: bool,
    /// The refusals that the service answered.
    pub refusals: Refusals,
}

/// The cases that failed.
#[derive(Debug)]
pub struct Failures {
    /// The number of cases that were run.
    pub cases: usize,
    /// The failed cases, by name.
    pub failed: Vec<Failure>,
}

/// A case that failed.
#[derive(Debug)]
pub struct Failure {
    /// The case's name: its module and function.
    pub case: &'static str,
    /// The difference that failed the case.
    pub difference: String,
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} cases failed", self.failed.len(), self.cases)?;
        for failure in &self.failed {
            writeln!(f, "\n{}: {}", failure.case, failure.difference)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failures {}

/// Runs the suite on a table without a sort key, and returns the number of cases.
///
/// # Errors
/// All cases that failed.
pub async fn run(target: &Target) -> Result<usize, Failures> {
    assert_eq!(target.schema.sort_key, None, "run_with_sort_key is for a table with a sort key");
    run_all(target, cases::WITHOUT_SORT_KEY).await
}

/// Runs the suite on a table with a sort key, and returns the number of cases.
///
/// # Errors
/// All cases that failed.
pub async fn run_with_sort_key(target: &Target) -> Result<usize, Failures> {
    assert_ne!(target.schema.sort_key, None, "run is for a table without a sort key");
    run_all(target, cases::WITH_SORT_KEY).await
}

async fn run_all(target: &Target, of_table: &[Case]) -> Result<usize, Failures> {
    let of_regions = if target.is_multi_region { cases::IN_SEVERAL_REGIONS } else { cases::IN_ONE_REGION };
    let cases = [cases::ON_ANY_TABLE, of_table, of_regions].concat();
    let http = http_client();
    let permits = Arc::new(Semaphore::new(target.concurrent_cases));
    let mut tasks = JoinSet::new();
    let count = cases.len();
    let names: HashMap<Id, &'static str> = cases
        .into_iter()
        .map(|case| {
            let permits = Arc::clone(&permits);
            let bench = Bench::new(target, http.clone());
            let task = async move {
                let _permit = permits.acquire().await;
                timeout(CASE_TIMEOUT, (case.run)(bench)).await
            };
            (tasks.spawn(task).id(), case.name)
        })
        .collect();

    let mut failed = Vec::new();
    while let Some(finished) = tasks.join_next_with_id().await {
        let (id, difference) = match finished {
            Ok((_, Ok(()))) => continue,
            Ok((id, Err(_))) => (id, format!("It did not end within {} seconds.", CASE_TIMEOUT.as_secs())),
            Err(error) => (error.id(), panic_message(error)),
        };
        failed.push(Failure { case: names[&id], difference });
    }
    failed.sort_by_key(|failure| failure.case);
    if failed.is_empty() { Ok(count) } else { Err(Failures { cases: count, failed }) }
}

fn panic_message(error: JoinError) -> String {
    let payload: Box<dyn Any> = match error.try_into_panic() {
        Ok(payload) => payload,
        Err(error) => return error.to_string(),
    };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => {
            payload.downcast::<&str>().map_or_else(|_| "It panicked.".to_owned(), |text| (*text).to_owned())
        }
    }
}
