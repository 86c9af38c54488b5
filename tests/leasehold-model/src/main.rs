//! Explores the larger bounds: `cargo run --release -p leasehold-model`. With an argument, explores those whose name
//! contains it.

use std::process::ExitCode;

use leasehold_model::{Bounds, Protocol, deals, failures, holder, permits, regions, several};
use stateright::report::WriteReporter;
use stateright::{Checker, CheckerBuilder, Model};

fn main() -> ExitCode {
    let part = std::env::args().nth(1).unwrap_or_default();
    let locks = Bounds::full().into_iter().filter(|bounds| bounds.name.contains(&part));
    let locks = locks.map(|bounds| {
        println!("{}: {bounds:?}", bounds.name);
        let protocol = Protocol { bounds, without: None };
        let must_see = protocol.must_see();
        keeps_its_promises(protocol.explored(), &must_see)
    });
    let semaphores = permits::Bounds::full().into_iter().filter(|bounds| bounds.name.contains(&part));
    let semaphores = semaphores.map(|bounds| {
        println!("{}: {bounds:?}", bounds.name);
        let protocol = permits::Protocol { bounds, without: None };
        let must_see = protocol.must_see();
        keeps_its_promises(protocol.explored(), &must_see)
    });
    let deals = deals::Bounds::full().into_iter().filter(|bounds| bounds.name.contains(&part));
    let deals = deals.map(|bounds| {
        println!("{}: {bounds:?}", bounds.name);
        let protocol = deals::Protocol { bounds, without: None };
        let must_see = protocol.must_see();
        keeps_its_promises(protocol.explored(), &must_see)
    });
    let several = several::Bounds::full().into_iter().filter(|bounds| bounds.name.contains(&part));
    let several = several.map(|bounds| {
        println!("{}: {bounds:?}", bounds.name);
        let protocol = several::Protocol { bounds, without: None };
        let must_see = protocol.must_see();
        keeps_its_promises(protocol.explored(), &must_see)
    });
    let holders = holder::Bounds::full().into_iter().filter(|bounds| bounds.name.contains(&part));
    let holders = holders.map(|bounds| {
        println!("{}: {bounds:?}", bounds.name);
        let protocol = holder::Protocol { bounds };
        let must_see = protocol.must_see();
        keeps_its_promises(protocol.explored(), &must_see)
    });
    let regions = regions::Bounds::small().into_iter().filter(|bounds| bounds.name.contains(&part));
    let regions = regions.map(|bounds| {
        println!("{}: {bounds:?}", bounds.name);
        let protocol = regions::Protocol { bounds, without: None };
        let must_see = protocol.must_see();
        keeps_its_promises(protocol.explored(), &must_see)
    });
    let permits = regions::permits::Bounds::small().into_iter().filter(|bounds| bounds.name.contains(&part));
    let permits = permits.map(|bounds| {
        println!("{}: {bounds:?}", bounds.name);
        let protocol = regions::permits::Protocol::new(bounds, None);
        let must_see = protocol.must_see();
        keeps_its_promises(protocol.explored(), &must_see)
    });
    let locks_and_permits = locks.chain(semaphores).chain(several).chain(regions).chain(permits);
    let kept: Vec<_> = locks_and_permits.chain(deals).chain(holders).collect();
    if kept.iter().all(|is_kept| *is_kept) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn keeps_its_promises<M>(explored: CheckerBuilder<M>, must_see: &[&'static str]) -> bool
where
    M: Model + Send + Sync + 'static,
    M::State: std::fmt::Debug + std::hash::Hash + Clone + PartialEq + Send + Sync,
    M::Action: std::fmt::Debug + Clone + PartialEq + Send + Sync,
{
    // The reporter knows the time of each exploration.
    let checker = explored.spawn_dfs().join_and_report(&mut WriteReporter::new(&mut std::io::stdout()));
    let failures = failures(&checker, must_see);
    for failure in &failures {
        println!("{failure}");
    }
    failures.is_empty()
}
