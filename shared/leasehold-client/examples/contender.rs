//! A contender for `scripts/contend.sh`: acquires locks by the Rust client, and records what it believed.

#![allow(clippy::disallowed_methods, reason = "the pauses of a contender are its behaviour")]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use leasehold_client::{Acquisition, Client, Error, Guard, Heartbeat, HttpTransport, LockRequest, Release, Wait};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// The history of this process.
struct History {
    file: File,
    who: String,
}

impl History {
    fn note(&mut self, event: &str, key: &str, at: Option<i64>, members: Value) -> std::io::Result<()> {
        let mut line = json!({ "at": at.unwrap_or_else(now), "who": self.who, "event": event, "key": key });
        if let (Some(line), Value::Object(members)) = (line.as_object_mut(), members) {
            line.extend(members);
        }
        // Each line is one write, so that a kill leaves whole lines.
        self.file.write_all(format!("{line}\n").as_bytes())
    }
}

/// The machine's monotonic clock, in nanoseconds. All processes read the same clock.
fn now() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| time.tv_sec() * 1_000_000_000 + time.tv_nsec())
}

fn between(from: u64, to: u64) -> Duration {
    Duration::from_millis(fastrand::u64(from..to))
}

/// Asks the guard repeatedly. Returns false once the guard reports the loss of the lock.
async fn watch(guard: &Guard, history: &mut History, time: Duration) -> std::io::Result<bool> {
    let end = Instant::now() + time;
    loop {
        let at = now();
        if !guard.valid() {
            return Ok(false);
        }
        history.note("believed", &guard.key().key, Some(at), json!({ "token": guard.fencing_token() }))?;
        if Instant::now() >= end {
            return Ok(true);
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn hold(guard: Guard, history: &mut History) -> Result<(), Box<dyn std::error::Error>> {
    let (key, token) = (guard.key().key.clone(), guard.fencing_token());
    let found = guard.data().map(String::from_utf8_lossy);
    let mut data: u64 = found.map_or(Ok(0), |found| found.parse())?;
    for _ in 0..fastrand::u32(1..12) {
        if !watch(&guard, history, between(20, 300)).await? {
            return Ok(());
        }
        if fastrand::u32(0..10) < 4 {
            data += 1;
            let members = json!({ "token": token, "data": data.to_string() });
            history.note("sending", &key, None, members.clone())?;
            let heartbeat = Heartbeat::new().data(data.to_string());
            let heartbeat = if fastrand::bool() { heartbeat.lease(between(600, 2500)) } else { heartbeat };
            if guard.renew_with(heartbeat).await.is_ok() {
                history.note("acked", &key, None, members)?;
            }
        }
    }
    match fastrand::u32(0..20) {
        // The guard ends without a release.
        0 => drop(guard.detach()),
        1 | 2 => sleep(between(0, 3000)).await,
        _ => {
            let delete = fastrand::u32(0..5) == 0;
            history.note("releasing", &key, None, json!({ "token": token, "delete": delete }))?;
            guard.release_with(if delete { Release::new().delete() } else { Release::new() }).await?;
        }
    }
    Ok(())
}

async fn contend(client: &Client, key: &str, history: &mut History) -> Result<(), Box<dyn std::error::Error>> {
    let asked = now();
    let request = LockRequest::new(key)
        .lease(between(600, 2500))
        .wait(Wait::AtMost(Duration::from_secs(8)))
        .poll_interval(Duration::from_millis(100));
    match client.acquire(request).await? {
        Acquisition::Granted(guard) => {
            let data = guard.data().map(String::from_utf8_lossy);
            let members = json!({ "token": guard.fencing_token(), "asked": asked, "data": data });
            history.note("granted", key, None, members)?;
            hold(guard, history).await
        }
        Acquisition::Held(held) if fastrand::u32(0..20) == 0 => {
            history.note("breaking", key, None, json!({}))?;
            client.break_lock(key, held.lock.record_version_number).await?;
            Ok(())
        }
        Acquisition::Held(_) => Ok(()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::var("CONTEND_HISTORY")?;
    let who = format!("rust:{}", std::process::id());
    let mut history = History { file: OpenOptions::new().append(true).create(true).open(path)?, who: who.clone() };
    let client = Client::builder().owner_name(who).build(HttpTransport::new(&std::env::var("LEASEHOLD_URL")?)?);
    let keys = std::env::var("CONTEND_KEYS")?;
    let keys: Vec<_> = keys.split(',').collect();
    loop {
        let key = keys[fastrand::usize(..keys.len())];
        if let Err(error) = contend(&client, key, &mut history).await {
            // The nemesis causes other errors. A mistake of this program ends it.
            error.downcast::<Error>()?;
            sleep(Duration::from_millis(100)).await;
        }
    }
}
