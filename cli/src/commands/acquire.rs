//! `leasehold acquire`: acquires a lock and leaves it held.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use leasehold_client::wire::{AcquireOutcome, AcquireResponse};
use leasehold_client::{Guard, Heartbeats};

use crate::connection::CommonArgs;
use crate::duration::show;
use crate::lock_args::{LeaseArgs, LockArgs, RequestArgs};
use crate::output::{Fields, payload, plain};
use crate::signals::Signals;
use crate::waiting::Indicator;
use crate::{Failure, acquiring};

/// Acquire a lock and leave it held: `heartbeat` renews it, and `release` frees it.
///
/// Prints the lease id, the proof of possession: each process that knows it can renew and release the lock. This
/// command sends no heartbeat, so others may take the lock over one lease later. Use `run` to hold a lock for as long
/// as a command takes.
#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: AcquireArgs) -> Result<(), Failure> {
    let mut signals = Signals::ending()?;
    let client = args.common.client().await?;
    let key = args.lock.lock_key();
    let indicator = Indicator::new(&key.to_string(), &args.common);
    let request = args.request.request(key, args.lease.lease)?.heartbeats(Heartbeats::Manual);
    let asking = acquiring::lock(&client, request.on_wait(indicator.on_wait()), args.request.no_wait);
    let (limit, observations) = (args.request.give_back_within(), args.request.observations.as_deref());
    let guard = acquiring::acquire(&client, &indicator, limit, observations, &mut signals, asking).await?;

    let grant = grant(&guard, &args);
    if args.common.output.result(&grant, || describe(&grant, &guard)).is_err() {
        // The lease id was not printed, so nobody could release the lock.
        guard.release().await?;
        return Err(Failure::failed("the lease id could not be printed, so the lock was released again"));
    }
    guard.detach();
    Ok(())
}

/// The answer of the service, unchanged.
fn grant(guard: &Guard, args: &AcquireArgs) -> AcquireResponse {
    let key = args.lock.lock_key();
    let (data, data_base64) = match guard.data().map(|data| std::str::from_utf8(data).map_err(|_| data)) {
        Some(Ok(text)) => (Some(text.to_owned()), None),
        Some(Err(bytes)) => (None, Some(BASE64_STANDARD.encode(bytes))),
        None => (None, None),
    };
    AcquireResponse {
        key: key.key,
        sort_key: key.sort_key,
        owner_name: guard.owner_name().unwrap_or_default().to_owned(),
        lease_id: guard.lease_id().clone(),
        record_version_number: guard.record_version_number(),
        lease_duration_ms: u64::try_from(args.lease.lease.as_millis()).unwrap_or(u64::MAX),
        fencing_token: guard.fencing_token(),
        outcome: guard.outcome().unwrap_or(AcquireOutcome::Created),
        data,
        data_base64,
        previous_owner_name: guard.previous_owner_name().map(str::to_owned),
    }
}

fn describe(grant: &AcquireResponse, guard: &Guard) -> String {
    let data = guard.data().map(payload);
    Fields::new(&format!("{} is yours: {}", guard.key(), how(guard)))
        .with("owner", &grant.owner_name)
        .with("lease id", &grant.lease_id.0)
        .with("lease", &show(std::time::Duration::from_millis(grant.lease_duration_ms)))
        .with("token", &grant.fencing_token.to_string())
        .with("version", &grant.record_version_number)
        .with_some("data", data.as_deref())
        .finish()
}

/// Describes the outcome of an acquisition in words.
pub(crate) fn how(guard: &Guard) -> String {
    let before = guard.previous_owner_name().map(plain);
    match (guard.outcome(), before) {
        (Some(AcquireOutcome::TakenOver), Some(before)) => format!("taken over from {before}, whose lease ran out"),
        (Some(AcquireOutcome::TakenOver), None) => "taken over from a holder whose lease ran out".to_owned(),
        (Some(AcquireOutcome::Reacquired), Some(before)) => format!("it was free, and {before}'s before"),
        (Some(AcquireOutcome::Renewed), _) => "granted by an earlier try of this request".to_owned(),
        _ => "it was free".to_owned(),
    }
}
