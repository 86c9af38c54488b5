//! `leasehold run`: the command's status, signals, a lost lock, a killed holder.

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::support::{Serve, end, finish, first_line, folder, kill, leasehold, pause, runs, signal, text_of, within};

/// Reads a process id that a shell wrote into a file.
async fn process_in(path: &std::path::Path) -> i64 {
    first_line(path).await.parse().expect("a process id")
}

async fn gone(process: i64) {
    let look = async {
        while runs(process) {
            pause(Duration::from_millis(10)).await;
        }
    };
    within(look).await;
}

#[tokio::test]
async fn status_is_the_commands() {
    let serve = Serve::memory().await;
    for (script, status) in [("true", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
    {
        let ended = serve.run(&["run", "Moe", "--", "sh", "-c", script]).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (status, ""), "{script}");
        assert_eq!(serve.get("Moe").await["state"], "released", "{script}");
    }
}

#[tokio::test]
async fn run_ends_with_a_status_when_the_command_cannot_start() {
    let serve = Serve::memory().await;
    for (command, status, message) in [
        ("no-such-command", 127, "cannot run no-such-command: No such file or directory (os error 2)"),
        ("/etc/passwd", 126, "cannot run /etc/passwd: Permission denied (os error 13)"),
    ] {
        let ended = serve.run(&["run", "Moe", "--", command]).await;
        assert_eq!((ended.status, ended.stderr), (status, format!("leasehold: {message}\n")));
        assert_eq!(serve.get("Moe").await["state"], "released");
    }
}

#[tokio::test]
async fn environment_names_the_lock() {
    let serve = Serve::start(&["--memory", "--sort-key", "sk"]).await;
    let show = "env | grep ^LEASEHOLD_ | sort";
    let run = ["run", "Moe", "--sort-key", "1", "--owner", "host-1"];
    let printed = serve.run(&[&run[..], &["--", "sh", "-c", show]].concat()).await.ok();
    let url = &serve.base_url;
    let token = serve.run(&["get", "Moe", "--sort-key", "1", "--json"]).await.json()["fencingToken"].to_string();
    let expected = format!(
        "LEASEHOLD_FENCING_TOKEN={token}\nLEASEHOLD_KEY=Moe\nLEASEHOLD_LOCK_SORT_KEY=1\nLEASEHOLD_OWNER_NAME=host-1\nLEASEHOLD_URL={url}\n"
    );
    assert_eq!(printed, expected);

    // The lease id is the holder's secret, except for a command that asks for it.
    let release = r#""$LEASEHOLD" release Moe --sort-key 1"#;
    let mut pass = serve.command(&[&run[..], &["--pass-lease-id", "--", "sh", "-c", release]].concat());
    pass.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"));
    assert_eq!(end(pass).await.stdout, "Moe / 1 is released\n");

    // A run within a run passes on only its own variables.
    let mut inner = serve.command(&["run", "Moe", "--sort-key", "2", "--owner", "host-2", "--", "sh", "-c", show]);
    inner.env("LEASEHOLD_LEASE_ID", "the outer one's");
    assert!(!end(inner).await.ok().contains("LEASE_ID"));
}

#[tokio::test]
async fn standard_input_is_the_commands() {
    let serve = Serve::memory().await;
    let mut command = serve.command(&["run", "Moe", "--", "cat"]);
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(b"hello").await.unwrap();
    assert_eq!(finish(process).await.ok(), "hello");
}

#[tokio::test]
async fn lock_is_kept_while_the_command_runs() {
    let serve = Serve::memory().await;
    let folder = folder();
    let end = folder.path().join("end");
    let script = format!("until [ -e {} ]; do sleep 0.05; done", text_of(&end));
    let run = serve.spawn_command(&["run", "Moe", "--lease", "8s", "--", "sh", "-c", &script]);
    let first = serve.until("Moe", |lock| lock["state"] == "held").await;
    // A caller that waits for longer than a lease meanwhile does not get the lock.
    let refused = serve.run(&["acquire", "Moe", "--wait", "9s"]).await;
    assert_eq!(refused.status, 75, "{refused:?}");
    let later = serve.get("Moe").await;
    assert_eq!(later["fencingToken"], first["fencingToken"]);
    assert_ne!(later["recordVersionNumber"], first["recordVersionNumber"]);
    std::fs::write(end, "").unwrap();
    assert_eq!(finish(run).await.ok(), "");
    assert_eq!(serve.get("Moe").await["state"], "released");
}

#[tokio::test]
async fn signals_are_passed_on() {
    let serve = Serve::memory().await;
    for (name, expected) in [("TERM", 5), ("INT", 5), ("HUP", 5), ("QUIT", 5), ("USR1", 6), ("USR2", 6)] {
        let folder = folder();
        let ready = folder.path().join("ready");
        // A shell runs its traps when what it waits for ends, or at once if it waits by `wait`.
        let script = r#"trap "exit 5" TERM INT HUP QUIT; trap "exit 6" USR1 USR2; sleep 60 > /dev/null 2>&1 & echo $! > "$READY"; wait"#;
        let mut command = serve.command(&["run", "Moe", "--", "bash", "-c", script]);
        let run = command.env("READY", &ready).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let sleeper = process_in(&ready).await;
        // A shell may lose a signal before it runs its script.
        within(async {
            while std::fs::read_to_string(format!("/proc/{sleeper}/comm")).unwrap_or_default() != "sleep\n" {
                pause(Duration::from_millis(5)).await;
            }
        })
        .await;
        signal(&run, name);
        let ended = finish(run).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (expected, ""), "{name}");
        assert_eq!(serve.get("Moe").await["state"], "released");
        match name {
            // A signal that asks to end is for all descendants of the command.
            "TERM" | "HUP" => gone(sleeper).await,
            // A shell lets its background jobs ignore these signals.
            "INT" | "QUIT" => kill("KILL", sleeper),
            _ => {
                assert!(runs(sleeper), "{name} is for the command alone");
                kill("KILL", sleeper);
            }
        }
    }
}

