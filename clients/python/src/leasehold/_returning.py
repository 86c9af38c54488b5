"""Returning to a lock that was released (C4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._timing import is_at_once, return_pause

if TYPE_CHECKING:
    from .model import LockName

_KEPT = 10_000  # enough for any caller's locks; the bound keeps a client of many keys from growing


@dataclass
class _Release:
    at: float
    first: float
    """The first release of a series after which the client returned at once."""
    wanted: bool
    returned: bool = False


class Releases:
    """The last releases of one client."""

    def __init__(self) -> None:
        self._last: dict[LockName, _Release] = {}

    def released(self, name: LockName, wanted: bool, now: float) -> None:
        """Records that this client released the lock just now. `wanted`: whether somebody waits for it."""
        last = self._last.pop(name, None)
        first = last.first if last is not None and last.returned else now
        self._last[name] = _Release(now, first, wanted)
        if len(self._last) > _KEPT:
            del self._last[next(iter(self._last))]

    def returns(self, name: LockName, chosen: float | None, now: float, chance: float) -> float:
        """Notes that this client requests the lock again. Returns the pause before its first request."""
        last = self._last.get(name)
        if last is None:
            return 0.0
        unwanted_for = None if last.wanted else now - last.first
        last.returned = is_at_once(unwanted_for)
        return return_pause(now - last.at, unwanted_for, chosen, chance)
