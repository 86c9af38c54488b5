//! The protection of `leasehold serve` from web pages, slow clients, too many clients and the network.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command as Process;
use std::time::Duration;

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, WriteRequest};
use leasehold_dynamodb::fresh_uuid;
use reqwest::{Certificate, Client, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{PATIENCE, Serve, command, exposed_url, folder, pause, signed, text_of, within};

const ACQUIRE: &str = r#"{"key":"Moe","ownerName":"me"}"#;

async fn problem(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = within(request.send()).await.expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.json().await.expect("a problem document"))
}

#[tokio::test]
async fn body_without_a_json_type_is_refused() {
    let serve = Serve::start(&["--memory"]).await;
    let url = format!("{}/v1/acquire", serve.base_url);
    for content_type in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("\u{e9}")] {
        let mut request = serve.http.post(&url).body(ACQUIRE);
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let (status, document) = problem(request).await;
        assert_eq!((status, &document["type"]), (415, &json!("unsupported-media-type")), "{content_type:?}");
    }
    assert_eq!(serve.get("Moe").await["type"], "not-found");
    let of_a_kind =
        serve.http.post(&url).body(ACQUIRE).header("content-type", "application/vnd.team+json; charset=utf-8");
    assert_eq!(problem(of_a_kind).await.0, 200);
}

