//! Bearer tokens: the caller's name, and its rights.
//!
//! The file holds SHA-256 hashes only. A token is 256 random bits, so its hash cannot be reversed by guessing.
//!
//! A running service obeys the file as it is: an emptied one revokes all tokens, and while the file is missing or
//! wrong, nobody can be told from a bearer whose token was revoked, so every request is refused.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

pub use leasehold_api::access::TokenEntry;
use leasehold_api::access::{Bearers, Caller, token_hash};
use leasehold_wire::{Problem, ProblemType};

/// Beginning of every token, for people and for scanners of leaked secrets.
const PREFIX: &str = "leasehold_";
/// Largest file that is read: a hundred thousand tokens.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// A token file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read or written.
    #[error("cannot use the token file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: std::io::Error,
    },
    /// The file is not a list of tokens.
    #[error("the token file {} is wrong: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The mistake and its place.
        message: String,
    },
}

/// The tokens of a service, read again when their file changes.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    is_bound: bool,
    current: RwLock<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    /// The contents that were read, or the reason why there are none.
    text: Result<String, String>,
    /// The bearers. Absent while the file is missing or wrong.
    bearers: Option<Bearers>,
}

/// A fresh token and its hash.
pub fn new_token() -> (String, String) {
    let random =
        leasehold_dynamodb::fresh_uuid() + &leasehold_dynamodb::fresh_uuid() + &leasehold_dynamodb::fresh_uuid();
    let token = format!("{PREFIX}{}", token_hash(&random));
    let hashed = token_hash(&token);
    (token, hashed)
}

impl Tokens {
    /// Reads the tokens of a file. With `is_bound`, a lock is bound to the bearer that acquired it.
    ///
    /// # Errors
    /// The file is missing, unreadable, empty or wrong.
    pub fn open(path: &Path, is_bound: bool) -> Result<Self, TokenError> {
        let text = read(path)?;
        let bearers = bearers(path, &parse(path, &text)?, is_bound)?;
        if bearers.is_empty() {
            let message = "it has no token. Make one with `leasehold token`.".to_owned();
            return Err(TokenError::Content { path: path.to_owned(), message });
        }
        let current = RwLock::new(Loaded { text: Ok(text), bearers: Some(bearers) });
        Ok(Self { path: path.to_owned(), is_bound, current })
    }

    /// One token with all rights, without a file.
    pub fn one(sha256: &str) -> Self {
        let current = RwLock::new(Loaded { text: Ok(String::new()), bearers: Some(Bearers::one(sha256)) });
        Self { path: PathBuf::new(), is_bound: false, current }
    }

    /// Adds a token to a file, which need not exist. Several processes may do so at once.
    ///
    /// # Errors
    /// The file is wrong or no regular file, or has a token of this name.
    pub fn add(path: &Path, entry: TokenEntry) -> Result<(), TokenError> {
        let failed = |source| TokenError::File { path: path.to_owned(), source };
        let wrong = |message: String| TokenError::Content { path: path.to_owned(), message };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The file itself is replaced, so the lock is on its folder. The end of this function releases it.
        let lock = File::open(folder).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let old = match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => {
                return Err(wrong("it is a symbolic link; name the file that it leads to.".to_owned()));
            }
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(failed(source)),
        };
        let mut entries = match &old {
            Some(_) => parse(path, &read(path)?)?,
            None => Vec::new(),
        };
        if entries.iter().any(|other| other.name == entry.name) {
            return Err(wrong(format!("it has a token named {:?} already; remove that entry first.", entry.name)));
        }
        entries.push(entry);
        bearers(path, &entries, false)?;
        let text = serde_json::to_string_pretty(&entries).unwrap_or_default() + "\n";
        // A running service must never read half a file.
        let new = folder.join(format!(".{}.new", leasehold_dynamodb::fresh_uuid()));
        let replaced = write_new(&new, &text, old.as_ref()).and_then(|()| fs::rename(&new, path));
        replaced.map_err(|source| {
            // The file beside is of no use to anyone.
            let _ = fs::remove_file(&new);
            failed(source)
        })
    }

    /// Reads the file again, and obeys it where its contents have changed.
    pub fn reload(&self) {
        let text = read(&self.path).map_err(|error| error.to_string());
        if text == self.current.read().unwrap_or_else(PoisonError::into_inner).text {
            return;
        }
        let found = text.clone().and_then(|text| {
            let entries = parse(&self.path, &text).map_err(|error| error.to_string())?;
            bearers(&self.path, &entries, self.is_bound).map_err(|error| error.to_string())
        });
        match &found {
            Ok(bearers) => tracing::warn!(path = %self.path.display(), tokens = bearers.len(), "tokens read again"),
            Err(error) => tracing::error!(error, "every request is refused until the token file is right"),
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Loaded { text, bearers: found.ok() };
    }

    /// Returns the bearer of a token, if the file names it.
    ///
    /// # Errors
    /// `unavailable`: the file is missing or wrong.
    pub(crate) fn bearer_of(&self, token: &str) -> Result<Option<Caller>, Problem> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let unknown = || {
            let detail =
                "The list of the tokens is missing or wrong. Whoever runs the service finds the reason in its log.";
            Problem::new(ProblemType::Unavailable, detail)
        };
        Ok(current.bearers.as_ref().ok_or_else(unknown)?.of(token).cloned())
    }
}

