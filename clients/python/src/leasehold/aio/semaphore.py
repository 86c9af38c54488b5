"""Semaphores and read/write locks of the asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .._acquisition import Held
from .._client import explicit_options
from .._durations import Duration
from .._guard import Handover
from .._semaphore import BaseReadWriteLock, BaseSemaphore, PermitOptions
from .._timing import Wait
from .guard import PermitGuard, bound_body

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Semaphore(BaseSemaphore[PermitGuard]):
    """Permits of one key for several holders. `Client.semaphore` makes it, and sends nothing.

    `permits` is the number that is requested: one, or all for the writer of a read/write lock.
    """

    _guard_type = PermitGuard

    @explicit_options(BaseSemaphore._acquisition)
    async def try_acquire(self, permits: int | None = None, **options: Unpack[PermitOptions]) -> PermitGuard | Held:
        """Sends one request, without a retry and without a place in the queue. Takes the permits of holders
        that this client's earlier calls have shown to be dead.

        Giving up is a value: `Held`, whose `lock` is a `SemaphoreView`. Raises `Unavailable` if no answer
        came. The client releases, in the background, what that request or a cancelled one may have acquired.
        """
        return await self._client._once(self._acquisition(permits, **options))

    @explicit_options(BaseSemaphore._acquisition)
    async def acquire(
        self,
        permits: int | None = None,
        *,
        wait: Wait = "lease",
        **options: Unpack[PermitOptions],
    ) -> PermitGuard | Held:
        """Waits for permits in the queue: first in, first out. `wait` is as for
        `Client.acquire`; `"lease"` counts the longest lease of the holders and waiters ahead. The end of the
        wait gives the place up, and so does a cancellation."""
        return await self._client._wait(self._acquisition(permits, **options), wait, self._client._core.pause)

    @explicit_options(BaseSemaphore._acquisition)
    @asynccontextmanager
    async def hold(
        self,
        permits: int | None = None,
        *,
        wait: Wait = "lease",
        cancel_on_loss: bool = True,
        **options: Unpack[PermitOptions],
    ) -> AsyncIterator[PermitGuard]:
        """`async with semaphore.hold(2) as guard:` waits for permits, and releases them at the end of the
        block. Raises as `Client.lock` does."""
        guard = (await self.acquire(permits, wait=wait, **options)).granted()
        async with bound_body(guard, cancel_on_loss):
            yield guard

    async def resume(
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
        return await self._resume(handover, lease, holding)


class ReadWriteLock(BaseReadWriteLock[Semaphore]):
    __doc__ = BaseReadWriteLock.__doc__

    _semaphore_type = Semaphore
