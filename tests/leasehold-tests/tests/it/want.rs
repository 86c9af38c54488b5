//! A waiter's mark on a held lock: each answer, who takes the mark off, and who learns of it.

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_protocol::{
    Acquire, AcquireAll, AcquireAllAnswer, AcquireAnswer, Break, BreakAnswer, Disposal, ErrorKind, HeartbeatAnswer,
    Item, OwnerName, Release, ReleaseAnswer, ReleaseOutcome, Row, Rvn, Staleness, Want, WantAnswer,
};
use leasehold_tests::{Fault, World, acquire, heartbeat, key, release};

use crate::semaphore;

const LEASE_MS: u64 = 20_000;
const MARK: &str = "leaseholdWanted";

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

async fn want(world: &World) -> WantAnswer {
    let request = Want { key: key(), owner_name: OwnerName::new("waiter").expect("valid") };
    world.table.want(&request).await.expect("answered")
}

async fn grant(world: &World, request: &Acquire) {
    let answer = world.table.acquire(request).await.expect("answered");
    assert!(matches!(answer, AcquireAnswer::Granted(_)), "{answer:?}");
}

/// A world in which "holder" holds the lock.
async fn held() -> World {
    let world = World::new().await;
    grant(&world, &acquire("holder", LEASE_MS, Staleness::Never)).await;
    world
}

/// A world in which "holder" holds the lock, which a waiter marked.
async fn marked() -> World {
    let world = held().await;
    assert_eq!(want(&world).await, WantAnswer::Marked);
    world
}

async fn item(world: &World) -> Option<Item> {
    let request = world.dynamodb.get_item().table_name("locks").key("key", text("Moe"));
    request.consistent_read(true).send().await.expect("no faults here").item
}

async fn set(world: &World, attributes: &[(&str, &str)]) {
    let names = attributes.iter().map(|(name, _)| format!("{name} = :{name}")).collect::<Vec<_>>().join(", ");
    let mut update = world.dynamodb.update_item().table_name("locks").key("key", text("Moe"));
    for (name, value) in attributes {
        update = update.expression_attribute_values(format!(":{name}"), text(value));
    }
    update.update_expression(format!("SET {names}")).send().await.expect("no faults here");
}

async fn mark(world: &World) -> Option<AttributeValue> {
    item(world).await.and_then(|mut item| item.remove(MARK))
}

async fn row(world: &World) -> Row {
    world.row().await.expect("a row")
}

async fn version(world: &World) -> Rvn {
    Rvn::new("", row(world).await.rvn.into_value().expect("readable")).expect("valid")
}

/// Whether the holder learns of a waiter by its heartbeat.
async fn hears(world: &World, owner: &str) -> bool {
    match world.table.heartbeat(&heartbeat(owner)).await.expect("answered") {
        HeartbeatAnswer::Renewed(row) => row.wanted_by().is_some(),
        refused => panic!("{refused:?}"),
    }
}

/// Releases the lock of "holder". Returns the outcome, and whether somebody waits.
async fn released(world: &World, disposal: Disposal) -> (ReleaseOutcome, bool) {
    match world.table.release(&Release { disposal, ..release("holder") }).await.expect("answered") {
        ReleaseAnswer::Done(done) => (done.outcome, done.wanted),
        refused => panic!("{refused:?}"),
    }
}

#[tokio::test]
async fn want_marks_a_held_lock_and_changes_nothing_else() {
    let world = held().await;
    let mut before = item(&world).await.expect("a row");
    world.faults.take_calls();
    assert_eq!(want(&world).await, WantAnswer::Marked);
    assert_eq!(world.faults.take_calls(), 1);
    before.insert(MARK.into(), text("waiter"));
    assert_eq!(item(&world).await, Some(before));
    assert_eq!(row(&world).await.lock().expect("readable").wanted_by.as_deref(), Some("waiter"));
}

