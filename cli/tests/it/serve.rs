//! `leasehold serve` as a process: its output, the failures that it survives, and its end.

use std::collections::HashMap;
use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use leasehold_dynamodb::fresh_uuid;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::support::{Serve, acquire, command, exposed_url, folder, pause, signal, text_of, within};

/// Runs a service that does not start, to its end.
async fn fails(folder: &Path, args: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } = within(command(folder, args).output()).await.expect("the binary is built");
    assert_eq!(String::from_utf8_lossy(&stdout), "", "{args:?}");
    (status.code().expect("no signal"), String::from_utf8(stderr).expect("text"))
}

/// Runs a service that does not start, and returns the sentence of the reason.
async fn refuses(folder: &Path, args: &[&str]) -> String {
    let (status, stderr) = fails(folder, args).await;
    assert_eq!(status, 1, "{args:?}: {stderr}");
    let sentence = stderr.strip_prefix("leasehold: ").and_then(|line| line.strip_suffix('\n'));
    let sentence = sentence.unwrap_or_else(|| panic!("{args:?}: {stderr}"));
    assert!(!sentence.contains('\n'), "{args:?}: one line, not {sentence}");
    sentence.to_owned()
}

#[tokio::test]
async fn banner_says_where_and_how() {
    let serve = Serve::start(&["--memory"]).await;
    let url = &serve.base_url;
    assert_ne!(serve.address().port(), 0);
    let expected = [
        format!("Leasehold listens on {url}"),
        "  tables    leasehold and leasehold-transactions, in memory, gone when this stops".into(),
        format!("  console   {url}/console"),
        format!(r#"  try       curl --json '{{"key":"hello","ownerName":"me"}}' {url}/v1/acquire"#),
        "  stop      Ctrl-C".into(),
    ];
    assert_eq!(serve.banner, expected);
    check_suggestion(&serve).await;
    serve.signal("TERM");
    assert_eq!(serve.ended().await, (Some(0), vec!["Stopped.".to_owned()]));
}

#[tokio::test]
async fn banner_says_what_was_chosen() {
    let folder = folder();
    let db = folder.path().join("my locks.db");
    let mut command = command(folder.path(), &["--db", text_of(&db), "--expose-dynamodb", "0", "--sort-key", "sk"]);
    command.env("LEASEHOLD_LISTEN", "127.0.0.1:0").env("LEASEHOLD_TABLE_NAME", "others");
    let serve = Serve::spawn(command).await;
    let url = &serve.base_url;
    let dynamodb = exposed_url(&serve);
    let expected = [
        format!("Leasehold listens on {url}"),
        format!("  tables    others and leasehold-transactions, in the file {}", db.display()),
        format!("  dynamodb  {dynamodb} (any credentials)"),
        format!("  console   {url}/console"),
        format!(r#"  try       curl --json '{{"key":"hello","ownerName":"me","sortKey":"1"}}' {url}/v1/acquire"#),
        "  stop      Ctrl-C".into(),
    ];
    assert_eq!(serve.banner, expected);
    check_suggestion(&serve).await;
    serve.signal("INT");
    assert_eq!(serve.ended().await, (Some(0), vec!["Stopped.".to_owned()]));
    assert!(db.exists());
}

/// The command that the banner suggests works.
async fn check_suggestion(serve: &Serve) {
    let suggestion = serve.banner.iter().find(|line| line.starts_with("  try ")).expect("a suggestion");
    let body = suggestion.split('\'').nth(1).expect("a body in quotes");
    let body: Value = serde_json::from_str(body).expect("JSON");
    let grant = acquire(&serve.http, &serve.base_url, &body).await.expect("an answer");
    assert_eq!(grant["outcome"], "created");
}

/// The answers of one round's writers, and their requests without an answer.
#[derive(Default)]
struct Round {
    /// The grants, by key.
    acknowledged: HashMap<String, Value>,
    /// The requests that were sent and not answered: key and lease id.
    unanswered: Vec<(String, String)>,
}

/// Lets several writers acquire one new lock after the other, each of them twice, and kills the service in the middle.
/// The second write of a row takes another way through the engine than the first.
async fn write_until_killed(serve: Serve) -> Round {
    const WRITERS: usize = 8;
    const GRANTS: usize = 320;
    let (sender, mut grants) = mpsc::unbounded_channel();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (http, base_url, sender) = (serve.http.clone(), serve.base_url.clone(), sender.clone());
        writers.spawn(async move {
            loop {
                let (key, lease_id) = (fresh_uuid(), fresh_uuid());
                let body = json!({ "key": key, "ownerName": "test", "leaseId": lease_id });
                for _ in 0..2 {
                    match acquire(&http, &base_url, &body).await {
                        Some(grant) => sender.send(grant).expect("someone listens"),
                        None => return (key, lease_id),
                    }
                }
            }
        });
    }
    drop(sender);

    let mut round = Round::default();
    let mut acknowledge = |grant: Value| {
        round.acknowledged.insert(grant["key"].as_str().expect("a key").to_owned(), grant);
    };
    for _ in 0..GRANTS {
        acknowledge(within(grants.recv()).await.expect("the writers go on"));
    }
    serve.kill_9().await;
    while let Some(grant) = within(grants.recv()).await {
        acknowledge(grant);
    }
    round.unanswered = within(writers.join_all()).await;
    assert_eq!(round.unanswered.len(), WRITERS);
    // Nobody knows whether the second write of such a lock was made.
    round.unanswered.iter().for_each(|(key, _)| drop(round.acknowledged.remove(key)));
    round
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_kill_9() {
    let folder = folder();
    let db = folder.path().join("leasehold.db");
    let mut acknowledged: HashMap<String, Value> = HashMap::new();
    let mut unanswered: Vec<(String, String)> = Vec::new();
    for round in 0..=3 {
        let serve = Serve::start(&["--db", text_of(&db)]).await;
        for (key, grant) in &mut acknowledged {
            let lock = serve.get(key).await;
            assert_eq!(lock["state"], "held", "{lock}");
            for name in ["recordVersionNumber", "fencingToken", "ownerName", "leaseDurationMs"] {
                assert_eq!(lock[name], grant[name], "{name} of {key} in round {round}");
            }
            // The holder returns and continues.
            let renewed = serve.acquire(key, grant["leaseId"].as_str().expect("text")).await;
            assert_eq!(renewed["outcome"], "renewed", "{renewed}");
            assert_eq!(renewed["fencingToken"].as_u64(), grant["fencingToken"].as_u64().map(|token| token + 1));
            *grant = renewed;
        }
        // A caller without an answer asks again, and gets the lock, whether or not the first try was written.
        for (key, lease_id) in std::mem::take(&mut unanswered) {
            let grant = serve.acquire(&key, &lease_id).await;
            assert!(grant["outcome"] == "created" || grant["outcome"] == "renewed", "{grant}");
            acknowledged.insert(key, grant);
        }
        if round < 3 {
            let written = write_until_killed(serve).await;
            acknowledged.extend(written.acknowledged);
            unanswered = written.unanswered;
        }
    }
    assert!(acknowledged.len() >= 450, "{} locks", acknowledged.len());
}

#[tokio::test]
async fn file_has_one_service() {
    let folder = folder();
    let db = folder.path().join("leasehold.db");
    let first = Serve::start(&["--db", text_of(&db)]).await;
    first.acquire("Moe", "secret").await;
    let sentence = refuses(folder.path(), &["--db", text_of(&db), "--listen", "127.0.0.1:0"]).await;
    let expected = format!("{} is in use by another process; stop that process, or use a different file", db.display());
    assert_eq!(sentence, expected);
    assert_eq!(first.acquire("Moe", "secret").await["outcome"], "renewed");
    let (hard, symbolic) = (folder.path().join("hard.db"), folder.path().join("symbolic.db"));
    std::fs::hard_link(&db, &hard).expect("linked");
    std::os::unix::fs::symlink(&db, &symbolic).expect("linked");
    for link in [&hard, &symbolic] {
        let sentence = refuses(folder.path(), &["--db", text_of(link), "--listen", "127.0.0.1:0"]).await;
        assert!(sentence.contains("is in use by another process"), "{sentence}");
    }
    std::fs::remove_file(&hard).expect("removed");
    let mount = folder.path().join("mount");
    std::fs::create_dir(&mount).expect("made");
    for (from, to, name) in [(folder.path(), &mount, &mount.join("leasehold.db")), (&db, &db, &db)] {
        if let Some(sentence) = refused_at_a_mount(from, to, name).await {
            assert!(sentence.contains("is in use by another process"), "{sentence}");
        }
    }

    // The file is free once the first process has ended, with all its data.
    first.signal("TERM");
    assert_eq!(first.ended().await.0, Some(0));
    if let Some(sentence) = refused_at_a_mount(&db, &db, &db).await {
        assert!(sentence.contains("it is mounted by itself"), "{sentence}");
    }
    let second = Serve::start(&["--db", text_of(&db)]).await;
    assert_eq!(second.acquire("Moe", "secret").await["outcome"], "renewed");
}

/// Starts a service on a file behind a mount that only this service sees. Returns the sentence of its refusal. Where
/// this user may not mount, nothing is shown.
async fn refused_at_a_mount(from: &Path, to: &Path, db: &Path) -> Option<String> {
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = r#"mount --bind "$1" "$2" || exit 99; exec "$3" serve --db "$4" --listen 127.0.0.1:0"#;
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    shell.args([text_of(from), text_of(to), binary, text_of(db)]).kill_on_drop(true);
    let output = within(shell.output()).await.ok()?;
    let stderr = String::from_utf8(output.stderr).expect("text");
    stderr.starts_with("leasehold: ").then_some(stderr)
}

#[tokio::test]
async fn port_has_one_service() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = taken.local_addr().expect("bound");
    let port = address.port().to_string();
    for (flag, args) in [
        ("--listen", vec!["--memory", "--listen", &address.to_string()]),
        ("--expose-dynamodb", vec!["--memory", "--listen", "127.0.0.1:0", "--expose-dynamodb", &port]),
    ] {
        let sentence = refuses(&std::env::temp_dir(), &args).await;
        assert!(sentence.starts_with(&format!("cannot listen on {address}: ")), "{sentence}");
        assert!(sentence.ends_with(&format!("; name another with {flag}")), "{sentence}");
    }
}

#[tokio::test]
async fn serve_refuses_wrong_settings_in_a_sentence() {
    let folder = folder();
    let path = |name: &str| text_of(&folder.path().join(name)).to_owned();
    std::fs::write(path("notes.txt"), "These are my notes, and no database.").expect("writable");

    // A table keeps the keys that it was created with.
    let serve = Serve::start(&["--db", &path("made.db")]).await;
    serve.signal("TERM");
    assert_eq!(serve.ended().await.0, Some(0));

    for (args, expected) in [
        (
            vec!["--memory", "--partition-key", "data"],
            "The key attribute \"data\" belongs to the lock record: name the key otherwise.".to_owned(),
        ),
        (
            vec!["--memory", "--table", "one", "--transaction-table", "one"],
            "The locks and the transactions need a table each: name another one with --transaction-table.".to_owned(),
        ),
        (
            vec!["--memory", "--partition-key", "a", "--sort-key", "a"],
            "The partition key and the sort key are both named \"a\".".to_owned(),
        ),
        (
            vec!["--db", &path("made.db"), "--partition-key", "pk", "--sort-key", "sk"],
            "The table leasehold has the keys (key), not (pk, sk). Name another table, or its keys.".to_owned(),
        ),
        (
            vec!["--db", &path("missing/leasehold.db")],
            format!(
                "cannot open {}: its folder does not exist; create it first, or use a different file",
                path("missing/leasehold.db")
            ),
        ),
        (
            vec!["--db", &path("notes.txt")],
            format!(
                "cannot open {}: it is not a SQLite database; use a different file, or move this one away",
                path("notes.txt")
            ),
        ),
    ] {
        let args = [&["--listen", "127.0.0.1:0"], args.as_slice()].concat();
        assert_eq!(refuses(folder.path(), &args).await, expected);
    }
    let notes = std::fs::read_to_string(path("notes.txt")).expect("still there");
    assert_eq!(notes, "These are my notes, and no database.");

    std::fs::write(path("open"), "[a]\naws_access_key_id = A\naws_secret_access_key = s\n").expect("writable");
    std::fs::set_permissions(path("open"), Permissions::from_mode(0o644)).expect("set");
    let exposed = ["--listen", "127.0.0.1:0", "--memory", "--expose-dynamodb", "0.0.0.0:0"];
    for (more, expected) in [
        (
            vec![],
            "refusing to expose DynamoDB on 0.0.0.0:0, beyond this machine, to everyone: name a file in the format of \
             ~/.aws/credentials with --dynamodb-credentials"
                .to_owned(),
        ),
        (
            vec!["--dynamodb-credentials", &path("open")],
            format!("cannot use the credentials of {}: other users may read it; `chmod 600` it", path("open")),
        ),
    ] {
        assert_eq!(refuses(folder.path(), &[exposed.as_slice(), &more].concat()).await, expected);
    }

    // No server listens on port 1.
    let args = ["--listen", "127.0.0.1:0", "--dynamodb-endpoint", "http://127.0.0.1:1"];
    let sentence = refuses(folder.path(), &args).await;
    assert!(sentence.starts_with("Could not look at the table leasehold: "), "{sentence}");
}

#[tokio::test]
async fn arguments_that_make_no_sense_are_refused() {
    let folder = folder();
    for args in [
        &["--memory", "--db", "x"][..],
        &["--memory", "--dynamodb-endpoint", "http://127.0.0.1:1"],
        &["--db", "x", "--dynamodb-endpoint", "http://127.0.0.1:1"],
        &["--dynamodb-endpoint", "http://127.0.0.1:1", "--expose-dynamodb", "0"],
        &["--memory", "--listen", "nonsense"],
        &["--memory", "--listen", "8080"],
        &["--memory", "--expose-dynamodb", "65536"],
        &["--memory", "--expose-dynamodb", "localhost:8000"],
        &["--memory", "--dynamodb-credentials", "x"],
        &["--memory", "--retention-seconds", "0"],
        &["--memory", "--clock-skew-ms", "0"],
        &["--memory", "--transaction-idle-seconds", "0"],
        &["--memory", "--transaction-patience-ms", "10001"],
        &["--memory", "--clock-skew-ms", "3600001"],
        &["--memory", "--tls-cert", "x"],
        &["--memory", "--insecure", "--token-file", "x"],
        &["--memory", "--owner-binding"],
        &["--memory", "--no-such-flag"],
        &["--memory", "more"],
    ] {
        let (status, stderr) = fails(folder.path(), args).await;
        assert_eq!(status, 2, "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("still there").count(), 0, "no file is made");
}

/// Sends a request up to its body. The service has begun to read the request when this returns.
async fn request_under_way(serve: &Serve, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(serve.address()).await.expect("it listens");
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let expected = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut answer = vec![0; expected.len()];
    within(stream.read_exact(&mut answer)).await.expect("it asks for the body");
    assert_eq!(answer, expected);
    stream
}

#[tokio::test]
async fn stop_waits_for_requests_under_way() {
    for signal in ["TERM", "INT"] {
        let folder = folder();
        let db = folder.path().join("leasehold.db");
        let serve = Serve::start(&["--db", text_of(&db)]).await;
        // This leaves an idle connection behind, for which no stop waits.
        serve.acquire("Moe", "secret").await;
        let body = json!({ "key": "Larry", "ownerName": "test", "leaseId": "secret" }).to_string();
        let mut stream = request_under_way(&serve, body.len()).await;

        serve.signal(signal);
        serve.stops_listening().await;
        stream.write_all(body.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.expect("an answer, and the end of the connection");
        let (head, grant) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let grant: Value = serde_json::from_str(grant).expect("JSON");
        assert_eq!(grant["outcome"], "created");
        assert_eq!(serve.ended().await, (Some(0), vec!["Stopped.".to_owned()]));

        let again = Serve::start(&["--db", text_of(&db)]).await;
        assert_eq!(again.get("Larry").await["recordVersionNumber"], grant["recordVersionNumber"]);
    }
}

#[tokio::test]
async fn second_signal_does_not_wait() {
    let serve = Serve::start(&["--memory"]).await;
    let _stream = request_under_way(&serve, 100).await;
    serve.signal("TERM");
    serve.stops_listening().await;
    serve.signal("TERM");
    assert_eq!(serve.ended().await, (Some(130), vec![]));
}

#[tokio::test]
async fn serve_goes_on_when_sigint_was_ignored_at_the_start() {
    let script = r#"trap '' INT; exec "$0" serve --memory --listen 127.0.0.1:0"#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_leasehold")]).kill_on_drop(true);
    let serve = Serve::spawn(command).await;
    serve.signal("INT");
    serve.signal("INT");
    pause(Duration::from_millis(200)).await;
    serve.acquire("Moe", "secret").await;
    serve.signal("TERM");
    assert_eq!(serve.ended().await, (Some(0), vec!["Stopped.".to_owned()]));
}

#[tokio::test]
async fn serve_continues_when_its_output_is_closed() {
    let serve = Serve::start(&["--memory"]).await;
    let Serve { mut process, stdout, .. } = serve;
    drop(stdout);
    signal(&process, "TERM");
    assert_eq!(within(process.wait()).await.expect("its status").code(), Some(0));
}

#[tokio::test]
async fn other_clients_reach_the_table() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    let grant = serve.acquire("Moe", "secret").await;
    let client = serve.dynamodb().await;
    let text = |value: &str| AttributeValue::S(value.to_owned());
    let row = client.get_item().table_name("leasehold").key("key", text("Moe")).send().await;
    let row = row.expect("it answers").item.expect("the row is there");
    assert_eq!(row["ownerName"], text("test"));
    assert_eq!(row["recordVersionNumber"], text(grant["recordVersionNumber"].as_str().expect("text")));
    assert_eq!(row["fencingToken"], AttributeValue::N(grant["fencingToken"].to_string()));

    // The service reads the rows that these clients write.
    let foreign = [("key", "Larry"), ("ownerName", "java"), ("leaseDuration", "20000"), ("recordVersionNumber", "1")];
    let item = foreign.map(|(name, value)| (name.to_owned(), text(value))).into();
    client.put_item().table_name("leasehold").set_item(Some(item)).send().await.expect("it takes the row");
    let lock = serve.get("Larry").await;
    assert_eq!((&lock["state"], &lock["ownerName"]), (&json!("held"), &json!("java")));

    serve.signal("TERM");
    assert_eq!(serve.ended().await, (Some(0), vec!["Stopped.".to_owned()]));
}

#[tokio::test]
async fn request_is_refused_when_it_would_hold_up_all_others() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    for store in [vec!["--memory"], vec!["--db", text_of(&file)]] {
        let serve = Serve::start(&[store, vec!["--expose-dynamodb", "0"]].concat()).await;
        let client = serve.dynamodb().await;
        let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build();
        let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S).build();
        let table = client.create_table().table_name("items").billing_mode(BillingMode::PayPerRequest);
        let table = table.key_schema(key.expect("complete")).attribute_definitions(id.expect("complete"));
        table.send().await.expect("created");
        let large = AttributeValue::Ns((0..20_000).map(|number| number.to_string()).collect());
        let item = client.put_item().table_name("items").item("id", AttributeValue::S("large".to_owned()));
        item.item("numbers", large).send().await.expect("written");

        let dear = vec!["numbers <> numbers"; 100].join(" OR ");
        let filter = json!({ "tableName": "items", "filterExpression": dear });
        let checked = |condition: &str| {
            let key = json!({ "id": { "S": "large" } });
            let check = json!({ "TableName": "items", "Key": key, "ConditionExpression": condition });
            let put = json!({ "TableName": "items", "Item": { "id": { "S": "new" } } });
            json!([{ "Put": put }, { "ConditionCheck": check }])
        };
        let once = json!({ "commit": true, "requests": checked(&dear) });
        let open = json!({ "requests": checked(&dear) });
        for (path, body) in
            [("/v1/items/list", &filter), ("/v1/transactions/begin", &once), ("/v1/transactions/begin", &open)]
        {
            let (status, answer) = serve.post(path, body).await;
            assert_eq!((status, &answer["title"]), (400, &json!("The request is invalid")), "{path}: {answer}");
            let detail = answer["detail"].as_str().unwrap_or_default();
            assert!(detail.contains("Mention fewer or smaller attributes"), "{path}: {answer}");
        }
        let (status, answer) = serve.post("/v1/items/list", &json!({ "tableName": "items" })).await;
        assert_eq!((status, answer["items"].as_array().map(Vec::len)), (200, Some(1)), "nothing was written: {answer}");
        let heavy = format!("UPDATE items SET a = 1 WHERE id = 'large' AND {}", dear.replace(" OR ", " AND "));
        for (statement, words) in [
            (heavy.as_str(), "Mention fewer or smaller attributes"),
            ("SELECT * FROM items", "names the whole key of one item"),
        ] {
            let refused = client.execute_statement().statement(statement).send().await.expect_err("refused");
            assert_eq!(refused.code(), Some("ValidationException"), "{statement}");
            assert!(refused.message().is_some_and(|message| message.contains(words)), "{refused:?}");
        }
        for statement in ["UPDATE items SET a = 1 WHERE id = 'large'", "SELECT id FROM items WHERE id = 'large'"] {
            client.execute_statement().statement(statement).send().await.expect("carried out");
        }
        // The engine parses each member once for each list around it.
        let members = AttributeValue::L(vec![AttributeValue::Bool(true); 3000]);
        let deep = (0..30).fold(members, |inner, _| AttributeValue::L(vec![inner]));
        let id = AttributeValue::S("deep".to_owned());
        let put = client.put_item().table_name("items").item("id", id).item("a", deep).send().await;
        let refused = put.expect_err("refused");
        assert!(refused.message().is_some_and(|message| message.contains("nest them less deeply")), "{refused:?}");
        let light = json!({ "commit": true, "requests": checked("numbers = numbers") });
        assert_eq!(serve.post("/v1/transactions/begin", &light).await.0, 200);
    }
}

async fn status_of(serve: &Serve, path_and_query: &str) -> u16 {
    let answer = within(serve.http.get(format!("{}{path_and_query}", serve.base_url)).send()).await;
    answer.expect("an answer").status().as_u16()
}

/// Root may write to every file, so the service runs as another user then.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn read_only_database_is_refused_in_a_sentence() {
    const NOBODY: u32 = 65_534;
    let folder = folder();
    let db = folder.path().join("leasehold.db");
    let serve = Serve::start(&["--db", text_of(&db)]).await;
    serve.signal("TERM");
    serve.ended().await;

    let allow = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    allow(folder.path(), 0o777);
    allow(&db, 0o444);
    let binary = folder.path().join("leasehold");
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), &binary).expect("copied");
    let mut command = Command::new(binary);
    command.env_clear().current_dir(folder.path()).kill_on_drop(true);
    command.args(["serve", "--listen", "127.0.0.1:0", "--db", text_of(&db)]);
    if std::fs::metadata(folder.path()).expect("it is there").uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let Output { status, stdout, stderr } = within(command.output()).await.expect("it runs");
    let sentence = String::from_utf8(stderr).expect("text");
    assert_eq!((status.code(), stdout.len()), (Some(1), 0), "{sentence}");
    assert!(sentence.starts_with("leasehold: ") && sentence.trim_end().lines().count() == 1, "{sentence}");
    assert!(sentence.trim_end().ends_with("check that this user may read and write it and its folder"), "{sentence}");
}

