//! The function of the semaphores: all their routes, and direct invocations.

use lambda_runtime::Diagnostic;
use leasehold_api::http::Route;
use leasehold_api::{SemaphoreOperation, access, direct};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Function, named};
use crate::gateway;

impl Function {
    /// Answers one event of the function that serves semaphores.
    ///
    /// # Errors
    /// The refusal of a direct invocation, under the name that `Retry` and `Catch` match on.
    pub async fn answer_semaphore(&self, event: Value) -> Result<Box<RawValue>, Diagnostic> {
        let operations = SemaphoreOperation::ALL;
        if event.get("requestContext").is_none() {
            let caller = self.access.caller(access::direct());
            let input = self.execution_secret.name_lease(event).map_err(named)?;
            return direct::invoke(&self.service, operations, &caller, input).await.map_err(named);
        }
        let caller = self.access.caller(gateway::principal(&event, &self.jwt_claim));
        let operation = gateway::operation(&event, operations);
        gateway::answer(&self.service, operation, &caller, event).await
    }
}
