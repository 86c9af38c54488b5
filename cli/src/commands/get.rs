//! `leasehold get`: one lock.

use clap::Args;

use crate::Failure;
use crate::connection::CommonArgs;
use crate::lock_args::LockArgs;
use crate::output::describe;

/// Show one lock: who has it, its version, its data.
///
/// The read is strongly consistent.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: GetArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let lock = args.common.patiently(client.get(args.lock.lock_key())).await?;
    args.common.output.result(&lock, || describe(&lock))
}
