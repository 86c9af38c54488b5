//! The views of an operator: the log, and the dashboard.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::{Serve, command, end, folder, leasehold, text_of, within};

#[tokio::test]
async fn log_names_key_principal_and_outcome() {
    let folder = folder();
    let file = folder.path().join("tokens.json");
    let mut make = leasehold(folder.path());
    make.args(["token", "ci", "--file", text_of(&file)]);
    let token = end(make).await.stdout;
    let mut command = command(folder.path(), &["--memory", "--listen", "127.0.0.1:0", "--token-file", text_of(&file)]);
    command.env("LEASEHOLD_LOG", "info").stderr(Stdio::piped());
    let mut serve = Serve::spawn(command).await;
    let body = json!({ "key": "deploy/a", "ownerName": "me", "leaseId": "secret" });
    let request = serve.http.post(format!("{}/v1/acquire", serve.base_url)).bearer_auth(token.trim()).json(&body);
    assert_eq!(within(request.send()).await.expect("an answer").status(), 200);
    let mut lines = BufReader::new(serve.process.stderr.take().expect("piped")).lines();
    loop {
        let line = within(lines.next_line()).await.expect("text").expect("a line");
        assert!(!line.contains("secret"), "{line}");
        if line.contains("operation=\"acquire\"") {
            let parts = ["key=\"deploy/a\"", "principal=\"token:ci\"", "outcome=\"created\""];
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
            break;
        }
    }
}

#[test]
fn dashboard_shows_metrics_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("readable");
    let described = read("shared/leasehold-api/src/counts.rs") + &read("shared/leasehold-server/src/metrics.rs");
    let dashboard: Value = serde_json::from_str(&read("packaging/grafana/leasehold.json")).expect("JSON");
    let text = dashboard.to_string();
    let mut shown = BTreeSet::new();
    for part in text.split("leasehold_").skip(1) {
        let name: String = part.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
        let name =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name).to_owned();
        assert!(described.contains(&format!("!(\"{name}\"")), "{name}");
        shown.insert(name);
    }
    assert!(shown.len() > 15, "{shown:?}");
}
