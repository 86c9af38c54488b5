//! The expressions and the pure life cycle are the same rules. Several callers, some of them other clients of the same
//! table, make random sequences of operations. Both give the same answers and leave the same rows.

use std::fmt::Debug;
use std::sync::atomic::Ordering;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_protocol::history::{HistoryEntry, HistoryEvent, transition};
use leasehold_protocol::{
    Acquire, AcquireAnswer, Attributes, Break, CompletedTtl, Completion, CorruptRecord, Data, DataChange, Disposal,
    Error, Field, GrantOutcome, Heartbeat, LeaseDuration, ListQuery, Occurrence, Once, OwnerName, Principal, Record,
    Release, Row, Rvn, Sequence, SetOccurrence, Staleness, Stamp, Want, lifecycle,
};
use leasehold_tests::{acquire, heartbeat, key, lease_id, release};
use proptest::prelude::*;

use crate::property_bench::{Bench, check_sequences};

/// One step of a sequence.
#[derive(Debug, Clone)]
enum Step {
    Acquire {
        caller: usize,
        sequence: SequenceChoice,
        lease_ms: u64,
        staleness: StalenessChoice,
        data: Option<u8>,
        replace: bool,
        existing: bool,
        attribute: Option<u8>,
        principal: Option<usize>,
        /// The occurrence, and whether it runs at most once.
        once: Option<(usize, bool)>,
    },
    Heartbeat {
        caller: usize,
        sequence: SequenceChoice,
        principal: Option<usize>,
        lease_ms: Option<u64>,
        data: DataChoice,
        expected: Option<RvnChoice>,
        /// The row's fencing token, or another one.
        token: Option<bool>,
    },
    Release {
        caller: usize,
        principal: Option<usize>,
        delete: bool,
        data: Option<u8>,
        expected: Option<RvnChoice>,
        /// The occurrence, and the time for which it is remembered.
        completed: Option<(usize, Option<u64>)>,
    },
    Want {
        caller: usize,
    },
    Break {
        seen: RvnChoice,
    },
    SetOccurrence {
        last: usize,
        seen: RvnChoice,
    },
    /// The Java client replaces the row.
    ForeignPut {
        lease_ms: u64,
    },
    /// The Java client with `updateExistingLockRecord` takes the row over in place.
    ForeignUpdate {
        lease_ms: u64,
    },
    /// The Java client marks the row as released.
    ForeignRelease,
    /// Damages the row.
    Damage {
        attribute: usize,
    },
    /// TTL, or a person, deletes the row.
    Delete,
    Wait {
        ms: u64,
    },
}

#[derive(Debug, Clone)]
enum StalenessChoice {
    Never,
    Clock,
    Observed(RvnChoice),
    ObservedAndClock(RvnChoice),
}

#[derive(Debug, Clone)]
enum RvnChoice {
    Current,
    /// The version that the last end ended.
    Ended,
    Wrong,
}

/// Few numbers and few ids, so that requests coincide.
type SequenceChoice = Option<(u64, Option<u8>)>;

fn sequence(choice: &SequenceChoice) -> Option<Sequence> {
    choice.as_ref().map(|(number, id)| Sequence::new(*number, id.map(|id| id.to_string())).expect("valid"))
}

#[derive(Debug, Clone)]
enum DataChoice {
    Keep,
    Set(u8),
    Delete,
}

/// The number of ways to damage a row.
const DAMAGES: usize = 32;

/// In byte order, which differs from that of numbers and of any language.
const OCCURRENCES: [&str; 4] = ["10", "9", "Zoë", "zoe"];

fn occurrence(index: usize) -> Occurrence {
    Occurrence::new("", OCCURRENCES[index]).expect("valid")
}

/// Lease ids, which other callers may know.
const CALLERS: [&str; 3] = ["ann", "bob", "cyd"];

/// The principals that locks are bound to, where owners are bound.
const PRINCIPALS: [&str; 2] = ["jwt:ann", "jwt:bob"];

fn principal(choice: Option<usize>) -> Option<Principal> {
    choice.map(|index| Principal::new(PRINCIPALS[index]).expect("valid"))
}

fn rvn_choice() -> impl Strategy<Value = RvnChoice> {
    prop_oneof![4 => Just(RvnChoice::Current), 2 => Just(RvnChoice::Ended), 1 => Just(RvnChoice::Wrong)]
}

