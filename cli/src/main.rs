//! The `leasehold` command.

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use leasehold_cli::serve::{self, ServeArgs};

/// A request is some hundred small allocations, most of them the AWS SDK's and the engine's: a fifth of its time with the
/// system's allocator, a tenth with this one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The embedded engine writes its file on such threads, one request at a time: more of them would only wait, each with
/// megabytes of its own.
const MAX_BLOCKING_THREADS: usize = 4;

/// Locks on one DynamoDB table: no server to run, no clocks to trust.
#[derive(Parser)]
#[command(name = "leasehold", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the lock service on this machine.
    Serve(ServeArgs),
}

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasehold: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(MAX_BLOCKING_THREADS).build()?;
    match command {
        Command::Serve(args) => Ok(runtime.block_on(serve::main(args))?),
    }
}
