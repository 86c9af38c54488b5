//! `leasehold get`: one lock, or one semaphore.

use std::time::Duration;

use clap::Args;
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::duration;
use crate::lock_args::LockArgs;
use crate::output::{describe, print, print_json};
use crate::sightings::Sightings;
use crate::tables::terminal_width;

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Show one lock: its holder, its version, its data. Of a semaphore, show the holders of permits and the queue.
///
/// The read is strongly consistent.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// Look each second for so long, and tell how long each holder was silent, as far as these looks show; `stale` is
    /// who was silent for its lease.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    observe: Option<Duration>,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: GetArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let mut sightings = Sightings::default();
    let mut first = None;
    let lock = loop {
        let lock = args.common.patiently(client.view(args.lock.lock_key())).await?;
        sightings.see(&lock);
        let observed = first.get_or_insert_with(Instant::now).elapsed();
        let left = args.observe.unwrap_or_default().saturating_sub(observed);
        if left.is_zero() {
            break lock;
        }
        sleep_until(Instant::now() + left.min(LOOK)).await;
    };
    let sightings = args.observe.map(|_| &sightings);
    match (args.common.output.json, sightings) {
        (false, sightings) => print(&describe(&lock, sightings, terminal_width())),
        (true, Some(sightings)) => print_json(&sightings.json(&lock)),
        (true, None) => print_json(&lock),
    }
}
