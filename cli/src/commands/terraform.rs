//! `leasehold terraform`: runs Terraform, or OpenTofu, under the lock of its state.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use leasehold_client::{Client, HttpTransport, LockKey, Transport};
use leasehold_terraform::{LEASE_USER, LEASE_WITHOUT_HEARTBEATS_MS, LOCK_PATH, Name, PATH};
use leasehold_wire::operation::HEALTH;

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

for the command's environment has TF_HTTP_ADDRESS, TF_HTTP_LOCK_ADDRESS, TF_HTTP_UNLOCK_ADDRESS, their methods,
TF_HTTP_USERNAME and TF_HTTP_PASSWORD. What the configuration says itself beats the environment: leave `address`,
`username` and their like out. The password is the token of --token, or else TF_HTTP_PASSWORD as it is, and the user name
has the lease id: the command's environment is a secret.

Terraform cannot sign its requests. Where IAM protects the API, --sigv4 signs the requests for the lock, and
TF_HTTP_PASSWORD has one of the stack's TerraformTokens for those of Terraform.

The lock has the key terraform/NAME. It is held, with heartbeats, for as long as the command runs. When it is lost, the
command is ended as `leasehold run` ends it, and the service refuses (409) whatever it still sends. When this program is
killed, its guardian ends the command, and the lock is free one lease later. A lock of plain `terraform`, without this
command, holds until it is unlocked.

Exit status:
   the command's own; 128 and the signal's number if a signal ended it
  75  the state is locked by someone else, and the command was not started
  76  the lock was lost, and the command stopped for that
 126  the command cannot be executed
 127  there is no such command
   and if the lock cannot be had for another reason, as listed by `leasehold --help`";

/// What to do about an address that asks Terraform for a signature.
const SIGNATURES: &str = "Terraform cannot sign its requests, and --sigv4 signs those for the lock only: deploy the stack with \
    TerraformStates and TerraformTokens, and put a token of these into TF_HTTP_PASSWORD";

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
    let grant = args.acquire(&state, &client, &url, &mut signals).await?;
    args.common.output.say(|| grant.describe());
    let runner = Runner {
        args: &args.child,
        common: &args.common,
        client: &client,
        lease: args.lease.lease,
        sort_key: None,
        occurrence: None,
        yield_after: None,
        further: args.environment(&url, &state, &grant),
    };
    match runner.run(grant, &mut signals).await? {
        End::Ended(status) => Ok(status),
        End::Stopped(_) => Ok(ExitCode::from(status::LOST)),
    }
}

impl TerraformArgs {
    /// The URL of the service, which Terraform must be able to use as well.
    fn url(&self) -> Result<String, Failure> {
        if self.lease.lease.as_millis() >= u128::from(LEASE_WITHOUT_HEARTBEATS_MS) {
            // The service knows a lock without heartbeats by its lease.
            return Err(Failure::usage("--lease must be shorter than a day"));
        }
        if self.common.is_signed() && self.password().is_none() {
            let detail = "Terraform cannot sign its requests: use --token in place of --sigv4, or put a token of the states into";
            return Err(Failure::usage(format!("{detail} {PASSWORD}")));
        }
        let url = self.common.url().ok_or_else(|| {
            Failure::usage("the state is behind a service: name it with --url, and not --dynamodb-table or --lambda")
        })?;
        if url.contains(',') {
            return Err(Failure::usage(
                "a state is behind one endpoint, which is all that Terraform asks: name one URL",
            ));
        }
        Ok(url)
    }

    /// The password of Terraform's requests, if there is one.
    fn password(&self) -> Option<String> {
        let own = || std::env::var(PASSWORD).ok().filter(|password| !password.is_empty());
        // A token that stands beside --sigv4 is for other commands.
        let token = (!self.common.is_signed()).then(|| self.common.token()).flatten();
        token.or_else(own)
    }

