"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from .errors import InvalidRequest

Duration: TypeAlias = float | timedelta | str
"""Seconds, a `timedelta`, or a text such as `500ms`, `20s`, `1h30m`, `7d`."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_TEXT = re.compile(f"(?:{_PART.pattern})+", re.ASCII)


def seconds_of(duration: Duration, name: str) -> float:
    """Returns the duration in seconds. Raises `InvalidRequest`, which names the option, for what is none."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        if _TEXT.fullmatch(duration) is None:
            raise InvalidRequest(f"must be seconds, or a text such as '20s', not {duration!r}", name)
        seconds = sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(duration))
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        seconds = duration
    else:
        raise InvalidRequest(f"must be seconds, a timedelta, or a text such as '20s', not {duration!r}", name)
    if not seconds >= 0:
        raise InvalidRequest(f"must be 0 or more, not {duration}", name)
    return seconds


def whole(number: int | None, name: str, least: int, most: int | None = None) -> int | None:
    """Returns the number. Raises `InvalidRequest`, which names the option, unless it is whole and in its range."""
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    if number is None or (is_whole and number >= least and (most is None or number <= most)):
        return number
    wanted = f"{least} or more" if most is None else f"{least} to {most}"
    raise InvalidRequest(f"must be a whole number, {wanted}, not {number!r}", name)


def seconds_if(duration: Duration | None, name: str) -> float | None:
    """The same, for an option that need not be there."""
    return None if duration is None else seconds_of(duration, name)
