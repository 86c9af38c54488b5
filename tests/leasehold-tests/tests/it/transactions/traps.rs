//! Defects that a review found, which must not come back.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_tests::Fault;
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS, add, adds, begin, get, key, look, put, when};
use leasehold_transactions::{Action, Error, Isolation, Policy, ReturnValues, State, TransactionId};
use tokio::time::advance;

#[tokio::test(start_paused = true)]
async fn condition_cannot_reach_around_the_lock() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let holder = begin(&bank.transactions).await;
    bank.transactions.add(&holder, vec![add("a", 1)], None).await.expect("added");
    let hostile = when(put("a", 100), "attribute_exists(id)) OR (attribute_exists(id)");
    let refused = bank.transactions.run(None, None, vec![hostile]).await;
    assert!(
        matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == "requests[0].Put.ConditionExpression"),
        "{refused:?}"
    );
    bank.transactions.commit(&holder).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn condition_may_stand_in_parentheses_already() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    for condition in ["(attribute_exists(id))", "(attribute_exists(id)) AND (attribute_exists(balance))"] {
        bank.transactions.run(None, None, vec![when(add("a", 1), condition)]).await.expect("the short way");
        let id = begin(&bank.transactions).await;
        bank.transactions.add(&id, vec![when(add("a", 1), condition)], None).await.expect("the long way");
        bank.transactions.commit(&id).await.expect("committed");
    }
    assert_eq!(bank.balance("a").await, Some(5));
}

#[tokio::test(start_paused = true)]
async fn late_sweeper_does_not_forget_what_has_just_ended() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    advance(Duration::from_secs(61)).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    // The sweeper has found the transaction due, and is then slow; meanwhile the transaction is committed.
    bank.faults
        .script(std::iter::repeat_n(Fault::None, 8).chain(std::iter::once(Fault::Slow(Duration::from_millis(900)))));
    let (swept, committed) = tokio::join!(bank.transactions.sweeper.sweep(10), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        bank.transactions.commit(&id).await
    });
    committed.expect("committed");
    assert_eq!(swept.expect("swept").failed, 0);
    bank.transactions.commit(&id).await.expect("a repeat, of what is known");
    assert_eq!(bank.balance("a").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn late_one_shot_is_not_called_rolled_back() {
    let bank = Bank::new().await;
    bank.open("a", 10).await;
    bank.transactions.reader.read(vec![look("a")], Isolation::Committed).await.expect("the table is known");
    // The first attempt arrives after 1.5 s, when the second has failed on its condition.
    bank.faults.script([
        Fault::Late(Duration::from_millis(1500)),
        Fault::None,
        Fault::Slow(Duration::from_millis(900)),
    ]);
    let rich = when(add("a", -10), "balance >= :ten");
    let mut rich = rich;
    rich.values.insert(":ten".into(), AttributeValue::N("10".into()));
    let (outcome, ()) = tokio::join!(bank.transactions.run(Some(TransactionId::fresh()), None, vec![rich]), async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        bank.open("a", 0).await;
        tokio::time::sleep(Duration::from_millis(350)).await;
        bank.open("a", 10).await;
    });
    let is_done = bank.balance("a").await == Some(0);
    assert_eq!(outcome.is_ok(), is_done, "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn two_coordinators_may_do_the_same_work() {
    let bank = Bank::new().await;
    let requests = || (0..600).map(|number| add(&format!("account-{number}"), 1)).collect::<Vec<_>>();
    let id = begin(&bank.transactions).await;
    let (first, second) = tokio::join!(
        bank.transactions.add(&id, requests(), Some("1")),
        bank.transactions.add(&id, requests(), Some("1"))
    );
    assert_eq!((first.expect("added").len(), second.expect("added").len()), (600, 600));
    let (first, second) = tokio::join!(bank.transactions.commit(&id), bank.transactions.commit(&id));
    first.expect("committed");
    second.expect("committed");
    bank.assert_clean().await;
    let accounts = bank.scan(ACCOUNTS).await;
    assert_eq!(accounts.len(), 600);
    assert!(accounts.iter().all(|item| item["balance"] == AttributeValue::N("1".into())));
}

#[tokio::test(start_paused = true)]
async fn old_item_is_returned_to_both_requests_that_ask() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let with_old = || {
        let mut request = add("a", 1);
        request.return_values = ReturnValues::AllOld;
        vec![request]
    };
    let id = begin(&bank.transactions).await;
    // The second call reads the batch before the first has applied it, and the item after.
    for calls in 1..8 {
        let id = if calls == 1 { id.clone() } else { begin(&bank.transactions).await };
        let slow = std::iter::repeat_n(Fault::None, calls).chain([Fault::Slow(Duration::from_millis(500))]);
        bank.faults.script(slow);
        let (first, second) = tokio::join!(
            bank.transactions.add(&id, with_old(), Some("1")),
            bank.transactions.add(&id, with_old(), Some("1"))
        );
        let (first, second) = (first.expect("added"), second.expect("added"));
        assert_eq!(first, second);
        bank.transactions.rollback(&id).await.expect("rolled back");
        assert_eq!(first[0].item.as_ref().map(|item| item["balance"].clone()), Some(AttributeValue::N("1".into())));
    }
}

