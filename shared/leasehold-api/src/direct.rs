//! Direct invocations: from Step Functions, from `aws lambda invoke`.
//!
//! The input is the same JSON document as over HTTP, with an `action` beside the fields; the output is the same
//! response. A refusal is an error. `Retry` and `Catch` match on its name. Its message is the problem document, without
//! the payload of the lock in it.

use leasehold_wire::{Problem, ProblemType};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::access::Caller;
use crate::route::{Input, Route, document};

/// Step Functions keeps 32,768 characters of an error's cause.
const MAX_PROBLEM_BYTES: usize = 30_000;

/// Carries out one invocation, if its action is one of these operations.
///
/// # Errors
/// The problem; [`ProblemType::error_name`] is the name of the error.
pub async fn invoke<S: 'static>(
    service: &S,
    routes: impl IntoIterator<Item = &'static Route<S>>,
    caller: Caller,
    input: Value,
) -> Result<Box<RawValue>, Problem> {
    let routes: Vec<_> = routes.into_iter().filter(|route| route.operation.is_direct).collect();
    let Value::Object(mut members) = input else {
        return Err(Problem::new(ProblemType::InvalidRequest, "The input must be a JSON object."));
    };
    let Some(Value::String(action)) = members.remove("action") else {
        return Err(Problem::invalid("action", format!("action must be one of {}.", actions(&routes))));
    };
    let Some(route) = routes.iter().find(|route| route.operation.name == action) else {
        return Err(Problem::invalid("action", format!("There is no such action: use {}.", actions(&routes))));
    };
    route.admit(caller)?.carry_out(service, Input::Members(members)).await.map_err(without_payload)
}

/// `acquire, release or get`
fn actions<S: 'static>(routes: &[&Route<S>]) -> String {
    let names: Vec<_> = routes.iter().map(|route| route.operation.name).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Shortens a problem to a length that Step Functions does not truncate, since a truncated one is no JSON document. The
/// lock's payload and attributes are removed, unless they are the short result of an occurrence that is done; `get`
/// returns them. An item, and the names of several locks, are removed where they are too long.
fn without_payload(mut problem: Problem) -> Problem {
    let is_short = |problem: &Problem| document(problem).get().len() <= MAX_PROBLEM_BYTES;
    let is_result = problem.problem_type == ProblemType::AlreadyDone && is_short(&problem);
    if let Some(lock) = problem.lock.as_mut().filter(|_| !is_result) {
        (lock.data, lock.data_base64) = (None, None);
        lock.attributes.clear();
    }
    if !is_short(&problem) {
        (problem.item, problem.locks) = (None, None);
    }
    problem
}
