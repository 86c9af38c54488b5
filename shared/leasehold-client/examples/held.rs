//! Measures the memory and the threads of 1,000 held locks, for `scripts/herd/herd.sh`. Linux only.

use std::fs;
use std::time::Duration;

use leasehold_client::{Client, HttpTransport, LockRequest};

const LOCKS: usize = 1000;

/// The numbers of the kernel about this process: the greatest resident memory in kB, and the threads.
fn status(name: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such number")?;
    Ok(line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse()?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(HttpTransport::new(&std::env::var("LEASEHOLD_URL")?)?);
    let request = |number: usize| LockRequest::new(format!("rust-{number}")).lease(Duration::from_mins(2));
    let first = client.acquire(request(LOCKS)).await?.granted()?;
    let before = status("VmHWM")?;
    let mut guards = vec![first];
    for number in 0..LOCKS {
        guards.push(client.acquire(request(number)).await?.granted()?);
    }
    let mut threads = 0;
    // Each has had a heartbeat by then.
    let mut looks = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..350 {
        looks.tick().await;
        threads = threads.max(status("Threads")?);
    }
    assert!(guards.iter().all(leasehold_client::Guard::valid), "all are held");
    let tenths = (status("VmHWM")? - before) * 10 / 1024;
    println!("Rust: 1,000 held locks: {}.{} MB, at most {threads} threads", tenths / 10, tenths % 10);
    client.close().await?;
    Ok(())
}
