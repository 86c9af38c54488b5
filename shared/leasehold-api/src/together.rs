//! `POST /v1/acquire-all`: several locks, all or none.

use leasehold_protocol::{
    Acquire, AcquireAll, AcquireAllAnswer, Attributes, LeaseId, LockKey, LockView, Lost, OwnerName, Staleness,
};
use leasehold_wire::{
    self as wire, AcquireAllRequest, AcquireAllResponse, GrantedLock, Problem, ProblemType, RefusedLock, Secret,
    WantedLock,
};

use crate::Service;
use crate::access::Caller;
use crate::convert::{self, checked};
use crate::traced::{logged_problem, operation_span, record_owner, traced};

impl Service {
    /// `POST /v1/acquire-all`
    ///
    /// # Errors
    /// `held`, `lost`, `superseded`, `wrong-kind`, and those of any operation.
    pub async fn acquire_all(
        &self,
        caller: &Caller,
        request: AcquireAllRequest,
    ) -> Result<AcquireAllResponse, Problem> {
        let names = request.keys.iter().map(|wanted| wanted.key.as_str()).collect::<Vec<_>>().join(", ");
        traced(operation_span("acquire-all", &names, caller), async {
            let request = self.locks_wanted(caller, request)?;
            let requests = request.requests();
            requests.iter().try_for_each(|request| caller.check_key(request.key.partition()))?;
            record_owner(requests[0].owner_name.as_str());
            let answer = self.table.acquire_all(&request).await;
            if !matches!(answer, Ok(AcquireAllAnswer::Held(_))) {
                for request in requests {
                    self.watches.written(&request.key);
                }
            }
            let response = response_or_refusal(answer.map_err(|error| logged_problem(&error))?, requests)?;
            Ok(("granted".into(), response))
        })
        .await
    }

    /// Returns one request for each lock.
    fn locks_wanted(&self, caller: &Caller, request: AcquireAllRequest) -> Result<AcquireAll, Problem> {
        let owner_name = checked(OwnerName::new(request.owner_name))?;
        let lease_id = request.lease_id.map_or_else(|| Ok(LeaseId::generate()), convert::lease_id)?;
        let sequence = convert::sequence(request.sequence, request.request_id)?;
        let lease_duration = convert::lease_duration(request.lease_duration_ms)?.unwrap_or_default();
        let by = request.staleness.unwrap_or_default();
        let acquire = |(index, wanted): (usize, WantedLock)| {
            let (key, staleness) =
                wanted_lock(wanted, by).map_err(|problem| convert::within(format_args!("keys[{index}]"), problem))?;
            let staleness = if self.checks_takeovers { staleness.checked_by_clock() } else { staleness };
            Ok(Acquire {
                key,
                owner_name: owner_name.clone(),
                lease_id: lease_id.clone(),
                sequence: sequence.clone(),
                lease_duration,
                staleness,
                data: None,
                replace_data: true,
                only_if_exists: false,
                once: None,
                attributes: Attributes::new(),
                principal: caller.bound(),
            })
        };
        let requests = request.keys.into_iter().enumerate().map(acquire).collect::<Result<_, Problem>>()?;
        checked(AcquireAll::new(requests))
    }
}

fn wanted_lock(wanted: WantedLock, by: wire::Staleness) -> Result<(LockKey, Staleness), Problem> {
    let key = convert::key(wanted.key, wanted.sort_key)?;
    Ok((key, convert::staleness(by, wanted.observed_record_version_number)?))
}

fn response_or_refusal(answer: AcquireAllAnswer, requests: &[Acquire]) -> Result<AcquireAllResponse, Problem> {
    let first = &requests[0];
    match answer {
        AcquireAllAnswer::Granted(grant) => Ok(AcquireAllResponse {
            owner_name: first.owner_name.as_str().to_owned(),
            lease_id: Secret(first.lease_id.expose().to_owned()),
            lease_duration_ms: first.lease_duration.as_millis(),
            fencing_token: grant.fencing_token,
            locks: requests
                .iter()
                .zip(grant.versions)
                .map(|(request, version)| granted(&request.key, version))
                .collect(),
        }),
        AcquireAllAnswer::Held(locks) => Err(Problem {
            locks: Some(locks.into_iter().map(|lock| refused(&lock.key.clone(), Some(lock))).collect()),
            ..Problem::new(
                ProblemType::Held,
                "Someone else holds the locks that are named, and none was acquired. Watch them, or poll by reads. A \
                 recordVersionNumber that you saw unchanged for its leaseDurationMs belongs beside its key as \
                 observedRecordVersionNumber.",
            )
        }),
        AcquireAllAnswer::Lost(lost) => Err(all_lost(lost)),
        AcquireAllAnswer::Superseded(superseded) => Err(convert::superseded(superseded)),
        AcquireAllAnswer::WrongKind(keys) => {
            Err(Problem { locks: Some(keys.iter().map(|key| refused(key, None)).collect()), ..convert::no_lock() })
        }
    }
}

fn all_lost(lost: Vec<(LockKey, Lost)>) -> Problem {
    let entry = |(key, lost): (LockKey, Lost)| RefusedLock {
        reason: Some(convert::lost_reason(lost.reason)),
        ..refused(&key, lost.lock)
    };
    let locks: Box<[RefusedLock]> = lost.into_iter().map(entry).collect();
    Problem {
        reason: locks.first().and_then(|lock| lock.reason),
        locks: Some(locks),
        ..Problem::new(
            ProblemType::Lost,
            "The locks that are named are not this lease id's, or not any more. Nothing was acquired. Release the others, and use \
             a new lease id.",
        )
    }
}

fn granted(key: &LockKey, record_version_number: String) -> GrantedLock {
    let (key, sort_key) = names(key);
    GrantedLock { key, sort_key, record_version_number }
}

fn refused(key: &LockKey, lock: Option<LockView>) -> RefusedLock {
    let (key, sort_key) = names(key);
    let Some(lock) = lock else { return RefusedLock { key, sort_key, ..RefusedLock::default() } };
    RefusedLock {
        key,
        sort_key,
        reason: None,
        state: Some(convert::show_state(lock.state)),
        owner_name: Some(lock.owner_name),
        record_version_number: Some(lock.rvn),
        lease_duration_ms: Some(lock.lease_ms),
        fencing_token: lock.fencing_token,
    }
}

fn names(key: &LockKey) -> (String, Option<String>) {
    (key.partition().to_owned(), key.sort().map(str::to_owned))
}
