//! Transactions, on the embedded engine, under virtual time.

mod history;
mod matrix;
mod serialisability;
mod stories;
mod traps;