    /// Refuses a service without states, or one that Terraform cannot use, before the lock is asked for.
    async fn expect_states(&self, url: &str) -> Result<(), Failure> {
        // A path of the locks without a use for this method answers without a word about a state.
        let Some(answer) = self.answer_to_terraform(url, LOCK_PATH).await? else { return Ok(()) };
        match answer.status() {
            StatusCode::NOT_FOUND => Err(Failure::usage(format!(
                "{url} has no states: start the service with `leasehold serve --terraform-state DIR`, deploy the stack with \
                 TerraformStates, or name another with --url"
            ))),
            _ if asks_for_a_signature(&answer) => {
                Err(Failure::new(status::FORBIDDEN, "forbidden", format!("{url} asks for a signature. {SIGNATURES}")))
            }
            StatusCode::UNAUTHORIZED if self.common.is_signed() => Err(Failure::new(
                status::FORBIDDEN,
                "forbidden",
                format!("{url} does not know the token in {PASSWORD}: the stack's TerraformTokens have its hash"),
            )),
            // The request for the lock tells what is wrong with a service that does not answer, or refuses the caller.
            _ => Ok(()),
        }
    }

    /// The answer to a request as Terraform sends it: without a signature. None: there was no answer.
    async fn answer_to_terraform(&self, url: &str, path: &str) -> Result<Option<Response<Vec<u8>>>, Failure> {
        let transport = HttpTransport::new(url)?;
        let mut request = Request::builder().method(Method::GET).uri(path);
        if let Some(password) = self.password() {
            let basic = BASE64_STANDARD.encode(format!("leasehold:{password}"));
            request = request.header(AUTHORIZATION, format!("Basic {basic}"));
        }
        let Ok(request) = request.body(Vec::new()) else { return Ok(None) };
        let answer = tokio::time::timeout(LOOK_LIMIT, self.common.patiently(transport.send(request))).await;
        Ok(answer.ok().and_then(Result::ok))
    }

    /// Says what the lock of a stack takes beside Terraform's token.
    async fn explain(&self, failure: Failure, url: &str) -> Failure {
        if failure.status != status::FORBIDDEN || self.common.is_signed() {
            return failure;
        }
        match self.answer_to_terraform(url, HEALTH.path).await {
            Ok(Some(answer)) if asks_for_a_signature(&answer) => failure.and(&format!(". {SIGNATURES}")),
            _ => failure,
        }
    }

    async fn acquire(&self, state: &Name, client: &Client, url: &str, signals: &mut Signals) -> Result<Grant, Failure> {
        let name = state.key();
        let indicator = Indicator::new(&name, &self.common);
        let warn = warning(&name, &self.common);
        let request = self.request.request(LockKey::from(name.as_str()), self.lease.lease)?;
        let request = keeping!(request, self.child, self.lease.lease, warn).on_wait(indicator.on_wait());
        let asking = async {
            match acquiring::lock(client, request, self.request.no_wait).await {
                Ok(guard) => Ok(Grant::Lock(guard)),
                Err(failure) => Err(self.explain(failure, url).await),
            }
        };
        let (limit, observations) = (self.request.give_back_within(), self.request.observations.as_deref());
        acquiring::acquire(client, &indicator, limit, observations, signals, asking).await
    }

    /// The environment that Terraform's `http` backend reads. Its locks have a path and methods that any gateway knows.
    fn environment(&self, url: &str, state: &Name, grant: &Grant) -> Vec<(&'static str, String)> {
        let at = |path| format!("{}{path}?state={}", url.trim_end_matches('/'), state.as_str());
        // Terraform saves twice before it writes `errored.tfstate`, and repeats each save. It must be done with that
        // within the grace of a default lease, when the lock is lost with the service.
        let retries = std::env::var("TF_HTTP_RETRY_MAX").unwrap_or_else(|_| "1".to_owned());
        vec![
            ("TF_HTTP_RETRY_MAX", retries),
            ("TF_HTTP_ADDRESS", at(PATH)),
            ("TF_HTTP_UPDATE_METHOD", "POST".to_owned()),
            ("TF_HTTP_LOCK_ADDRESS", at(LOCK_PATH)),
            ("TF_HTTP_LOCK_METHOD", "PUT".to_owned()),
            ("TF_HTTP_UNLOCK_ADDRESS", at(LOCK_PATH)),
            ("TF_HTTP_UNLOCK_METHOD", "DELETE".to_owned()),
            ("TF_HTTP_USERNAME", format!("{LEASE_USER}{}", grant.lease_id().0)),
            (PASSWORD, self.password().unwrap_or_default()),
        ]
    }
}

/// Whether a gateway has refused: Leasehold's own refusals are problem documents.
fn asks_for_a_signature(answer: &Response<Vec<u8>>) -> bool {
    let is_problem = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/problem+json");
    answer.status() == StatusCode::FORBIDDEN && !is_problem
}
