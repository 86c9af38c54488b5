//! Counts for Prometheus.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use hyper::header::CONTENT_TYPE;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_util::layers::{Layer, PrefixLayer};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Path of the counts.
pub(crate) const PATH: &str = "/metrics";
/// Beginning of every metric's name.
const PREFIX: &str = "leasehold";
/// The pause between two rounds of upkeep. A latency takes 20 to 40 bytes until then.
const FOLD_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds of the buckets, in seconds: from a read in memory to the longest answer.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Moves the recorded latencies into the buckets of their histograms. Until then, each is kept by itself.
async fn fold_repeatedly(handle: PrometheusHandle) {
    let mut ticks = interval(FOLD_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        handle.run_upkeep();
    }
}

/// Installs the recorder of this process: returns the routes of its counts, and the task that keeps it small. `None` if
/// the process has one already.
pub(crate) fn start() -> Option<(Router, JoinHandle<()>)> {
    let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS).ok()?.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(PrefixLayer::new(PREFIX).layer(recorder)).ok()?;
    describe_counter!("http_requests_total", Unit::Count, "Answered requests, by route and status.");
    describe_counter!("requests_shed_total", Unit::Count, "Requests refused because of load.");
    describe_histogram!("http_request_duration_seconds", Unit::Seconds, "Time from a request to its answer, by route.");
    leasehold_api::counts::describe();
    let folding = tokio::spawn(fold_repeatedly(handle.clone()));
    Some((routes(handle), folding))
}

/// Serves `GET /metrics`.
fn routes(handle: PrometheusHandle) -> Router {
    Router::new().route(
        PATH,
        get(async move || {
            handle.run_upkeep();
            let mut response = Response::new(Body::from(handle.render()));
            let text = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
            response.headers_mut().insert(CONTENT_TYPE, text);
            response
        }),
    )
}

/// Counts an answer. `route` is one of the service's own paths, so that strangers cannot add series.
pub(crate) fn count(route: &'static str, status: u16, latency: Duration) {
    counter!("http_requests_total", "route" => route, "status" => status.to_string()).increment(1);
    histogram!("http_request_duration_seconds", "route" => route).record(latency.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    fn resident_pages() -> u64 {
        let fields = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        fields.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
    }

    #[tokio::test(start_paused = true)]
    async fn latencies_take_bounded_memory_when_nobody_reads() {
        let (_routes, folding) = start().expect("no other test starts them");
        let before = resident_pages();
        for _ in 0..40 {
            (0..100_000).for_each(|_| histogram!("latency").record(0.01));
            advance(FOLD_INTERVAL).await;
            yield_now().await;
        }
        folding.abort();
        // Four million latencies would take 80 MB and more.
        let grown = resident_pages().saturating_sub(before) * 4096;
        assert!(grown < 32 * 1024 * 1024, "{grown} bytes");
    }
}
