//! Converts between the wire and the protocol.

use std::fmt::Display;

use base64::{Engine, prelude::BASE64_STANDARD};
use leasehold_protocol::{
    Acquire, AcquireAnswer, Break, CompletedTtl, Completion, Data, DataChange, Disposal, Error, ErrorKind, Grant,
    GrantOutcome, Heartbeat, LeaseDuration, LeaseId, LockKey, LockState, LockView, Lost, Occurrence, Once, OwnerName,
    Principal, Release, ReleaseOutcome, Rvn, Sequence, SetOccurrence, Want, lifecycle,
};
use leasehold_wire::{
    self as wire, AcquireOutcome, AcquireRequest, AcquireResponse, BreakRequest, HeartbeatRequest, LostReason,
    OccurrenceRequest, Problem, ProblemType, ReleaseRequest, Secret, Staleness, WantRequest,
};

use crate::attributes;

/// The problem that the caller reads. The log reads [`Error::for_log`].
pub(crate) fn problem(error: &Error) -> Problem {
    match error.kind() {
        ErrorKind::InvalidRequest { field } => Problem::invalid(field, error.to_string()),
        ErrorKind::TooLarge => Problem::new(ProblemType::TooLarge, error.to_string()),
        ErrorKind::CorruptRecord => Problem::new(
            ProblemType::CorruptRecord,
            format!("{error} It is not taken for free: an operator must repair or delete the row."),
        ),
        ErrorKind::Misconfigured => misconfigured(),
        ErrorKind::Throttled => {
            Problem::new(ProblemType::Throttled, "The table is busy. Try again, with the same lease id.")
        }
        ErrorKind::Unavailable => Problem::new(
            ProblemType::Unavailable,
            "The table did not answer, and nobody knows whether it did what was asked. Try again, with the same lease id.",
        ),
    }
}

/// The caller learns neither the names of tables nor the reason: the log has both.
pub(crate) fn misconfigured() -> Problem {
    Problem::new(
        ProblemType::Misconfigured,
        "The service cannot work with its table: the table is missing, has other keys, or the service may not use it. Nothing \
         was changed, and a retry changes nothing. Whoever runs the service finds the reason in its log.",
    )
}

/// Names the part of the request whose field is at fault.
pub(crate) fn within(part: impl Display, problem: Problem) -> Problem {
    Problem { field: problem.field.map(|field| format!("{part}.{field}")), ..problem }
}

pub(crate) fn key(key: String, sort_key: Option<String>) -> Result<LockKey, Problem> {
    LockKey::new(key, sort_key).map_err(|error| problem(&error))
}

pub(crate) fn want(request: WantRequest) -> Result<Want, Problem> {
    Ok(Want { key: key(request.key, request.sort_key)?, owner_name: checked(OwnerName::new(request.owner_name))? })
}

pub(crate) fn acquire(request: AcquireRequest, principal: Option<Principal>) -> Result<Acquire, Problem> {
    Ok(Acquire {
        staleness: staleness(request.staleness.unwrap_or_default(), request.observed_record_version_number)?,
        key: key(request.key, request.sort_key)?,
        owner_name: checked(OwnerName::new(request.owner_name))?,
        lease_id: request.lease_id.map_or_else(|| Ok(LeaseId::generate()), lease_id)?,
        sequence: sequence(request.sequence, request.request_id)?,
        lease_duration: lease_duration(request.lease_duration_ms)?.unwrap_or_default(),
        data: data(request.data, request.data_base64)?,
        replace_data: request.replace_data.unwrap_or(true),
        only_if_exists: request.only_if_exists.unwrap_or(false),
        once: once(request.occurrence, request.at_most_once.unwrap_or(false))?,
        attributes: request.attributes.as_ref().map(attributes::from_json).transpose()?.unwrap_or_default(),
        principal,
    })
}

/// The evidence that an acquire relies on: the caller's observation of a version, the clock, or none.
pub(crate) fn staleness(by: Staleness, observed_rvn: Option<String>) -> Result<leasehold_protocol::Staleness, Problem> {
    match (by, observed_rvn) {
        (Staleness::Clock, Some(_)) => Err(Problem::invalid(
            "observedRecordVersionNumber",
            "Either name the observed version or rely on the clock, not both.",
        )),
        (Staleness::Clock, None) => Ok(leasehold_protocol::Staleness::Clock),
        (Staleness::Rvn, None) => Ok(leasehold_protocol::Staleness::Never),
        (Staleness::Rvn, Some(rvn)) => {
            checked(Rvn::new("observedRecordVersionNumber", rvn)).map(leasehold_protocol::Staleness::Observed)
        }
    }
}

