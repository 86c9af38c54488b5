//! The operations on locks, each from a request to its response.

use std::sync::Arc;
use std::time::Duration;

use leasehold_protocol::history::HistoryTable;
use leasehold_protocol::{
    AcquireAnswer, BreakAnswer, HeartbeatAnswer, ListQuery, LockKey, LockTable, OccurrenceAnswer, Record,
    ReleaseAnswer, Released, WantAnswer,
};
use leasehold_wire::{
    AcquireRequest, AcquireResponse, BreakRequest, GetRequest, HealthRequest, HealthResponse, HealthStatus,
    HeartbeatRequest, HeartbeatResponse, ListRequest, ListResponse, Lock, OccurrenceRequest, OccurrenceResponse,
    Problem, ProblemType, ReleaseRequest, ReleaseResponse, UnreadableRow, WantOutcome, WantRequest, WantResponse,
    WatchRequest,
};
use tokio::time::timeout;

use crate::access::Caller;
use crate::convert;
use crate::cursor::{self, Seal};
use crate::quota::{Kind, Quota};
use crate::semaphore::convert as semaphore;
use crate::traced::{logged_problem, operation_span, record_owner, traced, wire_name};
use crate::watches::Watches;

const DEFAULT_LIMIT: u64 = 100;
const MAX_LIMIT: u64 = 1000;

/// The maximum wait of a watch, and its default: gateways drop a request without an answer after 29 seconds.
const MAX_WAIT_MS: u64 = 20_000;

/// The maximum size of a listing, whatever its limit. A Lambda function's answer may have 6 MB.
const MAX_LISTING_BYTES: usize = 4 * 1024 * 1024;

/// The lock service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Service {
    pub(crate) table: LockTable,
    pub(crate) checks_takeovers: bool,
    pub(crate) watches: Arc<Watches>,
    /// Hides the starts of pages from callers of some keys. Absent: their listings read on to a row of theirs.
    seal: Option<Arc<Seal>>,
    pub(crate) quota: Arc<Quota>,
    pub(crate) history: Option<HistoryTable>,
    pub(crate) is_multi_region: bool,
}

impl Service {
    /// The service over one table.
    pub fn new(table: LockTable) -> Self {
        Self {
            table,
            checks_takeovers: false,
            watches: Arc::default(),
            seal: None,
            quota: Arc::default(),
            history: None,
            is_multi_region: false,
        }
    }

    /// Refuses what needs transactions of DynamoDB: the table is in several regions.
    #[must_use]
    pub fn multi_region(self, is_multi_region: bool) -> Self {
        Self { is_multi_region, ..self }
    }

    /// Makes a takeover by an observed version also require that the server's clock is past the lease, by more than the
    /// allowed skew. No caller can then take a live lock by claiming an observation that it never made.
    #[must_use]
    pub fn check_takeovers_by_clock(self, checks_takeovers: bool) -> Self {
        Self { checks_takeovers, ..self }
    }

    /// Bounds the rows that a listing reads for a caller of some keys. Its cursors are then good for this process only.
    #[must_use]
    pub fn bound_listings(self) -> Self {
        Self { seal: Seal::fresh().map(Arc::new), ..self }
    }

    /// Shows the history that this table keeps.
    #[must_use]
    pub fn with_history(self, history: HistoryTable) -> Self {
        Self { history: Some(history), ..self }
    }

    /// Bounds the locks and the tickets of each principal.
    #[must_use]
    pub fn with_quota(self, quota: Quota) -> Self {
        Self { quota: Arc::new(quota), ..self }
    }

    /// `POST /v1/acquire`
    ///
    /// # Errors
    /// `held`, `lost` for an ended lease id, `superseded`, `already-done`, `not-found` under `onlyIfExists`,
    /// `wrong-kind`, and those of any operation: `invalid-request`, `too-large`, `forbidden`, `corrupt-record`,
    /// `throttled`, `unavailable`.
    pub async fn acquire(&self, caller: &Caller, request: AcquireRequest) -> Result<AcquireResponse, Problem> {
        traced(operation_span("acquire", &request.key, caller), async {
            let mut request = convert::acquire(request, caller.bound())?;
            if self.checks_takeovers {
                request.staleness = request.staleness.checked_by_clock();
            }
            caller.check_key(request.key.partition())?;
            record_owner(request.owner_name.as_str());
            let (key, lease_id, lease) = (&request.key, &request.lease_id, request.lease_duration);
            let entered = self.quota.enter(caller, Kind::Lock, key, lease_id, lease)?;
            let answer = self.table.acquire(&request).await;
            if !matches!(answer, Ok(AcquireAnswer::Held(_))) {
                self.watches.written(&request.key);
            }
            let answer = answer.map_err(|error| logged_problem(&error))?;
            let grant = convert::grant_or_refusal(answer)?;
            entered.keep();
            let response = convert::acquire_response(grant, &request.lease_id);
            Ok((wire_name(response.outcome), response))
        })
        .await
    }

