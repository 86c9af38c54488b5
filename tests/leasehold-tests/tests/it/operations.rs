//! The table of operations, beside everything that has a list of its own.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use leasehold_api::access::{Access, Caller, Scopes};
use leasehold_api::{Route, Routed, Service, TransactionService, direct, document};
use leasehold_client::{HttpTransport, Transport};
use leasehold_lambda::{Function, Serves, routes};
use leasehold_protocol::{Policy, TableSchema};
use leasehold_server::{Front, Guard, Server, Settings, Store, TokenEntry, Tokens, new_token};
use leasehold_tests::{World, json_of};
use leasehold_transactions as transactions;
use leasehold_wire::openapi::Api;
use leasehold_wire::operation::{Family, GET, INVOKE, Method, OPERATIONS, Operation, Scope, Subject, UNROUTED};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use utoipa::OpenApi;

use crate::events::{Answer, event};

/// The text of a file of the repository.
fn text(file: &str) -> String {
    read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).expect("it is there")
}

fn paths(chosen: impl Fn(&Operation) -> bool) -> BTreeSet<String> {
    OPERATIONS.iter().filter(|operation| chosen(operation)).map(|operation| operation.path.to_owned()).collect()
}

/// The words after each occurrence of `before`: up to a character that no path and no name has.
fn words_after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    let is_end = |letter: char| !(letter.is_ascii_alphanumeric() || "/-".contains(letter));
    text.split(before).skip(1).map(move |rest| rest.split(is_end).next().unwrap_or_default())
}

