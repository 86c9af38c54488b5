//! The calls of the library: begin, add, commit, rollback, run, status.

use aws_sdk_dynamodb::Client;
use leasehold_dynamodb::Clock;

use crate::capacity::counting;
use crate::coordinator::Policy;
use crate::enlist::Enlister;
use crate::error::Error;
use crate::id::{PublicId, TransactionId};
use crate::key::{Item, ItemKey};
use crate::ledger::Ledger;
use crate::model::{Answer, Expected, QueryRequest, State, Status, TransactionRequest};
use crate::one_shot::OneShot;
use crate::operate::Operator;
use crate::prepare::{Prepared, prepare};
use crate::query::Query;
use crate::read::Reader;
use crate::record::{Record, digest_of_all};
use crate::settle::{Settled, Settler, Wanted};
use crate::sweep::Sweeper;
use crate::tables::Tables;

/// Transactions over one transactions table. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transactions {
    /// Reads from outside of transactions.
    pub reader: Reader,
    /// Ends the transactions that nobody works on.
    pub sweeper: Sweeper,
    /// The calls for operators.
    pub operator: Operator,
    ledger: Ledger,
    enlister: Enlister,
    settler: Settler,
}

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
        let tables = Tables::new(counting(client), table.into(), protected);
        let ledger = Ledger { tables: tables.clone(), policy, clock };
        let settler = Settler { ledger: ledger.clone() };
        Self {
            reader: Reader::new(tables),
            sweeper: Sweeper::new(ledger.clone(), settler.clone()),
            operator: Operator::new(ledger.clone()),
            enlister: Enlister { ledger: ledger.clone(), settler: settler.clone() },
            ledger,
            settler,
        }
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
        let record = self.ledger.new_attempt(&id, retry_of).await?;
        if !self.ledger.put_new(&record, None).await? {
            self.ledger.open(&record.id, true).await?;
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
        let prepared = prepare(&self.ledger.tables, requests, None).await?;
        let is_named = id.is_some();
        let id = id.unwrap_or_else(TransactionId::fresh);
        let record = self.ledger.new_attempt(&id, retry_of).await?;
        match self.enlister.add(&record.id, &prepared, Some(record.clone())).await {
            Ok((_, answers)) => Ok((id, answers)),
            Err(error) => {
                if is_named {
                    return Err(error);
                }
                // The caller does not know the id, and cannot go on with the transaction.
                match self.settler.abandon(&record).await {
                    Some(_) if error.is_passing() => Err(Error::RolledBack { reason: error.to_string() }),
                    None if error.is_passing() => Err(Error::Unknown { id, source: Box::new(error) }),
                    _ => Err(error),
                }
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
        let prepared = prepare(&self.ledger.tables, requests, Some(&call_id)).await?;
        let mut result = self.add_prepared(id, &prepared).await;
        if self.is_begun_late(id, &result).await? {
            result = self.add_prepared(id, &prepared).await;
        }
        result
    }

    async fn add_prepared(&self, id: &PublicId, prepared: &[Prepared]) -> Result<Vec<Answer>, Error> {
        if prepared.is_empty() {
            return self.ledger.touch(id).await.map(|()| Vec::new());
        }
        self.enlister.add(id, prepared, None).await.map(|(_, answers)| answers)
    }

    /// Locks the items that match a key condition, at most 100, and returns them in the order of the sort key. Other
    /// items that match may come later. A call with a `call_id` may be repeated: it returns the same items, as the
    /// transaction sees them now.
    ///
    /// # Errors
    /// Those of [`Self::add`]. An `InvalidRequest` leaves the transaction open.
    pub async fn query(
        &self,
        id: &TransactionId,
        request: &QueryRequest,
        call_id: Option<&str>,
    ) -> Result<Vec<Item>, Error> {
        let id = &id.public();
        let call_id = call_id.map_or_else(leasehold_dynamodb::fresh_uuid, str::to_owned);
        let query = Query::prepare(&self.enlister, request, &call_id).await?;
        let mut result = query.run(id).await;
        if self.is_begun_late(id, &result).await? {
            result = query.run(id).await;
        }
        result
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
            _ => Err(settled.record.rolled_back()),
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
        let mut result = self.settler.settle(id, wanted.clone()).await;
        if self.is_begun_late(id, &result).await? {
            result = self.settler.settle(id, wanted).await;
        }
        result
    }

    /// Spends the id of a transaction that was not found, before the caller gets that answer: a late write must not
    /// begin the transaction afterwards. Returns whether the late write came first.
    async fn is_begun_late<T: Sync>(&self, id: &PublicId, result: &Result<T, Error>) -> Result<bool, Error> {
        Ok(matches!(result, Err(Error::NotFound)) && !self.ledger.leave_tombstone(id).await?)
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
        let prepared = prepare(&self.ledger.tables, requests, None).await?;
        let is_named = id.is_some();
        let id = id.unwrap_or_else(TransactionId::fresh);
        let digest = Some(digest_of_all(prepared.iter().map(|request| &request.digest)));
        let record = Record { digest, ..self.ledger.new_attempt(&id, retry_of).await? };
        let one_shot = OneShot { enlister: &self.enlister, record, is_named, prepared: &prepared };
        let answers = one_shot.run(&id).await?;
        Ok((id, answers))
    }

    /// Returns the public state of a transaction, also long after its end.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Throttled`, `Unavailable`.
    pub async fn status(&self, id: &PublicId) -> Result<Status, Error> {
        let found = self.ledger.tables.load(id).await?.filter(|found| !found.record.is_tombstone);
        Ok(found.ok_or(Error::NotFound)?.status())
    }
}
