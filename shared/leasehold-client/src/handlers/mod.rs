//! Locks in handlers of Lambda functions: layers for `lambda_runtime`.
//!
//! ```no_run
//! use lambda_runtime::{LambdaEvent, service_fn, tower::ServiceBuilder};
//! use leasehold_client::handlers::{LockLayer, Locked};
//! use leasehold_client::{Client, HttpTransport};
//! use serde_json::Value;
//!
//! # async fn ship(event: &Value, token: u64) -> Result<(), lambda_runtime::Error> { Ok(()) }
//! async fn handler(locked: Locked<Value>) -> Result<(), lambda_runtime::Error> {
//!     ship(&locked.event.payload, locked.guard.fencing_token()).await
//! }
//!
//! # async fn run() -> Result<(), lambda_runtime::Error> {
//! let client = Client::new(HttpTransport::new("https://locks.example.com")?);
//! let lock = LockLayer::new(client, |event: &LambdaEvent<Value>| format!("orders/{}", event.payload["id"]));
//! lambda_runtime::run(ServiceBuilder::new().layer(lock).service(service_fn(handler))).await
//! # }
//! ```
//!
//! The lease follows the deadline of the invocation, and the lock is released on every way out. At the deadline less a
//! margin, the handler is dropped where it waits. A handler that computes without an `await` cannot be stopped: the
//! resource must check the fencing token.

mod guard;
mod records;
mod sqs;

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lambda_runtime::LambdaEvent;
use lambda_runtime::tower::{Layer, Service};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep_until, timeout_at};

use crate::clock::{Instant, millis, since_epoch};
use crate::subject::Subject;
use crate::{
    Acquisition, Client, Error, ErrorKind, Guard, Heartbeats, Held, LockKey, LockRequest, Loss, LossReason, Release,
    Wait,
};
use records::Record;

pub use guard::InvocationGuard;
pub use sqs::{BatchItemFailure, BatchResponse, Hide, SqsEvent, SqsLayer, SqsRecord, SqsService};

/// The default of [`LockLayer::margin`].
const MARGIN: Duration = Duration::from_secs(1);
/// The default of [`IdempotentLayer::completed_ttl`].
const COMPLETED_TTL: Duration = Duration::from_hours(1);
/// The longest time for which the service remembers an occurrence, if not for ever.
const LONGEST_TTL: Duration = Duration::from_hours(10 * 366 * 24);
/// The shortest lease that the service accepts.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// The shortest pause between two heartbeats.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// What a handler under a lock gets.
#[derive(Debug)]
pub struct Locked<E> {
    /// The event, and its context.
    pub event: LambdaEvent<E>,
    /// The lock. The layer releases it.
    pub guard: Arc<InvocationGuard>,
}

/// Runs a handler under a lock: the handler gets a [`Locked`] in place of its event.
///
/// While another holds the lock, the invocation fails with [`ErrorKind::Held`], so that the event source retries;
/// [`LockLayer::wait`] and [`LockLayer::skip`] choose otherwise.
pub struct LockLayer<F, R> {
    terms: Terms,
    key: Arc<F>,
    skipped: Option<Skipped<R>>,
}

type Skipped<R> = Arc<dyn Fn() -> R + Send + Sync>;

/// Runs a handler once for each event, and answers a repeated event with its result, as `idempotent` of the Python and
/// the TypeScript client does, with the same records.
///
/// While an attempt runs, the key is locked. An attempt that fails, or dies, runs again: a dead one as soon as its
/// lease is over by the service's clock. The result must be JSON of at most 256 KiB.
pub struct IdempotentLayer<F> {
    terms: Terms,
    key: Arc<F>,
    completed_ttl: Duration,
}

/// The options of a layer's lock.
#[derive(Clone)]
struct Terms {
    client: Client,
    lease: Duration,
    margin: Duration,
    /// The time that a wait leaves for the work. `None`: no wait.
    work_needs: Option<Duration>,
}

