//! # A protected resource that refuses late writers
//!
//! A lock says who *may* write; only the resource can say who may *not*. A holder that was paused (by garbage
//! collection, a closed lid, a slow disk) wakes up sure that it holds the lock, while another has taken it over and
//! written. Every grant therefore carries a fencing token above all earlier ones. Every write carries the token of its
//! grant, and the resource keeps the highest token that it has seen.
//!
//! ```
//! # fn main() -> Result<(), leasehold_cli::fenced_store::Error> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let path = folder.path().join("accounts.db");
//! use leasehold_cli::fenced_store::{FencedStore, Outcome};
//!
//! let store = FencedStore::open(&path)?;
//! assert_eq!(store.write("balance", "120", 33)?, Outcome::Written);
//! assert_eq!(store.write("balance", "150", 34)?, Outcome::Written);
//! // The holder of token 33 wakes up in the middle of its write.
//! assert_eq!(store.write("balance", "90", 33)?, Outcome::Refused { highest: 34 });
//! assert_eq!(store.read("balance")?.map(|entry| entry.value), Some("150".to_owned()));
//! # Ok(())
//! # }
//! ```
//!
//! **The check and the write are one step.** Had the store first read the token, compared it, and then written, a pause
//! between the two would let the late write through: the very pause that the token is there for. Here both are
//! one SQL statement, and SQLite lets one writer in at a time. An equal token is accepted, since its holder may write
//! more than once.
//!
//! **The same in DynamoDB** is one conditional write, refused with `ConditionalCheckFailedException`:
//!
//! ```text
//! UpdateItem
//!   Key                  {"id": "balance"}
//!   UpdateExpression     SET #value = :value, fence = :token
//!   ConditionExpression  attribute_not_exists(fence) OR fence <= :token
//! ```
//!
//! **Limits.** Fencing orders the writes to one key. A job that reads a value, computes, and writes another key must
//! carry the token to both. A new holder fences its predecessor off with its first write, and not before.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

/// The time-out of the wait for other processes that use the same file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// An SQLite file that several processes may use at once.
#[derive(Debug)]
pub struct FencedStore {
    connection: Connection,
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a refused writer has lost its lock, and must stop"]
pub enum Outcome {
    /// The value was written.
    Written,
    /// The write came too late: another was made under a higher token. Nothing was changed.
    Refused {
        /// The highest token of the key's writes.
        highest: u64,
    },
}

/// The value and the token of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The value of the last accepted write.
    pub value: String,
    /// The token of the last accepted write.
    pub token: u64,
}

/// The file could not be read or written.
#[derive(Debug)]
pub struct Error(rusqlite::Error);

impl FencedStore {
    /// Opens the file, and creates it if it is missing.
    ///
    /// # Errors
    /// The file is not a database, or cannot be written.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS fenced (
                key TEXT PRIMARY KEY, value TEXT NOT NULL, token INTEGER NOT NULL
             ) STRICT, WITHOUT ROWID",
        )?;
        Ok(Self { connection })
    }

    /// Writes a value, unless the key was written under a higher token.
    ///
    /// # Errors
    /// The file cannot be written, or the token is above `i64::MAX`; Leasehold's tokens are below 2^53.
    pub fn write(&self, key: &str, value: &str, fencing_token: u64) -> Result<Outcome, Error> {
        let changed = self.connection.execute(
            "INSERT INTO fenced (key, value, token) VALUES (?1, ?2, ?3)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value, token = excluded.token
             WHERE excluded.token >= fenced.token",
            params![key, value, fencing_token],
        )?;
        if changed > 0 {
            return Ok(Outcome::Written);
        }
        // The read only informs the caller; the decision has been made.
        let highest = self.read(key)?.map_or(fencing_token, |entry| entry.token);
        Ok(Outcome::Refused { highest })
    }

    /// Returns the value and the token of a key.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, key: &str) -> Result<Option<Stored>, Error> {
        let entry = self
            .connection
            .query_row("SELECT value, token FROM fenced WHERE key = ?1", [key], |row| {
                Ok(Stored { value: row.get(0)?, token: row.get(1)? })
            })
            .optional()?;
        Ok(entry)
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fenced store: {}", self.0)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
