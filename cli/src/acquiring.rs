//! Acquires a lock, shows the wait to people, and leaves nothing behind after a signal.

use std::time::Duration;

use leasehold_client::{Acquisition, Client, Guard, LockRequest};

use tokio::time::timeout;

use crate::Failure;
use crate::connection::CommonArgs;
use crate::lock_args::RequestArgs;
use crate::observations::ObservationsFile;
use crate::signals::{Received, Signals};
use crate::waiting::Indicator;

/// Acquires the lock that `args` name. `adjust` adds the command's own settings.
///
/// # Errors
/// The lock is held or cannot be acquired, or a signal arrived. Nothing is left behind then.
pub(crate) async fn acquire(
    client: &Client,
    args: &RequestArgs,
    common: &CommonArgs,
    signals: &mut Signals,
    adjust: impl FnOnce(LockRequest) -> LockRequest,
) -> Result<Guard, Failure> {
    let key = args.lock.lock_key();
    let observations = args.observations.as_deref().map(|path| ObservationsFile::load(path, client)).transpose()?;
    let indicator = Indicator::new(&key, common);
    let request = adjust(args.request()?).on_wait(indicator.on_wait());

    let asking = async { if args.no_wait { client.try_acquire(request).await } else { client.acquire(request).await } };
    let result = tokio::select! {
        // A grant that has arrived is taken, and released in the end.
        biased;
        result = indicator.show_during(asking) => match result {
            Ok(Acquisition::Granted(guard)) => Ok(guard),
            Ok(Acquisition::Held(held)) => Err(Failure::held(&key, held.lock)),
            Err(error) => Err(error.into()),
        },
        received = signals.next_ending() => Err(interrupted(received, &key.to_string())),
    };
    if let Some(observations) = observations
        && let Err(failure) = observations.save(client)
    {
        // The lock matters more than the file; but the failure is reported.
        failure.report(common.output.json);
    }
    match result {
        Ok(guard) => Ok(guard),
        Err(failure) => {
            let failure = common.tell(failure);
            clean_up(client, signals, args.give_back_within()).await;
            Err(failure)
        }
    }
}

fn interrupted(received: Received, key: &str) -> Failure {
    Failure::signalled(received, format!("{}: no longer waiting for {key}", received.signal))
}

/// Waits for the release of an abandoned request: until `limit`, or another signal.
async fn clean_up(client: &Client, signals: &mut Signals, limit: Duration) {
    tokio::select! {
        // Nothing is held. A grant that is not released within the limit is free one lease later.
        _ = timeout(limit, client.close()) => {}
        _ = signals.next_impatient() => {}
    }
}
