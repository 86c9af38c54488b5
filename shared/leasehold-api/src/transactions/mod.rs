//! Transactions: one operation, from a request to its response, and the log line about it.

mod convert;
pub(crate) mod dynamodb_json;
mod limits;

use leasehold_transactions::{Error, Expected, PublicId, Swept, TransactionId, Transactions};
use leasehold_wire::transactions::{
    AddRequest, AddResponse, BeginRequest, BeginResponse, CommitRequest, CommitResponse, ConsumedCapacity, EndRequest,
    EndResponse, GetItemsRequest, GetItemsResponse, GetTransactionRequest, ListItemsRequest, ListItemsResponse,
    ListTransactionsRequest, ListTransactionsResponse, ReturnConsumedCapacity, StraysRequest, StraysResponse,
    SweepRequest, SweepResponse, Transaction, TransactionState, UnlockRequest, UnlockResponse,
};
use leasehold_wire::{Problem, ProblemType};
use tracing::{Span, field};

use self::convert::Added;
use crate::counts;
use crate::traced::{OperationSpan, traced, wire_name};

const DEFAULT_SWEEP: u32 = 100;
const MAX_LIMIT: u32 = 1000;

const MAX_CALL_ID_BYTES: usize = 64;

const NOT_YET: &str = "No transaction has this id: none was begun so far, or it ended so long ago that it was removed. A call \
                       that is still under way may begin it; a rollback of the transactionId makes sure that none does.";

/// The transaction service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TransactionService {
    transactions: Transactions,
    pub(crate) is_multi_region: bool,
}

impl TransactionService {
    /// The service over these transactions.
    pub fn new(transactions: Transactions) -> Self {
        Self { transactions, is_multi_region: false }
    }

    /// Refuses everything: the service's locks are in several regions, where DynamoDB has no transactions.
    #[must_use]
    pub fn multi_region(self, is_multi_region: bool) -> Self {
        Self { is_multi_region, ..self }
    }

    /// Whether everything is refused.
    pub fn is_multi_region(&self) -> bool {
        self.is_multi_region
    }

    /// The time between two sweeps of one process after which a transaction that they saw unchanged is rolled back.
    pub fn idle_time(&self) -> std::time::Duration {
        self.transactions.sweeper.idle_time()
    }

    /// `POST /v1/transactions/begin`
    ///
    /// # Errors
    /// Those of [`Self::add`], and with `commit` those of [`Self::commit`].
    pub async fn begin(&self, request: BeginRequest) -> Result<BeginResponse, Problem> {
        let count = request.requests.as_ref().map_or(0, Vec::len);
        let id = request.transaction_id.as_deref().map(transaction_id).transpose();
        let named = id.as_ref().ok().and_then(Option::as_ref).map(TransactionId::public);
        traced_boxed(operation_span("begin", named.as_ref(), count), async {
            let id = id?;
            let is_named = id.is_some();
            let wanted = request.return_consumed_capacity;
            let (response, consumed_capacity) = measured(wanted, self.begin_as(id, request)).await?;
            let response = BeginResponse { consumed_capacity, ..response };
            if let (false, Some(id)) = (is_named, TransactionId::parse(&response.transaction_id)) {
                Span::current().record("transaction", id.public().as_str());
            }
            Ok((wire_name(response.state), response))
        })
        .await
    }

    async fn begin_as(&self, id: Option<TransactionId>, request: BeginRequest) -> Result<BeginResponse, Problem> {
        let commit = request.commit.unwrap_or(false);
        let is_named = id.is_some();
        let failed = |error: Error| {
            let problem = logged_problem(&error);
            if is_named { problem } else { convert::without_id(problem) }
        };
        let retry_of = request.retry_of.as_deref().map(|id| known("retryOf", TransactionId::parse(id))).transpose()?;
        let Some(entries) = request.requests else {
            if commit {
                return Err(Problem::invalid("requests", "To commit at once, give the requests, too."));
            }
            let id = self.transactions.begin(id, retry_of.as_ref()).await.map_err(failed)?;
            return Ok(begun(&id, TransactionState::Pending, None));
        };
        if commit && entries.is_empty() {
            return Err(Problem::invalid("requests", "There is nothing to commit."));
        }
        let requests = convert::requests(entries)?;
        let (state, done) = if commit {
            (TransactionState::Committed, self.transactions.run(id, retry_of.as_ref(), requests).await)
        } else {
            (TransactionState::Pending, self.transactions.begin_with(id, retry_of.as_ref(), requests).await)
        };
        let (id, answers) = done.map_err(failed)?;
        Ok(begun(&id, state, Some(answers)))
    }

