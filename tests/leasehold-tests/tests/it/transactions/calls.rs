//! The requests to DynamoDB that a step makes: as few as possible, none beyond DynamoDB's limits, and no more after a
//! fault than the fault requires.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_tests::bank::{
    ACCOUNTS, Bank, TRANSACTIONS, account, add, adds, begin, get, key, padded, put, request, when,
};
use leasehold_tests::{Fault, Faults, Sent};
use leasehold_transactions::{Action, Error, Item, Policy, TransactionId, TransactionRequest};
use tokio::time::{Instant, advance};

/// The operations since the last recording, without the descriptions of tables.
fn operations(faults: &Faults) -> Vec<String> {
    let operations = faults.record().into_iter().map(|sent| sent.operation);
    operations.filter(|operation| operation != "DescribeTable").collect()
}

/// The numbers of parts in the accounts table of each request of this operation.
fn sizes(sent: &[Sent], operation: &str) -> Vec<usize> {
    let of_accounts = |sent: &Sent| match operation {
        "TransactWriteItems" => {
            let items = sent.body["TransactItems"].as_array().expect("a list");
            let tables = items.iter().flat_map(|item| item.as_object().expect("an object").values());
            tables.filter(|write| write["TableName"] == ACCOUNTS).count()
        }
        "BatchGetItem" => sent.body["RequestItems"][ACCOUNTS]["Keys"].as_array().map_or(0, Vec::len),
        "BatchExecuteStatement" => sent.body["Statements"].as_array().map_or(0, Vec::len),
        _ => usize::from(sent.body["TableName"] == ACCOUNTS),
    };
    let sizes = sent.iter().filter(|sent| sent.operation == operation).map(of_accounts);
    sizes.filter(|size| *size > 0).collect()
}

#[tokio::test(start_paused = true)]
async fn items_are_freed_25_in_a_call() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, adds(26), None).await.expect("added");
    bank.faults.record();
    bank.transactions.commit(&id).await.expect("committed");
    let sent = bank.faults.record();
    assert_eq!((sizes(&sent, "BatchExecuteStatement"), sizes(&sent, "UpdateItem")), (vec![25], vec![1]));
    bank.assert_clean().await;
}

/// An update that is undone needs an expression, which no statement has.
#[tokio::test(start_paused = true)]
async fn items_that_need_an_expression_join_no_batch() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    bank.open("b", 1).await;
    let id = begin(&bank.transactions).await;
    let requests = ["a", "b", "x", "y", "z"].map(|id| add(id, 1));
    bank.transactions.add(&id, requests.into(), None).await.expect("added");
    bank.faults.record();
    bank.transactions.rollback(&id).await.expect("rolled back");
    let sent = bank.faults.record();
    assert_eq!((sizes(&sent, "BatchExecuteStatement"), sizes(&sent, "UpdateItem")), (vec![3], vec![1, 1]));
    assert_eq!(bank.scan(ACCOUNTS).await.len(), 2);
    bank.assert_clean().await;
}

/// A quotation mark would end a name in a statement.
#[tokio::test(start_paused = true)]
async fn only_plain_names_are_named_in_a_statement() {
    for (name, is_plain) in [("first-name", true), ("first_name", true), ("a\"b", false), ("a b", false)] {
        let bank = Bank::new().await;
        let id = begin(&bank.transactions).await;
        let update = |id: &str| {
            let mut update = request(Action::Update { key: key(id), expression: "SET #name = :value".into() });
            update.names.insert("#name".into(), name.into());
            update.values.insert(":value".into(), AttributeValue::S("x".into()));
            update
        };
        bank.open("a", 1).await;
        bank.open("b", 1).await;
        bank.transactions.add(&id, vec![update("a"), update("b")], None).await.expect("added");
        bank.faults.record();
        bank.transactions.commit(&id).await.expect("committed");
        let sent = bank.faults.record();
        assert_eq!(sizes(&sent, "BatchExecuteStatement"), if is_plain { vec![2] } else { vec![] }, "{name}");
        assert!(bank.scan(ACCOUNTS).await.iter().all(|item| item.contains_key(name)), "{name}");
        bank.assert_clean().await;
    }
}

