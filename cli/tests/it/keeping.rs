//! `acquire`, `heartbeat` and `release`: a lock that lives longer than a process.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::Instant;

use crate::support::{Serve, finish, folder, pause, signal, text_of, within};

async fn acquire(serve: &Serve, args: &[&str]) -> Value {
    let ended = serve.run(&[&["acquire", "--json"], args].concat()).await;
    assert_eq!(ended.status, 0, "{ended:?}");
    ended.json()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().expect("text")
}

#[tokio::test]
async fn acquired_lock_is_renewed_and_released_elsewhere() {
    let serve = Serve::memory().await;
    let granted = acquire(&serve, &["Moe", "--lease", "5s", "--data", "x"]).await;
    assert_eq!((&granted["outcome"], &granted["leaseDurationMs"]), (&json!("created"), &json!(5000)));
    assert_eq!(serve.get("Moe").await["state"], "held", "it stays held");
    let lease_id = text(&granted, "leaseId");
    let renewed = serve.run(&["heartbeat", "Moe", "--lease-id", lease_id, "--data", "y", "--json"]).await.json();
    assert_eq!((&renewed["fencingToken"], &renewed["leaseDurationMs"]), (&granted["fencingToken"], &json!(5000)));
    assert_eq!(serve.get("Moe").await["data"], "y");
    serve.run(&["heartbeat", "Moe", "--lease-id", lease_id, "--delete-data"]).await.ok();
    assert_eq!(serve.get("Moe").await["data"], Value::Null);
    serve.run(&["release", "Moe", "--lease-id", lease_id, "--delete"]).await.ok();
    assert_eq!(serve.run(&["get", "Moe"]).await.status, 66);

    let again = acquire(&serve, &["Moe"]).await;
    assert!(again["fencingToken"].as_u64() > granted["fencingToken"].as_u64());
}