#[tokio::test(start_paused = true)]
async fn one_shot_that_fails_leaves_nothing_behind() {
    let bank = Bank::new().await;
    let busy = begin(&bank.transactions).await;
    bank.transactions.add(&busy, vec![add("z", 1)], None).await.expect("added");
    advance(Duration::from_millis(10)).await;
    let transactions = bank.transactions.clone();
    let work = tokio::spawn(async move {
        for number in 0..60 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            transactions.add(&busy, vec![add(&format!("y-{number}"), 1)], None).await.expect("added");
        }
        transactions.commit(&busy).await.expect("committed");
    });
    // The 48 free items are locked first; the locked one comes last.
    let requests: Vec<_> = (0..48).map(|number| add(&format!("a-{number}"), 1)).chain([add("z", 1)]).collect();
    let refused = bank.transactions.run(None, None, requests).await;
    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    for number in 0..48 {
        assert_eq!(bank.raw(&format!("a-{number}")).await, None, "nobody waits for the one that gave up");
    }
    work.await.expect("the work is done");
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn one_shots_are_the_same_on_both_ways() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = TransactionId::fresh();
    assert_eq!(bank.transactions.run(Some(id.clone()), None, Vec::new()).await.expect("nothing to do").1, []);
    assert_eq!(bank.transactions.status(&id.public()).await.expect("known").state, State::Committed);
    // An id that was used for another transaction.
    let id = TransactionId::fresh();
    bank.transactions.run(Some(id.clone()), None, vec![add("a", 1)]).await.expect("done");
    let other = bank.transactions.run(Some(id), None, vec![add("a", 2)]).await;
    assert!(matches!(&other, Err(Error::InvalidRequest { field, .. }) if field == "transactionId"), "{other:?}");
    assert_eq!(bank.balance("a").await, Some(2));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn table_that_is_gone_does_not_keep_the_items_of_others() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    leasehold_tests::bank::make_tables(&bank.dynamodb, "doomed", "other-transactions").await;
    let mut elsewhere = add("b", 1);
    elsewhere.table = "doomed".into();
    for outcome in [State::Committed, State::RolledBack] {
        let id = begin(&bank.transactions).await;
        let mut elsewhere = elsewhere.clone();
        if outcome == State::RolledBack {
            leasehold_tests::bank::make_tables(&bank.dynamodb, "doomed-2", "other-transactions").await;
            elsewhere.table = "doomed-2".into();
        }
        bank.transactions.add(&id, vec![add("a", 1), elsewhere.clone()], None).await.expect("added");
        bank.dynamodb.delete_table().table_name(&elsewhere.table).send().await.expect("deleted");
        match outcome {
            State::Committed => bank.transactions.commit(&id).await.expect("committed"),
            _ => bank.transactions.rollback(&id).await.expect("rolled back"),
        }
        assert_eq!(bank.balance("a").await, Some(2));
        bank.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn empty_add_is_a_sign_of_life() {
    let bank = Bank::new().await;
    let busy = begin(&bank.transactions).await;
    bank.transactions.add(&busy, vec![add("a", 1)], None).await.expect("added");
    advance(Duration::from_millis(10)).await;
    let transactions = bank.transactions.clone();
    let thinking = tokio::spawn(async move {
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            transactions.add(&busy, Vec::new(), None).await.expect("still open");
        }
        transactions.commit(&busy).await.expect("committed");
    });
    bank.transactions.run(None, None, vec![add("a", 1)]).await.expect("after the other");
    thinking.await.expect("nobody rolled it back");
    assert_eq!(bank.balance("a").await, Some(2));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn stray_lock_is_told_and_left_alone() {
    let bank = Bank::new().await;
    let mut item = leasehold_tests::bank::account("a", 1);
    item.insert("leaseholdTxId".into(), AttributeValue::S(TransactionId::fresh().public().as_str().into()));
    bank.write(item.clone()).await;
    bank.faults.record();
    let refused = bank.transactions.run(None, None, vec![add("a", 1)]).await;
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    let looks = bank.faults.record().into_iter().filter(|sent| sent.body["Key"]["id"]["S"] == "a");
    assert_eq!(looks.count(), 16, "the holder gets time to appear");
    assert_eq!(bank.raw("a").await, Some(item));
    assert!(bank.scan(TRANSACTIONS).await.iter().all(|row| row.contains_key("finished")));
}

#[tokio::test(start_paused = true)]
async fn nobody_reads_the_tables_of_the_service() {
    let bank = Bank::new().await;
    for table in ["locks", TRANSACTIONS, "arn:aws:dynamodb:us-east-1:123456789012:table/transactions"] {
        let mut request = look("a");
        request.table = table.into();
        request.key = key("a");
        let refused = bank.transactions.reader.read(vec![request], Isolation::Uncommitted).await;
        assert!(matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == "requests[0].tableName"));
    }
}

