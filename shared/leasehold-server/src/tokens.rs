//! Bearer tokens: the caller's name, and its rights.
//!
//! The file holds SHA-256 hashes only. A token is 256 random bits, so its hash cannot be reversed by guessing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use leasehold_api::access::Caller;
use leasehold_protocol::Principal;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Beginning of every token, for people and for scanners of leaked secrets.
const PREFIX: &str = "leasehold_";

/// One token in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenEntry {
    /// The name of the bearer, which becomes the principal `token:NAME`.
    pub name: String,
    /// The SHA-256 of the token, in hexadecimal.
    pub sha256: String,
    /// Beginnings of the keys that the bearer may touch. Absent: all keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefixes: Option<Vec<String>>,
    /// Whether the bearer may use transactions, which reach the tables of items. Default: only without `prefixes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transactions: Option<bool>,
}

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
    modified: Option<SystemTime>,
    bearers: HashMap<String, Caller>,
}

/// A fresh token and its hash.
pub fn new_token() -> (String, String) {
    let random =
        leasehold_dynamodb::fresh_uuid() + &leasehold_dynamodb::fresh_uuid() + &leasehold_dynamodb::fresh_uuid();
    let token = format!("{PREFIX}{}", hash(&random));
    let hashed = hash(&token);
    (token, hashed)
}

impl Tokens {
    /// Reads the tokens of a file. With `is_bound`, a lock is bound to the bearer that acquired it.
    ///
    /// # Errors
    /// The file is missing, unreadable, empty or wrong.
    pub fn open(path: &Path, is_bound: bool) -> Result<Self, TokenError> {
        let current = RwLock::new(load(path, is_bound)?);
        Ok(Self { path: path.to_owned(), is_bound, current })
    }

    /// One token with all rights, without a file.
    pub fn one(sha256: &str) -> Self {
        let caller = Caller::unrestricted();
        let bearers = HashMap::from([(sha256.to_owned(), caller)]);
        let current = RwLock::new(Loaded { modified: None, bearers });
        Self { path: PathBuf::new(), is_bound: false, current }
    }

    /// Adds a token to a file, which need not exist.
    ///
    /// # Errors
    /// The file is wrong, or has a token of this name.
    pub fn add(path: &Path, entry: TokenEntry) -> Result<(), TokenError> {
        let file = |source| TokenError::File { path: path.to_owned(), source };
        let mut entries = match std::fs::read_to_string(path) {
            Ok(text) => parse(path, &text)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(file(source)),
        };
        if entries.iter().any(|other| other.name == entry.name) {
            let message = format!("it has a token named {:?} already; remove that entry first.", entry.name);
            return Err(TokenError::Content { path: path.to_owned(), message });
        }
        entries.push(entry);
        bearers(path, &entries, false)?;
        let text = serde_json::to_string_pretty(&entries).unwrap_or_default() + "\n";
        // A running service must never read half a file.
        let new = path.with_extension("new");
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(file)
    }

    /// Reads the file again after a change. A wrong file leaves the tokens as they are.
    pub fn reload(&self) {
        let modified = modified(&self.path);
        if modified == self.current.read().unwrap_or_else(PoisonError::into_inner).modified {
            return;
        }
        match load(&self.path, self.is_bound) {
            Ok(loaded) => {
                tracing::info!(path = %self.path.display(), tokens = loaded.bearers.len(), "tokens read again");
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
            }
            Err(error) => {
                tracing::warn!(%error, "the tokens stay what they were");
                self.current.write().unwrap_or_else(PoisonError::into_inner).modified = modified;
            }
        }
    }

    pub(crate) fn bearer_of(&self, token: &str) -> Option<Caller> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        // The look-up uses the hash: its time tells nothing about the token.
        current.bearers.get(&hash(token)).cloned()
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn load(path: &Path, is_bound: bool) -> Result<Loaded, TokenError> {
    let modified = modified(path);
    let text = std::fs::read_to_string(path).map_err(|source| TokenError::File { path: path.to_owned(), source })?;
    let bearers = bearers(path, &parse(path, &text)?, is_bound)?;
    Ok(Loaded { modified, bearers })
}

fn parse(path: &Path, text: &str) -> Result<Vec<TokenEntry>, TokenError> {
    serde_json::from_str(text)
        .map_err(|error| TokenError::Content { path: path.to_owned(), message: format!("{error}.") })
}

fn bearers(path: &Path, entries: &[TokenEntry], is_bound: bool) -> Result<HashMap<String, Caller>, TokenError> {
    let wrong = |message: String| TokenError::Content { path: path.to_owned(), message };
    if entries.is_empty() {
        return Err(wrong("it has no token. Make one with `leasehold token`.".to_owned()));
    }
    let mut bearers = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry.sha256.len() != 64 || !entry.sha256.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(wrong(format!("[{index}].sha256 is not a SHA-256 in lower-case hexadecimal.")));
        }
        let principal = Principal::new(format!("token:{}", entry.name)).ok().filter(|_| !entry.name.is_empty());
        let principal = principal.ok_or_else(|| wrong(format!("[{index}].name must have 1 to 1000 bytes.")))?;
        if entry.prefixes.as_ref().is_some_and(Vec::is_empty) {
            return Err(wrong(format!("[{index}].prefixes is empty: leave it out for every key.")));
        }
        let transactions = entry.transactions.unwrap_or(entry.prefixes.is_none());
        let caller = Caller::named(principal, entry.prefixes.clone(), is_bound).with_transactions(transactions);
        if bearers.insert(entry.sha256.clone(), caller).is_some() {
            return Err(wrong(format!("[{index}].sha256 is there twice.")));
        }
    }
    Ok(bearers)
}

fn hash(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(tokens.bearer_of(&token), Some(caller), "a bearer of some keys has no transactions");
        assert!(tokens.bearer_of(&sha256).is_none());
        assert!(tokens.bearer_of("").is_none());
        assert_ne!(new_token().0, token);

        let refused = Tokens::add(&path, entry("ci", &hash("x"))).expect_err("twice");
        assert!(refused.to_string().contains("already"), "{refused}");
    }

    #[test]
    fn changed_file_is_read_and_a_wrong_one_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        Tokens::add(&path, entry("one", &hash("1"))).expect("written");
        let tokens = Tokens::open(&path, false).expect("valid");
        let touch = |text: &str, seconds| {
            std::fs::write(&path, text).expect("written");
            let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_modified(later))
                .expect("touched");
        };
        touch("[", 1_000_000);
        tokens.reload();
        assert!(tokens.bearer_of("1").is_some());
        touch(&serde_json::to_string(&[entry("two", &hash("2"))]).expect("JSON"), 2_000_000);
        tokens.reload();
        assert!(tokens.bearer_of("1").is_none() && tokens.bearer_of("2").is_some());
    }

    #[test]
    fn wrong_files_are_refused_in_a_sentence() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let valid = hash("1");
        for (text, part) in [
            ("", "EOF"),
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
