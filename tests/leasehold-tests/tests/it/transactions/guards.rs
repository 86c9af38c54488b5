//! Conditions of the protocol's writes that a complete run does not show, because other conditions back them up.

use std::fmt::Debug;
use std::time::Duration;

use leasehold_tests::bank::{
    ACCOUNTS, Bank, TRANSACTIONS, account, add, adds, balance_of, begin, delete, get, key, look, put, request, when,
};
use leasehold_tests::{Fault, Faults};
use leasehold_transactions::{
    Action, Error, Isolation, Policy, ReturnValues, State, TransactionId, TransactionRequest,
};

/// Works until the fault that holds the work, or kills it.
pub(super) async fn until_reached<F: Future<Output: Debug> + Unpin>(work: F, faults: &Faults) {
    tokio::select! {
        biased;
        result = work => panic!("it should have stopped: {result:?}"),
        () = faults.reached() => {}
    }
}

/// Deletes an account without a transaction.
async fn remove(bank: &Bank, id: &str) {
    bank.dynamodb.delete_item().table_name(ACCOUNTS).set_key(Some(key(id))).send().await.expect("deleted");
}

/// Longer than any record is kept.
pub(super) const A_YEAR: Duration = Duration::from_hours(24 * 365);

/// A first life of an id: these requests are rolled back, and all rows removed. Returns the copies of the writes.
async fn first_life(bank: &Bank, id: &TransactionId, requests: Vec<TransactionRequest>) -> Faults {
    let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    coordinator.begin(Some(id.clone()), None).await.expect("begun");
    faults.script([Fault::Copied; 40]);
    coordinator.add(id, requests, None).await.expect("added");
    coordinator.rollback(id).await.expect("rolled back");
    faults.script([]);
    bank.expire(A_YEAR).await;
    assert_eq!(bank.scan(TRANSACTIONS).await, []);
    faults
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
    // The other coordinator reads the transaction, decides, and dies.
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
async fn commit_does_not_leave_a_put_behind() {
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

/// Another call of the same transaction does not know the content that the put will leave.
#[tokio::test(start_paused = true)]
async fn update_waits_for_the_put_of_another_call() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    let (sleeper, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    faults.at(6, Fault::Held);
    let mut work = std::pin::pin!(sleeper.add(&id, vec![put("a", 7)], None));
    until_reached(&mut work, &faults).await;
    let early = bank.transactions.add(&id, vec![add("a", 1)], None).await;
    assert!(matches!(early, Err(Error::Throttled(_))), "{early:?}");
    faults.release();
    work.await.expect("put");
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("updated");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(8));
    bank.assert_clean().await;
}

/// The put is applied, and its coordinator died before it recorded that.
#[tokio::test(start_paused = true)]
async fn commit_finds_that_the_puts_are_applied() {
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

/// Clause 4: seen. The put lands between the read of the item and the write that frees it.
#[tokio::test(start_paused = true)]
async fn put_that_comes_after_the_rollback_is_undone() {
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

/// Clause 5: the nonce. Writes of one life of an id arrive in the next one.
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
async fn foreign_put_survives_when_it_replaced_a_locked_item() {
    for commits in [true, false] {
        let bank = Bank::new().await;
        for id in ["replaced", "taken", "kept"] {
            bank.open(id, 1).await;
        }
        let id = begin(&bank.transactions).await;
        let requests = ["replaced", "taken", "kept", "new"].map(|id| add(id, 1));
        bank.transactions.add(&id, requests.into(), None).await.expect("added");
        // Writes without a transaction and without regard to the locks.
        bank.open("replaced", 50).await;
        bank.open("new", 60).await;
        remove(&bank, "taken").await;
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

/// An item that another transaction locks between the read and the lock is not locked again.
#[tokio::test(start_paused = true)]
async fn item_is_locked_only_if_it_is_free() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let (slow, faults) = bank.coordinator(Policy { contention_ms: 200, ..Policy::default() }, Duration::ZERO);
    // The older transaction: the other one will not roll it back within its time.
    let holder = begin(&bank.transactions).await;
    tokio::time::advance(Duration::from_millis(10)).await;
    let id = slow.begin(None, None).await.expect("begun");
    // The table's key, the transaction, the item, the lock.
    faults.at(4, Fault::Held);
    let mut work = std::pin::pin!(slow.add(&id, vec![add("a", 1)], None));
    until_reached(&mut work, &faults).await;
    bank.transactions.add(&holder, vec![add("a", 10)], None).await.expect("added");
    faults.record();
    faults.release();
    let refused = work.await;
    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    assert_eq!(faults.record()[0].body["TableName"], TRANSACTIONS, "the refusal names the holder");
    let item = bank.raw("a").await.expect("there");
    let lock = item["leaseholdTxId"].as_s().expect("a text");
    assert!(lock.starts_with(holder.public().as_str()), "{lock}");
    bank.transactions.commit(&holder).await.expect("committed");
    bank.transactions.rollback(&id).await.expect("rolled back");
    assert_eq!(bank.balance("a").await, Some(11));
    bank.assert_clean().await;
}

/// Clause 2: version. A request that is added during a commit belongs to it, or is refused.
#[tokio::test(start_paused = true)]
async fn commit_is_of_all_that_was_added_before() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the item; then the decision.
    faults.at(3, Fault::Held);
    let mut work = std::pin::pin!(slow.commit(&id));
    until_reached(&mut work, &faults).await;
    bank.transactions.add(&id, vec![add("b", 1)], None).await.expect("still open");
    faults.release();
    work.await.expect("committed");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(1), Some(1)));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn foreign_put_is_unchanged_when_it_replaced_a_locked_item() {
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
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert!(matches!(bank.transactions.commit(&id).await, Err(Error::RolledBack { .. })));
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 50)]);
    bank.assert_clean().await;
}