/// An expression has at most 4 KB, so that many attributes are restored together with the whole item.
#[tokio::test(start_paused = true)]
async fn rollback_writes_only_what_a_put_changed() {
    let text = |value: &str| AttributeValue::S(value.into());
    let item = |changed: usize| {
        let value = |number| text(if number < changed { "new" } else { "old" });
        let attributes = (0..150).map(|number| (format!("attribute-{number}"), value(number)));
        key("a").into_iter().chain(attributes).collect::<Item>()
    };
    for (changed, names) in [(1, Some(1)), (100, Some(100)), (101, None), (150, None)] {
        let bank = Bank::new().await;
        bank.write(item(0)).await;
        let id = begin(&bank.transactions).await;
        let put = request(Action::Put { item: item(changed) });
        bank.transactions.add(&id, vec![put], None).await.expect("added");
        bank.faults.record();
        bank.transactions.rollback(&id).await.expect("rolled back");
        let sent = bank.faults.record();
        let sent = sent.into_iter().filter(|sent| sent.body["TableName"] == ACCOUNTS);
        let written: Vec<_> = sent.filter(|sent| sent.operation != "GetItem").collect();
        let [write] = written.as_slice() else { panic!("{written:?}") };
        assert_eq!(write.operation, if names.is_some() { "UpdateItem" } else { "PutItem" }, "{changed}");
        let named = write.body["ExpressionAttributeNames"].as_object();
        let restored = named.map(|names| names.keys().filter(|name| name.starts_with("#n")).count());
        assert_eq!(restored, names, "{changed}");
        assert_eq!(bank.scan(ACCOUNTS).await, [item(0)]);
        bank.assert_clean().await;
    }
}

/// A forbidden batch is not retried. A throttled one is not replaced by another call, which would cost more.
#[tokio::test(start_paused = true)]
async fn refused_batch_is_followed_by_what_may_help() {
    for (fault, then) in [
        (Fault::AccessDenied, vec!["UpdateItem"; 4]),
        (Fault::Throttled, vec!["BatchGetItem", "BatchExecuteStatement", "UpdateItem"]),
    ] {
        let bank = Bank::new().await;
        let id = begin(&bank.transactions).await;
        bank.transactions.add(&id, adds(3), None).await.expect("added");
        let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        // The transaction, the decision, the items; then the statements.
        faults.at(4, fault);
        faults.record();
        coordinator.commit(&id).await.expect("committed");
        let sent = operations(&faults);
        assert_eq!(sent[3], "BatchExecuteStatement");
        assert_eq!(sent[4..], then, "{fault:?}");
        bank.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn call_survives_eight_conflicts() {
    for conflicts in [8, 9] {
        let bank = Bank::new().await;
        let (coordinator, faults) = bank.coordinator_with_keys().await;
        faults.script(vec![Fault::TransactionConflict; conflicts]);
        let told = coordinator.run(None, None, vec![add("a", 1)]).await;
        if conflicts == 8 {
            told.expect("done");
        } else {
            assert!(matches!(told, Err(Error::RolledBack { .. })), "{told:?}");
            assert_eq!(bank.balance("a").await, None);
        }
    }
}

/// A coordinator that works on the same transaction may be the reason why an item is not as expected.
#[tokio::test(start_paused = true)]
async fn foreign_write_is_believed_at_the_seventh_look() {
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1)], None).await.expect("added");
    bank.open("a", 50).await;
    bank.faults.record();
    let refused = bank.transactions.add(&id, vec![add("a", 5)], None).await;
    assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
    // The rollback also looks, once.
    assert_eq!(sizes(&bank.faults.record(), "GetItem").len(), 8);
    assert_eq!(bank.scan(ACCOUNTS).await, [account("a", 50)]);
}

