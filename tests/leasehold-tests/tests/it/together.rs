//! Several locks at once: the transaction agrees with the pure life cycle, under every fault of the network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_dynamodb::{Clock, fresh_uuid};
use leasehold_engine::Engine;
use leasehold_protocol::lifecycle::together::{Attempt, Form, Verdict, attempt, decide};
use leasehold_protocol::{
    Acquire, AcquireAll, AcquireAllAnswer, Break, Disposal, ErrorKind, GrantOfAll, Heartbeat, LockKey, LockTable,
    Policy, Principal, Release, Row, Rvn, Sequence, Staleness, Stamp, TableSchema, ensure_table,
};
use leasehold_tests::{Fault, World, acquire, heartbeat, release};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const LEASE_MS: u64 = 20_000;
const KEYS: [&str; 3] = ["a", "b", "c"];
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
    AcquireAll::new(vec![request(0), request(1)]).expect("two")
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

#[tokio::test(start_paused = true)]
async fn acquire_all_of_a_bound_lock_needs_its_principal() {
    let world = World::new().await;
    let bound = |name: &str, number| {
        let principal = Some(Principal::new(name).expect("valid"));
        let requests = both(Some(number)).requests().to_vec().into_iter();
        AcquireAll::new(requests.map(|request| Acquire { principal: principal.clone(), ..request }).collect())
            .expect("two")
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
        keys: Vec<(usize, u8)>,
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
    /// Changes an attribute of a row.
    Set {
        key: usize,
        attribute: usize,
    },
    Wait {
        ms: u64,
    },
}

const CHANGES: usize = 5;

fn step() -> impl Strategy<Value = Step> {
    let number = || prop::option::weighted(0.7, 1..5_u64);
    let keys = prop::sample::subsequence(vec![0, 1, 2], 2..=3).prop_shuffle();
    let keys = (keys, prop::collection::vec(0..4_u8, 3)).prop_map(|(keys, ways)| keys.into_iter().zip(ways).collect());
    prop_oneof![
        6 => (0..3_usize, keys, number()).prop_map(|(caller, keys, number)| Step::Together { caller, keys, number }),
        3 => (0..3_usize, 0..3_usize, number()).prop_map(|(caller, key, number)| Step::Alone { caller, key, number }),
        4 => (0..3_usize, 0..3_usize, prop::bool::weighted(0.2))
            .prop_map(|(caller, key, delete)| Step::Release { caller, key, delete }),
        1 => (0..3_usize).prop_map(|key| Step::Break { key }),
        1 => (0..3_usize, 0..CHANGES).prop_map(|(key, attribute)| Step::Set { key, attribute }),
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

    /// The row as stored, also if it is a tombstone.
    async fn row(&self, key: &LockKey) -> Option<Row> {
        let request = self.dynamodb.get_item().table_name(&self.table.schema().table_name).consistent_read(true);
        let output = request.key("key", AttributeValue::S(key.partition().into())).send().await.expect("it answers");
        output.item.and_then(|item| self.table.schema().decode_row(item))
    }

    async fn rows(&self, request: &AcquireAll) -> Vec<Option<Row>> {
        let mut rows = Vec::new();
        for request in request.requests() {
            rows.push(self.row(&request.key).await);
        }
        rows
    }

    async fn version(&self, key: &LockKey) -> Rvn {
        let version = self.row(key).await.and_then(|row| row.rvn.into_value()).unwrap_or_else(|| "none".into());
        Rvn::new("", version).expect("valid")
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
        }
    }

    /// Compares the effect on the table with the pure life cycle on the same rows.
    async fn check(&self, caller: usize, keys: &[(usize, u8)], number: Option<u64>) {
        let mut requests = Vec::new();
        for (index, way) in keys {
            let staleness = match way {
                0 => Staleness::Never,
                1 => Staleness::Clock,
                2 => Staleness::ObservedAndClock(self.version(&key(*index)).await),
                _ => Staleness::Observed(self.version(&key(*index)).await),
            };
            let sequence = number.map(sequence);
            requests.push(Acquire { key: key(*index), sequence, ..acquire(CALLERS[caller], LEASE_MS, staleness) });
        }
        let request = AcquireAll::new(requests).expect("valid");
        let before = self.rows(&request).await;
        let actual = self.table.acquire_all(&request).await;
        let after = self.rows(&request).await;
        let now_us = self.now_ms.load(Ordering::Relaxed) * 1000;
        let stamp = |row: &Option<Row>| {
            let rvn = row.as_ref().and_then(|row| row.rvn.value().cloned()).unwrap_or_else(|| "unused".into());
            Stamp { rvn, now_us }
        };
        let stamps: Vec<_> = after.iter().map(stamp).collect();
        let mut next = Attempt { form: Form::Acquisition, fencing_token: 0 };
        for _ in 0..5 {
            let this = Attempt { fencing_token: next.fencing_token.max(now_us), ..next };
            let result = attempt(&before, request.requests(), &this, &stamps, &POLICY);
            let decided = result.and_then(|result| match result {
                Ok(rows) => Ok(Ok((rows, this.fencing_token))),
                Err(votes) => decide(&votes, request.requests(), &stamps, &POLICY).map(Err),
            });
            match decided {
                Ok(Ok((rows, fencing_token))) => {
                    let versions = stamps.iter().map(|stamp| stamp.rvn.clone()).collect();
                    assert_eq!(grant(actual.expect("answered")), GrantOfAll { fencing_token, versions });
                    assert_eq!(after, rows.into_iter().map(Some).collect::<Vec<_>>());
                    return;
                }
                Ok(Err(Verdict::Again(again))) => next = again,
                Ok(Err(Verdict::Answer(answer))) => {
                    assert_eq!(actual.expect("answered"), answer);
                    assert_eq!(after, before, "nothing is written");
                    return;
                }
                Err(corrupt) => {
                    assert_eq!(actual.expect_err("corrupt").to_string(), corrupt.to_string());
                    assert_eq!(after, before, "nothing is written");
                    return;
                }
            }
        }
        panic!("no end in sight: {request:?} on {before:?}");
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
fn transactions_of_locks_are_the_pure_life_cycle() {
    check_sequences(200, Bench::new);
}

/// The embedded engine could have the same error as the expressions.
#[test]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
fn dynamodb_local_keeps_the_life_cycle_of_several_locks() {
    let endpoint = std::env::var("LEASEHOLD_TEST_DYNAMODB_ENDPOINT").expect("scripts/dynamodb-local.sh sets it");
    check_sequences(24, async || Bench::on(leasehold_dynamodb::connect(Some(&endpoint)).await).await);
}