#[tokio::test]
async fn foreign_pages_and_host_names_are_refused() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0", "--allow-host", "locks.test"]).await;
    for (name, value, expected) in [
        ("origin", "http://evil.test", 403),
        ("origin", "null", 403),
        ("origin", "http://127.0.0.1:1", 403),
        ("origin", serve.base_url.as_str(), 200),
        ("sec-fetch-site", "cross-site", 403),
        ("host", "evil.test", 403),
        ("host", "locks.test", 200),
    ] {
        let body = json!({ "key": fresh_uuid(), "ownerName": "me" });
        let request = serve.http.post(format!("{}/v1/acquire", serve.base_url)).json(&body).header(name, value);
        assert_eq!(problem(request).await.0, expected, "{name}: {value}");
    }

    let exposed = exposed_url(&serve);
    for (name, value) in [("origin", exposed.as_str()), ("origin", "http://evil.test"), ("host", "evil.test")] {
        let request = signed(serve.http.post(&exposed)).body(r#"{"TableName":"leasehold"}"#);
        let request = request.header("content-type", "application/x-amz-json-1.0");
        let request = request.header("x-amz-target", "DynamoDB_20120810.DeleteTable").header(name, value);
        assert_eq!(problem(request).await.0, 403, "{name}: {value}");
    }
    let untyped = signed(serve.http.post(&exposed)).header("x-amz-target", "DynamoDB_20120810.DeleteTable");
    assert_eq!(problem(untyped.body(r#"{"TableName":"leasehold"}"#)).await.0, 400);
}

/// A client that writes the whole address into the request line may name another host there than in its `Host` header.
#[tokio::test]
async fn request_target_that_names_another_host_is_refused() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    let exposed = exposed_url(&serve).trim_start_matches("http://").trim_end_matches('/').to_owned();
    for address in [serve.address().to_string(), exposed] {
        for (target, expected) in
            [(format!("http://{address}/"), None), ("http://evil.test/".to_owned(), Some("HTTP/1.1 403 Forbidden"))]
        {
            let mut stream = TcpStream::connect(&address).await.expect("it listens");
            let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.expect("sent");
            let mut answer = String::new();
            within(stream.read_to_string(&mut answer)).await.expect("text");
            let status = answer.lines().next().unwrap_or_default();
            match expected {
                Some(expected) => assert_eq!(status, expected, "{target}: {answer}"),
                None => assert_ne!(status, "HTTP/1.1 403 Forbidden", "{target}: {answer}"),
            }
        }
    }
}

/// A client of the exposed port, with these credentials.
async fn dynamodb(serve: &Serve, access_key: &str, secret: &str) -> aws_sdk_dynamodb::Client {
    let client = serve.dynamodb().await;
    let credentials = aws_sdk_dynamodb::config::Credentials::new(access_key, secret, None, None, "test");
    aws_sdk_dynamodb::Client::from_conf(client.config().to_builder().credentials_provider(credentials).build())
}

#[tokio::test]
async fn signature_is_checked_when_the_exposed_port_has_credentials() {
    let folder = folder();
    let file = folder.path().join("credentials");
    let write = |content: &str| {
        std::fs::write(&file, content).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("set");
    };
    write("[alice]\naws_access_key_id = ALICE\naws_secret_access_key = wonder\n");
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0", "--dynamodb-credentials", text_of(&file)]).await;
    let line = format!("  dynamodb  {} (those of {})", exposed_url(&serve), file.display());
    assert!(serve.banner.contains(&line), "{:?}", serve.banner);

    let alice = dynamodb(&serve, "ALICE", "wonder").await;
    assert_eq!(alice.list_tables().send().await.expect("allowed").table_names().len(), 2);
    for (access_key, secret, code) in
        [("ALICE", "wander", "InvalidSignatureException"), ("MALLORY", "wonder", "UnrecognizedClientException")]
    {
        let client = dynamodb(&serve, access_key, secret).await;
        let refused = client.list_tables().send().await.expect_err("refused");
        assert_eq!(refused.code(), Some(code), "{access_key}");
    }
    let unchecked = signed(serve.http.post(exposed_url(&serve))).body("{}").header("content-type", "application/json");
    let (status, document) = problem(unchecked.header("x-amz-target", "DynamoDB_20120810.ListTables")).await;
    assert_eq!(status, 400, "{document}");

    write("");
    assert_eq!(alice.list_tables().send().await.expect_err("revoked").code(), Some("UnrecognizedClientException"));
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(alice.list_tables().send().await.expect_err("nobody is known").code(), Some("ServiceUnavailable"));
}

/// A page can send neither header without a preflight, which gets no answer.
#[tokio::test]
async fn unsigned_request_to_the_exposed_port_is_refused() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    let list = |headers: &[(&str, &str)]| {
        let request = serve.http.post(exposed_url(&serve)).body("{}").header("content-type", "application/json");
        let request = request.header("x-amz-target", "DynamoDB_20120810.ListTables");
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    };
    let date = ("x-amz-date", "20260101T000000Z");
    let whole = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=0";
    for (headers, status, kind) in [
        (vec![], 400, "MissingAuthenticationTokenException"),
        (vec![date], 400, "MissingAuthenticationTokenException"),
        (vec![("authorization", whole)], 400, "MissingAuthenticationTokenException"),
        (vec![date, ("authorization", "Bearer x")], 400, "IncompleteSignatureException"),
        (vec![date, ("authorization", "AWS4-HMAC-SHA256 Credential=a/b")], 400, "IncompleteSignatureException"),
        (vec![date, ("authorization", whole)], 200, ""),
    ] {
        let (found, document) = problem(list(&headers)).await;
        assert_eq!(found, status, "{headers:?}: {document}");
        assert!(document["__type"].as_str().unwrap_or_default().ends_with(kind), "{headers:?}: {document}");
    }
}

#[tokio::test]
async fn lock_table_is_safe_from_another_case_of_its_name() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    serve.acquire("Moe", "secret").await;
    let create = json!({
        "TableName": "LeaseHold", "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{ "AttributeName": "key", "AttributeType": "S" }],
        "KeySchema": [{ "AttributeName": "key", "KeyType": "HASH" }],
    });
    let request = signed(serve.http.post(exposed_url(&serve)));
    let request = request.header("x-amz-target", "DynamoDB_20120810.CreateTable");
    assert_eq!(problem(request.json(&create)).await.0, 200);
    let read = json!({ "tableName": "LeaseHold", "key": { "key": { "S": "Moe" } } });
    let request = serve.http.post(format!("{}/v1/items/get", serve.base_url)).json(&read);
    let (status, document) = problem(request).await;
    assert_eq!((status, &document["item"]), (200, &Value::Null), "{document}");
}

