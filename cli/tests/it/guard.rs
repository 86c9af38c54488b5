//! No job outlives its run: trees of processes, and what may happen to the process that keeps their lock.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use crate::support::{Serve, finish, first_line, folder, kill, pause, runs, signal, within};

/// Processes that no signal but SIGKILL ends: a child, one in a session of its own, and a daemon that was forked twice.
/// Each notes its id in a file.
const TREE: &str = r#"
    trap "" TERM INT HUP
    sleeper='trap "" TERM INT HUP; while :; do sleep 0.05; done'
    sh -c "echo \$\$ > child; $sleeper" &
    setsid sh -c "echo \$\$ > session; $sleeper" &
    (setsid sh -c "(sh -c 'echo \$\$ > daemon; sleep 1000; :' &)" &)
    echo $$ > job
    while :; do sleep 0.05; done"#;

/// Tells which of these processes run, at its start.
const SUCCESSOR: &str = r#"
    for file in job child session daemon; do
        process=$(cat "$file")
        case $(sed 's/.*) //; s/ .*//' "/proc/$process/stat" 2> /dev/null) in
            '' | Z | X) ;;
            *) echo "$file" ;;
        esac
    done"#;

fn spawn(serve: &Serve, folder: &Path, args: &[&str], script: &str) -> Child {
    let mut command = serve.command(&[args, &["--", "sh", "-c", script]].concat());
    command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, as a shell gives to each job.
    command.process_group(0).spawn().expect("the binary is built")
}

/// Starts the tree of processes, and returns when all have started.
async fn start_tree(serve: &Serve, folder: &Path, args: &[&str]) -> (Child, Vec<i64>) {
    let run = spawn(serve, folder, args, TREE);
    let mut processes = Vec::new();
    for name in ["job", "child", "session", "daemon"] {
        processes.push(first_line(&folder.join(name)).await.parse().expect("a process id"));
    }
    (run, processes)
}

fn id(process: &Child) -> i64 {
    process.id().expect("it runs").into()
}

/// The guardian: the one child of a `run`.
fn guardian(run: &Child) -> i64 {
    let children = format!("/proc/{0}/task/{0}/children", id(run));
    std::fs::read_to_string(children).expect("Linux").trim().parse().expect("one child")
}

/// What the successor of a `run` found of the job before.
async fn survivors(serve: &Serve, folder: &Path, how: &str) -> String {
    finish(spawn(serve, folder, &[how, "Moe", "--wait", "19s", "-q"], SUCCESSOR)).await.ok()
}

#[tokio::test]
async fn job_is_gone_before_its_successor_when_its_run_is_killed() {
    let serve = Serve::memory().await;
    let folder = folder();
    let (mut run, processes) = start_tree(&serve, folder.path(), &["run", "Moe", "--lease", "4s"]).await;
    within(run.kill()).await.expect("it ran");
    assert_eq!(survivors(&serve, folder.path(), "run").await, "");
    assert!(!processes.into_iter().any(runs));
}

#[tokio::test]
async fn job_is_gone_before_its_successor_when_its_group_is_killed() {
    let serve = Serve::memory().await;
    let folder = folder();
    let (run, _) = start_tree(&serve, folder.path(), &["run", "Moe", "--lease", "4s"]).await;
    kill("KILL", -id(&run));
    assert_eq!(survivors(&serve, folder.path(), "run").await, "");
}

#[tokio::test]
async fn job_is_gone_before_its_successor_when_its_run_is_stopped() {
    let serve = Serve::memory().await;
    let folder = folder();
    let (run, _) = start_tree(&serve, folder.path(), &["run", "Moe", "--lease", "4s"]).await;
    signal(&run, "STOP");
    assert_eq!(survivors(&serve, folder.path(), "run").await, "");
    signal(&run, "CONT");
    let ended = finish(run).await;
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.stderr.starts_with("leasehold: Moe is lost: "), "{ended:?}");
}

#[tokio::test]
async fn job_is_gone_before_its_successor_when_its_guardian_is_killed() {
    let serve = Serve::memory().await;
    let folder = folder();
    let (run, _) = start_tree(&serve, folder.path(), &["run", "Moe", "--lease", "4s"]).await;
    kill("KILL", guardian(&run));
    assert_eq!(survivors(&serve, folder.path(), "run").await, "");
    let ended = finish(run).await;
    assert_eq!(ended.status, 137, "{ended:?}");
    let told = "leasehold: the command's guardian was killed; stopping the command\n";
    assert!(ended.stderr.starts_with(told), "{ended:?}");
}

/// Each process starts the next one in a session of its own, and ends: faster than a list of processes is read.
#[tokio::test]
async fn no_fork_outlives_the_release_when_a_guardian_is_killed() {
    let serve = Serve::memory().await;
    let folder = folder();
    std::fs::write(folder.path().join("fork"), "echo $1 > last\n[ $1 -gt 0 ] && setsid sh fork $(($1 - 1)) &")
        .expect("written");
    let script = "(setsid sh fork 9999 &); while [ ! -s last ]; do sleep 0.01; done; echo > job; exec sleep 1000";
    let run = spawn(&serve, folder.path(), &["run", "Moe", "--lease", "4s"], script);
    first_line(&folder.path().join("job")).await;
    kill("KILL", guardian(&run));
    let successor = r#"at=$(cat last); sleep 0.3; [ "$at" = "$(cat last)" ] && [ "$at" != 0 ] && echo "no fork""#;
    let seen = finish(spawn(&serve, folder.path(), &["run", "Moe", "--wait", "19s", "-q"], successor)).await.ok();
    assert_eq!(seen, "no fork\n");
    assert_eq!(finish(run).await.status, 137);
}

