//! The semaphores of a lock table: their operations, and the log line and the metrics of each.

pub(crate) mod convert;

use leasehold_protocol::semaphore::{Semaphore, Step};
use leasehold_protocol::{Error, LockKey, Record, ReleaseOutcome};
use leasehold_wire::semaphore::{
    AcquirePermitsRequest, AcquirePermitsResponse, BreakEntryRequest, CapacityRequest, CapacityResponse, EnqueueAnswer,
    EnqueueRequest, HeartbeatPermitsRequest, HeartbeatPermitsResponse, ReleasePermitsRequest,
};
use leasehold_wire::{GetRequest, Lock, Problem, ReleaseResponse};

use crate::access::Caller;
use crate::quota::Kind;
use crate::service::Service;
use crate::traced::{logged_problem, operation_span, record_owner, traced, wire_name};
use crate::{convert as locks, counts};

impl Service {
    /// `POST /v1/semaphore/acquire`
    ///
    /// # Errors
    /// `held`, `lost`, `superseded`, `permits-mismatch`, `exceeds-capacity`, `wrong-kind`, and those of any operation.
    pub async fn acquire_permits(
        &self,
        caller: &Caller,
        request: AcquirePermitsRequest,
    ) -> Result<AcquirePermitsResponse, Problem> {
        traced(operation_span("semaphore-acquire", &request.key, caller), async {
            let request = convert::acquire(request, caller.bound(), self.checks_takeovers)?;
            caller.check_key(request.key.partition())?;
            record_owner(request.owner_name.as_str());
            let (key, lease_id) = (&request.key, &request.lease_id);
            let entered = self.quota.enter(caller, Kind::Lock, key, lease_id, request.lease_duration)?;
            let grant = self.answer(key, self.table.acquire_permits(&request).await)?;
            entered.keep();
            self.quota.leave(caller, Kind::Ticket, key, lease_id);
            let response = convert::granted(grant, &request.key, &request.lease_id);
            Ok((wire_name(response.outcome), response))
        })
        .await
    }

    /// `POST /v1/semaphore/heartbeat`
    ///
    /// # Errors
    /// `lost`, `superseded`, `permits-mismatch`, `wrong-kind`, and those of any operation.
    pub async fn heartbeat_permits(
        &self,
        caller: &Caller,
        request: HeartbeatPermitsRequest,
    ) -> Result<HeartbeatPermitsResponse, Problem> {
        traced(operation_span("semaphore-heartbeat", &request.key, caller), async {
            let request = convert::heartbeat(request, caller.bound())?;
            caller.check_key(request.key.partition())?;
            let grant = self.answer(&request.key, self.table.heartbeat_permits(&request).await)?;
            record_owner(&grant.holder.claim.owner_name);
            let lease_ms = grant.holder.claim.lease_ms;
            self.quota.renew(caller, Kind::Lock, &request.key, &request.lease_id, lease_ms);
            Ok(("renewed".into(), convert::renewed(grant)))
        })
        .await
    }

    /// `POST /v1/semaphore/release`
    ///
    /// # Errors
    /// `lost`, `wrong-kind`, and those of any operation.
    pub async fn release_permits(
        &self,
        caller: &Caller,
        request: ReleasePermitsRequest,
    ) -> Result<ReleaseResponse, Problem> {
        traced(operation_span("semaphore-release", &request.key, caller), async {
            let request = convert::release(request, caller.bound())?;
            caller.check_key(request.key.partition())?;
            let released = self.answer(&request.key, self.table.release_permits(&request).await).map(done)?;
            for kind in [Kind::Lock, Kind::Ticket] {
                self.quota.leave(caller, kind, &request.key, &request.lease_id);
            }
            Ok(released)
        })
        .await
    }

    /// `POST /v1/semaphore/break`
    ///
    /// # Errors
    /// `version-mismatch`, `wrong-kind`, and those of any operation.
    pub async fn break_entry(&self, caller: &Caller, request: BreakEntryRequest) -> Result<ReleaseResponse, Problem> {
        traced(operation_span("semaphore-break", &request.key, caller), async {
            let request = convert::break_entry(request)?;
            caller.check_key(request.key.partition())?;
            self.answer(&request.key, self.table.break_entry(&request).await).map(done)
        })
        .await
    }