#[test]
fn every_operation_has_a_handler_a_name_and_a_path_of_its_own() {
    let locks = Service::ROUTES.iter().map(|route| route.operation);
    let bound: Vec<_> = locks.chain(TransactionService::ROUTES.iter().map(|route| route.operation)).collect();
    let names = |operations: &[&Operation]| operations.iter().map(|operation| operation.name).collect::<Vec<_>>();
    assert_eq!(names(&bound), names(OPERATIONS));
    let of_one: [fn(&Operation) -> &'static str; 3] = [|one| one.name, |one| one.path, |one| one.id];
    for of in of_one {
        let distinct: BTreeSet<_> = OPERATIONS.iter().map(|operation| of(operation)).collect();
        assert_eq!(distinct.len(), OPERATIONS.len());
    }
    // An operation without a scope refuses everybody, so that it would be of no use.
    assert!(OPERATIONS.iter().all(|operation| operation.scope.is_some()));
}

/// The CDK construct and the Terraform module are made of the template. `scripts/check_template.py` compares the REST
/// API.
#[test]
fn template_has_the_routes_of_the_table() {
    let template = text("template.yaml");
    let routes: BTreeSet<_> = words_after(&template, "RouteKey: ANY ").map(str::to_owned).collect();
    let others = [leasehold_terraform::PATH, leasehold_terraform::LOCK_PATH].map(str::to_owned);
    assert_eq!(routes, &paths(|_| true) | &others.into());
    // Operators need a scope of their own, where a deployment names one.
    let of_operators =
        [("[BreakNeedsScope", "*operate-route", Family::Operate), ("[SweepNeedsScope", "*sweep-route", Family::Sweep)];
    for (condition, alias, family) in of_operators {
        // Each resource begins with two spaces and a capital.
        let begins = |line: &&str| line.starts_with("  ") && line.as_bytes().get(2).is_some_and(u8::is_ascii_uppercase);
        let mut resources = vec![String::new()];
        for line in template.lines() {
            if begins(&line) {
                resources.push(String::new());
            }
            if let Some(resource) = resources.last_mut() {
                *resource += line;
            }
        }
        let resources = resources.iter().filter(|resource| [condition, alias].iter().any(|by| resource.contains(by)));
        let scoped: BTreeSet<_> =
            resources.flat_map(|resource| words_after(resource, "RouteKey: ANY ")).map(str::to_owned).collect();
        assert_eq!(scoped, paths(|operation| operation.family == family), "{condition}");
    }
}

#[test]
fn template_has_the_functions_of_the_table() {
    let routed = OPERATIONS.iter().map(|operation| operation.function());
    let functions = routed.chain(UNROUTED.iter().map(|unrouted| unrouted.function));
    // One function may stand in place of those that ask and hold.
    let functions: BTreeSet<_> = functions.chain(["acquire"]).collect();
    assert_eq!(words_after(&text("template.yaml"), "Handler: ").collect::<BTreeSet<_>>(), functions);
    for unrouted in UNROUTED {
        assert!(OPERATIONS.iter().all(|operation| operation.function() != unrouted.function));
        assert!(Serves::by_handler(unrouted.function).is_some(), "{}", unrouted.function);
    }
    // A direct invocation has each operation on locks and semaphores that has an action.
    let direct = |operation: &&&Operation| operation.subject != Subject::Transaction && operation.is_direct;
    let names = |operations: Vec<&Operation>| operations.iter().map(|operation| operation.name).collect::<Vec<_>>();
    assert_eq!(names(INVOKE.operations.to_vec()), names(OPERATIONS.iter().filter(direct).copied().collect()));
}

#[test]
fn clients_have_the_calls_of_the_table() {
    let typescript = text("clients/typescript/src/http.ts");
    let python = text("clients/python/src/leasehold/aws.py");
    // Operators use the command. A client is no monitor of the service.
    let of_clients =
        |operation: &&&Operation| operation.family != Family::Sweep && operation.scope != Some(Scope::Anyone);
    for operation in OPERATIONS.iter().filter(of_clients) {
        let Operation { name, path, .. } = operation;
        let name = if name.contains('-') { format!("\"{name}\"") } else { (*name).to_owned() };
        let route = format!("{name}: [\"{}\", \"{path}\"],", operation.method.as_str());
        assert!(typescript.contains(&route), "http.ts has no {route}");
        if let Some(action) = operation.action() {
            let entry = format!("\"{path}\": \"{action}\",");
            assert!(python.contains(&entry), "aws.py has no {entry}");
        }
    }
    for client in [typescript, python] {
        let used = words_after(&client, "\"/v1/").map(|path| format!("/v1/{path}")).collect::<BTreeSet<_>>();
        assert!(used.is_subset(&paths(|_| true)), "{used:?}");
    }
}

/// A request with the required members only, whose key is this one.
fn smallest_request(operation: &Operation, key: &str) -> Map<String, Value> {
    let document = serde_json::to_value(Api::openapi()).expect("serialises");
    let described = &document["paths"][operation.path][operation.method.as_str().to_lowercase()];
    let schemas = &document["components"]["schemas"];
    let resolve = |schema: &Value| match schema["$ref"].as_str() {
        Some(reference) => schemas[reference.rsplit('/').next().expect("a name")].clone(),
        None => schema.clone(),
    };
    if operation.method == Method::Get {
        let parameters = described["parameters"].as_array().into_iter().flatten();
        let names = parameters.filter_map(|parameter| parameter["name"].as_str()).filter(|name| *name == "key");
        return names.map(|name| (name.to_owned(), json!(key))).collect();
    }
    let schema = resolve(&described["requestBody"]["content"]["application/json"]["schema"]);
    let required = schema["required"].as_array().expect("each request has a required member").iter();
    let value = |name: &str| match (name, resolve(&schema["properties"][name])["type"].as_str()) {
        ("key", _) => json!(key),
        ("holderId", _) => json!("h-x"),
        ("keys", _) => json!([{ "key": key }, { "key": format!("{key}2") }]),
        (_, Some("integer")) => json!(1),
        _ => json!("x"),
    };
    required.map(|name| name.as_str().expect("a name")).map(|name| (name.to_owned(), value(name))).collect()
}

#[tokio::test]
async fn every_operation_on_keys_refuses_a_key_out_of_scope() {
    let scopes = Scopes::parse(r#"[{"principal":"*","prefixes":["ours/"]}]"#).expect("valid");
    let access = Access { scopes: Some(scopes), owner_binding: false };
    let function = Function { access, ..Function::unrestricted(Service::new(World::new().await.table)) };
    for operation in OPERATIONS.iter().filter(|operation| operation.scope == Some(Scope::Keys)) {
        let request = smallest_request(operation, "theirs");
        let mut event = event(if operation.method == Method::Get { "http-get" } else { "http-acquire" });
        event["routeKey"] = json!(format!("ANY {}", operation.path));
        event["requestContext"]["http"]["method"] = json!(operation.method.as_str());
        event["rawQueryString"] = json!("key=theirs");
        event["body"] = json!(Value::Object(request.clone()).to_string());
        let served = routes(|served| served.name == operation.name);
        let answer = Answer::read(&function.answer_http(&served, event).await.map(json_of).expect("an event"));
        assert_eq!((answer.status, &answer.body["type"]), (403, &json!("forbidden")), "{}", operation.name);
    }
}

/// Both fronts of Lambda. A test of the server sees the same over a socket.
#[tokio::test]
async fn operation_refuses_everybody_when_it_has_no_scope() {
    let mut operation = *GET.operation();
    operation.scope = None;
    let route: &'static Route<Service> = Box::leak(Box::new(Route::new(Box::leak(Box::new(operation)), |_, _, _| {
        Box::pin(async { Ok(document(&"the operation ran")) })
    })));
    let service = Service::new(World::new().await.table);
    let answer = Function::unrestricted(service.clone()).answer_http(&[route], event("http-get")).await;
    let answer = Answer::read(&answer.map(json_of).expect("an event"));
    assert_eq!((answer.status, &answer.body["type"]), (403, &json!("forbidden")));
    let input = json!({ "action": "get", "key": "k" });
    let refused = direct::invoke(&service, [route], Caller::unrestricted(), input).await.expect_err("refused");
    assert_eq!(refused.problem_type.error_name(), "Forbidden");
}

