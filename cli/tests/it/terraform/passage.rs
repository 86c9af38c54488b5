//! `leasehold terraform` stands between Terraform and the service: what comes through, who may, and what a silent
//! service, a lost lock and a killed keeper leave of a state.

use std::collections::HashMap;

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::IntoResponse;

use super::*;

/// `leasehold terraform` with a command that writes its environment down and waits.
struct Waiting {
    run: Child,
    folder: TempDir,
    environment: HashMap<String, String>,
}

impl Waiting {
    async fn start(url: &str, options: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = folder();
        let mut command = leasehold(folder.path());
        command.args(["terraform", "--url", url, "--state", "network"]).args(options);
        command.args(["--", "sh", "-c", "env > new; mv new env; while ! test -e go; do sleep 0.05; done"]);
        command.envs(variables.iter().copied());
        let run = Configuration::spawn(command);
        let file = folder.path().join("env");
        timeout(LONG, async {
            while !file.exists() {
                pause(Duration::from_millis(20)).await;
            }
        })
        .await
        .expect("it starts");
        let text = std::fs::read_to_string(file).expect("text");
        let environment = text.lines().filter_map(|line| line.split_once('='));
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { run, folder, environment }
    }

    fn address(&self, name: &str) -> &str {
        &self.environment[&format!("TF_HTTP_{name}ADDRESS")]
    }

    async fn asks(&self, method: &str, address: &str, body: impl Into<reqwest::Body>) -> (StatusCode, Value) {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        answered(http_client().request(method, address).body(body)).await
    }

    /// Lets the command end. Returns the status of the run, and its output.
    async fn ended(self) -> (Option<i32>, String) {
        std::fs::write(self.folder.path().join("go"), "").expect("written");
        Configuration::finished(self.run).await
    }
}

