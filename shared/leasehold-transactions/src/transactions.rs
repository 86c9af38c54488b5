//! What callers do with transactions.

use aws_sdk_dynamodb::Client;
use leasehold_dynamodb::{Clock, pause};

use crate::attributes::{self, Item, Lock};
use crate::coordinator::{Policy, Transactions, rolled_back};
use crate::effort::Effort;
use crate::error::Error;
use crate::key::ItemKey;
use crate::model::{Answer, Request, ReturnValues, State, Status, TransactionId};
use crate::prepare::{Prepared, prepare};
use crate::record::{self, Effect, image_key, record_key};
use crate::tables::Tables;

/// A write of several items is to be seen whole after so many looks.
const MAX_LOOKS: u32 = 6;

impl Transactions {
    /// Transactions over the table `table`. `client` must come from a configuration that went through
    /// [`leasehold_dynamodb::configure`]. No transaction may touch `table` itself, nor the tables in `protected`.
    pub fn new(client: Client, table: impl Into<String>, policy: Policy, clock: Clock, protected: Vec<String>) -> Self {
        let table = table.into();
        let mut protected = protected;
        protected.push(table.clone());
        Self { tables: Tables::new(client, table), policy, clock, protected }
    }

    /// Opens a transaction. Name the id, and the call may be repeated; without one, it is generated.
    ///
    /// # Errors
    /// `Committed`, `RolledBack` of an id that was used before; those of any call: `Throttled`, `Unavailable`.
    pub async fn begin(&self, id: Option<TransactionId>) -> Result<TransactionId, Error> {
        let id = id.unwrap_or_else(TransactionId::fresh);
        if !self.put_new(self.new_record(&id).encode()).await? {
            self.open(&id).await?;
        }
        Ok(id)
    }

    /// Begins and adds, with one write less.
    ///
    /// # Errors
    /// Those of [`Self::add`].
    pub async fn begin_with(
        &self,
        id: Option<TransactionId>,
        requests: Vec<Request>,
    ) -> Result<(TransactionId, Vec<Answer>), Error> {
        if requests.is_empty() {
            return Ok((self.begin(id).await?, Vec::new()));
        }
        let prepared = prepare(&self.tables, &self.protected, requests).await?;
        let is_named = id.is_some();
        let id = id.unwrap_or_else(TransactionId::fresh);
        let mut effort = Effort::new(&self.policy);
        let enlisted = async {
            self.enlist(&id, &prepared, Some(self.new_record(&id)), &mut effort).await?;
            self.answers(&id, &prepared, &effort).await
        };
        match enlisted.await {
            Ok(answers) => Ok((id, answers)),
            Err(error) => {
                if !is_named {
                    // Its caller does not know it, and cannot go on with it.
                    self.abandon(&id).await;
                }
                Err(error)
            }
        }
    }

    /// Rolls back what nobody will come back to. If that fails, the sweeper will.
    async fn abandon(&self, id: &TransactionId) {
        let reason = "the call that began it failed.".to_owned();
        match self.settle(id, State::RolledBack, Some(reason)).await {
            Ok(_) | Err(Error::NotFound) => {}
            Err(error) => tracing::warn!(transaction = %id, error = error.for_log(), "could not be rolled back"),
        }
    }

    /// Adds requests: locks their items and changes them, for this transaction's eyes. A request that the transaction has
    /// already is answered and not done again, so the call may be repeated. Without requests it keeps the transaction from
    /// being taken for abandoned.
    ///
    /// # Errors
    /// `NotFound`, `RolledBack`, `Committed`, `InvalidRequest`, `ConditionFailed`, `TooLarge`, `Contended`, `Forbidden`,
    /// `Corrupt`, `Throttled`, `Unavailable`: see [`Error`] for what becomes of the transaction.
    pub async fn add(&self, id: &TransactionId, requests: Vec<Request>) -> Result<Vec<Answer>, Error> {
        let prepared = prepare(&self.tables, &self.protected, requests).await?;
        if prepared.is_empty() {
            return self.touch(id).await.map(|()| Vec::new());
        }
        let mut effort = Effort::new(&self.policy);
        self.enlist(id, &prepared, None, &mut effort).await?;
        self.answers(id, &prepared, &effort).await
    }

    async fn touch(&self, id: &TransactionId) -> Result<(), Error> {
        let values = Item::from([
            (":now".to_owned(), record::number(self.clock.now_ms())),
            (":pending".to_owned(), record::text(State::Pending.as_str())),
        ]);
        let names = [("#state", "state")];
        let touched = crate::tables::repeat(|| {
            let update = "SET lastWorkedAt = :now";
            self.tables.update(record_key(id), update, "#state = :pending", &names, values.clone())
        });
        if touched.await? { Ok(()) } else { self.open(id).await.map(drop) }
    }

    /// Makes all changes of a transaction everybody's. May be repeated.
    ///
    /// # Errors
    /// `NotFound`, `RolledBack`; those of [`Self::add`] where requests were added and not yet applied.
    pub async fn commit(&self, id: &TransactionId) -> Result<(), Error> {
        let record = self.settle(id, State::Committed, None).await?.record;
        if record.state == State::Committed { Ok(()) } else { Err(rolled_back(&record)) }
    }

