//! The rules of [`crate::lifecycle`] as DynamoDB expressions: one conditional write for each operation.
//!
//! Compare a condition here with the function of the same name there.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::item::{
    BROKEN_VERSION, COMPLETED_OCCURRENCE, DELETED_VERSION, ENDED_VERSION, EXPIRE_AT, FENCING_TOKEN, IS_RELEASED,
    LAST_OCCURRENCE, LEASE_DURATION, LEASE_ID_HASH, LEASE_MS, LEASE_REQUEST_ID, LEASE_SEQUENCE, LEASE_VERSION,
    LEASEHOLD_WANTED, OCCURRENCE_SECONDS, OWNER_NAME, OWNER_PRINCIPAL, PREVIOUS_LEASE_ID_HASH, PREVIOUS_OCCURRENCE,
    PREVIOUS_OWNER_NAME, PREVIOUS_RELEASED, RECORD_VERSION_NUMBER, RUNNING_OCCURRENCE, STALE_AT, TableSchema,
};
use crate::lifecycle::together::{Attempt, Form};
use crate::lifecycle::{FOREVER_SECONDS, LAST_COUNTABLE_TOKEN, LockState, MAX_LEASE_DIGITS, Policy, Stamp};
use crate::model::{
    Acquire, Break, CompletedTtl, Data, DataChange, Disposal, Heartbeat, LeaseDuration, LeaseIdHash, MAX_LEASE_MS,
    MAX_SEQUENCE, Principal, Release, Rvn, Sequence, SetOccurrence, Staleness, Want,
};
use crate::write::{Builder, Write, bytes, number, text};

/// The row is a lock.
const IS_LOCK: &str = "attribute_not_exists(leaseholdKind)";

const IS_HELD: &str = "attribute_not_exists(isReleased)";

const IS_FREE: &str = "attribute_exists(isReleased)";

/// The row is no tombstone.
const IS_THERE: &str = "NOT (attribute_exists(isReleased) AND deletedVersion = recordVersionNumber)";

/// No client overwrote the row in place since `leaseIdHash` was written: see [`crate::item::LEASE_VERSION`].
const IS_OURS: &str = "(attribute_not_exists(leaseVersion) OR leaseVersion = recordVersionNumber)";

/// The lock is bound to no principal, or to this one.
const IS_ADMITTED: &str = "(attribute_not_exists(ownerPrincipal) OR ownerPrincipal = :ownerPrincipal)";

/// The row remembers no acquisition of this lease id. A comparison with an absent attribute is false, except `<>`,
/// which is true.
const IS_UNKNOWN: &str = "leaseIdHash <> :leaseIdHash AND previousLeaseIdHash <> :leaseIdHash";

/// The row's acquisition does not follow one of this lease id.
const IS_UNFOLLOWED: &str = "(leaseIdHash = :leaseIdHash OR previousLeaseIdHash <> :leaseIdHash)";

/// The token is below the limit, so that the next one can be counted from it.
const IS_COUNTABLE: &str = "(attribute_not_exists(fencingToken) OR fencingToken BETWEEN :zero AND :lastToken)";

/// The nearest that an expression comes to [`Row::is_readable`](crate::lifecycle::Row): the row has an owner and a
/// lease. The lease begins like a number, is not too long, and is no Go duration. (An expression cannot check that
/// every character is a digit. Where one is not, the write is applied, and its answer is that the record is corrupt.)
const IS_READABLE: &str = "attribute_type(ownerName, :string) AND leaseDuration BETWEEN :firstDigit AND :pastLastDigit \
     AND size(leaseDuration) <= :maxDigits AND NOT contains(leaseDuration, :goUnit)";

/// No request with this number or a higher one was carried out under the lease id. An unreadable number counts as none.
const IS_NEW: &str = "NOT (leaseSequence BETWEEN :leaseSequence AND :lastSequence)";

/// Neither the occurrence nor a later one is recorded as done. An unreadable record refuses.
const IS_DUE: &str = "(attribute_not_exists(lastOccurrence) OR lastOccurrence < :runningOccurrence)";

/// The row's acquisition is for the occurrence, or the occurrence is due.
const IS_RUNNING_OR_DUE: &str = "(runningOccurrence = :runningOccurrence OR attribute_not_exists(lastOccurrence) \
     OR lastOccurrence < :runningOccurrence)";

