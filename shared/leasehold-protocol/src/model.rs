//! The words of the protocol as types. A value that exists is valid.

use std::collections::BTreeMap;
use std::fmt;

use aws_sdk_dynamodb::types::AttributeValue;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::semaphore;
use leasehold_dynamodb::fresh_uuid;

/// The longest partition key that DynamoDB takes, in bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 2048;
/// The longest sort key that DynamoDB takes, in bytes of UTF-8.
pub const MAX_SORT_KEY_BYTES: usize = 1024;
/// The longest owner name, lease id or record version number, in bytes of UTF-8. A Step Functions execution ARN, the
/// longest name in common use, has fewer than 400; the rest is reserve.
pub const MAX_NAME_BYTES: usize = 1024;
/// The largest payload of one lock. With the attributes' share it stays well below DynamoDB's 400 KB item.
pub const MAX_DATA_BYTES: usize = 256 * 1024;
/// The longest request id, in bytes of UTF-8: a UUID has 36.
pub const MAX_REQUEST_ID_BYTES: usize = 64;
/// The highest sequence: the largest number that every JSON parser holds exactly.
pub const MAX_SEQUENCE: u64 = (1 << 53) - 1;
/// The shortest lease: with a shorter one, network jitter alone would make a holder look dead.
pub const MIN_LEASE_MS: u64 = 100;
/// The longest lease: a day.
pub const MAX_LEASE_MS: u64 = 86_400_000;
/// The longest time for which a completed occurrence is remembered, if not for ever: ten years. A longer one is a
/// mistake in the unit.
pub const MAX_COMPLETED_TTL_MS: u64 = 10 * 366 * 86_400_000;
/// The lease of a caller that names none: the Java client's default.
pub const DEFAULT_LEASE_MS: u64 = 20_000;

pub(crate) fn check_length(field: &'static str, value: &str, max: usize) -> Result<(), Error> {
    match value.len() {
        0 => Err(Error::invalid(field, format!("{field} must not be empty."))),
        n if n > max => Err(Error::invalid(field, format!("{field} is {n} bytes long; at most {max} are allowed."))),
        _ => Ok(()),
    }
}

/// The name of a lock: a partition key and, on a table that has one, a sort key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey {
    partition: String,
    sort: Option<String>,
}

impl LockKey {
    /// # Errors
    /// `InvalidRequest` unless the key has 1 to 2048 bytes and the sort key 1 to 1024.
    pub fn new(partition: impl Into<String>, sort: Option<String>) -> Result<Self, Error> {
        let partition = partition.into();
        check_length("key", &partition, MAX_KEY_BYTES)?;
        if let Some(sort) = &sort {
            check_length("sortKey", sort, MAX_SORT_KEY_BYTES)?;
        }
        Ok(Self { partition, sort })
    }

    /// A key that DynamoDB itself returned.
    pub(crate) fn stored(partition: String, sort: Option<String>) -> Self {
        Self { partition, sort }
    }

    /// The partition key.
    pub fn partition(&self) -> &str {
        &self.partition
    }

    /// The sort key, if there is one.
    pub fn sort(&self) -> Option<&str> {
        self.sort.as_deref()
    }
}

/// The name of a holder, for people to read. It proves nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerName(String);

