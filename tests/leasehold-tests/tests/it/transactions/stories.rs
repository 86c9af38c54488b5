//! The well-known cases, one at a time.

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_tests::bank::{
    ACCOUNTS, Bank, account, add, balance_of, begin, delete, get, key, look, put, request, when,
};
use leasehold_transactions::{Action, Error, Isolation, Item, ListRequest, ReturnValues, State, TransactionId};

/// Each story is a test on the embedded engine, under virtual time. It is also one on DynamoDB Local, unless it has to
/// wait, or writes so much that an answer may take more than a second.
macro_rules! stories {
    (anywhere: [$($name:ident,)*] under_virtual_time: [$($waiting:ident,)*]) => {
        mod embedded {
            use super::Bank;
            $(
                #[tokio::test(start_paused = true)]
                async fn $name() {
                    super::$name(Bank::new().await).await;
                }
            )*
            $(
                #[tokio::test(start_paused = true)]
                async fn $waiting() {
                    super::$waiting(Bank::new().await).await;
                }
            )*
        }

        mod dynamodb_local {
            use super::Bank;
            $(
                #[tokio::test]
                #[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
                async fn $name() {
                    super::$name(Bank::dynamodb_local().await).await;
                }
            )*
        }
    };
}

stories! {
    anywhere: [
        transfer_is_seen_when_it_is_committed,
        rollback_leaves_no_trace,
        delete_happens_at_the_commit,
        items_can_be_written_as_they_were_read,
        upgrade_of_what_is_missing_is_checked_as_missing,
        answers_are_the_states_that_were_asked_for,
        one_item_is_written_several_times,
        check_may_be_repeated_after_its_item_was_changed,
        condition_that_does_not_hold_rolls_back_and_shows_the_item,
        update_that_dynamodb_refuses_rolls_everything_back,
        reserved_names_and_tables_are_refused,
        many_items_take_many_batches,
        pages_show_what_is_committed,
        one_shots_take_the_short_way_and_repeat_safely,
        damage_is_told_and_touches_nothing,
    ]
    under_virtual_time: [
        large_items_are_split_by_size,
        second_transaction_waits_then_rolls_the_idle_one_back,
        second_transaction_waits_when_the_first_is_at_work,
        older_transaction_continues_when_two_wait_for_each_other,
        sweep_ends_what_nobody_works_on_and_forgets_what_is_over,
    ]
}

fn balances(items: &[Option<Item>]) -> Vec<Option<i64>> {
    items.iter().map(|item| item.as_ref().map(balance_of)).collect()
}

async fn seen(bank: &Bank, ids: &[&str], isolation: Isolation) -> Vec<Option<i64>> {
    let requests = ids.iter().map(|id| look(id)).collect();
    balances(&bank.transactions.reader.read(requests, isolation).await.expect("read"))
}

async fn transfer_is_seen_when_it_is_committed(bank: Bank) {
    bank.open("a", 100).await;
    bank.open("b", 0).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", -30), add("b", 30)], None).await.expect("added");
    assert_eq!(seen(&bank, &["a", "b"], Isolation::Committed).await, [Some(100), Some(0)]);
    assert_eq!(seen(&bank, &["a", "b"], Isolation::Uncommitted).await, [Some(70), Some(30)]);
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(seen(&bank, &["a", "b"], Isolation::Committed).await, [Some(70), Some(30)]);
    bank.assert_clean().await;
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert_eq!((status.state, status.finished, status.requests.len()), (State::Committed, true, 2));
    bank.transactions.commit(&id).await.expect("a repeat");
    assert!(matches!(bank.transactions.rollback(&id).await, Err(Error::Committed)));
    assert!(matches!(bank.transactions.add(&id, vec![add("a", 1)], None).await, Err(Error::Committed)));
}