/// The options that each layer has; `wait`: those of a layer that can wait, too.
macro_rules! options_of_terms {
    () => {
        /// Sets the lease at most. Default: the client's. The lease is cut to what remains of the invocation, and the
        /// margin.
        #[must_use]
        pub fn lease(mut self, lease: Duration) -> Self {
            self.terms.lease = lease;
            self
        }

        /// Sets the time before the deadline at which the work ends, and after it at which the lease has ended.
        /// Default: 1 s.
        #[must_use]
        pub fn margin(mut self, margin: Duration) -> Self {
            self.terms.margin = margin;
            self
        }
    };
    (wait) => {
        options_of_terms!();

        /// Waits for a lock that is held, until the deadline less the margin and what the work needs: any duration.
        #[must_use]
        pub fn wait(mut self, work_needs: Duration) -> Self {
            self.terms.work_needs = Some(work_needs);
            self
        }
    };
}
use options_of_terms;

impl<F, R> LockLayer<F, R> {
    /// Creates a layer whose key is a function of the event and its context.
    pub fn new<E, K>(client: Client, key: F) -> Self
    where
        F: Fn(&LambdaEvent<E>) -> K,
    {
        Self { terms: Terms::new(client), key: Arc::new(key), skipped: None }
    }

    options_of_terms!(wait);

    /// Ends the invocation with this result while another holds the lock.
    #[must_use]
    pub fn skip(mut self, skipped: impl Fn() -> R + Send + Sync + 'static) -> Self {
        self.skipped = Some(Arc::new(skipped));
        self
    }
}

impl<F> IdempotentLayer<F> {
    /// Creates a layer whose key is a function of the event and its context.
    pub fn new<E, K>(client: Client, key: F) -> Self
    where
        F: Fn(&LambdaEvent<E>) -> K,
    {
        Self { terms: Terms::new(client), key: Arc::new(key), completed_ttl: COMPLETED_TTL }
    }

    options_of_terms!(wait);

    /// Sets the time for which a result counts, by the clocks of the callers: any duration. Default: an hour.
    #[must_use]
    pub fn completed_ttl(mut self, ttl: Duration) -> Self {
        self.completed_ttl = ttl;
        self
    }
}

/// The service of a [`LockLayer`].
pub struct LockService<S, F, R> {
    inner: S,
    terms: Terms,
    key: Arc<F>,
    skipped: Option<Skipped<R>>,
}

/// The service of an [`IdempotentLayer`].
pub struct IdempotentService<S, F> {
    inner: S,
    terms: Terms,
    key: Arc<F>,
    completed_ttl: Duration,
}

impl<S, F, R> Layer<S> for LockLayer<F, R> {
    type Service = LockService<S, F, R>;

    fn layer(&self, inner: S) -> Self::Service {
        let (terms, key, skipped) = (self.terms.clone(), Arc::clone(&self.key), self.skipped.clone());
        LockService { inner, terms, key, skipped }
    }
}

impl<S, F> Layer<S> for IdempotentLayer<F> {
    type Service = IdempotentService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        let (terms, key) = (self.terms.clone(), Arc::clone(&self.key));
        IdempotentService { inner, terms, key, completed_ttl: self.completed_ttl }
    }
}

type Answer<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

impl<S, F, E, K> Service<LambdaEvent<E>> for LockService<S, F, S::Response>
where
    S: Service<Locked<E>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: From<Error> + Send,
    S::Response: Send + 'static,
    F: Fn(&LambdaEvent<E>) -> K + Send + Sync,
    K: Into<LockKey>,
    E: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answer<S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, event: LambdaEvent<E>) -> Self::Future {
        let mut inner = ready(&mut self.inner);
        let (terms, skipped) = (self.terms.clone(), self.skipped.clone());
        let (key, deadline) = ((self.key)(&event).into(), terms.deadline(&event));
        Box::pin(async move {
            let request = LockRequest::new(key);
            match (terms.ask(request, deadline).await?, skipped) {
                (Acquisition::Granted(guard), _) => {
                    let guard = terms.of_invocation(guard, deadline);
                    let work = inner.call(Locked { event, guard: Arc::clone(&guard) });
                    let result = terms.until_the_deadline(&guard, deadline, work).await;
                    deadline.give_back_quietly(&guard).await;
                    result
                }
                (Acquisition::Held(_), Some(skipped)) => Ok(skipped()),
                (Acquisition::Held(held), None) => Err(Error::held(held.lock).into()),
            }
        })
    }
}

