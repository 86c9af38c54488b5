//! Direct invocations: from Step Functions, from `aws lambda invoke`.
//!
//! The input is the same JSON document as over HTTP, with an `action` beside the fields; the output is the same
//! response. A refusal is an error whose name `Retry` and `Catch` match on, and whose message is the problem document,
//! without the payload of the lock that it shows.

use leasehold_wire::{Problem, ProblemType};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::{Service, parse};

const ACTIONS: &str = "acquire, heartbeat, release, break or get";

/// Carries out one invocation.
///
/// # Errors
/// The problem; [`ProblemType::error_name`] is the name of the error.
pub async fn invoke(service: &Service, caller: &Caller, input: Value) -> Result<Value, Problem> {
    let Value::Object(mut fields) = input else {
        return Err(Problem::new(ProblemType::InvalidRequest, "The input must be a JSON object."));
    };
    let Some(Value::String(action)) = fields.remove("action") else {
        return Err(Problem::invalid("action", format!("action must be one of {ACTIONS}.")));
    };
    match action.as_str() {
        "acquire" => answer(service.acquire(caller, read(fields)?).await),
        "heartbeat" => answer(service.heartbeat(caller, read(fields)?).await),
        "release" => answer(service.release(caller, read(fields)?).await),
        "break" => answer(service.break_lock(caller, read(fields)?).await),
        "get" => answer(service.get(caller, read(fields)?).await),
        _ => Err(Problem::invalid("action", format!("There is no such action: use {ACTIONS}."))),
    }
}

fn read<T: serde::de::DeserializeOwned>(fields: Map<String, Value>) -> Result<T, Problem> {
    parse::object(fields)
}

fn answer<T: Serialize>(result: Result<T, Problem>) -> Result<Value, Problem> {
    // Strings, numbers and maps with string keys always serialise.
    Ok(serde_json::to_value(result.map_err(without_payload)?).unwrap_or_default())
}

/// Step Functions keeps 32,768 characters of an error's cause, and a problem that was cut is no JSON document any more. So
/// a refusal says whose the lock is, under which version and lease, and leaves the payload to `get`.
fn without_payload(mut problem: Problem) -> Problem {
    if let Some(lock) = &mut problem.lock {
        (lock.data, lock.data_base64) = (None, None);
        lock.attributes.clear();
    }
    problem
}
