//! Each operation calls exactly the actions of its entry in the table. actions.json, which the roles of every
//! deployment allow, is made from these. attributes.json has the attributes of the protocol that the writes of each
//! function name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use axum::Router;
use leasehold_api::{Routed, Service, TransactionService};
use leasehold_conformance::{CONCURRENT_CASES, Refusals, Target, run, run_with_sort_key};
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_lambda::{Function, answer_sweep, answer_transactions};
use leasehold_protocol::history::{HistoryTable, ensure_history_table};
use leasehold_protocol::{LockTable, Policy, RESERVED_ATTRIBUTES, TableSchema, ensure_table};
use leasehold_tests::bank::{self, ACCOUNTS, TRANSACTIONS};
use leasehold_tests::json_of;
use leasehold_transactions::{self as transactions, Transactions};
use leasehold_wire::operation::{AT_THE_START, Family, OPERATIONS, Operation, UNROUTED, Unrouted};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::conformance::patient;

/// The DynamoDB actions of each function or operation, such as `GetItem on locks`.
type Actions = BTreeMap<String, BTreeSet<String>>;

/// The table of the history.
const HISTORY: &str = "history";

/// An engine that records its requests, and their callers.
#[derive(Clone)]
struct Recorder {
    engine: Engine,
    caller: String,
    seen: Arc<Mutex<Actions>>,
    attributes: Arc<Mutex<Actions>>,
}

impl HttpClient for Recorder {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Recorder {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let target = request.headers().get("x-amz-target").expect("DynamoDB's protocol has it");
        let (_, action) = target.split_once('.').expect("service.Action");
        let body = serde_json::from_slice(request.body().bytes().expect("in memory")).expect("JSON");
        if action == "UpdateItem" {
            let mut attributes = self.attributes.lock().expect("no panics while it is held");
            attributes.entry(self.caller.clone()).or_default().extend(attributes_of(&body));
        }
        let mut seen = self.seen.lock().expect("no panics while it is held");
        // The table of the users' items has a name of its own in this test.
        let actions = actions_of(action, &body).into_iter().map(|action| action.replace(ACCOUNTS, "items"));
        seen.entry(self.caller.clone()).or_default().extend(actions);
        self.engine.call(request)
    }
}

/// The actions that IAM requires for this operation of DynamoDB.
fn actions_of(action: &str, body: &Value) -> BTreeSet<String> {
    let on = |action: &str, table: &Value| format!("{action} on {}", table.as_str().expect("a name"));
    match action {
        "TransactWriteItems" | "TransactGetItems" => body["TransactItems"]
            .as_array()
            .expect("a list")
            .iter()
            .flat_map(|entry| entry.as_object().expect("an entry"))
            .map(|(kind, write)| {
                let action = if kind == "ConditionCheck" { "ConditionCheckItem" } else { &format!("{kind}Item") };
                on(action, &write["TableName"])
            })
            .collect(),
        "BatchExecuteStatement" => body["Statements"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|statement| {
                let statement = statement["Statement"].as_str().expect("a text");
                let kind = if statement.starts_with("DELETE") { "PartiQLDelete" } else { "PartiQLUpdate" };
                format!("{kind} on {}", statement.split('"').nth(1).expect("a table"))
            })
            .collect(),
        "BatchGetItem" | "BatchWriteItem" => body["RequestItems"]
            .as_object()
            .expect("tables")
            .keys()
            .map(|table| format!("{action} on {table}"))
            .collect(),
        _ => match body["IndexName"].as_str() {
            Some(index) => [format!("{}/{index}", on(action, &body["TableName"]))].into(),
            None => [on(action, &body["TableName"])].into(),
        },
    }
}

