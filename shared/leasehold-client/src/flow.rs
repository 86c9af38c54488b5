//! The locks of the blocks around the running code: nobody waits for a lock of one's own.

use std::future::Future;
use std::sync::Arc;

use crate::lease::Lease;
use crate::subject::Subject;
use crate::{Client, Error, LockKey};

tokio::task_local! {
    static AROUND: Vec<Around>;
}

/// What the block around holds.
#[derive(Clone)]
pub(crate) struct Around {
    lease: Arc<Lease>,
    /// The capacity of the semaphore, where the lease has permits of one that is known.
    capacity: Option<u64>,
}

impl Around {
    pub(crate) fn lock(lease: &Arc<Lease>) -> Self {
        Self { lease: Arc::clone(lease), capacity: None }
    }

    pub(crate) fn permits(lease: &Arc<Lease>, capacity: u64) -> Self {
        Self { lease: Arc::clone(lease), capacity: Some(capacity) }
    }

    /// Whether a wait for this key can only end with this lease. A holder of some permits may still get others: the
    /// capacity may change.
    fn blocks(&self, client: &Client, subject: Subject, key: &LockKey, permits: u64) -> bool {
        self.lease.subject == subject
            && self.lease.key == *key
            && (subject == Subject::Lock
                || self.capacity.is_some_and(|all| permits <= all && self.lease.permits() == all))
            && client.keeps(&self.lease)
    }
}

/// Runs `work` in the block of these.
pub(crate) async fn within<T>(inner: impl IntoIterator<Item = Around>, work: impl Future<Output = T>) -> T {
    let mut around = AROUND.try_with(Clone::clone).unwrap_or_default();
    around.extend(inner);
    AROUND.scope(around, work).await
}

/// Refuses a wait that only the running code itself could end.
///
/// # Errors
/// `WouldDeadlock`
pub(crate) fn refuse_deadlock(client: &Client, subject: Subject, key: &LockKey, permits: u64) -> Result<(), Error> {
    let blocks = |around: &Vec<Around>| around.iter().any(|around| around.blocks(client, subject, key, permits));
    if AROUND.try_with(blocks).unwrap_or_default() { Err(Error::would_deadlock(key)) } else { Ok(()) }
}
