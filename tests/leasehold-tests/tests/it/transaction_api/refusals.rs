//! Every refusal, with the information that a caller needs to go on.

use std::net::Ipv4Addr;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use http::{Method, Request};
use leasehold_api::{Service, TransactionService};
use leasehold_client::{HttpTransport, Transport};
use leasehold_conformance::Refusals;
use leasehold_dynamodb::fresh_uuid;
use leasehold_tests::bank::{ACCOUNTS, key};
use leasehold_tests::{Fates, Fault, World};
use leasehold_transactions::TransactionId;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep as pause;

use super::{Answer, Api, account, account_key, add, get, is_free, put, with};

/// The refusal of a call while another transaction shows signs of life.
async fn refused_while_alive(api: &Api, other: &str, path: &str, body: Value) -> Answer {
    let alive = async {
        loop {
            // The older transaction goes first, so the two must not begin in the same millisecond.
            pause(Duration::from_millis(200)).await;
            api.ok("/v1/transactions/add", json!({ "transactionId": other, "requests": [] })).await;
        }
    };
    let late = async {
        pause(Duration::from_millis(10)).await;
        api.refused(path, body).await
    };
    tokio::select! {
        refused = late => refused,
        () = alive => unreachable!(),
    }
}

/// Provokes each refusal that the table of operations lists for transactions, and returns all that were answered.
pub(crate) async fn every_refusal(api: Api) -> Refusals {
    api.bank.open("Moe", 100).await;
    api.bank.open("Larry", 0).await;
    let call = async |path: &str, body: Value| api.refused(path, body).await;
    let named = |id: &str| json!({ "transactionId": id });
    let adding = |id: &str, entry: Value| json!({ "transactionId": id, "requests": [entry] });
    let failing = || with(put("Larry", 1), "ConditionExpression", json!("attribute_not_exists(id)"));
    let (begin, add_to) = ("/v1/transactions/begin", "/v1/transactions/add");
    let (commit, rollback) = ("/v1/transactions/commit", "/v1/transactions/rollback");

    // Another transaction has the item.
    let first = api.begin(json!([add("Moe", 1)])).await;
    refused_while_alive(&api, &first, begin, json!({ "requests": [add("Moe", 1)] })).await;
    let second = api.begin(json!([])).await;
    refused_while_alive(&api, &first, add_to, adding(&second, add("Moe", 1))).await;
    // The transaction is over, or its end comes with the refusal.
    api.ok(commit, named(&first)).await;
    api.ok(rollback, named(&second)).await;
    call(begin, json!({ "requests": [failing()] })).await;
    call(add_to, adding(&api.begin(json!([])).await, failing())).await;
    for (id, calls) in [(&first, [begin, add_to, rollback]), (&second, [begin, add_to, commit])] {
        for path in calls {
            call(path, if path == add_to { adding(id, get("Moe")) } else { named(id) }).await;
        }
    }
    // There is no such transaction.
    let nobody = fresh_uuid();
    call(add_to, adding(&nobody, get("Moe"))).await;
    call(commit, named(&nobody)).await;
    call(rollback, named(&nobody)).await;
    api.get(&nobody).await;
    let unknown = TransactionId::parse(&nobody).expect("an id").public();
    call("/v1/transactions/sweep", json!({ "publicId": unknown.as_str() })).await;
    // The role does not allow the table.
    let third = api.begin(json!([])).await;
    let unlock = json!({ "tableName": "accounts", "key": account_key("Moe"), "lock": "none", "outcome": "committed" });
    for (path, body) in [
        (begin, json!({ "requests": [add("Moe", 1)] })),
        (add_to, adding(&third, add("Moe", 1))),
        ("/v1/items/get", json!({ "tableName": "accounts", "key": account_key("Moe") })),
        ("/v1/items/list", json!({ "tableName": "accounts" })),
        ("/v1/transactions/strays", json!({ "tableName": "accounts" })),
        ("/v1/transactions/unlock", unlock),
    ] {
        api.bank.faults.set(Fates::Denied(ACCOUNTS));
        call(path, body).await;
        api.bank.faults.script([]);
    }
    api.answered
}

