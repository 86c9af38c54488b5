//! Semaphores: `POST /v1/semaphore/acquire`, `heartbeat`, `release`, `break`, `enqueue` and `capacity`, `GET /v1/semaphore`; and
//! the same by direct invocation.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_semaphore().await
}
