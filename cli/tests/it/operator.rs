//! The life of an operator: backups, systemd, restarts, logs, the dashboard.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{
    PATIENCE, Serve, command, end, exposed_url, folder, in_folder, leasehold, pause, text_of, within,
};

async fn take_and_release(serve: &Serve, key: &str, lease_id: &str) -> u64 {
    let body = json!({ "key": key, "ownerName": "me", "leaseId": lease_id });
    let (status, grant) = serve.post("/v1/acquire", &body).await;
    assert_eq!(status, 200, "{grant}");
    assert_eq!(serve.post("/v1/release", &json!({ "key": key, "leaseId": lease_id })).await.0, 200);
    grant["fencingToken"].as_u64().expect("a number")
}

#[tokio::test]
async fn backup_has_one_moment_of_a_running_service() {
    let folder = folder();
    let serve = Serve::on_file(folder.path(), "leasehold.db").await;
    let (stop, url, http) = (Arc::new(AtomicBool::new(false)), serve.base_url.clone(), serve.http.clone());
    let stopping = Arc::clone(&stop);
    // The two locks change together, so they are of the same round at any moment.
    let writer = tokio::spawn(async move {
        let mut round = 0;
        while !stopping.load(Ordering::Relaxed) {
            round += 1;
            let body =
                json!({ "keys": [{ "key": "x" }, { "key": "y" }], "ownerName": format!("{round}"), "leaseId": "l" });
            let answer = http.post(format!("{url}/v1/acquire-all")).json(&body).send().await.expect("an answer");
            assert_eq!(answer.status(), 200);
        }
        round
    });
    let round = |lock: &Value| lock["ownerName"].as_str().and_then(|round| round.parse::<u64>().ok());
    serve.until("x", |lock| round(lock) >= Some(3)).await;
    for number in 0..4 {
        let name = format!("backup{number}.db");
        in_folder(folder.path(), &["backup", &name, "--db", "leasehold.db"]).await;
        assert_eq!(std::fs::metadata(folder.path().join(&name)).expect("it is there").mode() & 0o777, 0o600);
    }
    stop.store(true, Ordering::Relaxed);
    let rounds = writer.await.expect("no panic");
    serve.kill_9().await;
    let mut seen = BTreeSet::new();
    for number in 0..4 {
        let (backup, db) = (format!("backup{number}.db"), format!("new{number}.db"));
        let ended = in_folder(folder.path(), &["restore", &backup, "--db", &db]).await;
        assert_eq!(ended.status, 0, "{ended:?}");
        let restored = Serve::on_file(folder.path(), &db).await;
        let (x, y) = (restored.get("x").await, restored.get("y").await);
        assert_eq!(x["ownerName"], y["ownerName"]);
        seen.insert(round(&x).expect("a round"));
    }
    assert!(seen.iter().all(|round| (3..=rounds).contains(round)), "{seen:?} of {rounds}");
}

