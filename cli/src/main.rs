//! The `leasehold` command.

use std::process::ExitCode;

use leasehold_cli::Cli;

/// A request is some hundred small allocations, most of them the AWS SDK's and the engine's: a fifth of its time with
/// the system's allocator, a tenth with this one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::from_command_line().execute()
}
