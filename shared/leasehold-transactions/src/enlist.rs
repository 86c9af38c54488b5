//! Adding: the transaction records requests, locks their items and changes them, in one write for up to 98 items.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};

use crate::answer::answers;
use crate::attributes::{
    self, BEFORE, Before, ID, IMAGE, ItemLock, LOCKED_AT, LockValue, OPERATION, TRANSIENT, size, strip, undo_name,
};
use crate::conflict;
use crate::coordinator::{MAX_BYTES, MAX_WRITES, StepResult};
use crate::effort::Effort;
use crate::error::Error;
use crate::expression::{and_set, both};
use crate::id::PublicId;
use crate::key::{Item, ItemKey};
use crate::ledger::Ledger;
use crate::model::{Action, Answer, Operation, State};
use crate::prepare::Prepared;
use crate::record::{self, Record, RecordEntry, Transaction, encode_entries, image_name};
use crate::settle::{Settler, Wanted};
use crate::tables::{Reason, Written};
use crate::write::Write;

/// Writes in an add besides those of the items: the TX record and a batch.
const OWN_WRITES: usize = 2;

/// An item of up to 400 KB has room for its content and an image of this size.
const MAX_IMAGE_IN_ITEM: usize = 180_000;

/// The maximum number of puts that are applied concurrently.
const PARALLEL: usize = 16;

/// Adds requests to transactions.
#[derive(Debug, Clone)]
pub(crate) struct Enlister {
    pub(crate) ledger: Ledger,
    pub(crate) settler: Settler,
}

impl Enlister {
    /// Records and applies all requests that the transaction does not have yet, and returns their answers. `new` is a
    /// transaction without a record: its record is written together with the first lock.
    pub(crate) async fn add(
        &self,
        id: &PublicId,
        prepared: &[Prepared],
        new: Option<Record>,
    ) -> Result<(Transaction, Vec<Answer>), Error> {
        let transaction = self.enlist(id, prepared, new).await?;
        let answers = answers(&self.ledger, &transaction.record, prepared).await?;
        Ok((transaction, answers))
    }