/// Two coordinators that add to the same transaction at the same time do not overwrite each other.
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

/// From its decision on, a transaction is visible as committed, although its items are not free yet.
#[tokio::test(start_paused = true)]
async fn readers_see_the_decision_before_the_completion() {
    let bank = Bank::new().await;
    bank.open("gone", 1).await;
    bank.open("00", 1).await;
    let id = begin(&bank.transactions).await;
    let requests = (0..49).map(|number| add(&format!("{number:02}"), 1)).chain([delete("gone")]);
    bank.transactions.add(&id, requests.collect(), None).await.expect("added");
    let seen = async |isolation| {
        let looks = ["gone", "00", "48"].map(look).into();
        let items = bank.transactions.reader.read(looks, isolation).await.expect("read");
        items.iter().map(|item| item.as_ref().map(balance_of)).collect::<Vec<_>>()
    };
    assert_eq!(seen(Isolation::Committed).await, [Some(1), Some(1), None]);
    let (dying, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    faults.at(3, Fault::DiesAfter);
    until_reached(std::pin::pin!(dying.commit(&id)), &faults).await;
    assert_eq!(seen(Isolation::Committed).await, [None, Some(2), Some(1)]);
    assert_eq!(seen(Isolation::Uncommitted).await, [Some(1), Some(2), Some(1)], "it is there until the completion");
    bank.transactions.commit(&id).await.expect("completed");
    assert_eq!(seen(Isolation::Uncommitted).await, [None, Some(2), Some(1)]);
    bank.assert_clean().await;
}

/// Clause 1: pending. Two coordinators decide differently, and both have read the same version.
#[tokio::test(start_paused = true)]
async fn decision_is_not_taken_back() {
    for commits_first in [true, false] {
        let bank = Bank::new().await;
        bank.open("a", 1).await;
        let id = begin(&bank.transactions).await;
        bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
        let (slow, slows_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        // The transaction, a commit's item; then the decision.
        slows_faults.at(if commits_first { 2 } else { 3 }, Fault::Held);
        let mut late =
            std::pin::pin!(async { if commits_first { slow.rollback(&id).await } else { slow.commit(&id).await } });
        until_reached(&mut late, &slows_faults).await;
        let (dying, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        faults.at(if commits_first { 3 } else { 2 }, Fault::DiesAfter);
        let mut first =
            std::pin::pin!(async { if commits_first { dying.commit(&id).await } else { dying.rollback(&id).await } });
        until_reached(&mut first, &faults).await;
        slows_faults.release();
        let refused = late.await;
        if commits_first {
            assert!(matches!(refused, Err(Error::Committed)), "{refused:?}");
        } else {
            assert!(matches!(refused, Err(Error::RolledBack { .. })), "{refused:?}");
        }
        assert_eq!(bank.balance("a").await, Some(if commits_first { 2 } else { 1 }));
        bank.assert_clean().await;
    }
}

/// Clause 4: seen. Another writer replaces an item that the transaction is about to change again.
#[tokio::test(start_paused = true)]
async fn second_write_finds_its_item_overwritten() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item; then it would change.
    faults.at(4, Fault::Held);
    let mut work = std::pin::pin!(slow.add(&id, vec![add("a", 5)], None));
    until_reached(&mut work, &faults).await;
    bank.open("a", 50).await;
    faults.release();
    let refused = work.await;
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 50)]);
    bank.assert_clean().await;
}

