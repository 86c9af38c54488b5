//! Terraform's states: what `serve --terraform-state` refuses, and the real `terraform` against it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

mod passage;

use crate::support::{
    Serve, command, end, first_line, folder, http_client, in_folder, kill, leasehold, pause, text_of,
};

/// The key of the lock of the state that these tests use.
const KEY: &str = "terraform/network";

/// A service with a folder of states.
struct Backend {
    serve: Serve,
    folder: TempDir,
}

impl Backend {
    async fn start(more: &[&str]) -> Self {
        let folder = folder();
        let states = folder.path().join("states");
        let args = [&["--memory", "--terraform-state", text_of(&states)], more].concat();
        Self { serve: Serve::start(&args).await, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("states").join(name)
    }

    fn request(&self, method: &str, query: &str) -> RequestBuilder {
        self.at("/v1/terraform", method, query)
    }

    fn at(&self, path: &str, method: &str, query: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.serve.http.request(method, format!("{}{path}?state=network{query}", self.serve.base_url))
    }

    async fn lock(&self, id: &str) -> (StatusCode, Value) {
        answered(self.request("LOCK", "").json(&info(id))).await
    }

    async fn write(&self, id: &str, state: &str) -> StatusCode {
        answered(self.request("POST", &format!("&ID={id}")).body(state.to_owned())).await.0
    }

    async fn unlock(&self, id: &str) -> StatusCode {
        answered(self.request("UNLOCK", "").json(&info(id))).await.0
    }

    async fn state(&self) -> Option<String> {
        let response = self.request("GET", "").send().await.expect("an answer");
        match response.status() {
            StatusCode::NOT_FOUND => None,
            StatusCode::OK => Some(response.text().await.expect("text")),
            status => panic!("{status}"),
        }
    }

    /// Acquires the lock as `leasehold terraform` does.
    async fn run_acquires(&self, lease_id: &str, lease_ms: u64) {
        let body = json!({ "key": KEY, "ownerName": "run", "leaseId": lease_id, "leaseDurationMs": lease_ms });
        crate::support::acquire(&self.serve.http, &self.serve.base_url, &body).await.expect("granted");
    }
}

async fn answered(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.expect("an answer");
    let status = response.status();
    let text = response.text().await.expect("text");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Terraform's description of a lock.
fn info(id: &str) -> Value {
    json!({
        "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": format!("{id}@laptop"), "Version": "1.11.4",
        "Created": "2026-03-01T10:00:00Z", "Path": "",
    })
}

const OK: StatusCode = StatusCode::OK;
const CONFLICT: StatusCode = StatusCode::CONFLICT;
const LOCKED: StatusCode = StatusCode::LOCKED;

#[tokio::test]
async fn state_is_written_only_under_its_lock() {
    let backend = Backend::start(&[]).await;
    assert_eq!(backend.state().await, None);
    assert_eq!(answered(backend.request("POST", "").body("0")).await.0, CONFLICT, "with -lock=false");
    assert_eq!(backend.write("moe", "0").await, CONFLICT);
    assert_eq!(backend.lock("moe").await.0, OK);
    assert_eq!(backend.lock("moe").await.0, OK, "a repeat");
    assert_eq!(backend.write("moe", "1").await, OK);
    assert_eq!(backend.write("larry", "2").await, CONFLICT);
    assert_eq!(answered(backend.request("POST", "").body("2")).await.0, CONFLICT);
    assert_eq!(backend.unlock("larry").await, CONFLICT);
    assert_eq!(backend.unlock("moe").await, OK);
    assert_eq!(backend.unlock("moe").await, OK, "a repeat");
    assert_eq!(backend.write("moe", "3").await, CONFLICT);
    assert_eq!(backend.state().await.as_deref(), Some("1"));
    // The secret is in no lock that others can read.
    assert!(!backend.serve.get(KEY).await.to_string().contains("\"moe\""));
}

#[tokio::test]
async fn refusal_begins_with_the_holders_name() {
    let backend = Backend::start(&[]).await;
    assert_eq!(backend.lock("moe").await.0, OK);
    let put = backend.at("/v1/terraform-lock", "PUT", "").json(&info("larry"));
    for (status, refusal) in [backend.lock("larry").await, answered(put).await] {
        assert_eq!((status, &refusal["type"]), (LOCKED, &json!("held")));
        assert_eq!(refusal["ID"], "moe@laptop (OperationTypeApply, 2026-03-01T10:00:00Z)");
        assert_eq!(refusal["title"], "The state is locked");
        let detail = refusal["detail"].as_str().expect("a text");
        assert!(detail.contains("moe@laptop") && detail.contains("-lock-timeout"), "{detail}");
        assert_eq!((&refusal["Who"], &refusal["Created"]), (&json!("moe@laptop"), &info("moe")["Created"]));
    }
    let (_, refusal) = answered(backend.request("POST", "&ID=larry").body("1")).await;
    assert!(refusal["ID"].as_str().is_some_and(|id| id.starts_with("moe@laptop")), "{refusal}");
    // A run leaves the data of the holder before it in place, and it is not its own.
    assert_eq!(backend.unlock("moe").await, OK);
    backend.run_acquires("secret", 20_000).await;
    assert_eq!(backend.lock("larry").await.1["ID"], "run");
}

#[tokio::test]
async fn late_write_is_refused_after_force_unlock() {
    let backend = Backend::start(&[]).await;
    assert_eq!(backend.lock("moe").await.0, OK);
    assert_eq!(backend.write("moe", "1").await, OK);
    assert_eq!(answered(backend.request("UNLOCK", "")).await.0, OK);
    assert_eq!(answered(backend.request("UNLOCK", "")).await.0, OK, "nobody holds it");
    assert_eq!(backend.write("moe", "2").await, CONFLICT);
    assert_eq!(backend.lock("moe").await.0, CONFLICT, "a late repeat of its LOCK");
    assert_eq!(backend.lock("larry").await.0, OK);
    for _ in 0..2 {
        assert_eq!(backend.write("moe", "2").await, CONFLICT);
        assert_eq!(answered(backend.request("DELETE", "&ID=moe")).await.0, CONFLICT);
        // It has ended already, and Larry's stays.
        assert_eq!(backend.unlock("moe").await, OK);
        assert_eq!(backend.write("larry", "3").await, OK);
    }
    assert_eq!(backend.state().await.as_deref(), Some("3"));
}

#[tokio::test]
async fn older_token_is_refused_when_the_table_is_an_old_copy() {
    let folder = folder();
    let (db, copy, states) = (folder.path().join("db"), folder.path().join("copy"), folder.path().join("states"));
    let start = async |folder: TempDir| {
        let args = ["--listen", "127.0.0.1:0", "--db", text_of(&db), "--terraform-state", text_of(&states)];
        Backend { serve: Serve::spawn(command(folder.path(), &args)).await, folder }
    };
    let stop = async |backend: Backend| {
        backend.serve.signal("TERM");
        backend.serve.ended().await;
        backend.folder
    };
    let backend = start(folder).await;
    assert_eq!(backend.lock("moe").await.0, OK);
    assert_eq!(backend.write("moe", "1").await, OK);
    let folder = stop(backend).await;
    std::fs::copy(&db, &copy).expect("copied");
    let backend = start(folder).await;
    assert_eq!(answered(backend.request("UNLOCK", "")).await.0, OK);
    assert_eq!(backend.lock("larry").await.0, OK);
    assert_eq!(backend.write("larry", "2").await, OK);
    let folder = stop(backend).await;
    std::fs::copy(&copy, &db).expect("restored");
    let backend = start(folder).await;
    // The table says that Moe holds the lock. The state knows better.
    assert_eq!(backend.serve.get(KEY).await["ownerName"], "moe@laptop");
    assert_eq!(backend.write("moe", "3").await, CONFLICT);
    assert_eq!(backend.lock("moe").await.0, CONFLICT);
    assert_eq!(backend.state().await.as_deref(), Some("2"));
    // Terraform does not unlock what it was refused.
    assert_eq!(backend.serve.get(KEY).await["state"], "released");
}

#[tokio::test]
async fn state_is_refused_when_the_folder_is_another_one() {
    let folder = folder();
    let start = async |states: &str| {
        let args = ["--listen", "127.0.0.1:0", "--db", "db", "--terraform-state", states];
        let mut command = command(folder.path(), &args);
        command.stderr(std::fs::File::create(folder.path().join("log")).expect("made"));
        Backend { serve: Serve::spawn(command).await, folder: crate::support::folder() }
    };
    let log = || std::fs::read_to_string(folder.path().join("log")).expect("read");
    let backend = start("states").await;
    assert_eq!(backend.lock("moe").await.0, OK);
    assert_eq!(backend.write("moe", "1").await, OK);
    assert_eq!(backend.unlock("moe").await, OK);
    backend.serve.acquire("terraform/Ä", "no state").await;
    // More than a page of a listing.
    for number in 0..100 {
        backend.serve.acquire(&format!("terraform/more-{number}"), "any").await;
    }
    backend.serve.kill_9().await;
    let backend = start("mistyped").await;
    assert!(backend.serve.banner.iter().any(|line| line.contains("of 0 states in the folder mistyped")));
    assert!(log().contains("locks of Terraform's states") && log().contains("count=101"), "{}", log());
    // Terraform takes a 404 for a new state, and makes all of it once more.
    let (status, problem) = answered(backend.request("GET", "")).await;
    assert_eq!((status.as_u16(), &problem["type"]), (500, &json!("misconfigured")));
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("network.fence")), "{problem}");
    assert_eq!(backend.lock("larry").await.0.as_u16(), 500);
    assert_eq!(backend.serve.get(KEY).await["state"], "released");
    backend.run_acquires("run", 20_000).await;
    for method in ["GET", "POST", "DELETE", "LOCK"] {
        let request = backend.request(method, "").header("leasehold-lease-id", "run").json(&info("any"));
        assert_eq!(answered(request).await.0.as_u16(), 500, "{method}");
    }
    assert_eq!(answered(backend.request("UNLOCK", "")).await.0, OK, "the locks are there");
    // Another state is new, and so is this one once the operator says so.
    let other = backend.serve.http.get(format!("{}/v1/terraform?state=other", backend.serve.base_url));
    assert_eq!(answered(other).await.0, StatusCode::NOT_FOUND);
    std::fs::write(folder.path().join("mistyped/network.fence"), "0 network").expect("written");
    assert_eq!(backend.state().await, None);
    assert_eq!(backend.lock("curly").await.0, OK);
    backend.serve.kill_9().await;
    let backend = start("states").await;
    assert!(backend.serve.banner.iter().any(|line| line.contains("of 1 states in the folder states")));
    assert_eq!((backend.state().await.as_deref(), log().contains("count=100")), (Some("1"), true), "{}", log());
}