/// A reserved word.
const PAYLOAD: &str = "#data";

/// Joins the conditions that are not empty.
fn all(conditions: &[&str]) -> String {
    conditions.iter().copied().filter(|condition| !condition.is_empty()).collect::<Vec<_>>().join(" AND ")
}

impl Builder {
    /// Starts the write of a lock, or of a missing row.
    fn of_lock() -> Self {
        let mut builder = Self::default();
        builder.condition(IS_LOCK);
        builder
    }

    /// Returns the condition that the row carries this lease id. Where a principal is given, the row must be bound to
    /// no other.
    fn possession(&mut self, hash: &LeaseIdHash, principal: Option<&Principal>) -> String {
        self.write.hash(hash);
        let own = "leaseIdHash = :leaseIdHash";
        let Some(principal) = principal else { return all(&[own, IS_OURS]) };
        self.write.text(":ownerPrincipal", principal.as_str());
        all(&[own, IS_OURS, IS_ADMITTED])
    }

    /// Returns the condition that the request is new; empty where the request is not numbered.
    fn new_only(&mut self, sequence: Option<&Sequence>) -> &'static str {
        if sequence.is_none() {
            return "";
        }
        self.write.number(":lastSequence", MAX_SEQUENCE);
        IS_NEW
    }

    /// Returns the condition that the lock is stale, or nothing where no lock is.
    fn stale(&mut self, staleness: &Staleness, stamp: &Stamp, policy: &Policy) -> Option<String> {
        if let Staleness::Observed(rvn) | Staleness::ObservedAndClock(rvn) = staleness {
            self.write.text(":observed", rvn.as_str());
        }
        if let Staleness::Clock | Staleness::ObservedAndClock(_) = staleness {
            self.write.number(":staleBefore", policy.stale_before(stamp));
        }
        let evidence = match staleness {
            Staleness::Never => return None,
            Staleness::Observed(_) => "recordVersionNumber = :observed".to_owned(),
            Staleness::ObservedAndClock(_) => {
                self.write.text(":number", "N");
                format!(
                    "recordVersionNumber = :observed \
                     AND (NOT attribute_type(staleAt, :number) OR staleAt < :staleBefore OR NOT {IS_OURS})"
                )
            }
            Staleness::Clock => all(&["staleAt < :staleBefore", IS_OURS]),
        };
        self.write.text(":string", "S");
        self.write.text(":firstDigit", "1");
        self.write.text(":pastLastDigit", ":");
        self.write.text(":goUnit", "s");
        self.write.number(":maxDigits", MAX_LEASE_DIGITS as u64);
        Some(all(&[&evidence, IS_READABLE]))
    }

    /// Requires this version, if one is given.
    fn expect(&mut self, expected: Option<&Rvn>, condition: &str) {
        if let Some(rvn) = expected {
            self.write.text(":expected", rvn.as_str());
            self.condition(condition);
        }
    }

    /// Stores the version that every write of a lock has.
    fn version(&mut self, stamp: &Stamp) {
        self.write.text(":rvn", &stamp.rvn);
        self.set(format!("{RECORD_VERSION_NUMBER} = :rvn"));
        self.set(format!("{LEASE_VERSION} = :rvn"));
    }

    /// Stores a lease that begins now.
    fn lease(&mut self, lease: LeaseDuration, stamp: &Stamp) {
        let ms = lease.as_millis();
        self.put(LEASE_DURATION, text(&ms.to_string()));
        self.put(LEASE_MS, number(ms));
        self.put(STALE_AT, number(stamp.now_ms() + ms));
    }

    /// Stores the time at which the row may expire: later where it has an occurrence to remember.
    fn expiry(&mut self, at: u64) {
        self.write.number(":expireAt", at);
        self.write.number(":noSeconds", 0);
        self.set(format!("{EXPIRE_AT} = :expireAt + if_not_exists({OCCURRENCE_SECONDS}, :noSeconds)"));
    }

    /// Stores that the row remembers its last occurrence for ever.
    fn never_expires(&mut self) {
        self.put(OCCURRENCE_SECONDS, number(FOREVER_SECONDS));
        self.remove(EXPIRE_AT);
    }

    /// Stores the place of a request in the order of requests.
    fn sequence(&mut self, sequence: &Sequence) {
        self.put(LEASE_SEQUENCE, number(sequence.number()));
        match sequence.request_id() {
            Some(id) => self.put(LEASE_REQUEST_ID, text(id)),
            None => self.remove(LEASE_REQUEST_ID),
        }
    }

    /// Stores a payload, if one is given.
    fn payload(&mut self, data: Option<&Data>) {
        if let Some(data) = data {
            self.put(PAYLOAD, bytes(data.as_bytes()));
        }
    }

    /// Copies an attribute, or stores a value that says that there was none.
    fn copy(&mut self, from: &str, to: &str, none: AttributeValue) {
        let placeholder = format!(":no{from}");
        self.set(format!("{to} = if_not_exists({from}, {placeholder})"));
        self.write.value(&placeholder, none);
    }

    /// Stores the mark of a released row, and which version ended.
    fn release(&mut self, stamp: &Stamp) {
        self.version(stamp);
        self.put(IS_RELEASED, text("1"));
        self.copy(RECORD_VERSION_NUMBER, ENDED_VERSION, text(""));
    }
}

