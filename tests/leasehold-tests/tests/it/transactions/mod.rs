//! Transactions, on the embedded engine, under virtual time.

mod counts;
mod history;
mod matrix;
mod serialisability;
mod stories;
mod traps;
