//! Transactions, on the embedded engine, under virtual time.

mod matrix;
mod stories;
mod traps;