/// Rule 2, for one lock alone or as part of an attempt at several locks.
pub(crate) fn acquire(
    schema: &TableSchema,
    request: &Acquire,
    stamp: &Stamp,
    policy: &Policy,
    attempt: Option<&Attempt>,
) -> Write {
    let form = attempt.map(|attempt| attempt.form);
    let mut builder = Builder::of_lock();
    let ground = ground(&mut builder, request, stamp, policy, form);
    builder.condition(ground);
    builder.condition(IS_COUNTABLE);
    builder.write.number(":zero", 0);
    match attempt {
        None => {
            builder.write.number(":lastToken", LAST_COUNTABLE_TOKEN);
            builder.write.number(":seed", stamp.now_us);
            builder.write.number(":one", 1);
            builder.set(format!("{FENCING_TOKEN} = if_not_exists({FENCING_TOKEN}, :seed) + :one"));
        }
        Some(attempt) => {
            builder.write.number(":lastToken", attempt.fencing_token - 1);
            builder.put(FENCING_TOKEN, number(attempt.fencing_token));
        }
    }
    assign_grant(&mut builder, request, stamp, policy);
    if request.only_if_exists {
        builder.condition(IS_THERE);
    }
    if request.only_if_exists || form == Some(Form::Renewal) {
        builder.build()
    } else {
        builder.build_or_create(&schema.partition_key)
    }
}

/// Returns the condition that the row is free, the lease id's own, or stale. An attempt at several locks is for own
/// rows, or for others.
fn ground(builder: &mut Builder, request: &Acquire, stamp: &Stamp, policy: &Policy, form: Option<Form>) -> String {
    let [due, running_or_due] = if request.once.is_some() { [IS_DUE, IS_RUNNING_OR_DUE] } else { [""; 2] };
    let own = builder.possession(&request.lease_id.hash(), request.principal.as_ref());
    let mut grounds = Vec::new();
    if form != Some(Form::Renewal) {
        grounds.push(all(&[IS_FREE, IS_UNKNOWN, due]));
        if let Some(stale) = builder.stale(&request.staleness, stamp, policy) {
            grounds.push(all(&[IS_HELD, &stale, IS_UNFOLLOWED, &format!("NOT ({own})"), due]));
        }
    }
    if form != Some(Form::Acquisition) {
        let new = builder.new_only(request.sequence.as_ref());
        grounds.push(all(&[IS_HELD, &own, new, running_or_due]));
    }
    // DynamoDB refuses redundant parentheses.
    match grounds.as_slice() {
        [ground] => ground.clone(),
        several => format!("(({}))", several.join(") OR (")),
    }
}

