//! The functions of locks and semaphores. They share this binary; each function's `Handler` selects its operations.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_locks().await
}
