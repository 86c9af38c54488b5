//! `leasehold fenced-write`: a job that writes under its lock's fencing token, for `demo`, tests and trials.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::time::{MissedTickBehavior, interval};

use crate::Failure;
use crate::duration;
use crate::failure::status;
use crate::fenced_store::{FencedStore, Outcome};
use crate::output::print;

/// Write to a store that refuses late writers by their fencing token.
#[derive(Debug, Args)]
pub(crate) struct FencedWriteArgs {
    /// The store's file.
    #[arg(long, value_name = "FILE")]
    store: PathBuf,

    /// The fencing token, as `run` gives it.
    #[arg(long, value_name = "NUMBER", env = "LEASEHOLD_FENCING_TOKEN")]
    fencing_token: u64,

    /// Write again and again, this often, even if refused: a job that does not listen.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    every: Option<Duration>,

    /// How often at most.
    #[arg(long, value_name = "NUMBER", requires = "every")]
    times: Option<u64>,

    /// The key to write to.
    key: String,

    /// The value to write.
    value: String,
}

pub(crate) async fn main(args: FencedWriteArgs) -> Result<(), Failure> {
    let store = FencedStore::open(&args.store).map_err(|error| Failure::failed(error.to_string()))?;
    let Some(every) = args.every else { return write(&store, &args)?.map_or(Ok(()), Err) };
    let mut ticks = interval(every);
    // After a pause, the interval continues without catching up.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left = args.times;
    while left != Some(0) {
        ticks.tick().await;
        if let Some(refused) = write(&store, &args)? {
            print(&refused.to_string())?;
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// Writes once. Returns the failure that reports a refusal.
fn write(store: &FencedStore, args: &FencedWriteArgs) -> Result<Option<Failure>, Failure> {
    let what = format!("{} = {:?} under token {}", args.key, args.value, args.fencing_token);
    match store.write(&args.key, &args.value, args.fencing_token) {
        Ok(Outcome::Written) => print(&format!("written: {what}")).map(|()| None),
        Ok(Outcome::Refused { highest }) => {
            let message = format!("refused: {what}, for the store has seen {highest}");
            Ok(Some(Failure::new(status::LOST, "refused", message)))
        }
        Err(error) => Err(Failure::failed(error.to_string())),
    }
}