impl<S, F, E, K> Service<LambdaEvent<E>> for IdempotentService<S, F>
where
    S: Service<Locked<E>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: From<Error> + Send,
    S::Response: Serialize + DeserializeOwned + Send + 'static,
    F: Fn(&LambdaEvent<E>) -> K + Send + Sync,
    K: Into<LockKey>,
    E: Serialize + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answer<S::Response, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, event: LambdaEvent<E>) -> Self::Future {
        let mut inner = ready(&mut self.inner);
        let (terms, ttl) = (self.terms.clone(), self.completed_ttl);
        let (key, deadline) = ((self.key)(&event).into(), terms.deadline(&event));
        let payload = records::hash_of(&event.payload);
        Box::pin(async move {
            let payload = payload?;
            let (guard, occurrence) = match terms.begin(key, deadline, &payload).await? {
                Begun::Attempt { guard, occurrence } => (terms.of_invocation(*guard, deadline), occurrence),
                Begun::Done(record) => return Ok(record.read()?),
            };
            let work = inner.call(Locked { event, guard: Arc::clone(&guard) });
            let result = terms.until_the_deadline(&guard, deadline, work).await;
            match result {
                Ok(result) => {
                    let record = Record::new(payload, millis(since_epoch().saturating_add(ttl)), &result)?;
                    let release = remembered(Release::new().data(record.text()?).completed(occurrence), ttl);
                    deadline.give_back(&guard, release).await?;
                    Ok(result)
                }
                Err(error) => {
                    deadline.give_back_quietly(&guard).await;
                    Err(error)
                }
            }
        })
    }
}

/// The row may go when the result counts no more; never, where the service takes no time that long.
fn remembered(release: Release, ttl: Duration) -> Release {
    if ttl > LONGEST_TTL { release } else { release.completed_ttl(ttl.max(Duration::from_millis(1))) }
}

/// Takes the service that is ready, and leaves one that must get ready.
fn ready<S: Clone>(inner: &mut S) -> S {
    let clone = inner.clone();
    mem::replace(inner, clone)
}

/// The beginning of an attempt, or the result of an earlier one.
enum Begun {
    Attempt { guard: Box<Guard>, occurrence: String },
    Done(Record),
}

impl Terms {
    fn new(client: Client) -> Self {
        let lease = client.default_lease();
        Self { client, lease, margin: MARGIN, work_needs: None }
    }

    fn deadline<E>(&self, event: &LambdaEvent<E>) -> Deadline {
        let left = Duration::from_millis(event.context.deadline).saturating_sub(since_epoch());
        Deadline { at: Instant::now() + left, margin: self.margin }
    }

    /// The guard of an invocation that a handler gets.
    fn of_invocation(&self, guard: Guard, deadline: Deadline) -> Arc<InvocationGuard> {
        Arc::new(InvocationGuard::new(guard, deadline, self.lease))
    }

