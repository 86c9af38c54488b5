//! # Transactions: atomic, isolated changes to many DynamoDB items
//!
//! A **transaction** locks items and changes them provisionally. One conditional write then commits all changes, or
//! none. A transaction may stay open over many calls, and may have more items than TransactWriteItems takes. Any number
//! of stateless coordinators may work on it, each of which may crash at any point. The multi-phase commit is that of
//! "From CD to ACID: Adding Atomicity and Isolation to DynamoDB", with its steps batched into TransactWriteItems calls.
//!
//! ```text
//! transactions  the calls: begin, add, commit, rollback, run, status
//! coordinator   THE PROTOCOL, and why it is safe
//! enlist        adding: lock and change items, with their undo in them
//! settle        the decision
//! life          the life cycle, as pure functions
//! complete      freeing the items of a decided transaction
//! effort        contention: the limits of patience with other transactions
//! one_shot      the short path, where one call is enough
//! read          reads outside of transactions, at an isolation level
//! sweep         ends transactions that coordinators left unfinished
//! operate       the operators' calls: list, find strays, unlock
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

mod attributes;
mod capacity;
mod complete;
mod coordinator;
mod effort;
mod enlist;
mod error;
mod expression;
mod key;
pub mod life;
mod model;
mod one_shot;
mod operate;
mod prepare;
mod projection;
mod read;
mod record;
mod schema;
mod settle;
mod sweep;
mod tables;
mod transactions;
mod write;

pub use attributes::{Item, RESERVED_PREFIX};
pub use aws_sdk_dynamodb::types::AttributeValue;
pub use capacity::{Units, measured};
pub use coordinator::{Policy, Transactions};
pub use error::{Error, Source};
pub use key::ItemKey;
pub use model::{
    Action, Answer, Expected, Isolation, Operation, Participant, PublicId, ReturnValues, State, Status, Stray,
    StrayPage, StraysRequest, Swept, TransactionId, TransactionPage, TransactionRequest,
};
pub use read::{ItemPage, ListRequest, ReadRequest};
pub use schema::ensure_table;
