//! The command line: the commands, and their execution.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::acquire::{self, AcquireArgs};
use crate::commands::agent::{self, LocalArgs};
use crate::commands::backup::{self, BackupArgs, RestoreArgs};
use crate::commands::break_lock::{self, BreakArgs};
use crate::commands::capacity::{self, CapacityArgs};
use crate::commands::console::{self, ConsoleArgs};
use crate::commands::cost::{self, CostArgs};
use crate::commands::demo::{self, DemoArgs};
use crate::commands::documents::{self, CompletionsArgs, ManArgs};
use crate::commands::elect::{self, ElectArgs};
use crate::commands::exec::{self, ExecArgs};
use crate::commands::fenced_write::{self, FencedWriteArgs};
use crate::commands::get::{self, GetArgs};
use crate::commands::guard::{self, GuardArgs};
use crate::commands::heartbeat::{self, HeartbeatArgs};
use crate::commands::history::{self, HistoryArgs};
use crate::commands::ls::{self, LsArgs};
use crate::commands::occurrence::{self, OccurrenceArgs};
use crate::commands::release::{self, ReleaseArgs};
use crate::commands::run::{self, RunArgs};
use crate::commands::serve::{self, ServeArgs};
use crate::commands::terraform::{self, TerraformArgs};
use crate::commands::token::{self, TokenArgs};
use crate::commands::transactions::{self, TransactionsArgs};
use crate::commands::watch::{self, WatchArgs};
use crate::connection::CommonArgs;
use crate::failure::EXIT_STATUSES;
use crate::output::note;
use crate::signals::die_of_interrupt;
use crate::{Failure, command_line};

/// The embedded engine writes its file on these threads, one request at a time. More threads would only wait, each with
/// megabytes of memory.
const MAX_BLOCKING_THREADS: usize = 4;

/// Locks on one DynamoDB table: no server to run, no clocks to trust.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = EXIT_STATUSES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(RunArgs),
    Elect(ElectArgs),
    Acquire(AcquireArgs),
    Heartbeat(HeartbeatArgs),
    Release(ReleaseArgs),
    Break(BreakArgs),
    Capacity(CapacityArgs),
    Occurrence(OccurrenceArgs),
    Get(GetArgs),
    Ls(LsArgs),
    History(HistoryArgs),
    Watch(WatchArgs),
    Transactions(TransactionsArgs),
    Terraform(TerraformArgs),
    /// Run the lock service on this machine.
    Serve(ServeArgs),
    Agent(LocalArgs),
    Console(ConsoleArgs),
    Token(TokenArgs),
    Backup(BackupArgs),
    Restore(RestoreArgs),
    Demo(DemoArgs),
    Cost(CostArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    #[command(hide = true)]
    FencedWrite(FencedWriteArgs),
    #[command(name = exec::NAME, hide = true)]
    Exec(ExecArgs),
    #[command(name = guard::NAME, hide = true)]
    Guard(GuardArgs),
}

impl Cli {
    /// Parses the command line of this process. Ends the process after `--help`, and after a mistake.
    pub fn from_command_line() -> Self {
        let arguments = command_line::options_last(&Self::command(), std::env::args_os());
        Self::try_parse_from(&arguments).unwrap_or_else(|error| {
            let _ = error.print();
            if let Some(hint) = command_line::hint(&error, &arguments) {
                note(&hint);
            }
            std::process::exit(error.exit_code())
        })
    }

    /// Executes the command, and reports a failure on standard error.
    pub fn execute(self) -> ExitCode {
        let common = self.command.common().cloned();
        self.command.execute().unwrap_or_else(|failure| {
            let failure = if let Some(common) = &common {
                common.tell(failure)
            } else {
                failure.report(false);
                failure
            };
            if failure.is_interrupt {
                die_of_interrupt();
            }
            ExitCode::from(failure.status)
        })
    }
}

impl Command {
    fn execute(self) -> Result<ExitCode, Failure> {
        let done = match self {
            // The command ends with the thread that spawned it, so this thread spawns it.
            Self::Run(args) => return in_runtime(run::main(args))?,
            Self::Elect(args) => return in_runtime(elect::main(args))?,
            Self::Terraform(args) => return in_runtime(terraform::main(args))?,
            Self::Exec(args) => return Err(exec::main(&args)),
            Self::Guard(args) => return in_runtime(guard::main(args))?,
            Self::Acquire(args) => in_runtime(acquire::main(args))?,
            Self::Heartbeat(args) => in_runtime(heartbeat::main(args))?,
            Self::Release(args) => in_runtime(release::main(args))?,
            Self::Break(args) => in_runtime(break_lock::main(args))?,
            Self::Capacity(args) => in_runtime(capacity::main(args))?,
            Self::Occurrence(args) => in_runtime(occurrence::main(args))?,
            Self::Get(args) => in_runtime(get::main(args))?,
            Self::Ls(args) => in_runtime(ls::main(args))?,
            Self::History(args) => in_runtime(history::main(args))?,
            Self::Watch(args) => in_runtime(watch::main(args))?,
            Self::Transactions(args) => in_runtime(transactions::main(args))?,
            Self::Serve(args) => {
                serve::return_memory_soon();
                in_runtime(serve::main(args))?.map_err(|error| Failure::failed(error.to_string()))
            }
            Self::Agent(args) => in_runtime(agent::main(args))?,
            Self::Console(args) => in_runtime(console::main(args))?,
            Self::Token(args) => token::main(&args),
            Self::Backup(args) => backup::backup(&args),
            Self::Restore(args) => in_runtime(backup::restore(args))?,
            Self::Demo(args) => in_runtime(demo::main(args))?,
            Self::Cost(args) => cost::main(&args),
            Self::FencedWrite(args) => in_runtime(fenced_write::main(args))?,
            Self::Completions(args) => documents::completions(&args, &Cli::command()),
            Self::Man(args) => documents::man(args, Cli::command()),
        };
        done.map(|()| ExitCode::SUCCESS)
    }

    /// The options that commands have in common.
    fn common(&self) -> Option<&CommonArgs> {
        match self {
            Self::Run(RunArgs { common, .. })
            | Self::Elect(ElectArgs { common, .. })
            | Self::Terraform(TerraformArgs { common, .. })
            | Self::Acquire(AcquireArgs { common, .. })
            | Self::Heartbeat(HeartbeatArgs { common, .. })
            | Self::Release(ReleaseArgs { common, .. })
            | Self::Break(BreakArgs { common, .. })
            | Self::Capacity(CapacityArgs { common, .. })
            | Self::Occurrence(OccurrenceArgs { common, .. })
            | Self::Get(GetArgs { common, .. })
            | Self::Ls(LsArgs { common, .. })
            | Self::History(HistoryArgs { common, .. })
            | Self::Agent(LocalArgs { common, .. })
            | Self::Console(ConsoleArgs { common, .. })
            | Self::Watch(WatchArgs { common, .. }) => Some(common),
            Self::Transactions(args) => Some(args.common()),
            _ => None,
        }
    }
}

fn in_runtime<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(MAX_BLOCKING_THREADS).build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    Ok(runtime.block_on(work))
}
