//! The requests of one acquisition, and the release of what they may leave behind: the driver of [`Call`].

use std::future::Future;
use std::time::Duration;

use leasehold_client_core::{Action, Call, Cause, Event, Outcome, Reply, Terms, What};
use leasehold_wire::{AcquireAllResponse, AcquireResponse, ReleaseOutcome, Secret};
use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout};
use tracing::Instrument;

use crate::clock::{Draws, Instant, fresh_uuid, whole_since};
use crate::error::end_of;
use crate::keeping::Keeping;
use crate::remote::{Advance, Numbered, Remote};
use crate::subject::Subject;
use crate::timing::SLACK;
use crate::{Client, Error, LockKey, Release};

/// One acquisition in progress. Dropping the attempt leaves nothing behind.
pub(crate) struct Attempt<R: Clone + Send + 'static> {
    client: Client,
    keys: Vec<(Subject, LockKey)>,
    terms: Terms,
    lease_id: Secret,
    /// The release of the lease id, if nobody uses it.
    release: Release,
    /// The moment from which the rules count.
    zero: Instant,
    call: Call<R>,
    /// The request in flight, and its end.
    under_way: Option<(u64, oneshot::Receiver<Event<R>>)>,
    is_too_late: bool,
}

/// An answer that may grant something.
pub(crate) trait Granting {
    /// The lease of the grant, in milliseconds.
    fn lease_ms(&self) -> Option<u64>;
}

impl Granting for AcquireResponse {
    fn lease_ms(&self) -> Option<u64> {
        Some(self.lease_duration_ms)
    }
}

impl Granting for AcquireAllResponse {
    fn lease_ms(&self) -> Option<u64> {
        Some(self.lease_duration_ms)
    }
}

impl Granting for Advance {
    fn lease_ms(&self) -> Option<u64> {
        match self {
            Self::Granted(grant) => Some(grant.lease_duration_ms),
            Self::Queued(_) => None,
        }
    }
}

fn grant(answer: &impl Granting) -> Reply {
    Reply::Done { lease: answer.lease_ms().map(Duration::from_millis), found: true }
}

impl<R: Clone + Send + 'static> Attempt<R> {
    /// Begins an acquisition.
    ///
    /// # Errors
    /// The client is closed.
    pub(crate) fn new(
        client: &Client,
        keys: Vec<(Subject, LockKey)>,
        lease: Duration,
        keeping: &Keeping,
    ) -> Result<Self, Error> {
        client.check_open()?;
        let terms = Terms {
            lease: Some(lease),
            delay: keeping.lock_delay,
            longest: client.remote().request_timeout(),
            bound: client.retry_budget(),
        };
        Ok(Self {
            client: client.clone(),
            call: Call::under_lease(terms, keys.len()),
            keys,
            terms,
            lease_id: Secret(fresh_uuid()),
            release: Release::new(),
            zero: Instant::now(),
            under_way: None,
            is_too_late: false,
        })
    }

    /// Begins another acquisition, since the lease id has ended.
    pub(crate) fn start_again(&mut self) {
        self.give_up();
        self.lease_id = Secret(fresh_uuid());
    }

    /// Notes that there is a ticket with this number to withdraw.
    pub(crate) fn waits(&mut self, number: u64) {
        self.release.ticket = Some(number);
    }

    /// Whether the last answer granted what its lease had ended before.
    pub(crate) fn is_too_late(&self) -> bool {
        self.is_too_late
    }

    /// Returns the lease id and its last number, since the grant is now kept by a guard.
    pub(crate) fn granted(&mut self) -> (Secret, u64) {
        self.step(Event::Taken);
        (self.lease_id.clone(), self.call.turns().last())
    }

    /// Sends one request: the previous one again, if its outcome is unknown, or else this one. Returns the request that
    /// was sent, and its answer. The request runs on the keeper, so that its end is known even if nobody waits for it.
    ///
    /// # Errors
    /// The client is closed.
    pub(crate) async fn send<A: Granting + Send + 'static, F: Future<Output = Result<A, Error>> + Send + 'static>(
        &mut self,
        request: impl FnOnce(&Secret) -> R,
        limit: Duration,
        call: impl FnOnce(Remote, Numbered<R>) -> F,
    ) -> Result<(Numbered<R>, Result<A, Error>), Error> {
        self.client.check_open()?;
        let request = request(&self.lease_id);
        let Some(Action::Send { send, what: What::Numbered(numbered), timeout: limit }) =
            self.step(Event::Start { request, timeout: limit }).pop()
        else {
            return Err(Error::abandoned());
        };
        let leasehold_client_core::Numbered { request, sequence, id, first_sent } = numbered;
        let numbered = Numbered { request, sequence, id, first_sent: self.zero + first_sent };
        let call = call(self.client.remote().clone(), numbered.clone());
        let (reply, answer) = oneshot::channel();
        let (ended, ending) = oneshot::channel();
        self.under_way = Some((send, ending));
        let job = async move {
            let result = call.await;
            let _ = ended.send(end_of(send, &result, grant));
            let _ = reply.send(result);
        };
        self.client.in_background(job.in_current_span());
        // The keeper enforces the limit itself, as long as its runtime runs.
        let result = match timeout(limit.saturating_add(SLACK), answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Error::abandoned()),
        };
        self.under_way = None;
        let finish = self.step(end_of(send, &result, grant)).pop();
        self.is_too_late = matches!(finish, Some(Action::Finish(Outcome::TooLate { .. })));
        Ok((numbered, result))
    }

    fn step(&mut self, event: Event<R>) -> Vec<Action<R>> {
        let mut memory = self.client.remote().memory();
        self.call.step(&mut memory, event, whole_since(self.zero), &mut Draws).actions
    }

    /// Releases the lease id, if a request under it was granted or may yet be.
    fn give_up(&mut self) {
        let mut actions = self.step(Event::Cancel);
        let mut call = std::mem::replace(&mut self.call, Call::under_lease(self.terms, self.keys.len()));
        let mut under_way = self.under_way.take();
        let release = std::mem::take(&mut self.release);
        if call.has_ended() {
            return;
        }
        let (keys, lease_id, zero) = (self.keys.clone(), self.lease_id.clone(), self.zero);
        let remote = self.client.remote().clone();
        self.client.in_background(async move {
            while !call.has_ended() {
                let event = match (actions.pop(), under_way.take()) {
                    (Some(Action::Send { send, what: What::Release { key }, timeout }), _) => {
                        let (subject, key) = &keys[key];
                        let result = remote.release(*subject, key, &lease_id, &release, None, timeout).await;
                        end_of(send, &result, |answer| Reply::Done {
                            lease: None,
                            found: answer.outcome != ReleaseOutcome::Absent,
                        })
                    }
                    (Some(Action::WakeAt(time)), _) => {
                        sleep_until(zero + time).await;
                        Event::Tick
                    }
                    (_, Some((send, ending))) => {
                        ending.await.unwrap_or(Event::Unanswered { send, cause: Cause::TimedOut })
                    }
                    (_, None) => return,
                };
                actions = call.step(&mut remote.memory(), event, whole_since(zero), &mut Draws).actions;
            }
        });
    }
}

impl<R: Clone + Send + 'static> Drop for Attempt<R> {
    fn drop(&mut self) {
        self.give_up();
    }
}
