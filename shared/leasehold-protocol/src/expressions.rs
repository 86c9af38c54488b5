//! The rules of [`crate::lifecycle`] as DynamoDB expressions: one conditional write for each operation.
//!
//! Compare a condition here with the `match` of the same name there. `#key` and `#data` stand for names that are
//! configurable or reserved words; every other attribute has its own name.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use crate::item::{DATA, TableSchema};
use crate::lifecycle::together::{Attempt, Form};
use crate::lifecycle::{LAST_COUNTABLE_TOKEN, LockState, MAX_LEASE_DIGITS, Policy, Stamp};
use crate::model::{
    Acquire, Break, Data, DataChange, Disposal, Heartbeat, LeaseDuration, LeaseIdHash, MAX_LEASE_MS, MAX_SEQUENCE,
    Principal, Release, Sequence, Staleness,
};

/// No client overwrote the row in place since `leaseIdHash` was written: see [`crate::item::LEASE_VERSION`].
const IS_OURS: &str = "(attribute_not_exists(leaseVersion) OR leaseVersion = recordVersionNumber)";

/// The lock is bound to no principal, or to this one.
const IS_ADMITTED: &str = "(attribute_not_exists(ownerPrincipal) OR ownerPrincipal = :principal)";

/// The token is below the limit, so that the next one can be counted from it.
const IS_COUNTABLE: &str = "(attribute_not_exists(fencingToken) OR fencingToken BETWEEN :zero AND :lastToken)";

/// The nearest that an expression comes to [`Row::is_readable`](crate::lifecycle::Row): the row has an owner and a
/// lease. The lease begins like a number, is not too long, and is no Go duration. (An expression cannot check that
/// every character is a digit.)
const IS_READABLE: &str = "attribute_type(ownerName, :string) AND leaseDuration BETWEEN :firstDigit AND :pastLastDigit \
     AND size(leaseDuration) <= :maxDigits AND NOT contains(leaseDuration, :goUnit)";

/// No request with this number or a higher one was carried out under the lease id. An unreadable number counts as none.
const IS_NEW: &str = "NOT (leaseSequence BETWEEN :sequence AND :lastSequence)";

/// The row is no tombstone.
const IS_THERE: &str = "NOT (attribute_exists(isReleased) AND deletedVersion = recordVersionNumber)";

/// The row is a lock.
const IS_LOCK: &str = "attribute_not_exists(leaseholdKind)";
/// Neither the occurrence nor a later one is recorded as done. An unreadable record refuses.
const IS_DUE: &str = "(attribute_not_exists(lastOccurrence) OR lastOccurrence < :occurrence)";

/// The row's acquisition is for the occurrence, or the occurrence is due.
const IS_RUNNING_OR_DUE: &str = "(runningOccurrence = :occurrence OR attribute_not_exists(lastOccurrence) \
     OR lastOccurrence < :occurrence)";

/// A row that records an occurrence never expires: TTL ignores an attribute that is a string.
const SET_EXPIRE_AT: &str = ", expireAt = if_not_exists(lastOccurrence, :expireAt)";

/// A conditional update of the row.
#[derive(Debug, Default)]
pub(crate) struct Write {
    pub(crate) condition: String,
    pub(crate) update: String,
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: HashMap<String, AttributeValue>,
}

impl Write {
    pub(crate) fn name(&mut self, placeholder: &str, name: &str) {
        self.names.insert(placeholder.to_owned(), name.to_owned());
    }

    pub(crate) fn text(&mut self, placeholder: &str, value: impl Into<String>) {
        self.values.insert(placeholder.to_owned(), AttributeValue::S(value.into()));
    }

    pub(crate) fn number(&mut self, placeholder: &str, value: u64) {
        self.values.insert(placeholder.to_owned(), AttributeValue::N(value.to_string()));
    }

    pub(crate) fn hash(&mut self, hash: &LeaseIdHash) {
        self.values.insert(":leaseIdHash".into(), AttributeValue::B(Blob::new(hash.0)));
    }

    /// Returns `condition`, and where the request is numbered also the condition that the request is new.
    fn new_only(&mut self, condition: String, sequence: Option<&Sequence>) -> String {
        if sequence.is_none() {
            return condition;
        }
        self.number(":lastSequence", MAX_SEQUENCE);
        format!("{condition} AND {IS_NEW}")
    }

