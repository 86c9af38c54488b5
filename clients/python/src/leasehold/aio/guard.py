"""Guards of asynchronous code: locks and permits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from .._api import HeartbeatContent, Leaving
from .._durations import Duration, seconds_if
from .._guard import BaseLockGuard, BasePermitGuard, Keeping
from .._together import BaseAllGuard
from ..errors import LossReason

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE = 1.0
"""Seconds for which a cancelled block waits for its release, which then goes on in the background."""


class Block(Keeping):
    """A guard for tasks, and for `async with`."""

    async def wait_lost(self, timeout: Duration | None = None) -> LossReason | None:
        """Waits until the lock is lost, and returns the reason. `None` after `timeout` seconds, 0 or more
        (default: no limit), or after the release."""
        return await self.until_lost(seconds_if(timeout, "timeout"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases. An exception of the body is raised unchanged, whatever the outcome of the release. A
        cancelled body waits for the release for a second at most, and the release continues after it.

        If the body ended well: raises `LockLost` if the lock was lost meanwhile. A release that could not
        be delivered is only logged: the work is done, and the lock is free one lease later.
        """
        if isinstance(error, anyio.get_cancelled_exc_class()):
            with anyio.move_on_after(PATIENCE, shield=True):
                await self.leave(error)
        else:
            await self.leave(error)


@asynccontextmanager
async def bound_body(guard: Block, cancel_on_loss: bool) -> AsyncIterator[None]:
    """A block under the guard, whose loss cancels the body."""
    with anyio.CancelScope() as body:
        if cancel_on_loss:
            guard.on_lost(lambda _: body.cancel())
        async with guard:
            yield
    if body.cancelled_caught:
        guard.ensure_held()


class Guard(Block, BaseLockGuard):
    """A granted lock. A task sends heartbeats until `release`, or until the loss.

    As an asynchronous context manager it releases the lock at the end of the block. A guard without
    references is kept, with its lock, until the client is closed.
    """

    async def renew(
        self, *, data: bytes | str | None = None, delete_data: bool = False, lease: Duration | None = None
    ) -> None:
        """Renews the lease now. `data` replaces the payload; `lease` (seconds, 0.1 to
        86400) is the lease from now on.

        Retries while the lease lasts. Raises `LockLost`; `Unavailable` if the lease lasts only by
        `hold_on_unavailable`; and other `LeaseholdError`s at once, in which case the lock is held as before.
        """
        await self.renew_with(HeartbeatContent(seconds_if(lease, "lease"), data, delete_data))

    async def release(
        self,
        *,
        data: bytes | str | None = None,
        delete: bool = False,
        completed: str | None = None,
        completed_ttl: Duration | None = None,
    ) -> None:
        """Releases the lock: with `data` for the next holder, or with `delete`, which deletes the row.
        `completed` is the occurrence that is done, and `completed_ttl` the time for which it is remembered at
        least (default: for ever).

        Heartbeats stop first. Retries for ten seconds, even if the caller is cancelled meanwhile. Raises
        `Unavailable` if no try succeeded: the lock is then free one lease after its last heartbeat, and
        `release` may be called again. Raises `LockLost` if there was nothing to release, or if no answer tells
        that `data` or `completed` was stored. A second call does nothing.
        """
        ttl = seconds_if(completed_ttl, "completed_ttl")
        await self.release_until(None, Leaving(data, delete, completed, ttl))


class PermitGuard(Block, BasePermitGuard):
    """Permits of a semaphore. They are kept as a `Guard` is, and released at the end of the block."""

    async def renew(self, *, data: bytes | str | None = None, lease: Duration | None = None) -> None:
        """Renews the lease now; as `Guard.renew`. `data` has at most 256 bytes."""
        await self.renew_with(HeartbeatContent(seconds_if(lease, "lease"), data))

    async def keep(self, permits: int) -> None:
        """Keeps this number of permits, and releases the others. There is no upgrade: acquire anew.

        Raises `InvalidRequest` for more than are held, and the errors of `renew`.
        """
        await self.keep_only(permits)

    async def downgrade(self) -> None:
        """Keeps one permit: a writer becomes a reader."""
        await self.keep_only(1)

    async def release(self) -> None:
        """Releases the permits; as `Guard.release`."""
        await self.release_until(None)


class AllGuard(Block, BaseAllGuard):
    """Several locks under one lease id and one fencing token. The loss of one is the loss of all, and the
    others are released. They are kept as a `Guard` is, and released at the end of their block."""

    async def renew(self, *, lease: Duration | None = None) -> None:
        """Renews each lease now; as `Guard.renew`."""
        await self.renew_with(seconds_if(lease, "lease"))

    async def release(self) -> None:
        """Releases all locks; as `Guard.release`. One failure does not stop the others."""
        await self.release_until(None)
