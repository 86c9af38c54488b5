//! Holds a lock while it works, stops when the lock is lost, and reports the holder when the lock is not free.
//!
//! `cargo run --example acquire_and_work`

#[path = "local/mod.rs"]
mod local;

use std::error::Error;
use std::time::Duration;

use leasehold_client::{Acquisition, Client, LockRequest, Wait};

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
    let client = Client::new(service.clone());
    let request = LockRequest::new("report").owner_name("host-1").lease(Duration::from_secs(20));
    let guard = client.acquire(request).await?.granted()?;
    println!("host-1 holds {} with token {}", guard.key(), guard.fencing_token());

    // Another process does not get the lock. That is an answer, not an error.
    let other = Client::new(service);
    let request = LockRequest::new("report").owner_name("host-2").wait(Wait::AtMost(Duration::from_millis(100)));
    match other.acquire(request).await? {
        Acquisition::Held(held) => println!("host-2 waits for {}", held.lock.owner_name),
        Acquisition::Granted(_) => return Err("two hold the lock".into()),
    }

    // The work stops when the lock is lost. The resource checks the token: only the resource can refuse a paused
    // process.
    tokio::select! {
        () = write_report(guard.fencing_token()) => println!("the report is written"),
        Some(loss) = guard.lost() => return Err(format!("stopped: {loss}").into()),
    }
    guard.release().await?;

    // Acquires, works and releases in one call.
    let successor = LockRequest::new("report").owner_name("host-2");
    other
        .with_lock(successor, async |guard| {
            println!("host-2 holds {}, after {}", guard.key(), guard.previous_owner_name().unwrap_or("nobody"));
            Ok::<_, leasehold_client::Error>(())
        })
        .await?;
    Ok(())
}

async fn write_report(token: u64) {
    println!("writing with token {token}");
    // A loss stops the work at the next await.
    tokio::task::yield_now().await;
}
