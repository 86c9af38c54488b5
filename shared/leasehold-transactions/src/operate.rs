//! The operations for operators: list the unfinished transactions, find the items whose transactions are unknown, and
//! unlock such an item.

use std::collections::BTreeSet;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::attributes::ItemLock;
use crate::complete::free;
use crate::error::Error;
use crate::id::PublicId;
use crate::key::{Item, ItemKey};
use crate::ledger::Ledger;
use crate::model::{State, Stray, StrayPage, StraysRequest, TransactionPage};
use crate::prepare::key_in;
use crate::record::{Record, SWEEP_AT, SWEEP_SHARD, SWEEP_SHARDS, TRANSACTION_ID, record_key, shard_name};

/// The maximum number of parts of the index that are read for one page.
const MAX_LOOKS: u32 = 40;

/// The calls for operators.
#[derive(Debug, Clone)]
pub struct Operator {
    ledger: Ledger,
}

impl Operator {
    pub(crate) const fn new(ledger: Ledger) -> Self {
        Self { ledger }
    }

    /// Lists up to about `limit` unfinished transactions: open ones, and decided ones whose items are locked. With
    /// `only_stuck`, lists only those of which DynamoDB refuses to free an item. A page is short only if it is the
    /// last, or after 40 parts of the index.
    ///
    /// # Errors
    /// `InvalidRequest` for an invalid start; `Throttled`, `Unavailable`.
    pub async fn unfinished(
        &self,
        only_stuck: bool,
        limit: usize,
        start: Option<&str>,
    ) -> Result<TransactionPage, Error> {
        let (mut shard, mut start) = start.map_or(Ok((0, None)), read_cursor)?;
        let mut transactions = Vec::new();
        for _ in 0..MAX_LOOKS {
            let wanted = limit - transactions.len();
            let (ids, next) = self.ledger.tables.unfinished(&shard_name(shard), u64::MAX >> 10, wanted, start).await?;
            let keys: Vec<_> = ids.iter().map(|id| self.ledger.record_item(id)).collect();
            for row in self.ledger.tables.read(&keys).await?.into_iter().flatten() {
                let Some(record) = Record::decode(&row) else {
                    tracing::warn!("a TX record is unreadable");
                    continue;
                };
                if !record.finished && (!only_stuck || record.stuck.is_some()) {
                    transactions.push(record.status());
                }
            }
            if next.is_none() {
                shard += 1;
            }
            start = next;
            if shard == SWEEP_SHARDS {
                return Ok(TransactionPage { transactions, next: None });
            }
            if transactions.len() >= limit {
                break;
            }
        }
        let next = start.map_or_else(|| Some(shard.to_string()), |key| write_cursor(shard, &key));
        Ok(TransactionPage { transactions, next })
    }

    /// Examines a part of a table for strays: locked items whose transaction is unknown or finished, such as items from
    /// a backup. Each has its lock before and after the look at the transaction, which frees its items before it
    /// finishes.
    ///
    /// # Errors
    /// `InvalidRequest`, `Forbidden`, `Throttled`, `Unavailable`.
    pub async fn strays(&self, request: &StraysRequest) -> Result<StrayPage, Error> {
        let table = &request.table;
        self.ledger.tables.check_name(table, "tableName".to_owned())?;
        let key_of = self.ledger.tables.key_finder(table).await?;
        let (items, examined, next) = self.ledger.tables.locked(request).await?;
        let locks = items.iter().filter_map(|item| Some((key_of(item), ItemLock::of(item)?)));
        let is_wanted = |lock: &ItemLock| request.holder.as_ref().is_none_or(|holder| *holder == lock.value.holder);
        let locked: Vec<_> = locks.filter(|(_, lock)| is_wanted(lock)).collect();
        let holders: BTreeSet<_> = locked.iter().map(|(_, lock)| lock.value.holder.clone()).collect();
        let holders: Vec<_> =
            holders.iter().filter(|id| !id.as_str().is_empty()).map(|id| self.ledger.record_item(id)).collect();
        let rows = self.ledger.tables.read(&holders).await?;
        let records: Vec<_> = rows.iter().flatten().filter_map(Record::decode).collect();
        let is_known = |lock: &ItemLock| records.iter().any(|record| can_free(record, lock));
        let unknown: Vec<_> = locked.into_iter().filter(|(_, lock)| !is_known(lock)).collect();
        let keys: Vec<_> = unknown.iter().map(|(key, _)| key.clone()).collect();
        let again = self.ledger.tables.read(&keys).await?;
        let still = |((key, lock), item): ((ItemKey, ItemLock), Option<Item>)| {
            let is_same = item.as_ref().and_then(ItemLock::of).is_some_and(|now| now.seen == lock.seen);
            let text = lock.seen.as_s().ok().filter(|_| is_same)?.clone();
            Some(Stray { key, lock: text, holder: lock.value.holder })
        };
        Ok(StrayPage { examined, strays: unknown.into_iter().zip(again).filter_map(still).collect(), next })
    }

