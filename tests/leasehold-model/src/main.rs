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
        let protocol = Protocol { bounds, without: None };
        let checker = protocol.clone().explored().spawn_dfs();
        // The reporter knows the time of each exploration.
        println!("{}: {bounds:?}", bounds.name);
        let checker = checker.join_and_report(&mut WriteReporter::new(&mut std::io::stdout()));
        let discoveries = checker.discoveries();
        for (promise, path) in discoveries.iter().filter(|(name, _)| !Protocol::is_event(name)) {
            println!("Broken: {promise}\n{path}");
            is_kept = false;
        }
        for event in protocol.must_see().into_iter().filter(|event| !discoveries.contains_key(event)) {
            println!("Too small: nowhere {event}");
            is_kept = false;
        }
    }
    if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
