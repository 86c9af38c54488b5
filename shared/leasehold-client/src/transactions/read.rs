//! Calls outside of transactions, and transactions over several processes. Rule T3.

use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use leasehold_wire::operation;
use leasehold_wire::transactions::{
    GetItemsRequest, GetItemsResponse, GetTransactionRequest, Isolation, Item, ItemRequest, ListItemsRequest,
    ListItemsResponse, ListTransactionsRequest, ListTransactionsResponse, StraysRequest, StraysResponse, SweepRequest,
    SweepResponse, UnlockRequest, UnlockResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Transaction, TransactionStatus, from_item, to_item};
use crate::clock::deadline;
use crate::remote::persist;
use crate::{Client, Error};

/// The time that the service waits for other transactions, within one call.
const CONTENTION: Duration = Duration::from_secs(10);

impl Client {
    /// Opens a transaction that is committed by hand, here or in another process. [`Client::transaction`] does more.
    ///
    /// # Errors
    /// The last failure to reach the service.
    pub async fn begin_transaction(&self) -> Result<Transaction, Error> {
        Transaction::begin(self.clone(), None, None).await
    }

    /// Continues with a transaction that another process opened, and left by [`Transaction::detach`]. Nothing is sent.
    pub fn resume_transaction(&self, id: impl Into<String>) -> Transaction {
        Transaction::new(self.clone(), id.into())
    }

    /// Returns the state and the requests of a transaction, up to seven days after its end (unless the service was set
    /// up otherwise).
    ///
    /// # Errors
    /// [`crate::ErrorKind::TransactionNotFound`], or the last failure to reach the service.
    pub async fn transaction_status(&self, id: impl Into<String>) -> Result<TransactionStatus, Error> {
        let request = GetTransactionRequest { id: Some(id.into()), public_id: None };
        persist(self.until(), |left| self.remote().query(operation::GET_TRANSACTION.path, &request, left)).await
    }

    /// Returns the status of a transaction by its public id, as found in items, logs and refusals.
    ///
    /// # Errors
    /// Those of [`Client::transaction_status`].
    pub async fn transaction_status_by_public_id(
        &self,
        public_id: impl Into<String>,
    ) -> Result<TransactionStatus, Error> {
        let request = GetTransactionRequest { id: None, public_id: Some(public_id.into()) };
        persist(self.until(), |left| self.remote().query(operation::GET_TRANSACTION.path, &request, left)).await
    }

    /// Lists a page of the open transactions, and of the decided ones whose items are still locked. For operators.
    ///
    /// # Errors
    /// The last failure to reach the service.
    pub async fn list_transactions(
        &self,
        request: &ListTransactionsRequest,
    ) -> Result<ListTransactionsResponse, Error> {
        persist(self.until(), |left| self.remote().query(operation::LIST_TRANSACTIONS.path, request, left)).await
    }

    /// Completes or rolls back idle transactions; with a public id, ends that transaction whatever its age. For
    /// operators.
    ///
    /// # Errors
    /// [`crate::ErrorKind::TransactionNotFound`] for an unknown id, or the last failure to reach the service.
    pub async fn sweep_transactions(&self, public_id: Option<String>) -> Result<SweepResponse, Error> {
        let request = SweepRequest { limit: None, public_id };
        let limit = self.remote().request_timeout().saturating_add(CONTENTION);
        let until = deadline(self.retry_budget().saturating_add(limit));
        persist(until, |_| self.remote().post(operation::SWEEP.path, &request, limit)).await
    }

    /// Examines a part of a table for items with locks of unknown transactions. For operators.
    ///
    /// # Errors
    /// The last failure to reach the service.
    pub async fn find_strays(&self, request: &StraysRequest) -> Result<StraysResponse, Error> {
        let limit = self.remote().request_timeout();
        persist(self.until(), |_| self.remote().post(operation::STRAYS.path, request, limit)).await
    }

    /// Unlocks an item whose transaction is unknown, on condition of the lock that was seen. For operators.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidRequest`] where the item has another lock, or its transaction is known; or the last
    /// failure to reach the service.
    pub async fn unlock_item(&self, request: &UnlockRequest) -> Result<UnlockResponse, Error> {
        persist(self.until(), |left| self.remote().post(operation::UNLOCK.path, request, left)).await
    }

    /// Reads one item outside of transactions.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidRequest`] if the item is not of this type, or the last failure to reach the service.
    pub async fn read_item<T: DeserializeOwned>(
        &self,
        table: impl Into<String>,
        key: impl Serialize,
        isolation: Isolation,
    ) -> Result<Option<T>, Error> {
        let request = ItemRequest { table_name: table.into(), key: to_item(key)?, ..ItemRequest::default() };
        self.read_items([request], isolation).await?.pop().flatten().map(from_item).transpose()
    }

    /// Reads items outside of transactions, in the order of the requests: at most 100, each once. The items need not be
    /// of one moment; reads inside a transaction are.
    ///
    /// # Errors
    /// The last failure to reach the service.
    pub async fn read_items(
        &self,
        requests: impl IntoIterator<Item = ItemRequest>,
        isolation: Isolation,
    ) -> Result<Vec<Option<Item>>, Error> {
        let requests = requests.into_iter().collect();
        let request =
            GetItemsRequest { requests: Some(requests), isolation: Some(isolation), ..GetItemsRequest::default() };
        let limit = self.remote().request_timeout();
        let response: GetItemsResponse =
            persist(self.until(), |_| self.remote().post(operation::GET_ITEMS.path, &request, limit)).await?;
        Ok(response.answers.unwrap_or_default().into_iter().map(|answer| answer.item).collect())
    }

    /// Lists all items that a Query (with a key condition) or a Scan finds. The stream reads page after page, and is no
    /// snapshot: docs/transactions.md describes what it can miss.
    pub fn list_items(&self, request: ListItemsRequest) -> impl Stream<Item = Result<Item, Error>> + Send + use<> {
        let client = self.clone();
        let pages = stream::try_unfold(Some(request), move |request| {
            let client = client.clone();
            async move {
                let Some(request) = request else { return Ok(None) };
                let limit = client.remote().request_timeout();
                let page: ListItemsResponse =
                    persist(client.until(), |_| client.remote().post(operation::LIST_ITEMS.path, &request, limit))
                        .await?;
                let next =
                    page.last_evaluated_key.map(|key| ListItemsRequest { exclusive_start_key: Some(key), ..request });
                Ok(Some((page.items, next)))
            }
        });
        pages.map_ok(|items| stream::iter(items).map(Ok)).try_flatten()
    }

    /// Calls the service, which may have to wait for other transactions. The call is repeated for as long as any other
    /// operation is retried, after the first try was given up.
    pub(crate) async fn call_transaction<Q: Serialize, A: DeserializeOwned>(
        &self,
        id: &str,
        path: &str,
        request: &Q,
    ) -> Result<A, Error> {
        let limit = self.remote().request_timeout().saturating_add(CONTENTION);
        let until = deadline(self.retry_budget().saturating_add(limit));
        let answer = persist(until, |_| self.remote().post(path, request, limit)).await;
        answer.map_err(|error: Error| error.of_transaction(id))
    }
}
