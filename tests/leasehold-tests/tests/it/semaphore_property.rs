//! The expressions of semaphores and their pure life cycle are the same rules. Several callers make random sequences of
//! operations. Both give the same answers and leave the same rows. After every sequence the permits add up.

use std::fmt::Debug;
use std::sync::atomic::Ordering;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_protocol::semaphore::{
    Acquire, AllDead, Break, ClaimNumber, Dead, Enqueue, Epoch, Found, Heartbeat, Member, Permits, PublicId, Release,
    Semaphore, SetCapacity, Shrink, Step, entry_name, lifecycle,
};
use leasehold_protocol::{
    AcquireAnswer, BreakAnswer, CorruptRecord, Data, Disposal, Error, ErrorKind, HeartbeatAnswer, Item, LeaseDuration,
    Principal, ReleaseAnswer, Rvn, Sequence, Staleness, Stamp,
};
use leasehold_tests::{acquire as lock, heartbeat as beat, key, lease_id, release as unlock};
use proptest::prelude::*;

use crate::property_bench::{Bench, check_sequences};

/// One step of a sequence.
#[derive(Debug, Clone)]
enum Action {
    Acquire {
        who: Who,
        permits: u64,
        capacity: u64,
        dead: Vec<Corpse>,
        judge: Judge,
        data: Option<u8>,
        lease_ms: u64,
        memory: Memory,
    },
    Heartbeat {
        who: Who,
        token: Option<Seen>,
        shrink: Option<(Seen, u64)>,
        expected: Option<Seen>,
        data: Option<u8>,
        lease_ms: Option<u64>,
    },
    Release {
        who: Who,
        expected: Option<Seen>,
        number: Option<(bool, Seen)>,
    },
    Break {
        entry: usize,
        seen: Seen,
        number: Option<Seen>,
    },
    Enqueue {
        who: Who,
        permits: u64,
        capacity: u64,
        dead: Vec<Corpse>,
        judge: Judge,
        lease_ms: u64,
        memory: Memory,
    },
    Capacity {
        capacity: u64,
        expected: Seen,
        version: Option<Seen>,
        request: Option<u8>,
    },
    /// Takes the rings off, as in a row of an earlier version.
    Downgrade,
    /// The operations of a plain lock.
    Lock {
        operation: u8,
        delete: bool,
    },
    /// Damages the row.
    Damage {
        index: usize,
    },
    /// TTL, or a person, deletes the row.
    Delete,
    Wait {
        ms: u64,
    },
}

/// The caller, and its request.
#[derive(Debug, Clone)]
struct Who {
    caller: usize,
    sequence: Option<(u64, Option<u8>)>,
    principal: Option<usize>,
}

/// Whether the values that the caller names agree with the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Right,
    Wrong,
}

/// An entry of the row that is named as dead, by its index among all entries.
#[derive(Debug, Clone)]
struct Corpse {
    entry: usize,
    version: Seen,
    permits: Seen,
    number: Option<Seen>,
}

/// The judge of the dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judge {
    Caller,
    CallerCheckedByClock,
    Clock,
}

/// The members of a request that late copies are told by.
#[derive(Debug, Clone)]
struct Memory {
    /// The age of the epoch that the caller names, in tokens and tickets, and in events that end turns.
    epoch: Option<(u64, u64, Option<u64>)>,
    ticket: Option<Seen>,
    passes: bool,
}

const CALLERS: [&str; 5] = ["ann", "bob", "cyd", "dan", "eve"];
const PRINCIPALS: [&str; 2] = ["jwt:ann", "jwt:bob"];

fn who() -> impl Strategy<Value = Who> {
    let sequence = prop::option::weighted(0.6, (1..6_u64, prop::option::of(0..2_u8)));
    let principal = prop::option::weighted(0.3, 0..PRINCIPALS.len());
    (0..CALLERS.len(), sequence, principal).prop_map(|(caller, sequence, principal)| Who {
        caller,
        sequence,
        principal,
    })
}

