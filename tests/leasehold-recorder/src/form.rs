//! The machines' events, actions and states as JSON, in the form of RFC 8785.

use std::time::Duration;

use leasehold_client_core::holder::{self, Beats, Grant, Return};
use leasehold_client_core::{Action, Call, Cause, Event, Holder, LossReason, Outcome, Reply, State, Terms, What};
use serde_json::{Map, Value, json};

pub(crate) fn ms(time: Duration) -> Value {
    json!(u64::try_from(time.as_millis()).expect("a bounded time"))
}

pub(crate) fn terms(terms: &Terms) -> Value {
    json!({
        "leaseMs": terms.lease.map(ms),
        "delayMs": ms(terms.delay),
        "longestMs": ms(terms.longest),
        "boundMs": ms(terms.bound),
    })
}

pub(crate) fn event(event: &Event<String>) -> Value {
    match event {
        Event::Start { request, timeout } => json!({ "type": "start", "request": request, "timeout": ms(*timeout) }),
        Event::Answer { send, reply } => json!({ "type": "answer", "send": send, "reply": self::reply(*reply) }),
        Event::Unanswered { send, cause } => {
            json!({ "type": "unanswered", "send": send, "cause": self::cause(*cause) })
        }
        Event::Tick => json!({ "type": "tick" }),
        Event::Cancel => json!({ "type": "cancel" }),
        Event::Taken => json!({ "type": "taken" }),
    }
}

fn reply(reply: Reply) -> Value {
    match reply {
        Reply::Done { lease, found } => json!({ "type": "done", "leaseMs": lease.map(ms), "found": found }),
        Reply::Refused => json!({ "type": "refused" }),
        Reply::Lost => json!({ "type": "lost" }),
        Reply::Superseded { sequence } => json!({ "type": "superseded", "sequence": sequence }),
        Reply::Retryable { retry_after, may_apply } => {
            json!({ "type": "retryable", "retryAfterMs": ms(retry_after), "mayApply": may_apply })
        }
    }
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::NotSent => "not-sent",
        Cause::Unreached => "unreached",
        Cause::CutOff => "cut-off",
        Cause::TimedOut => "timed-out",
    }
}

pub(crate) fn action(action: &Action<String>) -> Value {
    match action {
        Action::Send { send, what, timeout } => {
            json!({ "type": "send", "send": send, "what": self::what(what), "timeout": ms(*timeout) })
        }
        Action::Abandon { send } => json!({ "type": "abandon", "send": send }),
        Action::WakeAt(time) => json!({ "type": "wake-at", "time": ms(*time) }),
        Action::Finish(outcome) => json!({ "type": "finish", "outcome": self::outcome(*outcome) }),
        Action::Background => json!({ "type": "background" }),
    }
}

fn what(what: &What<String>) -> Value {
    match what {
        What::Plain(request) => json!({ "type": "plain", "request": request }),
        What::Numbered(numbered) => json!({
            "type": "numbered",
            "request": numbered.request,
            "sequence": numbered.sequence,
            "requestId": numbered.id,
            "firstSent": ms(numbered.first_sent),
        }),
        What::Release { key } => json!({ "type": "release", "key": key }),
    }
}

fn outcome(outcome: Outcome) -> Value {
    match outcome {
        Outcome::Answered { send } => json!({ "type": "answered", "send": send }),
        Outcome::TooLate { send } => json!({ "type": "too-late", "send": send }),
        Outcome::Failed { send } => json!({ "type": "failed", "send": send }),
    }
}

/// The state by name, with what a reader needs to follow it.
pub(crate) fn state(call: &Call<String>) -> Value {
    let (name, more) = match call.state() {
        State::Idle => ("idle", Value::Null),
        State::Asking { send } => ("asking", json!(send)),
        State::Paused { until } => ("paused", ms(*until)),
        State::Granted => ("granted", Value::Null),
        State::Leaving { send } => ("leaving", json!(send)),
        State::Releasing { send } => ("releasing", json!(send)),
        State::ReleasePaused { until } => ("release-paused", ms(*until)),
        State::Doubting { until } => ("doubting", ms(*until)),
        State::Ended => ("ended", Value::Null),
    };
    let mut state = Map::new();
    state.insert("name".into(), name.into());
    match name {
        "asking" | "leaving" | "releasing" => drop(state.insert("send".into(), more)),
        "paused" | "release-paused" | "doubting" => drop(state.insert("until".into(), more)),
        _ => {}
    }
    state.insert("last".into(), call.turns().last().into());
    state.insert("mayHold".into(), call.may_hold().into());
    state.insert("open".into(), call.turns().open().map(|open| open.sequence).into());
    state.into()
}

pub(crate) fn holder_terms(terms: &holder::Terms) -> Value {
    let beats = match terms.beats {
        Beats::Quarterly => json!("quarterly"),
        Beats::Every(interval) => ms(interval),
        Beats::Manual => json!("manual"),
    };
    json!({
        "beats": beats,
        "delayMs": ms(terms.delay),
        "holdsOn": terms.holds_on,
        "maxHoldMs": terms.max_hold.map(ms),
        "longestMs": ms(terms.longest),
    })
}

pub(crate) fn grant(grant: &Grant) -> Value {
    json!({ "sent": ms(grant.sent), "leaseMs": ms(grant.lease), "token": grant.token, "sequence": grant.sequence })
}