#[tokio::test]
async fn long_expression_is_refused_before_it_is_parsed() {
    let serve = Serve::start(&["--memory"]).await;
    for count in [20_000, 100_000] {
        let paths = (0..count).map(|index| format!("a{index}")).collect::<Vec<_>>().join(",");
        let read = json!({ "tableName": "items", "key": { "id": { "S": "a" } }, "projectionExpression": paths });
        let list = json!({ "tableName": "items", "limit": 1000, "projectionExpression": paths });
        let begin = json!({ "requests": [{ "Get": {
            "TableName": "items", "Key": { "id": { "S": "a" } }, "ProjectionExpression": paths,
        } }] });
        for (path, body, field) in [
            ("/v1/items/get", read, "projectionExpression"),
            ("/v1/items/list", list, "projectionExpression"),
            ("/v1/transactions/begin", begin, "requests[0].Get.ProjectionExpression"),
        ] {
            let (status, document) = problem(serve.http.post(format!("{}{path}", serve.base_url)).json(&body)).await;
            assert_eq!((status, &document["field"]), (400, &json!(field)), "{document}");
            assert!(document["detail"].as_str().expect("text").contains("at most 4096 bytes"), "{document}");
        }
    }
}

#[tokio::test]
async fn half_sent_requests_do_not_hold_up_a_stop() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    let exposed = exposed_url(&serve);
    let exposed = exposed.trim_start_matches("http://").trim_end_matches('/');
    let half_head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: appl";
    let half_body = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n\
                     X-Amz-Target: DynamoDB_20120810.ListTables\r\nContent-Length: 100\r\n\r\n{";
    let mut streams = Vec::new();
    for address in [exposed, &serve.address().to_string()] {
        for part in [half_head, half_body] {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            stream.write_all(part.as_bytes()).await.expect("sent");
            streams.push(stream);
        }
    }
    // Both ports have accepted the connections: each still answers another one.
    assert_eq!(problem(serve.http.get(format!("{}/v1/health", serve.base_url))).await.0, 200);
    assert_eq!(serve.http.get(exposed_url(&serve)).send().await.expect("an answer").status(), 200);
    serve.signal("TERM");
    assert_eq!(serve.ended().await.0, Some(0));
}

#[tokio::test]
async fn echoed_version_takes_no_live_lock_when_clocks_check() {
    let serve = Serve::start(&["--memory", "--takeover-clock-check", "--clock-skew-ms", "1"]).await;
    let url = format!("{}/v1/acquire", serve.base_url);
    let acquire = |lease_id: &str, observed: Option<&Value>| {
        let mut body = json!({ "key": "Moe", "ownerName": "o", "leaseId": lease_id, "leaseDurationMs": 2000 });
        if let Some(observed) = observed {
            body["observedRecordVersionNumber"] = observed.clone();
        }
        problem(serve.http.post(&url).json(&body))
    };
    let (_, grant) = acquire("holder", None).await;
    let version = &grant["recordVersionNumber"];
    assert_eq!(acquire("liar", Some(version)).await.0, 423);
    let dead = async { while acquire("heir", Some(version)).await.0 == 423 {} };
    within(dead).await;
    let plain = Serve::start(&["--memory"]).await;
    let version = plain.acquire("Moe", "holder").await["recordVersionNumber"].clone();
    let body = json!({ "key": "Moe", "ownerName": "o", "observedRecordVersionNumber": version });
    assert_eq!(problem(plain.http.post(format!("{}/v1/acquire", plain.base_url)).json(&body)).await.0, 200);
}

/// Makes a token with the command, as an operator does.
fn new_token(file: &Path, name: &str, more: &[&str]) -> String {
    let output = Process::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["token", name, "--file", text_of(file)])
        .args(more)
        .output()
        .expect("the binary is built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

#[test]
fn token_that_cannot_be_printed_names_the_entry_to_remove() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let mut command = Process::new(env!("CARGO_BIN_EXE_leasehold"));
    let output = command.args(["token", "ops", "--file", text_of(&file)]).stdout(full).output().expect("built");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("remove the entry of \"ops\" from"), "{told}");
}