fn seen() -> impl Strategy<Value = Seen> {
    prop_oneof![6 => Just(Seen::Right), 1 => Just(Seen::Wrong)]
}

fn judge() -> impl Strategy<Value = Judge> {
    prop_oneof![Just(Judge::Caller), Just(Judge::CallerCheckedByClock), Just(Judge::Clock)]
}

fn memory() -> impl Strategy<Value = Memory> {
    let age = || prop_oneof![4 => 0..4_u64, 1 => 15..19_u64];
    let ticket = prop::option::weighted(0.5, seen());
    let turns = prop::option::weighted(0.9, prop_oneof![3 => Just(0), 1 => 1..3_u64]);
    let memory = (prop::option::of((age(), age(), turns)), ticket, any::<bool>());
    memory.prop_map(|(epoch, ticket, passes)| Memory { epoch, ticket, passes })
}

fn dead() -> impl Strategy<Value = Vec<Corpse>> {
    let corpse = (0..10_usize, seen(), seen(), prop::option::of(seen()));
    let corpse = corpse.prop_map(|(entry, version, permits, number)| Corpse { entry, version, permits, number });
    prop_oneof![3 => Just(Vec::new()), 2 => prop::collection::vec(corpse, 1..5)]
}

fn action() -> impl Strategy<Value = Action> {
    let lease = || 100..5000_u64;
    let amounts = || (1..4_u64, 1..6_u64);
    prop_oneof![
        10 => (who(), amounts(), dead(), judge(), prop::option::weighted(0.2, any::<u8>()), lease(), memory()).prop_map(
            |(who, (permits, capacity), dead, judge, data, lease_ms, memory)| Action::Acquire {
                who, permits, capacity, dead, judge, data, lease_ms, memory
            }),
        4 => (who(), prop::option::weighted(0.3, (seen(), 1..4_u64)), prop::option::weighted(0.3, seen()),
              prop::option::weighted(0.2, any::<u8>()), prop::option::of(lease()), prop::option::of(seen())).prop_map(
            |(who, shrink, expected, data, lease_ms, token)| {
                Action::Heartbeat { who, token, shrink, expected, data, lease_ms }
            }),
        6 => (who(), prop::option::weighted(0.3, seen()), prop::option::of((any::<bool>(), seen()))).prop_map(
            |(who, expected, number)| Action::Release { who, expected, number }),
        2 => (0..10_usize, seen(), prop::option::of(seen())).prop_map(
            |(entry, seen, number)| Action::Break { entry, seen, number }),
        8 => (who(), amounts(), dead(), judge(), lease(), memory()).prop_map(
            |(who, (permits, capacity), dead, judge, lease_ms, memory)| {
                Action::Enqueue { who, permits, capacity, dead, judge, lease_ms, memory }
            }),
        2 => (1..6_u64, seen(), prop::option::of(seen()), prop::option::of(0..2_u8)).prop_map(
            |(capacity, expected, version, request)| Action::Capacity { capacity, expected, version, request }),
        1 => Just(Action::Downgrade),
        2 => (0..4_u8, any::<bool>()).prop_map(|(operation, delete)| Action::Lock { operation, delete }),
        1 => (0..DAMAGES).prop_map(|index| Action::Damage { index }),
        1 => Just(Action::Delete),
        3 => (0..6000_u64).prop_map(|ms| Action::Wait { ms }),
    ]
}

/// The number of ways to damage a row.
const DAMAGES: usize = 10;

fn damage(index: usize) -> (&'static str, Option<AttributeValue>) {
    let text = |value: &str| Some(AttributeValue::S(value.to_owned()));
    let damages: [_; DAMAGES] = [
        ("isReleased", text("1")),
        ("ownerName", text("host-1")),
        ("changed", None),
        ("available", Some(AttributeValue::N("1000".into()))),
        ("nextTicket", text("1")),
        ("fencingToken", Some(AttributeValue::N("9007199254740990".into()))),
        ("recordVersionNumber", Some(AttributeValue::N("1".into()))),
        ("expireAt", text("soon")),
        ("leaseholdKind", text("another")),
        ("spentTickets", text("1")),
    ];
    damages[index].clone()
}

