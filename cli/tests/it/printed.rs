//! The printed text: helps, results, failures, completions, manual pages. `SNAPSHOTS=overwrite` accepts the present
//! output.

use std::path::PathBuf;
use std::process::Stdio;

use aws_sdk_dynamodb::types::AttributeValue;
use snapbox::{Data, assert_data_eq, str};

use crate::support::{Serve, end, folder, leasehold, text_of, within};

const COMMANDS: [&str; 24] = [
    "run",
    "elect",
    "acquire",
    "heartbeat",
    "release",
    "break",
    "capacity",
    "occurrence",
    "get",
    "ls",
    "history",
    "transactions",
    "watch",
    "serve",
    "terraform",
    "agent",
    "backup",
    "restore",
    "console",
    "token",
    "demo",
    "cost",
    "completions",
    "man",
];

fn golden(name: &str) -> Data {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name);
    Data::read_from(&path, None)
}

/// Replaces the values that are new in each run by names.
fn redact(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (value, name)| text.replace(value, name))
}

#[tokio::test]
async fn every_command_explains_itself() {
    let folder = folder();
    let mut main = leasehold(folder.path());
    main.arg("--help");
    assert_data_eq!(end(main).await.ok(), golden("help.txt"));
    for name in COMMANDS {
        let mut command = leasehold(folder.path());
        command.args([name, "--help"]);
        let text = end(command).await.ok();
        // No help shows a value from the environment, which may be secret.
        assert_data_eq!(text, golden(&format!("help-{name}.txt")));
    }
}

#[tokio::test]
async fn secret_in_the_environment_is_not_shown() {
    for name in COMMANDS {
        let mut command = leasehold(&std::env::temp_dir());
        command.args([name, "--help"]).env("LEASEHOLD_TOKEN", "s3cret").env("LEASEHOLD_LEASE_ID", "s3cret");
        assert!(!end(command).await.ok().contains("s3cret"), "{name}");
    }
}

