//! Runs a simulation once for each seed, under a paused clock.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tokio::runtime::Builder;

/// Returns the results of the runs of seeds 0 to `count`, in no order. A thread for each core takes the next seed.
///
/// `LEASEHOLD_SEEDS=n` sets the count. `LEASEHOLD_SEED=n` runs one seed alone, to examine a failure. A failure prints
/// the command for that, with `test`, the name of the test.
///
/// # Panics
/// Panics where the run of a seed panics.
pub fn run_seeds<T: Send, F: Future<Output = T>>(test: &str, count: u64, run: impl Fn(u64) -> F + Sync) -> Vec<T> {
    let seeds = seeds(count);
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let taken = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        taken.take_while(|seed| seeds.contains(seed)).map(|seed| run_seed(test, seed, &run)).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

fn seeds(count: u64) -> Range<u64> {
    let variable = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    match variable("LEASEHOLD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("LEASEHOLD_SEEDS").unwrap_or(count),
    }
}

fn run_seed<T, F: Future<Output = T>>(test: &str, seed: u64, run: &impl Fn(u64) -> F) -> T {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(seed)))).unwrap_or_else(|panic| {
        eprintln!("LEASEHOLD_SEED={seed} cargo test --workspace {test}");
        resume_unwind(panic)
    })
}
