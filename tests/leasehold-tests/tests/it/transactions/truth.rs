//! What callers and readers are told is true: about committed states, about what a commit contains, about refusals.

use std::time::Duration;

use leasehold_tests::Fault;
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS, add, balance_of, begin, delete, get, key, look, put};
use leasehold_transactions::{Error, Expected, Isolation, ListRequest, Policy, State, TransactionId, Transactions};

use super::guards::{A_YEAR, until_reached};

/// Reads the account `a` by a get or by a listing.
async fn seen(transactions: &Transactions, lists: bool) -> Option<i64> {
    let items = if lists {
        let request = ListRequest { table: ACCOUNTS.into(), ..ListRequest::default() };
        transactions.reader.list(&request, Isolation::Committed).await.expect("listed").items
    } else {
        let items = transactions.reader.read(vec![look("a")], Isolation::Committed).await.expect("read");
        items.into_iter().flatten().collect()
    };
    items.first().map(balance_of)
}

/// The holder writes the item again and commits between the reader's look at the item and that at the record.
#[tokio::test(start_paused = true)]
async fn reader_sees_the_last_write_of_a_commit_in_between() {
    for lists in [false, true] {
        for (first, second, expected) in [
            (add("a", 1), add("a", 1), Some(3)),
            (delete("a"), put("a", 7), Some(7)),
            (add("a", 1), delete("a"), None),
            (get("a"), add("a", 1), Some(2)),
        ] {
            let is_unchanged = first == get("a");
            let bank = Bank::new().await;
            bank.open("a", 1).await;
            let id = begin(&bank.transactions).await;
            bank.transactions.add(&id, vec![first], None).await.expect("added");
            let (reader, faults) = bank.coordinator_with_keys().await;
            // The item; then the record.
            faults.at(2, Fault::Held);
            let mut work = std::pin::pin!(seen(&reader, lists));
            if is_unchanged {
                assert_eq!(work.await, Some(1), "an item that is only locked needs no record");
                continue;
            }
            until_reached(&mut work, &faults).await;
            bank.transactions.add(&id, vec![second], None).await.expect("added");
            bank.transactions.commit(&id).await.expect("committed");
            faults.release();
            assert_eq!(work.await, expected);
        }
    }
}

/// A slow completer of one life of an id finds the item locked by the next life.
#[tokio::test(start_paused = true)]
async fn late_completion_of_an_earlier_life_frees_nothing() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = TransactionId::fresh();
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun");
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let (dying, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the item, the decision.
    faults.at(3, Fault::DiesAfter);
    until_reached(std::pin::pin!(dying.commit(&id)), &faults).await;
    let (slow, slows_faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction; then the item.
    slows_faults.at(2, Fault::Held);
    let mut late = std::pin::pin!(slow.commit(&id));
    until_reached(&mut late, &slows_faults).await;
    bank.transactions.commit(&id).await.expect("completed");
    bank.expire(A_YEAR).await;
    assert_eq!(bank.scan(TRANSACTIONS).await, []);
    bank.transactions.begin(Some(id.clone()), None).await.expect("begun again");
    bank.transactions.add(&id, vec![add("a", 10)], None).await.expect("added");
    let locked = bank.raw("a").await;
    slows_faults.release();
    late.await.expect("it was committed");
    assert_eq!(bank.raw("a").await, locked, "the lock is of the next life");
    bank.transactions.rollback(&id).await.expect("rolled back");
    assert_eq!(bank.balance("a").await, Some(2));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn commit_is_refused_when_an_add_is_missing() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1), get("b")], Some("1")).await.expect("added");
    bank.transactions.add(&id, vec![add("a", 1)], Some("2")).await.expect("added");
    bank.transactions.add(&id, vec![add("a", 1)], Some("2")).await.expect("a repeat");
    for (items, writes, at_fault) in [
        (Some(3), None, Some("expectedItems")),
        (Some(1), Some(2), Some("expectedItems")),
        (None, Some(3), Some("expectedWrites")),
        (Some(2), Some(2), None),
    ] {
        let told = bank.transactions.commit_expected(&id, Expected { items, writes }).await;
        match at_fault {
            None => assert_eq!(told.expect("committed"), []),
            Some(at_fault) => {
                assert!(matches!(&told, Err(Error::InvalidRequest { field, .. }) if field == at_fault), "{told:?}");
                let status = bank.transactions.status(&id.public()).await.expect("known");
                assert_eq!(status.state, State::Pending);
            }
        }
    }
    let late = Expected { items: Some(9), writes: None };
    bank.transactions.commit_expected(&id, late).await.expect("it is committed, whatever is expected");
    assert_eq!(bank.balance("a").await, Some(2));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn commit_tells_what_was_overwritten() {
    let bank = Bank::new().await;
    for id in ["replaced", "taken", "kept"] {
        bank.open(id, 1).await;
    }
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, ["replaced", "taken", "kept"].map(|id| add(id, 1)).into(), None).await.expect("added");
    bank.open("replaced", 50).await;
    bank.dynamodb.delete_item().table_name(ACCOUNTS).set_key(Some(key("taken"))).send().await.expect("deleted");
    for _ in 0..2 {
        let overwritten = bank.transactions.commit_expected(&id, Expected::default()).await.expect("committed");
        let mut keys: Vec<_> = overwritten.iter().map(ToString::to_string).collect();
        keys.sort();
        assert_eq!(keys, ["accounts[id=replaced]", "accounts[id=taken]"]);
    }
    assert_eq!(bank.transactions.status(&id.public()).await.expect("known").overwritten.len(), 2);
    assert_eq!((bank.balance("kept").await, bank.balance("replaced").await), (Some(2), Some(50)));
    bank.assert_clean().await;
}

