//! The handlers of the functions, and the loops that feed them events.

mod transactions;

use std::time::Duration;

use lambda_runtime::{Diagnostic, Error, LambdaEvent, service_fn};
use leasehold_api::access::{self, Access};
use leasehold_api::{Expiry, Recorder, Route, Routed, Service, cleanup, direct, document};
use leasehold_dynamodb::Clock;
use leasehold_protocol::LockTable;
use leasehold_protocol::history::HistoryTable;
use leasehold_terraform::Backend;
use leasehold_wire::operation::{CLEANUP, EXPIRE, Family, INVOKE, Operation, RECORD, TERRAFORM};
use leasehold_wire::{Problem, ProblemType};
use serde_json::Value;
use serde_json::value::RawValue;
use tracing::Instrument;

use crate::gateway::{self, named};
use crate::{Config, Emf, StackSecret, TerraformFunction, config, init, trace};

pub use transactions::{ServesTransactions, answer_sweep, answer_transactions, run_transactions};

/// The mistake in the configuration of the function of Terraform's states.
const NO_BUCKET: &str = "LEASEHOLD_TERRAFORM_BUCKET is not set: it must name the bucket of Terraform's states.";

/// The operations and events that a function of the locks answers.
#[derive(Debug, Clone)]
pub enum Serves {
    /// These operations, over HTTP.
    Http(Vec<&'static Route<Service>>),
    /// All operations on locks and semaphores, by direct invocation.
    Direct,
    /// The ends of Step Functions executions.
    Cleanup,
    /// The changes of the lock table, for the history.
    Record,
    /// Terraform's states, over HTTP.
    Terraform,
    /// The schedule by which expired rows are removed.
    Expire,
    /// All operations on locks and semaphores, over HTTP and by direct invocation.
    Everything,
}

impl Serves {
    /// Returns what the function with this handler answers.
    pub fn by_handler(handler: &str) -> Option<Self> {
        Some(match handler {
            // One function in place of those of two families.
            "acquire" => Self::Http(routes(|operation| matches!(operation.family, Family::Hold | Family::Ask))),
            // No handler was chosen: `cargo lambda watch`.
            "bootstrap" => Self::Everything,
            function if function == INVOKE.function => Self::Direct,
            function if function == CLEANUP.function => Self::Cleanup,
            function if function == RECORD.function => Self::Record,
            function if function == TERRAFORM.function => Self::Terraform,
            function if function == EXPIRE.function => Self::Expire,
            function => {
                let routes = routes(|operation| operation.function() == function);
                return (!routes.is_empty()).then_some(Self::Http(routes));
            }
        })
    }
}

/// Returns the routes of these operations on locks and semaphores.
pub fn routes(serves: impl Fn(&Operation) -> bool) -> Vec<&'static Route<Service>> {
    Service::ROUTES.iter().filter(|route| serves(route.operation)).collect()
}

/// Serves locks and semaphores until Lambda ends the process. The name of the function's handler says which operations.
///
/// # Errors
/// Bad configuration, an unknown handler, or a failure of Lambda's runtime interface.
pub async fn run_locks() -> Result<(), Error> {
    let start = start(async {
        let serves = config::handler(Serves::by_handler)?;
        let (function, metrics) = function().await?;
        if matches!(serves, Serves::Terraform) && function.terraform.is_none() {
            return Err(NO_BUCKET.into());
        }
        Ok((serves, (function, metrics)))
    });
    let (serves, (function, metrics)) = &start.await?;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Value>| {
        let span = trace::caller(&event);
        let answer = match serves {
            Serves::Expire => function.answer_expiry(time_left(&event)).instrument(span).await.map(|it| document(&it)),
            _ => function.answer(serves, event.payload).instrument(span).await,
        };
        print(*metrics);
        answer
    }))
    .await
}

/// The part of a function's time that is kept for its answer.
const MARGIN: Duration = Duration::from_secs(1);

/// The time in which a function must have done its work.
fn time_left(event: &LambdaEvent<Value>) -> Duration {
    Duration::from_millis(event.context.deadline.saturating_sub(Clock::system().now_ms())).saturating_sub(MARGIN)
}

/// Starts the log, and then the function's state. A failure is reported to Lambda.
async fn start<T>(making: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    init::log();
    init::or_report(making.await).await
}

async fn function() -> Result<(Function, Option<Emf>), Error> {
    let config = Config::from_env()?;
    let metrics = config.metrics.then(|| Emf::start(config.stack.clone())).transpose()?;
    let client = init::dynamodb_client(&config.schema.table_name).await?;
    let states = config.terraform_bucket.as_deref().map(init::bucket).transpose()?;
    init::check_regions(&client, &config.schema.table_name, config.multi_region).await?;
    let Config {
        schema,
        policy,
        access,
        takeover_clock_check,
        multi_region,
        jwt_claim,
        execution_key,
        history,
        terraform_tokens,
        ..
    } = config;
    let secret = match execution_key {
        Some(key) => StackSecret::by_key(init::kms_client()?, key),
        None => StackSecret::default(),
    };
    let history = history
        .map(|(table, retention)| HistoryTable::new(client.clone(), table, retention))
        .map(|history| Recorder { schema: schema.clone(), history });
    let service = Service::new(LockTable::new(client, schema, policy, Clock::system()));
    let service = service.check_takeovers_by_clock(takeover_clock_check).multi_region(multi_region);
    let service = history.iter().fold(service, |service, recorder| service.with_history(recorder.history.clone()));
    let terraform = states.map(|states| TerraformFunction {
        backend: Backend::new(service.clone(), states).judging_by_clock(),
        bearers: terraform_tokens,
        access: access.clone(),
        jwt_claim: jwt_claim.clone(),
    });
    Ok((Function { service, access, jwt_claim, secret, recorder: history, terraform }, metrics))
}

