//! Conditions of the protocol's writes of which a whole run shows nothing, because others stand behind them.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_tests::Fault;
use leasehold_tests::bank::{ACCOUNTS, Bank, account, add, begin};
use leasehold_transactions::{Error, Policy};

/// Fifty items are more than fit into one call with the decision, so that the decision is a write by itself.
#[tokio::test(start_paused = true)]
async fn once_it_is_decided_nothing_is_applied() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, (0..49).map(|number| add(&format!("{number}"), 1)).collect()).await.expect("added");
    bank.open("z", 1).await;
    let (sleeper, sleepers_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item, the lock, the item again; then it would apply.
    sleepers_faults.at(6, Fault::Held);
    let mut work = std::pin::pin!(sleeper.add(&id, vec![add("z", 1)]));
    let (other, others_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    tokio::select! {
        biased;
        result = &mut work => panic!("it should sleep: {result:?}"),
        () = sleepers_faults.reached() => {}
    }
    // The other one reads the transaction, decides, and dies.
    others_faults.at(2, Fault::DiesAfter);
    tokio::select! {
        biased;
        result = other.rollback(&id) => panic!("it should have died: {result:?}"),
        () = others_faults.reached() => {}
    }
    let locked = bank.raw("z").await;
    assert!(locked.as_ref().is_some_and(|item| item.contains_key("leaseholdTxId")), "{locked:?}");
    // The sleeper wakes and dies before the request after that.
    sleepers_faults.at(1, Fault::DiesBefore);
    sleepers_faults.release();
    tokio::select! {
        biased;
        result = &mut work => panic!("it should have died: {result:?}"),
        () = sleepers_faults.reached() => {}
    }
    assert_eq!(bank.raw("z").await, locked, "it is not applied any more");
    bank.transactions.rollback(&id).await.expect("rolled back");
    assert_eq!(bank.scan(ACCOUNTS).await, [account("z", 1)]);
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_writer_put_over_a_locked_item_is_left_alone() {
    for commits in [true, false] {
        let bank = Bank::new().await;
        for id in ["replaced", "taken", "kept"] {
            bank.open(id, 1).await;
        }
        let id = begin(&bank.transactions).await;
        let requests = ["replaced", "taken", "kept", "new"].map(|id| add(id, 1));
        bank.transactions.add(&id, requests.into()).await.expect("added");
        // Past all transactions, and without a look at the locks.
        bank.open("replaced", 50).await;
        bank.open("new", 60).await;
        let key = leasehold_tests::bank::key("taken");
        bank.dynamodb.delete_item().table_name(ACCOUNTS).set_key(Some(key)).send().await.expect("deleted");
        if commits {
            bank.transactions.commit(&id).await.expect("committed");
        } else {
            bank.transactions.rollback(&id).await.expect("rolled back");
        }
        let balances = [bank.balance("replaced").await, bank.balance("taken").await, bank.balance("new").await];
        assert_eq!(balances, [Some(50), None, Some(60)]);
        assert_eq!(bank.balance("kept").await, Some(if commits { 2 } else { 1 }));
        bank.assert_clean().await;
    }
}

/// What another transaction has locked between the look at it and the lock is not locked again.
#[tokio::test(start_paused = true)]
async fn an_item_is_locked_only_if_it_is_free() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let (slow, faults) = bank.coordinator(Policy { contention_ms: 200, ..Policy::default() }, Duration::ZERO);
    // The older one: the other will not move it out of the way within its time.
    let holder = begin(&bank.transactions).await;
    tokio::time::advance(Duration::from_millis(10)).await;
    let id = slow.begin(None).await.expect("begun");
    // The table's key, the transaction, the item, the lock.
    faults.at(4, Fault::Held);
    let mut work = std::pin::pin!(slow.add(&id, vec![add("a", 1)]));
    tokio::select! {
        biased;
        result = &mut work => panic!("it should sleep: {result:?}"),
        () = faults.reached() => {}
    }
    bank.transactions.add(&holder, vec![add("a", 10)]).await.expect("added");
    faults.release();
    let refused = work.await;
    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    let item = bank.raw("a").await.expect("there");
    assert_eq!(item["leaseholdTxId"], AttributeValue::S(holder.to_string()));
    bank.transactions.commit(&holder).await.expect("committed");
    bank.transactions.rollback(&id).await.expect("rolled back");
    assert_eq!(bank.balance("a").await, Some(11));
    bank.assert_clean().await;
}

/// What is added while a commit is under way belongs to it, or is refused.
#[tokio::test(start_paused = true)]
async fn a_commit_is_of_all_that_was_added_before() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)]).await.expect("added");
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction; then the decision, with all that follows.
    faults.at(2, Fault::Held);
    let mut work = std::pin::pin!(slow.commit(&id));
    tokio::select! {
        biased;
        result = &mut work => panic!("it should sleep: {result:?}"),
        () = faults.reached() => {}
    }
    bank.transactions.add(&id, vec![add("b", 1)]).await.expect("still open");
    faults.release();
    work.await.expect("committed");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(1), Some(1)));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_writer_put_over_a_locked_item_is_not_changed() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item, the lock, the item again; then it would apply.
    faults.at(6, Fault::Held);
    let mut work = std::pin::pin!(slow.add(&id, vec![add("a", 1)]));
    tokio::select! {
        biased;
        result = &mut work => panic!("it should sleep: {result:?}"),
        () = faults.reached() => {}
    }
    bank.open("a", 50).await;
    faults.release();
    let refused = work.await;
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    assert!(matches!(bank.transactions.commit(&id).await, Err(Error::RolledBack { .. })));
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 50)]);
    bank.assert_clean().await;
}

/// A rollback that took the items for unchanged does not let go of them changed.
#[tokio::test(start_paused = true)]
async fn what_was_applied_meanwhile_is_undone() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    let (dying, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    faults.at(6, Fault::DiesBefore);
    tokio::select! {
        biased;
        result = dying.add(&id, vec![add("a", 1)]) => panic!("it should have died: {result:?}"),
        () = faults.reached() => {}
    }
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction; then the decision, with all that follows.
    faults.at(2, Fault::Held);
    let mut work = std::pin::pin!(slow.rollback(&id));
    tokio::select! {
        biased;
        result = &mut work => panic!("it should sleep: {result:?}"),
        () = faults.reached() => {}
    }
    bank.transactions.add(&id, vec![add("a", 1)]).await.expect("goes on where the other one died");
    assert_eq!(bank.balance("a").await, Some(2));
    faults.release();
    work.await.expect("rolled back");
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 1)]);
    bank.assert_clean().await;
}

/// Two that add to the same transaction at the same time do not take each other's place.
#[tokio::test(start_paused = true)]
async fn two_may_add_at_the_same_time() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item, the lock.
    faults.at(4, Fault::Held);
    let mut work = std::pin::pin!(slow.add(&id, vec![add("a", 1)]));
    tokio::select! {
        biased;
        result = &mut work => panic!("it should sleep: {result:?}"),
        () = faults.reached() => {}
    }
    bank.transactions.add(&id, vec![add("b", 1)]).await.expect("added");
    faults.release();
    work.await.expect("added");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(1), Some(1)));
    bank.assert_clean().await;
}
