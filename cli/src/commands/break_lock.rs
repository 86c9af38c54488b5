//! `leasehold break`: an operator's forced release.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use leasehold_client::Client;
use leasehold_client::wire::{Lock, LockState, ReleaseOutcome, ReleaseResponse};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::lock_args::LockArgs;
use crate::output::{describe, note, plain};

/// Release a lock by force, whoever holds it.
///
/// Its holder learns it at its next heartbeat, and may go on working until then. The lock is broken only if it still
/// has the version that you saw: a lock that changed hands meanwhile, or whose holder gave a sign of life, is left
/// alone.
#[derive(Debug, Args)]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// The version that you saw, as `get` prints it. Without it, the lock is read and shown, and you are asked.
    #[arg(long, value_name = "VERSION")]
    rvn: Option<String>,

    /// Do not ask.
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: BreakArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let rvn = match &args.rvn {
        Some(rvn) => rvn.clone(),
        None => match look(&client, &args).await? {
            Some(rvn) => rvn,
            None => return report(&args, ReleaseOutcome::Replayed),
        },
    };
    let outcome = args.common.patiently(client.break_lock(args.lock.lock_key(), rvn)).await?;
    report(&args, outcome)
}

/// Returns the present version of a lock to break; `None` if the lock is free.
async fn look(client: &Client, args: &BreakArgs) -> Result<Option<String>, Failure> {
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !can_ask {
        return Err(Failure::usage(
            "there is no terminal to ask on: confirm with --yes, or name the version that you saw with --rvn",
        ));
    }
    let lock = args.common.patiently(client.get(args.lock.lock_key())).await?;
    if lock.state == LockState::Released {
        return Ok(None);
    }
    if !args.yes && !confirm(&lock)? {
        return Err(Failure::failed("nothing was broken"));
    }
    Ok(Some(lock.record_version_number))
}

fn confirm(lock: &Lock) -> Result<bool, Failure> {
    note(&describe(lock));
    let mut stderr = io::stderr();
    let _ =
        write!(stderr, "Break the lock that {} holds? [y/N] ", plain(&lock.owner_name)).and_then(|()| stderr.flush());
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::failed(format!("cannot read your answer: {error}; nothing was broken")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn report(args: &BreakArgs, outcome: ReleaseOutcome) -> Result<(), Failure> {
    let key = plain(&args.lock.lock_key().to_string());
    args.common.output.result(&ReleaseResponse { outcome }, || match outcome {
        ReleaseOutcome::Released => format!("{key} is broken: it is free"),
        ReleaseOutcome::Replayed => format!("{key} is free already: nothing was broken"),
        ReleaseOutcome::Absent => format!("{key} is gone: there is no such row any more"),
    })
}
