//! The ways to the service: with a bearer token, with a signature, or without any service.

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::Instant;

use crate::support::{Ended, Serve, end, exposed_url, finish, folder, leasehold, text_of, within};

/// A server that has one lock and records its requests.
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

    /// Answers the requests of `command` alike. Returns the first one's head in lower case, and the end of the command.
    async fn answer(&self, mut command: Command, status: &str, body: &str) -> (String, Ended) {
        let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is built");
        let head = self.answer_one(status, body).await;
        let others = async {
            loop {
                self.answer_one(status, body).await;
            }
        };
        tokio::select! {
            ended = finish(process) => (head, ended),
            () = others => unreachable!(),
        }
    }

    async fn answer_one(&self, status: &str, body: &str) -> String {
        let (mut stream, _) = within(self.listener.accept()).await.expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            within(stream.read_exact(&mut byte)).await.expect("a request");
            head.extend(byte);
        }
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.expect("sent");
        String::from_utf8(head).expect("text").to_lowercase()
    }

    /// Answers every request with a 503 while `command` runs. Returns the end of the command, and its time.
    async fn refuse(&self, command: Command) -> (Ended, Duration) {
        let began = Instant::now();
        let refuse = async {
            loop {
                let (mut stream, _) = self.listener.accept().await.expect("a connection");
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let answer = "HTTP/1.1 503 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        };
        tokio::select! {
            ended = end(command) => (ended, began.elapsed()),
            () = refuse => unreachable!(),
        }
    }

    async fn get(&self, command: Command) -> (String, Ended) {
        let lock = json!({
            "key": "Moe", "state": "held", "ownerName": "me", "recordVersionNumber": "1", "leaseDurationMs": 20000
        });
        self.answer(command, "200 OK", &lock.to_string()).await
    }
}

#[tokio::test]
async fn bearer_token_comes_from_the_option_or_the_environment() {
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
async fn signature_is_made_with_the_credentials_of_the_environment() {
    let listener = Listener::start().await;
    let mut command = listener.command(&["get", "Moe", "--sigv4", "--region", "eu-central-1"]);
    // A token in the environment does not conflict with the option.
    command.env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s3cret").env("LEASEHOLD_TOKEN", "def");
    let (head, ended) = listener.get(command).await;
    assert!(head.contains("\r\nauthorization: aws4-hmac-sha256 credential=akid/"), "{head}");
    assert!(head.contains("/eu-central-1/execute-api/aws4_request"), "{head}");
    assert!(!head.contains("s3cret") && !head.contains("bearer"), "{head}");
    assert_eq!(ended.status, 0, "{ended:?}");

    for (switch, token, sent) in [
        ("1", None, "aws4-hmac-sha256"),
        ("True", None, "aws4-hmac-sha256"),
        ("false", None, "bearer def"),
        ("true", Some("abc"), "bearer abc"),
    ] {
        let mut command = listener.command(&["get", "Moe"]);
        command.args(token.map(|token| format!("--token={token}")));
        command.env("LEASEHOLD_SIGV4", switch).env("LEASEHOLD_TOKEN", "def").env("AWS_REGION", "eu-central-1");
        command.env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s3cret");
        let (head, _) = listener.get(command).await;
        assert!(head.contains(&format!("\r\nauthorization: {sent}")), "{switch}: {head}");
    }
}

/// A process that takes longer than the lease, and records each of its runs.
#[tokio::test]
async fn credential_process_runs_once_for_many_requests() {
    let serve = Serve::memory().await;
    let folder = folder();
    let [script, config, runs] = ["process.sh", "config", "runs"].map(|name| folder.path().join(name));
    let credentials = r#"{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"s3cret"}"#;
    let text = format!("echo run >>{}\nsleep 5\necho '{credentials}'\n", text_of(&runs));
    std::fs::write(&script, text).expect("written");
    let text = format!("[default]\nregion = eu-central-1\ncredential_process = sh {}\n", text_of(&script));
    std::fs::write(&config, text).expect("written");
    let mut command = serve.command(&["run", "Moe", "--sigv4", "--lease", "4s", "--", "sleep", "6"]);
    command.env("AWS_CONFIG_FILE", &config).env("AWS_EC2_METADATA_DISABLED", "true");
    let ended = end(command).await;
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(std::fs::read_to_string(&runs).expect("it ran"), "run\n");
}

#[tokio::test]
async fn signature_needs_a_region() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--sigv4"]).env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s");
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    let ended = end(command).await;
    assert_eq!(ended.status, 2);
    let expected = "leasehold: --sigv4 needs to know the region: name it with --region, or set AWS_REGION\n";
    assert_eq!(ended.stderr, expected);
}

