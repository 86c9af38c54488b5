//! The background task: one for all locks of a client. Rules C6 and C7.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout_at;
use tokio_util::task::TaskTracker;

use crate::clock::Instant;
use crate::lease::{Lease, Sending};
use crate::remote::Remote;

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
    sends: mpsc::UnboundedReceiver<Sending>,
) -> impl Future<Output = ()> + Send {
    // The warning comes even if this never runs.
    let held = Held(lease);
    async move { held.0.keep(remote, sends).await }
}
