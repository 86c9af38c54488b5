//! Metrics, spans and the trace context of a client.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use leasehold_api::logging::{LevelFilter, json_subscriber};
use leasehold_client::{Client, ErrorKind, Heartbeats, LockRequest, PermitRequest, Transport, TransportError, Wait};
use leasehold_tests::World;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::{LEASE, Network, SECOND, granted};

/// The value of one line of Prometheus' text format; zero where there is none.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().expect("a number"))
}

#[tokio::test(start_paused = true)]
async fn waits_holds_heartbeats_and_losses_are_measured() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let network = Network::new(world.transport());
    let client = Client::new(network.clone());

    let manual = || LockRequest::new("Moe").heartbeats(Heartbeats::Manual);
    let guard = granted(&client, manual()).await;
    let other = world.client("other");
    other.try_acquire("Moe").await.expect("reachable").granted().expect_err("held");
    sleep(SECOND * 5).await;
    guard.heartbeat().await.expect("held");
    sleep(SECOND * 5).await;
    guard.release().await.expect("held");

    // Lost to an operator, and to an outage.
    let guard = granted(&client, manual()).await;
    let lock = other.get("Moe").await.expect("held");
    other.break_lock("Moe", lock.record_version_number).await.expect("as seen");
    guard.heartbeat().await.expect_err("broken");
    let guard = granted(&client, "Moe").await;
    network.cut();
    guard.lost().await.expect("expired");
    network.mend();
    // A wait that is given up, one that fails, and one for permits.
    let waiting = other.acquire(LockRequest::new("Moe").wait(Wait::Forever));
    assert!(waiting.now_or_never().is_none());
    let error = client.try_acquire("").await.expect_err("no key");
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error}");
    let permit = client.semaphore("pool", 1).try_acquire(PermitRequest::new()).await.expect("reachable");
    drop(permit.granted().expect("free"));

    let text = handle.render();
    for (name, expected) in [
        (r#"leasehold_wait_duration_count{leasehold_result="granted"}"#, 4.0),
        (r#"leasehold_wait_duration_count{leasehold_result="held"}"#, 1.0),
        (r#"leasehold_wait_duration_count{leasehold_result="aborted"}"#, 1.0),
        (r#"leasehold_wait_duration_count{leasehold_result="invalid-request"}"#, 1.0),
        (r#"leasehold_heartbeat_duration_count{leasehold_result="renewed"}"#, 1.0),
        (r#"leasehold_heartbeat_duration_count{leasehold_result="lost"}"#, 1.0),
        ("leasehold_renewals", 1.0),
        (r#"leasehold_losses{leasehold_reason="released"}"#, 1.0),
        (r#"leasehold_losses{leasehold_reason="expired"}"#, 1.0),
    ] {
        assert!((value(&text, name) - expected).abs() < f64::EPSILON, "{name} is not {expected} in:\n{text}");
    }
    assert!(value(&text, r#"leasehold_heartbeat_duration_count{leasehold_result="unavailable"}"#) > 1.0, "{text}");
    assert!(value(&text, "leasehold_hold_duration_count") >= 3.0, "{text}");
    let held = value(&text, "leasehold_hold_duration_sum");
    let least = (SECOND * 10 + LEASE - SECOND).as_secs_f64();
    assert!(held > least && held < least + 3.0, "ten seconds, none, and a lease: {held}");
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

#[tokio::test(start_paused = true)]
async fn spans_name_the_wait_and_its_requests() {
    let world = World::new().await;
    let spans = Spans::default();
    let _subscriber = tracing::subscriber::set_default(spans.clone());
    let guard = granted(&world.client("one"), "Moe").await;
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

#[tokio::test(start_paused = true)]
async fn headers_are_added_to_each_request_in_its_span() {
    let world = World::new().await;
    let _subscriber = tracing::subscriber::set_default(json_subscriber(LevelFilter::DEBUG, std::io::sink));
    let listening = Listening(world.transport(), Arc::default());
    let log = Arc::clone(&listening.1);
    let builder = Client::builder().request_headers(|headers| {
        let span = tracing::Span::current();
        let name = span.metadata().map_or("none", |metadata| metadata.name());
        headers.insert("traceparent", name.parse().expect("ASCII"));
    });
    let guard = granted(&builder.build(listening), "Moe").await;
    sleep(LEASE).await;
    guard.release().await.expect("held");
    let log = log.lock().expect("not poisoned").clone();
    for path in ["/v1/acquire", "/v1/heartbeat", "/v1/release"] {
        assert!(log.iter().any(|(sent, _)| sent == path), "{path} is not in {log:?}");
    }
    assert!(log.iter().all(|(_, header)| header.as_deref() == Some("request")), "{log:?}");
}
