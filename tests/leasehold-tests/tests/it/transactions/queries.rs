//! Queries under locks.

use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, ScalarAttributeType};
use leasehold_tests::Fault;
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS, account, begin, put, request};
use leasehold_transactions::{
    Action, Error, Expected, Item, Policy, QueryRequest, State, TransactionId, TransactionRequest, Transactions,
    measured,
};

use super::guards::until_reached;
use super::indexes::{PLAYERS, key, make_players, on_players, player, text};

/// A bank with players of the red team, by name and score.
async fn bank_of(players: &[(&str, u32)]) -> Bank {
    let bank = Bank::new().await;
    make_players(&bank).await;
    for (name, score) in players {
        write(&bank, player(name, *score)).await;
    }
    bank
}

/// Writes an item past all transactions.
async fn write(bank: &Bank, item: Item) {
    bank.dynamodb.put_item().table_name(PLAYERS).set_item(Some(item)).send().await.expect("put");
}

async fn remove(bank: &Bank, name: &str) {
    bank.dynamodb.delete_item().table_name(PLAYERS).set_key(Some(key(name))).send().await.expect("deleted");
}

/// Inserts a player in a transaction.
async fn join(bank: &Bank, item: Item) {
    let put = on_players(Action::Put { item });
    bank.transactions.run(None, None, vec![put]).await.expect("committed");
}

fn query(index: Option<&str>, condition: &str, values: &[(&str, AttributeValue)]) -> QueryRequest {
    QueryRequest {
        table: PLAYERS.into(),
        index: index.map(str::to_owned),
        key_condition: condition.into(),
        values: values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        forward: true,
        ..QueryRequest::default()
    }
}

fn of_league() -> QueryRequest {
    query(None, "league = :value", &[(":value", text("first"))])
}

fn of_team(index: &str) -> QueryRequest {
    query(Some(index), "team = :value", &[(":value", text("red"))])
}

fn by_score(condition: &str) -> QueryRequest {
    let low = AttributeValue::N("2".into());
    query(Some("by-score"), &format!("league = :value AND {condition}"), &[(":value", text("first")), (":low", low)])
}

fn shown(items: &[Item]) -> Vec<String> {
    assert!(items.iter().all(|item| !item.keys().any(|name| name.starts_with("leaseholdTx"))), "{items:?}");
    let name = |item: &Item| item["name"].as_s().expect("a text").clone();
    items.iter().map(|item| format!("{} {}", name(item), item["score"].as_n().expect("a number"))).collect()
}

async fn found(transactions: &Transactions, id: &TransactionId, query: &QueryRequest, call: &str) -> Vec<String> {
    shown(&transactions.query(id, query, Some(call)).await.expect("found"))
}

async fn lock_of(bank: &Bank, name: &str) -> Option<AttributeValue> {
    let item = bank.dynamodb.get_item().table_name(PLAYERS).set_key(Some(key(name))).send().await.expect("read").item;
    item?.remove("leaseholdTxId")
}