#[tokio::test]
async fn signature_needs_credentials() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--sigv4", "--url", "https://abc.execute-api.eu-central-1.amazonaws.com"]);
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    let ended = end(command).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (77, ""));
    assert!(ended.stderr.starts_with("leasehold: no AWS credentials: "), "{ended:?}");
    assert!(ended.stderr.ends_with("; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY\n"), "{ended:?}");
}

#[tokio::test]
async fn wrong_setup_is_told_at_once_with_its_reason() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    let endpoint = exposed_url(&serve);
    let get = async |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = leasehold(&std::env::temp_dir());
        command.args(["get", "Moe", "--dynamodb-endpoint", &endpoint]).args(args);
        command.envs(variables.iter().copied()).env("AWS_EC2_METADATA_DISABLED", "true");
        let began = Instant::now();
        let ended = end(command).await;
        assert!(began.elapsed() < Duration::from_secs(10), "{args:?}: {:?}", began.elapsed());
        assert_eq!((ended.status, ended.stdout.as_str()), (78, ""), "{args:?}: {ended:?}");
        ended.stderr
    };
    let told = get(&["--dynamodb-table", "nope"], &[]).await;
    assert!(told.contains("The lock table does not exist"), "{told}");
    let told = get(&["--dynamodb-table", "leasehold", "--partition-key", "id"], &[]).await;
    assert!(told.contains("the keys of the lock table may have other names"), "{told}");
}

#[tokio::test]
async fn table_without_credentials_or_permission_is_told() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--dynamodb-table", "leasehold"]);
    command.env("AWS_REGION", "eu-central-1").env("AWS_EC2_METADATA_DISABLED", "true");
    let ended = end(command).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (78, ""), "{ended:?}");
    assert!(ended.stderr.contains("no valid credentials"), "{ended:?}");

    let listener = Listener::start().await;
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--dynamodb-table", "leasehold", "--dynamodb-endpoint", &listener.url]);
    let refusal = r#"{"__type":"com.amazon.coral.service#AccessDeniedException","Message":"not for you"}"#;
    let (_, ended) = listener.answer(command, "400 Bad Request", refusal).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (78, ""), "{ended:?}");
    assert!(ended.stderr.contains("may not use the lock table: not for you"), "{ended:?}");
}

#[tokio::test]
async fn gateway_that_says_no_is_forbidden() {
    let listener = Listener::start().await;
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let command = listener.command(&["get", "Moe"]);
        let (_, ended) = listener.answer(command, status, r#"{"message":"no"}"#).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (77, ""), "{ended:?}");
        assert!(ended.stderr.ends_with("; use --token, or --sigv4 with credentials that allow it\n"), "{ended:?}");
    }
}

#[tokio::test]
async fn table_needs_no_service() {
    let serve =
        Serve::start(&["--memory", "--expose-dynamodb", "0", "--partition-key", "pk", "--sort-key", "sk"]).await;
    let endpoint = exposed_url(&serve);
    let table = ["--dynamodb-table", "leasehold", "--dynamodb-endpoint", &endpoint, "--partition-key", "pk"];
    let with_table = async |args: &[&str], rest: &[&str]| {
        // The variables about a service have no effect then.
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
        &["--lambda", "f", "--url", "http://127.0.0.1:1"],
        &["--lambda", "f", "--dynamodb-table", "t"],
        &["--region", "eu-central-1"],
        &["--quiet", "--verbose"],
    ] {
        let mut command = leasehold(&std::env::temp_dir());
        command.args(["get", "Moe"]).args(args);
        let ended = end(command).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{args:?}: {ended:?}");
    }
}

