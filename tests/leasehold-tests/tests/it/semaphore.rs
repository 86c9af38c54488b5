//! Semaphores under virtual time and under faults, and behind the Lambda adapter.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_api::Service;
use leasehold_lambda::{Function, Serves};
use leasehold_protocol::semaphore::{
    Acquire, Ahead, AllDead, Break, ClaimNumber, Dead, Enqueue, Entry, Grant, Heartbeat, Member, Permits, PublicId,
    Refusal, Release, Semaphore, SetCapacity, Shrink, Step, entry_name,
};
use leasehold_protocol::{
    ErrorKind, GrantOutcome, LeaseDuration, LostReason, Record, ReleaseOutcome, Rvn, Sequence, TableSchema,
};
use leasehold_tests::{COMMON, Fates, Fault, PermitEvent, World, check_permits, json_of, key, lease_id, run_seeds};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::events::event;

const LEASE: Duration = Duration::from_secs(20);
const LATE: Duration = Duration::from_secs(8);
/// The faults of the tests. A late attempt arrives within a lease.
const FAULTS: [Fault; 7] = [
    Fault::RequestLost,
    Fault::ResponseLost,
    Fault::Throttled,
    Fault::ServerError,
    Fault::TransactionConflict,
    Fault::Slow(Duration::from_secs(2)),
    Fault::Late(LATE),
];

fn permits(number: u64) -> Permits {
    Permits::new("permits", number).expect("valid")
}

