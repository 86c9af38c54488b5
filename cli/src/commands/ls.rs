//! `leasehold ls`: all locks.

use std::pin::pin;

use clap::{Args, ValueEnum};
use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Row, Table, Width};
use console::Term;
use futures_util::TryStreamExt;
use leasehold_client::wire::{Lock, LockState, UnreadableRow};
use leasehold_client::{ListOptions, Listed};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::output::{self, note, plain, print, print_json, short};

/// The narrowest column of a table that must fit a terminal.
const NARROWEST: u16 = 6;

/// List all locks.
///
/// On a terminal, what does not fit is cut; elsewhere nothing is. With --json, one object a line, as the pages come. It
/// is no snapshot: what changes meanwhile may be seen or not.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only locks in this state.
    #[arg(long, value_name = "STATE")]
    state: Option<StateArg>,

    /// Only locks whose current or last owner has this name.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Only the sort keys under this partition key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StateArg {
    Held,
    Released,
}

impl From<StateArg> for LockState {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Held => Self::Held,
            StateArg::Released => Self::Released,
        }
    }
}

pub(crate) async fn main(args: LsArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let options = ListOptions {
        state: args.state.map(LockState::from),
        owner_name: args.owner.clone(),
        key: args.key.clone(),
        page_size: None,
    };
    let mut rows = pin!(client.list(options));
    let mut locks = Vec::new();
    while let Some(row) = args.common.patiently(rows.try_next()).await? {
        match row {
            Listed::Lock(lock) if args.common.output.json => print_json(&lock)?,
            Listed::Lock(lock) => locks.push(lock),
            Listed::Unreadable(row) => warn(&row),
        }
    }
    match (args.common.output.json, locks.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => {
            args.common.output.warn("no locks");
            Ok(())
        }
        (false, false) => print_table(&locks),
    }
}

/// Warns about an unreadable row, whatever the filter: an operator must look at it.
fn warn(row: &UnreadableRow) {
    let sort_key = row.sort_key.as_ref().map(|sort_key| format!(" / {sort_key}")).unwrap_or_default();
    note(&format!(
        "leasehold: {} is no readable lock: {}",
        plain(&format!("{}{sort_key}", row.key)),
        plain(&row.detail)
    ));
}

fn print_table(locks: &[Lock]) -> Result<(), Failure> {
    let terminal = Term::stdout();
    let width = terminal.is_term().then(|| terminal.size().1);
    let table = table(locks, width);
    table.lines().try_for_each(|line| print(line.trim_end()))
}

/// Makes a table that fits the width, or one with all text if there is no width.
fn table(locks: &[Lock], width: Option<u16>) -> Table {
    let with_sort_keys = locks.iter().any(|lock| lock.sort_key.is_some());
    let mut header = vec!["KEY"];
    if with_sort_keys {
        header.push("SORT KEY");
    }
    header.extend(["STATE", "OWNER"]);
    // In a narrow terminal, columns for programs make room for names.
    let fits = |least: u16| width.is_none_or(|width| width >= least);
    header.extend(
        [("TOKEN", 70), ("LEASE", 40), ("VERSION", 80)]
            .into_iter()
            .filter(|(_, least)| fits(*least))
            .map(|(title, _)| title),
    );
    let mut table = Table::new();
    table.load_style(NOTHING).set_truncation_indicator("…").set_header(header.clone());
    for lock in locks {
        let version = &lock.record_version_number;
        let cell = |title: &&str| match *title {
            "KEY" => plain(&lock.key),
            "SORT KEY" => plain(lock.sort_key.as_deref().unwrap_or("-")),
            "STATE" => output::state(lock.state).to_owned(),
            "OWNER" => plain(&lock.owner_name),
            "TOKEN" => lock.fencing_token.map_or_else(|| "-".to_owned(), |token| token.to_string()),
            "LEASE" => output::lease(lock.lease_duration_ms),
            _ if width.is_some() => short(version),
            _ => plain(version),
        };
        let mut row = Row::from(header.iter().map(cell).collect::<Vec<_>>());
        row.max_height(1);
        table.add_row(row);
    }
    for (column, title) in table.column_iter_mut().zip(&header) {
        column.set_padding((0, 2));
        // Columns with names shrink; the others are already short.
        column.set_constraint(match *title {
            "KEY" | "SORT KEY" | "OWNER" => ColumnConstraint::LowerBoundary(Width::Fixed(NARROWEST)),
            _ => ColumnConstraint::ContentWidth,
        });
    }
    match width {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn lock(key: &str, sort_key: Option<&str>, owner: &str) -> Lock {
        Lock {
            key: key.to_owned(),
            sort_key: sort_key.map(str::to_owned),
            state: LockState::Released,
            owner_name: owner.to_owned(),
            record_version_number: "59dc6280-ea9b-40d8-9d32-f1f42f68a392".to_owned(),
            lease_duration_ms: 20_000,
            fencing_token: Some(1_795_256_832_324_117),
            occurrence: None,
            last_occurrence: None,
            data: None,
            data_base64: None,
            attributes: Map::from_iter([("team".to_owned(), json!("blue"))]),
            semaphore: None,
        }
    }

    #[test]
    fn a_table_fits_eighty_columns() {
        let long = "a very long name ".repeat(9);
        for locks in [
            [lock(&long, None, &long), lock("Moe", None, "me")],
            [lock(&long, Some(&long), &long), lock("Moe", None, "me")],
        ] {
            let table = table(&locks, Some(80));
            let lines: Vec<_> = table.lines().collect();
            assert_eq!(lines.len(), 3, "a line for each lock:\n{table}");
            for line in &lines {
                assert!(line.trim_end().chars().count() <= 80, "{line}");
            }
            assert!(lines[1].contains('…') && lines[1].contains("1795256832324117"), "{table}");
            assert!(lines[2].starts_with("Moe"), "{table}");
        }
    }

    #[test]
    fn a_narrow_table_keeps_names_and_drops_versions() {
        let locks = [lock("nightly-report", None, "host-1:4711")];
        let table = table(&locks, Some(60)).to_string();
        assert!(table.contains("nightly-report") && table.contains("host-1:4711"), "{table}");
        assert!(table.contains("LEASE") && !table.contains("TOKEN") && !table.contains("VERSION"), "{table}");
        assert!(table.lines().all(|line| line.trim_end().chars().count() <= 60), "{table}");
    }

    #[test]
    fn a_table_that_goes_elsewhere_has_it_all() {
        let long = "a very long name ".repeat(9);
        let text = table(&[lock(&long, None, &long)], None).to_string();
        assert_eq!(text.matches(long.trim_end()).count(), 2, "{text}");
        assert!(text.contains("59dc6280-ea9b-40d8-9d32-f1f42f68a392"), "{text}");
    }
}
