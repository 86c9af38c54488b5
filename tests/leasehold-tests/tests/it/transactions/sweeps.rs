//! The work of sweepers: its share for each shard of the index, and the postponement of what is alive.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_tests::Fault;
use leasehold_tests::bank::{Bank, TRANSACTIONS, add, adds, begin, padded, request};
use leasehold_transactions::{Action, Item, Policy, TransactionId};
use tokio::time::advance;

use super::guards::until_reached;

/// Longer than a transaction may be idle.
const IDLE: Duration = Duration::from_secs(61);

fn text<'a>(row: &'a Item, name: &str) -> &'a str {
    row[name].as_s().expect("a text")
}

/// The shard of a transaction in the index.
async fn shard(bank: &Bank, id: &TransactionId) -> String {
    let rows = bank.scan(TRANSACTIONS).await;
    let row = rows.iter().find(|row| text(row, "transactionId") == id.public().as_str()).expect("a record");
    text(row, "sweepShard").to_owned()
}

#[tokio::test(start_paused = true)]
async fn sweep_examines_as_many_as_it_may() {
    let bank = Bank::new().await;
    // Two in each of eight shards.
    let mut shards = BTreeMap::<_, u32>::new();
    while shards.values().sum::<u32>() < 16 {
        let id = begin(&bank.transactions).await;
        let count = shards.entry(shard(&bank, &id).await).or_default();
        if *count < 2 {
            *count += 1;
        } else {
            bank.transactions.rollback(&id).await.expect("rolled back");
        }
    }
    assert_eq!(shards.len(), 8);
    advance(IDLE).await;
    for (limit, examined, more) in [(15, 15, true), (1, 1, false), (1, 0, false)] {
        let swept = bank.transactions.sweep(limit).await.expect("swept");
        assert_eq!((swept.examined, swept.rolled_back, swept.more), (examined, examined, more), "{swept:?}");
    }
}

/// Sweepers that start together begin with different shards.
#[tokio::test(start_paused = true)]
async fn sweeps_begin_with_any_shard() {
    let bank = Bank::new().await;
    let mut first = BTreeSet::new();
    for _ in 0..40 {
        bank.faults.record();
        bank.transactions.sweep(1).await.expect("swept");
        first.insert(bank.faults.record()[0].body["ExpressionAttributeValues"][":shard"].to_string());
    }
    assert!(first.len() > 1, "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn live_transaction_is_examined_again_after_an_idle_time() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, adds(60), None).await.expect("added");
    advance(IDLE).await;
    bank.transactions.add(&id, Vec::new(), None).await.expect("alive");
    bank.faults.record();
    let swept = bank.transactions.sweep(10).await.expect("swept");
    assert_eq!((swept.examined, swept.rolled_back), (1, 0));
    let sent = bank.faults.record();
    let writes = sent.iter().filter(|sent| sent.operation == "UpdateItem");
    assert_eq!(writes.count(), 1, "rows that are young are left alone: {sent:?}");
    let swept = bank.transactions.sweep(10).await.expect("swept");
    assert_eq!(swept.examined, 0);
    advance(IDLE).await;
    let swept = bank.transactions.sweep(10).await.expect("swept");
    assert_eq!((swept.examined, swept.rolled_back), (1, 1));
    bank.assert_clean().await;
}

/// A batch of entries and an image get a new end, once in a while.
#[tokio::test(start_paused = true)]
async fn rows_are_prolonged_not_more_often_than_needed() {
    let bank = Bank::new().await;
    let large = |byte: &str| padded("large", byte, 250_000);
    bank.write(large("o")).await;
    let id = begin(&bank.transactions).await;
    let put = request(Action::Put { item: large("n") });
    let requests = adds(60).into_iter().chain([put]);
    bank.transactions.add(&id, requests.collect(), None).await.expect("added");
    let ends = async || {
        let rows = bank.scan(TRANSACTIONS).await.into_iter().filter(|row| !text(row, "row").starts_with("0#"));
        let end = |row: Item| row["expireAt"].as_n().expect("a number").parse::<u64>().expect("whole");
        rows.map(end).collect::<Vec<_>>()
    };
    let sweep_after = async |hours| {
        advance(Duration::from_hours(hours)).await;
        bank.transactions.add(&id, Vec::new(), None).await.expect("alive");
        let swept = bank.transactions.sweep(10).await.expect("swept");
        assert_eq!((swept.examined, swept.failed, swept.rolled_back), (1, 0, 0));
        ends().await
    };
    let first = ends().await;
    assert_eq!(first.len(), 2, "a batch and an image");
    let later = sweep_after(48).await;
    assert!(first.iter().zip(&later).all(|(first, later)| later - first == 48 * 3600), "{first:?} {later:?}");
    assert_eq!(sweep_after(12).await, later);
    bank.transactions.commit(&id).await.expect("committed");
    bank.assert_clean().await;
}

/// The transaction is committed just before the sweeper decides.
#[tokio::test(start_paused = true)]
async fn sweep_counts_what_another_committed_as_completed() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    advance(IDLE).await;
    let (sweeper, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    let mut work = std::pin::pin!(sweeper.sweep(10));
    faults.record();
    // The first write is the decision. The number of requests before it depends on the shard that comes first.
    faults.at(1, Fault::Held);
    until_reached(&mut work, &faults).await;
    while faults.record().iter().all(|sent| sent.operation != "UpdateItem") {
        faults.at(1, Fault::Held);
        faults.release();
        until_reached(&mut work, &faults).await;
    }
    bank.transactions.commit(&id).await.expect("committed");
    faults.release();
    let swept = work.await.expect("swept");
    assert_eq!((swept.examined, swept.rolled_back, swept.completed), (1, 0, 1), "{swept:?}");
    assert_eq!(bank.balance("a").await, Some(1));
    bank.assert_clean().await;
}