/// Asks for `number` permits of `capacity`, under a lease of 20 s.
pub(crate) fn acquire(who: &str, number: u64, capacity: u64) -> Acquire {
    Acquire {
        key: key(),
        owner_name: entry_name(who.to_owned()).expect("short"),
        lease_id: lease_id(who),
        sequence: None,
        lease_duration: LeaseDuration::from_millis(20_000).expect("valid"),
        permits: permits(number),
        capacity: permits(capacity),
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

fn enqueue(who: &str, number: u64, capacity: u64) -> Enqueue {
    let Acquire { key, owner_name, lease_id, lease_duration, permits, capacity, .. } = acquire(who, number, capacity);
    Enqueue {
        key,
        owner_name,
        lease_id,
        sequence: None,
        lease_duration,
        permits,
        capacity,
        dead: AllDead::default(),
        checked_by_clock: false,
        epoch: None,
        number: None,
        grant_lease: lease_duration,
        data: None,
        principal: None,
    }
}

fn heartbeat(who: &str) -> Heartbeat {
    Heartbeat {
        key: key(),
        lease_id: lease_id(who),
        sequence: None,
        lease_duration: None,
        data: None,
        expected: None,
        fencing_token: None,
        shrink: None,
        principal: None,
    }
}

fn release(who: &str) -> Release {
    Release { key: key(), lease_id: lease_id(who), expected: None, number: None, principal: None }
}

fn member(who: &str) -> Member {
    Member::new(&key(), &lease_id(who))
}

async fn granted(world: &World, request: &Acquire) -> Grant {
    world.table.acquire_permits(request).await.expect("answered").answer.expect("granted")
}

async fn released(world: &World, who: &str) -> ReleaseOutcome {
    world.table.release_permits(&release(who)).await.expect("answered").answer.expect("released")
}

/// The row, read without faults.
async fn row(world: &World) -> Semaphore {
    world.faults.script([]);
    match world.table.read(&key()).await.expect("answered").expect("a row") {
        Record::Semaphore(_, row) => *row.expect("readable"),
        Record::Lock(row) => panic!("a lock: {row:?}"),
    }
}

/// The holder, in the form in which an observer names it.
fn observed(grant: &Grant) -> Dead {
    Dead {
        id: PublicId::new("observed", &grant.holder_id).expect("valid"),
        version: Rvn::new("version", grant.holder.claim.version.clone()).expect("valid"),
        permits: grant.holder.claim.permits,
        number: Some(grant.holder.fencing_token),
    }
}

/// The place in the queue.
async fn queued(world: &World, request: &Enqueue) -> Ahead {
    match world.table.enqueue(request).await.expect("answered").answer.expect("a place") {
        Entry::Queued(place) => place,
        Entry::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

fn set_capacity(capacity: u64, expected: u64) -> SetCapacity {
    let (capacity, expected) = (permits(capacity), permits(expected));
    SetCapacity { key: key(), capacity, expected, expected_version: None, request_id: None }
}

fn refusal<T: std::fmt::Debug>(step: Step<T>) -> Refusal {
    step.answer.expect_err("refused")
}

/// A caller's observations of the entries, with their times.
#[derive(Default)]
struct Observer {
    seen: HashMap<String, (String, Instant)>,
}

impl Observer {
    /// The entries that showed no sign of life for their lease, and a thousandth of it.
    fn dead(&mut self, row: &Semaphore, me: &Member) -> Vec<Dead> {
        let now = Instant::now();
        let holders = row.holders.iter().map(|(id, holder)| (id, &holder.claim, holder.claim.permits));
        let tickets = row.queue.iter().map(|(id, ticket)| (id, &ticket.claim, 0));
        let mut dead = Vec::new();
        for (id, entry, permits) in holders.chain(tickets) {
            let seen = self.seen.entry(id.clone()).or_insert_with(|| (entry.version.clone(), now));
            if seen.0 != entry.version {
                *seen = (entry.version.clone(), now);
            }
            let patience = Duration::from_millis(entry.lease_ms).mul_f64(1.001);
            if now - seen.1 >= patience && *id != me.holder_id() && *id != me.ticket_id() {
                let id = PublicId::new("observed", id).expect("valid");
                let version = Rvn::new("version", entry.version.clone()).expect("valid");
                dead.push(Dead { id, version, permits, number: None });
            }
        }
        dead
    }
}

#[tokio::test(start_paused = true)]
async fn each_operation_is_one_dynamodb_call() {
    let world = World::new().await;
    let calls = |expected: usize, what: &str| assert_eq!(world.faults.take_calls(), expected, "{what}");
    calls(0, "a new world");
    let ann = granted(&world, &acquire("ann", 1, 2)).await;
    calls(2, "the first acquire ever");
    granted(&world, &acquire("bob", 1, 2)).await;
    calls(1, "acquire");
    world.table.acquire_permits(&acquire("cyd", 1, 2)).await.expect("held");
    calls(1, "a refused acquire");
    granted(&world, &acquire("bob", 1, 2)).await;
    calls(1, "a repeated acquire");
    let sequence = Some(Sequence::new(1, None).expect("valid"));
    granted(&world, &Acquire { sequence, ..acquire("bob", 1, 2) }).await;
    calls(2, "a renewal by acquire");
    world.table.heartbeat_permits(&heartbeat("ann")).await.expect("renewed");
    calls(1, "heartbeat");
    for what in ["enqueue", "its renewal"] {
        queued(&world, &enqueue("cyd", 1, 2)).await;
        calls(1, what);
    }
    let number = Some(ClaimNumber::Token(ann.holder.fencing_token));
    world.table.release_permits(&Release { number, ..release("ann") }).await.expect("released");
    calls(1, "release");
    granted(&world, &acquire("cyd", 1, 2)).await;
    calls(1, "acquire from the queue");
    world.table.set_capacity(&set_capacity(3, 2)).await.expect("changed");
    calls(1, "capacity");
    released(&world, "cyd").await;
    calls(2, "a release that does not name its token");
    let entry = world.table.enqueue(&enqueue("dan", 1, 2)).await.expect("answered").answer;
    assert!(matches!(entry, Ok(Entry::Granted(_))), "{entry:?}");
    calls(2, "an enqueue that is granted");
}

#[tokio::test(start_paused = true)]
async fn acquire_and_release_survive_each_fault() {
    for fault in FAULTS {
        let world = World::new().await;
        granted(&world, &acquire("other", 1, 3)).await;
        world.faults.script([fault]);
        let grant = granted(&world, &acquire("ann", 2, 3)).await;
        sleep(LATE * 2).await;
        let after = row(&world).await;
        assert_eq!((after.available, after.holders.len()), (0, 2), "{fault:?}");
        assert_eq!(after.holders[&grant.holder_id], grant.holder, "{fault:?}");

        world.faults.script([fault]);
        let number = Some(ClaimNumber::Token(grant.holder.fencing_token));
        let step = world.table.release_permits(&Release { number, ..release("ann") }).await;
        let outcome = step.expect("answered").answer.expect("released");
        let expected = if fault == Fault::ResponseLost { ReleaseOutcome::Replayed } else { ReleaseOutcome::Released };
        assert_eq!(outcome, expected, "{fault:?}");
        sleep(LATE * 2).await;
        assert_eq!(row(&world).await.available, 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn first_acquire_survives_each_fault_in_both_writes() {
    for (at, fault) in FAULTS.into_iter().flat_map(|fault| [(1, fault), (2, fault)]) {
        let world = World::new().await;
        world.faults.at(at, fault);
        let grant = granted(&world, &acquire("ann", 2, 3)).await;
        assert_eq!(grant.holder.outcome, GrantOutcome::Created, "{at} {fault:?}");
        sleep(LATE * 2).await;
        let after = row(&world).await;
        assert_eq!((after.available, after.holders.len()), (1, 1), "{at} {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn takeover_survives_each_fault() {
    for fault in FAULTS {
        let world = World::new().await;
        let dead = granted(&world, &acquire("dead", 3, 3)).await;
        let dead = AllDead::new(vec![observed(&dead)], &member("heir")).expect("valid");
        let heir = Acquire { dead, ..acquire("heir", 1, 3) };
        world.faults.script([fault]);
        let grant = granted(&world, &heir).await;
        assert_eq!(grant.holder.outcome, GrantOutcome::TakenOver, "{fault:?}");
        sleep(LATE * 2).await;
        let lost = refusal(world.table.heartbeat_permits(&heartbeat("dead")).await.expect("answered"));
        assert_eq!(lost, Refusal::Lost(LostReason::TakenOver), "{fault:?}");
        assert_eq!(row(&world).await.available, 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_takeover_survives_each_fault() {
    for fault in FAULTS {
        let world = World::new().await;
        let dead = granted(&world, &acquire("dead", 2, 3)).await;
        granted(&world, &acquire("alive", 1, 3)).await;
        let dead = AllDead::new(vec![observed(&dead)], &member("heir")).expect("valid");
        world.faults.script([fault]);
        let place = queued(&world, &Enqueue { dead, ..enqueue("heir", 3, 3) }).await;
        assert_eq!((place.ticket.number, place.ahead), (1, 0), "{fault:?}");
        sleep(LATE * 2).await;
        let after = row(&world).await;
        assert_eq!((after.available, after.holders.len(), after.next_ticket), (2, 1, 2), "{fault:?}");
        let lost = refusal(world.table.heartbeat_permits(&heartbeat("dead")).await.expect("answered"));
        assert_eq!(lost, Refusal::Lost(LostReason::TakenOver), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeat_survives_each_fault_under_a_precondition() {
    for fault in FAULTS {
        for is_shrinking in [false, true] {
            let world = World::new().await;
            let grant = granted(&world, &acquire("ann", 3, 3)).await;
            let expected = (!is_shrinking).then(|| Rvn::new("version", grant.holder.claim.version).expect("valid"));
            let shrink = is_shrinking.then(|| Shrink::new(permits(3), permits(1)).expect("less"));
            world.faults.script([fault]);
            let step = world.table.heartbeat_permits(&Heartbeat { expected, shrink, ..heartbeat("ann") }).await;
            let renewed = step.expect("answered").answer.expect("renewed");
            sleep(LATE * 2).await;
            let after = row(&world).await;
            assert_eq!(after.holders[&renewed.holder_id], renewed.holder, "{fault:?}");
            assert_eq!(after.available, if is_shrinking { 2 } else { 0 }, "{fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn queue_and_operators_survive_each_fault() {
    for fault in FAULTS {
        let world = World::new().await;
        let holder = granted(&world, &acquire("ann", 2, 2)).await;
        world.faults.script([fault]);
        let place = queued(&world, &enqueue("bob", 1, 2)).await;
        assert_eq!((place.ticket.number, place.ahead), (1, 0), "{fault:?}");
        sleep(LATE * 2).await;
        assert_eq!(row(&world).await.next_ticket, 2, "{fault:?}: one number for one ticket");

        world.faults.script([fault]);
        assert_eq!(world.table.set_capacity(&set_capacity(5, 2)).await.expect("answered").answer, Ok(3), "{fault:?}");
        world.faults.script([fault]);
        let seen = Rvn::new("version", row(&world).await.holders[&holder.holder_id].claim.version.clone());
        world.faults.script([fault]);
        let id = PublicId::new("holderId", &holder.holder_id).expect("valid");
        let strike = Break { key: key(), id, seen: seen.expect("valid"), number: None };
        world.table.break_entry(&strike).await.expect("answered").answer.expect("broken");
        world.faults.script([fault]);
        assert!(world.table.release_permits(&release("bob")).await.expect("answered").answer.is_ok(), "{fault:?}");
        sleep(LATE * 2).await;
        let after = row(&world).await;
        assert_eq!((after.available, after.capacity, after.queue.len()), (5, 5, 0), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn outage_is_unavailable_and_neither_held_nor_lost() {
    let world = World::new().await;
    granted(&world, &acquire("ann", 1, 1)).await;
    world.faults.script([Fault::RequestLost; 12]);
    let unavailable = |kind| assert_eq!(kind, ErrorKind::Unavailable);
    unavailable(world.table.acquire_permits(&acquire("bob", 1, 1)).await.expect_err("an outage").kind());
    unavailable(world.table.heartbeat_permits(&heartbeat("ann")).await.expect_err("an outage").kind());
    unavailable(world.table.enqueue(&enqueue("bob", 1, 1)).await.expect_err("an outage").kind());
    unavailable(world.table.release_permits(&release("ann")).await.expect_err("an outage").kind());
    assert_eq!(row(&world).await.available, 0);
}

#[tokio::test(start_paused = true)]
async fn queue_of_a_hundred_is_served_in_order() {
    let world = World::new().await;
    let mut history = Vec::new();
    let mut holder = "first".to_owned();
    let grant = |who: &str, grant: &Grant, history: &mut Vec<PermitEvent>| {
        let (permits, token) = (grant.holder.claim.permits, grant.holder.fencing_token);
        history.push(PermitEvent::Granted { who: who.to_owned(), permits, token });
    };
    grant(&holder, &granted(&world, &acquire(&holder, 1, 1)).await, &mut history);
    for index in 0..100 {
        let who = format!("waiter-{index}");
        let place = queued(&world, &enqueue(&who, 1, 1)).await;
        assert_eq!(place.ahead, index);
        history.push(PermitEvent::Queued { who, number: place.ticket.number });
    }
    for _ in 0..100 {
        released(&world, &holder).await;
        history.push(PermitEvent::Ended { who: holder });
        let late = world.table.acquire_permits(&acquire("late", 1, 1)).await.expect("answered");
        assert_eq!(refusal(late), Refusal::Held);
        let row = row(&world).await;
        let next = row.queue.values().min_by_key(|ticket| ticket.number).expect("somebody waits");
        holder = next.claim.owner_name.clone();
        grant(&holder, &granted(&world, &acquire(&holder, 1, 1)).await, &mut history);
    }
    assert_eq!(check_permits(1, &history), Ok(()));
    assert_eq!(holder, "waiter-99");
}

/// Polls every second, renews the ticket every third of the lease, and acquires when all tickets ahead are dead.
async fn wait_for_permit(world: &World, who: &str) -> Grant {
    let me = member(who);
    let mut observer = Observer::default();
    let mut renewed = Instant::now() - LEASE;
    loop {
        if renewed.elapsed() >= LEASE / 3 {
            let sent = Instant::now();
            if world.table.enqueue(&enqueue(who, 1, 1)).await.is_ok_and(|step| step.answer.is_ok()) {
                renewed = sent;
            }
        }
        let row = row(world).await;
        let dead = observer.dead(&row, &me);
        let mine = row.queue[&me.ticket_id()].number;
        let is_passed = |(id, ticket): (&String, &leasehold_protocol::semaphore::Ticket)| {
            ticket.number >= mine
                || dead.iter().any(|one| matches!(&one.id, PublicId::Ticket(it) if it.ticket_id() == *id))
        };
        if row.queue.iter().all(is_passed) {
            let holders = dead.into_iter().filter(|one| matches!(one.id, PublicId::Holder(_))).collect();
            let dead = AllDead::new(holders, &me).expect("few");
            let (epoch, number) = (Some(row.epoch()), Some(mine));
            let request = Acquire { dead, epoch, number, passes: true, ..acquire(who, 1, 1) };
            let step = world.table.acquire_permits(&request).await;
            if let Ok(grant) = step.expect("answered").answer {
                return grant;
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dead_waiters_cost_one_lease_together() {
    for dead in [1, 10, 50] {
        let world = World::new().await;
        granted(&world, &acquire("holder", 1, 1)).await;
        for index in 0..dead {
            world.table.enqueue(&enqueue(&format!("dead-{index}"), 1, 1)).await.expect("a ticket");
        }
        released(&world, "holder").await;
        let started = Instant::now();
        wait_for_permit(&world, "alive").await;
        let waited = started.elapsed();
        assert!((LEASE..LEASE + Duration::from_secs(3)).contains(&waited), "{dead} dead: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn dead_waiter_in_the_middle_stops_only_those_behind() {
    let world = Rc::new(World::new().await);
    granted(&world, &acquire("holder", 1, 1)).await;
    world.table.enqueue(&enqueue("first", 1, 1)).await.expect("a ticket");
    world.table.enqueue(&enqueue("dead", 1, 1)).await.expect("a ticket");
    released(&world, "holder").await;
    let started = Instant::now();
    wait_for_permit(&world, "first").await;
    assert!(started.elapsed() < Duration::from_secs(2), "nobody is before it");
    released(&world, "first").await;
    let started = Instant::now();
    wait_for_permit(&world, "last").await;
    assert!(started.elapsed() >= LEASE);
}

#[tokio::test(start_paused = true)]
async fn all_holders_and_waiters_dead_at_once_cost_one_lease() {
    let world = World::new().await;
    for index in 0..5 {
        granted(&world, &acquire(&format!("dead-{index}"), 1, 5)).await;
    }
    for index in 0..5 {
        world.table.enqueue(&enqueue(&format!("dead-waiter-{index}"), 1, 5)).await.expect("a ticket");
    }
    let me = member("heir");
    let mut observer = Observer::default();
    let started = Instant::now();
    let grant = loop {
        let dead = AllDead::new(observer.dead(&row(&world).await, &me), &me).expect("ten at most");
        let step = world.table.acquire_permits(&Acquire { dead, ..acquire("heir", 5, 5) }).await;
        match step.expect("answered").answer {
            Ok(grant) => break grant,
            Err(refusal) => assert_eq!(refusal, Refusal::Held),
        }
        sleep(Duration::from_secs(1)).await;
    };
    assert!((LEASE..LEASE + Duration::from_secs(3)).contains(&started.elapsed()));
    assert_eq!(grant.holder.outcome, GrantOutcome::TakenOver);
    let after = row(&world).await;
    assert_eq!((after.available, after.holders.len(), after.queue.len()), (0, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn lying_observer_is_refused_where_the_clock_is_asked() {
    let world = World::new().await;
    let holder = granted(&world, &acquire("ann", 1, 1)).await;
    let dead = AllDead::new(vec![observed(&holder)], &member("bob")).expect("valid");
    let request = Acquire { dead: dead.clone(), checked_by_clock: true, ..acquire("bob", 1, 1) };
    let ticket = Enqueue { dead, checked_by_clock: true, ..enqueue("bob", 1, 1) };
    assert_eq!(refusal(world.table.acquire_permits(&request).await.expect("answered")), Refusal::Held);
    assert_eq!(refusal(world.table.enqueue(&ticket).await.expect("answered")), Refusal::Held);
    sleep(LEASE + Duration::from_secs(2)).await;
    let entry = world.table.enqueue(&ticket).await.expect("answered").answer;
    assert!(
        matches!(&entry, Ok(Entry::Granted(grant)) if grant.holder.outcome == GrantOutcome::TakenOver),
        "{entry:?}"
    );
}

/// Checks the condition by which every version before semaphores takes a row over.
#[tokio::test(start_paused = true)]
async fn older_version_finds_no_lease_to_take_over() {
    let world = World::new().await;
    granted(&world, &acquire("ann", 1, 1)).await;
    let before = row(&world).await;
    let text = |value: &str| aws_sdk_dynamodb::types::AttributeValue::S(value.to_owned());
    let takeover = world.dynamodb.update_item().table_name("locks").key("key", text("Moe"));
    let takeover = takeover
        .update_expression("SET ownerName = :java")
        .condition_expression(
            "attribute_not_exists(isReleased) AND recordVersionNumber = :seen AND attribute_type(ownerName, :string) \
             AND leaseDuration BETWEEN :firstDigit AND :pastLastDigit AND size(leaseDuration) <= :maxDigits",
        )
        .expression_attribute_values(":java", text("older"))
        .expression_attribute_values(":seen", text(&before.rvn))
        .expression_attribute_values(":string", text("S"))
        .expression_attribute_values(":firstDigit", text("1"))
        .expression_attribute_values(":pastLastDigit", text(":"))
        .expression_attribute_values(":maxDigits", aws_sdk_dynamodb::types::AttributeValue::N("15".into()));
    takeover.send().await.expect_err("the lease is longer than any that it can read");
    let request = world.dynamodb.get_item().table_name("locks").key("key", text("Moe"));
    let item = request.send().await.expect("answered").item.expect("a row");
    let seen_by_older = TableSchema::new("locks").decode_row(item).expect("a key");
    assert!(seen_by_older.lock().is_err() && !seen_by_older.released);
    assert_eq!(row(&world).await, before);
}

/// The beliefs of the callers, in the order of their beginnings.
type History = Rc<RefCell<Vec<PermitEvent>>>;

const CAPACITY: u64 = 4;
const RUN: Duration = Duration::from_mins(20);

/// Runs one caller after the other under this name: some die, some release, and all follow the rules.
async fn live(name: &'static str, world: Rc<World>, history: History, mut rng: fastrand::Rng, end: Instant) {
    let mut life = 0;
    while Instant::now() < end {
        life += 1;
        let who = format!("{name}-{life}");
        let wanted = rng.u64(1..=3);
        let me = member(&who);
        let mut observer = Observer::default();
        let mut number = 0;
        let (sent, grant) = loop {
            if Instant::now() >= end {
                return;
            }
            if let Ok(Some(Record::Semaphore(_, Ok(row)))) = world.table.read(&key()).await {
                let mut dead = observer.dead(&row, &me);
                dead.truncate(10);
                number += 1;
                let sequence = Some(Sequence::new(number, None).expect("valid"));
                let dead = AllDead::new(dead, &me).expect("ten at most");
                let sent = Instant::now();
                let request = Acquire { dead, sequence, ..acquire(&who, wanted, CAPACITY) };
                // An unanswered request is repeated as it is until it is answered.
                let answer = loop {
                    match world.table.acquire_permits(&request).await {
                        Ok(step) => break step.answer,
                        Err(_) => sleep(Duration::from_millis(rng.u64(100..1000))).await,
                    }
                };
                match answer {
                    Ok(grant) => break (sent, grant),
                    Err(Refusal::Held | Refusal::Superseded(_)) => {}
                    Err(refusal) => panic!("{who}: {refusal:?}"),
                }
            }
            sleep(Duration::from_millis(rng.u64(200..2000))).await;
        };
        if sent.elapsed() >= LEASE {
            continue;
        }
        let (permits, token) = (grant.holder.claim.permits, grant.holder.fencing_token);
        history.borrow_mut().push(PermitEvent::Granted { who: who.clone(), permits, token });
        // The holder believes in its permits for its lease from before it sent the request, and may release before.
        let held = Duration::from_millis(rng.u64(0..30_000));
        let until = sent + LEASE;
        tokio::time::sleep_until(until.min(Instant::now() + held)).await;
        history.borrow_mut().push(PermitEvent::Ended { who: who.clone() });
        if Instant::now() < until {
            let _ = world.table.release_permits(&release(&who)).await;
        }
    }
}

async fn simulate(seed: u64) -> usize {
    let world = Rc::new(World::new().await);
    granted(&world, &acquire("maker", 1, CAPACITY)).await;
    released(&world, "maker").await;
    let mut rng = fastrand::Rng::with_seed(seed);
    world.faults.set(Fates::Random { rng: rng.fork(), one_in: 5, longest: LEASE * 2, kinds: COMMON });
    let history = History::default();
    let end = Instant::now() + RUN;
    let callers = tokio::task::LocalSet::new();
    for name in ["ann", "bob", "cyd", "dan", "eve"] {
        callers.spawn_local(live(name, Rc::clone(&world), Rc::clone(&history), rng.fork(), end));
    }
    callers.await;
    let history = history.take();
    // Answers may overtake each other, so the history is in the order in which callers came to believe.
    let mut tokens = BTreeSet::new();
    let ordered = history.into_iter().zip(1..).map(|(event, order)| match event {
        PermitEvent::Granted { who, permits, token } => {
            assert!(tokens.insert(token), "{token} was granted twice");
            PermitEvent::Granted { who, permits, token: order }
        }
        other => other,
    });
    let ordered: Vec<_> = ordered.collect();
    assert_eq!(check_permits(CAPACITY, &ordered), Ok(()));
    let row = row(&world).await;
    let held: u64 = row.holders.values().map(|holder| holder.claim.permits).sum();
    assert_eq!(row.available, i64::try_from(CAPACITY - held).expect("small"), "no permit leaks");
    tokens.len()
}

#[test]
fn believed_permits_stay_within_the_capacity_under_faults() {
    let grants = run_seeds("believed_permits_stay", 8, simulate);
    assert!(grants.iter().all(|grants| *grants > 50), "{grants:?} grants say little");
}

/// The event of a semaphore's route, derived from one for locks.
fn http_event(path: &str, body: &Value) -> Value {
    let mut event = event("http-acquire");
    event["routeKey"] = json!(format!("ANY {path}"));
    event["rawPath"] = json!(path);
    event["body"] = json!(body.to_string());
    event["isBase64Encoded"] = json!(false);
    event
}

#[tokio::test(start_paused = true)]
async fn function_serves_http_and_direct_invocations() {
    let function = Function::unrestricted(Service::new(World::new().await.table));
    let asks = Serves::by_handler("ask").expect("a handler");
    let http = async |path: &str, body: Value| {
        let answer = function.answer(&asks, http_event(path, &body)).await.map(json_of).expect("an answer");
        let body: Value = serde_json::from_str(answer["body"].as_str().expect("text")).expect("a document");
        (answer["statusCode"].as_u64().expect("a status"), body)
    };
    let direct =
        async |input: Value| function.answer_direct(input).await.map(json_of).map_err(|error| error.error_type);
    let request = json!({ "key": "k", "ownerName": "o", "capacity": 2, "leaseId": "l" });
    let (status, grant) = http("/v1/semaphore/acquire", request.clone()).await;
    assert_eq!((status, &grant["outcome"]), (200, &json!("created")));
    assert_eq!(http("/v1/semaphore/other", request.clone()).await.1["type"], "unknown-route");
    assert_eq!(http("/v1/semaphore/release", request).await.1["type"], "unknown-route", "another family's");

    let acquire = |lease: &str, permits: u64| {
        json!({ "action": "semaphore-acquire", "key": "k", "ownerName": "o", "capacity": 2, "leaseId": lease,
                "permits": permits })
    };
    assert_eq!(direct(acquire("m", 2)).await, Err("LockHeld".into()));
    assert_eq!(direct(acquire("m", 3)).await, Err("ExceedsCapacity".into()));
    assert_eq!(direct(acquire("l", 2)).await, Err("PermitsMismatch".into()));
    let enqueue = json!({ "action": "semaphore-enqueue", "key": "k", "ownerName": "o", "capacity": 2, "leaseId": "m",
                          "permits": 2 });
    assert_eq!(direct(enqueue).await.expect("a ticket")["ahead"], 0);
    let view = direct(json!({ "action": "semaphore-get", "key": "k" })).await.expect("a view");
    assert_eq!((&view["available"], &view["queue"][0]["number"]), (&json!(1), &json!(1)));
    let beat = json!({ "action": "semaphore-heartbeat", "key": "k", "leaseId": "m" });
    assert_eq!(direct(beat).await, Err("LockLost".into()));
    let strike = json!({ "action": "semaphore-break", "key": "k", "holderId": view["queue"][0]["ticketId"],
                         "version": view["queue"][0]["version"] });
    assert_eq!(direct(strike).await.expect("broken")["outcome"], "released");
    let change = json!({ "action": "semaphore-capacity", "key": "k", "capacity": 3, "expected": 2 });
    assert_eq!(direct(change).await.expect("changed")["available"], 2);
    let release = json!({ "action": "semaphore-release", "key": "k", "leaseId": "l" });
    assert_eq!(direct(release).await.expect("released")["outcome"], "released");
    let lock = json!({ "action": "get", "key": "k" });
    assert_eq!(direct(lock).await, Err("WrongKind".into()));
}

/// The cost of one write of the row, as DynamoDB counts: a unit for each KB of the item.
async fn units_of_a_write(world: &World) -> f64 {
    let text = |value: &str| aws_sdk_dynamodb::types::AttributeValue::S(value.to_owned());
    let update = world.dynamodb.update_item().table_name("locks").key("key", text("Moe"));
    let update = update.update_expression("SET expireAt = expireAt");
    let update = update.return_consumed_capacity(aws_sdk_dynamodb::types::ReturnConsumedCapacity::Total);
    let consumed = update.send().await.expect("answered").consumed_capacity.expect("counted");
    consumed.capacity_units.expect("a number")
}

#[tokio::test(start_paused = true)]
async fn units_of_a_heartbeat_by_the_number_of_entries() {
    let world = World::new().await;
    let name = |index: usize| format!("host-{index:03}.example.org:12345");
    let mut measured = Vec::new();
    for index in 0..100 {
        granted(&world, &Acquire { sequence: Some(numbered()), ..acquire(&name(index), 1, 100) }).await;
        if [0, 9, 99].contains(&index) {
            measured.push((index + 1, 0, units_of_a_write(&world).await));
        }
    }
    for index in 100..200 {
        let request = Enqueue { sequence: Some(numbered()), ..enqueue(&name(index), 1, 100) };
        world.table.enqueue(&request).await.expect("answered").answer.expect("a ticket");
    }
    measured.push((100, 100, units_of_a_write(&world).await));
    for (holders, tickets, units) in &measured {
        println!("{holders} holders, {tickets} tickets: {units} write units a heartbeat");
    }
    let units: Vec<_> = measured.iter().map(|(.., units)| *units).collect();
    assert!(units.is_sorted() && units[0] <= 2.0 && units[3] <= 64.0, "{measured:?}");
}

fn numbered() -> Sequence {
    let id = "1f0c61a2-93f4-4b5e-8a53-0f5d7a1c9d11";
    Sequence::new(1_000_000, Some(id.to_owned())).expect("valid")
}

#[tokio::test(start_paused = true)]
async fn damaged_semaphore_is_never_free() {
    let empty = || AttributeValue::M(HashMap::new());
    for (damage, value) in [
        ("SET holders.#id.#sequence = :value", AttributeValue::S("one".into())),
        ("SET holders.#id.requestId = :value", AttributeValue::S("of no number".into())),
        ("SET #ended.#id = :value", empty()),
        ("SET #ended.#sequence = :value REMOVE #ended.f", empty()),
        ("SET available = :value", AttributeValue::N("2".into())),
        ("SET spentHolders.#id = :value", empty()),
    ] {
        let world = World::new().await;
        let grant = granted(&world, &acquire("holder", 1, 2)).await;
        let mut update = world.dynamodb.update_item().table_name("locks").update_expression(damage);
        for (name, attribute) in [("#id", grant.holder_id.as_str()), ("#sequence", "sequence"), ("#ended", "ended")] {
            if damage.contains(name) {
                update = update.expression_attribute_names(name, attribute);
            }
        }
        update = update.key("key", AttributeValue::S("Moe".into())).expression_attribute_values(":value", value);
        update.send().await.expect("damaged");
        let record = world.table.read(&key()).await.expect("answered").expect("a row");
        assert!(matches!(record, Record::Semaphore(_, Err(_))), "{damage}");
        let error = world.table.acquire_permits(&acquire("next", 1, 2)).await.expect_err("not readable");
        assert_eq!(error.kind(), ErrorKind::CorruptRecord, "{damage}");
    }
}

#[tokio::test(start_paused = true)]
async fn last_token_of_a_semaphore_is_used_up() {
    /// The last token whose successor is below 2^53 - 1.
    const LAST: u64 = (1 << 53) - 3;
    let world = World::new().await;
    granted(&world, &acquire("first", 1, 3)).await;
    let update = world.dynamodb.update_item().table_name("locks").update_expression("SET fencingToken = :last");
    let update = update.key("key", AttributeValue::S("Moe".into()));
    let update = update.expression_attribute_values(":last", AttributeValue::N(LAST.to_string()));
    update.send().await.expect("written");
    let grant = granted(&world, &acquire("second", 1, 3)).await;
    assert_eq!(grant.holder.fencing_token, LAST + 1);
    let error = world.table.acquire_permits(&acquire("third", 1, 3)).await.expect_err("used up");
    assert_eq!(error.kind(), ErrorKind::CorruptRecord);
}
