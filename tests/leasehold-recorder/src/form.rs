//! The machine's events, actions and states as JSON, in the form of RFC 8785.

use std::time::Duration;

use leasehold_client_core::{Action, Call, Cause, Event, Outcome, Reply, State, Terms, What};
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
