//! Transactions, on the embedded engine, under virtual time.

mod stories;
mod traps;
