//! Waits by watches: a read that waits, in place of requests that are refused. Rule K1.

use std::pin::pin;
use std::time::Duration;

use leasehold_wire::{GetRequest, Lock, LockState, Staleness, WatchRequest};

use crate::budget::Budget;
use crate::clock::{Instant, millis, sleep};
use crate::line::Turn;
use crate::patience::Patience;
use crate::{Client, ErrorKind, Held, LockKey, LockRequest};

/// The longest wait that the service allows.
pub(crate) const LONGEST_WATCH: Duration = Duration::from_secs(20);
/// The interval at which a waiting caller is told of its progress, and one in line looks at the holder.
pub(crate) const PROGRESS: Duration = Duration::from_secs(1);

/// The event that a watch waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until<'a> {
    /// The row is no longer at this version.
    Changed(&'a str),
    /// It is the turn of this ticket.
    Turn(&'a str),
}

/// The end of a watch.
pub(crate) enum Watched {
    /// The row as it is: it changed, or the time is over.
    Seen(Box<Lock>),
    /// The row is gone, or the client was closed: the next request tells which.
    Ask,
    /// The watch failed, or was answered early with nothing new: a poll takes its place.
    Failed,
}

impl Client {
    /// Whether waits use watches: unless the caller chose a poll interval, or the service has no watches.
    pub(crate) fn watches(&self, poll_interval: Option<Duration>) -> bool {
        poll_interval.is_none() && self.memory().can_watch()
    }

    /// Watches a row for at most `wait`. Calls `tick` about once a second.
    pub(crate) async fn watch(
        &self,
        key: &LockKey,
        until: Until<'_>,
        wait: Duration,
        mut tick: impl FnMut(),
    ) -> Watched {
        let (version, ticket_id) = match until {
            Until::Changed(version) => (Some(version), None),
            Until::Turn(ticket_id) => (None, Some(ticket_id)),
        };
        let request = WatchRequest {
            key: key.key.clone(),
            sort_key: key.sort_key.clone(),
            version: version.map(str::to_owned),
            ticket_id: ticket_id.map(str::to_owned),
            wait_ms: Some(millis(wait + Duration::from_micros(999))),
        };
        let sent = Instant::now();
        let mut closing = pin!(self.closing().notified());
        closing.as_mut().enable();
        if self.check_open().is_err() {
            return Watched::Ask;
        }
        let mut answer = pin!(self.remote().watch(&request, wait));
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer,
                () = &mut closing => return Watched::Ask,
                () = sleep(PROGRESS) => tick(),
            }
        };
        match answer {
            Ok(row) if Some(version_of(&row)) == version && sent.elapsed() < wait => Watched::Failed,
            Ok(row) => Watched::Seen(Box::new(row)),
            Err(error) if *error.kind() == ErrorKind::NotFound => Watched::Ask,
            Err(error) => {
                if !error.retryable() {
                    self.memory().cannot_watch();
                }
                Watched::Failed
            }
        }
    }

    /// Returns when another request for the held lock may succeed: the lock is free, gone or stale, or the wait is
    /// over. A pause of `poll` and a read take the place of a watch that failed.
    pub(crate) async fn await_change(
        &self,
        request: &LockRequest,
        held: &mut Held,
        poll: Duration,
        budget: &mut Budget,
        patience: &mut Patience<'_>,
        turn: Option<&Turn>,
    ) {
        loop {
            patience.saw(&held.lock);
            let longest = match request.staleness {
                Staleness::Rvn => held.observation.stale_in(),
                // The service judges, and must be asked.
                Staleness::Clock => poll,
            };
            let wait = longest.min(budget.left()).min(patience.left(&held.lock)).min(LONGEST_WATCH);
            if wait.is_zero() {
                return;
            }
            let tick = || budget.report(request.on_wait.as_ref(), &held.lock, held.observation.stale_in());
            let version = held.observation.record_version_number();
            let lock = match self.watch(&request.key, Until::Changed(version), wait, tick).await {
                Watched::Seen(lock) => lock,
                Watched::Ask => return,
                Watched::Failed => {
                    sleep(poll.min(wait)).await;
                    let Some(lock) = self.look_instead(&request.key, budget.left()).await else { return };
                    lock
                }
            };
            if lock.state == LockState::Released {
                return;
            }
            if let Some(turn) = turn {
                turn.show(&lock);
            }
            let observation = self.memory().saw(&request.key, &lock);
            budget.saw(observation.record_version_number(), observation.stale_after());
            if observation.record_version_number() != held.observation.record_version_number() {
                budget.report(request.on_wait.as_ref(), &lock, observation.stale_in());
            }
            *held = Held { lock, observation };
            if request.staleness == Staleness::Clock {
                return;
            }
        }
    }

    /// Reads the lock in place of a watch that failed. `None` where the service has no watches, or the read failed too.
    async fn look_instead(&self, key: &LockKey, left: Duration) -> Option<Box<Lock>> {
        if !self.watches(None) {
            return None;
        }
        let LockKey { key, sort_key } = key.clone();
        self.remote().get(&GetRequest { key, sort_key }, left).await.ok().map(Box::new)
    }
}

/// The version that a watch of this row names.
pub(crate) fn version_of(row: &Lock) -> &str {
    row.semaphore.as_ref().map_or(&row.record_version_number, |semaphore| &semaphore.changed)
}