#[tokio::test]
async fn data_may_come_from_standard_input_and_need_not_be_text() {
    let serve = Serve::memory().await;
    let mut command = serve.command(&["acquire", "Moe", "--data-file", "-"]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(&[0xff, 0, 1]).await.unwrap();
    let printed = finish(process).await.ok();
    assert!(printed.contains("\n  data      3 bytes that are not text\n"), "{printed}");
    assert_eq!(serve.get("Moe").await["dataBase64"], "/wAB");
    serve.run(&["break", "Moe", "--yes"]).await.ok();
    assert_eq!(acquire(&serve, &["Moe"]).await["dataBase64"], "/wAB");
}

#[tokio::test]
async fn heartbeats_go_on_until_a_signal_and_the_lock_stays() {
    let serve = Serve::memory().await;
    let granted = acquire(&serve, &["Moe", "--lease", "4s"]).await;
    let lease_id = text(&granted, "leaseId");
    let mut beating = serve.spawn_command(&["heartbeat", "Moe", "--lease-id", lease_id, "--every", "200ms"]);
    let mut lines = BufReader::new(beating.stdout.take().unwrap()).lines();
    assert_eq!(within(lines.next_line()).await.unwrap().as_deref(), Some("Moe is renewed"));
    let refused = serve.run(&["acquire", "Moe", "--wait", "5s"]).await;
    assert_eq!(refused.status, 75, "{refused:?}");
    signal(&beating, "TERM");
    let ended = finish(beating).await;
    assert_eq!(ended.status, 0);
    let told = "leasehold: SIGTERM: no more heartbeats; Moe stays held for another ";
    let left = ended.stderr.strip_prefix(told).unwrap_or_default();
    assert!(left.starts_with("4s") || left.starts_with("3s"), "{ended:?}");
    assert_eq!(serve.get("Moe").await["state"], "held");
    // A caller that waits for one lease gets the lock then.
    assert_eq!(acquire(&serve, &["Moe"]).await["outcome"], "takenOver");
}

#[tokio::test]
async fn heartbeats_end_with_the_loss() {
    let serve = Serve::memory().await;
    let granted = acquire(&serve, &["Moe", "--lease", "20s"]).await;
    let args = ["heartbeat", "Moe", "--lease-id", text(&granted, "leaseId"), "--every", "100ms"];
    let mut beating = serve.spawn_command(&args);
    let mut lines = BufReader::new(beating.stdout.take().unwrap()).lines();
    assert_eq!(within(lines.next_line()).await.unwrap().as_deref(), Some("Moe is renewed"));
    serve.until("Moe", |lock| lock["recordVersionNumber"] != granted["recordVersionNumber"]).await;
    let version = serve.get("Moe").await["recordVersionNumber"].clone();
    serve.until("Moe", |lock| lock["recordVersionNumber"] != version).await;
    // The version may move between the look and the break.
    while serve.run(&["break", "Moe", "--yes"]).await.status != 0 {}
    let ended = finish(beating).await;
    assert_eq!(ended.status, 76);
    assert_eq!(ended.stderr, "leasehold: Moe is lost: the lock was released elsewhere, or broken by an operator\n");
}

#[tokio::test]
async fn release_of_a_free_lock_under_another_lease_id_blames_nobody() {
    let serve = Serve::memory().await;
    let granted = acquire(&serve, &["Moe", "--owner", "host-1"]).await;
    serve.run(&["release", "Moe", "--lease-id", text(&granted, "leaseId")]).await.ok();
    let ended = serve.run(&["release", "Moe", "--lease-id", "another"]).await;
    assert_eq!(ended.status, 76);
    let told = "leasehold: \"Moe\" is lost: the lock was \"host-1\"'s last, under another lease id, and is free now\n";
    assert_eq!(ended.stderr, told);
}

#[tokio::test]
async fn dead_holder_is_outlived() {
    let serve = Serve::memory().await;
    acquire(&serve, &["Moe", "--owner", "host-1", "--lease", "1s"]).await;
    let started = Instant::now();
    let taken = acquire(&serve, &["Moe", "--owner", "host-2"]).await;
    assert_eq!((&taken["outcome"], &taken["previousOwnerName"]), (&json!("takenOver"), &json!("host-1")));
    assert!((1000..15_000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[tokio::test]
async fn takeover_needs_no_wait_by_the_servers_clock() {
    let serve = Serve::memory().await;
    acquire(&serve, &["Larry"]).await;
    acquire(&serve, &["Moe", "--lease", "100ms"]).await;
    assert_eq!(serve.run(&["acquire", "Larry", "--no-wait", "--stale-by-clock"]).await.status, 75);
    // The pause is longer than the lease and the bound of the skew: 100 ms and a second.
    pause(Duration::from_millis(1300)).await;
    assert_eq!(acquire(&serve, &["Moe", "--no-wait", "--stale-by-clock"]).await["outcome"], "takenOver");
}

#[tokio::test]
async fn jobs_that_never_wait_recover_a_dead_lock_by_what_they_saved() {
    let serve = Serve::memory().await;
    let folder = folder();
    let file = folder.path().join("observations.json");
    let job = ["acquire", "Moe", "--no-wait", "--observations", text_of(&file)];
    acquire(&serve, &["Moe", "--owner", "host-1", "--lease", "1s"]).await;
    let started = Instant::now();
    let mut tries = 0;
    // A job runs each half second: less than the second by which clocks may differ, so that an error of a run would add
    // up.
    let taken = loop {
        tries += 1;
        let ended = serve.run(&[&job[..], &["--json"]].concat()).await;
        match ended.status {
            75 => pause(Duration::from_millis(500)).await,
            0 => break ended.json(),
            _ => panic!("{ended:?}"),
        }
        assert!(started.elapsed() < Duration::from_secs(15), "not taken over after {tries} tries");
        let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).expect("JSON");
        assert_eq!((&saved[0]["key"], &saved[0]["leaseDurationMs"]), (&json!("Moe"), &json!(1000)));
    };
    assert_eq!((&taken["outcome"], &taken["previousOwnerName"]), (&json!("takenOver"), &json!("host-1")));
    // The time is at least the lease and the margin of the clocks.
    assert!(started.elapsed() >= Duration::from_secs(2) && tries > 1, "{tries} tries, {:?}", started.elapsed());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "[]\n", "a lock that is had needs no watching");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no other files");
}

#[tokio::test]
async fn damaged_file_of_observations_is_left_alone() {
    let serve = Serve::memory().await;
    let folder = folder();
    let file = folder.path().join("observations.json");
    for damaged in ["", "[{\"key\":\"Moe\"", "[{\"key\":\"Moe\"}]", "my notes"] {
        std::fs::write(&file, damaged).unwrap();
        let ended = serve.run(&["acquire", "Moe", "--observations", text_of(&file)]).await;
        assert_eq!(ended.status, 65, "{ended:?}");
        let start = format!("leasehold: {} is no file of observations, or damaged: ", text_of(&file));
        assert!(ended.stderr.starts_with(&start), "{ended:?}");
        assert!(ended.stderr.ends_with("; delete it to watch the lock anew, or name another file\n"), "{ended:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), damaged);
    }
    assert_eq!(serve.run(&["get", "Moe"]).await.status, 66, "nothing was acquired");
}

#[tokio::test]
async fn file_of_observations_that_cannot_be_written_is_told() {
    let serve = Serve::memory().await;
    let ended = serve.run(&["acquire", "Moe", "--observations", "/nonexistent/observations.json"]).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (1, ""));
    assert!(ended.stderr.starts_with("leasehold: cannot write /nonexistent/observations.json: "), "{ended:?}");
    assert_eq!(serve.run(&["get", "Moe"]).await.status, 66, "nothing was acquired");
}

#[tokio::test]
async fn signal_ends_the_wait() {
    let serve = Serve::memory().await;
    let held = serve.acquire("Moe", "secret").await;
    let mut waiting = serve.spawn_command(&["acquire", "Moe", "--wait", "forever"]);
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap()).lines();
    within(stderr.next_line()).await.unwrap().expect("it waits");
    signal(&waiting, "INT");
    let ended = finish(waiting).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (130, ""));
    assert_eq!(serve.get("Moe").await["recordVersionNumber"], held["recordVersionNumber"]);
}
