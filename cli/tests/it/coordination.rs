//! `leasehold run` with permits, several keys and occurrences, and `leasehold elect`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use crate::support::{Serve, finish, first_line, folder, kill, pause, runs, signal, within};

/// Starts a command whose script writes into this folder.
fn spawn_in(serve: &Serve, folder: &Path, args: &[&str], script: &str) -> Child {
    let mut command = serve.command(&[args, &["--", "sh", "-c", script]].concat());
    command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is built")
}

/// Waits until a file has so many lines, and returns them.
async fn lines(path: &Path, wanted: usize) -> Vec<String> {
    let look = async {
        loop {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().map(str::to_owned).collect();
            if lines.len() >= wanted && text.ends_with('\n') {
                return lines;
            }
            pause(Duration::from_millis(20)).await;
        }
    };
    within(look).await
}

/// Waits until a process has written its id, and ends its script by another file.
async fn started(folder: &Path, name: &str) -> i64 {
    first_line(&folder.join(name)).await.parse().expect("a process id")
}

/// A script that writes its process id into the file `name`, and ends when the file `end` is there.
fn until_end(name: &str) -> String {
    format!("echo $$ > {name}; while [ ! -e end ]; do sleep 0.05; done")
}

#[tokio::test]
async fn permits_are_never_exceeded_when_twenty_run() {
    let serve = Serve::memory().await;
    let folder = folder();
    let script = "echo + >> log; sleep 0.1; echo - >> log";
    let args = ["run", "pool", "--permits", "1", "--of", "3", "--wait", "forever", "-q"];
    let all: Vec<_> = (0..20).map(|_| spawn_in(&serve, folder.path(), &args, script)).collect();
    for run in all {
        let ended = finish(run).await;
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    }
    let (mut now, mut most, mut all) = (0, 0, 0);
    for line in lines(&folder.path().join("log"), 40).await {
        now += if line == "+" { 1 } else { -1 };
        (most, all) = (most.max(now), all + i32::from(line == "+"));
    }
    assert_eq!((now, all), (0, 20));
    assert!(most <= 3, "{most} at once");
    let view = serve.semaphore("pool").await;
    assert_eq!((&view["available"], &view["holders"], &view["queue"]), (&json!(3), &json!([]), &json!([])));
}

#[tokio::test]
async fn killed_holder_of_permits_is_passed_after_its_lease() {
    let serve = Serve::memory().await;
    let folder = folder();
    let args = ["run", "pool", "--permits", "2", "--of", "2", "--lease", "1s", "--owner", "host-1"];
    let mut first = spawn_in(&serve, folder.path(), &args, &until_end("first"));
    let job = started(folder.path(), "first").await;
    within(first.kill()).await.unwrap();
    let args = ["run", "pool", "--of", "2", "--wait", "10s"];
    let ended = finish(spawn_in(&serve, folder.path(), &args, "echo $LEASEHOLD_PERMITS")).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "1\n"), "{ended:?}");
    assert_eq!(ended.stderr, "leasehold: waiting for a permit of pool, held by host-1\n");
    assert!(!runs(job), "it was told that nobody keeps its permits");
}

#[tokio::test]
async fn readers_run_side_by_side_and_a_writer_alone() {
    let serve = Serve::memory().await;
    let folder = folder();
    let (shared, exclusive) = (["run", "page", "--shared"], ["run", "page", "--exclusive"]);
    let readers = ["one", "two"].map(|name| spawn_in(&serve, folder.path(), &shared, &until_end(name)));
    started(folder.path(), "one").await;
    started(folder.path(), "two").await;
    let refused = serve.run(&[&exclusive[..], &["--no-wait", "--", "true"]].concat()).await;
    assert_eq!(refused.status, 75);
    let sentence = "leasehold: page has 98 of 100 permits free, held by ";
    assert!(refused.stderr.starts_with(sentence), "{refused:?}");
    std::fs::write(folder.path().join("end"), "").unwrap();
    for reader in readers {
        finish(reader).await.ok();
    }
    std::fs::remove_file(folder.path().join("end")).unwrap();
    let writer = spawn_in(&serve, folder.path(), &exclusive, &until_end("writer"));
    started(folder.path(), "writer").await;
    let refused = serve.run(&[&shared[..], &["--no-wait", "--json", "--", "true"]].concat()).await;
    let failure: Value = serde_json::from_str(&refused.stderr).expect("JSON");
    assert_eq!((refused.status, &failure["lock"]["available"]), (75, &json!(0)));
    std::fs::write(folder.path().join("end"), "").unwrap();
    finish(writer).await.ok();
}

