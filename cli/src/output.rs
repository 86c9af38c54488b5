//! Printing: results on standard output, everything else on standard error.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use leasehold_client::LockKey;
use leasehold_client::wire::semaphore::{Holder, SemaphoreState, Ticket, permits};
use leasehold_client::wire::{Lock, LockState};
use serde::Serialize;

use crate::Failure;
use crate::duration::show;
use crate::sightings::Sightings;
use crate::tables::{self, Column};

/// The length of an id on a terminal.
const SHORT_ID: usize = 12;
/// The holders of permits whose names a sentence has room for.
const NAMED_HOLDERS: usize = 3;

/// How much is printed, and for whom.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print JSON: the result on standard output, a failure on standard error.
    #[arg(long)]
    pub(crate) json: bool,

    /// Report progress on standard error. Twice: also print the log of the program.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Report failures only, not even a wait.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

impl OutputArgs {
    /// Prints a warning, unless silence was asked for.
    pub(crate) fn warn(&self, text: &str) {
        if !self.quiet {
            note(&format!("leasehold: {text}"));
        }
    }

    /// Prints progress, if it was asked for.
    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        if self.verbose > 0 {
            note(&format!("leasehold: {}", text()));
        }
    }

    /// Prints the result: as JSON, or as `text` makes it for people.
    pub(crate) fn result(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { print_json(value) } else { print(&text()) }
    }
}

/// Prints a line on standard error. A closed output stops nothing.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints a line on standard output.
pub(crate) fn print(line: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}

/// Prints a value on a line of its own, on standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string(value).map_err(|error| Failure::failed(error.to_string()))?;
    print(&json)
}

/// Returns whether standard error is a terminal that can be drawn on.
pub(crate) fn can_draw() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Escapes text from other sources, so that it cannot control a terminal, and different texts look different.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if is_invisible(character) {
            plain.extend(character.escape_unicode());
        } else if character.is_control() {
            plain.extend(character.escape_default());
        } else {
            plain.push(character);
        }
    }
    plain
}

/// Whether a character changes the direction of text, joins or separates others, or is invisible.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// The beginning of a record version number, which suffices to see a change.
pub(crate) fn short(version: &str) -> String {
    plain(version).chars().take(8).collect()
}

/// A lease, as a row has it.
pub(crate) fn lease(millis: u64) -> String {
    show(Duration::from_millis(millis))
}

/// `held` or `released`.
pub(crate) fn state(state: LockState) -> &'static str {
    match state {
        LockState::Held => "held",
        LockState::Released => "released",
    }
}

/// A title, and names with values below it.
pub(crate) struct Fields(String);

impl Fields {
    pub(crate) fn new(title: &str) -> Self {
        Self(plain(title))
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        // Writing to a string does not fail.
        let _ = write!(self.0, "\n  {name:<10}{}", plain(value));
        self
    }

