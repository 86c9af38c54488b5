"""Semaphores and read/write locks of the synchronous client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ._acquisition import Held
from ._cancelling import pause_until
from ._client import explicit_options
from ._durations import Duration
from ._guard import Handover
from ._runtime import run
from ._semaphore import BaseReadWriteLock, BaseSemaphore, PermitOptions
from ._timing import Wait
from .guard import PermitGuard

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Semaphore(BaseSemaphore[PermitGuard]):
    """Permits of one key for several holders. `Client.semaphore` makes it, and sends nothing.

    `permits` is the number that is requested: one, or all for the writer of a read/write lock.
    """

    _guard_type = PermitGuard

    @explicit_options(BaseSemaphore._acquisition)
    def try_acquire(self, permits: int | None = None, **options: Unpack[PermitOptions]) -> PermitGuard | Held:
        """Sends one request, without a retry and without a place in the queue. Takes the permits of holders
        that this client's earlier calls have shown to be dead.

        Giving up is a value: `Held`, whose `lock` is a `SemaphoreView`. Raises `Unavailable` if no answer
        came; the client then releases, in the background, what the request may have acquired.
        """
        return run(self._client._once(self._acquisition(permits, **options)))

    @explicit_options(BaseSemaphore._acquisition)
    def acquire(
        self,
        permits: int | None = None,
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        **options: Unpack[PermitOptions],
    ) -> PermitGuard | Held:
        """Waits for permits in the queue: first in, first out. `wait` and `cancel` are as for
        `Client.acquire`; `"lease"` counts the longest lease of the holders and waiters ahead. The end of the
        wait gives the place up."""
        sleep = partial(pause_until, self._client._core, cancel)
        return run(self._client._wait(self._acquisition(permits, **options), wait, sleep))

    @explicit_options(BaseSemaphore._acquisition)
    @contextmanager
    def hold(
        self,
        permits: int | None = None,
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        **options: Unpack[PermitOptions],
    ) -> Iterator[PermitGuard]:
        """`with semaphore.hold(2) as guard:` waits for permits, and releases them at the end of the block.
        Raises as `Client.lock` does."""
        with self.acquire(permits, wait=wait, cancel=cancel, **options).granted() as guard:
            yield guard

    def resume(
        self,
        handover: Handover,
        *,
        lease: Duration | None = None,
        heartbeat_interval: Duration | None = None,
        manual_heartbeats: bool = False,
        max_hold: Duration | None = None,
        hold_on_unavailable: bool = False,
    ) -> PermitGuard:
        """Makes a guard of permits that another process acquired; as `Client.resume`."""
        holding = self._client._holding(
            lease, heartbeat_interval, manual_heartbeats, hold_on_unavailable, max_hold=max_hold
        )
        return run(self._resume(handover, lease, holding))


class ReadWriteLock(BaseReadWriteLock[Semaphore]):
    __doc__ = BaseReadWriteLock.__doc__

    _semaphore_type = Semaphore
