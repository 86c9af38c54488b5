//! Clean-up after a Step Functions execution that was aborted, timed out or failed.
//!
//! The input is EventBridge's "Step Functions Execution Status Change". It names the execution, whose ARN is the lease
//! id, and carries the execution's input, which names the locks: `key` (and `sortKey`), or `locks`, a list of these.
//! With a `leaseSecret` in the input the lease id is the ARN, a `#`, and that secret. Nothing is read or listed: what the
//! execution did not hold is left alone, because the release proves possession by the lease id.

use leasehold_wire::{Problem, ProblemType, ReleaseOutcome, ReleaseRequest, Secret};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::{Service, parse};

#[derive(Deserialize)]
struct StatusChange {
    detail: Detail,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    execution_arn: String,
    /// A JSON document in a string; null where it is too long for an event.
    input: Option<String>,
}

/// What an execution's input says about its locks, among all that it says to the execution.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Input {
    key: Option<String>,
    sort_key: Option<String>,
    locks: Vec<LockName>,
    lease_secret: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LockName {
    key: String,
    sort_key: Option<String>,
}

/// What became of the execution's locks.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct CleanUp {
    /// One entry for each lock that the input names, in its order.
    pub locks: Vec<CleanedLock>,
}

/// What became of one lock.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CleanedLock {
    /// Which lock.
    pub key: String,
    /// On a table with a sort key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// What the release found.
    pub outcome: CleanUpOutcome,
}

/// What a clean-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CleanUpOutcome {
    /// The execution held it, and holds it no longer.
    Released,
    /// The execution had released it.
    Replayed,
    /// There is no such row.
    Absent,
    /// The lock is not the execution's: someone else has it, or had it since.
    NotHeld,
}

/// Releases all locks that the execution's input names.
///
/// # Errors
/// `invalid-request` for an event or an input that cannot be read; otherwise the first failure of a release, after all
/// were tried. Repeating the event does no harm.
pub async fn release_all(service: &Service, event: Value) -> Result<CleanUp, Problem> {
    let StatusChange { detail } = parse::object(object(event, "The event")?)?;
    let Some(input) = detail.input else {
        let missing = "The event carries no input, as Step Functions leaves out one of more than 248 KiB: \
                       the locks end with their leases.";
        return Err(Problem::invalid("detail.input", missing));
    };
    let input: Input =
        parse::object(object(serde_json::from_str(&input).unwrap_or_default(), "The execution's input")?)?;
    let lease_id = match input.lease_secret {
        Some(secret) => format!("{}#{secret}", detail.execution_arn),
        None => detail.execution_arn,
    };
    let first = input.key.map(|key| LockName { key, sort_key: input.sort_key });
    let mut locks = Vec::new();
    let mut failure = None;
    for name in first.into_iter().chain(input.locks) {
        match release(service, &name, &lease_id).await {
            Ok(outcome) => locks.push(CleanedLock { key: name.key, sort_key: name.sort_key, outcome }),
            Err(problem) => failure = failure.or(Some(problem)),
        }
    }
    failure.map_or(Ok(CleanUp { locks }), Err)
}

async fn release(service: &Service, name: &LockName, lease_id: &str) -> Result<CleanUpOutcome, Problem> {
    let request = ReleaseRequest {
        key: name.key.clone(),
        sort_key: name.sort_key.clone(),
        lease_id: Secret(lease_id.to_owned()),
        ..ReleaseRequest::default()
    };
    // EventBridge tells the end of the execution, whoever the execution was to the service.
    match service.release(&Caller::unrestricted(), request).await {
        Ok(response) => Ok(match response.outcome {
            ReleaseOutcome::Released => CleanUpOutcome::Released,
            ReleaseOutcome::Replayed => CleanUpOutcome::Replayed,
            ReleaseOutcome::Absent => CleanUpOutcome::Absent,
        }),
        Err(problem) if problem.problem_type == ProblemType::Lost => Ok(CleanUpOutcome::NotHeld),
        Err(problem) => Err(problem),
    }
}

fn object(value: Value, what: &str) -> Result<Map<String, Value>, Problem> {
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(Problem::new(ProblemType::InvalidRequest, format!("{what} must be a JSON object."))),
    }
}
