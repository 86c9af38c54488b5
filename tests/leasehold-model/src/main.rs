//! Explores the full bounds: `cargo run --release -p leasehold-model`.

use std::process::ExitCode;
use std::thread::available_parallelism;

use leasehold_model::{Bounds, Protocol};
use stateright::{Checker, Model};

fn main() -> ExitCode {
    let threads = available_parallelism().map_or(1, usize::from);
    let mut is_kept = true;
    for bounds in Bounds::full() {
        let checker = Protocol { bounds, without: None }.checker().threads(threads).spawn_bfs();
        // The reporter knows the time that each exploration took.
        println!("{}: {bounds:?}", bounds.name);
        let checker = checker.join_and_report(&mut stateright::report::WriteReporter::new(&mut std::io::stdout()));
        let broken = ["a lock is taken over", "a request is repeated", "a run is refused or not wanted"];
        for (promise, path) in checker.discoveries().into_iter().filter(|(name, _)| !broken.contains(name)) {
            println!("Broken: {promise}\n{path}");
            is_kept = false;
        }
    }
    if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
