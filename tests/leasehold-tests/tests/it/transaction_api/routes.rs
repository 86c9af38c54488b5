//! The result of each route for a valid request.

use leasehold_dynamodb::fresh_uuid;
use leasehold_tests::Fault;
use leasehold_tests::bank::{ACCOUNTS, TRANSACTIONS};
use leasehold_transactions::StraysRequest;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};

use super::{Api, account, account_key, add, get, is_free, put, with};

#[tokio::test(start_paused = true)]
async fn transfer_is_committed_over_several_calls() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let begun = api.ok("/v1/transactions/begin", json!({})).await;
    assert_eq!((begun["state"].as_str(), begun.get("answers")), (Some("pending"), None));
    let id = begun["transactionId"].as_str().expect("an id");

    let requests = json!([with(get("Moe"), "ProjectionExpression", json!("balance")), add("Larry", 40)]);
    let added = api.ok("/v1/transactions/add", json!({ "transactionId": id, "requests": requests })).await;
    assert_eq!(added, json!({ "transactionId": id, "answers": [{ "item": { "balance": { "N": "100" } } }, {}] }));
    let requests = json!([with(add("Moe", -40), "ReturnValues", json!("ALL_NEW"))]);
    let added = api.ok("/v1/transactions/add", json!({ "transactionId": id, "requests": requests })).await;
    assert_eq!(added["answers"], json!([{ "item": account("Moe", 60) }]));
    // An add without requests is a sign of life.
    let alive = api.ok("/v1/transactions/add", json!({ "transactionId": id, "requests": [] })).await;
    assert_eq!(alive["answers"], json!([]));

    // Other readers see the old state until the commit.
    let read = |isolation: &str| {
        let requests: Vec<_> =
            ["Moe", "Larry", "nobody"].map(|id| json!({ "tableName": "accounts", "key": account_key(id) })).into();
        json!({ "requests": requests, "isolation": isolation })
    };
    let committed = api.ok("/v1/items/get", read("committed")).await;
    assert_eq!(committed, json!({ "answers": [{ "item": account("Moe", 100) }, { "item": account("Larry", 0) }, {}] }));
    let uncommitted = api.ok("/v1/items/get", read("uncommitted")).await;
    assert_eq!(
        uncommitted,
        json!({ "answers": [{ "item": account("Moe", 60) }, { "item": account("Larry", 40) }, {}] })
    );

    let status = api.get(id).await.body;
    assert_eq!((status["state"].as_str(), &status["finished"]), (Some("pending"), &json!(false)));
    for _ in 0..2 {
        let ended = api.ok("/v1/transactions/commit", json!({ "transactionId": id })).await;
        assert_eq!(ended, json!({ "transactionId": id, "state": "committed" }));
    }
    assert_eq!((api.seen("Moe").await, api.seen("Larry").await), (account("Moe", 60), account("Larry", 40)));
    assert_eq!(
        api.ok("/v1/items/get", json!({ "tableName": "accounts", "key": account_key("nobody") })).await,
        json!({})
    );

    let status = api.get(id).await.body;
    assert_eq!((status["state"].as_str(), &status["finished"]), (Some("committed"), &json!(true)));
    assert!(status["createdAtMs"].as_u64() <= status["lastWorkedAtMs"].as_u64(), "{status}");
    let mut requests: Vec<_> = status["requests"].as_array().expect("a list").iter().map(ToString::to_string).collect();
    requests.sort();
    let participant =
        |id: &str, operation: &str| json!({ "tableName": "accounts", "key": account_key(id), "operation": operation });
    let mut expected = [participant("Larry", "update"), participant("Moe", "get"), participant("Moe", "update")]
        .map(|p| p.to_string());
    expected.sort();
    assert_eq!(requests, expected);
    api.bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn query_is_an_add_of_its_own() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let query = |id: &str| {
        json!({ "Query": {
            "TableName": "accounts",
            "KeyConditionExpression": "#id = :id",
            "ExpressionAttributeNames": { "#id": "id" },
            "ExpressionAttributeValues": { ":id": { "S": id } },
        } })
    };
    let id = api.begin(json!([])).await;
    let add_of = |requests: Value| json!({ "transactionId": id, "callId": "1", "requests": requests });
    for (wanted, items) in [("Moe", json!([account("Moe", 100)])), ("nobody", json!([]))] {
        let added = api.ok("/v1/transactions/add", add_of(json!([query(wanted)]))).await;
        assert_eq!(added, json!({ "transactionId": id, "answers": [{ "items": items }] }));
    }
    let narrow = with(query("Moe"), "ProjectionExpression", json!("balance"));
    let added = api.ok("/v1/transactions/add", add_of(json!([narrow]))).await;
    assert_eq!(added["answers"], json!([{ "items": [{ "balance": { "N": "100" } }] }]));
    assert!(!is_free(&api.bank, "Moe").await);

    for (path, requests, field) in [
        ("add", json!([query("Moe"), add("Larry", 1)]), "requests[0].Query"),
        ("add", json!([query("Moe"), query("Moe")]), "requests[0].Query"),
        ("begin", json!([query("Moe")]), "requests[0].Query"),
        ("add", json!([with(query("Moe"), "IndexName", json!("none"))]), "requests[0].Query.IndexName"),
    ] {
        let mut body = json!({ "requests": requests });
        if path == "add" {
            body["transactionId"] = json!(id);
        }
        let refused = api.refused(&format!("/v1/transactions/{path}"), body).await;
        assert_eq!((refused.status, refused.body["field"].as_str()), (400, Some(field)), "{refused:?}");
    }
    for (member, value) in [("FilterExpression", json!("balance > :id")), ("Limit", json!(1))] {
        let body = add_of(json!([with(query("Moe"), member, value)]));
        let refused = api.refused("/v1/transactions/add", body).await;
        assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains(member)), "{refused:?}");
    }
    let expected = json!({ "transactionId": id, "expectedItems": 1, "expectedWrites": 0 });
    assert_eq!(api.ok("/v1/transactions/commit", expected).await["state"], "committed");
    assert!(is_free(&api.bank, "Moe").await && is_free(&api.bank, "Larry").await);
}

