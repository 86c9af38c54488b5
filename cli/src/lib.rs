//! The library behind the `leasehold` command.
//!
//! [`Cli`] is the command line. `commands` has a file for each command:
//!
//! ```text
//! run, elect   hold a lock while a command runs                  guard, exec tie that command to its keeper
//! acquire, heartbeat, release, break_lock, capacity, occurrence  documents   completions, manual pages
//! get, ls, watch                                                 demo        a story of two hosts (fenced_write: their job)
//! serve        the service on this machine (leasehold-server); console: its page, for any service; token
//! ```
//!
//! The commands share the modules beside `commands`:
//!
//! ```text
//! connection   where the service is                              processes   stops all that a command started
//! lock_args    which lock, and how to ask for it                 signals     what is passed on to it
//! acquiring    waiting that shows itself and can be interrupted  output, failure   what is printed, and exit statuses
//! ```
//!
//! All rules of the caller's side are those of `leasehold-client`.

mod acquiring;
mod child;
mod cli;
mod command_line;
mod commands;
mod connection;
mod duration;
mod failure;
pub mod fenced_store;
mod grant;
mod live_line;
mod lock_args;
mod numbers;
mod observations;
mod output;
mod processes;
mod sightings;
mod signals;
mod systemd;
mod tables;
mod waiting;

pub use cli::Cli;
use failure::Failure;