    /// `POST /v1/semaphore/enqueue`
    ///
    /// # Errors
    /// `queue-full`, `held`, `lost`, `superseded`, `permits-mismatch`, `exceeds-capacity`, `wrong-kind`, and those of
    /// any operation.
    pub async fn enqueue(&self, caller: &Caller, request: EnqueueRequest) -> Result<EnqueueAnswer, Problem> {
        traced(operation_span("semaphore-enqueue", &request.key, caller), async {
            let request = convert::enqueue(request, caller.bound(), self.checks_takeovers)?;
            caller.check_key(request.key.partition())?;
            record_owner(request.owner_name.as_str());
            let (key, lease_id) = (&request.key, &request.lease_id);
            // The answer is a lock or a ticket.
            let lock = self.quota.enter(caller, Kind::Lock, key, lease_id, request.grant_lease)?;
            let ticket = self.quota.enter(caller, Kind::Ticket, key, lease_id, request.lease_duration)?;
            let entry = self.answer(key, self.table.enqueue(&request).await)?;
            let answer = convert::entered(entry, &request);
            let outcome = match &answer {
                EnqueueAnswer::Granted(grant) => {
                    lock.keep();
                    wire_name(grant.outcome)
                }
                EnqueueAnswer::Queued(_) => {
                    ticket.keep();
                    "enqueued".into()
                }
            };
            Ok((outcome, answer))
        })
        .await
    }

    /// `POST /v1/semaphore/capacity`
    ///
    /// # Errors
    /// `version-mismatch`, `not-found`, `wrong-kind`, and those of any operation.
    pub async fn set_capacity(&self, caller: &Caller, request: CapacityRequest) -> Result<CapacityResponse, Problem> {
        traced(operation_span("semaphore-capacity", &request.key, caller), async {
            let request = convert::set_capacity(request)?;
            caller.check_key(request.key.partition())?;
            let available = self.answer(&request.key, self.table.set_capacity(&request).await)?;
            let response = CapacityResponse { capacity: request.capacity.get(), available: convert::free(available) };
            Ok(("changed".into(), response))
        })
        .await
    }

    /// `GET /v1/semaphore`
    ///
    /// # Errors
    /// `not-found`, `wrong-kind`, and those of any operation.
    pub async fn get_semaphore(&self, caller: &Caller, request: GetRequest) -> Result<Lock, Problem> {
        traced(operation_span("semaphore-get", &request.key, caller), async {
            let key = locks::key(request.key, request.sort_key)?;
            caller.check_key(key.partition())?;
            let row = match self.table.read(&key).await.map_err(|error| logged_problem(&error))? {
                Some(Record::Semaphore(_, row)) => row.map_err(|corrupt| logged_problem(&corrupt.into()))?,
                Some(Record::Lock(_)) => return Err(convert::no_semaphore()),
                None => return Err(convert::not_found()),
            };
            let lock = convert::show(*row);
            Ok((wire_name(lock.state), lock))
        })
        .await
    }
}

impl Service {
    /// Returns the answer of the table, or the problem for its refusal. Records the usage that the row was left with.
    /// Wakes the watches of the key, unless the request was refused and therefore wrote nothing.
    fn answer<T>(&self, key: &LockKey, step: Result<Step<T>, Error>) -> Result<T, Problem> {
        if !matches!(&step, Ok(Step { answer: Err(_), .. })) {
            self.watches.written(key);
        }
        let Step { row, answer, .. } = step.map_err(|error| logged_problem(&error))?;
        if let Some(Semaphore { capacity, queue, .. }) = &row {
            let in_use = row.as_ref().map_or(0, Semaphore::in_use);
            counts::count_permits(in_use, *capacity, queue.len());
        }
        answer.map_err(|refusal| convert::refused(refusal, row))
    }
}

fn done(released: ReleaseOutcome) -> (String, ReleaseResponse) {
    let response = ReleaseResponse { outcome: locks::release_outcome(released), wanted: false };
    (wire_name(response.outcome), response)
}
