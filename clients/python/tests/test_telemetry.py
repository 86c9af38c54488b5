"""Spans, metrics and the trace context that goes with each request."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MakeClient, RunPython, eventually, finished
from proxy import Answer, Proxy, Refuse, only

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leasehold import Forbidden, Held, LockLost


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Recorded:
    """The spans and the metrics of one test."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == f"leasehold {name}"]

    def points(self, name: str) -> dict[str, Any]:
        """The points of a metric, by the values of their attributes but `error.type`."""
        data = self._reader.get_metrics_data()
        return {
            "".join(str(value) for name, value in (point.attributes or {}).items() if name != "error.type"): point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"leasehold.{name}"
            for point in metric.data.data_points
        }


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    recorded = Recorded()
    monkeypatch.setattr(trace, "get_tracer", recorded.tracers.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", recorded.meters.get_meter)
    yield recorded
    recorded.tracers.shutdown()
    recorded.meters.shutdown()


def test_waits_holds_heartbeats_and_losses_are_measured(
    recorded: Recorded, proxy: Proxy, make_client: MakeClient, key: str
) -> None:
    client = make_client(proxy.url)
    guard = client.acquire(key, lease=5, heartbeat_interval=0.5).granted()
    assert isinstance(make_client(proxy.url).try_acquire(key), Held)
    version = guard.record_version_number
    eventually(lambda: guard.record_version_number != version)
    proxy.fault = only("heartbeat", Refuse())
    assert guard.wait_lost(60) == "expired"
    waits = recorded.points("wait.duration")
    assert (waits["granted"].count, waits["held"].count) == (1, 1)
    heartbeats = recorded.points("heartbeat.duration")
    assert heartbeats["renewed"].count == recorded.points("renewals")[""].value >= 1
    assert heartbeats["unavailable"].count >= 1
    assert heartbeats["unavailable"].attributes["error.type"] == "unavailable"
    assert "error.type" not in {**heartbeats["renewed"].attributes, **waits["held"].attributes}
    assert recorded.points("losses")["expired"].value == 1
    hold = recorded.points("hold.duration")[""]
    assert (hold.count, hold.sum > 1) == (1, True)
    assert key not in str(waits) + str(heartbeats) + str(hold)


def test_each_request_carries_the_trace_context(
    recorded: Recorded, proxy: Proxy, make_client: MakeClient, key: str
) -> None:
    signed: list[object] = []

    def auth(request: Any) -> dict[str, str]:
        signed.append(request.headers.get("traceparent"))
        return {}

    client = make_client(proxy.url, auth=auth)
    guard = client.acquire(key).granted()
    guard.release()
    (asked,) = recorded.spans("acquire")
    (waited,) = recorded.spans("wait")
    assert asked.attributes == {"leasehold.key": key}
    assert asked.parent.span_id == waited.context.span_id
    sent = {name.lower(): value for name, value in proxy.seen[0].headers.items()}
    ids = f"00-{asked.context.trace_id:032x}-{asked.context.span_id:016x}-"
    assert sent["traceparent"].startswith(ids)
    assert signed == [None, None], "an intermediary may change it, so it is not signed"
    assert guard.lease_id not in json.dumps([span.to_json() for span in recorded.exporter.get_finished_spans()])


def test_each_invocation_carries_the_trace_context(
    recorded: Recorded, proxy: Proxy, make_client: MakeClient, key: str
) -> None:
    aws = pytest.importorskip("leasehold.aws", reason="the extra leasehold[aws] is not installed")
    credentials = aws.Credentials("AKIDEXAMPLE", "a-secret")
    function = aws.Function("f", region="eu-west-1", credentials=credentials, endpoint_url=proxy.url)
    proxy.fault = lambda request: Answer(403, b'{"Message": "not here"}')
    with pytest.raises(Forbidden):
        make_client(function).get(key)
    (asked,) = recorded.spans("lock")
    sent = {name.lower(): value for name, value in proxy.seen[0].headers.items()}
    custom = json.loads(base64.b64decode(sent["x-amz-client-context"]))["custom"]
    ids = f"00-{asked.context.trace_id:032x}-{asked.context.span_id:016x}-"
    assert custom["traceparent"].startswith(ids)


def test_failed_request_is_a_failed_span(recorded: Recorded, proxy: Proxy, make_client: MakeClient, key: str) -> None:
    proxy.fault = only("release", Answer(409, b'{"type":"lost","status":409,"reason":"taken-over"}'))
    guard = make_client(proxy.url).acquire(key).granted()
    with pytest.raises(LockLost):
        guard.release()
    (span,) = recorded.spans("release")
    assert span.attributes["leasehold.result"] == span.attributes["error.type"] == "lost"
    assert not span.status.is_ok
    assert isinstance(make_client().try_acquire(key), Held)
    held = recorded.spans("acquire")[-1]
    assert held.attributes["leasehold.result"] == "held"
    assert "error.type" not in held.attributes
    assert held.status.is_unset, "an answer, and no error"


def test_grants_and_losses_are_logged(make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "leasehold"):
        guard = make_client().acquire(key, lease=0.3, manual_heartbeats=True).granted()
        guard.wait_lost(60)
        eventually(lambda: "expired" in caplog.text)
    assert f"the lock {key!r} is created" in caplog.text
    (lost,) = [record for record in caplog.records if "is lost" in record.message]
    assert lost.levelname == "WARNING"
    fields = {name: value for name, value in vars(lost).items() if name.startswith("leasehold_")}
    token = guard.fencing_token
    assert fields == {"leasehold_key": key, "leasehold_fencing_token": token, "leasehold_reason": "expired"}


def test_warnings_of_a_block_have_the_guard_as_members(
    proxy: Proxy, make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(proxy.url)
    proxy.fault = only("release", Answer(403, b"{}"))
    with client.lock(key), caplog.at_level(logging.WARNING, "leasehold"):
        pass
    other = f"{key}-2"
    with client.lock_all([key + "-1", other]):
        pass
    single, several = (vars(record)["leasehold_key"] for record in caplog.records)
    assert (single, several) == (key, [key + "-1", other])


def test_opentelemetry_is_not_needed(service: str, run_python: RunPython, key: str) -> None:
    code = """
        import sys
        sys.modules["opentelemetry"] = None
        import leasehold
        with leasehold.Client(sys.argv[1]) as client, client.lock(sys.argv[2]) as guard:
            guard.renew()
            print(isinstance(guard, leasehold.Guard))
        """
    assert finished(run_python(code, service, key)) == "True\n"
