//! The life of a table after its return from a backup.

use leasehold_dynamodb::Clock;
use leasehold_protocol::{LockTable, Policy, Staleness};
use leasehold_tests::{EPOCH_MS, World, acquire};

/// A token from this clock could be one that was given already.
#[tokio::test]
async fn clock_behind_the_tokens_of_a_backup_is_refused() {
    let world = World::new().await;
    world.table.acquire(&acquire("me", 20_000, Staleness::Never)).await.expect("granted");
    let row = world.row().await;
    let restore = async |now_ms: u64| {
        let (dynamodb, schema) = (world.dynamodb.clone(), world.table.schema().clone());
        LockTable::new(dynamodb, schema, Policy::default(), Clock::from_fn(move || now_ms)).restore().await
    };
    let refused = restore(EPOCH_MS - 1).await.expect_err("the clock is behind");
    assert!(refused.contains("clock is behind the backup"), "{refused}");
    assert_eq!(world.row().await, row, "the holder still holds");
    assert_eq!(restore(EPOCH_MS + 60_000).await, Ok(1));
}
