//! # Semaphores: several holders of one row, and a queue of waiters
//!
//! A **semaphore** is one row with `capacity` permits. A grant takes some of them. Each holder has a lease, a version
//! and a fencing token of its own: it is renewed and judged dead by itself. Counting semaphores, weighted permits,
//! read/write locks (a reader takes one permit, a writer all) and fair locks (one permit, and the queue) are the same
//! rows.
//!
//! ```text
//! model       requests, and the public ids of holders and tickets
//! lifecycle   the rules, as pure functions of (row, request, stamp)
//! expressions the same rules as DynamoDB expressions
//! item        the attributes of a semaphore's row
//! several     permits as one of several keys that are wanted together
//! table       carries out the expressions
//! ```
//!
//! **One write.** `available` and `holders` change in the same conditional write, so the count and the list cannot
//! drift apart. The old row decides the answer. An operation takes a second write in two cases: the first request for a
//! key creates the row, and an acquire of a higher sequence by its own holder renews the lease.
//!
//! **Public ids.** The row names a holder or a ticket by a hash of its lease id and its key. This hash differs from the
//! stored proof of possession: an id is public and proves nothing. An id can be guessed where the lease id can.
//!
//! **Limits.** 100 holders, 100 tickets, owner names of 128 bytes, 256 bytes of data a holder. DynamoDB bills a write
//! by the size of the row, which has about 43 KB with all of them.

pub(crate) mod expressions;
mod item;
pub mod lifecycle;
mod model;
pub(crate) mod several;
mod table;

pub use item::OWNER;
pub use lifecycle::{
    Ahead, Claim, Ended, Entry, Found, Grant, Holder, Refusal, Ring, Semaphore, Spent, Step, Ticket, Tombstone,
};
pub use model::*;
