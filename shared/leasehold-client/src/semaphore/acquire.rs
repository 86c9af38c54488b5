//! Acquires permits: by one request, or in the queue until the wait is over. Rules K4 and K5.

use std::ops::ControlFlow;
use std::time::Duration;

use leasehold_wire::semaphore::{
    AcquirePermitsRequest, AcquirePermitsResponse, EnqueueRequest, ObservedEntry, SemaphoreState,
};
use leasehold_wire::{GetRequest, Lock, Secret, Staleness};

use super::plan::{Plan, Turn, Waiter};
use super::seen::known_epoch;
use super::{DEFAULT_LEASE, HeldPermits, PermitAcquisition, PermitGuard, PermitRequest, Semaphore};
use crate::attempt::Attempt;
use crate::budget::Budget;
use crate::clock::{Instant, chance, millis, sleep};
use crate::flow::refuse_deadlock;
use crate::lease::{Granted, Lease};
use crate::remote::{Advance, Backoff, PermitCall, encode_data};
use crate::request::check_lease;
use crate::subject::Subject;
use crate::timing::{poll_pause, stale_after};
use crate::watching::{Until, Watched, version_of};
use crate::{Acquisition, Error, ErrorKind, telemetry};

/// The lease of a ticket. It is long, because each refresh writes the whole row.
const TICKET_LEASE: Duration = Duration::from_mins(2);
/// The longest first look of a waiter that has no view yet, and so knows no holder that may be dead.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// Two refreshes may fail before the ticket is dead.
const REFRESHES_PER_LEASE: u32 = 3;

impl Semaphore {
    /// Sends one request for permits. The request takes over dead holders that this client saw for their leases, or
    /// that the service judges dead, where the request says so. A refusal that shows permits which the request could
    /// have is followed by a second one.
    ///
    /// # Errors
    /// Any [`ErrorKind`] but `Held`. After an error that leaves the grant unknown, the client releases the permits in
    /// the background.
    pub async fn try_acquire(&self, request: impl Into<PermitRequest>) -> Result<PermitAcquisition, Error> {
        let request = request.into();
        telemetry::waiting("try_acquire", &self.key, self.ask_once(&request)).await
    }

    async fn ask_once(&self, request: &PermitRequest) -> Result<PermitAcquisition, Error> {
        let mut pursuit = Pursuit::new(self, request)?;
        let (mut names, mut is_first) = (pursuit.known_dead(), true);
        loop {
            let error = match pursuit.send(pursuit.ask(names, Turn::Unknown), pursuit.limit(Duration::MAX)).await {
                Ok(Some(guard)) => return Ok(Acquisition::Granted(guard)),
                Ok(None) => return Err(Error::abandoned()),
                Err(error) => error,
            };
            let ErrorKind::Held(lock) = error.kind() else { return Err(error) };
            pursuit.refused_by(lock.clone());
            // An epoch was too old, or a loaded observation shows a dead holder.
            let plan = pursuit.state().map(|state| pursuit.plan(state, Duration::MAX));
            match plan.filter(|_| is_first) {
                Some(Plan::Ask(dead, _)) => (names, is_first) = (dead, false),
                _ => return Ok(Acquisition::Held(HeldPermits { lock: lock.clone() })),
            }
        }
    }

    /// Requests permits until they are granted, or the request's [`Wait`](crate::Wait) is over. A refused caller waits
    /// in the queue. The caller may cancel at any time: the client withdraws the ticket, and releases permits that are
    /// granted afterwards.
    ///
    /// # Errors
    /// Any [`ErrorKind`] but `Held`. A retryable error is returned only after the wait was over.
    pub async fn acquire(&self, request: impl Into<PermitRequest>) -> Result<PermitAcquisition, Error> {
        let request = request.into();
        telemetry::waiting("acquire", &self.key, self.wait_in_the_queue(&request)).await
    }

