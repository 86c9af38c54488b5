//! Access rules: key scopes and owner binding, from the gateway's event to the row.

use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, WriteRequest};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use leasehold_api::Service;
use leasehold_api::access::{Access, Scopes};
use leasehold_lambda::{Function, routes};
use leasehold_protocol::{Field, Staleness};
use leasehold_tests::{World, acquire, json_of};
use leasehold_wire::operation::{ACQUIRE, BREAK, GET, HEALTH, HEARTBEAT, LIST, Method, Operation, RELEASE};
use serde_json::{Value, json};

use crate::events::{Answer, event, rest};

const ORDERS_WORKER: &str = "arn:aws:iam::123456789012:role/orders-worker";

/// A function with these rules.
fn function(world: &World, scopes: &Value, owner_binding: bool) -> Function {
    let scopes = (!scopes.is_null()).then(|| Scopes::parse(&scopes.to_string()).expect("valid"));
    let access = Access { scopes, owner_binding };
    Function { access, jwt_claim: "sub".into(), ..Function::unrestricted(Service::new(world.table.clone())) }
}

/// API Gateway's authorizer for a caller that signed with a session of a role.
fn role(name: &str) -> Value {
    signed(&format!("arn:aws:sts::123456789012:assumed-role/{name}/i-0123456789abcdef0"))
}

fn signed(arn: &str) -> Value {
    let mut authorizer = event("http-acquire-iam")["requestContext"]["authorizer"].clone();
    authorizer["iam"]["userArn"] = json!(arn);
    authorizer
}

/// API Gateway's authorizer for a caller with a token.
fn token(subject: &Value) -> Value {
    let mut authorizer = event("http-acquire-jwt")["requestContext"]["authorizer"].clone();
    authorizer["jwt"]["claims"]["sub"] = subject.clone();
    authorizer
}

async fn send(function: &Function, operation: &Operation, event: Value) -> (u64, Value) {
    let answer = function
        .answer_http(&routes(|served| served.name == operation.name), event)
        .await
        .map(json_of)
        .expect("an event of a gateway");
    let answer = Answer::read(&answer);
    (answer.status, answer.body)
}

/// Sends one request of this caller, with a body or a query.
async fn call(function: &Function, authorizer: &Value, operation: &Operation, body: Value) -> (u64, Value) {
    let mut event = match operation.method {
        Method::Get => event("http-get"),
        Method::Post => event("http-acquire"),
    };
    event["requestContext"]["authorizer"] = authorizer.clone();
    match body {
        Value::String(query) => event["rawQueryString"] = json!(query),
        body => event["body"] = json!(body.to_string()),
    }
    send(function, operation, event).await
}

async fn get_lock(function: &Function, authorizer: &Value, key: &str, lease_id: &str) -> (u64, Value) {
    let body = json!({ "key": key, "ownerName": "o", "leaseId": lease_id });
    call(function, authorizer, ACQUIRE.operation(), body).await
}

/// The status, and the kind of the problem.
fn kind(answer: &(u64, Value)) -> (u64, &str) {
    (answer.0, answer.1["type"].as_str().unwrap_or_default())
}

const FORBIDDEN: (u64, &str) = (403, "forbidden");

#[tokio::test(start_paused = true)]
async fn events_of_both_authorizers_say_who_calls() {
    let world = World::new().await;
    for (name, principal) in [("http-acquire-iam", ORDERS_WORKER), ("http-acquire-jwt", "jwt:orders-worker")] {
        for (prefix, status) in [("orders/", 200), ("orders/4", 200), ("orders/43", 403), ("billing/", 403)] {
            let function = function(&world, &json!([{ "principal": principal, "prefixes": [prefix] }]), false);
            let answer = send(&function, ACQUIRE.operation(), event(name)).await;
            assert_eq!(answer.0, status, "{principal} {prefix} {answer:?}");
            if status == 403 {
                let detail = answer.1["detail"].as_str().expect("a text");
                assert!(answer.1["type"] == "forbidden" && detail.starts_with(principal), "{detail}");
            }
        }
    }
}

