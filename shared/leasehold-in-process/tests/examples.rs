//! Each example runs by itself to its end.

#![allow(dead_code, clippy::duplicate_mod, reason = "an example is a program, and each has the local service")]

#[path = "../examples/acquire_and_work.rs"]
mod acquire_and_work;
#[path = "../examples/resume_elsewhere.rs"]
mod resume_elsewhere;
#[path = "../examples/transfer.rs"]
mod transfer;

#[tokio::test]
async fn acquire_and_work_runs_to_its_end() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    acquire_and_work::run().await
}

#[tokio::test]
async fn resume_elsewhere_runs_to_its_end() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    resume_elsewhere::run().await
}

#[tokio::test]
async fn transfer_runs_to_its_end() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    transfer::run().await
}
