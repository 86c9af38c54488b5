//! Finishes what transactions leave behind: on schedule, and for operators, `POST /v1/transactions/sweep`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_sweep().await
}
