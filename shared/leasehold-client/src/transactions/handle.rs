//! An open transaction. Rules T1, T5 and T6.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_wire::operation;
use leasehold_wire::transactions::{
    AddRequest, AddResponse, Answer, BeginRequest, BeginResponse, CommitRequest, CommitResponse, ConsumedCapacity,
    EndRequest, EndResponse, Entry, Item,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep_until;

use super::capacity::{CapacityMeter, wanted};
use super::{Request, from_item};
use crate::clock::{Instant, fresh_uuid};
use crate::{Client, Error, ErrorKind};

/// An open transaction. Dropping the handle rolls the transaction back in the background, with best effort.
///
/// Its methods may be called concurrently. After the first answer that reports a rollback, they send nothing more.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction {
    client: Client,
    id: String,
    /// A part of the names of this handle's calls: another process may continue with the same transaction.
    handle: String,
    capacity: Option<CapacityMeter>,
    state: Mutex<Progress>,
}

struct Progress {
    /// The number of calls that were given a name.
    calls: u64,
    /// The number of requests other than `Get` and `Query` that this handle made, and that were not refused.
    writes: u64,
    unsettled: Vec<Unsettled>,
    /// The time of the last contact with the service.
    last_worked: Instant,
    /// The reason why the transaction cannot be committed any more, as far as is known.
    aborted: Option<Error>,
    /// Whether a drop has nothing left to undo.
    ended: bool,
}

/// A call that was not carried out as a whole, as far as is known.
struct Unsettled {
    requests: Vec<Entry>,
    name: String,
    /// Whether its requests are counted, since they may have been carried out.
    is_counted: bool,
}

impl Transaction {
    pub(crate) fn new(client: Client, id: String) -> Self {
        let state = Progress {
            calls: 0,
            writes: 0,
            unsettled: Vec::new(),
            last_worked: Instant::now(),
            aborted: None,
            ended: false,
        };
        Self { client, id, handle: fresh_uuid()[..8].to_owned(), capacity: None, state: Mutex::new(state) }
    }

    /// Opens a transaction under an id of its own, so that the request may be repeated.
    pub(crate) async fn begin(
        client: Client,
        retry_of: Option<String>,
        capacity: Option<CapacityMeter>,
    ) -> Result<Self, Error> {
        client.check_open()?;
        let mut transaction = Self::new(client, fresh_uuid());
        transaction.capacity = capacity;
        let request = BeginRequest {
            transaction_id: Some(transaction.id.clone()),
            retry_of,
            return_consumed_capacity: wanted(transaction.capacity.as_ref()),
            ..BeginRequest::default()
        };
        let response: BeginResponse = transaction.call(operation::BEGIN.path, &request).await?;
        transaction.count(response.consumed_capacity);
        Ok(transaction)
    }

    /// Adds the capacity that the calls from here on consume to this meter.
    pub fn counted_by(mut self, meter: &CapacityMeter) -> Self {
        self.capacity = Some(meter.clone());
        self
    }

    /// Returns the id, for [`Client::resume_transaction`] and [`Client::transaction_status`].
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Locks an item and reads it; `None` if there is none. No other transaction changes or creates the item before
    /// this one ends.
    ///
    /// # Errors
    /// Those of [`Transaction::add`]; [`ErrorKind::InvalidRequest`] if the item is not of this type.
    pub async fn get<T: DeserializeOwned>(
        &self,
        table: impl Into<String>,
        key: impl Serialize,
    ) -> Result<Option<T>, Error> {
        self.one(Request::get(table, key)).await?.map(from_item).transpose()
    }

    /// Locks the items that match the key condition of [`Request::query`], at most 100, and returns them in the order
    /// of the sort key. No other transaction changes them before this one ends. Other items that match may come later:
    /// `docs/transactions.md` says how to prevent that.
    ///
    /// # Errors
    /// Those of [`Transaction::add`]; [`ErrorKind::InvalidRequest`] if more items match, or an item is not of this
    /// type.
    pub async fn query<T: DeserializeOwned>(&self, query: Request) -> Result<Vec<T>, Error> {
        let answer = self.send([query]).await?.pop().and_then(|answer| answer.items);
        let items = answer.ok_or_else(|| Error::invalid("query", "this is no query"))?;
        items.into_iter().map(from_item).collect()
    }

    /// Puts an item in place of the existing one.
    ///
    /// # Errors
    /// Those of [`Transaction::add`].
    pub async fn put(&self, table: impl Into<String>, item: impl Serialize) -> Result<(), Error> {
        self.one(Request::put(table, item)).await.map(drop)
    }

