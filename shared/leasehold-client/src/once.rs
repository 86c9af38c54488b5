//! Runs a job once for each occurrence. Rule K6.

use std::future::Future;
use std::sync::Arc;

use leasehold_wire::Lock;

use crate::guard::until_lost;
use crate::{Client, Error, ErrorKind, Guard, LockRequest, Release};

/// The outcome of a job that runs once for each occurrence.
#[derive(Debug, Clone, PartialEq)]
pub enum Once {
    /// This caller ran the occurrence, which is now done. The value is the data that the body returned.
    Ran(Option<Vec<u8>>),
    /// The occurrence was done before. The lock's data is what the completed run left.
    AlreadyDone(Box<Lock>),
}

impl Client {
    /// Runs `body` under the lock, unless this occurrence, or one that sorts after it, is done. The release then
    /// records the occurrence as done, with the data that `body` returns.
    ///
    /// A failed run is not done: another caller may try it again, unless the request sets
    /// [`LockRequest::at_most_once`].
    ///
    /// # Errors
    /// The errors of `body`, unchanged; those of [`Client::with_lock`]; those of [`Guard::release`], after which it is
    /// unknown whether the run was recorded as done.
    pub async fn once<E: From<Error>, F: Future<Output = Result<Option<Vec<u8>>, E>>>(
        &self,
        request: impl Into<LockRequest>,
        occurrence: impl Into<String>,
        body: impl FnOnce(Arc<Guard>) -> F,
    ) -> Result<Once, E> {
        let occurrence = occurrence.into();
        let guard = match self.acquire(request.into().occurrence(&occurrence)).await {
            Ok(acquisition) => Arc::new(acquisition.granted()?),
            Err(error) => {
                return match error.kind() {
                    ErrorKind::AlreadyDone(lock) => {
                        let last = lock.last_occurrence.as_deref().unwrap_or_default();
                        if last != occurrence {
                            tracing::warn!(key = %lock.key, occurrence, last, "a later occurrence is recorded as done");
                        }
                        Ok(Once::AlreadyDone(lock.clone()))
                    }
                    _ => Err(error.into()),
                };
            }
        };
        // A guard that is dropped after an error releases the lock, and records nothing as done.
        let data = until_lost(&guard, Box::pin(body(Arc::clone(&guard)))).await?;
        let release = Release { data: data.clone(), ..Release::new().completed(occurrence) };
        guard.give_back(release).await?;
        Ok(Once::Ran(data))
    }
}
