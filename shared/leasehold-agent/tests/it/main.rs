//! The program as its callers use it: a real service, a real process, requests by HTTP.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::support::{Local, Service, within};

#[tokio::test]
async fn lock_is_held_until_its_handle_is_released() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    let (status, headers, granted) = agent.post("/acquire", &json!({ "key": "Moe", "leaseDurationMs": 3000 })).await;
    assert_eq!((status, granted["key"].as_str()), (200, Some("Moe")));
    let token = granted["fencingToken"].as_u64().unwrap();
    assert_eq!(headers["leasehold-fencing-token"], token.to_string().as_str());
    let handle = granted["handle"].as_str().unwrap();

    let (status, _, holder) = agent.post("/acquire", &json!({ "key": "Moe" })).await;
    assert_eq!((status, holder["ownerName"].as_str(), holder["state"].as_str()), (423, Some("test"), Some("held")));
    assert!(!format!("{granted} {holder}").contains("leaseId"), "the lease id stays in the agent");

    // Heartbeats outlast the lease.
    support::pause(Duration::from_secs(4)).await;
    let believed = async {
        loop {
            let shown = agent.get(&format!("/lock?handle={handle}")).await.1;
            assert_eq!((&shown["fencingToken"], &shown["lost"]), (&json!(token), &Value::Null));
            if shown["validForMs"].as_u64() > Some(0) {
                return;
            }
            support::pause(Duration::from_millis(20)).await;
        }
    };
    within(believed).await;
    assert_eq!(agent.get("/locks").await.1["locks"][0]["handle"], handle);

    assert_eq!(agent.post("/release", &json!({ "handle": handle })).await.0, 200);
    assert_eq!(service.state("Moe").await, "released");
    assert_eq!(agent.post("/release", &json!({ "handle": handle })).await.0, 404);
    assert_eq!(agent.get("/locks").await.1, json!({ "locks": [] }));
}

#[tokio::test]
async fn lock_is_held_when_the_first_endpoint_is_dead() {
    let service = Service::start().await;
    let agent = service.agent_after("http://127.0.0.1:1").await;
    let (status, _, granted) = agent.post("/acquire", &json!({ "key": "Moe" })).await;
    assert_eq!((status, service.state("Moe").await.as_str()), (200, "held"), "{granted}");
    assert_eq!(agent.post("/release", &json!({ "handle": granted["handle"] })).await.0, 200);
    assert_eq!(service.state("Moe").await, "released");
}

#[tokio::test]
async fn hold_ends_with_its_connection() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    let mut lines = agent.hold(&json!({ "key": "Moe", "leaseDurationMs": 4000 })).await;
    let first = lines.next().await;
    assert_eq!((first["event"].as_str(), first["key"].as_str()), (Some("granted"), Some("Moe")));
    assert_eq!(lines.next().await["event"], "renewed");
    assert_eq!(service.state("Moe").await, "held");
    drop(lines);
    service.until("Moe", "released").await;
}

#[tokio::test]
async fn hold_tells_a_waiter_and_a_loss() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    let mut lines = agent.hold(&json!({ "key": "Moe", "leaseDurationMs": 5000 })).await;
    let handle = lines.next().await["handle"].as_str().unwrap().to_owned();
    service.want("Moe").await;
    lines.until("wanted").await;
    service.break_lock("Moe").await;
    assert_eq!(lines.until("lost").await["reason"], "released");
    assert!(lines.is_over().await, "nothing follows a loss");
    drop(lines);
    let gone = async {
        while agent.get(&format!("/lock?handle={handle}")).await.0 != 404 {
            support::pause(Duration::from_millis(20)).await;
        }
    };
    within(gone).await;
}

