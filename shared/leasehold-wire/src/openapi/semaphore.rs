//! The routes of semaphores.

use utoipa::IntoResponses;

use super::{AccessFailures, BodyFailures, Failures};
use crate::semaphore::{
    AcquirePermitsRequest, AcquirePermitsResponse, BreakEntryRequest, CapacityRequest, CapacityResponse, EnqueueAnswer,
    EnqueueRequest, HeartbeatPermitsRequest, HeartbeatPermitsResponse, ReleasePermitsRequest,
};
use crate::{GetRequest, Lock, Problem, ReleaseResponse, path};

/// The answers of a request under a lease id besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum MemberFailures {
    /// `lost`: the lease id has no permits; `reason` says why. `superseded`: a later request under this lease id was
    /// carried out, and `sequence` is the number to exceed. `permits-mismatch`: the lease id has another number of
    /// permits. `exceeds-capacity`: the semaphore has fewer permits in all. `wrong-kind`: the key belongs to a lock.
    /// `lock` shows the semaphore.
    #[response(status = 409, content_type = "application/problem+json")]
    Refused(Problem),
}

/// The answers of an operator's request besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum OperatorFailures {
    /// `version-mismatch`: the semaphore changed since the operator looked; `lock` shows it. `wrong-kind`: the key
    /// belongs to a lock.
    #[response(status = 409, content_type = "application/problem+json")]
    Changed(Problem),
}

/// Acquires permits of a semaphore.
#[utoipa::path(
    post,
    path = path::SEMAPHORE_ACQUIRE,
    operation_id = "acquirePermits",
    request_body = AcquirePermitsRequest,
    responses(
        (status = 200, description = "The caller has the permits.", body = AcquirePermitsResponse),
        (status = 423, description = "`held`: too few permits are free, or somebody is ahead. `lock` shows the semaphore.",
            body = Problem, content_type = "application/problem+json", headers(("Retry-After" = u32, description = "Seconds"))),
        MemberFailures, AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn acquire() {}

/// Renews the lease of a holder, and may release permits.
#[utoipa::path(
    post,
    path = path::SEMAPHORE_HEARTBEAT,
    operation_id = "heartbeatPermits",
    request_body = HeartbeatPermitsRequest,
    responses(
        (status = 200, description = "The lease of the holder starts anew.", body = HeartbeatPermitsResponse),
        MemberFailures, AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn heartbeat() {}

/// Releases permits, or withdraws a ticket. May be repeated.
#[utoipa::path(
    post,
    path = path::SEMAPHORE_RELEASE,
    operation_id = "releasePermits",
    request_body = ReleasePermitsRequest,
    responses(
        (status = 200, description = "The lease id has no permits and no ticket any more.", body = ReleaseResponse),
        MemberFailures, AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn release() {}

/// Removes a holder or a ticket, as an operator.
#[utoipa::path(
    post,
    path = path::SEMAPHORE_BREAK,
    operation_id = "breakEntry",
    request_body = BreakEntryRequest,
    responses(
        (status = 200, description = "The holder or the ticket is removed.", body = ReleaseResponse),
        OperatorFailures, AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn break_entry() {}

/// Takes a place in the queue of a semaphore, or refreshes it, and removes the observed dead.
#[utoipa::path(
    post,
    path = path::SEMAPHORE_ENQUEUE,
    operation_id = "enqueue",
    request_body = EnqueueRequest,
    responses(
        (status = 200, description = "The caller has a ticket.", body = EnqueueAnswer),
        (status = 423, description = "`queue-full`: 100 wait already. `held`: an entry that was observed as dead shows a sign of \
            life. `lock` shows the semaphore.",
            body = Problem, content_type = "application/problem+json", headers(("Retry-After" = u32, description = "Seconds"))),
        MemberFailures, AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn enqueue() {}

/// Changes the capacity of a semaphore, as an operator.
#[utoipa::path(
    post,
    path = path::SEMAPHORE_CAPACITY,
    operation_id = "setCapacity",
    request_body = CapacityRequest,
    responses(
        (status = 200, description = "The semaphore has the capacity that was asked for.", body = CapacityResponse),
        (status = 404, description = "`not-found`: there is no semaphore of this key.", body = Problem, content_type = "application/problem+json"),
        OperatorFailures, AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn set_capacity() {}

/// Reads one semaphore, strongly consistent.
#[utoipa::path(
    get,
    path = path::SEMAPHORE,
    operation_id = "getSemaphore",
    params(GetRequest),
    responses(
        (status = 200, description = "The semaphore with its holders and its queue.", body = Lock),
        (status = 404, description = "`not-found`: there is no semaphore of this key.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-kind`: the key belongs to a lock.", body = Problem,
            content_type = "application/problem+json"),
        AccessFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn get() {}
