//! The function of Terraform's states: who may, over which gateways, how much, and a run that died.

use std::path::Path;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use leasehold_api::Service;
use leasehold_api::access::{Access, Bearers, Caller, Scopes, TokenEntry, token_hash};
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_lambda::{Bucket, TerraformFunction};
use leasehold_protocol::{LockTable, Policy, TableSchema, ensure_table};
use leasehold_sandbox::{Answer, InitError, S3, Sandbox};
use leasehold_terraform::Backend;
use leasehold_wire::{AcquireRequest, Secret};
use serde_json::{Value, json};

/// A function, its bucket, and the locks.
struct World {
    function: TerraformFunction,
    locks: Service,
    _s3: S3,
}

impl World {
    async fn new() -> Self {
        let s3 = S3::start().await.expect("a free port");
        let client =
            Client::from_conf(leasehold_dynamodb::configure(Engine::memory().expect("memory").sdk_config()).build());
        let schema = TableSchema::new("locks");
        ensure_table(&client, &schema).await.expect("a table");
        let policy = Policy { clock_skew_ms: 1, ..Policy::default() };
        let locks = Service::new(LockTable::new(client, schema, policy, Clock::system()));
        let credentials = Credentials::new("test", "test", None, None, "test");
        let bucket = Bucket::at(s3.url.clone(), "us-east-1".to_owned(), credentials);
        let function = TerraformFunction {
            backend: Backend::new(locks.clone(), bucket).judging_by_clock(),
            bearers: None,
            access: Access::default(),
            jwt_claim: "sub".to_owned(),
        };
        Self { function, locks, _s3: s3 }
    }

    async fn answer(&self, event: Value) -> (u64, Value) {
        let answer = self.function.answer(event).await.expect("an event of a gateway");
        let answer: Value = serde_json::from_str(answer.get()).expect("JSON");
        let body = answer["body"].as_str().unwrap_or_default();
        let body = serde_json::from_str(body).unwrap_or_else(|_| json!(body));
        (answer["statusCode"].as_u64().expect("a status"), body)
    }

    /// A request of Terraform over an HTTP API.
    async fn ask(&self, method: &str, query: &str, body: &str) -> (u64, Value) {
        self.answer(http_event(method, "/v1/terraform", query, body)).await
    }

    async fn lock(&self, id: &str) -> (u64, Value) {
        self.answer(http_event("PUT", "/v1/terraform-lock", "", &info(id))).await
    }

    async fn unlock(&self, body: &str) -> u64 {
        self.answer(http_event("DELETE", "/v1/terraform-lock", "", body)).await.0
    }

    async fn write(&self, id: &str, state: &str) -> (u64, Value) {
        self.ask("POST", &format!("&ID={id}"), state).await
    }

    /// Acquires the lock as `leasehold terraform` does.
    async fn run_acquires(&self, lease_id: &str, lease_ms: u64) {
        let request = AcquireRequest {
            key: "terraform/network".to_owned(),
            owner_name: "run".to_owned(),
            lease_id: Some(Secret(lease_id.to_owned())),
            lease_duration_ms: Some(lease_ms),
            ..AcquireRequest::default()
        };
        self.locks.acquire(&Caller::unrestricted(), request).await.expect("free");
    }
}

fn http_event(method: &str, path: &str, query: &str, body: &str) -> Value {
    json!({
        "version": "2.0", "routeKey": format!("ANY {path}"), "rawPath": path,
        "rawQueryString": format!("state=network{query}"), "headers": { "content-type": "application/json" },
        "requestContext": { "http": { "method": method, "path": path } }, "body": body, "isBase64Encoded": false,
    })
}

/// The event of a Function URL, or of a REST API.
fn other_event(is_rest: bool, method: &str, path: &str, body: &str) -> Value {
    if is_rest {
        return json!({
            "resource": path, "path": path, "httpMethod": method, "queryStringParameters": { "state": "network", "ID": "moe-true" },
            "headers": {}, "requestContext": { "identity": {} }, "body": body, "isBase64Encoded": false,
        });
    }
    let mut event = http_event(method, path, "&ID=moe-false", body);
    event["routeKey"] = json!("$default");
    event
}

fn info(id: &str) -> String {
    let who = format!("{id}@laptop");
    json!({ "ID": id, "Operation": "OperationTypeApply", "Who": who, "Created": "2026-03-01T10:00:00Z" }).to_string()
}

/// The same request with a user and a password.
fn by(mut event: Value, user: &str, password: &str) -> Value {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let basic = BASE64_STANDARD.encode(format!("{user}:{password}"));
    event["headers"]["authorization"] = json!(format!("Basic {basic}"));
    event
}

