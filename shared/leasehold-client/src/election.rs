//! Follows a lock by watches, and elects a leader by a lock. Rule K6.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use leasehold_wire::{Lock, LockState};

use crate::clock::{Instant, chance, sleep};
use crate::guard::work_under;
use crate::remote::decode_data;
use crate::timing::poll_pause;
use crate::watching::{LONGEST_WATCH, Until, Watched, version_of};
use crate::{Client, Error, ErrorKind, Guard, LockKey, LockRequest, Release, Wait};

/// The shortest time between two looks that show nothing new.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);

/// A lock whose holder is the leader. The lock's data is the leader's value, such as an address.
#[derive(Debug, Clone)]
pub struct Election {
    client: Client,
    request: LockRequest,
}

/// A leader, as other clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The leader's name.
    pub owner_name: String,
    /// The leader's value.
    pub value: Option<Vec<u8>>,
    /// The leader's fencing token. Absent where another kind of client holds the lock.
    pub fencing_token: Option<u64>,
}

impl Client {
    /// Returns the election of this key, in which this client stands with `value`.
    pub fn election(&self, key: impl Into<LockKey>, value: impl Into<Vec<u8>>) -> Election {
        let request = LockRequest::new(key).data(value).wait(Wait::Forever);
        Election { client: self.clone(), request }
    }

    /// Follows a lock or a semaphore. The stream yields the present view, and a view after each change; `None` while
    /// there is no row. Intermediate views may be missed. A retryable failure is retried, and any other failure ends
    /// the stream.
    pub fn observe(&self, key: LockKey) -> impl Stream<Item = Result<Option<Lock>, Error>> + Send + use<> {
        let client = self.clone();
        stream::try_unfold(None, move |seen: Option<Option<Lock>>| {
            let (client, key) = (client.clone(), key.clone());
            async move {
                let row = client.next_row(&key, seen).await?;
                Ok(Some((row.clone(), Some(row))))
            }
        })
    }

    /// Returns the row of a lock or a semaphore once it differs from `seen`, or as it is when `wait` is over: any
    /// duration. `None`: there is no row. A heartbeat changes a lock, and no semaphore: the row after `wait` shows the
    /// heartbeats of holders.
    ///
    /// # Errors
    /// The last failure to reach the service.
    pub async fn look(
        &self,
        key: impl Into<LockKey>,
        seen: Option<&Lock>,
        wait: Duration,
    ) -> Result<Option<Lock>, Error> {
        let key = key.into();
        // The service answers the watch of a released lock at once.
        let can_watch = self.watches(None) && seen.is_none_or(|lock| lock.state == LockState::Held);
        if can_watch {
            let version = seen.map_or("", version_of);
            match self.watch(&key, Until::Changed(version), wait.min(LONGEST_WATCH), || {}).await {
                Watched::Seen(row) => return Ok(Some(*row)),
                Watched::Ask => return self.row(&key).await,
                Watched::Failed => {}
            }
        }
        sleep(poll_pause(None, Duration::ZERO, chance()).min(wait)).await;
        self.row(&key).await
    }

    /// Returns the public view of a lock or a semaphore, whichever has this key.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`], or the last failure to reach the service.
    pub async fn view(&self, key: impl Into<LockKey>) -> Result<Lock, Error> {
        let key = key.into();
        match self.get(key.clone()).await {
            Err(error) if *error.kind() == ErrorKind::WrongKind => self.get_semaphore(key).await,
            view => view,
        }
    }

    /// Returns the row, once it differs from `seen`. `None`: nothing was seen yet.
    #[allow(clippy::option_option, reason = "nothing was seen yet, and there was no row, are two things")]
    async fn next_row(&self, key: &LockKey, seen: Option<Option<Lock>>) -> Result<Option<Lock>, Error> {
        loop {
            self.check_open()?;
            let began = Instant::now();
            let row = match &seen {
                None => self.row(key).await,
                Some(seen) => self.look(key.clone(), seen.as_ref(), LONGEST_WATCH).await,
            };
            // A grant of permits changes the record, and not what a watch compares.
            let version = |row: &Option<Lock>| row.as_ref().map(|row| row.record_version_number.clone());
            let is_same = |row: &Option<Lock>| Some(version(row)) == seen.as_ref().map(version);
            match row {
                Ok(row) if !is_same(&row) => return Ok(row),
                Err(error) if !error.retryable() => return Err(error),
                Ok(_) | Err(_) => sleep(SHORTEST_LOOK.saturating_sub(began.elapsed())).await,
            }
        }
    }

    /// Returns the row of a lock or a semaphore, if there is one.
    async fn row(&self, key: &LockKey) -> Result<Option<Lock>, Error> {
        match self.view(key.clone()).await {
            Ok(row) => Ok(Some(row)),
            Err(error) if *error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Election {
    /// Changes the settings of the lock: lease, owner's name, heartbeats, wait.
    #[must_use]
    pub fn with(mut self, adjust: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.request = adjust(self.request);
        self
    }

    /// Waits until this client is the leader. Its leadership ends when the guard is released or lost. To resign is to
    /// release the guard.
    ///
    /// # Errors
    /// As [`Client::acquire`]; [`ErrorKind::Held`] where the wait has an end.
    pub async fn campaign(&self) -> Result<Guard, Error> {
        self.client.acquire(self.request.clone()).await?.granted()
    }

    /// Runs `body` while this client is the leader. At a loss the body is dropped where it waits, and the client stands
    /// again. When the body ends, the client resigns. To stop, drop the future.
    ///
    /// # Errors
    /// The errors of `body`, unchanged, and those of [`Election::campaign`].
    pub async fn lead<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        mut body: impl FnMut(Arc<Guard>) -> F,
    ) -> Result<T, E> {
        loop {
            let guard = Arc::new(self.campaign().await?);
            let done = work_under(&guard, Box::pin(body(Arc::clone(&guard))), || guard.give_back(Release::new())).await;
            if guard.loss().is_none() {
                return done;
            }
        }
    }

    /// Follows the leaders. The stream yields the present leader, and each later one; `None` while there is no leader.
    pub fn observe(&self) -> impl Stream<Item = Result<Option<Leader>, Error>> + Send + use<> {
        let rows = self.client.observe(self.request.key.clone());
        let leaders = rows.map_ok(|row| row.and_then(Leader::of));
        // Heartbeats change the row, and not the leader.
        let mut last: Option<Option<Leader>> = None;
        leaders.filter_map(move |leader| {
            let is_news = leader.as_ref().map_or(true, |leader| last.as_ref() != Some(leader));
            if let Ok(leader) = &leader {
                last = Some(leader.clone());
            }
            std::future::ready(is_news.then_some(leader))
        })
    }
}

impl Leader {
    fn of(row: Lock) -> Option<Self> {
        (row.state == LockState::Held).then(|| Self {
            owner_name: row.owner_name,
            value: decode_data(row.data, row.data_base64.as_deref()),
            fencing_token: row.fencing_token,
        })
    }
}
