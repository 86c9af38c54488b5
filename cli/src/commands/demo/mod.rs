//! `leasehold demo`: a story of two hosts, played by real processes and checked at each step.

mod stage;

use std::time::Duration;

use clap::Args;
use leasehold_client::wire::LockState;
use leasehold_client::{Client, HttpTransport};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::Failure;
use crate::duration::show;
use crate::failure::status;
use crate::fenced_store::{FencedStore, Stored};
use crate::output::print;
use crate::signals::Signals;
use stage::{Event, Host, Job, Stage};

/// The lease: short for a quick takeover, and long enough for heartbeats on a busy machine.
const LEASE: Duration = Duration::from_secs(3);
const LOCK: &str = "Moe";
const RECORD: &str = "report";
/// The longest delay between the printing of a line and its arrival here.
const TELLING: Duration = Duration::from_millis(200);
/// The number of heartbeats that host 1 shows before its pause.
const HEARTBEATS: usize = 3;

/// See a lock change hands: two hosts, one of them paused, and a store that refuses its late write.
///
/// Starts a service in memory on a port of its own, and real processes. It takes about a quarter of a minute, checks
/// all that it tells, and leaves nothing behind.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {}

pub(crate) async fn main(_: DemoArgs) -> Result<(), Failure> {
    let mut signals = Signals::ending()?;
    let story = async {
        let mut stage = Stage::set().await?;
        let told = play(&mut stage).await;
        stage.clear().await;
        told
    };
    // A signal drops the story, and all processes that it started.
    tokio::select! {
        told = story => told,
        received = signals.next_ending() => {
            Err(Failure::signalled(received, format!("{}: the demo is over", received.signal)))
        }
    }
}

async fn play(stage: &mut Stage) -> Result<(), Failure> {
    let url = stage.url().to_owned();
    let client = Client::new(HttpTransport::new(&url)?);
    stage.say("demo", &format!("A lock service in memory at {url}, and a store that checks fencing tokens."))?;

    stage.say("demo", &format!("host-1 starts a job under the lock {LOCK}, with a lease of {}.", show(LEASE)))?;
    let job = Job { record: RECORD, value: "by host-1", times: None };
    let first = Host::start(stage, "host-1", LOCK, LEASE, &job)?;
    let first_token = granted(stage, "host-1").await?;
    stage.until("host-1 writes", |event| event.is_line("host-1", "written:")).await?;
    stage.watch(&client, LOCK);
    for _ in 0..HEARTBEATS {
        stage.until("host-1 heartbeats", |event| matches!(event, Event::Version { heartbeat: true, .. })).await?;
    }

    stage.say("demo", "Now host-1 is paused in the middle of its work, as by a closed lid (SIGSTOP).")?;
    first.signal(Signal::SIGSTOP)?;
    let paused = client.get(LOCK).await?;
    stage.pause().await?;
    stage.say("demo", "host-2 wants to do the same job.")?;
    let job = Job { record: RECORD, value: "by host-2", times: Some(5) };
    let waiting_since = Instant::now();
    let _second = Host::start(stage, "host-2", LOCK, LEASE, &job)?;
    stage.until("host-2 waits", |event| event.is_line("host-2", "waiting for Moe, held by host-1")).await?;
    stage
        .say("demo", &format!("It watches the version. Unchanged for {}: then host-1 counts as dead.", show(LEASE)))?;
    let unchanged = client.get(LOCK).await?.record_version_number == paused.record_version_number;
    check(unchanged, "host-1 is paused, and heartbeats")?;
    let second_token = granted(stage, "host-2").await?;
    let waited = waiting_since.elapsed();
    check(waited + TELLING >= LEASE, &format!("host-2 took over after {waited:?}, less than a lease"))?;
    check(second_token > first_token, &format!("host-2's token is {second_token}, not above {first_token}"))?;
    stage.until("host-2 writes", |event| event.is_line("host-2", "written:")).await?;
    stage.pause().await?;

    stage.say("demo", "host-1 wakes up in the middle of its write (SIGCONT). It has the lower token.")?;
    first.wake_job()?;
    stage.until("host-1's late write is refused", |event| event.is_line("host-1", "refused:")).await?;
    first.signal(Signal::SIGCONT)?;
    stage.until("host-1 learns that the lock is lost", |event| event.is_line("host-1", "Moe is lost")).await?;
    ends(stage, "host-1", status::LOST).await?;
    stage.say("demo", &format!("Its job was stopped; `leasehold run` ended with the status {}.", status::LOST))?;

    ends(stage, "host-2", 0).await?;
    let lock = client.get(LOCK).await?;
    check(lock.state == LockState::Released, "host-2 is done, and the lock is held")?;
    let store = FencedStore::open(stage.store()).and_then(|store| store.read(RECORD));
    let stored = store.map_err(|error| Failure::failed(error.to_string()))?;
    let expected = Stored { value: "by host-2".to_owned(), token: second_token };
    check(stored.as_ref() == Some(&expected), &format!("the store has {stored:?}"))?;
    stage.say("demo", "host-2 is done, and the lock is free. The store has what host-2 wrote.")?;
    print("\nAll of this happened, and was checked. To play a part yourself: leasehold serve, and leasehold run --help")
}

/// Waits until a host has the lock, and returns its fencing token.
async fn granted(stage: &mut Stage, host: &str) -> Result<u64, Failure> {
    let event = stage.until(&format!("{host} has the lock"), |event| event.is_line(host, "Moe is yours")).await?;
    let Event::Line { text, .. } = event else { return Err(Failure::failed("a line was expected")) };
    let token = text.rsplit(' ').next().and_then(|token| token.parse().ok());
    token.ok_or_else(|| Failure::failed(format!("{host} has no fencing token: {text}")))
}

/// Waits until a host has ended, and checks its status.
async fn ends(stage: &mut Stage, host: &str, expected: u8) -> Result<(), Failure> {
    let ended = |event: &Event| matches!(event, Event::Ended { who, .. } if who == host);
    let Event::Ended { status, .. } = stage.until(&format!("{host} ends"), ended).await? else {
        return Err(Failure::failed("an end was expected"));
    };
    check(status == Some(expected.into()), &format!("{host} ended with the status {status:?}"))
}

fn check(holds: bool, otherwise: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::failed(format!("it went otherwise than told: {otherwise}"))) }
}
