//! The functions of the transactions.
//!
//! Each serves several routes, and direct invocations. An event with a `requestContext` came through a gateway or a
//! Function URL; one with an `action` is a direct invocation; and the schedule's has neither.

use std::time::Duration;

use lambda_runtime::{Diagnostic, Error, LambdaEvent, service_fn};
use leasehold_api::access::Caller;
use leasehold_api::{Routed, TransactionService, direct, document, no_transactions};
use leasehold_dynamodb::{Clock, pause_for};
use leasehold_transactions::Transactions;
use leasehold_wire::Problem;
use leasehold_wire::operation::{Family, SWEEP};
use leasehold_wire::transactions::{SweepRequest, SweepResponse};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tracing::Instrument;

use super::{print, start, time_left};
use crate::gateway::{self, named};
use crate::{Emf, TransactionConfig, config, init, trace};

/// The number of transactions that one call of the sweep handles. The time limit applies between two calls.
const SLICE: u32 = 25;

/// The callers and operations that a function of the transactions answers.
#[derive(Debug, Clone, Copy)]
pub enum ServesTransactions {
    /// Callers, over HTTP and by direct invocation.
    Callers,
    /// Operators, over HTTP and by direct invocation, and the schedule.
    Sweep,
    /// Callers and operators, over HTTP.
    Everything,
}

impl ServesTransactions {
    /// Returns what the function with this handler answers.
    fn by_handler(handler: &str) -> Option<Self> {
        Some(match handler {
            "transact" => Self::Callers,
            "sweep" => Self::Sweep,
            // No handler was chosen: `cargo lambda watch`.
            "bootstrap" => Self::Everything,
            _ => return None,
        })
    }
}

/// Serves transactions until Lambda ends the process. The name of the function's handler says which operations.
///
/// # Errors
/// Bad configuration, an unknown handler, or a failure of Lambda's runtime interface.
pub async fn run_transactions() -> Result<(), Error> {
    let start = start(async { Ok((config::handler(ServesTransactions::by_handler)?, service().await?)) });
    let (serves, (service, metrics)) = &start.await?;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Value>| {
        let left = time_left(&event);
        let span = trace::caller(&event);
        let answer = async {
            match serves {
                ServesTransactions::Callers => answer_transactions(service, event.payload).await,
                ServesTransactions::Sweep => answer_sweep(service, event.payload, left).await,
                ServesTransactions::Everything => {
                    answer(service, &[Family::Transact, Family::Sweep], event.payload).await
                }
            }
        };
        let answer = answer.instrument(span).await;
        print(*metrics);
        answer
    }))
    .await
}

async fn service() -> Result<(TransactionService, Option<Emf>), Error> {
    let config = TransactionConfig::from_env()?;
    let metrics = config.metrics.then(|| Emf::start(config.stack.clone())).transpose()?;
    let client = init::dynamodb_client(&config.table_name).await?;
    let protected = config.lock_table_name.into_iter().collect();
    let transactions = Transactions::new(&client, config.table_name, config.policy, Clock::system(), protected);
    Ok((TransactionService::new(transactions).multi_region(config.multi_region), metrics))
}

/// Answers one event of the function that serves transactions.
///
/// # Errors
/// The refusal of a direct invocation, under the name that `Retry` and `Catch` match on.
pub async fn answer_transactions(service: &TransactionService, event: Value) -> Result<Box<RawValue>, Diagnostic> {
    answer(service, &[Family::Transact], event).await
}

/// Answers one event of the function that sweeps. The schedule's event is answered when nothing is due any more, or
/// `time` is up, any duration up to the function's own time-out.
///
/// # Errors
/// The failure, under the name that `Retry` and `Catch` match on.
pub async fn answer_sweep(
    service: &TransactionService,
    event: Value,
    time: Duration,
) -> Result<Box<RawValue>, Diagnostic> {
    if event.get("requestContext").is_some() || event.get("action").is_some() {
        return answer(service, &[Family::Sweep], event).await;
    }
    if service.is_multi_region() {
        return Err(named(no_transactions(SWEEP.operation())));
    }
    let mut total = SweepResponse { more: true, ..SweepResponse::default() };
    // A sweep may stop anywhere: the next one continues.
    match timeout(time, sweep_twice(service, time, &mut total)).await {
        Ok(Err(problem)) => return Err(named(problem)),
        Ok(Ok(())) => {}
        Err(_) => tracing::info!("stopped for lack of time"),
    }
    Ok(document(&total))
}

/// Sweeps, and once more after the idle time if the first sweep saw open transactions and `time` allows it: another
/// process may get the next event.
async fn sweep_twice(service: &TransactionService, time: Duration, total: &mut SweepResponse) -> Result<(), Problem> {
    sweep_all(service, total).await?;
    if total.watched > 0 && service.idle_time() < time {
        pause_for(service.idle_time()).await;
        total.more = true;
        sweep_all(service, total).await?;
    }
    Ok(())
}

async fn sweep_all(service: &TransactionService, total: &mut SweepResponse) -> Result<(), Problem> {
    while total.more {
        let swept = service.sweep(SweepRequest { limit: Some(SLICE), public_id: None }).await?;
        total.examined += swept.examined;
        total.rolled_back += swept.rolled_back;
        total.completed += swept.completed;
        total.stuck += swept.stuck;
        total.watched = swept.watched;
        total.failed += swept.failed;
        total.more = swept.more;
    }
    Ok(())
}

/// Answers an event that came over HTTP or directly, if it asks for an operation of these families.
async fn answer(service: &TransactionService, families: &[Family], event: Value) -> Result<Box<RawValue>, Diagnostic> {
    let routes = TransactionService::ROUTES.iter().filter(|route| families.contains(&route.operation.family));
    let caller = Caller::unrestricted();
    if event.get("requestContext").is_none() {
        return direct::invoke(service, routes, caller, event).await.map_err(named);
    }
    gateway::answer(service, &routes.collect::<Vec<_>>(), caller, event).await
}
