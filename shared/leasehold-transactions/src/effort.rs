//! How hard one call tries: pauses, their number, and patience with other transactions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold_protocol::jitter;
use tokio::time::Instant;

use crate::attributes::Item;
use crate::coordinator::{Policy, Step, Transactions};
use crate::error::Error;
use crate::key::ItemKey;
use crate::model::{State, TransactionId};
use crate::record::Record;
use crate::tables::pause;

/// Failures, conflicts and stale views that one call gets over. With the pauses in between it is about five seconds.
const MAX_TRIES: u32 = 8;

/// So often the rows may contradict each other; a coordinator that is at the same work explains two in a row.
const MAX_STALE: u32 = 6;

/// Locks of transactions that are over: as many as may be let go between two looks in one call, and then some.
const MAX_GHOSTS: u32 = 50;

/// Between two looks at an item that another transaction has.
const LOOK: Duration = Duration::from_millis(60);

/// The state of one call.
#[derive(Debug)]
pub(crate) struct Effort {
    policy: Policy,
    started: Instant,
    tries: u32,
    stale: u32,
    batch_limit: usize,
    rivals: HashMap<TransactionId, Sighting>,
    /// How often an item was seen with the lock of a transaction that is over.
    ghosts: u32,
    /// What items were before this call changed them.
    before: BTreeMap<ItemKey, Option<Item>>,
}

/// When another transaction was seen.
#[derive(Debug)]
struct Sighting {
    version: u64,
    first: Instant,
    /// Since when it has had this version.
    since: Instant,
    /// Two that wait for each other must not lose patience at the same time.
    factor: f64,
}

impl Effort {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            policy: *policy,
            started: Instant::now(),
            tries: 0,
            stale: 0,
            batch_limit: usize::MAX,
            rivals: HashMap::new(),
            ghosts: 0,
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
    pub(crate) async fn stale(&mut self) -> Result<(), Error> {
        self.stale += 1;
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

    /// Whether another transaction is to be left in peace a little longer.
    fn is_patient_with(&mut self, other: &Record, me: &Record) -> bool {
        let now = Instant::now();
        let sighting = self.rivals.entry(other.id.clone()).or_insert_with(|| Sighting {
            version: other.version,
            first: now,
            since: now,
            factor: 1.0 + jitter(Duration::from_secs(1)).as_secs_f64(),
        });
        if sighting.version != other.version {
            sighting.version = other.version;
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
        if effort.started.elapsed() > Duration::from_millis(self.policy.contention_ms) {
            return Err(Error::Contended { other: other.clone() });
        }
        let Some(theirs) = self.tables.load(other).await? else {
            let detail = format!("An item is locked by the transaction {other}, of which there is no record.");
            return Err(Error::corrupt(detail));
        };
        if theirs.record.finished {
            // It let go of the item after we looked; or somebody put back an old copy of the item, lock and all.
            effort.ghosts += 1;
            if effort.ghosts > MAX_GHOSTS {
                let detail = format!("An item is locked by the transaction {other}, which is over.");
                return Err(Error::corrupt(detail));
            }
            look_again_later().await;
            return Ok(Step::Waited);
        }
        if theirs.record.state != State::Pending {
            self.settle(other, theirs.record.state, None).await?;
            return Ok(Step::Waited);
        }
        if !effort.is_patient_with(&theirs.record, me) {
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
