//! Direct invocations: from Step Functions, from `aws lambda invoke`.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_direct().await
}