/// The reads of a call that waits for three seconds for one of a hundred items.
#[tokio::test(start_paused = true)]
async fn waiting_call_reads_its_items_only_after_the_wait() {
    let bank = Bank::new().await;
    let holder = begin(&bank.transactions).await;
    bank.transactions.add(&holder, vec![add("50", 1)], None).await.expect("added");
    advance(Duration::from_millis(10)).await;
    let (coordinator, faults) = bank.coordinator(Policy { patience_ms: 5000, ..Policy::default() }, Duration::ZERO);
    let id = begin(&coordinator).await;
    faults.record();
    let (added, ()) = tokio::join!(coordinator.add(&id, adds(100), None), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        bank.transactions.commit(&holder).await.expect("committed");
    });
    added.expect("added");
    let units = |sent: &Sent| match sent.operation.as_str() {
        "BatchGetItem" => {
            let tables = sent.body["RequestItems"].as_object().expect("tables").values();
            tables.map(|table| table["Keys"].as_array().map_or(0, Vec::len)).sum()
        }
        "GetItem" | "Query" => 1,
        _ => 0,
    };
    let reads: usize = faults.record().iter().map(units).sum();
    assert!(reads <= 350, "{reads} reads");
    coordinator.commit(&id).await.expect("committed");
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_call_looks_at_two_records_only() {
    let bank = Bank::new().await;
    let holder = begin(&bank.transactions).await;
    bank.transactions.add(&holder, vec![add("a", 1)], None).await.expect("added");
    advance(Duration::from_millis(10)).await;
    let policy = Policy { patience_ms: 5000, contention_ms: 1000, ..Policy::default() };
    let (coordinator, faults) = bank.coordinator(policy, Duration::ZERO);
    let id = begin(&coordinator).await;
    faults.record();
    let start = Instant::now();
    let refused = coordinator.add(&id, vec![add("a", 10)], None).await;
    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    let waited = start.elapsed().as_millis();
    assert!((1000..1100).contains(&waited), "it waited {waited} ms");
    let sent = faults.record();
    assert_eq!(sizes(&sent, "GetItem").len(), 1, "the item is read once");
    let of_records = |sent: &&Sent| sent.operation == "GetItem" && sent.body["TableName"] == TRANSACTIONS;
    let looks = sent.iter().filter(of_records).count();
    assert!((20..=50).contains(&looks), "{looks} looks at two records");
}

/// Adds the second requests after the first, and returns the numbers of writes and of reads in each call.
async fn parts(bank: &Bank, first: Vec<TransactionRequest>, then: Vec<TransactionRequest>) -> [Vec<usize>; 2] {
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, first, None).await.expect("added");
    bank.faults.record();
    bank.transactions.add(&id, then, None).await.expect("added");
    let sent = bank.faults.record();
    ["TransactWriteItems", "BatchGetItem"].map(|operation| sizes(&sent, operation))
}

#[tokio::test(start_paused = true)]
async fn one_write_has_as_many_parts_as_dynamodb_takes() {
    let bank = Bank::new().await;
    let [writes, reads] = parts(&bank, vec![], adds(98)).await;
    assert_eq!((writes, reads), (vec![98], vec![98]));
    let bank = Bank::new().await;
    let [writes, reads] = parts(&bank, vec![], adds(99)).await;
    assert_eq!((writes, reads), (vec![98, 1], vec![98]));
    let bank = Bank::new().await;
    let conditional = adds(60).into_iter().map(|request| when(request, "attribute_not_exists(id)"));
    assert_eq!(parts(&bank, vec![], conditional.collect()).await[0], [60]);
    // An item that is locked and absent takes two parts: the condition is checked apart.
    let ids: Vec<_> = (0..60).map(|number| format!("{number}")).collect();
    let reads = || ids.iter().map(|id| get(id)).collect::<Vec<_>>();
    let puts = |condition: Option<&str>| {
        let put = |id: &String| TransactionRequest { condition: condition.map(str::to_owned), ..put(id, 1) };
        ids.iter().map(put).collect::<Vec<_>>()
    };
    let checks = ids.iter().map(|id| when(request(Action::Check { key: key(id) }), "attribute_not_exists(id)"));
    for (then, expected) in
        [(puts(Some("attribute_not_exists(id)")), vec![98, 22]), (puts(None), vec![60]), (checks.collect(), vec![60])]
    {
        let bank = Bank::new().await;
        assert_eq!(parts(&bank, reads(), then).await[0], expected);
    }
}

