//! `leasehold release`: releases a lock.

use clap::Args;
use leasehold_client::wire::{ReleaseOutcome, ReleaseResponse};
use leasehold_client::{Release, Released};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::lock_args::{DataArgs, LeaseIdArgs, LockArgs};
use crate::output::plain;

/// Release a lock by its lease id.
///
/// A repeated release does no harm.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    lease_id: LeaseIdArgs,

    #[command(flatten)]
    data: DataArgs,

    /// Delete the row, and the data with it. Otherwise it stays, and its fencing token goes on from there.
    #[arg(long, conflicts_with_all = ["data", "data_file"])]
    delete: bool,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: ReleaseArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let mut release = Release::new();
    if let Some(data) = args.data.read()? {
        release = release.data(data);
    }
    if args.delete {
        release = release.delete();
    }
    let secret = args.lease_id.secret();
    let releasing = client.release(args.lock.lock_key(), &secret, release);
    let (outcome, words) = match args.common.patiently(releasing).await? {
        Released::Replayed => (ReleaseOutcome::Replayed, "was released before"),
        Released::Absent => (ReleaseOutcome::Absent, "is gone: there is no such row any more"),
        Released::Released | Released::StillHeld => (ReleaseOutcome::Released, "is released"),
    };
    let text = || format!("{} {words}", plain(&args.lock.lock_key().to_string()));
    args.common.output.result(&ReleaseResponse { outcome, wanted: false }, text)
}