/// Prints the counts before the answer is sent: Lambda may stop the process as soon as it has the answer.
fn print(metrics: Option<Emf>) {
    if let Some(Err(error)) = metrics.map(|emf| emf.write(std::io::stdout().lock())) {
        tracing::warn!(%error, "metrics are lost");
    }
}

/// The state that a Lambda function keeps between events.
#[derive(Debug, Clone)]
pub struct Function {
    /// The service.
    pub service: Service,
    /// The rules of access.
    pub access: Access,
    /// The claim that names the bearer of a token.
    pub jwt_claim: String,
    /// Makes the lease ids of Step Functions executions.
    pub secret: StackSecret,
    /// Keeps the history of the locks, where there is one.
    pub recorder: Option<Recorder>,
    /// Terraform's states, where there are any.
    pub terraform: Option<TerraformFunction>,
}

impl Function {
    /// A function without rules of access: every caller may do everything.
    pub fn unrestricted(service: Service) -> Self {
        Self {
            service,
            access: Access::default(),
            jwt_claim: String::new(),
            secret: StackSecret::default(),
            recorder: None,
            terraform: None,
        }
    }

    /// Answers one event with the function that `serves` names.
    ///
    /// # Errors
    /// Those of the answers below.
    pub async fn answer(&self, serves: &Serves, event: Value) -> Result<Box<RawValue>, Diagnostic> {
        match serves {
            Serves::Http(routes) => self.answer_http(routes, event).await,
            Serves::Cleanup => self.answer_cleanup(event).await.map(|done| document(&done)),
            Serves::Record => self.answer_stream(event).await.map(|recorded| document(&recorded)),
            Serves::Terraform => self.answer_terraform(event).await,
            Serves::Expire => self.answer_expiry(Duration::ZERO).await.map(|expiry| document(&expiry)),
            Serves::Everything if event.get("requestContext").is_some() => {
                self.answer_http(&routes(|_| true), event).await
            }
            Serves::Direct | Serves::Everything => self.answer_direct(event).await,
        }
    }

    /// Answers one event of API Gateway, a Function URL, a load balancer or VPC Lattice, if it asks for one of these
    /// operations.
    ///
    /// # Errors
    /// The event is from no gateway.
    pub async fn answer_http(
        &self,
        routes: &[&'static Route<Service>],
        event: Value,
    ) -> Result<Box<RawValue>, Diagnostic> {
        let caller = self.access.caller(gateway::principal(&event, &self.jwt_claim));
        gateway::answer(&self.service, routes, caller, event).await
    }

    /// Answers one direct invocation.
    ///
    /// # Errors
    /// The refusal, under the name that `Retry` and `Catch` match on. Its message is the problem document.
    pub async fn answer_direct(&self, mut input: Value) -> Result<Box<RawValue>, Diagnostic> {
        if input.get("execution").is_some() {
            let secret = self.secret.get().await.map_err(named)?;
            input = secret.name_lease(input).map_err(named)?;
        }
        let caller = self.access.caller(access::direct());
        let routes = Service::ROUTES.iter().filter(|route| INVOKE.carries_out(route.operation));
        direct::invoke(&self.service, routes, caller, input).await.map_err(named)
    }

    /// Records a batch of the lock table's stream in the history. Returns the number of entries.
    ///
    /// # Errors
    /// `RecordFailed`: Lambda delivers the batch again, and what was recorded of it is written once more in its place.
    pub async fn answer_stream(&self, event: Value) -> Result<usize, Diagnostic> {
        let failed = |error_message: String| {
            tracing::error!(error = error_message, "a part of the history is not recorded yet");
            Diagnostic { error_type: "RecordFailed".to_owned(), error_message }
        };
        let recorder =
            self.recorder.as_ref().ok_or_else(|| failed("LEASEHOLD_HISTORY_TABLE_NAME is not set.".to_owned()))?;
        let batch =
            serde_json::from_value(event).map_err(|error| failed(format!("This is no batch of a stream: {error}")))?;
        recorder.record_stream(batch).await.map_err(failed)
    }

    /// Answers one event of a gateway about Terraform's states.
    ///
    /// # Errors
    /// The event is from no gateway, or this function has no states.
    pub async fn answer_terraform(&self, event: Value) -> Result<Box<RawValue>, Diagnostic> {
        match &self.terraform {
            Some(terraform) => terraform.answer(event).await,
            None => Err(named(Problem::new(ProblemType::Misconfigured, NO_BUCKET))),
        }
    }

    /// Removes expired rows in this time.
    ///
    /// # Errors
    /// The failure, under the name that `Retry` and `Catch` match on.
    pub async fn answer_expiry(&self, time: Duration) -> Result<Expiry, Diagnostic> {
        self.service.expire(time).await.map_err(named)
    }

    /// Answers the end of one Step Functions execution.
    ///
    /// # Errors
    /// The failure, under the name that `Retry` and `Catch` match on.
    pub async fn answer_cleanup(&self, event: Value) -> Result<cleanup::CleanUp, Diagnostic> {
        let secret = self.secret.get().await.map_err(named)?;
        cleanup::release_all(&self.service, secret, event).await.map_err(named)
    }
}