#[tokio::test]
async fn forged_cursor_is_an_invalid_request() {
    let serve = Serve::start(&["--memory", "--sort-key", "part"]).await;
    for (key, sort_key) in [("Moe", "1"), ("Moe", "2"), ("Larry", "1"), ("Larry", "2")] {
        let body = json!({ "key": key, "sortKey": sort_key, "ownerName": "test" });
        acquire(&serve.http, &serve.base_url, &body).await.expect("granted");
    }
    let page = serve.http.get(format!("{}/v1/locks?key=Moe&limit=1", serve.base_url)).send().await;
    let page: Value = page.expect("an answer").json().await.expect("JSON");
    let cursor = page["nextCursor"].as_str().expect("there is more");
    assert_eq!(status_of(&serve, &format!("/v1/locks?key=Moe&limit=1&cursor={cursor}")).await, 200);
    for forged in [cursor, "x", "eyJrZXkiOiJNb2UifQ", &cursor[1..]] {
        assert_eq!(status_of(&serve, &format!("/v1/locks?key=Larry&limit=1&cursor={forged}")).await, 400, "{forged}");
    }
    assert_eq!(status_of(&serve, "/v1/health").await, 200);
}

/// A preloaded library moves the wall clock, and nothing else.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn clock_before_1970_is_refused_in_a_sentence() {
    const SOURCE: &str = r"
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int clock_gettime(clockid_t clock, struct timespec *now) {
            int result = syscall(SYS_clock_gettime, clock, now);
            if (clock == CLOCK_REALTIME) now->tv_sec -= 4102444800;
            return result;
        }";
    let folder = folder();
    let library = folder.path().join("early.so");
    std::fs::write(folder.path().join("early.c"), SOURCE).expect("written");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", text_of(&library), text_of(&folder.path().join("early.c"))])
        .status();
    assert!(within(compiled).await.expect("Rust links with it").success());
    let mut early = command(folder.path(), &["--memory", "--listen", "127.0.0.1:0"]);
    early.env("LD_PRELOAD", &library);
    let Output { status, stderr, .. } = within(early.output()).await.expect("it runs");
    let sentence = String::from_utf8(stderr).expect("text");
    assert_eq!(status.code(), Some(1), "{sentence}");
    assert_eq!(sentence, "leasehold: this machine's clock is before 1970; set it, then start again\n");
}

