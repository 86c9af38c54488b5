//! The `leasehold` command as its users run it: real processes, a real service, signals.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_raw_string_hashes,
    reason = "a test fails by a panic; the hashes are snapbox's"
)]

mod completions;
mod connection;
mod coordination;
mod cost;
mod damage;
mod demo;
mod endpoints;
mod fenced_store;
mod front;
mod guard;
mod history;
mod keeping;
mod lambda;
mod neighbours;
mod operator;
mod printed;
mod run;
mod serve;
mod support;
mod terraform;
mod transfers;
mod watch;