#[tokio::test]
async fn fair_runs_go_in_the_order_of_the_queue() {
    let serve = Serve::memory().await;
    let folder = folder();
    let args = ["run", "door", "--fair", "--wait", "forever", "-q"];
    let mut all = vec![spawn_in(&serve, folder.path(), &args, &until_end("first"))];
    started(folder.path(), "first").await;
    for number in 1..=4 {
        all.push(spawn_in(&serve, folder.path(), &args, &format!("echo {number} >> log")));
        serve.until_queued("door", number).await;
    }
    std::fs::write(folder.path().join("end"), "").unwrap();
    for run in all {
        finish(run).await.ok();
    }
    assert_eq!(lines(&folder.path().join("log"), 4).await, ["1", "2", "3", "4"]);
}

/// A holder of the only permit that is killed, and a run that does not wait.
async fn killed_holder_and_job(serve: &Serve, folder: &Path, options: &[&str]) -> Vec<String> {
    let args = ["run", "pool", "--of", "1", "--lease", "1s", "--grace", "0s"];
    let mut holder = spawn_in(serve, folder, &args, &until_end("first"));
    started(folder, "first").await;
    within(holder.kill()).await.unwrap();
    let job = [&["run", "pool", "--of", "1", "--no-wait"], options, &["--", "echo", "ran"]].concat();
    job.into_iter().map(str::to_owned).collect()
}

/// Runs a job each half second until it gets its permit.
async fn until_it_ran(serve: &Serve, job: &[String]) {
    let job: Vec<_> = job.iter().map(String::as_str).collect();
    for _ in 0..30 {
        let ended = serve.run(&job).await;
        match ended.status {
            75 => pause(Duration::from_millis(500)).await,
            0 => return,
            _ => panic!("{ended:?}"),
        }
    }
    panic!("the permit of the dead never came back")
}

#[tokio::test]
async fn job_that_never_waits_takes_a_dead_permit_by_the_clock() {
    let (serve, folder) = (Serve::memory().await, folder());
    let job = killed_holder_and_job(&serve, folder.path(), &["--stale-by-clock"]).await;
    until_it_ran(&serve, &job).await;
}

#[tokio::test]
async fn job_that_never_waits_takes_a_dead_permit_by_what_it_saved() {
    let (serve, folder) = (Serve::memory().await, folder());
    let file = folder.path().join("observations.json");
    let job = killed_holder_and_job(&serve, folder.path(), &["--observations", file.to_str().unwrap()]).await;
    until_it_ran(&serve, &job).await;
}

#[tokio::test]
async fn signal_in_the_queue_leaves_no_ticket() {
    let serve = Serve::memory().await;
    let folder = folder();
    let args = ["run", "door", "--fair", "--wait", "forever"];
    let holder = spawn_in(&serve, folder.path(), &args, &until_end("first"));
    started(folder.path(), "first").await;
    for (name, status) in [("INT", 130), ("TERM", 143)] {
        let waiting = spawn_in(&serve, folder.path(), &args, "echo ran > ran");
        serve.until_queued("door", 1).await;
        signal(&waiting, name);
        let ended = finish(waiting).await;
        assert_eq!(ended.status, status, "{ended:?}");
        assert!(ended.stderr.ends_with(&format!("leasehold: SIG{name}: no longer waiting for door\n")), "{ended:?}");
        assert_eq!(serve.semaphore("door").await["queue"], json!([]), "the ticket is gone with the process");
    }
    std::fs::write(folder.path().join("end"), "").unwrap();
    finish(holder).await.ok();
    assert!(!folder.path().join("ran").exists());
}

#[tokio::test]
async fn loss_of_a_permit_stops_the_command_and_speaks_of_permits() {
    let serve = Serve::memory().await;
    let folder = folder();
    let args = ["run", "pool", "--of", "2", "--lease", "20s", "--heartbeat", "200ms"];
    let run = spawn_in(&serve, folder.path(), &args, &until_end("first"));
    let job = started(folder.path(), "first").await;
    let holder = serve.semaphore("pool").await["holders"][0]["holderId"].clone();
    // The version may move between the look and the break.
    let broken = loop {
        let ended = serve.run(&["break", "pool", "--holder", holder.as_str().unwrap(), "--yes"]).await;
        if ended.status == 0 {
            break ended.stdout;
        }
    };
    assert_eq!(broken, format!("{} of pool is broken: its permits are free\n", holder.as_str().unwrap()));
    let ended = finish(run).await;
    assert_eq!(
        (ended.status, ended.stderr.as_str()),
        (
            76,
            "leasehold: pool is lost: the permits were released elsewhere, or broken by an operator; stopping the \
             command\n"
        )
    );
    assert!(!runs(job));
}