#[tokio::test]
async fn commands_print_the_life_of_a_lock() {
    let serve = Serve::memory().await;
    let acquired =
        serve.run(&["acquire", "Moe", "--owner", "host-1", "--data", "step 3", "--attribute", "team=blue"]).await;
    let acquired = acquired.ok();
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)).expect("the field is there");
        line.trim().to_owned()
    };
    let (lease_id, token, version) =
        (field(&acquired, "lease id"), field(&acquired, "token"), field(&acquired, "version"));
    let values = [(lease_id.as_str(), "[LEASE_ID]"), (token.as_str(), "[TOKEN]"), (version.as_str(), "[VERSION]")];
    assert_data_eq!(
        redact(&acquired, &values),
        str![[r#"
Moe is yours: it was free
  owner     host-1
  lease id  [LEASE_ID]
  lease     20s
  token     [TOKEN]
  version   [VERSION]
  data      step 3

"#]]
    );
    assert_data_eq!(
        redact(&serve.run(&["get", "Moe"]).await.ok(), &values),
        str![[r#"
Moe
  state     held
  owner     host-1
  lease     20s
  token     [TOKEN]
  version   [VERSION]
  data      step 3
  attribute team = blue

"#]]
    );
    assert_data_eq!(
        redact(&serve.run(&["ls"]).await.ok(), &values),
        str![[r#"
KEY  STATE  OWNER   TOKEN             LEASE  VERSION
Moe  held   host-1  [TOKEN]  20s    [VERSION]

"#]]
    );
    let json = serve.run(&["ls", "--json"]).await.ok();
    assert_data_eq!(
        redact(&json, &values),
        str![[r#"
{"key":"Moe","state":"held","ownerName":"host-1","recordVersionNumber":"[VERSION]","leaseDurationMs":20000,"fencingToken":[TOKEN],"data":"step 3","attributes":{"team":"blue"}}

"#]]
    );

    // Only the holder sees the lease id.
    for args in [&["get", "Moe"][..], &["get", "Moe", "--json"], &["ls", "--json"]] {
        assert!(!serve.run(args).await.ok().contains(&lease_id), "{args:?}");
    }

    let refused = serve.run(&["acquire", "Moe", "--no-wait"]).await;
    assert_eq!((refused.status, refused.stdout.as_str()), (75, ""));
    assert_data_eq!(
        refused.stderr,
        str![[r#"
leasehold: Moe is held by host-1, with a lease of 20s; try again later, or wait longer with --wait or --extend

"#]]
    );
    let refused = serve.run(&["acquire", "Moe", "--no-wait", "--json"]).await;
    assert_eq!((refused.status, refused.stdout.as_str()), (75, ""));
    let failure: serde_json::Value = serde_json::from_str(&refused.stderr).expect("JSON");
    assert_eq!((&failure["error"], &failure["status"]), (&"held".into(), &75.into()));
    assert_eq!(failure["lock"]["ownerName"], "host-1");

    let mut heartbeat = serve.command(&["heartbeat", "Moe", "--lease", "1m30s"]);
    heartbeat.env("LEASEHOLD_LEASE_ID", &lease_id);
    let renewed = end(heartbeat).await.ok();
    let renewed_version = field(&renewed, "version");
    assert_ne!(renewed_version, version);
    assert_data_eq!(
        redact(&renewed, &[(&token, "[TOKEN]"), (&renewed_version, "[VERSION]")]),
        str![[r#"
Moe is renewed
  lease     1m30s
  token     [TOKEN]
  version   [VERSION]

"#]]
    );

    let release = ["release", "Moe", "--lease-id", &lease_id, "--data", "step 4"];
    assert_eq!(serve.run(&release).await.ok(), "Moe is released\n");
    assert_eq!(serve.run(&release).await.ok(), "Moe was released before\n");
    assert_eq!(serve.run(&[&release[..4], &["--json"]].concat()).await.ok(), "{\"outcome\":\"replayed\"}\n");
    let free = serve.run(&["get", "Moe"]).await.ok();
    assert_data_eq!(
        redact(&free, &[(&token, "[TOKEN]"), (&field(&free, "version"), "[VERSION]")]),
        str![[r#"
Moe
  state     released
  was of    host-1
  lease     1m30s
  token     [TOKEN]
  version   [VERSION]
  data      step 4
  attribute team = blue

"#]]
    );
}

#[tokio::test]
async fn failures_say_what_to_do_and_have_a_status() {
    let serve = Serve::memory().await;
    let held = serve.acquire("Moe", "secret").await;
    let version = held["recordVersionNumber"].as_str().expect("text");
    serve.acquire("Larry", "secret").await;
    for (args, status, message) in [
        (&["get", "Nobody"][..], 66, "No lock has this key."),
        (&["acquire", "Nobody", "--only-if-exists"], 66, "No lock has this key."),
        (&["heartbeat", "Moe", "--lease-id", "wrong"], 76, "\"Moe\" is lost: the lock was taken over by \"test\""),
        (&["release", "Nobody", "--lease-id", "x"], 0, ""),
        (&["acquire", "Curly", "--lease", "20ms"], 64, "a lease must be 100ms to 24h, not 20ms"),
        (&["get", "Moe", "--sort-key", "1"], 64, "This table has no sort key: leave sortKey out."),
        (
            &["break", "Moe", "--rvn", "other"],
            73,
            "The lock changed since you looked. Look again before you change it.",
        ),
        (
            &["break", "Moe"],
            2,
            "there is no terminal to ask on: confirm with --yes, or name the version that you saw with --rvn",
        ),
        (
            &["acquire", "Moe", "--data-file", "/nonexistent"],
            1,
            "cannot read /nonexistent: No such file or directory (os error 2)",
        ),
        (
            &["get", "Moe", "--url", "http://127.0.0.1:1"],
            69,
            "the service cannot be reached: Connection refused (os error 111); start a service with `leasehold serve`, or \
             name another with --url",
        ),
        (&["get", "Moe", "--url", "nonsense"], 64, "\"nonsense\" is not a URL such as https://example.com/stage"),
    ] {
        let ended = serve.run(args).await;
        let expected = if message.is_empty() { String::new() } else { format!("leasehold: {message}\n") };
        assert_eq!((ended.status, ended.stderr), (status, expected), "{args:?}");
    }
    let ended = serve.run(&["run", "Curly", "--heartbeat", "15s", "--", "true"]).await;
    assert!(ended.status == 64 && ended.stderr.contains("cannot keep a lease of 14.8s"), "{ended:?}");
    // The operator breaks the version that was seen; a break of a free lock does nothing.
    assert_eq!(serve.run(&["break", "Moe", "--rvn", version]).await.ok(), "Moe is broken: it is free\n");
    assert_eq!(serve.run(&["break", "Moe", "--yes"]).await.ok(), "Moe is free already: nothing was broken\n");
    assert_eq!(serve.run(&["break", "Larry", "--yes"]).await.ok(), "Larry is broken: it is free\n");
}

#[tokio::test]
async fn duration_needs_a_unit() {
    let mut command = leasehold(&std::env::temp_dir());
    command.args(["acquire", "Moe", "--lease", "20"]);
    let ended = end(command).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (2, ""));
    assert_data_eq!(
        ended.stderr,
        str![[r#"
error: invalid value '20' for '--lease <DURATION>': "20" has no unit: write 20s for seconds, 20ms for milliseconds

For more information, try '--help'.

"#]]
    );
}

#[tokio::test]
async fn wrong_value_is_refused_in_a_sentence() {
    let endpoint = "write a URL such as http://127.0.0.1:8000, without a user or a password";
    let short = r#""0s" is too short: it must be longer than 0s"#;
    for (args, told) in [
        (&["serve", "--dynamodb-endpoint", "foo"][..], endpoint),
        (&["serve", "--dynamodb-endpoint", "http://"], endpoint),
        (&["serve", "--dynamodb-endpoint", "localhost:8000"], endpoint),
        (&["serve", "--dynamodb-endpoint", "ftp://localhost"], endpoint),
        (&["serve", "--dynamodb-endpoint", "http://me:secret@localhost"], endpoint),
        (&["get", "Moe", "--dynamodb-table", "t", "--dynamodb-endpoint", ""], endpoint),
        (&["serve", "--listen", "foo"], "write an address and a port, such as 127.0.0.1:8080"),
        (&["serve", "--history", "0s"], short),
        (&["acquire", "Moe", "--lease", "0s"], short),
        (&["acquire", "Moe", "--poll", "0s"], short),
        (&["run", "Moe", "--every", "0s", "--", "true"], short),
        (&["history", "Moe", "--since", "0s"], short),
        (&["acquire", "Moe", "--lease", "999999999999999999d"], "is too long"),
        (&["run", "Moe", "--wait", "-5s", "--", "true"], "no option takes a negative value, such as -5s"),
        (&["cost", "--cycles", "-1"], "no option takes a negative value, such as -1"),
        (&["console", "--port", "x"], "it must be a whole number from 0 to 65535"),
        (&["run", "Moe", "--of", "x", "--", "true"], "it must be a whole number from 1 to 1000000000"),
    ] {
        let mut command = leasehold(&std::env::temp_dir());
        command.args(args);
        let ended = end(command).await;
        assert!(ended.status == 2 && ended.stderr.contains(told), "{args:?}: {ended:?}");
    }
}

#[tokio::test]
async fn wait_of_nothing_asks_once() {
    let serve = Serve::start(&["--memory"]).await;
    serve.run(&["acquire", "Moe", "--owner", "host-1"]).await.ok();
    let ended = serve.run(&["run", "Moe", "--wait", "0s", "--", "true"]).await;
    assert!(ended.status == 75 && ended.stderr.contains("Moe is held by host-1"), "{ended:?}");
    serve.run(&["run", "Larry", "--wait", "0s", "--", "true"]).await.ok();
}

#[tokio::test]
async fn listing_can_be_narrowed() {
    let serve = Serve::start(&["--memory", "--sort-key", "sk"]).await;
    let ls = async |args: &[&str]| {
        let listed = serve.run(&[&["ls", "--json"], args].concat()).await.ok();
        let mut keys: Vec<String> = listed
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
            .map(|lock| format!("{}/{}", lock["key"].as_str().unwrap(), lock["sortKey"].as_str().unwrap()))
            .collect();
        keys.sort();
        keys
    };
    let empty = serve.run(&["ls"]).await;
    assert_eq!((empty.status, empty.stdout.as_str(), empty.stderr.as_str()), (0, "", "leasehold: no locks\n"));
    for (key, sort_key, owner) in [("Moe", "1", "a"), ("Moe", "2", "b"), ("Larry", "1", "b")] {
        serve.run(&["acquire", key, "--sort-key", sort_key, "--owner", owner]).await.ok();
    }
    serve.run(&["break", "Larry", "--sort-key", "1", "--yes"]).await.ok();
    assert_eq!(ls(&[]).await, ["Larry/1", "Moe/1", "Moe/2"]);
    assert_eq!(ls(&["--state", "held"]).await, ["Moe/1", "Moe/2"]);
    assert_eq!(ls(&["--state", "released"]).await, ["Larry/1"]);
    assert_eq!(ls(&["--owner", "b"]).await, ["Larry/1", "Moe/2"]);
    assert_eq!(ls(&["--key", "Moe", "--owner", "a"]).await, ["Moe/1"]);
    let table = serve.run(&["ls"]).await.ok();
    assert!(table.starts_with("KEY    SORT KEY  STATE     OWNER"), "{table}");
}

#[tokio::test]
async fn row_that_is_no_lock_is_shown_and_never_free() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    serve.acquire("Moe", "secret").await;
    let dynamodb = serve.dynamodb().await;
    let row = [("key", "Larry"), ("ownerName", "java"), ("leaseDuration", "soon"), ("recordVersionNumber", "1")];
    let row = row.map(|(name, value)| (name.to_owned(), AttributeValue::S(value.to_owned()))).into();
    dynamodb.put_item().table_name("leasehold").set_item(Some(row)).send().await.expect("it takes the row");

    for args in [&["ls"][..], &["ls", "--json"], &["ls", "--quiet"]] {
        let listed = serve.run(args).await;
        assert_eq!(listed.status, 0, "{listed:?}");
        assert!(listed.stdout.contains("Moe") && !listed.stdout.contains("Larry"), "{listed:?}");
        assert!(listed.stderr.starts_with("leasehold: Larry is no readable lock: "), "{listed:?}");
    }
    for args in [&["get", "Larry"][..], &["acquire", "Larry"], &["run", "Larry", "--", "true"], &["watch", "Larry"]] {
        let ended = serve.run(args).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (65, ""), "{args:?}: {ended:?}");
    }
}

#[tokio::test]
async fn more_locks_than_a_page_has() {
    let serve = Serve::memory().await;
    for number in 0..120 {
        serve.acquire(&format!("lock-{number}"), "secret").await;
    }
    assert_eq!(serve.run(&["ls", "--json"]).await.ok().lines().count(), 120);
    assert_eq!(serve.run(&["ls"]).await.ok().lines().count(), 121);
}

#[tokio::test]
async fn commands_end_quietly_when_the_output_is_closed() {
    let serve = Serve::memory().await;
    for number in 0..20 {
        serve.acquire(&format!("lock-{number}"), "secret").await;
    }
    for args in
        [&["ls"][..], &["ls", "--json"], &["get", "lock-1"], &["completions", "bash"], &["man"], &["watch", "lock-1"]]
    {
        let mut process = serve.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(process.stdout.take());
        let output = within(process.wait_with_output()).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
    // A lock whose lease id was not printed is released.
    let mut process = serve.command(&["acquire", "Moe"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stdout.take());
    let output = within(process.wait_with_output()).await.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(stderr, "leasehold: the lease id could not be printed, so the lock was released again\n");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(serve.get("Moe").await["state"], "released");
}

#[tokio::test]
async fn terminal_takes_no_orders_from_a_name() {
    let serve = Serve::memory().await;
    serve.run(&["acquire", "red\u{1b}[31m", "--owner", "a\nb\r", "--data", "\u{7}"]).await.ok();
    for args in [&["ls"][..], &["get", "red\u{1b}[31m"], &["acquire", "red\u{1b}[31m", "--no-wait"]] {
        let ended = serve.run(args).await;
        let printed = ended.stdout + &ended.stderr;
        assert!(!printed.contains(['\u{1b}', '\r', '\u{7}']), "{args:?}: {printed:?}");
        assert!(printed.contains(r"red\u{1b}[31m") && printed.contains(r"a\nb\r"), "{args:?}: {printed:?}");
    }
}

#[tokio::test]
async fn shells_complete() {
    let folder = folder();
    let script = folder.path().join("leasehold.bash");
    for shell in ["bash", "zsh", "fish"] {
        let mut command = leasehold(folder.path());
        command.args(["completions", shell]);
        let text = end(command).await.ok();
        assert!(text.contains("heartbeat") && text.contains("hold-on-unavailable"), "{shell}: {text}");
        assert!(!text.contains("fenced-write") && !text.contains("exec-tied"), "{shell} offers what is hidden");
        if shell == "bash" {
            std::fs::write(&script, text).unwrap();
        }
    }
    let script = text_of(&script).to_owned();
    let check = std::process::Command::new("bash").args(["-n", &script]).output().expect("bash");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    // Bash calls the completion so when somebody presses Tab after `leasehold hea`.
    let tab = format!(
        r#"source {script}; COMP_WORDS=(leasehold hea); COMP_CWORD=1; _leasehold leasehold hea leasehold; echo "${{COMPREPLY[*]}}""#
    );
    let completed = std::process::Command::new("bash").args(["-c", &tab]).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&completed.stdout), "heartbeat\n");
}

#[tokio::test]
async fn man_prints_the_manual_pages() {
    let folder = folder();
    let mut main = leasehold(folder.path());
    main.arg("man");
    let page = end(main).await.ok();
    assert!(page.contains(".TH leasehold 1") && page.contains("EXIT STATUS"), "{page}");

    let pages = folder.path().join("man/man1");
    let mut all = leasehold(folder.path());
    all.arg("man").arg(&pages);
    assert_eq!(end(all).await.ok(), "");
    let mut names: Vec<_> =
        std::fs::read_dir(&pages).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut expected: Vec<_> = COMMANDS.iter().map(|name| format!("leasehold-{name}.1")).collect();
    expected.push("leasehold.1".to_owned());
    expected.sort();
    assert_eq!(names, expected);
    let run = std::fs::read_to_string(pages.join("leasehold-run.1")).unwrap();
    assert!(run.contains("LEASEHOLD_FENCING_TOKEN") && run.contains("lost\\-status"), "{run}");
}

#[tokio::test]
async fn transactions_are_listed_shown_and_ended() {
    let serve = Serve::start(&["--memory"]).await;
    assert_eq!(serve.run(&["transactions", "ls", "--json"]).await.ok(), "");
    let id = "5d8e4c1e-9f0a-4f44-8c0e-3b6f6f1f2a10";
    let begin = serve.http.post(format!("{}/v1/transactions/begin", serve.base_url));
    let answer = begin.json(&serde_json::json!({ "transactionId": id })).send().await.expect("an answer");
    assert!(answer.status().is_success());
    let listed = serve.run(&["transactions", "ls", "--json"]).await;
    let public_id = listed.json()["publicId"].as_str().expect("an id").to_owned();
    assert_ne!(public_id, id);
    assert!(!listed.stdout.contains(id));
    let shown = serve.run(&["transactions", "ls"]).await.ok();
    assert!(shown.starts_with(&format!("{public_id}  pending  ")) && shown.ends_with("s  items: 0\n"), "{shown}");
    assert_eq!(serve.run(&["transactions", "get", &public_id]).await.ok(), format!("{public_id}  pending\n"));
    let swept = serve.run(&["transactions", "sweep"]).await.ok();
    assert_eq!(swept, "0 examined, 0 rolled back, 0 completed, 0 stuck, 0 failed, 0 watched\n");
    let ended = serve.run(&["transactions", "rollback", &public_id]).await.ok();
    assert_eq!(ended, "1 examined, 1 rolled back, 0 completed, 0 stuck, 0 failed, 0 watched\n");
    assert_eq!(serve.run(&["transactions", "get", &public_id]).await.ok(), format!("{public_id}  rolled-back\n"));
    assert_eq!(serve.run(&["transactions", "ls", "--json"]).await.ok(), "");
}
