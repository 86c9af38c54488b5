"""The line of one client for one lock: one waiter asks the service, and the others wait for their turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ._runtime import Event, Runtime
    from ._timing import Budget
    from ._world import World
    from .model import LockName, LockView

Pause: TypeAlias = Callable[[float], Awaitable[None]]

LOOK_AGAIN = 0.25
"""Seconds after which a waiter in line looks whether its wait is over, or its client was closed."""


class Turn:
    """The turn of one waiter: to ask, and then to hold. It ends once."""

    def __init__(self, line: Line) -> None:
        self._line: Line | None = line

    def saw(self, lock: LockView) -> None:
        """Shows the holder to the waiters behind."""
        if self._line is not None:
            self._line.seen = lock

    def holds(self, view: Callable[[], LockView | None]) -> None:
        """The waiter holds the lock now. `view` returns how it is held."""
        if self._line is not None:
            self._line.held = view

    def end(self) -> None:
        """Passes the turn to the next waiter."""
        line, self._line = self._line, None
        if line is not None:
            line._pass_on()


class Line:
    """The waiters for one lock, first in, first out."""

    def __init__(self, lines: Lines, name: LockName) -> None:
        self.seen: LockView | None = None
        """The last view of a holder that the service showed."""
        self.held: Callable[[], LockView | None] = lambda: None
        """Returns the view of the holder, where that is the one with the turn."""
        self._lines = lines
        self._name = name
        self._waiting: deque[Event] = deque()

    @property
    def view(self) -> LockView | None:
        return self.held() or self.seen

    def _pass_on(self) -> None:
        self.held = lambda: None
        with self._lines.mutex:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._lines.drop(self._name)

    def _leave(self, ticket: Event) -> None:
        """Gives a place up; and the turn, where it came meanwhile."""
        with self._lines.mutex:
            if not ticket.is_set():
                self._waiting.remove(ticket)
                return
        self._pass_on()


class Lines:
    """The lines of one client."""

    def __init__(self, world: World, runtime: Runtime) -> None:
        self._world = world
        self._runtime = runtime
        self._lines: dict[LockName, Line] = {}
        self.mutex = threading.RLock()  # reentrant: a signal handler may release

    def drop(self, name: LockName) -> None:
        """Forgets a line where nobody waits any more."""
        del self._lines[name]

    async def turn(self, name: LockName, budget: Budget, pause: Pause) -> Turn | LockView | None:
        """Waits for the turn. Returns the last view of the holder where the wait is over before; `None` where
        there is none. Raises what `pause` raises."""
        with self.mutex:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = Line(self, name)
                return Turn(line)
            ticket = self._runtime.event()
            line._waiting.append(ticket)
        try:
            while True:
                if (view := line.view) is not None:
                    budget.saw(view.record_version_number, view.lease, self._world.now())
                rest = budget.deadline - self._world.now()
                if rest <= 0:
                    break
                if await ticket.wait(min(rest, LOOK_AGAIN)):
                    return Turn(line)
                await pause(0)
        except BaseException:
            line._leave(ticket)
            raise
        line._leave(ticket)
        return line.view
