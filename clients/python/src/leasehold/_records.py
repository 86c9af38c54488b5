"""Records of idempotency: the occurrence of an event that is done, its result, and the time until which it counts.

The occurrence is a number. The result of the first one counts until its time is over; then the second one is due.
While an attempt is in progress, the record is a held lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._acquisition import Held
from ._api import Leaving
from ._messages import json_of
from .errors import CorruptRecord, InvalidRequest, OccurrenceDone, PayloadMismatch
from .guard import Guard
from .model import LockView

LONGEST_TTL = 10 * 366 * 86400
"""The longest time in seconds for which the service remembers an occurrence, if not for ever."""

LARGEST = 256 * 1024
"""The largest record in bytes, as the service takes them."""


def hash_of(payload: Any) -> str:
    """The SHA-256 of a payload's JSON, whose members may come in any order."""
    return hashlib.sha256(json_of(payload, "payload", canonical=True)).hexdigest()


@dataclass(frozen=True)
class Record:
    """A record as the lock's data."""

    payload: str
    """The hash of the payload; empty where none is compared."""
    until: float = 0.0
    """The time, in milliseconds since 1970, until which the result counts."""
    result: Any = None

    @classmethod
    def of(cls, lock: LockView) -> Record:
        """Reads the record of a lock. Raises `CorruptRecord`."""
        try:
            document = json.loads(lock.data or b"null")
            return cls(document["payload"], document["until"], document["result"])
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptRecord(f"the data of {lock.key!r} is no record of idempotency") from error

    def text(self) -> str:
        """The data. Raises `InvalidRequest` for a result that is too large."""
        content = json_of({"payload": self.payload, "until": self.until, "result": self.result}, "result")
        if len(content) > LARGEST:
            raise InvalidRequest("is too large: a record has at most 256 KiB", "result")
        return content.decode()

    def compare(self, payload: str, key: str) -> None:
        """Raises `PayloadMismatch`."""
        if payload != self.payload:
            raise PayloadMismatch(key)


@dataclass(frozen=True)
class Attempt:
    """An attempt that was granted."""

    guard: Guard
    occurrence: str

    def leaving(self, record: Record, now: float) -> Leaving:
        """The end of an attempt that succeeded. The row may go when the result counts no more. `now` is in
        milliseconds since 1970."""
        left = max(0.001, (record.until - now) / 1000)
        return Leaving(record.text(), completed=self.occurrence, completed_ttl=left if left <= LONGEST_TTL else None)


def begin(ask: Callable[..., Guard | Held], payload: str, epoch_ms: Callable[[], float]) -> Attempt | Held | Record:
    """Begins an attempt by `ask`, unless there is a result that counts now. `epoch_ms` is the wall clock, in
    milliseconds since 1970."""
    number = 1
    while True:
        occurrence = f"{number:010}"
        try:
            asked = ask(occurrence=occurrence, data=Record(payload).text())
            return asked if isinstance(asked, Held) else Attempt(asked, occurrence)
        except OccurrenceDone as done:
            if done.lock is None or done.lock.last_occurrence is None:
                raise
            record = Record.of(done.lock)
            if epoch_ms() < record.until:
                return record
            number = int(done.lock.last_occurrence) + 1
