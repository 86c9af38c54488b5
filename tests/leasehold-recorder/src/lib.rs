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
mod facts;
mod form;
mod holding;
mod scripts;
mod service;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use facts::Facts;
pub use holding::hold;
use leasehold_client_core::{Branch, holder};
use scripts::scripted;
pub use world::{Trace, run};

/// A rule that has a file of traces, and the branches that show it.
type Rule = (&'static str, &'static [&'static str]);

/// The rules of a call. A trace belongs to the first rule that it shows.
const CALL: [Rule; 7] = [
    ("several-processes-share-a-lease-id", &["superseded", "lease-id-ended"]),
    ("a-grant-counts-from-its-first-sending", &["granted-too-late"]),
    ("a-request-may-arrive-after-its-release", &["found-nothing"]),
    ("nothing-is-left-behind", &["left-during-request", "left-something"]),
    ("a-request-without-an-answer-is-repeated", &["may-apply", "did-not-arrive"]),
    ("a-retry-has-a-bound", &["paused-to-retry"]),
    ("a-request-is-answered", &[]),
];
/// The rules of a holder.
const HOLDER: [Rule; 9] = [
    ("belief-ends-with-a-suspension", &["suspended", "renewed-before-suspension", "forked"]),
    ("heartbeats-of-several-processes", &["superseded", "superseded-again", "ghost"]),
    ("a-holder-may-sit-out-an-outage", &["held-on", "renewed-too-late"]),
    ("a-release-without-an-answer-may-explain-a-loss", &["was-given-back", "may-be-given-back", "still-to-give-back"]),
    ("a-loss-is-final", &["expired", "held-too-long", "lost-by-answer", "was-lost", "revoked"]),
    ("a-caller-renews-by-hand", &["asked", "queued", "asked-too-late"]),
    ("a-lease-is-at-risk", &["warned"]),
    ("a-heartbeat-without-an-answer-is-repeated", &["beat-again", "failed", "refused"]),
    ("heartbeats-keep-a-lease", &[]),
];

/// The seeds of the committed traces.
const SEEDS: u64 = 3000;
/// The most lines of a committed trace of a holder.
const LONGEST: usize = 80;
/// The traces that a file has beyond those that show something new.
const MORE: usize = 1;

/// Returns the rule that a trace shows.
fn rule_of(rules: &[Rule], trace: &Trace) -> &'static str {
    let shows = |branches: &[&str]| branches.is_empty() || branches.iter().any(|it| trace.branches.contains(it));
    rules.iter().find(|(_, branches)| shows(branches)).map_or("", |(rule, _)| rule)
}

fn is_of_holder(rule: &str) -> bool {
    HOLDER.iter().any(|(name, _)| *name == rule)
}

/// Returns all traces of these seeds, each with its rule.
pub fn all(from: u64, to: u64) -> impl Iterator<Item = (&'static str, Trace)> {
    let calls = (from..to).flat_map(run).map(|trace| (rule_of(&CALL, &trace), trace));
    calls.chain((from..to).map(hold).map(|trace| (rule_of(&HOLDER, &trace), trace)))
}

/// Returns the text of each committed file.
pub fn committed() -> BTreeMap<&'static str, String> {
    let mut files: BTreeMap<&'static str, String> = BTreeMap::new();
    for (rule, trace) in chosen() {
        files.entry(rule).or_default().push_str(&trace.text());
    }
    files
}

/// Chooses the committed traces: those that show a branch in a state that no trace before them showed, and a few more.
fn chosen() -> impl Iterator<Item = (&'static str, Trace)> {
    let (mut shown, mut more) = (BTreeSet::new(), BTreeMap::<&str, usize>::new());
    let is_short = |(rule, trace): &(&str, Trace)| !is_of_holder(rule) || trace.lines.len() <= LONGEST;
    let scripted = scripted().map(|trace| (rule_of(&HOLDER, &trace), trace));
    let mut traces: Vec<_> = scripted.chain(all(0, SEEDS)).filter(is_short).collect();
    // A holder beats on and on: its short traces come first.
    traces.sort_by_key(|(rule, trace)| if is_of_holder(rule) { trace.lines.len() } else { 0 });
    traces.into_iter().filter(move |(rule, trace)| {
        let before = shown.len();
        shown.extend(trace.shown.iter().cloned());
        let count = more.entry(rule).or_default();
        let is_new = shown.len() > before;
        *count += usize::from(!is_new);
        is_new || *count <= MORE
    })
}

/// Returns what a trace of a holder can show beside its branches, and none of the committed ones does.
pub fn unshown() -> Vec<&'static str> {
    let shown: BTreeSet<_> = chosen().flat_map(|(_, trace)| trace.shown).collect();
    Facts::ALL.into_iter().filter(|fact| !shown.contains(*fact)).collect()
}

/// Returns the names of the branches that no line of these texts takes, each with its machine.
pub fn untaken<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let lines: Vec<_> = texts.into_iter().flat_map(|text| text.lines()).collect();
    let is_taken = |machine: &str, name: &str| {
        let (machine, branch) = (format!("\"{machine}\":\"{machine}-"), format!("\"branch\":\"{name}\""));
        lines.iter().any(|line| line.contains(&machine) && line.contains(&branch))
    };
    let calls = Branch::ALL.iter().map(|branch| ("call", branch.name()));
    let holders = holder::Branch::ALL.iter().map(|branch| ("holder", branch.name()));
    let untaken = calls.chain(holders).filter(|(machine, name)| !is_taken(machine, name));
    untaken.map(|(machine, name)| format!("{machine}: {name}")).collect()
}
