//! Semaphores: permits of one key for several holders, and a queue for those who wait.

use serde::{Deserialize, Serialize};

use crate::{AcquireOutcome, Secret, Staleness};

/// A number of permits for people to read: "1 permit", "2 permits".
pub fn permits(number: u64) -> String {
    format!("{number} {}", if number == 1 { "permit" } else { "permits" })
}

/// A request for permits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcquirePermitsRequest {
    /// The semaphore's key: 1 to 2048 bytes of UTF-8.
    pub key: String,
    /// The semaphore's sort key: 1 to 1024 bytes. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The owner, for people to read: 1 to 128 bytes.
    pub owner_name: String,
    /// The number of permits. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000, default = 1))]
    pub permits: Option<u64>,
    /// The number of permits of a new semaphore. An existing semaphore keeps its capacity, which the answer shows.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub capacity: u64,
    /// The secret that will prove possession, good for one acquisition: 1 to 1024 bytes. Generated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<Secret>,
    /// The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it. A
    /// holder's acquire with a higher number renews its lease. Without a number, a holder's acquire gets the same
    /// answer again, and renews nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The lease, in milliseconds: the time in which observers must see no heartbeat of this holder before they may
    /// take its permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 60_000))]
    pub lease_duration_ms: Option<u64>,
    /// Dead holders and tickets, at most ten. The caller saw each with the same version for its own lease. The request
    /// is granted only if all of them are unchanged, and then removes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<ObservedEntry>,
    /// The judge of the dead. `rvn`: the caller, who names them in `observed`. `clock`: the service, which removes the
    /// holders and tickets whose lease has passed by its clock, by more than the allowed skew. Default: `rvn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<Staleness>,
    /// The `epoch` of the answer that the caller saw last before this lease id had permits or a ticket. A request with
    /// an epoch that more than 16 grants or tickets followed is refused as `held`, and so is every late copy of it.
    /// Beside `number`: the `epoch` of the view that showed the ticket's turn. The request is granted by one write, if
    /// no turn has ended since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// The number of the caller's ticket, for a caller that waited in the queue. Without this ticket in the queue, the
    /// request is refused as `lost`, with the reason `not-queued`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub number: Option<u64>,
    /// Whether the caller passes tickets ahead that are dead, or that have left permits which they could take. Needs
    /// `number`, and the `epoch` of the view that shows so: after another grant the request is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes: bool,
    /// A payload of this holder, as text, for everyone to read: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The payload as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

/// A holder or a ticket that the caller saw unchanged for its own lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObservedEntry {
    /// The entry's `holderId` or `ticketId`.
    pub holder_id: String,
    /// The entry's version.
    pub version: String,
    /// The entry's permits: required for a holder, without effect for a ticket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u64>,
    /// The holder's `fencingToken`, or the ticket's `number`. Without it, the service makes a second write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// Permits were granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcquirePermitsResponse {
    /// The semaphore's key.
    pub key: String,
    /// The sort key, on a table that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The owner, for people to read.
    pub owner_name: String,
    /// The secret that proves possession.
    pub lease_id: Secret,
    /// The holder's public name, which proves nothing.
    pub holder_id: String,
    /// The version, which changes with every heartbeat of this holder.
    pub version: String,
    /// The lease, in milliseconds. The holder counts it from before it first sent the request.
    pub lease_duration_ms: u64,
    /// The number of the holder's permits.
    pub permits: u64,
    /// The fencing token, above every token granted for this key before.
    pub fencing_token: u64,
    /// The capacity of the semaphore.
    pub capacity: u64,
    /// The outcome: `created` with the semaphore, `reacquired` from the free permits, `takenOver` with those of the
    /// dead, or `renewed`.
    pub outcome: AcquireOutcome,
    /// The age of the semaphore, for the caller's next request under a fresh lease id.
    #[serde(default)]
    pub epoch: String,
}

/// A holder's renewal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeartbeatPermitsRequest {
    /// The semaphore's key.
    pub key: String,
    /// The semaphore's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The lease id, which proves possession.
    pub lease_id: Secret,
    /// The number of this request under its lease id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// A new lease, in milliseconds. If absent, the old one stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000))]
    pub lease_duration_ms: Option<u64>,
    /// Renews only if the holder still has this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The token of the grant. A holder with another token is refused as `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub fencing_token: Option<u64>,
    /// The number of permits to keep. Needs `heldPermits`, and is at most that number: there is no upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub permits: Option<u64>,
    /// Renews only if the holder has this number of permits. Only with `permits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub held_permits: Option<u64>,
    /// A new payload, as text: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// A new payload, as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

/// A holder's lease starts anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatPermitsResponse {
    /// The holder's public name.
    pub holder_id: String,
    /// The holder's new version.
    pub version: String,
    /// The lease, in milliseconds. The holder counts it from before it sent the request.
    pub lease_duration_ms: u64,
    /// The number of the holder's permits.
    pub permits: u64,
    /// The fencing token of the grant.
    pub fencing_token: u64,
}

/// A holder's release, or a waiter's withdrawal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleasePermitsRequest {
    /// The semaphore's key.
    pub key: String,
    /// The semaphore's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The lease id, which proves possession.
    pub lease_id: Secret,
    /// Releases only if the holder, or the ticket, still has this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The token of the grant. Without it, the service makes a second write.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub fencing_token: Option<u64>,
    /// The number of the ticket, where the caller only waits. Without it, the service makes a second write.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub number: Option<u64>,
}

