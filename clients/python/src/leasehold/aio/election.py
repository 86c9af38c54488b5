"""Leader election on one lock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from .._bodies import awaited, check_body
from .._client import AcquireOptions, BaseClient, explicit_options
from .._timing import Wait
from ..errors import LockLost
from ..model import Leader
from .guard import Guard, bound_body

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import Client

T = TypeVar("T")


class Election:
    """Candidates for one key, one of which leads. `value` is published by the leader, such as its address.

    Options are those of `Client.acquire`. Hand `guard.fencing_token` to every resource that the leader writes
    to.
    """

    @explicit_options(BaseClient._acquisition)
    def __init__(self, client: Client, key: str, value: bytes | str = b"", **options: Unpack[AcquireOptions]) -> None:
        self._client = client
        self._key = key
        self._options: AcquireOptions = {**options, "data": value}

    async def campaign(self, *, wait: Wait = None) -> Guard:
        """Waits until this candidate leads, without a bound unless `wait` has one. To resign is to release
        the guard. Raises `LockHeld` when the wait is over."""
        return (await self._client.acquire(self._key, wait=wait, **self._options)).granted()

    async def lead(self, body: Callable[[Guard], Awaitable[T]]) -> T:
        """Campaigns, and awaits `body` while it leads; then resigns, and returns what `body` returned. After
        a loss it campaigns again, and awaits `body` again.

        The loss of the lead cancels `body`. An exception of `body` is raised unchanged, except the `LockLost`
        of this lead.
        """
        check_body(body, "body", "coroutine function")
        while True:
            guard = await self.campaign()
            try:
                async with bound_body(guard, True):
                    return await awaited(body, body(guard))
            except LockLost:
                if guard.lost is None:
                    raise

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        """Yields the present leader, and each later one; `None` while there is no leader. As
        `Client.observe`."""
        sort_key = self._options.get("sort_key")
        before: Leader | None = None
        begun = False
        async with aclosing(self._client.observe(self._key, sort_key=sort_key)) as locks:
            async for lock in locks:
                leader = Leader.of(lock)
                if not begun or leader != before:
                    begun, before = True, leader
                    yield leader