#[tokio::test(start_paused = true)]
async fn one_write_has_as_many_bytes_as_dynamodb_takes() {
    let ids: Vec<_> = (10..22).map(|number| format!("large-{number}")).collect();
    let bank = Bank::new().await;
    for id in &ids {
        bank.write(padded(id, "x", 300_000)).await;
    }
    // The image of an item counts, too.
    assert_eq!(parts(&bank, vec![], ids.iter().map(|id| get(id)).collect()).await[0], [5, 5, 2]);
    let bank = Bank::new().await;
    let puts = ids.iter().map(|id| request(Action::Put { item: padded(id, "x", 300_000) }));
    assert_eq!(parts(&bank, vec![], puts.collect()).await[0], [11, 1]);
    let bank = Bank::new().await;
    let updates = ids.iter().map(|id| {
        let mut update = request(Action::Update { key: key(id), expression: "SET padding = :padding".into() });
        update.values.insert(":padding".into(), AttributeValue::S("x".repeat(100_000)));
        update
    });
    assert_eq!(parts(&bank, vec![], updates.collect()).await[0], [12]);
}

/// Items that cannot be read or written together are tried in halves.
#[tokio::test(start_paused = true)]
async fn requests_are_halved_when_they_are_too_many() {
    const TOO_LARGE: Fault = Fault::Answered(
        r#"{"__type": "com.amazonaws.dynamodb.v20120810#ValidationException",
            "message": "Collection size of items exceeded, by the aggregate size of the items"}"#,
    );
    // The transaction, the items; then the write.
    for faults in [
        vec![Fault::None, Fault::Throttled, Fault::Throttled, Fault::Throttled],
        vec![Fault::None, Fault::None, TOO_LARGE],
    ] {
        let bank = Bank::new().await;
        let (coordinator, its_faults) = bank.coordinator_with_keys().await;
        let id = begin(&coordinator).await;
        its_faults.record();
        its_faults.script(faults.clone());
        coordinator.add(&id, adds(4), None).await.expect("added");
        let mut writes = sizes(&its_faults.record(), "TransactWriteItems");
        if faults.contains(&TOO_LARGE) {
            assert_eq!(writes.remove(0), 4);
        }
        assert_eq!(writes, [2, 2], "{faults:?}");
        coordinator.commit(&id).await.expect("committed");
        bank.assert_clean().await;
    }
}

/// Requests that fit into one call take one call, and a record if the transaction has a name.
#[tokio::test(start_paused = true)]
async fn one_shots_are_one_call_up_to_the_limits() {
    let gets = |count: usize| (0..count).map(|number| get(&format!("{number}"))).collect::<Vec<_>>();
    let named = || Some(TransactionId::fresh());
    for (id, requests, expected) in [
        (None, gets(100), vec!["TransactGetItems"]),
        (named(), gets(100), vec!["TransactGetItems", "PutItem"]),
        (None, adds(99), vec!["TransactWriteItems"]),
        (named(), adds(99), vec!["TransactWriteItems"]),
    ] {
        let bank = Bank::new().await;
        bank.faults.record();
        bank.transactions.run(id, None, requests).await.expect("done");
        assert_eq!(operations(&bank.faults), expected);
    }
    for id in [None, named()] {
        let bank = Bank::new().await;
        bank.faults.record();
        let told = bank.transactions.run(id, None, vec![when(add("a", 1), "attribute_exists(id)")]).await;
        assert!(matches!(told, Err(Error::ConditionFailed { .. })), "{told:?}");
        let sent = bank.faults.record();
        assert_eq!((sizes(&sent, "TransactWriteItems"), sizes(&sent, "GetItem")), (vec![1], vec![]));
    }
    for (id, requests) in [(None, gets(101)), (None, adds(100)), (named(), adds(100))] {
        let bank = Bank::new().await;
        bank.faults.record();
        bank.transactions.run(id, None, requests).await.expect("done, in several calls");
        let sent = bank.faults.record();
        assert!(!sent.iter().any(|sent| sent.operation == "TransactGetItems"));
        assert!(sent.iter().all(|sent| sent.body["TransactItems"].as_array().is_none_or(|items| items.len() <= 100)));
        bank.assert_clean().await;
    }
}

