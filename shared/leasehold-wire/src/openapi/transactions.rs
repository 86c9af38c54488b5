//! The routes of transactions.

use utoipa::IntoResponses;

use super::{BodyFailures, Failures};
use crate::transactions::{
    AddRequest, AddResponse, BeginRequest, BeginResponse, CommitRequest, CommitResponse, EndRequest, EndResponse,
    GetItemsRequest, GetItemsResponse, GetTransactionRequest, ListItemsRequest, ListItemsResponse,
    ListTransactionsRequest, ListTransactionsResponse, SweepRequest, SweepResponse, Transaction, UnlockRequest,
    UnlockResponse,
};
use crate::{Problem, path};

/// The problems that an operation on users' items may answer besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum TableFailures {
    /// `forbidden`: the service may not use the table.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
}

/// The problems that an operation on a transaction that should be there may answer besides.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "a description, never made")]
enum LookupFailures {
    /// `transaction-not-found`: the transaction was never begun, or ended so long ago that it was removed.
    #[response(status = 404, content_type = "application/problem+json")]
    TransactionNotFound(Problem),
}

/// Opens a transaction, with or without requests, or carries out a whole transaction in one call.
#[utoipa::path(
    post,
    path = path::BEGIN,
    request_body = BeginRequest,
    responses(
        (status = 200, description = "The transaction is open, or committed where that was asked for.",
            body = BeginResponse),
        (status = 409, description = "`contended`: another transaction, `publicId`, has an item; try again. \
            `condition-failed`: the condition of `requests[request]` does not hold, and the transaction was rolled back. \
            `rolled-back`, `committed`: the transaction that was named is over.",
            body = Problem, content_type = "application/problem+json",
            headers(("Retry-After" = u32, description = "Seconds, for `contended`"))),
        TableFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn begin() {}

/// Adds requests to a transaction. Without requests, keeps the transaction alive. A call with a `callId` may be repeated.
#[utoipa::path(
    post,
    path = path::ADD,
    request_body = AddRequest,
    responses(
        (status = 200, description = "The requests are part of the transaction.", body = AddResponse),
        (status = 409, description = "`contended`: another transaction, `publicId`, has an item; try again. \
            `condition-failed`: the condition of `requests[request]` does not hold, and the transaction was rolled back. \
            `rolled-back`, `committed`: the transaction is over.",
            body = Problem, content_type = "application/problem+json",
            headers(("Retry-After" = u32, description = "Seconds, for `contended`"))),
        LookupFailures, TableFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn add() {}

/// Commits all changes of a transaction. May be repeated.
#[utoipa::path(
    post,
    path = path::COMMIT,
    request_body = CommitRequest,
    responses(
        (status = 200, description = "The transaction is committed: everybody sees all of its changes.", body = CommitResponse),
        (status = 409, description = "`rolled-back`: the transaction was rolled back before, and changed nothing. `detail` says why.",
            body = Problem, content_type = "application/problem+json"),
        LookupFailures, TableFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn commit() {}

/// Rolls back all changes of a transaction. May be repeated.
#[utoipa::path(
    post,
    path = path::ROLLBACK,
    request_body = EndRequest,
    responses(
        (status = 200, description = "The transaction is rolled back: all of its changes are undone.", body = EndResponse),
        (status = 409, description = "`committed`: the transaction is committed, and cannot be undone any more.",
            body = Problem, content_type = "application/problem+json"),
        LookupFailures, TableFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn rollback() {}

/// Returns the state of a transaction, even long after its end.
#[utoipa::path(
    get,
    path = path::TRANSACTION,
    params(GetTransactionRequest),
    responses(
        (status = 200, description = "The transaction, its state and its items.", body = Transaction),
        LookupFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn transaction() {}

/// Reads items at an isolation level.
#[utoipa::path(
    post,
    path = path::ITEMS_GET,
    request_body = GetItemsRequest,
    responses(
        (status = 200, description = "The items that exist, each with the attributes that were asked for.", body = GetItemsResponse),
        TableFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn get_items() {}

/// Reads a page of a table at an isolation level: a Query or a Scan.
#[utoipa::path(
    post,
    path = path::ITEMS_LIST,
    request_body = ListItemsRequest,
    responses(
        (status = 200, description = "One page of the items that match.", body = ListItemsResponse),
        TableFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn list_items() {}

/// Lists the transactions that are open, and the decided ones whose items are still locked. For operators.
#[utoipa::path(
    get,
    path = path::TRANSACTIONS,
    params(ListTransactionsRequest),
    responses(
        (status = 200, description = "One page of the transactions that are open or stuck.", body = ListTransactionsResponse),
        Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn list_transactions() {}

/// Unlocks an item whose transaction is unknown, on condition of the lock that was seen. For operators.
#[utoipa::path(
    post,
    path = path::UNLOCK,
    request_body = UnlockRequest,
    responses(
        (status = 200, description = "The item is locked by no transaction.", body = UnlockResponse),
        TableFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn unlock() {}

/// Ends idle transactions, or one transaction whatever its age. For operators; the service also ends idle transactions
/// by itself.
#[utoipa::path(
    post,
    path = path::SWEEP,
    request_body = SweepRequest,
    responses(
        (status = 200, description = "The numbers of transactions that the sweep looked at, completed and rolled back.", body = SweepResponse),
        LookupFailures, BodyFailures, Failures,
    )
)]
#[allow(dead_code, reason = "a description, never called")]
pub(super) fn sweep() {}
