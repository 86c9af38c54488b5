"""The state of one client: the service, the time, the background, the records."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from ._returning import Releases
from ._runtime import run
from ._threads import Threads
from ._timing import OPERATION_BOUND, UNREACHED_BOUND, Backoff, request_timeout
from .errors import LeaseholdError, LockLost, Unavailable
from .observations import Entries, Observations

if TYPE_CHECKING:
    from ._api import Api
    from ._runtime import Event, Runtime, Task
    from ._world import World
    from .model import LockName, ReleaseOutcome

T = TypeVar("T")

_log = logging.getLogger("leasehold")

_EXIT_BOUND = 1.0
"""Seconds for which the end of the interpreter waits for releases in the background."""


class Kept(Protocol):
    """A guard, as its client sees it."""

    @property
    def ended(self) -> bool: ...

    def is_of(self, name: LockName) -> bool: ...

    async def release_until(self, deadline: float | None) -> None: ...

    def after_fork_in_child(self) -> None: ...


class Core:
    """The state that a client and its guards share."""

    def __init__(self, api: Api, world: World, runtime: Runtime, observation_margin: float) -> None:
        self.api = api
        self.world = world
        self.runtime = runtime
        self.observations = Observations(world, observation_margin)
        self.entries = Entries(world)
        self.guards: weakref.WeakSet[Kept] = weakref.WeakSet()  # the background keeps the live ones alive
        self.unsettled: set[Event] = set()  # one for each work in the background that has to come to its end
        self.can_watch = True  # until the service shows that it has no watches
        self.closed = runtime.event()
        self._releases = Releases()
        _cores.add(self)

    async def repeat(
        self,
        send: Callable[[float], Awaitable[T]],
        *,
        lease: float | None = None,
        deadline: float | None = None,
    ) -> T:
        """Sends, and retries after `Unavailable`, until the deadline: in ten seconds by default. `send`
        receives its time-out."""
        begun = self.world.now()
        if deadline is None:
            deadline = begun + OPERATION_BOUND
        backoff = Backoff(self.world.chance)
        while True:
            try:
                return await send(request_timeout(lease, deadline - self.world.now()))
            except Unavailable as error:
                if self.api.is_unreached(error):
                    deadline = min(deadline, begun + UNREACHED_BOUND)
                pause = backoff.pause(error.retry_after)
                if self.world.now() + pause >= deadline:
                    raise
                await self.runtime.sleep(pause)

    async def pause(self, seconds: float) -> None:
        """Waits, unless the client is closed meanwhile."""
        if await self.closed.wait(seconds):
            raise LeaseholdError("the client was closed")

    def check_open(self) -> None:
        if self.closed.is_set():
            raise LeaseholdError("the client is closed")

    def released(self, name: LockName, wanted: bool) -> None:
        """Records that this client released the lock just now. `wanted`: whether somebody waits for it."""
        self._releases.released(name, wanted, self.world.now())

    def returns(self, name: LockName, chosen: float | None) -> float:
        """Notes that this client requests a lock. Returns the pause before its first request, where it
        released the lock before."""
        return self._releases.returns(name, chosen, self.world.now(), self.world.chance())

    def holds(self, name: LockName) -> bool:
        """Whether this client itself holds the lock."""
        return any(guard.is_of(name) for guard in self.live_guards())

    def live_guards(self) -> list[Kept]:
        """The guards that are not lost, and not known to have been released."""
        return [guard for guard in list(self.guards) if not guard.ended]

    async def settle(self, timeout: float) -> None:
        """Waits for the releases and the rollbacks in the background."""
        deadline = self.world.now() + timeout
        for done in list(self.unsettled):
            await done.wait(max(0.0, deadline - self.world.now()))

    def in_background(self, work: Task) -> None:
        """Leaves the parent's locks, background and connections to the parent."""
        self.runtime.schedule(self._settling(work), self.world.now(), at_exit=True)

    async def finish(self, work: Task) -> None:
        """Does the work, and does it to the end where the caller is cancelled meanwhile. `settle` waits for
        it."""
        await self.runtime.finish(self._settling(work))

    def _settling(self, work: Task) -> Task:
        done = self.runtime.event()
        self.unsettled.add(done)

        async def to_the_end() -> None:
            try:
                await work()
            finally:
                self.unsettled.discard(done)
                done.set()

        return to_the_end

    def after_fork_in_child(self) -> None:
        """The parent's locks, background and connections are the parent's."""
        was_closed = self.closed.is_set()
        self.api.transport.reset()
        self.runtime.after_fork_in_child()
        self.observations.reset_lock()
        self.entries.reset_lock()
        self.unsettled = set()
        self.closed = self.runtime.event()
        if was_closed:
            self.closed.set()
        for guard in list(self.guards):
            guard.after_fork_in_child()
        self.guards = weakref.WeakSet()


class Abandoned:
    """Releases, in the background, a lease id whose grant may have been missed."""

    def __init__(
        self,
        core: Core,
        name: LockName,
        release: Callable[[float], Awaitable[ReleaseOutcome]],
        lease: float,
        may_arrive_until: float,
    ) -> None:
        """`release` receives its time-out. Until `may_arrive_until` the request may still be on its way to
        the table, so a release that finds nothing proves nothing."""
        self._done = core.runtime.event()
        self._core = core
        self._name = name
        self._release = release
        self._lease = lease
        self._may_arrive_until = may_arrive_until
        self._deadline = core.world.now() + OPERATION_BOUND
        self._backoff = Backoff(core.world.chance)
        core.unsettled.add(self._done)
        self._schedule(core.world.now())

    def _schedule(self, at: float) -> None:
        self._core.runtime.schedule(self._try, at, at_exit=True)

    async def _try(self) -> None:
        now = self._core.world.now
        released = False
        pause = 0.0
        try:
            outcome = await self._release(request_timeout(self._lease, self._deadline - now()))
            released = outcome != "absent"
        except LockLost:
            pass
        except Unavailable as error:
            pause = error.retry_after
            self._may_arrive_until = self._deadline
        except Exception as error:
            _log.warning("an abandoned request for %r was not released: %s", self._name[0], error)
            released = True
        again = now() + self._backoff.pause(pause)
        if not released and again < self._may_arrive_until:
            self._schedule(again)
        else:
            self._core.unsettled.discard(self._done)
            self._done.set()


_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for core in list(_cores):
        core.after_fork_in_child()


def _at_exit() -> None:
    for core in list(_cores):
        if isinstance(core.runtime, Threads):  # an event loop has ended by now
            run(core.settle(_EXIT_BOUND))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
