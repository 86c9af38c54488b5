//! `POST /v1/acquire-all`

use leasehold_api::http::Operation;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_http(&[Operation::AcquireAll]).await
}
