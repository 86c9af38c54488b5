//! `leasehold terraform`: runs Terraform, or OpenTofu, under the lock of its state.

mod passage;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use leasehold_client::{Client, LockKey, Transport};
use leasehold_terraform::{LEASE_WITHOUT_HEARTBEATS_MS, LOCK_PATH, Name};
use leasehold_wire::operation::HEALTH;

pub(crate) use self::passage::Way;

use crate::acquiring;
use crate::child::{ChildArgs, End, Runner, keeping, warning};
use crate::connection::CommonArgs;
use crate::failure::{Failure, status};
use crate::grant::Grant;
use crate::lock_args::{LeaseArgs, RequestArgs};
use crate::signals::Signals;
use crate::waiting::Indicator;

const HELP: &str = "\
The service is `leasehold serve --terraform-state DIR`, or a stack with TerraformStates. The configuration says no more
than

  terraform {
    backend \"http\" {}
  }

for the command's environment has TF_HTTP_ADDRESS, TF_HTTP_LOCK_ADDRESS, TF_HTTP_UNLOCK_ADDRESS and their methods. What
the configuration says itself beats the environment: leave `address` and its like out. The addresses are on this machine,
with a secret in them. From there the requests go on to the service with the lease id, and with the credentials of the
lock: --token, --sigv4, or the authorities in SSL_CERT_FILE. The states of a stack with TerraformTokens ask for a token of
these: put it into TF_HTTP_PASSWORD.

The lock has the key terraform/NAME. It is held, with heartbeats, for as long as the command runs. When it is lost, the
command is ended as `leasehold run` ends it, and what it still sends is refused (409): Terraform keeps the state in
errored.tfstate. When this program is killed, its guardian ends the command, and the lock is free one lease later. A lock
of plain `terraform`, without this command, holds until it is unlocked.

A state belongs to one service, in one region: other services know neither it nor its lock. The backend has no
workspaces: give each a state of its own, such as --state network-prod.

Exit status:
   the command's own; 128 and the signal's number if a signal ended it
  75  the state is locked by someone else, and the command was not started
  76  the lock was lost, and the command stopped for that
 126  the command cannot be executed
 127  there is no such command
   and if the lock cannot be had for another reason, as listed by `leasehold --help`";

/// The variable of Terraform that has its password.
const PASSWORD: &str = "TF_HTTP_PASSWORD";

/// The longest wait for the answer whether the service has states.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// Run Terraform, or OpenTofu, under the lock of its state.
///
/// Waits for the lock, runs the command with the address of the state in its environment, heartbeats meanwhile, and
/// releases the lock.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct TerraformArgs {
    /// The state's name: 1 to 128 letters, digits, dots, underscores and hyphens.
    #[arg(long, value_name = "NAME")]
    state: String,

    #[command(flatten)]
    lease: LeaseArgs,

    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    child: ChildArgs,

    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

pub(crate) async fn main(args: TerraformArgs) -> Result<ExitCode, Failure> {
    let mut signals = Signals::all()?;
    let state =
        Name::parse(&args.state).map_err(|problem| Failure::usage(problem.detail.replace("state", "--state")))?;
    let url = args.url()?;
    let transport = args.common.transport().await?;
    args.expect_states(&url).await?;
    let client = Client::new(transport);
    let grant = args.acquire(&state, &client, &mut signals).await?;
    args.common.output.say(|| grant.describe());
    let runner = Runner {
        args: &args.child,
        common: &args.common,
        client: &client,
        lease: args.lease.lease,
        sort_key: None,
        occurrence: None,
        yield_after: None,
        states: Some(args.way(&state, &grant)),
    };
    match runner.run(grant, &mut signals).await? {
        End::Ended(status) => Ok(status),
        End::Stopped(_) => Ok(ExitCode::from(status::LOST)),
    }
}

impl TerraformArgs {
    /// The URL of the service.
    fn url(&self) -> Result<String, Failure> {
        if self.lease.lease.as_millis() >= u128::from(LEASE_WITHOUT_HEARTBEATS_MS) {
            // The service knows a lock without heartbeats by its lease.
            return Err(Failure::usage("--lease must be shorter than a day"));
        }
        let url = self.common.url().ok_or_else(|| {
            Failure::usage("the state is behind a service: name it with --url, and not --dynamodb-table or --lambda")
        })?;
        if url.contains(',') {
            return Err(Failure::usage("a state is kept by one service, in one region: name one URL"));
        }
        Ok(url)
    }

    /// The states' own password. A token that the lock has serves the states as well.
    fn password(&self) -> Option<String> {
        let own = std::env::var(PASSWORD).ok().filter(|password| !password.is_empty());
        own.filter(|_| self.token().is_none())
    }

