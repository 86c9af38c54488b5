//! Events of API Gateway: HTTP APIs and Function URLs (format 2.0), REST APIs (format 1.0); of Application Load
//! Balancers, and of VPC Lattice (format 2.0).
//!
//! `lambda_http` turns an event into an HTTP request, and the response into an answer of the event's format. It panics
//! on parts that a caller controls: a raw space, quote or control byte in the query, a bad `Host` or
//! `X-Forwarded-Proto`, an overlong URI, undecodable base64. [`Repaired`] removes these first.
//!
//! The caller and the route are read from the event's context, which the gateway alone writes.

use std::collections::HashMap;
use std::convert::Infallible;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use lambda_http::aws_lambda_events::alb::AlbTargetGroupRequest;
use lambda_http::aws_lambda_events::apigw::{ApiGatewayProxyRequest, ApiGatewayV2httpRequest};
use lambda_http::aws_lambda_events::query_map::QueryMap;
use lambda_http::aws_lambda_events::vpc_lattice::VpcLatticeRequestV2;
use lambda_http::request::LambdaRequest;
use lambda_http::tower::ServiceExt;
use lambda_http::{Adapter, Body};
use lambda_runtime::{Context, Diagnostic, LambdaEvent, service_fn};
use leasehold_api::access::{self, Caller};
use leasehold_api::http::{HttpRequest, handle, problem_response, unknown_route};
use leasehold_api::{Route, document};
use leasehold_protocol::Principal;
use leasehold_wire::{Problem, ProblemType};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Longer than the longest path of the API.
const MAX_PATH_BYTES: usize = 1024;

/// Longer than any query that a gateway lets through: a request line and its headers have at most 10 KB there.
const MAX_QUERY_BYTES: usize = 32 * 1024;

/// Takes the place of a longer query. No operation has such a parameter.
const OVERLONG_QUERY: &str = "query-too-long";

/// More than a gateway lets through. A `HeaderMap` panics at 32,768.
const MAX_HEADERS: usize = 1000;

/// The bytes that cannot stand in a query. A `%` can: the query is encoded already.
const NOT_IN_QUERIES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The header that decides about the request's URI, like `Host`, and about nothing in this API.
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

type Event = Map<String, Value>;

/// Answers an event of a gateway with the operation that it asks for, or with `unknown-route` if that is none of
/// these.
///
/// # Errors
/// The event is from no gateway.
pub(crate) async fn answer<S: Sync + 'static>(
    service: &S,
    routes: &[&'static Route<S>],
    caller: Caller,
    event: Value,
) -> Result<Box<RawValue>, Diagnostic> {
    let route = route(&event, routes);
    let admitted = route.ok_or_else(unknown_route).and_then(|route| route.admit(caller));
    let admitted = &admitted;
    respond(event, move |request: lambda_http::Request| async move {
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(problem) => return problem_response(problem),
        };
        let request = HttpRequest {
            method: request.method(),
            content_type: request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()),
            query: request.uri().query().unwrap_or_default(),
            body: request.body(),
        };
        handle(service, admitted, request).await
    })
    .await
}

/// Answers an event of a gateway with the response to its request.
///
/// # Errors
/// The event is from no gateway.
pub(crate) async fn respond<F>(
    event: Value,
    respond: impl Fn(lambda_http::Request) -> F + Send,
) -> Result<Box<RawValue>, Diagnostic>
where
    F: Future<Output = Response<Vec<u8>>> + Send,
{
    let Some(event) = Repaired::of(event) else {
        let detail = "This is no event of an HTTP API, a REST API, a Function URL, an Application Load Balancer or VPC Lattice \
                      (event structure version V2).";
        return Err(named(Problem::new(ProblemType::InvalidRequest, detail)));
    };
    let respond = |request| {
        let response = respond(request);
        async { Ok::<_, Infallible>(response.await.map(Body::from)) }
    };
    let gateway = Adapter::from(service_fn(respond)).map_request(|Repaired(request)| {
        // The answer contains nothing of Lambda's own context.
        LambdaEvent::new(request, Context::default())
    });
    let Ok(answer) = gateway.oneshot(event).await;
    Ok(document(&answer))
}

/// Returns the error of a direct invocation, under the name that `Retry` and `Catch` match on.
pub(crate) fn named(problem: Problem) -> Diagnostic {
    Diagnostic {
        error_type: problem.problem_type.error_name().to_owned(),
        error_message: serde_json::to_string(&problem).unwrap_or(problem.detail),
    }
}

