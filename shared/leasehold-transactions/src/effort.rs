//! How hard one call tries: pauses, their number, and patience with other transactions.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_dynamodb::{jitter, pause};
use tokio::time::Instant;

use crate::attributes::Lock;
use crate::coordinator::{Policy, Step, Transactions};
use crate::error::Error;
use crate::key::ItemKey;
use crate::model::{PublicId, State};
use crate::record::{Record, Transaction};

/// Failures, conflicts and stale views that one call gets over. With the pauses in between it is about five seconds.
const MAX_TRIES: u32 = 8;

/// Maximum number of consecutive stale steps while the transaction looks the same. A coordinator that is at the same work
/// changes how it looks.
const MAX_STALE: u32 = 6;

/// Maximum number of looks at an item with the lock of a transaction that is over, or of which there is no record. A
/// transaction gets its record within the time of one write, and frees its items before it is finished.
const MAX_GHOSTS: u32 = 15;

/// An older transaction waits for a younger one for this share of its patience, so that one that is nearly through gets
/// through.
const ELDERS_SHARE: u32 = 20;

/// A transaction whose age is above this share of its patience, earlier attempts included, does not wait for younger ones.
const OLD_SHARE: u64 = 4;

/// Between two looks at an item that another transaction has.
const LOOK: Duration = Duration::from_millis(40);

/// How a transaction looks: its state, its version, and how many of its puts wait.
type View = (State, u64, usize);

/// The state of one call.
#[derive(Debug)]
pub(crate) struct Effort {
    policy: Policy,
    /// When another transaction was first waited for.
    contended_since: Option<Instant>,
    tries: u32,
    stale: u32,
    /// How the transaction looked when a step last found it otherwise.
    view: Option<View>,
    batch_limit: usize,
    rivals: HashMap<PublicId, Sighting>,
    /// How often an item was seen with the lock of a transaction that is over.
    ghosts: HashMap<PublicId, u32>,
}

/// When another transaction was seen.
#[derive(Debug)]
struct Sighting {
    /// Version and time of the last work: signs of life.
    life: (u64, u64),
    first: Instant,
    /// Since when it has shown no other sign of life.
    since: Instant,
    /// Two that wait for each other must not lose patience at the same time.
    factor: f64,
}

impl Effort {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            policy: *policy,
            contended_since: None,
            tries: 0,
            stale: 0,
            view: None,
            batch_limit: usize::MAX,
            rivals: HashMap::new(),
            ghosts: HashMap::new(),
        }
    }

    /// Waits before a step is tried again that other writes got in the way of.
    pub(crate) async fn pause(&mut self) -> Result<(), Error> {
        self.failed(Error::Throttled("other writes of the same items kept getting in the way".into())).await
    }

    /// Waits before the transaction is looked at again.
    pub(crate) async fn failed(&mut self, error: Error) -> Result<(), Error> {
        self.tries += 1;
        if self.tries > MAX_TRIES {
            return Err(error);
        }
        pause(self.tries).await;
        Ok(())
    }

    /// Waits before the transaction is looked at again, which was not what it was taken for.
    pub(crate) async fn stale(&mut self, transaction: &Transaction) -> Result<(), Error> {
        let record = &transaction.record;
        let view = Some((record.state, record.version, record.unapplied.len()));
        self.stale = if self.view == view { self.stale + 1 } else { 1 };
        self.view = view;
        if self.stale > MAX_STALE {
            let detail =
                "An item that a transaction has locked was changed by a writer that does not respect transactions.";
            return Err(Error::corrupt(detail));
        }
        pause(self.stale).await;
        Ok(())
    }

    pub(crate) fn batch_limit(&self, max: usize) -> usize {
        self.batch_limit.min(max)
    }

    pub(crate) fn halve_batches(&mut self, from: usize) {
        self.batch_limit = (from / 2).max(1);
    }

    /// Whether other transactions were waited for as long as one call may.
    fn is_out_of_time(&mut self) -> bool {
        let since = *self.contended_since.get_or_insert_with(Instant::now);
        since.elapsed() > Duration::from_millis(self.policy.contention_ms)
    }

    /// How long to wait before the next look at an item of another transaction. None: it had its time.
    fn patience_with(&mut self, other: &Record, me: &Record, now_ms: u64) -> Option<Duration> {
        let now = Instant::now();
        let life = (other.version, other.last_worked_at);
        let sighting = self.rivals.entry(other.id.clone()).or_insert_with(|| Sighting {
            life,
            first: now,
            since: now,
            factor: 1.0 + jitter(Duration::from_secs(1)).as_secs_f64(),
        });
        if sighting.life != life {
            sighting.life = life;
            sighting.since = now;
        }
        let patience = Duration::from_millis(self.policy.patience_ms).mul_f64(sighting.factor);
        // The older one goes first, alive or not, so that of two that wait for each other one goes on, and none waits for
        // ever. A retry is as old as its first attempt.
        let is_older = (me.born_at, &me.id) < (other.born_at, &other.id);
        if is_older && now_ms.saturating_sub(me.born_at) > self.policy.patience_ms / OLD_SHARE {
            return None;
        }
        let (waited, allowed) =
            if is_older { (now - sighting.first, patience / ELDERS_SHARE) } else { (now - sighting.since, patience) };
        (waited < allowed).then(|| LOOK / 2 + jitter(LOOK / 2))
    }
}

impl Transactions {
    /// Deals with a transaction that has an item which `me` needs: frees the item if the transaction is decided, gives it
    /// time, or, when that is over, rolls it back.
    pub(crate) async fn resolve_conflict(
        &self,
        me: &Record,
        key: &ItemKey,
        lock: &Lock,
        effort: &mut Effort,
    ) -> Result<Step, Error> {
        let other = &lock.value.holder;
        let theirs = self.tables.record(other).await?;
        let Some(theirs) = theirs.filter(|theirs| theirs.holds(&lock.value) && !theirs.finished) else {
            // It freed the item after we looked, or its record is not to be seen yet; or somebody put back an old copy of the
            // item, lock and all.
            let ghosts = effort.ghosts.entry(other.clone()).or_default();
            *ghosts += 1;
            if *ghosts > MAX_GHOSTS {
                return Err(Error::stray(lock));
            }
            look_again_after(LOOK).await;
            return Ok(Step::Waited);
        };
        if theirs.state != State::Pending {
            // This item first; whoever else waits for the others frees them, or a sweeper does.
            if let Some(reason) = self.free(&theirs, std::slice::from_ref(key)).await? {
                return Err(Error::stuck(other, &reason));
            }
            self.settle(other, theirs.state, None).await?;
            return Ok(Step::Waited);
        }
        if effort.is_out_of_time() {
            return Err(Error::Contended { other: other.clone() });
        }
        let Some(pause) = effort.patience_with(&theirs, me, self.clock.now_ms()) else {
            tracing::info!(transaction = %me.id, %other, "rolls back another transaction");
            let reason = format!("the transaction {} needed one of its items.", me.id);
            self.settle(other, State::RolledBack, Some(reason)).await?;
            return Ok(Step::Waited);
        };
        look_again_after(pause).await;
        Ok(Step::Waited)
    }
}

#[allow(clippy::disallowed_methods, reason = "the pause between two looks")]
async fn look_again_after(pause: Duration) {
    tokio::time::sleep(pause).await;
}