#[tokio::test]
async fn token_says_who_calls_and_what_they_may_touch() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let (all, some) = (new_token(&file, "ops", &[]), new_token(&file, "ci", &["--prefix", "deploy/"]));
    let serve = Serve::start(&["--memory", "--token-file", text_of(&file), "--owner-binding"]).await;
    let post = |token: Option<&str>, path: &str, body: Value| {
        let request = serve.http.post(format!("{}{path}", serve.base_url)).json(&body);
        problem(if let Some(token) = token { request.bearer_auth(token) } else { request })
    };
    let acquire = |key: &str| json!({ "key": key, "ownerName": "me", "leaseId": "l" });

    for token in [None, Some("wrong"), Some("")] {
        assert_eq!(post(token, "/v1/acquire", acquire("deploy/a")).await.0, 401, "{token:?}");
    }
    assert_eq!(post(Some(&some), "/v1/acquire", acquire("deploy/a")).await.0, 200);
    let (status, document) = post(Some(&some), "/v1/acquire", acquire("billing")).await;
    assert_eq!(status, 403);
    assert!(document["detail"].as_str().expect("text").starts_with("token:ci may not"), "{document}");
    // The lock is bound to its bearer, even against a bearer of all keys who knows the lease id.
    let heartbeat = json!({ "key": "deploy/a", "leaseId": "l" });
    assert_eq!(post(Some(&all), "/v1/heartbeat", heartbeat.clone()).await.0, 403);
    assert_eq!(post(Some(&some), "/v1/heartbeat", heartbeat).await.0, 200);
    // Transactions reach all tables.
    assert_eq!(post(Some(&some), "/v1/transactions/begin", json!({})).await.0, 403);
    assert_eq!(post(Some(&all), "/v1/transactions/begin", json!({})).await.0, 200);

    let watch = |token: &str, key: &str| {
        let url = format!("{}/v1/watch?waitMs=0&key={key}", serve.base_url);
        problem(serve.http.get(url).bearer_auth(token))
    };
    for (token, key, status) in
        [(&some, "deploy/a", 200), (&some, "billing", 403), (&some, "deploy", 403), (&all, "deploy/a", 200)]
    {
        assert_eq!(watch(token, key).await.0, status, "{key}");
    }
    let unknown = "wrong".to_owned();
    assert_eq!(watch(&unknown, "deploy/a").await.0, 401);

    let get = |path: &str| serve.http.get(format!("{}{path}", serve.base_url)).send();
    for (path, status) in [
        ("/v1/health", 200),
        ("/v1/ready", 200),
        ("/console", 200),
        ("/console/about", 401),
        ("/metrics", 401),
        ("/v1/locks", 401),
    ] {
        assert_eq!(get(path).await.expect("an answer").status(), status, "{path}");
    }

    // Terraform sends a user and a password, and no bearer's token.
    for (path, told) in [("/v1/terraform?state=a", "TF_HTTP_PASSWORD"), ("/v1/locks", "Authorization: Bearer TOKEN")] {
        let (status, document) = problem(serve.http.get(format!("{}{path}", serve.base_url))).await;
        assert!(status == 401 && document["detail"].as_str().is_some_and(|it| it.contains(told)), "{document}");
    }

    // A new token is good without a restart.
    let late = new_token(&file, "late", &[]);
    let known = async {
        while post(Some(&late), "/v1/acquire", acquire("late")).await.0 == 401 {
            tokio::task::yield_now().await;
        }
    };
    within(known).await;
}

/// The status of a listing with this token, once it is another than before.
async fn changed_status(serve: &Serve, token: &str, before: u16) -> u16 {
    let status = async || {
        let request = serve.http.get(format!("{}/v1/locks", serve.base_url)).bearer_auth(token);
        request.send().await.expect("an answer").status().as_u16()
    };
    within(async {
        loop {
            let status = status().await;
            if status != before {
                return status;
            }
            pause(Duration::from_millis(50)).await;
        }
    })
    .await
}

