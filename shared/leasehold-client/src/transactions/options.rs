//! How hard a transaction is tried.

use std::time::Duration;

use crate::Error;

/// Enough to get past a few others; more would only hide that an item is wanted by too many.
const TRIES: u32 = 10;
/// A call may wait ten seconds for others, so this allows for three such waits.
const DEADLINE: Duration = Duration::from_secs(30);
/// A third of the sixty seconds after which the service takes a transaction for abandoned: two of three may fail.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// How hard a transaction is tried, and how it is kept alive.
#[derive(Debug, Clone)]
pub struct TransactionOptions {
    pub(crate) tries: u32,
    pub(crate) deadline: Duration,
    pub(crate) keep_alive: Option<Duration>,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self { tries: TRIES, deadline: DEADLINE, keep_alive: Some(KEEP_ALIVE) }
    }
}

impl TransactionOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How often the body is run at most, when others get in the way. Default: 10.
    #[must_use]
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries;
        self
    }

    /// After how long it is not run once more. What has begun is brought to its end. Default: 30 s.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    /// How long the body may think before the service is told that the transaction is alive. Default: 20 s, a third of
    /// what the service allows unless it was set up otherwise.
    ///
    /// Another transaction that needs an item waits for one second of silence (unless the service was set up
    /// otherwise). A third of that, 300 ms, defends the items against it for as long as one call of its waits, at the
    /// price of the requests, and of the wait.
    #[must_use]
    pub fn keep_alive(mut self, period: Duration) -> Self {
        self.keep_alive = Some(period);
        self
    }

    /// Sends no signs of life while the body thinks.
    #[must_use]
    pub fn no_keep_alive(mut self) -> Self {
        self.keep_alive = None;
        self
    }

    /// # Errors
    /// No time at all between two signs of life.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.keep_alive {
            Some(Duration::ZERO) => Err(Error::invalid("keep_alive", "a sign of life without pause")),
            _ => Ok(()),
        }
    }
}
