//! The calls of the library: begin, add, commit, rollback, run, status.

use aws_sdk_dynamodb::Client;
use leasehold_dynamodb::{Clock, pause};

use crate::attributes::{self, Before, Item, ItemLock};
use crate::capacity::counting;
use crate::coordinator::{Policy, Transactions, rolled_back};
use crate::effort::Effort;
use crate::error::Error;
use crate::key::ItemKey;
use crate::model::{
    Answer, Expected, Operation, PublicId, ReturnValues, State, Status, TransactionId, TransactionRequest,
};
use crate::operate::status;
use crate::prepare::{Prepared, prepare};
use crate::record::{Record, digest_of_all, participants};
use crate::settle::{Settled, Wanted};
use crate::sweep::Watched;
use crate::tables::Tables;
use crate::write::Write;

/// The maximum number of reads until a write of several items is visible as a whole.
const MAX_LOOKS: u32 = 6;

impl Transactions {
    /// Returns transactions over the table `table`. `client` must come from a configuration that went through
    /// [`leasehold_dynamodb::configure`]. No transaction may name `table` itself, nor the tables in `protected`.
    pub fn new(
        client: &Client,
        table: impl Into<String>,
        policy: Policy,
        clock: Clock,
        protected: Vec<String>,
    ) -> Self {
        let table = table.into();
        let mut protected = protected;
        protected.push(table.clone());
        Self { tables: Tables::new(counting(client), table), policy, clock, protected, watched: Watched::default() }
    }

    /// Opens a transaction. A call that names the id may be repeated; without one, the id is generated. `retry_of`
    /// names the attempt that this one replaces: a retry is as old as that attempt, and the older of two goes first.
    ///
    /// # Errors
    /// `Committed` and `RolledBack` for an id that was used before, `NotFound` where its record was removed meanwhile;
    /// for any call: `Throttled`, `Unavailable`.
    pub async fn begin(
        &self,
        id: Option<TransactionId>,
        retry_of: Option<&TransactionId>,
    ) -> Result<TransactionId, Error> {
        let id = id.unwrap_or_else(TransactionId::fresh);
        let record = self.aged_record(id.public(), retry_of).await?;
        if !self.put_new(&record, None).await? {
            self.open(&record.id, true).await?;
        }
        Ok(id)
    }

    /// Begins and adds, with one write fewer.
    ///
    /// # Errors
    /// Those of [`Self::add`].
    pub async fn begin_with(
        &self,
        id: Option<TransactionId>,
        retry_of: Option<&TransactionId>,
        requests: Vec<TransactionRequest>,
    ) -> Result<(TransactionId, Vec<Answer>), Error> {
        if requests.is_empty() {
            return Ok((self.begin(id, retry_of).await?, Vec::new()));
        }
        let prepared = prepare(&self.tables, &self.protected, requests, None).await?;
        let is_named = id.is_some();
        let id = id.unwrap_or_else(TransactionId::fresh);
        let record = self.aged_record(id.public(), retry_of).await?;
        let mut effort = Effort::new(&self.policy);
        let enlisted = async {
            let transaction = self.enlist(&record.id, &prepared, Some(record.clone()), &mut effort).await?;
            self.answers(&transaction.record, &prepared).await
        };
        match enlisted.await {
            Ok(answers) => Ok((id, answers)),
            Err(error) => {
                if is_named {
                    return Err(error);
                }
                // The caller does not know the id, and cannot go on with the transaction.
                match self.abandon(&record).await {
                    Some(_) if error.is_passing() => Err(Error::RolledBack { reason: error.to_string() }),
                    None if error.is_passing() => Err(Error::Unknown { id, source: Box::new(error) }),
                    _ => Err(error),
                }
            }
        }
    }

    /// Returns a new record that is as old as the attempt before.
    async fn aged_record(&self, id: PublicId, retry_of: Option<&TransactionId>) -> Result<Record, Error> {
        let record = self.new_record(id);
        let Some(before) = retry_of else { return Ok(record) };
        let before = self.tables.record(&before.public()).await?;
        Ok(match before {
            Some(before) => {
                Record { born_at: before.born_at.min(record.born_at), attempts: before.attempts + 1, ..record }
            }
            None => record,
        })
    }

    /// Rolls back a transaction that no caller will continue, begun or not. Returns the outcome; if it is not certain,
    /// a sweeper will end the transaction.
    async fn abandon(&self, record: &Record) -> Option<State> {
        let reason = "the call that began it failed.".to_owned();
        let ended = match self.leave_rolled_back(record, reason.clone()).await {
            Ok(None) => Ok(State::RolledBack),
            Ok(Some(_)) => self.settle(&record.id, Wanted::rollback(reason)).await.map(|settled| settled.record.state),
            Err(error) => Err(error),
        };
        match ended {
            Ok(state) => Some(state),
            Err(Error::NotFound) => Some(State::RolledBack),
            Err(error) => {
                tracing::warn!(transaction = %record.id, error = error.for_log(), "could not be rolled back");
                None
            }
        }
    }