#[tokio::test(start_paused = true)]
async fn rollback_undoes_all() {
    let api = Api::with(&[("Moe", 100)]).await;
    let gone = json!({ "Delete": { "TableName": "accounts", "Key": account_key("Moe"), "ReturnValues": "ALL_OLD" } });
    let begun = api.ok("/v1/transactions/begin", json!({ "requests": [gone, put("Curly", 5)] })).await;
    assert_eq!(
        (&begun["state"], &begun["answers"]),
        (&json!("pending"), &json!([{ "item": account("Moe", 100) }, {}]))
    );
    let id = &begun["transactionId"];
    for _ in 0..2 {
        let ended = api.ok("/v1/transactions/rollback", json!({ "transactionId": id })).await;
        assert_eq!(ended, json!({ "transactionId": id, "state": "rolled-back" }));
    }
    assert_eq!((api.seen("Moe").await, api.seen("Curly").await), (account("Moe", 100), json!(null)));
    assert_eq!(api.get(id.as_str().expect("text")).await.body["state"], "rolled-back");
    api.bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn one_shot_is_carried_out_once_however_often_it_is_sent() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let id = fresh_uuid();
    let body = json!({ "transactionId": id, "commit": true, "requests": [add("Moe", -1), add("Larry", 1)] });
    for _ in 0..3 {
        let done = api.ok("/v1/transactions/begin", body.clone()).await;
        assert_eq!(done, json!({ "transactionId": id, "state": "committed", "answers": [{}, {}] }));
    }
    assert_eq!((api.seen("Moe").await, api.seen("Larry").await), (account("Moe", 99), account("Larry", 1)));

    // Items of one moment; and a check that holds.
    let reads = json!({ "commit": true, "requests": [get("Moe"), get("nobody")] });
    let read = api.ok("/v1/transactions/begin", reads).await;
    assert_eq!(read["answers"], json!([{ "item": account("Moe", 99) }, {}]));
    let check = json!({ "ConditionCheck": {
        "TableName": "accounts", "Key": account_key("Moe"), "ConditionExpression": "#b > :zero",
        "ExpressionAttributeNames": { "#b": "balance" }, "ExpressionAttributeValues": { ":zero": { "N": "0" } },
    } });
    api.ok("/v1/transactions/begin", json!({ "commit": true, "requests": [check, add("Larry", 1)] })).await;
    assert_eq!(api.seen("Larry").await, account("Larry", 2));
}

/// A begin with an id may be repeated as well.
#[tokio::test(start_paused = true)]
async fn named_transaction_is_begun_once() {
    let api = Api::with(&[("Moe", 100)]).await;
    let id = fresh_uuid();
    for requests in [json!(null), json!([]), json!([add("Moe", 1)]), json!([add("Moe", 1)])] {
        let begun = api.ok("/v1/transactions/begin", json!({ "transactionId": id, "requests": requests })).await;
        assert_eq!((&begun["transactionId"], &begun["state"]), (&json!(id), &json!("pending")));
    }
    api.ok("/v1/transactions/commit", json!({ "transactionId": id })).await;
    assert_eq!(api.seen("Moe").await, account("Moe", 101));
}

