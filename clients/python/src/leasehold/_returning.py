"""Returning to a lock that was released, and waiting for one: giving way to others (C4)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._timing import mark_pause, return_pause
from .errors import LeaseholdError

if TYPE_CHECKING:
    from ._core import Core
    from .model import LockName, LockView

_KEPT = 10_000  # enough for any caller's locks; the bound keeps a client of many keys from growing

_MARKED = 4 * 1024
"""The bytes of the largest row that a waiter marks: a write is billed by the size of the row."""


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
        pause = return_pause(now - last.at, unwanted_for, chosen, chance)
        last.returned = unwanted_for is not None and return_pause(0.0, unwanted_for, chosen, chance) == 0.0
        return pause


class Patience:
    """Marks a lock, once for each holder, after a random part of a second of waiting."""

    def __init__(self, core: Core, name: LockName, owner_name: str) -> None:
        self._core = core
        self._name = name
        self._owner_name = owner_name
        self._ends = core.world.now() + mark_pause(core.world.chance())
        self._marked: int | None = None

    def ends(self, lock: LockView) -> float:
        """The time at which this lock is marked; infinite if it is not."""
        return self._ends if self._may_mark(lock) else float("inf")

    def saw(self, lock: LockView) -> None:
        """Marks the lock, in the background, if the time has come."""
        if self.ends(lock) > self._core.world.now():
            return
        self._marked = lock.fencing_token
        self._core.in_background(self._mark)

    async def _mark(self) -> None:
        try:
            await self._core.api.want(self._name, self._owner_name)
        except LeaseholdError:
            pass  # a hint: a waiter without a mark waits as long

    def _may_mark(self, lock: LockView) -> bool:
        size = len(lock.data or b"") + len(json.dumps(dict(lock.attributes or {}), default=str))
        is_new = lock.wanted_by is None and lock.fencing_token != self._marked
        return is_new and size <= _MARKED and not self._core.holds(self._name)