    /// Adds requests: locks their items and changes them provisionally. A call with a `call_id` may be repeated: a
    /// request that the transaction has from a call of this name is answered and not carried out again. A call without
    /// a name is a new one. A call without requests keeps the transaction from being judged idle.
    ///
    /// # Errors
    /// `NotFound`, `RolledBack`, `Committed`, `InvalidRequest`, `ConditionFailed`, `TooLarge`, `Contended`,
    /// `Forbidden`, `Corrupt`, `Throttled`, `Unavailable`: [`Error`] describes the state of the transaction after each.
    pub async fn add(
        &self,
        id: &TransactionId,
        requests: Vec<TransactionRequest>,
        call_id: Option<&str>,
    ) -> Result<Vec<Answer>, Error> {
        let id = &id.public();
        let call_id = call_id.map_or_else(leasehold_dynamodb::fresh_uuid, str::to_owned);
        let prepared = prepare(&self.tables, &self.protected, requests, Some(&call_id)).await?;
        let mut result = self.add_prepared(id, &prepared).await;
        if self.is_begun_late(id, &result).await? {
            result = self.add_prepared(id, &prepared).await;
        }
        result
    }

    async fn add_prepared(&self, id: &PublicId, prepared: &[Prepared]) -> Result<Vec<Answer>, Error> {
        if prepared.is_empty() {
            return self.touch(id).await.map(|()| Vec::new());
        }
        let mut effort = Effort::new(&self.policy);
        let transaction = self.enlist(id, prepared, None, &mut effort).await?;
        self.answers(&transaction.record, prepared).await
    }

    async fn touch(&self, id: &PublicId) -> Result<(), Error> {
        let touched = crate::tables::repeat(|| {
            let write = Write::update(&self.record_item(id), "SET lastWorkedAt = :now");
            let write = write.when("#state = :pending").name("#state", "state");
            self.tables.write(write.number(":now", self.clock.now_ms()).text(":pending", State::Pending.as_str()))
        });
        if touched.await? { Ok(()) } else { self.open(id, false).await.map(drop) }
    }

    /// Makes all changes of a transaction visible to everyone. May be repeated.
    ///
    /// # Errors
    /// `NotFound`, `RolledBack`; those of [`Self::add`] where requests were added and not yet applied.
    pub async fn commit(&self, id: &TransactionId) -> Result<(), Error> {
        self.commit_expected(id, Expected::default()).await.map(drop)
    }

    /// Commits, unless the transaction is another one than the caller knows: then it stays open. Returns the items that
    /// a writer past the protocol deleted or replaced, which are not part of the commit.
    ///
    /// # Errors
    /// `InvalidRequest` for another transaction than was expected; those of [`Self::commit`].
    pub async fn commit_expected(&self, id: &TransactionId, expected: Expected) -> Result<Vec<ItemKey>, Error> {
        let settled = self.settle_begun(&id.public(), Wanted::commit(expected)).await?;
        match settled.record.state {
            State::Committed => Ok(settled.record.overwritten),
            _ => Err(rolled_back(&settled.record)),
        }
    }

