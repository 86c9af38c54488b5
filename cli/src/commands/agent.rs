//! `leasehold agent`: holds locks for the processes beside it.

use clap::Args;
use leasehold_agent::AgentArgs;

use crate::Failure;
use crate::connection::CommonArgs;

const HELP: &str = "\
The local API takes and gives JSON:
  POST /acquire   {\"key\": …}; optional sortKey, leaseDurationMs, wait (\"10s\", or \"invocation\"), permits and capacity,
                  occurrence, data, staleness, keep. 200 with a handle, 423 with the holder, 409 if the occurrence is done
  POST /hold      the same; the answer stays open, a line for each change, and the lock ends with the connection
  POST /release   {\"handle\": …}; optional completed, data
  GET  /lock?handle=…, /locks, /health

In a Lambda layer, `leasehold-agent` is the same as a small program of its own.";

/// Hold locks for the processes beside this one, which ask by HTTP: a sidecar, a daemon, or a Lambda extension.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct LocalArgs {
    #[command(flatten)]
    agent: AgentArgs,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: LocalArgs) -> Result<(), Failure> {
    let transport = args.common.transport().await?;
    leasehold_agent::run(args.agent, transport).await.map_err(|error| Failure::failed(error.to_string()))
}