#[tokio::test]
async fn want_is_already_marked_by_the_first_waiter() {
    let world = marked().await;
    let request = Want { key: key(), owner_name: OwnerName::new("another").expect("valid") };
    assert_eq!(world.table.want(&request).await.expect("answered"), WantAnswer::AlreadyMarked);
    assert_eq!(mark(&world).await, Some(text("waiter")));
}

#[tokio::test]
async fn want_of_a_missing_lock_is_free_and_creates_no_row() {
    let world = World::new().await;
    assert_eq!(want(&world).await, WantAnswer::Free);
    assert_eq!(item(&world).await, None);
}

#[tokio::test]
async fn want_of_a_released_lock_is_free() {
    for disposal in [Disposal::Keep(None), Disposal::Delete] {
        let world = held().await;
        released(&world, disposal).await;
        assert_eq!(want(&world).await, WantAnswer::Free);
        assert_eq!(mark(&world).await, None);
    }
}

#[tokio::test]
async fn want_of_a_foreign_row_is_not_ours() {
    let world = World::new().await;
    set(&world, &[("ownerName", "java"), ("leaseDuration", "20000"), ("recordVersionNumber", "java-1")]).await;
    assert_eq!(want(&world).await, WantAnswer::NotOurs);
    assert_eq!(mark(&world).await, None);
}

#[tokio::test]
async fn want_of_a_row_overwritten_in_place_is_not_ours() {
    let world = held().await;
    set(&world, &[("ownerName", "java"), ("recordVersionNumber", "java-1")]).await;
    assert_eq!(want(&world).await, WantAnswer::NotOurs);
    assert_eq!(mark(&world).await, None);
}

#[tokio::test]
async fn want_of_a_semaphore_is_of_the_wrong_kind() {
    let world = World::new().await;
    take_permit(&world).await;
    let before = item(&world).await;
    assert_eq!(want(&world).await, WantAnswer::WrongKind);
    assert_eq!(item(&world).await, before);
}

#[tokio::test]
async fn heartbeat_and_release_tell_of_a_waiter_without_a_write() {
    let world = held().await;
    assert!(!hears(&world, "holder").await);
    assert_eq!(want(&world).await, WantAnswer::Marked);
    world.faults.take_calls();
    assert!(hears(&world, "holder").await);
    assert!(hears(&world, "holder").await, "the mark stays until the lock changes hands");
    assert_eq!(released(&world, Disposal::Keep(None)).await, (ReleaseOutcome::Released, true));
    assert_eq!(world.faults.take_calls(), 3);
}

#[tokio::test]
async fn release_is_unwanted_only_where_it_made_the_end() {
    let world = held().await;
    assert_eq!(released(&world, Disposal::Keep(None)).await, (ReleaseOutcome::Released, false));
    assert_eq!(released(&world, Disposal::Keep(None)).await, (ReleaseOutcome::Replayed, true));
    grant(&world, &acquire("heir", LEASE_MS, Staleness::Never)).await;
    assert_eq!(released(&world, Disposal::Keep(None)).await, (ReleaseOutcome::Replayed, true), "under a successor");
    let world = held().await;
    assert_eq!(released(&world, Disposal::Delete).await, (ReleaseOutcome::Released, false));
    assert_eq!(released(&world, Disposal::Delete).await, (ReleaseOutcome::Absent, true));
}

#[tokio::test(start_paused = true)]
async fn release_with_a_lost_answer_counts_as_wanted() {
    for disposal in [Disposal::Keep(None), Disposal::Delete] {
        let world = held().await;
        world.faults.script([Fault::ResponseLost]);
        assert!(released(&world, disposal).await.1);
    }
}

#[tokio::test]
async fn released_lock_shows_no_mark() {
    let world = marked().await;
    released(&world, Disposal::Keep(None)).await;
    assert_eq!(row(&world).await.lock().expect("readable").wanted_by, None);
    let world = marked().await;
    let request = Break { key: key(), seen: version(&world).await };
    assert!(matches!(world.table.break_lock(&request).await, Ok(BreakAnswer::Done(_))));
    assert_eq!(row(&world).await.lock().expect("readable").wanted_by, None);
}

