//! Transactions: `POST /v1/transactions/begin`, `add`, `commit` and `rollback`, `GET /v1/transaction`, `POST
//! /v1/items/get` and `list`; and the same by direct invocation.

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_transactions().await
}