impl OwnerName {
    /// # Errors
    /// `InvalidRequest` unless it has 1 to 1024 bytes.
    pub fn new(name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        check_length("ownerName", &name, MAX_NAME_BYTES)?;
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The holder's secret for one acquisition. Its debug output shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseId(String);

impl LeaseId {
    /// # Errors
    /// `InvalidRequest` unless it has 1 to 1024 bytes.
    pub fn new(id: impl Into<String>) -> Result<Self, Error> {
        let id = id.into();
        check_length("leaseId", &id, MAX_NAME_BYTES)?;
        Ok(Self(id))
    }

    /// Generates a fresh lease id, for a caller that sent none.
    pub fn generate() -> Self {
        Self(fresh_uuid())
    }

    /// The secret itself, for its owner alone.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The hash that the table stores.
    pub fn hash(&self) -> LeaseIdHash {
        LeaseIdHash(Sha256::digest(self.0.as_bytes()).into())
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseId(redacted)")
    }
}

/// The identity of the caller, as the authentication names it: a role's ARN or a token's subject. It is not secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal(String);

impl Principal {
    /// # Errors
    /// `InvalidRequest` unless it has 1 to 1024 bytes.
    pub fn new(principal: impl Into<String>) -> Result<Self, Error> {
        let principal = principal.into();
        check_length("principal", &principal, MAX_NAME_BYTES)?;
        Ok(Self(principal))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// SHA-256 of a lease id. A guessable lease id can be found from its hash, so the hash is not printed either.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LeaseIdHash(pub(crate) [u8; 32]);

impl fmt::Debug for LeaseIdHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseIdHash(redacted)")
    }
}

/// The time without a heartbeat after which observers may take over: 100 ms to a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseDuration(u64);

impl LeaseDuration {
    /// # Errors
    /// `InvalidRequest` unless it is 100 ms to 86,400,000 ms.
    pub fn from_millis(millis: u64) -> Result<Self, Error> {
        if (MIN_LEASE_MS..=MAX_LEASE_MS).contains(&millis) {
            return Ok(Self(millis));
        }
        Err(Error::invalid(
            "leaseDurationMs",
            format!("leaseDurationMs must be {MIN_LEASE_MS} to {MAX_LEASE_MS}, not {millis}."),
        ))
    }

    /// The lease in milliseconds.
    pub fn as_millis(self) -> u64 {
        self.0
    }
}

impl Default for LeaseDuration {
    fn default() -> Self {
        Self(DEFAULT_LEASE_MS)
    }
}

/// The place of a request in the order of requests under its lease id. A repeat of a request has the same two parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sequence {
    number: u64,
    request_id: Option<String>,
}

impl Sequence {
    /// # Errors
    /// `InvalidRequest` unless the number is 1 to 2^53 - 1 and the request id has 1 to 64 bytes.
    pub fn new(number: u64, request_id: Option<String>) -> Result<Self, Error> {
        if !(1..=MAX_SEQUENCE).contains(&number) {
            return Err(Error::invalid("sequence", format!("sequence must be 1 to {MAX_SEQUENCE}, not {number}.")));
        }
        if let Some(id) = &request_id {
            check_length("requestId", id, MAX_REQUEST_ID_BYTES)?;
        }
        Ok(Self { number, request_id })
    }

    /// The place that a row stores.
    pub(crate) fn stored(number: u64, request_id: Option<String>) -> Self {
        Self { number, request_id }
    }

    /// The number, which its holder raises with every new request.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The request id, which tells requests of the same number apart where several processes share a lease id.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }
}

/// A record version number as a caller names it: any non-empty string, since other clients may use other values than
/// UUIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rvn(String);

impl Rvn {
    /// # Errors
    /// `InvalidRequest`, naming `field`, unless it has 1 to 1024 bytes.
    pub fn new(field: &'static str, rvn: impl Into<String>) -> Result<Self, Error> {
        let rvn = rvn.into();
        check_length(field, &rvn, MAX_NAME_BYTES)?;
        Ok(Self(rvn))
    }

