//! `POST /v1/acquire`; and `POST /v1/heartbeat` and `POST /v1/release`, where the routes lead here.

use leasehold_api::http::Operation;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_http(&[Operation::Acquire, Operation::Heartbeat, Operation::Release]).await
}
