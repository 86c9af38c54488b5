"""Leasehold as the persistence layer of Powertools for AWS Lambda: idempotency on the table of locks.

    persistence_layer = LeaseholdPersistenceLayer(client)

    @idempotent(persistence_store=persistence_layer, config=IdempotencyConfig(event_key_jmespath="id"))
    def handler(event, context): ...

An attempt in progress is a lock: a crashed one frees itself by its lease. Needs `aws-lambda-powertools`.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

try:
    from aws_lambda_powertools.utilities.idempotency import BasePersistenceLayer
    from aws_lambda_powertools.utilities.idempotency.exceptions import (
        IdempotencyItemAlreadyExistsError,
        IdempotencyItemNotFoundError,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "leasehold.powertools needs Powertools: pip install aws-lambda-powertools", name=error.name
    ) from error

from ._acquisition import Held
from ._durations import Duration, seconds_of
from ._invocation import Deadline, InvocationGuard, asked
from ._records import Attempt, Record, begin
from .client import Client
from .errors import LockNotFound
from .guard import Guard
from .model import LockView

_LONGEST_INVOCATION = 900_000
"""Milliseconds."""


class LeaseholdPersistenceLayer(BasePersistenceLayer):
    """Keeps the records of Powertools' idempotency as locks.

    `prefix` begins each key. `lease` (default: the client's) is cut to what remains of the invocation, which
    Powertools knows of handlers, and elsewhere after `config.register_lambda_context`.
    """

    def __init__(
        self, client: Client, *, prefix: str = "idempotency/", lease: Duration | None = None, margin: Duration = 1.0
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._lease = client._settings["lease"] if lease is None else seconds_of(lease, "lease")
        self._margin = seconds_of(margin, "margin")
        self._attempts: dict[str, tuple[Attempt, InvocationGuard, str]] = {}
        super().__init__()  # type: ignore[no-untyped-call]

    def _put_record(self, data_record: DataRecord) -> None:
        key, payload = data_record.idempotency_key, data_record.payload_hash
        deadline = Deadline(self._client, _Ends(data_record.in_progress_expiry_timestamp), self._margin)
        lease = deadline.lease(self._lease)

        def ask(**options: Any) -> Guard | Held:
            options |= {"lease": lease, "staleness": "clock", "manual_heartbeats": True}
            return asked(self._client, deadline, lambda: self._client.try_acquire(self._prefix + key, **options))

        begun = begin(ask, payload, self._client._core.world.epoch_ms)
        if isinstance(begun, Attempt):
            guard = InvocationGuard(begun.guard, deadline)
            guard.start()
            self._attempts[key] = (begun, guard, payload)
            return
        known = _in_progress(key, Record.of(begun.lock)) if isinstance(begun, Held) else _completed(key, begun)
        self._validate_payload(data_record, known)
        raise IdempotencyItemAlreadyExistsError(old_data_record=known)

    def _update_record(self, data_record: DataRecord) -> None:
        known = self._attempts.pop(data_record.idempotency_key, None)
        now = self._client._core.world.epoch_ms()
        until = (data_record.expiry_timestamp or 0) * 1000
        if known is None:
            self._store(data_record.idempotency_key, Record(data_record.payload_hash, until, data_record.response_data))
            return
        attempt, guard, payload = known
        try:
            guard.leaving = attempt.leaving(Record(payload, until, data_record.response_data), now)
        except BaseException:
            guard.abort()
            raise
        guard.finish()

    def _store(self, key: str, record: Record) -> None:
        """Stores the result of an attempt that began in another process: a durable function was invoked again."""
        now = self._client._core.world.epoch_ms()
        begun = self._begin_alone(key, record.payload, now)
        if not isinstance(begun, Attempt):
            raise IdempotencyItemAlreadyExistsError(f"another attempt of {key} is in progress, or has ended")
        leaving = begun.leaving(record, now)
        begun.guard.release(data=leaving.data, completed=leaving.completed, completed_ttl=leaving.completed_ttl)

    def _delete_record(self, data_record: DataRecord) -> None:
        attempt = self._attempts.pop(data_record.idempotency_key, None)
        if attempt is None:
            self._forget(data_record.idempotency_key)
        else:
            attempt[1].abort()

    def _forget(self, key: str) -> None:
        """Lets the event of a completed record run again: a time at which no result counts makes the next
        occurrence due. An attempt that is in progress elsewhere is left alone."""
        begun = self._begin_alone(key, "", math.inf)
        if isinstance(begun, Attempt):
            begun.guard.release()

    def _begin_alone(self, key: str, payload: str, at: float) -> Attempt | Held | Record:
        """Begins an attempt that does no work, unless there is a result that counts at this time."""

        def ask(**options: Any) -> Guard | Held:
            options |= {"staleness": "clock", "manual_heartbeats": True}
            return self._client.try_acquire(self._prefix + key, **options)

        return begin(ask, payload, lambda: at)

    def _get_record(self, idempotency_key: str) -> DataRecord:
        try:
            lock = self._client.get(self._prefix + idempotency_key)
        except LockNotFound as error:
            raise IdempotencyItemNotFoundError from error
        return _found(idempotency_key, lock)


class _Ends:
    """The end of an invocation, as Powertools stores it: milliseconds since 1970."""

    def __init__(self, ends: int | None) -> None:
        self._ends = ends

    def get_remaining_time_in_millis(self) -> int:
        if self._ends is None:
            return _LONGEST_INVOCATION
        return max(0, self._ends - int(dt.datetime.now().timestamp() * 1000))


def _found(key: str, lock: LockView) -> DataRecord:
    record = Record.of(lock)
    if lock.state == "held":
        return _in_progress(key, record)
    if lock.last_occurrence is None:
        raise IdempotencyItemNotFoundError
    return _completed(key, record)


def _in_progress(key: str, record: Record) -> DataRecord:
    return DataRecord(key, status="INPROGRESS", payload_hash=record.payload)


def _completed(key: str, record: Record) -> DataRecord:
    return DataRecord(
        key,
        status="COMPLETED",
        expiry_timestamp=int(record.until // 1000),
        response_data=record.result,
        payload_hash=record.payload,
    )
