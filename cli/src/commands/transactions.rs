//! `leasehold transactions`: commands of operators about transactions.

use clap::{Args, Subcommand};

use std::collections::BTreeSet;
use std::time::Duration;

use clap::ValueEnum;
use leasehold_client::wire::transactions::{
    Item, ListTransactionsRequest, Stray, StraysRequest, Transaction as TransactionStatus, TransactionState,
    UnlockRequest,
};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::duration::{show_seconds, since_epoch};
use crate::output::{plain, print, print_json};

/// List, show and end transactions, and unlock items, as an operator.
///
/// The ids are public ids, as in the attribute leaseholdTxId of a locked item, in logs and in refusals.
#[derive(Debug, Args)]
pub(crate) struct TransactionsArgs {
    #[command(subcommand)]
    command: TransactionsCommand,
}

#[derive(Debug, Subcommand)]
enum TransactionsCommand {
    Ls(LsArgs),
    /// Show one transaction: its state and its requests.
    Get(NamedArgs),
    /// End one transaction, whatever its age: an open one is rolled back, a decided one is completed.
    Rollback(NamedArgs),
    Sweep(SweepArgs),
    Strays(StraysArgs),
    Unlock(UnlockArgs),
}

/// List the transactions that are open, and the decided ones whose items are still locked.
///
/// Each line has the public id, the state, the age, the number of items, and the cause of a rollback.
///
/// With --json, one object a line, as the pages come.
#[derive(Debug, Args)]
struct LsArgs {
    /// Only transactions of which DynamoDB refuses to free an item.
    #[arg(long)]
    stuck: bool,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct NamedArgs {
    /// The public id of the transaction.
    #[arg(value_name = "PUBLIC_ID")]
    id: String,

    #[command(flatten)]
    common: CommonArgs,
}

/// Finish what is left of transactions that nobody works on. The service does so by itself as well.
#[derive(Debug, Args)]
struct SweepArgs {
    #[command(flatten)]
    common: CommonArgs,
}

/// Find the items of a table with locks of unknown transactions, such as items from a backup, and unlock them.
///
/// Examines the table in pages, each a read of up to 1000 items or 1 MB, and says on standard error how far it is. An
/// item is unlocked on condition of the lock that was found. A command that was interrupted may be repeated.
///
/// With --json, one object a line, as the strays are found.
#[derive(Debug, Args)]
struct StraysArgs {
    /// The table's name.
    table: String,

    /// Only the items of this transaction, by its public id.
    #[arg(long, value_name = "PUBLIC_ID")]
    of: Option<String>,

    /// Unlock what is found: the items are restored, or keep the changes.
    #[arg(long, value_name = "OUTCOME")]
    unlock: Option<Outcome>,

    #[command(flatten)]
    common: CommonArgs,
}

/// Unlock an item whose transaction is unknown, such as an item from a backup.
///
/// The items of a known transaction are freed by `rollback`.
#[derive(Debug, Args)]
struct UnlockArgs {
    /// The table's name.
    table: String,

    /// The item's key, in DynamoDB's JSON, such as '{"id":{"S":"Moe"}}'.
    #[arg(value_parser = read_key)]
    key: Item,

    /// The item's attribute leaseholdTxId, as it was seen. An item with another lock is left alone.
    #[arg(long)]
    lock: String,

    /// What became of the transaction: the item is restored, or keeps the changes.
    #[arg(long)]
    outcome: Outcome,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Outcome {
    RolledBack,
    Committed,
}

impl From<Outcome> for TransactionState {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::RolledBack => Self::RolledBack,
            Outcome::Committed => Self::Committed,
        }
    }
}

fn read_key(text: &str) -> Result<Item, String> {
    serde_json::from_str(text).map_err(|error| format!("this is no key in DynamoDB's JSON: {error}"))
}

impl TransactionsArgs {
    pub(crate) fn common(&self) -> &CommonArgs {
        match &self.command {
            TransactionsCommand::Ls(args) => &args.common,
            TransactionsCommand::Get(args) | TransactionsCommand::Rollback(args) => &args.common,
            TransactionsCommand::Sweep(args) => &args.common,
            TransactionsCommand::Strays(args) => &args.common,
            TransactionsCommand::Unlock(args) => &args.common,
        }
    }
}

pub(crate) async fn main(args: TransactionsArgs) -> Result<(), Failure> {
    match args.command {
        TransactionsCommand::Ls(args) => list(args).await,
        TransactionsCommand::Get(args) => get(args).await,
        TransactionsCommand::Rollback(args) => sweep(args.common, Some(args.id)).await,
        TransactionsCommand::Sweep(args) => sweep(args.common, None).await,
        TransactionsCommand::Strays(args) => strays(args).await,
        TransactionsCommand::Unlock(args) => unlock(args).await,
    }
}

