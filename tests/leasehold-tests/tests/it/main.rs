//! All tests in one binary, so that the SDK is linked once.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unchecked_time_subtraction,
    reason = "a test fails by a panic, and sleeps are virtual"
)]

mod access;
mod cleanup;
mod client;
mod conformance;
mod documented;
mod events;
mod expiry;
mod faults;
mod history;
mod lengths;
mod occurrence;
mod openapi;
mod operations;
mod permissions;
mod property;
mod property_bench;
mod refusals;
mod regions;
mod restored;
mod semaphore;
mod semaphore_property;
mod simulation;
mod together;
mod transaction_api;
mod transactions;
mod upgrade;
mod virtual_time;
mod want;
mod watch;