#[tokio::test]
async fn state_is_written_only_under_its_lock() {
    let world = World::new().await;
    assert_eq!(world.ask("GET", "", "").await.0, 404);
    assert_eq!(world.ask("POST", "", "0").await.0, 409, "with -lock=false");
    assert_eq!(world.write("moe", "0").await.0, 409);
    for _ in 0..2 {
        assert_eq!(world.lock("moe").await.0, 200);
    }
    assert_eq!(world.write("moe", "1").await.0, 200);
    let (status, refusal) = world.lock("larry").await;
    assert_eq!((status, &refusal["type"]), (423, &json!("held")));
    assert_eq!(refusal["ID"], "moe@laptop (OperationTypeApply, 2026-03-01T10:00:00Z)");
    assert_eq!(world.write("larry", "2").await.0, 409);
    assert_eq!(world.unlock(&info("larry")).await, 409);
    assert_eq!(world.ask("DELETE", "", "").await.0, 423);
    assert_eq!(world.unlock(&info("moe")).await, 200);
    assert_eq!(world.write("moe", "3").await.0, 409);
    assert_eq!(world.ask("GET", "", "").await, (200, json!(1)));
    assert_eq!(world.ask("DELETE", "", "").await.0, 200);
    assert_eq!(world.ask("GET", "", "").await.0, 404);
}

#[tokio::test]
async fn late_write_is_refused_after_force_unlock() {
    let world = World::new().await;
    assert_eq!(world.lock("moe").await.0, 200);
    assert_eq!(world.write("moe", "1").await.0, 200);
    assert_eq!(world.unlock("").await, 200, "force-unlock");
    assert_eq!(world.write("moe", "2").await.0, 409);
    assert_eq!(world.lock("moe").await.0, 409, "a late repeat of its LOCK");
    assert_eq!(world.lock("larry").await.0, 200);
    assert_eq!(world.write("larry", "3").await.0, 200);
    assert_eq!(world.write("moe", "4").await.0, 409);
    assert_eq!(world.ask("GET", "", "").await, (200, json!(3)));
}

#[tokio::test]
async fn each_gateway_reaches_the_states() {
    let world = World::new().await;
    for is_rest in [false, true] {
        let ask =
            async |method: &str, path: &str, body: &str| world.answer(other_event(is_rest, method, path, body)).await;
        // An ID that has given its lock back gets none again.
        let (moe, larry) = (info(&format!("moe-{is_rest}")), info(&format!("larry-{is_rest}")));
        assert_eq!(ask("PUT", "/v1/terraform-lock", &moe).await.0, 200);
        assert_eq!(ask("POST", "/v1/terraform", "1").await.0, 200);
        assert_eq!(ask("GET", "/v1/terraform", "").await, (200, json!(1)));
        assert_eq!(ask("DELETE", "/v1/terraform-lock", &moe).await.0, 200);
        // Where a front passes these on.
        assert_eq!(ask("LOCK", "/v1/terraform", &larry).await.0, 200);
        assert_eq!(ask("UNLOCK", "/v1/terraform", &larry).await.0, 200);
        assert_eq!(ask("PATCH", "/v1/terraform", "").await.0, 405);
        assert_eq!(ask("GET", "/v1/terraform-lock", "").await.0, 405, "how `leasehold terraform` looks for states");
        let (status, problem) = ask("GET", "/v1/terraforms", "").await;
        assert_eq!((status, &problem["type"]), (404, &json!("unknown-route")));
    }
    assert!(world.function.answer(json!({ "action": "get" })).await.is_err(), "no gateway");
}

#[tokio::test]
async fn states_ask_for_a_token_and_its_scope() {
    let mut world = World::new().await;
    let entry = |name: &str, prefix: &str| TokenEntry {
        name: name.to_owned(),
        sha256: token_hash(name),
        prefixes: Some(vec![prefix.to_owned()]),
        transactions: None,
    };
    let entries = [entry("own", "terraform/net"), entry("other", "orders/")];
    world.function.bearers = Some(Bearers::new(&entries, false).expect("valid"));
    let all = || {
        ["GET", "POST", "DELETE", "LOCK", "UNLOCK"]
            .map(|method| http_event(method, "/v1/terraform", "&ID=moe", &info("moe")))
            .into_iter()
            .chain(["PUT", "DELETE"].map(|method| http_event(method, "/v1/terraform-lock", "", &info("moe"))))
    };
    for event in all() {
        for password in [None, Some(""), Some("a guess")] {
            let event = password.map_or(event.clone(), |password| by(event.clone(), "moe", password));
            assert_eq!(world.answer(event).await.0, 401);
        }
        assert_eq!(world.answer(by(event, "moe", "other")).await.0, 403);
    }
    let forced = http_event("DELETE", "/v1/terraform-lock", "", "");
    assert_eq!(world.answer(by(forced, "moe", "other")).await.0, 403);
    let lock = http_event("PUT", "/v1/terraform-lock", "", &info("moe"));
    assert_eq!(world.answer(by(lock, "moe", "own")).await.0, 200);
    let write = http_event("POST", "/v1/terraform", "&ID=moe", "1");
    assert_eq!(world.answer(by(write.clone(), "moe", "own")).await.0, 200);
    // As `leasehold terraform` sends it.
    let as_bearer = |token: &str| {
        let mut event = write.clone();
        event["headers"]["authorization"] = json!(format!("Bearer {token}"));
        event
    };
    assert_eq!(world.answer(as_bearer("own")).await.0, 200);
    assert_eq!(world.answer(as_bearer("a guess")).await.0, 401);
    // What a gateway says of its caller counts for nothing here.
    let mut signed = http_event("GET", "/v1/terraform", "", "");
    signed["requestContext"]["authorizer"]["iam"]["userArn"] = json!("arn:aws:iam::123456789012:user/root");
    assert_eq!(world.answer(signed).await.0, 401);
}