/// The attributes of the protocol that a write of a lock names, at the top of the row.
fn attributes_of(body: &Value) -> BTreeSet<String> {
    let text = |member: &str| body[member].as_str().unwrap_or_default().to_owned();
    let expressions = format!("{} {}", text("ConditionExpression"), text("UpdateExpression"));
    let is_end = |letter: char| !(letter.is_ascii_alphanumeric() || "#:.".contains(letter));
    let words = expressions.split(is_end).map(|word| word.split('.').next().unwrap_or_default());
    let names = words.map(|word| body["ExpressionAttributeNames"][word].as_str().unwrap_or(word).to_owned());
    names.filter(|name| RESERVED_ATTRIBUTES.contains(&name.as_str())).collect()
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

/// A table, and a service for each caller, whose calls are recorded.
struct Bench {
    engine: Engine,
    schema: TableSchema,
    seen: Arc<Mutex<Actions>>,
    attributes: Arc<Mutex<Actions>>,
}

impl Bench {
    async fn new(schema: TableSchema) -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        let bench = Self { engine, schema, seen: Arc::default(), attributes: Arc::default() };
        ensure_table(&bench.client(), &bench.schema).await.expect("a new table");
        ensure_history_table(&bench.client(), HISTORY).await.expect("a new table");
        bench
    }

    fn client(&self) -> Client {
        patient(self.engine.sdk_config())
    }

    fn client_of(&self, caller: &str) -> Client {
        let recorder = Recorder {
            engine: self.engine.clone(),
            caller: caller.to_owned(),
            seen: Arc::clone(&self.seen),
            attributes: Arc::clone(&self.attributes),
        };
        patient(self.engine.sdk_config().http_client(recorder))
    }

    fn service(&self, caller: &str) -> Service {
        let client = self.client_of(caller);
        let history = HistoryTable::new(client.clone(), HISTORY, Duration::from_mins(1));
        let table = LockTable::new(client, self.schema.clone(), Policy::default(), Clock::system());
        Service::new(table).with_history(history)
    }

    fn transactions(&self, caller: &str) -> TransactionService {
        let protected = vec![self.schema.table_name.clone()];
        let policy = transactions::Policy { idle_ms: 0, retention_ms: 0, ..transactions::Policy::default() };
        let client = self.client_of(caller);
        TransactionService::new(Transactions::new(&client, TRANSACTIONS, policy, Clock::system(), protected))
    }

    /// Serves each operation by a service of its own, as the functions do.
    async fn serve(&self) -> Target {
        let app = Service::ROUTES.iter().fold(Router::new(), |app, route| {
            let service = self.service(route.operation.name);
            app.merge(leasehold_server::routes_of(service, [route]))
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let base_url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(leasehold_server::run(listener, app, std::future::pending()));
        Target {
            base_url,
            dynamodb: self.client(),
            schema: self.schema.clone(),
            concurrent_cases: CONCURRENT_CASES,
            is_multi_region: false,
            refusals: Refusals::default(),
        }
    }

    fn into_seen(self) -> Actions {
        std::mem::take(&mut self.seen.lock().expect("no panics while it is held"))
    }
}

/// The actions that the operations call during the conformance suite, on both kinds of table, and the attributes that
/// their writes name.
async fn called_over_http() -> (Actions, Actions) {
    let bench = Bench::new(TableSchema::new("locks")).await;
    run(&bench.serve().await).await.expect("it conforms");
    let attributes = bench.attributes.lock().expect("no panics while it is held").clone();
    let mut seen = bench.into_seen();
    let schema = TableSchema { table_name: "locks".into(), partition_key: "pk".into(), sort_key: Some("sk".into()) };
    let bench = Bench::new(schema).await;
    run_with_sort_key(&bench.serve().await).await.expect("it conforms");
    for (caller, actions) in bench.into_seen() {
        seen.entry(caller).or_default().extend(actions);
    }
    (seen, attributes)
}

/// The actions that direct invocations call.
async fn called_directly() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    let function = Function::unrestricted(bench.service("Invoke"));
    let call = async |input| function.answer_direct(input).await.map(json_of).expect("no refusal");
    call(json!({ "action": "acquire", "key": "k", "ownerName": "o", "leaseId": "l" })).await;
    call(json!({ "action": "heartbeat", "key": "k", "leaseId": "l" })).await;
    call(json!({ "action": "release", "key": "k", "leaseId": "l" })).await;
    let lock = call(json!({ "action": "get", "key": "k" })).await;
    call(json!({ "action": "break", "key": "k", "recordVersionNumber": lock["recordVersionNumber"] })).await;
    call(json!({ "action": "acquire", "key": "k", "ownerName": "o", "leaseId": "m" })).await;
    call(json!({ "action": "release", "key": "k", "leaseId": "m", "delete": true })).await;
    bench.into_seen()
}

/// The attributes that the writes of a holder name where a lock is bound to its owner.
async fn named_under_owner_binding() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    for (action, fields) in [
        ("acquire", json!({ "ownerName": "o" })),
        ("heartbeat", json!({ "leaseDurationMs": 20_000 })),
        ("release", json!({ "delete": true })),
    ] {
        let mut function = Function::unrestricted(bench.service(action));
        function.access.owner_binding = true;
        let mut input = json!({ "action": action, "key": "k", "leaseId": "l" });
        input.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        function.answer_direct(input).await.expect("no refusal");
    }
    let attributes = bench.attributes.lock().expect("no panics while it is held").clone();
    for (action, attributes) in &attributes {
        assert!(attributes.contains("ownerPrincipal"), "{action}: {attributes:?}");
    }
    attributes
}

