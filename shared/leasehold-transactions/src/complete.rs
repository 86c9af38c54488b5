//! The end of a decided transaction: one write for each of its items frees the item.
//!
//! A write that frees an item is conditional on the exact lock that was read. It therefore has no effect when it is
//! late, repeated, or sent by a second coordinator. A write that DynamoDB refuses keeps no other item locked.

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::{FutureExt, StreamExt, stream};

use crate::attributes::{self, BEFORE, Before, ID, ItemLock, is_reserved, undo_name, undone_name};
use crate::effort::Effort;
use crate::error::{Error, NO_TABLE};
use crate::key::{Item, ItemKey};
use crate::ledger::Ledger;
use crate::model::State;
use crate::record::Record;
use crate::tables::{MAX_STATEMENTS, Outcome, Tables};
use crate::write::Write;

/// The maximum number of concurrent writes of one completion.
const PARALLEL: usize = 16;

/// The maximum number of attributes that SET and REMOVE restore, since an expression has at most 4 KB. For more, the
/// whole item is replaced.
const MAX_RESTORED: usize = 100;

/// The items of a transaction, as they were read, and what frees them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Freeing {
    completions: Vec<Completion>,
    /// The items that the service must not read, or cannot restore, and the reason.
    stuck: Vec<(ItemKey, String)>,
    /// The items without the lock of the transaction.
    pub(crate) lost: Vec<ItemKey>,
}

/// One item to free.
#[derive(Debug, Clone)]
struct Completion {
    key: ItemKey,
    /// The exact lock, which is the condition.
    seen: AttributeValue,
    change: ContentChange,
}

/// The change to the content of an item that is freed.
#[derive(Debug, Clone)]
enum ContentChange {
    Delete,
    /// Removes these attributes of the protocol.
    Free(Vec<String>),
    /// Gives each attribute of the first list its old value, or removes it. Also removes the attributes of the second
    /// list, which are the protocol's.
    Restore(Vec<(String, Old)>, Vec<String>),
    /// Replaces the item by this one.
    Replace(Item),
}

/// The place of the old value of an attribute.
#[derive(Debug, Clone)]
enum Old {
    Nothing,
    /// The value is in an undo attribute of the item.
    Undo,
    /// The value is in the image inside the item.
    Before,
    Value(AttributeValue),
}

impl Completion {
    /// Returns the completion that frees an item which `lock` holds. `image` is the item before the transaction, where
    /// it has a row of its own.
    fn of(key: &ItemKey, item: &Item, lock: &ItemLock, outcome: State, image: Option<Item>) -> Self {
        let reserved = || item.keys().filter(|name| is_reserved(name)).cloned().collect();
        let change = if outcome == State::Committed {
            if lock.is_absent() { ContentChange::Delete } else { ContentChange::Free(reserved()) }
        } else if lock.transient {
            ContentChange::Delete
        } else if lock.is_unapplied() {
            ContentChange::Free(reserved())
        } else if let Some(image) = image {
            restore(key, item, reserved(), &image, |_, value| Old::Value(value.clone()))
        } else if let Some(AttributeValue::M(before)) = item.get(BEFORE) {
            restore(key, item, reserved(), before, |_, _| Old::Before)
        } else {
            let nothing = ItemLock::nothing(&lock.value.nonce);
            let undo = item.iter().filter_map(|(name, old)| {
                let old = if *old == nothing { Old::Nothing } else { Old::Undo };
                Some((undone_name(name)?.to_owned(), old))
            });
            let undo: Vec<_> = undo.collect();
            if undo.is_empty() { ContentChange::Free(reserved()) } else { ContentChange::Restore(undo, reserved()) }
        };
        Self { key: key.clone(), seen: lock.seen.clone(), change }
    }

    fn into_write(self) -> Write {
        let Self { key, seen, change } = self;
        let write = match change {
            ContentChange::Delete => Write::delete(&key),
            ContentChange::Replace(item) => Write::put(key.table(), item),
            ContentChange::Free(reserved) => update(&key, Vec::new(), reserved),
            ContentChange::Restore(restored, reserved) => update(&key, restored, reserved),
        };
        write.when(format!("{ID} = :seen")).value(":seen", seen)
    }

