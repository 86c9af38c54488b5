//! One caller of the service, and all the locks that it holds.
//!
//! This file alone sees what a client consists of: `Remote` sends its requests, `Memory` knows what it has seen,
//! `HeldLocks` what it holds, `Lines` who waits for its turn, and `Keeper` runs its work in the background. The methods
//! of a feature stand beside the feature, and reach these values by name: `acquire.rs`, `election.rs`, `once.rs`,
//! `together.rs`, `watching.rs`, `semaphore`, `transactions`. A value between a feature and the client would only pass
//! the calls on.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use http::HeaderMap;
use leasehold_client_core::Turns;
use leasehold_client_core::holder::Terms;
use leasehold_wire::{
    BreakRequest, GetRequest, HealthResponse, HeartbeatResponse, HistoryEntry, HistoryRequest, ListRequest, Lock,
    LockState, OccurrenceRequest, OccurrenceResponse, ReleaseOutcome, Secret, UnreadableRow, WantRequest,
};
use tokio::sync::Notify;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout_at;

use crate::clock::{Instant, deadline, fresh_uuid, millis, sleep};
use crate::error::ending;
use crate::guard::work_under;
use crate::held_locks::HeldLocks;
use crate::keeper::{Keeper, keep};
use crate::keeping::Keeping;
use crate::lease::{Granted, Lease, Sending};
use crate::line::Lines;
use crate::memory::Memory;
use crate::remote::{Backoff, Headers, Remote, Renewal, persist};
use crate::request::check_lease;
use crate::subject::Subject;
use crate::timing::{SLACK, leave_bound};
use crate::{
    Error, ErrorKind, Guard, Handover, Heartbeat, LockKey, LockRequest, Loss, Release, Released, SavedObservation,
    Transport,
};

/// The default lease of the Java client.
const DEFAULT_LEASE: Duration = Duration::from_secs(20);
/// The service answers within four seconds, even if all its attempts at the table time out.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which an operation without a lease is retried.
const RETRY_BUDGET: Duration = Duration::from_secs(10);
/// The largest difference of the wall clocks that measure saved observations.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);

/// One caller of the service. The client is cheap to clone, and all clones are the same caller.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    remote: Remote,
    owner_name: String,
    default_lease: Duration,
    retry_budget: Duration,
    memory: Memory,
    held: Mutex<HeldLocks>,
    lines: Arc<Lines>,
    keeper: Keeper,
    closing: Notify,
}

/// The answer to a heartbeat under a lease id that has no guard here.
pub(crate) struct RenewedById {
    pub(crate) answer: Renewal,
    /// The time before the request was first sent.
    pub(crate) sent: Instant,
    /// The last number that was taken under the lease id.
    pub(crate) last_number: u64,
}

/// The settings of a client.
pub struct ClientBuilder {
    headers: Option<Headers>,
    owner_name: Option<String>,
    default_lease: Duration,
    request_timeout: Duration,
    retry_budget: Duration,
    clock_margin: Duration,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("owner_name", &self.owner_name).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Sets the owner's name, for people to read. Default: the host's name and the process id.
    #[must_use]
    pub fn owner_name(mut self, name: impl Into<String>) -> Self {
        self.owner_name = Some(name.into());
        self
    }

    /// Sets the lease of requests that name none: 100 ms to a day. Default: 20 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.default_lease = lease;
        self
    }

    /// Limits the time of one request, to any duration. Default: 5 s, or less for a request of a short lease.
    #[must_use]
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.request_timeout = limit;
        self
    }

    /// Limits the retries of an operation without a lease, to any duration. Default: 10 s.
    /// While no connection can be made, and the service has never answered, an operation is given up after 1.5 s.
    #[must_use]
    pub fn retry_budget(mut self, limit: Duration) -> Self {
        self.retry_budget = limit;
        self
    }

    /// Sets the largest difference of the wall clocks that measure saved observations: any duration. Default: 1 s.
    #[must_use]
    pub fn clock_margin(mut self, margin: Duration) -> Self {
        self.clock_margin = margin;
        self
    }

    /// Calls `add` for each request, inside the request's span, to add headers: the trace context, for example.
    ///
    /// ```
    /// # fn current_traceparent() -> String { String::new() }
    /// # use leasehold_client::Client;
    /// let builder = Client::builder().request_headers(|headers| {
    ///     // With OpenTelemetry: `propagator.inject_context(&Span::current().context(), &mut HeaderInjector(headers))`.
    ///     if let Ok(value) = current_traceparent().parse() {
    ///         headers.insert("traceparent", value);
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn request_headers(mut self, add: impl Fn(&mut HeaderMap) + Send + Sync + 'static) -> Self {
        self.headers = Some(Arc::new(add));
        self
    }

    /// Builds the client.
    pub fn build(self, transport: impl Transport) -> Client {
        let default_owner = || format!("{}:{}", gethostname::gethostname().to_string_lossy(), std::process::id());
        Client(Arc::new(Inner {
            remote: Remote::new(Arc::new(transport), self.headers, self.request_timeout),
            owner_name: self.owner_name.unwrap_or_else(default_owner),
            default_lease: self.default_lease,
            retry_budget: self.retry_budget,
            memory: Memory::new(self.clock_margin),
            held: Mutex::default(),
            lines: Arc::default(),
            keeper: Keeper::default(),
            closing: Notify::new(),
        }))
    }
}