/// The whole server, with every route, where tokens are required.
#[tokio::test(flavor = "multi_thread")]
async fn every_operation_asks_for_a_token_but_probes() {
    let settings = Settings {
        store: Store::Memory,
        schema: TableSchema::new("locks"),
        policy: Policy::default(),
        takeover_clock_check: false,
        multi_region: false,
        transaction_table: "transactions".to_owned(),
        transaction_policy: transactions::Policy::default(),
        history: None,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokens.json");
    let (token, sha256) = new_token();
    let entry = TokenEntry { name: "ci".into(), sha256, prefixes: Some(vec!["ours/".into()]), transactions: None };
    Tokens::add(&path, entry).expect("written");
    let tokens = Some(Arc::new(Tokens::open(&path, false).expect("valid")));
    let guard = Guard::new(Ipv4Addr::LOCALHOST.into(), &[]);
    let front = Front { guard, tokens, tls: None, states: None, name: "test".to_owned() };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let transport = HttpTransport::new(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a URL");
    let server = Server::open(settings).await.expect("it opens");
    let running = tokio::spawn(server.run(listener, front, std::future::pending()));
    let send = async |method: &str, path: &str, token: Option<&str>, body: String| {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = token
            .into_iter()
            .fold(request, |request, token| request.header("authorization", format!("Bearer {token}")));
        let sent = transport.send(request.body(body.into_bytes()).expect("a request"));
        let answer = tokio::time::timeout(Duration::from_secs(30), sent).await.expect("in time").expect("answered");
        answer.status().as_u16()
    };
    for operation in OPERATIONS {
        let (name, method) = (operation.name, operation.method.as_str());
        let (path, body) = (format!("{}?key=theirs", operation.path), smallest_body(operation));
        let expected = if operation.scope == Some(Scope::Anyone) { (200, 200) } else { (401, 403) };
        let path = if operation.method == Method::Get { path } else { operation.path.to_owned() };
        assert_eq!(send(method, &path, None, body.clone()).await, expected.0, "{name} without a token");
        assert_eq!(send(method, &path, Some("wrong"), body.clone()).await, expected.0, "{name} with a wrong token");
        assert_eq!(send(method, &path, Some(&token), body).await, expected.1, "{name} out of scope");
        // A path that resembles one of the table's is not open either.
        for path in [format!("{}/", operation.path), format!("/{}", operation.path), format!("{}%20", operation.path)] {
            assert_eq!(send(method, &path, None, String::new()).await, 401, "{path} without a token");
        }
    }
    assert_eq!(send("GET", "/metrics", None, String::new()).await, 401);
    running.abort();
}

fn smallest_body(operation: &Operation) -> String {
    if operation.scope != Some(Scope::Keys) || operation.method == Method::Get {
        return "{}".to_owned();
    }
    Value::Object(smallest_request(operation, "theirs")).to_string()
}