    /// Undoes all changes of a transaction. May be repeated.
    ///
    /// # Errors
    /// `NotFound`, `Committed`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn rollback(&self, id: &TransactionId) -> Result<(), Error> {
        let settled = self.settle(id, State::RolledBack, None).await?;
        match settled.unfinished {
            _ if settled.record.state == State::Committed => Err(Error::Committed),
            // Something cannot be undone, which nobody would expect of a rollback.
            Some(error @ Error::Corrupt(_)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Begins, adds and commits in one call: one write, where the requests fit into TransactWriteItems, ask for no answers
    /// and meet no transaction. Name the id, and the call may be repeated.
    ///
    /// # Errors
    /// Those of [`Self::add`] and [`Self::commit`].
    pub async fn run(
        &self,
        id: Option<TransactionId>,
        requests: Vec<Request>,
    ) -> Result<(TransactionId, Vec<Answer>), Error> {
        let prepared = prepare(&self.tables, &self.protected, requests).await?;
        let is_named = id.is_some();
        let id = id.unwrap_or_else(TransactionId::fresh);
        match self.one_shot(&id, &prepared).await {
            Ok(answers) => Ok((id, answers)),
            Err(error) => {
                if !is_named || !error.is_passing() {
                    self.abandon(&id).await;
                }
                Err(error)
            }
        }
    }

    /// What is known of a transaction, long after its end.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn status(&self, id: &TransactionId) -> Result<Status, Error> {
        let transaction = self.tables.load(id).await?.ok_or(Error::NotFound)?;
        let requests = transaction.participants();
        let record = transaction.record;
        Ok(Status {
            id: record.id,
            state: record.state,
            reason: record.reason,
            finished: record.finished,
            created_at: record.created_at,
            last_worked_at: record.last_worked_at,
            requests,
        })
    }

    /// What the requests of a call are answered with, once they are all applied.
    pub(crate) async fn answers(
        &self,
        id: &TransactionId,
        prepared: &[Prepared],
        effort: &Effort,
    ) -> Result<Vec<Answer>, Error> {
        let needs_item = |request: &Prepared| match request.request.return_values {
            ReturnValues::AllNew => true,
            ReturnValues::AllOld => effort.before(&request.key).is_none(),
            ReturnValues::None => request.effect == Effect::Get,
        };
        let wanting: Vec<_> =
            prepared.iter().filter(|request| needs_item(request)).map(|request| request.key.clone()).collect();
        let mut items = self.locked(id, &wanting).await?.into_iter();
        let mut answers = Vec::with_capacity(prepared.len());
        for request in prepared {
            let item = if needs_item(request) { items.next().flatten() } else { None };
            let lock = item.as_ref().and_then(Lock::of).filter(|lock| lock.holder == *id);
            let item = match (request.request.return_values, effort.before(&request.key)) {
                (ReturnValues::None, _) if request.effect != Effect::Get => None,
                (ReturnValues::AllOld, Some(before)) => before.clone(),
                (ReturnValues::AllOld, None) => self.before(id, item, lock.as_ref()).await?,
                (ReturnValues::None | ReturnValues::AllNew, _) => within(item, lock.as_ref()),
            };
            answers.push(Answer { item: request.project(item) });
        }
        Ok(answers)
    }

    /// Items that the transaction has locked.
    async fn locked(&self, id: &TransactionId, keys: &[ItemKey]) -> Result<Vec<Option<Item>>, Error> {
        let is_locked = |item: &Option<Item>| item.as_ref().and_then(Lock::of).is_some_and(|lock| lock.holder == *id);
        for look in 1..=MAX_LOOKS {
            let items = self.tables.read(keys).await?;
            if items.iter().all(is_locked) {
                return Ok(items);
            }
            // Somebody rolled the transaction back, and freed the item; or the read came between the parts of the lock.
            self.open(id).await?;
            pause(look).await;
        }
        Err(Error::corrupt("An item that the transaction has locked was changed by another writer."))
    }

    /// What an item was before the transaction that has it.
    async fn before(&self, id: &TransactionId, item: Option<Item>, lock: Option<&Lock>) -> Result<Option<Item>, Error> {
        let Some(lock) = lock.filter(|lock| !lock.transient) else {
            return Ok(None);
        };
        if !lock.applied {
            return Ok(item.map(attributes::strip));
        }
        let image = ItemKey::new(&self.tables.own, image_key(id, &lock.pointer));
        let row = self.tables.read(&[image]).await?.pop().flatten();
        if let Some(before) = row.and_then(record::imaged) {
            return Ok(Some(before));
        }
        self.open(id).await?;
        Err(Error::corrupt(format!("An image of the transaction {id} is missing.")))
    }
}

impl Prepared {
    /// What of an item the request asks for.
    pub(crate) fn project(&self, item: Option<Item>) -> Option<Item> {
        item.map(|item| match &self.projection {
            Some(projection) => projection.apply(&item),
            None => item,
        })
    }
}

/// An item as the transaction that has it sees it.
fn within(item: Option<Item>, lock: Option<&Lock>) -> Option<Item> {
    let is_absent = lock.is_some_and(|lock| lock.operation == "delete" || (lock.transient && !lock.applied));
    item.filter(|_| !is_absent).map(attributes::strip)
}