/// The actions of the clean-up after an execution that held one lock, and not the other.
async fn called_by_the_cleanup() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    let arn = "arn:aws:states:eu-west-1:123456789012:execution:nightly:4f1a";
    let acquire = json!({ "action": "acquire", "key": "held", "ownerName": "o", "leaseId": arn });
    Function::unrestricted(bench.service("Nobody")).answer_direct(acquire).await.expect("granted");
    bench.seen.lock().expect("no panics while it is held").clear();
    let input = json!({ "locks": [{ "key": "held" }, { "key": "absent" }] }).to_string();
    let event = json!({ "detail": { "executionArn": arn, "status": "ABORTED", "input": input } });
    Function::unrestricted(bench.service("Cleanup")).answer_cleanup(event).await.expect("done");
    bench.into_seen()
}

/// The actions of the functions of the transactions, in all their uses.
async fn called_for_transactions() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    bank::make_tables(&bench.client(), ACCOUNTS, TRANSACTIONS).await;
    let service = |input: &Value| bench.transactions(input["action"].as_str().expect("a direct invocation"));
    let call = async |input: Value| {
        answer_transactions(&service(&input), input.clone()).await.map(json_of).expect("no refusal")
    };
    let key = |id: &str| json!({ "id": { "S": id } });
    let put = |id: &str| json!({ "Put": { "TableName": ACCOUNTS, "Item": key(id) } });
    let entry = |kind: &str, id: &str| json!({ kind: { "TableName": ACCOUNTS, "Key": key(id) } });
    let update = |id: &str| {
        let mut entry = entry("Update", id);
        entry["Update"]["UpdateExpression"] = json!("SET a = id");
        entry
    };
    let check = |id: &str| {
        let mut entry = entry("ConditionCheck", id);
        entry["ConditionCheck"]["ConditionExpression"] = json!("attribute_exists(id)");
        entry
    };
    // Requests for an item that the transaction has read, and for a missing one.
    let conditional = |id: &str| {
        let mut entry = put(id);
        entry["Put"]["ConditionExpression"] = json!("attribute_not_exists(b)");
        entry
    };
    let query = json!({ "Query": { "TableName": ACCOUNTS, "KeyConditionExpression": "id = :id",
                                   "ExpressionAttributeValues": { ":id": { "S": "a" } } } });
    let end = |action: &str, begun: &Value| json!({ "action": action, "transactionId": begun["transactionId"] });

    // The short path, for writes and for reads.
    call(json!({ "action": "begin", "commit": true, "requests": [put("a"), put("b"), put("c")] })).await;
    call(json!({ "action": "begin", "commit": true, "requests": [check("a"), update("b"), entry("Delete", "c")] }))
        .await;
    call(json!({ "action": "begin", "commit": true, "requests": [entry("Get", "a"), entry("Get", "b")] })).await;
    // The long path, with both outcomes.
    for action in ["commit", "rollback"] {
        let begun = call(json!({ "action": "begin" })).await;
        call(json!({ "action": "begin", "transactionId": begun["transactionId"] })).await;
        for requests in [
            json!([entry("Get", "a"), check("b")]),
            json!([update("a"), entry("Delete", "c"), put("d")]),
            json!([conditional("b"), conditional("f")]),
            json!([query]),
            json!([]),
        ] {
            call(json!({ "action": "add", "transactionId": begun["transactionId"], "requests": requests })).await;
        }
        call(json!({ "action": "get-transaction", "id": begun["transactionId"] })).await;
        call(json!({ "action": "get-items", "tableName": ACCOUNTS, "key": key("a") })).await;
        let several =
            [json!({ "tableName": ACCOUNTS, "key": key("a") }), json!({ "tableName": ACCOUNTS, "key": key("d") })];
        call(json!({ "action": "get-items", "requests": several })).await;
        call(json!({ "action": "list-items", "tableName": ACCOUNTS })).await;
        call(json!({ "action": "list-items", "tableName": ACCOUNTS, "keyConditionExpression": "id = :id",
                     "expressionAttributeValues": { ":id": { "S": "a" } } }))
        .await;
        call(end(action, &begun)).await;
    }
    // The sweeper finds unfinished transactions: reads and writes of every kind, in several batches.
    let begun = call(json!({ "action": "begin", "requests": [entry("Get", "a"), check("b"), update("e")] })).await;
    let id = &begun["transactionId"];
    call(json!({ "action": "add", "transactionId": id, "requests": [update("a"), put("b"), entry("Delete", "d")] }))
        .await;
    let many: Vec<_> = (0..60).map(|number| put(&format!("account-{number}"))).collect();
    call(json!({ "action": "begin", "requests": many })).await;
    // A single item is freed by another call than several.
    for action in ["commit", "rollback"] {
        for requests in [json!([put("g")]), json!([entry("Delete", "g"), put("h")])] {
            let begun = call(json!({ "action": "begin", "requests": requests })).await;
            call(end(action, &begun)).await;
        }
    }
    // A single item is deleted by another call than several, and one with many attributes is restored by another than
    // others.
    call(json!({ "action": "begin", "requests": [put("alone")] })).await;
    let wide = |value: &str| {
        let mut put = put("wide");
        for number in 0..120 {
            put["Put"]["Item"][format!("attribute-{number}")] = json!({ "S": value });
        }
        json!([put])
    };
    call(json!({ "action": "begin", "commit": true, "requests": wide("old") })).await;
    call(json!({ "action": "begin", "requests": wide("new") })).await;
    // More transactions than the index has partitions, so that one partition has several.
    for _ in 0..9 {
        call(json!({ "action": "begin" })).await;
    }
    let time = Duration::from_secs(20);
    let sweep = async || answer_sweep(&bench.transactions("sweep"), json!({}), time).await.expect("no failure");
    let operate = async |event: Value| {
        let answer = answer_sweep(&service(&event), event.clone(), time).await;
        answer.map_or_else(|error| panic!("{event}: {error:?}"), json_of)
    };
    // A single record is read by another call than several. Which partitions have one is left to chance.
    operate(json!({ "action": "list-transactions", "limit": 1 })).await;
    let mut page = operate(json!({ "action": "list-transactions" })).await;
    while let Some(cursor) = page["nextCursor"].as_str() {
        page = operate(json!({ "action": "list-transactions", "cursor": cursor })).await;
    }
    // The sweep finishes them; at last transactions whose table was deleted.
    sweep().await;
    find_and_unlock_strays(&bench.client(), operate).await;
    call(json!({ "action": "begin", "requests": [put("a"), put("b")] })).await;
    bench.client().delete_table().table_name(ACCOUNTS).send().await.expect("it is there");
    sweep().await;
    bench.into_seen()
}

