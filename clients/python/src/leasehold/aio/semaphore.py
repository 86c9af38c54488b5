"""Semaphores and read/write locks of the asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .._acquisition import Held
from .._client import explicit_options
from .._semaphore import BaseSemaphore, PermitOptions
from .._timing import Wait
from .guard import PermitsGuard, bound_body

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..model import LockName
    from .client import Client


class Semaphore(BaseSemaphore[PermitsGuard]):
    """Permits of one key for several holders. `Client.semaphore` makes it, and asks nobody.

    `permits` is how many are asked for: one, and all of them where a read/write lock is to be written.
    """

    _guard_type = PermitsGuard

    def __init__(self, client: Client, name: LockName, capacity: int, permits: int = 1) -> None:
        super().__init__(client, name, capacity, permits)
        self._client = client

    @explicit_options(BaseSemaphore._acquisition)
    async def try_acquire(
        self, permits: int | None = None, **options: Unpack[PermitOptions]
    ) -> PermitsGuard | Held:
        """Asks once, tries nothing again, and takes no place in the queue. Takes the permits of holders that
        this client's earlier calls have shown to be dead.

        Giving up is a value: `Held`, whose `lock` is a `SemaphoreView`. Raises `Unavailable` where no answer
        came. That request, and one whose caller is cancelled, is taken back in the background.
        """
        return await self._client._once(self._acquisition(permits, **options))

    @explicit_options(BaseSemaphore._acquisition)
    async def acquire(
        self,
        permits: int | None = None,
        *,
        wait: Wait = "lease",
        **options: Unpack[PermitOptions],
    ) -> PermitsGuard | Held:
        """Waits for permits, in the queue: who came first goes first. `wait` is as for
        `Client.acquire`; `"lease"` counts the longest lease of whoever is ahead. The end of the wait gives
        the place up, and so does a cancellation."""
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
    ) -> AsyncIterator[PermitsGuard]:
        """`async with semaphore.hold(2) as guard:` waits for permits, and gives them back at the end of the
        block. Raises as `Client.lock` does."""
        guard = (await self.acquire(permits, wait=wait, **options)).granted()
        async with bound_body(guard, cancel_on_loss):
            yield guard


class ReadWriteLock:
    """Many readers, or one writer. `Client.read_write_lock` makes it. Writers are not starved: waiters are in
    a queue. A reader cannot become a writer; a writer becomes a reader by `PermitsGuard.downgrade`."""

    def __init__(self, client: Client, name: LockName, capacity: int) -> None:
        self._client = client
        self._name = name
        self._capacity = capacity

    def read(self) -> Semaphore:
        """For readers: `async with lock.read().hold():`."""
        return Semaphore(self._client, self._name, self._capacity)

    def write(self) -> Semaphore:
        """For the writer: `async with lock.write().hold():`."""
        return Semaphore(self._client, self._name, self._capacity, self._capacity)