    /// The number.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One run of a recurring job, by its name, such as `2026-11-21T02`. Occurrences are compared byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occurrence(String);

impl Occurrence {
    /// # Errors
    /// `InvalidRequest`, naming `field`, unless it has 1 to 1024 bytes.
    pub fn new(field: &'static str, occurrence: impl Into<String>) -> Result<Self, Error> {
        let occurrence = occurrence.into();
        check_length(field, &occurrence, MAX_NAME_BYTES)?;
        Ok(Self(occurrence))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The occurrence that an acquisition is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Once {
    /// The occurrence. The acquire is refused where the row records it, or a later one, as done.
    pub occurrence: Occurrence,
    /// Records the occurrence as done from the acquisition on, so that a failed run is not retried.
    pub at_most_once: bool,
}

/// A caller's payload.
#[derive(Clone, PartialEq, Eq)]
pub struct Data(Vec<u8>);

impl Data {
    /// # Errors
    /// `TooLarge` above 256 KiB.
    pub fn new(bytes: Vec<u8>) -> Result<Self, Error> {
        if bytes.len() > MAX_DATA_BYTES {
            return Err(Error::new(
                crate::ErrorKind::TooLarge,
                format!("data is {} bytes long; at most {MAX_DATA_BYTES} are allowed.", bytes.len()),
            ));
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes)", self.0.len())
    }
}

/// Further attributes of a row.
pub type Attributes = BTreeMap<String, AttributeValue>;

/// The evidence by which an acquire may judge a held lock stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staleness {
    /// None: the acquire waits for the release.
    Never,
    /// The caller saw this record version number unchanged for the record's own lease.
    Observed(Rvn),
    /// The caller saw this record version number unchanged, and the server's clock is past `staleAt` by more than the
    /// configured skew. A row that another client wrote has no such time: there the observation alone is enough.
    ObservedAndClock(Rvn),
    /// The server's clock is past `staleAt` by more than the configured skew.
    Clock,
}

impl Staleness {
    /// Adds the server's clock to an observation as a second condition.
    #[must_use]
    pub fn checked_by_clock(self) -> Self {
        match self {
            Self::Observed(rvn) => Self::ObservedAndClock(rvn),
            other => other,
        }
    }
}

/// A request for a lock.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// The lock's key.
    pub key: LockKey,
    /// The owner who asks for the lock.
    pub owner_name: OwnerName,
    /// The secret that will prove possession.
    pub lease_id: LeaseId,
    /// The place of this request in the order of requests under the lease id. Without it, a late or repeated copy
    /// counts as a new request.
    pub sequence: Option<Sequence>,
    /// The lease.
    pub lease_duration: LeaseDuration,
    /// The evidence by which a held lock may be judged stale.
    pub staleness: Staleness,
    /// The payload to store. Without it, the row's payload stays.
    pub data: Option<Data>,
    /// Whether `data` replaces the row's payload. If not, it is stored only where the row has none.
    pub replace_data: bool,
    /// Whether the request must not create the row.
    pub only_if_exists: bool,
    /// The occurrence to run. Without it, the acquisition is for none.
    pub once: Option<Once>,
    /// Further attributes to set. None may have one of the protocol's own names.
    pub attributes: Attributes,
    /// The principal that the lock is bound to: no other may renew or release it. Without it, the lease id alone
    /// suffices.
    pub principal: Option<Principal>,
}

/// The maximum number of keys in one request: DynamoDB takes 100 writes in a transaction, and bills each twice.
pub const MAX_KEYS_AT_ONCE: usize = 50;

/// One of several keys that are wanted together.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// A lock.
    Lock(Acquire),
    /// Permits of a semaphore. The request names no ticket.
    Permits(semaphore::Acquire),
}

impl From<Acquire> for Wanted {
    fn from(request: Acquire) -> Self {
        Self::Lock(request)
    }
}

impl From<semaphore::Acquire> for Wanted {
    fn from(request: semaphore::Acquire) -> Self {
        Self::Permits(request)
    }
}

impl Wanted {
    /// The key.
    pub fn key(&self) -> &LockKey {
        match self {
            Self::Lock(request) => &request.key,
            Self::Permits(request) => &request.key,
        }
    }

    /// The owner who asks.
    pub fn owner_name(&self) -> &OwnerName {
        match self {
            Self::Lock(request) => &request.owner_name,
            Self::Permits(request) => &request.owner_name,
        }
    }

    /// The secret that will prove possession.
    pub fn lease_id(&self) -> &LeaseId {
        match self {
            Self::Lock(request) => &request.lease_id,
            Self::Permits(request) => &request.lease_id,
        }
    }

    /// The lease.
    pub fn lease_duration(&self) -> LeaseDuration {
        match self {
            Self::Lock(request) => request.lease_duration,
            Self::Permits(request) => request.lease_duration,
        }
    }

    pub(crate) fn sequence(&self) -> Option<&Sequence> {
        match self {
            Self::Lock(request) => request.sequence.as_ref(),
            Self::Permits(request) => request.sequence.as_ref(),
        }
    }
}

/// A request for several keys, all or none.
#[derive(Debug, Clone)]
pub struct AcquireAll(Vec<Wanted>);

impl AcquireAll {
    /// Takes one request for each key. They have one owner, lease id, sequence, lease and principal.
    ///
    /// # Errors
    /// `InvalidRequest` unless there are 2 to 50 different keys.
    pub fn new(wanted: Vec<Wanted>) -> Result<Self, Error> {
        if !(2..=MAX_KEYS_AT_ONCE).contains(&wanted.len()) {
            let detail = format!("keys must name 2 to {MAX_KEYS_AT_ONCE} keys, not {}.", wanted.len());
            return Err(Error::invalid("keys", detail));
        }
        let mut seen = std::collections::HashSet::new();
        if !wanted.iter().all(|wanted| seen.insert(wanted.key())) {
            return Err(Error::invalid("keys", "keys names a key twice."));
        }
        Ok(Self(wanted))
    }

