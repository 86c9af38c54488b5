//! # The lock protocol, on one DynamoDB table
//!
//! A **lock** is one row that at most one holder owns. [`LockTable`] acquires, renews, releases and breaks it, each
//! with exactly one conditional write. DynamoDB returns the old row with that write, applied or refused, and the answer
//! follows from that row. No read comes before the write, and none after it. Only a deleted lock's additional
//! attributes cost a second write, which is tried once.
//!
//! ```text
//! model       the words as types: a value that exists is valid
//! step        the result of a rule: row, write and answer
//! lifecycle   the rules, as pure functions of (row, request, stamp)
//! expressions the same rules as DynamoDB expressions
//! write       a conditional write, assembled from conditions and assignments
//! item        the table's attributes, byte-compatible with the DynamoDB Lock Client for Java
//! table       makes the writes, through leasehold-dynamodb, and resolves ambiguity
//! schema      creates the table, for local runs
//! semaphore   several holders of one row, and a queue
//! history     what the images of rows tell about their holders, and the table that keeps it
//! ```
//!
//! **Roles.** The service keeps no state and compares no clocks. An *observer* polls and compares record version
//! numbers. It asks for a takeover by naming the one that it saw unchanged for the record's own lease. A *holder*
//! counts its lease from before it sent the last good request. A protected resource should check the `fencingToken` of
//! a grant: an advisory lock cannot stop a holder that was paused.
//!
//! **Answers and errors.** A held or a lost lock is an answer ([`AcquireAnswer`], [`HeartbeatAnswer`] and so on). An
//! [`Error`] means that there is no answer, and its [`ErrorKind`] says what to do.
//!
//! **Ambiguity.** A time-out does not say whether the write was applied. Every request may be retried with the same
//! lease id; the old row tells an applied attempt from a refused one.
//!
//! **Limits.** Keys of 2048 bytes, sort keys of 1024, payloads of 256 KiB, leases of 100 ms to a day. Throughput per
//! key is that of one DynamoDB item: about 1000 writes a second.

mod attributes;
mod error;
mod expressions;
pub mod history;
mod item;
pub mod lifecycle;
mod model;
mod schema;
pub mod semaphore;
mod step;
mod table;
mod write;

pub use attributes::Item;
pub use aws_sdk_dynamodb::types::AttributeValue;
pub use error::{Error, ErrorKind};
pub use item::{EXPIRE_AT, RESERVED_ATTRIBUTES, TableSchema};
pub use lifecycle::together::{AcquireAllAnswer, GrantOfAll, Refused, View};
pub use lifecycle::{
    AcquireAnswer, BreakAnswer, CorruptRecord, Field, Grant, GrantOutcome, HeartbeatAnswer, LockState, LockView, Lost,
    LostReason, OccurrenceAnswer, Policy, Previous, ReleaseAnswer, ReleaseOutcome, Released, Row, Stamp, Superseded,
    WantAnswer,
};
pub use model::*;
pub use schema::{check_table, ensure_table};
pub use step::Step;
pub use table::{Expired, ListQuery, LockTable, Page, Record};
