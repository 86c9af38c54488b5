//! The lengths and formats in the OpenAPI document are the service's.

use http::{Method, Request};
use leasehold_api::{Service, TransactionService};
use leasehold_client::Transport;
use leasehold_dynamodb::Clock;
use leasehold_in_process::InProcess;
use leasehold_protocol::{LockTable, Policy, TableSchema};
use leasehold_tests::bank::Bank;
use leasehold_wire::openapi::Api;
use serde_json::{Value, json};
use utoipa::OpenApi;

/// A service of locks with sort keys, without a table: a valid request is not invalid, and does not succeed.
struct World {
    _bank: Bank,
    transport: InProcess,
}

impl World {
    async fn new() -> Self {
        let bank = Bank::new().await;
        let schema = TableSchema { sort_key: Some("part".to_owned()), ..TableSchema::new("locks") };
        let locks = LockTable::new(bank.dynamodb.clone(), schema, Policy::default(), Clock::system());
        let transactions = TransactionService::new(bank.transactions.clone());
        let transport = InProcess::new(Service::new(locks)).with_transactions(transactions);
        Self { _bank: bank, transport }
    }

    /// Whether a request is refused for this member, and the answer.
    async fn refuses(&self, path: &str, body: &Value, member: &str) -> (bool, String) {
        let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
        let request = request.body(body.to_string().into_bytes()).expect("a request");
        let response = self.transport.send(request).await.expect("an answer");
        let problem: Value = serde_json::from_slice(response.body()).expect("JSON");
        let is_for = problem["field"].as_str().is_some_and(|field| field.rsplit('.').next() == Some(member));
        (is_for || problem["status"] == 413, problem.to_string())
    }
}

/// A valid request with this schema in it: the path, the body, and where the schema is.
fn sample(schema: &str) -> (&'static str, Value, &'static str) {
    let account = json!({ "id": { "S": "Moe" } });
    let locks = json!([{ "key": "a", "sortKey": "1" }, { "key": "b", "sortKey": "1" }]);
    let ticket = json!({ "key": "k", "sortKey": "1", "ownerName": "o", "leaseId": "l", "capacity": 2 });
    let entry = |kind: &str, more: Value| {
        let entry = with(&json!({ "TableName": "accounts", "Key": account }), more);
        json!({ "requests": [{ kind: entry }] })
    };
    let uuid = "00000000-0000-4000-8000-000000000000";
    match schema {
        "AcquireRequest" => ("/v1/acquire", json!({ "key": "k", "sortKey": "1", "ownerName": "o", "sequence": 1 }), ""),
        "AcquireAllRequest" => {
            ("/v1/acquire-all", json!({ "keys": locks, "ownerName": "o", "leaseId": "l", "sequence": 1 }), "")
        }
        "WantedLock" => ("/v1/acquire-all", json!({ "keys": locks, "ownerName": "o", "leaseId": "l" }), "/keys/0"),
        "HeartbeatRequest" => {
            ("/v1/heartbeat", json!({ "key": "k", "sortKey": "1", "leaseId": "l", "sequence": 1 }), "")
        }
        "ReleaseRequest" => ("/v1/release", json!({ "key": "k", "sortKey": "1", "leaseId": "l" }), ""),
        "WantRequest" => ("/v1/want", json!({ "key": "k", "sortKey": "1", "ownerName": "o" }), ""),
        "OccurrenceRequest" => (
            "/v1/occurrence",
            json!({ "key": "k", "sortKey": "1", "lastOccurrence": "1", "recordVersionNumber": "v" }),
            "",
        ),
        "BreakRequest" => ("/v1/break", json!({ "key": "k", "sortKey": "1", "recordVersionNumber": "v" }), ""),
        "AcquirePermitsRequest" => ("/v1/semaphore/acquire", with(&ticket, json!({ "sequence": 1 })), ""),
        "EnqueueRequest" => ("/v1/semaphore/enqueue", with(&ticket, json!({ "sequence": 1 })), ""),
        "ObservedEntry" => (
            "/v1/semaphore/acquire",
            with(&ticket, json!({ "observed": [{ "holderId": "h-1", "version": "v", "permits": 1 }] })),
            "/observed/0",
        ),
        "HeartbeatPermitsRequest" => {
            ("/v1/semaphore/heartbeat", json!({ "key": "k", "sortKey": "1", "leaseId": "l", "sequence": 1 }), "")
        }
        "ReleasePermitsRequest" => ("/v1/semaphore/release", json!({ "key": "k", "sortKey": "1", "leaseId": "l" }), ""),
        "BreakEntryRequest" => {
            ("/v1/semaphore/break", json!({ "key": "k", "sortKey": "1", "holderId": "h-1", "version": "v" }), "")
        }
        "CapacityRequest" => {
            ("/v1/semaphore/capacity", json!({ "key": "k", "sortKey": "1", "capacity": 2, "expected": 1 }), "")
        }
        "BeginRequest" => ("/v1/transactions/begin", json!({}), ""),
        "AddRequest" => ("/v1/transactions/add", json!({ "transactionId": uuid, "requests": [] }), ""),
        "CommitRequest" => ("/v1/transactions/commit", json!({ "transactionId": uuid }), ""),
        "EndRequest" => ("/v1/transactions/rollback", json!({ "transactionId": uuid }), ""),
        "SweepRequest" => ("/v1/transactions/sweep", json!({}), ""),
        "StraysRequest" => ("/v1/transactions/strays", json!({ "tableName": "accounts" }), ""),
        "UnlockRequest" => (
            "/v1/transactions/unlock",
            json!({ "tableName": "accounts", "key": account, "lock": "l", "outcome": "committed" }),
            "",
        ),
        "GetItemsRequest" => ("/v1/items/get", json!({ "tableName": "accounts", "key": account }), ""),
        "ItemRequest" => {
            ("/v1/items/get", json!({ "requests": [{ "tableName": "accounts", "key": account }] }), "/requests/0")
        }
        "ListItemsRequest" => ("/v1/items/list", json!({ "tableName": "accounts" }), ""),
        "Get" => ("/v1/transactions/begin", entry("Get", json!({})), "/requests/0/Get"),
        "Put" => (
            "/v1/transactions/begin",
            json!({ "requests": [{ "Put": { "TableName": "accounts", "Item": account } }] }),
            "/requests/0/Put",
        ),
        "Update" => (
            "/v1/transactions/begin",
            entry("Update", json!({ "UpdateExpression": "SET a = id" })),
            "/requests/0/Update",
        ),
        "Delete" => ("/v1/transactions/begin", entry("Delete", json!({})), "/requests/0/Delete"),
        "ConditionCheck" => (
            "/v1/transactions/begin",
            entry("ConditionCheck", json!({ "ConditionExpression": "id = id" })),
            "/requests/0/ConditionCheck",
        ),
        "Query" => {
            let query = json!({ "TableName": "accounts", "KeyConditionExpression": "id = id" });
            let body = json!({ "transactionId": uuid, "requests": [{ "Query": query }] });
            ("/v1/transactions/add", body, "/requests/0/Query")
        }
        _ => panic!("no sample of {schema}, which has a length or a format"),
    }
}

fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

/// A text of this length that is as good as any: the base64 of one byte less, where its last two characters are
/// padding.
fn text(member: &str, length: usize) -> String {
    match member {
        "dataBase64" => "A".repeat(length.saturating_sub(2)) + "==",
        "holderId" => "h-".to_owned() + &"x".repeat(length.saturating_sub(2)),
        _ if member.ends_with("Expression") => "a".to_owned() + &" ".repeat(length - 1),
        _ => "x".repeat(length),
    }
}

#[tokio::test]
async fn lengths_in_the_document_are_those_of_the_service() {
    let world = World::new().await;
    let document = serde_json::to_value(Api::openapi()).expect("serialises");
    let mut checked = 0;
    for (schema, definition) in document["components"]["schemas"].as_object().expect("schemas") {
        for (member, property) in definition["properties"].as_object().into_iter().flatten() {
            let is_uuid = property["format"] == "uuid" && schema.ends_with("Request");
            let Some(longest) = property["maxLength"].as_u64().or(is_uuid.then_some(0)) else { continue };
            let longest = usize::try_from(longest).expect("small");
            // DynamoDB itself judges the names of tables and indexes.
            if ["tableName", "TableName", "indexName", "IndexName"].contains(&member.as_str()) {
                continue;
            }
            let (path, body, place) = sample(schema);
            let refuses = async |value: String| {
                let mut body = body.clone();
                body.pointer_mut(place).expect("the schema")[member] = json!(value);
                // A refusal names the list of what was observed, and not its members.
                let field = if schema == "ObservedEntry" { "observed" } else { member };
                world.refuses(path, &body, field).await
            };
            let beyond = if member == "dataBase64" { 4 } else { 1 };
            let (is_refused, answer) = refuses(text(member, longest + beyond)).await;
            assert!(is_refused, "{schema}.{member} beyond {longest}: {answer}");
            checked += 1;
            // An expression of a good length may still say nothing.
            if is_uuid || member.ends_with("Expression") {
                continue;
            }
            let (is_refused, answer) = refuses(text(member, longest)).await;
            assert!(!is_refused, "{schema}.{member} of {longest}: {answer}");
            if property["minLength"] == 1 {
                let (is_refused, answer) = refuses(String::new()).await;
                assert!(is_refused, "{schema}.{member}, empty: {answer}");
            }
        }
    }
    assert!(checked > 50, "{checked}");
}

/// The texts that are read or compared as a whole: no length is good or bad.
const WITHOUT_LENGTH: [&str; 3] = ["AcquirePermitsRequest.epoch", "EnqueueRequest.epoch", "UnlockRequest.lock"];

#[test]
fn text_of_a_request_has_a_length() {
    let document = serde_json::to_value(Api::openapi()).expect("serialises");
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    let requests = schemas.iter().filter(|(name, _)| name.ends_with("Request"));
    let members = requests.flat_map(|(name, schema)| {
        let members = schema["properties"].as_object().into_iter().flatten();
        members.map(move |(member, property)| (format!("{name}.{member}"), property))
    });
    let is_unbounded = |property: &Value| {
        let is_text = property["type"] == "string"
            || property["type"].as_array().is_some_and(|all| all.contains(&json!("string")));
        is_text && ["maxLength", "format", "enum"].iter().all(|bound| property.get(bound).is_none())
    };
    let unbounded: Vec<_> = members.filter(|(_, property)| is_unbounded(property)).map(|(name, _)| name).collect();
    assert_eq!(unbounded, WITHOUT_LENGTH, "say their lengths in shared/leasehold-wire/src/openapi/lengths.rs");
}

#[tokio::test]
async fn lease_id_has_the_length_of_the_document() {
    let world = World::new().await;
    let document = serde_json::to_value(Api::openapi()).expect("serialises");
    let secret = &document["components"]["schemas"]["Secret"];
    let longest = secret["maxLength"].as_u64().and_then(|length| usize::try_from(length).ok()).expect("a length");
    assert_eq!(secret["minLength"], 1);
    for (length, expected) in [(0, true), (1, false), (longest, false), (longest + 1, true)] {
        let body = json!({ "key": "k", "sortKey": "1", "leaseId": "x".repeat(length) });
        let (is_refused, answer) = world.refuses("/v1/release", &body, "leaseId").await;
        assert_eq!(is_refused, expected, "{length}: {answer}");
    }
}