/// The row that an acquire leaves, but for its token.
fn assign_grant(builder: &mut Builder, request: &Acquire, stamp: &Stamp, policy: &Policy) {
    builder.version(stamp);
    builder.lease(request.lease_duration, stamp);
    builder.put(OWNER_NAME, text(request.owner_name.as_str()));
    builder.put(LEASE_ID_HASH, bytes(&request.lease_id.hash().0));
    builder.copy(LEASE_ID_HASH, PREVIOUS_LEASE_ID_HASH, bytes(&[]));
    builder.copy(OWNER_NAME, PREVIOUS_OWNER_NAME, text(""));
    builder.copy(IS_RELEASED, PREVIOUS_RELEASED, text(""));
    builder.copy(COMPLETED_OCCURRENCE, PREVIOUS_OCCURRENCE, text(""));
    builder.remove(IS_RELEASED);
    builder.remove(BROKEN_VERSION);
    builder.remove(COMPLETED_OCCURRENCE);
    builder.remove(LEASEHOLD_WANTED);
    match &request.data {
        Some(data) if !request.replace_data => {
            builder.write.value(":data", bytes(data.as_bytes()));
            builder.set(format!("{PAYLOAD} = if_not_exists({PAYLOAD}, :data)"));
        }
        data => builder.payload(data.as_ref()),
    }
    for (index, (name, value)) in request.attributes.iter().enumerate() {
        let placeholder = format!("#a{index}");
        builder.write.name(&placeholder, name);
        builder.put(&placeholder, value.clone());
    }
    let expire_at = policy.expire_at(stamp, Some(request.lease_duration.as_millis()));
    match &request.once {
        Some(once) => builder.put(RUNNING_OCCURRENCE, text(once.occurrence.as_str())),
        None => builder.remove(RUNNING_OCCURRENCE),
    }
    if request.once.as_ref().is_some_and(|once| once.at_most_once) {
        builder.set(format!("{LAST_OCCURRENCE} = :{RUNNING_OCCURRENCE}"));
        builder.never_expires();
    } else {
        builder.expiry(expire_at);
    }
    match &request.sequence {
        Some(sequence) => builder.sequence(sequence),
        None => [LEASE_SEQUENCE, LEASE_REQUEST_ID].into_iter().for_each(|name| builder.remove(name)),
    }
    match &request.principal {
        Some(principal) => builder.put(OWNER_PRINCIPAL, text(principal.as_str())),
        None => builder.remove(OWNER_PRINCIPAL),
    }
}

/// Rule 3.
pub(crate) fn heartbeat(request: &Heartbeat, stamp: &Stamp, policy: &Policy) -> Write {
    let mut builder = Builder::of_lock();
    let own = builder.possession(&request.lease_id.hash(), request.principal.as_ref());
    let new = builder.new_only(request.sequence.as_ref());
    builder.condition(all(&[&own, IS_HELD, new]));
    builder.expect(request.expected.as_ref(), "recordVersionNumber = :expected");
    if let Some(token) = request.fencing_token {
        builder.condition("fencingToken = :token");
        builder.write.number(":token", token);
    }
    builder.version(stamp);
    builder.expiry(policy.expire_at(stamp, request.lease_duration.map(LeaseDuration::as_millis)));
    if let Some(lease) = request.lease_duration {
        builder.lease(lease, stamp);
    } else {
        builder.set(format!("{STALE_AT} = :now + if_not_exists({LEASE_MS}, :longestLease)"));
        builder.write.number(":now", stamp.now_ms());
        builder.write.number(":longestLease", MAX_LEASE_MS);
    }
    match &request.data {
        DataChange::Keep => {}
        DataChange::Set(data) => builder.payload(Some(data)),
        DataChange::Delete => builder.remove(PAYLOAD),
    }
    if let Some(sequence) = &request.sequence {
        builder.sequence(sequence);
    }
    builder.build()
}

/// Rules 4 and 10.
pub(crate) fn release(request: &Release, stamp: &Stamp, policy: &Policy) -> Write {
    let mut builder = Builder::of_lock();
    let own = builder.possession(&request.lease_id.hash(), request.principal.as_ref());
    builder.condition(own);
    builder.release(stamp);
    let expected = request.expected.as_ref();
    match &request.disposal {
        Disposal::Keep(data) | Disposal::Complete(_, data) => {
            builder.condition(IS_HELD);
            builder.expect(expected, "recordVersionNumber = :expected");
            builder.payload(data.as_ref());
            builder.remove(DELETED_VERSION);
        }
        Disposal::Delete => {
            builder.condition(IS_THERE);
            builder.expect(
                expected,
                "(recordVersionNumber = :expected OR (attribute_exists(isReleased) AND endedVersion = :expected))",
            );
            builder.set(format!("{DELETED_VERSION} = :rvn"));
            builder.remove(PAYLOAD);
            builder.remove(LEASEHOLD_WANTED);
        }
    }
    let expire_at = policy.expire_at(stamp, None);
    if let Disposal::Complete(done, _) = &request.disposal {
        builder.condition("runningOccurrence = :lastOccurrence");
        builder.put(LAST_OCCURRENCE, text(done.occurrence.as_str()));
        builder.set(format!("{COMPLETED_OCCURRENCE} = :{LAST_OCCURRENCE}"));
        if let Some(seconds) = done.ttl.map(CompletedTtl::as_seconds) {
            builder.put(OCCURRENCE_SECONDS, number(seconds));
            builder.put(EXPIRE_AT, number(expire_at + seconds));
        } else {
            builder.never_expires();
        }
    } else {
        builder.expiry(expire_at);
    }
    builder.build()
}

