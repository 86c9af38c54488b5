//! The Lambda adapters.
//!
//! An API Gateway event is read into a struct of our own, with only the parts that matter, each as lenient as the
//! gateway may be: the usual adapter crates build a URI and a header map from it, and fail or panic on a decoded
//! space in a path or a header value that is not ASCII, both of which a caller can send.

mod transactions;

use std::collections::HashMap;
use std::convert::Infallible;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, Method, Response};
use lambda_runtime::{Diagnostic, Error, LambdaEvent, service_fn};
use leasehold_api::access::{self, Access, Caller};
use leasehold_api::http::{HttpRequest, Operation, Route, handle, problem_response, unknown_route};
use leasehold_api::{ExecutionSecret, Service, cleanup, direct};
use leasehold_dynamodb::Clock;
use leasehold_protocol::{LockTable, Principal};
use leasehold_wire::{Problem, ProblemType};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{Config, Emf, init};

pub use transactions::{answer_sweep, answer_transactions, run_sweep, run_transactions};

/// The part of an API Gateway HTTP API event (payload format 2.0) that matters. Function URLs send the same.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpEvent {
    request_context: RequestContext,
    #[serde(default)]
    route_key: String,
    #[serde(default)]
    raw_path: String,
    #[serde(default)]
    headers: HashMap<String, String>,
    #[serde(default, deserialize_with = "empty_if_null")]
    raw_query_string: String,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct RequestContext {
    http: HttpContext,
    /// Whatever the route's authorizer found out; null, or missing, where it has none.
    #[serde(default)]
    authorizer: Value,
}

#[derive(Debug, Clone, Deserialize)]
struct HttpContext {
    method: String,
}

/// `cargo lambda watch` says null where API Gateway says nothing.
fn empty_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The answer in the same format.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpAnswer {
    /// The HTTP status.
    pub status_code: u16,
    /// The headers; none of ours repeats.
    pub headers: HashMap<String, String>,
    /// A JSON document.
    pub body: String,
    /// Never: JSON is text.
    pub is_base64_encoded: bool,
    /// None. `cargo lambda watch` insists on the list.
    pub cookies: [String; 0],
}

/// The answer of a function that is reached over HTTP and directly.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// To a gateway.
    Http(HttpAnswer),
    /// To a direct invocation: a JSON document.
    Direct(Box<RawValue>),
}

/// Serves these operations over HTTP until Lambda ends the process.
///
/// # Errors
/// What is wrong with the configuration, or Lambda's runtime interface failing.
pub async fn run_http(operations: &[Operation]) -> Result<(), Error> {
    let (function, metrics) = &start(function()).await?;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<HttpEvent>| {
        let answer = function.answer_http(operations, &event.payload).await;
        print(*metrics);
        Ok::<_, Infallible>(answer)
    }))
    .await
}

/// Serves direct invocations until Lambda ends the process.
///
/// # Errors
/// What is wrong with the configuration, or Lambda's runtime interface failing.
pub async fn run_direct() -> Result<(), Error> {
    let (function, metrics) = &start(function()).await?;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Value>| {
        let answer = function.answer_direct(event.payload).await;
        print(*metrics);
        answer
    }))
    .await
}

/// Serves the ends of Step Functions executions until Lambda ends the process.
///
/// # Errors
/// What is wrong with the configuration, or Lambda's runtime interface failing.
pub async fn run_cleanup() -> Result<(), Error> {
    let (function, metrics) = &start(function()).await?;
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Value>| {
        let answer = function.answer_cleanup(event.payload).await;
        print(*metrics);
        answer
    }))
    .await
}

/// Starts the log, and then what a function keeps; or tells Lambda why that cannot be.
async fn start<T>(making: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    init::log();
    init::or_report(making.await).await
}

async fn function() -> Result<(Function, Option<Emf>), Error> {
    let config = Config::from_env()?;
    let metrics = config.metrics.then(|| Emf::start(config.stack.clone())).transpose()?;
    let client = init::dynamodb_client(&config.schema.table_name).await?;
    let Config { schema, policy, access, takeover_clock_check, jwt_claim, execution_secret, .. } = config;
    let service = Service::new(LockTable::new(client, schema, policy, Clock::system()));
    let service = service.check_takeovers_by_clock(takeover_clock_check);
    Ok((Function { service, access, jwt_claim, execution_secret }, metrics))
}

/// Prints what was counted, before the answer goes out: Lambda may stop the process as soon as it has that.
fn print(metrics: Option<Emf>) {
    if let Some(Err(error)) = metrics.map(|emf| emf.write(std::io::stdout().lock())) {
        tracing::warn!(%error, "metrics are lost");
    }
}

