//! Transactions, on the embedded engine, under virtual time.

mod contention;
mod counts;
mod guards;
mod history;
mod indexes;
mod matrix;
mod measure;
mod serialisability;
mod stories;
mod traps;
