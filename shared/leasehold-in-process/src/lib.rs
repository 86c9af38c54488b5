//! # The service inside the caller's process
//!
//! The crate serves applications that may use the DynamoDB table themselves. The client, the rules and the service code
//! are the same, without a service in between.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_client::Client;
//! use leasehold_in_process::InProcess;
//!
//! let client = Client::new(InProcess::connect("leasehold").await?);
//! let guard = client.acquire("Moe").await?.granted()?;
//! # guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`InProcess::connect_with_transactions`] also serves transactions.
//!
//! Three examples run by themselves, on an embedded DynamoDB: `cargo run --example acquire_and_work`,
//! `resume_elsewhere` and `transfer`.

use aws_sdk_dynamodb::Client;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use leasehold_api::access::Caller;
use leasehold_api::http::{HttpRequest, handle, problem_response};
use leasehold_api::{Routed, Service, TransactionService};
use leasehold_client::{Transport, TransportError};
use leasehold_dynamodb::{Clock, Regions, regions};
use leasehold_protocol::{LockTable, Policy, TableSchema};
use leasehold_transactions::{self as transactions, Transactions};

/// Passes requests to the service in this process.
#[derive(Debug, Clone)]
pub struct InProcess {
    service: Service,
    transactions: Option<TransactionService>,
}

impl InProcess {
    /// Returns this service, without transactions.
    pub fn new(service: Service) -> Self {
        Self { service, transactions: None }
    }

    /// Adds transactions.
    #[must_use]
    pub fn with_transactions(self, transactions: TransactionService) -> Self {
        Self { transactions: Some(transactions), ..self }
    }

    /// Returns the service on the table of this name, whose partition key is `key`, with credentials and region from
    /// the usual places.
    ///
    /// # Errors
    /// Returns a sentence that names the mistake in the name, or refuses the [regions](Self::check_regions) of the
    /// table.
    pub async fn connect(table_name: &str) -> Result<Self, String> {
        let dynamodb = leasehold_dynamodb::connect(None).await;
        let service = Self::on_table(&dynamodb, TableSchema::new(table_name), Policy::default())?;
        service.check_regions(&dynamodb, table_name).await
    }

    /// Returns the service with transactions, which are kept in the table `transaction_table`.
    ///
    /// # Errors
    /// Returns a sentence that names the mistake in the name, or refuses the [regions](Self::check_regions) of the
    /// table.
    pub async fn connect_with_transactions(table_name: &str, transaction_table: &str) -> Result<Self, String> {
        let dynamodb = leasehold_dynamodb::connect(None).await;
        let service = Self::on_tables(&dynamodb, TableSchema::new(table_name), transaction_table)?;
        service.check_regions(&dynamodb, table_name).await
    }

    /// Looks at the regions of the table of the locks, with `dynamodb:DescribeTable`. Where it is in several regions
    /// with strong consistency, what needs transactions is refused. A look that is not answered changes nothing.
    ///
    /// # Errors
    /// Returns a sentence that refuses a global table with eventual consistency.
    pub async fn check_regions(self, dynamodb: &Client, table_name: &str) -> Result<Self, String> {
        let Ok(regions) = regions(dynamodb, table_name).await else { return Ok(self) };
        regions.check(table_name, true).map_err(|refused| refused.to_string())?;
        let is_multi_region = regions == Regions::Strong;
        Ok(Self {
            service: self.service.multi_region(is_multi_region),
            transactions: self.transactions.map(|transactions| transactions.multi_region(is_multi_region)),
        })
    }

    /// Returns the service on these tables, with transactions, which may use all other tables. `dynamodb` is used as in
    /// [`InProcess::on_table`].
    ///
    /// # Errors
    /// Returns a sentence that names the mistake in the names of `schema`.
    pub fn on_tables(dynamodb: &Client, schema: TableSchema, transaction_table: &str) -> Result<Self, String> {
        let protected = vec![schema.table_name.clone()];
        let locks = Self::on_table(dynamodb, schema, Policy::default())?;
        let client = Client::from_conf(leasehold_dynamodb::configure(dynamodb.config().to_builder()).build());
        let policy = transactions::Policy::default();
        let transactions = Transactions::new(&client, transaction_table, policy, Clock::system(), protected);
        Ok(locks.with_transactions(TransactionService::new(transactions)))
    }

    /// Returns the service on this table. `dynamodb` keeps its credentials, region and connections. Its retries and
    /// time-outs are set as the protocol requires.
    ///
    /// # Errors
    /// Returns a sentence that names the mistake in the names of `schema`.
    pub fn on_table(dynamodb: &Client, schema: TableSchema, policy: Policy) -> Result<Self, String> {
        schema.check()?;
        let config = leasehold_dynamodb::configure(dynamodb.config().to_builder()).build();
        Ok(Self::new(Service::new(LockTable::new(Client::from_conf(config), schema, policy, Clock::system()))))
    }
}

impl Transport for InProcess {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        async move {
            if let Some(response) = answer(&self.service, &request).await {
                return Ok(response);
            }
            if let Some(service) = &self.transactions
                && let Some(response) = answer(service, &request).await
            {
                return Ok(response);
            }
            Err(TransportError::not_sent("the service has no such path"))
        }
        .boxed()
    }
}

/// Returns the answer of one service, if the path is one of its own.
async fn answer<S: Routed>(service: &S, request: &Request<Vec<u8>>) -> Option<Response<Vec<u8>>> {
    let route = S::ROUTES.iter().find(|route| route.operation.path == request.uri().path())?;
    let admitted = match route.admit(Caller::unrestricted()) {
        Ok(admitted) => admitted,
        Err(problem) => return Some(problem_response(&problem)),
    };
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let query = request.uri().query().unwrap_or_default();
    let parts = HttpRequest { method: request.method(), content_type, query, body: request.body() };
    Some(handle(service, &admitted, parts).await)
}
