//! # Transactions: atomic, isolated changes to many DynamoDB items
//!
//! A **transaction** locks items and changes them provisionally. One conditional write then commits all changes, or
//! none. A transaction may stay open over many calls, and may have more items than TransactWriteItems takes. Any number
//! of stateless coordinators may work on it, each of which may crash at any point. The multi-phase commit is that of
//! "From CD to ACID: Adding Atomicity and Isolation to DynamoDB", with its steps batched into TransactWriteItems calls.
//!
//! ```text
//! transactions  Transactions, the calls: begin, add, query, commit, rollback, run, status
//! read          Reader: reads outside of transactions, at an isolation level
//! sweep         Sweeper: ends transactions that coordinators left unfinished
//! operate       Operator: lists, finds strays, unlocks
//!
//! coordinator   THE PROTOCOL, and why it is safe
//! life          the life cycle, as pure functions
//! one_shot      OneShot: the short path, where one call is enough
//! enlist        Enlister: locks and changes items, with their undo in them
//! answer        what the requests of a call return
//! query         Query: finds items by a key condition, and locks them
//! conflict      waiting for another transaction, or its rollback
//! settle        Settler: the decision, and the end of the transaction
//! complete      freeing the items of a decided transaction
//! ledger        Ledger: the writes of TX records
//! effort        the limits of one call: its pauses, and its patience
//! tables        Tables: the calls to DynamoDB
//! record        the rows of the transactions table
//! attributes    the attributes of an item while it takes part
//! capacity      what a call consumes
//! ```
//!
//! **Guarantees.** All changes of a committed transaction happen, and none of a rolled-back one stays. No other
//! transaction changes an item that a transaction has locked (a [`Get`](Action::Get) locks, too) before the holder's
//! end. Transactions that lock the items they read are therefore serialisable. Readers outside choose an isolation
//! level: [`Isolation`].
//!
//! **Rules for other writers.** A writer that bypasses transactions makes `attribute_not_exists(leaseholdTxId)` a
//! condition of its writes. Names that begin with [`RESERVED_PREFIX`] are the protocol's.
//!
//! **Limits.** An item with its undo has at most 400 KB, and is nested at most 30 deep. One call takes an item once;
//! several calls take it several times. 1000 requests a call, any number of calls.

mod answer;
mod attributes;
mod capacity;
mod complete;
mod conflict;
mod coordinator;
mod effort;
mod enlist;
mod error;
mod expression;
mod id;
mod key;
mod key_condition;
mod ledger;
pub mod life;
mod model;
mod one_shot;
mod operate;
mod prepare;
mod projection;
mod query;
mod read;
mod record;
mod schema;
mod settle;
mod sweep;
mod tables;
mod transactions;
mod write;

pub use attributes::RESERVED_PREFIX;
pub use aws_sdk_dynamodb::types::AttributeValue;
pub use capacity::{Units, measured};
pub use coordinator::Policy;
pub use error::{Error, Source};
pub use id::{PublicId, TransactionId};
pub use key::{Item, ItemKey};
pub use model::{
    Action, Answer, Expected, Isolation, Operation, Participant, QueryRequest, ReturnValues, State, Status, Stray,
    StrayPage, StraysRequest, Swept, TransactionPage, TransactionRequest,
};
pub use operate::Operator;
pub use read::{ItemPage, ListRequest, ReadRequest, Reader};
pub use schema::ensure_table;
pub use sweep::Sweeper;
pub use transactions::Transactions;