#[tokio::test]
async fn release_says_that_a_lock_was_lost() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    let granted = agent.post("/acquire", &json!({ "key": "Moe", "leaseDurationMs": 4000 })).await.2;
    service.break_lock("Moe").await;
    let query = format!("/lock?handle={}", granted["handle"].as_str().unwrap());
    let told = async {
        while agent.get(&query).await.1["lost"].is_null() {
            support::pause(Duration::from_millis(20)).await;
        }
    };
    within(told).await;
    assert_eq!(agent.get(&query).await.1["validForMs"], 0);
    let (status, _, problem) = agent.post("/release", &json!({ "handle": granted["handle"] })).await;
    assert_eq!((status, problem["type"].as_str(), problem["reason"].as_str()), (409, Some("lost"), Some("released")));
}

#[tokio::test]
async fn waiter_gets_the_lock_when_it_is_released() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    let granted = agent.acquire("Moe").await;
    let body = json!({ "key": "Moe", "wait": "15s" });
    let waiter = agent.post("/acquire", &body);
    let release = async {
        support::pause(Duration::from_millis(300)).await;
        agent.post("/release", &json!({ "handle": granted["handle"] })).await.0
    };
    let ((status, _, second), released) = tokio::join!(waiter, release);
    assert_eq!((status, released), (200, 200), "{second}");
    assert!(second["fencingToken"].as_u64() > granted["fencingToken"].as_u64());
}

#[tokio::test]
async fn occurrence_that_is_done_answers_with_its_result() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    let body = json!({ "key": "pay", "occurrence": "event-1" });
    let granted = agent.post("/acquire", &body).await.2;
    let done = json!({ "handle": granted["handle"], "completed": true, "data": "receipt 7" });
    assert_eq!(agent.post("/release", &done).await.0, 200);
    let (status, _, problem) = agent.post("/acquire", &body).await;
    assert_eq!((status, problem["type"].as_str()), (409, Some("already-done")));
    assert_eq!(problem["result"], "receipt 7");
    let body = json!({ "key": "pay-2", "occurrence": "event-1" });
    let granted = agent.post("/acquire", &body).await.2;
    let done = json!({ "handle": granted["handle"], "completed": true, "completedTtlMs": 3_600_000 });
    assert_eq!(agent.post("/release", &done).await.0, 200);
    assert_eq!(agent.post("/acquire", &body).await.0, 409);
}

#[tokio::test]
async fn permits_are_counted() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    let body = json!({ "key": "licences", "permits": 2, "capacity": 3 });
    let granted = agent.post("/acquire", &body).await.2;
    let (status, _, held) = agent.post("/acquire", &body).await;
    assert_eq!((status, held["available"].as_u64()), (423, Some(1)), "{held}");
    assert_eq!(agent.post("/release", &json!({ "handle": granted["handle"] })).await.0, 200);
    assert_eq!(agent.post("/acquire", &body).await.0, 200);
}

#[tokio::test]
async fn request_that_breaks_a_rule_is_refused() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    for body in [
        json!({}),
        json!({ "key": "Moe", "colour": "red" }),
        json!({ "key": "Moe", "wait": "10" }),
        json!({ "key": "Moe", "wait": "invocation" }),
        json!({ "key": "Moe", "leaseDurationMs": 1 }),
        json!({ "key": "Moe", "permits": 1 }),
        json!({ "key": "Moe", "permits": 1, "capacity": 1, "occurrence": "1" }),
    ] {
        let (status, _, problem) = agent.post("/acquire", &body).await;
        assert_eq!((status, problem["type"].as_str()), (400, Some("invalid-request")), "{body}: {problem}");
    }
    let granted = agent.acquire("Moe").await;
    let completed = json!({ "handle": granted["handle"], "completed": true });
    assert_eq!(agent.post("/release", &completed).await.0, 400, "no occurrence was asked for");
    let time = json!({ "handle": granted["handle"], "completedTtlMs": 1000 });
    assert_eq!(agent.post("/release", &time).await.0, 400, "the time of no occurrence");
    assert_eq!(agent.post("/release", &json!({ "handle": "x" })).await.0, 404);
    assert_eq!(agent.get("/elsewhere").await.2["type"], "unknown-route");
}

