//! The service by direct invocation, without an API before it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Request, Response, StatusCode};
use leasehold_wire::operation::{Family, OPERATIONS, Subject};
use leasehold_wire::{Problem, ProblemType};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{Error, HttpTransport, SigV4, Transport, TransportError};

/// The headers that go on to the function, in the client context of the invocation.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// The service by direct invocation of its functions. The caller needs `lambda:InvokeFunction`.
///
/// ```no_run
/// # async fn example(credentials: aws_credential_types::Credentials) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client::{Client, LambdaTransport, SigV4};
///
/// // `credentials` is any provider, such as that of `aws_config`.
/// let signer = SigV4::new(credentials, "eu-central-1");
/// let client = Client::new(LambdaTransport::new("leasehold-invoke", signer)?);
/// # Ok(())
/// # }
/// ```
///
/// The rules are those of the HTTP API. Listings and watches need that API; without watches, a waiter polls.
#[derive(Debug, Clone)]
pub struct LambdaTransport {
    http: HttpTransport,
    signer: SigV4,
    /// For locks and semaphores.
    locks: Function,
    transactions: Option<Function>,
}

/// The name or ARN of a function.
#[derive(Debug, Clone)]
struct Function(String);

impl Function {
    fn new(field: &str, name: &str) -> Result<Self, Error> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:$".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_allowed) {
            return Err(Error::invalid(field, format!("{name:?} is neither the name nor the ARN of a function")));
        }
        Ok(Self(name.to_owned()))
    }

    fn path(&self) -> String {
        format!("/2015-03-31/functions/{}/invocations", self.0.replace(':', "%3A").replace('$', "%24"))
    }
}

/// The subject and the action for a path of the HTTP API, where direct invocations have them.
fn invocation(path: &str) -> Option<(Subject, &'static str)> {
    let operation = OPERATIONS.iter().find(|operation| operation.path == path)?;
    // The function for operators is not among those of a client.
    let action = operation.action().filter(|_| operation.family != Family::Sweep)?;
    Some((operation.subject, action))
}

impl LambdaTransport {
    /// Invokes the function for locks and semaphores, by its name or ARN, in the region of `signer`. The name may end
    /// in `:ALIAS`.
    ///
    /// # Errors
    /// The name cannot be a function's.
    pub fn new(function: &str, signer: SigV4) -> Result<Self, Error> {
        let locks = Function::new("function", function)?;
        let region = signer.region();
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let endpoint = format!("https://lambda.{region}.{domain}");
        let signer = signer.for_service("lambda");
        let http = HttpTransport::new(&endpoint)?.sigv4(signer.clone());
        Ok(Self { http, signer, locks, transactions: None })
    }

    /// Sends invocations to this URL instead of Lambda's own in the region, for example to a VPC endpoint.
    ///
    /// # Errors
    /// The URL is not that of a web server.
    pub fn endpoint_url(self, url: &str) -> Result<Self, Error> {
        Ok(Self { http: HttpTransport::new(url)?.sigv4(self.signer.clone()), ..self })
    }

    /// Names the function for transactions and items. Without it they are refused.
    ///
    /// # Errors
    /// The name cannot be a function's.
    pub fn transact_function(self, name: &str) -> Result<Self, Error> {
        Ok(Self { transactions: Some(Function::new("transact_function", name)?), ..self })
    }

    /// The function for a path of the HTTP API, and the action there.
    fn invocation(&self, path: &str) -> Result<(&Function, &'static str), Problem> {
        let (serves, action) = invocation(path).ok_or_else(|| {
            Problem::invalid(
                "transport",
                format!("There is no direct invocation of {path}: use the URL of the HTTP API."),
            )
        })?;
        let function = match serves {
            Subject::Lock | Subject::Semaphore => &self.locks,
            Subject::Transaction => self.transactions.as_ref().ok_or_else(|| {
                Problem::invalid("transact_function", "Transactions need the option transact_function.")
            })?,
        };
        Ok((function, action))
    }

