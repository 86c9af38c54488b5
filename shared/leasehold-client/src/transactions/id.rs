//! The ids of transactions that are derived from business keys. Rule T7.

use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use crate::Error;

/// The key under which the id of the next try is derived from the id of a try that was rolled back. Every process that
/// repeats the first one comes to the same next one.
const NEXT_TRY: &str = "next try";

/// Derives the id of a transaction from a business key, such as the number of an order: a UUID of version 8, as in RFC
/// 9562, B.2. `namespace` is a UUID of the application. It is a secret: whoever knows it can compute the ids, and an id
/// is the right to add to a transaction and to end it.
///
/// # Errors
/// [`ErrorKind::InvalidRequest`](crate::ErrorKind::InvalidRequest) if the namespace is no UUID.
pub fn derive_transaction_id(namespace: &str, key: &str) -> Result<String, Error> {
    let namespace = Uuid::parse_str(namespace).map_err(|_| Error::invalid("namespace", "must be a UUID"))?;
    let hash = Sha256::new().chain_update(namespace.as_bytes()).chain_update(key).finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Ok(Builder::from_custom_bytes(bytes).into_uuid().hyphenated().to_string())
}

/// Derives the id of the try after this one.
pub(super) fn id_after(id: &str) -> Result<String, Error> {
    derive_transaction_id(id, NEXT_TRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_that_of_the_rfc() {
        const DNS: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        for (key, expected) in [
            ("www.example.com", "5c146b14-3c52-8afd-938a-375d0df1fbf6"),
            ("Bestellung 4711, ä", "0b84e752-9b93-81ec-8b92-0440b68bc3c5"),
        ] {
            assert_eq!(derive_transaction_id(DNS, key).expect("a UUID"), expected);
        }
        assert!(derive_transaction_id("orders", "1").is_err());
    }
}
