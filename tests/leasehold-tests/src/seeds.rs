//! Runs a simulation once for each seed, under a paused clock.

use std::ops::Range;

/// Returns the results of the runs of all seeds. `LEASEHOLD_SEED=n` runs one seed alone, to examine a failure. A
/// failure prints the command for that, with `test`, the name of the test.
///
/// # Panics
/// Panics where the run of a seed panics.
pub fn run_seeds<T, F: Future<Output = T>>(test: &str, seeds: Range<u64>, run: impl Fn(u64) -> F) -> Vec<T> {
    let one = std::env::var("LEASEHOLD_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = one.map_or(seeds, |seed: u64| seed..seed + 1);
    let mut results = Vec::new();
    for seed in seeds {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .expect("a runtime");
            runtime.block_on(run(seed))
        }));
        results.push(result.unwrap_or_else(|panic| {
            eprintln!("LEASEHOLD_SEED={seed} cargo test --workspace {test}");
            std::panic::resume_unwind(panic)
        }));
    }
    results
}