#[tokio::test(start_paused = true)]
async fn contended_names_the_other_transaction() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let first = api.begin(json!([add("Moe", 1)])).await;
    let second = fresh_uuid();
    let body = json!({ "transactionId": second, "requests": [add("Larry", 1), add("Moe", 1)] });
    let refused = refused_while_alive(&api, &first, "/v1/transactions/begin", body.clone()).await;
    assert_eq!((refused.kind(), refused.retry_after.as_deref()), ((409, "contended", true), Some("1")));
    assert_eq!(refused.body["publicId"], api.public_id(&first).await);
    assert!(!refused.body.to_string().contains(&first), "the other's secret stays secret");
    for call in ["add", "commit", "rollback"] {
        let body = json!({ "transactionId": refused.body["publicId"] });
        let powerless = api.refused(&format!("/v1/transactions/{call}"), body).await;
        assert_eq!(powerless.kind(), (404, "transaction-not-found", false), "{call}");
    }
    assert_eq!(api.get(&first).await.body["state"], "pending");

    // The call may be repeated, and succeeds when the other transaction is over.
    api.ok("/v1/transactions/commit", json!({ "transactionId": first })).await;
    assert_eq!(api.ok("/v1/transactions/begin", body).await["state"], "pending");
    api.ok("/v1/transactions/commit", json!({ "transactionId": second })).await;
    assert_eq!(api.seen("Moe").await, account("Moe", 102));
    api.bank.assert_clean().await;
}

/// No caller can continue a transaction whose id was never returned: it must not block others.
#[tokio::test(start_paused = true)]
async fn nameless_transaction_that_fails_leaves_no_locks() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let first = api.begin(json!([add("Moe", 1)])).await;
    // More than fits into one write, so that the transaction holds some items before it conflicts with the other one.
    let mut requests: Vec<_> = (0..60).map(|number| put(&format!("A{number:02}"), 0)).collect();
    requests.push(add("Moe", 1));
    let refused = refused_while_alive(&api, &first, "/v1/transactions/begin", json!({ "requests": requests })).await;
    assert_eq!(refused.kind(), (409, "contended", true));
    assert!(is_free(&api.bank, "A00").await);
    api.ok("/v1/transactions/rollback", json!({ "transactionId": first })).await;
    api.bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn calls_report_the_outcome_when_the_transaction_is_over() {
    let api = Api::with(&[("Moe", 100)]).await;
    let committed = api.begin(json!([add("Moe", 1)])).await;
    api.ok("/v1/transactions/commit", json!({ "transactionId": committed })).await;
    let undone = api.begin(json!([add("Moe", 1)])).await;
    api.ok("/v1/transactions/rollback", json!({ "transactionId": undone })).await;
    let nobody = fresh_uuid();
    for (id, call, expected) in [
        (&committed, "rollback", (409, "committed", false)),
        (&committed, "add", (409, "committed", false)),
        (&undone, "commit", (409, "rolled-back", false)),
        (&undone, "add", (409, "rolled-back", false)),
        (&nobody, "commit", (404, "transaction-not-found", false)),
        (&nobody, "rollback", (404, "transaction-not-found", false)),
        (&nobody, "add", (404, "transaction-not-found", false)),
    ] {
        for requests in [json!([]), json!([get("Moe")])] {
            let mut body = json!({ "transactionId": id });
            if call == "add" {
                body["requests"] = requests;
            }
            let refused = api.refused(&format!("/v1/transactions/{call}"), body).await;
            assert_eq!(refused.kind(), expected, "{call}: {refused:?}");
        }
    }
    for (id, kind) in [(&committed, "committed"), (&undone, "rolled-back")] {
        let refused = api.refused("/v1/transactions/begin", json!({ "transactionId": id })).await;
        assert_eq!(refused.kind(), (409, kind, false));
    }
    assert_eq!(api.get(&nobody).await.kind(), (404, "transaction-not-found", false));
    assert_eq!(api.seen("Moe").await, account("Moe", 101));
}

