//! The functions as Lambda runs them: the real binaries, each in a sandbox of its own.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod handlers;
mod start;
mod sweep;
mod trace;
