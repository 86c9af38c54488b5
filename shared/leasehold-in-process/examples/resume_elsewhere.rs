//! Acquires a lock in one process, and works and releases in another. The first one hands over a small JSON document.
//!
//! `cargo run --example resume_elsewhere`

#[path = "local/mod.rs"]
mod local;

use std::error::Error;
use std::time::Duration;

use leasehold_client::wire::LockState;
use leasehold_client::{Client, Handover, Heartbeats, LockRequest};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    run().await
}

/// The example, for its test to run.
///
/// # Errors
/// Fails if the example does not do what it describes.
pub(crate) async fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let service = local::service().await?;

    // The first process leaves the lock behind. The lease goes on: the second process has a minute to resume it.
    let first = Client::new(service.clone());
    let request =
        LockRequest::new("import").lease(Duration::from_mins(1)).heartbeats(Heartbeats::Manual).data("page 7");
    let guard = first.acquire(request).await?.granted()?;
    let token = guard.fencing_token();
    // The document holds the lease id, which proves possession: keep it as secret as a password.
    let document = serde_json::to_string(&guard.detach())?;
    first.close().await?;

    // The second process reads the document from a queue or a state machine.
    let second = Client::new(service);
    let handover: Handover = serde_json::from_str(&document)?;
    let guard = second.resume(handover).await?;
    if guard.fencing_token() != token {
        return Err("it is another acquisition".into());
    }
    let lock = second.get("import").await?;
    println!("resumed {} at {}", guard.key(), lock.data.unwrap_or_default());
    guard.release().await?;
    if second.get("import").await?.state != LockState::Released {
        return Err("the lock is not released".into());
    }
    println!("released");
    Ok(())
}