    /// Returns the same write as a PartiQL statement, or `None` for a write that needs an expression.
    fn statement(&self) -> Option<(String, Vec<AttributeValue>)> {
        let head = match &self.change {
            ContentChange::Delete => format!("DELETE FROM \"{}\"", self.key.table()),
            ContentChange::Free(reserved) => {
                let is_plain = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
                if !reserved.iter().all(is_plain) {
                    return None;
                }
                reserved.iter().fold(format!("UPDATE \"{}\"", self.key.table()), |update, name| {
                    update + " REMOVE \"" + name + "\""
                })
            }
            ContentChange::Restore(..) | ContentChange::Replace(_) => return None,
        };
        let mut statement = format!("{head} WHERE \"{ID}\" = ?");
        let mut parameters = vec![self.seen.clone()];
        for (name, value) in self.key.attributes() {
            if name.contains('"') {
                return None;
            }
            statement.extend([" AND \"", name, "\" = ?"]);
            parameters.push(value.clone());
        }
        Some((statement, parameters))
    }
}

/// Returns the change that restores an item which a put replaced.
fn restore(
    key: &ItemKey,
    item: &Item,
    reserved: Vec<String>,
    before: &Item,
    old: impl Fn(&str, &AttributeValue) -> Old,
) -> ContentChange {
    let is_key = |name: &str| key.attributes().contains_key(name);
    let changed = before.iter().filter(|(name, value)| !is_key(name) && item.get(*name) != Some(value));
    let added = item.keys().filter(|name| !is_reserved(name) && !before.contains_key(*name));
    let mut restored: Vec<_> = changed.map(|(name, value)| (name.clone(), old(name, value))).collect();
    restored.extend(added.map(|name| (name.clone(), Old::Nothing)));
    if restored.len() > MAX_RESTORED {
        ContentChange::Replace(before.clone())
    } else {
        ContentChange::Restore(restored, reserved)
    }
}

fn update(key: &ItemKey, restored: Vec<(String, Old)>, reserved: Vec<String>) -> Write {
    let (mut sets, mut removes) = (Vec::new(), Vec::new());
    let mut write = Write::update(key, "");
    for (index, (name, old)) in restored.into_iter().enumerate() {
        let target = format!("#n{index}");
        match old {
            Old::Nothing => removes.push(target.clone()),
            Old::Undo => {
                let source = format!("#u{index}");
                sets.push(format!("{target} = {source}"));
                write = write.name(source, undo_name(&name));
            }
            Old::Before => sets.push(format!("{target} = {BEFORE}.{target}")),
            Old::Value(value) => {
                let source = format!(":v{index}");
                sets.push(format!("{target} = {source}"));
                write = write.value(source, value);
            }
        }
        write = write.name(target, name);
    }
    for (index, name) in reserved.into_iter().enumerate() {
        removes.push(format!("#r{index}"));
        write = write.name(format!("#r{index}"), name);
    }
    let set = if sets.is_empty() { String::new() } else { format!("SET {} ", sets.join(", ")) };
    write.update = format!("{set}REMOVE {}", removes.join(", "));
    write
}

/// Frees these items of a decided transaction. If DynamoDB refuses to free one, frees the others and returns the item
/// and the reason. `known` is what frees them, where they were read before.
///
/// # Errors
/// Failures that a retry may resolve.
pub(crate) async fn free(
    ledger: &Ledger,
    record: &Record,
    keys: Vec<ItemKey>,
    known: Option<Freeing>,
) -> Result<Option<(ItemKey, String)>, Error> {
    let tables = &ledger.tables;
    let mut effort = Effort::new(&ledger.policy);
    let (mut left, mut known) = (keys, known);
    let mut stuck = Vec::new();
    loop {
        let freeing = match known.take() {
            Some(freeing) => Ok(freeing),
            None => Freeing::read(tables, record, &left).await,
        };
        let Freeing { mut completions, stuck: also_stuck, .. } = match freeing {
            Err(error) if error.is_passing() => {
                effort.failed(error).await?;
                continue;
            }
            freeing => freeing?,
        };
        stuck.extend(also_stuck);
        left.clear();
        // Completions that need an expression come last, so that the others fill their calls.
        completions.sort_by_key(|completion| completion.statement().is_none());
        for (key, outcome) in carry_out(tables, completions).await {
            match outcome {
                // A missing table contains no locked items.
                Outcome::Done | Outcome::NoTable => {}
                // After a failed condition, another coordinator freed the item, or changed it while the decision
                // was made.
                Outcome::Again => left.push(key),
                Outcome::Refused(message) => stuck.push((key, message)),
            }
        }
        if left.is_empty() {
            for (key, reason) in &stuck {
                tracing::error!(transaction = %record.id, table = key.table(), reason, "an item cannot be freed");
            }
            return Ok(stuck.into_iter().next());
        }
        effort.pause().await?;
    }
}