    /// `POST /v1/heartbeat`
    ///
    /// # Errors
    /// `lost`, `superseded`, `wrong-kind`, and those of any operation.
    pub async fn heartbeat(&self, caller: &Caller, request: HeartbeatRequest) -> Result<HeartbeatResponse, Problem> {
        traced(operation_span("heartbeat", &request.key, caller), async {
            let request = convert::heartbeat(request, caller.bound())?;
            caller.check_key(request.key.partition())?;
            let answer = self.table.heartbeat(&request).await;
            self.watches.written(&request.key);
            let answer = answer.map_err(|error| logged_problem(&error))?;
            let row = match answer {
                HeartbeatAnswer::Renewed(row) => row,
                HeartbeatAnswer::Lost(lost) => return Err(convert::lost(lost)),
                HeartbeatAnswer::Superseded(superseded) => return Err(convert::superseded(superseded)),
                HeartbeatAnswer::Forbidden => return Err(convert::bound_to_another()),
                HeartbeatAnswer::WrongKind => return Err(convert::no_lock()),
            };
            let wanted = row.wanted_by().is_some();
            let lock = row.lock().map_err(|corrupt| logged_problem(&corrupt.into()))?;
            record_owner(&lock.owner_name);
            self.quota.renew(caller, Kind::Lock, &request.key, &request.lease_id, lock.lease_ms);
            let response = HeartbeatResponse {
                record_version_number: lock.rvn,
                lease_duration_ms: lock.lease_ms,
                fencing_token: lock.fencing_token.unwrap_or_default(),
                wanted,
            };
            Ok(("renewed".into(), response))
        })
        .await
    }

    /// `POST /v1/release`
    ///
    /// # Errors
    /// `lost`, `wrong-kind`, and those of any operation.
    pub async fn release(&self, caller: &Caller, request: ReleaseRequest) -> Result<ReleaseResponse, Problem> {
        traced(operation_span("release", &request.key, caller), async {
            let request = convert::release(request, caller.bound())?;
            caller.check_key(request.key.partition())?;
            let answer = self.table.release(&request).await;
            self.watches.written(&request.key);
            match answer.map_err(|error| logged_problem(&error))? {
                ReleaseAnswer::Done(released) => {
                    self.quota.leave(caller, Kind::Lock, &request.key, &request.lease_id);
                    Ok(release_response(&released))
                }
                ReleaseAnswer::Lost(lost) => Err(convert::lost(lost)),
                ReleaseAnswer::OtherOccurrence => Err(convert::other_occurrence()),
                ReleaseAnswer::Forbidden => Err(convert::bound_to_another()),
                ReleaseAnswer::WrongKind => Err(convert::no_lock()),
            }
        })
        .await
    }

    /// `POST /v1/want`
    ///
    /// # Errors
    /// `wrong-kind`, and those of any operation.
    pub async fn want(&self, caller: &Caller, request: WantRequest) -> Result<WantResponse, Problem> {
        traced(operation_span("want", &request.key, caller), async {
            let request = convert::want(request)?;
            caller.check_key(request.key.partition())?;
            record_owner(request.owner_name.as_str());
            let outcome = match self.table.want(&request).await.map_err(|error| logged_problem(&error))? {
                WantAnswer::Marked => WantOutcome::Marked,
                WantAnswer::AlreadyMarked => WantOutcome::AlreadyMarked,
                WantAnswer::Free => WantOutcome::Free,
                WantAnswer::NotOurs => WantOutcome::NotOurs,
                WantAnswer::WrongKind => return Err(convert::no_lock()),
            };
            Ok((wire_name(outcome), WantResponse { outcome }))
        })
        .await
    }

    /// `POST /v1/break`
    ///
    /// # Errors
    /// `version-mismatch`, `wrong-kind`, and those of any operation.
    pub async fn break_lock(&self, caller: &Caller, request: BreakRequest) -> Result<ReleaseResponse, Problem> {
        traced(operation_span("break", &request.key, caller), async {
            let request = convert::break_lock(request)?;
            caller.check_key(request.key.partition())?;
            let answer = self.table.break_lock(&request).await;
            self.watches.written(&request.key);
            match answer.map_err(|error| logged_problem(&error))? {
                // The operator does not wait for the lock.
                BreakAnswer::Done(released) => Ok(release_response(&Released { wanted: false, ..released })),
                BreakAnswer::VersionMismatch(lock) => Err(convert::version_mismatch(lock)),
                BreakAnswer::WrongKind => Err(convert::no_lock()),
            }
        })
        .await
    }

