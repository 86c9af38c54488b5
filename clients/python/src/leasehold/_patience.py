"""The patience of a waiter, after which it marks the lock (C4)."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from ._timing import mark_pause
from .errors import LeaseholdError

if TYPE_CHECKING:
    from ._core import Core
    from .model import LockName, LockView

_MARKED = 4 * 1024
"""The bytes of the largest row that a waiter marks: a write is billed by the size of the row."""


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
        with suppress(LeaseholdError):  # a hint: a waiter without a mark waits as long
            await self._core.api.want(self._name, self._owner_name)

    def _may_mark(self, lock: LockView) -> bool:
        size = len(lock.data or b"") + len(json.dumps(dict(lock.attributes or {}), default=str))
        is_new = lock.wanted_by is None and lock.fencing_token != self._marked
        return is_new and size <= _MARKED and not self._core.holds(self._name)