#[tokio::test]
async fn callers_of_a_gateway_have_the_scopes_of_the_stack() {
    let mut world = World::new().await;
    let scopes = r#"[{"principal":"arn:aws:iam::123456789012:user/moe","prefixes":["terraform/net"]}]"#;
    world.function.access.scopes = Some(Scopes::parse(scopes).expect("valid"));
    let as_user = |user: &str| {
        let mut event = http_event("PUT", "/v1/terraform-lock", "", &info("moe"));
        event["requestContext"]["authorizer"]["iam"]["userArn"] =
            json!(format!("arn:aws:iam::123456789012:user/{user}"));
        event
    };
    assert_eq!(world.answer(as_user("larry")).await.0, 403);
    assert_eq!(world.lock("moe").await.0, 403, "nobody");
    assert_eq!(world.answer(as_user("moe")).await.0, 200);
}

#[tokio::test]
async fn state_is_refused_when_no_function_could_answer_with_it() {
    let world = World::new().await;
    assert_eq!(world.lock("moe").await.0, 200);
    assert_eq!(world.write("moe", "1").await.0, 200);
    let limit = (6 * 1024 - 64) * 1024;
    // Each quote takes two bytes in the answer.
    for state in [" ".repeat(limit - 1), "\"".repeat(limit / 2)] {
        let (status, problem) = world.write("moe", &state).await;
        assert_eq!((status, &problem["type"]), (413, &json!("too-large")));
        let detail = problem["detail"].as_str().expect("a text");
        assert!(detail.contains(&limit.to_string()) && detail.contains("nothing was written"), "{detail}");
    }
    assert_eq!(world.lock(&"a".repeat(17 * 1024)).await.0, 413);
    assert_eq!(world.ask("GET", "", "").await, (200, json!(1)));
    for state in [" ".repeat(limit - 2), "\"".repeat(limit / 2 - 1)] {
        assert_eq!(world.write("moe", &state).await.0, 200);
        let answer = world.function.answer(http_event("GET", "/v1/terraform", "", "")).await.expect("an event");
        assert!(answer.get().len() < 6 * 1024 * 1024, "{}", answer.get().len());
    }
    let mut binary = http_event("POST", "/v1/terraform", "&ID=moe", "/w==");
    binary["isBase64Encoded"] = json!(true);
    assert_eq!(world.answer(binary).await.0, 400);
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "nothing but time makes a lease end")]
async fn lock_of_a_dead_run_comes_free_by_the_clock() {
    let world = World::new().await;
    world.run_acquires("dead", 20_000).await;
    assert_eq!(world.lock("moe").await.0, 423, "its lease is not over");
    assert_eq!(world.unlock("").await, 200);
    world.run_acquires("dying", 100).await;
    let write = || by(http_event("POST", "/v1/terraform", "", "1"), "lease-dying", "");
    assert_eq!(world.answer(write()).await.0, 200);
    let mut tries = 0;
    while world.lock("moe").await.0 != 200 {
        tries += 1;
        assert!(tries < 1000, "the lease of 100 ms does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.answer(write()).await.0, 409, "it lives on");
    let mut signed = http_event("POST", "/v1/terraform", "", "1");
    signed["headers"]["leasehold-lease-id"] = json!("dying");
    assert_eq!(world.answer(signed).await.0, 409, "whose lease id is in the header");
    assert_eq!(world.lock("larry").await.0, 423, "nobody judges a holder that sends no heartbeats");
    assert_eq!(world.write("moe", "2").await.0, 200);
}

#[tokio::test]
async fn function_starts_only_with_a_bucket() {
    let binary = Path::new(env!("CARGO_BIN_EXE_leasehold-locks"));
    let variables = [
        ("LEASEHOLD_TABLE_NAME", "locks"),
        ("_HANDLER", "terraform"),
        ("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:1"),
        ("LEASEHOLD_TERRAFORM_BUCKET", "states"),
        ("LEASEHOLD_TERRAFORM_TOKENS", "[]"),
    ];
    for (number, mistake) in [(3, "LEASEHOLD_TERRAFORM_BUCKET is not set"), (5, "It has no token")] {
        let mut sandbox = Sandbox::start(binary, &variables[..number]).await.expect("it is built");
        let Err(InitError::Reported(error)) = sandbox.ready().await else { panic!("{mistake}") };
        assert!(error["errorMessage"].as_str().is_some_and(|message| message.contains(mistake)), "{error}");
    }
    let mut sandbox = Sandbox::start(binary, &variables[..4]).await.expect("it is built");
    sandbox.ready().await.expect("it starts");
    let event = http_event("GET", "/v1/acquire", "", "");
    let Answer::Response(answer) = sandbox.invoke(event).await.0 else { panic!("no answer") };
    assert_eq!(answer["statusCode"], 404, "it serves no operation of the table");
}