async fn rollback_leaves_no_trace(bank: Bank) {
    bank.open("a", 100).await;
    bank.open("b", 5).await;
    let id = begin(&bank.transactions).await;
    let requests = vec![add("a", -30), delete("b"), put("new", 30), add("other", 1), get("nobody")];
    bank.transactions.add(&id, requests, None).await.expect("added");
    assert_eq!(
        seen(&bank, &["a", "b", "new", "other", "nobody"], Isolation::Committed).await,
        [Some(100), Some(5), None, None, None]
    );
    assert_eq!(
        seen(&bank, &["a", "b", "new", "other", "nobody"], Isolation::Uncommitted).await,
        [Some(70), Some(5), Some(30), Some(1), None],
        "an insert is there for those who want to see it, a delete happens at the end"
    );
    bank.transactions.rollback(&id).await.expect("rolled back");
    bank.assert_clean().await;
    let mut accounts = bank.scan(ACCOUNTS).await;
    accounts.sort_by_key(|item| format!("{:?}", item["id"]));
    assert_eq!(accounts, [account("a", 100), account("b", 5)]);
    assert!(matches!(bank.transactions.commit(&id).await, Err(Error::RolledBack { .. })));
    bank.transactions.rollback(&id).await.expect("a repeat");
}

async fn delete_happens_at_the_commit(bank: Bank) {
    bank.open("a", 100).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![delete("a"), delete("missing")], None).await.expect("added");
    let read = bank.transactions.add(&id, vec![get("a"), get("missing")], None).await.expect("read");
    assert!(read.iter().all(|answer| answer.item.is_none()), "the transaction sees its own deletes");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.scan(ACCOUNTS).await, Vec::<Item>::new());
    bank.assert_clean().await;
}

async fn items_can_be_written_as_they_were_read(bank: Bank) {
    bank.open("a", 100).await;
    let id = begin(&bank.transactions).await;
    let read = bank.transactions.add(&id, vec![get("a"), get("new")], None).await.expect("read");
    assert_eq!(read[0].item.as_ref().map(balance_of), Some(100));
    assert_eq!(read[1].item, None);
    let insert = when(put("new", 7), "attribute_not_exists(id)");
    let mut withdraw = when(add("a", -1), "balance = :hundred");
    withdraw.values.insert(":hundred".into(), AttributeValue::N("100".into()));
    withdraw.return_values = ReturnValues::AllNew;
    let answers = bank.transactions.add(&id, vec![insert, withdraw], None).await.expect("upgraded");
    assert_eq!(answers[1].item, Some(account("a", 99)));
    let read = bank.transactions.add(&id, vec![get("a"), get("new")], None).await.expect("own writes");
    assert_eq!(read.iter().map(|answer| answer.item.as_ref().map(balance_of)).collect::<Vec<_>>(), [Some(99), Some(7)]);
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!((bank.balance("a").await, bank.balance("new").await), (Some(99), Some(7)));
    bank.assert_clean().await;
}

async fn upgrade_of_what_is_missing_is_checked_as_missing(bank: Bank) {
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![get("new")], None).await.expect("read");
    let update = when(add("new", 1), "attribute_exists(id)");
    let refused = bank.transactions.add(&id, vec![update], None).await;
    assert!(matches!(refused, Err(Error::ConditionFailed { request: 0, .. })), "{refused:?}");
    assert!(matches!(bank.transactions.commit(&id).await, Err(Error::RolledBack { .. })));
    assert_eq!(bank.scan(ACCOUNTS).await, Vec::<Item>::new());
    bank.assert_clean().await;
}

async fn answers_are_the_states_that_were_asked_for(bank: Bank) {
    bank.open("a", 1).await;
    bank.open("b", 2).await;
    bank.open("c", 3).await;
    let with = |mut request: leasehold_transactions::TransactionRequest, values| {
        request.return_values = values;
        request
    };
    let requests = || {
        vec![
            with(put("a", 10), ReturnValues::AllOld),
            with(add("b", 5), ReturnValues::AllNew),
            with(delete("c"), ReturnValues::AllOld),
            with(put("d", 4), ReturnValues::AllOld),
            with(add("e", 5), ReturnValues::AllOld),
        ]
    };
    let id = begin(&bank.transactions).await;
    let first = bank.transactions.add(&id, requests(), Some("one")).await.expect("added");
    let items: Vec<_> = first.iter().map(|answer| answer.item.as_ref().map(balance_of)).collect();
    assert_eq!(items, [Some(1), Some(7), Some(3), None, None]);
    let repeat = bank.transactions.add(&id, requests(), Some("one")).await.expect("a repeat");
    assert_eq!(repeat, first);
    let (_, one_shot) = bank
        .transactions
        .run(None, None, vec![with(add("z", 5), ReturnValues::AllNew)])
        .await
        .expect("another transaction beside it");
    assert_eq!(one_shot[0].item, Some(account("z", 5)));
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("b").await, Some(7), "nothing was added twice");
    bank.assert_clean().await;
}