/// One stray, and several of as many transactions. Each is freed by another write.
async fn find_and_unlock_strays(client: &Client, operate: impl AsyncFn(Value) -> Value) {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let many = (0..120).map(|number| (format!("attribute-{number}"), text("old")));
    let before = many.chain([("id".to_owned(), text("c"))]).collect();
    for (id, name, value) in [
        ("a", "kept", text("as it is")),
        ("b", "leaseholdTxTransient", AttributeValue::Bool(true)),
        ("c", "leaseholdTxBefore", AttributeValue::M(before)),
    ] {
        let item = [("id", text(id)), ("leaseholdTxId", text(&format!("{id}#life#1"))), (name, value)];
        let item = item.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        client.put_item().table_name(ACCOUNTS).set_item(Some(item)).send().await.expect("it is there");
        operate(json!({ "action": "strays", "tableName": ACCOUNTS })).await;
    }
    for id in ["a", "b", "c"] {
        let (lock, outcome) = (format!("{id}#life#1"), "rolled-back");
        operate(json!({ "action": "unlock", "tableName": ACCOUNTS, "key": { "id": { "S": id } }, "lock": lock, "outcome": outcome }))
            .await;
    }
}

/// What the operations of each function have in sum.
fn by_function<'a>(
    of: impl Fn(&Operation) -> Vec<&'a str>,
    more: impl Fn(&'static Unrouted) -> Vec<&'a str>,
) -> Actions {
    let routed = OPERATIONS.iter().map(|&operation| (operation.function(), operation));
    let unrouted = UNROUTED
        .iter()
        .flat_map(|unrouted| unrouted.operations.iter().map(|&operation| (unrouted.function, operation)));
    // This function stands in place of those that ask and hold.
    let in_one = OPERATIONS.iter().filter(|operation| matches!(operation.family, Family::Ask | Family::Hold));
    let in_one = in_one.map(|&operation| ("acquire", operation));
    let mut functions = Actions::new();
    for (function, operation) in routed.chain(unrouted).chain(in_one) {
        let name = function[..1].to_uppercase() + &function[1..];
        functions.entry(name).or_default().extend(of(operation).into_iter().map(str::to_owned));
    }
    for unrouted in UNROUTED.iter().filter(|unrouted| !unrouted.dynamodb.is_empty()) {
        let name = unrouted.function[..1].to_uppercase() + &unrouted.function[1..];
        functions.entry(name).or_default().extend(more(unrouted).into_iter().map(str::to_owned));
    }
    functions
}

