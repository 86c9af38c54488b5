//! Runs a job once for each occurrence, or once in each period. Rule K6.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_wire::Lock;

use crate::acquire::{Acquisition, Held};
use crate::clock::{millis, since_epoch};
use crate::guard::until_lost;
use crate::{Client, Error, ErrorKind, Guard, LockRequest, Release, Wait, duration};

/// The shortest period.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// The outcome of a job that runs once for each occurrence.
#[derive(Debug, Clone, PartialEq)]
pub enum Once {
    /// This caller ran the occurrence, which is now done. The value is the data that the body returned.
    Ran(Option<Vec<u8>>),
    /// The occurrence was done before. The lock's data is what the completed run left.
    AlreadyDone(Box<Lock>),
    /// Another caller was at it until the wait was over.
    Held(Box<Held>),
}

impl Client {
    /// Runs `body` under the lock, unless this occurrence, or one that sorts after it, is done. The release then
    /// records the occurrence as done, with the data that `body` returns.
    ///
    /// A failed run is not done: another caller may try it again, unless the request sets
    /// [`LockRequest::at_most_once`].
    ///
    /// # Errors
    /// The errors of `body`, unchanged; those of [`Client::with_lock`] but `Held`; those of [`Guard::release`], after
    /// which it is unknown whether the run was recorded as done.
    pub async fn once<E: From<Error>, F: Future<Output = Result<Option<Vec<u8>>, E>>>(
        &self,
        request: impl Into<LockRequest>,
        occurrence: impl Into<String>,
        body: impl FnOnce(Arc<Guard>) -> F,
    ) -> Result<Once, E> {
        let occurrence = occurrence.into();
        let guard = match self.acquire(request.into().occurrence(&occurrence)).await {
            Ok(Acquisition::Granted(guard)) => Arc::new(guard),
            Ok(Acquisition::Held(held)) => return Ok(Once::Held(Box::new(held))),
            Err(error) => {
                return match error.kind() {
                    ErrorKind::AlreadyDone(lock) => {
                        let last = lock.last_occurrence.as_deref().unwrap_or_default();
                        if last != occurrence {
                            tracing::warn!(key = %lock.key, occurrence, last, "a later occurrence is recorded as done");
                        }
                        Ok(Once::AlreadyDone(lock.clone()))
                    }
                    _ => Err(error.into()),
                };
            }
        };
        // A guard that is dropped after an error releases the lock, and records nothing as done.
        let data = until_lost(&guard, Box::pin(body(Arc::clone(&guard)))).await?;
        let release = Release { data: data.clone(), ..Release::new().completed(occurrence) };
        guard.give_back(release).await?;
        Ok(Once::Ran(data))
    }

    /// Runs `body` at most once in each period of a second or more, over all processes that share the key. Periods
    /// begin at multiples since the epoch, in UTC. A caller that comes while another one runs the period does not wait,
    /// unless the request sets [`LockRequest::wait`]. A failed run may be run again in its period. Otherwise as
    /// [`Client::once`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_client::{Client, Error, Once};
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// match client.once_every("report", Duration::from_hours(1), async |guard| report(guard.fencing_token())).await? {
    ///     Once::Ran(_) => println!("made the report of this hour"),
    ///     Once::AlreadyDone(_) => println!("it was made before"),
    ///     Once::Held(held) => println!("{} is at it", held.lock.owner_name),
    /// }
    /// # Ok(())
    /// # }
    /// # fn report(_: u64) -> Result<Option<Vec<u8>>, Error> { Ok(None) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequest`] for a shorter period; those of [`Client::once`].
    pub async fn once_every<E: From<Error>, F: Future<Output = Result<Option<Vec<u8>>, E>>>(
        &self,
        request: impl Into<LockRequest>,
        period: Duration,
        body: impl FnOnce(Arc<Guard>) -> F,
    ) -> Result<Once, E> {
        if period < SHORTEST_PERIOD {
            return Err(Error::invalid("period", "must be a second or more".to_owned()).into());
        }
        let request = request.into();
        let wait = request.wait.unwrap_or(Wait::AtMost(Duration::ZERO));
        self.once(request.wait(wait), period_at(period, since_epoch()), body).await
    }
}

/// Returns the occurrence of a job that runs once in each period: the start of the period at this time, since the
/// epoch. All languages, and the command, write it alike. A period is a millisecond or more.
pub fn period_at(period: Duration, time: Duration) -> String {
    let length = millis(period);
    duration::show_time(Duration::from_millis(millis(time) / length * length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occurrence_is_the_start_of_the_period_in_utc() {
        // 2026-11-21T10:27:12.345Z
        let now = Duration::from_millis(1_795_256_832_345);
        let every = |text: &str, time: Duration| period_at(duration::parse(text).expect("a duration"), time);
        assert_eq!(every("1h", now), "2026-11-21T10:00:00.000Z");
        assert_eq!(every("15m", now), "2026-11-21T10:15:00.000Z");
        assert_eq!(every("1d", now), "2026-11-21T00:00:00.000Z");
        assert_eq!(every("7d", now), "2026-11-19T00:00:00.000Z", "weeks begin on Thursdays, as the epoch did");
        assert_eq!(every("1500ms", now), "2026-11-21T10:27:12.000Z");
        assert_eq!(every("1500ms", now + Duration::from_secs(2)), "2026-11-21T10:27:13.500Z");
    }

    #[test]
    fn occurrences_sort_as_their_periods_do() {
        let hour = Duration::from_hours(1);
        let hours: Vec<_> = (0..10_000).map(|count| period_at(hour, hour * count)).collect();
        assert!(hours.is_sorted_by(|a, b| a < b));
    }
}