/// Reads a regular file. A named pipe would wait for a writer for ever.
fn read(path: &Path) -> Result<String, TokenError> {
    let read = || {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut text = String::new();
        File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|source| TokenError::File { path: path.to_owned(), source })
}

/// Writes a new file for its owner alone. It gets the owner of the old one: a service may run as another user.
fn write_new(path: &Path, text: &str, old: Option<&fs::Metadata>) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    if let Some(old) = old
        && old.uid() != file.metadata()?.uid()
    {
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn parse(path: &Path, text: &str) -> Result<Vec<TokenEntry>, TokenError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    TokenEntry::list(text).map_err(|message| TokenError::Content { path: path.to_owned(), message })
}

fn bearers(path: &Path, entries: &[TokenEntry], is_bound: bool) -> Result<Bearers, TokenError> {
    Bearers::new(entries, is_bound).map_err(|message| TokenError::Content { path: path.to_owned(), message })
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::Principal;

    use super::token_hash as hash;
    use super::*;

    fn entry(name: &str, sha256: &str) -> TokenEntry {
        TokenEntry { name: name.into(), sha256: sha256.into(), prefixes: None, transactions: None }
    }

    #[test]
    fn token_is_known_by_its_hash_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let (token, sha256) = new_token();
        Tokens::add(&path, TokenEntry { prefixes: Some(vec!["a/".into()]), ..entry("ci", &sha256) }).expect("written");
        assert!(!std::fs::read_to_string(&path).expect("text").contains(&token));

        let tokens = Tokens::open(&path, false).expect("valid");
        let principal = Principal::new("token:ci").expect("short");
        let caller = Caller::named(principal, Some(vec!["a/".into()]), false).with_transactions(false);
        assert_eq!(bearer(&tokens, &token), Some(caller), "a bearer of some keys has no transactions");
        assert!(bearer(&tokens, &sha256).is_none());
        assert!(bearer(&tokens, "").is_none());
        assert_ne!(new_token().0, token);

        let refused = Tokens::add(&path, entry("ci", &hash("x"))).expect_err("twice");
        assert!(refused.to_string().contains("already"), "{refused}");
    }

    fn bearer(tokens: &Tokens, token: &str) -> Option<Caller> {
        tokens.bearer_of(token).expect("the file is right")
    }

    #[test]
    fn running_service_obeys_the_file_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        Tokens::add(&path, entry("one", &hash("1"))).expect("written");
        let tokens = Tokens::open(&path, false).expect("valid");
        let modified = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
        let knows = |text: Option<&str>| {
            match text {
                Some(text) => {
                    fs::write(&path, text).expect("written");
                    // The contents count, not the time.
                    let file = File::options().write(true).open(&path).expect("it is there");
                    file.set_modified(modified).expect("touched");
                }
                None => fs::remove_file(&path).expect("removed"),
            }
            tokens.reload();
            ["1", "2"]
                .map(|token| tokens.bearer_of(token).map(|bearer| bearer.is_some()).map_err(|problem| problem.status))
        };
        let two = serde_json::to_string(&[entry("two", &hash("2"))]).expect("JSON");
        assert_eq!(knows(Some(&two)), [Ok(false), Ok(true)]);
        for emptied in ["", "\n", "[]"] {
            assert_eq!(knows(Some(emptied)), [Ok(false); 2], "{emptied:?} revokes");
            assert_eq!(knows(Some(&two)), [Ok(false), Ok(true)]);
        }
        for wrong in [Some("["), Some(&two[..two.len() - 2]), None] {
            assert_eq!(knows(wrong), [Err(503); 2], "{wrong:?}");
        }
        assert_eq!(knows(Some(&two)), [Ok(false), Ok(true)]);
    }

    #[test]
    fn tokens_are_all_kept_when_many_are_added_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        std::thread::scope(|scope| {
            for name in 0..12 {
                let path = &path;
                scope.spawn(move || {
                    Tokens::add(path, entry(&name.to_string(), &hash(&name.to_string()))).expect("added");
                });
            }
        });
        let tokens = Tokens::open(&path, false).expect("valid");
        assert!((0..12).all(|name: u32| bearer(&tokens, &name.to_string()).is_some()));
        let names = fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(names, 1, "nothing is left beside the file");
    }

    #[test]
    fn reader_never_finds_half_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        // Long enough for a reader to come between two parts.
        let prefixes = Some(vec!["a".repeat(1000); 300]);
        Tokens::add(&path, TokenEntry { prefixes, ..entry("first", &hash("first")) }).expect("written");
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                for _ in 0..200 {
                    let tokens = Tokens::open(&path, false).expect("a whole file");
                    assert!(bearer(&tokens, "first").is_some());
                }
            });
            let mut name = 0;
            while !reading.is_finished() {
                name += 1;
                Tokens::add(&path, entry(&name.to_string(), &hash(&name.to_string()))).expect("added");
            }
            reading.join().expect("no half file");
        });
    }

    #[test]
    fn file_of_tokens_stays_with_the_user_of_the_service() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        Tokens::add(&path, entry("one", &hash("1"))).expect("written");
        // Only root gives files away, and adds tokens to the files of others.
        let is_given = std::os::unix::fs::chown(&path, Some(1234), Some(2345)).is_ok();
        Tokens::add(&path, entry("two", &hash("2"))).expect("written");
        let found = fs::metadata(&path).expect("it is there");
        assert_eq!((found.uid(), found.gid()) == (1234, 2345), is_given);
    }

    #[test]
    fn file_of_tokens_is_private_and_a_regular_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        fs::write(&path, "[]").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("it is ours");
        Tokens::add(&path, entry("one", &hash("1"))).expect("written");
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o777, 0o600);

        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        let refused = Tokens::add(&link, entry("two", &hash("2"))).expect_err("a link");
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status();
        assert!(made.expect("coreutils").success());
        for name in [folder.path().join("pipe"), folder.path().to_owned()] {
            let refused = Tokens::add(&name, entry("two", &hash("2"))).expect_err("no file");
            assert!(refused.to_string().contains("not a regular file"), "{refused}");
            assert!(Tokens::open(&name, false).is_err());
        }
    }

    #[test]
    fn wrong_files_are_refused_in_a_sentence() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let valid = hash("1");
        for (text, part) in [
            ("", "it has no token"),
            ("[", "EOF"),
            ("[]", "it has no token"),
            (r#"[{"name":"a"}]"#, "missing field `sha256`"),
            (r#"[{"name":"a","sha256":"secret"}]"#, "[0].sha256"),
            (&format!(r#"[{{"name":"","sha256":"{valid}"}}]"#), "[0].name"),
            (&format!(r#"[{{"name":"a","sha256":"{valid}","prefixes":[]}}]"#), "[0].prefixes"),
            (&format!(r#"[{{"name":"a","sha256":"{valid}","token":"x"}}]"#), "unknown field"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = Tokens::open(&path, false).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