    /// `POST /v1/transactions/add`
    ///
    /// # Errors
    /// `transaction-not-found`, `rolled-back`, `committed`, `condition-failed`, `contended`, and those of any
    /// operation: `invalid-request`, `too-large`, `forbidden`, `corrupt-record`, `throttled`, `unavailable`.
    pub async fn add(&self, request: AddRequest) -> Result<AddResponse, Problem> {
        let id = transaction_id(&request.transaction_id);
        traced_boxed(operation_span("add", public(&id).as_ref(), request.requests.len()), async {
            let id = id?;
            let call_id = request.call_id.as_deref();
            if call_id.is_some_and(|call_id| call_id.is_empty() || call_id.len() > MAX_CALL_ID_BYTES) {
                let detail = format!("callId must have 1 to {MAX_CALL_ID_BYTES} bytes.");
                return Err(Problem::invalid("callId", detail));
            }
            let added = convert::added(request.requests)?;
            let added = async {
                match added {
                    Added::Requests(requests) => {
                        let answers = self.transactions.add(&id, requests, call_id).await;
                        answers.map(|answers| answers.into_iter().map(convert::answer).collect())
                    }
                    Added::Query(query) => {
                        let items = self.transactions.query(&id, &query, call_id).await;
                        items.map(|items| vec![convert::found(items)])
                    }
                }
                .map_err(|error| logged_problem(&error))
            };
            let (answers, consumed_capacity) = measured(request.return_consumed_capacity, added).await?;
            let transaction_id = id.reveal().to_owned();
            Ok(("added".to_owned(), AddResponse { transaction_id, answers, consumed_capacity }))
        })
        .await
    }

    /// `POST /v1/transactions/commit`
    ///
    /// # Errors
    /// `transaction-not-found`, `rolled-back`, and those of any operation.
    pub async fn commit(&self, request: CommitRequest) -> Result<CommitResponse, Problem> {
        let id = transaction_id(&request.transaction_id);
        traced_boxed(operation_span("commit", public(&id).as_ref(), 0), async {
            let id = id?;
            let expected = Expected { items: request.expected_items, writes: request.expected_writes };
            let committed = async {
                self.transactions.commit_expected(&id, expected).await.map_err(|error| logged_problem(&error))
            };
            let (overwritten, consumed_capacity) = measured(request.return_consumed_capacity, committed).await?;
            let response = CommitResponse {
                transaction_id: id.reveal().to_owned(),
                state: TransactionState::Committed,
                overwritten: overwritten.iter().map(convert::item_name).collect(),
                consumed_capacity,
            };
            Ok((wire_name(response.state), response))
        })
        .await
    }

    /// `POST /v1/transactions/rollback`
    ///
    /// # Errors
    /// `transaction-not-found`, `committed`, and those of any operation.
    pub async fn rollback(&self, request: EndRequest) -> Result<EndResponse, Problem> {
        let id = transaction_id(&request.transaction_id);
        traced_boxed(operation_span("rollback", public(&id).as_ref(), 0), async {
            let id = id?;
            let rolled_back = async { self.transactions.rollback(&id).await.map_err(|error| logged_problem(&error)) };
            let ((), consumed_capacity) = measured(request.return_consumed_capacity, rolled_back).await?;
            let transaction_id = id.reveal().to_owned();
            let response = EndResponse { transaction_id, state: TransactionState::RolledBack, consumed_capacity };
            Ok((wire_name(response.state), response))
        })
        .await
    }