#[tokio::test]
async fn several_keys_are_locked_all_or_none() {
    let serve = Serve::memory().await;
    let folder = folder();
    serve.acquire("b", "secret").await;
    let refused = serve.run(&["run", "a", "b", "c", "--no-wait", "--", "true"]).await;
    let sentence = "leasehold: b is held by test; try again later, or wait longer with --wait or --extend\n".to_owned();
    assert_eq!((refused.status, refused.stderr), (75, sentence));
    assert_eq!(serve.get("a").await["type"], "not-found", "nothing of it is held");

    let script = r#"echo "$LEASEHOLD_KEYS" > keys; exit 4"#;
    let mut waiting = spawn_in(&serve, folder.path(), &["run", "a", "b", "c"], script);
    let mut said = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let told = within(said.next_line()).await.unwrap();
    assert_eq!(told.as_deref(), Some("leasehold: waiting for a, b, c, held by test"));
    serve.run(&["release", "b", "--lease-id", "secret"]).await.ok();
    assert_eq!(within(waiting.wait()).await.unwrap().code(), Some(4));
    assert_eq!(within(said.next_line()).await.unwrap(), None);
    assert_eq!(lines(&folder.path().join("keys"), 3).await, ["a", "b", "c"]);
    for key in ["a", "b", "c"] {
        assert_eq!(serve.get(key).await["state"], "released");
    }
    let tokens: Vec<_> = futures_util::future::join_all(["a", "b", "c"].map(|key| serve.get(key))).await;
    assert!(tokens.iter().all(|lock| lock["fencingToken"] == tokens[0]["fencingToken"]), "{tokens:?}");
}

#[tokio::test]
async fn loss_of_one_of_several_locks_stops_the_command() {
    let serve = Serve::memory().await;
    let folder = folder();
    let run = spawn_in(
        &serve,
        folder.path(),
        &["run", "a", "b", "--lease", "20s", "--heartbeat", "200ms"],
        &until_end("first"),
    );
    let job = started(folder.path(), "first").await;
    serve.take_over("b", "host-2").await;
    let ended = finish(run).await;
    let sentence = "leasehold: b is lost: the lock was taken over by \"host-2\"; stopping the command\n";
    assert_eq!((ended.status, ended.stderr.as_str()), (76, sentence));
    assert!(!runs(job));
    serve.until("a", |lock| lock["state"] == "released").await;
    assert_eq!(serve.get("b").await["ownerName"], "host-2");
}

