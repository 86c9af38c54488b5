//! `leasehold elect`: runs a command while this process is the leader.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use leasehold_client::{Client, Election, Guard};

use crate::acquiring;
use crate::child::{ChildArgs, End, Runner, keeping, warning};
use crate::connection::CommonArgs;
use crate::failure::Failure;
use crate::grant::Grant;
use crate::lock_args::{AskArgs, LeaseArgs, LockArgs, asking};
use crate::output::plain;
use crate::signals::Signals;
use crate::waiting::Indicator;

/// The time in which a candidate that leaves may release an unanswered request.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(10);

const HELP: &str = "\
The leader is the holder of a plain lock, whose data is --value: `leasehold get KEY` and `leasehold watch KEY` show both.
The command's environment, and signals, are as with `leasehold run`.

When the leadership is lost, the command and all that it started get a SIGTERM, and after --grace a SIGKILL; then this
program campaigns again, and starts the command anew when it leads. When this program is killed or stopped, its guardian
ends the command before anybody else could lead; `leasehold run --help` says what is not caught. When the command ends by
itself, with whatever status, this program resigns and ends with that status. A signal ends the campaign; while the command runs it is passed
on, and this program resigns once the command has ended.

Exit status:
   the command's own; 128 and the signal's number if a signal ended it, or ended the campaign
 126  the command cannot be executed
 127  there is no such command
   and if the leadership cannot be had for another reason, as listed by `leasehold --help`";

/// Run a command while this process is the leader, and again after a loss.
///
/// Waits for as long as it takes. At most one of all who name the same key leads.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ElectArgs {
    #[command(flatten)]
    lock: LockArgs,

    /// The leader's value, for others to read: its address, for example. At most 256 KiB. Default: nothing.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    value: String,

    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    ask: AskArgs,

    #[command(flatten)]
    child: ChildArgs,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: ElectArgs) -> Result<ExitCode, Failure> {
    let mut signals = Signals::all()?;
    let client = args.common.client().await?;
    let key = args.lock.lock_key();
    let runner = Runner {
        args: &args.child,
        common: &args.common,
        client: &client,
        lease: args.lease.lease,
        sort_key: key.sort_key.as_deref(),
        occurrence: None,
        yield_after: None,
        states: None,
    };
    loop {
        let leader = args.campaign(&client, &mut signals).await?;
        let token = leader.fencing_token();
        args.common.output.say(|| format!("leader of {}; token {token}", plain(&key.to_string())));
        match runner.run(Grant::Lock(leader), &mut signals).await? {
            End::Ended(status) => return Ok(status),
            End::Stopped(None) => {}
            End::Stopped(Some(received)) => {
                return Err(Failure::signalled(received, format!("{}: no longer a candidate", received.signal)));
            }
        }
    }
}

impl ElectArgs {
    async fn campaign(&self, client: &Client, signals: &mut Signals) -> Result<Guard, Failure> {
        let name = self.lock.lock_key().to_string();
        let indicator = Indicator::new(&name, &self.common);
        let election = self.election(client, &indicator, &name);
        let asking = async { election.campaign().await.map_err(Failure::from) };
        acquiring::acquire(client, &indicator, GIVE_BACK_WITHIN, None, signals, asking).await
    }

    fn election(&self, client: &Client, indicator: &Indicator<'_>, name: &str) -> Election {
        let warn = warning(name, &self.common);
        let election = client.election(self.lock.lock_key(), self.value.as_str());
        election.with(|request| {
            let request = asking!(request, self.ask).on_wait(indicator.on_wait());
            keeping!(request, self.child, self.lease.lease, warn)
        })
    }
}