#[tokio::test]
async fn token_file_is_obeyed_as_it_is_while_the_service_runs() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let token = new_token(&file, "one", &[]);
    let mut command = command(folder.path(), &["--memory", "--listen", "127.0.0.1:0", "--token-file", text_of(&file)]);
    command.stderr(std::process::Stdio::piped());
    let mut serve = Serve::spawn(command).await;
    assert_eq!(changed_status(&serve, &token, 401).await, 200);
    let text = std::fs::read_to_string(&file).expect("text");
    let modified = std::fs::metadata(&file).and_then(|found| found.modified()).expect("a time");
    let write = |text: &str| {
        std::fs::write(&file, text).expect("written");
        let file = std::fs::File::options().write(true).open(&file).expect("it is there");
        file.set_modified(modified).expect("touched");
    };
    write("");
    assert_eq!(changed_status(&serve, &token, 200).await, 401, "an emptied file revokes");
    write(&text);
    assert_eq!(changed_status(&serve, &token, 401).await, 200);
    write(&text[..text.len() / 2]);
    assert_eq!(changed_status(&serve, &token, 200).await, 503, "a broken file refuses");
    write(&text);
    assert_eq!(changed_status(&serve, &token, 503).await, 200);
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(changed_status(&serve, &token, 200).await, 503, "a missing file refuses");
    // A pipe that nobody writes holds nothing up.
    let made = Process::new("mkfifo").arg(&file).status();
    assert!(made.expect("coreutils").success());
    pause(Duration::from_secs(3)).await;
    assert_eq!(changed_status(&serve, &token, 0).await, 503);
    std::fs::remove_file(&file).expect("removed");
    write_private(&file, &text);
    assert_eq!(changed_status(&serve, &token, 503).await, 200);

    serve.signal("TERM");
    let mut log = String::new();
    let mut stderr = serve.process.stderr.take().expect("piped");
    within(stderr.read_to_string(&mut log)).await.expect("text");
    assert!(log.contains("ERROR") && log.contains("tokens.json"), "{log}");
}

fn write_private(file: &Path, text: &str) {
    std::fs::write(file, text).expect("written");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
}

#[test]
fn tokens_of_twelve_commands_at_once_are_all_kept() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    std::thread::scope(|scope| {
        for number in 0..12 {
            let file = &file;
            scope.spawn(move || new_token(file, &format!("t{number}"), &[]));
        }
    });
    let kept: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file).expect("text")).expect("JSON");
    assert_eq!(kept.len(), 12);
}

/// A table that is larger than a page reads, and no row of it is the bearer's.
#[tokio::test]
async fn listing_of_a_narrow_token_reads_a_part_of_the_table() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let narrow = new_token(&file, "ci", &["--prefix", "deploy/"]);
    let serve = Serve::start(&["--memory", "--token-file", text_of(&file), "--expose-dynamodb", "0"]).await;
    let client = dynamodb(&serve, "any", "any").await;
    for batch in 0..440 {
        let puts = (0..25).map(|row| {
            let key = AttributeValue::S(format!("other/{batch}/{row}"));
            let put = PutRequest::builder().item("key", key).build().expect("an item");
            WriteRequest::builder().put_request(put).build()
        });
        client.batch_write_item().request_items("leasehold", puts.collect()).send().await.expect("written");
    }
    let page = async |cursor: &str| {
        let request = serve.http.get(format!("{}/v1/locks{cursor}", serve.base_url)).bearer_auth(&narrow);
        problem(request).await
    };
    let (status, first) = page("").await;
    assert_eq!((status, &first["locks"]), (200, &json!([])));
    let cursor = first["nextCursor"].as_str().expect("10,000 of 11,000 rows were read");
    let (status, last) = page(&format!("?cursor={cursor}")).await;
    assert_eq!((status, &last["locks"], last.get("nextCursor")), (200, &json!([]), None));
}

