//! Replays the recorded runs of a holder (`clients/vectors/traces`), as the ports do.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold_client_core::holder::{Beats, Event, Grant, Reply, Return, Terms};
use leasehold_client_core::{Cause, Chance, Holder, LossReason, Purpose};
use serde_json::{Value, json};

#[allow(dead_code, unreachable_pub, reason = "the recorder writes more than is replayed here")]
#[path = "../../../tests/leasehold-recorder/src/form.rs"]
mod form;

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn ms(value: &Value) -> Duration {
    Duration::from_millis(number(value))
}

fn optional(value: &Value) -> Option<Duration> {
    (!value.is_null()).then(|| ms(value))
}

fn is_true(value: &Value) -> bool {
    value.as_bool().expect("true or false")
}

fn reason(value: &Value) -> LossReason {
    let reasons = [
        LossReason::TakenOver,
        LossReason::Released,
        LossReason::Absent,
        LossReason::VersionMismatch,
        LossReason::Expired,
        LossReason::MaxHold,
        LossReason::Deadline,
        LossReason::Forked,
    ];
    reasons.into_iter().find(|reason| value == reason.word()).expect("a reason")
}

fn cause(value: &Value) -> Cause {
    match value.as_str() {
        Some("not-sent") => Cause::NotSent,
        Some("unreached") => Cause::Unreached,
        Some("cut-off") => Cause::CutOff,
        _ => Cause::TimedOut,
    }
}

fn reply(given: &Value) -> Reply {
    match given["type"].as_str() {
        Some("renewed") => Reply::Renewed {
            lease: ms(&given["leaseMs"]),
            token: number(&given["token"]),
            wanted: is_true(&given["wanted"]),
        },
        Some("refused") => Reply::Refused,
        Some("lost") => Reply::Lost { reason: reason(&given["reason"]) },
        Some("superseded") => {
            Reply::Superseded { sequence: number(&given["sequence"]), token: given["token"].as_u64() }
        }
        _ => {
            let may_apply = is_true(&given["mayApply"]);
            Reply::Retryable { retry_after: ms(&given["retryAfterMs"]), may_apply }
        }
    }
}

fn event(given: &Value) -> Event<String> {
    let (call, send) = (&given["call"], &given["send"]);
    match given["type"].as_str().expect("a type") {
        "start" => Event::Start,
        "renew" => {
            let change = text(&given["change"]);
            Event::Renew { call: number(call), change, lease: optional(&given["leaseMs"]) }
        }
        "leave" => Event::Leave { call: number(call) },
        "answer" => Event::Answer { send: number(send), reply: reply(&given["reply"]) },
        "unanswered" => Event::Unanswered { send: number(send), cause: cause(&given["cause"]) },
        "tick" => Event::Tick,
        "warn-at" => Event::WarnAt { left: optional(&given["leftMs"]) },
        "release" => Event::Release,
        "untold" => Event::Untold {
            sent: ms(&given["sent"]),
            may_apply: is_true(&given["mayApply"]),
            stores: is_true(&given["stores"]),
        },
        "returned" => Event::Returned(match given["end"]["type"].as_str() {
            Some("done") => Return::Done,
            Some("lost") => Return::Lost { reason: reason(&given["end"]["reason"]) },
            _ => Return::Failed,
        }),
        "detach" => Event::Detach,
        "revoke" => Event::Revoke { reason: reason(&given["reason"]) },
        "suspended" => Event::Suspended,
        "forked" => Event::Forked,
        other => panic!("an unknown event: {other}"),
    }
}

fn holder(line: &Value) -> Holder<String> {
    let (terms, grant) = (&line["terms"], &line["grant"]);
    let beats = match terms["beats"].as_str() {
        Some("quarterly") => Beats::Quarterly,
        Some(_) => Beats::Manual,
        None => Beats::Every(ms(&terms["beats"])),
    };
    let terms = Terms {
        beats,
        delay: ms(&terms["delayMs"]),
        holds_on: is_true(&terms["holdsOn"]),
        max_hold: optional(&terms["maxHoldMs"]),
        longest: ms(&terms["longestMs"]),
    };
    let (sent, lease) = (ms(&grant["sent"]), ms(&grant["leaseMs"]));
    Holder::new(terms, Grant { sent, lease, token: number(&grant["token"]), sequence: number(&grant["sequence"]) })
}

/// The draws of one line, each of which is made once, in order.
struct Draws(Vec<Value>);

impl Draws {
    fn next(&mut self, purpose: Purpose) -> Value {
        assert!(!self.0.is_empty(), "a draw too many");
        let drawn = self.0.remove(0);
        assert_eq!(drawn["purpose"], purpose.name());
        drawn
    }
}

impl Chance for Draws {
    fn fraction(&mut self, purpose: Purpose) -> f64 {
        self.next(purpose)["fraction"].as_f64().expect("a fraction")
    }

    fn id(&mut self, purpose: Purpose) -> String {
        text(&self.next(purpose)["id"])
    }
}

#[test]
fn holder_takes_the_steps_of_each_trace() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/vectors/traces");
    let mut runs = 0;
    for file in fs::read_dir(folder).expect("the folder").flatten() {
        let mut replayed = None;
        for (index, line) in fs::read_to_string(file.path()).expect("a file").lines().enumerate() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let Some(name) = line["holder"].as_str() else { continue };
            let place = format!("{}, line {}: {name} at {}", file.path().display(), index + 1, line["at"]);
            if line["grant"].is_object() {
                replayed = Some(holder(&line));
                runs += 1;
                continue;
            }
            let (holder, at) = (replayed.as_mut().expect("a grant"), ms(&line["at"]));
            if line["event"].is_object() {
                let event = event(&line["event"]);
                assert_eq!(form::holder_event(&event), line["event"], "{place}");
                let mut draws = Draws(line["draws"].as_array().expect("draws").clone());
                let step = holder.step(event, at, &mut draws);
                let actions: Vec<_> = step.actions.iter().map(form::holder_action).collect();
                assert_eq!(json!([step.branch.name(), actions]), json!([line["branch"], line["actions"]]), "{place}");
                assert_eq!(form::holder_state(holder), line["state"], "{place}");
                assert!(draws.0.is_empty(), "{place}: a draw too few");
            }
            assert_eq!(form::belief(holder, at), line["belief"], "{place}");
        }
    }
    assert!(runs > 30, "{runs}");
}