pub(crate) fn heartbeat(request: HeartbeatRequest, principal: Option<Principal>) -> Result<Heartbeat, Problem> {
    let data = match (data(request.data, request.data_base64)?, request.delete_data.unwrap_or(false)) {
        (Some(_), true) => return Err(Problem::invalid("deleteData", "Either set the data or delete it, not both.")),
        (Some(data), false) => DataChange::Set(data),
        (None, true) => DataChange::Delete,
        (None, false) => DataChange::Keep,
    };
    Ok(Heartbeat {
        key: key(request.key, request.sort_key)?,
        lease_id: lease_id(request.lease_id)?,
        sequence: sequence(request.sequence, request.request_id)?,
        lease_duration: lease_duration(request.lease_duration_ms)?,
        data,
        expected: expected(request.record_version_number)?,
        fencing_token: request.fencing_token,
        principal,
    })
}

pub(crate) fn release(request: ReleaseRequest, principal: Option<Principal>) -> Result<Release, Problem> {
    let ttl = request.completed_ttl_ms.map(|ms| checked(CompletedTtl::from_millis(ms))).transpose()?;
    let completed = match (request.completed, ttl) {
        (Some(name), ttl) => Some(Completion { occurrence: checked(Occurrence::new("completed", name))?, ttl }),
        (None, None) => None,
        (None, Some(_)) => {
            return Err(Problem::invalid("completedTtlMs", "Name the occurrence that is done as completed, too."));
        }
    };
    let disposal = match (data(request.data, request.data_base64)?, request.delete.unwrap_or(false), completed) {
        (Some(_), true, _) => {
            return Err(Problem::invalid("delete", "A deleted row keeps no data: leave out delete, or the data."));
        }
        (None, true, Some(_)) => {
            return Err(Problem::invalid(
                "completed",
                "A completed occurrence is kept: leave out delete, or completed.",
            ));
        }
        (data, false, None) => Disposal::Keep(data),
        (data, false, Some(completion)) => Disposal::Complete(completion, data),
        (None, true, None) => Disposal::Delete,
    };
    Ok(Release {
        key: key(request.key, request.sort_key)?,
        lease_id: lease_id(request.lease_id)?,
        disposal,
        expected: expected(request.record_version_number)?,
        principal,
    })
}

pub(crate) fn break_lock(request: BreakRequest) -> Result<Break, Problem> {
    Ok(Break {
        key: key(request.key, request.sort_key)?,
        seen: checked(Rvn::new("recordVersionNumber", request.record_version_number))?,
    })
}

pub(crate) fn set_occurrence(request: OccurrenceRequest) -> Result<SetOccurrence, Problem> {
    Ok(SetOccurrence {
        key: key(request.key, request.sort_key)?,
        last: checked(Occurrence::new("lastOccurrence", request.last_occurrence))?,
        seen: checked(Rvn::new("recordVersionNumber", request.record_version_number))?,
    })
}

/// Builds the response to a granted acquire.
pub(crate) fn acquire_response(grant: Grant, lease_id: &LeaseId) -> AcquireResponse {
    let row = grant.row;
    let (data, data_base64) = show_data(row.data);
    AcquireResponse {
        key: row.key.partition().to_owned(),
        sort_key: row.key.sort().map(str::to_owned),
        owner_name: row.owner_name.into_value().unwrap_or_default(),
        lease_id: Secret(lease_id.expose().to_owned()),
        record_version_number: row.rvn.into_value().unwrap_or_default(),
        lease_duration_ms: row.lease_ms.into_value().unwrap_or_default(),
        fencing_token: grant.fencing_token,
        outcome: grant_outcome(grant.outcome),
        data,
        data_base64,
        previous_owner_name: grant.previous_owner_name,
    }
}

pub(crate) fn grant_outcome(outcome: GrantOutcome) -> AcquireOutcome {
    match outcome {
        GrantOutcome::Created => AcquireOutcome::Created,
        GrantOutcome::Reacquired => AcquireOutcome::Reacquired,
        GrantOutcome::TakenOver => AcquireOutcome::TakenOver,
        GrantOutcome::Renewed => AcquireOutcome::Renewed,
    }
}

