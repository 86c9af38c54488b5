//! Runs of a holder that are written by hand, for what chance hardly meets: two failures of one outage in an order, or
//! an answer to the millisecond.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_client_core::holder::{Beats, Event, Grant, Reply, Return, Terms};
use leasehold_client_core::{Cause, Holder, LossReason};
use serde_json::json;

use crate::chance::Draws;
use crate::facts::Facts;
use crate::form;
use crate::holding::record;
use crate::world::Trace;

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);
const RENEWED: Reply = Reply::Renewed { lease: LEASE, token: 1, wanted: false };
const WANTED: Reply = Reply::Renewed { lease: LEASE, token: 1, wanted: true };
const RETRYABLE: Reply = Reply::Retryable { retry_after: Duration::ZERO, may_apply: false };

type Script = (&'static str, Terms, Vec<(u32, Event<String>)>);

fn renew(call: u64) -> Event<String> {
    Event::Renew { call, change: format!("change-{call}"), lease: None }
}

fn answer(send: u64, reply: Reply) -> Event<String> {
    Event::Answer { send, reply }
}

fn timed_out(send: u64) -> Event<String> {
    Event::Unanswered { send, cause: Cause::TimedOut }
}

fn superseded(send: u64, sequence: u64) -> Event<String> {
    answer(send, Reply::Superseded { sequence, token: Some(1) })
}

/// A try of the release that left then has no answer.
fn untold(sent: u32, may_apply: bool) -> Event<String> {
    Event::Untold { sent: MS * sent, may_apply, stores: false }
}

fn untold_storing(sent: u32) -> Event<String> {
    Event::Untold { sent: MS * sent, may_apply: true, stores: true }
}

fn lost() -> Event<String> {
    Event::Returned(Return::Lost { reason: LossReason::TakenOver })
}

fn warn_at(left: u32) -> Event<String> {
    Event::WarnAt { left: Some(MS * left) }
}

/// The scripts, each of which begins at the grant. A heartbeat is due after a quarter of a second at the latest.
#[rustfmt::skip]
fn scripts() -> Vec<Script> {
    use Event::{Leave, Release, Start, Suspended, Tick};
    let kept = Terms { longest: LEASE * 5, ..Terms::default() };
    let by_hand = Terms { beats: Beats::Manual, ..kept };
    let held_on = Terms { holds_on: true, ..kept };
    let delayed = Terms { delay: MS * 300, ..held_on };
    let held_on_by_hand = Terms { holds_on: true, ..by_hand };
    let refused = |send| answer(send, Reply::Refused);
    vec![
        ("last-caller-by-hand-leaves-in-a-pause", by_hand, vec![
            (0, Start), (10, renew(1)), (20, answer(1, RETRYABLE)), (21, Leave { call: 1 }), (300, Tick), (301, Release),
        ]),
        ("one-of-two-callers-by-hand-leaves-in-a-pause", by_hand, vec![
            (0, Start), (10, renew(1)), (20, renew(2)), (30, answer(1, RETRYABLE)), (31, Leave { call: 1 }), (200, Tick),
            (210, answer(2, RENEWED)), (220, answer(3, RENEWED)),
        ]),
        ("last-caller-leaves-in-a-pause", kept, vec![
            (0, Start), (10, renew(1)), (20, answer(1, RETRYABLE)), (21, Leave { call: 1 }), (200, Tick),
            (210, answer(2, RENEWED)),
        ]),
        ("too-late-to-the-millisecond", delayed, vec![
            (0, Start), (180, Tick), (400, timed_out(1)), (600, Tick), (880, answer(2, RENEWED)), (890, answer(3, RENEWED)),
        ]),
        ("superseded-after-a-failure", kept, vec![
            (0, Start), (250, Tick), (260, superseded(1, 5)), (270, timed_out(2)), (400, Tick), (410, superseded(3, 9)),
            (420, answer(4, RENEWED)),
        ]),
        ("superseded-after-a-refusal", kept, vec![
            (0, Start), (250, Tick), (260, superseded(1, 5)), (270, refused(2)), (400, Tick), (410, superseded(3, 9)),
            (420, answer(4, RENEWED)),
        ]),
        ("superseded-after-a-success", kept, vec![
            (0, Start), (250, Tick), (260, superseded(1, 5)), (270, answer(2, RENEWED)), (500, Tick),
            (510, answer(3, Reply::Superseded { sequence: 9, token: None })), (520, answer(4, RENEWED)),
        ]),
        ("superseded-and-then-held-past-the-end", held_on, vec![
            (0, Start), (250, Tick), (260, superseded(1, 5)), (270, superseded(2, 9)), (400, Tick), (1000, Tick),
            (1010, answer(3, RENEWED)),
        ]),
        ("warned-again", kept, vec![
            (0, Start), (1, warn_at(500)), (250, Tick), (500, Tick), (510, answer(1, RENEWED)), (520, Tick), (750, Tick),
            (760, answer(2, RENEWED)),
        ]),
        ("risk-is-past", held_on, vec![
            (0, Start), (1, warn_at(50)), (250, Tick), (500, timed_out(1)), (1100, Tick), (1110, answer(2, RENEWED)),
        ]),
        ("risk-is-past-to-the-millisecond", held_on, vec![
            (0, Start), (1, warn_at(50)), (250, Tick), (500, timed_out(1)), (1000, Tick), (1010, answer(2, RENEWED)),
        ]),
        ("callers-do-not-wait-for-the-end-of-an-outage", held_on_by_hand, vec![
            (0, Start), (10, renew(1)), (20, renew(2)), (500, timed_out(1)), (600, Tick), (1000, timed_out(2)),
            (1010, Leave { call: 2 }), (1999, Tick), (2000, Tick),
        ]),
        ("refused-past-the-end", held_on_by_hand, vec![
            (0, Start), (10, renew(1)), (20, renew(2)), (500, timed_out(1)), (600, Tick), (1100, refused(2)),
            (1110, Leave { call: 2 }),
        ]),
        ("mark-is-remembered", kept, vec![
            (0, Start), (250, Tick), (260, answer(1, WANTED)), (500, Tick), (510, answer(2, RENEWED)), (520, Release),
        ]),
        ("suspended-during-a-heartbeat", kept, vec![
            (0, Start), (250, Tick), (260, Suspended), (270, answer(1, RENEWED)), (280, answer(2, RENEWED)),
        ]),
        ("heartbeat-follows-a-suspension", kept, vec![
            (0, Start), (100, Suspended), (110, answer(1, RENEWED)), (120, Suspended), (130, Release),
        ]),
        ("caller-by-hand-is-suspended", by_hand, vec![
            (0, Start), (100, Suspended), (110, renew(1)), (120, answer(1, RENEWED)),
        ]),
    ]
}

/// The scripts of a release whose answer tells of a loss.
#[rustfmt::skip]
fn releases() -> Vec<Script> {
    use Event::{Release, Returned, Start, Suspended, Tick};
    let kept = Terms { longest: LEASE * 5, ..Terms::default() };
    let by_hand = Terms { beats: Beats::Manual, ..kept };
    let held_on = Terms { holds_on: true, ..kept };
    vec![
        ("release-explains-a-loss", kept, vec![
            (0, Start), (100, Release), (600, untold(100, true)), (700, lost()),
        ]),
        ("release-that-stores-explains-no-loss", kept, vec![
            (0, Start), (100, Release), (600, untold_storing(100)), (700, lost()),
        ]),
        ("release-of-an-earlier-call-explains-a-loss", kept, vec![
            (0, Start), (100, Release), (600, untold(100, true)), (610, Returned(Return::Failed)), (1500, Release),
            (1510, lost()),
        ]),
        ("release-of-the-last-millisecond-explains-a-loss", kept, vec![
            (0, Start), (100, Release), (110, untold(100, false)), (1600, untold(999, true)), (1700, lost()),
        ]),
        ("release-from-before-a-suspension-explains-a-loss", kept, vec![
            (0, Start), (100, Release), (200, Suspended), (600, untold(100, true)), (700, lost()),
        ]),
        ("release-that-did-not-arrive-explains-no-loss", kept, vec![
            (0, Start), (100, Release), (110, untold(100, false)), (700, lost()),
        ]),
        ("release-after-the-lease-explains-no-loss", kept, vec![
            (0, Start), (100, Release), (110, untold(100, false)), (1600, untold(1000, true)), (1700, lost()),
        ]),
        ("release-of-a-holder-that-held-on-explains-no-loss", held_on, vec![
            (0, Start), (250, Tick), (500, timed_out(1)), (1100, Release), (1600, untold(1100, true)), (1700, lost()),
        ]),
        ("release-in-doubt-explains-no-loss", by_hand, vec![
            (0, Start), (100, Suspended), (110, Release), (600, untold(110, true)), (700, lost()),
        ]),
        ("release-after-a-suspension-explains-no-loss", kept, vec![
            (0, Start), (100, Release), (110, untold(100, false)), (200, Suspended), (600, untold(200, true)),
            (700, lost()),
        ]),
        ("release-of-a-later-call-explains-no-loss", kept, vec![
            (0, Start), (100, Release), (110, untold(100, false)), (120, Returned(Return::Failed)), (200, Suspended),
            (210, Release), (600, untold(210, true)), (700, lost()),
        ]),
        ("suspension-after-the-lease-explains-no-loss", kept, vec![
            (0, Start), (100, Release), (2000, Suspended), (2100, untold(1500, true)), (2200, lost()),
        ]),
        ("release-is-not-under-way", kept, vec![
            (0, Start), (100, untold(100, true)), (110, Release), (120, lost()),
        ]),
    ]
}

/// Runs the scripts, and returns their traces.
pub(crate) fn scripted() -> impl Iterator<Item = Trace> {
    scripts().into_iter().chain(releases()).enumerate().map(|(seed, (name, terms, events))| {
        let grant = Grant { sent: Duration::ZERO, lease: LEASE, token: 1, sequence: 1 };
        let name = format!("holder-{name}");
        let head = json!({ "holder": name, "terms": form::holder_terms(&terms), "grant": form::grant(&grant) });
        let mut trace = Trace { lines: vec![head], branches: BTreeSet::new(), shown: BTreeSet::new() };
        let (mut holder, mut facts) = (Holder::new(terms, grant), Facts::default());
        let mut draws = Draws::new(seed as u64, 1 << 16);
        for (at, event) in events {
            record(&mut trace, &mut facts, &mut holder, &mut draws, &name, &event, MS * at);
        }
        // Belief is asked, also where no event has told the end.
        trace.lines.push(form::asked(&name, &holder, LEASE * 5));
        trace
    })
}