#[tokio::test]
async fn lock_and_permits_are_acquired_all_or_none() {
    let serve = Serve::memory().await;
    let folder = folder();
    let hold = spawn_in(&serve, folder.path(), &["run", "pool", "--permits", "9", "--of", "10"], &until_end("first"));
    started(folder.path(), "first").await;
    let refused = serve.run(&["run", "a", "pool:2/10", "--no-wait", "--", "true"]).await;
    let sentence =
        "leasehold: pool has 1 of 10 permits free; try again later, or wait longer with --wait or --extend\n";
    assert_eq!((refused.status, refused.stderr.as_str()), (75, sentence));
    assert_eq!(serve.get("a").await["type"], "not-found", "nothing of it is held");
    serve.run(&["run", "a", "pool:1/10", "--no-wait", "--", "true"]).await.ok();

    let script = r#"echo "$LEASEHOLD_KEYS" > keys; exit 4"#;
    let waiting = spawn_in(&serve, folder.path(), &["run", "a", "pool:2/10", "--wait", "forever"], script);
    pause(Duration::from_millis(200)).await;
    std::fs::write(folder.path().join("end"), "").expect("writable");
    assert_eq!(finish(hold).await.status, 0);
    let ended = finish(waiting).await;
    assert_eq!(ended.status, 4, "{ended:?}");
    assert_eq!(lines(&folder.path().join("keys"), 2).await, ["a", "pool"]);
    assert_eq!(serve.get("a").await["state"], "released");
    let shown = serve.run(&["get", "pool", "--json"]).await.ok();
    assert!(shown.contains(r#""available":10"#), "{shown}");

    let alone = serve.run(&["run", "pool:2/10", "--", "sh", "-c", "echo $LEASEHOLD_KEY $LEASEHOLD_PERMITS"]).await;
    assert_eq!(alone.ok(), "pool 2\n");
    serve.run(&["run", "--plain", "pool:2/10", "--", "true"]).await.ok();
    assert_eq!(serve.get("pool:2/10").await["state"], "released", "a lock of this name");
}

#[tokio::test]
async fn occurrence_is_run_until_it_succeeds_once() {
    let serve = Serve::memory().await;
    let run = async |occurrence: &str, script: &str| {
        serve.run(&["run", "job", "--once", occurrence, "--", "sh", "-c", script]).await
    };
    assert_eq!(run("2026-1", "exit 3").await.status, 3, "a run that fails is not done");
    assert_eq!(run("2026-1", "kill -TERM $$").await.status, 143);
    assert_eq!(run("2026-1", "echo $LEASEHOLD_OCCURRENCE").await.ok(), "2026-1\n");
    let line = "leasehold: job is already done, up to 2026-1\n";
    for (occurrence, warning) in [
        ("2026-1", ""),
        (
            "2026-0",
            "leasehold: 2026-1 is recorded as done, which sorts after 2026-0; if by mistake, `leasehold occurrence` sets it \
             back\n",
        ),
    ] {
        let done = run(occurrence, "echo again").await;
        assert_eq!((done.status, done.stdout.as_str(), done.stderr), (0, "", format!("{line}{warning}")));
    }
    assert_eq!(serve.run(&["run", "job", "--once", "2026-1", "-q", "--", "echo", "again"]).await.ok(), "");
    assert_eq!(run("2026-2", "echo next").await.ok(), "next\n");
}

#[tokio::test]
async fn far_occurrence_is_set_back_by_an_operator() {
    let serve = Serve::memory().await;
    let run =
        async |occurrence: &str| serve.run(&["run", "job", "--once", occurrence, "-q", "--", "echo", "ran"]).await;
    assert_eq!(run("9999").await.ok(), "ran\n");
    assert_eq!(run("2026-2").await.ok(), "");
    let seen = serve.get("job").await["recordVersionNumber"].as_str().unwrap().to_owned();
    let set = serve.run(&["occurrence", "job", "--set", "2026-1"]).await;
    assert_eq!(set.ok(), "job is done up to 2026-1\n");
    assert_eq!(run("2026-1").await.ok(), "");
    assert_eq!(run("2026-2").await.ok(), "ran\n");
    let late = serve.run(&["occurrence", "job", "--set", "2026-1", "--rvn", &seen]).await;
    assert!(late.status != 0 && late.stderr.contains("changed since you looked"), "{late:?}");
    serve.acquire("job", "mine").await;
    let held = serve.run(&["occurrence", "job", "--set", "2026-1"]).await;
    assert_eq!(held.status, 75, "{held:?}");
}

#[tokio::test]
async fn loser_is_content_while_its_occurrence_is_run() {
    let serve = Serve::memory().await;
    let tries = ["--once 2026-1", "--once 2026-2", "--held-status 9 --once 2026-2", ""].map(|options| {
        format!("{} run job --no-wait -q {options} -- echo ran; echo $?", env!("CARGO_BIN_EXE_leasehold"))
    });
    let ended = serve.run(&["run", "job", "--once", "2026-1", "-q", "--", "sh", "-c", &tries.join("; ")]).await;
    assert_eq!((ended.status, ended.stdout.as_str()), (0, "0\n75\n9\n75\n"), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 3, "with -q the first one says nothing: {ended:?}");
}

#[tokio::test]
async fn success_of_another_run_is_not_ones_own() {
    let serve = Serve::memory().await;
    let again =
        format!("{0} break job --yes -q && {0} run job --once 2026-1 -q -- true", env!("CARGO_BIN_EXE_leasehold"));
    let ended = serve.run(&["run", "job", "--lease", "10m", "--once", "2026-1", "--", "sh", "-c", &again]).await;
    assert_eq!(ended.status, 0);
    assert!(ended.stderr.contains("job was lost while the command ran"), "{ended:?}");
    assert!(ended.stderr.contains("2026-1 may not be recorded as done"), "{ended:?}");
}

#[tokio::test]
async fn command_gives_way_when_somebody_waits() {
    let serve = Serve::memory().await;
    let folder = folder();
    let script = "echo $$ > holder; trap 'exit 5' TERM; while :; do sleep 0.05; done";
    let args = ["run", "job", "--lease", "20s", "--heartbeat", "200ms", "--yield-after", "100ms"];
    let holder = spawn_in(&serve, folder.path(), &args, script);
    started(folder.path(), "holder").await;
    let waiter = spawn_in(&serve, folder.path(), &["run", "job", "--wait", "forever", "-q"], "echo next");
    let ended = finish(holder).await;
    assert_eq!(ended.status, 5, "the command ended by itself: {ended:?}");
    assert!(ended.stderr.contains("somebody has waited for 100ms: asking the command to end"), "{ended:?}");
    assert_eq!(finish(waiter).await.ok(), "next\n");
}

#[tokio::test]
async fn period_is_run_once_whoever_comes_first() {
    let serve = Serve::memory().await;
    // A period that does not end during the test, unless it runs at midnight on a Thursday.
    let args = ["run", "job", "--every", "7d", "--wait", "forever"];
    let folder = folder();
    let all: Vec<_> = (0..4).map(|_| spawn_in(&serve, folder.path(), &args, "echo ran >> log")).collect();
    for run in all {
        assert_eq!(finish(run).await.status, 0);
    }
    assert_eq!(lines(&folder.path().join("log"), 1).await, ["ran"]);
    let last = serve.get("job").await["lastOccurrence"].clone();
    assert!(last.as_str().is_some_and(|last| last.len() == 24 && last.ends_with("T00:00:00.000Z")), "{last}");
}

#[tokio::test]
async fn options_that_exclude_each_other_are_refused() {
    let serve = Serve::memory().await;
    for (options, sentence) in [
        (&["a", "--fair", "--shared"][..], "'--fair' cannot be used with '--shared'"),
        (&["a", "--of", "3", "--once", "x"], "'--of <CAPACITY>' cannot be used with"),
        (&["a", "--once", "x", "--every", "1h"], "'--once <OCCURRENCE>' cannot be used with"),
        (&["a", "--permits", "3"], "required arguments were not provided"),
        (&["a", "--permits", "0", "--of", "3"], "it must be a whole number from 1 to 1000000000"),
        (&["a", "--of", "0"], "it must be a whole number from 1 to 1000000000"),
        (&["a", "--of", "2000000000"], "it must be a whole number from 1 to 1000000000"),
        (&["a", "b", "--fair"], "several keys are plain locks"),
        (&["a", "b", "--stale-by-clock"], "--stale-by-clock goes with one key, and there are several"),
        (&["a", "--of", "3", "--yield-after", "1s"], "cannot be used with"),
        (&["a", "b", "--yield-after", "1s"], "--yield-after goes with one key, and there are several"),
        (&["a", "b", "--every", "1h"], "--every goes with one key, and there are several"),
        (&["a", "pool:2/10", "--of", "3"], "several keys are plain locks, or name their permits"),
        (&["pool:2/10", "--of", "3"], "the key names its permits"),
        (&["pool:2/10", "--once", "x"], "--once goes with a plain lock, and the key is a semaphore"),
        (&["a", "pool:3/2"], "asks for 3 of 2 permits"),
        (&["a", "pool:2/1"], "asks for 2 of 1 permit;"),
        (&["a", "--fair", "--attribute", "x=y"], "--attribute goes with a plain lock, and the key is a semaphore"),
    ] {
        let ended = serve.run(&[&["run"], options, &["--", "true"]].concat()).await;
        assert!(ended.status == 2 && ended.stderr.contains(sentence), "{options:?}: {ended:?}");
    }
    serve.run(&["run", "pool", "--of", "2", "--", "true"]).await.ok();
    serve.run(&["run", "one", "--of", "1", "--", "true"]).await.ok();
    for (args, sentence) in [
        (&["run", "pool", "--", "true"][..], "`run KEY --of N` asks for permits of a semaphore"),
        (&["run", "pool", "--permits", "3", "--of", "3", "--", "true"], "The semaphore has 2 permits in all."),
        (&["run", "one", "--permits", "3", "--of", "3", "--", "true"], "The semaphore has 1 permit in all."),
        (&["run", "pool", "--fair", "--", "true"], "so that 1 do not exclude others"),
    ] {
        let ended = serve.run(args).await;
        assert!(ended.status == 64 && ended.stderr.contains(sentence), "{args:?}: {ended:?}");
    }
}

#[tokio::test]
async fn next_candidate_leads_when_the_leader_was_killed() {
    let serve = Serve::memory().await;
    let folder = folder();
    let elect = |name: &str| {
        let args = ["elect", "chief", "--value", name, "--owner", name, "--lease", "1s"];
        spawn_in(&serve, folder.path(), &args, &until_end(name))
    };
    let mut ann = elect("ann");
    let job = started(folder.path(), "ann").await;
    assert_eq!(serve.get("chief").await["data"], "ann");
    let mut bob = elect("bob");
    let mut stderr = BufReader::new(bob.stderr.take().unwrap()).lines();
    let line = within(stderr.next_line()).await.unwrap().unwrap();
    assert_eq!(line, "leasehold: waiting for chief, held by ann");
    within(ann.kill()).await.unwrap();
    started(folder.path(), "bob").await;
    assert!(!runs(job), "no two lead at once");
    assert_eq!(serve.get("chief").await["data"], "bob");
    std::fs::write(folder.path().join("end"), "").unwrap();
    assert_eq!(finish(bob).await.status, 0);
    assert_eq!(serve.get("chief").await["state"], "released", "who is done resigns");
}

#[tokio::test]
async fn leader_that_loses_stops_its_command_and_campaigns_again() {
    let serve = Serve::memory().await;
    let folder = folder();
    let script = "echo $LEASEHOLD_FENCING_TOKEN >> terms; trap 'echo stopped >> ends; exit 0' TERM; \
                  while [ ! -e end ]; do sleep 0.05; done; exit 7";
    let mut elect =
        spawn_in(&serve, folder.path(), &["elect", "chief", "--lease", "20s", "--heartbeat", "200ms"], script);
    let mut said = BufReader::new(elect.stderr.take().unwrap()).lines();
    let (terms, ends) = (folder.path().join("terms"), folder.path().join("ends"));
    lines(&terms, 1).await;
    let thief = serve.take_over("chief", "host-2").await;
    lines(&ends, 1).await;
    let lost = "leasehold: chief is lost: the lock was taken over by \"host-2\"; stopping the command";
    assert_eq!(within(said.next_line()).await.unwrap().as_deref(), Some(lost));
    // In between, the shell tells that its `sleep` was terminated.
    while within(said.next_line()).await.unwrap().expect("a line") != "leasehold: waiting for chief, held by host-2" {}
    assert_eq!(lines(&terms, 1).await.len(), 1, "it waits for the other leader");
    serve.run(&["release", "chief", "--lease-id", thief["leaseId"].as_str().unwrap()]).await.ok();
    let tokens = lines(&terms, 2).await;
    assert!(tokens[1].parse::<u64>().unwrap() > thief["fencingToken"].as_u64().unwrap());
    std::fs::write(folder.path().join("end"), "").unwrap();
    let ended = finish(elect).await;
    assert_eq!(ended.status, 7, "the status is the command's");
    assert_eq!(serve.get("chief").await["state"], "released");
}

#[tokio::test]
async fn candidate_leaves_at_a_signal_and_leaves_nothing() {
    let serve = Serve::memory().await;
    let folder = folder();
    // As leader: the command gets the signal, and the lock is released.
    let leader = spawn_in(&serve, folder.path(), &["elect", "chief"], &until_end("first"));
    let job = started(folder.path(), "first").await;
    signal(&leader, "TERM");
    assert_eq!(finish(leader).await.status, 143);
    assert!(!runs(job));
    assert_eq!(serve.get("chief").await["state"], "released");
    // As candidate: the campaign ends.
    serve.acquire("chief", "secret").await;
    let mut candidate = spawn_in(&serve, folder.path(), &["elect", "chief"], "touch ran");
    let mut stderr = BufReader::new(candidate.stderr.take().unwrap()).lines();
    within(stderr.next_line()).await.unwrap().unwrap();
    signal(&candidate, "INT");
    assert_eq!(within(candidate.wait()).await.unwrap().code(), Some(130));
    serve.run(&["release", "chief", "--lease-id", "secret"]).await.ok();
    pause(Duration::from_millis(500)).await;
    assert_eq!(serve.get("chief").await["state"], "released");
    assert!(!folder.path().join("ran").exists());
}

#[tokio::test]
async fn signal_while_a_lost_command_is_stopped_ends_the_candidacy() {
    let serve = Serve::memory().await;
    let folder = folder();
    let script = "trap 'echo asked > asked' TERM; echo $$ > first; while true; do sleep 0.05; done";
    let elect = spawn_in(
        &serve,
        folder.path(),
        &["elect", "chief", "--lease", "2m", "--heartbeat", "200ms", "--grace", "1m"],
        script,
    );
    let job = started(folder.path(), "first").await;
    // The version may move between the look and the break.
    while serve.run(&["break", "chief", "--yes"]).await.status != 0 {}
    first_line(&folder.path().join("asked")).await;
    signal(&elect, "TERM");
    let ended = finish(elect).await;
    assert_eq!(ended.status, 143, "{ended:?}");
    assert!(ended.stderr.ends_with("leasehold: SIGTERM: no longer a candidate\n"), "{ended:?}");
    assert!(!runs(job));
}

#[tokio::test]
async fn lock_delay_stops_the_command_before_others_may_begin() {
    let serve = Serve::memory().await;
    let folder = folder();
    let refused = serve.run(&["run", "Moe", "--lock-delay", "20s", "--", "true"]).await;
    assert!(refused.status == 64 && refused.stderr.contains("leaves nothing of a lease of 20s"), "{refused:?}");
    let args = ["run", "Moe", "--lease", "1m", "--lock-delay", "56s"];
    let run = spawn_in(&serve, folder.path(), &args, &until_end("first"));
    let job = started(folder.path(), "first").await;
    let view = serve.get("Moe").await;
    assert_eq!(view["leaseDurationMs"], 60_000, "others wait for the whole lease");
    serve.kill_9().await;
    let ended = finish(run).await;
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(!runs(job));
}

#[tokio::test]
async fn holder_that_is_paused_finds_its_permits_lost() {
    let serve = Serve::memory().await;
    let folder = folder();
    let args = ["run", "pool", "--of", "1", "--lease", "4s", "--owner", "host-1"];
    let first = spawn_in(&serve, folder.path(), &args, &until_end("first"));
    let job = started(folder.path(), "first").await;
    signal(&first, "STOP");
    kill("STOP", job);
    let refused = serve.run(&["run", "pool", "--of", "1", "--no-wait", "--", "true"]).await;
    assert!(refused.stderr.starts_with("leasehold: pool has 0 of 1 permit free"), "{refused:?}");
    let args = ["run", "pool", "--of", "1", "--wait", "20s", "-q"];
    let token = finish(spawn_in(&serve, folder.path(), &args, "echo $LEASEHOLD_FENCING_TOKEN")).await.ok();
    assert!(!runs(job), "its guardian has ended it");
    signal(&first, "CONT");
    let ended = finish(first).await;
    assert_eq!(ended.status, 76);
    assert_eq!(
        ended.stderr,
        "leasehold: pool is lost: the lease ran out before it was renewed; stopping the command\n"
    );
    assert!(token.trim().parse::<u64>().is_ok() && !runs(job));
}

#[tokio::test]
async fn semaphore_is_shown_with_holders_queue_and_silences() {
    let serve = Serve::memory().await;
    let folder = folder();
    let pool = ["run", "pool", "--of", "3", "--wait", "forever", "-q"];
    let alive =
        [&pool[..], &["--permits", "2", "--lease", "10s", "--heartbeat", "500ms", "--owner", "host-1"]].concat();
    let alive = spawn_in(&serve, folder.path(), &alive, &until_end("alive"));
    started(folder.path(), "alive").await;
    let dead = [&pool[..], &["--lease", "1m", "--owner", "host-2"]].concat();
    let mut dead = spawn_in(&serve, folder.path(), &dead, &until_end("dead"));
    started(folder.path(), "dead").await;
    within(dead.kill()).await.unwrap();
    let waiting = spawn_in(&serve, folder.path(), &[&pool[..], &["--owner", "host-3"]].concat(), "true");
    let view = serve.until_queued("pool", 1).await;
    let id = |list: &str, at: usize, name: &str| view[list][at][name].as_str().unwrap().to_owned();
    let (first, second) = (id("holders", 0, "holderId"), id("holders", 1, "holderId"));
    let ticket = id("queue", 0, "ticketId");

    let listed = serve.run(&["ls"]).await.ok();
    assert!(listed.contains("pool  0/3 free  host-1, host-2; 1 waits  "), "{listed}");
    let listed = serve.run(&["ls", "--json"]).await.json();
    assert_eq!((&listed["kind"], &listed["holders"][1]["ownerName"]), (&json!("semaphore"), &json!("host-2")));

    let shown = serve.run(&["get", "pool"]).await.ok();
    let expected = format!("pool\n  kind      semaphore\n  permits   0 of 3 free\n\nHOLDER{}OWNER ", " ".repeat(30));
    assert!(shown.starts_with(&expected), "{shown}");
    assert!(shown.contains(&format!("{first}  host-1  2 ")) && shown.contains(&format!("\n{ticket}  host-3  1 ")));
    assert!(!shown.contains("SILENT"), "one look tells no ages: {shown}");

    // Two looks tell who is alive.
    let observed = serve.run(&["get", "pool", "--observe", "1500ms", "--json"]).await.json();
    let silent = |list: &str, at: usize| observed[list][at]["silentMs"].as_u64().unwrap();
    assert!(silent("holders", 0) < silent("holders", 1) && silent("holders", 1) >= 1500, "{observed}");
    assert_eq!((&observed["holders"][1]["stale"], &observed["queue"][0]["stale"]), (&json!(false), &json!(false)));
    let shown = serve.run(&["get", "pool", "--observe", "1100ms"]).await.ok();
    let line = |id: &str| shown.lines().find(|line| line.starts_with(id)).expect("it is shown").to_owned();
    let seconds =
        |word: &str| word.strip_suffix('s').is_some_and(|digits| digits.parse().is_ok_and(|seconds: u64| seconds >= 1));
    assert!(!line(&first).contains("stale") && line(&second).split(' ').any(seconds), "{shown}");
    let listed = serve.run(&["ls", "--observe", "1100ms"]).await.ok();
    assert!(listed.contains("SILENT"), "{listed}");

    // An operator passes the dead by a part of its id.
    let ambiguous = serve.run(&["break", "pool", "--holder", "h-", "--yes"]).await;
    assert!(ambiguous.status == 2 && ambiguous.stderr.contains("several holders or tickets h-"), "{ambiguous:?}");
    let absent = serve.run(&["break", "pool", "--holder", "h-x", "--yes"]).await;
    assert_eq!(absent.status, 66, "{absent:?}");
    serve.run(&["break", "pool", "--holder", &second[..12], "--yes"]).await.ok();
    assert_eq!(finish(waiting).await.status, 0, "its permit goes to the queue");
    std::fs::write(folder.path().join("end"), "").unwrap();
    finish(alive).await.ok();
}

#[tokio::test]
async fn dead_holders_are_shown_stale_after_their_leases() {
    let serve = Serve::memory().await;
    serve.run(&["acquire", "Moe", "--owner", "host-1", "--lease", "500ms"]).await;
    let shown = serve.run(&["get", "Moe", "--observe", "1s"]).await.ok();
    let is_stale = |line: &str| line.starts_with("  silent    ") && line.ends_with("s, stale");
    assert!(shown.lines().any(is_stale), "{shown}");
    let listed = serve.run(&["ls", "--observe", "1s", "--json"]).await.json();
    assert_eq!(listed["stale"], json!(true));
    let listed = serve.run(&["ls", "--observe", "1s"]).await.ok();
    assert!(listed.contains("s, stale"), "{listed}");
}

#[tokio::test]
async fn ticket_is_broken_and_the_capacity_changed() {
    let serve = Serve::memory().await;
    let folder = folder();
    let args = ["run", "pool", "--of", "1", "--wait", "forever", "-q"];
    let holder = spawn_in(&serve, folder.path(), &args, &until_end("first"));
    started(folder.path(), "first").await;
    let waiting = spawn_in(&serve, folder.path(), &args, "echo mine");
    let view = serve.until_queued("pool", 1).await;
    let ticket = view["queue"][0]["ticketId"].as_str().unwrap();
    let version = view["queue"][0]["version"].as_str().unwrap();
    let refused = serve.run(&["break", "pool", "--holder", ticket, "--rvn", "other"]).await;
    assert_eq!(refused.status, 73, "{refused:?}");
    let broken = serve.run(&["break", "pool", "--holder", ticket, "--rvn", version]).await.ok();
    assert_eq!(broken, format!("{ticket} of pool is broken: it waits no more\n"));
    let refused = serve.run(&["capacity", "pool", "2", "--expected", "3"]).await;
    assert_eq!(refused.status, 73, "{refused:?}");
    // The waiter whose ticket was broken stands in the queue again, and goes on with the second permit.
    assert_eq!(serve.run(&["capacity", "pool", "2"]).await.ok(), "pool has 2 permits, 1 free\n");
    assert_eq!(finish(waiting).await.ok(), "mine\n");
    assert_eq!(serve.run(&["capacity", "pool", "3", "--json"]).await.ok(), "{\"capacity\":3,\"available\":2}\n");
    std::fs::write(folder.path().join("end"), "").unwrap();
    finish(holder).await.ok();
    for (args, status) in
        [(&["capacity", "nobody", "3"][..], 66), (&["capacity", "pool", "0"], 2), (&["break", "pool", "--yes"], 64)]
    {
        assert_eq!(serve.run(args).await.status, status, "{args:?}");
    }
}