/// The first attempt of a one-shot is under way when a repeat finds a lock, and its caller gets a final error.
#[tokio::test(start_paused = true)]
async fn late_write_does_not_undo_a_final_no() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let busy = begin(&bank.transactions).await;
    bank.transactions.add(&busy, vec![add("a", 10)], None).await.expect("added");
    advance(Duration::from_millis(10)).await;
    let policy = Policy { contention_ms: 200, ..Policy::default() };
    let (coordinator, faults) = bank.coordinator(policy, Duration::ZERO);
    coordinator.reader.read(vec![look("a")], Isolation::Committed).await.expect("the table is known");
    faults.script([Fault::Late(Duration::from_secs(30))]);
    let id = TransactionId::fresh();
    let told = coordinator.run(Some(id.clone()), None, vec![add("a", 1)]).await;
    assert!(matches!(told, Err(Error::Contended { .. })), "{told:?}");
    let status = bank.transactions.status(&id.public()).await.expect("a record stands in the way");
    assert_eq!(status.state, State::RolledBack);
    bank.transactions.rollback(&busy).await.expect("rolled back");
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(bank.scan(ACCOUNTS).await, [leasehold_tests::bank::account("a", 1)]);
    bank.assert_clean().await;
}

/// The record stops the late write, so the caller gets a final answer.
#[tokio::test(start_paused = true)]
async fn nameless_one_shot_is_told_the_truth_after_a_loss() {
    for is_locked in [true, false] {
        let bank = Bank::new().await;
        bank.open("a", 1).await;
        let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        coordinator.reader.read(vec![look("a")], Isolation::Committed).await.expect("the table is known");
        faults.script([Fault::Late(Duration::from_secs(30))]);
        let mut poor = when(add("a", 1), "balance = :one");
        poor.values.insert(":one".into(), AttributeValue::N("1".into()));
        let (told, ()) = tokio::join!(coordinator.run(None, None, vec![poor]), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if is_locked {
                let busy = begin(&bank.transactions).await;
                bank.transactions.add(&busy, vec![add("a", 10)], None).await.expect("added");
            } else {
                bank.open("a", 2).await;
            }
        });
        let before = bank.balance("a").await;
        match told {
            // The busy transaction was idle, and gave way: the balance is 1 again.
            Ok(_) => assert!(is_locked),
            Err(Error::ConditionFailed { .. } | Error::Contended { .. }) => {}
            told => panic!("{told:?}"),
        }
        tokio::time::sleep(Duration::from_secs(40)).await;
        assert_eq!(bank.balance("a").await, before, "the late write is refused");
    }
}

