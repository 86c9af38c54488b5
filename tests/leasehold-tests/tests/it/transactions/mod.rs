//! Transactions, on the embedded engine, under virtual time.

mod answers;
mod calls;
mod contention;
mod counts;
mod expressions;
mod guards;
mod history;
mod indexes;
mod keys;
mod large;
mod matrix;
mod measure;
mod property;
mod queries;
mod serialisability;
mod stories;
mod sweeps;
mod traps;
mod truth;
