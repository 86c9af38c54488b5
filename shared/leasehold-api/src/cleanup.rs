//! Clean-up after a Step Functions execution that could not release its locks.
//!
//! The input is EventBridge's "Step Functions Execution Status Change", or a document of the same shape. It names the
//! execution and carries the execution's input, which names the locks: `key` (and `sortKey`), or `locks`, a list of
//! these. The row of each lock names the acquisition, from which the lease id follows ([`ExecutionSecret`]). With an
//! `acquisition` beside the execution's ARN, only that acquisition is released: the execution may still run, and hold
//! the lock by another one. A lock that the execution does not hold is left alone, because the release proves
//! possession by the lease id.
//!
//! An execution that was redriven acquires anew, and its acquisitions tell how often it was redriven before. Those that
//! are younger than the end of the execution are left alone: the execution runs again.
//!
//! The row of a semaphore has many holders and tickets. The owner name of an execution's entry ends with `#` and the
//! acquisition.

use leasehold_wire::semaphore::ReleasePermitsRequest;
use leasehold_wire::{GetRequest, Problem, ProblemType, ReleaseOutcome, ReleaseRequest, Secret};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::execution::acquisition_of;
use crate::{ExecutionSecret, Service, parse};

#[derive(Deserialize)]
struct StatusChange {
    detail: Detail,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Detail {
    execution_arn: String,
    /// The one acquisition to release, where the execution itself requests the clean-up.
    acquisition: Option<String>,
    /// The number of redrives before this end of the execution. A redriven execution may hold a lock by an acquisition
    /// that is younger than this end.
    redrive_count: Option<u64>,
    /// A JSON document in a string; null where it is too long for an event.
    input: Option<String>,
}

/// The members of an execution's input that name its locks.
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

/// The result of a clean-up.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct CleanUp {
    /// One entry for each lock that the input names, in its order.
    pub locks: Vec<CleanedLock>,
}

/// The result for one lock.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CleanedLock {
    /// The key of the lock.
    pub key: String,
    /// The sort key, on a table that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The outcome of the release.
    pub outcome: CleanUpOutcome,
}

/// The outcome of the release of one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CleanUpOutcome {
    /// The execution held the lock, which is now released.
    Released,
    /// The execution had released the lock before.
    Replayed,
    /// The row does not exist.
    Absent,
    /// The lock is not the execution's: another holder has it, or had it since.
    NotHeld,
}

/// Releases all locks that the execution's input names.
///
/// # Errors
/// `invalid-request` for an event or an input that cannot be read. Otherwise the first failure of a release, after all
/// releases were tried. A repeat of the event does no harm.
pub async fn release_all(service: &Service, stack: &ExecutionSecret, event: Value) -> Result<CleanUp, Problem> {
    let StatusChange { detail } = parse::object(object(event, "The event")?)?;
    let Some(input) = detail.input else {
        let missing = "The event carries no input, as Step Functions leaves out one of more than 248 KiB: \
                       the locks end with their leases.";
        return Err(Problem::invalid("detail.input", missing));
    };
    let input: Input =
        parse::object(object(serde_json::from_str(&input).unwrap_or_default(), "The execution's input")?)?;
    let secret = input.lease_secret.as_deref();
    let holder = Holder { arn: &detail.execution_arn, redrives: detail.redrive_count, secret, stack };
    let first = input.key.map(|key| LockName { key, sort_key: input.sort_key });
    let mut locks = Vec::new();
    let mut failure = None;
    for name in first.into_iter().chain(input.locks) {
        match holder.release(service, &name, detail.acquisition.as_deref()).await {
            Ok(outcome) => locks.push(CleanedLock { key: name.key, sort_key: name.sort_key, outcome }),
            Err(problem) => failure = failure.or(Some(problem)),
        }
    }
    failure.map_or(Ok(CleanUp { locks }), Err)
}

/// The execution that may hold the locks.
struct Holder<'a> {
    arn: &'a str,
    redrives: Option<u64>,
    secret: Option<&'a str>,
    stack: &'a ExecutionSecret,
}

