"""A lock that is held by asynchronous code."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from .._guard import BaseGuard
from ..errors import LossReason

if TYPE_CHECKING:
    from typing_extensions import Self

_PATIENCE = 1.0
"""Seconds for which a cancelled block waits for its release, which then goes on in the background."""


class Guard(BaseGuard):
    """A lock that was granted. Heartbeats go on in a task until `release`, or until it is lost.

    As an asynchronous context manager it releases the lock at the end of the block. A guard that nobody
    refers to any more is kept, with its lock, until the client is closed.
    """

    async def wait_lost(self, timeout: float | None = None) -> LossReason | None:
        """Waits until the lock is lost, and returns the reason. `None` after `timeout` seconds, or once the
        lock is given back."""
        return await self.until_lost(timeout)

    async def heartbeat(
        self, *, data: bytes | str | None = None, delete_data: bool = False, lease: float | None = None
    ) -> None:
        """Renews the lease now. `data` replaces the payload; `lease` (seconds) is the lease from now on.

        Tried again while the lease lasts. Raises `LockLost`, `Unavailable` where the lease lasts only by
        `hold_on_unavailable`, and other `LeaseholdError`s at once; the lock is then held as before.
        """
        await self.renew(data, delete_data, lease)

    async def release(self, *, data: bytes | str | None = None, delete: bool = False) -> None:
        """Gives the lock back: with `data` for the next holder, or with `delete` without leaving the row.

        Heartbeats stop first. Tried again for ten seconds, also where the caller is cancelled meanwhile.
        Raises `Unavailable` if that did not help (the lock is then free one lease after its last heartbeat,
        and `release` may be called again), and `LockLost` if there was nothing to give back. A second call
        does nothing.
        """
        await self.release_until(None, data, delete)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases. An exception of the body passes through, whatever becomes of the release; a cancelled
        body waits for the release for a second at most, and the release goes on after it.

        If the body ended well: raises `LockLost` if the lock was lost meanwhile. A release that could not
        be delivered is only logged: the work is done, and the lock is free one lease later.
        """
        if isinstance(error, anyio.get_cancelled_exc_class()):
            with anyio.move_on_after(_PATIENCE, shield=True):
                await self.leave(error, lambda: self.release_until(None))
        else:
            await self.leave(error, lambda: self.release_until(None))
