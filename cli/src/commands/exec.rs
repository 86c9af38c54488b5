//! The process that `run` starts in place of the command itself: it ties the command to the life of its parent, and
//! becomes it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use nix::unistd::getppid;

use crate::Failure;
use crate::failure::status;

/// The name of this hidden subcommand.
pub(crate) const NAME: &str = "exec-tied";

/// Become a command that ends with its parent.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The process that started this one. Another parent means that it has died.
    #[arg(long)]
    parent: i32,

    /// The command to become.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// A command line that, once spawned, becomes `command`, and on Linux gets a SIGTERM when the thread that spawned it
/// ends, by whatever cause. (To set that in the child itself takes unsafe code, or a program like this.)
pub(crate) fn tied(command: &[OsString]) -> Command {
    let mut tied = Command::new(own_binary());
    tied.arg0("leasehold").args([NAME, "--parent", &std::process::id().to_string(), "--"]).args(command);
    tied
}

/// Does not return but for a failure.
pub(crate) fn main(args: &ExecArgs) -> Failure {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM) {
        return Failure::failed(format!("cannot be tied to the parent: {error}"));
    }
    // It may have ended before the line above.
    if getppid().as_raw() != args.parent {
        return Failure::failed("the parent is gone");
    }
    let Some((program, rest)) = args.command.split_first() else { return Failure::usage("which command?") };
    let error = Command::new(program).args(rest).exec();
    let status = if error.kind() == ErrorKind::NotFound { status::COMMAND_NOT_FOUND } else { status::CANNOT_EXECUTE };
    Failure::new(status, "cannot-run", format!("cannot run {}: {error}", program.display()))
}

/// This program, even if its file was replaced since it started.
pub(crate) fn own_binary() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { running } else { std::env::current_exe().unwrap_or(running) }
}