async fn one_item_is_written_several_times(bank: Bank) {
    for commits in [true, false] {
        bank.open("a", 1).await;
        bank.open("b", 1).await;
        let id = begin(&bank.transactions).await;
        let add_named = async |request, call_id| bank.transactions.add(&id, vec![request], call_id).await;
        add_named(add("a", 1), None).await.expect("added");
        add_named(add("a", 1), None).await.expect("another call, since it has no name");
        add_named(add("a", 1), None).await.expect("one more");
        for call in ["one", "two", "one"] {
            add_named(add("a", 10), Some(call)).await.expect("once for each call");
        }
        assert_eq!(bank.balance("a").await, Some(24));
        add_named(put("a", 7), None).await.expect("a put over updates");
        add_named(add("a", 1), Some("last")).await.expect("an update of what was put");
        let mut check = when(request(Action::Check { key: key("a") }), "balance = :eight");
        check.values.insert(":eight".into(), AttributeValue::N("8".into()));
        add_named(check, None).await.expect("it sees the own writes");
        add_named(delete("b"), None).await.expect("deleted");
        let after_delete = add_named(add("b", 1), None).await;
        assert!(matches!(&after_delete, Err(Error::InvalidRequest { .. })), "{after_delete:?}");
        let insert = when(put("b", 5), "attribute_not_exists(id)");
        add_named(insert, None).await.expect("put in the place of what was deleted");
        assert_eq!(seen(&bank, &["a", "b"], Isolation::Committed).await, [Some(1), Some(1)]);
        let twice = bank.transactions.add(&id, vec![get("x"), get("x")], None).await;
        assert!(
            matches!(&twice, Err(Error::InvalidRequest { field, .. }) if field == "requests[1].Get.Key"),
            "{twice:?}"
        );
        if commits {
            bank.transactions.commit(&id).await.expect("no mistake ended it");
        } else {
            bank.transactions.rollback(&id).await.expect("no mistake ended it");
        }
        let expected = if commits { [Some(8), Some(5)] } else { [Some(1), Some(1)] };
        assert_eq!([bank.balance("a").await, bank.balance("b").await], expected);
        bank.assert_clean().await;
    }
}

async fn check_may_be_repeated_after_its_item_was_changed(bank: Bank) {
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    let mut check = when(request(Action::Check { key: key("a") }), "balance = :one");
    check.values.insert(":one".into(), AttributeValue::N("1".into()));
    bank.transactions.add(&id, vec![check.clone()], Some("check")).await.expect("checked");
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    bank.transactions.add(&id, vec![check], Some("check")).await.expect("a repeat, which is not checked again");
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(2));
    bank.assert_clean().await;
}

async fn condition_that_does_not_hold_rolls_back_and_shows_the_item(bank: Bank) {
    bank.open("a", 1).await;
    let poor = || {
        let mut request = when(add("a", -5), "#balance >= :five");
        request.names.insert("#balance".into(), "balance".into());
        request.values.insert(":five".into(), AttributeValue::N("5".into()));
        request.return_item_on_failure = true;
        request
    };
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("b", 1)], None).await.expect("added");
    let refused = bank.transactions.add(&id, vec![add("c", 1), poor()], None).await;
    let Err(Error::ConditionFailed { request: 1, item, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(item, Some(account("a", 1)));
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert_eq!((status.state, status.finished), (State::RolledBack, true));
    let one_shot = TransactionId::fresh();
    let refused = bank.transactions.run(Some(one_shot.clone()), None, vec![put("b", 1), poor()]).await;
    assert!(matches!(&refused, Err(Error::ConditionFailed { request: 1, item: Some(_), .. })), "{refused:?}");
    assert_eq!(bank.transactions.status(&one_shot.public()).await.expect("known").state, State::RolledBack);
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 1)]);
    bank.assert_clean().await;
}

async fn update_that_dynamodb_refuses_rolls_everything_back(bank: Bank) {
    // DynamoDB names the invalid write of a call in the reasons of the cancellation; DynamoDB Local does not.
    let at_fault = if bank.is_embedded() { "requests[1].Update" } else { "requests" };
    bank.open("a", 1).await;
    let mut text = account("text", 0);
    text.insert("balance".into(), AttributeValue::S("much".into()));
    bank.write(text.clone()).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    let refused = bank.transactions.add(&id, vec![add("b", 1), add("text", 1)], None).await;
    assert!(matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == at_fault), "{refused:?}");
    assert_eq!(bank.balance("a").await, Some(1));
    assert_eq!(bank.raw("text").await, Some(text));
    assert_eq!(bank.raw("b").await, None);
    bank.assert_clean().await;
    let refused = bank.transactions.run(None, None, vec![add("a", 1), add("text", 1)]).await;
    assert!(matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == at_fault), "{refused:?}");
    assert_eq!(bank.balance("a").await, Some(1));
}