    async fn invoke(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, TransportError> {
        let (function, action) = match self.invocation(request.uri().path()) {
            Ok(found) => found,
            Err(problem) => return Ok(respond(&problem)),
        };
        let not_sent = |error: Box<dyn std::error::Error + Send + Sync>| {
            TransportError::not_sent("the request cannot be an invocation").with_source(error)
        };
        let mut members = members(&request).map_err(|error| not_sent(error.into()))?;
        members.insert("action".to_owned(), action.into());
        let mut invocation = Request::post(function.path())
            .header(CONTENT_TYPE, "application/json")
            .header("x-amz-invocation-type", "RequestResponse");
        if let Some(context) = client_context(request.headers()) {
            invocation = invocation.header("x-amz-client-context", context);
        }
        let invocation =
            invocation.body(Value::Object(members).to_string().into_bytes()).map_err(|error| not_sent(error.into()))?;
        Ok(answer(function, self.http.send(invocation).await?))
    }
}

impl Transport for LambdaTransport {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        self.invoke(request).boxed()
    }
}

/// The members of a request: those of its body, or of its query.
fn members(request: &Request<Vec<u8>>) -> Result<Map<String, Value>, serde_json::Error> {
    if !request.body().is_empty() {
        return serde_json::from_slice(request.body());
    }
    let query: Vec<(String, String)> = serde_urlencoded::from_str(request.uri().query().unwrap_or_default())
        .map_err(<serde_json::Error as serde::de::Error>::custom)?;
    Ok(query.into_iter().map(|(name, value)| (name, value.into())).collect())
}

/// The trace context, where the request has one.
fn client_context(headers: &HeaderMap) -> Option<String> {
    let header = |name: &str| Some((name.to_owned(), headers.get(name)?.to_str().ok()?.into()));
    let custom: Map<String, Value> = TRACE_HEADERS.into_iter().filter_map(header).collect();
    (!custom.is_empty()).then(|| BASE64_STANDARD.encode(json!({ "custom": custom }).to_string()))
}

/// The failure of a function, as Lambda tells it.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Failure {
    error_type: String,
    error_message: String,
}

/// The answer of the HTTP API to the same request. The message of a refusal is its problem document.
fn answer(function: &Function, response: Response<Vec<u8>>) -> Response<Vec<u8>> {
    if response.status() != StatusCode::OK {
        return refused_by_lambda(function, &response);
    }
    if !response.headers().contains_key("x-amz-function-error") {
        return Response::new(response.into_body());
    }
    let Failure { error_type, error_message } = serde_json::from_slice(response.body()).unwrap_or_default();
    let problem = serde_json::from_str(&error_message).unwrap_or_else(|_| {
        // The function cannot start with its settings. After anything else, it may have done what was asked.
        let is_setup = error_type == "Runtime.ConfigInvalid";
        let problem_type = if is_setup { ProblemType::Misconfigured } else { ProblemType::Unavailable };
        Problem::new(problem_type, format!("The function {} failed: {error_message}", function.0))
    });
    respond(&problem)
}

/// The refusal of Lambda itself: the function was not invoked, or Lambda failed.
fn refused_by_lambda(function: &Function, response: &Response<Vec<u8>>) -> Response<Vec<u8>> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Refusal {
        #[serde(alias = "Message")]
        message: String,
    }
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let problem_type = match response.status().as_u16() {
        404 => ProblemType::Misconfigured,
        403 if header("x-amzn-errortype").starts_with("AccessDenied") => ProblemType::Misconfigured,
        401 | 403 => ProblemType::Forbidden,
        429 => ProblemType::Throttled,
        // 409: the function is being created or updated.
        409 | 500..=599 => ProblemType::Unavailable,
        _ => ProblemType::InvalidRequest,
    };
    let Refusal { message } = serde_json::from_slice(response.body()).unwrap_or_default();
    let status = response.status();
    let detail = format!("Lambda refused to invoke the function {}: {status}: {message}", function.0);
    let mut refusal = respond(&Problem::new(problem_type, detail));
    if let Some(pause) = response.headers().get(RETRY_AFTER) {
        refusal.headers_mut().insert(RETRY_AFTER, pause.clone());
    }
    refusal
}

/// The problem as the HTTP API sends it.
fn respond(problem: &Problem) -> Response<Vec<u8>> {
    let mut response = Response::new(serde_json::to_vec(problem).unwrap_or_default());
    *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
    response
}