    /// Binds the parts of a sequence, and returns the assignments that store it.
    fn sequence(&mut self, sequence: &Sequence) -> &'static str {
        self.number(":sequence", sequence.number());
        let Some(id) = sequence.request_id() else { return ", leaseSequence = :sequence" };
        self.text(":requestId", id);
        ", leaseSequence = :sequence, leaseRequestId = :requestId"
    }

    /// Binds the values that [`IS_READABLE`] compares with.
    fn readable(&mut self) {
        self.text(":string", "S");
        self.text(":firstDigit", "1");
        self.text(":pastLastDigit", ":");
        self.text(":goUnit", "s");
        self.number(":maxDigits", MAX_LEASE_DIGITS as u64);
    }

    /// Binds the payload to `:data`, and returns the assignment that stores it.
    fn data(&mut self, data: &Data, assignment: &'static str) -> &'static str {
        self.name("#data", DATA);
        self.values.insert(":data".into(), AttributeValue::B(Blob::new(data.as_bytes())));
        assignment
    }

    /// Binds the time at which a released row may expire, and returns the assignment that stores it.
    fn expire_at(&mut self, stamp: &Stamp, policy: &Policy) -> &'static str {
        self.number(":expireAt", policy.expire_at(stamp, None));
        SET_EXPIRE_AT
    }

    /// Returns the condition that the row carries this lease id. Where a principal is given, the row must be bound to
    /// no other.
    fn possession(&mut self, hash: &LeaseIdHash, principal: Option<&Principal>) -> String {
        self.hash(hash);
        let mut possession = format!("leaseIdHash = :leaseIdHash AND {IS_OURS}");
        if let Some(principal) = principal {
            possession.extend([" AND ", IS_ADMITTED]);
            self.text(":principal", principal.as_str());
        }
        possession
    }
}

const SET_DATA: &str = ", #data = :data";

/// Appends removals to the assignments of an update.
pub(crate) fn remove(update: &mut String, names: &[&str]) {
    if !names.is_empty() {
        update.extend([" REMOVE ", &names.join(", ")]);
    }
}

