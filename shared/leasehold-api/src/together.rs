//! `POST /v1/acquire-all`: several keys, locks and permits of semaphores, all or none.

use leasehold_protocol::semaphore::Member;
use leasehold_protocol::{
    Acquire, AcquireAll, AcquireAllAnswer, Attributes, LeaseId, LockKey, OwnerName, Refused, Staleness, View, Wanted,
};
use leasehold_wire::semaphore::AcquirePermitsRequest;
use leasehold_wire::{
    self as wire, AcquireAllRequest, AcquireAllResponse, GrantedLock, Lock, Problem, ProblemType, RefusedLock, Secret,
    WantedLock,
};

use crate::Service;
use crate::access::Caller;
use crate::convert::{self, checked};
use crate::quota::{Entered, Kind};
use crate::semaphore::convert as semaphores;
use crate::traced::{logged_problem, operation_span, record_owner, traced};

impl Service {
    /// `POST /v1/acquire-all`
    ///
    /// # Errors
    /// `held`, `lost`, `superseded`, `wrong-kind`, `exceeds-capacity`, `permits-mismatch`, and those of any operation.
    pub async fn acquire_all(
        &self,
        caller: &Caller,
        request: AcquireAllRequest,
    ) -> Result<AcquireAllResponse, Problem> {
        let names = request.keys.iter().map(|wanted| wanted.key.as_str()).collect::<Vec<_>>().join(", ");
        traced(operation_span("acquire-all", &names, caller), async {
            let request = self.all_wanted(caller, request)?;
            let wanted = request.wanted();
            wanted.iter().try_for_each(|wanted| caller.check_key(wanted.key().partition()))?;
            record_owner(wanted[0].owner_name().as_str());
            let enter = |wanted: &Wanted| {
                self.quota.enter(caller, Kind::Lock, wanted.key(), wanted.lease_id(), wanted.lease_duration())
            };
            let entered = wanted.iter().map(enter).collect::<Result<Vec<_>, _>>()?;
            let answer = self.table.acquire_all(&request).await;
            if !matches!(answer, Ok(AcquireAllAnswer::Held(_))) {
                for wanted in wanted {
                    self.watches.written(wanted.key());
                }
            }
            let response = response_or_refusal(answer.map_err(|error| logged_problem(&error))?, wanted)?;
            entered.into_iter().for_each(Entered::keep);
            Ok(("granted".into(), response))
        })
        .await
    }

    /// Returns one request for each key.
    fn all_wanted(&self, caller: &Caller, request: AcquireAllRequest) -> Result<AcquireAll, Problem> {
        let AcquireAllRequest { keys, owner_name, lease_id, sequence, request_id, lease_duration_ms, staleness } =
            request;
        let common = Common {
            owner_name: checked(OwnerName::new(owner_name))?,
            lease_id: lease_id.map_or_else(|| Ok(LeaseId::generate()), convert::lease_id)?,
            lease_duration_ms: convert::lease_duration(lease_duration_ms)?.unwrap_or_default().as_millis(),
            sequence,
            request_id,
            staleness: staleness.unwrap_or_default(),
        };
        // Refuses a bad number before any key.
        convert::sequence(common.sequence, common.request_id.clone())?;
        let wanted = |(index, wanted): (usize, WantedLock)| {
            let result = if wanted.capacity.is_some() {
                self.permits_wanted(caller, &common, wanted).map(Wanted::from)
            } else {
                self.lock_wanted(caller, &common, wanted).map(Wanted::from)
            };
            result.map_err(|problem| match problem.field.as_deref() {
                Some("ownerName") => problem,
                _ => convert::within(format_args!("keys[{index}]"), problem),
            })
        };
        let wanted = keys.into_iter().enumerate().map(wanted).collect::<Result<_, Problem>>()?;
        checked(AcquireAll::new(wanted))
    }

    fn lock_wanted(&self, caller: &Caller, common: &Common, wanted: WantedLock) -> Result<Acquire, Problem> {
        let WantedLock { key, sort_key, observed_record_version_number, permits, capacity: _, observed, epoch } =
            wanted;
        let of_semaphores =
            [("permits", permits.is_some()), ("observed", !observed.is_empty()), ("epoch", epoch.is_some())];
        if let Some((field, _)) = of_semaphores.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Problem::invalid(field, format!("{field} needs capacity, which makes the key a semaphore's.")));
        }
        let staleness = convert::staleness(common.staleness, observed_record_version_number)?;
        let staleness: Staleness = if self.checks_takeovers { staleness.checked_by_clock() } else { staleness };
        Ok(Acquire {
            key: convert::key(key, sort_key)?,
            owner_name: common.owner_name.clone(),
            lease_id: common.lease_id.clone(),
            sequence: convert::sequence(common.sequence, common.request_id.clone())?,
            lease_duration: convert::lease_duration(Some(common.lease_duration_ms))?.unwrap_or_default(),
            staleness,
            data: None,
            replace_data: true,
            only_if_exists: false,
            once: None,
            attributes: Attributes::new(),
            principal: caller.bound(),
        })
    }

    fn permits_wanted(
        &self,
        caller: &Caller,
        common: &Common,
        wanted: WantedLock,
    ) -> Result<leasehold_protocol::semaphore::Acquire, Problem> {
        let WantedLock { key, sort_key, observed_record_version_number, permits, capacity, observed, epoch } = wanted;
        if observed_record_version_number.is_some() {
            return Err(Problem::invalid(
                "observedRecordVersionNumber",
                "observedRecordVersionNumber is for locks: the dead of a semaphore are named in observed.",
            ));
        }
        let request = AcquirePermitsRequest {
            key,
            sort_key,
            owner_name: common.owner_name.as_str().to_owned(),
            permits,
            capacity: capacity.unwrap_or_default(),
            lease_id: Some(Secret(common.lease_id.expose().to_owned())),
            sequence: common.sequence,
            request_id: common.request_id.clone(),
            lease_duration_ms: Some(common.lease_duration_ms),
            observed,
            staleness: Some(common.staleness),
            epoch,
            ..AcquirePermitsRequest::default()
        };
        semaphores::acquire(request, caller.bound(), self.checks_takeovers)
    }
}

