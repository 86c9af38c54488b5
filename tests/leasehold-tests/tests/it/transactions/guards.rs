//! Conditions of the protocol's writes of which a whole run shows nothing, because others stand behind them.

use std::fmt::Debug;
use std::time::Duration;

use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS, account, add, balance_of, begin, delete, look, put};
use leasehold_tests::{Fault, Faults};
use leasehold_transactions::{Error, Isolation, Policy, TransactionId};

/// Works on until the fault that holds it, or that it dies by.
async fn until_reached<F: Future<Output: Debug> + Unpin>(work: F, faults: &Faults) {
    tokio::select! {
        biased;
        result = work => panic!("it should have stopped: {result:?}"),
        () = faults.reached() => {}
    }
}

/// Clause 1: pending.
#[tokio::test(start_paused = true)]
async fn nothing_is_locked_after_the_decision() {
    let bank = Bank::new().await;
    bank.open("z", 1).await;
    let id = begin(&bank.transactions).await;
    let (sleeper, sleepers_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item; then it would lock and change.
    sleepers_faults.at(4, Fault::Held);
    let mut work = std::pin::pin!(sleeper.add(&id, vec![add("z", 1)], None));
    until_reached(&mut work, &sleepers_faults).await;
    let (other, others_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The other one reads the transaction, decides, and dies.
    others_faults.at(2, Fault::DiesAfter);
    until_reached(std::pin::pin!(other.rollback(&id)), &others_faults).await;
    sleepers_faults.at(1, Fault::DiesBefore);
    sleepers_faults.release();
    until_reached(&mut work, &sleepers_faults).await;
    assert_eq!(bank.raw("z").await, Some(account("z", 1)), "it is not locked any more");
    bank.transactions.rollback(&id).await.expect("rolled back");
    bank.assert_clean().await;
}

/// Clause 3: unapplied.
#[tokio::test(start_paused = true)]
async fn a_commit_does_not_leave_a_put_behind() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    bank.open("b", 1).await;
    let id = begin(&bank.transactions).await;
    let (sleeper, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the items, the lock, the item again; then it would apply.
    faults.at(6, Fault::Held);
    let mut work = std::pin::pin!(sleeper.add(&id, vec![add("b", 1), put("a", 7)], None));
    until_reached(&mut work, &faults).await;
    let refused = bank.transactions.commit(&id).await;
    assert!(matches!(refused, Err(Error::RolledBack { .. })), "{refused:?}");
    faults.release();
    let refused = work.await;
    assert!(matches!(refused, Err(Error::RolledBack { .. })), "{refused:?}");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(1), Some(1)));
    bank.assert_clean().await;
}

/// The put is applied, and whoever did it died before saying so.
#[tokio::test(start_paused = true)]
async fn a_commit_finds_that_the_puts_are_applied() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    let (dying, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    faults.at(6, Fault::DiesAfter);
    until_reached(std::pin::pin!(dying.add(&id, vec![put("a", 7)], None)), &faults).await;
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(7));
    bank.assert_clean().await;
}

/// Clause 4: seen. The put lands between the look at the item and the write that frees it.
#[tokio::test(start_paused = true)]
async fn a_put_that_comes_after_the_rollback_is_undone() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    let (sleeper, sleepers_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    sleepers_faults.at(6, Fault::Held);
    let mut put_late = std::pin::pin!(sleeper.add(&id, vec![put("a", 7)], None));
    until_reached(&mut put_late, &sleepers_faults).await;
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the decision, the item; then it would free the item.
    faults.at(4, Fault::Held);
    let mut rollback = std::pin::pin!(slow.rollback(&id));
    until_reached(&mut rollback, &faults).await;
    sleepers_faults.at(1, Fault::DiesBefore);
    sleepers_faults.release();
    until_reached(&mut put_late, &sleepers_faults).await;
    assert_eq!(bank.balance("a").await, Some(7), "it landed");
    faults.release();
    rollback.await.expect("rolled back");
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 1)]);
    bank.assert_clean().await;
}