    async fn wait_in_the_queue(&self, request: &PermitRequest) -> Result<PermitAcquisition, Error> {
        let mut pursuit = Pursuit::new(self, request)?;
        refuse_deadlock(&self.client, Subject::Permits, &self.key, pursuit.permits)?;
        let mut budget = Budget::new(request.wait, self.client.retry_budget());
        let mut backoff = Backoff::default();
        loop {
            // The end of the wait has one last request, if it can succeed.
            let over = budget.is_over();
            let step = match (pursuit.next(budget.left()), over) {
                (Next::Ask(names, turn), _) => pursuit.ask(names, turn),
                (_, true) if let Some(held) = pursuit.held() => return Ok(Acquisition::Held(held)),
                (Next::Enqueue(names), _) => pursuit.enqueue(names),
                (Next::Look(longest), _) => {
                    pursuit.look(longest, &budget).await?;
                    pursuit.report(&mut budget);
                    continue;
                }
                (Next::Poll, _) => {
                    pursuit.poll(budget.left()).await?;
                    pursuit.report(&mut budget);
                    continue;
                }
            };
            let names = names_of(&step);
            let error = match pursuit.send(step, pursuit.limit(budget.left())).await {
                Ok(Some(guard)) => return Ok(Acquisition::Granted(guard)),
                Ok(None) => {
                    backoff = Backoff::default();
                    continue;
                }
                Err(error) => error,
            };
            let pause = match error.kind() {
                ErrorKind::Held(lock) => {
                    backoff = Backoff::default();
                    pursuit.may_be_granted = false;
                    pursuit.refused_by(lock.clone());
                    pursuit.refused = Some(names);
                    pursuit.report(&mut budget);
                    if over {
                        return Ok(Acquisition::Held(HeldPermits { lock: lock.clone() }));
                    }
                    continue;
                }
                ErrorKind::QueueFull(lock) => {
                    if let Some(lock) = lock {
                        pursuit.refused_by(lock.clone());
                        pursuit.report(&mut budget);
                    }
                    pursuit.is_full = true;
                    poll_pause(request.poll_interval, error.retry_after(), chance())
                }
                ErrorKind::Lost(_) => {
                    pursuit.start_again();
                    budget.afford(&error, backoff.pause(&error)).ok_or(error)?
                }
                _ => {
                    pursuit.may_be_granted |= error.tells_of_a_grant();
                    match budget.retry(backoff.pause(&error), error, pursuit.held()) {
                        ControlFlow::Continue(pause) => pause,
                        ControlFlow::Break(end) => return end.map(Acquisition::Held),
                    }
                }
            };
            sleep(pause.min(budget.left())).await;
        }
    }
}

/// The next step of a caller that waits.
enum Next {
    Ask(Vec<ObservedEntry>, Turn),
    Enqueue(Vec<ObservedEntry>),
    /// Watches for at most this time.
    Look(Duration),
    /// Pauses and reads: the last request would be refused again.
    Poll,
}

/// The pursuit of permits.
struct Pursuit<'a> {
    semaphore: &'a Semaphore,
    request: &'a PermitRequest,
    permits: u64,
    lease: Duration,
    attempt: Attempt<PermitCall>,
    /// The last view, since this lease id is in use.
    view: Option<Box<Lock>>,
    ticket: Option<Place>,
    /// Whether an earlier request was granted late. Only a request for the permits returns that grant.
    may_be_granted: bool,
    /// Whether the queue was full when a ticket was requested.
    is_full: bool,
    /// The entries that the last request named, if it was refused.
    refused: Option<Vec<ObservedEntry>>,
    /// The epoch of the last answer before this lease id had a claim: of a view for a fresh lease id, then of refusals.
    epoch: Option<String>,
    /// The time before the last request was sent.
    asked: Instant,
    change: Option<Unchanged>,
}

/// The last change that a view showed.
struct Unchanged {
    change: String,
    /// The time after its first view arrived.
    since: Instant,
    /// The time before the request for its last view: a late answer shows an old row.
    until: Instant,
}

/// A place in the queue.
struct Place {
    ticket_id: String,
    number: u64,
    refresh_at: Instant,
    /// Whether no view came since the ticket was given: a view without the ticket does not mean that its turn has come.
    is_newer_than_view: bool,
}

impl<'a> Pursuit<'a> {
    fn new(semaphore: &'a Semaphore, request: &'a PermitRequest) -> Result<Self, Error> {
        let lease = request.lease.unwrap_or(DEFAULT_LEASE);
        let keys = vec![(Subject::Permits, semaphore.key.clone())];
        let attempt = Attempt::new(&semaphore.client, keys, lease, &request.keeping)?;
        check_lease(lease)?;
        request.keeping.check(lease)?;
        let permits = request.permits.unwrap_or(semaphore.permits);
        Ok(Self {
            semaphore,
            request,
            permits,
            lease,
            attempt,
            view: None,
            ticket: None,
            may_be_granted: false,
            is_full: false,
            refused: None,
            epoch: semaphore.client.memory().semaphores().epoch(&semaphore.key),
            asked: Instant::now(),
            change: None,
        })
    }

