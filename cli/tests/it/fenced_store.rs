//! The store refuses a stale writer, whatever other writers do at the same time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use leasehold_cli::fenced_store::{FencedStore, Outcome, Stored};
use tempfile::TempDir;

fn fresh() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    (folder, path)
}

fn stored(value: &str, token: u64) -> Stored {
    Stored { value: value.to_owned(), token }
}

#[test]
fn rising_tokens_are_accepted_and_lower_ones_are_not() {
    let (_folder, path) = fresh();
    let store = FencedStore::open(&path).unwrap();
    assert_eq!(store.read("balance").unwrap(), None);
    assert_eq!(store.write("balance", "1", 33).unwrap(), Outcome::Written);
    assert_eq!(store.write("balance", "2", 34).unwrap(), Outcome::Written);
    assert_eq!(store.write("balance", "late", 33).unwrap(), Outcome::Refused { highest: 34 });
    assert_eq!(store.read("balance").unwrap(), Some(stored("2", 34)));
}

#[test]
fn same_holder_writes_again() {
    let (_folder, path) = fresh();
    let store = FencedStore::open(&path).unwrap();
    assert_eq!(store.write("balance", "1", 33).unwrap(), Outcome::Written);
    assert_eq!(store.write("balance", "2", 33).unwrap(), Outcome::Written);
    assert_eq!(store.read("balance").unwrap(), Some(stored("2", 33)));
}

#[test]
fn keys_are_fenced_by_themselves() {
    let (_folder, path) = fresh();
    let store = FencedStore::open(&path).unwrap();
    assert_eq!(store.write("a", "1", 34).unwrap(), Outcome::Written);
    assert_eq!(store.write("b", "1", 33).unwrap(), Outcome::Written);
}

#[test]
fn token_survives_the_process() {
    let (_folder, path) = fresh();
    assert_eq!(FencedStore::open(&path).unwrap().write("balance", "1", 34).unwrap(), Outcome::Written);
    let reopened = FencedStore::open(&path).unwrap();
    assert_eq!(reopened.write("balance", "late", 33).unwrap(), Outcome::Refused { highest: 34 });
}

#[test]
fn token_that_does_not_fit_is_an_error_and_changes_nothing() {
    let (_folder, path) = fresh();
    let store = FencedStore::open(&path).unwrap();
    assert_eq!(store.write("balance", "1", 33).unwrap(), Outcome::Written);
    assert!(store.write("balance", "2", u64::MAX).is_err());
    assert_eq!(store.read("balance").unwrap(), Some(stored("1", 33)));
}

#[test]
fn file_that_is_no_database_is_an_error_and_stays() {
    let (_folder, path) = fresh();
    std::fs::write(&path, "These are my notes, and no database.").unwrap();
    let error = FencedStore::open(&path).unwrap_err();
    assert_eq!(error.to_string(), "the fenced store: file is not a database");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "These are my notes, and no database.");
}

const WRITERS: u64 = 4;
const ROUNDS: u64 = 100;

/// Writes all tokens of a writer's share in rising order. The stored token is never below an accepted one.
fn write_share(path: &Path, writer: u64) {
    let store = FencedStore::open(path).unwrap();
    for round in 0..ROUNDS {
        let token = round * WRITERS + writer;
        let outcome = store.write("balance", &token.to_string(), token).unwrap();
        let entry = store.read("balance").unwrap().unwrap();
        assert_eq!(entry.value, entry.token.to_string(), "value and token are written together");
        match outcome {
            Outcome::Written => assert!(entry.token >= token, "{} fell below {token}", entry.token),
            Outcome::Refused { highest } => assert!(highest > token, "{token} was refused because of {highest}"),
        }
    }
}

fn last_token_stands(path: &Path) {
    let last = WRITERS * ROUNDS - 1;
    assert_eq!(FencedStore::open(path).unwrap().read("balance").unwrap(), Some(stored(&last.to_string(), last)));
}

#[test]
fn among_threads_the_token_never_falls() {
    let (_folder, path) = fresh();
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = &path;
            scope.spawn(move || write_share(path, writer));
        }
    });
    last_token_stands(&path);
}

const SHARE: &str = "FENCED_STORE_TEST_SHARE";
const FILE: &str = "FENCED_STORE_TEST_FILE";

/// The process that [`among_processes_the_token_never_falls`] starts; by itself it does nothing.
#[test]
fn one_of_several_processes() {
    if let (Ok(writer), Some(path)) = (std::env::var(SHARE), std::env::var_os(FILE)) {
        write_share(Path::new(&path), writer.parse().unwrap());
    }
}

#[test]
fn among_processes_the_token_never_falls() {
    let (_folder, path) = fresh();
    let start = |writer: u64| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fenced_store::one_of_several_processes", "--quiet"])
            .envs([(SHARE, writer.to_string().as_str()), (FILE, path.to_str().unwrap())])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let writers: Vec<_> = (0..WRITERS).map(start).collect();
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    last_token_stands(&path);
}
