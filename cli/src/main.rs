//! The `leasehold` command.

use std::process::ExitCode;

use leasehold_cli::Cli;

/// The allocator. A request makes some hundred small allocations, most of them in the AWS SDK and the engine. The
/// system's allocator takes a fifth of a request's time, this one a tenth.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::from_command_line().execute()
}
