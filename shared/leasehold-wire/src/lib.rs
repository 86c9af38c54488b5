//! # What travels: requests, answers and problems of API version 1
//!
//! JSON in camelCase. Requests refuse unknown fields, so that a misspelt option is an error and not a surprise;
//! answers may gain fields, so a caller must ignore those that it does not know. The same documents, with an
//! `action` beside the fields, are the input of a direct invocation of the function.
//!
//! These are plain data: what a value may be is checked by the service.

#[cfg(feature = "openapi")]
pub mod openapi;
mod problem;
pub mod semaphore;
pub mod transactions;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use problem::{LostReason, Problem, ProblemType, RefusedLock};

/// Where each operation is reached. A key travels in the body or the query, never in the path: gateways decode
/// paths before they hand them on.
pub mod path {
    /// `POST`
    pub const ACQUIRE: &str = "/v1/acquire";
    /// `POST`
    pub const ACQUIRE_ALL: &str = "/v1/acquire-all";
    /// `POST`
    pub const HEARTBEAT: &str = "/v1/heartbeat";
    /// `POST`
    pub const RELEASE: &str = "/v1/release";
    /// `POST`
    pub const BREAK: &str = "/v1/break";
    /// `GET`
    pub const LOCK: &str = "/v1/lock";
    /// `GET`
    pub const WATCH: &str = "/v1/watch";
    /// `GET`
    pub const LOCKS: &str = "/v1/locks";
    /// `GET`
    pub const HEALTH: &str = "/v1/health";
    /// `GET`
    pub const SEMAPHORE: &str = "/v1/semaphore";
    /// `POST`
    pub const SEMAPHORE_ACQUIRE: &str = "/v1/semaphore/acquire";
    /// `POST`
    pub const SEMAPHORE_HEARTBEAT: &str = "/v1/semaphore/heartbeat";
    /// `POST`
    pub const SEMAPHORE_RELEASE: &str = "/v1/semaphore/release";
    /// `POST`
    pub const SEMAPHORE_BREAK: &str = "/v1/semaphore/break";
    /// `POST`
    pub const SEMAPHORE_ENQUEUE: &str = "/v1/semaphore/enqueue";
    /// `POST`
    pub const SEMAPHORE_CAPACITY: &str = "/v1/semaphore/capacity";
    /// `POST`
    pub const BEGIN: &str = "/v1/transactions/begin";
    /// `POST`
    pub const ADD: &str = "/v1/transactions/add";
    /// `POST`
    pub const COMMIT: &str = "/v1/transactions/commit";
    /// `POST`
    pub const ROLLBACK: &str = "/v1/transactions/rollback";
    /// `POST`
    pub const SWEEP: &str = "/v1/transactions/sweep";
    /// `POST`
    pub const UNLOCK: &str = "/v1/transactions/unlock";
    /// `GET`
    pub const TRANSACTIONS: &str = "/v1/transactions";
    /// `GET`
    pub const TRANSACTION: &str = "/v1/transaction";
    /// `POST`
    pub const ITEMS_GET: &str = "/v1/items/get";
    /// `POST`
    pub const ITEMS_LIST: &str = "/v1/items/list";
}

/// A lease id on its way: printing it shows nothing.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Asks for a lock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcquireRequest {
    /// Which lock: 1 to 2048 bytes of UTF-8.
    pub key: String,
    /// Required on a table with a sort key, refused on one without: 1 to 1024 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// Who asks, for people to read: 1 to 1024 bytes.
    pub owner_name: String,
    /// The secret that will prove possession, good for one acquisition: 1 to 1024 bytes. Name one of your own, and
    /// the request can be repeated safely. Generated if absent.
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
    /// How long observers must see no heartbeat before they may take over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 20_000))]
    pub lease_duration_ms: Option<u64>,
    /// The record version number that this caller has seen unchanged for at least the record's own lease, by its own
    /// monotonic clock. With it a stale lock is taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_record_version_number: Option<String>,
    /// How a held lock may be judged dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<Staleness>,
    /// The payload, as text. If neither `data` nor `dataBase64` is given, what the row has stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The payload, as base64: at most 256 KiB when decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// If false, the payload is stored only where the row has none. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_data: Option<bool>,
    /// If true, the row must be there already. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_if_exists: Option<bool>,
    /// The occurrence of a recurring job that this acquisition is to run, such as `2026-11-21T02`: 1 to 1024 bytes,
    /// compared byte for byte. Refused as `already-done` where it, or a later one, was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<String>,
    /// If true, the occurrence counts as completed from the acquisition on: a run that fails is not tried again. Only
    /// with `occurrence`. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most_once: Option<bool>,
    /// Further attributes of the row, as plain JSON: at most 50. The lock's own names are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub attributes: Option<Map<String, Value>>,
}

/// Asks for several locks, all or none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcquireAllRequest {
    /// Which locks: 2 to 50, each once.
    #[cfg_attr(feature = "openapi", schema(min_items = 2, max_items = 50))]
    pub keys: Vec<WantedLock>,
    /// Who asks, for people to read: 1 to 1024 bytes.
    pub owner_name: String,
    /// The secret that will prove possession of each lock, good for one acquisition: 1 to 1024 bytes. Name one of your
    /// own, and the request can be repeated safely. Generated if absent.
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
    /// How long observers must see no heartbeat before they may take over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 20_000))]
    pub lease_duration_ms: Option<u64>,
    /// How held locks may be judged dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<Staleness>,
}

/// One of several locks that are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WantedLock {
    /// Which lock: 1 to 2048 bytes of UTF-8.
    pub key: String,
    /// Required on a table with a sort key, refused on one without: 1 to 1024 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The record version number that this caller has seen unchanged for at least the record's own lease, by its own
    /// monotonic clock. With it a stale lock is taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_record_version_number: Option<String>,
}

