//! The table of the transactions' operations.

use http::Method;
use leasehold_wire::{Problem, ProblemType, path};
use serde::Serialize;
use serde_json::value::RawValue;

use super::TransactionService;
use crate::access::Caller;
use crate::route::{Answering, Input, Route, document};

/// The maximum size of an answer. A Lambda function's answer has at most 6 MB, and contains the document with its
/// quotes escaped.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// The operations of the transaction service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionOperation {
    /// `POST /v1/transactions/begin`
    Begin,
    /// `POST /v1/transactions/add`
    Add,
    /// `POST /v1/transactions/commit`
    Commit,
    /// `POST /v1/transactions/rollback`
    Rollback,
    /// `GET /v1/transaction`
    Get,
    /// `POST /v1/items/get`
    GetItems,
    /// `POST /v1/items/list`
    ListItems,
    /// `POST /v1/transactions/sweep`
    Sweep,
    /// `GET /v1/transactions`
    List,
    /// `POST /v1/transactions/unlock`
    Unlock,
}

impl TransactionOperation {
    /// The operations of callers.
    pub const FOR_CALLERS: &'static [Self] =
        &[Self::Begin, Self::Add, Self::Commit, Self::Rollback, Self::Get, Self::GetItems, Self::ListItems];

    /// The operations of operators.
    pub const FOR_OPERATORS: &'static [Self] = &[Self::Sweep, Self::List, Self::Unlock];
}

impl Route for TransactionOperation {
    type Service = TransactionService;

    const ALL: &'static [Self] = &[
        Self::Begin,
        Self::Add,
        Self::Commit,
        Self::Rollback,
        Self::Get,
        Self::GetItems,
        Self::ListItems,
        Self::Sweep,
        Self::List,
        Self::Unlock,
    ];

    /// An event of a Lambda function has at most 6 MB, and contains the body with its quotes escaped. Larger
    /// transactions use several adds.
    const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

    fn path(self) -> &'static str {
        match self {
            Self::Begin => path::BEGIN,
            Self::Add => path::ADD,
            Self::Commit => path::COMMIT,
            Self::Rollback => path::ROLLBACK,
            Self::Get => path::TRANSACTION,
            Self::GetItems => path::ITEMS_GET,
            Self::ListItems => path::ITEMS_LIST,
            Self::Sweep => path::SWEEP,
            Self::List => path::TRANSACTIONS,
            Self::Unlock => path::UNLOCK,
        }
    }

    fn method(self) -> Method {
        if matches!(self, Self::Get | Self::List) { Method::GET } else { Method::POST }
    }

    fn action(self) -> Option<&'static str> {
        Some(match self {
            Self::Begin => "begin",
            Self::Add => "add",
            Self::Commit => "commit",
            Self::Rollback => "rollback",
            Self::Get => "get-transaction",
            Self::GetItems => "get-items",
            Self::ListItems => "list-items",
            Self::Sweep => "sweep",
            Self::List => "list-transactions",
            Self::Unlock => "unlock",
        })
    }

    fn carry_out<'a>(self, service: &'a TransactionService, _caller: &'a Caller, input: Input<'a>) -> Answering<'a> {
        Box::pin(async move {
            match self {
                Self::Begin => fitting(&service.begin(input.read()?).await?),
                Self::Add => fitting(&service.add(input.read()?).await?),
                Self::Commit => fitting(&service.commit(input.read()?).await?),
                Self::Rollback => fitting(&service.rollback(input.read()?).await?),
                Self::Get => fitting(&service.get(input.read()?).await?),
                Self::GetItems => fitting(&service.get_items(input.read()?).await?),
                Self::ListItems => fitting(&service.list_items(input.read()?).await?),
                Self::Sweep => fitting(&service.sweep(input.read()?).await?),
                Self::List => fitting(&service.list(input.read()?).await?),
                Self::Unlock => fitting(&service.unlock(input.read()?).await?),
            }
        })
    }
}

fn fitting(answer: &impl Serialize) -> Result<Box<RawValue>, Problem> {
    let document = document(answer);
    let bytes = document.get().len();
    if bytes > MAX_ANSWER_BYTES {
        let detail = format!(
            "The request was carried out, but its answer has {bytes} bytes, and at most {MAX_ANSWER_BYTES} are allowed. Ask for \
             fewer items at a time, or for less of each."
        );
        return Err(Problem::new(ProblemType::TooLarge, detail));
    }
    Ok(document)
}
