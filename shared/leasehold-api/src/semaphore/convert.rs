//! Converts between the wire and the protocol.

use leasehold_protocol::lifecycle::NUMBER_LIMIT;
use leasehold_protocol::semaphore::{
    Acquire, Ahead, AllDead, Break, Claim, ClaimNumber, DEFAULT_HOLDER_LEASE_MS, DEFAULT_TICKET_LEASE_MS, Dead,
    Enqueue, Entry, Epoch, Grant, Heartbeat, Member, OWNER, Permits, PublicId, Refusal, Release, Semaphore,
    SetCapacity, Shrink, entry_data, entry_name, operator_request_id,
};
use leasehold_protocol::{Data, LeaseDuration, LeaseId, LockKey, Lost, Principal, Rvn};
use leasehold_wire::semaphore::{
    AcquirePermitsRequest, AcquirePermitsResponse, BreakEntryRequest, CapacityRequest, EnqueueAnswer, EnqueueRequest,
    EnqueueResponse, HeartbeatPermitsRequest, HeartbeatPermitsResponse, Holder, Kind, ObservedEntry,
    ReleasePermitsRequest, SemaphoreState, Ticket,
};
use leasehold_wire::{Lock, Problem, ProblemType, Secret, Staleness, semaphore};
use serde_json::Map;

use crate::convert::{self, checked};

pub(crate) fn acquire(
    request: AcquirePermitsRequest,
    principal: Option<Principal>,
    checked_by_clock: bool,
) -> Result<Acquire, Problem> {
    let key = convert::key(request.key, request.sort_key)?;
    let lease_id = request.lease_id.map_or_else(|| Ok(LeaseId::generate()), convert::lease_id)?;
    let by_clock = request.staleness == Some(Staleness::Clock);
    if by_clock && !request.observed.is_empty() {
        return Err(Problem::invalid(
            "observed",
            "observed needs staleness rvn: by the clock, the service names the dead.",
        ));
    }
    let dead = dead(request.observed, &Member::new(&key, &lease_id))?;
    if request.passes && (request.number.is_none() || request.epoch.is_none()) {
        return Err(Problem::invalid("passes", "passes needs number, and the epoch of the view that shows the queue."));
    }
    Ok(Acquire {
        owner_name: checked(entry_name(request.owner_name))?,
        sequence: convert::sequence(request.sequence, request.request_id)?,
        lease_duration: lease_or(request.lease_duration_ms, DEFAULT_HOLDER_LEASE_MS)?,
        permits: permits("permits", request.permits.unwrap_or(1))?,
        capacity: permits("capacity", request.capacity)?,
        dead,
        checked_by_clock,
        by_clock,
        epoch: epoch(request.epoch)?,
        number: request.number,
        passes: request.passes,
        data: data(request.data, request.data_base64)?,
        principal,
        key,
        lease_id,
    })
}

pub(crate) fn heartbeat(request: HeartbeatPermitsRequest, principal: Option<Principal>) -> Result<Heartbeat, Problem> {
    let shrink = match (request.held_permits, request.permits) {
        (None, None) => None,
        (Some(held), Some(kept)) => {
            Some(checked(Shrink::new(permits("heldPermits", held)?, permits("permits", kept)?))?)
        }
        (None, Some(_)) => {
            return Err(Problem::invalid("heldPermits", "permits to keep need heldPermits, the number that is held."));
        }
        (Some(_), None) => return Err(Problem::invalid("permits", "heldPermits needs permits, the number to keep.")),
    };
    Ok(Heartbeat {
        key: convert::key(request.key, request.sort_key)?,
        lease_id: convert::lease_id(request.lease_id)?,
        sequence: convert::sequence(request.sequence, request.request_id)?,
        lease_duration: convert::lease_duration(request.lease_duration_ms)?,
        data: data(request.data, request.data_base64)?,
        expected: version(request.version)?,
        fencing_token: request.fencing_token,
        shrink,
        principal,
    })
}

pub(crate) fn release(request: ReleasePermitsRequest, principal: Option<Principal>) -> Result<Release, Problem> {
    let token = request.fencing_token.map(ClaimNumber::Token);
    Ok(Release {
        key: convert::key(request.key, request.sort_key)?,
        lease_id: convert::lease_id(request.lease_id)?,
        expected: version(request.version)?,
        number: token.or(request.number.map(ClaimNumber::Ticket)),
        principal,
    })
}

pub(crate) fn break_entry(request: BreakEntryRequest) -> Result<Break, Problem> {
    Ok(Break {
        key: convert::key(request.key, request.sort_key)?,
        id: checked(PublicId::new("holderId", &request.holder_id))?,
        seen: checked(Rvn::new("version", request.version))?,
        number: request.number,
    })
}