/// A rollback restores the state that was read before the lock, so that state must still be current. So must the state
/// of which a condition fails.
#[tokio::test(start_paused = true)]
async fn item_that_comes_or_goes_is_read_again() {
    for (comes, condition) in
        [(true, None), (true, Some("attribute_exists(id)")), (false, None), (false, Some("attribute_not_exists(id)"))]
    {
        let bank = Bank::new().await;
        if !comes {
            bank.open("a", 1).await;
        }
        let id = begin(&bank.transactions).await;
        let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        // The table's key, the transaction, the item; then it would lock and change.
        faults.at(4, Fault::Held);
        let request = TransactionRequest { condition: condition.map(str::to_owned), ..add("a", 1) };
        let mut work = std::pin::pin!(slow.add(&id, vec![request], None));
        until_reached(&mut work, &faults).await;
        if comes {
            bank.open("a", 5).await;
        } else {
            remove(&bank, "a").await;
        }
        faults.release();
        work.await.expect("added");
        bank.transactions.rollback(&id).await.expect("rolled back");
        let expected = if comes { vec![account("a", 5)] } else { Vec::new() };
        assert_eq!(bank.scan(ACCOUNTS).await, expected);
        bank.assert_clean().await;
    }
}

/// Clause 5: the nonce of an add.
#[tokio::test(start_paused = true)]
async fn late_add_of_an_earlier_life_locks_nothing() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = TransactionId::fresh();
    let faults = first_life(&bank, &id, vec![add("a", 1)]).await;
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
    assert!(faults.deliver_copies().await > 3);
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 1)]);
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert_eq!((status.state, status.requests.len()), (State::Pending, 0), "it took nothing in");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(1));
    bank.assert_clean().await;
}

/// Clause 5: the nonce of the write that records applied puts.
#[tokio::test(start_paused = true)]
async fn late_note_of_applied_puts_is_void() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = TransactionId::fresh();
    let faults = first_life(&bank, &id, vec![put("a", 5)]).await;
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
    let (sleeper, sleepers_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item, the lock, the item again; then it would apply.
    sleepers_faults.at(6, Fault::Held);
    let mut work = std::pin::pin!(sleeper.add(&id, vec![put("a", 7)], None));
    until_reached(&mut work, &sleepers_faults).await;
    assert!(faults.deliver_copies().await > 4);
    let refused = bank.transactions.commit(&id).await;
    assert!(matches!(refused, Err(Error::RolledBack { .. })), "{refused:?}");
    sleepers_faults.release();
    let _ = work.await;
    assert_eq!(bank.balance("a").await, Some(1));
    bank.assert_clean().await;
}