    /// `GET /v1/transaction`
    ///
    /// # Errors
    /// `transaction-not-found`, and those of any operation.
    pub async fn get(&self, request: GetTransactionRequest) -> Result<Transaction, Problem> {
        let (secret, id) = match (&request.id, &request.public_id) {
            (Some(id), None) => {
                let id = known("id", TransactionId::parse(id))?;
                (Some(id.clone()), id.public())
            }
            (None, Some(id)) => (None, public_id(id)?),
            _ => return Err(Problem::invalid("id", "Give either id or publicId.")),
        };
        traced_boxed(operation_span("get-transaction", Some(&id), 0), async {
            let status = self.transactions.status(&id).await.map_err(|error| match error {
                // A read spends no id: another call may still begin this one.
                Error::NotFound => Problem::new(ProblemType::TransactionNotFound, NOT_YET),
                error => logged_problem(&error),
            })?;
            let transaction = convert::status(status, secret.as_ref());
            Ok((wire_name(transaction.state), transaction))
        })
        .await
    }

    /// `GET /v1/transactions`
    ///
    /// # Errors
    /// Those of any operation.
    pub async fn list(&self, request: ListTransactionsRequest) -> Result<ListTransactionsResponse, Problem> {
        traced_boxed(operation_span("list-transactions", None, 0), async {
            let limit = within_limits(request.limit.unwrap_or(DEFAULT_SWEEP))? as usize;
            let only_stuck = request.stuck.unwrap_or(false);
            let page = self.transactions.operator.unfinished(only_stuck, limit, request.cursor.as_deref()).await;
            let page = page.map_err(|error| logged_problem(&error))?;
            Ok(("listed".to_owned(), convert::transactions(page)))
        })
        .await
    }

    /// `POST /v1/transactions/strays`
    ///
    /// # Errors
    /// Those of any operation.
    pub async fn strays(&self, request: StraysRequest) -> Result<StraysResponse, Problem> {
        traced_boxed(operation_span("strays", None, 0), async {
            let limit = within_limits(request.limit.unwrap_or(MAX_LIMIT))?;
            let request = convert::strays_request(request, limit)?;
            let page = self.transactions.operator.strays(&request).await.map_err(|error| logged_problem(&error))?;
            Ok(("examined".to_owned(), convert::strays(page)))
        })
        .await
    }

    /// `POST /v1/transactions/unlock`
    ///
    /// # Errors
    /// Those of any operation.
    pub async fn unlock(&self, request: UnlockRequest) -> Result<UnlockResponse, Problem> {
        traced_boxed(operation_span("unlock", None, 1), async {
            let ended = convert::outcome(request.outcome)?;
            let key = convert::item("key", request.key)?;
            let unlocked = self.transactions.operator.unlock(&request.table_name, &key, &request.lock, ended).await;
            unlocked.map_err(|error| logged_problem(&error))?;
            Ok(("unlocked".to_owned(), UnlockResponse { outcome: request.outcome }))
        })
        .await
    }

    /// `POST /v1/items/get`
    ///
    /// # Errors
    /// Those of any operation.
    pub async fn get_items(&self, request: GetItemsRequest) -> Result<GetItemsResponse, Problem> {
        let count = request.requests.as_ref().map_or(1, Vec::len);
        traced_boxed(operation_span("get-items", None, count), async {
            let isolation = convert::isolation(request.isolation.unwrap_or_default());
            let wanted = request.return_consumed_capacity;
            let (requests, is_single) = convert::reads(request)?;
            let read = async {
                self.transactions.reader.read(requests, isolation).await.map_err(|error| {
                    let problem = logged_problem(&error);
                    if is_single { convert::without_index(problem) } else { problem }
                })
            };
            let (items, consumed_capacity) = measured(wanted, read).await?;
            Ok(("read".to_owned(), GetItemsResponse { consumed_capacity, ..convert::items(items, is_single) }))
        })
        .await
    }

    /// `POST /v1/items/list`
    ///
    /// # Errors
    /// Those of any operation.
    pub async fn list_items(&self, request: ListItemsRequest) -> Result<ListItemsResponse, Problem> {
        traced_boxed(operation_span("list-items", None, 1), async {
            let isolation = convert::isolation(request.isolation.unwrap_or_default());
            let limit = request.limit.map(within_limits).transpose()?;
            let wanted = request.return_consumed_capacity;
            let request = convert::list(request, limit)?;
            let listed = async {
                self.transactions.reader.list(&request, isolation).await.map_err(|error| logged_problem(&error))
            };
            let (page, consumed_capacity) = measured(wanted, listed).await?;
            Ok(("listed".to_owned(), ListItemsResponse { consumed_capacity, ..convert::page(page) }))
        })
        .await
    }

