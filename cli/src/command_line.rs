//! Accepts command lines that differ from what clap expects.

use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;

/// Moves options before the name of a command behind it: `leasehold --url U ls` becomes `leasehold ls --url U`.
pub(crate) fn options_last(cli: &Command, arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut end = 1;
    while let Some(option) = arguments.get(end).and_then(|argument| argument.to_str()) {
        if !option.starts_with('-') || option == "--" {
            break;
        }
        end += 1 + usize::from(takes_the_next(cli, option));
    }
    // Without a command after them, `--help` and `--version` are the whole command line.
    let of_the_program = |option: &OsString| ["-h", "--help", "-V", "--version"].iter().any(|own| option == own);
    if end > 1 && end < arguments.len() && !arguments[1..end].iter().any(of_the_program) {
        arguments[1..=end].rotate_right(1);
    }
    arguments
}

/// Returns whether the value of an option is the next argument, in any command that has the option.
fn takes_the_next(cli: &Command, option: &str) -> bool {
    let takes_value = |name: &str| {
        let mut options = cli.get_subcommands().flat_map(Command::get_arguments);
        options.any(|argument| argument.get_long() == Some(name) && argument.get_action().takes_values())
    };
    option.strip_prefix("--").is_some_and(|name| !name.contains('=') && takes_value(name))
}

/// A hint at the likely meaning of a command line that clap refused.
pub(crate) fn hint(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let command = arguments.get(1).and_then(|command| command.to_str())?;
    let runs = ["run", "elect", "terraform"].contains(&command);
    let has_separator = arguments.iter().any(|argument| argument == "--");
    let refused = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    let example = if command == "terraform" { "--state NAME -- terraform apply" } else { "KEY -- echo hi" };
    if let Some(value) = negative(arguments).filter(|_| error.kind() == ErrorKind::UnknownArgument) {
        return Some(format!("leasehold: no option takes a negative value, such as {value}"));
    }
    (runs && !has_separator && refused)
        .then(|| format!("leasehold: the command to run stands behind `--`, as in: leasehold {command} {example}"))
}

/// Returns the first argument that looks like a negative number or duration.
fn negative(arguments: &[OsString]) -> Option<&str> {
    let own = arguments.iter().map_while(|argument| argument.to_str()).take_while(|argument| *argument != "--");
    own.into_iter()
        .find(|text| text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_digit())))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::options_last;
    use crate::Cli;

    #[test]
    fn options_before_a_command_are_moved_behind_it() {
        let moved = |line: &str| {
            let arguments = options_last(&Cli::command(), line.split(' ').map(Into::into));
            arguments.join(" ".as_ref()).into_string().expect("UTF-8")
        };
        for (line, expected) in [
            ("leasehold --url http://a ls", "leasehold ls --url http://a"),
            ("leasehold --url=http://a -v ls --state held", "leasehold ls --url=http://a -v --state held"),
            ("leasehold --json get Moe", "leasehold get --json Moe"),
            ("leasehold -q run Moe -- ls --url x", "leasehold run -q Moe -- ls --url x"),
            ("leasehold ls --url http://a", "leasehold ls --url http://a"),
            ("leasehold --help", "leasehold --help"),
            ("leasehold --version ls", "leasehold --version ls"),
            ("leasehold --url", "leasehold --url"),
            ("leasehold", "leasehold"),
        ] {
            assert_eq!(moved(line), expected);
        }
    }
}
