//! Drives a transaction. Any number of coordinators may drive the same one at the same time, and each may stop anywhere:
//! every step is one write, conditional on the state that it leads on from.
//!
//! ```text
//! TX record   pending ──────────────► committed | rolled-back ──► finished
//! batch                locked ─► applied ────────────────────► completed
//! ```
//!
//! | step | one TransactWriteItems call: all of it or nothing | only while |
//! |---|---|---|
//! | lock | the TX record takes in the batch, the batch's row, a lock on each item | `pending`, no batch was added meanwhile, no item has a lock, all conditions hold |
//! | apply | the batch is `applied`, images of the items, their new content | `pending`, the batch is `locked`, the locks are ours |
//! | decide | the TX record is `committed` or `rolled-back` | `pending`; to commit, no batch was added meanwhile |
//! | complete | the batch is `completed`, its items are free (at a rollback with their old content), no images | the batch is not `completed` |
//! | finish | the TX record is `finished` | |
//!
//! A transaction that fits into one call is decided, completed and finished by that one call.
//!
//! **Why it is safe.** An item is locked or changed only together with a check that its transaction is pending, so once it
//! is decided no sleeper can lock or change anything. What is completed is exactly the batches that the decision found. A
//! batch and its items never disagree, since they move in one write; so a step that is repeated, late or done by two at once
//! fails on the batch's progress.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_dynamodb::Clock;

use crate::attributes::{self, APPLIED, ID, Item, LOCKED_AT, Lock, OPERATION, REQUEST, TRANSIENT, size};
use crate::effort::Effort;
use crate::error::{Error, NO_TABLE};
use crate::expression::{and_set, both};
use crate::key::ItemKey;
use crate::model::{State, TransactionId};
use crate::prepare::Prepared;
use crate::record::{
    self, Batch, Effect, Entry, Progress, Record, Transaction, batch_key, image, image_key, record_key,
};
use crate::tables::{Reason, Tables, Written};
use crate::write::Write;

/// So many items in a batch: with their images, the batch and the TX record they make less than the 100 writes that
/// TransactWriteItems takes.
const MAX_BATCH: usize = 48;

/// As many as the numbers of batches have digits for.
const MAX_BATCHES: u64 = 99_999;

/// TransactWriteItems takes so many writes.
pub(crate) const MAX_WRITES: usize = 100;

/// TransactWriteItems takes 4 MB. Sizes here are estimates.
pub(crate) const MAX_BYTES: usize = 3_500_000;

/// A row takes 400 KB.
const MAX_ROW_BYTES: usize = 380_000;

/// How the transactions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a transaction that has an item is left in peace, if it shows no sign of life, before another one that needs
    /// the item rolls it back. Default: 1 s.
    pub patience_ms: u64,
    /// How long a call tries to get items that other transactions have. Default: 10 s.
    pub contention_ms: u64,
    /// How long nobody must have worked on a transaction before a sweeper rolls it back. Default: 60 s.
    pub idle_ms: u64,
    /// How long the outcome of a transaction is kept. Default: 7 days.
    pub retention_ms: u64,
}

impl Policy {
    /// A day: an item that is locked for longer is as good as lost.
    pub const MAX_IDLE_SECONDS: u64 = 24 * 3600;

    /// Longer than any call tries to get an item.
    pub const MAX_PATIENCE_MS: u64 = 10_000;
}

impl Default for Policy {
    fn default() -> Self {
        Self { patience_ms: 1000, contention_ms: 10_000, idle_ms: 60_000, retention_ms: 7 * 24 * 3_600_000 }
    }
}

/// Transactions over one transactions table. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transactions {
    pub(crate) tables: Tables,
    pub(crate) policy: Policy,
    pub(crate) clock: Clock,
    /// Tables that no transaction may touch.
    pub(crate) protected: Vec<String>,
}

/// What came of a step.
#[derive(Debug)]
pub(crate) enum Step {
    /// It is done.
    Done,
    /// The transaction is not what it was taken for: look again.
    Stale,
    /// Something was in the way that may be gone by now: try again.
    Again,
    /// Somebody was in the way, and was given time or moved out of it.
    Waited,
    /// It cannot be done: the transaction must be rolled back, and this said.
    Doomed(Error),
    /// The same, because of what DynamoDB says of the request for this item.
    Invalid(ItemKey, String),
}

impl Transactions {
    /// A transaction that is open.
    pub(crate) async fn open(&self, id: &TransactionId) -> Result<Transaction, Error> {
        let transaction = self.tables.load(id).await?.ok_or(Error::NotFound)?;
        match transaction.record.state {
            State::Pending => Ok(transaction),
            State::Committed => Err(Error::Committed),
            State::RolledBack => Err(rolled_back(&transaction.record)),
        }
    }