    /// Records and applies all requests that the transaction does not have yet.
    pub(crate) async fn enlist(
        &self,
        id: &PublicId,
        prepared: &[Prepared],
        new: Option<Record>,
    ) -> Result<Transaction, Error> {
        let mut effort = Effort::new(&self.ledger.policy);
        let digest = new.as_ref().and_then(|record| record.digest.clone());
        let mut known = new.map(Transaction::new);
        let is_begin = known.is_some();
        let mut is_new = is_begin;
        loop {
            let mut transaction = if let Some(transaction) = known.take() {
                transaction
            } else {
                is_new = false;
                let transaction = self.ledger.open(id, is_begin).await?;
                transaction.record.refuse_other(digest.as_deref())?;
                transaction
            };
            let missing = missing(&transaction, prepared);
            refuse_updates_of_deleted(&transaction, &missing)?;
            let step = match self.apply_puts(&mut transaction, prepared).await {
                Ok(StepResult::Done) if missing.is_empty() => {
                    effort.count_wait();
                    return Ok(transaction);
                }
                Ok(StepResult::Done) => self.lock(&mut transaction, &missing, is_new, &mut effort).await,
                step => step,
            };
            match step {
                Ok(StepResult::Done) => {
                    is_new = false;
                    known = Some(transaction);
                }
                Ok(StepResult::Again) => {
                    effort.pause().await?;
                    known = Some(transaction);
                }
                // Meanwhile another transaction may have rolled this one back, which then must not roll back others. Or
                // a new one is a repeat, and is over.
                Ok(StepResult::Waited) => known = self.unless_begun(transaction, is_new).await?,
                Ok(StepResult::Stale) => {
                    if let Err(error) = effort.stale(&transaction).await {
                        self.abort(&transaction.record, is_new, error).await?;
                    }
                }
                Ok(StepResult::Abort(error)) => self.abort(&transaction.record, is_new, error).await?,
                // The tables show whether it was written.
                Err(error) if error.is_passing() => {
                    effort.failed(error).await?;
                    known = self.unless_begun(transaction, is_new).await?;
                }
                // The items, or DynamoDB, refuse a request.
                Err(error @ (Error::InvalidRequest { .. } | Error::TooLarge(_))) => {
                    self.abort(&transaction.record, is_new, error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns a new transaction of which the tables have no trace, so that it is begun anew. Returns `None` for a
    /// transaction that must be read again.
    async fn unless_begun(&self, transaction: Transaction, is_new: bool) -> Result<Option<Transaction>, Error> {
        let is_begun = !is_new || self.ledger.tables.record(&transaction.record.id).await?.is_some();
        Ok((!is_begun).then_some(transaction))
    }

    /// Rolls back a transaction that cannot go on, and returns the reason as an error. Leaves a record of the rollback
    /// even if there was none. The transaction goes on only if it has an unexpected record.
    async fn abort(&self, record: &Record, is_new: bool, error: Error) -> Result<(), Error> {
        if is_new {
            return match self.ledger.leave_rolled_back(record, error.to_string()).await? {
                None => Err(error),
                Some(_) => Ok(()),
            };
        }
        let settled = self.settler.settle(&record.id, Wanted::rollback(error.to_string())).await?;
        Err(if settled.record.state == State::Committed { Error::Committed } else { error })
    }

    /// Locks and changes as many of the missing items as fit into one write.
    async fn lock(
        &self,
        transaction: &mut Transaction,
        missing: &[&Prepared],
        is_new: bool,
        effort: &mut Effort,
    ) -> Result<StepResult, Error> {
        let candidates = &missing[..missing.len().min(effort.batch_limit(MAX_WRITES - OWN_WRITES))];
        let keys: Vec<_> = candidates.iter().map(|candidate| candidate.key.clone()).collect();
        let items = match self.ledger.tables.read(&keys).await {
            Ok(items) => items,
            Err(error) => {
                // The items may be too large to be read together in time.
                effort.halve_batches(keys.len());
                return Err(error);
            }
        };
        let chosen = match choose(transaction, candidates, items) {
            Ok(chosen) => chosen,
            Err(Obstacle::Held(keys, lock)) => {
                return conflict::resolve(&self.settler, &transaction.record, keys, &lock, effort).await;
            }
            Err(Obstacle::Stale) => return Ok(StepResult::Stale),
            Err(Obstacle::Unapplied) => return Ok(StepResult::Again),
        };
        let record = &transaction.record;
        let version = record.version + 1;
        let now = self.ledger.clock.now_ms();
        let mut added = Vec::new();
        let (mut writes, mut owners) = (Vec::new(), Vec::new());
        let mut has_unapplied = false;
        for chosen in &chosen {
            let candidate = chosen.candidate;
            added.push(RecordEntry {
                key: candidate.key.clone(),
                operation: candidate.operation(),
                version,
                digest: candidate.digest.clone(),
            });
            has_unapplied |= chosen.waits_for_apply();
            if let Some((row, image)) = chosen.image_row(record, version) {
                self.ledger.keep_image(&record.id, &row, image).await?;
            }
            for part in chosen.writes(record, version, now) {
                owners.push((chosen, part.is_users));
                writes.push(part.write);
            }
        }
        let news = News { entries: &added, has_unapplied, query: None };
        let (own, record) = self.bump_record(record, is_new, now, &news);
        let own_count = own.len();
        writes.splice(0..0, own);
        match self.ledger.tables.transact(writes).await {
            Ok(Written::Done) => {
                transaction.record = record;
                transaction.entries.extend(added);
                Ok(StepResult::Done)
            }
            Ok(Written::Cancelled(reasons)) => match reasons.first() {
                Some(Reason::Condition(_)) => Ok(StepResult::Stale),
                // Another coordinator works on the same transaction, and may have caused the reasons that the items
                // give.
                Some(Reason::Busy) => Ok(StepResult::Again),
                _ => match refusal(&transaction.record, reasons.into_iter().skip(own_count), owners) {
                    Refusal::Holder(key, lock) => {
                        conflict::resolve(&self.settler, &transaction.record, vec![key], &lock, effort).await
                    }
                    Refusal::Final(error) => Ok(StepResult::Abort(error)),
                    Refusal::Passing => Ok(StepResult::Again),
                },
            },
            Err(Error::TooLarge(message)) if chosen.len() == 1 => Ok(StepResult::Abort(Error::TooLarge(message))),
            // DynamoDB counts the size differently.
            Err(Error::TooLarge(_)) => {
                effort.halve_batches(chosen.len());
                Ok(StepResult::Again)
            }
            Err(Error::InvalidRequest { message, .. }) => Ok(StepResult::Abort(Error::invalid("requests", message))),
            Err(error) => Err(error),
        }
    }

    /// Records that the answer to a query is of these items, all of which the transaction has locked. Returns `None`
    /// where the transaction is another one than it was.
    pub(crate) async fn settle_query(
        &self,
        transaction: &Transaction,
        digest: &[u8],
        found: &BTreeSet<ItemKey>,
    ) -> Result<Option<Record>, Error> {
        let record = &transaction.record;
        let known = transaction.found_by(digest);
        let entry = |key: &ItemKey| RecordEntry {
            key: key.clone(),
            operation: Operation::Get,
            version: record.version + 1,
            digest: digest.to_vec(),
        };
        let entries: Vec<_> = found.difference(&known).map(entry).collect();
        let news = News { entries: &entries, has_unapplied: false, query: Some(digest) };
        let (mut writes, next) = self.bump_record(record, false, self.ledger.clock.now_ms(), &news);
        let is_written = if writes.len() == 1 {
            self.ledger.tables.write(writes.remove(0)).await?
        } else {
            matches!(self.ledger.tables.transact(writes).await?, Written::Done)
        };
        Ok(is_written.then_some(next))
    }

    /// Returns the transaction's own writes of an add: the next version of the TX record, which contains the entries or
    /// comes with a batch of them. Also returns that next record.
    fn bump_record(&self, record: &Record, is_new: bool, now: u64, news: &News<'_>) -> (Vec<Write>, Record) {
        let &News { entries: added, has_unapplied, query } = news;
        let mut next = Record { version: record.version + 1, last_worked_at: now, ..record.clone() };
        if has_unapplied {
            next.unapplied.insert(next.version);
        }
        next.queried.extend(query.map(<[u8]>::to_vec));
        let is_inline = next.has_room_for(added);
        if is_inline {
            next.entries.extend_from_slice(added);
        } else {
            next.batches += 1;
        }
        let mut writes = Vec::new();
        if is_new {
            writes.push(self.ledger.new_row(&next, None));
        } else {
            let mut update = "SET #version = :next, lastWorkedAt = :now".to_owned();
            let mut write = Write::update(&self.ledger.record_item(&record.id), "")
                .when("#state = :pending AND #version = :version AND nonce = :nonce")
                .name("#state", "state")
                .name("#version", "version")
                .text(":pending", State::Pending.as_str())
                .number(":version", record.version)
                .text(":nonce", &record.nonce)
                .number(":next", next.version)
                .number(":now", now);
            if added.is_empty() {
            } else if is_inline {
                update.push_str(", #tables = :tables, requests = :requests");
                write = write.name("#tables", "tables");
                for (name, value) in encode_entries(&next.entries) {
                    write = write.value(format!(":{name}"), value);
                }
            } else {
                update.push_str(", batches = :batches");
                write = write.number(":batches", next.batches);
            }
            if has_unapplied {
                update.push_str(" ADD unapplied :unapplied");
                write = write.value(":unapplied", record::versions([&next.version]));
            }
            if let Some(query) = query {
                update.push_str(" ADD queried :queried");
                write = write.value(":queried", record::digests([&query.to_vec()]));
            }
            write.update = update;
            writes.push(write);
        }
        if !is_inline {
            let row = record::batch(record, next.version, added, self.ledger.rows_expire_at());
            writes.push(Write::put(&self.ledger.tables.own, row));
        }
        (writes, next)
    }

    /// Applies the unapplied puts that are among these requests. Leaves the puts of other calls to those calls.
    async fn apply_puts(&self, transaction: &mut Transaction, prepared: &[Prepared]) -> Result<StepResult, Error> {
        for version in transaction.record.unapplied.clone() {
            let record = &transaction.record;
            let keys = transaction.puts_of(version);
            let items = self.ledger.tables.read(&keys).await?;
            let mut waiting = Vec::new();
            let mut is_ours = true;
            for (key, item) in keys.iter().zip(items) {
                let entry = transaction.entries_of(key).find(|entry| entry.version == version);
                let digest = entry.map(|entry| &entry.digest);
                let is_this = |candidate: &&Prepared| candidate.key == *key && Some(&candidate.digest) == digest;
                match (prepared.iter().find(is_this), item) {
                    // Another coordinator rolled the transaction back, or another writer overwrote the item together
                    // with its lock.
                    (Some(_), item) if record.lock_on(item.as_ref()).is_none() => return Ok(StepResult::Stale),
                    (_, item) if !record.awaits_put_on(item.as_ref()) => {}
                    (Some(candidate), Some(item)) => waiting.push((candidate, item)),
                    _ => is_ours = false,
                }
            }
            let puts: Vec<_> =
                waiting.into_iter().map(|(candidate, item)| self.apply(record, candidate, item).boxed()).collect();
            let steps: Vec<StepResult> = stream::iter(puts).buffer_unordered(PARALLEL).try_collect().await?;
            if let Some(step) = steps.into_iter().find(|step| !matches!(step, StepResult::Done)) {
                return Ok(step);
            }
            if is_ours {
                self.ledger.confirm(transaction, version).await?;
            }
        }
        Ok(StepResult::Done)
    }

    /// Replaces the content of an item that a put has locked.
    async fn apply(&self, record: &Record, candidate: &Prepared, item: Item) -> Result<StepResult, Error> {
        let (Some(lock), Action::Put { item: content }) = (ItemLock::of(&item), &candidate.request.action) else {
            return Ok(StepResult::Stale);
        };
        let before = strip(item.clone());
        let mut content = content.clone();
        if size(&before) > MAX_IMAGE_IN_ITEM {
            let row = image_name(record, lock.value.version, &candidate.key);
            self.ledger.keep_image(&record.id, &row, before).await?;
            content.insert(IMAGE.to_owned(), record::text(row));
        } else {
            content.insert(BEFORE.to_owned(), AttributeValue::M(before));
        }
        let applied = LockValue { applied: true, ..lock.value };
        content.insert(ID.to_owned(), record::text(applied.to_string()));
        for name in [OPERATION, LOCKED_AT] {
            content.extend(item.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        let write = Write::put(candidate.key.table(), content);
        let write = write.when(format!("{ID} = :seen")).value(":seen", lock.seen);
        match self.ledger.tables.write(write).await {
            Ok(true) => Ok(StepResult::Done),
            Ok(false) => Ok(StepResult::Stale),
            Err(Error::InvalidRequest { message, .. }) => {
                Ok(StepResult::Abort(Error::invalid(candidate.path(), message)))
            }
            Err(Error::TooLarge(message)) => Ok(StepResult::Abort(Error::TooLarge(message))),
            Err(error) => Err(error),
        }
    }
}

/// What a new version of the TX record adds to the one before.
struct News<'a> {
    entries: &'a [RecordEntry],
    /// Whether puts among the entries are applied later.
    has_unapplied: bool,
    /// The digest of a query whose answer is settled.
    query: Option<&'a [u8]>,
}

/// Refuses updates of items that the transaction deletes, before anything is written.
fn refuse_updates_of_deleted(transaction: &Transaction, missing: &[&Prepared]) -> Result<(), Error> {
    let is_deleted = |key| {
        let mut writes = transaction.entries_of(key).filter(|entry| !entry.operation.only_locks());
        writes.next_back().is_some_and(|last| last.operation == Operation::Delete)
    };
    match missing.iter().find(|missing| missing.operation() == Operation::Update && is_deleted(&missing.key)) {
        None => Ok(()),
        Some(update) => {
            let detail = "The transaction deletes this item. After a delete it takes a put of the item, no update.";
            Err(Error::invalid(update.path(), detail))
        }
    }
}

/// Returns the requests that the transaction does not have yet, in the order in which all coordinators lock.
fn missing<'a>(transaction: &Transaction, prepared: &'a [Prepared]) -> Vec<&'a Prepared> {
    let is_missing = |candidate: &&Prepared| {
        let mut entries = transaction.entries_of(&candidate.key).peekable();
        let is_held = entries.peek().is_some();
        let is_repeat = entries.any(|entry| entry.digest == candidate.digest);
        !(is_repeat || is_held && candidate.operation() == Operation::Get)
    };
    let mut missing: Vec<_> = prepared.iter().filter(is_missing).collect();
    missing.sort_by(|a, b| a.key.cmp(&b.key));
    missing
}

/// A request to carry out, and its item as it was read.
struct Chosen<'a> {
    candidate: &'a Prepared,
    item: Option<Item>,
    /// The lock of this transaction, where it already holds the item.
    held: Option<ItemLock>,
}

/// The reason why no item can be locked at the moment.
enum Obstacle {
    /// Another transaction, which has this lock, holds these items.
    Held(Vec<ItemKey>, Box<ItemLock>),
    /// The view of the transaction is stale.
    Stale,
    /// Another call of this transaction has locked the item for a put, whose content only that call knows.
    Unapplied,
}

/// Chooses as many of the candidates as fit into one write.
fn choose<'a>(
    transaction: &Transaction,
    candidates: &[&'a Prepared],
    items: Vec<Option<Item>>,
) -> Result<Vec<Chosen<'a>>, Obstacle> {
    let foreign =
        |item: &Option<Item>| item.as_ref().and_then(ItemLock::of).filter(|lock| !transaction.record.holds(lock));
    if let Some(lock) = items.iter().find_map(foreign) {
        let is_its = |item: &Option<Item>| foreign(item).is_some_and(|other| other.value.is_of(&lock.value));
        let held = candidates.iter().zip(&items).filter(|(_, item)| is_its(item));
        return Err(Obstacle::Held(held.map(|(candidate, _)| candidate.key.clone()).collect(), Box::new(lock)));
    }
    let mut chosen = Vec::new();
    let (mut bytes, mut writes) = (0, OWN_WRITES);
    for (&candidate, item) in candidates.iter().zip(items) {
        let lock = item.as_ref().and_then(ItemLock::of);
        let is_known = transaction.entries_of(&candidate.key).next().is_some();
        match &lock {
            lock if lock.is_some() != is_known => return Err(Obstacle::Stale),
            Some(lock) if lock.is_unapplied() => return Err(Obstacle::Unapplied),
            Some(lock) if lock.operation == Operation::Delete && candidate.operation() == Operation::Update => {
                return Err(Obstacle::Stale);
            }
            _ => {}
        }
        let size = candidate.bytes() + 2 * item.as_ref().map_or(0, size);
        let next = Chosen { candidate, item, held: lock };
        if !chosen.is_empty() && (bytes + size > MAX_BYTES || writes + next.count() > MAX_WRITES) {
            break;
        }
        bytes += size;
        writes += next.count();
        chosen.push(next);
    }
    Ok(chosen)
}

/// The reason why an add was not written.
enum Refusal {
    /// Another transaction holds this item.
    Holder(ItemKey, ItemLock),
    /// A request is impossible.
    Final(Error),
    /// An item or the transaction changed since it was read.
    Passing,
}

fn refusal(record: &Record, reasons: impl Iterator<Item = Reason>, owners: Vec<(&Chosen<'_>, bool)>) -> Refusal {
    for (reason, (chosen, is_users)) in reasons.zip(owners) {
        let candidate = chosen.candidate;
        match reason {
            Reason::None | Reason::Busy => {}
            Reason::Invalid(message) => {
                return Refusal::Final(Error::invalid(candidate.path(), message));
            }
            Reason::TooLarge(message) => return Refusal::Final(Error::TooLarge(message)),
            Reason::Condition(now) => {
                let lock = now.as_ref().and_then(ItemLock::of);
                if let Some(lock) = lock.as_ref().filter(|lock| !record.holds(lock)) {
                    return Refusal::Holder(candidate.key.clone(), lock.clone());
                }
                let is_as_read = match (&chosen.held, &lock) {
                    (None, lock) => lock.is_none() && now.is_some() == chosen.item.is_some(),
                    (Some(held), Some(lock)) => lock.seen == held.seen,
                    // The condition was checked on a missing item.
                    (Some(held), None) => held.is_absent(),
                };
                if is_as_read && is_users {
                    let item = candidate.shown(now);
                    let key = Box::new(candidate.key.clone());
                    return Refusal::Final(Error::ConditionFailed { request: candidate.index, key, item });
                }
            }
        }
    }
    Refusal::Passing
}

/// A part of an add.
struct Part {
    write: Write,
    /// Whether it contains the user's condition.
    is_users: bool,
}

impl Chosen<'_> {
    /// Whether the put is applied by a separate write, because the item has a content that is not locked yet.
    fn waits_for_apply(&self) -> bool {
        self.candidate.operation() == Operation::Put && self.item.is_some() && self.held.is_none()
    }

    /// The number of writes.
    fn count(&self) -> usize {
        let is_apart =
            self.held.as_ref().is_some_and(ItemLock::is_absent) && self.candidate.request.condition.is_some();
        let is_only_apart = is_apart && self.candidate.operation() == Operation::Check;
        usize::from(!is_only_apart) + usize::from(is_apart)
    }

    /// Returns the row for the old content of a large item that a put replaces in the same write, because it is already
    /// locked.
    fn image_row(&self, record: &Record, version: u64) -> Option<(String, Item)> {
        let (item, lock) = (self.item.as_ref()?, self.held.as_ref()?);
        let is_put = self.candidate.operation() == Operation::Put;
        match attributes::before(item, lock) {
            Before::Here(before) if is_put && size(&before) > MAX_IMAGE_IN_ITEM => {
                Some((image_name(record, version, &self.candidate.key), before))
            }
            _ => None,
        }
    }

    /// Returns the writes that lock the item for the request, and change it.
    fn writes(&self, record: &Record, version: u64, now: u64) -> Vec<Part> {
        let (candidate, request) = (self.candidate, &self.candidate.request);
        let (key, condition) = (&candidate.key, request.condition.as_deref());
        let is_absent = self.held.as_ref().is_some_and(ItemLock::is_absent);
        let mut parts = Vec::new();
        // The item is absent for its user, although there is a row. The condition is therefore checked on an item that
        // certainly does not exist.
        if let Some(condition) = condition.filter(|_| is_absent) {
            let check = Write::check(&key.nobody()).when(condition).with_users(&request.names, &request.values);
            parts.push(Part { write: check, is_users: true });
            if candidate.operation() == Operation::Check {
                return parts;
            }
        }
        let condition = condition.filter(|_| !is_absent);
        let ours = match (&self.held, &self.item) {
            (Some(_), _) => format!("{ID} = :leaseholdTxSeen"),
            (None, Some(_)) => format!("attribute_exists(#leaseholdTxKey) AND attribute_not_exists({ID})"),
            (None, None) => "attribute_not_exists(#leaseholdTxKey)".to_owned(),
        };
        let lock = LockValue { holder: record.id.clone(), nonce: record.nonce.clone(), version, applied: false };
        let mut write = self.change(record, lock, now).when(both(&ours, condition));
        write = write.with_users(&request.names, &request.values);
        write = match &self.held {
            Some(held) => write.value(":leaseholdTxSeen", held.seen.clone()),
            None => write.name("#leaseholdTxKey", key.any_name()),
        };
        parts.insert(0, Part { write, is_users: condition.is_some() });
        parts
    }

    /// Returns the write of the item without its condition.
    fn change(&self, record: &Record, lock: LockValue, now: u64) -> Write {
        let candidate = self.candidate;
        let key = &candidate.key;
        let is_transient = self.held.as_ref().map_or(self.item.is_none(), |held| held.transient);
        let version = lock.version;
        match &candidate.request.action {
            Action::Check { .. } if self.held.is_some() => return Write::check(key),
            Action::Put { item } if !self.waits_for_apply() => {
                let lock = LockValue { applied: true, ..lock };
                let mut content = item.clone();
                content.extend(lock_attributes(&lock, Operation::Put, now));
                if is_transient {
                    content.insert(TRANSIENT.to_owned(), AttributeValue::Bool(true));
                } else if let (Some(item), Some(held)) = (&self.item, &self.held) {
                    let before = match (self.image_row(record, version), attributes::before(item, held)) {
                        (Some((row, _)), _) | (None, Before::InRow(row)) => Some((IMAGE, record::text(row))),
                        (None, Before::Here(before)) => Some((BEFORE, AttributeValue::M(before))),
                        (None, Before::Missing) => None,
                    };
                    content.extend(before.map(|(name, value)| (name.to_owned(), value)));
                }
                return Write::put(key.table(), content);
            }
            _ => {}
        }
        let mut sets = Vec::new();
        let mut write = Write::update(key, "");
        let mut attributes = lock_attributes(&lock, candidate.operation(), now);
        if is_transient {
            attributes.insert(TRANSIENT.to_owned(), AttributeValue::Bool(true));
        }
        for (name, value) in attributes {
            sets.push(format!("{name} = :{name}"));
            write = write.value(format!(":{name}"), value);
        }
        let Action::Update { expression, .. } = &candidate.request.action else {
            write.update = format!("SET {}", sets.join(", "));
            return write;
        };
        let has_undo = |name: &str| self.item.as_ref().is_some_and(|item| item.contains_key(name));
        let keeps_all = is_transient || has_undo(BEFORE) || has_undo(IMAGE);
        let changed = candidate.changed_names();
        for (index, name) in changed.into_iter().filter(|name| !keeps_all && !has_undo(&undo_name(name))).enumerate() {
            let (undo, source) = (format!("#leaseholdTxUndo{index}"), format!("#leaseholdTxName{index}"));
            sets.push(format!("{undo} = if_not_exists({source}, :leaseholdTxNothing)"));
            write = write.name(undo, undo_name(name)).name(source, name);
            write = write.value(":leaseholdTxNothing", ItemLock::nothing(&record.nonce));
        }
        write.update = and_set(expression, &sets.join(", "));
        write
    }
}

/// The attributes that a lock adds to an item.
fn lock_attributes(lock: &LockValue, operation: Operation, now: u64) -> Item {
    Item::from([
        (ID.to_owned(), record::text(lock.to_string())),
        (OPERATION.to_owned(), record::text(operation.as_str())),
        (LOCKED_AT.to_owned(), record::number(now)),
    ])
}
