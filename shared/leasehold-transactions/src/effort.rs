//! How hard one call tries: pauses, their number, and patience with other transactions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold_dynamodb::{jitter, pause};
use tokio::time::Instant;

use crate::attributes::Item;
use crate::coordinator::{Policy, Step, Transactions};
use crate::error::Error;
use crate::key::ItemKey;
use crate::model::{State, TransactionId};
use crate::record::{Progress, Record, Transaction};

/// Failures, conflicts and stale views that one call gets over. With the pauses in between it is about five seconds.
const MAX_TRIES: u32 = 8;

/// So often in a row a step may find the transaction other than it looks, while it looks the same each time. A coordinator
/// that is at the same work changes how it looks.
const MAX_STALE: u32 = 6;

/// So often an item may have the lock of one transaction that is over, or of which there is no record. A transaction lets go
/// of its items, and gets its record, within the time of one write.
const MAX_GHOSTS: u32 = 15;

/// Between two looks at an item that another transaction has.
const LOOK: Duration = Duration::from_millis(60);

/// How a transaction looks: its state, its version, how far its batches are.
type View = (State, u64, Vec<Progress>);

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
    rivals: HashMap<TransactionId, Sighting>,
    /// How often an item was seen with the lock of a transaction that is over.
    ghosts: HashMap<TransactionId, u32>,
    /// What items were before this call changed them.
    before: BTreeMap<ItemKey, Option<Item>>,
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
            before: BTreeMap::new(),
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
        let progress = transaction.batches.iter().map(|batch| batch.progress).collect();
        let view = Some((transaction.record.state, transaction.record.version, progress));
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

    /// Keeps what an item was, to answer with.
    pub(crate) fn remember(&mut self, key: &ItemKey, before: Option<Item>) {
        self.before.entry(key.clone()).or_insert(before);
    }

    /// What an item was, if this call changed it.
    pub(crate) fn before(&self, key: &ItemKey) -> Option<&Option<Item>> {
        self.before.get(key)
    }

    /// Whether other transactions were waited for as long as one call may.
    fn is_out_of_time(&mut self) -> bool {
        let since = *self.contended_since.get_or_insert_with(Instant::now);
        since.elapsed() > Duration::from_millis(self.policy.contention_ms)
    }

    /// Whether another transaction is to be left in peace a little longer.
    fn is_patient_with(&mut self, other: &Record, me: &Record) -> bool {
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
        // The older one goes first, alive or not, so that of two that wait for each other one goes on, and none waits for ever.
        let is_older = (me.created_at, &me.id) < (other.created_at, &other.id);
        if is_older { now - sighting.first < patience / 10 } else { now - sighting.since < patience }
    }
}

impl Transactions {
    /// Deals with a transaction that has an item which `me` needs: helps it over its end, gives it time, or, when that is over,
    /// rolls it back.
    pub(crate) async fn meet(&self, me: &Record, other: &TransactionId, effort: &mut Effort) -> Result<Step, Error> {
        let theirs = self.tables.record(other).await?;
        let Some(theirs) = theirs.filter(|theirs| !theirs.finished) else {
            // It let go of the item after we looked, or its record is not to be seen yet; or somebody put back an old copy of
            // the item, lock and all.
            let ghosts = effort.ghosts.entry(other.clone()).or_default();
            *ghosts += 1;
            if *ghosts > MAX_GHOSTS {
                let detail = format!("An item is locked by the transaction {other:?}, which is over, or never was.");
                return Err(Error::corrupt(detail));
            }
            look_again_later().await;
            return Ok(Step::Waited);
        };
        if theirs.state == State::Pending && effort.is_out_of_time() {
            return Err(Error::Contended { other: other.clone() });
        }
        if theirs.state != State::Pending {
            if self.settle(other, theirs.state, None).await?.unfinished.is_some() && effort.is_out_of_time() {
                return Err(Error::Contended { other: other.clone() });
            }
            return Ok(Step::Waited);
        }
        if !effort.is_patient_with(&theirs, me) {
            tracing::info!(transaction = %me.id, %other, "rolls back another transaction");
            self.settle(other, State::RolledBack, Some(format!("the transaction {} needed one of its items.", me.id)))
                .await?;
            return Ok(Step::Waited);
        }
        look_again_later().await;
        Ok(Step::Waited)
    }
}

#[allow(clippy::disallowed_methods, reason = "the pause between two looks")]
async fn look_again_later() {
    tokio::time::sleep(LOOK / 2 + jitter(LOOK / 2)).await;
}
