//! The function that keeps Terraform's states in S3.

mod bucket;
mod s3;

use http::header::{HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, Response};
use lambda_http::Request;
use lambda_runtime::Diagnostic;
use leasehold_api::access::{Access, Bearers, Caller};
use leasehold_api::http::unknown_route;
use leasehold_terraform::{Action, Asked, Backend, LOCK_PATH, PATH, refusal, token};
use leasehold_wire::{Problem, ProblemType};
use serde_json::Value;
use serde_json::value::RawValue;

pub use self::bucket::Bucket;
use crate::gateway;

/// The largest state, as the JSON text in the answer of a function. An event and an answer have at most 6 MiB, and the
/// rest of them at most this less.
const MAX_TEXT_BYTES: usize = (6 * 1024 - 64) * 1024;

/// The state of the function between events.
#[derive(Debug, Clone)]
pub struct TerraformFunction {
    /// The states and their locks.
    pub backend: Backend<Bucket>,
    /// The callers by their tokens. Absent: the gateway names them.
    pub bearers: Option<Bearers>,
    /// The rules of access for callers that the gateway names.
    pub access: Access,
    /// The claim that names the bearer of a token that the gateway checks.
    pub jwt_claim: String,
}

impl TerraformFunction {
    /// Answers one event of a gateway.
    ///
    /// # Errors
    /// The event is from no gateway.
    pub async fn answer(&self, event: Value) -> Result<Box<RawValue>, Diagnostic> {
        let path = gateway::path_of(&event, &[PATH, LOCK_PATH]);
        let principal = gateway::principal(&event, &self.jwt_claim);
        let named = &self.access.caller(principal);
        gateway::respond(event, move |request| async move {
            self.respond(path, named, &request).await.unwrap_or_else(refused)
        })
        .await
    }

    /// Responds to a request that the gateway let through. `named` is the caller in the gateway's words.
    async fn respond(
        &self,
        path: Option<&str>,
        named: &Caller,
        request: &Request,
    ) -> Result<Response<Vec<u8>>, Problem> {
        let caller = match &self.bearers {
            Some(bearers) => bearer_of(bearers, request.headers())?,
            None => named.clone(),
        };
        let path = path.ok_or_else(unknown_route)?;
        let query = request.uri().query().unwrap_or_default();
        let asked = Asked::parse(request.method(), path, query, request.headers(), caller)?;
        check_size(&asked, request.body())?;
        self.backend.answer(&asked, request.headers(), request.body()).await
    }
}

/// Returns the bearer of the token, which Terraform sends as a password.
fn bearer_of(bearers: &Bearers, headers: &HeaderMap) -> Result<Caller, Problem> {
    let unauthorized = |detail: &str| Problem {
        status: 401,
        title: "The caller is unknown".to_owned(),
        ..Problem::new(ProblemType::Forbidden, detail)
    };
    let token = token(headers).filter(|token| !token.is_empty()).ok_or_else(|| {
        unauthorized("The states ask for a token: put it into TF_HTTP_PASSWORD, and any name into TF_HTTP_USERNAME.")
    })?;
    let unknown =
        "The states do not know the token in TF_HTTP_PASSWORD. The parameter TerraformTokens of the stack has them.";
    bearers.of(&token).cloned().ok_or_else(|| unauthorized(unknown))
}

/// # Errors
/// `too-large`: the state could never be read again, or the description of a lock is too large. `invalid-request`: the
/// state is no text.
fn check_size(asked: &Asked, body: &[u8]) -> Result<(), Problem> {
    let limit = asked.action.max_body_bytes(MAX_TEXT_BYTES);
    if body.len() > limit {
        return Err(Problem::new(ProblemType::TooLarge, format!("The body may have at most {limit} bytes.")));
    }
    if asked.action != Action::Write {
        return Ok(());
    }
    let text = std::str::from_utf8(body)
        .map_err(|_| Problem::new(ProblemType::InvalidRequest, "The state must be UTF-8. Nothing was written."))?;
    let bytes = serde_json::to_string(text).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_TEXT_BYTES {
        let detail = format!(
            "The state has {} bytes, and {bytes} in the answer of a Lambda function, whose quotes and line ends are escaped. At most \
             {MAX_TEXT_BYTES} are allowed, and nothing was written. Split the state, or keep it with `leasehold serve`.",
            text.len()
        );
        return Err(Problem::new(ProblemType::TooLarge, detail));
    }
    Ok(())
}

fn refused(problem: Problem) -> Response<Vec<u8>> {
    let is_unknown = problem.status == 401;
    let mut response = refusal(problem);
    if is_unknown {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"leasehold\""));
    }
    response
}
