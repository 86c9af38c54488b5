//! `leasehold break`: an operator's forced release.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use leasehold_client::Client;
use leasehold_client::wire::{Lock, LockState, ReleaseOutcome, ReleaseResponse};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::failure::status;
use crate::lock_args::LockArgs;
use crate::output::{describe, note, plain};
use crate::sightings::{Life, lives};

/// Release a lock, or a holder's permits, by force.
///
/// Its holder learns it at its next heartbeat, and may go on working until then. The command of a `leasehold run` has
/// its grace period after that: end it first where two at once do harm. The lock is broken only if it still
/// has the version that you saw: a lock that changed hands meanwhile, or whose holder gave a sign of life, is left
/// alone.
#[derive(Debug, Args)]
pub(crate) struct BreakArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// Remove this holder of permits, or this ticket of the queue, from a semaphore: its id as `get` prints it, or the
    /// beginning of the id.
    #[arg(long, value_name = "ID")]
    holder: Option<String>,

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
    if let Some(holder) = &args.holder {
        return break_entry(&client, &args, holder).await;
    }
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
    check_can_ask(args)?;
    let lock = args.common.patiently(client.get(args.lock.lock_key())).await?;
    if lock.state == LockState::Released {
        return Ok(None);
    }
    confirm(args, &lock, &format!("the lock that {} holds", plain(&lock.owner_name)))?;
    Ok(Some(lock.record_version_number))
}

/// # Errors
/// The operator did not confirm, and cannot be asked.
fn check_can_ask(args: &BreakArgs) -> Result<(), Failure> {
    if args.yes || (io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    Err(Failure::usage(
        "there is no terminal to ask on: confirm with --yes, or name the version that you saw with --rvn",
    ))
}

/// Asks the operator, unless the command line confirms.
fn confirm(args: &BreakArgs, lock: &Lock, what: &str) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    note(&describe(lock, None, None));
    let mut stderr = io::stderr();
    let _ = write!(stderr, "Break {what}? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::failed(format!("cannot read your answer: {error}; nothing was broken")))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::failed("nothing was broken")),
    }
}

/// Removes a holder, or a ticket, of a semaphore.
async fn break_entry(client: &Client, args: &BreakArgs, holder: &str) -> Result<(), Failure> {
    let key = args.lock.lock_key();
    let (id, version) = if let Some(version) = &args.rvn {
        (holder.to_owned(), version.clone())
    } else {
        check_can_ask(args)?;
        let view = args.common.patiently(client.get_semaphore(key.clone())).await?;
        let entry = find(&view, holder, &key.to_string())?;
        confirm(args, &view, &format!("{}, of {}", entry.id, plain(entry.owner)))?;
        (entry.id.to_owned(), entry.version.to_owned())
    };
    let outcome = args.common.patiently(client.break_entry(key.clone(), id.clone(), version)).await?;
    let entry = format!("{} of {}", plain(&id), plain(&key.to_string()));
    args.common.output.result(&ReleaseResponse { outcome, wanted: false }, || match outcome {
        ReleaseOutcome::Released if id.starts_with("t-") => format!("{entry} is broken: it waits no more"),
        ReleaseOutcome::Released => format!("{entry} is broken: its permits are free"),
        ReleaseOutcome::Replayed | ReleaseOutcome::Absent => format!("{entry} is gone already: nothing was broken"),
    })
}

/// Finds the one holder or ticket whose id begins so.
fn find<'a>(view: &'a Lock, beginning: &str, key: &str) -> Result<Life<'a>, Failure> {
    let mut found = if view.semaphore.is_some() { lives(view) } else { Vec::new() };
    found.retain(|entry| entry.id.starts_with(beginning));
    let (key, beginning) = (plain(key), plain(beginning));
    match (found.pop(), found.is_empty()) {
        (Some(entry), true) => Ok(entry),
        (Some(_), false) => {
            Err(Failure::usage(format!("{key} has several holders or tickets {beginning}…: say more of the id")))
        }
        (None, _) => {
            let message = format!("{key} has no holder and no ticket {beginning}: nothing was broken");
            Err(Failure::new(status::NOT_FOUND, "not-found", message))
        }
    }
}

fn report(args: &BreakArgs, outcome: ReleaseOutcome) -> Result<(), Failure> {
    let key = plain(&args.lock.lock_key().to_string());
    args.common.output.result(&ReleaseResponse { outcome, wanted: false }, || match outcome {
        ReleaseOutcome::Released => format!("{key} is broken: it is free"),
        ReleaseOutcome::Replayed => format!("{key} is free already: nothing was broken"),
        ReleaseOutcome::Absent => format!("{key} is gone: there is no such row any more"),
    })
}
