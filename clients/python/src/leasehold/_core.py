"""The state of one client: the service, the time, the background, the records."""

from __future__ import annotations

import atexit
import logging
import math
import os
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ._call import (
    Action,
    Call,
    Cause,
    Done,
    Ended,
    Event,
    Lost,
    Refused,
    Release,
    Reply,
    Retryable,
    Send,
    Start,
    Terms,
    WakeAt,
    WasSuperseded,
)
from ._line import Lines
from ._returning import Releases
from ._runtime import run
from ._threads import Threads
from ._timing import LONGEST_TIMEOUT_MS, OPERATION_BOUND_MS
from .errors import LeaseholdError, LockLost, Superseded, Unavailable
from .observations import Entries, Observations

if TYPE_CHECKING:
    from ._api import Api
    from ._runtime import Event as Happened
    from ._runtime import Runtime, Task
    from ._world import World
    from .model import LockName, ReleaseOutcome

T = TypeVar("T")

_log = logging.getLogger("leasehold")

_EXIT_BOUND = 1.0
"""Seconds for which the end of the interpreter waits for releases in the background, and again for the release of
what is still held."""


class Kept(Protocol):
    """A guard, as its client sees it."""

    @property
    def ended(self) -> bool: ...

    def is_of(self, name: LockName) -> bool: ...

    async def release_soon(self, deadline: float) -> None: ...

    async def release_at_exit(self, timeout: float) -> None: ...

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
        self.unsettled: set[Happened] = set()  # one for each work in the background that has to come to its end
        self.can_watch = True  # until the service shows that it has no watches
        self.closed = runtime.event()
        self.lines = Lines(world, runtime)
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
        world = self.world
        bound = OPERATION_BOUND_MS if deadline is None else milliseconds(deadline - world.now())
        call: Call[None] = Call(Terms(LONGEST_TIMEOUT_MS, bound, milliseconds(lease)))
        event: Event[None] = Start(None)
        failure: LeaseholdError | None = None
        results: list[T] = []
        while True:
            _, actions = call.step(self.api.memory, event, world.now_ms(), world)
            match actions[-1]:
                case Send(number, _, timeout):
                    try:
                        results.append(await send(timeout / 1000))
                        event = Ended(number, Done())
                    except LeaseholdError as error:
                        failure, event = error, Ended(number, end_of(error))
                case WakeAt(time):
                    await self.runtime.sleep(max(0.0, time / 1000 - world.now()))
                    event = "tick"
                case _ if results:
                    return results[0]
                case _:
                    raise failure or LeaseholdError("the request has no result")

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

    async def release_at_exit(self, timeout: float) -> None:
        """Releases what is still held, one after the other: threads cannot be started any more."""
        deadline = self.world.now() + timeout
        for guard in self.live_guards():
            if (left := deadline - self.world.now()) > 0:
                await guard.release_at_exit(left)

    def in_background(self, work: Task) -> None:
        """Does the work in the background. `settle` waits for it."""
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
        self.lines = Lines(self.world, self.runtime)
        self.closed = self.runtime.event()
        if was_closed:
            self.closed.set()
        for guard in list(self.guards):
            guard.after_fork_in_child()
        self.guards = weakref.WeakSet()


class GivingBack:
    """Carries out, in the background, what a call leaves to do after its caller."""

    def __init__(
        self,
        core: Core,
        name: LockName,
        call: Call[Any],
        actions: list[Action[Any]],
        release: Callable[[int, float], Awaitable[ReleaseOutcome]],
    ) -> None:
        """`release` receives the position of the key, and its time-out."""
        self._done = core.runtime.event()
        self._core = core
        self._name = name
        self._call = call
        self._release = release
        core.unsettled.add(self._done)
        self._plan(actions)

    def _plan(self, actions: list[Action[Any]]) -> None:
        if self._call.has_ended:
            self._core.unsettled.discard(self._done)
            self._done.set()
            return
        self._next = actions[-1]
        at = self._next.time / 1000 if isinstance(self._next, WakeAt) else self._core.world.now()
        self._core.runtime.schedule(self._go_on, at, at_exit=True)

    async def _go_on(self) -> None:
        event: Event[Any] = "tick"
        if isinstance(self._next, Send) and isinstance(self._next.what, Release):
            end: Reply | Cause
            try:
                outcome = await self._release(self._next.what.key, self._next.timeout / 1000)
                end = Done(found=outcome != "absent")
            except Exception as error:
                end = end_of(error)
                if isinstance(end, Refused):
                    _log.warning("an abandoned request for %r was not released: %s", self._name[0], error)
            event = Ended(self._next.send, end)
        world = self._core.world
        _, actions = self._call.step(self._core.api.memory, event, world.now_ms(), world)
        self._plan(actions)


def end_of(error: BaseException) -> Reply | Cause:
    """The end of a request that raised this error."""
    match error:
        case LockLost():
            return Lost()
        case Superseded(sequence=sequence):
            return WasSuperseded(sequence)
        case Unavailable(_is_answer=False, sent=sent):
            return "cut-off" if sent else "unreached"
        case Unavailable(retry_after=retry_after, sent=sent):
            return Retryable(round(retry_after * 1000), sent)
        case Exception():
            return Refused()
    return "cut-off"  # the caller was cancelled


def milliseconds(seconds: float | None) -> int | None:
    """Whole milliseconds; `None` for no bound."""
    return None if seconds is None or seconds == math.inf else max(0, int(seconds * 1000))


_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for core in list(_cores):
        core.after_fork_in_child()


def _at_exit() -> None:
    for core in list(_cores):
        if isinstance(core.runtime, Threads):  # an event loop has ended by now
            run(core.settle(_EXIT_BOUND))
            run(core.release_at_exit(_EXIT_BOUND))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