impl Holder<'_> {
    async fn release(
        &self,
        service: &Service,
        name: &LockName,
        acquisition: Option<&str>,
    ) -> Result<CleanUpOutcome, Problem> {
        if let Some(acquisition) = acquisition {
            return release(service, name, self.lease_id(acquisition)).await;
        }
        let request = GetRequest { key: name.key.clone(), sort_key: name.sort_key.clone() };
        let lock = match service.get(&Caller::unrestricted(), request.clone()).await {
            Ok(lock) => lock,
            Err(problem) if problem.problem_type == ProblemType::WrongKind => {
                return self.release_permits(service, name, request).await;
            }
            Err(problem) if problem.problem_type == ProblemType::NotFound => return Ok(CleanUpOutcome::Absent),
            Err(problem) => return Err(problem),
        };
        let mut outcome = CleanUpOutcome::NotHeld;
        if let Some(acquisition) = acquisition_of(&lock).filter(|acquisition| !self.is_younger(acquisition)) {
            outcome = release(service, name, self.lease_id(acquisition)).await?;
            if outcome == CleanUpOutcome::Released {
                return Ok(outcome);
            }
        }
        // An execution without acquisitions has one lease id. An earlier acquisition may remain in the row of the next
        // holder.
        match release(service, name, self.lease_id_without_acquisition()).await? {
            CleanUpOutcome::NotHeld => Ok(outcome),
            found => Ok(found),
        }
    }

    /// Gives back all permits of the execution, and withdraws its tickets.
    async fn release_permits(
        &self,
        service: &Service,
        name: &LockName,
        request: GetRequest,
    ) -> Result<CleanUpOutcome, Problem> {
        let lock = service.get_semaphore(&Caller::unrestricted(), request).await?;
        let semaphore = lock.semaphore.iter();
        let holders = semaphore.clone().flat_map(|state| &state.holders).map(|holder| &holder.owner_name);
        let tickets = semaphore.flat_map(|state| &state.queue).map(|ticket| &ticket.owner_name);
        let execution = self.arn.rsplit(':').next().unwrap_or_default();
        let mut outcome = CleanUpOutcome::NotHeld;
        for owner_name in holders.chain(tickets) {
            let Some((owner, acquisition)) = owner_name.rsplit_once('#') else { continue };
            if owner == execution
                && !self.is_younger(acquisition)
                && release(service, name, self.lease_id(acquisition)).await? == CleanUpOutcome::Released
            {
                outcome = CleanUpOutcome::Released;
            }
        }
        Ok(outcome)
    }

    /// Whether the execution asked after a redrive that followed the end that is cleaned up: the text ends with `.` and
    /// the number of redrives before it.
    fn is_younger(&self, acquisition: &str) -> bool {
        let redrives_before = acquisition.rsplit_once('.').and_then(|(_, count)| count.parse::<u64>().ok());
        self.redrives.zip(redrives_before).is_some_and(|(redrives, before)| before > redrives)
    }

    fn lease_id(&self, acquisition: &str) -> String {
        self.stack.lease_id(self.arn, acquisition, self.secret)
    }

    fn lease_id_without_acquisition(&self) -> String {
        self.secret.map_or_else(|| self.arn.to_owned(), |secret| format!("{}#{secret}", self.arn))
    }
}

async fn release(service: &Service, name: &LockName, lease_id: String) -> Result<CleanUpOutcome, Problem> {
    let (key, sort_key, lease_id) = (name.key.clone(), name.sort_key.clone(), Secret(lease_id));
    let request = ReleaseRequest {
        key: key.clone(),
        sort_key: sort_key.clone(),
        lease_id: lease_id.clone(),
        ..ReleaseRequest::default()
    };
    // EventBridge reports the end of the execution, so the release does not depend on the execution's own principal.
    let caller = Caller::unrestricted();
    let answer = match service.release(&caller, request).await {
        Err(problem) if problem.problem_type == ProblemType::WrongKind => {
            let request = ReleasePermitsRequest { key, sort_key, lease_id, ..ReleasePermitsRequest::default() };
            service.release_permits(&caller, request).await
        }
        answer => answer,
    };
    match answer {
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