/// A filter for a listing.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Lists only locks in this state.
    pub state: Option<LockState>,
    /// Lists only locks whose current or last owner has this name.
    pub owner_name: Option<String>,
    /// Lists only the sort keys under this partition key.
    pub key: Option<String>,
    /// The largest number of locks in one answer: 1 to 1000. Default: 100.
    pub page_size: Option<u64>,
}

/// The largest page of a history.
const HISTORY_PAGE: u64 = 1000;

/// The part of a lock's history to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct HistoryOptions {
    /// No event before this time, in epoch milliseconds.
    pub since_ms: Option<u64>,
    /// No event after this time, in epoch milliseconds.
    pub until_ms: Option<u64>,
    /// The largest number of events: the newest ones. Default: all.
    pub limit: Option<u64>,
}

/// One row of a listing.
#[derive(Debug, Clone, PartialEq)]
pub enum Listed {
    /// A lock.
    Lock(Lock),
    /// A row that is not a readable lock record: an operator must look at it.
    Unreadable(UnreadableRow),
}

/// A lock that [`Client::close`] could not release.
#[derive(Debug)]
pub struct Unreleased {
    /// The lock.
    pub key: LockKey,
    /// The failure of its release.
    pub error: Error,
}

/// A release under way, which warns where its runtime ends before the answer.
struct Releasing {
    lease: Arc<Lease>,
    has_ended: bool,
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if !self.has_ended {
            tracing::warn!(
                key = %self.lease.key,
                "the runtime ended before the lock was released, which is free one lease after its last heartbeat: \
                 wait for Guard::release or Client::close"
            );
        }
    }
}

/// The locks that could not be released. Each lock is free one lease after its last heartbeat.
#[derive(Debug)]
pub struct CloseError {
    /// The locks, each with its failure.
    pub unreleased: Vec<Unreleased>,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} locks could not be released:", self.unreleased.len())?;
        self.unreleased.iter().try_for_each(|Unreleased { key, error }| write!(f, " {key}: {error};"))
    }
}

impl std::error::Error for CloseError {}

impl CloseError {
    /// Whether one of the releases may succeed later, as [`Error::retryable`].
    pub fn retryable(&self) -> bool {
        self.unreleased.iter().any(|Unreleased { error, .. }| error.retryable())
    }
}

impl Client {
    /// Creates a client with the defaults.
    pub fn new(transport: impl Transport) -> Self {
        Self::builder().build(transport)
    }