    /// The token for the lock. One that stands beside --sigv4 is for other commands.
    fn token(&self) -> Option<String> {
        (!self.common.is_signed()).then(|| self.common.token()).flatten()
    }

    /// Refuses a service without states, or one that refuses them to this caller, before the lock is asked for.
    async fn expect_states(&self, url: &str) -> Result<(), Failure> {
        // A path of the locks without a use for this method answers without a word about a state.
        let Some(answer) = self.answer_to_terraform(LOCK_PATH).await? else { return Ok(()) };
        let forbidden = |detail: String| Err(Failure::new(status::FORBIDDEN, "forbidden", detail));
        let own = self.password().is_some();
        match answer.status() {
            StatusCode::NOT_FOUND => Err(Failure::usage(format!(
                "{url} has no states: start the service with `leasehold serve --terraform-state DIR`, deploy the stack with \
                 TerraformStates, or name another with --url"
            ))),
            _ if is_of_gateway(&answer) && own && self.common.is_signed() => forbidden(format!(
                "{url} asks for a signature: the stack has no TerraformTokens, so unset {PASSWORD}, which is sent in place of one"
            )),
            _ if is_of_gateway(&answer) => forbidden(format!("{url} {}", self.needs())),
            StatusCode::UNAUTHORIZED if own => forbidden(format!(
                "{url} does not know the token in {PASSWORD}: the stack's TerraformTokens have its hash"
            )),
            StatusCode::UNAUTHORIZED if self.common.is_signed() => forbidden(format!(
                "the states of {url} ask for a token: put one of the stack's TerraformTokens into {PASSWORD}"
            )),
            // The request for the lock tells what is wrong with a service that does not answer, or refuses the caller.
            _ => Ok(()),
        }
    }

    /// The answer to a request as Terraform's goes on. None: there was no answer.
    async fn answer_to_terraform(&self, path: &str) -> Result<Option<Response<Vec<u8>>>, Failure> {
        let password = self.password();
        let (service, credentials) = passage::transport(&self.common.connection(), password.as_deref()).await?;
        let Ok(mut request) = Request::builder().method(Method::GET).uri(path).body(Vec::new()) else {
            return Ok(None);
        };
        *request.headers_mut() = credentials;
        let answer = tokio::time::timeout(LOOK_LIMIT, self.common.patiently(service.send(request))).await;
        Ok(answer.ok().and_then(Result::ok))
    }

    /// Says what the lock of a stack takes beside the states' token.
    async fn explain(&self, failure: Failure) -> Failure {
        if failure.status != status::FORBIDDEN || self.common.is_signed() {
            return failure;
        }
        match self.answer_to_terraform(HEALTH.path).await {
            Ok(Some(answer)) if is_of_gateway(&answer) => failure.and(&format!(". The service {}", self.needs())),
            _ => failure,
        }
    }

    /// What a gateway asks for that has refused.
    fn needs(&self) -> &'static str {
        if self.common.is_signed() {
            "refuses the signature: the caller needs the right execute-api:Invoke for the paths of the states, too"
        } else {
            "asks for a signature: add --sigv4, and put a token of the states, if these ask for one, into TF_HTTP_PASSWORD"
        }
    }

    async fn acquire(&self, state: &Name, client: &Client, signals: &mut Signals) -> Result<Grant, Failure> {
        let name = state.key();
        let indicator = Indicator::new(&name, &self.common);
        let warn = warning(&name, &self.common);
        let request = self.request.request(LockKey::from(name.as_str()), self.lease.lease)?;
        let request = keeping!(request, self.child, self.lease.lease, warn).on_wait(indicator.on_wait());
        let asking = async {
            match acquiring::lock(client, request, self.request.no_wait).await {
                Ok(guard) => Ok(Grant::Lock(guard)),
                Err(failure) => Err(self.explain(failure).await),
            }
        };
        let (limit, observations) = (self.request.give_back_within(), self.request.observations.as_deref());
        acquiring::acquire(client, &indicator, limit, observations, signals, asking).await
    }

    /// The way to the states, for the guardian of the command.
    fn way(&self, state: &Name, grant: &Grant) -> Way {
        Way {
            connection: self.common.connection(),
            for_others: self.token(),
            state: state.as_str().to_owned(),
            lease_id: grant.lease_id().0.clone(),
            password: self.password(),
        }
    }
}

/// Whether a gateway has refused: Leasehold's own refusals are problem documents.
fn is_of_gateway(answer: &Response<Vec<u8>>) -> bool {
    let is_problem = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/problem+json");
    answer.status() == StatusCode::FORBIDDEN && !is_problem
}