#[tokio::test]
async fn web_page_is_refused() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    for (name, value) in [("origin", "https://evil.test"), ("host", "evil.test"), ("sec-fetch-site", "cross-site")] {
        let request = agent.request("/acquire", &json!({ "key": "Moe" })).header(name, value);
        assert_eq!(request.send().await.unwrap().status(), 403, "{name}");
    }
    assert_eq!(agent.get("/locks").await.1, json!({ "locks": [] }));
}

#[tokio::test]
async fn token_is_made_and_required() {
    let service = Service::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let agent = service.agent(&["--token-file", path.to_str().unwrap()]).await;
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(&path).unwrap();
    for (sent, expected) in [(None, 403), (Some("wrong"), 403), (Some(token.trim()), 200)] {
        let request = agent.request("/acquire", &json!({ "key": "Moe" }));
        let request =
            sent.map_or_else(|| request.try_clone().unwrap(), |token| request.try_clone().unwrap().bearer_auth(token));
        assert_eq!(request.send().await.unwrap().status(), expected, "{sent:?}");
    }
}

#[tokio::test]
async fn socket_is_for_one_user_and_replaces_a_dead_one() {
    let service = Service::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listen = format!("unix:{}", path.display());
    service.spawn(&["--listen", &listen]).await.kill().await.unwrap();
    assert!(path.exists(), "a killed agent leaves its socket");
    let _agent = service.spawn(&["--listen", &listen]).await;
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let body = r#"{"key":"Moe"}"#;
    let head =
        format!("POST /acquire HTTP/1.1\r\nhost: agent\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(service.state("Moe").await, "held");
}

#[tokio::test]
async fn signal_releases_all_locks() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    for key in ["Moe", "Larry"] {
        agent.acquire(key).await;
    }
    let mut kept = agent.hold(&json!({ "key": "Curly", "keep": true })).await;
    kept.next().await;
    assert!(agent.terminate().await, "it ends well");
    for key in ["Moe", "Larry", "Curly"] {
        assert_eq!(service.state(key).await, "released", "{key}");
    }
    assert_eq!(kept.until("lost").await["reason"], "shutdown");
}

#[tokio::test]
async fn health_is_that_of_the_service() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    assert_eq!(agent.get("/health").await.0, 200);
    let alone = Local::start("http://127.0.0.1:9", &[]).await;
    assert_eq!(alone.get("/health").await.0, 503);
}

#[tokio::test]
async fn pause_of_the_process_is_noticed() {
    let service = Service::start().await;
    let agent = service.agent(&[]).await;
    let granted = agent.acquire("Moe").await;
    service.stop_answering(true);
    agent.pause(Duration::from_millis(1500)).await;
    let query = format!("/lock?handle={}", granted["handle"].as_str().unwrap());
    let shown = agent.get(&query).await.1;
    assert_eq!((shown["validForMs"].as_u64(), &shown["lost"]), (Some(0), &Value::Null), "nothing is believed in");
    service.stop_answering(false);
    let believed = async {
        while agent.get(&query).await.1["validForMs"] == 0 {
            support::pause(Duration::from_millis(20)).await;
        }
    };
    within(believed).await;
}

#[tokio::test]
async fn service_comes_from_options_or_the_environment() {
    let service = Service::start().await;
    // An option outdoes the variables.
    let variables = [("LEASEHOLD_LAMBDA", "locks"), ("LEASEHOLD_URL", "none")];
    let agent = service.agent_with(&variables).await;
    assert_eq!(agent.get("/health").await.0, 200);
    assert_eq!(service.agent_with(&[("LEASEHOLD_SIGV4", "off")]).await.get("/health").await.0, 200);
    // Both sign, and there are no credentials.
    for variable in [("LEASEHOLD_LAMBDA", "locks"), ("LEASEHOLD_SIGV4", "1")] {
        let told = support::refusal_to_start(variable).await;
        assert!(told.contains("set AWS_ACCESS_KEY_ID"), "{variable:?}: {told}");
    }
}