/// The highest token of the row.
#[derive(Default)]
struct HighestToken(u64);

impl Bench<HighestToken> {
    fn found(&self, item: Option<Item>) -> Result<Found, CorruptRecord> {
        self.table.schema().decode_found(&key(), item)
    }

    /// Compares one operation with the pure life cycle on the same row.
    async fn check<T: Debug + PartialEq>(
        &mut self,
        before: Option<Item>,
        actual: Result<Step<T>, Error>,
        rule: impl Fn(&Found, &Stamp) -> Result<Step<T>, CorruptRecord>,
    ) {
        let after = self.item().await;
        let rvn = after.as_ref().and_then(|item| item.get("recordVersionNumber")?.as_s().ok().cloned());
        let now_us = self.now_ms.load(Ordering::Relaxed) * 1000;
        let stamp = Stamp { rvn: rvn.unwrap_or_else(|| "unused".into()), now_us };
        let expected = self.found(before.clone()).and_then(|found| rule(&found, &stamp));
        match expected {
            Ok(expected) => {
                let actual = actual.expect("answered");
                assert_eq!(actual.answer, expected.answer);
                assert_eq!(actual.row, expected.row);
                match self.found(after.clone()).expect("readable") {
                    Found::Semaphore(row) => {
                        assert_eq!(Some(&*row), expected.row.as_ref());
                        self.check_sums(&row);
                    }
                    Found::Free(_) | Found::OtherKind => {
                        assert_eq!(expected.row, None);
                        assert_eq!(after, before);
                    }
                }
            }
            // A condition need not see the damage. It may fail for another reason, and the answer then says that the
            // row changed. DynamoDB itself refuses to count with a value that is no number.
            Err(corrupt) => {
                let error = actual.expect_err("corrupt");
                assert!(
                    error.kind() == ErrorKind::Misconfigured || error.to_string() == corrupt.to_string(),
                    "{error}"
                );
            }
        }
    }

    fn check_sums(&mut self, row: &Semaphore) {
        let tokens = row.holders.values().map(|holder| holder.fencing_token);
        assert!(tokens.max().unwrap_or(0) <= row.fencing_token, "{row:?}");
        assert!(row.fencing_token >= self.state.0, "tokens rise");
        self.state.0 = row.fencing_token;
        assert!(row.queue.values().all(|ticket| ticket.number < row.next_ticket), "{row:?}");
    }

