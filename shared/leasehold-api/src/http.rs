//! The HTTP API, version 1, independent of the server that receives the requests.

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method as HttpMethod, Response, StatusCode};
use leasehold_wire::operation::{Method, OPERATIONS, Operation, Subject};
use leasehold_wire::{Problem, ProblemType};
use serde_json::value::RawValue;

use crate::route::{Admitted, Input, document};

/// The parts of an HTTP request that operations read. It has no path: a gateway decodes paths.
#[derive(Debug, Clone, Copy)]
pub struct HttpRequest<'a> {
    /// The method.
    pub method: &'a HttpMethod,
    /// `Content-Type`, if it is present and text.
    pub content_type: Option<&'a str>,
    /// The query string, still encoded.
    pub query: &'a str,
    /// The body, decoded from base64 where the gateway encoded it.
    pub body: &'a [u8],
}

/// Carries out an operation. The answer to every faulty request is a problem document.
pub async fn handle<S: 'static>(service: &S, admitted: &Admitted<S>, request: HttpRequest<'_>) -> Response<Vec<u8>> {
    match dispatch(service, admitted, request).await {
        Ok(document) => response(StatusCode::OK, "application/json", document),
        Err(problem) => {
            let mut response = problem_response(&problem);
            if problem.problem_type == ProblemType::MethodNotAllowed {
                let allowed = HeaderValue::from_static(admitted.operation().method.as_str());
                response.headers_mut().insert(ALLOW, allowed);
            }
            response
        }
    }
}

async fn dispatch<S: 'static>(
    service: &S,
    admitted: &Admitted<S>,
    request: HttpRequest<'_>,
) -> Result<Box<RawValue>, Problem> {
    let operation = admitted.operation();
    if request.method.as_str() != operation.method.as_str() {
        let detail = format!("{} takes {} only.", operation.path, operation.method.as_str());
        return Err(Problem::new(ProblemType::MethodNotAllowed, detail));
    }
    let input = match operation.method {
        Method::Get => Input::Query(request.query),
        Method::Post => Input::Body(body(operation, request)?),
    };
    admitted.carry_out(service, input).await
}

fn body<'a>(operation: &Operation, request: HttpRequest<'a>) -> Result<&'a [u8], Problem> {
    // A browser sends a body without a type, or as text, for any web page without a preflight request.
    if !request.content_type.is_some_and(is_json) {
        let detail = "Send the body with the Content-Type application/json.";
        return Err(Problem::new(ProblemType::UnsupportedMediaType, detail));
    }
    if request.body.len() > operation.max_body_bytes() {
        return Err(body_too_large(operation));
    }
    Ok(request.body)
}

/// The problem for a body above [`Operation::max_body_bytes`].
pub fn body_too_large(operation: &Operation) -> Problem {
    let detail = format!("The body may have at most {} bytes.", operation.max_body_bytes());
    Problem::new(ProblemType::TooLarge, detail)
}

/// The problem for a path that no operation has.
pub fn unknown_route() -> Problem {
    let paths = |of_transactions: bool| {
        let operations = OPERATIONS.iter();
        let chosen = operations.filter(|operation| (operation.subject == Subject::Transaction) == of_transactions);
        chosen.map(|operation| operation.path).collect::<Vec<_>>().join(", ")
    };
    let detail = format!("This API has {}; and where it has transactions, {}.", paths(false), paths(true));
    Problem::new(ProblemType::UnknownRoute, detail)
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type == "application/json" || (media_type.starts_with("application/") && media_type.ends_with("+json"))
}

/// Returns the response that contains a problem document.
pub fn problem_response(problem: &Problem) -> Response<Vec<u8>> {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = response(status, "application/problem+json", document(problem));
    let retry_after = problem.problem_type.retry_after_seconds().map(HeaderValue::from);
    response.headers_mut().extend(retry_after.map(|seconds| (RETRY_AFTER, seconds)));
    response
}

fn response(status: StatusCode, content_type: &'static str, document: Box<RawValue>) -> Response<Vec<u8>> {
    let mut response = Response::new(String::from(Box::<str>::from(document)).into_bytes());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    // No cache may contain a lease id, or the state of a lock.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
