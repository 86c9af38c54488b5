//! The metrics of a client.

use futures_util::FutureExt;
use leasehold_client::{Client, ErrorKind, Heartbeats, LockRequest, PermitRequest, Wait};
use leasehold_tests::World;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::time::sleep;

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
    guard.renew().await.expect("held");
    sleep(SECOND * 5).await;
    guard.release().await.expect("held");

    // Lost to an operator, and to an outage.
    let guard = granted(&client, manual()).await;
    let lock = other.get("Moe").await.expect("held");
    other.break_lock("Moe", lock.record_version_number).await.expect("as seen");
    guard.renew().await.expect_err("broken");
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
        (r#"leasehold_wait_duration_count{leasehold_result="aborted",error_type="aborted"}"#, 1.0),
        (r#"leasehold_wait_duration_count{leasehold_result="invalid-request",error_type="invalid-request"}"#, 1.0),
        (r#"leasehold_heartbeat_duration_count{leasehold_result="renewed"}"#, 1.0),
        (r#"leasehold_heartbeat_duration_count{leasehold_result="lost",error_type="lost"}"#, 1.0),
        ("leasehold_renewals", 1.0),
        (r#"leasehold_losses{leasehold_reason="released"}"#, 1.0),
        (r#"leasehold_losses{leasehold_reason="expired"}"#, 1.0),
    ] {
        assert!((value(&text, name) - expected).abs() < f64::EPSILON, "{name} is not {expected} in:\n{text}");
    }
    assert!(
        value(&text, r#"leasehold_heartbeat_duration_count{leasehold_result="unavailable",error_type="unavailable"}"#)
            > 1.0,
        "{text}"
    );
    assert!(value(&text, "leasehold_hold_duration_count") >= 3.0, "{text}");
    let held = value(&text, "leasehold_hold_duration_sum");
    let least = (SECOND * 10 + LEASE - SECOND).as_secs_f64();
    assert!(held > least && held < least + 3.0, "ten seconds, none, and a lease: {held}");
}

#[tokio::test(start_paused = true)]
async fn loss_is_measured_when_nobody_looks_at_the_guard() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let _guard = granted(&world.client("one"), LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
    sleep(LEASE * 2).await;
    let text = handle.render();
    for (name, expected) in
        [(r#"leasehold_losses{leasehold_reason="expired"}"#, 1.0), ("leasehold_hold_duration_sum", LEASE.as_secs_f64())]
    {
        assert!((value(&text, name) - expected).abs() < 0.1, "{name} is not {expected} in:\n{text}");
    }
}
