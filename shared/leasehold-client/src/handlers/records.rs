//! Records of idempotency, in the form that the Python and the TypeScript client read and write.

use leasehold_wire::Lock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{Error, ErrorKind, LockKey};

/// The largest record, as the service takes them.
const LARGEST: usize = 256 * 1024;

/// Returns the SHA-256 of a payload's JSON, whose members may come in any order.
///
/// # Errors
/// The payload is no JSON.
pub(super) fn hash_of(payload: &impl Serialize) -> Result<String, Error> {
    let payload = serde_json::to_value(payload).map_err(|error| Error::invalid("payload", error.to_string()))?;
    let digest = Sha256::digest(sorted(payload).to_string());
    Ok(digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
}

/// Orders the members of all objects by their names.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(sorted).collect(),
        Value::Object(members) => {
            let mut members: Vec<_> = members.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            Value::Object(members.into_iter().collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// A record as the lock's data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The hash of the payload.
    payload: String,
    /// The time, in milliseconds since 1970, until which the result counts.
    until: f64,
    result: Value,
}

impl Record {
    /// The record of an attempt that is under way.
    pub(super) fn started(payload: &str) -> Self {
        Self { payload: payload.to_owned(), until: 0.0, result: Value::Null }
    }

    /// The record of a result.
    ///
    /// # Errors
    /// The result is no JSON.
    pub(super) fn new(payload: String, until: u64, result: &impl Serialize) -> Result<Self, Error> {
        let result = serde_json::to_value(result).map_err(|error| Error::invalid("result", error.to_string()))?;
        Ok(Self { payload, until: number(until), result })
    }

    /// Reads the record of a lock.
    ///
    /// # Errors
    /// `CorruptRecord`
    pub(super) fn of(lock: &Lock) -> Result<Self, Error> {
        serde_json::from_str(lock.data.as_deref().unwrap_or_default()).map_err(|_| {
            let message = format!("the data of {:?} is no record of idempotency", lock.key);
            Error::new(ErrorKind::CorruptRecord, message)
        })
    }

    /// Returns the data.
    ///
    /// # Errors
    /// The result is too large.
    pub(super) fn text(&self) -> Result<String, Error> {
        let text = serde_json::to_string(self).map_err(|error| Error::invalid("result", error.to_string()))?;
        if text.len() > LARGEST { Err(Error::invalid("result", "a record has at most 256 KiB")) } else { Ok(text) }
    }

    /// Whether the result counts at this time, in milliseconds since 1970.
    pub(super) fn counts_at(&self, epoch_ms: u64) -> bool {
        number(epoch_ms) < self.until
    }

    /// Checks that the payload is the same.
    ///
    /// # Errors
    /// `PayloadMismatch`
    pub(super) fn compare(&self, payload: &str, key: &LockKey) -> Result<(), Error> {
        if payload == self.payload {
            return Ok(());
        }
        let message = format!("another payload came under the key {:?}", key.to_string());
        Err(Error::new(ErrorKind::PayloadMismatch, message))
    }

    /// Reads the result.
    ///
    /// # Errors
    /// `CorruptRecord`
    pub(super) fn read<R: DeserializeOwned>(self) -> Result<R, Error> {
        serde_json::from_value(self.result).map_err(|error| Error::new(ErrorKind::CorruptRecord, error.to_string()))
    }
}

/// A number of JSON.
#[allow(clippy::cast_precision_loss, reason = "milliseconds since 1970 are whole numbers of a double")]
fn number(epoch_ms: u64) -> f64 {
    epoch_ms as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hash_is_that_of_the_other_clients() {
        // printf '{"a":[1,{"b":"\xc3\xa9","c":null}],"d":true}' | sha256sum
        let expected = "55d909995fef93804416d5757099faeac0ae5b3a353acfcf9d5966a1552d379e";
        assert_eq!(hash_of(&json!({ "d": true, "a": [1, { "c": null, "b": "é" }] })).unwrap(), expected);
    }
}
