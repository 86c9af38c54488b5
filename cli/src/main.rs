//! The `leasehold` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use leasehold_cli::serve::{self, ServeArgs};

/// A request is some hundred small allocations, most of them the AWS SDK's and the engine's: a fifth of its time with the
/// system's allocator, a tenth with this one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Locks on one DynamoDB table: no server to run, no clocks to trust.
#[derive(Parser)]
#[command(name = "leasehold", version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the lock service on this machine.
    Serve(ServeArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Serve(args) => serve::main(args).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasehold: {error}");
            ExitCode::FAILURE
        }
    }
}