    pub(crate) fn with_some(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}

/// The payload of a lock: its text, or its size.
pub(crate) fn payload(data: &[u8]) -> String {
    std::str::from_utf8(data).map_or_else(|_| format!("{} bytes that are not text", data.len()), str::to_owned)
}

/// Describes who has a lock, or permits of a semaphore.
pub(crate) fn holder(lock: &Lock) -> String {
    let key = plain(&LockKey { key: lock.key.clone(), sort_key: lock.sort_key.clone() }.to_string());
    let Some(semaphore) = &lock.semaphore else {
        return format!(
            "{key} is held by {}, with a lease of {}",
            plain(&lock.owner_name),
            lease(lock.lease_duration_ms)
        );
    };
    let free = format!("{key} has {} of {} free", semaphore.available, permits(semaphore.capacity));
    let mut names: Vec<_> =
        semaphore.holders.iter().take(NAMED_HOLDERS).map(|holder| plain(&holder.owner_name)).collect();
    match semaphore.holders.len().saturating_sub(NAMED_HOLDERS) {
        0 => {}
        more => names.push(format!("{more} more")),
    }
    let held = if names.is_empty() { String::new() } else { format!(", held by {}", names.join(", ")) };
    match semaphore.queue.len() {
        0 => format!("{free}{held}"),
        waiting => format!("{free}{held}, and {waiting} in the queue"),
    }
}

pub(crate) fn describe(lock: &Lock, sightings: Option<&Sightings>, width: Option<u16>) -> String {
    match &lock.semaphore {
        None => describe_lock(lock, sightings),
        Some(semaphore) => describe_semaphore(lock, semaphore, sightings, width),
    }
}

/// The permits of a semaphore, and a table each of those who hold them and who wait for them.
fn describe_semaphore(
    lock: &Lock,
    semaphore: &SemaphoreState,
    sightings: Option<&Sightings>,
    width: Option<u16>,
) -> String {
    let fields = Fields::new(&title(lock))
        .with("kind", "semaphore")
        .with("permits", &format!("{} of {} free", semaphore.available, semaphore.capacity));
    let version = |version: &str| if width.is_some() { short(version) } else { plain(version) };
    // The beginning is enough for `break --holder`.
    let id = |id: &str| if width.is_some() { plain(id).chars().take(SHORT_ID).collect() } else { plain(id) };
    let mut holders = vec![
        Column::key("HOLDER", |entry: &Holder| id(&entry.holder_id)),
        Column::name("OWNER", |entry: &Holder| plain(&entry.owner_name)),
        Column::value("PERMITS", 0, |entry: &Holder| entry.permits.to_string()),
    ];
    let mut tickets = vec![
        Column::key("TICKET", |entry: &Ticket| id(&entry.ticket_id)),
        Column::name("OWNER", |entry: &Ticket| plain(&entry.owner_name)),
        Column::value("PERMITS", 0, |entry: &Ticket| entry.permits.to_string()),
    ];
    if let Some(sightings) = sightings {
        holders.push(Column::value("SILENT", 0, |entry: &Holder| sightings.words(lock, &entry.holder_id)));
        tickets.push(Column::value("SILENT", 0, |entry: &Ticket| sightings.words(lock, &entry.ticket_id)));
    }
    holders.push(Column::value("LEASE", 1, |entry: &Holder| lease(entry.lease_duration_ms)));
    tickets.push(Column::value("LEASE", 1, |entry: &Ticket| lease(entry.lease_duration_ms)));
    holders.push(Column::value("TOKEN", 2, |entry: &Holder| entry.fencing_token.to_string()));
    tickets.push(Column::value("NUMBER", 2, |entry: &Ticket| entry.number.to_string()));
    holders.push(Column::value("VERSION", 3, |entry: &Holder| version(&entry.version)));
    tickets.push(Column::value("VERSION", 3, |entry: &Ticket| version(&entry.version)));
    let tables = [
        (!semaphore.holders.is_empty()).then(|| tables::table(&holders, &semaphore.holders, width)),
        (!semaphore.queue.is_empty()).then(|| tables::table(&tickets, &semaphore.queue, width)),
    ];
    tables
        .iter()
        .flatten()
        .fold(fields.finish(), |text, table| format!("{text}\n\n{}", tables::lines(table).join("\n")))
}

fn title(lock: &Lock) -> String {
    match &lock.sort_key {
        Some(sort_key) => format!("{} / {sort_key}", lock.key),
        None => lock.key.clone(),
    }
}

fn describe_lock(lock: &Lock, sightings: Option<&Sightings>) -> String {
    let silent = sightings.filter(|_| lock.state == LockState::Held).map(|sightings| sightings.words(lock, ""));
    let owner = match lock.state {
        LockState::Held => "owner",
        LockState::Released => "was of",
    };
    let token =
        lock.fencing_token.map_or_else(|| "none: another client wrote it".to_owned(), |token| token.to_string());
    let mut fields = Fields::new(&title(lock))
        .with("state", state(lock.state))
        .with(owner, &lock.owner_name)
        .with("lease", &lease(lock.lease_duration_ms))
        .with_some("silent", silent.as_deref())
        .with("token", &token)
        .with("version", &lock.record_version_number)
        .with_some("running", lock.occurrence.as_deref())
        .with_some("done", lock.last_occurrence.as_deref())
        .with_some("wanted by", lock.wanted_by.as_deref())
        .with_some("data", lock.data.as_deref())
        .with_some("data", lock.data_base64.as_ref().map(|base64| format!("{base64} (base64)")).as_deref());
    for (name, value) in &lock.attributes {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        fields = fields.with("attribute", &format!("{name} = {value}"));
    }
    fields.finish()
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn characters_that_deceive_are_made_visible() {
        assert_eq!(plain("a\u{202e}b"), "a\\u{202e}b", "bidi");
        assert_eq!(plain("a\u{200b}\u{200d}\u{feff}b"), "a\\u{200b}\\u{200d}\\u{feff}b", "zero width");
        assert_eq!(plain("a\x1b[31m\nb"), "a\\u{1b}[31m\\nb", "control");
        assert_eq!(plain("a\u{e0041}b"), "a\\u{e0041}b", "tags");
        assert_eq!(plain("Große Straße 東京 😀"), "Große Straße 東京 😀");
    }
}