#[tokio::test(start_paused = true)]
async fn condition_that_fails_is_shown_with_its_item_to_whom_asks() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let condition = |entry: Value| {
        let entry = with(entry, "ConditionExpression", json!("balance < :limit"));
        let mut entry = with(entry, "ReturnValuesOnConditionCheckFailure", json!("ALL_OLD"));
        entry["Update"]["ExpressionAttributeValues"][":limit"] = json!({ "N": "50" });
        entry
    };
    for commit in [true, false] {
        let body = json!({ "commit": commit, "requests": [add("Larry", 1), condition(add("Moe", 1))] });
        let refused = api.refused("/v1/transactions/begin", body).await;
        assert_eq!(refused.kind(), (409, "condition-failed", false));
        assert_eq!((&refused.body["request"], &refused.body["item"]), (&json!(1), &account("Moe", 100)));
        let silent = with(condition(add("Moe", 1)), "ReturnValuesOnConditionCheckFailure", json!("NONE"));
        let refused = api.refused("/v1/transactions/begin", json!({ "commit": commit, "requests": [silent] })).await;
        assert_eq!((refused.kind().1, &refused.body["request"]), ("condition-failed", &json!(0)));
        assert!(refused.body.get("item").is_none(), "{refused:?}");
    }
    assert_eq!((api.seen("Moe").await, api.seen("Larry").await), (account("Moe", 100), account("Larry", 0)));
    api.bank.assert_clean().await;
}

/// The caller gets DynamoDB's error for a request, and the transaction is rolled back.
#[tokio::test(start_paused = true)]
async fn update_that_dynamodb_refuses_names_its_entry() {
    let api = Api::with(&[("Moe", 100)]).await;
    let words = api.bank.dynamodb.put_item().table_name("accounts").set_item(Some(key("Larry")));
    words.item("balance", AttributeValue::S("a lot".into())).send().await.expect("written");
    for commit in [true, false] {
        let body = json!({ "commit": commit, "requests": [add("Moe", 1), add("Larry", 1)] });
        let refused = api.refused("/v1/transactions/begin", body).await;
        assert_eq!(refused.kind(), (400, "invalid-request", false), "{refused:?}");
        assert_eq!(refused.body["field"], "requests[1].Update", "{refused:?}");
        assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains("operand")), "{refused:?}");
    }
    assert_eq!(api.seen("Moe").await, account("Moe", 100));
    api.bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn failures_of_dynamodb_say_nothing_of_it() {
    let api = Api::with(&[("Moe", 100)]).await;
    let read = json!({ "tableName": "accounts", "key": account_key("Moe") });
    api.ok("/v1/items/get", read.clone()).await;
    let check = |answer: Answer, expected: (u16, &str, bool), retry_after: Option<&str>| {
        assert_eq!((answer.kind(), answer.retry_after.as_deref()), (expected, retry_after));
        let text = answer.body.to_string();
        for internal in ["injected", "embedded", "http", "Exception", "dispatch"] {
            assert!(!text.contains(internal), "{internal} in {text}");
        }
    };
    for (fault, expected, retry_after) in [
        (Fault::Throttled, (429, "throttled", true), Some("1")),
        (Fault::ServerError, (503, "unavailable", true), Some("1")),
        (Fault::RequestLost, (503, "unavailable", true), Some("1")),
        (Fault::AccessDenied, (403, "forbidden", false), None),
    ] {
        api.bank.faults.script([fault; 60]);
        check(api.refused("/v1/items/get", read.clone()).await, expected, retry_after);
        api.bank.faults.script([fault; 60]);
        check(
            api.refused("/v1/transactions/begin", json!({ "requests": [add("Moe", 1)] })).await,
            expected,
            retry_after,
        );
        api.bank.faults.script([]);
    }
    // The table of the transactions is the service's own: a lack of access to it is a mistake of the setup.
    api.bank.faults.script([Fault::AccessDenied; 60]);
    check(api.refused("/v1/transactions/begin", json!({})).await, (500, "misconfigured", false), None);
    api.bank.faults.script([]);
}