#[tokio::test]
async fn restored_service_gives_no_old_token_again() {
    let folder = folder();
    let serve = Serve::on_file(folder.path(), "leasehold.db").await;
    let held = serve.acquire("held", "holder").await["fencingToken"].as_u64().expect("a number");
    take_and_release(&serve, "free", "a").await;
    let permits = |lease_id: &str| json!({ "key": "pool", "ownerName": "me", "leaseId": lease_id, "capacity": 3 });
    let (_, first) = serve.post("/v1/semaphore/acquire", &permits("first")).await;
    let nightly = |night: &str, lease_id: &str| json!({ "key": "nightly", "ownerName": "me", "leaseId": lease_id, "occurrence": night });
    let run = async |serve: &Serve, night: &str| {
        let (status, grant) = serve.post("/v1/acquire", &nightly(night, night)).await;
        assert_eq!(status, 200, "{grant}");
        let done = json!({ "key": "nightly", "leaseId": night, "completed": night });
        assert_eq!(serve.post("/v1/release", &done).await.0, 200);
        grant["fencingToken"].as_u64().expect("a number")
    };
    run(&serve, "1").await;
    let ended = in_folder(folder.path(), &["backup", "backup.db"]).await;
    assert_eq!(ended.status, 0, "{ended:?}");
    // The service goes on, until its disk is lost.
    let mut given = vec![held, first["fencingToken"].as_u64().expect("a number")];
    for number in 0..5 {
        given.push(take_and_release(&serve, "free", &format!("b{number}")).await);
        given.push(take_and_release(&serve, "made later", &format!("b{number}")).await);
        given.push(run(&serve, &format!("2{number}")).await);
        let (_, grant) = serve.post("/v1/semaphore/acquire", &permits(&format!("p{number}"))).await;
        given.push(grant["fencingToken"].as_u64().expect("a number"));
        serve.post("/v1/semaphore/release", &json!({ "key": "pool", "leaseId": format!("p{number}") })).await;
    }
    let highest = given.into_iter().max().expect("some");
    serve.kill_9().await;
    let ended = in_folder(folder.path(), &["restore", "backup.db", "--db", "new.db"]).await;
    assert_eq!(ended.status, 0, "{ended:?}");

    let serve = Serve::on_file(folder.path(), "new.db").await;
    let heartbeat = json!({ "key": "held", "leaseId": "holder", "fencingToken": held });
    let (status, lost) = serve.post("/v1/heartbeat", &heartbeat).await;
    assert_eq!((status, &lost["type"]), (409, &json!("lost")), "the holder of an old token");
    // It may have lost the lock since the backup, so it is none with no token, either.
    let (status, lost) = serve.post("/v1/heartbeat", &json!({ "key": "held", "leaseId": "holder" })).await;
    assert_eq!((status, &lost["type"]), (409, &json!("lost")), "{lost}");
    let beat = json!({ "key": "pool", "leaseId": "first", "fencingToken": first["fencingToken"] });
    assert_eq!(serve.post("/v1/semaphore/heartbeat", &beat).await.1["type"], "lost");
    for key in ["free", "made later"] {
        assert!(take_and_release(&serve, key, "c").await > highest, "{key}");
    }
    assert_eq!(serve.post("/v1/acquire", &nightly("1", "again")).await.1["type"], "already-done");
    assert!(run(&serve, "3").await > highest);
    assert!(serve.take_over("held", "heir").await["fencingToken"].as_u64() > Some(highest));
    let (_, grant) = serve.post("/v1/semaphore/acquire", &permits("third")).await;
    assert!(grant["fencingToken"].as_u64() > Some(highest), "{grant}");
}

#[tokio::test]
async fn backup_and_restore_replace_nothing() {
    let folder = folder();
    let serve = Serve::on_file(folder.path(), "leasehold.db").await;
    let held = json!({ "key": "held", "ownerName": "an owner", "leaseId": "holder" });
    assert_eq!(serve.post("/v1/acquire", &held).await.0, 200);
    serve.kill_9().await;
    std::fs::write(folder.path().join("there"), "mine").expect("written");
    symlink(folder.path().join("nowhere"), folder.path().join("link")).expect("linked");
    std::fs::write(folder.path().join("empty"), "").expect("written");
    for (args, part) in [
        (&["restore", "empty", "--db", "new.db"][..], "empty is empty: it is no backup"),
        (&["backup", "b.db", "--db", "empty"], "empty is empty"),
        (&["backup", "there"], "there is there already"),
        (&["backup", "link"], "link is there already"),
        (&["backup", "b.db", "--db", "missing.db"], "cannot read missing.db"),
        (&["restore", "missing.db", "--db", "new.db"], "cannot read missing.db"),
        (&["restore", "there", "--db", "new.db"], "not a database"),
        (&["restore", "there"], "leasehold.db is there already"),
    ] {
        let ended = in_folder(folder.path(), args).await;
        assert!(ended.status == 1 && ended.stderr.contains(part), "{args:?}: {ended:?}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("there")).expect("text"), "mine");
    assert_eq!(in_folder(folder.path(), &["backup", "damaged.db"]).await.status, 0);
    flip_owner(&folder.path().join("damaged.db"));
    let ended = in_folder(folder.path(), &["restore", "damaged.db", "--db", "new.db"]).await;
    assert!(ended.status == 1 && ended.stderr.contains("cannot open damaged.db: it is damaged"), "{ended:?}");
    // The log of another database would be taken for that of the new one.
    std::fs::write(folder.path().join("new.db-wal"), "old").expect("written");
    assert_eq!(in_folder(folder.path(), &["backup", "b.db"]).await.status, 0);
    let ended = in_folder(folder.path(), &["restore", "b.db", "--db", "new.db"]).await;
    assert!(ended.status == 1 && ended.stderr.contains("new.db-wal is there already"), "{ended:?}");
    let names: BTreeSet<_> =
        std::fs::read_dir(folder.path()).expect("readable").map(|it| it.expect("a name").file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with(".leasehold")), "{names:?}");
}

/// The names in a folder that begin with a dot.
fn hidden(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).expect("readable").map(|it| it.expect("a name").file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with('.')).collect()
}

