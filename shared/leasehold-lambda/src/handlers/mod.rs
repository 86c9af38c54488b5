//! The handlers of the functions, and the loops that feed them events.

mod transactions;

use lambda_runtime::{Diagnostic, Error, LambdaEvent, service_fn};
use leasehold_api::access::{self, Access};
use leasehold_api::{ExecutionSecret, Route, Routed, Service, cleanup, direct, document};
use leasehold_dynamodb::Clock;
use leasehold_protocol::LockTable;
use leasehold_wire::operation::{CLEANUP, INVOKE, Operation, Subject};
use serde_json::Value;
use serde_json::value::RawValue;
use tracing::Instrument;

use crate::gateway::{self, named};
use crate::{Config, Emf, config, init, trace};

pub use transactions::{ServesTransactions, answer_sweep, answer_transactions, run_transactions};

/// The operations and events that a function of the locks answers.
#[derive(Debug, Clone)]
pub enum Serves {
    /// These operations, over HTTP.
    Http(Vec<&'static Route<Service>>),
    /// All operations on locks, by direct invocation.
    Direct,
    /// All operations on semaphores, over HTTP and by direct invocation.
    Semaphores,
    /// The ends of Step Functions executions.
    Cleanup,
    /// All operations on locks and semaphores, over HTTP and by direct invocation.
    Everything,
}

impl Serves {
    /// Returns what the function with this handler answers.
    pub fn by_handler(handler: &str) -> Option<Self> {
        Some(match handler {
            // The routes of heartbeat and release may lead to this function too.
            "acquire" => {
                Self::Http(routes(|operation| ["acquire", "heartbeat", "release"].contains(&operation.function)))
            }
            "semaphore" => Self::Semaphores,
            // No handler was chosen: `cargo lambda watch`.
            "bootstrap" => Self::Everything,
            function if function == INVOKE.function => Self::Direct,
            function if function == CLEANUP.function => Self::Cleanup,
            function => {
                let routes = routes(|operation| operation.function == function);
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
    let start = start(async { Ok((config::handler(Serves::by_handler)?, function().await?)) });
    let (serves, (function, metrics)) = &start.await?;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Value>| {
        let span = trace::caller(&event);
        let answer = function.answer(serves, event.payload).instrument(span).await;
        print(*metrics);
        answer
    }))
    .await
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
    let Config { schema, policy, access, takeover_clock_check, jwt_claim, execution_secret, .. } = config;
    let service = Service::new(LockTable::new(client, schema, policy, Clock::system()));
    let service = service.check_takeovers_by_clock(takeover_clock_check);
    Ok((Function { service, access, jwt_claim, execution_secret }, metrics))
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
    pub execution_secret: ExecutionSecret,
}

impl Function {
    /// A function without rules of access: every caller may do everything.
    pub fn unrestricted(service: Service) -> Self {
        Self {
            service,
            access: Access::default(),
            jwt_claim: String::new(),
            execution_secret: ExecutionSecret::default(),
        }
    }

    /// Answers one event with the function that `serves` names.
    ///
    /// # Errors
    /// Those of the answers below.
    pub async fn answer(&self, serves: &Serves, event: Value) -> Result<Box<RawValue>, Diagnostic> {
        match serves {
            Serves::Http(routes) => self.answer_http(routes, event).await,
            Serves::Direct => self.answer_direct(event).await,
            Serves::Semaphores => self.answer_semaphore(event).await,
            Serves::Cleanup => self.answer_cleanup(event).await.map(|done| document(&done)),
            Serves::Everything => self.answer_either(&routes(|_| true), event).await,
        }
    }

    /// Answers one event of API Gateway or of a Function URL, if it asks for one of these operations.
    ///
    /// # Errors
    /// The event is not from API Gateway.
    pub async fn answer_http(
        &self,
        routes: &[&'static Route<Service>],
        event: Value,
    ) -> Result<Box<RawValue>, Diagnostic> {
        let caller = self.access.caller(gateway::principal(&event, &self.jwt_claim));
        gateway::answer(&self.service, routes, caller, event).await
    }

    /// Answers one direct invocation on locks.
    ///
    /// # Errors
    /// The refusal, under the name that `Retry` and `Catch` match on. Its message is the problem document.
    pub async fn answer_direct(&self, input: Value) -> Result<Box<RawValue>, Diagnostic> {
        self.invoke(&routes(|operation| INVOKE.carries_out(operation)), input).await
    }

    /// Answers one event of the function that serves semaphores.
    ///
    /// # Errors
    /// The refusal of a direct invocation, under the name that `Retry` and `Catch` match on.
    pub async fn answer_semaphore(&self, event: Value) -> Result<Box<RawValue>, Diagnostic> {
        self.answer_either(&routes(|operation| operation.subject == Subject::Semaphore), event).await
    }

    /// Answers one event, over HTTP or as a direct invocation.
    async fn answer_either(
        &self,
        routes: &[&'static Route<Service>],
        event: Value,
    ) -> Result<Box<RawValue>, Diagnostic> {
        if event.get("requestContext").is_some() {
            self.answer_http(routes, event).await
        } else {
            self.invoke(routes, event).await
        }
    }

    async fn invoke(&self, routes: &[&'static Route<Service>], input: Value) -> Result<Box<RawValue>, Diagnostic> {
        let caller = self.access.caller(access::direct());
        let input = self.execution_secret.name_lease(input).map_err(named)?;
        direct::invoke(&self.service, routes.iter().copied(), caller, input).await.map_err(named)
    }

    /// Answers the end of one Step Functions execution.
    ///
    /// # Errors
    /// The failure, under the name that `Retry` and `Catch` match on.
    pub async fn answer_cleanup(&self, event: Value) -> Result<cleanup::CleanUp, Diagnostic> {
        cleanup::release_all(&self.service, &self.execution_secret, event).await.map_err(named)
    }
}