    /// Asks once, or for as long as the work can wait.
    async fn ask(&self, request: LockRequest, deadline: Deadline) -> Result<Acquisition<Guard, Held>, Error> {
        let left = deadline.stops().saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::invalid("margin", "the invocation is about to end: no time for any work"));
        }
        let request = request.lease(deadline.cut(self.lease)).heartbeats(Heartbeats::Manual);
        let asked = match self.work_needs {
            Some(needs) => self.client.acquire(request.wait(Wait::AtMost(left.saturating_sub(needs)))).await,
            None => self.client.try_acquire(request).await,
        };
        if !matches!(asked, Ok(Acquisition::Granted(_))) {
            // A request without an answer may have acquired the lock: it is given back before the sandbox is frozen.
            let _ = timeout_at(deadline.last_moment(), self.client.settled()).await;
        }
        asked
    }

    /// Begins an attempt, unless there is a result that counts now.
    async fn begin(&self, key: LockKey, deadline: Deadline, payload: &str) -> Result<Begun, Error> {
        let mut number: u64 = 1;
        loop {
            let occurrence = format!("{number:010}");
            let request = LockRequest::new(key.clone()).occurrence(&occurrence).stale_by_clock();
            let started = Record::started(payload).text()?;
            match self.ask(request.data(started), deadline).await {
                Ok(Acquisition::Granted(guard)) => return Ok(Begun::Attempt { guard: Box::new(guard), occurrence }),
                Ok(Acquisition::Held(held)) => {
                    Record::of(&held.lock)?.compare(payload, &key)?;
                    return Err(Error::held(held.lock));
                }
                Err(error) => {
                    let ErrorKind::AlreadyDone(lock) = error.kind() else { return Err(error) };
                    let record = Record::of(lock)?;
                    if record.counts_at(millis(since_epoch())) {
                        record.compare(payload, &key)?;
                        return Ok(Begun::Done(record));
                    }
                    let last = lock.last_occurrence.as_deref().and_then(|last| last.parse::<u64>().ok());
                    number = last.ok_or(error)? + 1;
                }
            }
        }
    }

    /// Runs work, with heartbeats, until its end, the loss of the lock, or the deadline less the margin.
    async fn until_the_deadline<R, E: From<Error>>(
        &self,
        guard: &InvocationGuard,
        deadline: Deadline,
        work: impl Future<Output = Result<R, E>>,
    ) -> Result<R, E> {
        let (mut work, mut beat) = (pin!(work), pin!(guard.keep_up()));
        let loss = tokio::select! {
            biased;
            done = &mut work => return match guard.loss() {
                Some(loss) => done.and(Err(Error::lost(loss).into())),
                None => done,
            },
            Some(loss) = guard.lost() => loss,
            () = sleep_until(deadline.stops()) => Loss::new(Subject::Lock, guard.key(), LossReason::Deadline),
            never = &mut beat => match never {},
        };
        Err(Error::lost(loss).into())
    }
}

/// The end of an invocation.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Instant,
    margin: Duration,
}

impl Deadline {
    fn stops(self) -> Instant {
        self.at.checked_sub(self.margin).unwrap_or(self.at)
    }

    /// The time at which requests must have ended.
    fn last_moment(self) -> Instant {
        self.at.checked_sub(self.margin / 4).unwrap_or(self.at)
    }

    /// This lease, or what remains of the invocation and the margin, if that is shorter.
    fn cut(self, lease: Duration) -> Duration {
        lease.min((self.at + self.margin).saturating_duration_since(Instant::now())).max(SHORTEST_LEASE)
    }

    /// Releases a lock before the sandbox is frozen or killed.
    async fn give_back(self, guard: &InvocationGuard, release: Release) -> Result<(), Error> {
        let until = self.last_moment().max(Instant::now() + self.margin / 4);
        timeout_at(until, guard.inner().give_back(release)).await.unwrap_or_else(|_| Err(Error::abandoned())).map(drop)
    }

    /// Releases a lock. A release that failed does not hide the result of the work.
    async fn give_back_quietly(self, guard: &InvocationGuard) {
        if let Err(error) = self.give_back(guard, Release::new()).await
            && !matches!(error.kind(), ErrorKind::Lost(_))
        {
            tracing::warn!(key = %guard.key(), %error, "the lock could not be released, and is free after its lease");
        }
    }
}

impl<F, R> fmt::Debug for LockLayer<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer").finish_non_exhaustive()
    }
}

impl<F> fmt::Debug for IdempotentLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentLayer").finish_non_exhaustive()
    }
}

impl<S, F, R> fmt::Debug for LockService<S, F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService").finish_non_exhaustive()
    }
}

impl<S, F> fmt::Debug for IdempotentService<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentService").finish_non_exhaustive()
    }
}
