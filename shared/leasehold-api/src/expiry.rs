//! The removal of expired rows, where the table is in several regions and so has no TTL.

use std::time::Duration;

use leasehold_protocol::Expired;
use leasehold_wire::Problem;
use serde::Serialize;
use tokio::time::timeout;

use crate::Service;
use crate::traced::logged_problem;

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Expiry {
    /// The number of rows that were removed.
    pub removed: u64,
    /// The number of expired rows that were left for the next sweep.
    pub left: u64,
    /// Whether the sweep read the whole table in its time. The next one begins elsewhere.
    pub complete: bool,
}

impl Service {
    /// Removes expired rows, until the whole table was read or the time is up.
    ///
    /// # Errors
    /// `throttled`, `unavailable`, `misconfigured`. What was removed stays so.
    pub async fn expire(&self, time: Duration) -> Result<Expiry, Problem> {
        let mut expired = Expired::default();
        let outcome = timeout(time, Box::pin(self.table.expire(&mut expired))).await;
        let Expired { removed, left, is_complete } = expired;
        tracing::info!(removed, left, complete = is_complete, "expired rows are removed");
        match outcome {
            Ok(Err(error)) => Err(logged_problem(&error)),
            Ok(Ok(())) | Err(_) => Ok(Expiry { removed, left, complete: is_complete }),
        }
    }
}