/// No attempt is answered. The caller learns the id, under which the outcome is known.
#[tokio::test(start_paused = true)]
async fn nameless_one_shot_gets_an_id_when_nothing_is_certain() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let (coordinator, faults) = bank.coordinator_with_keys().await;
    let lost = std::iter::repeat_n(Fault::RequestLost, 60);
    faults.script(std::iter::once(Fault::Late(Duration::from_mins(1))).chain(lost));
    let told = coordinator.run(None, None, vec![add("a", 1)]).await;
    let Err(Error::Unknown { id, .. }) = told else { panic!("{told:?}") };
    faults.script([]);
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(bank.transactions.status(&id.public()).await.expect("it came late").state, State::Committed);
    let (again, _) = coordinator.run(Some(id.clone()), None, vec![add("a", 1)]).await.expect("a repeat");
    assert_eq!((again, bank.balance("a").await), (id, Some(2)));
    // The first attempt is late, and the others are in conflict: the call is rolled back, and the late one refused.
    faults.script(std::iter::once(Fault::Late(Duration::from_mins(1))).chain(vec![Fault::TransactionConflict; 8]));
    let told = coordinator.run(None, None, vec![add("a", 1)]).await;
    assert!(matches!(told, Err(Error::RolledBack { .. })), "{told:?}");
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(bank.balance("a").await, Some(2));
}

/// The first attempt is under way when DynamoDB refuses the repeat for the type of an attribute.
#[tokio::test(start_paused = true)]
async fn late_write_does_not_follow_an_invalid_request() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    coordinator.reader.read(vec![look("a")], Isolation::Committed).await.expect("the table is known");
    faults.script([Fault::Late(Duration::from_secs(30))]);
    let id = TransactionId::fresh();
    let (told, ()) = tokio::join!(coordinator.run(Some(id), None, vec![add("a", 1)]), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut text = leasehold_tests::bank::account("a", 1);
        text.insert("balance".into(), AttributeValue::S("a text".into()));
        bank.write(text).await;
    });
    assert!(matches!(told, Err(Error::InvalidRequest { .. })), "{told:?}");
    bank.open("a", 1).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(bank.balance("a").await, Some(1));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_after_it_was_called_unknown() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    for call in ["rollback", "commit", "add"] {
        let id = TransactionId::fresh();
        let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        coordinator.reader.read(vec![look("a")], Isolation::Committed).await.expect("the table is known");
        let lost = std::iter::repeat_n(Fault::RequestLost, 30);
        faults.script(std::iter::once(Fault::Late(Duration::from_mins(1))).chain(lost));
        let told = coordinator.run(Some(id.clone()), None, vec![add("a", 1)]).await;
        assert!(matches!(told, Err(Error::Unavailable(_))), "{told:?}");
        for _ in 0..2 {
            let told = match call {
                "rollback" => bank.transactions.rollback(&id).await,
                "commit" => bank.transactions.commit(&id).await,
                _ => bank.transactions.add(&id, vec![add("a", 1)], None).await.map(drop),
            };
            assert!(matches!(told, Err(Error::NotFound)), "{call}: {told:?}");
        }
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(bank.scan(ACCOUNTS).await, [leasehold_tests::bank::account("a", 1)], "{call}");
        let begun = bank.transactions.begin(Some(id), None).await;
        assert!(matches!(begun, Err(Error::RolledBack { .. })), "{begun:?}");
    }
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn id_of_another_transaction_is_refused_on_every_path() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let with_answer = |amount| {
        let mut request = add("a", amount);
        request.return_values = ReturnValues::AllNew;
        vec![request]
    };
    let long = TransactionId::fresh();
    bank.transactions.begin_with(Some(long.clone()), None, vec![add("a", 1)]).await.expect("begun");
    bank.transactions.commit(&long).await.expect("committed");
    let answered = TransactionId::fresh();
    bank.transactions.run(Some(answered.clone()), None, with_answer(1)).await.expect("done");
    let read = TransactionId::fresh();
    bank.transactions.run(Some(read.clone()), None, vec![get("a")]).await.expect("read");
    let open = begin(&bank.transactions).await;
    bank.transactions.add(&open, vec![put("c", 1)], None).await.expect("added");
    for id in [long, answered, read, open.clone()] {
        for requests in [vec![add("a", 5)], with_answer(5), vec![get("b")]] {
            let refused = bank.transactions.run(Some(id.clone()), None, requests).await;
            assert!(
                matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == "transactionId"),
                "{refused:?}"
            );
        }
    }
    bank.transactions.commit(&open).await.expect("as it was");
    assert_eq!((bank.balance("a").await, bank.balance("c").await), (Some(3), Some(1)));
    bank.assert_clean().await;
}

