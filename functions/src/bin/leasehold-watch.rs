//! `GET /v1/watch`

use leasehold_api::http::Operation;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_http(&[Operation::Watch]).await
}