    /// `POST /v1/occurrence`
    ///
    /// # Errors
    /// `version-mismatch`, `held`, and those of any operation.
    pub async fn set_occurrence(
        &self,
        caller: &Caller,
        request: OccurrenceRequest,
    ) -> Result<OccurrenceResponse, Problem> {
        traced(operation_span("occurrence", &request.key, caller), async {
            let request = convert::set_occurrence(request)?;
            caller.check_key(request.key.partition())?;
            let answer = self.table.set_occurrence(&request).await;
            self.watches.written(&request.key);
            match answer.map_err(|error| logged_problem(&error))? {
                OccurrenceAnswer::Recorded(row) => {
                    let response = OccurrenceResponse {
                        last_occurrence: request.last.as_str().to_owned(),
                        record_version_number: row.rvn.into_value().unwrap_or_default(),
                    };
                    Ok(("recorded".into(), response))
                }
                OccurrenceAnswer::Held(lock) => Err(convert::held(
                    lock,
                    "The lock has a holder, whose run may still complete an occurrence. Wait for it, or break the lock first.",
                )),
                OccurrenceAnswer::VersionMismatch(lock) => Err(convert::version_mismatch(lock)),
                OccurrenceAnswer::WrongKind => Err(convert::no_lock()),
            }
        })
        .await
    }

    /// `GET /v1/lock`
    ///
    /// # Errors
    /// `not-found`, `wrong-kind`, and those of any operation.
    pub async fn get(&self, caller: &Caller, request: GetRequest) -> Result<Lock, Problem> {
        traced(operation_span("get", &request.key, caller), async {
            let key = convert::key(request.key, request.sort_key)?;
            caller.check_key(key.partition())?;
            let record = self.table.read(&key).await.map_err(|error| logged_problem(&error))?;
            match &record {
                Some(Record::Semaphore(..)) => Err(convert::no_lock()),
                _ => shown(record),
            }
        })
        .await
    }

    /// `GET /v1/watch`
    ///
    /// # Errors
    /// `not-found`, `wrong-kind` for a row of an unknown kind, and those of any operation.
    pub async fn watch(&self, caller: &Caller, request: WatchRequest) -> Result<Lock, Problem> {
        traced(operation_span("watch", &request.key, caller), async {
            let key = convert::key(request.key, request.sort_key)?;
            let known = match (request.ticket_id, request.version.filter(|version| !version.is_empty())) {
                (Some(ticket), _) => Known::Ticket(ticket),
                (None, version) => Known::Version(version),
            };
            let wait_ms = request.wait_ms.unwrap_or(MAX_WAIT_MS);
            if wait_ms > MAX_WAIT_MS {
                return Err(Problem::invalid(
                    "waitMs",
                    format!("waitMs must be at most {MAX_WAIT_MS}, not {wait_ms}."),
                ));
            }
            caller.check_key(key.partition())?;
            // The watch subscribes before its first read, so that it misses no write between the two.
            let mut following = self.watches.follow(&self.table, &key, logged_problem);
            let mut record = self.table.read(&key).await.map_err(|error| logged_problem(&error))?;
            let change = async {
                while !known.is_over(record.as_ref())
                    && let Some(found) = following.next().await
                {
                    record = found?;
                }
                Ok(())
            };
            tokio::select! {
                changed = timeout(Duration::from_millis(wait_ms), change) => changed.unwrap_or(Ok(()))?,
                () = self.watches.closed() => {}
            }
            shown(record)
        })
        .await
    }

    /// Answers all current and future watches at once, for the end of a process.
    pub fn close_watches(&self) {
        self.watches.close();
    }

    /// `GET /v1/locks`
    ///
    /// # Errors
    /// Those of any operation; a cursor of another listing is an `invalid-request`.
    pub async fn list(&self, caller: &Caller, request: ListRequest) -> Result<ListResponse, Problem> {
        traced(operation_span("list", request.key.as_deref().unwrap_or_default(), caller), async {
            let query = self.list_query(caller, &request)?;
            let cursor = |key: &LockKey| match (&self.seal, &query.prefixes) {
                (Some(seal), Some(prefixes)) => seal.encode(&request, prefixes, key).ok_or_else(no_cursor),
                _ => Ok(cursor::encode(&request, key)),
            };
            let page = self.table.list(&query).await.map_err(|error| logged_problem(&error))?;
            let mut response = ListResponse {
                locks: Vec::new(),
                unreadable: Vec::new(),
                next_cursor: page.next.as_ref().map(cursor).transpose()?,
            };
            let mut bytes = 0;
            for row in page.rows {
                let key = row.key().clone();
                let shown = match row {
                    Record::Lock(row) => row.lock().map(convert::show_lock),
                    Record::Semaphore(_, semaphore) => semaphore.map(|row| semaphore::show(*row)),
                };
                match shown {
                    Ok(lock) => {
                        bytes += serde_json::to_vec(&lock).map_or(0, |json| json.len());
                        response.locks.push(lock);
                    }
                    Err(corrupt) => response.unreadable.push(unreadable(&key, corrupt.to_string())),
                }
                if bytes > MAX_LISTING_BYTES {
                    response.next_cursor = Some(cursor(&key)?);
                    break;
                }
            }
            Ok(("listed".into(), response))
        })
        .await
    }