pub(crate) fn holder_event(event: &holder::Event<String>) -> Value {
    use holder::Event;
    match event {
        Event::Start => json!({ "type": "start" }),
        Event::Renew { call, change, lease } => {
            json!({ "type": "renew", "call": call, "change": change, "leaseMs": lease.map(ms) })
        }
        Event::Leave { call } => json!({ "type": "leave", "call": call }),
        Event::Answer { send, reply } => {
            json!({ "type": "answer", "send": send, "reply": holder_reply(*reply) })
        }
        Event::Unanswered { send, cause } => {
            json!({ "type": "unanswered", "send": send, "cause": self::cause(*cause) })
        }
        Event::Tick => json!({ "type": "tick" }),
        Event::WarnAt { left } => json!({ "type": "warn-at", "leftMs": left.map(ms) }),
        Event::Release => json!({ "type": "release" }),
        Event::Untold { sent, may_apply, stores } => {
            json!({ "type": "untold", "sent": ms(*sent), "mayApply": may_apply, "stores": stores })
        }
        Event::Returned(end) => json!({ "type": "returned", "end": returned(*end) }),
        Event::Detach => json!({ "type": "detach" }),
        Event::Revoke { reason } => json!({ "type": "revoke", "reason": reason.word() }),
        Event::Suspended => json!({ "type": "suspended" }),
        Event::Forked => json!({ "type": "forked" }),
    }
}

fn holder_reply(reply: holder::Reply) -> Value {
    use holder::Reply;
    match reply {
        Reply::Renewed { lease, token, wanted } => {
            json!({ "type": "renewed", "leaseMs": ms(lease), "token": token, "wanted": wanted })
        }
        Reply::Refused => json!({ "type": "refused" }),
        Reply::Lost { reason } => json!({ "type": "lost", "reason": reason.word() }),
        Reply::Superseded { sequence, token } => json!({ "type": "superseded", "sequence": sequence, "token": token }),
        Reply::Retryable { retry_after, may_apply } => {
            json!({ "type": "retryable", "retryAfterMs": ms(retry_after), "mayApply": may_apply })
        }
    }
}

fn returned(end: Return) -> Value {
    match end {
        Return::Done => json!({ "type": "done" }),
        Return::Lost { reason } => json!({ "type": "lost", "reason": reason.word() }),
        Return::Failed => json!({ "type": "failed" }),
    }
}

pub(crate) fn holder_action(action: &holder::Action<String>) -> Value {
    use holder::Action;
    match action {
        Action::Send { send, beat, timeout } => json!({
            "type": "send",
            "send": send,
            "beat": {
                "leaseMs": ms(beat.request.lease),
                "change": beat.request.change,
                "sequence": beat.sequence,
                "requestId": beat.id,
                "firstSent": ms(beat.first_sent),
            },
            "timeout": ms(*timeout),
        }),
        Action::Abandon { send } => json!({ "type": "abandon", "send": send }),
        Action::WakeAt(time) => json!({ "type": "wake-at", "time": ms(*time) }),
        Action::Renewed { send } => json!({ "type": "renewed", "send": send }),
        Action::Finish { call, outcome } => {
            let outcome = match outcome {
                holder::Outcome::Renewed => json!({ "type": "renewed" }),
                holder::Outcome::Failed { send } => json!({ "type": "failed", "send": send }),
                holder::Outcome::Ended => json!({ "type": "ended" }),
            };
            json!({ "type": "finish", "call": call, "outcome": outcome })
        }
        Action::AtRisk { risk, left } => json!({ "type": "at-risk", "risk": risk, "leftMs": ms(*left) }),
        Action::Lost { reason } => json!({ "type": "lost", "reason": reason.word() }),
        Action::GiveBack { lease, patience } => {
            json!({ "type": "give-back", "leaseMs": ms(*lease), "patienceMs": ms(*patience) })
        }
    }
}

/// The state of a holder by name, with what a reader needs to follow it.
pub(crate) fn holder_state(holder: &Holder<String>) -> Value {
    use holder::State;
    let name = match holder.state() {
        State::Held => "held",
        State::Releasing => "releasing",
        State::Unreleased => "unreleased",
        State::Released => "released",
        State::Detached => "detached",
        State::Lost(_) => "lost",
    };
    json!({
        "name": name,
        "until": ms(holder.until()),
        "leaseMs": ms(holder.lease()),
        "last": holder.turns().last(),
        "open": holder.turns().open().map(|open| open.sequence),
        "underWay": holder.under_way(),
        "wanted": holder.is_wanted(),
        "trouble": holder.trouble(),
    })
}

/// The belief of a holder at this time.
/// A line without an event.
pub(crate) fn asked(name: &str, holder: &Holder<String>, now: Duration) -> Value {
    json!({ "holder": name, "at": ms(now), "belief": belief(holder, now) })
}

pub(crate) fn belief(holder: &Holder<String>, now: Duration) -> Value {
    json!({
        "valid": holder.valid(now),
        "remainingMs": ms(holder.remaining(now)),
        "loss": holder.loss(now).map(LossReason::word),
        "inDoubt": holder.in_doubt(),
    })
}

/// Writes a value with its members in order. All texts are ASCII here, and all numbers are short.
pub(crate) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            let members: Vec<_> =
                members.into_iter().map(|(name, value)| format!("{}:{}", json!(name), canonical(value))).collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(values) => format!("[{}]", values.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Number(number) if number.as_f64() == Some(0.0) => "0".into(),
        other => other.to_string(),
    }
}
