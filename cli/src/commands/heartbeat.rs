//! `leasehold heartbeat`: renews a lock of `acquire`.

use std::time::Duration;

use clap::Args;
use leasehold_client::{Client, Handover, Heartbeat, Heartbeats, LockRequest};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::duration::{self, show};
use crate::lock_args::{DataArgs, LeaseIdArgs, LockArgs};
use crate::output::Fields;
use crate::signals::Signals;

/// Renew a lock by its lease id.
#[derive(Debug, Args)]
pub(crate) struct HeartbeatArgs {
    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    lease_id: LeaseIdArgs,

    /// A new lease from now on. Default: the lease stays.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,

    #[command(flatten)]
    data: DataArgs,

    /// Delete the data that is stored with the lock.
    #[arg(long, conflicts_with_all = ["data", "data_file"])]
    delete_data: bool,

    /// Repeat the heartbeat this often, at most half the lease, until the lock is lost or a signal comes. The lock then
    /// stays held for the rest of its lease.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    every: Option<Duration>,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: HeartbeatArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let secret = args.lease_id.secret();
    let renewing = client.heartbeat(args.lock.lock_key(), &secret, args.change()?);
    let renewed = args.common.patiently(renewing).await?;
    args.common.output.result(&renewed, || {
        Fields::new(&format!("{} is renewed", args.lock.lock_key()))
            .with("lease", &show(Duration::from_millis(renewed.lease_duration_ms)))
            .with("token", &renewed.fencing_token.to_string())
            .with("version", &renewed.record_version_number)
            .finish()
    })?;
    match args.every {
        Some(interval) => keep(&client, &args, interval).await,
        None => Ok(()),
    }
}

impl HeartbeatArgs {
    fn change(&self) -> Result<Heartbeat, Failure> {
        let mut change = Heartbeat::new();
        if let Some(lease) = self.lease {
            change = change.lease(lease);
        }
        if let Some(data) = self.data.read()? {
            change = change.data(data);
        }
        Ok(if self.delete_data { change.delete_data() } else { change })
    }
}

async fn keep(client: &Client, args: &HeartbeatArgs, interval: Duration) -> Result<(), Failure> {
    let mut signals = Signals::ending()?;
    let handover = Handover::new(args.lock.lock_key(), args.lease_id.secret());
    let request = LockRequest::new(handover.key.clone()).heartbeats(Heartbeats::Every(interval));
    let guard = client.resume_with(request, handover).await?;
    tokio::select! {
        Some(loss) = guard.lost() => Err(Failure::lost(&loss)),
        received = signals.next_ending() => {
            let (key, left) = (guard.key().to_string(), guard.remaining());
            guard.detach();
            args.common.output.warn(&format!(
                "{}: no more heartbeats; {key} stays held for another {}",
                received.signal,
                duration::show_seconds(left)
            ));
            Ok(())
        }
    }
}