    fn limit(&self, left: Duration) -> Duration {
        self.semaphore.client.remote().poll_timeout(self.lease, left)
    }

    /// The view of the semaphore, if there is one.
    fn state(&self) -> Option<&SemaphoreState> {
        self.view.as_ref()?.semaphore.as_deref()
    }

    fn plan(&self, state: &SemaphoreState, left: Duration) -> Plan {
        let waiter = Waiter {
            permits: self.permits,
            ticket_id: self.ticket.as_ref().map(|place| place.ticket_id.as_str()),
            refresh_in: self.ticket.as_ref().map(Place::refresh_in),
            left,
            unchanged: self
                .change
                .as_ref()
                .map_or(Duration::ZERO, |seen| seen.until.saturating_duration_since(seen.since)),
            watched: self.change.as_ref().map_or(Duration::ZERO, |seen| seen.since.elapsed()),
        };
        self.semaphore.client.memory().semaphores().plan(&self.semaphore.key, state, &waiter)
    }

    /// The dead entries of an earlier view, if naming them is all that a grant needs.
    fn known_dead(&self) -> Vec<ObservedEntry> {
        if self.is_by_clock() {
            return Vec::new();
        }
        self.semaphore.client.memory().semaphores().known_dead(&self.semaphore.key, self.permits)
    }

    /// Whether the service judges which holders are dead, for the requests that name none.
    fn is_by_clock(&self) -> bool {
        self.request.staleness == Staleness::Clock
    }

    fn next(&self, left: Duration) -> Next {
        if self.may_be_granted {
            return Next::Ask(Vec::new(), Turn::Unknown);
        }
        let Some(state) = self.state() else { return self.first(left) };
        let Some(place) = self.ticket.as_ref().filter(|place| !place.refresh_in().is_zero()) else {
            let names = if self.is_full {
                self.semaphore.client.memory().semaphores().dead_tickets(&self.semaphore.key, state)
            } else {
                Vec::new()
            };
            return Next::Enqueue(names);
        };
        if place.is_newer_than_view {
            return Next::Look(place.first_look().min(left));
        }
        match self.plan(state, left) {
            Plan::Ask(names, _) | Plan::Enqueue(names) if self.refused.as_ref() == Some(&names) => Next::Poll,
            Plan::Ask(names, turn) => Next::Ask(names, turn),
            Plan::Enqueue(names) => Next::Enqueue(names),
            Plan::Wait(longest) => Next::Look(longest),
        }
    }

    /// The next step without a view of one's own.
    fn first(&self, left: Duration) -> Next {
        if let Some(place) = &self.ticket {
            return Next::Look(place.first_look().min(left));
        }
        let names = self.known_dead();
        let must_queue = self.semaphore.client.memory().semaphores().must_queue(&self.semaphore.key, self.permits);
        if names.is_empty() && must_queue && !self.is_by_clock() {
            Next::Enqueue(names)
        } else {
            Next::Ask(names, Turn::Unknown)
        }
    }

    fn owner_name(&self) -> String {
        self.request.owner_name.clone().unwrap_or_else(|| self.semaphore.client.owner_name().to_owned())
    }

    fn ask(&self, observed: Vec<ObservedEntry>, turn: Turn) -> PermitCall {
        // A waiter vouches for its turn by the view that shows it. If not, the service looks for itself.
        let epoch = match (&self.ticket, turn) {
            (None, _) => self.epoch.clone(),
            (Some(_), Turn::Unknown) => None,
            (Some(_), Turn::Own | Turn::Passing) => self.state().and_then(|state| known_epoch(&state.epoch)),
        };
        let (data, data_base64) = encode_data(self.request.data.as_deref());
        PermitCall::Acquire(AcquirePermitsRequest {
            key: self.semaphore.key.key.clone(),
            sort_key: self.semaphore.key.sort_key.clone(),
            owner_name: self.owner_name(),
            permits: Some(self.permits),
            capacity: self.semaphore.capacity,
            lease_duration_ms: Some(millis(self.lease)),
            staleness: (observed.is_empty() && self.is_by_clock()).then_some(Staleness::Clock),
            observed,
            passes: turn == Turn::Passing && epoch.is_some(),
            epoch,
            number: self.ticket.as_ref().map(|place| place.number),
            data,
            data_base64,
            ..AcquirePermitsRequest::default()
        })
    }

