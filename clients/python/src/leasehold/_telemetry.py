"""Spans, metrics and the W3C trace context, by OpenTelemetry where `opentelemetry-api` is installed.

Keys are in spans only: as attributes of metrics they would have no bound. A failure has the
attribute `error.type`, in spans and metrics, as the semantic conventions have it; that a lock is held is an answer,
and no failure.

| metric | unit | attributes |
|---|---|---|
| `leasehold.wait.duration` | s | `leasehold.result`, `error.type` |
| `leasehold.hold.duration` | s | |
| `leasehold.heartbeat.duration` | s | `leasehold.result`, `error.type` |
| `leasehold.renewals` | {renewal} | |
| `leasehold.losses` | {lock} | `leasehold.reason` |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ._about import __version__
from .errors import LeaseholdError, LockHeld

if TYPE_CHECKING:
    from .errors import LossReason

try:
    from opentelemetry import metrics, propagate, trace
except ModuleNotFoundError:
    _PRESENT = False
else:
    _PRESENT = True


class Telemetry:
    """Reports the client's operations. Without a configured SDK, nothing is recorded."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("leasehold", __version__) if _PRESENT else None
        if _PRESENT:
            meter = metrics.get_meter("leasehold", __version__)
            self._wait = meter.create_histogram(
                "leasehold.wait.duration", "s", "Time from asking for a lock to the answer."
            )
            self._hold = meter.create_histogram(
                "leasehold.hold.duration", "s", "Time from a grant to the release or the loss."
            )
            self._heartbeat = meter.create_histogram(
                "leasehold.heartbeat.duration", "s", "Time from sending a heartbeat to its answer."
            )
            self._renewals = meter.create_counter("leasehold.renewals", "{renewal}", "Heartbeats that renewed a lease.")
            self._losses = meter.create_counter("leasehold.losses", "{lock}", "Locks that were lost, by reason.")

    @contextmanager
    def span(self, operation: str, key: object) -> Iterator[dict[str, str]]:
        """A span around one operation. Yields the headers that hand its context on."""
        headers: dict[str, str] = {}
        if self._tracer is None:
            yield headers
            return
        attributes = {} if key is None else {"leasehold.key": str(key)}
        with self._tracer.start_as_current_span(
            f"leasehold {operation}",
            kind=trace.SpanKind.CLIENT,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            propagate.inject(headers)
            try:
                yield headers
            except BaseException as error:
                span.set_attributes(_attributes(result_of(error)))
                if not isinstance(error, LockHeld):  # LockHeld is an answer, and no error
                    span.set_status(trace.StatusCode.ERROR, str(error))
                raise

    def waited(self, seconds: float, result: str) -> None:
        """Records the end of an acquire: `granted`, `held` or the kind of an error."""
        if self._tracer is not None:
            self._wait.record(seconds, _attributes(result))

    def held(self, seconds: float) -> None:
        """Records the time for which a lock was held, until its release, its loss or its handover."""
        if self._tracer is not None:
            self._hold.record(seconds)

    def heartbeat(self, seconds: float, result: str) -> None:
        """Records the end of a heartbeat: `renewed` or the kind of an error."""
        if self._tracer is not None:
            self._heartbeat.record(seconds, _attributes(result))
            if result == "renewed":
                self._renewals.add(1)

    def lost(self, reason: LossReason) -> None:
        """Records the loss of a lock."""
        if self._tracer is not None:
            self._losses.add(1, {"leasehold.reason": reason})


def _attributes(result: str) -> dict[str, str]:
    failure = {} if result in ("granted", "held", "renewed") else {"error.type": result}
    return {"leasehold.result": result, **failure}


def result_of(error: BaseException) -> str:
    """The kind of an error in words: `not-found` for `LockNotFound`."""
    if not isinstance(error, LeaseholdError):
        return "aborted"
    name = type(error).__name__.removeprefix("Lock").removeprefix("_")
    return re.sub("(?<!^)(?=[A-Z])", "-", name).lower()
