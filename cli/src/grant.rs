//! The grant under which a command runs: a lock, permits of a semaphore, or several of these.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use leasehold_client::wire::{self, Secret};
use leasehold_client::{
    Acquisition, AllGuard, AllRequest, Client, Error, Guard, LockKey, Loss, PermitGuard, PermitRequest, Release,
    Semaphore,
};

use crate::Failure;
use crate::commands::acquire;
use crate::output::plain;

/// A grant. Dropping it gives it back.
pub(crate) enum Grant {
    Lock(Guard),
    Permits(PermitGuard),
    All(AllGuard),
}

/// The name of permits.
fn permits_of(key: &LockKey, permits: u64) -> String {
    format!("{} of {key}", wire::semaphore::permits(permits))
}

/// A name for sentences, with the verbs that agree with it.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) is: &'static str,
    pub(crate) was: &'static str,
    pub(crate) it_is: &'static str,
}

impl Grant {
    /// Asks for permits.
    ///
    /// # Errors
    /// The permits are held, or cannot be acquired.
    pub(crate) async fn of_permits(
        semaphore: &Semaphore,
        request: PermitRequest,
        no_wait: bool,
    ) -> Result<Self, Failure> {
        let acquired = if no_wait { semaphore.try_acquire(request).await? } else { semaphore.acquire(request).await? };
        match acquired {
            Acquisition::Granted(guard) => Ok(Self::Permits(guard)),
            Acquisition::Held(held) => Err(Failure::held(&held.lock)),
        }
    }

    /// Asks for several keys.
    ///
    /// # Errors
    /// Some of the keys are held, or cannot be acquired.
    pub(crate) async fn of_all(client: &Client, request: AllRequest) -> Result<Self, Failure> {
        match client.acquire_all(request).await? {
            Acquisition::Granted(guard) => Ok(Self::All(guard)),
            Acquisition::Held(locks) => Err(Failure::some_held(&locks)),
        }
    }

    /// The name of what is held.
    pub(crate) fn subject(&self) -> Subject {
        let (name, is_plural) = match self {
            Self::Lock(guard) => (guard.key().to_string(), false),
            Self::Permits(guard) => (permits_of(guard.key(), guard.permits()), guard.permits() != 1),
            Self::All(guard) => {
                let name = |key: &LockKey| match guard.permits().find(|(other, _)| *other == key) {
                    Some((_, permits)) => permits_of(key, permits),
                    None => key.to_string(),
                };
                (guard.keys().map(name).collect::<Vec<_>>().join(", "), true)
            }
        };
        let (is, was, it_is) = if is_plural { ("are", "were", "they are") } else { ("is", "was", "it is") };
        Subject { name: plain(&name), is, was, it_is }
    }

    /// Describes the grant in a sentence.
    pub(crate) fn describe(&self) -> String {
        let how = match self {
            Self::Lock(guard) => format!("{}; ", acquire::how(guard)),
            Self::Permits(guard) => format!("{} in all; ", guard.capacity()),
            Self::All(_) => String::new(),
        };
        let Subject { name, is, .. } = self.subject();
        format!("{name} {is} yours: {how}token {}", self.fencing_token())
    }

    pub(crate) fn fencing_token(&self) -> u64 {
        match self {
            Self::Lock(guard) => guard.fencing_token(),
            Self::Permits(guard) => guard.fencing_token(),
            Self::All(guard) => guard.fencing_token(),
        }
    }

    pub(crate) fn owner_name(&self) -> &str {
        let name = match self {
            Self::Lock(guard) => guard.owner_name(),
            Self::Permits(guard) => guard.owner_name(),
            Self::All(guard) => guard.owner_name(),
        };
        name.unwrap_or_default()
    }

    pub(crate) fn lease_id(&self) -> &Secret {
        match self {
            Self::Lock(guard) => guard.lease_id(),
            Self::Permits(guard) => guard.lease_id(),
            Self::All(guard) => guard.lease_id(),
        }
    }

    /// The keys, in the order of the command line.
    pub(crate) fn keys(&self) -> Vec<&str> {
        match self {
            Self::Lock(guard) => vec![&guard.key().key],
            Self::Permits(guard) => vec![&guard.key().key],
            Self::All(guard) => guard.keys().map(|key| key.key.as_str()).collect(),
        }
    }

    /// The permits, of a semaphore.
    pub(crate) fn permits(&self) -> Option<u64> {
        match self {
            Self::Permits(guard) => Some(guard.permits()),
            Self::Lock(_) | Self::All(_) => None,
        }
    }

    /// The rest of the time for which the grant is believed in.
    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Lock(guard) => guard.remaining(),
            Self::Permits(guard) => guard.remaining(),
            Self::All(guard) => guard.remaining(),
        }
    }

    /// Resolves when the grant is lost.
    pub(crate) fn lost(&self) -> BoxFuture<'static, Option<Loss>> {
        match self {
            Self::Lock(guard) => guard.lost().boxed(),
            Self::Permits(guard) => guard.lost().boxed(),
            Self::All(guard) => guard.lost().boxed(),
        }
    }

    /// Resolves when somebody waits for the lock. Holders of permits have a queue, and nobody marks several locks.
    pub(crate) fn wanted(&self) -> BoxFuture<'static, ()> {
        match self {
            Self::Lock(guard) => guard.wanted().boxed(),
            Self::Permits(_) | Self::All(_) => pending().boxed(),
        }
    }

    /// Gives the grant back. Only a lock records that an occurrence is completed.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub(crate) async fn release(self, completed: Option<&str>) -> Result<(), Error> {
        match (self, completed) {
            (Self::Lock(guard), Some(occurrence)) => guard.release_with(Release::new().completed(occurrence)).await,
            (Self::Lock(guard), None) => guard.release().await,
            (Self::Permits(guard), _) => guard.release().await,
            (Self::All(guard), _) => guard.release().await,
        }
        .map(drop)
    }
}
