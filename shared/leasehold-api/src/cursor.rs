//! The cursor of a listing: the start of the next page, bound to the query it belongs to.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use leasehold_protocol::LockKey;
use leasehold_wire::{ListRequest, Problem};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Enough to detect damage and mistakes. The checksum is no secret: a caller that may list may start anywhere.
const CHECKSUM_BYTES: usize = 8;

#[derive(Serialize, Deserialize)]
struct Position(String, Option<String>);

/// Returns the cursor that continues `request` after `key`.
pub(crate) fn encode(request: &ListRequest, key: &LockKey) -> String {
    let position = Position(key.partition().to_owned(), key.sort().map(str::to_owned));
    // The serialisation of two strings cannot fail.
    let position = serde_json::to_vec(&position).unwrap_or_default();
    let mut cursor = checksum(request, &position).to_vec();
    cursor.extend(position);
    BASE64_URL_SAFE_NO_PAD.encode(cursor)
}

/// Reads the cursor that came with `request`.
pub(crate) fn decode(request: &ListRequest) -> Result<Option<LockKey>, Problem> {
    let Some(cursor) = &request.cursor else { return Ok(None) };
    let forged = || {
        Problem::invalid(
            "cursor",
            "This is not a cursor of this listing. Repeat the listing that gave it, with the same parameters.",
        )
    };
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| forged())?;
    let (sum, position) = bytes.split_at_checked(CHECKSUM_BYTES).ok_or_else(forged)?;
    if sum != checksum(request, position) {
        return Err(forged());
    }
    let Position(partition, sort) = serde_json::from_slice(position).map_err(|_| forged())?;
    // DynamoDB refuses to start a Query of one partition in another.
    if request.key.as_ref().is_some_and(|key| *key != partition) {
        return Err(forged());
    }
    LockKey::new(partition, sort).map(Some).map_err(|_| forged())
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
