//! The completion scripts, in the shells themselves: keys are typed on a terminal.

use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::support::{end, first_line, folder, leasehold, text_of, within};

/// The package of further completions for bash.
const BASH_COMPLETION: &str = "/usr/share/bash-completion/bash_completion";

/// A folder with a command, a file, and the completion script `name` for `shell`.
async fn folder_for(shell: &str, name: &str) -> TempDir {
    let folder = folder();
    let mut command = leasehold(folder.path());
    command.args(["completions", shell]);
    let script = end(command).await.ok();
    write(folder.path(), name, &script);
    let program = folder.path().join("bin/probe-command");
    write(folder.path(), "bin/probe-command", "#!/bin/sh\n");
    let mut executable = std::fs::metadata(&program).expect("written").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut executable, 0o755);
    std::fs::set_permissions(&program, executable).expect("ours");
    write(folder.path(), "first-file", "");
    folder
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("ours");
    std::fs::write(path, text).expect("ours");
}

/// Types on a terminal of `shell`. Returns the words that reach the command. The start of the shell makes a file
/// `ready`, and its function `leasehold` writes its arguments, in one line, to a file `typed`.
async fn type_in(folder: &Path, shell: &str, keys: &str) -> String {
    let path = format!("{}:{}", text_of(&folder.join("bin")), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("script");
    command.args(["-qefc", shell, "/dev/null"]).current_dir(folder).env("PATH", path).env("TERM", "xterm");
    for variable in ["HOME", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        command.env(variable, folder);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let mut terminal = command.spawn().expect("script, of util-linux");
    let mut keyboard = terminal.stdin.take().expect("piped");
    first_line(&folder.join("ready")).await;
    keyboard.write_all(keys.as_bytes()).await.expect("the shell reads");
    let typed = first_line(&folder.join("typed")).await;
    keyboard.write_all(b"exit\r").await.expect("the shell reads");
    within(terminal.wait()).await.expect("it ends");
    typed
}

/// Whether this machine has the shell. If not, its test says so.
fn is_here(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    if !found {
        eprintln!("NOT TRIED: there is no {program} here");
    }
    found
}

const BASH: &str = "source ./leasehold.bash
complete -W own-word probe-command
leasehold() { echo \"$*\" >typed; }
PROMPT_COMMAND='echo ready >ready'
";

#[tokio::test]
async fn bash_completes_commands_and_files_after_the_separator() {
    let folder = folder_for("bash", "leasehold.bash").await;
    write(folder.path(), "start", BASH);
    let keys = "leasehold ru\t--no-w\tk -- probe-c\tfirst-f\t\r";
    let typed = type_in(folder.path(), "bash --noprofile --rcfile start -i", keys).await;
    assert_eq!(typed, "run --no-wait k -- probe-command first-file");
}

#[tokio::test]
async fn bash_completes_as_the_wrapped_command_does() {
    if !is_here(BASH_COMPLETION) {
        return;
    }
    let folder = folder_for("bash", "leasehold.bash").await;
    write(folder.path(), "start", &format!("source {BASH_COMPLETION}\n{BASH}"));
    let keys = "leasehold run --wait=1s k -- probe-c\town\t\r";
    let typed = type_in(folder.path(), "bash --noprofile --rcfile start -i", keys).await;
    assert_eq!(typed, "run --wait=1s k -- probe-command own-word");
}

#[tokio::test]
async fn zsh_completes_as_the_wrapped_command_does() {
    if !is_here("zsh") {
        return;
    }
    let folder = folder_for("zsh", "_leasehold").await;
    let start = "fpath=($PWD $fpath)
autoload -Uz compinit && compinit -u -D
_probe() { compadd own-word }
compdef _probe probe-command
leasehold() { echo \"$*\" >typed }
precmd() { echo ready >ready }
";
    write(folder.path(), ".zshrc", start);
    let keys = "leasehold ru\t--no-w\tk l -- probe-c\town\t\r";
    assert_eq!(type_in(folder.path(), "zsh -i", keys).await, "run --no-wait k l -- probe-command own-word");
}

#[tokio::test]
async fn fish_completes_as_the_wrapped_command_does() {
    if !is_here("fish") {
        return;
    }
    let folder = folder_for("fish", "leasehold.fish").await;
    let start = "source leasehold.fish
complete -c probe-command -x -a own-word
function leasehold; echo $argv >typed; end
function fish_prompt; echo ready >ready; end
";
    write(folder.path(), "fish/config.fish", start);
    let keys = "leasehold ru\t--no-w\tk -- probe-c\town\t\r";
    assert_eq!(type_in(folder.path(), "fish -i", keys).await, "run --no-wait k -- probe-command own-word");
}
