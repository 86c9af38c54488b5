//! From outside of transactions, and over several processes. Rule T3.

use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use leasehold_wire::path;
use leasehold_wire::transactions::{
    GetItemsRequest, GetItemsResponse, GetTransactionRequest, Isolation, Item, ItemRequest, ListItemsRequest,
    ListItemsResponse, ListTransactionsRequest, ListTransactionsResponse, SweepRequest, SweepResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Transaction, TransactionStatus, from_item, to_item};
use crate::clock::deadline;
use crate::remote::persist;
use crate::{Client, Error};

/// How long the service waits for other transactions, within one call.
const CONTENTION: Duration = Duration::from_secs(10);

impl Client {
    /// Opens a transaction that is to be committed by hand, here or elsewhere. [`Client::transaction`] does more.
    ///
    /// # Errors
    /// What the service could not be reached with.
    pub async fn begin_transaction(&self) -> Result<Transaction, Error> {
        Transaction::begin(self.clone(), None).await
    }

    /// Goes on with a transaction that another process opened, and let go of by [`Transaction::detach`]. Nothing is
    /// sent.
    pub fn resume_transaction(&self, id: impl Into<String>) -> Transaction {
        Transaction::new(self.clone(), id.into())
    }

    /// What is known of a transaction: its state and its requests, up to seven days after its end (unless the service
    /// was set up otherwise).
    ///
    /// # Errors
    /// [`crate::ErrorKind::TransactionNotFound`], or what the service could not be reached with.
    pub async fn transaction_status(&self, id: impl Into<String>) -> Result<TransactionStatus, Error> {
        let request = GetTransactionRequest { id: Some(id.into()), public_id: None };
        persist(self.until(), |left| self.remote().query(path::TRANSACTION, &request, left)).await
    }

    /// The same, of a transaction whose public id is known, as it stands in items, logs and refusals.
    ///
    /// # Errors
    /// Those of [`Client::transaction_status`].
    pub async fn transaction_status_by_public_id(
        &self,
        public_id: impl Into<String>,
    ) -> Result<TransactionStatus, Error> {
        let request = GetTransactionRequest { id: None, public_id: Some(public_id.into()) };
        persist(self.until(), |left| self.remote().query(path::TRANSACTION, &request, left)).await
    }

    /// Lists a page of the transactions that are open, and of the decided ones whose items are still locked. For
    /// operators.
    ///
    /// # Errors
    /// The failures of reaching the service.
    pub async fn list_transactions(
        &self,
        request: &ListTransactionsRequest,
    ) -> Result<ListTransactionsResponse, Error> {
        persist(self.until(), |left| self.remote().query(path::TRANSACTIONS, request, left)).await
    }

    /// Finishes what is left of transactions that nobody works on; with a public id, ends that transaction whatever its
    /// age. For operators.
    ///
    /// # Errors
    /// [`crate::ErrorKind::TransactionNotFound`] for an unknown id, or the failures of reaching the service.
    pub async fn sweep_transactions(&self, public_id: Option<String>) -> Result<SweepResponse, Error> {
        let request = SweepRequest { limit: None, public_id };
        let limit = self.remote().request_timeout().saturating_add(CONTENTION);
        let until = deadline(self.retry_budget().saturating_add(limit));
        persist(until, |_| self.remote().post(path::SWEEP, &request, limit)).await
    }

    /// Reads one item from outside of transactions.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidRequest`] if the item is not of this type, or what the service could not be
    /// reached with.
    pub async fn read_item<T: DeserializeOwned>(
        &self,
        table: impl Into<String>,
        key: impl Serialize,
        isolation: Isolation,
    ) -> Result<Option<T>, Error> {
        let request = ItemRequest { table_name: table.into(), key: to_item(key)?, ..ItemRequest::default() };
        self.read_items([request], isolation).await?.pop().flatten().map(from_item).transpose()
    }

    /// Reads items from outside of transactions, in the order of the requests: at most 100, each once. That they are
    /// all of one moment is only true inside of a transaction.
    ///
    /// # Errors
    /// What the service could not be reached with.
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
            persist(self.until(), |_| self.remote().post(path::ITEMS_GET, &request, limit)).await?;
        Ok(response.answers.unwrap_or_default().into_iter().map(|answer| answer.item).collect())
    }

    /// All items that a Query (with a key condition) or a Scan finds, page after page as they are taken from the
    /// stream. Not a snapshot: docs/transactions.md says what it can miss.
    pub fn list_items(&self, request: ListItemsRequest) -> impl Stream<Item = Result<Item, Error>> + Send + use<> {
        let client = self.clone();
        let pages = stream::try_unfold(Some(request), move |request| {
            let client = client.clone();
            async move {
                let Some(request) = request else { return Ok(None) };
                let limit = client.remote().request_timeout();
                let page: ListItemsResponse =
                    persist(client.until(), |_| client.remote().post(path::ITEMS_LIST, &request, limit)).await?;
                let next =
                    page.last_evaluated_key.map(|key| ListItemsRequest { exclusive_start_key: Some(key), ..request });
                Ok(Some((page.items, next)))
            }
        });
        pages.map_ok(|items| stream::iter(items).map(Ok)).try_flatten()
    }

    /// A call that may have to wait for other transactions. It may be repeated, and is, for as long as any other
    /// operation after the first was given up.
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