#[tokio::test]
async fn signal_stays_ignored_when_it_was_at_the_start() {
    let serve = Serve::memory().await;
    // `nohup` ignores these signals, and a shell does for a script's background job.
    for name in ["HUP", "INT", "QUIT"] {
        let folder = folder();
        let ready = folder.path().join("ready");
        let script = format!(r#"trap '' {name}; exec "$LEASEHOLD" run Moe -- sh -c 'echo $$ > "$READY"; sleep 1'"#);
        let mut command = Command::new("sh");
        command
            .args(["-c", &script])
            .env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"))
            .env("LEASEHOLD_URL", &serve.base_url);
        command.env("READY", &ready).kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = command.spawn().unwrap();
        process_in(&ready).await;
        signal(&run, name);
        assert_eq!(finish(run).await.ok(), "", "{name}");
    }
}

#[tokio::test]
async fn lost_lock_ends_all_that_was_started() {
    let serve = Serve::memory().await;
    let folder = folder();
    let file = |name: &str| folder.path().join(name);
    // One process ends in order, one ignores signals, one is in a session of its own.
    let script = r#"
        sh -c 'trap "" TERM; echo $$ > deaf; while :; do sleep 1; done' &
        setsid sh -c 'echo $$ > session; sleep 1000; :' &
        sleep 1000 & echo $! > sleeper
        trap 'echo asked > asked' TERM
        wait; wait; wait"#;
    let mut command = serve.command(&[
        "run",
        "Moe",
        "--lease",
        "10s",
        "--heartbeat",
        "500ms",
        "--grace",
        "2s",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let run = command.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut processes = Vec::new();
    for name in ["deaf", "session", "sleeper"] {
        processes.push(process_in(&file(name)).await);
    }
    let broken = Instant::now();
    // The version may move between the look and the break.
    while serve.run(&["break", "Moe", "--yes"]).await.status != 0 {}
    let is_broken = Instant::now();
    let ended = finish(run).await;
    assert_eq!(ended.status, 76);
    assert_eq!(
        ended.stderr,
        "leasehold: Moe is lost: the lock was released elsewhere, or broken by an operator; stopping the command\n\
         leasehold: the command did not end within 2s: SIGKILL\n"
    );
    assert!(broken.elapsed() >= Duration::from_secs(2), "{:?}", broken.elapsed());
    assert!(is_broken.elapsed() < Duration::from_secs(10), "{:?}", is_broken.elapsed());
    assert_eq!(first_line(&file("asked")).await, "asked", "it was asked to end first");
    for process in processes {
        assert!(!runs(process), "{process} survived");
    }
}

#[tokio::test]
async fn command_that_ends_in_order_is_not_killed() {
    let serve = Serve::memory().await;
    let folder = folder();
    let ready = folder.path().join("ready");
    let script = r#"trap 'echo bye; exit 0' TERM; echo $$ > "$READY"; sleep 1000 & wait"#;
    let keep = ["run", "Moe", "--lease", "20s", "--heartbeat", "200ms"];
    let args = [&keep[..], &["--lost-status", "42", "--json", "--", "sh", "-c", script]].concat();
    let mut command = serve.command(&args);
    let run = command.env("READY", &ready).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    process_in(&ready).await;
    let thief = serve.take_over("Moe", "host-2").await;
    let ended = finish(run).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (42, "bye\n"));
    let failure: serde_json::Value = serde_json::from_str(&ended.stderr).expect("one JSON object");
    assert_eq!((&failure["error"], &failure["lock"]["ownerName"]), (&json!("lost"), &json!("host-2")));
    // The thief's lock is left alone.
    let lock = serve.get("Moe").await;
    assert_eq!((&lock["state"], &lock["fencingToken"]), (&json!("held"), &thief["fencingToken"]));
}

#[tokio::test]
async fn outage_that_outlasts_the_lease_loses_the_lock() {
    let serve = Serve::memory().await;
    let folder = folder();
    let ready = folder.path().join("ready");
    let script = r#"echo $$ > "$READY"; exec sleep 1000"#;
    let mut command = serve.command(&["run", "Moe", "--lease", "4s", "--", "sh", "-c", script]);
    let run = command.env("READY", &ready).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The row is held before the command knows; the wrapped command starts after that.
    process_in(&ready).await;
    serve.kill_9().await;
    let ended = finish(run).await;
    assert_eq!(ended.status, 76);
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert!(lines[0].starts_with("leasehold: no heartbeat succeeds: the lease of Moe ends in "), "{lines:?}");
    let lost = "leasehold: Moe is lost: the lease ran out before a heartbeat succeeded: the service cannot be reached";
    assert!(lines[1].starts_with(lost) && lines[1].ends_with("; stopping the command"), "{lines:?}");
}

#[tokio::test]
async fn release_that_fails_does_not_hide_the_status() {
    let serve = Serve::memory().await;
    let folder = folder();
    let ready = folder.path().join("ready");
    let script = r#"echo $$ > "$READY"; sleep 5; exit 4"#;
    let mut command =
        serve.command(&["run", "Moe", "--lease", "2s", "--hold-on-unavailable", "--", "sh", "-c", script]);
    let run = command.env("READY", &ready).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    process_in(&ready).await;
    serve.kill_9().await;
    let ended = finish(run).await;
    assert_eq!(ended.status, 4, "two leases after the last heartbeat: {ended:?}");
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("leasehold: Moe could not be released: the service cannot be reached"), "{ended:?}");
    assert!(last.ends_with("it is free one lease from now"), "{ended:?}");
}

/// Starts a job that writes to a store repeatedly, in a folder with a file `job` that names its process.
fn start_writer(serve: &Serve, folder: &std::path::Path, owner: &str, lease: &str) -> Child {
    let script = format!(
        r#"echo $$ > "job-{owner}"; exec "$LEASEHOLD" fenced-write --store store.db --every 50ms report "by {owner}""#
    );
    let mut command = serve.command(&["run", "Moe", "--owner", owner, "--lease", lease, "--", "sh", "-c", &script]);
    command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold")).current_dir(folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[tokio::test]
async fn holder_that_was_paused_finds_its_lock_lost() {
    let serve = Serve::memory().await;
    let folder = folder();
    let mut first = start_writer(&serve, folder.path(), "host-1", "4s");
    let mut written = BufReader::new(first.stdout.take().unwrap()).lines();
    let line = within(written.next_line()).await.unwrap().unwrap();
    assert!(line.starts_with("written: "), "{line}");
    let job = process_in(&folder.path().join("job-host-1")).await;
    let first_lock = serve.get("Moe").await;
    signal(&first, "STOP");
    kill("STOP", job);

    // Another host waits for one lease, takes over, and writes. The job has ended before.
    let mut second = start_writer(&serve, folder.path(), "host-2", "10s");
    let mut seconds = BufReader::new(second.stdout.take().unwrap()).lines();
    let line = within(seconds.next_line()).await.unwrap().unwrap();
    assert!(line.starts_with("written: "), "{line}");
    assert!(!runs(job));
    let lock = serve.get("Moe").await;
    assert_eq!(lock["ownerName"], "host-2");
    assert!(lock["fencingToken"].as_u64() > first_lock["fencingToken"].as_u64());

    // The process that keeps the lock continues.
    signal(&first, "CONT");
    let mut stderr = String::new();
    within(first.stderr.take().unwrap().read_to_string(&mut stderr)).await.unwrap();
    assert_eq!(within(first.wait()).await.unwrap().code(), Some(76));
    assert_eq!(stderr, "leasehold: Moe is lost: the lease ran out before it was renewed; stopping the command\n");
    assert_eq!(serve.get("Moe").await["fencingToken"], lock["fencingToken"], "the other's lock is left alone");
    signal(&second, "TERM");
    assert_eq!(finish(second).await.status, 143);
}

#[tokio::test]
async fn holder_that_was_killed_is_outlived_by_one_lease() {
    const LEASE: Duration = Duration::from_secs(6);
    let serve = Serve::memory().await;
    let folder = folder();
    let mut first = start_writer(&serve, folder.path(), "host-1", "6s");
    let job = process_in(&folder.path().join("job-host-1")).await;
    // Another host waits from before the holder's death, and sees its heartbeats.
    let waiting = serve.spawn_command(&["run", "Moe", "--wait", "20s", "--", "printenv", "LEASEHOLD_FENCING_TOKEN"]);
    let version = serve.get("Moe").await["recordVersionNumber"].clone();
    let last = serve.until("Moe", |lock| lock["recordVersionNumber"] != version).await;
    let killed = Instant::now();
    within(first.kill()).await.unwrap();
    // On Linux, the job learns at once that its lock is not kept any more.
    gone(job).await;
    assert!(killed.elapsed() < LEASE / 2, "the job ended {:?} after its keeper", killed.elapsed());

    let lock = serve.get("Moe").await;
    assert_eq!((&lock["state"], &lock["ownerName"]), (&json!("held"), &json!("host-1")), "the table knows nothing");
    let ended = finish(waiting).await;
    let took = killed.elapsed();
    assert_eq!((ended.status, ended.stderr.as_str()), (0, "leasehold: waiting for Moe, held by host-1\n"));
    // The last heartbeat may have been sent a quarter of a lease before; the waiter polls each second.
    assert!(took >= LEASE * 3 / 4 && took < LEASE + Duration::from_secs(10), "{took:?}");
    assert!(ended.stdout.trim().parse::<u64>().unwrap() > last["fencingToken"].as_u64().unwrap());
}

#[tokio::test]
async fn signal_ends_the_wait_and_leaves_no_lock() {
    let serve = Serve::memory().await;
    let folder = folder();
    let ran = folder.path().join("ran");
    for (name, status) in [("INT", 130), ("TERM", 143)] {
        let held = serve.acquire(name, "secret").await;
        let args = ["run", name, "--wait", "forever", "--", "touch", text_of(&ran)];
        let mut waiting = serve.spawn_command(&args);
        let mut stderr = BufReader::new(waiting.stderr.take().unwrap()).lines();
        let line = within(stderr.next_line()).await.unwrap().unwrap();
        assert_eq!(line, format!("leasehold: waiting for {name}, held by test"));
        signal(&waiting, name);
        let ended = Instant::now();
        assert_eq!(within(waiting.wait()).await.unwrap().code(), Some(status));
        assert!(ended.elapsed() < Duration::from_secs(10), "{:?}", ended.elapsed());
        assert_eq!(
            within(stderr.next_line()).await.unwrap().unwrap(),
            format!("leasehold: SIG{name}: no longer waiting for {name}")
        );

        // The holder never notices the theft, and leaves the lock free in the end.
        let lock = serve.get(name).await;
        assert_eq!(lock["recordVersionNumber"], held["recordVersionNumber"]);
        serve.run(&["release", name, "--lease-id", "secret"]).await.ok();
        pause(Duration::from_millis(1500)).await;
        assert_eq!(serve.get(name).await["state"], "released");
    }
    assert!(!ran.exists());
}

#[tokio::test]
async fn wait_that_is_over_has_a_status_of_its_choice() {
    let serve = Serve::memory().await;
    serve.acquire("Moe", "secret").await;
    let held = "leasehold: Moe is held by test, with a lease of 20s; try again later, or wait longer with --wait or --extend\n";
    let ended = serve.run(&["run", "Moe", "--no-wait", "--held-status", "0", "--", "true"]).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (0, held));
    let started = Instant::now();
    let ended = serve.run(&["run", "Moe", "--wait", "1500ms", "--", "true"]).await;
    // In a pipe there is one plain line when the wait begins, and one when it is over.
    assert_eq!((ended.status, ended.stderr), (75, format!("leasehold: waiting for Moe, held by test\n{held}")));
    assert!((1500..15_000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    let quiet = serve.run(&["run", "Moe", "--wait", "500ms", "-q", "--", "true"]).await;
    assert_eq!(quiet.stderr, held);
}

#[tokio::test]
async fn run_reports_its_progress_when_verbose() {
    let serve = Serve::memory().await;
    let ended = serve.run(&["run", "Moe", "-v", "--", "true"]).await;
    let token = serve.get("Moe").await["fencingToken"].to_string();
    let expected = format!("leasehold: Moe is yours: it was free; token {token}\nleasehold: Moe is released\n");
    assert_eq!((ended.status, ended.stderr), (0, expected));
}

#[tokio::test]
async fn command_must_follow() {
    for args in [&["run", "Moe"][..], &["run", "Moe", "true"], &["run", "--", "true"], &["run", "Moe", "--"]] {
        let mut command = leasehold(&std::env::temp_dir());
        command.args(args);
        let ended = end(command).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (2, ""), "{args:?}");
    }
}

/// Runs a shell script on a terminal of its own. Text that is written to the process is typed there.
fn on_a_terminal(serve: &Serve, folder: &std::path::Path, script: &str) -> Child {
    let mut command = Command::new("script");
    command.args(["-qefc", script, "/dev/null"]).env("LEASEHOLD_URL", &serve.base_url).env("TERM", "xterm");
    command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold")).env("SHELL", "/bin/sh").current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().expect("script, of util-linux")
}

#[tokio::test]
async fn ctrl_c_reaches_the_command_once() {
    let serve = Serve::memory().await;
    let folder = folder();
    let job = r#"trap "echo int >> ints" INT; echo $$ > ready; until [ -e ints ]; do sleep 0.1; done; sleep 1; cat ints; exit 9"#;
    let script = format!(r#"exec "$LEASEHOLD" run Moe -- sh -c '{job}'"#);
    let mut terminal = on_a_terminal(&serve, folder.path(), &script);
    process_in(&folder.path().join("ready")).await;
    // The keyboard sends a Ctrl-C.
    let mut keyboard = terminal.stdin.take().unwrap();
    keyboard.write_all(b"\x03").await.unwrap();
    first_line(&folder.path().join("ints")).await;
    let output = within(terminal.wait_with_output()).await.unwrap();
    drop(keyboard);
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(9), "{screen:?}");
    assert_eq!(screen.matches("int\r\n").count(), 1, "{screen:?}");
    assert_eq!(serve.get("Moe").await["state"], "released");
}

#[tokio::test]
async fn ctrl_c_ends_the_loop_of_a_shell_and_the_lock_is_released() {
    let serve = Serve::memory().await;
    let folder = folder();
    let script = r#"bash -c 'for i in 1 2 3; do
        "$LEASEHOLD" run Moe -- sh -c "echo round; echo \$\$ > ready; exec sleep 60"; done; echo over'"#;
    let mut terminal = on_a_terminal(&serve, folder.path(), script);
    process_in(&folder.path().join("ready")).await;
    pause(Duration::from_millis(100)).await;
    let mut keyboard = terminal.stdin.take().unwrap();
    keyboard.write_all(b"\x03").await.unwrap();
    let output = within(terminal.wait_with_output()).await.unwrap();
    drop(keyboard);
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((screen.matches("round").count(), screen.matches("over").count()), (1, 0), "{screen:?}");
    assert!(!screen.contains("leasehold:"), "nothing to complain of: {screen:?}");
    assert_eq!(serve.get("Moe").await["state"], "released");
}

#[tokio::test]
async fn wait_is_shown_and_wiped_away_on_a_terminal() {
    let serve = Serve::memory().await;
    let folder = folder();
    serve.acquire("Moe", "secret").await;
    let script = r#"exec "$LEASEHOLD" acquire Moe --wait 3s"#;
    let terminal = on_a_terminal(&serve, folder.path(), script);
    let output = timeout(Duration::from_secs(30), terminal.wait_with_output()).await.unwrap().unwrap();
    let screen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(75), "{screen:?}");
    // The seconds that are left tell when it was drawn.
    for part in ["waiting for Moe, held by test; stale in ", "s if it is dead; giving up in "] {
        assert!(screen.contains(part), "{screen:?}");
    }
    // The last text on the screen is the reason, on a line that was wiped.
    let last = screen.trim_end().rsplit("\u{1b}[2K").next().unwrap_or_default();
    assert!(last.trim_start().starts_with("leasehold: Moe is held by test"), "{screen:?}");
}