/// What DynamoDB finds while the items are read or written rolls the transaction back. What is wrong with the form of a
/// request leaves it open.
#[tokio::test(start_paused = true)]
async fn refused_add_leaves_the_state_that_the_docs_say() {
    const INVALID: Fault =
        Fault::Answered(r#"{"__type": "com.amazon.coral.validate#ValidationException", "message": "a wrong key"}"#);
    const TOO_LARGE: Fault = Fault::Answered(
        r#"{"__type": "com.amazonaws.dynamodb.v20120810#ValidationException",
            "message": "Item size has exceeded the maximum allowed size"}"#,
    );
    // The transaction, the item, the write.
    for (step, fault, is_large) in [(2, INVALID, false), (3, INVALID, false), (3, TOO_LARGE, true)] {
        let bank = Bank::new().await;
        let (coordinator, faults) = bank.coordinator_with_keys().await;
        let id = begin(&coordinator).await;
        coordinator.add(&id, vec![add("a", 1)], None).await.expect("added");
        faults.at(step, fault);
        let told = coordinator.add(&id, vec![add("b", 1)], None).await;
        match told {
            Err(Error::TooLarge(_)) => assert!(is_large),
            Err(Error::InvalidRequest { .. }) => assert!(!is_large),
            told => panic!("{told:?}"),
        }
        let status = bank.transactions.status(&id.public()).await.expect("known");
        assert_eq!(status.state, State::RolledBack, "{step} {fault:?}");
        bank.assert_clean().await;
    }
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![delete("a")], None).await.expect("added");
    for refused in [vec![get("x"), get("x")], vec![add("a", 1)]] {
        let told = bank.transactions.add(&id, refused, None).await;
        assert!(matches!(told, Err(Error::InvalidRequest { .. })), "{told:?}");
        assert_eq!(bank.transactions.status(&id.public()).await.expect("known").state, State::Pending);
    }
    bank.transactions.commit(&id).await.expect("committed");
}

#[tokio::test(start_paused = true)]
async fn conflict_names_the_item_and_the_age_of_its_holder() {
    let bank = Bank::new().await;
    let holder = begin(&bank.transactions).await;
    bank.transactions.add(&holder, vec![add("a", 1)], None).await.expect("added");
    tokio::time::advance(Duration::from_millis(10)).await;
    let policy = Policy { patience_ms: 5000, contention_ms: 500, ..Policy::default() };
    let (coordinator, _) = bank.coordinator(policy, Duration::ZERO);
    let id = begin(&coordinator).await;
    let told = coordinator.add(&id, vec![add("b", 1), add("a", 10)], None).await;
    let Err(Error::Contended { other, key, age_ms }) = told else { panic!("{told:?}") };
    assert_eq!((other, key.to_string()), (holder.public(), "accounts[id=a]".to_owned()));
    assert!((500..700).contains(&age_ms), "{age_ms} ms");
}
