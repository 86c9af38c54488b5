"""The capacity that transactions consume."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ConsumedCapacity:
    """The capacity units of one table and its indexes, in the sense of DynamoDB."""

    read_units: float = 0.0
    """Multiples of one half."""
    write_units: float = 0.0


class CapacityMeter:
    """Adds up the capacity units that transactions consume, all their tries included.

    A call that failed, and what the service does after its answer, count nothing. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, ConsumedCapacity] = {}

    @property
    def consumed(self) -> dict[str, ConsumedCapacity]:
        """The sums so far, by table."""
        with self._lock:
            return dict(self._sums)

    def _add(self, answer: Any) -> None:
        with self._lock:
            for told in answer.get("consumedCapacity") or ():
                before = self._sums.get(told["tableName"], ConsumedCapacity())
                self._sums[told["tableName"]] = ConsumedCapacity(
                    before.read_units + told["readCapacityUnits"], before.write_units + told["writeCapacityUnits"]
                )
