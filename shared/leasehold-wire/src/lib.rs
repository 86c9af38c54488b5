//! # The wire: requests, answers and problems of API version 1
//!
//! JSON in camelCase. Requests refuse unknown fields, so that a misspelt option is an error and not a surprise;
//! answers may gain fields, so a caller must ignore those that it does not know. The same documents, with an
//! `action` beside the fields, are the input of a direct invocation of the function.
//!
//! These are plain data: what a value may be is checked by the service.

#[cfg(feature = "openapi")]
pub mod openapi;
pub mod operation;
mod problem;
pub mod semaphore;
pub mod transactions;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use problem::{LostReason, Problem, ProblemType, RefusedItem, RefusedLock};

/// A lease id on its way. Its debug output hides the text.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Acquires a lock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcquireRequest {
    /// The lock's key: 1 to 2048 bytes of UTF-8.
    pub key: String,
    /// The lock's sort key: 1 to 1024 bytes. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The owner, for people to read: 1 to 1024 bytes.
    pub owner_name: String,
    /// The secret that will prove possession, good for one acquisition: 1 to 1024 bytes. A request with its own lease
    /// id can be repeated safely. Generated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<Secret>,
    /// The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it.
    /// With it, a request that the network delivers late or twice changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number, where several processes share one lease id: at most 64
    /// bytes. A repeat keeps it. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The lease, in milliseconds: the time in which observers must see no heartbeat before they may take over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 20_000))]
    pub lease_duration_ms: Option<u64>,
    /// The record version number that this caller has seen unchanged for at least the record's own lease, by its own
    /// monotonic clock. The request takes over a lock that still has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_record_version_number: Option<String>,
    /// The judge of a dead holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<Staleness>,
    /// The payload, as text. Without `data` and `dataBase64`, the row's payload stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The payload, as base64: at most 256 KiB when decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// If false, the payload is stored only if the row has none. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_data: Option<bool>,
    /// If true, the row must exist. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_if_exists: Option<bool>,
    /// The occurrence of a recurring job that this acquisition runs, such as `2026-11-21T02`: 1 to 1024 bytes, compared
    /// byte for byte. Refused as `already-done` if it, or a later one, was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<String>,
    /// If true, the occurrence counts as completed from the acquisition on: a failed run is not tried again. Only with
    /// `occurrence`. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most_once: Option<bool>,
    /// Additional attributes of the row, as plain JSON: at most 50. The lock's own names are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub attributes: Option<Map<String, Value>>,
}

/// A request for several keys, locks and permits of semaphores, all or none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcquireAllRequest {
    /// The keys: 2 to 50, each once.
    #[cfg_attr(feature = "openapi", schema(min_items = 2, max_items = 50))]
    pub keys: Vec<WantedLock>,
    /// The owner, for people to read: 1 to 1024 bytes; 128 at most where one of the keys is a semaphore's.
    pub owner_name: String,
    /// The secret that will prove possession of each key, good for one acquisition: 1 to 1024 bytes. A request with
    /// its own lease id can be repeated safely. Generated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<Secret>,
    /// The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number, where several processes share one lease id: at most 64
    /// bytes. A repeat keeps it. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The lease, in milliseconds: the time in which observers must see no heartbeat before they may take over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 20_000))]
    pub lease_duration_ms: Option<u64>,
    /// The judge of dead holders, and of dead waiters of semaphores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<Staleness>,
}

/// One of several requested keys: a lock, or, with `capacity`, permits of a semaphore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WantedLock {
    /// The key: 1 to 2048 bytes of UTF-8.
    pub key: String,
    /// The sort key: 1 to 1024 bytes. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The record version number that this caller has seen unchanged for at least the record's own lease, by its own
    /// monotonic clock. The request takes over a lock that still has it. Only for a lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_record_version_number: Option<String>,
    /// The number of permits of a semaphore. Only with `capacity`. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub permits: Option<u64>,
    /// The number of permits in all, which makes the key a semaphore's. It is that of a new semaphore; an existing one
    /// keeps its capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub capacity: Option<u64>,
    /// Dead holders and tickets of the semaphore, at most ten. The caller saw each with the same version for its own
    /// lease. The request is granted only if all of them are unchanged, and then removes them. Only with `capacity`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<semaphore::ObservedEntry>,
    /// The `epoch` of the answer about this semaphore that the caller saw last before this lease id had permits. A
    /// request with an epoch that more than 16 grants or tickets followed, or a grant of several keys, is refused as
    /// `held`, and so is every late copy of it. Only with `capacity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
}

/// All keys were granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcquireAllResponse {
    /// The owner, for people to read.
    pub owner_name: String,
    /// The secret that proves possession of each key. Heartbeats and releases name one key each: those of permits by
    /// the operations of semaphores.
    pub lease_id: Secret,
    /// The lease, in milliseconds. The holder counts it from before it sent the request.
    pub lease_duration_ms: u64,
    /// The fencing token of all keys, above every token granted for any of them before.
    pub fencing_token: u64,
    /// The keys, in the order of the request.
    pub locks: Vec<GrantedLock>,
}