#[tokio::test]
async fn backup_leaves_nothing_when_the_file_may_not_grow() {
    let folder = folder();
    let serve = Serve::on_file(folder.path(), "leasehold.db").await;
    for number in 0..20 {
        let body = json!({ "key": format!("k{number}"), "ownerName": "me", "data": "x".repeat(50_000) });
        assert_eq!(serve.post("/v1/acquire", &body).await.0, 200);
    }
    let mut limited = Command::new("sh");
    let script = r#"ulimit -f 600; exec "$0" backup backup.db"#;
    limited.args(["-c", script, env!("CARGO_BIN_EXE_leasehold")]).current_dir(folder.path());
    let ended = end(limited).await;
    assert!(ended.status == 1 && ended.stderr.contains("cannot copy leasehold.db"), "{ended:?}");
    assert!(
        !folder.path().join("backup.db").exists() && hidden(folder.path()).is_empty(),
        "{:?}",
        hidden(folder.path())
    );
}

#[tokio::test]
async fn copy_of_a_backup_that_was_killed_goes_with_the_next_one() {
    let folder = folder();
    drop(Serve::on_file(folder.path(), "leasehold.db").await);
    let copies = ["killed", "running"].map(|name| folder.path().join(format!(".leasehold-backup-{name}")));
    for copy in &copies {
        std::fs::create_dir(copy).expect("made");
        std::fs::write(copy.join("copy.db"), "half a database").expect("written");
    }
    let running = std::fs::File::open(&copies[1]).expect("it is there");
    running.lock().expect("locked");
    let ended = in_folder(folder.path(), &["backup", "backup.db"]).await;
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(hidden(folder.path()), [".leasehold-backup-running"]);
    drop(running);
    let ended = in_folder(folder.path(), &["restore", "backup.db", "--db", "new.db"]).await;
    assert_eq!((ended.status, hidden(folder.path()).len()), (0, 0), "{ended:?}");
}

/// Changes a letter of the owner's name, wherever it is in this file.
fn flip_owner(path: &Path) {
    let mut bytes = std::fs::read(path).expect("readable");
    let places: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"an owner")).collect();
    assert!(!places.is_empty(), "the row is there");
    for at in places {
        bytes[at] ^= 1;
    }
    std::fs::write(path, bytes).expect("written");
}

/// `leasehold serve` as systemd starts it: the port is open already, as descriptor 3.
fn activated(folder: &Path, port: &TcpListener, more: &str) -> Command {
    let serve = leasehold(folder);
    let program = serve.as_std().get_program().to_owned();
    let mut command = Command::new("sh");
    command.current_dir(folder).kill_on_drop(true);
    command
        .arg("-c")
        .arg(format!("export LISTEN_PID=$$ LISTEN_FDS=1; {more} exec \"$0\" serve --db leasehold.db 3<&0 </dev/null"));
    let port: OwnedFd = port.try_clone().expect("a descriptor").into();
    command.arg(program).stdin(Stdio::from(port)).env_remove("LEASEHOLD_LISTEN");
    command
}

