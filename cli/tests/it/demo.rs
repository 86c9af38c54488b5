//! `leasehold demo` to its end, and cut short.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{Instant, timeout};

use crate::support::{Ended, folder, kill, leasehold, pause, within};

#[tokio::test]
async fn demo_plays_to_the_end() {
    let folder = folder();
    let mut command = leasehold(folder.path());
    // The demo ignores the variables that a shell may have set.
    command
        .arg("demo")
        .env("TMPDIR", folder.path())
        .env("LEASEHOLD_URL", "http://127.0.0.1:1")
        .env("LEASEHOLD_LEASE_ID", "x");
    let started = Instant::now();
    let output = timeout(Duration::from_mins(2), command.output()).await.expect("it ends").expect("it starts");
    let ended = Ended {
        status: output.status.code().expect("no signal"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    };
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""), "after {:?}: {}", started.elapsed(), ended.stdout);
    assert!(!ended.stdout.contains(['\u{1b}', '\r']), "no control characters in a pipe");
    let mut rest = ended.stdout.as_str();
    for scene in [
        "host-1  Moe is yours",
        "host-1  written:",
        "a heartbeat",
        "host-2  waiting for Moe, held by host-1",
        "host-2  Moe is yours: taken over from host-1",
        "host-2  written:",
        "host-1  refused:",
        "host-1  Moe is lost",
        "host-2  Moe is released",
        "All of this happened",
    ] {
        rest = rest.split_once(scene).unwrap_or_else(|| panic!("no {scene:?} in its place: {}", ended.stdout)).1;
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[tokio::test]
async fn ctrl_c_leaves_nothing_behind() {
    let folder = folder();
    let mut command = leasehold(folder.path());
    command.arg("demo").env("TMPDIR", folder.path()).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut port = String::new();
    loop {
        let line = within(lines.next_line()).await.unwrap().expect("it goes on");
        if let Some((_, rest)) = line.split_once("in memory at http://") {
            port = rest.split(',').next().unwrap().to_owned();
        }
        if line.contains("host-2 wants") {
            break;
        }
    }
    kill("INT", -i64::from(demo.id().unwrap()));
    let output = within(demo.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "leasehold: SIGINT: the demo is over\n");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no files");
    // The service and the hosts, of which one was paused, end a moment later.
    let gone = async {
        let children = || std::process::Command::new("pgrep").args(["-f", &port]).output().unwrap().stdout;
        while tokio::net::TcpStream::connect(&port).await.is_ok() || !children().is_empty() {
            pause(Duration::from_millis(50)).await;
        }
    };
    within(gone).await;
}
