//! What a review found, and what must not come back.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_tests::Fault;
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS, add, begin, get, key, look, put};
use leasehold_transactions::{Error, Isolation, Request, ReturnValues, State, TransactionId};
use tokio::time::advance;

fn when(mut request: Request, condition: &str) -> Request {
    request.condition = Some(condition.into());
    request
}

#[tokio::test(start_paused = true)]
async fn a_condition_cannot_reach_around_the_lock() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let holder = begin(&bank.transactions).await;
    bank.transactions.add(&holder, vec![add("a", 1)]).await.expect("added");
    let hostile = when(put("a", 100), "attribute_exists(id)) OR (attribute_exists(id)");
    let refused = bank.transactions.run(None, vec![hostile]).await;
    assert!(
        matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == "requests[0].conditionExpression"),
        "{refused:?}"
    );
    bank.transactions.commit(&holder).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_condition_may_stand_in_parentheses_already() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    for condition in ["(attribute_exists(id))", "(attribute_exists(id)) AND (attribute_exists(balance))"] {
        bank.transactions.run(None, vec![when(add("a", 1), condition)]).await.expect("the short way");
        let id = begin(&bank.transactions).await;
        bank.transactions.add(&id, vec![when(add("a", 1), condition)]).await.expect("the long way");
        bank.transactions.commit(&id).await.expect("committed");
    }
    assert_eq!(bank.balance("a").await, Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_that_comes_late_does_not_forget_what_has_just_ended() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    advance(Duration::from_secs(61)).await;
    bank.transactions.add(&id, vec![add("a", 1)]).await.expect("added");
    // The sweeper has found the transaction due, and then is slow; meanwhile it is committed.
    bank.faults
        .script(std::iter::repeat_n(Fault::None, 8).chain(std::iter::once(Fault::Slow(Duration::from_millis(900)))));
    let (swept, committed) = tokio::join!(bank.transactions.sweep(10), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        bank.transactions.commit(&id).await
    });
    committed.expect("committed");
    assert_eq!(swept.expect("swept").removed, 0);
    bank.transactions.commit(&id).await.expect("a repeat, of what is known");
    assert_eq!(bank.balance("a").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_one_shot_that_was_carried_out_late_is_not_called_rolled_back() {
    let bank = Bank::new().await;
    bank.open("a", 10).await;
    bank.transactions.read(vec![look("a")], Isolation::Committed).await.expect("the table is known");
    // The first attempt arrives after 1.5 s, when the second has failed on its condition.
    bank.faults.script([
        Fault::Late(Duration::from_millis(1500)),
        Fault::None,
        Fault::Slow(Duration::from_millis(900)),
    ]);
    let rich = when(add("a", -10), "balance >= :ten");
    let mut rich = rich;
    rich.values.insert(":ten".into(), AttributeValue::N("10".into()));
    let (outcome, ()) = tokio::join!(bank.transactions.run(None, vec![rich]), async {
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
    let (first, second) = tokio::join!(bank.transactions.add(&id, requests()), bank.transactions.add(&id, requests()));
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
async fn what_an_item_was_is_answered_to_both_that_asked() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let with_old = || {
        let mut request = add("a", 1);
        request.return_values = ReturnValues::AllOld;
        vec![request]
    };
    let id = begin(&bank.transactions).await;
    // The second of them reads the batch before the first has applied it, and the item after.
    for calls in 1..8 {
        let id = if calls == 1 { id.clone() } else { begin(&bank.transactions).await };
        let slow = std::iter::repeat_n(Fault::None, calls).chain([Fault::Slow(Duration::from_millis(500))]);
        bank.faults.script(slow);
        let (first, second) =
            tokio::join!(bank.transactions.add(&id, with_old()), bank.transactions.add(&id, with_old()));
        let (first, second) = (first.expect("added"), second.expect("added"));
        assert_eq!(first, second);
        bank.transactions.rollback(&id).await.expect("rolled back");
        assert_eq!(first[0].item.as_ref().map(|item| item["balance"].clone()), Some(AttributeValue::N("1".into())));
    }
}

#[tokio::test(start_paused = true)]
async fn a_one_shot_that_fails_leaves_nothing_behind() {
    let bank = Bank::new().await;
    let busy = begin(&bank.transactions).await;
    bank.transactions.add(&busy, vec![add("z", 1)]).await.expect("added");
    advance(Duration::from_millis(10)).await;
    let transactions = bank.transactions.clone();
    let work = tokio::spawn(async move {
        for number in 0..60 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            transactions.add(&busy, vec![add(&format!("y-{number}"), 1)]).await.expect("added");
        }
        transactions.commit(&busy).await.expect("committed");
    });
    // 48 that are free are locked first; the one that is not comes last.
    let requests: Vec<_> = (0..48).map(|number| add(&format!("a-{number}"), 1)).chain([add("z", 1)]).collect();
    let refused = bank.transactions.run(None, requests).await;
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
    assert_eq!(bank.transactions.run(Some(id.clone()), Vec::new()).await.expect("nothing to do").1, []);
    assert_eq!(bank.transactions.status(&id).await.expect("known").state, State::Committed);
    // An id that is open: the call joins it, and commits it.
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)]).await.expect("added");
    let (_, read) = bank.transactions.run(Some(id.clone()), vec![get("a")]).await.expect("read");
    assert_eq!(read[0].item.as_ref().map(|item| item["balance"].clone()), Some(AttributeValue::N("2".into())));
    assert_eq!(bank.transactions.status(&id).await.expect("known").state, State::Committed);
    // An id that was used for something else.
    let id = TransactionId::fresh();
    bank.transactions.run(Some(id.clone()), vec![add("a", 1)]).await.expect("done");
    let other = bank.transactions.run(Some(id), vec![add("a", 2)]).await;
    assert!(matches!(&other, Err(Error::InvalidRequest { field, .. }) if field == "transactionId"), "{other:?}");
    assert_eq!(bank.balance("a").await, Some(3));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_table_that_is_gone_does_not_keep_the_items_of_others() {
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
        bank.transactions.add(&id, vec![add("a", 1), elsewhere.clone()]).await.expect("added");
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
async fn an_empty_add_is_a_sign_of_life() {
    let bank = Bank::new().await;
    let busy = begin(&bank.transactions).await;
    bank.transactions.add(&busy, vec![add("a", 1)]).await.expect("added");
    advance(Duration::from_millis(10)).await;
    let transactions = bank.transactions.clone();
    let thinking = tokio::spawn(async move {
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            transactions.add(&busy, Vec::new()).await.expect("still open");
        }
        transactions.commit(&busy).await.expect("committed");
    });
    bank.transactions.run(None, vec![add("a", 1)]).await.expect("after the other");
    thinking.await.expect("nobody rolled it back");
    assert_eq!(bank.balance("a").await, Some(2));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_stray_lock_is_told_and_left_alone() {
    let bank = Bank::new().await;
    let mut item = leasehold_tests::bank::account("a", 1);
    item.insert("leaseholdTxId".into(), AttributeValue::S(TransactionId::fresh().as_str().into()));
    bank.dynamodb.put_item().table_name(ACCOUNTS).set_item(Some(item.clone())).send().await.expect("put");
    let refused = bank.transactions.run(None, vec![add("a", 1)]).await;
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    assert_eq!(bank.raw("a").await, Some(item));
    assert_eq!(bank.scan(TRANSACTIONS).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn nobody_reads_the_tables_of_the_service() {
    let bank = Bank::new().await;
    for table in ["locks", TRANSACTIONS, "arn:aws:dynamodb:us-east-1:123456789012:table/transactions"] {
        let mut request = look("a");
        request.table = table.into();
        request.key = key("a");
        let refused = bank.transactions.read(vec![request], Isolation::Uncommitted).await;
        assert!(matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == "requests[0].tableName"));
    }
}
