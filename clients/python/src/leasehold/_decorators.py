"""The rules of the decorators, for every kind of client."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

from .errors import InvalidRequest

KeyOf: TypeAlias = "str | Callable[..., str]"
"""The key, or a function that makes it of the decorated function's arguments."""


def key_for(key: KeyOf, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    """The key of one call."""
    return key if isinstance(key, str) else key(*arguments, **named)


class Period:
    """The periods of a recurring job, which begin at multiples since the epoch, in UTC."""

    def __init__(self, seconds: float, minutes: float, hours: float, days: float) -> None:
        length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._length = length // timedelta(milliseconds=1)
        if self._length < 1000:
            raise InvalidRequest("must be a second or more", "period")

    def occurrence(self, epoch_ms: float) -> str:
        """The present period. All languages write it alike."""
        begun = datetime.fromtimestamp(epoch_ms // self._length * self._length / 1000, timezone.utc)
        return begun.isoformat(timespec="milliseconds").replace("+00:00", "Z")