/// Returns the grant, or the problem that answers a refused acquire.
pub(crate) fn grant_or_refusal(answer: AcquireAnswer) -> Result<Grant, Problem> {
    match answer {
        AcquireAnswer::Granted(grant) => Ok(grant),
        AcquireAnswer::Held(lock) => Err(held(
            lock,
            "Someone else holds the lock. Poll; when you have seen its recordVersionNumber unchanged for its \
             leaseDurationMs, send it as observedRecordVersionNumber.",
        )),
        AcquireAnswer::HeldBeyondClocks(lock) => Err(held(
            lock,
            "Another client wrote this lock, without a time that the clock could judge. Only an observation can take it \
             over: poll without staleness, and send the recordVersionNumber that you saw unchanged for its \
             leaseDurationMs as observedRecordVersionNumber.",
        )),
        AcquireAnswer::Lost(ended) => {
            let detail = match ended.reason {
                lifecycle::LostReason::Released => "The acquisition of this lease id was released. Use a new lease id.",
                _ => "Another acquisition has followed the one of this lease id. Use a new lease id.",
            };
            Err(Problem { detail: detail.into(), ..lost(ended) })
        }
        AcquireAnswer::Superseded(superseded) => Err(self::superseded(superseded)),
        AcquireAnswer::AlreadyDone(lock) => Err(Problem {
            lock: lock.map(|lock| Box::new(show_lock(lock))),
            ..Problem::new(
                ProblemType::AlreadyDone,
                "This occurrence, or a later one, was completed. Do not run it: the lock's data is what its run left.",
            )
        }),
        AcquireAnswer::NotFound => Err(not_found()),
        AcquireAnswer::WrongKind => Err(no_lock()),
    }
}

pub(crate) fn lost_reason(reason: lifecycle::LostReason) -> LostReason {
    match reason {
        lifecycle::LostReason::Absent => LostReason::Absent,
        lifecycle::LostReason::Released => LostReason::Released,
        lifecycle::LostReason::TakenOver => LostReason::TakenOver,
        lifecycle::LostReason::VersionMismatch => LostReason::VersionMismatch,
        lifecycle::LostReason::Queued => LostReason::Queued,
        lifecycle::LostReason::NotQueued => LostReason::NotQueued,
    }
}

pub(crate) fn lost(lost: Lost) -> Problem {
    let detail = match lost.reason {
        lifecycle::LostReason::Absent => "There is no such lock any more.",
        lifecycle::LostReason::Released => "The lock was released, or broken by an operator.",
        lifecycle::LostReason::TakenOver => "Another acquisition has taken the lock.",
        lifecycle::LostReason::VersionMismatch => {
            "The lock is held under this lease id, but under another recordVersionNumber than the one given."
        }
        lifecycle::LostReason::Queued => "This lease id waits in the queue, and has no permits.",
        lifecycle::LostReason::NotQueued => {
            "The ticket of this request is not in the queue. Begin with a fresh lease id."
        }
    };
    Problem {
        reason: Some(lost_reason(lost.reason)),
        lock: lost.lock.map(|lock| Box::new(show_lock(lock))),
        ..Problem::new(ProblemType::Lost, detail)
    }
}

pub(crate) fn superseded(superseded: lifecycle::Superseded) -> Problem {
    Problem {
        sequence: Some(superseded.sequence),
        record_version_number: superseded.rvn.map(Into::into),
        fencing_token: superseded.fencing_token,
        lock: superseded.lock.map(|lock| Box::new(show_lock(lock))),
        ..Problem::new(
            ProblemType::Superseded,
            "A later request under this lease id was carried out, and this one changed nothing. Nothing is lost: \
             go on with a number above sequence.",
        )
    }
}

/// The problem for a lock that has a holder.
pub(crate) fn held(lock: LockView, detail: &str) -> Problem {
    Problem { lock: Some(Box::new(show_lock(lock))), ..Problem::new(ProblemType::Held, detail) }
}

/// The problem for a right lease id from a principal that the lock is not bound to.
pub(crate) fn bound_to_another() -> Problem {
    let detail = "The lock was acquired under this lease id by another principal, and only that one may renew or release it. \
                  Nothing was changed.";
    Problem::new(ProblemType::Forbidden, detail)
}

/// The problem for a release that completes an occurrence for which the lock was not acquired.
pub(crate) fn other_occurrence() -> Problem {
    Problem::invalid(
        "completed",
        "The lock was not acquired for this occurrence. Nothing was changed: the lock is still yours.",
    )
}

pub(crate) fn version_mismatch(lock: Option<LockView>) -> Problem {
    let detail = match lock {
        Some(_) => "The lock changed since you looked. Look again before you change it.",
        None => "No lock of this key has this recordVersionNumber.",
    };
    Problem { lock: lock.map(|lock| Box::new(show_lock(lock))), ..Problem::new(ProblemType::VersionMismatch, detail) }
}