#[tokio::test]
async fn passage_is_for_its_own_run_and_state() {
    let backend = Backend::start(&[]).await;
    let waiting = Waiting::start(&backend.serve.base_url, &[], &[]).await;
    let address = waiting.address("");
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    assert!(!waiting.environment.contains_key("TF_HTTP_USERNAME"), "without a token there is nothing to send");
    let lease_id = backend.serve.get(KEY).await["leaseId"].clone();
    assert!(lease_id.is_null() && !waiting.environment.values().any(|value| value.contains("lease-")));
    assert_eq!(waiting.asks("GET", address, "").await.0, StatusCode::NOT_FOUND);
    let large = format!("\"{}\"", " ".repeat(8 * 1024 * 1024 - 2));
    assert_eq!(waiting.asks("POST", address, large.clone()).await.0, OK);
    assert_eq!(waiting.asks("GET", address, "").await, (OK, serde_json::from_str(&large).expect("JSON")));
    assert_eq!(waiting.asks("POST", address, large + " ").await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let damaged = http_client().post(address).header("Content-MD5", "xMpCOKC5I4INzFCab3WEmx==").body("1");
    assert_eq!(answered(damaged).await.0, StatusCode::BAD_REQUEST, "the checksum comes along");
    let lock = waiting.address("LOCK_");
    assert_eq!(waiting.asks("PUT", lock, info("any").to_string()).await.0, OK);
    assert_eq!(waiting.asks("DELETE", waiting.address("UNLOCK_"), info("any").to_string()).await.0, OK);
    assert_eq!(backend.serve.get(KEY).await["state"], "held");
    // Others on this machine know the port, and not the secret.
    let secret = address.split('/').nth(3).expect("a secret");
    for other in ["", "leasehold_", &secret[..secret.len() - 1], &format!("{secret}0")] {
        for address in [address, lock] {
            let (status, problem) = waiting.asks("GET", &address.replace(secret, other), "").await;
            assert_eq!((status, &problem["type"]), (StatusCode::NOT_FOUND, &json!("unknown-route")));
        }
    }
    for other in ["state=networks", "state=other", "", "other=network"] {
        let address = address.replace("state=network", other);
        assert_eq!(waiting.asks("GET", &address, "").await.0, StatusCode::BAD_REQUEST, "{other}");
    }
    let (status, said) = waiting.ended().await;
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(backend.serve.get(KEY).await["state"], "released");
}

/// A run whose command outlives its request to end for a while, as Terraform does. Returns the address of the passage.
async fn stubborn_run(backend: &Backend, options: &[&str]) -> (Child, String) {
    let mut command = leasehold(backend.folder.path());
    let script = "trap : TERM; echo $TF_HTTP_ADDRESS > new; mv new address; while :; do sleep 0.05; done";
    command.args(["terraform", "--url", &backend.serve.base_url, "--state", "network"]).args(options);
    command.args(["--", "sh", "-c", script]);
    let run = Configuration::spawn(command);
    (run, first_line(&backend.folder.path().join("address")).await)
}

#[tokio::test]
async fn passage_asks_nothing_more_when_the_lock_was_broken() {
    let backend = Backend::start(&[]).await;
    let (run, address) = stubborn_run(&backend, &["--heartbeat", "100ms", "--grace", "5s"]).await;
    assert_eq!(answered(backend.request("UNLOCK", "")).await.0, OK);
    // The service refuses, and soon the passage by itself.
    loop {
        let (status, problem) = answered(http_client().post(&address).body("1")).await;
        assert_eq!(status, CONFLICT, "{problem}");
        if problem["detail"].as_str().is_some_and(|detail| detail.contains("nothing was asked of the service")) {
            break;
        }
        pause(Duration::from_millis(20)).await;
    }
    let (status, said) = Configuration::finished(run).await;
    assert_eq!(status, Some(76), "{said}");
}

#[tokio::test]
async fn passage_refuses_at_once_when_the_lock_is_lost() {
    let backend = Backend::start(&[]).await;
    let (run, address) = stubborn_run(&backend, &["--lease", "8s", "--grace", "2s"]).await;
    backend.serve.signal("STOP");
    // This request is at the silent service when the lock is lost.
    let (status, problem) = answered(http_client().post(&address).body("1")).await;
    assert_eq!((status, &problem["type"]), (CONFLICT, &json!("lost")));
    let (status, _) = answered(http_client().post(&address).body("1")).await;
    assert_eq!(status, CONFLICT);
    let (status, said) = Configuration::finished(run).await;
    assert_eq!(status, Some(76), "{said}");
    backend.serve.signal("CONT");
}

#[tokio::test]
async fn states_are_reached_with_the_credentials_of_the_lock() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let mut add = leasehold(folder.path());
    add.args(["token", "own", "--file", text_of(&file), "--prefix", "terraform/network"]);
    let token = end(add).await.stdout.trim().to_owned();
    let backend = Backend::start(&["--token-file", text_of(&file)]).await;
    let url = &backend.serve.base_url;
    let by = [("TF_HTTP_PASSWORD", token.as_str()), ("TF_HTTP_USERNAME", "moe")];
    let (signed, with_tokens) = (signing_api(url, &token, false).await, signing_api(url, &token, true).await);
    let aws = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"), ("AWS_REGION", "eu-west-1")];
    for (number, (url, options, variables)) in [
        (url, &["--token", &token][..], vec![]),
        (url, &[], vec![("LEASEHOLD_TOKEN", token.as_str()), ("TF_HTTP_USERNAME", "larry")]),
        (&signed, &["--sigv4"], aws.to_vec()),
        (&with_tokens, &["--sigv4"], [&aws[..], &by].concat()),
    ]
    .into_iter()
    .enumerate()
    {
        let waiting = Waiting::start(url, options, &variables).await;
        let (status, problem) = waiting.asks("POST", waiting.address(""), number.to_string()).await;
        assert_eq!(status, OK, "{number}: {problem}");
        assert_eq!(waiting.asks("GET", waiting.address(""), "").await, (OK, json!(number)));
        // What the command asks of other addresses has the token, where there is one for that.
        let password = waiting.environment.get("TF_HTTP_PASSWORD");
        assert_eq!(password, (number != 2).then_some(&token), "{number}");
        let user = waiting.environment.get("TF_HTTP_USERNAME").map(String::as_str);
        assert_eq!(user, [Some("leasehold"), Some("larry"), None, Some("moe")][number]);
        assert!(!waiting.environment.contains_key("LEASEHOLD_TOKEN"));
        let (status, said) = waiting.ended().await;
        assert_eq!(status, Some(0), "{said}");
    }
}