#[tokio::test(start_paused = true)]
async fn table_is_listed_page_by_page() {
    let api = Api::new().await;
    for number in 0..5 {
        api.bank.open(&format!("account-{number}"), number).await;
    }
    // One item that is being changed, one that is being inserted, and one that is being deleted.
    let gone = json!({ "Delete": { "TableName": "accounts", "Key": account_key("account-4") } });
    api.begin(json!([add("account-1", 1000), put("account-9", 9), gone])).await;

    let mut balances = Vec::new();
    let mut start = json!(null);
    loop {
        let body = json!({ "tableName": "accounts", "limit": 2, "exclusiveStartKey": start,
                           "projectionExpression": "#b", "expressionAttributeNames": { "#b": "balance" } });
        let page = api.ok("/v1/items/list", body).await;
        for item in page["items"].as_array().expect("a list") {
            assert_eq!(item.as_object().map(serde_json::Map::len), Some(1), "{item}");
            balances.push(item["balance"]["N"].as_str().expect("a number").to_owned());
        }
        start = page["lastEvaluatedKey"].clone();
        if start.is_null() {
            break;
        }
    }
    balances.sort();
    assert_eq!(balances, ["0", "1", "2", "3", "4"]);

    let query = |isolation: &str| {
        json!({ "tableName": "accounts", "keyConditionExpression": "id = :id", "isolation": isolation,
                "expressionAttributeValues": { ":id": { "S": "account-1" } }, "scanIndexForward": false })
    };
    assert_eq!(api.ok("/v1/items/list", query("committed")).await, json!({ "items": [account("account-1", 1)] }));
    assert_eq!(api.ok("/v1/items/list", query("uncommitted")).await, json!({ "items": [account("account-1", 1001)] }));
}

