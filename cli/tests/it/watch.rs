//! `leasehold watch` as a process.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::{Serve, signal, within};

#[tokio::test]
async fn watch_prints_the_life_of_a_lock() {
    let serve = Serve::memory().await;
    let mut command = serve.command(&["watch", "Moe", "--json", "--interval", "20ms"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = async || -> Value {
        let line = within(lines.next_line()).await.expect("text").expect("it goes on");
        serde_json::from_str(&line).expect("JSON")
    };
    let absent = next().await;
    assert_eq!((&absent["event"], &absent["key"]), (&"absent".into(), &"Moe".into()));

    let acquired = serve.run(&["acquire", "Moe", "--owner", "host-1", "--lease", "300ms", "--json"]).await;
    assert_eq!(acquired.status, 0);
    let acquired = acquired.json();
    let held = next().await;
    assert_eq!((&held["event"], &held["lock"]["ownerName"]), (&"held".into(), &"host-1".into()));
    let stale = next().await;
    assert_eq!(stale["event"], "stale");
    let waited = stale["atEpochMs"].as_u64().unwrap() - held["atEpochMs"].as_u64().unwrap();
    assert!((300..3000).contains(&waited), "{waited} ms after it was first seen");

    let lease_id = acquired["leaseId"].as_str().unwrap();
    serve.run(&["heartbeat", "Moe", "--lease-id", lease_id, "--lease", "10s"]).await.ok();
    let heartbeat = next().await;
    assert_eq!(heartbeat["event"], "heartbeat");
    assert!(heartbeat["afterMs"].as_u64().unwrap() >= 300);
    serve.run(&["release", "Moe", "--lease-id", lease_id]).await.ok();
    assert_eq!(next().await["event"], "released");

    signal(&watch, "INT");
    let output = within(watch.wait_with_output()).await.unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[tokio::test]
async fn watch_prints_lines_for_people_in_a_pipe() {
    let serve = Serve::memory().await;
    serve.acquire("Moe", "secret").await;
    let mut watch = serve.command(&["watch", "Moe"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let line = within(BufReader::new(watch.stdout.take().unwrap()).lines().next_line()).await.unwrap().unwrap();
    let (time, what) = line.split_once("  ").expect("the time comes first");
    assert!(time.len() == "12:34:56.789Z".len() && time.ends_with('Z'), "{line}");
    assert!(what.starts_with("held       by test, lease 20s, token "), "{line}");
    signal(&watch, "TERM");
    let output = within(watch.wait_with_output()).await.unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[tokio::test]
async fn watch_tells_of_a_change_before_its_interval_is_over() {
    let serve = Serve::memory().await;
    serve.acquire("Moe", "secret").await;
    // The test's patience is shorter than the interval.
    let args = ["watch", "Moe", "--json", "--interval", "10m"];
    let mut watch = serve.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = async || -> Value {
        let line = within(lines.next_line()).await.expect("text").expect("it goes on");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!(next().await["event"], "held");
    serve.run(&["heartbeat", "Moe", "--lease-id", "secret"]).await.ok();
    assert_eq!(next().await["event"], "heartbeat");
    serve.run(&["release", "Moe", "--lease-id", "secret"]).await.ok();
    assert_eq!(next().await["event"], "released");
}

#[tokio::test]
async fn watch_tells_the_life_of_a_semaphore() {
    let serve = Serve::memory().await;
    let mut watch =
        serve.command(&["watch", "pool", "--json", "--interval", "100ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = async || -> Value {
        let line = within(lines.next_line()).await.expect("text").expect("it goes on");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!(next().await["event"], "absent");
    let args =
        ["run", "pool", "--of", "2", "--permits", "2", "--lease", "4s", "--owner", "host-1", "--", "sleep", "60"];
    let mut holder = serve.spawn_command(&args);
    let found = next().await;
    assert_eq!((&found["event"], &found["semaphore"]["capacity"]), (&"semaphore".into(), &2.into()));
    let granted = next().await;
    assert_eq!((&granted["event"], &granted["holder"]["ownerName"]), (&"granted".into(), &"host-1".into()));
    let heartbeat = next().await;
    assert_eq!(
        (&heartbeat["event"], &heartbeat["holder"]["holderId"]),
        (&"heartbeat".into(), &granted["holder"]["holderId"])
    );
    within(holder.kill()).await.unwrap();
    while next().await["event"] != "stale" {}
    let waiting = serve.spawn_command(&["run", "pool", "--of", "2", "--owner", "host-2", "--", "sleep", "4"]);
    let mut events = Vec::new();
    while events.last().is_none_or(|last| last != "returned host-2") {
        let event = next().await;
        let owner =
            ["holder", "ticket"].iter().find_map(|entry| event[entry]["ownerName"].as_str()).unwrap_or_default();
        events.push(format!("{} {owner}", event["event"].as_str().unwrap()));
    }
    events.retain(|event| !event.starts_with("heartbeat"));
    assert_eq!(events, ["queued host-2", "returned host-1", "left host-2", "granted host-2", "returned host-2"]);
    assert_eq!(within(waiting.wait_with_output()).await.unwrap().status.code(), Some(0));
    signal(&watch, "INT");
    assert_eq!(within(watch.wait()).await.unwrap().code(), Some(0));
}