#[tokio::test]
async fn open_service_stays_on_this_machine() {
    let folder = folder();
    let output = within(command(folder.path(), &["--memory", "--listen", "0.0.0.0:0"]).output()).await.expect("built");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("--token-file") && stderr.contains("--insecure"), "{stderr}");
    Serve::spawn(command(folder.path(), &["--memory", "--listen", "0.0.0.0:0", "--insecure"])).await;
}

/// The lines on standard error of a service that was told to stop.
async fn warnings(args: &[&str]) -> String {
    let folder = folder();
    certificate(folder.path());
    let mut command = command(folder.path(), &[&["--memory", "--insecure"], args].concat());
    command.stderr(std::process::Stdio::piped());
    let mut serve = Serve::spawn(command).await;
    serve.signal("TERM");
    let mut text = String::new();
    let mut stderr = serve.process.stderr.take().expect("piped");
    within(stderr.read_to_string(&mut text)).await.expect("text");
    text
}

#[tokio::test]
async fn service_warns_of_plain_text_and_of_root() {
    let open = warnings(&["--listen", "0.0.0.0:0"]).await;
    assert!(open.contains("travel in plain text") && open.contains("address=0.0.0.0:"), "{open}");
    let sealed = warnings(&["--listen", "0.0.0.0:0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"]).await;
    let local = warnings(&["--listen", "127.0.0.1:0"]).await;
    assert!(!sealed.contains("plain text") && !local.contains("plain text"), "{sealed}{local}");
    let is_root = nix::unistd::geteuid().is_root();
    assert_eq!(local.contains("runs as root"), is_root, "{local}");
}

#[tokio::test]
async fn bearer_has_as_many_locks_as_its_quota_allows() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let [one, two, three] = ["one", "two", "three"].map(|name| new_token(&file, name, &[]));
    let quotas = ["--max-locks", "2", "--max-tickets", "1"];
    let serve = Serve::start(&[&["--memory", "--token-file", text_of(&file)][..], &quotas].concat()).await;
    let post = |token: &str, path: &str, body: Value| {
        let request = serve.http.post(format!("{}/v1/{path}", serve.base_url)).json(&body).bearer_auth(token);
        async move {
            let (status, document) = problem(request).await;
            (status, document["detail"].as_str().unwrap_or_default().to_owned())
        }
    };
    let lock = |key: &str| json!({ "key": key, "ownerName": "me", "leaseId": key });
    let end = |key: &str| json!({ "key": key, "leaseId": key });
    for key in ["a", "b", "a"] {
        assert_eq!(post(&one, "acquire", lock(key)).await.0, 200, "{key}");
    }
    let (status, detail) = post(&one, "acquire", lock("c")).await;
    assert_eq!((status, detail.contains("token:one has 2 locks")), (429, true), "{detail}");
    let both = json!({ "keys": [{ "key": "c" }, { "key": "d" }], "ownerName": "me", "leaseId": "both" });
    assert_eq!(post(&one, "acquire-all", both.clone()).await.0, 429);
    let permits = |lease_id: &str| json!({ "key": "pool", "ownerName": "me", "leaseId": lease_id, "capacity": 1 });
    assert_eq!(post(&one, "semaphore/acquire", permits("p")).await.0, 429);
    // A refused request takes no place, and others have their own.
    let held = json!({ "key": "a", "ownerName": "me", "leaseId": "two" });
    assert_eq!(post(&two, "acquire", held).await.0, 423);
    assert_eq!(post(&two, "acquire-all", both).await.0, 200);
    assert_eq!(post(&two, "heartbeat", json!({ "key": "c", "leaseId": "both" })).await.0, 200);
    assert_eq!(post(&two, "acquire", lock("e")).await.0, 429);
    assert_eq!(post(&one, "release", end("a")).await.0, 200);
    assert_eq!(post(&one, "semaphore/acquire", permits("p")).await.0, 200);

    assert_eq!(post(&three, "semaphore/enqueue", permits("q")).await.0, 200);
    let (status, detail) = post(&three, "semaphore/enqueue", permits("r")).await;
    assert_eq!((status, detail.contains("token:three has 1 tickets")), (429, true), "{detail}");
    assert_eq!(post(&three, "semaphore/enqueue", permits("q")).await.0, 200, "its own ticket");
    assert_eq!(post(&three, "semaphore/release", json!({ "key": "pool", "leaseId": "q" })).await.0, 200);
    assert_eq!(post(&three, "semaphore/enqueue", permits("r")).await.0, 200);
}