async fn reserved_names_and_tables_are_refused(bank: Bank) {
    let id = begin(&bank.transactions).await;
    let mut in_item = put("a", 1);
    let Action::Put { item } = &mut in_item.action else { unreachable!() };
    item.insert("leaseholdTxId".into(), AttributeValue::S("x".into()));
    let in_condition = when(add("a", 1), "attribute_not_exists(leaseholdTxId)");
    let mut in_names = when(add("a", 1), "attribute_not_exists(#x)");
    in_names.names.insert("#x".into(), "leaseholdTxApplied".into());
    let mut own_table = get("a");
    own_table.table = "transactions".into();
    let mut lock_table = get("a");
    lock_table.table = "arn:aws:dynamodb:us-east-1:123456789012:table/locks".into();
    let mut unused = get("a");
    unused.values.insert(":x".into(), AttributeValue::N("1".into()));
    let mut wrong_key = get("a");
    let Action::Get { key, .. } = &mut wrong_key.action else { unreachable!() };
    key.insert("more".into(), AttributeValue::N("1".into()));
    let mut no_table = get("a");
    no_table.table = "nowhere".into();
    for (request, at_fault) in [
        (in_item, "requests[0].Put.Item"),
        (in_condition, "requests[0].Update.ConditionExpression"),
        (in_names, "requests[0].Update.ExpressionAttributeNames"),
        (own_table, "requests[0].Get.TableName"),
        (lock_table, "requests[0].Get.TableName"),
        (unused, "requests[0].Get.ExpressionAttributeValues"),
        (wrong_key, "requests[0].Get.Key"),
        (no_table, "tableName"),
    ] {
        let refused = bank.transactions.add(&id, vec![request], None).await;
        assert!(matches!(&refused, Err(Error::InvalidRequest { field, .. }) if field == at_fault), "{refused:?}");
    }
    bank.transactions.commit(&id).await.expect("still open");
}

async fn second_transaction_waits_then_rolls_the_idle_one_back(bank: Bank) {
    bank.open("a", 100).await;
    let idle = begin(&bank.transactions).await;
    bank.transactions.add(&idle, vec![add("a", -100)], None).await.expect("added");
    tokio::time::advance(std::time::Duration::from_millis(10)).await;
    let started = tokio::time::Instant::now();
    bank.transactions.run(None, None, vec![add("a", 1)]).await.expect("done");
    let waited = started.elapsed().as_millis();
    assert!((1000..3000).contains(&waited), "it waited {waited} ms");
    assert_eq!(bank.balance("a").await, Some(101));
    let Err(Error::RolledBack { reason }) = bank.transactions.commit(&idle).await else { panic!("rolled back") };
    assert!(reason.contains("needed its item accounts[id=a]"), "{reason}");
    bank.assert_clean().await;
}

async fn second_transaction_waits_when_the_first_is_at_work(bank: Bank) {
    bank.open("a", 100).await;
    let busy = begin(&bank.transactions).await;
    bank.transactions.add(&busy, vec![add("a", -100)], None).await.expect("added");
    tokio::time::advance(std::time::Duration::from_millis(10)).await;
    let transactions = bank.transactions.clone();
    let id = busy.clone();
    let work = tokio::spawn(async move {
        for number in 0..40 {
            tokio::time::sleep(std::time::Duration::from_millis(400)).await;
            transactions.add(&id, vec![add(&format!("other-{number}"), 1)], None).await.expect("added");
        }
        transactions.commit(&id).await.expect("committed");
    });
    let refused = bank.transactions.run(None, None, vec![add("a", 1)]).await;
    assert!(matches!(&refused, Err(Error::Contended { other, .. }) if *other == busy.public()), "{refused:?}");
    work.await.expect("the work is done");
    assert_eq!(bank.balance("a").await, Some(0));
    // The transaction that failed was never begun, as far as the tables show.
    bank.assert_clean().await;
}