impl Freeing {
    /// Reads the items of a transaction, and returns what frees those that it holds. `record` has the outcome, which
    /// may be one that is still to be decided.
    pub(crate) async fn read(tables: &Tables, record: &Record, keys: &[ItemKey]) -> Result<Self, Error> {
        let mut freeing = Self::default();
        let items = match tables.read(keys).await {
            Err(error) if !error.is_passing() && keys.len() > 1 => {
                // One table is missing or forbidden, which does not affect the items of the other tables.
                for key in keys {
                    let one = Box::pin(Self::read(tables, record, std::slice::from_ref(key))).await?;
                    freeing.completions.extend(one.completions);
                    freeing.stuck.extend(one.stuck);
                    freeing.lost.extend(one.lost);
                }
                return Ok(freeing);
            }
            Err(Error::InvalidRequest { field, .. }) if field == NO_TABLE => vec![None; keys.len()],
            Err(error) if !error.is_passing() => {
                freeing.stuck.extend(keys.iter().map(|key| (key.clone(), error.to_string())));
                return Ok(freeing);
            }
            items => items?,
        };
        for (key, item) in keys.iter().zip(items) {
            let Some((lock, item)) = record.lock_on(item.as_ref()).zip(item) else {
                freeing.lost.push(key.clone());
                continue;
            };
            let image = match attributes::before(&item, &lock) {
                Before::InRow(row) if record.state == State::RolledBack && !lock.is_unapplied() => {
                    if let Some(image) = tables.image(&record.id, &row).await? {
                        Some(image)
                    } else {
                        let reason = "the row that keeps what it was is missing.".to_owned();
                        freeing.stuck.push((key.clone(), reason));
                        continue;
                    }
                }
                _ => None,
            };
            freeing.completions.push(Completion::of(key, &item, &lock, record.state, image));
        }
        Ok(freeing)
    }
}

async fn carry_out(tables: &Tables, completions: Vec<Completion>) -> Vec<(ItemKey, Outcome)> {
    let mut groups: Vec<Vec<Completion>> = Vec::new();
    for completion in completions {
        let joins = completion.statement().is_some();
        match groups.last_mut().filter(|group| joins && group.len() < MAX_STATEMENTS) {
            Some(group) => group.push(completion),
            None => groups.push(vec![completion]),
        }
    }
    let work: Vec<_> = groups.into_iter().map(|group| free_group(tables, group).boxed()).collect();
    let outcomes: Vec<_> = stream::iter(work).buffer_unordered(PARALLEL).collect().await;
    outcomes.into_iter().flatten().collect()
}

/// Frees some items, by one call where they are several.
async fn free_group(tables: &Tables, group: Vec<Completion>) -> Vec<(ItemKey, Outcome)> {
    let statements: Option<Vec<_>> = group.iter().map(Completion::statement).collect();
    if let Some(statements) = statements.filter(|_| group.len() > 1) {
        match tables.execute(statements).await {
            Ok(outcomes) => return group.into_iter().map(|completion| completion.key).zip(outcomes).collect(),
            Err(error) if error.is_passing() => {
                tracing::debug!(error = error.for_log(), "items are freed later");
                return group.into_iter().map(|completion| (completion.key, Outcome::Again)).collect();
            }
            // The role may lack the permission for statements; each single write then returns its own error.
            Err(_) => {}
        }
    }
    let mut outcomes = Vec::with_capacity(group.len());
    for completion in group {
        outcomes.push(free_one(tables, completion).await);
    }
    outcomes
}

async fn free_one(tables: &Tables, completion: Completion) -> (ItemKey, Outcome) {
    let key = completion.key.clone();
    let outcome = match tables.write(completion.into_write()).await {
        Ok(true) => Outcome::Done,
        Ok(false) => Outcome::Again,
        Err(error) if error.is_passing() => Outcome::Again,
        Err(Error::InvalidRequest { field, .. }) if field == NO_TABLE => Outcome::NoTable,
        Err(error) => Outcome::Refused(error.to_string()),
    };
    (key, outcome)
}
