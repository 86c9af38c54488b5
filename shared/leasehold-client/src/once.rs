//! One run of a job for each occurrence. Rule K6.

use std::future::Future;
use std::sync::Arc;

use leasehold_wire::Lock;

use crate::guard::until_lost;
use crate::{Client, Error, ErrorKind, Guard, LockRequest, Release};

/// The end of a job that runs once an occurrence.
#[derive(Debug, Clone, PartialEq)]
pub enum Once {
    /// It ran here, and is done.
    Ran,
    /// It was done before. The lock's data is what its run left.
    AlreadyDone(Box<Lock>),
}

impl Client {
    /// Runs `body` under the lock, unless this occurrence, or one that sorts after it, is done; and then records that
    /// it is done, with the data that `body` returns. A run that fails is not done: another caller may try it again,
    /// unless the request says [`LockRequest::at_most_once`].
    ///
    /// # Errors
    /// Those of `body`, as they are; those of [`Client::with_lock`]; those of [`Guard::release`]: nobody knows then
    /// whether it is recorded that the run is done.
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
                    ErrorKind::AlreadyDone(lock) => Ok(Once::AlreadyDone(lock.clone())),
                    _ => Err(error.into()),
                };
            }
        };
        // A guard that is dropped with an error releases the lock without completing anything.
        let data = until_lost(&guard, body(Arc::clone(&guard))).await?;
        let release = Release { data, ..Release::new().completed(occurrence) };
        guard.give_back(release).await?;
        Ok(Once::Ran)
    }
}
