//! The requests of one acquisition, and the release of what they may leave behind. Rules C1, C6 and C10.

use std::future::Future;
use std::time::Duration;

use leasehold_wire::{ReleaseOutcome, Secret};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::Instrument;

use crate::clock::{deadline, fresh_uuid, sleep};
use crate::remote::{Remote, persist};
use crate::sequence::{Counter, Numbered, Turns};
use crate::subject::Subject;
use crate::timing::SLACK;
use crate::{Client, Error, ErrorKind, LockKey, Release};

/// One acquisition in progress. Dropping the attempt leaves nothing behind.
pub(crate) struct Attempt<R> {
    client: Client,
    subject: Subject,
    keys: Vec<LockKey>,
    lease_id: Secret,
    numbers: Counter,
    turns: Turns<R>,
    /// Whether a request under this lease id was carried out, or may yet be.
    may_hold: bool,
    /// The end of the request in flight.
    under_way: Option<oneshot::Receiver<Ending>>,
}

/// The end of a request, for the clean-up after it.
enum Ending {
    Granted,
    Refused,
    Unanswered,
}

impl Ending {
    fn of<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Granted,
            Err(error) if Self::may_hold(error) => Self::Unanswered,
            Err(_) => Self::Refused,
        }
    }

    /// Whether the row may carry this lease id after such an error, now or later.
    fn may_hold(error: &Error) -> bool {
        error.is_unanswered() || matches!(error.kind(), ErrorKind::Superseded { .. })
    }
}

impl<R> Attempt<R> {
    /// Begins an acquisition.
    ///
    /// # Errors
    /// The client is closed.
    pub(crate) fn new(client: &Client, subject: Subject, keys: Vec<LockKey>) -> Result<Self, Error> {
        client.check_open()?;
        Ok(Self {
            client: client.clone(),
            subject,
            keys,
            lease_id: Secret(fresh_uuid()),
            numbers: Counter::default(),
            turns: Turns::default(),
            may_hold: false,
            under_way: None,
        })
    }

    /// Begins another acquisition, since the lease id has ended.
    pub(crate) fn start_again(&mut self) {
        self.give_up();
        self.lease_id = Secret(fresh_uuid());
        self.numbers = Counter::default();
        self.turns = Turns::default();
    }

    /// Notes that there is a grant to release, until a guard keeps it.
    pub(crate) fn holds(&mut self) {
        self.may_hold = true;
    }

    /// Returns the lease id and its counter, since the grant is now kept by a guard.
    pub(crate) fn granted(&mut self) -> (Secret, Counter) {
        self.may_hold = false;
        (self.lease_id.clone(), std::mem::take(&mut self.numbers))
    }

    /// Releases the lease id, if a request under it was granted or may yet be.
    fn give_up(&mut self) {
        let may_hold = std::mem::take(&mut self.may_hold);
        let under_way = self.under_way.take();
        if !may_hold && under_way.is_none() {
            return;
        }
        let (subject, keys, lease_id) = (self.subject, self.keys.clone(), self.lease_id.clone());
        let retry_budget = self.client.retry_budget();
        let remote = self.client.remote().clone();
        self.client.in_background(async move {
            let ending = match under_way {
                Some(ending) => ending.await.unwrap_or(Ending::Unanswered),
                None => Ending::Refused,
            };
            let give_back = async || give_back(&remote, subject, &keys, &lease_id, retry_budget).await;
            match ending {
                Ending::Refused if !may_hold => {}
                Ending::Granted => {
                    give_back().await;
                }
                Ending::Refused | Ending::Unanswered => {
                    if !give_back().await {
                        // The service found nothing: the release may have overtaken the request.
                        sleep(remote.request_timeout()).await;
                        give_back().await;
                    }
                }
            }
        });
    }
}

impl<R: Clone> Attempt<R> {
    /// Sends one request: the previous one again, if its outcome is unknown, or else this one. Returns the request that
    /// was sent, and its answer. The request runs on the keeper, so that its end is known even if nobody waits for it.
    ///
    /// # Errors
    /// The client is closed.
    pub(crate) async fn send<A: Send + 'static, F: Future<Output = Result<A, Error>> + Send + 'static>(
        &mut self,
        request: impl FnOnce(&Secret) -> R,
        limit: Duration,
        call: impl FnOnce(Remote, Numbered<R>) -> F,
    ) -> Result<(Numbered<R>, Result<A, Error>), Error> {
        self.client.check_open()?;
        let numbered = self.turns.next(&self.numbers, || request(&self.lease_id));
        let call = call(self.client.remote().clone(), numbered.clone());
        let (reply, answer) = oneshot::channel();
        let (ended, ending) = oneshot::channel();
        self.under_way = Some(ending);
        let job = async move {
            let result = call.await;
            let _ = ended.send(Ending::of(&result));
            let _ = reply.send(result);
        };
        self.client.in_background(job.in_current_span());
        // The keeper enforces the limit itself, as long as its runtime runs.
        let result = match timeout(limit.saturating_add(SLACK), answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Error::abandoned()),
        };
        self.under_way = None;
        self.turns.ended(&self.numbers, &result);
        let result = result.inspect_err(|error| self.may_hold |= Ending::may_hold(error));
        Ok((numbered, result))
    }
}

impl<R> Drop for Attempt<R> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Releases a lease id that nobody will use. Returns whether there was something to release.
async fn give_back(
    remote: &Remote,
    subject: Subject,
    keys: &[LockKey],
    lease_id: &Secret,
    retry_budget: Duration,
) -> bool {
    let (release, until) = (Release::new(), deadline(retry_budget));
    let mut released = false;
    for key in keys {
        let result = persist(until, |left| remote.release(subject, key, lease_id, &release, left)).await;
        released |= result.is_ok_and(|answer| answer.outcome != ReleaseOutcome::Absent);
    }
    released
}
