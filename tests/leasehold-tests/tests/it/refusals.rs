//! The refusals in the table of operations: a service answers with no others, and with each of them at least once.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::routing::any;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Response};
use leasehold_api::access::Caller;
use leasehold_api::http::problem_response;
use leasehold_api::{Routed, Service, direct};
use leasehold_client::{Transport, TransportError};
use leasehold_conformance::{CONCURRENT_CASES, Refusals, Target, run};
use leasehold_dynamodb::Clock;
use leasehold_in_process::InProcess;
use leasehold_protocol::{LockTable, Policy};
use leasehold_wire::ProblemType;
use leasehold_wire::operation::{OPERATIONS, Operation, Refusal, Subject};
use serde_json::{Map, Value};
use tokio::net::TcpListener;

use crate::conformance::{memory, serve_engine, without_sort_key};
use crate::documented;
use crate::transaction_api::{self, Api};

/// Makes a direct invocation of each request whose operation has an action, and passes on the others.
pub(crate) struct Direct<S> {
    pub(crate) service: S,
    pub(crate) http: InProcess,
}

impl<S: Routed> Transport for Direct<S> {
    fn send(&self, request: http::Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        async move {
            let Some(input) = invocation(&request) else { return self.http.send(request).await };
            Ok(match direct::invoke(&self.service, S::ROUTES, Caller::unrestricted(), input).await {
                Ok(document) => {
                    let response = Response::builder().header("content-type", "application/json");
                    let response = response.header("cache-control", "no-store");
                    response.body(document.get().as_bytes().to_vec()).expect("a response")
                }
                Err(problem) => problem_response(&problem),
            })
        }
        .boxed()
    }
}

/// Returns the direct invocation for this request, if there is one.
fn invocation(request: &http::Request<Vec<u8>>) -> Option<Value> {
    let operation = *OPERATIONS.iter().find(|operation| operation.path == request.uri().path())?;
    let mut members: Map<String, Value> = match *request.method() {
        Method::POST => serde_json::from_slice(request.body()).ok()?,
        _ => serde_urlencoded::from_str(request.uri().query().unwrap_or_default()).ok()?,
    };
    members.insert("action".to_owned(), operation.action()?.into());
    Some(Value::Object(members))
}

/// Runs the conformance suite with direct invocations. The cases that read what these leave out fail.
async fn answered_directly() -> Refusals {
    let over_http = serve_engine(&memory(), without_sort_key()).await;
    let (dynamodb, schema) = (over_http.dynamodb.clone(), over_http.schema.clone());
    let locks = Service::new(LockTable::new(dynamodb, schema, Policy::default(), Clock::system()));
    let transport = Arc::new(Direct { http: InProcess::new(locks.clone()), service: locks });
    let answer = any(move |request: Request| async move {
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        let answer = transport.send(Request::from_parts(parts, body.into())).await.expect("an operation on keys");
        answer.map(Body::from)
    });
    let paths = Service::ROUTES.iter().map(|route| route.operation.path);
    let app = paths.fold(Router::new(), |app, path| app.route(path, answer.clone()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let base_url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(leasehold_server::run(listener, app, std::future::pending()));
    let target = Target { base_url, refusals: Refusals::default(), concurrent_cases: CONCURRENT_CASES, ..over_http };
    let failures = run(&target).await.expect_err("direct invocations leave out payloads");
    assert!(failures.failed.len() * 4 < failures.cases, "{failures}");
    target.refusals
}

fn kinds<'a>(refusals: impl IntoIterator<Item = &'a Refusal>) -> BTreeSet<ProblemType> {
    refusals.into_iter().flat_map(|refusal| refusal.kinds).copied().collect()
}

/// Compares the entries of these operations with the refusals that were answered.
fn compare(operations: impl Fn(&Operation) -> bool, answered: &[Refusals]) {
    let mut unseen = Vec::new();
    for operation in OPERATIONS.iter().filter(|operation| operations(operation)) {
        let seen = answered.iter().flat_map(|answered| answered.of(operation)).collect::<BTreeSet<_>>();
        let strangers: Vec<_> = seen.difference(&kinds(operation.all_refusals())).copied().collect();
        assert_eq!(strangers, [], "{} answers with them, and its entry does not have them", operation.name);
        let own = kinds(operation.refusals.iter().copied().flatten());
        unseen.extend(own.difference(&seen).map(|&kind| (operation.name, kind)));
    }
    assert_eq!(unseen, [], "no request was answered with these refusals of an entry");
}

#[tokio::test(flavor = "multi_thread")]
async fn operation_on_keys_answers_with_the_refusals_of_its_entry() {
    let (_, over_http) = documented::suite().await;
    let answered = [over_http.clone(), answered_directly().await];
    compare(|operation| operation.subject != Subject::Transaction, &answered);
}

#[tokio::test(start_paused = true)]
async fn transaction_answers_with_the_refusals_of_its_entry() {
    let answered = [
        transaction_api::every_refusal(Api::new().await).await,
        transaction_api::every_refusal(Api::direct().await).await,
    ];
    compare(|operation| operation.subject == Subject::Transaction, &answered);
}
