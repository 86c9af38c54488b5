//! One binary of tests, so that the SDK is linked once.

mod conformance;
mod events;
mod faults;
mod openapi;
mod property;
mod simulation;
mod virtual_time;