/// Acquires a lock again and again, and returns how often. Each request is answered, or the test fails. A client with
/// `keeps` uses a connection until the service says that it closes it. A service that stops waits a second for its next
/// request; a client that is slower connects again.
async fn acquire_until(stop: Arc<AtomicBool>, address: SocketAddr, key: String, keeps: bool) -> u64 {
    let mut answered = 0;
    let body = json!({ "key": key, "ownerName": "me", "leaseId": "l" }).to_string();
    let request = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nConnection: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        if keeps { "keep-alive" } else { "close" },
        body.len()
    );
    while !stop.load(Ordering::Relaxed) {
        let stream = within(TcpStream::connect(address)).await.expect("not refused");
        let (mut stream, mut asked) = (BufReader::new(stream), Instant::now());
        loop {
            let sent = stream.write_all(request.as_bytes()).await;
            let was_idle_for = asked.elapsed();
            asked = Instant::now();
            let (mut length, mut closes, mut line) = (0, false, String::new());
            let read = within(stream.read_line(&mut line)).await;
            if line.is_empty() && was_idle_for >= Duration::from_secs(1) {
                break;
            }
            sent.expect("sent");
            read.expect("an answer");
            assert!(line.starts_with("HTTP/1.1 200"), "{line:?} after {answered}, keeps: {keeps}");
            while line != "\r\n" {
                line.clear();
                within(stream.read_line(&mut line)).await.expect("a head");
                if let Some((name, value)) = line.split_once(": ") {
                    closes |= name.eq_ignore_ascii_case("connection") && value.trim() == "close";
                    length = if name == "content-length" { value.trim().parse().expect("a number") } else { length };
                }
            }
            within(stream.read_exact(&mut vec![0; length])).await.expect("a body");
            answered += 1;
            if closes || stop.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    answered
}

#[tokio::test]
async fn restart_under_systemd_refuses_no_request() {
    let folder = folder();
    let port = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = port.local_addr().expect("bound");
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..6 {
        clients.spawn(acquire_until(Arc::clone(&stop), address, format!("k{client}"), client % 2 == 0));
    }
    for _ in 0..4 {
        let serve = Serve::spawn(activated(folder.path(), &port, "")).await;
        assert_eq!(serve.address(), address);
        serve.until("k5", |lock| lock["state"] == "held").await;
        serve.signal("TERM");
        assert_eq!(serve.ended().await.0, Some(0));
    }
    stop.store(true, Ordering::Relaxed);
    let _last = Serve::spawn(activated(folder.path(), &port, "")).await;
    while let Some(answered) = clients.join_next().await {
        assert!(answered.expect("no request without an answer") > 0);
    }
}

/// systemd's own tool opens a port, and starts the service when the first client connects.
#[tokio::test]
async fn first_request_to_a_socket_of_systemd_starts_the_service() {
    let folder = folder();
    let address = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port");
    let serve = leasehold(folder.path());
    let mut command = Command::new("systemd-socket-activate");
    command.args(["--listen", &address.to_string()]).arg(serve.as_std().get_program());
    command.args(["serve", "--db", "leasehold.db"]).current_dir(folder.path()).kill_on_drop(true);
    if Command::new("systemd-socket-activate").arg("--version").output().await.is_err() {
        return println!("nothing is shown: systemd-socket-activate is not installed");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let first = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            while TcpStream::connect(address).await.is_err() {
                pause(Duration::from_millis(20)).await;
            }
            acquire_until(stop, address, "k".to_owned(), true).await
        }
    });
    let serve = Serve::spawn(command).await;
    assert_eq!(serve.address(), address);
    serve.until("k", |lock| lock["state"] == "held").await;
    stop.store(true, Ordering::Relaxed);
    assert!(first.await.expect("no request without an answer") > 0);
    serve.signal("TERM");
    assert_eq!(serve.ended().await.0, Some(0));
}