#[tokio::test]
async fn token_over_http_to_another_machine_is_warned_of_once() {
    let listener = Listener::start().await;
    let elsewhere = |token: &str| {
        let mut command = leasehold(&std::env::temp_dir());
        // Linux takes the address for this machine, although the address does not show it.
        command
            .args(["get", "Moe", "--url", &listener.url.replace("127.0.0.1", "0.0.0.0")])
            .env("LEASEHOLD_TOKEN", token);
        command
    };
    let (_, ended) = listener.get(elsewhere("secret")).await;
    assert_eq!(ended.stderr.matches("unencrypted").count(), 1, "{ended:?}");
    assert!(!ended.stderr.contains("secret"), "{ended:?}");
    let (_, ended) = listener.get(elsewhere("")).await;
    assert_eq!(ended.stderr, "", "without a token there is nothing to warn of");
    let (_, ended) = listener.get(listener.command(&["get", "Moe", "--token", "secret"])).await;
    assert_eq!(ended.stderr, "", "and on this machine neither");
}

#[tokio::test]
async fn proxy_is_not_asked_for_this_machine() {
    let listener = Listener::start().await;
    let mut command = listener.command(&["get", "Moe"]);
    for variable in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(variable, "http://127.0.0.1:1");
    }
    let (_, ended) = listener.get(command).await;
    assert_eq!(ended.status, 0, "{ended:?}");
}

#[tokio::test]
async fn credentials_in_a_url_are_refused_and_not_printed() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["get", "Moe", "--url", "http://me:secret@127.0.0.1:1"]);
    let ended = end(command).await;
    assert_eq!(ended.status, 64, "{ended:?}");
    assert!(ended.stderr.contains("credentials") && !ended.stderr.contains("secret"), "{ended:?}");
}

/// The lock may have been granted without an answer. Its release must not take longer than the wait.
#[tokio::test]
async fn short_wait_is_short_when_the_service_fails() {
    for wait in [&["--no-wait"][..], &["--wait", "1s"]] {
        let listener = Listener::start().await;
        let mut command = listener.command(&["run", "Moe"]);
        command.args(wait).args(["--", "true"]);
        let (ended, took) = listener.refuse(command).await;
        assert_eq!(ended.status, 69, "{ended:?}");
        assert!(took < Duration::from_secs(9), "{wait:?}: {took:?}");
        assert!(ended.stderr.contains("503"), "{ended:?}");
    }
}

#[tokio::test]
async fn command_under_a_lock_gets_no_token_and_no_stale_url() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    let endpoint = exposed_url(&serve);
    let print = ["--", "sh", "-c", "echo $LEASEHOLD_TOKEN,$LEASEHOLD_URL"];
    let mut command = serve.command(&["run", "Moe"]);
    command.args(print).env("LEASEHOLD_TOKEN", "secret");
    assert_eq!(end(command).await.ok().trim(), format!(",{}", serve.base_url));
    let mut command =
        serve.command(&["run", "Larry", "--dynamodb-table", "leasehold", "--dynamodb-endpoint", &endpoint]);
    command.args(print).env("LEASEHOLD_TOKEN", "secret");
    assert_eq!(end(command).await.ok().trim(), ",");
}

#[tokio::test]
async fn options_may_stand_before_the_command() {
    let serve = Serve::memory().await;
    serve.acquire("Moe", "id").await;
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["--url", &serve.base_url, "--json", "get", "Moe"]);
    assert_eq!(end(command).await.json()["state"], "held");
}

#[tokio::test]
async fn missing_separator_is_hinted_at() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["run", "Moe", "echo", "hi"]);
    let ended = end(command).await;
    assert_eq!(ended.status, 2);
    assert!(ended.stderr.contains("leasehold run KEY -- echo hi"), "{ended:?}");
}

#[tokio::test]
async fn manual_page_has_its_separator_and_its_statuses() {
    let folder = crate::support::folder();
    let mut command = leasehold(folder.path());
    command.args(["man", "pages"]);
    assert_eq!(end(command).await.ok(), "");
    let page = std::fs::read_to_string(folder.path().join("pages/leasehold-run.1")).expect("a page");
    let synopsis = page.lines().skip_while(|line| *line != ".SH SYNOPSIS").nth(1).expect("a synopsis");
    assert_eq!(synopsis, "leasehold run [OPTIONS] <KEY>... \\-\\- <COMMAND>...");
    assert!(page.contains(".SH \"EXIT STATUS\"\n") && !page.contains("EXTRA"), "{page}");
}