/// One of several keys that were granted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct GrantedLock {
    /// The key.
    pub key: String,
    /// The sort key, on a table that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The record version number, which changes with every acquire and heartbeat. Of permits, the holder's version.
    pub record_version_number: String,
    /// The public name of the holder of permits, which proves nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_id: Option<String>,
    /// The number of permits of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u64>,
}

/// The judge of a dead holder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Staleness {
    /// The caller, who saw the record version number unchanged for the lease.
    #[default]
    Rvn,
    /// The servers' clocks, which may differ by no more than the service's configured skew.
    Clock,
}

/// A lock was granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcquireResponse {
    /// The lock's key.
    pub key: String,
    /// The sort key, on a table that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The owner, for people to read.
    pub owner_name: String,
    /// The secret that proves possession.
    pub lease_id: Secret,
    /// The record version number, which changes with every acquire and heartbeat.
    pub record_version_number: String,
    /// The lease, in milliseconds. The holder counts it from before it sent the request.
    pub lease_duration_ms: u64,
    /// The fencing token, above every token granted for this key before. Hand it to the resource that the lock
    /// protects.
    pub fencing_token: u64,
    /// The outcome of the acquisition.
    pub outcome: AcquireOutcome,
    /// The row's payload as text: the predecessor's, or the one that was just stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The row's payload as base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// The previous owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_owner_name: Option<String>,
}

/// The outcome of an acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum AcquireOutcome {
    /// There was no row.
    Created,
    /// The lock was released.
    Reacquired,
    /// The lock was stale.
    TakenOver,
    /// The caller held the lock already: the request was a repeat, and counts as a heartbeat.
    Renewed,
}

/// A holder's renewal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The lease id, which proves possession.
    pub lease_id: Secret,
    /// The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it.
    /// With it, a request that the network delivers late or twice changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number, where several processes share one lease id: at most 64
    /// bytes. A repeat keeps it. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// A new lease, in milliseconds. If absent, the row's stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000))]
    pub lease_duration_ms: Option<u64>,
    /// Renews only if the row still has this record version number. After a time-out, repeat without it: the first try
    /// may have been applied and have changed the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_version_number: Option<String>,
    /// The fencing token of the grant. The heartbeat is `lost` if the lock has another one. A copy that arrives after
    /// its lease id was forgotten, and granted again, therefore changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub fencing_token: Option<u64>,
    /// A new payload, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// A new payload, as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// If true, the payload is removed. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_data: Option<bool>,
}

/// The lease starts anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatResponse {
    /// The new record version number.
    pub record_version_number: String,
    /// The lease, in milliseconds. The holder counts it from before it sent the request.
    pub lease_duration_ms: u64,
    /// The fencing token: as granted, or higher if an acquire was repeated.
    pub fencing_token: u64,
    /// True if somebody waits for the lock, by a mark of `want`. A holder may release the lock earlier than planned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wanted: bool,
}

/// A holder's release.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The lease id, which proves possession.
    pub lease_id: Secret,
    /// Releases only if the row still has this record version number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_version_number: Option<String>,
    /// If true, the lock and its data are deleted. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete: Option<bool>,
    /// A payload for the next holder, as text. Not with `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// A payload for the next holder, as base64. Not with `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// The occurrence of the acquisition, which is now done: no later acquire is granted for it. Not with `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<String>,
    /// The time for which the occurrence is remembered at least, in milliseconds. After it, and the retention of all
    /// rows, the row with its data may go, and an acquire for the occurrence is granted again. Absent: for ever. Only
    /// with `completed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 316_224_000_000_u64))]
    pub completed_ttl_ms: Option<u64>,
}

/// Nobody holds the lock under this lease id any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReleaseResponse {
    /// The outcome of the release.
    pub outcome: ReleaseOutcome,
    /// True if somebody may wait for the lock: by a mark of `want`, or the release was a repeat. A caller that acquires
    /// the lock again should pause first. A break and a release of permits tell nothing about it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wanted: bool,
}

/// A waiter's mark on a lock, which its holder learns of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WantRequest {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The waiter, for people to read: 1 to 1024 bytes.
    pub owner_name: String,
}

/// The mark, or the reason why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct WantResponse {
    /// The outcome of the mark.
    pub outcome: WantOutcome,
}

/// The outcome of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WantOutcome {
    /// The lock is marked. Its holder learns of it with its next heartbeat, or with its release.
    Marked,
    /// Somebody marked the lock before.
    AlreadyMarked,
    /// The lock is released, or there is none: acquire it now.
    Free,
    /// Another kind of client wrote the row. Its holder would not learn of a mark.
    NotOurs,
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum ReleaseOutcome {
    /// This request released the lock.
    Released,
    /// An earlier request released the lock: this was a repeat.
    Replayed,
    /// The row is gone.
    Absent,
}