/// Clause 5: the nonce. Writes of one life of an id come in the next one.
#[tokio::test(start_paused = true)]
async fn late_writes_of_an_earlier_life_change_nothing() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    bank.open("b", 1).await;
    let id = TransactionId::fresh();
    let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    for earlier in [true, false] {
        coordinator.begin(Some(id.clone()), None).await.expect("begun");
        if earlier {
            faults.script([Fault::Copied; 20]);
        }
        coordinator.add(&id, vec![add("a", 1), put("b", 7)], None).await.expect("added");
        if earlier {
            coordinator.rollback(&id).await.expect("rolled back");
            bank.expire(Duration::from_hours(24 * 365)).await;
            assert_eq!(bank.scan(TRANSACTIONS).await, []);
        }
    }
    assert!(faults.deliver_copies().await > 5);
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(2), Some(7)));
    coordinator.commit(&id).await.expect("committed");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(2), Some(7)));
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
        bank.transactions.add(&id, requests.into(), None).await.expect("added");
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
    let id = slow.begin(None, None).await.expect("begun");
    // The table's key, the transaction, the item, the lock.
    faults.at(4, Fault::Held);
    let mut work = std::pin::pin!(slow.add(&id, vec![add("a", 1)], None));
    until_reached(&mut work, &faults).await;
    bank.transactions.add(&holder, vec![add("a", 10)], None).await.expect("added");
    faults.release();
    let refused = work.await;
    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    let item = bank.raw("a").await.expect("there");
    let lock = item["leaseholdTxId"].as_s().expect("a text");
    assert!(lock.starts_with(holder.public().as_str()), "{lock}");
    bank.transactions.commit(&holder).await.expect("committed");
    bank.transactions.rollback(&id).await.expect("rolled back");
    assert_eq!(bank.balance("a").await, Some(11));
    bank.assert_clean().await;
}

/// Clause 2: version. What is added while a commit is under way belongs to it, or is refused.
#[tokio::test(start_paused = true)]
async fn a_commit_is_of_all_that_was_added_before() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction; then the decision.
    faults.at(2, Fault::Held);
    let mut work = std::pin::pin!(slow.commit(&id));
    until_reached(&mut work, &faults).await;
    bank.transactions.add(&id, vec![add("b", 1)], None).await.expect("still open");
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
    let mut work = std::pin::pin!(slow.add(&id, vec![put("a", 7)], None));
    until_reached(&mut work, &faults).await;
    bank.open("a", 50).await;
    faults.release();
    let refused = work.await;
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    assert!(matches!(bank.transactions.commit(&id).await, Err(Error::RolledBack { .. })));
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 50)]);
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
    let mut work = std::pin::pin!(slow.add(&id, vec![add("a", 1)], None));
    until_reached(&mut work, &faults).await;
    bank.transactions.add(&id, vec![add("b", 1)], None).await.expect("added");
    faults.release();
    work.await.expect("added");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(1), Some(1)));
    bank.assert_clean().await;
}

/// From its decision on, a transaction is seen as committed, though its items are not free yet.
#[tokio::test(start_paused = true)]
async fn what_is_decided_is_seen_before_it_is_completed() {
    let bank = Bank::new().await;
    bank.open("gone", 1).await;
    bank.open("00", 1).await;
    let id = begin(&bank.transactions).await;
    let requests = (0..49).map(|number| add(&format!("{number:02}"), 1)).chain([delete("gone")]);
    bank.transactions.add(&id, requests.collect(), None).await.expect("added");
    let seen = async |isolation| {
        let looks = ["gone", "00", "48"].map(look).into();
        let items = bank.transactions.read(looks, isolation).await.expect("read");
        items.iter().map(|item| item.as_ref().map(balance_of)).collect::<Vec<_>>()
    };
    assert_eq!(seen(Isolation::Committed).await, [Some(1), Some(1), None]);
    let (dying, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    faults.at(2, Fault::DiesAfter);
    until_reached(std::pin::pin!(dying.commit(&id)), &faults).await;
    assert_eq!(seen(Isolation::Committed).await, [None, Some(2), Some(1)]);
    assert_eq!(seen(Isolation::Uncommitted).await, [Some(1), Some(2), Some(1)], "it is there until the completion");
    bank.transactions.commit(&id).await.expect("completed");
    assert_eq!(seen(Isolation::Uncommitted).await, [None, Some(2), Some(1)]);
    bank.assert_clean().await;
}