    fn list_query(&self, caller: &Caller, request: &ListRequest) -> Result<ListQuery, Problem> {
        let limit = request.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::invalid("limit", format!("limit must be 1 to {MAX_LIMIT}, not {limit}.")));
        }
        if let Some(key) = &request.key {
            convert::key(key.clone(), None)?;
            caller.check_key(key)?;
        }
        caller.check_any_key()?;
        if request.owner_name.as_deref() == Some("") {
            return Err(Problem::invalid("ownerName", "ownerName must not be empty."));
        }
        // The scope was checked for the named key: the listing may show all its rows.
        let prefixes = caller.prefixes().filter(|_| request.key.is_none()).map(<[String]>::to_vec);
        let after = match (&self.seal, &prefixes) {
            (Some(seal), Some(prefixes)) => seal.decode(request, prefixes)?,
            _ => cursor::decode(request)?,
        };
        Ok(ListQuery {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            after,
            partition: request.key.clone(),
            prefixes,
            hides_next: self.seal.is_some(),
            state: request.state.map(convert::state),
            owner_name: request.owner_name.clone(),
        })
    }

    /// `GET /v1/health`
    ///
    /// # Errors
    /// `throttled`, `unavailable`.
    pub async fn health(&self, caller: &Caller, _: HealthRequest) -> Result<HealthResponse, Problem> {
        traced(operation_span("health", "", caller), async {
            self.table.check_health().await.map_err(|error| logged_problem(&error))?;
            Ok(("ok".into(), HealthResponse { status: HealthStatus::Ok }))
        })
        .await
    }
}

/// The part of a row that the caller of a watch knows.
enum Known {
    /// The version of the row, or that there is none.
    Version(Option<String>),
    /// The ticket that waits for its turn.
    Ticket(String),
}

impl Known {
    /// Whether a watch is over: the lock has another version than the caller knows, or none, or no holder. For a
    /// semaphore `changed` counts instead, which heartbeats do not change, or the turn of the ticket.
    fn is_over(&self, record: Option<&Record>) -> bool {
        match (self, record) {
            (Self::Version(None), record) => record.is_some(),
            (Self::Version(Some(known)), Some(Record::Lock(row))) => {
                row.released || row.rvn.value().is_none_or(|version| version != known)
            }
            (Self::Version(Some(known)), Some(Record::Semaphore(_, Ok(row)))) => row.changed() != *known,
            (Self::Ticket(ticket), Some(Record::Semaphore(_, Ok(row)))) => row.is_turn_of(ticket),
            (_, Some(Record::Semaphore(_, Err(_))) | None) | (Self::Ticket(_), Some(Record::Lock(_))) => true,
        }
    }
}

/// Returns the public view of a record that was read, and its state as the outcome.
fn shown(record: Option<Record>) -> Result<(String, Lock), Problem> {
    let lock = match record {
        Some(Record::Lock(row)) if row.other_kind => return Err(convert::no_lock()),
        Some(Record::Lock(row)) => {
            let lock = convert::show_lock(row.lock().map_err(|corrupt| logged_problem(&corrupt.into()))?);
            record_owner(&lock.owner_name);
            lock
        }
        Some(Record::Semaphore(_, row)) => semaphore::show(*row.map_err(|corrupt| logged_problem(&corrupt.into()))?),
        None => return Err(convert::not_found()),
    };
    Ok((wire_name(lock.state), lock))
}

fn release_response(released: &Released) -> (String, ReleaseResponse) {
    if let Some(owner) = &released.owner_name {
        record_owner(owner);
    }
    let response = ReleaseResponse { outcome: convert::release_outcome(released.outcome), wanted: released.wanted };
    (wire_name(response.outcome), response)
}

fn no_cursor() -> Problem {
    Problem::new(ProblemType::Unavailable, "The service cannot make a cursor: the system has no randomness.")
}

fn unreadable(key: &LockKey, detail: String) -> UnreadableRow {
    UnreadableRow { key: key.partition().to_owned(), sort_key: key.sort().map(str::to_owned), detail }
}