    #[allow(clippy::too_many_lines, reason = "one comparison for each operation")]
    async fn act(&mut self, action: &Action) {
        let before = self.item().await;
        let row = match self.found(before.clone()) {
            Ok(Found::Semaphore(row)) => Some(*row),
            _ => None,
        };
        let row = row.as_ref();
        let policy = self.policy;
        match action {
            Action::Acquire { who, permits, capacity, dead, judge, data, lease_ms, memory } => {
                let named = if *judge == Judge::Clock { &Vec::new() } else { dead };
                let request = Acquire {
                    key: key(),
                    owner_name: entry_name(CALLERS[who.caller].to_owned()).expect("short"),
                    lease_id: lease_id(CALLERS[who.caller]),
                    sequence: who.sequence(),
                    lease_duration: LeaseDuration::from_millis(*lease_ms).expect("valid"),
                    permits: some(*permits),
                    capacity: some(*capacity),
                    dead: all_dead(row, named, who),
                    checked_by_clock: *judge == Judge::CallerCheckedByClock,
                    by_clock: *judge == Judge::Clock,
                    epoch: memory.epoch(row),
                    number: memory.ticket(row, who),
                    passes: memory.passes,
                    data: data.map(|byte| Data::new(vec![byte]).expect("small")),
                    principal: who.principal(),
                };
                let actual = self.table.acquire_permits(&request).await;
                self.check(before, actual, |found, stamp| lifecycle::acquire(found, &request, stamp, &policy)).await;
            }
            Action::Heartbeat { who, token, shrink, expected, data, lease_ms } => {
                let holder = row.and_then(|row| row.holders.get(&who.member().holder_id()));
                let held = holder.map_or(1, |holder| holder.claim.permits);
                let shrink = shrink.and_then(|(seen, kept)| {
                    let held = if seen == Seen::Right { held } else { held + 1 };
                    Shrink::new(some(held), some(kept)).ok()
                });
                let version = holder.map_or("none", |holder| &holder.claim.version);
                let request = Heartbeat {
                    key: key(),
                    lease_id: lease_id(CALLERS[who.caller]),
                    sequence: who.sequence(),
                    lease_duration: lease_ms.map(|ms| LeaseDuration::from_millis(ms).expect("valid")),
                    data: data.map(|byte| Data::new(vec![byte]).expect("small")),
                    expected: expected.map(|seen| seen.version(version)),
                    fencing_token: token.map(|seen| seen.number(holder.map_or(1, |holder| holder.fencing_token))),
                    shrink,
                    principal: who.principal(),
                };
                let actual = self.table.heartbeat_permits(&request).await;
                let rule =
                    |found: &Found, stamp: &Stamp| Ok(lifecycle::heartbeat(found, &request, stamp, &[], &policy));
                self.check(before, actual, rule).await;
            }
            Action::Release { who, expected, number } => {
                let holder = row.and_then(|row| row.holders.get(&who.member().holder_id())).map(|holder| &holder.claim);
                let ticket = row.and_then(|row| row.queue.get(&who.member().ticket_id())).map(|ticket| &ticket.claim);
                let version = holder.or(ticket).map_or("none", |entry| &entry.version);
                let number = number.map(|(is_token, seen)| {
                    let right = row.and_then(|row| number_of(row, who)).unwrap_or(1);
                    let number = seen.number(right);
                    if is_token { ClaimNumber::Token(number) } else { ClaimNumber::Ticket(number) }
                });
                let request = Release {
                    number,
                    key: key(),
                    lease_id: lease_id(CALLERS[who.caller]),
                    expected: expected.map(|seen| seen.version(version)),
                    principal: who.principal(),
                };
                let actual = self.table.release_permits(&request).await;
                self.check(before, actual, |found, stamp| Ok(lifecycle::release(found, &request, stamp, &policy)))
                    .await;
            }
            Action::Break { entry, seen, number } => {
                let Some(Entry { id, version, number: right, .. }) = nth(row, *entry) else { return };
                let id = PublicId::new("holderId", &id).expect("valid");
                let number = number.map(|seen| seen.number(right));
                let request = Break { key: key(), id, seen: seen.version(&version), number };
                let actual = self.table.break_entry(&request).await;
                let rule = |found: &Found, stamp: &Stamp| Ok(lifecycle::break_entry(found, &request, stamp, &policy));
                self.check(before, actual, rule).await;
                let again = self.item().await;
                let actual = self.table.break_entry(&request).await;
                let rule = |found: &Found, stamp: &Stamp| Ok(lifecycle::break_entry(found, &request, stamp, &policy));
                self.check(again, actual, rule).await;
            }
            Action::Enqueue { who, permits, capacity, dead, judge, lease_ms, memory } => {
                let request = Enqueue {
                    key: key(),
                    owner_name: entry_name(CALLERS[who.caller].to_owned()).expect("short"),
                    lease_id: lease_id(CALLERS[who.caller]),
                    sequence: who.sequence(),
                    lease_duration: LeaseDuration::from_millis(*lease_ms).expect("valid"),
                    permits: some(*permits),
                    capacity: some(*capacity),
                    dead: all_dead(row, dead, who),
                    checked_by_clock: *judge != Judge::Caller,
                    epoch: memory.epoch(row),
                    number: memory.ticket(row, who),
                    grant_lease: LeaseDuration::from_millis(lease_ms / 2 + 100).expect("valid"),
                    data: None,
                    principal: who.principal(),
                };
                let actual = self.table.enqueue(&request).await;
                let rule = |found: &Found, stamp: &Stamp| lifecycle::enqueue(found, &request, stamp, &[], &policy);
                self.check(before, actual, rule).await;
            }
            Action::Capacity { capacity, expected, version, request } => {
                let seen = row.map_or(1, |row| row.capacity) + u64::from(*expected == Seen::Wrong);
                let request = SetCapacity {
                    key: key(),
                    capacity: some(*capacity),
                    expected: some(seen),
                    expected_version: version.map(|seen| seen.version(row.map_or("0", Semaphore::capacity_version))),
                    request_id: request.map(|id| id.to_string()),
                };
                let actual = self.table.set_capacity(&request).await;
                let rule = |found: &Found, stamp: &Stamp| Ok(lifecycle::set_capacity(found, &request, stamp, &policy));
                self.check(before, actual, rule).await;
            }
            Action::Downgrade => {
                let Some(mut item) = before.filter(|_| row.is_some()) else { return };
                item.retain(|name, _| !name.starts_with("spent"));
                let put = self.dynamodb.put_item().table_name(&self.table_name);
                put.set_item(Some(item)).send().await.expect("downgraded");
            }
            Action::Lock { operation, delete } => self.lock(before, *operation, *delete).await,
            Action::Damage { index } => self.damage(before, *index).await,
            Action::Delete => {
                let delete = self.dynamodb.delete_item().table_name(&self.table_name);
                delete.key("key", AttributeValue::S("Moe".into())).send().await.expect("deleted");
                self.state.0 = 0;
            }
            Action::Wait { ms } => {
                self.now_ms.fetch_add(*ms, Ordering::Relaxed);
            }
        }
    }

