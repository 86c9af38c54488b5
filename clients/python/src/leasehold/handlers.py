"""Locks in Lambda functions.

    client = Client("https://…")

    @locked(key="orders/{detail.id}", client=client)
    def handler(event, context):
        write(fencing_token=context.leasehold.fencing_token)

The lock ends with the invocation: it is released on every way out, a second before the sandbox would be killed
at its time-out, and its lease never lasts longer than a second after that. The sandbox may be killed all the
same, so the resource must check the fencing token.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from ._acquisition import Held
from ._bodies import awaited, check_body, finished, takes_guard
from ._durations import Duration, seconds_of
from ._event import KeyOf, key_reader
from ._invocation import Context, Deadline, InvocationGuard, asked, kept
from ._records import Record, begin, hash_of
from .client import Client
from .errors import InvalidRequest, LockLost
from .guard import Guard

__all__ = ["InvocationGuard", "OnContention", "idempotent", "locked"]

OnContention: TypeAlias = Literal["skip", "raise", "wait", "sqs-retry"]
"""The answer to a lock that is held. `skip`: return the value of `skipped`. `raise`: `LockHeld`, and the event
source retries. `wait`: wait, until the deadline less the margin and what the work needs. `sqs-retry`: each
record of an SQS event has a lock of its own, and one that is held is hidden until the lease of its holder."""

Handler: TypeAlias = Callable[..., Any]

LONGEST_HIDDEN = 12 * 3600
"""The longest visibility time-out of SQS, in seconds."""

_log = logging.getLogger("leasehold")


def locked(
    *,
    key: KeyOf,
    client: Client,
    on_contention: OnContention = "raise",
    skipped: Any = None,
    work_needs: Duration = 0.0,
    lease: Duration | None = None,
    margin: Duration = 1.0,
    sort_key: KeyOf | None = None,
    owner_name: str | None = None,
    staleness: Literal["rvn", "clock"] = "rvn",
    sqs: Any = None,
) -> Callable[[Handler], Callable[[Any, Any], Any]]:
    """Runs a handler of a Lambda function under a lock.

    `key` is a template with paths into the event, such as `orders/{detail.id}` and `{Records[0].messageId}`, or
    a function of event and context; `sort_key` likewise. A path that is missing raises `InvalidRequest`, and
    nothing is asked for. The guard is `context.leasehold`, and the keyword `guard` where the handler takes one.

    `lease` (default: the client's) is cut to what remains of the invocation and the margin. At the deadline less
    `margin`, the work of an `async` handler is cancelled, and other work is told: `guard.lost` is `deadline`,
    and `guard.ensure_held()` raises. Half a margin later the lock is released, even if that work goes on.

    `on_contention` says what to do while another holds the lock. `work_needs`: the time that a wait leaves for
    the work. `sqs-retry`: the handler takes one record in place of an event; the result is the partial batch
    response; `sqs` is a client of boto3 (default: a new one).

    Raises `LockHeld`; `LockLost` if the work came to its end but the lock was lost; `Unavailable`. An exception
    of the handler is raised unchanged.
    """
    needed = seconds_of(work_needs, "work_needs")
    if on_contention not in ("skip", "raise", "wait", "sqs-retry"):
        raise InvalidRequest(f"must be 'skip', 'raise', 'wait' or 'sqs-retry', not {on_contention!r}", "on_contention")
    leaves = needed if on_contention == "wait" else None
    lock = _Lock(client, key, sort_key, lease, margin, owner_name, staleness, leaves)

    def decorate(handler: Handler) -> Callable[[Any, Any], Any]:
        body = _body_of(handler)

        @functools.wraps(handler)
        def one(event: Any, context: Any) -> Any:
            deadline = lock.deadline(context)
            result = lock.ask(event, context, deadline)
            if isinstance(result, Held) and on_contention == "skip":
                return skipped
            with kept(result.granted(), deadline, context) as guard:
                return body(guard, event, context)

        @functools.wraps(handler)
        def each(event: Any, context: Any) -> Any:
            return _Batch(lock, body, needed, context, sqs).response(event)

        return each if on_contention == "sqs-retry" else one

    return decorate


def idempotent(
    *,
    key: KeyOf,
    client: Client,
    completed_ttl: Duration = "1h",
    payload: Callable[[Any], Any] | None = None,
    on_contention: Literal["raise", "wait"] = "raise",
    work_needs: Duration = 0.0,
    lease: Duration | None = None,
    margin: Duration = 1.0,
    sort_key: KeyOf | None = None,
    owner_name: str | None = None,
) -> Callable[[Handler], Callable[[Any, Any], Any]]:
    """Runs a handler of a Lambda function once for each event, and answers a repeated event with its result.

    While an attempt runs, the key is locked as by `locked`; a second event meanwhile is `LockHeld`, or waits. An
    attempt that fails, or dies, runs again: a dead one as soon as its lease is over by the service's clock.
    The result, which must be JSON of at most 256 KiB, counts for `completed_ttl`, by the clocks of the callers.

    `payload` returns the part of the event that must be the same each time (default: all of it). Raises
    `PayloadMismatch` for another one under the same key, and the errors of `locked`.
    """
    needed = seconds_of(work_needs, "work_needs")
    counts = seconds_of(completed_ttl, "completed_ttl") * 1000
    if on_contention not in ("raise", "wait"):
        raise InvalidRequest(f"must be 'raise' or 'wait', not {on_contention!r}", "on_contention")
    leaves = needed if on_contention == "wait" else None
    lock = _Lock(client, key, sort_key, lease, margin, owner_name, "clock", leaves)

    def decorate(handler: Handler) -> Callable[[Any, Any], Any]:
        body = _body_of(handler)

        @functools.wraps(handler)
        def once(event: Any, context: Any) -> Any:
            deadline = lock.deadline(context)
            seen = hash_of(event if payload is None else payload(event))
            epoch_ms = client._core.world.epoch_ms
            begun = begin(functools.partial(lock.ask, event, context, deadline), seen, epoch_ms)
            if isinstance(begun, Record):
                begun.compare(seen, lock.key(event, context))
                return begun.result
            if isinstance(begun, Held):
                Record.of(begun.lock).compare(seen, begun.lock.key)
                begun.granted()
            with kept(begun.guard, deadline, context) as guard:
                result = body(guard, event, context)
                now = epoch_ms()
                guard.leaving = begun.leaving(Record(seen, now + counts, result), now)
            return result

        return once

    return decorate


class _Lock:
    """The options of a wrapper's lock."""

    def __init__(
        self,
        client: Client,
        key: KeyOf,
        sort_key: KeyOf | None,
        lease: Duration | None,
        margin: Duration,
        owner_name: str | None,
        staleness: Literal["rvn", "clock"],
        leaves: float | None,
    ) -> None:
        self._client = client
        self.key = key_reader(key)
        self._sort_key = None if sort_key is None else key_reader(sort_key)
        self._lease = client._settings["lease"] if lease is None else seconds_of(lease, "lease")
        self._margin = seconds_of(margin, "margin")
        self._owner_name = owner_name
        self._staleness = staleness
        self._leaves = leaves  # what a wait leaves for the work; None: it asks once

    def deadline(self, context: Context) -> Deadline:
        return Deadline(self._client, context, self._margin)

    def ask(self, event: Any, context: Any, deadline: Deadline, **options: Any) -> Guard | Held:
        """Asks once, or for as long as the work can wait. Reads the keys before that."""
        key = self.key(event, context)
        options["sort_key"] = None if self._sort_key is None else self._sort_key(event, context)
        options |= {"owner_name": self._owner_name, "staleness": self._staleness, "manual_heartbeats": True}
        options["lease"] = deadline.lease(self._lease)
        ask: Callable[[], Guard | Held] = functools.partial(self._client.try_acquire, key, **options)
        if self._leaves is not None:
            ask = functools.partial(self._client.acquire, key, wait=deadline.left(self._leaves), **options)
        return asked(self._client, deadline, ask)


Body: TypeAlias = Callable[[InvocationGuard, Any, Any], Any]


def _body_of(handler: Handler) -> Body:
    """Returns the work of a handler under a guard."""
    kind = check_body(handler, "handler", "function", "coroutine function")
    shows = takes_guard(handler)

    def call(guard: InvocationGuard, event: Any, context: Any) -> Any:
        return handler(event, context, guard=guard) if shows else handler(event, context)

    if kind != "coroutine function":
        return lambda guard, event, context: finished(handler, call(guard, event, context))

    def run_to_the_end(guard: InvocationGuard, event: Any, context: Any) -> Any:
        loop = _loop()
        task = loop.create_task(awaited(handler, call(guard, event, context)))
        guard.on_lost(lambda _: loop.call_soon_threadsafe(task.cancel))
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if guard.lost is not None:
                raise LockLost(guard.lost, key=guard.key, sort_key=guard.sort_key) from None
            raise

    return run_to_the_end


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop for the life of the sandbox: clients that handlers keep belong to it."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


class _Batch:
    """The records of one SQS event, each under a lock of its own."""

    def __init__(self, lock: _Lock, body: Body, needed: float, context: Any, sqs: Any) -> None:
        self._lock = lock
        self._body = body
        self._needed = needed
        self._context = context
        self._sqs = sqs
        self._stopped: set[str] = set()  # groups of a FIFO queue, whose later records must wait

    def response(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """The partial batch response: the records that are to come again."""
        failed = [record["messageId"] for record in event["Records"] if not self._is_done(record)]
        return {"batchItemFailures": [{"itemIdentifier": message} for message in failed]}

    def _is_done(self, record: Mapping[str, Any]) -> bool:
        group = record.get("attributes", {}).get("MessageGroupId")
        done = group not in self._stopped and self._run(record)
        if not done and group is not None:
            self._stopped.add(group)
        return done

    def _run(self, record: Mapping[str, Any]) -> bool:
        deadline = self._lock.deadline(self._context)
        if deadline.left(self._needed) <= 0:
            return False
        try:
            result = self._lock.ask(record, self._context, deadline)
            if isinstance(result, Held):
                self._hide(record, result.stale_in)
                return False
            with kept(result, deadline, self._context) as guard:
                self._body(guard, record, self._context)
            return True
        except Exception:
            _log.exception("the record %s failed, and comes again", record["messageId"])
            return False

    def _hide(self, record: Mapping[str, Any], seconds: float) -> None:
        """Hides a record until its lock may be free. If that fails, it comes again after the queue's own time."""
        try:
            if self._sqs is None:
                import boto3

                self._sqs = boto3.client("sqs")
            _, _, _, _, account, queue = record["eventSourceARN"].split(":")
            self._sqs.change_message_visibility(
                QueueUrl=f"{self._sqs.meta.endpoint_url}/{account}/{queue}",
                ReceiptHandle=record["receiptHandle"],
                VisibilityTimeout=min(LONGEST_HIDDEN, math.ceil(seconds)),
            )
        except Exception:
            _log.exception("the visibility of the record %s could not be changed", record["messageId"])
