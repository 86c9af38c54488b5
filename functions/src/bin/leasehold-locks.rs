//! The functions of locks and semaphores. They share this binary; each function's `Handler` selects its operations.

use leasehold_api::http::Operation;
use leasehold_lambda::Serves;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), lambda_runtime::Error> {
    leasehold_lambda::run_locks(|handler| {
        Some(match handler {
            // The routes of heartbeat and release may lead to this function too.
            "acquire" => Serves::Http(&[Operation::Acquire, Operation::Heartbeat, Operation::Release]),
            "acquire-all" => Serves::Http(&[Operation::AcquireAll]),
            "heartbeat" => Serves::Http(&[Operation::Heartbeat]),
            "release" => Serves::Http(&[Operation::Release]),
            "break" => Serves::Http(&[Operation::Break]),
            "get" => Serves::Http(&[Operation::Get]),
            "watch" => Serves::Http(&[Operation::Watch]),
            "list" => Serves::Http(&[Operation::List]),
            "health" => Serves::Http(&[Operation::Health]),
            "semaphore" => Serves::Semaphores,
            "invoke" => Serves::Direct,
            "cleanup" => Serves::Cleanup,
            // No handler was chosen: `cargo lambda watch`.
            "bootstrap" => Serves::Everything,
            _ => return None,
        })
    })
    .await
}
