//! What the traces of a holder show beside its branches: a clause of a port that one of these steps needs cannot be
//! dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_client_core::Holder;
use leasehold_client_core::holder::{Action, Beats, Event, Outcome, Reply, Return, State, Step};

const MS: Duration = Duration::from_millis(1);

/// What a holder went through.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The branches.
    branches: Vec<&'static str>,
    /// The branches of the answers.
    answers: Vec<&'static str>,
    /// The number of warnings that callers want.
    risks: usize,
    /// The risks that were told, or are past, since the last success; and those of earlier leases.
    told: BTreeSet<usize>,
    told_before: BTreeSet<usize>,
    /// The callers that wait, and those that the end told.
    waiting: BTreeSet<u64>,
    ended: BTreeMap<u64, Outcome>,
    /// What is known of the releases without an answer.
    untold: BTreeSet<&'static str>,
}

impl Facts {
    /// All facts, each of which the committed traces show.
    pub(crate) const ALL: [&'static str; 41] = [
        "somebody waits",
        "a mark is remembered",
        "the last caller by hand leaves in a pause",
        "one of two callers by hand leaves in a pause",
        "the last caller leaves in a pause, and heartbeats go on",
        "a caller leaves whom the end of the hold told",
        "a caller leaves whom an outage told",
        "belief returns",
        "too late by the delay",
        "too late to the millisecond",
        "an answer tells nothing",
        "superseded without a token",
        "superseded after a failure",
        "superseded after a refusal",
        "superseded after a success",
        "superseded, and then held past the end",
        "warned again",
        "a risk is past",
        "a risk is past to the millisecond",
        "held on from the millisecond of the end",
        "held on without a next try",
        "callers do not wait for the end of an outage",
        "expired at the end of an outage's faith",
        "expired to the millisecond",
        "refused past the end",
        "a repeat has the cap of its first sending",
        "a suspension during a heartbeat",
        "a heartbeat follows a suspension",
        "none does where the caller sends them",
        // A loss that is told to a release is explained by an earlier one, or not.
        "explained by a release that left within the lease",
        "explained by a release of the last millisecond",
        "explained by a release from before a suspension",
        "explained by a release of an earlier call",
        "not explained by a release that did not arrive",
        "not explained by a release that stores something",
        "not explained by a release that left with the end",
        "not explained by a release of a holder that held on",
        "not explained by a release in doubt",
        "not explained by a release after a suspension",
        "not explained by a release of a later call after a suspension",
        "not explained by a release between the lease and a suspension",
    ];