/// The field and the message of a refusal.
fn refusal(result: Result<Vec<Item>, Error>) -> (String, String) {
    match result {
        Err(Error::InvalidRequest { field, message }) => (field, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn query_locks_and_returns_the_items_that_match() {
    let bank = bank_of(&[("ann", 3), ("bob", 1), ("eve", 2)]).await;
    let mut other = player("zoe", 9);
    other.insert("league".into(), text("second"));
    other.insert("team".into(), text("blue"));
    write(&bank, other).await;
    for (request, expected) in [
        (of_league(), ["ann 3", "bob 1", "eve 2"].as_slice()),
        (of_team("by-team"), &["ann 3", "bob 1", "eve 2"]),
        // An index without the locks, and without the other attributes.
        (of_team("names-by-team"), &["ann 3", "bob 1", "eve 2"]),
        (by_score("score >= :low"), &["eve 2", "ann 3"]),
        (by_score("score < :low"), &["bob 1"]),
        (QueryRequest { forward: false, ..by_score("score >= :low") }, &["ann 3", "eve 2"]),
    ] {
        let id = begin(&bank.transactions).await;
        assert_eq!(found(&bank.transactions, &id, &request, "1").await, expected, "{request:?}");
        for (name, score) in [("ann", "ann 3"), ("bob", "bob 1"), ("eve", "eve 2")] {
            assert_eq!(lock_of(&bank, name).await.is_some(), expected.contains(&score), "{name} {request:?}");
        }
        let expected_items = Expected { items: Some(expected.len() as u64), writes: Some(0) };
        bank.transactions.commit_expected(&id, expected_items).await.expect("of these items, without a write");
        bank.assert_clean().await;
    }
    let id = begin(&bank.transactions).await;
    let mut request = of_league();
    request.projection = Some("#n, score".into());
    request.names.insert("#n".into(), "name".into());
    let items = bank.transactions.query(&id, &request, None).await.expect("found");
    assert!(items.iter().all(|item| item.len() == 2), "{items:?}");
    bank.transactions.rollback(&id).await.expect("rolled back");
}

#[tokio::test(start_paused = true)]
async fn query_waits_for_whoever_changes_an_item() {
    for commits in [true, false] {
        let bank = bank_of(&[("ann", 1), ("bob", 1)]).await;
        let holder = begin(&bank.transactions).await;
        let mut raise = on_players(Action::Update { key: key("ann"), expression: "ADD score :one".into() });
        raise.values.insert(":one".into(), AttributeValue::N("1".into()));
        let writes = vec![raise, on_players(Action::Put { item: player("eve", 5) })];
        let writes = [writes, vec![on_players(Action::Delete { key: key("bob") })]].concat();
        bank.transactions.add(&holder, writes, None).await.expect("added");
        tokio::time::sleep(Duration::from_millis(10)).await;
        let id = begin(&bank.transactions).await;
        let request = of_league();
        let end = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(lock_of(&bank, "ann").await.is_some());
            if commits {
                bank.transactions.commit(&holder).await.expect("committed");
            } else {
                bank.transactions.rollback(&holder).await.expect("rolled back");
            }
        };
        let (found, ()) = tokio::join!(found(&bank.transactions, &id, &request, "1"), end);
        let expected = if commits { ["ann 2", "eve 5"] } else { ["ann 1", "bob 1"] };
        assert_eq!(found, expected);
        bank.transactions.commit(&id).await.expect("committed");
        bank.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_query_has_the_same_answer_whatever_came() {
    for request in [of_league(), by_score("score >= :low"), of_team("by-team"), of_team("names-by-team")] {
        for before in [&[("bob", 3)][..], &[]] {
            let bank = bank_of(before).await;
            let id = begin(&bank.transactions).await;
            let first = found(&bank.transactions, &id, &request, "1").await;
            assert_eq!(first.len(), before.len());
            join(&bank, player("ann", 4)).await;
            assert_eq!(found(&bank.transactions, &id, &request, "1").await, first);
            assert!(lock_of(&bank, "ann").await.is_none(), "a repeat locks nothing");
            // An item may come between two queries: a phantom.
            let again = found(&bank.transactions, &id, &request, "2").await;
            assert_eq!(again.len(), before.len() + 1, "another call is another query: {again:?}");
            assert_eq!(found(&bank.transactions, &id, &request, "1").await, first);
            assert_eq!(found(&bank.transactions, &id, &request, "2").await, again);
            bank.transactions.commit(&id).await.expect("committed");
            bank.assert_clean().await;
        }
    }
}

/// Between the first look and the lock, one item comes and another one goes.
#[tokio::test(start_paused = true)]
async fn answer_of_a_query_is_the_range_at_one_moment() {
    for (request, calls_before_the_lock) in [(of_league(), 5), (by_score("score >= :low"), 6)] {
        let bank = bank_of(&[("bob", 3), ("eve", 2)]).await;
        let id = begin(&bank.transactions).await;
        let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        // The table's key, and its indexes; the transaction, the look; the transaction, then the items.
        faults.at(calls_before_the_lock, Fault::Held);
        let mut work = std::pin::pin!(slow.query(&id, &request, Some("1")));
        until_reached(&mut work, &faults).await;
        join(&bank, player("ann", 4)).await;
        remove(&bank, "bob").await;
        faults.release();
        let mut answer = shown(&work.await.expect("found"));
        answer.sort();
        assert_eq!(answer, ["ann 4", "eve 2"]);
        assert!(lock_of(&bank, "ann").await.is_some());
        bank.transactions.commit(&id).await.expect("committed");
        bank.assert_clean().await;
    }
}

/// An index lags behind its table. Here the item changes between the look and the lock.
#[tokio::test(start_paused = true)]
async fn item_that_matches_no_more_is_left_out() {
    for (request, leaves) in [
        (of_team("by-team"), ("team", text("blue"))),
        (of_team("names-by-team"), ("team", text("blue"))),
        (by_score("score >= :low"), ("score", AttributeValue::N("1".into()))),
    ] {
        let bank = bank_of(&[("ann", 4), ("bob", 3)]).await;
        let id = begin(&bank.transactions).await;
        let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        faults.at(5, Fault::Held);
        let mut work = std::pin::pin!(slow.query(&id, &request, Some("1")));
        until_reached(&mut work, &faults).await;
        let mut changed = player("ann", 4);
        changed.insert(leaves.0.into(), leaves.1);
        write(&bank, changed).await;
        faults.release();
        assert_eq!(shown(&work.await.expect("found")), ["bob 3"], "{request:?}");
        assert_eq!(found(&bank.transactions, &id, &request, "1").await, ["bob 3"]);
        assert!(lock_of(&bank, "ann").await.is_some(), "it stays locked all the same");
        bank.transactions.commit(&id).await.expect("committed");
        bank.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn query_sees_the_changes_of_its_transaction() {
    let bank = bank_of(&[("ann", 4), ("bob", 3)]).await;
    let id = begin(&bank.transactions).await;
    let mut raise = on_players(Action::Update { key: key("ann"), expression: "SET score = :one".into() });
    raise.values.insert(":one".into(), AttributeValue::N("1".into()));
    let put = on_players(Action::Put { item: player("eve", 9) });
    let delete = on_players(Action::Delete { key: key("bob") });
    bank.transactions.add(&id, vec![raise, put, delete], Some("1")).await.expect("added");
    for (request, expected) in [
        (of_league(), ["ann 1", "eve 9"].as_slice()),
        (of_team("names-by-team"), &["ann 1", "eve 9"]),
        (by_score("score >= :low"), &["eve 9"]),
    ] {
        assert_eq!(found(&bank.transactions, &id, &request, "2").await, expected, "{request:?}");
        assert_eq!(found(&bank.transactions, &id, &request, "2").await, expected, "{request:?}");
    }
    bank.transactions.rollback(&id).await.expect("rolled back");
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn query_of_more_than_100_items_is_refused_and_locks_none() {
    let names: Vec<_> = (0..101).map(|number| format!("player-{number:03}")).collect();
    let bank = bank_of(&names.iter().map(|name| (name.as_str(), 5)).collect::<Vec<_>>()).await;
    let id = begin(&bank.transactions).await;
    for request in [of_league(), of_team("by-team")] {
        let (field, message) = refusal(bank.transactions.query(&id, &request, Some("1")).await);
        assert_eq!(field, "requests[0].Query.KeyConditionExpression");
        assert!(message.contains("More than 100 items match") && message.contains("sort key"), "{message}");
        assert!(lock_of(&bank, "player-000").await.is_none());
    }
    let mut narrower = of_league();
    narrower.key_condition = "league = :value AND #n > :first".into();
    narrower.names.insert("#n".into(), "name".into());
    narrower.values.insert(":first".into(), text("player-000"));
    assert_eq!(bank.transactions.query(&id, &narrower, Some("2")).await.expect("found").len(), 100);
    assert_eq!(bank.transactions.query(&id, &narrower, Some("2")).await.expect("found").len(), 100);
    let settled = Expected { items: Some(100), writes: None };
    bank.transactions.commit_expected(&id, settled).await.expect("committed");
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn query_that_makes_no_sense_is_refused_and_changes_nothing() {
    let bank = bank_of(&[("ann", 4)]).await;
    let id = begin(&bank.transactions).await;
    let with = |change: fn(&mut QueryRequest)| {
        let mut request = of_league();
        change(&mut request);
        request
    };
    for (request, at_fault) in [
        (with(|it| it.table = "arn:aws:dynamodb:x".into()), "requests[0].Query.TableName"),
        (with(|it| it.table = TRANSACTIONS.into()), "requests[0].Query.TableName"),
        (with(|it| it.index = Some("none".into())), "requests[0].Query.IndexName"),
        (with(|it| it.key_condition = "leaseholdTxId = :value".into()), "requests[0].Query.KeyConditionExpression"),
        (with(|it| it.key_condition = "league :value".into()), "requests[0].Query.KeyConditionExpression"),
        (with(|it| it.key_condition = "team = :value".into()), "requests[0].Query.KeyConditionExpression"),
        (with(|it| it.key_condition = "league > :value".into()), "requests[0].Query.KeyConditionExpression"),
        (with(|it| it.projection = Some("a..b".into())), "requests[0].Query.ProjectionExpression"),
        (with(|it| drop(it.names.insert("#n".into(), "name".into()))), "requests[0].Query.ExpressionAttributeNames"),
        (with(|it| drop(it.values.insert(":x".into(), text("x")))), "requests[0].Query.ExpressionAttributeValues"),
        (with(|it| it.table = "none".into()), "tableName"),
    ] {
        assert_eq!(refusal(bank.transactions.query(&id, &request, None).await).0, at_fault, "{request:?}");
    }
    assert!(lock_of(&bank, "ann").await.is_none());
    bank.transactions.commit(&id).await.expect("still open");
    let over = bank.transactions.query(&id, &of_league(), None).await;
    assert!(matches!(over, Err(Error::Committed)), "{over:?}");
    let never = bank.transactions.query(&TransactionId::fresh(), &of_league(), None).await;
    assert!(matches!(never, Err(Error::NotFound)), "{never:?}");
}

#[tokio::test(start_paused = true)]
async fn query_that_is_rolled_back_meanwhile_says_so() {
    // Each call of the query in turn: the table's key, the transaction, the look, …, the answer.
    for call in 2..=9 {
        let bank = bank_of(&[("ann", 4), ("bob", 3)]).await;
        let id = begin(&bank.transactions).await;
        let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        faults.at(call, Fault::Held);
        let request = of_league();
        let mut work = std::pin::pin!(slow.query(&id, &request, Some("1")));
        until_reached(&mut work, &faults).await;
        bank.transactions.rollback(&id).await.expect("rolled back");
        faults.release();
        let told = work.await;
        assert!(matches!(&told, Err(Error::RolledBack { .. })), "{call}: {told:?}");
        bank.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn query_survives_any_fault_of_any_call() {
    for fault in [Fault::RequestLost, Fault::ResponseLost, Fault::Throttled, Fault::ServerError, Fault::Twice] {
        for call in 1..=9 {
            let bank = bank_of(&[("ann", 4), ("bob", 3)]).await;
            let id = begin(&bank.transactions).await;
            let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
            faults.at(call, fault);
            assert_eq!(found(&coordinator, &id, &of_league(), "1").await, ["ann 4", "bob 3"], "{fault:?} {call}");
            let settled = Expected { items: Some(2), writes: Some(0) };
            bank.transactions.commit_expected(&id, settled).await.expect("committed");
            bank.assert_clean().await;
        }
    }
}

/// The range changes with each look.
#[tokio::test(start_paused = true)]
async fn query_gives_up_when_items_keep_coming() {
    let bank = bank_of(&[]).await;
    let id = begin(&bank.transactions).await;
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    let request = of_league();
    let mut work = std::pin::pin!(slow.query(&id, &request, Some("1")));
    let mut come = 0;
    // The table's key, the transaction; then each look is followed by three calls that lock what came.
    faults.at(3, Fault::Held);
    let told = loop {
        tokio::select! {
            biased;
            told = &mut work => break told,
            () = faults.reached() => {}
        }
        write(&bank, player(&format!("player-{come}"), 1)).await;
        come += 1;
        faults.at(4, Fault::Held);
        faults.release();
    };
    assert!(matches!(told, Err(Error::Throttled(_))), "{told:?}");
    assert!(come < 20, "{come}");
    // The same call goes on, and finds them all.
    assert_eq!(found(&bank.transactions, &id, &request, "1").await.len(), come);
    bank.transactions.commit(&id).await.expect("committed");
    bank.assert_clean().await;
}

/// A put of another call that was not applied stays that call's when a query finds its item.
#[tokio::test(start_paused = true)]
async fn query_leaves_the_put_of_another_call_to_that_call() {
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let id = begin(&bank.transactions).await;
    let (sleeper, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The table's key, the transaction, the item, the lock, the item again; then it would apply.
    faults.at(6, Fault::Held);
    let mut work = Box::pin(sleeper.add(&id, vec![put("a", 7)], Some("1")));
    until_reached(&mut work, &faults).await;
    let request = QueryRequest {
        table: ACCOUNTS.into(),
        key_condition: "id = :a".into(),
        values: Item::from([(":a".to_owned(), text("a"))]),
        ..QueryRequest::default()
    };
    bank.transactions.query(&id, &request, Some("2")).await.expect("found");
    faults.script([Fault::DiesBefore]);
    faults.release();
    drop(work);
    bank.transactions.add(&id, vec![put("a", 7)], Some("1")).await.expect("the repeat applies it");
    let after = bank.transactions.query(&id, &request, Some("3")).await.expect("found");
    assert_eq!(after, [account("a", 7)]);
    bank.transactions.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(7));
    bank.assert_clean().await;
}

/// The items that a query has locked cannot change before the end, and others may.
#[tokio::test(start_paused = true)]
async fn nobody_changes_what_a_query_returned() {
    let bank = bank_of(&[("ann", 4)]).await;
    let id = begin(&bank.transactions).await;
    assert_eq!(found(&bank.transactions, &id, &of_league(), "1").await, ["ann 4"]);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let other = begin(&bank.transactions).await;
    let delete = on_players(Action::Delete { key: key("ann") });
    let (taken, ()) = tokio::join!(bank.transactions.add(&other, vec![delete], None), async {
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(bank.transactions.add(&id, Vec::new(), None).await);
        }
    });
    assert!(matches!(taken, Err(Error::Contended { .. })), "{taken:?}");
    bank.transactions.commit(&id).await.expect("committed");
    bank.transactions.rollback(&other).await.expect("rolled back");
    let status = bank.transactions.status(&id.public()).await.expect("kept");
    assert_eq!((status.state, status.requests.len()), (State::Committed, 1));
}

/// Each form of a key condition, for each type of a key, finds in a transaction what the SDK's Query finds.
#[tokio::test(start_paused = true)]
async fn queries_find_what_queries_of_the_sdk_find() {
    let values = |kind: &ScalarAttributeType, number: usize| match kind {
        ScalarAttributeType::N => AttributeValue::N(["-10", "-9.5", "0", "2", "10", "1e2"][number].into()),
        ScalarAttributeType::B => {
            AttributeValue::B([&b"\x00"[..], b"\x01", b"a", b"a\x00", b"\x80", b"\xff"][number].into())
        }
        _ => text(["A", "Z", "a", "aa", "\u{e9}", "\u{10000}"][number]),
    };
    for kind in [ScalarAttributeType::S, ScalarAttributeType::N, ScalarAttributeType::B] {
        let bank = Bank::new().await;
        make_sorted(&bank, &kind).await;
        for number in 0..6 {
            for name in ["x", "y"] {
                let item = Item::from([
                    ("group".to_owned(), text("all")),
                    ("name".to_owned(), text(&format!("{name}{number}"))),
                    ("at".to_owned(), values(&kind, number)),
                ]);
                bank.dynamodb.put_item().table_name("sorted").set_item(Some(item)).send().await.expect("put");
            }
        }
        let mut conditions =
            ["#at = :a", "#at < :a", "#at <= :a", "#at > :a", "#at >= :a", "#at BETWEEN :a AND :b"].to_vec();
        if kind != ScalarAttributeType::N {
            conditions.push("begins_with(#at, :a)");
        }
        for condition in conditions {
            for (low, high) in [(0, 3), (2, 2), (3, 5)] {
                for forward in [true, false] {
                    let has_two = condition.contains(":b");
                    let mut given = Item::from([(":g".to_owned(), text("all")), (":a".to_owned(), values(&kind, low))]);
                    given.extend(has_two.then(|| (":b".to_owned(), values(&kind, high))));
                    let request = QueryRequest {
                        table: "sorted".into(),
                        index: Some("by-at".into()),
                        key_condition: format!("#g = :g AND {condition}"),
                        names: [("#g", "group"), ("#at", "at")].map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
                        values: given,
                        forward,
                        ..QueryRequest::default()
                    };
                    let plain = bank.dynamodb.query().table_name("sorted").index_name("by-at");
                    let plain = plain.key_condition_expression(&request.key_condition).scan_index_forward(forward);
                    let plain = plain.set_expression_attribute_names(Some(request.names.clone()));
                    let plain = plain.set_expression_attribute_values(Some(request.values.clone()));
                    let plain = plain.send().await.expect("found").items.unwrap_or_default();
                    let id = begin(&bank.transactions).await;
                    let ours = bank.transactions.query(&id, &request, None).await.expect("found");
                    bank.transactions.rollback(&id).await.expect("rolled back");
                    let sorted = |items: &[Item]| items.iter().map(|item| item["at"].clone()).collect::<Vec<_>>();
                    assert_eq!(sorted(&ours), sorted(&plain), "{request:?}");
                    assert!(plain.iter().all(|item| ours.contains(item)), "{request:?}");
                }
            }
        }
    }
}

/// A table of named items by group, with an index by `at`.
async fn make_sorted(bank: &Bank, kind: &ScalarAttributeType) {
    use aws_sdk_dynamodb::types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, LocalSecondaryIndex, Projection, ProjectionType,
    };
    let attribute = |name: &str, kind: &ScalarAttributeType| {
        AttributeDefinition::builder().attribute_name(name).attribute_type(kind.clone()).build().expect("complete")
    };
    let element =
        |name: &str, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build().expect("complete");
    let index = LocalSecondaryIndex::builder()
        .index_name("by-at")
        .key_schema(element("group", KeyType::Hash))
        .key_schema(element("at", KeyType::Range))
        .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build());
    bank.dynamodb
        .create_table()
        .table_name("sorted")
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(attribute("group", &ScalarAttributeType::S))
        .attribute_definitions(attribute("name", &ScalarAttributeType::S))
        .attribute_definitions(attribute("at", kind))
        .key_schema(element("group", KeyType::Hash))
        .key_schema(element("name", KeyType::Range))
        .local_secondary_indexes(index.build().expect("complete"))
        .send()
        .await
        .expect("a new table");
}

#[tokio::test(start_paused = true)]
async fn query_costs_one_unit_more_than_its_gets() {
    for count in [1, 10, 40] {
        let bank = Bank::new().await;
        make_sorted(&bank, &ScalarAttributeType::S).await;
        let key = |number: usize| {
            Item::from([("group".to_owned(), text("all")), ("name".to_owned(), text(&format!("name-{number:02}")))])
        };
        for number in 0..count {
            let put = bank.dynamodb.put_item().table_name("sorted").set_item(Some(key(number)));
            put.send().await.expect("put");
        }
        let of_group = QueryRequest {
            table: "sorted".into(),
            key_condition: "#g = :g".into(),
            names: [("#g".to_owned(), "group".to_owned())].into(),
            values: Item::from([(":g".to_owned(), text("all"))]),
            forward: true,
            ..QueryRequest::default()
        };
        let get = |number| Action::Get { key: key(number), projection: None };
        let get = |number| TransactionRequest { table: "sorted".into(), ..request(get(number)) };
        let gets = || (0..count).map(get).collect();
        let mut units = Vec::new();
        for queries in [false, true] {
            let ((), told) = measured(async {
                let id = begin(&bank.transactions).await;
                if queries {
                    let found = bank.transactions.query(&id, &of_group, None).await.expect("found");
                    assert_eq!(found, (0..count).map(key).collect::<Vec<_>>());
                } else {
                    bank.transactions.add(&id, gets(), None).await.expect("read");
                }
                bank.transactions.commit(&id).await.expect("committed");
            })
            .await;
            let (read, write) = told.values().fold((0.0, 0.0), |sum, units| (sum.0 + units.read, sum.1 + units.write));
            println!(
                "{count} items, {}: {write} write units, {read} read units",
                if queries { "a query" } else { "gets" }
            );
            units.push(write);
        }
        assert_eq!((units[1] - units[0]).to_string(), "1", "{units:?}");
    }
}