#[tokio::test(start_paused = true)]
async fn list_of_an_index_without_the_locks_is_refused() {
    let api = Api::with(&[("Moe", 100)]).await;
    let refused = api.refused("/v1/items/list", json!({ "tableName": "accounts", "indexName": "none" })).await;
    assert_eq!((refused.kind().0, &refused.body["field"]), (400, &json!("indexName")), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn operator_sweeps() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let forgotten = api.begin(json!([add("Moe", 1)])).await;
    let kept = api.begin(json!([add("Larry", 1)])).await;
    let nothing = json!({ "examined": 0, "rolledBack": 0, "completed": 0, "stuck": 0, "watched": 0,
                          "failed": 0, "more": false });
    assert_eq!(api.ok("/v1/transactions/sweep", json!({})).await, nothing);

    tokio::time::sleep(std::time::Duration::from_secs(50)).await;
    api.ok("/v1/transactions/add", json!({ "transactionId": kept, "requests": [] })).await;
    tokio::time::sleep(std::time::Duration::from_secs(15)).await;
    let seen = api.ok("/v1/transactions/sweep", json!({ "limit": 1000 })).await;
    assert_eq!((&seen["watched"], &seen["rolledBack"]), (&json!(2), &json!(0)), "seen for the first time");
    tokio::time::sleep(std::time::Duration::from_secs(50)).await;
    api.ok("/v1/transactions/add", json!({ "transactionId": kept, "requests": [] })).await;
    tokio::time::sleep(std::time::Duration::from_secs(15)).await;
    let swept = api.ok("/v1/transactions/sweep", json!({ "limit": 1000 })).await;
    assert_eq!((&swept["rolledBack"], &swept["failed"], &swept["more"]), (&json!(1), &json!(0), &json!(false)));
    assert_eq!(api.get(&forgotten).await.body["state"], "rolled-back");
    assert!(api.get(&forgotten).await.body["reason"].as_str().is_some_and(|reason| reason.contains("too long")));
    assert_eq!(api.get(&kept).await.body["state"], "pending");
    assert!(is_free(&api.bank, "Moe").await);

    // An operator ends a transaction that is not idle, by its public id.
    let public_id = api.public_id(&kept).await;
    let listed = api.send(http::Method::GET, "/v1/transactions?limit=1000&stuck=false", b"").await;
    assert_eq!(listed.status, 200, "{listed:?}");
    let mut pages = vec![listed];
    while let Some(cursor) = pages.last().and_then(|page| page.body["nextCursor"].as_str()) {
        pages.push(api.send(http::Method::GET, &format!("/v1/transactions?cursor={cursor}"), b"").await);
    }
    let open: Vec<_> = pages.iter().flat_map(|page| page.body["transactions"].as_array().expect("a list")).collect();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(
        (&open[0]["publicId"], &open[0]["state"], open[0].get("transactionId")),
        (&public_id, &json!("pending"), None)
    );
    let swept = api.ok("/v1/transactions/sweep", json!({ "publicId": public_id })).await;
    assert_eq!((&swept["examined"], &swept["rolledBack"]), (&json!(1), &json!(1)));
    assert_eq!(api.get(&kept).await.body["state"], "rolled-back");
    api.bank.assert_clean().await;
}

/// An item from a backup has the lock of an unknown transaction.
#[tokio::test(start_paused = true)]
async fn operator_unlocks_an_item_of_an_unknown_transaction() {
    for (outcome, expected) in [("rolled-back", 100), ("committed", 101)] {
        let api = Api::with(&[("Moe", 100)]).await;
        let id = api.begin(json!([add("Moe", 1)])).await;
        let copy = api.bank.raw("Moe").await.expect("there");
        let lock = copy["leaseholdTxId"].as_s().expect("a text").clone();
        let unlock = |lock: &str| json!({ "tableName": "accounts", "key": account_key("Moe"), "lock": lock, "outcome": outcome });
        let refused = api.refused("/v1/transactions/unlock", unlock(&lock)).await;
        assert_eq!(refused.kind(), (400, "invalid-request", false), "its transaction is known: {refused:?}");
        api.ok("/v1/transactions/rollback", json!({ "transactionId": id })).await;
        let restored = api.bank.dynamodb.put_item().table_name("accounts").set_item(Some(copy));
        restored.send().await.expect("restored");
        let read = json!({ "tableName": "accounts", "key": account_key("Moe") });
        let refused = api.refused("/v1/transactions/begin", json!({ "requests": [add("Moe", 1)] })).await;
        assert_eq!(refused.kind(), (500, "corrupt-record", false));
        assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains(&lock)), "{refused:?}");
        let refused = api.refused("/v1/transactions/unlock", unlock("another")).await;
        assert_eq!((refused.kind().0, &refused.body["field"]), (400, &json!("lock")));
        for _ in 0..2 {
            assert_eq!(api.ok("/v1/transactions/unlock", unlock(&lock)).await, json!({ "outcome": outcome }));
        }
        assert_eq!(api.ok("/v1/items/get", read).await["item"], account("Moe", expected));
        assert!(is_free(&api.bank, "Moe").await);
    }
}

/// Items of an unknown transaction, and of known ones, in a table that is examined in pages.
#[tokio::test(start_paused = true)]
async fn strays_are_the_locked_items_of_unknown_transactions() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0), ("Curly", 0), ("Shemp", 0), ("Joe", 0)]).await;
    let restored = async |ids: &[&str]| {
        let mut copies = Vec::new();
        let id = api.begin(json!(ids.iter().map(|id| add(id, 1)).collect::<Vec<_>>())).await;
        for id in ids {
            copies.push(api.bank.raw(id).await.expect("there"));
        }
        api.ok("/v1/transactions/rollback", json!({ "transactionId": id })).await;
        for copy in copies {
            api.bank.write(copy).await;
        }
        api.public_id(&id).await
    };
    let finished = restored(&["Moe", "Larry"]).await;
    // Of this one not even the record is left.
    let forgotten = restored(&["Curly"]).await;
    for row in api.bank.scan(TRANSACTIONS).await {
        if row["transactionId"].as_s().is_ok_and(|id| forgotten == *id) {
            api.bank.remove_row(row).await;
        }
    }
    let open = api.begin(json!([add("Shemp", 1)])).await;
    let find = async |public_id: Option<&Value>| {
        let (mut found, mut examined, mut start) = (Vec::new(), 0, Value::Null);
        loop {
            let mut body = json!({ "tableName": "accounts", "limit": 2, "publicId": public_id });
            body["exclusiveStartKey"] = start;
            let page = api.ok("/v1/transactions/strays", body).await;
            let count = page["examined"].as_u64().expect("a number");
            assert!(count <= 2, "{page}");
            examined += count;
            found.extend(page["strays"].as_array().expect("a list").clone());
            start = page["lastEvaluatedKey"].clone();
            if start.is_null() {
                found.sort_by_key(|stray| stray["key"]["id"]["S"].as_str().map(str::to_owned));
                assert_eq!(examined, 5);
                return found;
            }
        }
    };
    let names = |found: &[Value]| found.iter().map(|stray| stray["key"]["id"]["S"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&find(Some(&finished)).await), ["Larry", "Moe"]);
    assert_eq!(names(&find(Some(&api.public_id(&open).await)).await), [""; 0]);
    let all = find(None).await;
    assert_eq!(names(&all), ["Curly", "Larry", "Moe"]);
    assert_eq!((&all[0]["publicId"], &all[1]["publicId"]), (&forgotten, &finished));
    for stray in all {
        let unlock =
            json!({ "tableName": "accounts", "key": stray["key"], "lock": stray["lock"], "outcome": "rolled-back" });
        api.ok("/v1/transactions/unlock", unlock).await;
    }
    assert_eq!(names(&find(None).await), [""; 0]);
    api.ok("/v1/transactions/commit", json!({ "transactionId": open })).await;
    api.bank.assert_clean().await;
    for (field, value) in [("limit", json!(0)), ("publicId", json!("x")), ("tableName", json!("transactions"))] {
        let mut body = json!({ "tableName": "accounts" });
        body[field] = value;
        let refused = api.refused("/v1/transactions/strays", body).await;
        assert_eq!((refused.kind().0, &refused.body["field"]), (400, &json!(field)));
    }
}

