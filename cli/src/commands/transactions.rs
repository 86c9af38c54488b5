//! `leasehold transactions`: commands of operators about transactions.

use clap::{Args, Subcommand};

use leasehold_client::wire::transactions::{
    ListTransactionsRequest, Transaction as TransactionStatus, TransactionState,
};

use crate::Failure;
use crate::connection::CommonArgs;
use crate::output::{plain, print, print_json};

/// List, show and end transactions, as an operator.
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
}

/// List the transactions that are open, and the decided ones whose items are still locked.
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

impl TransactionsArgs {
    pub(crate) fn common(&self) -> &CommonArgs {
        match &self.command {
            TransactionsCommand::Ls(args) => &args.common,
            TransactionsCommand::Get(args) | TransactionsCommand::Rollback(args) => &args.common,
            TransactionsCommand::Sweep(args) => &args.common,
        }
    }
}

pub(crate) async fn main(args: TransactionsArgs) -> Result<(), Failure> {
    match args.command {
        TransactionsCommand::Ls(args) => list(args).await,
        TransactionsCommand::Get(args) => get(args).await,
        TransactionsCommand::Rollback(args) => sweep(args.common, Some(args.id)).await,
        TransactionsCommand::Sweep(args) => sweep(args.common, None).await,
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
            if args.common.output.json { print_json(transaction)? } else { print(&line(transaction))? }
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
