//! The example of the README: an export that one host makes at a time.

use leasehold_client::{Client, HttpTransport};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("LEASEHOLD_URL").unwrap_or_else(|_| "http://127.0.0.1:8080".into());
    let client = Client::new(HttpTransport::new(&url)?);
    let guard = client.acquire("nightly-export").await?.granted()?; // waits, and heartbeats from now on
    tokio::select! {
        () = async { println!("exporting under the token {}", guard.fencing_token()) } => {}
        Some(loss) = guard.lost() => return Err(loss.to_string().into()), // stop: another host may be at it
    }
    guard.release().await?;
    Ok(())
}
