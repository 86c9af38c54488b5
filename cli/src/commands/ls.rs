//! `leasehold ls`: all locks.

use std::pin::pin;

use std::time::Duration;

use clap::{Args, ValueEnum};
use comfy_table::Table;
use futures_util::TryStreamExt;
use leasehold_client::wire::{Lock, LockState, UnreadableRow};
use leasehold_client::{ListOptions, Listed};
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::duration;
use crate::output::{self, note, plain, print, print_json, short};
use crate::sightings::{Sightings, lives};
use crate::tables::{self, Column, terminal_width};

/// List all locks and semaphores.
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

    /// Look twice, so long apart, and tell how long each holder was silent, as far as these two looks show; `stale` is
    /// who was silent for its lease.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    observe: Option<Duration>,

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
    let mut sightings = args.observe.map(|_| Sightings::default());
    if let (Some(observe), Some(sightings)) = (args.observe, &mut sightings) {
        let mut rows = pin!(client.list(options.clone()));
        while let Some(row) = args.common.patiently(rows.try_next()).await? {
            if let Listed::Lock(lock) = row {
                sightings.see(&lock);
            }
        }
        sleep_until(Instant::now() + observe).await;
    }
    let mut rows = pin!(client.list(options));
    let mut locks = Vec::new();
    while let Some(row) = args.common.patiently(rows.try_next()).await? {
        match (row, &mut sightings) {
            (Listed::Unreadable(row), _) => warn(&row),
            (Listed::Lock(lock), None) if args.common.output.json => print_json(&lock)?,
            (Listed::Lock(lock), Some(sightings)) => {
                sightings.see(&lock);
                if args.common.output.json {
                    print_json(&sightings.json(&lock))?;
                }
                locks.push(lock);
            }
            (Listed::Lock(lock), None) => locks.push(lock),
        }
    }
    match (args.common.output.json, locks.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => {
            args.common.output.warn("no locks");
            Ok(())
        }
        (false, false) => {
            let table = table(&locks, sightings.as_ref(), terminal_width());
            tables::lines(&table).iter().try_for_each(|line| print(line))
        }
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

/// With a width, the table fits it; else it has all there is. With `sightings` it tells silences.
fn table(locks: &[Lock], sightings: Option<&Sightings>, width: Option<u16>) -> Table {
    let mut columns = vec![Column::key("KEY", |lock: &Lock| plain(&lock.key))];
    if locks.iter().any(|lock| lock.sort_key.is_some()) {
        columns.push(Column::key("SORT KEY", |lock: &Lock| plain(lock.sort_key.as_deref().unwrap_or("-"))));
    }
    columns.push(Column::value("STATE", 0, state));
    columns.push(Column::name("OWNER", owners));
    if let Some(sightings) = sightings {
        columns.push(Column::value("SILENT", 0, |lock: &Lock| silence(lock, sightings)));
    }
    columns.push(Column::value("TOKEN", 2, |lock: &Lock| {
        lock.fencing_token.map_or_else(|| "-".to_owned(), |token| token.to_string())
    }));
    columns.push(Column::value("LEASE", 1, |lock: &Lock| match lock.semaphore {
        None => output::lease(lock.lease_duration_ms),
        // Each holder has a lease of its own.
        Some(_) => "-".to_owned(),
    }));
    let cut = width.is_some();
    columns.push(Column::value("VERSION", 3, move |lock: &Lock| {
        let version = &lock.record_version_number;
        if cut { short(version) } else { plain(version) }
    }));
    tables::table(&columns, locks, width)
}

/// `held` or `released`; of a semaphore the free permits.
fn state(lock: &Lock) -> String {
    match &lock.semaphore {
        None => output::state(lock.state).to_owned(),
        Some(semaphore) => format!("{}/{} free", semaphore.available, semaphore.capacity),
    }
}

/// The owner; of a semaphore all who hold permits, and how many wait.
fn owners(lock: &Lock) -> String {
    let Some(semaphore) = &lock.semaphore else { return plain(&lock.owner_name) };
    let holders: Vec<_> = semaphore.holders.iter().map(|holder| plain(&holder.owner_name)).collect();
    let holders = if holders.is_empty() { "-".to_owned() } else { holders.join(", ") };
    match semaphore.queue.len() {
        0 => holders,
        1 => format!("{holders}; 1 waits"),
        waiting => format!("{holders}; {waiting} wait"),
    }
}

/// The silence of the holder; of a semaphore how many are stale, or the longest silence.
fn silence(lock: &Lock, sightings: &Sightings) -> String {
    let all = lives(lock);
    let seen = || all.iter().filter_map(|life| Some((life.id, sightings.of(lock, life.id)?)));
    match (all.as_slice(), seen().filter(|(_, seen)| seen.stale_in().is_zero()).count()) {
        ([one], _) => sightings.words(lock, one.id),
        (_, 0) => {
            let longest = seen().max_by_key(|(_, seen)| seen.age());
            longest.map_or_else(|| "-".to_owned(), |(id, _)| sightings.words(lock, id))
        }
        (all, stale) => format!("{stale} of {} stale", all.len()),
    }
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
            wanted_by: None,
            data: None,
            data_base64: None,
            attributes: Map::from_iter([("team".to_owned(), json!("blue"))]),
            semaphore: None,
        }
    }

    #[test]
    fn table_fits_eighty_columns() {
        let long = "a very long name ".repeat(9);
        for locks in [
            [lock(&long, None, &long), lock("Moe", None, "me")],
            [lock(&long, Some(&long), &long), lock("Moe", None, "me")],
        ] {
            let table = table(&locks, None, Some(80));
            let lines: Vec<_> = table.lines().collect();
            assert_eq!(lines.len(), 3, "a line for each lock:\n{table}");
            for line in &lines {
                assert!(line.trim_end().chars().count() <= 80, "{line}");
            }
            assert!(lines[1].contains('…') && !lines[0].contains("VERSION"), "{table}");
            assert!(lines[2].starts_with("Moe"), "{table}");
        }
    }

    #[test]
    fn narrow_table_keeps_names_and_drops_versions() {
        let locks = [lock("nightly-report", None, "host-1:4711")];
        let table = table(&locks, None, Some(60)).to_string();
        assert!(table.contains("nightly-report") && table.contains("host-1:4711"), "{table}");
        assert!(table.contains("LEASE") && !table.contains("TOKEN") && !table.contains("VERSION"), "{table}");
        assert!(table.lines().all(|line| line.trim_end().chars().count() <= 60), "{table}");
    }

    #[test]
    fn table_that_goes_elsewhere_has_it_all() {
        let long = "a very long name ".repeat(9);
        let text = table(&[lock(&long, None, &long)], None, None).to_string();
        assert_eq!(text.matches(long.trim_end()).count(), 2, "{text}");
        assert!(text.contains("59dc6280-ea9b-40d8-9d32-f1f42f68a392"), "{text}");
    }
}