/// An operator's removal of a holder or a ticket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BreakEntryRequest {
    /// The semaphore's key.
    pub key: String,
    /// The semaphore's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The `holderId`, or the `ticketId`.
    pub holder_id: String,
    /// The version that the operator saw.
    pub version: String,
    /// The holder's `fencingToken`, or the ticket's `number`. Without it, the service makes a second write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// An operator's change of the capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CapacityRequest {
    /// The semaphore's key.
    pub key: String,
    /// The semaphore's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The new capacity. Holders keep their permits: after a cut, nothing is granted until enough permits are released.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub capacity: u64,
    /// The capacity that the operator saw.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub expected: u64,
    /// The `capacityVersion` that the operator saw. With it, a late copy of the request changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<String>,
    /// Tells this request from others: at most 64 bytes. A repeat is answered, and not carried out again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// The capacity was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct CapacityResponse {
    /// The number of permits.
    pub capacity: u64,
    /// The number of free permits.
    pub available: u64,
}

/// A request for a place in the queue, or its refresh.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnqueueRequest {
    /// The semaphore's key.
    pub key: String,
    /// The semaphore's sort key. Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The secret under which the permits will be acquired.
    pub lease_id: Secret,
    /// The waiter, for people to read: 1 to 128 bytes.
    pub owner_name: String,
    /// The number of permits that the ticket waits for. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000, default = 1))]
    pub permits: Option<u64>,
    /// The number of permits of a new semaphore. An existing semaphore keeps its capacity.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub capacity: u64,
    /// The number of this request under its lease id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The time in which others must see no refresh of the ticket before they may pass it, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 120_000))]
    pub lease_duration_ms: Option<u64>,
    /// Dead holders and tickets: each was seen by the caller with the same version for its own lease. At most ten. The
    /// request is carried out only if all of them are as they were seen, and then removes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<ObservedEntry>,
    /// The `epoch` of the answer that the caller saw last before this lease id had permits or a ticket. A request with
    /// an epoch that more than 16 grants or tickets followed is refused as `held`, and so is every late copy of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// The number of the ticket, for a refresh. Without this ticket in the queue, the request is refused as `lost`,
    /// with the reason `not-queued`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub number: Option<u64>,
    /// The lease of the permits, where they are free and nobody waits: the answer is then that of an acquire.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 60_000))]
    pub grant_lease_duration_ms: Option<u64>,
    /// A payload of the holder, as text, where the permits are granted at once: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The payload as base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

/// The answer to an enqueue: a place in the queue, or the permits, where they were free and nobody waited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum EnqueueAnswer {
    /// The permits. Only this answer has a `fencingToken`.
    Granted(AcquirePermitsResponse),
    /// A place in the queue. Only this answer has a `ticketId`.
    Queued(EnqueueResponse),
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnqueueResponse {
    /// The ticket's public name, which proves nothing.
    pub ticket_id: String,
    /// The version, which changes with every refresh.
    pub version: String,
    /// The ticket's place: lower numbers go first.
    pub number: u64,
    /// The number of tickets before this one, dead ones among them.
    pub ahead: u64,
    /// The age of the semaphore.
    #[serde(default)]
    pub epoch: String,
}

/// The permits, the holders and the queue of a semaphore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SemaphoreState {
    /// The kind of the row.
    pub kind: Kind,
    /// The number of permits.
    pub capacity: u64,
    /// The number of free permits.
    pub available: u64,
    /// An opaque version that changes when permits are released, and when the queue or the capacity changes.
    pub changed: String,
    /// The age of the semaphore: opaque, new with each grant and each ticket. A request for permits or for a ticket
    /// under a fresh lease id names it.
    #[serde(default)]
    pub epoch: String,
    /// The version of the capacity: opaque, new with each change by an operator.
    #[serde(default)]
    pub capacity_version: String,
    /// The holders, the oldest first.
    pub holders: Vec<Holder>,
    /// The waiters, the first in the queue first.
    pub queue: Vec<Ticket>,
}

/// The kind of a row that is not a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Permits, holders and a queue.
    Semaphore,
}

/// The public view of a holder of permits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The public name.
    pub holder_id: String,
    /// The owner, for people to read.
    pub owner_name: String,
    /// The version, which changes with every heartbeat of this holder.
    pub version: String,
    /// The time for which the version must be seen unchanged before the holder is dead, in milliseconds.
    pub lease_duration_ms: u64,
    /// The number of the holder's permits.
    pub permits: u64,
    /// The fencing token, above the tokens of all earlier holders.
    pub fencing_token: u64,
    /// The holder's payload as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The holder's payload as base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

/// The public view of a waiter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// The public name.
    pub ticket_id: String,
    /// The owner, for people to read.
    pub owner_name: String,
    /// The version, which changes with every refresh.
    pub version: String,
    /// The time for which the version must be seen unchanged before the ticket is dead, in milliseconds.
    pub lease_duration_ms: u64,
    /// The number of permits that the ticket waits for.
    pub permits: u64,
    /// The ticket's place in the queue.
    pub number: u64,
}