#[tokio::test(start_paused = true)]
async fn damage_is_for_operators() {
    let api = Api::with(&[]).await;
    let restored = api.bank.dynamodb.put_item().table_name("accounts").set_item(Some(key("Moe")));
    let restored = restored.item("leaseholdTxId", AttributeValue::S(fresh_uuid()));
    let restored = restored.item("leaseholdTxRequest", AttributeValue::S("00001.00".into()));
    let restored = restored.item("leaseholdTxOperation", AttributeValue::S("update".into()));
    restored.item("leaseholdTxApplied", AttributeValue::Bool(true)).send().await.expect("written");
    let read = json!({ "tableName": "accounts", "key": account_key("Moe") });
    assert_eq!(api.refused("/v1/items/get", read).await.kind(), (500, "corrupt-record", false));
}

#[tokio::test(start_paused = true)]
async fn answer_that_is_too_large_is_refused() {
    let api = Api::new().await;
    for number in 0..12 {
        let put = api.bank.dynamodb.put_item().table_name("accounts").set_item(Some(key(&format!("large-{number}"))));
        put.item("data", AttributeValue::S("x".repeat(380_000))).send().await.expect("written");
    }
    let requests: Vec<_> = (0..12)
        .map(|number| json!({ "tableName": "accounts", "key": account_key(&format!("large-{number}")) }))
        .collect();
    let refused = api.refused("/v1/items/get", json!({ "requests": requests })).await;
    assert_eq!(refused.kind(), (413, "too-large", false));
    assert!(api.ok("/v1/items/get", json!({ "requests": requests[..10] })).await["answers"][9]["item"].is_object());

    let large = json!({ "Put": { "TableName": "accounts", "Item":
        { "id": { "S": "x" }, "data": { "S": "x".repeat(420_000) } } } });
    let refused = api.refused("/v1/transactions/begin", json!({ "requests": [large] })).await;
    assert_eq!(refused.kind(), (413, "too-large", false), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn body_that_is_too_large_leaves_the_transaction_as_it_was() {
    let api = Api::with(&[("Moe", 100), ("Larry", 0)]).await;
    let id = api.begin(json!([add("Moe", 1)])).await;
    let mut body = json!({ "transactionId": id, "requests": [add("Larry", 1)] }).to_string();
    body.push_str(&" ".repeat(4 * 1024 * 1024));
    let refused = api.send(Method::POST, "/v1/transactions/add", body.as_bytes()).await;
    assert_eq!(refused.kind(), (413, "too-large", false));
    assert!(is_free(&api.bank, "Larry").await);
    let committed = api.ok("/v1/transactions/commit", json!({ "transactionId": id, "expectedItems": 1 })).await;
    assert_eq!(committed["state"], "committed");
    assert_eq!((api.seen("Moe").await, api.seen("Larry").await), (account("Moe", 101), account("Larry", 0)));
}

#[tokio::test(start_paused = true)]
async fn call_is_carried_out_when_its_answer_is_too_large() {
    let api = Api::with(&[("Moe", 100)]).await;
    let id = api.begin(json!([])).await;
    let mut requests = vec![add("Moe", 1)];
    for number in 0..12 {
        let name = format!("large-{number}");
        let put = api.bank.dynamodb.put_item().table_name("accounts").set_item(Some(key(&name)));
        put.item("data", AttributeValue::S("x".repeat(380_000))).send().await.expect("written");
        requests.push(get(&name));
    }
    let refused = api.refused("/v1/transactions/add", json!({ "transactionId": id, "requests": requests })).await;
    assert_eq!(refused.kind(), (413, "too-large", false));
    let state = api.get(&id).await.body;
    assert_eq!((&state["state"], state["requests"].as_array().expect("a list").len()), (&json!("pending"), 13));
    api.ok("/v1/transactions/commit", json!({ "transactionId": id, "expectedItems": 13 })).await;
    assert_eq!(api.seen("Moe").await, account("Moe", 101));
}

const JSON: &str = "application/json";

/// The same routes over a socket, beside those of the locks.
#[tokio::test(flavor = "multi_thread")]
async fn served_over_http() {
    let world = World::new().await;
    let api = Api::with(&[("Moe", 100)]).await;
    let transactions = leasehold_server::routes(TransactionService::new(api.bank.transactions.clone()));
    let routes = leasehold_server::routes(Service::new(world.table.clone())).merge(transactions);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(leasehold_server::run(listener, routes, std::future::pending()));
    let transport = HttpTransport::new(&url).expect("a URL");
    let send = async |method: Method, path: &str, content_type: &str, body: Vec<u8>| {
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let response = transport.send(request.body(body).expect("a request")).await.expect("an answer");
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().expect("ASCII").to_owned());
        let body: Value = serde_json::from_slice(response.body()).expect("a JSON document");
        (response.status().as_u16(), header("allow"), header("cache-control"), body)
    };
    let one_shot = json!({ "transactionId": fresh_uuid(), "commit": true, "requests": [add("Moe", 1)] });
    let one_shot = one_shot.to_string().into_bytes();
    let (status, _, cache, body) = send(Method::POST, "/v1/transactions/begin", JSON, one_shot.clone()).await;
    assert_eq!((status, cache.as_deref(), &body["state"]), (200, Some("no-store"), &json!("committed")));
    let id = body["transactionId"].as_str().expect("an id");
    let (status, .., body) = send(Method::GET, &format!("/v1/transaction?id={id}"), JSON, vec![]).await;
    assert_eq!((status, &body["state"]), (200, &json!("committed")));
    assert_eq!(send(Method::GET, "/v1/health", JSON, vec![]).await.0, 200);

    let (status, allow, _, body) = send(Method::GET, "/v1/transactions/begin", JSON, vec![]).await;
    assert_eq!((status, allow.as_deref(), &body["type"]), (405, Some("POST"), &json!("method-not-allowed")));
    let (status, allow, ..) = send(Method::POST, "/v1/transaction", JSON, one_shot.clone()).await;
    assert_eq!((status, allow.as_deref()), (405, Some("GET")));
    let (status, .., body) = send(Method::POST, "/v1/transactions/begin", "text/plain", one_shot).await;
    assert_eq!((status, &body["type"]), (415, &json!("unsupported-media-type")));
    for path in ["/v1/transactions/", "/v1/transactions/begin/x", "/v1/items", "/v1/transactions%2Fbegin"] {
        let (status, .., body) = send(Method::POST, path, JSON, b"{}".to_vec()).await;
        assert_eq!((status, &body["type"]), (404, &json!("unknown-route")), "{path}");
    }
    // A body that is larger than a lock's request may be, and still allowed; and one that is too large.
    let padded = |bytes: usize| format!("{{}}{}", " ".repeat(bytes - 2)).into_bytes();
    assert_eq!(send(Method::POST, "/v1/transactions/begin", JSON, padded(3 * 1024 * 1024)).await.0, 200);
    let (status, .., body) = send(Method::POST, "/v1/transactions/begin", JSON, padded(4 * 1024 * 1024 + 1)).await;
    assert_eq!((status, &body["type"]), (413, &json!("too-large")));
}