/// The caller learns that its try has ended, not that there is none.
#[tokio::test(start_paused = true)]
async fn begin_after_its_rollback_is_rolled_back() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let ended = async || {
        let id = TransactionId::fresh();
        let refused = bank.transactions.rollback(&id).await;
        assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
        Some(id)
    };
    let many = || vec![add("a", 1), add("b", 1)];
    let answers = [
        bank.transactions.begin(ended().await, None).await.err(),
        bank.transactions.begin_with(ended().await, None, many()).await.err(),
        bank.transactions.run(ended().await, None, vec![add("a", 1)]).await.err(),
        bank.transactions.run(ended().await, None, many()).await.err(),
        bank.transactions.run(ended().await, None, vec![get("a")]).await.err(),
        bank.transactions.run(ended().await, None, vec![get("a"), add("b", 1)]).await.err(),
    ];
    for answer in answers {
        assert!(matches!(answer, Some(Error::RolledBack { .. })), "{answer:?}");
    }
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(1), None));
    bank.assert_clean().await;
}

/// Clause 5: the nonce of the end.
#[tokio::test(start_paused = true)]
async fn late_end_of_an_earlier_life_keeps_no_lock() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = TransactionId::fresh();
    let faults = first_life(&bank, &id, vec![add("a", 1)]).await;
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let (dying, dyings_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the decision.
    dyings_faults.at(2, Fault::DiesAfter);
    until_reached(std::pin::pin!(dying.rollback(&id)), &dyings_faults).await;
    assert!(faults.deliver_copies().await > 3);
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(bank.transactions.sweeper.sweep(100).await.expect("swept").completed, 1);
    bank.assert_clean().await;
}

/// Clause 5: the nonce that a coordinator works with.
#[tokio::test(start_paused = true)]
async fn rollback_of_an_earlier_life_ends_no_later_one() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction; then the decision.
    faults.at(2, Fault::Held);
    let mut late = std::pin::pin!(slow.rollback(&id));
    until_reached(&mut late, &faults).await;
    bank.transactions.rollback(&id).await.expect("rolled back");
    bank.expire(A_YEAR).await;
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    faults.release();
    let refused = late.await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(1));
    bank.assert_clean().await;
}

/// Clause 5: the nonce of a lock. The item of an earlier life is restored from a backup.
#[tokio::test(start_paused = true)]
async fn lock_of_an_earlier_life_is_a_stray() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let copy = bank.raw("a").await;
    bank.transactions.rollback(&id).await.expect("rolled back");
    bank.expire(A_YEAR).await;
    bank.dynamodb.put_item().table_name(ACCOUNTS).set_item(copy).send().await.expect("restored");
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
    let read = bank.transactions.reader.read(vec![look("a")], Isolation::Committed).await;
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    let written = bank.transactions.run(None, None, vec![add("a", 1)]).await;
    assert!(matches!(written, Err(Error::Corrupt { .. })), "{written:?}");
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert_eq!(status.state, State::Pending, "the later life has no lock and is left alone");
}

/// Clause 5: the nonce of batches. TTL removed the record before them.
#[tokio::test(start_paused = true)]
async fn batches_of_an_earlier_life_mean_nothing() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, adds(60), None).await.expect("added");
    bank.transactions.rollback(&id).await.expect("rolled back");
    for row in bank.scan(TRANSACTIONS).await {
        if row["row"].as_s().expect("a text").starts_with("0#") {
            bank.remove_row(row).await;
        }
    }
    assert!(!bank.scan(TRANSACTIONS).await.is_empty(), "the batches are there");
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
    bank.transactions.add(&id, vec![add("new", 1)], None).await.expect("added");
    bank.transactions.commit(&id).await.expect("committed");
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert_eq!((status.state, status.finished, status.requests.len()), (State::Committed, true, 1));
}

/// A sweeper's write that postpones a transaction arrives when the transaction is over.
#[tokio::test(start_paused = true)]
async fn late_put_off_indexes_nothing_that_is_over() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    tokio::time::sleep(Duration::from_secs(61)).await;
    bank.transactions.add(&id, Vec::new(), None).await.expect("alive");
    let (sweeper, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    faults.script([Fault::Copied; 40]);
    assert_eq!(sweeper.sweeper.sweep(100).await.expect("swept").examined, 1);
    bank.transactions.commit(&id).await.expect("committed");
    assert!(faults.deliver_copies().await > 9);
    bank.assert_clean().await;
}