pub(crate) fn enqueue(
    request: EnqueueRequest,
    principal: Option<Principal>,
    checked_by_clock: bool,
) -> Result<Enqueue, Problem> {
    let key = convert::key(request.key, request.sort_key)?;
    let lease_id = convert::lease_id(request.lease_id)?;
    let dead = dead(request.observed, &Member::new(&key, &lease_id))?;
    Ok(Enqueue {
        owner_name: checked(entry_name(request.owner_name))?,
        sequence: convert::sequence(request.sequence, request.request_id)?,
        lease_duration: lease_or(request.lease_duration_ms, DEFAULT_TICKET_LEASE_MS)?,
        permits: permits("permits", request.permits.unwrap_or(1))?,
        capacity: permits("capacity", request.capacity)?,
        dead,
        checked_by_clock,
        epoch: epoch(request.epoch)?,
        number: request.number,
        grant_lease: lease_or(request.grant_lease_duration_ms, DEFAULT_HOLDER_LEASE_MS)?,
        data: data(request.data, request.data_base64)?,
        principal,
        key,
        lease_id,
    })
}

pub(crate) fn set_capacity(request: CapacityRequest) -> Result<SetCapacity, Problem> {
    Ok(SetCapacity {
        key: convert::key(request.key, request.sort_key)?,
        capacity: permits("capacity", request.capacity)?,
        expected: permits("expected", request.expected)?,
        expected_version: request.expected_version.map(|it| checked(Rvn::new("expectedVersion", it))).transpose()?,
        request_id: request.request_id.map(|id| checked(operator_request_id(id))).transpose()?,
    })
}

fn epoch(epoch: Option<String>) -> Result<Option<Epoch>, Problem> {
    epoch.map(|epoch| checked(Epoch::new(&epoch))).transpose()
}

fn permits(field: &'static str, number: u64) -> Result<Permits, Problem> {
    checked(Permits::new(field, number))
}

fn lease_or(millis: Option<u64>, default: u64) -> Result<LeaseDuration, Problem> {
    checked(LeaseDuration::from_millis(millis.unwrap_or(default)))
}

fn version(version: Option<String>) -> Result<Option<Rvn>, Problem> {
    version.map(|version| checked(Rvn::new("version", version))).transpose()
}

fn data(text: Option<String>, base64: Option<String>) -> Result<Option<Data>, Problem> {
    convert::data(text, base64)?.map(|data| checked(entry_data(data))).transpose()
}

fn dead(observed: Vec<ObservedEntry>, caller: &Member) -> Result<AllDead, Problem> {
    let read = |entry: ObservedEntry| {
        let id = checked(PublicId::new("observed", &entry.holder_id))?;
        let permits = match (&id, entry.permits) {
            (PublicId::Ticket(_), _) => 0,
            (PublicId::Holder(_), Some(number)) => permits("observed", number)?.get(),
            (PublicId::Holder(_), None) => {
                return Err(Problem::invalid("observed", "observed must name the permits of each holder."));
            }
        };
        Ok(Dead { id, version: checked(Rvn::new("observed", entry.version))?, permits, number: entry.number })
    };
    let dead = observed.into_iter().map(read).collect::<Result<_, Problem>>()?;
    checked(AllDead::new(dead, caller))
}

pub(crate) fn granted(grant: Grant, key: &LockKey, lease_id: &LeaseId) -> AcquirePermitsResponse {
    let claim = grant.holder.claim;
    AcquirePermitsResponse {
        key: key.partition().to_owned(),
        sort_key: key.sort().map(str::to_owned),
        owner_name: claim.owner_name,
        lease_id: Secret(lease_id.expose().to_owned()),
        holder_id: grant.holder_id,
        version: claim.version,
        lease_duration_ms: claim.lease_ms,
        permits: claim.permits,
        fencing_token: grant.holder.fencing_token,
        capacity: grant.capacity,
        outcome: convert::grant_outcome(grant.holder.outcome),
        epoch: grant.epoch.to_string(),
    }
}

pub(crate) fn renewed(grant: Grant) -> HeartbeatPermitsResponse {
    let Claim { version, lease_ms, permits, .. } = grant.holder.claim;
    HeartbeatPermitsResponse {
        holder_id: grant.holder_id,
        version,
        lease_duration_ms: lease_ms,
        permits,
        fencing_token: grant.holder.fencing_token,
    }
}

pub(crate) fn entered(entry: Entry, request: &Enqueue) -> EnqueueAnswer {
    match entry {
        Entry::Granted(grant) => EnqueueAnswer::Granted(granted(grant, &request.key, &request.lease_id)),
        Entry::Queued(place) => EnqueueAnswer::Queued(enqueued(place)),
    }
}

