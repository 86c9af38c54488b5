//! The background task: one for all locks of a client. Rules C6 and C7.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep_until, timeout_at};
use tokio_util::task::TaskTracker;

use crate::clock::{Instant, chance};
use crate::keeping::OnRisk;
use crate::lease::Lease;
use crate::remote::Remote;
use crate::timing::{heartbeat_pause, longest_heartbeat_interval};
use crate::{Heartbeat, Heartbeats};

type Job = BoxFuture<'static, ()>;

/// The background task of one client. The task starts with the first job, on that caller's runtime. The task ends when
/// the client and its jobs are gone, or the runtime is.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    jobs: Mutex<Option<mpsc::UnboundedSender<Job>>>,
    tracker: TaskTracker,
    /// The number of jobs that end by themselves.
    short: watch::Sender<usize>,
}

/// One of the jobs that end by themselves, even if it never runs.
struct Short(watch::Sender<usize>);

impl Short {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Keeper {
    /// Runs `job` in the background. Without a runtime the job is dropped.
    pub(crate) fn run(&self, job: impl Future<Output = ()> + Send + 'static) {
        // A job runs foreign code: a transport, or a source of tokens. A panic ends only this job.
        let job = AssertUnwindSafe(job).catch_unwind().map(drop);
        let mut job: Job = Box::pin(self.tracker.track_future(job));
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*jobs {
            match running.send(job) {
                Ok(()) => return,
                // The task's runtime is gone.
                Err(mpsc::error::SendError(unsent)) => job = unsent,
            }
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let (sender, receiver) = mpsc::unbounded_channel();
        runtime.spawn(work(receiver));
        let _ = sender.send(job);
        *jobs = Some(sender);
    }

    /// Runs a job that ends by itself in the background, as [`Keeper::run`].
    pub(crate) fn run_short(&self, job: impl Future<Output = ()> + Send + 'static) {
        let short = Short::new(&self.short);
        self.run(async move {
            job.await;
            drop(short);
        });
    }

    /// Waits until no job is left that ends by itself.
    pub(crate) async fn settled(&self) {
        let _ = self.short.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Waits until all jobs are done, or `until` has come.
    pub(crate) async fn finish(&self, until: Instant) {
        self.tracker.close();
        let _ = timeout_at(until, self.tracker.wait()).await;
    }
}

async fn work(mut incoming: mpsc::UnboundedReceiver<Job>) {
    let mut jobs = FuturesUnordered::new();
    loop {
        tokio::select! {
            job = incoming.recv() => match job {
                Some(job) => jobs.push(job),
                None => break,
            },
            Some(()) = jobs.next() => {}
        }
    }
    while jobs.next().await.is_some() {}
}

/// A warning about a lock that is still held when its heartbeats end.
struct Held(Arc<Lease>);

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.is_held() {
            tracing::warn!(
                key = %self.0.key,
                "the runtime ended while the lock was held, which has no heartbeats any more: release the guard, or close the client, before"
            );
        }
    }
}

/// Keeps one lock until it is lost or released.
pub(crate) fn keep(
    lease: Arc<Lease>,
    remote: Remote,
    heartbeats: Heartbeats,
    at_risk: Option<(Duration, OnRisk)>,
) -> impl Future<Output = ()> + Send {
    // The warning comes even if this never runs.
    let held = Held(lease);
    async move {
        let lease = &held.0;
        tokio::select! {
            _ = lease.lost() => {}
            () = watch(lease, at_risk) => {}
            () = beat(lease, &remote, heartbeats) => {}
        }
    }
}

/// Notices that a lease is about to run out, and that it has run out.
async fn watch(lease: &Lease, at_risk: Option<(Duration, OnRisk)>) {
    let mut warned = None;
    loop {
        let term = lease.term();
        let end = term.valid_until();
        let risk = at_risk.as_ref().filter(|_| warned != Some(end));
        // A lease that has run out without a loss is held through an outage.
        let over = Instant::now() >= end && risk.is_none();
        let wake = risk.map_or(end, |(threshold, _)| end.checked_sub(*threshold).unwrap_or_else(Instant::now));
        tokio::select! {
            () = lease.moved(&term) => {}
            () = sleep_until(wake), if !over => if let Some((_, callback)) = risk {
                warned = Some(end);
                let (callback, left) = (Arc::clone(callback), end.saturating_duration_since(Instant::now()));
                // After a long pause there is no risk to report: the lock is lost.
                if !left.is_zero() {
                    tokio::task::spawn_blocking(move || callback(left));
                }
            },
        }
    }
}

/// Renews a lease repeatedly, until a renewal cannot succeed any more.
async fn beat(lease: &Lease, remote: &Remote, heartbeats: Heartbeats) {
    loop {
        let term = lease.term();
        let Some(interval) = heartbeats.interval(term.believed()) else { return std::future::pending().await };
        // An interval that was fixed before may be too long for a shortened lease.
        let interval = interval.min(longest_heartbeat_interval(term.believed()));
        let due = term.renewed_at() + heartbeat_pause(interval, chance());
        tokio::select! {
            // The lease was renewed by hand, perhaps with another length: the interval begins anew.
            () = lease.moved(&term) => {}
            // The lease itself reports an error of this renewal to its guards.
            () = sleep_until(due) => drop(lease.renew_until(remote, &Heartbeat::new(), |_| false).await),
        }
    }
}