/// The problem for a lock's operation on a key that is no lock's.
pub(crate) fn no_lock() -> Problem {
    let detail = "This key is no lock's. Where GET /v1/locks shows it as a semaphore, use the routes of /v1/semaphore.";
    Problem::new(ProblemType::WrongKind, detail)
}

pub(crate) fn not_found() -> Problem {
    Problem::new(ProblemType::NotFound, "No lock has this key.")
}

pub(crate) fn release_outcome(outcome: ReleaseOutcome) -> wire::ReleaseOutcome {
    match outcome {
        ReleaseOutcome::Released => wire::ReleaseOutcome::Released,
        ReleaseOutcome::Replayed => wire::ReleaseOutcome::Replayed,
        ReleaseOutcome::Absent => wire::ReleaseOutcome::Absent,
    }
}

pub(crate) fn show_lock(lock: LockView) -> wire::Lock {
    let (data, data_base64) = show_data(lock.data);
    wire::Lock {
        key: lock.key.partition().to_owned(),
        sort_key: lock.key.sort().map(str::to_owned),
        state: show_state(lock.state),
        owner_name: lock.owner_name,
        record_version_number: lock.rvn,
        lease_duration_ms: lock.lease_ms,
        fencing_token: lock.fencing_token,
        occurrence: lock.occurrence,
        last_occurrence: lock.last_occurrence,
        wanted_by: lock.wanted_by,
        data,
        data_base64,
        attributes: attributes::to_json(lock.attributes),
        semaphore: None,
    }
}

pub(crate) fn show_state(state: LockState) -> wire::LockState {
    match state {
        LockState::Held => wire::LockState::Held,
        LockState::Released => wire::LockState::Released,
    }
}

pub(crate) fn state(state: wire::LockState) -> LockState {
    match state {
        wire::LockState::Held => LockState::Held,
        wire::LockState::Released => LockState::Released,
    }
}

/// Returns a payload as text where it is UTF-8, and as base64 where it is not.
pub(crate) fn show_data(data: Option<Vec<u8>>) -> (Option<String>, Option<String>) {
    match data.map(String::from_utf8) {
        None => (None, None),
        Some(Ok(text)) => (Some(text), None),
        Some(Err(error)) => (None, Some(BASE64_STANDARD.encode(error.as_bytes()))),
    }
}

pub(crate) fn data(text: Option<String>, base64: Option<String>) -> Result<Option<Data>, Problem> {
    let bytes = match (text, base64) {
        (Some(_), Some(_)) => return Err(Problem::invalid("dataBase64", "Give data or dataBase64, not both.")),
        (None, None) => return Ok(None),
        (Some(text), None) => text.into_bytes(),
        (None, Some(base64)) => BASE64_STANDARD
            .decode(base64)
            .map_err(|error| Problem::invalid("dataBase64", format!("dataBase64 is not base64: {error}.")))?,
    };
    checked(Data::new(bytes)).map(Some)
}

pub(crate) fn lease_id(secret: Secret) -> Result<LeaseId, Problem> {
    checked(LeaseId::new(secret.0))
}

pub(crate) fn sequence(number: Option<u64>, request_id: Option<String>) -> Result<Option<Sequence>, Problem> {
    match (number, request_id) {
        (Some(number), request_id) => checked(Sequence::new(number, request_id)).map(Some),
        (None, Some(_)) => {
            Err(Problem::invalid("requestId", "requestId belongs to a sequence: give both, or neither."))
        }
        (None, None) => Ok(None),
    }
}

fn once(occurrence: Option<String>, at_most_once: bool) -> Result<Option<Once>, Problem> {
    match occurrence {
        Some(occurrence) => {
            let occurrence = checked(Occurrence::new("occurrence", occurrence))?;
            Ok(Some(Once { occurrence, at_most_once }))
        }
        None if at_most_once => {
            Err(Problem::invalid("atMostOnce", "atMostOnce belongs to an occurrence: give both, or leave it out."))
        }
        None => Ok(None),
    }
}

pub(crate) fn lease_duration(millis: Option<u64>) -> Result<Option<LeaseDuration>, Problem> {
    millis.map(|millis| checked(LeaseDuration::from_millis(millis))).transpose()
}

fn expected(rvn: Option<String>) -> Result<Option<Rvn>, Problem> {
    rvn.map(|rvn| checked(Rvn::new("recordVersionNumber", rvn))).transpose()
}

pub(crate) fn checked<T>(value: Result<T, Error>) -> Result<T, Problem> {
    value.map_err(|error| problem(&error))
}
