//! The same behaviour over HTTP and in process, in real time.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client as DynamoDb;
use futures_util::TryStreamExt;
use leasehold_api::Service;
use leasehold_client::wire::{AcquireOutcome, LockState};
use leasehold_client::{
    Acquisition, Client, ErrorKind, Guard, Heartbeats, HttpTransport, ListOptions, Listed, LockRequest, LossReason,
    Transport, Wait,
};
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_in_process::InProcess;
use leasehold_protocol::{LockTable, Policy, TableSchema, ensure_table};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::granted;

const LEASE: Duration = Duration::from_secs(3);

async fn service() -> Service {
    let engine = Engine::memory().expect("memory is to be had");
    let client = DynamoDb::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let schema = TableSchema::new("locks");
    ensure_table(&client, &schema).await.expect("a new table");
    Service::new(LockTable::new(client, schema, Policy::default(), Clock::system()))
}

async fn in_process() -> InProcess {
    InProcess::new(service().await)
}

async fn over_http() -> HttpTransport {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let routes = leasehold_server::routes(service().await);
    tokio::spawn(leasehold_server::run(listener, routes, std::future::pending()));
    HttpTransport::new(&url).expect("a URL")
}

/// The behaviour that every transport must have.
async fn behaves(transport: impl Transport + Clone) {
    let one = Client::builder().owner_name("one").lease(LEASE).build(transport.clone());
    let two = Client::builder().owner_name("two").lease(LEASE).build(transport);
    let key = "Müller & Söhne / 100 % + ? # 🔒";

    // Granted, held, released, granted.
    let guard = granted(&one, LockRequest::new(key).data([0, 255]).attribute("step", 3)).await;
    let Acquisition::Held(held) = two.try_acquire(key).await.expect("reachable") else { panic!("granted twice") };
    assert_eq!((held.lock.owner_name.as_str(), held.lock.attributes["step"].as_i64()), ("one", Some(3)));
    let lock = two.get(key).await.expect("a row");
    assert_eq!((lock.state, lock.fencing_token), (LockState::Held, Some(guard.fencing_token())));
    sleep(LEASE * 4 / 3).await;
    assert!(guard.valid(), "it heartbeats");
    let token = guard.fencing_token();
    guard.release().await.expect("held");
    let guard = granted(&two, key).await;
    assert_eq!((guard.fencing_token(), guard.data()), (token + 1, Some([0, 255].as_slice())));

    // A holder dies.
    let died = Instant::now();
    guard.detach();
    let guard = granted(&one, key).await;
    assert_eq!(guard.outcome(), Some(AcquireOutcome::TakenOver));
    assert!(died.elapsed() >= LEASE * 3 / 4, "{:?}", died.elapsed());

    // An operator breaks the lock, and another client acquires it.
    let version = two.get(key).await.expect("a row").record_version_number;
    two.break_lock(key, version.clone()).await.ok();
    let version = two.get(key).await.expect("a row").record_version_number;
    two.break_lock(key, version).await.expect("as seen");
    let loss = timeout(LEASE * 5, guard.lost()).await.expect("at the next heartbeat").expect("lost");
    assert_eq!(loss.reason, LossReason::Released);
    let error = two.break_lock(key, "not this one").await.expect_err("not as seen");
    assert_eq!(error.kind(), &ErrorKind::VersionMismatch);

    // A listing over several pages.
    let manual = |name: String| LockRequest::new(name).heartbeats(Heartbeats::Manual);
    let mut guards = Vec::new();
    for number in 0..7 {
        guards.push(granted(&one, manual(format!("list-{number}"))).await);
    }
    let options = ListOptions { page_size: Some(3), state: Some(LockState::Held), ..ListOptions::default() };
    let listed: Vec<Listed> = one.list(options).try_collect().await.expect("reachable");
    assert_eq!(listed.len(), 7, "{listed:?}");
    assert_eq!(one.get("nothing").await.expect_err("no row").kind(), &ErrorKind::NotFound);
    one.health().await.expect("well");
    one.close().await.expect("all are released");
    two.close().await.expect("nothing is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_behaves_over_http() {
    behaves(over_http().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_behaves_in_process() {
    behaves(in_process().await).await;
}

/// The guards keep their locks for a minute, in real time and over real connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_guards_are_kept_over_http_for_a_minute() {
    let client = Client::builder().owner_name("many").lease(Duration::from_secs(30)).build(over_http().await);
    let mut guards = Vec::new();
    for number in 0..200 {
        guards.push(granted(&client, format!("lock-{number}")).await);
    }
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        let lost: Vec<_> = guards.iter().filter_map(Guard::loss).collect();
        assert_eq!(lost, []);
    }
    client.close().await.expect("all are released");
}

/// A server that gives every request the same answer, and records the request.
async fn canned(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a caller");
        let mut request = Vec::new();
        while !request.ends_with(b"}") && !request.ends_with(b"\r\n\r\n") {
            let mut chunk = [0; 4096];
            let length = stream.read(&mut chunk).await.expect("text");
            request.extend_from_slice(&chunk[..length]);
            if request.ends_with(b"\r\n\r\n") && request.starts_with(b"POST") {
                // The body has not arrived yet.
                let length = stream.read(&mut chunk).await.expect("text");
                request.extend_from_slice(&chunk[..length]);
            }
        }
        stream.write_all(answer.as_bytes()).await.expect("sent");
        String::from_utf8(request).expect("text")
    });
    (url, asked)
}

