//! # What the `leasehold` command is made of
//!
//! [`Cli`] is the command line. Each command has a module of its own:
//!
//! ```text
//! run          holds a lock for as long as a command takes       exec        ties that command to its parent
//! acquire, heartbeat, release, break_lock                        processes   stops all that it started
//! get, ls, watch                                                 signals     what is passed on to it
//! serve        the service on this machine (server: its HTTP front)
//! demo         a story of two hosts (fenced_write: their job)    documents   completions, manual pages
//! ```
//!
//! They share what is in `connection` (where the service is), `lock_args` (which lock, and how to ask for it), `acquiring`
//! (waiting, such that people see it and a signal leaves nothing behind), `output` and `failure` (what is printed
//! where, and the exit statuses). All rules of the caller's side are those of `leasehold-client`.

mod acquire;
mod acquiring;
mod break_lock;
mod cli;
mod connection;
mod demo;
mod documents;
mod duration;
mod exec;
mod failure;
mod fenced_write;
mod get;
mod heartbeat;
mod live_line;
mod lock_args;
mod ls;
mod observations;
mod output;
mod processes;
mod release;
mod run;
pub mod serve;
pub mod server;
mod signals;
mod waiting;
mod watch;

pub use cli::Cli;
use failure::Failure;