async fn older_transaction_continues_when_two_wait_for_each_other(bank: Bank) {
    let (older, younger) = {
        let older = begin(&bank.transactions).await;
        tokio::time::advance(std::time::Duration::from_millis(10)).await;
        (older, begin(&bank.transactions).await)
    };
    bank.transactions.add(&older, vec![add("a", 1)], None).await.expect("added");
    bank.transactions.add(&younger, vec![add("b", 10)], None).await.expect("added");
    let (first, second) = tokio::join!(
        bank.transactions.add(&older, vec![add("b", 1)], None),
        bank.transactions.add(&younger, vec![add("a", 10)], None),
    );
    first.expect("the older one goes on");
    assert!(matches!(second, Err(Error::RolledBack { .. })), "{second:?}");
    bank.transactions.commit(&older).await.expect("committed");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(1), Some(1)));
    bank.assert_clean().await;
}

async fn many_items_take_many_batches(bank: Bank) {
    let ids: Vec<_> = (0..250).map(|number| format!("account-{number}")).collect();
    for id in ids.iter().step_by(2) {
        bank.open(id, 100).await;
    }
    for outcome in [State::RolledBack, State::Committed] {
        let id = begin(&bank.transactions).await;
        let requests = ids.iter().map(|id| add(id, 1)).collect();
        bank.transactions.add(&id, requests, None).await.expect("added");
        match outcome {
            State::Committed => bank.transactions.commit(&id).await.expect("committed"),
            _ => bank.transactions.rollback(&id).await.expect("rolled back"),
        }
        bank.assert_clean().await;
        let total: i64 = bank.scan(ACCOUNTS).await.iter().map(balance_of).sum();
        assert_eq!(total, if outcome == State::Committed { 12_750 } else { 12_500 });
    }
}

async fn large_items_are_split_by_size(bank: Bank) {
    let large = |id: &str, byte: &str| {
        let mut item = key(id);
        item.insert("blob".into(), AttributeValue::S(byte.repeat(300_000)));
        item
    };
    let id = begin(&bank.transactions).await;
    let ids: Vec<_> = (0..20).map(|number| format!("large-{number}")).collect();
    let puts = |byte: &str| ids.iter().map(|id| request(Action::Put { item: large(id, byte) })).collect::<Vec<_>>();
    bank.transactions.add(&id, puts("a"), None).await.expect("inserted");
    bank.transactions.commit(&id).await.expect("committed");
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, puts("b"), None).await.expect("replaced");
    bank.transactions.rollback(&id).await.expect("rolled back");
    for item in bank.scan(ACCOUNTS).await {
        assert!(item["blob"].as_s().expect("a text").starts_with('a'));
    }
    let mut too_large = key("x");
    too_large.insert("blob".into(), AttributeValue::S("x".repeat(410_000)));
    let refused = bank.transactions.run(None, None, vec![request(Action::Put { item: too_large })]).await;
    assert!(matches!(refused, Err(Error::TooLarge(_))), "{refused:?}");
    bank.assert_clean().await;
}

async fn pages_show_what_is_committed(bank: Bank) {
    for number in 0..10 {
        bank.open(&format!("a{number}"), number).await;
    }
    let id = begin(&bank.transactions).await;
    bank.transactions
        .add(&id, vec![add("a1", 100), put("new", 100), delete("a2"), get("a3")], None)
        .await
        .expect("added");
    let page = |isolation| {
        let transactions = bank.transactions.clone();
        async move {
            let mut found = Vec::new();
            let mut request = ListRequest { table: ACCOUNTS.into(), limit: Some(4), ..ListRequest::default() };
            loop {
                let page = transactions.reader.list(&request, isolation).await.expect("listed");
                found.extend(page.items);
                request.start = page.next;
                if request.start.is_none() {
                    return (found.len(), found.iter().map(balance_of).sum::<i64>());
                }
            }
        }
    };
    assert_eq!(page(Isolation::Committed).await, (10, 45));
    assert_eq!(page(Isolation::Uncommitted).await, (11, 245));
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(page(Isolation::Committed).await, (10, 243));
    let mut query = ListRequest { table: ACCOUNTS.into(), ..ListRequest::default() };
    query.key_condition = Some("id = :id".into());
    query.projection = Some("balance".into());
    query.values.insert(":id".into(), AttributeValue::S("a1".into()));
    let found = bank.transactions.reader.list(&query, Isolation::Committed).await.expect("queried").items;
    assert_eq!(found, [Item::from([("balance".to_owned(), AttributeValue::N("101".into()))])]);
}