/// A client that has connected and not yet asked is in no other list than that of the service. It has a second for its
/// request; a try in which this test is slower proves nothing.
#[tokio::test]
async fn client_that_has_connected_is_answered_during_a_stop() {
    for _ in 0..20 {
        let serve = Serve::start(&["--memory"]).await;
        let mut stream = within(TcpStream::connect(serve.address())).await.expect("it listens");
        let before_stop = Instant::now();
        serve.signal("TERM");
        serve.stops_listening().await;
        let sent = stream.write_all(b"GET /v1/lock?key=a HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        if before_stop.elapsed() >= Duration::from_secs(1) {
            continue;
        }
        sent.expect("sent");
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.expect("an answer, and the end of the connection");
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("connection: close"), "{answer}");
        assert_eq!(serve.ended().await.0, Some(0));
        return;
    }
    panic!("the machine is too busy for this test");
}

/// The service stands still while they connect, so that the stop comes before it has accepted any of them.
#[tokio::test]
async fn crowd_that_has_connected_is_answered_during_a_stop() {
    let serve = Serve::start(&["--memory"]).await;
    serve.signal("STOP");
    let mut clients = Vec::new();
    for _ in 0..100 {
        let mut stream = within(TcpStream::connect(serve.address())).await.expect("the system takes it");
        stream.write_all(b"GET /v1/lock?key=a HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("sent");
        clients.push(stream);
    }
    serve.signal("TERM");
    serve.signal("CONT");
    for (number, mut stream) in clients.into_iter().enumerate() {
        let mut answer = String::new();
        let read = within(stream.read_to_string(&mut answer)).await;
        assert!(read.is_ok() && answer.starts_with("HTTP/1.1 404"), "client {number}: {read:?} {answer}");
    }
    assert_eq!(serve.ended().await.0, Some(0));
}

/// A shell behind which a small disk of its own is mounted at a folder. Where this user may not mount, there is none.
async fn with_small_disk(at: &Path, script: &str) -> Option<Command> {
    let mount = r#"mount -t tmpfs -o size=24m tmpfs "$1" || exit 99; "#;
    let shell = |script: &str| {
        let mut shell = Command::new("unshare");
        if !is_of_root(at) {
            shell.args(["--user", "--map-root-user"]);
        }
        shell.args(["--mount", "--propagation", "private", "sh", "-c", &format!("{mount}{script}")]);
        shell.args([env!("CARGO_BIN_EXE_leasehold"), text_of(at)]).kill_on_drop(true);
        shell
    };
    let tried = end(shell("true")).await;
    if tried.status == 0 {
        return Some(shell(script));
    }
    println!("nothing is shown: this user may mount no disk: {}", tried.stderr);
    None
}

/// Whether the user of this test is root: a folder that it has made tells.
fn is_of_root(folder: &Path) -> bool {
    std::fs::metadata(folder).expect("it is there").uid() == 0
}

#[tokio::test]
async fn health_tells_of_a_nearly_full_disk_before_a_write_fails() {
    let folder = folder();
    let start = r#"exec "$0" serve --db "$1/leasehold.db" --listen 127.0.0.1:0"#;
    let Some(command) = with_small_disk(folder.path(), start).await else { return };
    let serve = Serve::spawn(command).await;
    let status = async |path: &str| {
        let answer = within(serve.http.get(format!("{}{path}", serve.base_url)).send()).await;
        answer.expect("an answer").status().as_u16()
    };
    assert_eq!((status("/v1/health").await, status("/v1/ready").await), (200, 200));
    // The disk as the service sees it.
    let pid = serve.process.id().expect("it is running");
    let filler = format!("/proc/{pid}/root{}/filler", text_of(folder.path()));
    std::fs::write(&filler, vec![0; 10 << 20]).expect("there is room");
    assert_eq!((status("/v1/health").await, status("/v1/ready").await), (503, 503));
    serve.acquire("Moe", "secret").await;
    std::fs::remove_file(filler).expect("removed");
    assert_eq!((status("/v1/health").await, status("/v1/ready").await), (200, 200));
}

#[tokio::test]
async fn database_on_a_read_only_disk_is_refused_in_a_sentence() {
    let folder = folder();
    let start = r#"cp "$1/../source.db" "$1/leasehold.db" && mount -o remount,ro "$1" || exit 99
        exec "$0" serve --db "$1/leasehold.db" --listen 127.0.0.1:0"#;
    let serve = Serve::on_file(folder.path(), "source.db").await;
    serve.signal("TERM");
    assert_eq!(serve.ended().await.0, Some(0));
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).expect("made");
    let Some(command) = with_small_disk(&disk, start).await else { return };
    let ended = end(command).await;
    let is_told = ended.stderr.contains("Read-only file system") && ended.stderr.trim_end().lines().count() == 1;
    assert!(ended.status == 1 && is_told, "{ended:?}");
}