    /// Returns what a step shows.
    pub(crate) fn of(
        &mut self,
        before: &Holder<String>,
        after: &Holder<String>,
        event: &Event<String>,
        step: &Step<String>,
        time: Duration,
    ) -> Vec<&'static str> {
        let (terms, branch) = (after.terms(), step.branch.name());
        let (was_held, is_held) = (before.state() == State::Held, after.state() == State::Held);
        let is_manual = terms.beats == Beats::Manual;
        let reply = if let Event::Answer { reply, .. } = event { Some(*reply) } else { None };
        let is_end = matches!(event, Event::Answer { .. } | Event::Unanswered { .. });
        // The answers since the last success.
        let since = self.answers.rsplit(|name| name.starts_with("renewed")).next().unwrap_or_default();
        let numbered = ["superseded", "superseded-again", "renewed-too-late"];
        let last_but_success = self.answers.iter().rposition(|name| *name == "renewed" || *name == "renewed-and-next");
        let before_success = last_but_success.and_then(|at| self.answers[..at].last());
        let is_fresh = last_but_success.is_some_and(|at| at + 1 == self.answers.len());
        let is_pause = before.under_way().is_none() && is_held;
        let leaves = if let Event::Leave { call } = event { Some(*call) } else { None };
        let others = self.waiting.iter().filter(|call| Some(**call) != leaves).count();
        let first_sent = before.turns().open().map(|open| open.first_sent);
        let is_exact = |lease: Duration| first_sent.is_some_and(|sent| sent + terms.believed(lease) == time);
        let late_sending = |action: &Action<String>| matches!(action, Action::Send { beat, .. } if beat.first_sent < time && after.valid(time));
        let fails = |action: &Action<String>| matches!(action, Action::Finish { outcome: Outcome::Failed { .. }, .. });
        let lost = step.actions.iter().any(|action| matches!(action, Action::Lost { .. }));
        let was_valid_until_now = before.valid(time.saturating_sub(MS)) && !before.valid(time) && was_held;
        let is_past = matches!(event, Event::Tick) && is_held && self.told.len() < self.risks && time >= after.until();
        let warns_again = step
            .actions
            .iter()
            .any(|action| matches!(action, Action::AtRisk { risk, .. } if self.told_before.contains(risk)));
        let wanted = matches!(reply, Some(Reply::Renewed { wanted: true, .. }));
        let renewed = matches!(reply, Some(Reply::Renewed { .. }));
        let is_told = |call: u64, all: bool| self.ended.get(&call).is_some_and(|end| (*end == Outcome::Ended) == all);
        let shown = [
            wanted && !before.is_wanted() && is_held,
            before.is_wanted() && renewed && !wanted && is_held,
            branch == "left" && is_manual && is_pause && others == 0,
            branch == "left" && is_manual && is_pause && others > 0,
            branch == "left" && !is_manual && is_pause && others == 0,
            leaves.is_some_and(|call| is_told(call, true)),
            leaves.is_some_and(|call| is_told(call, false)) && is_held,
            !before.valid(time) && renewed && after.valid(time),
            branch == "renewed-too-late" && !terms.delay.is_zero(),
            matches!(reply, Some(Reply::Renewed { lease, .. }) if branch == "renewed-too-late" && is_exact(lease)),
            matches!(reply, Some(Reply::Retryable { may_apply: true, .. })) && is_held,
            matches!(reply, Some(Reply::Superseded { token: None, .. })) && is_held,
            branch == "superseded" && since.contains(&"failed") && since.contains(&"superseded"),
            branch == "superseded"
                && since.last().is_some_and(|last| *last == "refused" || *last == "asked-in-vain")
                && since.contains(&"superseded"),
            branch == "superseded" && is_fresh && before_success.is_some_and(|name| numbered.contains(name)),
            after.valid(time) && time >= after.until() && self.answers.last() == Some(&"superseded-again") && !is_end,
            warns_again,
            is_past,
            is_past && time == after.until(),
            branch == "held-on" && time == after.until(),
            branch == "held-on" && is_manual && others == 0,
            branch == "held-on" && step.actions.iter().any(fails),
            branch == "expired" && terms.holds_on && self.branches.contains(&"held-on"),
            branch == "expired" && was_valid_until_now && time > before.until(),
            (branch == "refused" || branch == "asked-in-vain") && lost,
            step.actions.iter().any(late_sending),
            branch == "suspended" && before.under_way().is_some(),
            branch == "suspended" && before.under_way().is_none() && after.under_way().is_some(),
            branch == "suspended" && is_manual && after.under_way().is_none(),
        ];
        let mut facts: Vec<_> =
            Self::ALL.into_iter().zip(shown).filter(|(_, is_shown)| *is_shown).map(|(fact, _)| fact).collect();
        facts.extend(self.of_releases(before, event, branch));
        self.note(event, step, is_past);
        facts
    }

    /// Returns what a release shows that tells of a loss.
    fn of_releases(&mut self, before: &Holder<String>, event: &Event<String>, branch: &str) -> Vec<&'static str> {
        let (until, is_again) = (before.until(), self.branches.contains(&"gives-back-again"));
        let was_suspended =
            self.branches.iter().rev().take_while(|name| **name != "gives-back").any(|name| *name == "suspended");
        if let Event::Untold { sent, may_apply, stores } = event {
            self.untold.insert(match branch {
                "may-be-given-back" if *sent + MS == until => "explained by a release of the last millisecond",
                "may-be-given-back" if was_suspended => "explained by a release from before a suspension",
                "may-be-given-back" => "explained by a release that left within the lease",
                _ if !may_apply => "not explained by a release that did not arrive",
                _ if *stores => "not explained by a release that stores something",
                _ if *sent < until => "not explained by a release in doubt",
                _ if was_suspended && is_again => "not explained by a release of a later call after a suspension",
                _ if was_suspended && *sent > until => "not explained by a release between the lease and a suspension",
                _ if was_suspended => "not explained by a release after a suspension",
                _ if before.terms().holds_on => "not explained by a release of a holder that held on",
                _ => "not explained by a release that left with the end",
            });
        }
        match (event, branch) {
            (Event::Returned(Return::Lost { .. }), "was-given-back") if is_again => {
                vec!["explained by a release of an earlier call"]
            }
            (Event::Returned(Return::Lost { .. }), _) => self.untold.iter().copied().collect(),
            _ => Vec::new(),
        }
    }

    fn note(&mut self, event: &Event<String>, step: &Step<String>, is_past: bool) {
        let branch = step.branch.name();
        self.branches.push(branch);
        match event {
            Event::Answer { .. } | Event::Unanswered { .. } if branch != "stale" => self.answers.push(branch),
            Event::WarnAt { .. } => self.risks += 1,
            Event::Renew { call, .. } => {
                self.waiting.insert(*call);
            }
            Event::Leave { call } => {
                self.waiting.remove(call);
            }
            _ => {}
        }
        for action in &step.actions {
            match action {
                Action::Finish { call, outcome } => {
                    self.waiting.remove(call);
                    if branch == "held-on" || *outcome == Outcome::Ended {
                        self.ended.insert(*call, *outcome);
                    }
                }
                Action::AtRisk { risk, .. } => {
                    self.told.insert(*risk);
                }
                Action::Renewed { .. } => self.told_before.append(&mut self.told),
                _ => {}
            }
        }
        if is_past {
            self.told.extend(0..self.risks);
        }
    }
}