/// All locks were granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcquireAllResponse {
    /// Who holds them.
    pub owner_name: String,
    /// The secret that proves possession of each. Heartbeats and releases are for each lock by itself.
    pub lease_id: Secret,
    /// Counted by the holder from before it sent the request.
    pub lease_duration_ms: u64,
    /// One for all, above every token granted for any of the keys before.
    pub fencing_token: u64,
    /// The locks, in the order of the request.
    pub locks: Vec<GrantedLock>,
}

/// One of several locks that were granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct GrantedLock {
    /// Which lock.
    pub key: String,
    /// On a table with a sort key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// Changes with every acquire and heartbeat.
    pub record_version_number: String,
}

/// How a held lock may be judged dead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Staleness {
    /// By the caller, who saw its record version number unchanged for its lease.
    #[default]
    Rvn,
    /// By the servers' clocks, which may differ by no more than the service's configured skew.
    Clock,
}

/// A lock was granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcquireResponse {
    /// Which lock.
    pub key: String,
    /// On a table with a sort key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// Who holds it.
    pub owner_name: String,
    /// The secret that proves possession.
    pub lease_id: Secret,
    /// Changes with every acquire and heartbeat.
    pub record_version_number: String,
    /// Counted by the holder from before it sent the request.
    pub lease_duration_ms: u64,
    /// Above every token granted for this key before. Hand it to the resource that the lock protects.
    pub fencing_token: u64,
    /// How it came about.
    pub outcome: AcquireOutcome,
    /// The row's payload as text: what a predecessor left, or what was just stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The row's payload as base64, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// Who had it before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_owner_name: Option<String>,
}

/// How a grant came about.
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
    /// The caller held it already: the request was a repeat, and counts as a heartbeat.
    Renewed,
}

/// A holder's renewal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// Which lock.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The proof of possession.
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
    /// A new lease. If absent, the row's stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000))]
    pub lease_duration_ms: Option<u64>,
    /// Renew only if the row still has this record version number. After a time-out, repeat without it: the first
    /// try may have been applied and have changed the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_version_number: Option<String>,
    /// The fencing token of the grant. The heartbeat is `lost` where the lock has another one: a copy that arrives
    /// after its lease id was forgotten, and granted again, changes nothing.
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

/// A lease starts anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatResponse {
    /// The new record version number.
    pub record_version_number: String,
    /// Counted by the holder from before it sent the request.
    pub lease_duration_ms: u64,
    /// As granted, or higher if an acquire was repeated.
    pub fencing_token: u64,
}

/// A holder's release.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Which lock.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The proof of possession.
    pub lease_id: Secret,
    /// Release only if the row still has this record version number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_version_number: Option<String>,
    /// If true, the lock reads as not there afterwards, and its data goes. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete: Option<bool>,
    /// What to leave to the next holder, as text. Not with `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// What to leave to the next holder, as base64. Not with `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// The occurrence that the lock was acquired for, which is done: no later acquire is granted for it. Not with
    /// `delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<String>,
}

/// Nobody holds the lock under this lease id any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReleaseResponse {
    /// How that came about.
    pub outcome: ReleaseOutcome,
}

/// How a release came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum ReleaseOutcome {
    /// By this request.
    Released,
    /// By an earlier one: this was a repeat.
    Replayed,
    /// The row is gone.
    Absent,
}

/// An operator's forced release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BreakRequest {
    /// Which lock.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The record version number that the operator saw.
    pub record_version_number: String,
}

/// Which lock to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetRequest {
    /// Which lock.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
}

/// Which lock to watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchRequest {
    /// Which lock.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The record version number that the caller knows. Empty or absent: none, and the answer comes as soon as there is
    /// a lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The longest wait, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(maximum = 20_000, default = 20_000))]
    pub wait_ms: Option<u64>,
}

/// Which locks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListRequest {
    /// At most this many.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    pub limit: Option<u64>,
    /// `nextCursor` of the page before. The other parameters must be the same again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only locks in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LockState>,
    /// Only locks whose current or last owner has this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_name: Option<String>,
    /// Only the sort keys under this partition key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
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
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A row that is not a readable lock record: an operator must look at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct UnreadableRow {
    /// Its key.
    pub key: String,
    /// Its sort key, on a table that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// What is wrong with it.
    pub detail: String,
}

/// What anyone may know of a lock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// Which lock.
    pub key: String,
    /// On a table with a sort key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// Whether it has a holder.
    pub state: LockState,
    /// Who holds it, or held it last.
    pub owner_name: String,
    /// Changes with every acquire and heartbeat.
    pub record_version_number: String,
    /// How long the record version number must be seen unchanged before the lock is stale.
    pub lease_duration_ms: u64,
    /// Absent where another client wrote the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The occurrence that the holder runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<String>,
    /// The last occurrence that was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_occurrence: Option<String>,
    /// The payload as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The payload as base64, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// Further attributes, as plain JSON. Sets are lists, binary values base64.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub attributes: Map<String, Value>,
    /// Only of a semaphore. Its record version number changes with every write of any holder; it is never stale as a
    /// whole, so that its lease here is the longest that a number can say: each holder has a lease of its own.
    #[serde(flatten)]
    pub semaphore: Option<Box<semaphore::SemaphoreState>>,
}

/// Whether a lock has a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum LockState {
    /// It has, as far as the table knows. The holder may be dead.
    Held,
    /// It has none.
    Released,
}

/// The service and its table answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HealthResponse {
    /// Always `ok`; a service that is not answers with a problem.
    pub status: HealthStatus,
}

/// See [`HealthResponse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// All is well.
    Ok,
}
