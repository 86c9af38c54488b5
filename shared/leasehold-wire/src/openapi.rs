//! The OpenAPI document, made from the types: `docs/openapi.json` is this, and a test holds the two together.

mod lengths;
mod semaphore;
mod transactions;

use lengths::Lengths;
use utoipa::{IntoResponses, OpenApi};

use crate::{
    AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse, BreakRequest, GetRequest, HealthResponse,
    HeartbeatRequest, HeartbeatResponse, ListRequest, ListResponse, Lock, Problem, ReleaseRequest, ReleaseResponse,
    WatchRequest, path,
};

/// API version 1.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Leasehold",
        version = "1",
        description = "Locks on one DynamoDB table. Acquire, heartbeat, release and break are each one conditional \
            write; the caller owns the heartbeat and judges staleness by comparing record version numbers across its \
            own polls. Transactions change items of any tables together: locked, changed for the transaction's own eyes, \
            and committed by one conditional write.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    servers((url = "http://127.0.0.1:8080", description = "leasehold serve")),
    paths(
        acquire,
        acquire_all,
        heartbeat,
        release,
        break_lock,
        get,
        watch,
        list,
        health,
        semaphore::acquire,
        semaphore::heartbeat,
        semaphore::release,
        semaphore::break_entry,
        semaphore::enqueue,
        semaphore::set_capacity,
        semaphore::get,
        transactions::begin,
        transactions::add,
        transactions::commit,
        transactions::rollback,
        transactions::transaction,
        transactions::get_items,
        transactions::list_items,
        transactions::sweep,
        transactions::list_transactions,
        transactions::unlock,
    ),
    modifiers(&Lengths)
)]
pub struct Api;

/// The problems that any operation may answer.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum Failures {
    /// `invalid-request`: the request breaks a rule of this API. `field` names the field at fault.
    #[response(status = 400, content_type = "application/problem+json")]
    InvalidRequest(Problem),
    /// `method-not-allowed`: this path takes another method, which `Allow` names.
    #[response(status = 405, content_type = "application/problem+json")]
    MethodNotAllowed(Problem),
    /// `throttled`: slow down, and try again with the same lease id or transaction id. `Retry-After` says when.
    #[response(status = 429, content_type = "application/problem+json")]
    Throttled(Problem),
    /// `corrupt-record`: the row is not a readable record of this service; an operator must look at it.
    /// `misconfigured`: the service cannot work with its table, and its operator must act.
    #[response(status = 500, content_type = "application/problem+json")]
    CorruptRecord(Problem),
    /// `unavailable`: the outcome of the request is unknown; try again with the same lease id or transaction id.
    /// `Retry-After` says when.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}

/// The problems that an operation on a key may answer besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum AccessFailures {
    /// `forbidden`: the caller may not touch this key, or the lock is bound to another principal. (A gateway that
    /// refuses the credentials answers 401 or 403 as well, with a document of its own.)
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
}

/// The problems that an operation with a body may answer besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum BodyFailures {
    /// `too-large`: the payload is over 256 KiB, or the body over 2 MiB (4 MiB for transactions), or the row or the
    /// answer exceeds the limits of DynamoDB or of the service.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(Problem),
    /// `unsupported-media-type`: the body is not declared as JSON.
    #[response(status = 415, content_type = "application/problem+json")]
    UnsupportedMediaType(Problem),
}

/// The problems that an operation which needs possession may answer besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum PossessionFailures {
    /// `lost`: the lock is not the caller's. `reason` says why, and `lock` shows its state.
    #[response(status = 409, content_type = "application/problem+json")]
    Lost(Problem),
}

/// The problems that an operation which takes a sequence may answer besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum SequenceFailures {
    /// `lost`: the lock is not the caller's. `reason` says why, and `lock` shows its state. `superseded`: a later
    /// request under this lease id was carried out, and this one changed nothing. The caller still holds the lock;
    /// `sequence` is the number to exceed.
    #[response(status = 409, content_type = "application/problem+json")]
    LostOrSuperseded(Problem),
}

