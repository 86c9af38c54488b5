//! `leasehold capacity`: changes the permits of a semaphore.

use clap::Args;
use leasehold_client::wire::semaphore::{CapacityResponse, permits};
use leasehold_protocol::semaphore::MAX_PERMITS;

use crate::Failure;
use crate::connection::CommonArgs;
use crate::lock_args::LockArgs;
use crate::numbers::whole;
use crate::output::plain;

/// Change how many permits a semaphore has.
///
/// Holders keep what they have: after a cut, nothing is granted until enough permits came back. The capacity is changed
/// only if it is still the one that was seen.
#[derive(Debug, Args)]
pub(crate) struct CapacityArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// How many permits there are to be.
    #[arg(value_name = "PERMITS", value_parser = whole::<u64>(1..=MAX_PERMITS))]
    capacity: u64,

    /// The capacity that you saw, as `get` prints it. Without it, the semaphore is read first.
    #[arg(long, value_name = "PERMITS")]
    expected: Option<u64>,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: CapacityArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let key = args.lock.lock_key();
    let change = async {
        let expected = match args.expected {
            Some(expected) => expected,
            None => client.get_semaphore(key.clone()).await?.semaphore.map_or(0, |semaphore| semaphore.capacity),
        };
        client.set_capacity(key.clone(), args.capacity, expected).await
    };
    let available = args.common.patiently(change).await?;
    let response = CapacityResponse { capacity: args.capacity, available };
    let text = || format!("{} has {}, {available} free", plain(&key.to_string()), permits(args.capacity));
    args.common.output.result(&response, text)
}
