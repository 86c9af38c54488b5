//! # Traces of the caller's machines
//!
//! Runs the machines of `leasehold-client-core` against the real pure life cycle of the lock, under virtual time, on a
//! network that loses, delays, doubles and reorders messages. Every step becomes a line of JSON. The ports in Python
//! and TypeScript replay the lines: `clients/vectors/README.md` gives the form.
//!
//! `cargo run -p leasehold-recorder` records the committed traces again. With `-- --seeds FROM TO FOLDER` it records
//! these seeds, whole, into a folder.

#![allow(clippy::expect_used, clippy::panic, reason = "a recorder stops at the first surprise")]

mod chance;
mod form;
mod service;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use leasehold_client_core::Branch;
pub use world::{Trace, run};

/// The rules that have a file of traces each, with the branches that decide where a trace belongs: the first rule that
/// the trace shows.
const RULES: [(&str, &[Branch]); 6] = [
    ("several-processes-share-a-lease-id", &[Branch::Superseded, Branch::LeaseIdEnded]),
    ("a-grant-counts-from-its-first-sending", &[Branch::GrantedTooLate]),
    ("a-request-may-arrive-after-its-release", &[Branch::FoundNothing]),
    ("nothing-is-left-behind", &[Branch::LeftDuringRequest, Branch::LeftSomething]),
    ("a-request-without-an-answer-is-repeated", &[Branch::MayApply, Branch::DidNotArrive]),
    ("a-retry-has-a-bound", &[Branch::PausedToRetry]),
];
/// The rule of all other traces.
const PLAIN: &str = "a-request-is-answered";

/// The seeds of the committed traces.
const SEEDS: u64 = 3000;
/// The traces that a file has beyond those that show something new.
const MORE: usize = 2;

/// Returns the rule that a trace shows.
pub fn rule_of(trace: &Trace) -> &'static str {
    let shows = |branches: &[Branch]| branches.iter().any(|branch| trace.branches.contains(branch));
    RULES.iter().find(|(_, branches)| shows(branches)).map_or(PLAIN, |(rule, _)| rule)
}

/// Chooses the committed traces: those that show a branch in a state that no trace before them showed, and a few more.
/// Returns the text of each file.
pub fn committed() -> BTreeMap<&'static str, String> {
    let (mut shown, mut more) = (BTreeSet::new(), BTreeMap::<&str, usize>::new());
    let mut files: BTreeMap<&'static str, String> = BTreeMap::new();
    for trace in (0..SEEDS).flat_map(run) {
        let rule = rule_of(&trace);
        let before = shown.len();
        shown.extend(trace.shown.iter().cloned());
        let count = more.entry(rule).or_default();
        if shown.len() == before && *count >= MORE {
            continue;
        }
        *count += usize::from(shown.len() == before);
        files.entry(rule).or_default().push_str(&trace.text());
    }
    files
}

/// Returns the names of the branches that no line of these texts takes.
pub fn untaken<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<&'static str> {
    let texts: Vec<_> = texts.into_iter().collect();
    let is_taken = |name: &str| {
        let member = format!("\"branch\":\"{name}\"");
        texts.iter().any(|text| text.contains(&member))
    };
    Branch::ALL.iter().map(|branch| branch.name()).filter(|name| !is_taken(name)).collect()
}
