//! Several keys at once: the transaction agrees with the pure life cycle, under every fault of the network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, ConsumedCapacity, ReturnConsumedCapacity, TransactWriteItem, Update};
use leasehold_dynamodb::{Clock, fresh_uuid};
use leasehold_engine::Engine;
use leasehold_protocol::lifecycle::together::{Attempt, Content, Verdict, attempt, decide};
use leasehold_protocol::semaphore::{
    self, AllDead, Dead, Enqueue, Epoch, Found, Member, Permits, PublicId, Semaphore, entry_name,
};
use leasehold_protocol::{
    Acquire, AcquireAll, AcquireAllAnswer, Break, CorruptRecord, Disposal, ErrorKind, GrantOfAll, Heartbeat, Item,
    LeaseDuration, LockKey, LockTable, Policy, Principal, Release, Row, Rvn, Sequence, Staleness, Stamp, TableSchema,
    Wanted, ensure_table,
};
use leasehold_tests::{Fault, World, acquire, heartbeat, lease_id, release};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const LEASE_MS: u64 = 20_000;
/// Two locks and two semaphores, unless a step makes them something else.
const KEYS: [&str; 4] = ["a", "b", "pool", "page"];
/// The first key of a semaphore.
const POOL: usize = 2;
const CALLERS: [&str; 3] = ["ann", "bob", "cyd"];
/// Longer than all attempts of an operation.
const LATE: Duration = Duration::from_secs(8);

fn key(index: usize) -> LockKey {
    LockKey::new(KEYS[index], None).expect("valid")
}

fn sequence(number: u64) -> Sequence {
    Sequence::new(number, None).expect("valid")
}

/// A request of "holder" for the first two keys.
fn both(number: Option<u64>) -> AcquireAll {
    let request = |index| Acquire {
        key: key(index),
        sequence: number.map(sequence),
        ..acquire("holder", LEASE_MS, Staleness::Never)
    };
    AcquireAll::new(vec![request(0).into(), request(1).into()]).expect("two")
}

/// A request for permits of this semaphore.
fn permits(caller: &str, index: usize, permits: u64, capacity: u64) -> semaphore::Acquire {
    let some = |number| Permits::new("permits", number).expect("valid");
    semaphore::Acquire {
        key: key(index),
        owner_name: entry_name(caller.to_owned()).expect("short"),
        lease_id: lease_id(caller),
        sequence: None,
        lease_duration: LeaseDuration::from_millis(LEASE_MS).expect("valid"),
        permits: some(permits),
        capacity: some(capacity),
        dead: AllDead::default(),
        checked_by_clock: false,
        by_clock: false,
        epoch: None,
        number: None,
        passes: false,
        data: None,
        principal: None,
    }
}

/// A request of "holder" for the first lock, and for two permits of five.
fn mixed(number: Option<u64>) -> AcquireAll {
    let sequence = number.map(sequence);
    let lock = Acquire { key: key(0), sequence: sequence.clone(), ..acquire("holder", LEASE_MS, Staleness::Never) };
    let pool = semaphore::Acquire { sequence, ..permits("holder", POOL, 2, 5) };
    AcquireAll::new(vec![lock.into(), pool.into()]).expect("two")
}

fn grant(answer: AcquireAllAnswer) -> GrantOfAll {
    match answer {
        AcquireAllAnswer::Granted(grant) => grant,
        refused => panic!("{refused:?}"),
    }
}

async fn row(world: &World, index: usize) -> Option<Row> {
    let table =
        LockTable::new(world.dynamodb.clone(), world.table.schema().clone(), Policy::default(), Clock::from_fn(|| 0));
    table.read(&key(index)).await.expect("no faults here").and_then(leasehold_protocol::Record::into_lock)
}

/// Checks that the rows are those of this grant, and of no other.
async fn check_rows(world: &World, grant: &GrantOfAll, context: Fault) {
    for (index, version) in grant.versions.iter().enumerate() {
        let row = row(world, index).await.expect("a row");
        assert_eq!(row.rvn.value(), Some(version), "{context:?}");
        assert_eq!(row.fencing_token.value(), Some(&grant.fencing_token), "{context:?}");
        assert!(!row.released, "{context:?}");
    }
}

