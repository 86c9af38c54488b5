//! One lock while the agent holds it: a task of its own.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_client::{Error, Guard, Heartbeat, LockKey, PermitGuard, Release, Released};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::agent::Agent;
use crate::time::Deadline;

/// The shortest time for the answer to a heartbeat, and the shortest pause before the next one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// The time for which a loss can be asked for, where no invocation ends before.
const LOSS_KEPT: Duration = Duration::from_mins(10);

/// The grant of the service. Dropping it gives it back.
pub(crate) enum Grant {
    Lock(Guard),
    Permits(PermitGuard),
}

impl Deref for Grant {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        match self {
            Self::Lock(guard) => guard,
            Self::Permits(guard) => guard,
        }
    }
}

impl Grant {
    async fn release(self, release: Release) -> Result<Released, Error> {
        match self {
            Self::Lock(guard) => guard.release_with(release).await,
            Self::Permits(guard) => guard.release().await,
        }
    }
}

/// A held lock, as the local API shows it.
#[derive(Debug)]
pub(crate) struct Lock {
    /// The name by which the caller refers to it. It is random, and not the lease id.
    pub(crate) handle: String,
    pub(crate) key: LockKey,
    pub(crate) fencing_token: u64,
    /// The payload at the time of the grant.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) occurrence: Option<String>,
    /// Whether these are permits of a semaphore.
    pub(crate) is_of_permits: bool,
    /// Whether the lock outlives the invocation.
    pub(crate) keep: bool,
    view: watch::Sender<View>,
    leaving: mpsc::Sender<Leave>,
}

/// The state of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    valid_until: Instant,
    /// The number of freezes that were noticed before the last answered request was sent.
    believed: u64,
    /// The number of answered heartbeats.
    pub(crate) renewals: u64,
    /// Whether somebody waits for the lock.
    pub(crate) wanted: bool,
    /// Whether half of the lease is over without an answered heartbeat.
    pub(crate) at_risk: bool,
    /// The reason to stop the work.
    pub(crate) lost: Option<&'static str>,
    /// Whether the lock was released, or forgotten after its loss.
    pub(crate) is_over: bool,
}

/// The way in which a lock is held.
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    /// The end of the invocation, unless the lock outlives it.
    pub(crate) deadline: Option<Deadline>,
}

impl Terms {
    fn lease_now(&self) -> Duration {
        self.deadline.map_or(self.lease, |deadline| deadline.cut(self.lease))
    }
}

struct Leave {
    release: Release,
    reply: oneshot::Sender<Result<Released, Error>>,
}

impl Lock {
    /// Begins to hold a lock, whose request was sent after `believed` freezes.
    pub(crate) fn hold(
        agent: &Arc<Agent>,
        lock: impl FnOnce(&Guard) -> Parts,
        grant: Grant,
        terms: Terms,
        believed: u64,
    ) -> Arc<Self> {
        let Parts { handle, occurrence, keep } = lock(&grant);
        let (leaving, commands) = mpsc::channel(1);
        let view = View {
            valid_until: Instant::now() + grant.remaining(),
            believed,
            renewals: 0,
            wanted: false,
            at_risk: false,
            lost: None,
            is_over: false,
        };
        let lock = Arc::new(Self {
            handle,
            key: grant.key().clone(),
            fencing_token: grant.fencing_token(),
            data: grant.data().map(<[u8]>::to_vec),
            occurrence,
            is_of_permits: matches!(grant, Grant::Permits(_)),
            keep,
            view: watch::Sender::new(view),
            leaving,
        });
        tokio::spawn(Arc::clone(&lock).live(Arc::clone(agent), grant, terms, commands));
        lock
    }

    pub(crate) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// Tells the caller to stop, for this reason, unless there was one before.
    pub(crate) fn lose(&self, reason: &'static str) {
        self.view.send_if_modified(|view| {
            let is_news = view.lost.is_none();
            view.lost.get_or_insert(reason);
            is_news
        });
    }