    fn enqueue(&self, observed: Vec<ObservedEntry>) -> PermitCall {
        let (data, data_base64) = encode_data(self.request.data.as_deref());
        PermitCall::Enqueue(EnqueueRequest {
            key: self.semaphore.key.key.clone(),
            sort_key: self.semaphore.key.sort_key.clone(),
            owner_name: self.owner_name(),
            permits: Some(self.permits),
            capacity: self.semaphore.capacity,
            lease_duration_ms: Some(millis(TICKET_LEASE)),
            observed,
            epoch: self.epoch.clone(),
            number: self.ticket.as_ref().map(|place| place.number),
            grant_lease_duration_ms: Some(millis(self.lease)),
            data,
            data_base64,
            ..EnqueueRequest::default()
        })
    }

    /// Sends a request. Returns the guard if permits were granted, and `None` for a place in the queue.
    async fn send(&mut self, step: PermitCall, limit: Duration) -> Result<Option<PermitGuard>, Error> {
        let key = self.semaphore.key.clone();
        self.asked = Instant::now();
        let (numbered, result) = self
            .attempt
            .send(
                |lease_id| step.under(lease_id),
                limit,
                |remote, numbered| async move { remote.advance(&key, &numbered, limit).await },
            )
            .await?;
        let sent = numbered.first_sent;
        let has_names = !names_of(&numbered.request).is_empty();
        match result? {
            Advance::Granted(grant) => self.granted(sent, grant).map(Some),
            Advance::Queued(place) => {
                self.attempt.waits(place.number);
                self.is_full = false;
                self.refused = None;
                // A waiter that was judged dead has another number: it is at the end of the queue.
                let known = self.ticket.take().filter(|known| known.number == place.number);
                let is_newer_than_view = known.is_none_or(|known| known.is_newer_than_view);
                self.ticket = Some(Place {
                    ticket_id: place.ticket_id,
                    number: place.number,
                    refresh_at: sent + TICKET_LEASE / REFRESHES_PER_LEASE,
                    is_newer_than_view,
                });
                if has_names {
                    self.read(limit).await?;
                }
                Ok(None)
            }
        }
    }

    fn granted(&mut self, sent: Instant, grant: AcquirePermitsResponse) -> Result<PermitGuard, Error> {
        let lease = Duration::from_millis(grant.lease_duration_ms);
        if self.attempt.is_too_late() {
            return Err(Error::too_late(lease));
        }
        self.semaphore.client.memory().semaphores().outdate(&self.semaphore.key, &grant.epoch);
        let origin = Semaphore::origin(grant.owner_name, grant.outcome, self.request.data.clone());
        let (lease_id, last_number) = self.attempt.granted();
        let granted = Granted {
            sent,
            lease,
            fencing_token: grant.fencing_token,
            version: grant.version,
            permits: grant.permits,
            last_number,
        };
        let terms = self.semaphore.client.terms(&self.request.keeping);
        let lease = Lease::new(Subject::Permits, self.semaphore.key.clone(), lease_id, Some(origin), granted, terms);
        self.semaphore.kept(lease, self.request, grant.holder_id, grant.capacity)
    }

    /// Begins another acquisition, since the lease id has ended.
    fn start_again(&mut self) {
        self.attempt.start_again();
        (self.view, self.ticket, self.refused) = (None, None, None);
        self.may_be_granted = false;
        self.epoch = self.semaphore.client.memory().semaphores().epoch(&self.semaphore.key);
    }

    /// Records the view of a refusal, which also tells the epoch for the next request.
    fn refused_by(&mut self, row: Box<Lock>) {
        self.epoch = row.semaphore.as_ref().and_then(|state| known_epoch(&state.epoch)).or(self.epoch.take());
        self.saw(row);
    }

