//! Holds the committed traces to the machine: they are current, take every branch, and stay small.

#![allow(clippy::expect_used, reason = "a test fails by a panic")]

use std::fs;
use std::path::{Path, PathBuf};

use leasehold_recorder::{committed, hold, run, unshown, untaken};

/// The most bytes of all traces together: a person must be able to read a diff of them.
const MOST: usize = 500_000;

#[test]
fn committed_traces_are_those_of_the_machine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/vectors/traces");
    let files = committed();
    for (rule, text) in &files {
        let known = fs::read_to_string(folder.join(format!("{rule}.jsonl"))).expect("a file for each rule");
        assert!(known == *text, "{rule}.jsonl is not current: run `cargo run -p leasehold-recorder`");
    }
    let names = fs::read_dir(folder).expect("the folder").count();
    assert_eq!(names, files.len(), "a file belongs to no rule");
    assert!(files.values().map(String::len).sum::<usize>() <= MOST);
}

#[test]
fn committed_traces_take_every_branch() {
    assert_eq!(untaken(committed().values()), Vec::<String>::new());
}

#[test]
fn committed_traces_show_every_fact() {
    assert_eq!(unshown(), Vec::<&str>::new());
}

/// `run` itself checks that no caller that left holds a lock.
#[test]
fn nothing_is_left_behind_under_other_seeds() {
    for seed in 100_000..104_000 {
        assert!(!run(seed).is_empty());
    }
}

/// `hold` itself checks that no two believe at once, that a holder which gave back does not hold, and that every caller
/// has its answer.
#[test]
fn holders_keep_their_promises_under_other_seeds() {
    for seed in 100_000..120_000 {
        assert!(!hold(seed).branches.is_empty());
    }
}

/// The files of each client that have rules, and may name their constants: those of pauses and bounds, the ports of the
/// machines, and those of the waits, which no machine has yet.
const RULES: [&str; 8] =
    ["_timing.py", "_call.py", "_holder.py", "pacing.ts", "call.ts", "holder.ts", "turns.ts", "acquisition.ts"];
/// The constants of a call, as the languages name them, and what they compare.
const CALL: [&str; 9] = [
    "UNREACHED_BOUND",
    "FIRST_BACKOFF",
    "LAST_BACKOFF",
    "REQUESTS_PER_LEASE",
    "MIN_TIMEOUT",
    "SHORTEST_TIMEOUT",
    "SHORTEST_REQUEST",
    "may_arrive",
    "mayArrive",
];
/// The same of a holder.
const HOLDER: [&str; 12] = [
    "HEARTBEATS_PER_LEASE",
    "HEARTBEAT_JITTER",
    "LEAVE_BOUND",
    "heartbeat_pause",
    "heartbeatPause(",
    "heartbeat_retry_pause",
    "heartbeatRetryPause(",
    "longest_heartbeat",
    "longestHeartbeat",
    "valid_until",
    "validUntil",
    "renewed_at",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_dir() {
            sources(&entry.path(), found);
        } else if entry.path().extension().is_some_and(|end| end == "rs" || end == "py" || end == "ts") {
            found.push(entry.path());
        }
    }
}

#[test]
fn drivers_have_no_constant_of_a_machine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for folder in ["shared/leasehold-client/src", "clients/python/src", "clients/typescript/src"] {
        sources(&root.join(folder), &mut found);
    }
    let is_numbering = |path: &Path| path.file_stem().is_some_and(|name| name == "_numbers" || name == "numbers");
    found.retain(|path| !is_numbering(path) && !RULES.iter().any(|name| path.ends_with(name)));
    assert!(found.len() > 80, "{}", found.len());
    for path in found {
        let text = fs::read_to_string(&path).expect("a source");
        for constant in CALL.iter().chain(&HOLDER) {
            assert!(!text.contains(constant), "{} has {constant}: the machine decides that", path.display());
        }
    }
}