/// The actions of each function.
fn actions() -> Actions {
    let mut functions = called();
    for (name, actions) in &mut functions {
        if !["Transact", "Sweep"].contains(&name.as_str()) {
            actions.insert(AT_THE_START.to_owned());
        }
    }
    functions
}

/// The actions of each function after its start.
fn called() -> Actions {
    by_function(|operation| operation.dynamodb.to_vec(), |unrouted| unrouted.dynamodb.to_vec())
}

/// The actions of the function that removes expired rows.
async fn called_by_the_expiry() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    let row = [("key", AttributeValue::S("k".into())), ("expireAt", AttributeValue::N("1".into()))];
    let row = row.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    bench.client().put_item().table_name("locks").set_item(Some(row)).send().await.expect("it is there");
    let function = Function::unrestricted(bench.service("Expire"));
    let expiry = function.answer_expiry(Duration::from_secs(20)).await.expect("no failure");
    assert_eq!((expiry.removed, expiry.complete), (1, true));
    bench.into_seen()
}

/// The actions of the function that records the history.
async fn called_by_the_recorder() -> Actions {
    let bench = Bench::new(TableSchema::new("locks")).await;
    let history = HistoryTable::new(bench.client_of("Record"), HISTORY, Duration::from_mins(1));
    let mut function = Function::unrestricted(bench.service("Nobody"));
    function.recorder = Some(leasehold_api::Recorder { schema: bench.schema.clone(), history });
    let row = json!({ "key": { "S": "k" }, "ownerName": { "S": "o" } });
    let change = json!({ "SequenceNumber": "1", "ApproximateCreationDateTime": 1_800_000_000.0, "NewImage": row });
    let batch = json!({ "Records": [{ "eventName": "INSERT", "dynamodb": change }] });
    assert_eq!(function.answer_stream(batch).await.expect("recorded"), 1);
    bench.into_seen()
}

fn compare(file: &str, functions: &Actions) {
    let written = serde_json::to_string_pretty(functions).expect("serialises") + "\n";
    crate::openapi::compare(&format!("{}/{file}", env!("CARGO_MANIFEST_DIR")), &written);
}

#[tokio::test(flavor = "multi_thread")]
async fn operation_calls_the_actions_of_its_entry() {
    let (mut called, mut attributes) = called_over_http().await;
    for (action, named) in named_under_owner_binding().await {
        attributes.entry(action).or_default().extend(named);
    }
    called.extend(called_for_transactions().await);
    let entry = |operation: &&Operation| {
        (operation.name.to_owned(), operation.dynamodb.iter().map(|&action| action.to_owned()).collect())
    };
    assert_eq!(OPERATIONS.iter().map(entry).collect::<Actions>(), called, "the table on the left");
    let functions = self::called();
    let unrouted = called_directly().await.into_iter().chain(called_by_the_cleanup().await);
    let unrouted = unrouted.chain(called_by_the_expiry().await);
    for (function, called) in unrouted {
        assert_eq!(functions[&function], called, "{function}");
    }
    // Lambda itself reads the stream.
    let recorded = called_by_the_recorder().await.remove("Record").expect("its calls");
    let own = functions["Record"].iter().filter(|action| !action.contains("Stream") && !action.contains("/stream"));
    assert_eq!(own.cloned().collect::<BTreeSet<_>>(), recorded);
    let of = |operation: &Operation| attributes.get(operation.name).into_iter().flatten().map(String::as_str);
    let mut named = by_function(|operation| of(operation).collect(), |_| Vec::new());
    named.retain(|_, attributes| !attributes.is_empty());
    compare("attributes.json", &named);
}

/// `scripts/check_template.py` compares the file with the roles that the SAM translator generates from the template.
#[test]
fn actions_of_functions_are_those_of_their_operations() {
    compare("actions.json", &actions());
}
