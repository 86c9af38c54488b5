//! Bits of a database that flip while the service is down: no held lock is free afterwards.

use std::process::Stdio;

use reqwest::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

use crate::support::{Serve, command, finish, folder, within};

/// Flips that are tried: `just flips COUNT` tries more.
const FLIPS: u64 = 60;
/// Flips that are tried at the same time.
const AT_ONCE: usize = 4;
const HELD: usize = 12;
const NAMES: [&str; 3] = ["leasehold.db", "leasehold.db-wal", "leasehold.db-shm"];

type Files = Vec<(&'static str, Vec<u8>)>;

/// The files of a service with held locks, after a usual end or after `kill -9`.
async fn files(is_killed: bool) -> Files {
    let folder = folder();
    // Half of the locks are in the database itself, the others in its log if the service is killed.
    for half in 0..2 {
        let serve = Serve::on_file(folder.path(), NAMES[0]).await;
        for number in (half * HELD / 2)..((half + 1) * HELD / 2) {
            let data = "data ".repeat(number * 97);
            let body =
                json!({ "key": format!("held/{number}"), "ownerName": "holder", "leaseId": "secret", "data": data });
            assert_eq!(serve.post("/v1/acquire", &body).await.0, 200);
        }
        // Damage in the last commit of a killed service looks like a write that was never finished.
        serve.acquire("last", "secret").await;
        if half == 1 && is_killed {
            serve.kill_9().await;
        } else {
            serve.signal("TERM");
            assert_eq!(serve.ended().await.0, Some(0));
        }
    }
    let read = |name: &'static str| Some((name, std::fs::read(folder.path().join(name)).ok()?));
    NAMES.into_iter().filter_map(read).collect()
}

/// A number that depends on another one in no visible way (SplitMix64).
fn scattered(number: u64) -> usize {
    let mut x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    usize::try_from((x ^ (x >> 31)) >> 16).expect("48 bits")
}

/// Flips one bit, starts the service, and returns whether it refused the files. Panics where a held lock is free.
async fn flip(http: Client, seed: u64, files: Files) -> bool {
    let folder = folder();
    let total: usize = files.iter().map(|(_, content)| content.len()).sum();
    let mut at = scattered(seed) % total;
    let mut place = String::new();
    for (name, mut content) in files {
        if at < content.len() {
            content[at] ^= 1 << (seed % 8);
            place = format!("flip {seed}: bit {} of byte {at} of {name}", seed % 8);
            at = usize::MAX;
        } else if at != usize::MAX {
            at -= content.len();
        }
        std::fs::write(folder.path().join(name), content).expect("written");
    }
    let mut starting = command(folder.path(), &["--db", NAMES[0], "--listen", "127.0.0.1:0"]);
    let mut process = starting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is built");
    let mut printed = BufReader::new(process.stdout.take().expect("piped")).lines();
    let Some(line) = within(printed.next_line()).await.expect("text") else {
        let ended = finish(process).await;
        let is_refused = ended.status == 1 && ended.stderr.starts_with("leasehold: ");
        assert!(is_refused && !ended.stderr.contains("panicked"), "{place}: {ended:?}");
        return true;
    };
    let base_url = line.strip_prefix("Leasehold listens on ").expect("the address comes first");
    for number in 0..HELD {
        let key = format!("held/{number}");
        let lock = within(http.get(format!("{base_url}/v1/lock?key={key}")).send()).await.expect("an answer");
        let status = lock.status().as_u16();
        let lock: Value = lock.json().await.expect("JSON");
        let is_held = status == 200 && lock["state"] == "held" && lock["ownerName"] == "holder";
        assert!(is_held || status >= 500, "{place}: {status} {lock}");
        let body = json!({ "key": key, "ownerName": "thief", "leaseId": "other" });
        let stolen = within(http.post(format!("{base_url}/v1/acquire")).json(&body).send()).await;
        let status = stolen.expect("an answer").status().as_u16();
        assert!(status == 423 || status >= 500, "{place}: a thief was answered {status}");
    }
    false
}

#[tokio::test]
async fn flipped_bit_frees_no_held_lock() {
    let flips = std::env::var("LEASEHOLD_FLIPS").map_or(FLIPS, |count| count.parse().expect("a number"));
    let (closed, killed) = (files(false).await, files(true).await);
    assert!(closed.len() == 1 && killed.len() == 3, "a usual end leaves the database alone");
    let http = Client::builder().no_proxy().build().expect("a client");
    let (mut running, mut refused) = (JoinSet::new(), 0);
    for seed in 0..flips {
        if running.len() == AT_ONCE {
            refused += u64::from(running.join_next().await.expect("one runs").expect("no panic"));
        }
        running.spawn(flip(http.clone(), seed, if seed % 2 == 0 { closed.clone() } else { killed.clone() }));
    }
    while let Some(ended) = running.join_next().await {
        refused += u64::from(ended.expect("no panic"));
    }
    println!("{refused} of {flips} databases with a flipped bit were refused; in the others every lock was held");
    assert!(refused > flips / 10, "{refused} of {flips}");
}