    /// Updates or creates an item. `values` is an object with the expression's `:values`.
    ///
    /// # Errors
    /// Those of [`Transaction::add`].
    pub async fn update(
        &self,
        table: impl Into<String>,
        key: impl Serialize,
        expression: impl Into<String>,
        values: impl Serialize,
    ) -> Result<(), Error> {
        self.one(Request::update(table, key, expression).values(values)).await.map(drop)
    }

    /// Deletes an item, when the transaction is committed.
    ///
    /// # Errors
    /// Those of [`Transaction::add`].
    pub async fn delete(&self, table: impl Into<String>, key: impl Serialize) -> Result<(), Error> {
        self.one(Request::delete(table, key)).await.map(drop)
    }

    /// Adds one request, and returns its item.
    ///
    /// # Errors
    /// Those of [`Transaction::add`].
    pub async fn one(&self, request: Request) -> Result<Option<Item>, Error> {
        Ok(self.add([request]).await?.pop().flatten())
    }

    /// Locks the items of these requests, in one order for all transactions, and applies the requests provisionally.
    /// Returns the requested items, in the order of the requests: at most 1000.
    ///
    /// # Errors
    /// [`ErrorKind::Contended`], [`ErrorKind::RolledBack`]: another transaction or a sweeper was in the way.
    /// [`ErrorKind::ConditionFailed`]: the transaction is rolled back. [`ErrorKind::InvalidRequest`]: the transaction
    /// is rolled back if DynamoDB refused the request, and unchanged otherwise. [`ErrorKind::Committed`],
    /// [`ErrorKind::TransactionNotFound`]; or the last failure to reach the service.
    pub async fn add<R: Into<Request>>(
        &self,
        requests: impl IntoIterator<Item = R>,
    ) -> Result<Vec<Option<Item>>, Error> {
        Ok(self.send(requests).await?.into_iter().map(|answer| answer.item).collect())
    }

    async fn send<R: Into<Request>>(&self, requests: impl IntoIterator<Item = R>) -> Result<Vec<Answer>, Error> {
        let requests: Vec<_> = requests.into_iter().map(|request| request.into().entry()).collect::<Result<_, _>>()?;
        let call_id = self.state().begin_call(&self.handle, &requests);
        let request = AddRequest {
            transaction_id: self.id.clone(),
            requests,
            call_id,
            return_consumed_capacity: wanted(self.capacity.as_ref()),
        };
        let answered = self.call(operation::ADD.path, &request).await;
        if let Err(error) = &answered {
            self.state().fail_call(error, request);
        }
        let response: AddResponse = answered?;
        self.count(response.consumed_capacity);
        Ok(response.answers)
    }

    /// Tells the service that the transaction is alive.
    ///
    /// # Errors
    /// Those of [`Transaction::add`] that are not about a request.
    pub async fn keep_alive(&self) -> Result<(), Error> {
        self.add::<Request>([]).await.map(drop)
    }

    /// Commits all changes.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`]: no change was made. [`ErrorKind::InvalidRequest`]: an add without an answer was not
    /// carried out, and the transaction is open. [`ErrorKind::Unavailable`]: the outcome is unknown.
    /// [`Client::resume_transaction`] with the id allows another commit, and [`Client::transaction_status`] tells the
    /// outcome.
    pub async fn commit(self) -> Result<(), Error> {
        let result = self.send_commit().await;
        // The caller decides after any failure: the drop does nothing.
        self.state().ended = true;
        result
    }

    /// Rolls all changes back.
    ///
    /// # Errors
    /// [`ErrorKind::Committed`]; or the last failure to reach the service, after which a sweeper rolls the transaction
    /// back.
    pub async fn rollback(self) -> Result<(), Error> {
        self.send_rollback().await
    }

    /// Leaves the transaction open, for another process to continue with its id. A transaction that is idle for a
    /// minute (unless the service was set up otherwise) is rolled back.
    #[must_use = "somebody should go on with it"]
    pub fn detach(self) -> String {
        self.state().ended = true;
        self.id.clone()
    }

    pub(crate) async fn send_commit(&self) -> Result<(), Error> {
        let request = CommitRequest {
            transaction_id: self.id.clone(),
            expected_items: None,
            expected_writes: Some(self.state().writes),
            return_consumed_capacity: wanted(self.capacity.as_ref()),
        };
        let response: CommitResponse = self.call(operation::COMMIT.path, &request).await?;
        self.count(response.consumed_capacity);
        self.state().ended = true;
        for item in response.overwritten {
            tracing::warn!(
                transaction = self.id,
                table = item.table_name,
                "an item was deleted or replaced past the transaction, and is not part of the commit"
            );
        }
        Ok(())
    }

