//! Rule C11 in real time: endpoints that answer for one table, of which some fail.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_dynamodb::Client as DynamoDb;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::{Json, Router};
use http::StatusCode;
use leasehold_api::Service;
use leasehold_client::{Client, ErrorKind, HttpTransport, LockRequest, PermitRequest, Transport, Wait};
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_protocol::{LockTable, Policy, TableSchema, ensure_table};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::granted;

const LEASE: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(30);

/// What an endpoint does with a request.
#[derive(Debug, Clone)]
enum Mood {
    Serves,
    /// Accepts each request, and answers none.
    Silent,
    /// Answers by itself: status, `Retry-After`, body.
    Answers(u16, Option<&'static str>, Value),
    /// Answers with a page.
    Pages(u16),
}

/// A stack in a region, which can end at once.
struct Region {
    url: String,
    mood: Arc<Mutex<Mood>>,
    /// The path and the body of each request.
    asked: Arc<Mutex<Vec<(String, String)>>>,
    relay: JoinHandle<()>,
}

impl Region {
    async fn start(routes: Router) -> Self {
        let (mood, asked) = (Arc::new(Mutex::new(Mood::Serves)), Arc::<Mutex<Vec<(String, String)>>>::default());
        let (of_mood, log) = (Arc::clone(&mood), Arc::clone(&asked));
        let serve = move |request: Request, next: Next| {
            let (mood, log) = (of_mood.lock().expect("no panic").clone(), Arc::clone(&log));
            async move {
                let (head, body) = request.into_parts();
                let body = to_bytes(body, usize::MAX).await.expect("a body");
                let text = String::from_utf8(body.to_vec()).expect("text");
                log.lock().expect("no panic").push((head.uri.path().to_owned(), text));
                match mood {
                    Mood::Serves => next.run(Request::from_parts(head, Body::from(body))).await,
                    Mood::Silent => std::future::pending().await,
                    Mood::Answers(status, retry_after, body) => {
                        let status = StatusCode::from_u16(status).expect("a status");
                        (status, retry_after.map(|pause| [("retry-after", pause)]), Json(body)).into_response()
                    }
                    Mood::Pages(status) => {
                        let status = StatusCode::from_u16(status).expect("a status");
                        (status, [("location", "/elsewhere")], "<html>no</html>").into_response()
                    }
                }
            }
        };
        let behind = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let upstream = behind.local_addr().expect("bound");
        let routes = routes.layer(from_fn(serve));
        tokio::spawn(async move { axum::serve(behind, routes).await });
        let front = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let url = format!("http://{}", front.local_addr().expect("bound"));
        let relay = tokio::spawn(async move {
            // They end with this task.
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = front.accept().await {
                connections.spawn(async move {
                    let mut far = TcpStream::connect(upstream).await.expect("it listens");
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Self { url, mood, asked, relay }
    }

    fn feels(&self, mood: Mood) {
        *self.mood.lock().expect("no panic") = mood;
    }

    /// Ends at once, with all connections.
    async fn die(&mut self) {
        self.relay.abort();
        let _ = (&mut self.relay).await;
    }

    /// The requests so far, by their paths.
    fn paths(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").iter().map(|(path, _)| path.clone()).collect()
    }

    fn bodies(&self, path: &str) -> Vec<String> {
        let asked = self.asked.lock().expect("no panic");
        asked.iter().filter(|(asked, _)| asked == path).map(|(_, body)| body.clone()).collect()
    }

    async fn until_asked(&self, path: &str) {
        let asked = async {
            while !self.paths().iter().any(|asked| asked == path) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, asked).await.expect("it is asked in time");
    }
}

/// Two regions with one table.
async fn regions() -> (Region, Region) {
    let engine = Engine::memory().expect("memory is to be had");
    let client = DynamoDb::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let schema = TableSchema::new("locks");
    ensure_table(&client, &schema).await.expect("a new table");
    let table = LockTable::new(client, schema, Policy::default(), Clock::system());
    let routes = leasehold_server::routes(Service::new(table));
    (Region::start(routes.clone()).await, Region::start(routes).await)
}

fn client(first: &Region, second: &Region) -> Client {
    let transport = HttpTransport::new(&format!("{}, {}", first.url, second.url)).expect("URLs");
    Client::builder().owner_name("one").lease(LEASE).build(transport)
}

/// An address at which nobody listens.
fn nowhere() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    format!("http://{}", listener.local_addr().expect("bound"))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_passes_an_endpoint_that_is_dead() {
    let (mut first, second) = regions().await;
    let client = client(&first, &second);
    first.die().await;
    // No heartbeat comes between.
    let request = LockRequest::new("Moe").lease(PATIENCE);
    let guard = client.try_acquire(request).await.expect("the second answers").granted().expect("free");
    guard.release().await.expect("held");
    assert_eq!(second.paths(), ["/v1/acquire", "/v1/release"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_is_kept_when_its_endpoint_dies() {
    let (mut first, second) = regions().await;
    let client = client(&first, &second);
    let guard = granted(&client, LockRequest::new("Moe").lease(LEASE * 2)).await;
    let all = client.semaphore("Larry", 2).acquire(PermitRequest::new().lease(LEASE * 2)).await;
    let permits = all.expect("reachable").granted().expect("free");
    assert_eq!(second.paths(), Vec::<String>::new());
    first.die().await;
    sleep(LEASE * 3).await;
    assert!(guard.valid() && permits.valid(), "{:?}", guard.loss());
    guard.release().await.expect("held");
    client.close().await.expect("the permits are released");
    let asked = second.paths();
    for path in ["/v1/heartbeat", "/v1/semaphore/heartbeat", "/v1/release", "/v1/semaphore/release"] {
        assert!(asked.iter().any(|asked| asked == path), "{path}: {asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_endpoint_takes_a_part_of_the_lease() {
    let (first, second) = regions().await;
    let client = client(&first, &second);
    let guard = granted(&client, LockRequest::new("Moe").lease(LEASE * 2)).await;
    first.feels(Mood::Silent);
    sleep(LEASE * 3).await;
    assert!(guard.valid(), "{:?}", guard.loss());
    let (silent, answered) = (first.bodies("/v1/heartbeat"), second.bodies("/v1/heartbeat"));
    // Where the second is slow once, the first is asked again.
    assert!(silent.len() < answered.len(), "{silent:?} {answered:?}");
    assert_eq!(silent[0], answered[0], "the same heartbeat, under the same number");
    // The first one is well again: the endpoint that answered stays.
    first.feels(Mood::Serves);
    guard.release().await.expect("held");
    granted(&client, LockRequest::new("Moe").lease(PATIENCE)).await.release().await.expect("held");
    let mut asked = first.paths();
    asked.dedup();
    assert_eq!(asked, ["/v1/acquire", "/v1/heartbeat"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_silent_endpoints_leave_time_for_the_fourth() {
    let (first, last) = regions().await;
    // Connections are made, and nobody accepts them.
    let silent = [silent(), silent()];
    let urls = format!("{},{},{},{}", first.url, silent[0].1, silent[1].1, last.url);
    let client = Client::builder().lease(LEASE * 3).build(HttpTransport::new(&urls).expect("URLs"));
    let guard = granted(&client, "Moe").await;
    first.feels(Mood::Silent);
    sleep(LEASE * 4).await;
    assert!(guard.valid(), "{:?}", guard.loss());
    assert_eq!(first.bodies("/v1/heartbeat")[0], last.bodies("/v1/heartbeat")[0]);
    guard.release().await.expect("held");
}

fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    (listener, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_is_repeated_under_its_lease_id_and_number() {
    let (first, second) = regions().await;
    first.feels(Mood::Silent);
    let client = client(&first, &second);
    let guard = granted(&client, LockRequest::new("Moe").lease(PATIENCE)).await;
    let (silent, answered) = (first.bodies("/v1/acquire"), second.bodies("/v1/acquire"));
    assert_eq!((silent.len(), &silent), (1, &answered));
    let request: Value = serde_json::from_str(&answered[0]).expect("JSON");
    assert!(request["leaseId"].is_string() && request["sequence"] == 1, "{request}");
    guard.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_that_nobody_awaits_is_released_elsewhere() {
    let (first, second) = regions().await;
    first.feels(Mood::Silent);
    let client = client(&first, &second);
    let error = client.try_acquire("Moe").await.expect_err("no answer");
    assert_eq!(error.kind(), &ErrorKind::Unavailable);
    assert!(source(&error).contains(&first.url), "{}", source(&error));
    second.until_asked("/v1/release").await;
    let asked: Value = serde_json::from_str(&first.bodies("/v1/acquire")[0]).expect("JSON");
    let released: Value = serde_json::from_str(&second.bodies("/v1/release")[0]).expect("JSON");
    assert_eq!(released["leaseId"], asked["leaseId"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_watches_on_when_its_endpoint_dies() {
    let (mut first, second) = regions().await;
    let holder = Client::builder().lease(PATIENCE).build(HttpTransport::new(&second.url).expect("a URL"));
    let guard = granted(&holder, "Moe").await;
    let client = client(&first, &second);
    let waiting =
        tokio::spawn(async move { client.acquire(LockRequest::new("Moe").wait(Wait::AtMost(PATIENCE))).await });
    first.until_asked("/v1/watch").await;
    first.die().await;
    second.until_asked("/v1/watch").await;
    guard.release().await.expect("held");
    let acquired = timeout(PATIENCE, waiting).await.expect("in time").expect("no panic").expect("reachable");
    acquired.granted().expect("released").release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_is_passed_and_an_answer_is_not() {
    let own = |status: u16, kind: &str| json!({ "type": kind, "title": "t", "status": status, "detail": "d" });
    let foreign = || json!({ "message": "Service Unavailable" });
    for (mood, passes) in [
        (Mood::Answers(500, None, foreign()), true),
        (Mood::Answers(502, None, foreign()), true),
        (Mood::Answers(503, None, foreign()), true),
        (Mood::Answers(504, None, json!("late")), true),
        // The service cannot reach its table.
        (Mood::Answers(503, Some("1"), own(503, "unavailable")), true),
        // A gateway's, after its pause.
        (Mood::Answers(503, Some("2"), foreign()), true),
        (Mood::Answers(408, Some("2"), foreign()), true),
        // Another program's.
        (Mood::Answers(408, None, foreign()), true),
        (Mood::Answers(200, None, json!([])), true),
        (Mood::Pages(200), true),
        (Mood::Pages(302), true),
        (Mood::Answers(307, Some("2"), foreign()), true),
        (Mood::Answers(401, None, foreign()), false),
        (Mood::Answers(413, None, foreign()), false),
        (Mood::Answers(429, Some("1"), foreign()), false),
        (Mood::Answers(429, Some("1"), own(429, "throttled")), false),
        (Mood::Answers(429, None, foreign()), false),
        (Mood::Answers(500, None, own(500, "misconfigured")), false),
        (Mood::Answers(403, None, foreign()), false),
        (Mood::Answers(404, None, own(404, "not-found")), false),
        (Mood::Answers(409, None, own(409, "lost")), false),
    ] {
        let (first, second) = regions().await;
        first.feels(mood.clone());
        let transport = HttpTransport::new(&format!("{},{}", first.url, second.url)).expect("URLs");
        for _ in 0..2 {
            let request = http::Request::get("/v1/lock?key=Moe").body(Vec::new()).expect("a request");
            let _ = transport.send(request).await;
        }
        let counts = (first.paths().len(), second.paths().len());
        assert_eq!(counts, if passes { (1, 1) } else { (2, 0) }, "{mood:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_passes_an_endpoint_of_another_program() {
    let late = Mood::Answers(503, Some("1"), json!({ "message": "Service Unavailable" }));
    for mood in [Mood::Pages(200), Mood::Pages(301), Mood::Pages(408), late] {
        let (first, second) = regions().await;
        first.feels(mood.clone());
        let request = LockRequest::new("Moe").lease(PATIENCE);
        granted(&client(&first, &second), request).await.release().await.expect("held");
        assert_eq!(first.bodies("/v1/acquire").len(), 1, "{mood:?}");
        assert_eq!(first.bodies("/v1/acquire"), second.bodies("/v1/acquire"), "{mood:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_names_all_endpoints_that_were_tried() {
    let (first, second) = (nowhere(), nowhere());
    let transport = HttpTransport::new(&format!("{first},{second}")).expect("URLs");
    let error = Client::new(transport).try_acquire("Moe").await.expect_err("nobody is there");
    let told = source(&error);
    assert_eq!(error.kind(), &ErrorKind::Unavailable);
    assert!(told.contains(&format!("{first}: ")) && told.contains(&format!("{second}: ")), "{told}");

    let (silent, broken) = regions().await;
    silent.feels(Mood::Silent);
    broken.feels(Mood::Answers(502, None, json!("broken")));
    let request = LockRequest::new("Moe").wait(Wait::AtMost(Duration::from_secs(3)));
    let error = client(&silent, &broken).acquire(request).await.expect_err("no answer");
    let told = source(&error);
    assert!(told.contains(&format!("{}: no answer", silent.url)), "{told}");
    assert!(told.contains(&format!("{}: the answer, 502 Bad Gateway, is not", broken.url)), "{told}");
}

#[tokio::test]
async fn each_url_of_a_list_is_checked() {
    for list in ["https://a.example.com,nonsense", "", ",", "https://me:secret@a.example.com,https://b.example.com"] {
        let error = HttpTransport::new(list).expect_err("not a list of URLs");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    HttpTransport::new("https://a.example.com, https://b.example.com,").expect("two URLs");
}

fn source(error: &leasehold_client::Error) -> String {
    std::error::Error::source(error).expect("a cause").to_string()
}
