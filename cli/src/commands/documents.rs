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
    /// The shell.
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
    let script = with_wrapped_command(args.shell, String::from_utf8_lossy(&script).into_owned());
    print(script.as_bytes())
}

/// Adds completions of the command after `--`, where a shell can complete another command.
fn with_wrapped_command(shell: Shell, script: String) -> String {
    const HEAD: &str = "_leasehold() {\n";
    let after_head = |added| script.replacen(HEAD, &format!("{HEAD}{added}"), 1);
    match shell {
        Shell::Bash => after_head(include_str!("completions/wrapped.bash")),
        Shell::Zsh => after_head(include_str!("completions/wrapped.zsh")),
        Shell::Fish => script + include_str!("completions/wrapped.fish"),
        _ => script,
    }
}

pub(crate) fn man(args: ManArgs, command: Command) -> Result<(), Failure> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let Some(folder) = args.folder else {
        return print(&page(command).map_err(|error| Failure::output(&error))?);
    };
    let cannot_write = |error| Failure::failed(format!("cannot write to {}: {error}", folder.display()));
    std::fs::create_dir_all(&folder).map_err(cannot_write)?;
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    for command in visible.chain([command.clone()]) {
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        let page = page(command.display_name(&name)).map_err(cannot_write)?;
        std::fs::write(folder.join(format!("{name}.1")), page).map_err(cannot_write)?;
    }
    Ok(())
}

/// Writes the manual page of a command. Its synopsis is the usage of the help, with `--` and `...`. The text after the
/// help becomes a section of exit statuses.
fn page(mut command: Command) -> io::Result<Vec<u8>> {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('\\', "\\\\").replace('-', "\\-");
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (notes, statuses) = after.split_once("Exit status:").unwrap_or((&after, ""));
    let (has_commands, has_version) = (command.has_subcommands(), command.get_version().is_some());
    let man = Man::new(command.after_help(""));

    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    writeln!(page, ".SH SYNOPSIS\n{usage}")?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    section(&mut page, "NOTES", notes)?;
    section(&mut page, "EXIT STATUS", statuses)?;
    if has_version {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

/// A section of text that keeps its lines, if there is any text.
fn section(page: &mut Vec<u8>, title: &str, text: &str) -> io::Result<()> {
    let text = text.trim_matches('\n');
    if text.is_empty() {
        return Ok(());
    }
    writeln!(page, ".SH \"{title}\"\n.nf")?;
    for line in text.lines() {
        // A line that begins with a dot or a quote would be a roff request.
        writeln!(page, "\\&{}", line.replace('\\', "\\\\").replace('-', "\\-"))?;
    }
    writeln!(page, ".fi")
}

fn print(document: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(document).and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}

/// Removes hidden commands, which the generators for some shells would offer.
fn without_hidden(command: &Command) -> Command {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    Command::new("leasehold").version(env!("CARGO_PKG_VERSION")).subcommands(visible)
}