#[tokio::test]
async fn lock_is_refused_when_the_folder_was_replaced() {
    let backend = Backend::start(&[]).await;
    let folder = backend.file("");
    assert_eq!(backend.lock("moe").await.0, OK);
    std::fs::rename(&folder, backend.folder.path().join("aside")).expect("moved");
    std::fs::create_dir(&folder).expect("made");
    assert_eq!(backend.write("moe", "1").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answered(backend.request("GET", "")).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(backend.unlock("moe").await, OK);
    assert_eq!(backend.lock("larry").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(backend.serve.get(KEY).await["state"], "released");
    assert_eq!(std::fs::read_dir(&folder).expect("readable").count(), 0);
}

#[tokio::test]
async fn holder_from_before_a_restore_writes_nothing() {
    let folder = folder();
    let states = folder.path().join("states");
    let start = async |db: &str| {
        let args = ["--listen", "127.0.0.1:0", "--db", db, "--terraform-state", text_of(&states)];
        Serve::spawn(command(folder.path(), &args)).await
    };
    let backend = async |db: &str| Backend { serve: start(db).await, folder: crate::support::folder() };
    let before = backend("old.db").await;
    assert_eq!(before.lock("moe").await.0, OK);
    assert_eq!(in_folder(folder.path(), &["backup", "copy.db", "--db", "old.db"]).await.status, 0);
    assert_eq!(before.unlock("moe").await, OK);
    assert_eq!(before.lock("larry").await.0, OK);
    assert_eq!(before.write("larry", "2").await, OK);
    before.serve.signal("TERM");
    before.serve.ended().await;
    assert_eq!(in_folder(folder.path(), &["restore", "copy.db", "--db", "new.db"]).await.status, 0);
    let after = backend("new.db").await;
    assert_eq!(after.write("moe", "late").await, CONFLICT);
    assert_eq!(after.lock("moe").await.0, CONFLICT);
    assert_eq!(after.state().await.as_deref(), Some("2"));
    assert_eq!(after.lock("curly").await.0, OK);
    assert_eq!(after.write("curly", "3").await, OK);
}

#[tokio::test]
async fn unlock_without_an_id_breaks_nothing() {
    let backend = Backend::start(&[]).await;
    assert_eq!(backend.lock("moe").await.0, OK);
    let (status, problem) = answered(backend.request("UNLOCK", "").json(&json!({}))).await;
    assert_eq!((status, &problem["field"]), (StatusCode::BAD_REQUEST, &json!("ID")));
    assert_eq!(backend.write("moe", "1").await, OK);
}

#[tokio::test]
async fn locks_have_a_path_for_gateways_without_their_methods() {
    let backend = Backend::start(&[]).await;
    let at = |method, query: &str| backend.at("/v1/terraform-lock", method, query);
    assert_eq!(answered(at("PUT", "").json(&info("moe"))).await.0, OK);
    assert_eq!(backend.lock("larry").await.0, LOCKED);
    assert_eq!(backend.write("moe", "1").await, OK);
    assert_eq!(answered(at("DELETE", "").json(&info("larry"))).await.0, CONFLICT);
    assert_eq!(answered(at("DELETE", "").json(&info("moe"))).await.0, OK);
    assert_eq!(answered(at("LOCK", "").json(&info("larry"))).await.0, OK);
    assert_eq!(answered(at("DELETE", "").body(" null\n")).await.0, OK, "force-unlock");
    assert_eq!(backend.write("larry", "2").await, CONFLICT);
    assert_eq!(answered(at("GET", "")).await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn request_is_refused_when_it_is_not_as_terraform_sends_it() {
    let backend = Backend::start(&[]).await;
    assert_eq!(backend.lock("moe").await.0, OK);
    let post = |body: Vec<u8>| backend.request("POST", "&ID=moe").body(body);
    let large = 8 * 1024 * 1024;
    let damaged = post(b"1".to_vec()).header("Content-MD5", "xMpCOKC5I4INzFCab3WEmx==");
    let twice = post(b"1".to_vec())
        .header("Content-MD5", "xMpCOKC5I4INzFCab3WEmw==")
        .header("Content-MD5", "xMpCOKC5I4INzFCab3WEmx==");
    let get = |query: &str| backend.serve.http.get(format!("{}/v1/terraform{query}", backend.serve.base_url));
    for (request, status) in [
        (damaged, 400),
        (twice, 400),
        (post(Vec::new()), 400),
        (post(vec![b' '; large + 1]), 413),
        (backend.request("LOCK", ""), 400),
        (backend.request("LOCK", "").body("{"), 400),
        (backend.request("LOCK", "").body("{}"), 400),
        (backend.request("UNLOCK", "").body("moe"), 400),
        (backend.request("PUT", "&ID=moe").body("1"), 405),
        (backend.request("PATCH", "&ID=moe").body("1"), 405),
        (get(""), 400),
        (get("?state="), 400),
        (get("?state=../network"), 400),
        (get("?state=..%2Fnetwork"), 400),
        (get("?state=a%00"), 400),
        (get("?state=other"), 404),
    ] {
        let (found, problem) = answered(request).await;
        assert_eq!(found.as_u16(), status, "{problem}");
    }
    assert_eq!(backend.state().await, None);
    assert_eq!(answered(get("?state=other")).await.1["title"], "There is no such state");
    let lower = backend.request("POST", "&id=moe").body("0");
    assert_eq!(answered(lower).await.0, OK);
    let whole = post(b"1".to_vec()).header("Content-MD5", "xMpCOKC5I4INzFCab3WEmw==");
    assert_eq!(answered(whole).await.0, OK);
    assert_eq!(answered(post(vec![b' '; large])).await.0, OK);
    assert_eq!(backend.state().await.map(|state| state.len()), Some(large));
    assert_eq!(std::fs::read(backend.file("network.tfstate.backup")).expect("the version before"), b"1");
}

#[tokio::test]
async fn state_is_deleted_under_its_lock() {
    let backend = Backend::start(&[]).await;
    let delete = |query: &str| answered(backend.request("DELETE", query));
    assert_eq!(delete("").await.0, OK, "there is none");
    assert_eq!(backend.lock("moe").await.0, OK);
    assert_eq!(backend.write("moe", "1").await, OK);
    assert_eq!(delete("").await.0, LOCKED);
    assert_eq!(delete("&ID=larry").await.0, CONFLICT);
    assert_eq!(backend.state().await.as_deref(), Some("1"));
    assert_eq!(delete("&ID=moe").await.0, OK);
    assert_eq!(backend.state().await, None);
    assert_eq!(backend.write("moe", "2").await, OK);
    assert_eq!(backend.unlock("moe").await, OK);
    assert_eq!(delete("").await.0, OK);
    assert_eq!(backend.state().await, None);
    assert_eq!(backend.serve.get(KEY).await["state"], "released");
}

#[tokio::test]
async fn states_ask_for_the_scope_of_their_keys() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let made = async |name: &str, prefix: &str| {
        let mut add = leasehold(folder.path());
        add.args(["token", name, "--file", text_of(&file), "--prefix", prefix]);
        end(add).await.stdout.trim().to_owned()
    };
    let (own, other) = (made("own", "terraform/net").await, made("other", "orders/").await);
    let backend = Backend::start(&["--token-file", text_of(&file)]).await;
    let all = || {
        let state = ["GET", "POST", "DELETE", "LOCK", "UNLOCK"].map(|method| backend.request(method, "&ID=moe"));
        let lock = ["PUT", "DELETE"].map(|method| backend.at("/v1/terraform-lock", method, ""));
        state.into_iter().chain(lock).map(|request| request.json(&info("moe")))
    };
    for request in all() {
        assert_eq!(answered(request).await.0, StatusCode::UNAUTHORIZED);
    }
    for request in all() {
        assert_eq!(answered(request.basic_auth("moe", Some("a guess"))).await.0, StatusCode::UNAUTHORIZED);
    }
    for request in all() {
        assert_eq!(answered(request.basic_auth("moe", Some(&other))).await.0, StatusCode::FORBIDDEN);
    }
    assert_eq!(answered(backend.request("LOCK", "").json(&info("moe")).basic_auth("moe", Some(&own))).await.0, OK);
    let forced = backend.request("UNLOCK", "").basic_auth("larry", Some(&other));
    assert_eq!(answered(forced).await.0, StatusCode::FORBIDDEN);
    assert_eq!(answered(backend.request("POST", "&ID=moe").bearer_auth(&own).body("1")).await.0, OK);
    // A password is a token here only.
    let elsewhere = backend.serve.http.get(format!("{}/v1/lock?key={KEY}", backend.serve.base_url));
    assert_eq!(answered(elsewhere.basic_auth("moe", Some(&own))).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn run_that_lost_its_lock_can_neither_read_nor_write() {
    let backend = Backend::start(&[]).await;
    backend.run_acquires("first", 20_000).await;
    let by = |run: &str, method: &str| backend.request(method, "&ID=any").basic_auth(format!("lease-{run}"), Some(""));
    assert_eq!(answered(by("first", "LOCK").json(&info("any"))).await.0, OK);
    assert_eq!(answered(by("first", "POST").body("1")).await.0, OK);
    assert_eq!(answered(by("first", "UNLOCK").json(&info("any"))).await.0, OK);
    assert_eq!(backend.serve.get(KEY).await["state"], "held", "the run releases it at its end");
    assert_eq!(answered(by("first", "UNLOCK")).await.0, CONFLICT, "force-unlock of its own lock");
    assert_eq!(answered(backend.request("UNLOCK", "")).await.0, OK);
    backend.run_acquires("second", 20_000).await;
    for method in ["GET", "POST", "DELETE", "LOCK"] {
        assert_eq!(answered(by("first", method).json(&info("any"))).await.0, CONFLICT, "{method}");
    }
    assert_eq!(answered(by("second", "GET")).await, (OK, json!(1)));
    assert_eq!(answered(by("second", "POST").body("2")).await.0, OK);
    assert_eq!(backend.state().await.as_deref(), Some("2"));
}

#[tokio::test]
async fn lock_of_a_dead_run_comes_free_by_itself() {
    let backend = Backend::start(&[]).await;
    backend.run_acquires("dead", 500).await;
    // Whoever is refused has the service look after the holder.
    assert_eq!(backend.lock("moe").await.0, LOCKED);
    backend.serve.until(KEY, |lock| lock["state"] == "released").await;
    assert_eq!(backend.lock("moe").await.0, OK);
    let late = backend.request("POST", "").basic_auth("lease-dead", Some("")).body("1");
    assert_eq!(answered(late).await.0, CONFLICT);
    // Nobody judges a holder that sends no heartbeats.
    assert_eq!(backend.serve.get(KEY).await["leaseDurationMs"], 86_400_000);
}

#[tokio::test]
async fn folder_of_states_serves_one_process() {
    let backend = Backend::start(&[]).await;
    let states = backend.folder.path().join("states");
    let args = ["--listen", "127.0.0.1:0", "--memory", "--terraform-state", text_of(&states)];
    let ended = end(command(backend.folder.path(), &args)).await;
    assert_eq!(ended.status, 1);
    assert!(ended.stderr.contains("another process serves the Terraform states"), "{}", ended.stderr);
}

#[tokio::test]
async fn command_line_is_refused_when_terraform_could_not_use_it() {
    let serve = Serve::memory().await;
    for (args, message) in [
        (&["--state", "a/b"][..], "--state must be 1 to 128"),
        (&["--state", "network", "--lease", "1d"], "--lease must be shorter than a day"),
        (&["--state", "network", "--url", "http://a.example,http://b.example"], "in one region: name one URL"),
        // This service has no states.
        (&["--state", "network"], "has no states: start the service with `leasehold serve --terraform-state DIR`"),
    ] {
        let ended = serve.run(&[&["terraform"], args, &["--", "true"]].concat()).await;
        assert_eq!(ended.status, 2, "{ended:?}");
        assert!(ended.stderr.contains(message), "{ended:?}");
    }
    assert!(
        serve.http.get(format!("{}/v1/lock?key={KEY}", serve.base_url)).send().await.expect("an answer").status()
            == 404
    );
    // A service with states, under another path than the one that is named.
    let backend = Backend::start(&[]).await;
    let url = format!("{}/foo", backend.serve.base_url);
    let ended = serve.run(&["terraform", "--url", &url, "--state", "network", "--", "true"]).await;
    assert!(ended.status == 2 && ended.stderr.contains("/foo has no states"), "{ended:?}");
}

/// An API that IAM protects, with states behind tokens or without: as API Gateway answers.
async fn protected_api(token: Option<&'static str>) -> String {
    use axum::response::IntoResponse;

    let signed = |headers: &axum::http::HeaderMap| {
        headers.get("authorization").is_some_and(|value| value.as_bytes().starts_with(b"AWS4-HMAC-SHA256"))
    };
    let refused = || {
        (StatusCode::FORBIDDEN, [("content-type", "application/json")], r#"{"message":"Forbidden"}"#).into_response()
    };
    let problem = |status: u16, detail: &str| {
        let body = json!({ "type": "forbidden", "status": status, "detail": detail }).to_string();
        let status = StatusCode::from_u16(status).expect("a status");
        (status, [("content-type", "application/problem+json")], body).into_response()
    };
    let states = move |headers: axum::http::HeaderMap| async move {
        let Some(token) = token else {
            return if signed(&headers) { problem(405, "method") } else { refused() };
        };
        let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("leasehold:{token}")));
        let is_known =
            |value: &axum::http::HeaderValue| [basic, format!("Bearer {token}")].iter().any(|known| value == known);
        if headers.get("authorization").is_some_and(is_known) {
            problem(405, "method")
        } else {
            problem(401, "unknown")
        }
    };
    let locks = move |headers: axum::http::HeaderMap| async move {
        if signed(&headers) { problem(403, "out of scope") } else { refused() }
    };
    let app =
        axum::Router::new().route("/v1/terraform-lock", axum::routing::any(states)).fallback(axum::routing::any(locks));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

#[tokio::test]
async fn refusal_of_a_protected_api_says_what_terraform_needs() {
    let folder = folder();
    let ended = async |url: &str, options: &[&str], password: Option<&str>| {
        let args = [&["terraform", "--url", url, "--state", "network"], options, &["--", "true"]].concat();
        let mut command = leasehold(folder.path());
        command
            .args(args)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_REGION", "eu-west-1");
        password.map(|password| command.env("TF_HTTP_PASSWORD", password));
        end(command).await
    };
    let hint = "asks for a signature: add --sigv4";
    let closed = protected_api(None).await;
    let with_tokens = protected_api(Some("known")).await;
    for (url, options, password, expected) in [
        (&closed, &[][..], None, hint),
        (&closed, &["--token", "known"], None, hint),
        (&closed, &["--sigv4"], Some("known"), "unset TF_HTTP_PASSWORD"),
        (&closed, &["--sigv4"], None, "out of scope"),
        // The states would be reached, and the lock is refused.
        (&with_tokens, &["--token", "known"], None, hint),
        (&with_tokens, &[], Some("known"), hint),
        (
            &with_tokens,
            &["--sigv4"],
            None,
            "ask for a token: put one of the stack's TerraformTokens into TF_HTTP_PASSWORD",
        ),
        (&with_tokens, &["--sigv4"], Some("mistyped"), "does not know the token in TF_HTTP_PASSWORD"),
        (&with_tokens, &["--sigv4"], Some("known"), "out of scope"),
    ] {
        let refused = ended(url, options, password).await;
        assert_eq!(refused.status, 77, "{refused:?}");
        assert!(refused.stderr.contains(expected), "{options:?}: {refused:?}");
    }
    // A token of `serve` lacks a scope, and no signature.
    let mut add = leasehold(folder.path());
    let file = folder.path().join("tokens.json");
    add.args(["token", "other", "--file", text_of(&file), "--prefix", "orders/"]);
    let token = end(add).await.stdout.trim().to_owned();
    let backend = Backend::start(&["--token-file", text_of(&file)]).await;
    let refused = ended(&backend.serve.base_url, &["--token", &token], None).await;
    assert_eq!(refused.status, 77, "{refused:?}");
    assert!(!refused.stderr.contains("sign"), "{refused:?}");
}

#[tokio::test]
async fn folder_of_states_is_the_operators_choice() {
    use std::os::unix::fs::PermissionsExt;

    let folder = folder();
    let states = folder.path().join("mistyped/states");
    let ended = in_folder(folder.path(), &["serve", "--memory", "--terraform-state", text_of(&states)]).await;
    assert!(ended.status != 0 && ended.stderr.contains("make that first"), "{ended:?}");
    assert!(!folder.path().join("mistyped").exists());
    let open = folder.path().join("open");
    std::fs::create_dir(&open).expect("made");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).expect("changed");
    std::fs::write(open.join("network.tfstate"), "0").expect("written");
    std::fs::set_permissions(open.join("network.tfstate"), std::fs::Permissions::from_mode(0o644)).expect("changed");
    let args = ["--memory", "--terraform-state", text_of(&open)];
    let backend = Backend { serve: Serve::start(&args).await, folder };
    assert_eq!(backend.lock("moe").await.0, OK);
    assert_eq!(backend.write("moe", "1").await, OK);
    let mode = std::fs::metadata(open.join("network.tfstate")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// States behind an address, for the real `terraform`.
struct Address {
    url: String,
    state: String,
    token: Option<String>,
    /// Whether it is a stack: its gateway does not know LOCK, and no process watches dead runs.
    is_stack: bool,
    http: reqwest::Client,
}

impl Address {
    fn of(backend: &Backend) -> Self {
        let (url, http) = (backend.serve.base_url.clone(), backend.serve.http.clone());
        Self { url, state: "network".to_owned(), token: None, is_stack: false, http }
    }

    /// The states of a stack, as the environment says.
    fn of_stack(state: &str) -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        Self {
            url: variable("LEASEHOLD_TEST_TERRAFORM_URL"),
            state: state.to_owned(),
            token: Some(variable("LEASEHOLD_TEST_TERRAFORM_TOKEN")),
            is_stack: true,
            http: http_client(),
        }
    }

    async fn asked(&self, path: &str) -> Value {
        let request = self.http.get(format!("{}{path}", self.url));
        let (status, answer) = answered(request.basic_auth("test", self.token.as_ref())).await;
        assert_eq!(status, OK, "{answer}");
        answer
    }

    async fn lock(&self) -> Value {
        self.asked(&format!("/v1/lock?key=terraform/{}", self.state)).await
    }

    /// The name that the last apply gave.
    async fn applied(&self) -> String {
        let state = self.asked(&format!("/v1/terraform?state={}", self.state)).await;
        state["resources"][0]["instances"][0]["attributes"]["output"]["value"].as_str().unwrap_or_default().to_owned()
    }
}

/// A folder with a configuration whose apply waits, and the real `terraform` in it.
struct Configuration<'a> {
    address: &'a Address,
    folder: TempDir,
}

/// The longest wait for `terraform`, which has other work beside it here.
const LONG: Duration = Duration::from_mins(2);

/// An apply writes its process id, and then waits for a file.
const MAIN: &str = r#"
terraform {
  backend "http" {}
}

variable "name" {
  type = string
}

resource "terraform_data" "it" {
  input = var.name

  provisioner "local-exec" {
    command = "echo $PPID > started.new && mv started.new started; while ! test -e go; do sleep 0.05; done"
  }
}
"#;

/// Whether there is a `terraform`. Without one, says so.
fn has_terraform() -> bool {
    let found = std::process::Command::new("terraform").arg("version").stdout(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED: no terraform in the path");
    }
    found
}

fn apply(name: &str) -> [String; 5] {
    ["apply", "-no-color", "-auto-approve", "-var", &format!("name={name}")].map(ToOwned::to_owned)
}

impl<'a> Configuration<'a> {
    async fn of(address: &'a Address) -> Self {
        let folder = folder();
        std::fs::write(folder.path().join("main.tf"), MAIN).expect("written");
        let configuration = Self { address, folder };
        let (status, said) = Self::ended(configuration.plain(&["init"])).await;
        assert_eq!(status, Some(0), "{said}");
        configuration
    }

    /// A program in the folder, without the shell's settings.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("CHECKPOINT_DISABLE", "1");
        command.env("LEASEHOLD_URL", &self.address.url).env("TF_HTTP_USERNAME", "test");
        command.env("TF_HTTP_PASSWORD", self.address.token.as_deref().unwrap_or_default());
        command.current_dir(self.folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Plain `terraform` with addresses in its environment.
    fn plain(&self, args: &[&str]) -> Command {
        let mut command = self.command("terraform");
        let Address { url, state, is_stack, .. } = self.address;
        let lock = if *is_stack { "/v1/terraform-lock" } else { "/v1/terraform" };
        command.env("TF_HTTP_ADDRESS", format!("{url}/v1/terraform?state={state}"));
        for (name, method) in [("LOCK", "PUT"), ("UNLOCK", "DELETE")] {
            command.env(format!("TF_HTTP_{name}_ADDRESS"), format!("{url}{lock}?state={state}"));
            if *is_stack {
                command.env(format!("TF_HTTP_{name}_METHOD"), method);
            }
        }
        command.args(args);
        command
    }

    /// `terraform` under `leasehold terraform`.
    fn under(&self, options: &[&str], args: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_leasehold"));
        command.args(["terraform", "--state", &self.address.state]).args(options);
        command.args(["--", "terraform"]).args(args);
        command
    }

    fn run(&self, options: &[&str], name: &str) -> Command {
        self.under(options, &apply(name).each_ref().map(String::as_str))
    }

    fn apply(&self, name: &str) -> Command {
        self.plain(&apply(name).each_ref().map(String::as_str))
    }

    fn spawn(mut command: Command) -> Child {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    async fn ended(command: Command) -> (Option<i32>, String) {
        Self::finished(Self::spawn(command)).await
    }

    async fn finished(child: Child) -> (Option<i32>, String) {
        let output = timeout(LONG, child.wait_with_output()).await.expect("it ends").expect("its output");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).expect("text"))
    }

    /// Waits until the apply is at its work. Returns the process id of `terraform`.
    async fn started(&self) -> i64 {
        let started = self.folder.path().join("started");
        timeout(LONG, async {
            while !started.exists() {
                pause(Duration::from_millis(20)).await;
            }
        })
        .await
        .expect("it starts");
        first_line(&started).await.parse().expect("a process id")
    }

    /// Lets the apply end.
    fn go(&self) {
        std::fs::write(self.folder.path().join("go"), "").expect("written");
    }
}

#[tokio::test]
async fn terraform_is_refused_when_two_applies_start_at_once() {
    if has_terraform() {
        two_applies(&Address::of(&Backend::start(&[]).await)).await;
    }
}

async fn two_applies(address: &Address) {
    let (first, second) = (Configuration::of(address).await, Configuration::of(address).await);
    second.go();
    let applies = Configuration::spawn(first.apply("first"));
    first.started().await;
    let (status, said) = Configuration::ended(second.apply("second")).await;
    let holder = address.lock().await["ownerName"].as_str().expect("a name").to_owned();
    assert_eq!(status, Some(1), "{said}");
    // Terraform wraps its lines.
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("already locked: ID={holder} (OperationTypeApply, ")), "{said}");
    first.go();
    let (status, said) = Configuration::finished(applies).await;
    assert_eq!((status, address.applied().await), (Some(0), "first".to_owned()), "{said}");
    let (status, said) = Configuration::ended(second.apply("second")).await;
    assert_eq!((status, address.applied().await), (Some(0), "second".to_owned()), "{said}");
    assert_eq!(address.lock().await["state"], "released");
}

#[tokio::test]
async fn lock_of_a_killed_terraform_holds_until_force_unlock() {
    if has_terraform() {
        killed_apply(&Address::of(&Backend::start(&[]).await)).await;
    }
}

async fn killed_apply(address: &Address) {
    let (first, second) = (Configuration::of(address).await, Configuration::of(address).await);
    second.go();
    let applies = Configuration::spawn(first.apply("first"));
    kill("KILL", first.started().await);
    Configuration::finished(applies).await;
    first.go();
    let (status, said) = Configuration::ended(second.apply("second")).await;
    assert_eq!(status, Some(1), "{said}");
    let (status, said) = Configuration::ended(second.plain(&["force-unlock", "-force", "any"])).await;
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = Configuration::ended(second.apply("second")).await;
    assert_eq!((status, address.applied().await), (Some(0), "second".to_owned()), "{said}");
}

#[tokio::test]
async fn late_write_of_terraform_is_refused_after_force_unlock() {
    if has_terraform() {
        late_write(&Address::of(&Backend::start(&[]).await)).await;
    }
}

async fn late_write(address: &Address) {
    let (first, second) = (Configuration::of(address).await, Configuration::of(address).await);
    second.go();
    let applies = Configuration::spawn(first.apply("first"));
    first.started().await;
    // The operator takes a slow apply for a dead one.
    let (status, said) = Configuration::ended(second.plain(&["force-unlock", "-force", "any"])).await;
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = Configuration::ended(second.apply("second")).await;
    assert_eq!((status, address.applied().await), (Some(0), "second".to_owned()), "{said}");
    first.go();
    let (status, said) = Configuration::finished(applies).await;
    assert_eq!((status, address.applied().await), (Some(1), "second".to_owned()), "{said}");
    assert!(said.contains("409"), "{said}");
    assert!(first.folder.path().join("errored.tfstate").exists(), "Terraform keeps what it could not write");
}

#[tokio::test]
async fn lock_comes_free_by_itself_when_leasehold_terraform_is_killed() {
    if has_terraform() {
        killed_run(&Address::of(&Backend::start(&[]).await)).await;
    }
}

async fn killed_run(address: &Address) {
    let (first, second) = (Configuration::of(address).await, Configuration::of(address).await);
    second.go();
    let mut run = Configuration::spawn(first.run(&["--lease", "8s"], "first"));
    let terraform = first.started().await;
    let (status, said) = Configuration::ended(second.apply("second")).await;
    assert_eq!(status, Some(1), "{said}");
    timeout(LONG, run.kill()).await.expect("it ends").expect("it ran");
    // A stack takes the lock over by its clocks, when somebody asks for it.
    let mut waits = second.apply("second");
    waits.arg("-lock-timeout=90s");
    let (status, said) = Configuration::ended(waits).await;
    assert!(!crate::support::runs(terraform), "its guardian has ended it");
    assert_eq!((status, address.applied().await), (Some(0), "second".to_owned()), "{said}");
}

#[tokio::test]
async fn leasehold_terraform_keeps_its_lock_while_it_runs() {
    if has_terraform() {
        long_run(&Address::of(&Backend::start(&[]).await)).await;
    }
}

async fn long_run(address: &Address) {
    let (first, second) = (Configuration::of(address).await, Configuration::of(address).await);
    second.go();
    let run = Configuration::spawn(first.run(&["--lease", "4s", "--owner", "nightly"], "first"));
    first.started().await;
    // Longer than the lease: heartbeats keep the lock.
    pause(Duration::from_secs(5)).await;
    let (status, said) = Configuration::ended(second.apply("second")).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("already locked: ID=nightly"), "{said}");
    first.go();
    let (status, said) = Configuration::finished(run).await;
    assert_eq!((status, address.applied().await), (Some(0), "first".to_owned()), "{said}");
    assert_eq!(address.lock().await["state"], "released");
}

#[tokio::test]
async fn leasehold_terraform_ends_its_command_when_the_lock_is_lost() {
    if has_terraform() {
        lost_run(&Address::of(&Backend::start(&[]).await)).await;
    }
}

async fn lost_run(address: &Address) {
    let (first, second) = (Configuration::of(address).await, Configuration::of(address).await);
    second.go();
    let run = Configuration::spawn(first.run(&["--lease", "8s"], "first"));
    let terraform = first.started().await;
    let (status, said) = Configuration::ended(second.plain(&["force-unlock", "-force", "any"])).await;
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = Configuration::finished(run).await;
    assert_eq!((status, crate::support::runs(terraform)), (Some(76), false), "{said}");
    let (status, said) = Configuration::ended(second.apply("second")).await;
    assert_eq!((status, address.applied().await), (Some(0), "second".to_owned()), "{said}");
}

/// `LEASEHOLD_TEST_TERRAFORM_URL` is the address of a stack with `TerraformStates`, whose other routes are open, and
/// `LEASEHOLD_TEST_TERRAFORM_TOKEN` one of its tokens.
#[tokio::test]
#[ignore = "it asks for a stack: scripts/ministack.sh"]
async fn terraform_finds_a_stack_as_fenced_as_serve() {
    if !has_terraform() {
        return;
    }
    two_applies(&Address::of_stack("two-applies")).await;
    killed_apply(&Address::of_stack("killed-apply")).await;
    late_write(&Address::of_stack("late-write")).await;
    killed_run(&Address::of_stack("killed-run")).await;
    long_run(&Address::of_stack("long-run")).await;
    lost_run(&Address::of_stack("lost-run")).await;
}

#[tokio::test]
async fn health_notices_a_folder_that_is_gone() {
    let backend = Backend::start(&[]).await;
    let (folder, aside) = (backend.file(""), backend.folder.path().join("aside"));
    let health = async || {
        let answers = ["/v1/health", "/v1/ready"].map(|path| backend.at(path, "GET", "").send());
        let [health, ready] = answers;
        [health.await.expect("an answer").status().as_u16(), ready.await.expect("an answer").status().as_u16()]
    };
    assert_eq!(health().await, [200, 200]);
    std::fs::rename(&folder, &aside).expect("moved");
    assert_eq!(health().await, [503, 503]);
    std::fs::create_dir(&folder).expect("made");
    assert_eq!(health().await, [503, 503], "another folder");
    std::fs::remove_dir(&folder).expect("removed");
    std::fs::rename(&aside, &folder).expect("moved");
    assert_eq!(health().await, [200, 200]);
    assert_eq!(std::fs::read_dir(&folder).expect("readable").count(), 0, "a probe leaves nothing");
}