/// Rule 2, for one lock alone or as part of an attempt at several locks.
#[allow(clippy::too_many_lines, reason = "one expression")]
pub(crate) fn acquire(
    schema: &TableSchema,
    request: &Acquire,
    stamp: &Stamp,
    policy: &Policy,
    attempt: Option<&Attempt>,
) -> Write {
    let is_acquisition = attempt.is_none_or(|attempt| attempt.form == Form::Acquisition);
    let is_renewal = attempt.is_none_or(|attempt| attempt.form == Form::Renewal);
    let mut write = Write::default();
    let own = write.possession(&request.lease_id.hash(), request.principal.as_ref());
    // A comparison with an absent attribute is false, except `<>`, which is true.
    let is_unknown = "leaseIdHash <> :leaseIdHash AND previousLeaseIdHash <> :leaseIdHash";
    let is_unfollowed = "(leaseIdHash = :leaseIdHash OR previousLeaseIdHash <> :leaseIdHash)";
    let mut is_due = String::new();
    if let Some(once) = &request.once {
        write.text(":occurrence", once.occurrence.as_str());
        is_due.extend([" AND ", IS_DUE]);
    }
    let stale = match &request.staleness {
        Staleness::Never => None,
        _ if !is_acquisition => None,
        Staleness::Observed(rvn) => {
            write.text(":observed", rvn.as_str());
            Some("recordVersionNumber = :observed".to_owned())
        }
        Staleness::ObservedAndClock(rvn) => {
            write.text(":observed", rvn.as_str());
            write.number(":staleBefore", policy.stale_before(stamp));
            write.text(":number", "N");
            Some(format!(
                "recordVersionNumber = :observed \
                 AND (NOT attribute_type(staleAt, :number) OR staleAt < :staleBefore OR NOT {IS_OURS})"
            ))
        }
        Staleness::Clock => {
            write.number(":staleBefore", policy.stale_before(stamp));
            Some(format!("staleAt < :staleBefore AND {IS_OURS}"))
        }
    };
    let mut grounds = Vec::new();
    if is_acquisition {
        grounds.push(format!("attribute_exists(isReleased) AND {is_unknown}{is_due}"));
    }
    if is_renewal {
        let mut renewable = write.new_only(own.clone(), request.sequence.as_ref());
        if request.once.is_some() {
            renewable.extend([" AND ", IS_RUNNING_OR_DUE]);
        }
        grounds.push(format!("attribute_not_exists(isReleased) AND {renewable}"));
    }
    if let Some(stale) = stale {
        write.readable();
        grounds.push(format!(
            "attribute_not_exists(isReleased) AND {stale} AND {IS_READABLE} AND {is_unfollowed} AND NOT ({own}){is_due}"
        ));
    }
    // DynamoDB refuses redundant parentheses.
    let grounds = match grounds.as_slice() {
        [ground] => ground.clone(),
        several => format!("({})", several.join(") OR (")),
    };
    write.condition = format!("({grounds}) AND {IS_COUNTABLE} AND {IS_LOCK}");
    if request.only_if_exists {
        write.condition.extend([" AND ", IS_THERE]);
    } else if is_acquisition {
        write.name("#key", &schema.partition_key);
        write.condition = format!("attribute_not_exists(#key) OR ({})", write.condition);
    }
    let token = match attempt {
        None => {
            write.number(":lastToken", LAST_COUNTABLE_TOKEN);
            write.number(":seed", stamp.now_us);
            write.number(":one", 1);
            "if_not_exists(fencingToken, :seed) + :one"
        }
        Some(attempt) => {
            write.number(":lastToken", attempt.fencing_token - 1);
            write.number(":token", attempt.fencing_token);
            ":token"
        }
    };
    write.number(":zero", 0);

    let mut set = format!(
        "SET ownerName = :ownerName, leaseDuration = :leaseDuration, leaseMs = :leaseMs, \
         recordVersionNumber = :rvn, leaseVersion = :rvn, leaseIdHash = :leaseIdHash, \
         fencingToken = {token}, \
         previousLeaseIdHash = if_not_exists(leaseIdHash, :noHash), \
         previousOwnerName = if_not_exists(ownerName, :none), \
         previousReleased = if_not_exists(isReleased, :none), \
         staleAt = :staleAt"
    );
    let lease_ms = request.lease_duration.as_millis();
    write.text(":ownerName", request.owner_name.as_str());
    write.text(":leaseDuration", lease_ms.to_string());
    write.number(":leaseMs", lease_ms);
    write.text(":rvn", &stamp.rvn);
    write.text(":none", "");
    write.values.insert(":noHash".into(), AttributeValue::B(Blob::new([])));
    write.number(":staleAt", stamp.now_ms() + lease_ms);
    if let Some(data) = &request.data {
        set.push_str(
            write.data(data, if request.replace_data { SET_DATA } else { ", #data = if_not_exists(#data, :data)" }),
        );
    }
    for (index, (name, value)) in request.attributes.iter().enumerate() {
        let (name_of, value_of) = (format!("#a{index}"), format!(":a{index}"));
        set.extend([", ", &name_of, " = ", &value_of]);
        write.name(&name_of, name);
        write.values.insert(value_of, value.clone());
    }
    let mut gone = vec!["isReleased"];
    if request.once.as_ref().is_some_and(|once| once.at_most_once) {
        set.push_str(", lastOccurrence = :occurrence");
        gone.push("expireAt");
    } else {
        set.push_str(SET_EXPIRE_AT);
        write.number(":expireAt", policy.expire_at(stamp, Some(lease_ms)));
    }
    match &request.once {
        Some(_) => set.push_str(", runningOccurrence = :occurrence"),
        None => gone.push("runningOccurrence"),
    }
    match &request.sequence {
        Some(sequence) => set.push_str(write.sequence(sequence)),
        None => gone.push("leaseSequence"),
    }
    if request.sequence.as_ref().and_then(Sequence::request_id).is_none() {
        gone.push("leaseRequestId");
    }
    if request.principal.is_some() {
        // Bound above, for the condition.
        set.push_str(", ownerPrincipal = :principal");
    } else {
        gone.push("ownerPrincipal");
    }
    remove(&mut set, &gone);
    write.update = set;
    write
}