/// A gateway that asks for signatures before a service that asks for this token. With `states_ask`, the paths of the
/// states ask for the token in place of a signature.
async fn signing_api(service: &str, token: &str, states_ask: bool) -> String {
    let (service, token, http) = (service.to_owned(), token.to_owned(), http_client());
    let pass_on = move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
        let mut request = http.request(method, format!("{service}{uri}")).body(body);
        let is_signed = headers.get("authorization").is_some_and(|it| it.as_bytes().starts_with(b"AWS4-HMAC-SHA256"));
        let is_open = states_ask && uri.path().starts_with("/v1/terraform");
        for (name, value) in &headers {
            if ["content-type", "leasehold-lease-id"].contains(&name.as_str()) || (is_open && name == "authorization") {
                request = request.header(name, value);
            }
        }
        if !is_open {
            request = request.bearer_auth(&token);
        }
        async move {
            if !is_open && !is_signed {
                return (StatusCode::FORBIDDEN, "{\"message\":\"Forbidden\"}").into_response();
            }
            let answer = request.send().await.expect("an answer");
            let status = answer.status();
            let kind = answer.headers().get("content-type").cloned().expect("a kind");
            (status, [("content-type", kind)], answer.bytes().await.expect("a body")).into_response()
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(pass_on)).await });
    url
}

/// A run whose apply is at its work, by the real `terraform`.
async fn at_work<'a>(address: &'a Address, options: &[&str]) -> (Configuration<'a>, Child, i64) {
    let configuration = Configuration::of(address).await;
    let run = Configuration::spawn(configuration.run(options, "first"));
    let terraform = configuration.started().await;
    (configuration, run, terraform)
}

#[tokio::test]
async fn terraform_keeps_its_state_when_the_service_is_silent() {
    if !has_terraform() {
        return;
    }
    let backend = Backend::start(&[]).await;
    let address = Address::of(&backend);
    // One is at its last save when the lock is lost, the other one at its work.
    for saves in [true, false] {
        let (first, run, terraform) = at_work(&address, &["--lease", "10s", "--grace", "5s"]).await;
        backend.serve.signal("STOP");
        if saves {
            first.go();
        }
        let (status, said) = Configuration::finished(run).await;
        backend.serve.signal("CONT");
        assert_eq!((status, crate::support::runs(terraform)), (Some(76), false), "{said}");
        let kept = std::fs::read_to_string(first.folder.path().join("errored.tfstate")).expect("a state");
        assert!(kept.contains("terraform_data") && !said.contains("SIGKILL"), "{said}");
        let (status, said) = Configuration::ended(first.plain(&["force-unlock", "-force", "any"])).await;
        assert_eq!(status, Some(0), "{said}");
    }
}

#[tokio::test]
async fn terraform_saves_its_state_when_its_keeper_is_killed() {
    if !has_terraform() {
        return;
    }
    let backend = Backend::start(&[]).await;
    let address = Address::of(&backend);
    for (how, is_believed) in [("KILL", true), ("STOP", false)] {
        let (first, mut run, terraform) = at_work(&address, &["--lease", "8s", "--grace", "4s"]).await;
        let keeper = i64::from(run.id().expect("it runs"));
        kill(how, keeper);
        timeout(LONG, async {
            while crate::support::runs(terraform) {
                pause(Duration::from_millis(50)).await;
            }
        })
        .await
        .expect("its guardian ends it");
        run.kill().await.expect("it ran");
        // A stopped keeper is noticed when its lock is believed in no more.
        let kept = std::fs::read_to_string(first.folder.path().join("errored.tfstate"));
        assert_eq!(kept.is_err(), is_believed, "{how}");
        let state = if is_believed {
            address.asked("/v1/terraform?state=network").await
        } else {
            serde_json::from_str(&kept.expect("read")).expect("JSON")
        };
        assert_eq!(state["resources"][0]["instances"][0]["status"], "tainted", "{how}: {state}");
        let (status, said) = Configuration::ended(first.plain(&["force-unlock", "-force", "any"])).await;
        assert_eq!(status, Some(0), "{said}");
    }
}

