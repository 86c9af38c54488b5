//! Explores the larger bounds: `cargo run --release -p leasehold-model`. With an argument, explores those whose name
//! contains it.

use std::process::ExitCode;

use leasehold_model::{Bounds, Protocol};
use stateright::Checker;
use stateright::report::WriteReporter;

fn main() -> ExitCode {
    let part = std::env::args().nth(1).unwrap_or_default();
    let mut is_kept = true;
    for bounds in Bounds::full().into_iter().filter(|bounds| bounds.name.contains(&part)) {
        let checker = Protocol { bounds, without: None }.explored().spawn_dfs();
        // The reporter knows the time of each exploration.
        println!("{}: {bounds:?}", bounds.name);
        let checker = checker.join_and_report(&mut WriteReporter::new(&mut std::io::stdout()));
        let seen = ["a lock is taken over", "a request is repeated", "a run is refused or not wanted"];
        for (promise, path) in checker.discoveries().into_iter().filter(|(name, _)| !seen.contains(name)) {
            println!("Broken: {promise}\n{path}");
            is_kept = false;
        }
    }
    if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
