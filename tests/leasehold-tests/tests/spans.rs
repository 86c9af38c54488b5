//! The spans of a client, and the trace context that it passes on.

#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "a test fails by a panic, under a paused clock")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use leasehold_api::logging::{LevelFilter, json_subscriber};
use leasehold_client::{Client, Guard, Transport, TransportError};
use leasehold_tests::World;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The lease of a client's locks, unless they choose another.
const LEASE: Duration = Duration::from_secs(20);

/// The only test in its binary: `tracing` decides for the whole process which spans exist, and a span that another
/// thread meets first can be lost to this one.
#[tokio::test(start_paused = true)]
async fn spans_show_requests_and_carry_the_trace_context() {
    assert_spans_name_the_wait_and_its_requests().await;
    assert_headers_are_added_to_each_request_in_its_span().await;
}

async fn granted(client: &Client) -> Guard {
    client.acquire("Moe").await.expect("reachable").granted().expect("free")
}

/// Notes what spans say.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl Spans {
    fn told(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").clone()
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("leasehold_client")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        attributes.record(&mut self.clone());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Spans {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().expect("not poisoned").push(format!("{field}={value:?}"));
    }
}

async fn assert_spans_name_the_wait_and_its_requests() {
    let world = World::new().await;
    let spans = Spans::default();
    let _subscriber = tracing::subscriber::set_default(spans.clone());
    let guard = granted(&world.client("one")).await;
    let told = spans.told();
    for expected in [
        "otel.name=leasehold acquire",
        "leasehold.key=Moe",
        r#"leasehold.result="granted""#,
        r#"url.path="/v1/acquire""#,
        "http.response.status_code=200",
    ] {
        assert!(told.iter().any(|field| field == expected), "{expected} is not in {told:?}");
    }
    let lease_id = &guard.lease_id().0;
    assert!(!told.iter().any(|field| field.contains(lease_id)), "{told:?}");
}

/// The path of a request, and its trace context.
type Sent = (String, Option<String>);

/// Notes each request.
#[derive(Clone)]
struct Listening<T>(T, Arc<Mutex<Vec<Sent>>>);

impl<T: Transport> Transport for Listening<T> {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
        let header = request.headers().get("traceparent").map(|value| value.to_str().expect("ASCII").to_owned());
        self.1.lock().expect("not poisoned").push((request.uri().path().to_owned(), header));
        self.0.send(request)
    }
}

async fn assert_headers_are_added_to_each_request_in_its_span() {
    let world = World::new().await;
    let _subscriber = tracing::subscriber::set_default(json_subscriber(LevelFilter::DEBUG, std::io::sink));
    let listening = Listening(world.transport(), Arc::default());
    let log = Arc::clone(&listening.1);
    let builder = Client::builder().request_headers(|headers| {
        let span = tracing::Span::current();
        let name = span.metadata().map_or("none", |metadata| metadata.name());
        headers.insert("traceparent", name.parse().expect("ASCII"));
    });
    let guard = granted(&builder.build(listening)).await;
    sleep(LEASE).await;
    guard.release().await.expect("held");
    let log = log.lock().expect("not poisoned").clone();
    for path in ["/v1/acquire", "/v1/heartbeat", "/v1/release"] {
        assert!(log.iter().any(|(sent, _)| sent == path), "{path} is not in {log:?}");
    }
    assert!(log.iter().all(|(_, header)| header.as_deref() == Some("request")), "{log:?}");
}