    /// Creates a client with other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            headers: None,
            owner_name: None,
            default_lease: DEFAULT_LEASE,
            request_timeout: REQUEST_TIMEOUT,
            retry_budget: RETRY_BUDGET,
            clock_margin: CLOCK_MARGIN,
        }
    }

    /// Waits for the lock, runs `work` under it, and releases the lock. If the lock is lost, `work` is dropped where it
    /// waits.
    ///
    /// A failed release is logged, and does not hide the result of `work`. The lock is then free after one lease. An
    /// outage does not hold up the end: after the rest of the lease, and 2 s at most, the release goes on in the
    /// background, with a warning.
    ///
    /// # Errors
    /// The errors of `work`, unchanged, and those of [`Client::acquire`]. [`crate::ErrorKind::Held`]: the wait was
    /// over. [`crate::ErrorKind::Lost`]: the lock was lost before `work` was done.
    pub async fn with_lock<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        request: impl Into<LockRequest>,
        work: impl FnOnce(Arc<Guard>) -> F,
    ) -> Result<T, E> {
        let guard = Arc::new(self.acquire(request).await?.granted()?);
        work_under(&guard, Box::pin(work(Arc::clone(&guard))), || guard.give_back(Release::new())).await
    }

    /// Continues with a lock that another process acquired. The client sends one heartbeat, and then keeps the lock
    /// like one of its own, under the record's lease.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`], or the last failure to reach the service.
    pub async fn resume(&self, from: Handover) -> Result<Guard, Error> {
        let request = LockRequest::from(from.key.clone());
        self.resume_with(request, from).await
    }

    /// Continues with a lock as [`Client::resume`] does, and applies the request's lease, if it names one, and its
    /// heartbeats.
    ///
    /// # Errors
    /// As [`Client::resume`]; [`crate::ErrorKind::InvalidRequest`] for a request of another key.
    pub async fn resume_with(&self, request: LockRequest, from: Handover) -> Result<Guard, Error> {
        self.check_open()?;
        if request.key != from.key {
            return Err(Error::invalid("key", format!("the request is for {}, and not for {}", request.key, from.key)));
        }
        request.lease.map_or(Ok(()), check_lease)?;
        let change = Heartbeat { lease: request.lease, ..Heartbeat::default() };
        let renewed = self
            .renew_by_id(
                Subject::Lock,
                &request.key,
                &from.lease_id,
                from.sequence,
                change,
                request.lease.or(Some(self.default_lease())),
            )
            .await?;
        let Renewal { version, lease, fencing_token, .. } = renewed.answer;
        request.keeping.check(lease)?;
        let RenewedById { sent, last_number, .. } = renewed;
        let granted = Granted { sent, lease, fencing_token, version, permits: 0, last_number };
        let terms = self.terms(&request.keeping);
        let lease = Lease::new(Subject::Lock, request.key, from.lease_id, None, granted, terms);
        self.keep(lease, &request.keeping)
    }

    /// Sends one heartbeat for a lock by its lease id alone, and keeps nothing; [`Client::resume`] keeps the lock. Name
    /// no lease where a guard in another process keeps the lock: the guard would not learn of the change.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`], or the last failure to reach the service.
    pub async fn heartbeat(
        &self,
        key: impl Into<LockKey>,
        lease_id: &Secret,
        change: Heartbeat,
    ) -> Result<HeartbeatResponse, Error> {
        change.lease.map_or(Ok(()), check_lease)?;
        let renewed = self.renew_by_id(Subject::Lock, &key.into(), lease_id, None, change, None).await?;
        let Renewal { version, lease, fencing_token, wanted, .. } = renewed.answer;
        Ok(HeartbeatResponse {
            record_version_number: version,
            lease_duration_ms: millis(lease),
            fencing_token,
            wanted,
        })
    }

    /// Sends one heartbeat, with retries, under a lease id that has no guard here.
    pub(crate) async fn renew_by_id(
        &self,
        subject: Subject,
        key: &LockKey,
        lease_id: &Secret,
        sequence: Option<u64>,
        change: Heartbeat,
        lease: Option<Duration>,
    ) -> Result<RenewedById, Error> {
        let until = self.until();
        let (mut turns, mut backoff) = (Turns::after(sequence.unwrap_or_default()), Backoff::default());
        loop {
            let numbered = turns.next(Instant::now(), || change.clone(), fresh_uuid);
            let left = until.saturating_duration_since(Instant::now());
            let answer = self.remote().heartbeat(subject, key, lease_id, &numbered, lease, left).await;
            turns.ended(ending(&answer));
            let sent = numbered.first_sent;
            let error = match answer {
                Ok(answer) if sent.elapsed() < answer.lease => {
                    return Ok(RenewedById { answer, sent, last_number: turns.last() });
                }
                Ok(answer) => Error::too_late(answer.lease),
                Err(error) => error,
            };
            let pause = if error.is_about_its_number() { Duration::ZERO } else { backoff.pause(&error) };
            if !error.is_worth_another_try() || deadline(pause) >= until {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    /// Releases a lock by its lease id alone.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`], or the last failure to reach the service.
    pub async fn release(
        &self,
        key: impl Into<LockKey>,
        lease_id: &Secret,
        release: Release,
    ) -> Result<Released, Error> {
        let key = key.into();
        persist(self.until(), |left| self.remote().release(Subject::Lock, &key, lease_id, &release, None, left))
            .await
            .map(|answer| answer.outcome.into())
    }

    /// Returns the public view of a lock.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`], or the last failure to reach the service.
    pub async fn get(&self, key: impl Into<LockKey>) -> Result<Lock, Error> {
        let LockKey { key, sort_key } = key.into();
        let request = GetRequest { key, sort_key };
        persist(self.until(), |left| self.remote().get(&request, left)).await
    }

    /// Lists all locks. The stream reads page after page, and is no snapshot.
    pub fn list(&self, options: ListOptions) -> impl Stream<Item = Result<Listed, Error>> + Send + use<> {
        let first = ListRequest {
            limit: options.page_size,
            cursor: None,
            state: options.state,
            owner_name: options.owner_name,
            key: options.key,
        };
        let client = self.clone();
        let pages = stream::try_unfold(Some(first), move |request| {
            let client = client.clone();
            async move {
                let Some(request) = request else { return Ok(None) };
                let page = persist(client.until(), |left| client.remote().list(&request, left)).await?;
                let next = page.next_cursor.map(|cursor| ListRequest { cursor: Some(cursor), ..request });
                let rows = page.locks.into_iter().map(Listed::Lock);
                let rows: Vec<_> = rows.chain(page.unreadable.into_iter().map(Listed::Unreadable)).collect();
                Ok(Some((rows, next)))
            }
        });
        pages.map_ok(|rows| stream::iter(rows).map(Ok)).try_flatten()
    }

    /// Returns who held a lock, when, and how it ended, from the newest event on. Reads page after page up to the
    /// limit.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] where the service keeps no history, or the last failure to reach the service.
    pub async fn history(&self, key: impl Into<LockKey>, options: HistoryOptions) -> Result<Vec<HistoryEntry>, Error> {
        let LockKey { key, sort_key } = key.into();
        let HistoryOptions { since_ms, until_ms, limit } = options;
        let mut left = limit.unwrap_or(u64::MAX);
        let mut request = HistoryRequest { key, sort_key, since_ms, until_ms, limit: None, cursor: None };
        let mut entries = Vec::new();
        while left > 0 {
            request.limit = Some(left.min(HISTORY_PAGE));
            let page = persist(self.until(), |left| self.remote().history(&request, left)).await?;
            left = left.saturating_sub(page.entries.len() as u64);
            entries.extend(page.entries);
            request.cursor = page.next_cursor;
            if request.cursor.is_none() {
                break;
            }
        }
        Ok(entries)
    }

    /// Releases a lock by force, if the row still has the version that the operator saw.
    ///
    /// # Errors
    /// [`crate::ErrorKind::VersionMismatch`], or the last failure to reach the service.
    pub async fn break_lock(
        &self,
        key: impl Into<LockKey>,
        record_version_number: impl Into<String>,
    ) -> Result<ReleaseOutcome, Error> {
        let LockKey { key, sort_key } = key.into();
        let request = BreakRequest { key, sort_key, record_version_number: record_version_number.into() };
        persist(self.until(), |left| self.remote().break_lock(&request, left)).await.map(|answer| answer.outcome)
    }

    /// Sets which occurrence counts as the last one that is done, if the row still has the version that the operator
    /// saw.
    ///
    /// # Errors
    /// [`crate::ErrorKind::VersionMismatch`]; [`crate::ErrorKind::Held`], since a run may still complete an occurrence;
    /// the last failure to reach the service.
    pub async fn set_occurrence(
        &self,
        key: impl Into<LockKey>,
        last_occurrence: impl Into<String>,
        record_version_number: impl Into<String>,
    ) -> Result<OccurrenceResponse, Error> {
        let LockKey { key, sort_key } = key.into();
        let (last_occurrence, record_version_number) = (last_occurrence.into(), record_version_number.into());
        let request = OccurrenceRequest { key, sort_key, last_occurrence, record_version_number };
        persist(self.until(), |left| self.remote().set_occurrence(&request, left)).await
    }

    /// Asks whether the service and its table answer.
    ///
    /// # Errors
    /// The failure of the one request, which is not retried.
    pub async fn health(&self) -> Result<HealthResponse, Error> {
        self.remote().health().await
    }

    /// Returns this client's observations of locks that others hold, for a later process.
    pub fn save_observations(&self) -> Vec<SavedObservation> {
        self.memory().save()
    }

    /// Continues the observations of an earlier process, measured by the wall clock. The clocks of all processes that
    /// share observations must agree within [`ClientBuilder::clock_margin`].
    pub fn load_observations(&self, saved: impl IntoIterator<Item = SavedObservation>) {
        self.memory().load(saved);
    }

    /// Releases every lock of this client, and waits for the background task. One failure does not stop the others.
    /// Remaining guards report that their lock was released. The client can acquire nothing afterwards.
    ///
    /// If the service does not answer, the releases go on in the background after 2 s, with a warning.
    /// [`Client::settled`] waits for their end.
    ///
    /// # Errors
    /// Lists the locks that are not released. A lost lock is not among them.
    pub async fn close(&self) -> Result<(), CloseError> {
        let until = deadline(leave_bound(Duration::MAX));
        // All releases are sent before the first answer is awaited.
        let releases: Vec<_> = {
            let mut held = self.held();
            let leases = held.close();
            self.0.closing.notify_waiters();
            let revoked = leases.into_iter().filter(|lease| lease.revoke(lease.released()).is_ok());
            revoked.map(|lease| (self.send_release(&lease, Release::new()), lease)).collect()
        };
        let mut unreleased = Vec::new();
        for (release, lease) in releases {
            let answered = if let Ok(answer) = timeout_at(until, release).await {
                answer.unwrap_or_else(|_| Err(Error::abandoned()))
            } else {
                tracing::warn!(key = %lease.key, "the lock is not released yet, which goes on in the background");
                Err(Error::unreleased())
            };
            if let Err(error) = answered
                && !matches!(error.kind(), ErrorKind::Lost(_))
            {
                unreleased.push(Unreleased { key: lease.key.clone(), error });
            }
        }
        self.0.keeper.finish(until).await;
        if unreleased.is_empty() { Ok(()) } else { Err(CloseError { unreleased }) }
    }

    /// Waits until nothing is under way in the background: releases of guards that were dropped, and of acquisitions
    /// that were abandoned. Held locks stay. A process that is about to be frozen waits for this.
    pub async fn settled(&self) {
        self.0.keeper.settled().await;
    }

    pub(crate) fn remote(&self) -> &Remote {
        &self.0.remote
    }

    pub(crate) fn owner_name(&self) -> &str {
        &self.0.owner_name
    }

    pub(crate) fn default_lease(&self) -> Duration {
        self.0.default_lease
    }

    pub(crate) fn retry_budget(&self) -> Duration {
        self.0.retry_budget
    }

    pub(crate) fn until(&self) -> Instant {
        deadline(self.0.retry_budget)
    }

    /// The end of the wait for a release: the background task retries within its own bound, and then ends one request.
    fn patience(&self) -> Instant {
        deadline(self.0.retry_budget.saturating_add(self.remote().request_timeout()).saturating_add(SLACK))
    }

    /// Checks that the client accepts locks.
    ///
    /// # Errors
    /// `Closed`
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.held().is_closed() { Err(Error::closed()) } else { Ok(()) }
    }

    /// The notification that the client is closed.
    pub(crate) fn closing(&self) -> &Notify {
        &self.0.closing
    }

    pub(crate) fn lines(&self) -> &Arc<Lines> {
        &self.0.lines
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Runs a job that lasts for as long as something is held.
    pub(crate) fn while_held(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.0.keeper.run(job);
    }

    /// Runs a job that ends by itself, and that [`Client::settled`] waits for.
    pub(crate) fn in_background(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.0.keeper.run_short(job);
    }

    /// Keeps a lock.
    ///
    /// # Errors
    /// The client was closed meanwhile: the lock is released.
    pub(crate) fn keep(&self, lease: Lease, keeping: &Keeping) -> Result<Guard, Error> {
        if lease.subject == Subject::Lock {
            self.memory().forget(&lease.key);
        }
        let lease = Arc::new(lease);
        let mut held = self.held();
        if held.is_closed() {
            drop(self.send_release(&lease, Release::new()));
            return Err(Error::closed());
        }
        held.add(&lease);
        self.keep_with(&lease, lease.start(keeping));
        Ok(Guard::new(self.clone(), lease))
    }

    /// Gives a lease a new keeper, if the runtime of the last one is gone.
    pub(crate) fn keep_on(&self, lease: &Arc<Lease>) {
        if let Some(sends) = lease.orphaned() {
            self.keep_with(lease, sends);
        }
    }

    fn keep_with(&self, lease: &Arc<Lease>, sends: mpsc::UnboundedReceiver<Sending>) {
        self.while_held(keep(Arc::clone(lease), self.remote().clone(), sends));
    }

    /// The settings of a holder, for the rules.
    pub(crate) fn terms(&self, keeping: &Keeping) -> Terms {
        keeping.terms(self.remote().request_timeout())
    }

    /// Returns another guard of a lock that this client holds already.
    pub(crate) fn share(&self, key: &LockKey) -> Option<Guard> {
        let lease = self.held().share(key)?;
        Some(Guard::new(self.clone(), lease))
    }

    /// Removes one guard. The last guard calls `end`, which ends the lease before another caller can share it. Returns
    /// whether the guard was the last.
    ///
    /// # Errors
    /// The error of `end`.
    pub(crate) fn end_share(
        &self,
        lease: &Arc<Lease>,
        end: impl FnOnce(&Lease) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut held = self.held();
        if held.remove(lease) { end(lease).map(|()| true) } else { Ok(false) }
    }

    /// Removes one guard. The last guard's release is queued before this function returns; the future waits for the
    /// answer.
    pub(crate) fn give_back(
        &self,
        lease: &Arc<Lease>,
        release: Release,
    ) -> impl Future<Output = Result<Released, Error>> + Send + use<> {
        let sent = self.end_share(lease, Lease::end).map(|last| last.then(|| self.send_release(lease, release)));
        let client = self.clone();
        async move {
            match sent? {
                Some(sent) => client.answered(sent).await,
                None => Ok(Released::StillHeld),
            }
        }
    }

    /// Ends a lease that is lost together with another one, and releases the lock.
    pub(crate) fn give_up(&self, lease: &Arc<Lease>, loss: &Loss) {
        if lease.revoke(loss.clone()).is_ok() {
            drop(self.send_release(lease, Release::new()));
        }
    }

    fn send_release(&self, lease: &Arc<Lease>, release: Release) -> oneshot::Receiver<Result<Released, Error>> {
        let released_at = (lease.subject == Subject::Lock).then(|| self.memory().releases(&lease.key));
        let (reply, answer) = oneshot::channel();
        let (client, until) = (self.clone(), self.until());
        let release = Release { fencing_token: Some(lease.fencing_token()), ..release };
        let releasing = Releasing { lease: Arc::clone(lease), has_ended: false };
        self.in_background(async move {
            let mut releasing = releasing;
            let lease = Arc::clone(&releasing.lease);
            let of = Some(lease.duration());
            let remote = client.remote();
            let send = async |release: &Release, left| {
                let request = remote.release(lease.subject, &lease.key, &lease.id, release, of, left);
                lease.release(request, release.stores()).await
            };
            let (result, refusal) = match persist(until, |left| send(&release, left)).await {
                // The guard is gone: the lock is released without what was refused.
                Err(error) if release.stores() && matches!(error.kind(), ErrorKind::InvalidRequest { .. }) => {
                    let plain = Release { fencing_token: release.fencing_token, ..Release::new() };
                    (persist(until, |left| send(&plain, left)).await, Some(error))
                }
                result => (result, None),
            };
            if let (Some(at), Ok(answer)) = (released_at, &result) {
                client.memory().released_at(&lease.key, at, answer.wanted);
            }
            // The turn passes on, to a waiter who reads that note.
            let was_given_back = lease.returned(&result);
            let result = match refusal {
                Some(refusal) => Err(refusal),
                None if was_given_back => Ok(Released::Replayed),
                None => result.map(|answer| answer.outcome.into()),
            };
            releasing.has_ended = true;
            if let Err(Err(error)) = reply.send(result) {
                tracing::warn!(key = %lease.key, %error, "the lock could not be released");
            }
        });
        answer
    }

    async fn answered(&self, release: oneshot::Receiver<Result<Released, Error>>) -> Result<Released, Error> {
        match timeout_at(self.patience(), release).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Error::abandoned()),
        }
    }

    /// Marks a lock that another caller holds, in the background.
    pub(crate) fn want(&self, request: WantRequest) {
        let client = self.clone();
        self.in_background(async move {
            // The mark is a hint: a waiter without one waits as long.
            let _ = client.remote().want(&request).await;
        });
    }

    /// Whether this client holds this lease.
    pub(crate) fn keeps(&self, lease: &Arc<Lease>) -> bool {
        self.held().has(lease)
    }

    /// Whether this client itself holds the lock.
    pub(crate) fn holds(&self, key: &LockKey) -> bool {
        self.held().has_lock(key)
    }

    fn held(&self) -> MutexGuard<'_, HeldLocks> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("owner_name", &self.0.owner_name).finish_non_exhaustive()
    }
}
