//! `leasehold completions` and `leasehold man`: generated from the same definitions as the help.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::Failure;

/// Print a completion script for a shell.
///
/// For bash: leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    shell: Shell,
}

/// Print the manual page, or write the pages of all commands into a folder.
///
/// For the manual to find them: leasehold man ~/.local/share/man/man1
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The folder; it is made where it is missing. Without it, the main page goes to standard output.
    folder: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, command: &Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut without_hidden(command), "leasehold", &mut script);
    print(&script)
}

pub(crate) fn man(args: ManArgs, command: Command) -> Result<(), Failure> {
    let Some(folder) = args.folder else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page).map_err(|error| Failure::output(&error))?;
        return print(&page);
    };
    let cannot_write = |error| Failure::failed(format!("cannot write to {}: {error}", folder.display()));
    std::fs::create_dir_all(&folder).map_err(cannot_write)?;
    clap_mangen::generate_to(command, &folder).map_err(cannot_write)
}

fn print(document: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(document).and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}

/// The generators for some shells offer hidden commands as well.
fn without_hidden(command: &Command) -> Command {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("leasehold").version(env!("CARGO_PKG_VERSION")).subcommands(visible)
}
