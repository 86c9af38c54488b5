//! Several services on one DynamoDB, of which one is killed: commands and agents that have the URLs of both.

use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::{Serve, command, end, exposed_url, finish, first_line, folder, leasehold, pause, text_of, within};

/// Two services on the DynamoDB of a third one.
struct Regions {
    _store: Serve,
    first: Serve,
    second: Serve,
}

impl Regions {
    async fn start(folder: &Path) -> Self {
        let store = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
        let endpoint = exposed_url(&store);
        let serve = async || {
            let args = ["--dynamodb-endpoint", endpoint.as_str(), "--listen", "127.0.0.1:0"];
            let mut serve = command(folder, &args);
            serve.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "any").env("AWS_REGION", "eu-central-1");
            Serve::spawn(serve).await
        };
        let (first, second) = (serve().await, serve().await);
        Self { _store: store, first, second }
    }

    fn urls(&self) -> String {
        format!("{},{}", self.first.base_url, self.second.base_url)
    }
}

/// An address at which nobody listens.
fn nowhere() -> String {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    format!("http://{}", listener.local_addr().expect("bound"))
}

#[tokio::test]
async fn run_keeps_its_lock_when_its_service_is_killed() {
    let folder = folder();
    let regions = Regions::start(folder.path()).await;
    let started = folder.path().join("started");
    let script = format!("echo $LEASEHOLD_URL $LEASEHOLD_FENCING_TOKEN >{}; sleep 8", text_of(&started));
    let urls = ["--url", &regions.first.base_url, "--url", &regions.second.base_url];
    let mut run = leasehold(folder.path());
    run.args(["run", "Moe", "--lease", "8s"]).args(urls).args(["--", "sh", "-c", &script]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is built");
    let line = first_line(&started).await;
    let (urls, token) = line.split_once(' ').expect("two words");
    assert_eq!(urls, regions.urls(), "the command's own commands find both");
    let Regions { _store, first, second } = regions;
    first.kill_9().await;
    let ended = finish(run).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let lock = second.get("Moe").await;
    assert_eq!(
        (lock["state"].as_str(), lock["fencingToken"].to_string().as_str()),
        (Some("released"), token),
        "{lock}"
    );
}

#[tokio::test]
async fn agent_keeps_its_lock_when_its_service_is_killed() {
    let folder = folder();
    let regions = Regions::start(folder.path()).await;
    let mut agent = leasehold(folder.path());
    agent.args(["agent", "--listen", "127.0.0.1:0"]).env("LEASEHOLD_URL", regions.urls());
    let mut agent = agent.stdout(Stdio::piped()).spawn().expect("the binary is built");
    let mut lines = BufReader::new(agent.stdout.take().expect("piped")).lines();
    let line = within(lines.next_line()).await.expect("text").expect("it starts");
    let url = line.strip_prefix("leasehold-agent listens on ").expect("the address").to_owned();
    let http = regions.first.http.clone();
    let post = async |path: &str, body: Value| {
        let answer = within(http.post(format!("{url}{path}")).json(&body).send()).await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let (status, granted) = post("/acquire", json!({ "key": "Moe", "leaseDurationMs": 4000 })).await;
    assert_eq!(status, 200, "{granted}");
    let Regions { _store, first, second } = regions;
    first.kill_9().await;
    pause(Duration::from_secs(6)).await;
    let lock = second.get("Moe").await;
    assert_eq!((&lock["state"], &lock["fencingToken"]), (&json!("held"), &granted["fencingToken"]), "{lock}");
    let (status, released) = post("/release", json!({ "handle": granted["handle"] })).await;
    assert_eq!(status, 200, "{released}");
    assert_eq!(second.get("Moe").await["state"], "released");
}

#[tokio::test]
async fn commands_pass_a_service_that_is_dead() {
    let serve = Serve::memory().await;
    let urls = format!("{}, {}", nowhere(), serve.base_url);
    let mut acquire = leasehold(&std::env::temp_dir());
    acquire.args(["acquire", "Moe", "--lease", "10m", "--json"]).env("LEASEHOLD_URL", &urls);
    let token = end(acquire).await.json()["fencingToken"].clone();
    let mut get = leasehold(&std::env::temp_dir());
    get.args(["get", "Moe", "--json", "--url", &urls]);
    assert_eq!(end(get).await.json()["fencingToken"], token);
}

#[tokio::test]
async fn error_names_the_services_that_were_tried() {
    let (first, second) = (nowhere(), nowhere());
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--url", &first, "--url", &second]);
    let ended = end(command).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (69, ""), "{ended:?}");
    let told = |url: &str| ended.stderr.contains(&format!("{url}: Connection refused"));
    assert!(told(&first) && told(&second), "{ended:?}");
}

#[tokio::test]
async fn each_service_has_a_signature_for_its_region() {
    let bind = async || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("bound"));
    for (regions, expected) in
        [("eu-central-1,eu-west-1", ["eu-central-1", "eu-west-1"]), ("eu-west-1", ["eu-west-1", "eu-west-1"])]
    {
        let (first, second) = (bind().await, bind().await);
        let mut command = signed(&["--url", &url(&first), "--url", &url(&second), "--region", regions]);
        let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is built");
        let lock = json!({
            "key": "Moe", "state": "held", "ownerName": "me", "recordVersionNumber": "1", "leaseDurationMs": 20000
        });
        let heads = [answer(&first, "502 Bad Gateway", "no").await, answer(&second, "200 OK", &lock.to_string()).await];
        finish(running).await.ok();
        for (head, region) in heads.iter().zip(expected) {
            assert!(head.contains(&format!("/{region}/execute-api/aws4_request")), "{regions}: {head}");
        }
    }
    let ended = end(signed(&["--url", "http://127.0.0.1:1", "--region", "eu-west-1,eu-central-1"])).await;
    let told = "leasehold: --region names one region for all URLs, or one for each\n";
    assert_eq!((ended.status, ended.stderr.as_str()), (2, told));
}

fn signed(args: &[&str]) -> Command {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--sigv4"]).args(args);
    command.env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s3cret");
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    command
}

/// Answers one request, and returns its head in lower case.
async fn answer(listener: &TcpListener, status: &str, body: &str) -> String {
    let (mut stream, _) = within(listener.accept()).await.expect("a connection");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.expect("a request"));
    }
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).await.expect("sent");
    String::from_utf8(head).expect("text").to_lowercase()
}

#[tokio::test]
async fn terraform_wants_one_service() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["terraform", "--state", "network", "--url", "http://127.0.0.1:1,http://127.0.0.1:2", "--", "true"]);
    let ended = end(command).await;
    assert_eq!(ended.status, 2, "{ended:?}");
    assert!(ended.stderr.contains("a state is kept by one service"), "{ended:?}");
}
