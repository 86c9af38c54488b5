//! Gives back what a Step Functions execution held when it ended without giving it back.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_cleanup().await
}
