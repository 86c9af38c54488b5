"""What a client and its guards share: the service, the time, the timer, the books."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ._keeper import Keeper
from ._timing import OPERATION_BOUND, Backoff, request_timeout
from .errors import LeaseholdError, LockLost, Unavailable
from .observations import Observations

if TYPE_CHECKING:
    from ._api import Api
    from ._world import World
    from .guard import Guard
    from .model import LockName

T = TypeVar("T")

_log = logging.getLogger("leasehold")

_EXIT_BOUND = 1.0
"""Seconds for which the end of the interpreter waits for releases in the background."""


class Core:
    """The state of one client."""

    def __init__(self, api: Api, world: World, observation_margin: float) -> None:
        self.api = api
        self.world = world
        self.keeper = Keeper(world)
        self.observations = Observations(world, observation_margin)
        self.guards: weakref.WeakSet[Guard] = weakref.WeakSet()  # the keeper keeps the live ones alive
        self.abandoned: set[Abandoned] = set()
        self.closed = threading.Event()
        _cores.add(self)

    def repeat(
        self, send: Callable[[float], T], *, lease: float | None = None, deadline: float | None = None
    ) -> T:
        """Sends, and sends again after `Unavailable`, until the deadline: in ten seconds, unless given.
        `send` is given its time-out."""
        if deadline is None:
            deadline = self.world.now() + OPERATION_BOUND
        backoff = Backoff(self.world.chance)
        while True:
            try:
                return send(request_timeout(lease, deadline - self.world.now()))
            except Unavailable as error:
                pause = backoff.pause(error.retry_after)
                if self.world.now() + pause >= deadline:
                    raise
                time.sleep(pause)

    def live_guards(self) -> list[Guard]:
        """Those not lost, and not known to have been released."""
        return [guard for guard in list(self.guards) if not guard.ended]

    def settle(self, timeout: float) -> None:
        """Waits for the releases in the background."""
        deadline = self.world.now() + timeout
        for abandoned in list(self.abandoned):
            abandoned.done.wait(max(0.0, deadline - self.world.now()))

    def after_fork_in_child(self) -> None:
        """The parent's locks, threads and connections are the parent's."""
        was_closed = self.closed.is_set()
        self.api.transport.reset()
        self.keeper = Keeper(self.world)
        self.observations.reset_lock()
        self.abandoned = set()
        self.closed = threading.Event()
        if was_closed:
            self.closed.set()
        for guard in list(self.guards):
            guard.after_fork_in_child()
        self.guards = weakref.WeakSet()


class Abandoned:
    """Releases, in the background, a lease id under which a request may have been granted unseen."""

    def __init__(
        self, core: Core, name: LockName, lease_id: str, lease: float, may_arrive_until: float
    ) -> None:
        """`may_arrive_until`: until then the request may still be on its way to the table, so that a
        release that finds nothing to release proves nothing."""
        self.done = threading.Event()
        self._core = core
        self._name = name
        self._lease_id = lease_id
        self._lease = lease
        self._may_arrive_until = may_arrive_until
        self._deadline = core.world.now() + OPERATION_BOUND
        self._backoff = Backoff(core.world.chance)
        core.abandoned.add(self)
        core.keeper.schedule(self._try, core.world.now())

    def _try(self) -> None:
        now = self._core.world.now
        released = False
        pause = 0.0
        try:
            timeout = request_timeout(self._lease, self._deadline - now())
            outcome = self._core.api.release(self._name, self._lease_id, timeout=timeout)
            released = outcome != "absent"
        except LockLost:
            pass
        except Unavailable as error:
            pause = error.retry_after
            self._may_arrive_until = self._deadline
        except LeaseholdError as error:
            _log.warning("an abandoned request for %r was not released: %s", self._name[0], error)
            released = True
        finally:
            again = now() + self._backoff.pause(pause)
            if not released and again < self._may_arrive_until:
                self._core.keeper.schedule(self._try, again)
            else:
                self._core.abandoned.discard(self)
                self.done.set()


_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for core in list(_cores):
        core.after_fork_in_child()


def _at_exit() -> None:
    for core in list(_cores):
        core.settle(_EXIT_BOUND)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
