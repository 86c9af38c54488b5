//! The functions of transactions. They share this binary; each function's `Handler` selects its operations.

use leasehold_lambda::ServesTransactions;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_transactions(|handler| {
        Some(match handler {
            "transact" => ServesTransactions::Callers,
            "sweep" => ServesTransactions::Sweep,
            // No handler was chosen: `cargo lambda watch`.
            "bootstrap" => ServesTransactions::Everything,
            _ => return None,
        })
    })
    .await
}
