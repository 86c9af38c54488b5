"""Waiting for a change by watching: one read that waits, in place of requests that are refused (K1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from ._timing import LONGEST_WATCH, poll_pause, request_timeout
from .errors import LeaseholdError, LockNotFound, Unavailable, WrongKind

if TYPE_CHECKING:
    from ._core import Core
    from .model import LockName, LockView

Pause: TypeAlias = Callable[[float], Awaitable[None]]
"""The pause of a wait. Raises once its caller has left."""


class WatchFailed(Exception):
    """A watch without a result. `retry_after` is the service's wish, in seconds."""

    def __init__(self, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after


async def watch(core: Core, name: LockName, version: str, wait: float, pause: Pause) -> LockView | None:
    """Returns the key as soon as it differs from `version`, or its state after `wait` seconds; `None` if
    there is none. Raises `WatchFailed`; `core.can_watch` is false if the service has no watches."""
    wait = max(0.0, min(wait, LONGEST_WATCH))
    begun = core.world.now()

    async def ask() -> LockView | None:
        try:
            return await core.api.watch(name, version, wait, request_timeout(None))
        except LockNotFound:
            return None
        except Unavailable as error:
            raise WatchFailed(error.retry_after) from error
        except LeaseholdError as error:
            core.can_watch = False
            raise WatchFailed from error

    view = await core.runtime.unless_left(ask, pause)
    # A service that stops answers at once, with nothing new.
    news = bool(version) if view is None else view.watched != version
    if not news and core.world.now() - begun < wait:
        raise WatchFailed
    return view


class Observer:
    """Follows one key: by watching, or by polling if the service has no watches."""

    def __init__(self, core: Core, name: LockName, poll_interval: float | None, pause: Pause) -> None:
        self._core = core
        self._name = name
        self._poll_interval = poll_interval
        self._pause = pause
        self._begun = False
        self._seen: LockView | None = None

    async def next(self) -> LockView | None:
        """Returns the key's state, and then its state after each change; `None` if there is none. Waits
        through outages; raises other `LeaseholdError`s."""
        while True:
            view = await self._look()
            # A grant of permits changes the record, and not what a watch compares.
            changed = None if view is None else (view.record_version_number, view.state)
            known = None if self._seen is None else (self._seen.record_version_number, self._seen.state)
            if not self._begun or changed != known:
                self._begun, self._seen = True, view
                return view

    async def _look(self) -> LockView | None:
        asked = 0.0
        version = "" if self._seen is None else self._seen.watched
        if self._poll_interval is None and self._core.can_watch:
            try:
                within = LONGEST_WATCH if self._begun else 0.0
                return await watch(self._core, self._name, version, within, self._pause)
            except WatchFailed as error:
                asked = error.retry_after
        if self._begun:
            await self._pause(poll_pause(self._poll_interval, asked, self._core.world.chance()))
        while True:
            try:
                return await self._read()
            except Unavailable as error:
                asked = error.retry_after
            await self._pause(poll_pause(self._poll_interval, asked, self._core.world.chance()))

    async def _read(self) -> LockView | None:
        timeout = request_timeout(None)
        try:
            return await self._core.api.get_lock(self._name, timeout)
        except WrongKind:
            return await self._core.api.get_semaphore(self._name, timeout)
        except LockNotFound:
            return None