/// A one-shot with the very requests of a transaction of several calls is another transaction.
#[tokio::test(start_paused = true)]
async fn one_shot_does_not_commit_what_several_calls_began() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = TransactionId::fresh();
    bank.transactions.begin_with(Some(id.clone()), None, vec![add("a", 1)]).await.expect("begun");
    for _ in 0..2 {
        let refused = bank.transactions.run(Some(id.clone()), None, vec![add("a", 1)]).await;
        assert!(
            matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == "transactionId"),
            "{refused:?}"
        );
        // The second time it is committed.
        bank.transactions.commit(&id).await.expect("committed");
    }
    assert_eq!(bank.balance("a").await, Some(2));
    bank.assert_clean().await;
}

/// DynamoDB refuses to free one of three items.
#[tokio::test(start_paused = true)]
async fn stuck_item_keeps_no_other_one_locked() {
    let bank = Bank::new().await;
    for id in ["a", "b", "c"] {
        bank.open(id, 1).await;
    }
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, ["a", "b", "c"].map(|id| add(id, 1)).into(), None).await.expect("added");
    let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the decision, the items, the first one; then the second one.
    faults.at(5, Fault::AccessDenied);
    let told = coordinator.rollback(&id).await;
    assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
    let locked = bank.scan(ACCOUNTS).await.into_iter().filter(|item| item.contains_key("leaseholdTxId"));
    assert_eq!(locked.count(), 1);
    let status = bank.transactions.status(&id.public()).await.expect("known");
    let names_it = |reason: &String| reason.starts_with("accounts[id=b]: ");
    assert!(!status.finished && status.stuck.as_ref().is_some_and(names_it), "{status:?}");
    let page = bank.transactions.operator.unfinished(true, 100, None).await.expect("listed");
    assert_eq!((page.transactions.len(), page.next), (1, None));
    // The cause is removed, and the sweeper goes on.
    advance(Duration::from_mins(2)).await;
    assert_eq!(bank.transactions.sweeper.sweep(100).await.expect("swept").completed, 1);
    assert_eq!(bank.transactions.status(&id.public()).await.expect("known").stuck, None);
    bank.assert_clean().await;
}

/// A page is short only at the end of the list, and an empty page is the end.
#[tokio::test(start_paused = true)]
async fn page_of_open_transactions_is_full_or_the_last() {
    let bank = Bank::new().await;
    let page = bank.transactions.operator.unfinished(false, 3, None).await.expect("listed");
    assert_eq!((page.transactions.len(), page.next), (0, None));
    for _ in 0..10 {
        begin(&bank.transactions).await;
    }
    bank.stick(&bank.transactions, "a").await;
    let mut sizes = Vec::new();
    let mut cursor = None;
    let mut seen = std::collections::BTreeSet::new();
    loop {
        let page = bank.transactions.operator.unfinished(false, 3, cursor.as_deref()).await.expect("listed");
        sizes.push(page.transactions.len());
        seen.extend(page.transactions.into_iter().map(|transaction| transaction.id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 11);
    assert!(sizes[..sizes.len() - 1].iter().all(|size| *size == 3), "{sizes:?}");
    let page = bank.transactions.operator.unfinished(true, 3, None).await.expect("listed");
    assert_eq!((page.transactions.len(), page.next), (1, None));
}

/// A role may lack the permission for statements.
#[tokio::test(start_paused = true)]
async fn items_are_freed_one_by_one_where_statements_are_forbidden() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, ["a", "b", "c"].map(|id| add(id, 1)).into(), None).await.expect("added");
    let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    faults.at(4, Fault::AccessDenied);
    coordinator.commit(&id).await.expect("committed");
    bank.assert_clean().await;
}

/// TTL removes the rows of a finished transaction in any order.
#[tokio::test(start_paused = true)]
async fn any_row_may_expire_first() {
    for record_first in [true, false] {
        let bank = Bank::new().await;
        let id = begin(&bank.transactions).await;
        bank.transactions
            .add(&id, (0..60).map(|number| put(&format!("{number}"), 1)).collect(), None)
            .await
            .expect("added");
        bank.transactions.commit(&id).await.expect("committed");
        assert!(bank.scan(TRANSACTIONS).await.len() > 1);
        for row in bank.scan(TRANSACTIONS).await {
            if row["row"].as_s().expect("a text").starts_with("0#") == record_first {
                bank.remove_row(row).await;
            }
        }
        let told = bank.transactions.commit(&id).await;
        assert_eq!(told.is_ok(), !record_first, "{told:?}");
        let told = bank.transactions.rollback(&id).await;
        let is_true =
            if record_first { matches!(told, Err(Error::NotFound)) } else { matches!(told, Err(Error::Committed)) };
        assert!(is_true, "{told:?}");
        assert_eq!(bank.scan(ACCOUNTS).await.len(), 60);
    }
}

