"""Waiting for a change by watching: one read that waits, in place of requests that are refused (K1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from ._timing import LONGEST_WATCH, request_timeout
from .errors import LeaseholdError, LockNotFound, Unavailable

if TYPE_CHECKING:
    from ._core import Core
    from .model import LockName, LockView

Pause: TypeAlias = Callable[[float], Awaitable[None]]
"""The pause of a wait. Raises once its caller has left."""


class WatchFailed(Exception):
    """The watch told nothing. `retry_after` is the service's wish, in seconds."""

    def __init__(self, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after


async def watch(core: Core, name: LockName, version: str, wait: float, pause: Pause) -> LockView | None:
    """Returns the key as soon as it is another than `version`, or as it is after `wait` seconds; `None` where
    nothing is there. Raises `WatchFailed`; `core.can_watch` is false where there are no watches."""
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
