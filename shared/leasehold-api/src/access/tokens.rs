//! Bearer tokens: the caller's name, and its rights. A list of them holds SHA-256 hashes only.

use std::collections::HashMap;

use leasehold_protocol::Principal;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Caller;

/// One token in a list.
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

impl TokenEntry {
    /// Reads a list, as JSON.
    ///
    /// # Errors
    /// The mistake and its place.
    pub fn list(json: &str) -> Result<Vec<Self>, String> {
        serde_json::from_str(json).map_err(|error| format!("{error}."))
    }
}

/// Returns the hash of a token.
pub fn token_hash(token: &str) -> String {
    Sha256::digest(token).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// The bearers of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bearers(HashMap<String, Caller>);

impl Bearers {
    /// The bearers of these tokens. With `is_bound`, a lock is bound to the bearer that acquired it.
    ///
    /// # Errors
    /// The mistake and its place.
    pub fn new(entries: &[TokenEntry], is_bound: bool) -> Result<Self, String> {
        let mut bearers = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            let is_digit = |digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
            if entry.sha256.len() != 64 || !entry.sha256.bytes().all(is_digit) {
                return Err(format!("[{index}].sha256 is not a SHA-256 in lower-case hexadecimal."));
            }
            let principal = Principal::new(format!("token:{}", entry.name)).ok().filter(|_| !entry.name.is_empty());
            let principal = principal.ok_or_else(|| format!("[{index}].name must have 1 to 1000 bytes."))?;
            if entry.prefixes.as_ref().is_some_and(Vec::is_empty) {
                return Err(format!("[{index}].prefixes is empty: leave it out for every key."));
            }
            let transactions = entry.transactions.unwrap_or(entry.prefixes.is_none());
            let caller = Caller::named(principal, entry.prefixes.clone(), is_bound).with_transactions(transactions);
            if bearers.insert(entry.sha256.clone(), caller).is_some() {
                return Err(format!("[{index}].sha256 is there twice."));
            }
        }
        Ok(Self(bearers))
    }

    /// The bearer of one token, with all rights.
    pub fn one(sha256: &str) -> Self {
        Self(HashMap::from([(sha256.to_owned(), Caller::unrestricted())]))
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bearer of a token, if the list names it. The look-up uses the hash: its time tells nothing about the
    /// token.
    pub fn of(&self, token: &str) -> Option<&Caller> {
        self.0.get(&token_hash(token))
    }
}