    /// Records a view. `None`: the semaphore is gone, and only a request tells its state.
    fn saw(&mut self, row: impl Into<Option<Box<Lock>>>) {
        let row = row.into().filter(|row| row.semaphore.is_some());
        match row.as_ref().and_then(|row| row.semaphore.as_deref()) {
            Some(state) => {
                self.semaphore.client.memory().semaphores().observe(&self.semaphore.key, state, Instant::now());
                if let Some(place) = &mut self.ticket {
                    place.is_newer_than_view = false;
                }
                let now = Instant::now();
                match &mut self.change {
                    Some(seen) if seen.change == state.changed => seen.until = self.asked,
                    change => *change = Some(Unchanged { change: state.changed.clone(), since: now, until: now }),
                }
                self.view = row;
            }
            None => self.start_again(),
        }
    }

    /// Watches for the turn of the ticket, or without a ticket for a change, for at most `longest`. Where watches fail,
    /// a poll takes the watch's place.
    async fn look(&mut self, longest: Duration, budget: &Budget) -> Result<(), Error> {
        let client = &self.semaphore.client;
        let view = self.view.as_deref();
        let ticket = self.ticket.as_ref().map(|place| Until::Turn(&place.ticket_id));
        let until = ticket.or(view.map(|view| Until::Changed(version_of(view))));
        let Some(until) = until.filter(|_| client.watches(self.request.poll_interval)) else {
            return self.poll(longest).await;
        };
        self.asked = Instant::now();
        let tick = || {
            if let Some(view) = view {
                budget.report(self.request.on_wait.as_ref(), view, longest);
            }
        };
        match client.watch(&self.semaphore.key, until, longest, tick).await {
            Watched::Seen(row) => self.saw(row),
            Watched::Ask => self.saw(None),
            Watched::Failed => return self.poll(longest).await,
        }
        Ok(())
    }

    /// Pauses for one poll interval, and reads the semaphore.
    async fn poll(&mut self, longest: Duration) -> Result<(), Error> {
        sleep(poll_pause(self.request.poll_interval, Duration::ZERO, chance()).min(longest)).await;
        self.refused = None;
        self.read(self.limit(longest)).await
    }

    /// Reads the semaphore. A retryable failure is ignored: the next look may succeed.
    async fn read(&mut self, limit: Duration) -> Result<(), Error> {
        let client = &self.semaphore.client;
        client.check_open()?;
        self.asked = Instant::now();
        let request = GetRequest { key: self.semaphore.key.key.clone(), sort_key: self.semaphore.key.sort_key.clone() };
        match client.remote().get_semaphore(&request, limit).await {
            Ok(row) => self.saw(Box::new(row)),
            Err(error) if *error.kind() == ErrorKind::NotFound => self.saw(None),
            Err(error) if error.retryable() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The last view, for a caller that gives up.
    fn held(&self) -> Option<HeldPermits> {
        self.view.clone().map(|lock| HeldPermits { lock })
    }

    /// Records the view for the bound of the wait, and reports it to the caller.
    fn report(&self, budget: &mut Budget) {
        let (Some(view), Some(state)) = (&self.view, self.state()) else { return };
        let leases = state.holders.iter().map(|holder| holder.lease_duration_ms);
        let leases = leases.chain(state.queue.iter().map(|ticket| ticket.lease_duration_ms));
        budget.saw(&state.changed, stale_after(Duration::from_millis(leases.max().unwrap_or_default())));
        let stale_in = match self.plan(state, budget.left()) {
            Plan::Wait(longest) => longest,
            Plan::Ask(..) | Plan::Enqueue(_) => Duration::ZERO,
        };
        budget.report(self.request.on_wait.as_ref(), view, stale_in);
    }
}

impl Place {
    fn refresh_in(&self) -> Duration {
        self.refresh_at.saturating_duration_since(Instant::now())
    }

    /// The longest look before a view shows the ticket.
    fn first_look(&self) -> Duration {
        FIRST_LOOK.min(self.refresh_in())
    }
}

impl PermitCall {
    /// Adds this lease id.
    fn under(self, lease_id: &Secret) -> Self {
        match self {
            Self::Acquire(request) => {
                Self::Acquire(AcquirePermitsRequest { lease_id: Some(lease_id.clone()), ..request })
            }
            Self::Enqueue(request) => Self::Enqueue(EnqueueRequest { lease_id: lease_id.clone(), ..request }),
        }
    }
}

fn names_of(step: &PermitCall) -> Vec<ObservedEntry> {
    match step {
        PermitCall::Acquire(request) => request.observed.clone(),
        PermitCall::Enqueue(request) => request.observed.clone(),
    }
}