#[tokio::test]
async fn service_tells_systemd_how_it_is() {
    let folder = folder();
    let (file, port) = (folder.path().join("notify"), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let socket = UnixDatagram::bind(&file).expect("bound");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    let told = || {
        let mut text = [0; 64];
        let length = socket.recv(&mut text).expect("a message");
        String::from_utf8_lossy(&text[..length]).trim().to_owned()
    };
    let more = format!("export NOTIFY_SOCKET={} WATCHDOG_USEC=600000 WATCHDOG_PID=$$;", text_of(&file));
    let serve = Serve::spawn(activated(folder.path(), &port, &more)).await;
    // A task of its own gives the signs of life, and may give one before the start is told.
    while told() != "READY=1" {}
    assert_eq!((told(), told()), ("WATCHDOG=1".into(), "WATCHDOG=1".into()));
    serve.signal("TERM");
    while told() != "STOPPING=1" {}
    assert_eq!(serve.ended().await.0, Some(0));
}

/// systemd starts a service anew that tells nothing for a while, so that one whose table is stuck must fall silent.
#[tokio::test]
async fn signs_of_life_stop_when_the_table_is_stuck() {
    let (folder, table) = (folder(), Serve::start(&["--memory", "--expose-dynamodb", "0"]).await);
    let file = folder.path().join("notify");
    let socket = UnixDatagram::bind(&file).expect("bound");
    // Ten times the pause between two signs.
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
    let told = || {
        let mut text = [0; 64];
        let length = socket.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).trim().to_owned())
    };
    // A busy machine may be silent for that long, too.
    let hears_soon = || (0..10).find_map(|_| told());
    let endpoint = exposed_url(&table);
    let args = ["--dynamodb-endpoint", endpoint.as_str(), "--listen", "127.0.0.1:0"];
    let mut front = command(folder.path(), &args);
    front.env("NOTIFY_SOCKET", &file).env("WATCHDOG_USEC", "600000");
    let _serve = Serve::spawn(front).await;
    while hears_soon().expect("it starts") != "READY=1" {}
    assert_eq!(hears_soon(), Some("WATCHDOG=1".into()));
    table.signal("STOP");
    assert!((0..60).any(|_| told().is_none()), "the service works without its table");
    table.signal("CONT");
    assert_eq!(hears_soon(), Some("WATCHDOG=1".into()), "the table answers again");
}

#[tokio::test]
async fn socket_of_systemd_that_cannot_be_used_is_refused() {
    let folder = folder();
    let port = TcpListener::bind("0.0.0.0:0").expect("a free port");
    let ended = end(activated(folder.path(), &port, "")).await;
    assert!(ended.status == 1 && ended.stderr.contains("without a token"), "{ended:?}");
    let ended = end(activated(folder.path(), &port, "LISTEN_FDS=2;")).await;
    assert!(ended.status == 1 && ended.stderr.contains("one stream of TCP"), "{ended:?}");
}

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

#[test]
fn guide_shows_the_units_of_the_package() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("readable");
    let guide = read("docs/guides/systemd.md");
    for name in ["leasehold.socket", "leasehold.service"] {
        let unit = read(&format!("packaging/systemd/{name}"));
        assert!(guide.contains(&format!("```ini title=\"{name}\"\n{unit}```")), "{name}");
    }
}