    /// The requests, in the caller's order.
    pub fn wanted(&self) -> &[Wanted] {
        &self.0
    }
}

/// The change that a heartbeat makes to the payload.
#[derive(Debug, Clone, Default)]
pub enum DataChange {
    /// Keeps the payload.
    #[default]
    Keep,
    /// Replaces the payload.
    Set(Data),
    /// Removes the payload.
    Delete,
}

/// A holder's renewal.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The lock's key.
    pub key: LockKey,
    /// The proof of possession.
    pub lease_id: LeaseId,
    /// The place of this request in the order of requests under the lease id. Without it, a late or repeated copy
    /// counts as a new request.
    pub sequence: Option<Sequence>,
    /// The new lease. Without it, the row's stays.
    pub lease_duration: Option<LeaseDuration>,
    /// The change to the payload.
    pub data: DataChange,
    /// The record version number that the row must still have, if given.
    pub expected: Option<Rvn>,
    /// The fencing token that the row must have, if given: it tells the grant from a later one under the same lease id.
    pub fencing_token: Option<u64>,
    /// The principal, if given: the lock must be bound to no other.
    pub principal: Option<Principal>,
}

/// A holder's release.
#[derive(Debug, Clone)]
pub struct Release {
    /// The lock's key.
    pub key: LockKey,
    /// The proof of possession.
    pub lease_id: LeaseId,
    /// The state in which the row is left.
    pub disposal: Disposal,
    /// The record version number that the row must still have, if given.
    pub expected: Option<Rvn>,
    /// The principal, if given: the lock must be bound to no other.
    pub principal: Option<Principal>,
}

/// The state in which a release leaves the row.
#[derive(Debug, Clone)]
pub enum Disposal {
    /// The row stays, with its fencing token, and with new data if given.
    Keep(Option<Data>),
    /// As `Keep`, and the row records the running occurrence as done.
    Complete(Completion, Option<Data>),
    /// The row becomes a tombstone, which reads as not there: the payload is removed, the fencing token stays.
    Delete,
}

/// The end of a run that succeeded.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The running occurrence.
    pub occurrence: Occurrence,
    /// The time for which the row records it at least. `None`: for ever.
    pub ttl: Option<CompletedTtl>,
}

/// The time for which a row records an occurrence as done, at least: 1 ms to ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletedTtl(u64);

impl CompletedTtl {
    /// # Errors
    /// `InvalidRequest` unless it is 1 ms to ten years.
    pub fn from_millis(millis: u64) -> Result<Self, Error> {
        if (1..=MAX_COMPLETED_TTL_MS).contains(&millis) {
            return Ok(Self(millis));
        }
        let detail = format!("completedTtlMs must be 1 to {MAX_COMPLETED_TTL_MS}, not {millis}.");
        Err(Error::invalid("completedTtlMs", detail))
    }

    /// Rounded up, as TTL counts in seconds.
    pub(crate) fn as_seconds(self) -> u64 {
        self.0.div_ceil(1000)
    }
}

/// A waiter's mark on a lock, which asks the holder to give way.
#[derive(Debug, Clone)]
pub struct Want {
    /// The lock's key.
    pub key: LockKey,
    /// The waiter's owner name, for people to read.
    pub owner_name: OwnerName,
}

/// An operator's forced release.
#[derive(Debug, Clone)]
pub struct Break {
    /// The lock's key.
    pub key: LockKey,
    /// The record version number that the operator saw.
    pub seen: Rvn,
}

/// An operator's change of the last occurrence that is done.
#[derive(Debug, Clone)]
pub struct SetOccurrence {
    /// The lock's key.
    pub key: LockKey,
    /// The occurrence that counts as the last one that is done.
    pub last: Occurrence,
    /// The record version number that the operator saw.
    pub seen: Rvn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_a_number_that_every_json_parser_holds() {
        for (number, is_valid) in [(0, false), (1, true), (9_007_199_254_740_991, true), (9_007_199_254_740_992, false)]
        {
            assert_eq!(Sequence::new(number, None).is_ok(), is_valid, "{number}");
        }
    }
}