    /// Releases the lock. The outcome is `None` if it was released before.
    pub(crate) async fn release(&self, release: Release) -> Option<Result<Released, Error>> {
        let (reply, answer) = oneshot::channel();
        self.leaving.send(Leave { release, reply }).await.ok()?;
        answer.await.ok()
    }

    /// Holds the lock until it is released, or its loss is forgotten.
    async fn live(self: Arc<Self>, agent: Arc<Agent>, grant: Grant, terms: Terms, mut commands: mpsc::Receiver<Leave>) {
        let leave = tokio::select! {
            leave = commands.recv() => leave,
            () = self.keep_up(&agent, &grant, &terms) => timeout(LOSS_KEPT, commands.recv()).await.ok().flatten(),
        };
        agent.forget(&self.handle);
        if let Some(Leave { release, reply }) = leave {
            let released = grant.release(release).await;
            // Whoever waits for the answer may be gone.
            if let Err(Err(error)) = reply.send(released) {
                tracing::warn!(key = %self.key, %error, "a lock could not be released, and is free after its lease");
            }
        }
        self.view.send_modify(|view| view.is_over = true);
    }

    /// Sends heartbeats, and notes what they tell. Returns after a loss.
    async fn keep_up(&self, agent: &Agent, grant: &Grant, terms: &Terms) {
        let mut thaws = agent.thaws();
        let (mut lost, mut wanted) = (pin!(grant.lost()), pin!(grant.wanted()));
        let mut asked = terms.lease_now();
        // After a wait, the lease was asked for when more of the invocation remained.
        let mut due = if grant.remaining() > asked { Instant::now() } else { Instant::now() + pause(asked) };
        let stops = terms.deadline.map(|deadline| deadline.stops());
        loop {
            let stop = async {
                match stops {
                    Some(stops) => sleep_until(stops).await,
                    None => std::future::pending().await,
                }
            };
            let is_wanted = self.view.borrow().wanted;
            tokio::select! {
                biased;
                found = &mut lost => {
                    self.lose(found.map_or("released", |loss| loss.reason.word()));
                    return;
                }
                // The invocation's end releases the lock.
                () = stop => {
                    self.lose("deadline");
                    return std::future::pending().await;
                }
                () = &mut wanted, if !is_wanted => {
                    self.view.send_modify(|view| view.wanted = true);
                }
                _ = thaws.changed() => due = Instant::now(),
                () = sleep_until(due) => {
                    asked = terms.lease_now();
                    due = Instant::now() + self.beat(agent, grant, asked).await;
                }
            }
        }
    }

    /// Sends a heartbeat. Returns the pause before the next one.
    async fn beat(&self, agent: &Agent, grant: &Grant, asked: Duration) -> Duration {
        let believed = agent.look();
        let limit = (asked / 2).max(SHORTEST_PAUSE);
        match timeout(limit, grant.renew_with(Heartbeat::new().lease(asked))).await {
            Ok(Ok(())) => {
                self.view.send_modify(|view| {
                    view.valid_until = Instant::now() + grant.remaining();
                    view.believed = believed;
                    view.renewals += 1;
                    view.at_risk = false;
                });
                pause(asked)
            }
            failed => {
                if let Ok(Err(error)) = failed {
                    tracing::debug!(key = %self.key, %error, "a heartbeat failed");
                }
                let is_at_risk = grant.remaining() < asked / 2;
                self.view.send_if_modified(|view| is_at_risk && !std::mem::replace(&mut view.at_risk, true));
                (asked / 16).max(SHORTEST_PAUSE)
            }
        }
    }
}

/// The parts of a lock that the request names.
pub(crate) struct Parts {
    pub(crate) handle: String,
    pub(crate) occurrence: Option<String>,
    pub(crate) keep: bool,
}

impl View {
    /// The time for which nobody else can take the lock over, after so many freezes.
    pub(crate) fn valid_for(&self, thaws: u64) -> Duration {
        if self.believed < thaws || self.lost.is_some() || self.is_over {
            return Duration::ZERO;
        }
        self.valid_until.saturating_duration_since(Instant::now())
    }
}

fn pause(lease: Duration) -> Duration {
    (lease / 4).max(SHORTEST_PAUSE)
}
