//! Threads for heavy work: listings, large reads, and requests with expressions of their callers.
//!
//! On the shared threads, a few such requests would delay heartbeats. Separate threads let the operating system share
//! the processor.

use std::panic::resume_unwind;
use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// The number of threads. One would let a large read wait for another; more would take the processor from the shared
/// threads.
const THREADS: usize = 2;

/// The runtime of these threads. Absent if the system has no more threads: the work then stays on the caller's thread.
static RUNTIME: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let threads = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(THREADS)
        .thread_name("leasehold-heavy")
        .enable_all()
        .build();
    threads.inspect_err(|error| tracing::warn!(%error, "no threads for large reads")).ok()
});

/// Runs the work on the threads for heavy work. The work ends when its caller drops the future.
pub(crate) async fn run<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let Some(runtime) = &*RUNTIME else { return work.await };
    let mut tasks = JoinSet::new();
    tasks.spawn_on(work, runtime.handle());
    match tasks.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(failed)) if failed.is_panic() => resume_unwind(failed.into_panic()),
        // Not reached: no other code ends the task, and the runtime lives as long as the process.
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn heavy_work_leaves_the_callers_thread_free() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let heavy = run(async move { receiver.recv().expect("sent while the work blocks its thread") });
        let light = async { sender.send("done").expect("someone listens") };
        // This runtime has one thread. `heavy` blocks until that thread has run `light`.
        assert_eq!(tokio::join!(biased; heavy, light).0, "done");
    }

    #[tokio::test]
    async fn heavy_work_ends_when_its_caller_gives_up() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<()>(1);
        let heavy = run(async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        });
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), heavy).await.is_err());
        assert_eq!(receiver.recv().await, None);
    }
}
