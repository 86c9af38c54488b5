//! The Lambda adapters, with valid and invalid events of API Gateway and Step Functions.

use leasehold_api::Service;
use leasehold_lambda::{Function, Serves, routes};
use leasehold_tests::{World, json_of};
use leasehold_wire::operation::{ACQUIRE, BREAK, GET, HEALTH, HEARTBEAT, LIST, Operation, RELEASE};
use serde_json::{Value, json};

pub(crate) fn event(name: &str) -> Value {
    let file = format!("{}/../../events/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

async fn function() -> Function {
    Function::unrestricted(Service::new(World::new().await.table))
}

/// The answer to a gateway: its status, its headers and the JSON document in it.
pub(crate) struct Answer {
    pub(crate) status: u64,
    pub(crate) headers: Value,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn read(answer: &Value) -> Self {
        assert_eq!(answer["isBase64Encoded"], false);
        let body = answer["body"].as_str().expect("text");
        Self {
            status: answer["statusCode"].as_u64().expect("a status"),
            headers: answer["headers"].clone(),
            body: serde_json::from_str(body).expect("a JSON document"),
        }
    }
}

async fn http(function: &Function, operation: &Operation, event: Value) -> Answer {
    let routes = routes(|served| served.name == operation.name);
    Answer::read(&function.answer_http(&routes, event).await.map(json_of).expect("an event of a gateway"))
}

#[tokio::test(start_paused = true)]
async fn http_api_serves_the_life_of_a_lock() {
    let function = function().await;
    let granted = http(&function, ACQUIRE.operation(), event("http-acquire")).await;
    assert_eq!((granted.status, &granted.headers["content-type"]), (200, &json!("application/json")));
    assert_eq!((&granted.body["outcome"], &granted.body["data"]), (&json!("created"), &json!("hello")));

    let refused = http(&function, ACQUIRE.operation(), event("http-acquire-base64")).await;
    assert_eq!((refused.status, &refused.headers["content-type"]), (423, &json!("application/problem+json")));
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.body["lock"]["ownerName"], "host-1");

    let renewed = http(&function, HEARTBEAT.operation(), event("http-heartbeat")).await;
    assert_eq!((renewed.status, &renewed.body["leaseDurationMs"]), (200, &json!(20_000)));
    let lock = http(&function, GET.operation(), event("http-get")).await;
    assert_eq!((lock.status, &lock.body["recordVersionNumber"]), (200, &renewed.body["recordVersionNumber"]));
    let page = http(&function, LIST.operation(), event("http-list")).await;
    assert_eq!((page.status, &page.body["locks"][0]), (200, &lock.body));
    let released = http(&function, RELEASE.operation(), event("http-release")).await;
    assert_eq!((released.status, &released.body["outcome"]), (200, &json!("released")));
    let problem = http(&function, BREAK.operation(), event("http-break")).await;
    assert_eq!((problem.status, &problem.body["type"]), (409, &json!("version-mismatch")));
    let health = http(&function, HEALTH.operation(), event("http-health")).await;
    assert_eq!((health.status, health.body), (200, json!({ "status": "ok" })));
}

/// Answers an event of a load balancer or of VPC Lattice, which have no routes: the path names the operation.
async fn by_path(function: &Function, event: Value) -> Answer {
    let answer = function.answer(&Serves::Everything, event).await.map(json_of).expect("an event of a gateway");
    Answer::read(&answer)
}

#[tokio::test(start_paused = true)]
async fn load_balancer_serves_a_lock() {
    let function = function().await;
    let granted = by_path(&function, event("alb-acquire")).await;
    assert_eq!((granted.status, &granted.body["outcome"]), (200, &json!("created")));
    assert_eq!(granted.headers["content-type"], "application/json");
    let held = by_path(&function, event("alb-acquire")).await;
    assert_eq!((held.status, &held.body["outcome"]), (200, &json!("renewed")), "the same lease id");
    // With the attribute multi_value_headers.enabled of the target group.
    let mut multiple = event("alb-get");
    let answer = function.answer(&Serves::Everything, multiple.clone()).await.map(json_of).expect("an answer");
    assert_eq!((&answer["statusCode"], &answer["statusDescription"]), (&json!(200), &json!("200 OK")));
    assert_eq!(answer["multiValueHeaders"]["content-type"], json!(["application/json"]));
    assert_eq!(by_path(&function, multiple.clone()).await.body["state"], "held");
    // A load balancer leaves the query as the caller encoded it.
    multiple["multiValueQueryStringParameters"] = json!({ "key": ["M%6Fe"] });
    assert_eq!(by_path(&function, multiple.clone()).await.body["key"], "Moe");
    multiple["path"] = json!("/v1/nothing");
    assert_eq!(by_path(&function, multiple).await.body["type"], "unknown-route");
}

#[tokio::test(start_paused = true)]
async fn lattice_serves_a_lock() {
    let function = function().await;
    let granted = by_path(&function, event("lattice-acquire-iam")).await;
    assert_eq!((granted.status, &granted.body["outcome"]), (200, &json!("created")));
    assert_eq!(granted.headers["content-type"], "application/json");
    let mut look = event("lattice-get-iam");
    assert_eq!(by_path(&function, look.clone()).await.body["key"], "orders/42");
    look["queryStringParameters"]["key"] = json!(["orders%2F42"]);
    assert_eq!(by_path(&function, look.clone()).await.body["state"], "held");
    look["method"] = json!("POST");
    assert_eq!(by_path(&function, look).await.status, 405);
}

#[tokio::test(start_paused = true)]
async fn hostile_events_of_balancers_and_lattice_are_answered() {
    let function = function().await;
    for name in ["alb-acquire", "alb-get", "lattice-acquire-iam", "lattice-get-iam"] {
        for text in HOSTILE {
            for place in ["path", "method", "httpMethod", "body"] {
                let mut hostile = event(name);
                hostile[place] = json!(text);
                by_path(&function, hostile).await;
            }
            for place in ["headers", "multiValueHeaders", "queryStringParameters", "multiValueQueryStringParameters"] {
                for value in [json!(text), json!([text]), json!([]), json!(null), json!({ "x": 1 })] {
                    let mut hostile = event(name);
                    hostile[place] = json!({ "host": value, "key": value, "x-forwarded-proto": value, text: value });
                    by_path(&function, hostile).await;
                }
            }
        }
    }
}

/// The route names the operation, or behind a Function URL the path.
#[tokio::test(start_paused = true)]
async fn one_function_serves_the_operation_of_route_or_path() {
    let function = function().await;
    let Some(Serves::Http(holders)) = Serves::by_handler("acquire") else { panic!("it serves HTTP") };
    let ask = async |name: &str, route: &str, path: &str| {
        let mut event = event(name);
        event["rawPath"] = json!(path);
        event["routeKey"] = json!(route);
        Answer::read(&function.answer_http(&holders, event).await.map(json_of).expect("an event of a gateway"))
    };
    let granted = ask("http-acquire", "ANY /v1/acquire", "/locks/v1/acquire").await;
    assert_eq!(granted.body["outcome"], "created");
    assert_eq!(ask("http-heartbeat", "$default", "/v1/heartbeat").await.body["leaseDurationMs"], 20_000);
    assert_eq!(ask("http-release", "ANY /v1/release", "/v1/release").await.body["outcome"], "released");
    for path in ["/v1/break", "/v1/acquire/", "/", "/locks/v1/acquire"] {
        let refused = ask("http-acquire", "$default", path).await;
        assert_eq!((refused.status, &refused.body["type"]), (404, &json!("unknown-route")), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn direct_invocations_serve_the_life_of_a_lock() {
    let function = function().await;
    let granted = function.answer_direct(event("direct-acquire")).await.map(json_of).expect("granted");
    assert_eq!(granted["outcome"], "created");
    assert!(function.answer_direct(event("direct-heartbeat")).await.is_ok());
    assert_eq!(function.answer_direct(event("direct-get")).await.map(json_of).expect("a lock")["state"], "held");

    let mut other = event("direct-acquire");
    other["leaseId"] = json!("another execution");
    let held = function.answer_direct(other).await.expect_err("held");
    let problem: Value = serde_json::from_str(&held.error_message).expect("a problem document");
    assert_eq!((held.error_type.as_str(), &problem["lock"]["leaseDurationMs"]), ("LockHeld", &json!(60_000)));

    let mismatch = function.answer_direct(event("direct-break")).await.expect_err("not that version");
    assert_eq!(mismatch.error_type, "LockLost");
    assert_eq!(
        function.answer_direct(event("direct-release")).await.map(json_of).expect("done")["outcome"],
        "released"
    );
    assert_eq!(
        function.answer_direct(event("direct-release")).await.map(json_of).expect("done")["outcome"],
        "replayed"
    );
    assert_eq!(function.answer_direct(event("direct-heartbeat")).await.expect_err("lost").error_type, "LockLost");
    assert_eq!(function.answer_direct(event("direct-acquire")).await.expect_err("ended").error_type, "LockLost");
}

/// Step Functions truncates long causes, and would truncate this problem.
#[tokio::test(start_paused = true)]
async fn direct_refusal_leaves_out_the_payload() {
    let function = function().await;
    let mut acquire = event("direct-acquire");
    acquire["data"] = json!("x".repeat(100_000));
    acquire["attributes"] = json!({ "note": "y".repeat(60_000) });
    function.answer_direct(acquire.clone()).await.expect("granted");
    acquire["leaseId"] = json!("another execution");
    let held = function.answer_direct(acquire).await.expect_err("held");
    assert!(held.error_message.len() < 1_000, "{}", held.error_message);
    let lock = function.answer_direct(event("direct-get")).await.map(json_of).expect("a lock");
    assert_eq!(lock["data"].as_str().map(str::len), Some(100_000));
}

#[tokio::test(start_paused = true)]
async fn direct_refusal_names_the_field_at_fault() {
    let function = function().await;
    for (input, field) in [
        (json!("acquire"), Value::Null),
        (json!([]), Value::Null),
        (json!({ "key": "k" }), json!("action")),
        (json!({ "action": 1 }), json!("action")),
        (json!({ "action": "steal", "key": "k" }), json!("action")),
        (json!({ "action": "acquire", "key": "k" }), json!("ownerName")),
        (json!({ "action": "acquire", "key": "", "ownerName": "o" }), json!("key")),
        (json!({ "action": "get", "key": "k", "lease": 1 }), json!("lease")),
        (json!({ "action": "release", "key": "k", "leaseId": 7 }), json!("leaseId")),
    ] {
        let error = function.answer_direct(input.clone()).await.expect_err("invalid");
        let problem: Value = serde_json::from_str(&error.error_message).expect("a problem document");
        assert_eq!((error.error_type.as_str(), &problem["field"]), ("InvalidRequest", &field), "{input}");
    }
    let absent = function.answer_direct(json!({ "action": "get", "key": "nobody" })).await.expect_err("absent");
    assert_eq!(absent.error_type, "LockNotFound");
}

/// Gateways decode paths and forward the input of callers. No input may make the function panic or fail.
#[tokio::test(start_paused = true)]
async fn hostile_events_are_answered() {
    let function = function().await;
    let with = |change: fn(&mut Value)| {
        let mut event = event("http-get");
        change(&mut event);
        event
    };
    for (event, status) in [
        (with(|event| event["rawPath"] = json!("/v1/lock with spaces\u{0}?#")), 404),
        (with(|event| event["rawPath"] = json!("")), 404),
        (with(|event| event["rawQueryString"] = json!("key=a b\u{0}é{}|\"<>")), 404),
        (with(|event| event["rawQueryString"] = json!("key=%ff%fe")), 400),
        (with(|event| event["rawQueryString"] = json!("key=%")), 404),
        (with(|event| event["rawQueryString"] = json!("&&&==&")), 400),
        (with(|event| event["rawQueryString"] = Value::Null), 400),
        (with(|event| event["headers"]["x-name"] = json!("žluťoučký\r\nkůň")), 404),
        (with(|event| event["headers"]["bad header name"] = json!("x")), 404),
        (with(|event| event["headers"]["host"] = json!("not a host")), 404),
        (with(|event| event["requestContext"]["http"]["method"] = json!("DELETE")), 405),
        (with(|event| event["requestContext"]["http"]["method"] = json!("no method")), 405),
        (with(|event| event["requestContext"]["stage"] = json!("a stage")), 404),
    ] {
        let problem = http(&function, GET.operation(), event.clone()).await;
        assert_eq!((problem.status, &problem.body["status"]), (status, &json!(status)), "{event}");
    }
    for (body, base64, status) in [
        (json!("not base64!"), true, 400),
        (json!("////"), true, 400),
        (Value::Null, false, 400),
        (json!(""), false, 400),
        (json!("{\"key\":\"a\\u0000b\",\"ownerName\":\"\\u0000\"}"), false, 200),
    ] {
        let mut event = event("http-acquire");
        event["body"] = body;
        event["isBase64Encoded"] = json!(base64);
        let answer = http(&function, ACQUIRE.operation(), event.clone()).await;
        assert_eq!(answer.status, status, "{event}");
    }
}

/// The event of a REST API that is equivalent to an event of an HTTP API.
pub(crate) fn rest(event: &Value) -> Value {
    let query = event["rawQueryString"].as_str().unwrap_or_default();
    let parameters: serde_json::Map<_, _> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.into(), json!(value)))
        .collect();
    let multiple: serde_json::Map<_, _> =
        parameters.iter().map(|(name, value)| (name.clone(), json!([value]))).collect();
    let path = &event["rawPath"];
    json!({
        "resource": path, "path": path, "httpMethod": event["requestContext"]["http"]["method"],
        "headers": event["headers"], "multiValueHeaders": {},
        "queryStringParameters": parameters, "multiValueQueryStringParameters": multiple,
        "pathParameters": null, "stageVariables": null,
        "requestContext": {
            "resourcePath": path, "httpMethod": event["requestContext"]["http"]["method"], "path": path, "stage": "prod",
            "accountId": "123456789012", "apiId": "abcdefghij", "requestTimeEpoch": 1_795_252_140_000_u64,
            "identity": { "userArn": null, "sourceIp": "203.0.113.7" }, "authorizer": null,
        },
        "body": event["body"], "isBase64Encoded": event["isBase64Encoded"],
    })
}

#[tokio::test(start_paused = true)]
async fn rest_api_serves_the_life_of_a_lock() {
    let function = function().await;
    for (operation, name, outcome) in [
        (ACQUIRE.operation(), "http-acquire", "created"),
        (GET.operation(), "http-get", ""),
        (LIST.operation(), "http-list", ""),
        (RELEASE.operation(), "http-release", "released"),
    ] {
        let answer = function
            .answer_http(&routes(|served| served.name == operation.name), rest(&event(name)))
            .await
            .map(json_of)
            .expect("an answer");
        assert_eq!(answer["multiValueHeaders"]["cache-control"], json!(["no-store"]));
        let answer = Answer::read(&answer);
        assert_eq!((answer.status, answer.body["outcome"].as_str().unwrap_or_default()), (200, outcome), "{name}");
    }
}

/// A REST API decodes the query, an HTTP API does not.
#[tokio::test(start_paused = true)]
async fn key_of_any_text_is_read_from_both_formats() {
    let function = function().await;
    let key = "a/b?c=d&e f+g%20h#é\u{1}\"<>";
    let acquire = json!({ "action": "acquire", "key": key, "ownerName": "o" });
    function.answer_direct(acquire).await.expect("granted");
    let encoded = "key=a%2Fb%3Fc%3Dd%26e%20f%2Bg%2520h%23%C3%A9%01%22%3C%3E";
    let mut http_event = event("http-get");
    http_event["rawQueryString"] = json!(encoded);
    let mut rest_event = rest(&event("http-get"));
    rest_event["queryStringParameters"] = json!({ "key": key });
    rest_event["multiValueQueryStringParameters"] = json!({ "key": [key] });
    let mut single = rest_event.clone();
    single["multiValueQueryStringParameters"] = Value::Null;
    let mut twice = rest_event.clone();
    twice["multiValueQueryStringParameters"] = json!({ "key": [key, key] });
    for (event, status) in [(http_event, 200), (rest_event, 200), (single, 200), (twice, 400)] {
        let answer = http(&function, GET.operation(), event.clone()).await;
        assert_eq!(answer.status, status, "{event}");
        assert!(status == 400 || answer.body["key"] == key, "{}", answer.body);
    }
}

#[tokio::test(start_paused = true)]
async fn overlong_query_is_refused_in_both_formats() {
    let function = function().await;
    let long = "x".repeat(100_000);
    let mut http_event = event("http-list");
    http_event["rawQueryString"] = json!(format!("limit=1&cursor={long}"));
    let mut rest_event = rest(&event("http-list"));
    rest_event["multiValueQueryStringParameters"] = json!({ "limit": ["1"], "cursor": [long] });
    for event in [http_event, rest_event] {
        let answer = http(&function, LIST.operation(), event).await;
        assert_eq!((answer.status, &answer.body["field"]), (400, &json!("query-too-long")));
    }
}

#[tokio::test(start_paused = true)]
async fn events_of_no_gateway_are_refused_by_name() {
    let function = function().await;
    // The event structure version V1 of VPC Lattice tells no caller.
    let lattice_v1 = json!({
        "raw_path": "/v1/health", "method": "GET", "headers": {}, "query_string_parameters": {}, "body": "", "is_base64_encoded": false,
    });
    for event in [lattice_v1, json!({}), json!([]), json!(null), json!("health"), json!({ "requestContext": null })] {
        let refused = function
            .answer_http(&routes(|served| served.name == HEALTH.name), event.clone())
            .await
            .expect_err("no gateway");
        assert_eq!(refused.error_type, "InvalidRequest", "{event}");
    }
}

/// Texts that a caller, or a gateway that decodes too much, puts into the source of a URI or a header.
const HOSTILE: [&str; 18] = [
    "",
    " ",
    "\"",
    "<>",
    "\u{0}",
    "\u{7f}",
    "\r\nx: y",
    "%",
    "%zz",
    "%ff%fe",
    "é",
    "žluť",
    "{}|\\^`[]",
    "#?&==&",
    "//evil:99999",
    "a b",
    ":",
    "\u{202e}",
];

fn hostile_text(rng: &mut fastrand::Rng) -> String {
    let parts = rng.usize(0..6);
    let text: String = (0..parts).map(|_| HOSTILE[rng.usize(..HOSTILE.len())]).collect();
    if rng.u8(..20) == 0 { text.repeat(20_000) } else { text }
}

/// Puts hostile text, or a value of another type, into one place of the event.
fn spoil(event: &mut Value, rng: &mut fastrand::Rng) {
    let text = hostile_text(rng);
    let other = [Value::Null, json!(7), json!([]), json!({}), json!(true)];
    let value = if rng.u8(..4) == 0 { other[rng.usize(..other.len())].clone() } else { json!(text) };
    let is_rest = event.get("httpMethod").is_some();
    match rng.u8(..9) {
        0 => event[if is_rest { "path" } else { "rawPath" }] = value,
        1 if is_rest => event["queryStringParameters"][text.as_str()] = value,
        1 => event["rawQueryString"] = value,
        2 if is_rest => event["multiValueQueryStringParameters"][text.as_str()] = json!([value]),
        2 => event["cookies"] = json!([value]),
        3 => event["headers"][["host", "x-forwarded-proto", "x-forwarded-port", "cookie"][rng.usize(..4)]] = value,
        4 => event["headers"][text.as_str()] = value,
        5 if is_rest => event["httpMethod"] = value,
        5 => event["requestContext"]["http"]["method"] = value,
        6 => event["requestContext"][["stage", "domainName", "requestId", "routeKey"][rng.usize(..4)]] = value,
        7 => event["body"] = value,
        _ => event["isBase64Encoded"] = json!(rng.bool()),
    }
}

/// The function does not panic, and answers with no error that is the service's fault.
#[tokio::test(start_paused = true)]
async fn hostile_events_of_any_seed_are_answered() {
    let function = function().await;
    let names = [
        (ACQUIRE.operation(), "http-acquire"),
        (GET.operation(), "http-get"),
        (LIST.operation(), "http-list"),
        (HEALTH.operation(), "http-health"),
    ];
    let mut refused = 0;
    for seed in 0..3_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (operation, name) = names[rng.usize(..names.len())];
        let mut event = if rng.bool() { event(name) } else { rest(&event(name)) };
        for _ in 0..rng.u8(1..5) {
            spoil(&mut event, &mut rng);
        }
        println!("seed {seed}");
        let answer = http(&function, operation, event.clone()).await;
        assert!((200..500).contains(&answer.status), "{}: {event}", answer.status);
        refused += u32::from(answer.status != 200);
    }
    assert!((300..2_700).contains(&refused), "events of both kinds: {refused} of 3000 were refused");
}

/// The gateway sends the paths that have no route of their own to one function; a Function URL has no other route.
#[tokio::test(start_paused = true)]
async fn default_route_knows_its_own_path_only() {
    let function = function().await;
    for (path, status) in [("/v1/health", 200), ("/v1/health/", 404), ("/favicon.ico", 404), ("/", 404), ("", 404)] {
        let mut event = event("http-health");
        event["routeKey"] = json!("$default");
        event["rawPath"] = json!(path);
        let answer = http(&function, HEALTH.operation(), event).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.body["type"] == "unknown-route", status == 404, "{path}: {}", answer.body);
    }
}
