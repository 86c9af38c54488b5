//! One file for each command: its arguments, and a `main` that does the work.

pub(crate) mod acquire;
pub(crate) mod agent;
pub(crate) mod backup;
pub(crate) mod break_lock;
pub(crate) mod capacity;
pub(crate) mod console;
pub(crate) mod cost;
pub(crate) mod demo;
pub(crate) mod documents;
pub(crate) mod elect;
pub(crate) mod exec;
pub(crate) mod fenced_write;
pub(crate) mod get;
pub(crate) mod guard;
pub(crate) mod heartbeat;
pub(crate) mod history;
pub(crate) mod ls;
pub(crate) mod occurrence;
pub(crate) mod release;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod terraform;
pub(crate) mod token;
pub(crate) mod transactions;
pub(crate) mod watch;