/// Acquires a lock.
#[utoipa::path(
    post,
    path = path::ACQUIRE,
    request_body = AcquireRequest,
    responses(
        (status = 200, description = "The caller holds the lock.", body = AcquireResponse),
        (status = 404, description = "`not-found`: there is no row, and `onlyIfExists` was given.",
            body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`lost`: the acquisition of this lease id has ended. `superseded`: a later request under this \
            lease id was carried out, and this one changed nothing; the caller still has the lock. `already-done`: the \
            occurrence, or a later one, was completed; the data of `lock` is the result.",
            body = Problem, content_type = "application/problem+json"),
        (status = 423, description = "`held`: another caller holds the lock. `lock` says who, for how long, and which version to observe.",
            body = Problem, content_type = "application/problem+json", headers(("Retry-After" = u32, description = "Seconds"))),
        AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
fn acquire() {}

/// Acquires several locks, all or none, in one transaction of DynamoDB. All have one fencing token. Heartbeats and
/// releases name one lock each, under the one lease id.
#[utoipa::path(
    post,
    path = path::ACQUIRE_ALL,
    request_body = AcquireAllRequest,
    responses(
        (status = 200, description = "The caller holds all locks.", body = AcquireAllResponse),
        (status = 409, description = "`lost`: the lease id holds some of the locks and not those in `locks`, or its acquisition of \
            those has ended. `superseded`: a later request under this lease id was carried out, and this one changed nothing; the \
            caller still has the locks.", body = Problem, content_type = "application/problem+json"),
        (status = 423, description = "`held`: other callers hold some of the locks. `locks` says which, who, for how long, and which \
            versions to observe.",
            body = Problem, content_type = "application/problem+json", headers(("Retry-After" = u32, description = "Seconds"))),
        AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
fn acquire_all() {}

/// Renews a lease.
#[utoipa::path(
    post,
    path = path::HEARTBEAT,
    request_body = HeartbeatRequest,
    responses(
        (status = 200, description = "The lease starts anew.", body = HeartbeatResponse),
        SequenceFailures, AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
fn heartbeat() {}

/// Releases a lock. May be repeated.
#[utoipa::path(
    post,
    path = path::RELEASE,
    request_body = ReleaseRequest,
    responses(
        (status = 200, description = "Nobody holds the lock under this lease id any more.", body = ReleaseResponse),
        PossessionFailures, AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
fn release() {}

/// Takes a lock from its holder, as an operator.
#[utoipa::path(
    post,
    path = path::BREAK,
    operation_id = "break",
    request_body = BreakRequest,
    responses(
        (status = 200, description = "The lock has no holder.", body = ReleaseResponse),
        (status = 409, description = "`version-mismatch`: the lock changed since the operator looked.",
            body = Problem, content_type = "application/problem+json"),
        AccessFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
fn break_lock() {}

/// Reads one lock, strongly consistent.
#[utoipa::path(
    get,
    path = path::LOCK,
    params(GetRequest),
    responses(
        (status = 200, description = "The lock as it is.", body = Lock),
        (status = 404, description = "`not-found`: there is no lock of this key, or it was deleted.", body = Problem, content_type = "application/problem+json"),
        AccessFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
fn get() {}

/// Waits until a lock changes: its record version number is no longer `version`, or it is released. The answer is a
/// hint, which may come late or without a change; the next write decides. After `waitMs` the answer is the lock as it
/// is.
#[utoipa::path(
    get,
    path = path::WATCH,
    params(WatchRequest),
    responses(
        (status = 200, description = "The lock, changed or not: its version tells.", body = Lock),
        (status = 404, description = "`not-found`: there is no such lock, or none any more.",
            body = Problem, content_type = "application/problem+json"),
        AccessFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
fn watch() {}

/// Lists locks.
#[utoipa::path(
    get,
    path = path::LOCKS,
    params(ListRequest),
    responses((status = 200, description = "One page of the locks that the caller may see.", body = ListResponse), AccessFailures, Failures)
)]
#[allow(dead_code, reason = "a description, never called")]
fn list() {}

/// Says whether the service and its table answer.
#[utoipa::path(
    get,
    path = path::HEALTH,
    responses((status = 200, description = "The service and its table answer.", body = HealthResponse), Failures)
)]
#[allow(dead_code, reason = "a description, never called")]
fn health() {}
