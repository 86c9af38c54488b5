//! Invalid input of callers.

use http::Method;
use leasehold_dynamodb::fresh_uuid;
use serde_json::{Value, json};

use super::{Api, account, account_key, add, get, put, with};

/// Returns the field at fault of a `begin` with these requests, after a check that nothing has happened.
async fn field_of(api: &Api, requests: Value) -> (u16, String) {
    let refused = api.refused("/v1/transactions/begin", json!({ "requests": requests })).await;
    (refused.status, refused.body["field"].as_str().unwrap_or_default().to_owned())
}

fn item(value: Value) -> Value {
    let mut entry = put("Curly", 0);
    entry["Put"]["Item"]["value"] = value;
    json!([entry])
}

#[tokio::test(start_paused = true)]
async fn entries_are_read_strictly() {
    let api = Api::with(&[("Moe", 100)]).await;
    let update = add("Moe", 1);
    for (requests, field) in [
        (json!({}), "requests"),
        (json!("x"), "requests"),
        (json!([1]), "requests[0]"),
        (json!([{}]), "requests[0]"),
        (json!([get("Moe"), { "Get": get("Moe")["Get"], "Put": put("Moe", 1)["Put"] }]), "requests[1]"),
        (json!([{ "Patch": {} }]), "requests[0]"),
        (json!([{ "put": put("Moe", 1)["Put"] }]), "requests[0]"),
        (json!([with(get("Moe"), "ConsistentRead", json!(true))]), "requests[0].Get.ConsistentRead"),
        (json!([with(get("Moe"), "ReturnValues", json!("ALL_OLD"))]), "requests[0].Get.ReturnValues"),
        (json!([with(update.clone(), "ReturnValues", json!("SOME_NEW"))]), "requests[0].Update.ReturnValues"),
        (json!([with(update.clone(), "ReturnValues", json!(1))]), "requests[0].Update.ReturnValues"),
        (json!([with(put("Moe", 1), "ReturnValues", json!("UPDATED_NEW"))]), "requests[0].Put.ReturnValues"),
        (json!([with(update.clone(), "TableName", json!(7))]), "requests[0].Update.TableName"),
        (json!([{ "Put": { "TableName": "accounts" } }]), "requests[0].Put.Item"),
        (json!([{ "Get": { "Key": account_key("Moe") } }]), "requests[0].Get.TableName"),
        (
            json!([{ "Update": { "TableName": "accounts", "Key": account_key("Moe") } }]),
            "requests[0].Update.UpdateExpression",
        ),
        (
            json!([{ "ConditionCheck": { "TableName": "accounts", "Key": account_key("Moe") } }]),
            "requests[0].ConditionCheck.ConditionExpression",
        ),
        (
            json!([with(update.clone(), "ExpressionAttributeNames", json!({ "#b": 1 }))]),
            "requests[0].Update.ExpressionAttributeNames.#b",
        ),
        (
            json!([with(update, "ExpressionAttributeNames", json!({ "#b": "balance" }))]),
            "requests[0].Update.ExpressionAttributeNames",
        ),
    ] {
        assert_eq!(field_of(&api, requests.clone()).await, (400, field.to_owned()), "{requests}");
    }
    api.bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn dynamodb_json_is_read_strictly() {
    let api = Api::new().await;
    for (value, place) in [
        (json!("plain"), ""),
        (json!(null), ""),
        (json!({}), ""),
        (json!({ "X": "x" }), ""),
        (json!({ "S": "x", "N": "1" }), ""),
        (json!({ "S": 1 }), ".S"),
        (json!({ "N": 1 }), ".N"),
        (json!({ "BOOL": "true" }), ".BOOL"),
        (json!({ "NULL": false }), ".NULL"),
        (json!({ "B": "not base64!" }), ".B"),
        (json!({ "B": "YQ" }), ".B"),
        (json!({ "BS": ["YQ==", "?"] }), ".BS[1]"),
        (json!({ "SS": [] }), ".SS"),
        (json!({ "NS": [] }), ".NS"),
        (json!({ "BS": [] }), ".BS"),
        (json!({ "SS": [1] }), ".SS[0]"),
        (json!({ "L": [{ "S": "x" }, { "M": { "deep": { "NULL": false } } }] }), ".L[1].M.deep.NULL"),
        (json!({ "L": [{ "S": "x" }, { "M": { "deep": { "s": "x" } } }] }), ".L[1].M.deep"),
    ] {
        let found = field_of(&api, item(value.clone())).await;
        assert_eq!(found, (400, format!("requests[0].Put.Item.value{place}")), "{value}");
    }
    // A fault that only DynamoDB finds is reported in DynamoDB's words.
    for commit in [true, false] {
        let body = json!({ "commit": commit, "requests": item(json!({ "N": "seven" })) });
        let refused = api.refused("/v1/transactions/begin", body).await;
        assert_eq!(refused.kind(), (400, "invalid-request", false), "{refused:?}");
        assert!(refused.body["detail"].as_str().is_some_and(|detail| detail.contains("seven")), "{refused:?}");
    }
    api.bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn nesting_has_its_bounds() {
    let api = Api::new().await;
    let nested = |levels: usize| (0..levels).fold(json!({ "S": "x" }), |value, _| json!({ "L": [value] }));
    for (levels, status) in [(20, 200), (27, 200), (40, 400), (63, 400)] {
        for commit in [true, false] {
            let body = json!({ "commit": commit, "requests": item(nested(levels)) });
            let answer = api.post("/v1/transactions/begin", &body).await;
            assert_eq!(answer.status, status, "{levels}: {answer:?}");
            if let (false, Some(id)) = (commit, answer.body["transactionId"].as_str()) {
                let done = api.ok("/v1/transactions/commit", json!({ "transactionId": id })).await;
                assert_eq!(done["state"], "committed");
                assert_eq!(api.seen("Curly").await["value"], nested(levels));
            }
        }
    }
    // The JSON reader's limit of nesting comes before the stack's.
    let body = format!(r#"{{"requests":[{{"Put":{{"Item":{{"value":{}"#, r#"{"L":["#.repeat(100_000));
    let answer = api.send(Method::POST, "/v1/transactions/begin", body.as_bytes()).await;
    assert_eq!(answer.kind(), (400, "invalid-request", false));
    api.bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn bodies_are_read_strictly() {
    let api = Api::with(&[("Moe", 100)]).await;
    let id = fresh_uuid();
    for (path, body, field) in [
        ("transactions/begin", json!({ "commit": true }), "requests"),
        ("transactions/begin", json!({ "commit": true, "requests": [] }), "requests"),
        ("transactions/begin", json!({ "commit": "yes" }), "commit"),
        ("transactions/begin", json!({ "transactionId": "Moe" }), "transactionId"),
        ("transactions/begin", json!({ "transactionId": 7 }), "transactionId"),
        ("transactions/begin", json!({ "Requests": [] }), "Requests"),
        ("transactions/add", json!({ "requests": [] }), "transactionId"),
        ("transactions/add", json!({ "transactionId": id, "callId": "" }), "callId"),
        ("transactions/add", json!({ "transactionId": id, "callId": "x".repeat(65) }), "callId"),
        ("transactions/add", json!({ "transactionId": "x".repeat(5000), "requests": [] }), "transactionId"),
        ("transactions/commit", json!({}), "transactionId"),
        ("transactions/commit", json!({ "transactionId": id, "force": true }), "force"),
        ("transactions/rollback", json!({ "id": id }), "id"),
        ("transactions/sweep", json!({ "limit": 0 }), "limit"),
        ("transactions/sweep", json!({ "limit": 1001 }), "limit"),
        ("transactions/sweep", json!({ "limit": -1 }), "limit"),
        ("items/get", json!({}), "tableName"),
        ("items/get", json!({ "tableName": "accounts" }), "key"),
        ("items/get", json!({ "tableName": "accounts", "key": { "id": { "N": "1" } } }), "key"),
        ("items/get", json!({ "tableName": "accounts", "key": { "id": { "B": "?" } } }), "key.id.B"),
        ("items/get", json!({ "tableName": "accounts", "key": account_key("Moe"), "requests": [] }), "requests"),
        (
            "items/get",
            json!({ "tableName": "accounts", "key": account_key("Moe"), "isolation": "serialisable" }),
            "isolation",
        ),
        ("items/get", json!({ "requests": [{ "tableName": "accounts" }] }), "requests[0].key"),
        ("items/get", json!({ "requests": [{ "tableName": "accounts", "key": {} }] }), "requests[0].key"),
        (
            "items/get",
            json!({ "requests": vec![json!({ "tableName": "accounts", "key": account_key("Moe") }); 2] }),
            "requests[1].key",
        ),
        (
            "items/get",
            json!({ "requests": vec![json!({ "tableName": "accounts", "key": account_key("Moe") }); 101] }),
            "requests",
        ),
        ("items/list", json!({}), "tableName"),
        ("items/list", json!({ "tableName": "accounts", "limit": 0 }), "limit"),
        ("items/list", json!({ "tableName": "accounts", "limit": 1.5 }), "limit"),
        ("items/list", json!({ "tableName": "accounts", "scanIndexForward": true }), "scanIndexForward"),
        ("items/list", json!({ "tableName": "accounts", "indexName": "by-owner" }), "indexName"),
        (
            "items/list",
            json!({ "tableName": "accounts", "filterExpression": "leaseholdTxId = :id" }),
            "filterExpression",
        ),
        ("items/list", json!({ "tableName": "accounts", "exclusiveStartKey": { "id": 1 } }), "exclusiveStartKey.id"),
    ] {
        let refused = api.refused(&format!("/v1/{path}"), body.clone()).await;
        assert_eq!(refused.kind(), (400, "invalid-request", false), "{path} {body}");
        assert_eq!(refused.body["field"], field, "{path} {body}: {refused:?}");
    }
    let refused = api.send(Method::GET, "/v1/transactions?stuck=1", b"").await;
    assert_eq!((refused.kind().1, &refused.body["field"]), ("invalid-request", &json!("stuck")));
    for query in ["", "?id=", "?id=Moe", "?ID=1", "?id=%ff"] {
        let answer = api.send(Method::GET, &format!("/v1/transaction{query}"), b"").await;
        assert_eq!(answer.kind(), (400, "invalid-request", false), "{query}");
    }
    for body in ["", "[]", "null", "{", "{\"requests\":[}", "{} {}", "{\"requests\":[],\"requests\":[]}"] {
        let answer = api.send(Method::POST, "/v1/transactions/begin", body.as_bytes()).await;
        assert_eq!(answer.kind(), (400, "invalid-request", false), "{body}");
    }
    assert_eq!(api.seen("Moe").await, account("Moe", 100));
}

/// Callers can use neither reserved names nor tables that are not for them, whatever the form of the name.
#[tokio::test(start_paused = true)]
async fn tables_of_the_service_are_out_of_reach() {
    let api = Api::with(&[("Moe", 100)]).await;
    let reserved = |name: &str| {
        let mut entry = put("Curly", 0);
        entry["Put"]["Item"][name] = json!({ "S": "x" });
        entry
    };
    let update = |expression: &str| with(add("Moe", 1), "UpdateExpression", json!(expression));
    for (entry, field) in [
        (reserved("leaseholdTxId"), "Put.Item"),
        (reserved("leaseholdTxWhatever"), "Put.Item"),
        (update("SET leaseholdTxId = :amount"), "Update.UpdateExpression"),
        (
            with(update("REMOVE #x ADD balance :amount"), "ExpressionAttributeNames", json!({ "#x": "leaseholdTxId" })),
            "Update.ExpressionAttributeNames",
        ),
        (
            with(add("Moe", 1), "ConditionExpression", json!("attribute_exists(leaseholdTxId)")),
            "Update.ConditionExpression",
        ),
        (with(get("Moe"), "ProjectionExpression", json!("leaseholdTxId")), "Get.ProjectionExpression"),
    ] {
        assert_eq!(field_of(&api, json!([entry])).await, (400, format!("requests[0].{field}")), "{entry}");
    }
    for table in [
        "locks",
        "transactions",
        "arn:aws:dynamodb:us-east-1:123456789012:table/locks",
        "arn:aws:dynamodb:us-east-1:123456789012:table/transactions",
        "arn:aws:dynamodb:us-east-1:123456789012:table/accounts",
        "table/locks",
        "",
        "no such table",
        "missing",
    ] {
        let entry = with(get("Moe"), "TableName", json!(table));
        let (status, field) = field_of(&api, json!([entry])).await;
        assert_eq!(status, 400, "{table}");
        assert!(
            field == "requests[0].Get.TableName" || (table == "missing" && field == "tableName"),
            "{table}: {field}"
        );
        for (path, body) in [
            ("items/get", json!({ "tableName": table, "key": account_key("Moe") })),
            ("items/list", json!({ "tableName": table })),
        ] {
            let refused = api.refused(&format!("/v1/{path}"), body).await;
            assert_eq!(
                (refused.kind().0, &refused.body["field"]),
                (400, &json!("tableName")),
                "{path} of {table}: {refused:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_requests_go_into_several_calls() {
    let api = Api::new().await;
    let requests: Vec<_> = (0..1001).map(|number| put(&format!("account-{number}"), 1)).collect();
    assert_eq!(field_of(&api, json!(requests)).await, (400, "requests".to_owned()));
    let same = json!([put("Moe", 1), put("Moe", 2)]);
    assert_eq!(field_of(&api, same).await, (400, "requests[1].Put.Item".to_owned()));
    api.bank.assert_clean().await;
}
