//! The functions as Lambda runs them: the real binaries, each in its own sandbox.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod executions;
mod handlers;
mod start;
mod states;
mod sweep;
mod terraform;
mod trace;