/// A REST API names the signer of the request outside its authorizer, and does not know the tokens of an HTTP API.
#[tokio::test(start_paused = true)]
async fn event_of_a_rest_api_says_who_signed_it() {
    let world = World::new().await;
    let scopes = json!([
        { "principal": ORDERS_WORKER, "prefixes": ["orders/"] }, { "principal": "anonymous", "prefixes": ["public/"] },
    ]);
    let function = function(&world, &scopes, false);
    let signed = |arn: Value, authorizer: Value, key: &str| {
        let mut event = rest(&event("http-acquire"));
        event["requestContext"]["identity"]["userArn"] = arn;
        event["requestContext"]["authorizer"] = authorizer;
        event["body"] = json!(json!({ "key": key, "ownerName": "o" }).to_string());
        event
    };
    let arn = || event("http-acquire-iam")["requestContext"]["authorizer"]["iam"]["userArn"].clone();
    let http_api = || event("http-acquire-iam")["requestContext"]["authorizer"].clone();
    for (arn, authorizer, key, status) in [
        (arn(), Value::Null, "orders/1", 200),
        (arn(), Value::Null, "public/1", 403),
        (Value::Null, Value::Null, "public/2", 200),
        (Value::Null, Value::Null, "orders/2", 403),
        // An authorizer of an unknown kind, and one that only an HTTP API has.
        (Value::Null, json!({ "claims": { "sub": "orders-worker" } }), "public/3", 403),
        (Value::Null, http_api(), "orders/3", 403),
        (json!(7), Value::Null, "public/4", 403),
    ] {
        let answer = send(&function, ACQUIRE.operation(), signed(arn, authorizer, key)).await;
        assert_eq!(answer.0, status, "{key} {answer:?}");
    }
}

