//! A worker that holds a lock for longer than its lease, and stops when it loses the lock.
#![forbid(unsafe_code)]
#![deny(warnings, missing_docs)]

use std::error::Error;
use std::time::Duration;

use leasehold_client::{Acquisition, Client, HttpTransport, LockRequest, LossReason};
use tokio::time::sleep;

const KEY: &str = "try-rust";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LEASEHOLD_URL")?;
    let client = Client::new(HttpTransport::new(&url)?);
    let request = || LockRequest::new(KEY).lease(Duration::from_secs(1));
    let guard = client.acquire(request()).await?.granted()?;
    let token = guard.fencing_token();
    tokio::select! {
        () = sleep(Duration::from_secs(2)) => {}
        loss = guard.lost() => return Err(format!("stopped: {loss:?}").into()),
    }

    let other = Client::new(HttpTransport::new(&url)?);
    let Acquisition::Held(held) = other.try_acquire(KEY).await? else { return Err("two hold the lock".into()) };
    assert_eq!(held.lock.fencing_token, Some(token));
    // An operator breaks the version that is current: a heartbeat may change it meanwhile.
    let loss = loop {
        let version = other.get(KEY).await?.record_version_number;
        if other.break_lock(KEY, version).await.is_ok() {
            break guard.lost().await.ok_or("the guard was released")?;
        }
    };
    assert_eq!(loss.reason, LossReason::Released);

    let next = client.with_lock(request(), async |guard| Ok::<_, Box<dyn Error>>(guard.fencing_token())).await?;
    assert!(next > token, "{next} after {token}");
    println!("Rust worker: tokens {token} and {next}");
    Ok(())
}