/// The parts of the request that all keys have in common.
struct Common {
    owner_name: OwnerName,
    lease_id: LeaseId,
    lease_duration_ms: u64,
    sequence: Option<u64>,
    request_id: Option<String>,
    staleness: wire::Staleness,
}

fn response_or_refusal(answer: AcquireAllAnswer, wanted: &[Wanted]) -> Result<AcquireAllResponse, Problem> {
    let first = &wanted[0];
    match answer {
        AcquireAllAnswer::Granted(grant) => Ok(AcquireAllResponse {
            owner_name: first.owner_name().as_str().to_owned(),
            lease_id: Secret(first.lease_id().expose().to_owned()),
            lease_duration_ms: first.lease_duration().as_millis(),
            fencing_token: grant.fencing_token,
            locks: wanted.iter().zip(grant.versions).map(|(wanted, version)| granted(wanted, version)).collect(),
        }),
        AcquireAllAnswer::Held(keys) => Err(refused(
            Problem::new(
                ProblemType::Held,
                "Someone else holds or awaits the keys that are named, and none was acquired. Watch them, or poll by \
                 reads. A recordVersionNumber that you saw unchanged for its leaseDurationMs belongs beside its key as \
                 observedRecordVersionNumber; such holders and tickets of a semaphore, in its observed.",
            ),
            keys,
        )),
        AcquireAllAnswer::Lost(keys) => Err(refused(
            Problem {
                reason: keys.first().and_then(|key| key.reason).map(convert::lost_reason),
                ..Problem::new(
                    ProblemType::Lost,
                    "The keys that are named are not this lease id's, or not any more. Nothing was acquired. Release \
                     the others, and use a new lease id.",
                )
            },
            keys,
        )),
        AcquireAllAnswer::Superseded(superseded, semaphore) => {
            let problem = convert::superseded(superseded);
            let lock = semaphore.map(|row| Box::new(semaphores::show(*row)));
            Err(Problem { lock: lock.or(problem.lock), ..problem })
        }
        AcquireAllAnswer::WrongKind(keys) => Err(refused(
            Problem::new(
                ProblemType::WrongKind,
                "A key that is named belongs to a semaphore and needs capacity, or to a lock and takes none.",
            ),
            keys,
        )),
        AcquireAllAnswer::ExceedsCapacity(keys) => Err(refused(
            Problem::new(
                ProblemType::ExceedsCapacity,
                "The semaphores that are named have fewer permits in all. Ask for no more, or have their capacity \
                 raised.",
            ),
            keys,
        )),
        AcquireAllAnswer::PermitsMismatch(keys) => Err(refused(
            Problem::new(
                ProblemType::PermitsMismatch,
                "This lease id has other permits of the semaphores that are named, and gets no others.",
            ),
            keys,
        )),
    }
}

fn granted(wanted: &Wanted, record_version_number: String) -> GrantedLock {
    let (key, sort_key) = names(wanted.key());
    let grant = GrantedLock { key, sort_key, record_version_number, ..GrantedLock::default() };
    match wanted {
        Wanted::Lock(_) => grant,
        Wanted::Permits(request) => GrantedLock {
            holder_id: Some(Member::new(&request.key, &request.lease_id).holder_id()),
            permits: Some(request.permits.get()),
            ..grant
        },
    }
}

/// Adds the keys that refused.
fn refused(problem: Problem, keys: Vec<Refused>) -> Problem {
    Problem { locks: Some(keys.into_iter().map(refused_key).collect()), ..problem }
}

fn refused_key(refused: Refused) -> RefusedLock {
    let (key, sort_key) = names(&refused.key);
    let reason = refused.reason.map(convert::lost_reason);
    let named = RefusedLock { key, sort_key, reason, ..RefusedLock::default() };
    match refused.view {
        None => named,
        Some(View::Lock(lock)) => RefusedLock {
            state: Some(convert::show_state(lock.state)),
            owner_name: Some(lock.owner_name),
            record_version_number: Some(lock.rvn),
            lease_duration_ms: Some(lock.lease_ms),
            fencing_token: lock.fencing_token,
            ..named
        },
        Some(View::Semaphore(row)) => {
            let Lock { state, owner_name, record_version_number, lease_duration_ms, fencing_token, semaphore, .. } =
                semaphores::show(*row);
            RefusedLock {
                state: Some(state),
                owner_name: Some(owner_name),
                record_version_number: Some(record_version_number),
                lease_duration_ms: Some(lease_duration_ms),
                fencing_token,
                semaphore,
                ..named
            }
        }
    }
}

fn names(key: &LockKey) -> (String, Option<String>) {
    (key.partition().to_owned(), key.sort().map(str::to_owned))
}