fn enqueued(place: Ahead) -> EnqueueResponse {
    EnqueueResponse {
        ticket_id: place.ticket_id,
        version: place.ticket.claim.version,
        number: place.ticket.number,
        ahead: place.ahead as u64,
        epoch: place.epoch.to_string(),
    }
}

/// The number of free permits: zero, where the capacity was cut below the number in use.
pub(crate) fn free(available: i64) -> u64 {
    available.try_into().unwrap_or(0)
}

/// The public view. Its common fields with a lock read as a held lock while the semaphore has a holder.
pub(crate) fn show(row: Semaphore) -> Lock {
    let state = row.state();
    let (changed, epoch, capacity_version) = (row.changed(), row.epoch(), row.capacity_version().to_owned());
    let mut holders: Vec<_> = row.holders.into_iter().map(show_holder).collect();
    holders.sort_by_key(|holder| holder.fencing_token);
    let mut queue: Vec<_> = row.queue.into_iter().map(show_ticket).collect();
    queue.sort_by_key(|ticket| ticket.number);
    Lock {
        key: row.key.partition().to_owned(),
        sort_key: row.key.sort().map(str::to_owned),
        state: convert::show_state(state),
        owner_name: OWNER.to_owned(),
        record_version_number: row.rvn,
        lease_duration_ms: NUMBER_LIMIT,
        fencing_token: Some(row.fencing_token),
        occurrence: None,
        last_occurrence: None,
        wanted_by: None,
        data: None,
        data_base64: None,
        attributes: Map::new(),
        semaphore: Some(Box::new(SemaphoreState {
            kind: Kind::Semaphore,
            capacity: row.capacity,
            available: free(row.available),
            changed,
            epoch: epoch.to_string(),
            capacity_version,
            holders,
            queue,
        })),
    }
}

fn show_holder((holder_id, holder): (String, leasehold_protocol::semaphore::Holder)) -> Holder {
    let (data, data_base64) = convert::show_data(holder.data);
    Holder {
        holder_id,
        owner_name: holder.claim.owner_name,
        version: holder.claim.version,
        lease_duration_ms: holder.claim.lease_ms,
        permits: holder.claim.permits,
        fencing_token: holder.fencing_token,
        data,
        data_base64,
    }
}

fn show_ticket((ticket_id, ticket): (String, leasehold_protocol::semaphore::Ticket)) -> Ticket {
    Ticket {
        ticket_id,
        owner_name: ticket.claim.owner_name,
        version: ticket.claim.version,
        lease_duration_ms: ticket.claim.lease_ms,
        permits: ticket.claim.permits,
        number: ticket.number,
    }
}

pub(crate) fn no_semaphore() -> Problem {
    let detail = "This key is no semaphore's. Where GET /v1/lock shows it, use the routes of locks.";
    Problem::new(ProblemType::WrongKind, detail)
}

pub(crate) fn not_found() -> Problem {
    Problem::new(ProblemType::NotFound, "No semaphore has this key.")
}

/// Returns the problem for a refusal. `row` is the semaphore that refused.
pub(crate) fn refused(refusal: Refusal, row: Option<Semaphore>) -> Problem {
    let problem = match refusal {
        Refusal::OtherKind => return no_semaphore(),
        Refusal::NotFound => return not_found(),
        Refusal::Forbidden => return convert::bound_to_another(),
        Refusal::Held => Problem::new(
            ProblemType::Held,
            "Too few permits are free, somebody is ahead in the queue, one that was observed as dead shows a sign of \
             life, the epoch is too old, or 100 hold permits already. Without a ticket, try again with the epoch of lock, \
             or enqueue. With one, look or watch, and name the epoch of a view only where it shows the ticket's turn. \
             Name holders and tickets whose version stays the same for their lease in observed.",
        ),
        Refusal::QueueFull => Problem::new(
            ProblemType::QueueFull,
            "The queue has no room. Poll; name tickets whose version stays the same for their lease in observed.",
        ),
        Refusal::Lost(reason) => convert::lost(Lost { reason, lock: None }),
        Refusal::Superseded(superseded) => convert::superseded(*superseded),
        Refusal::PermitsMismatch(held) => Problem::new(
            ProblemType::PermitsMismatch,
            format!(
                "This lease id has {}, and gets no others. A heartbeat can give some back.",
                semaphore::permits(held)
            ),
        ),
        Refusal::ExceedsCapacity(capacity) => Problem::new(
            ProblemType::ExceedsCapacity,
            format!(
                "The semaphore has {} in all. Ask for no more, or have its capacity raised.",
                semaphore::permits(capacity)
            ),
        ),
        Refusal::VersionMismatch => {
            Problem::new(ProblemType::VersionMismatch, "The semaphore has changed since you looked. Look again.")
        }
    };
    Problem { lock: row.map(|row| Box::new(show(row))), ..problem }
}