/// The record of the outcome is enough for the answer to a repeat.
#[tokio::test(start_paused = true)]
async fn repeated_one_shot_reads_its_record_only() {
    let bank = Bank::new().await;
    let id = TransactionId::fresh();
    let requests = || vec![when(add("a", 1), "attribute_not_exists(id)")];
    bank.transactions.run(Some(id.clone()), None, requests()).await.expect("done");
    bank.faults.record();
    bank.transactions.run(Some(id), None, requests()).await.expect("a repeat");
    assert_eq!(operations(&bank.faults), ["TransactWriteItems", "GetItem"]);
}

/// A throttled one-shot is sent again as it was.
#[tokio::test(start_paused = true)]
async fn throttled_one_shot_remains_one_call() {
    for id in [None, Some(TransactionId::fresh())] {
        let bank = Bank::new().await;
        let (coordinator, faults) = bank.coordinator_with_keys().await;
        faults.record();
        faults.script([Fault::Throttled]);
        coordinator.run(id, None, vec![add("a", 1)]).await.expect("done");
        assert_eq!(operations(&faults), ["TransactWriteItems"; 2]);
    }
    let bank = Bank::new().await;
    let (coordinator, faults) = bank.coordinator_with_keys().await;
    faults.script([Fault::Throttled; 3]);
    let told = coordinator.run(None, None, vec![get("a")]).await;
    assert!(matches!(told, Err(Error::Throttled(_))), "{told:?}");
    // Another writer is at work on the items: the call locks them.
    faults.record();
    faults.script([Fault::TransactionConflict]);
    coordinator.run(None, None, vec![get("a")]).await.expect("read");
    let reads = operations(&faults).into_iter().filter(|operation| operation == "TransactGetItems");
    assert_eq!(reads.count(), 1);
}

/// A role may lack the permission for the one call. The other calls then do.
#[tokio::test(start_paused = true)]
async fn forbidden_one_shot_takes_several_calls() {
    for id in [None, Some(TransactionId::fresh())] {
        for requests in [vec![add("a", 1)], vec![get("a")]] {
            let bank = Bank::new().await;
            let (coordinator, faults) = bank.coordinator_with_keys().await;
            faults.script([Fault::AccessDenied]);
            coordinator.run(id.clone(), None, requests.clone()).await.expect("done");
            bank.assert_clean().await;
            // They are forbidden, too: the caller is told at once.
            faults.script([Fault::AccessDenied; 2]);
            let id = id.as_ref().map(|_| TransactionId::fresh());
            let start = Instant::now();
            let told = coordinator.run(id, None, requests).await;
            assert!(matches!(told, Err(Error::Forbidden { .. })), "{told:?}");
            assert_eq!(start.elapsed(), Duration::ZERO);
        }
    }
}

/// Nothing is certain where no record can be written that stops a late write.
#[tokio::test(start_paused = true)]
async fn one_shot_without_a_record_is_not_called_over() {
    let late = Fault::Late(Duration::from_secs(30));
    for first in [Fault::AccessDenied, Fault::Throttled, Fault::RequestLost, late] {
        let bank = Bank::new().await;
        let (coordinator, its_faults) = bank.coordinator_with_keys().await;
        its_faults.script(std::iter::once(first).chain(vec![Fault::Throttled; 90]));
        let told = coordinator.run(None, None, vec![add("a", 1)]).await;
        let Err(Error::Unknown { id, .. }) = told else { panic!("{first:?}: {told:?}") };
        its_faults.script([]);
        tokio::time::sleep(Duration::from_mins(1)).await;
        let is_done = first == late;
        assert_eq!(bank.balance("a").await, is_done.then_some(1), "{first:?}");
        assert_eq!(coordinator.status(&id.public()).await.is_ok(), is_done);
    }
}

/// A read is no transaction that anyone could ask for, unless its caller named it.
#[tokio::test(start_paused = true)]
async fn nameless_read_leaves_no_record() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    bank.transactions.run(None, None, vec![get("a"), get("b")]).await.expect("read");
    assert_eq!(bank.scan(TRANSACTIONS).await, []);
}