    /// A plain operation: refused where the row is a semaphore's.
    async fn lock(&mut self, before: Option<Item>, operation: u8, delete: bool) {
        let version = before.as_ref().and_then(|item| item.get("recordVersionNumber")?.as_s().ok().cloned());
        let version = Rvn::new("", version.unwrap_or_else(|| "none".into())).expect("valid");
        let is_semaphore = before.as_ref().is_some_and(|item| item.contains_key("leaseholdKind"));
        let is_refused = match operation {
            0 => {
                let request = lock("java", 1000, Staleness::Observed(version));
                matches!(self.table.acquire(&request).await, Ok(AcquireAnswer::WrongKind))
            }
            1 => matches!(self.table.heartbeat(&beat("java")).await, Ok(HeartbeatAnswer::WrongKind)),
            2 => {
                let disposal = if delete { Disposal::Delete } else { Disposal::Keep(None) };
                let request = leasehold_protocol::Release { disposal, ..unlock("java") };
                matches!(self.table.release(&request).await, Ok(ReleaseAnswer::WrongKind))
            }
            _ => {
                let request = leasehold_protocol::Break { key: key(), seen: version };
                matches!(self.table.break_lock(&request).await, Ok(BreakAnswer::WrongKind))
            }
        };
        assert_eq!(is_refused, is_semaphore);
        if is_semaphore {
            assert_eq!(self.item().await, before);
        }
    }

    async fn damage(&mut self, before: Option<Item>, index: usize) {
        let Some(mut item) = before.filter(|item| item.contains_key("leaseholdKind")) else { return };
        let (name, value) = damage(index);
        item.remove(name);
        item.extend(value.map(|value| (name.to_owned(), value)));
        self.dynamodb.put_item().table_name(&self.table_name).set_item(Some(item)).send().await.expect("damaged");
    }
}

fn some(permits: u64) -> Permits {
    Permits::new("permits", permits).expect("valid")
}