/// An item that is freed while its transaction is looked at is no stray.
#[tokio::test(start_paused = true)]
async fn item_that_is_freed_meanwhile_is_no_stray() {
    let api = Api::with(&[("Moe", 100)]).await;
    let id = api.begin(json!([add("Moe", 1)])).await;
    let (reader, faults) = api.bank.coordinator_with_keys().await;
    // The items; then the transaction.
    faults.at(2, Fault::Held);
    let request = StraysRequest { table: ACCOUNTS.into(), limit: 10, ..StraysRequest::default() };
    let mut work = std::pin::pin!(reader.operator.strays(&request));
    tokio::select! {
        biased;
        found = &mut work => panic!("it should have stopped: {found:?}"),
        () = faults.reached() => {}
    }
    api.ok("/v1/transactions/commit", json!({ "transactionId": id })).await;
    faults.release();
    assert_eq!(work.await.expect("examined").strays, []);
}

#[tokio::test(start_paused = true)]
async fn ends_of_transactions_are_counted_by_their_cause() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let named = |id: &str| json!({ "transactionId": id });
    let committed = api.begin(json!([add("Moe", 1)])).await;
    api.ok("/v1/transactions/commit", named(&committed)).await;
    api.ok("/v1/transactions/begin", json!({ "commit": true, "requests": [add("Moe", 1)] })).await;
    let undone = api.begin(json!([add("Moe", 1)])).await;
    api.ok("/v1/transactions/rollback", named(&undone)).await;
    let condition = with(add("Moe", 1), "ConditionExpression", json!("attribute_not_exists(id)"));
    api.refused("/v1/transactions/begin", json!({ "requests": [condition] })).await;
    let idle = api.begin(json!([add("Larry", 1)])).await;
    for _ in 0..2 {
        tokio::time::sleep(std::time::Duration::from_secs(61)).await;
        api.ok("/v1/transactions/sweep", json!({})).await;
    }
    api.refused("/v1/transactions/commit", named(&idle)).await;
    let kept = api.begin(json!([add("Moe", 1)])).await;
    let waiter = async {
        // The older transaction goes first, so the two must not begin in the same millisecond.
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        let refused = api.refused("/v1/transactions/begin", json!({ "requests": [add("Moe", 1)] })).await;
        assert_eq!(refused.kind().1, "contended");
    };
    let alive = async {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            api.ok("/v1/transactions/add", json!({ "transactionId": kept, "requests": [] })).await;
        }
    };
    tokio::select! {
        () = waiter => {}
        () = alive => {}
    }

    // The one that it waits for is idle, and gives way.
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    api.begin(json!([add("Moe", 1), add("Larry", 1)])).await;

    let text = handle.render();
    for line in [
        r#"Waited{operation="transactions"} 1"#,
        r#"Committed{operation="commit"} 1"#,
        r#"Committed{operation="begin"} 1"#,
        r#"RolledBack{operation="rollback"} 1"#,
        r#"ConditionFailed{operation="begin"} 1"#,
        r#"Evicted{operation="commit"} 1"#,
        r#"Contended{operation="begin"} 1"#,
        r#"Swept{operation="sweep"} 1"#,
        r#"OldestTransaction_count{operation="sweep"} 1"#,
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}
