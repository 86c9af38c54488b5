//! States in a bucket of S3.
//!
//! ```text
//! states/NAME/pointer.json                      the fence, and the names of the state and of the version before it
//! states/NAME/00000000000000000017-UUID.tfstate  a state that was written under the token 17, and never changes
//! ```
//!
//! The pointer is written under the condition that it is still the one that was read (`If-Match`): fence and state
//! change in one step. Its `version` grows with each write, so no entity tag returns, and a write that arrives late
//! always fails. Tokens never fall, so a write of a run that lost its lock is refused when the pointer is read, or when
//! its condition fails and the pointer is read again.
//!
//! A pointer names what the one before it named, or an object of its own token. So an object under a lower token than
//! the pointer's, which that pointer does not name, is never named again, and can be removed.

use aws_sdk_dynamodb::config::Credentials;
use leasehold_dynamodb::fresh_uuid;
use leasehold_terraform::{Change, Name, Store, admit};
use leasehold_wire::Problem;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::s3::{Only, S3, unavailable};
use crate::init;

/// The beginning of all keys.
const PREFIX: &str = "states";
/// The number of times that a change may find the pointer changed meanwhile. Each time, another change got through.
const ATTEMPTS: usize = 10;

/// The states in a bucket.
#[derive(Debug, Clone)]
pub struct Bucket(S3);

/// The small object of a state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Pointer {
    /// The newest token under which somebody could change the state. Never falls.
    fencing_token: u64,
    /// The number of writes of this object.
    version: u64,
    /// The state, unless there is none.
    state: Option<Named>,
    /// The version before it.
    previous: Option<Named>,
}

/// A state in an object of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Named {
    key: String,
    sha256: String,
}

impl Pointer {
    fn names(&self, key: &str) -> bool {
        [&self.state, &self.previous].into_iter().flatten().any(|named| named.key == key)
    }

    /// The pointer after this one, with the change of the state.
    fn after(&self, token: u64, state: Option<Named>) -> Self {
        let is_same = self.state == state;
        let previous = self.state.clone().filter(|_| !is_same).or_else(|| self.previous.clone());
        Self { fencing_token: token, version: self.version + 1, state, previous }
    }
}

impl Store for Bucket {
    async fn read(&self, name: &Name) -> Result<Option<Vec<u8>>, Problem> {
        let mut missing = None;
        loop {
            let (pointer, _) = self.pointer(name).await?;
            let Some(Named { key, sha256 }) = pointer.state else { return Ok(None) };
            if missing.as_ref() == Some(&key) {
                tracing::error!(key, "the object that the pointer names is missing");
                return Err(damaged());
            }
            // A later write may have removed the object since the pointer was read.
            let Some(object) = self.0.get(&key).await? else {
                missing = Some(key);
                continue;
            };
            if hash(&object.body) != sha256 {
                tracing::error!(key, "the object is not the one that was written");
                return Err(damaged());
            }
            return Ok(Some(object.body));
        }
    }

    async fn change(&self, name: &Name, token: u64, change: Change) -> Result<(), Problem> {
        let sha256 = if let Change::Write(state) = &change { hash(state) } else { String::new() };
        let mut written: Option<Named> = None;
        for _ in 0..ATTEMPTS {
            let (pointer, etag) = self.pointer(name).await?;
            // The answer to an earlier attempt was lost, and a later holder may have raised the fence since.
            if written.as_ref().is_some_and(|written| pointer.names(&written.key)) {
                return Ok(());
            }
            let is_newer = match admit(token, pointer.fencing_token) {
                Ok(is_newer) => is_newer,
                Err(problem) => {
                    // Each later write of the pointer has a condition that excludes those of this change.
                    self.remove(written.into_iter().map(|written| written.key).collect()).await;
                    return Err(problem);
                }
            };
            let state = match &change {
                Change::Raise => pointer.state.clone(),
                Change::Remove => None,
                // A repeat.
                Change::Write(_) if pointer.state.as_ref().is_some_and(|state| state.sha256 == sha256) => {
                    pointer.state.clone()
                }
                Change::Write(state) => {
                    if written.is_none() {
                        written = Some(self.write(name, token, state, &sha256).await?);
                    }
                    written.clone()
                }
            };
            if !is_newer && state == pointer.state {
                self.remove(written.into_iter().map(|written| written.key).collect()).await;
                return Ok(());
            }
            let next = pointer.after(token, state);
            if self.set_pointer(name, &next, etag.as_deref()).await? {
                let named = [pointer.state, pointer.previous, written].into_iter().flatten().map(|one| one.key);
                let dropped: Vec<_> = named.filter(|key| !next.names(key)).collect();
                self.remove(dropped).await;
                if is_newer {
                    self.clean_up(name, &next).await;
                }
                return Ok(());
            }
        }
        Err(unavailable("The state changes all the time."))
    }
}