#[tokio::test]
async fn save_waits_for_a_service_that_starts_again() {
    if !has_terraform() {
        return;
    }
    let folder = folder();
    let start = async |listen: &str| {
        let args = ["--listen", listen, "--db", "locks.db", "--terraform-state", "states"];
        Serve::spawn(command(folder.path(), &args)).await
    };
    let serve = start("127.0.0.1:0").await;
    let listen = serve.address().to_string();
    let backend = Backend { serve, folder: crate::support::folder() };
    let address = Address::of(&backend);
    let (first, run, _) = at_work(&address, &[]).await;
    backend.serve.kill_9().await;
    first.go();
    pause(Duration::from_secs(3)).await;
    let _again = start(&listen).await;
    let (status, said) = Configuration::finished(run).await;
    assert_eq!((status, address.applied().await), (Some(0), "first".to_owned()), "{said}");
}

/// Reads the state `other` by an address of its own.
const READER: &str = r#"
terraform {
  backend "http" {}
}

data "terraform_remote_state" "other" {
  backend = "http"
  config  = { address = "ADDRESS" }
}

resource "terraform_data" "it" {
  input = data.terraform_remote_state.other.outputs.name
}
"#;

#[tokio::test]
async fn other_states_are_read_during_a_run() {
    if !has_terraform() {
        return;
    }
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let mut add = leasehold(folder.path());
    add.args(["token", "own", "--file", text_of(&file), "--prefix", "terraform/"]);
    let token = end(add).await.stdout.trim().to_owned();
    for token in [None, Some(token)] {
        let of_tokens = ["--token-file", text_of(&file)];
        let backend = Backend::start(if token.is_some() { &of_tokens } else { &[] }).await;
        let mut address = Address::of(&backend);
        address.token.clone_from(&token);
        let options = token.as_ref().map_or(vec![], |token| vec!["--token", token]);
        let reader = Configuration::of(&address).await;
        // Somebody holds the lock of the other one, whose state is there to be read.
        let other = format!("{}/v1/terraform?state=other", address.url);
        let state = json!({
            "version": 4, "terraform_version": "1.11.4", "serial": 1, "lineage": "any", "resources": [],
            "outputs": { "name": { "value": "of the other", "type": "string" } },
        });
        for (method, query, body) in [("LOCK", "", info("moe")), ("POST", "&ID=moe", state)] {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            let request = address.http.request(method, format!("{other}{query}")).json(&body);
            assert_eq!(answered(request.basic_auth("moe", token.as_ref())).await.0, OK);
        }
        std::fs::write(reader.folder.path().join("main.tf"), READER.replace("ADDRESS", &other)).expect("written");
        let (status, said) = Configuration::ended(reader.under(&options, &["apply", "-auto-approve"])).await;
        assert_eq!(status, Some(0), "{said}");
        let state = address.asked("/v1/terraform?state=network").await.to_string();
        assert!(state.contains("of the other"), "{state}");
    }
}

#[tokio::test]
async fn subcommands_of_terraform_work_during_a_run() {
    if !has_terraform() {
        return;
    }
    let backend = Backend::start(&[]).await;
    let address = Address::of(&backend);
    let configuration = Configuration::of(&address).await;
    configuration.go();
    std::fs::remove_dir_all(configuration.folder.path().join(".terraform")).expect("initialised");
    let under = async |args: &[&str]| Configuration::ended(configuration.under(&[], args)).await;
    for (args, expected) in [
        (&["init"][..], "Successfully configured"),
        (&["plan", "-var", "name=planned", "-out=plan"], "Saved the plan"),
        // Another run has another address, which no plan keeps.
        (&["apply", "plan"], "Apply complete"),
        (&["state", "pull"], "planned"),
        (&["state", "list"], "terraform_data.it"),
        (&["workspace", "list"], "default"),
    ] {
        let (status, said) = under(args).await;
        assert_eq!(status, Some(u8::from(args[0] == "workspace").into()), "{args:?}: {said}");
        assert!(said.contains(expected) || args[0] == "workspace", "{args:?}: {said}");
    }
    let (status, said) = under(&["force-unlock", "-force", "any"]).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("This run holds the lock by itself"), "{said}");
    for file in [".terraform/terraform.tfstate", "plan"] {
        let bytes = std::fs::read(configuration.folder.path().join(file)).expect("written");
        assert!(!String::from_utf8_lossy(&bytes).contains("leasehold_"), "{file} has the secret of the address");
    }
}