    /// Unlocks an item whose transaction is unknown, such as an item from a backup, on condition that its lock is
    /// `seen`. The operator names the outcome of the transaction. A rollback restores the old item, and a commit keeps
    /// the changes of the transaction.
    ///
    /// # Errors
    /// `InvalidRequest`, where the item has another lock, or its transaction can still end it; `Corrupt`, where its
    /// image is missing; `Forbidden`, `Throttled`, `Unavailable`.
    pub async fn unlock(&self, table: &str, key: &Item, seen: &str, outcome: State) -> Result<(), Error> {
        self.ledger.tables.check_name(table, "tableName".to_owned())?;
        let key = key_in(&self.ledger.tables, table, key, true, "key".to_owned()).await?;
        let item = self.ledger.tables.read(std::slice::from_ref(&key)).await?.pop().flatten();
        let Some(lock) = item.as_ref().and_then(ItemLock::of) else {
            // A repeat of this call, or an unlock by another caller.
            return Ok(());
        };
        if lock.seen != AttributeValue::S(seen.to_owned()) {
            let now = lock.seen.as_s().map_or("unreadable", String::as_str);
            return Err(Error::invalid("lock", format!("The item has another lock by now: {now}.")));
        }
        let record = self.ledger.tables.record(&lock.value.holder).await?;
        if record.is_some_and(|record| can_free(&record, &lock)) {
            let detail = format!("The transaction {} is known. End it instead: it frees the item.", lock.value.holder);
            return Err(Error::invalid("lock", detail));
        }
        let nobody = Record { state: outcome, ..Record::new(lock.value.holder, lock.value.nonce, 0, 0) };
        match free(&self.ledger, &nobody, vec![key], None).await? {
            None => Ok(()),
            Some((key, reason)) => Err(Error::damaged(&key, format!("The item cannot be unlocked: {reason}"))),
        }
    }
}

/// Whether the transaction of this record has the lock, and will free it.
fn can_free(record: &Record, lock: &ItemLock) -> bool {
    record.holds(lock) && !record.finished
}

/// A position in the index: `shard`, or `shard.sweepAt.transactionId`.
fn write_cursor(shard: u8, key: &Item) -> Option<String> {
    let at = key.get(SWEEP_AT)?.as_n().ok()?;
    let id = key.get(TRANSACTION_ID)?.as_s().ok()?;
    Some(format!("{shard}.{at}.{id}"))
}

fn read_cursor(text: &str) -> Result<(u8, Option<Item>), Error> {
    let read = || {
        let mut parts = text.split('.');
        let shard = parts.next()?.parse().ok().filter(|shard| *shard < SWEEP_SHARDS)?;
        let Some(at) = parts.next() else { return Some((shard, None)) };
        let at: u64 = at.parse().ok()?;
        let mut key = record_key(&PublicId::parse(parts.next()?)?);
        key.insert(SWEEP_SHARD.to_owned(), AttributeValue::S(shard_name(shard)));
        key.insert(SWEEP_AT.to_owned(), AttributeValue::N(at.to_string()));
        (parts.next().is_none()).then_some((shard, Some(key)))
    };
    read().ok_or_else(|| Error::invalid("cursor", "cursor must be the nextCursor of another answer."))
}