    /// Makes the transaction take in all requests that it has not, and applies them. `new` is a transaction whose record is
    /// yet to be written, which happens together with the first lock.
    pub(crate) async fn enlist(
        &self,
        id: &TransactionId,
        prepared: &[Prepared],
        new: Option<Record>,
        effort: &mut Effort,
    ) -> Result<Transaction, Error> {
        let mut known = new.map(|record| Transaction { record, batches: Vec::new() });
        let mut is_new = known.is_some();
        loop {
            let mut transaction = if let Some(transaction) = known.take() {
                transaction
            } else {
                is_new = false;
                self.open(id).await?
            };
            let step = if let Some(index) = unapplied(&transaction) {
                self.apply(&mut transaction, index, effort).await
            } else {
                let missing = missing(&transaction, prepared)?;
                if missing.is_empty() {
                    return Ok(transaction);
                }
                self.lock(&mut transaction, &missing, is_new, effort).await
            };
            match step {
                Ok(Step::Done) => {
                    is_new = false;
                    known = Some(transaction);
                }
                Ok(Step::Again) => {
                    effort.pause().await?;
                    known = Some(transaction);
                }
                // Meanwhile this transaction may have had to make way itself, and then must not move others; or a new one is a
                // repeat, and is over.
                Ok(Step::Waited) => known = self.unless_begun(transaction, is_new).await?,
                Ok(Step::Stale) => {
                    if let Err(error) = effort.stale(&transaction).await {
                        self.doom(&transaction.record, is_new, error).await?;
                    }
                }
                Ok(Step::Doomed(error)) => self.doom(&transaction.record, is_new, error).await?,
                Ok(Step::Invalid(key, message)) => {
                    let culprit = prepared.iter().find(|candidate| candidate.key == key);
                    let field =
                        culprit.map_or_else(|| "requests".to_owned(), |culprit| format!("requests[{}]", culprit.index));
                    self.doom(&transaction.record, is_new, Error::invalid(field, message)).await?;
                }
                // Whether it was written is in the tables.
                Err(error) if error.is_passing() => {
                    effort.failed(error).await?;
                    known = self.unless_begun(transaction, is_new).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A new transaction of which nothing is in the tables, to be begun anew; `None` of one that must be looked at again.
    async fn unless_begun(&self, transaction: Transaction, is_new: bool) -> Result<Option<Transaction>, Error> {
        let is_begun = !is_new || self.tables.record(&transaction.record.id).await?.is_some();
        Ok((!is_begun).then_some(transaction))
    }

    /// Locks as many of the missing items as go into one batch.
    async fn lock(
        &self,
        transaction: &mut Transaction,
        missing: &[&Prepared],
        is_new: bool,
        effort: &mut Effort,
    ) -> Result<Step, Error> {
        let candidates = &missing[..missing.len().min(effort.batch_limit(MAX_BATCH))];
        let keys: Vec<_> = candidates.iter().map(|candidate| candidate.key.clone()).collect();
        let items = match self.tables.read(&keys).await {
            Ok(items) => items,
            Err(error) => {
                // They may be too large to be read together in time.
                effort.halve_batches(keys.len());
                return Err(error);
            }
        };
        let id = &transaction.record.id;
        let chosen = match choose(transaction, candidates, &items) {
            Ok(chosen) => chosen,
            Err(Obstacle::Holder(other)) => return self.meet(&transaction.record, &other, effort).await,
            Err(Obstacle::Stale) => return Ok(Step::Stale),
        };
        let number = transaction.batches.last().map_or(1, |batch| batch.number + 1);
        if number > MAX_BATCHES {
            return Ok(Step::Doomed(Error::TooLarge("The transaction has too many requests.".to_owned())));
        }
        let bytes: usize = chosen.iter().map(|chosen| chosen.bytes).sum();
        let entries = chosen.iter().map(Chosen::entry).collect();
        let mut batch = Batch { number, progress: Progress::Locked, entries, bytes: bytes as u64 };
        if batch.is_passive() {
            batch.progress = Progress::Applied;
        }
        let now = self.clock.now_ms();
        let mut writes = vec![self.take_in(&transaction.record, is_new, now)];
        writes.push(Write::put(&self.tables.own, batch.encode(id)));
        let mut owners = Vec::new();
        for (index, chosen) in chosen.iter().enumerate() {
            for lock in lock_writes(id, chosen, &batch.pointer(index), now) {
                owners.push((chosen, lock.is_users));
                writes.push(lock.write);
            }
        }
        match self.tables.transact(writes).await {
            Ok(Written::Done) => {
                transaction.record.version += 1;
                transaction.batches.push(batch);
                Ok(Step::Done)
            }
            Ok(Written::Cancelled(reasons)) => match reasons.first() {
                Some(Reason::Condition(_)) => Ok(Step::Stale),
                // Somebody is at the same transaction, and what is said of its items may be due to that.
                Some(Reason::Busy) => Ok(Step::Again),
                // The first two reasons are about the transaction's own rows.
                _ => match refusal(id, reasons.into_iter().skip(2), owners) {
                    Refusal::Holder(other) => self.meet(&transaction.record, &other, effort).await,
                    Refusal::Doom(error) => Ok(Step::Doomed(error)),
                    Refusal::Passing => Ok(Step::Again),
                },
            },
            Err(Error::TooLarge(message)) if chosen.len() == 1 => Ok(Step::Doomed(Error::TooLarge(message))),
            // DynamoDB counts otherwise than we do.
            Err(Error::TooLarge(_)) => {
                effort.halve_batches(chosen.len());
                Ok(Step::Again)
            }
            Err(Error::InvalidRequest { message, .. }) => Ok(Step::Doomed(Error::invalid("requests", message))),
            Err(error) => Err(error),
        }
    }

    /// The TX record's part in a lock: a new one, or the next version of the one that is there.
    fn take_in(&self, record: &Record, is_new: bool, now: u64) -> Write {
        if is_new {
            let record = Record { version: record.version + 1, ..record.clone() };
            return Write::put(&self.tables.own, record.encode()).when("attribute_not_exists(transactionId)");
        }
        Write::update(&self.record_of(&record.id), "SET #version = :next, lastWorkedAt = :now")
            .when("#state = :pending AND #version = :version")
            .name("#state", "state")
            .name("#version", "version")
            .text(":pending", State::Pending.as_str())
            .number(":version", record.version)
            .number(":next", record.version + 1)
            .number(":now", now)
    }

    /// Gives the items of a batch their new content.
    async fn apply(&self, transaction: &mut Transaction, index: usize, effort: &mut Effort) -> Result<Step, Error> {
        let record = &transaction.record;
        let batch = &transaction.batches[index];
        let keys: Vec<_> = batch.entries.iter().map(|entry| entry.key.clone()).collect();
        let items = self.tables.read(&keys).await?;
        let pending = Write::check(&self.record_of(&record.id))
            .when("#state = :pending")
            .name("#state", "state")
            .text(":pending", State::Pending.as_str());
        let mut writes = vec![pending, self.advance(record, batch, Progress::Applied)];
        let mut appliers = Vec::new();
        for (index, (entry, item)) in batch.entries.iter().zip(items).enumerate() {
            let pointer = batch.pointer(index);
            let lock = item.as_ref().and_then(Lock::of);
            let is_ours = lock.is_some_and(|lock| lock.holder == record.id && lock.pointer == pointer && !lock.applied);
            let Some(item) = item.filter(|_| is_ours) else {
                return Ok(Step::Stale);
            };
            if !entry.effect.is_applied() {
                continue;
            }
            let before = attributes::strip(item.clone());
            if !entry.transient {
                writes.push(Write::put(&self.tables.own, image(&record.id, &pointer, before.clone())));
                appliers.push(None);
            }
            writes.push(apply_write(&record.id, entry, &pointer, &item));
            appliers.push(Some(entry.key.clone()));
            effort.remember(&entry.key, (!entry.transient).then_some(before));
        }
        match self.tables.transact(writes).await {
            Ok(Written::Done) => {
                transaction.batches[index].progress = Progress::Applied;
                Ok(Step::Done)
            }
            Ok(Written::Cancelled(reasons)) => {
                for (reason, applier) in reasons.iter().skip(2).zip(&appliers) {
                    match (reason, applier) {
                        (Reason::Invalid(message), Some(key)) => {
                            return Ok(Step::Invalid(key.clone(), message.clone()));
                        }
                        (Reason::Invalid(message) | Reason::TooLarge(message), _) => {
                            return Ok(Step::Doomed(Error::TooLarge(message.clone())));
                        }
                        _ => {}
                    }
                }
                let is_stale = reasons.iter().any(|reason| matches!(reason, Reason::Condition(_)));
                Ok(if is_stale { Step::Stale } else { Step::Again })
            }
            Err(Error::TooLarge(message)) => Ok(Step::Doomed(Error::TooLarge(message))),
            Err(Error::InvalidRequest { message, .. }) => Ok(Step::Doomed(Error::invalid("requests", message))),
            Err(error) => Err(error),
        }
    }

    /// Rolls back a transaction that cannot go on, leaves a record of it even if there was none, and says why. Only if it has
    /// a record against expectation, it may go on.
    async fn doom(&self, record: &Record, is_new: bool, error: Error) -> Result<(), Error> {
        if is_new {
            return if self.leave_rolled_back(record, &error).await? { Err(error) } else { Ok(()) };
        }
        let settled = self.settle(&record.id, State::RolledBack, Some(error.to_string())).await?;
        Err(if settled.record.state == State::Committed { Error::Committed } else { error })
    }

    /// Writes the record of a transaction that was rolled back before it had one. Whether it had none.
    pub(crate) async fn leave_rolled_back(&self, record: &Record, error: &Error) -> Result<bool, Error> {
        let record =
            Record { state: State::RolledBack, finished: true, reason: Some(error.to_string()), ..record.clone() };
        if self.put_new(self.finished_row(&record)).await? {
            return Ok(true);
        }
        // An attempt of which nobody knew may have been carried out.
        let found = self.tables.record(&record.id).await?;
        Ok(found.is_some_and(|found| found.state == record.state && found.reason == record.reason))
    }

    /// Writes a TX record, if there is none of this id. Whether it did; but an attempt that was given up may have.
    pub(crate) async fn put_new(&self, row: Item) -> Result<bool, Error> {
        let mut effort = Effort::new(&self.policy);
        loop {
            match self.tables.put(row.clone(), "attribute_not_exists(transactionId)").await {
                Err(error) if error.is_passing() => effort.failed(error).await?,
                result => return result,
            }
        }
    }

    /// The row of a transaction that is finished from the start.
    pub(crate) fn finished_row(&self, record: &Record) -> Item {
        let remove_at = self.remove_at();
        let mut row = Record { sweep_at: remove_at, ..record.clone() }.encode();
        row.insert(record::EXPIRE_AT.to_owned(), record::number(remove_at / 1000));
        row
    }

    /// A transaction that has no record yet.
    pub(crate) fn new_record(&self, id: &TransactionId) -> Record {
        let now = self.clock.now_ms();
        Record::new(id.clone(), now, now + self.policy.idle_ms)
    }

    /// Decides a transaction, if it is not decided, and completes it. Answers what it came to, which may be the other
    /// outcome. Once it is decided, no failure hides that.
    pub(crate) async fn settle(
        &self,
        id: &TransactionId,
        outcome: State,
        reason: Option<String>,
    ) -> Result<Settled, Error> {
        let mut effort = Effort::new(&self.policy);
        let mut decided = None;
        loop {
            let mut transaction = match self.tables.load(id).await {
                Ok(found) => found.ok_or(Error::NotFound)?,
                Err(error) => return unfinished(decided, error),
            };
            if transaction.record.state != State::Pending {
                decided = Some(transaction.record.clone());
            }
            if transaction.record.finished {
                return Ok(Settled { record: transaction.record, unfinished: None });
            }
            let step = if transaction.record.state != State::Pending {
                self.complete(&transaction).await
            } else if let Some(index) = unapplied(&transaction).filter(|_| outcome == State::Committed) {
                self.apply(&mut transaction, index, &mut effort).await
            } else {
                self.decide(&transaction, outcome, reason.as_deref()).await
            };
            let waited = match step {
                Ok(Step::Done | Step::Waited) => Ok(()),
                Ok(Step::Again) => effort.pause().await,
                Ok(Step::Stale) => effort.stale(&transaction).await,
                Ok(Step::Invalid(_, message)) => Err(Error::invalid("requests", message)),
                Err(error) if error.is_passing() => effort.failed(error).await,
                Ok(Step::Doomed(error)) | Err(error) => Err(error),
            };
            match waited {
                Ok(()) => {}
                Err(error) if decided.is_some() || error.is_passing() => return unfinished(decided, error),
                Err(error) if outcome == State::Committed => return self.give_up(id, error).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Rolls back what cannot be committed.
    async fn give_up(&self, id: &TransactionId, error: Error) -> Result<Settled, Error> {
        // Boxed: it is called by the function that it calls; at most once, since a rollback applies nothing.
        let settled = Box::pin(self.settle(id, State::RolledBack, Some(error.to_string()))).await?;
        if settled.record.state == State::Committed { Ok(settled) } else { Err(error) }
    }

    /// Decides; with all that follows, if it fits.
    async fn decide(&self, transaction: &Transaction, outcome: State, reason: Option<&str>) -> Result<Step, Error> {
        let bytes: u64 = transaction.batches.iter().map(|batch| batch.bytes).sum();
        let count: usize = transaction.batches.iter().map(|batch| 1 + 2 * batch.entries.len()).sum();
        if count < MAX_WRITES && bytes < MAX_BYTES as u64 {
            let mut writes = vec![self.decision(&transaction.record, outcome, reason, true)];
            let mut is_complete = true;
            for batch in &transaction.batches {
                match self.completion(transaction, batch, outcome, &BTreeSet::new()).await {
                    Ok(Some(completion)) => writes.extend(completion.writes),
                    Ok(None) => return Ok(Step::Stale),
                    Err(error) if error.is_passing() => return Err(error),
                    Err(_) => is_complete = false,
                }
            }
            if is_complete {
                match self.tables.transact(writes).await {
                    Ok(Written::Done) => return Ok(Step::Done),
                    Ok(Written::Cancelled(reasons)) => {
                        if reasons.iter().any(|reason| matches!(reason, Reason::Busy)) {
                            return Ok(Step::Again);
                        }
                        if matches!(reasons.first(), Some(Reason::Condition(_))) {
                            return Ok(Step::Stale);
                        }
                    }
                    Err(error) if error.is_passing() => return Err(error),
                    Err(_) => {}
                }
            }
            // Something is wrong with some item or table, which must not keep a decision from being made.
        }
        match self.tables.transact(vec![self.decision(&transaction.record, outcome, reason, false)]).await? {
            Written::Done => Ok(Step::Done),
            Written::Cancelled(reasons) if matches!(reasons.first(), Some(Reason::Busy)) => Ok(Step::Again),
            Written::Cancelled(_) => Ok(Step::Stale),
        }
    }

    /// The write that decides.
    fn decision(&self, record: &Record, outcome: State, reason: Option<&str>, finishes: bool) -> Write {
        let now = self.clock.now_ms();
        let mut update = "SET #state = :outcome, lastWorkedAt = :now".to_owned();
        if reason.is_some() {
            update.push_str(", reason = :reason");
        }
        if finishes {
            let _ = write!(update, ", {FINISH}");
        }
        let mut write = Write::update(&self.record_of(&record.id), update)
            .when("#state = :pending AND #version = :version")
            .name("#state", "state")
            .name("#version", "version")
            .text(":pending", State::Pending.as_str())
            .number(":version", record.version)
            .text(":outcome", outcome.as_str())
            .number(":now", now);
        if let Some(reason) = reason {
            write = write.text(":reason", reason);
        }
        if finishes {
            for (placeholder, value) in self.finish_values() {
                write = write.value(placeholder, value);
            }
        }
        write
    }

    /// What [`FINISH`] sets.
    fn finish_values(&self) -> [(&'static str, AttributeValue); 3] {
        let remove_at = self.remove_at();
        [
            (":true", AttributeValue::Bool(true)),
            (":removeAt", record::number(remove_at)),
            (":expireAt", record::number(remove_at / 1000)),
        ]
    }

    /// When what ends now may be forgotten, in epoch milliseconds.
    fn remove_at(&self) -> u64 {
        self.clock.now_ms() + self.policy.retention_ms
    }

    /// Completes all batches of a transaction that is decided, and finishes it.
    pub(crate) async fn complete(&self, transaction: &Transaction) -> Result<Step, Error> {
        let mut stuck = None;
        for batch in &transaction.batches {
            if batch.progress == Progress::Completed {
                continue;
            }
            match self.complete_batch(transaction, batch).await {
                Ok(Step::Done) => {}
                Ok(step) => return Ok(step),
                Err(error) if error.is_passing() => return Err(error),
                // The items of the other batches need not wait for this one.
                Err(error) => stuck = Some(error),
            }
        }
        if let Some(error) = stuck {
            return Err(error);
        }
        let pending = (":pending", record::text(State::Pending.as_str()));
        let values = self.finish_values().into_iter().chain([pending]);
        let values = values.map(|(placeholder, value)| (placeholder.to_owned(), value)).collect();
        let update = format!("SET {FINISH}");
        let condition = "attribute_exists(transactionId) AND #state <> :pending";
        self.tables
            .update(record_key(&transaction.record.id), &update, condition, &[("#state", "state")], values)
            .await?;
        Ok(Step::Done)
    }

    async fn complete_batch(&self, transaction: &Transaction, batch: &Batch) -> Result<Step, Error> {
        let mut lost = BTreeSet::new();
        loop {
            let outcome = transaction.record.state;
            let Some(completion) = self.completion(transaction, batch, outcome, &lost).await? else {
                return Ok(Step::Stale);
            };
            let reasons = match self.tables.transact(completion.writes).await {
                Ok(Written::Done) => return Ok(Step::Done),
                Ok(Written::Cancelled(reasons)) => reasons,
                Err(Error::InvalidRequest { field, message }) if field == NO_TABLE => {
                    let gone = self.without_table(batch).await?;
                    if gone.is_subset(&lost) {
                        return Err(Error::invalid(field, message));
                    }
                    lost.extend(gone);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if matches!(reasons.first(), Some(Reason::Condition(_))) {
                return Ok(Step::Stale);
            }
            if reasons.iter().any(|reason| matches!(reason, Reason::Busy)) {
                return Ok(Step::Again);
            }
            // A writer who does not respect transactions has taken the item away or replaced it: there is nothing of ours
            // left on it.
            let before = lost.len();
            for (reason, owner) in reasons.iter().zip(&completion.owners) {
                if let (Reason::Condition(_), Some(index)) = (reason, owner) {
                    let key = &batch.entries[*index].key;
                    tracing::error!(transaction = %transaction.record.id, table = key.table(), "a locked item was overwritten");
                    lost.insert(*index);
                }
            }
            if lost.len() == before {
                let message = reasons.iter().find_map(|reason| match reason {
                    Reason::Invalid(message) | Reason::TooLarge(message) => Some(message),
                    _ => None,
                });
                return match message {
                    Some(message) => Err(Error::corrupt(format!("An item cannot be freed: {message}"))),
                    None => Ok(Step::Again),
                };
            }
        }
    }

    /// The writes that complete a batch; none, if the images are gone because somebody else did it.
    async fn completion(
        &self,
        transaction: &Transaction,
        batch: &Batch,
        outcome: State,
        lost: &BTreeSet<usize>,
    ) -> Result<Option<Completion>, Error> {
        let id = &transaction.record.id;
        let mut completion = Completion { writes: Vec::new(), owners: Vec::new() };
        completion.push(None, self.advance(&transaction.record, batch, Progress::Completed));
        let was_applied = batch.progress == Progress::Applied;
        let decisive: Vec<_> = transaction.decisive(batch).collect();
        let has_image = |entry: &Entry| was_applied && entry.effect.is_applied() && !entry.transient;
        let mut images = if outcome == State::RolledBack {
            let imaged = decisive.iter().filter(|(index, entry)| has_image(entry) && !lost.contains(index));
            let keys = imaged.map(|(index, _)| ItemKey::new(&self.tables.own, image_key(id, &batch.pointer(*index))));
            self.tables.read(&keys.collect::<Vec<_>>()).await?.into_iter()
        } else {
            Vec::new().into_iter()
        };
        for (index, entry) in decisive {
            let pointer = batch.pointer(index);
            if !lost.contains(&index) {
                let is_gone = match outcome {
                    State::Committed => {
                        entry.effect == Effect::Delete || (entry.transient && entry.effect.only_locks())
                    }
                    State::Pending | State::RolledBack => entry.transient,
                };
                let freed = if is_gone {
                    Write::delete(&entry.key)
                } else if outcome == State::RolledBack && has_image(entry) {
                    let Some(before) = images.next().flatten().and_then(record::imaged) else {
                        return self.missing_image(transaction, batch).await;
                    };
                    Write::put(entry.key.table(), before)
                } else {
                    Write::update(&entry.key, attributes::REMOVE_ALL)
                };
                completion.push(Some(index), ours(freed, id, &pointer));
            }
            if has_image(entry) {
                let image = ItemKey::new(&self.tables.own, image_key(id, &pointer));
                completion.push(None, Write::delete(&image));
            }
        }
        Ok(Some(completion))
    }

    /// Those of a batch's items whose tables were deleted, and that are free of all cares.
    async fn without_table(&self, batch: &Batch) -> Result<BTreeSet<usize>, Error> {
        let mut gone = BTreeSet::new();
        let tables: BTreeSet<_> = batch.entries.iter().map(|entry| entry.key.table()).collect();
        for table in tables {
            match self.tables.describe_key(table).await {
                Ok(_) => {}
                Err(Error::InvalidRequest { field, .. }) if field == NO_TABLE => {
                    let entries = batch.entries.iter().enumerate();
                    gone.extend(entries.filter(|(_, entry)| entry.key.table() == table).map(|(index, _)| index));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    /// Where an image is missing, somebody has completed the batch meanwhile, or the rows were tampered with.
    async fn missing_image(&self, transaction: &Transaction, batch: &Batch) -> Result<Option<Completion>, Error> {
        let now = self.tables.load(&transaction.record.id).await?.ok_or(Error::NotFound)?;
        let progress = now.batches.iter().find(|other| other.number == batch.number).map(|other| other.progress);
        // A read may come between the parts of a write, but not this many times: see `Effort::stale`.
        if progress != Some(batch.progress) || now.record != transaction.record {
            return Ok(None);
        }
        let id = &transaction.record.id;
        Err(Error::corrupt(format!("An image of the transaction {id} is missing: an item cannot be restored.")))
    }

    /// A batch's own row moves on.
    fn advance(&self, record: &Record, batch: &Batch, to: Progress) -> Write {
        let key = ItemKey::new(&self.tables.own, batch_key(&record.id, batch.number));
        let write = if to == Progress::Completed {
            let update = "SET progress = :to, expireAt = :expireAt";
            Write::update(&key, update).number(":expireAt", self.remove_at() / 1000)
        } else {
            Write::update(&key, "SET progress = :to")
        };
        write.when("progress = :from").text(":from", batch.progress.as_str()).text(":to", to.as_str())
    }

    fn record_of(&self, id: &TransactionId) -> ItemKey {
        ItemKey::new(&self.tables.own, record_key(id))
    }
}

/// What a transaction came to.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) record: Record,
    /// Why it is decided and not finished: the sweeper will try again.
    pub(crate) unfinished: Option<Error>,
}

fn unfinished(decided: Option<Record>, error: Error) -> Result<Settled, Error> {
    let Some(record) = decided else {
        return Err(error);
    };
    tracing::warn!(transaction = %record.id, error = error.for_log(), "is decided, and could not be completed");
    Ok(Settled { record, unfinished: Some(error) })
}

const FINISH: &str = "finished = :true, sweepAt = :removeAt, expireAt = :expireAt";

/// Writes, and which entries of the batch they free.
struct Completion {
    writes: Vec<Write>,
    owners: Vec<Option<usize>>,
}

impl Completion {
    fn push(&mut self, owner: Option<usize>, write: Write) {
        self.owners.push(owner);
        self.writes.push(write);
    }
}

pub(crate) fn rolled_back(record: &Record) -> Error {
    Error::RolledBack { reason: record.reason.clone().unwrap_or_else(|| "it was asked for.".to_owned()) }
}

/// The first batch that waits to be applied.
fn unapplied(transaction: &Transaction) -> Option<usize> {
    transaction.batches.iter().position(|batch| batch.progress == Progress::Locked)
}

/// What the transaction has not taken in, in the order in which all coordinators lock.
fn missing<'a>(transaction: &Transaction, prepared: &'a [Prepared]) -> Result<Vec<&'a Prepared>, Error> {
    let mut missing = Vec::new();
    for candidate in prepared {
        match transaction.find(&candidate.key) {
            None => missing.push(candidate),
            Some((batch, index)) => {
                let entry = &batch.entries[index];
                if entry.digest == candidate.digest || candidate.effect == Effect::Get {
                    // It is a repeat, or reads what the transaction has already.
                } else if entry.effect.only_locks() {
                    missing.push(candidate);
                } else {
                    let detail = "The transaction has another write of this item already, and takes one only.";
                    return Err(Error::invalid(format!("requests[{}]", candidate.index), detail));
                }
            }
        }
    }
    missing.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(missing)
}

/// A request that is to be locked, and what was read of its item.
struct Chosen<'a> {
    candidate: &'a Prepared,
    /// Whether there was an item.
    exists: bool,
    /// Where the transaction has the item already, to be written now, and whether it was inserted to be locked.
    held: Option<(String, bool)>,
    /// About how large a write of it may be.
    bytes: usize,
}

impl Chosen<'_> {
    fn is_transient(&self) -> bool {
        self.held.as_ref().map_or(!self.exists, |(_, transient)| *transient)
    }

    fn entry(&self) -> Entry {
        Entry {
            key: self.candidate.key.clone(),
            effect: self.candidate.effect.clone(),
            transient: self.is_transient(),
            digest: self.candidate.digest.clone(),
        }
    }
}

/// Why nothing can be locked at the moment.
enum Obstacle {
    /// This transaction has an item.
    Holder(TransactionId),
    /// The transaction is not what it was taken for.
    Stale,
}

/// As many of the candidates as fit into a batch.
fn choose<'a>(
    transaction: &Transaction,
    candidates: &[&'a Prepared],
    items: &[Option<Item>],
) -> Result<Vec<Chosen<'a>>, Obstacle> {
    let id = &transaction.record.id;
    let mut chosen = Vec::new();
    let (mut all_bytes, mut row_bytes) = (0, 0);
    for (&candidate, item) in candidates.iter().zip(items) {
        let lock = item.as_ref().and_then(Lock::of);
        let held = transaction
            .find(&candidate.key)
            .map(|(batch, index)| (batch.pointer(index), batch.entries[index].transient));
        match (lock, &held) {
            (None, None) => {}
            (Some(lock), _) if lock.holder != *id => return Err(Obstacle::Holder(lock.holder)),
            (Some(lock), Some((pointer, _))) if lock.pointer == *pointer => {}
            _ => return Err(Obstacle::Stale),
        }
        let request = size_of(candidate);
        let bytes = request + 2 * item.as_ref().map_or(0, size);
        if !chosen.is_empty() && (all_bytes + bytes > MAX_BYTES || row_bytes + request > MAX_ROW_BYTES) {
            break;
        }
        all_bytes += bytes;
        row_bytes += request;
        chosen.push(Chosen { candidate, exists: item.is_some(), held, bytes });
    }
    Ok(chosen)
}

/// Why a batch was not locked.
enum Refusal {
    /// This transaction has an item.
    Holder(TransactionId),
    /// A request cannot be carried out.
    Doom(Error),
    /// Something changed since it was read.
    Passing,
}

fn refusal(id: &TransactionId, reasons: impl Iterator<Item = Reason>, owners: Vec<(&Chosen<'_>, bool)>) -> Refusal {
    for (reason, (chosen, is_users)) in reasons.zip(owners) {
        let candidate = chosen.candidate;
        match reason {
            Reason::None | Reason::Busy => {}
            Reason::Invalid(message) => {
                return Refusal::Doom(Error::invalid(format!("requests[{}]", candidate.index), message));
            }
            Reason::TooLarge(message) => return Refusal::Doom(Error::TooLarge(message)),
            Reason::Condition(now) => {
                let lock = now.as_ref().and_then(Lock::of);
                if let Some(lock) = lock.as_ref().filter(|lock| lock.holder != *id) {
                    return Refusal::Holder(lock.holder.clone());
                }
                let is_as_read = match (&chosen.held, &lock) {
                    (None, lock) => lock.is_none() && now.is_some() == chosen.exists,
                    (Some((pointer, _)), Some(lock)) => lock.pointer == *pointer,
                    // The condition was put to an item that is not there.
                    (Some(_), None) => true,
                };
                if is_as_read && is_users {
                    let item = shown(candidate, now);
                    return Refusal::Doom(Error::ConditionFailed { request: candidate.index, item });
                }
            }
        }
    }
    Refusal::Passing
}

/// A part of a lock.
struct LockWrite {
    write: Write,
    /// Whether the user's condition is in it.
    is_users: bool,
}

/// The writes that lock an item for a request.
fn lock_writes(id: &TransactionId, chosen: &Chosen<'_>, pointer: &str, now: u64) -> Vec<LockWrite> {
    let (candidate, transient) = (chosen.candidate, chosen.is_transient());
    let (key, request) = (&candidate.key, &candidate.request);
    let condition = request.condition.as_deref();
    let mut update = format!(
        "SET {ID} = :leaseholdTxId, {REQUEST} = :leaseholdTxRequest, \
                              {OPERATION} = :leaseholdTxOperation, {LOCKED_AT} = :leaseholdTxLockedAt"
    );
    if transient {
        let _ = write!(update, ", {TRANSIENT} = :leaseholdTxTransient");
    }
    let lock = |condition: String| {
        let write = Write::update(key, update.clone()).when(condition);
        let write = write.with_users(&request.names, &request.values);
        let write = write
            .text(":leaseholdTxId", id.as_str())
            .text(":leaseholdTxRequest", pointer)
            .text(":leaseholdTxOperation", candidate.effect.name())
            .number(":leaseholdTxLockedAt", now);
        if transient { write.value(":leaseholdTxTransient", AttributeValue::Bool(true)) } else { write }
    };
    match &chosen.held {
        None => {
            let exists = if transient { "attribute_not_exists" } else { "attribute_exists" };
            let free = format!("{exists}(#leaseholdTxKey) AND attribute_not_exists({ID})");
            vec![LockWrite {
                write: lock(both(&free, condition)).name("#leaseholdTxKey", key.any_name()),
                is_users: condition.is_some(),
            }]
        }
        Some((held, _)) => {
            let ours = format!("{ID} = :leaseholdTxId AND {REQUEST} = :leaseholdTxHeld");
            // An item that was inserted to be locked is there, but for its user it is not: the condition is put to an item
            // that is certainly missing.
            let (ours, absent) = if transient {
                (ours, condition.map(|condition| Write::check(&nobody(key)).when(condition)))
            } else {
                (both(&ours, condition), None)
            };
            let absent = absent
                .map(|check| LockWrite { write: check.with_users(&request.names, &request.values), is_users: true });
            let locked = LockWrite {
                write: lock(ours).text(":leaseholdTxHeld", held),
                is_users: condition.is_some() && !transient,
            };
            std::iter::once(locked).chain(absent).collect()
        }
    }
}

/// A key of the same table that no item has.
fn nobody(key: &ItemKey) -> ItemKey {
    let fresh = leasehold_dynamodb::fresh_uuid();
    let value = |value: &AttributeValue| match value {
        // 38 digits are what a number has; these are 30 of a random one.
        AttributeValue::N(_) => {
            let digits: String =
                fresh.bytes().filter(u8::is_ascii_hexdigit).map(|byte| char::from(b'0' + byte % 10)).collect();
            AttributeValue::N(format!("9{}", &digits[..30]))
        }
        AttributeValue::B(_) => AttributeValue::B(fresh.clone().into_bytes().into()),
        _ => AttributeValue::S(fresh.clone()),
    };
    let attributes = key.attributes().iter().map(|(name, part)| (name.clone(), value(part))).collect();
    ItemKey::new(key.table(), attributes)
}

/// The write that gives an item its new content.
fn apply_write(id: &TransactionId, entry: &Entry, pointer: &str, locked: &Item) -> Write {
    let write = match &entry.effect {
        Effect::Put(item) => {
            let mut content = item.clone();
            content.extend(
                locked
                    .iter()
                    .filter(|(name, _)| name.starts_with(attributes::RESERVED_PREFIX))
                    .map(|(name, value)| (name.clone(), value.clone())),
            );
            content.insert(APPLIED.to_owned(), AttributeValue::Bool(true));
            Write::put(entry.key.table(), content)
        }
        Effect::Update { expression, names, values } => {
            let update = and_set(expression, &format!("{APPLIED} = :leaseholdTxApplied"));
            Write::update(&entry.key, update)
                .with_users(names, values)
                .value(":leaseholdTxApplied", AttributeValue::Bool(true))
        }
        Effect::Get | Effect::Check | Effect::Delete => Write::check(&entry.key),
    };
    ours(write, id, pointer)
}

/// A write of an item that this request of this transaction has locked.
fn ours(write: Write, id: &TransactionId, pointer: &str) -> Write {
    write
        .when(format!("{ID} = :leaseholdTxId AND {REQUEST} = :leaseholdTxRequest"))
        .text(":leaseholdTxId", id.as_str())
        .text(":leaseholdTxRequest", pointer)
}

/// The item of a failed condition, if the caller wants to see it.
pub(crate) fn shown(candidate: &Prepared, item: Option<Item>) -> Option<Item> {
    let is_transient = item.as_ref().and_then(Lock::of).is_some_and(|lock| lock.transient);
    item.filter(|_| candidate.request.return_item_on_failure && !is_transient).map(attributes::strip)
}

/// About as many bytes as a request takes in its batch's row.
fn size_of(candidate: &Prepared) -> usize {
    let effect = match &candidate.effect {
        Effect::Put(item) => size(item),
        Effect::Update { expression, names, values } => {
            expression.len() + size(values) + names.iter().map(|(a, b)| a.len() + b.len()).sum::<usize>()
        }
        Effect::Get | Effect::Check | Effect::Delete => 0,
    };
    // The key, the digest, the names of the members.
    effect + size(candidate.key.attributes()) + candidate.key.table().len() + 150
}
