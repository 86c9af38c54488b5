//! The bounds of a transaction's retries, and its keep-alive.

use std::time::Duration;

use super::CapacityMeter;
use crate::Error;

/// The default number of tries: enough to get past a few other transactions. More tries would hide a hot item.
const TRIES: u32 = 10;
/// The default deadline. A call waits up to ten seconds for others, so this allows for three such waits.
const DEADLINE: Duration = Duration::from_secs(30);
/// The default period of keep-alives. It is a third of the sixty seconds after which the service rolls a transaction
/// back: two of three may fail.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The bounds of a transaction's retries, and its keep-alive.
#[derive(Debug, Clone)]
pub struct TransactionOptions {
    pub(crate) tries: u32,
    pub(crate) deadline: Duration,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) id: Option<String>,
    pub(crate) capacity: Option<CapacityMeter>,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self { tries: TRIES, deadline: DEADLINE, keep_alive: Some(KEEP_ALIVE), id: None, capacity: None }
    }
}

impl TransactionOptions {
    /// Creates options with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the runs of the body after conflicts. Default: 10.
    #[must_use]
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries;
        self
    }

    /// Ends the retries after this time: any duration. A run that has begun is finished. Default: 30 s.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    /// Names the transaction, a secret UUID such as [`derive_transaction_id`](super::derive_transaction_id) derives
    /// from a business key. Only for one call ([`Client::transact_with`](crate::Client::transact_with)): the same
    /// requests under one id are carried out once, whichever processes make the call, for as long as the service keeps
    /// the outcome.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Adds the capacity that the transaction consumes to this meter. Default: nobody counts.
    #[must_use]
    pub fn capacity(mut self, meter: &CapacityMeter) -> Self {
        self.capacity = Some(meter.clone());
        self
    }

    /// Sets the time for which the body may be idle before a keep-alive is sent: any duration above zero. Default: 20
    /// s, a third of what the service allows unless it was set up otherwise.
    ///
    /// Another transaction that needs an item waits for one second of silence (unless the service was set up
    /// otherwise). With a period of a third of that, 300 ms, the keep-alives defend the items for as long as one call
    /// of the other waits. The price is more requests, and a longer wait for the other.
    #[must_use]
    pub fn keep_alive(mut self, period: Duration) -> Self {
        self.keep_alive = Some(period);
        self
    }

    /// Sends no keep-alives while the body is idle.
    #[must_use]
    pub fn no_keep_alive(mut self) -> Self {
        self.keep_alive = None;
        self
    }

    /// Checks the options of a body.
    ///
    /// # Errors
    /// The period of keep-alives is zero, or there is an id: two bodies under one id would add to one transaction.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.keep_alive {
            _ if self.id.is_some() => Err(Error::invalid("id", "an id of one's own is for a single call")),
            Some(Duration::ZERO) => Err(Error::invalid("keep_alive", "a sign of life without pause")),
            _ => Ok(()),
        }
    }
}