/// A limit on the size of files stands in for a full disk.
#[tokio::test]
async fn full_disk_is_an_outage_and_loses_nothing() {
    let folder = folder();
    let db = folder.path().join("leasehold.db");
    let script = r#"ulimit -f 600; exec "$0" serve --listen 127.0.0.1:0 --db "$1""#;
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_leasehold"), text_of(&db)]);
    limited.env_clear().current_dir(folder.path()).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let serve = Serve::spawn(limited).await;
    let granted = serve.acquire("Moe", "secret").await;

    let mut refusal = None;
    for number in 0..200 {
        let body = json!({ "key": format!("filler-{number}"), "ownerName": "test", "data": "x".repeat(16_384) });
        let response = serve.http.post(format!("{}/v1/acquire", serve.base_url)).json(&body).send().await;
        let response = response.expect("an answer");
        if response.status() != 200 {
            refusal = Some((response.status().as_u16(), response.json::<Value>().await.expect("JSON")));
            break;
        }
    }
    let (status, problem) = refusal.expect("the limit is reached");
    assert_eq!((status, &problem["type"], &problem["retryable"]), (503, &json!("unavailable"), &json!(true)));
    assert_eq!(serve.get("Moe").await["recordVersionNumber"], granted["recordVersionNumber"]);
    // The rest of the space takes small writes, until it is full.
    for number in 0..1000 {
        let body = json!({ "key": format!("small-{number}"), "ownerName": "test" });
        let response = serve.http.post(format!("{}/v1/acquire", serve.base_url)).json(&body).send().await;
        if response.expect("an answer").status() != 200 {
            break;
        }
    }
    for probe in ["/v1/health", "/v1/ready"] {
        assert_eq!(status_of(&serve, probe).await, 503, "{probe}");
    }

    serve.kill_9().await;
    let again = Serve::start(&["--db", text_of(&db)]).await;
    assert_eq!(again.get("Moe").await["recordVersionNumber"], granted["recordVersionNumber"]);
    assert_eq!(again.acquire("Moe", "secret").await["outcome"], "renewed");
}