    /// Undoes all changes of a transaction. May be repeated.
    ///
    /// # Errors
    /// `NotFound`, `Committed`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn rollback(&self, id: &TransactionId) -> Result<(), Error> {
        let id = &id.public();
        let settled = self.settle_begun(id, Wanted::rollback(None)).await?;
        match settled.unfinished {
            _ if settled.record.state == State::Committed => Err(Error::Committed),
            // A change cannot be undone, which no caller expects of a rollback.
            Some(error @ Error::Corrupt { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    async fn settle_begun(&self, id: &PublicId, wanted: Wanted) -> Result<Settled, Error> {
        let mut result = self.settle(id, wanted.clone()).await;
        if self.is_begun_late(id, &result).await? {
            result = self.settle(id, wanted).await;
        }
        result
    }

    /// Spends the id of a transaction that was not found, before the caller gets that answer: a late write must not
    /// begin the transaction afterwards. Returns whether the late write came first.
    async fn is_begun_late<T: Sync>(&self, id: &PublicId, result: &Result<T, Error>) -> Result<bool, Error> {
        Ok(matches!(result, Err(Error::NotFound)) && !self.leave_tombstone(id).await?)
    }

    /// Begins, adds and commits in one call. This is one write, where the requests fit into TransactWriteItems, ask for
    /// no answers and conflict with no transaction. A call that names the id may be repeated. One without an id is
    /// rolled back where its outcome is not known at once, so that no late copy of it is carried out.
    ///
    /// # Errors
    /// Those of [`Self::add`] and [`Self::commit`]. `Unknown`, with the id, where no id was named and the outcome is
    /// not certain.
    pub async fn run(
        &self,
        id: Option<TransactionId>,
        retry_of: Option<&TransactionId>,
        requests: Vec<TransactionRequest>,
    ) -> Result<(TransactionId, Vec<Answer>), Error> {
        let prepared = prepare(&self.tables, &self.protected, requests, None).await?;
        let is_named = id.is_some();
        let id = id.unwrap_or_else(TransactionId::fresh);
        let digest = Some(digest_of_all(prepared.iter().map(|request| &request.digest)));
        let record = Record { digest, ..self.aged_record(id.public(), retry_of).await? };
        let error = match self.one_shot(&record, is_named, &prepared).await {
            Ok(answers) => return Ok((id, answers)),
            Err(error) => error,
        };
        if !error.ends_one_shot() && is_named {
            return Err(error);
        }
        // Before the final error, a record must stop an earlier attempt without an answer that may still come late.
        match self.abandon(&record).await {
            Some(State::Committed) => Ok((id, self.answer_repeat(&record, &prepared).await?)),
            Some(_) if error.is_passing() && !reads_only(&prepared) => {
                Err(Error::RolledBack { reason: error.to_string() })
            }
            Some(_) => Err(error),
            None if !is_named => Err(Error::Unknown { id, source: Box::new(error) }),
            None if error.is_passing() => Err(error),
            None => Err(Error::Unavailable("the outcome is not certain".into())),
        }
    }

    /// Returns the public state of a transaction, also long after its end.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn status(&self, id: &PublicId) -> Result<Status, Error> {
        let found = self.tables.load(id).await?.filter(|found| !found.record.is_tombstone);
        let transaction = found.ok_or(Error::NotFound)?;
        Ok(Status {
            requests: participants(&transaction.entries),
            more_requests: !transaction.is_whole,
            ..status(transaction.record)
        })
    }

    /// Returns the answers to the requests of a call, once they are all applied.
    pub(crate) async fn answers(&self, record: &Record, prepared: &[Prepared]) -> Result<Vec<Answer>, Error> {
        let needs_item = |request: &&Prepared| {
            request.operation() == Operation::Get || request.request.return_values != ReturnValues::None
        };
        let wanting: Vec<_> = prepared.iter().filter(needs_item).map(|request| request.key.clone()).collect();
        let mut items = self.locked(record, &wanting).await?.into_iter();
        let mut answers = Vec::with_capacity(prepared.len());
        for request in prepared {
            let found = if needs_item(&request) { items.next() } else { None };
            let Some((item, lock)) = found else {
                answers.push(Answer::default());
                continue;
            };
            let wants_old = matches!(request.request.return_values, ReturnValues::AllOld | ReturnValues::UpdatedOld);
            let seen = if wants_old {
                match attributes::before(&item, &lock) {
                    Before::Missing => None,
                    Before::Here(before) => Some(before),
                    Before::InRow(row) => Some(self.image_of(record, &row).await?),
                }
            } else {
                (!lock.is_absent()).then(|| attributes::strip(item))
            };
            answers.push(Answer { item: request.project(seen) });
        }
        Ok(answers)
    }

    /// Reads items that the transaction has locked.
    async fn locked(&self, record: &Record, keys: &[ItemKey]) -> Result<Vec<(Item, ItemLock)>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut lost = None;
        for look in 1..=MAX_LOOKS {
            let items = self.tables.read(keys).await?;
            let held = |item: Option<Item>| {
                let lock = item.as_ref().and_then(ItemLock::of).filter(|lock| record.holds(&lock.value));
                Some((item?, lock?))
            };
            let items: Vec<_> = items.into_iter().map(held).collect();
            lost = items.iter().position(Option::is_none);
            if lost.is_none() {
                return Ok(items.into_iter().flatten().collect());
            }
            // Another coordinator rolled the transaction back and freed the item, or the read saw a part of the lock's
            // write.
            self.open(&record.id, false).await?;
            pause(look).await;
        }
        let detail = "An item that the transaction has locked was changed by another writer.";
        Err(lost.map_or_else(|| Error::corrupt(detail), |lost| Error::damaged(&keys[lost], detail)))
    }

    async fn image_of(&self, record: &Record, row: &str) -> Result<Item, Error> {
        if let Some(before) = self.tables.image(&record.id, row).await? {
            return Ok(before);
        }
        self.open(&record.id, false).await?;
        Err(Error::corrupt(format!("An image of the transaction {} is missing.", record.id)))
    }
}

/// Whether the requests change nothing.
pub(crate) fn reads_only(prepared: &[Prepared]) -> bool {
    prepared.iter().all(|request| request.operation() == Operation::Get)
}

impl Prepared {
    /// Returns the parts of an item that the request asks for.
    pub(crate) fn project(&self, item: Option<Item>) -> Option<Item> {
        item.map(|item| match &self.projection {
            Some(projection) => projection.apply(&item),
            None => item,
        })
    }
}