const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn bearer_token_and_api_stage_travel_with_each_request() {
    let (url, asked) = canned(NOT_FOUND).await;
    let transport = HttpTransport::new(&format!("{url}/stage/")).expect("a URL").bearer_token("let me in");
    let error = Client::new(transport).get(("a b", "c&d")).await.expect_err("a canned answer");
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error}");
    let asked = asked.await.expect("asked");
    assert!(asked.starts_with("GET /stage/v1/lock?key=a%20b&sortKey=c%26d HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("authorization: Bearer let me in\r\n"), "{asked}");
}

#[tokio::test]
async fn whatever_a_server_answers_is_an_error_and_no_panic() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n\"a string",
        "HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 409 Conflict\r\ncontent-length: 17\r\n\r\n{\"type\":\"unheard\"}",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\nshort",
        "not HTTP at all\r\n\r\n",
    ] {
        let (url, asked) = canned(answer).await;
        let client = Client::builder()
            .request_timeout(Duration::from_secs(2))
            .retry_budget(Duration::ZERO)
            .build(HttpTransport::new(&url).expect("a URL"));
        let error = client.try_acquire("Moe").await.expect_err("not an answer");
        assert!(!error.to_string().is_empty(), "{answer:?}");
        asked.await.expect("asked");
    }
}

#[tokio::test]
async fn answer_is_read_up_to_eight_mebibytes() {
    const LIMIT: usize = 8 * 1024 * 1024;
    for (length, is_read) in [(LIMIT, true), (LIMIT + 1, false)] {
        let mut body = r#"{"status":"ok"}"#.to_owned();
        body.extend(std::iter::repeat_n(' ', length - body.len()));
        let (url, _asked) = canned(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").leak()).await;
        let answer = Client::new(HttpTransport::new(&url).expect("a URL")).health().await;
        assert_eq!(answer.is_ok(), is_read, "{length} bytes: {answer:?}");
        if let Err(error) = answer {
            let source = std::error::Error::source(&error).expect("a cause").to_string();
            assert!(source.contains("too long"), "{source}");
        }
    }
}

#[tokio::test]
async fn nobody_there_is_said_in_so_many_words() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let error = Client::new(HttpTransport::new(&url).expect("a URL")).try_acquire("Moe").await.expect_err("nobody");
    assert_eq!(error.kind(), &ErrorKind::Unavailable);
    let source = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(source.to_lowercase().contains("refused"), "{error}: {source}");
    assert!(std::error::Error::source(&error).and_then(|source| source.source()).is_some(), "the HTTP client's own");
    for not_a_url in ["", "localhost:8080", "ftp://x", "http://", "http://x/?stage=1"] {
        let error = HttpTransport::new(not_a_url).expect_err("not a service's URL");
        assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{not_a_url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_waiters_take_turns_under_rising_tokens() {
    let transport = over_http().await;
    let tokens = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..32 {
        let (transport, tokens) = (transport.clone(), std::sync::Arc::clone(&tokens));
        waiters.spawn(async move {
            let client = Client::builder().owner_name(format!("waiter-{number}")).build(transport);
            let request = LockRequest::new("Moe").wait(Wait::AtMost(Duration::from_mins(2)));
            let guard = granted(&client, request).await;
            // There are no other holders: the last token is the highest, and no other token is added meanwhile.
            let count = {
                let mut tokens = tokens.lock().expect("not poisoned");
                assert!(tokens.last().is_none_or(|last| *last < guard.fencing_token()));
                tokens.push(guard.fencing_token());
                tokens.len()
            };
            sleep(Duration::from_millis(10)).await;
            assert_eq!(tokens.lock().expect("not poisoned").len(), count);
            guard.release().await.expect("held");
        });
    }
    while let Some(waiter) = waiters.join_next().await {
        waiter.expect("no panic");
    }
}