fn step() -> impl Strategy<Value = Step> {
    let caller = 0..CALLERS.len();
    let lease = 100..5000_u64;
    let staleness = prop_oneof![
        3 => Just(StalenessChoice::Never),
        1 => Just(StalenessChoice::Clock),
        2 => rvn_choice().prop_map(StalenessChoice::Observed),
        2 => rvn_choice().prop_map(StalenessChoice::ObservedAndClock),
    ];
    let data = prop_oneof![
        2 => Just(DataChoice::Keep), 1 => any::<u8>().prop_map(DataChoice::Set), 1 => Just(DataChoice::Delete)
    ];
    let principal = || prop::option::of(0..PRINCIPALS.len());
    let sequence = || prop::option::weighted(0.7, (1..5_u64, prop::option::of(0..2_u8)));
    let lock = (caller.clone(), sequence(), lease.clone(), principal());
    let payload = (any::<Option<u8>>(), any::<bool>(), prop::option::weighted(0.2, any::<u8>()));
    let once = prop::option::of((0..OCCURRENCES.len(), prop::bool::weighted(0.3)));
    let completed = prop::option::of((0..OCCURRENCES.len(), prop::option::of(1..5000_u64)));
    prop_oneof![
        8 => (lock, staleness, payload, prop::bool::weighted(0.2), once).prop_map(
            |((caller, sequence, lease_ms, principal), staleness, (data, replace, attribute), existing, once)| {
                Step::Acquire {
                    caller, sequence, lease_ms, staleness, data, replace, existing, attribute, principal, once
                }
            }),
        4 => (caller.clone(), sequence(), principal(), prop::option::of(lease.clone()), data, prop::option::of(rvn_choice()),
              prop::option::of(prop::bool::weighted(0.7)))
            .prop_map(|(caller, sequence, principal, lease_ms, data, expected, token)| Step::Heartbeat {
                caller, sequence, principal, lease_ms, data, expected, token
            }),
        3 => caller.clone().prop_map(|caller| Step::Want { caller }),
        4 => (caller, principal(), prop::bool::weighted(0.3), any::<Option<u8>>(), prop::option::of(rvn_choice()), completed)
            .prop_map(|(caller, principal, delete, data, expected, completed)| Step::Release {
                caller, principal, delete, data, expected, completed
            }),
        2 => rvn_choice().prop_map(|seen| Step::Break { seen }),
        2 => (0..OCCURRENCES.len(), rvn_choice()).prop_map(|(last, seen)| Step::SetOccurrence { last, seen }),
        1 => lease.clone().prop_map(|lease_ms| Step::ForeignPut { lease_ms }),
        2 => lease.prop_map(|lease_ms| Step::ForeignUpdate { lease_ms }),
        1 => Just(Step::ForeignRelease),
        1 => (0..DAMAGES).prop_map(|attribute| Step::Damage { attribute }),
        1 => Just(Step::Delete),
        4 => (0..6000_u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// Checks an operation that refuses unreadable rows: its answer and its row are those of the pure step, and a refused
/// one leaves the row as it was.
fn assert_follows<A: PartialEq + Debug>(
    actual: Result<A, Error>,
    after: Option<&Row>,
    before: Option<&Row>,
    expected: Result<lifecycle::Step<A>, CorruptRecord>,
) {
    match expected {
        Ok(expected) => {
            assert_eq!(actual.expect("answered"), expected.answer);
            assert_eq!(after, expected.row.as_ref());
        }
        Err(corrupt) => {
            assert_eq!(actual.expect_err("corrupt").to_string(), corrupt.to_string());
            assert_eq!(after, before);
        }
    }
}

/// What a step of another client does to the holder.
fn foreign_event(step: &Step, before: Option<&Row>, after: Option<&Row>) -> Option<HistoryEvent> {
    let is_held = before.is_some_and(|row| !row.released && !row.other_kind);
    // The Java client keeps this attribute of a row that it takes over in place.
    let is_lock = after.is_some_and(|row| !row.other_kind);
    let is_javas = |row: &Row| row.owner_name == Field::Value("java".to_owned());
    // A row that only the Java client wrote.
    let is_untouched = |row: &Row| {
        let is_new = row.fencing_token == Field::Absent && row.lease_version == Field::Absent;
        is_javas(row) && row.lease_id_hash.is_none() && is_new
    };
    match step {
        // A Java client cannot be told from itself, where it takes over from itself.
        Step::ForeignPut { .. } if is_held && before.is_some_and(is_untouched) => None,
        Step::ForeignUpdate { .. } if is_held && before.is_some_and(is_javas) => None,
        Step::ForeignPut { .. } | Step::ForeignUpdate { .. } if is_held => Some(HistoryEvent::TakenOver),
        Step::ForeignPut { .. } | Step::ForeignUpdate { .. } => is_lock.then_some(HistoryEvent::Acquired),
        // Its condition is that there is an owner.
        Step::ForeignRelease => {
            before.filter(|row| is_held && row.owner_name != Field::Absent).map(|_| HistoryEvent::Released)
        }
        Step::Delete => is_held.then_some(HistoryEvent::Deleted),
        _ => None,
    }
}

/// Checks the entry that the images of the row give: the event, and whose it is.
fn check_history(before: Option<&Row>, after: Option<&Row>, event: Option<HistoryEvent>) {
    let owner = |row: Option<&Row>| row.and_then(|row| row.owner_name.value().cloned());
    let token = |row: Option<&Row>| row.and_then(|row| row.fencing_token.value().copied());
    let entry = |event| {
        let is_grant = matches!(event, HistoryEvent::Acquired | HistoryEvent::Renewed | HistoryEvent::TakenOver);
        let (whose, from) = if is_grant { (after, before) } else { (before, None) };
        let from = from.filter(|_| event == HistoryEvent::TakenOver);
        let completed = |row: Option<&Row>| row.and_then(|row| row.completed_occurrence.clone());
        let completed = completed(after).filter(|_| completed(before) != completed(after));
        HistoryEntry {
            event,
            owner_name: owner(whose),
            fencing_token: token(whose),
            occurrence: if is_grant { after.and_then(|row| row.occurrence.clone()) } else { completed },
            previous_owner_name: owner(from),
            previous_fencing_token: token(from),
        }
    };
    assert_eq!(transition(before, after, false), event.map(entry));
    // TTL deletes as anybody does; the stream says that it did.
    let expired = event.map(|event| if event == HistoryEvent::Deleted { HistoryEvent::Expired } else { event });
    if after.is_none() {
        assert_eq!(transition(before, after, true), expired.map(entry));
    }
}

/// The past of a sequence.
#[derive(Default)]
struct Past {
    /// The number of writes by other clients.
    foreign_writes: u32,
    /// The time in milliseconds until which the row must remember its last occurrence.
    remembered_until: u64,
}

impl Bench<Past> {
    /// The row as stored, also if it is a tombstone.
    async fn row(&self) -> Option<Row> {
        self.item().await.and_then(|item| self.table.schema().decode_row(item))
    }

    /// Checks the view of the row that every reader gets: a tombstone reads as not there.
    async fn check_view(&self, stored: Option<Row>) {
        let visible = stored.filter(|row| !row.is_deleted());
        let visible = visible.map(Record::Lock);
        assert_eq!(self.table.read(&key()).await.expect("the engine answers"), visible);
        let query = ListQuery { limit: 10, ..ListQuery::default() };
        assert_eq!(self.table.list(&query).await.expect("the engine answers").rows, Vec::from_iter(visible));
    }

    /// Carries out one step and compares it with the pure life cycle on the same row.
    #[allow(clippy::too_many_lines, reason = "one comparison for each operation")]
    async fn check(&mut self, step: &Step) {
        let before = self.row().await;
        let current = before.as_ref().and_then(|row| row.rvn.value().cloned()).unwrap_or_else(|| "none".into());
        let ended = before.as_ref().and_then(|row| row.ended_version.clone()).filter(|version| !version.is_empty());
        let ended = ended.unwrap_or_else(|| "none".into());
        let rvn = |choice: &RvnChoice| match choice {
            RvnChoice::Current => Rvn::new("", current.clone()).expect("valid"),
            RvnChoice::Ended => Rvn::new("", ended.clone()).expect("valid"),
            RvnChoice::Wrong => Rvn::new("", "wrong").expect("valid"),
        };
        let data = |byte: u8| Data::new(vec![byte]).expect("small");
        let is_held = before.as_ref().is_some_and(|row| !row.released && !row.other_kind);
        let expected_event = match step {
            Step::Acquire {
                caller,
                sequence: number,
                lease_ms,
                staleness,
                data: payload,
                replace,
                existing,
                attribute,
                principal: choice,
                once,
            } => {
                let staleness = match staleness {
                    StalenessChoice::Never => Staleness::Never,
                    StalenessChoice::Clock => Staleness::Clock,
                    StalenessChoice::Observed(choice) => Staleness::Observed(rvn(choice)),
                    StalenessChoice::ObservedAndClock(choice) => Staleness::ObservedAndClock(rvn(choice)),
                };
                let request = Acquire {
                    sequence: sequence(number),
                    attributes: attribute
                        .map(|byte| ("team".into(), AttributeValue::N(byte.to_string())))
                        .into_iter()
                        .collect(),
                    data: payload.map(data),
                    replace_data: *replace,
                    only_if_exists: *existing,
                    once: once.map(|(index, at_most_once)| Once { occurrence: occurrence(index), at_most_once }),
                    principal: principal(*choice),
                    ..acquire(CALLERS[*caller], *lease_ms, staleness)
                };
                let actual = self.table.acquire(&request).await;
                let after = self.row().await;
                let expected = lifecycle::acquire(before.as_ref(), &request, &self.stamp(after.as_ref()), &self.policy);
                let granted = expected.as_ref().ok().filter(|step| step.change.is_some());
                let event = granted.and_then(|step| match &step.answer {
                    AcquireAnswer::Granted(grant) => Some(match grant.outcome {
                        GrantOutcome::Created | GrantOutcome::Reacquired => HistoryEvent::Acquired,
                        GrantOutcome::Renewed => HistoryEvent::Renewed,
                        GrantOutcome::TakenOver => HistoryEvent::TakenOver,
                    }),
                    _ => None,
                });
                assert_follows(actual, after.as_ref(), before.as_ref(), expected);
                event
            }
            Step::Heartbeat {
                caller,
                sequence: number,
                principal: choice,
                lease_ms,
                data: payload,
                expected,
                token,
            } => {
                let known = before.as_ref().and_then(|row| row.fencing_token.value().copied()).unwrap_or(1);
                let request = Heartbeat {
                    fencing_token: token.map(|is_the_rows| if is_the_rows { known } else { known + 1 }),
                    sequence: sequence(number),
                    lease_duration: lease_ms.map(|ms| LeaseDuration::from_millis(ms).expect("valid")),
                    data: match payload {
                        DataChoice::Keep => DataChange::Keep,
                        DataChoice::Set(byte) => DataChange::Set(data(*byte)),
                        DataChoice::Delete => DataChange::Delete,
                    },
                    expected: expected.as_ref().map(rvn),
                    principal: principal(*choice),
                    ..heartbeat(CALLERS[*caller])
                };
                let actual = self.table.heartbeat(&request).await.expect("answered");
                let after = self.row().await;
                let expected =
                    lifecycle::heartbeat(before.as_ref(), &request, &self.stamp(after.as_ref()), &[], &self.policy);
                assert_eq!(actual, expected.answer);
                assert_eq!(after, expected.row);
                None
            }
            Step::Release { caller, principal: choice, delete, data: payload, expected, completed } => {
                // Some releases complete the running occurrence.
                let running = before.as_ref().and_then(|row| row.occurrence.as_ref());
                let completion = |occurrence, ttl: Option<u64>| Completion {
                    occurrence,
                    ttl: ttl.map(|ms| CompletedTtl::from_millis(ms).expect("valid")),
                };
                let disposal = match (completed, running) {
                    (Some((0, ttl)), Some(running)) => {
                        let running = Occurrence::new("", running).expect("valid");
                        Disposal::Complete(completion(running, *ttl), payload.map(data))
                    }
                    (Some((index, ttl)), _) => {
                        Disposal::Complete(completion(occurrence(*index), *ttl), payload.map(data))
                    }
                    (None, _) if *delete => Disposal::Delete,
                    (None, _) => Disposal::Keep(payload.map(data)),
                };
                let is_deletion = matches!(disposal, Disposal::Delete);
                let expected_rvn = expected.as_ref().map(rvn);
                let principal = principal(*choice);
                let request = Release { disposal, expected: expected_rvn, principal, ..release(CALLERS[*caller]) };
                let actual = self.table.release(&request).await.expect("answered");
                let after = self.row().await;
                let expected = lifecycle::release(before.as_ref(), &request, &self.stamp(after.as_ref()), &self.policy);
                assert_eq!(actual, expected.answer);
                // The second write removes the additional attributes from a tombstone, also from one of an earlier
                // release.
                let cleared = |row: Row| {
                    if row.is_deleted() && is_deletion { Row { attributes: Attributes::new(), ..row } } else { row }
                };
                assert_eq!(after, expected.row.map(cleared));
                expected.change.filter(|()| is_held).map(|()| HistoryEvent::Released)
            }
            Step::Want { caller } => {
                let request = Want { key: key(), owner_name: OwnerName::new(CALLERS[*caller]).expect("valid") };
                let actual = self.table.want(&request).await.expect("answered");
                let expected = lifecycle::want(before.as_ref(), &request);
                assert_eq!(actual, expected.answer);
                assert_eq!(self.row().await, expected.row);
                None
            }
            Step::Break { seen } => {
                let request = Break { key: key(), seen: rvn(seen) };
                let actual = self.table.break_lock(&request).await.expect("answered");
                let after = self.row().await;
                let expected =
                    lifecycle::break_lock(before.as_ref(), &request, &self.stamp(after.as_ref()), &self.policy);
                assert_eq!(actual, expected.answer);
                assert_eq!(after, expected.row);
                expected.change.map(|()| HistoryEvent::Broken)
            }
            Step::SetOccurrence { last, seen } => {
                let request = SetOccurrence { key: key(), last: occurrence(*last), seen: rvn(seen) };
                let actual = self.table.set_occurrence(&request).await;
                let after = self.row().await;
                let expected = lifecycle::set_occurrence(before.as_ref(), &request, &self.stamp(after.as_ref()));
                assert_follows(actual, after.as_ref(), before.as_ref(), expected);
                None
            }
            Step::Wait { ms } => {
                self.now_ms.fetch_add(*ms, Ordering::Relaxed);
                None
            }
            foreign => {
                self.act_as_another_client(foreign).await;
                foreign_event(foreign, before.as_ref(), self.row().await.as_ref())
            }
        };
        if !matches!(step, Step::Damage { .. }) {
            check_history(before.as_ref(), self.row().await.as_ref(), expected_event);
        }
        let after = self.row().await;
        self.check_expiry(step, before.as_ref(), after.as_ref());
        self.check_view(after).await;
    }

    /// Checks that TTL forgets no occurrence before its time.
    fn check_expiry(&mut self, step: &Step, before: Option<&Row>, after: Option<&Row>) {
        let now = self.now_ms.load(Ordering::Relaxed);
        let Some(row) = after.filter(|row| row.last_occurrence != Field::Absent) else {
            self.state.remembered_until = 0;
            return;
        };
        if before.is_none_or(|before| before.rvn != row.rvn) {
            match step {
                Step::Release { completed: Some((_, ttl)), .. } => {
                    self.state.remembered_until = ttl.map_or(u64::MAX, |ttl| now + ttl);
                }
                Step::Acquire { once: Some((_, true)), .. } | Step::SetOccurrence { .. } => {
                    self.state.remembered_until = u64::MAX;
                }
                _ => {}
            }
        }
        let is_near = |at: &u64| *at < now / 1000 + 90 * 365 * 24 * 3600;
        let goes = row.expire_at.filter(is_near).map_or(u64::MAX, |at| at * 1000);
        assert!(goes >= self.state.remembered_until, "{goes} is before {}", self.state.remembered_until);
    }

    /// The service chooses the stamp: its version is read from the row, if the operation wrote one.
    fn stamp(&self, after: Option<&Row>) -> Stamp {
        let rvn = after.and_then(|row| row.rvn.value().cloned()).unwrap_or_else(|| "unused".into());
        Stamp { rvn, now_us: self.now_ms.load(Ordering::Relaxed) * 1000 }
    }

    async fn act_as_another_client(&mut self, step: &Step) {
        self.state.foreign_writes += 1;
        let text = |value: &str| AttributeValue::S(value.to_owned());
        let rvn = text(&format!("java-{}", self.state.foreign_writes));
        let update = self.dynamodb.update_item().table_name(&self.table_name).key("key", text("Moe"));
        match step {
            Step::ForeignPut { lease_ms } => {
                let put = self.dynamodb.put_item().table_name(&self.table_name).item("key", text("Moe"));
                let put = put.item("ownerName", text("java")).item("leaseDuration", text(&lease_ms.to_string()));
                let put = put.item("recordVersionNumber", rvn).item("data", AttributeValue::B(Blob::new(*b"java")));
                put.send().await.expect("put");
            }
            Step::ForeignUpdate { lease_ms } => {
                let update = update.update_expression(
                    "SET ownerName = :o, leaseDuration = :l, recordVersionNumber = :r REMOVE isReleased",
                );
                let update = update.expression_attribute_values(":o", text("java"));
                let update = update.expression_attribute_values(":l", text(&lease_ms.to_string()));
                update.expression_attribute_values(":r", rvn).send().await.expect("updated");
            }
            Step::ForeignRelease => {
                let update = update
                    .update_expression("SET isReleased = :one")
                    .condition_expression("attribute_exists(ownerName)");
                // A missing row cannot be released.
                let _ = update.expression_attribute_values(":one", text("1")).send().await;
            }
            Step::Damage { attribute } => {
                let damages: [_; DAMAGES] = [
                    ("leaseDuration", text("20s")),
                    ("leaseDuration", AttributeValue::N("20000".into())),
                    ("fencingToken", text("seven")),
                    ("fencingToken", AttributeValue::N("9007199254740991".into())),
                    ("leaseIdHash", text("hash")),
                    ("ownerPrincipal", AttributeValue::N("7".into())),
                    ("leaseSequence", text("2")),
                    ("leaseSequence", AttributeValue::N("2.5".into())),
                    ("leaseSequence", AttributeValue::N("-1".into())),
                    ("leaseSequence", AttributeValue::N("9007199254740992".into())),
                    ("leaseRequestId", AttributeValue::N("1".into())),
                    ("previousLeaseIdHash", text("hash")),
                    ("previousOwnerName", AttributeValue::N("7".into())),
                    ("previousReleased", AttributeValue::Bool(false)),
                    ("endedVersion", AttributeValue::N("7".into())),
                    ("brokenVersion", text("another")),
                    ("brokenVersion", AttributeValue::N("7".into())),
                    ("deletedVersion", text("another")),
                    ("leaseVersion", text("another")),
                    ("leaseVersion", AttributeValue::N("7".into())),
                    ("leaseholdKind", text("another")),
                    ("runningOccurrence", AttributeValue::N("9".into())),
                    ("lastOccurrence", AttributeValue::Bool(true)),
                    ("completedOccurrence", AttributeValue::N("9".into())),
                    ("completedOccurrence", text("")),
                    ("previousOccurrence", AttributeValue::N("9".into())),
                    ("leaseholdWanted", text("another")),
                    ("leaseholdWanted", AttributeValue::N("7".into())),
                    ("staleAt", text("soon")),
                    ("staleAt", AttributeValue::N("-1".into())),
                    ("staleAt", AttributeValue::N("1.5".into())),
                    ("staleAt", AttributeValue::N("99999999999999999999999".into())),
                ];
                let (name, value) = damages[*attribute].clone();
                let update = update.update_expression("SET #a = :v").expression_attribute_names("#a", name);
                update.expression_attribute_values(":v", value).send().await.expect("damaged");
            }
            _ => {
                let delete = self.dynamodb.delete_item().table_name(&self.table_name).key("key", text("Moe"));
                delete.send().await.expect("deleted");
            }
        }
    }
}

fn check_life_cycle(cases: u32, bench: impl AsyncFn() -> Bench<Past>) {
    check_sequences(cases, file!(), step(), bench, async |bench, step| bench.check(step).await);
}

#[test]
fn expressions_are_the_pure_life_cycle() {
    check_life_cycle(256, Bench::new);
}

/// The embedded engine could have the same error as the expressions.
#[test]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
fn dynamodb_local_keeps_the_pure_life_cycle() {
    check_life_cycle(24, Bench::on_dynamodb_local);
}

#[test]
fn lease_ids_do_not_print() {
    assert!(!format!("{:?} {:?}", lease_id("secret"), lease_id("secret").hash()).contains("secret"));
}
