//! A caller's request for a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_wire::{Lock, Staleness};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::keeping::{Keeping, keeping_options};
use crate::{Error, Wait};

/// The shortest lease that the service accepts.
const MIN_LEASE: Duration = Duration::from_millis(100);
/// The longest lease that the service accepts: a day.
const MAX_LEASE: Duration = Duration::from_hours(24);

/// The name of a lock: a key, and a sort key on a table that has one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockKey {
    /// The partition key: 1 to 2048 bytes.
    pub key: String,
    /// The sort key: 1 to 1024 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort_key: Option<String>,
}

impl From<&str> for LockKey {
    fn from(key: &str) -> Self {
        key.to_owned().into()
    }
}

impl From<String> for LockKey {
    fn from(key: String) -> Self {
        Self { key, sort_key: None }
    }
}

impl From<&String> for LockKey {
    fn from(key: &String) -> Self {
        key.clone().into()
    }
}

impl<K: Into<String>, S: Into<String>> From<(K, S)> for LockKey {
    fn from((key, sort_key): (K, S)) -> Self {
        Self { key: key.into(), sort_key: Some(sort_key.into()) }
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sort_key {
            None => f.write_str(&self.key),
            Some(sort_key) => write!(f, "{} / {sort_key}", self.key),
        }
    }
}

/// The sender of the heartbeats, and their interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Heartbeats {
    /// The client sends a heartbeat every quarter of the lease.
    #[default]
    Quarterly,
    /// The client sends heartbeats at this interval: at most half the lease.
    Every(Duration),
    /// The caller sends heartbeats by [`crate::Guard::renew`].
    Manual,
}

/// The state of a wait, for a display of its progress.
#[derive(Debug)]
#[non_exhaustive]
pub struct Waiting<'a> {
    /// The lock, as the last answer showed it.
    pub lock: &'a Lock,
    /// The time until the lock may be taken over, if its holder sends no heartbeat.
    pub stale_in: Duration,
    /// The time until this caller stops waiting; `None` if the wait has no end.
    pub gives_up_in: Option<Duration>,
}

pub(crate) type OnWait = Arc<dyn Fn(&Waiting<'_>) + Send + Sync>;

/// A request for a lock. `"Moe".into()` is the lock Moe, with the client's defaults.
#[derive(Clone)]
pub struct LockRequest {
    pub(crate) key: LockKey,
    pub(crate) owner_name: Option<String>,
    pub(crate) lease: Option<Duration>,
    /// `None`: the default of the call.
    pub(crate) wait: Option<Wait>,
    /// The interval of polls. `None`: the default, or longer where the service asks for that.
    pub(crate) poll_interval: Option<Duration>,
    pub(crate) keeping: Keeping,
    pub(crate) staleness: Staleness,
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) replace_data: bool,
    pub(crate) only_if_exists: bool,
    pub(crate) attributes: Map<String, Value>,
    pub(crate) reentrant: bool,
    pub(crate) on_wait: Option<OnWait>,
    pub(crate) occurrence: Option<String>,
    pub(crate) at_most_once: bool,
}

keeping_options!(LockRequest);

impl<K: Into<LockKey>> From<K> for LockRequest {
    fn from(key: K) -> Self {
        Self::new(key)
    }
}

impl LockRequest {
    /// Creates a request for this lock, with the client's defaults.
    pub fn new(key: impl Into<LockKey>) -> Self {
        Self {
            key: key.into(),
            owner_name: None,
            lease: None,
            wait: None,
            poll_interval: None,
            keeping: Keeping::default(),
            staleness: Staleness::Rvn,
            data: None,
            replace_data: true,
            only_if_exists: false,
            attributes: Map::new(),
            reentrant: false,
            on_wait: None,
            occurrence: None,
            at_most_once: false,
        }
    }

    /// Sets the owner's name, for people to read. Default: the client's.
    #[must_use]
    pub fn owner_name(mut self, name: impl Into<String>) -> Self {
        self.owner_name = Some(name.into());
        self
    }

    /// Sets the lease: the time for which observers must see no heartbeat before they may take over. 100 ms to a day.
    /// Default: the client's.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Bounds the wait for a held lock. Default: one observed lease and two seconds; no time for
    /// [`Client::once_every`](crate::Client::once_every).
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Polls a held lock at this interval, at least 50 ms, whatever the service asks for. By default the client watches
    /// the lock, and requests it when it is free or stale. Where watches fail, the client polls every second, or as
    /// rarely as the service asks for.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// Lets the service judge staleness by its own clock, for callers that keep no observations. The service documents
    /// its bound on the difference of clocks.
    #[must_use]
    pub fn stale_by_clock(mut self) -> Self {
        self.staleness = Staleness::Clock;
        self
    }

    /// Stores a payload of at most 256 KiB. Default: the row's payload stays.
    #[must_use]
    pub fn data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Stores the payload only if the row has none.
    #[must_use]
    pub fn keep_existing_data(mut self) -> Self {
        self.replace_data = false;
        self
    }

    /// Fails with [`crate::ErrorKind::NotFound`] if there is no row yet.
    #[must_use]
    pub fn only_if_exists(mut self) -> Self {
        self.only_if_exists = true;
        self
    }

    /// Adds an additional attribute of the row: at most 50.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Shares the acquisition if this client holds the lock already. The lock is released with the last of its guards.
    /// The settings of the first request apply.
    #[must_use]
    pub fn reentrant(mut self) -> Self {
        self.reentrant = true;
        self
    }

    /// Requests one run of a job, such as `2026-11-21T02`. The service refuses with [`crate::ErrorKind::AlreadyDone`]
    /// if this occurrence, or one that sorts after it, is done.
    #[must_use]
    pub fn occurrence(mut self, occurrence: impl Into<String>) -> Self {
        self.occurrence = Some(occurrence.into());
        self
    }

    /// Counts the occurrence as done from its acquisition on: a failed run is never tried again.
    #[must_use]
    pub fn at_most_once(mut self) -> Self {
        self.at_most_once = true;
        self
    }

    /// Calls `callback` after each answer that shows the lock held, and about once a second during a watch. The
    /// callback should return at once.
    #[must_use]
    pub fn on_wait(mut self, callback: impl Fn(&Waiting<'_>) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(callback));
        self
    }
}

/// Checks the length of a lease.
///
/// # Errors
/// The service would refuse the lease.
pub(crate) fn check_lease(lease: Duration) -> Result<(), Error> {
    if (MIN_LEASE..=MAX_LEASE).contains(&lease) {
        return Ok(());
    }
    Err(Error::invalid("leaseDurationMs", format!("a lease must be 100ms to 24h, not {lease:?}")))
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockRequest").field("key", &self.key).field("lease", &self.lease).finish_non_exhaustive()
    }
}