impl Bucket {
    /// The bucket at this address, without a slash at the end. S3 is connected to when it is first used.
    pub fn at(url: String, region: String, credentials: Credentials) -> Self {
        Self(S3 { url, region, identity: credentials.into(), connector: init::connector() })
    }

    /// Reads the pointer of a state, and its entity tag. A state that never was has the fence 0.
    async fn pointer(&self, name: &Name) -> Result<(Pointer, Option<String>), Problem> {
        let key = pointer_key(name);
        let Some(object) = self.0.get(&key).await? else { return Ok((Pointer::default(), None)) };
        // A fence of 0 would admit everybody.
        let pointer = serde_json::from_slice(&object.body).map_err(|error| {
            tracing::error!(key, %error, "the pointer is damaged");
            damaged()
        })?;
        Ok((pointer, Some(object.etag)))
    }

    /// Writes the pointer, unless it has changed. Returns whether it was written.
    async fn set_pointer(&self, name: &Name, pointer: &Pointer, etag: Option<&str>) -> Result<bool, Problem> {
        let document = serde_json::to_vec(pointer).unwrap_or_default();
        self.0.put(&pointer_key(name), &document, etag.map_or(Only::IfAbsent, Only::IfMatch)).await
    }

    /// Writes a state into an object of its own.
    async fn write(&self, name: &Name, token: u64, state: &[u8], sha256: &str) -> Result<Named, Problem> {
        let key = format!("{}{token:020}-{}.tfstate", folder_of(name), fresh_uuid());
        // `false`: the answer to an earlier attempt was lost. Nobody else knows the key.
        self.0.put(&key, state, Only::IfAbsent).await?;
        Ok(Named { key, sha256: sha256.to_owned() })
    }

    /// Removes what this pointer, and so each later one, cannot name.
    async fn clean_up(&self, name: &Name, pointer: &Pointer) {
        let folder = folder_of(name);
        let keys = match self.0.list(&folder).await {
            Ok(keys) => keys,
            Err(problem) => return tracing::warn!(problem.detail, "old states stay until the next lock"),
        };
        let token_of = |key: &str| key.strip_prefix(&folder)?.split_once('-')?.0.parse::<u64>().ok();
        let is_old = |key: &String| token_of(key).is_some_and(|token| token < pointer.fencing_token);
        let unnamed: Vec<_> = keys.into_iter().filter(|key| is_old(key) && !pointer.names(key)).collect();
        self.remove(unnamed).await;
    }

    /// Removes objects that no pointer names. What stays is removed after a later lock.
    async fn remove(&self, keys: Vec<String>) {
        for key in keys {
            if let Err(problem) = self.0.delete(&key).await {
                tracing::warn!(key, problem.detail, "an old state stays until a later lock");
            }
        }
    }
}

fn folder_of(name: &Name) -> String {
    format!("{PREFIX}/{}/", name.as_str())
}

fn pointer_key(name: &Name) -> String {
    format!("{}pointer.json", folder_of(name))
}

fn hash(state: &[u8]) -> String {
    Sha256::digest(state).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn damaged() -> Problem {
    unavailable("The objects of the state are not as they were written.")
}