async fn list(args: LsArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let mut request = ListTransactionsRequest { stuck: Some(args.stuck), ..ListTransactionsRequest::default() };
    let mut is_empty = true;
    loop {
        let page = args.common.patiently(client.list_transactions(&request)).await?;
        for transaction in &page.transactions {
            is_empty = false;
            if args.common.output.json { print_json(transaction)? } else { print(&listed(transaction))? }
        }
        request.cursor = page.next_cursor;
        if request.cursor.is_none() {
            break;
        }
    }
    if is_empty && !args.common.output.json {
        args.common.output.warn("no transactions");
    }
    Ok(())
}

async fn get(args: NamedArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let found = args.common.patiently(client.transaction_status_by_public_id(args.id)).await?;
    args.common.output.result(&found, || {
        let requests = found.requests.iter().map(|request| {
            let key = serde_json::to_string(&request.key).unwrap_or_default();
            format!("\n  {} {} {}", request.operation, plain(&request.table_name), plain(&key))
        });
        line(&found) + &requests.collect::<String>()
    })
}

async fn sweep(common: CommonArgs, id: Option<String>) -> Result<(), Failure> {
    let client = common.client().await?;
    let swept = common.patiently(client.sweep_transactions(id)).await?;
    common.output.result(&swept, || {
        format!(
            "{} examined, {} rolled back, {} completed, {} stuck, {} failed, {} watched",
            swept.examined, swept.rolled_back, swept.completed, swept.stuck, swept.failed, swept.watched
        )
    })
}

async fn strays(args: StraysArgs) -> Result<(), Failure> {
    let StraysArgs { table, of, unlock, common } = args;
    let client = common.client().await?;
    let mut request = StraysRequest { table_name: table, public_id: of, ..StraysRequest::default() };
    let (mut examined, mut found) = (0, 0);
    loop {
        let page = common.patiently(client.find_strays(&request)).await?;
        examined += page.examined;
        for stray in page.strays {
            found += 1;
            if let Some(outcome) = unlock {
                let Stray { key, lock, .. } = stray.clone();
                let (table_name, outcome) = (request.table_name.clone(), outcome.into());
                common.patiently(client.unlock_item(&UnlockRequest { table_name, key, lock, outcome })).await?;
            }
            if common.output.json {
                print_json(&stray)?;
            } else {
                let key = serde_json::to_string(&stray.key).unwrap_or_default();
                print(&format!("{}  {}", plain(&key), plain(&stray.lock)))?;
            }
        }
        let verb = if unlock.is_some() { "unlocked" } else { "found" };
        common.output.warn(&format!("{examined} items examined, {found} strays {verb}"));
        request.exclusive_start_key = page.last_evaluated_key;
        if request.exclusive_start_key.is_none() {
            return Ok(());
        }
    }
}

async fn unlock(args: UnlockArgs) -> Result<(), Failure> {
    let client = args.common.client().await?;
    let UnlockArgs { table, key, lock, outcome, .. } = &args;
    let (table_name, outcome) = (table.clone(), (*outcome).into());
    let request = UnlockRequest { table_name, key: key.clone(), lock: lock.clone(), outcome };
    let unlocked = args.common.patiently(client.unlock_item(&request)).await?;
    args.common.output.result(&unlocked, || "unlocked".to_owned())
}

/// One line of the list. The age is the difference of two clocks, for people to read.
fn listed(transaction: &TransactionStatus) -> String {
    let age = since_epoch().saturating_sub(Duration::from_millis(transaction.created_at_ms));
    let items: BTreeSet<_> = transaction
        .requests
        .iter()
        .map(|request| (&request.table_name, serde_json::to_string(&request.key).unwrap_or_default()))
        .collect();
    let more = if transaction.more_requests { "+" } else { "" };
    let cause = transaction.reason.as_ref().map(|reason| format!("  because {}", plain(reason))).unwrap_or_default();
    format!("{}  {}  items: {}{more}{cause}", line(transaction), show_seconds(age), items.len())
}

fn line(transaction: &TransactionStatus) -> String {
    let state = match (transaction.state, transaction.finished) {
        (TransactionState::Pending, _) => "pending",
        (TransactionState::Committed, true) => "committed",
        (TransactionState::RolledBack, true) => "rolled-back",
        (TransactionState::Committed, false) => "committed, not finished",
        (TransactionState::RolledBack, false) => "rolled-back, not finished",
    };
    let stuck = transaction.stuck.as_ref().map(|reason| format!("  stuck: {}", plain(reason))).unwrap_or_default();
    format!("{}  {state}{stuck}", plain(&transaction.public_id))
}