/// What a Lambda function keeps from its start to its end.
#[derive(Debug, Clone)]
pub struct Function {
    /// The service.
    pub service: Service,
    /// Who may do what.
    pub access: Access,
    /// The claim that says who the bearer of a token is.
    pub jwt_claim: String,
    /// Makes the lease ids of Step Functions executions.
    pub execution_secret: ExecutionSecret,
}

impl Function {
    /// One that lets everyone do everything.
    pub fn unrestricted(service: Service) -> Self {
        Self {
            service,
            access: Access::default(),
            jwt_claim: String::new(),
            execution_secret: ExecutionSecret::default(),
        }
    }

    /// Answers one event of API Gateway or of a Function URL, if it asks for one of these operations.
    pub async fn answer_http(&self, operations: &[Operation], event: &HttpEvent) -> HttpAnswer {
        let caller = self.access.caller(principal(&event.request_context.authorizer, &self.jwt_claim));
        match operation(operations, event) {
            Some(operation) => answer_http(&self.service, operation, &caller, event).await,
            None => into_answer(problem_response(&unknown_route())),
        }
    }

    /// Answers one direct invocation.
    ///
    /// # Errors
    /// The refusal, under the name that `Retry` and `Catch` match on; its message is the problem document.
    pub async fn answer_direct(&self, input: Value) -> Result<Box<RawValue>, Diagnostic> {
        let caller = self.access.caller(access::direct());
        let input = self.execution_secret.name_lease(input).map_err(named)?;
        direct::invoke(&self.service, Operation::ALL, &caller, input).await.map_err(named)
    }

    /// Answers the end of one Step Functions execution.
    ///
    /// # Errors
    /// The failure, named in the same way.
    pub async fn answer_cleanup(&self, event: Value) -> Result<cleanup::CleanUp, Diagnostic> {
        cleanup::release_all(&self.service, &self.execution_secret, event).await.map_err(named)
    }
}

/// The operation that an event asks for: the only one, where the gateway's route has chosen it; else the one of its path. A
/// gateway decodes the path, so nothing is read from it but which of ours it is.
fn operation<R: Route>(operations: &[R], event: &HttpEvent) -> Option<R> {
    let route = event.route_key.split_once(' ').map_or("", |(_, path)| path);
    match operations {
        [operation] if event.route_key != "$default" => Some(*operation),
        _ => operations.iter().copied().find(|operation| [route, &event.raw_path].contains(&operation.path())),
    }
}

async fn answer_http<R: Route>(service: &R::Service, operation: R, caller: &Caller, event: &HttpEvent) -> HttpAnswer {
    let response = match decode_body(event) {
        Ok(body) => {
            let method = event.request_context.http.method.parse().unwrap_or(Method::TRACE);
            let request = HttpRequest {
                caller,
                method: &method,
                content_type: header(event, "content-type"),
                query: &event.raw_query_string,
                body: &body,
            };
            handle(service, operation, request).await
        }
        Err(problem) => problem_response(&problem),
    };
    into_answer(response)
}

/// Who calls, as the gateway's authorizer says. The gateway alone writes this part of an event.
fn principal(authorizer: &Value, jwt_claim: &str) -> Option<Principal> {
    if authorizer.is_null() {
        return access::anonymous();
    }
    match (&authorizer["iam"], &authorizer["jwt"]) {
        (Value::Object(caller), Value::Null) => access::from_arn(caller.get("userArn")?.as_str()?),
        (Value::Null, Value::Object(token)) => access::from_claim(token.get("claims")?.get(jwt_claim)?.as_str()?),
        // Of a kind that is unknown here, or of two kinds at once.
        _ => None,
    }
}

fn named(problem: Problem) -> Diagnostic {
    Diagnostic {
        error_type: problem.problem_type.error_name().to_owned(),
        error_message: serde_json::to_string(&problem).unwrap_or(problem.detail),
    }
}

fn decode_body(event: &HttpEvent) -> Result<Vec<u8>, Problem> {
    let body = event.body.as_deref().unwrap_or_default();
    if !event.is_base64_encoded {
        return Ok(body.as_bytes().to_vec());
    }
    let refuse = |_| Problem::new(ProblemType::InvalidRequest, "The body is not what its encoding says.");
    BASE64_STANDARD.decode(body).map_err(refuse)
}

/// API Gateway sends header names in lower case, a Function URL too; nobody promises it.
fn header<'a>(event: &'a HttpEvent, name: &str) -> Option<&'a str> {
    event.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

fn into_answer(response: Response<Vec<u8>>) -> HttpAnswer {
    let (parts, body) = response.into_parts();
    HttpAnswer {
        status_code: parts.status.as_u16(),
        headers: text_headers(&parts.headers),
        // JSON documents are UTF-8.
        body: String::from_utf8(body).unwrap_or_default(),
        is_base64_encoded: false,
        cookies: [],
    }
}

fn text_headers(headers: &HeaderMap) -> HashMap<String, String> {
    headers.iter().filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned()))).collect()
}