    /// `POST /v1/transactions/sweep`
    ///
    /// # Errors
    /// Those of any operation.
    pub async fn sweep(&self, request: SweepRequest) -> Result<SweepResponse, Problem> {
        traced_boxed(operation_span("sweep", None, 0), async {
            let limit = within_limits(request.limit.unwrap_or(DEFAULT_SWEEP))?;
            let swept = match request.public_id.as_deref().map(public_id).transpose()? {
                Some(id) => self.transactions.sweeper.sweep_named(&id).await,
                None => self.transactions.sweeper.sweep(limit as usize).await,
            };
            let swept = swept.map_err(|error| logged_problem(&error))?;
            counts::count_swept(&swept);
            Ok((summary(&swept), convert::swept(&swept)))
        })
        .await
    }
}

/// Carries out some work, and returns also the capacity that it consumed, if the caller wants to know.
async fn measured<T>(
    wanted: Option<ReturnConsumedCapacity>,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<(T, Option<Vec<ConsumedCapacity>>), Problem> {
    if wanted.unwrap_or_default() == ReturnConsumedCapacity::None {
        return Ok((work.await?, None));
    }
    let (result, units) = leasehold_transactions::measured(work).await;
    Ok((result?, Some(units.into_iter().map(convert::consumed_capacity).collect())))
}

/// Runs one operation, writes its log line and counts it.
fn traced_boxed<T>(
    span: OperationSpan,
    work: impl Future<Output = Result<(String, T), Problem>> + Send,
) -> impl Future<Output = Result<T, Problem>> + Send {
    // Boxed: the protocol's futures are so deeply nested that the compiler cannot handle a future that contains one
    // directly.
    traced(span, Box::pin(work))
}

/// Makes the span of an operation. The log contains no item.
fn operation_span(name: &'static str, id: Option<&PublicId>, requests: usize) -> OperationSpan {
    let span = tracing::info_span!(
        "operation",
        operation = name,
        transaction = field::Empty,
        requests,
        outcome = field::Empty,
    );
    if let Some(id) = id {
        span.record("transaction", id.as_str());
    }
    OperationSpan { name, span }
}

fn begun(
    id: &TransactionId,
    state: TransactionState,
    answers: Option<Vec<leasehold_transactions::Answer>>,
) -> BeginResponse {
    let answers = answers.map(|answers| answers.into_iter().map(convert::answer).collect());
    BeginResponse { transaction_id: id.reveal().to_owned(), state, answers, consumed_capacity: None }
}

fn summary(swept: &Swept) -> String {
    let Swept { examined, rolled_back, completed, stuck, failed, .. } = swept;
    format!(
        "swept: {examined} examined, {rolled_back} rolled back, {completed} completed, {stuck} stuck, {failed} failed"
    )
}

fn transaction_id(text: &str) -> Result<TransactionId, Problem> {
    known("transactionId", TransactionId::parse(text))
}

fn public_id(text: &str) -> Result<PublicId, Problem> {
    known("publicId", PublicId::parse(text))
}

/// Returns the id that this member has.
fn known<T>(member: &str, id: Option<T>) -> Result<T, Problem> {
    id.ok_or_else(|| Problem::invalid(member, format!("{member} must be a UUID.")))
}

fn public(id: &Result<TransactionId, Problem>) -> Option<PublicId> {
    id.as_ref().ok().map(TransactionId::public)
}

fn within_limits(limit: u32) -> Result<u32, Problem> {
    if (1..=MAX_LIMIT).contains(&limit) {
        Ok(limit)
    } else {
        Err(Problem::invalid("limit", format!("limit must be 1 to {MAX_LIMIT}, not {limit}.")))
    }
}

/// Logs the cause of an error, and returns the problem that the caller reads instead.
fn logged_problem(error: &Error) -> Problem {
    let problem = convert::problem(error);
    if matches!(
        problem.problem_type,
        ProblemType::CorruptRecord
            | ProblemType::Forbidden
            | ProblemType::Misconfigured
            | ProblemType::Throttled
            | ProblemType::Unavailable
    ) {
        tracing::warn!(error = error.for_log(), "failed");
    }
    problem
}
