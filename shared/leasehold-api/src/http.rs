//! The HTTP API, version 1, independent of the server that receives the requests.

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Response, StatusCode};
use leasehold_wire::{Problem, ProblemType};
use serde_json::value::RawValue;

use crate::access::Caller;
use crate::route::{Input, document};
pub use crate::route::{Operation, Route};

/// The parts of an HTTP request that operations read. It has no path: a gateway decodes paths.
#[derive(Debug, Clone, Copy)]
pub struct HttpRequest<'a> {
    /// The caller.
    pub caller: &'a Caller,
    /// The method.
    pub method: &'a Method,
    /// `Content-Type`, if it is present and text.
    pub content_type: Option<&'a str>,
    /// The query string, still encoded.
    pub query: &'a str,
    /// The body, decoded from base64 where the gateway encoded it.
    pub body: &'a [u8],
}

/// Carries out `operation`. The answer to every faulty request is a problem document.
pub async fn handle<R: Route>(service: &R::Service, operation: R, request: HttpRequest<'_>) -> Response<Vec<u8>> {
    match dispatch(service, operation, request).await {
        Ok(document) => response(StatusCode::OK, "application/json", document),
        Err(problem) => {
            let mut response = problem_response(&problem);
            if problem.problem_type == ProblemType::MethodNotAllowed {
                let allowed = HeaderValue::from_str(operation.method().as_str());
                response.headers_mut().extend(allowed.ok().map(|method| (ALLOW, method)));
            }
            response
        }
    }
}

async fn dispatch<R: Route>(
    service: &R::Service,
    operation: R,
    request: HttpRequest<'_>,
) -> Result<Box<RawValue>, Problem> {
    if *request.method != operation.method() {
        let detail = format!("{} takes {} only.", operation.path(), operation.method());
        return Err(Problem::new(ProblemType::MethodNotAllowed, detail));
    }
    let input =
        if operation.method() == Method::GET { Input::Query(request.query) } else { Input::Body(body::<R>(request)?) };
    operation.carry_out(service, request.caller, input).await
}

fn body<R: Route>(request: HttpRequest<'_>) -> Result<&[u8], Problem> {
    // A browser sends a body without a type, or as text, for any web page without a preflight request.
    if !request.content_type.is_some_and(is_json) {
        let detail = "Send the body with the Content-Type application/json.";
        return Err(Problem::new(ProblemType::UnsupportedMediaType, detail));
    }
    if request.body.len() > R::MAX_BODY_BYTES {
        return Err(body_too_large::<R>());
    }
    Ok(request.body)
}

/// The problem for a body above [`Route::MAX_BODY_BYTES`].
pub fn body_too_large<R: Route>() -> Problem {
    Problem::new(ProblemType::TooLarge, format!("The body may have at most {} bytes.", R::MAX_BODY_BYTES))
}

/// The problem for a path that is none of [`Route::path`].
pub fn unknown_route() -> Problem {
    let detail = "This API has /v1/acquire, acquire-all, heartbeat, release, break, lock, watch, locks and health; \
                  /v1/semaphore, and /v1/semaphore/acquire, heartbeat, release, break, enqueue and capacity; and where it has \
                  transactions, /v1/transactions/begin, add, commit, rollback, unlock and sweep, \
                  /v1/transaction, /v1/transactions, and /v1/items/get and list.";
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SemaphoreOperation, TransactionOperation};

    /// Checks that the first or the last part of each path is in the text.
    fn names<R: Route>(detail: &str) {
        for operation in R::ALL {
            let path = operation.path();
            let last = path.rsplit('/').next().expect("split gives one at least");
            let words: Vec<_> = detail.split([' ', ',', ';', '.']).collect();
            assert!(words.contains(&path) || words.contains(&last), "{path}");
        }
    }

    #[test]
    fn problem_of_an_unknown_route_names_every_route() {
        let detail = unknown_route().detail;
        names::<Operation>(&detail);
        names::<SemaphoreOperation>(&detail);
        names::<TransactionOperation>(&detail);
    }
}