#[tokio::test]
async fn guardian_goes_on_when_somebody_stopped_it() {
    let serve = Serve::memory().await;
    let folder = folder();
    let (mut run, _) = start_tree(&serve, folder.path(), &["run", "Moe", "--lease", "4s"]).await;
    let guardian = guardian(&run);
    kill("STOP", guardian);
    // It is stopped a moment later.
    pause(Duration::from_millis(500)).await;
    let stat = || std::fs::read_to_string(format!("/proc/{guardian}/stat")).expect("Linux");
    let continued = async {
        while stat().contains(") T ") {
            pause(Duration::from_millis(10)).await;
        }
    };
    within(continued).await;
    assert!(run.try_wait().expect("its status").is_none(), "the job goes on");
    within(run.kill()).await.expect("it ran");
    assert_eq!(survivors(&serve, folder.path(), "run").await, "");
}

#[tokio::test]
async fn descendants_are_gone_before_the_release_when_a_job_is_killed() {
    let serve = Serve::memory().await;
    let folder = folder();
    let (run, processes) = start_tree(&serve, folder.path(), &["run", "Moe"]).await;
    kill("KILL", processes[0]);
    assert_eq!(survivors(&serve, folder.path(), "run").await, "");
    let ended = finish(run).await;
    assert_eq!((ended.status, ended.stderr.as_str()), (137, ""));
}

#[tokio::test]
async fn job_is_gone_before_its_successor_when_the_service_is_away() {
    let folder = folder();
    let database = folder.path().join("locks.db");
    let args = ["--db", database.to_str().expect("UTF-8")];
    let serve = Serve::start(&args).await;
    let (run, _) = start_tree(&serve, folder.path(), &["run", "Moe", "--lease", "8s", "--grace", "2s"]).await;
    serve.kill_9().await;
    let serve = Serve::start(&args).await;
    assert_eq!(survivors(&serve, folder.path(), "run").await, "");
    assert_eq!(finish(run).await.status, 76);
}

#[tokio::test]
async fn no_two_leaders_work_when_the_first_is_stopped() {
    let serve = Serve::memory().await;
    let folder = folder();
    let (leader, _) = start_tree(&serve, folder.path(), &["elect", "Moe", "--lease", "4s"]).await;
    signal(&leader, "STOP");
    let successor = finish(spawn(&serve, folder.path(), &["elect", "Moe", "-q"], SUCCESSOR)).await;
    assert_eq!(successor.ok(), "");
    std::fs::remove_file(folder.path().join("job")).expect("it was there");
    signal(&leader, "CONT");
    // It leads again, and is ended.
    first_line(&folder.path().join("job")).await;
    signal(&leader, "KILL");
    assert_eq!(survivors(&serve, folder.path(), "run").await, "");
}

#[tokio::test]
async fn job_has_its_grace_when_its_run_is_killed() {
    let serve = Serve::memory().await;
    let folder = folder();
    let script = r#"trap 'sleep 0.3; echo ended > ended; exit' TERM; echo > ready; while :; do sleep 0.05; done"#;
    let mut run = spawn(&serve, folder.path(), &["run", "Moe", "--lease", "16s"], script);
    first_line(&folder.path().join("ready")).await;
    within(run.kill()).await.expect("it ran");
    assert_eq!(first_line(&folder.path().join("ended")).await, "ended");
}

#[tokio::test]
async fn job_ends_early_enough_when_nobody_chose_a_grace() {
    let serve = Serve::memory().await;
    for (args, status) in [
        (&["--lease", "20s"][..], 0),
        (&["--lease", "20s", "--grace", "10s"], 0),
        (&["--lease", "20s", "--grace", "0s"], 0),
        (&["--lease", "20s", "--grace", "20s"], 64),
        (&["--lease", "20s", "--lock-delay", "1s", "--grace", "30s"], 64),
    ] {
        let ended = serve.run(&[&["run", "Moe"], args, &["--", "true"]].concat()).await;
        assert_eq!(ended.status, status, "{args:?}: {ended:?}");
    }
}

#[tokio::test]
async fn what_a_command_leaves_behind_goes_on_after_its_own_end() {
    let serve = Serve::memory().await;
    let folder = folder();
    let script =
        "setsid sh -c 'echo $$ > left; exec sleep 1000' > /dev/null 2>&1 & while [ ! -s left ]; do sleep 0.01; done";
    finish(spawn(&serve, folder.path(), &["run", "Moe"], script)).await.ok();
    let left = first_line(&folder.path().join("left")).await.parse().expect("a process id");
    assert!(runs(left));
    kill("KILL", left);
}

#[tokio::test]
async fn command_is_stopped_with_its_terminal_group() {
    let serve = Serve::memory().await;
    let folder = folder();
    let script = "echo $$ > job; while :; do sleep 0.05; done";
    let mut run = spawn(&serve, folder.path(), &["run", "Moe", "--lease", "1s"], script);
    let job = first_line(&folder.path().join("job")).await.parse().expect("a process id");
    // A Ctrl-Z stops the whole group.
    kill("STOP", -id(&run));
    let mut said = BufReader::new(run.stderr.take().expect("piped")).lines();
    let look = async {
        while runs(job) {
            pause(Duration::from_millis(10)).await;
        }
    };
    within(look).await;
    kill("CONT", -id(&run));
    // A heartbeat may have succeeded after the last report to the guardian: then the lock is not lost, and given back.
    let told = ["leasehold: Moe is lost: ", "leasehold: this program was paused for long; "];
    let is_told = |line: &String| told.iter().any(|start| line.starts_with(start));
    while !is_told(&within(said.next_line()).await.expect("text").expect("a line")) {}
    assert_eq!(within(run.wait()).await.expect("its status").code(), Some(76));
}