    pub(crate) async fn send_rollback(&self) -> Result<(), Error> {
        let result = self
            .client
            .call_transaction::<_, EndResponse>(&self.id, operation::ROLLBACK.path, &self.end_request())
            .await;
        // A drop does not retry a rollback that failed.
        self.state().ended = true;
        match result {
            Ok(response) => {
                self.count(response.consumed_capacity);
                Ok(())
            }
            Err(error) if *error.kind() == ErrorKind::RolledBack => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the conflict that aborted the transaction, if there was one.
    pub(crate) fn contention(&self) -> Option<Error> {
        self.state().aborted.clone()
    }

    /// Keeps the transaction alive: calls the service after each idle period. Returns when the transaction needs it no
    /// more.
    pub(crate) async fn keep(&self, period: Duration) {
        loop {
            let due = self.state().last_worked + period;
            if Instant::now() < due {
                sleep_until(due).await;
            } else if self.keep_alive().await.is_err_and(|error| !error.retryable()) {
                // The next call, or the commit, reports the failure.
                return;
            }
        }
    }

    fn end_request(&self) -> EndRequest {
        EndRequest { transaction_id: self.id.clone(), return_consumed_capacity: wanted(self.capacity.as_ref()) }
    }

    fn count(&self, consumed: Option<Vec<ConsumedCapacity>>) {
        if let Some(meter) = &self.capacity {
            meter.add(consumed);
        }
    }

    /// Calls the service, unless its answer is already known.
    async fn call<Q: Serialize, A: DeserializeOwned>(&self, path: &str, request: &Q) -> Result<A, Error> {
        if let Some(error) = self.state().aborted.clone().filter(|error| *error.kind() == ErrorKind::RolledBack) {
            return Err(error);
        }
        let sent = Instant::now();
        let result = self.client.call_transaction(&self.id, path, request).await;
        let mut state = self.state();
        match &result {
            Ok(_) => {
                state.last_worked = sent;
                // A transaction that waited in vain, and found another way, is not aborted.
                state.aborted.take_if(|error| *error.kind() != ErrorKind::RolledBack);
            }
            Err(error) if error.is_contention() => state.aborted = Some(error.clone()),
            // A failed keep-alive counts too, so that keep-alives are not sent without pause.
            Err(_) => state.last_worked = Instant::now(),
        }
        result
    }

    fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    /// Returns the name of a call. The repeat of one that was not carried out as a whole has the name of that one.
    fn begin_call(&mut self, handle: &str, requests: &[Entry]) -> Option<String> {
        if requests.is_empty() {
            return None;
        }
        let earlier = self.unsettled.iter().position(|call| call.requests == requests);
        if let Some(earlier) = earlier.map(|earlier| self.unsettled.swap_remove(earlier)) {
            self.writes += if earlier.is_counted { 0 } else { writes(requests) };
            return Some(earlier.name);
        }
        self.writes += writes(requests);
        self.calls += 1;
        Some(format!("{handle}-{}", self.calls))
    }

    /// Keeps the name of a call that may be repeated. Its requests stay counted where nobody knows whether they were
    /// carried out: a commit is refused then if they were not.
    fn fail_call(&mut self, error: &Error, request: AddRequest) {
        let is_counted = error.retryable();
        if !is_counted {
            self.writes = self.writes.saturating_sub(writes(&request.requests));
        }
        let is_repeatable = is_counted || matches!(error.kind(), ErrorKind::Contended { .. });
        if let Some(name) = request.call_id.filter(|_| is_repeatable) {
            self.unsettled.push(Unsettled { requests: request.requests, name, is_counted });
        }
    }
}

/// The number of requests other than `Get` and `Query`.
fn writes(requests: &[Entry]) -> u64 {
    requests.iter().filter(|entry| !entry.only_reads()).count() as u64
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.state().ended {
            let (client, id) = (self.client.clone(), self.id.clone());
            self.client.in_background(roll_back(client, id));
        }
    }
}

async fn roll_back(client: Client, id: String) {
    let request = EndRequest { transaction_id: id.clone(), ..EndRequest::default() };
    let result: Result<EndResponse, _> = client.call_transaction(&id, operation::ROLLBACK.path, &request).await;
    match result.as_ref().map_err(Error::kind) {
        // The transaction was decided before, or never begun.
        Ok(_) | Err(ErrorKind::RolledBack | ErrorKind::Committed | ErrorKind::TransactionNotFound) => {}
        Err(_) => tracing::warn!(transaction = id, "could not be rolled back, which is left to a sweeper"),
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("id", &self.id).finish_non_exhaustive()
    }
}
