//! The two names of a transaction: the secret one of its callers, and the public one.

use std::fmt;

use leasehold_dynamodb::fresh_uuid;
use sha2::{Digest, Sha256};

/// The caller's name for a transaction: a UUID, and a secret. Any caller that knows it may add to the transaction and
/// end it.
///
/// The id is not stored: rows, locks, logs and refusals of other callers contain the [`PublicId`] that is derived from
/// it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TransactionId(String);

impl TransactionId {
    /// Generates a new one.
    pub fn fresh() -> Self {
        Self(fresh_uuid())
    }

    /// Reads a UUID, in any of its usual forms. Returns `None` for another text.
    pub fn parse(text: &str) -> Option<Self> {
        uuid(text).map(Self)
    }

    /// The secret as text, for an answer to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The public name of the transaction.
    pub fn public(&self) -> PublicId {
        let hash = Sha256::digest(format!("leasehold transaction {}", self.0));
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        PublicId(uuid::Builder::from_custom_bytes(bytes).into_uuid().hyphenated().to_string())
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransactionId(of {})", self.public())
    }
}

/// The public name of a transaction: a UUID derived from the [`TransactionId`] by SHA-256. It proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicId(String);

impl PublicId {
    /// Reads a UUID, in any of its usual forms. Returns `None` for another text.
    pub fn parse(text: &str) -> Option<Self> {
        uuid(text).map(Self)
    }

    /// The id that a table stores.
    pub(crate) fn stored(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PublicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn uuid(text: &str) -> Option<String> {
    uuid::Uuid::parse_str(text).ok().map(|uuid| uuid.hyphenated().to_string())
}