/// Returns the route that an event asks for: the only one, if the gateway's route chose it, or else the one of its
/// path.
fn route<S: 'static>(event: &Value, routes: &[&'static Route<S>]) -> Option<&'static Route<S>> {
    let (chosen, _) = paths(event);
    let is_open = chosen.is_empty() || chosen == "$default" || chosen.contains('{');
    match routes {
        [route] if !is_open => Some(route),
        _ => {
            let known: Vec<_> = routes.iter().map(|route| route.operation.path).collect();
            let path = path_of(event, &known)?;
            routes.iter().copied().find(|route| route.operation.path == path)
        }
    }
}

/// Returns the one of these paths that an event asks for. A gateway decodes the path, which therefore only selects one
/// of the known.
pub(crate) fn path_of(event: &Value, known: &[&'static str]) -> Option<&'static str> {
    let (chosen, path) = paths(event);
    known.iter().copied().find(|known| [chosen, path].contains(known))
}

/// The path of the gateway's route, and that of the request.
fn paths(event: &Value) -> (&str, &str) {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    let (chosen, path) = match event["resource"].as_str() {
        Some(resource) => (resource, text("path")),
        None if source(event) == Some(Source::HttpApi) => (text("routeKey"), text("rawPath")),
        None => ("", text("path")),
    };
    (chosen.split_once(' ').map_or(chosen, |(_, path)| path), path)
}

/// Returns the caller that the gateway's authorizer names. None: a caller of an unknown kind, or of two kinds at once.
pub(crate) fn principal(event: &Value, jwt_claim: &str) -> Option<Principal> {
    let context = &event["requestContext"];
    let authorizer = &context["authorizer"];
    match source(event)? {
        Source::RestApi => match (&context["identity"]["userArn"], &authorizer["principalId"]) {
            (Value::String(arn), Value::Null) => access::from_arn(arn),
            (Value::Null, Value::String(name)) => access::from_authorizer(name),
            (Value::Null, Value::Null) if authorizer.is_null() => access::anonymous(),
            _ => None,
        },
        Source::HttpApi if authorizer.is_null() => access::anonymous(),
        Source::HttpApi => match (&authorizer["iam"], &authorizer["jwt"], &authorizer["lambda"]) {
            (Value::Object(caller), Value::Null, Value::Null) => access::from_arn(caller.get("userArn")?.as_str()?),
            (Value::Null, Value::Object(token), Value::Null) => {
                access::from_claim(token.get("claims")?.get(jwt_claim)?.as_str()?)
            }
            (Value::Null, Value::Null, Value::Object(caller)) => {
                access::from_authorizer(caller.get(jwt_claim)?.as_str()?)
            }
            _ => None,
        },
        // Its authenticated users stand in headers, which prove nothing without a check of their signature.
        Source::LoadBalancer => access::anonymous(),
        Source::Lattice => match (context["identity"]["type"].as_str(), &context["identity"]["principal"]) {
            (Some("AWS_IAM"), Value::String(arn)) => access::from_lattice(arn),
            (None | Some("NONE"), Value::Null) => access::anonymous(),
            _ => None,
        },
    }
}

/// The gateways whose events differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// An HTTP API, or a Function URL.
    HttpApi,
    RestApi,
    LoadBalancer,
    Lattice,
}

/// Returns the gateway that wrote the event.
fn source(event: &Value) -> Option<Source> {
    let context = &event["requestContext"];
    if event["resource"].is_string() {
        Some(Source::RestApi)
    } else if context["http"].is_object() {
        Some(Source::HttpApi)
    } else if context["elb"].is_object() {
        Some(Source::LoadBalancer)
    } else {
        context["serviceNetworkArn"].is_string().then_some(Source::Lattice)
    }
}

/// A repaired event of a gateway, from which `lambda_http` can make a request: method, path, query, headers and body.
#[derive(Debug)]
struct Repaired(LambdaRequest);

impl Repaired {
    /// Repairs an event, if it is from a gateway.
    fn of(event: Value) -> Option<Self> {
        let source = source(&event)?;
        let Value::Object(event) = event else { return None };
        Some(Self(match source {
            Source::RestApi => LambdaRequest::ApiGatewayV1(rest_request(event)),
            Source::HttpApi => LambdaRequest::ApiGatewayV2(http_request(event)),
            Source::LoadBalancer => LambdaRequest::Alb(balanced_request(event)),
            Source::Lattice => LambdaRequest::VpcLatticeV2(lattice_request(event)),
        }))
    }
}

fn http_request(mut event: Event) -> ApiGatewayV2httpRequest {
    let mut request = ApiGatewayV2httpRequest::default();
    request.request_context.http.method = method(&event["requestContext"]["http"]["method"]);
    request.raw_path = Some(path(event.get("rawPath")));
    request.raw_query_string = event.get("rawQueryString").and_then(Value::as_str).map(query);
    request.headers = headers(&event);
    (request.body, request.is_base64_encoded) = body(&mut event);
    request
}

fn rest_request(mut event: Event) -> ApiGatewayProxyRequest {
    let mut request = ApiGatewayProxyRequest::default();
    request.http_method = method(event.get("httpMethod").unwrap_or(&Value::Null));
    request.path = Some(path(event.get("path")));
    request.multi_value_query_string_parameters = parameters(&event);
    request.headers = headers(&event);
    (request.body, request.is_base64_encoded) = body(&mut event);
    request
}

fn balanced_request(mut event: Event) -> AlbTargetGroupRequest {
    let mut request = AlbTargetGroupRequest::default();
    request.http_method = method(event.get("httpMethod").unwrap_or(&Value::Null));
    request.path = Some(path(event.get("path")));
    // They are encoded, and `lambda_http` decodes them.
    request.multi_value_query_string_parameters = parameters(&event);
    request.multi_value_headers = headers(&event);
    (request.body, request.is_base64_encoded) = body(&mut event);
    request
}

fn lattice_request(mut event: Event) -> VpcLatticeRequestV2 {
    let mut request = VpcLatticeRequestV2::default();
    request.method = Some(method(event.get("method").unwrap_or(&Value::Null)));
    request.path = Some(path(event.get("path")));
    request.query_string_parameters = parameters(&event);
    request.headers = headers(&event);
    (request.body, request.is_base64_encoded) = body(&mut event);
    request
}

/// Reads the method. An invalid method becomes one that no operation has.
fn method(method: &Value) -> Method {
    method.as_str().and_then(|method| method.parse().ok()).unwrap_or(Method::TRACE)
}

fn path(path: Option<&Value>) -> String {
    let path = path.and_then(Value::as_str).unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    format!("{slash}{}", &path[..path.floor_char_boundary(MAX_PATH_BYTES)])
}

fn query(query: &str) -> String {
    let encoded = utf8_percent_encode(query, NOT_IN_QUERIES).to_string();
    if encoded.len() > MAX_QUERY_BYTES { OVERLONG_QUERY.to_owned() } else { encoded }
}

/// The parameters of an event without a query. Those of a REST API are decoded.
fn parameters(event: &Event) -> QueryMap {
    let object = |name: &str| event.get(name).and_then(Value::as_object).filter(|members| !members.is_empty());
    let parameters: HashMap<_, Vec<_>> = if let Some(lists) = object("multiValueQueryStringParameters") {
        lists.iter().map(|(name, values)| (name.clone(), texts(values.as_array().into_iter().flatten()))).collect()
    } else {
        let single = object("queryStringParameters").into_iter().flatten();
        single.map(|(name, value)| (name.clone(), texts(one_or_more(value)))).collect()
    };
    // A list without a value makes `lambda_http` panic.
    let parameters: HashMap<_, _> = parameters.into_iter().filter(|(_, values)| !values.is_empty()).collect();
    // Percent-encoding turns one byte into three.
    let bytes = |(name, values): (&String, &Vec<String>)| {
        values.iter().map(|value| 3 * (name.len() + value.len()) + 2).sum::<usize>()
    };
    if parameters.iter().map(bytes).sum::<usize>() > MAX_QUERY_BYTES {
        return HashMap::from([(OVERLONG_QUERY.to_owned(), String::new())]).into();
    }
    parameters.into()
}

/// The value itself, or the values of the list that VPC Lattice writes.
fn one_or_more(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

fn texts<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    values.into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The headers that HTTP allows, without those that would change the URI.
fn headers(event: &Event) -> HeaderMap {
    let object = |name: &str| event.get(name).and_then(Value::as_object).into_iter().flatten();
    let all = object("headers").chain(object("multiValueHeaders"));
    let each = all.flat_map(|(name, values)| one_or_more(values).iter().map(move |value| (name, value)));
    let known = each.filter_map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let value = HeaderValue::from_str(value.as_str()?).ok()?;
        (name != HOST && name != FORWARDED_PROTO).then_some((name, value))
    });
    known.take(MAX_HEADERS).collect()
}

/// The body, and whether it is base64. Undecodable base64 becomes an empty body, which is not a JSON document.
fn body(event: &mut Event) -> (Option<String>, bool) {
    let Some(Value::String(body)) = event.remove("body") else { return (None, false) };
    let is_base64 = event.get("isBase64Encoded") == Some(&Value::Bool(true));
    if is_base64 && BASE64_STANDARD.decode(&body).is_err() { (None, false) } else { (Some(body), is_base64) }
}
