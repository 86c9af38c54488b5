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
    for rolls_back in [false, true] {
        advance(IDLE).await;
        for (limit, examined, more) in [(15, 15, true), (1, 1, false), (1, 0, false)] {
            let swept = bank.transactions.sweeper.sweep(limit).await.expect("swept");
            let (watched, rolled_back) = if rolls_back { (0, examined) } else { (examined, 0) };
            let expected = (examined, watched, rolled_back, more);
            assert_eq!((swept.examined, swept.watched, swept.rolled_back, swept.more), expected, "{swept:?}");
        }
    }
}

/// Sweepers that start together begin with different shards.
#[tokio::test(start_paused = true)]
async fn sweeps_begin_with_any_shard() {
    let bank = Bank::new().await;
    let mut first = BTreeSet::new();
    for _ in 0..40 {
        bank.faults.record();
        bank.transactions.sweeper.sweep(1).await.expect("swept");
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
    let swept = bank.transactions.sweeper.sweep(10).await.expect("swept");
    assert_eq!((swept.examined, swept.rolled_back), (1, 0));
    let sent = bank.faults.record();
    let writes = sent.iter().filter(|sent| sent.operation == "UpdateItem");
    assert_eq!(writes.count(), 1, "rows that are young are left alone: {sent:?}");
    let swept = bank.transactions.sweeper.sweep(10).await.expect("swept");
    assert_eq!(swept.examined, 0);
    advance(IDLE).await;
    let swept = bank.transactions.sweeper.sweep(10).await.expect("swept");
    assert_eq!((swept.examined, swept.rolled_back), (1, 1), "it was seen unchanged for an idle time");
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
        let swept = bank.transactions.sweeper.sweep(10).await.expect("swept");
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
    let (sweeper, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    advance(IDLE).await;
    assert_eq!(sweeper.sweeper.sweep(10).await.expect("swept").watched, 1);
    advance(IDLE).await;
    let mut work = std::pin::pin!(sweeper.sweeper.sweep(10));
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

/// A sweeper whose clock is ahead, or that has just begun, has not seen yet that nobody works on a transaction.
#[tokio::test(start_paused = true)]
async fn sweeper_ends_nothing_when_its_clock_is_ahead() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let (ahead, _) = bank.coordinator(Policy::default(), Duration::from_secs(90));
    for _ in 0..5 {
        let swept = ahead.sweeper.sweep(10).await.expect("swept");
        assert_eq!(swept.rolled_back, 0, "{swept:?}");
        advance(Duration::from_secs(10)).await;
        bank.transactions.add(&id, Vec::new(), None).await.expect("alive");
    }
    advance(IDLE).await;
    // Another process looks for the first time, and this one for the first time since the last sign of life.
    let (other, _) = bank.coordinator(Policy::default(), Duration::from_hours(24));
    for sweeper in [&ahead, &other] {
        assert_eq!(sweeper.sweeper.sweep(10).await.expect("swept").rolled_back, 0);
    }
    advance(2 * IDLE).await;
    assert_eq!(ahead.sweeper.sweep(10).await.expect("swept").rolled_back, 1);
    bank.assert_clean().await;
}

/// A transaction that another clock began long ago, as it seems, is not ended sooner than a new one.
#[tokio::test(start_paused = true)]
async fn conflict_is_judged_by_the_judges_own_time() {
    for ahead in [Duration::ZERO, Duration::from_secs(90)] {
        let bank = Bank::new().await;
        let holder = begin(&bank.transactions).await;
        bank.transactions.add(&holder, vec![add("a", 1)], None).await.expect("added");
        advance(Duration::from_millis(10)).await;
        let (judge, _) = bank.coordinator(Policy::default(), ahead);
        let other = begin(&bank.transactions).await;
        let start = tokio::time::Instant::now();
        judge.add(&other, vec![add("a", 10)], None).await.expect("the holder gave no sign of life");
        let waited = start.elapsed().as_millis();
        assert!((1000..2200).contains(&waited), "it waited {waited} ms");
        judge.commit(&other).await.expect("committed");
        bank.assert_clean().await;
    }
}
