//! `leasehold history`: who held a lock, when, and how it ended.

use std::time::Duration;

use clap::Args;
use leasehold_client::HistoryOptions;
use leasehold_client::duration::show_time;
use leasehold_client::wire::{HistoryEntry, HistoryEvent};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::duration;
use crate::lock_args::LockArgs;
use crate::numbers::whole;
use crate::output::{plain, print, print_json};
use crate::tables::{self, Column, terminal_width};

/// Show who held a lock, when, and how it ended: the last line is the newest event.
///
/// The service keeps a history where it was told to: `leasehold serve --history 30d`, or `HistoryDays` of the stack. An
/// event is told some seconds after it happened.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// Show no event that is older than this.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    since: Option<Duration>,

    /// Show no event that is younger than this.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    until: Option<Duration>,

    /// The number of events: the newest ones.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<u64>(1..=100_000))]
    limit: u64,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: HistoryArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let now = duration::since_epoch();
    let ago = |age: Option<Duration>| {
        age.map(|age| now.saturating_sub(age).as_millis()).map(|ms| u64::try_from(ms).unwrap_or(u64::MAX))
    };
    let options = HistoryOptions { since_ms: ago(args.since), until_ms: ago(args.until), limit: Some(args.limit) };
    let mut entries = args.common.patiently(client.history(args.lock.lock_key(), options)).await?;
    entries.reverse();
    if args.common.output.json {
        return entries.iter().try_for_each(print_json);
    }
    if entries.is_empty() {
        args.common.output.warn("no events");
        return Ok(());
    }
    let table = table(&entries, terminal_width());
    tables::lines(&table).iter().try_for_each(|line| print(line))
}

fn table(entries: &[HistoryEntry], width: Option<u16>) -> comfy_table::Table {
    let text = |text: Option<&String>| text.map_or_else(|| "-".to_owned(), |text| plain(text));
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let mut columns = vec![
        Column::value("TIME", 0, |entry: &HistoryEntry| show_time(Duration::from_millis(entry.at_ms))),
        Column::value("EVENT", 0, |entry: &HistoryEntry| word(entry.event).to_owned()),
        Column::name("OWNER", move |entry: &HistoryEntry| text(entry.owner_name.as_ref())),
        Column::value("TOKEN", 1, move |entry: &HistoryEntry| number(entry.fencing_token)),
    ];
    if entries.iter().any(|entry| entry.previous_owner_name.is_some()) {
        columns.push(Column::name("FROM", move |entry: &HistoryEntry| text(entry.previous_owner_name.as_ref())));
    }
    if entries.iter().any(|entry| entry.occurrence.is_some()) {
        columns.push(Column::name("OCCURRENCE", move |entry: &HistoryEntry| text(entry.occurrence.as_ref())));
    }
    tables::table(&columns, entries, width)
}

fn word(event: HistoryEvent) -> &'static str {
    match event {
        HistoryEvent::Acquired => "acquired",
        HistoryEvent::Renewed => "renewed",
        HistoryEvent::TakenOver => "taken over",
        HistoryEvent::Released => "released",
        HistoryEvent::Broken => "broken",
        HistoryEvent::Expired => "expired",
        HistoryEvent::Deleted => "deleted",
    }
}
