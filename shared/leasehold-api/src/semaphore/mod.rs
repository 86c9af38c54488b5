//! The semaphores of a lock table: their operations, and the log line and the metrics of each.

mod convert;

use http::Method;
use leasehold_protocol::semaphore::{Semaphore, Step};
use leasehold_protocol::{Error, LockKey, Record, ReleaseOutcome};
use leasehold_wire::semaphore::{
    AcquirePermitsRequest, AcquirePermitsResponse, BreakEntryRequest, CapacityRequest, CapacityResponse, EnqueueAnswer,
    EnqueueRequest, HeartbeatPermitsRequest, HeartbeatPermitsResponse, ReleasePermitsRequest,
};
use leasehold_wire::{GetRequest, Lock, Problem, ReleaseResponse, path};

use crate::access::Caller;
use crate::route::{Answering, Input, Route, document};
use crate::service::{Service, logged_problem, operation_span, record_owner, traced, wire_name};
use crate::{convert as locks, counts};

pub(crate) use convert::show;

/// Operations on semaphores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SemaphoreOperation {
    /// `POST /v1/semaphore/acquire`
    Acquire,
    /// `POST /v1/semaphore/heartbeat`
    Heartbeat,
    /// `POST /v1/semaphore/release`
    Release,
    /// `POST /v1/semaphore/break`
    Break,
    /// `POST /v1/semaphore/enqueue`
    Enqueue,
    /// `POST /v1/semaphore/capacity`
    Capacity,
    /// `GET /v1/semaphore`
    Get,
}

impl Route for SemaphoreOperation {
    type Service = Service;

    const ALL: &'static [Self] =
        &[Self::Acquire, Self::Heartbeat, Self::Release, Self::Break, Self::Enqueue, Self::Capacity, Self::Get];

    /// The longest key, names and observed entries take less than a tenth of this.
    const MAX_BODY_BYTES: usize = 128 * 1024;

    fn path(self) -> &'static str {
        match self {
            Self::Acquire => path::SEMAPHORE_ACQUIRE,
            Self::Heartbeat => path::SEMAPHORE_HEARTBEAT,
            Self::Release => path::SEMAPHORE_RELEASE,
            Self::Break => path::SEMAPHORE_BREAK,
            Self::Enqueue => path::SEMAPHORE_ENQUEUE,
            Self::Capacity => path::SEMAPHORE_CAPACITY,
            Self::Get => path::SEMAPHORE,
        }
    }

    fn method(self) -> Method {
        match self {
            Self::Get => Method::GET,
            _ => Method::POST,
        }
    }

    fn action(self) -> Option<&'static str> {
        Some(match self {
            Self::Acquire => "semaphore-acquire",
            Self::Heartbeat => "semaphore-heartbeat",
            Self::Release => "semaphore-release",
            Self::Break => "semaphore-break",
            Self::Enqueue => "semaphore-enqueue",
            Self::Capacity => "semaphore-capacity",
            Self::Get => "semaphore-get",
        })
    }

    fn carry_out<'a>(self, service: &'a Service, caller: &'a Caller, input: Input<'a>) -> Answering<'a> {
        Box::pin(async move {
            Ok(match self {
                Self::Acquire => document(&service.acquire_permits(caller, input.read()?).await?),
                Self::Heartbeat => document(&service.heartbeat_permits(caller, input.read()?).await?),
                Self::Release => document(&service.release_permits(caller, input.read()?).await?),
                Self::Break => document(&service.break_entry(caller, input.read()?).await?),
                Self::Enqueue => document(&service.enqueue(caller, input.read()?).await?),
                Self::Capacity => document(&service.set_capacity(caller, input.read()?).await?),
                Self::Get => document(&service.get_semaphore(caller, input.read()?).await?),
            })
        })
    }
}

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
            let grant = self.answer(&request.key, self.table.acquire_permits(&request).await)?;
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
            self.answer(&request.key, self.table.release_permits(&request).await).map(done)
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
            let entry = self.answer(&request.key, self.table.enqueue(&request).await)?;
            let answer = convert::entered(entry, &request);
            let outcome = match &answer {
                EnqueueAnswer::Granted(grant) => wire_name(grant.outcome),
                EnqueueAnswer::Queued(_) => "enqueued".into(),
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
            let lock = show(*row);
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
    let response = ReleaseResponse { outcome: locks::release_outcome(released) };
    (wire_name(response.outcome), response)
}