async fn pool(world: &World) -> Option<Semaphore> {
    let table =
        LockTable::new(world.dynamodb.clone(), world.table.schema().clone(), Policy::default(), Clock::from_fn(|| 0));
    match table.read(&key(POOL)).await.expect("no faults here")? {
        leasehold_protocol::Record::Semaphore(_, row) => Some(*row.expect("readable")),
        leasehold_protocol::Record::Lock(row) => panic!("{row:?}"),
    }
}

/// Checks that the lock and the permits are those of this grant, taken once.
async fn check_mixed(world: &World, grant: &GrantOfAll, context: Fault) {
    let lock = row(world, 0).await.expect("a row");
    assert_eq!(lock.rvn.value(), Some(&grant.versions[0]), "{context:?}");
    assert_eq!(lock.fencing_token.value(), Some(&grant.fencing_token), "{context:?}");
    let pool = pool(world).await.expect("a semaphore");
    let holders: Vec<_> = pool.holders.values().collect();
    assert_eq!((holders.len(), pool.available), (1, 3), "{context:?}");
    assert_eq!((&holders[0].claim.version, holders[0].claim.permits), (&grant.versions[1], 2), "{context:?}");
    assert_eq!((holders[0].fencing_token, pool.fencing_token), (grant.fencing_token, grant.fencing_token));
}

