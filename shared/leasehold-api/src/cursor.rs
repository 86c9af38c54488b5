//! The cursor of a listing: the start of the next page, bound to the query it belongs to.
//!
//! For a caller of all keys, the cursor is the key in plain text with a checksum. For a caller of some keys, the next
//! page may start at a key that the caller must not see: a [`Seal`] hides it.

use std::fmt;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use leasehold_protocol::LockKey;
use leasehold_wire::{ListRequest, Problem};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SystemRandom, generate};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Enough to detect damage and mistakes. The checksum is no secret: a caller that may list may start anywhere.
const CHECKSUM_BYTES: usize = 8;

/// The lengths of sealed positions are multiples of this, so that they tell little about the keys.
const PADDING: usize = 128;

#[derive(Serialize, Deserialize)]
struct Position(String, Option<String>);

/// Hides the start of a page from the caller of a listing, for as long as the process lives.
pub(crate) struct Seal(LessSafeKey);

impl Seal {
    /// A seal with a random key. `None` if the system has no randomness.
    pub(crate) fn fresh() -> Option<Self> {
        let key: [u8; 32] = generate(&SystemRandom::new()).ok()?.expose();
        UnboundKey::new(&CHACHA20_POLY1305, &key).ok().map(|key| Self(LessSafeKey::new(key)))
    }

    /// Returns the cursor that continues `request` of a caller with these prefixes after `key`. `None` if the system
    /// has no randomness any longer.
    pub(crate) fn encode(&self, request: &ListRequest, prefixes: &[String], key: &LockKey) -> Option<String> {
        let nonce: [u8; NONCE_LEN] = generate(&SystemRandom::new()).ok()?.expose();
        let mut position = position(key);
        // A reader of JSON skips blanks.
        position.resize(position.len().next_multiple_of(PADDING), b' ');
        let aad = Aad::from(self::aad(request, prefixes));
        self.0.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut position).ok()?;
        Some(BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &position].concat()))
    }

    /// Reads the cursor that came with `request` of a caller with these prefixes.
    pub(crate) fn decode(&self, request: &ListRequest, prefixes: &[String]) -> Result<Option<LockKey>, Problem> {
        let Some(cursor) = &request.cursor else { return Ok(None) };
        let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| forged())?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN).ok_or_else(forged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| forged())?;
        let position = self.0.open_in_place(nonce, Aad::from(aad(request, prefixes)), sealed).map_err(|_| forged())?;
        key(position).map(Some)
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

fn aad(request: &ListRequest, prefixes: &[String]) -> Vec<u8> {
    serde_json::json!([request.key, request.owner_name, request.state, prefixes]).to_string().into_bytes()
}

/// Returns the cursor that continues `request` after `key`.
pub(crate) fn encode(request: &ListRequest, key: &LockKey) -> String {
    let position = position(key);
    let mut cursor = checksum(request, &position).to_vec();
    cursor.extend(position);
    BASE64_URL_SAFE_NO_PAD.encode(cursor)
}

/// Reads the cursor that came with `request`.
pub(crate) fn decode(request: &ListRequest) -> Result<Option<LockKey>, Problem> {
    let Some(cursor) = &request.cursor else { return Ok(None) };
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| forged())?;
    let (sum, position) = bytes.split_at_checked(CHECKSUM_BYTES).ok_or_else(forged)?;
    if sum != checksum(request, position) {
        return Err(forged());
    }
    let key = key(position)?;
    // DynamoDB refuses to start a Query of one partition in another.
    if request.key.as_ref().is_some_and(|partition| partition != key.partition()) {
        return Err(forged());
    }
    Ok(Some(key))
}

fn forged() -> Problem {
    Problem::invalid(
        "cursor",
        "This is not a cursor of this listing. Repeat the listing that gave it, with the same parameters.",
    )
}

fn position(key: &LockKey) -> Vec<u8> {
    let position = Position(key.partition().to_owned(), key.sort().map(str::to_owned));
    // The serialisation of two strings cannot fail.
    serde_json::to_vec(&position).unwrap_or_default()
}

fn key(position: &[u8]) -> Result<LockKey, Problem> {
    let Position(partition, sort) = serde_json::from_slice(position).map_err(|_| forged())?;
    LockKey::new(partition, sort).map_err(|_| forged())
}

fn checksum(request: &ListRequest, position: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let query = serde_json::json!([request.key, request.owner_name, request.state]).to_string();
    let digest = Sha256::new().chain_update(query.len().to_be_bytes()).chain_update(query).chain_update(position);
    let mut sum = [0; CHECKSUM_BYTES];
    sum.copy_from_slice(&digest.finalize()[..CHECKSUM_BYTES]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_good_for_its_own_query_and_nothing_else() {
        let key = LockKey::new("a/b?", Some("\0".into())).expect("valid");
        let request = ListRequest { owner_name: Some("me".into()), ..ListRequest::default() };
        let cursor = encode(&request, &key);
        let with = |cursor: &str, owner: &str| {
            let owner_name = Some(owner.to_owned());
            decode(&ListRequest { cursor: Some(cursor.to_owned()), owner_name, ..ListRequest::default() })
        };
        assert_eq!(with(&cursor, "me").expect("own"), Some(key));
        assert!(with(&cursor, "you").is_err());
        assert!(with("", "me").is_err());
        assert!(with("not base64!", "me").is_err());
        for position in 0..cursor.len() {
            let mut forged = cursor.clone().into_bytes();
            forged[position] = if forged[position] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).expect("ASCII");
            assert!(with(&forged, "me").is_err(), "byte {position}");
        }
    }

    #[test]
    fn sealed_cursor_hides_its_key_and_is_good_for_its_caller() {
        let key = LockKey::new("others/secret", None).expect("valid");
        let (seal, prefixes) = (Seal::fresh().expect("a key"), ["mine/".to_owned()]);
        let request = ListRequest::default();
        let seal_key = || seal.encode(&request, &prefixes, &key).expect("sealed");
        let cursor = seal_key();
        assert_ne!(seal_key(), cursor);
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&cursor).expect("base64");
        assert!(!bytes.windows(6).any(|part| part == b"secret"));
        let again = |cursor: &str| ListRequest { cursor: Some(cursor.to_owned()), ..ListRequest::default() };
        assert_eq!(seal.decode(&again(&cursor), &prefixes).expect("own"), Some(key));
        assert!(seal.decode(&again(&cursor), &["yours/".to_owned()]).is_err(), "of another caller");
        assert!(Seal::fresh().expect("a key").decode(&again(&cursor), &prefixes).is_err(), "of another process");
        let other = ListRequest { owner_name: Some("me".into()), ..again(&cursor) };
        assert!(seal.decode(&other, &prefixes).is_err(), "of another listing");
        for forged in ["", "AA", &cursor[..cursor.len() - 4]] {
            assert!(seal.decode(&again(forged), &prefixes).is_err(), "{forged}");
        }
    }

    #[test]
    fn cursor_of_another_partition_is_forged() {
        let request = |cursor| ListRequest { key: Some("a".into()), cursor, ..ListRequest::default() };
        for (partition, allowed) in [("a", true), ("b", false)] {
            let key = LockKey::new(partition, Some("s".into())).expect("valid");
            // Anyone can compute the checksum.
            let cursor = encode(&request(None), &key);
            let decoded = decode(&request(Some(cursor)));
            assert_eq!(decoded.is_ok(), allowed, "{partition}");
        }
    }
}