impl Who {
    fn member(&self) -> Member {
        Member::new(&key(), &lease_id(CALLERS[self.caller]))
    }

    fn sequence(&self) -> Option<Sequence> {
        self.sequence.map(|(number, id)| Sequence::new(number, id.map(|id| id.to_string())).expect("valid"))
    }

    fn principal(&self) -> Option<Principal> {
        self.principal.map(|index| Principal::new(PRINCIPALS[index]).expect("valid"))
    }
}

impl Seen {
    fn version(self, version: &str) -> Rvn {
        let version = if self == Self::Right { version } else { "another" };
        Rvn::new("version", version).expect("valid")
    }

    fn number(self, number: u64) -> u64 {
        if self == Self::Right { number } else { number + 1 }
    }
}

impl Memory {
    fn epoch(&self, row: Option<&Semaphore>) -> Option<Epoch> {
        let (tokens, tickets, turns) = self.epoch?;
        let (token, ticket) = row.map_or((100, 100), |row| (row.fencing_token, row.next_ticket));
        let text = format!("{}.{}", token.saturating_sub(tokens), ticket.saturating_sub(tickets));
        let reordered = row.map_or(0, |row| row.reordered);
        let text = turns.map_or(text.clone(), |turns| format!("{text}.{}", reordered.saturating_sub(turns)));
        Some(Epoch::new(&text).expect("an epoch"))
    }

    fn ticket(&self, row: Option<&Semaphore>, who: &Who) -> Option<u64> {
        let ticket = row.and_then(|row| row.queue.get(&who.member().ticket_id()));
        Some(self.ticket?.number(ticket.map_or(1, |ticket| ticket.number)))
    }
}

/// The number of the caller's claim.
fn number_of(row: &Semaphore, who: &Who) -> Option<u64> {
    let token = row.holders.get(&who.member().holder_id()).map(|holder| holder.fencing_token);
    token.or(row.queue.get(&who.member().ticket_id()).map(|ticket| ticket.number))
}

/// An entry as a caller names it.
struct Entry {
    id: String,
    version: String,
    permits: u64,
    number: u64,
}

/// The entry at this index.
fn nth(row: Option<&Semaphore>, place: usize) -> Option<Entry> {
    let row = row?;
    let holders = row.holders.iter().map(|(id, holder)| (id, &holder.claim, holder.fencing_token));
    let tickets = row.queue.iter().map(|(id, ticket)| (id, &ticket.claim, ticket.number));
    let (id, claim, number) = holders.chain(tickets).nth(place)?;
    Some(Entry { id: id.clone(), version: claim.version.clone(), permits: claim.permits, number })
}

/// The dead entries that the step names, within the limits of a request.
fn all_dead(row: Option<&Semaphore>, dead: &[Corpse], who: &Who) -> AllDead {
    let me = who.member();
    let mut named: Vec<Dead> = Vec::new();
    for corpse in dead {
        let Some(Entry { id, version, permits, number }) = nth(row, corpse.entry) else { continue };
        let permits = if corpse.permits == Seen::Right { permits } else { permits + 1 };
        let id = PublicId::new("observed", &id).expect("valid");
        if named.iter().all(|other| other.id != id) {
            let number = corpse.number.map(|seen| seen.number(number));
            named.push(Dead { id, version: corpse.version.version(&version), permits, number });
        }
    }
    AllDead::new(named, &me).expect("valid")
}

fn check_life_cycle(cases: u32, bench: impl AsyncFn() -> Bench<HighestToken>) {
    check_sequences(cases, file!(), action(), bench, async |bench, action| bench.act(action).await);
}

#[test]
fn semaphore_expressions_are_the_pure_life_cycle() {
    check_life_cycle(256, Bench::new);
}

/// The embedded engine could have the same error as the expressions.
#[test]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
fn dynamodb_local_keeps_the_life_cycle_of_semaphores() {
    check_life_cycle(24, Bench::on_dynamodb_local);
}
