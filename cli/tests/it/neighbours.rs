//! Clients that send slowly, do not read, or stay: others keep their locks, and the service keeps its size.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::support::{Serve, folder, leasehold, pause, within};

/// Memory of the service beside any of these clients.
const MAX_MEGABYTES: u64 = 128;

/// The largest resident size so far.
fn highest_megabytes(serve: &Serve) -> u64 {
    let pid = serve.process.id().expect("it is running");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|size| size.parse::<u64>().ok()).expect("a number") / 1024
}

async fn connect(serve: &Serve) -> TcpStream {
    within(TcpStream::connect(serve.address())).await.expect("it listens")
}

/// A connection on which these bytes were sent. The service may have closed it meanwhile.
async fn sent(serve: &Serve, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(serve).await;
    let _ = stream.write_all(bytes).await;
    stream
}

fn post(path: &str, length: usize) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

/// The status of a heartbeat on a connection of its own, as of a client that starts again.
async fn heartbeat(serve: &Serve, key: &str) -> u16 {
    let body = json!({ "key": key, "leaseId": "secret" });
    let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().expect("a client");
    let sent = client.post(format!("{}/v1/heartbeat", serve.base_url)).json(&body).send();
    within(sent).await.expect("an answer").status().as_u16()
}

/// `leasehold serve` with so many file descriptors.
fn limited(folder: &Path, descriptors: usize) -> Command {
    let serve = leasehold(folder);
    let program = serve.as_std().get_program().to_owned();
    let mut command = Command::new("sh");
    command.current_dir(folder).kill_on_drop(true);
    command.arg("-c").arg(format!("ulimit -n {descriptors} && exec \"$0\" serve --memory --listen 127.0.0.1:0"));
    command.arg(program);
    command
}

#[tokio::test]
async fn unfinished_bodies_take_bounded_memory() {
    for (count, length, part) in [(1500, 60_000, 59_000), (1300, 500_000, 300_000)] {
        let serve = Serve::start(&["--memory"]).await;
        serve.acquire("held", "secret").await;
        let mut bytes = post("/v1/acquire", length);
        bytes.extend(vec![b' '; part]);
        let mut streams = Vec::new();
        for index in 0..count {
            let bytes = bytes.clone();
            let mut stream = connect(&serve).await;
            tokio::spawn(async move {
                let _ = stream.write_all(&bytes).await;
                pause(Duration::from_secs(30)).await;
            });
            if index % 100 == 0 {
                assert_eq!(heartbeat(&serve, "held").await, 200);
            }
            streams.push(index);
        }
        assert_eq!(heartbeat(&serve, "held").await, 200);
        let highest = highest_megabytes(&serve);
        assert!(highest <= MAX_MEGABYTES, "{count} bodies of {length} bytes: {highest} MB");
    }
}

#[tokio::test]
async fn unfinished_heads_take_bounded_memory() {
    let serve = Serve::start(&["--memory"]).await;
    serve.acquire("held", "secret").await;
    let head = format!("GET /v1/lock?key={} HTTP/1.1\r\nHost: localhost\r\nX-Long: {}", "k", "x".repeat(60_000));
    let mut streams = Vec::new();
    for _ in 0..1200 {
        streams.push(sent(&serve, head.as_bytes()).await);
    }
    assert_eq!(heartbeat(&serve, "held").await, 200);
    let highest = highest_megabytes(&serve);
    assert!(highest <= MAX_MEGABYTES, "{highest} MB");
}

#[tokio::test]
async fn slow_bodies_do_not_keep_large_requests_out() {
    let serve = Serve::start(&["--memory"]).await;
    let head = "POST /v1/transactions/begin HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n";
    let mut slow = Vec::new();
    for _ in 0..120 {
        slow.push(sent(&serve, head.as_bytes()).await);
    }
    let body = json!({ "key": "large", "ownerName": "me", "data": "x".repeat(300_000) });
    for _ in 0..20 {
        let answer = within(serve.http.post(format!("{}/v1/acquire", serve.base_url)).json(&body).send()).await;
        assert_ne!(answer.expect("an answer").status(), 429);
    }
    // The service does not wait for them to the end.
    for mut stream in slow {
        let mut answer = [0; 12];
        within(stream.read_exact(&mut answer)).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 400");
    }
}