#[tokio::test]
async fn acquire_takes_the_mark_off() {
    let world = marked().await;
    released(&world, Disposal::Keep(None)).await;
    grant(&world, &acquire("heir", LEASE_MS, Staleness::Never)).await;
    assert_eq!(mark(&world).await, None);
    assert!(!hears(&world, "heir").await);

    let world = marked().await;
    grant(&world, &acquire("heir", LEASE_MS, Staleness::Observed(version(&world).await))).await;
    assert_eq!(mark(&world).await, None, "a takeover");

    let world = marked().await;
    grant(&world, &acquire("holder", LEASE_MS, Staleness::Never)).await;
    assert_eq!(mark(&world).await, None, "a renewal");
}

#[tokio::test]
async fn acquire_all_takes_the_mark_off() {
    let world = marked().await;
    let first = acquire("heir", LEASE_MS, Staleness::Observed(version(&world).await));
    let other = leasehold_protocol::LockKey::new("other", None).expect("valid");
    let second = Acquire { key: other, ..acquire("heir", LEASE_MS, Staleness::Never) };
    let request = AcquireAll::new(vec![first.into(), second.into()]).expect("two");
    let answer = world.table.acquire_all(&request).await.expect("answered");
    assert!(matches!(answer, AcquireAllAnswer::Granted(_)), "{answer:?}");
    assert_eq!(mark(&world).await, None);
}

#[tokio::test]
async fn tombstone_has_no_mark() {
    let world = marked().await;
    assert_eq!(released(&world, Disposal::Delete).await, (ReleaseOutcome::Released, true));
    assert_eq!(mark(&world).await, None);
}

#[tokio::test]
async fn semaphore_takes_the_mark_off_a_tombstone() {
    let world = held().await;
    released(&world, Disposal::Delete).await;
    // An older version of the service leaves the mark in its tombstones.
    set(&world, &[(MARK, "waiter")]).await;
    take_permit(&world).await;
    let item = item(&world).await.expect("a row");
    assert!(item.contains_key("leaseholdKind") && !item.contains_key(MARK), "{item:?}");
}

#[tokio::test]
async fn row_overwritten_in_place_shows_no_mark() {
    let world = marked().await;
    set(&world, &[("ownerName", "java"), ("recordVersionNumber", "java-1")]).await;
    assert_eq!(mark(&world).await, Some(text("waiter")), "the Java client leaves it");
    assert_eq!(row(&world).await.lock().expect("readable").wanted_by, None);
    let heir = acquire("heir", LEASE_MS, Staleness::Observed(version(&world).await));
    grant(&world, &heir).await;
    assert!(!hears(&world, "heir").await);
}

#[tokio::test]
async fn unreadable_mark_is_none_and_is_replaced() {
    let world = held().await;
    let update = world.dynamodb.update_item().table_name("locks").key("key", text("Moe"));
    let update = update.update_expression(format!("SET {MARK} = :mark"));
    update.expression_attribute_values(":mark", AttributeValue::Bool(true)).send().await.expect("no faults here");
    assert!(!hears(&world, "holder").await);
    assert_eq!(want(&world).await, WantAnswer::Marked);
    assert!(hears(&world, "holder").await);
}

#[tokio::test]
async fn mark_is_no_attribute_of_a_caller() {
    let world = World::new().await;
    let attributes = [(MARK.to_owned(), text("me"))].into();
    let request = Acquire { attributes, ..acquire("holder", LEASE_MS, Staleness::Never) };
    let refused = world.table.acquire(&request).await.expect_err("reserved");
    assert_eq!(refused.kind(), ErrorKind::InvalidRequest { field: "attributes" });
}

/// Takes the only permit of a semaphore under the key.
async fn take_permit(world: &World) {
    let request = semaphore::acquire("reader", 1, 1);
    world.table.acquire_permits(&request).await.expect("answered").answer.expect("granted");
}
