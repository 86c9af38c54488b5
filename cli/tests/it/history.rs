//! `leasehold history`, and the history that `serve` keeps.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Serve, command, end, folder, leasehold, pause, within};

async fn serve(folder: &Path) -> Serve {
    Serve::spawn(command(folder, &["--db", "locks.db", "--history", "7d", "--listen", "127.0.0.1:0"])).await
}

/// The events that the command prints as JSON, as soon as there are so many.
async fn events(serve: &Serve, count: usize, args: &[&str]) -> Vec<Value> {
    let look = async {
        loop {
            let shown = serve.run(&[&["history", "Moe", "--json"], args].concat()).await;
            assert_eq!(shown.status, 0, "{}", shown.stderr);
            let entries: Vec<Value> =
                shown.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            if entries.len() >= count {
                return entries;
            }
            pause(Duration::from_millis(50)).await;
        }
    };
    within(look).await
}

/// Event, owner and the one before.
fn told(entries: &[Value]) -> Vec<(&str, &str, Option<&str>)> {
    entries
        .iter()
        .map(|entry| {
            let text = |member: &str| entry[member].as_str();
            (text("event").expect("an event"), text("ownerName").expect("an owner"), text("previousOwnerName"))
        })
        .collect()
}

#[tokio::test]
async fn history_tells_each_turn_of_a_lock_in_order() {
    let folder = folder();
    let served = serve(folder.path()).await;
    served.acquire("Moe", "one").await;
    served.post("/v1/heartbeat", &json!({ "key": "Moe", "leaseId": "one" })).await;
    let taken = served.take_over("Moe", "thief").await;
    served.post("/v1/break", &json!({ "key": "Moe", "recordVersionNumber": taken["recordVersionNumber"] })).await;
    served.acquire("Moe", "two").await;
    served.post("/v1/release", &json!({ "key": "Moe", "leaseId": "two" })).await;
    // A transaction of several locks.
    let both = json!({ "keys": [{ "key": "Moe" }, { "key": "Joe" }], "ownerName": "both", "leaseId": "three" });
    served.post("/v1/acquire-all", &both).await;
    let entries = events(&served, 6, &[]).await;
    let expected = [
        ("acquired", "test", None),
        ("takenOver", "thief", Some("test")),
        ("broken", "thief", None),
        ("acquired", "test", None),
        ("released", "test", None),
        ("acquired", "both", None),
    ];
    assert_eq!(told(&entries), expected);
    let tokens: Vec<_> = entries.iter().map(|entry| entry["fencingToken"].as_u64().expect("a token")).collect();
    assert!(tokens.is_sorted() && tokens[1] == taken["fencingToken"], "{tokens:?}");
    // The newest ones, and those of a time.
    assert_eq!(told(&events(&served, 2, &["--limit", "2"]).await), expected[4..]);
    assert_eq!(events(&served, 6, &["--since", "1h"]).await.len(), 6);
    assert_eq!(events(&served, 0, &["--until", "1h"]).await, Vec::<Value>::new());
    let shown = served.run(&["history", "Moe"]).await;
    assert!(shown.stdout.contains("taken over") && shown.stdout.contains("thief"), "{}", shown.stdout);
    // What was told stays, and goes on.
    served.signal("TERM");
    served.ended().await;
    let served = serve(folder.path()).await;
    served.post("/v1/release", &json!({ "key": "Moe", "leaseId": "three" })).await;
    let entries = events(&served, 7, &[]).await;
    assert_eq!(told(&entries[..6]), expected);
    assert_eq!(told(&entries[6..]), [("released", "both", None)]);
}

#[tokio::test]
async fn last_turns_are_told_before_the_service_ends() {
    let folder = folder();
    let served = serve(folder.path()).await;
    for turn in 0..50 {
        served.acquire("Moe", &format!("lease {turn}")).await;
        served.post("/v1/release", &json!({ "key": "Moe", "leaseId": format!("lease {turn}") })).await;
    }
    served.signal("TERM");
    served.ended().await;
    let served = serve(folder.path()).await;
    assert_eq!(events(&served, 0, &[]).await.len(), 100);
}

#[tokio::test]
async fn service_without_a_history_says_so() {
    let served = Serve::memory().await;
    let refused = served.run(&["history", "Moe"]).await;
    assert_ne!(refused.status, 0);
    assert!(refused.stderr.contains("This service keeps no history."), "{}", refused.stderr);
    let answer = served.http.get(format!("{}/v1/history?key=Moe", served.base_url)).send().await.expect("an answer");
    let problem: Value = answer.json().await.expect("JSON");
    // It may be the history, and not the lock, that is not there.
    assert_eq!((&problem["status"], &problem["title"]), (&json!(404), &json!("It was not found")));
    let folder = folder();
    let mut elsewhere = leasehold(folder.path());
    elsewhere.args(["serve", "--history", "7d", "--memory", "--history-table", "leasehold"]);
    let refused = end(elsewhere).await;
    assert!(refused.stderr.contains("The history needs a table of its own"), "{}", refused.stderr);
}

#[tokio::test]
async fn row_that_nobody_uses_goes_after_its_retention() {
    let folder = folder();
    let more = ["--db", "locks.db", "--history", "7d", "--retention-seconds", "1", "--listen", "127.0.0.1:0"];
    let served = Serve::spawn(command(folder.path(), &more)).await;
    let body = |key: &str, lease_ms: u64| json!({ "key": key, "ownerName": "test", "leaseId": key, "leaseDurationMs": lease_ms });
    assert_eq!(served.post("/v1/acquire", &body("kept", 60_000)).await.0, 200);
    let (_, left) = served.post("/v1/acquire", &body("Moe", 1000)).await;
    let entries = events(&served, 2, &[]).await;
    assert_eq!(told(&entries), [("acquired", "test", None), ("expired", "test", None)]);
    assert_eq!(served.get("kept").await["state"], "held");
    // The lock is free, and no old token is given again.
    let again = served.acquire("Moe", "again").await;
    assert_eq!(again["outcome"], "created");
    assert!(again["fencingToken"].as_u64() > left["fencingToken"].as_u64());
}
