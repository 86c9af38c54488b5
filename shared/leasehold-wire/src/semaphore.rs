//! Semaphores: permits of one key for several holders, and a queue for those who wait.

use serde::{Deserialize, Serialize};

use crate::{AcquireOutcome, Secret};

/// Asks for permits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcquirePermitsRequest {
    /// Which semaphore: 1 to 2048 bytes of UTF-8.
    pub key: String,
    /// Required on a table with a sort key, refused on one without: 1 to 1024 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// Who asks, for people to read: 1 to 128 bytes.
    pub owner_name: String,
    /// How many permits. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000, default = 1))]
    pub permits: Option<u64>,
    /// How many permits the semaphore has, where there is none yet. Later the row's capacity holds, and is answered.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub capacity: u64,
    /// The secret that will prove possession, good for one acquisition: 1 to 1024 bytes. Generated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<Secret>,
    /// The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it. An
    /// acquire of a higher number by a holder renews its lease; without a number it is answered as before, and renews
    /// nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// How long observers must see no heartbeat of this holder before they may take its permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 60_000))]
    pub lease_duration_ms: Option<u64>,
    /// Dead holders and tickets: each was seen by the caller with the same version for its own lease. At most ten. The
    /// request is granted only if all of them are as they were seen, and then removes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<ObservedEntry>,
    /// A payload of this holder, as text, for anyone to read: at most 256 bytes.
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
    /// Its `holderId`, or its `ticketId`.
    pub holder_id: String,
    /// Its version.
    pub version: String,
    /// Its permits: required for a holder. Those of a ticket do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permits: Option<u64>,
}

/// Permits were granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AcquirePermitsResponse {
    /// Which semaphore.
    pub key: String,
    /// On a table with a sort key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// Who holds them.
    pub owner_name: String,
    /// The secret that proves possession.
    pub lease_id: Secret,
    /// The public name of this holder. It proves nothing.
    pub holder_id: String,
    /// Changes with every heartbeat of this holder.
    pub version: String,
    /// Counted by the holder from before it first sent the request.
    pub lease_duration_ms: u64,
    /// How many permits it has.
    pub permits: u64,
    /// Above every token granted for this key before.
    pub fencing_token: u64,
    /// How many permits the semaphore has.
    pub capacity: u64,
    /// How the grant came about: `created` with the semaphore, `reacquired` from the free permits, `takenOver` with
    /// those of the dead, or `renewed`.
    pub outcome: AcquireOutcome,
}

/// A holder's renewal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeartbeatPermitsRequest {
    /// Which semaphore.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The proof of possession.
    pub lease_id: Secret,
    /// The number of this request under its lease id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// A new lease. If absent, the old one stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000))]
    pub lease_duration_ms: Option<u64>,
    /// Renew only if the holder still has this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Keep only so many permits. Needs `heldPermits`, and is at most that: there is no upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub permits: Option<u64>,
    /// Renew only if the holder has so many permits. Only with `permits`.
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
    /// The public name of this holder.
    pub holder_id: String,
    /// Its new version.
    pub version: String,
    /// Counted by the holder from before it sent the request.
    pub lease_duration_ms: u64,
    /// How many permits it has.
    pub permits: u64,
    /// As granted.
    pub fencing_token: u64,
}

/// A holder's release, or a waiter's withdrawal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleasePermitsRequest {
    /// Which semaphore.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The proof of possession.
    pub lease_id: Secret,
    /// Release only if the holder, or the ticket, still has this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// An operator's removal of a holder or a ticket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BreakEntryRequest {
    /// Which semaphore.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The `holderId`, or the `ticketId`.
    pub holder_id: String,
    /// The version that the operator saw.
    pub version: String,
}

/// An operator's change of the capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CapacityRequest {
    /// Which semaphore.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The new capacity. Holders keep what they have: after a cut, nothing is granted until enough permits came back.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub capacity: u64,
    /// The capacity that the operator saw.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub expected: u64,
}

/// The capacity is as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct CapacityResponse {
    /// How many permits there are.
    pub capacity: u64,
    /// How many of them are free.
    pub available: u64,
}

/// Takes a place in the queue, or renews it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnqueueRequest {
    /// Which semaphore.
    pub key: String,
    /// Required on a table with a sort key, refused on one without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
    /// The secret under which the permits will be acquired.
    pub lease_id: Secret,
    /// Who waits, for people to read: 1 to 128 bytes.
    pub owner_name: String,
    /// How many permits it waits for. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000, default = 1))]
    pub permits: Option<u64>,
    /// How many permits the semaphore has, where there is none yet.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub capacity: u64,
    /// The number of this request under its lease id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 9_007_199_254_740_991_u64))]
    pub sequence: Option<u64>,
    /// Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// How long others must see no renewal of the ticket before they may pass it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 86_400_000, default = 120_000))]
    pub lease_duration_ms: Option<u64>,
    /// Dead holders and tickets: each was seen by the caller with the same version for its own lease. At most ten. The
    /// request is carried out only if all of them are as they were seen, and then removes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<ObservedEntry>,
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnqueueResponse {
    /// The public name of the ticket. It proves nothing.
    pub ticket_id: String,
    /// Changes with every renewal.
    pub version: String,
    /// Lower numbers go first.
    pub number: u64,
    /// How many tickets are before this one, dead ones among them.
    pub ahead: u64,
}

/// The permits, the holders and the queue of a semaphore.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SemaphoreState {
    /// Not a lock.
    pub kind: Kind,
    /// How many permits there are.
    pub capacity: u64,
    /// How many of them are free.
    pub available: u64,
    /// New whenever permits came back, and whenever the queue or the capacity changed: compare it, and read nothing
    /// from it.
    pub changed: String,
    /// Who has permits; the oldest first.
    pub holders: Vec<Holder>,
    /// Who waits; the first in the line first.
    pub queue: Vec<Ticket>,
}

/// The kind of a row that is no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Permits, holders and a queue.
    Semaphore,
}

/// A holder of permits, as anyone may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Its public name.
    pub holder_id: String,
    /// Who it is, for people to read.
    pub owner_name: String,
    /// Changes with every heartbeat of this holder.
    pub version: String,
    /// How long the version must be seen unchanged before the holder is dead.
    pub lease_duration_ms: u64,
    /// How many permits it has.
    pub permits: u64,
    /// Above the tokens of all holders before it.
    pub fencing_token: u64,
    /// Its payload as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Its payload as base64, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
}

/// One that waits, as anyone may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// Its public name.
    pub ticket_id: String,
    /// Who it is, for people to read.
    pub owner_name: String,
    /// Changes with every renewal.
    pub version: String,
    /// How long the version must be seen unchanged before the ticket is dead.
    pub lease_duration_ms: u64,
    /// How many permits it waits for.
    pub permits: u64,
    /// Its place in the line.
    pub number: u64,
}