/// An operator's forced release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BreakRequest {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The record version number that the operator saw.
    pub record_version_number: String,
}

/// An operator's change of the last occurrence that is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OccurrenceRequest {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The occurrence that counts as the last one that is done: 1 to 1024 bytes. Occurrences that sort after it may
    /// run.
    pub last_occurrence: String,
    /// The record version number that the operator saw.
    pub record_version_number: String,
}

/// The lock records the occurrence as done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct OccurrenceResponse {
    /// The last occurrence that is done.
    pub last_occurrence: String,
    /// The record version number of the lock.
    pub record_version_number: String,
}

/// The lock to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetRequest {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
}

/// The lock to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchRequest {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The record version number that the caller knows. Empty or absent: the answer comes as soon as there is a lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The `ticketId` of a waiter in the queue of a semaphore, in place of `version`. The answer comes as soon as the
    /// free permits cover this ticket and those ahead of it, or the ticket is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket_id: Option<String>,
    /// The longest wait, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(maximum = 20_000, default = 20_000))]
    pub wait_ms: Option<u64>,
}

/// The filters of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListRequest {
    /// The largest number of locks on a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    pub limit: Option<u64>,
    /// The `nextCursor` of the previous page. The other parameters must be the same again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Lists only locks in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LockState>,
    /// Lists only locks whose current or last owner has this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// Lists only the sort keys under this partition key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The entries of a lock's history to read, from the newest on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HistoryRequest {
    /// The lock's key.
    pub key: String,
    /// The lock's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// No entry before this time, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// No entry after this time, in epoch milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// The largest number of entries on a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    pub limit: Option<u64>,
    /// The `nextCursor` of the previous page. The other parameters must be the same again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// One page of a lock's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HistoryResponse {
    /// The entries, from the newest on. A change is told some seconds after it was made.
    pub entries: Vec<HistoryEntry>,
    /// The start of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One event in the life of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The time of the change, in epoch milliseconds. That of DynamoDB's stream is exact to the second.
    pub at_ms: u64,
    /// What happened.
    pub event: HistoryEvent,
    /// The holder: the new one, or the one whose time ended. Absent where the row's owner was unreadable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// Its fencing token. Absent where another client wrote the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The occurrence that the acquisition was for, or that the release completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<String>,
    /// The holder that a takeover ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_owner_name: Option<String>,
    /// Its fencing token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_fencing_token: Option<u64>,
}

/// What became of the holder of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum HistoryEvent {
    /// A free lock got a holder.
    Acquired,
    /// The holder acquired it once more, under the same lease id and a new fencing token.
    Renewed,
    /// A holder without a sign of life lost it to another one.
    TakenOver,
    /// The holder gave it back.
    Released,
    /// An operator took it from its holder.
    Broken,
    /// Nobody took it over, and DynamoDB's TTL removed its row.
    Expired,
    /// The row was deleted while the lock had a holder: the Java client releases in this way.
    Deleted,
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListResponse {
    /// The locks that match. A page may have fewer than the limit, even none, and still not be the last.
    pub locks: Vec<Lock>,
    /// Rows that are not readable lock records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableRow>,
    /// The start of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A row that is not a readable lock record: an operator must look at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct UnreadableRow {
    /// The row's key.
    pub key: String,
    /// The row's sort key, on a table that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The mistake in the row.
    pub detail: String,
}

/// The public view of a lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// The lock's key.
    pub key: String,
    /// The sort key, on a table that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// Whether the lock has a holder.
    pub state: LockState,
    /// The present or last owner, for people to read.
    pub owner_name: String,
    /// The record version number, which changes with every acquire and heartbeat.
    pub record_version_number: String,
    /// The time for which the record version number must be seen unchanged before the lock is stale, in milliseconds.
    pub lease_duration_ms: u64,
    /// The fencing token. Absent if another kind of client wrote the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The occurrence that the holder runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<String>,
    /// The last occurrence that was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_occurrence: Option<String>,
    /// The owner name of a waiter who marked the lock, so that its holder learns of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted_by: Option<String>,
    /// The payload as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The payload as base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// Additional attributes, as plain JSON. Sets are lists, binary values base64.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub attributes: Map<String, Value>,
    /// The state of a semaphore. Its record version number changes with every write of any holder. The semaphore as a
    /// whole is never stale: its lease is the largest number, and each holder has its own lease.
    #[serde(flatten)]
    pub semaphore: Option<Box<semaphore::SemaphoreState>>,
}

/// Whether a lock has a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum LockState {
    /// The lock has a holder, as far as the table shows. The holder may be dead.
    Held,
    /// The lock has no holder.
    Released,
}

/// Asks whether the service and its table answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
pub struct HealthRequest {}

/// The service and its table answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HealthResponse {
    /// Always `ok`; an unhealthy service answers with a problem.
    pub status: HealthStatus,
}

/// See [`HealthResponse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// The service is healthy.
    Ok,
}
