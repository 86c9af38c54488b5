//! How the service is reached: with a bearer token, with a signature, or without any service.

use std::net::Ipv4Addr;
use std::process::Stdio;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::support::{Ended, Serve, end, exposed_url, finish, leasehold, within};

/// A server that has one lock and notes what it is asked.
struct Listener {
    listener: TcpListener,
    url: String,
}

impl Listener {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        Self { listener, url }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = leasehold(&std::env::temp_dir());
        command.args(args).args(["--url", &self.url]);
        command
    }

    /// Answers the one request of `command`: its head in lower case, and how the command ended.
    async fn answer(&self, mut command: Command, status: &str, body: &str) -> (String, Ended) {
        let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is built");
        let (mut stream, _) = within(self.listener.accept()).await.expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            within(stream.read_exact(&mut byte)).await.expect("a request");
            head.extend(byte);
        }
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.expect("sent");
        (String::from_utf8(head).expect("text").to_lowercase(), finish(process).await)
    }

    async fn get(&self, command: Command) -> (String, Ended) {
        let lock = json!({
            "key": "Moe", "state": "held", "ownerName": "me", "recordVersionNumber": "1", "leaseDurationMs": 20000
        });
        self.answer(command, "200 OK", &lock.to_string()).await
    }
}

#[tokio::test]
async fn a_bearer_token_comes_from_the_option_or_the_environment() {
    let listener = Listener::start().await;
    let (head, ended) = listener.get(listener.command(&["get", "Moe"])).await;
    assert!(head.starts_with("get /v1/lock?key=moe http/1.1\r\n") && !head.contains("authorization"), "{head}");
    assert!(ended.ok().contains("token     none: another client wrote it"));

    let (head, _) = listener.get(listener.command(&["get", "Moe", "--token", "abc"])).await;
    assert!(head.contains("\r\nauthorization: bearer abc\r\n"), "{head}");

    let mut command = listener.command(&["get", "Moe"]);
    command.env("LEASEHOLD_TOKEN", "def");
    let (head, _) = listener.get(command).await;
    assert!(head.contains("\r\nauthorization: bearer def\r\n"), "{head}");

    let mut command = listener.command(&["get", "Moe", "--token", "abc"]);
    command.env("LEASEHOLD_TOKEN", "def").env("LEASEHOLD_URL", "http://127.0.0.1:1");
    let (head, _) = listener.get(command).await;
    assert!(head.contains("\r\nauthorization: bearer abc\r\n"), "the command line comes first: {head}");

    let mut command = listener.command(&["get", "Moe"]);
    command.env("LEASEHOLD_TOKEN", "");
    let (head, _) = listener.get(command).await;
    assert!(!head.contains("authorization"), "{head}");
}

#[tokio::test]
async fn a_signature_is_made_with_the_credentials_of_the_environment() {
    let listener = Listener::start().await;
    let mut command = listener.command(&["get", "Moe", "--sigv4", "--region", "eu-central-1"]);
    // A token in the environment is no contradiction.
    command.env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s3cret").env("LEASEHOLD_TOKEN", "def");
    let (head, ended) = listener.get(command).await;
    assert!(head.contains("\r\nauthorization: aws4-hmac-sha256 credential=akid/"), "{head}");
    assert!(head.contains("/eu-central-1/execute-api/aws4_request"), "{head}");
    assert!(!head.contains("s3cret") && !head.contains("bearer"), "{head}");
    assert_eq!(ended.status, 0, "{ended:?}");
}

#[tokio::test]
async fn a_signature_needs_a_region() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--sigv4"]).env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s");
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    let ended = end(command).await;
    assert_eq!(ended.status, 2);
    let expected = "leasehold: --sigv4 needs to know the API's region: name it with --region, or set AWS_REGION\n";
    assert_eq!(ended.stderr, expected);
}

#[tokio::test]
async fn a_signature_needs_credentials() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--sigv4", "--url", "https://abc.execute-api.eu-central-1.amazonaws.com"]);
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    let ended = end(command).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (77, ""));
    assert!(ended.stderr.starts_with("leasehold: no AWS credentials: "), "{ended:?}");
    assert!(ended.stderr.ends_with("; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY\n"), "{ended:?}");
}

#[tokio::test]
async fn a_table_that_is_not_there_is_told() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    let endpoint = exposed_url(&serve);
    let get = async |verbose: &[&str]| {
        let mut command = leasehold(&std::env::temp_dir());
        command.args(["get", "Moe", "--dynamodb-table", "nope", "--dynamodb-endpoint", &endpoint]).args(verbose);
        end(command).await
    };
    let (terse, verbose) = tokio::join!(get(&[]), get(&["-v"]));
    assert_eq!((terse.status, verbose.status), (69, 69), "{terse:?}, {verbose:?}");
    let lines: Vec<_> = terse.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "leasehold: no good answer yet from nope; trying again");
    assert!(lines[1].ends_with(" (-v shows why.)"), "{lines:?}");
    assert!(verbose.stderr.contains("The lock table does not exist"), "{verbose:?}");
}

#[tokio::test]
async fn a_gateway_that_says_no_is_forbidden() {
    let listener = Listener::start().await;
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let command = listener.command(&["get", "Moe"]);
        let (_, ended) = listener.answer(command, status, r#"{"message":"no"}"#).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (77, ""), "{ended:?}");
        assert!(ended.stderr.ends_with("; use --token, or --sigv4 with credentials that allow it\n"), "{ended:?}");
    }
}

#[tokio::test]
async fn a_table_needs_no_service() {
    let serve =
        Serve::start(&["--memory", "--expose-dynamodb", "0", "--partition-key", "pk", "--sort-key", "sk"]).await;
    let endpoint = exposed_url(&serve);
    let table = ["--dynamodb-table", "leasehold", "--dynamodb-endpoint", &endpoint, "--partition-key", "pk"];
    let with_table = async |args: &[&str], rest: &[&str]| {
        // What the environment says about a service does not matter then.
        let mut command = leasehold(&std::env::temp_dir());
        command
            .args(args)
            .args(table)
            .args(["--sort-key-name", "sk"])
            .args(rest)
            .env("LEASEHOLD_URL", "http://127.0.0.1:1");
        end(command).await
    };
    let acquired = with_table(&["acquire", "Moe", "--sort-key", "1", "--json"], &[]).await;
    assert_eq!(acquired.status, 0, "{acquired:?}");
    let through_the_service = serve.run(&["get", "Moe", "--sort-key", "1", "--json"]).await.json();
    assert_eq!(through_the_service["fencingToken"], acquired.json()["fencingToken"]);

    let ran =
        with_table(&["run", "Larry", "--sort-key", "1"], &["--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN"]).await;
    let lock = serve.run(&["get", "Larry", "--sort-key", "1", "--json"]).await.json();
    assert_eq!(ran.ok().trim(), lock["fencingToken"].to_string());
    assert_eq!(lock["state"], "released");
}

#[tokio::test]
async fn options_that_exclude_each_other_are_refused() {
    for args in [
        &["--dynamodb-table", "t", "--url", "http://127.0.0.1:1"][..],
        &["--dynamodb-table", "t", "--token", "x"],
        &["--dynamodb-table", "t", "--sigv4"],
        &["--dynamodb-endpoint", "http://127.0.0.1:1"],
        &["--sigv4", "--token", "x"],
        &["--region", "eu-central-1"],
        &["--quiet", "--verbose"],
    ] {
        let mut command = leasehold(&std::env::temp_dir());
        command.args(["get", "Moe"]).args(args);
        let ended = end(command).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{args:?}: {ended:?}");
    }
}