/// The record of a stuck item arrives when the transaction is over, and again in a later life of its id.
#[tokio::test(start_paused = true)]
async fn late_note_of_a_stuck_item_is_void() {
    for is_later_life in [true, false] {
        let bank = Bank::new().await;
        let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        faults.script([Fault::Copied; 60]);
        let id = bank.stick(&coordinator, "a").await;
        faults.script([]);
        // Another writer deletes the item.
        remove(&bank, "a").await;
        bank.transactions.rollback(&id).await.expect("finished");
        if is_later_life {
            bank.expire(A_YEAR).await;
            bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
        }
        assert!(faults.deliver_copies().await > 5);
        let status = bank.transactions.status(&id.public()).await.expect("known");
        assert_eq!((status.finished, status.stuck), (!is_later_life, None));
    }
}

/// A one-shot that only reads takes the long path where a transaction holds an item.
#[tokio::test(start_paused = true)]
async fn one_shot_that_reads_sees_no_open_change() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let (_, answers) = bank.transactions.run(None, None, vec![get("a")]).await.expect("read");
    assert_eq!(answers[0].item.as_ref().map(balance_of), Some(1));
    bank.assert_clean().await;
}

/// A lock that was read, and is gone when its transaction is looked up, is no stray.
#[tokio::test(start_paused = true)]
async fn item_that_is_freed_meanwhile_is_read_again() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let holder = begin(&bank.transactions).await;
    bank.transactions.add(&holder, vec![add("a", 1)], None).await.expect("added");
    let id = begin(&bank.transactions).await;
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item; then the transaction that holds it.
    faults.at(4, Fault::Held);
    let mut work = std::pin::pin!(slow.add(&id, vec![add("a", 10)], None));
    until_reached(&mut work, &faults).await;
    let (reader, readers_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the item; then the transaction that holds it.
    readers_faults.at(3, Fault::Held);
    let mut read = std::pin::pin!(reader.reader.read(vec![look("a")], Isolation::Committed));
    until_reached(&mut read, &readers_faults).await;
    bank.transactions.commit(&holder).await.expect("committed");
    bank.expire(A_YEAR).await;
    for faults in [&faults, &readers_faults] {
        faults.release();
    }
    let items = read.await.expect("read");
    assert_eq!(items[0].as_ref().map(balance_of), Some(2));
    work.await.expect("added");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(12));
    bank.assert_clean().await;
}

/// Only its own call has the content of a put.
#[tokio::test(start_paused = true)]
async fn put_of_another_call_is_left_to_that_call() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    let (sleeper, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item, the lock, the item again; then it would apply.
    faults.at(6, Fault::Held);
    let mut work = std::pin::pin!(sleeper.add(&id, vec![put("a", 7)], None));
    until_reached(&mut work, &faults).await;
    bank.transactions.add(&id, vec![get("a")], None).await.expect("read");
    faults.release();
    work.await.expect("added");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(7));
    bank.assert_clean().await;
}

/// A condition on an item that the transaction has changed is one on the changed item.
#[tokio::test(start_paused = true)]
async fn condition_on_a_changed_item_may_fail() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let mut request = when(add("a", 1), "balance = :amount");
    request.return_item_on_failure = true;
    let refused = bank.transactions.add(&id, vec![request], None).await;
    let Err(Error::ConditionFailed { request: 0, item, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(item, Some(account("a", 2)));
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert_eq!((status.state, status.finished), (State::RolledBack, true));
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 1)]);
    bank.assert_clean().await;
}

/// A check of an item that the transaction inserted does not replace the note of the insert.
#[tokio::test(start_paused = true)]
async fn inserted_item_stays_when_it_is_checked() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![put("new", 5)], None).await.expect("added");
    let check = when(request(Action::Check { key: key("new") }), "attribute_exists(balance)");
    bank.transactions.add(&id, vec![check], None).await.expect("checked");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.scan(ACCOUNTS).await, [account("new", 5)]);
    bank.assert_clean().await;
}

