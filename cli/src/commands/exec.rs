//! The process that a guardian starts in place of the command. It ties itself to the life of its parent, and becomes
//! the command.

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

/// Returns a command line that becomes `command` once it is spawned. On Linux the command is killed when the
/// thread that spawned it ends, by whatever cause. (Setting that in the child itself needs unsafe code, or a program
/// like this one.)
pub(crate) fn tied(command: &[OsString]) -> Command {
    let mut tied = Command::new(own_binary());
    tied.arg0("leasehold").args([NAME, "--parent", &std::process::id().to_string(), "--"]).args(command);
    tied
}

/// Becomes the command. Returns only after a failure.
pub(crate) fn main(args: &ExecArgs) -> Failure {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL) {
        return Failure::failed(format!("cannot be tied to the parent: {error}"));
    }
    // The parent may have ended before the line above.
    if getppid().as_raw() != args.parent {
        return Failure::failed("the parent is gone");
    }
    let Some((program, rest)) = args.command.split_first() else { return Failure::usage("which command?") };
    let error = Command::new(program).args(rest).exec();
    let status = if error.kind() == ErrorKind::NotFound { status::COMMAND_NOT_FOUND } else { status::CANNOT_EXECUTE };
    Failure::new(status, "cannot-run", format!("cannot run {}: {error}", program.display()))
}

/// The path of this program, even if its file was replaced since the start.
pub(crate) fn own_binary() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { running } else { std::env::current_exe().unwrap_or(running) }
}
