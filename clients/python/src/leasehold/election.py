"""Leader election on one lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ._bodies import check_body, finished
from ._client import AcquireOptions, BaseClient, explicit_options
from ._timing import Wait
from .errors import LockLost
from .guard import Guard
from .model import Leader

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

    def campaign(self, *, wait: Wait = None, cancel: threading.Event | None = None) -> Guard:
        """Waits until this candidate leads, without a bound unless `wait` has one. To resign is to release
        the guard. Raises `LockHeld` when the wait is over, and `WaitCancelled` once `cancel` is set."""
        return self._client.acquire(self._key, wait=wait, cancel=cancel, **self._options).granted()

    def lead(self, body: Callable[[Guard], T], *, cancel: threading.Event | None = None) -> T:
        """Campaigns, and calls `body` while it leads; then resigns, and returns what `body` returned. After a
        loss it campaigns again, and calls `body` again.

        Python cannot interrupt `body` when the lead is lost: let it call `guard.ensure_held()`. An exception of
        `body` is raised unchanged, except the `LockLost` of this lead.
        """
        check_body(body, "body", "function")
        while True:
            guard = self.campaign(cancel=cancel)
            try:
                with guard:
                    return finished(body, body(guard))
            except LockLost:
                if guard.lost is None:
                    raise

    def observe(self, *, cancel: threading.Event | None = None) -> Iterator[Leader | None]:
        """Yields the present leader, and each later one; `None` while there is no leader. As
        `Client.observe`."""
        sort_key = self._options.get("sort_key")
        before: Leader | None = None
        begun = False
        for lock in self._client.observe(self._key, sort_key=sort_key, cancel=cancel):
            leader = Leader.of(lock)
            if not begun or leader != before:
                begun, before = True, leader
                yield leader