/// A repeat of a call whose transaction is committed must not wait for other transactions, nor roll them back.
#[tokio::test(start_paused = true)]
async fn repeat_after_the_commit_rolls_nobody_back() {
    let bank = Bank::new().await;
    let id = TransactionId::fresh();
    let requests = || vec![TransactionRequest { return_values: ReturnValues::AllNew, ..add("a", 1) }];
    bank.transactions.run(Some(id.clone()), None, requests()).await.expect("done");
    let other = begin(&bank.transactions).await;
    bank.transactions.add(&other, vec![add("a", 10)], None).await.expect("added");
    let repeat = bank.transactions.run(Some(id), None, requests()).await;
    assert!(matches!(repeat, Err(Error::Committed)), "{repeat:?}");
    bank.transactions.commit(&other).await.expect("nobody rolled it back");
    assert_eq!(bank.balance("a").await, Some(11));
    bank.assert_clean().await;
}

/// A repeat is known where the record does not list the items.
#[tokio::test(start_paused = true)]
async fn repeat_of_a_large_one_shot_is_known_by_its_digest() {
    let bank = Bank::new().await;
    let id = TransactionId::fresh();
    for _ in 0..2 {
        let (_, answers) = bank.transactions.run(Some(id.clone()), None, adds(60)).await.expect("done");
        assert_eq!(answers.len(), 60);
    }
    assert_eq!((bank.balance("0").await, bank.balance("59").await), (Some(1), Some(1)));
    bank.assert_clean().await;
}

/// The first write of a transaction may come with a batch of entries.
#[tokio::test(start_paused = true)]
async fn transaction_may_begin_with_a_batch() {
    let bank = Bank::new().await;
    let (id, _) = bank.transactions.begin_with(None, None, adds(60)).await.expect("begun");
    bank.transactions.commit(&id).await.expect("committed");
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert_eq!((status.finished, status.requests.len()), (true, 60));
    bank.assert_clean().await;
}

/// A transaction counts as idle from its first lock, not from the time when it began to wait for it.
#[tokio::test(start_paused = true)]
async fn wait_for_the_first_lock_is_work() {
    let bank = Bank::new().await;
    let idle = begin(&bank.transactions).await;
    bank.transactions.add(&idle, vec![add("a", 1)], None).await.expect("added");
    tokio::time::advance(Duration::from_millis(10)).await;
    let (id, _) = bank.transactions.begin_with(None, None, vec![add("a", 10)]).await.expect("after the other");
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert!(status.last_worked_at >= status.created_at + 1000, "{status:?}");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(10));
}

/// Another call begins the transaction and rolls it back while a rollback, which found none, spends the id.
#[tokio::test(start_paused = true)]
async fn rollback_finds_a_transaction_that_began_meanwhile() {
    let bank = Bank::new().await;
    let id = TransactionId::fresh();
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, which there is not yet; then the note that there is none.
    faults.at(2, Fault::Held);
    let mut work = std::pin::pin!(slow.rollback(&id));
    until_reached(&mut work, &faults).await;
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
    bank.transactions.rollback(&id).await.expect("rolled back");
    faults.release();
    work.await.expect("it is rolled back");
    bank.assert_clean().await;
}

/// A read of a transaction may see its record before its entries.
#[tokio::test(start_paused = true)]
async fn transaction_is_read_again_until_it_is_whole() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, adds(60), None).await.expect("added");
    let rows = bank.scan(TRANSACTIONS).await;
    let entries = rows.into_iter().find(|row| !row["row"].as_s().expect("a text").starts_with("0#")).expect("a batch");
    // Out of sight, for now.
    bank.remove_row(entries.clone()).await;
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    faults.record();
    faults.at(2, Fault::Held);
    let mut work = std::pin::pin!(slow.commit(&id));
    until_reached(&mut work, &faults).await;
    let sent: Vec<_> = faults.record().into_iter().map(|sent| sent.operation).collect();
    assert_eq!(sent, ["Query", "Query"]);
    bank.dynamodb.put_item().table_name(TRANSACTIONS).set_item(Some(entries)).send().await.expect("visible");
    faults.release();
    work.await.expect("committed");
    assert_eq!(bank.scan(ACCOUNTS).await.len(), 60);
    bank.assert_clean().await;
}