/// Rule 10: removes these attributes from a tombstone, or from the lock that an acquire made of one. No other write has
/// the version of either.
pub(crate) fn clear<'a>(version: &str, attributes: impl IntoIterator<Item = &'a String>) -> Write {
    let mut builder = Builder::default();
    builder.condition("recordVersionNumber = :rvn");
    builder.write.text(":rvn", version);
    for (index, name) in attributes.into_iter().enumerate() {
        let placeholder = format!("#a{index}");
        builder.write.name(&placeholder, name);
        builder.remove(placeholder);
    }
    builder.build()
}

/// Rule 15.
pub(crate) fn want(request: &Want) -> Write {
    let mut builder = Builder::of_lock();
    builder.condition(IS_HELD);
    // A row that is not there has no versions. DynamoDB finds two absent attributes unequal; ministack finds them
    // equal.
    builder.condition("attribute_exists(leaseVersion) AND leaseVersion = recordVersionNumber");
    builder.condition("NOT attribute_type(leaseholdWanted, :string)");
    builder.write.text(":string", "S");
    builder.put(LEASEHOLD_WANTED, text(request.owner_name.as_str()));
    builder.build()
}

/// The operator's release.
pub(crate) fn break_lock(request: &Break, stamp: &Stamp, policy: &Policy) -> Write {
    let mut builder = Builder::of_lock();
    builder.condition(IS_HELD);
    builder.expect(Some(&request.seen), "recordVersionNumber = :expected");
    builder.release(stamp);
    builder.set(format!("{BROKEN_VERSION} = :rvn"));
    builder.expiry(policy.expire_at(stamp, None));
    builder.remove(DELETED_VERSION);
    builder.build()
}

/// The operator's change of the last occurrence.
pub(crate) fn set_occurrence(request: &SetOccurrence, stamp: &Stamp) -> Write {
    let mut builder = Builder::of_lock();
    builder.condition(all(&[IS_FREE, IS_THERE, "lastOccurrence <> :lastOccurrence"]));
    builder.expect(Some(&request.seen), "recordVersionNumber = :expected");
    builder.version(stamp);
    builder.put(LAST_OCCURRENCE, text(request.last.as_str()));
    builder.never_expires();
    builder.build()
}

/// The condition under which a sweep removes a row.
pub(crate) fn over(now_ms: u64, policy: &Policy) -> Write {
    let mut write = Write { condition: all(&["expireAt < :overBefore", IS_OURS]), ..Write::default() };
    write.number(":overBefore", policy.over_before(now_ms));
    write
}

/// A filter on what a listing returns.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    pub(crate) expression: Option<String>,
    pub(crate) values: HashMap<String, AttributeValue>,
}

pub(crate) fn filter(state: Option<LockState>, owner_name: Option<&str>) -> Filter {
    let by_state = state.map(|state| match state {
        LockState::Held => "attribute_not_exists(isReleased)",
        // An expression cannot count a semaphore's holders: semaphores are filtered after they are read.
        LockState::Released => "(attribute_exists(isReleased) OR attribute_exists(leaseholdKind))",
    });
    let by_owner = owner_name.map(|_| "ownerName = :ownerName");
    let clauses: Vec<_> = by_state.into_iter().chain(by_owner).collect();
    Filter {
        expression: (!clauses.is_empty()).then(|| clauses.join(" AND ")),
        values: owner_name.map(|name| (":ownerName".into(), AttributeValue::S(name.into()))).into_iter().collect(),
    }
}