fn certificate(folder: &Path) -> Certificate {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).expect("written");
    Certificate::from_pem(made.cert.pem().as_bytes()).expect("valid")
}

#[tokio::test]
async fn certificate_is_read_again_when_it_changes() {
    let folder = folder();
    let first = certificate(folder.path());
    let args = ["--memory", "--listen", "127.0.0.1:0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let serve = Serve::spawn(command(folder.path(), &args)).await;
    let port = serve.base_url.rsplit(':').next().expect("a port").to_owned();
    assert!(serve.base_url.starts_with("https://"));
    let url = format!("https://localhost:{port}/v1/health");
    let trusting = |certificate: &Certificate| {
        let client = Client::builder().no_proxy().tls_certs_only([certificate.clone()]).pool_max_idle_per_host(0);
        client.timeout(PATIENCE).build().expect("a client")
    };
    assert_eq!(trusting(&first).get(&url).send().await.expect("TLS").status(), StatusCode::OK);

    let second = certificate(folder.path());
    let http = trusting(&second);
    within(async { while http.get(&url).send().await.is_err() {} }).await;
    assert!(trusting(&first).get(&url).send().await.is_err());
}

#[tokio::test]
async fn metrics_count_requests_and_outcomes() {
    let serve = Serve::start(&["--memory"]).await;
    serve.acquire("Moe", "secret").await;
    serve.get("/../../nothing").await;
    let text = serve.http.get(format!("{}/metrics", serve.base_url)).send().await.expect("an answer");
    let text = text.text().await.expect("text");
    for line in [
        r#"leasehold_http_requests_total{route="/v1/acquire",status="200"} 1"#,
        r#"leasehold_Granted{operation="acquire"} 1"#,
        r#"leasehold_http_request_duration_seconds_count{route="/v1/acquire"} 1"#,
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn removed_database_is_noticed() {
    let folder = folder();
    let db = folder.path().join("leasehold.db");
    let serve = Serve::start(&["--db", text_of(&db)]).await;
    serve.acquire("Moe", "secret").await;
    std::fs::remove_file(&db).expect("removed");
    let body = json!({ "key": "Larry", "ownerName": "me" });
    let acquire = serve.http.post(format!("{}/v1/acquire", serve.base_url)).json(&body);
    assert_eq!(problem(acquire).await.0, 503);
    for path in ["/v1/health", "/v1/ready"] {
        assert_eq!(problem(serve.http.get(format!("{}{path}", serve.base_url))).await.0, 503, "{path}");
    }
}

#[tokio::test]
async fn head_that_is_no_http_is_refused_in_a_problem_document() {
    let serve = Serve::start(&["--memory"]).await;
    let long = "x".repeat(1_000_000);
    for (head, status) in [
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (format!("GET /v1/lock?key={long} HTTP/1.1\r\nHost: localhost\r\n\r\n"), "414 431"),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n"), "431"),
    ] {
        let mut stream = TcpStream::connect(serve.address()).await.expect("it listens");
        let _ = stream.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = within(stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer);
        let found = answer.get(9..12).unwrap_or_default();
        assert!(!found.is_empty() && status.contains(found), "{answer}");
        assert!(answer.contains("application/problem+json") && answer.contains("\"detail\""), "{answer}");
    }
}

fn resident_megabytes(serve: &Serve) -> u64 {
    let pid = serve.process.id().expect("it is running");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|size| size.parse::<u64>().ok()).expect("a number") / 1024
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn clients_that_never_read_take_bounded_memory() {
    let serve = Serve::start(&["--memory"]).await;
    let data = "x".repeat(200_000);
    for index in 0..20 {
        let body = json!({ "key": format!("k{index}"), "ownerName": "me", "data": data });
        let request = serve.http.post(format!("{}/v1/acquire", serve.base_url)).json(&body);
        assert_eq!(problem(request).await.0, 200);
    }
    let mut streams = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(serve.address()).await.expect("it listens");
        let request = "GET /v1/locks?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(4);
        stream.write_all(request.as_bytes()).await.expect("sent");
        streams.push(stream);
    }
    // Locks work meanwhile, and afterwards.
    let mut highest = 0;
    for round in 0..20 {
        serve.acquire(&format!("meanwhile{round}"), "secret").await;
        highest = highest.max(resident_megabytes(&serve));
    }
    assert!(highest < 400, "{highest} MB");
}

#[tokio::test]
async fn surplus_requests_are_told_to_come_back() {
    let folder = folder();
    let serve = Serve::start(&["--db", text_of(&folder.path().join("leasehold.db"))]).await;
    let holder = serve.acquire("holder", "secret").await;
    assert_eq!(holder["outcome"], "created");
    let mut clients = JoinSet::new();
    // Each has a connection: the service has 1,024.
    for index in 0..1000 {
        let (http, url) = (serve.http.clone(), format!("{}/v1/acquire", serve.base_url));
        clients.spawn(async move {
            let body = json!({ "key": format!("k{index}"), "ownerName": "me" });
            let answer = http.post(url).json(&body).send().await.expect("an answer");
            let retry_after = answer.headers().contains_key("retry-after");
            (answer.status().as_u16(), retry_after)
        });
    }
    let heartbeat = json!({ "key": "holder", "leaseId": "secret" });
    for _ in 0..5 {
        let request = serve.http.post(format!("{}/v1/heartbeat", serve.base_url)).json(&heartbeat);
        assert_eq!(problem(request).await.0, 200, "a heartbeat passes the crowd");
    }
    let mut granted = 0;
    while let Some(answer) = clients.join_next().await {
        match answer.expect("no panic") {
            (200, _) => granted += 1,
            (429, retry_after) => assert!(retry_after),
            (status, _) => panic!("{status}: a request that waited in vain"),
        }
    }
    assert!(granted > 0);
}

#[tokio::test]
async fn watches_that_never_end_leave_the_service_to_others() {
    const PLACES: usize = 512;
    const SURPLUS: usize = 88;
    let serve = Serve::start(&["--memory"]).await;
    let granted = serve.acquire("watched", "secret").await;
    let version = granted["recordVersionNumber"].as_str().expect("text");
    let head = format!("GET /v1/watch?key=watched&version={version} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut watches = JoinSet::new();
    for _ in 0..PLACES + SURPLUS {
        let mut stream = TcpStream::connect(serve.address()).await.expect("it listens");
        stream.write_all(head.as_bytes()).await.expect("sent");
        watches.spawn(async move {
            let mut status = [0; 12];
            stream.read_exact(&mut status).await.expect("an answer");
            (status, stream)
        });
    }
    for _ in 0..SURPLUS {
        let (status, _stream) = within(watches.join_next()).await.expect("a watch").expect("no panic");
        assert_eq!(&status, b"HTTP/1.1 429");
    }
    let watch = || problem(serve.http.get(format!("{}/v1/watch?key=watched&waitMs=0", serve.base_url)));
    let (status, document) = watch().await;
    assert_eq!((status, document["type"].as_str().map(|it| it.ends_with("throttled"))), (429, Some(true)));
    assert_eq!(document["detail"], "The service has as many watches as it takes. Poll by reads meanwhile.");
    serve.acquire("other", "secret").await;
    let heartbeat = json!({ "key": "other", "leaseId": "secret" });
    assert_eq!(problem(serve.http.post(format!("{}/v1/heartbeat", serve.base_url)).json(&heartbeat)).await.0, 200);
    // A client that hangs up leaves a place.
    drop(watches);
    let relieved = async { while watch().await.0 != 200 {} };
    within(relieved).await;
}