/// Rule 3.
pub(crate) fn heartbeat(request: &Heartbeat, stamp: &Stamp, policy: &Policy) -> Write {
    let mut write = Write::default();
    let own = write.possession(&request.lease_id.hash(), request.principal.as_ref());
    write.condition = write.new_only(own, request.sequence.as_ref());
    write.condition.extend([" AND attribute_not_exists(isReleased) AND ", IS_LOCK]);
    if let Some(rvn) = &request.expected {
        write.condition.push_str(" AND recordVersionNumber = :expected");
        write.text(":expected", rvn.as_str());
    }
    if let Some(token) = request.fencing_token {
        write.condition.push_str(" AND fencingToken = :token");
        write.number(":token", token);
    }

    let mut update = format!("SET recordVersionNumber = :rvn, leaseVersion = :rvn{SET_EXPIRE_AT}, staleAt = ");
    write.text(":rvn", &stamp.rvn);
    write.number(":expireAt", policy.expire_at(stamp, request.lease_duration.map(LeaseDuration::as_millis)));
    if let Some(lease) = request.lease_duration {
        update.push_str(":staleAt, leaseDuration = :leaseDuration, leaseMs = :leaseMs");
        write.number(":staleAt", stamp.now_ms() + lease.as_millis());
        write.text(":leaseDuration", lease.as_millis().to_string());
        write.number(":leaseMs", lease.as_millis());
    } else {
        update.push_str(":now + if_not_exists(leaseMs, :longestLease)");
        write.number(":now", stamp.now_ms());
        write.number(":longestLease", MAX_LEASE_MS);
    }
    let mut gone = Vec::new();
    match &request.data {
        DataChange::Keep => {}
        DataChange::Set(data) => update.push_str(write.data(data, SET_DATA)),
        DataChange::Delete => {
            write.name("#data", DATA);
            gone.push("#data");
        }
    }
    if let Some(sequence) = &request.sequence {
        update.push_str(write.sequence(sequence));
        if sequence.request_id().is_none() {
            gone.push("leaseRequestId");
        }
    }
    remove(&mut update, &gone);
    write.update = update;
    write
}

/// Rules 4 and 10.
pub(crate) fn release(request: &Release, stamp: &Stamp, policy: &Policy) -> Write {
    let mut write = Write::default();
    write.condition = write.possession(&request.lease_id.hash(), request.principal.as_ref());
    write.condition.extend([" AND ", IS_LOCK]);
    if let Some(rvn) = &request.expected {
        write.text(":expected", rvn.as_str());
    }
    let mut update = mark_released(&mut write, stamp);
    match &request.disposal {
        Disposal::Keep(data) | Disposal::Complete(_, data) => {
            write.condition.push_str(" AND attribute_not_exists(isReleased)");
            if request.expected.is_some() {
                write.condition.push_str(" AND recordVersionNumber = :expected");
            }
            if let Some(data) = data {
                update.push_str(write.data(data, SET_DATA));
            }
            let mut gone = vec!["deletedVersion"];
            if let Disposal::Complete(occurrence, _) = &request.disposal {
                write.condition.push_str(" AND runningOccurrence = :occurrence");
                write.text(":occurrence", occurrence.as_str());
                update.push_str(", lastOccurrence = :occurrence");
                gone.push("expireAt");
            } else {
                update.push_str(write.expire_at(stamp, policy));
            }
            remove(&mut update, &gone);
        }
        Disposal::Delete => {
            write.condition.extend([" AND ", IS_THERE]);
            if request.expected.is_some() {
                write.condition.push_str(
                    " AND (recordVersionNumber = :expected OR (attribute_exists(isReleased) AND endedVersion = :expected))",
                );
            }
            update.push_str(", deletedVersion = :rvn");
            update.push_str(write.expire_at(stamp, policy));
            write.name("#data", DATA);
            remove(&mut update, &["#data"]);
        }
    }
    write.update = update;
    write
}

/// Rule 10: removes these attributes from a tombstone, or from the lock that an acquire made of one. No other write has
/// the version of either.
pub(crate) fn clear<'a>(version: &str, attributes: impl IntoIterator<Item = &'a String>) -> Write {
    let mut write = Write { condition: "recordVersionNumber = :rvn".into(), ..Write::default() };
    write.text(":rvn", version);
    for (index, name) in attributes.into_iter().enumerate() {
        write.name(&format!("#a{index}"), name);
    }
    let names: Vec<_> = write.names.keys().map(String::as_str).collect();
    remove(&mut write.update, &names);
    write
}

/// The operator's release.
pub(crate) fn break_lock(request: &Break, stamp: &Stamp, policy: &Policy) -> Write {
    let mut write = Write {
        condition: format!("recordVersionNumber = :seen AND attribute_not_exists(isReleased) AND {IS_LOCK}"),
        ..Write::default()
    };
    write.text(":seen", request.seen.as_str());
    let mut update = mark_released(&mut write, stamp);
    update.push_str(write.expire_at(stamp, policy));
    remove(&mut update, &["deletedVersion"]);
    write.update = update;
    write
}

fn mark_released(write: &mut Write, stamp: &Stamp) -> String {
    write.text(":isReleased", "1");
    write.text(":rvn", &stamp.rvn);
    write.text(":none", "");
    "SET isReleased = :isReleased, recordVersionNumber = :rvn, leaseVersion = :rvn, \
     endedVersion = if_not_exists(recordVersionNumber, :none)"
        .into()
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