#[tokio::test]
async fn large_answers_without_readers_take_bounded_memory() {
    let serve = Serve::start(&["--memory"]).await;
    let data = "x".repeat(200_000);
    for index in 0..30 {
        let body = json!({ "key": format!("k{index}"), "ownerName": "me", "data": data });
        let sent = serve.http.post(format!("{}/v1/acquire", serve.base_url)).json(&body).send();
        assert_eq!(within(sent).await.expect("an answer").status(), 200);
    }
    serve.acquire("held", "secret").await;
    for path in ["/v1/locks?limit=1000", "/v1/lock?key=k1"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(4);
        let mut streams = Vec::new();
        for index in 0..150 {
            streams.push(sent(&serve, request.as_bytes()).await);
            if index % 10 == 0 {
                assert_eq!(heartbeat(&serve, "held").await, 200);
            }
        }
        pause(Duration::from_secs(2)).await;
        assert_eq!(heartbeat(&serve, "held").await, 200);
        let highest = highest_megabytes(&serve);
        assert!(highest <= MAX_MEGABYTES, "{path}: {highest} MB");
    }
}

#[tokio::test]
async fn oldest_idle_connections_make_room_for_new_ones() {
    let folder = folder();
    for (descriptors, clients) in [(1024, 1200), (150, 400)] {
        let serve = Serve::spawn(limited(folder.path(), descriptors)).await;
        serve.acquire("held", "secret").await;
        let mut streams = Vec::new();
        // Half of them stay silent, half stay after an answer.
        for index in 0..clients {
            let request = if index % 2 == 0 { "" } else { "GET /v1/lock?key=held HTTP/1.1\r\nHost: localhost\r\n\r\n" };
            let mut stream = sent(&serve, request.as_bytes()).await;
            if !request.is_empty() {
                let mut answer = [0; 12];
                within(stream.read_exact(&mut answer)).await.expect("an answer");
                assert_eq!(&answer, b"HTTP/1.1 200", "client {index}");
            }
            streams.push(stream);
        }
        assert_eq!(heartbeat(&serve, "held").await, 200);
        // The first one that was answered. A silent one stays for a moment, since its request may be on the way.
        let mut oldest = streams.swap_remove(1);
        let mut rest = Vec::new();
        within(oldest.read_to_end(&mut rest)).await.expect("the oldest was closed");
    }
}

#[tokio::test]
async fn silent_crowd_takes_no_connection_of_a_holder() {
    let folder = folder();
    let serve = Serve::spawn(limited(folder.path(), 150)).await;
    serve.acquire("held", "secret").await;
    let body = json!({ "key": "held", "leaseId": "secret" }).to_string();
    let request = [post("/v1/heartbeat", body.len()), body.into_bytes()].concat();
    let mut holder = connect(&serve).await;
    let mut beat = async || {
        holder.write_all(&request).await.expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            assert_ne!(within(holder.read_buf(&mut answer)).await.expect("an answer"), 0, "the connection was closed");
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    };
    beat().await;
    let mut crowd = Vec::new();
    for _ in 0..400 {
        crowd.push(connect(&serve).await);
    }
    // Nearly all of the crowd have had their turn by then.
    for index in [0, 100, 200, 300] {
        let mut rest = Vec::new();
        let _ = within(crowd[index].read_to_end(&mut rest)).await;
        beat().await;
    }
}

#[tokio::test]
async fn service_takes_the_descriptors_that_it_may_have() {
    let folder = folder();
    let mut command = leasehold(folder.path());
    let program = command.as_std().get_program().to_owned();
    command = Command::new("sh");
    command.kill_on_drop(true).arg("-c");
    command.arg("ulimit -Sn 100 && ulimit -Hn 700 && exec \"$0\" serve --memory --listen 127.0.0.1:0").arg(program);
    let serve = Serve::spawn(command).await;
    let pid = serve.process.id().expect("it is running");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("Linux");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    assert_eq!(line.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["700", "700"]);
}

/// The limit that the process has after the start stands for descriptors that other parts of it have taken.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_connection_goes_when_no_descriptor_is_left() {
    let serve = Serve::start(&["--memory"]).await;
    serve.acquire("held", "secret").await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        let mut stream = sent(&serve, b"GET /v1/lock?key=held HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let mut answer = [0; 12];
        within(stream.read_exact(&mut answer)).await.expect("an answer");
        idle.push(stream);
    }
    let pid = serve.process.id().expect("it is running");
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("Linux").count();
    let mut limit = Command::new("prlimit");
    limit.args(["--pid", &pid.to_string(), &format!("--nofile={}", open - 20)]);
    if !within(limit.status()).await.is_ok_and(|status| status.success()) {
        return println!("nothing is shown: prlimit is missing");
    }
    assert_eq!(heartbeat(&serve, "held").await, 200);
    // Several may have waited for as many milliseconds as the oldest.
    let ends = idle.iter_mut().map(|stream| {
        Box::pin(async {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await
        })
    });
    within(futures_util::future::select_all(ends)).await.0.expect("an idle one was closed");
}