/// VPC Lattice and Lambda authorizers name callers. A load balancer names none: its headers are a caller's to write.
#[tokio::test(start_paused = true)]
async fn other_gateways_say_who_calls() {
    let world = World::new().await;
    let scopes = json!([
        { "principal": ORDERS_WORKER, "prefixes": ["orders/"] }, { "principal": "anonymous", "prefixes": ["public/"] },
        { "principal": "authorizer:orders-worker", "prefixes": ["jobs/"] },
    ]);
    let function = function(&world, &scopes, false);
    let with_key = |mut event: Value, key: &str| {
        event["body"] = json!(json!({ "key": key, "ownerName": "o" }).to_string());
        event
    };
    let lattice = |identity: Value| {
        let mut event = event("lattice-acquire-iam");
        event["requestContext"]["identity"] = identity;
        event
    };
    let signed = event("lattice-acquire-iam");
    let unsigned = lattice(json!({ "sourceVpcArn": "arn:aws:ec2:eu-west-1:123456789012:vpc/vpc-1" }));
    let strange = lattice(json!({ "type": "AWS_IAM", "principal": "orders-worker" }));
    let mut balanced = event("alb-acquire");
    balanced["headers"]["x-amzn-oidc-identity"] = json!("orders-worker");
    let mut by_lambda = event("http-acquire");
    by_lambda["requestContext"]["authorizer"] = json!({ "lambda": { "sub": "orders-worker" } });
    let mut by_lambda_of_rest = rest(&event("http-acquire"));
    by_lambda_of_rest["requestContext"]["authorizer"] =
        json!({ "principalId": "orders-worker", "integrationLatency": 3 });
    let mut nameless = event("http-acquire");
    nameless["requestContext"]["authorizer"] = json!({ "lambda": null });
    for (event, keys) in [
        (signed, "orders/"),
        (unsigned, "public/"),
        (strange, ""),
        (balanced, "public/"),
        (by_lambda, "jobs/"),
        (by_lambda_of_rest, "jobs/"),
        (nameless, ""),
    ] {
        for prefix in ["orders/", "public/", "jobs/"] {
            let answer = send(&function, ACQUIRE.operation(), with_key(event.clone(), prefix)).await;
            assert_eq!(answer.0 == 403, prefix != keys, "{prefix} {answer:?} {event}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_operation_on_a_key_is_scoped() {
    let world = World::new().await;
    let scopes = json!([{ "principal": ORDERS_WORKER, "prefixes": ["orders/"] }, { "principal": "direct", "prefixes": ["jobs/"] }]);
    let function = function(&world, &scopes, false);
    let worker = role("orders-worker");
    for (key, may) in [("orders/1", true), ("orders-evil", false), ("orders", false), ("jobs/1", false)] {
        for (operation, body) in [
            (ACQUIRE.operation(), json!({ "key": key, "ownerName": "o" })),
            (HEARTBEAT.operation(), json!({ "key": key, "leaseId": "l" })),
            (RELEASE.operation(), json!({ "key": key, "leaseId": "l" })),
            (BREAK.operation(), json!({ "key": key, "recordVersionNumber": "v" })),
            (GET.operation(), json!(format!("key={key}"))),
            (LIST.operation(), json!(format!("key={key}"))),
        ] {
            let answer = call(&function, &worker, operation, body).await;
            assert_eq!(kind(&answer) == FORBIDDEN, !may, "{operation:?} {key} {answer:?}");
        }
        for action in ["acquire", "heartbeat", "release", "break", "get"] {
            let mut input = json!({ "action": action, "key": key });
            match action {
                "acquire" => input["ownerName"] = json!("o"),
                "break" => input["recordVersionNumber"] = json!("v"),
                "get" => {}
                _ => input["leaseId"] = json!("l"),
            }
            let answer = function.answer_direct(input).await;
            let is_forbidden = answer.is_err_and(|error| error.error_type == "Forbidden");
            assert_eq!(is_forbidden, key != "jobs/1", "{action} {key}");
        }
    }
    let health = send(&function, HEALTH.operation(), event("http-health")).await;
    assert_eq!(health.0, 200, "health is nobody's key");
}

/// A refusal must not disclose whether the lock exists, or its holder.
#[tokio::test(start_paused = true)]
async fn refusal_out_of_scope_does_not_tell_whether_the_lock_exists() {
    let world = World::new().await;
    get_lock(&function(&world, &Value::Null, false), &Value::Null, "billing/1", "l").await;
    let function = function(&world, &json!([{ "principal": ORDERS_WORKER, "prefixes": ["orders/"] }]), false);
    let worker = role("orders-worker");
    let there = call(&function, &worker, GET.operation(), json!("key=billing/1")).await;
    let missing = call(&function, &worker, GET.operation(), json!("key=billing/2")).await;
    assert_eq!((kind(&there), &there), (FORBIDDEN, &missing));
    assert_eq!(
        get_lock(&function, &worker, "billing/1", "m").await,
        get_lock(&function, &worker, "billing/2", "m").await
    );
}

#[tokio::test(start_paused = true)]
async fn callers_who_look_alike_are_refused() {
    let world = World::new().await;
    let function = function(&world, &json!([{ "principal": ORDERS_WORKER, "prefixes": ["orders/"] }]), false);
    let subject = |subject: &str| token(&json!(subject));
    for (authorizer, may) in [
        (role("orders-worker"), true),
        (role("orders-worker2"), false),
        (role("my-orders-worker"), false),
        (role("Orders-Worker"), false),
        (role("*"), false),
        (signed("arn:aws:sts::210987654321:assumed-role/orders-worker/s"), false),
        (signed("arn:aws-cn:sts::123456789012:assumed-role/orders-worker/s"), false),
        (signed("arn:aws:sts::123456789012:assumed-role/reader/orders-worker"), false),
        (signed("arn:aws:sts::123456789012:assumed-role/reader/x:role/orders-worker"), false),
        (signed("arn:aws:iam::123456789012:user/orders-worker"), false),
        (signed("arn:aws:iam::123456789012:role/orders-worker"), false),
        (signed(""), false),
        (subject(ORDERS_WORKER), false),
        (subject("orders-worker"), false),
        (subject("*"), false),
        (json!({ "lambda": { "userArn": "arn:aws:sts::123456789012:assumed-role/orders-worker/s" } }), false),
        (json!({ "iam": null }), false),
        (json!({ "iam": role("orders-worker")["iam"], "jwt": subject("x")["jwt"] }), false),
        (json!({ "iam": ["arn:aws:sts::123456789012:assumed-role/orders-worker/s"] }), false),
        (json!("arn:aws:sts::123456789012:assumed-role/orders-worker/s"), false),
        (json!({}), false),
        (Value::Null, false),
    ] {
        let answer = call(&function, &authorizer, GET.operation(), json!("key=orders/1")).await;
        let expected = if may { (404, "not-found") } else { FORBIDDEN };
        assert_eq!(kind(&answer), expected, "{authorizer}");
    }
}

/// A token without a usable claim is admitted only where there are no rules: not even `*` matches it.
#[tokio::test(start_paused = true)]
async fn token_without_the_claim_is_denied() {
    let world = World::new().await;
    let mut without = token(&Value::Null);
    without["jwt"]["claims"].as_object_mut().expect("claims").remove("sub");
    let everyone = json!([{ "principal": "*", "prefixes": [""] }]);
    for authorizer in [
        without,
        token(&Value::Null),
        token(&json!(7)),
        token(&json!(["orders-worker"])),
        token(&json!("")),
        token(&json!("x".repeat(5000))),
        json!({ "jwt": {} }),
    ] {
        for (scopes, owner_binding, expected) in
            [(&Value::Null, false, (404, "not-found")), (&everyone, false, FORBIDDEN), (&Value::Null, true, FORBIDDEN)]
        {
            let function = function(&world, scopes, owner_binding);
            let answer = call(&function, &authorizer, GET.operation(), json!("key=orders/1")).await;
            assert_eq!(kind(&answer), expected, "{authorizer}");
        }
    }
    let mut function = function(&world, &json!([{ "principal": "jwt:7k3example", "prefixes": [""] }]), false);
    function.jwt_claim = "client_id".into();
    let answer = call(&function, &token(&Value::Null), GET.operation(), json!("key=orders/1")).await;
    assert_eq!(kind(&answer), (404, "not-found"), "another claim can be chosen");
}

#[tokio::test(start_paused = true)]
async fn listing_and_cursors_show_no_key_out_of_scope() {
    let world = World::new().await;
    let open = function(&world, &Value::Null, false);
    let mut own = Vec::new();
    for index in 0..40 {
        for key in [format!("orders/{index:02}"), format!("orders-evil/{index}"), format!("billing/{index}")] {
            assert_eq!(get_lock(&open, &Value::Null, &key, "l").await.0, 200);
        }
        own.push(format!("orders/{index:02}"));
    }
    // One of the caller's rows is no lock, and neither is one of another caller.
    for key in ["orders/00", "billing/0"] {
        let update = world.dynamodb.update_item().table_name("locks").update_expression("REMOVE leaseDuration");
        update.key("key", AttributeValue::S(key.into())).send().await.expect("damaged");
    }
    let function = function(
        &world,
        &json!([{ "principal": ORDERS_WORKER, "prefixes": ["orders/"] }, { "principal": "*", "prefixes": ["nothing/"] }]),
        false,
    );
    for (filter, limit) in [("", 7), ("", 1000), ("&state=held", 7), ("&ownerName=o", 40)] {
        let mut listed = list_all(&function, &format!("limit={limit}{filter}")).await;
        listed.sort();
        assert_eq!(listed, own, "{filter} {limit}");
    }
    let other = call(&function, &role("reader"), LIST.operation(), json!("")).await;
    assert_eq!(other, (200, json!({ "locks": [] })));
    let nobody = call(&function, &json!({}), LIST.operation(), json!("")).await;
    assert_eq!(kind(&nobody), FORBIDDEN);
}

/// The key that anyone can read in a cursor.
fn key_in(cursor: &str) -> String {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).expect("base64");
    let position: Value = serde_json::from_slice(&bytes[8..]).expect("JSON behind the checksum");
    position[0].as_str().expect("a key").to_owned()
}

/// In a large table with little in scope, a listing reads on, and discloses nothing of the rows that it skips.
#[tokio::test(start_paused = true)]
async fn listing_passes_over_as_much_as_it_must() {
    let world = World::new().await;
    // This table has more rows before the first row in scope than a page reads, and more after it, in any order.
    for chunk in 0..440 {
        put_rows(&world, &format!("billing/{chunk}")).await;
    }
    for chunk in 0..60 {
        put_rows(&world, &format!("zoo/{chunk}")).await;
    }
    let open = function(&world, &Value::Null, false);
    for index in 0..3 {
        assert_eq!(get_lock(&open, &Value::Null, &format!("orders/{index}"), "l").await.0, 200);
    }
    let function = function(&world, &json!([{ "principal": ORDERS_WORKER, "prefixes": ["orders/"] }]), false);
    for limit in [1, 2, 3, 100] {
        assert_eq!(list_all(&function, &format!("limit={limit}")).await.len(), 3, "{limit}");
    }
    // Other listings stop after ten requests of a thousand rows, found or not.
    world.faults.take_calls();
    let (status, page) = call(&open, &Value::Null, LIST.operation(), json!("ownerName=nobody")).await;
    assert_eq!((status, &page["locks"], world.faults.take_calls()), (200, &json!([]), 10));
    assert!(page["nextCursor"].is_string(), "there is more: {page}");
}

#[tokio::test(start_paused = true)]
async fn last_page_of_a_listing_has_no_cursor_when_it_is_full() {
    let world = World::new().await;
    let function = function(&world, &Value::Null, false);
    for index in 0..3 {
        assert_eq!(get_lock(&function, &Value::Null, &format!("orders/{index}"), "l").await.0, 200);
    }
    for (limit, is_last) in [(2, false), (3, true), (4, true)] {
        let query = json!(format!("ownerName=o&limit={limit}"));
        let (_, page) = call(&function, &Value::Null, LIST.operation(), query).await;
        assert_eq!(
            (page["locks"].as_array().map(Vec::len), page["nextCursor"].is_null()),
            (Some(limit.min(3)), is_last)
        );
    }
}

/// Writes twenty-five rows at once, which need not be readable.
async fn put_rows(world: &World, prefix: &str) {
    let put = |index: usize| {
        let key = AttributeValue::S(format!("{prefix}/{index}"));
        let put = PutRequest::builder().item("key", key).build().expect("an item");
        WriteRequest::builder().put_request(put).build()
    };
    let batch = world.dynamodb.batch_write_item().request_items("locks", (0..25).map(put).collect());
    batch.send().await.expect("written");
}

/// The keys that the role orders-worker finds in all pages of a listing.
async fn list_all(function: &Function, query: &str) -> Vec<String> {
    let (mut listed, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) =
            call(function, &role("orders-worker"), LIST.operation(), json!(format!("{query}{cursor}"))).await;
        assert_eq!(status, 200, "{page}");
        let rows = ["locks", "unreadable"].into_iter().filter_map(|list| page[list].as_array()).flatten();
        listed.extend(rows.map(|row| row["key"].as_str().expect("a key").to_owned()));
        let Some(next) = page["nextCursor"].as_str() else { return listed };
        assert!(key_in(next).starts_with("orders/"), "{}", key_in(next));
        cursor = format!("&cursor={next}");
    }
}

#[tokio::test(start_paused = true)]
async fn stolen_lease_id_is_of_no_use_to_another_principal() {
    let world = World::new().await;
    let function = function(&world, &Value::Null, true);
    let (owner, thief) = (role("orders-worker"), role("reader"));
    let (status, granted) = get_lock(&function, &owner, "Moe", "secret").await;
    assert_eq!((status, &granted["outcome"]), (200, &json!("created")));
    let before = world.row().await;
    let possession = json!({ "key": "Moe", "leaseId": "secret" });
    for authorizer in [&thief, &token(&json!("orders-worker")), &token(&json!(ORDERS_WORKER)), &Value::Null] {
        for (operation, body) in [
            (HEARTBEAT.operation(), possession.clone()),
            (HEARTBEAT.operation(), json!({ "key": "Moe", "leaseId": "secret", "recordVersionNumber": "wrong" })),
            (RELEASE.operation(), possession.clone()),
            (RELEASE.operation(), json!({ "key": "Moe", "leaseId": "secret", "delete": true })),
        ] {
            let answer = call(&function, authorizer, operation, body).await;
            assert_eq!(kind(&answer), FORBIDDEN, "{operation:?} {authorizer}");
            assert!(answer.1["lock"].is_null(), "{answer:?}");
        }
        assert_eq!(kind(&get_lock(&function, authorizer, "Moe", "secret").await), (423, "held"));
    }
    let stolen = json!({ "action": "heartbeat", "key": "Moe", "leaseId": "secret" });
    assert_eq!(function.answer_direct(stolen).await.expect_err("another principal").error_type, "Forbidden");
    assert_eq!(world.row().await, before, "nothing was written");

    // Another session of the same role is the same principal. A wrong lease id is still refused.
    let session = signed("arn:aws:sts::123456789012:assumed-role/orders-worker/another-session");
    assert_eq!(call(&function, &session, HEARTBEAT.operation(), possession.clone()).await.0, 200);
    assert_eq!(get_lock(&function, &session, "Moe", "secret").await.1["outcome"], "renewed");
    let wrong = json!({ "key": "Moe", "leaseId": "guess" });
    assert_eq!(kind(&call(&function, &owner, HEARTBEAT.operation(), wrong).await), (409, "lost"));

    assert_eq!(call(&function, &owner, RELEASE.operation(), possession.clone()).await.1["outcome"], "released");
    assert_eq!(call(&function, &owner, RELEASE.operation(), possession.clone()).await.1["outcome"], "replayed");
    for operation in [HEARTBEAT.operation(), RELEASE.operation()] {
        assert_eq!(kind(&call(&function, &thief, operation, possession.clone()).await), FORBIDDEN, "{operation:?}");
    }
    let (status, granted) = get_lock(&function, &thief, "Moe", "another").await;
    assert_eq!((status, &granted["outcome"]), (200, &json!("reacquired")), "a released lock is anyone's");
}

#[tokio::test(start_paused = true)]
async fn dead_lock_is_taken_over_by_whoever_waited() {
    let world = World::new().await;
    let function = function(&world, &Value::Null, true);
    let (owner, other) = (role("orders-worker"), role("reader"));
    let (_, granted) = get_lock(&function, &owner, "Moe", "secret").await;
    let mut body = json!({ "key": "Moe", "ownerName": "p", "leaseId": "secret" });
    body["observedRecordVersionNumber"] = granted["recordVersionNumber"].clone();
    let (status, taken) = call(&function, &other, ACQUIRE.operation(), body).await;
    assert_eq!(
        (status, &taken["outcome"]),
        (200, &json!("takenOver")),
        "even under the same lease id it is no renewal"
    );
    assert_eq!(taken["previousOwnerName"], "o");
    let possession = json!({ "key": "Moe", "leaseId": "secret" });
    assert_eq!(kind(&call(&function, &owner, HEARTBEAT.operation(), possession.clone()).await), FORBIDDEN);
    assert_eq!(call(&function, &other, HEARTBEAT.operation(), possession).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn operators_break_and_the_clean_up_releases_whatever_is_bound() {
    let world = World::new().await;
    let function = function(&world, &json!([{ "principal": "arn:aws:iam::*:role/*", "prefixes": [""] }]), true);
    let (owner, operator) = (role("orders-worker"), role("operator"));
    let (_, granted) = get_lock(&function, &owner, "Moe", "secret").await;
    let seen = json!({ "key": "Moe", "recordVersionNumber": granted["recordVersionNumber"] });
    assert_eq!(call(&function, &operator, BREAK.operation(), seen).await.1["outcome"], "released");

    let ended = event("execution-aborted");
    let arn = ended["detail"]["executionArn"].as_str().expect("an ARN").to_owned();
    assert_eq!(get_lock(&function, &owner, "Moe", &arn).await.0, 200);
    let cleaned = function.answer_cleanup(ended).await.expect("done");
    assert_eq!(serde_json::to_value(cleaned).expect("JSON")["locks"][0]["outcome"], "released");
}

/// Binding is turned on or off while locks are held. Every holder keeps access to its own lock, and nothing stale
/// remains.
#[tokio::test(start_paused = true)]
async fn binding_begins_and_ends_with_the_next_acquire() {
    let world = World::new().await;
    let (bound, unbound) = (function(&world, &Value::Null, true), function(&world, &Value::Null, false));
    let (owner, other) = (role("orders-worker"), role("reader"));
    let possession = json!({ "key": "Moe", "leaseId": "secret" });
    let principal = async || world.row().await.expect("a row").principal;

    assert_eq!(get_lock(&unbound, &owner, "Moe", "secret").await.0, 200);
    assert_eq!(principal().await, Field::Absent);
    assert_eq!(call(&bound, &other, HEARTBEAT.operation(), possession.clone()).await.0, 200, "bound to nobody yet");
    assert_eq!(get_lock(&bound, &owner, "Moe", "secret").await.1["outcome"], "renewed");
    assert_eq!(principal().await, Field::Value(ORDERS_WORKER.to_owned()));
    assert_eq!(kind(&call(&bound, &other, HEARTBEAT.operation(), possession.clone()).await), FORBIDDEN);
    assert_eq!(call(&unbound, &other, HEARTBEAT.operation(), possession.clone()).await.0, 200, "nobody asks");
    assert_eq!(principal().await, Field::Value(ORDERS_WORKER.to_owned()), "a heartbeat leaves it");
    assert_eq!(get_lock(&unbound, &other, "Moe", "secret").await.1["outcome"], "renewed");
    assert_eq!(principal().await, Field::Absent);
}

#[tokio::test(start_paused = true)]
async fn bound_principal_is_not_shown_and_cannot_be_written() {
    let world = World::new().await;
    let function = function(&world, &Value::Null, true);
    let owner = role("orders-worker");
    let (_, granted) = get_lock(&function, &owner, "Moe", "secret").await;
    let (_, lock) = call(&function, &owner, GET.operation(), json!("key=Moe")).await;
    let (_, page) = call(&function, &owner, LIST.operation(), json!("")).await;
    let (_, held) = get_lock(&function, &role("reader"), "Moe", "another").await;
    for document in [granted, lock, page, held] {
        assert!(
            !document.to_string().contains("rincipal") && !document.to_string().contains(ORDERS_WORKER),
            "{document}"
        );
    }
    let body = json!({ "key": "k", "ownerName": "o", "attributes": { "ownerPrincipal": "jwt:me" } });
    let (status, problem) = call(&function, &owner, ACQUIRE.operation(), body).await;
    assert_eq!((status, &problem["field"]), (400, &json!("attributes")));
}

/// A row of a Java client is bound to no principal, and cannot be changed without a lease id.
#[tokio::test(start_paused = true)]
async fn rows_of_other_clients_are_as_they_were() {
    let world = World::new().await;
    world.table.acquire(&acquire("java", 20_000, Staleness::Never)).await.expect("granted");
    let update = world.dynamodb.update_item().table_name("locks").update_expression(
        "SET recordVersionNumber = :java REMOVE leaseIdHash, leaseVersion, leaseMs, fencingToken, staleAt",
    );
    let text = |text: &str| AttributeValue::S(text.into());
    let update = update.expression_attribute_values(":java", text("java")).key("key", text("Moe"));
    update.send().await.expect("updated");
    let function = function(&world, &Value::Null, true);
    let possession = json!({ "key": "Moe", "leaseId": "java" });
    let answer = call(&function, &role("orders-worker"), HEARTBEAT.operation(), possession).await;
    assert_eq!((kind(&answer), &answer.1["reason"]), ((409, "lost"), &json!("taken-over")));
}