/// A watch of a lock that does not change.
async fn watching(serve: &Serve, key: &str) -> TcpStream {
    let version = serve.get(key).await["recordVersionNumber"].as_str().expect("text").to_owned();
    let mut stream = TcpStream::connect(serve.address()).await.expect("it listens");
    let head = format!("GET /v1/watch?key={key}&version={version} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

async fn status_line(stream: &mut TcpStream) -> String {
    let mut head = [0; 15];
    within(stream.read_exact(&mut head)).await.expect("an answer");
    String::from_utf8_lossy(&head).into_owned()
}

#[tokio::test]
async fn watch_is_answered_when_the_lock_changes() {
    let serve = Serve::start(&["--memory"]).await;
    serve.acquire("Moe", "secret").await;
    let mut watch = watching(&serve, "Moe").await;
    serve.acquire("Moe", "secret").await;
    assert_eq!(status_line(&mut watch).await, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn watch_is_answered_when_another_client_writes() {
    let serve = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    serve.acquire("Moe", "secret").await;
    let mut watch = watching(&serve, "Moe").await;
    let client = serve.dynamodb().await;
    let update = client.update_item().table_name("leasehold").key("key", AttributeValue::S("Moe".to_owned()));
    let update = update.update_expression("SET recordVersionNumber = :version");
    let update = update.expression_attribute_values(":version", AttributeValue::S("java".to_owned()));
    update.send().await.expect("it takes the row");
    assert_eq!(status_line(&mut watch).await, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn watches_are_answered_when_the_service_stops() {
    let serve = Serve::start(&["--memory"]).await;
    serve.acquire("Moe", "secret").await;
    let mut watch = watching(&serve, "Moe").await;
    // One request is in flight when the signal arrives, or is refused after it. Both end with an answer.
    serve.get("Moe").await;
    serve.signal("TERM");
    assert_eq!(status_line(&mut watch).await, "HTTP/1.1 200 OK");
    assert_eq!(serve.ended().await, (Some(0), vec!["Stopped.".to_owned()]));
}

/// A table in several regions: the service makes none, and has no transactions there.
#[tokio::test]
async fn multi_region_has_no_transactions_and_makes_no_table() {
    let dynamodb = Serve::start(&["--memory", "--expose-dynamodb", "0"]).await;
    let (endpoint, folder) = (exposed_url(&dynamodb), folder());
    let elsewhere = |table: &str| {
        let args = ["--listen", "127.0.0.1:0", "--dynamodb-endpoint", &endpoint, "--multi-region", "--table", table];
        let mut command = command(folder.path(), &args);
        command.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "any").env("AWS_REGION", "us-east-1");
        command
    };
    let Output { status, stderr, .. } = within(elsewhere("other").output()).await.expect("the binary is built");
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.code() == Some(1) && stderr.contains("no table other in this region"), "{stderr}");

    let serve = Serve::spawn(elsewhere("leasehold")).await;
    let tables = format!("  tables    leasehold without transactions, as in several regions, at {endpoint}");
    assert_eq!(serve.banner[1].trim_end_matches('/'), tables.trim_end_matches('/'));
    serve.acquire("Moe", "lease").await;
    for (path, body) in [
        ("/v1/acquire-all", json!({ "ownerName": "me", "keys": [{ "key": "a" }, { "key": "b" }] })),
        ("/v1/transactions/begin", json!({})),
    ] {
        let (status, problem) = serve.post(path, &body).await;
        assert_eq!((status, &problem["type"]), (400, &json!("invalid-request")), "{path}: {problem}");
        assert!(text(&problem["detail"]).contains("several regions"), "{path}: {problem}");
    }
    assert_eq!(dynamodb.get("Moe").await["state"], "held", "both use one table");
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}