#[tokio::test(start_paused = true)]
async fn lock_and_permits_are_one_transaction_under_faults() {
    for number in [Some(1), None] {
        for fault in [
            Fault::None,
            Fault::RequestLost,
            Fault::ResponseLost,
            Fault::Throttled,
            Fault::ServerError,
            Fault::TransactionConflict,
            Fault::Slow(Duration::from_secs(2)),
            Fault::Twice,
            Fault::Late(LATE),
        ] {
            let world = World::new().await;
            // The semaphore is there: a first acquire makes it, and takes one transaction more.
            let before = permits("before", POOL, 1, 5);
            world.table.acquire_permits(&before).await.expect("answered").answer.expect("free");
            let gone = semaphore::Release {
                key: key(POOL),
                lease_id: lease_id("before"),
                expected: None,
                number: None,
                principal: None,
            };
            world.table.release_permits(&gone).await.expect("answered").answer.expect("held");
            // The clock passes the token.
            tokio::time::sleep(Duration::from_secs(1)).await;
            world.faults.take_calls();
            world.faults.script([fault]);
            let granted = grant(world.table.acquire_all(&mixed(number)).await.expect("answered"));
            let calls = world.faults.take_calls();
            match fault {
                Fault::None | Fault::Twice => assert_eq!(calls, 1, "{fault:?}"),
                Fault::ResponseLost => assert_eq!(calls, if number.is_some() { 2 } else { 3 }, "{fault:?}"),
                _ => assert!((2..=3).contains(&calls), "{fault:?}: {calls}"),
            }
            check_mixed(&world, &granted, fault).await;
            tokio::time::sleep(LATE * 2).await;
            check_mixed(&world, &granted, fault).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn first_permits_of_a_key_take_one_transaction_more() {
    let world = World::new().await;
    let granted = grant(world.table.acquire_all(&mixed(Some(1))).await.expect("answered"));
    assert_eq!(world.faults.take_calls(), 2);
    check_mixed(&world, &granted, Fault::None).await;
}

#[tokio::test(start_paused = true)]
async fn late_attempt_of_permits_with_a_lock_leaves_no_ghost() {
    for ends in [[0, POOL], [POOL, 0]] {
        let world = World::new().await;
        grant(world.table.acquire_all(&mixed(Some(1))).await.expect("answered"));
        for index in ends {
            end(&world.table, "holder", index).await;
        }
        let again = |caller: &str| {
            let lock = Acquire { key: key(0), ..acquire(caller, LEASE_MS, Staleness::Never) };
            AcquireAll::new(vec![lock.into(), permits(caller, POOL, 2, 5).into()]).expect("two")
        };
        world.faults.script([Fault::Copied]);
        grant(world.table.acquire_all(&again("second")).await.expect("answered"));
        for index in ends {
            end(&world.table, "second", index).await;
        }
        assert_eq!(world.faults.deliver_copies().await, 1);
        assert!(row(&world, 0).await.expect("a row").released);
        assert_eq!(pool(&world).await.expect("a semaphore").available, 5, "{ends:?}");
    }
}

async fn end(table: &LockTable, caller: &str, index: usize) {
    if index < POOL {
        table.release(&Release { key: key(index), ..release(caller) }).await.expect("released");
        return;
    }
    let request = semaphore::Release {
        key: key(index),
        lease_id: lease_id(caller),
        expected: None,
        number: None,
        principal: None,
    };
    table.release_permits(&request).await.expect("answered").answer.expect("held");
}

#[tokio::test(start_paused = true)]
async fn acquire_all_is_one_transaction_and_survives_faults() {
    for number in [Some(1), None] {
        for fault in [
            Fault::None,
            Fault::RequestLost,
            Fault::ResponseLost,
            Fault::Throttled,
            Fault::ServerError,
            Fault::TransactionConflict,
            Fault::Slow(Duration::from_secs(2)),
            Fault::Twice,
        ] {
            let world = World::new().await;
            world.faults.script([fault]);
            let granted = grant(world.table.acquire_all(&both(number)).await.expect("answered"));
            let calls = world.faults.take_calls();
            match fault {
                Fault::None | Fault::Twice => assert_eq!(calls, 1, "{fault:?}"),
                // A refused attempt shows that the rows are the caller's own. Without a number, another attempt renews
                // them.
                Fault::ResponseLost => assert_eq!(calls, if number.is_some() { 2 } else { 3 }, "{fault:?}"),
                _ => assert!((2..=3).contains(&calls), "{fault:?}: {calls}"),
            }
            check_rows(&world, &granted, fault).await;
            tokio::time::sleep(LATE * 2).await;
            check_rows(&world, &granted, fault).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn late_attempt_of_an_acquire_all_changes_nothing() {
    let world = World::new().await;
    world.faults.script([Fault::Late(LATE)]);
    let granted = grant(world.table.acquire_all(&both(Some(1))).await.expect("answered"));
    tokio::time::sleep(LATE * 2).await;
    check_rows(&world, &granted, Fault::Late(LATE)).await;

    // An attempt that arrives after the release of the locks leaves no ghost.
    let world = World::new().await;
    world.faults.script([Fault::Copied]);
    grant(world.table.acquire_all(&both(Some(1))).await.expect("answered"));
    for index in [0, 1] {
        world.table.release(&Release { key: key(index), ..release("holder") }).await.expect("released");
    }
    assert_eq!(world.faults.deliver_copies().await, 1);
    for index in [0, 1] {
        assert!(row(&world, index).await.expect("a row").released);
    }
}

#[tokio::test(start_paused = true)]
async fn outage_of_a_transaction_is_told_as_one() {
    for (fault, kind) in [
        (Fault::RequestLost, ErrorKind::Unavailable),
        (Fault::ServerError, ErrorKind::Unavailable),
        (Fault::Throttled, ErrorKind::Throttled),
        (Fault::TransactionConflict, ErrorKind::Throttled),
        (Fault::AccessDenied, ErrorKind::Misconfigured),
    ] {
        let world = World::new().await;
        world.faults.script([fault; 3]);
        let error = world.table.acquire_all(&both(Some(1))).await.expect_err("no answer");
        assert_eq!(error.kind(), kind, "{fault:?}");
        assert_eq!((row(&world, 0).await, row(&world, 1).await), (None, None), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeat_is_throttled_while_a_transaction_has_its_row() {
    let world = World::new().await;
    grant(world.table.acquire_all(&both(Some(1))).await.expect("answered"));
    world.faults.script([Fault::TransactionConflict; 3]);
    let renewal = Heartbeat { key: key(0), ..heartbeat("holder") };
    assert_eq!(world.table.heartbeat(&renewal).await.expect_err("busy").kind(), ErrorKind::Throttled);
    world.faults.script([Fault::TransactionConflict; 2]);
    world.table.heartbeat(&renewal).await.expect("the third attempt finds the row free");
}

/// The write units of a transaction that writes the first lock and the semaphore as they are.
async fn units_of_a_transaction(world: &World) -> f64 {
    let item = |index: usize| {
        let update = Update::builder().table_name("locks").key("key", AttributeValue::S(KEYS[index].into()));
        let update = update.update_expression("SET expireAt = expireAt").build().expect("an update");
        TransactWriteItem::builder().update(update).build()
    };
    let transaction = world.dynamodb.transact_write_items().transact_items(item(0)).transact_items(item(POOL));
    let answer = transaction.return_consumed_capacity(ReturnConsumedCapacity::Total).send().await.expect("answered");
    answer.consumed_capacity().iter().filter_map(ConsumedCapacity::capacity_units).sum()
}

#[tokio::test(start_paused = true)]
async fn units_of_a_lock_with_permits_by_the_holders() {
    let world = World::new().await;
    let numbered = |number| Some(Sequence::new(number, Some(fresh_uuid())).expect("valid"));
    let mut measured = Vec::new();
    for index in 0..100_u64 {
        let name = format!("host-{index:03}.example.org:12345");
        let alone = semaphore::Acquire { sequence: numbered(1_000_000), ..permits(&name, POOL, 1, 100) };
        if ![0, 9, 99].contains(&index) {
            world.table.acquire_permits(&alone).await.expect("answered").answer.expect("free");
            continue;
        }
        let sequence = numbered(1_000_000);
        let lock = Acquire { key: key(0), sequence: sequence.clone(), ..acquire(&name, LEASE_MS, Staleness::Never) };
        let pool = semaphore::Acquire { sequence, ..permits(&name, POOL, 1, 100) };
        let request = AcquireAll::new(vec![lock.into(), pool.into()]).expect("two");
        grant(world.table.acquire_all(&request).await.expect("answered"));
        measured.push((index + 1, units_of_a_transaction(&world).await));
        world.table.release(&Release { key: key(0), ..release(&name) }).await.expect("released");
    }
    for (holders, units) in &measured {
        println!("a lock, and a semaphore of {holders} holders: {units} write units an acquire-all");
    }
    let units: Vec<_> = measured.iter().map(|(_, units)| *units).collect();
    assert!(units.is_sorted() && units[0] >= 4.0 && units[0] <= 6.0 && units[2] <= 70.0, "{measured:?}");
}

#[tokio::test(start_paused = true)]
async fn acquire_all_of_a_bound_lock_needs_its_principal() {
    let world = World::new().await;
    let bound = |name: &str, number| {
        let principal = Some(Principal::new(name).expect("valid"));
        let wanted = mixed(Some(number)).wanted().to_vec().into_iter().map(|wanted| match wanted {
            Wanted::Lock(request) => Wanted::Lock(Acquire { principal: principal.clone(), ..request }),
            Wanted::Permits(request) => Wanted::Permits(semaphore::Acquire { principal: principal.clone(), ..request }),
        });
        AcquireAll::new(wanted.collect()).expect("two")
    };
    grant(world.table.acquire_all(&bound("jwt:ann", 1)).await.expect("answered"));
    // Another principal cannot use a leaked lease id.
    let answer = world.table.acquire_all(&bound("jwt:bob", 2)).await.expect("answered");
    assert!(matches!(answer, AcquireAllAnswer::Held(locks) if locks.len() == 2));
    grant(world.table.acquire_all(&bound("jwt:ann", 2)).await.expect("answered"));
}

/// One step of a sequence, by one of the callers.
#[derive(Debug, Clone)]
enum Step {
    Together {
        caller: usize,
        keys: Vec<Part>,
        number: Option<u64>,
    },
    Alone {
        caller: usize,
        key: usize,
        number: Option<u64>,
    },
    Release {
        caller: usize,
        key: usize,
        delete: bool,
    },
    Break {
        key: usize,
    },
    /// Takes permits, or a place in the queue.
    Permits {
        caller: usize,
        key: usize,
        permits: u64,
        queues: bool,
        lease_ms: u64,
    },
    /// Releases permits, or withdraws a ticket.
    Give {
        caller: usize,
        key: usize,
    },
    /// Sets the capacity of a semaphore.
    Capacity {
        key: usize,
        capacity: u64,
    },
    /// Takes the rings off a semaphore, as in a row of an earlier version.
    Downgrade {
        key: usize,
    },
    /// Changes an attribute of a row.
    Set {
        key: usize,
        attribute: usize,
    },
    Wait {
        ms: u64,
    },
}

/// A key of a request for several.
#[derive(Debug, Clone)]
struct Part {
    key: usize,
    /// The judge of the dead.
    way: u8,
    /// The permits and the capacity, where the key is wanted as a semaphore.
    permits: (u64, u64),
    /// Whether the key is wanted as what it is not.
    is_mistaken: bool,
    /// The age of the epoch that the caller names.
    age: Option<u64>,
}

impl Part {
    fn wants_permits(&self) -> bool {
        (self.key >= POOL) != self.is_mistaken
    }
}

const CHANGES: usize = 6;

fn part() -> impl Strategy<Value = Part> {
    let age = prop::option::weighted(0.3, prop_oneof![3 => 0..4_u64, 1 => 15..19_u64]);
    (0..4_u8, (1..4_u64, 1..5_u64), prop::bool::weighted(0.05), age).prop_map(|(way, permits, is_mistaken, age)| Part {
        key: 0,
        way,
        permits,
        is_mistaken,
        age,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let number = || prop::option::weighted(0.7, 1..5_u64);
    let caller = || 0..CALLERS.len();
    let pool = || POOL..KEYS.len();
    let keys = prop::sample::subsequence(vec![0, 1, 2, 3], 2..=3).prop_shuffle();
    let keys = (keys, prop::collection::vec(part(), 3)).prop_map(|(keys, parts)| {
        keys.into_iter().zip(parts).map(|(key, part)| Part { key, ..part }).collect::<Vec<_>>()
    });
    prop_oneof![
        8 => (caller(), keys, number()).prop_map(|(caller, keys, number)| Step::Together { caller, keys, number }),
        3 => (caller(), 0..KEYS.len(), number())
            .prop_map(|(caller, key, number)| Step::Alone { caller, key, number }),
        3 => (caller(), 0..KEYS.len(), prop::bool::weighted(0.2))
            .prop_map(|(caller, key, delete)| Step::Release { caller, key, delete }),
        4 => (caller(), pool(), 1..4_u64, any::<bool>(), 100..30_000_u64).prop_map(
            |(caller, key, permits, queues, lease_ms)| Step::Permits { caller, key, permits, queues, lease_ms }),
        5 => (caller(), pool()).prop_map(|(caller, key)| Step::Give { caller, key }),
        1 => (pool(), 1..5_u64).prop_map(|(key, capacity)| Step::Capacity { key, capacity }),
        1 => pool().prop_map(|key| Step::Downgrade { key }),
        1 => (0..KEYS.len()).prop_map(|key| Step::Break { key }),
        1 => (0..KEYS.len(), 0..CHANGES).prop_map(|(key, attribute)| Step::Set { key, attribute }),
        2 => (0..40_000_u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

struct Bench {
    table: LockTable,
    dynamodb: Client,
    now_ms: Arc<AtomicU64>,
}

const POLICY: Policy = Policy { retention_seconds: 60, clock_skew_ms: 500 };

impl Bench {
    async fn new() -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        Self::on(Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build())).await
    }

    /// Returns a bench on a new table.
    async fn on(dynamodb: Client) -> Self {
        let schema = TableSchema::new(format!("together-{}", fresh_uuid()));
        ensure_table(&dynamodb, &schema).await.expect("a new table");
        // 2100-01-01: DynamoDB Local deletes expired rows by its own clock.
        let now_ms = Arc::new(AtomicU64::new(4_102_444_800_000));
        let clock = {
            let now_ms = Arc::clone(&now_ms);
            Clock::from_fn(move || now_ms.load(Ordering::Relaxed))
        };
        let table = LockTable::new(dynamodb.clone(), schema, POLICY, clock);
        Self { table, dynamodb, now_ms }
    }

    /// The item as stored, also if it is a tombstone.
    async fn item(&self, key: &LockKey) -> Option<Item> {
        let request = self.dynamodb.get_item().table_name(&self.table.schema().table_name).consistent_read(true);
        request.key("key", AttributeValue::S(key.partition().into())).send().await.expect("it answers").item
    }

    async fn row(&self, key: &LockKey) -> Option<Row> {
        self.item(key).await.and_then(|item| self.table.schema().decode_row(item))
    }

    async fn semaphore(&self, key: &LockKey) -> Option<Semaphore> {
        match self.table.schema().decode_found(key, self.item(key).await) {
            Ok(Found::Semaphore(row)) => Some(*row),
            _ => None,
        }
    }

    async fn contents(&self, request: &AcquireAll) -> Vec<Result<Content, CorruptRecord>> {
        let mut contents = Vec::new();
        for wanted in request.wanted() {
            contents.push(match wanted {
                Wanted::Lock(request) => Ok(Content::Lock(self.row(&request.key).await)),
                Wanted::Permits(request) => {
                    let item = self.item(&request.key).await;
                    self.table.schema().decode_found(&request.key, item).map(Content::Permits)
                }
            });
        }
        contents
    }

    async fn items(&self) -> Vec<Option<Item>> {
        let mut items = Vec::new();
        for index in 0..KEYS.len() {
            items.push(self.item(&key(index)).await);
        }
        items
    }

    async fn version(&self, key: &LockKey) -> Rvn {
        let version = self.row(key).await.and_then(|row| row.rvn.into_value()).unwrap_or_else(|| "none".into());
        Rvn::new("", version).expect("valid")
    }

    /// Up to ten entries of a semaphore, as an observer names them, the caller's own among them.
    async fn entries(&self, request: &semaphore::Acquire, is_numbered: bool) -> AllDead {
        let me = Member::new(&request.key, &request.lease_id);
        let Some(row) = self.semaphore(&request.key).await else { return AllDead::default() };
        let holders = row.holders.iter().map(|(id, holder)| (id, &holder.claim, holder.fencing_token));
        let tickets = row.queue.iter().map(|(id, ticket)| (id, &ticket.claim, ticket.number));
        let dead = holders.chain(tickets).map(|(id, claim, number)| Dead {
            id: PublicId::new("observed", id).expect("valid"),
            version: Rvn::new("version", claim.version.clone()).expect("valid"),
            permits: claim.permits,
            number: is_numbered.then_some(number),
        });
        AllDead::new(dead.take(10).collect(), &me).expect("valid")
    }

    async fn carry_out(&self, step: &Step) {
        match step {
            Step::Together { caller, keys, number } => self.check(*caller, keys, *number).await,
            Step::Alone { caller, key: index, number } => {
                let sequence = number.map(sequence);
                let request =
                    Acquire { key: key(*index), sequence, ..acquire(CALLERS[*caller], LEASE_MS, Staleness::Never) };
                let _ = self.table.acquire(&request).await;
            }
            Step::Release { caller, key: index, delete } => {
                let disposal = if *delete { Disposal::Delete } else { Disposal::Keep(None) };
                let request = Release { key: key(*index), disposal, ..release(CALLERS[*caller]) };
                self.table.release(&request).await.expect("answered");
            }
            Step::Break { key: index } => {
                let request = Break { seen: self.version(&key(*index)).await, key: key(*index) };
                self.table.break_lock(&request).await.expect("answered");
            }
            Step::Set { key: index, attribute } => {
                let text = |value: &str| AttributeValue::S(value.to_owned());
                let changes: [_; CHANGES] = [
                    ("leaseDuration", text("20s")),
                    ("fencingToken", text("seven")),
                    ("fencingToken", AttributeValue::N("8000000000000000".into())),
                    ("recordVersionNumber", text("java")),
                    ("leaseholdKind", text("semaphore")),
                    ("available", AttributeValue::N("1000".into())),
                ];
                let (name, value) = changes[*attribute].clone();
                let update = self.dynamodb.update_item().table_name(&self.table.schema().table_name);
                let update = update.key("key", text(KEYS[*index])).update_expression("SET #a = :v");
                let update = update.expression_attribute_names("#a", name).expression_attribute_values(":v", value);
                update.send().await.expect("changed");
            }
            Step::Wait { ms } => {
                self.now_ms.fetch_add(*ms, Ordering::Relaxed);
            }
            Step::Permits { caller, key: index, permits: count, queues, lease_ms } => {
                let lease_duration = LeaseDuration::from_millis(*lease_ms).expect("valid");
                let ask = semaphore::Acquire { lease_duration, ..permits(CALLERS[*caller], *index, *count, 4) };
                if *queues {
                    let request = Enqueue {
                        key: ask.key,
                        owner_name: ask.owner_name,
                        lease_id: ask.lease_id,
                        sequence: None,
                        lease_duration,
                        permits: ask.permits,
                        capacity: ask.capacity,
                        dead: ask.dead,
                        checked_by_clock: false,
                        epoch: None,
                        number: None,
                        grant_lease: lease_duration,
                        data: None,
                        principal: None,
                    };
                    let _ = self.table.enqueue(&request).await;
                } else {
                    let _ = self.table.acquire_permits(&ask).await;
                }
            }
            Step::Give { caller, key: index } => {
                let request = semaphore::Release {
                    key: key(*index),
                    lease_id: lease_id(CALLERS[*caller]),
                    expected: None,
                    number: None,
                    principal: None,
                };
                let _ = self.table.release_permits(&request).await;
            }
            Step::Capacity { key: index, capacity } => {
                let expected = self.semaphore(&key(*index)).await.map_or(1, |row| row.capacity);
                let some = |number| Permits::new("capacity", number).expect("valid");
                let request = semaphore::SetCapacity {
                    key: key(*index),
                    capacity: some(*capacity),
                    expected: some(expected),
                    expected_version: None,
                    request_id: None,
                };
                let _ = self.table.set_capacity(&request).await;
            }
            Step::Downgrade { key: index } => {
                if self.semaphore(&key(*index)).await.is_none() {
                    return;
                }
                let mut item = self.item(&key(*index)).await.expect("it is there");
                item.retain(|name, _| !name.starts_with("spent"));
                let put = self.dynamodb.put_item().table_name(&self.table.schema().table_name);
                put.set_item(Some(item)).send().await.expect("downgraded");
            }
        }
    }

    /// A part of a request for several.
    async fn wanted(&self, caller: usize, part: &Part, number: Option<u64>) -> Wanted {
        let sequence = number.map(sequence);
        if part.wants_permits() {
            let ask = permits(CALLERS[caller], part.key, part.permits.0, part.permits.1);
            let dead = if part.way >= 2 { self.entries(&ask, part.way == 2).await } else { AllDead::default() };
            let row = self.semaphore(&key(part.key)).await;
            let epoch = part.age.map(|age| {
                let (token, ticket) = row.map_or((100, 100), |row| {
                    let (token, ticket) = (row.epoch().to_string(), row.next_ticket);
                    (token.split('.').next().and_then(|token| token.parse().ok()).unwrap_or_default(), ticket)
                });
                Epoch::new(&format!("{}.{}", u64::saturating_sub(token, age), ticket)).expect("an epoch")
            });
            let (by_clock, checked_by_clock) = (part.way == 1, part.way == 2);
            return semaphore::Acquire { sequence, dead, by_clock, checked_by_clock, epoch, ..ask }.into();
        }
        let staleness = match part.way {
            0 => Staleness::Never,
            1 => Staleness::Clock,
            2 => Staleness::ObservedAndClock(self.version(&key(part.key)).await),
            _ => Staleness::Observed(self.version(&key(part.key)).await),
        };
        Acquire { key: key(part.key), sequence, ..acquire(CALLERS[caller], LEASE_MS, staleness) }.into()
    }

    /// Compares the effect on the table with the pure life cycle on the same rows.
    async fn check(&self, caller: usize, keys: &[Part], number: Option<u64>) {
        let mut wanted = Vec::new();
        for part in keys {
            wanted.push(self.wanted(caller, part, number).await);
        }
        let request = AcquireAll::new(wanted).expect("valid");
        let items = self.items().await;
        let before: Result<Vec<_>, _> = self.contents(&request).await.into_iter().collect();
        let actual = self.table.acquire_all(&request).await;
        let Ok(mut before) = before else {
            // A condition need not see the damage where another key refuses.
            assert!(!matches!(actual, Ok(AcquireAllAnswer::Granted(_))), "{actual:?}");
            assert_eq!(self.items().await, items, "nothing is written");
            return;
        };
        let now_us = self.now_ms.load(Ordering::Relaxed) * 1000;
        let mut stamps = Vec::new();
        for wanted in request.wanted() {
            let rvn = self.row(wanted.key()).await.and_then(|row| row.rvn.into_value());
            stamps.push(Stamp { rvn: rvn.unwrap_or_else(|| "unused".into()), now_us });
        }
        let mut next = Attempt::first(keys.len());
        for _ in 0..5 {
            let this = Attempt { fencing_token: next.fencing_token.max(now_us), ..next };
            let result = attempt(&before, request.wanted(), &this, &stamps, &POLICY);
            let decided = result.and_then(|result| match result {
                Ok(contents) => Ok(Ok((contents, this.fencing_token))),
                Err(votes) => decide(&votes, request.wanted(), &this, &stamps, &POLICY).map(Err),
            });
            match decided {
                Ok(Ok((contents, fencing_token))) => {
                    let versions = stamps.iter().map(|stamp| stamp.rvn.clone()).collect();
                    assert_eq!(grant(actual.expect("answered")), GrantOfAll { fencing_token, versions });
                    let after: Result<Vec<_>, _> = self.contents(&request).await.into_iter().collect();
                    assert_eq!(after.expect("readable"), contents);
                    return;
                }
                Ok(Err(Verdict::Again(again))) => {
                    next = again;
                    prepared(&mut before, &mut next);
                }
                Ok(Err(Verdict::Answer(answer))) => {
                    assert_eq!(actual.expect("answered"), answer);
                    assert_eq!(self.items().await, items, "nothing is written");
                    return;
                }
                Err(corrupt) => {
                    assert_eq!(actual.expect_err("corrupt").to_string(), corrupt.to_string());
                    assert_eq!(self.items().await, items, "nothing is written");
                    return;
                }
            }
        }
        panic!("no end in sight: {request:?} on {before:?}");
    }
}

/// The contents after the writes that prepare rows of earlier versions.
fn prepared(contents: &mut [Content], attempt: &mut Attempt) {
    for (content, seen) in contents.iter_mut().zip(&mut attempt.seen) {
        if let Content::Permits(Found::Semaphore(row)) = content
            && !row.has_rings
        {
            row.has_rings = true;
            *seen = None;
        }
    }
}

fn check_sequences(cases: u32, bench: impl AsyncFn() -> Bench) {
    let mut runner = TestRunner::new(ProptestConfig { cases, ..ProptestConfig::with_source_file(file!()) });
    let result = runner.run(&prop::collection::vec(step(), 1..40), |steps| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let bench = bench().await;
            for step in &steps {
                bench.carry_out(step).await;
            }
        });
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn transactions_of_several_are_the_pure_life_cycle() {
    check_sequences(250, Bench::new);
}

/// The embedded engine could have the same error as the expressions.
#[test]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
fn dynamodb_local_keeps_the_life_cycle_of_several() {
    let endpoint = std::env::var("LEASEHOLD_TEST_DYNAMODB_ENDPOINT").expect("scripts/dynamodb-local.sh sets it");
    check_sequences(24, async || Bench::on(leasehold_dynamodb::connect(Some(&endpoint)).await).await);
}
