//! `leasehold occurrence`: sets the last occurrence of a recurring job.

use clap::Args;

use crate::Failure;
use crate::connection::CommonArgs;
use crate::lock_args::LockArgs;
use crate::output::plain;

/// Set which occurrence of a job counts as the last one that is done.
///
/// Occurrences that sort after it may run; it and those before may not. Use it where a run completed an occurrence far
/// in the future, by mistake, so that nothing is due any more. The lock must be free, and is changed only if it still
/// has the version that you saw.
#[derive(Debug, Args)]
pub(crate) struct OccurrenceArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// The occurrence that counts as the last one that is done, such as 2026-11-21T02.
    #[arg(long, value_name = "OCCURRENCE")]
    set: String,

    /// The version that you saw, as `get` prints it. Without it, the lock is read first.
    #[arg(long, value_name = "VERSION")]
    rvn: Option<String>,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: OccurrenceArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let key = args.lock.lock_key();
    let change = async {
        let rvn = match args.rvn {
            Some(rvn) => rvn,
            None => client.get(key.clone()).await?.record_version_number,
        };
        client.set_occurrence(key.clone(), args.set, rvn).await
    };
    let response = args.common.patiently(change).await?;
    let text = || format!("{} is done up to {}", plain(&key.to_string()), plain(&response.last_occurrence));
    args.common.output.result(&response, text)
}
