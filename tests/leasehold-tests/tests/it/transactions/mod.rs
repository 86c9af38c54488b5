//! Transactions, on the embedded engine, under virtual time.

mod counts;
mod guards;
mod history;
mod matrix;
mod serialisability;
mod stories;
mod traps;