/// An unfinished transaction lost its batches: no sweeper ran for a week. The next coordinator that finds one of its
/// items frees it.
#[tokio::test(start_paused = true)]
async fn items_of_lost_entries_are_freed_by_whoever_meets_them() {
    let bank = Bank::new().await;
    bank.open("0", 1).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, adds(60), None).await.expect("added");
    bank.expire(Duration::from_hours(24 * 30)).await;
    bank.transactions.rollback(&id).await.expect("decided");
    bank.transactions.run(None, None, vec![add("0", 1), add("7", 1)]).await.expect("done");
    assert_eq!((bank.balance("0").await, bank.balance("7").await), (Some(2), Some(1)));
}

/// The sweeper keeps the rows of an unfinished transaction from expiring.
#[tokio::test(start_paused = true)]
async fn rows_of_an_open_transaction_do_not_expire() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, adds(60), None).await.expect("added");
    for _ in 0..20 {
        advance(Duration::from_hours(12)).await;
        bank.transactions.add(&id, Vec::new(), None).await.expect("alive");
        bank.transactions.sweeper.sweep(100).await.expect("swept");
        bank.expire(Duration::ZERO).await;
    }
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.scan(ACCOUNTS).await.len(), 60);
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn update_of_a_key_attribute_is_refused() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    for (expression, name) in [("SET id = :amount", None), ("ADD balance :amount REMOVE #key", Some("id"))] {
        let mut request = add("a", 1);
        request.action = Action::Update { key: key("a"), expression: expression.into() };
        request.names.extend(name.map(|name| ("#key".to_owned(), name.to_owned())));
        for commit in [true, false] {
            let refused = if commit {
                bank.transactions.run(None, None, vec![request.clone()]).await.map(drop)
            } else {
                bank.transactions.begin_with(None, None, vec![request.clone()]).await.map(drop)
            };
            let is_told = matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == "requests[0].Update.UpdateExpression");
            assert!(is_told, "{refused:?}");
        }
    }
    assert_eq!(bank.scan(ACCOUNTS).await, [leasehold_tests::bank::account("a", 1)]);
}

#[tokio::test(start_paused = true)]
async fn only_what_was_touched_is_undone() {
    let bank = Bank::new().await;
    let map = |member: &str| AttributeValue::M([("x".to_owned(), AttributeValue::S(member.into()))].into());
    let mut item = leasehold_tests::bank::account("a", 1);
    item.insert("map".into(), map("old"));
    item.insert("gone".into(), AttributeValue::S("there".into()));
    bank.write(item.clone()).await;
    let mut request = add("a", 1);
    let expression = "SET #map.x = :new, added = :new REMOVE gone ADD balance :amount".into();
    request.action = Action::Update { key: key("a"), expression };
    request.names.insert("#map".into(), "map".into());
    request.values.insert(":new".into(), AttributeValue::S("new".into()));
    for (values, expected) in [(ReturnValues::UpdatedNew, "new"), (ReturnValues::UpdatedOld, "old")] {
        request.return_values = values;
        let (id, answers) = bank.transactions.begin_with(None, None, vec![request.clone()]).await.expect("begun");
        let answer = answers[0].item.clone().expect("an item");
        assert_eq!(
            (&answer["map"], answer.get("id"), answer.contains_key("added")),
            (&map(expected), None, expected == "new")
        );
        // A writer that does not respect transactions changes another attribute.
        let update = bank.dynamodb.update_item().table_name(ACCOUNTS).set_key(Some(key("a")));
        let update =
            update.update_expression("SET remark = :other").expression_attribute_values(":other", map(expected));
        update.send().await.expect("written");
        bank.transactions.rollback(&id).await.expect("rolled back");
        item.insert("remark".into(), map(expected));
        assert_eq!(bank.raw("a").await, Some(item.clone()));
    }
    bank.assert_clean().await;
}
