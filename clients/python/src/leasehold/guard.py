"""Guards of synchronous code: locks and permits."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from ._api import HeartbeatContent, Leaving
from ._durations import Duration, seconds_if
from ._guard import BaseLockGuard, BasePermitGuard, Keeping
from ._runtime import run
from ._together import BaseAllGuard
from .errors import LossReason

if TYPE_CHECKING:
    from typing_extensions import Self


class Block(Keeping):
    """A guard for threads, and for `with`."""

    def wait_lost(self, timeout: Duration | None = None) -> LossReason | None:
        """Waits until the lock is lost, and returns the reason. `None` after `timeout` seconds, 0 or more
        (default: no limit), or after the release."""
        return run(self.until_lost(seconds_if(timeout, "timeout")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases. An exception of the body passes through, whatever becomes of the release.

        If the body ended well: raises `LockLost` if the lock was lost meanwhile. A release that could not
        be delivered is only logged: the work is done, and the lock is free one lease later.
        """
        run(self.leave(error))


class Guard(Block, BaseLockGuard):
    """A lock that was granted. Heartbeats go on in the background until `release`, or until it is lost.

    As a context manager it releases the lock at the end of the block. Safe to use from several threads.
    A guard without references is kept, with its lock, until the client is closed.
    """

    def renew(
        self, *, data: bytes | str | None = None, delete_data: bool = False, lease: Duration | None = None
    ) -> None:
        """Renews the lease now. `data` replaces the payload; `lease` (seconds, 0.1 to
        86400) is the lease from now on.

        Retries while the lease lasts. Raises `LockLost`; `Unavailable` if the lease lasts only by
        `hold_on_unavailable`; and other `LeaseholdError`s at once, in which case the lock is held as before.
        """
        run(self.renew_with(HeartbeatContent(seconds_if(lease, "lease"), data, delete_data)))

    def release(
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

        Heartbeats stop first. Tried again for ten seconds; raises `Unavailable` if that did not help (the
        lock is then free one lease after its last heartbeat, and `release` may be called again), and
        `LockLost` if there was nothing to give back, or if no answer tells that `data` or `completed` was stored. A
        second call does nothing.
        """
        ttl = seconds_if(completed_ttl, "completed_ttl")
        run(self.release_until(None, Leaving(data, delete, completed, ttl)))


class PermitGuard(Block, BasePermitGuard):
    """Permits of a semaphore. They are kept as a `Guard` is, and released at the end of the block."""

    def renew(self, *, data: bytes | str | None = None, lease: Duration | None = None) -> None:
        """Renews the lease now; as `Guard.renew`. `data` has at most 256 bytes."""
        run(self.renew_with(HeartbeatContent(seconds_if(lease, "lease"), data)))

    def keep(self, permits: int) -> None:
        """Keeps this number of permits, and releases the others. There is no upgrade: acquire anew.

        Raises `InvalidRequest` for more than are held, and the errors of `renew`.
        """
        run(self.keep_only(permits))

    def downgrade(self) -> None:
        """Keeps one permit: a writer becomes a reader."""
        run(self.keep_only(1))

    def release(self) -> None:
        """Releases the permits; as `Guard.release`."""
        run(self.release_until(None))


class AllGuard(Block, BaseAllGuard):
    """Several locks under one lease id and one fencing token. The loss of one is the loss of all, and the
    others are released. They are kept as a `Guard` is, and released at the end of their block."""

    def renew(self, *, lease: Duration | None = None) -> None:
        """Renews each lease now; as `Guard.renew`."""
        run(self.renew_with(seconds_if(lease, "lease")))

    def release(self) -> None:
        """Releases all locks; as `Guard.release`. One failure does not stop the others."""
        run(self.release_until(None))
