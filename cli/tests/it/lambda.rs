//! Direct invocations: `--lambda`, with the Invoke API on loopback and the real service behind it.

use std::process::Stdio;
use std::time::Duration;

use aws_sdk_dynamodb::Client as DynamoDb;
use leasehold_api::access::Caller;
use leasehold_api::{Routed, Service, direct};
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_protocol::{LockTable, Policy, TableSchema, ensure_table};
use leasehold_sandbox::{Fate, InvokeApi};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::Instant;

use crate::support::{Ended, Serve, end, leasehold, signal, within};

async fn lambda() -> InvokeApi {
    let engine = Engine::memory().expect("memory is to be had");
    let client = DynamoDb::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let schema = TableSchema::new("locks");
    ensure_table(&client, &schema).await.expect("a new table");
    let service = Service::new(LockTable::new(client, schema, Policy::default(), Clock::system()));
    let handle = move |_, input| {
        let service = service.clone();
        async move {
            let answer = direct::invoke(&service, Service::ROUTES, Caller::unrestricted(), input).await;
            let document = |text: &str| serde_json::from_str::<Value>(text).expect("a JSON document");
            answer.map(|answer| document(answer.get())).map_err(|problem| {
                let message = serde_json::to_string(&problem).expect("a JSON document");
                json!({ "errorType": problem.problem_type.error_name(), "errorMessage": message })
            })
        }
    };
    InvokeApi::start(handle).await.expect("a free port")
}

/// A command that invokes `leasehold-invoke`.
fn command(lambda: &InvokeApi, args: &[&str], rest: &[&str]) -> Command {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(args).args(["--lambda", "leasehold-invoke"]).args(rest);
    configure(&mut command, lambda);
    command
}

fn configure<'c>(command: &'c mut Command, lambda: &InvokeApi) -> &'c mut Command {
    command.env("AWS_ENDPOINT_URL_LAMBDA", &lambda.url).env("AWS_REGION", "eu-central-1");
    command.env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", "s3cret");
    // The service in the environment does not matter then.
    command.env("LEASEHOLD_URL", "http://127.0.0.1:1").env("LEASEHOLD_TOKEN", "a-token")
}

async fn run(lambda: &InvokeApi, args: &[&str]) -> Ended {
    end(command(lambda, args, &[])).await
}

#[tokio::test]
async fn command_runs_under_a_lock_of_the_function() {
    let lambda = lambda().await;
    let ran =
        end(command(&lambda, &["run", "Moe"], &["--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN $LEASEHOLD_URL"]))
            .await
            .ok();
    let lock = run(&lambda, &["get", "Moe", "--json"]).await.json();
    assert_eq!((ran.trim(), &lock["state"]), (lock["fencingToken"].to_string().as_str(), &json!("released")));

    let acquired = run(&lambda, &["acquire", "Larry", "--json"]).await.json();
    let held = run(&lambda, &["acquire", "Larry", "--no-wait"]).await;
    assert_eq!(held.status, 75, "{held:?}");
    let lease_id = acquired["leaseId"].as_str().expect("a lease id");
    run(&lambda, &["heartbeat", "Larry", "--lease-id", lease_id]).await.ok();
    run(&lambda, &["release", "Larry", "--lease-id", lease_id]).await.ok();

    let log = lambda.log();
    assert!(log.iter().all(|invocation| invocation.function == "leasehold-invoke"), "{log:?}");
    let signature = log[0].headers["authorization"].to_str().expect("ASCII");
    assert!(signature.contains("Credential=AKID/") && signature.contains("/eu-central-1/lambda/"), "{signature}");
}

#[tokio::test]
async fn function_comes_from_the_option_or_the_environment() {
    let lambda = lambda().await;
    let by_variable = |args: &[&str]| {
        let mut command = leasehold(&std::env::temp_dir());
        configure(&mut command, &lambda).env("LEASEHOLD_LAMBDA", "leasehold-invoke").env("LEASEHOLD_SIGV4", "true");
        command.args(args);
        command
    };
    let print = ["run", "Moe", "--", "sh", "-c", "echo $LEASEHOLD_LAMBDA,$LEASEHOLD_URL"];
    assert_eq!(end(by_variable(&print)).await.ok().trim(), "leasehold-invoke,");
    let serve = Serve::memory().await;
    let elsewhere = ["--url", &serve.base_url];
    let ended = end(by_variable(&[&["run", "Larry"], &elsewhere[..], &print[2..]].concat())).await;
    assert_eq!(ended.ok().trim(), format!(",{}", serve.base_url), "an option outdoes a variable");
    assert_eq!(serve.get("Larry").await["state"], "released");

    let mut agent = by_variable(&["agent", "--listen", "127.0.0.1:0"]);
    let mut process = agent.stdout(Stdio::piped()).spawn().expect("the binary is built");
    let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
    let line = within(lines.next_line()).await.expect("text").expect("it starts");
    let url = line.strip_prefix("leasehold-agent listens on ").expect("the address");
    let request = reqwest::Client::new().post(format!("{url}/acquire")).body(json!({ "key": "Curly" }).to_string());
    assert_eq!(request.send().await.expect("an answer").status(), 200);
    assert_eq!(run(&lambda, &["get", "Curly", "--json"]).await.json()["state"], "held");
    signal(&process, "TERM");
    assert!(within(process.wait()).await.expect("its status").success());
    assert_eq!(run(&lambda, &["get", "Curly", "--json"]).await.json()["state"], "released");
}

#[tokio::test]
async fn function_that_is_set_up_wrong_is_told_at_once() {
    let lambda = lambda().await;
    for (fate, told) in [
        (Fate::Refused(403, "AccessDeniedException"), "403 Forbidden: told by the test"),
        (Fate::Refused(404, "ResourceNotFoundException"), "404 Not Found: told by the test"),
        (Fate::Fails("Runtime.ConfigInvalid", "LEASEHOLD_TABLE_NAME is not set"), "LEASEHOLD_TABLE_NAME is not set"),
    ] {
        lambda.fate(&[fate]);
        let began = Instant::now();
        let ended = run(&lambda, &["get", "Moe"]).await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!((ended.status, ended.stdout.as_str()), (78, ""), "{fate:?}: {ended:?}");
        assert!(ended.stderr.contains("leasehold-invoke") && ended.stderr.contains(told), "{ended:?}");
    }
    lambda.fate(&[Fate::Refused(403, "UnrecognizedClientException")]);
    assert_eq!(run(&lambda, &["get", "Moe"]).await.status, 77);
    let listed = run(&lambda, &["ls"]).await;
    assert_eq!(listed.status, 64, "{listed:?}");
    assert!(listed.stderr.contains("no direct invocation of /v1/locks"), "{listed:?}");
}

#[tokio::test]
async fn function_needs_a_region_and_credentials() {
    let bare = async |variable: &str, value: &str| {
        let mut command = leasehold(&std::env::temp_dir());
        command.args(["get", "Moe", "--lambda", "leasehold-invoke"]).env(variable, value);
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        end(command).await
    };
    let ended = bare("AWS_ACCESS_KEY_ID", "AKID").await;
    let told = "leasehold: --lambda needs to know the region: name it with --region, or set AWS_REGION\n";
    assert_eq!((ended.status, ended.stderr.as_str()), (2, told));
    let ended = bare("AWS_REGION", "eu-central-1").await;
    assert_eq!(ended.status, 77, "{ended:?}");
    assert!(ended.stderr.starts_with("leasehold: no AWS credentials: "), "{ended:?}");
}
