//! Acquires a lock or permits, shows the wait to people, and leaves nothing behind after a signal.

use std::path::Path;
use std::time::Duration;

use leasehold_client::{Acquisition, Client, Guard, LockRequest};

use tokio::time::timeout;

use crate::Failure;
use crate::observations::ObservationsFile;
use crate::signals::{Received, Signals};
use crate::waiting::Indicator;

/// Awaits `asking`, with a display of the wait. After a failure, unanswered requests may be released for
/// `give_back_within`.
///
/// # Errors
/// The failure of `asking`, or a signal that arrived. Nothing is left behind then.
pub(crate) async fn acquire<T>(
    client: &Client,
    indicator: &Indicator<'_>,
    give_back_within: Duration,
    observations: Option<&Path>,
    signals: &mut Signals,
    asking: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let common = indicator.common();
    let observations = observations.map(|path| ObservationsFile::load(path, client)).transpose()?;
    let result = tokio::select! {
        // A grant that has arrived is taken, and released in the end.
        biased;
        result = indicator.show_during(asking) => result,
        received = signals.next_ending() => Err(interrupted(received, indicator.name())),
    };
    if let Some(observations) = observations
        && let Err(failure) = observations.save(client)
    {
        // The lock matters more than the file; but the failure is reported.
        failure.report(common.output.json);
    }
    match result {
        Ok(granted) => Ok(granted),
        Err(failure) => {
            let failure = common.tell(failure);
            clean_up(client, signals, give_back_within).await;
            Err(failure)
        }
    }
}

/// Asks for a lock.
///
/// # Errors
/// The lock is held, or cannot be acquired.
pub(crate) async fn lock(client: &Client, request: LockRequest, no_wait: bool) -> Result<Guard, Failure> {
    let acquired = if no_wait { client.try_acquire(request).await? } else { client.acquire(request).await? };
    match acquired {
        Acquisition::Granted(guard) => Ok(guard),
        Acquisition::Held(held) => Err(Failure::held(&held.lock)),
    }
}

fn interrupted(received: Received, key: &str) -> Failure {
    Failure::signalled(received, format!("{}: no longer waiting for {key}", received.signal))
}

/// Waits for the release of an abandoned request: until `limit`, or another signal.
async fn clean_up(client: &Client, signals: &mut Signals, limit: Duration) {
    tokio::select! {
        // Nothing is held. A grant that is not released within the limit is free one lease later.
        _ = timeout(limit, async { let _ = client.close().await; client.settled().await }) => {}
        _ = signals.next_impatient() => {}
    }
}
