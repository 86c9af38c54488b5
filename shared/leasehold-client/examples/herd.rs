//! Measures many tasks of one client, for `scripts/herd/herd.sh`: `herd`, 50 under one lock; `held`, the memory and the
//! threads of 1,000 held locks, on Linux only.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::fs;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use leasehold_client::{Client, Error, Guard, HttpTransport, LockRequest, Wait};
use tokio::time::{interval, sleep};

const TASKS: usize = 50;
const WORK: Duration = Duration::from_millis(10);
const LOCKS: usize = 1000;

/// The numbers of the kernel about this process: the greatest resident memory in kB, and the threads.
fn status(name: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such number")?;
    Ok(line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse()?)
}

async fn herd(client: &Client) -> Result<(), Error> {
    let began = Instant::now();
    let task = |_| {
        client.with_lock(LockRequest::new("herd").wait(Wait::Forever), async |_| {
            sleep(WORK).await;
            Ok::<_, Error>(())
        })
    };
    try_join_all((0..TASKS).map(task)).await?;
    println!("Rust: {TASKS} tasks, 10 ms each, under one lock: {:.2} s", began.elapsed().as_secs_f64());
    Ok(())
}

async fn held(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    let request = |number: usize| LockRequest::new(format!("rust-{number}")).lease(Duration::from_mins(2));
    let first = client.acquire(request(LOCKS)).await?.granted()?;
    let before = status("VmHWM")?;
    let mut guards = vec![first];
    for number in 0..LOCKS {
        guards.push(client.acquire(request(number)).await?.granted()?);
    }
    let mut threads = 0;
    // Each has had a heartbeat by then.
    let mut looks = interval(Duration::from_millis(100));
    for _ in 0..350 {
        looks.tick().await;
        threads = threads.max(status("Threads")?);
    }
    assert!(guards.iter().all(Guard::valid), "all are held");
    let tenths = (status("VmHWM")? - before) * 10 / 1024;
    println!("Rust: 1,000 held locks: {}.{} MB, at most {threads} threads", tenths / 10, tenths % 10);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::new(HttpTransport::new(&std::env::var("LEASEHOLD_URL")?)?);
    match std::env::args().nth(1).as_deref() {
        Some("herd") => herd(&client).await?,
        Some("held") => held(&client).await?,
        _ => return Err("herd | held".into()),
    }
    client.close().await?;
    Ok(())
}