async fn sweep_ends_what_nobody_works_on_and_forgets_what_is_over(bank: Bank) {
    bank.open("a", 1).await;
    let abandoned = begin(&bank.transactions).await;
    bank.transactions.add(&abandoned, vec![add("a", 1), put("b", 1)], None).await.expect("added");
    let kept = begin(&bank.transactions).await;
    bank.transactions.add(&kept, vec![add("c", 1)], None).await.expect("added");
    tokio::time::advance(std::time::Duration::from_secs(50)).await;
    bank.transactions.add(&kept, Vec::new(), None).await.expect("still open");
    let swept = bank.transactions.sweeper.sweep(100).await.expect("swept");
    assert_eq!(swept.examined, 0, "nothing is due: {swept:?}");
    tokio::time::advance(std::time::Duration::from_secs(20)).await;
    let swept = bank.transactions.sweeper.sweep(100).await.expect("swept");
    assert_eq!((swept.watched, swept.rolled_back), (2, 0), "seen for the first time: {swept:?}");
    tokio::time::advance(std::time::Duration::from_secs(50)).await;
    bank.transactions.add(&kept, Vec::new(), None).await.expect("still open");
    tokio::time::advance(std::time::Duration::from_secs(20)).await;
    let (one, two) = tokio::join!(bank.transactions.sweeper.sweep(100), bank.transactions.sweeper.sweep(100));
    let (one, two) = (one.expect("swept"), two.expect("swept"));
    assert_eq!((one.failed, two.failed), (0, 0), "{one:?} {two:?}");
    assert!(one.rolled_back + two.rolled_back >= 1, "{one:?} {two:?}");
    assert_eq!(bank.balance("a").await, Some(1));
    bank.transactions.commit(&kept).await.expect("it was spared");
    bank.assert_clean().await;
    let swept = bank.transactions.sweeper.sweep(1).await.expect("swept");
    assert_eq!((swept.examined, swept.more), (0, false), "what is finished does not concern a sweeper");
    bank.expire(std::time::Duration::from_hours(8 * 24)).await;
    assert_eq!(bank.scan("transactions").await, Vec::<Item>::new());
    assert!(matches!(bank.transactions.status(&kept.public()).await, Err(Error::NotFound)));
}

async fn one_shots_take_the_short_way_and_repeat_safely(bank: Bank) {
    bank.open("a", 100).await;
    bank.faults.take_calls();
    let id = TransactionId::fresh();
    let requests = || vec![add("a", -10), add("b", 10)];
    bank.transactions.run(Some(id.clone()), None, requests()).await.expect("done");
    assert_eq!(bank.faults.take_calls(), 2, "the keys of the table, once, and one write");
    bank.transactions.run(Some(id.clone()), None, requests()).await.expect("a repeat");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(90), Some(10)));
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert_eq!((status.state, status.finished, status.requests.len()), (State::Committed, true, 2));
    let (_, read) = bank.transactions.run(None, None, vec![get("a"), get("b"), get("c")]).await.expect("read");
    assert_eq!(balances(&read.into_iter().map(|answer| answer.item).collect::<Vec<_>>()), [Some(90), Some(10), None]);
    bank.assert_clean().await;
}

async fn damage_is_told_and_touches_nothing(bank: Bank) {
    let large = |byte: &str| {
        let mut item = account("a", 1);
        item.insert("blob".into(), AttributeValue::S(byte.repeat(250_000)));
        item
    };
    bank.write(large("a")).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![request(Action::Put { item: large("b") })], None).await.expect("added");
    // Another writer deletes the image.
    for row in bank.scan("transactions").await {
        if row["row"].as_s().expect("a text").starts_with("2#") {
            bank.remove_row(row).await;
        }
    }
    let read = bank.transactions.reader.read(vec![look("a")], Isolation::Committed).await;
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    let undone = bank.transactions.rollback(&id).await;
    assert!(matches!(undone, Err(Error::Corrupt { .. })), "{undone:?}");
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert!(!status.finished && status.stuck.is_some_and(|reason| reason.contains("missing")));
    assert!(bank.raw("a").await.expect("there")["blob"].as_s().expect("a text").starts_with('b'));
}
