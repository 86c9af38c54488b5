//! The function of the semaphores: all their routes, and direct invocations.

use lambda_runtime::{Diagnostic, Error, LambdaEvent, service_fn};
use leasehold_api::http::Route;
use leasehold_api::{SemaphoreOperation, access};
use serde_json::Value;

use super::{Answer, Function, answer_event, function, named, principal, print, start};

/// Serves semaphores, over HTTP and directly, until Lambda ends the process.
///
/// # Errors
/// Bad configuration, or a failure of Lambda's runtime interface.
pub async fn run_semaphore() -> Result<(), Error> {
    let (function, metrics) = &start(function()).await?;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Value>| {
        let answer = function.answer_semaphore(event.payload).await;
        print(*metrics);
        answer
    }))
    .await
}

impl Function {
    /// Answers one event of the function that serves semaphores.
    ///
    /// # Errors
    /// Of a direct invocation: the refusal, under the name that `Retry` and `Catch` match on.
    pub async fn answer_semaphore(&self, event: Value) -> Result<Answer, Diagnostic> {
        let (caller, event) = match event.get("requestContext") {
            Some(context) => (principal(&context["authorizer"], &self.jwt_claim), event),
            None => (access::direct(), self.execution_secret.name_lease(event).map_err(named)?),
        };
        answer_event(&self.service, SemaphoreOperation::ALL, &self.access.caller(caller), event).await
    }
}
